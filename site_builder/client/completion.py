"""What TAB offers where a command wants a folder, a file, a host or GPUs: from this machine alone, and at once."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from site_builder.snapshots.store import Snapshots


def folders(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Whatever the shell itself offers for a folder."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 # only for TAB, as all below

    return [CompletionItem(incomplete, type="dir")]


def files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same for a file."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415

    return [CompletionItem(incomplete, type="file")]


def hosts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The hosts in data/, by their names alone."""
    kept = snapshots(ctx)
    return [name for name in names(kept) if name.startswith(incomplete)] if kept else []


def gpus(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Hosts; of the only one that is left, its GPUs too; after `atlas:0,` those that are not named yet."""
    kept = snapshots(ctx)
    if kept is None:
        return []
    host, colon, typed = incomplete.partition(":")
    if colon:
        before, comma, begun = typed.rpartition(",")
        left = (index for index in indexes(kept, host) if index not in before.split(","))
        return [f"{host}:{before}{comma}{index}" for index in left if index.startswith(begun)]
    found = [name for name in names(kept) if name.startswith(host)]
    if len(found) != 1:
        return found
    return [*found, *(f"{found[0]}:{index}" for index in indexes(kept, found[0]))]


def snapshots(ctx: click.Context) -> Snapshots | None:
    """The data folder that the words typed so far, the environment or the settings name; None where it is not there."""
    from site_builder.config import conf_file, settings  # noqa: PLC0415
    from site_builder.snapshots.store import Snapshots  # noqa: PLC0415

    flags = {"GPUBOARD_DATA": ctx.params["data"]} if ctx.params.get("data") else {}
    try:
        file = conf_file.load(ctx.params.get("conf"), os.environ)
    except settings.Wrong:
        return None
    data = Path(settings.resolve(flags, os.environ, file.values)["GPUBOARD_DATA"].text)
    return Snapshots(data, None) if data.is_dir() else None


def names(kept: Snapshots) -> list[str]:
    """The hosts, gpu2 before gpu10."""
    from site_builder.core.names import natural  # noqa: PLC0415

    with suppress(OSError):
        return sorted({name for found in kept.entries([]) for name in found}, key=natural)
    return []


def indexes(kept: Snapshots, host: str) -> list[str]:
    """The GPUs that a host told of last."""
    with suppress(OSError):
        for told in kept.read({host})[0]:
            rows = told.data().gpus
            several = [gpu for one in rows.rows for gpu in (one.parent, one) if gpu] if rows else []
            return list(dict.fromkeys(gpu.label for gpu in several if gpu.number is not None))
    return []
