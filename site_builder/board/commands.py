"""`gpuboard build` and `gpuboard forget`."""

from __future__ import annotations

import gc
import math
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from site_builder.client import completion
from site_builder.core.command_options import (
    CommandError,
    print_message,
    refuse_foreign,
    with_loaded_settings,
    with_settings,
)

if TYPE_CHECKING:
    from site_builder.board.builder import Builder, BuildReport
    from site_builder.config.conf_file import LoadedSettings
    from site_builder.config.settings import Settings

# How long a single build waits for one that is under way.
LOCK_TIMEOUT_S = 120


@click.command()
@click.option("--every", type=click.IntRange(1, 3600), metavar="SECONDS", help="Build again and again, this often.")
@click.option("--for", "duration", type=click.IntRange(1), metavar="SECONDS", help="With --every: end after so long.")
@with_loaded_settings
def build(loaded: LoadedSettings, every: int | None, duration: int | None) -> None:
    """Build the site in www/ from the files in data/.

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
        raise CommandError(f"{where} is not there: start gpuboard in the folder that has it, or set GPUBOARD_DATA")
    gc.disable()  # a build makes many objects, and none that refer to each other in a circle
    end = began + duration if duration else float("inf") if every else began
    try:
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locks.hold_build_lock(settings.state, end if every else began + LOCK_TIMEOUT_S, print_message):
            good = run_builds(Builder(settings, every), every, began, end)
    except locks.LockTimeoutError as why:
        if every:  # cron's next one takes its turn
            return
        raise CommandError(f"{why}; nothing was built") from None
    except OSError as error:
        where = error.filename or settings.state
        raise CommandError(f"{where} cannot be written: {error.strerror}; the page stays as it is") from None
    gc.freeze()  # nor does Python find any when it looks for them once more at its end
    if not good:
        sys.exit(2)


def run_builds(builder: Builder, every: int | None, began: float, end: float) -> bool:
    """Build until the end; whether the last build succeeded. The same sentence is told once."""
    from site_builder.board.builder import BuildError  # noqa: PLC0415
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
                    builder.snapshots.read_hosts()
            now = time.time()
            offsets = builder.snapshots.list_clock_offsets(now, clock_check.RECENT)
            builder.clock_doubt = clock_check.check_clock(builder.settings.state, now, offsets)
            if builder.is_leader or every is None:
                builder.extra_problems = archive.archive_or_report(
                    builder.settings, builder.bookings_file.rows, now, builder.clock_doubt
                )
            report = builder.build(now)
            good, sentences = True, report.save_errors
            if every is None:
                print_build_summary(report, time.monotonic() - at)
        except BuildError as why:
            good, sentences = False, [f"{why}; the page stays as it is"]
        for sentence in sentences:
            if sentence not in told:
                print_message(sentence)
            told.add(sentence)
        # the next tick that is still ahead: those that a slow build missed are not made up for
        count = max(count + 1, math.ceil((time.monotonic() - began) / every)) if every else 1
        wait = began + count * every - time.monotonic() if every else 0
        if every is None or began + count * every >= end:
            builder.close()
            return good
        gc.collect()
        time.sleep(max(0, wait))


def print_build_summary(report: BuildReport, seconds: float) -> None:
    """For the person who built by hand, not for cron, which would mail it."""
    if not sys.stderr.isatty():
        return
    gpus = sum(report.gpu_counts.values())
    free = report.gpu_counts.get("free", 0)
    hosts = "1 host" if report.host_count == 1 else f"{report.host_count} hosts"
    print_message(f"{hosts}, {free} of {gpus} GPUs free, built in {seconds:.2f} s")
    if not report.written_files:
        print_message("nothing was written: another builder leads, and the site is its own")
    for problem in report.problems[:20]:
        print_message(f"{problem.where}: {problem.what}")
    if len(report.problems) > 20:
        print_message(f"and {len(report.problems) - 20} more problems, at the end of the page")


RECENT_PUSH_S = 600


@click.command()
@click.argument("host", shell_complete=completion.complete_hosts)
@with_settings
def forget(settings: Settings, host: str) -> None:
    """Remove HOST: its files in data/ and its entry in Consul.

    It also forgets everything that was remembered of the host. It is gone from the page at the next build. A host that still pushes comes back, and one that hosts.txt or Consul
    lists is shown as unseen: stop its gpu-check.sh and take it off the list first.

    \b
    gpuboard forget atlas
    """
    from site_builder.core.names import is_host_name  # noqa: PLC0415 # --help needs none of it
    from site_builder.discovery import hosts  # noqa: PLC0415
    from site_builder.snapshots import store as snapshots_store  # noqa: PLC0415

    if not is_host_name(host):
        message = f"{host!r} is not a host name"
        raise CommandError(message)
    refuse_foreign(settings)
    try:
        kept = snapshots_store.SnapshotStore(settings.data, settings.state)
        told = {one.name: one for one in kept.read_hosts()[0]}.get(host)
        lists, _ = hosts.HostDiscovery(settings.data, settings.state, None).list_hosts(())
        if told is None and host in lists:
            print_message(f"{host} never pushed; {' and '.join(lists[host].listed_by)} list it: take it off there")
            sys.exit(1)
        if told is None:
            print_message(f"there is no host {host} in {settings.data}, nor remembered in {settings.state}")
            sys.exit(1)
        delete_consul_entry(settings, host)
        settings.state.joinpath("forget").mkdir(parents=True, exist_ok=True)
        left = snapshots_store.remove_host_files(settings.data, host)
        settings.state.joinpath("forget", host).touch()
    except OSError as error:
        raise CommandError(f"{error.filename or settings.data} could not be removed: {error.strerror}") from None
    print_message(f"{host} is gone from the page at the next build")
    if left:
        print_message(f"{settings.data / host} stays, since there are other files in it: {', '.join(left[:5])}")
    if max((one.arrived_at for one in told.files.values()), default=0) > time.time() - RECENT_PUSH_S:
        print_message(f"{host} pushed within the last 10 minutes: stop gpu-check.sh there, or it comes back")
    if host in lists:
        print_message(
            f"{' and '.join(lists[host].listed_by)} still list it: take it off there, or it is shown as unseen"
        )


def delete_consul_entry(settings: Settings, host: str) -> None:
    """Take a host out of Consul first: else the next build would copy it again."""
    if settings.kv is None:
        return
    from site_builder.consul.client import ConsulUnavailableError  # noqa: PLC0415
    from site_builder.consul.kv import KvStore  # noqa: PLC0415

    try:
        KvStore(settings.kv).delete(f"data/{host}")
    except ConsulUnavailableError as why:
        raise CommandError(f"{settings.kv.where} {why}; {host} is still there, and nothing was removed") from None
