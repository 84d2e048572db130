"""`gpuboard build` and `gpuboard forget`."""

from __future__ import annotations

import gc
import math
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from site_builder.config.settings import LoadedSettings, Settings
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import KvStore
from site_builder.core import clock_check, locks
from site_builder.core.command_options import (
    CommandError,
    print_command_message,
    refuse_command_on_foreign_board,
    with_loaded_settings,
    with_settings,
)
from site_builder.core.names import is_host_name
from site_builder.discovery.hosts import HostDiscovery
from site_builder.snapshots.completion import complete_hosts
from site_builder.snapshots.store import SnapshotStore, remove_stored_snapshots

if TYPE_CHECKING:  # the builder imports most of gpuboard, and TAB must answer at once
    from site_builder.board.builder import Builder, BuildReport

# How long a single build waits for another build to end.
LOCK_TIMEOUT_S = 120
RECENT_PUSH_S = 600
MAX_PRINTED_PROBLEMS = 20


@click.command()
@click.option("--every", type=click.IntRange(1, 3600), metavar="SECONDS", help="Build repeatedly at this interval.")
@click.option(
    "--for", "duration", type=click.IntRange(1), metavar="SECONDS", help="Stop after this time, with --every."
)
@with_loaded_settings
def build(loaded: LoadedSettings, every: int | None, duration: int | None) -> None:
    """Build the site in www/ from the files in data/.

    Problems in the data appear on the page and are not errors: exit 0 means that the site was written. The second
    line below, in a crontab, keeps the builder running. A second builder waits until the first ends.

    \b
    gpuboard build
    gpuboard build --every 10 --for 60
    """
    from site_builder.board.builder import Builder  # noqa: PLC0415 # see above

    began = time.monotonic()
    if duration and not every:
        raise click.UsageError("--for needs --every")
    settings = loaded.settings
    refuse_command_on_foreign_board(settings, loaded.conf.path)
    if not settings.data.is_dir():
        where = settings.data.absolute()
        raise CommandError(
            f"{where} does not exist: start gpuboard in the folder that contains it, or set GPUBOARD_DATA"
        )
    gc.disable()  # a build makes many objects, and no reference cycles
    end = began + duration if duration else float("inf") if every else began
    try:
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locks.hold_build_lock(settings.state, end if every else began + LOCK_TIMEOUT_S, print_command_message):
            succeeded = run_build_command_loop(Builder(settings, every), every, began, end)
    except locks.LockTimeoutError as error:
        if every:  # the next builder that cron starts continues
            return
        raise CommandError(f"{error}; nothing was built") from None
    except OSError as error:
        where = error.filename or settings.state
        raise CommandError(f"{where} cannot be written: {error.strerror}; the site was not updated") from None
    gc.freeze()  # saves the search for cycles when Python ends
    if not succeeded:
        sys.exit(2)


def run_build_command_loop(builder: Builder, every: int | None, began: float, end: float) -> bool:
    """Build until the end, and return True if the last build succeeded; print each sentence once."""
    from site_builder.board.builder import BuildError  # noqa: PLC0415 # see above
    from site_builder.bookings import archive  # noqa: PLC0415 # see above

    printed: set[str] = set()
    build_count = 0
    while True:
        build_began = time.monotonic()
        try:
            if every is None:  # nothing has been read yet, and the clock is checked by what hosts sent
                with suppress(OSError):
                    builder.snapshots.read_hosts()
            now = time.time()
            offsets = builder.snapshots.list_clock_offsets(now, clock_check.MAX_SNAPSHOT_AGE_S)
            builder.clock_doubt = clock_check.find_clock_doubt(builder.settings.state, now, offsets)
            if builder.is_leader or every is None:
                builder.extra_problems = archive.archive_ended_bookings(
                    builder.settings, builder.bookings_file.rows, now, builder.clock_doubt
                )
            report = builder.build(now)
            succeeded, sentences = True, report.save_errors
            if every is None and sys.stderr.isatty():  # cron would mail it
                print_build_summary(report, time.monotonic() - build_began)
        except BuildError as error:
            succeeded, sentences = False, [f"{error}; the site was not updated"]
        for sentence in sentences:
            if sentence not in printed:
                print_command_message(sentence)
            printed.add(sentence)
        if every is not None:
            # the next tick that is still ahead: ticks that a slow build missed are skipped
            build_count = max(build_count + 1, math.ceil((time.monotonic() - began) / every))
        if every is None or began + build_count * every >= end:
            builder.close()
            return succeeded
        gc.collect()
        time.sleep(max(0, began + build_count * every - time.monotonic()))


def print_build_summary(report: BuildReport, seconds: float) -> None:
    gpu_count, free_count = sum(report.gpu_counts.values()), report.gpu_counts.get("free", 0)
    hosts = "1 host" if report.host_count == 1 else f"{report.host_count} hosts"
    print_command_message(f"{hosts}, {free_count} of {gpu_count} GPUs free, built in {seconds:.2f} s")
    if not report.written_files:
        print_command_message("nothing written: another builder is the leader")
    for problem in report.problems[:MAX_PRINTED_PROBLEMS]:
        print_command_message(f"{problem.where}: {problem.what}")
    if len(report.problems) > MAX_PRINTED_PROBLEMS:
        print_command_message(
            f"and {len(report.problems) - MAX_PRINTED_PROBLEMS} more problems, at the end of the page"
        )


@click.command()
@click.argument("host", shell_complete=complete_hosts)
@with_settings
def forget(settings: Settings, host: str) -> None:
    """Remove HOST: its files in data/ and its entry in Consul.

    Everything else remembered of the host is removed too, and the next build leaves it off the page. Stop its
    gpu-check.sh and take it off hosts.txt or Consul first: a host that still pushes comes back, and a listed one is
    shown as unseen.

    \b
    gpuboard forget atlas
    """
    if not is_host_name(host):
        raise CommandError(f"{host!r} is not a host name")
    refuse_command_on_foreign_board(settings)
    try:
        host_files = {files.name: files for files in SnapshotStore(settings.data, settings.state).read_hosts()[0]}
        listed, _ = HostDiscovery(settings.data, settings.state, None).list_hosts(())
        lists = " and ".join(listed[host].listed_by) if host in listed else ""
        if host not in host_files:
            if lists:
                print_command_message(f"{host} has never pushed, but is listed in {lists}: remove it there")
            else:
                print_command_message(f"no host {host} in {settings.data} or {settings.state}")
            sys.exit(1)
        if settings.kv:  # first, or the next build would copy it again
            try:
                KvStore(settings.kv).delete(f"data/{host}")
            except ConsulUnavailableError as error:
                message = f"{settings.kv.where} {error}; nothing was removed"
                raise CommandError(message) from None
        settings.state.joinpath("forget").mkdir(parents=True, exist_ok=True)
        left = remove_stored_snapshots(settings.data, host)
        settings.state.joinpath("forget", host).touch()
    except OSError as error:
        raise CommandError(f"{error.filename or settings.data} could not be removed: {error.strerror}") from None
    print_command_message(f"{host} disappears from the page with the next build")
    if left:
        print_command_message(f"{settings.data / host} is kept: it contains other files: {', '.join(left[:5])}")
    last_push = max((file.arrived_at for file in host_files[host].files.values()), default=0)
    if last_push > time.time() - RECENT_PUSH_S:
        print_command_message(
            f"{host} pushed within the last 10 minutes: stop gpu-check.sh there, or the host reappears"
        )
    if lists:
        print_command_message(f"it is still listed in {lists}: remove it there, or it is shown as unseen")
