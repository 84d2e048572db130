"""`gpuboard list`, `available` and `wait`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

import click

from site_builder.client import loader, render, search
from site_builder.client import picker as gpu_picker
from site_builder.client.model import VISIBLE_DEVICES_VARIABLES, Fleet
from site_builder.client.picker import GpuChoice, GpuPicker, GpuRequest, PickResult, format_picked_gpus
from site_builder.config.settings import LoadedSettings, sanitize_setting_text
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.command_options import (
    CommandError,
    NegativeResultError,
    print_command_message,
    translate_to_command_errors,
    url_option,
    with_loaded_settings,
)
from site_builder.core.model import FleetUnavailableError
from site_builder.core.terminal_text import (
    find_terminal_width,
    is_coloured,
    replace_unencodable,
    truncate_terminal_text,
    wrap_text,
)
from site_builder.core.timeparse import moments
from site_builder.snapshots.completion import complete_hosts

SIZE_PATTERN = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(MiB|MB|M|GiB|GB|G|)", re.IGNORECASE)
SECONDS_PATTERN = re.compile(r"([0-9]{1,9}) ?s")
ONE_INSTANCE_HINT = "a process can use only one MIG instance, and no other GPU beside it"
# In MiB: the driver reports a card of 24 GB as some MiB less than 24 GiB, and more than 24 GB.
MIB_PER_UNIT = {"mib": 1, "m": 1, "mb": 1e6 / 2**20, "gib": 1024, "g": 1024, "gb": 1e9 / 2**20, "": 1024}
# Seconds between two loads of `list --watch`: of this machine, and of a board.
LOCAL_INTERVAL_S, BOARD_INTERVAL_S = 2.0, 10.0
GPU_COUNT_RANGE = click.IntRange(1, 100_000)
GPUS_PER_HOST_RANGE = click.IntRange(1, 1024)
POLL_INTERVAL_S = 10
# The alternate screen without a cursor and without line wrap; the old content comes back at the end.
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
# Nothing is cleared before it is written over: that would flicker.
CURSOR_HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
# How soon the screen is redrawn when its size changes.
REDRAW_INTERVAL_S = 0.1
# How long the last fleet is shown while loading fails: after that the free GPUs are unknown.
MAX_AGE_S = 300


def parse_min_memory_option(_: click.Context, __: click.Parameter, value: str) -> float:
    """Parse a size in MiB: `20GiB`, `24GB`, `500MiB`; a bare number is in GiB."""
    match = SIZE_PATTERN.fullmatch(value.strip())
    if not match:
        raise click.BadParameter(f'"{value}" is not a size: write it as 20GiB or 24GB')
    return float(match[1]) * MIB_PER_UNIT[match[2].lower()]


def parse_duration_option(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """Parse a duration in seconds: `90s`, `30m`, `2h`, `1d12h`."""
    if value is None:
        return None
    match = SECONDS_PATTERN.fullmatch(value.strip())
    if match and int(match[1]):
        return float(match[1])
    try:
        days, seconds = moments.parse_duration(value)
    except moments.UnclearTimeError as error:
        raise click.BadParameter(f'"{value}" {error}') from None
    return float(days * 86400 + seconds)


def build_gpu_shortage_error(result: PickResult, request: GpuRequest, count: int) -> NegativeResultError:
    """Build the error that there are not enough GPUs, and why."""
    what = request.model or ("GPU" if count == 1 else "GPUs")
    size = f" with {request.memory / 1024:.3g} GiB free" if request.memory else ""
    shortage = f"no {what}{size} available on {result.source}"
    if len(result.choices) >= count:
        shortage = f"no host of {result.source} has {count} {what}{size} available"
    elif result.choices:
        shortage = f"only {len(result.choices)} of {count} {what}{size} available on {result.source}"
    return NegativeResultError(f"{shortage}: {result.reason}")


def with_gpu_picker(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a `picker`, and add the options that say what is wanted and where."""

    @click.option("--model", default="", metavar="TEXT", help="GPU model, such as A100.")
    @click.option(
        "--vendor",
        type=click.Choice([*VISIBLE_DEVICES_VARIABLES]),
        help="GPU maker.  [default: nvidia if the host has any]",
    )
    @click.option(
        "--min-memory",
        callback=parse_min_memory_option,
        default="0",
        metavar="SIZE",
        help="Minimum free memory: 20GiB, 24GB.",
    )
    @click.option(
        "--host", metavar="HOST", shell_complete=complete_hosts, help="Host name on the board.  [default: this machine]"
    )
    @click.option("--name", metavar="LOGIN", help="Count bookings of LOGIN as free.  [default: you]")
    @url_option
    @with_loaded_settings
    @wraps(command)
    def run(
        loaded: LoadedSettings,
        model: str,
        min_memory: float,
        host: str | None,
        name: str | None,
        vendor: str | None,
        **rest: Any,  # noqa: ANN401
    ) -> None:
        if rest.get("everywhere") and host:
            raise click.UsageError("use either --all or --host")
        duration_s = rest.pop("duration_s", None) or 0
        max_used_percent, order = rest.pop("max_used_percent", None), rest.pop("order", "best")
        request = GpuRequest(model, min_memory, vendor, duration_s, max_used_percent, order)
        with translate_to_command_errors():
            has_topology = (rest.get("count") or rest.get("limit") or 1) > 1
            picker = GpuPicker(loaded, request, host, name, has_topology)
        command(picker=picker, **rest)

    return run


class LiveScreenClosedError(Exception):
    """The terminal is gone."""


def run_live_screen(load_fleet: Callable[[], Fleet], draw: Callable[[Fleet], Sequence[str]], interval_s: float) -> None:
    """Show the fleet until Ctrl-C; if a load fails, show why, keep the last fleet, and try again."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        raise CommandError("--watch needs a terminal with cursor control: without it, run `gpuboard list` repeatedly")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with translate_to_command_errors():
            fleet = load_fleet()  # a failure at the start will not go away by itself
    except KeyboardInterrupt:
        return
    with suppress(LiveScreenClosedError, KeyboardInterrupt):
        try:
            write_live_screen(ENTER_SCREEN)
            message, loaded_at = "", time.monotonic()
            while True:
                head = message or f"every {interval_s:g} s until Ctrl-C: {fleet.source}"
                is_current = time.monotonic() < loaded_at + MAX_AGE_S
                deadline, old_size = time.monotonic() + interval_s, None
                while time.monotonic() < deadline:
                    size = shutil.get_terminal_size()
                    if size != old_size:
                        lines = [truncate_terminal_text(head, size.columns), *(draw(fleet) if is_current else ())]
                        if len(lines) > size.lines:
                            more = f"… and {len(lines) - size.lines + 1} more lines"
                            hint = f"{more}: enlarge the terminal, or add words to search for"
                            lines[size.lines - 1 :] = [truncate_terminal_text(hint, size.columns)]
                        # cleared before it is written: after the last cell of a line, that would take this cell too
                        frame = "\n".join(f"{CLEAR_LINE}{line}" for line in lines)
                        write_live_screen(f"{CURSOR_HOME}{frame}{CLEAR_BELOW}")
                        old_size = size
                    time.sleep(max(0, min(REDRAW_INTERVAL_S, deadline - time.monotonic())))
                try:
                    fleet, message, loaded_at = load_fleet(), "", time.monotonic()
                except FleetUnavailableError as error:
                    age = time.monotonic() - loaded_at
                    age_text = f"{age:.0f} s" if age < formatting.MINUTE else formatting.format_duration(age)
                    message = f"{age_text} old: {error}"
        finally:
            write_live_screen(LEAVE_SCREEN)


def write_live_screen(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        raise LiveScreenClosedError from None


class EmptyListError(CommandError):
    """There is nothing to list: exit 0."""

    exit_code = 0


@click.command("list")
@click.argument("words", nargs=-1, shell_complete=complete_hosts)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: hosts as in status.json.")
@click.option("--watch", "-w", is_flag=True, help="Refresh until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 86400),
    metavar="SECONDS",
    help="Refresh interval of --watch.  [default: 2; with a board 10]",
)
@url_option
@with_loaded_settings
def list_gpus(loaded: LoadedSettings, words: Sequence[str], as_json: bool, watch: bool, every: float | None) -> None:
    """List the GPUs of all hosts, or those that match WORDS.

    WORDS are hosts, or words as in the search box of the page; all must match. Use any text, a state such as free,
    'mem>=40' (GiB), gpu:0, user:alice, model:a100, tag:vision, command:train.py, pid:31415 or booking:icml.

    The marks are [ ] free, [~] busy, [-] held (memory taken, idle), [B] booked and [!] conflict, lost, unknown, faulty
    or used by unknown users only; ? means not available. Without a board, this lists the GPUs of this machine. Exit 1
    if nothing matches.

    \b
    gpuboard list
    gpuboard list atlas hydra
    gpuboard list a100 free
    gpuboard list free 'mem>=40'
    gpuboard list --watch user:alice
    """
    if as_json and watch:
        raise click.UsageError("use either --json or --watch")
    if every is not None and not watch:
        raise click.UsageError("--every needs --watch")
    if "mem" in words:
        raise click.UsageError("put a comparison in quotes: 'mem>40'")
    with translate_to_command_errors():
        load_fleet = loader.open_fleet(loaded)

    def format_matches(fleet: Fleet, matches: Fleet) -> list[str]:
        # all times in it are of the board's clock, and ours may be off
        now, has_several_hosts = Now(fleet.built, loaded.settings.zone), len(fleet.hosts) > 1
        lines = render.format_gpu_table(matches, now, find_terminal_width(), is_coloured(), heads=has_several_hosts)
        return [replace_unencodable(line) for line in lines]

    def draw(fleet: Fleet) -> list[str]:
        matches = search.search_fleet(fleet, words)
        return format_matches(fleet, matches) if matches.hosts else [build_empty_list_error(fleet, words).message]

    if watch:
        is_local = loader.choose_fleet_source(loaded) == "machine"
        run_live_screen(load_fleet, draw, every or (LOCAL_INTERVAL_S if is_local else BOARD_INTERVAL_S))
        return
    with translate_to_command_errors():
        fleet = load_fleet()
    matches = search.search_fleet(fleet, words)
    if as_json:
        click.echo(render.render_client_fleet_json(matches))
    elif matches.hosts:
        click.echo("\n".join(format_matches(fleet, matches)))
    if not matches.hosts:
        raise build_empty_list_error(fleet, words)


def build_empty_list_error(fleet: Fleet, words: Sequence[str]) -> CommandError:
    """Build the error that nothing is listed: exit 1 if no host matches the words."""
    if not fleet.hosts:
        return EmptyListError(f"no hosts yet on {fleet.source}")
    count = formatting.format_count(len(fleet.hosts), "host")
    hints = [term.hint for term in search.parse_search_arguments(words) if term.hint]
    if len(words) > 1:
        hints.append("all words must match")
    hint = "".join(f": {sanitize_setting_text(hint)}" for hint in hints[:1])
    return NegativeResultError(
        f"no match for {sanitize_setting_text(' '.join(words))} on {fleet.source} ({count}){hint}"
    )


free_for_option = click.option(
    "--for", "duration_s", callback=parse_duration_option, metavar="LENGTH", help="Only GPUs free for this long: 6h."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, with the end of each free time.")


@click.command()
@click.option("--limit", "-l", type=GPU_COUNT_RANGE, metavar="N", help="At most N, the best.")
@click.option("--at-least", type=GPU_COUNT_RANGE, default=1, metavar="N", help="Exit 1 if there are fewer than N.")
@click.option("--all", "everywhere", is_flag=True, help="Of all hosts, as atlas:2 hydra:3.")
@click.option(
    "--max-used-percent",
    type=click.FloatRange(0, 100),
    metavar="N",
    help="By memory: GPUs with at most N % used, by whomever.",
)
@click.option(
    "--order",
    type=click.Choice(["best", "index"]),
    default="best",
    show_default=True,
    help="Best, or lowest index, first.",
)
@free_for_option
@json_option
@with_gpu_picker
def available(picker: GpuPicker, limit: int | None, at_least: int, everywhere: bool, as_json: bool) -> None:
    """List available GPUs, best first.

    These are free, or booked by you and idle. A message says until when GPUs are free that others have booked for
    later; --for leaves out those that are booked too soon. Best means: most free memory, then newest model, then least
    load on the host.

    For one host, the output fits CUDA_VISIBLE_DEVICES (with CUDA_DEVICE_ORDER=PCI_BUS_ID), or HIP_VISIBLE_DEVICES for
    AMD. A process can use only one MIG instance, so one is printed, by its UUID, if no whole GPU is available; --model
    1g.10gb prints all of that profile. Exit 1 if none is available.

    For scripts that rely on nvgpu's rule, --max-used-percent 20 --order index lists GPUs of which at most 20 % of the
    memory is used, whoever uses them, unless others have booked them or they are lost, unknown or faulty.

    \b
    export CUDA_VISIBLE_DEVICES=$(gpuboard available -l 1)
    export HIP_VISIBLE_DEVICES=$(gpuboard available --vendor amd)
    gpuboard available --all --model A100 --min-memory 40GiB --for 6h
    gpuboard available --at-least 2 --limit 2
    """
    if limit is not None and limit < at_least:
        raise click.UsageError(f"--limit {limit} is less than --at-least {at_least}")
    with translate_to_command_errors():
        result = picker.find_gpus(everywhere)
    if not everywhere and any(choice.gpu.parent_keys for choice in result.choices):
        choices = gpu_picker.select_gpus_for_one_process(result.choices, picker.request)
        result = result._replace(choices=choices, reason=f"{result.reason}; {ONE_INSTANCE_HINT}")
    if len(result.choices) < at_least:
        raise build_gpu_shortage_error(result, picker.request, at_least)
    choices = result.choices[:limit]
    if limit and not everywhere and picker.request.order == "best":
        choices = gpu_picker.select_connected_gpus(result.choices, limit)
    print_picked_gpus(choices, picker, result.now, everywhere, as_json)


def print_picked_gpus(
    choices: Sequence[GpuChoice], picker: GpuPicker, epoch: float, everywhere: bool, as_json: bool
) -> None:
    """Print GPUs, and on stderr until when they are free."""
    now = Now(epoch, picker.loaded.settings.zone)
    if as_json:
        click.echo(json.dumps(gpu_picker.picked_gpus_to_json(choices, now), indent=2))
        return
    text = format_picked_gpus(choices, everywhere)
    width = find_terminal_width() if everywhere else None
    click.echo("\n".join(wrap_text(text, width)) if width else text)
    if booked_soon := gpu_picker.describe_picked_gpus(choices, now):
        print_command_message(booked_soon)


@click.command()
@click.option(
    "--gpus", "count", type=GPUS_PER_HOST_RANGE, default=1, metavar="N", help="GPUs of one host.  [default: 1]"
)
@click.option("--all", "everywhere", is_flag=True, help="On any host.")
@free_for_option
@click.option(
    "--timeout", callback=parse_duration_option, metavar="LENGTH", help="Give up after this time, such as 2h: exit 1."
)
@click.option(
    "--every", type=click.IntRange(1, 3600), default=POLL_INTERVAL_S, metavar="SECONDS", help="Check interval."
)
@json_option
@with_gpu_picker
def wait(picker: GpuPicker, count: int, everywhere: bool, timeout: float | None, every: int, as_json: bool) -> None:
    """Wait until GPUs are available, then print them.

    Nothing is booked: first come, first served. `gpuboard run --wait` takes them at once. A message says until when
    GPUs are free that others have booked for later; --for waits for GPUs that stay free that long.

    \b
    gpuboard wait --gpus 2 --model A100 && python train.py
    gpuboard wait --all --min-memory 40GiB --for 6h --timeout 8h
    """
    waiter = GpuWaiter(timeout, every)
    choices = waiter.wait_for_gpus(lambda: picker.find_gpus(everywhere), picker.request, count)
    print_picked_gpus(choices, picker, waiter.found_at, everywhere, as_json)


class GpuWaiter:
    """Checks for GPUs at an interval, up to a time limit; a message that does not change is printed once."""

    def __init__(self, timeout_s: float | None, interval_s: float) -> None:
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.interval_s = interval_s
        self.last_message = ""
        self.found_at = 0.0

    def wait_for_gpus(
        self, find_gpus: Callable[[], PickResult], request: GpuRequest, count: int, own_first: bool = False
    ) -> list[GpuChoice]:
        """Wait for GPUs of one host; a board that fails after the first attempt is asked again."""
        while True:
            try:
                with translate_to_command_errors():
                    result = find_gpus()
                self.found_at = result.now
                if choices := gpu_picker.select_gpus_on_one_host(result.choices, count, request, own_first):
                    return choices
                error: CommandError = build_gpu_shortage_error(result, request, count)
            except CommandError as command_error:
                if not self.last_message:
                    raise
                error = command_error
            # anything but a terminal is a log, which it would fill
            if error.message != self.last_message and sys.stderr and sys.stderr.isatty():
                print_command_message(f"{error.message}; waiting")
            self.last_message = error.message
            pause_s = self.interval_s
            if self.deadline is not None:
                pause_s = min(pause_s, self.deadline - time.monotonic())
            if pause_s <= 0:
                raise error
            time.sleep(pause_s)
