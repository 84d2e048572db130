"""Read this machine's own GPUs, as the scripts do on a host."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from site_builder.core import model
from site_builder.core.files import SCRIPTS_FOLDER
from site_builder.core.subprocesses import LimitedProcess
from site_builder.snapshots.envelope import TASKS_BY_FILE

AWK_PROGRAMS = (
    *("secret_patterns.awk", "mask_option_names.awk", "mask_programs.awk", "mask_values.awk", "mask_words.awk"),
    *("mask_commands.awk", "mask_lines.awk", "mask_process_names.awk"),
)
AWK_TIMEOUT_S = 10
# As the host's script does it: a newline becomes a space, any other control character a question mark.
CLEAN_BYTES = bytes(32 if byte == 10 else 63 if byte < 32 or byte == 127 else byte for byte in range(256))

NVIDIA_SMI = "nvidia-smi"
GPU_FIELDS = (
    *("index", "uuid", "name", "memory.used", "memory.total", "utilization.gpu", "utilization.memory"),
    *("temperature.gpu", "power.draw", "power.limit", "clocks.current.sm", "mig.mode.current"),
    # these show a GPU that nobody should be given; every driver has them
    *("compute_mode", "ecc.errors.uncorrected.volatile.total"),
    # drivers from 570 on: what must be done to it
    "gpu_recovery_action",
    # each driver knows as many of these as those before it, or more
    *("fabric.state", "fabric.status", "fabric.health.bandwidth", "fabric.health.route_recovery_in_progress"),
    *("fabric.health.route_unhealthy", "fabric.health.access_timeout_recovery"),
    *("fabric.health.summary", "fabric.health.incorrect_configuration"),
)
FABRIC_PREFIX = "fabric."
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")
UNKNOWN_FIELD = re.compile(rb'Field "([a-z_.]+)" is not a valid field to query')
AMD_TOOLS = ("amd-smi", "rocm-smi")
# A tool that ended so will not answer another query either.
NO_OUTPUT_EXIT_CODES = frozenset(
    {model.EXIT_TIMED_OUT, model.EXIT_MISSING, model.EXIT_NOT_STARTED, model.EXIT_STILL_HANGS}
)
# The arguments for each query, and those for older versions of the tool.
AMD_SMI_QUERIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "names": (("list", "-e", "--json"), ("list", "--json")),
    "static": (("static", "--json"),),
    "metric": (
        ("metric", "--usage", "--mem-usage", "--temperature", "--power", "--clock", "--json"),
        ("metric", "--json"),
    ),
    "processes": (("process", "--json"),),
}
ROCM_METRIC_OPTIONS = (
    *("--showuse", "--showmemuse", "--showmeminfo", "vram", "gtt"),
    *("--showtemp", "--showpower", "--showclocks"),
)
ROCM_SMI_QUERIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "names": (("--showid", "--showuniqueid", "--showproductname", "--showbus", "--showmaxpower", "--json"),),
    "metric": ((*ROCM_METRIC_OPTIONS, "--json"),),
    "processes": (("--showpids", "--showpidgpus"),),
}
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_SIZE_DIGITS = 15
# Bytes of a command line that are read.
MAX_COMMAND_BYTES = 16384


class LocalNvidiaSmiQuery(LimitedProcess):
    """A running nvidia-smi."""

    def __init__(self, kind: str, fields: Sequence[str]) -> None:
        super().__init__([NVIDIA_SMI, f"--query-{kind}={','.join(fields)}", "--format=csv,nounits"])
        self.kind = kind
        self.fields = tuple(fields)

    def read_output(self) -> tuple[int, bytes]:
        """Return the exit code and the output; ask again without a field that an older driver does not know."""
        code, output = super().read_output()
        match = UNKNOWN_FIELD.search(output)
        unknown = match[1].decode() if match else ""
        fields = tuple(name for name in self.fields if name != unknown)
        if unknown.startswith(FABRIC_PREFIX):  # of the fabric, none that came later
            fields = self.fields[: self.fields.index(unknown)] if unknown in self.fields else ()
        if 0 < len(fields) < len(self.fields):
            return LocalNvidiaSmiQuery(self.kind, fields).read_output()
        return code, output


class AmdToolQueries:
    """All queries of one tool, running at once."""

    def __init__(self, tool_paths: list[str]) -> None:
        """Start the first tool; the others are used if it fails."""
        self.tool_path, *self.fallback_tools = tool_paths
        self.tool_name = os.path.basename(self.tool_path)  # noqa: PTH119
        self.queries = ROCM_SMI_QUERIES if self.tool_name == "rocm-smi" else AMD_SMI_QUERIES
        self.running = {name: LimitedProcess((self.tool_path, *forms[0])) for name, forms in self.queries.items()}
        self.outputs: dict[str, tuple[int, bytes]] = {}

    def read_output(self, name: str) -> tuple[int, bytes]:
        """Return the exit code and the output of a query, if need be with the arguments for an older version."""
        if name not in self.outputs:
            code, output = self.running[name].read_output()
            for arguments in self.queries[name][1:]:
                if code and code not in NO_OUTPUT_EXIT_CODES:
                    code, output = LimitedProcess((self.tool_path, *arguments)).read_output()
            self.outputs[name] = code, output
        return self.outputs[name]

    def format_parts(self, query: str) -> bytes:
        """Return the output of a query, and what identifies the GPUs, as parts of a snapshot."""
        queries = [name for name in ("names", "static", query) if name in self.queries]
        return b"".join(format_local_part(f"{self.tool_name}/{name}", *self.read_output(name)) for name in queries)


class LocalTopology:
    """How the GPUs of NVIDIA are connected; asked once, since it does not change, and may not be known."""

    def __init__(self) -> None:
        self.query: LimitedProcess | None = None
        self.topology: model.GpuTopology | None = None
        self.is_asked = False

    def start(self) -> None:
        if not self.is_asked:
            self.query, self.is_asked = LimitedProcess([NVIDIA_SMI, "topo", "-m"]), True

    def read(self) -> model.GpuTopology | None:
        from site_builder.snapshots.parsers import nvidia_topology  # noqa: PLC0415 # slow to import, and rarely needed

        if self.query:
            code, output = self.query.read_output()
            self.query = None
            self.topology = None if code else nvidia_topology.parse_nvidia_topology_output(output).topology
        return self.topology


class LocalQueries(NamedTuple):
    """All queries that run at once."""

    gpus: LocalNvidiaSmiQuery
    processes: LocalNvidiaSmiQuery
    amd: AmdToolQueries | None
    topology: LocalTopology | None = None


def start_local_queries(topology: LocalTopology | None = None) -> LocalQueries:
    """Start all queries, which take a while."""
    if topology:
        topology.start()
    setting = os.environ.get("GPUBOARD_AMD") or "auto"
    wanted = {"auto": AMD_TOOLS, "no": ()}.get(setting, (setting,))
    # few people have the folder of ROCm on their PATH
    folder = os.path.join(os.environ.get("ROCM_PATH") or "/opt/rocm", "bin")  # noqa: PTH118 # for which() alone
    tool_paths = [path for tool in wanted if (path := shutil.which(tool) or shutil.which(tool, path=folder))]
    return LocalQueries(
        gpus=LocalNvidiaSmiQuery("gpu", GPU_FIELDS),
        processes=LocalNvidiaSmiQuery("compute-apps", PROCESS_FIELDS),
        amd=AmdToolQueries(tool_paths) if tool_paths else None,
        topology=topology,
    )


def read_local_machine(queries: LocalQueries, name: str, now: float, proc: Path) -> model.HostSnapshot:
    """Return the GPUs of this machine, as if it had pushed its snapshot at this very moment."""
    from site_builder.snapshots import gpu_tools  # noqa: PLC0415 # slow to import: all parsers

    amd = queries.amd
    while amd and amd.fallback_tools:  # use the first tool that works, or the last
        code, _ = amd.read_output("names")
        if not code or code in NO_OUTPUT_EXIT_CODES:
            break
        amd = AmdToolQueries(amd.fallback_tools)

    def build_file(task: str, code: int, nvidia_parts: bytes) -> bytes:
        """Build the file that a host would send, so that there is one way to parse it."""
        amd_parts = amd.format_parts("metric" if task == "gpus" else task) if amd else b""
        if amd_parts and code == model.EXIT_MISSING:
            code, nvidia_parts = 0, b""
        header = f"# gpuboard 1 task={task} host={name} time={int(now)} every=0 took_ms=0 rc={code % 256}\n"
        return header.encode() + nvidia_parts + amd_parts + b"# end\n"

    code, csv = queries.gpus.read_output()
    gpus = gpu_tools.parse_gpus_of_tools(build_file("gpus", code, format_local_part("nvidia-csv", code, csv)))
    code, csv = queries.processes.read_output()
    processes_file = build_file("processes", code, format_local_part("nvidia-csv", code, csv))
    if any(gpu.health.is_in_mig_mode for gpu in gpus.rows):  # CSV has no instances
        xml_query, list_query = LimitedProcess([NVIDIA_SMI, "-q", "-x"]), LimitedProcess([NVIDIA_SMI, "-L"])
        code, xml = xml_query.read_output()
        parts = format_local_part("nvidia-xml", code, xml)
        parts += format_local_part("nvidia-xml/list", *list_query.read_output())
        detailed_gpus = gpu_tools.parse_gpus_of_tools(build_file("gpus", code, parts))
        if any(gpu.vendor == "nvidia" for gpu in detailed_gpus.rows):
            gpus, processes_file = detailed_gpus, build_file("processes", code, parts)
    processes = gpu_tools.parse_processes_of_tools(processes_file)
    pids = {process.pid for process in processes.rows if process.pid is not None}
    ps_rows = [row for pid in sorted(pids) if (row := read_local_process(pid, proc))]
    masked_rows, processes = mask_local_processes(ps_rows, processes, proc)
    memory_total, memory_available = read_local_memory(proc)
    facts = model.HostFacts(
        load=os.getloadavg(),
        cpus=os.cpu_count(),
        memory_total=memory_total,
        memory_available=memory_available,
        topology=queries.topology.read() if queries.topology else None,
    )
    return model.HostSnapshot(
        name=name,
        gpus=gpus,
        processes=processes,
        ps_rows=model.ParsedFile(masked_rows, model.SnapshotHeader("ps", name, int(now), 0, 0, 0)),
        facts=model.ParsedFile((facts,)),
        last_seen=now,
        taken_at=dict.fromkeys(TASKS_BY_FILE, now),
    )


def format_local_part(name: str, code: int, output: bytes) -> bytes:
    """Return the output of a query as a part of a snapshot."""
    return b"# part %s rc=%d\n%s" % (name.encode(), code % 256, output)


def read_local_process(pid: int, proc: Path) -> model.PsRow | None:
    """Return a process as far as /proc shows it; its command is the kernel's name for it."""
    folder = proc / str(pid)
    try:
        uid = folder.stat().st_uid
        stat = (folder / "stat").read_text(errors="replace")
        uptime = float((proc / "uptime").read_text().split()[0])
        state, ppid, *fields = stat.rpartition(")")[2].split()
        elapsed = max(0, int(uptime - int(fields[17]) / CLOCK_TICKS_PER_S))
    except (OSError, ValueError, IndexError):
        return None
    title = stat.partition("(")[2].rpartition(")")[0]
    return model.PsRow(
        pid=pid,
        ppid=int(ppid),
        gpu_pid=pid,
        uid=str(uid),
        user=find_local_login_by_uid(uid),
        elapsed=elapsed,
        state=state,
        command=f"[{title}]",
    )


def read_local_memory(proc: Path) -> tuple[float | None, float | None]:
    """Return how much memory this machine has, and how much of it programs can have now, in whole MiB."""
    sizes: dict[str, float] = {}
    with suppress(OSError):
        for line in (proc / "meminfo").read_text(errors="replace").splitlines():
            name, _, size = line.partition(":")
            number = size.removesuffix("kB").strip()
            if number.isdecimal() and len(number) <= MAX_SIZE_DIGITS:
                sizes[name] = int(number) // 1024
    return sizes.get("MemTotal"), sizes.get("MemAvailable")


def find_local_login() -> str | None:
    """Return the login of the real user, and behind sudo that of the person: $USER may be anything."""
    sudo_login = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return sudo_login if sudo_login not in {"", "root"} else find_local_login_by_uid(os.getuid())


def find_local_login_by_uid(uid: int) -> str | None:
    """Return the login of a user, where this machine knows it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def mask_local_processes(
    rows: Sequence[model.PsRow], processes: model.ParsedFile[model.GpuProcessRow], proc: Path
) -> tuple[tuple[model.PsRow, ...], model.ParsedFile[model.GpuProcessRow]]:
    """Add commands and names, with secrets masked as on a host that pushes; what cannot be masked is not shown."""
    if not rows and not processes.rows:
        return (), processes
    lines: list[bytes] = []
    rows_with_command: list[model.PsRow] = []  # a kernel thread or a zombie has no command, and keeps the kernel's name
    for row in rows:
        content = b""
        with suppress(OSError), (proc / str(row.pid) / "cmdline").open("rb") as file:
            content = file.read(MAX_COMMAND_BYTES)
        if len(content) == MAX_COMMAND_BYTES:
            content = content.rpartition(b"\0")[0]  # half a secret is one too
        if content := content.rstrip(b"\0 "):
            rows_with_command.append(row)
            lines += [b"a" + argument.translate(CLEAN_BYTES) for argument in content.split(b"\0")]
            lines.append(b"c")
    lines += [b"n" + (process.name or "").encode().translate(CLEAN_BYTES) for process in processes.rows]
    folder = SCRIPTS_FOLDER / "lib"
    command = ["awk", *(word for name in AWK_PROGRAMS for word in ("-f", str(folder / name)))]
    masked: list[str | None] = []
    with suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(
            command,
            input=b"".join(line + b"\n" for line in lines),
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            timeout=AWK_TIMEOUT_S,
            check=True,
        )
        masked += result.stdout.decode("utf-8", "replace").split("\n")[:-1]
    if len(masked) != len(rows_with_command) + len(processes.rows):
        masked = [None] * (len(rows_with_command) + len(processes.rows))
    commands = {row.pid: command for row, command in zip(rows_with_command, masked)}
    names = masked[len(rows_with_command) :]
    masked_rows = tuple(row._replace(command=commands.get(row.pid, row.command)) for row in rows)
    masked_processes = tuple(process._replace(name=name or None) for process, name in zip(processes.rows, names))
    return masked_rows, replace(processes, rows=masked_processes)


def read_local_machine_name() -> str:
    """Return the name of this machine, perhaps with its domain."""
    return os.uname().nodename or "localhost"
