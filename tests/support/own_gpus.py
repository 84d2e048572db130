"""A machine with GPUs of its own: nvidia-smi's stand-in on the PATH, and a /proc for its processes."""

from __future__ import annotations

import os
import platform
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAND_INS = ROOT / "site_builder/demo/stand-ins"
HERE = platform.node().partition(".")[0]
COLUMNS = "index, uuid, name, memory.used, memory.total, utilization.gpu, temperature.gpu, clocks.current.sm"
A100 = "NVIDIA A100-SXM4-80GB"


def uuid(index: int) -> str:
    """Of a GPU of this machine, in the form of a real one."""
    return f"GPU-{os.getpid():08x}-{index:04x}-0000-0000-000000000000"


def row(index: int, used: object = 4, name: str = A100, total: object = 81920, use: object = 0) -> str:
    """A GPU as nvidia-smi tells it."""
    return f"{index}, {uuid(index)}, {name}, {used}, {total}, {use}, 41, 1410\n"


class OwnGpus:
    """What the stand-in answers, and the environment in which it is found."""

    def __init__(self, folder: Path, *rows: str) -> None:
        """With these GPUs, or two that are free."""
        self.smi = folder / "smi"
        self.smi.mkdir(parents=True)
        self.proc = folder / "proc"
        self.proc.mkdir()
        (self.proc / "uptime").write_text("100000.00 1.0\n")
        self.tell(*(rows or (row(0), row(1))))
        self.environment = {
            "PATH": f"{STAND_INS}:{os.environ['PATH']}",
            "SMI": str(self.smi),
            "GPUBOARD_PROC": str(self.proc),
        }

    def tell(self, *rows: str) -> None:
        """From now on these GPUs."""
        new = self.smi / ".table"
        new.write_text(f"{COLUMNS}\n{''.join(rows)}")
        new.replace(self.smi / "table")

    def process(self, gpu: int, pid: int, command: str, memory: int = 5000) -> None:
        """A process on a GPU, a minute old, of whoever runs the tests."""
        with (self.smi / "apps").open("a") as apps:
            apps.write(f"{uuid(gpu)}, {pid}, {memory}, {command.split(maxsplit=1)[0]}\n")
        folder = self.proc / str(pid)
        folder.mkdir()
        ticks = (100000 - 60) * os.sysconf("SC_CLK_TCK")
        (folder / "stat").write_text(f"{pid} ({command.split(maxsplit=1)[0]}) S 1 {'0 ' * 17}{ticks} 0\n")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
