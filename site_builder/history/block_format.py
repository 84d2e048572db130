"""How history.db keeps numbers: columns of small whole numbers, compressed, and words beside them.

The largest number that a column can hold says that there is no value.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from site_builder.core.model import GpuPeople
from site_builder.history.model import GPU_STATES, GpuSample, GpuSeries, HostSample, Occupancy

# What stands first in each block: another number for another form.
BLOCK_VERSION = 1
BLOCK_HEADER = struct.Struct("<BI")
MINUTES_PER_HOUR = 60
# Each column of a minute: its type of array, and what one step of its number is worth.
GPU_COLUMNS = {"use": ("B", 0.5), "memory": ("I", 1), "temperature": ("B", 1), "power": ("H", 0.1)}
HOST_COLUMNS = {"load": ("H", 1), "own_memory": ("B", 0.5)}
NO_VALUE = {"B": 255, "H": 65535, "I": 2**32 - 1}
NO_CODE = NO_VALUE["H"]
MAX_NAME_CHARACTERS = 100


class DamagedBlockError(Exception):
    """A block that is not what was written."""


class PackedSample(NamedTuple):
    """A sample of a host, as small as it can be kept; `shape` is the digest of which GPUs it has."""

    host: str
    gpu_set_id: int
    packed_series: bytes
    host_values: tuple[bytes, ...]
    gpu_values: tuple[bytes, ...]
    occupancies: tuple[str, ...]


def pack_sample(sample: HostSample) -> PackedSample:
    """A sample of a host, so that a minute of the fleet has only to be put together."""
    gpus = orjson.dumps([one.series for one in sample.gpus], default=list)
    digest = blake2b(sample.host.encode() + b"\0" + gpus, digest_size=8).digest()
    told = zip(*((one.use, one.memory, one.temperature, one.power) for one in sample.gpus))
    return PackedSample(
        sample.host,
        int.from_bytes(digest, "little", signed=True),
        gpus,
        tuple(
            array_to_bytes(encode_values([value], *how))
            for value, how in zip((sample.load, sample.memory), HOST_COLUMNS.values())
        ),
        tuple(array_to_bytes(encode_values(values, *how)) for values, how in zip(told, GPU_COLUMNS.values())),
        tuple(serialize_occupancy(one.occupancy) for one in sample.gpus),
    )


def encode_values(values: Sequence[float | None], kind: str, step: float) -> array[int]:
    """Numbers as they are kept: a host can claim anything, and what is too large becomes the largest."""
    none = NO_VALUE[kind]
    most = none - 1
    return array(
        kind,
        [
            none if one is None or one != one else 0 if one <= 0 else int(min(one / step, most) + 0.5)  # noqa: PLR0124 # not a number
            for one in values
        ],
    )


@lru_cache(maxsize=65536)
def serialize_occupancy(standing: Occupancy) -> str:
    """How a GPU stands, in one line; what is empty at its end is left out."""
    who = [[clean_person_name(name) for name in names] for names in standing.people]
    while who and not who[-1]:
        who.pop()
    return orjson.dumps([GPU_STATES.index(standing.state), *who]).decode()


def clean_person_name(name: str) -> str:
    """A name that any file can hold."""
    return name[:MAX_NAME_CHARACTERS].encode("utf-8", "replace").decode()


@lru_cache(maxsize=65536)
def parse_occupancy(text: str) -> Occupancy:
    """The same, read back."""
    try:
        state, *who = orjson.loads(text)
        return Occupancy(GPU_STATES[state], GpuPeople(*(tuple(map(str, names)) for names in who)))
    except (ValueError, TypeError, IndexError) as error:
        raise DamagedBlockError(text) from error


@lru_cache(maxsize=4096)
def parse_gpu_series(gpus: bytes) -> tuple[GpuSeries, ...]:
    """Which GPUs a host has."""
    try:
        return tuple(GpuSeries(*one) for one in orjson.loads(gpus))
    except (ValueError, TypeError) as error:
        raise DamagedBlockError(gpus) from error


def array_to_bytes(numbers: array[int]) -> bytes:
    """An array as bytes, in the same order on every machine."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def array_from_bytes(kind: str, data: bytes | bytearray) -> array[int]:
    """The same, read back."""
    numbers = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def has_no_values(numbers: array[int]) -> bool:
    """Whether no value is available in all of a column: each byte of the number that says so is full."""
    data = numbers.tobytes()
    return data.count(b"\xff") == len(data)


def pack_block(words: Mapping[str, object], columns: Sequence[array[int]], level: int) -> bytes:
    """Words and columns in one piece; the bytes of a number stand apart, since the high ones hardly change."""
    head = orjson.dumps({**words, "columns": [(one.typecode, len(one)) for one in columns]})
    parts = [BLOCK_HEADER.pack(BLOCK_VERSION, len(head)), head]
    for one in columns:
        data, size = array_to_bytes(one), one.itemsize
        parts += [data] if size == 1 else [data[plane::size] for plane in range(size)]
    return zlib.compress(b"".join(parts), level)


def unpack_block(data: bytes) -> tuple[dict[str, Any], list[array[int]]]:
    """The same, read back."""
    try:
        raw = zlib.decompress(data)
        form, length = BLOCK_HEADER.unpack_from(raw)
        if form != BLOCK_VERSION:
            raise DamagedBlockError(f"form {form}")
        place = BLOCK_HEADER.size + length
        words = orjson.loads(raw[BLOCK_HEADER.size : place])
        columns = []
        for kind, count in words["columns"]:
            size = array(kind).itemsize
            joined = bytearray(count * size)
            for plane in range(size):
                joined[plane::size] = raw[place : place + count]
                place += count
            columns.append(array_from_bytes(kind, joined))
    except (zlib.error, struct.error, ValueError, TypeError, KeyError) as error:
        raise DamagedBlockError(str(error)) from error
    return words, columns


class HostSlice(NamedTuple):
    """Where the numbers of a host stand: its own, and those of its GPUs."""

    host_position: int
    start: int
    end: int


@dataclass(frozen=True)
class MinutePart:
    """Some hosts at one minute, by their shapes."""

    slices: dict[int, HostSlice]
    host_columns: tuple[array[int], ...]
    gpu_columns: tuple[array[int], ...]
    occupancy_codes: array[int]
    occupancies: tuple[str, ...]

    def build_sample(self, shape: int, host: str, series: Sequence[GpuSeries]) -> HostSample | None:
        """One of its hosts; None if it was not fresh."""
        place = self.slices.get(shape)
        if place is None:
            return None
        load, memory = (
            decode_number(one[place.host_position], *how) for one, how in zip(self.host_columns, HOST_COLUMNS.values())
        )
        some = slice(place.start, place.end)
        standings = [self.occupancies[code] for code in self.occupancy_codes[some]]
        return HostSample(
            host, load, memory, build_gpu_samples(series, [one[some] for one in self.gpu_columns], standings)
        )


def build_gpu_samples(
    series: Sequence[GpuSeries], columns: Sequence[array[int]], standings: Sequence[str]
) -> tuple[GpuSample, ...]:
    """The GPUs of a host at a minute, each with its number of each column."""
    told = (decode_numbers(one, *how) for one, how in zip(columns, GPU_COLUMNS.values()))
    rows = zip(series, *told, standings)
    return tuple(
        GpuSample(which, use, memory, temperature, power, parse_occupancy(text))
        for which, use, memory, temperature, power, text in rows
    )


def decode_number(number: int, kind: str, step: float) -> float | None:
    """A number in its own unit."""
    return None if number == NO_VALUE[kind] else number * step if step >= 1 else round(number * step, 1)


def decode_numbers(numbers: Sequence[int], kind: str, step: float) -> list[float | None]:
    """Numbers in their own unit."""
    return [decode_number(one, kind, step) for one in numbers]


def pack_minute_part(samples: Sequence[PackedSample]) -> bytes:
    """Some hosts at one minute; quickly, since it stands for an hour only."""
    codes: dict[str, int] = {}
    standing = array("H", [codes.setdefault(text, len(codes)) for one in samples for text in one.occupancies])
    own = [
        array_from_bytes(kind, b"".join(one.host_values[n] for one in samples))
        for n, (kind, _) in enumerate(HOST_COLUMNS.values())
    ]
    columns = [
        array_from_bytes(kind, b"".join(one.gpu_values[n] for one in samples))
        for n, (kind, _) in enumerate(GPU_COLUMNS.values())
    ]
    shapes = array("q", [one.gpu_set_id for one in samples])
    counts = array("H", [len(one.occupancies) for one in samples])
    return pack_block({"standings": list(codes)}, [shapes, counts, *own, *columns, standing], 1)


def unpack_minute_part(data: bytes) -> MinutePart:
    """The same, read back."""
    words, columns = unpack_block(data)
    try:
        shapes, counts, load, memory, *numbers, codes = columns
        places, start = {}, 0
        for number, (shape, count) in enumerate(zip(shapes, counts)):
            places[shape] = HostSlice(number, start, start + count)
            start += count
        return MinutePart(places, (load, memory), tuple(numbers), codes, tuple(words["standings"]))
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedBlockError(str(error)) from error


@dataclass(frozen=True)
class HostHour:
    """A host over 60 minutes; all the minutes of its first GPU stand first. `codes` are places in `standings`."""

    host_columns: tuple[array[int], ...]
    gpu_columns: tuple[array[int], ...]
    occupancy_codes: array[int]
    occupancies: tuple[str, ...]

    @property
    def gpu_count(self) -> int:
        """How many GPUs it has."""
        return len(self.occupancy_codes) // MINUTES_PER_HOUR

    def build_sample(self, slot: int, host: str, series: Sequence[GpuSeries]) -> HostSample | None:
        """The host at one of the minutes; None if it was not fresh."""
        codes = self.occupancy_codes[slot::MINUTES_PER_HOUR]
        if NO_CODE in codes or not codes:
            return None
        load, memory = (decode_number(one[slot], *how) for one, how in zip(self.host_columns, HOST_COLUMNS.values()))
        standings = [self.occupancies[code] for code in codes]
        return HostSample(
            host,
            load,
            memory,
            build_gpu_samples(series, [one[slot::MINUTES_PER_HOUR] for one in self.gpu_columns], standings),
        )


def build_host_hour(shape: int, parts: Mapping[int, MinutePart]) -> HostHour:
    """A host over the minutes of an hour, by their places in it; where it is missing, its values are not available."""
    found = {slot: part.slices[shape] for slot, part in parts.items() if shape in part.slices}
    place = next(iter(found.values()))
    count = place.end - place.start

    def along(kind: str, pick: str, number: int) -> array[int]:
        empty = array(kind, [NO_VALUE[kind]]) * (1 if pick == "own" else count)
        joined = array(kind)
        for slot in range(MINUTES_PER_HOUR):
            at = found.get(slot)
            if at is None:
                joined += empty
            elif pick == "own":
                joined.append(parts[slot].host_columns[number][at.host_position])
            else:
                joined += parts[slot].gpu_columns[number][at.start : at.end]
        return joined if pick == "own" else order_by_gpu(joined, count)

    codes: dict[str, int] = {}
    joined = array("H")
    for slot in range(MINUTES_PER_HOUR):
        at = found.get(slot)
        if at is None:
            joined += array("H", [NO_CODE]) * count
        else:
            texts = parts[slot].occupancies
            joined.extend(
                [codes.setdefault(texts[code], len(codes)) for code in parts[slot].occupancy_codes[at.start : at.end]]
            )
    return HostHour(
        tuple(along(kind, "own", number) for number, (kind, _) in enumerate(HOST_COLUMNS.values())),
        tuple(along(kind, "columns", number) for number, (kind, _) in enumerate(GPU_COLUMNS.values())),
        order_by_gpu(joined, count),
        tuple(codes),
    )


def order_by_gpu(joined: array[int], count: int) -> array[int]:
    """Numbers that stand minute by minute, so that they stand GPU by GPU."""
    found = array(joined.typecode)
    for number in range(count):
        found += joined[number::count]
    return found


def merge_hours(first: HostHour, second: HostHour) -> HostHour:
    """Two accounts of one hour; of each minute the first counts, if it has it."""
    codes = {text: code for code, text in enumerate(first.occupancies)}
    other = [codes.setdefault(text, len(codes)) for text in second.occupancies]
    known = [code != NO_CODE for code in first.occupancy_codes]

    def either(one: array[int], two: array[int], has: Sequence[bool]) -> array[int]:
        return array(one.typecode, [a if ok else b for a, b, ok in zip(one, two, has)])

    seen = [any(known[slot::MINUTES_PER_HOUR]) for slot in range(MINUTES_PER_HOUR)]
    moved = array("H", [code if code == NO_CODE else other[code] for code in second.occupancy_codes])
    return HostHour(
        tuple(either(one, two, seen) for one, two in zip(first.host_columns, second.host_columns)),
        tuple(either(one, two, known) for one, two in zip(first.gpu_columns, second.gpu_columns)),
        either(first.occupancy_codes, moved, known),
        tuple(codes),
    )


def pack_hour(hour: HostHour, level: int = 6) -> bytes:
    """A host over an hour, as it is kept for some days."""
    return pack_block(
        {"standings": hour.occupancies}, [*hour.host_columns, *hour.gpu_columns, hour.occupancy_codes], level
    )


def unpack_hour(data: bytes) -> HostHour:
    """The same, read back."""
    words, columns = unpack_block(data)
    try:
        load, memory, *numbers, codes = columns
        return HostHour((load, memory), tuple(numbers), codes, tuple(words["standings"]))
    except (ValueError, KeyError) as error:
        raise DamagedBlockError(str(error)) from error
