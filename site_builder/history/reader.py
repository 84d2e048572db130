"""What was before, read back from state/history.db, also while the builder writes it."""

from __future__ import annotations

import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from site_builder.core import formatting
from site_builder.core.model import Problem
from site_builder.core.names import in_order
from site_builder.history import block_format, buckets, database, gpu_minutes
from site_builder.history.block_format import Damaged, Hour, Part
from site_builder.history.buckets import Joiner, Line, Slots
from site_builder.history.gpu_minutes import Seen, Share, Tally
from site_builder.history.model import HostSample, Series

Answer = TypeVar("Answer")
MINUTE, HOUR, DAY = 60, 3600, 86400
# The fleet at a minute is kept in so many parts: one host is found without the others, and rolled up with few.
PARTS = 16
# A chunk of each step covers so many seconds.
COVERS = {MINUTE: HOUR, 300: DAY, HOUR: 32 * DAY}
# And is kept for so many days at least.
DAYS = {MINUTE: 2, 300: 35, HOUR: 762}
# What is told of a time further ahead is not believed until then.
AHEAD = HOUR


class GpuPast(NamedTuple):
    """A GPU over slots of time; `line` has a column for each name in slots.OF_GPU."""

    series: Series
    line: Line
    names: list[str]

    def values(self, column: str) -> list[float | None]:
        """One of the means, in its own unit; None where nothing was seen."""
        return block_format.values(self.line[column], *buckets.OF_GPU[column])

    def people(self, column: str) -> list[str | None]:
        """`owner` or `booker`: who had most of each slot."""
        found: dict[int, str | None] = dict(enumerate(self.names))
        return [found.get(code) for code in self.line[column]]


@dataclass(frozen=True)
class HostPast:
    """A host over slots of time, the first of which begins at `since`; its GPUs in the order of their indices."""

    host: str
    since: int
    step: int
    count: int
    own: Line
    gpus: tuple[GpuPast, ...]

    def values(self, column: str) -> list[float | None]:
        """`load` or `own_memory`, both in percent."""
        return block_format.values(self.own[column], *buckets.OF_HOST[column])


class ShareRow(NamedTuple):
    """What a person had of the GPUs of one model on a host on a day; in units of which a minute has tallied.UNIT."""

    day: date
    host: str
    model: str
    person: str
    share: Share


class SeenRow(NamedTuple):
    """What was seen of the GPUs of one model on a host on a day, in minutes."""

    day: date
    host: str
    model: str
    seen: Seen


class Tallies(NamedTuple):
    """Who had how much, and what there was."""

    shares: list[ShareRow]
    seen: list[SeenRow]


class HourTallies(NamedTuple):
    """The same of all hosts together, by hour (its beginning), model and person."""

    shares: dict[tuple[int, str, str], Share]
    seen: dict[tuple[int, str], Seen]


def part_of(host: str) -> int:
    """In which part a host is kept."""
    return zlib.crc32(host.encode()) % PARTS


def step_for(since: float, now: float) -> int:
    """The finest step that is kept as far back as that."""
    return next((step for step, days in DAYS.items() if since >= now - days * DAY), HOUR)


class Past:
    """Reads; each answer is of one moment, whatever is written meanwhile."""

    def __init__(self, state: Path, zone: tzinfo) -> None:
        """The folder in which it stands, and the zone by which the lab counts its days."""
        self.path = state / database.NAME
        self.zone = zone
        self.connection: sqlite3.Connection | None = None
        self.trouble: Problem | None = None

    @property
    def exists(self) -> bool:
        """Whether there is any history yet."""
        return self.path.exists()

    def connect(self) -> sqlite3.Connection:
        """The open file."""
        if self.connection is None:
            self.connection = database.connect(self.path, read_only=True)
        return self.connection

    def close(self) -> None:
        """Let go of the file."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def ask(self, question: Callable[[sqlite3.Connection], Answer], nothing: Answer) -> Answer:
        """An answer of one moment; where there can be none, `trouble` says why."""
        if not self.exists:
            return nothing
        self.trouble = None
        try:
            connection = self.connect()
            connection.execute("BEGIN")
            try:
                return question(connection)
            finally:
                connection.execute("ROLLBACK")
        except (sqlite3.Error, OSError, Damaged, database.Unusable) as error:
            self.close()
            self.trouble = Problem(database.WHERE, formatting.hide_paths(f"it could not be read: {error}"))
            return nothing

    def series(
        self, host: str, since: float, until: float, step: int, columns: Iterable[str] = buckets.OF_GPU
    ) -> HostPast:
        """A host from one moment to another, in slots of 60, 300 or 3600 s; what is not kept that finely is missing.

        Of its GPUs, only these columns are read, and how many minutes were seen.
        """
        start = int(since // step) * step
        count = max(0, int(-(-until // step)) - start // step)
        drawn = Drawn(host, start, step, count, columns)
        self.ask(lambda connection: draw(drawn, connection), None)
        return drawn.past()

    def minutes(self, host: str, count: int, now: float, since: float | None = None) -> list[tuple[int, HostSample]]:
        """The last samples of a host, the oldest first; of the last days, or from a moment on."""
        first = int(now - DAYS[MINUTE] * DAY if since is None else since)
        return self.ask(lambda connection: list(last_minutes(connection, host, count, first, now))[::-1], [])

    def tallies(self, first: date, last: date, now: float) -> Tallies:
        """Who had how much on the days from one to another, up to this moment."""
        return self.ask(lambda connection: read_tallies(connection, first, last, self.zone, now), Tallies([], []))

    def by_hour(self, since: float, until: float) -> HourTallies:
        """The same by the hour, for the last two months."""
        return self.ask(lambda connection: read_hours(connection, since, until, self.zone), HourTallies({}, {}))

    def hosts(self) -> list[str]:
        """All hosts of which something is kept."""
        asked = "SELECT DISTINCT host FROM shape ORDER BY host"
        return self.ask(lambda connection: [host for (host,) in connection.execute(asked)], [])

    def people(self) -> list[str]:
        """All who had or were promised something, under the names that were told."""
        asked = "SELECT text FROM name WHERE id IN (SELECT DISTINCT person FROM share) ORDER BY text"
        return self.ask(lambda connection: [name for (name,) in connection.execute(asked)], [])


class Drawn:
    """A host's slots while they are filled."""

    def __init__(self, host: str, start: int, step: int, count: int, columns: Iterable[str] = buckets.OF_GPU) -> None:
        """Of which nothing is known yet."""
        self.columns = {name: buckets.OF_GPU[name] for name in ("seen", *columns)}
        self.host, self.start, self.step, self.count = host, start, step, count
        self.end = start + count * step
        self.own = buckets.new_line(count, buckets.OF_HOST)
        self.lines: dict[str, tuple[Series, Line]] = {}
        self.names: list[str] = []
        self.joiner = Joiner(self.names)

    def put(self, at: int, lines: Sequence[Line], source: Slots) -> None:
        """What of these slots, of which the first begins at `at`, lies within ours, into lines of the same GPUs."""
        first = max(0, (self.start - at) // self.step)
        last = min(len(source.own["load"]), (self.end - at) // self.step)
        if first >= last:
            return
        place, some = (at - self.start) // self.step + first, slice(first, last)
        buckets.put_own(self.own, place, source.own, some)
        for mine, line in zip(lines, source.gpus):
            self.joiner.put(mine, place, line, source.names, some)

    def add(self, series: Sequence[Series], several: Iterable[tuple[int, Slots]]) -> None:
        """All that is kept of one set of GPUs; what a host tells of them in others are other minutes."""
        lines: list[Line] = []
        for at, source in several:
            lines = lines or [buckets.new_line(self.count, self.columns) for _ in series]
            self.put(at, lines, source)
        for which, line in zip(series, lines):
            called, mine = self.lines.setdefault(which.key, (which, line))
            if mine is not line:
                called = which if buckets.last_seen(line) > buckets.last_seen(mine) else called  # as it is called now
                buckets.add(mine, line)
                self.lines[which.key] = (called, mine)

    def past(self) -> HostPast:
        """What came of it; a GPU that was not there in all that time is left out."""
        found = [GpuPast(which, line, self.names) for which, line in self.lines.values() if any(line["seen"])]
        found.sort(key=lambda one: (in_order(one.series.index), one.series.key))
        return HostPast(self.host, self.start, self.step, self.count, self.own, tuple(found))


def draw(drawn: Drawn, connection: sqlite3.Connection) -> None:
    """Fill the slots of a host from all that is kept of it; what is damaged is a gap."""
    shapes = shapes_of(connection, drawn.host)
    waiting: dict[int, list[tuple[int, Slots]]] = defaultdict(list)
    for at, shape, hour in hours_to_come(connection, part_of(drawn.host), drawn.start, drawn.end, shapes):
        waiting[shape].append((at, buckets.slots_of(hour, drawn.step // MINUTE)))
    for shape, series in shapes.items():
        drawn.add(series, chain(kept_of(drawn, connection, shape), waiting[shape]))


def kept_of(drawn: Drawn, connection: sqlite3.Connection, shape: int) -> Iterator[tuple[int, Slots]]:
    """What is rolled up of one set of GPUs, the longest chunks first."""
    if (step := drawn.step) > MINUTE:
        for at in grid(drawn.start, drawn.end, COVERS[step]):
            for _, block in chunks(connection, step, at, (shape,)):
                with suppress(Damaged):
                    yield at, buckets.unpack_slots(block)
    days = {at for (at,) in connection.execute("SELECT at FROM due WHERE shape=?", (shape,))}
    for at in grid(drawn.start, drawn.end, HOUR):
        if step == MINUTE or at // DAY * DAY in days:
            for _, block in chunks(connection, MINUTE, at, (shape,)):
                with suppress(Damaged):
                    yield at, buckets.slots_of(block_format.unpack_hour(block), step // MINUTE)


def grid(start: int, end: int, covers: int) -> range:
    """Where the chunks begin that cover a time."""
    return range(start // covers * covers, end, covers)


def shapes_of(connection: sqlite3.Connection, host: str) -> dict[int, tuple[Series, ...]]:
    """Which GPUs a host ever had, the newest last."""
    rows = connection.execute("SELECT id, gpus FROM shape WHERE host=? ORDER BY first", (host,))
    return {shape: block_format.series_of(gpus) for shape, gpus in rows}


def chunks(connection: sqlite3.Connection, step: int, at: int, shapes: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """The chunks that begin then."""
    for shape in shapes:
        asked = "SELECT block FROM chunk WHERE step=? AND at=? AND shape=?"
        for (block,) in connection.execute(asked, (step, at, shape)):
            yield shape, block


def parts_in(connection: sqlite3.Connection, part: int, start: int, end: int) -> dict[int, dict[int, Part]]:
    """The minutes that are not rolled up, by their hours and their places in them; one that is damaged is a gap."""
    found: dict[int, dict[int, Part]] = defaultdict(dict)
    asked = "SELECT at, block FROM minute WHERE part=? AND at>=? AND at<?"
    for at, block in connection.execute(asked, (part, start, end)):
        try:
            found[at // HOUR * HOUR][at % HOUR // MINUTE] = block_format.unpack_part(block)
        except Damaged:
            continue
    return found


def hours_to_come(
    connection: sqlite3.Connection, part: int, start: int, end: int, shapes: Iterable[int] | None = None
) -> Iterator[tuple[int, int, Hour]]:
    """The hours that are not rolled up, of these shapes or of all."""
    for at, parts in sorted(parts_in(connection, part, start, end).items()):
        there = {shape for one in parts.values() for shape in one.places}
        for shape in there if shapes is None else there.intersection(shapes):
            yield at, shape, block_format.hour_of(shape, parts)


def last_minutes(
    connection: sqlite3.Connection, host: str, count: int, first: int, now: float
) -> Iterator[tuple[int, HostSample]]:
    """The last samples of a host since a moment, the newest first."""
    shapes = shapes_of(connection, host)
    hours: dict[int, list[tuple[int, Hour]]] = defaultdict(list)
    last = int(now) // MINUTE * MINUTE
    for at, shape, hour in hours_to_come(connection, part_of(host), first, last + 1, shapes):
        hours[at].append((shape, hour))
    for at in reversed(grid(first, last + 1, HOUR)):
        kept = []
        for shape, block in chunks(connection, MINUTE, at, shapes):
            with suppress(Damaged):
                kept.append((shape, block_format.unpack_hour(block)))
        for slot in reversed(range(block_format.MINUTES)):
            moment = at + slot * MINUTE
            for shape, hour in (*hours[at], *kept):
                found = hour.minute(slot, host, shapes[shape])
                if found and first <= moment <= last:
                    yield moment, found
                    count -= 1
                    break
            if count <= 0:
                return


def tally_of(
    connection: sqlite3.Connection, hours: Iterable[tuple[int, int, Hour]], zone: tzinfo
) -> Mapping[tuple[int, str], Tally]:
    """The sums of hours that are not rolled up, by their beginnings and hosts."""
    found: dict[tuple[int, str], Tally] = defaultdict(Tally)
    shapes: dict[int, tuple[str, tuple[Series, ...]]] = {}
    for at, shape, hour in hours:
        if shape not in shapes:
            row = connection.execute("SELECT host, gpus FROM shape WHERE id=?", (shape,)).fetchone()
            shapes[shape] = (row[0], block_format.series_of(row[1])) if row else ("", ())
        host, series = shapes[shape]
        found[at, host].add(hour, series, gpu_minutes.days_of(at, zone))
    return found


def every_part(connection: sqlite3.Connection, start: int, end: int) -> Iterator[tuple[int, int, Hour]]:
    """The hours of all hosts that are not rolled up."""
    for part in range(PARTS):
        yield from hours_to_come(connection, part, start, end)


def read_tallies(connection: sqlite3.Connection, first: date, last: date, zone: tzinfo, now: float) -> Tallies:
    """Sums by day, of what is rolled up and of what is not."""
    names = dict(connection.execute("SELECT id, text FROM name"))
    last = min(last, datetime.fromtimestamp(now, zone).date())  # a clock that ran ahead may have told of later days
    days = (first.toordinal(), last.toordinal())
    shares: dict[tuple[date, str, str, str], list[int]] = {}
    seen: dict[tuple[date, str, str], list[int]] = {}
    for day, host, model, person, *row in connection.execute("SELECT * FROM share WHERE day BETWEEN ? AND ?", days):
        shares[date.fromordinal(day), names[host], names[model], names[person]] = row
    for day, host, model, *row in connection.execute("SELECT * FROM seen WHERE day BETWEEN ? AND ?", days):
        seen[date.fromordinal(day), names[host], names[model]] = row
    come = tally_of(connection, every_part(connection, 0, int(now) + 1), zone)
    for (_, host), tally in come.items():
        for (day, model, person), row in tally.shares.items():
            if first <= day <= last:
                add(shares, (day, host, model, person), row)
        for (day, model), row in tally.seen.items():
            if first <= day <= last:
                add(seen, (day, host, model), row)
    return Tallies(
        [ShareRow(*key, Share(*row)) for key, row in sorted(shares.items())],
        [SeenRow(*key, Seen(*row)) for key, row in sorted(seen.items())],
    )


Key = TypeVar("Key")


def add(sums: dict[Key, list[int]], key: Key, row: Iterable[int]) -> None:
    """To what is there."""
    sums[key] = [one + other for one, other in zip(sums[key], row)] if key in sums else list(row)


def read_hours(connection: sqlite3.Connection, since: float, until: float, zone: tzinfo) -> HourTallies:
    """Sums by the hour, of what is rolled up and of what is not."""
    names = dict(connection.execute("SELECT id, text FROM name"))
    start, end = int(since) // HOUR * HOUR, int(until)
    shares: dict[tuple[int, str, str], list[int]] = {}
    seen: dict[tuple[int, str], list[int]] = {}
    for at, model, person, *row in connection.execute("SELECT * FROM hour_share WHERE at>=? AND at<?", (start, end)):
        shares[at, names[model], names[person]] = row
    for at, model, *row in connection.execute("SELECT * FROM hour_seen WHERE at>=? AND at<?", (start, end)):
        seen[at, names[model]] = row
    for (at, _), tally in tally_of(connection, every_part(connection, start, end), zone).items():
        for (_, model, person), row in tally.shares.items():
            add(shares, (at, model, person), row)
        for (_, model), row in tally.seen.items():
            add(seen, (at, model), row)
    return HourTallies(
        {key: Share(*row) for key, row in shares.items()}, {key: Seen(*row) for key, row in seen.items()}
    )
