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

from site_builder.snapshots.envelope import BAD_ROW_PREFIX, ToolParts
from site_builder.snapshots.parsers.nvidia_csv import HANDLE_ERROR

GPU_START = re.compile(r"<gpu(?=[\s/>])")
GPU_END = "</gpu>"
GPU_ID = re.compile(r"""<gpu\s+id\s*=\s*["']([^"'<>]{0,40})["']""")
BUS_ID = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-9A-Fa-f])$")
# `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-…)`, and below it `  MIG 3g.40gb     Device  0: (UUID: MIG-…)`
GPU_LIST_LINE = re.compile(r"GPU (\d{1,4}): .{0,300}\(UUID: ([^()\s]{1,100})\)\s*$")
MIG_LIST_LINE = re.compile(r"\s*MIG (\S{1,40})\s+Device\s+(\d{1,4}): \(UUID: ([^()\s]{1,200})\)\s*$")
# What the head tells that is no news.
HEAD_ELEMENT = re.compile(r"<(\w{1,40})>([^<>]{0,200})</\1>")
KNOWN_HEAD_ELEMENTS = frozenset(
    {"timestamp", "driver_version", "kmd_version", "cuda_version", "cuda_umd_version", "umd_version", "attached_gpus"}
)
XML_TAG = re.compile(r"<[^<>]*>")
BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)")
PROCESS_NAME_START, PROCESS_NAME_END = "<process_name>", "</process_name>"
NONCHARACTERS = str.maketrans("\ufffe\uffff", "??")
MAX_GPUS = 1024
# With the clocks that it supports, a GPU takes 120 KB.
MAX_GPU_CHARACTERS = 512 * 1024
MAX_OUTSIDE_CHARACTERS = 64 * 1024
MAX_LINE_CHARACTERS = 300
DUPLICATE_GPU_MESSAGE = "the GPU at {} is told twice; the first counts"


class XmlDevice(NamedTuple):
    """A GPU of the log: where it sits, and its element; None where the driver has no handle for it, which `lost` says.

    `damaged` is one that cannot be read: it has a number all the same.
    """

    bus_id: str
    element: Element | None = None
    lost_reason: str | None = None
    reported_index: int | None = None
    is_damaged: bool = False


class XmlLog(NamedTuple):
    """All that was told: its GPUs by their numbers, what the head says, the words around them, what is wrong."""

    devices: list[tuple[int, XmlDevice]]
    head_values: dict[str, str]
    messages: list[str]
    problems: list[str]


class GpuList(NamedTuple):
    """What `nvidia-smi -L` tells: the number of each GPU by its UUID, and the parts of each, by their number."""

    numbers_by_uuid: dict[str, int]
    instances_by_uuid: dict[str, dict[int, tuple[str, str]]]


def parse_xml_log(told: ToolParts) -> tuple[XmlLog, GpuList]:
    """Take it apart; whatever it is, this ends soon and raises nothing."""
    piece = told.get("")
    text = "\n".join(piece.lines) if piece else ""
    listed = parse_gpu_list(told["list"].lines if "list" in told else ())
    if "<!ENTITY" in text:
        return XmlLog([], {}, [], ["it declares entities, which nvidia-smi never does: nothing of it is read"]), listed
    problems: list[str] = []
    devices, outside = split_devices(text, problems)
    head, said = parse_outside_text("\n".join(outside)[:MAX_OUTSIDE_CHARACTERS])
    found = apply_handle_errors(drop_duplicate_devices(devices, problems), said)
    return XmlLog(number_devices(found, listed), head, said, problems), listed


def split_devices(text: str, problems: list[str]) -> tuple[list[XmlDevice], list[str]]:
    """Each GPU of it, and the text that stands around them."""
    starts = [match.start() for match in islice(GPU_START.finditer(text), MAX_GPUS + 1)]
    if len(starts) > MAX_GPUS:
        problems.append(f"more than {MAX_GPUS} GPUs are told; only the first {MAX_GPUS} count")
        text = text[: starts.pop()]
    outside = [text[: starts[0]] if starts else text]
    devices = []
    for start, stop in zip(starts, [*starts[1:], len(text)]):
        first = text.find(">", start, stop) + 1
        end = text.find(GPU_END, start, stop) + len(GPU_END)
        if first > 1 and text[first - 2] == "/":
            end = first
        if end < len(GPU_END):
            end = stop
        outside.append(text[end:stop])
        devices.append(parse_device(text[start:end], problems))
    return devices, outside


def parse_device(text: str, problems: list[str]) -> XmlDevice:
    """One GPU, or that it cannot be read."""
    match = GPU_ID.match(text)
    bus = match[1].strip() if match else ""
    if len(text) > MAX_GPU_CHARACTERS:
        fault = f"{len(text) // 1024} KiB of XML, which is too much"
    elif not text.endswith((GPU_END, "/>")):
        fault = "no end"
    else:
        element, fault = parse_element(text)
        if element is not None:
            return XmlDevice(bus, element)
    problems.append(
        f"{BAD_ROW_PREFIX}{fault}, and is left out: the GPU {bus or 'of which it is not told where it sits'}"
    )
    return XmlDevice(bus, is_damaged=True)


def parse_element(text: str) -> tuple[Element | None, str]:
    """The element, or what is wrong with it; the names of processes are not always escaped."""
    from xml.etree import ElementTree  # noqa: PLC0415 # only where there is XML

    try:
        return ElementTree.fromstring(text), ""  # noqa: S314 # it has no head, and with it no entities
    except ElementTree.ParseError:
        mended = BARE_AMPERSAND.sub("&amp;", "\n".join(map(escape_process_name, text.split("\n")))).translate(
            NONCHARACTERS
        )
    try:
        return ElementTree.fromstring(mended), ""  # noqa: S314
    except ElementTree.ParseError as error:
        return None, f"XML that cannot be read ({str(error).partition(':')[0]})"


def escape_process_name(line: str) -> str:
    """A line with the name of a process, in which nothing passes for a tag."""
    start, end = line.find(PROCESS_NAME_START) + len(PROCESS_NAME_START), line.rfind(PROCESS_NAME_END)
    return (
        line
        if not len(PROCESS_NAME_START) <= start < end
        else line[:start] + line[start:end].replace("<", "&lt;") + line[end:]
    )


def parse_outside_text(text: str) -> tuple[dict[str, str], list[str]]:
    """What the head tells, and the lines that are no XML: what nvidia-smi says when something is wrong."""
    text = remove_sections(remove_sections(text, "<!--", "-->"), "<!DOCTYPE", ">", ("[", "]>"))
    head: dict[str, str] = {}
    for match in HEAD_ELEMENT.finditer(text):
        head.setdefault(match[1], match[2].strip().partition(" [")[0])
    rest = HEAD_ELEMENT.sub(lambda match: "\n" if match[1] in KNOWN_HEAD_ELEMENTS else match[2], text)
    lines = (line.strip() for line in XML_TAG.sub("", rest).split("\n"))
    return head, [line[:MAX_LINE_CHARACTERS] for line in lines if line]


def remove_sections(text: str, begin: str, end: str, inner: tuple[str, str] | None = None) -> str:
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


def drop_duplicate_devices(devices: list[XmlDevice], problems: list[str]) -> list[XmlDevice]:
    """Each GPU once: a log that is written twice tells each twice."""
    seen: set[tuple[int, ...]] = set()
    kept = []
    for one in devices:
        key = bus_sort_key(one.bus_id)
        if key in seen:
            problems.append(DUPLICATE_GPU_MESSAGE.format(one.bus_id))
            continue
        if key:
            seen.add(key)
        kept.append(one)
    return kept


def apply_handle_errors(devices: list[XmlDevice], said: list[str]) -> list[XmlDevice]:
    """The GPUs of which nvidia-smi says only that it has no handle for them have a place among the others."""
    places = {bus_sort_key(one.bus_id): place for place, one in enumerate(devices)}
    for match in filter(None, map(HANDLE_ERROR.search, said[:MAX_GPUS])):
        index, bus, why = match.groups()
        key = bus_sort_key(bus)
        place = places.setdefault(key, len(devices)) if key else len(devices)
        if place == len(devices):
            devices.append(XmlDevice(bus))
        number = int(index) if index else None
        devices[place] = devices[place]._replace(lost_reason=why.strip().rstrip("."), reported_index=number)
    return devices


def number_devices(devices: list[XmlDevice], listed: GpuList) -> list[tuple[int, XmlDevice]]:
    """By nvidia-smi's numbers: as -L tells them, else by where they sit; the minor number is another thing."""
    keys = [bus_sort_key(one.bus_id) for one in devices]
    if all(keys):
        devices = [one for _, one in sorted(zip(keys, devices), key=lambda pair: pair[0])]
    return [*zip(assign_distinct_numbers([find_reported_index(one, listed) for one in devices]), devices)]


def assign_distinct_numbers(told: list[int | None]) -> list[int]:
    """The numbers that are told; one that is not, or is told of another before, becomes the first that nobody has."""
    free = (number for number in count() if number not in told)
    firsts = (index is not None and index not in told[:place] for place, index in enumerate(told))
    return [index if first and index is not None else next(free) for index, first in zip(told, firsts)]


def find_reported_index(one: XmlDevice, listed: GpuList) -> int | None:
    """Its number where something tells it."""
    if one.reported_index is not None or one.element is None:
        return one.reported_index
    return listed.numbers_by_uuid.get((one.element.findtext("uuid") or "").strip())


def bus_sort_key(bus: str) -> tuple[int, ...]:
    """What sorts GPUs by where they sit, however many zeros that is written with; empty where it cannot be read."""
    match = BUS_ID.match(bus)
    return tuple(int(part, 16) for part in match.groups()) if match else ()


def parse_gpu_list(lines: tuple[str, ...]) -> GpuList:
    """What -L tells; a line that is none of its own tells nothing."""
    numbers: dict[str, int] = {}
    parts: dict[str, dict[int, tuple[str, str]]] = {}
    uuid = ""
    for line in lines:
        if match := GPU_LIST_LINE.match(line):
            uuid = match[2]
            numbers.setdefault(uuid, int(match[1]))
        elif uuid and (match := MIG_LIST_LINE.match(line)):
            parts.setdefault(uuid, {}).setdefault(int(match[2]), (match[1], match[3]))
    return GpuList(numbers, parts)
