"""One build: read data/, build each host, publish. The caller reads the clock, once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, NamedTuple

from site_builder.board import host_pipeline
from site_builder.board.consul_mirror import ConsulMirror
from site_builder.board.host_pipeline import BuiltHost, BuiltHosts, HostPipeline
from site_builder.board.pages import HostPageBuilder, HostPageJob, count_board_gpus_by_state
from site_builder.board.site_writer import SiteWriter
from site_builder.bookings.calendar import CalendarHost
from site_builder.bookings.store import BookingsFile
from site_builder.bookings.tokens import find_booking_token_problems
from site_builder.charts.cache import SparklineCache
from site_builder.config.settings import Settings
from site_builder.consul.leader import Leadership
from site_builder.core import published_files
from site_builder.core.clock import Now
from site_builder.core.data_folder import list_data_folder_problems
from site_builder.core.faults import WWW_PREFIX, describe_fault, is_file_system_fault
from site_builder.core.files import append_to_build_log
from site_builder.core.model import Problem
from site_builder.core.names import natural_sort_key
from site_builder.core.people import PeopleDirectory
from site_builder.discovery.hosts import HostDiscovery
from site_builder.fleet import booking_use, summary
from site_builder.fleet.gpu_models import NameFiles
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.host_state import NO_IDLE_TIMES, HostStatusSources
from site_builder.fleet.store import FleetStore
from site_builder.fleet.summary import find_outdated_hosts_in_summaries
from site_builder.health.store import RECORD_TIME_LIMIT_S, HealthEventStore
from site_builder.history.rollups import OLD_SUMS_FILE
from site_builder.history.writer import HistoryWriter
from site_builder.snapshots.store import OLD_STORE_FILE, SnapshotStore
from site_builder.usage.fleet_page import FLEET_PAGE, FleetPageBuilder
from site_builder.usage.people_page import PEOPLE_PAGE, PeoplePageBuilder
from site_builder.waste.build import WasteMonitor
from site_builder.waste.render import list_past_waste
from site_builder.waste.rules import WASTE_FILE

if TYPE_CHECKING:
    from site_builder.alerts.build import AlertEngine

# Seconds after which a builder that runs on writes the snapshots to state/ again.
SAVE_INTERVAL_S = 60
MAX_PROBLEMS = 1000
# Seconds between two builds that cron starts, at most.
MAX_CRON_INTERVAL_S = 300
# Seconds that the first build waits to know whether it leads: under cron it is the only one.
LEADERSHIP_TIMEOUT_S = 5.0
# Seconds of a build that may go into making old history coarser.
ROLL_UP_TIME_LIMIT_S = 0.25


class BuildError(Exception):
    """Why no page was written, in one sentence; the old one stays."""


class BuildReport(NamedTuple):
    """What a build did; `save_errors` say what could not be stored in state/."""

    host_count: int
    gpu_counts: dict[str, int]
    problems: list[Problem]
    written_files: list[str]
    save_errors: list[str]


class Builder:
    """Builds the site, once or again and again; what it has read and built serves the next build."""

    def __init__(self, settings: Settings, build_interval_s: int | None = None) -> None:
        """Load what the last builder left in state/; without `build_interval_s` there is only one build."""
        self.settings = settings
        self.build_interval_s = build_interval_s
        self.is_single_build = not build_interval_s
        data, state = settings.data, settings.state
        remove_pickles_of_old_builder(state)
        self.snapshots = SnapshotStore(data, state, settings.snapshot_bytes)
        self.discovery = HostDiscovery(data, state, settings.consul)
        self.consul_mirror = ConsulMirror(data, state, settings.kv) if settings.kv else None
        self.leadership = Leadership(state, settings.kv) if settings.kv else None
        self.is_leader = self.leadership is None  # only the leader does what must happen once
        self.bookings_file = BookingsFile(data, state, settings.zone)
        self.name_files = NameFiles(data, state)
        self.builder_state = FleetStore(state)
        self.build_duration_s = self.builder_state.build_duration_s  # of the last build
        self.pipeline = HostPipeline(state)
        self.pipeline.paused_until = self.builder_state.paused_until
        self.site_writer = SiteWriter(settings, build_interval_s)
        self.faults = self.site_writer.faults
        self.faults.recall(self.builder_state.problems)
        self.built_hosts: dict[str, BuiltHost] | None = None  # in this build
        self.history = HistoryWriter(state, settings.zone)
        self.event_log = HealthEventStore(self.history)
        self.history.idle_percent = settings.limits.idle_percent
        self.waste_monitor = WasteMonitor(self.history, self.builder_state, self.site_writer.build_interval_s)
        self.fleet_page = FleetPageBuilder(settings, self.history)
        self.people_page = PeoplePageBuilder(settings, self.history, self.is_single_build)
        self.host_pages = HostPageBuilder(settings, self.history, self.event_log)
        self.sparkline_cache = SparklineCache(settings, self.history)
        self.host_pages.faults = self.sparkline_cache.faults = self.faults
        self.alert_engine: AlertEngine | None = None
        if settings.alerts.is_enabled:  # imported here: a third of all modules, and most boards send no alerts
            from site_builder.alerts.build import AlertEngine  # noqa: PLC0415
            from site_builder.watches.build import WatchConditions  # noqa: PLC0415

            self.alert_engine = AlertEngine(settings, self.event_log, WatchConditions(settings))
        self.snapshots_saved_at = 0.0
        self.extra_problems: list[Problem] = []  # of the command around the build, for the same page
        self.clock_doubt = ""  # why the clock may be wrong; then nothing is removed because of its age

    def build(self, epoch: float) -> BuildReport:
        """Build once, at that moment; if that fails, still process alerts and save state."""
        now = Now(epoch, self.settings.zone)
        self.built_hosts = None
        try:
            return self.build_at(now)
        except BuildError:
            self.process_alerts(self.built_hosts, now)
            raise
        except Exception as error:
            self.process_alerts(self.built_hosts, now)
            if is_file_system_fault(error):
                where = getattr(error, "filename", None) or self.settings.state
                message = f"{where} could not be read or written: {getattr(error, 'strerror', None)}"
            else:
                message = describe_fault("the board could not be built", error)
            list(self.save_state((), now))
            raise BuildError(message) from error

    def build_at(self, now: Now) -> BuildReport:
        """Read data/, build each host, record history, write the site, process alerts."""
        began = time.monotonic()
        self.faults.start_build()
        self.pipeline.decided_hosts.clear()
        forgotten: list[Path] = []
        with self.faults.catch("state/forget", "hosts could not be forgotten"):
            forgotten = self.forget_hosts()
        self.discovery.start_consul_request()
        if self.consul_mirror:
            self.consul_mirror.start_request()
        hosts, rules, problems = self.read_inputs(now)
        due = self.site_writer.list_due_hosts([host.discovered.name for host in hosts], now, self.is_single_build)
        built_hosts = self.pipeline.build_hosts(hosts, rules, now, due)
        if self.update_builder_state(built_hosts):  # new logins may make others clear, which `ps` cut
            rules = replace(rules, people=PeopleDirectory(rules.people.aliases, self.builder_state.logins))
            built_hosts = self.pipeline.build_hosts(hosts, rules, now, due)
        hosts = [self.pipeline.drop_files_while_paused(host, now) for host in hosts]
        self.built_hosts = built_hosts
        problems += [problem for built_host in built_hosts.values() for problem in built_host.summary.problems]
        with self.faults.catch("data", "the check for GPUs reported by two hosts failed"):
            uuids = {host: built_host.summary.uuids for host, built_host in built_hosts.items()}
            problems += summary.find_duplicate_uuids_in_summaries(uuids)
        with self.faults.catch("state/history.db", "history was not recorded for this minute"):
            self.record_history(built_hosts, now)
        if self.builder_state.problem:
            problems.append(Problem("state/memory.json", self.builder_state.problem))
        problems += find_booking_token_problems(self.settings.state) + self.history.problems
        problems += self.alert_engine.list_problems(now) if self.alert_engine else []
        problems += self.extra_problems
        shown_problems = self.list_problems(problems)
        try:
            self.site_writer.waste = self.waste_monitor.update(built_hosts, rules, now)
            self.log_problem_changes(shown_problems, now)
            if self.try_claim_site(now):
                self.publish(hosts, rules, shown_problems, built_hosts, now)
                if self.list_problems(problems) != shown_problems:  # some files could not be made
                    shown_problems = self.list_problems(problems)
                    self.log_problem_changes(shown_problems, now)
                    self.site_writer.write_fleet_files(built_hosts, shown_problems, now, self.build_duration_s)
        except OSError as error:
            message = f"{error.filename or self.settings.www} could not be written: {error.strerror}"
            raise BuildError(message) from error
        report = BuildReport(
            host_count=len(built_hosts),
            gpu_counts=count_board_gpus_by_state(built_hosts),
            problems=shown_problems,
            written_files=self.site_writer.written_files,
            save_errors=list(self.save_state(forgotten, now)),
        )
        self.process_alerts(built_hosts, now)
        self.history.roll_up(now.epoch, ROLL_UP_TIME_LIMIT_S)
        self.build_duration_s = round(time.monotonic() - began, 3)
        return report

    # Reading

    def forget_hosts(self) -> list[Path]:
        """Forget the hosts that `gpuboard forget` named; return these requests."""
        folder = self.settings.state / "forget"
        requests = list(folder.iterdir()) if folder.is_dir() else []
        for request in requests:
            self.snapshots.forget_host(request.name)
            if self.consul_mirror:  # an earlier build may have copied it while the entry was being deleted
                self.consul_mirror.forget_host(request.name)
            self.builder_state.idle_times.pop(request.name, None)
            self.builder_state.booking_uses.pop(request.name, None)
        return requests

    def read_inputs(self, now: Now) -> tuple[list[HostStatusSources], StateRules, list[Problem]]:
        """Read the snapshots, names, bookings and lists of hosts; return also what is wrong with them."""
        problems: list[Problem] = []
        with self.faults.catch("Consul", "its data could not be copied"):
            problems += self.consul_mirror.copy_changes() if self.consul_mirror else []
            problems += self.leadership.list_problems() if self.leadership else []
        try:
            host_files, snapshot_problems = self.snapshots.read_hosts()
        except OSError as error:
            message = f"{self.settings.data} cannot be read: {error.strerror}"
            raise BuildError(message) from error
        aliases, gpu_names, name_problems = self.name_files.read_names()
        problems += snapshot_problems + name_problems + list_data_folder_problems(self.settings.data)
        all_bookings, booking_problems = self.bookings_file.read()
        files_by_host = {host.name: host for host in host_files}
        discovered, discovery_problems = self.discovery.list_hosts(files_by_host)
        bookings, unmatched_problems = booking_use.group_fleet_bookings_by_host(all_bookings, discovered, now)
        problems += booking_problems + discovery_problems + unmatched_problems
        shown = [name for name, host in discovered.items() if not host.is_hidden]
        sparklines = self.sparkline_cache.render_hosts(shown, now.epoch, self.is_single_build)
        hosts = [
            HostStatusSources(
                discovered=discovered[name],
                files=files_by_host.get(name),
                bookings=bookings.get(name, ()),
                idle_times=self.builder_state.idle_times.get(name, NO_IDLE_TIMES),
                booking_uses=self.builder_state.booking_uses.get(name, {}),
                sparklines=sparklines.get(name, {}),
            )
            for name in sorted(shown, key=natural_sort_key)
        ]
        people = PeopleDirectory(aliases, self.builder_state.logins)
        rules = StateRules(self.settings.limits, people, self.settings.privacy, gpu_names)
        return hosts, rules, problems

    # Remembering

    def update_builder_state(self, built_hosts: BuiltHosts) -> bool:
        """Remember what the next build cannot see for itself; return True if there are new logins."""
        state = self.builder_state
        login_count = len(state.logins)
        for host, built_host in built_hosts.items():
            with self.faults.catch(host, "its logins and idle times could not be saved"):
                state.add_logins(built_host.summary.logins)
                idle_times = built_host.summary.idle_times
                if idle_times and idle_times.idle_since:
                    state.idle_times[host] = idle_times
                elif idle_times:
                    state.idle_times.pop(host, None)
                state.update_booking_uses(host, built_host.summary.booking_uses)
        for remembered in (state.booking_uses, state.paused_until):
            for host in remembered.keys() - built_hosts.keys():
                del remembered[host]
        return len(state.logins) > login_count

    def record_history(self, built_hosts: BuiltHosts, now: Now) -> None:
        outdated = find_outdated_hosts_in_summaries(
            {host: (built_host.summary.uuids, built_host.last_seen) for host, built_host in built_hosts.items()}
        )
        current = {host: built_host for host, built_host in built_hosts.items() if host not in outdated}
        samples = [built_host.packed_sample for built_host in current.values() if built_host.packed_sample]
        self.history.record(samples, now.epoch, self.build_interval_s or MAX_CRON_INTERVAL_S)
        health = {host: current[host].packed_health if host in current else None for host in built_hosts}
        self.event_log.record(health, now.epoch, float("inf") if self.is_single_build else RECORD_TIME_LIMIT_S)

    def list_problems(self, problems: Sequence[Problem]) -> list[Problem]:
        """Sort all problems, with those of the site, and cut the list to what a page can hold."""
        unique = {*problems, *self.faults.problems, *self.site_writer.calendar_builder.problems}
        shown = sorted(unique, key=lambda problem: (problem.where, problem.what))
        omitted_count = len(shown) - MAX_PROBLEMS
        if omitted_count > 0:
            shown[MAX_PROBLEMS:] = [Problem("data", f"and {omitted_count} more problems")]
        return shown

    def log_problem_changes(self, problems: Sequence[Problem], now: Now) -> None:
        """Log which problems are new and which are over."""
        current = {f"{problem.where}: {problem.what}" for problem in problems}
        for sentence in sorted(current - self.builder_state.problems):
            append_to_build_log(self.settings.state, now.local, f"new: {sentence}")
        for sentence in sorted(self.builder_state.problems - current):
            append_to_build_log(self.settings.state, now.local, f"over: {sentence}")
        self.builder_state.problems = current

    # Publishing

    def try_claim_site(self, now: Now) -> bool:
        """Return True if this builder writes the site: it leads, or wrote it last, or nobody else does."""
        if self.leadership is None:
            return True
        has_led = self.is_leader
        self.is_leader = self.leadership.is_leader(0.0 if self.snapshots_saved_at else LEADERSHIP_TIMEOUT_S)
        if self.is_leader and not has_led and self.leadership.status and self.leadership.status.taken_from:
            sentence = f"this builder is now the leader: {self.leadership.status.taken_from} was silent"
            append_to_build_log(self.settings.state, now.local, sentence)
        writer = published_files.find_published_files_writer(self.settings.www, now.epoch)
        if not self.is_leader and writer not in (None, self.leadership.name):
            self.site_writer.written_files = []
            self.site_writer.has_recalled = False  # the other builder leaves files of its own
            return False
        published_files.claim_published_files(self.settings.www, self.leadership.name, now.epoch)
        return True

    def publish(
        self,
        sources: Sequence[HostStatusSources],
        rules: StateRules,
        problems: Sequence[Problem],
        built_hosts: BuiltHosts,
        now: Now,
    ) -> None:
        """Write the files of the fleet that are new, then the pages of hosts."""
        site_writer, people = self.site_writer, rules.people
        site_writer.start_build()
        site_writer.write_fleet_files(built_hosts, problems, now, self.build_duration_s)
        with site_writer.catch_fault(WASTE_FILE):
            self.waste_monitor.write(site_writer, now)
        hosts = {host.discovered.name: host for host in sources}
        calendar_hosts = [
            CalendarHost(name, tuple(host.bookings), built_hosts[name].summary.gpu_identities)
            for name, host in hosts.items()
        ]
        site_writer.update_calendar(calendar_hosts, people, now)
        with site_writer.catch_fault(FLEET_PAGE):
            past_waste = list_past_waste(self.waste_monitor.report, now)
            self.fleet_page.write(site_writer, people, now, past_waste)
        with site_writer.catch_fault(PEOPLE_PAGE):
            self.people_page.write(site_writer, built_hosts, people, now)
        self.host_pages.start_build(built_hosts, self.pipeline.decided_hosts, self.is_single_build)
        jobs: list[HostPageJob] = []
        for name, host in hosts.items():
            with self.faults.catch(f"{WWW_PREFIX}hosts/{name}.html", clears=False):
                jobs += self.host_pages.build_page_jobs(host, built_hosts[name], rules, now)
        site_writer.write_host_pages(jobs, built_hosts, now, self.is_single_build)

    def process_alerts(self, built_hosts: BuiltHosts | None, now: Now) -> None:
        """Notify people of new conditions if this builder leads; without hosts, only send what is queued."""
        if self.alert_engine:
            self.alert_engine.expires = not self.clock_doubt
            self.alert_engine.process_build(
                built_hosts, now, lambda: self.leadership is None or self.leadership.is_leader()
            )

    # Saving

    def save_state(self, forgotten: Sequence[Path], now: Now) -> Iterator[str]:
        """Save what the next build needs, and yield what failed; the site is written by then."""
        saves: list[Callable[[], object]] = [self.builder_state.save, self.site_writer.published.save]
        if forgotten or now.epoch - self.snapshots_saved_at >= SAVE_INTERVAL_S:
            saves.insert(0, self.snapshots.save)
            self.snapshots_saved_at = now.epoch
        saves += [partial(request.unlink, missing_ok=True) for request in forgotten]
        for save in saves:
            try:
                save()
            except OSError as error:
                where = error.filename or self.settings.state
                what = "the site was written, but not the builder's state"
                yield f"{where} could not be written: {error.strerror}; {what}"
            except Exception as error:
                yield describe_fault("the builder's state could not be written", error)

    def close(self) -> None:
        """Save what was read and built, so that the next builder need not do both again."""
        # only now: else the file would change at each build
        self.builder_state.build_duration_s = self.build_duration_s
        for part in (self.snapshots, self.pipeline, self.sparkline_cache, self.builder_state, self.people_page):
            with suppress(Exception):
                part.save()
        self.history.close()
        if self.leadership:
            self.leadership.close()


def remove_pickles_of_old_builder(state: Path) -> None:
    """Delete, unread, the files of an older gpuboard that can execute code; they are all rebuilt."""
    with suppress(OSError):
        for name in (host_pipeline.OLD_STORE_NAME, OLD_STORE_FILE, OLD_SUMS_FILE):
            (state / name).unlink(missing_ok=True)
            (state / f".{name}.new").unlink(missing_ok=True)
        compiled_templates = state / "templates"
        if compiled_templates.is_symlink():
            compiled_templates.unlink()
        elif compiled_templates.is_dir():
            rmtree(compiled_templates)
