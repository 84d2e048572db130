"""Limit the requests of each address: state/attempts.json and looks.json, shared by all processes.

Each address has a bucket that leaks one unit a second. Requests fill it; one that would overflow it is refused.
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
    """Counts requests, and says how long an address has to wait."""

    def __init__(self, state: Path, clock: Callable[[], float], file: str = REQUESTS_FILE) -> None:
        self.path = state / file
        self.clock = clock

    def find_wait_s(self, address: str, cost: float) -> int:
        """Return the seconds until a request of this cost is allowed; count nothing."""
        levels = self.read_levels()
        if self.is_clock_set_back(levels, address):
            self.add_cost(address, 0.0, True)
        return compute_wait_s(self.find_level(levels, address) + cost)

    def count_request(self, address: str, cost: float) -> int:
        """Count a request, or return in how many seconds it will be allowed; a refused one is not counted."""
        return self.add_cost(address, cost, False)

    def penalize(self, address: str, cost: float) -> None:
        """Count a request that should not have been made, as far as the bucket has room."""
        self.add_cost(address, cost, True)

    def add_cost(self, address: str, cost: float, always: bool) -> int:
        """Fill the bucket under a lock, so that concurrent requests gain nothing."""
        with locks.hold_file_lock(self.path):
            levels = self.read_levels()
            is_set_back = self.is_clock_set_back(levels, address)
            wait_s = self.fill_bucket(levels, address, cost, always)
            if always or not wait_s or is_set_back:
                locks.write_locked_file(self.path, orjson.dumps(self.drop_empty_buckets(levels)))
        return wait_s

    def fill_bucket(self, levels: BucketLevels, address: str, cost: float, always: bool) -> int:
        """Fill the bucket of an address unless it would overflow; return the seconds to wait."""
        level = self.find_level(levels, address) + cost
        wait_s = compute_wait_s(level)
        if always or not wait_s:
            levels[build_address_key(address)] = min(level, BUCKET_CAPACITY), self.clock()
        return wait_s

    def find_level(self, levels: BucketLevels, address: str) -> float:
        """Return how full the bucket of an address is now."""
        level, at = levels.get(build_address_key(address), (0.0, 0.0))
        return max(0.0, level - max(0.0, self.clock() - at))

    def is_clock_set_back(self, levels: BucketLevels, address: str) -> bool:
        """Return True if the clock was set back since: the bucket would not leak before it is that late again."""
        return levels.get(build_address_key(address), (0.0, 0.0))[1] > self.clock()

    def drop_empty_buckets(self, levels: BucketLevels) -> BucketLevels:
        """Return the buckets that are not empty, at most MAX_ADDRESSES, the fullest; times in the future become now."""
        now = self.clock()
        full = {key: (level, min(at, now)) for key, (level, at) in levels.items() if level > now - at}
        if len(full) <= MAX_ADDRESSES:
            return full
        fullest = sorted(full, key=lambda key: full[key][0] + full[key][1], reverse=True)
        return {key: full[key] for key in fullest[:MAX_ADDRESSES]}

    def read_levels(self) -> BucketLevels:
        """Read all buckets; a damaged file starts anew."""
        try:
            levels = orjson.loads(locks.read_locked_file(self.path, MAX_FILE_BYTES) or b"{}")
            return {str(key): (min(BUCKET_CAPACITY, float(level)), float(at)) for key, (level, at) in levels.items()}
        except (ValueError, TypeError, AttributeError):
            return {}


class InMemoryRateLimiter(RateLimiter):
    """Counts in the memory of one process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(Path(), clock)
        self.levels: BucketLevels = {}
        self.lock = Lock()

    def read_levels(self) -> BucketLevels:
        return self.levels

    def add_cost(self, address: str, cost: float, always: bool) -> int:
        with self.lock:
            wait_s = self.fill_bucket(self.levels, address, cost, always)
            self.levels = self.drop_empty_buckets(self.levels)
        return wait_s


def compute_wait_s(level: float) -> int:
    """Return the seconds until a bucket filled to this level does not overflow any more."""
    return max(0, math.ceil(level - BUCKET_CAPACITY))


def build_address_key(address: str) -> str:
    """Return the key of an address; all IPv6 addresses of a /64 network have the same one."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
