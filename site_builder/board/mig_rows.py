"""A GPU in MIG mode on a card: a row of its own, and below it those of its instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from site_builder.client.model import VISIBLE
from site_builder.client.search import counted
from site_builder.core.html import NOTHING, Html, escaped
from site_builder.core.model import BoardBooking, BoardGpu, BoardHost, Gpu
from site_builder.fleet.mig import Whole, wholes

if TYPE_CHECKING:
    from site_builder.board.card import GpuRow

# Stands for the state of a GPU that is cut: its instances have states of their own.
CUT = "mig"


def under(host: BoardHost, rows: Sequence[GpuRow], make: Callable[[BoardGpu], GpuRow]) -> list[GpuRow]:
    """The rows of a host that has such GPUs; `rows` are those of all that it tells."""
    made = {id(gpu): row for gpu, row in zip(host.gpus, rows)}
    found: list[GpuRow] = []
    for whole in wholes(host):
        if not whole.instances:
            found.append(made[id(whole.board)]._replace(part=named(whole.board)))
            continue
        found.append(head(whole, host, make))
        found += (part(made[id(one)], one) for one in whole.instances)
    return found


def head(whole: Whole, host: BoardHost, make: Callable[[BoardGpu], GpuRow]) -> GpuRow:
    """The row of the GPU: its readings, how many instances are free, and what promises all of them."""
    board = whole.board
    bookings = tuple(once(whole.instances[0].bookings))
    row = make(board._replace(processes=host.unplaced.get(board.gpu.key, ()), bookings=bookings))
    note = escaped(f"{board.model}: {board.reason}")
    return row._replace(
        state=Html(CUT),
        word=Html("MIG"),
        why=NOTHING,
        lost=NOTHING,
        use_bar=NOTHING,
        who_note=note,
        booking_note=NOTHING,
    )


def once(several: Sequence[BoardBooking]) -> Iterator[BoardBooking]:
    """The bookings of a whole GPU; whether they are kept is to be said of each instance."""
    for one in several:
        if one.whole_gpu:
            yield one._replace(unused_since=None, used_by=None, used_by_since=None, mean_use=None, whole_gpu=False)


def part(row: GpuRow, one: BoardGpu) -> GpuRow:
    """The row of an instance; its use is not told, and has no meter; what is wrong with its GPU stands there."""
    of = one.gpu.parent.label if one.gpu.parent else ""
    marked = Html(f' data-of="{escaped(of)}"{named(one)}')
    return row._replace(use_bar=NOTHING, part=marked, profile=escaped(one.gpu.profile), problems=NOTHING)


def named(one: BoardGpu) -> Html:
    """What CUDA calls one that can be had: numbers are not what they seem where a GPU is cut."""
    if one.avoid:  # the row of an instance does not say so: its GPU's does
        return NOTHING
    if one.gpu.vendor != "nvidia":
        return to_see(one.gpu) if one.state == "free" else NOTHING
    if one.state != "free" or not one.gpu.uuid:
        return NOTHING
    return Html(f' data-cuda="{escaped(one.gpu.uuid)}"')


def to_see(gpu: Gpu) -> Html:
    """What one types to see a GPU of another maker than NVIDIA, by the number that its programs know."""
    name = VISIBLE.get(gpu.vendor)
    return Html(f' data-see="{name}={gpu.index}"') if name and gpu.index is not None else NOTHING


def models(host: BoardHost) -> Iterator[str]:
    """What each GPU of a host is, with what it is cut into: `H100 80 GB (3g.40gb, 2 × 1g.10gb)`."""
    for board, several in wholes(host):
        if board.gpu.name:
            profiles = [one.gpu.profile or "MIG" for one in several]
            yield f"{board.model} ({counted(profiles, alone='')})" if profiles else board.model
