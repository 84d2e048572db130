"""Two builders, six hosts, three Consul servers: whoever is lost, the board goes on, and tells no more than is true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import kv_fixtures
from tests.support.board_fixture import Lab, gpu
from tests.support.command_line import clean_environment
from tests.support.consul_cluster import ConsulCluster
from tests.support.kv_fixtures import Hosts
from tests.support.pace import check, wall

PATIENCE = 60
NAMES = [f"gpu{number}" for number in range(6)]
# every=1, so that a host is stale after 3 + 6 s; a cluster that elects a leader may take half of that
SETTINGS = {"GPUBOARD_STALE_AFTER": "6s", "GPUBOARD_DOWN_AFTER": "300s"}


class World:
    """All of them; the memory that is used on a host's GPU is the number of its snapshot."""

    def __init__(self, folder: Path) -> None:
        self.cluster = ConsulCluster(folder / "consul")
        self.agent = self.cluster.add_agent("agent")
        self.folder = folder
        self.hosts = Hosts(folder / "hosts", self.agent.address)
        self.pushed = dict.fromkeys(NAMES, 0)
        self.cut: set[str] = set()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.push, daemon=True)
        self.thread.start()
        self.labs = {name: Lab(folder / name) for name in ("one", "two")}
        self.builders: dict[str, subprocess.Popen[bytes]] = {}
        for name in self.labs:
            self.start(name)

    def push(self) -> None:
        """All hosts, once a second; what Consul does not take is tried again with the next."""
        while not self.ended.wait(1):
            for name in NAMES:
                if name in self.cut:
                    continue
                try:
                    self.hosts.push(name, gpu(0, self.pushed[name] + 1, uuid=f"GPU-{name}"), every=1)
                    self.pushed[name] += 1
                except (OSError, AssertionError):
                    break

    def start(self, name: str) -> None:
        """A builder, in a group of processes of its own."""
        self.builders[name] = subprocess.Popen(
            [sys.executable, "-m", "site_builder", "build", "--every", "1"],
            cwd=self.folder / name,
            env=clean_environment(**SETTINGS, **kv_fixtures.environment(self.agent.address)),
            start_new_session=True,
        )

    def kill(self, name: str) -> None:
        """As if its machine had lost its power."""
        os.killpg(self.builders[name].pid, signal.SIGKILL)
        self.builders[name].wait()

    def board(self, name: str) -> dict[str, Any]:
        """What a builder tells, by host; and what is wrong."""
        try:
            board_status = self.labs[name].status()
        except (OSError, ValueError):
            return {}
        names = [host["name"] for host in board_status["hosts"]]
        assert len(names) == len(set(names)), names
        return {host["name"]: host for host in board_status["hosts"]}

    def used(self, name: str) -> dict[str, int]:
        """The number of the snapshot that is shown of each host; of one that is not fresh nothing."""
        host_gpus = ((host, host_status["gpus"]) for host, host_status in self.board(name).items())
        return {
            host: int(gpus[0]["memory.used"]) for host, gpus in host_gpus if gpus and gpus[0]["memory.used"] is not None
        }

    def states(self, name: str) -> dict[str, str]:
        return {host: host_status["state"] for host, host_status in self.board(name).items()}

    def leader(self) -> str:
        """The folder of who leads."""
        try:
            leader_words = (self.hosts.get("leader") or b"").split()
            (entry,) = self.hosts.call("GET", f"/v1/kv/{kv_fixtures.PREFIX}/leader") or [{}]
        except (OSError, AssertionError):
            return ""
        names = {(lab.state / "builder").read_bytes().strip(): name for name, lab in self.labs.items()}
        return names.get(leader_words[0], "") if leader_words and entry.get("Session") else ""

    def log(self, name: str) -> str:
        path = self.labs[name].state / "build.log"
        return path.read_text() if path.exists() else ""

    def wait_until(self, holds: Callable[[], object]) -> float:
        """How long it took."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() < began + PATIENCE, [(name, self.board(name)) for name in self.labs]
            time.sleep(0.1)
        return time.monotonic() - began

    def catches_up(self, name: str) -> bool:
        """Whether a board shows of each host what it had pushed when we began to look, or later."""
        wanted = dict(self.pushed)
        self.wait_until(lambda: all(self.used(name).get(host, -1) >= number for host, number in wanted.items()))
        return True

    def end(self) -> None:
        self.ended.set()
        self.thread.join()
        for name in self.builders:
            if self.builders[name].poll() is None:
                self.kill(name)
        self.cluster.end()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    new_world = World(tmp_path_factory.mktemp("world"))
    try:
        yield new_world
    finally:
        new_world.end()


def test_both_builders_show_every_host_and_one_of_them_leads(world: World) -> None:
    for name in world.labs:
        assert world.catches_up(name)
        assert world.states(name) == dict.fromkeys(NAMES, "fresh")
    world.wait_until(world.leader)


def test_the_loss_of_the_leading_server_is_over_within_seconds_and_no_number_goes_back(world: World) -> None:
    before = {name: world.used(name) for name in world.labs}
    lost = world.cluster.wait_for_leader()
    lost.kill()
    began = time.monotonic()
    pushed = dict(world.pushed)

    def goes_on() -> bool:
        for name, numbers in before.items():
            shown = world.used(name)
            assert all(number >= numbers.get(host, 0) for host, number in shown.items())
            numbers.update(shown)
        return all(numbers[host] > pushed[host] + 1 for numbers in before.values() for host in NAMES)

    world.wait_until(goes_on)
    check(time.monotonic() - began, 20, wall)
    for name in world.labs:
        assert world.states(name) == dict.fromkeys(NAMES, "fresh")
    lost.start()


def test_when_the_machine_of_the_leading_builder_dies_another_leads_within_15_seconds_and_a_host_cut_off_is_stale(
    world: World,
) -> None:
    world.wait_until(world.leader)
    lost = world.leader()
    (next_leader,) = set(world.labs) - {lost}
    world.kill(lost)
    world.cut.add("gpu3")  # meanwhile, since both take ten seconds
    check(world.wait_until(lambda: world.leader() == next_leader), 15, wall)
    world.wait_until(lambda: "this builder is now the leader: " in world.log(next_leader))
    world.wait_until(lambda: world.states(next_leader)["gpu3"] == "stale")
    connected_hosts = [host for host in NAMES if host != "gpu3"]
    world.wait_until(
        lambda: [world.states(next_leader)[host] for host in connected_hosts] == ["fresh"] * len(connected_hosts)
    )
    world.cut.clear()
    assert world.catches_up(next_leader)
    world.start(lost)
    assert world.catches_up(lost)
    assert world.leader() == next_leader


def test_a_builder_that_is_killed_alone_gives_the_lead_away_at_once(world: World) -> None:
    lost = world.leader()
    (next_leader,) = set(world.labs) - {lost}
    world.builders[lost].kill()
    world.builders[lost].wait()
    check(world.wait_until(lambda: world.leader() == next_leader), 7, wall)
    world.start(lost)
    assert world.catches_up(lost)


def test_without_a_leading_server_all_grows_old_the_page_says_why_and_it_comes_back(world: World) -> None:
    lost = [world.cluster.wait_for_leader(), world.cluster.followers()[0]]
    for server in lost:
        server.kill()
    world.wait_until(lambda: set(world.states("one").values()) == {"stale"})
    (problem_text,) = (
        problem["what"] for problem in world.labs["one"].status()["problems"] if problem["where"].startswith("Consul")
    )
    assert "is used" in problem_text
    for server in lost:
        server.start()
    world.cluster.wait_for_leader()
    for name in world.labs:
        assert world.catches_up(name)
        world.wait_until(lambda name=name: not world.labs[name].status()["problems"])  # type: ignore[misc]
    world.wait_until(world.leader)
