"""What happened to a GPU, in words."""

from __future__ import annotations

from datetime import datetime, tzinfo

from site_builder.core import formatting
from site_builder.health.model import BEFORE, SPANS, Event

COUNTED = {
    "corrected": "corrected ECC errors",
    "uncorrected": "uncorrected ECC errors",
    "rows_corrected": "rows of memory replaced after corrected errors",
    "rows_uncorrected": "rows of memory replaced after uncorrected errors",
    "pages_corrected": "pages of memory retired after corrected errors",
    "pages_uncorrected": "pages of memory retired after uncorrected errors",
}
SAID = {
    "gone": "gone from its host",
    "lost": "lost, the driver could not reach it: {0}",
    "recovery": "the driver says that it needs to be recovered: {0}",
    "pending": "a repair of its memory waits for a reset of the GPU",
    "failed": "a repair of its memory failed",
    "heat": "slowed by heat",
    "power": "slowed by its power limit",
    "hot": "too warm: up to {0} °C (limit {1} °C)",
    "driver": "driver changed from {0} to {1}",
    **{kind: f"{what}: {{0}} more (now {{1}})" for kind, what in COUNTED.items()},
}
# What an admin must act on, what is worth a look, and what is only told; each kind is in one of them.
GRAVE = frozenset({"uncorrected", "rows_uncorrected", "pages_uncorrected", "lost", "gone", "recovery", "failed"})
WORTH_A_LOOK = frozenset({"corrected", "rows_corrected", "pages_corrected", "pending", "heat", "hot"})
TOLD = frozenset({"power", "driver", "new"})


def sentence(event: Event) -> str:
    """What happened, without the time: `uncorrected ECC errors: 2 more (now 5)`."""
    value = ["?" if one is None else one for one in (*event.value[:3], None, None, None)]
    if event.kind == "new":
        return f"new in this host; it was in {value[0]} before" if value[0] != "?" else "new in this host"
    if event.kind == "power" and value[0] not in (1, "?"):
        sum_of = f"{in_all(value[1])} in all" if event.until is not None else "now again"
        return f"{SAID['power']}, {value[0]} times, {sum_of}"
    said = SAID.get(event.kind)
    return said.format(*value) if said else event.kind  # one that we do not know is of a newer gpuboard


def in_all(seconds: object) -> str:
    """How long something was so, all times together."""
    return formatting.duration(seconds) if isinstance(seconds, int) else "?"


def when(event: Event, zone: tzinfo) -> str:
    """The time: `10 Mar 2026 14:02`, `… – 15:40`, `between … and …`; of what goes on, since when."""
    begin = moment(event.at, zone)
    if event.since is not None:
        begin = f"between {moment(event.since, zone)} and {moment(event.at, zone, event.since)}"
    if event.since == BEFORE:
        begin = f"before {moment(event.at, zone)}"
    if event.until is None:
        return f"since {begin}"
    if event.by is None and event.until == event.at:
        return begin
    end = moment(event.until, zone, event.at)
    if event.by is None:
        return f"{begin} – {end}" if event.since is None else f"from {begin} until {end}"
    return f"from {begin} until between {end} and {moment(event.by, zone, event.until)}"


def moment(at: int, zone: tzinfo, after: int | None = None) -> str:
    """A time of the day with its date, which is left out where it is that of the moment before it."""
    try:
        local = datetime.fromtimestamp(at, zone)
        same = after is not None and datetime.fromtimestamp(after, zone).date() == local.date()
    except (OverflowError, ValueError, OSError):
        return "?"
    time = f"{local.hour:02}:{local.minute:02}"
    return time if same else f"{local.day} {formatting.MONTHS[local.month - 1]} {local.year} {time}"


def lasted(event: Event) -> str | None:
    """How long something lasted; None of what goes on, what took no time, or where nobody can tell."""
    if event.kind not in SPANS or event.until is None or event.by is not None or event.since is not None:
        return None
    if event.kind == "power":
        seconds = event.value[1] if len(event.value) > 1 and event.value[0] == 1 else None
        return in_all(seconds) if isinstance(seconds, int) else None  # of several it is said already
    seconds = event.until - event.at
    return formatting.duration(seconds) if seconds >= formatting.MINUTE else None
