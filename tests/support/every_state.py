"""A lab in which every state of a host and of a GPU is there, with odd values, for the tests of the page."""

import json
import time
from datetime import datetime, timedelta
from pathlib import Path

from tests.support.board_fixture import Lab, person, process
from tests.support.command_line import run_gpuboard

MINUTE, HOUR, DAY = 60, 3600, 86400
H100, A100 = ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA A100-SXM4-40GB", 40960)
RTX, V100 = ("NVIDIA GeForce RTX 4090", 24564), ("Tesla V100-SXM2-16GB", 16384)
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)


def row(host: str, index: int, model: tuple[str, int], *readings: object) -> str:
    """A row of gpus.csv: use, MiB in use, °C, W of W."""
    use, used, temperature, draw, limit = readings
    access = use // 2 if isinstance(use, int) else use
    cells = (index, f"GPU-{host}-{index}", model[0], used, model[1], use, access, temperature, draw, limit)
    return f"{', '.join(map(str, cells))}\n"


def facts(cpus: int, load: float, total: int, available: int, *extra_lines: str) -> str:
    """A host.txt."""
    lines = (
        f"cpus={cpus}",
        f"load={load} 3.1 2.8",
        f"memory_total={total}",
        f"memory_available={available}",
        *extra_lines,
    )
    return "".join(f"{line}\n" for line in lines)


def atlas(lab: Lab) -> None:
    """Two busy, one free, one booked."""
    train = "torchrun train.py --config vit-l.yaml"
    lab.host(
        "atlas",
        row("atlas", 0, H100, 97, 72704, 64, 612, 700)
        + row("atlas", 1, H100, 93, 71680, 63, 605, 700)
        + row("atlas", 2, H100, 0, 4, 34, 71, 700)
        + row("atlas", 3, H100, 0, 4, 33, 70, 700),
        process(4242, "GPU-atlas-0", 72700) + process(4243, "GPU-atlas-1", 71676),
        person(4242, "alice", train, 2 * DAY + 4 * HOUR + 5 * MINUTE)
        + person(4243, "alice", train, 2 * DAY + 4 * HOUR + 5 * MINUTE),
        facts(
            96,
            12.3,
            1032000,
            817000,
            "disk=953869 381860 /",
            "disk=7630885 4654839 /data",
            f"disk_use_time={int(time.time()) - 5 * HOUR}",
            "disk_use=2.1T /data/alice",
            "disk_use=840G /data/bob",
            "disk_use=61,5G /data/carol",
        ),
    )


def hydra(lab: Lab) -> None:
    """Held, in conflict, shared, free until a booking."""
    lab.host(
        "hydra",
        row("hydra", 0, A100, 0, 31744, 41, 62, 400)
        + row("hydra", 1, A100, 88, 22528, 71, 301, 400)
        + row("hydra", 2, A100, 46, 12288, 58, 180, 400)
        + row("hydra", 3, A100, 0, 4, 35, 51, 400),
        process(501, "GPU-hydra-0", 31740)
        + process(502, "GPU-hydra-1", 22520)
        + process(503, "GPU-hydra-2", 9200)
        + process(504, "GPU-hydra-2", 3080),
        person(501, "bob", "jupyter-lab --no-browser", 9 * DAY)
        + person(502, "dave", "python sweep.py --token=•••", 40 * MINUTE, container="docker 3fb1c2a97de4")
        + person(503, "erin", "python eval.py", 3 * HOUR)
        + person(504, "frank", "python serve.py --port 9000", 12 * DAY),
        facts(64, 3.1, 524288, 434000, "disk=3815442 3319434 /data"),
    )
    now = int(time.time())
    idle = {"hydra": {"looked": now, "since": {"GPU-hydra-0": now - 3 * DAY - 2 * HOUR}}}
    (lab.state / "memory.json").write_text(json.dumps({"idle": idle, "logins": ["dave", "erin"], "problems": []}))


def nile(lab: Lab) -> None:
    """Free; lost; memory that nobody explains; a dead process; a driver that tells nothing."""
    lost = ["[Unknown Error]"] * 5
    lab.host(
        "nile",
        row("nile", 0, RTX, 0, 12, 32, 20, 450)
        + row("nile", 1, (RTX[0], 0), *lost).replace(" 0, [", " [Unknown Error], [")
        + row("nile", 2, RTX, 0, 9000, 44, 60, 450)
        + row("nile", 3, RTX, 71, 20000, 66, 380, 450)
        + row("nile", 4, RTX, "[N/A]", "[N/A]", 40, "[N/A]", "[N/A]"),
        process(610, "GPU-nile-3", 19900, "python"),
        person(611, "grace", "python worker.py --rank 1", 26 * HOUR, gpu_pid=610)
        + person(612, "grace", "python worker.py --rank 2", 26 * HOUR, gpu_pid=610),
        facts(32, 1.2, 131072, 110000, "disk=1000000 400000 /"),
    )


def others(lab: Lab) -> None:
    """Hosts that are not fresh: stale, down, failed, unseen, in maintenance."""
    lab.host("ganges", row("ganges", 0, A100, 50, 20000, 50, 200, 400))
    late = int(time.time()) - 5 * MINUTE
    lab.write("ganges", "gpus.csv", (lab.data / "ganges/gpus.csv").read_text().partition("\n")[2][:-6], time=late)
    rows = "".join(f"{n}, GPU-pascal-{n}, {V100[0]}, 4, {V100[1]}, 0, 0, 30, 2026/11/16 09:00:01.1\n" for n in (0, 1))
    lab.original("pascal", 2 * HOUR + 13 * MINUTE, gpus=rows)
    lab.host("volga", facts=facts(32, 0.2, 131072, 120000))
    lab.write("volga", "gpus.csv", f"# err {NO_DRIVER}\n", rc=9)
    lab.host("rhine", row("rhine", 0, V100, 0, 4, 30, 30, 250))
    (lab.data / "hosts.txt").write_text(
        "atlas, Training, vision nlp\n"
        "nile, , teaching\n"
        "tiber, In the basement\n"
        "rhine, , , maintenance: new power supply, back on Friday\n"
        "secret, , , hidden\n"
    )


def bookings(lab: Lab) -> None:
    """Now, coming, ended; and one for a host that nobody knows."""
    now = datetime.now().astimezone().replace(minute=0, second=0, microsecond=0)

    def one(name: str, begins: float, ends: float, comment: str) -> dict[str, str]:
        first, last = now + timedelta(hours=begins), now + timedelta(hours=ends)
        return {"name": name, "from": first.isoformat(), "date": last.isoformat(), "comment": comment}

    entries = {
        "atlas": {
            "0": one("alice", -50, 52, "ICML run"),
            "1": one("alice", -50, 52, "ICML run"),
            "3": one("carol", -1, 20, "demo"),
        },
        "hydra": {"1": [one("erin", -8, 5, "eval"), one("bob", 30, 40, "")], "3": one("frank", 4, 12, "deadline")},
        "nile": {"0": one("heidi", -30, -3, "course")},
        "pascal": {"*": one("alice", -1, 30, "fallback")},
        "tiber": {"0": one("ivan", -1, 9, "first tests")},
        "hydar": {"0": one("bob", -1, 9, "misspelt")},
    }
    (lab.data / "comments.json").write_text(json.dumps(entries, indent=1))


def make_lab(folder: Path) -> Lab:
    """The lab, with its site built."""
    lab = Lab(folder)
    for part in (atlas, hydra, nile, others, bookings):
        part(lab)
    assert run_gpuboard(folder, "build").returncode == 0
    return lab
