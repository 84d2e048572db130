"""`gpuboard deploy`: gpuboard on the GPU hosts, from the web host, all at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from site_builder.client import completion
from site_builder.core.command_options import CommandError, print_message, with_settings

if TYPE_CHECKING:
    from site_builder.config.settings import Settings
    from site_builder.deploy.host_steps import DeployJob, DeployPlan
    from site_builder.deploy.web_host import WebHost
    from site_builder.remote.targets import Target

WEB_CONNECT_TIMEOUT_S = 40.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
UNFINISHED_MESSAGES = {
    "deploy": "not done; once the reason is mended, call it again",
    "check": "not up to date",
    "remove": "not removed",
}


@dataclass(frozen=True)
class DeployOptions:
    """What somebody typed."""

    hosts: tuple[str, ...]
    consul: bool
    hosts_file: str | None
    name: str | None
    check: bool
    remove: bool
    dest: str | None
    web: str | None
    ssh_config: str | None

    @property
    def action(self) -> str:
        """In one word."""
        return "check" if self.check else "remove" if self.remove else "deploy"

    @property
    def config_file(self) -> Path | None:
        """Another ssh configuration."""
        return Path(self.ssh_config) if self.ssh_config else None


@click.command()
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@click.option("--consul", is_flag=True, help="The hosts that Consul lists.")
@click.option(
    "--hosts-file",
    metavar="FILE",
    help="The hosts of this file: hosts.txt's lines, or a HOST each.",
    shell_complete=completion.complete_files,
)
@click.option("--name", metavar="NAME", help="What the one HOST is called on the board.")
@click.option("--check", is_flag=True, help="Change nothing; tell how each host is, and what would be done.")
@click.option("--remove", is_flag=True, help="Take it all back from the hosts; their data stays.")
@click.option("--dest", metavar="ssh://USER@WEB", help="Where the hosts find the web host, if not by this connection.")
@click.option("--web", metavar="USER@WEB", help="The web host, where this is another machine.")
@click.option(
    "--ssh-config",
    metavar="FILE",
    help="Another ssh configuration than your own.",
    shell_complete=completion.complete_files,
)
@click.option("--json", "as_json", is_flag=True, help="The results as JSON, for programs.")
@with_settings
def deploy(settings: Settings, hosts: tuple[str, ...], as_json: bool, **options: Any) -> None:  # noqa: ANN401 # those of Chosen
    """Install or upgrade gpuboard on each HOST over ssh.

    It works on 20 hosts at a time. HOST is what you would type after ssh; NAME=HOST also says what it is called on the board, `hostname -s` otherwise.
    Your ssh configuration, agent, jump hosts and known_hosts count, and nothing is asked. Each host makes a key of its
    own, which can do one thing on the web host: bring that host's snapshots. Call this on the web host, as the user
    who builds the board. Exit 1 if some host is not done; call it again, and it is finished.

    \b
    gpuboard deploy gpu01 gpu02 admin@gpu03
    gpuboard deploy --hosts-file hosts.txt
    gpuboard deploy --consul --check
    gpuboard deploy --remove gpu02
    """
    chosen = DeployOptions(hosts=hosts, **options)
    targets = choose_deploy_targets(settings, chosen)
    with open_web_host(settings, chosen) as web, interrupt_on_signals():
        jobs, order = prepare_deploy(targets, chosen, web)
        run_deploy(jobs, order, as_json)
    print_deploy_report(jobs, chosen, as_json)


def choose_deploy_targets(settings: Settings, chosen: DeployOptions) -> list[Target]:
    """Which hosts are meant; by one way alone."""
    from site_builder.core.names import is_host_name  # noqa: PLC0415 # --help needs none of it
    from site_builder.remote import targets  # noqa: PLC0415

    if bool(chosen.hosts) + chosen.consul + (chosen.hosts_file is not None) != 1:
        message = "name the hosts, or give --consul, or --hosts-file FILE"
        raise click.UsageError(message)
    if chosen.check and chosen.remove:
        message = "--check and --remove are two things: choose one"
        raise click.UsageError(message)
    if chosen.name is not None and len(chosen.hosts) != 1:
        message = "--name is for one HOST; for several: NAME=HOST"
        raise click.UsageError(message)
    if chosen.name is not None and not is_host_name(chosen.name):
        raise CommandError(f"'{chosen.name}' cannot be a host's name on the board")
    words = [f"{chosen.name}={host}" for host in chosen.hosts] if chosen.name is not None else chosen.hosts
    try:
        if chosen.consul:
            found = targets.read_consul_targets(settings.consul, settings.state, settings.data)
        else:
            found = (
                targets.read_targets_file(Path(chosen.hosts_file))
                if chosen.hosts_file
                else targets.parse_typed_targets(words)
            )
    except targets.UnclearTargetsError as why:
        raise CommandError(str(why)) from None
    for target in found:
        if target.is_url:
            raise CommandError(f"{target.name} is at a URL, and deploy goes by ssh: `gpuboard pull` is for such hosts")
        if [other.address for other in found].count(target.address) > 1:
            raise CommandError(f"the host {target.address} is there twice")
    return found


@contextmanager
def open_web_host(settings: Settings, chosen: DeployOptions) -> Iterator[WebHost]:
    """This machine, or the one that --web names, while it is needed."""
    from site_builder.deploy import web_host  # noqa: PLC0415 # --help needs none of it
    from site_builder.remote.ssh import connect_ssh  # noqa: PLC0415
    from site_builder.remote.ssh_config import SshError  # noqa: PLC0415

    if chosen.web is None:
        yield web_host.open_local_web_host(settings.data)
        return
    try:
        connection = connect_ssh(chosen.web, WEB_CONNECT_TIMEOUT_S, chosen.config_file)
    except SshError as why:
        raise CommandError(str(why)) from None
    with connection:
        yield web_host.open_remote_web_host(connection)


def prepare_deploy(targets: list[Target], chosen: DeployOptions, web: WebHost) -> tuple[list[DeployJob], DeployPlan]:
    """What is to be done, and all that is the same for every host."""
    from site_builder.deploy import host_steps  # noqa: PLC0415 # --help needs none of it
    from site_builder.deploy.host_steps import DeployJob, DeployPlan, HostDeployError, build_known_hosts_lines  # noqa: PLC0415
    from site_builder.deploy.web_host import WebHostError  # noqa: PLC0415

    try:
        if chosen.dest is not None:
            build_known_hosts_lines(chosen.dest, [])
        side = web.read_state()
    except (HostDeployError, WebHostError) as why:
        raise CommandError(str(why)) from None
    if not web.host_keys:
        message = (
            "no key of this machine's sshd is in /etc/ssh: is this the web host? If it is another, give --web USER@WEB"
        )
        raise CommandError(message)
    order = DeployPlan(
        web,
        side,
        host_steps.build_install_program(),
        host_steps.read_inspect_program(),
        host_steps.compute_scripts_digest(),
        action=chosen.action,
    )
    order.destination, order.config_file = chosen.dest, chosen.config_file
    return [DeployJob(target) for target in targets], order


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """What a closed terminal or a kill sends ends us as Ctrl-C does; a second one changes nothing."""

    def end(*_: object) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def can_redraw_terminal() -> bool:
    """Whether a table can be drawn anew here, again and again."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def run_deploy(jobs: list[DeployJob], order: DeployPlan, as_json: bool) -> None:
    """Do it, and show how it goes on."""
    from site_builder.deploy import runner  # noqa: PLC0415 # --help needs none of it
    from site_builder.deploy.progress import LineDisplay, LiveDisplay, ProgressDisplay  # noqa: PLC0415

    kind: type[ProgressDisplay] = ProgressDisplay if as_json else LiveDisplay if can_redraw_terminal() else LineDisplay
    runner.run_jobs(jobs, order, kind(jobs, order.action == "check"))


def print_deploy_report(jobs: list[DeployJob], chosen: DeployOptions, as_json: bool) -> None:
    """Each host that is not done, by name, with the reason and what helps; exit 1 if there is one."""
    from site_builder.deploy import progress  # noqa: PLC0415 # --help needs none of it
    from site_builder.deploy.host_steps import GOOD_RESULTS, NOT_INSTALLED, REMOVED, STOPPED  # noqa: PLC0415

    if as_json:
        click.echo(progress.jobs_to_json(jobs))
    elif can_redraw_terminal():
        for job in jobs:
            if job.reason and job.result != STOPPED:
                click.echo(f"{job.display_name}: {job.reason}")
    left = [job for job in jobs if job.result not in GOOD_RESULTS]
    if left:
        print_message(f"{len(left)} of {len(jobs)} hosts: {UNFINISHED_MESSAGES[chosen.action]}")
        sys.exit(1)
    if chosen.remove and any(job.result in (REMOVED, NOT_INSTALLED) for job in jobs):
        print_message(
            "what the hosts sent stays in data/, and on the board as down; `gpuboard forget HOST` takes it off"
        )
