"""`gpuboard notify`: be told when GPUs are free that one waits for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from site_builder.bookings.command_common import (
    Answer,
    Here,
    Place,
    There,
    report,
    settle,
    shown,
    with_answer,
    with_place,
)
from site_builder.core.command_options import Failure, tell

if TYPE_CHECKING:
    from site_builder.core.clock import Now

EXAMPLE = 'gpuboard notify me --when "2 A100 free on one host" --via mail'
HEAD = ("ID", "WHO", "BY", "UNTIL", "WHEN")
WHO = "the board does not know who you are: ask its admin for a token, and set GPUBOARD_TOKEN to it"


@click.group()
def notify() -> None:
    """Be told when GPUs are free that you wait for.

    You are told once, by the ways that the lab knows of you; after 30 days nobody waits any more. Nothing is booked:
    who is faster has them.

    \b
    gpuboard notify me --when "2 A100 free on one host" --via mail
    gpuboard notify list
    gpuboard notify stop k7m2xp
    """


@notify.command()
@click.option("--when", "wish", metavar="TEXT", help='What for: "2 A100 free on one host".')
@click.option("--via", metavar="WAY", help="By mail, slack, or another kind of way that the lab has of you.")
@click.option("--until", metavar="TIME", help='Until when: "fri 18:00".  [default: for 30 days]')
@with_answer
@with_place
def me(  # noqa: PLR0913, PLR0917 # one for each option
    place: Place, wish: str | None, via: str | None, until: str | None, yes: bool, as_json: bool
) -> None:
    """Tell me, once, when so many GPUs are free.

    The text says how many, and where it matters which model, with how much memory, on which host, and for how long
    nobody may have booked them. What was understood is said before it counts.

    \b
    gpuboard notify me --when "2 A100 free on one host" --via mail
    gpuboard notify me --when "any GPU with 40 GB"
    gpuboard notify me --when "1 H100 free on atlas for 4h" --until "fri 18:00"
    """
    if not wish:
        message = f"what for? Say it with --when:\n  {EXAMPLE}"
        raise click.UsageError(message)
    request = {"do": "watch", "when": wish, **({"via": via} if via else {}), **ending(until, place)}
    done = settle(place, request, "Watch for it?", yes)
    (one,) = done["watches"]
    report(done, f"watch {shown(str(one['id']))}: {shown(done['said'])}", as_json)
    if not as_json and not sys.stdout.isatty():
        click.echo(shown(str(one["id"])))


def ending(until: str | None, place: Place) -> dict[str, str]:
    """When it ends, exactly: what `fri` means is decided here, in the zone of whoever says it."""
    if not until:
        return {}
    import time  # noqa: PLC0415 # --help needs none of it

    from site_builder.bookings import api  # noqa: PLC0415
    from site_builder.core.clock import Now  # noqa: PLC0415

    found = api.moment({"until": until}, "until", Now(time.time(), place.settings.zone))
    return {"until": found.isoformat()} if found else {}


@notify.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs, with nothing cut.")
@with_place
def listing(place: Place, as_json: bool) -> None:
    """List what you wait for; an admin sees everybody.

    \b
    gpuboard notify list
    gpuboard notify list --json
    """
    found = place.listed()
    if not found["who"]:
        raise Failure(WHO)
    several, wrong = yours(found, place), problems(place)
    if as_json:
        import json  # noqa: PLC0415

        click.echo(json.dumps(several, indent=1))
    elif several:
        click.echo("\n".join(table(several, place, str(found["who"]))))
    elif not wrong:
        tell("you wait for nothing")
    for problem in wrong:
        tell(problem)


@notify.command()
@click.argument("ids", metavar="ID...", nargs=-1)
@with_answer
@with_place
def stop(place: Place, ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Wait no longer for what these ids name.

    \b
    gpuboard notify stop k7m2xp
    """
    if not ids:
        message = "which one? Name its id: `gpuboard notify list` lists yours"
        raise click.UsageError(message)
    several = [settle(place, {"do": "unwatch", "id": one}, "End it?", yes) for one in dict.fromkeys(ids)]
    said = "; ".join(shown(one["said"]) for one in several)
    gone = [item for one in several for item in one["watches"]]
    report({"said": said, "warnings": [], "watches": gone}, said, as_json)


def yours(found: Answer, place: Place) -> list[Answer]:
    """Those that concern whoever asks; at an open desk everybody is whom they say."""
    several: list[Answer] = found.get("watches") or []
    if isinstance(place, There) and place.open:
        return [one for one in several if one["name"] == found["who"]]
    return several


def problems(place: Place) -> list[str]:
    """What is wrong with the file, where it is of this machine."""
    if not isinstance(place, Here):
        return []
    from site_builder.bookings.store import Unwritable  # noqa: PLC0415
    from site_builder.watches import parser  # noqa: PLC0415
    from site_builder.watches.store import FILE, WatchList  # noqa: PLC0415

    settings = place.settings
    try:
        several = WatchList(settings.data, settings.kv)
        content = several.here()
    except Unwritable as why:
        return [shown(str(why))]
    return [shown(f"{several.folder / FILE}: {one}") for one in parser.read(content).problems]


def table(several: Sequence[Answer], place: Place, who: str) -> list[str]:
    """A line for each; what is waited for is the last, and never cut."""
    import time  # noqa: PLC0415

    from site_builder.config.commands import printable  # noqa: PLC0415
    from site_builder.core.clock import Now  # noqa: PLC0415

    now = Now(time.time(), place.settings.zone)
    rows = [HEAD, *(row(one, now) for one in several)]
    if all(one["mine"] or one["name"] == who for one in several):
        rows = [(cells[0], *cells[2:]) for cells in rows]  # who it is goes without saying
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [printable("  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths)).rstrip()) for cells in rows]


def row(one: Answer, now: Now) -> tuple[str, ...]:
    """The cells of a watch."""
    from site_builder.core import formatting  # noqa: PLC0415

    until = formatting.clock(datetime.fromisoformat(one["until"]), now)
    cells = (one["id"], one["name"], one["via"] or "any", until, one["when"])
    return tuple(shown(str(cell)).replace("\n", " ") for cell in cells)
