"""A collector's tick: all three tasks with a push to a folder, without nvidia-smi itself."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import GPU_PROCESSES, Host, Row, adopt_orphans, children_cpu, other_processes, reap

ROUNDS = 10


def tick_cpu(awk: str, processes: int) -> float:
    """CPU milliseconds of one tick on a host with this awk and so many processes."""
    with tempfile.TemporaryDirectory() as folder, other_processes(processes) as pids:
        host = Host(Path(folder))
        host.put_on_gpus(pids[:GPU_PROCESSES])
        (host.folder / "bin/awk").symlink_to(shutil.which(awk) or awk)
        smi = host.smi_cpu()

        def tick() -> float:
            time.sleep(1 - time.time() % 1)  # a snapshot a second at the most: what did not change is not pushed
            before = children_cpu()
            for task in "123":
                host.script("gpu-run.sh", "tick", task)
            host.wait_for_push()
            reap()
            return children_cpu() - before

        tick()
        return 1000 * (sum(tick() for _ in range(ROUNDS)) / ROUNDS - 2 * smi)


def rows() -> Iterator[Row]:
    """The budgets of the tick, with Debian's awk and with the slower one of other distributions."""
    adopt_orphans()
    for awk in ("mawk", "gawk"):
        for processes, budget in ((300, 60), (2000, 200)):
            what = f"CPU of a tick and its push, {processes} processes, {awk}"
            yield Row(what, budget, tick_cpu(awk, processes), "ms")
