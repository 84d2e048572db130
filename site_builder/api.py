"""Functions for Python programs: the GPUs of this machine and of the fleet."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Union

from site_builder.client import loader
from site_builder.client.model import Fleet
from site_builder.client.picker import GpuPicker, GpuRequest, select_connected_gpus, select_gpus_for_one_process
from site_builder.config.settings import LoadedSettings, SettingsError, load_settings
from site_builder.core.model import FleetUnavailableError

# A plain dict for json and pandas, under the names that users of nvgpu know.
GpuInfo = dict[str, Union[str, int, float, None]]
URL_START = re.compile(r"https?://", re.IGNORECASE)


def load_fleet(source: str | os.PathLike[str] | None = None) -> Fleet:
    """Load all hosts and GPUs, typed; see `site_builder.client.model`.

    `source` is the URL of a board or a data folder. By default it is what GPUBOARD_URL or GPUBOARD_DATA name, in
    the environment or in gpuboard.conf, and with neither this machine's own nvidia-smi.
    `site_builder.core.model.FleetUnavailableError` says in one sentence why there is none: nothing answers, it
    is no board, or nobody builds it any more.
    """
    return loader.open_fleet(load_api_settings(source))()


def available_gpus(
    limit: int | None = None,
    min_memory: float = 0,
    model: str = "",
    source: str | os.PathLike[str] | None = None,
    vendor: str | None = None,
    max_used_percent: float | None = None,
    order: str = "best",
) -> list[str]:
    """List available GPUs of this machine, the best first, as CUDA_VISIBLE_DEVICES takes them: `['0', '2']`.

    GPUs of AMD are listed as HIP_VISIBLE_DEVICES takes them. All are of one `vendor`, `nvidia` or `amd`; by default
    of NVIDIA where the machine has any of its GPUs.

    They are free, or booked by you and idle. `min_memory` is free memory in MiB. A MIG instance is named by its
    UUID; it is listed, alone, if no whole GPU is available, or if `model` names its profile.

    With `max_used_percent` they are, as for nvgpu, those of which at most so much of the memory is used, whoever uses
    them; but none that is booked by others, lost, unknown or faulty. The `order` is `best` or `index`.
    """
    if limit is not None and limit < 0:
        raise ValueError(f"limit is {limit}, but must be 0 or more")
    if order not in {"best", "index"}:
        raise ValueError(f"order is {order!r}, but must be best or index")
    request = GpuRequest(model, min_memory, vendor, max_used_percent=max_used_percent, order=order)
    picker = GpuPicker(load_api_settings(source), request, has_topology=(limit or 1) > 1)
    choices = select_gpus_for_one_process(picker.find_gpus().choices, request)
    if limit is not None:
        choices = choices[:limit] if order == "index" else select_connected_gpus(choices, limit)
    return [str(choice.visible_number) for choice in choices]


def gpu_info(source: str | os.PathLike[str] | None = None) -> list[GpuInfo]:
    """List the GPUs of this machine; memory in MiB, None if it is not available.

    Each has `index`, `type`, `uuid`, `mem_used`, `mem_total` and `mem_used_percent`.
    """
    loaded = load_api_settings(source)
    host = loader.find_loaded_fleet_host(loader.open_fleet(loaded)(), None, loaded)
    if host.state != "fresh":
        raise FleetUnavailableError(f"{host.name} is {host.state}: {host.reason}")
    return [
        {
            "index": None if gpu.index is None else gpu.label,
            "mem_total": None if gpu.memory_total is None else int(gpu.memory_total),
            "mem_used": None if gpu.memory_used is None else int(gpu.memory_used),
            "mem_used_percent": gpu.memory_used / gpu.memory_total * 100
            if gpu.memory_used is not None and gpu.memory_total
            else None,
            "type": gpu.name,
            "uuid": gpu.uuid,
        }
        for gpu in host.gpus
    ]


def load_api_settings(source: str | os.PathLike[str] | None) -> LoadedSettings:
    """Load the settings in force, with `source` in place of GPUBOARD_URL or GPUBOARD_DATA."""
    flags = {}
    if source is not None:
        place = os.fspath(source)
        is_url = URL_START.match(place)
        flags = {"GPUBOARD_URL": place} if is_url else {"GPUBOARD_DATA": str(Path(place)), "GPUBOARD_URL": ""}
    try:
        return load_settings(None, flags, os.environ)
    except SettingsError as wrong:
        raise FleetUnavailableError(str(wrong)) from None
