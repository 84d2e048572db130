"""What `gpuboard list` of a board elsewhere takes, and what of that is the drawing of its table."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

from bench.build_site import environment
from bench.fleet import fleet
from bench.measure import Row
from site_builder.client import loader
from site_builder.client.render import format_gpu_table
from site_builder.core.clock import Now
from tests.support.board_fixture import Lab
from tests.support.booking_fixtures import served

RUNS = 5
HOSTS = 1000


def seconds(folder: Path, *words: str) -> float:
    """One `gpuboard list`, from its start to its end."""
    began = time.monotonic()
    command = [sys.executable, "-m", "site_builder", "list", *words]
    subprocess.run(command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def drawing(folder: Path) -> float:
    """The best of some drawings of the table, for a terminal."""
    told, why = loader.parse_status((folder / "www/status.json").read_bytes())
    assert told, why
    found = []
    for _ in range(RUNS):
        began = time.monotonic()
        format_gpu_table(told, Now(told.built, timezone.utc), 140, colour=True)
        found.append(time.monotonic() - began)
    return min(found)


def rows() -> Iterator[Row]:
    """The promises of the list."""
    with tempfile.TemporaryDirectory() as path:
        lab = Lab(Path(path) / "list")
        fleet(lab.data, HOSTS)
        folder = lab.data.parent
        with served(lab) as url:
            seconds(folder, "--url", url)  # the first one compiles
            took = [seconds(folder, "--url", url) for _ in range(RUNS)]
            words = min(seconds(folder, "--url", url, "state:free", "mem>20") for _ in range(RUNS))
        yield Row(f"list of {HOSTS} hosts from a URL, best of {RUNS}", 1, min(took), "s")
        yield Row("the same, median", 1, statistics.median(took), "s")
        yield Row("the same with words, best", 1, words, "s")
        yield Row("its table alone", 0.25, drawing(folder), "s")
