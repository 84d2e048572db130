"""What history knows of each GPU: written as its hours are rolled up, read for what is wasted."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import orjson

from site_builder.history import block_format, idle_runs
from site_builder.history.block_format import Damaged, Hour
from site_builder.history.idle_runs import EMPTY, Unkept, Worn, after, card_of
from site_builder.history.model import Series
from site_builder.history.reader import Past

# Parameters that every SQLite takes in one statement.
AT_ONCE = 500
OF_UNKEPT = "host, key, place, model, who, since, until, minutes"


class Known(NamedTuple):
    """What is known of some GPUs, and of all that have been empty for long, by their cards; promises that nobody used.

    `first` is since when history looks at all.
    """

    first: int | None
    worn: dict[str, Worn]
    unkept: tuple[Unkept, ...]


NOTHING = Known(None, {}, ())


def roll(connection: sqlite3.Connection, hours: Sequence[tuple[int, int, Hour]], idle_percent: float) -> None:
    """Add hours that are rolled up, in the transaction of the caller."""
    found = list(gpus_of(connection, hours))
    known = read(connection, {card_of(host, one.key) for host, one, *_ in found})
    ended: list[Unkept] = []
    for host, one, at, hour, number in found:
        card = card_of(host, one.key)
        new, over = after(known.get(card), host, one, at, hour, number, idle_percent)
        ended += over
        if new:
            known[card] = new
    rows = [(card, one.last, one.run, one.minutes, idle_runs.pack(one)) for card, one in known.items()]
    connection.executemany("INSERT OR REPLACE INTO card VALUES(?,?,?,?,?)", rows)
    connection.executemany(
        f"INSERT OR REPLACE INTO unkept(card, {OF_UNKEPT}) VALUES(?,?,?,?,?,?,?,?,?)",
        [(card_of(one.host, one.key), *one[:4], orjson.dumps(one.who), *one[5:]) for one in ended],
    )
    # one that goes on after all: the clock had only run ahead
    going_on = [(card, one.promise.since) for card, one in known.items() if one.promise]
    connection.executemany("DELETE FROM unkept WHERE card=? AND since=?", going_on)


def gpus_of(
    connection: sqlite3.Connection, hours: Iterable[tuple[int, int, Hour]]
) -> Iterator[tuple[str, Series, int, Hour, int]]:
    """Each GPU of each of the hours."""
    for at, shape, hour in hours:
        for host, gpus in connection.execute("SELECT host, gpus FROM shape WHERE id=?", (shape,)):
            for number, one in enumerate(block_format.series_of(gpus)[: hour.gpus]):
                yield host, one, at, hour, number


def read(connection: sqlite3.Connection, cards: Iterable[str]) -> dict[str, Worn]:
    """What is known of some GPUs; of one whose row is damaged, nothing."""
    several = sorted(cards)
    found: dict[str, Worn] = {}
    for start in range(0, len(several), AT_ONCE):
        some = several[start : start + AT_ONCE]
        asked = f"SELECT key, told FROM card WHERE key IN ({','.join('?' * len(some))})"  # noqa: S608 # our words
        found.update(unpacked(connection.execute(asked, some)))
    return found


def unpacked(rows: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, Worn]]:
    """Rows, as far as they can be read."""
    for card, told in rows:
        try:
            yield card, idle_runs.unpack(told)
        except Damaged:
            continue


def known_of(past: Past, cards: Collection[str], empty_minutes: int, since: float, until: float) -> Known:
    """What history knows of these GPUs, and of those that nobody was on for so many minutes that it saw.

    And the promises that ended between two moments, and that nobody used.
    """

    def question(connection: sqlite3.Connection) -> Known:
        ended = tuple(unkept(connection, since, until))
        found = read(connection, {*cards, *(card_of(one.host, one.key) for one in ended)})
        asked = "SELECT key, told FROM card WHERE run=? AND minutes>=?"
        found.update(unpacked(connection.execute(asked, (EMPTY, empty_minutes))))
        (first,) = connection.execute("SELECT min(at) FROM rolled").fetchone()
        return Known(first, found, ended)

    return past.ask(question, NOTHING)


def unkept(connection: sqlite3.Connection, since: float, until: float) -> Iterator[Unkept]:
    """Promises that ended between two moments, and that nobody used."""
    asked = f"SELECT {OF_UNKEPT} FROM unkept WHERE until>? AND until<=? ORDER BY until"  # noqa: S608 # the same
    for host, key, index, model, who, *times in connection.execute(asked, (since, until)):
        try:
            yield Unkept(host, key, index, model, idle_runs.names_of(orjson.loads(who)), *times)
        except (ValueError, TypeError):
            continue
