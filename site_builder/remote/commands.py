"""`gpuboard pull`: fetch snapshots from hosts that may not push."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from site_builder.client import completion
from site_builder.core.command_options import Failure, tell, with_settings

if TYPE_CHECKING:
    from site_builder.config.settings import Settings
    from site_builder.remote.target_syntax import Target
    from site_builder.remote.worker_pool import Crew, Outcome
    from site_builder.remote.writer import Way

# What a pull by itself says about when the next one comes: cron's minute.
EVERY = 60


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=completion.hosts)
@click.option("--hosts-file", metavar="FILE", help="The hosts in a file, one a line.", shell_complete=completion.files)
@click.option("--consul", is_flag=True, help="The hosts that Consul lists.")
@click.option(
    "--limit", type=click.IntRange(2, 300), default=20, metavar="SECONDS", help="For each host.  [default: 20]"
)
@click.option("--ssh-config", metavar="FILE", help="Instead of your ~/.ssh/config.", shell_complete=completion.files)
@click.option("--every", type=click.IntRange(1, 3600), metavar="SECONDS", help="Again and again, this often.")
@click.option("--for", "duration", type=click.IntRange(1), metavar="SECONDS", help="With --every: end after so long.")
@with_settings
def pull(  # noqa: PLR0913, PLR0917 # one for each option
    settings: Settings,
    hosts: tuple[str, ...],
    hosts_file: str | None,
    consul: bool,
    limit: int,
    ssh_config: str | None,
    every: int | None,
    duration: int | None,
) -> None:
    """Fetch a snapshot of each HOST into data/, 20 hosts at a time.

    HOST is a name that ssh knows, or the address at which a host serves its files: http://atlas/spool/. With
    name=address it has another name on the board. By ssh, nothing is installed on the host. Exit 0 if all arrived,
    1 if some did not: their old files stay.

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
        raise Failure(f"{where} is not there: start gpuboard in the folder that has it, or set GPUBOARD_DATA")
    targets = chosen(settings, hosts, hosts_file, consul)
    from site_builder.remote.worker_pool import Crew  # noqa: PLC0415 # --help needs none of it

    config = Path(ssh_config) if ssh_config else None
    crew = Crew(targets, lambda target: way_of(target, every or EVERY, limit, config), limit)
    end = began + duration if duration else float("inf") if every else began
    try:
        failed = Rounds(crew, settings.data).run(every, began, end)
    finally:
        crew.close()
    if sys.stderr.isatty():
        tell(f"{len(targets) - len(failed)} of {len(targets)} hosts arrived, in {time.monotonic() - began:.1f} s")
    if failed:
        sys.exit(1)


def chosen(settings: Settings, hosts: tuple[str, ...], hosts_file: str | None, consul: bool) -> list[Target]:
    """Which hosts, by the words of the person who pulls; what is wrong with them is a Failure."""
    from site_builder.core.names import is_host  # noqa: PLC0415 # --help needs none of it
    from site_builder.remote import targets  # noqa: PLC0415

    try:
        in_consul = targets.of_consul(settings.consul, settings.state, settings.data, tell) if consul else []
        in_file = targets.of_file(Path(hosts_file)) if hosts_file else []
        typed = targets.of_words(hosts)
    except targets.NoTargets as why:
        raise Failure(str(why)) from None
    for group in (in_consul, in_file, typed):
        names = [target.name for target in group]
        for name in names:
            if not is_host(name):
                raise Failure(f"'{name}' cannot be a host's name on the board: give one, as name=address")
            if names.count(name) > 1:
                raise Failure(f"the name {name} is there twice")
    listed = [*in_consul, *in_file, *typed]
    if not listed:
        message = "name a host, or a list of them with --hosts-file or --consul"
        raise click.UsageError(message)
    return list({target.name: target for target in listed}.values())  # named by hand counts before what a list says


def way_of(target: Target, every: int, limit: int, config: Path | None) -> Way:
    """By which a host is reached; ssh is imported only where it is needed."""
    if target.is_url:
        from site_builder.remote.http_fetch import OverHttp  # noqa: PLC0415

        return OverHttp(target)
    from site_builder.remote.ssh_fetch import OverSsh  # noqa: PLC0415

    return OverSsh(target, every, limit, config)


class Rounds:
    """One round after the other; the same sentence about a host is told once."""

    def __init__(self, crew: Crew, data: Path) -> None:
        """Nothing has failed yet."""
        self.crew = crew
        self.data = data
        self.failed: set[str] = set()
        self.told: set[tuple[str, str]] = set()

    def run(self, every: int | None, began: float, end: float) -> set[str]:
        """Until the end; the hosts whose last round failed. A round that is under way at the end is waited for."""
        count = 0
        while True:
            self.crew.begin_round()
            # the next tick that is still ahead: those that were missed are not made up for
            count = max(count + 1, math.ceil((time.monotonic() - began) / every)) if every else 1
            tick = began + count * every if every else end
            last = every is None or tick >= end
            for outcome in self.crew.outcomes(float("inf") if last else tick):
                self.take(outcome)
            if last:
                return self.failed
            time.sleep(max(0.0, tick - time.monotonic()))

    def take(self, outcome: Outcome) -> None:
        """Write what came, and tell what did not."""
        from site_builder.remote import writer  # noqa: PLC0415 # --help needs none of it

        name = outcome.name
        problems = [outcome.problem] if outcome.problem else []
        try:
            problems += writer.put(self.data, name, outcome.found)
        except OSError as error:
            problems.append(f"{self.data / name} cannot be written: {error.strerror}; its old files stay")
        self.failed.discard(name)
        if not problems:
            return
        self.failed.add(name)
        self.crew.forget_way(name)  # it takes what did not count for known
        sentence = "; ".join(problems)
        if (name, sentence) not in self.told:
            tell(sentence if sentence.startswith((f"{name} ", f"{name}:")) else f"{name}: {sentence}")
        self.told.add((name, sentence))
