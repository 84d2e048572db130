"""Beside a run: keeps its GPUs claimed and booked, and releases them when it ends, in whatever way.

It holds one end of a line whose other end is held by `gpuboard run` alone: when that ends or is killed, the kernel
closes it, and the guard knows.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from site_builder.bookings.command_common import in_sentences
from site_builder.core.command_options import Failure

if TYPE_CHECKING:
    from site_builder.bookings.command_common import Place
    from site_builder.bookings.run_reservation import Keeper

# Seconds: how often the booking is looked at, how soon again after a failure, and the longest pause of a release.
MOST_SELDOM, AGAIN, LONGEST = 900.0, 30.0, 300.0
SOONEST = 0.5
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


class Outcome(NamedTuple):
    """What came of a booking: 0, or the exit code of a refusal or failure with its words; GPUs that others have."""

    code: int
    said: str = ""
    promised: tuple[str, ...] = ()


class Line(NamedTuple):
    """What `gpuboard run` holds: to be closed when the command has ended, and to hear that all is released."""

    say: int
    hear: int

    def news(self) -> Iterator[str]:
        """What the guard has to say to whoever runs this."""
        while readable(self.hear, 0) and (told := os.read(self.hear, 65536)):
            yield from map(json.loads, told.splitlines())

    def end(self, within: float) -> None:
        """Have it released, and wait for that, but not for long."""
        os.close(self.say)
        readable(self.hear, within)
        os.close(self.hear)


class Job(NamedTuple):
    """What the guard is for; without a keeper nothing is booked."""

    keeper: Keeper | None
    place: Place | None
    claims: Sequence[int]


def start(job: Job) -> tuple[Outcome, Line]:
    """Have it booked by a guard, who is no child of ours: a program that waits for all of its own would wait for ever.

    Whatever happens to us from now on, somebody is there who releases it.
    """
    (theirs, say), (hear, answer) = os.pipe(), os.pipe()
    first = os.fork()
    if first == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                stand_apart({*job.claims, theirs, answer})
                guard(job, theirs, answer)
        finally:
            os._exit(0)
    os.close(theirs)
    os.close(answer)
    os.waitpid(first, 0)
    told = b""
    while not told.endswith(b"\n") and (more := os.read(hear, 65536)):
        told += more
    try:
        code, said, promised = json.loads(told)
    except ValueError:
        return Outcome(2, "the guard of the run has ended before it began"), Line(say, hear)
    return Outcome(code, said, tuple(promised)), Line(say, hear)


def stand_apart(kept: set[int]) -> None:
    """Hold nothing of the caller's: a pipe or a lock that we hold would be held beyond the run."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in range(3):
        os.dup2(nothing, handle)
    for handle in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle not in kept:
            with suppress(OSError):
                os.close(handle)


def guard(job: Job, line: int, answer: int) -> None:
    """All that it does: book, say so, keep the booking alive, and release it."""
    try:
        outcome = booked(job)
        say(answer, outcome)
        if not outcome.code:
            watch(job, line, answer)
    finally:
        for claim in job.claims:
            os.close(claim)
        released(job)


def say(answer: int, what: object) -> None:
    """A word to `gpuboard run`, which may be gone by now."""
    with suppress(OSError):
        os.write(answer, json.dumps(what).encode() + b"\n")


def readable(handle: int, within: float) -> bool:
    """Whether there is something to read, or the other end was closed, within so many seconds."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0, within) * 1000))


def now_at(place: Place | None) -> datetime:
    """What time it is where bookings are made."""
    return datetime.now(timezone.utc) + timedelta(seconds=place.ahead if place else 0)


def booked(job: Job) -> Outcome:
    """The first booking."""
    from site_builder.bookings.run_reservation import Promised  # noqa: PLC0415

    try:
        if job.keeper:
            with in_sentences(job.place):
                job.keeper.begin(now_at(job.place))
    except Promised as why:
        return Outcome(1, promised=tuple(one.uuid for one in why.cards))
    except Failure as why:
        return Outcome(why.exit_code, why.message)
    except Exception as error:
        return Outcome(2, f"it could not be booked: {type(error).__name__}: {error}")
    return Outcome(0)


def watch(job: Job, line: int, answer: int) -> None:
    """Until the line ends; what is booked is made longer in time, and what is in the way of that is told once."""
    every = MOST_SELDOM if job.keeper is None else job.keeper.length.total_seconds() / 4
    every = max(SOONEST, min(every, MOST_SELDOM))
    wait, told = every, ""
    while not readable(line, wait):
        wait, sentence = every, ""
        if job.keeper:
            is_done, sentence = gone_on(job.keeper, job.place)
            wait = every if is_done else min(every, AGAIN)
        if sentence and sentence != told:
            say(answer, sentence)
            told = sentence


def gone_on(keeper: Keeper, place: Place | None) -> tuple[bool, str]:
    """Whether the booking was looked after, and what to say of it; the run is what counts, and goes on in any case."""
    on = f"the run on {keeper.host} goes on, but"
    try:
        with in_sentences(place):
            others = keeper.go_on(now_at(place))
    except Failure as why:
        return why.exit_code == 1, f"{on} cannot be booked for longer: {why.message}" if why.exit_code == 1 else ""
    except Exception as error:
        return False, f"{on} its booking could not be made longer: {error}"
    at = others.astimezone() if others else None
    return True, f"{on} from {at:%H:%M} on its GPUs are promised to somebody else" if at else ""


def released(job: Job) -> None:
    """Give back what is left; a board that does not answer is asked again, for as long as there is something left."""
    keeper, pause = job.keeper, SOONEST
    end = time.monotonic() + (keeper.length.total_seconds() if keeper else 0)
    while keeper and keeper.ours:
        with suppress(Exception):  # whatever it was, it may be over at the next try
            keeper.release()
        if not keeper.ours or time.monotonic() > end:
            return
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)
