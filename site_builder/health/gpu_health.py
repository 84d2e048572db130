"""Read the health counters of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from site_builder.core.model import Gpu, HostStatus
from site_builder.health.model import COUNT_NAMES, HostHealthMetrics, PackedHealthMetrics
from site_builder.health.store import pack_health_metrics, unpack_health_metrics
from site_builder.history import model as history_model
from site_builder.snapshots.envelope import BAD_ROW_PREFIX
from site_builder.snapshots.parsers.values import UNIT_SUFFIX, find_column_positions, parse_cell, parse_number

HEALTH_COLUMNS = (
    "fan.speed",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.pending",
    "retired_pages.pending",
    "remapped_rows.failure",
    "gpu_recovery_action",
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
)
# The bits of clocks_event_reasons.active for heat, and for power: the limit, and the brake of the hardware.
HEAT_BITS, POWER_BITS = 0x20 | 0x40, 0x4 | 0x80
SLOWDOWN_BIT, HARDWARE_BITS = 0x8, 0x40 | 0x80
MAX_MASK_CHARACTERS = 18
TRUE_WORDS = frozenset({"yes", "1", "active", "enabled", "true"})
FALSE_WORDS = frozenset({"no", "0", "not active", "disabled", "false"})
# What a hostile file says is not worth remembering.
MAX_CELL_CHARACTERS, MAX_COLUMNS = 80, 400


class HealthReadings(NamedTuple):
    """Percent of the fan, errors of memory since the driver was loaded, and what is so or not."""

    fan_percent: float | None = None
    ecc_corrected: float | None = None
    ecc_uncorrected: float | None = None
    is_repair_pending: bool | None = None
    has_repair_failed: bool | None = None
    is_recovery_needed: bool | None = None
    is_slowed_by_heat: bool | None = None
    is_slowed_by_power: bool | None = None


NO_HEALTH_READINGS = HealthReadings()


def parse_health_readings(gpu: Gpu) -> HealthReadings:
    """Of a GPU; one of a host that is not fresh tells nothing."""
    if not 0 < len(gpu.columns) <= MAX_COLUMNS:
        return NO_HEALTH_READINGS
    told = build_health_cell_picker(gpu.columns)((*gpu.cells, ""))
    return parse_health_cells(
        told if len("".join(told)) <= MAX_CELL_CHARACTERS else tuple([one[:MAX_CELL_CHARACTERS] for one in told])
    )


@lru_cache(maxsize=64)
def build_health_cell_picker(columns: tuple[str, ...]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """What takes the cells of COLUMNS out of a row; a fleet has a few headers."""
    return itemgetter(*find_column_positions(columns, HEALTH_COLUMNS))


@lru_cache(maxsize=4096)
def parse_health_cells(cells: tuple[str, ...]) -> HealthReadings:
    """The cells of COLUMNS; most GPUs of a fleet tell the same."""
    fan, corrected, uncorrected, remapping, retiring, failed, action, events, throttle = cells
    mask = choose_available(parse_bit_mask(events), parse_bit_mask(throttle))
    unclear = mask is not None and mask & SLOWDOWN_BIT and not mask & HARDWARE_BITS  # by one of the two, but by which?
    return HealthReadings(
        parse_number(fan),
        parse_number(corrected),
        parse_number(uncorrected),
        combine_flags(parse_boolean_cell(remapping), parse_boolean_cell(retiring)),
        parse_boolean_cell(failed),
        None if parse_cell(action) is None else action.lower() != "none",
        None if mask is None or unclear else bool(mask & HEAT_BITS),
        None if mask is None or unclear else bool(mask & POWER_BITS),
    )


def parse_boolean_cell(cell: str) -> bool | None:
    """Yes or no, for which tools have many words; None for anything else."""
    word = cell.lower()
    return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None


def combine_flags(one: bool | None, other: bool | None) -> bool | None:
    """Whether one of the two is so, as far as they are told."""
    return other if one is None else one or bool(other)


def choose_available(one: int | None, other: int | None) -> int | None:
    """The one that is told."""
    return other if one is None else one


def parse_bit_mask(cell: str) -> int | None:
    """A mask, as `0x0000000000000004`."""
    try:
        return int(cell, 16) if cell.startswith("0x") and len(cell) <= MAX_MASK_CHARACTERS else None
    except ValueError:
        return None


COUNT_COLUMNS = (
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.uncorrected.aggregate.total",
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
    "retired_pages.single_bit_ecc.count",
    "retired_pages.double_bit.count",
)
# What health.understood takes beside; of these the fan is none of our concern.
STATE_COLUMNS = HEALTH_COLUMNS[3:]
# Which differ from GPU to GPU, or from moment to moment.
OWN_COLUMNS = ("pci.bus_id", "temperature.gpu.tlimit")
DRIVER_COLUMNS = ("driver_version", "kmd_version")
METRIC_COLUMNS = (*OWN_COLUMNS, *COUNT_COLUMNS, *STATE_COLUMNS, *DRIVER_COLUMNS)
NO_CELLS = ("",) * len(METRIC_COLUMNS)
RECOVERY_ACTION_POSITION = STATE_COLUMNS.index("gpu_recovery_action")
# Where the driver does not tell how far it is to the limit of the GPU's maker, in °C.
DEFAULT_LIMIT_CELSIUS = 90
# A temperature further off than this is no temperature.
MAX_CELSIUS = 500
MAX_KEY_CHARACTERS = 100
# The cells of a row in all, of which most are a number or a word.
MAX_ROW_CHARACTERS = 300
CellPicker = Callable[["tuple[str, ...]"], "tuple[str, ...]"]


def pack_host_health(board: HostStatus, taken: float | None) -> PackedHealthMetrics | None:
    """The signs of a host that is fresh, told by a snapshot of that time; of any other nothing is known."""
    if board.state != "fresh":
        return None
    rows = []
    columns: tuple[str, ...] = ()
    pick: CellPicker = pick_no_metric_cells
    driver = None
    for one, key in zip(list_physical_gpus(board), list_gpu_keys(board)):
        if one.columns is not columns:  # the GPUs of a host have one header
            columns = one.columns
            pick = build_metric_cell_picker(columns) if 0 < len(columns) <= MAX_COLUMNS else pick_no_metric_cells
        made, told = build_metrics_row(one, key, pick)
        rows.append(made)
        driver = driver or told
    whole = not any(one.what.startswith(BAD_ROW_PREFIX) for one in board.problems)
    return PackedHealthMetrics(pack_health_metrics(driver, rows, whole), taken)


def list_gpu_keys(board: HostStatus) -> list[str]:
    """What names each GPU of a host, in an event."""
    return [key[:MAX_KEY_CHARACTERS] for key in history_model.list_host_gpu_keys(list_physical_gpus(board))]


def list_physical_gpus(host: HostStatus) -> list[Gpu]:
    """Return the GPUs that sit in a host: one in MIG mode once, in place of its instances."""
    gpus = [status.gpu for status in host.gpus]
    if not any(gpu.parent for gpu in gpus):
        return gpus
    groups: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.parent or gpu).key, []).append(gpu)
    return [gpu for group in groups.values() for gpu in ([group[0].parent] if group[0].parent else group)]


def build_host_health_metrics(board: HostStatus) -> HostHealthMetrics | None:
    """The same, to look at."""
    found = pack_host_health(board, None)
    return unpack_health_metrics(found.packed) if found else None


def build_metrics_row(told: Gpu, key: str, pick: CellPicker) -> tuple[tuple[object, ...], str | None]:
    """A GPU, with what GpuSigns has; and its driver."""
    cells = pick((*told.cells, ""))
    if len("".join(cells)) > MAX_ROW_CHARACTERS:
        cells = tuple([one[:MAX_CELL_CHARACTERS] for one in cells])
    bus, margin, *some = cells
    common, driver = parse_metric_cells(tuple(some))
    lost = told.lost and told.lost[:MAX_CELL_CHARACTERS]
    warm = find_overheating(told.temperature, parse_temperature_margin(margin) if margin else None)
    return (key, told.number, normalize_bus_id(bus), lost, *common, warm), driver


def pick_no_metric_cells(_: tuple[str, ...]) -> tuple[str, ...]:
    """The cells of a row that is beyond belief."""
    return NO_CELLS


@lru_cache(maxsize=64)
def build_metric_cell_picker(columns: tuple[str, ...]) -> CellPicker:
    """What takes the cells that we need out of a row; a fleet has a few headers."""
    return itemgetter(*find_column_positions(columns, METRIC_COLUMNS))


@lru_cache(maxsize=4096)
def parse_metric_cells(cells: tuple[str, ...]) -> tuple[tuple[object, ...], str | None]:
    """The cells of COUNTED, JUDGED and DRIVER: counts, what must be done to the GPU, what is so, and its driver."""
    counts = tuple([None if (count := parse_number(one)) is None else int(count) for one in cells[: len(COUNT_NAMES)]])
    judged, (driver, module) = cells[len(COUNT_NAMES) : -len(DRIVER_COLUMNS)], cells[-len(DRIVER_COLUMNS) :]
    well = parse_health_cells(("", "", "", *judged))
    action = parse_cell(judged[RECOVERY_ACTION_POSITION])
    recovery = "" if action is not None and action.lower() == "none" else action  # nothing must
    so = (well.is_repair_pending, well.has_repair_failed, well.is_slowed_by_heat, well.is_slowed_by_power)
    return (counts, recovery, *so), parse_cell(driver) or parse_cell(module)


@lru_cache(maxsize=16384)
def normalize_bus_id(cell: str) -> str | None:
    """Where a GPU sits; some messages write fewer zeros than the table does."""
    told = parse_cell(cell)
    return told.lower().lstrip("0:") or None if told else None


@lru_cache(maxsize=1024)
def parse_temperature_margin(cell: str) -> float | None:
    """A difference of temperatures, which may be below 0."""
    try:
        value = float(UNIT_SUFFIX.sub("", cell))
    except ValueError:
        return None
    return value if -MAX_CELSIUS < value < MAX_CELSIUS else None


def find_overheating(temperature: float | None, margin: float | None) -> tuple[int, ...] | None:
    """The temperature and the limit that it has reached; empty below it."""
    if temperature is None or temperature >= MAX_CELSIUS:
        return None
    limit = DEFAULT_LIMIT_CELSIUS if margin is None else temperature + margin
    return (int(temperature), int(limit)) if temperature >= limit else ()
