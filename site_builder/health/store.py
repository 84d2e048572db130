"""Store health events in history.db."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import orjson

from site_builder.core.formatting import HOUR, MINUTE
from site_builder.core.model import Xid
from site_builder.health import model
from site_builder.health.events import find_health_events
from site_builder.history import idle_runs
from site_builder.history.block_format import DamagedBlockError
from site_builder.history.database import begin_database_transaction
from site_builder.history.reader import MAX_CLOCK_AHEAD_S, HistoryReader
from site_builder.history.writer import HistoryWriter

DECODE_ERRORS = (ValueError, TypeError, AttributeError, IndexError, KeyError)
# Limits for the events of one GPU by how frequent they are: power (1), errors of programs (2), all others (0); for one
# host, and for all hosts.
MAX_EVENTS_PER_GPU = {1: 100, 2: 100, 0: 1000}
MAX_EVENTS_PER_HOST = 10_000
MAX_EVENTS = 200_000
# New events of one host in one minute: it can claim anything.
MAX_EVENTS_AT_ONCE = 256
# Events are trimmed every hour, or after this many new ones.
TRIM_AFTER_EVENTS = 20_000
# Seconds of a build; the next build continues.
RECORD_TIME_LIMIT_S = 0.1
# Former GPUs of a host whose time lines are read too.
MAX_FORMER_GPUS = 8
PROGRAM_XID_KINDS = ",".join(
    f"'{model.XID_KIND_PREFIX}{code}'" for code, texts in model.XID_CODES.items() if texts.severity == model.INFO
)
FREQUENCY_SQL = f"CASE WHEN kind='power' THEN 1 WHEN kind IN ({PROGRAM_XID_KINDS}) THEN 2 ELSE 0 END"
EVENT_COLUMNS = "host, number, gpu, place, kind, value, at, since, until, by"
EVENT_PLACEHOLDERS = ",".join("?" * len(model.HealthEvent._fields))
SqlCondition = tuple[str, tuple[object, ...]]


def pack_stored_health_metrics(
    driver: str | None,
    gpus: Sequence[tuple[object, ...]],
    is_complete: bool = True,
    xids: Sequence[tuple[object, ...]] = (),
) -> bytes:
    """Pack the metrics of a host, each row with the fields of GpuHealthMetrics; equal metrics are equal bytes."""
    return orjson.dumps([driver, gpus, is_complete, *([xids] if xids else [])], default=list)


def unpack_stored_health_metrics(data: bytes) -> model.HostHealthMetrics:
    try:
        driver, rows, is_complete, *rest = orjson.loads(data)
        gpus = (
            model.GpuHealthMetrics._make(tuple(cell) if isinstance(cell, list) else cell for cell in row)
            for row in rows
        )
        xids = (Xid(*cells) for cells in (rest[0] if rest else ()))
        return model.HostHealthMetrics(driver, tuple(gpus), is_complete, tuple(xids))
    except DECODE_ERRORS as error:
        raise DamagedBlockError(data) from error


def unpack_health_state(data: bytes) -> model.HostHealthState:
    """Unpack the state of a host; raise DamagedBlockError if it is not what was written."""
    gpus: dict[str, model.GpuHealthState] = {}
    try:
        checked_at, taken_at, last_number, driver, rows, *rest = orjson.loads(data)
        for key, (index, bus, counts, events_by_kind) in rows.items():
            if len(counts) != len(model.COUNT_NAMES) or any(
                count is not None and not isinstance(count, int) for count in counts
            ):
                raise DamagedBlockError(data)
            latest_events: dict[str, model.HealthEvent] = {}
            for kind, cells in events_by_kind.items():
                event = model.HealthEvent(*cells)
                event = latest_events[kind] = event._replace(value=tuple(event.value))
                numbers = [event.number, event.began_at, 0 if event.ended_at is None else event.ended_at]
                if kind not in model.SPAN_KINDS or kind == "power":
                    numbers += event.value[:2]  # type: ignore[arg-type]
                if event.kind != kind or not all(isinstance(number, int) for number in numbers):
                    raise DamagedBlockError(data)
            gpus[str(key)] = model.GpuHealthState(index, bus, tuple(counts), latest_events)
        taken_at = taken_at and float(taken_at)
        xids = tuple(unpack_known_xid(*cells) for cells in (rest[0] if rest else ()))
        return model.HostHealthState(int(checked_at), taken_at, int(last_number), driver and str(driver), gpus, xids)
    except DECODE_ERRORS as error:
        raise DamagedBlockError(data) from error


def unpack_known_xid(xid_cells: Sequence[object], event_cells: Sequence[object]) -> model.KnownXid:
    xid, event = Xid(*xid_cells), model.HealthEvent(*event_cells)  # type: ignore[arg-type]
    numbers = (xid.code, xid.first, xid.last, xid.times, event.number, event.began_at, event.ended_at)
    if not all(isinstance(number, int) for number in numbers) or not event.is_xid:
        raise ValueError(xid_cells)
    return model.KnownXid(xid, event._replace(value=tuple(event.value)))


def build_stored_event(*row: object) -> model.HealthEvent:
    """Build an event from a row of the table; one with a damaged value has none."""
    event = model.HealthEvent(*row)  # type: ignore[arg-type]
    try:
        return event._replace(value=tuple(orjson.loads(event.value)))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return event._replace(value=())


class StoredEventReader:
    """Reads events from a history; `recorded_minute` is the last one that was written, if this is the store."""

    recorded_minute = -1

    def __init__(self, reader: HistoryReader) -> None:
        self.reader = reader

    def read_events(self, since: float, until: float) -> list[model.HealthEvent]:
        """Return the events of all hosts that began or went on between two moments, the oldest first."""
        query = (
            f"SELECT {EVENT_COLUMNS} FROM event WHERE at<? AND (until IS NULL OR until>=?) "  # noqa: S608 # our words
            "ORDER BY at, host, number"
        )
        limits = (int(until), int(since))
        return self.reader.query(
            lambda connection: [build_stored_event(*row) for row in connection.execute(query, limits)], []
        )

    def read_timelines(self, host: str, keys: Sequence[str], now: float, max_events: int) -> model.HostHealthTimelines:
        """Return the last events of each GPU that a host has, wherever it was then, and of those that it had.

        Critical events are included even if they are older, up to `max_events` more.
        """

        def run_query(connection: sqlite3.Connection) -> model.HostHealthTimelines:
            row = connection.execute("SELECT first FROM counter WHERE host=?", (host,)).fetchone()
            watched_since = min(row[0], int(now)) if row else None
            query = "SELECT gpu FROM event WHERE host=? AND gpu!='' GROUP BY gpu ORDER BY max(number) DESC"
            current = set(keys)
            former = [key for (key,) in connection.execute(query, (host,)) if key not in current]
            timelines = (
                read_stored_timeline(connection, host, key, watched_since or 0, int(now), max_events)
                for key in ("", *keys, *former[:MAX_FORMER_GPUS])
            )
            with_events = tuple(timeline for timeline in timelines if timeline.events)
            return model.HostHealthTimelines(watched_since, with_events, len(former[MAX_FORMER_GPUS:]))

        return self.reader.query(run_query, model.NO_TIMELINES)


def read_stored_timeline(
    connection: sqlite3.Connection, host: str, key: str, watched_since: int, now: int, max_events: int
) -> model.HealthEventTimeline:
    """Read the events of a GPU that a host recorded, and those of others before it came here.

    Events that another host records while it is here are not trusted. A GPU without a UUID is only its host's.
    """
    future = now + MAX_CLOCK_AHEAD_S
    values: tuple[object, ...] = (key, host, future)
    where = "gpu=? AND host=? AND (at<=? OR until IS NULL)"
    if key and not key.startswith(model.UNNAMED_KEY_PREFIX):
        query = "SELECT max(coalesce(by, until, at)) FROM event WHERE host=? AND gpu=? AND kind IN ('new', 'gone')"
        (arrived_at,) = connection.execute(query, (host, key)).fetchone()
        where = "gpu=? AND (host=? AND (at<=? OR until IS NULL) OR host!=? AND until<=?)"
        values = (*values, host, watched_since if arrived_at is None else arrived_at)
    selection = f"SELECT host, number FROM event WHERE {where}"  # noqa: S608 # our words
    order = "ORDER BY until IS NOT NULL, until DESC, number DESC LIMIT ?"
    ids = dict.fromkeys(connection.execute(f"{selection} {order}", (*values, max_events)))
    total = len(ids)
    if total == max_events:
        count = f"SELECT count(*) FROM event WHERE {where}"  # noqa: S608 # our words
        (total,) = connection.execute(count, values).fetchone()
        critical = f"{selection} AND kind IN ({','.join('?' * len(model.CRITICAL_KINDS))}) {order}"
        ids.update(dict.fromkeys(connection.execute(critical, (*values, *model.CRITICAL_KINDS, max_events))))
    query = f"SELECT {EVENT_COLUMNS} FROM event WHERE host=? AND number=?"  # noqa: S608 # our words
    events = []
    for event_id in ids:
        event = build_stored_event(*connection.execute(query, event_id).fetchone())
        if event.ended_at is None and event.began_at > future:  # recorded by a clock that ran ahead
            event = event._replace(began_at=now, began_after=model.BEFORE_FIRST_CHECK)
        events.append(event)
    return model.HealthEventTimeline(key, tuple(events), total)


class HealthEventStore(StoredEventReader):
    """Records events beside a history; there is one builder at a time."""

    def __init__(self, history: HistoryWriter) -> None:
        super().__init__(history)
        self.history = history
        self.loaded_from: tuple[sqlite3.Connection, int] | None = None  # the connection, and the version of its data
        self.known_metrics: dict[str, bytes | None] = {}  # as stored for each host; None while it is away
        self.compared_at: dict[str, int] = {}
        self.last_good_minute: int | None = None  # the last minute before those in which we failed
        self.added_count = 0

    def record(
        self,
        metrics_by_host: Mapping[str, model.PackedHealthMetrics | None],
        now: float,
        time_limit: float = RECORD_TIME_LIMIT_S,
    ) -> None:
        """Record the metrics of each host, once a minute after the minute itself; None for one that is not fresh.

        What takes longer than `time_limit`, in seconds, is left for the next build of the minute.
        """
        minute = int(now) // MINUTE * MINUTE
        if minute == self.recorded_minute or self.history.recorded_at != minute:
            return
        with self.history.catch_failure("events", now, "GPU health events will be recorded later"):
            if self.write_changes(metrics_by_host, minute, time.monotonic() + time_limit):
                self.recorded_minute, self.last_good_minute = minute, None
            return
        self.last_good_minute = self.recorded_minute if self.last_good_minute is None else self.last_good_minute

    def write_changes(
        self, metrics_by_host: Mapping[str, model.PackedHealthMetrics | None], minute: int, deadline: float
    ) -> bool:
        """Write what changed since any builder last wrote, in one transaction; return False if time ran out."""
        connection = self.history.connect()
        self.reload_known(connection)
        changed = {
            host: metrics
            for host, metrics in metrics_by_host.items()
            if metrics and self.known_metrics.get(host) != metrics.packed
        }
        away = [
            host for host, packed in self.known_metrics.items() if packed is not None and not metrics_by_host.get(host)
        ]
        remaining = {host for host in changed if self.compared_at.get(host) != minute}
        if remaining or away:
            connection.execute("PRAGMA synchronous=FULL")  # a power cut costs no more than a minute
            with begin_database_transaction(connection):
                self.reload_known(connection)  # another builder may have been faster
                # the minute of the last check; if we failed since, that of our own last one
                (previous,) = connection.execute("SELECT max(at) FROM minute WHERE at<?", (minute,)).fetchone()
                if previous is not None and self.last_good_minute is not None and self.last_good_minute >= 0:
                    previous = min(previous, self.last_good_minute)
                away_since = minute if previous is None else previous
                connection.executemany(
                    "UPDATE counter SET away=? WHERE host=? AND away IS NULL", [(away_since, host) for host in away]
                )
                # those first that have waited longest
                for host in sorted(remaining, key=lambda host: self.compared_at.get(host, -1)):
                    check = model.HealthCheckTimes(host, minute, previous, changed[host].taken_at)
                    failure_key = f"events of {host}"
                    try:
                        if self.update_host(connection, changed[host], check):
                            self.known_metrics[host] = changed[host].packed  # the same object: it is not stored twice
                        self.history.failures.pop(failure_key, None)
                    except sqlite3.Error:
                        raise
                    except Exception as error:  # a fault of ours must not cost the other hosts
                        reason = f"internal error in gpuboard at {host} ({error!r:.200})"
                        self.history.failures[failure_key] = (reason, "its GPU health events are not recorded")
                    self.compared_at[host] = minute
                    remaining.remove(host)
                    if time.monotonic() > deadline:
                        break
            self.known_metrics.update(dict.fromkeys(away))
        self.trim_events(connection, minute)
        return not remaining

    def reload_known(self, connection: sqlite3.Connection) -> None:
        """Read the stored metrics again if the file is another one, or another builder has written."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if self.loaded_from is None or self.loaded_from[0] is not connection or self.loaded_from[1] != version:
            query = "SELECT host, CASE WHEN away IS NULL THEN signs END FROM counter"
            self.known_metrics = dict(connection.execute(query))
            self.loaded_from = connection, version

    def update_host(
        self, connection: sqlite3.Connection, metrics: model.PackedHealthMetrics, check: model.HealthCheckTimes
    ) -> bool:
        """Compare a host that changed with its stored state; return False if the check came too late."""
        query = "SELECT first, away, signs, state FROM counter WHERE host=?"
        row = connection.execute(query, (check.host,)).fetchone() or (check.checked_at, None, None, None)
        watched_since, away_since, known_packed, packed_state = row
        if known_packed == metrics.packed and away_since is None:
            return True
        state = None
        if packed_state is not None:
            with suppress(DamagedBlockError):
                state = unpack_health_state(packed_state)
        if state is not None:
            check = check._replace(previous_check_at=check.previous_check_at if away_since is None else away_since)
        elif packed_state is not None:
            # without the state nobody can tell what went on: end it, at some time since the previous check
            before = check.checked_at if check.previous_check_at is None else check.previous_check_at
            connection.execute(
                "UPDATE event SET until=max(at, ?), by=max(at, ?) WHERE host=? AND until IS NULL",
                (before, check.checked_at, check.host),
            )
        unpacked = unpack_stored_health_metrics(metrics.packed)
        new_keys = [gpu.key for gpu in unpacked.gpus if state and gpu.key not in state.gpus]
        query = "SELECT max(number) FROM event WHERE host=?"
        (last_number,) = connection.execute(query, (check.host,)).fetchone()
        # the other host that had each new GPU last, by its history or its events
        named_keys = [key for key in new_keys[:MAX_EVENTS_AT_ONCE] if not key.startswith(model.UNNAMED_KEY_PREFIX)]
        hosts = {key: run.host for key, run in idle_runs.read_idle_runs(connection, named_keys).items()}
        query = "SELECT host FROM event WHERE gpu=? ORDER BY at DESC LIMIT 1"
        for key in named_keys:
            if key not in hosts and (row := connection.execute(query, (key,)).fetchone()):
                hosts[key] = row[0]
        previous_hosts = {key: host for key, host in hosts.items() if host != check.host}
        new_state, events = find_health_events(state, unpacked, check, previous_hosts)
        if new_state is state:
            return False
        if state is None and last_number:  # no number is used twice
            events = [event._replace(number=event.number + last_number) for event in events]
            gpus = {}
            for key, gpu in new_state.gpus.items():
                latest = gpu.latest_events.items()
                renumbered = {kind: event._replace(number=event.number + last_number) for kind, event in latest}
                gpus[key] = gpu._replace(latest_events=renumbered)
            xids = tuple(
                known._replace(event=known.event._replace(number=known.event.number + last_number))
                for known in new_state.xids
            )
            last_event_number = new_state.last_event_number + last_number
            new_state = new_state._replace(last_event_number=last_event_number, gpus=gpus, xids=xids)
        self.added_count += insert_stored_events(connection, events[:MAX_EVENTS_AT_ONCE])
        stored_state = new_state if new_state.xids else new_state[:-1]  # as an older gpuboard understands it
        new_row = (check.host, watched_since, None, metrics.packed, orjson.dumps(stored_state, default=list))
        connection.execute("INSERT OR REPLACE INTO counter VALUES(?,?,?,?,?)", new_row)
        return True

    def trim_events(self, connection: sqlite3.Connection, minute: int) -> None:
        """Delete events beyond the limits, once an hour or after many new ones; each host has the same share."""
        hour = minute // HOUR * HOUR
        row = connection.execute("SELECT at FROM done WHERE what='events'").fetchone()
        if row and row[0] == hour and self.added_count < TRIM_AFTER_EVENTS:
            return
        self.added_count = 0
        with begin_database_transaction(connection):
            counts = dict(connection.execute("SELECT host, count(*) FROM event GROUP BY host"))
            share = MAX_EVENTS_PER_HOST
            while sum(min(count, share) for count in counts.values()) > MAX_EVENTS:
                share = share * 3 // 4
            for host, count in counts.items():
                if count <= min(share, *MAX_EVENTS_PER_GPU.values()):
                    continue
                # those that are over first, and frequent kinds before all others
                query = f"SELECT gpu, {FREQUENCY_SQL}, count(*) FROM event WHERE host=? GROUP BY 1, 2"  # noqa: S608 # our words
                for gpu, frequency, gpu_count in connection.execute(query, (host,)).fetchall():
                    condition = f"host=? AND gpu=? AND {FREQUENCY_SQL}=?", (host, gpu, frequency)
                    delete_oldest_stored_events(connection, condition, gpu_count - MAX_EVENTS_PER_GPU[frequency])
                (left,) = connection.execute("SELECT count(*) FROM event WHERE host=?", (host,)).fetchone()
                delete_oldest_stored_events(connection, ("host=?", (host,)), left - share)
            connection.execute("INSERT OR REPLACE INTO done VALUES('events', ?)", (hour,))


def insert_stored_events(connection: sqlite3.Connection, events: Sequence[model.HealthEvent]) -> int:
    """Write events, in place of older forms of the same, and return how many."""
    rows = [event._replace(value=orjson.dumps(event.value)) for event in events]  # type: ignore[arg-type]
    connection.executemany(f"INSERT OR REPLACE INTO event({EVENT_COLUMNS}) VALUES({EVENT_PLACEHOLDERS})", rows)
    return len(rows)


def delete_oldest_stored_events(connection: sqlite3.Connection, condition: SqlCondition, count: int) -> None:
    """Delete the oldest of some events of one host, whose name is the first value of the condition."""
    if count <= 0:
        return
    where, values = condition
    oldest = (
        f"SELECT number FROM event WHERE {where} "  # noqa: S608 # our words
        f"ORDER BY until IS NULL, {FREQUENCY_SQL}=0, number LIMIT ?"
    )
    statement = f"DELETE FROM event WHERE host=? AND number IN ({oldest})"  # noqa: S608 # our words
    connection.execute(statement, (values[0], *values, count))
