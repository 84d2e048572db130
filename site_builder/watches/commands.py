"""`gpuboard notify`: be told when GPUs are free that one waits for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from site_builder.bookings.backends import BookingBackend, BookingResponse, LocalBookings, RemoteBookings
from site_builder.bookings.commands import (
    clean_for_terminal,
    confirm_and_send,
    print_booking_result,
    with_booking_backend,
    with_confirmation_options,
)
from site_builder.core.command_options import CommandError, print_message

if TYPE_CHECKING:
    from site_builder.core.clock import Now

USAGE_EXAMPLE = 'gpuboard notify me --when "2 A100 free on one host" --via mail'
TABLE_HEAD = ("ID", "WHO", "BY", "UNTIL", "WHEN")
UNKNOWN_PERSON_MESSAGE = "the board does not know who you are: ask its admin for a token, and set GPUBOARD_TOKEN to it"


@click.group()
def notify() -> None:
    """Get notified when GPUs are free.

    You are told once, by the ways that the lab knows of you; after 30 days nobody waits any more. Nothing is booked:
    who is faster has them.

    \b
    gpuboard notify me --when "2 A100 free on one host" --via mail
    gpuboard notify list
    gpuboard notify stop k7m2xp
    """


@notify.command("me")
@click.option("--when", "wish", metavar="TEXT", help='What for: "2 A100 free on one host".')
@click.option("--via", metavar="WAY", help="By mail, slack, or another kind of way that the lab has of you.")
@click.option("--until", metavar="TIME", help='Until when: "fri 18:00".  [default: for 30 days]')
@with_confirmation_options
@with_booking_backend
def start_watch(  # one for each option
    place: BookingBackend, wish: str | None, via: str | None, until: str | None, yes: bool, as_json: bool
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
        message = f"what for? Say it with --when:\n  {USAGE_EXAMPLE}"
        raise click.UsageError(message)
    request = {"do": "watch", "when": wish, **({"via": via} if via else {}), **parse_until_option(until, place)}
    done = confirm_and_send(place, request, "Watch for it?", yes)
    (one,) = done["watches"]
    print_booking_result(
        done, f"watch {clean_for_terminal(str(one['id']))}: {clean_for_terminal(done['said'])}", as_json
    )
    if not as_json and not sys.stdout.isatty():
        click.echo(clean_for_terminal(str(one["id"])))


def parse_until_option(until: str | None, place: BookingBackend) -> dict[str, str]:
    """When it ends, exactly: what `fri` means is decided here, in the zone of whoever says it."""
    if not until:
        return {}
    import time  # noqa: PLC0415 # --help needs none of it

    from site_builder.bookings.request import parse_time_field  # noqa: PLC0415
    from site_builder.core.clock import Now  # noqa: PLC0415

    found = parse_time_field({"until": until}, "until", Now(time.time(), place.settings.zone))
    return {"until": found.isoformat()} if found else {}


@notify.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs, with nothing cut.")
@with_booking_backend
def list_watches(place: BookingBackend, as_json: bool) -> None:
    """List what you wait for; an admin sees everybody.

    \b
    gpuboard notify list
    gpuboard notify list --json
    """
    found = place.list_bookings()
    if not found["who"]:
        raise CommandError(UNKNOWN_PERSON_MESSAGE)
    several, wrong = filter_own_watches(found, place), list_watch_file_problems(place)
    if as_json:
        import json  # noqa: PLC0415

        click.echo(json.dumps(several, indent=1))
    elif several:
        click.echo("\n".join(format_watch_table(several, place, str(found["who"]))))
    elif not wrong:
        print_message("you wait for nothing")
    for problem in wrong:
        print_message(problem)


@notify.command("stop")
@click.argument("ids", metavar="ID...", nargs=-1)
@with_confirmation_options
@with_booking_backend
def stop_watches(place: BookingBackend, ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Wait no longer for what these ids name.

    \b
    gpuboard notify stop k7m2xp
    """
    if not ids:
        message = "which one? Name its id: `gpuboard notify list` lists yours"
        raise click.UsageError(message)
    several = [confirm_and_send(place, {"do": "unwatch", "id": one}, "End it?", yes) for one in dict.fromkeys(ids)]
    said = "; ".join(clean_for_terminal(one["said"]) for one in several)
    gone = [item for one in several for item in one["watches"]]
    print_booking_result({"said": said, "warnings": [], "watches": gone}, said, as_json)


def filter_own_watches(found: BookingResponse, place: BookingBackend) -> list[BookingResponse]:
    """Those that concern whoever asks; at an open desk everybody is whom they say."""
    several: list[BookingResponse] = found.get("watches") or []
    if isinstance(place, RemoteBookings) and place.has_open_booking:
        return [one for one in several if one["name"] == found["who"]]
    return several


def list_watch_file_problems(place: BookingBackend) -> list[str]:
    """What is wrong with the file, where it is of this machine."""
    if not isinstance(place, LocalBookings):
        return []
    from site_builder.core.locks import StorageError  # noqa: PLC0415
    from site_builder.watches import parser  # noqa: PLC0415
    from site_builder.watches.store import WATCHES_FILE, WatchStore  # noqa: PLC0415

    settings = place.settings
    try:
        several = WatchStore(settings.data, settings.kv)
        content = several.read_local()
    except StorageError as why:
        return [clean_for_terminal(str(why))]
    return [
        clean_for_terminal(f"{several.folder / WATCHES_FILE}: {one}") for one in parser.parse_watches(content).problems
    ]


def format_watch_table(several: Sequence[BookingResponse], place: BookingBackend, who: str) -> list[str]:
    """A line for each; what is waited for is the last, and never cut."""
    import time  # noqa: PLC0415

    from site_builder.core.clock import Now  # noqa: PLC0415
    from site_builder.core.terminal_text import replace_unencodable  # noqa: PLC0415

    now = Now(time.time(), place.settings.zone)
    rows = [TABLE_HEAD, *(format_watch_row(one, now) for one in several)]
    if all(one["mine"] or one["name"] == who for one in several):
        rows = [(cells[0], *cells[2:]) for cells in rows]  # who it is goes without saying
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        replace_unencodable("  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths)).rstrip())
        for cells in rows
    ]


def format_watch_row(one: BookingResponse, now: Now) -> tuple[str, ...]:
    """The cells of a watch."""
    from site_builder.core import formatting  # noqa: PLC0415

    until = formatting.format_moment(datetime.fromisoformat(one["until"]), now)
    cells = (one["id"], one["name"], one["via"] or "any", until, one["when"])
    return tuple(clean_for_terminal(str(cell)).replace("\n", " ") for cell in cells)
