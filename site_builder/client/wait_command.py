"""`gpuboard wait`: until GPUs can be had."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from site_builder.client.command_common import check, printed, refuse, seconds_of, with_picker
from site_builder.core.command_options import Failure, failing, tell

if TYPE_CHECKING:
    from site_builder.client.picker import Found, Picker
    from site_builder.fleet.select import Choice, Wish

COUNT = click.IntRange(1, 1024)
EVERY = 10


@click.command()
@click.option("--gpus", "count", type=COUNT, default=1, metavar="N", help="So many of one host.  [default: 1]")
@click.option("--all", "everywhere", is_flag=True, help="Of any host.")
@click.option("--timeout", callback=seconds_of, metavar="LENGTH", help="Give up after so long, such as 2h: exit 1.")
@click.option("--every", type=click.IntRange(1, 3600), default=EVERY, metavar="SECONDS", help="Look this often.")
@with_picker
def wait(picker: Picker, count: int, everywhere: bool, timeout: float | None, every: int) -> None:
    """Wait until GPUs can be had, and print them as `gpuboard available` does.

    Nothing is booked: who is faster has them. `gpuboard run --wait` takes them at once.

    \b
    gpuboard wait --gpus 2 --model A100 && python train.py
    gpuboard wait --all --min-memory 40GiB --timeout 8h
    """
    check(picker, everywhere)
    found = until_found(lambda: picker.found(everywhere), picker.wish, count, Patience(timeout, every))
    click.echo(printed(found, everywhere))


class Patience:
    """How often to look, and for how long; what does not change is told once."""

    def __init__(self, seconds: float | None, every: float) -> None:
        """Without seconds, for ever."""
        self.end = None if seconds is None else time.monotonic() + seconds
        self.every = every
        self.told = ""
        self.looked = False

    def tell(self, sentence: str) -> None:
        """To somebody who sits there; anything else would fill a log."""
        if sentence != self.told and sys.stderr and sys.stderr.isatty():
            tell(sentence)
        self.told = sentence

    def wait(self) -> bool:
        """Wait for the next look, if there is one."""
        rest = self.every if self.end is None else min(self.every, self.end - time.monotonic())
        if rest <= 0:
            return False
        time.sleep(rest)
        return True


def until_found(look: Callable[[], Found], wish: Wish, count: int, patience: Patience) -> list[Choice]:
    """So many GPUs of one host, as soon as there are; a board that fails after the first look is asked again."""
    from site_builder.fleet import select  # noqa: PLC0415

    while True:
        try:
            with failing():
                found = look()
            if chosen := select.on_one_host(found.choices, count, wish):
                return chosen
            why: Failure = refuse(found, wish, count)
        except Failure as failed:
            if not patience.looked:
                raise
            why = failed
        patience.looked = True
        patience.tell(f"{why.message}; waiting")
        if not patience.wait():
            raise why
