"""Run a deploy: 20 hosts at a time, how far each is shown meanwhile, and Ctrl-C leaves nothing running."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from site_builder.deploy.host_steps import (
    FAILED,
    STOPPED,
    DeployJob,
    DeployPlan,
    DeployStoppedError,
    HostDeployError,
    process_host,
    read_monotonic_clock,
)
from site_builder.deploy.web_host import WebHostError
from site_builder.remote.ssh_config import SshError, extract_last_line
from site_builder.remote.worker_pool import WorkerPool

if TYPE_CHECKING:
    from site_builder.deploy.progress import ProgressDisplay

REFRESH_INTERVAL_S = 0.2
# Ctrl-C waits no longer than this for threads whose connections it has cut.
STOP_TIMEOUT_S = 15.0


def run_job(job: DeployJob, order: DeployPlan) -> None:
    """Work on one host until it has a result, whatever happens."""
    if order.stop_event.is_set():
        job.result, job.reason = STOPPED, "stopped before it began: call it again"
        return
    job.started_at = read_monotonic_clock()
    try:
        process_host(job, order)
    except DeployStoppedError:
        job.result, job.reason = STOPPED, f"stopped at the step '{job.step}': call it again to finish"
    except (HostDeployError, SshError, WebHostError) as error:
        stopped = order.stop_event.is_set()
        job.result, job.reason = (STOPPED, "stopped: call it again to finish") if stopped else (FAILED, str(error))
    except Exception as error:  # one host must not cost the others
        job.result, job.reason = (
            FAILED,
            f"this should not happen: {type(error).__name__}: {extract_last_line(str(error))}",
        )
    job.ended_at = read_monotonic_clock()


def run_jobs(jobs: list[DeployJob], order: DeployPlan, table: ProgressDisplay) -> None:
    """Run all jobs, and show each that ends; after Ctrl-C, let those that run come to an end."""
    pool: WorkerPool[int, None] = WorkerPool()
    for number, job in enumerate(jobs):
        pool.add(number, partial(run_job, job, order))
    with table:
        try:
            while pool.pending:
                show_finished_jobs(pool, jobs, table)
        except KeyboardInterrupt:
            order.stop_event.set()
            for job in jobs:
                if job.connection:
                    job.connection.close()
            end = read_monotonic_clock() + STOP_TIMEOUT_S
            while pool.pending and read_monotonic_clock() < end:
                show_finished_jobs(pool, jobs, table)
            for job in jobs:
                if not job.result:  # its thread waits for a host that does not answer, and ends with us
                    job.result, job.reason, job.ended_at = (
                        STOPPED,
                        "stopped: call it again to finish",
                        read_monotonic_clock(),
                    )
                    table.show_result(job)


def show_finished_jobs(pool: WorkerPool[int, None], jobs: list[DeployJob], table: ProgressDisplay) -> None:
    """Show what has ended by the next refresh."""
    for number, _ in pool.iterate_results(read_monotonic_clock() + REFRESH_INTERVAL_S):
        table.show_result(jobs[number])
    table.refresh()
