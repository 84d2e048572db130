"""What one deploy is about, and how far it is with each host."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from site_builder.remote.target_syntax import Target

if TYPE_CHECKING:
    from site_builder.deploy.web_side import Side, Web
    from site_builder.remote.ssh import Connection, HostKey

DEST = re.compile(r"ssh://(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(?::([0-9]{1,5}))?")
WAITING = "waiting"
# Results, as the report has them.
INSTALLED, UPGRADED, SAME, REMOVED, ABSENT = "installed", "upgraded", "up to date", "removed", "not there"
WOULD_INSTALL, WOULD_UPGRADE, FAILED, STOPPED = "to be installed", "to be upgraded", "failed", "stopped"
GOOD = (INSTALLED, UPGRADED, SAME, REMOVED, ABSENT)


class HostFailed(Exception):
    """Why a host is not done, in one sentence."""


class Stopped(Exception):
    """Somebody pressed Ctrl-C."""


@dataclass
class Job:
    """One host, and what became of it until now; written by its own thread alone."""

    target: Target
    name: str = ""
    step: str = WAITING
    result: str = ""
    why: str = ""
    began: float = 0.0
    ended: float = 0.0
    facts: dict[str, object] = field(default_factory=dict)
    connection: Connection | None = None

    @property
    def shown(self) -> str:
        """Its name on the board, once that is known."""
        return self.name or self.target.given or self.target.address

    def seconds(self, now: float) -> float:
        """How long it has been at work."""
        return (self.ended or now) - self.began if self.began else 0.0


@dataclass
class Order:
    """What is to be done with all of them."""

    web: Web
    side: Side
    packed: str
    look: str
    digest: str
    verb: str = "deploy"  # or check, or remove
    dest: str | None = None
    config: Path | None = None
    connect_limit: float = 40.0
    patience: float = 60.0
    names: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)

    def claim(self, job: Job, name: str) -> None:
        """A name is one host's alone."""
        with self.lock:
            other = self.names.setdefault(name, job.target.address)
        if other != job.target.address:
            message = f"it is called {name}, as {other} is: give one of them another name, with NAME=HOST"
            raise HostFailed(message)
        job.name = name

    def begin(self, job: Job, step: str) -> None:
        """The next step, unless all is to end."""
        if self.stop.is_set():
            raise Stopped
        job.step = step

    def wait(self, seconds: float) -> None:
        """A pause that Ctrl-C ends."""
        if self.stop.wait(seconds):
            raise Stopped


def known_lines(dest: str, keys: list[HostKey]) -> tuple[str, list[str]]:
    """How ssh calls the web host of a destination, and the lines of known_hosts for it."""
    found = DEST.fullmatch(dest)
    if not found:
        message = f"'{dest}' is no destination for deploy: it must be ssh://USER@WEB or ssh://USER@WEB:PORT"
        raise HostFailed(message)
    host = found[2].strip("[]")
    address = host if found[3] in (None, "22") else f"[{host}]:{found[3]}"
    return address, [f"{address} {key.kind} {key.key}" for key in keys]


def now() -> float:
    """A clock that nobody sets."""
    return time.monotonic()
