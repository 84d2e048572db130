"""What the commands share that pick GPUs: where to look, what is wanted, and what of it can be had."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from site_builder.bookings.command_common import No
from site_builder.client import completion
from site_builder.client.model import VISIBLE
from site_builder.core.command_options import failing, with_loaded

if TYPE_CHECKING:
    from site_builder.client.picker import Found, Picker
    from site_builder.config.conf_file import Loaded
    from site_builder.fleet.select import Choice, Wish

SIZE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(MiB|MB|M|GiB|GB|G|)", re.IGNORECASE)
SECONDS = re.compile(r"([0-9]{1,9}) ?s")
ONE_INSTANCE = "a process can use one instance, and no other GPU with it"
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
    from site_builder.core.timeparse import durations  # noqa: PLC0415 # --help needs none of it

    if value is None:
        return None
    found = SECONDS.fullmatch(value.strip())
    if found and int(found[1]):
        return float(found[1])
    try:
        days, seconds = durations.length(value)
    except durations.Unclear as why:
        message = f'"{value}" {why}'
        raise click.BadParameter(message) from None
    return float(days * 86400 + seconds)


def refuse(found: Found, wish: Wish, least: int) -> No:
    """That there is not enough, and why."""
    what = wish.model or ("GPU" if least == 1 else "GPUs")
    size = f" with {wish.memory / 1024:.3g} GiB free" if wish.memory else ""
    if len(found.choices) >= least:
        return No(f"no host of {found.where} has {least} {what}{size} that can be had: {found.why}")
    if found.choices:
        return No(f"{len(found.choices)} of the {least} {what}{size} can be had on {found.where}: {found.why}")
    return No(f"no {what}{size} can be had on {found.where}: {found.why}")


def for_cuda(found: Found, wish: Wish, everywhere: bool) -> Found:
    """What can be printed: of one host only what one process can use."""
    from site_builder.fleet import select  # noqa: PLC0415 # --help needs none of it

    if everywhere or not any(one.gpu.of for one in found.choices):
        return found
    why = f"{found.why}; {ONE_INSTANCE}"
    return found._replace(choices=select.for_one_process(found.choices, wish), why=why)


def printed(choices: Iterable[Choice], everywhere: bool) -> str:
    """`atlas:2 hydra:amd0`, or the numbers of one host as CUDA or HIP takes them."""
    if everywhere:
        return " ".join(f"{one.host.name}:{one.gpu.label}" for one in choices)
    return ",".join(str(one.number) for one in choices)


def check(picker: Picker, everywhere: bool) -> None:
    """Refuse what does not go together."""
    if everywhere and picker.host:
        message = "say --all or --host, not both"
        raise click.UsageError(message)


def with_picker(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a `picker`, and add the options that say what is wanted and where to look."""

    @wraps(command)
    def run(  # noqa: PLR0913, PLR0917 # one for each option
        loaded: Loaded,
        model: str,
        min_memory: float,
        host: str | None,
        name: str | None,
        vendor: str | None,
        **rest: Any,  # noqa: ANN401
    ) -> None:
        from site_builder.client.picker import Picker  # noqa: PLC0415
        from site_builder.fleet.select import Wish  # noqa: PLC0415 # --help needs none of it

        with failing():
            picker = Picker(loaded, Wish(model, min_memory, vendor), host, name)
        command(picker=picker, **rest)

    found = with_loaded(run)
    for option in (
        click.option("--url", metavar="URL", help="The board, if it is on another machine."),
        click.option("--name", metavar="LOGIN", help="Whose bookings count as free.  [default: you]"),
        click.option(
            "--host",
            metavar="HOST",
            shell_complete=completion.hosts,
            help="The host, as the board calls it.  [default: this machine]",
        ),
        click.option(
            "--min-memory", callback=memory_of, default="0", metavar="SIZE", help="So much of it free: 20GiB, 24GB."
        ),
        click.option(
            "--vendor",
            type=click.Choice([*VISIBLE]),
            help="Of this maker.  [default: NVIDIA where the host has any of its GPUs, else AMD]",
        ),
        click.option("--model", default="", metavar="TEXT", help="Of this model, such as A100."),
    ):
        found = option(found)
    return found
