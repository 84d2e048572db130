"""Charts, and the small lines of the board: when each is drawn, and what is kept of them in state/ until then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.board.host_pipeline import CODE
from site_builder.charts import render
from site_builder.charts.sparkline import spark
from site_builder.config.settings import Settings
from site_builder.core import files, own_files
from site_builder.core.clock import Now
from site_builder.core.faults import WWW, Faults
from site_builder.core.html import Html
from site_builder.core.model import Shown
from site_builder.core.people import People
from site_builder.core.published_files import digest
from site_builder.core.typed_json import dump_json, make_decoder
from site_builder.history import time_windows
from site_builder.history.buckets import OF_HOST
from site_builder.history.reader import DAY, HOUR, Past

LONG = ("week", "month", "year")
FOLDER = "charts"
# A line of the board is drawn anew after so many seconds.
LINE_LASTS = 900
# With more hosts than these, the lines are on the hosts' own pages alone: the board would be too heavy.
MOST_HOSTS = 100
# And past so many hosts, a page with its day is made only once in so many seconds times their number, longer spans are
# drawn as much less.
PAGE_EVERY = 0.5
# Seconds that one build of many spends on charts; a page that comes too late has those that were kept.
CHARTS_WITHIN = 0.3
# The same of a build that stands alone: after an update those of a thousand hosts would take it minutes.
CHARTS_ALONE = 1.5
SOON = "This is drawn as soon as there is time for it."
# Lines drawn in one build of many, and seconds for them in one that stands alone.
LINES_AT_ONCE, LINES_WITHIN = 2, 0.3


class Asked(NamedTuple):
    """Whose charts: a host, the keys of the GPUs that it has now, and what of people is shown."""

    host: str
    here: frozenset[str]
    people: People
    shown: Shown


class Kept(NamedTuple):
    """A span that was drawn: of what, until when it holds, and what came of it."""

    facts: str
    until: float
    drawn: bytes


class Charts:
    """The charts of hosts: the day is drawn every 5 minutes, as its means are, the longer spans once an hour."""

    def __init__(self, settings: Settings, past: Past) -> None:
        """Nothing is drawn yet."""
        self.folder = settings.state / FOLDER
        self.past = past
        self.code = digest(repr(CODE).encode())
        self.hosts: frozenset[str] = frozenset()
        self.end = 0.0

    def start(self, hosts: Iterable[str], patient: bool) -> None:
        """A build begins, of these hosts; it draws what it has time for, less where it comes again soon."""
        self.end = time.monotonic() + (CHARTS_ALONE if patient else CHARTS_WITHIN)
        there = frozenset(hosts)
        if there != self.hosts:
            self.hosts = there
            self.forget()

    def forget(self) -> None:
        """Take away what was kept of hosts that are no longer there."""
        with suppress(OSError):
            for path in self.folder.iterdir():
                if path.stem not in self.hosts:
                    path.unlink()

    def draw(self, asked: Asked, now: Now) -> bytes:
        """All charts of a host, for its page."""
        if not self.past.exists:
            return b""
        told = (sorted(asked.here), asked.shown, str(now.zone), sorted(asked.people.aliases.items()))
        facts = digest(self.code, repr(told).encode("utf-8", "replace")).hex()
        parts = [self.span(span, facts, asked, now) for span in time_windows.STEPS]
        return b"\n".join(parts)

    def span(self, name: str, facts: str, asked: Asked, now: Now) -> bytes:
        """A span as it was drawn not long ago; else it is drawn now, or where there is no time as soon as there is."""
        path = self.folder / f"{asked.host}.{name}"
        kept = kept_in(path)
        same = kept is not None and kept.facts == facts
        if kept and same and (0 < kept.until - now.epoch <= self.long_lasts or time.monotonic() > self.end):
            return kept.drawn
        if time.monotonic() > self.end:
            return render.sentence(name, SOON)
        drawn = self.drawn(name, asked, now)
        if self.past.trouble:
            return render.sentence(name, f"{self.past.trouble.where}: {self.past.trouble.what}")
        until = int(now.epoch + self.lasts(name, not same))
        with suppress(OSError):  # it is drawn again then
            self.folder.mkdir(exist_ok=True, mode=0o700)
            files.replace(path, [f"{facts} {until} {len(drawn)}\n".encode(), drawn], 0o600)
        return drawn

    def lasts(self, name: str, is_first: bool) -> float:
        """For how many seconds a span holds; those drawn at once at first do not fall due at once again."""
        if name == "day":
            return max(time_windows.FIVE_MINUTES, self.page_every)
        return self.long_lasts * (LONG.index(name) + 1) / len(LONG) if is_first else self.long_lasts

    @property
    def page_every(self) -> float:
        """How many seconds a large fleet leaves between two pages of a host."""
        return len(self.hosts) * PAGE_EVERY if len(self.hosts) > MOST_HOSTS else 0

    @property
    def long_lasts(self) -> float:
        """The same of the longer spans."""
        return HOUR * max(1.0, len(self.hosts) / MOST_HOSTS)

    def drawn(self, name: str, asked: Asked, now: Now) -> bytes:
        """A span, drawn now."""
        grid = time_windows.grid(name, now.epoch, now.zone)
        found = self.past.series(asked.host, grid.since, grid.until, grid.step, time_windows.COLUMNS)
        naming: Callable[[str], str] = asked.people.user if asked.shown.users else lambda _: ""
        gpus = [time_windows.gpu_course(one.series, one.line, one.names, grid, naming) for one in found.gpus]
        gpus.sort(key=lambda one: one.series.key not in asked.here)
        own = time_windows.course_of(found.own, tuple(OF_HOST), grid)
        return render.span(grid, gpus, own, asked.here, int(now.epoch))


def kept_in(path: Path) -> Kept | None:
    """What a file keeps; anything may stand in a damaged one, and half a drawing would spoil the page."""
    try:
        head, _, drawn = own_files.read(path).partition(b"\n")
        facts, until, length = head.decode().split()
        return Kept(facts, float(until), drawn) if len(drawn) == int(length) else None
    except (OSError, files.Refused, ValueError):
        return None


class Line(NamedTuple):
    """The lines of a host's GPUs by their keys, and when they were drawn."""

    drawn: float
    lines: Mapping[str, Html]


@dataclass(frozen=True)
class StoredLines:
    """The lines as lines.json has them, and which version of the program drew them."""

    code: str
    hosts: dict[str, tuple[float, dict[str, str]]]


class Lines:
    """The lines of the board: some hosts' are drawn at each build, so that none takes much longer than another."""

    def __init__(self, settings: Settings, past: Past) -> None:
        """Take up those of the last builder."""
        self.store = settings.state / "lines.json"
        self.past = past
        self.kept: dict[str, Line] = {}
        self.changed = False
        self.faults = Faults()
        with suppress(OSError, files.Refused, ValueError):
            stored: StoredLines = make_decoder(StoredLines)(orjson.loads(own_files.read(self.store)))
            if stored.code == digest(repr(CODE).encode()).hex():
                self.kept = {
                    host: Line(drawn, {key: Html(line) for key, line in lines.items()})
                    for host, (drawn, lines) in stored.hosts.items()
                }

    def of(self, hosts: Sequence[str], epoch: float, patient: bool) -> Mapping[str, Mapping[str, Html]]:
        """The lines of each host, as many of them new as a build has time for; a patient one comes alone."""
        if len(hosts) > MOST_HOSTS or not self.past.exists:
            return {}
        self.changed = self.changed or not self.kept.keys() <= set(hosts)
        self.kept = {host: self.kept[host] for host in hosts if host in self.kept}
        end = time.monotonic() + LINES_WITHIN
        for count, host in enumerate(self.due(hosts, epoch)):
            if time.monotonic() > end if patient else count >= LINES_AT_ONCE:
                break
            lines: Mapping[str, Html] = {}
            with self.faults.catch(f"{WWW}cards/{host}.html", "the lines of its GPUs could not be drawn"):
                lines = self.draw(host, epoch)
            self.kept[host] = Line(epoch, lines)
            self.changed = True
        return {host: one.lines for host, one in self.kept.items() if one.lines}

    def due(self, hosts: Iterable[str], epoch: float) -> list[str]:
        """Those whose lines are too old, or of a time that has not come; the oldest first."""
        drawn = {host: self.kept[host].drawn if host in self.kept else 0.0 for host in hosts}
        late = [host for host in drawn if not 0 <= epoch - drawn[host] < LINE_LASTS]
        return sorted(late, key=lambda host: drawn[host])

    def draw(self, host: str, epoch: float) -> Mapping[str, Html]:
        """The lines of a host; none where there is no history of it yet."""
        until = int(-(-epoch // time_windows.FIVE_MINUTES)) * time_windows.FIVE_MINUTES
        found = self.past.series(host, until - DAY, until, time_windows.FIVE_MINUTES, ("use",))
        lines = {one.series.key: spark(time_windows.line_of(one.line)) for one in found.gpus}
        return {key: line for key, line in lines.items() if line}

    def save(self) -> None:
        """Keep them for the next builder."""
        if self.changed:
            hosts = {host: [one.drawn, one.lines] for host, one in self.kept.items()}
            code = digest(repr(CODE).encode()).hex()
            files.replace(self.store, dump_json({"code": code, "hosts": hosts}), 0o600)
            self.changed = False
