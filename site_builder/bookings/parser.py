"""Parse the bookings of comments.json, and write them as its entries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, tzinfo
from hashlib import blake2b
from typing import Any, NamedTuple

from site_builder.bookings import json_edit
from site_builder.bookings.json_edit import BookingJsonError, JsonEntry
from site_builder.core.clock import Now
from site_builder.core.faults import describe_fault
from site_builder.core.model import Booking, ParsedFile
from site_builder.core.terminal_text import clean_text, limit_problems
from site_builder.core.timeparse import dates, recurrence

MAX_TEXT_CHARACTERS = 500
MAX_BOOKINGS = 5_000
BOOKING_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
# An entry in bookings.log: its host, its GPU, and its content.
LoggedEntry = list[Any]
IDENTIFYING_KEYS = ("name", "from", "date", "comment", "rrule")


class ParsedBooking(NamedTuple):
    """An entry of the file, and the booking that it means."""

    entry: JsonEntry
    booking: Booking

    def to_logged_entry(self) -> LoggedEntry:
        return [self.booking.host, self.booking.gpu, self.entry.content]


def parse_bookings(data: bytes, zone: tzinfo) -> ParsedFile[Booking]:
    """Parse every booking that can be understood; not complete if the file cannot be read at all."""
    problems: list[str] = []
    try:
        text = json_edit.text_to_plain_json(json_edit.decode_json_file(data), problems)
    except BookingJsonError as error:
        return ParsedFile(is_complete=False, problems=(str(error),))
    bookings = [booking for _, booking in iterate_parsed_bookings(text, zone, problems)]
    return ParsedFile(tuple(bookings), problems=limit_problems(problems))


def iterate_parsed_bookings(text: str, zone: tzinfo, problems: list[str]) -> Iterator[tuple[JsonEntry, Booking]]:
    """Yield every valid booking of a plain text, with its entry; one without an id gets one made of its content."""
    facts_by_id: dict[tuple[str, str], tuple[str, ...]] = {}
    for number, entry in enumerate(json_edit.iterate_json_entries(text, problems)):
        if number == MAX_BOOKINGS or len(problems) > MAX_BOOKINGS:
            problems.append(f"there are more than {MAX_BOOKINGS} bookings; the rest is ignored")
            return
        try:
            booking, problem = parse_booking(entry, zone)
            if booking:
                facts = tuple(str(entry.content.get(key) or "") for key in IDENTIFYING_KEYS)
                booking_id = str(entry.content.get("id") or "")[: json_edit.MAX_NAME_CHARACTERS]
                # an entry that was copied with its id, and then changed, is another booking
                if (
                    not BOOKING_ID.fullmatch(booking_id)
                    or facts_by_id.setdefault((entry.host, booking_id), facts) != facts
                ):
                    content = repr((entry.host, *facts)).encode("utf-8", "replace")
                    booking_id = f"x{blake2b(content, digest_size=4).hexdigest()}"
                booking = replace(booking, id=booking_id)
        except Exception as error:  # a fault of ours costs the entry alone
            booking, problem = None, describe_fault("the booking is ignored", error)
        if booking:
            yield entry, booking
        if problem:
            gpu = "all GPUs" if entry.gpu == "*" else f"GPU {entry.gpu}"
            problems.append(
                f"line {json_edit.find_json_line_number(text, entry.start)}, {entry.host}, {gpu}: {problem}"
            )


def parse_booking(entry: JsonEntry, zone: tzinfo) -> tuple[Booking | None, str]:
    """Parse an entry, or say why it does not count; three empty strings mean that it was deleted."""

    def text(key: str) -> str:
        value = entry.content.get(key)
        return clean_text(str(value)).strip()[:MAX_TEXT_CHARACTERS] if isinstance(value, (str, int, float)) else ""

    name, end, start = text("name"), text("date"), text("from")
    if not (name or end or text("comment")):
        return None, ""
    if not end:
        return None, f"the booking of {name or 'nobody'} has no date and is ignored"
    until, fault = dates.parse_date(end, zone)
    if until is None:
        return None, f'the date "{end}" {fault}'
    since, fault = dates.parse_date(start, zone) if start else (None, "")
    if fault:
        return None, f'the start "{start}" {fault}'
    if since and since >= until:
        return None, f"the booking of {name or 'nobody'} ends before it begins and is ignored"
    rule_text, rrule, problem = text("rrule"), "", "" if name else "a booking has no name"
    if rule_text:
        rrule, fault = recurrence.parse_recurrence_rule(rule_text, zone) if since else ("", "needs a `from`")
        problem = f'the rrule "{rule_text}" {fault}; the booking counts once' if fault else problem
    if rrule and since:  # what repeats keeps its hour when the clocks change, whatever offset it was written with
        since, until = since.astimezone(zone), until.astimezone(zone)
    return Booking(
        entry.host, entry.gpu, name, until, since, text("comment"), rrule=rrule or None, booked_by=text("by") or None
    ), problem


def booking_to_entry(booking: Booking, now: Now) -> dict[str, object]:
    """Return a booking as it is written; times have an offset, to mean the same everywhere."""
    start = {"from": booking_time_to_entry(booking.since, now, booking.rrule)} if booking.since else {}
    end = {"date": booking_time_to_entry(booking.until, now, booking.rrule)}
    optional = {"comment": booking.comment, "rrule": booking.rrule, "id": booking.id, "by": booking.booked_by}
    return {"name": booking.name, **start, **end, **{key: value for key, value in optional.items() if value}}


def booking_time_to_entry(moment: datetime, now: Now, rrule: str | None = None) -> str:
    """Format a time for the file, with seconds only if it has some."""
    local = now.to_local(moment)
    if rrule:  # without an offset, 9:00 stays 9:00 when the clocks change
        local = local.replace(tzinfo=None)
    return local.isoformat(" ", "seconds" if local.second else "minutes")
