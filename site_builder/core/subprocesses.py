"""Run other programs, with a limit on time and output."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

TIMEOUT_S = 10
PR_SET_PDEATHSIG = 1
# Exit codes by which a snapshot tells what became of a tool.
EXIT_TIMED_OUT, EXIT_MISSING, EXIT_NOT_STARTED, EXIT_STILL_HANGS = 124, 127, 126, 200

# Those that could not be killed, by their names: while one hangs, no other of that name is started.
HUNG_PROCESSES: list[tuple[str, subprocess.Popen[bytes]]] = []


def end_with_parent(number: int) -> None:
    """Let Linux send this process a signal when its parent ends, even if that is killed; call it in the child."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


class LimitedProcess:
    """One call of it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Begin."""
        self.command = tuple(command)
        self.started_at = time.monotonic()
        self.failed_exit_code = 0
        HUNG_PROCESSES[:] = [(name, one) for name, one in HUNG_PROCESSES if one.poll() is None]
        if any(name == self.command[0] for name, _ in HUNG_PROCESSES):
            self.failed_exit_code = EXIT_STILL_HANGS
            return
        none, pipe = subprocess.DEVNULL, subprocess.PIPE
        try:
            self.process = subprocess.Popen(self.command, stdin=none, stdout=pipe, stderr=pipe, start_new_session=True)
        except FileNotFoundError:
            self.failed_exit_code = EXIT_MISSING
        except OSError:
            self.failed_exit_code = EXIT_NOT_STARTED

    def read_output(self) -> tuple[int, bytes]:
        """Its exit code, and all that it said; one that hangs is killed, or left alone if it cannot be."""
        if self.failed_exit_code:
            return self.failed_exit_code, b""
        try:
            said, complaint = self.process.communicate(timeout=max(0.0, self.started_at + TIMEOUT_S - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            HUNG_PROCESSES.append((self.command[0], self.process))
            return EXIT_TIMED_OUT, b""
        # no line of its own may pass for one of ours
        text = said.replace(b"\r\n", b"\n").replace(b"\r", b"?").replace(b"\n#", b"\n #")
        text = b" " + text if text.startswith(b"#") else text
        errors = b"".join(b"# err %s\n" % line for line in complaint.splitlines() if line.strip())
        return self.process.returncode, text + (b"" if text.endswith(b"\n") or not text else b"\n") + errors


# Nothing is imported from the folder in which the builder was started: that may be one where others write.
RUN_MAIN_CODE = "import sys; sys.path[:] = filter(None, sys.path); from {0} import {1}; {1}.main()"


def build_module_command(package: str, module: str, *words: str) -> tuple[list[str], dict[str, str]]:
    """What runs `main` of a module with the Python and the folders that we have, and its environment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    return [sys.executable, "-c", RUN_MAIN_CODE.format(package, module), *words], environment
