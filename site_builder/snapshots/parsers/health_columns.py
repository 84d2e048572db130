"""Parse the columns of nvidia-smi that are about the health of a GPU; parsers of other tools use the same names."""

from __future__ import annotations

from functools import lru_cache

from site_builder.core.model import GpuHealth, MemoryErrorCounts
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
HEALTH_COLUMNS = (*COUNT_COLUMNS, *STATE_COLUMNS)
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
    )


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
