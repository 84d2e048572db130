"""Move bookings that are long over from comments.json to state/bookings-past.jsonl, and back if somebody asks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from site_builder.bookings import operations, parser, store
from site_builder.bookings.operations import ended_at
from site_builder.bookings.policy import Refused
from site_builder.bookings.service import Broken, Desk, Done, places
from site_builder.bookings.transaction import Found, Turn, Who
from site_builder.config.settings import Settings
from site_builder.core import clock_check, files
from site_builder.core.clock import Now
from site_builder.core.faults import describe
from site_builder.core.model import Booking, Problem
from site_builder.core.timeparse import moments

FILE = "bookings-past.jsonl"
# Until when bookings that were restored stay in comments.json, though they are over.
RESTORED = "bookings-restored.json"
ALL = "all"
BUILDER = Who("gpuboard", admin=True, via="build")
# So many at a time, so that nobody who books waits for it; the next build takes the rest.
MOST = 100
TAIL = 8 * 1024 * 1024


def move(settings: Settings, bookings: Iterable[Booking], epoch: float, doubt: str = "") -> list[Problem]:
    """Move those that have been over for as long as is set, if there are any; what stands in the way is told.

    While the clock is in doubt, for the reason that `doubt` says, nothing is moved.
    """
    keep = settings.rules.keep
    if not keep or not due(settings, bookings, epoch):
        return []
    if doubt:
        return [Problem("clock", clock_check.advice(doubt, "bookings that seem to be over stay in comments.json"))]

    def act(found: Turn) -> str:
        all_due = {id(one) for one in due(settings, [one.booking for one in found.found()], epoch)}
        over = [one for one in found.found() if id(one.booking) in all_due][:MOST]
        write(settings.state / FILE, [line_of(one) for one in over])
        for one in over:
            found.remove(one)
        return f"{len(over)} that are over"

    try:
        Desk(settings, lambda: epoch).act(BUILDER, "expire", act)
    except Broken:
        return []  # which the board tells already
    except (store.Unwritable, OSError) as why:
        return [Problem("data/comments.json", f"bookings that are long over could not be moved away: {why}")]
    return []


def due(settings: Settings, bookings: Iterable[Booking], epoch: float) -> list[Booking]:
    """Return those that have been over for as long as is set, without those that somebody restored."""
    over = [one for one in bookings if ended_at(one) <= epoch - settings.rules.keep]
    stay = read_restored(settings.state) if over else {}
    return [one for one in over if stay.get(key_of(one), 0) <= epoch]


def move_or_tell(settings: Settings, bookings: Iterable[Booking], epoch: float, doubt: str) -> list[Problem]:
    """The same for the builder, to which an exception that nobody foresaw is a problem and no more."""
    try:
        return move(settings, bookings, epoch, doubt)
    except Exception as error:
        return [Problem("data/comments.json", describe("bookings that are long over could not be moved away", error))]


def line_of(one: Found) -> dict[str, Any]:
    """An entry with its place, and its times for programs."""
    booking = one.booking
    return {
        "host": booking.host,
        "gpu": booking.gpu,
        "id": booking.id,
        "from": booking.since and booking.since.isoformat(),
        "date": booking.until.isoformat(),
        "entry": one.entry.content,
    }


def write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Append those that are not there yet: whoever was killed between both files moves them again."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | files.FLAGS, 0o600)
    with os.fdopen(handle, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        tail = file.read()
        there = set(tail.split(b"\n"))
        if tail and not tail.endswith(b"\n"):
            file.write(b"\n")
        for line in lines:
            text = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace")
            if text not in there:
                file.write(text + b"\n")
        file.flush()
        os.fsync(handle)


# The way back


class Archived(NamedTuple):
    """A booking of the archive, and its entry as it stood in comments.json."""

    booking: Booking
    content: dict[str, Any]


def read_archive(settings: Settings) -> list[Archived]:
    """Return the bookings that were moved away, the newest first and each once; OSError if they cannot be read."""
    try:
        handle = os.open(settings.state / FILE, files.FLAGS)
    except FileNotFoundError:
        return []
    with os.fdopen(handle, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        lines = file.read().splitlines()
    found: dict[bytes, Archived] = {}
    for line in reversed(lines):
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            told = json.loads(line)
            entry = parser.Entry(str(told["host"]), str(told["gpu"]), dict(told["entry"]), 0, 0)
            booking, _ = parser.booking(entry, settings.zone)
            if booking:
                found.setdefault(line, Archived(replace(booking, id=str(told["id"])), entry.content))
    return list(found.values())


def restore(desk: Desk, who: Who, wanted: str, check: bool = False) -> Done:
    """Put bookings of the archive back: one by its id, or with `all` every one that is not over."""
    archive = read_archive(desk.settings)

    def act(turn: Turn) -> str:
        there = [[one.booking.host, one.booking.gpu, one.entry.content] for one in turn.found()]
        gone = [one for one in archive if [one.booking.host, one.booking.gpu, one.content] not in there]
        chosen = [one for one in gone if is_wanted(one.booking, wanted, turn.now)]
        if not chosen:
            what = "booking that is not over" if wanted == ALL else f"booking {wanted[:80]}"
            raise Refused(f"there is no {what} in the archive: `gpuboard bookings --past` lists it")
        for one in chosen:
            turn.may_change(one.booking)
            turn.add(one.booking.host, (one.booking.gpu, one.content))
        back = [
            one.booking for one in turn.found() if [one.booking.host, one.booking.gpu, one.entry.content] in turn.after
        ]
        live = [one for one in back if not operations.is_over(one, turn.now)]
        others = [
            one.booking for one in turn.found() if not any(operations.is_same(one.booking, other) for other in live)
        ]
        for booking in live:
            turn.check_free([booking], others, given_up=booking.since.timestamp() if booking.since else None)
        if not check:
            keep_restored(desk.settings, back, turn.now.epoch)
        turn.touched = back
        return restored_words(back, turn.now)

    return desk.act(who, "restore", act, check)


def is_wanted(one: Booking, wanted: str, now: Now) -> bool:
    """Return whether a booking of the archive is to be restored."""
    return one.id == wanted or (wanted == ALL and not operations.is_over(one, now))


def restored_words(several: list[Booking], now: Now) -> str:
    """Say what is back."""
    if len({one.id for one in several}) > 1:
        return f"{len(several)} bookings are back in comments.json"
    one = several[0]
    return f"the booking of {places(several)} for {one.name} until {moments.said(one.until, now.local)} is back"


def key_of(one: Booking) -> str:
    """Return what names a booking in the list of the restored ones."""
    return f"{one.id} {one.gpu} {one.until.isoformat()}"


def read_restored(state: Path) -> dict[str, float]:
    """Return until when each restored booking stays; a damaged file has none."""
    try:
        return {str(key): float(until) for key, until in json.loads((state / RESTORED).read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def keep_restored(settings: Settings, several: Iterable[Booking], epoch: float) -> None:
    """Let restored bookings stay for as long as one that has just ended."""
    stay = {key: until for key, until in read_restored(settings.state).items() if until > epoch}
    stay |= {key_of(one): epoch + settings.rules.keep for one in several}
    files.replace(settings.state / RESTORED, json.dumps(stay).encode(), 0o600)
