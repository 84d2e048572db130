"""users.html: who has how much now, had how much on average, and how many GPU-hours in which month."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import date, datetime, tzinfo
from typing import NamedTuple
from urllib.parse import quote

from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.templates import escaping
from site_builder.fleet.people_counts import Had
from site_builder.usage.recent import Line, Over, Whole, gpus_of
from site_builder.usage.totals import NOTHING, Row, Sums, Usage, hours, percent_seen, together

UNKNOWN = "–"
# Hosts of one person that are named; the others are counted.
MOST_HOSTS = 12
REST = {
    "unowned": "Owner not known",
    "promised": "Booked, nobody on it",
    "free": "Free",
    "unclear": "Lost or not clear",
}
OF_PERSON = {"used": "Used", "held": "Held idle", "booked": "Booked", "unused": "Booked, unused"}
OF_PLACE = {**OF_PERSON, "free": "Free"}
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


class Month(NamedTuple):
    """A month from a day on and up to a moment, by person, model and host."""

    first: date
    since: date
    until: float
    person: Usage
    model: Usage
    host: Usage


class People(NamedTuple):
    """All that the page is made of; `tables` are the GPU-hours, as HTML. Where users are not `shown`, it names none."""

    lines: Sequence[Line]
    whole: Whole
    windows: Sequence[Over]
    shown: bool
    trouble: str
    tables: str


class Cells(NamedTuple):
    """A row of numbers; `link` is where its name leads, if anywhere."""

    name: str
    link: str
    cells: Sequence[str]


class Table(NamedTuple):
    """Numbers in groups of columns that have a title each, with rows of what they come to."""

    title: str
    first: str
    groups: Sequence[tuple[str, int]]
    heads: Sequence[str]
    rows: Sequence[Cells]
    foot: Sequence[Cells] = ()


def page(people: People, version: str, now: Now) -> bytes:
    """The whole page."""
    text = escaping("users.html").render(
        version=version,
        built=(int(now.epoch * 1000), now.local.isoformat(" ", "minutes"), f"{now.local:%H:%M}"),
        zone=getattr(now.zone, "key", None) or now.local.tzname(),
        shown=people.shown,
        trouble=people.trouble,
        windows=[(name_of(one), since(one.since, now)) for one in people.windows],
        lines=[(line.name, search(line.name), *present(line), means(line.means)) for line in people.lines],
        foot=foot(people.whole),
        looked=[UNKNOWN if one.looked_at is None else f"{one.looked_at} %" for one in people.windows],
        tables=people.tables,
    )
    return text.encode("utf-8", "replace")


def tables(months: Sequence[Month], shown: bool, held_after: float, hosts: Container[str], zone: tzinfo) -> str:
    """The GPU-hours of months, the newest first; `hosts` are those that have a page."""
    two = months[:2]
    found = [by_person(two, zone)] if shown and two else []
    if two:
        found += [
            closed(two, zone),
            by_place("By model", "Model", [one.model for one in two], groups(two, 6, zone), lambda _: ""),
            by_place("By host", "Host", [one.host for one in two], groups(two, 6, zone), page_of(hosts)),
            by_month(months),
        ]
    return escaping("sums.html").render(tables=found, held=formatting.duration(held_after))


# Now, and on average


def name_of(window: Over) -> str:
    """`2 h`, `24 h`, `7 days`."""
    count = round((window.until - window.since) / formatting.HOUR)
    return f"{round(count / 24)} days" if count > 36 else "24 h" if count > 12 else "2 h"


def since(at: float, now: Now) -> str:
    """`12:00`, `Mon 12:00`, or of a week ago `10 Nov 12:00`."""
    moment = datetime.fromtimestamp(at, now.zone)
    day = "" if moment.date() == now.local.date() else f"{formatting.DAYS[moment.weekday()]} "
    if now.epoch - at > 6 * formatting.DAY:
        day = f"{moment.day} {formatting.MONTHS[moment.month - 1]} "
    return f"{day}{moment:%H:%M}"


def present(line: Line) -> tuple[str, str, str, list[tuple[str, int]], int]:
    """What somebody has: GPUs, memory, processes, and where; and how many hosts more."""
    had = line.had
    if not had.processes:
        return "0", "", "", [], 0
    where = list(line.where)
    return gpus(had.units), memory(had), str(had.processes), where[:MOST_HOSTS], max(0, len(where) - MOST_HOSTS)


def gpus(units: int) -> str:
    """Whole GPUs, or parts of them with one decimal."""
    count = gpus_of(units)
    return f"{count:.0f}" if count == int(count) else some(count)


def some(count: float) -> str:
    """With one decimal; what is there is never none."""
    return "<0.1" if 0 < count < 0.05 else f"{count:,.1f}"


def memory(had: Had) -> str:
    """Of their processes; where some do not tell it, it is at least so much."""
    if had.untold == had.processes:
        return UNKNOWN
    return f"{'≥ ' if had.untold else ''}{formatting.size(had.memory)}"


def means(several: Sequence[float | None]) -> list[str]:
    """GPUs on average over each window."""
    return [UNKNOWN if one is None else some(one) for one in several]


def foot(whole: Whole) -> list[tuple[str, str, list[str]]]:
    """What closes the sums: a class, the name and the numbers of each row."""
    rows = {"used": "All people", **REST, "seen": "All GPUs that are seen"}
    found = [(name, title, [str(whole.now[name]), *means(whole.means.get(name, ()))]) for name, title in rows.items()]
    if whole.now["unseen"]:
        none = [UNKNOWN for _ in whole.means.get("seen", ())]
        found.append(("unseen", "On hosts of which nothing is heard", [str(whole.now["unseen"]), *none]))
    return found


def search(name: str) -> str:
    """Where the board shows what somebody is on; a name that its search cannot tell leads nowhere."""
    if '"' in name or not name.strip():
        return ""
    told = f'user:"{name}"' if len(name.split()) > 1 or name != name.strip() else f"user:{name}"
    return f"index.html?q={quote(told, safe='', errors='replace')}"


# GPU-hours


def called(month: Month, zone: tzinfo) -> str:
    """`October 2026`, or `November 2026, from 3 Nov up to 17 Nov 14:00` where history has not all of it."""
    told = [title(month)]
    if month.since > month.first:
        told.append(f"from {month.since.day} {formatting.MONTHS[month.since.month - 1]}")
    moment = datetime.fromtimestamp(month.until, zone)
    if moment.date().replace(day=1) == month.first:
        told.append(f"up to {moment.day} {formatting.MONTHS[moment.month - 1]} {moment:%H:%M}")
    return ", ".join(filter(None, (told[0], " ".join(told[1:]))))


def title(month: Month) -> str:
    """`October 2026`."""
    return f"{MONTHS[month.first.month - 1]} {month.first.year}"


def groups(months: Sequence[Month], each: int, zone: tzinfo) -> list[tuple[str, int]]:
    """A group of columns a month."""
    return [(called(one, zone), each) for one in months]


def by_person(months: Sequence[Month], zone: tzinfo) -> Table:
    """Everybody who had something in one of the months."""
    usages = [one.person for one in months]
    rows = [Cells(one.name, search(one.name), cells(several, OF_PERSON)) for one, several in merged(usages)]
    foot = [Cells("All people", "", cells([together(row.sums for row in one.rows) for one in usages], OF_PERSON))]
    return Table(
        "GPU-hours by person", "Person", groups(months, 4, zone), [*OF_PERSON.values()] * len(months), rows, foot
    )


def merged(usages: Sequence[Usage]) -> list[tuple[Row, list[Sums]]]:
    """The lines of several tables side by side, in the order of the first that has each."""
    first: dict[str, Row] = {}
    found: dict[str, list[Sums]] = {}
    for place, usage in enumerate(usages):
        for row in usage.rows:
            first.setdefault(row.key, row)
            found.setdefault(row.key, [NOTHING] * len(usages))[place] = row.sums
    return [(row, found[key]) for key, row in first.items()]


def of_place(sums: Sums) -> list[str]:
    """The columns of a model or a host; of a month in which it was not seen nothing is known."""
    return [*cells([sums], OF_PLACE), percent(sums)] if sums.seen else [UNKNOWN] * (len(OF_PLACE) + 1)


def cells(several: Sequence[Sums], columns: Mapping[str, str]) -> list[str]:
    """The same columns of each."""
    return [number(getattr(sums, name)) for sums in several for name in columns]


def number(units: int) -> str:
    """GPU-hours."""
    return some(hours(units))


def closed(months: Sequence[Month], zone: tzinfo) -> Table:
    """Where all GPU-hours went."""
    totals = [one.model.total for one in months]
    used = [number(sums.seen - sum(getattr(sums, name) for name in REST)) for sums in totals]
    rows = [Cells("Used by people", "", used)]
    rows += [Cells(title, "", [number(getattr(sums, name)) for sums in totals]) for name, title in REST.items()]
    foot = [
        Cells("All that was seen", "", [number(sums.seen) for sums in totals]),
        Cells("Not seen", "", [number(sums.unseen) for sums in totals]),
        Cells("Seen of all", "", [percent(sums) for sums in totals]),
    ]
    return Table("All GPU-hours", "What", (), [called(one, zone) for one in months], rows, foot)


def percent(sums: Sums) -> str:
    """How much of all was seen."""
    seen = percent_seen(sums)
    return UNKNOWN if seen is None else f"{seen} %"


def page_of(hosts: Container[str]) -> Callable[[str], str]:
    """The page of a host, if it is on the board."""
    return lambda name: f"hosts/{quote(name)}.html" if name in hosts else ""


def by_place(
    title: str, first: str, usages: Sequence[Usage], groups: Sequence[tuple[str, int]], link: Callable[[str], str]
) -> Table:
    """Models or hosts."""
    rows = []
    for one, several in merged(usages):
        told = [text for sums in several for text in of_place(sums)]
        rows.append(Cells(one.name, link(one.name), told))
    return Table(title, first, groups, [*OF_PLACE.values(), "Seen of all"] * len(usages), rows)


def by_month(months: Sequence[Month]) -> Table:
    """All months of which something is kept."""
    heads = [*OF_PLACE.values(), "All seen", "Seen of all"]
    rows = []
    for month in months:
        sums = month.model.total
        told = [*cells([sums], OF_PLACE), number(sums.seen), percent(sums)]
        rows.append(Cells(title(month), "", told))
    return Table("By month", "Month", (), heads, rows)
