"""What a GPU tells of its health beside the readings that the board shows: errors, repairs, why it runs slowly."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from site_builder.core.model import Gpu
from site_builder.snapshots.parsers.csv_values import available, number, places

COLUMNS = (
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
HEAT, POWER = 0x20 | 0x40, 0x4 | 0x80
SLOWED, BY_HARDWARE = 0x8, 0x40 | 0x80
LONGEST_MASK = 18
YES = frozenset({"yes", "1", "active", "enabled", "true"})
NO = frozenset({"no", "0", "not active", "disabled", "false"})
# What a hostile file says is not worth remembering.
LONGEST_CELL, MOST_COLUMNS = 80, 400


class Health(NamedTuple):
    """Percent of the fan, errors of memory since the driver was loaded, and what is so or not."""

    fan: float | None = None
    ecc_corrected: float | None = None
    ecc_uncorrected: float | None = None
    repair_pending: bool | None = None
    repair_failed: bool | None = None
    recovery_needed: bool | None = None
    slowed_by_heat: bool | None = None
    slowed_by_power: bool | None = None


UNTOLD = Health()


def health(gpu: Gpu) -> Health:
    """Of a GPU; one of a host that is not fresh tells nothing."""
    if not 0 < len(gpu.columns) <= MOST_COLUMNS:
        return UNTOLD
    told = of_columns(gpu.columns)((*gpu.cells, ""))
    return understood(told if len("".join(told)) <= LONGEST_CELL else tuple([one[:LONGEST_CELL] for one in told]))


@lru_cache(maxsize=64)
def of_columns(columns: tuple[str, ...]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """What takes the cells of COLUMNS out of a row; a fleet has a few headers."""
    return itemgetter(*places(columns, COLUMNS))


@lru_cache(maxsize=4096)
def understood(cells: tuple[str, ...]) -> Health:
    """The cells of COLUMNS; most GPUs of a fleet tell the same."""
    fan, corrected, uncorrected, remapping, retiring, failed, action, events, throttle = cells
    mask = first(bits(events), bits(throttle))
    unclear = mask is not None and mask & SLOWED and not mask & BY_HARDWARE  # by one of the two, but by which?
    return Health(
        number(fan),
        number(corrected),
        number(uncorrected),
        either(yes(remapping), yes(retiring)),
        yes(failed),
        None if available(action) is None else action.lower() != "none",
        None if mask is None or unclear else bool(mask & HEAT),
        None if mask is None or unclear else bool(mask & POWER),
    )


def yes(cell: str) -> bool | None:
    """Yes or no, for which tools have many words; None for anything else."""
    word = cell.lower()
    return True if word in YES else False if word in NO else None


def either(one: bool | None, other: bool | None) -> bool | None:
    """Whether one of the two is so, as far as they are told."""
    return other if one is None else one or bool(other)


def first(one: int | None, other: int | None) -> int | None:
    """The one that is told."""
    return other if one is None else one


def bits(cell: str) -> int | None:
    """A mask, as `0x0000000000000004`."""
    try:
        return int(cell, 16) if cell.startswith("0x") and len(cell) <= LONGEST_MASK else None
    except ValueError:
        return None
