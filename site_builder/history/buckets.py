"""Add up the minutes of an hour: into usage by person and model, and into buckets of several minutes."""

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
    NO_USE,
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

# All numbers of people up to ten divide it.
UNITS_PER_MINUTE = 2520
# Values of a bucket: the type of array, and the value of one step.
VALUE_COLUMNS = {"use": ("B", 0.5), "memory": ("H", 8), "temperature": ("B", 1), "power": ("H", 1)}
# Minutes: in all, in each state, and with a booking.
COUNT_COLUMNS = ("seen", *GPU_STATES, "promised")
# Who had most of it: positions in the names beside.
PERSON_COLUMNS = ("owner", "booker")
GPU_BUCKET_COLUMNS = {
    **VALUE_COLUMNS,
    **dict.fromkeys(COUNT_COLUMNS, ("B", 1)),
    **dict.fromkeys(PERSON_COLUMNS, ("H", 1)),
}
HOST_BUCKET_COLUMNS = HOST_COLUMNS
# Codes up to this one fit into one byte, beside the one that means nobody.
MAX_ONE_BYTE_NAMES = 255
BucketColumns = dict[str, "array[int]"]


class UsageShare(NamedTuple):
    """What a person had, in units: used, of it held idle; booked, of it with nothing of theirs on the GPU."""

    used: int
    held: int
    booked: int
    unused: int


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
    told: int
    use: int
    taken_told: int = 0
    taken_use: int = 0


# Positions in a row of StateMinutes; those of the states follow the first.
SEEN, UNOWNED, TOLD, USE, TAKEN_TOLD, TAKEN_USE = map(
    StateMinutes._fields.index, ("seen", "unowned", "told", "use", "taken_told", "taken_use")
)


class UsageTally:
    """Shares by day, model and person, and minutes by day and model."""

    def __init__(self) -> None:
        self.shares: dict[tuple[date, str, str], list[int]] = {}
        self.seen: dict[tuple[date, str], list[int]] = {}

    def add_hour(self, hour: HostHour, series: Sequence[GpuSeries], days: Sequence[tuple[date, int, int]]) -> None:
        """Add an hour of a host; `days` are the days in it, each from one minute to another."""
        for number, gpu in enumerate(series):
            for day, start, end in days:
                first = number * MINUTES_PER_HOUR
                codes = hour.occupancy_codes[first + start : first + end]
                if has_no_values(codes):
                    continue
                self.add_gpu_minutes((day, gpu.model), hour, codes, hour.gpu_columns[0][first + start : first + end])

    def add_gpu_minutes(self, key: tuple[date, str], hour: HostHour, codes: array[int], use: array[int]) -> None:
        row = self.seen.setdefault(key, [0] * len(StateMinutes._fields))
        is_constant = codes.count(codes[0]) == len(codes)  # nothing changed in that hour
        for code, minutes in [(codes[0], len(codes))] if is_constant else Counter(codes).items():
            if code == NO_CODE:
                continue
            state, unowned, shares = account_minutes(hour.occupancies[code], minutes)
            row[SEEN] += minutes
            row[SEEN + 1 + state] += minutes
            row[UNOWNED] += unowned
            for person, share in shares:
                sums = self.shares.setdefault((*key, person), [0] * len(UsageShare._fields))
                for position, units in enumerate(share):
                    sums[position] += units
        missing = use.count(NO_USE)
        row[TOLD] += len(use) - missing
        row[USE] += sum(use) - missing * NO_USE
        taken_use = select_use_while_taken(codes, hour.occupancies, use)
        missing = taken_use.count(NO_USE)
        row[TAKEN_TOLD] += len(taken_use) - missing
        row[TAKEN_USE] += sum(taken_use) - missing * NO_USE


def select_use_while_taken(codes: array[int], occupancies: Sequence[str], use: array[int]) -> array[int]:
    """Return the use of a GPU in the minutes in which it was taken."""
    taken_codes = {
        code for code in set(codes) if code != NO_CODE and parse_occupancy(occupancies[code]).state in TAKEN_STATES
    }
    if not taken_codes:
        return use[:0]
    if codes.count(codes[0]) == len(codes):  # nothing changed in that hour
        return use
    return array(use.typecode, [value for value, code in zip(use, codes) if code in taken_codes])


@lru_cache(maxsize=65536)
def account_minutes(text: str, minutes: int) -> tuple[int, int, tuple[tuple[str, UsageShare], ...]]:
    """Return the code of a GPU's state, the minutes that nobody owns, and the shares of people."""
    occupancy = parse_occupancy(text)
    state, people = occupancy.state, occupancy.people
    is_taken = state in TAKEN_STATES
    shares: dict[str, list[int]] = {}
    if is_taken:
        for person, units in split_evenly(people.users, minutes):
            share = shares.setdefault(person, [0, 0, 0, 0])
            share[0] += units
            share[1] += units if state == "held" else 0
    for person, units in split_evenly(people.bookers, minutes):
        share = shares.setdefault(person, [0, 0, 0, 0])
        share[2] += units
        share[3] += units if person in people.absent_bookers and state not in UNCLEAR_STATES else 0
    unowned = minutes if is_taken and not people.users else 0
    return GPU_STATES.index(state), unowned, tuple((person, UsageShare(*share)) for person, share in shares.items())


def split_evenly(people: Sequence[str], minutes: int) -> Iterator[tuple[str, int]]:
    """Give each of some people an even part of some minutes, to the last unit."""
    if people:
        units, rest = divmod(minutes * UNITS_PER_MINUTE, len(people))
        for position, person in enumerate(people):
            yield person, units + (position < rest)


def split_hour_by_day(at: int, zone: tzinfo) -> list[tuple[date, int, int]]:
    """Split an hour into days: midnight is not on the hour everywhere."""
    first = datetime.fromtimestamp(at, zone).date()
    last = datetime.fromtimestamp(at + 60 * (MINUTES_PER_HOUR - 1), zone).date()
    if first == last:
        return [(first, 0, MINUTES_PER_HOUR)]
    dates = [datetime.fromtimestamp(at + 60 * minute, zone).date() for minute in range(MINUTES_PER_HOUR)]
    midnight = next(minute for minute, day in enumerate(dates) if day != first)
    return [(first, 0, midnight), (last, midnight, MINUTES_PER_HOUR)]


@dataclass(frozen=True)
class HostBuckets:
    """Some GPUs of one host in buckets, and the host's own values."""

    host_columns: BucketColumns
    gpu_columns: list[BucketColumns]
    names: list[str] = field(default_factory=list)


def create_empty_buckets(bucket_count: int, gpu_count: int) -> HostBuckets:
    return HostBuckets(
        create_empty_columns(bucket_count, HOST_BUCKET_COLUMNS),
        [create_empty_columns(bucket_count, GPU_BUCKET_COLUMNS) for _ in range(gpu_count)],
    )


def create_empty_columns(bucket_count: int, columns: dict[str, tuple[str, float]]) -> BucketColumns:
    return {
        name: array(kind, [0 if name in COUNT_COLUMNS else NO_VALUE[kind]]) * bucket_count
        for name, (kind, _) in columns.items()
    }


def build_buckets(hour: HostHour, width: int) -> HostBuckets:
    """Join the minutes of an hour, `width` to a bucket."""
    host_columns = {
        name: compute_bucket_means(column, width, 1, NO_VALUE[kind])
        for column, (name, (kind, _)) in zip(hour.host_columns, HOST_COLUMNS.items())
    }
    host_buckets = HostBuckets(host_columns, [])
    person_codes: dict[str | None, int] = {None: NO_CODE}

    @cache
    def count_bucket(raw: bytes) -> tuple[int, ...]:
        """Return the counts of a bucket from its occupancy codes; most buckets are like others."""
        counts, owner, booker = count_states(array("H", raw), hour.occupancies)
        for name in (owner, booker):
            if name not in person_codes:
                person_codes[name] = len(host_buckets.names)
                host_buckets.names.append(name or "")
        return (*counts, person_codes[owner], person_codes[booker])

    for number in range(hour.gpu_count):
        gpu_minutes = slice(number * MINUTES_PER_HOUR, (number + 1) * MINUTES_PER_HOUR)
        columns = {
            name: aggregate_column(name, column[gpu_minutes], width)
            for column, name in zip(hour.gpu_columns, GPU_COLUMNS)
        }
        codes = hour.occupancy_codes[gpu_minutes]
        raw, size = codes.tobytes(), codes.itemsize * width
        if raw[2:] == raw[:-2]:  # nothing changed in that hour
            for name, value in zip((*COUNT_COLUMNS, *PERSON_COLUMNS), count_bucket(raw[:size])):
                columns[name] = array(GPU_BUCKET_COLUMNS[name][0], [value]) * (MINUTES_PER_HOUR // width)
        else:
            rows = [count_bucket(raw[start : start + size]) for start in range(0, len(raw), size)]
            for name, numbers in zip((*COUNT_COLUMNS, *PERSON_COLUMNS), zip(*rows)):
                columns[name] = array(GPU_BUCKET_COLUMNS[name][0], numbers)
        host_buckets.gpu_columns.append(columns)
    return host_buckets


def aggregate_column(name: str, minutes: array[int], width: int) -> array[int]:
    """Join a column of one GPU: take means, and the highest temperature."""
    (kind, step), (coarse_kind, coarse_step) = GPU_COLUMNS[name], VALUE_COLUMNS[name]
    if name == "temperature":
        return compute_bucket_maxima(minutes, width, NO_VALUE[kind])
    if minutes.count(minutes[0]) == len(minutes):  # memory hardly ever moves
        value = minutes[0]
        mean = (
            NO_VALUE[coarse_kind]
            if value == NO_VALUE[kind]
            else min(int(value * step / coarse_step + 0.5), NO_VALUE[coarse_kind] - 1)
        )
        return array(coarse_kind, [mean]) * (len(minutes) // width)
    means = compute_bucket_means(minutes, width, step / coarse_step, NO_VALUE[kind])
    if kind == coarse_kind:
        return means
    return array(
        coarse_kind,
        [
            NO_VALUE[coarse_kind] if value == NO_VALUE[kind] else min(value, NO_VALUE[coarse_kind] - 1)
            for value in means
        ],
    )


def compute_bucket_means(minutes: array[int], width: int, factor: float, no_value: int) -> array[int]:
    if width == 1 and factor == 1:
        return minutes
    if no_value not in minutes:
        sums = minutes if width == 1 else map(sum, zip(*[iter(minutes)] * width))
        factor_per_minute = factor / width
        return array(minutes.typecode, [int(value * factor_per_minute + 0.5) for value in sums])
    return reduce_known_minutes(minutes, width, no_value, lambda values: int(sum(values) * factor / len(values) + 0.5))


def compute_bucket_maxima(minutes: array[int], width: int, no_value: int) -> array[int]:
    if width == 1:
        return minutes
    if no_value not in minutes:
        return array(minutes.typecode, map(max, zip(*[iter(minutes)] * width)))
    return reduce_known_minutes(minutes, width, no_value, max)


def reduce_known_minutes(
    minutes: array[int], width: int, no_value: int, reduce_values: Callable[[list[int]], int]
) -> array[int]:
    """Reduce the available values of each bucket to one number."""
    if has_no_values(minutes):
        return minutes[: len(minutes) // width]
    numbers = array(minutes.typecode)
    for start in range(0, len(minutes), width):
        values = [value for value in minutes[start : start + width] if value != no_value]
        numbers.append(reduce_values(values) if values else no_value)
    return numbers


def count_states(codes: Sequence[int], occupancies: Sequence[str]) -> tuple[list[int], str | None, str | None]:
    """Return minutes by COUNT_COLUMNS, the person who had most of them, and the one who had booked most."""
    counts = dict.fromkeys(COUNT_COLUMNS, 0)
    people: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for code, minutes in Counter(codes).items():
        if code == NO_CODE:
            continue
        state, gpu_people = parse_occupancy(occupancies[code])
        counts["seen"] += minutes
        counts[state] += minutes
        counts["promised"] += minutes if gpu_people.bookers else 0
        for minutes_by_name, names in zip(people, (gpu_people.users, gpu_people.bookers)):
            for name in names:
                minutes_by_name[name] = minutes_by_name.get(name, 0) + minutes / len(names)
    owner, booker = (
        max(sorted(minutes_by_name), key=minutes_by_name.__getitem__) if minutes_by_name else None
        for minutes_by_name in people
    )
    return list(counts.values()), owner, booker


class ColumnMerger:
    """Merges columns, and the names that their codes refer to."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.codes = {name: code for code, name in enumerate(names)}
        self.last_recoding: tuple[Sequence[str], list[int]] = ((), [])

    def merge(
        self, target: BucketColumns, start: int, source: BucketColumns, names: Sequence[str], source_range: slice
    ) -> None:
        """Merge some buckets into columns, which may be fewer; where both have some, more minutes win."""
        columns = source if target.keys() == source.keys() else {name: source[name] for name in target}
        if source_range != slice(0, len(source["seen"])):
            columns = {name: column[source_range] for name, column in columns.items()}
        columns = {
            name: self.recode_names(column, names) if name in PERSON_COLUMNS else column
            for name, column in columns.items()
        }
        target_range = slice(start, start + len(columns["seen"]))
        if not target["seen"][target_range].tobytes().strip(b"\0"):
            for name, column in columns.items():
                target[name][target_range] = column
            return
        is_better = [new >= old and new > 0 for new, old in zip(columns["seen"], target["seen"][target_range])]
        for name, column in columns.items():
            old = target[name][target_range]
            target[name][target_range] = array(
                column.typecode, [a if is_new else b for a, b, is_new in zip(column, old, is_better)]
            )

    def recode_names(self, codes: array[int], names: Sequence[str]) -> array[int]:
        """Turn positions in other names into positions in ours."""
        if names is self.names or has_no_values(codes):
            return codes
        if self.last_recoding[0] is not names:
            self.last_recoding = (names, [self.assign_code(name) for name in names])
        new_codes = self.last_recoding[1]
        if len(self.names) < MAX_ONE_BYTE_NAMES:  # the high byte of each is the same before and after
            data = bytearray(array_to_bytes(codes))
            data[::2] = data[::2].translate(bytes([*new_codes, *[255] * (256 - len(new_codes))]))
            return array_from_bytes("H", data)
        return array("H", [code if code == NO_CODE else new_codes[code] for code in codes])

    def assign_code(self, name: str) -> int:
        """Return the position of a name, which is added if it is new and there is room."""
        if name not in self.codes and len(self.names) < NO_CODE:
            self.codes[name] = len(self.names)
            self.names.append(name)
        return self.codes.get(name, NO_CODE)


def merge_host_columns(target: BucketColumns, start: int, source: BucketColumns, source_range: slice) -> None:
    """Merge some buckets of a host's own values, where they are available."""
    for name, (kind, _) in HOST_BUCKET_COLUMNS.items():
        values, no_value = source[name][source_range], NO_VALUE[kind]
        target_range = slice(start, start + len(values))
        old_values = target[name][target_range]
        target[name][target_range] = (
            values
            if no_value not in values
            else array(kind, [old_value if new == no_value else new for new, old_value in zip(values, old_values)])
        )


def merge_buckets(target: HostBuckets, start: int, source: HostBuckets) -> None:
    merger = ColumnMerger(target.names)
    all_buckets = slice(0, len(source.host_columns["load"]))
    merge_host_columns(target.host_columns, start, source.host_columns, all_buckets)
    for columns, source_columns in zip(target.gpu_columns, source.gpu_columns):
        merger.merge(columns, start, source_columns, source.names, all_buckets)


def find_seen_end(columns: BucketColumns) -> int:
    """Return the position after the last bucket in which something was seen."""
    return len(columns["seen"].tobytes().rstrip(b"\0"))


def add_columns(target: BucketColumns, source: BucketColumns) -> None:
    """Add other minutes of the same GPU to the same buckets; few of them have some of both."""
    seen = source["seen"].tobytes()
    used_range = slice(len(seen) - len(seen.lstrip(b"\0")), find_seen_end(source))
    old, new = target["seen"][used_range], source["seen"][used_range]
    is_target_empty = not old.tobytes().strip(b"\0")
    shared = [] if is_target_empty else [position for position, minutes in enumerate(old) if minutes and new[position]]
    for name, column in source.items():
        target_values, source_values = target[name][used_range], column[used_range]
        sums = (
            source_values
            if is_target_empty
            else array(
                column.typecode, [b if is_seen else a for a, b, is_seen in zip(target_values, source_values, new)]
            )
        )
        for position in shared:
            values = (target_values[position], source_values[position], old[position], new[position])
            sums[position] = combine_values(name, NO_VALUE[column.typecode], *values)
        target[name][used_range] = sums


def combine_values(
    name: str, no_value: int, first: int, second: int, first_minutes: int, second_minutes: int
) -> int:  # each is one thing
    """Combine the values of a column over some minutes and over more."""
    if name in COUNT_COLUMNS:
        return first + second
    if no_value in {first, second}:
        return second if first == no_value else first
    if name in PERSON_COLUMNS:
        return first if first_minutes >= second_minutes else second
    return (
        max(first, second)
        if name == "temperature"
        else int((first * first_minutes + second * second_minutes) / (first_minutes + second_minutes) + 0.5)
    )


def pack_buckets(host_buckets: HostBuckets) -> bytes:
    columns = list(host_buckets.host_columns.values())
    for name, (kind, _) in GPU_BUCKET_COLUMNS.items():
        joined = array(kind)
        for gpu_columns in host_buckets.gpu_columns:
            joined += gpu_columns[name]
        columns.append(joined)
    return pack_block({"names": host_buckets.names}, columns, 6)


def unpack_buckets(data: bytes) -> HostBuckets:
    words, columns = unpack_block(data)
    try:
        host_columns = dict(zip(HOST_BUCKET_COLUMNS, columns))
        joined = dict(zip(GPU_BUCKET_COLUMNS, columns[len(HOST_BUCKET_COLUMNS) :]))
        count = len(host_columns["load"])
        starts = range(0, len(joined["booker"]), count)
        gpus = [{name: column[start : start + count] for name, column in joined.items()} for start in starts]
        return HostBuckets(host_columns, gpus, list(words["names"]))
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedBlockError(str(error)) from error
