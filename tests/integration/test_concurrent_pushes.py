"""A whole cluster that boots at once, before an sshd that takes few connections at a time."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.host_push import FILES, sshd
from tests.support.missing import missing
from tests.support.pace import slowness, wall

SCRIPTS = Path(__file__).parents[2] / "scripts"
HOSTS = [f"gpu{number:02}" for number in range(12)]
PATIENCE = 60
# Of those that have not logged in yet sshd keeps two, and cuts the others off.
FEW = "MaxStartups 2:100:2\nLogLevel ERROR\n"


class Cluster:
    """Twelve hosts with a spool and a key each, and the data folder that they push to."""

    def __init__(self, folder: Path) -> None:
        """Make and enrol their keys."""
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir()
        self.keys = folder / "home/.config/gpuboard/keys"
        self.keys.mkdir(parents=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "GPUBOARD_SPOOL": str(folder / "spool"),
            "GPUBOARD_DEST": "ssh://web",
            "GPUBOARD_SSH_CONFIG": str(folder / "ssh_config"),
            "GPUBOARD_PS_EVERY": "1",
        }
        enrol = [str(SCRIPTS / "gpu-enrol.sh"), "--file", str(folder / "enrolled"), "--data", str(self.data), "add"]
        for host in HOSTS:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.keys / host], check=True)  # noqa: S607
            subprocess.run([*enrol, host], input=(self.keys / f"{host}.pub").read_bytes(), check=True)
            (folder / "spool" / host / "run").mkdir(parents=True)
        (folder / "spool").chmod(0o700)

    def take(self, number: int) -> None:
        """A new snapshot on each host."""
        for host in HOSTS:
            for file in FILES:
                task = file.partition(".")[0]
                line = f"# gpuboard 1 task={task} host={host} time={number} every=1 took_ms=1 rc=0\n# end\n"
                (self.folder / "spool" / host / file).write_text(line)

    def push(self, host: str, number: int) -> None:
        """Push as loop 3 does, once a second, until it has arrived."""
        began = time.monotonic()
        while not self.has(host, number):
            assert time.monotonic() - began < PATIENCE * slowness(wall), f"{host} did not arrive"
            self.script("gpu-run.sh", "push", HOST=host)
            time.sleep(0 if self.has(host, number) else 1)

    def push_all(self, number: int) -> None:
        """All hosts at the same moment."""
        self.take(number)
        with ThreadPoolExecutor(len(HOSTS)) as pool:
            list(pool.map(lambda host: self.push(host, number), HOSTS))

    def has(self, host: str, number: int) -> bool:
        """Whether this snapshot has arrived."""
        try:
            return f" time={number} " in (self.data / host / "host.txt").read_text()
        except FileNotFoundError:
            return False

    def script(self, name: str, *words: str, **env: str) -> None:
        """Run one of ours, whatever comes of it."""
        command, own = [str(SCRIPTS / name), *words], {**self.environment, **env}
        subprocess.run(
            command, env=own, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )  # a pipe would stay open

    def connections(self) -> Counter[str]:
        """How many ssh programs each host has."""
        connection_counts: Counter[str] = Counter()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if words[0] == "ssh":
                connection_counts.update(Path(word).name for word in words if word.startswith(f"{self.keys}/"))
        return connection_counts


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if not os.access("/usr/sbin/sshd", os.X_OK):
        missing("sshd is not here; ./install.sh test installs it")
    new_cluster = Cluster(tmp_path)
    yield new_cluster
    new_cluster.script("gpu-check.sh", "kill")


def test_all_arrive_though_sshd_takes_few_at_a_time_and_none_ever_has_two_connections(cluster: Cluster) -> None:
    most: Counter[str] = Counter()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.3):
            for host, count in cluster.connections().items():
                most[host] = max(most[host], count)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with sshd(cluster.folder, FEW):
            cluster.push_all(1_700_000_001)
            kept = cluster.connections()
            cluster.push_all(1_700_000_002)
            assert kept == cluster.connections() == dict.fromkeys(HOSTS, 1)
    finally:
        done.set()
        watcher.join()
    assert set(most.values()) == {1}
