"""Limit how often an address may send requests: a leaky bucket each, which a minute empties."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from ipaddress import IPv6Address, ip_network
from pathlib import Path
from threading import Lock
from typing import Any

import orjson

from site_builder.core import locks
from site_builder.web.identity import parse_ip_address

REQUESTS_FILE, LISTS_FILE = "attempts.json", "looks.json"
BUCKET_CAPACITY = 60.0
MAX_ADDRESSES = 1000
MAX_FILE_BYTES = 1024 * 1024
# Of each address, how full its bucket was, and when.
BucketLevels = dict[str, tuple[float, float]]


class RateLimiter:
    """Counts requests in a file, and says how long an address has to wait."""

    def __init__(self, state: Path, clock: Callable[[], float], file: str = REQUESTS_FILE) -> None:
        self.path = state / file
        self.clock = clock

    def find_wait_s(self, address: str, cost: float) -> int:
        """Return the seconds until a request of this cost is allowed; count nothing."""
        level, at = self.read_levels().get(build_rate_limit_address_key(address), (0.0, 0.0))
        if at > self.clock():
            self.penalize(address, 0.0)
        return compute_rate_limit_wait_s(compute_level_after(level, self.clock() - at) + cost)

    def penalize(self, address: str, cost: float) -> None:
        """Count a request that should not have been made, as far as the bucket has room."""
        self.count_request(address, cost, always=True)

    def count_request(self, address: str, cost: float, always: bool = False) -> int:
        """Count a request, or return in how many seconds it will be allowed; a refused one is not counted.

        The bucket is filled under a lock, so that concurrent requests gain nothing.
        """
        key = build_rate_limit_address_key(address)
        with self.hold_lock():
            levels, now = self.read_levels(), self.clock()
            level, at = levels.get(key, (0.0, 0.0))
            level = compute_level_after(level, now - at) + cost
            wait_s = compute_rate_limit_wait_s(level)
            if always or not wait_s:
                levels[key] = min(level, BUCKET_CAPACITY), now
            # the clock may have been set back: the bucket would not leak before that time comes again
            if always or not wait_s or at > now:
                # keep the buckets that are not empty, the fullest if there are too many; times in the future become now
                full = {key: (level, min(at, now)) for key, (level, at) in levels.items() if level > now - at}
                fullest = sorted(full.items(), key=lambda bucket: sum(bucket[1]), reverse=True)
                self.write_levels(dict(fullest[:MAX_ADDRESSES]))
        return wait_s

    def hold_lock(self) -> AbstractContextManager[Any]:
        return locks.hold_file_lock(self.path)

    def read_levels(self) -> BucketLevels:
        """Read all buckets; a damaged file starts over."""
        try:
            levels = orjson.loads(locks.read_locked_file(self.path, MAX_FILE_BYTES) or b"{}")
            return {str(key): (min(BUCKET_CAPACITY, float(level)), float(at)) for key, (level, at) in levels.items()}
        except (ValueError, TypeError, AttributeError):
            return {}

    def write_levels(self, levels: BucketLevels) -> None:
        locks.write_locked_file(self.path, orjson.dumps(levels))


class InMemoryRateLimiter(RateLimiter):
    """Counts in the memory of one process."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(Path(), clock)
        self.levels: BucketLevels = {}
        self.lock = Lock()

    def hold_lock(self) -> AbstractContextManager[Any]:
        return self.lock

    def read_levels(self) -> BucketLevels:
        return self.levels

    def write_levels(self, levels: BucketLevels) -> None:
        self.levels = levels


def compute_level_after(level: float, seconds: float) -> float:
    return max(0.0, level - max(0.0, seconds))


def compute_rate_limit_wait_s(level: float) -> int:
    """Return the seconds until a bucket filled to this level does not overflow any more."""
    return max(0, math.ceil(level - BUCKET_CAPACITY))


def build_rate_limit_address_key(address: str) -> str:
    """Return the key of an address; all IPv6 addresses of a /64 network have the same one."""
    parsed = parse_ip_address(address)
    if parsed is None:
        return "unknown"
    return str(ip_network((parsed, 64), strict=False) if isinstance(parsed, IPv6Address) else parsed)
