"""How deploy shows what it does: a live table on a terminal, a line a host where it is piped, JSON for programs."""

from __future__ import annotations

import json
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from site_builder.core.formatting import duration
from site_builder.deploy.job import FAILED, GOOD, STOPPED, WAITING, Job, now

if TYPE_CHECKING:
    from rich.live import Live

TITLES = ("host", "step", "result", "seconds")
CHECK_TITLES = ("host", "version", "loops", "key", "last snapshot", "result")
# So wide that no line of a pipe moves the next column.
WIDTHS = {"step": 8, "result": 15, "seconds": 7, "version": 7, "loops": 10, "key": 8, "last snapshot": 13}
COLOURS = {FAILED: "red", STOPPED: "yellow"}
BESIDE = 3  # lines of a table that are no hosts


class Table:
    """Nothing is shown: for --json. What each kind of table promises."""

    def __init__(self, jobs: list[Job], checks: bool) -> None:
        """Of these hosts; `checks` is what --check found."""
        self.jobs = jobs
        self.titles = CHECK_TITLES if checks else TITLES

    def __enter__(self) -> Table:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """End."""

    def ended(self, job: Job) -> None:
        """A host has its result."""

    def draw(self) -> None:
        """Time has passed."""


class Lines(Table):
    """A line a host, when it has ended."""

    def __enter__(self) -> Lines:
        """The first column is as wide as the names that are known."""
        self.width = max(len(job.shown) for job in self.jobs)
        return self

    def ended(self, job: Job) -> None:
        """Tell of it at once."""
        values = cells(job, now())
        line = "  ".join(f"{values[title]:<{WIDTHS.get(title, self.width)}}" for title in self.titles)
        sys.stdout.write(f"{line}  {job.why}".rstrip() + "\n")
        sys.stdout.flush()


class LiveTable(Table):
    """On a terminal: all hosts, or those that fit, the busy ones first."""

    def __enter__(self) -> LiveTable:
        """Begin."""
        from rich.console import Console  # noqa: PLC0415 slow to import
        from rich.live import Live  # noqa: PLC0415

        self.console = Console(highlight=False)
        self.live: Live = Live(self.table(), console=self.console, auto_refresh=False)
        self.live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """The last one stays, with all hosts in it."""
        self.live.update(self.table(whole=True), refresh=True)
        self.live.__exit__(kind, why, at)

    def draw(self) -> None:
        """Anew."""
        self.live.update(self.table(), refresh=True)

    def rows(self, whole: bool) -> list[Job]:
        """All, or as many as fit: who is at work, who failed, then the others."""
        most = max(3, self.console.height - BESIDE)
        if whole or len(self.jobs) <= most:
            return self.jobs
        return sorted(self.jobs, key=rank)[:most]

    def table(self, whole: bool = False) -> Any:  # noqa: ANN401 of rich, which is slow to import
        """As it is now."""
        from rich.table import Table as RichTable  # noqa: PLC0415 slow to import
        from rich.text import Text  # noqa: PLC0415

        drawn = RichTable(box=None, padding=(0, 2, 0, 0), caption=summary(self.jobs), caption_justify="left")
        for title in self.titles:
            right = title in ("seconds", "last snapshot")
            drawn.add_column(title, no_wrap=True, min_width=WIDTHS.get(title), justify="right" if right else "left")
        clock = now()
        for job in self.rows(whole):
            values = cells(job, clock)
            colours = {"result": COLOURS.get(job.result, "green" if job.result in GOOD else ""), "step": "dim"}
            drawn.add_row(*(Text(values[title], colours.get(title, "")) for title in self.titles))
        return drawn


def cells(job: Job, clock: float) -> dict[str, str]:
    """Of one host, by the titles of the columns."""
    values = {
        "host": job.shown,
        "step": "" if job.result in GOOD else job.step,
        "result": job.result,
        "seconds": f"{job.seconds(clock):.0f}" if job.began else "",
    }
    return {**dict.fromkeys(CHECK_TITLES, ""), **values, **found(job)}


def found(job: Job) -> dict[str, str]:
    """What --check found, in words."""
    if not job.facts:
        return {}
    age = job.facts["age"]
    when = "never" if not isinstance(age, int) else f"{age} s" if age < 120 else duration(age)
    return {
        "version": str(job.facts["version"] or "–"),
        "loops": "run" if job.facts["loops"] == "ok" else "do not run",
        "key": "enrolled" if job.facts["enrolled"] else "none",
        "last snapshot": when,
    }


def rank(job: Job) -> int:
    """Who is shown first."""
    if not job.result:
        return 2 if job.step == WAITING else 0
    return 3 if job.result in GOOD else 1


def summary(jobs: list[Job]) -> str:
    """How many of them are where."""
    counts: dict[str, int] = {}
    for job in jobs:
        word = job.result or ("waiting" if job.step == WAITING else "at work")
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


def as_json(jobs: list[Job]) -> str:
    """For programs."""
    rows = [
        {
            "host": job.target.address,
            "name": job.name or job.target.given,
            "result": job.result,
            "step": None if job.result in GOOD else job.step,
            "why": job.why or None,
            "seconds": round(job.seconds(now()), 1),
            **job.facts,
        }
        for job in jobs
    ]
    return json.dumps(rows)
