"""The files of www/: those of the fleet at each build, those of each host after them, and none twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from zlib import crc32

from site_builder.board import pages
from site_builder.board.host_pipeline import BuiltHost
from site_builder.board.outputs import live, output_files, status
from site_builder.board.pages import PAGE_INTERVAL_S, HostPageJob
from site_builder.bookings.build import (
    CALENDAR_PAGE,
    HOST_FEEDS,
    PEOPLE_FEEDS,
    CalendarBuilder,
    CalendarFile,
    CalendarInput,
    find_stale_feeds,
)
from site_builder.bookings.page import CalendarHost
from site_builder.config.settings import Settings
from site_builder.core import files, published_files
from site_builder.core.clock import Now
from site_builder.core.faults import WWW_PREFIX, Catch, FaultLog
from site_builder.core.model import Problem
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import OutputFile
from site_builder.waste.rules import WasteReport

# Seconds that one build of many spends on pages of hosts; the next one goes on.
PAGES_TIME_LIMIT_S = 0.6
# Seconds after which the feeds, up to two thousand files, are looked at though nothing is new: somebody may touch them.
FEED_CHECK_INTERVAL_S = 60
BuiltHosts = Mapping[str, BuiltHost]
HOST_FOLDERS = ("cards", "hosts", *output_files.OUTPUT_FOLDERS)
# How often cron is thought to build where nobody says so.
DEFAULT_BUILD_INTERVAL_S = 60


class SiteWriter:
    """What stands in www/, and what of it is to be written."""

    def __init__(self, settings: Settings, every: int | None) -> None:
        """Take up what the last builder wrote."""
        self.settings = settings
        self.build_interval_s = every or DEFAULT_BUILD_INTERVAL_S
        self.published = published_files.PublishedFiles(settings.www, settings.state)
        self.calendar_builder = CalendarBuilder(settings)
        self.checked_feeds: tuple[Mapping[str, CalendarFile], float] = ({}, 0)
        self.assets_version = ""
        self.has_host_left = False  # whether a host has left the board, but not yet the files of all hosts
        self.written_files: list[str] = []
        self.has_recalled = False
        self.waste: WasteReport | None = None
        self.faults = FaultLog()

    def start_build(self) -> None:
        """A build begins to write."""
        www = self.settings.www
        for folder in (www, *(www / name for name in HOST_FOLDERS)):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.has_recalled:
            self.recall_host_files()
            self.has_recalled = True
        self.written_files = []
        with self.catch_fault("assets"):
            self.assets_version = published_files.copy_assets(www)

    def write_fleet_files(
        self,
        cards: BuiltHosts,
        totals: Mapping[str, int],
        problems: Sequence[Problem],
        now: Now,
        took: float | None = None,
    ) -> None:
        """The files of the fleet, and then the cards that moved; `took` is how long the build before this one did."""
        with self.catch_fault(output_files.AVAILABLE_FILE):
            self.write_changed_files(output_files.build_fleet_available_file(cards), now)
        if self.has_failed(output_files.AVAILABLE_FILE):  # an older one must not hand out a GPU
            self.write_changed_files(
                [OutputFile(output_files.AVAILABLE_FILE, b"none", lambda: b"", has_build_time=False)], now
            )
        moved = {f"cards/{host}.html": (one.digests.card_structure, one.card_html) for host, one in cards.items()}
        stand = {name for name, (facts, _) in moved.items() if self.published.is_unchanged(name, facts)}
        with self.catch_fault("index.html"):
            fleet = self.build_page_content(cards, totals, problems)
            parts = pages.render_board_parts(fleet, now)
            for place, content in parts._asdict().items():
                name = f"cards/_{place}.html"
                moved[name] = facts, _ = files.compute_digest(content), content
                stand |= {name} if self.published.is_unchanged(name, facts) else set()
            revisions = {name: self.find_revision(name, name in stand, now) for name in moved}
            with self.catch_fault("index.html"):
                self.write_board_page(cards, fleet, parts, now)
            with self.catch_fault("icon.svg"):
                self.write_icon(fleet, now)
            with self.catch_fault("live.json"):
                self.write_live_json(cards, fleet, revisions, now)
        with self.catch_fault("status.json"):
            self.write_status_json(cards, problems, now)
        with self.catch_fault("metrics"):
            self.write_file(
                "metrics",
                b"",
                output_files.render_fleet_metrics(cards, problems, now, self.build_interval_s, took),
                now,
            )
        for colour in (False, True):
            with self.catch_fault(output_files.TERM_ANSI_FILE if colour else output_files.TERM_FILE):
                self.write_changed_files([output_files.build_term_file(cards, now, colour)], now)
        with self.catch_fault(output_files.DETAIL_FILE):
            self.write_changed_files([output_files.build_detail_file(cards, now)], now)
        for host, one in cards.items():
            self.write_available_files(host, one, now)
        for name, (facts, content) in moved.items():
            if name not in stand:
                self.write_file(
                    name, facts, b"%d\n%s" % (self.find_revision(name, stands=False, now=now), content), now
                )
        self.remove_old_hosts(cards)

    def catch_fault(self, name: str) -> Catch:
        """Let a fault of ours cost a file of www/ and no other."""
        return self.faults.catch(f"{WWW_PREFIX}{name}")

    def has_failed(self, name: str) -> bool:
        """Whether a file could not be made in this build."""
        return f"{WWW_PREFIX}{name}" in self.faults.failed_places

    def build_page_content(
        self, cards: BuiltHosts, totals: Mapping[str, int], problems: Sequence[Problem]
    ) -> pages.BoardPageContent:
        """What the board says of all hosts together."""
        return pages.BoardPageContent(
            host_states={host: one.summary.state for host, one in cards.items()},
            gpu_counts=totals,
            free_gpus=[gpu for one in cards.values() for gpu in one.summary.free_gpus],
            problems=problems,
            notice=self.settings.notice,
            assets_version=self.assets_version,
            soon_free_gpus=[gpu for one in cards.values() for gpu in one.summary.soon_free_gpus],
            booking_url=self.settings.booking_policy.url,
            waste=self.waste,
            can_watch=bool(self.settings.booking_policy.url and self.settings.alerts.is_enabled),
        )

    def write_available_files(self, host: str, one: BuiltHost, now: Now) -> None:
        """Which GPUs of a host are free; none where we fail at it."""
        name = output_files.build_available_path(host)
        with self.catch_fault(name):
            self.write_changed_files(output_files.build_host_available_files(host, one), now)
        if self.has_failed(name):
            self.write_changed_files(output_files.build_empty_available_files(host, one), now)

    def write_status_json(self, cards: BuiltHosts, problems: Sequence[Problem], now: Now) -> None:
        """status.json, where it says something new."""
        told = repr((problems, self.settings.booking_policy.url)).encode()
        facts = files.compute_digest(told, *(one.digests.status for one in cards.values()))
        if not self.published.is_current("status.json", facts, now.epoch):
            content = status.render_status_json(
                list_status_parts(cards), problems, now.epoch, self.settings.booking_policy.url, self.build_interval_s
            )
            self.write_file("status.json", facts, content, now)

    def find_revision(self, name: str, stands: bool, now: Now) -> int:
        """When the file began to say what it is to say, in milliseconds; now, where it is still to be written."""
        return published_files.to_milliseconds(self.find_write_time(name) if stands else now.epoch)

    def write_board_page(
        self, cards: BuiltHosts, fleet: pages.BoardPageContent, parts: pages.BoardPageParts, now: Now
    ) -> None:
        """index.html."""
        version = f"{fleet.assets_version} {fleet.booking_url}".encode()
        facts = files.compute_digest(version, *parts, *(one.digests.card for one in cards.values()))
        if not self.published.is_current("index.html", facts, now.epoch):
            page = pages.render_board_page([one.card_html for one in cards.values()], parts, fleet, now)
            self.write_file("index.html", facts, page, now)

    def write_icon(self, fleet: pages.BoardPageContent, now: Now) -> None:
        """The picture of its tab."""
        facts = b"%d" % fleet.free_count
        if not self.published.is_unchanged("icon.svg", facts):
            self.write_file("icon.svg", facts, pages.render_icon(fleet.free_count), now)

    def write_live_json(
        self, cards: BuiltHosts, fleet: pages.BoardPageContent, revisions: Mapping[str, int], now: Now
    ) -> None:
        """live.json, at every build: it is what tells an open page that the builder lives."""
        hosts = ((one.live_json[0], revisions[f"cards/{host}.html"], one.live_json[1]) for host, one in cards.items())
        parts = {f"_{name}": revisions[f"cards/_{name}.html"] for name in pages.BoardPageParts._fields}
        built = published_files.to_milliseconds(now.epoch)
        head = live.LiveHeader(
            live.LIVE_SCHEMA, built, self.build_interval_s, fleet.assets_version, fleet.free_count, parts
        )
        self.write_file("live.json", b"", live.render_live_json(head, hosts), now)

    def write_changed_files(self, files: Iterable[OutputFile], now: Now) -> None:
        """Those that say something new; the others are made young again, for their age says that the builder lives."""
        for file in files:
            old = not 0 <= now.epoch - self.find_write_time(file.name) < published_files.REWRITE_INTERVAL_S
            if not self.published.is_unchanged(file.name, file.fingerprint) or (old and file.has_build_time):
                self.write_file(file.name, file.fingerprint, file.render(), now)
            elif old:
                self.published.touch(file.name, now.epoch)

    def update_calendar(self, hosts: Sequence[CalendarHost], people: PeopleDirectory, now: Now) -> None:
        """The calendar and its feeds; a booking at which we fail is left out of them."""
        booked = CalendarInput(tuple(hosts), people, self.assets_version)
        names = {host.name: host for host in hosts}
        if self.try_write_calendar(booked, names, now):
            self.calendar_builder.problems = []
            return
        with self.catch_fault(CALENDAR_PAGE):
            booked = self.calendar_builder.drop_failing_bookings(booked, now)
        self.faults.failed_places = {
            where for where in self.faults.failed_places if not where.startswith(f"{WWW_PREFIX}bookings")
        }
        self.try_write_calendar(booked, names, now)

    def try_write_calendar(self, booked: CalendarInput, names: Mapping[str, object], now: Now) -> bool:
        """Write what says something new, and return whether that succeeded; a feed that lost its last booking is left
        empty, or goes."""
        files: Mapping[str, CalendarFile] = {}
        with self.catch_fault(CALENDAR_PAGE):
            files = self.calendar_builder.build_files(booked, now)
        if self.has_failed(CALENDAR_PAGE):
            return False
        if files is self.checked_feeds[0] and 0 <= now.epoch - self.checked_feeds[1] < FEED_CHECK_INTERVAL_S:
            return True
        for folder in (HOST_FEEDS, PEOPLE_FEEDS):
            (self.settings.www / folder).mkdir(parents=True, exist_ok=True)
        old = dict(find_stale_feeds(self.published, files, names, self.settings.privacy.users, now))
        several = {**files, **old}
        for name, file in several.items():
            with self.catch_fault(name):
                if file is None:
                    self.published.remove(name)
                elif (
                    not self.published.is_unchanged(name, file.fingerprint)
                    or self.compute_file_age(name, now) >= file.max_age_s
                ):
                    self.write_file(name, file.fingerprint, file.render(now), now)
        for where in [
            where
            for where in self.faults.problems_by_place
            if where.startswith((f"{WWW_PREFIX}{HOST_FEEDS}", f"{WWW_PREFIX}{PEOPLE_FEEDS}"))
        ]:
            if where[len(WWW_PREFIX) :] not in several:
                self.faults.forget(where)
        if any(map(self.has_failed, several)):
            return False
        self.checked_feeds = files, now.epoch
        return True

    def compute_file_age(self, name: str, now: Now) -> float:
        """Seconds since a file of ours was written."""
        return now.epoch - self.published.files[name][1]

    def write_file(self, name: str, facts: bytes, content: bytes, now: Now) -> None:
        """A file that does not say this yet."""
        self.published.write(name, facts, content, now.epoch)
        self.written_files.append(name)

    def write_host_pages(self, pages: Iterable[HostPageJob], hosts: Iterable[str], now: Now, patient: bool) -> None:
        """What exists once a host, the oldest first; a builder that comes again soon does what it has time for."""
        end = time.monotonic() + (float("inf") if patient else PAGES_TIME_LIMIT_S)

        def turn(page: HostPageJob) -> tuple[float, int]:
            """Those of one age in another order each time, or the last of them would never have time for charts."""
            return self.find_write_time(page.file_names[0]), crc32(f"{now.epoch} {page.host}".encode())

        for page in sorted(pages, key=turn):
            facts = page.fingerprint + self.assets_version.encode()
            age = now.epoch - self.find_write_time(page.file_names[0])
            same = age < page.max_age_s and all(self.published.is_unchanged(name, facts) for name in page.file_names)
            if (patient or age >= page.interval_s) and not same:
                with self.catch_fault(page.file_names[0]):
                    for name, content in page.render(self.assets_version).items():
                        if name.count("/") > 1:
                            (self.settings.www / name).parent.mkdir(exist_ok=True)
                        self.write_file(name, facts, content, now)
                if time.monotonic() > end:
                    break
        for file in output_files.JOINED_FILES:
            if patient or self.has_host_left or now.epoch - self.find_write_time(file.name) >= PAGE_INTERVAL_S:
                with self.catch_fault(file.name):
                    self.write_joined_file(file, hosts, now)
        self.has_host_left = False

    def write_joined_file(self, file: output_files.JoinedFile, hosts: Iterable[str], now: Now) -> None:
        """A file of all hosts, of what stands in theirs; not before each has one."""
        names = [file.build_host_path(host) for host in hosts]
        told = [self.published.files[name][0].encode() for name in names if name in self.published.files]
        facts = files.compute_digest(*told)
        if len(told) < len(names) or self.published.is_unchanged(file.name, facts):
            return
        # read again: in memory they would be as much as all cards
        with suppress(FileNotFoundError):
            content = file.join((self.settings.www / name).read_bytes() for name in names)
            self.write_file(file.name, facts, content, now)

    def find_write_time(self, name: str) -> float:
        """When a file of ours was written; 0 if it never was."""
        return self.published.files.get(name, ("", 0.0, 0, 0))[1]

    def recall_host_files(self) -> None:
        """Know of the files of hosts that stand there already: a builder that was killed wrote down none of its own."""
        for folder in HOST_FOLDERS:
            with suppress(OSError), os.scandir(self.settings.www / folder) as found:
                for one in found:
                    name = f"{folder}/{one.name}" + ("/index.json" if "." not in one.name or one.is_dir() else "")
                    if name not in self.published.files and not one.name.startswith("."):
                        self.published.files[name] = ("", 0.0, 0, 0)

    def remove_old_hosts(self, cards: BuiltHosts) -> None:
        """Take away what tells of hosts that are no longer on the board."""
        kept = {name for host in cards for name in list_host_file_names(host)}
        kept |= {
            output_files.build_available_path(host, maker)
            for host, maker, _ in output_files.list_other_vendor_hosts(cards)
        }
        kept |= {file.name for file in output_files.JOINED_FILES} | {
            f"cards/_{name}.html" for name in pages.BoardPageParts._fields
        }
        for where in list(self.faults.problems_by_place):
            name = where[len(WWW_PREFIX) :]
            if name.split("/")[0] in HOST_FOLDERS and "/" in name and name not in kept:
                self.faults.forget(where)
        for name in [name for name in self.published.files if name not in kept]:
            folder, *inner = name.split("/")
            if folder not in HOST_FOLDERS:
                continue
            self.published.remove(name)
            self.has_host_left = True
            if len(inner) > 1:
                with suppress(OSError):  # somebody put something there
                    (self.settings.www / folder / inner[0]).rmdir()


def list_host_file_names(host: str) -> tuple[str, ...]:
    """All files that tell of one host alone, but for its bookings."""
    of_host = (
        output_files.build_available_path(host),
        output_files.build_states_path(host),
        output_files.build_node_path(host),
    )
    return f"cards/{host}.html", f"hosts/{host}.html", *of_host


def list_status_parts(cards: BuiltHosts) -> list[tuple[bytes, float | None, bytes]]:
    """Each host's part of status.json."""
    return [(one.status_json[0], one.last_seen, one.status_json[1]) for one in cards.values()]
