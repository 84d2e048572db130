"""GPUs in MIG mode: as `decide` takes them, and as a host pushes them, in a form that only these tests know."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from site_builder.core.model import Gpu, GpuHealth, GpuProcessRow, MemoryErrorCounts
from site_builder.snapshots import gpu_tools
from site_builder.snapshots.envelope import ToolOutput, ToolParts
from site_builder.snapshots.parsers import nvidia_csv
from tests.support.board_fixture import GPU_COLUMNS, PROCESS_COLUMNS, PS_COLUMNS, Lab, person, process
from tests.support.board_fixture import gpu as gpu_row
from tests.support.command_line import run_gpuboard

H100 = "NVIDIA H100 80GB HBM3"
# As the driver tells an H100 that is cut into these: profile and MiB.
PROFILES = (("3g.40gb", 40448.0), ("2g.20gb", 20096.0), ("1g.10gb", 9984.0), ("1g.10gb", 9984.0))
COLUMNS = ("index", "uuid", "name", "mig.mode.current", "ecc.errors.uncorrected.volatile.total")


def whole(index: int = 0, **overrides: Any) -> Gpu:  # noqa: ANN401
    """An H100 in MIG mode, as a GPU of its own."""
    plain: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "name": H100,
        "memory_used": 87.0,
        "memory_total": 81559.0,
        "temperature": 44.0,
        "power_draw": 130.5,
        "power_limit": 700.0,
        "health": GpuHealth(MemoryErrorCounts(uncorrected=0), is_in_mig_mode=True),
        "columns": COLUMNS,
        "cells": (str(index), f"GPU-{index}", H100, "Enabled", "0"),
    }
    return Gpu(index=index, **{**plain, **overrides})


def instance(number: int = 0, used: float | None = 14.0, parent: Gpu | None = None, **overrides: Any) -> Gpu:  # noqa: ANN401
    """One of its instances, on which nobody is."""
    of = parent or whole()
    profile, total = PROFILES[number % len(PROFILES)]
    plain: dict[str, Any] = {
        "uuid": f"MIG-{of.index}-{number}",
        "name": of.name,
        "memory_used": used,
        "memory_total": total,
        "place": f"{of.index}:{number}",
        "profile": profile,
        "parent": of,
    }
    return Gpu(index=of.index, **{**plain, **overrides})


def instances(parent: Gpu | None = None, **used: float) -> list[Gpu]:
    """All four; `used` has the MiB of some, as `_1=7000`."""
    return [instance(number, used.get(f"_{number}", 14.0), parent) for number in range(len(PROFILES))]


# A host that pushes them


def told(pieces: ToolParts) -> ToolOutput[Gpu]:
    """`mig 0` is an H100 in four instances, of which `0:1=7000` has 7000 MiB in use; other lines are those of CSV."""
    gpu_rows: list[Gpu] = []
    for line in pieces[""].lines:
        if line.startswith("mig "):
            number, *used = line.split()[1:]
            taken = {
                f"_{place.partition(':')[2]}": float(size)
                for place, _, size in (gpu_usage.partition("=") for gpu_usage in used)
            }
            gpu_rows += instances(whole(int(number)), **taken)
    plain = tuple(line for line in pieces[""].lines if not line.startswith("mig "))
    rest = nvidia_csv.parse_nvidia_csv_gpus({"": pieces[""]._replace(lines=plain)})
    return ToolOutput((*gpu_rows, *rest.rows), rest.messages, rest.problems)


def processes(pieces: ToolParts) -> ToolOutput[GpuProcessRow]:
    """As CSV has them, but with the UUIDs of instances."""
    return nvidia_csv.parse_nvidia_csv_processes(pieces)


@contextmanager
def readable() -> Iterator[None]:
    """While it is read."""
    before = dict(gpu_tools.GPU_TOOLS)
    module = ModuleType("mig_test")
    vars(module).update(parse_mig_test_gpus=told, parse_mig_test_processes=processes)
    sys.modules["site_builder.snapshots.parsers.mig_test"] = module
    gpu_tools.GPU_TOOLS["mig-test"] = gpu_tools.GpuTool("nvidia-smi", "nvidia", "mig_test")
    try:
        yield
    finally:
        gpu_tools.GPU_TOOLS.clear()
        gpu_tools.GPU_TOOLS.update(before)


def push(lab: Lab, name: str = "atlas", mig: str = "mig 0", gpus: str = "", processes: str = "", ps: str = "") -> None:
    """A host with GPUs in MIG mode, and others beside them."""
    lab.write(name, "gpus.csv", f"# part mig-test rc=0\n{mig}\n{GPU_COLUMNS}\n{gpus or gpu_row(1)}")
    lab.write(name, "processes.csv", f"# part mig-test rc=0\n{PROCESS_COLUMNS}\n{processes}")
    lab.write(name, "ps.txt", f"{PS_COLUMNS}\n{ps}")
    facts = "cpus=4\nload=1.5 1.2 1.0\nmemory_total=64000\nmemory_available=32000\ndisk=1000 610 /data\n"
    lab.write(name, "host.txt", facts)


def gpuboard(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`gpuboard`, as a program that can read them; `run` cannot, and needs not."""
    with readable():
        return run_gpuboard(folder, *words, **environment)


def lab_in(folder: Path) -> Lab:
    """A lab with atlas: GPU 0 in MIG mode, with alice on 0:1, and an A100 beside it."""
    lab = Lab(folder)
    push(lab, mig="mig 0 0:1=7014", processes=process(gpu="MIG-0-1"), ps=person())
    return lab
