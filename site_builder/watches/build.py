"""Who is to be told that GPUs are free which they wait for: looked at after each build, and told once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from site_builder.alerts.model import AlertRule, Book, Matter
from site_builder.board.host_pipeline import Card
from site_builder.bookings.data_files import BookingFile
from site_builder.bookings.store import Busy, Unwritable
from site_builder.config.settings import Settings
from site_builder.core import files, own_files
from site_builder.core.clock import Now
from site_builder.core.faults import describe
from site_builder.core.model import FreeGpu, Problem
from site_builder.core.names import folded
from site_builder.watches import parser, request_parser
from site_builder.watches.parser import Watch
from site_builder.watches.rules import Free, by_host, places
from site_builder.watches.store import FILE, LIMIT, Entries, WatchList

RULE = "watch"
# Seconds for which it must be so: between two jobs of one script a GPU is free for a moment.
HOLD = 45
# What was so longer ago than this and was not told, nobody has looked at since.
FORGOTTEN = 300


class Watches:
    """Those of one board; what is wrong with their file stands in `problems`."""

    def __init__(self, settings: Settings) -> None:
        """Take up since when the last builder saw which of them come true."""
        self.settings = settings
        self.file: BookingFile[Watch] = BookingFile(settings.data, None, FILE, parser.read, LIMIT)
        self.store = settings.state / FILE
        self.since: dict[str, int] | None = None
        self.over: set[str] = set()
        self.problems: list[Problem] = []

    def look(self, cards: Mapping[str, Card], rule: AlertRule, now: Now) -> list[Matter]:
        """What has come true, and held for long enough; in quiet hours it waits, for it may be over by their end."""
        rows, self.problems = self.file.read()
        self.over = {one.id for one in rows if one.until <= now.epoch}
        several = list(bounded(one for one in rows if one.until > now.epoch))
        if not several and not self.since and self.since is not None:
            return []
        free = Free(
            (gpu for card in cards.values() if card.summary.state == "fresh" for gpu in card.summary.free), now.epoch
        )
        there = {one.id: (one, gpus) for one in several if (gpus := self.free_for(one, free))}
        before = self.since if self.since is not None else self.recalled(now)
        self.since = {key: min(before.get(key, int(now.epoch)), int(now.epoch)) for key in there}  # a clock may be set
        if self.since != before:
            self.keep()
        if not rule.on or is_quiet(rule, now):
            return []
        return [matter(one, gpus, self.since[one.id]) for one, gpus in there.values() if self.holds(one, now)]

    def free_for(self, one: Watch, free: Free) -> list[FreeGpu]:
        """The GPUs that somebody waits for; a fault of ours costs this watch alone."""
        try:
            return free.for_wish(one.wish)
        except Exception as error:
            what = describe(f"watch {one.id} of {one.name} does not count", error)
            self.problems = [*self.problems, Problem(f"data/{FILE}", what)]
            return []

    def holds(self, one: Watch, now: Now) -> bool:
        """Whether it has been so for long enough."""
        return self.since is not None and now.epoch - self.since[one.id] >= HOLD

    def forget(self, matters: Iterable[Matter], book: Book, expires: bool = True) -> None:
        """Take those away that were told, as the book has it, and if the clock is believed those that are over."""
        gone = {one.about for one in matters if one.rule == RULE and one.key in book.once}
        gone |= self.over if expires else set()
        if not gone:
            return

        def make(entries: Entries) -> Entries:
            return [one for one in entries if not (isinstance(one, dict) and one.get("id") in gone)]

        try:
            WatchList(self.settings.data, self.settings.kv).change(make, patience=0)
        except Busy:
            return  # the next look does it
        except (Unwritable, OSError) as why:
            # the book knows that they were told: they are not told again
            self.problems = [*self.problems, Problem(f"data/{FILE}", f"watches that are over stay there: {why}")]

    def recalled(self, now: Now) -> dict[str, int]:
        """Since when the last builder saw them come true."""
        with suppress(OSError, files.Refused, *own_files.WRONG_SHAPE, RecursionError):
            told = json.loads(own_files.read(self.store))
            return {str(key): int(at) for key, at in told.items() if 0 <= now.epoch - int(at) <= HOLD + FORGOTTEN}
        return {}

    def keep(self) -> None:
        """Keep that for the next builder; where it cannot be kept, they are told a little later."""
        with suppress(OSError):
            files.replace(self.store, json.dumps(self.since).encode(), 0o600)


def bounded(several: Iterable[Watch]) -> Iterable[Watch]:
    """No more of one person than the desk takes: anybody may have written the file."""
    counts: Counter[str] = Counter()
    for one in several:
        counts[folded(one.name)] += 1
        if counts[folded(one.name)] <= parser.MOST_EACH:
            yield one


def is_quiet(rule: AlertRule, now: Now) -> bool:
    """Whether nothing is sent at this time of the day."""
    if rule.quiet is None:
        return False
    minute, (since, until) = now.local.hour * 60 + now.local.minute, rule.quiet
    return since <= minute < until if since <= until else minute >= since or minute < until


def matter(one: Watch, gpus: list[FreeGpu], since: int) -> Matter:
    """What whoever waits for them is told; on one host its numbers, else where each of them is."""
    hosts = list(by_host(gpus))
    host = hosts[0] if len(hosts) == 1 else ""
    numbers = tuple("?" if gpu.index is None else str(gpu.index) for gpu in gpus) if host else ()
    models = ", ".join(dict.fromkeys(gpu.model for gpu in gpus))
    verb = "is" if len(gpus) == 1 else "are"
    what = f"{places(gpus)} {verb} free ({models}); you waited for {request_parser.said(one.wish)}"
    return Matter(RULE, host, one.id, numbers, what, since, (one.name,), (one.name,), lasting=False, via=one.via)
