"""`gpuboard book`, `bookings`, `change`, `release` and `token`."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from site_builder.bookings.backends import (
    BookingBackend,
    BookingResponse,
    LocalBookings,
    RemoteBookings,
    open_booking_backend,
)
from site_builder.client import completion
from site_builder.core.command_options import (
    CommandError,
    NegativeResultError,
    print_message,
    with_loaded_settings,
    with_settings,
)
from site_builder.core.terminal_text import replace_unencodable

if TYPE_CHECKING:
    from site_builder.bookings.tokens import TokenStore
    from site_builder.config.conf_file import LoadedSettings
    from site_builder.config.settings import Settings
    from site_builder.core.clock import Now


@contextmanager
def translate_booking_errors(place: object = None) -> Iterator[None]:
    """Whatever the desk has against it is told in one sentence: exit 1 if it refuses, 2 if something is wrong.

    An answer of another machine may lack anything that we look for in it.
    """
    from site_builder.bookings import json_edit
    from site_builder.bookings import service as bookings_service  # noqa: PLC0415
    from site_builder.bookings.gpu_selection import UnclearRequestError  # noqa: PLC0415
    from site_builder.bookings.policy import BookingRefusedError  # noqa: PLC0415
    from site_builder.core import locks  # noqa: PLC0415
    from site_builder.core.board_client import FleetUnavailableError  # noqa: PLC0415

    try:
        yield
    except (BookingRefusedError, json_edit.EntryPlacementError) as why:
        raise NegativeResultError(clean_for_terminal(str(why))) from None
    except (
        UnclearRequestError,
        bookings_service.BookingsUnreadableError,
        FleetUnavailableError,
        locks.StorageError,
    ) as why:
        raise CommandError(clean_for_terminal(str(why))) from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        if not isinstance(place, RemoteBookings):
            raise
        raise CommandError(place.describe_odd_response()) from None


def with_booking_backend(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command where to book, as `place`, and add the options that say it."""

    @wraps(command)
    def run(loaded: LoadedSettings, **rest: Any) -> None:  # noqa: ANN401 # the command's own options
        place = open_booking_backend(loaded)
        with translate_booking_errors(place):
            command(place=place, **rest)

    return click.option("--url", metavar="URL", help="The board, if it is on another machine.")(
        with_loaded_settings(run)
    )


def with_confirmation_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of what asks before it does something."""
    command = click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")(command)
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm_and_send(place: BookingBackend, request: Mapping[str, Any], question: str, yes: bool) -> BookingResponse:
    """Say what was understood, ask if somebody is there to answer, and do exactly that."""
    if not yes and is_interactive():
        checked = place.send({**request, "check": True})
        print_message(clean_for_terminal(checked["said"]))
        for warning in checked.get("warnings") or ():
            print_message(f"note: {clean_for_terminal(str(warning))}")
        if not ask_confirmation(question):
            message = "nothing was changed"
            raise NegativeResultError(message)
        return place.send(pin_checked_request(request, checked))
    done = place.send(request)
    for warning in done.get("warnings") or ():
        print_message(f"note: {clean_for_terminal(str(warning))}")
    return done


def pin_checked_request(request: Mapping[str, Any], checked: BookingResponse) -> dict[str, Any]:
    """The same request with the GPUs that were found for it, or with what was to be taken back."""
    if request["do"] == "undo":
        return {**request, "undoes": checked["undoes"]}
    if request["do"] != "book":
        return dict(request)
    rest = {key: value for key, value in request.items() if key not in {"any", "model"}}
    return {**rest, "gpus": [one["where"] for one in checked["bookings"]]}


def is_interactive() -> bool:
    """Whether somebody sits there who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_confirmation(question: str) -> bool:
    """What they say; to leave is to say no."""
    try:
        return click.confirm(question, default=True, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def clean_for_terminal(text: str) -> str:
    """Without what would steer a terminal: it may come from another machine."""
    from site_builder.core.terminal_text import clean_text  # noqa: PLC0415

    return clean_text(text)


def list_booking_ids(answer: BookingResponse) -> list[str]:
    """The ids of the bookings that an answer is about."""
    return list(dict.fromkeys(clean_for_terminal(str(one["id"])) for one in answer["bookings"]))


def print_booking_result(answer: BookingResponse, done: str, as_json: bool) -> None:
    """What was done, in a sentence; the data go to stdout."""
    print_message(done)
    if as_json:
        import json  # noqa: PLC0415

        click.echo(json.dumps(answer, indent=1))


BOOK_EXAMPLE = 'gpuboard book atlas:0,1 --until "fri 18:00"'
ANY_EXAMPLE = "gpuboard book --any 2 --for 8h"
FIRST_OCCURRENCE_WINDOW = timedelta(days=366)


@click.command()
@click.argument("gpus", nargs=-1, shell_complete=completion.complete_gpus)
@click.option("--until", metavar="TIME", help='When it ends: "fri 18:00", "20 Nov 6pm".')
@click.option("--for", "length", metavar="LENGTH", help="Or how long it is: 2h, 1d12h, 2w.")
@click.option("--from", "since", metavar="TIME", help='When it begins: "mon 9:00".  [default: now]')
@click.option("--comment", metavar="TEXT", help="What for; everybody can read it.")
@click.option("--any", "count", type=click.IntRange(1, 1024), metavar="N", help="Any N GPUs of one host that are free.")
@click.option("--model", metavar="TEXT", help="With --any: of this model, such as H100.")
@click.option("--name", metavar="LOGIN", help="For somebody else.")
@click.option("--repeat", metavar="DAYS", help='Again and again: daily, weekly, "mon,wed", or an RRULE.')
@click.option("--repeat-until", "last", metavar="DATE", help="The last day on which it may repeat.")
@with_confirmation_options
@with_booking_backend
def book(place: BookingBackend, gpus: tuple[str, ...], yes: bool, as_json: bool, **told: Any) -> None:  # noqa: ANN401
    """Book GPUs, all or none.

    GPUS are a host (all of its GPUs), or some of them: atlas atlas:0,1 atlas:0-3. What was understood is said before it
    counts. The id of the booking, for `gpuboard change` and `gpuboard release`, also goes to stdout where that is no
    terminal.

    \b
    gpuboard book atlas:0,1 --until "fri 18:00" --comment "ICML run"
    gpuboard book --any 2 --model H100 --for 8h
    gpuboard book zeus --from "tue 9:00" --for 3h --repeat tue
    """
    check_book_options(gpus, told)
    request = {"do": "book", **build_time_fields(told, place), **build_gpu_fields(gpus, told)}
    request |= {key: told[key] for key in ("name", "comment") if told[key]}
    done = confirm_and_send(place, request, "Book it?", yes)
    ids = list_booking_ids(done)
    print_booking_result(done, f"booked {', '.join(ids)}: {clean_for_terminal(done['said'])}", as_json)
    if not as_json and not sys.stdout.isatty():
        click.echo("\n".join(ids))


def check_book_options(gpus: tuple[str, ...], told: Mapping[str, Any]) -> None:
    """Refuse what does not go together, and help who has said nothing yet."""
    if not gpus and not told["count"]:
        message = f"which GPU? Name a host or some of its GPUs, or so many of --any:\n  {BOOK_EXAMPLE}\n  {ANY_EXAMPLE}"
        raise click.UsageError(message)
    if gpus and told["count"]:
        message = "name GPUs, or how many of --any, not both"
        raise click.UsageError(message)
    if told["model"] and not told["count"]:
        message = "--model goes with --any"
        raise click.UsageError(message)
    if told["last"] and not told["repeat"]:
        message = "--repeat-until goes with --repeat"
        raise click.UsageError(message)
    if told["repeat"] and not told["since"]:
        message = '--repeat needs the first time: --from "tue 9:00"'
        raise click.UsageError(message)
    check_end_options(told)
    if not told["until"] and not told["length"]:
        message = 'until when? Say --until "fri 18:00" or --for 2h'
        raise click.UsageError(message)


def check_end_options(told: Mapping[str, Any]) -> None:
    """Two ends are one too many."""
    if told["until"] and told["length"]:
        message = "say --until or --for, not both"
        raise click.UsageError(message)


def build_gpu_fields(gpus: tuple[str, ...], told: Mapping[str, Any]) -> dict[str, Any]:
    """The GPUs of a request."""
    if gpus:
        return {"gpus": list(gpus)}
    return {"any": told["count"], **({"model": told["model"]} if told["model"] else {})}


def build_time_fields(told: Mapping[str, Any], place: BookingBackend) -> dict[str, str]:
    """When it is, exactly: what `fri` means is decided here, in the zone of whoever says it."""
    import time  # noqa: PLC0415 # --help needs none of it

    from site_builder.bookings.request import parse_end_fields, parse_time_field  # noqa: PLC0415
    from site_builder.core.clock import Now  # noqa: PLC0415

    now = Now(time.time(), place.settings.zone)
    since = parse_time_field({"from": told["since"]}, "from", now)
    found: dict[str, str] = {}
    if told["repeat"] and since:
        found["rrule"], since = parse_repeat_options(told, since, now)
    begins = since or now.local.replace(second=0, microsecond=0)
    until = parse_end_fields({"until": told["until"], "for": told["length"]}, begins, now)
    if since:
        found["from"] = since.isoformat()
    if until:
        found["until"] = until.isoformat()
    return found


def parse_repeat_options(told: Mapping[str, Any], since: datetime, now: Now) -> tuple[str, datetime]:
    """The rule, and the first of its days: who says `mon` for what repeats on Tuesdays means the Tuesday after."""
    from site_builder.bookings.gpu_selection import UnclearRequestError  # noqa: PLC0415
    from site_builder.bookings.request import parse_time_field  # noqa: PLC0415
    from site_builder.core.timeparse import moments, recurrence  # noqa: PLC0415
    from site_builder.fleet.booking_use import list_repeat_starts  # noqa: PLC0415

    last = parse_time_field({"from": told["last"]}, "from", now)
    try:
        rule = recurrence.parse_recurrence(
            told["repeat"], last and recurrence.extend_to_day_end(last, now.zone), now.zone
        )
    except moments.UnclearTimeError as why:
        message = f'"{told["repeat"]}" {why}'
        raise UnclearRequestError(message) from None
    found = list_repeat_starts(rule, since, since, since + FIRST_OCCURRENCE_WINDOW)
    if not found:
        message = f"by {rule} it would not happen once within a year"
        raise UnclearRequestError(message)
    return rule, found[0]


@click.command()
@click.argument("booking", metavar="ID")
@click.option("--until", metavar="TIME", help='When it ends: "fri 18:00", "20 Nov 6pm".')
@click.option("--for", "length", metavar="LENGTH", help="Or how long it is, from its beginning: 2h, 1d12h.")
@click.option("--from", "since", metavar="TIME", help="When it begins, if it has not.")
@click.option("--comment", metavar="TEXT", help='What for; "" for nothing.')
@click.option("--name", metavar="LOGIN", help="Who has it from now on.")
@with_confirmation_options
@with_booking_backend
def change(place: BookingBackend, booking: str, yes: bool, as_json: bool, **told: Any) -> None:  # noqa: ANN401
    """Change a booking; what is not named stays.

    `gpuboard bookings` lists the ids.

    \b
    gpuboard change k7m2xp --until "sat 12:00"
    gpuboard change k7m2xp --name bob --comment "his turn"
    """
    check_end_options(told)
    if all(value is None for value in told.values()):
        message = "what shall be other? Say --until, --for, --from, --comment or --name"
        raise click.UsageError(message)
    request = {"do": "change", "id": booking, **build_changed_times(told, booking, place)}
    request |= {key: told[key] for key in ("comment", "name") if told[key] is not None}
    done = confirm_and_send(place, request, "Change it?", yes)
    print_booking_result(done, f"changed {booking}: {clean_for_terminal(done['said'])}", as_json)


def build_changed_times(told: Mapping[str, Any], booking: str, place: BookingBackend) -> dict[str, str]:
    """When it is, exactly; an end is looked for after the booking's own beginning."""
    import time  # noqa: PLC0415 # --help needs none of it

    from site_builder.bookings.request import parse_end_fields, parse_time_field  # noqa: PLC0415
    from site_builder.core.clock import Now  # noqa: PLC0415

    if not (told["since"] or told["until"] or told["length"]):
        return {}
    now = Now(time.time(), place.settings.zone)
    since = parse_time_field({"from": told["since"]}, "from", now)
    known = [one["from"] for one in place.list_bookings()["bookings"] if one["id"] == booking]
    began = datetime.fromisoformat(known[0]) if known and known[0] else now.local
    until = parse_end_fields({"until": told["until"], "for": told["length"]}, since or began, now)
    found = (("from", since), ("until", until))
    return {key: at.isoformat() for key, at in found if at}


# As the desk makes them; no host that people name looks so.
BOOKING_ID_SHAPE = re.compile(r"[bcdfghjkmnpqrstvwxz2-9]{6}|x[0-9a-f]{8}")


@click.command()
@click.argument("what", metavar="ID|GPUS...", nargs=-1, shell_complete=completion.complete_gpus)
@with_confirmation_options
@with_booking_backend
def release(place: BookingBackend, what: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Release bookings by id, or your bookings of GPUs.

    What has been used of a booking stays in the list of what was; only the rest is given up. `gpuboard bookings` lists
    the ids; atlas:0 releases one GPU of a booking of several.

    \b
    gpuboard release k7m2xp
    gpuboard release atlas:0
    """
    if not what:
        message = "which booking? Name its id, or the GPUs: `gpuboard bookings --mine` lists yours"
        raise click.UsageError(message)
    wanted = build_release_requests(what, place)
    for request in wanted if len(wanted) > 1 else ():  # all of them or none
        place.send({**request, "check": True})
    several = [confirm_and_send(place, request, "Release it?", yes) for request in wanted]
    said = "; ".join(clean_for_terminal(one["said"]) for one in several)
    warnings, bookings = ([item for one in several for item in one[key]] for key in ("warnings", "bookings"))
    print_booking_result({"said": said, "warnings": warnings, "bookings": bookings}, said, as_json)


def build_release_requests(what: tuple[str, ...], place: BookingBackend) -> list[BookingResponse]:
    """One for each id, and one for all GPUs."""
    known = {one["id"] for one in place.list_bookings()["bookings"]}
    ids = [word for word in dict.fromkeys(what) if word in known or BOOKING_ID_SHAPE.fullmatch(word)]
    gpus = [word for word in dict.fromkeys(what) if word not in ids]
    found: list[dict[str, Any]] = [{"do": "release", "id": one} for one in ids]
    return [*found, {"do": "release", "gpus": gpus}] if gpus else found


TABLE_WIDTH = 80
TABLE_HEAD = ("ID", "GPUS", "WHO", "WHEN", "NOTES")
# What each column may take where the line is too narrow for all; the notes have the rest.
MAX_COLUMN_WIDTHS = (10, 16, 12, 25)
COLUMN_GAP = "  "
MAX_PROBLEMS = 5
MAX_PAST = 50
MEAN_USE_STEP = 5


@click.command()
@click.argument("host", required=False, shell_complete=completion.complete_hosts)
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--undo", is_flag=True, help="Take back the last change that you made.")
@click.option("--past", is_flag=True, help="Those that left comments.json because they are over.")
@click.option("--restore", metavar="ID", help="Put one of these back; all: every one that is not over.")
@click.option("--yes", "-y", is_flag=True, help="With --undo and --restore: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs, with nothing cut.")
@with_booking_backend
def bookings(  # one for each option
    place: BookingBackend,
    host: str | None,
    mine: bool,
    undo: bool,
    past: bool,
    restore: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """List bookings of all hosts or of HOST.

    Current bookings come first. Beside each that runs stands whether it is kept: used by somebody else, unused, or how much it is used.

    \b
    gpuboard bookings atlas
    gpuboard bookings --mine
    gpuboard bookings --undo
    gpuboard bookings --restore k7m2xp
    """
    check_list_options(host, mine, undo, past, restore)
    if undo:
        done = confirm_and_send(place, {"do": "undo"}, "Take it back?", yes)
        print_booking_result(done, clean_for_terminal(done["said"]), as_json)
        return
    if restore is not None:
        done = confirm_and_send(ArchiveBackend(place), {"do": "restore", "id": restore}, "Put it back?", yes)
        print_booking_result(done, clean_for_terminal(done["said"]), as_json)
        return
    found = ArchiveBackend(place).list_bookings() if past else place.list_bookings()
    several = filter_bookings(found, host, mine, place)
    more = len(several) - MAX_PAST if past and not as_json else 0
    several = several[:MAX_PAST] if more > 0 else several
    boards = group_running_bookings(place.read_status())
    for one in several:
        one.update(summarize_booking_use(boards.get((one["host"], one["id"]), ())))
    if as_json:
        import json  # noqa: PLC0415

        click.echo(json.dumps(several, indent=1))
    elif several:
        click.echo("\n".join(format_booking_table(several, place)))
    else:
        print_message(
            f"{'you have' if mine else 'there are'} no bookings{f' on {clean_for_terminal(host)}' if host else ''}"
        )
    if more > 0:
        print_message(f"and {more} that left earlier: --json has them all")
    problems = place.list_problems()
    for problem in problems[:MAX_PROBLEMS]:
        print_message(clean_for_terminal(problem))
    if len(problems) > MAX_PROBLEMS:
        print_message(f"and {len(problems) - MAX_PROBLEMS} more problems in it")


def check_list_options(host: str | None, mine: bool, undo: bool, past: bool, restore: str | None) -> None:
    """Refuse options that do not go together."""
    if undo and (host or mine or past or restore):
        message = "--undo takes back your last change, whatever it was of: it goes with nothing else"
        raise click.UsageError(message)
    if restore is not None and (host or mine or past):
        message = "--restore takes an id, and goes with nothing else"
        raise click.UsageError(message)


class ArchiveBackend:
    """The bookings that left comments.json, which only the machine of the builder has."""

    def __init__(self, place: BookingBackend) -> None:
        """Whose archive."""
        if not isinstance(place, LocalBookings):
            message = "the archive is on the web host: run this there, as the user who builds"
            raise CommandError(message)
        self.backend, self.settings, self.clock_ahead_s = place, place.settings, place.clock_ahead_s
        self.read_status, self.list_problems = place.read_status, place.list_problems

    def list_bookings(self) -> BookingResponse:
        """As the archive has them, the newest first."""
        from site_builder.bookings import api, archive  # noqa: PLC0415 # --help needs none of it

        desk, who = self.backend.service, self.backend.user
        with self.translate_errors():
            several = api.group_bookings([one.booking for one in archive.read_archive(self.settings)], desk.now())
        api.apply_privacy(several, desk.begin_read(who))
        return {"who": who.name or None, "bookings": several}

    def send(self, request: Mapping[str, Any]) -> BookingResponse:
        """Restore, or with `check` say what would be."""
        from site_builder.bookings import api, archive  # noqa: PLC0415

        with self.translate_errors():
            done = archive.restore_bookings(
                self.backend.service, self.backend.user, str(request["id"]), request.get("check") is True
            )
        several = api.group_bookings(done.bookings, self.backend.service.now())
        return {"said": done.message, "warnings": list(done.warnings), "bookings": several}

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Say in one sentence why state/ cannot be used."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.settings.state
            raise CommandError(f"{where} cannot be used: {error.strerror}; run this as the user who builds") from None


def filter_bookings(
    found: BookingResponse, host: str | None, mine: bool, place: BookingBackend
) -> list[BookingResponse]:
    """Those that were asked for; a host that there is not is told."""
    several: list[BookingResponse] = found["bookings"]
    if mine:
        if not found["who"]:
            message = "the board does not know who you are: ask its admin for a token, and set GPUBOARD_TOKEN to it"
            raise CommandError(message)
        several = [one for one in several if one["mine"]]
    if host is None:
        return several
    names = {host.lower(), host.lower().partition(".")[0]}
    of_host = [one for one in several if one["host"].lower() in names]
    if not of_host and not any(one["host"].lower() in names for one in found["bookings"]):
        check_host_exists(host, names, place)
    return of_host


def check_host_exists(host: str, names: set[str], place: BookingBackend) -> None:
    """Refuse a host that the board does not have."""
    if isinstance(place, LocalBookings):
        from site_builder.bookings.host_lookup import HostLookup  # noqa: PLC0415

        HostLookup(place.settings).find_host(host)
    elif not any(one["name"].lower() in names for one in place.read_status()["hosts"]):
        message = f"there is no host {clean_for_terminal(host)}"
        raise NegativeResultError(message)


# Whether they are kept


def group_running_bookings(status: BookingResponse) -> dict[tuple[str, str], list[BookingResponse]]:
    """What the board says of each booking, once for each of its GPUs."""
    found: dict[tuple[str, str], list[BookingResponse]] = {}
    for host in status.get("hosts") or ():
        for gpu in host["gpus"]:
            for one in gpu["bookings"]:
                if one["id"] and is_booking_running(one):
                    found.setdefault((host["name"], one["id"]), []).append(one)
    return found


def is_booking_running(one: BookingResponse) -> bool:
    """Whether this time of the booking is the present one."""
    since, until = (one[key] and datetime.fromisoformat(one[key]).timestamp() for key in ("from", "date"))
    return (since or 0) <= time.time() < until


def summarize_booking_use(gpus: Sequence[BookingResponse]) -> BookingResponse:
    """The same of all GPUs together: unused are all of them, used by others is any, and the use is that of the mean."""
    unused = [one["unused_since"] for one in gpus if one.get("unused_since") is not None]
    since = [one["used_by_since"] for one in gpus if one.get("used_by_since") is not None]
    means = [one["mean_use"] for one in gpus if one.get("mean_use") is not None]
    people = dict.fromkeys(name for one in gpus for name in one.get("used_by") or ())
    return {
        "unused_since": max(unused) if unused and len(unused) == len(gpus) else None,
        "used_by": list(people) or None,
        "used_by_since": min(since, default=None),
        "mean_use": round(sum(means) / len(means), 1) if means else None,
    }


def describe_booking_use(one: BookingResponse, now: Now) -> str:
    """As the board says it."""
    from site_builder.core import formatting  # noqa: PLC0415

    def clock(epoch: float) -> str:
        return formatting.format_moment(datetime.fromtimestamp(epoch, now.zone), now)

    if one["used_by_since"] is not None:
        return f"used by {formatting.join_names(one['used_by'] or ['another'])} since {clock(one['used_by_since'])}"
    if one["unused_since"] is not None:
        return f"unused since {clock(one['unused_since'])}"
    if one["mean_use"] is not None:
        return f"{round(one['mean_use'] / MEAN_USE_STEP) * MEAN_USE_STEP} % used on average"
    return ""


# The table


def format_booking_table(several: Sequence[BookingResponse], place: BookingBackend) -> list[str]:
    """A line for each, that fits the terminal."""
    from site_builder.core.clock import Now  # noqa: PLC0415

    now = Now(time.time(), place.settings.zone)
    is_terminal = sys.stdout.isatty()
    width = max(TABLE_WIDTH, shutil.get_terminal_size((TABLE_WIDTH, 24)).columns) if is_terminal else TABLE_WIDTH
    rows = [format_booking_row(one, now) for one in several]
    columns = list(zip(TABLE_HEAD[:-1], *(cells[:-1] for cells in rows)))
    widths = [min(max(map(len, column)), most) for column, most in zip(columns, MAX_COLUMN_WIDTHS)]
    widths.append(width - sum(widths) - len(COLUMN_GAP) * len(widths))
    lines = [join_table_cells(TABLE_HEAD, widths)]
    coloured = is_terminal and not os.environ.get("NO_COLOR")
    for one, cells in zip(several, rows):
        broken = one["used_by_since"] is not None or one["unused_since"] is not None
        for text in map(
            replace_unencodable,
            format_booking_with_use(cells, clean_for_terminal(describe_booking_use(one, now)), widths),
        ):
            lines.append(click.style(text, fg="yellow") if coloured and broken else text)
    return lines


def format_booking_with_use(cells: tuple[str, ...], said: str, widths: Sequence[int]) -> list[str]:
    """A booking with whether it is kept, which is never cut: it has a line of its own where there is no room."""
    both = "; ".join(filter(None, (said, cells[-1])))
    if len(both) <= widths[-1]:
        return [join_table_cells((*cells[:-1], both), widths)]
    return [join_table_cells(cells, widths), *([f"{COLUMN_GAP * 2}{said}"] if said else [])]


def format_booking_row(one: BookingResponse, now: Now) -> tuple[str, ...]:
    """The cells of a booking."""
    notes = [one["comment"] or "", f"booked by {one['by']}" if one["by"] else ""]
    cells = (
        one["id"] or "",
        one["where"],
        one["name"] or "",
        format_booking_time(one, now),
        "; ".join(filter(None, notes)),
    )
    return tuple(clean_for_terminal(str(cell)).replace("\n", " ") for cell in cells)


def format_booking_time(one: BookingResponse, now: Now) -> str:
    """`until Fri 18:00`, `Mon 09:00 to 12:00`, `every Tue 09:00 to 12:00`."""
    from site_builder.core import formatting  # noqa: PLC0415
    from site_builder.core.timeparse import recurrence  # noqa: PLC0415

    until = datetime.fromisoformat(one["date"])
    since = datetime.fromisoformat(one["from"]) if one["from"] else None
    if one["rrule"] and since:
        return recurrence.describe_recurrence_hours(one["rrule"], since, until, now.zone)
    if one["phase"] == "now" or since is None:
        return f"until {formatting.format_moment(until, now)}"
    same_day = now.to_local(since).date() == now.to_local(until).date()
    end = f"{now.to_local(until):%H:%M}" if same_day else formatting.format_moment(until, now)
    return f"{formatting.format_moment(since, now)} to {end}"


def join_table_cells(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells side by side, each cut where it is too long."""
    return COLUMN_GAP.join(f"{truncate_cell(cell, width):{width}}" for cell, width in zip(cells, widths)).rstrip()


def truncate_cell(text: str, width: int) -> str:
    """A text that fits, with the mark of what is left out."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="Whose tokens there are, and since when.")
@click.option("--json", "as_json", is_flag=True, help="With --list: as JSON, for programs.")
@click.option("--revoke", metavar="NAME", help="Take away all tokens of NAME.")
@with_settings
def token(settings: Settings, name: str | None, listing: bool, as_json: bool, revoke: str | None) -> None:
    """Create a booking token for NAME, and print it once.

    Whoever has it books as NAME, through the board, with GPUBOARD_TOKEN set to it. It is kept only as a hash, in
    state/tokens.json. Call this on the web host, as the user who builds the board.

    \b
    gpuboard token alice
    gpuboard token --list
    gpuboard token --revoke alice
    """
    if (name is not None) + listing + (revoke is not None) != 1:
        message = "name somebody, or give --list, or --revoke NAME"
        raise click.UsageError(message)
    from site_builder.bookings.policy import InvalidNameError, validate_user_name  # noqa: PLC0415 # --help needs none of it
    from site_builder.bookings.tokens import TokenStore  # noqa: PLC0415
    from site_builder.core.locks import StorageError  # noqa: PLC0415

    tokens = TokenStore(settings.state)
    try:
        if name is not None:
            made = tokens.create_token(validate_user_name(name), time.time())
            print_message(f"{name} sets GPUBOARD_TOKEN to this; it is not shown again")
            click.echo(made)
        elif revoke is not None:
            revoke_named_tokens(tokens, revoke)
        else:
            print_tokens(tokens, as_json)
        if tokens.problem:
            print_message(f"{tokens.path} {tokens.problem}")
    except (StorageError, InvalidNameError) as why:
        raise CommandError(str(why)) from None


def revoke_named_tokens(tokens: TokenStore, name: str) -> None:
    """All that somebody has; exit 1 where there is none."""
    count = tokens.revoke_tokens(name)
    if not count:
        print_message(f"there is no token of {name}")
        sys.exit(1)
    print_message(f"{count} {'token' if count == 1 else 'tokens'} of {name} counted until now")


def print_tokens(tokens: TokenStore, as_json: bool) -> None:
    """Names and days, nothing by which anybody could book."""
    found = tokens.list_tokens()
    if as_json:
        import orjson  # noqa: PLC0415

        click.echo(orjson.dumps([{"name": one.name, "made": one.created_at} for one in found]).decode())
        return
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        click.echo(f"{one.name:<{width}}  {datetime.fromtimestamp(one.created_at):%Y-%m-%d %H:%M}")
