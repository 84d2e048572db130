"""Twenty at a time: a thread a host, of which Ctrl-C leaves nothing."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from site_builder.deploy.host_steps import visit
from site_builder.deploy.job import FAILED, STOPPED, HostFailed, Job, Order, Stopped, now
from site_builder.deploy.web_side import WebFailed
from site_builder.remote.ssh import SshError
from site_builder.remote.ssh_config import last_line

if TYPE_CHECKING:
    from site_builder.deploy.table import Table

AT_A_TIME = 20
REFRESH = 0.2
# Ctrl-C waits no longer than this for threads whose connections it has cut.
ENDS_WITHIN = 15.0


def one(job: Job, order: Order) -> None:
    """One host, from its beginning to a result, whatever happens."""
    job.began = now()
    try:
        visit(job, order)
    except Stopped:
        job.result, job.why = STOPPED, f"stopped at the step '{job.step}': call it again to finish"
    except (HostFailed, SshError, WebFailed) as error:
        stopped = order.stop.is_set()
        job.result, job.why = (STOPPED, "stopped: call it again to finish") if stopped else (FAILED, str(error))
    except Exception as error:  # one host must not cost the others
        job.result, job.why = FAILED, f"this should not happen: {type(error).__name__}: {last_line(str(error))}"
    job.ended = now()


def work(waiting: queue.SimpleQueue[Job], order: Order, ended: Callable[[Job], None]) -> None:
    """One host after the other, until there is none."""
    with suppress(queue.Empty):
        while True:
            job = waiting.get_nowait()
            if order.stop.is_set():
                job.result, job.why = STOPPED, "stopped before it began: call it again"
            else:
                one(job, order)
            ended(job)


def run(jobs: list[Job], order: Order, table: Table) -> None:
    """All of them; the table is told of each that ends, and drawn anew meanwhile."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    done: queue.SimpleQueue[Job] = queue.SimpleQueue()
    count = min(AT_A_TIME, len(jobs))
    crew = [threading.Thread(target=work, args=(waiting, order, done.put), daemon=True) for _ in range(count)]
    left = len(jobs)
    with table:
        try:
            for thread in crew:
                thread.start()
            while left:
                left -= heard(done, table, REFRESH)
        except KeyboardInterrupt:
            end(jobs, order)
            until = now() + ENDS_WITHIN
            while left and now() < until:
                left -= heard(done, table, REFRESH)
            for job in jobs:
                if not job.result:
                    leave(job, table)


def leave(job: Job, table: Table) -> None:
    """Its thread waits for a host that does not answer, and ends with us."""
    job.result, job.why, job.ended = STOPPED, "stopped: call it again to finish", now()
    table.ended(job)


def heard(done: queue.SimpleQueue[Job], table: Table, seconds: float) -> int:
    """How many have ended since; the table shows it."""
    count = 0
    with suppress(queue.Empty):
        while True:
            table.ended(done.get(timeout=seconds))
            count += 1
            seconds = 0.001
    table.draw()
    return count


def end(jobs: list[Job], order: Order) -> None:
    """Nobody begins anything more, and who waits for a host waits no longer."""
    order.stop.set()
    for job in jobs:
        if job.connection:
            job.connection.close()
