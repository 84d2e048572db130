"""Parse the output of amd-smi."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.core.terminal_text import clean_excerpt
from site_builder.snapshots.envelope import MAX_NAME_CHARACTERS, ToolOutput, ToolParts, note_envelope_problem
from site_builder.snapshots.parsers import amd_common, values
from site_builder.snapshots.parsers.amd_common import parse_amd_text

# A name begins with no blank: a line of blanks would be tried in a thousand ways.
INDENTED_LINE = re.compile(r"( *)([A-Za-z0-9_()-][A-Za-z0-9_() -]{0,59}):(?: (.*))?")
PROCESS_INFO = "process_info"
MAX_TEXT_DEPTH = 8
# `[0 %, N/A, N/A, N/A]`: a value for each engine of its kind
TEXT_LIST = re.compile(r"\[([^\[\]]*)\]")
MIB_FROM_BYTES = values.build_mib_parser("b")
MAX_DEPTH = 3
# A tool lists each GPU once for each query.
MAX_ENTRIES = 2 * amd_common.MAX_GPUS
WATCHED_FIELDS = {
    "memory": re.compile(r"(?:mem_usage|fb_usage)(?:\.|$)|vram\.(?:used|total|vram_used|vram_total|size|size_mb)$"),
    "use": re.compile(r"usage(?:\.|$)"),
    "temperature": re.compile(r"temperature(?:\.|$)"),
}
AMD_SMI_FIELD_NAMES = amd_common.load_amd_field_names("amd-smi", "mb", WATCHED_FIELDS)


class AmdSmiOutput:
    """The facts about each GPU and the processes on it, by amd-smi's number, from all parts."""

    def __init__(self, parts: ToolParts) -> None:
        self.facts_by_gpu: dict[int, dict[str, object]] = {}
        self.processes_by_gpu: dict[int, list[object]] = {}
        self.problems: list[str] = []
        self.messages: list[str] = []
        self.is_understood = True
        self.has_process_list = False
        self.number_error: str | None = None  # it may be about any GPU
        for name, part in parts.items():
            printed = amd_common.extract_amd_json(part.lines)
            text_entries, messages = parse_amd_smi_text(printed.text_lines)
            self.messages += messages
            entries = list(islice(chain.from_iterable(map(self.find_gpu_entries, printed.values)), MAX_ENTRIES + 1))
            if len(entries) > MAX_ENTRIES:
                printed.problems.append(f"it has more than {MAX_ENTRIES} entries; the rest is ignored")
                entries.pop()
            self.problems += printed.problems
            for entry in [*entries, *text_entries]:
                number = amd_common.parse_amd_index(entry.get("gpu"))
                if number is None:
                    if amd_common.has_amd_error(entry.get("gpu")):
                        words = clean_excerpt(entry["gpu"], values.MAX_ERROR_CHARACTERS)
                        self.number_error = f"the driver reports an error in the number of a GPU: {words}"
                    continue
                processes = entry.pop("process_list", None)
                if isinstance(processes, str):  # such as "No running processes detected"
                    processes = [processes]
                if isinstance(processes, list):
                    self.processes_by_gpu.setdefault(number, []).extend(processes)
                facts = self.facts_by_gpu.setdefault(number, {})
                amd_common.merge_amd_facts(facts, amd_common.flatten_amd_json(entry).items())
            has_entries = bool(entries or text_entries)
            self.is_understood = self.is_understood and has_entries and not printed.problems
            if self.processes_by_gpu and name not in amd_common.IDENTITY_QUERIES:
                self.has_process_list = True
        self.identities = amd_common.assign_amd_identities(
            self.facts_by_gpu, "hip_id", "node_id", ("hip_uuid", "asic.asic_serial", "uuid")
        )

    def find_gpu_entries(self, value: object, depth: int = 0) -> Iterator[dict[str, object]]:
        """Yield the GPUs in `[{"gpu": 0, …}]` or `{"gpu_data": […]}`; errors become messages."""
        if depth > MAX_DEPTH or not isinstance(value, (list, dict)):
            return
        if isinstance(value, list):
            for entry in value:
                yield from self.find_gpu_entries(entry, depth + 1)
        elif amd_common.parse_amd_index(value.get("gpu")) is not None or amd_common.has_amd_error(value.get("gpu")):
            yield value
        else:
            errors = [text for key, text in value.items() if key in {"error", "error_message", "message"}]
            self.messages += [clean_excerpt(text) for text in errors if isinstance(text, str)]
            for inner in value.values():
                yield from self.find_gpu_entries(inner, depth + 1)


def parse_amd_smi_text(lines: Iterable[str]) -> tuple[list[dict[str, object]], list[str]]:
    """Return the GPUs with all lines indented below them, and the other lines."""
    gpus: list[dict[str, object]] = []
    messages: list[str] = []
    stack: list[tuple[int, dict[str, object]]] = []
    for line in lines:
        match = INDENTED_LINE.fullmatch(line)
        if not match:
            if not stack:
                messages.append(line)
            continue
        indent, name, value = len(match[1]), match[2].strip().lower().replace(" ", "_"), (match[3] or "").strip()
        if indent == 0:
            stack = [(-1, {})]  # collects the lines of a CPU, which nobody reads
            if name == "gpu" and len(gpus) < amd_common.MAX_GPUS:
                stack = [(0, {"gpu": value})]
                gpus.append(stack[0][1])
            elif name != "cpu":
                messages.append(line)
                stack = []
            continue
        while len(stack) > 1 and stack[-1][0] >= indent:
            stack.pop()
        if stack and len(stack) < MAX_TEXT_DEPTH:
            section = stack[-1][1]
            below: dict[str, object] = {}
            if name != PROCESS_INFO:
                engines = TEXT_LIST.fullmatch(value)
                section.setdefault(name, engines[1].split(", ") if engines else value or below)
            elif isinstance(processes := section.setdefault("process_list", []), list):
                processes.append({PROCESS_INFO: value or below})
            if not value:
                stack.append((indent, below))
    return gpus, messages


def parse_amd_smi_gpus(parts: ToolParts) -> ToolOutput[Gpu]:
    output = AmdSmiOutput(parts)
    gpus = []
    for number, facts in output.facts_by_gpu.items():
        if len(facts) == 1:  # its number alone, from an answer about something else
            continue
        versions = (parse_amd_text(facts.get(name)) for name in ("driver.version", "driver.driver_version"))
        driver = next(filter(None, versions), None)
        gpu = amd_common.build_amd_gpu(facts, output.identities[number], AMD_SMI_FIELD_NAMES, driver)
        gpus.append(gpu._replace(other_error=gpu.other_error or output.number_error))
    return ToolOutput(
        tuple(gpus), amd_common.filter_amd_messages(output.messages), output.problems, output.is_understood
    )


def parse_amd_smi_processes(parts: ToolParts) -> ToolOutput[GpuProcessRow]:
    """Parse every process on each of its GPUs, and the GPUs whose processes are not reported."""
    output = AmdSmiOutput(parts)
    rows: list[GpuProcessRow] = []
    problems = list(output.problems)
    unreported: dict[str, str] = {}
    is_complete = output.is_understood and output.has_process_list and not output.number_error
    for number in output.facts_by_gpu:
        if number not in output.processes_by_gpu:
            unreported[output.identities[number].process_key] = "amd-smi does not list them"
            problems.append(f"amd-smi reports nothing about the processes of GPU {number}")
    for number, processes in output.processes_by_gpu.items():
        process_key = output.identities[number].process_key
        is_apu = amd_common.is_amd_apu(output.facts_by_gpu[number], AMD_SMI_FIELD_NAMES.texts)
        room = max(0, amd_common.MAX_PROCESSES - len(rows) - len(problems))
        if len(processes) > room:
            limit = amd_common.MAX_PROCESSES
            note_envelope_problem(
                problems, f"more than {limit} processes are reported; only the first {limit} are used"
            )
            is_complete = False  # no GPU is called free because its processes were left out
        for process in processes[:room]:
            info = process.get(PROCESS_INFO, process) if isinstance(process, dict) else process
            if isinstance(info, str) and "no running processes" in info.lower():
                continue
            facts = amd_common.flatten_amd_json(info)
            pid = values.parse_count(facts.get("pid"))
            if pid is None:
                excerpt = clean_excerpt(info, 80)
                unreported.setdefault(process_key, (excerpt if isinstance(info, str) else "") or "N/A")
                problems.append(f"amd-smi reports a process of GPU {number} that cannot be parsed: {excerpt}")
                continue
            sizes = [MIB_FROM_BYTES(facts.get(name)) for name in ("memory_usage.vram_mem", "vram_mem")]
            sizes.append(MIB_FROM_BYTES(facts.get("mem_usage")) or None)  # also 0 for processes that have some
            memory = next((size for size in sizes if size is not None), None)
            gtt_sizes = [MIB_FROM_BYTES(facts.get(name)) for name in ("memory_usage.gtt_mem", "gtt_mem")]
            gtt = next((size for size in gtt_sizes if size is not None), None) if is_apu else None
            if gtt is not None:  # it uses VRAM and GTT alike
                memory = gtt + (next((size for size in sizes[:2] if size is not None), None) or 0)
            name = parse_amd_text(facts.get("name")) or parse_amd_text(facts.get("process_name"))
            rows.append(GpuProcessRow(process_key, int(pid), memory, name and name[:MAX_NAME_CHARACTERS]))
    # ROCm opens every GPU that it sees: a process that has memory on one GPU is not on those where it has none
    pids_with_memory = {row.pid for row in rows if row.used_memory}
    return ToolOutput(
        rows=tuple(row for row in rows if row.used_memory != 0 or row.pid not in pids_with_memory),
        messages=amd_common.filter_amd_messages(output.messages),
        problems=problems[: amd_common.MAX_MESSAGES],
        is_complete=is_complete,
        unreported=unreported,
    )
