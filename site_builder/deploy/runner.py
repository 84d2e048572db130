"""Deploy to many hosts side by side, and show how far each is; Ctrl-C leaves nothing running."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import click

from site_builder.core.command_options import CommandError, print_command_message
from site_builder.core.files import find_installer
from site_builder.deploy.host_steps import (
    FAILED,
    GOOD_RESULTS,
    NOT_INSTALLED,
    REMOVED,
    STOPPED,
    DeployJob,
    DeployPlan,
    DeployStoppedError,
    HostDeployError,
    build_install_program,
    build_known_hosts_lines,
    compute_scripts_digest,
    process_deploy_host,
)
from site_builder.deploy.progress import LineDisplay, LiveDisplay, ProgressDisplay, deploy_jobs_to_json
from site_builder.deploy.web_host import WebHostError, open_web_host
from site_builder.remote.ssh_config import SshError, extract_last_line
from site_builder.remote.targets import Target
from site_builder.remote.worker_pool import WorkerPool

REFRESH_INTERVAL_S = 0.2
# Ctrl-C waits no longer than this for threads whose connections it has cut.
STOP_TIMEOUT_S = 15.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED_REASON = "stopped: call it again to finish"
UNFINISHED_MESSAGES = {
    "deploy": "not done; once the reason is mended, call it again",
    "check": "not up to date",
    "remove": "not removed",
}


def run_deploy_job(job: DeployJob, plan: DeployPlan) -> None:
    """Work on one host until it has a result, whatever happens."""
    if plan.stop_event.is_set():
        job.result, job.reason = STOPPED, "stopped before it began: call it again"
        return
    job.started_at = time.monotonic()
    try:
        process_deploy_host(job, plan)
    except DeployStoppedError:
        job.result, job.reason = STOPPED, f"stopped at the step '{job.step}': call it again to finish"
    except (HostDeployError, SshError, WebHostError) as error:
        job.result, job.reason = (STOPPED, STOPPED_REASON) if plan.stop_event.is_set() else (FAILED, str(error))
    except Exception as error:  # one host must not cost the others
        name = type(error).__name__
        job.result, job.reason = FAILED, f"this should not happen: {name}: {extract_last_line(str(error))}"
    job.ended_at = time.monotonic()


def run_deploy_jobs(jobs: list[DeployJob], plan: DeployPlan, display: ProgressDisplay) -> None:
    """Run all jobs, and show each that ends; after Ctrl-C, let those that run come to an end."""
    pool: WorkerPool[int, None] = WorkerPool()
    for number, job in enumerate(jobs):
        pool.add(number, partial(run_deploy_job, job, plan))
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
                    job.result, job.reason, job.ended_at = STOPPED, STOPPED_REASON, time.monotonic()
                    display.show_result(job)


def show_finished_deploy_jobs(
    pool: WorkerPool[int, None], jobs: list[DeployJob], display: ProgressDisplay, deadline: float = math.inf
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
                build_known_hosts_lines(destination, [])
            web_state = web_host.read_state()
        except (HostDeployError, SshError, WebHostError) as error:
            raise CommandError(str(error)) from None
        if not web_host.host_keys:
            message = "no key of this machine's sshd is in /etc/ssh: is this the web host?"
            raise CommandError(f"{message} If it is another, give --web USER@WEB")
        plan = DeployPlan(
            web_host=web_host,
            web_state=web_state,
            install_program=build_install_program(),
            inspect_program=(find_installer().parent / "install" / "look.sh").read_text(),
            scripts_digest=compute_scripts_digest(),
            action=action,
            destination=destination,
            config_file=config_file,
        )
        jobs = [DeployJob(target) for target in targets]
        can_redraw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        display = ProgressDisplay if as_json else LiveDisplay if can_redraw else LineDisplay
        run_deploy_jobs(jobs, plan, display(jobs, action == "check"))
    if as_json:
        click.echo(deploy_jobs_to_json(jobs))
    elif can_redraw:
        for job in jobs:
            if job.reason and job.result != STOPPED:
                click.echo(f"{job.display_name}: {job.reason}")
    unfinished = [job for job in jobs if job.result not in GOOD_RESULTS]
    if unfinished:
        print_command_message(f"{len(unfinished)} of {len(jobs)} hosts: {UNFINISHED_MESSAGES[action]}")
    elif action == "remove" and any(job.result in (REMOVED, NOT_INSTALLED) for job in jobs):
        print_command_message(
            "what the hosts sent stays in data/, and on the board as down; `gpuboard forget HOST` takes it off"
        )
    return not unfinished


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """End a deploy as Ctrl-C does when the terminal is closed or we are killed; a second signal changes nothing."""

    def end(*_: object) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, end) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
