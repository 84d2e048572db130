"""`gpuboard pull`: fetch snapshots from hosts that may not push."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

import click

from site_builder.config.settings import Settings
from site_builder.core.command_options import CommandError, complete_file_option, print_command_message, with_settings
from site_builder.core.names import is_host_name
from site_builder.core.parallel import WorkerPool
from site_builder.core.terminal_text import clean_excerpt
from site_builder.remote import targets
from site_builder.remote.fetch import HttpFetcher, PullError, SnapshotFetcher, SshFetcher, write_pulled_files
from site_builder.remote.targets import Target
from site_builder.snapshots.completion import complete_hosts

# What a pull by itself says about when the next one comes: cron's minute.
DEFAULT_INTERVAL_S = 60


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@click.option(
    "--hosts-file", metavar="FILE", help="The hosts in a file, one a line.", shell_complete=complete_file_option
)
@click.option("--consul", is_flag=True, help="The hosts that Consul lists.")
@click.option(
    "--limit", type=click.IntRange(2, 300), default=20, metavar="SECONDS", help="For each host.  [default: 20]"
)
@click.option(
    "--ssh-config", metavar="FILE", help="Instead of your ~/.ssh/config.", shell_complete=complete_file_option
)
@click.option("--every", type=click.IntRange(1, 3600), metavar="SECONDS", help="Again and again, this often.")
@click.option("--for", "duration", type=click.IntRange(1), metavar="SECONDS", help="With --every: end after so long.")
@with_settings
def pull(
    settings: Settings,
    hosts: tuple[str, ...],
    hosts_file: str | None,
    consul: bool,
    limit: int,
    ssh_config: str | None,
    every: int | None,
    duration: int | None,
) -> None:
    """Fetch a snapshot of each HOST into data/.

    It works on 20 hosts at a time. HOST is a name that ssh knows, or the address at which a host serves its files:
    http://atlas/spool/. With name=address it has another name on the board. By ssh, nothing is installed on the host.
    Exit 0 if all arrived, 1 if some did not: their old files stay.

    \b
    gpuboard pull atlas lab@gpu2 gpu3=10.0.0.7
    gpuboard pull --hosts-file hosts.txt --every 10 --for 60
    """
    began = time.monotonic()
    if duration and not every:
        raise click.UsageError("--for needs --every")
    if not settings.data.is_dir():
        where = settings.data.absolute()
        raise CommandError(f"{where} is not there: start gpuboard in the folder that has it, or set GPUBOARD_DATA")
    try:
        in_consul = []
        if consul:
            in_consul = targets.read_consul_targets(
                settings.consul, settings.state, settings.data, print_command_message
            )
        in_file = targets.read_targets_file(Path(hosts_file)) if hosts_file else []
        typed = targets.parse_typed_targets(hosts)
    except targets.UnclearSshTargetsError as error:
        raise CommandError(str(error)) from None
    for group in (in_consul, in_file, typed):
        names = [target.name for target in group]
        for name in names:
            if not is_host_name(name):
                raise CommandError(f"'{name}' cannot be a host's name on the board: give one, as name=address")
            if names.count(name) > 1:
                raise CommandError(f"the name {name} is there twice")
    listed = [*in_consul, *in_file, *typed]
    if not listed:
        raise click.UsageError("name a host, or a list of them with --hosts-file or --consul")
    chosen_targets = list(
        {target.name: target for target in listed}.values()
    )  # named by hand counts before what a list says
    config = Path(ssh_config) if ssh_config else None

    def create_fetcher(target: Target) -> SnapshotFetcher:
        return HttpFetcher(target) if target.is_url else SshFetcher(target, every or DEFAULT_INTERVAL_S, limit, config)

    end = began + duration if duration else math.inf if every else began
    with closing(PullLoop(chosen_targets, create_fetcher, limit, settings.data)) as loop:
        failed = loop.run(every, began, end)
    if sys.stderr.isatty():
        counts = f"{len(chosen_targets) - len(failed)} of {len(chosen_targets)} hosts arrived"
        print_command_message(f"{counts}, in {time.monotonic() - began:.1f} s")
    if failed:
        sys.exit(1)


# How much later than its own time limit a fetcher may say why: it knows better than we do.
REPORT_GRACE_S = 1.0
# How long we wait for all connections to end.
CLOSE_TIMEOUT_S = 3.0
FetchOutcome = tuple[dict[str, bytes], list[str]]  # the files that came, and what went wrong


class PullLoop:
    """Pull from all targets; connections stay open between rounds, and a sentence about a host is printed once."""

    def __init__(
        self,
        targets: Iterable[Target],
        create_fetcher: Callable[[Target], SnapshotFetcher],
        timeout_s: float,
        data_folder: Path,
    ) -> None:
        self.targets = list(targets)
        self.create_fetcher = create_fetcher
        self.timeout_s = timeout_s
        self.data_folder = data_folder
        self.fetchers: dict[str, SnapshotFetcher] = {}
        self.pool: WorkerPool[str, FetchOutcome] = WorkerPool()
        self.failed_hosts: set[str] = set()
        self.printed: set[tuple[str, str]] = set()

    def run(self, every: int | None, began: float, end: float) -> set[str]:
        """Pull until `end`, finish the round that is under way, and return the hosts whose last round failed."""
        count = 0
        while True:
            busy = self.pool.pending  # with the last round
            for target in self.targets:
                if target.name not in busy:
                    if target.name not in self.fetchers:
                        self.fetchers[target.name] = self.create_fetcher(target)
                    task = partial(self.run_fetch, self.fetchers[target.name])
                    self.pool.add(target.name, task, self.timeout_s + REPORT_GRACE_S)
            # the next tick that is still ahead: those that were missed are not made up for
            count = max(count + 1, math.ceil((time.monotonic() - began) / every)) if every else 1
            tick = began + count * every if every else end
            is_last = every is None or tick >= end
            for name, outcome in self.pool.iterate_results(math.inf if is_last else tick):
                # time limits of libraries do not help against a byte a minute
                self.store_outcome(name, *(outcome or ({}, [f"no whole answer within {self.timeout_s:.0f} s"])))
            if is_last:
                return self.failed_hosts
            time.sleep(max(0.0, tick - time.monotonic()))

    def run_fetch(self, fetcher: SnapshotFetcher) -> FetchOutcome:
        """Fetch the files of one host, in its thread."""
        try:
            return fetcher.fetch(time.monotonic() + self.timeout_s), []
        except PullError as error:
            return {}, [str(error)]
        except Exception as error:  # a thread that dies in silence would be a host that hangs
            return {}, [f"nobody foresaw this: {type(error).__name__}: {clean_excerpt(error)}"]

    def store_outcome(self, name: str, files: dict[str, bytes], problems: list[str]) -> None:
        """Write the files that came, and print what went wrong."""
        try:
            problems += write_pulled_files(self.data_folder, name, files)
        except OSError as error:
            problems.append(f"{self.data_folder / name} cannot be written: {error.strerror}; its old files stay")
        self.failed_hosts.discard(name)
        if not problems:
            return
        self.failed_hosts.add(name)
        fetcher = self.fetchers.pop(name, None)  # it takes what did not count for known: the next round opens another
        if fetcher:
            threading.Thread(target=fetcher.close, daemon=True).start()
        sentence = "; ".join(problems)
        if (name, sentence) not in self.printed:
            print_command_message(sentence if sentence.startswith((f"{name} ", f"{name}:")) else f"{name}: {sentence}")
        self.printed.add((name, sentence))

    def close(self) -> None:
        """Close all connections at once: each takes a moment."""
        threads = [threading.Thread(target=fetcher.close, daemon=True) for fetcher in self.fetchers.values()]
        for thread in threads:
            thread.start()
        end = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
