"""History as the builder writes it: a sample of the fleet each minute, which becomes coarser with its age.

Minutes stand alone until their hour is over. Then they become chunks, one a host, and sums of who had how much, in the
one transaction that deletes them: each counts once, whatever happens in between.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import tzinfo
from pathlib import Path

from site_builder.core.model import Problem
from site_builder.core.own_files import is_empty
from site_builder.history import block_format, buckets, database, idle_run_store, retention
from site_builder.history.block_format import Damaged, Packed
from site_builder.history.database import WHERE, Unusable, transaction
from site_builder.history.gpu_minutes import Seen, Share
from site_builder.history.reader import (
    AHEAD,
    COVERS,
    DAY,
    HOUR,
    MINUTE,
    PARTS,
    Past,
    add,
    chunks,
    hours_to_come,
    part_of,
    tally_of,
)

# Days of hosts that become chunks in one transaction.
TOGETHER = 2
ADD_SHARE = ", ".join(f"{name}={name}+excluded.{name}" for name in Share._fields)
ADD_SEEN = ", ".join(f"{name}={name}+excluded.{name}" for name in Seen._fields)


class History(Past):
    """Writes, for one builder at a time; whatever goes wrong is told in `problems`, and the build goes on."""

    def __init__(self, state: Path, zone: tzinfo) -> None:
        """Opened when it is needed first."""
        super().__init__(state, zone)
        self.recorded = -1
        self.opened: database.Opened | None = None
        self.shapes: set[int] = set()
        self.told: dict[str, int] | None = None  # of each host, which shape it told last
        self.names: dict[str, int] = {}
        self.failed: dict[str, tuple[str, str]] = {}  # why something could not be done, and what that means
        self.idle_percent = 5.0  # a GPU that is taken and used less is idle

    @property
    def problems(self) -> list[Problem]:
        """What the page says of it: one sentence for each cause, whatever it prevents."""
        causes: dict[str, list[str]] = defaultdict(list)
        for why, otherwise in self.failed.values():
            causes[why] += [] if otherwise in causes[why] else [otherwise]
        told = [Problem(WHERE, f"{why}: {', and '.join(several)}") for why, several in causes.items()]
        return [*told, *database.problems(self.path.parent)]

    def connect(self) -> sqlite3.Connection:
        """The open file, for writing; the admin may delete it or put another in its place at any time."""
        if self.connection is not None and not self.path.exists():
            self.close()
        if self.connection is not None and self.opened and not database.is_same(self.path, self.opened):
            self.close()
            database.replaced(self.path, self.opened)
        if self.connection is None:
            if is_empty(self.path):
                database.set_aside(self.path, time.time())
            self.connection = database.connect(self.path)
            self.shapes = {shape for (shape,) in self.connection.execute("SELECT id FROM shape")}
            self.names = {}
            self.opened = database.look(self.path)
        return self.connection

    def close(self) -> None:
        """Let go of the file, and of what is known of it."""
        with suppress(sqlite3.Error):
            super().close()
        self.shapes, self.names, self.told = set(), {}, None

    def record(self, samples: Sequence[Packed], now: float, reach: float = 0) -> None:
        """The hosts that are fresh, once a minute; builds come no further apart than `reach`, in seconds."""
        at = int(now) // MINUTE * MINUTE
        if at == self.recorded:
            return
        if self.attempt("record", lambda: self.write(samples, at, reach), now, "this minute is missing in it"):
            self.recorded = at

    def roll_up(self, now: float, seconds: float) -> bool:
        """What is due of making the old coarser, for so long; whether all of it is done."""
        end = time.monotonic() + seconds
        done = False

        def work() -> None:
            nonlocal done
            connection = self.connect()
            connection.execute("PRAGMA synchronous=NORMAL")  # the next minute makes it last
            for _ in self.steps(connection, now):
                if time.monotonic() >= end:
                    return
            done = True

        self.attempt("roll_up", work, now, "what is older stays as it is")
        return done

    def attempt(self, what: str, work: Callable[[], None], now: float, otherwise: str) -> bool:
        """Do something with the file, if it can be done; one that is damaged is set aside."""
        try:
            work()
        except Unusable as why:
            self.failed[what] = (str(why), "no history is written")
        except Exception as error:  # whatever it is, it must not cost the page
            self.close()
            told = str(error) if isinstance(error, (sqlite3.Error, OSError)) else repr(error)
            self.failed[what] = (f"it could not be written ({told[:200]})", otherwise)
            if database.is_broken(error, self.path):
                self.begin_anew(what, now)
        else:
            self.failed.pop(what, None)
            return True
        return False

    def begin_anew(self, what: str, now: float) -> None:
        """A damaged file makes room for a new one."""
        try:
            if database.set_aside(self.path, now):
                del self.failed[what]  # said by the file that is set aside
        except OSError as error:
            why = f"it is damaged, and could not be set aside ({error.strerror})"
            self.failed[what] = (why, "no history is written")

    def write(self, samples: Sequence[Packed], at: int, reach: float) -> None:
        """A minute, unless it is there; those before it that were missed between two builds are like the last one."""
        connection = self.connect()
        by_part: dict[int, list[Packed]] = defaultdict(list)
        for one in samples:
            by_part[part_of(one.host)].append(one)
        blocks = [(part, block_format.pack_part(several)) for part, several in by_part.items()]
        blocks = blocks or [(PARTS, block_format.pack_part([]))]  # that nobody was there was seen too
        new = {one.shape: (one.shape, one.host, one.gpus, at) for one in samples if one.shape not in self.shapes}
        connection.execute("PRAGMA synchronous=FULL")  # what a power cut takes is no more than a minute
        with transaction(connection):
            connection.executemany("INSERT OR IGNORE INTO shape VALUES(?,?,?,?)", new.values())
            connection.execute("UPDATE minute SET ahead=1 WHERE at>? AND ahead=0", (at + AHEAD,))
            (before,) = connection.execute("SELECT max(at) FROM minute WHERE at<?", (at,)).fetchone()
            if before is not None and at - before <= reach + MINUTE:
                for missed in range(before + MINUTE, at, MINUTE):
                    asked = "SELECT part, block FROM minute WHERE at=?"
                    self.insert(connection, missed, connection.execute(asked, (before,)).fetchall())
            self.insert(connection, at, blocks)
            told = self.tell(connection, samples, at)
        self.shapes |= new.keys()
        self.told = told

    def tell(self, connection: sqlite3.Connection, samples: Sequence[Packed], at: int) -> dict[str, int]:
        """Write down which hosts have other GPUs than before; of each, which it has."""
        before = self.told
        if before is None or at < self.recorded:  # what a clock that ran ahead told is not believed until then
            asked = "SELECT host, shape, max(at) FROM told WHERE at<=? GROUP BY host"
            before = {host: shape for host, shape, _ in connection.execute(asked, (at,))}
        now = {one.host: one.shape for one in samples}
        new = [(host, at, shape) for host, shape in now.items() if before.get(host) != shape]
        connection.executemany("INSERT OR REPLACE INTO told VALUES(?,?,?)", new)
        return {**before, **now}

    @staticmethod
    def insert(connection: sqlite3.Connection, at: int, blocks: Sequence[tuple[int, bytes]]) -> None:
        """The parts of a minute that are not there yet; what a clock that ran ahead wrote makes room, all of it."""
        connection.execute("DELETE FROM minute WHERE at=? AND ahead=1", (at,))
        asked = "SELECT part, minutes FROM rolled WHERE at=?"
        rolled = dict(connection.execute(asked, (at // HOUR * HOUR,)))
        bit = 1 << (at % HOUR // MINUTE)
        connection.executemany(
            "INSERT OR IGNORE INTO minute(at, part, block) VALUES(?,?,?)",
            [(at, part, block) for part, block in blocks if not rolled.get(part, 0) & bit],
        )

    def steps(self, connection: sqlite3.Connection, now: float) -> Iterator[None]:
        """All that is due, in steps of which each is whole."""
        hour = int(now) // HOUR * HOUR
        asked = f"SELECT DISTINCT at/{HOUR}*{HOUR}, part FROM minute WHERE at<? ORDER BY 1, 2"  # noqa: S608 # a number
        for at, part in connection.execute(asked, (hour,)).fetchall():
            with transaction(connection):
                self.roll_hour(connection, at, part)
            yield
        today = int(now) // DAY * DAY
        while due := connection.execute(
            "SELECT at, shape FROM due WHERE at<? ORDER BY at LIMIT ?", (today, TOGETHER)
        ).fetchall():
            with transaction(connection):
                for day, shape in due:
                    roll_day(connection, day, shape)
            yield
        for _ in retention.steps(connection, now):
            self.shapes = {shape for (shape,) in connection.execute("SELECT id FROM shape")}
            yield

    def roll_hour(self, connection: sqlite3.Connection, at: int, part: int) -> None:
        """The minutes of an hour that is over, of one part of the hosts."""
        hours = list(hours_to_come(connection, part, at, at + HOUR))
        for _, shape, hour in hours:
            for _, block in chunks(connection, MINUTE, at, (shape,)):
                with suppress(Damaged):
                    hour = block_format.merged(block_format.unpack_hour(block), hour)  # noqa: PLW2901
            keep(connection, MINUTE, at, shape, block_format.pack_hour(hour))
        rows = [(at // DAY * DAY, shape) for _, shape, _ in hours]
        connection.executemany("INSERT OR IGNORE INTO due VALUES(?,?)", rows)
        self.take_up(connection, hours)
        asked = "SELECT at FROM minute WHERE part=? AND at>=? AND at<?"
        bits = sum(1 << (one % HOUR // MINUTE) for (one,) in connection.execute(asked, (part, at, at + HOUR)))
        connection.execute(
            "INSERT INTO rolled VALUES(?,?,?) ON CONFLICT(at, part) DO UPDATE SET minutes=minutes|excluded.minutes",
            (at, part, bits),
        )
        connection.execute("DELETE FROM minute WHERE part=? AND at>=? AND at<?", (part, at, at + HOUR))

    def take_up(self, connection: sqlite3.Connection, hours: Sequence[tuple[int, int, block_format.Hour]]) -> None:
        """All that is learned from the minutes of some hours, each of which comes here once."""
        self.add_up(connection, hours)
        idle_run_store.roll(connection, hours, self.idle_percent)

    def add_up(self, connection: sqlite3.Connection, hours: Sequence[tuple[int, int, block_format.Hour]]) -> None:
        """Add the minutes of some hours to the sums."""
        shares, seen = [], []
        hour_shares: dict[tuple[int, str, str], list[int]] = {}
        hour_seen: dict[tuple[int, str], list[int]] = {}
        name = self.name
        for (at, host), tally in tally_of(connection, hours, self.zone).items():
            for (day, model, person), row in tally.shares.items():
                key = (day.toordinal(), name(connection, host), name(connection, model), name(connection, person))
                shares.append((*key, *row))
                add(hour_shares, (at, model, person), row)
            for (day, model), row in tally.seen.items():
                seen.append((day.toordinal(), name(connection, host), name(connection, model), *row))
                add(hour_seen, (at, model), row)
        by_hour = [
            (at, name(connection, model), name(connection, person), *row)
            for (at, model, person), row in hour_shares.items()
        ]
        upsert(connection, "share", "day, host, model, person", ADD_SHARE, shares)
        upsert(connection, "seen", "day, host, model", ADD_SEEN, seen)
        upsert(connection, "hour_share", "at, model, person", ADD_SHARE, by_hour)
        rows = [(at, name(connection, model), *row) for (at, model), row in hour_seen.items()]
        upsert(connection, "hour_seen", "at, model", ADD_SEEN, rows)

    def name(self, connection: sqlite3.Connection, text: str) -> int:
        """The number of a name."""
        if text not in self.names:
            connection.execute("INSERT OR IGNORE INTO name(text) VALUES(?)", (text,))
            (self.names[text],) = connection.execute("SELECT id FROM name WHERE text=?", (text,)).fetchone()
        return self.names[text]


def upsert(
    connection: sqlite3.Connection, table: str, key: str, adding: str, rows: Sequence[tuple[object, ...]]
) -> None:
    """Add to the sums of a table."""
    if rows:
        marks = ",".join("?" * len(rows[0]))
        statement = f"INSERT INTO {table} VALUES({marks}) ON CONFLICT({key}) DO UPDATE SET {adding}"
        connection.executemany(statement, rows)


def keep(connection: sqlite3.Connection, step: int, at: int, shape: int, block: bytes) -> None:
    """A chunk, in the place of the one that was there."""
    connection.execute("INSERT OR REPLACE INTO chunk VALUES(?,?,?,?)", (step, at, shape, block))


def roll_day(connection: sqlite3.Connection, day: int, shape: int) -> None:
    """The hours of a day that is over become part of the longer chunks of a host."""
    hours = []
    for at in range(day, day + DAY, HOUR):
        for _, block in chunks(connection, MINUTE, at, (shape,)):
            with suppress(Damaged):
                hours.append((at, block_format.unpack_hour(block)))
    for step in (300, HOUR) if hours else ():
        start = day // COVERS[step] * COVERS[step]
        found = buckets.empty(COVERS[step] // step, hours[0][1].gpus)
        for _, block in chunks(connection, step, start, (shape,)):
            with suppress(Damaged):
                found = buckets.unpack_slots(block)
        for at, hour in hours:
            buckets.put(found, (at - start) // step, buckets.slots_of(hour, step // MINUTE))
        keep(connection, step, start, shape, buckets.pack_slots(found))
    connection.execute("DELETE FROM due WHERE at=? AND shape=?", (day, shape))
