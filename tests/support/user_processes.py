"""Work done in processes of other users, or in processes that are killed in the middle of it."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.support.forked import fork, run_forked

ALICE, BOB, LAB_GROUP = 7101, 7102, 7201


def as_user(uid: int, groups: list[int], act: Callable[[], str]) -> str:
    """What `act` says in a process of somebody else."""
    read, write = os.pipe()
    child = fork()
    if not child:
        outcome = "died"
        try:
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o077)
            outcome = act()
        except BaseException:
            outcome = traceback.format_exc()
        finally:
            os.write(write, outcome.encode())
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        return file.read()


def share(path: Path, uid: int, gid: int, mode: int) -> None:
    os.chown(path, uid, gid)
    path.chmod(mode)


STEPS = ("open", "fsync", "rename", "fchmod", "fchown", "unlink", "stat", "scandir", "mkdir", "symlink")


def killed_at(step: int, act: Callable[[], object]) -> bool:
    """Whether `act`, in a process of its own, was killed at its so-manieth call of the system; else it ended."""
    left = [step]

    def act_and_die() -> None:
        def dying(call: Callable[..., object]) -> Callable[..., object]:
            def instead(*arguments: object, **named: object) -> object:
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **named)

            return instead

        for name in STEPS:
            setattr(os, name, dying(getattr(os, name)))
        act()

    return run_forked(act_and_die) == -signal.SIGKILL
