"""What amd-smi and rocm-smi have in common."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from typing import NamedTuple

from site_builder.core.model import Gpu
from site_builder.core.terminal_text import clean_excerpt, describe_json_error
from site_builder.snapshots.parsers import values
from site_builder.snapshots.parsers.values import find_lost_words, find_reading_error

JSON_START = re.compile(r"^[ \t]*[\[{]", re.MULTILINE)
# Each may cost a look at the whole rest of the text.
MAX_JSON_STARTS = 8
MAX_LINE_CHARACTERS = 300
# A tool that has no JSON prints some hundred lines a GPU.
MAX_JSON_LINES = 50_000
# What is longer is no reading, and takes long to understand.
MAX_INTEGER_DIGITS = 25
MAX_FLAT_KEYS = 2000
MAX_JSON_DEPTH = 6


class PrintedJson(NamedTuple):
    """The values that stand in a text, the lines that are none, and what is wrong with the rest."""

    values: list[object]
    text_lines: list[str]
    problems: list[str]


def parse_printed_json(lines: Sequence[str]) -> PrintedJson:
    """Every value that begins on a line of its own; what is torn costs all that follows it."""
    text = "\n".join(lines)
    found = PrintedJson([], [], [])
    doubled: set[str] = set()
    decoder = json.JSONDecoder(
        object_pairs_hook=lambda pairs: build_json_object(pairs, doubled), parse_int=parse_json_integer
    )
    place, fault = 0, ""
    for _ in range(MAX_JSON_STARTS):
        opening = JSON_START.search(text, place)
        if not opening:
            break
        found.text_lines.extend(split_text_lines(text[place : opening.start()]))
        try:
            value, place = decoder.raw_decode(text, opening.end() - 1)
            found.values.append(value)
            continue
        except json.JSONDecodeError as error:
            fault = fault or describe_json_error(error)
            torn = "\n" in text[opening.end() : error.pos] or text[error.pos :].strip() == ""
        except (RecursionError, ValueError):
            fault, torn = "it is too deep", True
        if torn:
            place = len(text)
            break
        end = text.find("\n", opening.end())  # a line such as `[INFO] …`
        end = len(text) if end < 0 else end
        found.text_lines.extend(split_text_lines(text[place:end]))
        place = end
    found.text_lines.extend(split_text_lines(text[place:]))
    if text.count("\n", place) > MAX_JSON_LINES:
        found.problems.append(f"it has more than {MAX_JSON_LINES} lines; the rest does not count")
    if fault and (not found.values or place == len(text)):
        found.problems.append(f"its JSON cannot be read: {fault}")
    found.problems.extend(
        f"“{clean_excerpt(name, 80)}” stands in it twice; the last counts" for name in sorted(doubled)
    )
    return found


def split_text_lines(text: str) -> list[str]:
    """The lines of what is no JSON."""
    lines = (line for line in text.split("\n", MAX_JSON_LINES)[:MAX_JSON_LINES] if line.strip())
    return [line[:MAX_LINE_CHARACTERS].rstrip() for line in lines]


def build_json_object(pairs: list[tuple[str, object]], doubled: set[str]) -> dict[str, object]:
    """An object, and the names that it has twice."""
    made: dict[str, object] = {}
    for name, value in pairs:
        if name in made and len(doubled) < MAX_JSON_STARTS:
            doubled.add(name)
        made[name] = value
    return made


def parse_json_integer(digits: str) -> int | None:
    """A number that may be a reading."""
    return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else None


def flatten_json(
    value: object, prefix: str = "", deep: int = 0, found: dict[str, object] | None = None
) -> dict[str, object]:
    """`{"power": {"socket_power": 7}}` is `power.socket_power`; `{"value": 7, "unit": "W"}` is one reading."""
    told: dict[str, object] = {} if found is None else found
    if isinstance(value, dict) and "value" not in value and deep < MAX_JSON_DEPTH:
        for name, inner in value.items():
            flatten_json(inner, f"{prefix}.{name}".lstrip(".").lower()[:MAX_LINE_CHARACTERS], deep + 1, told)
    elif len(told) < MAX_FLAT_KEYS:
        told[prefix] = value
    return told


VENDOR = "amd"
# More than any host has, so that whoever counts them can say so.
MAX_GPUS, MAX_PROCESSES = 2000, 10_000
MAX_MESSAGES = 50
# So many lines are looked through for them.
MAX_LINES = 2000
# The GPU of a process of which it is not told.
UNKNOWN_GPU_KEY = f"{VENDOR} ?"
HEX_NUMBER = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)
HIP_UUID = re.compile(r"GPU-([0-9a-f]{1,16})", re.IGNORECASE)
# amd-smi's own form has the unique id in three pieces, between the device's id and constants.
AMD_SMI_UUID = re.compile(r"([0-9a-f]{2})ff[0-9a-f]{4}-0000-1000-80([0-9a-f]{2})-([0-9a-f]{12})", re.IGNORECASE)
DEVICE_ID = re.compile(r"0x[0-9a-f]{1,8}", re.IGNORECASE)
# What a driver that has no name for them calls by their numbers.
NAMES_BY_DEVICE_ID = {
    **{"0x66a0": "AMD Radeon Instinct MI60", "0x66a1": "AMD Radeon Instinct MI50", "0x738c": "AMD Instinct MI100"},
    **{"0x7408": "AMD Instinct MI250X", "0x740c": "AMD Instinct MI250", "0x740f": "AMD Instinct MI210"},
    **{"0x74a0": "AMD Instinct MI300A", "0x74a1": "AMD Instinct MI300X", "0x74a5": "AMD Instinct MI325X"},
    **{"0x75a0": "AMD Instinct MI350X", "0x75a3": "AMD Instinct MI355X"},
}
# What every one of these tools may print beside its answer, and what is no news.
IGNORED_LINE = re.compile(
    r"[=\-\s]*|=+ .* =+|.*\bNot supported\b.*|.*is/are in a low-power state.*|.*No JSON data to report.*|"
    r"GPU\[[0-9]+\]\s*:.*|KFD process information:?"
)
ReadingParser = Callable[[object], "float | None"]
# Of each column, how it is read, and the names that it has had, the best first.
ReadingTable = Mapping[str, "tuple[ReadingParser, tuple[str, ...]]"]
TextTable = Mapping[str, "tuple[str, ...]"]
READING_COLUMNS = (
    *("memory.used", "memory.total", "utilization.gpu", "utilization.memory", "temperature.gpu"),
    *("power.draw", "power.limit", "clocks.current.sm"),
)


class AmdIdentity(NamedTuple):
    """What names a GPU: the number that HIP counts it by, and its UUID."""

    index: int  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    uuid: str | None

    @property
    def process_key(self) -> str:
        """As Gpu.handle has it."""
        return self.uuid or f"{VENDOR} {self.index}"


def parse_amd_uuid(*told: object) -> str | None:
    """`GPU-` and 16 digits, as ROCR_VISIBLE_DEVICES takes it; no GPU has the id 0."""
    for one in told:
        text = values.parse_amd_text(one) or ""
        if match := AMD_SMI_UUID.fullmatch(text):
            digits = "".join(match.groups())
        elif match := HIP_UUID.fullmatch(text) or HEX_NUMBER.fullmatch(text):
            digits = match[1]
        else:
            continue
        if int(digits, 16):
            return f"GPU-{int(digits, 16):016x}"
    return None


def assign_identities(told: Iterable[tuple[int, object, object, str | None]]) -> dict[int, AmdIdentity]:
    """Of each GPU by the tool's number; told are that, HIP's number, the node of the driver, and the UUID.

    HIP counts the nodes of the driver, from the first that is a GPU; where neither is told the tool's number counts.
    Parts of one GPU have one id, which names none of them.
    """
    rows = list(told)
    hip = {number: parse_index(one) for number, one, _, _ in rows}
    nodes = {number: parse_index(one) for number, _, one, _ in rows}
    uuids = Counter(uuid for *_, uuid in rows)
    first = min((node for node in nodes.values() if node is not None), default=0)
    known = [one for one in hip.values() if one is not None]
    # one that HIP does not see must not change the numbers of those that it does see
    unseen = count(max(known, default=0) + 1)
    indices: dict[int, int | None] = {number: next(unseen) if one is None else one for number, one in hip.items()}
    if not known or len(set(known)) < len(known):
        indices = {number: None if node is None else node - first for number, node in nodes.items()}
    if None in indices.values() or len(set(indices.values())) < len(indices):
        indices = {number: number for number in indices}
    return {
        number: AmdIdentity(indices[number] or 0, uuid if uuids[uuid] == 1 else None) for number, _, _, uuid in rows
    }


def parse_index(told: object) -> int | None:
    """A number that counts."""
    value = values.parse_count(told)
    return int(value) if value is not None and value < MAX_GPUS and value == int(value) else None


class ToolFieldNames(NamedTuple):
    """What a tool calls things: readings, texts, and the readings whose errors make the state of a GPU unknown."""

    readings: ReadingTable
    texts: TextTable
    watched: Mapping[str, re.Pattern[str]]


def build_amd_gpu(facts: Mapping[str, object], who: AmdIdentity, names_of: ToolFieldNames, driver: str | None) -> Gpu:
    """A GPU, from all that was told of it by the tool's names."""
    table, texts = names_of.readings, names_of.texts
    found: dict[str, float] = {}
    for column, (reading, names) in table.items():
        value = next((value for name in names if (value := reading(facts.get(name))) is not None), None)
        if value is not None:
            found[column] = value
    cells = {
        "index": str(who.index),
        "uuid": who.uuid,
        "name": find_product_name(facts, texts),
        "driver_version": driver,
    }
    for column, names in texts.items():
        if column not in cells and column not in {"device", "sku"}:
            cells[column] = next((text for name in names if (text := values.parse_amd_text(facts.get(name)))), None)
    cells.update((column, f"{value:g}" if value < 1e5 else f"{value:.0f}") for column, value in found.items())
    for column in ("fan.speed", "power.draw"):  # their errors are warnings, and stand in the cell
        if column not in found:
            failed = map(values.parse_amd_error_words, map(facts.get, table[column][1]))
            cells[column] = next(filter(None, failed), None)
    told = {column: cell for column, cell in cells.items() if cell is not None}
    used, total, use, access, temperature, draw, limit, clock = [found.get(column) for column in READING_COLUMNS]
    readings = (used, total, use, access, temperature, draw, limit, clock)
    lost, error = find_amd_errors(facts, names_of.watched)
    if error and not lost and used is None and use is None and temperature is None:
        lost = error[1]
    words = f"its {error[0]} cannot be read: {error[1]}" if error else None
    row = (tuple(told), tuple(told.values()), VENDOR)
    return Gpu(who.index, who.uuid, cells["name"], *readings, lost, *row, error=words)


def find_amd_errors(
    facts: Mapping[str, object], watched: Mapping[str, re.Pattern[str]]
) -> tuple[str | None, tuple[str, str] | None]:
    """Return the words that call a GPU lost, and which of its readings failed with what words."""
    lost = find_lost_words(one for told in facts.values() for one in list_texts_in(told))
    failed: list[tuple[str, str]] = []
    for name, told in facts.items():
        if (words := values.parse_amd_error_words(told)) is not None:
            failed += [(what, words) for what, pattern in watched.items() if pattern.match(name)]
    return lost, find_reading_error(failed)


def list_texts_in(told: object) -> Iterable[str]:
    """Return the texts of a fact: `N/A`, `{"value": "N/A", "unit": "W"}`, `["N/A", "N/A"]`."""
    inner = told.values() if isinstance(told, dict) else told if isinstance(told, list) else [told]
    return [one for one in inner if isinstance(one, str)]


def find_product_name(facts: Mapping[str, object], texts: TextTable) -> str | None:
    """What it is called; a number is no name, but better than nothing."""
    told = [text for name in texts["name"] if (text := values.parse_amd_text(facts.get(name)))]
    named = next((text for text in told if not DEVICE_ID.fullmatch(text)), None)
    if named:
        return named
    ids = [text.lower() for name in texts["device"] if (text := values.parse_amd_text(facts.get(name)))]
    known = next((NAMES_BY_DEVICE_ID[one] for one in ids if one in NAMES_BY_DEVICE_ID), None)
    sku = next((text for name in texts["sku"] if (text := values.parse_amd_text(facts.get(name)))), None)
    return known or (f"AMD GPU {sku or ids[0]}" if sku or ids else None)


def filter_messages(words: Iterable[str]) -> list[str]:
    """What a tool said that somebody should know."""
    told: dict[str, None] = {}  # each once: every question is answered with the same warning
    fallen = False
    for line in islice(words, MAX_LINES):
        # of a program that fell over its last words count, not where it stood
        fallen = line.startswith("Traceback ") or (fallen and line.startswith(" "))
        if not fallen and not IGNORED_LINE.fullmatch(line.strip()):
            told[line.strip()] = None
    return [*told][:MAX_MESSAGES]
