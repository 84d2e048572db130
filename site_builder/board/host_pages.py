"""What exists once a host: its page, with charts and the health of its GPUs, and its files for programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from site_builder.board import host_page
from site_builder.board.host_pipeline import Card
from site_builder.board.outputs import registry
from site_builder.board.site_writer import PAGE_EVERY, Page
from site_builder.charts.cache import Asked, Charts
from site_builder.config.settings import Settings
from site_builder.core import formatting, published_files
from site_builder.core.clock import Now
from site_builder.core.faults import WWW, Faults
from site_builder.core.model import BoardHost, Problem, Shown
from site_builder.fleet.gpu_state import Rules
from site_builder.fleet.host_view import Host, board_of, not_shown
from site_builder.health import metrics
from site_builder.health import page as health_page
from site_builder.health.descriptions import GRAVE
from site_builder.health.store import Events
from site_builder.history import sampling
from site_builder.history.writer import History

# A page is made anew after so many seconds though nothing is new: time goes on along its charts.
LASTS = 900


class HostPages:
    """The pages of all hosts, each of which is made when its turn comes."""

    def __init__(self, settings: Settings, history: History, events: Events) -> None:
        """Of what history knows of them."""
        self.book, self.settings = settings.rules.url, settings
        self.faults = Faults()
        self.charts = Charts(settings, history)
        self.events = events
        self.decided: tuple[Host, tuple[BoardHost, float | None]] | None = None

    def start(self, hosts: Iterable[str], patient: bool) -> None:
        """A build begins; one that comes again soon has only so much time for charts."""
        self.charts.start(hosts, patient)
        self.decided = None

    def board(
        self, host: Host, card: Card, rules: Rules, names: dict[str, str], now: Now
    ) -> tuple[BoardHost, float | None]:
        """As board_of has it. The last one is kept: what exists of a host is mostly made one after the other."""
        if self.decided is None or self.decided[0] is not host:
            board, looked = board_of(host, rules, names, now)
            if card.summary.state == "failed" != board.state:  # no card could be made, and no GPU is called free
                board = replace(not_shown(board), problems=card.summary.problems)
            self.decided = host, (board, looked)
        return self.decided[1]

    def of(self, host: Host, card: Card, rules: Rules, names: dict[str, str], now: Now) -> Iterator[Page]:
        """Those of one host; what programs read does not wait for charts."""
        facts = published_files.digest(
            repr((card.made_of, rules.shown, self.book, str(now.zone))).encode(), card.digests.html
        )
        name = host.known.name

        def page(version: str) -> dict[str, bytes]:
            board, _ = self.board(host, card, rules, names, now)
            told = replace(board, problems=tuple(shown_of(board.problems, self.settings)))
            asked = Asked(name, frozenset(sampling.keys_of(board.gpus)), rules.people, rules.shown)
            drawn, health_of = b"", None
            where = f"{WWW}hosts/{name}.html"
            with self.faults.catch(where, "its charts could not be drawn"):
                drawn = self.charts.draw(asked, now)
            with self.faults.catch(where, "the health of its GPUs could not be told"):
                health_of = self.health(board, now)
            parts = host_page.Parts(card.html, drawn, health_of)
            with self.faults.catch(where):
                return {f"hosts/{name}.html": host_page.page(told, version, now, self.book, parts)}
            # what is left is true, but for an older page
            less = BoardHost(name, None, (), board.state, board.reason, problems=tuple(self.told(where)))
            return {f"hosts/{name}.html": host_page.page(less, version, now, self.book, parts._replace(well=None))}

        def programs(_: str) -> dict[str, bytes]:
            board, looked = self.board(host, card, rules, names, now)
            with self.faults.catch(f"{WWW}{registry.states_of(name)}"):
                return registry.host_files(board, looked, now)
            return registry.failed_host_files(name)  # an older file could call a GPU free

        yield Page(name, facts, (registry.states_of(name), registry.node_of(name)), programs)
        yield Page(name, facts, (f"hosts/{name}.html",), page, max(PAGE_EVERY, self.charts.page_every), LASTS)

    def told(self, where: str) -> list[Problem]:
        """The fault of a page, as it may be shown."""
        return shown_of([self.faults.found[where]], self.settings)

    def health(self, board: BoardHost, now: Now) -> health_page.Health | None:
        """What happened to its GPUs."""
        lines = self.events.of_host(board.name, metrics.keys_of(board), now.epoch, health_page.most(board), GRAVE)
        return health_page.health(board, lines, now)


def shown_of(problems: Sequence[Problem], settings: Settings) -> list[Problem]:
    """The problems as they may be published: their words quote files, and so people and commands.

    Where files stand on this machine is nobody else's business; state/build.log has the whole paths.
    """
    if not problems:
        return []
    labels = path_labels(settings)
    problems = [hide_problem_paths(problem, labels) for problem in problems]
    if settings.shown == Shown():
        return problems
    return [Problem(where, "told in state/build.log") for where in dict.fromkeys(one.where for one in problems)]


def hide_problem_paths(problem: Problem, labels: Mapping[str, str]) -> Problem:
    """Replace the absolute paths of a problem."""
    return Problem(formatting.hide_paths(problem.where, labels), formatting.hide_paths(problem.what, labels))


def path_labels(settings: Settings) -> dict[str, str]:
    """Map the paths in the settings, as they are written and without links, to what the page calls them."""
    places = {
        "data": settings.data,
        "state": settings.state,
        "www": settings.www,
        "GPUBOARD_ALERTS": settings.alerts.rules,
        "GPUBOARD_CONTACTS": settings.alerts.contacts,
        "GPUBOARD_HOOKS": settings.alerts.hooks,
    }
    labels: dict[str, str] = {}
    for label, place in places.items():
        path = Path(place).absolute() if place else Path("/")
        labels |= {str(form): label for form in (path, os.path.realpath(path)) if str(form) != "/"}
    return labels
