"""The files of www/ for terminals, shells, Prometheus and other programs: their names, and what each is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson

from site_builder import __version__
from site_builder.board.host_pipeline import Card
from site_builder.board.outputs import available, detail, metrics, nodes, states, term
from site_builder.core.clock import Now
from site_builder.core.faults import FAULT
from site_builder.core.model import BoardHost, Problem
from site_builder.core.published_files import digest
from site_builder.snapshots.registry import TOOLS

Cards = Mapping[str, Card]
AVAILABLE, STATES, NODES = "available", "states", "nodes"
ALL_AVAILABLE = f"{AVAILABLE}.txt"
TERM, TERM_ANSI, DETAIL = "term.txt", "term-ansi.txt", "detail.txt"
# Whose GPUs stand in available/HOST.txt, and whose have a folder of their own beside.
FIRST = "nvidia"
BESIDE = tuple(dict.fromkeys(tool.vendor for tool in TOOLS.values() if tool.vendor != FIRST))
FOLDERS = (AVAILABLE, STATES, NODES, *(f"{AVAILABLE}-{vendor}" for vendor in BESIDE))


class File(NamedTuple):
    """A file: what tells one content from the next, and what makes it; `dated` if it says when it was built."""

    name: str
    facts: bytes
    make: Callable[[], bytes]
    dated: bool = True


class Joined(NamedTuple):
    """A file that is made of those of all hosts."""

    name: str
    of_host: Callable[[str], str]
    make: Callable[[Iterable[bytes]], bytes]


def available_of(host: str, vendor: str | None = None) -> str:
    """The file of a host's free GPUs, or of those of one maker."""
    return f"{AVAILABLE}-{vendor}/{host}.txt" if vendor else f"{AVAILABLE}/{host}.txt"


def available_beside(cards: Cards) -> Iterator[tuple[str, str, Card]]:
    """The makers whose GPUs have a file of their own: the host, the maker, and the host's card."""
    return ((host, maker, one) for host, one in cards.items() for maker in one.summary.makers if maker in BESIDE)


def states_of(host: str) -> str:
    """The file of a host in the shape of vesta; no host has the name of the file of all."""
    return f"{STATES}/{'_' if host == 'index.json' else ''}{host}/index.json"


def node_of(host: str) -> str:
    """The file of a host in the shape of the GPU Cluster Status Monitor; the same."""
    return f"{NODES}/{'_' if host == 'index' else ''}{host}.json"


JOINED = (
    Joined(f"{STATES}/index.json", states_of, states.states),
    Joined(f"{NODES}/index.json", node_of, nodes.nodes),
)


def host_files(board: BoardHost, looked: float | None, now: Now) -> dict[str, bytes]:
    """What exists once a host, for programs; `looked` is when its GPUs were."""
    return {states_of(board.name): states.host(board, looked, now), node_of(board.name): nodes.host(board, now)}


def failed_host_files(name: str) -> dict[str, bytes]:
    """The same, by hand, of a host at which the renderers fail: that there is one, and no GPU to be had."""
    reason = f"its files for programs could not be made, {FAULT}"
    state: dict[str, object] = {"data": [], "ip_address": None, "state": "failed", "reason": reason}
    node: dict[str, object] = {
        "hostname": name,
        "last_update": None,
        "ips": [],
        "gpus": [],
        "status": False,
        "state": "failed",
    }
    newline = orjson.OPT_APPEND_NEWLINE
    return {
        states_of(name): orjson.dumps({name: state}, option=newline),
        node_of(name): orjson.dumps({**node, "state": "failed", "reason": reason, "seen": None}, option=newline),
    }


def available_all(cards: Cards) -> Iterator[File]:
    """Which GPUs are free, in all."""
    every = [gpu for one in cards.values() for gpu in one.summary.available]
    content = available.fleet(every)
    yield File(ALL_AVAILABLE, digest(content), lambda: content, dated=False)


def available_host(host: str, one: Card) -> Iterator[File]:
    """The same of a host: of its NVIDIA GPUs, or else of those that it has; those of each other maker beside."""
    makers = one.summary.makers
    text = available.host(one.summary.available, FIRST if FIRST in makers or not makers else makers[0])
    yield File(available_of(host), text or b"none", lambda text=text: text, dated=False)  # type: ignore[misc]
    for maker in makers:
        if maker in BESIDE:
            text = available.host(one.summary.available, maker)
            yield File(available_of(host, maker), text or b"none", lambda text=text: text, dated=False)  # type: ignore[misc]


def none_available(host: str, one: Card) -> Iterator[File]:
    """The same files, empty: where we fail at them, an older one must not hand out a GPU."""
    for maker in (None, *(maker for maker in one.summary.makers if maker in BESIDE)):
        yield File(available_of(host, maker), b"none", lambda: b"", dated=False)


def term_table(cards: Cards, now: Now, colour: bool) -> File:
    """The table for terminals."""
    facts = digest(__version__.encode(), *(one.digests.term for one in cards.values()))
    rows = [one.term for one in cards.values()]
    return File(TERM_ANSI if colour else TERM, facts, lambda: term.term(rows, __version__, now, colour=colour))


def detail_table(cards: Cards, now: Now) -> File:
    """The same at length."""
    facts = digest(__version__.encode(), *(one.digests.detail for one in cards.values()))
    return File(DETAIL, facts, lambda: detail.detail((one.detail for one in cards.values()), __version__, now))


def metrics_of(cards: Cards, problems: Sequence[Problem], now: Now, every: int, took: float | None) -> bytes:
    """The file for Prometheus; `took` is how many seconds the build before this one did."""
    using: dict[str, int] = {}
    booked: dict[str, int] = {}
    bookings = [0, 0]
    for one in cards.values():
        people = one.summary.people
        for found, told in ((using, people.using), (booked, people.booked)):
            for name, count in told.items():
                found[name] = found.get(name, 0) + count
        bookings = [sum(both) for both in zip(bookings, people.bookings)]
    fleet = metrics.Fleet(using, booked, (bookings[0], bookings[1]), len(problems), __version__, every, took)
    return metrics.metrics(((one.metrics, host, one.seen) for host, one in cards.items()), fleet, now.epoch)
