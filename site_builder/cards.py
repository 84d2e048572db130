"""What was made of each host: its card, its part of each file of the fleet, and what the fleet needs to know of it.

A card serves again as long as nothing that it was made of has changed and time makes no difference to it; state/ keeps
them from one builder to the next.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from site_builder import __version__
from site_builder.alert import Matter
from site_builder.boards import Host, board_of, matters_of
from site_builder.decide import fleet
from site_builder.decide.gpus import Rules
from site_builder.decide.matters import on_host
from site_builder.decide.people import People
from site_builder.decide.sample import sample
from site_builder.decide.signs import signed
from site_builder.halves import both
from site_builder.happened import Signed
from site_builder.model import BoardHost
from site_builder.now import Now
from site_builder.publish import digest
from site_builder.readers.packed import Packed, pack
from site_builder.renderers import card as render
from site_builder.renderers import detail, live, metrics, status, term
from site_builder.settings import Settings
from site_builder.sources import files

PACKAGE = Path(__file__).parent


def code() -> tuple[object, ...]:
    """What changes with the program itself, an update of which makes every card anew."""
    found = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")]
    stats = {str(path.relative_to(PACKAGE)): path.stat() for path in found}
    return __version__, tuple(sorted((name, one.st_size, one.st_mtime_ns) for name, one in stats.items()))


# Looked up once: what this process has loaded is what it makes cards with, whatever is installed meanwhile.
CODE = code()


class Digests(NamedTuple):
    """What tells one content from the next."""

    html: bytes
    status: bytes
    structure: bytes
    term: bytes
    detail: bytes


class Card(NamedTuple):
    """What was made of a host, of what, and until when it holds."""

    made_of: tuple[object, ...]
    holds_until: float
    html: bytes
    status: tuple[bytes, bytes]  # between which the age stands
    live: tuple[bytes, bytes]  # between which the revision stands
    term: term.Part
    detail: bytes
    metrics: tuple[bytes, ...]
    seen: float | None
    digests: Digests
    summary: fleet.Summary
    sample: Packed | None  # what history keeps of it, if it is fresh
    signed: Signed | None  # and the signs of its GPUs' health
    matters: tuple[Matter, ...] | None = ()  # what people may be told of it; None where that cannot be told
    people: tuple[str, ...] = ()  # who is on it, whether shown or not
    cut: tuple[tuple[str, str | None], ...] = ()  # logins that `ps` cut, and whose they were taken for


class Cards:
    """The cards of all hosts; made anew only where something changed."""

    def __init__(self, state: Path) -> None:
        """Take up those of the last builder."""
        self.store = state / "cards.pickle"
        self.rules: tuple[object, ...] = ()
        self.cards: dict[str, Card] = {}
        self.changed = False
        try:
            with self.store.open("rb") as file:
                self.rules, count = pickle.load(file)  # noqa: S301 state/ is the builder's alone
                self.cards = dict(pickle.load(file) for _ in range(count))  # noqa: S301 the same
        except Exception:  # anything may stand in a damaged file
            self.rules, self.cards = (), {}

    def make(
        self, fleet_hosts: Sequence[Host], rules: Rules, names: dict[str, str], settings: Settings, now: Now
    ) -> dict[str, Card]:
        """The card of each host, in their order."""
        by = (
            CODE,
            now.local.utcoffset(),
            settings.limits,
            settings.shown,
            str(settings.zone),
            tuple(names.items()),
            rules.people.aliases,
        )
        if by != self.rules:
            self.rules, self.cards = by, {}
        before, self.cards = self.cards, {}
        parts = [(host, inputs(host, rules)) for host in fleet_hosts]
        known = set(before)
        stale = []
        for host, made_of in parts:
            one = before.get(host.known.name)
            if one is None or one.made_of != made_of or now.epoch >= one.holds_until or is_clearer(one, rules.people):
                stale.append((host, made_of))
                before.pop(host.known.name, None)  # the new ones have its room
        anew = both(lambda part: make(part[0], rules, names, now.apart()), stale)
        made = {host.known.name: card._replace(made_of=made_of) for (host, made_of), card in zip(stale, anew)}
        self.cards = {host.known.name: made.get(host.known.name) or before[host.known.name] for host, _ in parts}
        self.changed = self.changed or bool(stale) or known != self.cards.keys()
        return self.cards

    def save(self) -> None:
        """Keep them for the next builder."""
        if self.changed:
            # one by one: all of them at once would take as much memory again
            parts = [(self.rules, len(self.cards)), *self.cards.items()]
            files.replace(self.store, (pickle.dumps(one, protocol=pickle.HIGHEST_PROTOCOL) for one in parts), 0o600)
            self.changed = False


def inputs(host: Host, rules: Rules) -> tuple[object, ...]:
    """What must be the same for a card to serve again."""
    bookings = tuple(
        (
            one.gpu,
            one.name,
            one.until.timestamp(),
            one.since and one.since.timestamp(),
            one.comment,
            one.id,
            one.rrule,
            rules.people.is_known(one.name),
        )
        for one in host.bookings
    )
    # a login that ps cut may become clear when others are known
    logins = len(rules.people.names) if bookings else 0
    return host.told.key if host.told else None, host.known, bookings, logins, dict(host.lines)


def is_clearer(card: Card, people: People) -> bool:
    """Whether a login that `ps` cut is now known to be somebody's, or may be a second person's too."""
    return any(people.whole(login) != whole for login, whole in card.cut)


def make(host: Host, rules: Rules, names: dict[str, str], now: Now) -> Card:
    """A card, from all that is known of a host."""
    board, looked = board_of(host, rules, names, now)
    texts = render.card(board, now, lines=host.lines)
    html, told = render.html(texts).encode(), status.host(board)
    rows, boxes = term.host(board), detail.host(board, looked, now)
    facts = digest(*told)
    digests = Digests(
        digest(html),
        facts,
        digest(render.structure(texts)),
        digest(rows.colour, repr(rows.marks).encode()),
        # all else that it says is in status.json
        digest(facts, repr((looked, board.facts and board.facts.interfaces)).encode()),
    )
    matters = matters_of(host, board, rules, now)  # before the time is asked until which all of this holds
    return Card(
        made_of=(),
        holds_until=now.holds_until,
        html=html,
        status=told,
        live=live.host(board, texts),
        term=rows,
        detail=boxes,
        metrics=metrics.host(board),
        seen=board.seen,
        digests=digests,
        summary=fleet.summary(board, looked),
        sample=sampled(board),
        signed=signed(board, looked),
        matters=matters,
        people=on_host(board),
        cut=tuple((login, rules.people.whole(login)) for login in board.cut),
    )


def sampled(board: BoardHost) -> Packed | None:
    """What history keeps of a host at this moment; nothing of one that is not fresh."""
    found = sample(board)
    return pack(found) if found else None
