"""Store health events in history.db."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import orjson

from site_builder.core.formatting import HOUR, MINUTE
from site_builder.core.model import GpuNumber
from site_builder.health.model import (
    BEFORE_FIRST_CHECK,
    COUNT_NAMES,
    NO_TIMELINES,
    SPAN_KINDS,
    UNNAMED_KEY_PREFIX,
    EventTimeline,
    EventValue,
    GpuHealthMetrics,
    GpuHealthState,
    HealthEvent,
    HostCheck,
    HostHealthMetrics,
    HostHealthState,
    HostTimelines,
    PackedHealthMetrics,
)
from site_builder.history import idle_runs
from site_builder.history.block_format import DamagedBlockError
from site_builder.history.database import begin_transaction
from site_builder.history.reader import MAX_CLOCK_AHEAD_S, HistoryReader
from site_builder.history.writer import HistoryWriter

DECODE_ERRORS = (ValueError, TypeError, AttributeError, IndexError, KeyError)


def pack_health_metrics(driver: str | None, gpus: Sequence[tuple[object, ...]], whole: bool = True) -> bytes:
    """The signs of a host, each row with what GpuSigns has; the same signs are the same bytes."""
    return orjson.dumps([driver, gpus, whole], default=list)


def unpack_health_metrics(data: bytes) -> HostHealthMetrics:
    """The same, read back."""
    try:
        driver, gpus, whole = orjson.loads(data)
        return HostHealthMetrics(driver, tuple(build_gpu_health_metrics(*one) for one in gpus), whole)
    except DECODE_ERRORS as error:
        raise DamagedBlockError(data) from error


def build_gpu_health_metrics(*cells: object) -> GpuHealthMetrics:
    """A GPU's; lists are tuples again."""
    return GpuHealthMetrics(*(tuple(one) if isinstance(one, list) else one for one in cells))  # type: ignore[arg-type]


def pack_health_state(state: HostHealthState) -> bytes:
    """What the next look at a host is compared with."""
    return orjson.dumps(state, default=list)


def unpack_health_state(data: bytes) -> HostHealthState:
    """The same, read back."""
    try:
        at, taken, number, driver, gpus = orjson.loads(data)
        found = {str(key): build_gpu_health_state(*one) for key, one in gpus.items()}
        return HostHealthState(int(at), taken and float(taken), int(number), driver and str(driver), found)
    except DECODE_ERRORS as error:
        raise DamagedBlockError(data) from error


def build_gpu_health_state(
    index: GpuNumber, bus: str | None, counts: list[int | None], last: dict[str, list[object]]
) -> GpuHealthState:
    """A GPU's; an error where it is not what was written."""
    if len(counts) != len(COUNT_NAMES) or any(one is not None and not isinstance(one, int) for one in counts):
        raise ValueError(counts)
    return GpuHealthState(
        index, bus, tuple(counts), {kind: build_latest_event(kind, one) for kind, one in last.items()}
    )


def build_latest_event(kind: str, cells: list[object]) -> HealthEvent:
    """An event that may go on; an error where it cannot be compared with."""
    event = HealthEvent(*cells)._replace(value=tuple(cells[5]))  # type: ignore[arg-type]
    times = (event.number, event.began_at, 0 if event.ended_at is None else event.ended_at)
    counted = kind not in SPAN_KINDS or kind == "power"
    if event.kind != kind or not all(isinstance(one, int) for one in (*times, *event.value[: 2 * counted])):
        raise ValueError(cells)
    return event


def pack_event_value(value: EventValue) -> bytes:
    """What there is to say of an event."""
    return orjson.dumps(value)


def unpack_event_value(data: bytes) -> EventValue:
    """The same, read back; nothing where it is damaged."""
    try:
        return tuple(orjson.loads(data))
    except (ValueError, TypeError):
        return ()


# Of what its power limit does to one GPU, and of all else; of one host, and of all hosts.
MAX_EVENTS_PER_GPU = {True: 100, False: 1000}
MAX_EVENTS_PER_HOST = 10_000
MAX_EVENTS = 200_000
# In one minute of one host: it can claim anything.
MAX_EVENTS_AT_ONCE = 256
# As many new ones do not wait for the hour to be over.
TRIM_AFTER_EVENTS = 20_000
# Seconds of a build for what changed; the next one goes on.
RECORD_TIME_LIMIT_S = 0.1
# GPUs that a host had before, whose time lines are read with its own.
MAX_FORMER_GPUS = 8
POWER_SQL = "kind='power'"
EVENT_COLUMNS = "host, number, gpu, place, kind, value, at, since, until, by"
EVENT_PLACEHOLDERS = ",".join("?" * len(HealthEvent._fields))
CompareHealth = Callable[
    ["HostHealthState | None", HostHealthMetrics, HostCheck, Mapping[str, str]],
    tuple[HostHealthState, list[HealthEvent]],
]
SqlCondition = tuple[str, tuple[object, ...]]


class EventReader:
    """Reads; `recorded` is the minute that was written last, by one who writes."""

    recorded_minute = -1

    def __init__(self, past: HistoryReader) -> None:
        """From a history."""
        self.past = past

    def read_events(self, since: float, until: float) -> list[HealthEvent]:
        """What happened on all hosts from one moment to another, or went on then, the oldest first."""
        asked = (
            f"SELECT {EVENT_COLUMNS} FROM event WHERE at<? AND (until IS NULL OR until>=?) ORDER BY at, host, number"  # noqa: S608 # all words are ours
        )
        limits = (int(until), int(since))
        return self.past.query(lambda connection: [build_event(*row) for row in connection.execute(asked, limits)], [])

    def read_timelines(
        self, host: str, keys: Sequence[str], now: float, most: int, critical: Iterable[str] = ()
    ) -> HostTimelines:
        """The last of each GPU that a host has, wherever it was then, and of those that it had; so many each.

        What is critical is among them also where it is older, as many again.
        """
        asked = TimelineQuery(host, int(now), most, tuple(critical))
        return self.past.query(lambda connection: asked.read_timelines(connection, keys), NO_TIMELINES)


def build_event(*row: object) -> HealthEvent:
    """A row of the table."""
    return HealthEvent(*row)._replace(value=unpack_event_value(row[5]))  # type: ignore[arg-type]


class TimelineQuery:
    """What is asked of a host's time lines."""

    def __init__(self, host: str, now: int, most: int, critical: tuple[str, ...]) -> None:
        """Of each line so many, and as many that are critical."""
        self.host, self.now, self.max_events, self.critical_kinds = host, now, most, critical

    def read_timelines(self, connection: sqlite3.Connection, keys: Sequence[str]) -> HostTimelines:
        """All of them; those of which nothing is told are left out."""
        row = connection.execute("SELECT first FROM counter WHERE host=?", (self.host,)).fetchone()
        first = min(row[0], self.now) if row else None
        asked = "SELECT gpu FROM event WHERE host=? AND gpu!='' GROUP BY gpu ORDER BY max(number) DESC"
        there = set(keys)
        had = [key for (key,) in connection.execute(asked, (self.host,)) if key not in there]
        found = [self.read_timeline(connection, key, first or 0) for key in ("", *keys, *had[:MAX_FORMER_GPUS])]
        return HostTimelines(first, tuple(one for one in found if one.events), len(had[MAX_FORMER_GPUS:]))

    def read_timeline(self, connection: sqlite3.Connection, key: str, first: int) -> EventTimeline:
        """One of them."""
        where, told = self.build_condition(connection, key, first)
        some = f"SELECT host, number FROM event WHERE {where}"  # noqa: S608 # the same
        order = "ORDER BY until IS NOT NULL, until DESC, number DESC LIMIT ?"
        found = dict.fromkeys(connection.execute(f"{some} {order}", (*told, self.max_events)))
        total = len(found)
        if total == self.max_events:
            (total,) = connection.execute(f"SELECT count(*) FROM event WHERE {where}", told).fetchone()  # noqa: S608 # the same
            critical = f"{some} AND kind IN ({','.join('?' * len(self.critical_kinds))}) {order}"
            found.update(dict.fromkeys(connection.execute(critical, (*told, *self.critical_kinds, self.max_events))))
        asked = f"SELECT {EVENT_COLUMNS} FROM event WHERE host=? AND number=?"  # noqa: S608 # the same
        rows = [connection.execute(asked, one).fetchone() for one in found]
        return EventTimeline(key, tuple(self.correct_start(build_event(*row)) for row in rows), total)

    def build_condition(self, connection: sqlite3.Connection, key: str, first: int) -> SqlCondition:
        """What belongs to a GPU: what its host tells, and what others told before it came here.

        What another host tells of it while it is here is not believed. One without a name is only that of its host.
        """
        ahead = self.now + MAX_CLOCK_AHEAD_S
        if not key or key.startswith(UNNAMED_KEY_PREFIX):
            return "gpu=? AND host=? AND (at<=? OR until IS NULL)", (key, self.host, ahead)
        asked = "SELECT max(coalesce(by, until, at)) FROM event WHERE host=? AND gpu=? AND kind IN ('new', 'gone')"
        (came,) = connection.execute(asked, (self.host, key)).fetchone()
        where = "gpu=? AND (host=? AND (at<=? OR until IS NULL) OR host!=? AND until<=?)"
        return where, (key, self.host, ahead, self.host, first if came is None else came)

    def correct_start(self, event: HealthEvent) -> HealthEvent:
        """One that goes on, but began in a time to come, was told by a clock that ran ahead."""
        ahead = event.ended_at is None and event.began_at > self.now + MAX_CLOCK_AHEAD_S
        return event._replace(began_at=self.now, began_after=BEFORE_FIRST_CHECK) if ahead else event


class EventLog(EventReader):
    """Writes, for one builder at a time, into a history that is recorded beside it."""

    def __init__(self, history: HistoryWriter, compare: CompareHealth) -> None:
        """What happened is found by `compare`."""
        super().__init__(history)
        self.history, self.compare = history, compare
        self.loaded_from: tuple[sqlite3.Connection, int] | None = None  # of which file, as others left it
        self.known_metrics: dict[str, bytes | None] = {}  # the signs of each host in it, None while it is away
        self.compared_at: dict[str, int] = {}  # when each host was last compared
        self.last_good_minute: int | None = None  # the last minute before those in which we failed
        self.added_count = 0

    def record(
        self, told: Mapping[str, PackedHealthMetrics | None], now: float, within: float = RECORD_TIME_LIMIT_S
    ) -> None:
        """The signs of each host, once a minute, after the minute itself; None of one that is not fresh.

        What takes longer than `within`, in seconds, is left for the next build of the minute.
        """
        at = int(now) // MINUTE * MINUTE
        if at == self.recorded_minute or self.history.recorded_at != at:
            return
        done = True

        def work() -> None:
            nonlocal done
            done = self.write_changes(told, at, time.monotonic() + within)

        if not self.history.attempt("events", work, now, "what it tells of the health of GPUs comes later"):
            self.last_good_minute = self.recorded_minute if self.last_good_minute is None else self.last_good_minute
        elif done:
            self.recorded_minute, self.last_good_minute = at, None

    def write_changes(self, told: Mapping[str, PackedHealthMetrics | None], at: int, end: float) -> bool:
        """What changed since the last time, by any builder, in one transaction; whether there was time for all."""
        connection = self.history.connect()
        self.reload_known(connection)
        changed = {host: one for host, one in told.items() if one and self.known_metrics.get(host) != one.packed}
        away = [host for host, signs in self.known_metrics.items() if signs is not None and not told.get(host)]
        left = {host for host in changed if self.compared_at.get(host) != at}
        if left or away:
            connection.execute("PRAGMA synchronous=FULL")  # what a power cut takes is no more than a minute
            with begin_transaction(connection):
                self.reload_known(connection)  # another builder may have been faster
                before = self.find_previous_check(connection, at)
                leave = [(at if before is None else before, host) for host in away]
                connection.executemany("UPDATE counter SET away=? WHERE host=? AND away IS NULL", leave)
                # those first that have waited longest
                for host in sorted(left, key=lambda host: self.compared_at.get(host, -1)):
                    self.update_host_safely(
                        connection, changed[host], HostCheck(host, at, before, changed[host].taken_at)
                    )
                    self.compared_at[host] = at
                    left.remove(host)
                    if time.monotonic() > end:
                        break
            self.known_metrics.update(dict.fromkeys(away))
        self.trim_events(connection, at)
        return not left

    def reload_known(self, connection: sqlite3.Connection) -> None:
        """Read what the file knows, where it is another one or another builder has written."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if self.loaded_from is None or self.loaded_from[0] is not connection or self.loaded_from[1] != version:
            self.known_metrics = dict(
                connection.execute("SELECT host, CASE WHEN away IS NULL THEN signs END FROM counter")
            )
            self.loaded_from = connection, version

    def find_previous_check(self, connection: sqlite3.Connection, at: int) -> int | None:
        """The minute in which somebody looked last; where we failed since, our own last one."""
        (found,) = connection.execute("SELECT max(at) FROM minute WHERE at<?", (at,)).fetchone()
        if found is None or self.last_good_minute is None or self.last_good_minute < 0:
            return None if found is None else int(found)
        return min(int(found), self.last_good_minute)

    def update_host_safely(self, connection: sqlite3.Connection, one: PackedHealthMetrics, look: HostCheck) -> None:
        """A host that changed; a fault of ours must not cost the others."""
        what = f"events of {look.host}"
        try:
            if self.update_host(connection, one, look):
                self.known_metrics[look.host] = one.packed  # the card's own, so that they are not kept twice
            self.history.failures.pop(what, None)
        except sqlite3.Error:
            raise
        except Exception as error:
            why = f"a fault of gpuboard's own at {look.host} ({error!r:.200})"
            self.history.failures[what] = (why, "the health of its GPUs is not told")

    def update_host(self, connection: sqlite3.Connection, one: PackedHealthMetrics, look: HostCheck) -> bool:
        """A host that changed, compared with what the file says; False if it came too late to tell anything."""
        asked = "SELECT first, away, signs, state FROM counter WHERE host=?"
        first, away, signs, blob = connection.execute(asked, (look.host,)).fetchone() or (
            look.checked_at,
            None,
            None,
            None,
        )
        if signs == one.packed and away is None:
            return True
        state = None if blob is None else unpack_known_state(blob)
        if state is not None:
            look = look._replace(previous_check_at=look.previous_check_at if away is None else away)
        elif blob is not None:  # what went on then is over, as far as anybody can tell
            close_open_events(connection, look)
        told = unpack_health_metrics(one.packed)
        new = [gpu.key for gpu in told.gpus if state and gpu.key not in state.gpus]
        number = find_last_event_number(connection, look.host)
        after, events = self.compare(state, told, look, find_previous_hosts(connection, look.host, new))
        if after is state:
            return False
        if state is None and number:  # no number is given twice
            after, events = renumber_events(after, events, number)
        row = (look.host, first, None, one.packed, pack_health_state(after))
        self.added_count += insert_events(connection, events[:MAX_EVENTS_AT_ONCE])
        connection.execute("INSERT OR REPLACE INTO counter VALUES(?,?,?,?,?)", row)
        return True

    def trim_events(self, connection: sqlite3.Connection, at: int) -> None:
        """Once an hour, or where many came: no more than there is room for, and as much room for each host."""
        row = connection.execute("SELECT at FROM done WHERE what='events'").fetchone()
        if row and row[0] == at // HOUR * HOUR and self.added_count < TRIM_AFTER_EVENTS:
            return
        self.added_count = 0
        with begin_transaction(connection):
            counts = dict(connection.execute("SELECT host, count(*) FROM event GROUP BY host"))
            share = MAX_EVENTS_PER_HOST
            while sum(min(count, share) for count in counts.values()) > MAX_EVENTS:
                share = share * 3 // 4
            for host, count in counts.items():
                if count > min(share, *MAX_EVENTS_PER_GPU.values()):
                    trim_host_events(connection, host, share)
            connection.execute("INSERT OR REPLACE INTO done VALUES('events', ?)", (at // HOUR * HOUR,))


def unpack_known_state(blob: bytes) -> HostHealthState | None:
    """What a host is compared with; None where it is damaged."""
    try:
        return unpack_health_state(blob)
    except DamagedBlockError:
        return None


def find_last_event_number(connection: sqlite3.Connection, host: str) -> int:
    """The number of its last event."""
    (number,) = connection.execute("SELECT max(number) FROM event WHERE host=?", (host,)).fetchone()
    return number or 0


def close_open_events(connection: sqlite3.Connection, look: HostCheck) -> None:
    """End what goes on in a host, at some time since somebody looked."""
    before = look.checked_at if look.previous_check_at is None else look.previous_check_at
    connection.execute(
        "UPDATE event SET until=max(at, ?), by=max(at, ?) WHERE host=? AND until IS NULL",
        (before, look.checked_at, look.host),
    )


def find_previous_hosts(connection: sqlite3.Connection, host: str, keys: Sequence[str]) -> dict[str, str]:
    """Which other host had each GPU last: by what history knows of it, or by what happened to it."""
    several = [key for key in keys[:MAX_EVENTS_AT_ONCE] if not key.startswith(UNNAMED_KEY_PREFIX)]
    found = {key: known.host for key, known in idle_runs.read_runs(connection, several).items()}
    asked = "SELECT host FROM event WHERE gpu=? ORDER BY at DESC LIMIT 1"
    for key in several:
        for (other,) in connection.execute(asked, (key,)) if key not in found else ():
            found[key] = other
    return {key: other for key, other in found.items() if other != host}


def renumber_events(
    state: HostHealthState, events: Iterable[HealthEvent], step: int
) -> tuple[HostHealthState, list[HealthEvent]]:
    """The same with higher numbers."""
    gpus = {
        key: gpu._replace(
            latest_events={kind: one._replace(number=one.number + step) for kind, one in gpu.latest_events.items()}
        )
        for key, gpu in state.gpus.items()
    }
    moved = [one._replace(number=one.number + step) for one in events]
    return state._replace(last_event_number=state.last_event_number + step, gpus=gpus), moved


def insert_events(connection: sqlite3.Connection, events: Sequence[HealthEvent]) -> int:
    """Write events, each in the place of what was told of it before; how many."""
    rows = [tuple(one._replace(value=pack_event_value(one.value))) for one in events]  # type: ignore[arg-type]
    connection.executemany(f"INSERT OR REPLACE INTO event({EVENT_COLUMNS}) VALUES({EVENT_PLACEHOLDERS})", rows)
    return len(rows)


def trim_host_events(connection: sqlite3.Connection, host: str, most: int) -> None:
    """Let go of the oldest: first what is over, and power before all else."""
    asked = f"SELECT gpu, {POWER_SQL}, count(*) FROM event WHERE host=? GROUP BY 1, 2"  # noqa: S608 # the same
    for gpu, power, count in connection.execute(asked, (host,)).fetchall():
        delete_oldest_events(
            connection,
            (f"host=? AND gpu=? AND ({POWER_SQL})=?", (host, gpu, power)),
            count - MAX_EVENTS_PER_GPU[bool(power)],
        )
    (count,) = connection.execute("SELECT count(*) FROM event WHERE host=?", (host,)).fetchone()
    delete_oldest_events(connection, ("host=?", (host,)), count - most)


def delete_oldest_events(connection: sqlite3.Connection, where: SqlCondition, count: int) -> None:
    """Delete so many of some events of one host."""
    if count > 0:
        some = f"SELECT number FROM event WHERE {where[0]} ORDER BY until IS NULL, NOT {POWER_SQL}, number LIMIT ?"  # noqa: S608 # the same
        host = where[1][0]
        statement = f"DELETE FROM event WHERE host=? AND number IN ({some})"  # noqa: S608 # the same
        connection.execute(statement, (host, *where[1], count))
