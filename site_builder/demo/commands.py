"""`gpuboard demo`: a simulated lab, to look at and to try things on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from site_builder.config.schema import LISTEN, parse_seconds_setting
from site_builder.config.settings import load_settings
from site_builder.core.command_options import CommandError, complete_folder_option, print_command_message
from site_builder.demo.history import fill_history
from site_builder.demo.simulated_lab import SimulatedLab
from site_builder.web import commands as web_commands

DEMO_MARK_FILE = ".gpuboard-demo"


def parse_demo_start_option(_: click.Context, __: click.Parameter, value: str) -> int:
    try:
        return parse_seconds_setting(value)
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a time, such as 30s, 10m, 9h or 2d") from None


def parse_demo_listen_option(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, int] | None:
    try:
        return None if value is None else LISTEN.parse(value)
    except ValueError:
        raise click.BadParameter(f"it is '{value}', {LISTEN.refusal}") from None


@click.command()
@click.option("--hosts", type=click.IntRange(1, 1000), default=15, metavar="N", help="Number of hosts.  [default: 15]")
@click.option(
    "--speed", type=click.FloatRange(0.1, 1000), default=1, metavar="N", help="Speed: 60 is a minute an hour."
)
@click.option("--seed", type=int, default=1, metavar="N", help="Random seed; each number is another lab.  [default: 1]")
@click.option(
    "--after", callback=parse_demo_start_option, default="0s", metavar="TIME", help="Start this far into the story."
)
@click.option(
    "--listen",
    callback=parse_demo_listen_option,
    metavar="ADDRESS:PORT",
    help="Listening address.  [default: 127.0.0.1, from 8080 on]",
)
@click.option(
    "--folder", metavar="FOLDER", help="Folder for data/, www/ and state/.", shell_complete=complete_folder_option
)
@click.option("--once", is_flag=True, help="Build once in --folder, then exit.")
def demo(
    hosts: int, speed: float, seed: int, after: int, listen: tuple[str, int] | None, folder: str | None, once: bool
) -> None:
    """Show a simulated lab until Ctrl-C.

    The hosts run the real scripts, with stand-ins for nvidia-smi, amd-smi, rocm-smi and /proc. Jobs start and end,
    a host goes down and comes back, a GPU is lost, bookings are used and broken; there are five weeks of history.
    One host has a GPU with MIG instances, one has AMD GPUs, one has both makers. The same options show the same
    lab.

    \b
    gpuboard demo --speed 60
    gpuboard demo --hosts 50 --once --folder lab
    """
    if once and not folder:
        raise click.UsageError("--once needs --folder")
    with (
        web_commands.stop_serving_on_signals(),
        web_commands.create_served_spool_folder() as hidden,
        prepare_demo_folder(folder, hidden) as place,
    ):
        try:
            lab = SimulatedLab(place, hidden, hosts, seed, speed, after)
            run_demo(lab, place, listen, once)
        except OSError as error:
            raise CommandError(f"the lab in {error.filename or place} cannot continue: {error.strerror}") from None


def run_demo(lab: SimulatedLab, place: Path, listen: tuple[str, int] | None, once: bool) -> None:
    """Build one page, or build and serve round after round."""

    def build_settings() -> dict[str, str]:
        folders = {f"GPUBOARD_{name.upper()}": str(place / name) for name in ("data", "www", "state")}
        fixed = {"GPUBOARD_BOOK_URL": "book", "GPUBOARD_BOOK_OPEN": "yes", "GPUBOARD_CONSUL_SERVICE": ""}
        return {**lab.build_settings(), **folders, **fixed, "GPUBOARD_CONF": "/dev/null"}

    def take_snapshots() -> float:
        lab.take_snapshots()
        return lab.interval_s

    def report_ready(url: str) -> None:
        print_command_message(f"a simulated lab is at {url} until Ctrl-C")
        print_command_message(f"to book a GPU in it, use the page, or edit {place / 'data/comments.json'}")

    host_count = len(lab.machines)
    if not once:
        print_command_message(f"starting {host_count} simulated {'host' if host_count == 1 else 'hosts'}")
    zone = load_settings(None, {}, web_commands.build_served_environment(build_settings())).settings.zone
    fill_history(place / "state", zone, lab.started_at, host_count, lab.seed, lab.start_offset_s)
    if not once:
        web_commands.serve_live_board(place / "www", listen, build_settings, take_snapshots, report_ready)
        return
    lab.take_snapshots()
    with web_commands.start_served_builder(build_settings()) as builder:
        code = builder.wait()
    if code:
        raise click.exceptions.Exit(code)


@contextmanager
def prepare_demo_folder(folder: str | None, hidden: Path) -> Iterator[Path]:
    if folder is None:
        yield hidden
        return
    place = Path(folder).absolute()
    if place.exists() and not (place / DEMO_MARK_FILE).exists() and (not place.is_dir() or any(place.iterdir())):
        raise CommandError(f"{place} is not a lab of `gpuboard demo`: choose a new or empty folder")
    place.mkdir(parents=True, exist_ok=True)
    (place / DEMO_MARK_FILE).touch()
    for name in ("data", "www", "state"):
        shutil.rmtree(place / name, ignore_errors=True)
    yield place
