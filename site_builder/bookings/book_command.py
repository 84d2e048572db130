"""`gpuboard book`: promise GPUs to somebody."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from site_builder.bookings.command_common import Place, ids_of, report, settle, shown, with_answer, with_place
from site_builder.client import completion

if TYPE_CHECKING:
    from site_builder.core.clock import Now

EXAMPLE = 'gpuboard book atlas:0,1 --until "fri 18:00"'
ANY = "gpuboard book --any 2 --for 8h"
FIRST_WITHIN = timedelta(days=366)


@click.command()
@click.argument("gpus", nargs=-1, shell_complete=completion.gpus)
@click.option("--until", metavar="TIME", help='When it ends: "fri 18:00", "20 Nov 6pm".')
@click.option("--for", "length", metavar="LENGTH", help="Or how long it is: 2h, 1d12h, 2w.")
@click.option("--from", "since", metavar="TIME", help='When it begins: "mon 9:00".  [default: now]')
@click.option("--comment", metavar="TEXT", help="What for; everybody can read it.")
@click.option("--any", "count", type=click.IntRange(1, 1024), metavar="N", help="Any N GPUs of one host that are free.")
@click.option("--model", metavar="TEXT", help="With --any: of this model, such as H100.")
@click.option("--name", metavar="LOGIN", help="For somebody else.")
@click.option("--repeat", metavar="DAYS", help='Again and again: daily, weekly, "mon,wed", or an RRULE.')
@click.option("--repeat-until", "last", metavar="DATE", help="The last day on which it may repeat.")
@with_answer
@with_place
def book(place: Place, gpus: tuple[str, ...], yes: bool, as_json: bool, **told: Any) -> None:  # noqa: ANN401
    """Book GPUs, all of those that are named or none.

    GPUS are a host (all of its GPUs), or some of them: atlas atlas:0,1 atlas:0-3. What was understood is said before it
    counts. The id of the booking, for `gpuboard change` and `gpuboard release`, also goes to stdout where that is no
    terminal.

    \b
    gpuboard book atlas:0,1 --until "fri 18:00" --comment "ICML run"
    gpuboard book --any 2 --model H100 --for 8h
    gpuboard book zeus --from "tue 9:00" --for 3h --repeat tue
    """
    check(gpus, told)
    request = {"do": "book", **times(told, place), **which(gpus, told)}
    request |= {key: told[key] for key in ("name", "comment") if told[key]}
    done = settle(place, request, "Book it?", yes)
    ids = ids_of(done)
    report(done, f"booked {', '.join(ids)}: {shown(done['said'])}", as_json)
    if not as_json and not sys.stdout.isatty():
        click.echo("\n".join(ids))


def check(gpus: tuple[str, ...], told: Mapping[str, Any]) -> None:
    """Refuse what does not go together, and help who has said nothing yet."""
    if not gpus and not told["count"]:
        message = f"which GPU? Name a host or some of its GPUs, or so many of --any:\n  {EXAMPLE}\n  {ANY}"
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
    check_end(told)
    if not told["until"] and not told["length"]:
        message = 'until when? Say --until "fri 18:00" or --for 2h'
        raise click.UsageError(message)


def check_end(told: Mapping[str, Any]) -> None:
    """Two ends are one too many."""
    if told["until"] and told["length"]:
        message = "say --until or --for, not both"
        raise click.UsageError(message)


def which(gpus: tuple[str, ...], told: Mapping[str, Any]) -> dict[str, Any]:
    """The GPUs of a request."""
    if gpus:
        return {"gpus": list(gpus)}
    return {"any": told["count"], **({"model": told["model"]} if told["model"] else {})}


def times(told: Mapping[str, Any], place: Place) -> dict[str, str]:
    """When it is, exactly: what `fri` means is decided here, in the zone of whoever says it."""
    import time  # noqa: PLC0415 # --help needs none of it

    from site_builder.bookings import api  # noqa: PLC0415
    from site_builder.core.clock import Now  # noqa: PLC0415

    now = Now(time.time(), place.settings.zone)
    since = api.moment({"from": told["since"]}, "from", now)
    found: dict[str, str] = {}
    if told["repeat"] and since:
        found["rrule"], since = repeated(told, since, now)
    begins = since or now.local.replace(second=0, microsecond=0)
    until = api.end({"until": told["until"], "for": told["length"]}, begins, now)
    if since:
        found["from"] = since.isoformat()
    if until:
        found["until"] = until.isoformat()
    return found


def repeated(told: Mapping[str, Any], since: datetime, now: Now) -> tuple[str, datetime]:
    """The rule, and the first of its days: who says `mon` for what repeats on Tuesdays means the Tuesday after."""
    from site_builder.bookings import api  # noqa: PLC0415
    from site_builder.core.timeparse import moments, recurrence  # noqa: PLC0415
    from site_builder.fleet.active_bookings import beginnings  # noqa: PLC0415

    last = api.moment({"from": told["last"]}, "from", now)
    try:
        rule = recurrence.rule_of(told["repeat"], last and recurrence.last_moment(last, now.zone), now.zone)
    except moments.Unclear as why:
        message = f'"{told["repeat"]}" {why}'
        raise api.Unclear(message) from None
    found = beginnings(rule, since, since, since + FIRST_WITHIN)
    if not found:
        message = f"by {rule} it would not happen once within a year"
        raise api.Unclear(message)
    return rule, found[0]
