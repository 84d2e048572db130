"""`gpuboard waste`: what is taken or promised and not used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from site_builder.client import completion
from site_builder.core.command_options import CommandError, print_message, translate_fleet_errors, with_loaded_settings
from site_builder.core.terminal_text import replace_unencodable
from site_builder.waste.model import WASTE_FILE, WASTE_KINDS

if TYPE_CHECKING:
    from site_builder.config.conf_file import LoadedSettings
    from site_builder.waste.model import WasteItem, WasteReport

NO_BOARD_HINT = "set GPUBOARD_URL to the address of a board, or where it is built GPUBOARD_WWW to its folder"


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=completion.complete_hosts)
@click.option(
    "--kind", "kinds", type=click.Choice(WASTE_KINDS), multiple=True, help="Only this kind; may be said again."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--url", metavar="URL", help="The board, if it is on another machine.")
@with_loaded_settings
def waste(loaded: LoadedSettings, hosts: Sequence[str], kinds: Sequence[str], as_json: bool) -> None:
    """List wasted GPU time and what to do about it.

    held: memory taken and hardly used for 2 h or longer; dead: a dead process whose children live on; ownerless: a
    process of unknown owner; unexplained: memory that no process has; booking: promised, and nobody was on it; unused:
    nobody was on it for 30 days. The most GPU-hours come first; those that nobody can know are ?. docs/waste.md says
    how each is counted.

    \b
    gpuboard waste
    gpuboard waste --kind held --kind booking
    gpuboard waste atlas hydra --json
    """
    with translate_fleet_errors():
        found = filter_waste(load_waste(loaded), hosts, kinds)
    if found.problem:
        print_message(f"some of it may be missing: {found.problem}")
    from site_builder.waste import render  # noqa: PLC0415 # --help needs none of it

    if as_json:
        click.echo(render.render_waste_json(found))
    elif found.items:
        from site_builder.core.clock import Now  # noqa: PLC0415
        from site_builder.core.terminal_text import find_terminal_width  # noqa: PLC0415

        now = Now(found.built_at, loaded.settings.zone)
        click.echo(
            "\n".join(map(replace_unencodable, render.render_waste_table(found.items, now, find_terminal_width())))
        )
    else:
        click.echo(describe_no_waste(hosts, kinds))


def load_waste(loaded: LoadedSettings) -> WasteReport:
    """As the board tells it: the one at the address, or the one that is built here."""
    from site_builder.client import loader  # noqa: PLC0415 # --help needs none of it
    from site_builder.client.model import Fleet  # noqa: PLC0415
    from site_builder.waste import model  # noqa: PLC0415

    settings, ahead = loaded.settings, 0.0
    if loader.choose_fleet_source(loaded) == "url":
        from site_builder.core import board_client  # noqa: PLC0415 # slow to import

        place = f"{settings.url}{WASTE_FILE}"
        try:
            content, ahead = board_client.send_board_request(place, login=settings.login)
        except board_client.BoardResponseError as why:
            raise CommandError(board_client.describe_response_error(why, place)) from None
    else:
        place = str(settings.www.absolute() / WASTE_FILE)
        try:
            content = (settings.www / WASTE_FILE).read_bytes()
        except FileNotFoundError:
            raise CommandError(f"there is no {place}: {NO_BOARD_HINT}") from None
        except OSError as error:
            raise CommandError(f"{place} could not be read: {error.strerror}") from None
    found, wrong = model.parse_waste(content)
    if found is None:
        raise CommandError(f"{place} {wrong}")
    loader.check_board_age(
        Fleet(found.built_at, (), (), every=found.build_interval_s or None), place, time.time() + ahead
    )
    return found


def filter_waste(found: WasteReport, hosts: Sequence[str], kinds: Sequence[str]) -> WasteReport:
    """What of it is asked for; a host that there is not is refused."""
    from site_builder.fleet.booking_use import HostNameIndex  # noqa: PLC0415 # --help needs none of it

    names = HostNameIndex(found.hosts)
    wanted = set()
    for text in hosts:
        name = names.find(text)
        if name is None:
            from difflib import get_close_matches  # noqa: PLC0415 # slow to import

            near = get_close_matches(text.lower(), names.names_by_lower_case, 1)
            raise CommandError(
                f"the board has no host {text[:80]}"
                + (f"; is it {names.names_by_lower_case[near[0]]}?" if near else "")
            )
        wanted.add(name)

    def fits(one: WasteItem) -> bool:
        return (not wanted or one.host in wanted) and (not kinds or one.kind in kinds)

    return found._replace(items=tuple(filter(fits, found.items)))


def describe_no_waste(hosts: Sequence[str], kinds: Sequence[str]) -> str:
    """That there is none."""
    where = f" on {', '.join(hosts)}" if hosts else ""
    return f"Nothing is wasted{where}" + (f" of kind {', '.join(kinds)}." if kinds else ".")
