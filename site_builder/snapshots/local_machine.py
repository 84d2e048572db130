"""Read this machine's own GPUs, as the scripts do on a host."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from site_builder.core.files import find_scripts_folder
from site_builder.core.model import GpuProcessRow, HostFacts, HostSnapshot, ParsedFile, PsRow, SnapshotHeader
from site_builder.core.subprocesses import (
    EXIT_MISSING,
    EXIT_NOT_STARTED,
    EXIT_STILL_HANGS,
    EXIT_TIMED_OUT,
    LimitedProcess,
)

AWK_PROGRAMS = (
    *(
        "secret_patterns.awk",
        "mask_option_names.awk",
        "mask_programs.awk",
        "mask_values.awk",
        "mask_words.awk",
        "mask_commands.awk",
    ),
    *("mask_lines.awk", "mask_process_names.awk"),
)
AWK_TIMEOUT_S = 10
# As the host's script does it: a newline becomes a space, any other control character a question mark.
CLEAN_BYTES = bytes(32 if byte == 10 else 63 if byte < 32 or byte == 127 else byte for byte in range(256))


def mask_commands(
    commands: Sequence[Sequence[bytes]], names: Sequence[str]
) -> tuple[list[str | None], list[str | None]]:
    """Return the commands, each given as its arguments, and the process names as they may be shown.

    Where awk cannot be run, each is None: what is not masked is not shown.
    """
    lines = [line for one in commands for line in (*(b"a" + argument.translate(CLEAN_BYTES) for argument in one), b"c")]
    lines += [b"n" + name.encode().translate(CLEAN_BYTES) for name in names]
    shown: list[str | None] = list(run_awk(lines)) if lines else []
    if len(shown) != len(commands) + len(names):
        shown = [None] * (len(commands) + len(names))
    return shown[: len(commands)], shown[len(commands) :]


def run_awk(lines: Sequence[bytes]) -> list[str]:
    """Return what the programs print; nothing if they fail."""
    folder = find_scripts_folder() / "lib"
    command = ["awk", *(word for name in AWK_PROGRAMS for word in ("-f", str(folder / name)))]
    environment = {**os.environ, "LC_ALL": "C"}
    text = b"".join(line + b"\n" for line in lines)
    try:
        ended = subprocess.run(
            command, input=text, env=environment, capture_output=True, timeout=AWK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return ended.stdout.decode("utf-8", "replace").split("\n")[:-1] if ended.returncode == 0 else []


AMD_TOOLS = ("amd-smi", "rocm-smi")
# What could not be asked at all will not answer another question either.
NO_OUTPUT_EXIT_CODES = frozenset({EXIT_TIMED_OUT, EXIT_MISSING, EXIT_NOT_STARTED, EXIT_STILL_HANGS})
METRIC_OPTIONS = ("--usage", "--mem-usage", "--temperature", "--power", "--clock")
# Each question, and how an older tool is asked.
AMD_SMI_QUERIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "names": (("list", "-e", "--json"), ("list", "--json")),
    "static": (("static", "--json"),),
    "metric": (("metric", *METRIC_OPTIONS, "--json"), ("metric", "--json")),
    "processes": (("process", "--json"),),
}
ROCM_SMI_QUERIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "names": (("--showid", "--showuniqueid", "--showproductname", "--showbus", "--showmaxpower", "--json"),),
    "metric": (
        (
            *("--showuse", "--showmemuse", "--showmeminfo", "vram", "--showtemp", "--showpower", "--showclocks"),
            "--json",
        ),
    ),
    "processes": (("--showpids", "--showpidgpus"),),
}


def find_amd_tools(environment: Mapping[str, str]) -> list[str]:
    """The tools that are here, the better one first; ROCm keeps its own in a folder that few have on their PATH."""
    told = environment.get("GPUBOARD_AMD") or "auto"
    wanted = {"auto": AMD_TOOLS, "no": ()}.get(told, (told,))
    place = os.path.join(environment.get("ROCM_PATH") or "/opt/rocm", "bin")  # noqa: PTH118 # for which() alone
    found = (shutil.which(tool) or shutil.which(tool, path=place) for tool in wanted)
    return [one for one in found if one]


class AmdToolQueries:
    """All questions to one tool, asked at once; to the next one if it fails."""

    def __init__(self, several: list[str]) -> None:
        """Ask the first."""
        self.tool_path, *self.fallback_tools = several
        self.tool_name = os.path.basename(self.tool_path)  # noqa: PTH119
        self.queries = ROCM_SMI_QUERIES if self.tool_name == "rocm-smi" else AMD_SMI_QUERIES
        self.running = {name: LimitedProcess((self.tool_path, *ways[0])) for name, ways in self.queries.items()}
        self.outputs: dict[str, tuple[int, bytes]] = {}

    def read_output(self, name: str) -> tuple[int, bytes]:
        """What it says to one of them; one that it does not know is put in an older way."""
        if name not in self.outputs:
            code, said = self.running[name].read_output()
            for way in self.queries[name][1:]:
                if code and code not in NO_OUTPUT_EXIT_CODES:
                    code, said = LimitedProcess((self.tool_path, *way)).read_output()
            self.outputs[name] = code, said
        return self.outputs[name]

    def format_parts(self, *names: str) -> bytes:
        """The answers, as the parts of a snapshot."""
        found = []
        for name in ("names", "static", *names):
            if name in self.queries:
                code, said = self.read_output(name)
                found.append(b"# part %s/%s rc=%d\n%s" % (self.tool_name.encode(), name.encode(), code % 256, said))
        return b"".join(found)


def start_amd_queries(environment: Mapping[str, str]) -> AmdToolQueries | None:
    """Begin to ask, where there is a tool."""
    several = find_amd_tools(environment)
    return AmdToolQueries(several) if several else None


def choose_working_tool(asked: AmdToolQueries) -> AmdToolQueries:
    """The tool that answers: where the better one fails, the other one; where none does, the last one's words count."""
    while (
        asked.fallback_tools
        and asked.read_output("names")[0]
        and asked.read_output("names")[0] not in NO_OUTPUT_EXIT_CODES
    ):
        asked = AmdToolQueries(asked.fallback_tools)
    return asked


NVIDIA_SMI = "nvidia-smi"
GPU_FIELDS = (
    *("index", "uuid", "name", "memory.used", "memory.total", "utilization.gpu", "utilization.memory"),
    *("temperature.gpu", "power.draw", "power.limit", "clocks.current.sm", "mig.mode.current"),
    # by which a GPU is known that nobody should be given; every driver has these
    *("compute_mode", "ecc.errors.uncorrected.volatile.total"),
    # drivers from 570 on: what must be done to it
    "gpu_recovery_action",
)
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")
UNKNOWN_FIELD = re.compile(rb'Field "([a-z_.]+)" is not a valid field to query')
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Bytes of a command line that are read.
MAX_COMMAND_BYTES = 16384


class NvidiaSmiQuery(LimitedProcess):
    """An nvidia-smi."""

    def __init__(self, kind: str, fields: Sequence[str]) -> None:
        """Ask it."""
        super().__init__([NVIDIA_SMI, f"--query-{kind}={','.join(fields)}", "--format=csv,nounits"])
        self.kind = kind
        self.fields = tuple(fields)

    def read_output(self) -> tuple[int, bytes]:
        """The same; a field that an older driver does not know costs no other."""
        code, said = super().read_output()
        unknown = UNKNOWN_FIELD.search(said)
        left = tuple(name for name in self.fields if unknown and name != unknown[1].decode())
        return (
            NvidiaSmiQuery(self.kind, left).read_output()
            if unknown and 0 < len(left) < len(self.fields)
            else (code, said)
        )


class LocalQueries(NamedTuple):
    """All that is asked at once."""

    gpus: NvidiaSmiQuery
    processes: NvidiaSmiQuery
    amd: AmdToolQueries | None


def start_local_queries() -> LocalQueries:
    """Begin to ask; it takes a while, in which others can be busy."""
    amd = start_amd_queries(os.environ)
    return LocalQueries(NvidiaSmiQuery("gpu", GPU_FIELDS), NvidiaSmiQuery("compute-apps", PROCESS_FIELDS), amd)


def read_local_machine(asked: LocalQueries, name: str, now: float, proc: Path) -> HostSnapshot:
    """The GPUs of this machine, as a host would tell them that pushes its snapshot at this very moment."""
    from site_builder.snapshots import registry  # noqa: PLC0415 # while nvidia-smi runs

    amd = choose_working_tool(asked.amd) if asked.amd else None
    others, their_processes = (amd.format_parts("metric"), amd.format_parts("processes")) if amd else (b"", b"")
    told = registry.parse_gpus_csv(build_local_file("gpus", name, now, asked.gpus.read_output(), others))
    running = registry.parse_processes_csv(
        build_local_file("processes", name, now, asked.processes.read_output(), their_processes)
    )
    if any(one.raw_fields.get("mig.mode.current") == "Enabled" for one in told.rows):
        code, parts = query_mig_instances()
        finer = registry.parse_gpus_csv(build_snapshot_file("gpus", name, now, code, parts + others))
        if any(one.vendor == "nvidia" for one in finer.rows):
            told = finer
            running = registry.parse_processes_csv(
                build_snapshot_file("processes", name, now, code, parts + their_processes)
            )
    pids = {one.pid for one in running.rows if one.pid is not None}
    rows, running = mask_processes(
        [row for pid in sorted(pids) if (row := read_local_process(pid, proc))], running, proc
    )
    header = SnapshotHeader("ps", name, int(now), 0, 0, 0)
    files = dict.fromkeys(("gpus.csv", "processes.csv", "ps.txt", "host.txt"), now)
    return HostSnapshot(name, told, running, ParsedFile(rows, header), ParsedFile((read_local_facts(),)), now, files)


def mask_processes(
    rows: Sequence[PsRow], running: ParsedFile[GpuProcessRow], proc: Path
) -> tuple[tuple[PsRow, ...], ParsedFile[GpuProcessRow]]:
    """The same processes with their commands and names, secrets masked as on a host that pushes."""

    given = [read_arguments(row.pid, proc) for row in rows]
    commands, names = mask_commands([one for one in given if one], [one.name or "" for one in running.rows])
    left = iter(commands)
    # a kernel thread or a zombie has no command, and keeps the name that the kernel knows
    shown = tuple(row._replace(command=next(left)) if one else row for row, one in zip(rows, given))
    processes = tuple(one._replace(name=name or None) for one, name in zip(running.rows, names))
    return shown, replace(running, rows=processes)


def read_arguments(pid: int, proc: Path) -> list[bytes]:
    """The arguments of a process, as many as a host reads; none where they cannot be read."""
    try:
        with (proc / str(pid) / "cmdline").open("rb") as file:
            content = file.read(MAX_COMMAND_BYTES)
    except OSError:
        return []
    whole = content.rpartition(b"\0")[0] if len(content) == MAX_COMMAND_BYTES else content  # half a secret is one too
    stripped = whole.rstrip(b"\0 ")
    return stripped.split(b"\0") if stripped else []


def query_mig_instances() -> tuple[int, bytes]:
    """The exit code of `nvidia-smi -q -x`, and the parts of a snapshot that has it and -L: CSV tells no instances."""
    asked = {
        b"nvidia-xml": LimitedProcess([NVIDIA_SMI, "-q", "-x"]),
        b"nvidia-xml/list": LimitedProcess([NVIDIA_SMI, "-L"]),
    }
    answers = {form: one.read_output() for form, one in asked.items()}
    parts = (b"# part %s rc=%d\n%s" % (form, code % 256, said) for form, (code, said) in answers.items())
    return answers[b"nvidia-xml"][0], b"".join(parts)


def build_local_file(task: str, name: str, now: float, answer: tuple[int, bytes], parts: bytes) -> bytes:
    """The file that this would be in data/, so that it is understood in one way only; `parts` are another maker's."""
    code, said = answer
    if parts and code == EXIT_MISSING:
        code, said = 0, parts
    elif parts:
        said = b"# part nvidia-csv rc=%d\n%s%s" % (code % 256, said, parts)
    return build_snapshot_file(task, name, now, code, said)


def build_snapshot_file(task: str, name: str, now: float, code: int, body: bytes) -> bytes:
    """The form of a snapshot."""
    head = f"# gpuboard 1 task={task} host={name} time={int(now)} every=0 took_ms=0 rc={code % 256}\n"
    return head.encode() + body + b"# end\n"


def read_local_facts() -> HostFacts:
    """Load and CPUs."""
    return HostFacts(load=os.getloadavg(), cpus=os.cpu_count())


def read_local_process(pid: int, proc: Path) -> PsRow | None:
    """A process, as far as we may look at it; its command is the name that the kernel knows."""
    folder = proc / str(pid)
    try:
        uid = folder.stat().st_uid
        stat = (folder / "stat").read_text(errors="replace")
        uptime = float((proc / "uptime").read_text().split()[0])
        state, ppid, *rest = stat.rpartition(")")[2].split()
        elapsed = max(0, int(uptime - int(rest[17]) / CLOCK_TICKS_PER_S))
    except (OSError, ValueError, IndexError):
        return None
    title = stat.partition("(")[2].rpartition(")")[0]
    return PsRow(pid, int(ppid), pid, str(uid), find_login_by_uid(uid), elapsed, None, None, state, None, f"[{title}]")


def find_login_by_uid(uid: int) -> str | None:
    """The login of a user, where this machine has one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
