"""Render health problems and events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from site_builder.core.clock import Now
from site_builder.core.html import Html, escape_html
from site_builder.core.model import Gpu, GpuProblem, HostStatus
from site_builder.health import events
from site_builder.health.events import CRITICAL_KINDS, WARNING_KINDS
from site_builder.health.gpu_health import build_host_health_metrics, list_gpu_keys, list_physical_gpus
from site_builder.health.model import (
    COUNT_NAMES,
    UNNAMED_KEY_PREFIX,
    EventTimeline,
    GpuHealthMetrics,
    HealthEvent,
    HostTimelines,
)

# The severity is a word and a sign; the colour repeats it.
SEVERITY_LABELS = {"critical": "▲ critical", "warning": "◆ warning", "info": "info"}
MAX_NAMED_GPUS = 16


class GpuProblemRow(NamedTuple):
    """A problem, and the GPUs that have it."""

    gpus: str
    severity: str
    sign: str
    what: str
    advice: str


def list_visible_problems(problems: Iterable[GpuProblem]) -> list[GpuProblem]:
    """Those that whoever wants the GPU should see; the others are for its admin, on the page of its host."""
    return [one for one in problems if one.severity != "info" or one.avoid]


def format_problems(problems: Iterable[GpuProblem]) -> str:
    """The same in a line."""
    return "; ".join([one.what for one in list_visible_problems(problems)])


@lru_cache(maxsize=4096)
def render_problems(problems: tuple[GpuProblem, ...]) -> Html:
    """In the row of a GPU: what is wrong, and when one points there, what to do."""
    return Html("".join(map(render_problem, list_visible_problems(problems))))


def render_problem(one: GpuProblem) -> str:
    """One of them; the page's script offers no GPU that is to be avoided."""
    classes = f"problem {one.severity}{' avoid' if one.avoid else ''}"
    sign = "▲" if one.severity == "critical" else "◆"
    return f'<p class="{classes}" title="{escape_html(one.advice)}">{sign} {escape_html(one.what)}</p>'


def group_gpu_problems(host: HostStatus) -> list[GpuProblemRow]:
    """On the page of a host: each problem once, with all the GPUs that have it; the most severe first."""
    labels: dict[GpuProblem, list[str]] = {}
    parents: set[tuple[str, GpuProblem]] = set()
    for gpu in host.gpus:
        label = (gpu.gpu.parent or gpu.gpu).label
        for one in gpu.problems:
            if (label, one) not in parents or gpu.gpu.parent is None:  # an instance has those of its GPU
                parents.add((label, one))
                labels.setdefault(one, []).append(label)
    found = sorted(labels.items(), key=lambda item: list(SEVERITY_LABELS).index(item[0].severity))
    return [
        GpuProblemRow(
            join_gpu_labels(gpus),
            one.severity,
            SEVERITY_LABELS[one.severity],
            capitalize_sentence(one.what),
            capitalize_sentence(one.advice),
        )
        for one, gpus in found
    ]


def capitalize_sentence(text: str) -> str:
    """Words as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}."


def join_gpu_labels(labels: list[str]) -> str:
    """`0, 1 and 3`."""
    if len(labels) > MAX_NAMED_GPUS:
        return f"{', '.join(labels[:MAX_NAMED_GPUS])} and {len(labels) - MAX_NAMED_GPUS} more"
    return " and ".join(filter(None, (", ".join(labels[:-1]), labels[-1])))


# Events of a GPU that are shown; of very many GPUs fewer, so that the page stays one.
MAX_EVENTS_PER_GPU, MAX_EVENTS_ON_PAGE = 20, 400
# Critical ones that are named before all else: those that go on, and those of so many seconds.
MAX_URGENT_EVENTS, RECENT_S = 5, 7 * 86400
COUNT_TITLES = {
    "corrected": "Corrected ECC errors since the driver was loaded",
    "uncorrected": "Uncorrected ECC errors since the driver was loaded",
    "corrected_ever": "Corrected ECC errors, ever",
    "uncorrected_ever": "Uncorrected ECC errors, ever",
    "rows_corrected": "Rows of memory replaced after corrected errors",
    "rows_uncorrected": "Rows of memory replaced after uncorrected errors",
    "pages_corrected": "Pages of memory retired after corrected errors",
    "pages_uncorrected": "Pages of memory retired after uncorrected errors",
}
BAD_COUNTS = frozenset({"uncorrected", "uncorrected_ever", "rows_uncorrected", "pages_uncorrected"})


class HealthCell(NamedTuple):
    """A value of the table, and whether it is a bad one."""

    text: str
    is_bad: bool = False


class EventRow(NamedTuple):
    """What happened: `severity` is empty where it is neither critical nor a warning; `host` if that was another one."""

    gpu: str
    severity: str
    when: str
    what: str
    duration: str
    host: str


class TimelineSection(NamedTuple):
    """A GPU, what happened to it, and how much more did."""

    title: str
    key: str
    rows: Sequence[EventRow]
    earlier_count: int


class HealthSection(NamedTuple):
    """All that this part says; `quiet` are the GPUs to which nothing happened since it is looked."""

    urgent_events: Sequence[EventRow]
    gpu_titles: Sequence[str]
    count_rows: Sequence[tuple[str, Sequence[HealthCell]]]
    timelines: Sequence[TimelineSection]
    omitted_gpu_count: int
    quiet_gpus: str
    watched_since: str


def compute_event_limit(host: HostStatus) -> int:
    """How many events of each GPU there is room for."""
    return max(1, min(MAX_EVENTS_PER_GPU, MAX_EVENTS_ON_PAGE // max(1, len(host.gpus))))


def build_health_section(host: HostStatus, lines: HostTimelines, now: Now) -> HealthSection | None:
    """This part of a host's page; None where there is nothing to tell, or it is not looked yet."""
    titles = {key: format_gpu_title(one) for key, one in zip(list_gpu_keys(host), list_physical_gpus(host))}
    told = build_host_health_metrics(host)
    counts = list(build_count_rows(told.gpus)) if told else []
    found = [build_timeline_section(one, titles, host.name, now) for one in lines.timelines]
    quiet = [name for key, name in titles.items() if key not in {one.gpu_key for one in lines.timelines}]
    if lines.watched_since is None and not counts:
        return None
    return HealthSection(
        list(build_urgent_rows(lines, titles, host.name, now)),
        list(titles.values()),
        counts,
        found,
        lines.omitted_gpu_count,
        join_quiet_gpus(quiet, len(titles)),
        "" if lines.watched_since is None else events.format_event_moment(lines.watched_since, now.zone),
    )


def format_gpu_title(gpu: Gpu) -> str:
    """What a GPU is called."""
    return f"GPU {gpu.label}"


def join_quiet_gpus(quiet: Sequence[str], count: int) -> str:
    """Several GPUs by their names."""
    if len(quiet) == count:
        return "any GPU" if count != 1 else "the GPU"
    numbers = [name.removeprefix("GPU ") for name in quiet]
    return f"GPU {' and '.join(filter(None, (', '.join(numbers[:-1]), numbers[-1])))}" if quiet else ""


def build_urgent_rows(lines: HostTimelines, titles: Mapping[str, str], host: str, now: Now) -> Iterator[EventRow]:
    """What is critical and goes on, or is not long ago: what goes on first, then the newest."""
    found = [
        event
        for line in lines.timelines
        for event in line.events
        if event.kind in CRITICAL_KINDS and (event.ended_at is None or event.ended_at >= now.epoch - RECENT_S)
    ]
    found.sort(key=lambda event: (event.ended_at is not None, -event.began_at))
    for event in found[:MAX_URGENT_EVENTS]:
        yield build_event_row(event, titles, host, now)


def build_timeline_section(line: EventTimeline, titles: Mapping[str, str], host: str, now: Now) -> TimelineSection:
    """A GPU."""
    name = titles.get(line.gpu_key) or (format_gone_gpu(line) if line.gpu_key else "The host")
    key = "" if line.gpu_key.startswith(UNNAMED_KEY_PREFIX) else line.gpu_key
    rows = [build_event_row(event, titles, host, now) for event in line.events]
    return TimelineSection(name, key, rows, line.event_count - len(line.events))


def format_gone_gpu(line: EventTimeline) -> str:
    """A GPU that is not in this host any more."""
    index = line.events[0].index
    return f"GPU {'?' if index is None else index}, which is gone"


def build_event_row(event: HealthEvent, titles: Mapping[str, str], host: str, now: Now) -> EventRow:
    """What happened."""
    severity = "critical" if event.kind in CRITICAL_KINDS else "warning" if event.kind in WARNING_KINDS else ""
    name = titles.get(event.gpu_key) or f"GPU {'?' if event.index is None else event.index}"
    return EventRow(
        name,
        severity,
        events.format_event_time(event, now.zone),
        events.describe_event(event),
        events.format_event_duration(event) or "",
        event.host if event.host != host else "",
    )


def build_count_rows(gpus: Sequence[GpuHealthMetrics]) -> Iterator[tuple[str, Sequence[HealthCell]]]:
    """What is counted, and what is so, of each GPU; what none tells is left out."""
    for place, name in enumerate(COUNT_NAMES):
        values = [one.counts[place] for one in gpus]
        if any(value is not None for value in values):
            yield COUNT_TITLES[name], [format_count_cell(value, name in BAD_COUNTS) for value in values]
    for name, judge in (("Repair of its memory", format_repair_cell), ("Slowed", format_slowdown_cell)):
        cells = [judge(one) for one in gpus]
        if any(one.text != "–" for one in cells):
            yield name, cells


def format_count_cell(value: int | None, bad: bool) -> HealthCell:
    """A number, as people read it."""
    return HealthCell("–") if value is None else HealthCell(f"{value:,}", bad and value > 0)


def format_repair_cell(one: GpuHealthMetrics) -> HealthCell:
    """Whether its memory needs one."""
    if one.failed:
        return HealthCell("failed", is_bad=True)
    if one.pending:
        return HealthCell("waits for a reset", is_bad=True)
    return HealthCell("–" if one.failed is None and one.pending is None else "none")


def format_slowdown_cell(one: GpuHealthMetrics) -> HealthCell:
    """By what it is slowed now."""
    if one.heat is None and one.power is None:
        return HealthCell("–")
    by = [word for word, on in (("by heat", one.heat), ("by its power limit", one.power)) if on]
    return HealthCell(" and ".join(by) or "no", bool(one.heat))
