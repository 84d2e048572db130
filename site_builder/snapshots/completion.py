"""Complete hosts and GPUs on the command line."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from site_builder.config.settings import SettingsError, load_conf_file, resolve_setting_values
from site_builder.core.names import natural_sort_key
from site_builder.snapshots.store import SnapshotStore


def complete_hosts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the hosts in data/."""
    snapshots = open_snapshots_for_completion(ctx)
    return [name for name in list_completed_host_names(snapshots) if name.startswith(incomplete)] if snapshots else []


def complete_gpus(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete hosts, and the GPUs of the only one that is left; after `atlas:0,` the other GPUs."""
    snapshots = open_snapshots_for_completion(ctx)
    if snapshots is None:
        return []
    host, colon, gpus_text = incomplete.partition(":")
    if colon:
        complete_part, comma, prefix = gpus_text.rpartition(",")
        labels = (
            label for label in list_completed_gpu_labels(snapshots, host) if label not in complete_part.split(",")
        )
        return [f"{host}:{complete_part}{comma}{label}" for label in labels if label.startswith(prefix)]
    names = [name for name in list_completed_host_names(snapshots) if name.startswith(host)]
    if len(names) != 1:
        return names
    return [*names, *(f"{names[0]}:{label}" for label in list_completed_gpu_labels(snapshots, names[0]))]


def open_snapshots_for_completion(ctx: click.Context) -> SnapshotStore | None:
    """Open the data folder that the words typed so far, the environment or the settings name; None if there is none."""
    flags = {"GPUBOARD_DATA": ctx.params["data"]} if ctx.params.get("data") else {}
    try:
        file = load_conf_file(ctx.params.get("conf"), os.environ)
    except SettingsError:
        return None
    data = Path(resolve_setting_values(flags, os.environ, file.values)["GPUBOARD_DATA"].text)
    return SnapshotStore(data, None) if data.is_dir() else None


def list_completed_host_names(snapshots: SnapshotStore) -> list[str]:
    """List the hosts in natural order: gpu2 before gpu10."""
    with suppress(OSError):
        return sorted({name for entries in snapshots.list_entries([]) for name in entries}, key=natural_sort_key)
    return []


def list_completed_gpu_labels(snapshots: SnapshotStore, host: str) -> list[str]:
    """List the GPUs that a host last reported."""
    with suppress(OSError):
        for snapshot in snapshots.read_hosts({host})[0]:
            rows = snapshot.parse().gpus
            gpus = [gpu for row in rows.rows for gpu in (row.parent, row) if gpu] if rows else []
            return list(dict.fromkeys(gpu.label for gpu in gpus if gpu.number is not None))
    return []
