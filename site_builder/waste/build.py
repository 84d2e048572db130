"""Collect wasted GPU time once a minute, and publish it in waste.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Protocol

from site_builder.core.clock import Now
from site_builder.core.files import compute_digest
from site_builder.core.formatting import DAY, MINUTE
from site_builder.core.published_files import PublishedFile, SiteFiles
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.store import FleetStore
from site_builder.fleet.summary import HostSummary, SummarizedHost
from site_builder.history.idle_runs import IdleRun, find_current_idle_run, read_idle_history
from site_builder.history.reader import HistoryReader
from site_builder.waste import render
from site_builder.waste import rules as waste_rules
from site_builder.waste.rules import WASTE_FILE, WasteCandidate, WasteReport

# History counts in minutes: a shorter interval shows nothing new.
CHECK_INTERVAL_S = 60
USED_PREFIX = "used "
INTERNAL_ERROR = "wasted GPU time could not be computed; this is a bug in gpuboard, please report it"


class HostWithWasteCandidates(SummarizedHost, Protocol):
    """Built host with its candidates for waste (board.host_pipeline.BuiltHost)."""

    @property
    def waste_candidates(self) -> tuple[WasteCandidate, ...]:
        """Return the candidates for waste on this host."""


class WasteMonitor:
    """Keeps a waste report that is at most a minute old."""

    def __init__(self, history: HistoryReader, memory: FleetStore, build_interval_s: int) -> None:
        self.history, self.memory, self.build_interval_s = history, memory, build_interval_s
        self.report: WasteReport | None = None

    def update(self, hosts: Mapping[str, HostWithWasteCandidates], rules: StateRules, now: Now) -> WasteReport:
        if self.report is None or not 0 <= now.epoch - self.report.built_at < CHECK_INTERVAL_S:
            summaries = {name: host.summary for name, host in hosts.items()}
            candidates = {name: host.waste_candidates for name, host in hosts.items() if host.waste_candidates}
            try:
                report = collect_waste(summaries, candidates, self.history, rules, self.memory.odd_since, now.epoch)
            except Exception as error:  # a bug here must not cost the page
                problem = f"{INTERNAL_ERROR} ({type(error).__name__})"
                report = WasteReport(int(now.epoch), 0, (), tuple(summaries), problem=problem)
            self.report = report._replace(build_interval_s=self.build_interval_s)
        return self.report

    def write(self, site: SiteFiles, now: Now) -> None:
        """Publish the report if it changed, and once a minute as a sign that the builder is alive."""
        report = self.report
        if report:
            fingerprint = compute_digest(render.render_waste_json(report._replace(built_at=0)))
            site.write_changed_files(
                [PublishedFile(WASTE_FILE, fingerprint, lambda: render.render_waste_json(report))], now
            )


def collect_waste(
    summaries: Mapping[str, HostSummary],
    candidates: Mapping[str, Sequence[WasteCandidate]],
    history: HistoryReader,
    rules: StateRules,
    anomalies: MutableMapping[str, int],
    now: float,
) -> WasteReport:
    """Collect all that is wasted; `anomalies` is the memory of earlier builds, and is updated."""
    all_candidates = [candidate for host_candidates in candidates.values() for candidate in host_candidates]
    gpu_keys = {candidate.fleet_key for candidate in all_candidates}
    long_minutes, since = waste_rules.MIN_UNUSED_DAYS * DAY // MINUTE, now - waste_rules.ENDED_BOOKING_DAYS * DAY
    idle_history = read_idle_history(history, gpu_keys, long_minutes, since, now)
    empty_gpus = list(find_unused_waste_candidates(summaries, candidates, idle_history.runs, anomalies, now))
    # hosts that have left the board are nobody's concern any more
    unused_bookings = tuple(booking for booking in idle_history.unused_bookings if booking.host in summaries)
    idle_history = idle_history._replace(unused_bookings=unused_bookings)
    return WasteReport(
        built_at=int(now),
        build_interval_s=0,
        items=tuple(waste_rules.find_waste(all_candidates, empty_gpus, idle_history, rules, anomalies, now)),
        hosts=tuple(summaries),
        history_since=idle_history.first_at,
        problem=history.problem_text or None,
    )


def find_unused_waste_candidates(
    summaries: Mapping[str, HostSummary],
    candidates: Mapping[str, Sequence[WasteCandidate]],
    runs: Mapping[str, IdleRun],
    anomalies: MutableMapping[str, int],
    now: float,
) -> Iterator[WasteCandidate]:
    """Yield GPUs that were empty for long and still are; remember those in use now until history knows it."""
    unused_runs = {
        gpu_key: run
        for gpu_key, stored in runs.items()
        if (run := find_current_idle_run(stored, now)) and waste_rules.is_gpu_long_unused(run)
    }
    for name in [name for name in anomalies if name.startswith(USED_PREFIX)]:
        gpu_key = name[len(USED_PREFIX) :]
        if gpu_key not in unused_runs or unused_runs[gpu_key].last_seen >= anomalies[name]:
            del anomalies[name]
    for gpu_key, run in unused_runs.items():
        summary = summaries.get(run.host)
        if summary is None or summary.state != "fresh":
            continue
        empty_gpus = list_empty_waste_candidates(run.host, summary, candidates.get(run.host, ()))
        empty_gpu = next((gpu for gpu in empty_gpus if gpu.fleet_key == gpu_key), None)
        if empty_gpu is None:
            anomalies[USED_PREFIX + gpu_key] = int(now)
        elif USED_PREFIX + gpu_key not in anomalies:
            yield empty_gpu


def list_empty_waste_candidates(
    host: str, summary: HostSummary, candidates: Sequence[WasteCandidate]
) -> Iterator[WasteCandidate]:
    """List the GPUs of a host that nobody is on: those that are free, and those that are booked and unused."""
    numbers = [identity.number for identity in summary.gpu_identities]
    keys = {
        identity.number: identity.uuid or f"index {identity.number}"
        for identity in summary.gpu_identities
        if numbers.count(identity.number) == 1
    }
    for gpu in summary.free_gpus:
        if gpu.index in keys:
            yield WasteCandidate("vacant", host, keys[gpu.index], gpu.index, gpu.model)
    yield from (candidate for candidate in candidates if candidate.kind == "booking")
