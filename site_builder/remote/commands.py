"""`gpuboard pull`: fetch snapshots from hosts that may not push."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import click

from site_builder.config.settings import Settings
from site_builder.core import command_options
from site_builder.core.command_options import CommandError, print_message, with_settings
from site_builder.core.names import is_host_name
from site_builder.remote import targets
from site_builder.remote.fetch import HttpFetcher, SnapshotFetcher, SshFetcher, write_pulled_files
from site_builder.remote.targets import Target
from site_builder.remote.worker_pool import FetchOutcome, FetchPool
from site_builder.snapshots.completion import complete_hosts

# What a pull by itself says about when the next one comes: cron's minute.
DEFAULT_INTERVAL_S = 60


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@click.option(
    "--hosts-file",
    metavar="FILE",
    help="The hosts in a file, one a line.",
    shell_complete=command_options.complete_files,
)
@click.option("--consul", is_flag=True, help="The hosts that Consul lists.")
@click.option(
    "--limit", type=click.IntRange(2, 300), default=20, metavar="SECONDS", help="For each host.  [default: 20]"
)
@click.option(
    "--ssh-config", metavar="FILE", help="Instead of your ~/.ssh/config.", shell_complete=command_options.complete_files
)
@click.option("--every", type=click.IntRange(1, 3600), metavar="SECONDS", help="Again and again, this often.")
@click.option("--for", "duration", type=click.IntRange(1), metavar="SECONDS", help="With --every: end after so long.")
@with_settings
def pull(  # one for each option
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
        message = "--for needs --every"
        raise click.UsageError(message)
    if not settings.data.is_dir():
        where = settings.data.absolute()
        raise CommandError(f"{where} is not there: start gpuboard in the folder that has it, or set GPUBOARD_DATA")
    chosen_targets = choose_pull_targets(settings, hosts, hosts_file, consul)
    config = Path(ssh_config) if ssh_config else None
    pool = FetchPool(
        chosen_targets, lambda target: create_fetcher(target, every or DEFAULT_INTERVAL_S, limit, config), limit
    )
    end = began + duration if duration else float("inf") if every else began
    try:
        failed = PullLoop(pool, settings.data).run(every, began, end)
    finally:
        pool.close()
    if sys.stderr.isatty():
        print_message(
            f"{len(chosen_targets) - len(failed)} of {len(chosen_targets)} hosts arrived, "
            f"in {time.monotonic() - began:.1f} s"
        )
    if failed:
        sys.exit(1)


def choose_pull_targets(
    settings: Settings, hosts: tuple[str, ...], hosts_file: str | None, consul: bool
) -> list[Target]:
    try:
        in_consul = (
            targets.read_consul_targets(settings.consul, settings.state, settings.data, print_message) if consul else []
        )
        in_file = targets.read_targets_file(Path(hosts_file)) if hosts_file else []
        typed = targets.parse_typed_targets(hosts)
    except targets.UnclearTargetsError as error:
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
        message = "name a host, or a list of them with --hosts-file or --consul"
        raise click.UsageError(message)
    return list({target.name: target for target in listed}.values())  # named by hand counts before what a list says


def create_fetcher(target: Target, every: int, limit: int, config: Path | None) -> SnapshotFetcher:
    return HttpFetcher(target) if target.is_url else SshFetcher(target, every, limit, config)


class PullLoop:
    """Pull round after round, and print the same sentence about a host only once."""

    def __init__(self, pool: FetchPool, data: Path) -> None:
        self.pool = pool
        self.data_folder = data
        self.failed_hosts: set[str] = set()
        self.printed: set[tuple[str, str]] = set()

    def run(self, every: int | None, began: float, end: float) -> set[str]:
        """Pull until `end`, finish the round that is under way, and return the hosts whose last round failed."""
        count = 0
        while True:
            self.pool.start_round()
            # the next tick that is still ahead: those that were missed are not made up for
            count = max(count + 1, math.ceil((time.monotonic() - began) / every)) if every else 1
            tick = began + count * every if every else end
            last = every is None or tick >= end
            for outcome in self.pool.iterate_outcomes(float("inf") if last else tick):
                self.store_outcome(outcome)
            if last:
                return self.failed_hosts
            time.sleep(max(0.0, tick - time.monotonic()))

    def store_outcome(self, outcome: FetchOutcome) -> None:
        """Write the files that came, and print what went wrong."""
        name = outcome.host
        problems = [outcome.problem] if outcome.problem else []
        try:
            problems += write_pulled_files(self.data_folder, name, outcome.files)
        except OSError as error:
            problems.append(f"{self.data_folder / name} cannot be written: {error.strerror}; its old files stay")
        self.failed_hosts.discard(name)
        if not problems:
            return
        self.failed_hosts.add(name)
        self.pool.drop_fetcher(name)  # it takes what did not count for known
        sentence = "; ".join(problems)
        if (name, sentence) not in self.printed:
            print_message(sentence if sentence.startswith((f"{name} ", f"{name}:")) else f"{name}: {sentence}")
        self.printed.add((name, sentence))
