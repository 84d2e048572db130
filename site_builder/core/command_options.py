"""Options, messages and completions that commands share."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import click
from click.shell_completion import CompletionItem

from site_builder.config.settings import LoadedSettings, Settings, SettingsError, load_settings
from site_builder.core import files
from site_builder.core.model import FleetUnavailableError

# Options that are settings too, as GPUBOARD_…; every command has the first three.
SETTING_OPTIONS = ("data", "www", "state", "listen", "url", "htpasswd")


def complete_folder_option(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def complete_file_option(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


url_option = click.option("--url", metavar="URL", help="Address of the board.")
# An option that takes a file.
file_option = partial(click.option, metavar="FILE", shell_complete=complete_file_option)


class CommandError(click.ClickException):
    """A failure in one sentence, with exit code 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 # click's signature
        print_command_message(self.message)


class NegativeResultError(CommandError):
    """The answer is no, in one sentence, with exit code 1."""

    exit_code = 1


def print_command_message(sentence: str) -> None:
    click.echo(f"gpuboard: {sentence}", err=True)


def with_setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --conf, --data, --www and --state to a command, and pass their values as `conf` and `options`."""

    @wraps(command)
    def run(conf: str | None, **arguments: Any) -> None:  # noqa: ANN401 # the command's own options
        options = {name: arguments.pop(name) for name in SETTING_OPTIONS if name in arguments}
        command(conf=conf, options=options, **arguments)

    folders = {"state": "The state folder.", "www": "The site folder.", "data": "The folder that GPU hosts push to."}
    for name, text in folders.items():
        run = click.option(f"--{name}", metavar="FOLDER", help=text, shell_complete=complete_folder_option)(run)
    return file_option("--conf", help="The settings file.")(run)


def with_loaded_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same options, and pass all settings in force as `loaded`."""

    @wraps(command)
    def run(conf: str | None, options: dict[str, str | None], **arguments: Any) -> None:  # noqa: ANN401 # the same
        command(loaded=load_command_settings(conf, options), **arguments)

    return with_setting_options(run)


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add the same options, and pass the Settings alone as `settings`."""

    @wraps(command)
    def run(loaded: LoadedSettings, **arguments: Any) -> None:  # noqa: ANN401 # the same
        command(settings=loaded.settings, **arguments)

    return with_loaded_settings(run)


def load_command_settings(conf: str | None, options: dict[str, str | None]) -> LoadedSettings:
    """Load the settings in force and print warnings; a wrong setting is a CommandError."""
    flags = {f"GPUBOARD_{name.upper()}": value for name, value in options.items() if value is not None}
    try:
        loaded = load_settings(conf, flags, os.environ)
    except SettingsError as error:
        raise CommandError(str(error)) from None
    for warning in loaded.conf.warnings:
        print_command_message(warning)
    if loaded.settings.url and loaded.settings.login:
        print_cleartext_warning(loaded.settings.url, "password")
    return loaded


def print_cleartext_warning(url: str, secret: str) -> None:
    """Print a warning if others on the network could read a secret that is sent to a URL."""
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or parts.hostname == "localhost"
    with suppress(ValueError):  # a name is not an address
        is_safe = is_safe or ipaddress.ip_address(parts.hostname or "").is_loopback
    if not is_safe:
        print_command_message(f"your {secret} is sent unencrypted: {url} should be https")


def refuse_command_on_foreign_board(settings: Settings, conf: Path | None = None) -> None:
    """Refuse a state folder that is another user's or that others may write; and as root, another user's settings."""
    try:
        files.refuse_foreign_folder(settings.state)
        if conf and os.geteuid() == 0:  # root would leave files there that their owner cannot replace
            files.refuse_folder_of_other_owner(conf)
    except files.ForeignFolderError as error:
        raise CommandError(str(error)) from None


@contextmanager
def translate_to_command_errors() -> Iterator[None]:
    """Turn a fleet that cannot be loaded into a CommandError."""
    try:
        yield
    except FleetUnavailableError as error:
        raise CommandError(str(error)) from None
