"""What happened to GPUs, in state/history.db: written by the builder when something changed, and read back."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from site_builder.health import format
from site_builder.health.model import BEFORE, NAMELESS, NO_LINES, Event, HostSigns, HostState, Line, Lines, Look, Signed
from site_builder.history import idle_run_store
from site_builder.history.block_format import Damaged
from site_builder.history.database import transaction
from site_builder.history.reader import AHEAD, HOUR, MINUTE, Past
from site_builder.history.writer import History

# Of what its power limit does to one GPU, and of all else; of one host, and of all hosts.
MOST_OF_GPU = {True: 100, False: 1000}
MOST_OF_HOST = 10_000
MOST = 200_000
# In one minute of one host: it can claim anything.
MOST_AT_ONCE = 256
# As many new ones do not wait for the hour to be over.
SOON = 20_000
# Seconds of a build for what changed; the next one goes on.
WITHIN = 0.1
# GPUs that a host had before, whose time lines are read with its own.
MOST_HAD = 8
POWER = "kind='power'"
COLUMNS = "host, number, gpu, place, kind, value, at, since, until, by"
MARKS = ",".join("?" * len(Event._fields))
Compare = Callable[["HostState | None", HostSigns, Look, Mapping[str, str]], tuple[HostState, list[Event]]]
Where = tuple[str, tuple[object, ...]]


class Events:
    """Reads; `recorded` is the minute that was written last, by one who writes."""

    recorded = -1

    def __init__(self, past: Past) -> None:
        """From a history."""
        self.past = past

    def read(self, since: float, until: float) -> list[Event]:
        """What happened on all hosts from one moment to another, or went on then, the oldest first."""
        asked = f"SELECT {COLUMNS} FROM event WHERE at<? AND (until IS NULL OR until>=?) ORDER BY at, host, number"  # noqa: S608 # all words are ours
        limits = (int(until), int(since))
        return self.past.ask(lambda connection: [event_of(*row) for row in connection.execute(asked, limits)], [])

    def of_host(self, host: str, keys: Sequence[str], now: float, most: int, grave: Iterable[str] = ()) -> Lines:
        """The last of each GPU that a host has, wherever it was then, and of those that it had; so many each.

        What is grave is among them also where it is older, as many again.
        """
        asked = Reading(host, int(now), most, tuple(grave))
        return self.past.ask(lambda connection: asked.lines(connection, keys), NO_LINES)


def event_of(*row: object) -> Event:
    """A row of the table."""
    return Event(*row)._replace(value=format.unpack_value(row[5]))  # type: ignore[arg-type]


class Reading:
    """What is asked of a host's time lines."""

    def __init__(self, host: str, now: int, most: int, grave: tuple[str, ...]) -> None:
        """Of each line so many, and as many that are grave."""
        self.host, self.now, self.most, self.grave = host, now, most, grave

    def lines(self, connection: sqlite3.Connection, keys: Sequence[str]) -> Lines:
        """All of them; those of which nothing is told are left out."""
        row = connection.execute("SELECT first FROM counter WHERE host=?", (self.host,)).fetchone()
        first = min(row[0], self.now) if row else None
        asked = "SELECT gpu FROM event WHERE host=? AND gpu!='' GROUP BY gpu ORDER BY max(number) DESC"
        there = set(keys)
        had = [key for (key,) in connection.execute(asked, (self.host,)) if key not in there]
        found = [self.line(connection, key, first or 0) for key in ("", *keys, *had[:MOST_HAD])]
        return Lines(first, tuple(one for one in found if one.events), len(had[MOST_HAD:]))

    def line(self, connection: sqlite3.Connection, key: str, first: int) -> Line:
        """One of them."""
        where, told = self.where(connection, key, first)
        some = f"SELECT host, number FROM event WHERE {where}"  # noqa: S608 # the same
        order = "ORDER BY until IS NOT NULL, until DESC, number DESC LIMIT ?"
        found = dict.fromkeys(connection.execute(f"{some} {order}", (*told, self.most)))
        total = len(found)
        if total == self.most:
            (total,) = connection.execute(f"SELECT count(*) FROM event WHERE {where}", told).fetchone()  # noqa: S608 # the same
            grave = f"{some} AND kind IN ({','.join('?' * len(self.grave))}) {order}"
            found.update(dict.fromkeys(connection.execute(grave, (*told, *self.grave, self.most))))
        asked = f"SELECT {COLUMNS} FROM event WHERE host=? AND number=?"  # noqa: S608 # the same
        rows = [connection.execute(asked, one).fetchone() for one in found]
        return Line(key, tuple(self.believed(event_of(*row)) for row in rows), total)

    def where(self, connection: sqlite3.Connection, key: str, first: int) -> Where:
        """What belongs to a GPU: what its host tells, and what others told before it came here.

        What another host tells of it while it is here is not believed. One without a name is only that of its host.
        """
        ahead = self.now + AHEAD
        if not key or key.startswith(NAMELESS):
            return "gpu=? AND host=? AND (at<=? OR until IS NULL)", (key, self.host, ahead)
        asked = "SELECT max(coalesce(by, until, at)) FROM event WHERE host=? AND gpu=? AND kind IN ('new', 'gone')"
        (came,) = connection.execute(asked, (self.host, key)).fetchone()
        where = "gpu=? AND (host=? AND (at<=? OR until IS NULL) OR host!=? AND until<=?)"
        return where, (key, self.host, ahead, self.host, first if came is None else came)

    def believed(self, event: Event) -> Event:
        """One that goes on, but began in a time to come, was told by a clock that ran ahead."""
        ahead = event.until is None and event.at > self.now + AHEAD
        return event._replace(at=self.now, since=BEFORE) if ahead else event


class EventLog(Events):
    """Writes, for one builder at a time, into a history that is recorded beside it."""

    def __init__(self, history: History, compare: Compare) -> None:
        """What happened is found by `compare`."""
        super().__init__(history)
        self.history, self.compare = history, compare
        self.source: tuple[sqlite3.Connection, int] | None = None  # of which file, as others left it
        self.known: dict[str, bytes | None] = {}  # the signs of each host in it, None while it is away
        self.looked: dict[str, int] = {}  # when each host was last compared
        self.missed: int | None = None  # the last minute before those in which we failed
        self.added = 0

    def record(self, told: Mapping[str, Signed | None], now: float, within: float = WITHIN) -> None:
        """The signs of each host, once a minute, after the minute itself; None of one that is not fresh.

        What takes longer than `within`, in seconds, is left for the next build of the minute.
        """
        at = int(now) // MINUTE * MINUTE
        if at == self.recorded or self.history.recorded != at:
            return
        done = True

        def work() -> None:
            nonlocal done
            done = self.write(told, at, time.monotonic() + within)

        if not self.history.attempt("events", work, now, "what it tells of the health of GPUs comes later"):
            self.missed = self.recorded if self.missed is None else self.missed
        elif done:
            self.recorded, self.missed = at, None

    def write(self, told: Mapping[str, Signed | None], at: int, end: float) -> bool:
        """What changed since the last time, by any builder, in one transaction; whether there was time for all."""
        connection = self.history.connect()
        self.recall(connection)
        changed = {host: one for host, one in told.items() if one and self.known.get(host) != one.signs}
        away = [host for host, signs in self.known.items() if signs is not None and not told.get(host)]
        left = {host for host in changed if self.looked.get(host) != at}
        if left or away:
            connection.execute("PRAGMA synchronous=FULL")  # what a power cut takes is no more than a minute
            with transaction(connection):
                self.recall(connection)  # another builder may have been faster
                before = self.before(connection, at)
                leave = [(at if before is None else before, host) for host in away]
                connection.executemany("UPDATE counter SET away=? WHERE host=? AND away IS NULL", leave)
                # those first that have waited longest
                for host in sorted(left, key=lambda host: self.looked.get(host, -1)):
                    self.take(connection, changed[host], Look(host, at, before, changed[host].taken))
                    self.looked[host] = at
                    left.remove(host)
                    if time.monotonic() > end:
                        break
            self.known.update(dict.fromkeys(away))
        self.trim(connection, at)
        return not left

    def recall(self, connection: sqlite3.Connection) -> None:
        """Read what the file knows, where it is another one or another builder has written."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if self.source is None or self.source[0] is not connection or self.source[1] != version:
            self.known = dict(connection.execute("SELECT host, CASE WHEN away IS NULL THEN signs END FROM counter"))
            self.source = connection, version

    def before(self, connection: sqlite3.Connection, at: int) -> int | None:
        """The minute in which somebody looked last; where we failed since, our own last one."""
        (found,) = connection.execute("SELECT max(at) FROM minute WHERE at<?", (at,)).fetchone()
        if found is None or self.missed is None or self.missed < 0:
            return None if found is None else int(found)
        return min(int(found), self.missed)

    def take(self, connection: sqlite3.Connection, one: Signed, look: Look) -> None:
        """A host that changed; a fault of ours must not cost the others."""
        what = f"events of {look.host}"
        try:
            if self.update(connection, one, look):
                self.known[look.host] = one.signs  # the card's own, so that they are not kept twice
            self.history.failed.pop(what, None)
        except sqlite3.Error:
            raise
        except Exception as error:
            why = f"a fault of gpuboard's own at {look.host} ({error!r:.200})"
            self.history.failed[what] = (why, "the health of its GPUs is not told")

    def update(self, connection: sqlite3.Connection, one: Signed, look: Look) -> bool:
        """A host that changed, compared with what the file says; False if it came too late to tell anything."""
        asked = "SELECT first, away, signs, state FROM counter WHERE host=?"
        first, away, signs, blob = connection.execute(asked, (look.host,)).fetchone() or (look.at, None, None, None)
        if signs == one.signs and away is None:
            return True
        state = None if blob is None else state_of(blob)
        if state is not None:
            look = look._replace(before=look.before if away is None else away)
        elif blob is not None:  # what went on then is over, as far as anybody can tell
            close(connection, look)
        told = format.unpack_signs(one.signs)
        new = [gpu.key for gpu in told.gpus if state and gpu.key not in state.gpus]
        number = last_number(connection, look.host)
        after, events = self.compare(state, told, look, elsewhere(connection, look.host, new))
        if after is state:
            return False
        if state is None and number:  # no number is given twice
            after, events = shifted(after, events, number)
        row = (look.host, first, None, one.signs, format.pack_state(after))
        self.added += put(connection, events[:MOST_AT_ONCE])
        connection.execute("INSERT OR REPLACE INTO counter VALUES(?,?,?,?,?)", row)
        return True

    def trim(self, connection: sqlite3.Connection, at: int) -> None:
        """Once an hour, or where many came: no more than there is room for, and as much room for each host."""
        row = connection.execute("SELECT at FROM done WHERE what='events'").fetchone()
        if row and row[0] == at // HOUR * HOUR and self.added < SOON:
            return
        self.added = 0
        with transaction(connection):
            counts = dict(connection.execute("SELECT host, count(*) FROM event GROUP BY host"))
            share = MOST_OF_HOST
            while sum(min(count, share) for count in counts.values()) > MOST:
                share = share * 3 // 4
            for host, count in counts.items():
                if count > min(share, *MOST_OF_GPU.values()):
                    trim_host(connection, host, share)
            connection.execute("INSERT OR REPLACE INTO done VALUES('events', ?)", (at // HOUR * HOUR,))


def state_of(blob: bytes) -> HostState | None:
    """What a host is compared with; None where it is damaged."""
    try:
        return format.unpack_state(blob)
    except Damaged:
        return None


def last_number(connection: sqlite3.Connection, host: str) -> int:
    """The number of its last event."""
    (number,) = connection.execute("SELECT max(number) FROM event WHERE host=?", (host,)).fetchone()
    return number or 0


def close(connection: sqlite3.Connection, look: Look) -> None:
    """End what goes on in a host, at some time since somebody looked."""
    before = look.at if look.before is None else look.before
    connection.execute(
        "UPDATE event SET until=max(at, ?), by=max(at, ?) WHERE host=? AND until IS NULL", (before, look.at, look.host)
    )


def elsewhere(connection: sqlite3.Connection, host: str, keys: Sequence[str]) -> dict[str, str]:
    """Which other host had each GPU last: by what history knows of it, or by what happened to it."""
    several = [key for key in keys[:MOST_AT_ONCE] if not key.startswith(NAMELESS)]
    found = {key: known.host for key, known in idle_run_store.read(connection, several).items()}
    asked = "SELECT host FROM event WHERE gpu=? ORDER BY at DESC LIMIT 1"
    for key in several:
        for (other,) in connection.execute(asked, (key,)) if key not in found else ():
            found[key] = other
    return {key: other for key, other in found.items() if other != host}


def shifted(state: HostState, events: Iterable[Event], step: int) -> tuple[HostState, list[Event]]:
    """The same with higher numbers."""
    gpus = {
        key: gpu._replace(last={kind: one._replace(number=one.number + step) for kind, one in gpu.last.items()})
        for key, gpu in state.gpus.items()
    }
    moved = [one._replace(number=one.number + step) for one in events]
    return state._replace(number=state.number + step, gpus=gpus), moved


def put(connection: sqlite3.Connection, events: Sequence[Event]) -> int:
    """Write events, each in the place of what was told of it before; how many."""
    rows = [tuple(one._replace(value=format.pack_value(one.value))) for one in events]  # type: ignore[arg-type]
    connection.executemany(f"INSERT OR REPLACE INTO event({COLUMNS}) VALUES({MARKS})", rows)
    return len(rows)


def trim_host(connection: sqlite3.Connection, host: str, most: int) -> None:
    """Let go of the oldest: first what is over, and power before all else."""
    asked = f"SELECT gpu, {POWER}, count(*) FROM event WHERE host=? GROUP BY 1, 2"  # noqa: S608 # the same
    for gpu, power, count in connection.execute(asked, (host,)).fetchall():
        drop(connection, (f"host=? AND gpu=? AND ({POWER})=?", (host, gpu, power)), count - MOST_OF_GPU[bool(power)])
    (count,) = connection.execute("SELECT count(*) FROM event WHERE host=?", (host,)).fetchone()
    drop(connection, ("host=?", (host,)), count - most)


def drop(connection: sqlite3.Connection, where: Where, count: int) -> None:
    """Delete so many of some events of one host."""
    if count > 0:
        some = f"SELECT number FROM event WHERE {where[0]} ORDER BY until IS NULL, NOT {POWER}, number LIMIT ?"  # noqa: S608 # the same
        host = where[1][0]
        statement = f"DELETE FROM event WHERE host=? AND number IN ({some})"  # noqa: S608 # the same
        connection.execute(statement, (host, *where[1], count))
