"""Join minutes into buckets of five minutes or an hour, and the buckets of many hours into chunks."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.history import block_format
from site_builder.history.block_format import HOST_COLUMNS, MINUTES_PER_HOUR, NO_CODE, NO_VALUE, Columns
from site_builder.history.model import GPU_STATES

# Values of a bucket: the type of array, and the value of one step. A host has the same columns as in a minute.
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
# Codes up to this one fit into one byte, beside the one that means nobody.
MAX_ONE_BYTE_NAMES = 255
# Seconds that a chunk of each step covers.
CHUNK_LENGTH_S = {MINUTE: HOUR, 300: DAY, HOUR: 32 * DAY}
# Days for which it is kept at least.
RETENTION_DAYS = {MINUTE: 2, 300: 35, HOUR: 762}


@dataclass(frozen=True)
class HostBuckets:
    """Some GPUs of one host in buckets, and the host's own values."""

    host_columns: Columns
    gpu_columns: list[Columns]
    names: list[str] = field(default_factory=list)


def create_empty_buckets(bucket_count: int, gpu_count: int) -> HostBuckets:
    return HostBuckets(
        create_empty_bucket_columns(bucket_count, HOST_COLUMNS),
        [create_empty_bucket_columns(bucket_count, GPU_BUCKET_COLUMNS) for _ in range(gpu_count)],
    )


def create_empty_bucket_columns(bucket_count: int, columns: dict[str, tuple[str, float]]) -> Columns:
    return {
        name: array(kind, [0 if name in COUNT_COLUMNS else NO_VALUE[kind]]) * bucket_count
        for name, (kind, _) in columns.items()
    }


def build_buckets(hour: block_format.HourBlock, width: int) -> HostBuckets:
    """Join the minutes of an hour, `width` to a bucket."""
    host_buckets = HostBuckets(
        {name: compute_bucket_means(column, width) for name, column in hour.host_columns.items()}, []
    )
    person_codes: dict[str | None, int] = {None: NO_CODE}

    @cache
    def count_bucket(raw: bytes) -> tuple[int, ...]:
        """Return the counts of a bucket from its occupancy codes; most buckets are like others."""
        counts, owner, booker = count_bucket_states(array("H", raw), hour.occupancies)
        for name in (owner, booker):
            if name not in person_codes:
                person_codes[name] = len(host_buckets.names)
                host_buckets.names.append(name or "")
        return (*counts, person_codes[owner], person_codes[booker])

    for number in range(hour.gpu_count):
        gpu_minutes = slice(number * MINUTES_PER_HOUR, (number + 1) * MINUTES_PER_HOUR)
        columns = {
            name: aggregate_bucket_column(name, column[gpu_minutes], width) for name, column in hour.gpu_columns.items()
        }
        codes = hour.occupancy_codes[gpu_minutes]
        raw, size = codes.tobytes(), codes.itemsize * width
        if raw[2:] == raw[:-2]:  # nothing changed in that hour
            rows, repeats = [count_bucket(raw[:size])], MINUTES_PER_HOUR // width
        else:
            rows, repeats = [count_bucket(raw[start : start + size]) for start in range(0, len(raw), size)], 1
        for name, numbers in zip((*COUNT_COLUMNS, *PERSON_COLUMNS), zip(*rows)):
            columns[name] = array(GPU_BUCKET_COLUMNS[name][0], numbers) * repeats
        host_buckets.gpu_columns.append(columns)
    return host_buckets


def aggregate_bucket_column(name: str, minutes: array[int], width: int) -> array[int]:
    """Join a column of one GPU: take means, and the highest temperature."""
    (kind, step), (coarse_kind, coarse_step) = block_format.GPU_COLUMNS[name], VALUE_COLUMNS[name]
    no_value, no_coarse_value = NO_VALUE[kind], NO_VALUE[coarse_kind]
    if name == "temperature":
        return compute_bucket_maxima(minutes, width)
    if minutes.count(minutes[0]) == len(minutes):  # memory hardly ever moves
        value = minutes[0]
        mean = no_coarse_value if value == no_value else min(int(value * step / coarse_step + 0.5), no_coarse_value - 1)
        return array(coarse_kind, [mean]) * (len(minutes) // width)
    means = compute_bucket_means(minutes, width, step / coarse_step)
    if kind == coarse_kind:
        return means
    coarse_means = [no_coarse_value if value == no_value else min(value, no_coarse_value - 1) for value in means]
    return array(coarse_kind, coarse_means)


def compute_bucket_means(minutes: array[int], width: int, factor: float = 1) -> array[int]:
    """Return the mean of each bucket, in a unit that is `factor` times as small."""
    if width == 1 and factor == 1:
        return minutes
    if NO_VALUE[minutes.typecode] not in minutes:
        sums = minutes if width == 1 else map(sum, zip(*[iter(minutes)] * width))
        factor_per_minute = factor / width
        return array(minutes.typecode, [int(value * factor_per_minute + 0.5) for value in sums])
    return reduce_bucket_minutes(minutes, width, lambda values: int(sum(values) * factor / len(values) + 0.5))


def compute_bucket_maxima(minutes: array[int], width: int) -> array[int]:
    if width == 1:
        return minutes
    if NO_VALUE[minutes.typecode] not in minutes:
        return array(minutes.typecode, map(max, zip(*[iter(minutes)] * width)))
    return reduce_bucket_minutes(minutes, width, max)


def reduce_bucket_minutes(minutes: array[int], width: int, reduce_values: Callable[[list[int]], int]) -> array[int]:
    """Reduce the available values of each bucket to one number."""
    if block_format.has_no_block_values(minutes):
        return minutes[: len(minutes) // width]
    no_value, numbers = NO_VALUE[minutes.typecode], array(minutes.typecode)
    for start in range(0, len(minutes), width):
        values = [value for value in minutes[start : start + width] if value != no_value]
        numbers.append(reduce_values(values) if values else no_value)
    return numbers


def count_bucket_states(codes: Sequence[int], occupancies: Sequence[str]) -> tuple[list[int], str | None, str | None]:
    """Return minutes by COUNT_COLUMNS, the person who had most of them, and the one who had booked most."""
    counts = dict.fromkeys(COUNT_COLUMNS, 0)
    people: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for code, minutes in Counter(codes).items():
        if code == NO_CODE:
            continue
        state, gpu_people = block_format.unpack_occupancy(occupancies[code])
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


class BucketMerger:
    """Merges columns, and the names that their codes refer to."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.codes = {name: code for code, name in enumerate(names)}
        self.last_recoding: tuple[Sequence[str], list[int]] = ((), [])

    def merge(self, target: Columns, start: int, source: Columns, names: Sequence[str], source_range: slice) -> None:
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
        if names is self.names or block_format.has_no_block_values(codes):
            return codes
        if self.last_recoding[0] is not names:
            self.last_recoding = (names, [self.assign_code(name) for name in names])
        new_codes = self.last_recoding[1]
        if len(self.names) < MAX_ONE_BYTE_NAMES:  # the high byte of each is the same before and after
            data = bytearray(block_format.array_to_bytes(codes))
            data[::2] = data[::2].translate(bytes([*new_codes, *[255] * (256 - len(new_codes))]))
            return block_format.array_from_bytes("H", data)
        return array("H", [code if code == NO_CODE else new_codes[code] for code in codes])

    def assign_code(self, name: str) -> int:
        """Return the position of a name, which is added if it is new and there is room."""
        if name not in self.codes and len(self.names) < NO_CODE:
            self.codes[name] = len(self.names)
            self.names.append(name)
        return self.codes.get(name, NO_CODE)


def merge_buckets(target: HostBuckets, start: int, source: HostBuckets, source_range: slice | None = None) -> None:
    """Merge all buckets or a range of them; of a host's own values, those that are available."""
    source_range = source_range or slice(0, len(source.host_columns["load"]))
    for name, column in source.host_columns.items():
        values, no_value = column[source_range], NO_VALUE[column.typecode]
        target_range = slice(start, start + len(values))
        if no_value in values:
            pairs = zip(values, target.host_columns[name][target_range])
            values = array(column.typecode, [old if new == no_value else new for new, old in pairs])
        target.host_columns[name][target_range] = values
    merger = BucketMerger(target.names)
    for columns, source_columns in zip(target.gpu_columns, source.gpu_columns):
        merger.merge(columns, start, source_columns, source.names, source_range)


def find_seen_bucket_end(columns: Columns) -> int:
    """Return the position after the last bucket in which something was seen."""
    return len(columns["seen"].tobytes().rstrip(b"\0"))


def add_bucket_columns(target: Columns, source: Columns) -> None:
    """Add other minutes of the same GPU to the same buckets; few of them have some of both."""
    seen = source["seen"].tobytes()
    used_range = slice(len(seen) - len(seen.lstrip(b"\0")), find_seen_bucket_end(source))
    old, new = target["seen"][used_range], source["seen"][used_range]
    is_target_empty = not old.tobytes().strip(b"\0")
    shared = [] if is_target_empty else [position for position, minutes in enumerate(old) if minutes and new[position]]
    for name, column in source.items():
        target_values, source_values = target[name][used_range], column[used_range]
        sums = source_values
        if not is_target_empty:
            pairs = zip(target_values, source_values, new)
            sums = array(column.typecode, [b if is_seen else a for a, b, is_seen in pairs])
        for position in shared:
            values = (target_values[position], source_values[position], old[position], new[position])
            sums[position] = combine_bucket_values(name, NO_VALUE[column.typecode], *values)
        target[name][used_range] = sums


def combine_bucket_values(
    name: str, no_value: int, first: int, second: int, first_minutes: int, second_minutes: int
) -> int:
    """Combine the values of a column over some minutes and over more."""
    if name in COUNT_COLUMNS:
        return first + second
    if no_value in {first, second}:
        return second if first == no_value else first
    if name in PERSON_COLUMNS:
        return first if first_minutes >= second_minutes else second
    if name == "temperature":
        return max(first, second)
    return int((first * first_minutes + second * second_minutes) / (first_minutes + second_minutes) + 0.5)


def pack_buckets(host_buckets: HostBuckets) -> bytes:
    columns = list(host_buckets.host_columns.values())
    for name, (kind, _) in GPU_BUCKET_COLUMNS.items():
        joined = array(kind)
        for gpu_columns in host_buckets.gpu_columns:
            joined += gpu_columns[name]
        columns.append(joined)
    return block_format.pack_block({"names": host_buckets.names}, columns, 6)


def unpack_buckets(data: bytes) -> HostBuckets:
    words, columns = block_format.unpack_block(data)
    try:
        host_columns = dict(zip(HOST_COLUMNS, columns))
        joined = dict(zip(GPU_BUCKET_COLUMNS, columns[len(HOST_COLUMNS) :]))
        count = len(host_columns["load"])
        starts = range(0, len(joined["booker"]), count)
        gpus = [{name: column[start : start + count] for name, column in joined.items()} for start in starts]
        return HostBuckets(host_columns, gpus, list(words["names"]))
    except (ValueError, TypeError, KeyError) as error:
        raise block_format.DamagedBlockError(str(error)) from error


def choose_finest_bucket_step(since: float, now: float) -> int:
    """Return the finest step that is kept as far back as that."""
    return next((step for step, days in RETENTION_DAYS.items() if since >= now - days * DAY), HOUR)


def list_bucket_chunk_starts(start: int, end: int, length: int) -> range:
    return range(start // length * length, end, length)
