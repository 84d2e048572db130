"""`gpuboard waste`: what is taken or promised and not used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from site_builder.client import completion
from site_builder.config.commands import printable
from site_builder.core.command_options import Failure, failing, tell, with_loaded
from site_builder.waste.model import FILE, KINDS

if TYPE_CHECKING:
    from site_builder.config.conf_file import Loaded
    from site_builder.waste.model import Item, Wasted

NO_BOARD = "set GPUBOARD_URL to the address of a board, or where it is built GPUBOARD_WWW to its folder"


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=completion.hosts)
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only this kind; may be said again.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--url", metavar="URL", help="The board, if it is on another machine.")
@with_loaded
def waste(loaded: Loaded, hosts: Sequence[str], kinds: Sequence[str], as_json: bool) -> None:
    """Tell what is wasted, and what to do about it.

    held: memory taken and hardly used for 2 h or longer; dead: a dead process whose children live on; ownerless: a
    process of unknown owner; unexplained: memory that no process has; booking: promised, and nobody was on it; unused:
    nobody was on it for 30 days. The most GPU-hours come first; those that nobody can know are ?. docs/waste.md says
    how each is counted.

    \b
    gpuboard waste
    gpuboard waste --kind held --kind booking
    gpuboard waste atlas hydra --json
    """
    with failing():
        found = narrowed(published(loaded), hosts, kinds)
    if found.trouble:
        tell(f"some of it may be missing: {found.trouble}")
    from site_builder.waste import render  # noqa: PLC0415 # --help needs none of it

    if as_json:
        click.echo(render.json(found))
    elif found.items:
        from site_builder.client.list_command import across  # noqa: PLC0415
        from site_builder.core.clock import Now  # noqa: PLC0415

        now = Now(found.built, loaded.settings.zone)
        click.echo("\n".join(map(printable, render.table(found.items, now, across()))))
    else:
        click.echo(nothing(hosts, kinds))


def published(loaded: Loaded) -> Wasted:
    """As the board tells it: the one at the address, or the one that is built here."""
    from site_builder.client import loader  # noqa: PLC0415 # --help needs none of it
    from site_builder.client.model import Fleet  # noqa: PLC0415
    from site_builder.waste import parser  # noqa: PLC0415

    settings, ahead = loaded.settings, 0.0
    if loader.kind_of(loaded) == "url":
        from site_builder.core import board_client  # noqa: PLC0415 # slow to import

        place = f"{settings.url}{FILE}"
        try:
            content, ahead = board_client.ask(place, login=settings.login)
        except board_client.Refused as why:
            raise Failure(board_client.refused(why, place)) from None
    else:
        place = str(settings.www.absolute() / FILE)
        try:
            content = (settings.www / FILE).read_bytes()
        except FileNotFoundError:
            raise Failure(f"there is no {place}: {NO_BOARD}") from None
        except OSError as error:
            raise Failure(f"{place} could not be read: {error.strerror}") from None
    found, wrong = parser.read(content)
    if found is None:
        raise Failure(f"{place} {wrong}")
    loader.check_age(Fleet(found.built, (), (), every=found.every or None), place, time.time() + ahead)
    return found


def narrowed(found: Wasted, hosts: Sequence[str], kinds: Sequence[str]) -> Wasted:
    """What of it is asked for; a host that there is not is refused."""
    from site_builder.fleet.active_bookings import HostNames  # noqa: PLC0415 # --help needs none of it

    names = HostNames(found.hosts)
    wanted = set()
    for text in hosts:
        name = names.find(text)
        if name is None:
            from difflib import get_close_matches  # noqa: PLC0415 # slow to import

            near = get_close_matches(text.lower(), names.lower, 1)
            raise Failure(f"the board has no host {text[:80]}" + (f"; is it {names.lower[near[0]]}?" if near else ""))
        wanted.add(name)

    def fits(one: Item) -> bool:
        return (not wanted or one.host in wanted) and (not kinds or one.kind in kinds)

    return found._replace(items=tuple(filter(fits, found.items)))


def nothing(hosts: Sequence[str], kinds: Sequence[str]) -> str:
    """That there is none."""
    where = f" on {', '.join(hosts)}" if hosts else ""
    return f"Nothing is wasted{where}" + (f" of kind {', '.join(kinds)}." if kinds else ".")
