"""Render the charts of a host's page: a day, week, month or year of each GPU, drawn, and as a table.

Each row of the table lies over its part of the drawing: pointing at it, or focus, shows its cells. So the page has the
values once, for those who see and for those who listen. Positions are whole buckets, stretched to their place.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from site_builder.charts import svg
from site_builder.charts.svg import format_svg_percent
from site_builder.charts.time_windows import (
    GpuTimeWindowSeries,
    TimeGrid,
    TimeWindowSeries,
    group_time_window_runs,
    list_time_window_names,
)
from site_builder.core.formatting import format_gib
from site_builder.core.html import EMPTY_HTML, Html, escape_html, load_raw_html_template

WINDOW_TITLES = {
    "day": "The last 24 hours",
    "week": "The last 7 days",
    "month": "The last 31 days",
    "year": "The last 365 days",
}
# Sizes in CSS pixels, as charts.css has them too: two lines of names, and panels below them.
LANE_HEIGHT, PANEL_HEIGHT, LABEL_HEIGHT, PLOT_HEIGHT, AXIS_HEIGHT = 16, 62, 18, 40, 18
NAMES_HEIGHT = 2 * LANE_HEIGHT
# Tints distinguish people; each has a name beside it as well.
TINT_COUNT = 6
MAX_GPUS = 64
NO_VALUE_MARK = "–"
MIB_PER_GIB = 1024
# Width of a letter as a part of the chart: a label that would reach beyond the right edge is left out.
LETTER_WIDTH = 0.018


class ChartPanel(NamedTuple):
    """One value over time: its column, name, unit, and the head of its column in the table."""

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
    ChartPanel("load", "CPU load", "%", "CPU load, mean"),
    ChartPanel("own_memory", "Memory", "%", "Memory, mean"),
)


class ChartFigure(NamedTuple):
    id: Html
    title: Html
    model: Html
    note: Html
    height: int
    panel_count: int
    drawing: Html
    heads: Sequence[Html]
    rows: Html


def render_charts(
    grid: TimeGrid,
    gpus: Sequence[GpuTimeWindowSeries],
    host_series: TimeWindowSeries,
    gpu_keys: frozenset[str],
    drawn_at: int,
) -> bytes:
    """Render all charts of a window; `gpu_keys` are the keys of the GPUs that the host has now."""
    # a row of the table is as wide as its buckets
    rows = [
        f"<tr class=g{len(row.buckets)} tabindex=-1><th scope=row>{escape_html(row.label)}<td>" for row in grid.rows
    ]
    axis_ends = {
        "use": 100.0,
        "temperature": 100.0,
        "power": round_up_chart_axis(chain.from_iterable(gpu.chart_series.values["power"] for gpu in gpus)),
        "load": round_up_chart_axis(host_series.values["load"]),
        "own_memory": 100.0,
    }
    figures = [
        build_gpu_chart_figure(grid, gpu, rows, axis_ends, gpu.series.key in gpu_keys) for gpu in gpus[:MAX_GPUS]
    ]
    figures = [gpu._replace(id=Html(f"_{grid.window}-{place}")) for place, gpu in enumerate(figures)]
    if any(value is not None for column in host_series.values.values() for value in column):
        figures.append(build_chart_figure(grid, host_series, HOST_PANELS, rows, axis_ends))
    text = load_raw_html_template("charts.html").render(
        span=grid.window,
        title=WINDOW_TITLES[grid.window],
        drawn=drawn_at,
        sentence="",
        figures=figures,
        left_out=len(gpus[MAX_GPUS:]),
        grids={figure.height: render_chart_grid(grid, figure.panel_count, figure.height) for figure in figures},
    )
    return text.encode("utf-8", "replace")


@lru_cache(maxsize=16)
def render_charts_message(name: str, message: str) -> bytes:
    """Render the message in the place of a window that is not drawn."""
    text = load_raw_html_template("charts.html").render(
        span=name, title=WINDOW_TITLES[name], drawn=0, sentence=escape_html(message), figures=()
    )
    return text.encode("utf-8", "replace")


def find_highest_chart_value(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0)


def round_up_chart_axis(values: Iterable[float | None]) -> float:
    """Return the end of an axis in hundreds."""
    return max(100.0, math.ceil(find_highest_chart_value(values) / 100) * 100.0)


def build_gpu_chart_figure(
    grid: TimeGrid, gpu: GpuTimeWindowSeries, rows: Sequence[str], axis_ends: dict[str, float], is_here: bool
) -> ChartFigure:
    series, chart_series = gpu.series, gpu.chart_series
    highest_gib = find_highest_chart_value(chart_series.values["memory"]) / MIB_PER_GIB
    gpu_axis_ends = {**axis_ends, "memory": series.memory_total or svg.round_up_svg_axis(highest_gib) * MIB_PER_GIB}
    people_columns = [
        [
            ", ".join(escape_html(name) or hidden_name for name in list_time_window_names(people, row.buckets))
            for row in grid.rows
        ]
        for people, hidden_name in ((gpu.owners, "in use"), (gpu.bookers, "booked"))
    ]
    # a MIG instance reports memory alone
    values = chart_series.values
    panels = [panel for panel in GPU_PANELS if any(value is not None for value in values[panel.column])] or GPU_PANELS
    figure = build_chart_figure(grid, chart_series, panels, rows, gpu_axis_ends, NAMES_HEIGHT, people_columns)
    return figure._replace(
        title=escape_html(f"GPU {'?' if series.index is None else series.index}"),
        model=escape_html(series.model),
        note=EMPTY_HTML if is_here else Html("no longer on this host"),
        drawing=Html(render_chart_bands(gpu, grid.window, len(panels)) + figure.drawing),
        heads=[*figure.heads, Html("Used by"), Html("Booked by")],
    )


def build_chart_figure(
    grid: TimeGrid,
    chart_series: TimeWindowSeries,
    panels: Sequence[ChartPanel],
    rows: Sequence[str],
    axis_ends: dict[str, float],
    first_y: int = 0,
    people_columns: Sequence[Sequence[str]] = (),
) -> ChartFigure:
    """Build the figure of a host, or that of a GPU without its names."""
    columns = [format_chart_values(chart_series.row_values[panel.column], panel) for panel in panels]
    rendered_rows = [head + "<td>".join(cells) for head, cells in zip(rows, zip(*columns, *people_columns))]
    rendered_rows[-1] = rendered_rows[-1].replace("tabindex=-1", "tabindex=0", 1)  # focus comes first to the newest
    drawing = render_chart_panels(chart_series, panels, axis_ends, first_y)
    height = first_y + len(panels) * PANEL_HEIGHT + AXIS_HEIGHT
    return ChartFigure(
        id=Html(f"_{grid.window}-machine"),
        title=Html("Machine"),
        model=EMPTY_HTML,
        note=EMPTY_HTML,
        height=height,
        panel_count=len(panels),
        drawing=Html(f"<use href=#_{grid.window}-grid-{height} />{drawing}"),
        heads=[escape_html(panel.head) for panel in panels],
        rows=Html("\n".join(rendered_rows)),
    )


def format_chart_values(values: Sequence[float | None], panel: ChartPanel) -> list[str]:
    """Format values with their unit; each is formatted once, for most come again and again."""
    texts = {value: format_chart_value(value, panel) for value in set(values)}
    return [texts[value] for value in values]


def format_chart_value(number: float | None, panel: ChartPanel) -> str:
    """Format `87 %`, `3.4 GiB`; a dash where nothing was seen."""
    if number is None:
        return NO_VALUE_MARK
    return f"{format_gib(number) if panel.unit == 'GiB' else f'{number:.0f}'} {panel.unit}"


def render_chart_panels(
    chart_series: TimeWindowSeries, panels: Sequence[ChartPanel], axis_ends: dict[str, float], first_y: int
) -> Html:
    """Render panels one below the other, each with its name, mean, highest value and axis."""
    parts = []
    for position, panel in enumerate(panels):
        y = first_y + position * PANEL_HEIGHT
        values, axis_end = chart_series.values[panel.column], axis_ends[panel.column]
        line = svg.build_svg_path(svg.compute_svg_heights(values, PLOT_HEIGHT, axis_end), range(len(values) + 1))
        axis_end_label = format_gib(axis_end) if panel.unit == "GiB" else f"{axis_end:.0f}"
        parts.append(
            f"<text y={y + 13}>{panel.name} <tspan class=unit>{panel.unit}</tspan></text>"
            f"<text class=sum x=100% y={y + 13}>{summarize_chart_values(values, panel)}</text>"
            f"<text class=axis x=-4 y={y + LABEL_HEIGHT + 8}>{axis_end_label}</text>"
            f"<text class=axis x=-4 y={y + LABEL_HEIGHT + PLOT_HEIGHT}>0</text>"
            f'<svg y={y + LABEL_HEIGHT} width=100% height={PLOT_HEIGHT} viewBox="0 0 {len(values)} {PLOT_HEIGHT}"'
            f' preserveAspectRatio=none><path class={panel.column} d="{line}"/>'
            "</svg>"
        )
    return Html("".join(parts))


def summarize_chart_values(values: Sequence[float | None], panel: ChartPanel) -> str:
    """Format `mean 41 %, highest 100 %`."""
    known = [value for value in values if value is not None]
    if not known:
        return "no data"
    mean = "" if panel.column == "temperature" else f"mean {format_chart_value(sum(known) / len(known), panel)}, "
    return f"{mean}highest {format_chart_value(max(known), panel)}"


def render_chart_bands(gpu: GpuTimeWindowSeries, window: str, panel_count: int) -> str:
    """Render what is behind the panels: a tint where somebody had it, hatching where it was booked, and gaps."""
    count, height = len(gpu.is_seen), NAMES_HEIGHT + panel_count * PANEL_HEIGHT
    owner_runs, booker_runs = list(group_time_window_runs(gpu.owners)), list(group_time_window_runs(gpu.bookers))
    missing = [run for is_true, run in group_time_window_runs(gpu.is_seen) if not is_true]
    tints: dict[str, list[range]] = {"gap": missing} if missing else {}
    for name, run in owner_runs:
        if name is not None:
            tint = zlib.crc32(name.encode("utf-8", "replace")) % TINT_COUNT  # the same on all hosts and at all times
            tints.setdefault(f'"who t{tint}"', []).append(run)
    blocks = "".join(
        f'<path class={css_class} d="{build_chart_blocks_path(runs)}"/>' for css_class, runs in tints.items()
    )
    hatching = "".join(
        f"<rect x={format_svg_percent(run.start, count)} width={format_svg_percent(len(run), count)}"
        f' y={LANE_HEIGHT} height={height - LANE_HEIGHT} fill="url(#_{window}-hatch)" />'
        for is_true, run in group_time_window_runs([booker is not None for booker in gpu.bookers])
        if is_true
    )
    return (
        f'<svg width=100% height={height} viewBox="0 0 {count} 1" preserveAspectRatio=none>{blocks}</svg>{hatching}'
        + "".join(render_chart_band_label(run, count, 0, "no data", NO_VALUE_MARK) for run in missing)
        + "".join(
            render_chart_band_label(run, count, 0, name or "in use") for name, run in owner_runs if name is not None
        )
        + "".join(
            # where there is little room, the hatching alone says that it is a booking
            render_chart_band_label(run, count, LANE_HEIGHT, *((f"booked: {name}", name) if name else ("booked",)))
            for name, run in booker_runs
            if name is not None
        )
    )


def build_chart_blocks_path(ranges: Sequence[range]) -> str:
    """Build the path around some ranges; long ones, which may be of two people, have a small gap between."""
    blocks = ((block.start, len(block) - (0.8 if len(block) > 4 else 0)) for block in ranges)
    return "".join(f"M{start} 0h{length:g}v1h-{length:g}z" for start, length in blocks)


def render_chart_band_label(bucket_range: range, count: int, y: int, *texts: str) -> str:
    """Render the first text that has room at the top of a range, else the last one cut; none if that is too short."""
    room = int(len(bucket_range) / count / LETTER_WIDTH)
    if room < 2:
        return ""
    label = next((text for text in texts if len(text) <= room), f"{texts[-1][: room - 1]}…")
    x, width = format_svg_percent(bucket_range.start, count), format_svg_percent(len(bucket_range), count)
    return f"<svg x={x} y={y} width={width} height={LANE_HEIGHT}><text x=3 y=12>{escape_html(label)}</text></svg>"


def render_chart_grid(grid: TimeGrid, panel_count: int, height: int) -> Html:
    """Render what charts with the same number of panels share: lines, and the labels of time below them."""
    bottom = height - AXIS_HEIGHT
    first_y = bottom - panel_count * PANEL_HEIGHT
    lines = []
    plots = [first_y + position * PANEL_HEIGHT + LABEL_HEIGHT for position in range(panel_count)]
    for y in plots:
        lines.append(f"<path class=grid-line d=M0,{y}h9999 /><path class=grid-line d=M0,{y + PLOT_HEIGHT // 2}h9999 />")
        lines.append(f"<path class=grid-base d=M0,{y + PLOT_HEIGHT}h9999 />")
    labels = []
    for bucket, label in grid.ticks:
        x = format_svg_percent(bucket, len(grid.buckets))
        # not through the names and sums between the panels
        spans = [(y, y + PLOT_HEIGHT) for y in plots] + [(bottom, height - 6)]
        labels += [f"<line class=grid-line x1={x} x2={x} y1={top} y2={end} />" for top, end in spans]
        if bucket / len(grid.buckets) + len(label) * LETTER_WIDTH <= 1:
            labels.append(f"<text class=grid-time x={x} dx=3 y={height - 4}>{escape_html(label)}</text>")
    return Html(f"<svg width=100% height={bottom}>{''.join(lines)}</svg>{''.join(labels)}")
