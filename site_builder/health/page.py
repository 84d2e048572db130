"""The part of hosts/HOST.html on the health of its GPUs: the counts as they are now, and what happened, GPU by GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.model import BoardGpu, BoardHost
from site_builder.health import descriptions
from site_builder.health.descriptions import GRAVE, WORTH_A_LOOK
from site_builder.health.metrics import gpus_of, keys_of, signs
from site_builder.health.model import COUNTS, NAMELESS, Event, GpuSigns, Line, Lines

# Events of a GPU that are shown; of very many GPUs fewer, so that the page stays one.
MOST, ON_PAGE = 20, 400
# Grave ones that are named before all else: those that go on, and those of so many seconds.
MOST_FIRST, RECENT = 5, 7 * 86400
NAMES = {
    "corrected": "Corrected ECC errors since the driver was loaded",
    "uncorrected": "Uncorrected ECC errors since the driver was loaded",
    "corrected_ever": "Corrected ECC errors, ever",
    "uncorrected_ever": "Uncorrected ECC errors, ever",
    "rows_corrected": "Rows of memory replaced after corrected errors",
    "rows_uncorrected": "Rows of memory replaced after uncorrected errors",
    "pages_corrected": "Pages of memory retired after corrected errors",
    "pages_uncorrected": "Pages of memory retired after uncorrected errors",
}
BAD = frozenset({"uncorrected", "uncorrected_ever", "rows_uncorrected", "pages_uncorrected"})


class Cell(NamedTuple):
    """A value of the table, and whether it is a bad one."""

    text: str
    bad: bool = False


class Row(NamedTuple):
    """What happened: a word for how grave it is, empty where it is not; `host` if that was another one."""

    gpu: str
    weight: str
    when: str
    what: str
    lasted: str
    host: str


class TimeLine(NamedTuple):
    """A GPU, what happened to it, and how much more did."""

    title: str
    key: str
    rows: Sequence[Row]
    earlier: int


class Health(NamedTuple):
    """All that this part says; `quiet` are the GPUs to which nothing happened since it is looked."""

    first: Sequence[Row]
    gpus: Sequence[str]
    counts: Sequence[tuple[str, Sequence[Cell]]]
    lines: Sequence[TimeLine]
    others: int
    quiet: str
    since: str


def most(host: BoardHost) -> int:
    """How many events of each GPU there is room for."""
    return max(1, min(MOST, ON_PAGE // max(1, len(host.gpus))))


def health(host: BoardHost, lines: Lines, now: Now) -> Health | None:
    """This part of a host's page; None where there is nothing to tell, or it is not looked yet."""
    titles = {key: title(one) for key, one in zip(keys_of(host), gpus_of(host))}
    told = signs(host)
    counts = list(counts_of(told.gpus)) if told else []
    found = [time_line(one, titles, host.name, now) for one in lines.lines]
    quiet = [name for key, name in titles.items() if key not in {one.gpu for one in lines.lines}]
    if lines.first is None and not counts:
        return None
    return Health(
        list(first_of(lines, titles, host.name, now)),
        list(titles.values()),
        counts,
        found,
        lines.others,
        sum_of(quiet, len(titles)),
        "" if lines.first is None else descriptions.moment(lines.first, now.zone),
    )


def title(gpu: BoardGpu) -> str:
    """What a GPU is called."""
    return f"GPU {gpu.gpu.label}"


def sum_of(quiet: Sequence[str], count: int) -> str:
    """Several GPUs by their names."""
    if len(quiet) == count:
        return "any GPU" if count != 1 else "the GPU"
    numbers = [name.removeprefix("GPU ") for name in quiet]
    return f"GPU {' and '.join(filter(None, (', '.join(numbers[:-1]), numbers[-1])))}" if quiet else ""


def first_of(lines: Lines, titles: Mapping[str, str], host: str, now: Now) -> Iterator[Row]:
    """What is grave and goes on, or is not long ago: what goes on first, then the newest."""
    found = [
        event
        for line in lines.lines
        for event in line.events
        if event.kind in GRAVE and (event.until is None or event.until >= now.epoch - RECENT)
    ]
    found.sort(key=lambda event: (event.until is not None, -event.at))
    for event in found[:MOST_FIRST]:
        yield row(event, titles, host, now)


def time_line(line: Line, titles: Mapping[str, str], host: str, now: Now) -> TimeLine:
    """A GPU."""
    name = titles.get(line.gpu) or (gone(line) if line.gpu else "The host")
    key = "" if line.gpu.startswith(NAMELESS) else line.gpu
    rows = [row(event, titles, host, now) for event in line.events]
    return TimeLine(name, key, rows, line.total - len(line.events))


def gone(line: Line) -> str:
    """A GPU that is not in this host any more."""
    index = line.events[0].index
    return f"GPU {'?' if index is None else index}, which is gone"


def row(event: Event, titles: Mapping[str, str], host: str, now: Now) -> Row:
    """What happened."""
    weight = "grave" if event.kind in GRAVE else "look" if event.kind in WORTH_A_LOOK else ""
    name = titles.get(event.gpu) or f"GPU {'?' if event.index is None else event.index}"
    return Row(
        name,
        weight,
        descriptions.when(event, now.zone),
        descriptions.sentence(event),
        descriptions.lasted(event) or "",
        event.host if event.host != host else "",
    )


def counts_of(gpus: Sequence[GpuSigns]) -> Iterator[tuple[str, Sequence[Cell]]]:
    """What is counted, and what is so, of each GPU; what none tells is left out."""
    for place, name in enumerate(COUNTS):
        values = [one.counts[place] for one in gpus]
        if any(value is not None for value in values):
            yield NAMES[name], [count(value, name in BAD) for value in values]
    for name, judge in (("Repair of its memory", repair), ("Slowed", slowed)):
        cells = [judge(one) for one in gpus]
        if any(one.text != "–" for one in cells):
            yield name, cells


def count(value: int | None, bad: bool) -> Cell:
    """A number, as people read it."""
    return Cell("–") if value is None else Cell(f"{value:,}", bad and value > 0)


def repair(one: GpuSigns) -> Cell:
    """Whether its memory needs one."""
    if one.failed:
        return Cell("failed", bad=True)
    if one.pending:
        return Cell("waits for a reset", bad=True)
    return Cell("–" if one.failed is None and one.pending is None else "none")


def slowed(one: GpuSigns) -> Cell:
    """By what it is slowed now."""
    if one.heat is None and one.power is None:
        return Cell("–")
    by = [word for word, on in (("by heat", one.heat), ("by its power limit", one.power)) if on]
    return Cell(" and ".join(by) or "no", bool(one.heat))
