"""What the alerts remember, as it is kept in state/ or in Consul: JSON, there packed.

Only gpuboard writes it. What is damaged is not taken in part: of half a memory, things would be told twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import orjson

from site_builder.alerts.model import Alert, Book, Known, Letter, Matter, Told

VERSION = 1
# Bytes: unpacked that are read, and packed that Consul takes.
LONGEST = 32 * 1024 * 1024
GZIP = b"\x1f\x8b"
Kind = TypeVar("Kind")


class Found(NamedTuple):
    """What was understood; `problem` is why that is a new book, and `newer` one that we must not write over."""

    book: Book
    problem: str = ""
    newer: bool = False


class Damaged(Exception):
    """It is not what we wrote."""


def read(data: bytes) -> Found:
    """The book that was written; nothing at all is one that nobody has begun."""
    if not data:
        return Found(Book())
    try:
        told = orjson.loads(unpacked(data))
        version = whole(told["gpuboard"])
        if version > VERSION:
            return Found(Book(), "was written by a newer gpuboard: update this one", newer=True)
        return Found(book_of(told))
    except (Damaged, ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        return Found(Book(), "is damaged: begun anew, and what was so already is not told")


def write(book: Book, packed: bool = False) -> bytes:
    """The same as bytes; the same book is always the same bytes."""
    told = {
        "gpuboard": VERSION,
        "begun": book.begun,
        "known": {key: slim(one) for key, one in book.known.items()},
        "once": book.once,
        "letters": [slim(one) for one in book.letters],
        "silences": book.silences,
        "sent": book.sent,
        "history": [slim(one) for one in book.history],
        "number": book.number,
    }
    plain = orjson.dumps(told)
    return gzipped(plain) if packed else plain + b"\n"


def slim(one: Any) -> dict[str, Any]:  # noqa: ANN401 any of our tuples
    """A tuple by the names of its fields, but for those that say what they say by default."""
    told: dict[str, Any] = {}
    for name, value in zip(one._fields, one):
        if name in one._field_defaults and one._field_defaults[name] == value:
            continue
        if hasattr(value, "_fields"):
            told[name] = slim(value)
        elif isinstance(value, tuple):
            told[name] = [slim(each) if hasattr(each, "_fields") else each for each in value]
        else:
            told[name] = value
    return told


def gzipped(plain: bytes) -> bytes:
    """Packed; without the time, which would make each one another."""
    packer = zlib.compressobj(6, wbits=31)
    return packer.compress(plain) + packer.flush()


def unpacked(data: bytes) -> bytes:
    """Unpacked, where it is packed, and no more of it than we would write."""
    if not data.startswith(GZIP):
        return data
    reader = zlib.decompressobj(wbits=31)
    plain = reader.decompress(data, LONGEST)
    if not reader.eof:
        raise Damaged
    return plain


def book_of(told: dict[str, Any]) -> Book:
    """All of it."""
    return Book(
        begun=maybe(told["begun"]),
        known={text(key): known(one) for key, one in told["known"].items()},
        once={text(key): whole(until) for key, until in told["once"].items()},
        letters=listed(told["letters"], letter),
        silences={text(key): whole(until) for key, until in told["silences"].items()},
        sent={text(key): listed(times, whole) for key, times in told["sent"].items()},
        history=listed(told["history"], line),
        number=whole(told["number"]),
    )


def made(kind: Callable[..., Kind], told: Any, fields: dict[str, Callable[[Any], Any]]) -> Kind:  # noqa: ANN401 JSON
    """One of our tuples; a field of a later gpuboard is passed over."""
    if not isinstance(told, dict):
        raise Damaged
    return kind(**{name: take(told[name]) for name, take in fields.items() if name in told})


def text(told: object) -> str:
    """A text."""
    if not isinstance(told, str):
        raise Damaged
    return told


def whole(told: object) -> int:
    """A whole number."""
    if not isinstance(told, int) or isinstance(told, bool):
        raise Damaged
    return told


def maybe(told: object) -> int | None:
    """The same, or nothing."""
    return None if told is None else whole(told)


def yes(told: object) -> bool:
    """Yes or no."""
    if not isinstance(told, bool):
        raise Damaged
    return told


def listed(told: object, take: Callable[[Any], Kind]) -> tuple[Kind, ...]:
    """Several."""
    if not isinstance(told, list):
        raise Damaged
    return tuple(take(one) for one in told)


def texts(told: object) -> tuple[str, ...]:
    """Several texts."""
    return listed(told, text)


def known(told: object) -> Known:
    """What is remembered of a matter."""
    return made(Known, told, KNOWN)


def matter(told: object) -> Matter:
    """A matter."""
    return made(Matter, told, MATTER)


def alert(told: object) -> Alert:
    """An alert."""
    return made(Alert, told, ALERT)


def letter(told: object) -> Letter:
    """A letter."""
    return made(Letter, told, LETTER)


def line(told: object) -> Told:
    """A line of the history."""
    return made(Told, told, TOLD)


def alerts(told: object) -> tuple[Alert, ...]:
    """Those that a letter carries."""
    return listed(told, alert)


# What each field holds, by the type that alert.py gives it; a test holds the two together.
BY_TYPE: dict[str, Callable[[Any], Any]] = {
    "str": text,
    "str | None": lambda told: None if told is None else text(told),
    "int": whole,
    "int | None": maybe,
    "bool": yes,
    "tuple[str, ...]": texts,
    "tuple[Alert, ...]": alerts,
    "Matter": matter,
}


def fields_of(kind: type) -> dict[str, Callable[[Any], Any]]:
    """How each field of one of our tuples is read."""
    return {
        name: BY_TYPE[of if isinstance(of, str) else of.__forward_arg__] for name, of in kind.__annotations__.items()
    }


MATTER, ALERT, LETTER, KNOWN, TOLD = (fields_of(kind) for kind in (Matter, Alert, Letter, Known, Told))
