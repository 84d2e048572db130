"""What is wasted, gathered from what hosts tell now and what history knows; and published in waste.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Protocol

from site_builder.core.clock import Now
from site_builder.core.files import compute_digest
from site_builder.core.formatting import DAY, MINUTE
from site_builder.core.published_files import OutputFile, SiteFiles
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.store import BuilderState
from site_builder.fleet.summary import HostSummary, SummarizedHost
from site_builder.history import idle_run_store
from site_builder.history.idle_runs import GpuRun, build_fleet_gpu_key, find_current_run
from site_builder.history.reader import HistoryReader
from site_builder.waste import render
from site_builder.waste import rules as waste_rules
from site_builder.waste.model import WASTE_FILE, WasteReport
from site_builder.waste.rules import EmptyGpu, WasteCandidate

# Seconds between two looks: a minute is what history counts in.
CHECK_INTERVAL_S = 60
USED_PREFIX = "used "
INTERNAL_ERROR = "what is wasted could not be told, which is a fault of gpuboard's own: please report it"


class MarkedHost(SummarizedHost, Protocol):
    """A built host with its candidates for waste (board.host_pipeline.BuiltHost)."""

    @property
    def waste_marks(self) -> tuple[WasteCandidate, ...]:
        """Return the candidates for waste on this host."""


class WasteMonitor:
    """Looks once a minute, and says the same until then."""

    def __init__(self, past: HistoryReader, memory: BuilderState, every: int) -> None:
        """Nothing was looked at yet; `every` is how often the board is built."""
        self.history, self.memory, self.build_interval_s = past, memory, every
        self.report: WasteReport | None = None

    def update(self, cards: Mapping[str, MarkedHost], rules: StateRules, now: Now) -> WasteReport:
        """What is wasted, as of this minute."""
        if self.report is None or not 0 <= now.epoch - self.report.built_at < CHECK_INTERVAL_S:
            summaries = {host: one.summary for host, one in cards.items()}
            try:
                marks = {host: one.waste_marks for host, one in cards.items() if one.waste_marks}
                found = collect_waste(summaries, marks, self.history, rules, self.memory.odd_since, now.epoch)
            except Exception as error:  # a fault of ours must not cost the page
                found = WasteReport(
                    int(now.epoch), 0, (), tuple(summaries), problem=f"{INTERNAL_ERROR} ({type(error).__name__})"
                )
            self.report = found._replace(build_interval_s=self.build_interval_s)
        return self.report

    def write(self, site: SiteFiles, now: Now) -> None:
        """Publish it, where it says something new, and once a minute as a sign that the builder lives."""
        found = self.report
        if found:
            facts = compute_digest(render.render_waste_json(found._replace(built_at=0)))
            site.write_changed_files([OutputFile(WASTE_FILE, facts, lambda: render.render_waste_json(found))], now)


def collect_waste(  # each is one thing
    summaries: Mapping[str, HostSummary],
    marked: Mapping[str, Sequence[WasteCandidate]],
    past: HistoryReader,
    rules: StateRules,
    odd: MutableMapping[str, int],
    now: float,
) -> WasteReport:
    """All that is wasted; `odd` is what was remembered at the last look, and is kept up here."""
    cards = {build_fleet_gpu_key(host, one.gpu_key) for host, several in marked.items() for one in several}
    empty_minutes = waste_rules.MIN_UNUSED_DAYS * DAY // MINUTE
    known = idle_run_store.read_idle_history(
        past, cards, empty_minutes, now - waste_rules.ENDED_BOOKING_DAYS * DAY, now
    )
    empty = list(find_empty_gpus(summaries, marked, known.runs, odd, now))
    # of a host that is no longer on the board nobody wants to know
    unkept = [one for one in known.unused_bookings if one.host in summaries]
    found = waste_rules.find_waste(marked, empty, waste_rules.WasteHistory(known.runs, unkept), rules, odd, now)
    trouble = f"{past.problem.where}: {past.problem.what}" if past.problem else None
    return WasteReport(int(now), 0, tuple(found), tuple(summaries), known.first_at, trouble)


def find_empty_gpus(
    summaries: Mapping[str, HostSummary],
    marked: Mapping[str, Sequence[WasteCandidate]],
    known: Mapping[str, GpuRun],
    odd: MutableMapping[str, int],
    now: float,
) -> Iterator[EmptyGpu]:
    """Of the GPUs that were empty for long, those that are still; one that is not is remembered until history knows."""
    long = {
        card: one
        for card, told in known.items()
        if (one := find_current_run(told, now)) and waste_rules.is_long_unused(one)
    }
    for name in [name for name in odd if name.startswith(USED_PREFIX)]:
        card = name[len(USED_PREFIX) :]
        if card not in long or long[card].last_seen >= odd[name]:
            del odd[name]
    for card, one in long.items():
        summary = summaries.get(one.host)
        if summary is None or summary.state != "fresh":
            continue
        empty = list_empty_gpus(one.host, summary, marked.get(one.host, ()))
        found = next((gpu for gpu in empty if build_fleet_gpu_key(one.host, gpu.gpu_key) == card), None)
        if found is None:
            odd[USED_PREFIX + card] = int(now)
        elif USED_PREFIX + card not in odd:
            yield found


def list_empty_gpus(host: str, summary: HostSummary, marks: Sequence[WasteCandidate]) -> Iterator[EmptyGpu]:
    """The GPUs of a host that nobody is on: those that are free, and those that are booked and unused."""
    numbers = [one.number for one in summary.gpu_identities]
    keys = {
        one.number: one.uuid or f"index {one.number}"
        for one in summary.gpu_identities
        if numbers.count(one.number) == 1
    }
    for one in summary.free_gpus:
        if one.index in keys:
            yield EmptyGpu(host, keys[one.index], one.index, one.model)
    for mark in marks:
        if mark.kind == "booking":
            yield EmptyGpu(host, mark.gpu_key, mark.index, mark.model)
