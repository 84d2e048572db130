"""What commands share: the options that name settings, and errors in one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import IO, TYPE_CHECKING, Any

import click

from site_builder.client import completion

if TYPE_CHECKING:
    from pathlib import Path

    from site_builder.config.conf_file import LoadedSettings
    from site_builder.config.settings import Settings

# Options that are settings too, named GPUBOARD_ and the same; every command has the first three.
SETTING_OPTIONS = ("data", "www", "state", "listen", "url", "htpasswd")


class CommandError(click.ClickException):
    """What went wrong, in one sentence, and exit 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 # click's own form
        """Tell it on stderr."""
        print_message(self.message)


def print_message(sentence: str) -> None:
    """One sentence to the person who runs this."""
    click.echo(f"gpuboard: {sentence}", err=True)


def load_command_settings(conf: str | None, options: dict[str, str | None]) -> LoadedSettings:
    """What is in force here and now; warnings are told, what is wrong is a Failure."""
    from site_builder.config.conf_file import load_settings  # noqa: PLC0415
    from site_builder.config.settings import SettingsError  # noqa: PLC0415 # --help needs none of it

    flags = {f"GPUBOARD_{name.upper()}": value for name, value in options.items() if value is not None}
    try:
        loaded = load_settings(conf, flags, os.environ)
    except SettingsError as wrong:
        raise CommandError(str(wrong)) from None
    for warning in (*loaded.conf.warnings, *find_cleartext_warnings(loaded)):
        print_message(warning)
    return loaded


def find_cleartext_warnings(loaded: LoadedSettings) -> list[str]:
    """What is said of a password that others on the network could read."""
    url = loaded.settings.url
    if not (url and loaded.settings.login):
        return []
    from site_builder.core.board_client import is_cleartext_url  # noqa: PLC0415 # slow to import

    return [f"your password crosses the network in the clear: {url} should be https"] if is_cleartext_url(url) else []


def refuse_foreign(settings: Settings, conf: Path | None = None) -> None:
    """Refuse a state folder that is another user's or that others may write; and as root, another user's settings.

    Root must run nobody else's board: it would leave files there that its owner cannot replace.
    """
    from site_builder.core import files  # noqa: PLC0415 # --help needs none of it

    try:
        files.check_folder(settings.state)
        if conf and os.geteuid() == 0:
            files.refuse_other_owner(conf)
    except files.ForeignFolderError as why:
        raise CommandError(str(why)) from None


@contextmanager
def translate_fleet_errors() -> Iterator[None]:
    """Where there is no fleet, one sentence and exit 2."""
    from site_builder.core.board_client import FleetUnavailableError  # noqa: PLC0415 # --help needs none of it

    try:
        yield
    except FleetUnavailableError as why:
        raise CommandError(str(why)) from None


def with_setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --conf, --data, --www and --state to a command, and give it what was named, as `conf` and `options`."""

    @wraps(command)
    def run(conf: str | None, **rest: Any) -> None:  # noqa: ANN401 # the command's own options
        options = {name: rest.pop(name) for name in SETTING_OPTIONS if name in rest}
        command(conf=conf, options=options, **rest)

    for name, what in (
        ("state", "what the builder remembers"),
        ("www", "the site"),
        ("data", "what the GPU hosts push"),
    ):
        run = click.option(
            f"--{name}", metavar="FOLDER", help=f"The folder of {what}.", shell_complete=completion.complete_folders
        )(run)
    return click.option("--conf", metavar="FILE", help="The settings file.", shell_complete=completion.complete_files)(
        run
    )


def with_loaded_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The same, and give it what they and all else set, as `loaded`."""

    @wraps(command)
    def run(conf: str | None, options: dict[str, str | None], **rest: Any) -> None:  # noqa: ANN401 # the same
        command(loaded=load_command_settings(conf, options), **rest)

    return with_setting_options(run)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that wants no more than the Settings, as `settings`."""

    @wraps(command)
    def run(loaded: LoadedSettings, **rest: Any) -> None:  # noqa: ANN401 # the command's own options
        command(settings=loaded.settings, **rest)

    return with_loaded_settings(run)


class NegativeResultError(CommandError):
    """The answer is no, in one sentence, and exit 1."""

    exit_code = 1
