"""Read the health counters of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from site_builder.core.model import Gpu, HostStatus
from site_builder.health.model import HostHealthMetrics, PackedHealthMetrics
from site_builder.health.store import pack_health_metrics, unpack_health_metrics
from site_builder.history import model as history_model
from site_builder.snapshots.parsers.values import UNIT_SUFFIX, find_column_positions, parse_cell, parse_number

FAN_COLUMN = "fan.speed"
# The counts of health.model.COUNT_NAMES.
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
# The columns of StateCells, in its order.
STATE_COLUMNS = (
    "remapped_rows.pending",
    "retired_pages.pending",
    "remapped_rows.failure",
    "gpu_recovery_action",
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
)
READING_COLUMNS = (FAN_COLUMN, *COUNT_COLUMNS[:2], *STATE_COLUMNS)
# These differ from GPU to GPU, or from moment to moment.
OWN_COLUMNS = ("pci.bus_id", "temperature.gpu.tlimit")
DRIVER_COLUMNS = ("driver_version", "kmd_version")
METRIC_COLUMNS = (*OWN_COLUMNS, *COUNT_COLUMNS, *STATE_COLUMNS, *DRIVER_COLUMNS)
# Bits of clocks_event_reasons.active for heat, and for power: the limit, and the brake of the hardware.
HEAT_BITS, POWER_BITS = 0x20 | 0x40, 0x4 | 0x80
SLOWDOWN_BIT, HARDWARE_BITS = 0x8, 0x40 | 0x80
MAX_MASK_CHARACTERS = 18
TRUE_WORDS = frozenset({"yes", "1", "active", "enabled", "true"})
FALSE_WORDS = frozenset({"no", "0", "not active", "disabled", "false"})
# Longer cells are cut, and no cells are taken from more columns: a hostile file must not fill the caches.
MAX_CELL_CHARACTERS, MAX_COLUMNS = 80, 400
MAX_ROW_CHARACTERS = 300
MAX_KEY_CHARACTERS = 100
# In °C, where the driver does not report the distance to the vendor's limit.
DEFAULT_LIMIT_CELSIUS = 90
# Anything beyond is no temperature.
MAX_CELSIUS = 500


class HealthReadings(NamedTuple):
    """Fan speed, memory errors since the driver was loaded, and the health flags of a GPU."""

    fan_percent: float | None = None
    ecc_corrected: float | None = None
    ecc_uncorrected: float | None = None
    is_repair_pending: bool | None = None
    has_repair_failed: bool | None = None
    is_recovery_needed: bool | None = None
    is_slowed_by_heat: bool | None = None
    is_slowed_by_power: bool | None = None


class StateCells(NamedTuple):
    """The cells of STATE_COLUMNS."""

    remapping_pending: str
    retirement_pending: str
    remapping_failure: str
    recovery_action: str
    clock_event_reasons: str
    clock_throttle_reasons: str


class StateFlags(NamedTuple):
    """The meaning of StateCells."""

    is_repair_pending: bool | None
    has_repair_failed: bool | None
    recovery_action: str | None  # empty where nothing is to be done
    is_slowed_by_heat: bool | None
    is_slowed_by_power: bool | None


class CommonMetrics(NamedTuple):
    """The metrics that most GPUs of a fleet share."""

    counts: tuple[int | None, ...]
    flags: StateFlags
    driver: str | None


class CellPicker:
    """Picks the cells of some columns; cells that are longer than `max_characters` in all are cut."""

    def __init__(self, wanted: tuple[str, ...], max_characters: int) -> None:
        self.wanted, self.max_characters = wanted, max_characters
        self.no_cells = ("",) * len(wanted)
        # nearly every GPU has the same header object as the one before
        self.latest: tuple[tuple[str, ...], Callable[[tuple[str, ...]], tuple[str, ...]]] = ((), lambda _: ())

    def pick(self, gpu: Gpu) -> tuple[str, ...]:
        columns = gpu.columns
        if not columns or len(columns) > MAX_COLUMNS:
            return self.no_cells
        latest_columns, get_cells = self.latest
        if columns is not latest_columns:
            get_cells = itemgetter(*find_column_positions(columns, self.wanted))
            self.latest = columns, get_cells
        cells = get_cells((*gpu.cells, ""))
        if len("".join(cells)) > self.max_characters:
            return tuple([cell[:MAX_CELL_CHARACTERS] for cell in cells])
        return cells


READING_PICKER = CellPicker(READING_COLUMNS, MAX_CELL_CHARACTERS)
METRIC_PICKER = CellPicker(METRIC_COLUMNS, MAX_ROW_CHARACTERS)


def parse_health_readings(gpu: Gpu) -> HealthReadings:
    """Parse the readings of a GPU; one of a host that is not fresh has none."""
    return parse_reading_cells(READING_PICKER.pick(gpu))


# Most GPUs of a fleet report the same.
@lru_cache(maxsize=4096)
def parse_reading_cells(cells: tuple[str, ...]) -> HealthReadings:
    fan, corrected, uncorrected = cells[: -len(STATE_COLUMNS)]
    flags = parse_state_cells(StateCells._make(cells[-len(STATE_COLUMNS) :]))
    return HealthReadings(
        fan_percent=parse_number(fan),
        ecc_corrected=parse_number(corrected),
        ecc_uncorrected=parse_number(uncorrected),
        is_repair_pending=flags.is_repair_pending,
        has_repair_failed=flags.has_repair_failed,
        is_recovery_needed=None if flags.recovery_action is None else bool(flags.recovery_action),
        is_slowed_by_heat=flags.is_slowed_by_heat,
        is_slowed_by_power=flags.is_slowed_by_power,
    )


def parse_state_cells(cells: StateCells) -> StateFlags:
    mask = parse_clock_reasons(cells.clock_event_reasons, cells.clock_throttle_reasons)
    if mask is not None and mask & SLOWDOWN_BIT and not mask & HARDWARE_BITS:
        mask = None  # by heat or by power, but by which?
    action = parse_cell(cells.recovery_action)
    return StateFlags(
        is_repair_pending=parse_pending_repair(cells.remapping_pending, cells.retirement_pending),
        has_repair_failed=parse_boolean_cell(cells.remapping_failure),
        recovery_action="" if action is not None and action.lower() == "none" else action,
        is_slowed_by_heat=None if mask is None else bool(mask & HEAT_BITS),
        is_slowed_by_power=None if mask is None else bool(mask & POWER_BITS),
    )


def parse_boolean_cell(cell: str) -> bool | None:
    """Return yes or no, for which tools have many words; None for anything else."""
    word = cell.lower()
    return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None


def parse_pending_repair(remapping: str, retirement: str) -> bool | None:
    """Return True if one of the two kinds of memory repair is pending; None where neither is reported."""
    is_remapping, is_retiring = parse_boolean_cell(remapping), parse_boolean_cell(retirement)
    return is_retiring if is_remapping is None else is_remapping or bool(is_retiring)


def parse_clock_reasons(event_reasons: str, throttle_reasons: str) -> int | None:
    """Return the mask `0x0000000000000004`, under its new or its old name."""
    for cell in (event_reasons, throttle_reasons):
        if cell.startswith("0x") and len(cell) <= MAX_MASK_CHARACTERS:
            try:
                return int(cell, 16)
            except ValueError:
                continue
    return None


def pack_host_health(host: HostStatus, taken_at: float | None) -> PackedHealthMetrics | None:
    """Return the metrics of a fresh host, from a snapshot of that time; None for any other."""
    if host.state != "fresh":
        return None
    rows: list[tuple[object, ...]] = []
    driver = None
    for gpu, key in zip(list_physical_gpus(host), list_gpu_keys(host)):
        bus_id, margin, *common_cells = METRIC_PICKER.pick(gpu)
        common = parse_common_metrics(tuple(common_cells))
        lost = gpu.lost and gpu.lost[:MAX_CELL_CHARACTERS]
        overheating = find_overheating(gpu.temperature, parse_temperature_margin(margin) if margin else None)
        flags = common.flags
        # in the order of GpuHealthMetrics, which would take longer to build
        row = (
            key,
            gpu.number,
            normalize_bus_id(bus_id),
            lost,
            common.counts,
            flags.recovery_action,
            flags.is_repair_pending,
            flags.has_repair_failed,
            flags.is_slowed_by_heat,
            flags.is_slowed_by_power,
            overheating,
        )
        rows.append(row)
        driver = driver or common.driver
    return PackedHealthMetrics(pack_health_metrics(driver, rows, not host.has_missing_gpu), taken_at)


@lru_cache(maxsize=4096)
def parse_common_metrics(cells: tuple[str, ...]) -> CommonMetrics:
    """Parse the cells of COUNT_COLUMNS, STATE_COLUMNS and DRIVER_COLUMNS."""
    count_cells, rest = cells[: len(COUNT_COLUMNS)], cells[len(COUNT_COLUMNS) :]
    counts = tuple([None if (count := parse_number(cell)) is None else int(count) for cell in count_cells])
    drivers = map(parse_cell, rest[len(STATE_COLUMNS) :])
    flags = parse_state_cells(StateCells._make(rest[: len(STATE_COLUMNS)]))
    return CommonMetrics(counts, flags, next(filter(None, drivers), None))


def build_host_health_metrics(host: HostStatus) -> HostHealthMetrics | None:
    metrics = pack_host_health(host, None)
    return unpack_health_metrics(metrics.packed) if metrics else None


def list_gpu_keys(host: HostStatus) -> list[str]:
    """Return what identifies each physical GPU of a host in an event."""
    return [key[:MAX_KEY_CHARACTERS] for key in history_model.list_host_gpu_keys(list_physical_gpus(host))]


def list_physical_gpus(host: HostStatus) -> list[Gpu]:
    """Return the physical GPUs of a host: one in MIG mode once, in place of its instances."""
    gpus = [status.gpu for status in host.gpus]
    if not any(gpu.parent for gpu in gpus):
        return gpus
    groups: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.parent or gpu).key, []).append(gpu)
    return [gpu for group in groups.values() for gpu in ([group[0].parent] if group[0].parent else group)]


@lru_cache(maxsize=16384)
def normalize_bus_id(cell: str) -> str | None:
    """Return a bus id without leading zeros: some messages write fewer of them than the table does."""
    bus_id = parse_cell(cell)
    return bus_id.lower().lstrip("0:") or None if bus_id else None


@lru_cache(maxsize=1024)
def parse_temperature_margin(cell: str) -> float | None:
    """Parse a difference of temperatures, which may be below 0."""
    try:
        value = float(UNIT_SUFFIX.sub("", cell))
    except ValueError:
        return None
    return value if -MAX_CELSIUS < value < MAX_CELSIUS else None


def find_overheating(temperature: float | None, margin: float | None) -> tuple[int, ...] | None:
    """Return the temperature and the limit that it has reached; empty below the limit."""
    if temperature is None or temperature >= MAX_CELSIUS:
        return None
    limit = DEFAULT_LIMIT_CELSIUS if margin is None else temperature + margin
    return (int(temperature), int(limit)) if temperature >= limit else ()
