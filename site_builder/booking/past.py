"""Bookings that are over leave comments.json in the end, for state/bookings-past.jsonl, from which statistics come."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from site_builder.booking.acts import ended_at
from site_builder.booking.desk import Broken, Desk
from site_builder.booking.turn import Found, Turn, Who
from site_builder.model import Booking, Problem
from site_builder.settings import Settings
from site_builder.sources import files, ledger

FILE = "bookings-past.jsonl"
BUILDER = Who("gpuboard", admin=True, via="build")
# So many at a time, so that nobody who books waits for it; the next build takes the rest.
MOST = 100
TAIL = 8 * 1024 * 1024


def move(settings: Settings, bookings: Iterable[Booking], epoch: float) -> list[Problem]:
    """Move those that have been over for as long as is set, if there are any; what stands in the way is told."""
    keep = settings.rules.keep
    if not keep or not any(ended_at(one) <= epoch - keep for one in bookings):
        return []

    def act(found: Turn) -> str:
        over = [one for one in found.found() if ended_at(one.booking) <= epoch - keep][:MOST]
        write(settings.state / FILE, [line_of(one) for one in over])
        for one in over:
            found.remove(one)
        return f"{len(over)} that are over"

    try:
        Desk(settings, lambda: epoch).act(BUILDER, "expire", act)
    except Broken:
        return []  # which the board tells already
    except (ledger.Unwritable, OSError) as why:
        return [Problem("data/comments.json", f"bookings that are long over could not be moved away: {why}")]
    return []


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
