"""`gpuboard list`: all GPUs in a table, or those that fit a search."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from site_builder.bookings.command_common import No
from site_builder.client import completion
from site_builder.config.commands import printable
from site_builder.core.command_options import Failure, failing, with_loaded

if TYPE_CHECKING:
    from site_builder.client.model import Fleet
    from site_builder.config.conf_file import Loaded
    from site_builder.config.settings import Settings

SIZE = (80, 24)
# A terminal that is narrower still shows what comes first.
LEAST_WIDTH = 40
EVERY_HERE, EVERY_BOARD = 2.0, 10.0


class Empty(Failure):
    """There is nothing to be told, in one sentence, and exit 0."""

    exit_code = 0


@click.command()
@click.argument("words", nargs=-1, shell_complete=completion.hosts)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs: hosts as in status.json.")
@click.option("--watch", "-w", is_flag=True, help="Show it until Ctrl-C, and what changes.")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 86400),
    metavar="SECONDS",
    help="With --watch: how often to look.  [default: 2, of a board 10]",
)
@click.option("--url", metavar="URL", help="The board, if it is on another machine.")
@with_loaded
def list(loaded: Loaded, words: Sequence[str], as_json: bool, watch: bool, every: float | None) -> None:
    """List the GPUs of all hosts, or those that fit WORDS.

    WORDS are hosts, or words as in the search box of the page, all of which must fit: any text, state:free, mem>20
    (GiB), user:alice, model:a100, tag:vision, command:train.py, booking:icml. [ ] is free, [~] busy, held or booked,
    [!] in trouble; what is not known is ?. Without a board, it lists the GPUs of this machine. Exit 1 if nothing fits.

    \b
    gpuboard list
    gpuboard list atlas hydra
    gpuboard list state:free 'mem>20'
    gpuboard list --watch user:alice
    """
    if as_json and watch:
        message = "say --json or --watch, not both"
        raise click.UsageError(message)
    if every is not None and not watch:
        message = "--every goes with --watch"
        raise click.UsageError(message)
    listing = opened(loaded, words)
    if watch:
        from site_builder.core.live_screen import watched  # noqa: PLC0415 # rarely needed

        watched(listing.look, listing.drawn, every or (EVERY_HERE if listing.is_here else EVERY_BOARD))
        return
    fleet = listing.fleet()
    found = listing.fitting(fleet)
    if as_json:
        from site_builder.client import render  # noqa: PLC0415

        click.echo(render.fleet(found))
    elif found.hosts:
        click.echo(printable("\n".join(listing.lines(fleet, found))))
    if not found.hosts:
        raise listing.nothing(fleet)


@dataclass(frozen=True)
class Listing:
    """What is to be listed, and where it is looked at."""

    look: Callable[[], Fleet]
    words: Sequence[str]
    settings: Settings
    is_here: bool

    def fleet(self) -> Fleet:
        """The fleet at this moment."""
        with failing():
            return self.look()

    def fitting(self, fleet: Fleet) -> Fleet:
        """What of it fits the words."""
        from site_builder.client import search  # noqa: PLC0415 # --help needs none of it, as all below

        return search.only(fleet, self.words) if self.words else fleet

    def lines(self, fleet: Fleet, found: Fleet) -> Sequence[str]:
        """The table, as wide as the terminal; where there are several hosts, each says which it is."""
        from site_builder.client.table import table  # noqa: PLC0415
        from site_builder.core.clock import Now  # noqa: PLC0415

        # all times in it are of the board's clock, and ours may be off
        now = Now(fleet.built, self.settings.zone)
        return table(found, now, across(), is_coloured(), heads=len(fleet.hosts) > 1)

    def drawn(self, fleet: Fleet) -> Sequence[str]:
        """The table, or why there is none."""
        found = self.fitting(fleet)
        return [printable(one) for one in self.lines(fleet, found)] if found.hosts else [self.nothing(fleet).message]

    def nothing(self, fleet: Fleet) -> Failure:
        """Why nothing is listed: exit 1 if it is for the words."""
        from site_builder.config.settings import shown_text  # noqa: PLC0415

        if not fleet.hosts:
            return Empty(f"there are no hosts yet: {fleet.where} has none")
        count = f"{len(fleet.hosts)} host{'' if len(fleet.hosts) == 1 else 's'}"
        return No(f"nothing fits {shown_text(' '.join(self.words))}: {fleet.where} has {count}, and none of them does")


def opened(loaded: Loaded, words: Sequence[str]) -> Listing:
    """Where to look, if there is such a place."""
    from site_builder.client import loader  # noqa: PLC0415

    with failing():
        look = loader.open_fleet(loaded)
    return Listing(look, words, loaded.settings, loader.kind_of(loaded) == "machine")


def across() -> int | None:
    """How wide the terminal is; None where there is none."""
    return max(LEAST_WIDTH, shutil.get_terminal_size(SIZE).columns) if sys.stdout.isatty() else None


def is_coloured() -> bool:
    """Whether there is somebody to see colours, who wants some."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
