"""One build: read data/, decide, render, publish. The clock is read once, by the caller."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, NamedTuple

from site_builder.board.host_pipeline import OLD_STORE_NAME as OLD_CARDS
from site_builder.board.host_pipeline import BuiltHost, HostPipeline
from site_builder.board.pages import HostPageBuilder, HostPageJob, hide_problem_details
from site_builder.board.site_writer import SiteWriter
from site_builder.bookings import page as booking_page
from site_builder.bookings.store import BookingsFile
from site_builder.bookings.tokens import check_tokens
from site_builder.charts.cache import SparklineCache
from site_builder.config.settings import Settings
from site_builder.core import files, published_files
from site_builder.core.clock import Now
from site_builder.core.faults import WWW_PREFIX, describe_fault, is_file_error
from site_builder.core.files import BuildLog
from site_builder.core.model import Problem
from site_builder.core.names import natural_sort_key
from site_builder.core.people import PeopleDirectory
from site_builder.discovery.hosts import HostDiscovery
from site_builder.fleet import booking_use, summary
from site_builder.fleet.build import NO_IDLE_TIMES, HostSources
from site_builder.fleet.gpu_models import NameFiles
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.store import BuilderState
from site_builder.health import events
from site_builder.health.store import RECORD_TIME_LIMIT_S, EventLog
from site_builder.history.model import find_outdated_hosts
from site_builder.history.rollups import OLD_SUMS_FILE as OLD_SUMS
from site_builder.history.writer import HistoryWriter
from site_builder.snapshots.store import OLD_STORE_FILE as OLD_SNAPSHOTS
from site_builder.snapshots.store import SnapshotStore
from site_builder.usage.build import FLEET_PAGE, FleetPage, PeoplePage
from site_builder.usage.build import PEOPLE_PAGE as USERS_PAGE
from site_builder.waste.build import WasteMonitor
from site_builder.waste.rules import WASTE_FILE as WASTE

if TYPE_CHECKING:
    from site_builder.alerts.build import AlertEngine
    from site_builder.board.consul_mirror import ConsulMirror
    from site_builder.consul.leader import Leadership

# Seconds after which the last whole files are written to state/ again, where the same builder goes on.
SAVE_INTERVAL_S = 60
MAX_PROBLEMS = 1000
# Seconds between two builds that cron starts, at most: what lies between is then like the first.
MAX_CRON_INTERVAL_S = 300
# Seconds that the first build waits to know whether it leads: for many a builder it is the only one.
LEADERSHIP_TIMEOUT_S = 5.0
# Seconds of a build that may go into making old history coarser.
ROLL_UP_TIME_LIMIT_S = 0.25


class BuildError(Exception):
    """Why no page was written, in one sentence; the old one stands."""


class BuildReport(NamedTuple):
    """What a build did; `troubles` are sentences on what could not be kept in state/."""

    host_count: int
    gpu_counts: dict[str, int]
    problems: list[Problem]
    written_files: list[str]
    save_errors: list[str]


class Builder:
    """Builds again and again, from one memory of what it has read and made."""

    def __init__(self, settings: Settings, every: int | None = None) -> None:
        """Take up what the last builder left in state/; `every` is how often it builds, where it does so again."""
        self.settings = settings
        self.build_interval_s = every
        data, state = settings.data, settings.state
        remove_executable_files(state)
        self.snapshots = SnapshotStore(data, state, settings.snapshot_bytes)
        self.discovery = HostDiscovery(data, state, settings.consul)
        self.consul_mirror, self.leadership = open_mirror_and_leadership(settings)
        self.is_leader = (
            self.leadership is None
        )  # whether we do what must happen only once; a builder that is alone does all
        self.bookings_file = BookingsFile(data, state, settings.zone)
        self.name_files = NameFiles(data, state)
        self.builder_state = BuilderState(state)
        self.build_duration_s = (
            self.builder_state.build_duration_s
        )  # kept when all is over, or the memory would be written at each build
        self.pipeline = HostPipeline(state)
        self.pipeline.paused_until = self.builder_state.paused_until
        self.site_writer = SiteWriter(settings, every)
        self.faults = self.site_writer.faults  # what we failed at, for the page
        self.faults.recall(self.builder_state.problems)
        self.built_hosts: dict[str, BuiltHost] | None = None  # in this build
        self.history = HistoryWriter(state, settings.zone)
        self.event_log = EventLog(self.history, events.compare_health)
        self.history.idle_percent = settings.limits.idle_percent
        self.waste_monitor = WasteMonitor(self.history, self.builder_state, self.site_writer.build_interval_s)
        self.fleet_page = FleetPage(settings, self.history)
        self.people_page = PeoplePage(settings, self.history, patient=not every)
        self.host_pages, self.sparkline_cache = (
            HostPageBuilder(settings, self.history, self.event_log),
            SparklineCache(settings, self.history),
        )
        self.host_pages.faults = self.sparkline_cache.faults = self.faults
        self.alert_engine = open_alert_engine(settings, self.event_log)
        self.build_log = BuildLog(state)
        self.snapshots_saved_at = 0.0
        self.extra_problems: list[Problem] = []  # what went wrong around the build, for the same page
        self.clock_doubt = ""  # why the clock is not believed; then nothing is removed because its time is over

    def build(self, epoch: float) -> BuildReport:
        """One build, at that moment; whatever goes wrong in it, people are told what is known, and state is saved."""
        now = Now(epoch, self.settings.zone)
        self.built_hosts = None
        try:
            return self.build_at(now)
        except BuildError:
            self.process_alerts(self.built_hosts, now)
            raise
        except Exception as error:
            self.process_alerts(self.built_hosts, now)
            if is_file_error(error):
                where = getattr(error, "filename", None) or self.settings.state
                message = f"{where} could not be read or written: {getattr(error, 'strerror', None)}"
            else:
                message = describe_fault("the board could not be built", error)
            list(self.save_state((), now))
            raise BuildError(message) from error

    def build_at(self, now: Now) -> BuildReport:
        """The same; what is not foreseen here ends this build."""
        began = time.monotonic()
        epoch = now.epoch
        self.faults.start_build()
        forgotten: list[Path] = []
        with self.faults.catch("state/forget", "no host could be forgotten"):
            forgotten = self.forget_hosts()
        self.discovery.start_consul_request()
        if self.consul_mirror:
            self.consul_mirror.start_request()
        hosts, rules, names, problems = self.read_inputs(now)
        cards = self.pipeline.build_hosts(hosts, rules, names, self.settings, now)
        if self.update_builder_state(cards):  # a verdict needs logins that we know, and some are known only now
            rules = replace(rules, people=PeopleDirectory(rules.people.aliases, self.builder_state.logins))
            cards = self.pipeline.build_hosts(hosts, rules, names, self.settings, now)
        hosts = [self.pipeline.drop_files_while_paused(host, now) for host in hosts]
        self.built_hosts = cards
        problems += [problem for one in cards.values() for problem in one.summary.problems]
        with self.faults.catch("data", "GPUs that two hosts tell could not be looked for"):
            problems += summary.find_duplicate_uuids({host: one.summary.uuids for host, one in cards.items()})
        with self.faults.catch("state/history.db", "this minute is missing in it"):
            self.record_history(cards, now)
        problems += self.find_state_problems()
        problems += self.history.problems + (self.alert_engine.list_problems(now) if self.alert_engine else [])
        problems += self.extra_problems
        before = self.list_problems(problems)
        try:
            self.site_writer.waste = self.waste_monitor.update(cards, rules, now)
            self.log_problem_changes(before, now)
            told = before
            if self.try_claim_site(now):
                self.publish(hosts, cards, rules, names, before, now)
                told = self.list_problems(problems)
                if told != before:  # of what could not be made the page knows only now
                    self.log_problem_changes(told, now)
                    self.write_fleet_files(cards, told, now)
        except OSError as error:
            message = f"{error.filename or self.settings.www} could not be written: {error.strerror}"
            raise BuildError(message) from error
        report = BuildReport(
            len(cards),
            count_gpus_by_state(cards),
            told,
            self.site_writer.written_files,
            list(self.save_state(forgotten, now)),
        )
        self.process_alerts(cards, now)
        self.history.roll_up(epoch, ROLL_UP_TIME_LIMIT_S)
        self.build_duration_s = round(time.monotonic() - began, 3)
        return report

    def list_problems(self, problems: Sequence[Problem]) -> list[Problem]:
        """All problems, those of outputs among them, in their order."""
        found = {*problems, *self.faults.problems, *self.site_writer.calendar_builder.problems}
        return truncate_problems(sorted(found, key=lambda one: (one.where, one.what)))

    def record_history(self, cards: Mapping[str, BuiltHost], now: Now) -> None:
        """Write the minute into history."""
        old = find_outdated_hosts({host: (one.summary.uuids, one.last_seen) for host, one in cards.items()})
        samples = [one.packed_sample for host, one in cards.items() if one.packed_sample and host not in old]
        self.history.record(samples, now.epoch, self.build_interval_s or MAX_CRON_INTERVAL_S)
        signs = {host: None if host in old else one.packed_health for host, one in cards.items()}
        self.event_log.record(signs, now.epoch, RECORD_TIME_LIMIT_S if self.build_interval_s else float("inf"))

    def write_fleet_files(self, cards: Mapping[str, BuiltHost], problems: Sequence[Problem], now: Now) -> None:
        """Write the files of the fleet that say something new."""
        self.site_writer.write_fleet_files(
            cards, count_gpus_by_state(cards), hide_problem_details(problems, self.settings), now, self.build_duration_s
        )

    def publish(
        self,
        hosts: list[HostSources],
        cards: dict[str, BuiltHost],
        rules: StateRules,
        names: dict[str, str],
        problems: Sequence[Problem],
        now: Now,
    ) -> None:
        """Write what says something new: that of the fleet first, and what exists once a host after it."""
        site = self.site_writer
        site.start_build()
        self.write_fleet_files(cards, problems, now)
        with site.catch_fault(WASTE):
            self.waste_monitor.write(site, now)
        site.update_calendar(
            [build_calendar_host(host, cards[host.discovered.name]) for host in hosts], rules.people, now
        )
        with site.catch_fault(FLEET_PAGE):
            self.fleet_page.write(site, rules.people, now)
        with site.catch_fault(USERS_PAGE):
            self.people_page.write(site, cards, rules.people, now)
        self.host_pages.start_build(cards, patient=not self.build_interval_s)
        pages: list[HostPageJob] = []
        for host in hosts:
            name = host.discovered.name
            with self.faults.catch(f"{WWW_PREFIX}hosts/{name}.html", clears=False):
                pages += self.host_pages.build_page_jobs(host, cards[name], rules, names, now)
        site.write_host_pages(pages, cards, now, patient=not self.build_interval_s)

    def process_alerts(self, cards: Mapping[str, BuiltHost] | None, now: Now) -> None:
        """Have people told what is new, if that is for us to do; without cards, what waits."""
        if self.alert_engine:
            self.alert_engine.expires = not self.clock_doubt
            self.alert_engine.process_build(cards, now, lambda: self.leadership is None or self.leadership.is_leader())

    def try_claim_site(self, now: Now) -> bool:
        """Whether the site is ours: we lead, or wrote it last, or nobody did; a builder that is alone has it always."""
        if self.leadership is None:
            return True
        led, self.is_leader = (
            self.is_leader,
            self.leadership.is_leader(0.0 if self.snapshots_saved_at else LEADERSHIP_TIMEOUT_S),
        )
        if self.is_leader and not led and self.leadership.status and self.leadership.status.taken_from:
            self.build_log.write(
                now.local, f"this builder leads now: {self.leadership.status.taken_from} has been silent"
            )
        writer = published_files.find_site_writer(self.settings.www, now.epoch)
        if not self.is_leader and writer not in (None, self.leadership.name):
            self.site_writer.written_files, self.site_writer.has_recalled = (
                [],
                False,
            )  # another one writes, and leaves files of its own
            return False
        published_files.claim_site(self.settings.www, self.leadership.name, now.epoch)
        return True

    def read_inputs(self, now: Now) -> tuple[list[HostSources], StateRules, dict[str, str], list[Problem]]:
        """All that there is to know: hosts, by what to judge them, names of GPUs, and what is wrong."""
        copied: list[Problem] = []
        with self.faults.catch("Consul", "what it has could not be copied"):
            copied += self.consul_mirror.copy_changes() if self.consul_mirror else []
            copied += self.leadership.list_problems() if self.leadership else []
        try:
            told, problems = self.snapshots.read_hosts()
        except OSError as error:
            message = f"{self.settings.data} cannot be read: {error.strerror}"
            raise BuildError(message) from error
        aliases, gpu_names, more = self.name_files.read_names()
        problems += copied + more + files.list_problems(self.settings.data)
        every_booking, more = self.bookings_file.read()
        problems += more
        by_name = {one.name: one for one in told}
        known, more = self.discovery.list_hosts(by_name)
        problems += more
        bookings, more = booking_use.group_bookings_by_host(every_booking, known, now)
        problems += more
        shown = [name for name, one in known.items() if not one.is_hidden]
        lines = self.sparkline_cache.render_hosts(shown, now.epoch, patient=not self.build_interval_s)
        hosts = [
            HostSources(
                one,
                by_name.get(name),
                bookings.get(name, ()),
                self.builder_state.idle_times.get(name, NO_IDLE_TIMES),
                self.builder_state.booking_uses.get(name, {}),
                lines.get(name, {}),
            )
            for name, one in sorted(known.items(), key=lambda item: natural_sort_key(item[0]))
            if not one.is_hidden
        ]
        rules = StateRules(
            self.settings.limits, PeopleDirectory(aliases, self.builder_state.logins), self.settings.privacy
        )
        return hosts, rules, gpu_names, problems

    def find_state_problems(self) -> list[Problem]:
        """Report files of state/ that were found empty or damaged, and could not be rebuilt."""
        memory = [Problem("state/memory.json", self.builder_state.problem)] if self.builder_state.problem else []
        return memory + check_tokens(self.settings.state)

    def update_builder_state(self, cards: dict[str, BuiltHost]) -> bool:
        """Remember what the next build cannot see for itself; whether there are logins that were not known."""
        known = len(self.builder_state.logins)
        for host, card in cards.items():
            with self.faults.catch(host, "what it tells could not be remembered"):
                self.update_host_state(host, card)
        for remembered in (self.builder_state.booking_uses, self.builder_state.paused_until):
            for gone in remembered.keys() - cards.keys():
                del remembered[gone]
        return len(self.builder_state.logins) > known

    def update_host_state(self, host: str, card: BuiltHost) -> None:
        """The same of one host."""
        self.builder_state.add_logins(card.summary.logins)
        idle = card.summary.idle_times
        if idle and idle.idle_since:
            self.builder_state.idle_times[host] = idle
        elif idle:
            self.builder_state.idle_times.pop(host, None)
        self.builder_state.update_booking_uses(host, card.summary.booking_uses)

    def forget_hosts(self) -> list[Path]:
        """Let go of the hosts that `gpuboard forget` named."""
        folder = self.settings.state / "forget"
        requests = list(folder.iterdir()) if folder.is_dir() else []
        for request in requests:
            self.snapshots.forget_host(request.name)
            if self.consul_mirror:  # what the build before this one copied, while the entry was being deleted
                self.consul_mirror.forget_host(request.name)
            self.builder_state.idle_times.pop(request.name, None)
            self.builder_state.booking_uses.pop(request.name, None)
        return requests

    def log_problem_changes(self, problems: Sequence[Problem], now: Now) -> None:
        """Log which problems are new and which are over."""
        current = {f"{one.where}: {one.what}" for one in problems}
        for sentence in sorted(current - self.builder_state.problems):
            self.build_log.write(now.local, f"new: {sentence}")
        for sentence in sorted(self.builder_state.problems - current):
            self.build_log.write(now.local, f"over: {sentence}")
        self.builder_state.problems = current

    def save_state(self, forgotten: Sequence[Path], now: Now) -> Iterator[str]:
        """Keep what the next build needs; the site is written by then, so that a failure is no more than told."""
        if forgotten or now.epoch - self.snapshots_saved_at >= SAVE_INTERVAL_S:
            yield from self.try_save(self.snapshots.save)
            self.snapshots_saved_at = now.epoch
        yield from self.try_save(self.builder_state.save)
        yield from self.try_save(self.site_writer.published.save)
        for request in forgotten:
            yield from self.try_save(lambda request=request: request.unlink(missing_ok=True))  # type: ignore[misc]

    def try_save(self, work: Callable[[], object]) -> Iterator[str]:
        """Do something for the next build, or say why that is not possible."""
        try:
            work()
        except OSError as error:
            where = error.filename or self.settings.state
            yield f"{where} could not be written: {error.strerror}; the site is, but not what it remembers"
        except Exception as error:
            yield describe_fault("what the builder remembers could not be written", error)

    def close(self) -> None:
        """Keep what was read and made for the next builder, which else does both again."""
        self.builder_state.build_duration_s = self.build_duration_s
        parts = (self.snapshots, self.pipeline, self.sparkline_cache, self.builder_state, self.people_page)
        for part in parts:
            with suppress(Exception):
                part.save()
        self.history.close()
        if self.leadership:
            self.leadership.close()


def remove_executable_files(state: Path) -> None:
    """Delete, unread, what an older gpuboard kept in formats that can execute code; all of it is rebuilt."""
    with suppress(OSError):
        for name in (OLD_CARDS, OLD_SNAPSHOTS, OLD_SUMS):
            (state / name).unlink(missing_ok=True)
            (state / f".{name}.new").unlink(missing_ok=True)
        compiled = state / "templates"  # by Jinja
        if compiled.is_symlink():
            compiled.unlink()
        elif compiled.is_dir():
            rmtree(compiled)


def open_mirror_and_leadership(settings: Settings) -> tuple[ConsulMirror | None, Leadership | None]:
    """What a builder needs that reads from Consul's KV store, as others may do too."""
    if settings.kv is None:
        return None, None
    from site_builder.board.consul_mirror import ConsulMirror  # noqa: PLC0415 few need it
    from site_builder.consul.leader import Leadership  # noqa: PLC0415

    return ConsulMirror(settings.data, settings.state, settings.kv), Leadership(settings.state, settings.kv)


def open_alert_engine(settings: Settings, events: EventLog) -> AlertEngine | None:
    """What tells people, where there is a way to."""
    if not settings.alerts.is_enabled:
        return None
    from site_builder.alerts.build import AlertEngine  # noqa: PLC0415 most have none
    from site_builder.watches.build import WatchConditions  # noqa: PLC0415

    return AlertEngine(settings, events, WatchConditions(settings))


def count_gpus_by_state(cards: Mapping[str, BuiltHost]) -> dict[str, int]:
    """How many GPUs there are in each state."""
    return dict(sum((Counter(one.summary.state_counts) for one in cards.values()), Counter()))


def build_calendar_host(host: HostSources, card: BuiltHost) -> booking_page.CalendarHost:
    """What the calendar takes of a host."""
    return booking_page.CalendarHost(host.discovered.name, tuple(host.bookings), card.summary.gpu_identities)


def truncate_problems(problems: list[Problem]) -> list[Problem]:
    """As many as a page can hold: whoever has more must begin somewhere."""
    if len(problems) <= MAX_PROBLEMS:
        return problems
    return [*problems[:MAX_PROBLEMS], Problem("data", f"and {len(problems) - MAX_PROBLEMS} more problems")]
