"""Format numbers, times and names for people."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, tzinfo

from site_builder.core.clock import Now

DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MINUTE, HOUR, DAY = 60, 3600, 86400
MAX_NAME_CHARACTERS = 80
# An absolute path within a sentence; not what follows a scheme (http://), a number (3/4), ~ or a folder (data/x).
ABSOLUTE_PATH = re.compile(r"(?<![\w/.~…*-])/(?:[^\s/'\"<>:;,()]+/)*([^\s/'\"<>:;,()]+)")
ORDINAL_ENDINGS = {"1": "st", "2": "nd", "3": "rd"}


def format_duration(seconds: float) -> str:
    """Format as `2 d 3 h`, `3 h 20 min` or `40 min`: two units at most, rounded up."""
    minutes = math.ceil(seconds / MINUTE)
    if minutes < 60:
        return f"{max(minutes, 0)} min"
    if minutes < 24 * 60:
        large, small = divmod(minutes, 60)
        return f"{large} h {small} min" if small else f"{large} h"
    large, small = divmod(math.ceil(seconds / HOUR), 24)
    return f"{large} d {small} h" if small else f"{large} d"


def format_time_left(until: float, now: Now) -> str:
    """Format as `2 d 3 h left`, and note in `now` when that changes."""
    seconds = until - now.epoch
    # the text changes when a whole number of its smaller unit is left
    step = HOUR if seconds > DAY + HOUR else MINUTE
    now.has_passed(until - (math.ceil(seconds / step) - 1) * step)
    return f"{format_duration(seconds)} left"


def format_moment(moment: datetime, now: Now) -> str:
    """Format as `18:00` today, `tomorrow 09:00`, `Fri 18:00` within the week, else with the date."""
    days = now.days_until(moment)
    local = now.to_local(moment)
    clock = f"{local.hour:02}:{local.minute:02}"
    if days == 0:
        return clock
    if days == 1:
        return f"tomorrow {clock}"
    if 1 < days < 7:
        return f"{DAY_NAMES[local.weekday()]} {clock}"
    year = "" if local.year == now.local.year else f" {local.year}"
    return f"{local.day} {MONTH_NAMES[local.month - 1]}{year} {clock}"


def format_local_time(epoch: float) -> str:
    """Format a time in the zone of this machine."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch))


def format_local_epoch(epoch: float, zone: tzinfo, time_format: str) -> str:
    """Format whole seconds in the zone of the board; a host may send any time, even one before 1970."""
    return datetime.fromtimestamp(max(0, int(epoch)), zone).strftime(time_format)


def format_weekday_date(day: date) -> str:
    """Format `Mon 16 Nov`."""
    return f"{DAY_NAMES[day.weekday()]} {day.day} {MONTH_NAMES[day.month - 1]}"


def format_gib(mib: float | None) -> str:
    """Format MiB as GiB: `71`, `3.4`; `–` for None."""
    if mib is None:
        return "–"
    value = mib / 1024
    return f"{value:.0f}" if value >= 9.95 or value < 0.05 else f"{value:.1f}".replace(".0", "")


def format_size(mib: float) -> str:
    """Format as `512 MiB`, `3.4 GiB`, `71 GiB` or `5.2 TiB`."""
    if mib < 1023.5:
        return f"{mib:.0f} MiB"
    if mib >= 1000 * 1024:
        return f"{format_gib(mib / 1024)} TiB"
    return f"{format_gib(mib)} GiB"


def format_gpu_hours(minutes: float) -> str:
    """Format GPU-minutes as hours, like `1,234.5`."""
    return f"{minutes / 60:,.1f}"


def format_count(count: int, noun: str) -> str:
    """Format as `1 host` or `2 hosts`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_name_counts(names: Iterable[str], alone: str = "1 × ") -> str:
    """Format each name once, with its number."""
    return ", ".join(f"{alone if count == 1 else f'{count} × '}{name}" for name, count in Counter(names).items())


def format_names(names: Sequence[str], limit: int = 3) -> str:
    """Return `alice`, `alice and bob`, or with more than `limit` names `alice, bob and 3 more`."""
    if len(names) > limit:
        return f"{', '.join(names[: limit - 1])} and {len(names) - limit + 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1] if names else "")))


def shorten_text(text: str | None, characters: int = MAX_NAME_CHARACTERS) -> str | None:
    """Cut a text to this many characters, the last of them an ellipsis."""
    return text if text is None or len(text) <= characters else text[: characters - 1] + "…"


def hide_paths(text: str, labels: Mapping[str, str] | None = None) -> str:
    """Replace absolute paths in a sentence: those in `labels` by their label, of all others keep the last part."""
    for path, label in sorted((labels or {}).items(), key=lambda item: len(item[0]), reverse=True):
        text = re.sub(rf"(?<![\w/.-]){re.escape(path)}(?![\w.-])", label, text)
    return ABSOLUTE_PATH.sub(r"…/\1", text)


def capitalize_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def format_ordinal(number: str) -> str:
    """Format as `1st`, `2nd`, `12th`, `last` or `2nd last`."""
    if number == "-1":
        return "last"
    if number.startswith("-"):
        return f"{format_ordinal(number[1:])} last"
    return number + ("th" if number[-2:-1] == "1" else ORDINAL_ENDINGS.get(number[-1], "th"))
