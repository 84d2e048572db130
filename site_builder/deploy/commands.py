"""`gpuboard deploy`: gpuboard on the GPU hosts, from the web host, all at once."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from site_builder.config.settings import Settings
from site_builder.core.command_options import CommandError, file_option, with_settings
from site_builder.core.names import is_host_name
from site_builder.remote import targets


@click.command()
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@click.option("--consul", is_flag=True, help="Use the hosts in Consul.")
@file_option("--hosts-file", help="Read hosts from a file: hosts.txt, or one HOST per line.")
@click.option("--name", metavar="NAME", help="Name of the host on the board, for a single HOST.")
@click.option("--check", is_flag=True, help="Dry run: show what would be done on each host.")
@click.option("--remove", is_flag=True, help="Uninstall from the hosts; their data stays.")
@click.option("--dest", metavar="ssh://USER@WEB", help="Address of the web host as seen by the hosts.")
@click.option("--web", metavar="USER@WEB", help="Web host, if it is not this machine.")
@file_option("--ssh-config", help="ssh configuration.  [default: ~/.ssh/config]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_settings
def deploy(
    settings: Settings,
    hosts: tuple[str, ...],
    consul: bool,
    hosts_file: str | None,
    name: str | None,
    check: bool,
    remove: bool,
    dest: str | None,
    web: str | None,
    ssh_config: str | None,
    as_json: bool,
) -> None:
    """Install or upgrade gpuboard on each HOST over ssh.

    HOST is what you would type after ssh; NAME=HOST also sets its name on the board (default: `hostname -s`). Your
    ssh configuration, agent, jump hosts and known_hosts are used, and nothing is asked; 20 hosts are done at a
    time. Each host gets its own key, which can only send that host's snapshots to the web host.

    Run this on the web host, as the user who builds the board. Exit 1 if a host failed: run it again to finish.

    \b
    gpuboard deploy gpu01 gpu02 admin@gpu03
    gpuboard deploy --hosts-file hosts.txt
    gpuboard deploy --consul --check
    gpuboard deploy --remove gpu02
    """
    if bool(hosts) + consul + (hosts_file is not None) != 1:
        raise click.UsageError("name the hosts, or use --consul or --hosts-file FILE")
    if check and remove:
        raise click.UsageError("--check and --remove cannot be combined")
    if name is not None and len(hosts) != 1:
        raise click.UsageError("--name is for one HOST; for several: NAME=HOST")
    if name is not None and not is_host_name(name):
        raise CommandError(f"'{name}' is not a valid name on the board")
    try:
        if consul:
            chosen_targets = targets.read_consul_targets(settings.consul, settings.state, settings.data)
        elif hosts_file:
            chosen_targets = targets.read_targets_file(Path(hosts_file))
        else:
            chosen_targets = targets.parse_typed_targets(hosts if name is None else [f"{name}={hosts[0]}"])
    except targets.UnclearSshTargetsError as error:
        raise CommandError(str(error)) from None
    for target in chosen_targets:
        if target.is_url:
            raise CommandError(f"{target.name} is a URL, but deploy uses ssh: use `gpuboard pull` for such hosts")
        if [listed.address for listed in chosen_targets].count(target.address) > 1:
            raise CommandError(f"the host {target.address} is given twice")
    from site_builder.deploy import runner  # noqa: PLC0415 # imports paramiko, which is slow

    action = "check" if check else "remove" if remove else "deploy"
    config_file = Path(ssh_config) if ssh_config else None
    if not runner.deploy_hosts(settings.data, chosen_targets, action, dest, web, config_file, as_json):
        sys.exit(1)
