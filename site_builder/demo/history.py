"""Fill the history of the demo."""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Iterable, Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import NamedTuple

from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.demo.past_weeks import GAP_CODE, SLOT_S, GpuTrack, HostTracks, build_host_tracks, simulate_past_weeks
from site_builder.demo.scenario import (
    DRIVER_VERSION,
    MACHINES,
    DemoMachine,
    build_gpu_uuid,
    build_machines,
    build_scenarios,
)
from site_builder.fleet.gpu_models import shorten_gpu_name, shorten_instance_name
from site_builder.health.model import EventValue, HealthEvent
from site_builder.health.store import insert_events
from site_builder.history import block_format, buckets
from site_builder.history.block_format import MINUTES_PER_HOUR, NO_CODE, NO_VALUE, Columns, HostHour, array_from_bytes
from site_builder.history.buckets import COUNT_COLUMNS, PERSON_COLUMNS, HostBuckets
from site_builder.history.database import begin_transaction
from site_builder.history.model import GpuSample, GpuSeries, HostSample, Occupancy
from site_builder.history.reader import CHUNK_LENGTH_S, RETENTION_DAYS, compute_host_part
from site_builder.history.writer import HistoryWriter, store_chunk

MINUTES_PER_SLOT, SLOTS_PER_HOUR, SLOTS_PER_DAY = SLOT_S // MINUTE, HOUR // SLOT_S, DAY // SLOT_S
# What is added to the use in each minute of a slot, in half percents: its mean stays.
USE_JITTER = (3, -4, 2, -1, 0)
JITTER_MARGIN = 5  # a use so near to none or all has no room for it


class DemoHealthEvent(NamedTuple):
    """Something that happened to a GPU so many hours ago, and lasted for so many; to its host where there is no GPU."""

    gpu: int | None
    kind: str
    value: EventValue
    hours_ago: float
    duration_hours: float = 0


DEMO_EVENTS: dict[str, tuple[DemoHealthEvent, ...]] = {
    "atlas": (
        DemoHealthEvent(None, "driver", ("580.95.05", DRIVER_VERSION), 19 * 24 + 3),
        *(DemoHealthEvent(2, "power", (41 + day, 9000 + 700 * day, None), 24 * day + 17, 13) for day in range(6)),
        DemoHealthEvent(2, "hot", (94, 90), 9 * 24 + 7, 2.5),
        DemoHealthEvent(2, "heat", (), 9 * 24 + 7.2, 2.2),
    ),
    "hydra": (
        DemoHealthEvent(5, "uncorrected", (1, 1), 12 * 24 + 5),
        DemoHealthEvent(5, "rows_uncorrected", (1, 1), 12 * 24 + 5),
        DemoHealthEvent(5, "pending", (), 12 * 24 + 5, 30),
        DemoHealthEvent(5, "lost", ("GPU is lost",), 6 * 24, 11),
    ),
    "lyra": (DemoHealthEvent(1, "corrected", (214, 214), 4 * 24 + 2, 5),),
}


def insert_demo_events(connection: sqlite3.Connection, machines: Iterable[DemoMachine], start: int, now: float) -> None:
    """Put it there, in the transaction of the caller; the lab is watched since `start`."""
    for machine in machines:
        insert_events(connection, list(build_demo_events(machine, int(now) // MINUTE * MINUTE)))
        # its signs are not known yet
        connection.execute("INSERT OR REPLACE INTO counter VALUES(?,?,NULL,x'',x'')", (machine.name, start))


def build_demo_events(machine: DemoMachine, now: int) -> Iterator[HealthEvent]:
    events = sorted(DEMO_EVENTS.get(machine.name, ()), key=lambda event: -event.hours_ago)
    for number, event in enumerate(events, 1):
        at = now - int(event.hours_ago * HOUR) // MINUTE * MINUTE
        gpu = "" if event.gpu is None else build_gpu_uuid(machine, event.gpu)
        until = at + int(event.duration_hours * HOUR)
        yield HealthEvent(machine.name, number, gpu, event.gpu, event.kind, event.value, at, None, min(until, now))


def fill_history(
    state: Path, zone: tzinfo, now: float, hosts: int = len(MACHINES), seed: int = 1, after: float = 0
) -> None:  # each is one thing
    """Fill history.db with five weeks up to now, unless there is one; numbered hosts are new and have no past."""
    history = HistoryWriter(state, zone)
    if history.exists:
        return
    start = int(now) // DAY * DAY - RETENTION_DAYS[SLOT_S] * DAY
    minutes = (int(now) - start) // MINUTE
    began = start - now + after  # in the lab's own time
    origin = datetime.fromtimestamp(now - after, zone)
    connection = history.connect()
    with begin_transaction(connection):
        host_histories = []
        for scenario in build_scenarios(build_machines(min(hosts, len(MACHINES))), seed):
            weeks = simulate_past_weeks(scenario, began, after, origin, seed)
            host = build_host_tracks(
                weeks, math.ceil(minutes / MINUTES_PER_SLOT), lambda moment: find_slot(moment, began)
            )
            host_histories.append(DemoHostHistory(host, start, minutes))
        for host_history in host_histories:
            host_history.store(connection)
        for day in range(start, int(now), DAY):
            hours = range(day, min(day + DAY, int(now)), HOUR)
            history.add_hours(
                connection,
                [
                    (at, host_history.shape, host_history.build_hour(at))
                    for at in hours
                    for host_history in host_histories
                ],
            )
            for at in hours:
                mark_rolled_up_minutes(
                    connection, at, min(MINUTES_PER_HOUR, minutes - (at - start) // MINUTE), host_histories
                )
        insert_demo_events(connection, (host_history.host.machine for host_history in host_histories), start, now)
    history.close()


def find_slot(moment: float, began: float) -> int:
    """Return the slot of a moment of the lab, or one far away from all slots."""
    return round((moment - began) / SLOT_S) if math.isfinite(moment) else 1 << 30


def mark_rolled_up_minutes(
    connection: sqlite3.Connection, at: int, count: int, host_histories: list[DemoHostHistory]
) -> None:
    parts = {compute_host_part(host_history.name) for host_history in host_histories}
    rows = [(at, part, (1 << count) - 1) for part in parts]
    connection.executemany("INSERT OR REPLACE INTO rolled VALUES(?,?,?)", rows if count > 0 else [])


class DemoHostHistory:
    """A host, as history.db keeps it."""

    def __init__(self, host: HostTracks, start: int, minutes: int) -> None:
        self.host, self.name, self.start = host, host.machine.name, start
        self.today = (start + minutes * MINUTE) // DAY * DAY
        sample = block_format.pack_sample(HostSample(self.name, None, None, tuple(build_demo_samples(host.machine))))
        self.shape, self.gpus = sample.gpu_set_id, sample.packed_series
        self.standings = tuple(host.occupancies)
        self.load, self.memory = simulate_host_load(host)
        self.gpus_by_minute = [expand_to_minutes(series, minutes) for series in host.tracks]
        self.host_by_minute = [
            pad_last_hour(repeat_for_minutes(series), minutes, NO_VALUE[series.typecode])
            for series in (self.load, self.memory)
        ]

    def store(self, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO shape VALUES(?,?,?,?)", (self.shape, self.name, self.gpus, self.start))
        connection.execute("INSERT INTO told VALUES(?,?,?)", (self.name, self.start, self.shape))
        connection.execute("INSERT INTO due VALUES(?,?)", (self.today, self.shape))
        for at in range(self.today - RETENTION_DAYS[MINUTE] * DAY, self.today + DAY, HOUR):
            if self.find_position(at, MINUTE) < len(self.host_by_minute[0]):
                store_chunk(connection, MINUTE, at, self.shape, block_format.pack_hour(self.build_hour(at)))
        fine = self.build_buckets()
        for day in range(self.start, self.today, DAY):
            first = self.find_position(day, SLOT_S)
            store_chunk(
                connection,
                SLOT_S,
                day,
                self.shape,
                buckets.pack_buckets(slice_buckets(fine, first, first + SLOTS_PER_DAY)),
            )
        whole = self.find_position(self.today, HOUR)
        coarse = build_hourly_buckets(slice_buckets(fine, 0, whole * SLOTS_PER_HOUR), self.host)
        for chunk in range(self.start // CHUNK_LENGTH_S[HOUR] * CHUNK_LENGTH_S[HOUR], self.today, CHUNK_LENGTH_S[HOUR]):
            first, last = (self.find_position(moment, HOUR) for moment in (chunk, chunk + CHUNK_LENGTH_S[HOUR]))
            chunk_buckets = buckets.create_empty_buckets(CHUNK_LENGTH_S[HOUR] // HOUR, len(self.host.tracks))
            buckets.merge_buckets(chunk_buckets, max(0, -first), slice_buckets(coarse, max(0, first), min(last, whole)))
            store_chunk(connection, HOUR, chunk, self.shape, buckets.pack_buckets(chunk_buckets))

    def find_position(self, at: int, step: int) -> int:
        return (at - self.start) // step

    def build_hour(self, at: int) -> HostHour:
        minutes = slice(self.find_position(at, MINUTE), self.find_position(at, MINUTE) + MINUTES_PER_HOUR)
        columns = {name: array(kind) for name, (kind, _) in block_format.GPU_COLUMNS.items()}
        codes = array("H")
        for *values, codes_by_minute in self.gpus_by_minute:
            for column, series in zip(columns.values(), values):
                column.extend(series[minutes])
            codes.extend(codes_by_minute[minutes])
        host_columns = {name: series[minutes] for name, series in zip(block_format.HOST_COLUMNS, self.host_by_minute)}
        return HostHour(host_columns, columns, codes, self.standings)

    def build_buckets(self) -> HostBuckets:
        host_buckets = HostBuckets({"load": self.load, "own_memory": self.memory}, [])
        tables = SlotCounts(self.standings, host_buckets.names)
        for track in self.host.tracks:
            memory, power = ("H", track.memory_values, NO_VALUE["I"], 8), ("H", track.power_values, NO_VALUE["H"], 10)
            columns: Columns = {"use": array("B", track.use_values), "memory": convert_unit(*memory)}
            columns.update({"temperature": array("B", track.temperatures), "power": convert_unit(*power)})
            columns.update(tables.build_columns(bytes(track.state_codes)))
            host_buckets.gpu_columns.append(columns)
        return host_buckets


def build_demo_samples(machine: DemoMachine) -> Iterator[GpuSample]:
    for gpu, unit in enumerate(machine.units):
        name, part = unit.model.name, unit.instance
        model = shorten_instance_name(name, {}, part.profile) if part else shorten_gpu_name(name, {}, unit.memory_mib)
        number = unit.label if part or machine.units[0].vendor != unit.vendor else unit.index
        series = GpuSeries(build_gpu_uuid(machine, gpu), number, model, float(unit.memory_mib))
        yield GpuSample(series, None, None, None, None, Occupancy("free"))


def simulate_host_load(host: HostTracks) -> tuple[array[int], array[int]]:
    """Load and memory of the host itself, which follow from how many of its GPUs work."""
    machine = host.machine
    is_working = bytes([0]) + bytes([1]) * 200 + bytes(55)
    gap = array("B", host.tracks[0].state_codes)
    counts = [sum(uses) for uses in zip(*(track.use_values.translate(is_working) for track in host.tracks))]
    loads = [int((0.4 + 1.1 * count) * 100 / machine.cpu_count + 0.5) for count in range(machine.gpu_count + 1)]
    memory = [int((9000 + 14000 * count) * 200 / machine.memory_mib + 0.5) for count in range(machine.gpu_count + 1)]
    load = array("H", [NO_VALUE["H"] if code == GAP_CODE else loads[count] for count, code in zip(counts, gap)])
    return load, array("B", [NO_VALUE["B"] if code == GAP_CODE else memory[count] for count, code in zip(counts, gap)])


def expand_to_minutes(track: GpuTrack, minutes: int) -> tuple[array[int], ...]:
    use = bytearray(len(track.use_values) * MINUTES_PER_SLOT)
    for offset, jitter in enumerate(USE_JITTER):
        moved = bytes(
            use_value + jitter if JITTER_MARGIN <= use_value <= 200 - JITTER_MARGIN else use_value
            for use_value in range(256)
        )
        use[offset::MINUTES_PER_SLOT] = track.use_values.translate(moved)
    codes = array("H", [NO_CODE if code == GAP_CODE else code for code in track.state_codes])
    temperature = array("B", track.temperatures)
    return (
        pad_last_hour(array("B", use), minutes, NO_VALUE["B"]),
        pad_last_hour(repeat_for_minutes(track.memory_values), minutes, NO_VALUE["I"]),
        pad_last_hour(repeat_for_minutes(temperature), minutes, NO_VALUE["B"]),
        pad_last_hour(repeat_for_minutes(track.power_values), minutes, NO_VALUE["H"]),
        pad_last_hour(repeat_for_minutes(codes), minutes, NO_CODE),
    )


def repeat_for_minutes(numbers: array[int]) -> array[int]:
    repeated = array(numbers.typecode, [0]) * (len(numbers) * MINUTES_PER_SLOT)
    for offset in range(MINUTES_PER_SLOT):
        repeated[offset::MINUTES_PER_SLOT] = numbers
    return repeated


def pad_last_hour(numbers: array[int], count: int, none: int) -> array[int]:
    return numbers[:count] + array(numbers.typecode, [none]) * (-count % MINUTES_PER_HOUR)


def convert_unit(kind: str, numbers: array[int], no_value: int, unit: int) -> array[int]:
    """Numbers in a unit that is worth so many of theirs."""
    table = {value: NO_VALUE[kind] if value == no_value else int(value / unit + 0.5) for value in set(numbers)}
    return array(kind, map(table.__getitem__, numbers))


class SlotCounts:
    """What slots of one standing count, for each of them."""

    def __init__(self, standings: tuple[str, ...], names: list[str]) -> None:
        counts_by_code = [buckets.count_states([code] * MINUTES_PER_SLOT, standings) for code in range(len(standings))]
        padding = bytes(256 - len(counts_by_code))
        self.counts = [bytes(counts[n] for counts, _, _ in counts_by_code) + padding for n in range(len(COUNT_COLUMNS))]
        self.people = []
        for people in ([owner for _, owner, _ in counts_by_code], [booker for *_, booker in counts_by_code]):
            for name in people:
                if name is not None and name not in names:
                    names.append(name)
            codes = [NO_CODE if name is None else names.index(name) for name in people]
            codes += [NO_CODE] * (256 - len(codes))
            self.people.append([bytes(code & 255 for code in codes), bytes(code >> 8 for code in codes)])

    def build_columns(self, codes: bytes) -> Columns:
        columns = {name: array("B", codes.translate(table)) for name, table in zip(COUNT_COLUMNS, self.counts)}
        for name, planes in zip(PERSON_COLUMNS, self.people):
            joined = bytearray(2 * len(codes))
            for plane_index, table in enumerate(planes):
                joined[plane_index::2] = codes.translate(table)
            columns[name] = array_from_bytes("H", joined)
        return columns


def slice_buckets(source: HostBuckets, first: int, last: int) -> HostBuckets:
    gpus = [{name: values[first:last] for name, values in columns.items()} for columns in source.gpu_columns]
    return HostBuckets({name: values[first:last] for name, values in source.host_columns.items()}, gpus, source.names)


def build_hourly_buckets(fine: HostBuckets, host: HostTracks) -> HostBuckets:
    own_line = {
        name: buckets.compute_bucket_means(values, SLOTS_PER_HOUR) for name, values in fine.host_columns.items()
    }
    hourly = HostBuckets(own_line, [], fine.names)
    for track, fine_columns in zip(host.tracks, fine.gpu_columns):
        columns = {
            name: buckets.compute_bucket_means(fine_columns[name], SLOTS_PER_HOUR)
            for name in ("use", "memory", "temperature", "power")
        }
        columns["temperature"] = buckets.compute_bucket_maxima(fine_columns["temperature"], SLOTS_PER_HOUR)
        for name in COUNT_COLUMNS:
            groups = zip(*[iter(fine_columns[name])] * SLOTS_PER_HOUR) if any(fine_columns[name]) else ()
            columns[name] = array("B", map(sum, groups)) or array("B", bytes(len(columns["use"])))
        columns.update(find_main_people(track.state_codes, fine_columns, host.occupancies, fine.names))
        hourly.gpu_columns.append(columns)
    return hourly


def find_main_people(codes: bytearray, columns: Columns, standings: list[str], names: list[str]) -> Columns:
    people_columns: Columns = {name: columns[name][::SLOTS_PER_HOUR] for name in PERSON_COLUMNS}
    for hour in range(len(people_columns["owner"])):
        hour_codes = codes[hour * SLOTS_PER_HOUR : (hour + 1) * SLOTS_PER_HOUR]
        if hour_codes.count(hour_codes[0]) < SLOTS_PER_HOUR:
            _, *people = buckets.count_states([code for code in hour_codes if code != GAP_CODE], standings)
            for name, person in zip(PERSON_COLUMNS, people):
                # who had least may have had no slot in which it was the first
                people_columns[name][hour] = names.index(person) if person in names else NO_CODE
    return people_columns
