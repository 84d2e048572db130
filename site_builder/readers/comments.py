"""comments.json: the bookings. Reading is forgiving, for people write it by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import tzinfo

from site_builder.model import Booking, Dump
from site_builder.readers import dates, rrules
from site_builder.readers.form import bounded, clean, json_fault

# What is not closed matches to the end, so that nothing is tried twice and a hostile file takes no longer than another.
STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|\\?\Z|\n)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
STRING_OR_COMMA = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|\\?\Z|\n)|,\s*(?P<end>[\]}])?', re.DOTALL)
NOT_A_LINE_END = re.compile(r"[^\n]")
LONGEST = 500
LONGEST_NAME = 80
MOST_BOOKINGS = 5_000


def read(data: bytes, zone: tzinfo) -> Dump[Booking]:
    """Every booking that can be understood; not `whole` if the file cannot be read at all."""
    problems: list[str] = []
    if not data.strip():  # an editor may be about to write it
        return Dump(whole=False, problems=("it is empty; write {} where there are no bookings",))
    try:
        content = loads(text_of(data), problems)
    except json.JSONDecodeError as error:
        return Dump(whole=False, problems=(json_fault(error),))
    except (ValueError, RecursionError):
        return Dump(whole=False, problems=("it is nested too deeply to be read",))
    if not isinstance(content, dict):
        return Dump(whole=False, problems=("it must be an object of hosts: {host: [ … ]}",))
    found: list[Booking] = []
    for key, gpus in content.items():
        host = clean(key)[:LONGEST_NAME]
        for gpu, entry in entries(host, gpus, problems):
            if len(found) == MOST_BOOKINGS or len(problems) > MOST_BOOKINGS:
                problems.append(f"there are more than {MOST_BOOKINGS} bookings; the rest does not count")
                return Dump(tuple(found), problems=bounded(problems))
            one, problem = booking(host, gpu, entry, zone)
            if one:
                found.append(one)
            if problem:
                problems.append(f"{host}, {'all GPUs' if gpu == '*' else f'GPU {gpu}'}: {problem}")
    return Dump(tuple(found), problems=bounded(problems))


def text_of(data: bytes) -> str:
    """UTF-8, or else Latin-1, which old editors write."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def loads(text: str, problems: list[str]) -> object:
    """JSON with comments and trailing commas; each is blanked out, so that the line of an error stays right."""
    text = STRING_OR_COMMENT.sub(
        lambda found: found[0] if found[0][0] == '"' else NOT_A_LINE_END.sub(" ", found[0]), text
    )
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

    return json.loads(text, object_pairs_hook=distinct, strict=False)


def entries(host: str, gpus: object, problems: list[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """The bookings of a host, each with its GPU: an index, a UUID, or `*`. Null and empty ones are none."""
    if not gpus:
        return
    if isinstance(gpus, list):
        pairs = [(str(index), entry) for index, entry in enumerate(gpus)]
    elif isinstance(gpus, dict):
        pairs = [(clean(str(key)).strip()[:LONGEST_NAME], entry) for key, entry in gpus.items()]
    else:
        problems.append(f"{host}: a host has a list of bookings, or an object by GPU")
        return
    for gpu, entry in pairs:
        for one in entry if isinstance(entry, list) else [entry]:
            if isinstance(one, dict):
                yield gpu, one
            elif one:
                problems.append(f"{host}, GPU {gpu}: a booking is an object with name, date and comment")


def booking(host: str, gpu: str, entry: dict[str, object], zone: tzinfo) -> tuple[Booking | None, str]:
    """One entry, or why it does not count; three empty strings mean that it was deleted."""

    def text(key: str) -> str:
        value = entry.get(key)
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
        rrule, why = rrules.read(told) if since else ("", "needs a `from`")
        problem = f'the rrule "{told}" {why}; the booking counts once' if why else ""
    return Booking(host, gpu, name, until, since, text("comment"), text("id") or None, rrule or None), problem
