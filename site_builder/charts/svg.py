"""Draw lines, rectangles and sparklines as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from site_builder.core.html import EMPTY_HTML, Html, escape_html

# The first digits of a round number.
ROUND_DIGITS = (1, 2, 2.5, 5, 10)
# As fine as can be seen, and no heavier.
SPARKLINE_HEIGHT = 16
MIN_SPARKLINE_VALUES = 4
NO_DATA, UNKNOWN = "no data", "–"


class SvgBox(NamedTuple):
    x: int
    y: int
    width: int
    height: int


def compute_svg_edges(count: int, width: int) -> list[int]:
    """Return where each position begins across a width, and where the last one ends."""
    return [round(position * width / count) for position in range(count + 1)] if count else [0]


def compute_svg_heights(values: Sequence[float | None], height: int, top: float) -> list[int | None]:
    """Return the y of each value, with `top` at the upper edge and 0 at the lower one."""
    scale = height / top if top > 0 else 0
    y_by_value = {
        value: None if value is None else height - round(min(max(value * scale, 0), height)) for value in set(values)
    }
    return [y_by_value[value] for value in values]  # most values come again and again


def build_svg_line_path(values: Sequence[float | None], width: int, height: int, top: float) -> Html:
    """Build the path through values; None breaks it, and a single value is a dash."""
    return build_svg_path(compute_svg_heights(values, height, top), compute_svg_edges(len(values), width))


def build_svg_path(heights: Sequence[int | None], edges: Sequence[int]) -> Html:
    """Build the path through heights; `edges` are where each position begins, and where the last one ends."""
    parts: list[str] = []
    pen = y = -1  # where it is, in places and in height; at first, and in a gap, it is lifted
    for position, next_y in enumerate(heights):
        if next_y is None:
            if pen >= 0:
                parts.append(f"h{edges[position] - edges[pen]}")
            pen = y = -1
        elif next_y != y:
            if pen < 0:
                parts.append(f"M{edges[position]} {next_y}")
            else:
                if pen < position - 1:
                    parts.append(f"h{edges[position - 1] - edges[pen]}")
                space = " " if next_y > y else ""  # not needed before a minus
                parts.append(f"l{edges[position] - edges[position - 1]}{space}{next_y - y}")
            pen, y = position, next_y
    if pen >= 0:
        parts.append(f"h{edges[len(heights)] - edges[pen]}")
    return Html("".join(parts))


def round_up_svg_axis(value: float) -> float:
    """Return the next round number, for the end of an axis."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    rounded = next((first * power for first in ROUND_DIGITS if first * power >= value * (1 - 1e-9)), 10 * power)
    return int(rounded) if rounded >= 1 and rounded == int(rounded) else rounded


def format_svg_percent(part: int, whole: int) -> str:
    """Format `12.5%`."""
    return f"{part / whole * 100:.2f}".rstrip("0").rstrip(".") + "%"


def render_svg_rect(box: SvgBox, extra_attributes: str = "", title: str = "") -> Html:
    """Render a rectangle with further attributes, and a title that is shown on hover."""
    attributes = (
        f"x={box.x} y={box.y} width={box.width} height={box.height}{' ' if extra_attributes else ''}{extra_attributes}"
    )
    return Html(f"<rect {attributes}><title>{escape_html(title)}</title></rect>" if title else f"<rect {attributes} />")


def render_sparkline(values: Sequence[float | None]) -> Html:
    """Render a line with its mean and highest value in words; empty if there are too few values."""
    known = [value for value in values if value is not None]
    if len(known) < MIN_SPARKLINE_VALUES:
        return EMPTY_HTML
    words = f"24 h: mean {sum(known) / len(known):.0f} %, highest {max(known):.0f} %"
    return Html(
        f'<svg role=img viewBox="0 0 {len(values)} {SPARKLINE_HEIGHT}" preserveAspectRatio=none><title>{words}</title>'
        f'<path d="{build_svg_line_path(values, len(values), SPARKLINE_HEIGHT, 100)}"/></svg>'
    )
