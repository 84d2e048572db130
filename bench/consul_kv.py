"""Consul's KV as the engine: a thousand hosts that put a snapshot every ten seconds, against three real servers.

One process acts as all hosts, through one agent, as the agent of each host would do it. In the middle the leading
server is killed. Whatever Consul took must still be there at the end.
"""

import asyncio
import gzip
import http.client
import json
import os
import statistics
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.consul_builders import Builders
from bench.fleet import Machine, native
from bench.host_push import renew
from bench.measure import Host, Row, adopt_orphans, children_cpu, process_cpu
from tests.support.consul_cluster import ConsulCluster, Server

HOSTS = int(os.environ.get("BENCH_HOSTS", "1000"))
SECONDS = int(os.environ.get("BENCH_SECONDS", "90"))
EVERY = float(os.environ.get("BENCH_EVERY", "10"))
LIMIT = 10.0  # as GPUBOARD_LIMIT
FILES = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")
LAB = "bench"
PREFIX = f"{LAB}/data/"
PUSHES = 20
OLD = b"time=1700000000"


@dataclass
class Put:
    """One push: when it began (seconds since the load began), how long it took, and whether Consul took it."""

    host: int
    tick: int
    began: float
    took: float
    failure: str = ""


@dataclass
class Load:
    """All hosts, each with its own phase; one that still waits for an answer leaves out a tick, as gpu-run.sh does."""

    agent: Server
    texts: list[tuple[bytes, bytes]]
    puts: list[Put] = field(default_factory=list)
    began: float = 0.0
    epoch: int = 0

    def value(self, host: int, tick: int) -> bytes:
        """Its snapshot of that tick: other numbers, and another time, than the one before."""
        stamp = b"time=%d" % (self.epoch + round(tick * EVERY))
        return gzip.compress(self.texts[host][tick % 2].replace(OLD, stamp), 6, mtime=0)

    async def put(self, host: int, tick: int) -> str:
        """As curl does it: a connection, one PUT, the answer. Why it failed, or nothing."""
        body = self.value(host, tick)
        head = f"PUT /v1/kv/{PREFIX}gpu{host:04} HTTP/1.1\r\nHost: consul\r\nConnection: close\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.agent.port)
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
        status, _, said = answer.partition(b"\r\n\r\n")
        return "" if b" 200 " in status[:20] and said.strip() == b"true" else f"{status[9:12].decode()} {said[:60]!r}"

    async def host(self, host: int, ticks: int) -> None:
        """One host's life."""
        phase = host * EVERY / len(self.texts)
        for tick in range(ticks):
            due = self.began + phase + tick * EVERY
            rest = due - time.monotonic()
            if rest < -EVERY:
                continue  # the last push took longer than a tick
            await asyncio.sleep(max(0.0, rest))
            at = time.monotonic()
            try:
                failure = await asyncio.wait_for(self.put(host, tick), LIMIT)
            except (OSError, asyncio.TimeoutError) as error:
                failure = type(error).__name__
            self.puts.append(Put(host, tick, at - self.began, time.monotonic() - at, failure))

    async def run(self, ticks: int, *beside: "asyncio.Future[None]") -> None:
        """All hosts at once."""
        hosts = (self.host(number, ticks) for number in range(len(self.texts)))
        await asyncio.gather(*hosts, *beside)


@dataclass
class Seen:
    """What was measured beside the load."""

    gets: list[tuple[float, float, int]] = field(default_factory=list)  # when, seconds, bytes
    killed: float = 0.0
    lost: str = ""
    led_again: float = 0.0


def texts(hosts: int) -> list[tuple[bytes, bytes]]:
    """Two snapshots of each host, of 8 GPUs and 16 processes, with other numbers."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        for number in range(hosts):
            pair = []
            for tick in range(2):
                machine = Machine.number(number, tick)
                native(Path(name), machine, 1_700_000_000)
                pair.append(b"".join((Path(name) / machine.name / file).read_bytes() for file in FILES))
            found.append((pair[0], pair[1]))
    return found


def recursive_get(agent: Server) -> tuple[float, bytes]:
    """What each build does: all hosts in one answer. Its seconds, and its bytes."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=LIMIT)
    try:
        connection.request("GET", f"/v1/kv/{PREFIX}?recurse")
        response = connection.getresponse()
        body = response.read()
        return time.monotonic() - began, body if response.status == 200 else b""
    finally:
        connection.close()


async def watch(load: Load, seen: Seen, seconds: float) -> None:
    """A builder that reads every ten seconds."""
    loop = asyncio.get_running_loop()
    while time.monotonic() - load.began < seconds:
        try:
            took, body = await loop.run_in_executor(None, recursive_get, load.agent)
        except OSError:
            took, body = LIMIT, b""
        if body:
            seen.gets.append((time.monotonic() - load.began, took, len(body)))
        await asyncio.sleep(EVERY)


async def lose_the_leader(cluster: ConsulCluster, load: Load, seen: Seen, at: float) -> None:
    """Kill the leading server, and start it again some ticks later."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, load.began + at - time.monotonic()))
    leader = cluster.leader()
    assert leader
    leader.kill()
    seen.lost = leader.name
    seen.killed = time.monotonic() - load.began
    while cluster.leader() is None:
        await asyncio.sleep(0.1)
    seen.led_again = time.monotonic() - load.began
    await asyncio.sleep(2 * EVERY)
    await loop.run_in_executor(None, leader.start)


def stored_ticks(load: Load, body: bytes) -> dict[int, int]:
    """Which tick of each host Consul has at the end; all four files of it must be there, and of the same tick."""
    found = {}
    for entry in json.loads(body):
        text = gzip.decompress(b64decode(entry["Value"]))
        times = {int(line.split(b" time=")[1].split()[0]) for line in text.splitlines() if b" time=" in line}
        assert len(times) == 1, entry["Key"]
        assert text.count(b"# end") == len(FILES), entry["Key"]
        found[int(entry["Key"][-4:])] = round((times.pop() - load.epoch) / EVERY)
    return found


def lost(load: Load, stored: dict[int, int]) -> int:
    """How many hosts have something older than what Consul took last."""
    taken: dict[int, int] = {}
    for put in load.puts:
        if not put.failure:
            taken[put.host] = max(taken.get(put.host, -1), put.tick)
    return sum(stored.get(host, -1) < tick for host, tick in taken.items()) + len(load.texts) - len(taken)


def disk(server: Server) -> tuple[float, float]:
    """MB of its raft log, and of its snapshots."""
    raft = server.folder / "data/raft"
    snapshots = sum(file.stat().st_size for file in raft.glob("snapshots/*/*"))
    return (raft / "raft.db").stat().st_size / 1e6, snapshots / 1e6


def memory(server: Server) -> float:
    """MB that it takes."""
    assert server.process
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def percentile(values: list[float], share: float) -> float:
    """The value below which that share lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(folder: Path) -> Iterator[Row]:
    """One run."""
    snapshots = texts(HOSTS)
    cluster = ConsulCluster(folder / "consul")
    try:
        load = Load(cluster.add_agent("agent"), snapshots)
        ticks = int(SECONDS // EVERY)
        seen = Seen()
        builders = Builders(cluster, load.agent, LAB, int(max(EVERY, 5)))
        before = {server.name: server_cpu(server) for server in [*cluster.servers, load.agent]}
        load.began, load.epoch = time.monotonic(), int(time.time())
        builders.start(folder)
        try:
            asyncio.run(whole(cluster, load, seen, builders, ticks))
            took = time.monotonic() - load.began
            for server in [*cluster.servers, load.agent]:
                tell_cost(server, (server_cpu(server) - before[server.name]) / took, seen, load)
            cluster.wait_for_leader()
            _, body = recursive_get(load.agent)
            yield from builders.rows(json.loads(body))
        finally:
            builders.end()
        yield from told(load, seen, stored_ticks(load, body))
        for way, cpu_ms in push_costs(folder, load.agent):
            yield Row(f"one push on the host, {way}, CPU", 100, cpu_ms, "ms")
    finally:
        cluster.end()


def server_cpu(server: Server) -> float:
    """CPU seconds that it has taken so far."""
    assert server.process
    return process_cpu(server.process.pid)


def tell_cost(server: Server, share: float, seen: Seen, load: Load) -> None:
    """What a server takes; of the one that was killed nobody knows the CPU time of before."""
    cpu = "was killed" if server.name == seen.lost else f"{100 * share:.1f} % of a core"
    where = "" if server is load.agent else "; log {:.0f} MB, snapshots {:.1f} MB".format(*disk(server))
    print(f"     {server.name}: {cpu}, {memory(server):.0f} MB of memory{where}")


def push_costs(folder: Path, agent: Server) -> Iterator[tuple[str, float]]:
    """CPU milliseconds of one push with all that gpu-run.sh does for it: a new connection each, by curl."""
    adopt_orphans()
    (folder / "host").mkdir()
    host = Host(folder / "host")
    host.environment.update(GPUBOARD_PS_EVERY="60")
    host.script("gpu-run.sh", "once")
    to_consul = {"GPUBOARD_DEST": f"consul://{agent.address}/bench"}
    for way, settings in (("folder", {}), ("Consul", to_consul), ("Consul, registered", to_consul)):
        host.environment.update(settings)
        if way.endswith("registered"):
            (host.folder / "spool/gpu1/registered").touch()
        renew(host, 0)
        host.script("gpu-run.sh", "push")
        before = children_cpu()
        for number in range(1, PUSHES + 1):
            renew(host, number)
            host.script("gpu-run.sh", "push")
        yield way, (children_cpu() - before) / PUSHES * 1000


async def whole(cluster: ConsulCluster, load: Load, seen: Seen, builders: Builders, ticks: int) -> None:
    """The load, a reader, two builders, and the loss of both leaders: first of the servers', then of the builders'."""
    seconds = ticks * EVERY
    beside = (
        watch(load, seen, seconds),
        lose_the_leader(cluster, load, seen, seconds / 3),
        builders.watch(load.began + seconds, load.began + seconds * 2 / 3),
    )
    await load.run(ticks, *(asyncio.ensure_future(one) for one in beside))


def told(load: Load, seen: Seen, stored: dict[int, int]) -> Iterator[Row]:
    """What the load saw, against what a lab needs."""
    quiet = [put for put in load.puts if put.began + put.took < seen.killed]
    after = [put for put in load.puts if put.began + put.took >= seen.killed]
    good = sorted(put.began + put.took for put in load.puts if not put.failure)
    gap = max(later - before for before, later in zip(good, good[1:]))
    failed = [put for put in load.puts if put.failure]
    reasons = sorted({put.failure for put in failed})
    print(f"     {len(load.puts)} PUTs of {len(load.value(0, 0))} bytes, {len(failed)} failed {reasons}")
    took = [put.took for put in quiet]
    yield Row("PUT, median", 100, 1000 * statistics.median(took), "ms")
    yield Row("PUT, 99 of 100", 1000, 1000 * percentile(took, 0.99), "ms")
    yield Row("PUTs that failed while all servers lived", 0, sum(bool(put.failure) for put in quiet), "")
    gets = [get[1] for get in seen.gets if get[2]]
    yield Row(f"all hosts in one get ({seen.gets[-1][2] / 1e6:.1f} MB), median", 1.0, statistics.median(gets), "s")
    yield Row("another server leads after", 10, seen.led_again - seen.killed, "s")
    yield Row("nothing could be written for", 10, gap, "s")
    yield Row(f"PUTs that failed of {len(after)} since", len(after) / 5, sum(bool(put.failure) for put in after), "")
    yield Row("hosts with less than what Consul took", 0, lost(load, stored), "")


def rows() -> Iterator[Row]:
    """The benchmark."""
    with tempfile.TemporaryDirectory() as name:
        yield from measure(Path(name))
