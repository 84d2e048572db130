"""Draw charts and sparklines when they are due, and keep them in state/ until then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from site_builder.charts import render, time_windows
from site_builder.charts.svg import render_sparkline
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.faults import WWW_PREFIX, FaultLog
from site_builder.core.files import compute_digest
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.model import PrivacySettings
from site_builder.core.people import PeopleDirectory
from site_builder.core.published_files import CODE_FINGERPRINT
from site_builder.core.records import encode_record, make_record_decoder
from site_builder.history.block_format import HOST_COLUMNS, Columns
from site_builder.history.reader import HistoryReader

CODE_DIGEST = compute_digest(repr(CODE_FINGERPRINT).encode())
LONG_WINDOWS = ("week", "month", "year")
CHARTS_FOLDER = "charts"
SPARKLINE_LIFETIME_S = 900
# Buckets of a day in the small line of the board.
SPARKLINE_BUCKETS = 48
# Larger fleets have sparklines on the hosts' own pages alone: the board would be too heavy.
LARGE_FLEET_HOSTS = 100
# In such a fleet the page of a host is made only so often, times the number of hosts; longer windows as much less.
PAGE_INTERVAL_PER_HOST_S = 0.5
# Seconds that one build of many spends on charts, and those of a single build; then pages get old charts.
CHARTS_TIME_LIMIT_S, CHARTS_TIME_LIMIT_ALONE_S = 0.3, 1.5
NOT_DRAWN_YET = "These charts will appear within a few minutes."
# Hosts whose sparklines one build of many draws, and seconds for them in a single build.
SPARKLINE_HOSTS_PER_BUILD, SPARKLINES_TIME_LIMIT_S = 2, 0.3


class CachedChartRequest(NamedTuple):
    """Host, the keys of the GPUs that it has now, and how people are shown."""

    host: str
    gpu_keys: frozenset[str]
    people: PeopleDirectory
    privacy: PrivacySettings


class ChartCache:
    """Charts of hosts: the day is drawn every 5 minutes, as its means are, longer windows once an hour."""

    def __init__(self, settings: Settings, history: HistoryReader) -> None:
        self.folder = settings.state / CHARTS_FOLDER
        self.history = history
        self.hosts: frozenset[str] = frozenset()
        self.deadline = 0.0

    def start_build(self, hosts: Iterable[str], patient: bool) -> None:
        """Begin a build of these hosts; a patient one comes alone, and has more time."""
        self.deadline = time.monotonic() + (CHARTS_TIME_LIMIT_ALONE_S if patient else CHARTS_TIME_LIMIT_S)
        current_hosts = frozenset(hosts)
        if current_hosts != self.hosts:
            self.hosts = current_hosts
            with suppress(OSError):
                for path in self.folder.iterdir():
                    if path.stem not in self.hosts:
                        path.unlink()

    def render_host(self, request: CachedChartRequest, now: Now) -> bytes:
        if not self.history.exists:
            return b""
        inputs = (sorted(request.gpu_keys), request.privacy, str(now.zone), sorted(request.people.aliases.items()))
        fingerprint = compute_digest(CODE_DIGEST, repr(inputs).encode("utf-8", "replace")).hex()
        parts = [self.render_window(window, fingerprint, request, now) for window in time_windows.WINDOW_STEPS_S]
        return b"\n".join(parts)

    def render_window(self, window: str, fingerprint: str, request: CachedChartRequest, now: Now) -> bytes:
        """Return a window drawn not long ago; else draw it now, or return a message if there is no time for it yet."""
        path = self.folder / f"{request.host}.{window}"
        is_current, cached_html, seconds_left = False, b"", 0.0
        with suppress(OSError, files.FileRefusedError, ValueError):
            head, _, cached_html = files.read_own_file(path).partition(b"\n")
            cached_fingerprint, cached_until, length = head.decode().split()
            seconds_left = float(cached_until) - now.epoch
            # half of one, in a damaged file, would spoil the page
            is_current = cached_fingerprint == fingerprint and len(cached_html) == int(length)
        is_late = time.monotonic() > self.deadline
        if is_current and (is_late or 0 < seconds_left <= self.long_lifetime_s):
            return cached_html
        if is_late:
            return render.render_charts_message(window, NOT_DRAWN_YET)
        html = self.draw_window(window, request, now)
        if self.history.problem:
            return render.render_charts_message(window, self.history.problem_text)
        lifetime_s = max(time_windows.FIVE_MINUTES_S, self.page_interval_s)
        if window != "day":  # those first drawn at once must not fall due at once
            part = 1 if is_current else (LONG_WINDOWS.index(window) + 1) / len(LONG_WINDOWS)
            lifetime_s = self.long_lifetime_s * part
        valid_until = int(now.epoch + lifetime_s)
        with suppress(OSError):  # it is drawn again then
            self.folder.mkdir(exist_ok=True, mode=0o700)
            files.write_atomically(path, [f"{fingerprint} {valid_until} {len(html)}\n".encode(), html], 0o600)
        return html

    @property
    def page_interval_s(self) -> float:
        """Return how many seconds a large fleet leaves between two pages of a host."""
        return len(self.hosts) * PAGE_INTERVAL_PER_HOST_S if len(self.hosts) > LARGE_FLEET_HOSTS else 0

    @property
    def long_lifetime_s(self) -> float:
        """Return for how long the longer windows are valid."""
        return HOUR * max(1.0, len(self.hosts) / LARGE_FLEET_HOSTS)

    def draw_window(self, window: str, request: CachedChartRequest, now: Now) -> bytes:
        grid = time_windows.build_time_window_grid(window, now.epoch, now.zone)
        host_history = self.history.read_host(
            request.host, grid.since, grid.until, grid.step, time_windows.CHART_COLUMNS
        )
        find_name: Callable[[str], str] = request.people.display_login if request.privacy.users else lambda _: ""
        gpus = [
            time_windows.build_gpu_time_window_series(gpu.series, gpu.columns, gpu.names, grid, find_name)
            for gpu in host_history.gpus
        ]
        gpus.sort(key=lambda gpu: gpu.series.key not in request.gpu_keys)
        host_series = time_windows.build_time_window_series(host_history.host_columns, tuple(HOST_COLUMNS), grid)
        return render.render_charts(grid, gpus, host_series, request.gpu_keys, int(now.epoch))


@dataclass(frozen=True)
class StoredSparklines:
    """Content of lines.json: the fingerprint of the code, and when it drew a host and which lines, by keys of GPUs."""

    code: str
    hosts: dict[str, tuple[float, dict[str, str]]]


class SparklineCache:
    """Sparklines of the board: each build draws those of some hosts, so that none takes much longer."""

    def __init__(self, settings: Settings, history: HistoryReader) -> None:
        self.store_path = settings.state / "lines.json"
        self.history = history
        self.cached: dict[str, tuple[float, dict[str, str]]] = {}  # as StoredSparklines.hosts
        self.is_changed = False
        self.faults = FaultLog()
        with suppress(OSError, files.FileRefusedError, ValueError):
            stored: StoredSparklines = make_record_decoder(StoredSparklines)(
                orjson.loads(files.read_own_file(self.store_path))
            )
            if stored.code == CODE_DIGEST.hex():
                self.cached = stored.hosts

    def render_hosts(self, hosts: Sequence[str], epoch: float, patient: bool) -> dict[str, dict[str, str]]:
        """Return the sparklines of each host, as many of them new as a build has time for."""
        if len(hosts) > LARGE_FLEET_HOSTS or not self.history.exists:
            return {}
        self.is_changed = self.is_changed or not self.cached.keys() <= set(hosts)
        self.cached = {host: self.cached[host] for host in hosts if host in self.cached}
        end = time.monotonic() + SPARKLINES_TIME_LIMIT_S
        drawn_at = {host: self.cached.get(host, (0.0, {}))[0] for host in hosts}
        due = [host for host in hosts if not 0 <= epoch - drawn_at[host] < SPARKLINE_LIFETIME_S]
        for count, host in enumerate(sorted(due, key=drawn_at.__getitem__)):
            if time.monotonic() > end if patient else count >= SPARKLINE_HOSTS_PER_BUILD:
                break
            lines: dict[str, str] = {}
            with self.faults.catch(
                f"{WWW_PREFIX}cards/{host}.html", "the sparklines of its GPUs could not be rendered"
            ):
                lines = self.render_host(host, epoch)
            self.cached[host] = epoch, lines
            self.is_changed = True
        return {host: lines for host, (_, lines) in self.cached.items() if lines}

    def render_host(self, host: str, epoch: float) -> dict[str, str]:
        until = int(-(-epoch // time_windows.FIVE_MINUTES_S)) * time_windows.FIVE_MINUTES_S
        host_history = self.history.read_host(host, until - DAY, until, time_windows.FIVE_MINUTES_S, ("use",))
        lines = {gpu.series.key: render_sparkline(compute_sparkline_values(gpu.columns)) for gpu in host_history.gpus}
        return {key: line for key, line in lines.items() if line}

    def save(self) -> None:
        if self.is_changed:
            stored = {"code": CODE_DIGEST.hex(), "hosts": self.cached}
            files.write_atomically(self.store_path, encode_record(stored), 0o600)
            self.is_changed = False


def compute_sparkline_values(columns: Columns) -> list[float | None]:
    count = len(columns["use"])
    width = max(1, count // SPARKLINE_BUCKETS)
    ranges = [range(start, min(start + width, count)) for start in range(0, count, width)]
    return time_windows.aggregate_time_window_ranges(columns, "use", ranges)
