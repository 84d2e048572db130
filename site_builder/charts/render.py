"""Charts on a host's page: a day, week, month or year of each GPU, drawn, and as a table that lies over the drawing.

Each row of that table lies over its part of the drawing: pointing at it, or focus, shows its cells. So the values stand
in the page once, for those who see and for those who listen. All is set by whole slots, and stretched to its place.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from site_builder.charts import svg
from site_builder.core.formatting import gib
from site_builder.core.html import NOTHING, Html, escaped
from site_builder.core.templates import ready
from site_builder.history.time_windows import Course, GpuCourse, Grid, Range, names_in

TITLES = {
    "day": "The last 24 hours",
    "week": "The last 7 days",
    "month": "The last 31 days",
    "year": "The last 365 days",
}
# Where things are, in CSS pixels from the top, as charts.css has it too: two lines of names, and panels below them.
LANE, PANEL, LABEL, HEIGHT, AXIS = 16, 62, 18, 40, 18
NAMES = 2 * LANE
# So many tints tell people apart; each has a name beside it as well.
TINTS = 6
MOST_GPUS = 64
DASH = "–"
GIB = 1024  # MiB
# How much of a chart a letter takes: the name of a time has none where it would reach beyond the right edge.
LETTER = 0.018


class Panel(NamedTuple):
    """One value over time: its column, its name, its unit, and what stands over its column in the table."""

    column: str
    name: str
    unit: str
    head: str


GPU = (
    Panel("use", "Use", "%", "Use, mean"),
    Panel("memory", "Memory", "GiB", "Memory, mean"),
    Panel("temperature", "Temperature", "°C", "Temperature, highest"),
    Panel("power", "Power", "W", "Power, mean"),
)
HOST = (Panel("load", "Load of the CPUs", "%", "Load, mean"), Panel("own_memory", "Memory", "%", "Memory, mean"))


class Figure(NamedTuple):
    """A drawing and its table, as the template takes them."""

    id: Html
    title: Html
    model: Html
    note: Html
    height: int
    panels: int
    drawing: Html
    heads: Sequence[Html]
    rows: Html


def span(grid: Grid, gpus: Sequence[GpuCourse], own: Course, here: frozenset[str], drawn: int) -> bytes:
    """All charts of a span; `here` are the keys of the GPUs that the host has now."""
    rows = [row_head(row.slots.end - row.slots.start, row.words) for row in grid.rows]
    top = {
        "use": 100.0,
        "temperature": 100.0,
        "power": hundreds(highest(one.course.values["power"] for one in gpus)),
        "load": hundreds(highest([own.values["load"]])),
        "own_memory": 100.0,
    }
    figures = [gpu_figure(grid, one, rows, top, one.series.key in here) for one in gpus[:MOST_GPUS]]
    figures = [one._replace(id=Html(f"_{grid.span}-{place}")) for place, one in enumerate(figures)]
    if not own.is_empty:
        figures.append(host_figure(grid, own, rows, top))
    text = ready("charts.html").render(
        span=grid.span,
        title=TITLES[grid.span],
        drawn=drawn,
        sentence="",
        figures=figures,
        left_out=len(gpus[MOST_GPUS:]),
        grids={one.panels: background(grid, one.panels, one.height) for one in figures},
    )
    return text.encode("utf-8", "replace")


@lru_cache(maxsize=16)
def sentence(name: str, words: str) -> bytes:
    """What stands in the place of a span that is not drawn."""
    told = {"drawn": 0, "figures": (), "left_out": 0, "grids": {}}
    text = ready("charts.html").render(span=name, title=TITLES[name], sentence=escaped(words), **told)
    return text.encode("utf-8", "replace")


def highest(several: Iterator[Sequence[float | None]] | Sequence[Sequence[float | None]]) -> Iterator[float]:
    """The highest of each, where there is one."""
    for values in several:
        yield max((one for one in values if one is not None), default=0)


def hundreds(several: Iterator[float]) -> float:
    """Where an axis ends that has to show these."""
    return max(100.0, math.ceil(max(several, default=0) / 100) * 100.0)


def row_head(slots: int, words: str) -> str:
    """How a row of the table begins: as wide as its slots, and with its time."""
    return f"<tr class=g{slots} tabindex=-1><th scope=row>{escaped(words)}<td>"


def gpu_figure(grid: Grid, gpu: GpuCourse, rows: Sequence[str], top: dict[str, float], is_here: bool) -> Figure:
    """A GPU."""
    series, course = gpu.series, gpu.course
    total = series.memory_total or svg.ceiling(max(highest([course.values["memory"]])) / GIB) * GIB
    tops = {**top, "memory": total}
    told = [cells(course.told[panel.column], panel) for panel in GPU]
    people = ([those(several, row.slots, words) for row in grid.rows] for several, words in words_of(gpu))
    label = "?" if series.index is None else str(series.index)
    return Figure(
        NOTHING,
        escaped(f"GPU {label}"),
        escaped(series.model),
        NOTHING if is_here else Html("not on this host now"),
        NAMES + len(GPU) * PANEL + AXIS,
        len(GPU),
        Html(f"{bands(gpu, grid.span)}{shared(grid, GPU)}{panels(course, GPU, tops, NAMES)}"),
        [*(escaped(panel.head) for panel in GPU), Html("Used by"), Html("Booked by")],
        table(rows, [*told, *people]),
    )


def words_of(gpu: GpuCourse) -> Iterator[tuple[Sequence[str | None], str]]:
    """Who had it and to whom it was promised, and the word for one who is not shown."""
    yield gpu.owners, "in use"
    yield gpu.bookers, "booked"


def host_figure(grid: Grid, own: Course, rows: Sequence[str], top: dict[str, float]) -> Figure:
    """The machine itself."""
    return Figure(
        Html(f"_{grid.span}-machine"),
        Html("Machine"),
        NOTHING,
        NOTHING,
        len(HOST) * PANEL + AXIS,
        len(HOST),
        Html(f"{shared(grid, HOST)}{panels(own, HOST, top, 0)}"),
        [escaped(panel.head) for panel in HOST],
        table(rows, [cells(own.told[panel.column], panel) for panel in HOST]),
    )


def table(rows: Sequence[str], columns: Sequence[Sequence[str]]) -> Html:
    """The rows of the table; the newest is where focus comes first."""
    found = [head + "<td>".join(cells) for head, cells in zip(rows, zip(*columns))]
    found[-1] = found[-1].replace("tabindex=-1", "tabindex=0", 1)
    return Html("\n".join(found))


def cells(values: Sequence[float | None], panel: Panel) -> list[str]:
    """Values with their unit; each is written once, for most come again and again."""
    found = {one: value(one, panel) for one in set(values)}
    return [found[one] for one in values]


def value(number: float | None, panel: Panel) -> str:
    """`87 %`, `3.4 GiB`; a dash where nothing was seen."""
    if number is None:
        return DASH
    return f"{gib(number) if panel.unit == 'GiB' else f'{number:.0f}'} {panel.unit}"


def those(several: Sequence[str | None], some: Range, word: str) -> str:
    """Who is there in some slots."""
    return ", ".join(escaped(name) or word for name in names_in(several, some))


def shared(grid: Grid, several: Sequence[Panel]) -> str:
    """What charts of so many panels have in common, which is drawn once; it stands before the bands."""
    return f"<use href=#_{grid.span}-grid-{len(several)} />"


def panels(course: Course, several: Sequence[Panel], top: dict[str, float], first: int) -> Html:
    """Each value in a panel of its own, one below the other, with its name, its mean and the highest, and its axis."""
    parts = []
    for place, panel in enumerate(several):
        y, values, upper = first + place * PANEL, course.values[panel.column], top[panel.column]
        line = svg.path(svg.heights(values, HEIGHT, upper), range(len(values) + 1))
        upper_word = gib(upper) if panel.unit == "GiB" else f"{upper:.0f}"
        parts.append(
            f"<text y={y + 13}>{panel.name} <tspan class=unit>{panel.unit}</tspan></text>"
            f"<text class=sum x=100% y={y + 13}>{summary(values, panel)}</text>"
            f"<text class=axis x=-4 y={y + LABEL + 8}>{upper_word}</text>"
            f"<text class=axis x=-4 y={y + LABEL + HEIGHT}>0</text>"
            f'<svg y={y + LABEL} width=100% height={HEIGHT} viewBox="0 0 {len(values)} {HEIGHT}"'
            f' preserveAspectRatio=none><path class={panel.column} d="{line}"/>'
            "</svg>"
        )
    return Html("".join(parts))


def summary(values: Sequence[float | None], panel: Panel) -> str:
    """`mean 41 %, highest 100 %`."""
    there = [one for one in values if one is not None]
    if not there:
        return "no data"
    most = f"highest {value(max(there), panel)}"
    return most if panel.column == "temperature" else f"mean {value(sum(there) / len(there), panel)}, {most}"


def bands(gpu: GpuCourse, span: str) -> str:
    """Behind the panels, from top to bottom: a tint where somebody had it, hatching where it was booked, and gaps."""
    count, height = len(gpu.seen), NAMES + len(GPU) * PANEL
    had, booked = list(svg.runs(gpu.owners)), list(svg.runs(gpu.bookers))
    missing = [run for there, run in svg.runs(gpu.seen) if not there]
    tints: dict[str, list[svg.Run]] = {"gap": missing} if missing else {}
    for name, run in had:
        if name is not None:
            tints.setdefault(f'"who t{tint(name)}"', []).append(run)
    drawn = "".join(f'<path class={which} d="{blocks(some)}"/>' for which, some in tints.items())
    hatched = "".join(
        f"<rect x={percent(run.start, count)} width={percent(run.length, count)} y={LANE} height={height - LANE}"
        f' fill="url(#_{span}-hatch)" />'
        for there, run in svg.runs([one is not None for one in gpu.bookers])
        if there
    )
    return (
        f'<svg width=100% height={height} viewBox="0 0 {count} 1" preserveAspectRatio=none>{drawn}</svg>{hatched}'
        + "".join(label(run, count, 0, "no data", DASH) for run in missing)
        + "".join(label(run, count, 0, name or "in use") for name, run in had if name is not None)
        + "".join(label(run, count, LANE, *booked_by(name)) for name, run in booked if name is not None)
    )


def blocks(several: Sequence[svg.Run]) -> str:
    """The data of a path around some slots; a hair's breadth lies between long ones, which may be of two people."""
    wide = ((one.start, one.length - (0.8 if one.length > 4 else 0)) for one in several)
    return "".join(f"M{start} 0h{length:g}v1h-{length:g}z" for start, length in wide)


def booked_by(name: str) -> tuple[str, ...]:
    """What stands on a booking, and what where there is less room: its hatching says that it is one."""
    return (f"booked: {name}", name) if name else ("booked",)


def label(run: svg.Run, count: int, y: int, *words: str) -> str:
    """The first words that have room at the top of some slots, else the last, cut; none where two letters have none."""
    room = int(run.length / count / LETTER)
    if room < 2:
        return ""
    told = next((one for one in words if len(one) <= room), f"{words[-1][: room - 1]}…")
    at, wide = percent(run.start, count), percent(run.length, count)
    return f"<svg x={at} y={y} width={wide} height={LANE}><text x=3 y=12>{escaped(told)}</text></svg>"


def tint(name: str) -> int:
    """The same for a person on all hosts and at all times."""
    return zlib.crc32(name.encode("utf-8", "replace")) % TINTS


def percent(part: int, of: int) -> str:
    """`12.5%`."""
    return f"{part / of * 100:.2f}".rstrip("0").rstrip(".") + "%"


def background(grid: Grid, count: int, height: int) -> Html:
    """What all charts of so many panels have in common: lines, and the words for times below them."""
    bottom = height - AXIS
    first = bottom - count * PANEL
    lines = []
    for place in range(count):
        y = first + place * PANEL + LABEL
        lines.append(f"<path class=grid-line d=M0,{y}h9999 /><path class=grid-line d=M0,{y + HEIGHT // 2}h9999 />")
        lines.append(f"<path class=grid-base d=M0,{y + HEIGHT}h9999 />")
    words = []
    for slot, word in grid.ticks:
        at = percent(slot, len(grid.slots))
        words.append(f"<line class=grid-line x1={at} x2={at} y1={first} y2={height - 6} />")
        if slot / len(grid.slots) + len(word) * LETTER <= 1:
            words.append(f"<text class=grid-time x={at} dx=3 y={height - 4}>{escaped(word)}</text>")
    return Html(
        f"<svg width=100% height={bottom}>{''.join(lines)}</svg>{''.join(words)}"  # what is too long is cut
    )
