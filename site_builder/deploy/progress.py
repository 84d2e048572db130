"""Show the progress of a deploy: a live table on a terminal, a line for each host in a pipe, or JSON."""

from __future__ import annotations

import json
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from site_builder.core.formatting import format_duration
from site_builder.deploy.host_steps import FAILED, GOOD_RESULTS, STOPPED, WAITING, DeployJob

if TYPE_CHECKING:
    from rich.live import Live

COLUMN_TITLES = ("host", "step", "result", "seconds")
CHECK_COLUMN_TITLES = ("host", "version", "loops", "key", "last snapshot", "result")
# So wide that no line of a pipe moves the next column.
COLUMN_WIDTHS = {"step": 8, "result": 15, "seconds": 7, "version": 7, "loops": 10, "key": 8, "last snapshot": 13}
RESULT_COLOURS = {FAILED: "red", STOPPED: "yellow"}
EXTRA_LINES = 3  # lines of a table that are no hosts


class ProgressDisplay:
    """Show nothing: for --json, and the interface of the others."""

    def __init__(self, jobs: list[DeployJob], is_check: bool) -> None:
        self.jobs = jobs
        self.columns = CHECK_COLUMN_TITLES if is_check else COLUMN_TITLES

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop showing."""

    def show_result(self, job: DeployJob) -> None:
        """Show a host that has its result."""

    def refresh(self) -> None:
        """Show that time has passed."""


class LineDisplay(ProgressDisplay):
    """Print a line for each host that has ended."""

    def __enter__(self) -> LineDisplay:
        self.name_width = max(len(job.display_name) for job in self.jobs)
        return self

    def show_result(self, job: DeployJob) -> None:
        values = format_job_cells(job, time.monotonic())
        line = "  ".join(f"{values[title]:<{COLUMN_WIDTHS.get(title, self.name_width)}}" for title in self.columns)
        sys.stdout.write(f"{line}  {job.reason}".rstrip() + "\n")
        sys.stdout.flush()


class LiveDisplay(ProgressDisplay):
    """Draw a live table of all hosts, or those that fit, the busy ones first."""

    def __enter__(self) -> LiveDisplay:
        from rich.console import Console  # noqa: PLC0415 slow to import
        from rich.live import Live  # noqa: PLC0415

        self.console = Console(highlight=False)
        self.live: Live = Live(self.build_table(), console=self.console, auto_refresh=False)
        self.live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the complete table on the screen."""
        self.live.update(self.build_table(is_final=True), refresh=True)
        self.live.__exit__(kind, error, at)

    def refresh(self) -> None:
        self.live.update(self.build_table(), refresh=True)

    def choose_rows(self, is_final: bool) -> list[DeployJob]:
        max_rows = max(3, self.console.height - EXTRA_LINES)
        if is_final or len(self.jobs) <= max_rows:
            return self.jobs
        return sorted(self.jobs, key=rank_job)[:max_rows]

    def build_table(self, is_final: bool = False) -> Any:  # noqa: ANN401 of rich, which is slow to import
        from rich.table import Table as RichTable  # noqa: PLC0415 slow to import
        from rich.text import Text  # noqa: PLC0415

        table = RichTable(box=None, padding=(0, 2, 0, 0), caption=summarize_jobs(self.jobs), caption_justify="left")
        for title in self.columns:
            is_right_aligned = title in ("seconds", "last snapshot")
            table.add_column(
                title, no_wrap=True, min_width=COLUMN_WIDTHS.get(title), justify="right" if is_right_aligned else "left"
            )
        clock = time.monotonic()
        for job in self.choose_rows(is_final):
            values = format_job_cells(job, clock)
            colours = {
                "result": RESULT_COLOURS.get(job.result, "green" if job.result in GOOD_RESULTS else ""),
                "step": "dim",
            }
            table.add_row(*(Text(values[title], colours.get(title, "")) for title in self.columns))
        return table


def format_job_cells(job: DeployJob, clock: float) -> dict[str, str]:
    values = {
        "host": job.display_name,
        "step": "" if job.result in GOOD_RESULTS else job.step,
        "result": job.result,
        "seconds": f"{job.measure_seconds(clock):.0f}" if job.started_at else "",
    }
    return {**dict.fromkeys(CHECK_COLUMN_TITLES, ""), **values, **format_check_cells(job)}


def format_check_cells(job: DeployJob) -> dict[str, str]:
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
    if not job.result:
        return 2 if job.step == WAITING else 0
    return 3 if job.result in GOOD_RESULTS else 1


def summarize_jobs(jobs: list[DeployJob]) -> str:
    counts: dict[str, int] = {}
    for job in jobs:
        word = job.result or ("waiting" if job.step == WAITING else "at work")
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


def jobs_to_json(jobs: list[DeployJob]) -> str:
    rows = [
        {
            "host": job.target.address,
            "name": job.name or job.target.given_name,
            "result": job.result,
            "step": None if job.result in GOOD_RESULTS else job.step,
            "why": job.reason or None,
            "seconds": round(job.measure_seconds(time.monotonic()), 1),
            **job.check_facts,
        }
        for job in jobs
    ]
    return json.dumps(rows)
