"""`gpuboard build`: the site from data/, once, or every few seconds for a minute, as cron wants it."""

from __future__ import annotations

import gc
import math
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from site_builder.core.command_options import Failure, refuse_foreign, tell, with_loaded

if TYPE_CHECKING:
    from site_builder.board.builder import Builder, Report
    from site_builder.config.conf_file import Loaded

# How long a single build waits for one that is under way.
PATIENCE = 120


@click.command()
@click.option("--every", type=click.IntRange(1, 3600), metavar="SECONDS", help="Build again and again, this often.")
@click.option("--for", "duration", type=click.IntRange(1), metavar="SECONDS", help="With --every: end after so long.")
@with_loaded
def build(loaded: Loaded, every: int | None, duration: int | None) -> None:
    """Build the site in www/ from what stands in data/.

    Problems in the data are told on the page and no failure: exit 0 means that the site was written. Cron keeps it
    alive with the second line below, once a minute. A second builder waits for the first to end.

    \b
    gpuboard build
    gpuboard build --every 10 --for 60
    """
    began = time.monotonic()
    if duration and not every:
        message = "--for needs --every"
        raise click.UsageError(message)
    from site_builder.board.builder import Builder  # noqa: PLC0415 # --help needs none of it
    from site_builder.core import locks  # noqa: PLC0415

    settings = loaded.settings
    refuse_foreign(settings, loaded.conf.path)
    if not settings.data.is_dir():
        where = settings.data.absolute()
        raise Failure(f"{where} is not there: start gpuboard in the folder that has it, or set GPUBOARD_DATA")
    gc.disable()  # a build makes many objects, and none that refer to each other in a circle
    end = began + duration if duration else float("inf") if every else began
    try:
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locks.held(settings.state, end if every else began + PATIENCE, tell):
            good = run(Builder(settings, every), every, began, end)
    except locks.Held as why:
        if every:  # cron's next one takes its turn
            return
        raise Failure(f"{why}; nothing was built") from None
    except OSError as error:
        where = error.filename or settings.state
        raise Failure(f"{where} cannot be written: {error.strerror}; the page stays as it is") from None
    gc.freeze()  # nor does Python find any when it looks for them once more at its end
    if not good:
        sys.exit(2)


def run(builder: Builder, every: int | None, began: float, end: float) -> bool:
    """Build until the end; whether the last build succeeded. The same sentence is told once."""
    from site_builder.board.builder import Failed  # noqa: PLC0415
    from site_builder.bookings import archive  # noqa: PLC0415
    from site_builder.core import clock_check  # noqa: PLC0415

    told: set[str] = set()
    good = True
    count = 0
    while True:
        at = time.monotonic()
        try:
            if every is None:  # nobody has looked at them lately
                with suppress(OSError):
                    builder.snapshots.read()
            now = time.time()
            offsets = builder.snapshots.clock_offsets(now, clock_check.RECENT)
            builder.doubt = clock_check.check_clock(builder.settings.state, now, offsets)
            if builder.leads or every is None:
                builder.beside = archive.move_or_tell(builder.settings, builder.bookings.rows, now, builder.doubt)
            report = builder.build(now)
            good, sentences = True, report.troubles
            if every is None:
                summarize(report, time.monotonic() - at)
        except Failed as why:
            good, sentences = False, [f"{why}; the page stays as it is"]
        for sentence in sentences:
            if sentence not in told:
                tell(sentence)
            told.add(sentence)
        # the next tick that is still ahead: those that a slow build missed are not made up for
        count = max(count + 1, math.ceil((time.monotonic() - began) / every)) if every else 1
        wait = began + count * every - time.monotonic() if every else 0
        if every is None or began + count * every >= end:
            builder.close()
            return good
        gc.collect()
        time.sleep(max(0, wait))


def summarize(report: Report, seconds: float) -> None:
    """For the person who built by hand, not for cron, which would mail it."""
    if not sys.stderr.isatty():
        return
    gpus = sum(report.totals.values())
    free = report.totals.get("free", 0)
    hosts = "1 host" if report.hosts == 1 else f"{report.hosts} hosts"
    tell(f"{hosts}, {free} of {gpus} GPUs free, built in {seconds:.2f} s")
    if not report.written:
        tell("nothing was written: another builder leads, and the site is its own")
    for problem in report.problems[:20]:
        tell(f"{problem.where}: {problem.what}")
    if len(report.problems) > 20:
        tell(f"and {len(report.problems) - 20} more problems, at the end of the page")
