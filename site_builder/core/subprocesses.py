"""Run other programs, with a limit on time and output."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from site_builder.core.model import EXIT_MISSING, EXIT_NOT_STARTED, EXIT_STILL_HANGS, EXIT_TIMED_OUT
from site_builder.core.terminal_text import replace_unprintable

TIMEOUT_S = 10
PR_SET_PDEATHSIG = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Processes that could not be killed, by command: while one hangs, the command is not started again.
HUNG_PROCESSES: list[tuple[str, subprocess.Popen[bytes]]] = []
# Import nothing from the folder in which the builder was started: others may be able to write there.
RUN_MAIN_CODE = "import sys; sys.path[:] = filter(None, sys.path); from {0} import {1}; {1}.main()"


class LimitedProcess:
    """A program that runs for at most TIMEOUT_S."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it, unless an earlier one of the same name still hangs."""
        self.command = tuple(command)
        self.deadline = time.monotonic() + TIMEOUT_S
        self.failed_exit_code = 0
        HUNG_PROCESSES[:] = [(name, process) for name, process in HUNG_PROCESSES if process.poll() is None]
        if any(name == self.command[0] for name, _ in HUNG_PROCESSES):
            self.failed_exit_code = EXIT_STILL_HANGS
            return
        devnull, pipe = subprocess.DEVNULL, subprocess.PIPE
        try:
            self.process = subprocess.Popen(command, stdin=devnull, stdout=pipe, stderr=pipe, start_new_session=True)
        except FileNotFoundError:
            self.failed_exit_code = EXIT_MISSING
        except OSError:  # also where the program is missing and a folder of PATH is closed to us
            exists = shutil.which(self.command[0], os.F_OK)
            self.failed_exit_code = EXIT_NOT_STARTED if exists else EXIT_MISSING

    def read_output(self) -> tuple[int, bytes]:
        """Return the exit code and all output; kill a process that hangs, or leave it if it cannot be killed."""
        if self.failed_exit_code:
            return self.failed_exit_code, b""
        try:
            output, error_output = self.process.communicate(timeout=max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            HUNG_PROCESSES.append((self.command[0], self.process))
            return EXIT_TIMED_OUT, b""
        # no line of its output may look like one of ours
        text = output.replace(b"\r\n", b"\n").replace(b"\r", b"?").replace(b"\n#", b"\n #")
        text = b" " + text if text.startswith(b"#") else text
        errors = b"".join(b"# err %s\n" % line for line in error_output.splitlines() if line.strip())
        return self.process.returncode, text + (b"" if text.endswith(b"\n") or not text else b"\n") + errors


def build_module_command(package: str, module: str, *words: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs `main` of a module with our Python and import path, and its environment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    return [sys.executable, "-c", RUN_MAIN_CODE.format(package, module), *words], environment


def end_with_parent(number: int) -> None:
    """Let Linux signal this process when its parent ends, even if that is killed; call it in the child."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def end_process(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """End a process, and kill it if it does not end in time."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def interrupt_on_signals(error: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """Let a closed terminal and a kill end the block as Ctrl-C does; a second signal changes nothing."""

    def end(*_: object) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise error

    previous = {number: signal.signal(number, end) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is end:  # after a signal, none interrupts the clean-up
                signal.signal(number, handler)


def require_time_left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def extract_last_line(text: str) -> str:
    """Return the last line that a program printed, shortened and without control characters."""
    lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
    line = lines[-1].strip() if lines else "no reason given"
    return replace_unprintable(line)[:300]
