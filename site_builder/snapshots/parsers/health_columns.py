"""Parse the columns of nvidia-smi that are about the health of a GPU; parsers of other tools use the same names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from site_builder.core.formatting import format_names
from site_builder.core.model import GpuHealth, MemoryErrorCounts
from site_builder.core.terminal_text import clean_excerpt
from site_builder.snapshots.parsers import values

# In the order of MemoryErrorCounts.
COUNT_COLUMNS = (
    *("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total"),
    *("ecc.errors.corrected.aggregate.total", "ecc.errors.uncorrected.aggregate.total"),
    *("remapped_rows.correctable", "remapped_rows.uncorrectable"),
    *("retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count"),
)
STATE_COLUMNS = (
    *("remapped_rows.pending", "retired_pages.pending", "remapped_rows.failure"),
    *("gpu_recovery_action", "reset_status.drain_and_reset_recommended"),
    *("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    *("pcie.link.width.current", "pcie.link.width.max"),
    *("pstate", "persistence_mode", "compute_mode", "mig.mode.current"),
    *("driver_version", "kmd_version"),
)
# The NVLink fabric, with the word for one that is well; nearly all GPUs report none.
FABRIC_GOOD_WORDS = {
    "fabric.state": "completed",
    "fabric.status": "success",
    "fabric.health.summary": "healthy",
    "fabric.health.bandwidth": "full",
    "fabric.health.route_recovery_in_progress": "false",
    "fabric.health.route_unhealthy": "false",
    "fabric.health.access_timeout_recovery": "false",
    "fabric.health.incorrect_configuration": "none",
}
# What a word says is wrong; an empty word is any other.
FABRIC_FAULTS = {
    ("fabric.health.bandwidth", "degraded"): "bandwidth degraded",
    ("fabric.health.route_recovery_in_progress", "true"): "route recovery in progress",
    ("fabric.health.route_unhealthy", "true"): "route unhealthy",
    ("fabric.health.access_timeout_recovery", "true"): "recovery from an access timeout",
    ("fabric.health.incorrect_configuration", ""): "incorrect configuration ({})",
    ("fabric.status", ""): "registration failed ({})",
    ("fabric.health.summary", "unhealthy"): "reported as {}",
    ("fabric.health.summary", "limited capacity"): "reported as {}",
}
UNREGISTERED_WORDS = frozenset({"in progress", "not started"})
HEALTH_COLUMNS = (*COUNT_COLUMNS, *STATE_COLUMNS, *FABRIC_GOOD_WORDS)
MAX_FABRIC_WORD_CHARACTERS = 40
# Longer cells are cut: a hostile file must not fill the caches.
MAX_CELL_CHARACTERS, MAX_ROW_CHARACTERS = 80, 400
MAX_MASK_CHARACTERS = 18
MAX_LANES = 64
# Anything beyond is not a temperature.
MAX_CELSIUS = 500
TRUE_WORDS = frozenset({"yes", "1", "active", "enabled", "true"})
FALSE_WORDS = frozenset({"no", "0", "not active", "disabled", "false"})
DEPRECATED_WORDS, PERMISSION_WORDS = "requested functionality", "insufficient permissions"


def parse_health_columns(cells: tuple[str, ...], unread_fan: str, unread_power: str) -> GpuHealth:
    """Parse the cells of HEALTH_COLUMNS, and those of fan speed and power draw where they are not numbers."""
    if len("".join(cells)) > MAX_ROW_CHARACTERS:
        cells = tuple([cell[:MAX_CELL_CHARACTERS] for cell in cells])
    return parse_health_cells(cells, unread_fan[:MAX_CELL_CHARACTERS], unread_power[:MAX_CELL_CHARACTERS])


# Most GPUs of a fleet report the same.
@lru_cache(maxsize=4096)
def parse_health_cells(cells: tuple[str, ...], unread_fan: str, unread_power: str) -> GpuHealth:
    texts = dict(zip(HEALTH_COLUMNS, cells))
    counts = [values.parse_number(texts[column]) for column in COUNT_COLUMNS]
    is_remapping = parse_health_boolean(texts["remapped_rows.pending"])
    is_retiring = parse_health_boolean(texts["retired_pages.pending"])
    action = values.parse_cell(texts["gpu_recovery_action"])
    if action and action.lower().startswith(DEPRECATED_WORDS):
        action = None
    masks = (texts["clocks_event_reasons.active"], texts["clocks_throttle_reasons.active"])  # its new and its old name
    pstate = texts["pstate"]
    fabric_registration, fabric_faults, fabric_unknown = parse_fabric_health(texts)
    return GpuHealth(
        error_counts=MemoryErrorCounts(*[None if count is None else int(count) for count in counts]),
        is_repair_pending=is_retiring if is_remapping is None else is_remapping or bool(is_retiring),
        has_repair_failed=parse_health_boolean(texts["remapped_rows.failure"]),
        recovery_action="" if action is not None and action.lower() == "none" else action,
        is_drain_recommended=parse_health_boolean(texts["reset_status.drain_and_reset_recommended"]),
        clock_reasons=next((mask for mask in map(parse_health_mask, masks) if mask is not None), None),
        lanes=parse_health_lane_count(texts["pcie.link.width.current"]),
        max_lanes=parse_health_lane_count(texts["pcie.link.width.max"]),
        pstate=values.parse_integer(pstate[1:]) if pstate[:1] == "P" else None,
        is_persistent=parse_health_boolean(texts["persistence_mode"]),
        is_prohibited=texts["compute_mode"].lower() == "prohibited",
        is_in_mig_mode=texts["mig.mode.current"].lower() == "enabled",
        driver=values.parse_cell(texts["driver_version"]) or values.parse_cell(texts["kmd_version"]),
        fan_error=parse_health_reading_failure(unread_fan),
        power_error=parse_health_reading_failure(unread_power),
        fabric_registration=fabric_registration,
        fabric_faults=fabric_faults,
        fabric_unknown=fabric_unknown,
    )


def parse_fabric_health(texts: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Return how far the registration has come if not to its end, the faults, and what is not understood."""
    registration, unknown = None, []
    faults: dict[str, str] = {}
    for column, good_word in FABRIC_GOOD_WORDS.items():
        word = texts[column].strip("[] ").lower()
        printed = clean_excerpt(texts[column].strip("[] "), MAX_FABRIC_WORD_CHARACTERS)
        if word in {good_word, PERMISSION_WORDS} or word in values.NO_READING_WORDS:
            continue
        fault = FABRIC_FAULTS.get((column, word)) or FABRIC_FAULTS.get((column, ""))
        if column == "fabric.state" and word in UNREGISTERED_WORDS:
            registration = printed
        elif fault:
            faults[column] = fault.format(printed)
        else:
            unknown.append(f"{column} {printed}")
    if registration:
        faults.pop("fabric.status", None)  # it is valid once the state is Completed
    if len(faults) > 1:
        faults.pop("fabric.health.summary", None)  # the others say why
    return registration, format_names([*faults.values()]) or None, format_names(unknown) or None


def parse_health_boolean(cell: str) -> bool | None:
    """Return yes or no, for which tools have many words; None for anything else."""
    word = cell.lower()
    return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None


def parse_health_mask(cell: str) -> int | None:
    """Parse `0x0000000000000004`."""
    try:
        return int(cell, 16) if cell.startswith("0x") and len(cell) <= MAX_MASK_CHARACTERS else None
    except ValueError:
        return None


def parse_health_lane_count(cell: str) -> int | None:
    """Parse `16`, or as the XML has it `16x`."""
    count = values.parse_integer(cell.lower().strip("x"))
    return count if count is not None and 0 < count <= MAX_LANES else None


def parse_health_reading_failure(cell: str) -> str | None:
    """Return the words of a reading that fails; missing permissions are not a fault of the GPU."""
    words = values.parse_error_value(cell) if cell else None
    return None if words is None or words.lower() == PERMISSION_WORDS else words


@lru_cache(maxsize=1024)
def parse_health_temperature_margin(cell: str) -> float | None:
    """Parse a difference of temperatures, which may be below 0."""
    try:
        value = float(values.UNIT_SUFFIX.sub("", cell[:MAX_CELL_CHARACTERS]))
    except ValueError:
        return None
    return value if -MAX_CELSIUS < value < MAX_CELSIUS else None
