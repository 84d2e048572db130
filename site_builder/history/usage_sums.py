"""Add up the minutes of an hour: who had how much of which model, and how long its GPUs were in each state."""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, tzinfo
from functools import lru_cache
from operator import add
from typing import NamedTuple, TypeVar

from site_builder.core.formatting import MINUTE
from site_builder.history import block_format
from site_builder.history.block_format import MINUTES_PER_HOUR, NO_CODE, NO_USE, HourBlock
from site_builder.history.model import GPU_STATES, TAKEN_STATES, UNCLEAR_STATES, GpuSeries

# All numbers of people up to ten divide it.
UNITS_PER_MINUTE = 2520


class UsageShareSums(NamedTuple):
    """What a person had, in units: used, of it held idle; booked, of it with nothing of theirs on the GPU."""

    used: int
    held: int
    booked: int
    unused: int


class SeenMinuteSums(NamedTuple):
    """Minutes of GPUs by state, without their use."""

    seen: int = 0
    unknown: int = 0
    lost: int = 0
    conflict: int = 0
    held: int = 0
    busy: int = 0
    booked: int = 0
    free: int = 0
    unowned: int = 0


class StateMinutes(NamedTuple):
    """Minutes of GPUs by state; sums of their use are in half percents times minutes."""

    seen: int
    unknown: int
    lost: int
    conflict: int
    held: int
    busy: int
    booked: int
    free: int
    unowned: int
    told: int = 0
    use: int = 0
    taken_told: int = 0
    taken_use: int = 0


Key = TypeVar("Key")
Sums = TypeVar("Sums", UsageShareSums, SeenMinuteSums, StateMinutes)


class UsageShareSumsRow(NamedTuple):
    """Share of a person in one model's GPUs on a host on a day."""

    day: date
    host: str
    model: str
    person: str
    share: UsageShareSums


class StateMinuteSumsRow(NamedTuple):
    """Minutes of one model's GPUs on a host on a day."""

    day: date
    host: str
    model: str
    seen: StateMinutes


class DailyUsageSums(NamedTuple):
    shares: list[UsageShareSumsRow]
    seen: list[StateMinuteSumsRow]


class HourlyUsageSums(NamedTuple):
    """Sums over all hosts, by hour (its beginning), model and person."""

    shares: dict[tuple[int, str, str], UsageShareSums]
    seen: dict[tuple[int, str], StateMinutes]


def add_to_usage_sums(sums: dict[Key, Sums], key: Key, more: Sums) -> None:
    known = sums.get(key)
    sums[key] = more if known is None else type(more)._make(map(add, known, more))


@dataclass(frozen=True)
class UsageTally:
    """Shares by day, model and person, and minutes by day and model."""

    shares: dict[tuple[date, str, str], UsageShareSums] = field(default_factory=dict)
    seen: dict[tuple[date, str], StateMinutes] = field(default_factory=dict)

    def add_gpu_minutes(self, key: tuple[date, str], hour: HourBlock, gpu_minutes: slice) -> None:
        codes, use = hour.occupancy_codes[gpu_minutes], hour.gpu_columns["use"][gpu_minutes]
        if block_format.has_no_block_values(codes):
            return
        state_minutes = dict.fromkeys(GPU_STATES, 0)
        taken_codes, unowned_minutes = set(), 0
        is_constant = codes.count(codes[0]) == len(codes)  # nothing changed in that hour
        for code, minutes in [(codes[0], len(codes))] if is_constant else Counter(codes).items():
            if code == NO_CODE:
                continue
            state, unowned, shares = account_minutes(hour.occupancies[code], minutes)
            state_minutes[state] += minutes
            unowned_minutes += unowned
            for person, share in shares:
                add_to_usage_sums(self.shares, (*key, person), share)
            if state in TAKEN_STATES:
                taken_codes.add(code)
        taken_use = use
        if not is_constant or not taken_codes:
            taken_use = array(use.typecode, [value for value, code in zip(use, codes) if code in taken_codes])
        missing, taken_missing = use.count(NO_USE), taken_use.count(NO_USE)
        minutes_by_state = StateMinutes(
            seen=sum(state_minutes.values()),
            **state_minutes,
            unowned=unowned_minutes,
            told=len(use) - missing,
            use=sum(use) - missing * NO_USE,
            taken_told=len(taken_use) - taken_missing,
            taken_use=sum(taken_use) - taken_missing * NO_USE,
        )
        add_to_usage_sums(self.seen, key, minutes_by_state)


@lru_cache(maxsize=65536)
def account_minutes(text: str, minutes: int) -> tuple[str, int, tuple[tuple[str, UsageShareSums], ...]]:
    """Return the state of a GPU, the minutes that nobody owns, and the shares of people."""
    state, people = block_format.unpack_occupancy(text)
    is_taken = state in TAKEN_STATES
    used: Counter[str] = Counter()
    booked: Counter[str] = Counter()
    for person, units in split_usage_evenly(people.users, minutes) if is_taken else ():
        used[person] += units
    for person, units in split_usage_evenly(people.bookers, minutes):
        booked[person] += units
    held = used if state == "held" else {}
    absent = () if state in UNCLEAR_STATES else people.absent_bookers
    shares = [
        (person, UsageShareSums(used[person], held.get(person, 0), booked[person], booked[person] * (person in absent)))
        for person in {**used, **booked}
    ]
    return state, minutes if is_taken and not people.users else 0, tuple(shares)


def split_usage_evenly(people: Sequence[str], minutes: int) -> Iterator[tuple[str, int]]:
    """Give each of some people an even part of some minutes, to the last unit."""
    if people:
        units, rest = divmod(minutes * UNITS_PER_MINUTE, len(people))
        for position, person in enumerate(people):
            yield person, units + (position < rest)


def split_usage_hour_by_day(at: int, zone: tzinfo) -> list[tuple[date, int, int]]:
    """Split an hour into days: midnight is not on the hour everywhere."""
    first = datetime.fromtimestamp(at, zone).date()
    last = datetime.fromtimestamp(at + MINUTE * (MINUTES_PER_HOUR - 1), zone).date()
    if first == last:
        return [(first, 0, MINUTES_PER_HOUR)]
    dates = [datetime.fromtimestamp(at + MINUTE * minute, zone).date() for minute in range(MINUTES_PER_HOUR)]
    midnight = dates.index(last)
    return [(first, 0, midnight), (last, midnight, MINUTES_PER_HOUR)]


def tally_usage_hours(
    connection: sqlite3.Connection, hours: Iterable[tuple[int, int, HourBlock]], zone: tzinfo
) -> Mapping[tuple[int, str], UsageTally]:
    """Add up hours, by their beginnings and hosts."""
    tallies: dict[tuple[int, str], UsageTally] = defaultdict(UsageTally)
    gpu_sets: dict[int, tuple[str, tuple[GpuSeries, ...]]] = {}
    for at, gpu_set_id, hour in hours:
        if gpu_set_id not in gpu_sets:
            row = connection.execute("SELECT host, gpus FROM shape WHERE id=?", (gpu_set_id,)).fetchone()
            gpu_sets[gpu_set_id] = (row[0], block_format.unpack_gpu_series(row[1])) if row else ("", ())
        host, series = gpu_sets[gpu_set_id]
        for day, start, end in split_usage_hour_by_day(at, zone):
            for number, gpu in enumerate(series):
                gpu_minutes = slice(number * MINUTES_PER_HOUR + start, number * MINUTES_PER_HOUR + end)
                tallies[at, host].add_gpu_minutes((day, gpu.model), hour, gpu_minutes)
    return tallies
