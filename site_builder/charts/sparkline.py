"""The small line of a GPU on the board: its use over a day."""

from __future__ import annotations

from collections.abc import Sequence

from site_builder.charts import svg
from site_builder.core.html import NOTHING, Html

# Steps from nothing to all: as fine as it is seen, and no heavier.
HEIGHT = 16
# With fewer slots than these there is no line yet.
FEWEST = 4


def spark(values: Sequence[float | None]) -> Html:
    """The line, and its mean and highest value in words; nothing as long as there is too little."""
    there = [one for one in values if one is not None]
    if len(there) < FEWEST:
        return NOTHING
    words = f"24 h: mean {sum(there) / len(there):.0f} %, highest {max(there):.0f} %"
    return Html(
        f'<svg role=img viewBox="0 0 {len(values)} {HEIGHT}" preserveAspectRatio=none><title>{words}</title>'
        f'<path d="{svg.line(values, len(values), HEIGHT, 100)}"/></svg>'
    )
