"""The recorded machines in ../shared/captures: an additional check where that folder is; no other module knows it.

Tests of them stand in files named `…_captures.py`; tests/conftest.py collects those only where the folder is.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.support.samples import ROOT, list_queried_fields

SHARED = Path(os.environ.get("GPUBOARD_SHARED", ROOT.parent / "shared"))
CAPTURES = SHARED / "captures"
# Those that have no header line were recorded without one; it has the columns that their note in INDEX.md names.
HEADERS = {
    "orin-nvgpu": b"name, uuid, memory.used, memory.total, utilization.gpu\n",
    "csv-a6000-scattered-unknown-error": b"index, name, uuid, temperature.gpu, fan.speed, power.draw, power.limit, "
    b"memory.used, memory.total\n",
    "csv-gpu-requires-reset-nounits": b"index, uuid, memory.used, memory.total, utilization.gpu, temperature.gpu\n",
    "csv-loop-first-good-then-unknown": b"index, utilization.gpu, memory.used\n",
    "csv-infoROM-warning-first": b"index, name, utilization.gpu, memory.used, memory.total, temperature.gpu, "
    b"power.draw\n",
    "container-not-found": b"gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n",
    "windows-pid4-insufficient-permissions": b"pid, process_name, gpu_uuid, used_gpu_memory [MiB]\n",
}


def list_captures(folder: str) -> list[Path]:
    return sorted(CAPTURES.glob(f"{folder}/*"))


def name_capture(path: Path) -> str:
    """Return the name of a capture without the project that recorded it."""
    return path.stem.split("__", 1)[1]


def name_capture_with_project(path: Path) -> str:
    """Return its name with the owner of the project: several call theirs nvidia-smi.xml."""
    return f"{path.stem.partition('+')[0]}-{name_capture(path)}"


def read_capture(path: Path) -> bytes:
    return HEADERS.get(name_capture(path), b"") + path.read_bytes()


def replay(bundle: Path, *arguments: str, **settings: str) -> bytes:
    """Return what nvidia-smi printed on a recorded machine."""
    environment = {**os.environ, "REPLAY_BUNDLE": str(bundle), **settings}
    command = [str(SHARED / "tools/replay-nvidia-smi"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False).stdout


def replay_gpus(bundle: Path, **settings: str) -> bytes:
    """Return the answer of a recorded machine to gpuboard's query of its GPUs."""
    supported_fields = set(re.findall(r'"([^"]+)"', replay(bundle, "--help-query-gpu").decode()))
    fields = ",".join(name for name in list_queried_fields() if name in supported_fields)
    return replay(bundle, f"--query-gpu={fields}", "--format=csv,nounits", **settings)


def replay_processes(bundle: Path, **settings: str) -> bytes:
    query = "--query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name"
    return replay(bundle, query, "--format=csv,nounits", **settings)
