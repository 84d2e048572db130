"""The past of the simulated lab in state/history.db: five weeks, as a builder would have kept them."""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path

from site_builder.demo import health_events
from site_builder.demo.cast import MACHINES, Machine, lab
from site_builder.demo.readings import uuid
from site_builder.demo.story import stories
from site_builder.demo.tracks import GAP, STEP, Host, Track, host_of
from site_builder.demo.weeks import weeks_of
from site_builder.history import block_format, buckets
from site_builder.history.block_format import MINUTES, NO_CODE, NONE, Hour, array_of
from site_builder.history.buckets import COUNTS, NAMED, Line, Slots
from site_builder.history.database import transaction
from site_builder.history.model import GpuSample, HostSample, Series, Standing
from site_builder.history.reader import COVERS, DAY, DAYS, HOUR, MINUTE, part_of
from site_builder.history.writer import History, keep
from site_builder.snapshots.gpu_names import of_instance, short

EACH, IN_HOUR, IN_DAY = STEP // MINUTE, HOUR // STEP, DAY // STEP
# What is added to the use in each minute of a slot, in half percents: its mean stays.
JITTER = (3, -4, 2, -1, 0)
EDGE = 5  # a use so near to none or all has no room for it


def fill(state: Path, zone: tzinfo, now: float, hosts: int = len(MACHINES), seed: int = 1, after: float = 0) -> None:  # noqa: PLR0913, PLR0917 # each is one thing
    """Five weeks up to this minute, of the lab that has so many hosts and that seed and is so far into its story.

    In a large lab the hosts with numbered names are new, and have no past. A history that is there stays as it is.
    """
    history = History(state, zone)
    if history.exists:
        return
    start = int(now) // DAY * DAY - DAYS[STEP] * DAY
    minutes = (int(now) - start) // MINUTE
    began = start - now + after  # in the lab's own time
    origin = datetime.fromtimestamp(now - after, zone)
    connection = history.connect()
    with transaction(connection):
        several = []
        for story in stories(lab(min(hosts, len(MACHINES))), seed):
            weeks = weeks_of(story, began, after, origin, seed)
            host = host_of(weeks, math.ceil(minutes / EACH), lambda moment: slot_of(moment, began))
            several.append(Kept(host, start, minutes))
        for one in several:
            one.keep(connection)
        for day in range(start, int(now), DAY):
            hours = range(day, min(day + DAY, int(now)), HOUR)
            history.take_up(connection, [(at, one.shape, one.hour(at)) for at in hours for one in several])
            for at in hours:
                keep_rolled(connection, at, min(MINUTES, minutes - (at - start) // MINUTE), several)
        health_events.tell(connection, (one.host.machine for one in several), start, now)
    history.close()


def slot_of(moment: float, began: float) -> int:
    """The slot of a moment of the lab, or one that is far from all of them."""
    return round((moment - began) / STEP) if math.isfinite(moment) else 1 << 30


def keep_rolled(connection: sqlite3.Connection, at: int, count: int, several: list[Kept]) -> None:
    """Which minutes of an hour count no more."""
    parts = {part_of(one.name) for one in several}
    rows = [(at, part, (1 << count) - 1) for part in parts]
    connection.executemany("INSERT OR REPLACE INTO rolled VALUES(?,?,?)", rows if count > 0 else [])


class Kept:
    """A host, as history.db keeps it."""

    def __init__(self, host: Host, start: int, minutes: int) -> None:
        """From `start` on, which is the beginning of a day; so many minutes."""
        self.host, self.name, self.start = host, host.machine.name, start
        self.today = (start + minutes * MINUTE) // DAY * DAY
        sample = block_format.pack(HostSample(self.name, None, None, tuple(gpus_of(host.machine))))
        self.shape, self.gpus = sample.shape, sample.gpus
        self.standings = tuple(host.standings)
        self.load, self.memory = own(host)
        self.by_minute = [expanded(one, minutes) for one in host.tracks]
        self.own_by_minute = [padded(repeated(one), minutes, NONE[one.typecode]) for one in (self.load, self.memory)]

    def keep(self, connection: sqlite3.Connection) -> None:
        """All chunks of it; the days before today also as the longer ones."""
        connection.execute("INSERT INTO shape VALUES(?,?,?,?)", (self.shape, self.name, self.gpus, self.start))
        connection.execute("INSERT INTO told VALUES(?,?,?)", (self.name, self.start, self.shape))
        connection.execute("INSERT INTO due VALUES(?,?)", (self.today, self.shape))
        for at in range(self.today - DAYS[MINUTE] * DAY, self.today + DAY, HOUR):
            if self.place(at, MINUTE) < len(self.own_by_minute[0]):
                keep(connection, MINUTE, at, self.shape, block_format.pack_hour(self.hour(at)))
        fine = self.slots()
        for day in range(self.start, self.today, DAY):
            first = self.place(day, STEP)
            keep(connection, STEP, day, self.shape, buckets.pack_slots(cut(fine, first, first + IN_DAY)))
        whole = self.place(self.today, HOUR)
        coarse = hourly(cut(fine, 0, whole * IN_HOUR), self.host)
        for chunk in range(self.start // COVERS[HOUR] * COVERS[HOUR], self.today, COVERS[HOUR]):
            first, last = (self.place(one, HOUR) for one in (chunk, chunk + COVERS[HOUR]))
            found = buckets.empty(COVERS[HOUR] // HOUR, len(self.host.tracks))
            buckets.put(found, max(0, -first), cut(coarse, max(0, first), min(last, whole)))
            keep(connection, HOUR, chunk, self.shape, buckets.pack_slots(found))

    def place(self, at: int, step: int) -> int:
        """Which slot of that length begins then."""
        return (at - self.start) // step

    def hour(self, at: int) -> Hour:
        """One of its hours."""
        some = slice(self.place(at, MINUTE), self.place(at, MINUTE) + MINUTES)
        columns = [array(kind) for kind, _ in block_format.COLUMNS.values()]
        codes = array("H")
        for *several, which in self.by_minute:
            for column, one in zip(columns, several):
                column.extend(one[some])
            codes.extend(which[some])
        return Hour(tuple(one[some] for one in self.own_by_minute), tuple(columns), codes, self.standings)

    def slots(self) -> Slots:
        """All of it, in slots of 5 minutes."""
        found = Slots({"load": self.load, "own_memory": self.memory}, [])
        tables = Tables(self.standings, found.names)
        for track in self.host.tracks:
            memory, power = ("H", track.memory, NONE["I"], 8), ("H", track.power, NONE["H"], 10)
            line: Line = {"use": array("B", track.use), "memory": coarser(*memory)}
            line.update({"temperature": array("B", track.temperature), "power": coarser(*power)})
            line.update(tables.line(bytes(track.codes)))
            found.gpus.append(line)
        return found


def gpus_of(machine: Machine) -> Iterator[GpuSample]:
    """Its GPUs, under the names that the builder gives them."""
    for gpu, unit in enumerate(machine.units):
        name, part = unit.model.name, unit.instance
        model = of_instance(name, {}, part.profile) if part else short(name, {}, unit.memory)
        number = unit.label if part or machine.units[0].maker != unit.maker else unit.index
        series = Series(uuid(machine, gpu), number, model, float(unit.memory))
        yield GpuSample(series, None, None, None, None, Standing("free"))


def own(host: Host) -> tuple[array[int], array[int]]:
    """Load and memory of the host itself, which follow from how many of its GPUs work."""
    machine = host.machine
    works = bytes([0]) + bytes([1]) * 200 + bytes(55)
    gap = array("B", host.tracks[0].codes)
    counts = [sum(several) for several in zip(*(track.use.translate(works) for track in host.tracks))]
    loads = [int((0.4 + 1.1 * count) * 100 / machine.cpus + 0.5) for count in range(machine.gpus + 1)]
    memory = [int((9000 + 14000 * count) * 200 / machine.memory + 0.5) for count in range(machine.gpus + 1)]
    load = array("H", [NONE["H"] if code == GAP else loads[count] for count, code in zip(counts, gap)])
    return load, array("B", [NONE["B"] if code == GAP else memory[count] for count, code in zip(counts, gap)])


def expanded(track: Track, minutes: int) -> tuple[array[int], ...]:
    """The minutes of a GPU: columns as packed.COLUMNS has them, and codes."""
    use = bytearray(len(track.use) * EACH)
    for number, more in enumerate(JITTER):
        moved = bytes(one + more if EDGE <= one <= 200 - EDGE else one for one in range(256))
        use[number::EACH] = track.use.translate(moved)
    codes = array("H", [NO_CODE if code == GAP else code for code in track.codes])
    temperature = array("B", track.temperature)
    return (
        padded(array("B", use), minutes, NONE["B"]),
        padded(repeated(track.memory), minutes, NONE["I"]),
        padded(repeated(temperature), minutes, NONE["B"]),
        padded(repeated(track.power), minutes, NONE["H"]),
        padded(repeated(codes), minutes, NO_CODE),
    )


def repeated(numbers: array[int]) -> array[int]:
    """Each of them for every minute of its slot."""
    found = array(numbers.typecode, [0]) * (len(numbers) * EACH)
    for number in range(EACH):
        found[number::EACH] = numbers
    return found


def padded(numbers: array[int], count: int, none: int) -> array[int]:
    """So many of them, and no value for the rest of the last hour."""
    return numbers[:count] + array(numbers.typecode, [none]) * (-count % MINUTES)


def coarser(kind: str, numbers: array[int], none: int, worth: int) -> array[int]:
    """Numbers in a unit that is worth so many of theirs."""
    table = {one: NONE[kind] if one == none else int(one / worth + 0.5) for one in set(numbers)}
    return array(kind, map(table.__getitem__, numbers))


class Tables:
    """What slots of one standing count, for each of them."""

    def __init__(self, standings: tuple[str, ...], names: list[str]) -> None:
        """The places of people are those in `names`, which grows."""
        told = [buckets.counted([code] * EACH, standings) for code in range(len(standings))]
        rest = bytes(256 - len(told))
        self.counts = [bytes(counts[n] for counts, _, _ in told) + rest for n in range(len(COUNTS))]
        self.people = []
        for several in ([owner for _, owner, _ in told], [booker for *_, booker in told]):
            for name in several:
                if name is not None and name not in names:
                    names.append(name)
            codes = [NO_CODE if name is None else names.index(name) for name in several]
            codes += [NO_CODE] * (256 - len(codes))
            self.people.append([bytes(code & 255 for code in codes), bytes(code >> 8 for code in codes)])

    def line(self, codes: bytes) -> Line:
        """What the slots of a GPU count."""
        found = {name: array("B", codes.translate(table)) for name, table in zip(COUNTS, self.counts)}
        for name, planes in zip(NAMED, self.people):
            joined = bytearray(2 * len(codes))
            for number, table in enumerate(planes):
                joined[number::2] = codes.translate(table)
            found[name] = array_of("H", joined)
        return found


def cut(source: Slots, first: int, last: int) -> Slots:
    """Some of the slots."""
    gpus = [{name: one[first:last] for name, one in line.items()} for line in source.gpus]
    return Slots({name: one[first:last] for name, one in source.own.items()}, gpus, source.names)


def hourly(fine: Slots, host: Host) -> Slots:
    """The same by the hour."""
    own_line = {name: buckets.means(one, IN_HOUR, 1, NONE[one.typecode]) for name, one in fine.own.items()}
    found = Slots(own_line, [], fine.names)
    for track, line in zip(host.tracks, fine.gpus):
        mine = {name: buckets.means(line[name], IN_HOUR, 1, NONE[line[name].typecode]) for name in ("use", "memory")}
        mine["temperature"] = buckets.highest(line["temperature"], IN_HOUR, NONE["B"])
        mine["power"] = buckets.means(line["power"], IN_HOUR, 1, NONE["H"])
        for name in COUNTS:
            told = zip(*[iter(line[name])] * IN_HOUR) if any(line[name]) else ()
            mine[name] = array("B", map(sum, told)) or array("B", bytes(len(mine["use"])))
        mine.update(most(track.codes, line, host.standings, fine.names))
        found.gpus.append(mine)
    return found


def most(codes: bytearray, line: Line, standings: list[str], names: list[str]) -> Line:
    """Who had most of each hour."""
    found: Line = {name: line[name][::IN_HOUR] for name in NAMED}
    for hour in range(len(found["owner"])):
        some = codes[hour * IN_HOUR : (hour + 1) * IN_HOUR]
        if some.count(some[0]) < IN_HOUR:
            _, *people = buckets.counted([code for code in some if code != GAP], standings)
            for name, person in zip(NAMED, people):
                # who had least may have had no slot in which it was the first
                found[name][hour] = names.index(person) if person in names else NO_CODE
    return found
