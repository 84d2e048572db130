"""Render index.html and the page of each host."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import orjson
from markupsafe import Markup, escape

from site_builder.board import card
from site_builder.board.host_pipeline import BuiltHost, BuiltHosts
from site_builder.board.outputs import host_json
from site_builder.charts.cache import CachedChartRequest, ChartCache
from site_builder.config.settings import Settings
from site_builder.core import files, formatting
from site_builder.core.clock import Now
from site_builder.core.faults import WWW_PREFIX, FaultLog
from site_builder.core.html import build_time_html, escape_html, load_compact_html_template, render_epoch_html
from site_builder.core.model import FreeGpu, GpuStatus, HostFacts, HostStatus, PrivacySettings, Problem, SoonFreeGpu
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.host_state import (
    BuiltHostStatus,
    HostStatusSources,
    build_host_status,
    build_unrendered_host_status,
)
from site_builder.fleet.mig import list_whole_gpus
from site_builder.fleet.processes import format_process_container
from site_builder.fleet.summary import AvailableGpuSummary, ModelSummary
from site_builder.fleet.topology import describe_numa_nodes, describe_nvlinks
from site_builder.health import gpu_health
from site_builder.health import page as health_page
from site_builder.health.page import HealthPageSection
from site_builder.health.store import StoredEventReader
from site_builder.history import model as history_model
from site_builder.history.writer import HistoryWriter
from site_builder.waste import render as waste_render
from site_builder.waste.rules import WasteReport

ICON_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<rect width="32" height="32" rx="7" fill="{fill}"/>'
    '<text x="16" y="{y}" text-anchor="middle" font-family="system-ui,sans-serif" font-weight="700" '
    'font-size="{size}" fill="#fff">{text}</text></svg>\n'
)
FREE_COLOUR, NONE_FREE_COLOUR = "#0b7a43", "#5a6776"
STATE_TITLES = {
    "free": "Free",
    "busy": "Busy",
    "held": "Held idle",
    "booked": "Booked",
    "conflict": "Booking conflict",
    "lost": "Lost",
    "unknown": "Unknown",
}
ALWAYS_SHOWN_STATES = frozenset({"free", "busy"})
TROUBLE_NOTE = "faulty"
MAX_FREE_HOSTS = 60
# With more hosts their details are collapsed; with still more, they are only on the page of each host.
MAX_EXPANDED_HOSTS, MAX_DETAILED_HOSTS = 30, 200
MAX_SOON_FREE = 5
MAX_HOSTS_PER_STATE = 20
MAX_PROBLEMS = 200
# Placeholders for cards and charts in the templates; no text of others holds control characters.
CARDS_PLACEHOLDER, CHARTS_PLACEHOLDER = "\x1ccards\x1c", "\x1ccharts\x1c"
# Separators of the rows and cells of a table until it is escaped.
ROW_SEPARATOR, CELL_SEPARATOR = "\x1e", "\x1f"
NO_HOSTS_HTML = (
    b"<p>No host yet. Each GPU host pushes its snapshot with <code>gpu-check.sh</code>; it appears here within a "
    b"minute.</p>"
)
# The bits of clocks_event_reasons.active, in nvidia-smi's order.
CLOCK_REASONS = (
    (0x1, "idle"),
    (0x2, "application clock setting"),
    (0x4, "power limit"),
    (0x8, "hardware slowdown"),
    (0x10, "synchronised with other GPUs"),
    (0x20, "thermal slowdown by the driver"),
    (0x40, "thermal slowdown by the hardware"),
    (0x80, "hardware power brake"),
    (0x100, "display clocks"),
)
# The card has these already.
OMITTED_FIELDS = frozenset({"index", "uuid", "name"})
NO_VALUE_CELLS = frozenset({"[N/A]", "N/A", "[Not Supported]", ""})
# Labels of keys in host.txt.
FACT_LABELS = {
    "kernel": "Kernel",
    "driver": "Driver",
    "collector": "Collector",
    "zone": "Time zone",
    "hidepid": "hidepid",
    "kernel_log": "Kernel log",
}
SWAP_FACTS = ("swap_total", "swap_free")  # MiB
UNREADABLE_LOG = "unreadable"
UNREADABLE_LOG_ADVICE = "not readable, so there are no Xid errors; as root: usermod -aG systemd-journal USER"
# Seconds after which a host's page is written again if something changed, and in any case: its charts move on.
PAGE_INTERVAL_S, MAX_PAGE_AGE_S = 50, 900


# index.html


class BoardPageParts(NamedTuple):
    """The parts of index.html that an open page fetches again only when they have changed."""

    top: bytes
    waste: bytes
    problems: bytes


def count_board_gpus_by_state(built_hosts: BuiltHosts) -> Counter[str]:
    counts: Counter[str] = Counter()
    for built_host in built_hosts.values():
        counts.update(built_host.summary.state_counts)
    return counts


def render_board_parts(
    built_hosts: BuiltHosts, problems: Sequence[Problem], waste: WasteReport | None, settings: Settings, now: Now
) -> BoardPageParts:
    summaries = {host: built_host.summary for host, built_host in built_hosts.items()}
    gpu_counts = count_board_gpus_by_state(built_hosts)
    free_gpus = [gpu for summary in summaries.values() for gpu in summary.free_gpus]
    soon_free_gpus = [gpu for summary in summaries.values() for gpu in summary.soon_free_gpus]
    models = rank_page_models(chain.from_iterable(summary.models for summary in summaries.values()))
    available_gpus = [gpu for summary in summaries.values() for gpu in summary.available_gpus]
    top = load_compact_html_template("top.html").render(
        counts=[
            (state, title, gpu_counts[state])
            for state, title in STATE_TITLES.items()
            if state in ALWAYS_SHOWN_STATES or gpu_counts[state]
        ],
        hosts=len(summaries),
        not_fresh=list(group_page_hosts_by_state({host: summary.state for host, summary in summaries.items()})),
        free=list(group_page_free_gpus_by_model(free_gpus, models, now)),
        is_folded=len(summaries) > MAX_EXPANDED_HOSTS,
        wanted=render_page_available_gpus(models, available_gpus),
        coming=[] if free_gpus else list(list_page_next_free_gpus(soon_free_gpus, now)),
        notice=settings.notice,
        wasted=waste_render.format_waste_summary(waste),
    )
    problems_html = ""
    if problems:
        problems_html = load_compact_html_template("problems.html").render(problems=problems, max_problems=MAX_PROBLEMS)
    return BoardPageParts(top.encode(), waste_render.render_waste_section(waste, now), problems_html.encode())


def render_board_page(
    built_hosts: BuiltHosts,
    parts: BoardPageParts,
    problem_count: int,
    assets_version: str,
    booking_url: str | None,
    has_watches: bool,
    now: Now,
) -> bytes:
    gpu_counts = count_board_gpus_by_state(built_hosts)
    is_cut = len(built_hosts) > MAX_DETAILED_HOSTS
    page = load_compact_html_template("board.html").render(
        cards=CARDS_PLACEHOLDER,
        free=gpu_counts["free"],
        total=sum(gpu_counts.values()),
        is_collapsed=len(built_hosts) > MAX_EXPANDED_HOSTS,
        is_cut=is_cut,
        watch=booking_url and has_watches,
        problems=problem_count,
        version=assets_version,
        book=booking_url,
        built=build_time_html(now),
    )
    # the cards, many times as large as the rest, need not go through the template
    before, _, after = page.partition(CARDS_PLACEHOLDER)
    all_cards = [built_host.rendered.card_html for built_host in built_hosts.values()]
    cards_html = b"\n".join(map(card.cut_card_details, all_cards) if is_cut else all_cards) or NO_HOSTS_HTML
    return b"".join((before.encode(), parts.top, cards_html, parts.waste, parts.problems, after.encode()))


def group_page_hosts_by_state(host_states: Mapping[str, str]) -> Iterator[tuple[str, list[str], int]]:
    """Yield each state but fresh, the first hosts that are in it, and how many more there are."""
    for state in ("failed", "down", "stale", "unseen", "maintenance"):
        names = [host for host, host_state in host_states.items() if host_state == state]
        if names:
            yield state, names[:MAX_HOSTS_PER_STATE], len(names) - len(names[:MAX_HOSTS_PER_STATE])


def rank_page_models(models: Iterable[ModelSummary]) -> list[ModelSummary]:
    """Return all models of the fleet, the best first: the one with the most memory, then the newest."""
    counts: Counter[str] = Counter()
    firsts: dict[str, ModelSummary] = {}
    for model in models:
        counts[model.model] += model.gpu_count
        firsts.setdefault(model.model, model)
    ranked = sorted(firsts.values(), key=lambda model: (-model.memory_gib, -model.year, model.model))
    return [model._replace(gpu_count=counts[model.model]) for model in ranked]


def render_page_available_gpus(models: Sequence[ModelSummary], gpus: Iterable[AvailableGpuSummary]) -> str:
    """Render the models and the GPUs that anybody can have, both the best first, for the line that picks some of them.

    A model has its name and a level: a lower one is better. A GPU has its model's number, its host, its label, until
    when it is free, its vendor, and whether it is an instance; then its group and node, if its host says how its GPUs
    are connected.
    """
    numbers = {model.model: number for number, model in enumerate(models)}
    levels = {qualities: level for level, qualities in enumerate(dict.fromkeys((m.memory_gib, m.year) for m in models))}
    rows = [
        [
            numbers.get(gpu.model, -1),
            gpu.host,
            str(gpu.index),
            None if gpu.free_until is None else int(gpu.free_until),
            gpu.vendor,
            int(gpu.is_instance),
            *([] if gpu.nvlink_group is None and gpu.numa_node is None else [gpu.nvlink_group, gpu.numa_node]),
        ]
        for gpu in sorted(gpus, key=lambda gpu: gpu.rank[:-1])  # the load moves all the time
    ]
    named = [[model.model, levels[model.memory_gib, model.year]] for model in models]
    return orjson.dumps({"models": named, "gpus": rows}).decode()


def group_page_free_gpus_by_model(
    free_gpus: Iterable[FreeGpu], models: Iterable[ModelSummary], now: Now
) -> Iterator[tuple[str, list[tuple[str, str, str, bool]], int, int, int]]:
    """Yield each model with free GPUs, the best first: its hosts, how many GPUs more, how many are free, and all."""
    places_by_model: defaultdict[str, defaultdict[tuple[str, str, bool], list[FreeGpu]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for gpu in free_gpus:
        note = f"until {render_epoch_html(gpu.free_until, now)}" if gpu.free_until else ""
        key = gpu.host, TROUBLE_NOTE if gpu.is_avoided else note, gpu.is_avoided
        places_by_model[gpu.model][key].append(gpu)
    for model in models:
        places = places_by_model.get(model.model)
        if not places:
            continue
        shown = [
            (host, ",".join("?" if gpu.index is None else str(gpu.index) for gpu in gpus), note, is_avoided)
            for (host, note, is_avoided), gpus in islice(places.items(), MAX_FREE_HOSTS)
        ]
        omitted_count = sum(map(len, islice(places.values(), MAX_FREE_HOSTS, None)))
        yield model.model, shown, omitted_count, sum(map(len, places.values())), model.gpu_count


def list_page_next_free_gpus(soon_free_gpus: Iterable[SoonFreeGpu], now: Now) -> Iterator[tuple[str, str, str]]:
    """Yield the GPUs that become free first: the host, which of its GPUs, and when."""
    places: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for gpu in sorted(soon_free_gpus, key=lambda gpu: gpu.free_at):
        places[gpu.free_at, gpu.host].append("?" if gpu.index is None else str(gpu.index))
    for (free_at, host), labels in islice(places.items(), MAX_SOON_FREE):
        yield host, ",".join(labels), render_epoch_html(free_at, now)


def render_page_icon(free_count: int) -> bytes:
    """Render the icon of the browser tab: the number of free GPUs, as large as fits."""
    text = str(free_count) if free_count < 1000 else f"{free_count // 1000}k"
    size = {1: 24, 2: 20, 3: 14}.get(len(text), 12)
    fill = FREE_COLOUR if free_count else NONE_FREE_COLOUR
    return ICON_SVG.format(fill=fill, y=16 + size * 0.36, size=size, text=text).encode()


# hosts/HOST.html


def render_host_page(
    host: HostStatus,
    card_html: bytes,
    charts_html: bytes,
    health: HealthPageSection | None,
    assets_version: str,
    booking_url: str | None,
    now: Now,
) -> bytes:
    """Render the whole page; `booking_url` is relative to the board."""
    name = escape_html(host.name)
    # no link to this page itself, and other links relative to hosts/
    card_text = card_html.decode().replace(f'<h2><a href="hosts/{name}.html">{name}</a></h2>', f"<h2>{name}</h2>", 1)
    gpus = [whole_gpu.status for whole_gpu in list_whole_gpus(host)]
    facts = host.facts or HostFacts()
    text = load_compact_html_template("host.html").render(
        host=host,
        version=assets_version,
        book=f"../{booking_url}" if booking_url and not booking_url.startswith("/") else booking_url,
        card=card_text.replace('<a class=book href="', '<a class=book href="../', 1),
        facts=list(list_host_page_machine_facts(facts, now)),
        interfaces=facts.interfaces,
        gpus=gpus,
        wrong=health_page.build_health_page_problem_rows(host),
        fields=render_host_page_driver_fields(gpus),
        processes=[
            *((gpu.gpu.label, process) for gpu in host.gpus for process in gpu.processes),
            *((gpu.gpu.label, process) for gpu in gpus for process in host.unplaced_processes.get(gpu.key, ())),
            *(("?", process) for process in host.unmatched_processes),
        ],
        bookings=[
            *((gpu.gpu.label, card.build_card_booking(booking, now)) for gpu in host.gpus for booking in gpu.bookings),
            *(("?", card.build_card_booking(booking, now)) for booking in host.bookings),
        ],
        health=health,
        built=build_time_html(now),
        charts=CHARTS_PLACEHOLDER,
        format_size=formatting.format_size,
        format_start=lambda epoch: datetime.fromtimestamp(epoch, now.zone).isoformat(" ", "minutes"),
        format_container=format_process_container,
    )
    before, _, after = text.partition(CHARTS_PLACEHOLDER)
    return b"".join((before.encode(), charts_html, after.encode()))


def list_host_page_machine_facts(facts: HostFacts, now: Now) -> Iterator[tuple[str, str]]:
    """Yield the facts in host.txt as label and value."""
    if facts.load:
        yield "Load", f"{' · '.join(f'{load:.2f}' for load in facts.load)} (1, 5, 15 min)"
    if facts.cpus:
        yield "CPUs", str(facts.cpus)
    if facts.memory_total is not None:
        total, available = formatting.format_gib(facts.memory_total), formatting.format_gib(facts.memory_available)
        yield "Memory", f"{total} GiB, {available} GiB available"
    if facts.uptime is not None:
        booted = datetime.fromtimestamp(now.epoch - facts.uptime, now.zone)
        yield "Up since", f"{booted:%Y-%m-%d %H:%M}"
    swap = [facts.extra.get(key, "") for key in SWAP_FACTS]
    is_swap_known = all(value.isdecimal() and len(value) < 16 for value in swap)
    if is_swap_known:
        total, free = (formatting.format_gib(float(value)) for value in swap)
        yield "Swap", f"{total} GiB, {free} GiB free"
    if facts.topology:
        if nvlinks := describe_nvlinks(facts.topology):
            yield "NVLink", nvlinks
        if numa_nodes := describe_numa_nodes(facts.topology):
            yield "NUMA nodes", numa_nodes
    for key, label in FACT_LABELS.items():
        value = facts.extra.get(key)
        if value:
            yield label, UNREADABLE_LOG_ADVICE if (key, value) == ("kernel_log", UNREADABLE_LOG) else value
    for key, value in facts.extra.items():
        if key not in FACT_LABELS and not (is_swap_known and key in SWAP_FACTS):
            yield key, value


def render_host_page_driver_fields(gpus: Sequence[GpuStatus]) -> Markup:
    """Render a row for each field of nvidia-smi, with its value for each GPU; omit fields without values."""
    raw_fields = [gpu_status.gpu.raw_fields for gpu_status in gpus]
    rows = []
    for name in dict.fromkeys(chain.from_iterable(raw_fields)):
        values = [cells.get(name, "") for cells in raw_fields]
        if name in OMITTED_FIELDS or NO_VALUE_CELLS.issuperset(values):
            continue
        if name.endswith("_reasons.active"):
            values = [value if value in NO_VALUE_CELLS else describe_host_page_clock_reasons(value) for value in values]
        cells = (name, *["–" if value in NO_VALUE_CELLS else value for value in values])
        rows.append(ROW_SEPARATOR + CELL_SEPARATOR.join(cells))
    text = str(escape("".join(rows)))  # all at once, since they are hundreds
    return Markup(text.replace(ROW_SEPARATOR, "\n<tr><th scope=row>").replace(CELL_SEPARATOR, "<td>"))  # noqa: S704 # it is escaped


def describe_host_page_clock_reasons(mask: str) -> str:
    """Say why the clocks are not at their highest."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return mask
    reasons = [reason for bit, reason in CLOCK_REASONS if bits & bit]
    unknown_bits = bits & ~sum(bit for bit, _ in CLOCK_REASONS)
    return ", ".join([*reasons, hex(unknown_bits)] if unknown_bits else reasons) or "none"


class HostPageJob(NamedTuple):
    """Files of one host that SiteWriter renders when they are due: its page, or its files for programs.

    `render` takes the version of the assets, and returns contents by file names. It is called at most every
    `interval_s` seconds if the fingerprint is new, and after `max_age_s` in any case.
    """

    host: str
    fingerprint: bytes
    file_names: tuple[str, ...]
    render: Callable[[str], Mapping[str, bytes]]
    interval_s: float = PAGE_INTERVAL_S
    max_age_s: float = float("inf")


class HostPageBuilder:
    """Prepares the pages of all hosts; each is rendered when it is due."""

    def __init__(self, settings: Settings, history: HistoryWriter, events: StoredEventReader) -> None:
        self.settings = settings
        self.booking_url = settings.booking_policy.url
        self.faults = FaultLog()
        self.chart_cache = ChartCache(settings, history)
        self.event_reader = events
        self.decided_hosts: Mapping[str, BuiltHostStatus] = {}
        self.last_decision: tuple[HostStatusSources, BuiltHostStatus] | None = None

    def start_build(
        self, hosts: Iterable[str], decided_hosts: Mapping[str, BuiltHostStatus], is_single_build: bool
    ) -> None:
        """Begin a build, with the hosts that the pipeline has just decided; one of many has a time limit for charts."""
        self.chart_cache.start_build(hosts, is_single_build)
        self.decided_hosts, self.last_decision = decided_hosts, None

    def decide_page_host(
        self, host: HostStatusSources, built_host: BuiltHost, rules: StateRules, now: Now
    ) -> BuiltHostStatus:
        """Return what the pipeline decided in this build; decide a host that was built earlier once more."""
        if host.discovered.name in self.decided_hosts:
            return self.decided_hosts[host.discovered.name]
        if self.last_decision is None or self.last_decision[0] is not host:  # its jobs mostly follow each other
            decided = build_host_status(host, rules, now)
            status = decided.status
            if built_host.summary.state == "failed" != status.state:  # it could not be rendered: no GPU is called free
                status = replace(build_unrendered_host_status(status), problems=built_host.summary.problems)
            self.last_decision = host, decided._replace(status=status)
        return self.last_decision[1]

    def build_page_jobs(
        self, host: HostStatusSources, built_host: BuiltHost, rules: StateRules, now: Now
    ) -> Iterator[HostPageJob]:
        """Yield the jobs of a host; its files for programs do not wait for charts."""
        facts = (built_host.fingerprint, rules.privacy, self.booking_url, str(now.zone))
        fingerprint = files.compute_digest(repr(facts).encode(), built_host.digests.card)
        name = host.discovered.name
        page_name = f"hosts/{name}.html"
        program_files = host_json.list_host_json_paths(name)

        def render_page(assets_version: str) -> dict[str, bytes]:
            host_status = self.decide_page_host(host, built_host, rules, now).status
            chart_request = CachedChartRequest(
                name, frozenset(history_model.list_host_gpu_keys(host_status.gpus)), rules.people, rules.privacy
            )
            charts_html, health = b"", None
            place = f"{WWW_PREFIX}{page_name}"
            with self.faults.catch(place, "its charts could not be rendered"):
                charts_html = self.chart_cache.render_host(chart_request, now)
            with self.faults.catch(place, "the health of its GPUs could not be rendered"):
                limit = health_page.compute_health_page_event_limit(host_status)
                timelines = self.event_reader.read_timelines(
                    name, gpu_health.list_gpu_health_keys(host_status), now.epoch, limit
                )
                health = health_page.build_health_page_section(host_status, timelines, now)
            render = partial(
                render_host_page,
                card_html=built_host.rendered.card_html,
                charts_html=charts_html,
                assets_version=assets_version,
                booking_url=self.booking_url,
                now=now,
            )
            with self.faults.catch(place):
                problems = hide_page_problem_details(host_status.problems, self.settings)
                return {page_name: render(replace(host_status, problems=tuple(problems)), health=health)}
            # the card and the charts are still right; anything else of an older page may not be
            problems = hide_page_problem_details([self.faults.problems_by_place[place]], self.settings)
            reduced = HostStatus(name, None, (), host_status.state, host_status.reason, problems=tuple(problems))
            return {page_name: render(reduced, health=None)}

        def render_program_files(_: str) -> dict[str, bytes]:
            with self.faults.catch(f"{WWW_PREFIX}{program_files[0]}"):
                return host_json.render_host_json_files(built_host.load_status(), now)
            return host_json.render_host_json_files(host_json.build_failed_status_host(name), now)

        page_interval_s = max(PAGE_INTERVAL_S, self.chart_cache.page_interval_s)
        yield HostPageJob(name, fingerprint, program_files, render_program_files)
        yield HostPageJob(name, fingerprint, (page_name,), render_page, page_interval_s, MAX_PAGE_AGE_S)


# Problems as they may be published


def hide_page_problem_details(problems: Sequence[Problem], settings: Settings) -> list[Problem]:
    """Hide the paths of this machine; where people are hidden, also the texts, which may quote names and commands.

    state/build.log has everything.
    """
    if not problems:
        return []
    places = {
        "data": settings.data,
        "state": settings.state,
        "www": settings.www,
        "GPUBOARD_ALERTS": settings.alerts.rules_file,
        "GPUBOARD_CONTACTS": settings.alerts.contacts_file,
        "GPUBOARD_HOOKS": settings.alerts.hooks_folder,
    }
    labels: dict[str, str] = {}
    for label, place in places.items():
        path = Path(place).absolute() if place else Path("/")
        # as written, and with links resolved
        labels |= {str(form): label for form in (path, os.path.realpath(path)) if str(form) != "/"}
    hidden = [
        Problem(formatting.hide_paths(problem.where, labels), formatting.hide_paths(problem.what, labels))
        for problem in problems
    ]
    if settings.privacy == PrivacySettings():
        return hidden
    return [Problem(where, "logged in state/build.log") for where in dict.fromkeys(problem.where for problem in hidden)]
