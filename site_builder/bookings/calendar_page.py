"""bookings.html: two weeks of bookings, as a picture and as a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

from site_builder.board.card import shortened
from site_builder.bookings.calendar import DAYS, Bar, Calendar, Chart, Time
from site_builder.core.clock import Now
from site_builder.core.formatting import DAYS as WEEKDAYS
from site_builder.core.formatting import MONTHS
from site_builder.core.templates import escaping

HUES, PATTERNS = 12, 6
# Heights in CSS pixels: of the days' names above the rows, of a row, and of each lane where some overlap.
HEAD, ROW, LANE = 22, 24, 19
GAP = 2
# A bar is never narrower than this, in percent of two weeks: an hour is.
NARROWEST = 0.3
MOST_LISTED = 1000
BAR_CHARACTERS = 120


class Person(NamedTuple):
    """Somebody who has bookings: which look their bars have, where their feed is, and all names that they go by."""

    number: int
    name: str
    look: int
    feed: str
    names: Sequence[str]


class BarTexts(NamedTuple):
    """A bar as the template takes it; places are in percent across, and in pixels down."""

    style: str
    pattern: int
    x: str
    width: str
    y: int
    height: int
    name: str
    comment: str
    title: str


class ChartTexts(NamedTuple):
    """A host as the template takes it: the rows' labels and the lines between them by their place."""

    host: str
    height: int
    labels: Sequence[tuple[str, int]]
    lines: Sequence[int]
    bars: Sequence[BarTexts]
    unbooked: str


def looks(people: Iterable[str]) -> dict[str, int]:
    """A look for each person, by the name alone as far as no two have the same: then one of them takes the next."""
    taken: dict[int, str] = {}
    wanted = {person: int.from_bytes(blake2b(text(person), digest_size=4).digest(), "big") for person in people}
    for person in sorted(wanted, key=lambda one: (wanted[one], one)):
        look = wanted[person] % (HUES * PATTERNS)
        while look in taken and len(taken) < HUES * PATTERNS:
            look = (look + 1) % (HUES * PATTERNS)
        taken.setdefault(look, person)
        wanted[person] = look
    return wanted


def text(told: str) -> bytes:
    """A text as bytes, whatever is in it."""
    return told.encode("utf-8", "replace")


def page(calendar: Calendar, people: Mapping[str, Person], version: str, now: Now) -> bytes:
    """The whole page; `people` are by the names in their bookings."""
    first, last = calendar.midnights[0], calendar.midnights[DAYS - 1]
    content = escaping("bookings.html").render(
        version=version,
        built=(int(now.epoch * 1000), now.local.isoformat(" ", "minutes"), f"{day(now.local)} {now.local:%H:%M}"),
        span=f"{day(first)} to {day(last)}",
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        days=days(calendar.midnights),
        now=across(now.epoch, calendar.midnights),
        charts=[chart_texts(one, calendar, people, now) for one in calendar.charts],
        head=HEAD,
        people=sorted({one.number: one for one in people.values()}.values()),
        others=calendar.others,
        listed=[row(time, people, now) for time in calendar.times[:MOST_LISTED]],
        more=calendar.left_out + max(0, len(calendar.times) - MOST_LISTED),
        hues=HUES,
    )
    return text(content)


def days(midnights: Sequence[datetime]) -> list[tuple[str, str, str, str]]:
    """Each day: where it begins, how wide it is (clocks may change in it), what it is, and its name."""
    found = []
    for number, (begins, ends) in enumerate(zip(midnights, midnights[1:])):
        left, right = (across(one.timestamp(), midnights) for one in (begins, ends))
        kind = "today" if number == 0 else "weekend" if begins.weekday() >= 5 else ""
        if kind == "today" and begins.weekday() >= 5:
            kind = "today weekend"
        name = day(begins) if number == 0 or begins.day == 1 else f"{WEEKDAYS[begins.weekday()]} {begins.day}"
        found.append((left, f"{float(right) - float(left):.3f}", kind, name))
    return found


def across(moment: float, midnights: Sequence[datetime]) -> str:
    """The place of a moment, in percent of the two weeks."""
    first, last = midnights[0].timestamp(), midnights[-1].timestamp()
    return f"{min(100, max(0, (moment - first) / (last - first) * 100)):.3f}"


def day(moment: datetime) -> str:
    """`Mon 16 Nov`."""
    return f"{WEEKDAYS[moment.weekday()]} {moment.day} {MONTHS[moment.month - 1]}"


def chart_texts(chart: Chart, calendar: Calendar, people: Mapping[str, Person], now: Now) -> ChartTexts:
    """A host's rows and bars."""
    heights = [ROW if lanes == 1 else lanes * LANE + GAP for _, lanes in chart.rows]
    tops = list(accumulate(heights, initial=HEAD))
    return ChartTexts(
        chart.host,
        tops[-1],
        [(label, tops[row] + ROW // 2) for row, (label, _) in enumerate(chart.rows)],
        tops[:-1],
        [bar_texts(bar, tops, calendar, people, now) for bar in chart.bars],
        ", ".join(chart.unbooked),
    )


def bar_texts(bar: Bar, tops: Sequence[int], calendar: Calendar, people: Mapping[str, Person], now: Now) -> BarTexts:
    """A bar: where it is, and what stands in it."""
    time, promise = bar.time, bar.time.promise
    person = people.get(promise.name)
    left = float(across(time.begins.timestamp(), calendar.midnights)) if time.begins else 0
    width = max(NARROWEST, float(across(time.ends.timestamp(), calendar.midnights)) - left)
    left = min(left, 100 - width)
    top, bottom = tops[bar.row], tops[bar.row + bar.rows]
    if bar.lane is not None:
        top, bottom = top + bar.lane * LANE, top + (bar.lane + 1) * LANE + GAP
    told = " · ".join(filter(None, (promise.where, promise.name or "booked", when(time, now), promise.comment)))
    return BarTexts(
        f"h{person.look % HUES} who{person.number}" if person else "h0",
        person.look // HUES if person else 0,
        f"{left:.3f}",
        f"{width:.3f}",
        top + GAP,
        bottom - top - GAP,
        shortened(promise.name or "booked") or "",
        shortened(promise.comment, BAR_CHARACTERS) or "",
        told,
    )


def row(time: Time, people: Mapping[str, Person], now: Now) -> tuple[str, str, str, str, str, str]:
    """A line of the list: whose, when, which host, where on it, who, for what."""
    promise = time.promise
    person = people.get(promise.name)
    gpus = "all GPUs" if promise.whole else ", ".join(promise.gpus)
    whose = f"who{person.number}" if person else ""
    return whose, when(time, now), promise.host, gpus, promise.name, promise.comment


def when(time: Time, now: Now) -> str:
    """`Mon 16 Nov 09:00 – 18:00`, `until Tue 17 Nov 18:00`."""
    ends = now.here(time.ends)
    clock = f"{ends.hour:02}:{ends.minute:02}"
    if time.begins is None:
        return f"until {dated(ends, now)}"
    begins = now.here(time.begins)
    same = begins.date() == ends.date()
    return f"{dated(begins, now)} – {clock if same else dated(ends, now)}"


def dated(moment: datetime, now: Now) -> str:
    """A time with its day, and with its year where that is another."""
    year = "" if moment.year == now.local.year else f" {moment.year}"
    return f"{day(moment)}{year} {moment.hour:02}:{moment.minute:02}"
