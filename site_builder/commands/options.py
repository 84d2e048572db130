"""What commands share: the options that name settings, and errors in one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from site_builder.settings import Given, Settings
    from site_builder.sources.conf import Conf

# Options that are settings too, named GPUBOARD_ and the same; every command has the first three.
FLAGS = ("data", "www", "state", "listen", "url")


@dataclass(frozen=True)
class Loaded:
    """The settings, and all that can be told of where they came from."""

    settings: Settings
    given: dict[str, Given]
    conf: Conf


class Failure(click.ClickException):
    """What went wrong, in one sentence, and exit 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 # click's own form
        """Tell it on stderr."""
        tell(self.message)


def tell(sentence: str) -> None:
    """One sentence to the person who runs this."""
    click.echo(f"gpuboard: {sentence}", err=True)


def load(conf: str | None, options: dict[str, str | None]) -> Loaded:
    """What is in force here and now; warnings are told, what is wrong is a Failure."""
    from site_builder import settings  # noqa: PLC0415 # --help needs none of it
    from site_builder.sources import conf as source  # noqa: PLC0415

    environment = os.environ
    try:
        file = source.load(conf, environment)
        for warning in file.warnings:
            tell(warning)
        flags = {f"GPUBOARD_{name.upper()}": value for name, value in options.items() if value is not None}
        given = settings.resolve(flags, environment, file.values)
        parsed = settings.settings_of(given, lambda name: source.zone_of(name, environment), source.place_of)
    except settings.Wrong as wrong:
        raise Failure(str(wrong)) from None
    return Loaded(parsed, given, file)


def with_loaded(command: Callable[..., None]) -> Callable[..., None]:
    """Add --conf, --data, --www and --state to a command, and give it what they and all else set, as `loaded`."""

    @wraps(command)
    def run(conf: str | None, **rest: Any) -> None:  # noqa: ANN401 # the command's own options
        options = {name: rest.pop(name) for name in FLAGS if name in rest}
        command(loaded=load(conf, options), **rest)

    for name, what in (
        ("state", "what the builder remembers"),
        ("www", "the site"),
        ("data", "what the GPU hosts push"),
    ):
        run = click.option(f"--{name}", metavar="FOLDER", help=f"The folder of {what}.")(run)
    return click.option("--conf", metavar="FILE", help="The settings file.")(run)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that wants no more than the Settings, as `settings`."""

    @wraps(command)
    def run(loaded: Loaded, **rest: Any) -> None:  # noqa: ANN401 # the command's own options
        command(settings=loaded.settings, **rest)

    return with_loaded(run)
