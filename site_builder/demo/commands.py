"""`gpuboard demo`: a simulated lab, to look at and to try things on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from site_builder.client import completion
from site_builder.config.types import LISTEN, seconds_of
from site_builder.core.command_options import Failure, tell
from site_builder.demo.live_board import backstage, environment_of, show, start_builder, until_told_to_end

if TYPE_CHECKING:
    from site_builder.demo.lab import DemoLab

MARK = ".gpuboard-demo"


def time_given(_: click.Context, __: click.Parameter, value: str) -> int:
    """The seconds of a time such as 9h."""
    try:
        return seconds_of(value)
    except ValueError:
        message = f"'{value}' is not a time, such as 30s, 10m, 9h or 2d"
        raise click.BadParameter(message) from None


def place_given(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Address and port."""
    if value is None:
        return None
    try:
        found: tuple[str, int] = LISTEN.parse(value)
    except ValueError:
        message = f"it is '{value}', {LISTEN.refusal}"
        raise click.BadParameter(message) from None
    return found


@click.command()
@click.option("--hosts", type=click.IntRange(1, 1000), default=15, metavar="N", help="How many.  [default: 15]")
@click.option("--speed", type=click.FloatRange(0.1, 1000), default=1, metavar="N", help="60: a minute is an hour.")
@click.option("--seed", type=int, default=1, metavar="N", help="Another number is another lab.")
@click.option("--after", callback=time_given, default="0s", metavar="TIME", help="Begin so far into the story.")
@click.option(
    "--listen", callback=place_given, metavar="ADDRESS:PORT", help="Where.  [default: 127.0.0.1, from 8080 on]"
)
@click.option("--folder", metavar="FOLDER", help="Keep data/, www/ and state/ here.", shell_complete=completion.folders)
@click.option("--once", is_flag=True, help="Build one page in --folder, and end.")
def demo(  # noqa: PLR0913, PLR0917 # one for each option
    hosts: int, speed: float, seed: int, after: int, listen: tuple[str, int] | None, folder: str | None, once: bool
) -> None:
    """Show a simulated lab until Ctrl-C, which leaves nothing.

    Its hosts run the real scripts, with stand-ins for nvidia-smi, amd-smi, rocm-smi and /proc. Jobs start, grow and
    end, a host goes down and comes back, a GPU is lost, bookings are kept and broken; five weeks of this are its past.
    One host has a GPU that is cut into instances (MIG), one has GPUs of AMD, one of both makers. The same options show
    the same lab.

    \b
    gpuboard demo --speed 60
    gpuboard demo --hosts 50 --once --folder lab
    """
    if once and not folder:
        message = "--once needs --folder"
        raise click.UsageError(message)
    from site_builder.demo.lab import DemoLab, Play  # noqa: PLC0415 # --help needs none of it

    with until_told_to_end(), backstage() as hidden, stage(folder, hidden) as place:
        try:
            lab = DemoLab(Play(hosts, seed, speed, after), place, hidden)
            if once:
                build_once(lab, place)
            else:
                play(lab, place, listen)
        except OSError as error:
            raise Failure(f"the lab in {error.filename or place} cannot go on: {error.strerror}") from None


def play(lab: DemoLab, place: Path, listen: tuple[str, int] | None) -> None:
    """Round after round, built and served."""

    def turn() -> float:
        lab.round()
        return lab.every

    def ready(url: str) -> None:
        tell(f"a simulated lab is at {url} until Ctrl-C")
        tell(f"to book a GPU in it, use the page, or edit {place / 'data/comments.json'}")

    hosts = lab.play.hosts
    tell(f"starting {hosts} simulated {'host' if hosts == 1 else 'hosts'}")
    remember(lab, place)
    show(place / "www", listen, lambda: settings_of(lab, place), turn, ready)


def build_once(lab: DemoLab, place: Path) -> None:
    """One round and one page."""
    remember(lab, place)
    lab.round()
    with start_builder(settings_of(lab, place)) as builder:
        code = builder.wait()
    if code:
        raise click.exceptions.Exit(code)


def remember(lab: DemoLab, place: Path) -> None:
    """The weeks before, by the clocks that the builder goes by."""
    from site_builder.bookings.web import settings_of as parsed  # noqa: PLC0415 # --help needs none of it
    from site_builder.demo import history  # noqa: PLC0415

    zone, play = parsed(environment_of(settings_of(lab, place))).zone, lab.play
    history.fill(place / "state", zone, lab.began, play.hosts, play.seed, play.after)


def settings_of(lab: DemoLab, place: Path) -> dict[str, str]:
    """For the builder and the server: those of the lab, its folders, and a desk where everybody may try booking."""
    folders = {f"GPUBOARD_{name.upper()}": str(place / name) for name in ("data", "www", "state")}
    desk = {"GPUBOARD_BOOK_URL": "book", "GPUBOARD_BOOK_OPEN": "yes"}
    return {**lab.settings(), **folders, **desk, "GPUBOARD_CONF": "/dev/null", "GPUBOARD_CONSUL_SERVICE": ""}


@contextmanager
def stage(folder: str | None, hidden: Path) -> Iterator[Path]:
    """Where the lab's files stand: a folder that is kept must be new, empty or of an earlier demo."""
    if folder is None:
        yield hidden
        return
    place = Path(folder).absolute()
    if place.exists() and not (place / MARK).exists() and (not place.is_dir() or any(place.iterdir())):
        raise Failure(f"{place} is in use for something else: name a folder that is new or empty")
    place.mkdir(parents=True, exist_ok=True)
    (place / MARK).touch()
    for name in ("data", "www", "state"):
        shutil.rmtree(place / name, ignore_errors=True)
    yield place
