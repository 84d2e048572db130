"""How signs of health, and what they are compared with, are kept: as JSON, in history.db and with the cards."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from site_builder.core.model import Number
from site_builder.health.model import COUNTS, SPANS, Event, GpuSigns, GpuState, HostSigns, HostState, Value
from site_builder.history.block_format import Damaged

WRONG = (ValueError, TypeError, AttributeError, IndexError, KeyError)


def pack_signs(driver: str | None, gpus: Sequence[tuple[object, ...]], whole: bool = True) -> bytes:
    """The signs of a host, each row with what GpuSigns has; the same signs are the same bytes."""
    return orjson.dumps([driver, gpus, whole], default=list)


def unpack_signs(data: bytes) -> HostSigns:
    """The same, read back."""
    try:
        driver, gpus, whole = orjson.loads(data)
        return HostSigns(driver, tuple(gpu_signs(*one) for one in gpus), whole)
    except WRONG as error:
        raise Damaged(data) from error


def gpu_signs(*cells: object) -> GpuSigns:
    """A GPU's; lists are tuples again."""
    return GpuSigns(*(tuple(one) if isinstance(one, list) else one for one in cells))  # type: ignore[arg-type]


def pack_state(state: HostState) -> bytes:
    """What the next look at a host is compared with."""
    return orjson.dumps(state, default=list)


def unpack_state(data: bytes) -> HostState:
    """The same, read back."""
    try:
        at, taken, number, driver, gpus = orjson.loads(data)
        found = {str(key): gpu_state(*one) for key, one in gpus.items()}
        return HostState(int(at), taken and float(taken), int(number), driver and str(driver), found)
    except WRONG as error:
        raise Damaged(data) from error


def gpu_state(index: Number, bus: str | None, counts: list[int | None], last: dict[str, list[object]]) -> GpuState:
    """A GPU's; an error where it is not what was written."""
    if len(counts) != len(COUNTS) or any(one is not None and not isinstance(one, int) for one in counts):
        raise ValueError(counts)
    return GpuState(index, bus, tuple(counts), {kind: last_event(kind, one) for kind, one in last.items()})


def last_event(kind: str, cells: list[object]) -> Event:
    """An event that may go on; an error where it cannot be compared with."""
    event = Event(*cells)._replace(value=tuple(cells[5]))  # type: ignore[arg-type]
    times = (event.number, event.at, 0 if event.until is None else event.until)
    counted = kind not in SPANS or kind == "power"
    if event.kind != kind or not all(isinstance(one, int) for one in (*times, *event.value[: 2 * counted])):
        raise ValueError(cells)
    return event


def pack_value(value: Value) -> bytes:
    """What there is to say of an event."""
    return orjson.dumps(value)


def unpack_value(data: bytes) -> Value:
    """The same, read back; nothing where it is damaged."""
    try:
        return tuple(orjson.loads(data))
    except (ValueError, TypeError):
        return ()
