"""`states/HOST/?fetch_num=N` of `gpuboard serve`: what a host told last, and the minutes before that, from history."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from threading import BoundedSemaphore
from typing import Any

import orjson

from site_builder.board.outputs import host_json
from site_builder.config.settings import Settings
from site_builder.core.formatting import MINUTE
from site_builder.history.reader import HistoryReader

# Entries in one answer: a day of minutes.
MAX_ENTRIES = 1440
# Answers that are made at a time, or whoever asks for many would keep the board from all others.
MAX_ACTIVE = 4
TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"


class MinuteHistory:
    """Puts minutes before the one entry that a host's file has."""

    def __init__(self, settings: Settings) -> None:
        """Where history is, by which clock, and whether people are shown."""
        self.state_folder, self.zone, self.are_users_shown = settings.state, settings.zone, settings.privacy.users
        self.active = BoundedSemaphore(MAX_ACTIVE)

    def __call__(self, content: bytes, count: int) -> bytes:
        """The file with so many entries, as far as there are any; OSError where too many ask at once."""
        if not self.active.acquire(blocking=False):
            raise BlockingIOError(errno.EAGAIN, "too many ask for the past of hosts at once")
        try:
            return self.add_minutes(content, count)
        finally:
            self.active.release()

    def add_minutes(self, content: bytes, count: int) -> bytes:
        """The same."""
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # a file that is not ours is left as it is
            told: dict[str, dict[str, Any]] = orjson.loads(content)
            ((host, entry),) = told.items()
            last = entry["data"][-1]
            before = self.parse_timestamp(last["timestamp"]) - MINUTE
            names = {one["uuid"]: one["gpu_name"] for one in last["gpu_data"].values() if one["uuid"]}
            older = self.read_minutes_before(host, min(count, MAX_ENTRIES) - len(entry["data"]), before, names)
            return orjson.dumps({host: {**entry, "data": [*older, *entry["data"]]}}, option=orjson.OPT_APPEND_NEWLINE)
        return content

    def parse_timestamp(self, stamp: int) -> float:
        """When that was, by our clock; in an hour that comes twice the later time, if that has come."""
        told = datetime.strptime(str(stamp), TIMESTAMP_FORMAT).replace(tzinfo=self.zone)
        later = told.replace(fold=1).timestamp()
        return later if later <= time.time() + MINUTE else told.timestamp()

    def read_minutes_before(
        self, host: str, count: int, moment: float, names: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """So many minutes up to a moment; none where there is no history that we may read."""
        past = HistoryReader(self.state_folder, self.zone)
        try:
            found = past.read_minutes(host, count, moment) if count > 0 else []
        except OSError:
            return []
        finally:
            past.close()
        return [
            host_json.sample_to_states_json(sample, at, names, self.zone, self.are_users_shown) for at, sample in found
        ]
