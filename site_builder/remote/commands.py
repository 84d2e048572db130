"""`gpuboard pull`: fetch snapshots from hosts that may not push."""

from __future__ import annotations

import math
import sys
import time
from contextlib import closing
from pathlib import Path

import click

from site_builder.config.settings import Settings
from site_builder.core.command_options import CommandError, file_option, print_command_message, with_settings
from site_builder.core.names import is_host_name
from site_builder.remote import targets
from site_builder.remote.fetch import PullLoop
from site_builder.snapshots.completion import complete_hosts

# What a pull by itself says about when the next one comes: cron's minute.
DEFAULT_INTERVAL_S = 60


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@file_option("--hosts-file", help="Read hosts from a file, one per line.")
@click.option("--consul", is_flag=True, help="Use the hosts in Consul.")
@click.option(
    "--limit", type=click.IntRange(2, 300), default=20, metavar="SECONDS", help="Time limit per host.  [default: 20]"
)
@file_option("--ssh-config", help="ssh configuration.  [default: ~/.ssh/config]")
@click.option("--every", type=click.IntRange(1, 3600), metavar="SECONDS", help="Repeat at this interval.")
@click.option(
    "--for", "duration", type=click.IntRange(1), metavar="SECONDS", help="Stop after this time, with --every."
)
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

    HOST is a name that ssh knows, or an address at which a host serves its files: http://atlas/spool/. NAME=HOST
    sets its name on the board. With ssh, nothing is installed on the host. 20 hosts are fetched at a time. Exit 1
    if some failed: their old files stay.

    \b
    gpuboard pull atlas lab@gpu2 gpu3=10.0.0.7
    gpuboard pull --hosts-file hosts.txt --every 10 --for 60
    """
    began = time.monotonic()
    if duration and not every:
        raise click.UsageError("--for needs --every")
    if not settings.data.is_dir():
        where = settings.data.absolute()
        raise CommandError(
            f"{where} does not exist: start gpuboard in the folder that contains it, or set GPUBOARD_DATA"
        )
    try:
        access, state, data = settings.consul, settings.state, settings.data
        in_consul = targets.read_consul_targets(access, state, data, print_command_message) if consul else []
        in_file = targets.read_targets_file(Path(hosts_file)) if hosts_file else []
        typed = targets.parse_typed_targets(hosts)
    except targets.UnclearSshTargetsError as error:
        raise CommandError(str(error)) from None
    for group in (in_consul, in_file, typed):
        names = [target.name for target in group]
        for name in names:
            if not is_host_name(name):
                raise CommandError(f"'{name}' is not a valid name on the board: use name=address")
            if names.count(name) > 1:
                raise CommandError(f"the name {name} is given twice")
    listed = [*in_consul, *in_file, *typed]
    if not listed:
        raise click.UsageError("name hosts, or list them with --hosts-file or --consul")
    # named by hand counts before what a list says
    chosen_targets = list({target.name: target for target in listed}.values())
    end = began + duration if duration else math.inf if every else began
    config = Path(ssh_config) if ssh_config else None
    with closing(PullLoop(chosen_targets, every or DEFAULT_INTERVAL_S, limit, settings.data, config)) as loop:
        failed = loop.run(every, began, end)
    if sys.stderr.isatty():
        counts = f"{len(chosen_targets) - len(failed)} of {len(chosen_targets)} hosts fetched"
        print_command_message(f"{counts}, in {time.monotonic() - began:.1f} s")
    if failed:
        sys.exit(1)
