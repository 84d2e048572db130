"""What tells of the health of a host's GPUs, as small as it can be compared from one minute to the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter

from site_builder.core.model import BoardGpu, BoardHost, Gpu
from site_builder.fleet.mig import wholes
from site_builder.health import readings
from site_builder.health.format import pack_signs, unpack_signs
from site_builder.health.model import COUNTS, HostSigns, Signed
from site_builder.health.readings import LONGEST_CELL, MOST_COLUMNS
from site_builder.history import sampling
from site_builder.snapshots.parse_result import ODD_ROW
from site_builder.snapshots.parsers.csv_values import UNIT, available, number, places

COUNTED = (
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
JUDGED = readings.COLUMNS[3:]
# Which differ from GPU to GPU, or from moment to moment.
OWN = ("pci.bus_id", "temperature.gpu.tlimit")
DRIVER = ("driver_version", "kmd_version")
ALL = (*OWN, *COUNTED, *JUDGED, *DRIVER)
EMPTY = ("",) * len(ALL)
ACTION = JUDGED.index("gpu_recovery_action")
# Where the driver does not tell how far it is to the limit of the GPU's maker, in °C.
HOT = 90
# A temperature further off than this is no temperature.
WILD = 500
LONGEST_KEY = 100
# The cells of a row in all, of which most are a number or a word.
LONGEST_ROW = 300
Pick = Callable[["tuple[str, ...]"], "tuple[str, ...]"]


def signed(board: BoardHost, taken: float | None) -> Signed | None:
    """The signs of a host that is fresh, told by a snapshot of that time; of any other nothing is known."""
    if board.state != "fresh":
        return None
    rows = []
    columns: tuple[str, ...] = ()
    pick: Pick = nothing
    driver = None
    for one, key in zip(gpus_of(board), keys_of(board)):
        if one.gpu.columns is not columns:  # the GPUs of a host have one header
            columns = one.gpu.columns
            pick = of_columns(columns) if 0 < len(columns) <= MOST_COLUMNS else nothing
        made, told = row(one.gpu, key, pick)
        rows.append(made)
        driver = driver or told
    whole = not any(one.what.startswith(ODD_ROW) for one in board.problems)
    return Signed(pack_signs(driver, rows, whole), taken)


def keys_of(board: BoardHost) -> list[str]:
    """What names each GPU of a host, in an event."""
    return [key[:LONGEST_KEY] for key in sampling.keys_of(gpus_of(board))]


def gpus_of(board: BoardHost) -> list[BoardGpu]:
    """Its GPUs as they sit in it: the health of instances is that of their GPU."""
    return [one.board for one in wholes(board)]


def signs(board: BoardHost) -> HostSigns | None:
    """The same, to look at."""
    found = signed(board, None)
    return unpack_signs(found.signs) if found else None


def row(told: Gpu, key: str, pick: Pick) -> tuple[tuple[object, ...], str | None]:
    """A GPU, with what GpuSigns has; and its driver."""
    cells = pick((*told.cells, ""))
    if len("".join(cells)) > LONGEST_ROW:
        cells = tuple([one[:LONGEST_CELL] for one in cells])
    bus, margin, *some = cells
    common, driver = understood(tuple(some))
    lost = told.lost and told.lost[:LONGEST_CELL]
    warm = hot(told.temperature, degrees(margin) if margin else None)
    return (key, told.number, bus_of(bus), lost, *common, warm), driver


def nothing(_: tuple[str, ...]) -> tuple[str, ...]:
    """The cells of a row that is beyond belief."""
    return EMPTY


@lru_cache(maxsize=64)
def of_columns(columns: tuple[str, ...]) -> Pick:
    """What takes the cells that we need out of a row; a fleet has a few headers."""
    return itemgetter(*places(columns, ALL))


@lru_cache(maxsize=4096)
def understood(cells: tuple[str, ...]) -> tuple[tuple[object, ...], str | None]:
    """The cells of COUNTED, JUDGED and DRIVER: counts, what must be done to the GPU, what is so, and its driver."""
    counts = tuple([None if (count := number(one)) is None else int(count) for one in cells[: len(COUNTS)]])
    judged, (driver, module) = cells[len(COUNTS) : -len(DRIVER)], cells[-len(DRIVER) :]
    well = readings.understood(("", "", "", *judged))
    action = available(judged[ACTION])
    recovery = "" if action is not None and action.lower() == "none" else action  # nothing must
    so = (well.repair_pending, well.repair_failed, well.slowed_by_heat, well.slowed_by_power)
    return (counts, recovery, *so), available(driver) or available(module)


@lru_cache(maxsize=16384)
def bus_of(cell: str) -> str | None:
    """Where a GPU sits; some messages write fewer zeros than the table does."""
    told = available(cell)
    return told.lower().lstrip("0:") or None if told else None


@lru_cache(maxsize=1024)
def degrees(cell: str) -> float | None:
    """A difference of temperatures, which may be below 0."""
    try:
        value = float(UNIT.sub("", cell))
    except ValueError:
        return None
    return value if -WILD < value < WILD else None


def hot(temperature: float | None, margin: float | None) -> tuple[int, ...] | None:
    """The temperature and the limit that it has reached; empty below it."""
    if temperature is None or temperature >= WILD:
        return None
    limit = HOT if margin is None else temperature + margin
    return (int(temperature), int(limit)) if temperature >= limit else ()
