"""Two builders that share Consul report everything once, even if the leader is killed while it sends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from site_builder.alerts.model import AlertState
from site_builder.alerts.store import ConsulAlertStore
from tests.support import kv_fixtures
from tests.support.board_fixture import gpu
from tests.support.command_line import clean_environment
from tests.support.consul_server import ConsulServer
from tests.support.kv_fixtures import Hosts
from tests.support.sender_fixtures import Receiver, run_receiver, wait_until

SETTINGS = {"GPUBOARD_STALE_AFTER": "1s", "GPUBOARD_DOWN_AFTER": "5s"}
RULES = "[host-down]\ndelay = 0s\nresolve_after = 0s\n[host-new]\non = no\n"


class World:
    """A Consul, two web hosts that build, and a channel."""

    def __init__(self, folder: Path, server: ConsulServer, web: Receiver) -> None:
        self.folder, self.server, self.web = folder, server, web
        self.hosts = Hosts(folder / "hosts", server.address)
        self.rules = folder / "alerts.conf"
        self.rules.write_text(RULES)
        (folder / "book").mkdir()
        self.alert_state = ConsulAlertStore(folder / "book", kv_fixtures.access(server.address))
        self.builders: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """A builder; its sender is a session of its own."""
        home = self.folder / name
        (home / "data").mkdir(parents=True)
        alerts = {"GPUBOARD_NOTIFY": f"lab={self.web.url}", "GPUBOARD_ALERTS": str(self.rules)}
        builder_environment = {**SETTINGS, **alerts, **kv_fixtures.environment(self.server.address)}
        command = [sys.executable, "-m", "site_builder", "build", "--every", "1"]
        self.builders[name] = subprocess.Popen(command, cwd=home, env=clean_environment(**builder_environment))

    def push(self) -> None:
        self.hosts.push("atlas", gpu(uuid="GPU-atlas"), every=1)

    def pushes_until(self, holds: Callable[[], object]) -> None:
        """The host is well until something is so."""

        def look() -> object:
            self.push()
            return holds()

        wait_until(look)

    def leader(self) -> str:
        """Who leads."""
        leader_words = (self.hosts.get("leader") or b"").split()
        names = {self.name_of(name): name for name in self.builders}
        return names.get(leader_words[0], "") if leader_words else ""

    def name_of(self, name: str) -> bytes:
        path = self.folder / name / "state/builder"
        return path.read_bytes().strip() if path.exists() else b""

    def read(self) -> AlertState:
        return self.alert_state.read()

    def end(self) -> None:
        for builder in self.builders.values():
            builder.kill()
            builder.wait()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    server = ConsulServer(tmp_path / "consul")
    with run_receiver() as web:
        new_world = World(tmp_path, server, web)
        try:
            yield new_world
        finally:
            new_world.end()
            server.stop()


def senders(world: World) -> list[int]:
    """Processes that send, of the two builders here."""
    process_ids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"post.main" in (path / "cmdline").read_bytes() and world.folder in (path / "cwd").readlink().parents:
                process_ids.append(int(path.name))
        except OSError:
            continue
    return process_ids


def test_a_killed_leader_is_followed_by_one_that_repeats_nothing(world: World) -> None:
    world.push()
    for name in ("one", "two"):
        world.start(name)
    world.web.answers = [(0, {})]  # it takes the first letter, and does not answer
    # until one has looked, and saw that all is well
    world.pushes_until(lambda: world.leader() and world.read().started_at and not world.read().conditions)
    first = world.leader()
    wait_until(lambda: world.web.got)
    (notification,) = world.read().notifications
    assert notification.claimed_by.encode().startswith(world.name_of(first))
    world.builders[first].send_signal(signal.SIGKILL)
    for pid in senders(world):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: world.leader() not in ("", first))
    world.pushes_until(lambda: [one.status for one in world.read().history] == ["sent"])
    titles = [json.loads(one)["title"] for one in world.web.got]
    assert titles[0] == "atlas is down"
    assert titles[1].startswith("atlas is back")
    assert len(titles) == 2
    assert world.read().notifications == (notification,)  # it may have arrived: written off when its claim is old
