"""Where bookings are made: lock, read again, check, log, write. Nothing else writes comments.json."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from site_builder.bookings import consul_store, json_edit, merge, operations, parser, policy, store
from site_builder.bookings.host_lookup import Lab
from site_builder.bookings.policy import Refused
from site_builder.bookings.transaction import Changes, Found, Turn, Who, Wish
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking
from site_builder.core.shared_folder import booking_file
from site_builder.core.timeparse import moments, recurrence

TRIES = 5
BUSY = frozenset({"busy", "held", "violated"})


class Broken(Exception):
    """Why the file cannot be read, so that nothing is written: the line, and what helps."""


class Done(NamedTuple):
    """What was done, or would be: in words, what to know beside it, and the bookings that it is about."""

    words: str
    warnings: tuple[str, ...]
    bookings: tuple[Booking, ...]
    undoes: str | None = None


class Desk:
    """Takes one wish after the other; each sees the file as it is when its turn comes."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        """Whose bookings, and by which clock."""
        self.settings = settings
        self.clock = clock

    def now(self) -> Now:
        """This moment."""
        return Now(self.clock(), self.settings.zone)

    def look(self, who: Who) -> Turn:
        """The file as it is, for somebody who wants to know; what cannot be read is `Broken`."""
        return self.turn(consul_store.ledger_of(self.settings.data, self.settings.kv).glance(), who)

    def turn(self, content: bytes, who: Who) -> Turn:
        """A turn with this content."""
        try:
            file = json_edit.Text.of(content)
        except parser.Unreadable as why:
            path = booking_file(self.settings.data)
            good = path.with_name(store.GOOD)
            kept = f"; {store.GOOD} beside it could be read last" if good.exists() else ""
            message = f"{path} cannot be read, and is left as it is: {why}{kept}"
            raise Broken(message) from None
        return Turn(file, Lab(self.settings), self.now(), self.settings.rules, who)

    def act(
        self,
        who: Who,
        what: str,
        act: Callable[[Turn], str],
        check: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> Done:
        """One turn: `act` changes the file and says what it did; with `check` it is only said."""

        def make(content: bytes) -> tuple[Turn, str]:
            found = self.turn(content, who)
            return found, act(found)

        if check:
            return self.done(*make(consul_store.ledger_of(self.settings.data, self.settings.kv).glance()))
        return self.write(who, what, make, {} if more is None else more)  # undo fills it in `act`

    def put(self, who: Who, original: bytes, edited: bytes) -> Done:
        """The whole file as somebody edited it, with what others changed meanwhile; it may repair a broken one."""

        def make(content: bytes) -> tuple[Turn, str]:
            found = self.turn(edited, who)
            if content != original:
                if not is_readable(original):
                    message = f"{booking_file(self.settings.data)} was repaired by somebody else meanwhile"
                    raise Refused(message)
                merge.into(found, *(self.turn(one, who) for one in (original, content)))
            before = merge.logged(self.turn(content, who)) if is_readable(content) else []
            found.before, found.after = merge.only_first(before, merge.logged(found))
            return found, merge.told(found.before, found.after)

        return self.write(who, "edit", make, {})

    def write(self, who: Who, what: str, make: Callable[[bytes], tuple[Turn, str]], more: Mapping[str, Any]) -> Done:
        """Under the lock: `make` makes of the file what it shall be, and says what that is."""
        for _ in range(TRIES):
            with consul_store.locked(self.settings.data, self.settings.kv) as book:
                found, said = make(book.read())
                check_written(found, min(book.most, store.MOST_WRITTEN if what == "book" else store.LIMIT))
                line = {
                    "change": secrets.token_hex(4),
                    "when": found.now.local.isoformat(" ", "seconds"),
                    "who": who.name,
                    "via": who.via,
                    "what": what,
                    **more,
                    "before": found.before,
                    "after": found.after,
                }
                book.log(line)
                if book.write(found.file.data):
                    return self.done(found, said)
                # somebody wrote it by hand between our two looks, or at another web host
                book.log({**line, "what": "nothing", "before": [], "after": [], "instead": line["change"]})
        message = f"{booking_file(self.settings.data)} was changed by others {TRIES} times meanwhile: try again"
        raise store.Unwritable(message)

    def done(self, found: Turn, said: str) -> Done:
        """What there is to say of a turn."""
        return Done(said, tuple(warnings(found)), tuple(found.touched))

    def book(self, who: Who, choose: Callable[[Turn], Wish], check: bool = False) -> Done:
        """Book what `choose` finds, all of it or nothing."""

        def act(found: Turn) -> str:
            operations.book(found, choose(found))
            return told(found.touched, found)

        return self.act(who, "book", act, check)

    def change(self, who: Who, booking: str, changes: Changes, host: str | None = None, check: bool = False) -> Done:
        """Change a booking that is not over."""

        def act(found: Turn) -> str:
            operations.change(found, found.of_id(booking, host), changes)
            return told(found.touched, found)

        return self.act(who, "change", act, check)

    def release(self, who: Who, choose: Callable[[Turn], Sequence[Found]], check: bool = False) -> Done:
        """Release what `choose` finds."""

        def act(found: Turn) -> str:
            operations.release(found, choose(found))
            return released(found.touched, found)

        return self.act(who, "release", act, check)

    def undo(self, who: Who, which: str | None = None, check: bool = False) -> Done:
        """Take back the last change that this person made and has not taken back; an admin, that anybody made.

        `which` is the one that was shown before: where another came in between, nothing is taken back.
        """
        chosen: dict[str, str] = {}

        def act(found: Turn) -> str:
            line = self.last(found)
            if which and line["change"] != which:
                message = f"{line['who']} has changed something since: look again"
                raise Refused(message)
            chosen["undoes"] = line["change"]
            operations.undo(found, line)
            back = "; ".join(told(one, found) for one in apart(found.touched))
            gone = f"the booking of {places_of((one[0], one[1]) for one in found.before)} is gone again"
            whose = line["who"] if found.names_shown else "somebody"
            return f"taken back what {whose} did at {line['when'][:16]} ({line['what']}): {back or gone}"

        return self.act(who, "undo", act, check, chosen)._replace(undoes=chosen["undoes"])

    def last(self, found: Turn) -> dict[str, Any]:
        """The line of the log that is to be taken back."""
        undone = set()
        who = found.who
        for line in store.Ledger(self.settings.data).logged():
            undone |= {line.get("undoes"), line.get("instead")}
            mine = who.admin or found.person(line["who"]) == found.person(who.name)
            ours = line["what"] in {"book", "change", "release", "edit"} and (line["before"] or line["after"])
            if mine and ours and line["change"] not in undone and operations.in_force(found, line):
                return line
        message = f"there is nothing that {who.name} changed and that could be taken back"
        raise Refused(message)


def check_written(found: Turn, most: int) -> None:
    """Refuse what could not be read again, or would not count: whoever booked it would have nothing."""
    new = found.file.data
    if len(new) > most:
        message = f"comments.json is full: it may have {most} bytes, and would have {len(new)}"
        raise Refused(message)
    there = [[one.booking.host, one.booking.gpu, one.entry.content] for one in found.found()]
    if not all(one in there for one in found.after):
        message = f"comments.json is full: more than {parser.MOST_BOOKINGS} bookings are not counted"
        raise Refused(message)


def told(several: Sequence[Booking], found: Turn) -> str:
    """`atlas:0,1 for alice from now until Fri 20 Nov 18:00 (4 d 4 h)`."""
    one, now = several[0], found.now
    whose = f" for {one.name}" if found.may_see(one) else ""
    if one.rrule and one.since:
        again = recurrence.said(one.rrule, one.since, one.until, now.zone)
        return f"{places(several)}{whose} {again}, first {moments.said(one.since, now.local)}"
    begun = one.since is None or policy.epoch(one.since) <= now.epoch
    since = "now" if begun else moments.said(one.since or one.until, now.local)
    begins = now.epoch if begun or one.since is None else policy.epoch(one.since)
    length = formatting.duration(policy.epoch(one.until) - begins)
    return f"{places(several)}{whose} from {since} until {moments.said(one.until, now.local)} ({length})"


def apart(several: Sequence[Booking]) -> list[list[Booking]]:
    """Those that are said in one sentence, because they differ in nothing but the GPU."""
    groups: dict[object, list[Booking]] = {}
    for one in several:
        groups.setdefault((one.name, one.since, one.until, one.rrule), []).append(one)
    return list(groups.values())


def is_readable(content: bytes) -> bool:
    """Whether anything of a file can be read."""
    try:
        return bool(json_edit.Text.of(content))
    except parser.Unreadable:
        return False


def released(several: Sequence[Booking], found: Turn) -> str:
    """What is free again, from when on."""
    one, now = several[0], found.now
    whose = f" of {one.name}" if found.may_see(one) else ""
    if one.rrule:
        return f"{places(several)}{whose} is not booked again; what has begun goes on to its end"
    coming = one.since is not None and policy.epoch(one.since) > now.epoch
    since = f"the booking from {moments.said(one.since, now.local)}" if coming and one.since else "what is left"
    return f"{places(several)}{whose}: {since} until {moments.said(one.until, now.local)} is released"


def places(several: Sequence[Booking]) -> str:
    """`atlas:0,1 and zeus`."""
    return places_of((one.host, one.gpu) for one in several)


def places_of(pairs: Iterable[tuple[str, str]]) -> str:
    """The same of hosts and GPUs."""
    by_host: dict[str, list[str]] = {}
    for host, gpu in pairs:
        by_host.setdefault(host, []).append(gpu)
    return " and ".join(host if "*" in gpus else f"{host}:{','.join(gpus)}" for host, gpus in by_host.items())


def warnings(found: Turn) -> list[str]:
    """What somebody who books should know: who is on it, and that a host is silent."""
    if not found.after:
        return []
    wanted = {one.host for one in found.touched}
    said = []
    for name, host in found.lab.look(wanted, (), found.now).items():
        if host.state != "fresh":
            said.append(f"{name} is {host.state}: {host.reason}")
            continue
        keys = {one.gpu.lower() for one in found.touched if one.host == name and begins_soon(one, found.now)}
        for gpu in host.gpus:
            mine = keys & {"*", *gpu.gpu.names}
            if mine and gpu.state in BUSY | {"lost", "unknown"}:
                said.append(f"{name}:{gpu.gpu.label} is {gpu.state}: {gpu.reason}")
    return said


def begins_soon(one: Booking, now: Now) -> bool:
    """Whether it matters who is on it now."""
    return one.since is None or one.since.timestamp() <= now.epoch + formatting.HOUR
