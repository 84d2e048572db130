"""`gpuboard release`: give up what is left of a booking."""

from __future__ import annotations

import re
from typing import Any

import click

from site_builder.bookings.command_common import Answer, Place, report, settle, shown, with_answer, with_place
from site_builder.client import completion

# As the desk makes them; no host that people name looks so.
LIKE_AN_ID = re.compile(r"[bcdfghjkmnpqrstvwxz2-9]{6}|x[0-9a-f]{8}")


@click.command()
@click.argument("what", metavar="ID|GPUS...", nargs=-1, shell_complete=completion.gpus)
@with_answer
@with_place
def release(place: Place, what: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Release bookings by their ids, or what you have booked of some GPUs.

    What has been used of a booking stays in the list of what was; only the rest is given up. `gpuboard bookings` lists
    the ids; atlas:0 releases one GPU of a booking of several.

    \b
    gpuboard release k7m2xp
    gpuboard release atlas:0
    """
    if not what:
        message = "which booking? Name its id, or the GPUs: `gpuboard bookings --mine` lists yours"
        raise click.UsageError(message)
    wanted = requests(what, place)
    for request in wanted if len(wanted) > 1 else ():  # all of them or none
        place.do({**request, "check": True})
    several = [settle(place, request, "Release it?", yes) for request in wanted]
    said = "; ".join(shown(one["said"]) for one in several)
    warnings, bookings = ([item for one in several for item in one[key]] for key in ("warnings", "bookings"))
    report({"said": said, "warnings": warnings, "bookings": bookings}, said, as_json)


def requests(what: tuple[str, ...], place: Place) -> list[Answer]:
    """One for each id, and one for all GPUs."""
    known = {one["id"] for one in place.listed()["bookings"]}
    ids = [word for word in dict.fromkeys(what) if word in known or LIKE_AN_ID.fullmatch(word)]
    gpus = [word for word in dict.fromkeys(what) if word not in ids]
    found: list[dict[str, Any]] = [{"do": "release", "id": one} for one in ids]
    return [*found, {"do": "release", "gpus": gpus}] if gpus else found
