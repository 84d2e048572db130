"""What `nvidia-smi -q -x` tells, taken apart into its GPUs: XML, of which each GPU is read by itself.

So one that is torn or broken costs no other; what stands before the first, between them and behind the last is words.
No parser ever sees the head of the document: what it may declare there (entities) can do nothing.
"""

from __future__ import annotations

import re
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

from site_builder.snapshots.envelope import Pieces
from site_builder.snapshots.parse_result import ODD_ROW
from site_builder.snapshots.parsers.nvidia_csv import HANDLE

BEGIN = re.compile(r"<gpu(?=[\s/>])")
END = "</gpu>"
ID = re.compile(r"""<gpu\s+id\s*=\s*["']([^"'<>]{0,40})["']""")
BUS = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-9A-Fa-f])$")
# `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-…)`, and below it `  MIG 3g.40gb     Device  0: (UUID: MIG-…)`
LISTED = re.compile(r"GPU (\d{1,4}): .{0,300}\(UUID: ([^()\s]{1,100})\)\s*$")
LISTED_PART = re.compile(r"\s*MIG (\S{1,40})\s+Device\s+(\d{1,4}): \(UUID: ([^()\s]{1,200})\)\s*$")
# What the head tells that is no news.
HEAD = re.compile(r"<(\w{1,40})>([^<>]{0,200})</\1>")
KNOWN_HEAD = frozenset(
    {"timestamp", "driver_version", "kmd_version", "cuda_version", "cuda_umd_version", "umd_version", "attached_gpus"}
)
TAG = re.compile(r"<[^<>]*>")
BARE_AND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)")
NAME, NAME_END = "<process_name>", "</process_name>"
NO_CHARACTER = str.maketrans("\ufffe\uffff", "??")
MOST_GPUS = 1024
# With the clocks that it supports, a GPU takes 120 KB.
LONGEST_GPU = 512 * 1024
LONGEST_OUTSIDE = 64 * 1024
LONGEST_LINE = 300
TWICE = "the GPU at {} is told twice; the first counts"


class Device(NamedTuple):
    """A GPU of the log: where it sits, and its element; None where the driver has no handle for it, which `lost` says.

    `damaged` is one that cannot be read: it has a number all the same.
    """

    bus: str
    element: Element | None = None
    lost: str | None = None
    told_index: int | None = None
    damaged: bool = False


class Log(NamedTuple):
    """All that was told: its GPUs by their numbers, what the head says, the words around them, what is wrong."""

    devices: list[tuple[int, Device]]
    head: dict[str, str]
    said: list[str]
    problems: list[str]


class Listed(NamedTuple):
    """What `nvidia-smi -L` tells: the number of each GPU by its UUID, and the parts of each, by their number."""

    numbers: dict[str, int]
    parts: dict[str, dict[int, tuple[str, str]]]


def read(told: Pieces) -> tuple[Log, Listed]:
    """Take it apart; whatever it is, this ends soon and raises nothing."""
    piece = told.get("")
    text = "\n".join(piece.lines) if piece else ""
    listed = read_list(told["list"].lines if "list" in told else ())
    if "<!ENTITY" in text:
        return Log([], {}, [], ["it declares entities, which nvidia-smi never does: nothing of it is read"]), listed
    problems: list[str] = []
    devices, outside = take_apart(text, problems)
    head, said = words_of("\n".join(outside)[:LONGEST_OUTSIDE])
    found = with_messages(distinct(devices, problems), said)
    return Log(numbered(found, listed), head, said, problems), listed


def take_apart(text: str, problems: list[str]) -> tuple[list[Device], list[str]]:
    """Each GPU of it, and the text that stands around them."""
    starts = [match.start() for match in islice(BEGIN.finditer(text), MOST_GPUS + 1)]
    if len(starts) > MOST_GPUS:
        problems.append(f"more than {MOST_GPUS} GPUs are told; only the first {MOST_GPUS} count")
        text = text[: starts.pop()]
    outside = [text[: starts[0]] if starts else text]
    devices = []
    for start, stop in zip(starts, [*starts[1:], len(text)]):
        first = text.find(">", start, stop) + 1
        end = text.find(END, start, stop) + len(END)
        if first > 1 and text[first - 2] == "/":
            end = first
        if end < len(END):
            end = stop
        outside.append(text[end:stop])
        devices.append(device(text[start:end], problems))
    return devices, outside


def device(text: str, problems: list[str]) -> Device:
    """One GPU, or that it cannot be read."""
    match = ID.match(text)
    bus = match[1].strip() if match else ""
    if len(text) > LONGEST_GPU:
        fault = f"{len(text) // 1024} KiB of XML, which is too much"
    elif not text.endswith((END, "/>")):
        fault = "no end"
    else:
        element, fault = parsed(text)
        if element is not None:
            return Device(bus, element)
    problems.append(f"{ODD_ROW}{fault}, and is left out: the GPU {bus or 'of which it is not told where it sits'}")
    return Device(bus, damaged=True)


def parsed(text: str) -> tuple[Element | None, str]:
    """The element, or what is wrong with it; the names of processes are not always escaped."""
    from xml.etree import ElementTree  # noqa: PLC0415 # only where there is XML

    try:
        return ElementTree.fromstring(text), ""  # noqa: S314 # it has no head, and with it no entities
    except ElementTree.ParseError:
        mended = BARE_AND.sub("&amp;", "\n".join(map(escaped, text.split("\n")))).translate(NO_CHARACTER)
    try:
        return ElementTree.fromstring(mended), ""  # noqa: S314
    except ElementTree.ParseError as error:
        return None, f"XML that cannot be read ({str(error).partition(':')[0]})"


def escaped(line: str) -> str:
    """A line with the name of a process, in which nothing passes for a tag."""
    start, end = line.find(NAME) + len(NAME), line.rfind(NAME_END)
    return line if not len(NAME) <= start < end else line[:start] + line[start:end].replace("<", "&lt;") + line[end:]


def words_of(text: str) -> tuple[dict[str, str], list[str]]:
    """What the head tells, and the lines that are no XML: what nvidia-smi says when something is wrong."""
    text = without(without(text, "<!--", "-->"), "<!DOCTYPE", ">", ("[", "]>"))
    head: dict[str, str] = {}
    for match in HEAD.finditer(text):
        head.setdefault(match[1], match[2].strip().partition(" [")[0])
    rest = HEAD.sub(lambda match: "\n" if match[1] in KNOWN_HEAD else match[2], text)
    lines = (line.strip() for line in TAG.sub("", rest).split("\n"))
    return head, [line[:LONGEST_LINE] for line in lines if line]


def without(text: str, begin: str, end: str, inner: tuple[str, str] | None = None) -> str:
    """The text without what stands from each `begin` to its `end`; one that has `inner` within ends with that."""
    kept = []
    place = 0
    while (start := text.find(begin, place)) >= 0:
        stop = text.find(end, start)
        ends = end
        if inner and text.find(inner[0], start, stop if stop >= 0 else len(text)) >= 0:
            stop, ends = text.find(inner[1], start), inner[1]
        if stop < 0:
            break
        kept.append(text[place:start])
        place = stop + len(ends)
    kept.append(text[place:])
    return "".join(kept)


def distinct(devices: list[Device], problems: list[str]) -> list[Device]:
    """Each GPU once: a log that is written twice tells each twice."""
    seen: set[tuple[int, ...]] = set()
    kept = []
    for one in devices:
        key = bus_key(one.bus)
        if key in seen:
            problems.append(TWICE.format(one.bus))
            continue
        if key:
            seen.add(key)
        kept.append(one)
    return kept


def with_messages(devices: list[Device], said: list[str]) -> list[Device]:
    """The GPUs of which nvidia-smi says only that it has no handle for them have a place among the others."""
    places = {bus_key(one.bus): place for place, one in enumerate(devices)}
    for match in filter(None, map(HANDLE.search, said[:MOST_GPUS])):
        index, bus, why = match.groups()
        key = bus_key(bus)
        place = places.setdefault(key, len(devices)) if key else len(devices)
        if place == len(devices):
            devices.append(Device(bus))
        number = int(index) if index else None
        devices[place] = devices[place]._replace(lost=why.strip().rstrip("."), told_index=number)
    return devices


def numbered(devices: list[Device], listed: Listed) -> list[tuple[int, Device]]:
    """By nvidia-smi's numbers: as -L tells them, else by where they sit; the minor number is another thing."""
    keys = [bus_key(one.bus) for one in devices]
    if all(keys):
        devices = [one for _, one in sorted(zip(keys, devices), key=lambda pair: pair[0])]
    return [*zip(distinct_numbers([index_of(one, listed) for one in devices]), devices)]


def distinct_numbers(told: list[int | None]) -> list[int]:
    """The numbers that are told; one that is not, or is told of another before, becomes the first that nobody has."""
    free = (number for number in count() if number not in told)
    firsts = (index is not None and index not in told[:place] for place, index in enumerate(told))
    return [index if first and index is not None else next(free) for index, first in zip(told, firsts)]


def index_of(one: Device, listed: Listed) -> int | None:
    """Its number where something tells it."""
    if one.told_index is not None or one.element is None:
        return one.told_index
    return listed.numbers.get((one.element.findtext("uuid") or "").strip())


def bus_key(bus: str) -> tuple[int, ...]:
    """What sorts GPUs by where they sit, however many zeros that is written with; empty where it cannot be read."""
    match = BUS.match(bus)
    return tuple(int(part, 16) for part in match.groups()) if match else ()


def read_list(lines: tuple[str, ...]) -> Listed:
    """What -L tells; a line that is none of its own tells nothing."""
    numbers: dict[str, int] = {}
    parts: dict[str, dict[int, tuple[str, str]]] = {}
    uuid = ""
    for line in lines:
        if match := LISTED.match(line):
            uuid = match[2]
            numbers.setdefault(uuid, int(match[1]))
        elif uuid and (match := LISTED_PART.match(line)):
            parts.setdefault(uuid, {}).setdefault(int(match[2]), (match[1], match[3]))
    return Listed(numbers, parts)
