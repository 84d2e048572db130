"""index.html: the board. Its cards are rendered one by one, and put together here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from site_builder.board.card import moment_at, moment_of
from site_builder.core.clock import Now
from site_builder.core.model import ComingGpu, FreeGpu, Problem
from site_builder.core.templates import escaping
from site_builder.waste import render as waste_render
from site_builder.waste.model import Wasted

STATES = {
    "free": "Free",
    "busy": "Busy",
    "held": "Held idle",
    "booked": "Booked",
    "violated": "Violated",
    "lost": "Trouble",
    "unknown": "Unknown",
}
ALWAYS = frozenset({"free", "busy"})
IN_TROUBLE = "in trouble"
MOST_HOSTS_FREE = 60
MOST_COMING = 5
MOST_HOSTS_NOT_FRESH = 20
MOST_PROBLEMS = 200
# Stands for the cards in the template; no text of others can hold it, for control characters are taken out of that.
CARDS = "\x1ccards\x1c"
NO_HOST = (
    b"<p>No host yet. Each GPU host pushes its snapshot with <code>gpu-check.sh</code>; it appears here within a "
    b"minute.</p>"
)


class Fleet(NamedTuple):
    """All that the page tells beside its cards; `version` changes with the assets."""

    hosts: Mapping[str, str]
    totals: Mapping[str, int]
    free: Sequence[FreeGpu]
    problems: Sequence[Problem]
    notice: str | None
    version: str
    coming: Sequence[ComingGpu] = ()
    book: str | None = None
    wasted: Wasted | None = None
    watch: bool = False  # whether people can say what they wait for

    @property
    def free_count(self) -> int:
        """How many GPUs are free."""
        return self.totals.get("free", 0)


class Parts(NamedTuple):
    """The page but for its cards, in parts of which each is sent again only when it has changed."""

    top: bytes
    waste: bytes
    problems: bytes


def parts(fleet: Fleet, now: Now) -> Parts:
    """What stands before the cards, and behind them."""
    totals, problems = fleet.totals, fleet.problems
    top = escaping("top.html").render(
        counts=[
            (state, STATES[state], totals.get(state, 0)) for state in STATES if state in ALWAYS or totals.get(state)
        ],
        hosts=len(fleet.hosts),
        not_fresh=list(not_fresh(fleet.hosts)),
        free=list(by_model(fleet.free, now)),
        coming=[] if fleet.free else list(next_free(fleet.coming, now)),
        notice=fleet.notice,
        watch=fleet.watch,
    )
    told = escaping("problems.html").render(problems=problems, most=MOST_PROBLEMS) if problems else ""
    return Parts(top.encode(), waste_render.section(fleet.wasted, now), told.encode())


def board(cards: Sequence[bytes], parts: Parts, fleet: Fleet, now: Now) -> bytes:
    """The whole page; by the version, no browser shows a new page with old assets."""
    page = escaping("board.html").render(
        cards=CARDS,
        free=fleet.free_count,
        problems=len(fleet.problems),
        wasted=waste_render.in_short(fleet.wasted),
        version=fleet.version,
        book=fleet.book,
        built=(int(now.epoch * 1000), now.local.isoformat(" ", "seconds"), f"{now.local:%H:%M:%S}"),
    )
    # the cards, many times as large as the rest, need not go through the template
    before, _, after = page.partition(CARDS)
    return b"".join((before.encode(), parts.top, b"\n".join(cards) or NO_HOST, *parts[1:], after.encode()))


def not_fresh(hosts: Mapping[str, str]) -> Iterator[tuple[str, list[str], int]]:
    """Each state but fresh, the hosts that are in it, and how many more."""
    for state in ("failed", "down", "stale", "unseen", "maintenance"):
        names = [host for host, its_state in hosts.items() if its_state == state]
        if names:
            yield state, names[:MOST_HOSTS_NOT_FRESH], len(names) - len(names[:MOST_HOSTS_NOT_FRESH])


def by_model(free: Iterable[FreeGpu], now: Now) -> Iterator[tuple[str, list[tuple[str, str, str]], int]]:
    """Each model, the one with the most memory first; on which hosts; and on how many more."""
    models: defaultdict[str, defaultdict[tuple[str, str], list[FreeGpu]]] = defaultdict(lambda: defaultdict(list))
    for gpu in free:
        until = f"until {moment_of(datetime.fromtimestamp(gpu.until, now.zone), now)}" if gpu.until else ""
        models[gpu.model][gpu.host, IN_TROUBLE if gpu.avoid else until].append(gpu)
    for model, places in sorted(models.items(), key=lambda item: (-next(iter(item[1].values()))[0].memory, item[0])):
        shown = [
            (host, ",".join("?" if gpu.index is None else str(gpu.index) for gpu in gpus), until)
            for (host, until), gpus in islice(places.items(), MOST_HOSTS_FREE)
        ]
        yield model, shown, sum(map(len, islice(places.values(), MOST_HOSTS_FREE, None)))


def next_free(coming: Iterable[ComingGpu], now: Now) -> Iterator[tuple[str, str, str]]:
    """Which GPUs come free first: the host, which of its GPUs, and when."""
    places: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for gpu in sorted(coming, key=lambda one: one.at):
        places[gpu.at, gpu.host].append("?" if gpu.index is None else str(gpu.index))
    for (at, host), labels in islice(places.items(), MOST_COMING):
        yield host, ",".join(labels), moment_at(at, now)
