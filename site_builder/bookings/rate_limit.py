"""state/attempts.json and looks.json: how much each address asked of the desk lately, over all its processes.

Each address has a vessel that empties by one each second. What is asked fills it; what would run over is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from threading import Lock

import orjson

from site_builder.core import locked_file

FILE, LOOKS = "attempts.json", "looks.json"
ROOM = 60.0
MOST_ADDRESSES = 1000
LIMIT = 1024 * 1024
Levels = dict[str, tuple[float, float]]


class Attempts:
    """Counts, and says how long somebody has to wait."""

    def __init__(self, state: Path, clock: Callable[[], float], file: str = FILE) -> None:
        """Where it is kept, and by which clock."""
        self.path = state / file
        self.clock = clock

    def wait(self, address: str, cost: float) -> int:
        """Seconds until so much more may be asked from there; nothing is counted."""
        levels = self.read()
        if self.is_ahead(levels, address):
            self.add(address, 0.0, True)
        return seconds(self.level(levels, address) + cost)

    def count(self, address: str, cost: float) -> int:
        """Count it, or say in how many seconds it will be taken; what is refused is not counted."""
        return self.add(address, cost, False)

    def punish(self, address: str, cost: float) -> None:
        """Count what should not have been asked, as far as there is room."""
        self.add(address, cost, True)

    def add(self, address: str, cost: float, always: bool) -> int:
        """Under a lock, so that nobody gets more by asking often at the same time."""
        with locked_file.alone(self.path):
            levels = self.read()
            ahead = self.is_ahead(levels, address)
            late = self.fill(levels, address, cost, always)
            if always or not late or ahead:
                locked_file.replace(self.path, orjson.dumps(self.kept(levels)))
        return late

    def fill(self, levels: Levels, address: str, cost: float, always: bool) -> int:
        """Fill the vessel of an address, unless it would run over; how many seconds that is too early."""
        level = self.level(levels, address) + cost
        late = seconds(level)
        if always or not late:
            levels[group(address)] = min(level, ROOM), self.clock()
        return late

    def level(self, levels: Levels, address: str) -> float:
        """How full the vessel of an address is now."""
        level, at = levels.get(group(address), (0.0, 0.0))
        return max(0.0, level - max(0.0, self.clock() - at))

    def is_ahead(self, levels: Levels, address: str) -> bool:
        """Return whether the clock was set back since: the vessel would not empty before it is that late again."""
        return levels.get(group(address), (0.0, 0.0))[1] > self.clock()

    def kept(self, levels: Levels) -> Levels:
        """Without those that are empty again, and of too many the fullest; what a clock was set back from is of now."""
        now = self.clock()
        full = {key: (level, min(at, now)) for key, (level, at) in levels.items() if level > now - at}
        if len(full) <= MOST_ADDRESSES:
            return full
        fullest = sorted(full, key=lambda key: full[key][0] + full[key][1], reverse=True)
        return {key: full[key] for key in fullest[:MOST_ADDRESSES]}

    def read(self) -> Levels:
        """What is counted so far; a damaged file is begun anew."""
        try:
            told = orjson.loads(locked_file.read(self.path, LIMIT) or b"{}")
            return {str(key): (min(ROOM, float(level)), float(at)) for key, (level, at) in told.items()}
        except (ValueError, TypeError, AttributeError):
            return {}


class Remembered(Attempts):
    """The same within one process, and in its memory alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """With nobody counted yet."""
        super().__init__(Path(), clock)
        self.levels: Levels = {}
        self.lock = Lock()

    def read(self) -> Levels:
        """What is counted so far."""
        return self.levels

    def add(self, address: str, cost: float, always: bool) -> int:
        """As above, among the threads of this process."""
        with self.lock:
            late = self.fill(self.levels, address, cost, always)
            self.levels = self.kept(self.levels)
        return late


def seconds(level: float) -> int:
    """Until it does not run over any more."""
    return max(0, math.ceil(level - ROOM))


def group(address: str) -> str:
    """Whoever has an IPv6 address has all those that begin like it, and counts once."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
