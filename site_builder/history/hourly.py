"""What history has added up by the hour, for pages that are made again and again: only whole hours, read in one go."""

from __future__ import annotations

import sqlite3

from site_builder.history.gpu_minutes import Seen, Share
from site_builder.history.reader import HOUR, Past

SUMS = ", ".join(f"sum({name})" for name in Share._fields)


def whole_until(past: Past, now: float) -> int | None:
    """The end of the last hour that is added up in all its parts; None where none is yet."""

    def question(connection: sqlite3.Connection) -> int | None:
        (first,) = connection.execute("SELECT min(at) FROM hour_seen").fetchone()
        (waiting,) = connection.execute("SELECT min(at) FROM minute").fetchone()
        until = int(now if waiting is None else min(now, waiting)) // HOUR * HOUR
        return None if first is None or first >= until else until

    return past.ask(question, None)


def seen(past: Past, since: int, until: int) -> dict[tuple[int, str], Seen]:
    """What was seen, by hour and model."""
    asked = "SELECT h.at, n.text, h.* FROM hour_seen h JOIN name n ON n.id=h.model WHERE h.at>=? AND h.at<?"

    def question(connection: sqlite3.Connection) -> dict[tuple[int, str], Seen]:
        rows = connection.execute(asked, (since, until))
        return {(at, model): Seen(*row) for at, model, _, _, *row in rows}

    return past.ask(question, {})


def people(past: Past, since: int, until: int) -> dict[str, Share]:
    """Who had how much in all."""
    asked = (
        f"SELECT n.text, {SUMS} FROM hour_share h JOIN name n ON n.id=h.person "  # noqa: S608 # all words are ours
        "WHERE h.at>=? AND h.at<? GROUP BY h.person"
    )

    def question(connection: sqlite3.Connection) -> dict[str, Share]:
        return {person: Share(*row) for person, *row in connection.execute(asked, (since, until))}

    return past.ask(question, {})
