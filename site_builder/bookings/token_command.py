"""`gpuboard token`: who may book over the web from a machine that has no other way to say who they are."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from site_builder.core.command_options import Failure, tell, with_settings

if TYPE_CHECKING:
    from site_builder.bookings.tokens import Tokens
    from site_builder.config.settings import Settings


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="Whose tokens there are, and since when.")
@click.option("--json", "as_json", is_flag=True, help="With --list: as JSON, for programs.")
@click.option("--revoke", metavar="NAME", help="Take away all tokens of NAME.")
@with_settings
def token(settings: Settings, name: str | None, listing: bool, as_json: bool, revoke: str | None) -> None:
    """Make a token by which NAME may book, and print it this once.

    Whoever has it books as NAME, through the board, with GPUBOARD_TOKEN set to it. It is kept only as a hash, in
    state/tokens.json. Call this on the web host, as the user who builds the board.

    \b
    gpuboard token alice
    gpuboard token --list
    gpuboard token --revoke alice
    """
    if (name is not None) + listing + (revoke is not None) != 1:
        message = "name somebody, or give --list, or --revoke NAME"
        raise click.UsageError(message)
    from site_builder.bookings.identity import OddName, right_name  # noqa: PLC0415 # --help needs none of it
    from site_builder.bookings.store import Unwritable  # noqa: PLC0415
    from site_builder.bookings.tokens import Tokens  # noqa: PLC0415

    tokens = Tokens(settings.state)
    try:
        if name is not None:
            made = tokens.make(right_name(name), time.time())
            tell(f"{name} sets GPUBOARD_TOKEN to this; it is not shown again")
            click.echo(made)
        elif revoke is not None:
            take_away(tokens, revoke)
        else:
            show(tokens, as_json)
        if tokens.problem:
            tell(f"{tokens.path} {tokens.problem}")
    except (Unwritable, OddName) as why:
        raise Failure(str(why)) from None


def take_away(tokens: Tokens, name: str) -> None:
    """All that somebody has; exit 1 where there is none."""
    count = tokens.revoke(name)
    if not count:
        tell(f"there is no token of {name}")
        sys.exit(1)
    tell(f"{count} {'token' if count == 1 else 'tokens'} of {name} counted until now")


def show(tokens: Tokens, as_json: bool) -> None:
    """Names and days, nothing by which anybody could book."""
    found = tokens.all()
    if as_json:
        import orjson  # noqa: PLC0415

        click.echo(orjson.dumps([{"name": one.name, "made": one.made} for one in found]).decode())
        return
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        click.echo(f"{one.name:<{width}}  {datetime.fromtimestamp(one.made):%Y-%m-%d %H:%M}")
