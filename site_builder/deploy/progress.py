"""How deploy shows what it does: a live table on a terminal, a line a host where it is piped, JSON for programs."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from site_builder.core.formatting import format_duration
from site_builder.deploy.host_steps import FAILED, GOOD_RESULTS, STOPPED, WAITING, DeployJob, read_monotonic_clock

if TYPE_CHECKING:
    from rich.live import Live

COLUMN_TITLES = ("host", "step", "result", "seconds")
CHECK_COLUMN_TITLES = ("host", "version", "loops", "key", "last snapshot", "result")
# So wide that no line of a pipe moves the next column.
COLUMN_WIDTHS = {"step": 8, "result": 15, "seconds": 7, "version": 7, "loops": 10, "key": 8, "last snapshot": 13}
RESULT_COLOURS = {FAILED: "red", STOPPED: "yellow"}
EXTRA_LINES = 3  # lines of a table that are no hosts


class ProgressDisplay:
    """Nothing is shown: for --json. What each kind of table promises."""

    def __init__(self, jobs: list[DeployJob], checks: bool) -> None:
        """Of these hosts; `checks` is what --check found."""
        self.jobs = jobs
        self.columns = CHECK_COLUMN_TITLES if checks else COLUMN_TITLES

    def __enter__(self) -> ProgressDisplay:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """End."""

    def show_result(self, job: DeployJob) -> None:
        """A host has its result."""

    def refresh(self) -> None:
        """Time has passed."""


class LineDisplay(ProgressDisplay):
    """A line a host, when it has ended."""

    def __enter__(self) -> LineDisplay:
        """The first column is as wide as the names that are known."""
        self.name_width = max(len(job.display_name) for job in self.jobs)
        return self

    def show_result(self, job: DeployJob) -> None:
        """Tell of it at once."""
        values = format_job_cells(job, read_monotonic_clock())
        line = "  ".join(f"{values[title]:<{COLUMN_WIDTHS.get(title, self.name_width)}}" for title in self.columns)
        sys.stdout.write(f"{line}  {job.reason}".rstrip() + "\n")
        sys.stdout.flush()


class LiveDisplay(ProgressDisplay):
    """On a terminal: all hosts, or those that fit, the busy ones first."""

    def __enter__(self) -> LiveDisplay:
        """Begin."""
        from rich.console import Console  # noqa: PLC0415 slow to import
        from rich.live import Live  # noqa: PLC0415

        self.console = Console(highlight=False)
        self.live: Live = Live(self.build_table(), console=self.console, auto_refresh=False)
        self.live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """The last one stays, with all hosts in it."""
        self.live.update(self.build_table(whole=True), refresh=True)
        self.live.__exit__(kind, why, at)

    def refresh(self) -> None:
        """Anew."""
        self.live.update(self.build_table(), refresh=True)

    def choose_rows(self, whole: bool) -> list[DeployJob]:
        """All, or as many as fit: who is at work, who failed, then the others."""
        most = max(3, self.console.height - EXTRA_LINES)
        if whole or len(self.jobs) <= most:
            return self.jobs
        return sorted(self.jobs, key=rank_job)[:most]

    def build_table(self, whole: bool = False) -> Any:  # noqa: ANN401 of rich, which is slow to import
        """As it is now."""
        from rich.table import Table as RichTable  # noqa: PLC0415 slow to import
        from rich.text import Text  # noqa: PLC0415

        drawn = RichTable(box=None, padding=(0, 2, 0, 0), caption=summarize_jobs(self.jobs), caption_justify="left")
        for title in self.columns:
            right = title in ("seconds", "last snapshot")
            drawn.add_column(
                title, no_wrap=True, min_width=COLUMN_WIDTHS.get(title), justify="right" if right else "left"
            )
        clock = read_monotonic_clock()
        for job in self.choose_rows(whole):
            values = format_job_cells(job, clock)
            colours = {
                "result": RESULT_COLOURS.get(job.result, "green" if job.result in GOOD_RESULTS else ""),
                "step": "dim",
            }
            drawn.add_row(*(Text(values[title], colours.get(title, "")) for title in self.columns))
        return drawn


def format_job_cells(job: DeployJob, clock: float) -> dict[str, str]:
    """Of one host, by the titles of the columns."""
    values = {
        "host": job.display_name,
        "step": "" if job.result in GOOD_RESULTS else job.step,
        "result": job.result,
        "seconds": f"{job.measure_seconds(clock):.0f}" if job.started_at else "",
    }
    return {**dict.fromkeys(CHECK_COLUMN_TITLES, ""), **values, **format_check_cells(job)}


def format_check_cells(job: DeployJob) -> dict[str, str]:
    """What --check found, in words."""
    if not job.check_facts:
        return {}
    age = job.check_facts["age"]
    when = "never" if not isinstance(age, int) else f"{age} s" if age < 120 else format_duration(age)
    return {
        "version": str(job.check_facts["version"] or "–"),
        "loops": "run" if job.check_facts["loops"] == "ok" else "do not run",
        "key": "enrolled" if job.check_facts["enrolled"] else "none",
        "last snapshot": when,
    }


def rank_job(job: DeployJob) -> int:
    """Who is shown first."""
    if not job.result:
        return 2 if job.step == WAITING else 0
    return 3 if job.result in GOOD_RESULTS else 1


def summarize_jobs(jobs: list[DeployJob]) -> str:
    """How many of them are where."""
    counts: dict[str, int] = {}
    for job in jobs:
        word = job.result or ("waiting" if job.step == WAITING else "at work")
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


def jobs_to_json(jobs: list[DeployJob]) -> str:
    """For programs."""
    rows = [
        {
            "host": job.target.address,
            "name": job.name or job.target.given_name,
            "result": job.result,
            "step": None if job.result in GOOD_RESULTS else job.step,
            "why": job.reason or None,
            "seconds": round(job.measure_seconds(read_monotonic_clock()), 1),
            **job.check_facts,
        }
        for job in jobs
    ]
    return json.dumps(rows)
