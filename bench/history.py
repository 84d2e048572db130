"""What history costs: in a build, in the hourly step, on the disk after two years, and when it is read."""

import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timezone
from pathlib import Path

from bench.build_site import environment, lab
from bench.measure import Row
from site_builder.charts.cache import CachedChartRequest, ChartCache
from site_builder.core.clock import Now
from site_builder.core.command_options import load_command_settings
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import GpuPeople, PrivacySettings
from site_builder.core.people import PeopleDirectory
from site_builder.history import block_format, buckets
from site_builder.history.block_format import HourBlock
from site_builder.history.buckets import CHUNK_LENGTH_S
from site_builder.history.database import begin_database_transaction
from site_builder.history.model import GpuSample, GpuSeries, HostSample, OccupancySample, ProcessSample
from site_builder.history.writer import HistoryWriter, store_history_chunk

GPUS, HOSTS, LARGE = 8, 50, 1000
# A day of which all is known, and two years before it.
TODAY = 1_790_000_000 // DAY * DAY
NOW = TODAY + 12 * HOUR
# Two builds are hard to compare, since pages of hosts are spread over several: so a clock runs around all that history
# adds to one. No child helps, whose part of it would not be seen.
BUILDS = """
import gc, sys, time
from pathlib import Path
from bench.fleet import fleet
from site_builder.board import builder as board_builder
from site_builder.board import host_pipeline
from site_builder.charts.cache import SparklineCache
from site_builder.core.command_options import load_command_settings
from site_builder.fleet import host_state
from site_builder.health.store import HealthEventStore
from site_builder.history.writer import HistoryWriter
from site_builder.usage import people_page

added = 0.0
def clocked(work):
    def run(*words, **more):
        global added
        began = time.process_time()
        try:
            return work(*words, **more)
        finally:
            added += time.process_time() - began
    return run

gc.disable()
record, tell, tick = HistoryWriter.record, HealthEventStore.record, 0
host_pipeline.map_parallel = lambda work, items: [work(item) for item in items]
host_pipeline.sample_host = clocked(host_pipeline.sample_host)
host_pipeline.pack_sample = clocked(host_pipeline.pack_sample)
host_pipeline.pack_gpu_health = clocked(host_pipeline.pack_gpu_health)
host_state.find_process_people = clocked(host_state.find_process_people)
# six builds are a minute, and the hosts are fresh all the same
HistoryWriter.record = clocked(lambda self, samples, now, reach: record(self, samples, began + 60 * (tick // 6), reach))
HealthEventStore.record = clocked(lambda self, told, now, within: tell(self, told, began + 60 * (tick // 6), within))
HistoryWriter.roll_up = clocked(HistoryWriter.roll_up)
SparklineCache.render_hosts = clocked(SparklineCache.render_hosts)
people_page.PeoplePageBuilder.write = clocked(people_page.PeoplePageBuilder.write)
builder = board_builder.Builder(load_command_settings(None, {}).settings, build_interval_s=10)
hosts, began, minutes = int(sys.argv[1]), time.time(), []
for tick in range(24):
    fleet(Path("data"), hosts, tick + 1)
    people_page.WRITE_INTERVAL_S = 1e9 if tick % 6 else 0
    added, before = 0.0, time.process_time()
    report = builder.build(time.time())
    total = time.process_time() - before
    minutes.append((added, total - added))
    assert not report.problems, report.problems
    assert sum(bool(host.packed_sample) for host in builder.pipeline.built_hosts.values()) == hosts
    assert builder.history.recorded_at > 0
    gc.collect()
assert builder.event_log.recorded_minute > 0
longer = [100 * one / rest for one, rest in minutes]
whole = [100 * sum(one for one, _ in part) / sum(rest for _, rest in part)
         for part in (minutes[6:12], minutes[12:18], minutes[18:])]
print(sorted(whole)[1], max(longer[6::6]))
"""


def rows() -> Iterator[Row]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as path:
        for hosts in (HOSTS, LARGE):
            yield from longer(Path(path), hosts)
        yield from hourly(Path(path) / "hourly")
        yield from two_years(Path(path) / "years")


def longer(folder: Path, hosts: int) -> Iterator[Row]:
    """What history adds to the builds of a minute, all changed, and to the first of them, in CPU time."""
    command, where = [sys.executable, "-c", BUILDS, str(hosts)], lab(folder, str(hosts))
    told = subprocess.run(command, cwd=where, env=environment(), check=True, capture_output=True, text=True)
    average, first = map(float, told.stdout.split())
    yield Row(f"a build of {hosts} hosts takes longer by, on average", 25, average, "%")
    yield Row("the first of a minute, at most", 25, first, "%")


class Job:
    """What is on a GPU for some hours: who, how much memory, and how hard it works."""

    def __init__(self, chance: random.Random) -> None:
        """Most GPUs are in use, some are held, some are free."""
        self.state = chance.choice(["busy"] * 7 + ["held"] + ["free"] * 2)
        self.users: tuple[str, ...] = (f"user{chance.randrange(40)}",) if self.state != "free" else ()
        self.memory = 4 if self.state == "free" else chance.randrange(2000, 78000)
        self.mean = chance.randrange(30, 98) if self.state == "busy" else 0
        self.ends = chance.randrange(30, 900)
        self.chance = chance
        self.pids = [chance.randrange(1000, 4_000_000) for _ in range(2 if self.users else 0)]
        self.halves = [0.5] * 2

    def processes(self) -> tuple[ProcessSample, ...]:
        """Two for each user, whose memory changes now and then."""
        if self.chance.random() < 0.05:
            self.halves = [self.chance.random() / 2 for _ in self.pids]
        return tuple(
            ProcessSample(pid, "python", int(self.memory * half), self.users[0])
            for pid, half in zip(self.pids, self.halves)
        )


class Machine:
    """A host with jobs that come and go; readings are noisy, as real ones are."""

    def __init__(self, number: int) -> None:
        """The same each time."""
        self.chance = random.Random(number)  # noqa: S311 nothing secret
        self.jobs = [Job(self.chance) for _ in range(GPUS)]
        self.series = [
            GpuSeries(f"GPU-{number:08x}-{n:04x}-4c1d-9b7e-3f2a1d0c9e8b", n, "A100 80 GB", 81920.0) for n in range(GPUS)
        ]
        self.name = f"gpu{number:04}"

    def hour(self) -> HourBlock:
        """The next hour."""
        texts: dict[str, int] = {}
        columns = {name: array(kind) for name, (kind, _) in block_format.GPU_COLUMNS.items()}
        codes, process_lists = array("H"), []
        for place in range(GPUS):
            for _ in range(MINUTE):
                use, *values, standing = self.reading(place)
                codes.append(texts.setdefault(block_format.pack_occupancy(standing), len(texts)))
                process_lists.append(block_format.pack_processes(self.jobs[place].processes()))
                for one, value in zip(columns.values(), (use * 2, *values)):
                    one.append(value)
        own = {
            "load": array("H", [self.chance.randrange(20, 90) for _ in range(60)]),
            "own_memory": array("B", [self.chance.randrange(60, 70) for _ in range(60)]),
        }
        return HourBlock(own, columns, codes, tuple(texts), tuple(process_lists))

    def reading(self, place: int) -> tuple[int, int, int, int, OccupancySample]:
        """A GPU at the next minute; power in tenths of a watt."""
        job = self.jobs[place]
        job.ends -= 1
        if job.ends < 0:
            job = self.jobs[place] = Job(self.chance)
        use = min(100, max(0, int(self.chance.gauss(job.mean, 8)))) if job.mean else 0
        power = 600 + use * 30 + self.chance.randrange(80) if use else 600 + self.chance.randrange(15)
        temperature = 32 + use // 3 + self.chance.randrange(3)
        return use, job.memory, temperature, power, OccupancySample(job.state, GpuPeople(job.users))

    def sample(self) -> block_format.PackedSample:
        """The next minute, as the builder records it."""
        told = [self.reading(place) for place in range(GPUS)]
        gpus = [
            GpuSample(series, use, memory, temperature, power / 10, standing, job.processes())
            for series, (use, memory, temperature, power, standing), job in zip(self.series, told, self.jobs)
        ]
        return block_format.pack_sample(HostSample(self.name, 40, 30, tuple(gpus)))


def hourly(state: Path) -> Iterator[Row]:
    """The step at the end of an hour of a large fleet."""
    state.mkdir()
    history = HistoryWriter(state, timezone.utc)
    machines = [Machine(number) for number in range(LARGE)]
    fleets = [[machine.sample() for machine in machines] for _ in range(6)]
    took = []
    for number in range(60):
        began = time.perf_counter()
        history.record(fleets[number % 6], NOW + MINUTE * number)
        took.append(time.perf_counter() - began)
    yield Row(f"a minute of {LARGE} hosts is recorded in", 50, sorted(took)[30] * 1000, "ms")
    longest, total, done = 0.0, 0.0, False
    while not done:
        began = time.perf_counter()
        done = history.roll_up(NOW + HOUR, 0.25)
        longest = max(longest, time.perf_counter() - began)
        total += time.perf_counter() - began
    yield Row(f"an hour of {LARGE} hosts is rolled up in", 2, total, "s")
    yield Row("of which one build takes at most", 0.4, longest, "s")
    history.close()


def two_years(state: Path) -> Iterator[Row]:
    """A file as it is after two years; the chunks of some hosts serve for all."""
    state.mkdir()
    history = HistoryWriter(state, timezone.utc)
    machines = [Machine(number) for number in range(HOSTS)]
    history.record([machine.sample() for machine in machines], NOW)
    sources = [chunks(Machine(number)) for number in range(2)]
    connection = history.connect()
    with begin_database_transaction(connection):
        for number, machine in enumerate(machines):
            shape = block_format.pack_sample(HostSample(machine.name, 40, 30, tuple(bare(machine)))).gpu_set_id
            fill(connection, shape, sources[number % 2])
    month = size_of(history)
    yield Row(f"{HOSTS} hosts need in a month", 300, month, "MB")
    with begin_database_transaction(connection):
        for machine in machines:
            older(history, machine)
    yield Row(f"{LARGE} hosts need after two years", 1500, size_of(history) * LARGE / HOSTS, "MB")
    yield from reading(history)
    history.close()


def bare(machine: Machine) -> Iterator[GpuSample]:
    """Its GPUs, of which nothing is told."""
    for series in machine.series:
        yield GpuSample(series, None, None, None, None, OccupancySample("free"))


def chunks(machine: Machine) -> tuple[list[bytes], list[bytes], bytes]:
    """The hours of two days, the days of a month, and all of it by the hour."""
    long = buckets.create_empty_buckets(CHUNK_LENGTH_S[HOUR] // HOUR, GPUS)
    hours: list[bytes] = []
    days: list[bytes] = []
    for day in range(32):
        found = buckets.create_empty_buckets(CHUNK_LENGTH_S[300] // 300, GPUS)
        for number in range(24):
            hour = machine.hour()
            if day < 3:
                hours.append(block_format.pack_hour_block(hour))
            buckets.merge_buckets(found, number * 12, buckets.build_buckets(hour, 5))
            buckets.merge_buckets(long, day * 24 + number, buckets.build_buckets(hour, 60))
        days.append(buckets.pack_buckets(found))
    return hours, days, buckets.pack_buckets(long)


def fill(connection: sqlite3.Connection, shape: int, source: tuple[list[bytes], list[bytes], bytes]) -> None:
    """All that is kept of a host."""
    hours, days, long = source
    for number, block in enumerate(hours[:60]):
        store_history_chunk(connection, MINUTE, NOW - HOUR * (number + 1), shape, block)
    connection.execute("INSERT INTO due VALUES(?,?)", (TODAY, shape))  # today's are not in the longer ones
    for number in range(36):
        store_history_chunk(connection, 300, TODAY - DAY * (number + 1), shape, days[number % len(days)])
    newest = TODAY // CHUNK_LENGTH_S[HOUR] * CHUNK_LENGTH_S[HOUR]
    for number in range(2):
        store_history_chunk(connection, HOUR, newest - CHUNK_LENGTH_S[HOUR] * number, shape, long)


def older(history: HistoryWriter, machine: Machine) -> None:
    """What is added to it in two years: chunks of 32 days, and sums."""
    connection = history.connect()
    shape = block_format.pack_sample(HostSample(machine.name, 40, 30, tuple(bare(machine)))).gpu_set_id
    (block,) = connection.execute("SELECT block FROM chunk WHERE step=3600 AND shape=?", (shape,)).fetchone()
    newest = TODAY // CHUNK_LENGTH_S[HOUR] * CHUNK_LENGTH_S[HOUR]
    for number in range(2, 25):
        store_history_chunk(connection, HOUR, newest - CHUNK_LENGTH_S[HOUR] * number, shape, block)
    add_sums(history, machine)


def add_sums(history: HistoryWriter, machine: Machine) -> None:
    """Of four people a day."""
    connection = history.connect()
    today = date.fromtimestamp(TODAY).toordinal()
    host, model = history.find_name_id(connection, machine.name), history.find_name_id(connection, "A100 80 GB")
    people = [history.find_name_id(connection, f"user{number}") for number in range(40)]
    many = [2_000_000] * 4
    connection.executemany(
        f"INSERT INTO share VALUES({','.join('?' * 8)})",
        [
            (today - day, host, model, people[(day + number * 7 + host) % 40], *many)
            for day in range(762)
            for number in range(4)
        ],
    )
    seen = [11520, 10, 0, 0, 900, 8000, 30, 2000, 5, 11520, 900000, 8900, 890000]
    connection.executemany(
        f"INSERT INTO seen VALUES({','.join('?' * 16)})",
        [(today - day, host, model, *seen) for day in range(762)],
    )


def size_of(history: HistoryWriter) -> float:
    """The file, with what is beside it, in MB."""
    history.connect().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sum(path.stat().st_size for path in history.path.parent.iterdir()) / 1e6


def reading(history: HistoryWriter) -> Iterator[Row]:
    """How long a host's past and a month's sums take to read."""
    name = "gpu0007"
    several = (("day", 1, 60), ("day", 1, 300), ("week", 7, 300), ("month", 31, 300), ("month", 31, 3600))
    for what, days, step in (*several, ("year", 365, 3600)):
        yield Row(
            f"the {what} of a host, in steps of {step} s",
            10,
            quickest(history.read_host, name, NOW - days * DAY, NOW, step),
            "ms",
        )
    charts = ChartCache(replace(load_command_settings(None, {}).settings, state=history.path.parent), history)
    asked, now = CachedChartRequest(name, frozenset(), PeopleDirectory({}), PrivacySettings()), Now(NOW, timezone.utc)
    charts.start_build([name], patient=True)
    yield Row(
        "the charts of a host, all for the first time", 200, quickest(charts.render_host, asked, now, rounds=1), "ms"
    )
    yield Row("the same with a page, the longer ones kept", 20, quickest(charts.render_host, asked, now), "ms")
    first, last = date.fromtimestamp(NOW - 31 * DAY), date.fromtimestamp(NOW)
    yield Row("the sums of a month of 400 GPUs", 300, quickest(history.read_daily_usage, first, last, NOW), "ms")
    month = f"{date.fromtimestamp(NOW):%Y-%m}"
    command = [sys.executable, "-m", "site_builder", "stats", "--month", month, "--state", str(history.path.parent)]
    best = quickest(lambda: subprocess.run(command, env=environment(), check=True, capture_output=True), rounds=5)
    yield Row("gpuboard stats --month of 400 GPUs, from process start", 1000, best, "ms")


def quickest(what: Callable[..., object], *words: object, rounds: int = 20) -> float:
    """The best of so many rounds, in ms."""
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        what(*words)
        took.append(time.perf_counter() - began)
    return min(took) * 1000
