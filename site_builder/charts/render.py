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
from site_builder.charts.time_windows import BucketRange, ChartSeries, GpuChartSeries, TimeGrid, list_range_names
from site_builder.core.formatting import format_gib
from site_builder.core.html import EMPTY_HTML, Html, escape_html, load_raw_template

WINDOW_TITLES = {
    "day": "The last 24 hours",
    "week": "The last 7 days",
    "month": "The last 31 days",
    "year": "The last 365 days",
}
# Where things are, in CSS pixels from the top, as charts.css has it too: two lines of names, and panels below them.
LANE_HEIGHT, PANEL_HEIGHT, LABEL_HEIGHT, PLOT_HEIGHT, AXIS_HEIGHT = 16, 62, 18, 40, 18
NAMES_HEIGHT = 2 * LANE_HEIGHT
# So many tints tell people apart; each has a name beside it as well.
TINT_COUNT = 6
MAX_GPUS = 64
NO_VALUE_MARK = "–"
MIB_PER_GIB = 1024  # MiB
# How much of a chart a letter takes: the name of a time has none where it would reach beyond the right edge.
LETTER_WIDTH = 0.018


class ChartPanel(NamedTuple):
    """One value over time: its column, its name, its unit, and what stands over its column in the table."""

    column: str
    name: str
    unit: str
    head: str


GPU_PANELS = (
    ChartPanel("use", "Use", "%", "Use, mean"),
    ChartPanel("memory", "Memory", "GiB", "Memory, mean"),
    ChartPanel("temperature", "Temperature", "°C", "Temperature, highest"),
    ChartPanel("power", "Power", "W", "Power, mean"),
)
HOST_PANELS = (
    ChartPanel("load", "Load of the CPUs", "%", "Load, mean"),
    ChartPanel("own_memory", "Memory", "%", "Memory, mean"),
)


class ChartFigure(NamedTuple):
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


def render_charts(
    grid: TimeGrid, gpus: Sequence[GpuChartSeries], own: ChartSeries, here: frozenset[str], drawn: int
) -> bytes:
    """All charts of a span; `here` are the keys of the GPUs that the host has now."""
    rows = [render_row_start(row.buckets.end - row.buckets.start, row.label) for row in grid.rows]
    top = {
        "use": 100.0,
        "temperature": 100.0,
        "power": round_up_to_hundreds(find_highest_values(one.chart_series.values["power"] for one in gpus)),
        "load": round_up_to_hundreds(find_highest_values([own.values["load"]])),
        "own_memory": 100.0,
    }
    figures = [build_gpu_figure(grid, one, rows, top, one.series.key in here) for one in gpus[:MAX_GPUS]]
    figures = [one._replace(id=Html(f"_{grid.window}-{place}")) for place, one in enumerate(figures)]
    if not own.is_empty:
        figures.append(build_host_figure(grid, own, rows, top))
    text = load_raw_template("charts.html").render(
        span=grid.window,
        title=WINDOW_TITLES[grid.window],
        drawn=drawn,
        sentence="",
        figures=figures,
        left_out=len(gpus[MAX_GPUS:]),
        grids={one.panels: render_grid(grid, one.panels, one.height) for one in figures},
    )
    return text.encode("utf-8", "replace")


@lru_cache(maxsize=16)
def render_charts_message(name: str, words: str) -> bytes:
    """What stands in the place of a span that is not drawn."""
    told = {"drawn": 0, "figures": (), "left_out": 0, "grids": {}}
    text = load_raw_template("charts.html").render(
        span=name, title=WINDOW_TITLES[name], sentence=escape_html(words), **told
    )
    return text.encode("utf-8", "replace")


def find_highest_values(
    several: Iterator[Sequence[float | None]] | Sequence[Sequence[float | None]],
) -> Iterator[float]:
    """The highest of each, where there is one."""
    for values in several:
        yield max((one for one in values if one is not None), default=0)


def round_up_to_hundreds(several: Iterator[float]) -> float:
    """Where an axis ends that has to show these."""
    return max(100.0, math.ceil(max(several, default=0) / 100) * 100.0)


def render_row_start(slots: int, words: str) -> str:
    """How a row of the table begins: as wide as its slots, and with its time."""
    return f"<tr class=g{slots} tabindex=-1><th scope=row>{escape_html(words)}<td>"


def build_gpu_figure(
    grid: TimeGrid, gpu: GpuChartSeries, rows: Sequence[str], top: dict[str, float], is_here: bool
) -> ChartFigure:
    """A GPU."""
    series, course = gpu.series, gpu.chart_series
    total = (
        series.memory_total
        or svg.round_up_axis(max(find_highest_values([course.values["memory"]])) / MIB_PER_GIB) * MIB_PER_GIB
    )
    tops = {**top, "memory": total}
    told = [format_chart_values(course.row_values[panel.column], panel) for panel in GPU_PANELS]
    people = (
        [format_range_names(several, row.buckets, words) for row in grid.rows]
        for several, words in list_people_columns(gpu)
    )
    label = "?" if series.index is None else str(series.index)
    return ChartFigure(
        id=EMPTY_HTML,
        title=escape_html(f"GPU {label}"),
        model=escape_html(series.model),
        note=EMPTY_HTML if is_here else Html("not on this host now"),
        height=NAMES_HEIGHT + len(GPU_PANELS) * PANEL_HEIGHT + AXIS_HEIGHT,
        panels=len(GPU_PANELS),
        drawing=Html(
            f"{render_bands(gpu, grid.window)}{render_grid_reference(grid, GPU_PANELS)}{render_panels(course, GPU_PANELS, tops, NAMES_HEIGHT)}"
        ),
        heads=[*(escape_html(panel.head) for panel in GPU_PANELS), Html("Used by"), Html("Booked by")],
        rows=render_figure_rows(rows, [*told, *people]),
    )


def list_people_columns(gpu: GpuChartSeries) -> Iterator[tuple[Sequence[str | None], str]]:
    """Who had it and to whom it was promised, and the word for one who is not shown."""
    yield gpu.owners, "in use"
    yield gpu.bookers, "booked"


def build_host_figure(grid: TimeGrid, own: ChartSeries, rows: Sequence[str], top: dict[str, float]) -> ChartFigure:
    """The machine itself."""
    return ChartFigure(
        id=Html(f"_{grid.window}-machine"),
        title=Html("Machine"),
        model=EMPTY_HTML,
        note=EMPTY_HTML,
        height=len(HOST_PANELS) * PANEL_HEIGHT + AXIS_HEIGHT,
        panels=len(HOST_PANELS),
        drawing=Html(f"{render_grid_reference(grid, HOST_PANELS)}{render_panels(own, HOST_PANELS, top, 0)}"),
        heads=[escape_html(panel.head) for panel in HOST_PANELS],
        rows=render_figure_rows(
            rows, [format_chart_values(own.row_values[panel.column], panel) for panel in HOST_PANELS]
        ),
    )


def render_figure_rows(rows: Sequence[str], columns: Sequence[Sequence[str]]) -> Html:
    """The rows of the table; the newest is where focus comes first."""
    found = [head + "<td>".join(cells) for head, cells in zip(rows, zip(*columns))]
    found[-1] = found[-1].replace("tabindex=-1", "tabindex=0", 1)
    return Html("\n".join(found))


def format_chart_values(values: Sequence[float | None], panel: ChartPanel) -> list[str]:
    """Values with their unit; each is written once, for most come again and again."""
    found = {one: format_chart_value(one, panel) for one in set(values)}
    return [found[one] for one in values]


def format_chart_value(number: float | None, panel: ChartPanel) -> str:
    """`87 %`, `3.4 GiB`; a dash where nothing was seen."""
    if number is None:
        return NO_VALUE_MARK
    return f"{format_gib(number) if panel.unit == 'GiB' else f'{number:.0f}'} {panel.unit}"


def format_range_names(several: Sequence[str | None], some: BucketRange, word: str) -> str:
    """Who is there in some slots."""
    return ", ".join(escape_html(name) or word for name in list_range_names(several, some))


def render_grid_reference(grid: TimeGrid, several: Sequence[ChartPanel]) -> str:
    """What charts of so many panels have in common, which is drawn once; it stands before the bands."""
    return f"<use href=#_{grid.window}-grid-{len(several)} />"


def render_panels(course: ChartSeries, several: Sequence[ChartPanel], top: dict[str, float], first: int) -> Html:
    """Each value in a panel of its own, one below the other, with its name, its mean and the highest, and its axis."""
    parts = []
    for place, panel in enumerate(several):
        y, values, upper = first + place * PANEL_HEIGHT, course.values[panel.column], top[panel.column]
        line = svg.build_path(svg.compute_heights(values, PLOT_HEIGHT, upper), range(len(values) + 1))
        upper_word = format_gib(upper) if panel.unit == "GiB" else f"{upper:.0f}"
        parts.append(
            f"<text y={y + 13}>{panel.name} <tspan class=unit>{panel.unit}</tspan></text>"
            f"<text class=sum x=100% y={y + 13}>{summarize_values(values, panel)}</text>"
            f"<text class=axis x=-4 y={y + LABEL_HEIGHT + 8}>{upper_word}</text>"
            f"<text class=axis x=-4 y={y + LABEL_HEIGHT + PLOT_HEIGHT}>0</text>"
            f'<svg y={y + LABEL_HEIGHT} width=100% height={PLOT_HEIGHT} viewBox="0 0 {len(values)} {PLOT_HEIGHT}"'
            f' preserveAspectRatio=none><path class={panel.column} d="{line}"/>'
            "</svg>"
        )
    return Html("".join(parts))


def summarize_values(values: Sequence[float | None], panel: ChartPanel) -> str:
    """`mean 41 %, highest 100 %`."""
    there = [one for one in values if one is not None]
    if not there:
        return "no data"
    most = f"highest {format_chart_value(max(there), panel)}"
    return (
        most if panel.column == "temperature" else f"mean {format_chart_value(sum(there) / len(there), panel)}, {most}"
    )


def render_bands(gpu: GpuChartSeries, span: str) -> str:
    """Behind the panels, from top to bottom: a tint where somebody had it, hatching where it was booked, and gaps."""
    count, height = len(gpu.is_seen), NAMES_HEIGHT + len(GPU_PANELS) * PANEL_HEIGHT
    had, booked = list(svg.group_runs(gpu.owners)), list(svg.group_runs(gpu.bookers))
    missing = [run for there, run in svg.group_runs(gpu.is_seen) if not there]
    tints: dict[str, list[svg.BucketRun]] = {"gap": missing} if missing else {}
    for name, run in had:
        if name is not None:
            tints.setdefault(f'"who t{choose_tint(name)}"', []).append(run)
    drawn = "".join(f'<path class={which} d="{build_blocks_path(some)}"/>' for which, some in tints.items())
    hatched = "".join(
        f"<rect x={format_svg_percent(run.start, count)} width={format_svg_percent(run.length, count)} y={LANE_HEIGHT} height={height - LANE_HEIGHT}"
        f' fill="url(#_{span}-hatch)" />'
        for there, run in svg.group_runs([one is not None for one in gpu.bookers])
        if there
    )
    return (
        f'<svg width=100% height={height} viewBox="0 0 {count} 1" preserveAspectRatio=none>{drawn}</svg>{hatched}'
        + "".join(render_band_label(run, count, 0, "no data", NO_VALUE_MARK) for run in missing)
        + "".join(render_band_label(run, count, 0, name or "in use") for name, run in had if name is not None)
        + "".join(
            render_band_label(run, count, LANE_HEIGHT, *list_booking_labels(name))
            for name, run in booked
            if name is not None
        )
    )


def build_blocks_path(several: Sequence[svg.BucketRun]) -> str:
    """The data of a path around some slots; a hair's breadth lies between long ones, which may be of two people."""
    wide = ((one.start, one.length - (0.8 if one.length > 4 else 0)) for one in several)
    return "".join(f"M{start} 0h{length:g}v1h-{length:g}z" for start, length in wide)


def list_booking_labels(name: str) -> tuple[str, ...]:
    """What stands on a booking, and what where there is less room: its hatching says that it is one."""
    return (f"booked: {name}", name) if name else ("booked",)


def render_band_label(run: svg.BucketRun, count: int, y: int, *words: str) -> str:
    """The first words that have room at the top of some slots, else the last, cut; none where two letters have none."""
    room = int(run.length / count / LETTER_WIDTH)
    if room < 2:
        return ""
    told = next((one for one in words if len(one) <= room), f"{words[-1][: room - 1]}…")
    at, wide = format_svg_percent(run.start, count), format_svg_percent(run.length, count)
    return f"<svg x={at} y={y} width={wide} height={LANE_HEIGHT}><text x=3 y=12>{escape_html(told)}</text></svg>"


def choose_tint(name: str) -> int:
    """The same for a person on all hosts and at all times."""
    return zlib.crc32(name.encode("utf-8", "replace")) % TINT_COUNT


def format_svg_percent(part: int, of: int) -> str:
    """`12.5%`."""
    return f"{part / of * 100:.2f}".rstrip("0").rstrip(".") + "%"


def render_grid(grid: TimeGrid, count: int, height: int) -> Html:
    """What all charts of so many panels have in common: lines, and the words for times below them."""
    bottom = height - AXIS_HEIGHT
    first = bottom - count * PANEL_HEIGHT
    lines = []
    for place in range(count):
        y = first + place * PANEL_HEIGHT + LABEL_HEIGHT
        lines.append(f"<path class=grid-line d=M0,{y}h9999 /><path class=grid-line d=M0,{y + PLOT_HEIGHT // 2}h9999 />")
        lines.append(f"<path class=grid-base d=M0,{y + PLOT_HEIGHT}h9999 />")
    words = []
    for slot, word in grid.ticks:
        at = format_svg_percent(slot, len(grid.buckets))
        words.append(f"<line class=grid-line x1={at} x2={at} y1={first} y2={height - 6} />")
        if slot / len(grid.buckets) + len(word) * LETTER_WIDTH <= 1:
            words.append(f"<text class=grid-time x={at} dx=3 y={height - 4}>{escape_html(word)}</text>")
    return Html(
        f"<svg width=100% height={bottom}>{''.join(lines)}</svg>{''.join(words)}"  # what is too long is cut
    )
