"""Complete hosts and GPUs on the command line."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from site_builder.config.settings import SettingsError, load_conf_file, resolve_setting_values
from site_builder.core.names import natural_sort_key

if TYPE_CHECKING:
    from site_builder.snapshots.store import SnapshotStore


def complete_hosts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the hosts in data/, in natural order: gpu2 before gpu10."""
    snapshots = open_snapshots_for_completion(ctx)
    with suppress(OSError):
        names = {name for entries in snapshots.list_entries([]) for name in entries} if snapshots else set()
        return sorted((name for name in names if name.startswith(incomplete)), key=natural_sort_key)
    return []


def complete_gpus(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete hosts, and the GPUs of the only one that is left; after `atlas:0,` the other GPUs."""
    host, colon, gpus_text = incomplete.partition(":")
    if colon:
        complete_part, comma, prefix = gpus_text.rpartition(",")
        labels = [label for label in list_completed_gpu_labels(ctx, host) if label not in complete_part.split(",")]
        return [f"{host}:{complete_part}{comma}{label}" for label in labels if label.startswith(prefix)]
    names = complete_hosts(ctx, parameter, host)
    if len(names) == 1:
        return [*names, *(f"{names[0]}:{label}" for label in list_completed_gpu_labels(ctx, names[0]))]
    return names


def list_completed_gpu_labels(ctx: click.Context, host: str) -> list[str]:
    """List the GPUs that a host last reported."""
    snapshots = open_snapshots_for_completion(ctx)
    with suppress(OSError):
        for snapshot in snapshots.read_hosts({host})[0] if snapshots else ():
            rows = snapshot.parse().gpus
            gpus = [gpu for row in rows.rows for gpu in (row.parent, row) if gpu] if rows else []
            return list(dict.fromkeys(gpu.label for gpu in gpus if gpu.number is not None))
    return []


def open_snapshots_for_completion(ctx: click.Context) -> SnapshotStore | None:
    """Open the data folder that the words typed so far, the environment or the settings name; None if there is none."""
    from site_builder.snapshots.store import SnapshotStore  # noqa: PLC0415 # slow to import, and needed for TAB alone

    flags = {"GPUBOARD_DATA": ctx.params["data"]} if ctx.params.get("data") else {}
    try:
        file = load_conf_file(ctx.params.get("conf"), os.environ)
    except SettingsError:
        return None
    data = Path(resolve_setting_values(flags, os.environ, file.values)["GPUBOARD_DATA"].text)
    return SnapshotStore(data, None) if data.is_dir() else None
