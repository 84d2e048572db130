"""What amd-smi tells, as JSON or as text: `list`, `static`, `metric`, `process`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice

from site_builder.core.model import Gpu, GpuProcess
from site_builder.snapshots.envelope import Pieces, note, one_line
from site_builder.snapshots.parse_result import LONGEST_NAME, Understood
from site_builder.snapshots.parsers import amd_common, amd_smi_text, amd_units, lenient_json

# The questions that only name the GPUs, for an answer about processes.
NAMING = frozenset({"names", "static"})
NO_PROCESS = "no running processes"
MIB, BYTES = amd_units.mib_from("mb"), amd_units.mib_from("b")
DEEPEST = 3
# Each GPU is told once for each question; more is no answer.
MOST_ENTRIES = 2 * amd_common.MOST_GPUS
TABLE: amd_common.Table = {
    "memory.used": (MIB, ("mem_usage.used_vram", "vram.used", "fb_usage.fb_used", "vram.vram_used")),
    "memory.total": (
        MIB,
        ("mem_usage.total_vram", "vram.total", "fb_usage.fb_total", "vram.vram_total", "vram.size", "vram.size_mb"),
    ),
    "utilization.gpu": (amd_units.percent, ("usage.gfx_activity", "usage.gfx_usage", "usage.gfx_util")),
    "utilization.memory": (amd_units.percent, ("usage.umc_activity", "usage.mem_usage", "usage.mem_util")),
    "temperature.gpu": (
        amd_units.celsius,
        ("temperature.edge", "temperature.hotspot", "temperature.junction", "temperature.gpu_temp"),
    ),
    "temperature.memory": (amd_units.celsius, ("temperature.mem", "temperature.vram")),
    "power.draw": (
        amd_units.watts,
        (
            "power.socket_power",
            "power.current_socket_power",
            "power.average_socket_power",
            "power.current_power",
            "power.power_usage",
        ),
    ),
    "power.limit": (
        amd_units.watts,
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
        amd_units.mhz,
        ("clock.gfx_0.clk", "clock.gfx.clk", "clock.gfx.cur_clk", "clock.gfx.current_clock", "clock.gfx_clock"),
    ),
    "clocks.current.memory": (
        amd_units.mhz,
        ("clock.mem_0.clk", "clock.mem.clk", "clock.mem.cur_clk", "clock.mem.current_clock", "clock.mem_clock"),
    ),
    "fan.speed": (amd_units.percent, ("fan.usage",)),
    "ecc.errors.corrected.volatile.total": (
        amd_units.count,
        ("ecc.total_correctable_count", "ecc.total_correctable", "ecc.total_correctible"),
    ),
    "ecc.errors.uncorrected.volatile.total": (
        amd_units.count,
        ("ecc.total_uncorrectable_count", "ecc.total_uncorrectable", "ecc.total_uncorrectible"),
    ),
    "pcie.link.width.current": (amd_units.lanes, ("pcie.width", "pcie.current_lanes", "pcie.current_width")),
    "pcie.link.gen.current": (amd_units.generation, ("pcie.speed", "pcie.current_speed")),
}
TEXTS: amd_common.Texts = {
    "name": ("asic.market_name", "board.product_name"),
    "device": ("asic.device_id",),
    "sku": ("board.model_number",),
    "pci.bus_id": ("bdf", "bus.bdf"),
    "serial": ("board.product_serial", "board.product_serial_number"),
    "vbios_version": ("vbios.part_number", "ifwi.part_number", "vbios.version", "ifwi.version"),
}
WATCHED = {
    "memory": re.compile(r"(?:mem_usage|fb_usage)(?:\.|$)|vram\.(?:used|total|vram_used|vram_total|size|size_mb)$"),
    "use": re.compile(r"usage(?:\.|$)"),
    "temperature": re.compile(r"temperature(?:\.|$)"),
}
NAMES = amd_common.Names(TABLE, TEXTS, WATCHED)
NO_LIST = "amd-smi has no list of them"


class Told:
    """All that was answered: of each GPU by its number, and the processes on it."""

    def __init__(self, pieces: Pieces) -> None:
        """Of all questions together."""
        self.gpus: dict[int, dict[str, object]] = {}
        self.lists: dict[int, list[object]] = {}
        self.problems: list[str] = []
        self.words: list[str] = []
        self.understood = True
        self.processes_told = False
        for name, piece in pieces.items():
            printed = lenient_json.read(piece.lines)
            written, words = amd_smi_text.read(printed.words)
            self.words += words
            entries = list(islice(chain.from_iterable(map(self.entries, printed.values)), MOST_ENTRIES + 1))
            if len(entries) > MOST_ENTRIES:
                printed.problems.append(f"it has more than {MOST_ENTRIES} entries; the rest does not count")
                entries.pop()
            self.problems += printed.problems
            for entry in [*entries, *written]:
                self.take(entry)
            told = bool(entries or written)
            self.understood = self.understood and told and not printed.problems
            self.processes_told = self.processes_told or (bool(self.lists) and name not in NAMING)

    def entries(self, value: object, deep: int = 0) -> Iterator[dict[str, object]]:
        """The GPUs in `[{"gpu": 0, …}]`, or in `{"gpu_data": […]}`; what went wrong is a word."""
        if isinstance(value, list) and deep <= DEEPEST:
            for one in value:
                yield from self.entries(one, deep + 1)
        elif isinstance(value, dict) and deep <= DEEPEST:
            if amd_common.whole(value.get("gpu")) is not None:
                yield value
                return
            said = [one for key, one in value.items() if key in {"error", "error_message", "message"}]
            self.words += [one_line(one) for one in said if isinstance(one, str)]
            for one in value.values():
                if isinstance(one, (list, dict)):
                    yield from self.entries(one, deep + 1)

    def take(self, entry: dict[str, object]) -> None:
        """Add what is told of a GPU; that something is not told is no reason to forget it."""
        number = amd_common.whole(entry.get("gpu"))
        if number is None or (number not in self.gpus and len(self.gpus) >= amd_common.MOST_GPUS):
            return
        listed = entry.pop("process_list", None)
        if isinstance(listed, str):  # a word, or that there is none
            listed = [listed]
        if isinstance(listed, list):
            self.lists.setdefault(number, []).extend(listed)
        known = self.gpus.setdefault(number, {})
        for name, one in lenient_json.flat(entry).items():
            if name not in known or isinstance(one, dict) or amd_units.text(one) is not None:
                known[name] = one

    def identities(self) -> dict[int, amd_common.Identity]:
        """What names each GPU."""
        return amd_common.identities(
            (
                number,
                facts.get("hip_id"),
                facts.get("node_id"),
                amd_common.uuid_of(facts.get("hip_uuid"), facts.get("asic.asic_serial"), facts.get("uuid")),
            )
            for number, facts in self.gpus.items()
        )


def gpus(pieces: Pieces) -> Understood[Gpu]:
    """Every GPU."""
    told = Told(pieces)
    who = told.identities()
    found = []
    for number, facts in told.gpus.items():
        if len(facts) == 1:  # its number alone, from an answer about something else
            continue
        driver = amd_units.text(facts.get("driver.version")) or amd_units.text(facts.get("driver.driver_version"))
        found.append(amd_common.gpu(facts, who[number], NAMES, driver))
    return Understood(tuple(found), amd_common.news(told.words), told.problems, told.understood)


def processes(pieces: Pieces) -> Understood[GpuProcess]:
    """Every process on each of its GPUs, and the GPUs whose processes are not reported."""
    told = Told(pieces)
    who = told.identities()
    rows: list[GpuProcess] = []
    problems = list(told.problems)
    unreported = {who[one].handle: NO_LIST for one in told.gpus if one not in told.lists}
    problems += [f"amd-smi tells nothing of the processes of GPU {one}" for one in told.gpus if one not in told.lists]
    for number, listed in told.lists.items():
        room = max(0, amd_common.MOST_PROCESSES - len(rows) - len(problems))
        if len(listed) > room:
            note(
                problems,
                f"more than {amd_common.MOST_PROCESSES} processes are told; "
                f"only the first {amd_common.MOST_PROCESSES} count",
            )
        for one in listed[:room]:
            info = one.get("process_info", one) if isinstance(one, dict) else one
            if isinstance(info, str) and NO_PROCESS in info.lower():
                continue
            row = process(info, who[number].handle)
            if row is None:
                unreported.setdefault(who[number].handle, reported_word(info))
                problems.append(
                    f"amd-smi tells a process of GPU {number} that cannot be understood: {one_line(info, 80)}"
                )
            else:
                rows.append(row)
    answered = told.understood and told.processes_told
    return Understood(
        tuple(settled(rows)), amd_common.news(told.words), problems[: amd_common.MOST_WORDS], answered, unreported
    )


def reported_word(info: object) -> str:
    """Return what stands where a process should."""
    return one_line(info, 80) if isinstance(info, str) and info.strip() else "N/A"


def process(info: object, handle: str) -> GpuProcess | None:
    """One of them; a memory of 0 in all is told also of those that have some."""
    if not isinstance(info, dict):
        return None
    facts = lenient_json.flat(info)
    pid = amd_units.count(facts.get("pid"))
    if pid is None:
        return None
    memory = BYTES(facts.get("memory_usage.vram_mem"))
    if memory is None:
        memory = BYTES(facts.get("vram_mem"))
    if memory is None:
        memory = BYTES(facts.get("mem_usage")) or None
    name = amd_units.text(facts.get("name")) or amd_units.text(facts.get("process_name"))
    return GpuProcess(handle, int(pid), memory, name and name[:LONGEST_NAME])


def settled(rows: list[GpuProcess]) -> Iterator[GpuProcess]:
    """Without those that have a process on some GPU and none of its memory: ROCm opens every GPU that it sees."""
    has = {row.pid for row in rows if row.used_memory}
    return (row for row in rows if row.used_memory != 0 or row.pid not in has)
