"""How a GPU is worn: since when it is in the same run of minutes, used, idle or empty, and how many of those were seen.

A minute in which nothing was seen, or nothing is clear, neither ends a run nor counts in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from site_builder.core.formatting import DAY, MINUTE
from site_builder.core.model import GpuNumber
from site_builder.core.names import fold_login
from site_builder.history.block_format import (
    GPU_COLUMNS,
    MINUTES_PER_HOUR,
    NO_CODE,
    NO_VALUE,
    DamagedBlockError,
    HostHour,
    parse_occupancy,
)
from site_builder.history.model import TAKEN_STATES, UNCLEAR_STATES, GpuSeries

# Each stands in history.db for ever: somebody is on it and uses it, or does not; nobody is on it.
RUN_USED, RUN_IDLE, RUN_EMPTY = 0, 1, 2
# Somebody is on it, and the driver does not tell whether they use it.
RUN_USE_UNKNOWN = 3
UNCLEAR_MINUTE: tuple[None, tuple[str, ...], tuple[str, ...]] = (None, (), ())
USE_TYPE, USE_STEP = GPU_COLUMNS["use"]
NO_USE = NO_VALUE[USE_TYPE]
# What comes so much later, or so much earlier, than the last that was told: a clock may have jumped.
CLOCK_JUMP_S = DAY
MAX_PEOPLE = 32


class BookedRun(NamedTuple):
    """A time in which a GPU was promised without a break: how many minutes of it were seen, and in how many of them
    somebody was on it; `who` are all to whom it was."""

    since: int
    last_seen: int
    minutes: int
    taken_minutes: int
    people: tuple[str, ...]


class GpuRun(NamedTuple):
    """A GPU, wherever it was: its last host, when it was seen first and last, when somebody was last on it.

    `run` is what its last minutes are alike in, `since` the first of them, `minutes` how many of them were seen, and
    `who` is on it, if it is idle. `other` is what was known when a clock seemed to jump: it may jump back.
    """

    host: str
    first_seen: int
    last_seen: int
    last_taken: int | None
    kind: int
    since: int
    minutes: int
    people: tuple[str, ...] = ()
    booked_run: BookedRun | None = None
    run_before_jump: GpuRun | None = None


class UnusedBooking(NamedTuple):
    """A promise that is over, and that nobody was on the GPU for; `until` is when its last minute ended."""

    host: str
    gpu_key: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    people: tuple[str, ...]
    since: int
    until: int
    minutes: int


class MinuteStretch(NamedTuple):
    """Minutes of a GPU one after the other that are alike."""

    start: int
    count: int  # type: ignore[assignment] # as above
    kind: int
    users: tuple[str, ...]
    bookers: tuple[str, ...]

    @property
    def last(self) -> int:
        """The last of them."""
        return self.start + (self.count - 1) * MINUTE

    def clip_after(self, than: int) -> MinuteStretch:
        """What of it is later than a minute."""
        count = max(0, min(self.count, (self.last - than) // MINUTE))
        return self._replace(start=self.last - (count - 1) * MINUTE, count=count)


def build_fleet_gpu_key(host: str, key: str) -> str:
    """What names a GPU in the fleet: its UUID, wherever it is; one without has its place on its host."""
    return f"{host} {key}" if key.startswith("index ") else key


def update_run(  # each is one thing
    before: GpuRun | None, host: str, series: GpuSeries, at: int, hour: HostHour, number: int, idle_percent: float
) -> tuple[GpuRun | None, list[UnusedBooking]]:
    """A GPU after an hour of its host, of which it is the GPU of that number; and the promises that ended in it."""
    ended: list[UnusedBooking] = []
    known, other = choose_base_run(before, at)
    for each in split_into_stretches(hour, number, at, idle_percent):
        if known is None:
            known = GpuRun(host, each.start, each.start - MINUTE, None, RUN_EMPTY, each.start, 0)
        one = each
        if one.start <= known.last_seen:
            known, one = correct_run(known, one), one.clip_after(known.last_seen)
            if not one.count:
                continue
        promise = extend_booked_run(known.booked_run, one)
        gone = (
            known.booked_run
            if known.booked_run and (promise is None or promise.since > known.booked_run.since)
            else None
        )
        if gone and not gone.taken_minutes:
            place = (host, series.key, series.index, series.model)
            ended.append(UnusedBooking(*place, gone.people, gone.since, gone.last_seen + MINUTE, gone.minutes))
        known = extend_run(known, host, one)._replace(booked_run=promise)
    return (before if known is None else known._replace(run_before_jump=other)), ended


def choose_base_run(before: GpuRun | None, at: int) -> tuple[GpuRun | None, GpuRun | None]:
    """What an hour goes on from, and what is kept for when the clock jumps back to where it was."""
    if before is None:
        return None, None
    bare, other = before._replace(run_before_jump=None), before.run_before_jump
    if abs(at - bare.last_seen) <= CLOCK_JUMP_S:
        return bare, other
    not_ahead = [one for one in (bare, other) if one and one.last_seen <= at + CLOCK_JUMP_S]
    if not not_ahead:
        return None, bare
    return max(not_ahead, key=lambda one: one.last_seen), bare


def find_current_run(worn: GpuRun | None, now: float) -> GpuRun | None:
    """What is known at this moment: what a clock that ran ahead told of is yet to come."""
    while worn and worn.last_seen > now + CLOCK_JUMP_S:
        worn = worn.run_before_jump
    return worn


def split_into_stretches(hour: HostHour, number: int, at: int, idle_percent: float) -> Iterator[MinuteStretch]:
    """The minutes of a GPU in an hour, as far as it is clear what each was."""
    some = slice(number * MINUTES_PER_HOUR, (number + 1) * MINUTES_PER_HOUR)
    codes, moods = (
        hour.occupancy_codes[some],
        hour.gpu_columns[0][some].tobytes().translate(build_use_translation(idle_percent)),
    )
    if codes.count(codes[0]) == len(codes):  # so it is in most hours
        mood, users, bookers = UNCLEAR_MINUTE if codes[0] == NO_CODE else classify_occupancy(hour.occupancies[codes[0]])
        if mood != RUN_USED or moods.count(moods[0]) == len(moods):
            if mood is not None:
                yield MinuteStretch(at, len(codes), moods[0] if mood == RUN_USED else mood, users, bookers)
            return
    each = {code: classify_occupancy(hour.occupancies[code]) for code in set(codes) if code != NO_CODE}
    start, count, last = 0, 0, None
    for slot, code in enumerate(codes):
        told = each.get(code)
        if told and told[0] == RUN_USED:
            told = (moods[slot], told[1], told[2])
        if told == last:
            count += 1
            continue
        if last and last[0] is not None:
            yield MinuteStretch(at + start * MINUTE, count, last[0], last[1], last[2])
        start, count, last = slot, 1, told
    if last and last[0] is not None:
        yield MinuteStretch(at + start * MINUTE, count, last[0], last[1], last[2])


@lru_cache(maxsize=8)
def build_use_translation(idle_percent: float) -> bytes:
    """What each use of a GPU that is taken says, as history keeps it."""
    return bytes(
        RUN_USE_UNKNOWN if one == NO_USE else RUN_IDLE if one * USE_STEP < idle_percent else RUN_USED
        for one in range(NO_USE + 1)
    )


@lru_cache(maxsize=65536)
def classify_occupancy(text: str) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
    """How a GPU stood in a minute: None if it is not clear, else as if it was used; who was on it, who booked it."""
    state, who = parse_occupancy(text)
    mood = None if state in UNCLEAR_STATES else RUN_USED if state in TAKEN_STATES else RUN_EMPTY
    return mood, who.users, who.bookers


def correct_run(worn: GpuRun, one: MinuteStretch) -> GpuRun:
    """After minutes that were told before, perhaps by another host: they count no second time, but may end a run."""
    moment = min(one.last, worn.last_seen)
    promise = worn.booked_run
    if one.kind != RUN_EMPTY:
        worn = worn._replace(last_taken=max(worn.last_taken or 0, moment))
        if promise and moment >= promise.since:
            worn = worn._replace(booked_run=promise._replace(taken_minutes=promise.taken_minutes + 1))
    if one.kind in {worn.kind, RUN_USE_UNKNOWN if worn.kind != RUN_EMPTY else worn.kind} or moment < worn.since:
        return worn
    since = moment + MINUTE
    return worn._replace(since=since, minutes=max(0, min(worn.minutes, (worn.last_seen - since) // MINUTE + 1)))


def extend_run(before: GpuRun, host: str, one: MinuteStretch) -> GpuRun:
    """After some minutes that are alike."""
    mood, count = one.kind, one.count
    if mood == RUN_USE_UNKNOWN:
        mood, count = (RUN_USED if before.kind == RUN_EMPTY else before.kind), 0
    anew = mood != before.kind or (mood == RUN_IDLE and are_different_people(before.people, one.users))
    taken = before.last_taken if mood == RUN_EMPTY else one.last
    since, minutes = (one.start, count) if anew else (before.since, before.minutes + count)
    who = one.users or (() if anew else before.people)
    return GpuRun(host, before.first_seen, one.last, taken, mood, since, minutes, who if mood == RUN_IDLE else ())


def are_different_people(before: Iterable[str], now: Iterable[str]) -> bool:
    """Whether there are people before and now, and none of them is the same."""
    first, second = set(map(fold_login, before)), set(map(fold_login, now))
    return bool(first and second) and first.isdisjoint(second)


def extend_booked_run(before: BookedRun | None, one: MinuteStretch) -> BookedRun | None:
    """A promise after some minutes; None if there is none."""
    if not one.bookers:
        return None
    taken = 0 if one.kind == RUN_EMPTY else one.count
    if before is None or are_different_people(before.people, one.bookers):
        return BookedRun(one.start, one.last, one.count, taken, one.bookers)
    who = tuple(sorted({*before.people, *one.bookers})[:MAX_PEOPLE])
    return BookedRun(before.since, one.last, before.minutes + one.count, before.taken_minutes + taken, who)


def pack_run(worn: GpuRun) -> bytes:
    """As history keeps it."""
    return orjson.dumps(run_to_list(worn))


def run_to_list(worn: GpuRun) -> list[object]:
    """In lists alone."""
    return [
        worn.host,
        worn.first_seen,
        worn.last_seen,
        worn.last_taken,
        worn.kind,
        worn.since,
        worn.minutes,
        worn.people,
        None if worn.booked_run is None else list(worn.booked_run),
        None if worn.run_before_jump is None else run_to_list(worn.run_before_jump),
    ]


def unpack_run(data: bytes) -> GpuRun:
    """The same, read back."""
    try:
        return run_from_list(orjson.loads(data))
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedBlockError(str(error)) from error


def run_from_list(told: Any) -> GpuRun:  # noqa: ANN401 # a file may hold anything
    """The same, of lists."""
    host, first, last, taken, run, since, minutes, who, promise, other = told
    return GpuRun(
        str(host),
        int(first),
        int(last),
        None if taken is None else int(taken),
        int(run),
        int(since),
        int(minutes),
        parse_names(who),
        None if promise is None else build_booked_run(*promise),
        None if other is None else run_from_list(other),
    )


def build_booked_run(since: int, last: int, minutes: int, taken: int, who: Iterable[object]) -> BookedRun:
    """A promise."""
    return BookedRun(int(since), int(last), int(minutes), int(taken), parse_names(who))


def parse_names(told: Iterable[object]) -> tuple[str, ...]:
    """Names, as they were told."""
    return tuple(map(str, told))
