"""For Python programs: the GPUs of this machine and of the fleet, from where the commands have them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Union

from site_builder.client import loader
from site_builder.client.model import Fleet, FleetHost
from site_builder.client.picker import GpuPicker, GpuRequest, select_for_one_process
from site_builder.config import conf_file
from site_builder.config.conf_file import LoadedSettings
from site_builder.config.settings import SettingsError
from site_builder.core.board_client import FleetUnavailableError

# A plain dict for json and pandas, under the names that users of nvgpu know.
GpuInfo = dict[str, Union[str, int, float, None]]
URL_START = re.compile(r"https?://", re.IGNORECASE)


def load_fleet(source: str | os.PathLike[str] | None = None) -> Fleet:
    """All hosts and GPUs that there are, typed; see `site_builder.client.model`.

    `source` is the URL of a board or a data folder. Without it, it is what GPUBOARD_URL or GPUBOARD_DATA name, in the
    environment or in gpuboard.conf, and with neither this machine's own nvidia-smi.
    `site_builder.client.model.FleetUnavailableError` says
    in one sentence why there is none: nothing answers, it is no board, or nobody builds it any more.
    """
    return loader.open_fleet(load_api_settings(source))()


def available_gpus(
    limit: int | None = None,
    min_memory: float = 0,
    model: str = "",
    source: str | os.PathLike[str] | None = None,
    vendor: str | None = None,
) -> list[str]:
    """The GPUs of this machine that can be had now, the best first, as CUDA_VISIBLE_DEVICES takes them: `['0', '2']`.

    Those of AMD are as HIP_VISIBLE_DEVICES takes them. They are of one maker: of `vendor`, `nvidia` or `amd`, and
    without it of NVIDIA where the machine has any of its GPUs.

    They are free, or booked by you and unused. `min_memory` is in MiB that are free. An instance (MIG) is named by its
    UUID, and given where no whole GPU can be had, one alone, or where `model` names its profile.
    """
    if limit is not None and limit < 0:
        message = f"limit is {limit}, but must be 0 or more"
        raise ValueError(message)
    wish = GpuRequest(model, min_memory, vendor)
    found = GpuPicker(load_api_settings(source), wish).find_gpus()
    return [str(one.visible_number) for one in select_for_one_process(found.choices, wish)[:limit]]


def gpu_info(source: str | os.PathLike[str] | None = None) -> list[GpuInfo]:
    """The GPUs of this machine; memory in MiB, None where it is not told.

    Each has `index`, `type`, `uuid`, `mem_used`, `mem_total` and `mem_used_percent`.
    """
    found: list[GpuInfo] = []
    for gpu in find_local_host(load_api_settings(source)).gpus:
        used, total = gpu.memory_used, gpu.memory_total
        found.append(
            {
                "index": None if gpu.index is None else gpu.label,
                "mem_total": None if total is None else int(total),
                "mem_used": None if used is None else int(used),
                "mem_used_percent": None if used is None or not total else used / total * 100,
                "type": gpu.name,
                "uuid": gpu.uuid,
            }
        )
    return found


def load_api_settings(source: str | os.PathLike[str] | None) -> LoadedSettings:
    """What is in force here and now, with that source where one is named."""
    flags = {}
    if source is not None:
        place = os.fspath(source)
        flags = (
            {"GPUBOARD_URL": place}
            if URL_START.match(place)
            else {"GPUBOARD_DATA": str(Path(place)), "GPUBOARD_URL": ""}
        )
    try:
        return conf_file.load_settings(None, flags, os.environ)
    except SettingsError as wrong:
        raise FleetUnavailableError(str(wrong)) from None


def find_local_host(loaded: LoadedSettings) -> FleetHost:
    """This machine, as the fleet tells it; one of which nothing is known now tells nothing."""
    host = loader.find_wanted_host(loader.open_fleet(loaded)(), None, loaded)
    if host.state != "fresh":
        message = f"{host.name} is {host.state}: {host.reason}"
        raise FleetUnavailableError(message)
    return host
