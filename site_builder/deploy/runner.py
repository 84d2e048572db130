"""Deploy to many hosts side by side, and show how far each is; Ctrl-C leaves nothing running."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from site_builder.core.command_options import CommandError, print_command_message
from site_builder.core.formatting import format_duration
from site_builder.core.parallel import WorkerPool
from site_builder.core.subprocesses import interrupt_on_signals
from site_builder.deploy import host_job
from site_builder.deploy.host_job import FAILED, GOOD_RESULTS, STOPPED, WAITING, HostDeployJob, HostDeployPlan
from site_builder.deploy.web_host import WebHostError, find_installer, open_web_host
from site_builder.remote.ssh_config import SshError
from site_builder.remote.targets import Target

REFRESH_INTERVAL_S = 0.2
# Ctrl-C waits no longer than this for threads whose connections it has cut.
STOP_TIMEOUT_S = 15.0
UNFINISHED_MESSAGES = {
    "deploy": "not done; fix the reason and run this again",
    "check": "not up to date",
    "remove": "not removed",
}
REMOVED_MESSAGE = "their data stays in data/, and the board shows them as down; remove them with `gpuboard forget HOST`"


def run_deploy_jobs(jobs: list[HostDeployJob], plan: HostDeployPlan, display: DeployDisplay) -> None:
    """Run all jobs, and show each that ends; after Ctrl-C, let those that run come to an end."""
    pool: WorkerPool[int, None] = WorkerPool()
    for number, job in enumerate(jobs):
        pool.add(number, job.run)
    with display:
        try:
            show_finished_deploy_jobs(pool, jobs, display)
        except KeyboardInterrupt:
            plan.stop_event.set()
            for job in jobs:
                if job.connection:
                    job.connection.close()
            show_finished_deploy_jobs(pool, jobs, display, time.monotonic() + STOP_TIMEOUT_S)
            for job in jobs:
                if not job.result:  # its thread waits for a host that does not answer, and ends with us
                    job.result, job.reason, job.ended_at = STOPPED, host_job.STOPPED_REASON, time.monotonic()
                    display.show_result(job)


def show_finished_deploy_jobs(
    pool: WorkerPool[int, None], jobs: list[HostDeployJob], display: DeployDisplay, deadline: float = math.inf
) -> None:
    """Show each job that ends, until all have or the deadline has passed."""
    while pool.pending and time.monotonic() < deadline:
        for number, _ in pool.iterate_results(time.monotonic() + REFRESH_INTERVAL_S):
            display.show_result(jobs[number])
        display.refresh()


def deploy_hosts(
    data: Path,
    targets: list[Target],
    action: str,
    destination: str | None,
    web: str | None,
    config_file: Path | None,
    as_json: bool,
) -> bool:
    """Deploy to all targets, and print a report; return False if some host is not done."""
    with ExitStack() as stack:
        try:
            web_host = stack.enter_context(open_web_host(data, web, config_file))
            stack.enter_context(interrupt_on_signals())
            if destination is not None:
                web_host.build_known_hosts_lines(destination)
            web_state = web_host.read_state()
        except (SshError, WebHostError) as error:
            raise CommandError(str(error)) from None
        if not web_host.host_keys:
            message = "this machine has no ssh host key in /etc/ssh: is this the web host?"
            raise CommandError(f"{message} If it is another machine, use --web USER@WEB")
        plan = HostDeployPlan(
            web_host=web_host,
            web_state=web_state,
            install_program=host_job.build_install_program(),
            inspect_program=(find_installer().parent / "install" / "look.sh").read_text(),
            scripts_digest=host_job.compute_scripts_digest(),
            action=action,
            destination=destination,
            config_file=config_file,
        )
        jobs = [HostDeployJob(target, plan) for target in targets]
        can_redraw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        display = LiveDeployDisplay if can_redraw and not as_json else DeployDisplay
        run_deploy_jobs(jobs, plan, display(jobs, action == "check", is_silent=as_json or can_redraw))
    if as_json:
        click.echo(json.dumps([format_deploy_job_json(job) for job in jobs]))
    elif can_redraw:
        for job in jobs:
            if job.reason and job.result != STOPPED:
                click.echo(f"{job.display_name}: {job.reason}")
    unfinished = [job for job in jobs if job.result not in GOOD_RESULTS]
    if unfinished:
        print_command_message(f"{len(unfinished)} of {len(jobs)} hosts: {UNFINISHED_MESSAGES[action]}")
    elif action == "remove" and any(job.result in (host_job.REMOVED, host_job.NOT_INSTALLED) for job in jobs):
        print_command_message(REMOVED_MESSAGE)
    return not unfinished


if TYPE_CHECKING:
    from rich.live import Live

COLUMN_TITLES = ("host", "step", "result", "seconds")
CHECK_COLUMN_TITLES = ("host", "version", "loops", "key", "last snapshot", "result")
# So wide that no line of a pipe moves the next column.
COLUMN_WIDTHS = {"step": 8, "result": 15, "seconds": 7, "version": 7, "loops": 10, "key": 8, "last snapshot": 13}
RESULT_COLOURS = {FAILED: "red", STOPPED: "yellow"}
EXTRA_LINES = 3  # lines of a table that are not hosts


class DeployDisplay(AbstractContextManager["DeployDisplay"]):
    """Print a line for each host that has ended, or nothing for --json."""

    def __init__(self, jobs: list[HostDeployJob], is_check: bool, is_silent: bool = False) -> None:
        self.jobs, self.is_silent = jobs, is_silent
        self.columns = CHECK_COLUMN_TITLES if is_check else COLUMN_TITLES
        self.name_width = max(len(job.display_name) for job in self.jobs)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop showing."""

    def show_result(self, job: HostDeployJob) -> None:
        if not self.is_silent:
            values = format_deploy_job_cells(job, time.monotonic())
            line = "  ".join(f"{values[title]:<{COLUMN_WIDTHS.get(title, self.name_width)}}" for title in self.columns)
            click.echo(f"{line}  {job.reason}".rstrip())

    def refresh(self) -> None:
        """Show that time has passed."""


class LiveDeployDisplay(DeployDisplay):
    """Draw a live table of all hosts, or those that fit, the busy ones first."""

    def __enter__(self) -> LiveDeployDisplay:
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

    def choose_rows(self, is_final: bool) -> list[HostDeployJob]:
        def rank(job: HostDeployJob) -> int:
            if not job.result:
                return 2 if job.step == WAITING else 0
            return 3 if job.result in GOOD_RESULTS else 1

        max_rows = max(3, self.console.height - EXTRA_LINES)
        return self.jobs if is_final or len(self.jobs) <= max_rows else sorted(self.jobs, key=rank)[:max_rows]

    def build_table(self, is_final: bool = False) -> Any:  # noqa: ANN401 of rich, which is slow to import
        from rich.table import Table as RichTable  # noqa: PLC0415 slow to import
        from rich.text import Text  # noqa: PLC0415

        counts = Counter(job.result or ("waiting" if job.step == WAITING else "working") for job in self.jobs)
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


def format_deploy_job_cells(job: HostDeployJob, clock: float) -> dict[str, str]:
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
        cells["loops"] = "run" if job.check_facts["loops"] == "ok" else "are not running"
        cells["key"] = "enrolled" if job.check_facts["enrolled"] else "none"
        cells["last snapshot"] = "never"
        if isinstance(age, int):
            cells["last snapshot"] = f"{age} s" if age < 120 else format_duration(age)
    return cells


def format_deploy_job_json(job: HostDeployJob) -> dict[str, object]:
    return {
        "host": job.target.address,
        "name": job.name or job.target.given_name,
        "result": job.result,
        "step": None if job.result in GOOD_RESULTS else job.step,
        "why": job.reason or None,
        "seconds": round(job.measure_seconds(time.monotonic()), 1),
        **job.check_facts,
    }
