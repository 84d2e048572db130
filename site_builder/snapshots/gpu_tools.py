"""The tools that report GPUs, and their parsers."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

from site_builder.core.model import Gpu, GpuProcessRow, ParsedFile, ToolResult
from site_builder.core.terminal_text import MAX_MESSAGES, limit_problems
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import ToolOutput, ToolParts

# The format of a file that has no parts.
DEFAULT_FORMAT = "nvidia-csv"
MAX_GPUS = 1024
MAX_PROCESSES = 10_000


class GpuTool(NamedTuple):
    """A tool, the vendor of its GPUs, and its module in snapshots/parsers, which is imported when a host needs it."""

    name: str
    vendor: str
    module: str

    def parse(self, task: str, parts: ToolParts) -> ToolOutput[Any]:
        """Parse what the tool printed for the task `gpus` or `processes`."""
        parser = import_module(f"site_builder.snapshots.parsers.{self.module}")
        output: ToolOutput[Any] = getattr(parser, f"parse_{self.module}_{task}")(parts)
        return output


GPU_TOOLS = {
    "nvidia-csv": GpuTool("nvidia-smi", "nvidia", "nvidia_csv"),
    "amd-smi": GpuTool("amd-smi", "amd", "amd_smi"),
    "rocm-smi": GpuTool("rocm-smi", "amd", "rocm_smi"),
    "nvidia-xml": GpuTool("nvidia-smi", "nvidia", "nvidia_xml"),
}


def parse_gpus_of_tools(data: bytes) -> ParsedFile[Gpu]:
    """Parse each GPU once, in the order of its number; those of a second vendor follow, with its name in theirs."""
    file, rows_by_tool = parse_gpu_tool_rows(data, "gpus")
    problems = list(file.problems)
    gpus: list[Gpu] = []
    vendors: set[str] = set()
    for tool, rows in rows_by_tool:
        if rows and tool.vendor in vendors:
            problems.append(f"GPUs of {tool.vendor} are reported by two parts; the first is used")
            continue
        vendors |= {tool.vendor} if rows else set()
        tool_gpus: list[Gpu] = []
        positions: dict[str, int] = {}
        for gpu in rows:
            # a row of nothing but errors belongs to the message before it
            is_nameless = gpu.uuid is None and gpu.index is None and gpu.bus_id is None and gpu.lost
            if is_nameless and tool_gpus and tool_gpus[-1].lost and tool_gpus[-1].uuid is None:
                continue
            if gpu.uuid in positions:
                problems.append(f"the GPU {gpu.uuid} is reported twice; the busier row is used")
                position = positions[gpu.uuid]
                tool_gpus[position] = max(tool_gpus[position], gpu, key=rank_by_use)
                continue
            if gpu.uuid is not None:
                positions[gpu.uuid] = len(tool_gpus)
            tool_gpus.append(gpu)
        tool_gpus.sort(key=lambda gpu: (gpu.index is None, gpu.index or 0))
        # also where the first vendor has no GPU just now: what a booking calls amd0 must not become 0
        if tool.vendor != rows_by_tool[0][0].vendor:
            tool_gpus = [gpu._replace(place=f"{tool.vendor}{gpu.label}") for gpu in tool_gpus]
        gpus += tool_gpus
    if len(gpus) > MAX_GPUS:
        problems.append(f"{len(gpus)} GPUs are reported; only the first {MAX_GPUS} are used")
    return replace(file, rows=tuple(gpus[:MAX_GPUS]), problems=limit_problems(problems))


def rank_by_use(gpu: Gpu) -> tuple[bool, float, float]:
    """Return a key by which a GPU that may be free comes first, and a lost one last."""
    return bool(gpu.lost or gpu.error or gpu.other_error), gpu.utilization_gpu or 0, gpu.memory_used or 0


def parse_processes_of_tools(data: bytes) -> ParsedFile[GpuProcessRow]:
    file, rows_by_tool = parse_gpu_tool_rows(data, "processes")
    processes = [row for _, rows in rows_by_tool for row in rows]
    problems = list(file.problems)
    tool_results = file.tool_results
    if len(processes) > MAX_PROCESSES:
        problems.append(f"{len(processes)} GPU processes are reported; only the first {MAX_PROCESSES} are used")
        # no GPU is called free because its processes were left out
        tool_results = tuple(result._replace(is_complete=False) for result in tool_results)
    rows = tuple(processes[:MAX_PROCESSES])
    return replace(file, rows=rows, problems=limit_problems(problems), tool_results=tool_results)


def parse_gpu_tool_rows(data: bytes, task: str) -> tuple[ParsedFile[Any], list[tuple[GpuTool, tuple[Any, ...]]]]:
    """Return a file without its rows, and the rows of each tool."""
    file, parts_by_tool = envelope.split_snapshot_parts(data, task, DEFAULT_FORMAT)
    problems = list(file.problems)
    tool_results: list[ToolResult] = []
    rows_by_tool: list[tuple[GpuTool, tuple[Any, ...]]] = []
    unreported: dict[str, str] = {}
    has_missing_gpu = False
    for name, parts in parts_by_tool.items():
        tool = GPU_TOOLS.get(name)
        if tool is None:
            problems.append(
                f"it has a part {name}, which this gpuboard does not know: is it older than the host's gpuboard?"
            )
            continue
        output = tool.parse(task, parts)
        rc = next((part.rc for part in parts.values() if part.rc), 0)
        messages = [message for part in parts.values() for message in part.messages]
        messages = [*messages, *output.messages][: 2 * MAX_MESSAGES]
        tool_results.append(ToolResult(tool.name, tool.vendor, rc, tuple(messages), output.is_complete))
        problems += output.problems
        rows_by_tool.append((tool, output.rows))
        unreported.update(output.unreported)
        has_missing_gpu = has_missing_gpu or output.has_missing_gpu
    parsed_file: ParsedFile[Any] = replace(
        file,
        rows=(),
        messages=tuple(message for result in tool_results for message in result.messages),
        problems=tuple(problems),
        tool_results=tuple(tool_results),
        unreported=unreported,
        has_missing_gpu=has_missing_gpu,
    )
    return parsed_file, rows_by_tool
