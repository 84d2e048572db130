"""The simulated lab at work: what its hosts are like at a moment, and snapshots of them by the real scripts."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from random import Random

from site_builder.core import files
from site_builder.core.data_folder import find_bookings_file_in_data
from site_builder.core.files import SCRIPTS_FOLDER
from site_builder.core.formatting import HOUR, MINUTE
from site_builder.core.model import IdleTimes
from site_builder.demo import scenario
from site_builder.demo.scenario import HostScenario, ScenarioJob, ScenarioMachine, build_scenario_gpu_uuid
from site_builder.demo.simulated_tools import (
    SimulatedToolProcess,
    render_amd_output,
    render_kernel_log,
    render_nvidia_output,
)
from site_builder.fleet.store import FleetStore

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


class SimulatedHost:
    """The files of one host in its folder; `speed` is how much faster the lab lives than we do."""

    def __init__(self, folder: Path, host_scenario: HostScenario, speed: float) -> None:
        self.proc_folder, self.tools_folder = folder / "proc", folder / "smi"
        self.scenario, self.machine, self.speed = host_scenario, host_scenario.machine, speed
        self.uptime = 86400 * (11 + 7 * self.machine.number % 90) + 3600 * 5
        self.real_uptime = float(
            Path("/proc/uptime").read_text().split()[0]
        )  # by which the scripts date the kernel log
        self.pids: set[int] = set()
        for path in (self.proc_folder / "sys/kernel", self.tools_folder / "amd", self.tools_folder / "docker"):
            path.mkdir(parents=True)
        address = f"192.0.2.{self.machine.number % 250 + 1}/24"
        uids = enumerate(scenario.PEOPLE, scenario.FIRST_UID)
        people = (f"{name}:x:{uid}:100::/home/{name}:/bin/sh\n" for uid, name in uids)
        write_simulated_files(
            self.proc_folder,
            {
                "sys/kernel/osrelease": f"{KERNEL_VERSION}\n",
                "mounts": "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n",
                "stat": "".join(f"cpu{n} 1 0 1 9\n" for n in (" ", *range(self.machine.cpu_count))),
            },
        )
        write_simulated_files(
            self.tools_folder,
            {
                "driver": scenario.DRIVER_VERSION,
                "df": render_simulated_df_output(self.machine),
                "ip": f"2: eno1    inet {address} brd 192.0.2.255 scope global eno1\n",
                "passwd": "".join(["root:x:0:0:root:/root:/bin/sh\n", *people]),
            },
        )

    def has_vendor(self, vendor: str) -> bool:
        return any(unit.vendor == vendor for unit in self.machine.units)

    def write_moment(self, now: float, ran: float) -> None:
        """Write what the host is like at this moment of the lab, `ran` seconds after the start of the demo."""
        jobs = self.scenario.list_jobs_at(now)
        up = self.uptime + ran
        lost, machine = self.scenario.list_lost_gpus(now), self.machine
        processes = [
            SimulatedToolProcess(gpu, pid, job.simulate_memory(machine.units[gpu].memory_mib, now), job.program)
            for job in jobs
            for pid, gpu in enumerate(job.gpus, job.pid)
        ]
        seen = []
        for gpu, unit in enumerate(machine.units):
            use = sum(job.simulate_use(gpu, now) for job in jobs if gpu in job.gpus)
            used = unit.instance.empty_mib if unit.instance else 4
            used += sum(process.memory_mib for process in processes if process.gpu == gpu)
            seen.append((min(100, use), min(unit.memory_mib - scenario.RESERVED_MIB - 20, used)))
        output = {}
        if self.has_vendor("nvidia"):
            ours = [process for process in processes if machine.units[process.gpu].vendor == "nvidia"]
            output = render_nvidia_output(machine, seen, ours, lost, now)
            output["rc"] = str(LOST_GPU_EXIT_CODE if lost else 0)
        if self.has_vendor("amd"):
            amd_output = render_amd_output(machine, seen, processes, now)
            output.update({f"amd/{name}": text for name, text in amd_output.items()})
        lost_for = {gpu: (now - since) / self.speed for gpu, since in lost.items()}
        lost_at = {gpu: self.real_uptime + ran - seconds for gpu, seconds in lost_for.items() if seconds < ran}
        output["dmesg"] = render_kernel_log(machine, lost_at)
        (self.tools_folder / "say").unlink(missing_ok=True)
        if not self.scenario.has_driver(now):
            output.update({"say": NO_DRIVER_MESSAGE, "rc": str(NO_DRIVER_EXIT_CODE)})
        write_simulated_files(self.tools_folder, output)
        self.write_processes(jobs, now, up)
        load = 0.4 + sum(len(job.gpus) * (1.1 if job.kind != "notebook" else 0.01) for job in jobs)
        used = 9000 + sum(14000 * len(job.gpus) for job in jobs)
        total = self.machine.memory_mib
        write_simulated_files(
            self.proc_folder,
            {
                "loadavg": f"{load:.2f} {load * 0.97:.2f} {load * 0.9:.2f} 3/900 4242\n",
                "uptime": f"{up:.2f} {up * 40:.2f}\n",
                "meminfo": f"MemTotal: {total * 1024} kB\nMemAvailable: {max(total - used, total // 20) * 1024} kB\n"
                f"SwapTotal: 16777216 kB\nSwapFree: 16777216 kB\n",
            },
        )

    def write_processes(self, jobs: list[ScenarioJob], now: float, up: float) -> None:
        pids: set[int] = set()
        for job in jobs:
            for pid, parent in iterate_job_processes(job):
                pids.add(pid)
                ran = (now - job.starts_at) / self.speed
                folder = self.proc_folder / str(pid)
                name = job.program.rpartition("/")[2][:15]
                ticks = int(max(0, ran) * (4 if job.kind == "notebook" else 98))
                began = int(max(0, up - ran) * 100)
                first = f"{pid} ({name}) S {parent} {job.pid} {job.pid} 0 -1 4194304 9000 0 12 0 {ticks} 0 0 0 20 0 9 0"
                proc_files = {"stat": f"{first} {began} 90000000 {RSS_KIB // 4} 18446744073709551615 0 0\n"}
                if pid not in self.pids:
                    folder.mkdir()
                    person_uid = scenario.FIRST_UID + scenario.PEOPLE.index(job.person)
                    uid = 0 if job.runs_as_root else person_uid
                    cgroup = f"/user.slice/user-{person_uid}.slice/session-{job.pid % 90}.scope"
                    if job.container:
                        container_id = hashlib.sha256(str(job.pid).encode()).hexdigest()
                        cgroup = f"/system.slice/docker-{container_id}.scope"
                        image = CONTAINER_IMAGES.get(job.kind, CONTAINER_IMAGES[self.machine.units[job.gpus[0]].vendor])
                        mount = f'mount "/home/{job.person}/models"\n' if job.runs_as_root else ""
                        text = f'id {container_id}\nimage "{image}"\n{mount}'
                        write_simulated_files(self.tools_folder / "docker", {container_id[:12]: text})
                    proc_files["cmdline"] = job.command.replace(" ", "\0") + "\0"
                    proc_files["cgroup"] = f"0::{cgroup}\n"
                    proc_files["status"] = f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nVmRSS:\t{RSS_KIB} kB\n"
                write_simulated_files(folder, proc_files)
        for pid in self.pids - pids:
            shutil.rmtree(self.proc_folder / str(pid))
        self.pids = pids


def write_simulated_files(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text)


def iterate_job_processes(job: ScenarioJob) -> Iterator[tuple[int, int]]:
    """Yield each process of a job with its parent: one for each GPU, and those that load its data."""
    for number in range(len(job.gpus)):
        pid = job.pid + number
        if not job.is_orphaned:
            yield pid, SHELL_PID
        for loader in range(LOADERS_PER_GPU if job.kind in ("train", "sweep") else 0):
            yield job.pid + 100 + number * LOADERS_PER_GPU + loader, 1 if job.is_orphaned else pid


def render_simulated_df_output(machine: ScenarioMachine) -> str:
    rng = Random(machine.name)  # noqa: S311 nothing secret
    lines = ["Filesystem     Type 1024-blocks       Used  Available Capacity Mounted on"]
    for device, gib, mount in (("/dev/nvme0n1p2", 930, "/"), ("/dev/nvme1n1", 7300, "/data")):
        total = gib * 1024 * 1024
        used = int(total * rng.uniform(0.25, 0.9))
        lines.append(f"{device} ext4 {total} {used} {total - used} {used * 100 // total}% {mount}")
    return "\n".join(lines) + "\n"


class SimulatedLab:
    """A lab in `folder` (data/ and state/), with what its hosts are made of in `work_folder`."""

    def __init__(
        self, folder: Path, work_folder: Path, host_count: int, seed: int, speed: float, start_offset_s: float
    ) -> None:
        """Write all that was there before the demo began."""
        self.work_folder, self.seed, self.speed, self.start_offset_s = work_folder, seed, speed, start_offset_s
        self.data_folder, self.state_folder = folder / "data", folder / "state"
        self.started_at = time.time()
        self.machines = scenario.build_scenario_machines(host_count)
        self.hosts = [
            SimulatedHost(work_folder / host_scenario.machine.name, host_scenario, speed)
            for host_scenario in scenario.build_scenarios(self.machines, seed)
            if host_scenario.machine.name != scenario.LEGACY_HOST
        ]
        self.round_s = len(self.hosts) * SNAPSHOT_CORE_S / CORE_COUNT
        files.create_protected_folder(self.data_folder)
        self.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = (f"{host.name}, {host.title}, {host.tags}, {host.remark}".rstrip(", ") for host in self.machines)
        files.write_atomically(self.data_folder / "hosts.txt", "".join(f"{line}\n" for line in lines).encode())
        files.write_atomically(self.data_folder / "aliases.csv", scenario.ALIASES.encode())
        self.write_bookings()
        for machine in self.machines:
            if machine.name == scenario.LEGACY_HOST:
                then = self.started_at - scenario.LEGACY_HOST_AGE_S / self.speed
                stamp = f"{datetime.fromtimestamp(then):%Y/%m/%d %H:%M:%S}.000"
                cells = f"{machine.model.name}, 4, {machine.model.memory_mib}, 0, 0, 31, {stamp}"
                uuids = (build_scenario_gpu_uuid(machine, gpu) for gpu in range(machine.gpu_count))
                rows = (f"{gpu}, {uuid}, {cells}\n" for gpu, uuid in enumerate(uuids))
                path = self.data_folder / f"{machine.name}_gpus.csv"
                files.write_atomically(path, "".join(rows).encode())
                os.utime(path, (then, then))
        self.write_builder_state()

    @property
    def interval_s(self) -> int:
        """Seconds between two snapshots of a host."""
        return max(MIN_ROUND_S, math.ceil(self.round_s))

    def build_settings(self) -> dict[str, str]:
        speed = self.speed
        pace = "" if speed == 1 else f" at {speed:g} times normal speed, including its time limits"
        stale = max(1, round(30 / speed), math.ceil(self.round_s))  # on a slow machine the first of a round is old
        return {
            "GPUBOARD_NOTICE": f"Simulated{pace}: these hosts, people and jobs do not exist.",
            "GPUBOARD_STALE_AFTER": str(stale),
            "GPUBOARD_DOWN_AFTER": str(max(round(600 / speed), 6 * self.interval_s + stale + 5)),
            "GPUBOARD_HELD_AFTER": str(round(2 * HOUR / speed)),
        }

    def to_lab_time(self, wall: float) -> float:
        return (wall - self.started_at) * self.speed + self.start_offset_s

    def to_wall_time(self, moment: float) -> float:
        return self.started_at + (moment - self.start_offset_s) / self.speed

    def take_snapshots(self) -> None:
        began, now = time.monotonic(), self.to_lab_time(time.time())
        pool = ThreadPoolExecutor(CORE_COUNT)
        try:
            up = [host for host in self.hosts if not host.scenario.is_silent(now)]
            for error in pool.map(self.take_snapshot, up):
                if error:
                    raise OSError(0, error, "gpu-run.sh")
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
        command = [str(SCRIPTS_FOLDER / "gpu-run.sh"), "once"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return ended.stderr.strip() if ended.returncode else ""

    def write_bookings(self) -> None:
        machines = {machine.name: machine for machine in self.machines}
        lines_by_host: dict[str, list[str]] = {}
        for booking in scenario.DEMO_BOOKINGS:
            if booking.host not in machines:
                continue
            entry = {
                "name": booking.person,
                "from": self.format_date(booking.starts_at),
                "date": self.format_date(booking.ends_at),
                "comment": booking.comment,
                **({"rrule": booking.rrule} if booking.rrule else {}),
            }
            units = machines[booking.host].units
            for gpu in ("*",) if booking.gpus is None else (units[number].label for number in booking.gpus):
                # one line for each GPU, as people write it
                lines_by_host.setdefault(booking.host, []).append(f"  {json.dumps(gpu)}: {json.dumps(entry)}")
        hosts = (f" {json.dumps(host)}: {{\n" + ",\n".join(lines) + "\n }" for host, lines in lines_by_host.items())
        text = "{\n" + ",\n".join(hosts) + "\n}\n"
        files.write_atomically(find_bookings_file_in_data(self.data_folder), text.encode())

    def format_date(self, moment: float) -> str:
        step = max(1, 15 * MINUTE / self.speed)
        local = datetime.fromtimestamp(round(self.to_wall_time(moment) / step) * step)
        return f"{local:%Y-%m-%d %H:%M}" if step % MINUTE == 0 else f"{local:%Y-%m-%d %H:%M:%S}"

    def write_builder_state(self) -> None:
        """Let the builder know since when GPUs are idle."""
        state, now = FleetStore(self.state_folder), self.start_offset_s
        state.add_logins(frozenset(scenario.PEOPLE))
        for host in self.hosts:
            jobs, idle_starts = host.scenario.list_jobs_at(now), {}
            for gpu, unit in enumerate(host.machine.units):
                idle_since = max((job.idle_since for job in jobs if gpu in job.gpus), default=float("inf"))
                if idle_since < now and unit.instance is None:
                    idle_starts[build_scenario_gpu_uuid(host.machine, gpu)] = self.to_wall_time(idle_since)
            if idle_starts:
                state.idle_times[host.machine.name] = IdleTimes(self.started_at, idle_starts)
        state.save()
