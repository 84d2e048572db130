"""How times, durations and sizes are written, on the page and elsewhere."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from site_builder.core.clock import Now

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MINUTE, HOUR, DAY = 60, 3600, 86400
# An absolute path within a sentence; not what follows a scheme (http://), a number (3/4), ~ or a folder (data/x).
ABSOLUTE_PATH = re.compile(r"(?<![\w/.~…*-])/(?:[^\s/'\"<>:;,()]+/)*([^\s/'\"<>:;,()]+)")


def hide_paths(text: str, labels: Mapping[str, str] | None = None) -> str:
    """Replace absolute paths in a sentence: known ones by their label, of all others keep the last part."""
    for path, label in sorted((labels or {}).items(), key=lambda item: len(item[0]), reverse=True):
        text = re.sub(rf"(?<![\w/.-]){re.escape(path)}(?![\w.-])", label, text)
    return ABSOLUTE_PATH.sub(r"…/\1", text)


def duration(seconds: float) -> str:
    """`2 d 3 h`, `3 h 20 min`, `40 min`: two units at most, rounded up."""
    minutes = math.ceil(seconds / MINUTE)
    if minutes < 60:
        return f"{max(minutes, 0)} min"
    if minutes < 24 * 60:
        large, small = divmod(minutes, 60)
        return f"{large} h {small} min" if small else f"{large} h"
    large, small = divmod(math.ceil(seconds / HOUR), 24)
    return f"{large} d {small} h" if small else f"{large} d"


def left(until: float, now: Now) -> str:
    """`2 d 3 h left`, and until when that is true."""
    seconds = until - now.epoch
    # the text changes when a whole number of its smaller unit is left
    step = HOUR if seconds > DAY + HOUR else MINUTE
    now.reached(until - (math.ceil(seconds / step) - 1) * step)
    return f"{duration(seconds)} left"


def clock(moment: datetime, now: Now) -> str:
    """`18:00` for today, `tomorrow 09:00`, `Fri 18:00` within the week, else with the date."""
    days = now.days_until(moment)
    local = now.here(moment)
    time = f"{local.hour:02}:{local.minute:02}"
    if days == 0:
        return time
    if days == 1:
        return f"tomorrow {time}"
    if 1 < days < 7:
        return f"{DAYS[local.weekday()]} {time}"
    year = "" if local.year == now.local.year else f" {local.year}"
    return f"{local.day} {MONTHS[local.month - 1]}{year} {time}"


def gib(mib: float | None) -> str:
    """Of MiB the GiB: `71`, `3.4`; `–` where it is not known."""
    if mib is None:
        return "–"
    value = mib / 1024
    if value >= 9.95 or value < 0.05:
        return f"{value:.0f}"
    return f"{value:.1f}".replace(".0", "")


def size(mib: float) -> str:
    """`512 MiB`, `3.4 GiB`, `71 GiB`, `5.2 TiB`."""
    if mib < 1023.5:
        return f"{mib:.0f} MiB"
    if mib >= 1000 * 1024:
        return f"{gib(mib / 1024)} TiB"
    return f"{gib(mib)} GiB"


def names(several: Sequence[str]) -> str:
    """`alice`, `alice and bob`, `alice, bob and 3 more`."""
    if len(several) > 3:
        return f"{', '.join(several[:2])} and {len(several) - 2} more"
    return " and ".join(filter(None, (", ".join(several[:-1]), several[-1] if several else "")))
