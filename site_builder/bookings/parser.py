"""Parse comments.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import tzinfo
from hashlib import blake2b
from json.decoder import scanstring  # type: ignore[attr-defined] # the stubs do not have it
from typing import NamedTuple

from site_builder.core.faults import describe_fault
from site_builder.core.model import Booking, ParsedFile
from site_builder.core.terminal_text import clean_text, describe_json_error, limit_problems
from site_builder.core.timeparse import dates, recurrence

JSON_DECODER = json.JSONDecoder(strict=False)
WHITESPACE = re.compile(r"[ \t\n\r]*")
# An unclosed string or comment matches to the end, so that a hostile file takes no longer than another.
STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|\\?\Z|\n)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
STRING_OR_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|\\?\Z|\n)|,\s*(?P<end>[\]}])?', re.DOTALL)
TRAILING_COMMA = re.compile(r",\s*[\]}]")
NON_NEWLINE = re.compile(r"[^\n]")
MAX_TEXT_CHARACTERS = 500
MAX_NAME_CHARACTERS = 80
MAX_BOOKINGS = 5_000
BOOKING_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
IDENTIFYING_KEYS = ("name", "from", "date", "comment", "rrule")
EMPTY_FILE_MESSAGE = "it is empty; write {} where there are no bookings"


class JsonMember(NamedTuple):
    """A value in an object or a list: its key or index, where both begin, and where it ends."""

    key: str
    start: int
    value_start: int
    end: int
    content: object


def list_json_members(text: str, position: int) -> list[JsonMember]:
    """List the values of the object or list that begins at a position, in valid JSON."""
    members: list[JsonMember] = []
    closing_bracket = {"{": "}", "[": "]"}[text[position]]
    start = skip_json_whitespace(text, position + 1)
    while text[start] != closing_bracket:
        key, value_start = str(len(members)), start
        if closing_bracket == "}":
            key, value_start = scanstring(text, start + 1, False)
            value_start = skip_json_whitespace(text, skip_json_whitespace(text, value_start) + 1)
        content, end = JSON_DECODER.raw_decode(text, value_start)
        members.append(JsonMember(key, start, value_start, end, content))
        start = skip_json_whitespace(text, end)
        if text[start] == ",":
            start = skip_json_whitespace(text, start + 1)
    return members


def skip_json_whitespace(text: str, position: int) -> int:
    match = WHITESPACE.match(text, position)
    return match.end() if match else position


def find_json_line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


class BookingJsonError(Exception):
    """Why nothing of the file can be read."""


class JsonEntry(NamedTuple):
    """A booking as it is written: its host and GPU, and where in the text it stands."""

    host: str
    gpu: str
    content: dict[str, object]
    start: int
    end: int


def parse_bookings(data: bytes, zone: tzinfo) -> ParsedFile[Booking]:
    """Parse every booking that can be understood; not complete if the file cannot be read at all."""
    problems: list[str] = []
    try:
        text = text_to_plain_json(decode_json_file(data), problems)
    except BookingJsonError as error:
        return ParsedFile(is_complete=False, problems=(str(error),))
    bookings = [booking for _, booking in iterate_parsed_bookings(text, zone, problems)]
    return ParsedFile(tuple(bookings), problems=limit_problems(problems))


def iterate_parsed_bookings(text: str, zone: tzinfo, problems: list[str]) -> Iterator[tuple[JsonEntry, Booking]]:
    """Yield every valid booking of a plain text, with its entry."""
    facts_by_id: dict[tuple[str, str], tuple[str, ...]] = {}
    for number, entry in enumerate(iterate_json_entries(text, problems)):
        if number == MAX_BOOKINGS or len(problems) > MAX_BOOKINGS:
            problems.append(f"there are more than {MAX_BOOKINGS} bookings; the rest does not count")
            return
        try:
            booking, problem = parse_booking(entry, zone)
            booking = booking and replace(booking, id=find_booking_id(entry, facts_by_id))
        except Exception as error:  # a fault of ours costs the entry alone
            booking, problem = None, describe_fault("the booking does not count", error)
        if booking:
            yield entry, booking
        if problem:
            gpu = "all GPUs" if entry.gpu == "*" else f"GPU {entry.gpu}"
            problems.append(f"line {find_json_line_number(text, entry.start)}, {entry.host}, {gpu}: {problem}")


def find_booking_id(entry: JsonEntry, facts_by_id: dict[tuple[str, str], tuple[str, ...]]) -> str:
    """Return a booking's own id, or one made of its content, the same for all GPUs that it has on a host.

    An entry that was copied with its id, and then changed, is another booking.
    """
    facts = tuple(str(entry.content.get(key) or "") for key in IDENTIFYING_KEYS)
    booking_id = str(entry.content.get("id") or "")[:MAX_NAME_CHARACTERS]
    if BOOKING_ID.fullmatch(booking_id) and facts_by_id.setdefault((entry.host, booking_id), facts) == facts:
        return booking_id
    return f"x{blake2b(repr((entry.host, *facts)).encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def decode_json_file(data: bytes) -> str:
    """Decode UTF-8, or else Latin-1, which old editors write."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def text_to_plain_json(text: str, problems: list[str]) -> str:
    """Return plain JSON, with comments and trailing commas blanked out, so that every position stays the same."""
    if not text.strip():  # an editor may be about to write it
        raise BookingJsonError(EMPTY_FILE_MESSAGE)
    text = blank_json_comments(text)
    if TRAILING_COMMA.search(text):
        text = STRING_OR_COMMA.sub(lambda match: f" {match[0][1:]}" if match["end"] else match[0], text)

    def check_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    problems.append(f'the key "{clean_text(key)[:80]}" stands there twice; the last one counts')
                seen.add(key)
        return members

    try:
        content = json.loads(text, object_pairs_hook=check_duplicates, strict=False)
    except json.JSONDecodeError as error:
        raise BookingJsonError(describe_json_error(error)) from None
    except (ValueError, RecursionError):
        raise BookingJsonError("it is nested too deeply to be read") from None
    if not isinstance(content, dict):
        raise BookingJsonError("it must be an object of hosts: {host: [ … ]}")
    return text


def blank_json_comments(text: str) -> str:
    if "//" not in text and "/*" not in text:  # which is soon seen, and mostly so
        return text
    return STRING_OR_COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else NON_NEWLINE.sub(" ", match[0]), text)


def iterate_json_entries(text: str, problems: list[str]) -> Iterator[JsonEntry]:
    """Yield every entry of a plain text, under its host and GPU: an index, a UUID, or `*`; null and empty are none."""
    for host in index_json_members(text, skip_json_whitespace(text, 0)).values():
        name = clean_text(host.key)[:MAX_NAME_CHARACTERS]
        if not host.content:
            continue
        if not isinstance(host.content, (dict, list)):
            problems.append(f"{name}: a host has a list of bookings, or an object by GPU")
            continue
        for gpu in index_json_members(text, host.value_start).values():
            key = clean_text(gpu.key).strip()[:MAX_NAME_CHARACTERS]
            for member in list_json_members(text, gpu.value_start) if isinstance(gpu.content, list) else (gpu,):
                if isinstance(member.content, dict):
                    yield JsonEntry(name, key, member.content, member.value_start, member.end)
                elif member.content:
                    location = f"line {find_json_line_number(text, member.value_start)}, {name}, GPU {key}"
                    problems.append(f"{location}: a booking is an object with name, date and comment")


def index_json_members(text: str, position: int) -> dict[str, JsonMember]:
    """Return the members of an object or list by their keys; of those with the same key the last."""
    return {member.key: member for member in list_json_members(text, position)}


def parse_booking(entry: JsonEntry, zone: tzinfo) -> tuple[Booking | None, str]:
    """Parse an entry, or say why it does not count; three empty strings mean that it was deleted."""

    def text(key: str) -> str:
        value = entry.content.get(key)
        return clean_text(str(value)).strip()[:MAX_TEXT_CHARACTERS] if isinstance(value, (str, int, float)) else ""

    name, end, start = text("name"), text("date"), text("from")
    if not (name or end or text("comment")):
        return None, ""
    if not end:
        return None, f"the booking of {name or 'nobody'} has no date, and does not count"
    until, fault = dates.parse_date(end, zone)
    if until is None:
        return None, f'the date "{end}" {fault}'
    since, fault = dates.parse_date(start, zone) if start else (None, "")
    if fault:
        return None, f'the start "{start}" {fault}'
    if since and since >= until:
        return None, f"the booking of {name or 'nobody'} ends before it begins, and does not count"
    rule_text, rrule, problem = text("rrule"), "", "" if name else "a booking has no name"
    if rule_text:
        rrule, fault = recurrence.parse_rrule(rule_text, zone) if since else ("", "needs a `from`")
        problem = f'the rrule "{rule_text}" {fault}; the booking counts once' if fault else problem
    if rrule and since:  # what repeats keeps its hour when the clocks change, whatever offset it was written with
        since, until = since.astimezone(zone), until.astimezone(zone)
    return Booking(
        entry.host, entry.gpu, name, until, since, text("comment"), rrule=rrule or None, booked_by=text("by") or None
    ), problem
