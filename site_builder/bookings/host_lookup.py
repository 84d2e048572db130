"""Look up hosts and GPUs for a booking, decided from data/ at this moment."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from site_builder.bookings.policy import BookingRefusedError
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.model import Booking, DiscoveredHost, Gpu, HostStatus
from site_builder.core.names import HostNameIndex, natural_sort_key
from site_builder.core.people import PeopleDirectory
from site_builder.discovery.hosts import HostDiscovery
from site_builder.fleet import booking_use
from site_builder.fleet.gpu_models import NameFiles
from site_builder.snapshots.store import SnapshotStore

if TYPE_CHECKING:
    from site_builder.fleet.gpu_state import StateRules
    from site_builder.fleet.host_state import HostStatusSources


class HostLookupResult(NamedTuple):
    """The states of hosts, what they were decided from, and the rules."""

    inputs: Sequence[HostStatusSources]
    statuses: dict[str, HostStatus]
    rules: StateRules


class HostLookup:
    """Reads data/ when it is asked, and only what it is asked for."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.snapshots = SnapshotStore(settings.data, None, settings.snapshot_bytes)
        aliases, self.gpu_names, _ = NameFiles(settings.data, None).read_names()
        self.people = PeopleDirectory(aliases)
        self.known_hosts: dict[str, DiscoveredHost] | None = None
        self.gpus_by_host: dict[str, Sequence[Gpu]] = {}

    def list_hosts(self) -> dict[str, DiscoveredHost]:
        """List every host of data/ or hosts.txt, in natural order."""
        if self.known_hosts is None:
            folders, originals = self.snapshots.list_entries([])
            hosts, _ = HostDiscovery(self.settings.data, None, None).list_hosts({*folders, *originals})
            self.known_hosts = dict(sorted(hosts.items(), key=lambda item: natural_sort_key(item[0])))
        return self.known_hosts

    @cached_property
    def host_names(self) -> HostNameIndex:
        return HostNameIndex(self.list_hosts())

    def find_host(self, text: str) -> str:
        """Return the host of a name, a full name, or either in another case; refuse an unknown one."""
        if name := self.host_names.find(text):
            return name
        names_by_lower_case = self.host_names.names_by_lower_case
        similar_names = get_close_matches(text.lower(), names_by_lower_case, 1)
        hint = f"; did you mean {names_by_lower_case[similar_names[0]]}?" if similar_names else ""
        raise BookingRefusedError(f"no host {text[:80]}{hint}")

    def decide_hosts(
        self, names: Collection[str], bookings: Sequence[Booking], now: Now, remembered: bool = False
    ) -> HostLookupResult:
        """Decide the states of hosts with these bookings; with `remembered`, use the builder's memory."""
        # slow to import: completion, which imports all booking commands, must respond within 0.2 s
        from site_builder.fleet.gpu_state import StateRules  # noqa: PLC0415
        from site_builder.fleet.host_state import NO_IDLE_TIMES, HostStatusSources, build_host_status  # noqa: PLC0415
        from site_builder.fleet.store import FleetStore  # noqa: PLC0415

        builder_state = FleetStore(self.settings.state if remembered else Path(os.devnull))
        snapshots = {snapshot.name: snapshot for snapshot in self.snapshots.read_hosts(names)[0]}
        by_host, _ = booking_use.group_fleet_bookings_by_host(bookings, self.list_hosts(), now)
        sources = [
            HostStatusSources(
                discovered,
                snapshots.get(name),
                by_host.get(name, ()),
                builder_state.idle_times.get(name, NO_IDLE_TIMES),
                builder_state.booking_uses.get(name, {}),
            )
            for name, discovered in self.list_hosts().items()
            if name in names
        ]
        logins = builder_state.logins
        while True:
            people = PeopleDirectory(self.people.aliases, logins)
            rules = StateRules(self.settings.limits, people, self.settings.privacy, self.gpu_names)
            statuses = {source.discovered.name: build_host_status(source, rules, now).status for source in sources}
            seen_logins = frozenset().union(*(status.logins for status in statuses.values()))
            if not bookings or seen_logins <= logins:
                return HostLookupResult(sources, statuses, rules)
            logins |= seen_logins  # states depend on the logins that are known

    def list_seen_logins(self) -> frozenset[str]:
        """List the logins that the builder has seen on the hosts."""
        from site_builder.fleet.store import FleetStore  # noqa: PLC0415 # the same

        return frozenset(FleetStore(self.settings.state).logins)

    def list_gpus(self, name: str) -> Sequence[Gpu]:
        """List the GPUs that a host last reported."""
        if name not in self.gpus_by_host:
            snapshots = [snapshot for snapshot in self.snapshots.read_hosts({name})[0] if snapshot.name == name]
            parsed = snapshots[0].parse().gpus if snapshots else None
            self.gpus_by_host[name] = parsed.rows if parsed else ()
        return self.gpus_by_host[name]
