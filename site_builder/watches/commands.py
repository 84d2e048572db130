"""`gpuboard notify`: get notified when GPUs are free."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import click

from site_builder.bookings.backends import BookingBackend, BookingResponse, LocalBookingBackend, RemoteBookingBackend
from site_builder.bookings.commands import (
    UNKNOWN_PERSON_MESSAGE,
    confirm_booking_command,
    print_booking_result,
    with_booking_backend,
    with_booking_confirmation,
)
from site_builder.bookings.request import parse_request_time_field
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.command_options import CommandError, print_command_message
from site_builder.core.data_folder import WATCHES_FILE
from site_builder.core.locks import LockedFileError
from site_builder.core.terminal_text import clean_text, replace_unencodable
from site_builder.watches import store as watch_store
from site_builder.watches.board_requests import answer_board_list_request, handle_board_request
from site_builder.watches.store import WatchStore

USAGE_EXAMPLE = 'gpuboard notify me --when "2 A100 free on one host" --via mail'
TABLE_HEAD: tuple[str, ...] = ("ID", "WHO", "BY", "UNTIL", "WHEN")


class LocalWatchBackend(LocalBookingBackend):
    """Bookings and watches in a data folder of this machine."""

    def send(self, request: Mapping[str, Any]) -> BookingResponse:
        return handle_board_request(self.service, request, self.user)

    def list_bookings(self) -> BookingResponse:
        return answer_board_list_request(self.service, self.user)


def with_watch_backend(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the board with its watches, as `place`, and add the options that choose it."""
    return with_booking_backend(command, LocalWatchBackend)


@click.group()
def notify() -> None:
    """Get notified when GPUs are free.

    You get one message, through your contacts in the lab, within 30 days. Nothing is booked: first come, first
    served.

    \b
    gpuboard notify me --when "2 A100 free on one host" --via mail
    gpuboard notify list
    gpuboard notify stop k7m2xp
    """


@notify.command("me")
@click.option("--when", "wish", metavar="TEXT", help='Wanted GPUs: "2 A100 free on one host".')
@click.option(
    "--via", metavar="CHANNEL", help="Channel: mail, slack or another contact.  [default: your default contact]"
)
@click.option("--until", metavar="TIME", help='End of the wait: "fri 18:00".  [default: in 30 days]')
@with_booking_confirmation
@with_watch_backend
def start_watch(
    place: BookingBackend, wish: str | None, via: str | None, until: str | None, yes: bool, as_json: bool
) -> None:
    """Notify me once when GPUs are free.

    --when says how many GPUs and, if it matters, which model, memory, host, and how long they must not be booked.
    You confirm first.

    \b
    gpuboard notify me --when "2 A100 free on one host" --via mail
    gpuboard notify me --when "any GPU with 40 GB"
    gpuboard notify me --when "1 H100 free on atlas for 4h" --until "fri 18:00"
    """
    if not wish:
        raise click.UsageError(f"which GPUs? Say it with --when:\n  {USAGE_EXAMPLE}")
    request = {"do": "watch", "when": wish}
    if via:
        request["via"] = via
    if until:  # what `fri` means is decided here, in the zone of whoever says it
        moment = parse_request_time_field({"until": until}, "until", Now(time.time(), place.settings.zone))
        request |= {"until": moment.isoformat()} if moment else {}
    response = confirm_booking_command(place, request, "Notify you?", yes)
    (watch,) = response["watches"]
    watch_id = clean_text(str(watch["id"]))
    print_booking_result(response, f"watch {watch_id}: {clean_text(response['said'])}", as_json)
    if not as_json and not sys.stdout.isatty():
        click.echo(watch_id)


@notify.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in full.")
@with_watch_backend
def list_watches_command(place: BookingBackend, as_json: bool) -> None:
    """List your notifications; an admin sees all.

    \b
    gpuboard notify list
    gpuboard notify list --json
    """
    response = place.list_bookings()
    if not response["who"]:
        raise CommandError(UNKNOWN_PERSON_MESSAGE)
    watches: list[BookingResponse] = response.get("watches") or []
    if isinstance(place, RemoteBookingBackend) and place.has_open_booking:  # there everybody is who they say
        watches = [watch for watch in watches if watch["name"] == response["who"]]
    problems: list[str] = []
    if isinstance(place, LocalBookingBackend):  # only there the file is of this machine
        try:
            store = WatchStore(place.settings.data, place.settings.kv)
            path, content = store.folder / WATCHES_FILE, store.read_local()
            problems = [f"{path}: {problem}" for problem in watch_store.parse_watches(content).problems]
        except LockedFileError as error:
            problems = [str(error)]
    if as_json:
        click.echo(json.dumps(watches, indent=1))
    elif watches:
        now = Now(time.time(), place.settings.zone)
        rows = [TABLE_HEAD]
        for watch in watches:
            end = formatting.format_moment(datetime.fromisoformat(watch["until"]), now)
            cells = (watch["id"], watch["name"], watch["via"] or "any", end, watch["when"])
            rows.append(tuple(clean_text(str(cell)).replace("\n", " ") for cell in cells))
        if all(watch["mine"] or watch["name"] == str(response["who"]) for watch in watches):
            rows = [(row[0], *row[2:]) for row in rows]  # all are the user's own
        widths = [max(map(len, column)) for column in zip(*rows)]
        for row in rows:  # the request comes last, and is never cut
            line = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths))
            click.echo(replace_unencodable(line.rstrip()))
    elif not problems:
        print_command_message("you have no notifications")
    for problem in problems:
        print_command_message(clean_text(problem))


@notify.command("stop")
@click.argument("ids", metavar="ID...", nargs=-1)
@with_booking_confirmation
@with_watch_backend
def stop_watches(place: BookingBackend, ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Stop notifications by id.

    \b
    gpuboard notify stop k7m2xp
    """
    if not ids:
        raise click.UsageError("which notification? Give its id: `gpuboard notify list` lists yours")
    responses = [
        confirm_booking_command(place, {"do": "unwatch", "id": watch_id}, "Stop this notification?", yes)
        for watch_id in dict.fromkeys(ids)
    ]
    message = "; ".join(clean_text(response["said"]) for response in responses)
    watches = [watch for response in responses for watch in response["watches"]]
    print_booking_result({"said": message, "warnings": [], "watches": watches}, message, as_json)
