"""What the builder alone remembers: since when GPUs are idle, how bookings are kept, logins it saw, what was wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from site_builder.model import Idle, KeptGpu
from site_builder.sources import files

MOST_LOGINS = 20_000


class Memory:
    """state/memory.json: loaded once, written when it changed; a damaged file is begun anew."""

    def __init__(self, state: Path) -> None:
        """Take up what the last build left."""
        self.store = state / "memory.json"
        self.idle: dict[str, Idle] = {}
        self.kept: dict[str, dict[str, KeptGpu]] = {}
        self.logins: set[str] = set()
        self.problems: set[str] = set()
        self.odd: dict[str, int] = {}  # since when a GPU is what it should not be
        self.took: float | None = None  # seconds of the last build
        self.written = b""
        try:
            self.written = self.store.read_bytes()
            self.take(orjson.loads(self.written))
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            self.idle, self.kept, self.logins, self.problems, self.odd = {}, {}, set(), set(), {}

    def take(self, told: Any) -> None:  # noqa: ANN401 a file may hold anything
        """What a file told."""
        self.idle = {
            str(host): Idle(float(one["looked"]), {str(gpu): float(since) for gpu, since in one["since"].items()})
            for host, one in told["idle"].items()
        }
        # a builder of before this was remembered left none
        self.kept = {
            str(host): {str(gpu): kept_gpu(one) for gpu, one in gpus.items()}
            for host, gpus in told.get("kept", {}).items()
        }
        self.logins = {str(login) for login in told["logins"]}
        self.problems = {str(problem) for problem in told["problems"]}
        self.odd = {str(name): int(since) for name, since in told.get("odd", {}).items()}
        took = told.get("took")
        self.took = None if took is None else float(took)

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
        content = orjson.dumps(told)
        if content != self.written:
            files.replace(self.store, content, 0o600)
            self.written = content


def kept_gpu(told: Any) -> KeptGpu:  # noqa: ANN401 the same
    """What is remembered of one GPU."""
    empty = told["empty_since"]
    return KeptGpu(
        int(told["looked"]),
        None if empty is None else int(empty),
        {str(name): int(since) for name, since in told["others"].items()},
        {str(key): (int(since), float(seconds), float(used)) for key, (since, seconds, used) in told["use"].items()},
    )
