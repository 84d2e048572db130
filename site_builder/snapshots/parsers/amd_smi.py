"""Parse the output of amd-smi."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.core.terminal_text import clean_excerpt
from site_builder.snapshots.envelope import MAX_NAME_CHARACTERS, ToolOutput, ToolParts, note_problem
from site_builder.snapshots.parsers import amd_common, values

# A name begins with no blank, or a line of blanks would be tried in a thousand ways.
INDENTED_LINE = re.compile(r"( *)([A-Za-z0-9_()-][A-Za-z0-9_() -]{0,59}):(?: (.*))?")
PROCESS_INFO = "process_info"
MAX_TEXT_DEPTH = 8
MAX_GPUS = 2000


def parse_amd_smi_text(lines: Iterable[str]) -> tuple[list[dict[str, object]], list[str]]:
    """The GPUs with all that stands indented below them, and the lines that are none of it."""
    found: list[dict[str, object]] = []
    words: list[str] = []
    stack: list[tuple[int, dict[str, object]]] = []
    for line in lines:
        match = INDENTED_LINE.fullmatch(line)
        if not match:
            if not stack:
                words.append(line)
            continue
        depth, name, value = len(match[1]), match[2].strip().lower().replace(" ", "_"), (match[3] or "").strip()
        if depth == 0:
            stack = [(-1, {})]  # of a CPU, say
            if name == "gpu" and len(found) < MAX_GPUS:
                stack = [(0, {"gpu": value})]
                found.append(stack[0][1])
            elif name != "cpu":
                words.append(line)
                stack = []
            continue
        while len(stack) > 1 and stack[-1][0] >= depth:
            stack.pop()
        if stack and len(stack) < MAX_TEXT_DEPTH:
            below: dict[str, object] = {}
            add_entry_value(stack[-1][1], name, value or below)
            if not value:
                stack.append((depth, below))
    return found, words


def add_entry_value(where: dict[str, object], name: str, value: object) -> None:
    """Add it; a GPU has its processes one by one."""
    if name == PROCESS_INFO:
        several = where.setdefault("process_list", [])
        if isinstance(several, list):
            several.append({PROCESS_INFO: value})
    else:
        where.setdefault(name, value)


# The questions that only name the GPUs, for an answer about processes.
IDENTITY_QUERIES = frozenset({"names", "static"})
NO_PROCESS_WORDS = "no running processes"
MIB_FROM_MB, MIB_FROM_BYTES = values.build_mib_parser("mb"), values.build_mib_parser("b")
MAX_DEPTH = 3
# Each GPU is told once for each question; more is no answer.
MAX_ENTRIES = 2 * amd_common.MAX_GPUS
AMD_SMI_READINGS: amd_common.ReadingTable = {
    "memory.used": (MIB_FROM_MB, ("mem_usage.used_vram", "vram.used", "fb_usage.fb_used", "vram.vram_used")),
    "memory.total": (
        MIB_FROM_MB,
        ("mem_usage.total_vram", "vram.total", "fb_usage.fb_total", "vram.vram_total", "vram.size", "vram.size_mb"),
    ),
    "utilization.gpu": (values.parse_percent, ("usage.gfx_activity", "usage.gfx_usage", "usage.gfx_util")),
    "utilization.memory": (values.parse_percent, ("usage.umc_activity", "usage.mem_usage", "usage.mem_util")),
    "temperature.gpu": (
        values.parse_celsius,
        ("temperature.edge", "temperature.hotspot", "temperature.junction", "temperature.gpu_temp"),
    ),
    "temperature.memory": (values.parse_celsius, ("temperature.mem", "temperature.vram")),
    "power.draw": (
        values.parse_watts,
        (
            "power.socket_power",
            "power.current_socket_power",
            "power.average_socket_power",
            "power.current_power",
            "power.power_usage",
        ),
    ),
    "power.limit": (
        values.parse_watts,
        (
            "limit.socket_power",
            "limit.ppt0.socket_power_limit",
            "limit.socket_power_limit",
            "limit.current_power",
            "limit.power",
            "power.power_limit",
            "limit.max_power",
            "limit.ppt0.max_power_limit",
        ),
    ),
    "clocks.current.sm": (
        values.parse_mhz,
        ("clock.gfx_0.clk", "clock.gfx.clk", "clock.gfx.cur_clk", "clock.gfx.current_clock", "clock.gfx_clock"),
    ),
    "clocks.current.memory": (
        values.parse_mhz,
        ("clock.mem_0.clk", "clock.mem.clk", "clock.mem.cur_clk", "clock.mem.current_clock", "clock.mem_clock"),
    ),
    "fan.speed": (values.parse_percent, ("fan.usage",)),
    "ecc.errors.corrected.volatile.total": (
        values.parse_count,
        ("ecc.total_correctable_count", "ecc.total_correctable", "ecc.total_correctible"),
    ),
    "ecc.errors.uncorrected.volatile.total": (
        values.parse_count,
        ("ecc.total_uncorrectable_count", "ecc.total_uncorrectable", "ecc.total_uncorrectible"),
    ),
    "pcie.link.width.current": (values.parse_lanes, ("pcie.width", "pcie.current_lanes", "pcie.current_width")),
    "pcie.link.gen.current": (values.parse_pcie_generation, ("pcie.speed", "pcie.current_speed")),
}
AMD_SMI_TEXTS: amd_common.TextTable = {
    "name": ("asic.market_name", "board.product_name"),
    "device": ("asic.device_id",),
    "sku": ("board.model_number",),
    "pci.bus_id": ("bdf", "bus.bdf"),
    "serial": ("board.product_serial", "board.product_serial_number"),
    "vbios_version": ("vbios.part_number", "ifwi.part_number", "vbios.version", "ifwi.version"),
}
WATCHED_FIELDS = {
    "memory": re.compile(r"(?:mem_usage|fb_usage)(?:\.|$)|vram\.(?:used|total|vram_used|vram_total|size|size_mb)$"),
    "use": re.compile(r"usage(?:\.|$)"),
    "temperature": re.compile(r"temperature(?:\.|$)"),
}
AMD_SMI_FIELD_NAMES = amd_common.ToolFieldNames(AMD_SMI_READINGS, AMD_SMI_TEXTS, WATCHED_FIELDS)
NO_LIST_MESSAGE = "amd-smi has no list of them"


class AmdSmiOutput:
    """All that was answered: of each GPU by its number, and the processes on it."""

    def __init__(self, pieces: ToolParts) -> None:
        """Of all questions together."""
        self.facts_by_gpu: dict[int, dict[str, object]] = {}
        self.processes_by_gpu: dict[int, list[object]] = {}
        self.problems: list[str] = []
        self.messages: list[str] = []
        self.is_understood = True
        self.has_process_list = False
        for name, piece in pieces.items():
            printed = amd_common.parse_printed_json(piece.lines)
            written, words = parse_amd_smi_text(printed.text_lines)
            self.messages += words
            entries = list(islice(chain.from_iterable(map(self.find_gpu_entries, printed.values)), MAX_ENTRIES + 1))
            if len(entries) > MAX_ENTRIES:
                printed.problems.append(f"it has more than {MAX_ENTRIES} entries; the rest does not count")
                entries.pop()
            self.problems += printed.problems
            for entry in [*entries, *written]:
                self.add_gpu_entry(entry)
            told = bool(entries or written)
            self.is_understood = self.is_understood and told and not printed.problems
            self.has_process_list = self.has_process_list or (
                bool(self.processes_by_gpu) and name not in IDENTITY_QUERIES
            )

    def find_gpu_entries(self, value: object, deep: int = 0) -> Iterator[dict[str, object]]:
        """The GPUs in `[{"gpu": 0, …}]`, or in `{"gpu_data": […]}`; what went wrong is a word."""
        if isinstance(value, list) and deep <= MAX_DEPTH:
            for one in value:
                yield from self.find_gpu_entries(one, deep + 1)
        elif isinstance(value, dict) and deep <= MAX_DEPTH:
            if amd_common.parse_index(value.get("gpu")) is not None:
                yield value
                return
            said = [one for key, one in value.items() if key in {"error", "error_message", "message"}]
            self.messages += [clean_excerpt(one) for one in said if isinstance(one, str)]
            for one in value.values():
                if isinstance(one, (list, dict)):
                    yield from self.find_gpu_entries(one, deep + 1)

    def add_gpu_entry(self, entry: dict[str, object]) -> None:
        """Add what is told of a GPU; that something is not told is no reason to forget it."""
        number = amd_common.parse_index(entry.get("gpu"))
        if number is None or (number not in self.facts_by_gpu and len(self.facts_by_gpu) >= amd_common.MAX_GPUS):
            return
        listed = entry.pop("process_list", None)
        if isinstance(listed, str):  # a word, or that there is none
            listed = [listed]
        if isinstance(listed, list):
            self.processes_by_gpu.setdefault(number, []).extend(listed)
        known = self.facts_by_gpu.setdefault(number, {})
        for name, one in amd_common.flatten_json(entry).items():
            if name not in known or isinstance(one, dict) or values.parse_amd_text(one) is not None:
                known[name] = one

    def assign_identities(self) -> dict[int, amd_common.AmdIdentity]:
        """What names each GPU."""
        return amd_common.assign_identities(
            (
                number,
                facts.get("hip_id"),
                facts.get("node_id"),
                amd_common.parse_amd_uuid(facts.get("hip_uuid"), facts.get("asic.asic_serial"), facts.get("uuid")),
            )
            for number, facts in self.facts_by_gpu.items()
        )


def parse_gpus(pieces: ToolParts) -> ToolOutput[Gpu]:
    """Every GPU."""
    told = AmdSmiOutput(pieces)
    who = told.assign_identities()
    found = []
    for number, facts in told.facts_by_gpu.items():
        if len(facts) == 1:  # its number alone, from an answer about something else
            continue
        driver = values.parse_amd_text(facts.get("driver.version")) or values.parse_amd_text(
            facts.get("driver.driver_version")
        )
        found.append(amd_common.build_amd_gpu(facts, who[number], AMD_SMI_FIELD_NAMES, driver))
    return ToolOutput(tuple(found), amd_common.filter_messages(told.messages), told.problems, told.is_understood)


def parse_processes(pieces: ToolParts) -> ToolOutput[GpuProcessRow]:
    """Every process on each of its GPUs, and the GPUs whose processes are not reported."""
    told = AmdSmiOutput(pieces)
    who = told.assign_identities()
    rows: list[GpuProcessRow] = []
    problems = list(told.problems)
    unreported = {
        who[one].process_key: NO_LIST_MESSAGE for one in told.facts_by_gpu if one not in told.processes_by_gpu
    }
    problems += [
        f"amd-smi tells nothing of the processes of GPU {one}"
        for one in told.facts_by_gpu
        if one not in told.processes_by_gpu
    ]
    for number, listed in told.processes_by_gpu.items():
        room = max(0, amd_common.MAX_PROCESSES - len(rows) - len(problems))
        if len(listed) > room:
            note_problem(
                problems,
                f"more than {amd_common.MAX_PROCESSES} processes are told; "
                f"only the first {amd_common.MAX_PROCESSES} count",
            )
        for one in listed[:room]:
            info = one.get("process_info", one) if isinstance(one, dict) else one
            if isinstance(info, str) and NO_PROCESS_WORDS in info.lower():
                continue
            row = parse_amd_smi_process(info, who[number].process_key)
            if row is None:
                unreported.setdefault(who[number].process_key, format_process_word(info))
                problems.append(
                    f"amd-smi tells a process of GPU {number} that cannot be understood: {clean_excerpt(info, 80)}"
                )
            else:
                rows.append(row)
    answered = told.is_understood and told.has_process_list
    return ToolOutput(
        tuple(drop_rows_without_memory(rows)),
        amd_common.filter_messages(told.messages),
        problems[: amd_common.MAX_MESSAGES],
        answered,
        unreported,
    )


def format_process_word(info: object) -> str:
    """Return what stands where a process should."""
    return clean_excerpt(info, 80) if isinstance(info, str) and info.strip() else "N/A"


def parse_amd_smi_process(info: object, handle: str) -> GpuProcessRow | None:
    """One of them; a memory of 0 in all is told also of those that have some."""
    if not isinstance(info, dict):
        return None
    facts = amd_common.flatten_json(info)
    pid = values.parse_count(facts.get("pid"))
    if pid is None:
        return None
    memory = MIB_FROM_BYTES(facts.get("memory_usage.vram_mem"))
    if memory is None:
        memory = MIB_FROM_BYTES(facts.get("vram_mem"))
    if memory is None:
        memory = MIB_FROM_BYTES(facts.get("mem_usage")) or None
    name = values.parse_amd_text(facts.get("name")) or values.parse_amd_text(facts.get("process_name"))
    return GpuProcessRow(handle, int(pid), memory, name and name[:MAX_NAME_CHARACTERS])


def drop_rows_without_memory(rows: list[GpuProcessRow]) -> Iterator[GpuProcessRow]:
    """Without those that have a process on some GPU and none of its memory: ROCm opens every GPU that it sees."""
    has = {row.pid for row in rows if row.used_memory}
    return (row for row in rows if row.used_memory != 0 or row.pid not in has)
