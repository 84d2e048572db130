"""The simulated lab at work."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

from site_builder.core import files
from site_builder.core.files import find_bookings_file, find_scripts_folder
from site_builder.core.model import IdleTimes
from site_builder.demo import amd_tools, nvidia_tools, scenario
from site_builder.demo.nvidia_tools import DemoGpuProcess
from site_builder.demo.scenario import (
    DEMO_BOOKINGS,
    DRIVER_VERSION,
    FIRST_UID,
    HOUR_S,
    MINUTE_S,
    PEOPLE,
    RESERVED_MIB,
    DemoJob,
    DemoMachine,
    HostScenario,
    build_gpu_uuid,
    build_scenarios,
)
from site_builder.fleet.store import BuilderState

KERNEL_VERSION = "6.1.0-28-amd64"
NO_DRIVER_MESSAGE = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 590.48\n"
NO_DRIVER_EXIT_CODE, LOST_GPU_EXIT_CODE = 18, 15
# Of containers: by what runs in them, else by the maker of the GPU.
CONTAINER_IMAGES = {
    "serve": "vllm/vllm-openai:v0.6.4",
    "nvidia": "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime",
    "amd": "rocm/pytorch:rocm6.3_ubuntu22.04_py3.10_pytorch_release_2.4.0",
}
LOADERS_PER_GPU = 2
SHELL_PID = 900
RSS_KIB = 9_000_000
STAND_INS_FOLDER = Path(__file__).parent / "stand-ins"
CORE_COUNT = os.cpu_count() or 1
# Seconds that a core needs for a snapshot, as long as nobody has measured it.
SNAPSHOT_CORE_S = 0.2
# Seconds between two rounds, where the machine is fast enough for that.
MIN_ROUND_S = 5
# The old scripts of one host stopped long ago.
LEGACY_HOST_AGE_S = 2 * HOUR_S + 13 * MINUTE_S


class SimulatedHost:
    """The files of one host in its folder; `speed` is how much faster the lab lives than we do."""

    def __init__(self, folder: Path, story: HostScenario, speed: float) -> None:
        self.proc_folder, self.tools_folder = folder / "proc", folder / "smi"
        self.scenario, self.machine, self.speed = story, story.machine, speed
        self.uptime = 86400 * (11 + 7 * self.machine.number % 90) + 3600 * 5
        self.pids: set[int] = set()
        for path in (self.proc_folder / "sys/kernel", self.tools_folder / "amd", self.tools_folder / "docker"):
            path.mkdir(parents=True)
        (self.proc_folder / "sys/kernel/osrelease").write_text(f"{KERNEL_VERSION}\n")
        (self.proc_folder / "mounts").write_text("proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n")
        (self.proc_folder / "stat").write_text(
            "".join(["cpu  1 0 1 9\n", *(f"cpu{n} 1 0 1 9\n" for n in range(self.machine.cpu_count))])
        )
        (self.tools_folder / "driver").write_text(DRIVER_VERSION)
        (self.tools_folder / "df").write_text(render_df_output(self.machine))
        (self.tools_folder / "ip").write_text(render_ip_output(self.machine))
        people = (f"{name}:x:{FIRST_UID + n}:100::/home/{name}:/bin/sh\n" for n, name in enumerate(PEOPLE))
        (self.tools_folder / "passwd").write_text("".join(["root:x:0:0:root:/root:/bin/sh\n", *people]))

    def write_moment(self, now: float, ran: float) -> None:
        """Put there what the host is like at this moment of the lab, `ran` seconds after the start of the demo."""
        jobs = self.scenario.list_jobs_at(now)
        up = self.uptime + ran
        self.write_gpus(jobs, now)
        self.write_processes(jobs, now, up)
        load = 0.4 + sum(len(job.gpus) * (1.1 if job.kind != "notebook" else 0.01) for job in jobs)
        used = 9000 + sum(14000 * len(job.gpus) for job in jobs)
        total = self.machine.memory_mib
        (self.proc_folder / "loadavg").write_text(f"{load:.2f} {load * 0.97:.2f} {load * 0.9:.2f} 3/900 4242\n")
        (self.proc_folder / "uptime").write_text(f"{up:.2f} {up * 40:.2f}\n")
        (self.proc_folder / "meminfo").write_text(
            f"MemTotal: {total * 1024} kB\nMemAvailable: {max(total - used, total // 20) * 1024} kB\n"
            f"SwapTotal: 16777216 kB\nSwapFree: 16777216 kB\n"
        )

    def write_gpus(self, jobs: list[DemoJob], now: float) -> None:
        lost, machine = self.scenario.list_lost_gpus(now), self.machine
        seen = [self.compute_use_and_memory(gpu, jobs, now) for gpu in range(machine.gpu_count)]
        gpu_processes = [
            DemoGpuProcess(gpu, pid, job.simulate_memory(machine.units[gpu].memory_mib, now), job.program)
            for job in jobs
            for gpu, pid in iterate_gpu_pids(job)
        ]
        if self.has_vendor("nvidia"):
            ours = [process for process in gpu_processes if machine.units[process.gpu].vendor == "nvidia"]
            for name, text in nvidia_tools.render_nvidia_output(machine, seen, ours, lost, now).items():
                self.write_tool_file(name, text)
            self.write_tool_file("rc", str(LOST_GPU_EXIT_CODE if lost else 0))
        for name, text in (
            amd_tools.render_amd_output(machine, seen, gpu_processes, now).items() if self.has_vendor("amd") else ()
        ):
            self.write_tool_file(f"amd/{name}", text)
        if self.scenario.has_driver(now):
            (self.tools_folder / "say").unlink(missing_ok=True)
        else:
            self.write_tool_file("say", NO_DRIVER_MESSAGE)
            self.write_tool_file("rc", str(NO_DRIVER_EXIT_CODE))

    def has_vendor(self, maker: str) -> bool:
        return any(unit.vendor == maker for unit in self.machine.units)

    def write_tool_file(self, name: str, text: str) -> None:
        (self.tools_folder / name).write_text(text)

    def compute_use_and_memory(self, gpu: int, jobs: list[DemoJob], now: float) -> tuple[int, int]:
        unit = self.machine.units[gpu]
        mine = [job for job in jobs if gpu in job.gpus]
        use = min(100, sum(job.simulate_use(gpu, now) for job in mine))
        empty = unit.instance.empty_mib if unit.instance else 4
        used = min(
            unit.memory_mib - RESERVED_MIB - 20, empty + sum(job.simulate_memory(unit.memory_mib, now) for job in mine)
        )
        return use, used

    def write_processes(self, jobs: list[DemoJob], now: float, up: float) -> None:
        there: set[int] = set()
        for job in jobs:
            for pid, parent in iterate_job_processes(job):
                there.add(pid)
                self.write_process(job, pid, parent, up, (now - job.starts_at) / self.speed)
        for pid in self.pids - there:
            shutil.rmtree(self.proc_folder / str(pid))
        self.pids = there

    def write_process(self, job: DemoJob, pid: int, parent: int, up: float, ran: float) -> None:
        folder = self.proc_folder / str(pid)
        name = job.program.rpartition("/")[2][:15]
        if pid not in self.pids:
            folder.mkdir()
            (folder / "cmdline").write_bytes(job.command.replace(" ", "\0").encode() + b"\0")
            (folder / "cgroup").write_text(f"0::{build_cgroup_path(job)}\n")
            if job.container:
                self.write_container(job)
            uid = 0 if job.runs_as_root else FIRST_UID + PEOPLE.index(job.person)
            (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nVmRSS:\t{RSS_KIB} kB\n")
        ticks = int(max(0, ran) * (4 if job.kind == "notebook" else 98))
        began = int(max(0, up - ran) * 100)
        first = f"{pid} ({name}) S {parent} {job.pid} {job.pid} 0 -1 4194304 9000 0 12 0 {ticks} 0 0 0 20 0 9 0"
        (folder / "stat").write_text(f"{first} {began} 90000000 {RSS_KIB // 4} 18446744073709551615 0 0\n")

    def write_container(self, job: DemoJob) -> None:
        image = CONTAINER_IMAGES.get(job.kind, CONTAINER_IMAGES[self.machine.units[job.gpus[0]].vendor])
        rows = [f"id {build_container_id(job)}", f'image "{image}"']
        if job.runs_as_root:
            rows.append(f'mount "/home/{job.person}/models"')
        self.write_tool_file(f"docker/{build_container_id(job)[:12]}", "\n".join([*rows, ""]))


def build_container_id(job: DemoJob) -> str:
    return hashlib.sha256(str(job.pid).encode()).hexdigest()


def iterate_gpu_pids(job: DemoJob) -> Iterator[tuple[int, int]]:
    for n, gpu in enumerate(job.gpus):
        yield gpu, job.pid + n


def iterate_job_processes(job: DemoJob) -> Iterator[tuple[int, int]]:
    for _, pid in iterate_gpu_pids(job):
        if not job.is_orphaned:
            yield pid, SHELL_PID
        for n in range(LOADERS_PER_GPU if job.kind in ("train", "sweep") else 0):
            yield job.pid + 100 + (pid - job.pid) * LOADERS_PER_GPU + n, 1 if job.is_orphaned else pid


def build_cgroup_path(job: DemoJob) -> str:
    if job.container:
        return f"/system.slice/docker-{build_container_id(job)}.scope"
    uid = FIRST_UID + PEOPLE.index(job.person)
    return f"/user.slice/user-{uid}.slice/session-{job.pid % 90}.scope"


def render_df_output(machine: DemoMachine) -> str:
    rng = Random(machine.name)  # noqa: S311 nothing secret
    lines = ["Filesystem     Type 1024-blocks       Used  Available Capacity Mounted on"]
    for device, gib, mount in (("/dev/nvme0n1p2", 930, "/"), ("/dev/nvme1n1", 7300, "/data")):
        total = gib * 1024 * 1024
        used = int(total * rng.uniform(0.25, 0.9))
        lines.append(f"{device} ext4 {total} {used} {total - used} {used * 100 // total}% {mount}")
    return "\n".join(lines) + "\n"


def render_ip_output(machine: DemoMachine) -> str:
    return f"2: eno1    inet 192.0.2.{machine.number % 250 + 1}/24 brd 192.0.2.255 scope global eno1\n"


def find_idle_starts(jobs: Iterable[DemoJob], machine: DemoMachine, now: float) -> dict[int, float]:
    idle_starts: dict[int, float] = {}
    for gpu in [place for place, unit in enumerate(machine.units) if unit.instance is None]:
        mine = [job for job in jobs if gpu in job.gpus]
        since = max((job.idle_since for job in mine), default=float("inf"))
        if since < now:
            idle_starts[gpu] = since
    return idle_starts


@dataclass(frozen=True)
class DemoOptions:
    """How the lab is played: so many hosts, what settles it, how fast, and from which moment on."""

    host_count: int = len(scenario.MACHINES)
    seed: int = 1
    speed: float = 1.0
    start_offset_s: float = 0.0


class SimulatedLab:
    """A lab in `folder` (data/ and state/), with what its hosts are made of in `backstage`."""

    def __init__(self, play: DemoOptions, folder: Path, backstage: Path) -> None:
        """Put all there that was there before the demo began."""
        self.options, self.data_folder, self.state_folder, self.work_folder = (
            play,
            folder / "data",
            folder / "state",
            backstage,
        )
        self.started_at = time.time()
        self.machines = scenario.build_machines(play.host_count)
        self.scenarios = list(build_scenarios(self.machines, play.seed))
        self.hosts = [
            SimulatedHost(backstage / story.machine.name, story, play.speed)
            for story in self.scenarios
            if story.machine.name != scenario.LEGACY_HOST
        ]
        self.round_s = len(self.hosts) * SNAPSHOT_CORE_S / CORE_COUNT
        files.make_closed(self.data_folder)
        self.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.write_lists()
        self.write_bookings()
        self.write_legacy_host()
        self.write_builder_state()

    @property
    def interval_s(self) -> int:
        """Seconds between two snapshots of a host."""
        return max(MIN_ROUND_S, math.ceil(self.round_s))

    def build_settings(self) -> dict[str, str]:
        stale = max(1, round(30 / self.options.speed))
        return {
            "GPUBOARD_NOTICE": self.build_notice(),
            "GPUBOARD_STALE_AFTER": str(stale),
            "GPUBOARD_DOWN_AFTER": str(max(round(600 / self.options.speed), 6 * self.interval_s + stale + 5)),
            "GPUBOARD_HELD_AFTER": str(round(2 * HOUR_S / self.options.speed)),
        }

    def build_notice(self) -> str:
        speed = self.options.speed
        pace = "" if speed == 1 else f", {speed:g} times as fast, and so are its limits"
        return f"Simulated{pace}: these hosts, people and jobs do not exist."

    def to_lab_time(self, wall: float) -> float:
        return (wall - self.started_at) * self.options.speed + self.options.start_offset_s

    def to_wall_time(self, moment: float) -> float:
        return self.started_at + (moment - self.options.start_offset_s) / self.options.speed

    def take_snapshots(self) -> None:
        began = time.monotonic()
        now = time.time()
        up = [host for host in self.hosts if not host.scenario.is_silent(self.to_lab_time(now))]
        pool = ThreadPoolExecutor(CORE_COUNT)
        try:
            for result in pool.map(self.take_snapshot, up):
                if result:
                    raise OSError(0, result, "gpu-run.sh")
        finally:
            pool.shutdown(cancel_futures=True)
        self.round_s = time.monotonic() - began

    def take_snapshot(self, host: SimulatedHost) -> str:
        now = time.time()
        host.write_moment(self.to_lab_time(now), now - self.started_at)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GPUBOARD_")}
        environment = {
            **kept,
            "PATH": f"{STAND_INS_FOLDER}:{STAND_INS_FOLDER}/amd:{kept.get('PATH', '')}",
            "SMI": str(host.tools_folder),
            "HOST": host.machine.name,
            "GPUBOARD_CONF": os.devnull,
            # a host has but these, whatever this very machine has
            "GPUBOARD_NVIDIA": "auto" if host.has_vendor("nvidia") else "no",
            "GPUBOARD_AMD": host.machine.amd_tool or "no",
            "GPUBOARD_PROC": str(host.proc_folder),
            "GPUBOARD_SPOOL": str(self.work_folder / "spool"),
            "GPUBOARD_DEST": str(self.data_folder.absolute()),
            **{f"GPUBOARD_{task}_EVERY": str(self.interval_s) for task in ("GPUS", "PROCESSES", "PS")},
        }
        command = [str(find_scripts_folder() / "gpu-run.sh"), "once"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return ended.stderr.strip() if ended.returncode else ""

    def write_lists(self) -> None:
        lines = [
            f"{machine.name}, {machine.title}, {machine.tags}, {machine.remark}".rstrip(", ")
            for machine in self.machines
        ]
        files.write_atomically(self.data_folder / "hosts.txt", "".join(f"{line}\n" for line in lines).encode())
        files.write_atomically(self.data_folder / "aliases.csv", scenario.ALIASES.encode())

    def write_bookings(self) -> None:
        entries: dict[str, list[tuple[str, dict[str, str]]]] = {}
        machines = {booking.name: booking for booking in self.machines}
        for booking in DEMO_BOOKINGS:
            if booking.host not in machines:
                continue
            labels = [unit.label for unit in machines[booking.host].units]
            entry = {
                "name": booking.person,
                "from": self.format_date(booking.starts_at),
                "date": self.format_date(booking.ends_at),
            }
            entry.update(
                {key: value for key, value in (("comment", booking.comment), ("rrule", booking.rrule)) if value}
            )
            for gpu in ("*",) if booking.gpus is None else (labels[number] for number in booking.gpus):
                entries.setdefault(booking.host, []).append((gpu, entry))
        lines = (
            f" {json.dumps(host)}: {{\n"
            + ",\n".join(f"  {json.dumps(gpu)}: {json.dumps(booking)}" for gpu, booking in gpus)
            + "\n }"
            for host, gpus in entries.items()
        )
        files.write_atomically(find_bookings_file(self.data_folder), ("{\n" + ",\n".join(lines) + "\n}\n").encode())

    def format_date(self, moment: float) -> str:
        step = max(1, 15 * MINUTE_S / self.options.speed)
        local = datetime.fromtimestamp(round(self.to_wall_time(moment) / step) * step)
        return f"{local:%Y-%m-%d %H:%M}" if step % MINUTE_S == 0 else f"{local:%Y-%m-%d %H:%M:%S}"

    def write_legacy_host(self) -> None:
        for machine in self.machines:
            if machine.name == scenario.LEGACY_HOST:
                then = self.started_at - LEGACY_HOST_AGE_S / self.options.speed
                stamp = f"{datetime.fromtimestamp(then):%Y/%m/%d %H:%M:%S}.000"
                model = machine.model
                row = "{n}, {uuid}, {name}, 4, {memory}, 0, 0, 31, {stamp}\n"
                rows = (
                    row.format(
                        n=n, uuid=build_gpu_uuid(machine, n), name=model.name, memory=model.memory_mib, stamp=stamp
                    )
                    for n in range(machine.gpu_count)
                )
                path = self.data_folder / f"{machine.name}_gpus.csv"
                files.write_atomically(path, "".join(rows).encode())
                os.utime(path, (then, then))

    def write_builder_state(self) -> None:
        memory, now = BuilderState(self.state_folder), self.options.start_offset_s
        memory.add_logins(frozenset(scenario.PEOPLE))
        for host in self.hosts:
            idle = find_idle_starts(host.scenario.list_jobs_at(now), host.machine, now)
            if idle:
                since = {build_gpu_uuid(host.machine, gpu): self.to_wall_time(moment) for gpu, moment in idle.items()}
                memory.idle_times[host.machine.name] = IdleTimes(self.started_at, since)
        memory.save()
