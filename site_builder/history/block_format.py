"""Pack samples for history.db: columns of small integers, compressed, and words beside them."""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from site_builder.core.model import GpuPeople
from site_builder.history.model import GPU_STATES, GpuSample, GpuSeries, HostSample, OccupancySample, ProcessSample

# First byte of each block; another form of block gets another number.
BLOCK_VERSION = 1
BLOCK_HEADER = struct.Struct("<BI")
MINUTES_PER_HOUR = 60
# Columns of a minute: the type of array, and the value of one step. The largest number means that there is no value.
GPU_COLUMNS = {"use": ("B", 0.5), "memory": ("I", 1), "temperature": ("B", 1), "power": ("H", 0.1)}
HOST_COLUMNS = {"load": ("H", 1), "own_memory": ("B", 0.5)}
SAMPLE_COLUMNS = {**HOST_COLUMNS, **GPU_COLUMNS}
NO_VALUE = {"B": 255, "H": 65535, "I": 2**32 - 1}
ITEM_BYTES = {kind: array(kind).itemsize for kind in "BHIq"}
NO_CODE, NO_USE = NO_VALUE["H"], NO_VALUE["B"]
MAX_NAME_CHARACTERS = 100
# The processes of a GPU that has more are not recorded: a host can claim anything.
MAX_RECORDED_PROCESSES = 64
# In the place of processes that were not recorded.
NO_PROCESS_LIST = ""
TEXT_TYPES, NUMBER_TYPES = {str, type(None)}, {int, type(None)}
# In the order of ProcessSample.
PROCESS_TYPES = (NUMBER_TYPES, TEXT_TYPES, NUMBER_TYPES, TEXT_TYPES)
Columns = dict[str, "array[int]"]  # by their names
# Each minute of the fleet is stored in parts, so that a host is read without unpacking all others.
PART_COUNT = 16


class DamagedBlockError(Exception):
    """Block that is not as it was written."""


class PackedSample(NamedTuple):
    """Sample of a host, packed; `gpu_set_id` is the digest of which GPUs it has."""

    host: str
    gpu_set_id: int
    packed_series: bytes
    columns: tuple[bytes, ...]
    occupancies: tuple[str, ...]
    process_lists: tuple[str, ...]


def pack_sample(sample: HostSample) -> PackedSample:
    """Pack a sample, so that a minute of the fleet only has to be put together."""
    packed_series = orjson.dumps([gpu.series for gpu in sample.gpus], default=list)
    digest = blake2b(sample.host.encode() + b"\0" + packed_series, digest_size=8).digest()
    gpu_columns = zip(*((gpu.use, gpu.memory, gpu.temperature, gpu.power) for gpu in sample.gpus))
    columns: Iterable[Sequence[float | None]] = ((sample.load,), (sample.memory,), *gpu_columns)
    return PackedSample(
        host=sample.host,
        gpu_set_id=int.from_bytes(digest, "little", signed=True),
        packed_series=packed_series,
        columns=tuple(pack_values(values, *encoding) for values, encoding in zip(columns, SAMPLE_COLUMNS.values())),
        occupancies=tuple(pack_occupancy(gpu.occupancy) for gpu in sample.gpus),
        process_lists=tuple(pack_processes(gpu.processes) for gpu in sample.gpus),
    )


def pack_values(values: Sequence[float | None], kind: str, step: float) -> bytes:
    """Pack numbers; a host can claim anything, so what is too large becomes the largest."""
    no_value = NO_VALUE[kind]
    largest = no_value - 1
    numbers = [
        no_value if value is None or value != value else 0 if value <= 0 else int(min(value / step, largest) + 0.5)  # noqa: PLR0124 # not a number
        for value in values
    ]
    return array_to_bytes(array(kind, numbers))


@lru_cache(maxsize=65536)
def pack_occupancy(occupancy: OccupancySample) -> str:
    """Write an occupancy in one line; empty lists at its end are left out."""
    people = [list(map(clip_name, names)) for names in occupancy.people]
    while people and not people[-1]:
        people.pop()
    return orjson.dumps([GPU_STATES.index(occupancy.state), *people]).decode()


@lru_cache(maxsize=65536)
def unpack_occupancy(text: str) -> OccupancySample:
    try:
        state, *people = orjson.loads(text)
        return OccupancySample(GPU_STATES[state], GpuPeople(*(tuple(map(str, names)) for names in people)))
    except (ValueError, TypeError, IndexError) as error:
        raise DamagedBlockError(text) from error


def pack_processes(processes: Sequence[ProcessSample] | None) -> str:
    """Write the processes of a GPU in one line."""
    if processes is None or len(processes) > MAX_RECORDED_PROCESSES:
        return NO_PROCESS_LIST
    rows = [
        (pid, program and clip_name(program), None if memory is None else round(memory), user and clip_name(user))
        for pid, program, memory, user in processes
    ]
    return orjson.dumps(rows).decode()


def unpack_processes(text: str) -> tuple[ProcessSample, ...] | None:
    if text == NO_PROCESS_LIST:
        return None
    try:
        processes = tuple(ProcessSample(*row) for row in orjson.loads(text))
    except (ValueError, TypeError) as error:
        raise DamagedBlockError(text) from error
    if any(type(value) not in types for process in processes for value, types in zip(process, PROCESS_TYPES)):
        raise DamagedBlockError(text)
    return processes


def clip_name(name: str) -> str:
    """Shorten a name, and replace what UTF-8 cannot encode."""
    return name[:MAX_NAME_CHARACTERS].encode("utf-8", "replace").decode()


@lru_cache(maxsize=4096)
def unpack_gpu_series(packed_series: bytes) -> tuple[GpuSeries, ...]:
    try:
        return tuple(GpuSeries(*fields) for fields in orjson.loads(packed_series))
    except (ValueError, TypeError) as error:
        raise DamagedBlockError(packed_series) from error


def array_to_bytes(numbers: array[int]) -> bytes:
    """Return the bytes of an array, in the same order on every machine."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def array_from_bytes(kind: str, data: bytes | bytearray) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def has_no_block_values(numbers: array[int]) -> bool:
    """Return True if no value in a column is available: then all of its bytes are full."""
    data = numbers.tobytes()
    return data.count(b"\xff") == len(data)


def pack_block(words: Mapping[str, object], columns: Sequence[array[int]], level: int) -> bytes:
    """Pack words and columns; the bytes of a number are stored apart, since the high ones hardly change."""
    head = orjson.dumps({**words, "columns": [(column.typecode, len(column)) for column in columns]})
    parts = [BLOCK_HEADER.pack(BLOCK_VERSION, len(head)), head]
    for column in columns:
        data, size = array_to_bytes(column), column.itemsize
        parts += [data] if size == 1 else [data[plane::size] for plane in range(size)]
    return zlib.compress(b"".join(parts), level)


def unpack_block(data: bytes) -> tuple[dict[str, Any], list[array[int]]]:
    try:
        raw = zlib.decompress(data)
        version, length = BLOCK_HEADER.unpack_from(raw)
        if version != BLOCK_VERSION:
            raise DamagedBlockError(f"form {version}")
        position = BLOCK_HEADER.size + length
        words = orjson.loads(raw[BLOCK_HEADER.size : position])
        columns = []
        for kind, count in words["columns"]:
            size = ITEM_BYTES[kind]
            if not 0 <= count <= len(raw):
                raise DamagedBlockError(f"{count} values")
            numbers: bytes | bytearray = raw[position : position + count]
            if size > 1:
                numbers = bytearray(count * size)
                for plane in range(size):
                    numbers[plane::size] = raw[position + plane * count : position + (plane + 1) * count]
            position += count * size
            columns.append(array_from_bytes(kind, numbers))
    except (zlib.error, struct.error, ValueError, TypeError, KeyError) as error:
        raise DamagedBlockError(str(error)) from error
    return words, columns


@dataclass(frozen=True)
class MinuteBlock:
    """Some hosts at one minute; `places` has the position of each host and the range of its GPUs, by its GPU set.

    An older gpuboard wrote no `process_lists`.
    """

    places: dict[int, tuple[int, slice]]
    host_columns: Columns
    gpu_columns: Columns
    occupancy_codes: array[int]
    occupancies: tuple[str, ...]
    process_lists: tuple[str, ...]


def pack_minute_block(samples: Sequence[PackedSample]) -> bytes:
    """Pack some hosts at one minute; fast rather than small, since it is kept for an hour only."""
    codes: dict[str, int] = {}
    occupancy_codes = array(
        "H", [codes.setdefault(text, len(codes)) for sample in samples for text in sample.occupancies]
    )
    columns = [
        array_from_bytes(kind, b"".join([sample.columns[position] for sample in samples]))
        for position, (kind, _) in enumerate(SAMPLE_COLUMNS.values())
    ]
    gpu_set_ids = array("q", [sample.gpu_set_id for sample in samples])
    counts = array("H", [len(sample.occupancies) for sample in samples])
    process_lists = [text for sample in samples for text in sample.process_lists]
    words = {"standings": list(codes), "processes": process_lists}
    return pack_block(words, [gpu_set_ids, counts, *columns, occupancy_codes], 1)


def unpack_minute_block(data: bytes) -> MinuteBlock:
    words, columns = unpack_block(data)
    try:
        gpu_set_ids, counts, *numbers, codes = columns
        places, start = {}, 0
        for position, (gpu_set_id, count) in enumerate(zip(gpu_set_ids, counts)):
            places[gpu_set_id] = position, slice(start, start + count)
            start += count
        process_lists = tuple(words.get("processes", [NO_PROCESS_LIST] * len(codes)))
        if not len(gpu_set_ids) == len(counts) or not start == len(codes) == len(process_lists):
            raise DamagedBlockError("the parts of the block are of different lengths")
        host_columns, gpu_columns = name_block_columns(numbers, len(counts), len(codes))
        occupancies = tuple(words["standings"])
        check_block_occupancies(set(codes), occupancies)
        return MinuteBlock(places, host_columns, gpu_columns, codes, occupancies, process_lists)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedBlockError(str(error)) from error


def name_block_columns(columns: Sequence[array[int]], host_count: int, gpu_count: int) -> tuple[Columns, Columns]:
    """Return the columns of hosts and those of GPUs, which follow them, by their names; check types and lengths."""
    counts = [host_count] * len(HOST_COLUMNS) + [gpu_count] * len(GPU_COLUMNS)
    expected = [(kind, count) for (kind, _), count in zip(SAMPLE_COLUMNS.values(), counts)]
    if [(column.typecode, len(column)) for column in columns[: len(expected)]] != expected:
        raise DamagedBlockError("a column is missing, or of another length")
    return dict(zip(HOST_COLUMNS, columns)), dict(zip(GPU_COLUMNS, columns[len(HOST_COLUMNS) :]))


def check_block_occupancies(codes: Iterable[int], occupancies: Sequence[str]) -> None:
    """Raise DamagedBlockError where a code has no occupancy, or an occupancy is not one."""
    if not all(0 <= code < len(occupancies) for code in codes):
        raise DamagedBlockError("an occupancy is missing")
    for text in occupancies:
        unpack_occupancy(text)


@dataclass(frozen=True)
class HourBlock:
    """Host over 60 minutes; all minutes of its first GPU come first. Codes are positions in `occupancies`.

    Without `process_lists`, none were recorded.
    """

    host_columns: Columns
    gpu_columns: Columns
    occupancy_codes: array[int]
    occupancies: tuple[str, ...]
    process_lists: tuple[str, ...] = ()

    @property
    def gpu_count(self) -> int:
        return len(self.occupancy_codes) // MINUTES_PER_HOUR

    def build_sample(self, minute: int, host: str, series: Sequence[GpuSeries]) -> HostSample | None:
        """Build the sample of one minute; None if the host was not fresh."""
        codes = self.occupancy_codes[minute::MINUTES_PER_HOUR]
        if NO_CODE in codes or not codes:
            return None
        load, memory = (
            unpack_block_number(self.host_columns[name][minute], *encoding) for name, encoding in HOST_COLUMNS.items()
        )
        values = (
            unpack_block_numbers(self.gpu_columns[name][minute::MINUTES_PER_HOUR], *encoding)
            for name, encoding in GPU_COLUMNS.items()
        )
        process_lists = self.process_lists[minute::MINUTES_PER_HOUR] or (NO_PROCESS_LIST,) * len(codes)
        gpus = (
            GpuSample(
                gpu_series,
                use,
                gpu_memory,
                temperature,
                power,
                unpack_occupancy(self.occupancies[code]),
                unpack_processes(process_list),
            )
            for gpu_series, use, gpu_memory, temperature, power, code, process_list in zip(
                series, *values, codes, process_lists
            )
        )
        return HostSample(host, load, memory, tuple(gpus))


def unpack_block_number(number: int, kind: str, step: float) -> float | None:
    """Return a number in its own unit."""
    return None if number == NO_VALUE[kind] else number * step if step >= 1 else round(number * step, 1)


def unpack_block_numbers(numbers: Sequence[int], kind: str, step: float) -> list[float | None]:
    return [unpack_block_number(number, kind, step) for number in numbers]


def build_hour_block(gpu_set_id: int, parts: Mapping[int, MinuteBlock]) -> HourBlock:
    """Build the hour of a host from its minutes; where it is missing, values are not available."""
    places = {minute: part.places[gpu_set_id] for minute, part in parts.items() if gpu_set_id in part.places}
    _, first_gpus = next(iter(places.values()))
    count = first_gpus.stop - first_gpus.start
    host_columns = {name: array(kind, [NO_VALUE[kind]]) * MINUTES_PER_HOUR for name, (kind, _) in HOST_COLUMNS.items()}
    gpu_columns = {name: array(kind) for name, (kind, _) in GPU_COLUMNS.items()}
    missing = {name: array(kind, [NO_VALUE[kind]]) * count for name, (kind, _) in GPU_COLUMNS.items()}
    codes: dict[str, int] = {}
    occupancy_codes = array("H")
    process_lists: list[str] = []
    for minute in range(MINUTES_PER_HOUR):
        if minute not in places:
            occupancy_codes += array("H", [NO_CODE]) * count
            process_lists += [NO_PROCESS_LIST] * count
            for name, column in gpu_columns.items():
                column.extend(missing[name])
            continue
        part, (host_position, gpus) = parts[minute], places[minute]
        texts = part.occupancies
        occupancy_codes.extend([codes.setdefault(texts[code], len(codes)) for code in part.occupancy_codes[gpus]])
        process_lists += part.process_lists[gpus]
        for name, column in gpu_columns.items():
            column.extend(part.gpu_columns[name][gpus])
        for name, column in host_columns.items():
            column[minute] = part.host_columns[name][host_position]
    return HourBlock(
        host_columns,
        {name: order_block_by_gpu(column, count) for name, column in gpu_columns.items()},
        order_block_by_gpu(occupancy_codes, count),
        tuple(codes),
        tuple(text for number in range(count) for text in process_lists[number::count]),
    )


def order_block_by_gpu(numbers: array[int], gpu_count: int) -> array[int]:
    """Reorder numbers from minute by minute to GPU by GPU."""
    ordered = array(numbers.typecode)
    for number in range(gpu_count):
        ordered += numbers[number::gpu_count]
    return ordered


def merge_hour_blocks(first: HourBlock, second: HourBlock) -> HourBlock:
    """Merge two records of one hour; for each minute the first counts, if it has it."""
    codes = {text: code for code, text in enumerate(first.occupancies)}
    new_codes = [codes.setdefault(text, len(codes)) for text in second.occupancies]
    is_known = [code != NO_CODE for code in first.occupancy_codes]
    is_seen = [any(is_known[minute::MINUTES_PER_HOUR]) for minute in range(MINUTES_PER_HOUR)]

    def choose(first_column: array[int], second_column: Iterable[int], has_first: Sequence[bool]) -> array[int]:
        pairs = zip(first_column, second_column, has_first)
        return array(first_column.typecode, [a if has else b for a, b, has in pairs])

    return HourBlock(
        {name: choose(column, second.host_columns[name], is_seen) for name, column in first.host_columns.items()},
        {name: choose(column, second.gpu_columns[name], is_known) for name, column in first.gpu_columns.items()},
        choose(
            first.occupancy_codes,
            (code if code == NO_CODE else new_codes[code] for code in second.occupancy_codes),
            is_known,
        ),
        tuple(codes),
        merge_process_lists(first.process_lists, second.process_lists, is_known),
    )


def merge_process_lists(first: Sequence[str], second: Sequence[str], has_first: Sequence[bool]) -> tuple[str, ...]:
    nothing = (NO_PROCESS_LIST,) * len(has_first)
    return tuple(a if has else b for a, b, has in zip(first or nothing, second or nothing, has_first))


def pack_hour_block(hour: HourBlock) -> bytes:
    columns = [*hour.host_columns.values(), *hour.gpu_columns.values(), hour.occupancy_codes]
    words = {"standings": hour.occupancies, "processes": pack_process_runs(hour.process_lists)}
    return pack_block(words, columns, 6)


def pack_process_runs(process_lists: Sequence[str]) -> list[tuple[int, str]]:
    """Return each list that differs from the one before it, with its position."""
    previous = (None, *process_lists)
    return [(place, text) for place, (text, before) in enumerate(zip(process_lists, previous)) if text != before]


def unpack_process_runs(runs: Sequence[tuple[int, str]], count: int) -> tuple[str, ...]:
    """Return a list for each of `count` places; an older gpuboard wrote no runs."""
    if not runs:
        return (NO_PROCESS_LIST,) * count
    edges = [*(place for place, _ in runs), count]
    if edges[0] != 0 or edges != sorted(edges):
        raise DamagedBlockError("lists of processes are missing")
    return tuple(text for (_, text), place, end in zip(runs, edges, edges[1:]) for _ in range(place, end))


def unpack_hour_block(data: bytes) -> HourBlock:
    words, columns = unpack_block(data)
    try:
        *numbers, codes = columns
        host_columns, gpu_columns = name_block_columns(numbers, MINUTES_PER_HOUR, len(codes))
        occupancies = tuple(words["standings"])
        check_block_occupancies(set(codes) - {NO_CODE}, occupancies)
        process_lists = unpack_process_runs(words.get("processes", ()), len(codes))
        return HourBlock(host_columns, gpu_columns, codes, occupancies, process_lists)
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedBlockError(str(error)) from error


def compute_minute_block_part(host: str) -> int:
    """Return the part of each minute in which a host is stored."""
    return zlib.crc32(host.encode()) % PART_COUNT
