"""Fill history.db with the past of the simulated lab."""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Iterable, Sequence
from datetime import datetime, tzinfo
from pathlib import Path

from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.demo import past_weeks, scenario
from site_builder.demo.past_weeks import GAP_CODE, SLOT_S, PastHostTracks
from site_builder.demo.scenario import ScenarioMachine, build_scenario_gpu_uuid
from site_builder.fleet.gpu_models import shorten_gpu_model_instance, shorten_gpu_name
from site_builder.health.model import HealthEvent
from site_builder.health.store import insert_stored_events
from site_builder.history import block_format, buckets
from site_builder.history.block_format import MINUTES_PER_HOUR, NO_CODE, NO_VALUE, HourBlock
from site_builder.history.buckets import CHUNK_LENGTH_S, COUNT_COLUMNS, PERSON_COLUMNS, RETENTION_DAYS, HostBuckets
from site_builder.history.database import begin_database_transaction
from site_builder.history.model import GpuSample, GpuSeries, HostSample, OccupancySample
from site_builder.history.writer import HistoryWriter, store_history_chunk

MINUTES_PER_SLOT, SLOTS_PER_HOUR = SLOT_S // MINUTE, HOUR // SLOT_S
# What becomes of the use in each minute of a slot, in half percents: its mean stays; near to none or all, all of it.
JITTERED_USE = [bytes(use + jitter if 5 <= use <= 195 else use for use in range(256)) for jitter in (3, -4, 2, -1, 0)]


def insert_demo_events(
    connection: sqlite3.Connection, machines: Iterable[ScenarioMachine], start: int, now: float
) -> None:
    """Insert the health events of so many hours ago, to a GPU or a host; the lab is watched since `start`."""
    this_minute = int(now) // MINUTE * MINUTE
    for machine in machines:
        events: list[HealthEvent] = []
        planned = scenario.SCENARIO["health_events"].get(machine.name, ())
        for event in sorted(planned, key=lambda event: -event["hours_ago"]):
            at = this_minute - int(event["hours_ago"] * HOUR) // MINUTE * MINUTE
            until = min(at + int(event.get("duration_hours", 0) * HOUR), this_minute)
            gpu, value = event["gpu"], tuple(event["value"])
            uuid = "" if gpu is None else build_scenario_gpu_uuid(machine, gpu)
            events.append(
                HealthEvent(
                    host=machine.name,
                    number=len(events) + 1,
                    gpu_key=uuid,
                    index=gpu,
                    kind=event["kind"],
                    value=value,
                    began_at=at,
                    ended_at=until,
                )
            )
        insert_stored_events(connection, events)
        # its counters are not known yet
        connection.execute("INSERT OR REPLACE INTO counter VALUES(?,?,NULL,x'',x'')", (machine.name, start))


def fill_history(
    state: Path, zone: tzinfo, now: float, hosts: int = len(scenario.MACHINES), seed: int = 1, after: float = 0
) -> None:
    """Fill history.db with five weeks up to now, unless there is one; numbered hosts are new and have no past."""
    history = HistoryWriter(state, zone)
    if history.exists:
        return
    start = int(now) // DAY * DAY - RETENTION_DAYS[SLOT_S] * DAY
    minutes = (int(now) - start) // MINUTE
    began = start - now + after  # in the lab's own time
    origin = datetime.fromtimestamp(now - after, zone)
    connection = history.connect()
    with begin_database_transaction(connection):
        host_histories = []
        machines = scenario.build_scenario_machines(min(hosts, len(scenario.MACHINES)))
        for host_scenario in scenario.build_scenarios(machines, seed):
            weeks = past_weeks.simulate_past_weeks(host_scenario, began, after, origin, seed)
            tracks = past_weeks.build_past_host_tracks(weeks, math.ceil(minutes / MINUTES_PER_SLOT))
            host_histories.append(DemoHostHistory(tracks, start, minutes))
        for host_history in host_histories:
            host_history.store(connection)
        parts = {block_format.compute_minute_block_part(host_history.name) for host_history in host_histories}
        for day in range(start, int(now), DAY):
            hours = range(day, min(day + DAY, int(now)), HOUR)
            blocks = [(at, entry.shape, entry.build_hour(at)) for at in hours for entry in host_histories]
            history.add_hours(connection, blocks)
            for at in hours:
                count = min(MINUTES_PER_HOUR, minutes - (at - start) // MINUTE)
                rows = [(at, part, (1 << count) - 1) for part in parts if count > 0]
                connection.executemany("INSERT OR REPLACE INTO rolled VALUES(?,?,?)", rows)
        insert_demo_events(connection, machines, start, now)
    history.close()


class DemoHostHistory:
    """A host, as history.db keeps it."""

    def __init__(self, host: PastHostTracks, start: int, minutes: int) -> None:
        self.host, self.name, self.start = host, host.machine.name, start
        self.today = (start + minutes * MINUTE) // DAY * DAY
        samples = []
        for gpu, unit in enumerate(host.machine.units):
            name, part, memory_mib = unit.model.name, unit.instance, unit.memory_mib
            model = shorten_gpu_name(name, {}, memory_mib)
            if part:
                model = shorten_gpu_model_instance(name, {}, part.profile)
            number = unit.label if part or host.machine.units[0].vendor != unit.vendor else unit.index
            series = GpuSeries(build_scenario_gpu_uuid(host.machine, gpu), number, model, float(memory_mib))
            samples.append(GpuSample(series, None, None, None, None, OccupancySample("free")))
        sample = block_format.pack_sample(HostSample(self.name, None, None, tuple(samples)))
        self.shape, self.gpus = sample.gpu_set_id, sample.packed_series
        self.occupancies = tuple(host.codes_by_occupancy)
        self.load, self.memory = past_weeks.simulate_past_host_load(host)
        slots_by_minute = ([slots] * MINUTES_PER_SLOT for slots in (self.load, self.memory))
        self.host_by_minute = [spread_demo_history_slots(slots, minutes) for slots in slots_by_minute]
        self.gpus_by_minute = []
        for track in host.tracks:
            use = [array("B", track.use_values.tobytes().translate(table)) for table in JITTERED_USE]
            codes = array("H", [NO_CODE if code == GAP_CODE else code for code in track.state_codes])
            others = (track.memory_values, track.temperatures, track.power_values, codes)
            columns = [use, *([slots] * MINUTES_PER_SLOT for slots in others)]
            self.gpus_by_minute.append([spread_demo_history_slots(column, minutes) for column in columns])

    def store(self, connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO shape VALUES(?,?,?,?)", (self.shape, self.name, self.gpus, self.start))
        connection.execute("INSERT INTO told VALUES(?,?,?)", (self.name, self.start, self.shape))
        connection.execute("INSERT INTO due VALUES(?,?)", (self.today, self.shape))
        for at in range(self.today - RETENTION_DAYS[MINUTE] * DAY, self.today + DAY, HOUR):
            if self.find_position(at, MINUTE) < len(self.host_by_minute[0]):
                block = block_format.pack_hour_block(self.build_hour(at))
                store_history_chunk(connection, MINUTE, at, self.shape, block)
        fine = self.build_buckets()
        for step, host_buckets in ((SLOT_S, fine), (HOUR, build_demo_history_hours(fine, self.host))):
            length = CHUNK_LENGTH_S[step]
            for at in range(self.start // length * length, self.today, length):
                first, last = (self.find_position(moment, step) for moment in (at, min(at + length, self.today)))
                chunk = buckets.create_empty_buckets(length // step, len(self.host.tracks))
                buckets.merge_buckets(chunk, max(0, -first), host_buckets, slice(max(0, first), last))
                store_history_chunk(connection, step, at, self.shape, buckets.pack_buckets(chunk))

    def find_position(self, at: int, step: int) -> int:
        return (at - self.start) // step

    def build_hour(self, at: int) -> HourBlock:
        minutes = slice(self.find_position(at, MINUTE), self.find_position(at, MINUTE) + MINUTES_PER_HOUR)
        columns = {name: array(kind) for name, (kind, _) in block_format.GPU_COLUMNS.items()}
        codes = array("H")
        for gpu_columns in self.gpus_by_minute:
            for column, values in zip([*columns.values(), codes], gpu_columns):
                column.extend(values[minutes])
        host_columns = {name: values[minutes] for name, values in zip(block_format.HOST_COLUMNS, self.host_by_minute)}
        return HourBlock(host_columns, columns, codes, self.occupancies)

    def build_buckets(self) -> HostBuckets:
        """Build a bucket for each slot; what a slot counts follows from its state code."""
        codes_of_slots = ([code] * MINUTES_PER_SLOT for code in range(len(self.occupancies)))
        counted = [buckets.count_bucket_states(codes, self.occupancies) for codes in codes_of_slots]
        counts, *people = zip(*counted)
        names = list(dict.fromkeys(name for column in people for name in column if name is not None))
        count_tables = [bytes(column).ljust(256, b"\0") for column in zip(*counts)]
        person_tables = [[NO_CODE if name is None else names.index(name) for name in column] for column in people]
        for positions in person_tables:
            positions.extend([NO_CODE] * (256 - len(positions)))
        host_buckets = HostBuckets({"load": self.load, "own_memory": self.memory}, [], names)
        for track in self.host.tracks:
            codes = track.state_codes.tobytes()
            columns: block_format.Columns = {
                "use": track.use_values,
                "memory": convert_demo_history_unit(track.memory_values, 8),
                "temperature": track.temperatures,
                "power": convert_demo_history_unit(track.power_values, 10),
            }
            for name, table in zip(COUNT_COLUMNS, count_tables):
                columns[name] = array("B", codes.translate(table))
            for name, positions in zip(PERSON_COLUMNS, person_tables):
                columns[name] = array("H", map(positions.__getitem__, codes))
            host_buckets.gpu_columns.append(columns)
        return host_buckets


def spread_demo_history_slots(columns: Sequence[array[int]], count: int) -> array[int]:
    """Join what each minute of a slot has to so many minutes, and fill the last hour with no values."""
    kind = columns[0].typecode
    joined = array(kind, [0]) * (len(columns[0]) * MINUTES_PER_SLOT)
    for offset, column in enumerate(columns):
        joined[offset::MINUTES_PER_SLOT] = column
    return joined[:count] + array(kind, [NO_VALUE[kind]]) * (-count % MINUTES_PER_HOUR)


def convert_demo_history_unit(numbers: array[int], unit: int) -> array[int]:
    """Return numbers in a unit that is worth so many of theirs."""
    no_value = NO_VALUE[numbers.typecode]
    table = {value: NO_VALUE["H"] if value == no_value else int(value / unit + 0.5) for value in set(numbers)}
    return array("H", map(table.__getitem__, numbers))


def build_demo_history_hours(fine: HostBuckets, host: PastHostTracks) -> HostBuckets:
    host_values, occupancies = fine.host_columns.items(), tuple(host.codes_by_occupancy)
    host_columns = {name: buckets.compute_bucket_means(values, SLOTS_PER_HOUR) for name, values in host_values}
    hourly = HostBuckets(host_columns, [], fine.names)
    for track, fine_columns in zip(host.tracks, fine.gpu_columns):
        columns = {
            name: buckets.compute_bucket_means(fine_columns[name], SLOTS_PER_HOUR)
            for name in ("use", "memory", "temperature", "power")
        }
        columns["temperature"] = buckets.compute_bucket_maxima(fine_columns["temperature"], SLOTS_PER_HOUR)
        for name in COUNT_COLUMNS:
            groups = zip(*[iter(fine_columns[name])] * SLOTS_PER_HOUR) if any(fine_columns[name]) else ()
            columns[name] = array("B", map(sum, groups)) or array("B", bytes(len(columns["use"])))
        columns.update({name: fine_columns[name][::SLOTS_PER_HOUR] for name in PERSON_COLUMNS})
        for hour in range(len(columns["use"])):
            codes = track.state_codes[hour * SLOTS_PER_HOUR : (hour + 1) * SLOTS_PER_HOUR]
            if codes.count(codes[0]) < SLOTS_PER_HOUR:
                _, *people = buckets.count_bucket_states([code for code in codes if code != GAP_CODE], occupancies)
                for name, person in zip(PERSON_COLUMNS, people):
                    # who had least may have had no slot in which it was the first
                    columns[name][hour] = fine.names.index(person) if person in fine.names else NO_CODE
        hourly.gpu_columns.append(columns)
    return hourly
