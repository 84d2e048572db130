"""Charts, and the small lines of the board: when each is drawn, and what is kept of them in state/ until then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.charts import render, time_windows
from site_builder.charts.svg import render_sparkline
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.code_fingerprint import CODE_FINGERPRINT
from site_builder.core.faults import WWW_PREFIX, FaultLog
from site_builder.core.files import compute_digest
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.html import Html
from site_builder.core.model import PrivacySettings
from site_builder.core.people import PeopleDirectory
from site_builder.core.records import dump_json, make_decoder
from site_builder.history.buckets import HOST_BUCKET_COLUMNS
from site_builder.history.reader import HistoryReader

LONG_WINDOWS = ("week", "month", "year")
CHARTS_FOLDER = "charts"
# A line of the board is drawn anew after so many seconds.
SPARKLINE_LIFETIME_S = 900
# With more hosts than these, the lines are on the hosts' own pages alone: the board would be too heavy.
LARGE_FLEET_HOSTS = 100
# And past so many hosts, a page with its day is made only once in so many seconds times their number, longer spans are
# drawn as much less.
PAGE_INTERVAL_PER_HOST_S = 0.5
# Seconds that one build of many spends on charts; a page that comes too late has those that were kept.
CHARTS_TIME_LIMIT_S = 0.3
# The same of a build that stands alone: after an update those of a thousand hosts would take it minutes.
CHARTS_TIME_LIMIT_ALONE_S = 1.5
NOT_DRAWN_YET = "This is drawn as soon as there is time for it."
# Lines drawn in one build of many, and seconds for them in one that stands alone.
SPARKLINE_HOSTS_PER_BUILD, SPARKLINES_TIME_LIMIT_S = 2, 0.3


class ChartRequest(NamedTuple):
    """Whose charts: a host, the keys of the GPUs that it has now, and what of people is shown."""

    host: str
    gpu_keys: frozenset[str]
    people: PeopleDirectory
    privacy: PrivacySettings


class CachedChart(NamedTuple):
    """A span that was drawn: of what, until when it holds, and what came of it."""

    fingerprint: str
    valid_until: float
    html: bytes


class ChartCache:
    """The charts of hosts: the day is drawn every 5 minutes, as its means are, the longer spans once an hour."""

    def __init__(self, settings: Settings, past: HistoryReader) -> None:
        """Nothing is drawn yet."""
        self.folder = settings.state / CHARTS_FOLDER
        self.history = past
        self.code_digest = compute_digest(repr(CODE_FINGERPRINT).encode())
        self.hosts: frozenset[str] = frozenset()
        self.deadline = 0.0

    def start_build(self, hosts: Iterable[str], patient: bool) -> None:
        """A build begins, of these hosts; it draws what it has time for, less where it comes again soon."""
        self.deadline = time.monotonic() + (CHARTS_TIME_LIMIT_ALONE_S if patient else CHARTS_TIME_LIMIT_S)
        there = frozenset(hosts)
        if there != self.hosts:
            self.hosts = there
            self.remove_old_hosts()

    def remove_old_hosts(self) -> None:
        """Take away what was kept of hosts that are no longer there."""
        with suppress(OSError):
            for path in self.folder.iterdir():
                if path.stem not in self.hosts:
                    path.unlink()

    def render_host(self, asked: ChartRequest, now: Now) -> bytes:
        """All charts of a host, for its page."""
        if not self.history.exists:
            return b""
        told = (sorted(asked.gpu_keys), asked.privacy, str(now.zone), sorted(asked.people.aliases.items()))
        facts = compute_digest(self.code_digest, repr(told).encode("utf-8", "replace")).hex()
        parts = [self.render_window(span, facts, asked, now) for span in time_windows.WINDOW_STEPS_S]
        return b"\n".join(parts)

    def render_window(self, name: str, facts: str, asked: ChartRequest, now: Now) -> bytes:
        """A span as it was drawn not long ago; else it is drawn now, or where there is no time as soon as there is."""
        path = self.folder / f"{asked.host}.{name}"
        kept = read_cached_chart(path)
        same = kept is not None and kept.fingerprint == facts
        if (
            kept
            and same
            and (0 < kept.valid_until - now.epoch <= self.long_lifetime_s or time.monotonic() > self.deadline)
        ):
            return kept.html
        if time.monotonic() > self.deadline:
            return render.render_charts_message(name, NOT_DRAWN_YET)
        drawn = self.draw_window(name, asked, now)
        if self.history.problem:
            return render.render_charts_message(name, f"{self.history.problem.where}: {self.history.problem.what}")
        until = int(now.epoch + self.compute_lifetime(name, not same))
        with suppress(OSError):  # it is drawn again then
            self.folder.mkdir(exist_ok=True, mode=0o700)
            files.write_atomically(path, [f"{facts} {until} {len(drawn)}\n".encode(), drawn], 0o600)
        return drawn

    def compute_lifetime(self, name: str, is_first: bool) -> float:
        """For how many seconds a span holds; those drawn at once at first do not fall due at once again."""
        if name == "day":
            return max(time_windows.FIVE_MINUTES_S, self.page_interval_s)
        return (
            self.long_lifetime_s * (LONG_WINDOWS.index(name) + 1) / len(LONG_WINDOWS)
            if is_first
            else self.long_lifetime_s
        )

    @property
    def page_interval_s(self) -> float:
        """How many seconds a large fleet leaves between two pages of a host."""
        return len(self.hosts) * PAGE_INTERVAL_PER_HOST_S if len(self.hosts) > LARGE_FLEET_HOSTS else 0

    @property
    def long_lifetime_s(self) -> float:
        """The same of the longer spans."""
        return HOUR * max(1.0, len(self.hosts) / LARGE_FLEET_HOSTS)

    def draw_window(self, name: str, asked: ChartRequest, now: Now) -> bytes:
        """A span, drawn now."""
        grid = time_windows.build_grid(name, now.epoch, now.zone)
        found = self.history.read_host(asked.host, grid.since, grid.until, grid.step, time_windows.CHART_COLUMNS)
        naming: Callable[[str], str] = asked.people.display_login if asked.privacy.users else lambda _: ""
        gpus = [
            time_windows.build_gpu_chart_series(one.series, one.columns, one.names, grid, naming) for one in found.gpus
        ]
        gpus.sort(key=lambda one: one.series.key not in asked.gpu_keys)
        own = time_windows.build_chart_series(found.host_columns, tuple(HOST_BUCKET_COLUMNS), grid)
        return render.render_charts(grid, gpus, own, asked.gpu_keys, int(now.epoch))


def read_cached_chart(path: Path) -> CachedChart | None:
    """What a file keeps; anything may stand in a damaged one, and half a drawing would spoil the page."""
    try:
        head, _, drawn = files.read(path).partition(b"\n")
        facts, until, length = head.decode().split()
        return CachedChart(facts, float(until), drawn) if len(drawn) == int(length) else None
    except (OSError, files.FileRefusedError, ValueError):
        return None


class HostSparklines(NamedTuple):
    """The lines of a host's GPUs by their keys, and when they were drawn."""

    drawn_at: float
    sparklines: Mapping[str, Html]


@dataclass(frozen=True)
class StoredSparklines:
    """The lines as lines.json has them, and which version of the program drew them."""

    code: str
    hosts: dict[str, tuple[float, dict[str, str]]]


class SparklineCache:
    """The lines of the board: some hosts' are drawn at each build, so that none takes much longer than another."""

    def __init__(self, settings: Settings, past: HistoryReader) -> None:
        """Take up those of the last builder."""
        self.store_path = settings.state / "lines.json"
        self.history = past
        self.cached: dict[str, HostSparklines] = {}
        self.is_changed = False
        self.faults = FaultLog()
        with suppress(OSError, files.FileRefusedError, ValueError):
            stored: StoredSparklines = make_decoder(StoredSparklines)(orjson.loads(files.read(self.store_path)))
            if stored.code == compute_digest(repr(CODE_FINGERPRINT).encode()).hex():
                self.cached = {
                    host: HostSparklines(drawn, {key: Html(line) for key, line in lines.items()})
                    for host, (drawn, lines) in stored.hosts.items()
                }

    def render_hosts(self, hosts: Sequence[str], epoch: float, patient: bool) -> Mapping[str, Mapping[str, Html]]:
        """The lines of each host, as many of them new as a build has time for; a patient one comes alone."""
        if len(hosts) > LARGE_FLEET_HOSTS or not self.history.exists:
            return {}
        self.is_changed = self.is_changed or not self.cached.keys() <= set(hosts)
        self.cached = {host: self.cached[host] for host in hosts if host in self.cached}
        end = time.monotonic() + SPARKLINES_TIME_LIMIT_S
        for count, host in enumerate(self.list_due_hosts(hosts, epoch)):
            if time.monotonic() > end if patient else count >= SPARKLINE_HOSTS_PER_BUILD:
                break
            lines: Mapping[str, Html] = {}
            with self.faults.catch(f"{WWW_PREFIX}cards/{host}.html", "the lines of its GPUs could not be drawn"):
                lines = self.render_host(host, epoch)
            self.cached[host] = HostSparklines(epoch, lines)
            self.is_changed = True
        return {host: one.sparklines for host, one in self.cached.items() if one.sparklines}

    def list_due_hosts(self, hosts: Iterable[str], epoch: float) -> list[str]:
        """Those whose lines are too old, or of a time that has not come; the oldest first."""
        drawn = {host: self.cached[host].drawn_at if host in self.cached else 0.0 for host in hosts}
        late = [host for host in drawn if not 0 <= epoch - drawn[host] < SPARKLINE_LIFETIME_S]
        return sorted(late, key=lambda host: drawn[host])

    def render_host(self, host: str, epoch: float) -> Mapping[str, Html]:
        """The lines of a host; none where there is no history of it yet."""
        until = int(-(-epoch // time_windows.FIVE_MINUTES_S)) * time_windows.FIVE_MINUTES_S
        found = self.history.read_host(host, until - DAY, until, time_windows.FIVE_MINUTES_S, ("use",))
        lines = {
            one.series.key: render_sparkline(time_windows.compute_sparkline_values(one.columns)) for one in found.gpus
        }
        return {key: line for key, line in lines.items() if line}

    def save(self) -> None:
        """Keep them for the next builder."""
        if self.is_changed:
            hosts = {host: [one.drawn_at, one.sparklines] for host, one in self.cached.items()}
            code = compute_digest(repr(CODE_FINGERPRINT).encode()).hex()
            files.write_atomically(self.store_path, dump_json({"code": code, "hosts": hosts}), 0o600)
            self.is_changed = False
