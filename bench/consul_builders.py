"""Two builders beside the load of consul_kv, one killed while it leads: no host is lost, doubled, or older again."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import Row
from tests.support.consul_cluster import ConsulCluster, Server

ROOT = Path(__file__).parent.parent
LOOK = 1.0
TAKEN_OVER = 15
PATIENCE = 90  # for the last build, on a machine that has much else to do


@dataclass
class Builder:
    """One builder with folders of its own, in a session of its own, so that all of it can be killed at once."""

    folder: Path
    seen: dict[str, float] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    built: float = 0.0
    builds: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    def start(self, agent: Server, prefix: str, every: int) -> None:
        """Build again and again from Consul."""
        self.folder.mkdir(exist_ok=True)
        folders = [word for name in ("data", "www", "state") for word in (f"--{name}", str(self.folder / name))]
        (self.folder / "data").mkdir(exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPUBOARD_CONF": "/dev/null"}
        environment["GPUBOARD_KV"] = f"consul://{agent.address}/{prefix}"
        command = [sys.executable, "-m", "site_builder", "build", "--every", str(every), *folders]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def name(self) -> str:
        """By which it leads."""
        try:
            return (self.folder / "state/builder").read_text().strip()
        except FileNotFoundError:
            return ""

    def kill(self) -> None:
        """As if its machine had lost its power."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def look(self) -> None:
        """What its board shows: every host once, none older than it was, and once fresh, always fresh."""
        try:
            board = json.loads((self.folder / "www/status.json").read_bytes())
        except FileNotFoundError:
            return
        if board["built"] == self.built:
            return
        self.built = board["built"]
        self.builds += 1
        names = [host["name"] for host in board["hosts"]]
        self.wrong |= (
            {f"{name} twice" for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
        )
        self.wrong |= {f"{name} gone" for name in self.seen if name not in set(names)}
        for host in board["hosts"]:
            name, seen = host["name"], host["seen"] or 0.0
            if seen < self.seen.get(name, 0.0):
                self.wrong.add(f"{name} older than before")
            if name in self.seen and host["state"] != "fresh":
                self.wrong.add(f"{name} {host['state']}")
            if host["state"] == "fresh":
                self.seen[name] = seen


@dataclass
class Builders:
    """Two of them."""

    cluster: ConsulCluster
    agent: Server
    prefix: str
    every: int
    all: list[Builder] = field(default_factory=list)
    took_over: float = 0.0

    def start(self, folder: Path) -> None:
        """One after the other, so that the first leads."""
        for number in (1, 2):
            self.all.append(Builder(folder / f"builder-{number}"))
            self.all[-1].start(self.agent, self.prefix, self.every)

    def leader(self) -> str:
        """Who leads, as the key in Consul says."""
        try:
            (entry,) = self.cluster.call("GET", f"/v1/kv/{self.prefix}/leader", server=self.agent)
        except (OSError, AssertionError, ValueError):
            return ""
        return b64decode(entry["Value"] or "").decode().split(" ")[0] if entry.get("Session") else ""

    async def watch(self, until: float, kill_at: float) -> None:
        """Look at both boards, and kill whoever leads at that moment."""
        loop = asyncio.get_running_loop()
        killed: Builder | None = None
        at = 0.0
        while time.monotonic() < until:
            for builder in self.all:
                await loop.run_in_executor(None, builder.look)
            if time.monotonic() > kill_at and not self.took_over:
                name = await loop.run_in_executor(None, self.leader)
                if killed is None:
                    killed = next((one for one in self.all if one.name == name), None)
                    at = time.monotonic()
                    if killed:
                        killed.kill()
                elif name not in ("", killed.name):
                    self.took_over = time.monotonic() - at
                    killed.start(self.agent, self.prefix, self.every)
            await asyncio.sleep(LOOK)

    def behind(self, entries: list[dict[str, str]]) -> int:
        """How many hosts of both boards have another snapshot than Consul has, after a while."""
        texts = {
            entry["Key"].rpartition("/")[2]: gzip.decompress(b64decode(entry["Value"])).split(b"# end\n")[3]
            for entry in entries
        }
        end = time.monotonic() + PATIENCE
        while True:
            count = 0
            for builder in self.all:
                for name, text in texts.items():
                    path = builder.folder / "data" / name / "host.txt"
                    # one that moved before this builder began says so in a line of its own
                    mine = path.read_bytes().split(b"\n", 1)[0] if path.exists() else b""
                    count += mine != text.split(b"\n", 1)[0]
            if not count or time.monotonic() > end:
                return count
            time.sleep(LOOK)

    def rows(self, entries: list[dict[str, str]]) -> Iterator[Row]:
        """What both boards were like."""
        wrong = sorted(set().union(*(one.wrong for one in self.all)))
        seen = [(one.builds, len(one.seen)) for one in self.all]
        print(f"     builds seen, and hosts fresh in them, of each builder: {seen} {wrong[:5]}")
        yield Row("hosts lost, doubled, or not fresh on a board", 0, len(wrong), "")
        yield Row("another builder leads after", TAKEN_OVER, self.took_over or 999, "s")
        yield Row("hosts of which a builder has not the newest", 0, self.behind(entries), "")

    def end(self) -> None:
        """Kill both."""
        for builder in self.all:
            builder.kill()
