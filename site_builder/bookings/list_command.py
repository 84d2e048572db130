"""`gpuboard bookings`: who has booked what, and whether it is kept."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from site_builder.bookings.command_common import Answer, Here, No, Place, report, settle, shown, with_place
from site_builder.client import completion
from site_builder.config.commands import printable
from site_builder.core.command_options import Failure, tell

if TYPE_CHECKING:
    from site_builder.core.clock import Now

WIDTH = 80
HEAD = ("ID", "GPUS", "WHO", "WHEN", "NOTES")
# What each column may take where the line is too narrow for all; the notes have the rest.
MOST = (10, 16, 12, 25)
GAP = "  "
MOST_PROBLEMS = 5
MOST_PAST = 50
MEAN_STEP = 5


@click.command()
@click.argument("host", required=False, shell_complete=completion.hosts)
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--undo", is_flag=True, help="Take back the last change that you made.")
@click.option("--past", is_flag=True, help="Those that left comments.json because they are over.")
@click.option("--restore", metavar="ID", help="Put one of these back; all: every one that is not over.")
@click.option("--yes", "-y", is_flag=True, help="With --undo and --restore: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs, with nothing cut.")
@with_place
def bookings(  # noqa: PLR0913, PLR0917 # one for each option
    place: Place,
    host: str | None,
    mine: bool,
    undo: bool,
    past: bool,
    restore: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """List the bookings of all hosts or of HOST, those of now first.

    Beside each that runs stands whether it is kept: used by somebody else, unused, or how much it is used.

    \b
    gpuboard bookings atlas
    gpuboard bookings --mine
    gpuboard bookings --undo
    gpuboard bookings --restore k7m2xp
    """
    check(host, mine, undo, past, restore)
    if undo:
        done = settle(place, {"do": "undo"}, "Take it back?", yes)
        report(done, shown(done["said"]), as_json)
        return
    if restore is not None:
        done = settle(Archive(place), {"do": "restore", "id": restore}, "Put it back?", yes)
        report(done, shown(done["said"]), as_json)
        return
    found = Archive(place).listed() if past else place.listed()
    several = chosen(found, host, mine, place)
    more = len(several) - MOST_PAST if past and not as_json else 0
    several = several[:MOST_PAST] if more > 0 else several
    boards = gpus_of(place.status())
    for one in several:
        one.update(kept(boards.get((one["host"], one["id"]), ())))
    if as_json:
        import json  # noqa: PLC0415

        click.echo(json.dumps(several, indent=1))
    elif several:
        click.echo("\n".join(table(several, place)))
    else:
        tell(f"{'you have' if mine else 'there are'} no bookings{f' on {shown(host)}' if host else ''}")
    if more > 0:
        tell(f"and {more} that left earlier: --json has them all")
    problems = place.problems()
    for problem in problems[:MOST_PROBLEMS]:
        tell(shown(problem))
    if len(problems) > MOST_PROBLEMS:
        tell(f"and {len(problems) - MOST_PROBLEMS} more problems in it")


def check(host: str | None, mine: bool, undo: bool, past: bool, restore: str | None) -> None:
    """Refuse options that do not go together."""
    if undo and (host or mine or past or restore):
        message = "--undo takes back your last change, whatever it was of: it goes with nothing else"
        raise click.UsageError(message)
    if restore is not None and (host or mine or past):
        message = "--restore takes an id, and goes with nothing else"
        raise click.UsageError(message)


class Archive:
    """The bookings that left comments.json, which only the machine of the builder has."""

    def __init__(self, place: Place) -> None:
        """Whose archive."""
        if not isinstance(place, Here):
            message = "the archive is on the web host: run this there, as the user who builds"
            raise Failure(message)
        self.place, self.settings, self.ahead = place, place.settings, place.ahead
        self.status, self.problems = place.status, place.problems

    def listed(self) -> Answer:
        """As the archive has them, the newest first."""
        from site_builder.bookings import api, archive  # noqa: PLC0415 # --help needs none of it

        desk, who = self.place.desk, self.place.who
        with self.read():
            several = api.grouped([one.booking for one in archive.read_archive(self.settings)], desk.now())
        api.hide(several, desk.look(who))
        return {"who": who.name or None, "bookings": several}

    def do(self, request: Mapping[str, Any]) -> Answer:
        """Restore, or with `check` say what would be."""
        from site_builder.bookings import api, archive  # noqa: PLC0415

        with self.read():
            done = archive.restore(self.place.desk, self.place.who, str(request["id"]), request.get("check") is True)
        several = api.grouped(done.bookings, self.place.desk.now())
        return {"said": done.words, "warnings": list(done.warnings), "bookings": several}

    @contextmanager
    def read(self) -> Iterator[None]:
        """Say in one sentence why state/ cannot be used."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.settings.state
            raise Failure(f"{where} cannot be used: {error.strerror}; run this as the user who builds") from None


def chosen(found: Answer, host: str | None, mine: bool, place: Place) -> list[Answer]:
    """Those that were asked for; a host that there is not is told."""
    several: list[Answer] = found["bookings"]
    if mine:
        if not found["who"]:
            message = "the board does not know who you are: ask its admin for a token, and set GPUBOARD_TOKEN to it"
            raise Failure(message)
        several = [one for one in several if one["mine"]]
    if host is None:
        return several
    names = {host.lower(), host.lower().partition(".")[0]}
    of_host = [one for one in several if one["host"].lower() in names]
    if not of_host and not any(one["host"].lower() in names for one in found["bookings"]):
        check_host(host, names, place)
    return of_host


def check_host(host: str, names: set[str], place: Place) -> None:
    """Refuse a host that the board does not have."""
    if isinstance(place, Here):
        from site_builder.bookings.host_lookup import Lab  # noqa: PLC0415

        Lab(place.settings).find(host)
    elif not any(one["name"].lower() in names for one in place.status()["hosts"]):
        message = f"there is no host {shown(host)}"
        raise No(message)


# Whether they are kept


def gpus_of(status: Answer) -> dict[tuple[str, str], list[Answer]]:
    """What the board says of each booking, once for each of its GPUs."""
    found: dict[tuple[str, str], list[Answer]] = {}
    for host in status.get("hosts") or ():
        for gpu in host["gpus"]:
            for one in gpu["bookings"]:
                if one["id"] and is_running(one):
                    found.setdefault((host["name"], one["id"]), []).append(one)
    return found


def is_running(one: Answer) -> bool:
    """Whether this time of the booking is the present one."""
    since, until = (one[key] and datetime.fromisoformat(one[key]).timestamp() for key in ("from", "date"))
    return (since or 0) <= time.time() < until


def kept(gpus: Sequence[Answer]) -> Answer:
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


def kept_said(one: Answer, now: Now) -> str:
    """As the board says it."""
    from site_builder.core import formatting  # noqa: PLC0415

    def clock(epoch: float) -> str:
        return formatting.clock(datetime.fromtimestamp(epoch, now.zone), now)

    if one["used_by_since"] is not None:
        return f"used by {formatting.names(one['used_by'] or ['another'])} since {clock(one['used_by_since'])}"
    if one["unused_since"] is not None:
        return f"unused since {clock(one['unused_since'])}"
    if one["mean_use"] is not None:
        return f"{round(one['mean_use'] / MEAN_STEP) * MEAN_STEP} % used on average"
    return ""


# The table


def table(several: Sequence[Answer], place: Place) -> list[str]:
    """A line for each, that fits the terminal."""
    from site_builder.core.clock import Now  # noqa: PLC0415

    now = Now(time.time(), place.settings.zone)
    is_terminal = sys.stdout.isatty()
    width = max(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) if is_terminal else WIDTH
    rows = [row(one, now) for one in several]
    columns = list(zip(HEAD[:-1], *(cells[:-1] for cells in rows)))
    widths = [min(max(map(len, column)), most) for column, most in zip(columns, MOST)]
    widths.append(width - sum(widths) - len(GAP) * len(widths))
    lines = [line(HEAD, widths)]
    coloured = is_terminal and not os.environ.get("NO_COLOR")
    for one, cells in zip(several, rows):
        broken = one["used_by_since"] is not None or one["unused_since"] is not None
        for text in map(printable, with_kept(cells, shown(kept_said(one, now)), widths)):
            lines.append(click.style(text, fg="yellow") if coloured and broken else text)
    return lines


def with_kept(cells: tuple[str, ...], said: str, widths: Sequence[int]) -> list[str]:
    """A booking with whether it is kept, which is never cut: it has a line of its own where there is no room."""
    both = "; ".join(filter(None, (said, cells[-1])))
    if len(both) <= widths[-1]:
        return [line((*cells[:-1], both), widths)]
    return [line(cells, widths), *([f"{GAP * 2}{said}"] if said else [])]


def row(one: Answer, now: Now) -> tuple[str, ...]:
    """The cells of a booking."""
    notes = [one["comment"] or "", f"booked by {one['by']}" if one["by"] else ""]
    cells = (one["id"] or "", one["where"], one["name"] or "", when(one, now), "; ".join(filter(None, notes)))
    return tuple(shown(str(cell)).replace("\n", " ") for cell in cells)


def when(one: Answer, now: Now) -> str:
    """`until Fri 18:00`, `Mon 09:00 to 12:00`, `every Tue 09:00 to 12:00`."""
    from site_builder.core import formatting  # noqa: PLC0415
    from site_builder.core.timeparse import recurrence  # noqa: PLC0415

    until = datetime.fromisoformat(one["date"])
    since = datetime.fromisoformat(one["from"]) if one["from"] else None
    if one["rrule"] and since:
        return recurrence.hours(one["rrule"], since, until, now.zone)
    if one["phase"] == "now" or since is None:
        return f"until {formatting.clock(until, now)}"
    same_day = now.here(since).date() == now.here(until).date()
    end = f"{now.here(until):%H:%M}" if same_day else formatting.clock(until, now)
    return f"{formatting.clock(since, now)} to {end}"


def line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells side by side, each cut where it is too long."""
    return GAP.join(f"{cut(cell, width):{width}}" for cell, width in zip(cells, widths)).rstrip()


def cut(text: str, width: int) -> str:
    """A text that fits, with the mark of what is left out."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
