"""What the builder alone remembers: since when GPUs are idle, how bookings are kept, logins it saw, what was wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from site_builder.core import files
from site_builder.core.model import GpuBookingUse, IdleTimes

MAX_LOGINS = 20_000
MAX_EPOCH = 1e11  # the year 5138


class BuilderState:
    """state/memory.json: loaded once, written when it changed; `problem` is what was wrong with it at first."""

    def __init__(self, state: Path) -> None:
        """Take up what the last build left."""
        self.store_path = state / "memory.json"
        self.idle_times: dict[str, IdleTimes] = {}
        self.booking_uses: dict[str, dict[str, GpuBookingUse]] = {}
        self.logins: set[str] = set()
        self.problems: set[str] = set()
        self.odd_since: dict[str, int] = {}  # since when a GPU is what it should not be
        self.build_duration_s: float | None = None  # seconds of the last build
        self.paused_until: dict[str, int] = {}  # hosts that are too expensive to be read, and until when they are not
        loaded, self.problem = files.load(self.store_path, self.apply_json)
        self.written_content = b"" if self.problem else loaded or b""
        if loaded is None:
            self.idle_times, self.booking_uses, self.logins, self.problems, self.odd_since, self.paused_until = (
                {},
                {},
                set(),
                set(),
                {},
                {},
            )

    def apply_json(self, content: bytes) -> bytes:
        """Take up what a file holds, and return it."""
        told: Any = orjson.loads(content)
        self.idle_times = {
            str(host): IdleTimes(
                parse_stored_moment(one["looked"]),
                {str(gpu): parse_stored_moment(since) for gpu, since in one["since"].items()},
            )
            for host, one in told["idle"].items()
        }
        # a builder of before this was remembered left none
        self.booking_uses = {
            str(host): {str(gpu): parse_booking_use(one) for gpu, one in gpus.items()}
            for host, gpus in told.get("kept", {}).items()
        }
        self.logins = {str(login) for login in told["logins"]}
        self.problems = {str(problem) for problem in told["problems"]}
        self.odd_since = {str(name): int(parse_stored_moment(since)) for name, since in told.get("odd", {}).items()}
        self.paused_until = {
            str(host): int(parse_stored_moment(until)) for host, until in told.get("paused", {}).items()
        }
        took = told.get("took")
        self.build_duration_s = None if took is None else float(took)
        return content

    def add_logins(self, logins: frozenset[str]) -> None:
        """Remember logins that are in use."""
        if len(self.logins) < MAX_LOGINS:
            self.logins |= logins

    def update_booking_uses(self, host: str, kept: dict[str, GpuBookingUse] | None) -> None:
        """Remember how the bookings of a host are kept; None where it told nothing new."""
        if kept:
            self.booking_uses[host] = kept
        elif kept is not None:
            self.booking_uses.pop(host, None)

    def save(self) -> None:
        """Write it, if it changed."""
        idle = {host: {"looked": int(one.checked_at), "since": one.idle_since} for host, one in self.idle_times.items()}
        # the keys of the file stay as older versions wrote them
        kept = {
            host: {
                gpu: {
                    "looked": one.checked_at,
                    "empty_since": one.empty_since,
                    "others": one.others_since,
                    "use": one.use_by_booking,
                }
                for gpu, one in gpus.items()
            }
            for host, gpus in self.booking_uses.items()
        }
        logins, problems = sorted(self.logins), sorted(self.problems)
        told = {"idle": idle, "kept": kept, "logins": logins, "problems": problems, "took": self.build_duration_s}
        told["odd"] = self.odd_since
        told["paused"] = self.paused_until
        content = orjson.dumps(told)
        if content != self.written_content:
            files.replace(self.store_path, content)
            self.written_content = content


def parse_booking_use(told: Any) -> GpuBookingUse:  # noqa: ANN401 the same
    """What is remembered of one GPU."""
    empty = told["empty_since"]
    return GpuBookingUse(
        int(parse_stored_moment(told["looked"])),
        None if empty is None else int(parse_stored_moment(empty)),
        {str(name): int(parse_stored_moment(since)) for name, since in told["others"].items()},
        {
            str(key): (int(parse_stored_moment(since)), float(seconds), float(used))
            for key, (since, seconds, used) in told["use"].items()
        },
    )


def parse_stored_moment(value: Any) -> float:  # noqa: ANN401 the same
    """Return a time of ours; a ValueError where it cannot be one."""
    time = float(value)
    if not 0 <= time < MAX_EPOCH:
        raise ValueError(time)
    return time
