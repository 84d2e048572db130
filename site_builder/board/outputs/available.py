"""available.txt and available/HOST.txt: which GPUs are free, for CUDA_VISIBLE_DEVICES and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from site_builder.board.host_pipeline import BuiltHost, BuiltHosts
from site_builder.core.files import compute_digest
from site_builder.core.published_files import PublishedFile
from site_builder.fleet.gpu_models import DEFAULT_VENDOR
from site_builder.fleet.summary import AvailableGpuSummary
from site_builder.snapshots.gpu_tools import GPU_TOOLS

AVAILABLE_FOLDER = "available"
AVAILABLE_FILE = f"{AVAILABLE_FOLDER}.txt"
# GPUs of the default vendor are in available/HOST.txt; each other vendor has a folder of its own.
OTHER_VENDORS = tuple(dict.fromkeys(tool.vendor for tool in GPU_TOOLS.values() if tool.vendor != DEFAULT_VENDOR))
AVAILABLE_FOLDERS = (AVAILABLE_FOLDER, *(f"{AVAILABLE_FOLDER}-{vendor}" for vendor in OTHER_VENDORS))


def build_available_path(host: str) -> str:
    return f"{AVAILABLE_FOLDER}/{host}.txt"


def list_available_paths(host: str, built_host: BuiltHost) -> dict[str, str]:
    """Return the files of a host with the vendor of each: NVIDIA or that of its GPUs, then each other vendor."""
    vendors = built_host.summary.vendors
    vendor = DEFAULT_VENDOR if DEFAULT_VENDOR in vendors or not vendors else vendors[0]
    others = {f"{AVAILABLE_FOLDER}-{other}/{host}.txt": other for other in vendors if other in OTHER_VENDORS}
    return {build_available_path(host): vendor, **others}


def render_host_available(gpus: Iterable[AvailableGpuSummary], vendor: str = DEFAULT_VENDOR) -> bytes:
    """Render `0,2` for CUDA_VISIBLE_DEVICES, the best first; if none is free, an empty text hides all from CUDA.

    Only GPUs of one vendor: each vendor numbers its own. A process sees one MIG instance only: if no whole GPU is
    free, it is the best of them.
    """
    ranked = sorted((gpu for gpu in gpus if gpu.vendor == vendor), key=lambda gpu: gpu.rank)
    usable = [gpu for gpu in ranked if not gpu.is_instance] or ranked[:1]
    text = ",".join(str(gpu.uuid or (gpu.index if gpu.is_instance else gpu.vendor_index)) for gpu in usable)
    return f"{text}\n".encode() if text else b""


def build_fleet_available_file(built_hosts: BuiltHosts) -> PublishedFile:
    """Build `atlas:2 hydra:3`, the best first; equally good ones in the order of the board."""
    gpus = [gpu for built_host in built_hosts.values() for gpu in built_host.summary.available_gpus]
    text = " ".join(f"{gpu.host}:{gpu.index}" for gpu in sorted(gpus, key=lambda gpu: gpu.rank))
    content = f"{text}\n".encode() if text else b""
    return PublishedFile(AVAILABLE_FILE, compute_digest(content), lambda: content, has_build_time=False)


def build_host_available_files(host: str, built_host: BuiltHost) -> Iterator[PublishedFile]:
    for path, vendor in list_available_paths(host, built_host).items():
        text = render_host_available(built_host.summary.available_gpus, vendor)
        yield PublishedFile(path, text or b"none", partial(bytes, text), has_build_time=False)


def build_empty_available_files(host: str, built_host: BuiltHost) -> Iterator[PublishedFile]:
    """Yield the same files, empty: after a fault of ours, an older one must not offer a GPU."""
    for path in list_available_paths(host, built_host):
        yield PublishedFile(path, b"none", lambda: b"", has_build_time=False)
