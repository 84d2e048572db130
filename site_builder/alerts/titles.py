"""Alerts in words: the title of one, and of several in one letter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from site_builder.alerts.model import BOOKING_RULES, HOST_RULES, OVER, Alert, Matter
from site_builder.core import formatting
from site_builder.core.clock import Now

# Of each rule: what is so, and what is said when it is over. Of several, the verb is another.
SO = {
    "host-down": "is down",
    "host-failed": "has failed",
    "host-new": "is new on the board",
    "gpu-lost": "is lost",
    "gpu-hot": "is hot",
    "gpu-error": "has an error",
    "gpu-held": "is held idle",
    "booking-begins": "has begun",
    "booking-ends": "has ended",
    "booking-broken": "is broken",
    "booking-unused": "stands unused",
}
NO_LONGER = {
    "host-down": "is back",
    "host-failed": "works again",
    "gpu-lost": "is back",
    "gpu-hot": "has cooled down",
    "gpu-error": "has one error less",
    "gpu-held": "is no longer held idle",
    "booking-broken": "is no longer broken",
    "booking-unused": "is used",
}
SEVERAL = {"is": "are", "has": "have", "works": "work", "stands": "stand"}
# The names that a title has room for.
MOST_NAMED = 5
LONGEST = 200


def title(matter: Matter, step: str, lasted: int | None, reader: str | None, now: Now) -> str:
    """An alert in a line; of what is over, with how many seconds it `lasted`. `reader` is who alone reads it, if so."""
    if matter.rule == "weekly-report":
        return f"the report of {matter.about}"
    if matter.rule == "watch":
        free = matter.what.partition(";")[0]
        return shortened(f"{reader}: {free}" if reader else free)
    if matter.rule == "gpu-held":
        return held(matter, step, reader)
    said = NO_LONGER.get(matter.rule, "is over") if step == OVER else said_of(matter, now)
    after = f", after {formatting.duration(max(lasted, 1))}" if step == OVER and lasted is not None else ""
    return shortened(f"{subject(matter, reader)} {said}{after}")


def held(matter: Matter, step: str, reader: str | None) -> str:
    """Of a GPU that is held idle, whose doing it is stands first."""
    gpu = place(matter.host, matter.gpus)
    if step == OVER:
        return f"{gpu} {NO_LONGER['gpu-held']}"
    if reader:
        return f"{reader}: you hold {gpu} idle"
    if not matter.whose:
        return f"{gpu} {SO['gpu-held']}"
    return f"{formatting.names(matter.whose)} hold{'' if len(matter.whose) > 1 else 's'} {gpu} idle"


def said_of(matter: Matter, now: Now) -> str:
    """What is so; of a booking also what comes."""
    begins, ends = matter.since, matter.until
    if matter.rule == "booking-begins" and begins is not None and begins > now.epoch:
        return f"begins at {clock(begins, now)}"
    if matter.rule == "booking-ends" and ends is not None and ends > now.epoch:
        return f"ends at {clock(ends, now)}"
    return SO.get(matter.rule, "is the matter")


def subject(matter: Matter, reader: str | None) -> str:
    """What it is about: `atlas`, `GPU 3 of atlas`, `alice: your booking of atlas:0,1`."""
    if matter.rule in HOST_RULES:
        return matter.host
    if matter.rule in BOOKING_RULES:
        of = place(matter.host, matter.gpus)
        if reader:
            return f"{reader}: your booking of {of}"
        return f"the booking of {of} by {formatting.names(matter.whose)}" if matter.whose else f"a booking of {of}"
    if len(matter.gpus) == 1:
        return f"GPU {matter.gpus[0]} of {matter.host}"
    return f"a GPU of {matter.host}"


def place(host: str, gpus: Sequence[str]) -> str:
    """`atlas:0,1`, as commands take it."""
    return f"{host}:{','.join(gpus)}" if gpus else host


def clock(at: int, now: Now) -> str:
    """`18:00`, `tomorrow 09:00`."""
    return formatting.clock(datetime.fromtimestamp(at, now.zone), now)


def headline(alerts: Sequence[Alert], more: int = 0) -> str:
    """All of a letter in a line: `atlas is down`, `5 hosts are down: atlas, boreas and 3 more`, `4 alerts: …`."""
    counted = len(alerts) + more
    if counted == 1:
        return alerts[0].title
    kinds = {(one.rule, one.step) for one in alerts}
    rule, step = alerts[0].rule, alerts[0].step
    said = (NO_LONGER if step == OVER else SO).get(rule)
    if len(kinds) > 1 or said is None or rule in BOOKING_RULES:
        return shortened(f"{counted} alerts: {'; '.join(one.title for one in alerts)}")
    verb, _, rest = said.partition(" ")
    said = f"{SEVERAL.get(verb, verb)} {rest}"
    hosts = list(dict.fromkeys(one.host for one in alerts if one.host))
    if rule in HOST_RULES:
        return shortened(f"{counted} hosts {said}: {listed(hosts, counted)}")
    if len(hosts) == 1:
        numbers = [number for one in alerts for number in one.gpus]
        return shortened(f"{counted} GPUs of {hosts[0]} {said}: {listed(numbers, counted)}")
    places = [place(one.host, one.gpus) for one in alerts]
    return shortened(f"{counted} GPUs {said}: {listed(places, counted)}")


def listed(names: Sequence[str], count: int) -> str:
    """`a, b and 3 more` of so many in all."""
    if count <= MOST_NAMED and len(names) == count:
        return ", ".join(names)
    some = names[: MOST_NAMED - 1]
    return f"{', '.join(some)} and {count - len(some)} more"


def shortened(text: str) -> str:
    """As much as a title has room for."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
