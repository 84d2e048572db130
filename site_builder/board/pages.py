"""Render index.html and the page of each host."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup, escape

from site_builder.board import card
from site_builder.board.host_pipeline import BuiltHost
from site_builder.board.outputs import output_files
from site_builder.charts.cache import ChartCache, ChartRequest
from site_builder.config.settings import Settings
from site_builder.core import files, formatting
from site_builder.core.clock import Now
from site_builder.core.faults import WWW_PREFIX, FaultLog
from site_builder.core.html import load_template, render_epoch, render_moment
from site_builder.core.model import (
    FreeGpu,
    GpuStatus,
    HostFacts,
    HostStatus,
    PrivacySettings,
    Problem,
    ProcessStatus,
    SoonFreeGpu,
)
from site_builder.fleet.build import DecidedHost, HostSources, build_unrendered_status, decide_host
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.mig import list_whole_gpus
from site_builder.health import gpu_health
from site_builder.health import page as health_page
from site_builder.health.events import CRITICAL_KINDS
from site_builder.health.page import HealthSection
from site_builder.health.store import EventReader
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


def render_icon(free: int) -> bytes:
    """As large as the number allows."""
    text = str(free) if free < 1000 else f"{free // 1000}k"
    size = {1: 24, 2: 20, 3: 14}[len(text)] if len(text) < 4 else 12
    return ICON_SVG.format(
        fill=FREE_COLOUR if free else NONE_FREE_COLOUR, y=16 + size * 0.36, size=size, text=text
    ).encode()


STATE_TITLES = {
    "free": "Free",
    "busy": "Busy",
    "held": "Held idle",
    "booked": "Booked",
    "conflict": "Booking conflict",
    "lost": "Trouble",
    "unknown": "Unknown",
}
ALWAYS_SHOWN_STATES = frozenset({"free", "busy"})
TROUBLE_NOTE = "in trouble"
MAX_FREE_HOSTS = 60
MAX_SOON_FREE = 5
MAX_HOSTS_PER_STATE = 20
MAX_PROBLEMS = 200
# Stands for the cards in the template; no text of others can hold it, for control characters are taken out of that.
CARDS_PLACEHOLDER = "\x1ccards\x1c"
NO_HOSTS_HTML = (
    b"<p>No host yet. Each GPU host pushes its snapshot with <code>gpu-check.sh</code>; it appears here within a "
    b"minute.</p>"
)


class BoardPageContent(NamedTuple):
    """All that the page tells beside its cards; `version` changes with the assets."""

    host_states: Mapping[str, str]
    gpu_counts: Mapping[str, int]
    free_gpus: Sequence[FreeGpu]
    problems: Sequence[Problem]
    notice: str | None
    assets_version: str
    soon_free_gpus: Sequence[SoonFreeGpu] = ()
    booking_url: str | None = None
    waste: WasteReport | None = None
    can_watch: bool = False  # whether people can say what they wait for

    @property
    def free_count(self) -> int:
        """How many GPUs are free."""
        return self.gpu_counts.get("free", 0)


class BoardPageParts(NamedTuple):
    """The page but for its cards, in parts of which each is sent again only when it has changed."""

    top: bytes
    waste: bytes
    problems: bytes


def render_board_parts(fleet: BoardPageContent, now: Now) -> BoardPageParts:
    """What stands before the cards, and behind them."""
    totals, problems = fleet.gpu_counts, fleet.problems
    top = load_template("top.html").render(
        counts=[
            (state, STATE_TITLES[state], totals.get(state, 0))
            for state in STATE_TITLES
            if state in ALWAYS_SHOWN_STATES or totals.get(state)
        ],
        hosts=len(fleet.host_states),
        not_fresh=list(group_hosts_by_state(fleet.host_states)),
        free=list(group_free_gpus_by_model(fleet.free_gpus, now)),
        coming=[] if fleet.free_gpus else list(list_next_free_gpus(fleet.soon_free_gpus, now)),
        notice=fleet.notice,
        watch=fleet.can_watch,
    )
    told = load_template("problems.html").render(problems=problems, most=MAX_PROBLEMS) if problems else ""
    return BoardPageParts(top.encode(), waste_render.render_waste_section(fleet.waste, now), told.encode())


def render_board_page(cards: Sequence[bytes], parts: BoardPageParts, fleet: BoardPageContent, now: Now) -> bytes:
    """The whole page; by the version, no browser shows a new page with old assets."""
    page = load_template("board.html").render(
        cards=CARDS_PLACEHOLDER,
        free=fleet.free_count,
        problems=len(fleet.problems),
        wasted=waste_render.format_waste_summary(fleet.waste),
        version=fleet.assets_version,
        book=fleet.booking_url,
        built=(int(now.epoch * 1000), now.local.isoformat(" ", "seconds"), f"{now.local:%H:%M:%S}"),
    )
    # the cards, many times as large as the rest, need not go through the template
    before, _, after = page.partition(CARDS_PLACEHOLDER)
    return b"".join((before.encode(), parts.top, b"\n".join(cards) or NO_HOSTS_HTML, *parts[1:], after.encode()))


def group_hosts_by_state(hosts: Mapping[str, str]) -> Iterator[tuple[str, list[str], int]]:
    """Each state but fresh, the hosts that are in it, and how many more."""
    for state in ("failed", "down", "stale", "unseen", "maintenance"):
        names = [host for host, its_state in hosts.items() if its_state == state]
        if names:
            yield state, names[:MAX_HOSTS_PER_STATE], len(names) - len(names[:MAX_HOSTS_PER_STATE])


def group_free_gpus_by_model(
    free: Iterable[FreeGpu], now: Now
) -> Iterator[tuple[str, list[tuple[str, str, str]], int]]:
    """Each model, the one with the most memory first; on which hosts; and on how many more."""
    models: defaultdict[str, defaultdict[tuple[str, str], list[FreeGpu]]] = defaultdict(lambda: defaultdict(list))
    for gpu in free:
        until = (
            f"until {render_moment(datetime.fromtimestamp(gpu.free_until, now.zone), now)}" if gpu.free_until else ""
        )
        models[gpu.model][gpu.host, TROUBLE_NOTE if gpu.is_avoided else until].append(gpu)
    for model, places in sorted(
        models.items(), key=lambda item: (-next(iter(item[1].values()))[0].memory_total, item[0])
    ):
        shown = [
            (host, ",".join("?" if gpu.index is None else str(gpu.index) for gpu in gpus), until)
            for (host, until), gpus in islice(places.items(), MAX_FREE_HOSTS)
        ]
        yield model, shown, sum(map(len, islice(places.values(), MAX_FREE_HOSTS, None)))


def list_next_free_gpus(coming: Iterable[SoonFreeGpu], now: Now) -> Iterator[tuple[str, str, str]]:
    """Which GPUs come free first: the host, which of its GPUs, and when."""
    places: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for gpu in sorted(coming, key=lambda one: one.free_at):
        places[gpu.free_at, gpu.host].append("?" if gpu.index is None else str(gpu.index))
    for (at, host), labels in islice(places.items(), MAX_SOON_FREE):
        yield host, ",".join(labels), render_epoch(at, now)


# The bits of clocks_event_reasons.active, in nvidia-smi's order.
CLOCK_REASONS = (
    (0x1, "idle"),
    (0x2, "clocks set by an application"),
    (0x4, "power limit"),
    (0x8, "hardware slowdown"),
    (0x10, "in step with other GPUs"),
    (0x20, "too warm"),
    (0x40, "too warm, by the hardware"),
    (0x80, "power brake, by the hardware"),
    (0x100, "display clocks"),
)
# What stands on the card already, or is no news.
OMITTED_FIELDS = frozenset({"index", "uuid", "name"})
NO_VALUE_CELLS = frozenset({"[N/A]", "N/A", "[Not Supported]", ""})
# Stands for the charts in the template, as board.CARDS does.
CHARTS_PLACEHOLDER = "\x1ccharts\x1c"
# Stand between the rows and the cells of a table until it is escaped; readers leave no such signs in a text.
ROW_SEPARATOR, CELL_SEPARATOR = "\x1e", "\x1f"
# Words for keys of host.txt.
FACT_LABELS = {
    "kernel": "Kernel",
    "driver": "Driver",
    "collector": "Collector",
    "zone": "Time zone",
    "hidepid": "hidepid",
}


class HostPageParts(NamedTuple):
    """What was made of a host before its page: its card, its charts, and the health of its GPUs."""

    card_html: bytes
    charts_html: bytes
    health: HealthSection | None


def render_host_page(host: HostStatus, version: str, now: Now, book: str | None, parts: HostPageParts) -> bytes:
    """The whole page; `book` is where the desk is, seen from the board."""
    told = [one.status for one in list_whole_gpus(host)]
    text = load_template("host.html").render(
        host=host,
        version=version,
        book=f"../{book}" if book and not book.startswith("/") else book,
        card=card.adapt_card_to_host_page(parts.card_html, host.name),
        facts=list(list_machine_facts(host.facts or HostFacts(), now)),
        interfaces=(host.facts or HostFacts()).interfaces,
        gpus=told,
        wrong=health_page.group_gpu_problems(host),
        fields=render_field_rows(list_driver_fields(told)),
        processes=[
            *((gpu.gpu.label, build_process_row(one, now)) for gpu in host.gpus for one in gpu.processes),
            *(
                (gpu.gpu.label, build_process_row(one, now))
                for gpu in told
                for one in host.unplaced_processes.get(gpu.key, ())
            ),
        ],
        others=[("?", build_process_row(one, now)) for one in host.unmatched_processes],
        bookings=[
            *((gpu.gpu.label, card.build_booking_cell(one, now)) for gpu in host.gpus for one in gpu.bookings),
            *(("?", card.build_booking_cell(one, now)) for one in host.bookings),
        ],
        well=parts.health,
        built=(int(now.epoch * 1000), now.local.isoformat(" ", "seconds"), f"{now.local:%H:%M:%S}"),
        charts=CHARTS_PLACEHOLDER,
    )
    before, _, after = text.partition(CHARTS_PLACEHOLDER)
    return b"".join((before.encode(), parts.charts_html, after.encode()))


def list_machine_facts(facts: HostFacts, now: Now) -> Iterator[tuple[str, str]]:
    """What host.txt tells of the machine, as name and value."""
    if facts.load:
        yield "Load", f"{' · '.join(f'{load:.2f}' for load in facts.load)} (1, 5, 15 min)"
    if facts.cpus:
        yield "CPUs", str(facts.cpus)
    if facts.memory_total is not None:
        yield (
            "Memory",
            f"{formatting.format_gib(facts.memory_total)} GiB, {formatting.format_gib(facts.memory_available)} GiB available",
        )
    if facts.uptime is not None:
        booted = datetime.fromtimestamp(now.epoch - facts.uptime, now.zone)
        yield "Up since", f"{booted:%Y-%m-%d %H:%M}"
    for key, name in FACT_LABELS.items():
        if facts.extra.get(key):
            yield name, facts.extra[key]
    for key, value in facts.extra.items():
        if key not in FACT_LABELS:
            yield key, value


def render_field_rows(fields: Iterable[Sequence[str]]) -> Markup:
    """The rows of a table, each the name of a field and its cells; escaped all at once, since they are hundreds."""
    text = str(escape("".join([ROW_SEPARATOR + CELL_SEPARATOR.join(one) for one in fields])))
    return Markup(text.replace(ROW_SEPARATOR, "\n<tr><th scope=row>").replace(CELL_SEPARATOR, "<td>"))  # noqa: S704 # it is escaped


def list_driver_fields(gpus: Sequence[GpuStatus]) -> Iterator[Sequence[str]]:
    """What nvidia-smi told, field by field under its own names, of each GPU; what it told of none is left out."""
    told = [one.gpu.raw_fields for one in gpus]
    for name in dict.fromkeys(chain.from_iterable(told)):
        values = [cells.get(name, "") for cells in told]
        if name in OMITTED_FIELDS or NO_VALUE_CELLS.issuperset(values):
            continue
        if name.endswith("_reasons.active"):
            values = [one if one in NO_VALUE_CELLS else describe_clock_reasons(one) for one in values]
        yield name, *["–" if one in NO_VALUE_CELLS else one for one in values]


def describe_clock_reasons(mask: str) -> str:
    """Why the clocks are not at their highest."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return mask
    known = [word for bit, word in CLOCK_REASONS if bits & bit]
    unknown = bits & ~sum(bit for bit, _ in CLOCK_REASONS)
    return ", ".join([*known, hex(unknown)] if unknown else known) or "none"


def build_process_row(one: ProcessStatus, now: Now) -> tuple[str, str, str, str, str, str, tuple[int, ...]]:
    """A process with its full command: pid, user, memory, since, container, command, children that outlived it."""
    since = "" if one.started is None else datetime.fromtimestamp(one.started, now.zone).isoformat(" ", "minutes")
    size = "" if one.used_memory is None else formatting.format_size(one.used_memory)
    pid = "" if one.pid is None else str(one.pid)
    user = f"{one.user or ''} (as {one.runs_as})" if one.runs_as else one.user or ""
    return pid, user, size, since, card.format_full_container(one), one.command or "", one.children


# A page is made anew after so many seconds though nothing is new: time goes on along its charts.
MAX_PAGE_AGE_S = 900


class HostPageBuilder:
    """The pages of all hosts, each of which is made when its turn comes."""

    def __init__(self, settings: Settings, history: HistoryWriter, events: EventReader) -> None:
        """Of what history knows of them."""
        self.booking_url, self.settings = settings.booking_policy.url, settings
        self.faults = FaultLog()
        self.chart_cache = ChartCache(settings, history)
        self.event_reader = events
        self.last_decision: tuple[HostSources, DecidedHost] | None = None

    def start_build(self, hosts: Iterable[str], patient: bool) -> None:
        """A build begins; one that comes again soon has only so much time for charts."""
        self.chart_cache.start_build(hosts, patient)
        self.last_decision = None

    def decide_host_once(
        self, host: HostSources, card: BuiltHost, rules: StateRules, names: dict[str, str], now: Now
    ) -> DecidedHost:
        """Decide a host again. The last one is kept: what exists of a host is mostly made one after the other."""
        if self.last_decision is None or self.last_decision[0] is not host:
            decided = decide_host(host, rules, names, now)
            status = decided.status
            if card.summary.state == "failed" != status.state:  # no card could be made, and no GPU is called free
                status = replace(build_unrendered_status(status), problems=card.summary.problems)
            self.last_decision = host, decided._replace(status=status)
        return self.last_decision[1]

    def build_page_jobs(
        self, host: HostSources, card: BuiltHost, rules: StateRules, names: dict[str, str], now: Now
    ) -> Iterator[HostPageJob]:
        """Those of one host; what programs read does not wait for charts."""
        facts = files.compute_digest(
            repr((card.fingerprint, rules.privacy, self.booking_url, str(now.zone))).encode(), card.digests.card
        )
        name = host.discovered.name

        def page(version: str) -> dict[str, bytes]:
            board = self.decide_host_once(host, card, rules, names, now).status
            told = replace(board, problems=tuple(hide_problem_details(board.problems, self.settings)))
            asked = ChartRequest(
                name, frozenset(history_model.list_host_gpu_keys(board.gpus)), rules.people, rules.privacy
            )
            drawn, health_of = b"", None
            where = f"{WWW_PREFIX}hosts/{name}.html"
            with self.faults.catch(where, "its charts could not be drawn"):
                drawn = self.chart_cache.render_host(asked, now)
            with self.faults.catch(where, "the health of its GPUs could not be told"):
                health_of = self.build_health_section(board, now)
            parts = HostPageParts(card.card_html, drawn, health_of)
            with self.faults.catch(where):
                return {f"hosts/{name}.html": render_host_page(told, version, now, self.booking_url, parts)}
            # what is left is true, but for an older page
            less = HostStatus(name, None, (), board.state, board.reason, problems=tuple(self.list_page_faults(where)))
            less_parts = parts._replace(health=None)
            return {f"hosts/{name}.html": render_host_page(less, version, now, self.booking_url, less_parts)}

        def programs(_: str) -> dict[str, bytes]:
            decided = self.decide_host_once(host, card, rules, names, now)
            with self.faults.catch(f"{WWW_PREFIX}{output_files.build_states_path(name)}"):
                return output_files.render_host_files(decided.status, decided.gpus_taken_at, now)
            return output_files.render_failed_host_files(name)  # an older file could call a GPU free

        yield HostPageJob(
            name, facts, (output_files.build_states_path(name), output_files.build_node_path(name)), programs
        )
        yield HostPageJob(
            name,
            facts,
            (f"hosts/{name}.html",),
            page,
            max(PAGE_INTERVAL_S, self.chart_cache.page_interval_s),
            MAX_PAGE_AGE_S,
        )

    def list_page_faults(self, where: str) -> list[Problem]:
        """The fault of a page, as it may be shown."""
        return hide_problem_details([self.faults.problems_by_place[where]], self.settings)

    def build_health_section(self, board: HostStatus, now: Now) -> health_page.HealthSection | None:
        """What happened to its GPUs."""
        lines = self.event_reader.read_timelines(
            board.name,
            gpu_health.list_gpu_keys(board),
            now.epoch,
            health_page.compute_event_limit(board),
            CRITICAL_KINDS,
        )
        return health_page.build_health_section(board, lines, now)


def hide_problem_details(problems: Sequence[Problem], settings: Settings) -> list[Problem]:
    """The problems as they may be published: their words quote files, and so people and commands.

    Where files stand on this machine is nobody else's business; state/build.log has the whole paths.
    """
    if not problems:
        return []
    labels = build_path_labels(settings)
    problems = [hide_problem_paths(problem, labels) for problem in problems]
    if settings.privacy == PrivacySettings():
        return problems
    return [Problem(where, "told in state/build.log") for where in dict.fromkeys(one.where for one in problems)]


def hide_problem_paths(problem: Problem, labels: Mapping[str, str]) -> Problem:
    """Replace the absolute paths of a problem."""
    return Problem(formatting.hide_paths(problem.where, labels), formatting.hide_paths(problem.what, labels))


def build_path_labels(settings: Settings) -> dict[str, str]:
    """Map the paths in the settings, as they are written and without links, to what the page calls them."""
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
        labels |= {str(form): label for form in (path, os.path.realpath(path)) if str(form) != "/"}
    return labels


# A host's page is written anew once in so many seconds, where something changed.
PAGE_INTERVAL_S = 50


class HostPageJob(NamedTuple):
    """A host's own page, or what else exists once a host: what tells one content from the next, and the files' names.

    `make` gives the contents by these names, for a version of the assets; where something changed it does so once in
    `every` seconds, and after `lasts` seconds in any case. Those of one host and of one age follow each other.
    """

    host: str
    fingerprint: bytes
    file_names: tuple[str, ...]
    render: Callable[[str], Mapping[str, bytes]]
    interval_s: float = PAGE_INTERVAL_S
    max_age_s: float = float("inf")
