"""Decide whether this machine's clock can be trusted, so that nothing is removed as over before it is.

A clock that is ahead once would end every booking. It is trusted as long as it runs evenly with the time since the
machine was started. After a jump, hosts must agree with it for a while, or it must run evenly for days.
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
# Seconds: a smaller correction is no jump.
SMALL = 600
# After a longer power-off the clock may have been set meanwhile.
OFF = 3600
# How far the clocks of agreeing hosts may differ, and how recent their snapshots must be.
AGREES, RECENT = 3600, 600
# How long a clock must run evenly after a jump, while hosts agree with it, or without any hosts.
WITH_HOSTS, WITHOUT_HOSTS = 3600, 7 * 86400
# The file is rewritten when it is older than this.
KEPT_FOR = 300


class Reading(NamedTuple):
    """A reading of the clock, the boot time by the same clock, and the id of that boot."""

    at: int
    booted: int | None = None
    boot_id: str = ""


class ClockHistory(NamedTuple):
    """The last reading that was trusted; the last that was not, since when the clock runs evenly with it, and why."""

    believed: Reading | None = None
    doubted: Reading | None = None
    since: int = 0
    doubt: str = ""


def check_clock(state: Path, now: float, offsets: Iterable[float]) -> str:
    """Return why the clock is not trusted, or nothing; `offsets` say how far ahead of it the hosts' clocks are."""
    history = read_clock_history(state)
    new_history = judge(history, read_clock(now), list(offsets))
    if needs_clock_history_write(history, new_history):
        with suppress(OSError):  # the next build judges by the older file
            files.write_atomically(state / FILE, json.dumps(new_history).encode(), 0o600)
    return new_history.doubt


def is_clock_believed(state: Path, now: float) -> bool:
    """Return True if the clock is still the one that the builder trusts; for other programs of the same board."""
    history = read_clock_history(state)
    return history.believed is not None and not history.doubt and is_clock_even(history.believed, read_clock(now))


def advice(doubt: str, what: str) -> str:
    """Say in one sentence what is kept while the clock is in doubt, and how that ends."""
    hour, week = formatting.format_duration(WITH_HOSTS), formatting.format_duration(WITHOUT_HOSTS)
    return (
        f"{doubt}: {what} until its hosts have agreed with it for {hour}, or without hosts, until it has run evenly "
        f"for {week}; set the clock right if `date` shows a wrong time"
    )


def judge(history: ClockHistory, reading: Reading, offsets: Sequence[float]) -> ClockHistory:
    """Decide whether a reading is trusted."""
    even = history.believed is not None and is_clock_even(history.believed, reading)
    offset = sorted(offsets)[len(offsets) // 2] if offsets else None  # the median: one wrong host must not decide
    if offset is not None and abs(offset) > AGREES:
        which = "behind" if offset > 0 else "ahead of"
        doubt = f"the clock of this machine is {format_clock_jump_duration(offset)} {which} those of its hosts"
        return ClockHistory(reading if even else history.believed, None if even else reading, 0, doubt)
    if even or (history.believed is None and offset is not None):
        return ClockHistory(reading)
    goes_on = history.since and history.doubted and is_clock_even(history.doubted, reading)
    since = history.since if goes_on else reading.at
    if reading.at - since >= (WITHOUT_HOSTS if offset is None else WITH_HOSTS):
        return ClockHistory(reading)
    return ClockHistory(history.believed, reading, since, describe_clock_jump(history.believed, reading))


def is_clock_even(before: Reading, after: Reading) -> bool:
    """Return True if the clock ran from one reading to the other without a jump."""
    passed = after.at - before.at
    if before.booted is None or after.booted is None:
        return -SMALL <= passed <= OFF
    if before.boot_id == after.boot_id:
        return abs(after.booted - before.booted) <= SMALL
    return -SMALL <= after.booted - before.at <= OFF


def read_clock(now: float) -> Reading:
    """Read the clock and, where the system has it, the time since boot."""
    try:
        uptime = float(UPTIME.read_text("ascii").split()[0])
        return Reading(int(now), int(now - uptime), BOOT_ID.read_text("ascii").strip())
    except (OSError, ValueError, IndexError):
        return Reading(int(now))


def needs_clock_history_write(before: ClockHistory, after: ClockHistory) -> bool:
    """Return True if the file must be written; not at every build."""
    if (before.since, before.doubt) != (after.since, after.doubt):
        return True
    for old, new in ((before.believed, after.believed), (before.doubted, after.doubted)):
        if old != new and not (old and new and 0 <= new.at - old.at < KEPT_FOR):
            return True
    return False


def describe_clock_jump(before: Reading | None, after: Reading) -> str:
    """Say why a reading is not trusted though no host contradicts it."""
    if before is None:
        return "no host has confirmed the clock of this machine yet"
    seconds = after.at - before.at
    if before.boot_id == after.boot_id and before.booted is not None and after.booted is not None:
        seconds = after.booted - before.booted
    elif seconds >= 0:
        passed = format_clock_jump_duration(seconds)
        return f"the last build was {passed} ago by the clock of this machine, which may have leapt"
    direction = "back" if seconds < 0 else "ahead"
    return f"the clock of this machine leapt by {format_clock_jump_duration(seconds)} {direction}"


def format_clock_jump_duration(seconds: float) -> str:
    """Round to ten minutes: the seconds between two readings are not part of a jump."""
    return formatting.format_duration(round(abs(seconds) / SMALL) * SMALL)


def read_clock_history(state: Path) -> ClockHistory:
    """Read what the last builder stored; a damaged file counts as none."""
    try:
        believed, doubted, since, doubt = json.loads((state / FILE).read_bytes())
        return ClockHistory(decode_clock_reading(believed), decode_clock_reading(doubted), int(since), str(doubt))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return ClockHistory()


def decode_clock_reading(fields: Any) -> Reading | None:  # noqa: ANN401 # a file may hold anything
    if fields is None:
        return None
    at, booted, boot_id = fields
    return Reading(int(at), None if booted is None else int(booted), str(boot_id))
