"""Parse the output of rocm-smi."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.snapshots.envelope import MAX_NAME_CHARACTERS, ToolOutput, ToolParts
from site_builder.snapshots.parsers import amd_common, values
from site_builder.snapshots.parsers.amd_common import DEVICE_ID, MAX_GPUS, MAX_PROCESSES, parse_amd_text
from site_builder.snapshots.parsers.values import LOST_WORDS

CARD_LINE = re.compile(r"GPU\[([0-9]{1,4})\]\s*: ?([^:]{1,100}):(.*)")
CARD_MESSAGE = re.compile(r"(?:ERROR: )?GPU\[([0-9]{1,4})\]\s*: ?(.{1,200})")
DRIVER_LINE = re.compile(r"Driver version: ?(\S.*)")
PID_LINE = re.compile(r"PID ([0-9]{1,10}) is using ([0-9]{1,4}) DRM device\(s\):?")
NUMBER_LIST = re.compile(r"[0-9]{1,4}(?:[ ,]+[0-9]{1,4})*[ ,]*")
PID_CELL = re.compile(r"[0-9]{1,10}")
COUNT_CELL = re.compile(r"[0-9]{1,4}|UNKNOWN|N/A")
NUMBER_CELL = re.compile(r"[0-9]{1,20}|UNKNOWN|N/A")
CELL_SEPARATOR = re.compile(r"\s{2,}|\t")
# The columns of the table that rocm-smi prints without options, by how their names begin.
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
SYSTEM = "system"
CARD_KEY = re.compile(r"card([0-9]{1,4})")
PID_KEY = re.compile(r"pid([0-9]{1,10})")
MIB_FROM_BYTES = values.build_mib_parser("b")
WATCHED_FIELDS = {
    "memory": re.compile(r"(?:vis_)?vram total|gtt total|gpu memory allocated"),
    "use": re.compile(r"gpu use \(%\)|gpu memory (?:use|read/write)|memory activity"),
    "temperature": re.compile(r"temperature "),
}
# `gpu memory use (%)`, the older name of utilization.memory, does not mean how much of the memory is taken.
ROCM_SMI_FIELD_NAMES = amd_common.load_amd_field_names("rocm-smi", "b", WATCHED_FIELDS)


class RocmSmiOutput:
    """The facts about each card, the system and its processes, from all parts; of repeated facts the last counts."""

    def __init__(self, parts: ToolParts) -> None:
        self.facts_by_card: dict[int, dict[str, object]] = {}
        self.system_facts: dict[str, object] = {}
        self.cards_by_pid: dict[int, list[int]] = {}
        self.card_count_by_pid: dict[int, int] = {}
        self.problems: list[str] = []
        self.messages: list[str] = []
        self.is_understood = True
        self.has_process_list = False
        for name, part in parts.items():
            printed = amd_common.extract_amd_json(part.lines)
            text = RocmSmiText()
            text.parse_lines(printed.text_lines)
            self.messages += text.messages
            self.problems += printed.problems
            for value in printed.values:  # {"card0": {…}, "system": {…}}
                for key, entry in value.items() if isinstance(value, dict) else ():
                    if isinstance(entry, dict):
                        self.add_facts(key, [(str(label).rstrip(": ").lower(), fact) for label, fact in entry.items()])
            for key, facts in text.facts.items():
                self.add_facts(key, facts.items())
            self.cards_by_pid.update(text.cards_by_pid)
            self.card_count_by_pid.update(text.card_count_by_pid)
            # what it prints instead of JSON where there is no process
            is_list = text.has_process_list or any("No JSON data to report" in message for message in text.messages)
            has_answer = bool(printed.values or is_list or text.facts.keys() - {SYSTEM})
            self.is_understood = self.is_understood and has_answer and not printed.problems
            # processes are under `system`; without processes, the JSON is empty
            dicts = (value for value in printed.values if isinstance(value, dict))
            is_list = is_list or any(not value or isinstance(value.get(SYSTEM), dict) for value in dicts)
            if is_list and name not in amd_common.IDENTITY_QUERIES:
                self.has_process_list = True
        self.identities = amd_common.assign_amd_identities(self.facts_by_card, "hip id", "node id", ("unique id",))

    def add_facts(self, key: str, new_facts: Iterable[tuple[str, object]]) -> None:
        """Add the facts about the system or a card."""
        match = CARD_KEY.fullmatch(key)
        if key == SYSTEM:
            self.system_facts.update(new_facts)
        elif match and (int(match[1]) in self.facts_by_card or len(self.facts_by_card) < MAX_GPUS):
            amd_common.merge_amd_facts(self.facts_by_card.setdefault(int(match[1]), {}), new_facts)


class RocmSmiText:
    """The facts of one part by the keys of its JSON, the cards of each process, and the lines that are left over."""

    def __init__(self) -> None:
        self.facts: dict[str, dict[str, object]] = {SYSTEM: {}}
        self.cards_by_pid: dict[int, list[int]] = {}
        self.card_count_by_pid: dict[int, int] = {}
        self.has_process_list = False
        self.messages: list[str] = []
        self.table_header: list[str] = []
        self.current_card: dict[str, object] | None = None

    def find_or_add_card(self, number: str) -> dict[str, object]:
        key = f"card{int(number)}"
        if len(self.facts) > MAX_GPUS:
            return self.facts.get(key, {})
        return self.facts.setdefault(key, {})

    def parse_lines(self, lines: Iterable[str]) -> None:
        """Recognize each line by its form."""
        pid = None
        for line in lines:
            text = line.strip()
            if pid is not None and NUMBER_LIST.fullmatch(text):
                self.cards_by_pid[pid] += [int(number) for number in re.findall("[0-9]+", line)]
                continue
            pid = None
            if match := CARD_LINE.match(text):
                self.find_or_add_card(match[1])[match[2].strip().lower()] = match[3].strip()
            elif match := DRIVER_LINE.fullmatch(text):
                self.facts[SYSTEM]["driver version"] = match[1]
            elif match := PID_LINE.fullmatch(text):
                self.has_process_list = True
                pid = int(match[1])
                self.cards_by_pid[pid], self.card_count_by_pid[pid] = [], int(match[2])
            elif "No KFD PIDs currently running" in line or "PROCESS NAME" in line:
                self.has_process_list = True
            elif row := split_rocm_process_row(line) if self.has_process_list else None:
                self.facts[SYSTEM][f"pid{row[0]}"] = ", ".join(row[1:])
            elif not self.parse_table_line(line):
                if (match := CARD_MESSAGE.match(text)) and LOST_WORDS.search(match[2]):
                    self.find_or_add_card(match[1])["message"] = match[2].strip()
                self.messages.append(line)

    def parse_table_line(self, line: str) -> bool:
        """Parse a line of the table of all cards, or return False; the name of a card is below its readings."""
        cells = CELL_SEPARATOR.split(re.sub(r",\s+", ",", line.strip()))
        if "GPU%" in cells and cells[0] in {"GPU", "Device"}:
            self.table_header = [cell.split(" ")[0] for cell in cells]
            self.temperature_sensor = "junction" if "unction" in line else "edge"
        elif self.table_header and len(self.facts) == 1 and {"(Junction)", "(Edge)"} & set(cells):
            self.temperature_sensor = "junction" if "(Junction)" in cells else "edge"
        elif self.table_header and cells[0].isdecimal() and len(cells[0]) <= 4 and len(cells) == len(self.table_header):
            self.current_card = self.find_or_add_card(cells[0])
            for column, cell in zip(self.table_header, cells):
                key = TABLE_COLUMNS.get(column)
                if column == "Temp":
                    key = f"temperature (sensor {self.temperature_sensor}) (c)"
                if key == "device id":
                    match = DEVICE_ID.search(cell)
                    self.current_card[key] = match[0] if match else ""
                    self.current_card[column] = cell
                else:
                    self.current_card[key or column] = cell
        elif self.current_card is not None and line[:1] == " " and (len(cells) == 1 or LOST_WORDS.search(line)):
            self.current_card["device name"] = " ".join(cells)
            self.current_card = None
        else:
            return False
        return True


def split_rocm_process_row(line: str) -> list[str] | None:
    """Split a row: pid, name, number of GPUs, and one to three more cells; the name may have blanks in it.

    The cells are counted from the right: one pattern for all of it would try a line of blanks in a million ways.
    """
    pid, *rest = line.split(None, 1)
    if not rest or not line.startswith(pid) or not PID_CELL.fullmatch(pid):
        return None
    for numbers in (3, 2, 1):
        cells = rest[0].rsplit(None, numbers + 1)
        if len(cells) == numbers + 2 and COUNT_CELL.fullmatch(cells[1]) and all(map(NUMBER_CELL.fullmatch, cells[2:])):
            return [pid, *cells]
    return None


def parse_rocm_smi_gpus(parts: ToolParts) -> ToolOutput[Gpu]:
    output = RocmSmiOutput(parts)
    driver = parse_amd_text(output.system_facts.get("driver version"))
    gpus = tuple(
        amd_common.build_amd_gpu(facts, output.identities[number], ROCM_SMI_FIELD_NAMES, driver)
        for number, facts in output.facts_by_card.items()
    )
    return ToolOutput(gpus, amd_common.filter_amd_messages(output.messages), output.problems, output.is_understood)


def parse_rocm_smi_processes(parts: ToolParts) -> ToolOutput[GpuProcessRow]:
    """Parse every process on each of its cards; rocm-smi does not print how much memory it has on which of several."""
    output = RocmSmiOutput(parts)
    identities = output.identities
    processes: list[GpuProcessRow] = []
    system_pids = (int(match[1]) for key in output.system_facts if (match := PID_KEY.fullmatch(key)))
    pids = dict.fromkeys([*output.cards_by_pid, *system_pids])
    problems = list(output.problems)
    if len(pids) > MAX_PROCESSES:
        problems.append(f"{len(pids)} processes are reported; only the first {MAX_PROCESSES} are used")
    for pid in islice(pids, MAX_PROCESSES):
        # name, number of cards, memory: `python3, 1, 177386942464, 0, 4`
        cells = (parse_amd_text(output.system_facts.get(f"pid{pid}")) or "").split(", ")
        numbers: list[str] = []
        while len(cells) > 1 and len(numbers) < 4 and NUMBER_CELL.fullmatch(cells[-1].strip()):
            numbers.insert(0, cells.pop().strip())
        name = parse_amd_text(", ".join(cells))
        name = name and name[:MAX_NAME_CHARACTERS]
        card_count, memory = amd_common.parse_amd_index([*numbers, ""][0]), MIB_FROM_BYTES([*numbers, "", ""][1])
        cards = output.cards_by_pid.get(pid)
        if cards is None:
            cards = [*identities] if len(identities) == 1 and card_count else []
        gpu_keys = [
            identities[card].process_key if card in identities else f"{amd_common.VENDOR} {card}"
            for card in dict.fromkeys(cards)
        ]
        has_no_card = not gpu_keys and (memory or (card_count != 0 and pid not in output.cards_by_pid))
        if has_no_card or output.card_count_by_pid.get(pid, 0) > len(gpu_keys):
            gpu_keys.append(amd_common.UNKNOWN_GPU_KEY)
        processes += [GpuProcessRow(key, pid, memory if len(gpu_keys) == 1 else None, name) for key in gpu_keys]
        if len(processes) > MAX_PROCESSES:
            break
    is_complete = output.is_understood and output.has_process_list and len(problems) == len(output.problems)
    return ToolOutput(tuple(processes), amd_common.filter_amd_messages(output.messages), problems, is_complete)
