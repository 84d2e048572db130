"""What rocm-smi tells, as JSON or as text: one name for a thing in one version, another in the next."""

from __future__ import annotations

import re
from itertools import islice

from site_builder.core.model import Gpu, GpuProcess
from site_builder.snapshots.envelope import Pieces
from site_builder.snapshots.parse_result import LONGEST_NAME, Understood
from site_builder.snapshots.parsers import amd_common, amd_units, lenient_json
from site_builder.snapshots.parsers.rocm_smi_text import Text

CARD = re.compile(r"card([0-9]{1,4})")
PID = re.compile(r"pid([0-9]{1,10})")
COUNTED = re.compile(r"[0-9]{1,20}|UNKNOWN|N/A")
# The questions that only name the GPUs, for an answer about processes.
NAMING = frozenset({"names", "static"})
# What it prints for JSON where there is no process.
NOTHING = "No JSON data to report"
MIB = amd_units.mib_from("b")
TABLE: amd_common.Table = {
    "memory.used": (MIB, ("vram total used memory (b)",)),
    "memory.total": (MIB, ("vram total memory (b)",)),
    "utilization.gpu": (amd_units.percent, ("gpu use (%)",)),
    # the older name is not for how much of the memory is taken
    "utilization.memory": (amd_units.percent, ("gpu memory read/write activity (%)", "gpu memory use (%)")),
    "temperature.gpu": (
        amd_units.celsius,
        ("temperature (sensor edge) (c)", "temperature (sensor junction) (c)", "temperature (sensor #1) (c)"),
    ),
    "temperature.memory": (amd_units.celsius, ("temperature (sensor memory) (c)",)),
    "power.draw": (
        amd_units.watts,
        (
            "average graphics package power (w)",
            "current socket graphics package power (w)",
            "current graphics package power (w)",
        ),
    ),
    "power.limit": (amd_units.watts, ("max graphics package power (w)",)),
    "clocks.current.sm": (amd_units.mhz, ("sclk clock speed", "sclk clock level")),
    "clocks.current.memory": (amd_units.mhz, ("mclk clock speed", "mclk clock level")),
    "fan.speed": (amd_units.percent, ("fan speed (%)",)),
    "pcie.link.width.current": (amd_units.lanes, ("pcie clock level",)),
    "pcie.link.gen.current": (amd_units.generation, ("pcie clock level",)),
}
TEXTS: amd_common.Texts = {
    "name": ("device name", "card series", "card model"),
    "device": ("device id", "gpu id", "card model"),
    "sku": ("card sku",),
    "pci.bus_id": ("pci bus",),
    "serial": ("serial number",),
    "vbios_version": ("vbios version",),
}
WATCHED = {
    "memory": re.compile(r"(?:vis_)?vram total|gtt total|gpu memory allocated"),
    "use": re.compile(r"gpu use \(%\)|gpu memory (?:use|read/write)|memory activity"),
    "temperature": re.compile(r"temperature "),
}
NAMES = amd_common.Names(TABLE, TEXTS, WATCHED)


class Told:
    """All that was answered: of each card by its number, of the system, and of processes."""

    def __init__(self, pieces: Pieces) -> None:
        """Of all questions together; what is told twice counts as it was told last."""
        self.cards: dict[int, dict[str, object]] = {}
        self.system: dict[str, object] = {}
        self.cards_of: dict[int, list[int]] = {}
        self.count_of: dict[int, int] = {}
        self.problems: list[str] = []
        self.words: list[str] = []
        self.understood = True
        self.processes_told = False
        for name, piece in pieces.items():
            printed = lenient_json.read(piece.lines)
            text = Text().read(printed.words)
            self.words += text.words
            self.problems += printed.problems
            for value in printed.values:
                self.take(value)
            for number, told in text.cards.items():
                self.add(number, told)
            self.system.update(text.system)
            self.cards_of.update(text.cards_of)
            self.count_of.update(text.count_of)
            listed = text.told_processes or any(NOTHING in one for one in text.words)
            answered = bool(printed.values or listed)
            self.understood = self.understood and (answered or bool(text.cards)) and not printed.problems
            listed = listed or any(map(lists_processes, printed.values))
            self.processes_told = self.processes_told or (listed and name not in NAMING)

    def take(self, value: object) -> None:
        """`{"card0": {…}, "system": {…}}`."""
        for name, told in value.items() if isinstance(value, dict) else ():
            if not isinstance(told, dict):
                continue
            facts = {str(key).rstrip(": ").lower(): one for key, one in told.items()}
            if match := CARD.fullmatch(name):
                self.add(int(match[1]), facts)
            elif name == "system":
                self.system.update(facts)

    def add(self, number: int, told: dict[str, object]) -> None:
        """What is told of a card; that something is not told is no reason to forget it."""
        if number not in self.cards and len(self.cards) >= amd_common.MOST_GPUS:
            return
        known = self.cards.setdefault(number, {})
        known.update((key, one) for key, one in told.items() if key not in known or amd_units.text(one) is not None)

    def identities(self) -> dict[int, amd_common.Identity]:
        """What names each card."""
        return amd_common.identities(
            (number, None, facts.get("node id"), amd_common.uuid_of(facts.get("unique id")))
            for number, facts in self.cards.items()
        )


def lists_processes(value: object) -> bool:
    """Return whether an answer in JSON is about processes: they stand under `system`, or it is empty."""
    return isinstance(value, dict) and (not value or isinstance(value.get("system"), dict))


def gpus(pieces: Pieces) -> Understood[Gpu]:
    """Every card."""
    told = Told(pieces)
    driver = amd_units.text(told.system.get("driver version"))
    who = told.identities()
    found = tuple(amd_common.gpu(facts, who[number], NAMES, driver) for number, facts in told.cards.items())
    return Understood(found, amd_common.news(told.words), told.problems, told.understood)


def processes(pieces: Pieces) -> Understood[GpuProcess]:
    """Every process on each of its cards; how much it has on which of several is not told."""
    told = Told(pieces)
    who = told.identities()
    found: list[GpuProcess] = []
    pids = dict.fromkeys([*told.cards_of, *(int(one[1]) for key in told.system if (one := PID.fullmatch(key)))])
    problems = list(told.problems)
    if len(pids) > amd_common.MOST_PROCESSES:
        problems.append(f"{len(pids)} processes are told; only the first {amd_common.MOST_PROCESSES} count")
    for pid in islice(pids, amd_common.MOST_PROCESSES):
        name, count, memory = process(told.system.get(f"pid{pid}"))
        cards = told.cards_of.get(pid)
        if cards is None:
            cards = [*who] if len(who) == 1 and count else []
        handles = [who[one].handle if one in who else f"{amd_common.VENDOR} {one}" for one in dict.fromkeys(cards)]
        unsaid = not handles and (memory or (count != 0 and pid not in told.cards_of))
        if unsaid or told.count_of.get(pid, 0) > len(handles):
            handles.append(amd_common.SOMEWHERE)
        found += [GpuProcess(one, pid, memory if len(handles) == 1 else None, name) for one in handles]
        if len(found) > amd_common.MOST_PROCESSES:
            break
    answered = told.understood and told.processes_told and len(problems) == len(told.problems)
    return Understood(tuple(found), amd_common.news(told.words), problems, answered)


def process(row: object) -> tuple[str | None, int | None, float | None]:
    """Its name, on how many cards it is, and its memory in MiB: `python3, 1, 177386942464, 0, 4`."""
    cells = (amd_units.text(row) or "").split(", ")
    numbers: list[str] = []
    while len(cells) > 1 and len(numbers) < 4 and COUNTED.fullmatch(cells[-1].strip()):
        numbers.insert(0, cells.pop().strip())
    name = amd_units.text(", ".join(cells))
    count, memory = [*numbers, "", ""][:2]
    return name and name[:LONGEST_NAME], amd_common.whole(count), MIB(memory)
