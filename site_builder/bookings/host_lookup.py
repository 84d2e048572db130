"""The hosts as a booking needs them: decided from data/ at this moment, and nothing of it kept."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from site_builder.bookings.policy import BookingRefusedError
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.model import Booking, DiscoveredHost, Gpu, HostStatus
from site_builder.core.names import natural_sort_key
from site_builder.core.people import PeopleDirectory
from site_builder.discovery.hosts import HostDiscovery
from site_builder.fleet import booking_use
from site_builder.fleet.build import NO_IDLE_TIMES, HostSources, decide_host
from site_builder.fleet.gpu_models import NameFiles
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.store import BuilderState
from site_builder.snapshots.store import SnapshotStore


class DecidedHosts(NamedTuple):
    """Hosts as they stand, what they were decided from, and by what."""

    inputs: Sequence[HostSources]
    statuses: dict[str, HostStatus]
    rules: StateRules


class HostLookup:
    """Looks at data/ when it is asked, and at no more of it than it is asked for."""

    def __init__(self, settings: Settings) -> None:
        """Whose data/ it is."""
        self.settings = settings
        self.snapshots = SnapshotStore(settings.data, None, settings.snapshot_bytes)
        aliases, self.gpu_names, _ = NameFiles(settings.data, None).read_names()
        self.people = PeopleDirectory(aliases)
        self.known_hosts: dict[str, DiscoveredHost] | None = None
        self.host_names: booking_use.HostNameIndex | None = None
        self.gpus_by_host: dict[str, Sequence[Gpu]] = {}

    def list_hosts(self) -> dict[str, DiscoveredHost]:
        """Every host that data/ has or hosts.txt names, in the order in which people count."""
        if self.known_hosts is None:
            folders, originals = self.snapshots.list_entries([])
            found, _ = HostDiscovery(self.settings.data, None, None).list_hosts({*folders, *originals})
            self.known_hosts = dict(sorted(found.items(), key=lambda item: natural_sort_key(item[0])))
        return self.known_hosts

    def index_names(self) -> booking_use.HostNameIndex:
        """The same, by whatever people write."""
        if self.host_names is None:
            self.host_names = booking_use.HostNameIndex(self.list_hosts())
        return self.host_names

    def find_host(self, text: str) -> str:
        """A host by its name, its full name, or either in another case; one that there is not is refused."""
        names = self.index_names()
        name = names.find(text)
        if name:
            return name
        near = get_close_matches(text.lower(), names.names_by_lower_case, 1)
        hint = f"; is it {names.names_by_lower_case[near[0]]}?" if near else ""
        message = f"there is no host {text[:80]}{hint}"
        raise BookingRefusedError(message)

    def decide_statuses(
        self, names: Collection[str], bookings: Sequence[Booking], now: Now, remembered: bool = False
    ) -> dict[str, HostStatus]:
        """These hosts, as they stand with these bookings; with what the builder remembers, where it may be read."""
        return self.decide_hosts(names, bookings, now, remembered).statuses

    def decide_hosts(
        self, names: Collection[str], bookings: Sequence[Booking], now: Now, remembered: bool = False
    ) -> DecidedHosts:
        """The same, with all that it was decided from."""
        memory = BuilderState(self.settings.state if remembered else Path(os.devnull))
        told = {one.name: one for one in self.snapshots.read_hosts(names)[0]}
        by_host, _ = booking_use.group_bookings_by_host(bookings, self.list_hosts(), now)
        several = [
            HostSources(
                known,
                told.get(name),
                by_host.get(name, ()),
                memory.idle_times.get(name, NO_IDLE_TIMES),
                memory.booking_uses.get(name, {}),
            )
            for name, known in self.list_hosts().items()
            if name in names
        ]
        found = self.apply_rules(several, memory.logins, now)
        logins = frozenset().union(*(one.logins for one in found.statuses.values()))
        if bookings and not logins <= memory.logins:  # a verdict needs logins that we know
            found = self.apply_rules(several, logins | memory.logins, now)
        return found

    def apply_rules(self, several: Sequence[HostSources], logins: Collection[str], now: Now) -> DecidedHosts:
        """Each host as it stands, where these logins are known."""
        rules = StateRules(self.settings.limits, PeopleDirectory(self.people.aliases, logins), self.settings.privacy)
        boards = {one.discovered.name: decide_host(one, rules, self.gpu_names, now).status for one in several}
        return DecidedHosts(several, boards, rules)

    def list_gpus(self, name: str) -> Sequence[Gpu]:
        """The GPUs of a host as it last told them."""
        if name not in self.gpus_by_host:
            told = [one for one in self.snapshots.read_hosts({name})[0] if one.name == name]
            dump = told[0].parse().gpus if told else None
            self.gpus_by_host[name] = dump.rows if dump else ()
        return self.gpus_by_host[name]
