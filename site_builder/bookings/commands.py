"""`gpuboard book`, `bookings`, `change`, `release` and `token`."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any

import click
import orjson

from site_builder.bookings import backends
from site_builder.bookings.backends import BookingBackend, BookingResponse, LocalBookingBackend, RemoteBookingBackend
from site_builder.bookings.host_lookup import HostLookup
from site_builder.bookings.json_edit import EntryPlacementError
from site_builder.bookings.policy import BookingNameError, BookingRefusedError, check_booking_name
from site_builder.bookings.request import UnclearRequestError, parse_request_end_fields, parse_request_time_field
from site_builder.bookings.store import BookingsUnreadableError
from site_builder.bookings.times import find_first_booking_time
from site_builder.bookings.tokens import TokenStore
from site_builder.config.settings import LoadedSettings, Settings
from site_builder.core import command_options, formatting
from site_builder.core.board_client import describe_unexpected_board_response
from site_builder.core.clock import Now
from site_builder.core.command_options import CommandError, NegativeResultError, print_command_message
from site_builder.core.locks import LockedFileError
from site_builder.core.model import FleetUnavailableError
from site_builder.core.terminal_text import clean_text, find_terminal_width, replace_unencodable
from site_builder.core.timeparse import moments, recurrence
from site_builder.snapshots.completion import complete_gpus, complete_hosts

BOTH_ENDS_MESSAGE = "use either --until or --for"
# Ids as the booking service makes them; no host has such a name.
BOOKING_ID_SHAPE = re.compile(r"[bcdfghjkmnpqrstvwxz2-9]{6}|x[0-9a-f]{8}")
TABLE_WIDTH = 80
TABLE_HEAD = ("ID", "GPUS", "WHO", "WHEN", "NOTES")
# Widths of the columns if the line is too narrow for all; the notes have the rest.
MAX_COLUMN_WIDTHS = (10, 16, 12, 25)
COLUMN_GAP = "  "
UNKNOWN_PERSON_MESSAGE = "the board does not know who you are: ask its admin for a token, and set GPUBOARD_TOKEN to it"
MAX_PROBLEMS = 5
MAX_PAST = 50
MEAN_USE_STEP = 5
UNKNOWN_USE = dict.fromkeys(("unused_since", "used_by", "used_by_since", "mean_use"))


@contextmanager
def translate_booking_errors(place: object = None) -> Iterator[None]:
    """Turn the errors of a booking into a message: exit 1 if it was refused, 2 if something is wrong."""
    try:
        yield
    except (BookingRefusedError, EntryPlacementError) as error:
        raise NegativeResultError(clean_text(str(error))) from None
    except (UnclearRequestError, BookingsUnreadableError, FleetUnavailableError, LockedFileError) as error:
        raise CommandError(clean_text(str(error))) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        if not isinstance(place, RemoteBookingBackend):  # whose response may lack any of the fields below
            raise
        raise CommandError(describe_unexpected_board_response(place.url)) from None


def with_booking_backend(
    command: Callable[..., None], local_class: type[LocalBookingBackend] = LocalBookingBackend
) -> Callable[..., None]:
    """Give a command the backend to book with, as `place`, and add the options that choose it."""

    @wraps(command)
    def run(loaded: LoadedSettings, **options: Any) -> None:  # noqa: ANN401 # the command's own options
        place = backends.open_booking_backend(loaded, local_class)
        with translate_booking_errors(place):
            command(place=place, **options)

    return command_options.url_option(command_options.with_loaded_settings(run))


def with_booking_confirmation(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a command that asks before it changes something."""
    command = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def confirm_booking_command(
    place: BookingBackend, request: Mapping[str, Any], question: str, yes: bool
) -> BookingResponse:
    """Print what would change, ask if somebody is there to answer, and do exactly that."""
    if yes or not is_interactive_booking():
        response = place.send(request)
        print_booking_warnings(response)
        return response
    checked = place.send({**request, "check": True})
    print_command_message(f"preview: {clean_text(checked['said'])}")
    print_booking_warnings(checked)
    if not ask_booking_confirmation(question):
        raise NegativeResultError("nothing changed")
    if request["do"] == "undo":
        return place.send({**request, "undoes": checked["undoes"]})
    if request["do"] == "book":  # the GPUs that were found for it
        fields = {key: value for key, value in request.items() if key not in {"any", "model"}}
        return place.send({**fields, "gpus": [booking["where"] for booking in checked["bookings"]]})
    return place.send(request)


def print_booking_warnings(response: BookingResponse) -> None:
    for warning in response.get("warnings") or ():
        print_command_message(f"note: {clean_text(str(warning))}")


def is_interactive_booking() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_booking_confirmation(question: str) -> bool:
    """Ask a question; Ctrl-C means no."""
    while True:
        try:
            # input() would lose a Ctrl-C that arrives while it prints a prompt itself
            click.echo(f"{question} [Y/n]: ", nl=False, err=True)
            answer = input().strip().lower()
        except (KeyboardInterrupt, EOFError):
            click.echo(err=True)
            return False
        if answer in {"", "y", "yes", "n", "no"}:
            return answer not in {"n", "no"}
        click.echo("Answer y or n.", err=True)


def print_booking_result(response: BookingResponse, message: str, as_json: bool) -> None:
    """Print what was done; the data go to stdout."""
    print_command_message(message)
    if as_json:
        click.echo(json.dumps(response, indent=1))


@click.command()
@click.argument("gpus", nargs=-1, shell_complete=complete_gpus)
@click.option("--until", metavar="TIME", help='End: "fri 18:00", "20 Nov 6pm".')
@click.option("--for", "length", metavar="LENGTH", help="Length, instead of --until: 2h, 1d12h, 2w.")
@click.option("--from", "since", metavar="TIME", help='Start: "mon 9:00".  [default: now]')
@click.option("--comment", metavar="TEXT", help="Purpose, visible to everybody.")
@click.option("--any", "count", type=click.IntRange(1, 1024), metavar="N", help="Any N free GPUs of one host.")
@click.option("--model", metavar="TEXT", help="GPU model for --any, such as H100.")
@click.option("--name", metavar="LOGIN", help="Book for somebody else.")
@click.option("--repeat", metavar="DAYS", help='Repeat: daily, weekly, "mon,wed", or an RRULE.')
@click.option("--repeat-until", "last", metavar="DATE", help="Last day of the repeats.")
@with_booking_confirmation
@with_booking_backend
def book(place: BookingBackend, gpus: tuple[str, ...], yes: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Book GPUs, all or none.

    GPUS are a host (all its GPUs) or some of its GPUs: atlas atlas:0,1 atlas:0-3. You confirm first. The booking's
    id is for `gpuboard change` and `gpuboard release`; if stdout is not a terminal, it is printed there.

    \b
    gpuboard book atlas:0,1 --until "fri 18:00" --comment "ICML run"
    gpuboard book --any 2 --model H100 --for 8h
    gpuboard book zeus --from "tue 9:00" --for 3h --repeat tue
    """
    which_gpu = (
        "which GPUs? Name a host, some of its GPUs, or a number with --any:\n"
        '  gpuboard book atlas:0,1 --until "fri 18:00"\n'
        "  gpuboard book --any 2 --for 8h"
    )
    for is_wrong, message in (
        (not gpus and not options["count"], which_gpu),
        (gpus and options["count"], "use either GPUS or --any"),
        (options["model"] and not options["count"], "--model needs --any"),
        (options["last"] and not options["repeat"], "--repeat-until needs --repeat"),
        (options["repeat"] and not options["since"], '--repeat needs the first time: --from "tue 9:00"'),
        (options["until"] and options["length"], BOTH_ENDS_MESSAGE),
        (not options["until"] and not options["length"], 'until when? Use --until "fri 18:00" or --for 2h'),
    ):
        if is_wrong:
            raise click.UsageError(message)
    request: dict[str, Any] = {"do": "book", **({"gpus": list(gpus)} if gpus else {"any": options["count"]})}
    now = Now(time.time(), place.settings.zone)
    since = parse_request_time_field({"from": options["since"]}, "from", now)
    if options["repeat"] and since:
        last = parse_request_time_field({"from": options["last"]}, "from", now)
        try:
            last_moment = last and recurrence.extend_recurrence_to_day_end(last, now.zone)
            request["rrule"] = recurrence.parse_recurrence(options["repeat"], last_moment, now.zone)
        except moments.UnclearTimeError as error:
            raise UnclearRequestError(f'"{options["repeat"]}" {error}') from None
        # `mon`, for a booking that repeats on Tuesdays, means the Tuesday after
        since = find_first_booking_time(request["rrule"], since)
        if since is None:
            raise UnclearRequestError(f"by {request['rrule']} it does not occur within a year")
    request |= parse_booking_time_options(options, since, now.local.replace(second=0, microsecond=0), now)
    request |= {key: options[key] for key in ("model", "name", "comment") if options[key]}
    response = confirm_booking_command(place, request, "Book it?", yes)
    ids = list(dict.fromkeys(clean_text(str(booking["id"])) for booking in response["bookings"]))
    print_booking_result(response, f"booked {', '.join(ids)}: {clean_text(response['said'])}", as_json)
    if not as_json and not sys.stdout.isatty():
        click.echo("\n".join(ids))


def parse_booking_time_options(
    options: Mapping[str, Any], since: datetime | None, default_start: datetime, now: Now
) -> dict[str, str]:
    """Return the exact times of a request: what `fri` means is decided here, in the zone of the user."""
    until = parse_request_end_fields({"until": options["until"], "for": options["length"]}, since or default_start, now)
    return {key: moment.isoformat() for key, moment in (("from", since), ("until", until)) if moment}


@click.command()
@click.argument("booking", metavar="ID")
@click.option("--until", metavar="TIME", help='End: "fri 18:00", "20 Nov 6pm".')
@click.option("--for", "length", metavar="LENGTH", help="Length from its start, instead of --until: 2h, 1d12h.")
@click.option("--from", "since", metavar="TIME", help="New start, if it has not started yet.")
@click.option("--comment", metavar="TEXT", help='Purpose; "" to remove it.')
@click.option("--name", metavar="LOGIN", help="New owner.")
@with_booking_confirmation
@with_booking_backend
def change(place: BookingBackend, booking: str, yes: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """Change a booking.

    Only what you give is changed. `gpuboard bookings` lists the ids.

    \b
    gpuboard change k7m2xp --until "sat 12:00"
    gpuboard change k7m2xp --name bob --comment "his turn"
    """
    if options["until"] and options["length"]:
        raise click.UsageError(BOTH_ENDS_MESSAGE)
    if all(value is None for value in options.values()):
        raise click.UsageError("what should change? Use --until, --for, --from, --comment or --name")
    request = {"do": "change", "id": booking}
    if options["since"] or options["until"] or options["length"]:  # an end counts from the booking's own start
        now = Now(time.time(), place.settings.zone)
        since = parse_request_time_field({"from": options["since"]}, "from", now)
        starts = [listed["from"] for listed in place.list_bookings()["bookings"] if listed["id"] == booking]
        old_since = datetime.fromisoformat(starts[0]) if starts and starts[0] else now.local
        request |= parse_booking_time_options(options, since, old_since, now)
    request |= {key: options[key] for key in ("comment", "name") if options[key] is not None}
    response = confirm_booking_command(place, request, "Change it?", yes)
    print_booking_result(response, f"changed {booking}: {clean_text(response['said'])}", as_json)


@click.command()
@click.argument("what", metavar="ID|GPUS...", nargs=-1, shell_complete=complete_gpus)
@with_booking_confirmation
@with_booking_backend
def release(place: BookingBackend, what: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Release bookings by id, or your bookings of GPUs.

    A booking that is running ends now, and its used part stays on record. atlas:0 releases one GPU of a booking of
    several. `gpuboard bookings` lists the ids.

    \b
    gpuboard release k7m2xp
    gpuboard release atlas:0
    """
    if not what:
        raise click.UsageError("which booking? Give its id or GPUs: `gpuboard bookings --mine` lists yours")
    known_ids = {booking["id"] for booking in place.list_bookings()["bookings"]}
    words = list(dict.fromkeys(what))
    ids = [word for word in words if word in known_ids or BOOKING_ID_SHAPE.fullmatch(word)]
    requests: list[dict[str, Any]] = [{"do": "release", "id": booking_id} for booking_id in ids]
    gpus = [word for word in words if word not in ids]
    if gpus:
        requests.append({"do": "release", "gpus": gpus})
    for request in requests if len(requests) > 1 else ():  # all of them or none
        place.send({**request, "check": True})
    responses = [confirm_booking_command(place, request, "Release it?", yes) for request in requests]
    message = "; ".join(clean_text(response["said"]) for response in responses)
    merged = {key: [item for response in responses for item in response[key]] for key in ("warnings", "bookings")}
    print_booking_result({"said": message, **merged}, message, as_json)


@click.command()
@click.argument("host", required=False, shell_complete=complete_hosts)
@click.option("--mine", is_flag=True, help="Only your bookings.")
@click.option("--undo", is_flag=True, help="Undo your last change.")
@click.option("--past", is_flag=True, help="Ended bookings that are no longer in comments.json.")
@click.option("--restore", metavar="ID", help="Restore booking ID, or `all` that have not ended.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask, with --undo and --restore.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in full.")
@with_booking_backend
def bookings(place: BookingBackend, host: str | None, mine: bool, past: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401
    """List bookings of all hosts or of HOST.

    Current bookings come first. Each current booking says how it is used: the mean use, idle since when, or used by
    somebody else.

    \b
    gpuboard bookings atlas
    gpuboard bookings --mine
    gpuboard bookings --undo
    gpuboard bookings --restore k7m2xp
    """
    undo, restore = options["undo"], options["restore"]
    if undo and (host or mine or past or restore is not None):
        raise click.UsageError("--undo undoes your last change, of whatever booking: use it alone")
    if restore is not None and (host or mine or past):
        raise click.UsageError("--restore takes an id: use it alone")
    if past or restore is not None:
        if not isinstance(place, LocalBookingBackend):
            raise CommandError("the archive is on the web host: run this there, as the user who builds")
        place = backends.ArchivedBookingBackend(place.settings)
    if undo or restore is not None:
        request = {"do": "undo"} if undo else {"do": "restore", "id": restore}
        response = confirm_booking_command(place, request, "Undo this?" if undo else "Restore this?", options["yes"])
        print_booking_result(response, f"done: {clean_text(response['said'])}", as_json)
        return
    shown = filter_bookings(place.list_bookings(), host, mine, place)
    hidden_count = max(0, len(shown) - MAX_PAST) if past and not as_json else 0
    shown = shown[: len(shown) - hidden_count]
    uses = index_booking_table_use(place.read_status())
    for booking in shown:
        booking.update(uses.get((booking["host"], booking["id"]), UNKNOWN_USE))
    if as_json:
        click.echo(json.dumps(shown, indent=1))
    elif shown:
        click.echo("\n".join(format_booking_table(shown, place)))
    else:
        where = f" on {clean_text(host)}" if host else ""
        print_command_message(f"{'you have' if mine else 'there are'} no bookings{where}")
    if hidden_count:
        print_command_message(f"and {hidden_count} older ones: --json lists all")
    print_booking_problems(place.list_problems(), MAX_PROBLEMS, "more problems")


def print_booking_problems(problems: Sequence[str], limit: int, rest: str) -> None:
    for problem in problems[:limit]:
        print_command_message(clean_text(problem))
    if len(problems) > limit:
        print_command_message(f"and {len(problems) - limit} {rest}")


def filter_bookings(
    response: BookingResponse, host: str | None, mine: bool, place: BookingBackend
) -> list[BookingResponse]:
    """Return the bookings that the options ask for; refuse a host that the board does not have."""
    listed: list[BookingResponse] = response["bookings"]
    if mine and not response["who"]:
        raise CommandError(UNKNOWN_PERSON_MESSAGE)
    if mine:
        listed = [booking for booking in listed if booking["mine"]]
    if host is None:
        return listed
    names = {host.lower(), host.lower().partition(".")[0]}
    if not any(booking["host"].lower() in names for booking in response["bookings"]):
        if isinstance(place, LocalBookingBackend):
            HostLookup(place.settings).find_host(host)
        elif not any(known["name"].lower() in names for known in place.read_status()["hosts"]):
            raise NegativeResultError(f"no host {clean_text(host)}")
    return [booking for booking in listed if booking["host"].lower() in names]


def index_booking_table_use(status: BookingResponse) -> dict[tuple[str, str], BookingResponse]:
    """Summarize status.json for each running booking: unused if all its GPUs are, used by others if any is."""
    now = time.time()
    running: dict[tuple[str, str], list[BookingResponse]] = {}
    for host in status.get("hosts") or ():
        for booking in (booking for gpu in host["gpus"] for booking in gpu["bookings"]):
            since = datetime.fromisoformat(booking["from"]).timestamp() if booking["from"] else 0
            until = datetime.fromisoformat(booking["date"]).timestamp()
            if booking["id"] and since <= now < until:
                running.setdefault((host["name"], booking["id"]), []).append(booking)
    uses = {}
    for key, gpus in running.items():
        unused, used_by_since, mean_uses = (
            [gpu[name] for gpu in gpus if gpu.get(name) is not None]
            for name in ("unused_since", "used_by_since", "mean_use")
        )
        people = dict.fromkeys(name for gpu in gpus for name in gpu.get("used_by") or ())
        uses[key] = {
            "unused_since": max(unused) if len(unused) == len(gpus) else None,
            "used_by": list(people) or None,
            "used_by_since": min(used_by_since, default=None),
            "mean_use": round(sum(mean_uses) / len(mean_uses), 1) if mean_uses else None,
        }
    return uses


def format_booking_table(listed: Sequence[BookingResponse], place: BookingBackend) -> list[str]:
    now = Now(time.time(), place.settings.zone)
    width = max(TABLE_WIDTH, find_terminal_width() or 0)
    rows = []
    for booking in listed:
        notes = filter(None, (booking["comment"], booking["by"] and f"booked by {booking['by']}"))
        until = datetime.fromisoformat(booking["date"])
        since = datetime.fromisoformat(booking["from"]) if booking["from"] else None
        if booking["rrule"] and since:
            times = recurrence.describe_recurrence_hours(booking["rrule"], since, until, now.zone)
        elif booking["phase"] == "now" or since is None:
            times = f"until {formatting.format_moment(until, now)}"
        else:
            is_same_day = now.to_local(since).date() == now.to_local(until).date()
            end = f"{now.to_local(until):%H:%M}" if is_same_day else formatting.format_moment(until, now)
            times = f"{formatting.format_moment(since, now)} to {end}"
        person = booking.get("person") or booking["name"] or ""
        cells = (booking["id"] or "", booking["where"], person, times, "; ".join(notes))
        rows.append(tuple(clean_text(str(cell)).replace("\n", " ") for cell in cells))
    columns = list(zip(TABLE_HEAD[:-1], *(row[:-1] for row in rows)))
    widths = [min(max(map(len, column)), max_width) for column, max_width in zip(columns, MAX_COLUMN_WIDTHS)]
    widths.append(width - sum(widths) - len(COLUMN_GAP) * len(widths))
    lines = [join_booking_table_cells(TABLE_HEAD, widths)]
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for booking, row in zip(listed, rows):
        use, conflict_since = "", booking["used_by_since"]
        if conflict_since is not None:
            use = f"used by {clean_text(formatting.format_names(booking['used_by'] or ['another']))}"
        elif booking["unused_since"] is not None:
            use, conflict_since = "unused", booking["unused_since"]
        elif booking["mean_use"] is not None:
            use = f"{round(booking['mean_use'] / MEAN_USE_STEP) * MEAN_USE_STEP} % used on average"
        if conflict_since is not None:
            use += f" since {formatting.format_moment(datetime.fromtimestamp(conflict_since, now.zone), now)}"
        use_and_notes = "; ".join(filter(None, (use, row[-1])))
        if len(use_and_notes) <= widths[-1]:
            booking_lines = [join_booking_table_cells((*row[:-1], use_and_notes), widths)]
        else:  # the use is never cut: it has a line of its own
            booking_lines = [join_booking_table_cells(row, widths), *([f"{COLUMN_GAP * 2}{use}"] if use else [])]
        for line in map(replace_unencodable, booking_lines):
            lines.append(click.style(line, fg="yellow") if is_coloured and conflict_since is not None else line)
    return lines


def join_booking_table_cells(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut_cells = (cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell, width in zip(cells, widths))
    return COLUMN_GAP.join(f"{cell:{width}}" for cell, width in zip(cut_cells, widths)).rstrip()


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="List who has tokens, and since when.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with --list.")
@click.option("--revoke", metavar="NAME", help="Revoke all tokens of NAME.")
@command_options.with_settings
def token(settings: Settings, name: str | None, listing: bool, as_json: bool, revoke: str | None) -> None:
    """Create a booking token for NAME, and print it once.

    With the token in GPUBOARD_TOKEN, its owner books as NAME through the board. Only a hash of it is kept, in
    state/tokens.json. Run this on the web host, as the user who builds the board.

    \b
    gpuboard token alice
    gpuboard token --list
    gpuboard token --revoke alice
    """
    if (name is not None) + listing + (revoke is not None) != 1:
        raise click.UsageError("use either NAME, --list or --revoke NAME")
    tokens = TokenStore(settings.state)
    try:
        if name is not None:
            new_token = tokens.create_token(check_booking_name(name), time.time())
            print_command_message(f"{name} sets GPUBOARD_TOKEN to this token; it is not shown again")
            click.echo(new_token)
        elif revoke is not None:
            count = tokens.revoke_tokens(revoke)
            if not count:
                print_command_message(f"{revoke} has no token")
                sys.exit(1)
            print_command_message(f"revoked {formatting.format_count(count, 'token')} of {revoke}")
        elif as_json:  # names and dates, nothing with which anybody could book
            rows = [{"name": entry.name, "made": entry.created_at} for entry in tokens.list_tokens()]
            click.echo(orjson.dumps(rows).decode())
        else:
            entries = tokens.list_tokens()
            width = max((len(entry.name) for entry in entries), default=0)
            for entry in entries:
                click.echo(f"{entry.name:<{width}}  {datetime.fromtimestamp(entry.created_at):%Y-%m-%d %H:%M}")
        if tokens.problem:
            print_command_message(f"{tokens.path} {tokens.problem}")
    except (LockedFileError, BookingNameError) as error:
        raise CommandError(str(error)) from None
