"""Build the board in this folder with the code of an older commit; README.md says how to run it."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sqlite3
import sys
import threading
import time
from contextlib import closing, redirect_stdout, suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

START = int(datetime(2026, 3, 10, 8, tzinfo=timezone.utc).timestamp())
END = START + 6 * 3600
CLOCK = {"now": float(START)}
HOST_TASKS = {"gpus.csv": "gpus", "processes.csv": "processes", "ps.txt": "ps", "host.txt": "host"}
GPU_COLUMNS = (
    "index, uuid, name, memory.used, memory.total, utilization.gpu, utilization.memory, temperature.gpu, power.draw, "
    "power.limit, ecc.errors.uncorrected.aggregate.total, ecc.errors.corrected.aggregate.total\n"
)
PROCESS_COLUMNS = "gpu_uuid, pid, used_gpu_memory [MiB], process_name\n"
PS_COLUMNS = "pid\tppid\tgpu_pid\tpgrp\tuid\tuser\telapsed [s]\tcpu [%]\trss [KiB]\tstate\tcontainer\tcommand\n"
SETTINGS = """GPUBOARD_ZONE=UTC
GPUBOARD_BOOK_KEEP=1h
GPUBOARD_NOTIFY=lab=json://127.0.0.1:18999/
GPUBOARD_CONTACTS=contacts.csv
GPUBOARD_ALERTS=alerts.conf
"""
CONTACTS = """alice,json://127.0.0.1:18999/alice
bob,json://127.0.0.1:18999/bob
carol,json://127.0.0.1:18999/carol
dave,json://127.0.0.1:18999/dave
"""
RULES = """[all]
most = 30
[host-down]
hold = 3m
over = 4m
recovery = yes
[gpu-held]
quiet = 09:00-17:00
"""
STATS = {
    "person": ("stats", "--month", "2026-03", "--json"),
    "host": ("stats", "--month", "2026-03", "--by", "host", "--json"),
    "model": ("stats", "--month", "2026-03", "--by", "model", "--json"),
}


class Receiver(BaseHTTPRequestHandler):
    """A channel that takes everything."""

    def do_POST(self) -> None:  # the name of the library
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def gpuboard(now: float, *words: str) -> str:
    """Run a command at a moment, and return what it prints."""
    CLOCK["now"] = now
    sys.argv = ["gpuboard", *words]
    output = TextIOWrapper(BytesIO(), write_through=True)
    try:
        with redirect_stdout(output):
            runpy.run_module("site_builder", run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"{words}: exit {ended.code}") from None
    output.seek(0)
    return output.read()


def write_host(name: str, now: int, gpus: list[dict[str, Any]]) -> None:
    """Write a snapshot as the scripts of then do."""
    rows, processes, people = "", "", ""
    for index, gpu in enumerate(gpus):
        uuid, user = f"GPU-{name}-{index}", gpu.get("user")
        rows += (
            f"{index}, {uuid}, {gpu.get('model', 'NVIDIA A100-SXM4-80GB')}, {7000 if user else 4}, 81920, "
            f"{gpu.get('use', 0)}, 10, {gpu.get('temperature', 41)}, 61.50, 400.00, {gpu.get('uncorrected', 0)}, 0\n"
        )
        if user:
            pid = 100 + index
            processes += f"{uuid}, {pid}, 6990, python\n"
            people += f"{pid}\t1\t{pid}\t{pid}\t1000\t{user}\t{now - START + 60}\t99.0\t2048\tS\t-\tpython train.py\n"
    bodies = {
        "gpus.csv": GPU_COLUMNS + rows,
        "processes.csv": PROCESS_COLUMNS + processes,
        "ps.txt": PS_COLUMNS + people,
        "host.txt": "cpus=4\nload=1.5 1.2 1.0\nmemory_total=64000\nmemory_available=32000\ndisk=1000 610 /data\n",
    }
    folder = Path("data") / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, body in bodies.items():
        head = f"# gpuboard 1 task={HOST_TASKS[file]} host={name} time={now} every=20 took_ms=1 rc=0\n"
        (folder / f"{file}.new").write_text(f"{head}{body}# end\n")
        os.utime(folder / f"{file}.new", (now, now))
        (folder / f"{file}.new").replace(folder / file)


def write_original_host(name: str, now: int) -> None:
    """Write the files of the scripts that were there before gpuboard."""
    moment = datetime.fromtimestamp(now, timezone.utc)
    at = moment.strftime("%Y/%m/%d %H:%M:%S.123")
    bodies = {
        "gpus.csv": f"0, GPU-{name}-0, Tesla T4, 9000, 15360, 80, 40, 60, {at}\n"
        f"1, GPU-{name}-1, Tesla T4, 3, 15360, 0, 0, 40, {at}\n",
        "processes.csv": f"{at}, GPU-{name}-0, 8990, python, 42\n",
        "users.csv": f"42 dave {moment:%a %b %e} 07:00:00 2026\n",
        "status.csv": "Mem: 64000 1 1 1 1 32000\n96\n up 1 day, load average: 0,54, 0,31, 0,14\n",
    }
    for file, body in bodies.items():
        path = Path("data") / f"{name}_{file}"
        path.write_text(body)
        os.utime(path, (now, now))


def write_hosts(now: int) -> None:
    """Write what all hosts push at a moment."""
    elapsed = now - START
    write_host(
        "atlas",
        now,
        [
            {"user": "alice", "use": 55},
            {"user": "bob", "use": 0},
            {"user": "bob", "use": 80} if 3600 <= elapsed < 3 * 3600 else {},
            {},
        ],
    )
    if elapsed < 4 * 3600:
        write_host(
            "hydra", now, [{"model": "NVIDIA H100 PCIe"}, {"model": "NVIDIA H100 PCIe", "user": "carol", "use": 90}]
        )
    uncorrected, temperature = (2 if elapsed >= 9000 else 0), (95 if elapsed >= 6 * 3600 - 300 else 60)
    write_host("nile", now, [{"uncorrected": uncorrected, "temperature": temperature}])
    write_original_host("lyra", now)


def build_board() -> str:
    """Live through six hours; return the token that was made."""
    for name, text in {"gpuboard.conf": SETTINGS, "alerts.conf": RULES, "contacts.csv": CONTACTS}.items():
        Path(name).write_text(text)
        Path(name).chmod(0o600)
    Path("data").mkdir()
    write_hosts(START)
    gpuboard(START, "build")
    token = gpuboard(START, "token", "alice").strip()
    booking = ("--name", "carol", "--comment", "paper")
    gpuboard(START, "book", "atlas:2", "--from", "2026-03-10 09:00", "--until", "2026-03-10 12:00", *booking)
    gpuboard(START, "book", "atlas:3", "--until", "2026-03-10 20:00", "--name", "alice")
    gpuboard(
        START, "book", "hydra:0", "--from", "2026-03-11 09:00", "--for", "2h", "--repeat", "weekly", "--name", "bob"
    )
    watch = {"id": "w1", "name": "dave", "when": "4 gpus free on atlas", "via": ""}
    watch |= {"made": "2026-03-10T08:00:00+00:00", "until": "2026-04-01T08:00:00+00:00"}
    Path("data/watches.json").write_text(json.dumps([watch]))
    for now in range(START + 60, END + 1, 60):
        write_hosts(now)
        gpuboard(now, "build")
        if now % 300 == 0:
            with suppress(RuntimeError):  # no mail server answers
                gpuboard(now + 5, "alerts", "run")
    gpuboard(END, "book", "nile:0", "--from", "2026-03-12 09:00", "--for", "3h", "--name", "carol")
    return token


def record_answers(token: str) -> None:
    """Write down what the code that built the board says of it."""
    events = import_module("site_builder.sources.events")
    past = import_module("site_builder.sources.past")
    with closing(past.Past(Path("state"), timezone.utc)) as history:
        timeline = [
            [event.host, event.gpu, event.kind, event.at, event.since, event.until]
            for event in events.Events(history).read(START - 86400, END + 86400)
        ]
    answers = {
        "built_at": END,
        "token": token,
        "stats": {by: json.loads(gpuboard(END + 30, *words)) for by, words in STATS.items()},
        "export": gpuboard(END + 30, "export", "--since", "2026-03-10", "--step", "3600", "--csv"),
        "bookings": json.loads(gpuboard(END + 30, "bookings", "--json")),
        "past_bookings": json.loads(gpuboard(END + 30, "bookings", "--past", "--json")),
        "alerts": json.loads(gpuboard(END + 30, "alerts", "list", "--json")),
        "alert_history": json.loads(gpuboard(END + 30, "alerts", "history", "--json")),
        "health_events": timeline,
        "states": {
            host["name"]: [gpu["state"] for gpu in host["gpus"]]
            for host in json.loads(Path("www/status.json").read_bytes())["hosts"]
        },
    }
    Path("answers.json").write_text(json.dumps(answers, indent=1) + "\n")


def main() -> None:
    """Build in the folder that is given, which must be empty."""
    os.chdir(sys.argv[1])
    os.environ |= {"GPUBOARD_CONF": "gpuboard.conf", "TZ": "UTC"}
    time.time = lambda: CLOCK["now"]  # before anything of gpuboard is imported
    signature = import_module("site_builder.sources.files").Signature
    # a file arrives when it was written, on the clock of the story
    signature.of = staticmethod(lambda of: signature(of.st_ino, of.st_size, of.st_mtime_ns, of.st_mtime_ns))
    # alerts are sent below, at the time of the story
    vars(import_module("site_builder.post"))["start"] = lambda _: None
    server = HTTPServer(("127.0.0.1", 18999), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    token = build_board()
    record_answers(token)
    server.shutdown()
    with closing(sqlite3.connect("state/history.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("VACUUM")
        connection.execute("PRAGMA journal_mode=DELETE")
    shutil.rmtree("www")
    shutil.rmtree("state/charts")  # large, and drawn again by every version
    for left in (*Path("state").glob("*lock"), *Path("state").glob("*-wal"), *Path("state").glob("*-shm")):
        left.unlink()


if __name__ == "__main__":
    main()
