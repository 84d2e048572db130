"""Run a command with default signal handling: `default_signals.py COMMAND…`.

Under nohup SIGHUP is ignored, and in the background of a script SIGINT and SIGQUIT. All that is started inherits that,
no shell can undo it, and what a test ends by such a signal would run for ever.
"""

from __future__ import annotations

import os
import signal
import sys

# Those that nohup, shells, and programs around them leave ignored; and those that Python itself ignores.
INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD)
PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)


def ignore_here_alone() -> None:
    """Go on ignoring what this process ignores, but by a handler, which no child inherits."""
    for number in INHERITED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def wait_for(child: int) -> int:
    """Return the exit code of a child that has a session of its own, and pass on to it what ends us."""
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(child, signal.SIGTERM))
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def main() -> None:
    """Become the command; where SIGHUP was ignored, in a session of its own, which no terminal hangs up on."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        child = os.fork()
        if child:
            sys.exit(wait_for(child))
        os.setsid()
    for number in (*INHERITED, *PYTHONS_OWN):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 # no shell is wanted


if __name__ == "__main__":
    main()
