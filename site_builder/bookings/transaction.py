"""One turn at the desk: the file as it is found, what somebody may do with it, and what they made of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from site_builder.bookings import json_edit, parser, policy
from site_builder.bookings.host_lookup import Lab
from site_builder.bookings.parser import Entry
from site_builder.bookings.policy import NotYours, Refused
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import Booking, BookingRules

# Letters and digits that nobody takes for each other.
LETTERS = "bcdfghjkmnpqrstvwxz23456789"
ID_LETTERS = 6
# As an entry stands in the log: its host, its GPU, and itself.
Logged = list[Any]


class Who(NamedTuple):
    """Who stands at the desk, and how they came; at an `open` one everybody is whom they say."""

    name: str
    admin: bool = False
    via: str = "command"
    open: bool = False


class Wish(NamedTuple):
    """What somebody wants: hosts and GPUs, from when, until when, for whom, and what for."""

    places: Sequence[tuple[str, str]]
    since: datetime
    until: datetime
    name: str
    comment: str = ""
    rrule: str | None = None
    run: str | None = None


class Changes(NamedTuple):
    """What of a booking shall be other; None stays."""

    since: datetime | None = None
    until: datetime | None = None
    name: str | None = None
    comment: str | None = None


class Found(NamedTuple):
    """An entry that counts, and the booking that it is."""

    entry: Entry
    booking: Booking


@dataclass
class Turn:
    """The file, and what has been done to it so far."""

    file: json_edit.Text
    lab: Lab
    now: Now
    rules: BookingRules
    who: Who

    def __post_init__(self) -> None:
        """Nothing is done yet."""
        self.before: list[Logged] = []
        self.after: list[Logged] = []
        self.touched: list[Booking] = []
        self.read: tuple[json_edit.Text | None, list[Found]] = (None, [])

    def found(self) -> list[Found]:
        """Every booking that counts, under the name by which we know its host."""
        if self.read[0] is not self.file:
            self.read = self.file, self.understood()
        return self.read[1]

    def understood(self) -> list[Found]:
        """The same, read from the file as it is now."""
        names = self.lab.names()
        return [
            Found(entry, replace(booking, host=names.find(booking.host) or booking.host))
            for entry, booking in parser.understood(self.file.plain, self.now.zone, [])
        ]

    # Changes to the file

    def add(self, host: str, *several: tuple[str, Mapping[str, object]]) -> None:
        """Entries more, for a host under whatever name it has in the file."""
        keys = [one.key for one in self.file.hosts()]
        names = self.lab.names()
        same = [key for key in keys if key != host and names.find(key) == host]
        self.file = json_edit.added_all(self.file, same[-1] if same and host not in keys else host, several)
        self.after += [[host, gpu, dict(content)] for gpu, content in several]

    def remove(self, one: Found) -> None:
        """One entry less."""
        self.file = json_edit.removed(self.file, self.again(one))
        self.before.append([one.booking.host, one.booking.gpu, one.entry.content])

    def replace(self, one: Found, content: Mapping[str, object]) -> None:
        """Other values in an entry."""
        entry = self.again(one)
        self.file = json_edit.replaced(self.file, entry, content)
        gone = {key for key, value in content.items() if value is None}
        new = {key: value for key, value in {**entry.content, **content}.items() if key not in gone}
        self.before.append([one.booking.host, one.booking.gpu, entry.content])
        self.after.append([one.booking.host, one.booking.gpu, new])

    def again(self, one: Found) -> Entry:
        """Where an entry stands now, after other changes."""
        return next(
            entry
            for entry in self.file.entries()
            if (entry.host, entry.gpu, entry.content) == (one.entry.host, one.entry.gpu, one.entry.content)
        )

    # What somebody may do

    def person(self, name: str | None) -> str:
        """One word for one person."""
        return self.lab.people.person(name or "")

    def may_name(self, name: str) -> None:
        """Refuse a booking under another's name where the lab does not allow that."""
        other = self.person(name) != self.person(self.who.name)
        if other and not (self.who.open or self.who.admin or self.rules.for_others):
            message = f"you are {self.who.name}: here nobody but an admin books under the name of {name}"
            raise NotYours(message)

    @property
    def names_shown(self) -> bool:
        """Whether people may be named to whoever stands here."""
        return self.lab.settings.shown.users or self.who.admin

    def is_mine(self, one: Booking) -> bool:
        """Whether it is for whoever stands here, or made by them."""
        names = {self.person(name) for name in (one.name, one.by) if name}
        return bool(self.who.name) and self.person(self.who.name) in names

    def may_see(self, one: Booking) -> bool:
        """Whether they may be told whose it is."""
        return self.names_shown or self.is_mine(one)

    def may_change(self, one: Booking) -> None:
        """Refuse to touch the booking of somebody else."""
        if not (self.is_mine(one) or self.who.admin or self.who.open):
            whose = f"{one.name or 'nobody'}'s" if self.names_shown else "somebody else's"
            message = f"booking {one.id} is {whose}, and only they or an admin may change it"
            raise NotYours(message)

    def of_id(self, text: str, host: str | None = None) -> list[Found]:
        """The entries of a booking; `host` is needed where somebody copied it to another, with its id."""
        found = [one for one in self.found() if one.booking.id == text and host in {None, one.booking.host}]
        if not found:
            message = f"there is no booking {text[:80]}: `gpuboard bookings` lists them"
            raise Refused(message)
        hosts = {one.booking.host for one in found}
        if len(hosts) > 1:
            message = f"booking {text} is on {formatting.names(sorted(hosts))}: name the host too"
            raise Refused(message)
        return found

    def check(self, new: Sequence[Booking], others: Iterable[Booking]) -> None:
        """Refuse what clashes with others, is too long, or too much for one person."""
        others = list(others)
        limits = BookingRules() if self.who.admin else self.rules
        for one in new:
            policy.check_time(one.since or one.until, one.until, limits, self.now)
        self.check_free(new, others)
        self.check_share(new, others, limits)

    def check_share(self, new: Sequence[Booking], others: Sequence[Booking], limits: BookingRules) -> None:
        """Refuse what is too much for whoever it is for, or for whoever books it under another's name."""
        if not (limits.gpus or limits.hours):
            return
        for person in {self.person(name) for one in new for name in (one.name, one.by) if name}:
            theirs = [one for one in others if person in {self.person(one.name), self.person(one.by)}]
            hosts = {one.host for one in (*new, *theirs) if one.gpu == "*"}
            size = policy.sizes({host: self.lab.gpus(host) for host in hosts})
            policy.check_share(new, theirs, size, limits, self.now)

    def check_free(self, new: Sequence[Booking], others: Sequence[Booking], *, given_up: float | None = None) -> None:
        """Refuse what is promised to somebody else, or was after it was given up."""
        for one in new:
            keys = policy.Keys(self.lab.gpus(one.host))
            there = [other for other in others if other.host == one.host]
            policy.check_overlap(one, there, keys, self.now, self.names_shown, given_up=given_up)

    def new_id(self, run: str | None = None) -> str:
        """One that no booking has; a run names its own, so that it can release what it never heard of again."""
        taken = {one.booking.id for one in self.found()}
        if run and run in taken:
            message = f"there is a booking {run} already"
            raise Refused(message)
        while run is None and (found := "".join(secrets.choice(LETTERS) for _ in range(ID_LETTERS))) in taken:
            pass
        return run or found
