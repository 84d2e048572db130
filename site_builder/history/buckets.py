"""Sums over minutes, hours and days."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, tzinfo
from functools import cache, lru_cache
from typing import NamedTuple

from site_builder.history.block_format import (
    GPU_COLUMNS,
    HOST_COLUMNS,
    MINUTES_PER_HOUR,
    NO_CODE,
    NO_VALUE,
    DamagedBlockError,
    HostHour,
    array_from_bytes,
    array_to_bytes,
    has_no_values,
    pack_block,
    parse_occupancy,
    unpack_block,
)
from site_builder.history.model import GPU_STATES, TAKEN_STATES, UNCLEAR_STATES, GpuSeries

UNITS_PER_MINUTE = 2520
NO_USE = NO_VALUE[GPU_COLUMNS["use"][0]]
HostModel = tuple[str, str]  # a host and a model


class UsageShare(NamedTuple):
    """What a person had: on GPUs, of it held idle; promised to them, and of it with nothing of theirs on it."""

    used: int
    held: int
    booked: int
    unused: int


class StateMinutes(NamedTuple):
    """What was seen of GPUs: how long in each state; taken by nobody that is known; how long their use was told, and
    the sum of it, in half percents times minutes; and both again of the minutes in which they were taken."""

    seen: int
    unknown: int
    lost: int
    conflict: int
    held: int
    busy: int
    booked: int
    free: int
    unowned: int
    told: int
    use: int
    taken_told: int = 0
    taken_use: int = 0


class UsageWindow(NamedTuple):
    """Some hours up to a moment: how many of their minutes were looked at, who had how much, and what was seen."""

    since: int
    until: int
    seen_minutes: int
    shares: dict[str, UsageShare]
    state_minutes: StateMinutes


class MonthUsage(NamedTuple):
    """A month by its first day, from the day on with which history begins, as far as it is added up: who had how much;
    what people had, what was seen, and how many minutes were not, by host and model, or for all of them under no name.
    """

    first: date
    since: date
    until: int
    shares: dict[str, UsageShare]
    shares_by_place: dict[HostModel, UsageShare]
    seen_by_place: dict[HostModel, StateMinutes]
    unseen_by_place: dict[HostModel, int]


class RecentUsage(NamedTuple):
    """What is added up: windows, and months, the newest first; none of them where it is not done yet."""

    windows: tuple[UsageWindow, ...]
    months: tuple[MonthUsage, ...]


class UsageTally:
    """Shares by model and person, and what was seen by model, on each day."""

    def __init__(self) -> None:
        """None yet."""
        self.shares: dict[tuple[date, str, str], list[int]] = {}
        self.seen: dict[tuple[date, str], list[int]] = {}

    def add_hour(self, hour: HostHour, series: Sequence[GpuSeries], days: Sequence[tuple[date, int, int]]) -> None:
        """The minutes of a host in an hour; `days` are the days of the lab in it, each from one minute to another."""
        for number, which in enumerate(series):
            for day, start, end in days:
                first = number * MINUTES_PER_HOUR
                codes = hour.occupancy_codes[first + start : first + end]
                if has_no_values(codes):
                    continue
                self.add_gpu_minutes((day, which.model), hour, codes, hour.gpu_columns[0][first + start : first + end])

    def add_gpu_minutes(self, key: tuple[date, str], hour: HostHour, codes: array[int], use: array[int]) -> None:
        """Some minutes of one GPU."""
        row = self.seen.setdefault(key, [0] * len(StateMinutes._fields))
        alike = codes.count(codes[0]) == len(codes)  # nothing changed in that hour
        for code, minutes in [(codes[0], len(codes))] if alike else Counter(codes).items():
            if code == NO_CODE:
                continue
            state, free_of_owner, parts = account_minutes(hour.occupancies[code], minutes)
            row[0] += minutes
            row[1 + state] += minutes
            row[8] += free_of_owner
            for person, share in parts:
                mine = self.shares.setdefault((*key, person), [0] * len(UsageShare._fields))
                for place, units in enumerate(share):
                    mine[place] += units
        none = use.count(NO_USE)
        row[9] += len(use) - none
        row[10] += sum(use) - none * NO_USE
        taken = select_use_while_taken(codes, hour.occupancies, use)
        none = taken.count(NO_USE)
        row[11] += len(taken) - none
        row[12] += sum(taken) - none * NO_USE


def select_use_while_taken(codes: array[int], standings: Sequence[str], use: array[int]) -> array[int]:
    """The use of a GPU in the minutes in which somebody had it."""
    there = {code for code in set(codes) if code != NO_CODE and parse_occupancy(standings[code]).state in TAKEN_STATES}
    if not there:
        return use[:0]
    if codes.count(codes[0]) == len(codes):  # nothing changed in that hour
        return use
    return array(use.typecode, [one for one, code in zip(use, codes) if code in there])


@lru_cache(maxsize=65536)
def account_minutes(text: str, minutes: int) -> tuple[int, int, tuple[tuple[str, UsageShare], ...]]:
    """So many minutes in which a GPU stood like this: the place of its state, those that nobody owns, and shares."""
    standing = parse_occupancy(text)
    state, who = standing.state, standing.people
    taken = state in TAKEN_STATES
    found: dict[str, list[int]] = {}
    if taken:
        for person, units in split_evenly(who.users, minutes):
            row = found.setdefault(person, [0, 0, 0, 0])
            row[0] += units
            row[1] += units if state == "held" else 0
    for person, units in split_evenly(who.bookers, minutes):
        row = found.setdefault(person, [0, 0, 0, 0])
        row[2] += units
        row[3] += units if person in who.absent_bookers and state not in UNCLEAR_STATES else 0
    unowned = minutes if taken and not who.users else 0
    return GPU_STATES.index(state), unowned, tuple((person, UsageShare(*row)) for person, row in found.items())


def split_evenly(people: Sequence[str], minutes: int) -> Iterator[tuple[str, int]]:
    """Minutes that several have together, each an even part of them, to the last unit."""
    if people:
        each, rest = divmod(minutes * UNITS_PER_MINUTE, len(people))
        for place, person in enumerate(people):
            yield person, each + (place < rest)


def split_hour_by_day(at: int, zone: tzinfo) -> list[tuple[date, int, int]]:
    """The days of the lab in the hour that begins then: midnight is not on the hour everywhere."""
    first = datetime.fromtimestamp(at, zone).date()
    last = datetime.fromtimestamp(at + 60 * (MINUTES_PER_HOUR - 1), zone).date()
    if first == last:
        return [(first, 0, MINUTES_PER_HOUR)]
    dates = [datetime.fromtimestamp(at + 60 * minute, zone).date() for minute in range(MINUTES_PER_HOUR)]
    turn = next(minute for minute, one in enumerate(dates) if one != first)
    return [(first, 0, turn), (last, turn, MINUTES_PER_HOUR)]


# Each value of a slot: its type of array, and what one step of its number is worth.
VALUE_COLUMNS = {"use": ("B", 0.5), "memory": ("H", 8), "temperature": ("B", 1), "power": ("H", 1)}
# Minutes: in all, in each state, and promised to somebody.
COUNT_COLUMNS = ("seen", *GPU_STATES, "promised")
# Who had most of it: places in the names beside.
PERSON_COLUMNS = ("owner", "booker")
GPU_BUCKET_COLUMNS = {
    **VALUE_COLUMNS,
    **dict.fromkeys(COUNT_COLUMNS, ("B", 1)),
    **dict.fromkeys(PERSON_COLUMNS, ("H", 1)),
}
HOST_BUCKET_COLUMNS = HOST_COLUMNS
# So many names have places that one byte can tell, and one more that says none.
MAX_ONE_BYTE_NAMES = 255
BucketColumns = dict[str, "array[int]"]


@dataclass(frozen=True)
class HostBuckets:
    """Some GPUs of one host over some slots, and the host's own."""

    host_columns: BucketColumns
    gpu_columns: list[BucketColumns]
    names: list[str] = field(default_factory=list)


def create_empty_buckets(slots: int, gpus: int) -> HostBuckets:
    """Slots of which nothing is known."""
    return HostBuckets(
        create_empty_columns(slots, HOST_BUCKET_COLUMNS),
        [create_empty_columns(slots, GPU_BUCKET_COLUMNS) for _ in range(gpus)],
    )


def create_empty_columns(slots: int, columns: dict[str, tuple[str, float]]) -> BucketColumns:
    """The same, of one GPU or one host."""
    return {
        name: array(kind, [0 if name in COUNT_COLUMNS else NO_VALUE[kind]]) * slots
        for name, (kind, _) in columns.items()
    }


def build_buckets(hour: HostHour, width: int) -> HostBuckets:
    """The minutes of an hour, so many to a slot."""
    own = {
        name: compute_bucket_means(one, width, 1, NO_VALUE[kind])
        for one, (name, (kind, _)) in zip(hour.host_columns, HOST_COLUMNS.items())
    }
    found = HostBuckets(own, [])
    codes_of: dict[str | None, int] = {None: NO_CODE}

    @cache
    def judged(raw: bytes) -> tuple[int, ...]:
        """What is counted of the minutes of a slot."""
        counts, owner, booker = count_states(array("H", raw), hour.occupancies)
        for name in (owner, booker):
            if name not in codes_of:
                codes_of[name] = len(found.names)
                found.names.append(name or "")
        return (*counts, codes_of[owner], codes_of[booker])

    for number in range(hour.gpu_count):
        some = slice(number * MINUTES_PER_HOUR, (number + 1) * MINUTES_PER_HOUR)
        line = {name: aggregate_column(name, one[some], width) for one, name in zip(hour.gpu_columns, GPU_COLUMNS)}
        codes = hour.occupancy_codes[some]
        raw, size = codes.tobytes(), codes.itemsize * width
        if raw[2:] == raw[:-2]:  # nothing changed in that hour
            for name, one in zip((*COUNT_COLUMNS, *PERSON_COLUMNS), judged(raw[:size])):
                line[name] = array(GPU_BUCKET_COLUMNS[name][0], [one]) * (MINUTES_PER_HOUR // width)
        else:
            rows = [judged(raw[start : start + size]) for start in range(0, len(raw), size)]
            for name, numbers in zip((*COUNT_COLUMNS, *PERSON_COLUMNS), zip(*rows)):
                line[name] = array(GPU_BUCKET_COLUMNS[name][0], numbers)
        found.gpu_columns.append(line)
    return found


def aggregate_column(name: str, minutes: array[int], width: int) -> array[int]:
    """A column of one GPU: means, and of the temperature the highest."""
    (kind, fine), (coarse_kind, coarse) = GPU_COLUMNS[name], VALUE_COLUMNS[name]
    if name == "temperature":
        return compute_bucket_maxima(minutes, width, NO_VALUE[kind])
    if minutes.count(minutes[0]) == len(minutes):  # memory hardly ever moves
        one = minutes[0]
        same = (
            NO_VALUE[coarse_kind]
            if one == NO_VALUE[kind]
            else min(int(one * fine / coarse + 0.5), NO_VALUE[coarse_kind] - 1)
        )
        return array(coarse_kind, [same]) * (len(minutes) // width)
    found = compute_bucket_means(minutes, width, fine / coarse, NO_VALUE[kind])
    if kind == coarse_kind:
        return found
    return array(
        coarse_kind,
        [NO_VALUE[coarse_kind] if one == NO_VALUE[kind] else min(one, NO_VALUE[coarse_kind] - 1) for one in found],
    )


def compute_bucket_means(minutes: array[int], width: int, worth: float, none: int) -> array[int]:
    """The mean of each slot, of the minutes that have a value."""
    if width == 1 and worth == 1:
        return minutes
    if none not in minutes:
        groups = minutes if width == 1 else map(sum, zip(*[iter(minutes)] * width))
        each = worth / width
        return array(minutes.typecode, [int(one * each + 0.5) for one in groups])
    return reduce_known_minutes(minutes, width, none, lambda told: int(sum(told) * worth / len(told) + 0.5))


def compute_bucket_maxima(minutes: array[int], width: int, none: int) -> array[int]:
    """The highest of each slot."""
    if width == 1:
        return minutes
    if none not in minutes:
        return array(minutes.typecode, map(max, zip(*[iter(minutes)] * width)))
    return reduce_known_minutes(minutes, width, none, max)


def reduce_known_minutes(minutes: array[int], width: int, none: int, what: Callable[[list[int]], int]) -> array[int]:
    """One number for each slot, from the minutes that have a value."""
    if has_no_values(minutes):
        return minutes[: len(minutes) // width]
    found = array(minutes.typecode)
    for start in range(0, len(minutes), width):
        told = [one for one in minutes[start : start + width] if one != none]
        found.append(what(told) if told else none)
    return found


def count_states(codes: Sequence[int], standings: Sequence[str]) -> tuple[list[int], str | None, str | None]:
    """How many minutes were seen, in which state, and promised; who had most of them, and to whom most were."""
    counts = dict.fromkeys(COUNT_COLUMNS, 0)
    people: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for code, minutes in Counter(codes).items():
        if code == NO_CODE:
            continue
        state, who = parse_occupancy(standings[code])
        counts["seen"] += minutes
        counts[state] += minutes
        counts["promised"] += minutes if who.bookers else 0
        for found, names in zip(people, (who.users, who.bookers)):
            for name in names:
                found[name] = found.get(name, 0) + minutes / len(names)
    owner, booker = (max(sorted(one), key=one.__getitem__) if one else None for one in people)
    return list(counts.values()), owner, booker


class ColumnMerger:
    """Puts lines together, and the names that they refer to."""

    def __init__(self, names: list[str]) -> None:
        """The names of what they are put into."""
        self.names = names
        self.codes = {name: code for code, name in enumerate(names)}
        self.last_recoding: tuple[Sequence[str], list[int]] = ((), [])

    def merge(self, line: BucketColumns, at: int, source: BucketColumns, names: Sequence[str], some: slice) -> None:
        """Some slots of a line into another, which may have fewer columns; where both saw something, more counts."""
        told = source if line.keys() == source.keys() else {name: source[name] for name in line}
        if some != slice(0, len(source["seen"])):
            told = {name: one[some] for name, one in told.items()}
        told = {name: self.recode_names(one, names) if name in PERSON_COLUMNS else one for name, one in told.items()}
        into = slice(at, at + len(told["seen"]))
        if not line["seen"][into].tobytes().strip(b"\0"):
            for name, one in told.items():
                line[name][into] = one
            return
        better = [new >= old and new > 0 for new, old in zip(told["seen"], line["seen"][into])]
        for name, one in told.items():
            old = line[name][into]
            line[name][into] = array(one.typecode, [a if ok else b for a, b, ok in zip(one, old, better)])

    def recode_names(self, codes: array[int], names: Sequence[str]) -> array[int]:
        """Places in other names, as places in ours."""
        if names is self.names or has_no_values(codes):
            return codes
        if self.last_recoding[0] is not names:
            self.last_recoding = (names, [self.assign_code(name) for name in names])
        ours = self.last_recoding[1]
        if len(self.names) < MAX_ONE_BYTE_NAMES:  # the high byte of each is the same before and after
            data = bytearray(array_to_bytes(codes))
            data[::2] = data[::2].translate(bytes([*ours, *[255] * (256 - len(ours))]))
            return array_from_bytes("H", data)
        return array("H", [code if code == NO_CODE else ours[code] for code in codes])

    def assign_code(self, name: str) -> int:
        """The place of a name, which is new or not; those that are too many have none."""
        if name not in self.codes and len(self.names) < NO_CODE:
            self.codes[name] = len(self.names)
            self.names.append(name)
        return self.codes.get(name, NO_CODE)


def merge_host_columns(line: BucketColumns, at: int, source: BucketColumns, some: slice) -> None:
    """Some slots of a host's own into others, where they have a value."""
    for name, (kind, _) in HOST_BUCKET_COLUMNS.items():
        told, none = source[name][some], NO_VALUE[kind]
        into = slice(at, at + len(told))
        old = line[name][into]
        line[name][into] = told if none not in told else array(kind, [b if a == none else a for a, b in zip(told, old)])


def merge_buckets(target: HostBuckets, at: int, source: HostBuckets) -> None:
    """Slots of the same GPUs into others."""
    joiner = ColumnMerger(target.names)
    every = slice(0, len(source.host_columns["load"]))
    merge_host_columns(target.host_columns, at, source.host_columns, every)
    for line, other in zip(target.gpu_columns, source.gpu_columns):
        joiner.merge(line, at, other, source.names, every)


def find_seen_end(line: BucketColumns) -> int:
    """Behind the last slot in which something was seen."""
    return len(line["seen"].tobytes().rstrip(b"\0"))


def add_columns(line: BucketColumns, other: BucketColumns) -> None:
    """Other minutes of the same GPU to the same slots; few of them have some of both."""
    seen = other["seen"].tobytes()
    some = slice(len(seen) - len(seen.lstrip(b"\0")), find_seen_end(other))
    old, new = line["seen"][some], other["seen"][some]
    alone = not old.tobytes().strip(b"\0")
    both = [] if alone else [place for place, minutes in enumerate(old) if minutes and new[place]]
    for name, one in other.items():
        mine, told = line[name][some], one[some]
        joined = told if alone else array(one.typecode, [b if ok else a for a, b, ok in zip(mine, told, new)])
        for place in both:
            values = (mine[place], told[place], old[place], new[place])
            joined[place] = combine_values(name, NO_VALUE[one.typecode], *values)
        line[name][some] = joined


def combine_values(name: str, none: int, one: int, two: int, minutes: int, more: int) -> int:  # each is one thing
    """A value of so many minutes and one of so many more."""
    if name in COUNT_COLUMNS:
        return one + two
    if none in {one, two}:
        return two if one == none else one
    if name in PERSON_COLUMNS:
        return one if minutes >= more else two
    return max(one, two) if name == "temperature" else int((one * minutes + two * more) / (minutes + more) + 0.5)


def pack_buckets(slots: HostBuckets) -> bytes:
    """Slots as they are kept."""
    columns = list(slots.host_columns.values())
    for name, (kind, _) in GPU_BUCKET_COLUMNS.items():
        joined = array(kind)
        for line in slots.gpu_columns:
            joined += line[name]
        columns.append(joined)
    return pack_block({"names": slots.names}, columns, 6)


def unpack_buckets(data: bytes) -> HostBuckets:
    """The same, read back."""
    words, columns = unpack_block(data)
    try:
        own = dict(zip(HOST_BUCKET_COLUMNS, columns))
        joined = dict(zip(GPU_BUCKET_COLUMNS, columns[len(HOST_BUCKET_COLUMNS) :]))
        count = len(own["load"])
        starts = range(0, len(joined["booker"]), count)
        gpus = [{name: one[start : start + count] for name, one in joined.items()} for start in starts]
        return HostBuckets(own, gpus, list(words["names"]))
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedBlockError(str(error)) from error
