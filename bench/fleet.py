"""A made-up fleet as files in data/, native or legacy: 8 GPUs and 16 processes a host, as the budgets say."""

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIELDS = (ROOT / "site_builder/demo/stand-ins/fields.txt").read_text().split()
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090", "Tesla V100-SXM2-16GB")
MEMORY = (81920, 81559, 24564, 16384)
USERS = [f"{name}{n or ''}" for n in range(8) for name in ("alice", "bob", "carol", "dave", "erin", "frank", "grace")]
PROGRAMS = (
    "python train.py --config configs/vit-l.yaml --lr {n}e-5 --batch-size {n}",
    "torchrun --nproc_per_node 8 main.py --name run-{n} --data /data/imagenet",
    "/opt/conda/bin/python -m ipykernel_launcher -f /run/user/{n}/kernel.json",
    "VLLM::EngineCore --model llama-{n}b",
)
GPUS, PROCESSES = 8, 16


@dataclass(frozen=True)
class Process:
    """A process on a GPU."""

    gpu: int
    pid: int
    user: str
    memory: int
    began: int
    command: str


@dataclass(frozen=True)
class Machine:
    """One host as it is at one moment."""

    name: str
    model: int
    use: tuple[int, ...]
    processes: tuple[Process, ...]

    @classmethod
    def number(cls, number: int, tick: int) -> "Machine":
        """The host of that number; its jobs stay the same, its readings differ from tick to tick."""
        jobs, now = random.Random(number), random.Random(number * 1000 + tick)  # noqa: S311 nothing secret
        free = set(jobs.sample(range(GPUS), 2)) if number % 3 == 0 else set()
        places = [gpu for gpu in range(GPUS) if gpu not in free]
        processes = tuple(
            Process(
                places[n % len(places)],
                jobs.randrange(1000, 4_000_000),
                jobs.choice(USERS),
                jobs.randrange(300, 7000),
                1_794_000_000 - jobs.randrange(60, 900_000),
                jobs.choice(PROGRAMS).format(n=jobs.randrange(1, 99)),
            )
            for n in range(PROCESSES)
        )
        use = tuple(0 if gpu in free else now.randrange(101) for gpu in range(GPUS))
        return cls(f"gpu{number:04}", number % len(MODELS), use, processes)

    def uuid(self, gpu: int) -> str:
        """The GPU's own name."""
        return f"GPU-{abs(int(self.name[3:])):08x}-{gpu:04x}-4c1d-9b7e-3f2a1d0c9e8b"

    def used(self, gpu: int) -> int:
        """Its memory in use."""
        return 4 + sum(process.memory for process in self.processes if process.gpu == gpu)

    def cells(self, gpu: int) -> dict[str, object]:
        """What nvidia-smi would tell of a GPU."""
        return {
            "index": gpu,
            "uuid": self.uuid(gpu),
            "name": MODELS[self.model],
            "memory.used": self.used(gpu),
            "memory.total": MEMORY[self.model],
            "utilization.gpu": self.use[gpu],
            "utilization.memory": self.use[gpu] // 2,
            "temperature.gpu": 30 + self.use[gpu] // 2,
            "power.draw": f"{60 + self.use[gpu] * 3}.{self.use[gpu]:02}",
            "power.limit": "400.00",
            "clocks.current.sm": 1410,
            "pstate": "P0",
            "pci.bus_id": f"00000000:{gpu:02X}:00.0",
        }


def write(path: Path, lines: list[str]) -> None:
    """A file, whole or absent."""
    new = path.with_name(f".{path.name}.new")
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(path)


def native(data: Path, machine: Machine, now: int) -> None:
    """The four files of a snapshot."""
    folder = data / machine.name
    folder.mkdir(exist_ok=True)

    def snapshot(file: str, task: str, every: int, lines: list[str]) -> None:
        first = f"# gpuboard 1 task={task} host={machine.name} time={now} every={every} took_ms=80 rc=0"
        write(folder / file, [first, *lines, "# end"])

    rows = [", ".join(str(machine.cells(gpu).get(name, "[N/A]")) for name in FIELDS) for gpu in range(GPUS)]
    snapshot("gpus.csv", "gpus", 20, [", ".join(FIELDS), *rows])
    apps = [f"{machine.uuid(p.gpu)}, {p.pid}, {p.memory}, {p.command.split()[0]}" for p in machine.processes]
    snapshot("processes.csv", "processes", 20, ["gpu_uuid, pid, used_gpu_memory [MiB], process_name", *apps])
    names = "pid ppid gpu_pid pgrp uid user elapsed cpu rss state container command"
    titles = {"elapsed": "elapsed [s]", "cpu": "cpu [%]", "rss": "rss [KiB]"}
    family = ["\t".join(titles.get(name, name) for name in names.split())]
    for p in machine.processes:
        user = f"{p.pid}\t1001\t{p.user}\t{now - p.began}\t98.5\t4194304\tS\t-\t{p.command}"
        family.append(f"{p.pid}\t{p.pid - 1}\t{p.pid}\t{user}")
        family.append(f"{p.pid + 1}\t{p.pid}\t{p.pid}\t{user}")
    snapshot("ps.txt", "ps", 10, family)
    snapshot(
        "host.txt",
        "host",
        10,
        [
            f"load={machine.use[0] / 3:.2f} 12.10 11.00",
            "cpus=96",
            "memory_total=1031000",
            f"memory_available={800000 + machine.use[1] * 100}",
            f"uptime={8_000_000 + now % 1_000_000}",
            "kernel=6.1.0-18-amd64",
            "driver=550.54.15",
            "collector=0.1.0",
            "zone=+0000",
            "disk=953869 581860 /",
            "disk=7630885 4654839 /data",
            "interface=eth0 10.0.0.17/24",
        ],
    )


def legacy(data: Path, machine: Machine, now: int) -> None:
    """The files of the original scripts."""
    stamp = time.strftime("%Y/%m/%d %H:%M:%S.123", time.localtime(now))

    def put(suffix: str, lines: list[str]) -> None:
        write(data / f"{machine.name}_{suffix}", lines)

    gpus = []
    for gpu in range(GPUS):
        cells = machine.cells(gpu)
        names = ("index", "uuid", "name", "memory.used", "memory.total", "utilization.gpu", "utilization.memory")
        gpus.append(", ".join(str(cells[name]) for name in (*names, "temperature.gpu")) + f", {stamp}")
    put("gpus.csv", gpus[4:] + gpus * 2)
    rows = [f"{stamp}, {machine.uuid(p.gpu)}, {p.memory}, {p.command.split()[0]}, {p.pid}" for p in machine.processes]
    put("processes.csv", rows * 2)
    children = ", ".join(f'"{p.pid}": ["{p.pid}", "{p.pid + 1}"]' for p in machine.processes)
    began = [time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(p.began)) for p in machine.processes]
    put("users.csv", [f"{{{children}}}", *(f"{p.pid} {p.user} {at}" for p, at in zip(machine.processes, began))])
    put(
        "status.csv",
        [
            "/dev/sda1 976762584 595824640 331249944 65% /",
            "Mem:        1031000      120000      700000        1234      211000      890000",
            "96",
            " 09:12:01 up 92 days,  3:01,  4 users,  load average: 12.54, 11.31, 10.14",
        ],
    )


def fleet(data: Path, hosts: int, tick: int = 0, old: bool = False) -> None:
    """So many hosts, all with new data; a further tick changes every file."""
    data.mkdir(exist_ok=True)
    now = int(time.time())
    for number in range(hosts):
        (legacy if old else native)(data, Machine.number(number, tick), now)
    os.sync()
