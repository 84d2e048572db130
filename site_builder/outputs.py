"""The files of www/ for terminals, shells, Prometheus and other programs: their names, and what each is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from site_builder import __version__
from site_builder.cards import Card
from site_builder.model import BoardHost, Problem
from site_builder.now import Now
from site_builder.publish import digest
from site_builder.readers.tools import TOOLS
from site_builder.renderers import available, detail, metrics, nodes, states, term

Cards = Mapping[str, Card]
AVAILABLE, STATES, NODES = "available", "states", "nodes"
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


def available_all(cards: Cards) -> Iterator[File]:
    """Which GPUs are free, in all."""
    every = [gpu for one in cards.values() for gpu in one.summary.available]
    content = available.fleet(every)
    yield File("available.txt", digest(content), lambda: content, dated=False)


def available_hosts(cards: Cards) -> Iterator[File]:
    """The same of each host: of its NVIDIA GPUs, or else of those that it has; those of each other maker beside."""
    for host, one in cards.items():
        makers = one.summary.makers
        text = available.host(one.summary.available, FIRST if FIRST in makers or not makers else makers[0])
        yield File(available_of(host), text or b"none", lambda text=text: text, dated=False)  # type: ignore[misc]
    for host, maker, one in available_beside(cards):
        text = available.host(one.summary.available, maker)
        yield File(available_of(host, maker), text or b"none", lambda text=text: text, dated=False)  # type: ignore[misc]


def texts(cards: Cards, now: Now) -> Iterator[File]:
    """The tables for terminals."""
    version = __version__.encode()
    several = cards.values()
    facts = digest(version, *(one.digests.term for one in several))
    rows = [one.term for one in several]
    yield File("term.txt", facts, lambda: term.term(rows, __version__, now))
    yield File("term-ansi.txt", facts, lambda: term.term(rows, __version__, now, colour=True))
    facts = digest(version, *(one.digests.detail for one in several))
    yield File("detail.txt", facts, lambda: detail.detail((one.detail for one in several), __version__, now))


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
