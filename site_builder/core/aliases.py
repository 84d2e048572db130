"""aliases.csv: the names of one person: `trobert, robert, thomas  # note`; the last is the one to show."""

from __future__ import annotations

from site_builder.core.names import lowered
from site_builder.snapshots.envelope import text_of


def read(data: bytes) -> dict[str, str]:
    """The name to show for each name, in lower case: case does not matter."""
    shown: dict[str, str] = {}
    for line in text_of(data).split("\n"):
        names = [name for cell in line.partition("#")[0].split(",") if (name := cell.strip())]
        for name in names:
            shown[lowered(name)] = names[-1]
    return shown
