"""What is told, and when: one step from the book as it is to the book with its new letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from site_builder.alerts.batching import ASKED_FOR, News, Outbox, Scene, waited
from site_builder.alerts.health_conditions import RULES as HEALTH
from site_builder.alerts.model import BEGUN, GPU_RULES, HAPPENED, HOST_RULES, OVER, AlertRule, Book, Known, Matter
from site_builder.alerts.queue import recent
from site_builder.alerts.titles import clock
from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, HOUR
from site_builder.health.model import NAMELESS

__all__ = ["Scene", "step", "why_not"]

# What a silence does not keep from whom it is for: neither says that anything is wrong.
REMINDERS = frozenset({ASKED_FOR, "booking-begins", "booking-ends"})
NEW = "host-new"
# Seconds for which it is remembered that something was told that is told once: longer than it is a matter.
REMEMBERED = 7 * DAY
REMEMBERED_OF = {"gpu-error": 6 * HOUR, "booking-begins": 2 * DAY, "booking-ends": 2 * DAY, NEW: 60 * DAY}
# Whoever books less than so many seconds ahead of its beginning knows that it begins.
NOTICE = 300
# A host can claim anything, and there is no end of hosts that can be named.
MOST_KNOWN = 5000
MOST_OF_HOST = 200
# Seconds that what is to be told waits for others of its rule: hosts that one switch takes away go one after another.
GATHERED = 60
MOST_ONCE = 20_000
# Where nothing is heard of a host, nobody knows whether these are over.
OF_FRESH = frozenset({*GPU_RULES, "host-failed", "booking-broken", "booking-unused"})


def step(book: Book, matters: Iterable[Matter], rules: Mapping[str, AlertRule], scene: Scene, now: Now) -> Book:
    """The book after a look: what is known, and with it all letters that came of it; the same book if nothing did."""
    found = Look(book, rules, scene, now)
    found.so({one.key: one for one in (*matters, *found.new_hosts()) if found.counts(one)})
    found.outbox.close()
    found.outbox.hush(rules)
    after = book._replace(
        begun=found.at if book.begun is None else book.begun,
        known=found.known,
        once=found.once if len(found.once) <= MOST_ONCE else last_of(found.once),
        letters=tuple(found.outbox.letters),
        silences={host: until for host, until in book.silences.items() if until > found.at or not scene.expires},
        history=recent(book.history, found.at) if scene.expires else book.history,
        sent=found.outbox.sent,
        number=found.outbox.number,
    )
    return book if after == book else after


def why_not(known: Known, rules: Mapping[str, AlertRule], silences: Mapping[str, int], scene: Scene, now: Now) -> str:
    """For `gpuboard alerts`: why something that is known is not told; empty where it was."""
    matter, at = known.matter, int(now.epoch)
    rule = rules.get(matter.rule)
    if known.told is not None:
        return ""
    if known.unsaid:
        return "it was so before anybody looked"
    if rule is None or not rule.on:
        return f"the rule {matter.rule} is off"
    muted = why_muted(matter, silences, scene, at)
    if muted:
        return muted
    starts = counts_from(matter, rule)
    if at < starts:
        return f"its time is {clock(starts, now)}"
    counts = known.seen + rule.hold
    return f"it is told at {clock(counts, now)}, if it is still so" if at < counts else "the next look tells it"


def why_muted(matter: Matter, silences: Mapping[str, int], scene: Scene, at: int) -> str:
    """Why nothing is told of a host now; empty where it is."""
    if not matter.host or matter.rule == ASKED_FOR:
        return ""
    if scene.hosts.get(matter.host, ("", 0))[0] == "maintenance":
        return f"{matter.host} is under maintenance"
    silent = silences.get(matter.host, 0) > at and matter.rule not in REMINDERS
    return f"{matter.host} is silenced" if silent else ""


def counts_from(matter: Matter, rule: AlertRule) -> int:
    """From when on a matter is one: of a booking, so long ahead of its beginning or its end as the rule says."""
    if matter.rule == "booking-begins" and matter.since is not None:
        return matter.since - rule.before
    if matter.rule == "booking-ends" and matter.until is not None:
        # of a short one, half is over by then
        half = rule.before if matter.since is None else max(0, matter.until - matter.since) // 2
        return matter.until - min(rule.before, half)
    return 0


def last_of(once: Mapping[str, int]) -> dict[str, int]:
    """Those that are to be remembered longest."""
    return dict(sorted(once.items(), key=lambda item: item[1])[-MOST_ONCE:])


class Look:
    """One look at all that is the matter."""

    def __init__(self, book: Book, rules: Mapping[str, AlertRule], scene: Scene, now: Now) -> None:
        """With what is known by now."""
        self.book, self.rules, self.scene = book, rules, scene
        self.at = int(now.epoch)
        self.first = book.begun is None
        self.known: dict[str, Known] = {}
        self.soon: set[tuple[str, str]] = set()
        self.once = {key: until for key, until in book.once.items() if until > self.at or not scene.expires}
        self.outbox = Outbox(book, scene, now)

    def new_hosts(self) -> Iterator[Matter]:
        """Hosts that the board did not show before; where nobody is told, they are remembered all the same."""
        rule, soon = self.rules.get(NEW), self.at + REMEMBERED_OF[NEW] // 2
        for host, (_, gpus) in self.scene.hosts.items():
            one = Matter(NEW, host, lasting=False)
            if self.once.get(one.key, 0) <= soon and not self.is_known(one):  # a thousand hosts, at each look
                if self.first or rule is None or not rule.on:
                    self.remember(one)
                else:
                    what = f"it has {gpus} GPU{'s' * (gpus != 1)}" if gpus else "it has told no GPU yet"
                    yield one._replace(what=what)

    def counts(self, matter: Matter) -> bool:
        """Whether a rule asks for it, and the board shows its host."""
        rule = self.rules.get(matter.rule)
        shown = not matter.host or matter.host in self.scene.hosts
        return rule is not None and rule.on and shown and (matter.lasting or not self.is_known(matter))

    def is_known(self, matter: Matter) -> bool:
        """Whether something was told that is told once; for as long as it is seen it is remembered."""
        # one that ran out since the last look, with a clock that was set perhaps, counts still
        if matter.key not in self.book.once and matter.key not in self.once:
            return False
        lasts = REMEMBERED_OF.get(matter.rule, REMEMBERED)
        if self.once.get(matter.key, 0) - self.at < lasts // 2:
            self.remember(matter)
        return True

    def remember(self, matter: Matter) -> None:
        """That it was told, or need not be."""
        self.once[matter.key] = self.at + REMEMBERED_OF.get(matter.rule, REMEMBERED)

    def so(self, matters: Mapping[str, Matter]) -> None:
        """Take up all that is so, and all that was."""
        self.soon = set(self.coming(matters))
        for key, known in self.book.known.items():
            if key not in matters:
                self.no_longer(key, known)
        counts = Counter(one.matter.host for one in self.known.values())
        for key, matter in matters.items():
            before = self.book.known.get(key)
            counts[matter.host] += 1
            full = len(self.known) >= MOST_KNOWN or (matter.host and counts[matter.host] > MOST_OF_HOST)
            if before or not full or matter.rule in HOST_RULES:
                self.is_so(key, matter, before)

    def coming(self, matters: Mapping[str, Matter]) -> Iterator[tuple[str, str]]:
        """Of which rules one more will count within a moment, as begun or as over."""
        for key, known in self.book.known.items():
            rule, left, of = self.rules.get(known.matter.rule), 0, BEGUN
            if rule and known.matter.lasting and not known.unsaid:
                if key in matters and known.told is None:
                    left = known.seen + rule.hold - self.at
                elif key not in matters and known.gone is not None:
                    left, of = known.gone + rule.over - self.at, OVER
            if rule and 0 < left <= GATHERED and not self.muted(known.matter):
                yield rule.name, of

    def waits(self, rule: AlertRule, of: str) -> int:
        """For how many seconds what counts waits, so that it is told in one letter with what will in a moment."""
        return GATHERED if (rule.name, of) in self.soon else 0

    def is_so(self, key: str, matter: Matter, before: Known | None) -> None:
        """What is so, and perhaps was before."""
        rule = self.rules[matter.rule]
        starts = counts_from(matter, rule)
        known = self.renewed(before, matter) if before else Known(matter, self.at, unsaid=self.adopted(matter, starts))
        known = self.held_back(known, rule)
        if known.unsaid or known.told is not None or not self.holds(known, rule, starts):
            if known.unsaid and not matter.lasting:
                self.remember(matter)
            else:
                self.known[key] = known
            return
        since = known.seen if matter.since is None else matter.since
        why = f"rule {rule.name}: it was so {waited(self.at - known.seen)}, and had to be {waited(rule.hold)}"
        if matter.lasting:
            self.outbox.add(News(matter, BEGUN, since, None, why), rule)
            # who is told how it is now hears of the same when it is over
            self.known[key] = known._replace(matter=matter, told=self.at)
        else:
            self.outbox.add(News(matter, HAPPENED, since, matter.until, f"rule {rule.name}"), rule)
            self.remember(matter)

    def renewed(self, known: Known, matter: Matter) -> Known:
        """What is known of something that is still so: a booking may be made longer, and a clock be set."""
        seen = min(known.seen, self.at)  # no clock that was set makes it hold for ever
        if known.told is None and matter.lasting and matter.since is not None and seen < matter.since <= self.at:
            seen = matter.since  # nothing was heard meanwhile, and it has begun anew
        return known._replace(matter=known.matter._replace(until=matter.until), seen=seen, gone=None)

    def adopted(self, matter: Matter, starts: int) -> bool:
        """Whether a matter that is new to us is none to others: it was so before, or they have just booked it."""
        if matter.rule == ASKED_FOR:  # who waits is told, also if nobody looked before
            return False
        if matter.rule == "booking-begins":
            return self.at > starts - NOTICE
        # in a large fleet, history needs some looks to see all that was there before it
        if matter.rule in HEALTH and matter.lasting and matter.since is None:
            return self.book.begun is None or self.at - self.book.begun < HOUR
        return self.first and self.at >= starts

    def holds(self, known: Known, rule: AlertRule, starts: int) -> bool:
        """Whether it has been so for long enough, and may be told now."""
        if self.at < starts or self.at - known.seen < rule.hold + self.waits(rule, BEGUN):
            return False
        return not self.muted(known.matter)

    def muted(self, matter: Matter) -> bool:
        """Whether its host is quiet now."""
        return bool(why_muted(matter, self.book.silences, self.scene, self.at))

    def held_back(self, known: Known, rule: AlertRule) -> Known:
        """What is known, as untold where it was to be told in the morning, and its host has become quiet since."""
        if known.told is not None and self.muted(known.matter) and self.outbox.holds_back(known.matter, rule):
            return known._replace(told=None)
        return known

    def no_longer(self, key: str, known: Known) -> None:
        """What was so, and is not seen to be so now."""
        matter = known.matter
        rule = self.rules.get(matter.rule)
        state = self.scene.hosts.get(matter.host, ("unseen", 0))[0] if matter.host else "fresh"
        ended = matter.until is not None and self.at >= matter.until
        home = self.home(matter)
        if rule is None or not rule.on or state == "unseen" or ended or home not in {None, matter.host}:
            self.outbox.withdraw(key)
            return
        # of a GPU that is gone a builder may know nothing that has begun since; it is not back for that
        if home is None or self.unclear(matter, state):
            self.known[key] = self.held_back(known, rule)
            return
        if not matter.lasting or (known.told is None and not known.unsaid):
            return
        gone = self.at if known.gone is None else min(known.gone, self.at)
        if self.at - gone < rule.over + self.waits(rule, OVER) or self.muted(matter):
            self.known[key] = known._replace(gone=gone)
        elif known.told is not None and rule.recovery:
            since = known.seen if matter.since is None else matter.since
            why = f"rule {rule.name}: it is over {waited(self.at - gone)}, and had to be {waited(rule.over)}"
            was = matter._replace(what=f"until then: {matter.what}" if matter.what else "")
            self.outbox.add(News(was, OVER, since, gone, why, known.told), rule)
        else:
            self.outbox.withdraw(key)

    def home(self, matter: Matter) -> str | None:
        """Where what is known of a host is now: there, but for a GPU that was lost, which may be nowhere."""
        if matter.rule != "gpu-lost" or self.scene.home is None or matter.about.startswith(NAMELESS):
            return matter.host
        return self.scene.home(matter.about)

    def unclear(self, matter: Matter, state: str) -> bool:
        """Whether nobody can know if it is over."""
        if matter.host in self.scene.unclear or matter.rule in self.scene.blind:
            return True
        if matter.rule in OF_FRESH and state != "fresh":
            return True
        return matter.rule == "host-down" and state in {"stale", "maintenance"}
