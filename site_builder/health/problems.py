"""Find the problems of a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from site_builder.core.model import Gpu, GpuProblem, ParsedFile, ToolResult
from site_builder.health import gpu_health
from site_builder.health.gpu_health import (
    MAX_CELL_CHARACTERS,
    MAX_COLUMNS,
    SLOWDOWN_BIT,
    choose_available,
    combine_flags,
    parse_bit_mask,
    parse_boolean_cell,
)
from site_builder.snapshots.parsers.values import (
    find_column_positions,
    parse_cell,
    parse_error_words,
    parse_integer,
    parse_number,
)

CRITICAL, WARNING, INFO = SEVERITIES = "critical", "warning", "info"
# What resets a GPU, and what its driver's messages in dmesg have in them.
RESET_COMMANDS = {
    "nvidia": "as root: nvidia-smi --gpu-reset -i {}",
    "amd": "as root: amd-smi reset --gpureset --gpu {}",
}
KERNEL_LOG_WORDS = {"nvidia": "Xid", "amd": "amdgpu"}


class ProblemKind(NamedTuple):
    """What a problem is: `what` has room for values, `advice` for what resets the GPU, its number, and a word."""

    severity: str
    what: str
    advice: str
    avoid: bool = False


COOLING_ADVICE = "look at its fans, at dust, and at the air around the host"
PROBLEM_KINDS: dict[str, ProblemKind] = {
    "lost": ProblemKind(
        CRITICAL,
        "the driver cannot reach it: {0}",
        "look for {log} in dmesg, then reset it ({reset}) or reboot the host",
        avoid=True,
    ),
    "off-bus": ProblemKind(
        CRITICAL,
        "it fell off the bus: {0}",
        "look for {log} in dmesg, then reboot the host; if it comes again, look at its power, its seat and its cooling",
        avoid=True,
    ),
    "reset": ProblemKind(
        CRITICAL,
        "it cannot be used until it is reset",
        "end what runs on it and reset it ({reset}); where that is refused, reboot the host",
        avoid=True,
    ),
    "power-cable": ProblemKind(
        CRITICAL,
        "it has too little power: {0}",
        "switch the host off and look that all of its power cables are plugged in",
        avoid=True,
    ),
    "interrupts": ProblemKind(
        CRITICAL,
        "its interrupts do not arrive: {0}",
        "look for NVRM and irq in dmesg, update the firmware of the mainboard, then reboot the host",
        avoid=True,
    ),
    "recovery": ProblemKind(
        CRITICAL,
        "the driver says that it needs to be recovered: {0}",
        "do what it says once nobody is on it, and look for {log} in dmesg",
        avoid=True,
    ),
    "unreadable": ProblemKind(
        CRITICAL,
        "{0}",
        "look for {log} in dmesg; if it stays so, end what runs on it and reset it ({reset}), or reboot the host",
        avoid=True,
    ),
    "ecc-uncorrected": ProblemKind(
        CRITICAL,
        "{0} since the driver was loaded",
        "what was computed on it may be wrong: end what runs on it and reset it ({reset}); if it comes "
        "again, have it replaced",
        avoid=True,
    ),
    "repair-failed": ProblemKind(
        CRITICAL,
        "a repair of its memory failed",
        "have it replaced: no spare memory is left for the next one",
        avoid=True,
    ),
    "repair-pending": ProblemKind(
        WARNING,
        "a repair of its memory waits for a reset of the GPU",
        "reset it when nobody is on it ({reset}); until then it may be used",
    ),
    "heat": ProblemKind(
        WARNING,
        "slowed by heat{0}",
        COOLING_ADVICE,
    ),
    "hot": ProblemKind(
        WARNING,
        "too warm: at its limit of {0} °C",
        COOLING_ADVICE,
    ),
    "power-brake": ProblemKind(
        WARNING,
        "slowed by the power brake of the hardware",
        "look at the power supplies of the host: one has failed, or all together are too weak",
    ),
    "slowdown": ProblemKind(
        WARNING,
        "slowed by the hardware, which does not say why",
        "look at its power cables, at the power supplies, and at its fans",
    ),
    "fan": ProblemKind(
        WARNING,
        "{0}",
        "look whether its fan turns and is plugged in, before the GPU overheats",
    ),
    "power": ProblemKind(
        WARNING,
        "its power cannot be read: {0}",
        "it can be used; some cards never tell it. If it was told before, look for {log} in dmesg",
    ),
    "inforom": ProblemKind(
        WARNING,
        "its infoROM is corrupted",
        "it works, but may forget what it keeps there, such as its ECC mode and its counts: have its maker "
        "restore it, or have it replaced",
    ),
    "said": ProblemKind(
        WARNING,
        "its driver says of it: {0}",
        "look for {log} in dmesg",
    ),
    "link": ProblemKind(
        WARNING,
        "its PCIe link has {0} of {1} lanes",
        "data take longer to get there: look whether it sits well, and in a slot that has them all; where "
        "the mainboard gives it no more, nothing is wrong",
    ),
    "ecc-corrected": ProblemKind(
        INFO,
        "{0} corrected ECC errors since the driver was loaded",
        "they did no harm; if uncorrected ones follow, have it replaced",
    ),
    "ecc-before": ProblemKind(
        INFO,
        "{0} in its life{1}",
        "nothing is to be done now; if there are more every few weeks, have it replaced",
    ),
    "persistence": ProblemKind(
        INFO,
        "persistence mode is off: the driver starts anew at each call{0}",
        "as root: nvidia-smi -pm 1, or better the service nvidia-persistenced, which lasts over a reboot",
    ),
    "prohibited": ProblemKind(
        INFO,
        "its compute mode is Prohibited: no program can use it",
        "if that is not meant, as root: nvidia-smi -i {gpu} -c DEFAULT",
        avoid=True,
    ),
}
# What a driver says of a GPU, and which kind that is; the first that is in its words counts.
MESSAGE_KINDS = (
    ("requires reset", "reset"),
    ("reset required", "reset"),
    ("requires a reset", "reset"),
    ("external power", "power-cable"),
    ("power cable", "power-cable"),
    ("interrupt", "interrupts"),
    ("inforom", "inforom"),
    ("lost", "off-bus"),
    ("fallen off", "off-bus"),
    ("fell off", "off-bus"),
    ("device handle", "lost"),
)
RESET_ADVICE = PROBLEM_KINDS["reset"].advice
# What to do by the word of the driver, the first that is in it.
RECOVERY_ADVICE = (
    ("drain", "give it nothing new and end what runs on it and exchanges data with it, then reset it ({reset})"),
    ("reboot", "reboot the host"),
    ("reset", RESET_ADVICE),
)
# Exit codes of nvidia-smi that are about a GPU, where its words do not say which.
EXIT_CODE_KINDS = {8: "power-cable", 10: "interrupts", 14: "inforom", 15: "off-bus"}


def format_advice(advice: str, vendor: str, which: str = "") -> str:
    """Advice with the commands of the GPU's maker, and with its number or its place on the bus."""
    reset = RESET_COMMANDS.get(vendor, "with the tool of its maker").format(which or "N")
    return advice.format(reset=reset, gpu=which or "N", log=KERNEL_LOG_WORDS.get(vendor, "its driver"))


def classify_message(said: str, other: str) -> str:
    """Which problem somebody means."""
    low = said.lower()
    return next((kind for word, kind in MESSAGE_KINDS if word in low), other)


# Those of OWN differ from GPU to GPU; all else is nearly the same in a whole fleet.
PER_GPU_COLUMNS = ("fan.speed", "temperature.gpu.tlimit", "power.draw")
PROBLEM_COLUMNS = (
    *PER_GPU_COLUMNS,
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "remapped_rows.pending",
    "retired_pages.pending",
    "remapped_rows.failure",
    "gpu_recovery_action",
    "reset_status.drain_and_reset_recommended",
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "pstate",
    "persistence_mode",
    "compute_mode",
)
NO_CELLS = ("",) * len(PROBLEM_COLUMNS)
# What newer drivers call what older ones recommended.
DRAIN_AND_RESET_ACTION = "Drain and Reset"
HEAT_BIT, HARDWARE_HEAT_BIT, POWER_BRAKE_BIT = 0x20, 0x40, 0x80
# So many corrected errors since the driver was loaded are told; fewer every card has.
MIN_CORRECTED_ERRORS = 1000
# A fan may stand still while a card is cool; those that do begin to turn at some 60 °C.
WARM_CELSIUS = 75
PERMISSION_ERROR = "insufficient permissions"
FAN_STOPPED_CELLS = frozenset({"0", "0 %"})
# A GPU that rests may narrow its link; from P0 to this it works.
LOWEST_WORKING_PSTATE = 4
MAX_LANES = 64
# Milliseconds that a look at the GPUs takes where nothing is wrong, at most; what it takes is told in steps.
SLOW_QUERY_MS, QUERY_STEP_MS = 1000, 500
MAX_ROW_CHARACTERS = 400
MAX_MESSAGE_CHARACTERS = 200
MAX_MESSAGES = 100
BUS_ID = re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f](?![0-9A-Fa-f])")
GPU_INDEX = re.compile(r"\b(?:GPU|gpu) ?(\d{1,3})\b")
NO_PROBLEMS: tuple[GpuProblem, ...] = ()
Cells = tuple[str, ...]


class ProblemFinder:
    """The problems of the GPUs of a host, as one snapshot tells them."""

    def __init__(self, dump: ParsedFile[Gpu], voices: Sequence[ToolResult]) -> None:
        """By its rows, and by what was said beside them."""
        self.columns: Cells = ()
        self.pick_cells: Callable[[Cells], Cells] = pick_no_problem_cells
        took = dump.header.took_ms if dump.header else 0
        self.query_ms = took // QUERY_STEP_MS * QUERY_STEP_MS if took >= SLOW_QUERY_MS else 0
        words = [(voice.vendor, word) for voice in voices for word in voice.messages]
        self.messages = words[:MAX_MESSAGES]

    def find_problems(self, told: Gpu) -> tuple[GpuProblem, ...]:
        """Of one of them; those of an instance are its GPU's."""
        gpu = told.parent or told
        if gpu.columns is not self.columns:  # the GPUs of a host have one header
            self.columns = gpu.columns
            self.pick_cells = (
                build_problem_cell_picker(gpu.columns) if 0 < len(gpu.columns) <= MAX_COLUMNS else pick_no_problem_cells
            )
        cells = self.pick_cells((*gpu.cells, ""))
        if len("".join(cells)) > MAX_ROW_CHARACTERS:
            cells = tuple([one[:MAX_CELL_CHARACTERS] for one in cells])
        fan, margin, power = cells[: len(PER_GPU_COLUMNS)]
        common = find_common_problems(cells[len(PER_GPU_COLUMNS) :], self.query_ms if gpu.vendor == "nvidia" else 0)
        warm = gpu_health.find_overheating(
            gpu.temperature, gpu_health.parse_temperature_margin(margin) if margin else None
        )
        failed, no_fan = find_reading_failure(power) if gpu.power_draw is None else None, find_reading_failure(fan)
        if gpu.lost or gpu.error or failed or no_fan or warm or self.messages or fan in FAN_STOPPED_CELLS:
            common = (*self.find_own_problems(gpu, fan, warm), *common)
            if failed and not gpu.lost:
                common = (build_problem("power", failed), *common)
        if told.error and not gpu.error and not gpu.lost:
            common = (build_problem("unreadable", told.error), *common)
        if not common:
            return NO_PROBLEMS
        which = gpu.raw_fields.get("pci.bus_id", "")[:MAX_CELL_CHARACTERS] if gpu.index is None else str(gpu.index)
        return order_problems(common, gpu.vendor, which)

    def find_own_problems(self, gpu: Gpu, fan: str, warm: tuple[int, ...] | None) -> Iterator[GpuProblem]:
        """What is of this GPU and no other."""
        if gpu.lost:
            kind = classify_message(gpu.lost, "lost")
            yield build_problem(kind if PROBLEM_KINDS[kind].avoid else "lost", gpu.lost[:MAX_CELL_CHARACTERS])
        elif gpu.error:
            yield build_problem("unreadable", gpu.error)
        if gpu.temperature is not None and not gpu.lost:
            if find_reading_failure(fan):
                yield build_problem("fan", "its fan does not answer")
            elif fan in FAN_STOPPED_CELLS and gpu.temperature >= WARM_CELSIUS:
                yield build_problem("fan", "its fan stands still, though the GPU is warm")
        if warm:
            yield build_problem("hot", warm[1])
        for vendor, word in self.messages:
            if vendor == gpu.vendor and is_message_about(word, gpu):
                yield build_problem(classify_message(word, "said"), word[:MAX_MESSAGE_CHARACTERS])


def find_reading_failure(cell: str) -> str | None:
    """Return the words of a reading that fails; that we may not see it is no fault of the GPU."""
    words = parse_error_words(cell) if cell else None
    return None if words is None or words.lower() == PERMISSION_ERROR else words


def pick_no_problem_cells(_: Cells) -> Cells:
    """The cells of a row that is beyond belief."""
    return NO_CELLS


@lru_cache(maxsize=64)
def build_problem_cell_picker(columns: Cells) -> Callable[[Cells], Cells]:
    """What takes the cells of COLUMNS out of a row; a fleet has a few headers."""
    return itemgetter(*find_column_positions(columns, PROBLEM_COLUMNS))


def build_problem(kind: str, *values: object, severity: str = "", advice: str = "") -> GpuProblem:
    """One of them, with its values in its words."""
    known = PROBLEM_KINDS[kind]
    return GpuProblem(kind, severity or known.severity, known.what.format(*values), advice or known.advice, known.avoid)


@lru_cache(maxsize=4096)
def order_problems(found: tuple[GpuProblem, ...], vendor: str, which: str) -> tuple[GpuProblem, ...]:
    """One of each kind, the most severe first, with advice for this very GPU."""
    once: dict[str, GpuProblem] = {}
    for one in found:
        once.setdefault(one.kind, one)
    if "heat" in once:
        once.pop("hot", None)  # which is why
    if once.keys() & {"off-bus", "reset", "power-cable", "interrupts"}:
        once.pop("lost", None)
    several = sorted(once.values(), key=lambda one: SEVERITIES.index(one.severity))
    return tuple([one._replace(advice=format_advice(one.advice, vendor, which)) for one in several])


def is_message_about(word: str, gpu: Gpu) -> bool:
    """Whether a message is about this GPU: by where it sits on the bus, or else by its number."""
    several = BUS_ID.findall(word)
    if several:
        mine = gpu_health.normalize_bus_id(gpu.raw_fields.get("pci.bus_id", ""))
        return mine is not None and any(gpu_health.normalize_bus_id(one) == mine for one in several)
    found = GPU_INDEX.search(word)
    return found is not None and gpu.index is not None and int(found[1]) == gpu.index


def advise_on_exit_code(voice: ToolResult) -> str:
    """What to do about the exit code of a tool whose words name no GPU."""
    kind = EXIT_CODE_KINDS.get(voice.rc) if voice.vendor == "nvidia" else None
    if kind is None or any(BUS_ID.search(word) or GPU_INDEX.search(word) for word in voice.messages):
        return ""
    return format_advice(PROBLEM_KINDS[kind].advice, voice.vendor)


@lru_cache(maxsize=4096)
def find_common_problems(cells: Cells, took: int) -> tuple[GpuProblem, ...]:
    """By the cells of COLUMNS but for those of OWN; most GPUs of a fleet tell the same."""
    corrected, uncorrected, before, remapping, retiring, failed, action, drain, *rest = cells
    events, throttle, width, widest, state, persistence, mode = rest
    mask = choose_available(parse_bit_mask(events), parse_bit_mask(throttle))
    found = (
        *find_recovery_problem(DRAIN_AND_RESET_ACTION if parse_boolean_cell(drain) else action),
        *find_ecc_problems(parse_number(corrected), parse_number(uncorrected), parse_number(before)),
        *([build_problem("repair-failed")] if parse_boolean_cell(failed) else ()),
        *(
            [build_problem("repair-pending")]
            if combine_flags(parse_boolean_cell(remapping), parse_boolean_cell(retiring))
            else ()
        ),
        *(find_slowdown_problems(mask) if mask else ()),
        *find_link_problem(parse_lane_count(width), parse_lane_count(widest), state),
        *([build_problem("persistence", format_query_time(took))] if parse_boolean_cell(persistence) is False else ()),
        *([build_problem("prohibited")] if mode.lower() == "prohibited" else ()),
    )
    return found or NO_PROBLEMS


def find_recovery_problem(cell: str) -> Iterator[GpuProblem]:
    """What must be done to it, in the driver's word."""
    action = parse_cell(cell)
    if action is not None and action.lower() != "none" and not action.lower().startswith("requested functionality"):
        low = action.lower()
        yield build_problem(
            "recovery", action, advice=next((advice for word, advice in RECOVERY_ADVICE if word in low), "")
        )


def find_ecc_problems(corrected: float | None, uncorrected: float | None, before: float | None) -> Iterator[GpuProblem]:
    """Errors in its memory."""
    if uncorrected:
        yield build_problem("ecc-uncorrected", format_error_count(uncorrected))
    elif before:
        since = "" if uncorrected is None else ", none since the driver was loaded"
        yield build_problem("ecc-before", format_error_count(before), since)
    if corrected is not None and corrected >= MIN_CORRECTED_ERRORS:
        yield build_problem("ecc-corrected", f"{int(corrected):,}")


def format_error_count(count: float) -> str:
    """`1 uncorrected ECC error`, `2 uncorrected ECC errors`."""
    return f"{int(count):,} uncorrected ECC error{'' if count == 1 else 's'}"


def find_slowdown_problems(mask: int) -> Iterator[GpuProblem]:
    """Why it runs slower than it could; that it rests, or does all that its power limit allows, is no problem."""
    if mask & (HEAT_BIT | HARDWARE_HEAT_BIT):
        yield build_problem("heat", " to half of its clocks or less" if mask & HARDWARE_HEAT_BIT else "")
    if mask & POWER_BRAKE_BIT:
        yield build_problem("power-brake")
    if mask & SLOWDOWN_BIT and not mask & (HARDWARE_HEAT_BIT | POWER_BRAKE_BIT):
        yield build_problem("slowdown")


def parse_lane_count(cell: str) -> int | None:
    """How many, as `16`, or as the XML has it `16x`."""
    count = parse_integer(cell.lower().strip("x"))
    return count if count is not None and 0 < count <= MAX_LANES else None


def find_link_problem(width: int | None, widest: int | None, state: str) -> Iterator[GpuProblem]:
    """A link that is narrower than it could be while the GPU works; half of it is what many a mainboard gives."""
    level = parse_integer(state[1:]) if state[:1] == "P" else None
    if width is None or widest is None or width >= widest or level is None or level > LOWEST_WORKING_PSTATE:
        return
    yield build_problem("link", width, widest, severity=INFO if width * 2 >= widest else WARNING)


def format_query_time(milliseconds: int) -> str:
    """What that costs, if it is told."""
    return f", which took {milliseconds / 1000:.1f} s" if milliseconds else ""
