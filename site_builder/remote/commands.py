"""`gpuboard pull`: fetch snapshots from hosts that may not push."""

from __future__ import annotations

import math
import sys
import time
from contextlib import closing
from pathlib import Path

import click

from site_builder.config.settings import Settings
from site_builder.core.command_options import CommandError, complete_files, print_command_message, with_settings
from site_builder.core.names import is_host_name
from site_builder.remote import targets
from site_builder.remote.fetch import HttpFetcher, SnapshotFetcher, SshFetcher
from site_builder.remote.pull_loop import PullLoop
from site_builder.remote.targets import Target
from site_builder.snapshots.completion import complete_hosts

# What a pull by itself says about when the next one comes: cron's minute.
DEFAULT_INTERVAL_S = 60


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@click.option("--hosts-file", metavar="FILE", help="The hosts in a file, one a line.", shell_complete=complete_files)
@click.option("--consul", is_flag=True, help="The hosts that Consul lists.")
@click.option(
    "--limit", type=click.IntRange(2, 300), default=20, metavar="SECONDS", help="For each host.  [default: 20]"
)
@click.option("--ssh-config", metavar="FILE", help="Instead of your ~/.ssh/config.", shell_complete=complete_files)
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
        message = "--for needs --every"
        raise click.UsageError(message)
    if not settings.data.is_dir():
        where = settings.data.absolute()
        raise CommandError(f"{where} is not there: start gpuboard in the folder that has it, or set GPUBOARD_DATA")
    chosen_targets = choose_pull_targets(settings, hosts, hosts_file, consul)
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


def choose_pull_targets(
    settings: Settings, hosts: tuple[str, ...], hosts_file: str | None, consul: bool
) -> list[Target]:
    try:
        in_consul = []
        if consul:
            in_consul = targets.read_consul_targets(
                settings.consul, settings.state, settings.data, print_command_message
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
