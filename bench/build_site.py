"""What a build costs, from 10 to 5,000 hosts, with native and with legacy files."""

import gzip
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.fleet import fleet
from bench.measure import ROOT, Row

RUNS = 5
# From process start to the last fleet file, all changed: as promised for 50 and 1,000 hosts, and in line with it.
ALL_CHANGED = {10: 0.4, 50: 0.4, 200: 0.6, 1000: 1.5, 5000: 7.5}
TICK = """
import gc, sys, time
from pathlib import Path
from bench.fleet import fleet
from site_builder.board.builder import Builder
from site_builder.core.command_options import load_command_settings
gc.disable()
builder = Builder(load_command_settings(None, {}).settings, build_interval_s=10)
best = 9e9
for tick in range(int(sys.argv[2])):
    fleet(Path("data"), int(sys.argv[1]), tick + 1)
    began = time.time()
    builder.build(began)
    last = max(path.stat().st_mtime for path in Path("www").iterdir() if path.is_file())
    if tick:
        best = min(best, last - began)
    gc.collect()
print(best)
"""


def run(folder: Path) -> tuple[float, float, float]:
    """One `gpuboard build`: seconds to its last fleet file, peak memory in MB, and seconds after that."""
    began = time.time()
    process = subprocess.Popen([sys.executable, "-m", "site_builder", "build"], cwd=folder, env=environment())
    _, code, used = os.wait4(process.pid, 0)
    ended = time.time()
    process.returncode = code
    assert code == 0
    last = max(path.stat().st_mtime for path in (folder / "www").iterdir() if path.is_file())
    return last - began, used.ru_maxrss / 1024, ended - last


def environment() -> dict[str, str]:
    """As a user has it: no settings of ours, byte code kept."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "PYTHONDONT"))}
    return {**kept, "PYTHONPATH": str(ROOT)}


def lab(parent: Path, name: str) -> Path:
    """An empty lab, with the folder that a builder finds."""
    folder = parent / name
    (folder / "state").mkdir(parents=True)
    return folder


def rows() -> Iterator[Row]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as path:
        for old in (False, True):
            for hosts, budget in ALL_CHANGED.items():
                yield from all_changed(lab(Path(path), f"{hosts}{old}"), hosts, budget, old)
        yield tick(lab(Path(path), "tick"), 1000)


def all_changed(folder: Path, hosts: int, budget: float, old: bool) -> Iterator[Row]:
    """Builds of a fleet of which every file is new, and of one that did not change."""
    kind = "legacy files" if old else "hosts"
    runs = RUNS if hosts <= 1000 else 2
    changed: list[tuple[float, float, float]] = []
    same: list[tuple[float, float, float]] = []
    for number in range(runs + 1):  # the first one compiles
        fleet(folder / "data", hosts, number, old)
        changed.append(run(folder))
        same.append(run(folder))
    yield Row(f"build, {hosts} {kind}, all changed", budget, min(one[0] for one in changed[1:]), "s")
    if hosts == 1000:
        yield Row(f"the same with nothing changed, {kind}", 0.5, min(one[0] for one in same), "s")
        yield Row(f"memory of that build, {kind}", 200, max(one[1] for one in changed), "MB")
        yield Row(f"what exists once a host, all changed, {kind}", 5, min(one[2] for one in changed[1:]), "s")
    if hosts == 1000 and not old:
        page = gzip.compress((folder / "www/index.html").read_bytes(), 6)
        assets = sum(len(gzip.compress(file.read_bytes(), 6)) for file in (folder / "www/assets").iterdir())
        yield Row("index.html of 1000 hosts with assets, gzipped", 500, (len(page) + assets) / 1000, "KB")


def tick(folder: Path, hosts: int) -> Row:
    """A build within --every, all changed."""
    command = [sys.executable, "-c", TICK, str(hosts), str(RUNS)]
    told = subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True, text=True)
    return Row(f"tick within --every, {hosts} hosts, all changed", 0.8, float(told.stdout), "s")
