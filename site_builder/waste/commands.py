"""`gpuboard waste`: list wasted GPU time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from difflib import get_close_matches

import click

from site_builder.client import loader
from site_builder.config.settings import LoadedSettings
from site_builder.core import board_client, command_options
from site_builder.core.clock import Now
from site_builder.core.command_options import CommandError, print_command_message, with_loaded_settings
from site_builder.core.names import HostNameIndex
from site_builder.core.terminal_text import find_terminal_width, replace_unencodable
from site_builder.snapshots.completion import complete_hosts
from site_builder.waste import render
from site_builder.waste.rules import WASTE_FILE, WASTE_KINDS, WasteReport

NO_BOARD_HINT = "set GPUBOARD_URL to the address of a board, or where it is built GPUBOARD_WWW to its folder"


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@click.option("--kind", "kinds", type=click.Choice(WASTE_KINDS), multiple=True, help="Only this kind; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@command_options.url_option
@with_loaded_settings
def waste(loaded: LoadedSettings, hosts: Sequence[str], kinds: Sequence[str], as_json: bool) -> None:
    """List wasted GPU time and what to do about it.

    held: memory taken, idle for 2 h or longer; dead: an exited process whose children still run; ownerless: a
    process of an unknown owner; unexplained: memory that no process holds; booking: booked, but the GPU stayed
    idle; vacant: not used for 30 days or more. Most GPU-hours first; ? means not known. docs/waste.md says how
    each is counted.

    \b
    gpuboard waste
    gpuboard waste --kind held --kind booking
    gpuboard waste atlas hydra --json
    """
    with command_options.translate_to_command_errors():
        report = load_waste_for_command(loaded)
        names = HostNameIndex(report.hosts)
        wanted = set()
        for text in hosts:
            name = names.find(text)
            if name is None:
                near = get_close_matches(text.lower(), names.names_by_lower_case, 1)
                hint = f"; did you mean {names.names_by_lower_case[near[0]]}?" if near else ""
                raise CommandError(f"the board has no host {text[:80]}{hint}")
            wanted.add(name)
    items = (item for item in report.items if not wanted or item.host in wanted)
    report = report._replace(items=tuple(item for item in items if not kinds or item.kind in kinds))
    if report.problem:
        print_command_message(f"the list may be incomplete: {report.problem}")
    if as_json:
        click.echo(render.render_waste_json(report))
    elif report.items:
        now = Now(report.built_at, loaded.settings.zone)
        lines = render.render_waste_table(report.items, now, find_terminal_width())
        click.echo("\n".join(map(replace_unencodable, lines)))
    else:
        where = f" on {', '.join(hosts)}" if hosts else ""
        click.echo(f"Nothing is wasted{where}" + (f" of kind {', '.join(kinds)}." if kinds else "."))


def load_waste_for_command(loaded: LoadedSettings) -> WasteReport:
    """Load waste.json from the board's address, or from the folder of the board that is built here."""
    settings, clock_ahead_s = loaded.settings, 0.0
    if loader.choose_fleet_source(loaded) == "url":
        source = f"{settings.url}{WASTE_FILE}"
        response = board_client.send_board_request(source, login=settings.login)
        content, clock_ahead_s = response.content, response.clock_ahead_s
    else:
        source = str(settings.www.absolute() / WASTE_FILE)
        try:
            content = (settings.www / WASTE_FILE).read_bytes()
        except FileNotFoundError:
            raise CommandError(f"there is no {source}: {NO_BOARD_HINT}") from None
        except OSError as error:
            raise CommandError(f"{source} could not be read: {error.strerror}") from None
    report, problem = render.parse_waste_json(content)
    if report is None:
        raise CommandError(f"{source} {problem}")
    loader.check_loaded_board_age(report.built_at, report.build_interval_s, source, time.time() + clock_ahead_s)
    return report
