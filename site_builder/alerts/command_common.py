"""What the commands of `gpuboard alerts` share: the book, the rules, times that people say, words on a screen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from site_builder.core.command_options import Failure, tell

if TYPE_CHECKING:
    from site_builder.alerts.channels import Ways
    from site_builder.alerts.config_files import Ruled
    from site_builder.alerts.model import Book
    from site_builder.alerts.rules import Scene
    from site_builder.alerts.store import AlertBook
    from site_builder.config.settings import Settings
    from site_builder.core.clock import Now

# Seconds: for what lasts longer there is maintenance, in hosts.txt.
LONGEST_SILENCE = 31 * 86400


def moment(settings: Settings) -> Now:
    """This one."""
    from site_builder.core.clock import Now  # noqa: PLC0415 # --help needs none of it

    return Now(time.time(), settings.zone)


def since_of(text: str, now: Now) -> float:
    """The moment that is meant."""
    from site_builder.core.timeparse import past_moments  # noqa: PLC0415 # --help needs none of it
    from site_builder.core.timeparse.durations import Unclear  # noqa: PLC0415

    try:
        return past_moments.moment(text, now.local).timestamp()
    except Unclear as why:
        message = f'--since: "{text}" {why}'
        raise click.UsageError(message) from None


def until_of(text: str, now: Now) -> int:
    """When a silence is over that begins now."""
    from site_builder.core.timeparse.durations import Unclear, length  # noqa: PLC0415 # --help needs none of it

    try:
        until = int(length(text).after(now.local, now.zone).timestamp())
    except Unclear as why:
        message = f'--for: "{text}" {why}'
        raise click.UsageError(message) from None
    if not now.epoch < until <= now.epoch + LONGEST_SILENCE:
        message = "a host can be silenced for up to 31 days: for longer, mark it as maintenance in data/hosts.txt"
        raise click.UsageError(message)
    return until


def book_of(settings: Settings) -> AlertBook:
    """The book of the alerts."""
    from site_builder.alerts import store  # noqa: PLC0415 # --help needs none of it

    return store.book_of(settings.state, settings.kv)


def read(settings: Settings) -> Book:
    """What stands in it; that it is damaged is told."""
    kept = book_of(settings)
    with in_sentences():
        book = kept.read()
    if kept.problem:
        tell(f"{kept.where} {kept.problem}")
    return book


def files_of(settings: Settings) -> Ruled:
    """Rules and contacts."""
    from site_builder.alerts.config_files import AlertFiles  # noqa: PLC0415

    return AlertFiles(settings.alerts, settings.data, settings.www, settings.state).read()


def scene_of(settings: Settings, ways: Ways) -> Scene:
    """What alerts go by, without a look at what the hosts say: it is enough that we know which are in maintenance."""
    from site_builder.alerts.rules import Scene  # noqa: PLC0415
    from site_builder.bookings.host_lookup import Lab  # noqa: PLC0415

    try:
        known = Lab(settings).hosts().values()
    except OSError as error:
        raise Failure(f"{error.filename or settings.data} cannot be read: {error.strerror}") from None
    hosts = {one.name: ("" if one.maintenance is None else "maintenance", 0) for one in known if not one.hidden}
    return Scene(hosts, settings.zone, ways.names(), ways.hooks.names(), settings.url, settings.shown.users)


@contextmanager
def in_sentences() -> Iterator[None]:
    """What stands in the way of reading and writing the book, in one sentence."""
    from site_builder.alerts.store import Unwritable  # noqa: PLC0415

    try:
        yield
    except Unwritable as why:
        raise Failure(str(why)) from None


def show(lines: Sequence[str]) -> None:
    """Print them, without what would steer a terminal."""
    from site_builder.bookings.command_common import shown  # noqa: PLC0415
    from site_builder.config.commands import printable  # noqa: PLC0415

    click.echo("\n".join(printable(shown(line)) for line in lines))


def across() -> int | None:
    """How wide the terminal is; None where there is none."""
    from site_builder.client.list_command import across as measured  # noqa: PLC0415

    return measured()
