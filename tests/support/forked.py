"""Children that are like us: a command in a process of its own, to be killed, without waiting for Python to start."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable


def fork() -> int:
    """A child that is like us; Python warns where other threads run, which the child does not have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def start_forked(act: Callable[[], object]) -> int:
    """Start `act` in a child, and return its process id; it ends with 0, or with 1 after an exception."""
    if child := fork():
        return child
    code = 1
    try:
        act()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait_forked(child: int) -> int:
    """Wait for the child; its exit code, or the signal that ended it as a negative number."""
    status = os.waitpid(child, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def run_forked(act: Callable[[], object]) -> int:
    """Run `act` in a child to its end."""
    return wait_forked(start_forked(act))
