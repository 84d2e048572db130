"""What was made of each host: its card, its part of each file of the fleet, and what the fleet needs to know of it.

A card serves again as long as nothing that it was made of has changed and time makes no difference to it; state/ keeps
them from one builder to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from site_builder import __version__
from site_builder.alerts.conditions import on_host
from site_builder.alerts.model import Matter
from site_builder.board import card as card_page
from site_builder.board import live
from site_builder.board.outputs import detail, metrics, status, term
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.faults import place_of
from site_builder.core.html import escaped
from site_builder.core.model import BoardHost
from site_builder.core.parallel import both
from site_builder.core.people import People
from site_builder.core.published_files import digest
from site_builder.core.record_file import DamagedFileError, Record, read_records, write_records
from site_builder.core.typed_json import dump_json, make_decoder
from site_builder.fleet import summary as fleet_summary
from site_builder.fleet.gpu_state import Rules
from site_builder.fleet.host_view import TRY_AGAIN, Host, board_of, matters_of, not_shown
from site_builder.health.metrics import signed
from site_builder.health.model import Signed
from site_builder.history.block_format import Packed, pack
from site_builder.history.sampling import sample

PACKAGE = Path(__file__).parents[1]
STORE, TITLE = "cards.kept", "gpuboard cards 1"
# What an older gpuboard left: a pickle, which could execute code, and is never read.
OLD_STORE = "cards.pickle"
# How many texts stand behind a card: page, status, live, terminal, detail, and a part for each family of metrics.
TEXTS = 8 + len(metrics.FAMILIES)
# Seconds of CPU time that one host may cost a build; of a host that costs more nothing is read for so many seconds.
# The first card of a process may take longer: templates are compiled, and modules imported.
TOO_EXPENSIVE, FIRST_CARD, PAUSE = 2.0, 10.0, 600
NOT_READ = f"its files take more than {TOO_EXPENSIVE:.0f} s to read, and so are read only every {PAUSE // 60} minutes"


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

    made_of: bytes  # a digest of it
    holds_until: float
    html: bytes
    status: tuple[bytes, bytes]  # between which the age stands
    live: tuple[bytes, bytes]  # between which the revision stands
    term: term.Part
    detail: bytes
    metrics: tuple[bytes, ...]
    seen: float | None
    digests: Digests
    summary: fleet_summary.Summary
    sample: Packed | None  # what history keeps of it, if it is fresh
    signed: Signed | None  # and the signs of its GPUs' health
    matters: tuple[Matter, ...] | None = ()  # what people may be told of it; None where that cannot be told
    people: tuple[str, ...] = ()  # who is on it, whether shown or not
    cut: tuple[tuple[str, str | None], ...] = ()  # logins that `ps` cut, and whose they were taken for


class StoredCard(NamedTuple):
    """A card as it is stored, without the bytes that stand behind it in the file."""

    host: str
    made_of: bytes
    holds_until: float | None  # None is for ever
    marks: tuple[tuple[str, str], ...]
    seen: float | None
    digests: Digests
    summary: fleet_summary.Summary
    sample: Packed | None
    signed: Signed | None
    matters: tuple[Matter, ...] | None
    people: tuple[str, ...]
    cut: tuple[tuple[str, str | None], ...]


class Cards:
    """The cards of all hosts; made anew only where something changed."""

    def __init__(self, state: Path) -> None:
        """Take up those of the last builder."""
        self.store = state / STORE
        self.rules = b""
        self.cards: dict[str, Card] = {}
        self.changed = False
        self.paused: dict[str, int] = {}  # hosts that are too expensive, and until when they are not read
        with suppress(DamagedFileError, ValueError):  # of a damaged file nothing counts, and all are made anew
            self.rules, self.cards = load_cards(self.store)

    def make(
        self, fleet_hosts: Sequence[Host], rules: Rules, names: dict[str, str], settings: Settings, now: Now
    ) -> dict[str, Card]:
        """The card of each host, in their order."""
        by = digest_of(
            (
                CODE,
                now.local.utcoffset(),
                settings.limits,
                settings.shown,
                str(settings.zone),
                tuple(names.items()),
                rules.people.aliases,
            )
        )
        if by != self.rules:
            self.rules, self.cards = by, {}
        before, self.cards = self.cards, {}
        parts = [(host, inputs_anyhow(host, rules)) for host in (self.readable(one, now) for one in fleet_hosts)]
        known = set(before)
        stale = []
        for host, made_of in parts:
            one = before.get(host.known.name)
            if one is None or one.made_of != made_of or now.epoch >= one.holds_until or is_clearer(one, rules.people):
                stale.append((host, made_of))
                before.pop(host.known.name, None)  # the new ones have its room
        anew = both(lambda part: timed(lambda: make(part[0], rules, names, now.apart())), stale)
        made = {}
        for (host, made_of), (card, seconds) in zip(stale, anew):
            name = host.known.name
            made[name] = card._replace(made_of=made_of)
            if seconds > (FIRST_CARD if host is stale[0][0] else TOO_EXPENSIVE) and not host.not_read:
                self.paused[name] = int(now.epoch) + PAUSE
                without = self.readable(host, now)
                made[name] = make(without, rules, names, now.apart())._replace(made_of=inputs_anyhow(without, rules))
        self.cards = {host.known.name: made.get(host.known.name) or before[host.known.name] for host, _ in parts}
        self.changed = self.changed or bool(stale) or known != self.cards.keys()
        return self.cards

    def readable(self, host: Host, now: Now) -> Host:
        """Return the host, without its files while they are too expensive."""
        left = self.paused.get(host.known.name, 0) - now.epoch
        if 0 < left <= PAUSE:
            return replace(host, told=None, not_read=NOT_READ)
        self.paused.pop(host.known.name, None)
        return host

    def save(self) -> None:
        """Keep them for the next builder."""
        if self.changed:
            write_records(self.store, TITLE, self.records())
            self.changed = False

    def records(self) -> Iterator[Record]:
        """Yield what is stored: what all cards were made by, and then each of them."""
        yield self.rules.hex().encode(), []
        for host, card in self.cards.items():
            with suppress(TypeError):  # a text that JSON cannot hold costs that host a new card
                yield dump_card(host, card)


def dump_card(host: str, card: Card) -> Record:
    """Return a card as a record: JSON, and the bytes that are published as they are."""
    stored = StoredCard(
        host=host,
        made_of=card.made_of,
        holds_until=None if card.holds_until == float("inf") else card.holds_until,
        marks=card.term.marks,
        seen=card.seen,
        digests=card.digests,
        summary=card.summary,
        sample=card.sample,
        signed=card.signed,
        matters=card.matters,
        people=card.people,
        cut=card.cut,
    )
    texts = [card.html, *card.status, *card.live, card.term.plain, card.term.colour, card.detail, *card.metrics]
    return dump_json(stored), texts


def load_cards(store: Path) -> tuple[bytes, dict[str, Card]]:
    """Load what the last builder stored: what all cards were made by, and each card whose types are right."""
    decode = make_decoder(StoredCard)
    records = read_records(store, TITLE)
    rules = bytes.fromhex(next(records, (b"", []))[0].decode("ascii"))
    cards = {}
    for text, texts in records:
        try:
            stored: StoredCard = decode(orjson.loads(text))
        except ValueError:  # a number that JSON cannot hold: this one is made anew
            continue
        if len(texts) != TEXTS:
            raise DamagedFileError(stored.host)
        html, before_age, after_age, before_revision, after_revision, plain, colour, detail_text, *samples = texts
        cards[stored.host] = Card(
            made_of=stored.made_of,
            holds_until=float("inf") if stored.holds_until is None else stored.holds_until,
            html=html,
            status=(before_age, after_age),
            live=(before_revision, after_revision),
            term=term.Part(plain, colour, stored.marks),
            detail=detail_text,
            metrics=tuple(samples),
            seen=stored.seen,
            digests=stored.digests,
            summary=stored.summary,
            sample=stored.sample,
            signed=stored.signed,
            matters=stored.matters,
            people=stored.people,
            cut=stored.cut,
        )
    return rules, cards


def digest_of(facts: object) -> bytes:
    """Return what tells one set of facts from another, in this process and the next."""
    return digest(repr(facts).encode("utf-8", "surrogatepass"))


def inputs(host: Host, rules: Rules) -> bytes:
    """What must be the same for a card to serve again, as a digest."""
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
    facts = (host.told.key if host.told else None, host.known, bookings, logins, dict(host.lines), host.not_read)
    return digest_of(facts)


def inputs_anyhow(host: Host, rules: Rules) -> bytes:
    """The same; where a booking has a date that cannot be compared, by what it says."""
    try:
        return inputs(host, rules)
    except Exception:  # a fault of ours must not cost the other hosts
        return digest_of((host.told.key if host.told else None, host.known, repr(host.bookings), 0, dict(host.lines)))


def is_clearer(card: Card, people: People) -> bool:
    """Whether a login that `ps` cut is now known to be somebody's, or may be a second person's too."""
    return any(people.whole(login) != whole for login, whole in card.cut)


def timed(work: Callable[[], Card]) -> tuple[Card, float]:
    """A card, and how many seconds of CPU time it took."""
    began = time.thread_time()
    return work(), time.thread_time() - began


def make(host: Host, rules: Rules, names: dict[str, str], now: Now) -> Card:
    """A card, from all that is known of a host; where we fail at it, one that says so."""
    board, looked = board_of(host, rules, names, now)
    try:
        return card_of(host, board, looked, rules, now)
    except Exception as error:  # a fault of ours must not cost the other hosts
        place = place_of(error)
    now.reached(now.epoch + TRY_AGAIN)
    for known in (not_shown(board, place), not_shown(BoardHost(board.name, None, (), "failed", ""), place)):
        with suppress(Exception):
            return card_of(replace(host, lines={}), known, None, rules, now)
    return plain_card(known, now)


def card_of(host: Host, board: BoardHost, looked: float | None, rules: Rules, now: Now) -> Card:
    """The same, from what was decided of it."""
    texts = card_page.card(board, now, lines=host.lines)
    html, told = card_page.html(texts).encode(), status.host(board)
    rows, boxes = term.host(board), detail.host(board, looked, now)
    facts = digest(*told)
    digests = Digests(
        digest(html),
        facts,
        digest(card_page.structure(texts)),
        digest(rows.colour, repr(rows.marks).encode()),
        # all else that it says is in status.json
        digest(facts, repr((looked, board.facts and board.facts.interfaces)).encode()),
    )
    matters = matters_of(host, board, rules, now)  # before the time is asked until which all of this holds
    return Card(
        made_of=b"",
        holds_until=now.holds_until,
        html=html,
        status=told,
        live=live.host(board, texts),
        term=rows,
        detail=boxes,
        metrics=metrics.host(board),
        seen=board.seen,
        digests=digests,
        summary=fleet_summary.summary(board, looked),
        sample=sampled(board),
        signed=signed(board, looked),
        matters=matters,
        people=on_host(board),
        cut=tuple((login, rules.people.whole(login)) for login in board.cut),
    )


def plain_card(board: BoardHost, now: Now) -> Card:
    """A card without any of the renderers: that there is such a host, and why no more is shown of it."""
    name, reason = (escaped(text) for text in (board.name, board.reason))
    html = f'<section class="host failed" id="{name}"><header><h2>{name}</h2> <span class="state failed">failed</span>'
    html += f"</header><p class=note>{reason}</p></section>"
    shown: dict[str, Any] = {"name": board.name, "title": None, "tags": [], "state": "failed", "reason": board.reason}
    rest: dict[str, Any] = {
        "load": None,
        "cpus": None,
        "memory": {"total": None, "available": None},
        "disks": [],
        "gpus": [],
    }
    line = f"|{board.name[: term.HOST]:{term.HOST}}| {'! failed':{term.GPU - 1}}{term.NO_READINGS}|\n".encode()
    told = digest(repr((board.name, board.reason)).encode())
    return Card(
        made_of=b"",
        holds_until=now.epoch + TRY_AGAIN,
        html=html.encode(),
        status=(orjson.dumps({**shown, "seen": None})[:-1] + b',"age":', b"," + orjson.dumps(rest)[1:]),
        live=(orjson.dumps([board.name])[:-1] + b",", b"," + orjson.dumps(["failed", None, "", "", "", []])[1:]),
        term=term.Part(line, line, ()),
        detail=f"{board.name}\n! failed: {board.reason}\n\n".encode(),
        metrics=metrics.failed_host(board.name),
        seen=None,
        digests=Digests(told, told, told, told, told),
        summary=fleet_summary.nothing_known("failed", board.problems),
        sample=None,
        signed=None,
        matters=None,
    )


def sampled(board: BoardHost) -> Packed | None:
    """What history keeps of a host at this moment; nothing of one that is not fresh."""
    found = sample(board)
    return pack(found) if found else None
