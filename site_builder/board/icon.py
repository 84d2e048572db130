"""icon.svg: the picture of a browser's tab, with how many GPUs are free."""

from __future__ import annotations

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<rect width="32" height="32" rx="7" fill="{fill}"/>'
    '<text x="16" y="{y}" text-anchor="middle" font-family="system-ui,sans-serif" font-weight="700" '
    'font-size="{size}" fill="#fff">{text}</text></svg>\n'
)
FREE, NONE = "#0b7a43", "#5a6776"


def icon(free: int) -> bytes:
    """As large as the number allows."""
    text = str(free) if free < 1000 else f"{free // 1000}k"
    size = {1: 24, 2: 20, 3: 14}[len(text)] if len(text) < 4 else 12
    return SVG.format(fill=FREE if free else NONE, y=16 + size * 0.36, size=size, text=text).encode()
