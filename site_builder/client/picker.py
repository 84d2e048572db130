"""What somebody can have now, wherever the fleet is told: for the commands that pick, and for Python programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from site_builder.client import gpu_locks, loader
from site_builder.client.model import Failed, Fleet, Gpu, Host
from site_builder.config.conf_file import Loaded
from site_builder.core.model import Shown
from site_builder.fleet import select
from site_builder.fleet.select import Choice, Wish


class Found(NamedTuple):
    """A look at the fleet: what can be had, where, and why no more."""

    fleet: Fleet
    hosts: Sequence[Host]
    choices: list[Choice]
    where: str
    why: str


class Picker:
    """Looks at the fleet again and again, for somebody who wants GPUs of a kind; `Failed` says why it cannot."""

    def __init__(self, loaded: Loaded, wish: Wish, host: str | None = None, name: str | None = None) -> None:
        """Of one host, this machine if none is named; `name` is whose bookings count as free, one's own if none is."""
        self.loaded = loaded
        self.wish = wish
        self.host = host
        self.is_mine = loader.whose(loaded, name)
        # who may read a data folder may know whose a booking is: without names, one's own would be nobody's
        named = replace(loaded, settings=replace(loaded.settings, shown=Shown()))
        self.look: Callable[[], Fleet] = loader.open_fleet(named)

    def found(self, everywhere: bool = False, for_run: bool = False) -> Found:
        """What can be had now: of all hosts, or of one; a run is of this machine, whatever the board calls it."""
        fleet = self.look()
        hosts = fleet.hosts if everywhere else (loader.host_of(fleet, self.host, self.loaded),)
        where = fleet.where if everywhere else hosts[0].name
        if not any(one.state == "fresh" for one in hosts):
            why = "".join(f": {one.name} is {one.state}: {one.reason}" for one in hosts[:1])
            message = f"nothing on {where} can be told{why}"
            raise Failed(message)
        asker = select.Asker(self.is_mine, gpu_locks.Claimed(), time.time() + fleet.ahead, for_run)
        if not everywhere and (for_run or self.host is None) and loader.kind_of(self.loaded) != "machine":
            hosts = (self.as_seen_here(hosts[0]),)
        wish = self.wish if everywhere else select.of_one_maker(hosts[0], self.wish)
        choices = select.available(hosts, wish, asker)
        return Found(fleet, hosts, choices, where, select.why_none(hosts, wish, asker))

    def as_seen_here(self, host: Host) -> Host:
        """A host as its driver tells it now, and by its own numbers: a container may see but some GPUs."""
        try:
            here = loader.of_machine(self.loaded.settings).hosts[0]
        except loader.NoDriver:
            return host  # nobody can be asked, as in many a container
        own = {gpu.handle: gpu for gpu in (*here.gpus, *here.cut)}
        if host.gpus and not any(gpu.handle in own for gpu in (*host.gpus, *host.cut)):
            message = f"the GPUs of {host.name} are not those of this machine"
            raise Failed(f"{message}: name it as the board does with --host, or ask for all hosts with --all")
        there = {gpu.handle.lower() for gpu in here.gpus if gpu in here.cut}
        if unnamed(here) != unnamed(host):  # a number means the same GPU only if all are seen
            own = {handle: gpu for handle, gpu in own.items() if gpu.uuid}
        gpus = tuple(seen_here(gpu, own.get(gpu.handle), there) for gpu in host.gpus)
        return host._replace(gpus=gpus, cut=host.cut or here.cut)


def unnamed(host: Host) -> int:
    """How many GPUs of a host have no UUID."""
    return sum(gpu.uuid is None for gpu in host.gpus)


def seen_here(gpu: Gpu, own: Gpu | None, untold: Collection[str] = ()) -> Gpu:
    """A GPU with what this machine says of it: what is promised, the board knows, and whether it is used, we do.

    `untold` are GPUs of which this machine may have instances, but does not tell them: there the board's word holds.
    """
    if own is None and any(name in untold for name in gpu.of):
        return gpu
    if own is None:
        return gpu if gpu.state == "lost" else gpu._replace(state="unknown", reason="this machine does not see it")
    if own.state != "free":
        return gpu._replace(state=own.state, reason=own.reason)
    return gpu._replace(number=own.index, problems=(*gpu.problems, *own.problems))
