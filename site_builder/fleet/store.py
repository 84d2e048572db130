"""What the builder alone remembers: since when GPUs are idle, how bookings are kept, logins it saw, what was wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from site_builder.core import own_files
from site_builder.core.model import Idle, KeptGpu

MOST_LOGINS = 20_000
LAST_MOMENT = 1e11  # the year 5138


class Memory:
    """state/memory.json: loaded once, written when it changed; `problem` is what was wrong with it at first."""

    def __init__(self, state: Path) -> None:
        """Take up what the last build left."""
        self.store = state / "memory.json"
        self.idle: dict[str, Idle] = {}
        self.kept: dict[str, dict[str, KeptGpu]] = {}
        self.logins: set[str] = set()
        self.problems: set[str] = set()
        self.odd: dict[str, int] = {}  # since when a GPU is what it should not be
        self.took: float | None = None  # seconds of the last build
        self.paused: dict[str, int] = {}  # hosts that are too expensive to be read, and until when they are not
        loaded, self.problem = own_files.load(self.store, self.take)
        self.written = b"" if self.problem else loaded or b""
        if loaded is None:
            self.idle, self.kept, self.logins, self.problems, self.odd, self.paused = {}, {}, set(), set(), {}, {}

    def take(self, content: bytes) -> bytes:
        """Take up what a file holds, and return it."""
        told: Any = orjson.loads(content)
        self.idle = {
            str(host): Idle(moment(one["looked"]), {str(gpu): moment(since) for gpu, since in one["since"].items()})
            for host, one in told["idle"].items()
        }
        # a builder of before this was remembered left none
        self.kept = {
            str(host): {str(gpu): kept_gpu(one) for gpu, one in gpus.items()}
            for host, gpus in told.get("kept", {}).items()
        }
        self.logins = {str(login) for login in told["logins"]}
        self.problems = {str(problem) for problem in told["problems"]}
        self.odd = {str(name): int(moment(since)) for name, since in told.get("odd", {}).items()}
        self.paused = {str(host): int(moment(until)) for host, until in told.get("paused", {}).items()}
        took = told.get("took")
        self.took = None if took is None else float(took)
        return content

    def learn(self, logins: frozenset[str]) -> None:
        """Remember logins that are in use."""
        if len(self.logins) < MOST_LOGINS:
            self.logins |= logins

    def keep(self, host: str, kept: dict[str, KeptGpu] | None) -> None:
        """Remember how the bookings of a host are kept; None where it told nothing new."""
        if kept:
            self.kept[host] = kept
        elif kept is not None:
            self.kept.pop(host, None)

    def save(self) -> None:
        """Write it, if it changed."""
        idle = {host: {"looked": int(one.looked), "since": one.since} for host, one in self.idle.items()}
        kept = {host: {gpu: one._asdict() for gpu, one in gpus.items()} for host, gpus in self.kept.items()}
        logins, problems = sorted(self.logins), sorted(self.problems)
        told = {"idle": idle, "kept": kept, "logins": logins, "problems": problems, "took": self.took}
        told["odd"] = self.odd
        told["paused"] = self.paused
        content = orjson.dumps(told)
        if content != self.written:
            own_files.replace(self.store, content)
            self.written = content


def kept_gpu(told: Any) -> KeptGpu:  # noqa: ANN401 the same
    """What is remembered of one GPU."""
    empty = told["empty_since"]
    return KeptGpu(
        int(moment(told["looked"])),
        None if empty is None else int(moment(empty)),
        {str(name): int(moment(since)) for name, since in told["others"].items()},
        {
            str(key): (int(moment(since)), float(seconds), float(used))
            for key, (since, seconds, used) in told["use"].items()
        },
    )


def moment(value: Any) -> float:  # noqa: ANN401 the same
    """Return a time of ours; a ValueError where it cannot be one."""
    time = float(value)
    if not 0 <= time < LAST_MOMENT:
        raise ValueError(time)
    return time
