"""What TAB offers where a command wants a folder, a file, a host or GPUs: from this machine alone, and at once."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from site_builder.snapshots.store import SnapshotStore


def complete_folders(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Whatever the shell itself offers for a folder."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 # only for TAB, as all below

    return [CompletionItem(incomplete, type="dir")]


def complete_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same for a file."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415

    return [CompletionItem(incomplete, type="file")]


def complete_hosts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The hosts in data/, by their names alone."""
    kept = open_snapshots(ctx)
    return [name for name in list_host_names(kept) if name.startswith(incomplete)] if kept else []


def complete_gpus(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Hosts; of the only one that is left, its GPUs too; after `atlas:0,` those that are not named yet."""
    kept = open_snapshots(ctx)
    if kept is None:
        return []
    host, colon, typed = incomplete.partition(":")
    if colon:
        before, comma, begun = typed.rpartition(",")
        left = (index for index in list_gpu_labels(kept, host) if index not in before.split(","))
        return [f"{host}:{before}{comma}{index}" for index in left if index.startswith(begun)]
    found = [name for name in list_host_names(kept) if name.startswith(host)]
    if len(found) != 1:
        return found
    return [*found, *(f"{found[0]}:{index}" for index in list_gpu_labels(kept, found[0]))]


def open_snapshots(ctx: click.Context) -> SnapshotStore | None:
    """The data folder that the words typed so far, the environment or the settings name; None where it is not there."""
    from site_builder.config import conf_file, settings  # noqa: PLC0415
    from site_builder.snapshots.store import SnapshotStore  # noqa: PLC0415

    flags = {"GPUBOARD_DATA": ctx.params["data"]} if ctx.params.get("data") else {}
    try:
        file = conf_file.load_conf_file(ctx.params.get("conf"), os.environ)
    except settings.SettingsError:
        return None
    data = Path(settings.resolve_setting_values(flags, os.environ, file.values)["GPUBOARD_DATA"].text)
    return SnapshotStore(data, None) if data.is_dir() else None


def list_host_names(kept: SnapshotStore) -> list[str]:
    """The hosts, gpu2 before gpu10."""
    from site_builder.core.names import natural_sort_key  # noqa: PLC0415

    with suppress(OSError):
        return sorted({name for found in kept.list_entries([]) for name in found}, key=natural_sort_key)
    return []


def list_gpu_labels(kept: SnapshotStore, host: str) -> list[str]:
    """The GPUs that a host told of last."""
    with suppress(OSError):
        for told in kept.read_hosts({host})[0]:
            rows = told.parse().gpus
            several = [gpu for one in rows.rows for gpu in (one.parent, one) if gpu] if rows else []
            return list(dict.fromkeys(gpu.label for gpu in several if gpu.number is not None))
    return []
