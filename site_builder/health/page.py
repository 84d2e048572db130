"""Render health problems and events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.formatting import DAY, capitalize_sentence, format_names
from site_builder.core.html import Html, escape_html
from site_builder.core.model import GpuProblem, HostStatus
from site_builder.health import events
from site_builder.health.gpu_health import build_host_health_metrics, list_gpu_health_gpus, list_gpu_health_keys
from site_builder.health.model import (
    CRITICAL,
    EVENT_SEVERITIES,
    INFO,
    PROBLEM_KINDS,
    SEVERITIES,
    SEVERITY_LABELS,
    UNNAMED_KEY_PREFIX,
    GpuHealthMetrics,
    HealthEvent,
    HostHealthTimelines,
)
from site_builder.health.problems import format_problem_advice
from site_builder.health.xid import get_xid_code, parse_xid_kind

MAX_NAMED_GPUS = 16
# Events that are shown of a GPU; fewer where there are many GPUs, so that the page stays small.
MAX_EVENTS_PER_GPU, MAX_EVENTS_ON_PAGE = 20, 400
# Critical events that are shown first: those that go on, and those of the last days.
MAX_URGENT_EVENTS, RECENT_S = 5, 7 * DAY
# In the order of the counts of a GPU.
COUNT_TITLES = {
    "corrected": "Corrected ECC errors since the driver was loaded",
    "uncorrected": "Uncorrected ECC errors since the driver was loaded",
    "corrected_ever": "Corrected ECC errors, lifetime",
    "uncorrected_ever": "Uncorrected ECC errors, lifetime",
    "rows_corrected": "Memory rows remapped after corrected errors",
    "rows_uncorrected": "Memory rows remapped after uncorrected errors",
    "pages_corrected": "Memory pages retired after corrected errors",
    "pages_uncorrected": "Memory pages retired after uncorrected errors",
}
# Counts that are a problem of their own while they are not 0; lifetime counts are history.
COUNT_PROBLEM_KINDS = {"uncorrected": "ecc-uncorrected"}
HealthCountRow = tuple[str, list[tuple[str, str]]]


class HealthPageEventRow(NamedTuple):
    """An event; `host` is set if it happened on another host, `advice` and the driver's `words` for an Xid error."""

    gpu: str
    severity: str
    when: str
    what: str
    duration: str
    host: str
    advice: str = ""
    words: str = ""

    @property
    def label(self) -> str:
        return SEVERITY_LABELS.get(self.severity, "")


class HealthPageSection(NamedTuple):
    """The health section of a host's page; `quiet_gpus` are those without events since `watched_since`.

    A row of counts has a title, and for each GPU a text and a severity, empty if it is not a problem. A time line has a
    title, the key of a GPU, its events, and how many are left out.
    """

    urgent_events: Sequence[HealthPageEventRow]
    gpu_titles: Sequence[str]
    count_rows: Sequence[HealthCountRow]
    timelines: Sequence[tuple[str, str, Sequence[HealthPageEventRow], int]]
    omitted_gpu_count: int
    quiet_gpus: str
    watched_since: str


@lru_cache(maxsize=4096)
def render_problems(problems: tuple[GpuProblem, ...]) -> Html:
    """Render problems for the row of a GPU, with the advice as a tooltip."""
    paragraphs = []
    for problem in problems:
        if not problem.is_visible:
            continue
        # the page's script does not offer GPUs with the class avoid
        classes = f"problem {problem.severity}{' avoid' if problem.avoid else ''}"
        sign = SEVERITY_LABELS[problem.severity][0]
        advice, what = escape_html(problem.advice), escape_html(problem.what)
        paragraphs.append(f'<p class="{classes}" title="{advice}">{sign} {what}</p>')
    return Html("".join(paragraphs))


def build_health_page_problem_rows(host: HostStatus) -> list[tuple[str, str, str, str, str]]:
    """List each problem of a host once, the most severe first: its GPUs, severity, sign, text and advice."""
    labels_by_problem: dict[GpuProblem, list[str]] = {}
    seen: set[tuple[str, GpuProblem]] = set()
    for status in host.gpus:
        label = (status.gpu.parent or status.gpu).label
        for problem in status.problems:
            if (label, problem) not in seen or status.gpu.parent is None:  # an instance has those of its GPU
                seen.add((label, problem))
                labels_by_problem.setdefault(problem, []).append(label)
    rows = []
    for problem in sorted(labels_by_problem, key=lambda problem: SEVERITIES.index(problem.severity)):
        labels = labels_by_problem[problem]
        omitted = [f"{len(labels) - MAX_NAMED_GPUS} more"] if len(labels) > MAX_NAMED_GPUS else []
        gpus = format_names([*labels[:MAX_NAMED_GPUS], *omitted], MAX_NAMED_GPUS + 1)
        what, advice = capitalize_sentence(problem.what), capitalize_sentence(problem.advice)
        rows.append((gpus, problem.severity, SEVERITY_LABELS[problem.severity], what, advice))
    return rows


def compute_health_page_event_limit(host: HostStatus) -> int:
    """Return how many events of each GPU there is room for."""
    return max(1, min(MAX_EVENTS_PER_GPU, MAX_EVENTS_ON_PAGE // max(1, len(host.gpus))))


def build_health_page_section(host: HostStatus, timelines: HostHealthTimelines, now: Now) -> HealthPageSection | None:
    """Build the health section; None where there is nothing to show."""
    titles = {key: f"GPU {gpu.label}" for key, gpu in zip(list_gpu_health_keys(host), list_gpu_health_gpus(host))}
    metrics = build_host_health_metrics(host)
    count_rows = list(build_health_page_count_rows(metrics.gpus)) if metrics else []
    watched_since = timelines.watched_since
    if watched_since is None and not count_rows:
        return None
    keys_with_events = {timeline.gpu_key for timeline in timelines.timelines}
    quiet = [title.removeprefix("GPU ") for key, title in titles.items() if key not in keys_with_events]
    quiet_gpus = f"GPU {format_names(quiet, len(quiet))}" if quiet else ""
    if len(quiet) == len(titles):
        quiet_gpus = "any GPU" if len(titles) != 1 else "the GPU"
    # critical events that go on, then the newest of the last days
    urgent = [
        event
        for timeline in timelines.timelines
        for event in timeline.events
        if event.severity == CRITICAL and (event.ended_at is None or event.ended_at >= now.epoch - RECENT_S)
    ]
    urgent.sort(key=lambda event: (event.ended_at is not None, -event.began_at))

    def build_rows(shown_events: Sequence[HealthEvent]) -> list[HealthPageEventRow]:
        return [build_health_page_event_row(event, titles, host.name, now) for event in shown_events]

    page_timelines = []
    for timeline in timelines.timelines:
        title = titles.get(timeline.gpu_key)
        if title is None:
            index = timeline.events[0].index
            title = f"GPU {'?' if index is None else index} (no longer present)" if timeline.gpu_key else "The host"
        key = "" if timeline.gpu_key.startswith(UNNAMED_KEY_PREFIX) else timeline.gpu_key
        earlier_count = timeline.event_count - len(timeline.events)
        page_timelines.append((title, key, build_rows(timeline.events), earlier_count))
    return HealthPageSection(
        urgent_events=build_rows(urgent[:MAX_URGENT_EVENTS]),
        gpu_titles=list(titles.values()),
        count_rows=count_rows,
        timelines=page_timelines,
        omitted_gpu_count=timelines.omitted_gpu_count,
        quiet_gpus=quiet_gpus,
        watched_since="" if watched_since is None else events.format_event_moment(watched_since, now.zone),
    )


def build_health_page_event_row(
    event: HealthEvent, titles: Mapping[str, str], host: str, now: Now
) -> HealthPageEventRow:
    advice = words = ""
    if event.is_xid:
        which = "" if event.index is None else str(event.index)
        advice = format_problem_advice(get_xid_code(parse_xid_kind(event.kind)).advice, "nvidia", which)
        words = str(event.value[1] or "") if len(event.value) > 1 else ""
    what = events.describe_event(event)
    return HealthPageEventRow(
        gpu=titles.get(event.gpu_key) or f"GPU {'?' if event.index is None else event.index}",
        severity="" if event.severity == INFO else event.severity,
        when=events.format_event_time(event, now.zone),
        what=what,
        duration=events.format_event_duration(event) or "",
        host=event.host if event.host != host else "",
        advice=capitalize_sentence(advice) if advice else "",
        words="" if words in what else words,
    )


def build_health_page_count_rows(gpus: Sequence[GpuHealthMetrics]) -> Iterator[HealthCountRow]:
    """Yield the counts and states of the GPUs; those that no GPU reports are left out."""
    for position, (name, title) in enumerate(COUNT_TITLES.items()):
        counts = [gpu.counts[position] for gpu in gpus]
        if any(count is not None for count in counts):
            severity = PROBLEM_KINDS[COUNT_PROBLEM_KINDS[name]].severity if name in COUNT_PROBLEM_KINDS else ""
            yield (
                title,
                [
                    ("–", "") if count is None else mark_count(f"{count:,}", severity if count else "")
                    for count in counts
                ],
            )
    repairs, slowdowns = [], []
    for gpu in gpus:
        repair = "–" if gpu.failed is None and gpu.pending is None else "none"
        kind = "failed" if gpu.failed else "pending" if gpu.pending else ""
        repair = {"failed": "failed", "pending": "waiting for a reset", "": repair}[kind]
        repairs.append(mark_count(repair, EVENT_SEVERITIES[kind] if kind else ""))
        causes = (("by heat", gpu.heat), ("by its power limit", gpu.power))
        slowdown = " and ".join(cause for cause, is_slowed in causes if is_slowed) or "no"
        is_unknown = gpu.heat is None and gpu.power is None
        slowdowns.append(mark_count("–" if is_unknown else slowdown, EVENT_SEVERITIES["heat"] if gpu.heat else ""))
    for title, cells in (("Memory repair", repairs), ("Throttled", slowdowns)):
        if any(text != "–" for text, _ in cells):
            yield title, cells


def mark_count(text: str, severity: str) -> tuple[str, str]:
    """Put the sign of a severity before a count; the other counts have none."""
    return (f"{SEVERITY_LABELS[severity][0]} {text}" if severity else text), severity
