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

from site_builder.core import locks

REQUESTS_FILE, LISTS_FILE = "attempts.json", "looks.json"
BUCKET_CAPACITY = 60.0
MAX_ADDRESSES = 1000
MAX_FILE_BYTES = 1024 * 1024
BucketLevels = dict[str, tuple[float, float]]


class RateLimiter:
    """Counts, and says how long somebody has to wait."""

    def __init__(self, state: Path, clock: Callable[[], float], file: str = REQUESTS_FILE) -> None:
        """Where it is kept, and by which clock."""
        self.path = state / file
        self.clock = clock

    def find_wait_s(self, address: str, cost: float) -> int:
        """Seconds until so much more may be asked from there; nothing is counted."""
        levels = self.read_levels()
        if self.is_clock_set_back(levels, address):
            self.add_cost(address, 0.0, True)
        return compute_wait_s(self.find_level(levels, address) + cost)

    def count_request(self, address: str, cost: float) -> int:
        """Count it, or say in how many seconds it will be taken; what is refused is not counted."""
        return self.add_cost(address, cost, False)

    def penalize(self, address: str, cost: float) -> None:
        """Count what should not have been asked, as far as there is room."""
        self.add_cost(address, cost, True)

    def add_cost(self, address: str, cost: float, always: bool) -> int:
        """Under a lock, so that nobody gets more by asking often at the same time."""
        with locks.hold_file_lock(self.path):
            levels = self.read_levels()
            ahead = self.is_clock_set_back(levels, address)
            late = self.fill_bucket(levels, address, cost, always)
            if always or not late or ahead:
                locks.write_locked_file(self.path, orjson.dumps(self.drop_empty_buckets(levels)))
        return late

    def fill_bucket(self, levels: BucketLevels, address: str, cost: float, always: bool) -> int:
        """Fill the vessel of an address, unless it would run over; how many seconds that is too early."""
        level = self.find_level(levels, address) + cost
        late = compute_wait_s(level)
        if always or not late:
            levels[build_address_key(address)] = min(level, BUCKET_CAPACITY), self.clock()
        return late

    def find_level(self, levels: BucketLevels, address: str) -> float:
        """How full the vessel of an address is now."""
        level, at = levels.get(build_address_key(address), (0.0, 0.0))
        return max(0.0, level - max(0.0, self.clock() - at))

    def is_clock_set_back(self, levels: BucketLevels, address: str) -> bool:
        """Return whether the clock was set back since: the vessel would not empty before it is that late again."""
        return levels.get(build_address_key(address), (0.0, 0.0))[1] > self.clock()

    def drop_empty_buckets(self, levels: BucketLevels) -> BucketLevels:
        """Without those that are empty again, and of too many the fullest; what a clock was set back from is of now."""
        now = self.clock()
        full = {key: (level, min(at, now)) for key, (level, at) in levels.items() if level > now - at}
        if len(full) <= MAX_ADDRESSES:
            return full
        fullest = sorted(full, key=lambda key: full[key][0] + full[key][1], reverse=True)
        return {key: full[key] for key in fullest[:MAX_ADDRESSES]}

    def read_levels(self) -> BucketLevels:
        """What is counted so far; a damaged file is begun anew."""
        try:
            told = orjson.loads(locks.read_locked_file(self.path, MAX_FILE_BYTES) or b"{}")
            return {str(key): (min(BUCKET_CAPACITY, float(level)), float(at)) for key, (level, at) in told.items()}
        except (ValueError, TypeError, AttributeError):
            return {}


class InMemoryRateLimiter(RateLimiter):
    """The same within one process, and in its memory alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """With nobody counted yet."""
        super().__init__(Path(), clock)
        self.levels: BucketLevels = {}
        self.lock = Lock()

    def read_levels(self) -> BucketLevels:
        """What is counted so far."""
        return self.levels

    def add_cost(self, address: str, cost: float, always: bool) -> int:
        """As above, among the threads of this process."""
        with self.lock:
            late = self.fill_bucket(self.levels, address, cost, always)
            self.levels = self.drop_empty_buckets(self.levels)
        return late


def compute_wait_s(level: float) -> int:
    """Until it does not run over any more."""
    return max(0, math.ceil(level - BUCKET_CAPACITY))


def build_address_key(address: str) -> str:
    """Whoever has an IPv6 address has all those that begin like it, and counts once."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
