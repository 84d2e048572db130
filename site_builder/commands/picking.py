"""What the commands share that pick GPUs: where to look, what is wanted, and what of it can be had."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from site_builder.commands import hints
from site_builder.commands.booking import No
from site_builder.commands.options import Failure, with_loaded

if TYPE_CHECKING:
    from site_builder.decide.pick import Choice, Wanted
    from site_builder.fleet import Fleet, Host
    from site_builder.sources.conf import Loaded

SIZE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(MiB|MB|M|GiB|GB|G|)", re.IGNORECASE)
SECONDS = re.compile(r"([0-9]{1,9}) ?s")
# In MiB: what the driver tells of a card of 24 GB is some MiB less than 24 GiB, and more than 24 GB.
UNITS = {"mib": 1, "m": 1, "mb": 1e6 / 2**20, "gib": 1024, "g": 1024, "gb": 1e9 / 2**20, "": 1024}


def memory_of(_: click.Context, __: click.Parameter, value: str) -> float:
    """`20GiB`, `24GB`, `500MiB`, in MiB; a bare number is of GiB."""
    found = SIZE.fullmatch(value.strip())
    if not found:
        message = f'"{value}" is no size: write it as 20GiB or 24GB'
        raise click.BadParameter(message)
    return float(found[1]) * UNITS[found[2].lower()]


def seconds_of(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """`90s`, `30m`, `2h`, `1d12h`, in seconds."""
    from site_builder.readers import lengths  # noqa: PLC0415 # --help needs none of it

    if value is None:
        return None
    found = SECONDS.fullmatch(value.strip())
    if found and int(found[1]):
        return float(found[1])
    try:
        days, seconds = lengths.length(value)
    except lengths.Unclear as why:
        message = f'"{value}" {why}'
        raise click.BadParameter(message) from None
    return float(days * 86400 + seconds)


@contextmanager
def failing() -> Iterator[None]:
    """Where there is no fleet, one sentence and exit 2."""
    from site_builder.fleet import Failed  # noqa: PLC0415

    try:
        yield
    except Failed as why:
        raise Failure(str(why)) from None


@dataclass(frozen=True)
class Picker:
    """Looks at the fleet again and again, for somebody who wants GPUs of a kind."""

    loaded: Loaded
    wanted: Wanted
    host_name: str | None
    is_mine: Callable[[str], bool]
    look: Callable[[], Fleet]

    def found(self, everywhere: bool, here: bool = False) -> Found:
        """What can be had now: of all hosts, or of one; if that is `here`, as this machine itself counts its GPUs."""
        from site_builder import fleets  # noqa: PLC0415
        from site_builder.decide import pick  # noqa: PLC0415
        from site_builder.sources import claims  # noqa: PLC0415

        with failing():
            fleet = self.look()
            hosts = fleet.hosts if everywhere else (fleets.host_of(fleet, self.host_name, self.loaded),)
        where = fleet.where if everywhere else hosts[0].name
        if not any(one.state == "fresh" for one in hosts):
            raise Failure(f"nothing on {where} can be told" + "".join(f": {silent(one)}" for one in hosts[:1]))
        asker = pick.Asker(self.is_mine, claims.Claimed(), time.time() + fleet.ahead)
        choices = pick.available(hosts, self.wanted, asker)
        if not everywhere and (here or self.host_name is None) and fleets.kind_of(self.loaded) != "machine":
            choices = self.counted_here(choices, hosts[0])
        return Found(fleet, hosts, choices, where, pick.why_none(hosts, self.wanted, asker.taken))

    def counted_here(self, choices: list[Choice], host: Host) -> list[Choice]:
        """The same by nvidia-smi itself at this moment, by its own numbers; a container may see but some GPUs."""
        from site_builder import fleets  # noqa: PLC0415
        from site_builder.fleet import Failed  # noqa: PLC0415

        try:
            own = {gpu.uuid: gpu for gpu in fleets.of_machine(self.loaded.settings).hosts[0].gpus}
        except Failed:
            return choices  # nobody can be asked, as in many a container
        if not any(gpu.uuid in own for gpu in host.gpus):
            message = f"the GPUs of {host.name} are not those of this machine"
            raise Failure(f"{message}: name it as the board does with --host, or ask with --all")
        there = [(one, own[one.gpu.uuid]) for one in choices if one.gpu.uuid in own]
        return [one._replace(number=gpu.index) for one, gpu in there if gpu.state == "free" and gpu.index is not None]

    def refuse(self, found: Found, least: int) -> No:
        """That there is not enough, and why."""
        what = self.wanted.model or ("GPU" if least == 1 else "GPUs")
        size = f" with {self.wanted.memory / 1024:.3g} GiB free" if self.wanted.memory else ""
        if len(found.choices) >= least:
            return No(f"no host of {found.where} has {least} {what}{size} that can be had: {found.why}")
        if found.choices:
            return No(f"{len(found.choices)} of the {least} {what}{size} can be had on {found.where}: {found.why}")
        return No(f"no {what}{size} can be had on {found.where}: {found.why}")


class Found(NamedTuple):
    """A look at the fleet: what can be had, where, and why no more."""

    fleet: Fleet
    hosts: Sequence[Host]
    choices: list[Choice]
    where: str
    why: str


def silent(host: Host) -> str:
    """Why a host tells nothing."""
    return f"{host.name} is {host.state}: {host.reason}"


def printed(choices: Iterable[Choice], everywhere: bool) -> str:
    """`atlas:2 hydra:3`, or the numbers of one host as CUDA takes them."""
    if everywhere:
        return " ".join(f"{one.host.name}:{one.gpu.index}" for one in choices)
    return ",".join(str(one.number) for one in choices)


def check(picker: Picker, everywhere: bool) -> None:
    """Refuse what does not go together."""
    if everywhere and picker.host_name:
        message = "say --all or --host, not both"
        raise click.UsageError(message)


def with_picker(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a `picker`, and add the options that say what is wanted and where to look."""

    @wraps(command)
    def run(
        loaded: Loaded,
        model: str,
        min_memory: float,
        host: str | None,
        name: str | None,
        **rest: Any,  # noqa: ANN401
    ) -> None:
        from site_builder import fleets  # noqa: PLC0415 # --help needs none of it
        from site_builder.decide.pick import Wanted  # noqa: PLC0415
        from site_builder.model import Shown  # noqa: PLC0415

        # who may read the folder may know whose a booking is: without names, one's own would be nobody's
        named = replace(loaded, settings=replace(loaded.settings, shown=Shown()))
        with failing():
            look = fleets.open_fleet(named)
        command(picker=Picker(loaded, Wanted(model, min_memory), host, fleets.whose(loaded, name), look), **rest)

    found = with_loaded(run)
    for option in (
        click.option("--url", metavar="URL", help="The board, if it is on another machine."),
        click.option("--name", metavar="LOGIN", help="Whose bookings count as free.  [default: you]"),
        click.option(
            "--host",
            metavar="HOST",
            shell_complete=hints.hosts,
            help="The host, as the board calls it.  [default: this machine]",
        ),
        click.option(
            "--min-memory", callback=memory_of, default="0", metavar="SIZE", help="So much of it free: 20GiB, 24GB."
        ),
        click.option("--model", default="", metavar="TEXT", help="Of this model, such as A100."),
    ):
        found = option(found)
    return found
