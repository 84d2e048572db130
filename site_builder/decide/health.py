"""What a GPU tells of its health beside the readings that the board shows: errors, repairs, why it runs slowly."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from site_builder.model import Gpu
from site_builder.readers.cells import available, number, places

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
LONGEST_MASK = 18
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
    cells = (*gpu.cells, "")
    return understood(tuple([cells[place][:LONGEST_CELL] for place in where(gpu.columns)]))


@lru_cache(maxsize=64)
def where(columns: tuple[str, ...]) -> tuple[int, ...]:
    """At which place each of COLUMNS stands; a fleet has a few headers."""
    return places(columns, COLUMNS)


@lru_cache(maxsize=4096)
def understood(cells: tuple[str, ...]) -> Health:
    """The cells of COLUMNS; most GPUs of a fleet tell the same."""
    fan, corrected, uncorrected, remapping, retiring, failed, action, events, throttle = cells
    mask = bits(events or throttle)
    return Health(
        number(fan),
        number(corrected),
        number(uncorrected),
        either(yes(remapping), yes(retiring)),
        yes(failed),
        None if available(action) is None else action != "None",
        None if mask is None else bool(mask & HEAT),
        None if mask is None else bool(mask & POWER),
    )


def yes(cell: str) -> bool | None:
    """Yes or no, which some drivers write as a number."""
    return {"yes": True, "1": True, "no": False, "0": False}.get(cell.lower())


def either(one: bool | None, other: bool | None) -> bool | None:
    """Whether one of the two is so, as far as they are told."""
    return other if one is None else one or bool(other)


def bits(cell: str) -> int | None:
    """A mask, as `0x0000000000000004`."""
    try:
        return int(cell, 16) if cell.startswith("0x") and len(cell) <= LONGEST_MASK else None
    except ValueError:
        return None
