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
from site_builder.core.command_options import Failure, tell, with_settings

if TYPE_CHECKING:
    from site_builder.config.settings import Settings
    from site_builder.deploy.job import Job, Order
    from site_builder.deploy.web_side import Web
    from site_builder.remote.target_syntax import Target

WEB_LIMIT = 40.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEFT = {
    "deploy": "not done; once the reason is mended, call it again",
    "check": "not up to date",
    "remove": "not removed",
}


@dataclass(frozen=True)
class Chosen:
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
    def verb(self) -> str:
        """In one word."""
        return "check" if self.check else "remove" if self.remove else "deploy"

    @property
    def config(self) -> Path | None:
        """Another ssh configuration."""
        return Path(self.ssh_config) if self.ssh_config else None


@click.command()
@click.argument("hosts", metavar="[HOST]...", nargs=-1)
@click.option("--consul", is_flag=True, help="The hosts that Consul lists.")
@click.option(
    "--hosts-file",
    metavar="FILE",
    help="The hosts of this file: hosts.txt's lines, or a HOST each.",
    shell_complete=completion.files,
)
@click.option("--name", metavar="NAME", help="What the one HOST is called on the board.")
@click.option("--check", is_flag=True, help="Change nothing; tell how each host is, and what would be done.")
@click.option("--remove", is_flag=True, help="Take it all back from the hosts; their data stays.")
@click.option("--dest", metavar="ssh://USER@WEB", help="Where the hosts find the web host, if not by this connection.")
@click.option("--web", metavar="USER@WEB", help="The web host, where this is another machine.")
@click.option(
    "--ssh-config", metavar="FILE", help="Another ssh configuration than your own.", shell_complete=completion.files
)
@click.option("--json", "as_json", is_flag=True, help="The results as JSON, for programs.")
@with_settings
def deploy(settings: Settings, hosts: tuple[str, ...], as_json: bool, **options: Any) -> None:  # noqa: ANN401 # those of Chosen
    """Put gpuboard on each HOST, or bring it up to date there, 20 at a time.

    HOST is what you would type after ssh; NAME=HOST also says what it is called on the board, `hostname -s` otherwise.
    Your ssh configuration, agent, jump hosts and known_hosts count, and nothing is asked. Each host makes a key of its
    own, which can do one thing on the web host: bring that host's snapshots. Call this on the web host, as the user
    who builds the board. Exit 1 if some host is not done; call it again, and it is finished.

    \b
    gpuboard deploy gpu01 gpu02 admin@gpu03
    gpuboard deploy --hosts-file hosts.txt
    gpuboard deploy --consul --check
    gpuboard deploy --remove gpu02
    """
    chosen = Chosen(hosts=hosts, **options)
    targets = targets_of(settings, chosen)
    with web_side(settings, chosen) as web, ended_by_any_signal():
        jobs, order = prepared(targets, chosen, web)
        carry_out(jobs, order, as_json)
    report(jobs, chosen, as_json)


def targets_of(settings: Settings, chosen: Chosen) -> list[Target]:
    """Which hosts are meant; by one way alone."""
    from site_builder.core.names import is_host  # noqa: PLC0415 # --help needs none of it
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
    if chosen.name is not None and not is_host(chosen.name):
        raise Failure(f"'{chosen.name}' cannot be a host's name on the board")
    words = [f"{chosen.name}={host}" for host in chosen.hosts] if chosen.name is not None else chosen.hosts
    try:
        if chosen.consul:
            found = targets.of_consul(settings.consul, settings.state, settings.data)
        else:
            found = targets.of_file(Path(chosen.hosts_file)) if chosen.hosts_file else targets.of_words(words)
    except targets.NoTargets as why:
        raise Failure(str(why)) from None
    for target in found:
        if target.is_url:
            raise Failure(f"{target.name} is at a URL, and deploy goes by ssh: `gpuboard pull` is for such hosts")
        if [other.address for other in found].count(target.address) > 1:
            raise Failure(f"the host {target.address} is there twice")
    return found


@contextmanager
def web_side(settings: Settings, chosen: Chosen) -> Iterator[Web]:
    """This machine, or the one that --web names, while it is needed."""
    from site_builder.deploy import web_side as deploy_web_side  # noqa: PLC0415 # --help needs none of it
    from site_builder.remote.ssh import SshError, connect  # noqa: PLC0415

    if chosen.web is None:
        yield deploy_web_side.this_machine(settings.data)
        return
    try:
        connection = connect(chosen.web, WEB_LIMIT, chosen.config)
    except SshError as why:
        raise Failure(str(why)) from None
    with connection:
        yield deploy_web_side.over_ssh(connection)


def prepared(targets: list[Target], chosen: Chosen, web: Web) -> tuple[list[Job], Order]:
    """What is to be done, and all that is the same for every host."""
    from site_builder.deploy import package  # noqa: PLC0415 # --help needs none of it
    from site_builder.deploy.job import HostFailed, Job, Order, known_lines  # noqa: PLC0415
    from site_builder.deploy.web_side import WebFailed  # noqa: PLC0415

    try:
        if chosen.dest is not None:
            known_lines(chosen.dest, [])
        side = web.look()
    except (HostFailed, WebFailed) as why:
        raise Failure(str(why)) from None
    if not web.keys:
        message = (
            "no key of this machine's sshd is in /etc/ssh: is this the web host? If it is another, give --web USER@WEB"
        )
        raise Failure(message)
    order = Order(web, side, package.packed(), package.look_program(), package.digest(), verb=chosen.verb)
    order.dest, order.config = chosen.dest, chosen.config
    return [Job(target) for target in targets], order


@contextmanager
def ended_by_any_signal() -> Iterator[None]:
    """What a closed terminal or a kill sends ends us as Ctrl-C does; a second one changes nothing."""

    def end(*_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def lives() -> bool:
    """Whether a table can be drawn anew here, again and again."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def carry_out(jobs: list[Job], order: Order, as_json: bool) -> None:
    """Do it, and show how it goes on."""
    from site_builder.deploy import workers  # noqa: PLC0415 # --help needs none of it
    from site_builder.deploy.table import Lines, LiveTable, Table  # noqa: PLC0415

    kind: type[Table] = Table if as_json else LiveTable if lives() else Lines
    workers.run(jobs, order, kind(jobs, order.verb == "check"))


def report(jobs: list[Job], chosen: Chosen, as_json: bool) -> None:
    """Each host that is not done, by name, with the reason and what helps; exit 1 if there is one."""
    from site_builder.deploy import table  # noqa: PLC0415 # --help needs none of it
    from site_builder.deploy.job import ABSENT, GOOD, REMOVED, STOPPED  # noqa: PLC0415

    if as_json:
        click.echo(table.as_json(jobs))
    elif lives():
        for job in jobs:
            if job.why and job.result != STOPPED:
                click.echo(f"{job.shown}: {job.why}")
    left = [job for job in jobs if job.result not in GOOD]
    if left:
        tell(f"{len(left)} of {len(jobs)} hosts: {LEFT[chosen.verb]}")
        sys.exit(1)
    if chosen.remove and any(job.result in (REMOVED, ABSENT) for job in jobs):
        tell("what the hosts sent stays in data/, and on the board as down; `gpuboard forget HOST` takes it off")
