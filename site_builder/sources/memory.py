"""What the builder alone remembers: since when GPUs are idle, which logins it saw, what was wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from site_builder.model import Idle
from site_builder.sources import files

MOST_LOGINS = 20_000


class Memory:
    """state/memory.json: loaded once, written when it changed; a damaged file is begun anew."""

    def __init__(self, state: Path) -> None:
        """Take up what the last build left."""
        self.store = state / "memory.json"
        self.idle: dict[str, Idle] = {}
        self.logins: set[str] = set()
        self.problems: set[str] = set()
        self.written = b""
        try:
            self.written = self.store.read_bytes()
            self.take(orjson.loads(self.written))
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            self.idle, self.logins, self.problems = {}, set(), set()

    def take(self, told: Any) -> None:  # noqa: ANN401 a file may hold anything
        """What a file told."""
        self.idle = {
            str(host): Idle(float(one["looked"]), {str(gpu): float(since) for gpu, since in one["since"].items()})
            for host, one in told["idle"].items()
        }
        self.logins = {str(login) for login in told["logins"]}
        self.problems = {str(problem) for problem in told["problems"]}

    def learn(self, logins: frozenset[str]) -> None:
        """Remember logins that are in use."""
        if len(self.logins) < MOST_LOGINS:
            self.logins |= logins

    def save(self) -> None:
        """Write it, if it changed."""
        idle = {host: {"looked": int(one.looked), "since": one.since} for host, one in self.idle.items()}
        content = orjson.dumps({"idle": idle, "logins": sorted(self.logins), "problems": sorted(self.problems)})
        if content != self.written:
            files.replace(self.store, content, 0o600)
            self.written = content
