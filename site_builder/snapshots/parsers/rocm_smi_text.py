"""What rocm-smi prints where it is not asked for JSON, or cannot do it: made into what its JSON would have been."""

from __future__ import annotations

import re
from collections.abc import Iterable

from site_builder.snapshots.parsers.amd_common import MOST_GPUS
from site_builder.snapshots.parsers.csv_values import LOST

OF_CARD = re.compile(r"GPU\[([0-9]{1,4})\]\s*: ?([^:]{1,100}):(.*)")
SAID_OF_CARD = re.compile(r"(?:ERROR: )?GPU\[([0-9]{1,4})\]\s*: ?(.{1,200})")
DRIVER = re.compile(r"Driver version: ?(\S.*)")
USES = re.compile(r"PID ([0-9]{1,10}) is using ([0-9]{1,4}) DRM device\(s\):?")
NUMBERS = re.compile(r"[0-9]{1,4}(?:[ ,]+[0-9]{1,4})*[ ,]*")
PID, COUNT, NUMBER = (
    re.compile(one) for one in (r"[0-9]{1,10}", r"[0-9]{1,4}|UNKNOWN|N/A", r"[0-9]{1,20}|UNKNOWN|N/A")
)
NO_PROCESS = "No KFD PIDs currently running"
TABLE_OF_PROCESSES = "PROCESS NAME"
CELL = re.compile(r"\s{2,}|\t")
DEVICE_ID = re.compile(r"0x[0-9a-f]{1,8}", re.IGNORECASE)
# The columns of the table that rocm-smi prints when it is asked for nothing, by how their names begin.
COLUMNS = {
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


class Text:
    """The cards, what is told of the system, on which cards and on how many a process is; the words that are left."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.cards: dict[int, dict[str, object]] = {}
        self.system: dict[str, object] = {}
        self.cards_of: dict[int, list[int]] = {}
        self.count_of: dict[int, int] = {}
        self.told_processes = False
        self.words: list[str] = []
        self.header: list[str] = []
        self.card: dict[str, object] | None = None

    def card_of(self, number: int) -> dict[str, object]:
        """The card of that number."""
        if len(self.cards) >= MOST_GPUS:
            return self.cards.get(number, {})
        return self.cards.setdefault(number, {})

    def read(self, lines: Iterable[str]) -> Text:
        """Understand each line by its form."""
        user = None
        for line in lines:
            if user is not None and NUMBERS.fullmatch(line.strip()):
                self.cards_of[user] += [int(one) for one in re.findall("[0-9]+", line)]
                continue
            user = None
            if match := OF_CARD.match(line.strip()):
                self.card_of(int(match[1]))[match[2].strip().lower()] = match[3].strip()
            elif match := DRIVER.fullmatch(line.strip()):
                self.system["driver version"] = match[1]
            elif match := USES.fullmatch(line.strip()):
                self.told_processes = True
                user = int(match[1])
                self.cards_of[user], self.count_of[user] = [], int(match[2])
            elif NO_PROCESS in line or TABLE_OF_PROCESSES in line:
                self.told_processes = True
            elif row := a_process(line) if self.told_processes else None:
                self.system[f"pid{row[0]}"] = ", ".join(row[1:])
            elif not self.of_table(line):
                if (match := SAID_OF_CARD.match(line.strip())) and LOST.search(match[2]):
                    self.card_of(int(match[1]))["message"] = match[2].strip()
                self.words.append(line)
        return self

    def of_table(self, line: str) -> bool:
        """Whether it is a line of the table of all cards, which has the name of a card below its readings."""
        cells = CELL.split(re.sub(r",\s+", ",", line.strip()))
        if "GPU%" in cells and cells[0] in {"GPU", "Device"}:
            self.header = [one.split(" ")[0] for one in cells]
            self.hot = "junction" if "unction" in line else "edge"
        elif self.header and not self.cards and "(Junction)" in cells:
            self.hot = "junction"
        elif self.header and cells[0].isdecimal() and len(cells[0]) <= 4 and len(cells) == len(self.header):
            self.card = self.card_of(int(cells[0]))
            for name, cell in zip(self.header, cells):
                key = f"temperature (sensor {self.hot}) (c)" if name == "Temp" else COLUMNS.get(name)
                if key == "device id":
                    match = DEVICE_ID.search(cell)
                    cell = match[0] if match else ""  # noqa: PLW2901 # that of the two
                if key:
                    self.card[key] = cell
                elif LOST.search(cell):
                    self.card["message"] = cell
        elif self.card is not None and line[:1] == " " and len(cells) == 1:
            self.card["device name"] = cells[0]
            self.card = None
        else:
            return False
        return True


def a_process(line: str) -> list[str] | None:
    """The cells of a row: pid, name, number of GPUs, and one to three more; the name may have blanks in it.

    Counted from the right: a pattern for all of it would try a line of blanks in a million ways.
    """
    pid, *rest = line.split(None, 1)
    if not rest or not line.startswith(pid) or not PID.fullmatch(pid):
        return None
    for more in (3, 2, 1):
        cells = rest[0].rsplit(None, more + 1)
        if len(cells) == more + 2 and COUNT.fullmatch(cells[1]) and all(map(NUMBER.fullmatch, cells[2:])):
            return [pid, *cells]
    return None
