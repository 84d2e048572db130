"""Write the files of www/: those of the fleet at each build, then those of each host that are due."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from zlib import crc32

import orjson

from site_builder.board import pages
from site_builder.board.host_pipeline import BuiltHosts
from site_builder.board.outputs import available, detail, host_json, metrics, term
from site_builder.board.pages import PAGE_INTERVAL_S, HostPageJob
from site_builder.bookings.calendar import CALENDAR_PAGE, CalendarBuilder, CalendarHost, CalendarInput
from site_builder.bookings.ics import HOST_FEEDS, PEOPLE_FEEDS, CalendarFile, find_stale_ics_feeds
from site_builder.config.settings import Settings
from site_builder.core import files, published_files
from site_builder.core.clock import Now
from site_builder.core.faults import WWW_PREFIX, Catch, FaultLog
from site_builder.core.model import REWRITE_INTERVAL_S, Problem
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import PublishedFile
from site_builder.fleet import status_json
from site_builder.waste.rules import WasteReport

# Seconds that one build of many spends on pages of hosts, and about how many hosts it has time for; the next build
# continues.
PAGES_TIME_LIMIT_S, MAX_DUE_HOSTS = 0.6, 100
# Seconds after which all feeds, up to two thousand files, are checked though nothing is new: somebody may change one.
FEED_CHECK_INTERVAL_S = 60
# How often cron is assumed to build.
DEFAULT_BUILD_INTERVAL_S = 60
PROGRAM_FOLDERS = (host_json.STATES_FOLDER, host_json.NODES_FOLDER, host_json.NVGPU_FOLDER)
HOST_FOLDERS = ("cards", "hosts", *available.AVAILABLE_FOLDERS, *PROGRAM_FOLDERS)
# Up to so many hosts, files for programs with all hosts are written at each build; of more hosts, at the pace of pages.
MAX_PROMPT_HOSTS = 200
JOINED_DIGEST = files.compute_digest(repr(published_files.CODE_FINGERPRINT).encode())
LIVE_SCHEMA = 1
BOARD_PART_FILES = {part: f"cards/_{part}.html" for part in pages.BoardPageParts._fields}


class SiteWriter:
    """Writes www/: each file only if its content is new, and a fault of ours costs one file only."""

    def __init__(self, settings: Settings, build_interval_s: int | None) -> None:
        self.settings = settings
        self.build_interval_s = build_interval_s or DEFAULT_BUILD_INTERVAL_S
        self.published = published_files.PublishedFiles(settings.www, settings.state)
        self.calendar_builder = CalendarBuilder(settings)
        self.checked_feeds: tuple[Mapping[str, CalendarFile], float] = ({}, 0)
        self.assets_version = ""
        self.has_host_left = False  # a host has left the board, but the joined files still have it
        self.written_files: list[str] = []
        self.has_recalled = False
        self.waste: WasteReport | None = None
        self.faults = FaultLog()

    def start_build(self) -> None:
        www = self.settings.www
        for folder in (www, *(www / name for name in HOST_FOLDERS)):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.has_recalled:  # a builder that was killed did not save its record of files
            for folder_name in HOST_FOLDERS:
                with suppress(OSError), os.scandir(www / folder_name) as entries:
                    for entry in entries:
                        if not entry.name.startswith("."):
                            name = complete_recalled_name(folder_name, entry)
                            self.published.files.setdefault(name, ("", 0.0, 0, 0))
            self.has_recalled = True
        self.written_files = []
        with self.catch_fault("assets"):
            self.assets_version = published_files.publish_assets(www)

    def catch_fault(self, name: str) -> Catch:
        """Limit the damage of a fault of ours to one file of www/."""
        return self.faults.catch(f"{WWW_PREFIX}{name}")

    def has_failed(self, name: str) -> bool:
        return f"{WWW_PREFIX}{name}" in self.faults.failed_places

    def find_write_time(self, name: str) -> float:
        """Return when a file was written; 0 if it never was."""
        return self.published.files.get(name, ("", 0.0, 0, 0))[1]

    def write_file(self, name: str, fingerprint: bytes, content: bytes, now: Now) -> None:
        self.published.write(name, fingerprint, content, now.epoch)
        self.written_files.append(name)

    def write_changed_files(self, files: Iterable[PublishedFile], now: Now) -> None:
        """Write the files whose fingerprint is new; touch the others, since their age shows that the builder runs."""
        for file in files:
            is_old = not 0 <= now.epoch - self.find_write_time(file.name) < REWRITE_INTERVAL_S
            if not self.published.is_unchanged(file.name, file.fingerprint) or (is_old and file.has_build_time):
                self.write_file(file.name, file.fingerprint, file.render(), now)
            elif is_old:
                self.published.touch(file.name, now.epoch)

    # Files of the fleet

    def write_fleet_files(
        self, built_hosts: BuiltHosts, all_problems: Sequence[Problem], now: Now, build_duration_s: float | None
    ) -> None:
        """Write the files of the fleet and the cards that changed; `build_duration_s` is that of the last build."""
        problems = pages.hide_page_problem_details(all_problems, self.settings)
        with self.catch_fault(available.AVAILABLE_FILE):
            self.write_changed_files([available.build_fleet_available_file(built_hosts)], now)
        if self.has_failed(available.AVAILABLE_FILE):  # an older one must not offer a GPU
            empty = PublishedFile(available.AVAILABLE_FILE, b"none", lambda: b"", has_build_time=False)
            self.write_changed_files([empty], now)
        # cards and the parts of index.html, which open pages fetch one by one
        fragments = {
            f"cards/{host}.html": (built_host.digests.card_structure, built_host.rendered.card_html)
            for host, built_host in built_hosts.items()
        }
        unchanged = {name for name, (digest, _) in fragments.items() if self.published.is_unchanged(name, digest)}
        now_ms = int(now.epoch * 1000)
        with self.catch_fault("index.html"):
            parts = pages.render_board_parts(built_hosts, problems, self.waste, self.settings, now)
            for part, content in parts._asdict().items():
                name, digest = BOARD_PART_FILES[part], files.compute_digest(content)
                fragments[name] = digest, content
                if self.published.is_unchanged(name, digest):
                    unchanged.add(name)
            # since when each fragment has its content
            revisions = {
                name: int(self.find_write_time(name) * 1000) if name in unchanged else now_ms for name in fragments
            }
            with self.catch_fault("index.html"):
                self.write_board_page(built_hosts, parts, len(problems), now)
            free_count = pages.count_board_gpus_by_state(built_hosts)["free"]
            with self.catch_fault("icon.svg"):
                if not self.published.is_unchanged("icon.svg", b"%d" % free_count):
                    self.write_file("icon.svg", b"%d" % free_count, pages.render_page_icon(free_count), now)
            with self.catch_fault("live.json"):
                self.write_live_json(built_hosts, free_count, revisions, now)
        with self.catch_fault("status.json"):
            self.write_status_json(built_hosts, problems, now)
        with self.catch_fault("metrics"):
            content = metrics.render_metrics(built_hosts, len(problems), now, self.build_interval_s, build_duration_s)
            self.write_file("metrics", b"", content, now)
        for colour in (False, True):
            with self.catch_fault(term.TERM_ANSI_FILE if colour else term.TERM_FILE):
                self.write_changed_files([term.build_term_file(built_hosts, now, colour)], now)
        with self.catch_fault(detail.DETAIL_FILE):
            self.write_changed_files([detail.build_detail_file(built_hosts, now)], now)
        for host, built_host in built_hosts.items():
            name = available.build_available_path(host)
            with self.catch_fault(name):
                self.write_changed_files(available.build_host_available_files(host, built_host), now)
            if self.has_failed(name):
                self.write_changed_files(available.build_empty_available_files(host, built_host), now)
        for name, (digest, content) in fragments.items():
            if name not in unchanged:
                self.write_file(name, digest, b"%d\n%s" % (now_ms, content), now)
        self.remove_old_hosts(built_hosts)

    def write_board_page(
        self, built_hosts: BuiltHosts, parts: pages.BoardPageParts, problem_count: int, now: Now
    ) -> None:
        version, booking_url = self.assets_version, self.settings.booking_policy.url
        card_digests = [built_host.digests.card for built_host in built_hosts.values()]
        has_watches = self.settings.alerts.is_enabled
        fingerprint = files.compute_digest(f"{version} {booking_url} {has_watches}".encode(), *parts, *card_digests)

        def render() -> bytes:
            return pages.render_board_page(built_hosts, parts, problem_count, version, booking_url, has_watches, now)

        self.write_changed_files([PublishedFile("index.html", fingerprint, render)], now)

    def write_live_json(self, built_hosts: BuiltHosts, free_count: int, revisions: Mapping[str, int], now: Now) -> None:
        """Write live.json at every build: by it an open page sees that the builder runs.

        A revision is when a card or a part of the page last changed in more than its numbers, in milliseconds.
        """
        header = {
            "schema": LIVE_SCHEMA,
            "built": int(now.epoch * 1000),
            "every": self.build_interval_s,
            "version": self.assets_version,
            "free": free_count,
            "parts": {f"_{part}": revisions[name] for part, name in BOARD_PART_FILES.items()},
        }
        hosts = []
        for host, built_host in built_hosts.items():
            rendered, revision = built_host.rendered, revisions[f"cards/{host}.html"]
            hosts.append(b"%s%d%s" % (rendered.live_before_revision, revision, rendered.live_after_revision))
        content = orjson.dumps(header)[:-1] + b',"hosts":[' + b",\n".join(hosts) + b"]}\n"
        self.write_file("live.json", b"", content, now)

    def write_status_json(self, built_hosts: BuiltHosts, problems: Sequence[Problem], now: Now) -> None:
        booking_url, users_shown = self.settings.booking_policy.url, self.settings.privacy.users
        digests = [built_host.digests.status for built_host in built_hosts.values()]
        fingerprint = files.compute_digest(repr((problems, booking_url, users_shown)).encode(), *digests)

        def render() -> bytes:
            hosts = (
                (host.rendered.status_before_age, host.last_seen, host.rendered.status_after_age)
                for host in built_hosts.values()
            )
            return status_json.render_status_json(
                hosts, problems, now.epoch, booking_url, self.build_interval_s, users_shown
            )

        self.write_changed_files([PublishedFile("status.json", fingerprint, render)], now)

    def remove_old_hosts(self, built_hosts: BuiltHosts) -> None:
        current = {*BOARD_PART_FILES.values(), *(file.name for file in host_json.JOINED_FILES)}
        for host, built_host in built_hosts.items():
            current |= {
                f"cards/{host}.html",
                f"hosts/{host}.html",
                *host_json.list_host_json_paths(host),
                *available.list_available_paths(host, built_host),
            }
        for place in list(self.faults.problems_by_place):
            name = place[len(WWW_PREFIX) :]
            if name.split("/")[0] in HOST_FOLDERS and "/" in name and name not in current:
                self.faults.forget(place)
        for name in [name for name in self.published.files if name not in current]:
            folder, *rest = name.split("/")
            if folder not in HOST_FOLDERS:
                continue
            self.published.remove(name)
            self.has_host_left = True
            if len(rest) > 1:
                with suppress(OSError):  # somebody else's files are in it
                    (self.settings.www / folder / rest[0]).rmdir()

    # The calendar

    def update_calendar(self, hosts: Sequence[CalendarHost], people: PeopleDirectory, now: Now) -> None:
        """Write the calendar and its feeds, without the bookings at which that fails."""
        calendar_input = CalendarInput(tuple(hosts), people, self.assets_version)
        if self.try_write_calendar(calendar_input, now):
            self.calendar_builder.problems = []
            return
        with self.catch_fault(CALENDAR_PAGE):
            calendar_input = self.calendar_builder.drop_failing_bookings(calendar_input, now)
        self.faults.failed_places = {
            place for place in self.faults.failed_places if not place.startswith(f"{WWW_PREFIX}bookings")
        }
        self.try_write_calendar(calendar_input, now)

    def try_write_calendar(self, calendar_input: CalendarInput, now: Now) -> bool:
        """Write the files that are new, and return True if none failed; empty or remove feeds without bookings."""
        calendar_files: Mapping[str, CalendarFile] = {}
        with self.catch_fault(CALENDAR_PAGE):
            calendar_files = self.calendar_builder.build_files(calendar_input, now)
        if self.has_failed(CALENDAR_PAGE):
            return False
        last_files, checked_at = self.checked_feeds
        if calendar_files is last_files and 0 <= now.epoch - checked_at < FEED_CHECK_INTERVAL_S:
            return True
        for folder in (HOST_FEEDS, PEOPLE_FEEDS):
            (self.settings.www / folder).mkdir(parents=True, exist_ok=True)
        hosts = {host.name: host for host in calendar_input.hosts}
        stale = dict(find_stale_ics_feeds(self.published, calendar_files, hosts, self.settings.privacy.users, now))
        due = {**calendar_files, **stale}
        for name, file in due.items():
            with self.catch_fault(name):
                if file is None:
                    self.published.remove(name)
                elif (
                    not self.published.is_unchanged(name, file.fingerprint)
                    or now.epoch - self.find_write_time(name) >= file.max_age_s
                ):
                    self.write_file(name, file.fingerprint, file.render(now), now)
        feed_places = (f"{WWW_PREFIX}{HOST_FEEDS}", f"{WWW_PREFIX}{PEOPLE_FEEDS}")
        for place in list(self.faults.problems_by_place):
            if place.startswith(feed_places) and place[len(WWW_PREFIX) :] not in due:
                self.faults.forget(place)
        if any(map(self.has_failed, due)):
            return False
        self.checked_feeds = calendar_files, now.epoch
        return True

    # Files of each host

    def list_due_hosts(self, hosts: Iterable[str], now: Now, is_single_build: bool) -> set[str]:
        """List the hosts whose own files this build will write if they are new: those with the oldest files."""
        written_at = {host: self.find_write_time(host_json.build_host_json_states_path(host)) for host in hosts}
        due = [host for host, at in written_at.items() if is_single_build or now.epoch - at >= PAGE_INTERVAL_S]
        return set(sorted(due, key=written_at.__getitem__)[:MAX_DUE_HOSTS])

    def write_host_pages(
        self, jobs: Iterable[HostPageJob], built_hosts: BuiltHosts, now: Now, is_single_build: bool
    ) -> None:
        """Write the pages of hosts that are due, the oldest first; one build of many has a time limit."""
        deadline = time.monotonic() + (float("inf") if is_single_build else PAGES_TIME_LIMIT_S)

        def sort_key(job: HostPageJob) -> tuple[float, int]:
            # pages of one age in another order each time, or the last of them would never have time for charts
            return self.find_write_time(job.file_names[0]), crc32(f"{now.epoch} {job.host}".encode())

        for job in sorted(jobs, key=sort_key):
            fingerprint = job.fingerprint + self.assets_version.encode()
            age_s = now.epoch - self.find_write_time(job.file_names[0])
            is_current = age_s < job.max_age_s and all(
                self.published.is_unchanged(name, fingerprint) for name in job.file_names
            )
            if is_current or not (is_single_build or age_s >= job.interval_s):
                continue
            with self.catch_fault(job.file_names[0]):
                for name, content in job.render(self.assets_version).items():
                    if name.count("/") > 1:
                        (self.settings.www / name).parent.mkdir(exist_ok=True)
                    self.write_file(name, fingerprint, content, now)
            if time.monotonic() > deadline:
                break
        is_prompt = is_single_build or self.has_host_left or len(built_hosts) <= MAX_PROMPT_HOSTS
        for shape in host_json.JOINED_FILES:
            if is_prompt or now.epoch - self.find_write_time(shape.name) >= PAGE_INTERVAL_S:
                with self.catch_fault(shape.name):
                    self.write_joined_file(shape, built_hosts, now)
        self.has_host_left = False

    def write_joined_file(self, shape: host_json.HostJsonShape, built_hosts: BuiltHosts, now: Now) -> None:
        """Write the file of all hosts in a shape; a host at which that fails is in it without its GPUs."""
        digests = [built_host.digests.status for built_host in built_hosts.values()]
        fingerprint = files.compute_digest(JOINED_DIGEST, str(now.zone).encode(), *digests)
        if self.published.is_unchanged(shape.name, fingerprint):
            return
        self.write_file(shape.name, fingerprint, shape.join(self.render_joined_hosts(shape, built_hosts, now)), now)

    def render_joined_hosts(self, shape: host_json.HostJsonShape, built_hosts: BuiltHosts, now: Now) -> Iterator[bytes]:
        for host, built_host in built_hosts.items():
            content = b""
            with self.catch_fault(host_json.build_host_json_states_path(host)):
                content = shape.render_host(built_host.load_status(), now)
            yield content or shape.render_host(host_json.build_failed_status_host(host), now)


def complete_recalled_name(folder_name: str, entry: os.DirEntry[str]) -> str:
    """Return the name of a published file, by an entry of its folder that may be the folder of a host."""
    file_name = host_json.NVGPU_HOST_FILE if folder_name == host_json.NVGPU_FOLDER else "index.json"
    return f"{folder_name}/{entry.name}/{file_name}" if entry.is_dir() else f"{folder_name}/{entry.name}"
