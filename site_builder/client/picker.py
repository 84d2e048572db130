"""Pick free GPUs."""

from __future__ import annotations

import errno
import socket
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from site_builder.client import loader
from site_builder.client.model import Fleet, FleetGpu, FleetHost
from site_builder.config.settings import LoadedSettings
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import RUN_ID_PREFIX, FleetUnavailableError, PrivacySettings
from site_builder.fleet.gpu_models import DEFAULT_VENDOR, is_matching_model, is_matching_model_profile, rank_gpu_model
from site_builder.fleet.topology import GpuPlace, choose_connected_gpus, is_nvlink_group

# A GPU in one of these is not available, however little of its memory is used.
UNPICKABLE_STATES = frozenset({"lost", "unknown"})


class GpuRequest(NamedTuple):
    """A wanted GPU: a model by part of its name, free memory in MiB, a maker, and for how long nobody else books it.

    With `max_used_percent`, how much of the memory is used counts, and not whether the GPU is: the rule of nvgpu.
    """

    model: str = ""
    memory: float = 0
    vendor: str | None = None
    duration_s: float = 0
    max_used_percent: float | None = None
    order: str = "best"  # or `index`


class GpuChoice(NamedTuple):
    """An available GPU; `free_until` is when the next booking by somebody else begins."""

    host: FleetHost
    gpu: FleetGpu
    is_own_booking: bool = False
    free_until: float | None = None

    @property
    def visible_number(self) -> int | str | None:
        """Return what CUDA or HIP calls it here; if some GPUs have instances, CUDA's numbers are not reliable."""
        if self.gpu.uuid and (self.gpu.parent_keys or (self.host.mig_gpus and self.gpu.vendor == DEFAULT_VENDOR)):
            return self.gpu.uuid
        return self.gpu.index if self.gpu.local_index is None else self.gpu.local_index


class GpuRequester(NamedTuple):
    """Who wants a GPU: which names of bookings are theirs, which UUIDs are taken already, and the time.

    What another run of theirs has booked is not for them; a run itself asks the board whether that still holds.
    """

    is_own_name: Callable[[str], bool]
    taken_keys: Container[str]
    now: float
    is_for_run: bool = False


def pick_available_gpus(hosts: Iterable[FleetHost], request: GpuRequest, requester: GpuRequester) -> list[GpuChoice]:
    """Find all available GPUs, the best first: whole GPUs, and of these those with memory of their own.

    Equal ones are in their natural order; with the order `index`, all are.
    """
    choices = [
        GpuChoice(host, gpu, gpu.state == "booked", find_free_until(gpu, requester))
        for host in hosts
        if host.state == "fresh"
        for gpu in host.gpus
        if gpu.index is not None
        and is_matching_vendor_and_model(gpu, request)
        and not explain_unpickable_gpu(gpu, request, requester)
    ]

    return choices if request.order == "index" else sorted(choices, key=rank_gpu_choice)


def rank_gpu_choice(choice: GpuChoice) -> tuple[bool, bool, tuple[int, int, float]]:
    load_per_cpu = None if choice.host.load is None else choice.host.load[0] / (choice.host.cpus or 1)
    rank = rank_gpu_model(choice.gpu.name, choice.gpu.free_memory, load_per_cpu)
    return bool(choice.gpu.parent_keys), choice.gpu.is_memory_shared, rank


def is_matching_vendor_and_model(gpu: FleetGpu, request: GpuRequest) -> bool:
    return request.vendor in {None, gpu.vendor} and is_matching_model(request.model, gpu.model, gpu.name)


def find_free_until(gpu: FleetGpu, requester: GpuRequester) -> float | None:
    """Return when the next booking by somebody else begins, if there is one."""
    starts = [
        booking.since.timestamp()
        for booking in gpu.bookings
        if booking.since and not any(map(requester.is_own_name, booking.names))
    ]
    return min((start for start in starts if start > requester.now), default=None)


def explain_unpickable_gpu(gpu: FleetGpu, request: GpuRequest, requester: GpuRequester) -> str:
    """Return why a GPU is not available, in words for a count; empty if it is free, or the requester's and idle.

    One whose memory is not known has too little, and CUDA cannot name an instance without a UUID.
    """
    if request.max_used_percent is None and gpu.state not in {"free", "booked"}:
        return gpu.state
    if request.max_used_percent is not None and (reason := explain_used_gpu(gpu, request.max_used_percent)):
        return reason
    if gpu.is_avoided:
        return "faulty"
    if gpu.identifier in requester.taken_keys:
        return "taken by another run"
    current = [booking for booking in gpu.bookings if booking.is_current(requester.now)]
    are_own = all(
        any(map(requester.is_own_name, booking.names))
        and (requester.is_for_run or not (booking.id or "").startswith(RUN_ID_PREFIX))
        for booking in current
    )
    if not are_own or (gpu.state == "booked" and not current):
        return "booked"
    free_until = find_free_until(gpu, requester) if request.duration_s else None
    if free_until is not None and free_until < requester.now + request.duration_s:
        return f"booked within {formatting.format_duration(request.duration_s)}"
    if gpu.parent_keys and gpu.uuid is None:
        return "without a UUID"
    has_memory = not request.memory or (gpu.free_memory or 0) >= request.memory
    return "" if has_memory else "with too little memory"


def explain_used_gpu(gpu: FleetGpu, max_used_percent: float) -> str:
    """Return why a GPU is not available by its memory; empty if it is."""
    if gpu.state in UNPICKABLE_STATES:
        return gpu.state
    if gpu.memory_used is None or not gpu.memory_total:
        return "of unknown memory"
    is_available = 100 * gpu.memory_used / gpu.memory_total <= max_used_percent  # never if that is not a number
    return "" if is_available else f"with more than {max_used_percent:g} % of memory used"


def select_gpus_for_one_process(choices: Sequence[GpuChoice], request: GpuRequest) -> list[GpuChoice]:
    """Select what CUDA_VISIBLE_DEVICES takes of one host: whole GPUs, or else one instance, as a process sees only one.

    A request for a profile gets all instances of it, for as many processes.
    """
    whole_gpus = [choice for choice in choices if not choice.gpu.parent_keys]
    of_profile = [choice for choice in choices if is_matching_model_profile(request.model, choice.gpu.profile)]
    return of_profile or whole_gpus or list(choices[:1])


def select_gpus_on_one_host(
    choices: Iterable[GpuChoice], count: int, request: GpuRequest, own_first: bool = False
) -> list[GpuChoice]:
    """Select GPUs of one host and maker: of the first host that has enough, those connected best; none if no host has.

    Of hosts whose GPUs are as good, one with NVLinks between them comes first. If several are wanted, instances count
    only if their profile is wanted: a process sees only one. With `own_first`, GPUs that the user has booked come first
    in `choices`, and are taken first.
    """
    by_host: dict[tuple[str, str], list[GpuChoice]] = {}
    complete: list[tuple[str, str]] = []  # in the order in which they have enough
    for choice in choices:
        if count > 1 and choice.gpu.parent_keys and not is_matching_model_profile(request.model, choice.gpu.profile):
            continue
        key = choice.host.name, choice.gpu.vendor
        host_choices = by_host.setdefault(key, [])
        host_choices.append(choice)
        if len(host_choices) == count:
            complete.append(key)
    if not complete:
        return []

    def rank_host(key: tuple[str, str]) -> tuple[object, ...]:
        is_instance, is_memory_shared, (memory, year, _) = rank_gpu_choice(by_host[key][count - 1])
        return is_instance, is_memory_shared, memory, year

    first = select_connected_gpus(by_host[complete[0]], count, own_first)
    if count == 1:
        return first
    as_good = (by_host[key] for key in complete[1:] if rank_host(key) == rank_host(complete[0]))
    selections = chain([first], (select_connected_gpus(choices, count, own_first) for choices in as_good))
    return next((selected for selected in selections if is_nvlink_group(list(map(locate_gpu_choice, selected)))), first)


def select_connected_gpus(choices: Sequence[GpuChoice], count: int, own_first: bool = False) -> list[GpuChoice]:
    """Select from the GPUs of one host, the best first, those that are best used together, in the same order."""
    if count == 1:  # the best, or one that is as good and leaves more links to the others
        choices = [choice for choice in choices if rank_gpu_choice(choice) == rank_gpu_choice(choices[0])]
    fixed_count = sum(choice.is_own_booking for choice in choices) if own_first else 0
    positions = choose_connected_gpus(list(map(locate_gpu_choice, choices)), count, fixed_count)
    return [choices[position] for position in positions]


def locate_gpu_choice(choice: GpuChoice) -> GpuPlace:
    gpu = choice.gpu
    if gpu.parent_keys:  # an instance cannot use the links of its GPU
        return GpuPlace(gpu.index, model=gpu.name)
    return GpuPlace(gpu.index, gpu.numa_node, gpu.linked or (), gpu.name)


def format_picked_gpus(choices: Iterable[GpuChoice], everywhere: bool) -> str:
    """Format choices as `atlas:2 hydra:amd0`, or as the numbers of one host that CUDA or HIP takes."""
    if everywhere:
        return " ".join(f"{choice.host.name}:{choice.gpu.label}" for choice in choices)
    return ",".join(str(choice.visible_number) for choice in choices)


def describe_picked_gpus(choices: Iterable[GpuChoice], now: Now) -> str:
    """Say until when GPUs are free that somebody else has booked for later; empty if there are none."""
    gpus_by_time: dict[str, list[str]] = {}
    for choice in sorted(choices, key=lambda choice: choice.free_until or 0):
        if choice.free_until is not None:
            until = formatting.format_moment(datetime.fromtimestamp(choice.free_until, now.zone), now)
            gpus_by_time.setdefault(until, []).append(f"{choice.host.name}:{choice.gpu.label}")
    parts = [f"until {until}: {formatting.format_names(gpus, 8)}" for until, gpus in list(gpus_by_time.items())[:5]]
    return f"booked later, so free only {'; '.join(parts)}" if parts else ""


def picked_gpus_to_json(choices: Iterable[GpuChoice], now: Now) -> list[dict[str, Any]]:
    return [
        {
            "host": choice.host.name,
            "gpu": choice.gpu.label,
            "uuid": choice.gpu.uuid,
            "model": choice.gpu.model,
            "visible_device": str(choice.visible_number),
            "memory.free": choice.gpu.free_memory,
            "free_until": None
            if choice.free_until is None
            else datetime.fromtimestamp(choice.free_until, now.zone).isoformat(),
            "booked_by_you": choice.is_own_booking,
        }
        for choice in choices
    ]


def explain_no_gpu_to_pick(hosts: Iterable[FleetHost], request: GpuRequest, requester: GpuRequester) -> str:
    """Explain in a line why no more GPUs are available."""
    gpus = [gpu for host in hosts for gpu in host.gpus]
    matching_gpus = [gpu for gpu in gpus if is_matching_vendor_and_model(gpu, request)]
    if not matching_gpus:
        property_name = "model" if any(request.vendor in {None, gpu.vendor} for gpu in gpus) else "maker"
        return f"none of its {len(gpus)} GPUs is of this {property_name}" if gpus else "no GPU"
    counts = Counter(explain_unpickable_gpu(gpu, request, requester) or "free" for gpu in matching_gpus)
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


class PickResult(NamedTuple):
    """What is available at a moment of the board's clock, where, and why no more."""

    now: float
    choices: list[GpuChoice]
    source: str
    reason: str


class GpuPicker:
    """Loads the fleet again and again, for a request; raises FleetUnavailableError if it cannot."""

    def __init__(
        self,
        loaded: LoadedSettings,
        request: GpuRequest,
        host: str | None = None,
        name: str | None = None,
        has_topology: bool = False,
    ) -> None:
        """Pick on `host`, or else this machine; the bookings of `name`, or else of the user, count as free.

        `has_topology` asks this machine's own driver how its GPUs are connected, if there is no board that knows it.
        """
        self.loaded = loaded
        self.request = request
        self.host = host
        self.is_mine = loader.build_fleet_owner_check(loaded, name)
        # who may read a data folder may see names, and needs them to find their own bookings
        named = replace(loaded, settings=replace(loaded.settings, privacy=PrivacySettings()))
        self.load_fleet: Callable[[], Fleet] = loader.open_fleet(named, has_topology)

    def find_gpus(self, everywhere: bool = False, for_run: bool = False) -> PickResult:
        """Find what is available now, on all hosts or on one; a run is on this machine, whatever the board calls it."""
        fleet = self.load_fleet()
        hosts = fleet.hosts if everywhere else (loader.find_loaded_fleet_host(fleet, self.host, self.loaded),)
        source = fleet.source if everywhere else hosts[0].name
        if not any(host.state == "fresh" for host in hosts):
            reason = "".join(f": {host.name} is {host.state}: {host.reason}" for host in hosts[:1])
            raise FleetUnavailableError(f"no current data of {source}{reason}")
        requester = GpuRequester(self.is_mine, ClaimedGpus(), time.time() + fleet.clock_ahead_s, for_run)
        if not everywhere and (for_run or self.host is None) and loader.choose_fleet_source(self.loaded) != "machine":
            hosts = (self.merge_local_view(hosts[0]),)
        request = self.request
        if not everywhere and not request.vendor:  # for one program: numbers of two makers cannot be used together
            vendors = [gpu.vendor for gpu in (*hosts[0].gpus, *hosts[0].mig_gpus)]
            if vendors:
                request = request._replace(vendor=DEFAULT_VENDOR if DEFAULT_VENDOR in vendors else vendors[0])
        choices = pick_available_gpus(hosts, request, requester)
        return PickResult(requester.now, choices, source, explain_no_gpu_to_pick(hosts, request, requester))

    def merge_local_view(self, host: FleetHost) -> FleetHost:
        """Merge a host with what its driver reports here, under its own numbers: a container may see only some GPUs."""
        try:
            local_host = loader.load_machine_fleet(self.loaded.settings).hosts[0]
        except loader.NoGpuToolError:
            return host  # as in many containers
        local_gpus = {gpu.identifier: gpu for gpu in (*local_host.gpus, *local_host.mig_gpus)}
        if host.gpus and not any(gpu.identifier in local_gpus for gpu in (*host.gpus, *host.mig_gpus)):
            raise FleetUnavailableError(
                f"the GPUs of {host.name} are not those of this machine: give this machine's name on the board with "
                "--host, or use --all"
            )
        hidden_mig_gpus = {gpu.identifier.lower() for gpu in local_host.gpus if gpu in local_host.mig_gpus}
        # a number means the same GPU only if all are visible
        if sum(gpu.uuid is None for gpu in local_host.gpus) != sum(gpu.uuid is None for gpu in host.gpus):
            local_gpus = {identifier: gpu for identifier, gpu in local_gpus.items() if gpu.uuid}
        gpus = []
        for gpu in host.gpus:  # the board knows its bookings, the machine its use
            merged, local_gpu = gpu, local_gpus.get(gpu.identifier)
            if local_gpu is None:
                # a GPU in MIG mode may have instances here that are not reported: there the board's word holds
                is_hidden = any(name in hidden_mig_gpus for name in gpu.parent_keys)
                if not is_hidden and gpu.state != "lost":
                    merged = gpu._replace(state="unknown", reason="not visible on this machine")
            else:
                merged = gpu._replace(
                    local_index=local_gpu.index,
                    memory_used=local_gpu.memory_used,
                    problems=(*gpu.problems, *local_gpu.problems),
                )
                if local_gpu.state != "free" and gpu.state not in UNPICKABLE_STATES:
                    merged = merged._replace(state=local_gpu.state, reason=local_gpu.reason)
            gpus.append(merged)
        return host._replace(gpus=tuple(gpus), mig_gpus=host.mig_gpus or local_host.mig_gpus)


SOCKET_PREFIX = "gpuboard/run/"
SOCKET_TABLE = Path("/proc/net/unix")


def claim_picked_gpu(uuid: str) -> int | None:
    """Claim a GPU for as long as the returned handle is open in any process; None if another has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim_socket:
        try:
            claim_socket.bind(f"\0{build_claimed_gpu_socket_name(uuid)}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            message = f"no GPU can be claimed on this machine: {error.strerror}"
            raise FleetUnavailableError(message) from None
        return claim_socket.detach()


def build_claimed_gpu_socket_name(uuid: str) -> str:
    """Return a short plain name for a GPU, whatever a board calls it."""
    return f"{SOCKET_PREFIX}{blake2b(uuid.encode('utf-8', 'replace'), digest_size=16).hexdigest()}"


class ClaimedGpus:
    """The GPUs of this machine that runs have claimed at this moment."""

    def __init__(self) -> None:
        try:
            lines = SOCKET_TABLE.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        names = (line.rpartition(" ")[2] for line in lines)
        self.socket_names = frozenset(name[1:] for name in names if name.startswith(f"@{SOCKET_PREFIX}"))

    def __contains__(self, uuid: object) -> bool:
        return isinstance(uuid, str) and build_claimed_gpu_socket_name(uuid) in self.socket_names
