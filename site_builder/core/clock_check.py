"""Decide whether this machine's clock can be trusted, so that nothing is removed as over before it is.

A clock that is ahead once would end every booking. It is trusted as long as it runs evenly with the time since the
machine was started. After a jump, hosts must agree with it for a while, or it must run evenly for days.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.core import files, formatting
from site_builder.core.records import encode_record, make_record_decoder

CLOCK_FILE = "clock.json"
UPTIME_FILE, BOOT_ID_FILE = Path("/proc/uptime"), Path("/proc/sys/kernel/random/boot_id")
# Seconds: a smaller correction is not a jump.
MAX_CORRECTION_S = 600
# After a longer power-off the clock may have been set meanwhile.
MAX_POWER_OFF_S = 3600
# How far the clocks of agreeing hosts may differ, and how recent their snapshots must be.
MAX_HOST_OFFSET_S, MAX_SNAPSHOT_AGE_S = 3600, 600
# How long a clock must run evenly after a jump, while hosts agree with it, or without any hosts.
TRUST_AFTER_WITH_HOSTS_S, TRUST_AFTER_WITHOUT_HOSTS_S = 3600, 7 * 86400
# The file is rewritten when it is older than this.
REWRITE_AFTER_S = 300


class ClockReading(NamedTuple):
    """A reading of the clock, the boot time by the same clock, and the id of that boot."""

    at: int
    booted: int | None = None
    boot_id: str = ""


class ClockHistory(NamedTuple):
    """The last reading that was trusted; the last that was not, since when the clock runs evenly with it, and why."""

    trusted: ClockReading | None = None
    untrusted: ClockReading | None = None
    even_since: int = 0
    doubt: str = ""


def find_clock_doubt(state: Path, now: float, offsets: Iterable[float]) -> str:
    """Return why the clock is not trusted, or nothing; `offsets` say how far ahead of it the hosts' clocks are."""
    history = read_clock_history(state)
    new_history = update_clock_history(history, take_clock_reading(now), list(offsets))
    readings = (history.trusted, new_history.trusted), (history.untrusted, new_history.untrusted)
    is_recent = all(old == new or (old and new and 0 <= new.at - old.at < REWRITE_AFTER_S) for old, new in readings)
    if not is_recent or (history.even_since, history.doubt) != (new_history.even_since, new_history.doubt):
        with suppress(OSError):  # the next build judges by the older file
            files.write_atomically(state / CLOCK_FILE, encode_record(new_history), 0o600)
    return new_history.doubt


def is_clock_trusted(state: Path, now: float) -> bool:
    """Return True if the clock is still the one that the builder trusts; for other programs of the same board."""
    trusted, _, _, doubt = read_clock_history(state)
    return trusted is not None and not doubt and has_clock_run_evenly(trusted, take_clock_reading(now))


def describe_clock_doubt(doubt: str, what: str) -> str:
    """Say in one sentence what is kept while the clock is in doubt, and how that ends."""
    hour, week = map(formatting.format_duration, (TRUST_AFTER_WITH_HOSTS_S, TRUST_AFTER_WITHOUT_HOSTS_S))
    return (
        f"{doubt}: {what} until the hosts have confirmed this clock for {hour} or, without hosts, until it has run "
        f"evenly for {week}; if `date` shows a wrong time, correct the clock"
    )


def update_clock_history(history: ClockHistory, reading: ClockReading, offsets: Sequence[float]) -> ClockHistory:
    even = history.trusted is not None and has_clock_run_evenly(history.trusted, reading)
    offset = sorted(offsets)[len(offsets) // 2] if offsets else None  # the median: one wrong host must not decide
    if offset is not None and abs(offset) > MAX_HOST_OFFSET_S:
        which = "behind" if offset > 0 else "ahead of"
        doubt = f"the clock of this machine is {format_clock_difference(offset)} {which} those of its hosts"
        return ClockHistory(reading if even else history.trusted, None if even else reading, 0, doubt)
    if even or (history.trusted is None and offset is not None):
        return ClockHistory(reading)
    goes_on = history.even_since and history.untrusted and has_clock_run_evenly(history.untrusted, reading)
    even_since = history.even_since if goes_on else reading.at
    if reading.at - even_since >= (TRUST_AFTER_WITHOUT_HOSTS_S if offset is None else TRUST_AFTER_WITH_HOSTS_S):
        return ClockHistory(reading)
    return ClockHistory(history.trusted, reading, even_since, describe_clock_jump(history.trusted, reading))


def has_clock_run_evenly(before: ClockReading, after: ClockReading) -> bool:
    """Return True if the clock ran from one reading to the other without a jump."""
    passed = after.at - before.at
    if before.booted is None or after.booted is None:
        return -MAX_CORRECTION_S <= passed <= MAX_POWER_OFF_S
    if before.boot_id == after.boot_id:
        return abs(after.booted - before.booted) <= MAX_CORRECTION_S
    return -MAX_CORRECTION_S <= after.booted - before.at <= MAX_POWER_OFF_S


def take_clock_reading(now: float) -> ClockReading:
    """Read the clock and, where the system has it, the time since boot."""
    try:
        uptime = float(UPTIME_FILE.read_text("ascii").split()[0])
        return ClockReading(int(now), int(now - uptime), BOOT_ID_FILE.read_text("ascii").strip())
    except (OSError, ValueError, IndexError):
        return ClockReading(int(now))


def describe_clock_jump(before: ClockReading | None, after: ClockReading) -> str:
    """Say why a reading is not trusted though no host contradicts it."""
    if before is None:
        return "no host has confirmed the clock of this machine yet"
    seconds = after.at - before.at
    if before.boot_id == after.boot_id and before.booted is not None and after.booted is not None:
        seconds = after.booted - before.booted
    elif seconds >= 0:
        passed = format_clock_difference(seconds)
        return f"the last build was {passed} ago by the clock of this machine, which may have jumped"
    direction = "back" if seconds < 0 else "ahead"
    return f"the clock of this machine jumped by {format_clock_difference(seconds)} {direction}"


def format_clock_difference(seconds: float) -> str:
    """Round to ten minutes: the seconds between two readings are not part of a jump."""
    return formatting.format_duration(round(abs(seconds) / MAX_CORRECTION_S) * MAX_CORRECTION_S)


def read_clock_history(state: Path) -> ClockHistory:
    """Read what the last builder stored; a damaged file counts as none."""
    with suppress(OSError, ValueError):
        history: ClockHistory = make_record_decoder(ClockHistory)(orjson.loads((state / CLOCK_FILE).read_bytes()))
        return history
    return ClockHistory()
