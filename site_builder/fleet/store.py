"""Remember what the builder knows between builds: idle GPUs, use of bookings, logins and problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from site_builder.core import files
from site_builder.core.model import GpuBookingUse, IdleTimes

MAX_LOGINS = 20_000
MAX_EPOCH = 1e11  # the year 5138


class FleetStore:
    """state/memory.json, loaded once and written when it changes; `problem` says what was wrong when it was loaded."""

    def __init__(self, state: Path) -> None:
        self.store_path = state / "memory.json"
        self.build_duration_s: float | None = None  # of the last build
        self.clear()
        loaded, self.problem = files.load_file_or_copy(self.store_path, self.apply_json)
        self.written_content = b"" if self.problem else loaded or b""
        if loaded is None:
            self.clear()  # apply_json may have failed half-way

    def clear(self) -> None:
        self.idle_times: dict[str, IdleTimes] = {}
        self.booking_uses: dict[str, dict[str, GpuBookingUse]] = {}
        self.logins: set[str] = set()
        self.problems: set[str] = set()
        self.odd_since: dict[str, int] = {}  # since when a GPU is in a state that it should not be in
        self.paused_until: dict[str, int] = {}  # hosts that are too expensive to parse, and until when they are skipped

    def apply_json(self, content: bytes) -> bytes:
        """Load the content of a file, and return it."""
        stored: Any = orjson.loads(content)
        self.idle_times = {
            str(host): IdleTimes(
                parse_stored_moment(times["looked"]),
                {str(gpu): parse_stored_moment(since) for gpu, since in times["since"].items()},
            )
            for host, times in stored["idle"].items()
        }
        # files of older versions lack the keys that are read with get
        self.booking_uses = {
            str(host): {
                str(gpu): GpuBookingUse(
                    int(parse_stored_moment(use["looked"])),
                    None if use["empty_since"] is None else int(parse_stored_moment(use["empty_since"])),
                    parse_stored_moments(use["others"]),
                    {
                        str(key): (int(parse_stored_moment(since)), float(seconds), float(used))
                        for key, (since, seconds, used) in use["use"].items()
                    },
                )
                for gpu, use in gpus.items()
            }
            for host, gpus in stored.get("kept", {}).items()
        }
        self.logins = {str(login) for login in stored["logins"]}
        self.problems = {str(problem) for problem in stored["problems"]}
        self.odd_since = parse_stored_moments(stored.get("odd", {}))
        self.paused_until = parse_stored_moments(stored.get("paused", {}))
        took = stored.get("took")
        self.build_duration_s = None if took is None else float(took)
        return content

    def add_logins(self, logins: frozenset[str]) -> None:
        if len(self.logins) < MAX_LOGINS:
            self.logins |= logins

    def update_booking_uses(self, host: str, booking_uses: dict[str, GpuBookingUse] | None) -> None:
        """Remember how the bookings of a host are used; None where the host reported nothing new."""
        if booking_uses:
            self.booking_uses[host] = booking_uses
        elif booking_uses is not None:
            self.booking_uses.pop(host, None)

    def save(self) -> None:
        """Write the file if it changed; its keys stay as older versions wrote them."""
        content = orjson.dumps(
            {
                "idle": {
                    host: {"looked": int(times.checked_at), "since": times.idle_since}
                    for host, times in self.idle_times.items()
                },
                "kept": {
                    host: {
                        gpu: {
                            "looked": use.checked_at,
                            "empty_since": use.empty_since,
                            "others": use.others_since,
                            "use": use.use_by_booking,
                        }
                        for gpu, use in gpus.items()
                    }
                    for host, gpus in self.booking_uses.items()
                },
                "logins": sorted(self.logins),
                "problems": sorted(self.problems),
                "took": self.build_duration_s,
                "odd": self.odd_since,
                "paused": self.paused_until,
            }
        )
        if content != self.written_content:
            files.write_file_and_copy(self.store_path, content)
            self.written_content = content


def parse_stored_moment(value: Any) -> float:  # noqa: ANN401 # any JSON
    """Return a time; raise ValueError where it cannot be one of ours."""
    time = float(value)
    if not 0 <= time < MAX_EPOCH:
        raise ValueError(time)
    return time


def parse_stored_moments(stored: dict[str, Any]) -> dict[str, int]:
    return {str(key): int(parse_stored_moment(value)) for key, value in stored.items()}
