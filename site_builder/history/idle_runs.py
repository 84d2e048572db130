"""How a GPU is worn: since when it is in the same run of minutes, used, idle or empty, and how many of those were seen.

A minute in which nothing was seen, or nothing is clear, neither ends a run nor counts in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from site_builder.core.model import Number
from site_builder.core.names import folded
from site_builder.history.block_format import COLUMNS, MINUTES, NO_CODE, NONE, Damaged, Hour, standing_of
from site_builder.history.model import TAKEN, UNCLEAR, Series

MINUTE, HOUR, DAY = 60, 3600, 86400
# Each stands in history.db for ever: somebody is on it and uses it, or does not; nobody is on it.
USED, IDLE, EMPTY = 0, 1, 2
# Somebody is on it, and the driver does not tell whether they use it.
UNTOLD = 3
NOT_CLEAR: tuple[None, tuple[str, ...], tuple[str, ...]] = (None, (), ())
USE_TYPE, USE_STEP = COLUMNS["use"]
NO_USE = NONE[USE_TYPE]
# What comes so much later, or so much earlier, than the last that was told: a clock may have jumped.
JUMP = DAY
MOST_PEOPLE = 32


class Promise(NamedTuple):
    """A time in which a GPU was promised without a break: how many minutes of it were seen, and in how many of them
    somebody was on it; `who` are all to whom it was."""

    since: int
    last: int
    minutes: int
    taken: int
    who: tuple[str, ...]


class Worn(NamedTuple):
    """A GPU, wherever it was: its last host, when it was seen first and last, when somebody was last on it.

    `run` is what its last minutes are alike in, `since` the first of them, `minutes` how many of them were seen, and
    `who` is on it, if it is idle. `other` is what was known when a clock seemed to jump: it may jump back.
    """

    host: str
    first: int
    last: int
    taken: int | None
    run: int
    since: int
    minutes: int
    who: tuple[str, ...] = ()
    promise: Promise | None = None
    other: Worn | None = None


class Unkept(NamedTuple):
    """A promise that is over, and that nobody was on the GPU for; `until` is when its last minute ended."""

    host: str
    key: str
    index: Number  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    who: tuple[str, ...]
    since: int
    until: int
    minutes: int


class Stretch(NamedTuple):
    """Minutes of a GPU one after the other that are alike."""

    start: int
    count: int  # type: ignore[assignment] # as above
    mood: int
    users: tuple[str, ...]
    bookers: tuple[str, ...]

    @property
    def last(self) -> int:
        """The last of them."""
        return self.start + (self.count - 1) * MINUTE

    def later(self, than: int) -> Stretch:
        """What of it is later than a minute."""
        count = max(0, min(self.count, (self.last - than) // MINUTE))
        return self._replace(start=self.last - (count - 1) * MINUTE, count=count)


def card_of(host: str, key: str) -> str:
    """What names a GPU in the fleet: its UUID, wherever it is; one without has its place on its host."""
    return f"{host} {key}" if key.startswith("index ") else key


def after(  # noqa: PLR0913, PLR0917 # each is one thing
    before: Worn | None, host: str, series: Series, at: int, hour: Hour, number: int, idle_percent: float
) -> tuple[Worn | None, list[Unkept]]:
    """A GPU after an hour of its host, of which it is the GPU of that number; and the promises that ended in it."""
    ended: list[Unkept] = []
    known, other = going_on(before, at)
    for each in stretches(hour, number, at, idle_percent):
        if known is None:
            known = Worn(host, each.start, each.start - MINUTE, None, EMPTY, each.start, 0)
        one = each
        if one.start <= known.last:
            known, one = corrected(known, one), one.later(known.last)
            if not one.count:
                continue
        promise = promised(known.promise, one)
        gone = known.promise if known.promise and (promise is None or promise.since > known.promise.since) else None
        if gone and not gone.taken:
            place = (host, series.key, series.index, series.model)
            ended.append(Unkept(*place, gone.who, gone.since, gone.last + MINUTE, gone.minutes))
        known = longer(known, host, one)._replace(promise=promise)
    return (before if known is None else known._replace(other=other)), ended


def going_on(before: Worn | None, at: int) -> tuple[Worn | None, Worn | None]:
    """What an hour goes on from, and what is kept for when the clock jumps back to where it was."""
    if before is None:
        return None, None
    bare, other = before._replace(other=None), before.other
    if abs(at - bare.last) <= JUMP:
        return bare, other
    not_ahead = [one for one in (bare, other) if one and one.last <= at + JUMP]
    if not not_ahead:
        return None, bare
    return max(not_ahead, key=lambda one: one.last), bare


def believed(worn: Worn | None, now: float) -> Worn | None:
    """What is known at this moment: what a clock that ran ahead told of is yet to come."""
    while worn and worn.last > now + JUMP:
        worn = worn.other
    return worn


def stretches(hour: Hour, number: int, at: int, idle_percent: float) -> Iterator[Stretch]:
    """The minutes of a GPU in an hour, as far as it is clear what each was."""
    some = slice(number * MINUTES, (number + 1) * MINUTES)
    codes, moods = hour.codes[some], hour.columns[0][some].tobytes().translate(moods_of_use(idle_percent))
    if codes.count(codes[0]) == len(codes):  # so it is in most hours
        mood, users, bookers = NOT_CLEAR if codes[0] == NO_CODE else stood(hour.standings[codes[0]])
        if mood != USED or moods.count(moods[0]) == len(moods):
            if mood is not None:
                yield Stretch(at, len(codes), moods[0] if mood == USED else mood, users, bookers)
            return
    each = {code: stood(hour.standings[code]) for code in set(codes) if code != NO_CODE}
    start, count, last = 0, 0, None
    for slot, code in enumerate(codes):
        told = each.get(code)
        if told and told[0] == USED:
            told = (moods[slot], told[1], told[2])
        if told == last:
            count += 1
            continue
        if last and last[0] is not None:
            yield Stretch(at + start * MINUTE, count, last[0], last[1], last[2])
        start, count, last = slot, 1, told
    if last and last[0] is not None:
        yield Stretch(at + start * MINUTE, count, last[0], last[1], last[2])


@lru_cache(maxsize=8)
def moods_of_use(idle_percent: float) -> bytes:
    """What each use of a GPU that is taken says, as history keeps it."""
    return bytes(
        UNTOLD if one == NO_USE else IDLE if one * USE_STEP < idle_percent else USED for one in range(NO_USE + 1)
    )


@lru_cache(maxsize=65536)
def stood(text: str) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
    """How a GPU stood in a minute: None if it is not clear, else as if it was used; who was on it, who booked it."""
    state, who = standing_of(text)
    mood = None if state in UNCLEAR else USED if state in TAKEN else EMPTY
    return mood, who.users, who.bookers


def corrected(worn: Worn, one: Stretch) -> Worn:
    """After minutes that were told before, perhaps by another host: they count no second time, but may end a run."""
    moment = min(one.last, worn.last)
    promise = worn.promise
    if one.mood != EMPTY:
        worn = worn._replace(taken=max(worn.taken or 0, moment))
        if promise and moment >= promise.since:
            worn = worn._replace(promise=promise._replace(taken=promise.taken + 1))
    if one.mood in {worn.run, UNTOLD if worn.run != EMPTY else worn.run} or moment < worn.since:
        return worn
    since = moment + MINUTE
    return worn._replace(since=since, minutes=max(0, min(worn.minutes, (worn.last - since) // MINUTE + 1)))


def longer(before: Worn, host: str, one: Stretch) -> Worn:
    """After some minutes that are alike."""
    mood, count = one.mood, one.count
    if mood == UNTOLD:
        mood, count = (USED if before.run == EMPTY else before.run), 0
    anew = mood != before.run or (mood == IDLE and are_others(before.who, one.users))
    taken = before.taken if mood == EMPTY else one.last
    since, minutes = (one.start, count) if anew else (before.since, before.minutes + count)
    who = one.users or (() if anew else before.who)
    return Worn(host, before.first, one.last, taken, mood, since, minutes, who if mood == IDLE else ())


def are_others(before: Iterable[str], now: Iterable[str]) -> bool:
    """Whether there are people before and now, and none of them is the same."""
    first, second = set(map(folded, before)), set(map(folded, now))
    return bool(first and second) and first.isdisjoint(second)


def promised(before: Promise | None, one: Stretch) -> Promise | None:
    """A promise after some minutes; None if there is none."""
    if not one.bookers:
        return None
    taken = 0 if one.mood == EMPTY else one.count
    if before is None or are_others(before.who, one.bookers):
        return Promise(one.start, one.last, one.count, taken, one.bookers)
    who = tuple(sorted({*before.who, *one.bookers})[:MOST_PEOPLE])
    return Promise(before.since, one.last, before.minutes + one.count, before.taken + taken, who)


def pack(worn: Worn) -> bytes:
    """As history keeps it."""
    return orjson.dumps(plain(worn))


def plain(worn: Worn) -> list[object]:
    """In lists alone."""
    return [
        *worn[:8],
        None if worn.promise is None else list(worn.promise),
        None if worn.other is None else plain(worn.other),
    ]


def unpack(data: bytes) -> Worn:
    """The same, read back."""
    try:
        return of_plain(orjson.loads(data))
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(str(error)) from error


def of_plain(told: Any) -> Worn:  # noqa: ANN401 # a file may hold anything
    """The same, of lists."""
    host, first, last, taken, run, since, minutes, who, promise, other = told
    return Worn(
        str(host),
        int(first),
        int(last),
        None if taken is None else int(taken),
        int(run),
        int(since),
        int(minutes),
        names_of(who),
        None if promise is None else promise_of(*promise),
        None if other is None else of_plain(other),
    )


def promise_of(since: int, last: int, minutes: int, taken: int, who: Iterable[object]) -> Promise:
    """A promise."""
    return Promise(int(since), int(last), int(minutes), int(taken), names_of(who))


def names_of(told: Iterable[object]) -> tuple[str, ...]:
    """Names, as they were told."""
    return tuple(map(str, told))
