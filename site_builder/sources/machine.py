"""This machine's own GPUs: nvidia-smi is asked here and now, and /proc for whose the processes are."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from site_builder.model import Dump, Header, HostData, HostFacts, PsRow

PROGRAM = "nvidia-smi"
LIMIT = 10
# Exit codes by which a snapshot tells what became of nvidia-smi.
TIMED_OUT, MISSING, NOT_STARTED, STILL_HANGS = 124, 127, 126, 200
GPU_FIELDS = (
    *("index", "uuid", "name", "memory.used", "memory.total", "utilization.gpu", "utilization.memory"),
    *("temperature.gpu", "power.draw", "power.limit", "clocks.current.sm"),
)
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")
NOT_KNOWN = re.compile(rb'Field "([a-z_.]+)" is not a valid field to query')
TICKS = os.sysconf("SC_CLK_TCK")


# Those that could not be killed: while one hangs, no other is started.
LEFT: list[subprocess.Popen[bytes]] = []


class Query:
    """An nvidia-smi that runs while we do something else."""

    def __init__(self, kind: str, fields: Sequence[str]) -> None:
        """Ask it."""
        self.kind = kind
        self.fields = tuple(fields)
        self.began = time.monotonic()
        self.failed = 0
        LEFT[:] = [one for one in LEFT if one.poll() is None]
        if LEFT:
            self.failed = STILL_HANGS
            return
        command = [PROGRAM, f"--query-{kind}={','.join(fields)}", "--format=csv,nounits"]
        none, pipe = subprocess.DEVNULL, subprocess.PIPE
        try:
            self.process = subprocess.Popen(command, stdin=none, stdout=pipe, stderr=pipe, start_new_session=True)
        except FileNotFoundError:
            self.failed = MISSING
        except OSError:
            self.failed = NOT_STARTED

    def answer(self) -> tuple[int, bytes]:
        """Its exit code, and all that it said; one that hangs is killed, or left alone if it cannot be."""
        if self.failed:
            return self.failed, b""
        try:
            said, complaint = self.process.communicate(timeout=max(0.0, self.began + LIMIT - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            LEFT.append(self.process)
            return TIMED_OUT, b""
        unknown = NOT_KNOWN.search(said + complaint)
        left = tuple(name for name in self.fields if unknown and name != unknown[1].decode())
        if unknown and 0 < len(left) < len(self.fields):  # an older driver: what it knows is enough
            return Query(self.kind, left).answer()
        errors = b"".join(b"# err %s\n" % line for line in complaint.splitlines() if line.strip())
        return self.process.returncode, said + errors


def ask() -> tuple[Query, Query]:
    """Begin to ask; it takes a while, in which others can be busy."""
    return Query("gpu", GPU_FIELDS), Query("compute-apps", PROCESS_FIELDS)


def look(asked: tuple[Query, Query], name: str, now: float, proc: Path) -> HostData:
    """The GPUs of this machine, as a host would tell them that pushes its snapshot at this very moment."""
    from site_builder.readers import gpus, processes  # noqa: PLC0415 # while nvidia-smi runs

    told = gpus.read(snapshot("gpus", name, now, *asked[0].answer()))
    running = processes.read(snapshot("processes", name, now, *asked[1].answer()))
    rows = tuple(row for pid in {one.pid for one in running.rows} if pid is not None and (row := ps_row(pid, proc)))
    header = Header("ps", name, int(now), 0, 0, 0)
    files = dict.fromkeys(("gpus.csv", "processes.csv", "ps.txt", "host.txt"), now)
    return HostData(name, told, running, Dump(rows, header), Dump((facts(),)), now, files)


def snapshot(task: str, name: str, now: float, code: int, said: bytes) -> bytes:
    """The file that this would be in data/, so that it is understood in one way only."""
    head = f"# gpuboard 1 task={task} host={name} time={int(now)} every=0 took_ms=0 rc={code % 256}\n"
    body = said if not said or said.endswith(b"\n") else said + b"\n"
    return head.encode() + body + b"# end\n"


def facts() -> HostFacts:
    """Load and CPUs."""
    return HostFacts(load=os.getloadavg(), cpus=os.cpu_count())


def ps_row(pid: int, proc: Path) -> PsRow | None:
    """A process, as far as we may look at it."""
    folder = proc / str(pid)
    try:
        uid = folder.stat().st_uid
        stat = (folder / "stat").read_text(errors="replace")
        uptime = float((proc / "uptime").read_text().split()[0])
        state, ppid, *rest = stat.rpartition(")")[2].split()
        elapsed = max(0, int(uptime - int(rest[17]) / TICKS))
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except (OSError, ValueError, IndexError):
        return None
    title = stat.partition("(")[2].rpartition(")")[0]
    return PsRow(
        pid, int(ppid), pid, str(uid), login_of(uid), elapsed, None, None, state, None, command or f"[{title}]"
    )


def login_of(uid: int) -> str | None:
    """The login of a user, where this machine has one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
