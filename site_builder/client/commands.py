"""`gpuboard list`, `available` and `wait`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from site_builder.client import completion
from site_builder.client.model import VISIBLE_DEVICES_VARIABLES
from site_builder.core import formatting
from site_builder.core.board_client import FleetUnavailableError
from site_builder.core.command_options import (
    CommandError,
    NegativeResultError,
    print_message,
    translate_fleet_errors,
    with_loaded_settings,
)
from site_builder.core.terminal_text import find_terminal_width, is_coloured, replace_unencodable, truncate_text

if TYPE_CHECKING:
    from site_builder.client.model import Fleet
    from site_builder.client.picker import GpuChoice, GpuPicker, GpuRequest, PickResult
    from site_builder.config.conf_file import LoadedSettings
    from site_builder.config.settings import Settings

SIZE_PATTERN = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(MiB|MB|M|GiB|GB|G|)", re.IGNORECASE)
SECONDS_PATTERN = re.compile(r"([0-9]{1,9}) ?s")
ONE_INSTANCE_HINT = "a process can use one instance, and no other GPU with it"
# In MiB: what the driver tells of a card of 24 GB is some MiB less than 24 GiB, and more than 24 GB.
MIB_PER_UNIT = {"mib": 1, "m": 1, "mb": 1e6 / 2**20, "gib": 1024, "g": 1024, "gb": 1e9 / 2**20, "": 1024}


def parse_memory_option(_: click.Context, __: click.Parameter, value: str) -> float:
    """`20GiB`, `24GB`, `500MiB`, in MiB; a bare number is of GiB."""
    found = SIZE_PATTERN.fullmatch(value.strip())
    if not found:
        message = f'"{value}" is no size: write it as 20GiB or 24GB'
        raise click.BadParameter(message)
    return float(found[1]) * MIB_PER_UNIT[found[2].lower()]


def parse_duration_option(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """`90s`, `30m`, `2h`, `1d12h`, in seconds."""
    from site_builder.core.timeparse import moments  # noqa: PLC0415 # --help needs none of it

    if value is None:
        return None
    found = SECONDS_PATTERN.fullmatch(value.strip())
    if found and int(found[1]):
        return float(found[1])
    try:
        days, seconds = moments.parse_duration(value)
    except moments.UnclearTimeError as why:
        message = f'"{value}" {why}'
        raise click.BadParameter(message) from None
    return float(days * 86400 + seconds)


def build_shortage_error(found: PickResult, wish: GpuRequest, least: int) -> NegativeResultError:
    """That there is not enough, and why."""
    what = wish.model or ("GPU" if least == 1 else "GPUs")
    size = f" with {wish.memory / 1024:.3g} GiB free" if wish.memory else ""
    if len(found.choices) >= least:
        return NegativeResultError(
            f"no host of {found.source} has {least} {what}{size} that can be had: {found.reason}"
        )
    if found.choices:
        return NegativeResultError(
            f"{len(found.choices)} of the {least} {what}{size} can be had on {found.source}: {found.reason}"
        )
    return NegativeResultError(f"no {what}{size} can be had on {found.source}: {found.reason}")


def limit_to_one_process(found: PickResult, wish: GpuRequest, everywhere: bool) -> PickResult:
    """What can be printed: of one host only what one process can use."""
    from site_builder.client import picker  # noqa: PLC0415 # --help needs none of it

    if everywhere or not any(one.gpu.parent_keys for one in found.choices):
        return found
    why = f"{found.reason}; {ONE_INSTANCE_HINT}"
    return found._replace(choices=picker.select_for_one_process(found.choices, wish), reason=why)


def format_choices(choices: Iterable[GpuChoice], everywhere: bool) -> str:
    """`atlas:2 hydra:amd0`, or the numbers of one host as CUDA or HIP takes them."""
    if everywhere:
        return " ".join(f"{one.host.name}:{one.gpu.label}" for one in choices)
    return ",".join(str(one.visible_number) for one in choices)


def check_host_options(picker: GpuPicker, everywhere: bool) -> None:
    """Refuse what does not go together."""
    if everywhere and picker.host:
        message = "say --all or --host, not both"
        raise click.UsageError(message)


def with_gpu_picker(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a `picker`, and add the options that say what is wanted and where to look."""

    @wraps(command)
    def run(  # one for each option
        loaded: LoadedSettings,
        model: str,
        min_memory: float,
        host: str | None,
        name: str | None,
        vendor: str | None,
        **rest: Any,  # noqa: ANN401
    ) -> None:
        from site_builder.client.picker import (
            GpuPicker,
            GpuRequest,  # --help needs none of it
        )

        with translate_fleet_errors():
            picker = GpuPicker(loaded, GpuRequest(model, min_memory, vendor), host, name)
        command(picker=picker, **rest)

    found = with_loaded_settings(run)
    for option in (
        click.option("--url", metavar="URL", help="The board, if it is on another machine."),
        click.option("--name", metavar="LOGIN", help="Whose bookings count as free.  [default: you]"),
        click.option(
            "--host",
            metavar="HOST",
            shell_complete=completion.complete_hosts,
            help="The host, as the board calls it.  [default: this machine]",
        ),
        click.option(
            "--min-memory",
            callback=parse_memory_option,
            default="0",
            metavar="SIZE",
            help="So much of it free: 20GiB, 24GB.",
        ),
        click.option(
            "--vendor",
            type=click.Choice([*VISIBLE_DEVICES_VARIABLES]),
            help="Of this maker.  [default: NVIDIA where the host has any of its GPUs, else AMD]",
        ),
        click.option("--model", default="", metavar="TEXT", help="Of this model, such as A100."),
    ):
        found = option(found)
    return found


# A screen of its own without a cursor, so that what was on the terminal comes back at the end; where that is very
# narrow, a line ends at its edge.
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
# Nothing is cleared before it is written over: that would flicker.
CURSOR_HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
DEFAULT_SIZE = (80, 24)
# How soon a terminal that changes its size is drawn anew.
REDRAW_INTERVAL_S = 0.1
# For how long the last look stays where the next ones fail: then nobody knows which GPU is free.
MAX_AGE_S = 300


class TerminalClosedError(Exception):
    """The terminal is no longer there."""


def run_live_screen(look: Callable[[], Fleet], drawn: Callable[[Fleet], Sequence[str]], every: float) -> None:
    """Show what `drawn` makes of each look; one that fails is told, the last one stays, the next is tried."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        message = "--watch needs a terminal that can be drawn on: leave it out, and run the command again and again"
        raise CommandError(message)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with translate_fleet_errors():
            fleet = look()  # what is wrong at the very beginning is no matter of time
    except KeyboardInterrupt:
        return
    with suppress(TerminalClosedError, KeyboardInterrupt):
        try:
            write_terminal(ENTER_SCREEN)
            refresh_forever(fleet, look, drawn, every)
        finally:
            write_terminal(LEAVE_SCREEN)


def refresh_forever(
    fleet: Fleet, look: Callable[[], Fleet], drawn: Callable[[Fleet], Sequence[str]], every: float
) -> None:
    """Draw, wait, look."""
    said, looked = "", time.monotonic()
    while True:
        head = said or f"every {every:g} s until Ctrl-C: {fleet.source}"
        shown = drawn if time.monotonic() < looked + MAX_AGE_S else draw_nothing
        show_until(head, shown, fleet, time.monotonic() + every)
        try:
            fleet, said, looked = look(), "", time.monotonic()
        except FleetUnavailableError as why:
            said = f"{format_age(time.monotonic() - looked)} old: {why}"


def format_age(age: float) -> str:
    """`12 s`, from a minute on `3 min`."""
    return f"{age:.0f} s" if age < formatting.MINUTE else formatting.format_duration(age)


def draw_nothing(_: Fleet) -> Sequence[str]:
    """No table."""
    return ()


def show_until(head: str, drawn: Callable[[Fleet], Sequence[str]], fleet: Fleet, until: float) -> None:
    """Keep it on the screen until a moment, whatever the size of that becomes."""
    before = None
    while time.monotonic() < until:
        size = shutil.get_terminal_size(DEFAULT_SIZE)
        if size != before:
            write_terminal(build_frame([truncate_text(head, size.columns), *drawn(fleet)], size.columns, size.lines))
            before = size
        time.sleep(max(0, min(REDRAW_INTERVAL_S, until - time.monotonic())))


def build_frame(lines: Sequence[str], across: int, height: int) -> str:
    """As many lines as there is room for, each in the place of what was there."""
    if len(lines) > height:
        more = f"… and {len(lines) - height + 1} more lines: a higher terminal shows them, or words find them"
        lines = [*lines[: height - 1], truncate_text(more, across)]
    # cleared before it is written: after the last cell of a line, that would take this cell too
    return CURSOR_HOME + "\n".join(f"{CLEAR_LINE}{line}" for line in lines) + CLEAR_BELOW


def write_terminal(text: str) -> None:
    """To the terminal, at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        raise TerminalClosedError from None


LOCAL_INTERVAL_S, BOARD_INTERVAL_S = 2.0, 10.0


class EmptyFleetError(CommandError):
    """There is nothing to be told, in one sentence, and exit 0."""

    exit_code = 0


@click.command("list")
@click.argument("words", nargs=-1, shell_complete=completion.complete_hosts)
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs: hosts as in status.json.")
@click.option("--watch", "-w", is_flag=True, help="Show it until Ctrl-C, and what changes.")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 86400),
    metavar="SECONDS",
    help="With --watch: how often to look.  [default: 2, of a board 10]",
)
@click.option("--url", metavar="URL", help="The board, if it is on another machine.")
@with_loaded_settings
def list_gpus(loaded: LoadedSettings, words: Sequence[str], as_json: bool, watch: bool, every: float | None) -> None:
    """List the GPUs of all hosts, or those that match WORDS.

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
    listing = open_listing(loaded, words)
    if watch:
        run_live_screen(
            listing.load, listing.draw, every or (LOCAL_INTERVAL_S if listing.is_local else BOARD_INTERVAL_S)
        )
        return
    fleet = listing.load_fleet()
    found = listing.filter_fleet(fleet)
    if as_json:
        from site_builder.client import render  # noqa: PLC0415

        click.echo(render.render_fleet_json(found))
    elif found.hosts:
        click.echo(replace_unencodable("\n".join(listing.format_lines(fleet, found))))
    if not found.hosts:
        raise listing.build_empty_error(fleet)


@dataclass(frozen=True)
class GpuListing:
    """What is to be listed, and where it is looked at."""

    load: Callable[[], Fleet]
    words: Sequence[str]
    settings: Settings
    is_local: bool

    def load_fleet(self) -> Fleet:
        """The fleet at this moment."""
        with translate_fleet_errors():
            return self.load()

    def filter_fleet(self, fleet: Fleet) -> Fleet:
        """What of it fits the words."""
        from site_builder.client import search  # noqa: PLC0415 # --help needs none of it, as all below

        return search.search_fleet(fleet, self.words) if self.words else fleet

    def format_lines(self, fleet: Fleet, found: Fleet) -> Sequence[str]:
        """The table, as wide as the terminal; where there are several hosts, each says which it is."""
        from site_builder.client.render import format_gpu_table  # noqa: PLC0415
        from site_builder.core.clock import Now  # noqa: PLC0415

        # all times in it are of the board's clock, and ours may be off
        now = Now(fleet.built, self.settings.zone)
        return format_gpu_table(found, now, find_terminal_width(), is_coloured(), heads=len(fleet.hosts) > 1)

    def draw(self, fleet: Fleet) -> Sequence[str]:
        """The table, or why there is none."""
        found = self.filter_fleet(fleet)
        return (
            [replace_unencodable(one) for one in self.format_lines(fleet, found)]
            if found.hosts
            else [self.build_empty_error(fleet).message]
        )

    def build_empty_error(self, fleet: Fleet) -> CommandError:
        """Why nothing is listed: exit 1 if it is for the words."""
        from site_builder.config.settings import sanitize_text  # noqa: PLC0415

        if not fleet.hosts:
            return EmptyFleetError(f"there are no hosts yet: {fleet.source} has none")
        count = f"{len(fleet.hosts)} host{'' if len(fleet.hosts) == 1 else 's'}"
        return NegativeResultError(
            f"nothing fits {sanitize_text(' '.join(self.words))}: {fleet.source} has {count}, and none of them does"
        )


def open_listing(loaded: LoadedSettings, words: Sequence[str]) -> GpuListing:
    """Where to look, if there is such a place."""
    from site_builder.client import loader  # noqa: PLC0415

    with translate_fleet_errors():
        look = loader.open_fleet(loaded)
    return GpuListing(look, words, loaded.settings, loader.choose_fleet_source(loaded) == "machine")


GPU_COUNT_RANGE = click.IntRange(1, 100_000)


@click.command()
@click.option("--limit", "-l", type=GPU_COUNT_RANGE, metavar="N", help="The best N at most.")
@click.option("--at-least", type=GPU_COUNT_RANGE, default=1, metavar="N", help="With fewer than N: none, and exit 1.")
@click.option("--all", "everywhere", is_flag=True, help="Of all hosts, as atlas:2 hydra:3.")
@with_gpu_picker
def available(picker: GpuPicker, limit: int | None, at_least: int, everywhere: bool) -> None:
    """List available GPUs, best first.

    They are free, or booked by you and unused. On this host they are printed as CUDA_VISIBLE_DEVICES takes them, those
    of AMD as HIP_VISIBLE_DEVICES does; CUDA's numbers are nvidia-smi's, so set CUDA_DEVICE_ORDER=PCI_BUS_ID too. The
    best have the most free memory, then the newest model, then the host with the least load. A process can use one MIG
    instance only: one is printed, by its UUID, where no whole GPU can be had; all of them with --model 1g.10gb. Exit 1
    if there is none.

    \b
    export CUDA_VISIBLE_DEVICES=$(gpuboard available -l 1)
    export HIP_VISIBLE_DEVICES=$(gpuboard available --vendor amd)
    gpuboard available --all --model A100 --min-memory 40GiB
    gpuboard available --at-least 2 --limit 2
    """
    if limit is not None and limit < at_least:
        message = f"--limit {limit} is less than --at-least {at_least}"
        raise click.UsageError(message)
    check_host_options(picker, everywhere)
    with translate_fleet_errors():
        found = limit_to_one_process(picker.find_gpus(everywhere), picker.request, everywhere)
    if len(found.choices) < at_least:
        raise build_shortage_error(found, picker.request, at_least)
    click.echo(format_choices(found.choices[:limit], everywhere))


GPUS_PER_HOST_RANGE = click.IntRange(1, 1024)
POLL_INTERVAL_S = 10


@click.command()
@click.option(
    "--gpus", "count", type=GPUS_PER_HOST_RANGE, default=1, metavar="N", help="So many of one host.  [default: 1]"
)
@click.option("--all", "everywhere", is_flag=True, help="Of any host.")
@click.option(
    "--timeout", callback=parse_duration_option, metavar="LENGTH", help="Give up after so long, such as 2h: exit 1."
)
@click.option(
    "--every", type=click.IntRange(1, 3600), default=POLL_INTERVAL_S, metavar="SECONDS", help="Look this often."
)
@with_gpu_picker
def wait(picker: GpuPicker, count: int, everywhere: bool, timeout: float | None, every: int) -> None:
    """Wait until GPUs are available, then print them.

    Nothing is booked: who is faster has them. `gpuboard run --wait` takes them at once.

    \b
    gpuboard wait --gpus 2 --model A100 && python train.py
    gpuboard wait --all --min-memory 40GiB --timeout 8h
    """
    check_host_options(picker, everywhere)
    found = wait_for_gpus(lambda: picker.find_gpus(everywhere), picker.request, count, WaitPolicy(timeout, every))
    click.echo(format_choices(found, everywhere))


class WaitPolicy:
    """How often to look, and for how long; what does not change is told once."""

    def __init__(self, seconds: float | None, every: float) -> None:
        """Without seconds, for ever."""
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.interval_s = every
        self.last_message = ""
        self.has_checked = False

    def report(self, sentence: str) -> None:
        """To somebody who sits there; anything else would fill a log."""
        if sentence != self.last_message and sys.stderr and sys.stderr.isatty():
            print_message(sentence)
        self.last_message = sentence

    def wait_for_next(self) -> bool:
        """Wait for the next look, if there is one."""
        rest = self.interval_s if self.deadline is None else min(self.interval_s, self.deadline - time.monotonic())
        if rest <= 0:
            return False
        time.sleep(rest)
        return True


def wait_for_gpus(
    look: Callable[[], PickResult], wish: GpuRequest, count: int, patience: WaitPolicy
) -> list[GpuChoice]:
    """So many GPUs of one host, as soon as there are; a board that fails after the first look is asked again."""
    from site_builder.client import picker  # noqa: PLC0415

    while True:
        try:
            with translate_fleet_errors():
                found = look()
            if chosen := picker.select_on_one_host(found.choices, count, wish):
                return chosen
            why: CommandError = build_shortage_error(found, wish, count)
        except CommandError as failed:
            if not patience.has_checked:
                raise
            why = failed
        patience.has_checked = True
        patience.report(f"{why.message}; waiting")
        if not patience.wait_for_next():
            raise why
