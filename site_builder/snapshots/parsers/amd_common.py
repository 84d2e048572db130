"""What both of AMD's tools have in common: how a GPU is called, and how readings become one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count, islice
from typing import NamedTuple

from site_builder.core.model import Gpu
from site_builder.snapshots.parsers import amd_units
from site_builder.snapshots.parsers.csv_values import find_lost_words, find_reading_error

VENDOR = "amd"
# More than any host has, so that whoever counts them can say so.
MOST_GPUS, MOST_PROCESSES = 2000, 10_000
MOST_WORDS = 50
# So many lines are looked through for them.
MOST_LINES = 2000
# The GPU of a process of which it is not told.
SOMEWHERE = f"{VENDOR} ?"
HEX = re.compile(r"(?:0x)?([0-9a-f]{1,16})", re.IGNORECASE)
HIP_UUID = re.compile(r"GPU-([0-9a-f]{1,16})", re.IGNORECASE)
# amd-smi's own form has the unique id in three pieces, between the device's id and constants.
OWN_UUID = re.compile(r"([0-9a-f]{2})ff[0-9a-f]{4}-0000-1000-80([0-9a-f]{2})-([0-9a-f]{12})", re.IGNORECASE)
ID = re.compile(r"0x[0-9a-f]{1,8}", re.IGNORECASE)
# What a driver that has no name for them calls by their numbers.
NAMES = {
    **{"0x66a0": "AMD Radeon Instinct MI60", "0x66a1": "AMD Radeon Instinct MI50", "0x738c": "AMD Instinct MI100"},
    **{"0x7408": "AMD Instinct MI250X", "0x740c": "AMD Instinct MI250", "0x740f": "AMD Instinct MI210"},
    **{"0x74a0": "AMD Instinct MI300A", "0x74a1": "AMD Instinct MI300X", "0x74a5": "AMD Instinct MI325X"},
    **{"0x75a0": "AMD Instinct MI350X", "0x75a3": "AMD Instinct MI355X"},
}
# What every one of these tools may print beside its answer, and what is no news.
NO_NEWS = re.compile(
    r"[=\-\s]*|=+ .* =+|.*\bNot supported\b.*|.*is/are in a low-power state.*|.*No JSON data to report.*|"
    r"GPU\[[0-9]+\]\s*:.*|KFD process information:?"
)
Reading = Callable[[object], "float | None"]
# Of each column, how it is read, and the names that it has had, the best first.
Table = Mapping[str, "tuple[Reading, tuple[str, ...]]"]
Texts = Mapping[str, "tuple[str, ...]"]
FIELDS = (
    *("memory.used", "memory.total", "utilization.gpu", "utilization.memory", "temperature.gpu"),
    *("power.draw", "power.limit", "clocks.current.sm"),
)


class Identity(NamedTuple):
    """What names a GPU: the number that HIP counts it by, and its UUID."""

    index: int  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    uuid: str | None

    @property
    def handle(self) -> str:
        """As Gpu.handle has it."""
        return self.uuid or f"{VENDOR} {self.index}"


def uuid_of(*told: object) -> str | None:
    """`GPU-` and 16 digits, as ROCR_VISIBLE_DEVICES takes it; no GPU has the id 0."""
    for one in told:
        text = amd_units.text(one) or ""
        if match := OWN_UUID.fullmatch(text):
            digits = "".join(match.groups())
        elif match := HIP_UUID.fullmatch(text) or HEX.fullmatch(text):
            digits = match[1]
        else:
            continue
        if int(digits, 16):
            return f"GPU-{int(digits, 16):016x}"
    return None


def identities(told: Iterable[tuple[int, object, object, str | None]]) -> dict[int, Identity]:
    """Of each GPU by the tool's number; told are that, HIP's number, the node of the driver, and the UUID.

    HIP counts the nodes of the driver, from the first that is a GPU; where neither is told the tool's number counts.
    Parts of one GPU have one id, which names none of them.
    """
    rows = list(told)
    hip = {number: whole(one) for number, one, _, _ in rows}
    nodes = {number: whole(one) for number, _, one, _ in rows}
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
    return {number: Identity(indices[number] or 0, uuid if uuids[uuid] == 1 else None) for number, _, _, uuid in rows}


def whole(told: object) -> int | None:
    """A number that counts."""
    value = amd_units.count(told)
    return int(value) if value is not None and value < MOST_GPUS and value == int(value) else None


class Names(NamedTuple):
    """What a tool calls things: readings, texts, and the readings whose errors make the state of a GPU unknown."""

    table: Table
    texts: Texts
    watched: Mapping[str, re.Pattern[str]]


def gpu(facts: Mapping[str, object], who: Identity, names_of: Names, driver: str | None) -> Gpu:
    """A GPU, from all that was told of it by the tool's names."""
    table, texts = names_of.table, names_of.texts
    found: dict[str, float] = {}
    for column, (reading, names) in table.items():
        value = next((value for name in names if (value := reading(facts.get(name))) is not None), None)
        if value is not None:
            found[column] = value
    cells = {"index": str(who.index), "uuid": who.uuid, "name": name_of(facts, texts), "driver_version": driver}
    for column, names in texts.items():
        if column not in cells and column not in {"device", "sku"}:
            cells[column] = next((text for name in names if (text := amd_units.text(facts.get(name)))), None)
    cells.update((column, f"{value:g}" if value < 1e5 else f"{value:.0f}") for column, value in found.items())
    for column in ("fan.speed", "power.draw"):  # their errors are warnings, and stand in the cell
        if column not in found:
            failed = map(amd_units.error_words, map(facts.get, table[column][1]))
            cells[column] = next(filter(None, failed), None)
    told = {column: cell for column, cell in cells.items() if cell is not None}
    used, total, use, access, temperature, draw, limit, clock = [found.get(column) for column in FIELDS]
    readings = (used, total, use, access, temperature, draw, limit, clock)
    lost, error = errors_in(facts, names_of.watched)
    if error and not lost and used is None and use is None and temperature is None:
        lost = error[1]
    words = f"its {error[0]} cannot be read: {error[1]}" if error else None
    row = (tuple(told), tuple(told.values()), VENDOR)
    return Gpu(who.index, who.uuid, cells["name"], *readings, lost, *row, error=words)


def errors_in(
    facts: Mapping[str, object], watched: Mapping[str, re.Pattern[str]]
) -> tuple[str | None, tuple[str, str] | None]:
    """Return the words that call a GPU lost, and which of its readings failed with what words."""
    lost = find_lost_words(one for told in facts.values() for one in texts_in(told))
    failed: list[tuple[str, str]] = []
    for name, told in facts.items():
        if (words := amd_units.error_words(told)) is not None:
            failed += [(what, words) for what, pattern in watched.items() if pattern.match(name)]
    return lost, find_reading_error(failed)


def texts_in(told: object) -> Iterable[str]:
    """Return the texts of a fact: `N/A`, `{"value": "N/A", "unit": "W"}`, `["N/A", "N/A"]`."""
    inner = told.values() if isinstance(told, dict) else told if isinstance(told, list) else [told]
    return [one for one in inner if isinstance(one, str)]


def name_of(facts: Mapping[str, object], texts: Texts) -> str | None:
    """What it is called; a number is no name, but better than nothing."""
    told = [text for name in texts["name"] if (text := amd_units.text(facts.get(name)))]
    named = next((text for text in told if not ID.fullmatch(text)), None)
    if named:
        return named
    ids = [text.lower() for name in texts["device"] if (text := amd_units.text(facts.get(name)))]
    known = next((NAMES[one] for one in ids if one in NAMES), None)
    sku = next((text for name in texts["sku"] if (text := amd_units.text(facts.get(name)))), None)
    return known or (f"AMD GPU {sku or ids[0]}" if sku or ids else None)


def news(words: Iterable[str]) -> list[str]:
    """What a tool said that somebody should know."""
    told: dict[str, None] = {}  # each once: every question is answered with the same warning
    fallen = False
    for line in islice(words, MOST_LINES):
        # of a program that fell over its last words count, not where it stood
        fallen = line.startswith("Traceback ") or (fallen and line.startswith(" "))
        if not fallen and not NO_NEWS.fullmatch(line.strip()):
            told[line.strip()] = None
    return [*told][:MOST_WORDS]
