"""Debian's Prometheus, and the file that it reads, for the tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.fleet import FIELDS
from site_builder.board.builder import Builder
from site_builder.board.outputs import metrics
from site_builder.core.clock import Now
from site_builder.core.model import Gpu, HostStatus, SharedMemory
from site_builder.fleet import summary
from site_builder.fleet.host_state import build_host_status
from site_builder.snapshots import gpu_tools
from tests.support import every_state as support_every_state
from tests.support.board_fixture import Lab
from tests.support.docs import ROOT
from tests.support.generated_fleet import NOW
from tests.support.missing import missing
from tests.support.ports import free_port

VERSION = "9.9"
ALERTS = ROOT / "docs/prometheus-alerts.yml"


def program(name: str) -> str:
    """Where a program of Debian's package is."""
    return shutil.which(name) or missing(f"{name} is not here; ./install.sh test installs prometheus")


def every_state(folder: Path) -> Lab:
    """A lab in which every state of a host and of a GPU is there."""
    lab = Lab(folder / "lab")
    for part in (
        support_every_state.atlas,
        support_every_state.hydra,
        support_every_state.nile,
        support_every_state.others,
        support_every_state.bookings,
    ):
        part(lab)
    return lab


def boards(lab: Lab) -> list[HostStatus]:
    """The hosts of a lab, as a build sees them now."""
    builder = Builder(lab.settings())
    now = Now(time.time(), lab.settings().zone)
    hosts, rules, _ = builder.read_inputs(now)
    return [build_host_status(host, rules, now).status for host in hosts]


def built(board: HostStatus, gpus_used: Mapping[str, int] | None = None) -> Any:  # noqa: ANN401
    """What the file takes of a built host; `gpus_used` replaces the people on it."""
    host = summary.summarize_host(board, None)
    used = {user: SimpleNamespace(gpu_count=count) for user, count in (gpus_used or {}).items()}
    counts = SimpleNamespace(
        use_by_person=used or host.use_by_person, gpus_booked=host.gpus_booked, booking_counts=host.booking_counts
    )
    lines = metrics.render_host_metrics(board)
    return SimpleNamespace(metric_lines=lines, last_seen=board.last_seen, summary=counts)


def text_of(
    host_statuses: Sequence[HostStatus],
    now: float = NOW,
    problem_count: int = 0,
    build_interval_s: int = 60,
    build_duration_s: float | None = None,
    gpus_used: Mapping[str, int] | None = None,
) -> bytes:
    """The whole file."""
    hosts = {board.name: built(board, gpus_used) for board in host_statuses}
    moment = Now(now, timezone.utc)
    return metrics.render_metrics(hosts, problem_count, moment, build_interval_s, build_duration_s, VERSION)


def series_of(values: Mapping[str, str]) -> list[dict[str, str]]:
    """What is scraped, as promtool reads it."""
    return [{"series": name, "values": samples} for name, samples in values.items()]


def promtool(folder: Path, cases: Mapping[str, Any]) -> str:
    """What promtool does not find as these cases say."""
    # JSON is YAML, and Python has a writer for it
    file = folder / "cases.yml"
    file.write_text(json.dumps(cases))
    command = [program("promtool"), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert (done.returncode == 0) == ("SUCCESS" in output), output
    return "" if done.returncode == 0 else output


class Prometheus:
    """One that runs, and what it answers."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.url = f"{self.root}/api/v1/"

    def ask(self, path: str, **query: str) -> Any:  # noqa: ANN401 # whatever its API says
        """An answer of its API; a refusal is told with its reason."""
        address = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 # our own
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(query, error.read()) from error

    def query(self, words: str) -> list[tuple[Mapping[str, str], float]]:
        """An instant query: labels and value of each series."""
        answer = self.ask("query", query=words)
        rows = [{"metric": {}, "value": answer["result"]}] if answer["resultType"] == "scalar" else answer["result"]
        return [(row["metric"], float(row["value"][1])) for row in rows]


@contextmanager
def prometheus(folder: Path, conf: str) -> Iterator[Prometheus]:
    """Debian's Prometheus with these settings, until the test is over; it has scraped once."""
    folder.mkdir()
    (folder / "prometheus.yml").write_text(conf)
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    log = folder / "log"
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log_file, stderr=log_file, env={**os.environ, "TZ": "UTC"}
        )
    try:
        prometheus_server, end = Prometheus(port), time.monotonic() + 60
        while not scraped(prometheus_server):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield prometheus_server
    finally:
        process.terminate()
        process.wait(30)


def scraped(prometheus_server: Prometheus) -> bool:
    """Whether it has asked its target, and how that went is known."""
    try:
        with urllib.request.urlopen(f"{prometheus_server.root}/-/ready", timeout=30):  # noqa: S310 # our own; 503 until it is
            pass
    except OSError:
        return False
    return bool(prometheus_server.query("up"))


def full_gpu() -> Gpu:
    """One that tells all that there is."""
    cells = {
        "clocks.current.sm": "1410",
        "fan.speed": "30",
        "ecc.errors.corrected.volatile.total": "0",
        "ecc.errors.uncorrected.volatile.total": "0",
        "remapped_rows.pending": "No",
        "remapped_rows.failure": "No",
        "gpu_recovery_action": "None",
        "clocks_event_reasons.active": "0x0000000000000004",
    }
    cells_by_field = {name: cells.get(name, "1") for name in FIELDS}
    content = f"# gpuboard 1 task=gpus host=atlas time=1 every=20 took_ms=1 rc=0\n{', '.join(cells_by_field)}\n"
    (row,) = gpu_tools.parse_gpus_of_tools(f"{content}{', '.join(cells_by_field.values())}\n# end\n".encode()).rows
    return row._replace(shared_memory=SharedMemory(total=0, used=0))
