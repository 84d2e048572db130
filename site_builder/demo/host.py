"""A simulated host: what its tools, /proc, df, ip and getent tell there, as files that stand-ins read."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from site_builder.demo import amd_tools, nvidia_tools
from site_builder.demo.cast import FIRST_UID, PEOPLE, Machine
from site_builder.demo.nvidia_tools import OnGpu
from site_builder.demo.readings import DRIVER, RESERVED
from site_builder.demo.story import HostStory, Job

KERNEL = "6.1.0-28-amd64"
NO_DRIVER = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 590.48\n"
NO_DRIVER_CODE, LOST_CODE = 18, 15
# Of containers: by what runs in them, else by the maker of the GPU.
IMAGES = {
    "serve": "vllm/vllm-openai:v0.6.4",
    "nvidia": "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime",
    "amd": "rocm/pytorch:rocm6.3_ubuntu22.04_py3.10_pytorch_release_2.4.0",
}
WORKERS = 2
SHELL = 900
RSS = 9_000_000


class SimulatedHost:
    """The files of one host in its folder; `speed` is how much faster the lab lives than we do."""

    def __init__(self, folder: Path, story: HostStory, speed: float) -> None:
        """What never changes."""
        self.proc, self.smi = folder / "proc", folder / "smi"
        self.story, self.machine, self.speed = story, story.machine, speed
        self.uptime = 86400 * (11 + 7 * self.machine.number % 90) + 3600 * 5
        self.pids: set[int] = set()
        for path in (self.proc / "sys/kernel", self.smi / "amd", self.smi / "docker"):
            path.mkdir(parents=True)
        (self.proc / "sys/kernel/osrelease").write_text(f"{KERNEL}\n")
        (self.proc / "mounts").write_text("proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n")
        (self.proc / "stat").write_text(
            "".join(["cpu  1 0 1 9\n", *(f"cpu{n} 1 0 1 9\n" for n in range(self.machine.cpus))])
        )
        (self.smi / "driver").write_text(DRIVER)
        (self.smi / "df").write_text(disks(self.machine))
        (self.smi / "ip").write_text(addresses(self.machine))
        people = (f"{name}:x:{FIRST_UID + n}:100::/home/{name}:/bin/sh\n" for n, name in enumerate(PEOPLE))
        (self.smi / "passwd").write_text("".join(["root:x:0:0:root:/root:/bin/sh\n", *people]))

    def show(self, now: float, ran: float) -> None:
        """Put there what the host is like at this moment of the lab, `ran` seconds after the start of the demo."""
        jobs = self.story.at(now)
        up = self.uptime + ran
        self.show_gpus(jobs, now)
        self.show_processes(jobs, now, up)
        load = 0.4 + sum(len(job.gpus) * (1.1 if job.kind != "notebook" else 0.01) for job in jobs)
        used = 9000 + sum(14000 * len(job.gpus) for job in jobs)
        total = self.machine.memory
        (self.proc / "loadavg").write_text(f"{load:.2f} {load * 0.97:.2f} {load * 0.9:.2f} 3/900 4242\n")
        (self.proc / "uptime").write_text(f"{up:.2f} {up * 40:.2f}\n")
        (self.proc / "meminfo").write_text(
            f"MemTotal: {total * 1024} kB\nMemAvailable: {max(total - used, total // 20) * 1024} kB\n"
            f"SwapTotal: 16777216 kB\nSwapFree: 16777216 kB\n"
        )

    def show_gpus(self, jobs: list[Job], now: float) -> None:
        """What the tools of the makers of its GPUs answer."""
        lost, machine = self.story.lost(now), self.machine
        seen = [self.use_and_memory(gpu, jobs, now) for gpu in range(machine.gpus)]
        on = [
            OnGpu(gpu, pid, job.memory(machine.units[gpu].memory, now), job.program)
            for job in jobs
            for gpu, pid in gpu_pids(job)
        ]
        if self.has("nvidia"):
            ours = [one for one in on if machine.units[one.gpu].maker == "nvidia"]
            for name, text in nvidia_tools.answers(machine, seen, ours, lost, now).items():
                self.tell(name, text)
            self.tell("rc", str(LOST_CODE if lost else 0))
        for name, text in amd_tools.answers(machine, seen, on, now).items() if self.has("amd") else ():
            self.tell(f"amd/{name}", text)
        if self.story.has_driver(now):
            (self.smi / "say").unlink(missing_ok=True)
        else:
            self.tell("say", NO_DRIVER)
            self.tell("rc", str(NO_DRIVER_CODE))

    def has(self, maker: str) -> bool:
        """Whether it has GPUs of that maker."""
        return any(unit.maker == maker for unit in self.machine.units)

    def tell(self, name: str, text: str) -> None:
        """A file of what a tool says."""
        (self.smi / name).write_text(text)

    def use_and_memory(self, gpu: int, jobs: list[Job], now: float) -> tuple[int, int]:
        """How busy a GPU or an instance is, in percent, and what is taken of it, in MiB."""
        unit = self.machine.units[gpu]
        mine = [job for job in jobs if gpu in job.gpus]
        use = min(100, sum(job.use(gpu, now) for job in mine))
        empty = unit.instance.empty if unit.instance else 4
        used = min(unit.memory - RESERVED - 20, empty + sum(job.memory(unit.memory, now) for job in mine))
        return use, used

    def show_processes(self, jobs: list[Job], now: float, up: float) -> None:
        """The folders of /proc; those of jobs that ended go."""
        there: set[int] = set()
        for job in jobs:
            for pid, parent in processes_of(job):
                there.add(pid)
                self.show_process(job, pid, parent, up, (now - job.begins) / self.speed)
        for pid in self.pids - there:
            shutil.rmtree(self.proc / str(pid))
        self.pids = there

    def show_process(self, job: Job, pid: int, parent: int, up: float, ran: float) -> None:
        """One of them; only its times change."""
        folder = self.proc / str(pid)
        name = job.program.rpartition("/")[2][:15]
        if pid not in self.pids:
            folder.mkdir()
            (folder / "cmdline").write_bytes(job.command.replace(" ", "\0").encode() + b"\0")
            (folder / "cgroup").write_text(f"0::{cgroup(job)}\n")
            if job.container:
                self.show_container(job)
            uid = 0 if job.root else FIRST_UID + PEOPLE.index(job.person)
            (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nVmRSS:\t{RSS} kB\n")
        ticks = int(max(0, ran) * (4 if job.kind == "notebook" else 98))
        began = int(max(0, up - ran) * 100)
        first = f"{pid} ({name}) S {parent} {job.pid} {job.pid} 0 -1 4194304 9000 0 12 0 {ticks} 0 0 0 20 0 9 0"
        (folder / "stat").write_text(f"{first} {began} 90000000 {RSS // 4} 18446744073709551615 0 0\n")

    def show_container(self, job: Job) -> None:
        """What docker tells of a container."""
        image = IMAGES.get(job.kind, IMAGES[self.machine.units[job.gpus[0]].maker])
        told = [f"id {container(job)}", f'image "{image}"']
        if job.root:
            told.append(f'mount "/home/{job.person}/models"')
        self.tell(f"docker/{container(job)[:12]}", "\n".join([*told, ""]))


def container(job: Job) -> str:
    """The id of the container that a job runs in."""
    return hashlib.sha256(str(job.pid).encode()).hexdigest()


def gpu_pids(job: Job) -> Iterator[tuple[int, int]]:
    """Which process of a job is on which of its GPUs."""
    for n, gpu in enumerate(job.gpus):
        yield gpu, job.pid + n


def processes_of(job: Job) -> Iterator[tuple[int, int]]:
    """The processes of a job with their parents: one for each GPU, and two that read its data."""
    for _, pid in gpu_pids(job):
        if not job.dead:
            yield pid, SHELL
        for n in range(WORKERS if job.kind in ("train", "sweep") else 0):
            yield job.pid + 100 + (pid - job.pid) * WORKERS + n, 1 if job.dead else pid


def cgroup(job: Job) -> str:
    """Where the job runs: in a container, or in the session of a person."""
    if job.container:
        return f"/system.slice/docker-{container(job)}.scope"
    uid = FIRST_UID + PEOPLE.index(job.person)
    return f"/user.slice/user-{uid}.slice/session-{job.pid % 90}.scope"


def disks(machine: Machine) -> str:
    """What `df -lPTk` prints."""
    rng = Random(machine.name)  # noqa: S311 nothing secret
    lines = ["Filesystem     Type 1024-blocks       Used  Available Capacity Mounted on"]
    for device, gib, mount in (("/dev/nvme0n1p2", 930, "/"), ("/dev/nvme1n1", 7300, "/data")):
        total = gib * 1024 * 1024
        used = int(total * rng.uniform(0.25, 0.9))
        lines.append(f"{device} ext4 {total} {used} {total - used} {used * 100 // total}% {mount}")
    return "\n".join(lines) + "\n"


def addresses(machine: Machine) -> str:
    """What `ip -o addr` prints; these addresses are for documents, and nobody's."""
    return f"2: eno1    inet 192.0.2.{machine.number % 250 + 1}/24 brd 192.0.2.255 scope global eno1\n"


def idle_since(jobs: Iterable[Job], machine: Machine, now: float) -> dict[int, float]:
    """Since when each GPU is taken and not used, of those that are; of an instance nobody knows it."""
    found: dict[int, float] = {}
    for gpu in [place for place, unit in enumerate(machine.units) if unit.instance is None]:
        mine = [job for job in jobs if gpu in job.gpus]
        since = max((job.idle_since for job in mine), default=float("inf"))
        if since < now:
            found[gpu] = since
    return found
