"""Collect what is wasted, once a minute, and publish it in waste.json."""

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
from site_builder.history.idle_runs import IdleRun, build_fleet_gpu_key, find_current_idle_run, read_idle_history
from site_builder.history.reader import HistoryReader
from site_builder.waste import render
from site_builder.waste import rules as waste_rules
from site_builder.waste.rules import WASTE_FILE, EmptyGpuCandidate, WasteCandidate, WasteReport

# History counts in minutes: a shorter interval shows nothing new.
CHECK_INTERVAL_S = 60
USED_PREFIX = "used "
INTERNAL_ERROR = "what is wasted could not be told, which is a fault of gpuboard's own: please report it"


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
    gpu_keys = {
        build_fleet_gpu_key(host, candidate.gpu_key)
        for host, host_candidates in candidates.items()
        for candidate in host_candidates
    }
    long_minutes, since = waste_rules.MIN_UNUSED_DAYS * DAY // MINUTE, now - waste_rules.ENDED_BOOKING_DAYS * DAY
    idle_history = read_idle_history(history, gpu_keys, long_minutes, since, now)
    empty_gpus = list(collect_empty_gpus(summaries, candidates, idle_history.runs, anomalies, now))
    # hosts that have left the board are nobody's concern any more
    unused_bookings = tuple(booking for booking in idle_history.unused_bookings if booking.host in summaries)
    idle_history = idle_history._replace(unused_bookings=unused_bookings)
    return WasteReport(
        built_at=int(now),
        build_interval_s=0,
        items=tuple(waste_rules.find_waste(candidates, empty_gpus, idle_history, rules, anomalies, now)),
        hosts=tuple(summaries),
        history_since=idle_history.first_at,
        problem=history.problem_text or None,
    )


def collect_empty_gpus(
    summaries: Mapping[str, HostSummary],
    candidates: Mapping[str, Sequence[WasteCandidate]],
    runs: Mapping[str, IdleRun],
    anomalies: MutableMapping[str, int],
    now: float,
) -> Iterator[EmptyGpuCandidate]:
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
        for gpu in collect_host_empty_gpus(run.host, summary, candidates.get(run.host, ())):
            if build_fleet_gpu_key(run.host, gpu.gpu_key) == gpu_key:
                if USED_PREFIX + gpu_key not in anomalies:
                    yield gpu
                break
        else:
            anomalies[USED_PREFIX + gpu_key] = int(now)


def collect_host_empty_gpus(
    host: str, summary: HostSummary, candidates: Sequence[WasteCandidate]
) -> Iterator[EmptyGpuCandidate]:
    """List the GPUs of a host that nobody is on: those that are free, and those that are booked and unused."""
    numbers = [identity.number for identity in summary.gpu_identities]
    keys = {
        identity.number: identity.uuid or f"index {identity.number}"
        for identity in summary.gpu_identities
        if numbers.count(identity.number) == 1
    }
    for gpu in summary.free_gpus:
        if gpu.index in keys:
            yield EmptyGpuCandidate(host, keys[gpu.index], gpu.index, gpu.model)
    for candidate in candidates:
        if candidate.kind == "booking":
            yield EmptyGpuCandidate(host, candidate.gpu_key, candidate.index, candidate.model)
