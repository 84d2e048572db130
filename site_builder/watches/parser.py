"""watches.json: who waits for which GPUs. It names people and wishes, never an address; anybody may have written it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from site_builder.core.faults import describe
from site_builder.core.model import Dump
from site_builder.core.timeparse import dates
from site_builder.snapshots.envelope import bounded, clean, json_fault
from site_builder.watches import request_parser
from site_builder.watches.request_parser import Wish

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,19}")
VIA = re.compile(r"[a-z][a-z0-9+.-]{0,19}")
LONGEST_NAME = 80
# What is more was not made by people at the desk.
MOST = 1000
# So many of one person.
MOST_EACH = 20
# Days after which nobody waits any more.
LONGEST = 30
SECONDS = LONGEST * 86400


class Unreadable(Exception):
    """Why nothing of the file can be read."""


class Odd(Exception):
    """Why an entry does not count."""


class Watch(NamedTuple):
    """What somebody waits for, since when and until when; `via` is the way by which they want to hear of it."""

    id: str
    name: str
    wish: Wish
    made: int
    until: int
    via: str = ""


def read(data: bytes) -> Dump[Watch]:
    """Every watch that can be understood; not `whole` if the file cannot be read at all."""
    try:
        several = entries(data)
    except Unreadable as why:
        return Dump(whole=False, problems=(str(why),))
    found: dict[str, Watch] = {}
    problems: list[str] = []
    for number, entry in enumerate(several[:MOST], 1):
        one, problem = watch(entry)
        if one and found.setdefault(one.id, one) is not one:
            problem = f'there are two with the id "{one.id}"; the first counts'
        if problem:
            problems.append(f"watch {number}: {problem}")
    if len(several) > MOST:
        problems.append(f"there are more than {MOST} watches; the rest does not count")
    return Dump(tuple(found.values()), problems=bounded(problems))


def entries(data: bytes) -> list[object]:
    """The entries as they stand there, whatever they are; a file that is empty has none."""
    if not data.strip():
        return []
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise Unreadable(json_fault(error)) from None
    except (ValueError, RecursionError):
        message = "it is no JSON in UTF-8, or nested too deeply"
        raise Unreadable(message) from None
    if not isinstance(content, list):
        message = "it must be a list of watches: [ … ]"
        raise Unreadable(message)
    return content


def watch(entry: object) -> tuple[Watch | None, str]:
    """One entry, or why it does not count."""
    try:
        return understood(entry), ""
    except Odd as why:
        return None, str(why)
    except Exception as error:  # a fault of ours costs the entry alone
        return None, describe("it does not count", error)


def understood(entry: object) -> Watch:
    """One entry, whatever it is."""
    if not isinstance(entry, dict):
        raise Odd("it is no object with id, name and when")
    its_id, name, told, via = (entry.get(key) for key in ("id", "name", "when", "via"))
    if not isinstance(its_id, str) or not ID.fullmatch(its_id):
        raise Odd("it has no id of letters and digits")
    if not is_name(name):
        raise Odd("it names nobody")
    if via not in (None, "") and not (isinstance(via, str) and VIA.fullmatch(via)):
        raise Odd("its way is no word such as mail")
    made, until = moment(entry.get("made")), moment(entry.get("until"))
    if made is None or until is None:
        raise Odd("it does not say since when and until when")
    if not isinstance(told, str):
        raise Odd("it does not say what for")
    try:
        wish = request_parser.read(told)
    except request_parser.Unclear as why:
        raise Odd(f'"{clean(told)[:80]}" {why}') from None
    return Watch(its_id, str(name), wish, made, min(until, made + SECONDS), via or "")


def is_name(name: object) -> bool:
    """Whether it can be that of a person: one line, as it is."""
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
        return False
    return clean(name) == name and " ".join(name.split()) == name


def moment(told: object) -> int | None:
    """A time with its offset, in seconds since 1970."""
    found = dates.exact(told)
    return int(found.timestamp()) if found else None


def entry_of(one: Watch) -> dict[str, str]:
    """A watch as it is written."""
    via = {"via": one.via} if one.via else {}
    return {"id": one.id, "name": one.name, "when": request_parser.said(one.wish), **via, **times(one)}


def times(one: Watch) -> dict[str, str]:
    """When it was made, and until when it counts."""
    return {
        key: datetime.fromtimestamp(at, timezone.utc).isoformat()
        for key, at in (("made", one.made), ("until", one.until))
    }


def written(several: Iterable[object]) -> bytes:
    """The file with these entries, one a line."""
    lines: Sequence[str] = [json.dumps(one, ensure_ascii=True) for one in several]
    return ("[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n").encode()
