"""Who has how many GPUs: now, and on average over the last hours and days; and what is nobody's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from site_builder.core.names import natural
from site_builder.core.people import People
from site_builder.fleet.people_counts import Had, Standing
from site_builder.history.gpu_minutes import UNIT, Month, Window
from site_builder.usage.totals import of_seen, person_of, shown

# What is nobody's, in the order in which it is told; with what people have it is all that is seen.
REST = ("unowned", "promised", "free", "unclear")


class Present(NamedTuple):
    """The fleet at this moment: what each name has of each host, and how the GPUs stand."""

    had: Mapping[str, Mapping[str, Had]]
    standing: Standing


class Line(NamedTuple):
    """A person: what they have, on how many GPUs of which hosts, and how many GPUs they had on average over each
    window; None where nobody looked."""

    name: str
    had: Had
    where: tuple[tuple[str, int], ...]
    means: tuple[float | None, ...]


class Over(NamedTuple):
    """What averages are over, and in how much of that time somebody looked, in percent, rounded down: only all of it
    is 100."""

    since: int
    until: int
    looked_at: int | None


class Whole(NamedTuple):
    """The same of all people together, of each of REST and of all that is seen, by their names."""

    now: Mapping[str, int]
    means: Mapping[str, tuple[float | None, ...]]


def present(told: Iterable[tuple[str, Mapping[str, Had], Standing]]) -> Present:
    """The fleet, of what is told of each host."""
    found: dict[str, dict[str, Had]] = defaultdict(dict)
    sums = [0] * len(Standing._fields)
    for host, had, standing in told:
        for name, one in had.items():
            found[name][host] = one
        sums = [one + more for one, more in zip(sums, standing)]
    return Present(found, Standing(*sums))


def lines(now: Present, windows: Sequence[Window], people: People) -> list[Line]:
    """Everybody who is on a GPU or was, whoever has most first."""
    named: dict[str, list[str]] = defaultdict(list)
    for name in sorted({*now.had, *(name for one in windows for name, share in one.shares.items() if share.used)}):
        named[person_of(name, people)].append(name)
    found = [line(names, now, windows, people) for names in named.values()]
    return sorted(found, key=order)


def order(one: Line) -> tuple[object, ...]:
    """Whoever has most, or had it of late."""
    return -one.had.units, -one.had.gpus, [-(mean or 0) for mean in one.means], natural(one.name), one.name


def line(names: Sequence[str], now: Present, windows: Sequence[Window], people: People) -> Line:
    """A person, under all of their names."""
    had = Had()
    hosts: dict[str, int] = defaultdict(int)
    for name in names:
        for host, one in now.had.get(name, {}).items():
            had = had.plus(one)
            hosts[host] += one.gpus
    means = []
    for window in windows:
        units = sum(window.shares[name].used for name in names if name in window.shares)
        means.append(mean(units, window))
    where = tuple(sorted(hosts.items(), key=lambda one: (-one[1], natural(one[0]))))
    return Line(shown(names, people), had, where, tuple(means))


def mean(units: int, window: Window) -> float | None:
    """GPUs on average, over the minutes that were looked at; where no GPU was seen in any of them, nobody knows."""
    return units / UNIT / window.minutes if window.minutes and window.seen.seen else None


def whole(now: Present, windows: Sequence[Window]) -> Whole:
    """What closes the sums."""
    standing = now.standing
    seen = {"used": standing.used, **{name: getattr(standing, name) for name in REST}}
    told = {**seen, "seen": sum(seen.values()), "unseen": standing.unseen}
    means: dict[str, list[float | None]] = defaultdict(list)
    for window in windows:
        sums = of_seen(window.seen)
        used = sums.seen - sum(getattr(sums, name) for name in REST)
        means["used"].append(mean(used, window))
        for name in (*REST, "seen"):
            means[name].append(mean(getattr(sums, name), window))
    return Whole(told, {name: tuple(several) for name, several in means.items()})


def over(window: Window) -> Over:
    """Of a window, for the page."""
    length = (window.until - window.since) // 60
    return Over(window.since, window.until, min(100, window.minutes * 100 // length) if length else None)


def gpus_of(units: int) -> float:
    """Of parts of GPUs."""
    return units / UNIT


def names_in(several: Iterable[Window | Month]) -> set[str]:
    """All names in them."""
    return {name for one in several for name in one.shares}
