"""What is wasted: GPUs that are taken or promised and not used, and those that nobody ever is on.

A GPU has one line at most of what is so now: the first that holds of dead, held by somebody, ownerless, unexplained,
held, booking, unused. So no GPU-hour counts twice; what a booking counts, a GPU that is never used does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from site_builder.core import formatting
from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import BoardGpu, BoardHost, Number
from site_builder.core.names import in_order, natural
from site_builder.fleet.gpu_state import Rules
from site_builder.history.idle_runs import EMPTY, IDLE, Promise, Unkept, Worn, are_others, believed, card_of
from site_builder.history.model import TAKEN
from site_builder.history.sampling import key_of
from site_builder.waste.model import KINDS, Item

UNUSED_DAYS = 30
ENDED_DAYS = 7
# A booking is told once nobody was on the GPU for so long; and is looked at first so soon after it began.
LEAST_BOOKED = HOUR
FIRST_LOOK = 5 * MINUTE
# What may be a matter of two files that were not made at once is told once it lasts.
LASTS = 5 * MINUTE
ODD = frozenset({"dead", "ownerless", "unexplained"})
MOST_PIDS = 20


class Mark(NamedTuple):
    """What may be wasted of a GPU, as its host tells it now; `people` are never published as they are.

    `since` is since when it is idle; of a booking, since when nobody is on it, and `began` is when that began.
    """

    kind: str
    key: str
    index: Number  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    people: tuple[str, ...] = ()
    since: int | None = None
    began: int | None = None
    memory: str = ""
    pids: tuple[int, ...] = ()


class Empty(NamedTuple):
    """A GPU that nobody is on now."""

    host: str
    key: str
    index: Number  # type: ignore[assignment]
    model: str


class Past(NamedTuple):
    """What history knows of GPUs, by their cards; promises that ended not long ago, and that nobody used."""

    worn: Mapping[str, Worn]
    unkept: Sequence[Unkept] = ()


# What a host tells


def marks(host: BoardHost) -> tuple[Mark, ...]:
    """What may be wasted on a host that is fresh; of any other nothing is known."""
    if host.state != "fresh":
        return ()
    keys: dict[str, int] = {}
    several = [(one, key_of(one, keys)) for one in host.gpus]
    return tuple(found for one, key in several if (found := mark(one, key, bool(host.others))))


def mark(one: BoardGpu, key: str, others: bool) -> Mark | None:
    """The same of one GPU; with `others`, there are processes of which nobody knows on which GPU they are."""
    if one.state == "booked":
        return booked(one, key)
    kind = kind_of(one, others) if one.state in TAKEN else None
    if kind is None:
        return None
    since = None if one.idle_since is None else int(one.idle_since)
    memory = "memory" if one.gpu.memory_used is None else formatting.size(one.gpu.memory_used)
    pids = {
        "dead": [pid for process in one.processes if process.dead for pid in process.children],
        "ownerless": [pid for pid in one.ownerless if pid is not None],
    }.get(kind, [])
    found = Mark(kind, key, one.gpu.number, one.model, one.who.users, since, None, memory)
    return found._replace(pids=tuple(sorted(set(pids))[:MOST_PIDS]))


def kind_of(one: BoardGpu, others: bool) -> str | None:
    """Which kind of waste a GPU is that is taken; whether one that is idle is held, its past tells."""
    if any(process.dead for process in one.processes):
        return "dead"
    if one.state == "held" and one.who.users and len(one.ownerless) < len(one.processes):
        return "held"
    if one.ownerless:
        return "ownerless"
    if one.unexplained and not others:
        return "unexplained"
    return None if one.idle_since is None else "held"


def booked(one: BoardGpu, key: str) -> Mark | None:
    """A GPU that is promised now, and that nobody is on."""
    running = [booking for booking in one.bookings if booking.phase == "now"]
    since = [booking.unused_since for booking in running if booking.unused_since is not None]
    if not since or one.kept is None:
        return None
    # one without a beginning counts from when it was seen first
    first = min((seen for seen, _, _ in one.kept.use.values()), default=since[0])
    began = min(int(booking.since.timestamp()) if booking.since else first for booking in running)
    return Mark("booking", key, one.gpu.number, one.model, one.who.bookers, min(since), began)


# With what history knows


def items(  # noqa: PLR0913, PLR0917 # each is one thing
    marked: Mapping[str, Sequence[Mark]],
    empty: Iterable[Empty],
    past: Past,
    rules: Rules,
    odd: MutableMapping[str, int],
    now: float,
) -> list[Item]:
    """All that is wasted, the most GPU-hours first.

    `empty` are GPUs that nobody is on now; `odd` is since when each GPU is what it should not be, and is kept up here.
    """
    teller = Teller(past, rules, now)
    several = [(host, one) for host, marks in marked.items() for one in marks]
    lasting = noted(several, odd, now)
    # that two hosts tell a GPU is a problem of its own: whose hours these are, nobody can know
    twice = {card for card, count in Counter(card_of(host, one.key) for host, one in several).items() if count > 1}
    found: list[Item] = []
    for host, one in several:
        if one.kind in ODD and not lasting[f"{one.kind} {card_of(host, one.key)}"]:
            continue
        made = teller.booking(host, one) if one.kind == "booking" else teller.taken(host, one, odd)
        if made:
            found.append(made._replace(since=None, hours=None) if card_of(host, one.key) in twice else made)
    found += map(teller.ended, teller.told)
    promised: Counter[str] = Counter()
    for each in found:
        if each.kind == "booking":
            promised[card_of(each.host, each.key)] += each.hours or 0  # type: ignore[assignment] # hours have parts
    told = {card_of(one.host, one.key) for one in found if one.kind != "booking"}
    for place in empty:
        card = card_of(place.host, place.key)
        unused = None if card in told else teller.unused(place, promised[card])
        if unused:
            found.append(unused)
    return sorted(found, key=order)


def order(one: Item) -> tuple[object, ...]:
    """The most hours first, those that nobody can know last; else by host and GPU."""
    return (
        one.hours is None,
        -(one.hours or 0),
        natural(one.host),
        in_order(one.index),
        KINDS.index(one.kind),
        one.since or 0,
    )


def noted(several: Iterable[tuple[str, Mark]], odd: MutableMapping[str, int], now: float) -> dict[str, bool]:
    """Of each GPU that is what it should not be, whether it has been so for long enough; the others are forgotten."""
    there = {f"{one.kind} {card_of(host, one.key)}" for host, one in several if one.kind in ODD}
    for gone in [name for name in odd if name.partition(" ")[0] in ODD and name not in there]:
        del odd[gone]
    for name in there:
        odd[name] = min(odd.get(name, int(now)), int(now))
    return {name: now - odd[name] >= LASTS for name in there}


class Teller:
    """Tells what is wasted, from what is so now and what was before."""

    def __init__(self, past: Past, rules: Rules, now: float) -> None:
        """By what it goes."""
        self.past, self.rules, self.now = past, rules, now
        self.told = [one for one in past.unkept if self.counts(one)]
        self.over: dict[str, int] = {}  # of each GPU, up to when such promises count
        for one in self.told:
            card = card_of(one.host, one.key)
            self.over[card] = max(one.until, self.over.get(card, 0))

    def worn(self, host: str, key: str) -> Worn | None:
        """What history knows of a GPU."""
        return believed(self.past.worn.get(card_of(host, key)), self.now)

    def names(self, told: Iterable[str]) -> tuple[str, ...]:
        """Who it is, as far as it may be said, each once."""
        people = self.rules.people
        return tuple({people.one(one): people.user(one) for one in told}.values()) if self.rules.shown.users else ()

    def taken(self, host: str, one: Mark, odd: Mapping[str, int]) -> Item | None:
        """A GPU that is taken; None if it is idle, but not for long enough."""
        since, hours = self.idle(host, one)
        if one.kind == "held" and (hours is None or hours * HOUR < self.rules.limits.held_after):
            return None
        if since is None:
            since = odd.get(f"{one.kind} {card_of(host, one.key)}")
        who = self.names(one.people)
        what, do, command = said(host, one, who)
        place = (host, one.key, one.index, one.model)
        return Item(one.kind, *place, who, since, None, hours, one.pids, what, do, command)

    def idle(self, host: str, one: Mark) -> tuple[int | None, float | None]:
        """Since when a GPU is idle, and for how many hours; one that is used wastes nobody knows what."""
        since, now = one.since, self.now
        if since is None:
            return None, None
        worn = self.worn(host, one.key)
        seconds = max(0, now - since)
        # the builder forgets over a gap, and history does not; where the two do not meet, something may lie between
        if worn and worn.run == IDLE and since <= worn.last + MINUTE and not are_others(worn.who, one.people):
            seen = worn.minutes * MINUTE + max(0, now - (worn.last + MINUTE))
            if worn.first < worn.since and worn.since > since:  # somebody else held it before
                return worn.since, rounded(seen)
            since, seconds = min(since, worn.since), max(seconds, seen)
        return since, rounded(seconds)

    def booking(self, host: str, one: Mark) -> Item | None:
        """A booking that runs; None if somebody was on the GPU since it began, or nobody can tell."""
        seconds = self.unused_for(host, one)
        if seconds is None or seconds < LEAST_BOOKED:
            return None
        who = self.names(one.people)
        what, do = "booked, and nobody has been on it since that began", f"{ask(who)} to use it or to release it."
        place = (host, one.key, one.index, one.model)
        return Item("booking", *place, who, one.began, None, rounded(seconds), (), what, do)

    def unused_for(self, host: str, one: Mark) -> float | None:
        """For how many seconds that were seen nobody was on a GPU that is promised; None if somebody was."""
        if one.began is None or one.since is None:
            return None
        if one.since <= one.began + FIRST_LOOK:
            # a booking that was somebody else's before began when theirs did
            return max(0, self.now - max(one.since, self.over.get(card_of(host, one.key), 0)))
        worn = self.worn(host, one.key)
        promise = worn.promise if worn else None
        if not worn or not promise or one.since > worn.last + MINUTE or are_others(promise.who, one.people):
            return None
        if worn.taken is not None and worn.taken >= one.began:
            return None
        seen = seen_since(promise, one.began)
        return None if seen is None else seen + max(0, self.now - (promise.last + MINUTE))

    def counts(self, one: Unkept) -> bool:
        """Whether a promise that is over is told: not one of minutes, nor one that goes on after all."""
        worn = self.worn(one.host, one.key)
        goes_on = worn is not None and worn.promise is not None and worn.promise.since == one.since
        return one.minutes * MINUTE >= LEAST_BOOKED and not goes_on

    def ended(self, one: Unkept) -> Item:
        """A booking that is over, and that nobody used."""
        who = self.names(one.who)
        place = (one.host, one.key, one.index, one.model)
        what, do = "was booked, and nobody was on it in all that time", f"{ask(who)} to release what is not needed."
        return Item("booking", *place, who, one.since, one.until, rounded(one.minutes * MINUTE), (), what, do)

    def unused(self, one: Empty, promised: float) -> Item | None:
        """A GPU that nobody has been on for long; what bookings count of it is not counted again."""
        worn = self.worn(one.host, one.key)
        if worn is None or not is_unused(worn):
            return None
        until = worn.last + MINUTE
        live = self.now - until if 0 <= self.now - until <= 2 * HOUR else 0  # the hour that is not rolled up yet
        hours = max(0.0, round(rounded(worn.minutes * MINUTE + live) - promised, 2))
        days = worn.minutes * MINUTE // DAY
        seen = f"{days} days that were seen"
        what = f"nobody was ever on it, in {seen}" if worn.taken is None else f"nobody has been on it for {seen}"
        do = "Tell people of it, or move it to where it is needed."
        return Item("unused", *one, (), worn.since, None, hours, (), what, do)


def seen_since(promise: Promise, began: int) -> float | None:
    """How many seconds were seen of a booking that began then; None if that cannot be told from the one before it."""
    if promise.since >= began - MINUTE:
        return promise.minutes * MINUTE
    has_gaps = promise.minutes < (promise.last - promise.since) // MINUTE + 1
    return None if has_gaps else promise.last + MINUTE - began


def is_unused(worn: Worn) -> bool:
    """Whether nobody was on a GPU in all the minutes of 30 days that were seen: what was not seen is not unused."""
    return worn.run == EMPTY and worn.minutes * MINUTE >= UNUSED_DAYS * DAY


def rounded(seconds: float) -> float:
    """In hours."""
    return round(seconds / HOUR, 2)


def ask(who: Sequence[str]) -> str:
    """Whom to ask."""
    return f"Ask {formatting.names(who)}" if who else "Ask who booked it"


def said(host: str, one: Mark, who: Sequence[str]) -> tuple[str, str, str]:
    """What is so, what to do, and with which command."""
    if one.kind == "dead":
        kill = " ".join(map(str, one.pids))
        return f"{one.memory} taken by a dead process whose children live on", f"On {host}:", f"kill {kill}"
    if one.kind == "ownerless":
        what = f"{one.memory} taken by a process of unknown owner"
        if not one.pids:
            return what, f"On {host}, see what runs there.", ""
        return what, f"On {host}, see whose it is:", f"ps -o pid,user,args -p {','.join(map(str, one.pids))}"
    if one.kind == "unexplained":
        device = "/dev/nvidia" + ("*" if one.index is None else str(one.index).partition(":")[0])
        return f"{one.memory} taken, and no process has it", f"As root on {host}, see who does:", f"fuser -v {device}"
    whom = f"Ask {formatting.names(who)}" if who else "Ask whose it is"
    return f"{one.memory} taken and hardly used", f"{whom} whether it is still needed.", ""
