"""The files of www/: those of the fleet at each build, those of each host after them, and none twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from site_builder.board import icon, live
from site_builder.board import page as board_page
from site_builder.board.host_pipeline import Card
from site_builder.board.outputs import registry, status
from site_builder.bookings import calendar
from site_builder.bookings.build import HOSTS, PAGE, PEOPLE, Booked, Calendars, File, left_over
from site_builder.config.settings import Settings
from site_builder.core import published_files
from site_builder.core.clock import Now
from site_builder.core.faults import WWW, Catch, Faults
from site_builder.core.model import Problem
from site_builder.core.people import People
from site_builder.waste.model import Wasted

# A host's page is written anew once in so many seconds, where something changed.
PAGE_EVERY = 50
# Seconds that one build of many spends on pages of hosts; the next one goes on.
PAGES_WITHIN = 0.6
# Seconds after which the feeds, up to two thousand files, are looked at though nothing is new: somebody may touch them.
LOOK_EVERY = 60
Cards = Mapping[str, Card]
FOLDERS = ("cards", "hosts", *registry.FOLDERS)
# How often cron is thought to build where nobody says so.
UNTOLD_EVERY = 60


class Page(NamedTuple):
    """A host's own page, or what else exists once a host: what tells one content from the next, and the files' names.

    `make` gives the contents by these names, for a version of the assets; where something changed it does so once in
    `every` seconds, and after `lasts` seconds in any case. Those of one host and of one age follow each other.
    """

    host: str
    facts: bytes
    names: tuple[str, ...]
    make: Callable[[str], Mapping[str, bytes]]
    every: float = PAGE_EVERY
    lasts: float = float("inf")


class Site:
    """What stands in www/, and what of it is to be written."""

    def __init__(self, settings: Settings, every: int | None) -> None:
        """Take up what the last builder wrote."""
        self.settings = settings
        self.every = every or UNTOLD_EVERY
        self.published = published_files.Published(settings.www, settings.state)
        self.calendars = Calendars(settings)
        self.looked_at: tuple[Mapping[str, File], float] = ({}, 0)
        self.version = ""
        self.left = False  # whether a host has left the board, but not yet the files of all hosts
        self.written: list[str] = []
        self.recalled = False
        self.wasted: Wasted | None = None
        self.faults = Faults()

    def start(self) -> None:
        """A build begins to write."""
        www = self.settings.www
        for folder in (www, *(www / name for name in FOLDERS)):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.recalled:
            self.recall()
            self.recalled = True
        self.written = []
        with self.catch("assets"):
            self.version = published_files.copy_assets(www)

    def fleet(
        self,
        cards: Cards,
        totals: Mapping[str, int],
        problems: Sequence[Problem],
        now: Now,
        took: float | None = None,
    ) -> None:
        """The files of the fleet, and then the cards that moved; `took` is how long the build before this one did."""
        with self.catch(registry.ALL_AVAILABLE):
            self.write_files(registry.available_all(cards), now)
        if self.failed(registry.ALL_AVAILABLE):  # an older one must not hand out a GPU
            self.write_files([registry.File(registry.ALL_AVAILABLE, b"none", lambda: b"", dated=False)], now)
        moved = {f"cards/{host}.html": (one.digests.structure, one.html) for host, one in cards.items()}
        stand = {name for name, (facts, _) in moved.items() if self.published.says(name, facts)}
        with self.catch("index.html"):
            fleet = self.board_fleet(cards, totals, problems)
            parts = board_page.parts(fleet, now)
            for place, content in parts._asdict().items():
                name = f"cards/_{place}.html"
                moved[name] = facts, _ = published_files.digest(content), content
                stand |= {name} if self.published.says(name, facts) else set()
            revisions = {name: self.revision(name, name in stand, now) for name in moved}
            with self.catch("index.html"):
                self.write_board(cards, fleet, parts, now)
            with self.catch("icon.svg"):
                self.write_icon(fleet, now)
            with self.catch("live.json"):
                self.write_live(cards, fleet, revisions, now)
        with self.catch("status.json"):
            self.write_status(cards, problems, now)
        with self.catch("metrics"):
            self.write("metrics", b"", registry.metrics_of(cards, problems, now, self.every, took), now)
        for colour in (False, True):
            with self.catch(registry.TERM_ANSI if colour else registry.TERM):
                self.write_files([registry.term_table(cards, now, colour)], now)
        with self.catch(registry.DETAIL):
            self.write_files([registry.detail_table(cards, now)], now)
        for host, one in cards.items():
            self.write_available(host, one, now)
        for name, (facts, content) in moved.items():
            if name not in stand:
                self.write(name, facts, b"%d\n%s" % (self.revision(name, stands=False, now=now), content), now)
        self.forget(cards)

    def catch(self, name: str) -> Catch:
        """Let a fault of ours cost a file of www/ and no other."""
        return self.faults.catch(f"{WWW}{name}")

    def failed(self, name: str) -> bool:
        """Whether a file could not be made in this build."""
        return f"{WWW}{name}" in self.faults.noted

    def board_fleet(self, cards: Cards, totals: Mapping[str, int], problems: Sequence[Problem]) -> board_page.Fleet:
        """What the board says of all hosts together."""
        return board_page.Fleet(
            {host: one.summary.state for host, one in cards.items()},
            totals,
            [gpu for one in cards.values() for gpu in one.summary.free],
            problems,
            self.settings.notice,
            self.version,
            [gpu for one in cards.values() for gpu in one.summary.coming],
            self.settings.rules.url,
            self.wasted,
            bool(self.settings.rules.url and self.settings.alerts.wanted),
        )

    def write_available(self, host: str, one: Card, now: Now) -> None:
        """Which GPUs of a host are free; none where we fail at it."""
        name = registry.available_of(host)
        with self.catch(name):
            self.write_files(registry.available_host(host, one), now)
        if self.failed(name):
            self.write_files(registry.none_available(host, one), now)

    def write_status(self, cards: Cards, problems: Sequence[Problem], now: Now) -> None:
        """status.json, where it says something new."""
        told = repr((problems, self.settings.rules.url)).encode()
        facts = published_files.digest(told, *(one.digests.status for one in cards.values()))
        if not self.published.is_current("status.json", facts, now.epoch):
            content = status.status(rows(cards), problems, now.epoch, self.settings.rules.url, self.every)
            self.write("status.json", facts, content, now)

    def revision(self, name: str, stands: bool, now: Now) -> int:
        """When the file began to say what it is to say, in milliseconds; now, where it is still to be written."""
        return published_files.milliseconds(self.when(name) if stands else now.epoch)

    def write_board(self, cards: Cards, fleet: board_page.Fleet, parts: board_page.Parts, now: Now) -> None:
        """index.html."""
        version = f"{fleet.version} {fleet.book}".encode()
        facts = published_files.digest(version, *parts, *(one.digests.html for one in cards.values()))
        if not self.published.is_current("index.html", facts, now.epoch):
            page = board_page.board([one.html for one in cards.values()], parts, fleet, now)
            self.write("index.html", facts, page, now)

    def write_icon(self, fleet: board_page.Fleet, now: Now) -> None:
        """The picture of its tab."""
        facts = b"%d" % fleet.free_count
        if not self.published.says("icon.svg", facts):
            self.write("icon.svg", facts, icon.icon(fleet.free_count), now)

    def write_live(self, cards: Cards, fleet: board_page.Fleet, revisions: Mapping[str, int], now: Now) -> None:
        """live.json, at every build: it is what tells an open page that the builder lives."""
        hosts = ((one.live[0], revisions[f"cards/{host}.html"], one.live[1]) for host, one in cards.items())
        parts = {f"_{name}": revisions[f"cards/_{name}.html"] for name in board_page.Parts._fields}
        built = published_files.milliseconds(now.epoch)
        head = live.Head(live.SCHEMA, built, self.every, fleet.version, fleet.free_count, parts)
        self.write("live.json", b"", live.live(head, hosts), now)

    def write_files(self, files: Iterable[registry.File], now: Now) -> None:
        """Those that say something new; the others are made young again, for their age says that the builder lives."""
        for file in files:
            old = not 0 <= now.epoch - self.when(file.name) < published_files.SIGN_OF_LIFE
            if not self.published.says(file.name, file.facts) or (old and file.dated):
                self.write(file.name, file.facts, file.make(), now)
            elif old:
                self.published.touch(file.name, now.epoch)

    def calendar(self, hosts: Sequence[calendar.Host], people: People, now: Now) -> None:
        """The calendar and its feeds; a booking at which we fail is left out of them."""
        booked = Booked(tuple(hosts), people, self.version)
        names = {host.name: host for host in hosts}
        if self.write_calendar(booked, names, now):
            self.calendars.problems = []
            return
        with self.catch(PAGE):
            booked = self.calendars.without_bad_bookings(booked, now)
        self.faults.noted = {where for where in self.faults.noted if not where.startswith(f"{WWW}bookings")}
        self.write_calendar(booked, names, now)

    def write_calendar(self, booked: Booked, names: Mapping[str, object], now: Now) -> bool:
        """Write what says something new, and return whether that succeeded; a feed that lost its last booking is left
        empty, or goes."""
        files: Mapping[str, File] = {}
        with self.catch(PAGE):
            files = self.calendars.files(booked, now)
        if self.failed(PAGE):
            return False
        if files is self.looked_at[0] and 0 <= now.epoch - self.looked_at[1] < LOOK_EVERY:
            return True
        for folder in (HOSTS, PEOPLE):
            (self.settings.www / folder).mkdir(parents=True, exist_ok=True)
        old = dict(left_over(self.published, files, names, self.settings.shown.users, now))
        several = {**files, **old}
        for name, file in several.items():
            with self.catch(name):
                if file is None:
                    self.published.remove(name)
                elif not self.published.says(name, file.facts) or self.age(name, now) >= file.lasts:
                    self.write(name, file.facts, file.make(now), now)
        for where in [where for where in self.faults.found if where.startswith((f"{WWW}{HOSTS}", f"{WWW}{PEOPLE}"))]:
            if where[len(WWW) :] not in several:
                self.faults.forget(where)
        if any(map(self.failed, several)):
            return False
        self.looked_at = files, now.epoch
        return True

    def age(self, name: str, now: Now) -> float:
        """Seconds since a file of ours was written."""
        return now.epoch - self.published.files[name][1]

    def write(self, name: str, facts: bytes, content: bytes, now: Now) -> None:
        """A file that does not say this yet."""
        self.published.write(name, facts, content, now.epoch)
        self.written.append(name)

    def hosts(self, pages: Iterable[Page], hosts: Iterable[str], now: Now, patient: bool) -> None:
        """What exists once a host, the oldest first; a builder that comes again soon does what it has time for."""
        end = time.monotonic() + (float("inf") if patient else PAGES_WITHIN)

        def turn(page: Page) -> tuple[float, int]:
            """Those of one age in another order each time, or the last of them would never have time for charts."""
            return self.when(page.names[0]), crc32(f"{now.epoch} {page.host}".encode())

        for page in sorted(pages, key=turn):
            facts = page.facts + self.version.encode()
            age = now.epoch - self.when(page.names[0])
            same = age < page.lasts and all(self.published.says(name, facts) for name in page.names)
            if (patient or age >= page.every) and not same:
                with self.catch(page.names[0]):
                    for name, content in page.make(self.version).items():
                        if name.count("/") > 1:
                            (self.settings.www / name).parent.mkdir(exist_ok=True)
                        self.write(name, facts, content, now)
                if time.monotonic() > end:
                    break
        for file in registry.JOINED:
            if patient or self.left or now.epoch - self.when(file.name) >= PAGE_EVERY:
                with self.catch(file.name):
                    self.join(file, hosts, now)
        self.left = False

    def join(self, file: registry.Joined, hosts: Iterable[str], now: Now) -> None:
        """A file of all hosts, of what stands in theirs; not before each has one."""
        names = [file.of_host(host) for host in hosts]
        told = [self.published.files[name][0].encode() for name in names if name in self.published.files]
        facts = published_files.digest(*told)
        if len(told) < len(names) or self.published.says(file.name, facts):
            return
        # read again: in memory they would be as much as all cards
        with suppress(FileNotFoundError):
            content = file.make((self.settings.www / name).read_bytes() for name in names)
            self.write(file.name, facts, content, now)

    def when(self, name: str) -> float:
        """When a file of ours was written; 0 if it never was."""
        return self.published.files.get(name, ("", 0.0, 0, 0))[1]

    def recall(self) -> None:
        """Know of the files of hosts that stand there already: a builder that was killed wrote down none of its own."""
        for folder in FOLDERS:
            with suppress(OSError), os.scandir(self.settings.www / folder) as found:
                for one in found:
                    name = f"{folder}/{one.name}" + ("/index.json" if "." not in one.name or one.is_dir() else "")
                    if name not in self.published.files and not one.name.startswith("."):
                        self.published.files[name] = ("", 0.0, 0, 0)

    def forget(self, cards: Cards) -> None:
        """Take away what tells of hosts that are no longer on the board."""
        kept = {name for host in cards for name in names_of(host)}
        kept |= {registry.available_of(host, maker) for host, maker, _ in registry.available_beside(cards)}
        kept |= {file.name for file in registry.JOINED} | {f"cards/_{name}.html" for name in board_page.Parts._fields}
        for where in list(self.faults.found):
            name = where[len(WWW) :]
            if name.split("/")[0] in FOLDERS and "/" in name and name not in kept:
                self.faults.forget(where)
        for name in [name for name in self.published.files if name not in kept]:
            folder, *inner = name.split("/")
            if folder not in FOLDERS:
                continue
            self.published.remove(name)
            self.left = True
            if len(inner) > 1:
                with suppress(OSError):  # somebody put something there
                    (self.settings.www / folder / inner[0]).rmdir()


def names_of(host: str) -> tuple[str, ...]:
    """All files that tell of one host alone, but for its bookings."""
    of_host = (registry.available_of(host), registry.states_of(host), registry.node_of(host))
    return f"cards/{host}.html", f"hosts/{host}.html", *of_host


def rows(cards: Cards) -> list[tuple[bytes, float | None, bytes]]:
    """Each host's part of status.json."""
    return [(one.status[0], one.seen, one.status[1]) for one in cards.values()]
