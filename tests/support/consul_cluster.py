"""Three real Consul servers on loopback, as one cluster: one can be killed, paused and started again in its place."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.consul_server import ROOT_TOKEN, program
from tests.support.ports import free_ports

SERVERS = 3
PATIENCE = 60.0  # an election takes 2 to 5 s on a quiet machine


class Server:
    """One server of a cluster; its data and its ports outlive its process."""

    def __init__(self, folder: Path, name: str, ports: dict[str, int], settings: dict[str, object]) -> None:
        """Write its settings, and start it."""
        folder.mkdir()
        self.folder, self.name, self.port, self.raft_port = folder, name, ports["http"], ports.get("server", 0)
        own = {"node_name": name, "data_dir": str(folder / "data"), "ports": {"dns": -1, "grpc": -1, **ports}}
        (folder / "settings.json").write_text(json.dumps({**settings, **own}))
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        """Where it speaks http."""
        return f"127.0.0.1:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, also again after `kill` or `stop`, with what it has on its disk."""
        assert not self.runs
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CONSUL_")}
        # a user's own limit is often 1,024 files, which is too few for so many connections
        command = ["sh", "-c", 'ulimit -n 8192 && exec "$@"', "-"]
        command += [program(), "agent", f"-config-file={self.folder / 'settings.json'}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environment)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it in an orderly way; it leaves its place in the cluster to nobody."""
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it hang for a while: its port takes connections, and nobody answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


class ConsulCluster:
    """The servers; what is asked of the cluster is asked of its leader or of any that runs."""

    def __init__(self, folder: Path, *, acl: bool = False, **extra_settings: object) -> None:
        """Start them, and wait until one leads."""
        folder.mkdir()
        numbers = iter(free_ports(3 * SERVERS))
        ports = [{"http": next(numbers), "server": next(numbers), "serf_lan": next(numbers)} for _ in range(SERVERS)]
        self.token = ROOT_TOKEN if acl else ""
        settings: dict[str, object] = {
            "server": True,
            "bootstrap_expect": SERVERS,
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "retry_join": [f"127.0.0.1:{server_port['serf_lan']}" for server_port in ports],
            "retry_interval": "1s",
            "performance": {"raft_multiplier": 1},
            "autopilot": {"cleanup_dead_servers": False},  # one that comes back is a voter at once
            "limits": {"http_max_conns_per_client": 4000},  # all of a test's hosts are one address
            "disable_update_check": True,
            "log_level": "warn",
            **extra_settings,
        }
        if acl:
            settings["acl"] = {"enabled": True, "default_policy": "deny", "tokens": {"master": ROOT_TOKEN}}
        names = [f"server-{number}" for number in range(1, SERVERS + 1)]
        self.folder, self.settings = folder, settings
        self.servers: list[Server] = []
        self.agents: list[Server] = []
        try:
            for name, server_port in zip(names, ports):
                self.servers.append(Server(folder / name, name, {**server_port, "serf_wan": -1}, settings))
            self.wait_for_leader()
            self.wait_until(lambda: len(self.voters()) == SERVERS, "not all servers have a vote")
        except BaseException:
            self.end()
            raise

    def add_agent(self, name: str) -> Server:
        """An agent that is no server: it asks whichever server lives, as the agent of a GPU host does."""
        http_port, lan = free_ports(2)
        ports = {"http": http_port, "serf_lan": lan}
        settings = {key: value for key, value in self.settings.items() if key != "bootstrap_expect"}
        agent = Server(self.folder / name, name, ports, {**settings, "server": False})
        self.agents.append(agent)
        self.wait_until(lambda: self.led_by(agent), f"{name} found no server")
        return agent

    @property
    def running(self) -> list[Server]:
        """Those that live."""
        return [server for server in self.servers if server.runs]

    @property
    def addresses(self) -> list[str]:
        """Where each speaks http, whether it lives or not."""
        return [server.address for server in self.servers]

    def leader(self) -> Server | None:
        """Who leads, as a majority of the servers sees it; None where nobody does."""
        reported_leaders = [self.led_by(server) for server in self.running]
        for server in self.running:
            if reported_leaders.count(f"127.0.0.1:{server.raft_port}") > SERVERS // 2:
                return server
        return None

    def led_by(self, server: Server) -> str:
        """The address of the leader, as this server knows it; empty where it knows none."""
        try:
            return str(self.call("GET", "/v1/status/leader", server=server) or "")
        except (OSError, AssertionError, http.client.HTTPException):
            return ""

    def wait_for_leader(self) -> Server:
        """The leader, once there is one that takes writes."""

        def leads() -> Server | None:
            leader = self.leader()
            if leader is None:
                return None
            try:
                self.call("PUT", "/v1/kv/tests/cluster-leads", "yes", server=leader)
            except (OSError, AssertionError, http.client.HTTPException):
                return None
            return leader

        leader = self.wait_until(leads, "no server leads")
        assert isinstance(leader, Server)
        return leader

    def wait_until(self, condition: Callable[[], object], failure: str) -> object:
        """What it says, once it holds; fails with the ends of the servers' logs."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if outcome := condition():
                return outcome
            time.sleep(0.05)
        logs = "\n".join(f"{server.name}: {server.log.read_text()[-1000:]}" for server in [*self.servers, *self.agents])
        pytest.fail(f"{failure}: {logs}")

    def followers(self) -> list[Server]:
        """Those that run and do not lead."""
        leader = self.leader()
        return [server for server in self.running if server is not leader]

    def voters(self) -> list[str]:
        """The names of the servers that have a vote, as any that runs knows them."""
        for server in self.running:
            try:
                raft_configuration = self.call("GET", "/v1/operator/raft/configuration?stale", server=server)
            except (OSError, AssertionError, http.client.HTTPException):
                continue
            return [peer["Node"] for peer in raft_configuration["Servers"] if peer["Voter"]]
        return []

    def call(self, method: str, path: str, body: object = None, server: Server | None = None) -> Any:  # noqa: ANN401 whatever Consul says
        """Ask one server's API (the first that runs), with all rights; bytes go as they are, all else as JSON."""
        server = server or self.running[0]
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, content, {"X-Consul-Token": self.token} if self.token else {})
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, (path, response.status, text)
            return json.loads(text or b"null")
        finally:
            connection.close()

    def end(self) -> None:
        """Kill all that runs."""
        for server in [*self.servers, *self.agents]:
            if server.runs:
                server.kill()
