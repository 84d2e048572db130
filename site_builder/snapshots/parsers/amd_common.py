"""Parse what amd-smi and rocm-smi have in common."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.core.model import Gpu, SharedMemory
from site_builder.core.records import describe_json_error
from site_builder.core.terminal_text import clean_excerpt, clean_text
from site_builder.snapshots.parsers import values
from site_builder.snapshots.parsers.health_columns import HEALTH_COLUMNS, parse_health_columns

JSON_START = re.compile(r"^[ \t]*[\[{]", re.MULTILINE)
# Each start may cost a pass over the rest of the text.
MAX_JSON_STARTS = 8
MAX_LINE_CHARACTERS = 300
# A tool that has no JSON prints some hundred lines a GPU.
MAX_JSON_LINES = 50_000
# Longer integers are not readings, and take long to convert.
MAX_INTEGER_DIGITS = 25
MAX_FLAT_KEYS = 2000
MAX_JSON_DEPTH, MAX_FACT_DEPTH = 6, 2

VENDOR = "amd"
# More than any host has.
MAX_GPUS, MAX_PROCESSES = 2000, 10_000
MAX_MESSAGES = 50
MAX_MESSAGE_LINES = 2000
# The GPU of a process whose GPU is not reported.
UNKNOWN_GPU_KEY = f"{VENDOR} ?"
# Parts with these names only identify the GPUs.
IDENTITY_QUERIES = frozenset({"names", "static"})
HEX_NUMBER = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)
HIP_UUID = re.compile(r"GPU-([0-9a-f]{1,16})", re.IGNORECASE)
# amd-smi's own form has the unique id in three pieces, between the device's id and constants.
AMD_SMI_UUID = re.compile(r"([0-9a-f]{2})ff[0-9a-f]{4}-0000-1000-80([0-9a-f]{2})-([0-9a-f]{12})", re.IGNORECASE)
DEVICE_ID = re.compile(r"0x[0-9a-f]{1,8}", re.IGNORECASE)
# Models for which some drivers have no name.
NAMES_BY_DEVICE_ID = {
    **{"0x66a0": "AMD Radeon Instinct MI60", "0x66a1": "AMD Radeon Instinct MI50", "0x738c": "AMD Instinct MI100"},
    **{"0x7408": "AMD Instinct MI250X", "0x740c": "AMD Instinct MI250", "0x740f": "AMD Instinct MI210"},
    **{"0x74a0": "AMD Instinct MI300A", "0x74a1": "AMD Instinct MI300X", "0x74a5": "AMD Instinct MI325X"},
    **{"0x75a0": "AMD Instinct MI350X", "0x75a3": "AMD Instinct MI355X"},
}
# GPUs on the chip of the CPU (APUs), whose memory is that of the host: those that LLVM's list of architectures calls
# APU, and for tools that do not report one, their device ids (Raven to Barcelo; Van Gogh to Granite Ridge; Phoenix to
# Krackan). Names prove nothing, as drivers print `AMD Radeon Graphics` for cards that they do not know, and neither do
# sizes: GTT is half of the host's memory for cards too.
APU_ARCHITECTURES = frozenset(
    {"gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103"}
    | {"gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1170", "gfx1171", "gfx1172"}
)
APU_DEVICE_IDS = frozenset(
    {"0x15dd", "0x15d8", "0x1636", "0x1638", "0x164c", "0x15e7"}
    | {"0x163f", "0x1435", "0x164d", "0x1681", "0x1506", "0x164e", "0x13c0"}
    | {"0x15bf", "0x15c8", "0x164f", "0x1900", "0x1901", "0x150e", "0x1586", "0x1114", "0x1902"}
)
# No card has these; some had DDR3, and amd-smi used to print GDDR7 for LPDDR5.
APU_MEMORY_TYPE = re.compile(r"(?:LP)?DDR[45]X?", re.IGNORECASE)
# An APU whose whole HBM is reported as VRAM, and its GTT as a part of that.
MI300A = re.compile(r"\bMI300A\b")
# Facts that are in no column.
UNSHOWN_TEXTS = frozenset({"device", "sku", "architecture", "memory_type"})
# Lines that every one of these tools may print, and that say nothing about the GPUs.
IGNORED_LINE = re.compile(
    r"[=\-\s]*|=+ .* =+|.*\bNot supported\b.*|.*is/are in a low-power state.*|.*No JSON data to report.*|"
    r"GPU\[[0-9]+\]\s*:.*|KFD process information:?"
)
LANES_PATTERN = re.compile(r"x([0-9]{1,2})\b")
LINK_SPEED_PATTERN = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) ?GT/s", re.IGNORECASE)
# The generations of PCI Express by their speed in GT/s.
PCIE_GENERATIONS = {2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6}
ReadingParser = Callable[[object], "float | None"]
NOT_AVAILABLE_PATTERN = re.compile(r"N/?A\b.*|UNKNOWN|UNSUPPORTED|NOT SUPPORTED.*|NONE|NULL|NAN|-*", re.IGNORECASE)
MAX_TEXT_CHARACTERS = 200


class PrintedJson(NamedTuple):
    """The JSON values in a text, the lines around them, and what is wrong with the rest."""

    values: list[object]
    text_lines: list[str]
    problems: list[str]


class AmdIdentity(NamedTuple):
    """The number that HIP counts a GPU by, and its UUID."""

    index: int  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    uuid: str | None

    @property
    def process_key(self) -> str:
        """Return the same as Gpu.process_key."""
        return self.uuid or f"{VENDOR} {self.index}"


class ToolFieldNames(NamedTuple):
    """The names that a tool has had for each column, the best first, and the parsers of readings.

    `watched` are the names whose errors make a state unknown.
    """

    readings: dict[str, tuple[ReadingParser, list[str]]]
    texts: dict[str, list[str]]
    watched: Mapping[str, re.Pattern[str]]


def parse_amd_link_width(reading: object) -> float | None:
    """Parse the width of a link: `16`, or `0 (8.0GT/s x16)`."""
    match = LANES_PATTERN.search(reading) if isinstance(reading, str) else None
    return values.parse_reading(int(match[1]) if match else reading, "percent")


def parse_amd_link_generation(reading: object) -> float | None:
    """Return the generation of a link by its speed."""
    if isinstance(reading, dict):
        reading = f"{reading.get('value')} {reading.get('unit')}"
    match = LINK_SPEED_PATTERN.search(reading) if isinstance(reading, str) else None
    return PCIE_GENERATIONS.get(float(match[1])) if match else None


def load_amd_field_names(tool: str, memory_unit: str, watched: Mapping[str, re.Pattern[str]]) -> ToolFieldNames:
    """Load the names of a tool; sizes of memory without a unit are in its own, which is MB or bytes."""
    names: dict[str, list[str]] = orjson.loads((Path(__file__).parent / "amd_field_names.json").read_bytes())[tool]
    parsers: dict[str, ReadingParser] = {
        **dict.fromkeys(("memory.used", "memory.total", "gtt.used", "gtt.total"), values.build_mib_parser(memory_unit)),
        **dict.fromkeys(("utilization.gpu", "utilization.memory", "fan.speed"), values.parse_percent),
        **dict.fromkeys(("temperature.gpu", "temperature.memory"), values.parse_celsius),
        **dict.fromkeys(("power.draw", "power.limit"), values.parse_watts),
        **dict.fromkeys(("clocks.current.sm", "clocks.current.memory"), values.parse_mhz),
        "ecc.errors.corrected.volatile.total": values.parse_count,
        "ecc.errors.uncorrected.volatile.total": values.parse_count,
        "pcie.link.width.current": parse_amd_link_width,
        "pcie.link.gen.current": parse_amd_link_generation,
    }
    readings = {column: (parsers[column], names.pop(column)) for column in [*names] if column in parsers}
    return ToolFieldNames(readings, names, watched)


def extract_amd_json(lines: Sequence[str]) -> PrintedJson:
    """Find every JSON value that begins on a line of its own; a torn one costs all that follows it."""
    text = "\n".join(lines)
    printed = PrintedJson([], [], [])
    duplicate_names: set[str] = set()

    def build_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members: dict[str, object] = {}
        for name, value in pairs:
            if name in members and len(duplicate_names) < MAX_JSON_STARTS:
                duplicate_names.add(name)
            members[name] = value
        return members

    def parse_integer(digits: str) -> int | None:
        return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else None

    decoder = json.JSONDecoder(object_pairs_hook=build_object, parse_int=parse_integer)
    position, fault, is_torn = 0, "", False
    for _ in range(MAX_JSON_STARTS):
        start = JSON_START.search(text, position)
        if not start:
            break
        printed.text_lines.extend(split_amd_text_lines(text[position : start.start()]))
        try:
            value, position = decoder.raw_decode(text, start.end() - 1)
            printed.values.append(value)
            continue
        except json.JSONDecodeError as error:
            fault = fault or describe_json_error(error)
            is_torn = "\n" in text[start.end() : error.pos] or text[error.pos :].strip() == ""
        except (RecursionError, ValueError):
            fault, is_torn = "it is nested too deeply", True
        if is_torn:
            position = len(text)
            break
        end = text.find("\n", start.end())  # a line such as `[INFO] …`
        end = len(text) if end < 0 else end
        printed.text_lines.extend(split_amd_text_lines(text[position:end]))
        position = end
    printed.text_lines.extend(split_amd_text_lines(text[position:]))
    if text.count("\n", position) >= MAX_JSON_LINES:
        printed.problems.append(f"it has more than {MAX_JSON_LINES} lines; the rest is ignored")
    if fault and (is_torn or not printed.values):
        printed.problems.append(f"its JSON cannot be read: {fault}")
    for name in sorted(duplicate_names):
        printed.problems.append(f"“{clean_excerpt(name, 80)}” occurs twice; the last is used")
    return printed


def split_amd_text_lines(text: str) -> list[str]:
    lines = (line for line in text.split("\n", MAX_JSON_LINES)[:MAX_JSON_LINES] if line.strip())
    return [line[:MAX_LINE_CHARACTERS].rstrip() for line in lines]


def merge_amd_facts(known: dict[str, object], facts: Iterable[tuple[str, object]]) -> None:
    """Add facts; a missing value replaces none that is known, and nothing replaces an error."""
    for name, fact in facts:
        is_value = isinstance(fact, dict) or parse_amd_text(fact) is not None
        if name not in known or (is_value and not has_amd_error(known[name])):
            known[name] = fact


def has_amd_error(fact: object) -> bool:
    texts = list_amd_texts(fact)
    return any(values.LOST_WORDS.search(text) or values.ERROR_WORDS.search(text.lower()) for text in texts)


def flatten_amd_json(
    value: object, prefix: str = "", depth: int = 0, flat: dict[str, object] | None = None
) -> dict[str, object]:
    """Make `power.socket_power` of `{"power": {"socket_power": 7}}`; `{"value": 7, "unit": "W"}` is one reading."""
    flat = {} if flat is None else flat
    if isinstance(value, dict) and "value" not in value and depth < MAX_JSON_DEPTH:
        for name, inner in value.items():
            flatten_amd_json(inner, f"{prefix}.{name}".lstrip(".").lower()[:MAX_LINE_CHARACTERS], depth + 1, flat)
    elif len(flat) < MAX_FLAT_KEYS:
        flat[prefix] = value
    return flat


def parse_amd_uuid(*candidates: object) -> str | None:
    """Return `GPU-` and 16 digits, as ROCR_VISIBLE_DEVICES takes it; no GPU has the id 0."""
    for candidate in candidates:
        text = parse_amd_text(candidate) or ""
        if match := AMD_SMI_UUID.fullmatch(text):
            digits = "".join(match.groups())
        elif match := HIP_UUID.fullmatch(text) or HEX_NUMBER.fullmatch(text):
            digits = match[1]
        else:
            continue
        if int(digits, 16):
            return f"GPU-{int(digits, 16):016x}"
    return None


def assign_amd_identities(
    facts_by_gpu: Mapping[int, Mapping[str, object]], hip_name: str, node_name: str, uuid_names: Sequence[str]
) -> dict[int, AmdIdentity]:
    """Identify each GPU by the tool's number; the names are those of the facts in this tool.

    HIP counts the nodes of the driver, from the first that is a GPU; where neither is reported the tool's number
    counts. Partitions of one GPU have one UUID, which identifies none of them.
    """
    hip_numbers = {number: parse_amd_index(facts.get(hip_name)) for number, facts in facts_by_gpu.items()}
    nodes = {number: parse_amd_index(facts.get(node_name)) for number, facts in facts_by_gpu.items()}
    uuids = {number: parse_amd_uuid(*map(facts.get, uuid_names)) for number, facts in facts_by_gpu.items()}
    uuid_counts = Counter(uuids.values())
    first_node = min((node for node in nodes.values() if node is not None), default=0)
    used_numbers = [number for number in hip_numbers.values() if number is not None]
    # a GPU that HIP does not see must not change the numbers of those that it does see
    unused_numbers = count(max(used_numbers, default=0) + 1)
    indices: dict[int, int | None] = {
        number: next(unused_numbers) if hip_number is None else hip_number for number, hip_number in hip_numbers.items()
    }
    if not used_numbers or len(set(used_numbers)) < len(used_numbers):
        indices = {number: None if node is None else node - first_node for number, node in nodes.items()}
    if None in indices.values() or len(set(indices.values())) < len(indices):
        indices = {number: number for number in indices}
    return {
        number: AmdIdentity(indices[number] or 0, uuid if uuid_counts[uuid] == 1 else None)
        for number, uuid in uuids.items()
    }


def parse_amd_index(value: object) -> int | None:
    """Return a whole number below MAX_GPUS."""
    number = values.parse_count(value)
    return int(number) if number is not None and number < MAX_GPUS and number == int(number) else None


def build_amd_gpu(
    facts: Mapping[str, object], identity: AmdIdentity, field_names: ToolFieldNames, driver: str | None
) -> Gpu:
    """Build a GPU from all facts about it, under the tool's names."""
    readings: dict[str, float] = {}
    for column, (parse, names) in field_names.readings.items():
        value = next((value for name in names if (value := parse(facts.get(name))) is not None), None)
        if value is not None:
            readings[column] = value
    product_name = find_amd_product_name(facts, field_names.texts)
    memory_used, memory_total, shared_memory = find_amd_memory(facts, readings, field_names.texts)
    if shared_memory is None:  # of no use to a card
        readings = {column: value for column, value in readings.items() if not column.startswith("gtt.")}
    cells = {"index": str(identity.index), "uuid": identity.uuid, "name": product_name, "driver_version": driver}
    for column, names in field_names.texts.items():
        if column not in cells and column not in UNSHOWN_TEXTS:
            cells[column] = next((text for name in names if (text := parse_amd_text(facts.get(name)))), None)
    cells.update((column, f"{value:g}" if value < 1e5 else f"{value:.0f}") for column, value in readings.items())
    errors: dict[str, str] = {}
    for column in ("fan.speed", "power.draw"):  # their errors are warnings in the cell
        if column not in readings:
            error_words = map(parse_amd_error_words, map(facts.get, field_names.readings[column][1]))
            errors.update((column, words) for words in islice(filter(None, error_words), 1))
    cells.update(errors)
    available_cells = {column: cell for column, cell in cells.items() if cell is not None}

    texts = [(name, text) for name, fact in facts.items() for text in list_amd_texts(fact)]
    lost = values.find_lost_value(tuple([text for _, text in texts]))
    cell_errors = values.find_cell_errors([name for name, _ in texts], [text for _, text in texts])
    failed: list[tuple[str, str]] = []
    for name, fact in facts.items():
        if (words := parse_amd_error_words(fact)) is not None:
            failed += [(reading, words) for reading, pattern in field_names.watched.items() if pattern.match(name)]
    error = values.find_reading_error(failed)
    has_live_reading = readings.keys() & {"memory.used", "utilization.gpu", "temperature.gpu"}
    if error and not lost and not has_live_reading:
        lost = error.words
    return Gpu(
        index=identity.index,
        uuid=identity.uuid,
        name=product_name,
        memory_used=memory_used,
        memory_total=memory_total,
        utilization_gpu=readings.get("utilization.gpu"),
        utilization_memory=readings.get("utilization.memory"),
        temperature=readings.get("temperature.gpu"),
        power_draw=readings.get("power.draw"),
        power_limit=readings.get("power.limit"),
        clock=readings.get("clocks.current.sm"),
        fan_speed=readings.get("fan.speed"),
        bus_id=available_cells.get("pci.bus_id"),
        health=parse_health_columns(
            tuple([available_cells.get(column, "") for column in HEALTH_COLUMNS]),
            errors.get("fan.speed", cell_errors.fan),
            errors.get("power.draw", cell_errors.power),
        ),
        lost=lost,
        columns=tuple(available_cells),
        cells=tuple(available_cells.values()),
        vendor=VENDOR,
        error=error.sentence if error else None,
        other_error=None if error else cell_errors.other,
        shared_memory=shared_memory,
    )


def is_amd_apu(facts: Mapping[str, object], texts: Mapping[str, Sequence[str]]) -> bool:
    """Return True if a GPU certainly shares the memory of its host."""

    def find_text(field: str) -> str:
        return next((text for name in texts[field] if (text := parse_amd_text(facts.get(name)))), "")

    return (
        find_text("architecture").lower().partition(":")[0] in APU_ARCHITECTURES
        or find_text("device").lower() in APU_DEVICE_IDS
        or APU_MEMORY_TYPE.fullmatch(find_text("memory_type")) is not None
        or MI300A.search(find_amd_product_name(facts, texts) or "") is not None
    )


def find_amd_memory(
    facts: Mapping[str, object], readings: Mapping[str, float], texts: Mapping[str, Sequence[str]]
) -> tuple[float | None, float | None, SharedMemory | None]:
    """Return memory used and total, and how much of both is the host's: an APU uses VRAM and GTT (its part) alike."""
    used, total = readings.get("memory.used"), readings.get("memory.total")
    if not is_amd_apu(facts, texts):
        return used, total, None
    if MI300A.search(find_amd_product_name(facts, texts) or ""):
        return used, total, SharedMemory(total=0, used=0)
    gtt_used, gtt_total = readings.get("gtt.used"), readings.get("gtt.total")
    if total is None or gtt_total is None:  # VRAM alone is not what a program can have
        return None, None, SharedMemory()
    used = None if used is None or gtt_used is None else used + gtt_used
    return used, total + gtt_total, SharedMemory(total=gtt_total, used=gtt_used)


def list_amd_texts(fact: object, depth: int = 0) -> Iterator[str]:
    """Yield the texts of a fact such as `N/A`, `{"value": "N/A", "unit": "W"}` or `["N/A", "N/A"]`."""
    if isinstance(fact, str):
        yield fact
    elif isinstance(fact, (dict, list)) and depth < MAX_FACT_DEPTH:
        for entry in fact.values() if isinstance(fact, dict) else fact:
            yield from list_amd_texts(entry, depth + 1)


def find_amd_product_name(facts: Mapping[str, object], texts: Mapping[str, Sequence[str]]) -> str | None:
    """Return the name of a GPU; its device id is better than nothing."""

    def list_texts(field: str) -> list[str]:
        return [text for name in texts[field] if (text := parse_amd_text(facts.get(name)))]

    for text in list_texts("name"):
        if not DEVICE_ID.fullmatch(text):
            return text
    device_ids = [text.lower() for text in list_texts("device")]
    for device_id in device_ids:
        if device_id in NAMES_BY_DEVICE_ID:
            return NAMES_BY_DEVICE_ID[device_id]
    model_number = next(iter([*list_texts("sku"), *device_ids]), None)
    return f"AMD GPU {model_number}" if model_number else None


def filter_amd_messages(lines: Iterable[str]) -> list[str]:
    """Return the lines that somebody should know, each once: every query is answered with the same warning."""
    messages: dict[str, None] = {}
    in_traceback = False
    for line in islice(lines, MAX_MESSAGE_LINES):
        in_traceback = line.startswith("Traceback ") or (in_traceback and line.startswith(" "))
        if not in_traceback and not IGNORED_LINE.fullmatch(line.strip()):
            messages[line.strip()] = None
    return [*messages][:MAX_MESSAGES]


def parse_amd_text(value: object) -> str | None:
    """Return a word or a sentence; None where it says that there is no value."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    text = clean_text(str(value).strip()[:MAX_TEXT_CHARACTERS])  # JSON may contain escape codes for a terminal
    return None if NOT_AVAILABLE_PATTERN.fullmatch(text) else text


def parse_amd_error_words(reading: object) -> str | None:
    """Return the words that report an error instead of a reading; None for a reading or a missing value."""
    for entry in reading if isinstance(reading, list) else [reading]:
        value = entry.get("value") if isinstance(entry, dict) else entry
        if not isinstance(value, str) or values.parse_quantity(value) is not None:
            continue
        if (words := parse_amd_text(value)) and values.LETTER_PATTERN.search(words):
            return words[: values.MAX_ERROR_CHARACTERS]
    return None
