"""This machine's own GPUs: the makers' tools are asked here and now, and /proc for whose the processes are."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from site_builder.core.model import Dump, GpuProcess, Header, HostData, HostFacts, PsRow
from site_builder.core.subprocesses import MISSING, Asked
from site_builder.snapshots import local_amd

PROGRAM = "nvidia-smi"
GPU_FIELDS = (
    *("index", "uuid", "name", "memory.used", "memory.total", "utilization.gpu", "utilization.memory"),
    *("temperature.gpu", "power.draw", "power.limit", "clocks.current.sm", "mig.mode.current"),
    # by which a GPU is known that nobody should be given; every driver has these
    *("compute_mode", "ecc.errors.uncorrected.volatile.total"),
    # drivers from 570 on: what must be done to it
    "gpu_recovery_action",
)
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")
NOT_KNOWN = re.compile(rb'Field "([a-z_.]+)" is not a valid field to query')
TICKS = os.sysconf("SC_CLK_TCK")
# Bytes of a command line that are read.
LONGEST_COMMAND = 16384


class Query(Asked):
    """An nvidia-smi."""

    def __init__(self, kind: str, fields: Sequence[str]) -> None:
        """Ask it."""
        super().__init__([PROGRAM, f"--query-{kind}={','.join(fields)}", "--format=csv,nounits"])
        self.kind = kind
        self.fields = tuple(fields)

    def answer(self) -> tuple[int, bytes]:
        """The same; a field that an older driver does not know costs no other."""
        code, said = super().answer()
        unknown = NOT_KNOWN.search(said)
        left = tuple(name for name in self.fields if unknown and name != unknown[1].decode())
        return Query(self.kind, left).answer() if unknown and 0 < len(left) < len(self.fields) else (code, said)


class Questions(NamedTuple):
    """All that is asked at once."""

    gpus: Query
    processes: Query
    amd: local_amd.Amd | None


def ask() -> Questions:
    """Begin to ask; it takes a while, in which others can be busy."""
    amd = local_amd.ask(os.environ)
    return Questions(Query("gpu", GPU_FIELDS), Query("compute-apps", PROCESS_FIELDS), amd)


def look(asked: Questions, name: str, now: float, proc: Path) -> HostData:
    """The GPUs of this machine, as a host would tell them that pushes its snapshot at this very moment."""
    from site_builder.snapshots.parsers import gpus_csv, processes_csv  # noqa: PLC0415 # while nvidia-smi runs

    amd = local_amd.settled(asked.amd) if asked.amd else None
    others, their_processes = (amd.parts("metric"), amd.parts("processes")) if amd else (b"", b"")
    told = gpus_csv.read(snapshot("gpus", name, now, asked.gpus.answer(), others))
    running = processes_csv.read(snapshot("processes", name, now, asked.processes.answer(), their_processes))
    if any(one.more.get("mig.mode.current") == "Enabled" for one in told.rows):
        code, parts = with_instances()
        finer = gpus_csv.read(file_of("gpus", name, now, code, parts + others))
        if any(one.vendor == "nvidia" for one in finer.rows):
            told = finer
            running = processes_csv.read(file_of("processes", name, now, code, parts + their_processes))
    pids = {one.pid for one in running.rows if one.pid is not None}
    rows, running = masked([row for pid in sorted(pids) if (row := ps_row(pid, proc))], running, proc)
    header = Header("ps", name, int(now), 0, 0, 0)
    files = dict.fromkeys(("gpus.csv", "processes.csv", "ps.txt", "host.txt"), now)
    return HostData(name, told, running, Dump(rows, header), Dump((facts(),)), now, files)


def masked(rows: Sequence[PsRow], running: Dump[GpuProcess], proc: Path) -> tuple[tuple[PsRow, ...], Dump[GpuProcess]]:
    """The same processes with their commands and names, secrets masked as on a host that pushes."""
    from site_builder.snapshots import masking  # noqa: PLC0415 # only where a process runs

    given = [arguments_of(row.pid, proc) for row in rows]
    commands, names = masking.mask([one for one in given if one], [one.name or "" for one in running.rows])
    left = iter(commands)
    # a kernel thread or a zombie has no command, and keeps the name that the kernel knows
    shown = tuple(row._replace(command=next(left)) if one else row for row, one in zip(rows, given))
    processes = tuple(one._replace(name=name or None) for one, name in zip(running.rows, names))
    return shown, replace(running, rows=processes)


def arguments_of(pid: int, proc: Path) -> list[bytes]:
    """The arguments of a process, as many as a host reads; none where they cannot be read."""
    try:
        with (proc / str(pid) / "cmdline").open("rb") as file:
            content = file.read(LONGEST_COMMAND)
    except OSError:
        return []
    whole = content.rpartition(b"\0")[0] if len(content) == LONGEST_COMMAND else content  # half a secret is one too
    stripped = whole.rstrip(b"\0 ")
    return stripped.split(b"\0") if stripped else []


def with_instances() -> tuple[int, bytes]:
    """The exit code of `nvidia-smi -q -x`, and the parts of a snapshot that has it and -L: CSV tells no instances."""
    asked = {b"nvidia-xml": Asked([PROGRAM, "-q", "-x"]), b"nvidia-xml/list": Asked([PROGRAM, "-L"])}
    answers = {form: one.answer() for form, one in asked.items()}
    parts = (b"# part %s rc=%d\n%s" % (form, code % 256, said) for form, (code, said) in answers.items())
    return answers[b"nvidia-xml"][0], b"".join(parts)


def snapshot(task: str, name: str, now: float, answer: tuple[int, bytes], parts: bytes) -> bytes:
    """The file that this would be in data/, so that it is understood in one way only; `parts` are another maker's."""
    code, said = answer
    if parts and code == MISSING:
        code, said = 0, parts
    elif parts:
        said = b"# part nvidia-csv rc=%d\n%s%s" % (code % 256, said, parts)
    return file_of(task, name, now, code, said)


def file_of(task: str, name: str, now: float, code: int, body: bytes) -> bytes:
    """The form of a snapshot."""
    head = f"# gpuboard 1 task={task} host={name} time={int(now)} every=0 took_ms=0 rc={code % 256}\n"
    return head.encode() + body + b"# end\n"


def facts() -> HostFacts:
    """Load and CPUs."""
    return HostFacts(load=os.getloadavg(), cpus=os.cpu_count())


def ps_row(pid: int, proc: Path) -> PsRow | None:
    """A process, as far as we may look at it; its command is the name that the kernel knows."""
    folder = proc / str(pid)
    try:
        uid = folder.stat().st_uid
        stat = (folder / "stat").read_text(errors="replace")
        uptime = float((proc / "uptime").read_text().split()[0])
        state, ppid, *rest = stat.rpartition(")")[2].split()
        elapsed = max(0, int(uptime - int(rest[17]) / TICKS))
    except (OSError, ValueError, IndexError):
        return None
    title = stat.partition("(")[2].rpartition(")")[0]
    return PsRow(pid, int(ppid), pid, str(uid), login_of(uid), elapsed, None, None, state, None, f"[{title}]")


def login_of(uid: int) -> str | None:
    """The login of a user, where this machine has one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
