"""What `gpuboard available` takes beside nvidia-smi, on a machine with nothing else."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.measure import GPUS, Row
from tests.support.command_line import clean_environment

TIMES = 15
NVIDIA_SMI = """#!/bin/sh
sleep 0.2
case $1 in
    *apps*) echo 'gpu_uuid, pid, used_gpu_memory [MiB], process_name' ;;
    *) cat "${0%/*}/gpus" ;;
esac
"""
HEADER = (
    "index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], utilization.memory [%], "
    "temperature.gpu, power.draw [W], power.limit [W], clocks.current.sm [MHz]\n"
)


def seconds(command: Sequence[str], environment: dict[str, str]) -> float:
    """The median of several."""
    took = []
    for _ in range(TIMES):
        began = time.monotonic()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        took.append(time.monotonic() - began)
    return statistics.median(took)


def rows() -> Iterator[Row]:
    """The promise to whoever types it on a single machine."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "nvidia-smi"
        program.write_text(NVIDIA_SMI)
        program.chmod(0o755)
        several = (f"{n}, GPU-{n}, NVIDIA A100-SXM4-80GB, 4, 81920, 0, 0, 30, 60, 400, 210\n" for n in range(GPUS))
        (Path(folder) / "gpus").write_text(HEADER + "".join(several))
        environment = clean_environment(PATH=f"{folder}:{os.environ['PATH']}")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody compiles it anew each time
        alone = seconds([str(program), "--query-gpu=index", "--format=csv"], environment)
        whole = seconds([sys.executable, "-m", "site_builder", "available"], environment)
        yield Row("gpuboard available, beside nvidia-smi itself", 150, (whole - alone) * 1000, "ms")
