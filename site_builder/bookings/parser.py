"""Parse comments.json."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
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


class JsonMember(NamedTuple):
    """A value in an object or a list: its key or its place, where both begin, and where it ends."""

    key: str
    start: int
    value_start: int
    end: int
    content: object


def list_members(text: str, at: int) -> list[JsonMember]:
    """The values of the object or list that begins there, in a text that is known to be JSON."""
    found: list[JsonMember] = []
    closing = {"{": "}", "[": "]"}[text[at]]
    start = skip_whitespace(text, at + 1)
    while text[start] != closing:
        key, value = str(len(found)), start
        if closing == "}":
            key, value = scanstring(text, start + 1, False)
            value = skip_whitespace(text, skip_whitespace(text, value) + 1)
        content, end = JSON_DECODER.raw_decode(text, value)
        found.append(JsonMember(key, start, value, end, content))
        start = skip_whitespace(text, end)
        if text[start] == ",":
            start = skip_whitespace(text, start + 1)
    return found


def skip_whitespace(text: str, at: int) -> int:
    """Behind the blanks that stand there."""
    found = WHITESPACE.match(text, at)
    return found.end() if found else at


def find_line_number(text: str, at: int) -> int:
    """The number of a line, as editors count."""
    return text.count("\n", 0, at) + 1


# What is not closed matches to the end, so that nothing is tried twice and a hostile file takes no longer than another.
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


class BookingFileError(Exception):
    """Why nothing of the file can be read."""


class BookingEntry(NamedTuple):
    """A booking as it is written: under which host and GPU, and where in the text it stands."""

    host: str
    gpu: str
    content: dict[str, object]
    start: int
    end: int


def parse_bookings(data: bytes, zone: tzinfo) -> ParsedFile[Booking]:
    """Every booking that can be understood; not `whole` if the file cannot be read at all."""
    problems: list[str] = []
    try:
        text = to_plain_json(decode_bookings_file(data), problems)
    except BookingFileError as why:
        return ParsedFile(is_complete=False, problems=(str(why),))
    found = [one for _, one in iterate_bookings(text, zone, problems)]
    return ParsedFile(tuple(found), problems=limit_problems(problems))


def iterate_bookings(text: str, zone: tzinfo, problems: list[str]) -> Iterator[tuple[BookingEntry, Booking]]:
    """Every booking of a plain text that counts, with the entry that it is."""
    ids = BookingIds()
    for number, entry in enumerate(iterate_entries(text, problems)):
        if number == MAX_BOOKINGS or len(problems) > MAX_BOOKINGS:
            problems.append(f"there are more than {MAX_BOOKINGS} bookings; the rest does not count")
            return
        try:
            one, problem = parse_booking(entry, zone)
            one = one and replace(one, id=ids.assign_id(entry))
        except Exception as error:  # a fault of ours costs the entry alone
            one, problem = None, describe_fault("the booking does not count", error)
        if one:
            yield entry, one
        if problem:
            problems.append(f"{format_entry_location(entry, text)}: {problem}")


def format_entry_location(entry: BookingEntry, text: str) -> str:
    """A place in the file, for people."""
    gpu = "all GPUs" if entry.gpu == "*" else f"GPU {entry.gpu}"
    return f"line {find_line_number(text, entry.start)}, {entry.host}, {gpu}"


class BookingIds:
    """An id for each booking: its own, or one made of what it says, the same for all GPUs that it has on a host."""

    def __init__(self) -> None:
        """None is taken yet."""
        self.facts_by_id: dict[tuple[str, str], tuple[str, ...]] = {}

    def assign_id(self, entry: BookingEntry) -> str:
        """The id; somebody who copies an entry with its id, and changes the copy, has made another booking."""
        facts = tuple(str(entry.content.get(key) or "") for key in IDENTIFYING_KEYS)
        told = str(entry.content.get("id") or "")[:MAX_NAME_CHARACTERS]
        if BOOKING_ID.fullmatch(told) and self.facts_by_id.setdefault((entry.host, told), facts) == facts:
            return told
        return f"x{blake2b(repr((entry.host, *facts)).encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def decode_bookings_file(data: bytes) -> str:
    """UTF-8, or else Latin-1, which old editors write."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def to_plain_json(text: str, problems: list[str]) -> str:
    """The text as plain JSON, with comments and trailing commas blanked out, so that every place stays where it was."""
    if not text.strip():  # an editor may be about to write it
        raise BookingFileError(EMPTY_FILE_MESSAGE)
    text = blank_comments(text)
    if TRAILING_COMMA.search(text):
        text = STRING_OR_COMMA.sub(lambda found: f" {found[0][1:]}" if found["end"] else found[0], text)

    def distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
        whole = dict(pairs)
        if len(whole) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    problems.append(f'the key "{clean_text(key)[:80]}" stands there twice; the last one counts')
                seen.add(key)
        return whole

    try:
        content = json.loads(text, object_pairs_hook=distinct, strict=False)
    except json.JSONDecodeError as error:
        raise BookingFileError(describe_json_error(error)) from None
    except (ValueError, RecursionError):
        message = "it is nested too deeply to be read"
        raise BookingFileError(message) from None
    if not isinstance(content, dict):
        message = "it must be an object of hosts: {host: [ … ]}"
        raise BookingFileError(message)
    return text


def blank_comments(text: str) -> str:
    """The text with its comments blanked out."""
    if "//" not in text and "/*" not in text:  # which is soon seen, and mostly so
        return text
    return STRING_OR_COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else NON_NEWLINE.sub(" ", found[0]), text)


def iterate_entries(text: str, problems: list[str]) -> Iterator[BookingEntry]:
    """Every entry of a plain text, under its host and its GPU: an index, a UUID, or `*`; null and empty are none."""
    for host in list_effective_members(text, skip_whitespace(text, 0)):
        name = clean_text(host.key)[:MAX_NAME_CHARACTERS]
        if not host.content:
            continue
        if not isinstance(host.content, (dict, list)):
            problems.append(f"{name}: a host has a list of bookings, or an object by GPU")
            continue
        for gpu in list_effective_members(text, host.value_start):
            key = clean_text(gpu.key).strip()[:MAX_NAME_CHARACTERS]
            for one in list_members(text, gpu.value_start) if isinstance(gpu.content, list) else (gpu,):
                if isinstance(one.content, dict):
                    yield BookingEntry(name, key, one.content, one.value_start, one.end)
                elif one.content:
                    place = f"line {find_line_number(text, one.value_start)}, {name}, GPU {key}"
                    problems.append(f"{place}: a booking is an object with name, date and comment")


def list_effective_members(text: str, at: int) -> Iterable[JsonMember]:
    """The members of an object or list; of those under one key the last."""
    return {one.key: one for one in list_members(text, at)}.values()


def parse_booking(entry: BookingEntry, zone: tzinfo) -> tuple[Booking | None, str]:
    """One entry, or why it does not count; three empty strings mean that it was deleted."""

    def text(key: str) -> str:
        value = entry.content.get(key)
        return clean_text(str(value)).strip()[:MAX_TEXT_CHARACTERS] if isinstance(value, (str, int, float)) else ""

    name, end, start = text("name"), text("date"), text("from")
    if not (name or end or text("comment")):
        return None, ""
    if not end:
        return None, f"the booking of {name or 'nobody'} has no date, and does not count"
    until, why = dates.parse_date(end, zone)
    if until is None:
        return None, f'the date "{end}" {why}'
    since, why = dates.parse_date(start, zone) if start else (None, "")
    if why:
        return None, f'the start "{start}" {why}'
    if since and since >= until:
        return None, f"the booking of {name or 'nobody'} ends before it begins, and does not count"
    told, rrule, problem = text("rrule"), "", "" if name else "a booking has no name"
    if told:
        rrule, why = recurrence.parse_rrule(told, zone) if since else ("", "needs a `from`")
        problem = f'the rrule "{told}" {why}; the booking counts once' if why else problem
    if rrule and since:  # what repeats keeps its hour when the clocks change, whatever offset it was written with
        since, until = since.astimezone(zone), until.astimezone(zone)
    return Booking(
        entry.host, entry.gpu, name, until, since, text("comment"), rrule=rrule or None, booked_by=text("by") or None
    ), problem
