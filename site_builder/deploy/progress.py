"""Show the progress of a deploy: a live table on a terminal, a line for each host in a pipe, or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
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


class ProgressDisplay(AbstractContextManager["ProgressDisplay"]):
    """Show nothing: for --json, and the interface of the others."""

    def __init__(self, jobs: list[DeployJob], is_check: bool) -> None:
        self.jobs = jobs
        self.columns = CHECK_COLUMN_TITLES if is_check else COLUMN_TITLES
        self.name_width = max(len(job.display_name) for job in self.jobs)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop showing."""

    def show_result(self, job: DeployJob) -> None:
        """Show a host that has its result."""

    def refresh(self) -> None:
        """Show that time has passed."""


class LineDisplay(ProgressDisplay):
    """Print a line for each host that has ended."""

    def show_result(self, job: DeployJob) -> None:
        values = format_deploy_job_cells(job, time.monotonic())
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
        def rank(job: DeployJob) -> int:
            if not job.result:
                return 2 if job.step == WAITING else 0
            return 3 if job.result in GOOD_RESULTS else 1

        max_rows = max(3, self.console.height - EXTRA_LINES)
        return self.jobs if is_final or len(self.jobs) <= max_rows else sorted(self.jobs, key=rank)[:max_rows]

    def build_table(self, is_final: bool = False) -> Any:  # noqa: ANN401 of rich, which is slow to import
        from rich.table import Table as RichTable  # noqa: PLC0415 slow to import
        from rich.text import Text  # noqa: PLC0415

        counts = Counter(job.result or ("waiting" if job.step == WAITING else "at work") for job in self.jobs)
        caption = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        table = RichTable(box=None, padding=(0, 2, 0, 0), caption=caption, caption_justify="left")
        for title in self.columns:
            justify: Any = "right" if title in ("seconds", "last snapshot") else "left"
            table.add_column(title, no_wrap=True, min_width=COLUMN_WIDTHS.get(title), justify=justify)
        clock = time.monotonic()
        for job in self.choose_rows(is_final):
            values = format_deploy_job_cells(job, clock)
            result_colour = RESULT_COLOURS.get(job.result, "green" if job.result in GOOD_RESULTS else "")
            colours = {"result": result_colour, "step": "dim"}
            table.add_row(*(Text(values[title], colours.get(title, "")) for title in self.columns))
        return table


def format_deploy_job_cells(job: DeployJob, clock: float) -> dict[str, str]:
    cells = {
        **dict.fromkeys(CHECK_COLUMN_TITLES, ""),
        "host": job.display_name,
        "step": "" if job.result in GOOD_RESULTS else job.step,
        "result": job.result,
        "seconds": f"{job.measure_seconds(clock):.0f}" if job.started_at else "",
    }
    if job.check_facts:
        age = job.check_facts["age"]
        cells["version"] = str(job.check_facts["version"] or "–")
        cells["loops"] = "run" if job.check_facts["loops"] == "ok" else "do not run"
        cells["key"] = "enrolled" if job.check_facts["enrolled"] else "none"
        cells["last snapshot"] = (
            "never" if not isinstance(age, int) else f"{age} s" if age < 120 else format_duration(age)
        )
    return cells


def deploy_jobs_to_json(jobs: list[DeployJob]) -> str:
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
