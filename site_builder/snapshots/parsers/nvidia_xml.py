"""Parse nvidia-smi's XML (`-q -x`), with `-L` beside it: unlike CSV, it has the instances of a GPU in MIG mode.

Each GPU is parsed by itself, so that a broken one costs no other; what stands around the GPUs are messages. No XML
parser ever sees the head of the document, so that entities declared there can do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import orjson

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.core.terminal_text import clean_excerpt
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import ToolOutput, ToolParts
from site_builder.snapshots.parsers import nvidia_csv, values
from site_builder.snapshots.parsers.nvidia_csv import HANDLE_ERROR, MAX_PROCESS_NAME_CHARACTERS, is_csv_process_hidden

# The paths of each --query-gpu field in the versions of the XML: the first with a value counts, `a + b` is a sum.
XML_FIELDS: dict[str, list[str]] = orjson.loads((Path(__file__).parent / "nvidia_xml_paths.json").read_bytes())
XML_PATHS = tuple(
    tuple(tuple(tuple(path.split("/")) for path in source.split(" + ")) for source in sources)
    for sources in XML_FIELDS.values()
)
XML_COLUMNS = ("index", "driver_version", "clocks_event_reasons.active", *XML_FIELDS)
GPU_COLUMNS = nvidia_csv.find_nvidia_csv_columns(XML_COLUMNS)
BUS_ID_POSITION = XML_COLUMNS.index("pci.bus_id")
# The bits of clocks_event_reasons.active, which the XML has as single elements.
CLOCK_REASON_BITS = {
    **{
        "gpu_idle": 0x1,
        "applications_clocks_setting": 0x2,
        "sw_power_cap": 0x4,
        "hw_slowdown": 0x8,
        "sync_boost": 0x10,
    },
    **{"sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake_slowdown": 0x80},
    "display_clocks_setting": 0x100,
}
# Words for a missing value, which CSV has in brackets.
NO_VALUE_WORDS = frozenset(
    {"N/A", "Not Supported", "Not Found", "Function Not Found", "Requested functionality has been deprecated"}
    | {"Unknown Error", "GPU is lost", "GPU requires reset", "Insufficient Permissions"}
)
NOT_AVAILABLE_CELL = "[N/A]"
NO_DATA_MESSAGE = "nvidia-smi does not report it"
# The elements whose errors make the state of a GPU unknown, and the word for each.
WATCHED_ELEMENTS = {"fb_memory_usage": "memory", "utilization": "use", "temperature": "temperature"}
TWICE_WORDS = "printed twice"
# These hold texts that users choose, such as the names of their programs.
USER_TEXT_ELEMENTS = frozenset({"processes", "compute_processes", "accounted_processes", "mig_devices"})
NO_LIST_MESSAGE, HIDDEN_PROCESS_MESSAGE = "nvidia-smi does not list them", "nvidia-smi hides one of them"
MAX_CELL_CHARACTERS = 200
MAX_INSTANCES = 64
MAX_PROCESSES = 10_000

GPU_START = re.compile(r"<gpu(?=[\s/>])")
GPU_END = "</gpu>"
GPU_ID = re.compile(r"""<gpu\s+id\s*=\s*["']([^"'<>]{0,40})["']""")
BUS_ID = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-9A-Fa-f])$")
# `GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-…)`, and below it `  MIG 3g.40gb     Device  0: (UUID: MIG-…)`
GPU_LIST_LINE = re.compile(r"GPU (\d{1,4}): .{0,300}\(UUID: ([^()\s]{1,100})\)\s*$")
MIG_LIST_LINE = re.compile(r"\s*MIG (\S{1,40})\s+Device\s+(\d{1,4}): \(UUID: ([^()\s]{1,200})\)\s*$")
# Elements of the head are values; all but the known ones are messages too.
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


class XmlDevice(NamedTuple):
    """A GPU of the log; `element` is None where the driver has no handle for it, or its XML is damaged."""

    bus_id: str
    element: Element | None = None
    lost_reason: str | None = None
    reported_index: int | None = None
    is_damaged: bool = False


class XmlLog(NamedTuple):
    """The GPUs of the log by their numbers, the values of its head, the messages around them, and the problems.

    `instances` has profiles and UUIDs of the instances of each GPU by number, as `nvidia-smi -L` prints them.
    """

    devices: list[tuple[int, XmlDevice]]
    head_values: dict[str, str]
    messages: list[str]
    problems: list[str]
    instances: dict[str, dict[int, tuple[str, str]]]
    has_missing_gpu: bool = False


# An instance of a GPU, with the two ids by which processes name it.
MigInstance = tuple[tuple[str, str], Gpu]


def parse_nvidia_xml_gpus(parts: ToolParts) -> ToolOutput[Gpu]:
    """Parse every GPU; one in MIG mode is replaced by its instances, since each can be free or busy by itself."""
    log = parse_xml_log(parts)
    driver = xml_value_to_csv_cell(log.head_values.get("driver_version") or log.head_values.get("kmd_version"))
    rows: list[Gpu] = []
    for index, device in log.devices:
        if device.lost_reason or not device.is_damaged:
            gpu = build_gpu_from_xml(index, device, driver)
            rows += [instance for _, instance in build_xml_mig_instances(gpu, device.element, log)] or [gpu]
    attached, has_missing_gpu = log.head_values.get("attached_gpus", ""), log.has_missing_gpu
    if attached.isdecimal() and len(attached) <= 4 and int(attached) > len(log.devices):
        log.problems.append(
            f"a row is missing: {attached} GPUs are attached, but nvidia-smi reports {len(log.devices)}"
        )
        has_missing_gpu = True
    return ToolOutput(tuple(rows), log.messages, log.problems, has_missing_gpu=has_missing_gpu)


def parse_nvidia_xml_processes(parts: ToolParts) -> ToolOutput[GpuProcessRow]:
    """Parse every process that computes, each on its instance where the GPU has any; not one that only draws."""
    log = parse_xml_log(parts)
    processes: list[GpuProcessRow] = []
    unreported: dict[str, str] = {}
    elements = [(index, device.element) for index, device in log.devices if device.element is not None]
    for index, element in elements:
        gpu = Gpu(index, values.parse_cell(xml_value_to_csv_cell(element.findtext("uuid"))), None)
        processes += parse_xml_device_processes(gpu, element, log, MAX_PROCESSES - len(processes), unreported)
    is_complete = bool(elements) and not log.problems
    return ToolOutput(tuple(processes), log.messages, log.problems, is_complete, unreported)


def parse_xml_log(parts: ToolParts) -> XmlLog:
    """Split the log into its GPUs; takes little time for any input, and raises nothing."""
    text = "\n".join(parts[""].lines) if "" in parts else ""
    log = XmlLog([], {}, [], [], {})
    numbers_by_uuid: dict[str, int] = {}
    uuid = ""
    for line in parts["list"].lines if "list" in parts else ():
        if match := GPU_LIST_LINE.match(line):
            uuid = match[2]
            numbers_by_uuid.setdefault(uuid, int(match[1]))
        elif uuid and (match := MIG_LIST_LINE.match(line)):
            log.instances.setdefault(uuid, {}).setdefault(int(match[2]), (match[1], match[3]))
    if "<!ENTITY" in text:
        log.problems.append("it declares entities, which nvidia-smi never does: the file is ignored")
        return log
    devices, outside_texts = split_xml_devices(text, log.problems)
    has_missing_gpu = any(device.is_damaged for device in devices)  # also a second copy, which is dropped below
    # the values of the head, and the lines that are not XML: what nvidia-smi prints when something is wrong
    outside = "\n".join(outside_texts)[:MAX_OUTSIDE_CHARACTERS]
    outside = remove_xml_sections(remove_xml_sections(outside, "<!--", "-->"), "<!DOCTYPE", ">", ("[", "]>"))
    for match in HEAD_ELEMENT.finditer(outside):
        log.head_values.setdefault(match[1], match[2].strip().partition(" [")[0])
    outside = HEAD_ELEMENT.sub(lambda match: "\n" if match[1] in KNOWN_HEAD_ELEMENTS else match[2], outside)
    lines = (line.strip() for line in XML_TAG.sub("", outside).split("\n"))
    log.messages.extend(line[:MAX_LINE_CHARACTERS] for line in lines if line)
    devices = merge_xml_devices(devices, log.messages, log.problems)
    # nvidia-smi's numbers are those of -L, else by the place on the bus; the minor number differs
    if all(xml_bus_sort_key(device.bus_id) for device in devices):
        devices.sort(key=lambda device: xml_bus_sort_key(device.bus_id))
    indices = []
    for device in devices:
        index = device.reported_index
        if index is None and device.element is not None:
            index = numbers_by_uuid.get((device.element.findtext("uuid") or "").strip())
        indices.append(index)
    log.devices.extend(zip(assign_distinct_xml_numbers(indices), devices))
    return log._replace(has_missing_gpu=has_missing_gpu)


def split_xml_devices(text: str, problems: list[str]) -> tuple[list[XmlDevice], list[str]]:
    """Return the GPUs, and the text around them."""
    starts = [match.start() for match in islice(GPU_START.finditer(text), MAX_GPUS + 1)]
    if len(starts) > MAX_GPUS:
        problems.append(f"more than {MAX_GPUS} GPUs are reported; only the first {MAX_GPUS} are used")
        text = text[: starts.pop()]
    outside_texts = [text[: starts[0]] if starts else text]
    devices = []
    for start, stop in zip(starts, [*starts[1:], len(text)]):
        tag_end = text.find(">", start, stop) + 1
        end = text.find(GPU_END, start, stop) + len(GPU_END)
        if tag_end > 1 and text[tag_end - 2] == "/":
            end = tag_end
        if end < len(GPU_END):
            end = stop
        outside_texts.append(text[end:stop])
        device_text = text[start:end]
        match = GPU_ID.match(device_text)
        bus_id = match[1].strip() if match else ""
        element = None
        if len(device_text) > MAX_GPU_CHARACTERS:
            fault = f"{len(device_text) // 1024} KiB of XML, which is too large"
        elif not device_text.endswith((GPU_END, "/>")):
            fault = "no end"
        else:
            element, fault = parse_xml_element(device_text)
        if element is None:
            where = bus_id or "with an unknown bus id"
            problems.append(f"a row has {fault} and is ignored: the GPU {where}")
        devices.append(XmlDevice(bus_id, element, is_damaged=element is None))
    return devices, outside_texts


def parse_xml_element(text: str) -> tuple[Element | None, str]:
    """Return the element, or what is wrong with it; names of processes are not always escaped."""
    try:
        return ElementTree.fromstring(text), ""  # noqa: S314 # it has no head, and with it no entities
    except ElementTree.ParseError:
        lines = []
        for line in text.split("\n"):
            start, end = line.find(PROCESS_NAME_START) + len(PROCESS_NAME_START), line.rfind(PROCESS_NAME_END)
            if len(PROCESS_NAME_START) <= start < end:
                line = line[:start] + line[start:end].replace("<", "&lt;") + line[end:]  # noqa: PLW2901
            lines.append(line)
        escaped = BARE_AMPERSAND.sub("&amp;", "\n".join(lines)).translate(NONCHARACTERS)
    try:
        return ElementTree.fromstring(escaped), ""  # noqa: S314
    except ElementTree.ParseError as error:
        return None, f"XML that cannot be read ({str(error).partition(':')[0]})"


def remove_xml_sections(text: str, begin: str, end: str, inner: tuple[str, str] | None = None) -> str:
    """Remove all from each `begin` to its `end`; a section with the first of `inner` in it ends with the second."""
    kept = []
    position = 0
    while (start := text.find(begin, position)) >= 0:
        stop, end_mark = text.find(end, start), end
        if inner and text.find(inner[0], start, stop if stop >= 0 else len(text)) >= 0:
            stop, end_mark = text.find(inner[1], start), inner[1]
        if stop < 0:
            break
        kept.append(text[position:start])
        position = stop + len(end_mark)
    kept.append(text[position:])
    return "".join(kept)


def merge_xml_devices(reported: list[XmlDevice], messages: list[str], problems: list[str]) -> list[XmlDevice]:
    """Return each GPU once, and those for which nvidia-smi prints only that it has no handle for them."""
    devices: list[XmlDevice] = []
    positions: dict[tuple[int, ...], int] = {}
    for device in reported:
        key = xml_bus_sort_key(device.bus_id)
        if key in positions:
            problems.append(f"the GPU at {device.bus_id} is reported twice; the first is used")
            continue
        if key:
            positions[key] = len(devices)
        devices.append(device)
    for match in filter(None, map(HANDLE_ERROR.search, messages[:MAX_GPUS])):
        index, bus_id, reason = match.groups()
        key = xml_bus_sort_key(bus_id)
        position = positions.setdefault(key, len(devices)) if key else len(devices)
        if position == len(devices):
            devices.append(XmlDevice(bus_id))
        devices[position] = devices[position]._replace(
            lost_reason=reason.strip().rstrip("."), reported_index=int(index) if index else None
        )
    return devices


def assign_distinct_xml_numbers(reported: list[int | None]) -> list[int]:
    """Keep each number at its first place; others get the first numbers that are not used."""
    unused = (number for number in count() if number not in reported)
    return [
        next(unused) if number is None or number in reported[:position] else number
        for position, number in enumerate(reported)
    ]


def xml_bus_sort_key(bus_id: str) -> tuple[int, ...]:
    """Return a key that is the same however many zeros a bus id is written with; empty if it is not a bus id."""
    match = BUS_ID.match(bus_id)
    return tuple(int(digits, 16) for digits in match.groups()) if match else ()


def build_gpu_from_xml(index: int, device: XmlDevice, driver: str) -> Gpu:
    """Build a GPU from its element; a lost one keeps its row."""
    element = device.element
    if element is None:
        return nvidia_csv.build_unreachable_csv_gpu(index, device.bus_id, device.lost_reason or NO_DATA_MESSAGE)
    children = {child.tag: child for child in element}
    cells = [str(index), driver, compute_xml_clock_reason_mask(children)]
    cells += [find_first_xml_value(children, sources) for sources in XML_PATHS]
    if values.parse_cell(cells[BUS_ID_POSITION]) is None:
        cells[BUS_ID_POSITION] = device.bus_id or NOT_AVAILABLE_CELL
    gpu = nvidia_csv.build_gpu_from_nvidia_csv(GPU_COLUMNS, tuple(cells))
    # errors may be in elements that are not columns of ours
    error = values.find_reading_error(
        (reading, text) for tag, reading in WATCHED_ELEMENTS.items() for text in list_xml_texts(element.iterfind(tag))
    )
    if error and not gpu.error:
        gpu = gpu._replace(error=error.sentence)
    errors = find_xml_errors(element)
    if errors != values.NO_CELL_ERRORS:
        health = gpu.health._replace(power_error=gpu.health.power_error or errors.power or None)
        gpu = gpu._replace(other_error=gpu.other_error or errors.other, health=health)
    if len(children) < len(element):  # which of two is right is not known
        twice = [(reading, TWICE_WORDS) for tag, reading in WATCHED_ELEMENTS.items() if len(element.findall(tag)) > 1]
        error = values.find_reading_error(twice)
        gpu = gpu._replace(error=gpu.error or error.sentence) if error else gpu
    lost = gpu.lost or values.find_lost_value(
        list_xml_texts(child for child in element if child.tag not in USER_TEXT_ELEMENTS)
    )
    if lost:
        return gpu if lost == gpu.lost else gpu._replace(lost=lost)
    message = HANDLE_ERROR.search(element.text or "")
    lost_reason = device.lost_reason or (message[3].strip().rstrip(".") if message else None)
    has_live_reading = any(value is not None for value in (gpu.memory_used, gpu.utilization_gpu, gpu.temperature))
    if not lost_reason and gpu.uuid is None and gpu.name is None and not has_live_reading:
        lost_reason = NO_DATA_MESSAGE
    return gpu._replace(lost=lost_reason) if lost_reason else gpu


def find_xml_errors(element: Element) -> values.CellErrors:
    """Find the errors in elements, named by their paths, that are neither watched nor of users."""
    children = [child for child in element if child.tag not in USER_TEXT_ELEMENTS and child.tag not in WATCHED_ELEMENTS]
    leaves = [(child, leaf) for child in children for leaf in child.iter() if leaf.text]
    paths = [child.tag if leaf is child else f"{child.tag}/{leaf.tag}" for child, leaf in leaves]
    return values.find_cell_errors(paths, [leaf.text or "" for _, leaf in leaves])


def list_xml_texts(elements: Iterable[Element]) -> Iterator[str]:
    return chain.from_iterable(element.itertext() for element in elements)


def find_first_xml_value(children: dict[str, Element], sources: tuple[tuple[tuple[str, ...], ...], ...]) -> str:
    """Return the value of the first source that has one, else the first word for a missing value."""
    first_word = ""
    for paths in sources:
        cells = []
        for path in paths:
            # the text at the path, or of the first element on the way without children: `<remapped_rows>N/A</…>`
            element = children.get(path[0])
            for tag in path[1:]:
                if element is None or not len(element):
                    break
                element = element.find(tag)
            cells.append(xml_value_to_csv_cell(None if element is None else element.text))
        cell = cells[0]
        if len(cells) > 1:
            numbers = [number for number in map(values.parse_integer, cells) if number is not None]
            cell = str(sum(numbers)) if numbers else next(filter(None, cells), "")
        if values.parse_cell(cell) is not None:
            return cell
        first_word = first_word or cell
    return first_word or NOT_AVAILABLE_CELL


def xml_value_to_csv_cell(text: str | None) -> str:
    """Return a text as CSV has it: without a unit, and with brackets around words for a missing value."""
    text = (text or "").strip()
    if text in NO_VALUE_WORDS:
        return f"[{text}]"
    text = values.UNIT_SUFFIX.sub("", text)[:MAX_CELL_CHARACTERS]
    return text[:-1] if text[-1:] == "x" and text[:-1].isdecimal() else text  # 16x: the lanes of a link


def compute_xml_clock_reason_mask(children: dict[str, Element]) -> str:
    """Return why the clocks are not at their highest, as CSV has it; a missing value where it is not printed."""
    for name in ("clocks_event_reasons", "clocks_throttle_reasons"):
        reasons = children.get(name)
        if reasons is None:
            continue
        states = {child.tag.partition("_reason_")[2]: (child.text or "").strip() for child in reasons}
        if any(states.get(reason) in {"Active", "Not Active"} for reason in CLOCK_REASON_BITS):
            return f"0x{sum(bit for reason, bit in CLOCK_REASON_BITS.items() if states.get(reason) == 'Active'):016X}"
    return NOT_AVAILABLE_CELL


def build_xml_mig_instances(parent: Gpu, element: Element | None, log: XmlLog) -> list[MigInstance]:
    """Build the instances of a GPU; nvidia-smi does not report their utilization."""
    mig_devices = element.find("mig_devices") if element is not None else None
    if mig_devices is None:
        return []
    elements = list(islice(mig_devices.iterfind("mig_device"), MAX_INSTANCES))
    numbers = assign_distinct_xml_numbers(
        [values.parse_integer(xml_value_to_csv_cell(device.findtext("index"))) for device in elements]
    )
    names = log.instances.get(parent.uuid or "", {})
    instances: list[MigInstance] = []
    for number, device in zip(numbers, elements):
        profile, uuid = names.get(number, (None, None))
        error = values.find_reading_error(
            ("memory", text) for text in list_xml_texts(device.iterfind("fb_memory_usage"))
        )
        instance = Gpu(
            index=parent.index,
            uuid=uuid,
            name=parent.name,
            memory_used=values.parse_number(xml_value_to_csv_cell(device.findtext("fb_memory_usage/used"))),
            memory_total=values.parse_number(xml_value_to_csv_cell(device.findtext("fb_memory_usage/total"))),
            lost=parent.lost or values.find_lost_value(device.itertext()),
            place=f"{parent.index}:{number}",
            profile=profile,
            parent=parent,
            error=error.sentence if error else None,
            other_error=find_xml_errors(device).other,
        )
        instances.append((parse_xml_instance_ids(device), instance))
    return instances


def parse_xml_instance_ids(element: Element) -> tuple[str, str]:
    """Return the GPU instance and the compute instance within it."""
    gpu_instance, compute_instance = element.findtext("gpu_instance_id"), element.findtext("compute_instance_id")
    return xml_value_to_csv_cell(gpu_instance), xml_value_to_csv_cell(compute_instance)


def parse_xml_device_processes(
    gpu: Gpu, element: Element, log: XmlLog, limit: int, unreported: dict[str, str]
) -> list[GpuProcessRow]:
    """Return the processes on one GPU, identical ones once; adds to `unreported` and to the problems of the log.

    A word in the place of the processes means that there may be some.
    """
    instances = build_xml_mig_instances(gpu, element, log)
    processes: list[GpuProcessRow] = []
    lists = [*element.iterfind("processes"), *element.iterfind("compute_processes")]  # the latter up to driver 331
    infos = list(islice(chain.from_iterable(each.iterfind("process_info") for each in lists), limit + 1))
    if len(infos) > limit:
        problem = f"more than {MAX_PROCESSES} processes are reported; only the first {MAX_PROCESSES} are used"
        envelope.note_envelope_problem(log.problems, problem)
    for info in infos[:limit]:
        # like --query-compute-apps, leave out processes that only draw; old drivers print no type
        if (info.findtext("type") or "").strip() == "G":
            continue
        # a process whose instance is not known is on none of them, and then none of them is called free
        ids = parse_xml_instance_ids(info)
        same = [instance for key, instance in instances if key == ids]
        same = same or [instance for key, instance in instances if key[0] == ids[0]]
        name = (info.findtext("process_name") or "").strip()[:MAX_PROCESS_NAME_CHARACTERS]
        process = GpuProcessRow(
            gpu_key=(same[0] if len(same) == 1 else gpu).process_key,
            pid=values.parse_integer(xml_value_to_csv_cell(info.findtext("pid"))),
            used_memory=values.parse_number(xml_value_to_csv_cell(info.findtext("used_memory"))),
            name=None if name in NO_VALUE_WORDS else values.parse_cell(name),
        )
        if is_csv_process_hidden(process):
            unreported.setdefault(process.gpu_key, HIDDEN_PROCESS_MESSAGE)
        else:
            processes.append(process)
    words = [text for each in lists if (text := clean_excerpt(each.text or "", values.MAX_ERROR_CHARACTERS))]
    if words or not lists:
        unreported[gpu.process_key] = words[0] if words else NO_LIST_MESSAGE
    with_pid = dict.fromkeys(process for process in processes if process.pid is not None)
    return [*with_pid, *(process for process in processes if process.pid is None)]
