"""Find the problems of a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType

from site_builder.core.clock import Now
from site_builder.core.formatting import HOUR, format_moment
from site_builder.core.model import Gpu, GpuHealth, GpuProblem, HostSnapshot, ParsedFile, ToolResult
from site_builder.health import gpu_health
from site_builder.health.model import CRITICAL, INFO, PROBLEM_KINDS, SEVERITIES, WARNING
from site_builder.health.xid import RECOVERED_WORDS, RECOVERY_CODE, get_xid_code

# The commands that reset a GPU, and words in its driver's messages in dmesg.
RESET_COMMANDS = {
    "nvidia": "as root: nvidia-smi --gpu-reset -i {}",
    "amd": "as root: amd-smi reset --gpureset --gpu {}",
}
KERNEL_LOG_WORDS = {"nvidia": "Xid", "amd": "amdgpu"}


# Words in a driver's message about a GPU, and the kind of problem; the first that is in the message counts.
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
# Words in the driver's recovery action, and what to do; the first that is in it counts.
RECOVERY_ADVICE = (
    (
        "drain",
        "start nothing new on it, stop its processes and those that exchange data with it, then reset it ({reset})",
    ),
    ("reboot", "reboot the host"),
    ("reset", PROBLEM_KINDS["reset"].advice),
)
# Exit codes of nvidia-smi that are about a GPU, where its messages do not say which.
EXIT_CODE_KINDS = {8: "power-cable", 10: "interrupts", 14: "inforom", 15: "off-bus"}
# Warnings about GPUs that no program can use, or perhaps none.
AVOIDED_WARNING_KINDS = frozenset({"prohibited", "fabric-unknown"})
FABRIC_KINDS = frozenset({"fabric-setup", "fabric", "fabric-unknown"})
# Fewer corrected errors since the driver was loaded are normal.
MIN_CORRECTED_ERRORS = 1000
# A fan may stop while a card is cool; such fans start at about 60 °C.
WARM_CELSIUS = 75
# A GPU that rests may narrow its link; from P0 to this it works.
LOWEST_WORKING_PSTATE = 4
# Milliseconds that a healthy query takes at most; longer times are shown in steps.
SLOW_QUERY_MS, QUERY_STEP_MS = 1000, 500
# How long a GPU with a critical Xid error is not handed out, unless it recovers before.
XID_AVOID_S = HOUR
# How exact times are that a host calculates from its uptime.
BOOT_TIME_ERROR_S = 10
MAX_MESSAGE_CHARACTERS = 200
MAX_MESSAGES = 100
BUS_ID = re.compile(r"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f](?![0-9A-Fa-f])")
GPU_INDEX = re.compile(r"\b(?:GPU|gpu) ?(\d{1,3})\b")
NO_PROBLEMS: tuple[GpuProblem, ...] = ()


class ProblemFinder:
    """Finds the problems of the GPUs in one snapshot, by its rows and by the messages beside them."""

    def __init__(
        self,
        gpu_file: ParsedFile[Gpu],
        tool_results: Sequence[ToolResult],
        xid_problems: Mapping[str, Sequence[GpuProblem]] = MappingProxyType({}),
    ) -> None:
        """Take also the Xid errors of the host, by the bus ids of its GPUs."""
        took_ms = gpu_file.header.took_ms if gpu_file.header else 0
        self.query_ms = took_ms // QUERY_STEP_MS * QUERY_STEP_MS if took_ms >= SLOW_QUERY_MS else 0
        messages = [(result.vendor, message) for result in tool_results for message in result.messages]
        self.messages = messages[:MAX_MESSAGES]
        self.xid_problems = xid_problems

    def find_problems(self, row: Gpu) -> tuple[GpuProblem, ...]:
        """Return the problems of a GPU; those of an instance are its GPU's."""
        gpu = row.parent or row
        health = gpu.health
        common_problems = find_common_problems(health, self.query_ms if gpu.vendor == "nvidia" else 0)
        if gpu.lost:  # its cells say nothing of the fabric
            common_problems = tuple([problem for problem in common_problems if problem.kind not in FABRIC_KINDS])
        overheating = gpu_health.find_gpu_overheating(gpu)
        is_fan_odd = gpu.fan_speed == 0 or health.fan_error
        error = row.error or gpu.error or row.other_error or gpu.other_error
        xid_problems: Sequence[GpuProblem] = ()
        if self.xid_problems and gpu.bus_id:
            xid_problems = self.xid_problems.get(gpu_health.normalize_xid_bus(gpu.bus_id), ())
        is_odd = error or gpu.lost or health.power_error or is_fan_odd or overheating or self.messages
        if not is_odd and not common_problems and not xid_problems:  # as nearly all GPUs
            return NO_PROBLEMS
        problems: list[GpuProblem] = [*xid_problems]
        if gpu.lost:
            kind = classify_problem_message(gpu.lost, "lost")
            kind = kind if PROBLEM_KINDS[kind].severity == CRITICAL else "lost"
            problems.append(build_problem(kind, gpu.lost[: gpu_health.MAX_REASON_CHARACTERS]))
        else:
            if error:
                problems.append(build_problem("unreadable", error))
            if health.power_error:
                problems.append(build_problem("power", health.power_error))
            if gpu.temperature is not None and health.fan_error:
                problems.append(build_problem("fan", "its fan does not respond"))
            elif gpu.temperature is not None and gpu.fan_speed == 0 and gpu.temperature >= WARM_CELSIUS:
                problems.append(build_problem("fan", "its fan does not turn although the GPU is warm"))
        if overheating:
            problems.append(build_problem("hot", overheating[1]))
        for vendor, message in self.messages:
            if vendor == gpu.vendor and is_problem_message_about(message, gpu):
                problems.append(
                    build_problem(classify_problem_message(message, "said"), message[:MAX_MESSAGE_CHARACTERS])
                )
        problems += common_problems
        if not problems:
            return NO_PROBLEMS
        which = (gpu.bus_id or "")[: gpu_health.MAX_REASON_CHARACTERS] if gpu.index is None else str(gpu.index)
        return order_problems(tuple(problems), gpu.vendor, which)


def classify_problem_message(message: str, default: str) -> str:
    """Return the kind of problem that a message is about."""
    text = message.lower()
    return next((kind for words, kind in MESSAGE_KINDS if words in text), default)


def build_problem(kind: str, *values: object, severity: str = "", advice: str = "") -> GpuProblem:
    known = PROBLEM_KINDS[kind]
    avoid = known.severity == CRITICAL or kind in AVOIDED_WARNING_KINDS
    return GpuProblem(kind, severity or known.severity, known.what.format(*values), advice or known.advice, avoid)


@lru_cache(maxsize=4096)
def order_problems(problems: tuple[GpuProblem, ...], vendor: str, which: str) -> tuple[GpuProblem, ...]:
    """Return one problem of each kind, the most severe first, with advice for this very GPU."""
    by_kind: dict[str, GpuProblem] = {}
    for problem in problems:
        by_kind.setdefault(problem.kind, problem)
    if "heat" in by_kind:
        by_kind.pop("hot", None)  # which is why
    if by_kind.keys() & {"off-bus", "reset", "power-cable", "interrupts"}:
        by_kind.pop("lost", None)
    ordered = sorted(by_kind.values(), key=lambda problem: SEVERITIES.index(problem.severity))
    return tuple([problem._replace(advice=format_problem_advice(problem.advice, vendor, which)) for problem in ordered])


def format_problem_advice(advice: str, vendor: str, which: str = "") -> str:
    """Fill in the commands of the GPU's vendor, and its number or bus id."""
    reset = RESET_COMMANDS.get(vendor, "with the manufacturer's tool").format(which or "N")
    return advice.format(reset=reset, gpu=which or "N", log=KERNEL_LOG_WORDS.get(vendor, "the driver"))


def is_problem_message_about(message: str, gpu: Gpu) -> bool:
    """Return True if a message names this GPU by its bus id, or else by its number."""
    bus_ids = BUS_ID.findall(message)
    if bus_ids:
        own_bus_id = gpu_health.normalize_bus_id(gpu.bus_id) if gpu.bus_id else None
        return own_bus_id is not None and own_bus_id in map(gpu_health.normalize_bus_id, bus_ids)
    match = GPU_INDEX.search(message)
    return match is not None and gpu.index is not None and int(match[1]) == gpu.index


def advise_on_exit_code_problem(result: ToolResult) -> str:
    """Return what to do about the exit code of a tool whose messages name no GPU."""
    kind = EXIT_CODE_KINDS.get(result.rc) if result.vendor == "nvidia" else None
    if kind is None or any(BUS_ID.search(message) or GPU_INDEX.search(message) for message in result.messages):
        return ""
    return format_problem_advice(PROBLEM_KINDS[kind].advice, result.vendor)


# Most GPUs of a fleet report the same.
@lru_cache(maxsize=4096)
def find_common_problems(health: GpuHealth, query_ms: int) -> tuple[GpuProblem, ...]:
    """Find the problems that a health record shows; a query that was slow took `query_ms`."""
    problems: list[GpuProblem] = []
    # what older drivers recommended, in the words of newer ones
    action = "Drain and Reset" if health.is_drain_recommended else health.recovery_action
    if action:
        advice = next((advice for words, advice in RECOVERY_ADVICE if words in action.lower()), "")
        problems.append(build_problem("recovery", action, advice=advice))
    counts = health.error_counts
    if counts.uncorrected:
        problems.append(build_problem("ecc-uncorrected", format_problem_error_count(counts.uncorrected)))
    elif counts.uncorrected_ever:
        since = "" if counts.uncorrected is None else ", none since the driver was loaded"
        problems.append(build_problem("ecc-before", format_problem_error_count(counts.uncorrected_ever), since))
    if counts.corrected is not None and counts.corrected >= MIN_CORRECTED_ERRORS:
        problems.append(build_problem("ecc-corrected", f"{counts.corrected:,}"))
    if health.has_repair_failed:
        problems.append(build_problem("repair-failed"))
    if health.is_repair_pending:
        problems.append(build_problem("repair-pending"))
    if health.fabric_registration:
        problems.append(build_problem("fabric-setup", health.fabric_registration))
    if health.fabric_faults:
        problems.append(build_problem("fabric", health.fabric_faults))
    if health.fabric_unknown:
        problems.append(build_problem("fabric-unknown", health.fabric_unknown))
    # idling and the power limit are not problems
    mask = health.clock_reasons or 0
    if mask & (gpu_health.HEAT_BIT | gpu_health.HARDWARE_HEAT_BIT):
        problems.append(
            build_problem("heat", " to half of its clock speed or less" if mask & gpu_health.HARDWARE_HEAT_BIT else "")
        )
    if mask & gpu_health.POWER_BRAKE_BIT:
        problems.append(build_problem("power-brake"))
    if mask & gpu_health.SLOWDOWN_BIT and not mask & (gpu_health.HARDWARE_HEAT_BIT | gpu_health.POWER_BRAKE_BIT):
        problems.append(build_problem("slowdown"))
    lanes, max_lanes = health.lanes, health.max_lanes
    is_working = health.pstate is not None and health.pstate <= LOWEST_WORKING_PSTATE
    if lanes is not None and max_lanes is not None and lanes < max_lanes and is_working:
        # many mainboards provide half of the lanes
        problems.append(build_problem("link", lanes, max_lanes, severity=INFO if lanes * 2 >= max_lanes else WARNING))
    if health.is_persistent is False:
        problems.append(build_problem("persistence", f", which takes {query_ms / 1000:.1f} s" if query_ms else ""))
    if health.is_prohibited:
        problems.append(build_problem("prohibited"))
    return tuple(problems) or NO_PROBLEMS


def format_problem_error_count(count: int) -> str:
    return f"{count:,} uncorrected ECC error{'' if count == 1 else 's'}"


def find_xid_problems(snapshot: HostSnapshot, now: Now) -> dict[str, Sequence[GpuProblem]]:
    """Find critical Xid errors of the last hour by the bus ids of their GPUs, the latest first.

    One before a reboot of the host, or before the driver logged that no recovery is needed any more, is over.
    """
    facts_file = snapshot.facts
    facts = facts_file.rows[0] if facts_file and facts_file.rows else None
    if facts is None or not facts.xids or not facts_file or not facts_file.header:
        return {}
    host_time, clock_offset = facts_file.header.time, snapshot.clock_offset or 0
    booted_at = 0 if facts.uptime is None else host_time - facts.uptime - BOOT_TIME_ERROR_S
    latest_first = sorted(facts.xids, key=lambda xid: -xid.last)
    recovered_at: dict[str, int] = {}
    for xid in latest_first:
        if xid.code == RECOVERY_CODE and xid.text.lower().endswith(RECOVERED_WORDS):
            recovered_at.setdefault(gpu_health.normalize_xid_bus(xid.bus), xid.last)
    problems: dict[str, list[GpuProblem]] = {}
    for xid in latest_first:
        code, bus = get_xid_code(xid.code), gpu_health.normalize_xid_bus(xid.bus)
        is_over = xid.last < max(booted_at, recovered_at.get(bus, 0))
        # one from the future was logged before the clock was set: nobody knows how long ago
        if code.severity != CRITICAL or is_over or xid.last > host_time + XID_AVOID_S:
            continue
        logged_at = xid.last - clock_offset  # by our clock
        if not now.has_passed(logged_at + XID_AVOID_S):
            clock = format_moment(datetime.fromtimestamp(max(0, logged_at), now.zone), now)
            problem = build_problem("xid", f"{xid.code} at {clock}: {code.what}", advice=code.advice)
            problems.setdefault(bus, []).append(problem)
    return dict(problems)
