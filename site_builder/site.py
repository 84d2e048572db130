"""The files of www/: those of the fleet at each build, those of each host after them, and none twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from site_builder import publish
from site_builder.calendars import HOSTS, PEOPLE, Booked, Calendars, File, left_over
from site_builder.cards import Card
from site_builder.decide import calendar
from site_builder.decide.people import People
from site_builder.model import Problem
from site_builder.now import Now
from site_builder.renderers import board, icon, live, status
from site_builder.settings import Settings

# A host's page is written anew once in so many seconds, where something changed.
PAGE_EVERY = 50
# Seconds that one build of many spends on pages of hosts; the next one goes on.
PAGES_WITHIN = 0.4
# Seconds after which the feeds, up to two thousand files, are looked at though nothing is new: somebody may touch them.
LOOK_EVERY = 60
Cards = Mapping[str, Card]
FOLDERS = ("cards", "hosts")
# How often cron is thought to build where nobody says so.
UNTOLD_EVERY = 60


class Page(NamedTuple):
    """A host's own page: what tells one content from the next, and what makes it of the version of the assets."""

    facts: bytes
    make: Callable[[str], bytes]


class Site:
    """What stands in www/, and what of it is to be written."""

    def __init__(self, settings: Settings, every: int | None) -> None:
        """Take up what the last builder wrote."""
        self.settings = settings
        self.every = every or UNTOLD_EVERY
        self.published = publish.Published(settings.www, settings.state)
        self.calendars = Calendars(settings)
        self.looked_at: tuple[Mapping[str, File], float] = ({}, 0)
        self.version = ""
        self.written: list[str] = []

    def fleet(self, cards: Cards, totals: Mapping[str, int], problems: Sequence[Problem], now: Now) -> None:
        """The files of the fleet, and then the cards that moved."""
        www = self.settings.www
        for folder in (www, *(www / name for name in FOLDERS)):
            folder.mkdir(parents=True, exist_ok=True)
        self.written = []
        self.version = publish.copy_assets(www)
        fleet = board.Fleet(
            {host: one.summary.state for host, one in cards.items()},
            totals,
            [gpu for one in cards.values() for gpu in one.summary.free],
            problems,
            self.settings.notice,
            publish.copy_assets(www),
            [gpu for one in cards.values() for gpu in one.summary.coming],
            self.settings.rules.url,
        )
        parts = board.parts(fleet, now)
        self.write_board(cards, fleet, parts, now)
        moved = {f"cards/{host}.html": (one.digests.structure, one.html) for host, one in cards.items()}
        for name, content in parts._asdict().items():
            moved[f"cards/_{name}.html"] = publish.digest(content), content
        revisions = {name: self.published.revision(name, facts, now.epoch) for name, (facts, _) in moved.items()}
        self.write_live(cards, fleet, revisions, now)
        told = repr((problems, self.settings.rules.url)).encode()
        facts = publish.digest(told, *(one.digests.status for one in cards.values()))
        if not self.published.is_current("status.json", facts, now.epoch):
            content = status.status(rows(cards), problems, now.epoch, self.settings.rules.url)
            self.write("status.json", facts, content, now)
        for name, (facts, content) in moved.items():
            if not self.published.says(name, facts):
                self.write(name, facts, b"%d\n%s" % (revisions[name], content), now)
        self.forget(cards)

    def write_board(self, cards: Cards, fleet: board.Fleet, parts: board.Parts, now: Now) -> None:
        """index.html, and the picture of its tab."""
        version = f"{fleet.version} {fleet.book}".encode()
        facts = publish.digest(version, *parts, *(one.digests.html for one in cards.values()))
        if not self.published.is_current("index.html", facts, now.epoch):
            page = board.board([one.html for one in cards.values()], parts, fleet, now)
            self.write("index.html", facts, page, now)
        facts = b"%d" % fleet.free_count
        if not self.published.says("icon.svg", facts):
            self.write("icon.svg", facts, icon.icon(fleet.free_count), now)

    def write_live(self, cards: Cards, fleet: board.Fleet, revisions: Mapping[str, int], now: Now) -> None:
        """live.json, at every build: it is what tells an open page that the builder lives."""
        hosts = ((one.live[0], revisions[f"cards/{host}.html"], one.live[1]) for host, one in cards.items())
        parts = {f"_{name}": revisions[f"cards/_{name}.html"] for name in board.Parts._fields}
        built = publish.milliseconds(now.epoch)
        head = live.Head(live.SCHEMA, built, self.every, fleet.version, fleet.free_count, parts)
        self.write("live.json", b"", live.live(head, hosts), now)

    def calendar(self, hosts: Sequence[calendar.Host], people: People, now: Now) -> None:
        """The calendar and its feeds; those that lost their last booking are left empty, or go."""
        files = self.calendars.files(Booked(tuple(hosts), people, self.version), now)
        if files is self.looked_at[0] and 0 <= now.epoch - self.looked_at[1] < LOOK_EVERY:
            return
        for folder in (HOSTS, PEOPLE):
            (self.settings.www / folder).mkdir(parents=True, exist_ok=True)
        names = {host.name: host for host in hosts}
        old = list(left_over(self.published, files, names, self.settings.shown.users, now))
        for name, file in (*files.items(), *old):
            if file is None:
                self.published.remove(name)
            elif not self.published.says(name, file.facts) or self.age(name, now) >= file.lasts:
                self.write(name, file.facts, file.make(now), now)
        self.looked_at = files, now.epoch

    def age(self, name: str, now: Now) -> float:
        """Seconds since a file of ours was written."""
        return now.epoch - self.published.files[name][1]

    def write(self, name: str, facts: bytes, content: bytes, now: Now) -> None:
        """A file that does not say this yet."""
        self.published.write(name, facts, content, now.epoch)
        self.written.append(name)

    def hosts(self, pages: Mapping[str, Page], now: Now, patient: bool) -> None:
        """The hosts' own pages, the oldest first; where the builder comes again soon, as many as there is time for."""
        end = time.monotonic() + (float("inf") if patient else PAGES_WITHIN)
        version = self.version

        def written(host: str) -> float:
            return self.published.files.get(f"hosts/{host}.html", ("", 0.0, 0, 0))[1]

        for host in sorted(pages, key=written):
            name, page = f"hosts/{host}.html", pages[host]
            facts = page.facts + version.encode()
            old = patient or now.epoch - written(host) >= PAGE_EVERY
            if old and not self.published.says(name, facts):
                self.write(name, facts, page.make(version), now)
                if time.monotonic() > end:
                    break

    def forget(self, cards: Cards) -> None:
        """Take away what tells of hosts that are no longer on the board."""
        for name in list(self.published.files):
            folder, _, file = name.partition("/")
            if folder in FOLDERS and not file.startswith("_") and file[: -len(".html")] not in cards:
                self.published.remove(name)


def rows(cards: Cards) -> list[tuple[bytes, float | None, bytes]]:
    """Each host's part of status.json."""
    return [(one.status[0], one.seen, one.status[1]) for one in cards.values()]
