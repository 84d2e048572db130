"""An outside program that runs while we do something else, under a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

LIMIT = 10
# Exit codes by which a snapshot tells what became of a tool.
TIMED_OUT, MISSING, NOT_STARTED, STILL_HANGS = 124, 127, 126, 200

# Those that could not be killed, by their names: while one hangs, no other of that name is started.
LEFT: list[tuple[str, subprocess.Popen[bytes]]] = []


class Asked:
    """One call of it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Begin."""
        self.command = tuple(command)
        self.began = time.monotonic()
        self.failed = 0
        LEFT[:] = [(name, one) for name, one in LEFT if one.poll() is None]
        if any(name == self.command[0] for name, _ in LEFT):
            self.failed = STILL_HANGS
            return
        none, pipe = subprocess.DEVNULL, subprocess.PIPE
        try:
            self.process = subprocess.Popen(self.command, stdin=none, stdout=pipe, stderr=pipe, start_new_session=True)
        except FileNotFoundError:
            self.failed = MISSING
        except OSError:
            self.failed = NOT_STARTED

    def answer(self) -> tuple[int, bytes]:
        """Its exit code, and all that it said; one that hangs is killed, or left alone if it cannot be."""
        if self.failed:
            return self.failed, b""
        try:
            said, complaint = self.process.communicate(timeout=max(0.0, self.began + LIMIT - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            LEFT.append((self.command[0], self.process))
            return TIMED_OUT, b""
        # no line of its own may pass for one of ours
        text = said.replace(b"\r\n", b"\n").replace(b"\r", b"?").replace(b"\n#", b"\n #")
        text = b" " + text if text.startswith(b"#") else text
        errors = b"".join(b"# err %s\n" % line for line in complaint.splitlines() if line.strip())
        return self.process.returncode, text + (b"" if text.endswith(b"\n") or not text else b"\n") + errors
