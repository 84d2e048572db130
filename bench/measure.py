"""What the benchmarks share: a row of the table, the CPU time of processes, and a host with stand-in GPUs."""

import ctypes
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"
GPUS = 8
GPU_PROCESSES = 16
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Row:
    """One line of the table; the budget is a most, or with `at_least` a least."""

    what: str
    budget: float
    measured: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the budget is kept."""
        return self.measured >= self.budget if self.at_least else self.measured <= self.budget

    @property
    def budget_text(self) -> str:
        """The budget with its sign and unit."""
        return f"{'≥' if self.at_least else '≤'} {self.budget:g} {self.unit}"

    @property
    def measured_text(self) -> str:
        """The value with its unit."""
        return f"{self.measured:.{2 if self.unit == 's' else 1}f} {self.unit}"


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind, so that their CPU time counts too."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> None:
    """Take note of every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def children_cpu() -> float:
    """CPU seconds of all ended children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def process_cpu(pid: int) -> float:
    """CPU seconds of a living process and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(int(n) for n in fields[11:15]) / os.sysconf("SC_CLK_TCK")


SPAWN = """
import os, sys
pids = [os.posix_spawnp("sleep", ["sleep", "600"], os.environ) for _ in range(int(sys.argv[1]))]
print(*pids, flush=True)
sys.stdin.read()
for pid in pids: os.kill(pid, 9)
"""


@contextmanager
def other_processes(count: int) -> Iterator[list[int]]:
    """So many sleeping processes beside us; ends them by their ids."""
    with subprocess.Popen([sys.executable, "-c", SPAWN, str(count)], stdin=-1, stdout=-1, text=True) as spawner:
        assert spawner.stdin and spawner.stdout
        pids = [int(pid) for pid in spawner.stdout.readline().split()]
        try:
            yield pids
        finally:
            spawner.stdin.close()


@dataclass
class Host:
    """A GPU host in a folder: stand-in nvidia-smi, spool and destination."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Write the stand-in: answers from files, at the cost of one `cat`."""
        for name in ("bin", "data", "spool"):
            (self.folder / name).mkdir()
        smi = self.folder / "bin/nvidia-smi"
        smi.write_text(
            f"#!/bin/sh\ncd {self.folder}\n"
            "case $1 in --help*) exec cat help ;; --query-gpu*) exec cat gpus ;; *) exec cat apps ;; esac\n"
        )
        smi.chmod(0o755)
        fields = (ROOT / "site_builder/demo/stand-ins/fields.txt").read_text().split()
        (self.folder / "help").write_text("".join(f'"{name}"\nwhat it is\n\n' for name in fields))
        row = ", ".join(["[N/A]"] * (len(fields) - 3))
        rows = [f"{n}, GPU-{n:08x}-1111-2222-3333-444444444444, NVIDIA A100-SXM4-80GB, {row}\n" for n in range(GPUS)]
        (self.folder / "gpus").write_text(", ".join(fields) + "\n" + "".join(rows))
        self.put_on_gpus([])
        self.environment = {
            **os.environ,
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "HOST": "gpu1",
            "GPUBOARD_SPOOL": str(self.folder / "spool"),
            "GPUBOARD_DEST": str(self.folder / "data"),
        }

    def put_on_gpus(self, pids: list[int]) -> None:
        """Let these processes run on the GPUs."""
        rows = [f"GPU-{n % GPUS:08x}-1111-2222-3333-444444444444, {pid}, 1024, python\n" for n, pid in enumerate(pids)]
        (self.folder / "apps").write_text("gpu_uuid, pid, used_gpu_memory [MiB], process_name\n" + "".join(rows))

    def run(self, *command: str) -> None:
        """Run a program on this host."""
        subprocess.run(command, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def script(self, name: str, *words: str) -> None:
        """Run one of our scripts."""
        self.run(str(SCRIPTS / name), *words)

    def wait_for_push(self, seconds: float = 10) -> None:
        """Wait until the newest host.txt is at its destination."""
        spool = self.folder / "spool/gpu1"
        newest = (spool / "host.txt").read_text().split("\n", 1)[0]
        end = time.monotonic() + seconds
        while not (spool / "sent").exists() or newest not in (spool / "sent").read_text():
            if time.monotonic() > end:
                message = "the push did not arrive"
                raise TimeoutError(message)
            time.sleep(0.005)
        time.sleep(0.05)  # its last processes end

    def smi_cpu(self) -> float:
        """CPU seconds of one call of the stand-in, to be taken off."""
        before = children_cpu()
        for _ in range(50):
            self.run(f"{self.folder}/bin/nvidia-smi", "--query-gpu=x")
        return (children_cpu() - before) / 50
