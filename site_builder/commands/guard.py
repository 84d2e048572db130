"""Beside a run: keeps its GPUs claimed and booked, and releases them when it ends, in whatever way."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from site_builder.booking.keeper import Keeper, Promised
from site_builder.commands.booking import in_sentences
from site_builder.commands.options import Failure, tell

# Seconds between two tries to release, and after how many the booking is left to end by itself.
AGAIN, TRIES = 10, 30
LOOK_EVERY = 1
# The least seconds between two looks at the booking.
SOONEST = 1.0


class Outcome(NamedTuple):
    """What came of a booking: 0, or the exit code of a refusal or failure with its words; GPUs that others have."""

    code: int
    said: str = ""
    promised: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


def start(keeper: Keeper | None, claims: Sequence[int]) -> Outcome:
    """Book, and watch this process, which goes on as the command.

    It is the guard who books: whatever happens to us from now on, somebody is there who releases it. And it is no
    child of ours: a program that waits for all of its children would wait for ever.
    """
    watched = Watched()
    hear, say = os.pipe()
    first = os.fork()
    if first == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                guard(keeper, claims, watched, say)
        finally:
            os._exit(0)
    os.close(say)
    os.waitpid(first, 0)
    with os.fdopen(hear, "rb") as pipe:
        told = pipe.read()
    try:
        code, said, promised, ids = json.loads(told)
    except ValueError:
        return Outcome(2, "the guard of the run has ended before it began")
    return Outcome(code, said, tuple(promised), tuple(ids))


def guard(keeper: Keeper | None, claims: Sequence[int], watched: Watched, say: int) -> None:
    """All that it does: book, say so, keep the booking alive, and release it."""
    stand_apart({*claims, *watched.handles, say})
    outcome = booked(keeper) if keeper else Outcome(0)
    os.write(say, json.dumps(outcome).encode())
    os.close(say)
    if not outcome.code:
        watch(keeper, watched)
    os.dup2(0, 2)  # who reads our words reads to their end
    for claim in claims:
        os.close(claim)
    if keeper:
        release(keeper)


def stand_apart(kept: set[int]) -> None:
    """Hold nothing of the caller's but where to complain: a pipe or a lock that we hold would be held for the run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for handle in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle not in kept:
            with suppress(OSError):
                os.close(handle)


def booked(keeper: Keeper) -> Outcome:
    """The first booking; what was booked before something went wrong is released again."""
    try:
        with in_sentences(keeper.place):
            keeper.ensure()
    except Promised as why:
        return Outcome(1, promised=tuple(one.uuid for one in why.gpus))
    except Failure as why:
        return Outcome(why.exit_code, why.message)
    except Exception as error:
        return Outcome(2, f"it could not be booked: {type(error).__name__}: {error}")
    return Outcome(0, ids=tuple(keeper.ids))


def watch(keeper: Keeper | None, watched: Watched) -> None:
    """Until the command ends; the booking is made longer long before that ends."""
    refused = False
    every = max(keeper.length / 2, SOONEST) if keeper else 3600.0
    while not watched.has_ended(every):
        if keeper and not refused:
            refused = not extended(keeper)


def extended(keeper: Keeper) -> bool:
    """Whether it goes on, or may do so later; the run is what counts, so that nothing else ends it."""
    sentence = ""
    try:
        with in_sentences(keeper.place):
            keeper.ensure()
    except Failure as why:
        if why.exit_code == 1:
            sentence = f"the run on {keeper.host} goes on, but cannot be booked for longer: {why.message}"
    except Exception as error:
        sentence = f"the booking of the run on {keeper.host} could not be made longer: {error}"
    if sentence:
        with suppress(OSError, ValueError):  # nobody may listen any more
            tell(sentence)
    return not sentence


def release(keeper: Keeper, tries: int = TRIES) -> None:
    """Give back what is left of the booking; a board that does not answer is asked again for some minutes."""
    for _ in range(tries):
        try:
            with in_sentences(keeper.place):
                keeper.release()
        except Failure as why:
            if why.exit_code == 1:  # it is over, or somebody released it before us
                keeper.ids.pop()
                continue
        except Exception:  # the booking ends by itself
            return
        else:
            return
        time.sleep(AGAIN)


class Watched:
    """This process, as somebody else can watch it."""

    def __init__(self) -> None:
        """By a handle, where the kernel is not older than 5.3; else by what /proc tells of it."""
        self.pid = os.getpid()
        self.began = start_time(self.pid)
        try:
            self.handles = {os.pidfd_open(self.pid)}
        except (OSError, AttributeError):
            self.handles = set()

    def has_ended(self, within: float) -> bool:
        """Whether it ends within so many seconds."""
        if self.handles:
            return bool(select.select(list(self.handles), [], [], within)[0])
        return waited(lambda: start_time(self.pid) != self.began, within)


def waited(is_so: Callable[[], bool], within: float) -> bool:
    """Whether something comes to be so within so many seconds."""
    end = time.monotonic() + within
    while not is_so():
        rest = end - time.monotonic()
        if rest <= 0:
            return False
        time.sleep(min(rest, LOOK_EVERY))
    return True


def start_time(pid: int) -> str:
    """What tells a process from a later one of the same number; nothing once it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in {"Z", "X"} else rest[18]
