"""Parse the output of rocm-smi."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.snapshots.envelope import MAX_NAME_CHARACTERS, ToolOutput, ToolParts
from site_builder.snapshots.parsers import amd_common, values
from site_builder.snapshots.parsers.amd_common import MAX_GPUS
from site_builder.snapshots.parsers.values import LOST_WORDS

CARD_LINE = re.compile(r"GPU\[([0-9]{1,4})\]\s*: ?([^:]{1,100}):(.*)")
CARD_MESSAGE = re.compile(r"(?:ERROR: )?GPU\[([0-9]{1,4})\]\s*: ?(.{1,200})")
DRIVER_LINE = re.compile(r"Driver version: ?(\S.*)")
PID_LINE = re.compile(r"PID ([0-9]{1,10}) is using ([0-9]{1,4}) DRM device\(s\):?")
NUMBER_LIST = re.compile(r"[0-9]{1,4}(?:[ ,]+[0-9]{1,4})*[ ,]*")
PID_CELL, COUNT_CELL, NUMBER_CELL = (
    re.compile(one) for one in (r"[0-9]{1,10}", r"[0-9]{1,4}|UNKNOWN|N/A", r"[0-9]{1,20}|UNKNOWN|N/A")
)
NO_PROCESS_MESSAGE = "No KFD PIDs currently running"
PROCESS_TABLE_HEADER = "PROCESS NAME"
CELL_SEPARATOR = re.compile(r"\s{2,}|\t")
DEVICE_ID = re.compile(r"0x[0-9a-f]{1,8}", re.IGNORECASE)
# The columns of the table that rocm-smi prints when it is asked for nothing, by how their names begin.
TABLE_COLUMNS = {
    "AvgPwr": "average graphics package power (w)",
    "Power": "average graphics package power (w)",
    "SCLK": "sclk clock speed",
    "MCLK": "mclk clock speed",
    "Fan": "fan speed (%)",
    "PwrCap": "max graphics package power (w)",
    "VRAM%": "gpu memory allocated (vram%)",
    "GPU%": "gpu use (%)",
    "Node": "node id",
    "[Model": "device id",
    "IDs": "device id",
}


class RocmSmiText:
    """The cards, what is told of the system, on which cards and on how many a process is; the words that are left."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.facts_by_card: dict[int, dict[str, object]] = {}
        self.system_facts: dict[str, object] = {}
        self.cards_by_pid: dict[int, list[int]] = {}
        self.card_count_by_pid: dict[int, int] = {}
        self.has_process_list = False
        self.messages: list[str] = []
        self.table_header: list[str] = []
        self.current_card: dict[str, object] | None = None

    def find_or_add_card(self, number: int) -> dict[str, object]:
        """The card of that number."""
        if len(self.facts_by_card) >= MAX_GPUS:
            return self.facts_by_card.get(number, {})
        return self.facts_by_card.setdefault(number, {})

    def parse_lines(self, lines: Iterable[str]) -> RocmSmiText:
        """Understand each line by its form."""
        user = None
        for line in lines:
            if user is not None and NUMBER_LIST.fullmatch(line.strip()):
                self.cards_by_pid[user] += [int(one) for one in re.findall("[0-9]+", line)]
                continue
            user = None
            if match := CARD_LINE.match(line.strip()):
                self.find_or_add_card(int(match[1]))[match[2].strip().lower()] = match[3].strip()
            elif match := DRIVER_LINE.fullmatch(line.strip()):
                self.system_facts["driver version"] = match[1]
            elif match := PID_LINE.fullmatch(line.strip()):
                self.has_process_list = True
                user = int(match[1])
                self.cards_by_pid[user], self.card_count_by_pid[user] = [], int(match[2])
            elif NO_PROCESS_MESSAGE in line or PROCESS_TABLE_HEADER in line:
                self.has_process_list = True
            elif row := split_process_row(line) if self.has_process_list else None:
                self.system_facts[f"pid{row[0]}"] = ", ".join(row[1:])
            elif not self.parse_table_line(line):
                if (match := CARD_MESSAGE.match(line.strip())) and LOST_WORDS.search(match[2]):
                    self.find_or_add_card(int(match[1]))["message"] = match[2].strip()
                self.messages.append(line)
        return self

    def parse_table_line(self, line: str) -> bool:
        """Whether it is a line of the table of all cards, which has the name of a card below its readings."""
        cells = CELL_SEPARATOR.split(re.sub(r",\s+", ",", line.strip()))
        if "GPU%" in cells and cells[0] in {"GPU", "Device"}:
            self.table_header = [one.split(" ")[0] for one in cells]
            self.temperature_sensor = "junction" if "unction" in line else "edge"
        elif self.table_header and not self.facts_by_card and "(Junction)" in cells:
            self.temperature_sensor = "junction"
        elif self.table_header and cells[0].isdecimal() and len(cells[0]) <= 4 and len(cells) == len(self.table_header):
            self.current_card = self.find_or_add_card(int(cells[0]))
            for name, cell in zip(self.table_header, cells):
                key = (
                    f"temperature (sensor {self.temperature_sensor}) (c)" if name == "Temp" else TABLE_COLUMNS.get(name)
                )
                if key == "device id":
                    match = DEVICE_ID.search(cell)
                    cell = match[0] if match else ""  # noqa: PLW2901 # that of the two
                if key:
                    self.current_card[key] = cell
                elif LOST_WORDS.search(cell):
                    self.current_card["message"] = cell
        elif self.current_card is not None and line[:1] == " " and len(cells) == 1:
            self.current_card["device name"] = cells[0]
            self.current_card = None
        else:
            return False
        return True


def split_process_row(line: str) -> list[str] | None:
    """The cells of a row: pid, name, number of GPUs, and one to three more; the name may have blanks in it.

    Counted from the right: a pattern for all of it would try a line of blanks in a million ways.
    """
    pid, *rest = line.split(None, 1)
    if not rest or not line.startswith(pid) or not PID_CELL.fullmatch(pid):
        return None
    for more in (3, 2, 1):
        cells = rest[0].rsplit(None, more + 1)
        if len(cells) == more + 2 and COUNT_CELL.fullmatch(cells[1]) and all(map(NUMBER_CELL.fullmatch, cells[2:])):
            return [pid, *cells]
    return None


CARD_KEY = re.compile(r"card([0-9]{1,4})")
PID_KEY = re.compile(r"pid([0-9]{1,10})")
PROCESS_COUNT_CELL = re.compile(r"[0-9]{1,20}|UNKNOWN|N/A")
# The questions that only name the GPUs, for an answer about processes.
IDENTITY_QUERIES = frozenset({"names", "static"})
# What it prints for JSON where there is no process.
NO_JSON_MESSAGE = "No JSON data to report"
MIB_FROM_BYTES = values.build_mib_parser("b")
ROCM_SMI_READINGS: amd_common.ReadingTable = {
    "memory.used": (MIB_FROM_BYTES, ("vram total used memory (b)",)),
    "memory.total": (MIB_FROM_BYTES, ("vram total memory (b)",)),
    "utilization.gpu": (values.parse_percent, ("gpu use (%)",)),
    # the older name is not for how much of the memory is taken
    "utilization.memory": (values.parse_percent, ("gpu memory read/write activity (%)", "gpu memory use (%)")),
    "temperature.gpu": (
        values.parse_celsius,
        ("temperature (sensor edge) (c)", "temperature (sensor junction) (c)", "temperature (sensor #1) (c)"),
    ),
    "temperature.memory": (values.parse_celsius, ("temperature (sensor memory) (c)",)),
    "power.draw": (
        values.parse_watts,
        (
            "average graphics package power (w)",
            "current socket graphics package power (w)",
            "current graphics package power (w)",
        ),
    ),
    "power.limit": (values.parse_watts, ("max graphics package power (w)",)),
    "clocks.current.sm": (values.parse_mhz, ("sclk clock speed", "sclk clock level")),
    "clocks.current.memory": (values.parse_mhz, ("mclk clock speed", "mclk clock level")),
    "fan.speed": (values.parse_percent, ("fan speed (%)",)),
    "pcie.link.width.current": (values.parse_lanes, ("pcie clock level",)),
    "pcie.link.gen.current": (values.parse_pcie_generation, ("pcie clock level",)),
}
ROCM_SMI_TEXTS: amd_common.TextTable = {
    "name": ("device name", "card series", "card model"),
    "device": ("device id", "gpu id", "card model"),
    "sku": ("card sku",),
    "pci.bus_id": ("pci bus",),
    "serial": ("serial number",),
    "vbios_version": ("vbios version",),
}
WATCHED_FIELDS = {
    "memory": re.compile(r"(?:vis_)?vram total|gtt total|gpu memory allocated"),
    "use": re.compile(r"gpu use \(%\)|gpu memory (?:use|read/write)|memory activity"),
    "temperature": re.compile(r"temperature "),
}
ROCM_SMI_FIELD_NAMES = amd_common.ToolFieldNames(ROCM_SMI_READINGS, ROCM_SMI_TEXTS, WATCHED_FIELDS)


class RocmSmiOutput:
    """All that was answered: of each card by its number, of the system, and of processes."""

    def __init__(self, pieces: ToolParts) -> None:
        """Of all questions together; what is told twice counts as it was told last."""
        self.facts_by_card: dict[int, dict[str, object]] = {}
        self.system_facts: dict[str, object] = {}
        self.cards_by_pid: dict[int, list[int]] = {}
        self.card_count_by_pid: dict[int, int] = {}
        self.problems: list[str] = []
        self.messages: list[str] = []
        self.is_understood = True
        self.has_process_list = False
        for name, piece in pieces.items():
            printed = amd_common.parse_printed_json(piece.lines)
            text = RocmSmiText().parse_lines(printed.text_lines)
            self.messages += text.messages
            self.problems += printed.problems
            for value in printed.values:
                self.add_json_value(value)
            for number, told in text.facts_by_card.items():
                self.add_card_facts(number, told)
            self.system_facts.update(text.system_facts)
            self.cards_by_pid.update(text.cards_by_pid)
            self.card_count_by_pid.update(text.card_count_by_pid)
            listed = text.has_process_list or any(NO_JSON_MESSAGE in one for one in text.messages)
            answered = bool(printed.values or listed)
            self.is_understood = self.is_understood and (answered or bool(text.facts_by_card)) and not printed.problems
            listed = listed or any(map(has_process_entries, printed.values))
            self.has_process_list = self.has_process_list or (listed and name not in IDENTITY_QUERIES)

    def add_json_value(self, value: object) -> None:
        """`{"card0": {…}, "system": {…}}`."""
        for name, told in value.items() if isinstance(value, dict) else ():
            if not isinstance(told, dict):
                continue
            facts = {str(key).rstrip(": ").lower(): one for key, one in told.items()}
            if match := CARD_KEY.fullmatch(name):
                self.add_card_facts(int(match[1]), facts)
            elif name == "system":
                self.system_facts.update(facts)

    def add_card_facts(self, number: int, told: dict[str, object]) -> None:
        """What is told of a card; that something is not told is no reason to forget it."""
        if number not in self.facts_by_card and len(self.facts_by_card) >= amd_common.MAX_GPUS:
            return
        known = self.facts_by_card.setdefault(number, {})
        known.update(
            (key, one) for key, one in told.items() if key not in known or values.parse_amd_text(one) is not None
        )

    def assign_identities(self) -> dict[int, amd_common.AmdIdentity]:
        """What names each card."""
        return amd_common.assign_identities(
            (number, None, facts.get("node id"), amd_common.parse_amd_uuid(facts.get("unique id")))
            for number, facts in self.facts_by_card.items()
        )


def has_process_entries(value: object) -> bool:
    """Return whether an answer in JSON is about processes: they stand under `system`, or it is empty."""
    return isinstance(value, dict) and (not value or isinstance(value.get("system"), dict))


def parse_gpus(pieces: ToolParts) -> ToolOutput[Gpu]:
    """Every card."""
    told = RocmSmiOutput(pieces)
    driver = values.parse_amd_text(told.system_facts.get("driver version"))
    who = told.assign_identities()
    found = tuple(
        amd_common.build_amd_gpu(facts, who[number], ROCM_SMI_FIELD_NAMES, driver)
        for number, facts in told.facts_by_card.items()
    )
    return ToolOutput(found, amd_common.filter_messages(told.messages), told.problems, told.is_understood)


def parse_processes(pieces: ToolParts) -> ToolOutput[GpuProcessRow]:
    """Every process on each of its cards; how much it has on which of several is not told."""
    told = RocmSmiOutput(pieces)
    who = told.assign_identities()
    found: list[GpuProcessRow] = []
    pids = dict.fromkeys(
        [*told.cards_by_pid, *(int(one[1]) for key in told.system_facts if (one := PID_KEY.fullmatch(key)))]
    )
    problems = list(told.problems)
    if len(pids) > amd_common.MAX_PROCESSES:
        problems.append(f"{len(pids)} processes are told; only the first {amd_common.MAX_PROCESSES} count")
    for pid in islice(pids, amd_common.MAX_PROCESSES):
        name, count, memory = parse_rocm_smi_process(told.system_facts.get(f"pid{pid}"))
        cards = told.cards_by_pid.get(pid)
        if cards is None:
            cards = [*who] if len(who) == 1 and count else []
        handles = [who[one].process_key if one in who else f"{amd_common.VENDOR} {one}" for one in dict.fromkeys(cards)]
        unsaid = not handles and (memory or (count != 0 and pid not in told.cards_by_pid))
        if unsaid or told.card_count_by_pid.get(pid, 0) > len(handles):
            handles.append(amd_common.UNKNOWN_GPU_KEY)
        found += [GpuProcessRow(one, pid, memory if len(handles) == 1 else None, name) for one in handles]
        if len(found) > amd_common.MAX_PROCESSES:
            break
    answered = told.is_understood and told.has_process_list and len(problems) == len(told.problems)
    return ToolOutput(tuple(found), amd_common.filter_messages(told.messages), problems, answered)


def parse_rocm_smi_process(row: object) -> tuple[str | None, int | None, float | None]:
    """Its name, on how many cards it is, and its memory in MiB: `python3, 1, 177386942464, 0, 4`."""
    cells = (values.parse_amd_text(row) or "").split(", ")
    numbers: list[str] = []
    while len(cells) > 1 and len(numbers) < 4 and PROCESS_COUNT_CELL.fullmatch(cells[-1].strip()):
        numbers.insert(0, cells.pop().strip())
    name = values.parse_amd_text(", ".join(cells))
    count, memory = [*numbers, "", ""][:2]
    return name and name[:MAX_NAME_CHARACTERS], amd_common.parse_index(count), MIB_FROM_BYTES(memory)
