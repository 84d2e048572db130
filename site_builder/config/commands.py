"""`gpuboard config`: what is in force, and where each value came from."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from site_builder.core.command_options import with_loaded

if TYPE_CHECKING:
    from site_builder.config.conf_file import Loaded
    from site_builder.config.settings import Given

WIDTH = 80
UNSET = "-"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@with_loaded
def config(loaded: Loaded, as_json: bool) -> None:
    """Print the settings in force, and where each comes from.

    \b
    gpuboard config
    gpuboard config --json
    """
    rows, for_hosts = rows_here(loaded), rows_for_hosts(loaded)
    if as_json:
        import json  # noqa: PLC0415 # only here

        found = [{"name": name, "value": value or None, "from": given.where} for name, value, given in rows + for_hosts]
        click.echo(json.dumps(found, indent=1))
        return
    lines = [f"# {loaded.conf.path or 'no gpuboard.conf here, in ~/.config/gpuboard or in /etc/gpuboard'}"]
    table = aligned([(name, value or UNSET, given.where_short) for name, value, given in rows + for_hosts])
    lines += table[: len(rows)]
    if for_hosts:
        lines += ["# on the GPU hosts (docs/hosts.md)", *table[len(rows) :]]
    click.echo("\n".join(printable(line) for line in lines))


def rows_here(loaded: Loaded) -> list[tuple[str, str, Given]]:
    """Name, value and origin of all settings of this side."""
    from site_builder.config.schema import SETTINGS  # noqa: PLC0415
    from site_builder.config.settings import shown_value  # noqa: PLC0415

    found = []
    for setting in SETTINGS:
        given = loaded.given[setting.name]
        value = shown_value(setting, given)
        if setting.name == "GPUBOARD_ZONE" and not value:
            value = str(getattr(loaded.settings.zone, "key", None) or "this machine's")
        found.append((setting.name, value, given))
    return found


def rows_for_hosts(loaded: Loaded) -> list[tuple[str, str, Given]]:
    """The same of those that the file sets for the GPU hosts."""
    from site_builder.config.schema import HOST_SETTINGS  # noqa: PLC0415
    from site_builder.config.settings import masked  # noqa: PLC0415

    values = loaded.conf.values
    return [(name, masked(values[name].text), values[name]) for name in HOST_SETTINGS if name in values]


def aligned(rows: list[tuple[str, str, str]]) -> list[str]:
    """Columns that fit a terminal; a value that is too long for that pushes only its own line out."""
    first = max(len(name) for name, _, _ in rows)
    room = WIDTH - first - 4 - max(len(origin) for _, _, origin in rows)
    second = max((len(value) for _, value, _ in rows if len(value) <= room), default=0)
    return [f"{name:{first}}  {value:{second}}  {origin}" for name, value, origin in rows]


def printable(line: str) -> str:
    """A line in which a letter that this terminal does not have is a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "replace").decode(encoding)
