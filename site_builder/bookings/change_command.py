"""`gpuboard change`: a booking with other times, for somebody else, or for another purpose."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from site_builder.bookings.book_command import check_end
from site_builder.bookings.command_common import Place, report, settle, shown, with_answer, with_place


@click.command()
@click.argument("booking", metavar="ID")
@click.option("--until", metavar="TIME", help='When it ends: "fri 18:00", "20 Nov 6pm".')
@click.option("--for", "length", metavar="LENGTH", help="Or how long it is, from its beginning: 2h, 1d12h.")
@click.option("--from", "since", metavar="TIME", help="When it begins, if it has not.")
@click.option("--comment", metavar="TEXT", help='What for; "" for nothing.')
@click.option("--name", metavar="LOGIN", help="Who has it from now on.")
@with_answer
@with_place
def change(place: Place, booking: str, yes: bool, as_json: bool, **told: Any) -> None:  # noqa: ANN401
    """Change a booking; what is not named stays.

    `gpuboard bookings` lists the ids.

    \b
    gpuboard change k7m2xp --until "sat 12:00"
    gpuboard change k7m2xp --name bob --comment "his turn"
    """
    check_end(told)
    if all(value is None for value in told.values()):
        message = "what shall be other? Say --until, --for, --from, --comment or --name"
        raise click.UsageError(message)
    request = {"do": "change", "id": booking, **times(told, booking, place)}
    request |= {key: told[key] for key in ("comment", "name") if told[key] is not None}
    done = settle(place, request, "Change it?", yes)
    report(done, f"changed {booking}: {shown(done['said'])}", as_json)


def times(told: Mapping[str, Any], booking: str, place: Place) -> dict[str, str]:
    """When it is, exactly; an end is looked for after the booking's own beginning."""
    import time  # noqa: PLC0415 # --help needs none of it

    from site_builder.bookings import api  # noqa: PLC0415
    from site_builder.core.clock import Now  # noqa: PLC0415

    if not (told["since"] or told["until"] or told["length"]):
        return {}
    now = Now(time.time(), place.settings.zone)
    since = api.moment({"from": told["since"]}, "from", now)
    known = [one["from"] for one in place.listed()["bookings"] if one["id"] == booking]
    began = datetime.fromisoformat(known[0]) if known and known[0] else now.local
    until = api.end({"until": told["until"], "for": told["length"]}, since or began, now)
    found = (("from", since), ("until", until))
    return {key: moment.isoformat() for key, moment in found if moment}
