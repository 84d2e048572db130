"""Whether this machine's clock can be believed: nothing is removed as over before it is.

A clock that is ahead once would end every booking. It is believed as long as it runs evenly with the time since the
machine was started. After a leap, hosts must agree with it for a while, or it must run evenly for days.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from site_builder.core import files, formatting

FILE = "clock.json"
UPTIME, BOOT_ID = Path("/proc/uptime"), Path("/proc/sys/kernel/random/boot_id")
# Seconds: a smaller correction is no leap.
SMALL = 600
# A machine that was off for no longer than this goes on as before; for longer, its clock may have been set meanwhile.
OFF = 3600
# Hosts agree within this. Only what arrived this recently is asked.
AGREES, RECENT = 3600, 600
# How long a clock must run evenly after a leap, while hosts agree with it, or while there are none to ask.
WITH_HOSTS, WITHOUT_HOSTS = 3600, 7 * 86400
# What is kept in the file is this old at most.
KEPT_FOR = 300


class Reading(NamedTuple):
    """A time of the clock, the time at which the machine was started by the same clock, and the name of that start."""

    at: int
    booted: int | None = None
    boot_id: str = ""


class Known(NamedTuple):
    """The last reading that was believed; the last that was not, since when the clock runs evenly with it, why not."""

    believed: Reading | None = None
    doubted: Reading | None = None
    since: int = 0
    doubt: str = ""


def read_clock(now: float) -> Reading:
    """Return the clock beside the time since the machine was started, where the system has that."""
    try:
        uptime = float(UPTIME.read_text("ascii").split()[0])
        return Reading(int(now), int(now - uptime), BOOT_ID.read_text("ascii").strip())
    except (OSError, ValueError, IndexError):
        return Reading(int(now))


def check_clock(state: Path, now: float, offsets: Iterable[float]) -> str:
    """Return why the clock is not believed, or nothing; `offsets` say how far ahead of it the hosts' clocks are."""
    before = read_known(state)
    after = judge(before, read_clock(now), list(offsets))
    if is_news(before, after):
        with suppress(OSError):  # the next build judges by what is older
            files.write_atomically(state / FILE, json.dumps(after).encode(), 0o600)
    return after.doubt


def is_believed(state: Path, now: float) -> bool:
    """Return whether the clock still is the one that the builder believes; for other programs of the same board."""
    known = read_known(state)
    return known.believed is not None and not known.doubt and is_even(known.believed, read_clock(now))


def is_news(before: Known, after: Known) -> bool:
    """Return whether the file is to be written: not at every build."""
    pairs = ((before.believed, after.believed), (before.doubted, after.doubted))
    same = all(one == other or (one and other and 0 <= other.at - one.at < KEPT_FOR) for one, other in pairs)
    return not same or (before.since, before.doubt) != (after.since, after.doubt)


def judge(known: Known, reading: Reading, offsets: Sequence[float]) -> Known:
    """Decide whether a reading is believed."""
    even = known.believed is not None and is_even(known.believed, reading)
    offset = sorted(offsets)[len(offsets) // 2] if offsets else None  # one host alone decides nothing
    if offset is not None and abs(offset) > AGREES:
        which = "behind" if offset > 0 else "ahead of"
        doubt = f"the clock of this machine is {about(offset)} {which} those of its hosts"
        return Known(reading if even else known.believed, None if even else reading, 0, doubt)
    if even or (known.believed is None and offset is not None):
        return Known(reading)
    goes_on = known.since and known.doubted and is_even(known.doubted, reading)
    since = known.since if goes_on else reading.at
    if reading.at - since >= (WITHOUT_HOSTS if offset is None else WITH_HOSTS):
        return Known(reading)
    return Known(known.believed, reading, since, leap(known.believed, reading))


def is_even(before: Reading, after: Reading) -> bool:
    """Return whether the clock ran from one reading to the other without a leap."""
    passed = after.at - before.at
    if before.booted is None or after.booted is None:
        return -SMALL <= passed <= OFF
    if before.boot_id == after.boot_id:
        return abs(after.booted - before.booted) <= SMALL
    return -SMALL <= after.booted - before.at <= OFF


def leap(before: Reading | None, after: Reading) -> str:
    """Say why a reading is not believed though no host contradicts it."""
    if before is None:
        return "no host has confirmed the clock of this machine yet"
    seconds = after.at - before.at
    if before.boot_id == after.boot_id and before.booted is not None and after.booted is not None:
        seconds = after.booted - before.booted
        return f"the clock of this machine leapt by {about(seconds)} {'back' if seconds < 0 else 'ahead'}"
    if seconds < 0:
        return f"the clock of this machine leapt by {about(seconds)} back"
    return f"the last build was {about(seconds)} ago by the clock of this machine, which may have leapt"


def about(seconds: float) -> str:
    """Return a length in words, to ten minutes: seconds between two looks at the clock are no part of a leap."""
    return formatting.format_duration(round(abs(seconds) / SMALL) * SMALL)


def read_known(state: Path) -> Known:
    """Return what the last builder knew; a damaged file is as good as none."""
    try:
        believed, doubted, since, doubt = json.loads((state / FILE).read_bytes())
        return Known(reading_of(believed), reading_of(doubted), int(since), str(doubt))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return Known()


def reading_of(told: Any) -> Reading | None:  # noqa: ANN401 # a file may hold anything
    """Return a reading as the file has it."""
    if told is None:
        return None
    at, booted, boot_id = told
    return Reading(int(at), None if booted is None else int(booted), str(boot_id))


def advice(doubt: str, what: str) -> str:
    """Say in one sentence what is kept because the clock is in doubt, and how that ends."""
    hour, week = formatting.format_duration(WITH_HOSTS), formatting.format_duration(WITHOUT_HOSTS)
    return (
        f"{doubt}: {what} until its hosts have agreed with it for {hour}, or without hosts, until it has run evenly "
        f"for {week}; set the clock right if `date` shows a wrong time"
    )
