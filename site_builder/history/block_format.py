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

from site_builder.core.model import Who
from site_builder.history.model import STATES, GpuSample, HostSample, Series, Standing

# What stands first in each block: another number for another form.
FORM = 1
HEAD = struct.Struct("<BI")
MINUTES = 60
# Each column of a minute: its type of array, and what one step of its number is worth.
COLUMNS = {"use": ("B", 0.5), "memory": ("I", 1), "temperature": ("B", 1), "power": ("H", 0.1)}
OWN = {"load": ("H", 1), "own_memory": ("B", 0.5)}
NONE = {"B": 255, "H": 65535, "I": 2**32 - 1}
NO_CODE = NONE["H"]
NAME_CHARACTERS = 100


class Damaged(Exception):
    """A block that is not what was written."""


class Packed(NamedTuple):
    """A sample of a host, as small as it can be kept; `shape` is the digest of which GPUs it has."""

    host: str
    shape: int
    gpus: bytes
    own: tuple[bytes, ...]
    columns: tuple[bytes, ...]
    standings: tuple[str, ...]


def pack(sample: HostSample) -> Packed:
    """A sample of a host, so that a minute of the fleet has only to be put together."""
    gpus = orjson.dumps([one.series for one in sample.gpus], default=list)
    digest = blake2b(sample.host.encode() + b"\0" + gpus, digest_size=8).digest()
    told = zip(*((one.use, one.memory, one.temperature, one.power) for one in sample.gpus))
    return Packed(
        sample.host,
        int.from_bytes(digest, "little", signed=True),
        gpus,
        tuple(bytes_of(column([value], *how)) for value, how in zip((sample.load, sample.memory), OWN.values())),
        tuple(bytes_of(column(values, *how)) for values, how in zip(told, COLUMNS.values())),
        tuple(text_of(one.standing) for one in sample.gpus),
    )


def column(values: Sequence[float | None], kind: str, step: float) -> array[int]:
    """Numbers as they are kept: a host can claim anything, and what is too large becomes the largest."""
    none = NONE[kind]
    most = none - 1
    return array(
        kind,
        [
            none if one is None or one != one else 0 if one <= 0 else int(min(one / step, most) + 0.5)  # noqa: PLR0124 # not a number
            for one in values
        ],
    )


@lru_cache(maxsize=65536)
def text_of(standing: Standing) -> str:
    """How a GPU stands, in one line; what is empty at its end is left out."""
    who = [[clean(name) for name in names] for names in standing.who]
    while who and not who[-1]:
        who.pop()
    return orjson.dumps([STATES.index(standing.state), *who]).decode()


def clean(name: str) -> str:
    """A name that any file can hold."""
    return name[:NAME_CHARACTERS].encode("utf-8", "replace").decode()


@lru_cache(maxsize=65536)
def standing_of(text: str) -> Standing:
    """The same, read back."""
    try:
        state, *who = orjson.loads(text)
        return Standing(STATES[state], Who(*(tuple(map(str, names)) for names in who)))
    except (ValueError, TypeError, IndexError) as error:
        raise Damaged(text) from error


@lru_cache(maxsize=4096)
def series_of(gpus: bytes) -> tuple[Series, ...]:
    """Which GPUs a host has."""
    try:
        return tuple(Series(*one) for one in orjson.loads(gpus))
    except (ValueError, TypeError) as error:
        raise Damaged(gpus) from error


def bytes_of(numbers: array[int]) -> bytes:
    """An array as bytes, in the same order on every machine."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def array_of(kind: str, data: bytes | bytearray) -> array[int]:
    """The same, read back."""
    numbers = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def is_none(numbers: array[int]) -> bool:
    """Whether no value is available in all of a column: each byte of the number that says so is full."""
    data = numbers.tobytes()
    return data.count(b"\xff") == len(data)


def block(words: Mapping[str, object], columns: Sequence[array[int]], level: int) -> bytes:
    """Words and columns in one piece; the bytes of a number stand apart, since the high ones hardly change."""
    head = orjson.dumps({**words, "columns": [(one.typecode, len(one)) for one in columns]})
    parts = [HEAD.pack(FORM, len(head)), head]
    for one in columns:
        data, size = bytes_of(one), one.itemsize
        parts += [data] if size == 1 else [data[plane::size] for plane in range(size)]
    return zlib.compress(b"".join(parts), level)


def unblock(data: bytes) -> tuple[dict[str, Any], list[array[int]]]:
    """The same, read back."""
    try:
        raw = zlib.decompress(data)
        form, length = HEAD.unpack_from(raw)
        if form != FORM:
            raise Damaged(f"form {form}")
        place = HEAD.size + length
        words = orjson.loads(raw[HEAD.size : place])
        columns = []
        for kind, count in words["columns"]:
            size = array(kind).itemsize
            joined = bytearray(count * size)
            for plane in range(size):
                joined[plane::size] = raw[place : place + count]
                place += count
            columns.append(array_of(kind, joined))
    except (zlib.error, struct.error, ValueError, TypeError, KeyError) as error:
        raise Damaged(str(error)) from error
    return words, columns


class Place(NamedTuple):
    """Where the numbers of a host stand: its own, and those of its GPUs."""

    number: int
    start: int
    end: int


@dataclass(frozen=True)
class Part:
    """Some hosts at one minute, by their shapes."""

    places: dict[int, Place]
    own: tuple[array[int], ...]
    columns: tuple[array[int], ...]
    codes: array[int]
    standings: tuple[str, ...]

    def sample(self, shape: int, host: str, series: Sequence[Series]) -> HostSample | None:
        """One of its hosts; None if it was not fresh."""
        place = self.places.get(shape)
        if place is None:
            return None
        load, memory = (value(one[place.number], *how) for one, how in zip(self.own, OWN.values()))
        some = slice(place.start, place.end)
        standings = [self.standings[code] for code in self.codes[some]]
        return HostSample(host, load, memory, gpus_of(series, [one[some] for one in self.columns], standings))


def gpus_of(series: Sequence[Series], columns: Sequence[array[int]], standings: Sequence[str]) -> tuple[GpuSample, ...]:
    """The GPUs of a host at a minute, each with its number of each column."""
    told = (values(one, *how) for one, how in zip(columns, COLUMNS.values()))
    rows = zip(series, *told, standings)
    return tuple(
        GpuSample(which, use, memory, temperature, power, standing_of(text))
        for which, use, memory, temperature, power, text in rows
    )


def value(number: int, kind: str, step: float) -> float | None:
    """A number in its own unit."""
    return None if number == NONE[kind] else number * step if step >= 1 else round(number * step, 1)


def values(numbers: Sequence[int], kind: str, step: float) -> list[float | None]:
    """Numbers in their own unit."""
    return [value(one, kind, step) for one in numbers]


def pack_part(samples: Sequence[Packed]) -> bytes:
    """Some hosts at one minute; quickly, since it stands for an hour only."""
    codes: dict[str, int] = {}
    standing = array("H", [codes.setdefault(text, len(codes)) for one in samples for text in one.standings])
    own = [array_of(kind, b"".join(one.own[n] for one in samples)) for n, (kind, _) in enumerate(OWN.values())]
    columns = [
        array_of(kind, b"".join(one.columns[n] for one in samples)) for n, (kind, _) in enumerate(COLUMNS.values())
    ]
    shapes = array("q", [one.shape for one in samples])
    counts = array("H", [len(one.standings) for one in samples])
    return block({"standings": list(codes)}, [shapes, counts, *own, *columns, standing], 1)


def unpack_part(data: bytes) -> Part:
    """The same, read back."""
    words, columns = unblock(data)
    try:
        shapes, counts, load, memory, *numbers, codes = columns
        places, start = {}, 0
        for number, (shape, count) in enumerate(zip(shapes, counts)):
            places[shape] = Place(number, start, start + count)
            start += count
        return Part(places, (load, memory), tuple(numbers), codes, tuple(words["standings"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(str(error)) from error


@dataclass(frozen=True)
class Hour:
    """A host over 60 minutes; all the minutes of its first GPU stand first. `codes` are places in `standings`."""

    own: tuple[array[int], ...]
    columns: tuple[array[int], ...]
    codes: array[int]
    standings: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""
        return len(self.codes) // MINUTES

    def minute(self, slot: int, host: str, series: Sequence[Series]) -> HostSample | None:
        """The host at one of the minutes; None if it was not fresh."""
        codes = self.codes[slot::MINUTES]
        if NO_CODE in codes or not codes:
            return None
        load, memory = (value(one[slot], *how) for one, how in zip(self.own, OWN.values()))
        standings = [self.standings[code] for code in codes]
        return HostSample(host, load, memory, gpus_of(series, [one[slot::MINUTES] for one in self.columns], standings))


def hour_of(shape: int, parts: Mapping[int, Part]) -> Hour:
    """A host over the minutes of an hour, by their places in it; where it is missing, its values are not available."""
    found = {slot: part.places[shape] for slot, part in parts.items() if shape in part.places}
    place = next(iter(found.values()))
    count = place.end - place.start

    def along(kind: str, pick: str, number: int) -> array[int]:
        empty = array(kind, [NONE[kind]]) * (1 if pick == "own" else count)
        joined = array(kind)
        for slot in range(MINUTES):
            at = found.get(slot)
            if at is None:
                joined += empty
            elif pick == "own":
                joined.append(parts[slot].own[number][at.number])
            else:
                joined += parts[slot].columns[number][at.start : at.end]
        return joined if pick == "own" else turned(joined, count)

    codes: dict[str, int] = {}
    joined = array("H")
    for slot in range(MINUTES):
        at = found.get(slot)
        if at is None:
            joined += array("H", [NO_CODE]) * count
        else:
            texts = parts[slot].standings
            joined.extend([codes.setdefault(texts[code], len(codes)) for code in parts[slot].codes[at.start : at.end]])
    return Hour(
        tuple(along(kind, "own", number) for number, (kind, _) in enumerate(OWN.values())),
        tuple(along(kind, "columns", number) for number, (kind, _) in enumerate(COLUMNS.values())),
        turned(joined, count),
        tuple(codes),
    )


def turned(joined: array[int], count: int) -> array[int]:
    """Numbers that stand minute by minute, so that they stand GPU by GPU."""
    found = array(joined.typecode)
    for number in range(count):
        found += joined[number::count]
    return found


def merged(first: Hour, second: Hour) -> Hour:
    """Two accounts of one hour; of each minute the first counts, if it has it."""
    codes = {text: code for code, text in enumerate(first.standings)}
    other = [codes.setdefault(text, len(codes)) for text in second.standings]
    known = [code != NO_CODE for code in first.codes]

    def either(one: array[int], two: array[int], has: Sequence[bool]) -> array[int]:
        return array(one.typecode, [a if ok else b for a, b, ok in zip(one, two, has)])

    seen = [any(known[slot::MINUTES]) for slot in range(MINUTES)]
    moved = array("H", [code if code == NO_CODE else other[code] for code in second.codes])
    return Hour(
        tuple(either(one, two, seen) for one, two in zip(first.own, second.own)),
        tuple(either(one, two, known) for one, two in zip(first.columns, second.columns)),
        either(first.codes, moved, known),
        tuple(codes),
    )


def pack_hour(hour: Hour, level: int = 6) -> bytes:
    """A host over an hour, as it is kept for some days."""
    return block({"standings": hour.standings}, [*hour.own, *hour.columns, hour.codes], level)


def unpack_hour(data: bytes) -> Hour:
    """The same, read back."""
    words, columns = unblock(data)
    try:
        load, memory, *numbers, codes = columns
        return Hour((load, memory), tuple(numbers), codes, tuple(words["standings"]))
    except (ValueError, KeyError) as error:
        raise Damaged(str(error)) from error
