"""comments.json: the bookings. Reading is forgiving, for people write it by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import tzinfo
from hashlib import blake2b
from typing import NamedTuple

from site_builder.bookings import json_positions
from site_builder.core.faults import describe
from site_builder.core.model import Booking, Dump
from site_builder.core.timeparse import dates, rrules
from site_builder.snapshots.envelope import bounded, clean, json_fault

# What is not closed matches to the end, so that nothing is tried twice and a hostile file takes no longer than another.
STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|\\?\Z|\n)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
STRING_OR_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|\\?\Z|\n)|,\s*(?P<end>[\]}])?', re.DOTALL)
COMMA_AT_THE_END = re.compile(r",\s*[\]}]")
NOT_A_LINE_END = re.compile(r"[^\n]")
LONGEST = 500
LONGEST_NAME = 80
MOST_BOOKINGS = 5_000
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
SAID = ("name", "from", "date", "comment", "rrule")
EMPTY = "it is empty; write {} where there are no bookings"


class Unreadable(Exception):
    """Why nothing of the file can be read."""


class Entry(NamedTuple):
    """A booking as it is written: under which host and GPU, and where in the text it stands."""

    host: str
    gpu: str
    content: dict[str, object]
    start: int
    end: int


def read(data: bytes, zone: tzinfo) -> Dump[Booking]:
    """Every booking that can be understood; not `whole` if the file cannot be read at all."""
    problems: list[str] = []
    try:
        text = plain(text_of(data), problems)
    except Unreadable as why:
        return Dump(whole=False, problems=(str(why),))
    found = [one for _, one in understood(text, zone, problems)]
    return Dump(tuple(found), problems=bounded(problems))


def understood(text: str, zone: tzinfo, problems: list[str]) -> Iterator[tuple[Entry, Booking]]:
    """Every booking of a plain text that counts, with the entry that it is."""
    ids = Ids()
    for number, entry in enumerate(entries(text, problems)):
        if number == MOST_BOOKINGS or len(problems) > MOST_BOOKINGS:
            problems.append(f"there are more than {MOST_BOOKINGS} bookings; the rest does not count")
            return
        try:
            one, problem = booking(entry, zone)
            one = one and replace(one, id=ids.of(entry))
        except Exception as error:  # a fault of ours costs the entry alone
            one, problem = None, describe("the booking does not count", error)
        if one:
            yield entry, one
        if problem:
            problems.append(f"{where(entry, text)}: {problem}")


def where(entry: Entry, text: str) -> str:
    """A place in the file, for people."""
    gpu = "all GPUs" if entry.gpu == "*" else f"GPU {entry.gpu}"
    return f"line {json_positions.line(text, entry.start)}, {entry.host}, {gpu}"


class Ids:
    """An id for each booking: its own, or one made of what it says, the same for all GPUs that it has on a host."""

    def __init__(self) -> None:
        """None is taken yet."""
        self.taken: dict[tuple[str, str], tuple[str, ...]] = {}

    def of(self, entry: Entry) -> str:
        """The id; somebody who copies an entry with its id, and changes the copy, has made another booking."""
        facts = tuple(str(entry.content.get(key) or "") for key in SAID)
        told = str(entry.content.get("id") or "")[:LONGEST_NAME]
        if ID.fullmatch(told) and self.taken.setdefault((entry.host, told), facts) == facts:
            return told
        return f"x{blake2b(repr((entry.host, *facts)).encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def text_of(data: bytes) -> str:
    """UTF-8, or else Latin-1, which old editors write."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def plain(text: str, problems: list[str]) -> str:
    """The text as plain JSON, with comments and trailing commas blanked out, so that every place stays where it was."""
    if not text.strip():  # an editor may be about to write it
        raise Unreadable(EMPTY)
    text = uncommented(text)
    if COMMA_AT_THE_END.search(text):
        text = STRING_OR_COMMA.sub(lambda found: f" {found[0][1:]}" if found["end"] else found[0], text)

    def distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
        whole = dict(pairs)
        if len(whole) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    problems.append(f'the key "{clean(key)[:80]}" stands there twice; the last one counts')
                seen.add(key)
        return whole

    try:
        content = json.loads(text, object_pairs_hook=distinct, strict=False)
    except json.JSONDecodeError as error:
        raise Unreadable(json_fault(error)) from None
    except (ValueError, RecursionError):
        message = "it is nested too deeply to be read"
        raise Unreadable(message) from None
    if not isinstance(content, dict):
        message = "it must be an object of hosts: {host: [ … ]}"
        raise Unreadable(message)
    return text


def uncommented(text: str) -> str:
    """The text with its comments blanked out."""
    if "//" not in text and "/*" not in text:  # which is soon seen, and mostly so
        return text
    return STRING_OR_COMMENT.sub(
        lambda found: found[0] if found[0][0] == '"' else NOT_A_LINE_END.sub(" ", found[0]), text
    )


def entries(text: str, problems: list[str]) -> Iterator[Entry]:
    """Every entry of a plain text, under its host and its GPU: an index, a UUID, or `*`; null and empty are none."""
    for host in counted(text, json_positions.after_blank(text, 0)):
        name = clean(host.key)[:LONGEST_NAME]
        if not host.content:
            continue
        if not isinstance(host.content, (dict, list)):
            problems.append(f"{name}: a host has a list of bookings, or an object by GPU")
            continue
        for gpu in counted(text, host.value):
            key = clean(gpu.key).strip()[:LONGEST_NAME]
            for one in json_positions.members(text, gpu.value) if isinstance(gpu.content, list) else (gpu,):
                if isinstance(one.content, dict):
                    yield Entry(name, key, one.content, one.value, one.end)
                elif one.content:
                    place = f"line {json_positions.line(text, one.value)}, {name}, GPU {key}"
                    problems.append(f"{place}: a booking is an object with name, date and comment")


def counted(text: str, at: int) -> Iterable[json_positions.Member]:
    """The members of an object or list; of those under one key the last."""
    return {one.key: one for one in json_positions.members(text, at)}.values()


def booking(entry: Entry, zone: tzinfo) -> tuple[Booking | None, str]:
    """One entry, or why it does not count; three empty strings mean that it was deleted."""

    def text(key: str) -> str:
        value = entry.content.get(key)
        return clean(str(value)).strip()[:LONGEST] if isinstance(value, (str, int, float)) else ""

    name, end, start = text("name"), text("date"), text("from")
    if not (name or end or text("comment")):
        return None, ""
    if not end:
        return None, f"the booking of {name or 'nobody'} has no date, and does not count"
    until, why = dates.read(end, zone)
    if until is None:
        return None, f'the date "{end}" {why}'
    since, why = dates.read(start, zone) if start else (None, "")
    if why:
        return None, f'the start "{start}" {why}'
    if since and since >= until:
        return None, f"the booking of {name or 'nobody'} ends before it begins, and does not count"
    told, rrule, problem = text("rrule"), "", "" if name else "a booking has no name"
    if told:
        rrule, why = rrules.read(told, zone) if since else ("", "needs a `from`")
        problem = f'the rrule "{told}" {why}; the booking counts once' if why else problem
    if rrule and since:  # what repeats keeps its hour when the clocks change, whatever offset it was written with
        since, until = since.astimezone(zone), until.astimezone(zone)
    return Booking(
        entry.host, entry.gpu, name, until, since, text("comment"), rrule=rrule or None, by=text("by") or None
    ), problem
