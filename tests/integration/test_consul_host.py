"""GPU hosts and a real Consul of three servers: what registers is found, and no loss of servers loses data."""

from __future__ import annotations

import gzip
import os
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_builder.core.model import ConsulAccess, DiscoveredHost
from site_builder.discovery.hosts import HostDiscovery
from tests.support.consul_cluster import ConsulCluster, Server
from tests.support.consul_server import ROOT


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsulCluster]:
    folder = tmp_path_factory.mktemp("consul") / "three"
    consul_cluster = ConsulCluster(folder, performance={"raft_multiplier": 1, "rpc_hold_timeout": "200ms"})
    try:
        yield consul_cluster
    finally:
        consul_cluster.end()


class Host:
    """A GPU host without a driver, whose news is just that; and the Consul server that it talks to."""

    def __init__(self, folder: Path, name: str, server: Server) -> None:
        self.name, self.spool = name, folder / "spool" / name
        (folder / "home").mkdir(exist_ok=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "HOST": name,
            "GPUBOARD_SPOOL": str(folder / "spool"),
            "GPUBOARD_DEST": f"consul://{server.address}/lab",
            "GPUBOARD_LIMIT": "1",
            "GPUBOARD_PS_EVERY": "1",
        }

    def run(self, script: str, *words: str) -> tuple[int, str]:
        command = [str(ROOT / "scripts" / script), *words]
        done = subprocess.run(command, env=self.environment, cwd=self.spool.anchor, capture_output=True, check=False)
        return done.returncode, (done.stdout + done.stderr).decode()


def listed(cluster: ConsulCluster, folder: Path) -> dict[str, DiscoveredHost]:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "state").mkdir(exist_ok=True)
    access = ConsulAccess("gpuboard", address=cluster.running[0].address)
    hosts, problems = HostDiscovery(folder / "data", folder / "state", access).list_hosts(())
    assert problems == []
    return hosts


def test_a_host_that_registered_is_found_and_its_stopped_collector_is_reported(
    cluster: ConsulCluster, tmp_path: Path
) -> None:
    first_host, second_host = (Host(tmp_path, name, cluster.servers[0]) for name in ("atlas", "titan"))
    try:
        for host in (first_host, second_host):
            assert host.run("gpu-check.sh", "--register", host.name) == (0, "")

        def states() -> dict[str, str | None]:
            return {name: host.consul_status for name, host in listed(cluster, tmp_path).items()}

        cluster.wait_until(lambda: states() == {"atlas": "passing", "titan": "passing"}, "not both pass")
        assert second_host.run("gpu-check.sh", "kill", "titan")[0] == 0
        cluster.wait_until(lambda: states() == {"atlas": "passing", "titan": "critical"}, "nobody misses titan")
    finally:
        for host in (first_host, second_host):
            host.run("gpu-check.sh", "kill", host.name)
            assert host.run("gpu-check.sh", "--deregister", host.name) == (0, "")


def test_without_a_leader_the_old_snapshot_stays_and_the_next_tick_brings_the_newest(
    cluster: ConsulCluster, tmp_path: Path
) -> None:
    leader = cluster.wait_for_leader()
    kept, lost = cluster.followers()
    host = Host(tmp_path, "atlas", kept)

    def first_lines(how: str = "consistent") -> list[str]:
        try:
            (entry,) = cluster.call("GET", f"/v1/kv/lab/data/atlas?{how}", server=kept)
        except AssertionError:  # a follower may not have it yet
            return []
        return [line for line in gzip.decompress(b64decode(entry["Value"])).decode().splitlines() if "task=" in line]

    assert host.run("gpu-run.sh", "once") == (0, "")
    before = first_lines()
    cluster.wait_until(lambda: first_lines("stale") == before, "a follower lags behind")
    leader.kill()
    lost.kill()
    code, output = host.run("gpu-run.sh", "once")
    assert code == 1
    assert f"Consul at {kept.address} has no leader at the moment (" in output or "no answer within 1 s" in output
    assert first_lines("stale") == before  # without a leader no other answer can be had
    leader.start()
    cluster.wait_for_leader()
    cluster.wait_until(lambda: host.run("gpu-run.sh", "once")[0] == 0, "the push does not arrive")
    newest = [(host.spool / file).read_text().splitlines()[0] for file in ("gpus.csv", "processes.csv", "ps.txt")]
    assert first_lines()[:3] == newest
    lost.start()
