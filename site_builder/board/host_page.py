"""hosts/HOST.html: all that is known of one host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from markupsafe import Markup, escape

from site_builder.board import card, containers
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import BoardGpu, BoardHost, BoardProcess, HostFacts
from site_builder.core.templates import escaping
from site_builder.fleet.mig import wholes
from site_builder.health import render as health_render
from site_builder.health.page import Health

# The bits of clocks_event_reasons.active, in nvidia-smi's order.
REASONS = (
    (0x1, "idle"),
    (0x2, "clocks set by an application"),
    (0x4, "power limit"),
    (0x8, "hardware slowdown"),
    (0x10, "in step with other GPUs"),
    (0x20, "too warm"),
    (0x40, "too warm, by the hardware"),
    (0x80, "power brake, by the hardware"),
    (0x100, "display clocks"),
)
# What stands on the card already, or is no news.
LEFT_OUT = frozenset({"index", "uuid", "name"})
NOTHING_TOLD = frozenset({"[N/A]", "N/A", "[Not Supported]", ""})
# Stands for the charts in the template, as board.CARDS does.
CHARTS = "\x1ccharts\x1c"
# Stand between the rows and the cells of a table until it is escaped; readers leave no such signs in a text.
ROW, CELL = "\x1e", "\x1f"
# Words for keys of host.txt.
FACTS = {"kernel": "Kernel", "driver": "Driver", "collector": "Collector", "zone": "Time zone", "hidepid": "hidepid"}


class Parts(NamedTuple):
    """What was made of a host before its page: its card, its charts, and the health of its GPUs."""

    card: bytes
    charts: bytes
    well: Health | None


def page(host: BoardHost, version: str, now: Now, book: str | None, parts: Parts) -> bytes:
    """The whole page; `book` is where the desk is, seen from the board."""
    told = [one.board for one in wholes(host)]
    text = escaping("host.html").render(
        host=host,
        version=version,
        book=f"../{book}" if book and not book.startswith("/") else book,
        card=card.apart(parts.card, host.name),
        facts=list(facts_of(host.facts or HostFacts(), now)),
        interfaces=(host.facts or HostFacts()).interfaces,
        gpus=told,
        wrong=health_render.on_page(host),
        fields=table_of(fields_of(told)),
        processes=[
            *((gpu.gpu.label, process_row(one, now)) for gpu in host.gpus for one in gpu.processes),
            *((gpu.gpu.label, process_row(one, now)) for gpu in told for one in host.unplaced.get(gpu.key, ())),
        ],
        others=[("?", process_row(one, now)) for one in host.others],
        bookings=[
            *((gpu.gpu.label, card.booking(one, now)) for gpu in host.gpus for one in gpu.bookings),
            *(("?", card.booking(one, now)) for one in host.bookings),
        ],
        well=parts.well,
        built=(int(now.epoch * 1000), now.local.isoformat(" ", "seconds"), f"{now.local:%H:%M:%S}"),
        charts=CHARTS,
    )
    before, _, after = text.partition(CHARTS)
    return b"".join((before.encode(), parts.charts, after.encode()))


def facts_of(facts: HostFacts, now: Now) -> Iterator[tuple[str, str]]:
    """What host.txt tells of the machine, as name and value."""
    if facts.load:
        yield "Load", f"{' · '.join(f'{load:.2f}' for load in facts.load)} (1, 5, 15 min)"
    if facts.cpus:
        yield "CPUs", str(facts.cpus)
    if facts.memory_total is not None:
        yield (
            "Memory",
            f"{formatting.gib(facts.memory_total)} GiB, {formatting.gib(facts.memory_available)} GiB available",
        )
    if facts.uptime is not None:
        booted = datetime.fromtimestamp(now.epoch - facts.uptime, now.zone)
        yield "Up since", f"{booted:%Y-%m-%d %H:%M}"
    for key, name in FACTS.items():
        if facts.more.get(key):
            yield name, facts.more[key]
    for key, value in facts.more.items():
        if key not in FACTS:
            yield key, value


def table_of(fields: Iterable[Sequence[str]]) -> Markup:
    """The rows of a table, each the name of a field and its cells; escaped all at once, since they are hundreds."""
    text = str(escape("".join([ROW + CELL.join(one) for one in fields])))
    return Markup(text.replace(ROW, "\n<tr><th scope=row>").replace(CELL, "<td>"))  # noqa: S704 # it is escaped


def fields_of(gpus: Sequence[BoardGpu]) -> Iterator[Sequence[str]]:
    """What nvidia-smi told, field by field under its own names, of each GPU; what it told of none is left out."""
    told = [one.gpu.more for one in gpus]
    for name in dict.fromkeys(chain.from_iterable(told)):
        values = [cells.get(name, "") for cells in told]
        if name in LEFT_OUT or NOTHING_TOLD.issuperset(values):
            continue
        if name.endswith("_reasons.active"):
            values = [one if one in NOTHING_TOLD else throttling(one) for one in values]
        yield name, *["–" if one in NOTHING_TOLD else one for one in values]


def throttling(mask: str) -> str:
    """Why the clocks are not at their highest."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return mask
    known = [word for bit, word in REASONS if bits & bit]
    unknown = bits & ~sum(bit for bit, _ in REASONS)
    return ", ".join([*known, hex(unknown)] if unknown else known) or "none"


def process_row(one: BoardProcess, now: Now) -> tuple[str, str, str, str, str, str, tuple[int, ...]]:
    """A process with its full command: pid, user, memory, since, container, command, children that outlived it."""
    since = "" if one.started is None else datetime.fromtimestamp(one.started, now.zone).isoformat(" ", "minutes")
    size = "" if one.used_memory is None else formatting.size(one.used_memory)
    pid = "" if one.pid is None else str(one.pid)
    user = f"{one.user or ''} (as {one.runs_as})" if one.runs_as else one.user or ""
    return pid, user, size, since, containers.in_full(one), one.command or "", one.children
