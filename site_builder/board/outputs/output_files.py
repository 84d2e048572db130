"""The files of www/ for terminals and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import orjson

from site_builder import __version__
from site_builder.board.host_pipeline import BuiltHost
from site_builder.board.outputs import detail, host_json, metrics, term
from site_builder.core.clock import Now
from site_builder.core.faults import FAULT_NOTE
from site_builder.core.files import compute_digest
from site_builder.core.model import HostStatus, Problem
from site_builder.core.published_files import OutputFile
from site_builder.fleet.summary import AvailableGpu
from site_builder.snapshots.registry import GPU_TOOLS


def render_host_available(gpus: Iterable[AvailableGpu], vendor: str = "nvidia") -> bytes:
    """`0,2` for CUDA_VISIBLE_DEVICES, the best first; nothing at all where none is free, which hides all from CUDA.

    Of one maker: what one calls 0 is another GPU than what the other does. A process sees but one instance: where no
    whole GPU is free, it is the best of them.
    """
    ranked = sorted((one for one in gpus if one.vendor == vendor), key=lambda one: one.rank)
    several = [one for one in ranked if not one.is_instance] or ranked[:1]
    text = ",".join(str(one.uuid or (one.index if one.is_instance else one.vendor_index)) for one in several)
    return f"{text}\n".encode() if text else b""


def render_fleet_available(gpus: Iterable[AvailableGpu]) -> bytes:
    """`atlas:2 hydra:3`, the best first; of two that are as good, the one that stands first on the board."""
    text = " ".join(f"{one.host}:{one.index}" for one in sorted(gpus, key=lambda one: one.rank))
    return f"{text}\n".encode() if text else b""


BuiltHosts = Mapping[str, BuiltHost]
AVAILABLE_FOLDER, STATES_FOLDER, NODES_FOLDER = "available", "states", "nodes"
AVAILABLE_FILE = f"{AVAILABLE_FOLDER}.txt"
TERM_FILE, TERM_ANSI_FILE, DETAIL_FILE = "term.txt", "term-ansi.txt", "detail.txt"
# Whose GPUs stand in available/HOST.txt, and whose have a folder of their own beside.
DEFAULT_VENDOR = "nvidia"
OTHER_VENDORS = tuple(dict.fromkeys(tool.vendor for tool in GPU_TOOLS.values() if tool.vendor != DEFAULT_VENDOR))
OUTPUT_FOLDERS = (
    AVAILABLE_FOLDER,
    STATES_FOLDER,
    NODES_FOLDER,
    *(f"{AVAILABLE_FOLDER}-{vendor}" for vendor in OTHER_VENDORS),
)


class JoinedFile(NamedTuple):
    """A file that is made of those of all hosts."""

    name: str
    build_host_path: Callable[[str], str]
    join: Callable[[Iterable[bytes]], bytes]


def build_available_path(host: str, vendor: str | None = None) -> str:
    """The file of a host's free GPUs, or of those of one maker."""
    return f"{AVAILABLE_FOLDER}-{vendor}/{host}.txt" if vendor else f"{AVAILABLE_FOLDER}/{host}.txt"


def list_other_vendor_hosts(cards: BuiltHosts) -> Iterator[tuple[str, str, BuiltHost]]:
    """The makers whose GPUs have a file of their own: the host, the maker, and the host's card."""
    return (
        (host, maker, one) for host, one in cards.items() for maker in one.summary.vendors if maker in OTHER_VENDORS
    )


def build_states_path(host: str) -> str:
    """The file of a host in the shape of vesta; no host has the name of the file of all."""
    return f"{STATES_FOLDER}/{'_' if host == 'index.json' else ''}{host}/index.json"


def build_node_path(host: str) -> str:
    """The file of a host in the shape of the GPU Cluster Status Monitor; the same."""
    return f"{NODES_FOLDER}/{'_' if host == 'index' else ''}{host}.json"


JOINED_FILES = (
    JoinedFile(f"{STATES_FOLDER}/index.json", build_states_path, host_json.render_all_states),
    JoinedFile(f"{NODES_FOLDER}/index.json", build_node_path, host_json.render_all_nodes),
)


def render_host_files(board: HostStatus, looked: float | None, now: Now) -> dict[str, bytes]:
    """What exists once a host, for programs; `looked` is when its GPUs were."""
    return {
        build_states_path(board.name): host_json.render_states_host(board, looked, now),
        build_node_path(board.name): host_json.render_node_host(board, now),
    }


def render_failed_host_files(name: str) -> dict[str, bytes]:
    """The same, by hand, of a host at which the renderers fail: that there is one, and no GPU to be had."""
    reason = f"its files for programs could not be made, {FAULT_NOTE}"
    state: dict[str, object] = {"data": [], "ip_address": None, "state": "failed", "reason": reason}
    node: dict[str, object] = {
        "hostname": name,
        "last_update": None,
        "ips": [],
        "gpus": [],
        "status": False,
        "state": "failed",
    }
    newline = orjson.OPT_APPEND_NEWLINE
    return {
        build_states_path(name): orjson.dumps({name: state}, option=newline),
        build_node_path(name): orjson.dumps(
            {**node, "state": "failed", "reason": reason, "seen": None}, option=newline
        ),
    }


def build_fleet_available_file(cards: BuiltHosts) -> Iterator[OutputFile]:
    """Which GPUs are free, in all."""
    every = [gpu for one in cards.values() for gpu in one.summary.available_gpus]
    content = render_fleet_available(every)
    yield OutputFile(AVAILABLE_FILE, compute_digest(content), lambda: content, has_build_time=False)


def build_host_available_files(host: str, one: BuiltHost) -> Iterator[OutputFile]:
    """The same of a host: of its NVIDIA GPUs, or else of those that it has; those of each other maker beside."""
    makers = one.summary.vendors
    text = render_host_available(
        one.summary.available_gpus, DEFAULT_VENDOR if DEFAULT_VENDOR in makers or not makers else makers[0]
    )
    yield OutputFile(build_available_path(host), text or b"none", partial(bytes, text), has_build_time=False)
    for maker in makers:
        if maker in OTHER_VENDORS:
            text = render_host_available(one.summary.available_gpus, maker)
            yield OutputFile(
                build_available_path(host, maker), text or b"none", partial(bytes, text), has_build_time=False
            )


def build_empty_available_files(host: str, one: BuiltHost) -> Iterator[OutputFile]:
    """The same files, empty: where we fail at them, an older one must not hand out a GPU."""
    for maker in (None, *(maker for maker in one.summary.vendors if maker in OTHER_VENDORS)):
        yield OutputFile(build_available_path(host, maker), b"none", lambda: b"", has_build_time=False)


def build_term_file(cards: BuiltHosts, now: Now, colour: bool) -> OutputFile:
    """The table for terminals."""
    facts = compute_digest(__version__.encode(), *(one.digests.term for one in cards.values()))
    rows = [one.term_part for one in cards.values()]
    return OutputFile(
        TERM_ANSI_FILE if colour else TERM_FILE,
        facts,
        lambda: term.render_term_txt(rows, __version__, now, colour=colour),
    )


def build_detail_file(cards: BuiltHosts, now: Now) -> OutputFile:
    """The same at length."""
    facts = compute_digest(__version__.encode(), *(one.digests.detail for one in cards.values()))
    return OutputFile(
        DETAIL_FILE,
        facts,
        lambda: detail.render_detail_txt((one.detail_text for one in cards.values()), __version__, now),
    )


def render_fleet_metrics(
    cards: BuiltHosts, problems: Sequence[Problem], now: Now, every: int, took: float | None
) -> bytes:
    """The file for Prometheus; `took` is how many seconds the build before this one did."""
    using: dict[str, int] = {}
    booked: dict[str, int] = {}
    bookings = [0, 0]
    for one in cards.values():
        people = one.summary.people
        for found, told in ((using, people.gpus_used), (booked, people.gpus_booked)):
            for name, count in told.items():
                found[name] = found.get(name, 0) + count
        bookings = [sum(both) for both in zip(bookings, people.booking_counts)]
    fleet = metrics.FleetMetrics(using, booked, (bookings[0], bookings[1]), len(problems), __version__, every, took)
    return metrics.render_metrics(
        ((one.metric_lines, host, one.last_seen) for host, one in cards.items()), fleet, now.epoch
    )
