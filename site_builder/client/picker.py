"""Pick free GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from site_builder.bookings.transaction import RUN_ID_PREFIX
from site_builder.client import loader, run_reservation
from site_builder.client.model import Fleet, FleetGpu, FleetHost
from site_builder.config.conf_file import LoadedSettings
from site_builder.core.board_client import FleetUnavailableError
from site_builder.core.model import PrivacySettings
from site_builder.fleet.gpu_models import DEFAULT_VENDOR, is_matching_model, is_matching_profile, rank_gpu


class GpuRequest(NamedTuple):
    """What a GPU must have: a model by part of its name, free memory in MiB, and of which maker it must be."""

    model: str = ""
    memory: float = 0
    vendor: str | None = None


ANY_GPU = GpuRequest()


class GpuChoice(NamedTuple):
    """A GPU that can be had; `mine` if it is promised to whoever asks."""

    host: FleetHost
    gpu: FleetGpu
    is_own_booking: bool = False

    @property
    def visible_number(self) -> int | str | None:
        """What CUDA or HIP calls it where we are; where some GPUs are cut, CUDA's numbers are not what they seem."""
        if self.gpu.uuid and (self.gpu.parent_keys or (self.host.mig_gpus and self.gpu.vendor == DEFAULT_VENDOR)):
            return self.gpu.uuid
        return self.gpu.index if self.gpu.local_index is None else self.gpu.local_index


class GpuRequester(NamedTuple):
    """Who wants a GPU: which names of bookings are theirs, which UUIDs are taken already, and when it is.

    What another run of theirs has booked is not for them; a run itself asks at the desk whether that holds still.
    """

    is_own_name: Callable[[str], bool]
    taken_keys: Container[str]
    now: float
    is_for_run: bool = False


def compute_free_memory(gpu: FleetGpu) -> float | None:
    """How much of its memory nobody uses, in MiB."""
    if gpu.memory_total is None or gpu.memory_used is None:
        return None
    return max(0.0, gpu.memory_total - gpu.memory_used)


def compute_load_per_cpu(host: FleetHost) -> float | None:
    """How much a host has to do, for each of its CPUs."""
    return None if host.load is None else host.load[0] / (host.cpus or 1)


def find_available_gpus(hosts: Iterable[FleetHost], wish: GpuRequest, asker: GpuRequester) -> list[GpuChoice]:
    """All that can be had, the best first, instances behind whole GPUs; of those that are alike, as people count."""
    found = [
        GpuChoice(host, gpu, gpu.state == "booked")
        for host in hosts
        if host.state == "fresh"
        for gpu in host.gpus
        if is_available(gpu, asker) and is_matching_request(gpu, wish)
    ]
    return sorted(
        found,
        key=lambda one: (
            bool(one.gpu.parent_keys),
            rank_gpu(one.gpu.name, compute_free_memory(one.gpu), compute_load_per_cpu(one.host)),
        ),
    )


def is_available(gpu: FleetGpu, asker: GpuRequester) -> bool:
    """Free, or promised to the asker and unused; nothing that is in error, taken, or has no name that CUDA takes."""
    if (
        gpu.index is None
        or gpu.is_avoided
        or gpu.identifier in asker.taken_keys
        or (gpu.parent_keys and gpu.uuid is None)
    ):
        return False
    return gpu.state in {"free", "booked"} and is_free_for(gpu, asker)


def is_free_for(gpu: FleetGpu, asker: GpuRequester) -> bool:
    """Whether nobody else is promised it now; one that is called booked must be the asker's."""
    current = [
        one
        for one in gpu.bookings
        if (one.since is None or one.since.timestamp() <= asker.now) and asker.now < one.until.timestamp()
    ]
    return bool(current or gpu.state == "free") and all(
        one.name is not None
        and asker.is_own_name(one.name)
        and (asker.is_for_run or not (one.id or "").startswith(RUN_ID_PREFIX))
        for one in current
    )


def is_matching_request(gpu: FleetGpu, wish: GpuRequest) -> bool:
    """Whether it is of the model, and has the memory; one that does not tell its memory has too little."""
    enough = not wish.memory or (compute_free_memory(gpu) or 0) >= wish.memory
    return enough and is_matching_vendor_and_model(gpu, wish)


def is_matching_vendor_and_model(gpu: FleetGpu, wish: GpuRequest) -> bool:
    """Whether it is of the maker and of the model."""
    return wish.vendor in {None, gpu.vendor} and is_matching_model(wish.model, gpu.model, gpu.name)


def restrict_to_one_vendor(host: FleetHost, wish: GpuRequest) -> GpuRequest:
    """The wish for GPUs of a host that one program shall see: numbers of two makers never mean anything together."""
    makers = [gpu.vendor for gpu in (*host.gpus, *host.mig_gpus)]
    return (
        wish
        if wish.vendor or not makers
        else wish._replace(vendor=DEFAULT_VENDOR if DEFAULT_VENDOR in makers else makers[0])
    )


def select_for_one_process(choices: Sequence[GpuChoice], wish: GpuRequest) -> list[GpuChoice]:
    """What CUDA_VISIBLE_DEVICES takes of one host: whole GPUs, or else one instance, for a process sees but one.

    Who asks for a profile gets all of that, for as many processes.
    """
    wholes = [one for one in choices if not one.gpu.parent_keys]
    asked = [one for one in choices if is_matching_profile(wish.model, one.gpu.profile)]
    return asked or wholes or list(choices[:1])


def select_on_one_host(choices: Iterable[GpuChoice], count: int, wish: GpuRequest = ANY_GPU) -> list[GpuChoice]:
    """So many of one host and maker: the best that there are on the first host that has enough; none if no host has.

    Where several are wanted, instances are none of them unless their profile is: a process sees but one.
    """
    by_host: dict[tuple[str, str], list[GpuChoice]] = {}
    for one in choices:
        if count > 1 and one.gpu.parent_keys and not is_matching_profile(wish.model, one.gpu.profile):
            continue
        several = by_host.setdefault((one.host.name, one.gpu.vendor), [])
        several.append(one)
        if len(several) == count:
            return several
    return []


def explain_none_available(hosts: Iterable[FleetHost], wish: GpuRequest, asker: GpuRequester) -> str:
    """Why nothing more can be had, as far as that can be said in a line."""
    several = [gpu for host in hosts for gpu in host.gpus]
    right = [gpu for gpu in several if is_matching_vendor_and_model(gpu, wish)]
    if not right:
        what = "model" if any(wish.vendor in {None, gpu.vendor} for gpu in several) else "maker"
        return f"none of its {len(several)} GPUs is of that {what}" if several else "there is no GPU"
    counts: dict[str, int] = {}
    for gpu in right:
        why = explain_unavailable_gpu(gpu, wish, asker)
        counts[why] = counts.get(why, 0) + 1
    return ", ".join(f"{count} {why}" for why, count in counts.items())


def explain_unavailable_gpu(gpu: FleetGpu, wish: GpuRequest, asker: GpuRequester) -> str:
    """What keeps us from a GPU, in a word or two."""
    if gpu.state not in {"free", "booked"}:
        return gpu.state
    if gpu.is_avoided:
        return "in trouble"
    if gpu.identifier in asker.taken_keys:
        return "taken by another run"
    if not is_free_for(gpu, asker):
        return "booked"
    if gpu.parent_keys and gpu.uuid is None:
        return "without a UUID"
    return "free" if is_matching_request(gpu, wish) else "with too little memory"


class PickResult(NamedTuple):
    """A look at the fleet: what can be had, where, and why no more."""

    fleet: Fleet
    hosts: Sequence[FleetHost]
    choices: list[GpuChoice]
    source: str
    reason: str


class GpuPicker:
    """Looks at the fleet again and again, for somebody who wants GPUs of a kind; `FleetUnavailableError` says why it cannot."""

    def __init__(
        self, loaded: LoadedSettings, wish: GpuRequest, host: str | None = None, name: str | None = None
    ) -> None:
        """Of one host, this machine if none is named; `name` is whose bookings count as free, one's own if none is."""
        self.loaded = loaded
        self.request = wish
        self.host = host
        self.is_mine = loader.build_owner_check(loaded, name)
        # who may read a data folder may know whose a booking is: without names, one's own would be nobody's
        named = replace(loaded, settings=replace(loaded.settings, privacy=PrivacySettings()))
        self.load_fleet: Callable[[], Fleet] = loader.open_fleet(named)

    def find_gpus(self, everywhere: bool = False, for_run: bool = False) -> PickResult:
        """What can be had now: of all hosts, or of one; a run is of this machine, whatever the board calls it."""
        fleet = self.load_fleet()
        hosts = fleet.hosts if everywhere else (loader.find_wanted_host(fleet, self.host, self.loaded),)
        where = fleet.source if everywhere else hosts[0].name
        if not any(one.state == "fresh" for one in hosts):
            why = "".join(f": {one.name} is {one.state}: {one.reason}" for one in hosts[:1])
            message = f"nothing on {where} can be told{why}"
            raise FleetUnavailableError(message)
        asker = GpuRequester(self.is_mine, run_reservation.ClaimedGpus(), time.time() + fleet.clock_ahead_s, for_run)
        if not everywhere and (for_run or self.host is None) and loader.choose_fleet_source(self.loaded) != "machine":
            hosts = (self.merge_local_view(hosts[0]),)
        wish = self.request if everywhere else restrict_to_one_vendor(hosts[0], self.request)
        choices = find_available_gpus(hosts, wish, asker)
        return PickResult(fleet, hosts, choices, where, explain_none_available(hosts, wish, asker))

    def merge_local_view(self, host: FleetHost) -> FleetHost:
        """A host as its driver tells it now, and by its own numbers: a container may see but some GPUs."""
        try:
            here = loader.load_machine_fleet(self.loaded.settings).hosts[0]
        except loader.NoGpuToolError:
            return host  # nobody can be asked, as in many a container
        own = {gpu.identifier: gpu for gpu in (*here.gpus, *here.mig_gpus)}
        if host.gpus and not any(gpu.identifier in own for gpu in (*host.gpus, *host.mig_gpus)):
            message = f"the GPUs of {host.name} are not those of this machine"
            raise FleetUnavailableError(
                f"{message}: name it as the board does with --host, or ask for all hosts with --all"
            )
        there = {gpu.identifier.lower() for gpu in here.gpus if gpu in here.mig_gpus}
        if count_gpus_without_uuid(here) != count_gpus_without_uuid(
            host
        ):  # a number means the same GPU only if all are seen
            own = {handle: gpu for handle, gpu in own.items() if gpu.uuid}
        gpus = tuple(merge_local_gpu(gpu, own.get(gpu.identifier), there) for gpu in host.gpus)
        return host._replace(gpus=gpus, mig_gpus=host.mig_gpus or here.mig_gpus)


def count_gpus_without_uuid(host: FleetHost) -> int:
    """How many GPUs of a host have no UUID."""
    return sum(gpu.uuid is None for gpu in host.gpus)


def merge_local_gpu(gpu: FleetGpu, own: FleetGpu | None, untold: Collection[str] = ()) -> FleetGpu:
    """A GPU with what this machine says of it: what is promised, the board knows, and whether it is used, we do.

    `untold` are GPUs of which this machine may have instances, but does not tell them: there the board's word holds.
    """
    if own is None and any(name in untold for name in gpu.parent_keys):
        return gpu
    if own is None:
        return gpu if gpu.state == "lost" else gpu._replace(state="unknown", reason="this machine does not see it")
    if own.state != "free":
        return gpu._replace(state=own.state, reason=own.reason)
    return gpu._replace(local_index=own.index, problems=(*gpu.problems, *own.problems))
