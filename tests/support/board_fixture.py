"""A lab in a folder: data/ as hosts fill it."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from site_builder.board.builder import Builder, BuildReport
from site_builder.config.settings import Settings
from site_builder.core.model import PrivacySettings, StateLimits

TASKS = {"gpus.csv": "gpus", "processes.csv": "processes", "ps.txt": "ps", "host.txt": "host"}
GPU_COLUMNS = (
    "index, uuid, name, memory.used, memory.total, utilization.gpu, utilization.memory, temperature.gpu, power.draw, "
    "power.limit"
)
PROCESS_COLUMNS = "gpu_uuid, pid, used_gpu_memory [MiB], process_name"
PS_COLUMNS = "pid\tppid\tgpu_pid\tpgrp\tuid\tuser\telapsed [s]\tcpu [%]\trss [KiB]\tstate\tcontainer\tcommand"


def gpu(
    index: int = 0,
    used: object = 4,
    use: object = 0,
    name: str = "NVIDIA A100-SXM4-80GB",
    uuid: str = "",
    total: object = 81920,
) -> str:
    """A row of gpus.csv."""
    return f"{index}, {uuid or f'GPU-{index}'}, {name}, {used}, {total}, {use}, 10, 41, 61.50, 400.00\n"


def process(pid: int = 42, gpu: str = "GPU-0", memory: object = 7000, name: str = "python") -> str:
    """A row of processes.csv."""
    return f"{gpu}, {pid}, {memory}, {name}\n"


def person(
    pid: int = 42,
    user: str = "alice",
    command: str = "python train.py",
    elapsed: object = 3600,
    gpu_pid: object = "",
    state: str = "S",
    container: str = "-",
) -> str:
    """A row of ps.txt."""
    return f"{pid}\t1\t{gpu_pid or pid}\t{pid}\t1000\t{user}\t{elapsed}\t99.0\t2048\t{state}\t{container}\t{command}\n"


class Lab:
    """A data folder, a builder's memory and a site."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.state = folder / "state"
        self.www = folder / "www"
        self.data.mkdir(parents=True)
        self.state.mkdir()

    def write(self, host: str, file: str, body: str = "", **header: object) -> Path:
        """A file of a snapshot; `end` may be something else than the end."""
        end = header.pop("end", "# end\n")
        header_fields = {
            "task": TASKS[file],
            "host": host,
            "time": int(time.time()),
            "every": 20,
            "took_ms": 1,
            "rc": 0,
            **header,
        }
        path = self.data / host / file
        path.parent.mkdir(exist_ok=True)
        new = path.with_suffix(".new")
        first = " ".join(f"{key}={value}" for key, value in header_fields.items())
        new.write_bytes(os.fsencode(f"# gpuboard 1 {first}\n{body}{end}"))
        new.replace(path)
        return path

    def host(
        self,
        name: str = "atlas",
        gpus: str = "",
        processes: str = "",
        ps: str = "",
        facts: str = "cpus=4\nload=1.5 1.2 1.0\nmemory_total=64000\nmemory_available=32000\ndisk=1000 610 /data\n",
        **header: object,
    ) -> None:
        """All four files of a host, with rows as `gpu`, `process` and `person` make them."""
        self.write(name, "gpus.csv", f"{GPU_COLUMNS}\n{gpus or gpu()}", **header)
        self.write(name, "processes.csv", f"{PROCESS_COLUMNS}\n{processes}", **header)
        self.write(name, "ps.txt", f"{PS_COLUMNS}\n{ps}", **header)
        self.write(name, "host.txt", facts, **header)

    def original(self, host: str, age: float = 0, **files: str) -> None:
        """Files of the original scripts: `gpus` is HOST_gpus.csv."""
        for name, content in files.items():
            path = self.data / f"{host}_{name}.{'txt' if name == 'local' else 'csv'}"
            path.write_text(content)
            os.utime(path, (time.time() - age,) * 2)

    def settings(self, **changes: object) -> Settings:
        """Settings of this lab."""
        plain: dict[str, Any] = {
            "data": self.data,
            "www": self.www,
            "state": self.state,
            "zone": timezone.utc,
            "limits": StateLimits(),
            "privacy": PrivacySettings(),
            "consul": None,
        }
        return Settings(**{**plain, **changes})

    def build(self, after: float = 0, **changes: object) -> BuildReport:
        """One build by a builder of its own, so many seconds from now."""
        builder = Builder(self.settings(**changes))
        report = builder.build(time.time() + after)
        builder.close()
        return report

    def page(self) -> str:
        """The board."""
        return (self.www / "index.html").read_text()

    def status(self) -> dict[str, Any]:
        """status.json."""
        board_status: dict[str, Any] = json.loads((self.www / "status.json").read_text())
        return board_status

    def live(self) -> dict[str, Any]:
        """live.json."""
        live_status: dict[str, Any] = json.loads((self.www / "live.json").read_text())
        return live_status

    def host_status(self, name: str = "atlas") -> dict[str, Any]:
        """A host in status.json."""
        (host_entry,) = (host for host in self.status()["hosts"] if host["name"] == name)
        assert isinstance(host_entry, dict)
        return host_entry

    def states(self, name: str = "atlas") -> list[str]:
        """The states of a host's GPUs."""
        return [gpu["state"] for gpu in self.host_status(name)["gpus"]]

    def book(self, content: object) -> None:
        """Write comments.json."""
        text = content if isinstance(content, str) else json.dumps(content)
        new = self.data / ".comments.json.new"
        new.write_text(text)
        new.replace(self.data / "comments.json")


def words(report: BuildReport) -> str:
    """All problems of a report, one a line."""
    return "\n".join(f"{problem.where}: {problem.what}" for problem in report.problems)


def soon(seconds: float) -> str:
    """A date in comments.json, so many seconds from now."""
    return datetime.fromtimestamp(time.time() + seconds, timezone.utc).isoformat(timespec="seconds")
