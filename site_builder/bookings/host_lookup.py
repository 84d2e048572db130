"""The hosts as a booking needs them: decided from data/ at this moment, and nothing of it kept."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from site_builder.bookings.data_files import Names
from site_builder.bookings.policy import Refused
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.model import BoardHost, Booking, Gpu, KnownHost
from site_builder.core.names import natural
from site_builder.core.people import People
from site_builder.discovery.discover import Discovery
from site_builder.fleet import active_bookings
from site_builder.fleet.gpu_state import Rules
from site_builder.fleet.host_view import NEVER, Host, board_of
from site_builder.fleet.store import Memory
from site_builder.snapshots.store import Snapshots


class Gathered(NamedTuple):
    """Hosts as they stand, what they were decided from, and by what."""

    hosts: Sequence[Host]
    boards: dict[str, BoardHost]
    rules: Rules


class Lab:
    """Looks at data/ when it is asked, and at no more of it than it is asked for."""

    def __init__(self, settings: Settings) -> None:
        """Whose data/ it is."""
        self.settings = settings
        self.snapshots = Snapshots(settings.data, None, settings.snapshot_bytes)
        aliases, self.gpu_names, _ = Names(settings.data, None).read()
        self.people = People(aliases)
        self.known: dict[str, KnownHost] | None = None
        self.written: active_bookings.HostNames | None = None
        self.gpus_of: dict[str, Sequence[Gpu]] = {}

    def hosts(self) -> dict[str, KnownHost]:
        """Every host that data/ has or hosts.txt names, in the order in which people count."""
        if self.known is None:
            folders, originals = self.snapshots.entries([])
            found, _ = Discovery(self.settings.data, None, None).read({*folders, *originals})
            self.known = dict(sorted(found.items(), key=lambda item: natural(item[0])))
        return self.known

    def names(self) -> active_bookings.HostNames:
        """The same, by whatever people write."""
        if self.written is None:
            self.written = active_bookings.HostNames(self.hosts())
        return self.written

    def find(self, text: str) -> str:
        """A host by its name, its full name, or either in another case; one that there is not is refused."""
        names = self.names()
        name = names.find(text)
        if name:
            return name
        near = get_close_matches(text.lower(), names.lower, 1)
        hint = f"; is it {names.lower[near[0]]}?" if near else ""
        message = f"there is no host {text[:80]}{hint}"
        raise Refused(message)

    def look(
        self, names: Collection[str], bookings: Sequence[Booking], now: Now, remembered: bool = False
    ) -> dict[str, BoardHost]:
        """These hosts, as they stand with these bookings; with what the builder remembers, where it may be read."""
        return self.gather(names, bookings, now, remembered).boards

    def gather(
        self, names: Collection[str], bookings: Sequence[Booking], now: Now, remembered: bool = False
    ) -> Gathered:
        """The same, with all that it was decided from."""
        memory = Memory(self.settings.state if remembered else Path(os.devnull))
        told = {one.name: one for one in self.snapshots.read(names)[0]}
        by_host, _ = active_bookings.by_host(bookings, self.hosts(), now)
        several = [
            Host(
                known,
                told.get(name),
                by_host.get(name, ()),
                memory.idle.get(name, NEVER),
                memory.kept.get(name, {}),
            )
            for name, known in self.hosts().items()
            if name in names
        ]
        found = self.decided(several, memory.logins, now)
        logins = frozenset().union(*(one.logins for one in found.boards.values()))
        if bookings and not logins <= memory.logins:  # a verdict needs logins that we know
            found = self.decided(several, logins | memory.logins, now)
        return found

    def decided(self, several: Sequence[Host], logins: Collection[str], now: Now) -> Gathered:
        """Each host as it stands, where these logins are known."""
        rules = Rules(self.settings.limits, People(self.people.aliases, logins), self.settings.shown)
        boards = {one.known.name: board_of(one, rules, self.gpu_names, now)[0] for one in several}
        return Gathered(several, boards, rules)

    def gpus(self, name: str) -> Sequence[Gpu]:
        """The GPUs of a host as it last told them."""
        if name not in self.gpus_of:
            told = [one for one in self.snapshots.read({name})[0] if one.name == name]
            dump = told[0].data().gpus if told else None
            self.gpus_of[name] = dump.rows if dump else ()
        return self.gpus_of[name]
