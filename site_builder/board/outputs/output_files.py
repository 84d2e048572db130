"""The files of www/ for terminals and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import orjson

from site_builder import __version__
from site_builder.board.host_pipeline import BuiltHost, BuiltHosts
from site_builder.board.outputs import detail, host_json, metrics, term
from site_builder.core.clock import Now
from site_builder.core.faults import FAULT_NOTE
from site_builder.core.files import compute_digest
from site_builder.core.model import HostStatus, Problem
from site_builder.core.published_files import OutputFile
from site_builder.fleet.gpu_models import DEFAULT_VENDOR
from site_builder.fleet.summary import AvailableGpu
from site_builder.snapshots.registry import GPU_TOOLS

AVAILABLE_FOLDER, STATES_FOLDER, NODES_FOLDER = "available", "states", "nodes"
AVAILABLE_FILE = f"{AVAILABLE_FOLDER}.txt"
TERM_FILE, TERM_ANSI_FILE, DETAIL_FILE = "term.txt", "term-ansi.txt", "detail.txt"
# GPUs of the default vendor are in available/HOST.txt; each other vendor has a folder of its own.
OTHER_VENDORS = tuple(dict.fromkeys(tool.vendor for tool in GPU_TOOLS.values() if tool.vendor != DEFAULT_VENDOR))
OUTPUT_FOLDERS = (
    AVAILABLE_FOLDER,
    STATES_FOLDER,
    NODES_FOLDER,
    *(f"{AVAILABLE_FOLDER}-{vendor}" for vendor in OTHER_VENDORS),
)


def build_available_path(host: str, vendor: str | None = None) -> str:
    return f"{AVAILABLE_FOLDER}-{vendor}/{host}.txt" if vendor else f"{AVAILABLE_FOLDER}/{host}.txt"


def build_states_path(host: str) -> str:
    """Return the file of a host in the shape of vesta; no host may have the name of the file of all hosts."""
    return f"{STATES_FOLDER}/{'_' if host == 'index.json' else ''}{host}/index.json"


def build_node_path(host: str) -> str:
    """Return the file of a host in the shape of the GPU Cluster Status Monitor."""
    return f"{NODES_FOLDER}/{'_' if host == 'index' else ''}{host}.json"


# Which GPUs are free


def render_host_available(gpus: Iterable[AvailableGpu], vendor: str = DEFAULT_VENDOR) -> bytes:
    """Render `0,2` for CUDA_VISIBLE_DEVICES, the best first; if none is free, an empty text hides all from CUDA.

    Only GPUs of one vendor: each vendor numbers its own. A process sees one MIG instance only: if no whole GPU is
    free, it is the best of them.
    """
    ranked = sorted((gpu for gpu in gpus if gpu.vendor == vendor), key=lambda gpu: gpu.rank)
    usable = [gpu for gpu in ranked if not gpu.is_instance] or ranked[:1]
    text = ",".join(str(gpu.uuid or (gpu.index if gpu.is_instance else gpu.vendor_index)) for gpu in usable)
    return f"{text}\n".encode() if text else b""


def build_fleet_available_file(built_hosts: BuiltHosts) -> OutputFile:
    """Build `atlas:2 hydra:3`, the best first; equally good ones in the order of the board."""
    gpus = [gpu for built_host in built_hosts.values() for gpu in built_host.summary.available_gpus]
    text = " ".join(f"{gpu.host}:{gpu.index}" for gpu in sorted(gpus, key=lambda gpu: gpu.rank))
    content = f"{text}\n".encode() if text else b""
    return OutputFile(AVAILABLE_FILE, compute_digest(content), lambda: content, has_build_time=False)


def list_other_vendors(built_host: BuiltHost) -> list[str]:
    """Return the vendors for which a host has a file of its own."""
    return [vendor for vendor in built_host.summary.vendors if vendor in OTHER_VENDORS]


def build_host_available_files(host: str, built_host: BuiltHost) -> Iterator[OutputFile]:
    """Yield the file of a host's NVIDIA GPUs, or of those that it has; and one for each other vendor."""
    vendors = built_host.summary.vendors
    vendor = DEFAULT_VENDOR if DEFAULT_VENDOR in vendors or not vendors else vendors[0]
    paths = {build_available_path(host): vendor}
    paths |= {build_available_path(host, other): other for other in list_other_vendors(built_host)}
    for path, path_vendor in paths.items():
        text = render_host_available(built_host.summary.available_gpus, path_vendor)
        yield OutputFile(path, text or b"none", partial(bytes, text), has_build_time=False)


def build_empty_available_files(host: str, built_host: BuiltHost) -> Iterator[OutputFile]:
    """Yield the same files, empty: after a fault of ours, an older one must not offer a GPU."""
    for vendor in (None, *list_other_vendors(built_host)):
        yield OutputFile(build_available_path(host, vendor), b"none", lambda: b"", has_build_time=False)


# The fleet for terminals and Prometheus


def build_term_file(built_hosts: BuiltHosts, now: Now, colour: bool) -> OutputFile:
    def render() -> bytes:
        parts = [
            term.TermPart(
                built_host.rendered.term_rows, built_host.rendered.term_coloured_rows, built_host.gpus_by_state
            )
            for built_host in built_hosts.values()
        ]
        return term.render_term_txt(parts, __version__, now, colour=colour)

    digests = [built_host.digests.term for built_host in built_hosts.values()]
    fingerprint = compute_digest(__version__.encode(), *digests)
    return OutputFile(TERM_ANSI_FILE if colour else TERM_FILE, fingerprint, render)


def build_detail_file(built_hosts: BuiltHosts, now: Now) -> OutputFile:
    def render() -> bytes:
        texts = (built_host.rendered.detail_text for built_host in built_hosts.values())
        return detail.render_detail_txt(texts, __version__, now)

    digests = [built_host.digests.detail for built_host in built_hosts.values()]
    return OutputFile(DETAIL_FILE, compute_digest(__version__.encode(), *digests), render)


def render_fleet_metrics(
    built_hosts: BuiltHosts,
    problems: Sequence[Problem],
    now: Now,
    build_interval_s: int,
    build_duration_s: float | None,
) -> bytes:
    """Render the file for Prometheus; `build_duration_s` is that of the build before this one."""
    gpus_used: Counter[str] = Counter()
    gpus_booked: Counter[str] = Counter()
    current_bookings = coming_bookings = 0
    for built_host in built_hosts.values():
        people = built_host.summary.people
        gpus_used.update(people.gpus_used)
        gpus_booked.update(people.gpus_booked)
        current_bookings += people.booking_counts[0]
        coming_bookings += people.booking_counts[1]
    fleet = metrics.FleetMetrics(
        gpus_used=gpus_used,
        gpus_booked=gpus_booked,
        booking_counts=(current_bookings, coming_bookings),
        problem_count=len(problems),
        version=__version__,
        build_interval_s=build_interval_s,
        build_duration_s=build_duration_s,
    )
    hosts = ((built_host.metric_lines, host, built_host.last_seen) for host, built_host in built_hosts.items())
    return metrics.render_metrics(hosts, fleet, now.epoch)


# Files of each host in the JSON shapes of other systems, and one of all hosts


class JoinedFile(NamedTuple):
    """A file that is made of those of all hosts."""

    name: str
    build_host_path: Callable[[str], str]
    join: Callable[[Iterable[bytes]], bytes]


JOINED_FILES = (
    JoinedFile(f"{STATES_FOLDER}/index.json", build_states_path, host_json.render_all_states),
    JoinedFile(f"{NODES_FOLDER}/index.json", build_node_path, host_json.render_all_nodes),
)


def render_host_files(host_status: HostStatus, gpus_taken_at: float | None, now: Now) -> dict[str, bytes]:
    return {
        build_states_path(host_status.name): host_json.render_states_host(host_status, gpus_taken_at, now),
        build_node_path(host_status.name): host_json.render_node_host(host_status, now),
    }


def render_failed_host_files(name: str) -> dict[str, bytes]:
    """Render the same files by hand, without GPUs, for a host at which the renderers fail."""
    reason = f"its files for programs could not be made, {FAULT_NOTE}"
    state: dict[str, object] = {"data": [], "ip_address": None, "state": "failed", "reason": reason}
    node: dict[str, object] = {
        "hostname": name,
        "last_update": None,
        "ips": [],
        "gpus": [],
        "status": False,
        "state": "failed",
        "reason": reason,
        "seen": None,
    }
    return {
        build_states_path(name): orjson.dumps({name: state}, option=orjson.OPT_APPEND_NEWLINE),
        build_node_path(name): orjson.dumps(node, option=orjson.OPT_APPEND_NEWLINE),
    }
