"""`gpuboard alerts`: what is the matter, what was told, and that it arrives."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from site_builder.alerts.command_common import (
    across,
    book_of,
    files_of,
    in_sentences,
    moment,
    read,
    scene_of,
    show,
    since_of,
    until_of,
)
from site_builder.bookings.command_common import No
from site_builder.client import completion
from site_builder.core.command_options import Failure, failing, tell, with_settings

if TYPE_CHECKING:
    from site_builder.alerts.channels import Ways
    from site_builder.alerts.model import Book, Letter, Outcome
    from site_builder.alerts.store import Change
    from site_builder.config.settings import Settings
    from site_builder.core.clock import Now

NOWHERE = "nobody is told anything: set GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS (docs/alerts.md)"


@click.group()
def alerts() -> None:
    """What is the matter, what was told of it, and to whom.

    The builder tells people by itself where GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS is set; docs/alerts.md
    says how. Call these on the web host, as the user who builds the board.

    \b
    gpuboard alerts test
    gpuboard alerts list
    gpuboard alerts silence atlas --for 2h
    """


@alerts.command()
@click.option("--to", "only", metavar="NAME", help="Only there: a channel, hook:FILE or person:LOGIN.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@with_settings
def test(settings: Settings, only: str | None, as_json: bool) -> None:
    """Send a test now, to every channel and hook or to one, and say of each how it went.

    Exit 1 if one failed. Neither quiet hours nor limits hold it back, and no history keeps it.

    \b
    gpuboard alerts test
    gpuboard alerts test --to lab
    gpuboard alerts test --to person:alice
    """
    from site_builder.alerts import table  # noqa: PLC0415 # --help needs none of it

    if not settings.alerts.wanted:
        raise Failure(NOWHERE)
    from site_builder.alerts.sender import ways_of  # noqa: PLC0415

    ways = ways_of(settings)
    found: list[tuple[str, Outcome]] = []
    for to in receivers(ways, only):
        found.append((to, tried(ways, to, settings)))
        if not as_json:
            show([table.outcome(*found[-1])])
    if as_json:
        click.echo(table.outcomes_json(found))
    if any(outcome.how != "sent" for _, outcome in found):
        sys.exit(1)


@alerts.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs, with nothing cut.")
@with_settings
def listing(settings: Settings, as_json: bool) -> None:
    """List what is the matter, since when, and whether it was told or why not.

    Then what is to come, letters that wait, hosts that are silent, where alerts go, and the rules in force. It is as
    the builder knew it at its last look.

    \b
    gpuboard alerts list
    gpuboard alerts list --json
    """
    from site_builder.alerts import table  # noqa: PLC0415
    from site_builder.alerts.sender import ways_of  # noqa: PLC0415
    from site_builder.alerts.status import standings  # noqa: PLC0415 # --help needs none of it

    now = moment(settings)
    book = read(settings)
    ruled = files_of(settings)
    ways = ways_of(settings)
    found = table.Listed(
        standings(book, ruled.rules, scene_of(settings, ways), now),
        book.letters,
        {host: until for host, until in book.silences.items() if until > now.epoch},
        [table.Place(*one) for one in ways.check()],
        tuple(ruled.rules.values()),
    )
    if as_json:
        click.echo(table.listed_json(found))
    else:
        show(table.listed(found, now, across()))
    for problem in ruled.problems:
        tell(f"{problem.where}: {problem.what}")
    if not settings.alerts.wanted:
        tell(NOWHERE)
    elif book.begun is None:
        tell("no build has looked yet; `gpuboard alerts run --dry-run` shows what it would tell")


@alerts.command()
@click.option("--since", metavar="TIME", default="7d", show_default=True, help="From then on: 2h, 7d, yesterday, mon.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs, with nothing cut.")
@with_settings
def history(settings: Settings, since: str, as_json: bool) -> None:
    """List what was told, the latest first, and what could not be.

    \b
    gpuboard alerts history
    gpuboard alerts history --since 30d --json
    """
    from site_builder.alerts import table  # noqa: PLC0415 # --help needs none of it

    now = moment(settings)
    first = since_of(since, now)
    book = read(settings)
    found = sorted((one for one in book.history if one.at >= first), key=lambda one: -one.at)
    if as_json:
        click.echo(table.told_json(found))
    elif found:
        show(table.history(found, now, across()))
    else:
        tell(f"nothing was told since {table.clock(first, now)}")


@alerts.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=completion.hosts)
@click.option("--for", "length", metavar="TIME", help="For how long, like 2h or 1d 12h.")
@click.option("--end", is_flag=True, help="Let it speak again.")
@with_settings
def silence(settings: Settings, hosts: Sequence[str], length: str | None, end: bool) -> None:
    """Tell nobody of HOST and its GPUs for a while.

    What is over by then is not told at all; what still is so is told then. What people wait for, and that their
    bookings begin and end, is told all the same. A host that hosts.txt marks as maintenance is silent without this.

    \b
    gpuboard alerts silence atlas --for 2h
    gpuboard alerts silence atlas hydra --for '1d 12h'
    gpuboard alerts silence atlas --end
    """
    if end == (length is not None):
        message = "say for how long, as --for 2h, or --end"
        raise click.UsageError(message)
    from site_builder.alerts.table import clock  # noqa: PLC0415
    from site_builder.bookings.host_lookup import Lab  # noqa: PLC0415 # --help needs none of it
    from site_builder.bookings.policy import Refused  # noqa: PLC0415

    now = moment(settings)
    until = None if length is None else until_of(length, now)
    book = book_of(settings)
    with in_sentences():
        before = book.read().silences
    try:
        lab = Lab(settings)
        names = list(dict.fromkeys(host if end and host in before else lab.find(host) for host in hosts))
    except Refused as why:
        raise No(str(why)) from None
    except OSError as error:
        raise Failure(f"{error.filename or settings.data} cannot be read: {error.strerror}") from None
    with in_sentences():
        book.change(silencing(names, until, now))
    for name in names:
        if until is not None:
            tell(f"{name} is silent until {clock(until, now)}")
        elif before.get(name, 0) > now.epoch:
            tell(f"{name} is silent no longer")
        else:
            tell(f"{name} was not silent")


@alerts.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be sent and why, and what not and why not.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: as JSON, for programs.")
@with_settings
def run(settings: Settings, dry_run: bool, as_json: bool) -> None:
    """Send what waits and is due, as the builder lets it be done by itself.

    With --dry-run, it decides from data/ as the next build would, shows letter by letter what would be sent, to whom
    and why, and changes nothing.

    \b
    gpuboard alerts run
    gpuboard alerts run --dry-run
    """
    if as_json and not dry_run:
        message = "--json goes with --dry-run"
        raise click.UsageError(message)
    if dry_run:
        rehearse(settings, as_json)
        return
    if not settings.alerts.wanted:
        raise Failure(NOWHERE)
    from site_builder.alerts import sender, table  # noqa: PLC0415 # --help needs none of it

    failed = 0

    def heard(letter: Letter, outcome: Outcome) -> None:
        nonlocal failed
        failed += outcome.how != "sent"
        show(table.sent(letter, outcome))

    with in_sentences():
        try:
            count = sender.deliver(settings, heard)
        except sender.Busy as why:
            tell(str(why))
            return
        except OSError as error:
            raise Failure(f"{error.filename or settings.state} cannot be opened: {error.strerror}") from None
    if not count:
        tell("no letter is due")
    if failed:
        sys.exit(1)


def silencing(names: Sequence[str], until: int | None, now: Now) -> Change:
    """A book in which these hosts are silent until then, or no longer; silences that are over are let go of."""

    def change(book: Book) -> Book:
        kept = {host: end for host, end in book.silences.items() if end > now.epoch and host not in names}
        return book._replace(silences=kept if until is None else {**kept, **dict.fromkeys(names, until)})

    return change


# A rehearsal


def rehearse(settings: Settings, as_json: bool) -> None:
    """Show what the next build would send, and what not."""
    from site_builder.alerts import dry_run, table  # noqa: PLC0415 # --help needs none of it
    from site_builder.alerts.render import message  # noqa: PLC0415
    from site_builder.alerts.sender import ways_of  # noqa: PLC0415
    from site_builder.alerts.status import standings  # noqa: PLC0415

    now = moment(settings)
    with in_sentences(), failing():
        try:
            found = dry_run.rehearse(settings, now)
        except OSError as error:
            raise Failure(f"{error.filename or settings.data} cannot be read: {error.strerror}") from None
    ways = ways_of(settings)
    there = {one.name: one.problem or one.shown for one in ways.check()}
    trial = table.Trial(
        [
            (letter, message(letter, settings.zone, settings.shown.users), address_of(letter, ways, there))
            for letter in found.after.letters
        ],
        standings(found.after, found.rules, found.scene, now),
    )
    if as_json:
        click.echo(table.rehearsed_json(trial))
    else:
        show(table.rehearsed(trial, now, across()))
    for problem in found.problems:
        tell(f"{problem.where}: {problem.what}")
    if not settings.alerts.wanted:
        tell(NOWHERE)


def address_of(letter: Letter, ways: Ways, there: Mapping[str, str]) -> str:
    """Where a letter goes, masked."""
    from site_builder.alerts.model import PERSON  # noqa: PLC0415

    if not letter.to.startswith(PERSON):
        return there.get(letter.to, "")
    found = ways.check_person(letter.to[len(PERSON) :], letter.via)
    return ", ".join(one.problem or one.shown for one in found)


# A test


def receivers(ways: Ways, only: str | None) -> list[str]:
    """Whom a test is for, as letters name them."""
    from site_builder.alerts.model import CHANNEL, HOOK, PERSON  # noqa: PLC0415 # --help needs none of it

    channels, hooks = ways.names(), [one.name for one in ways.hooks.look() if one.name]
    if only is None:
        if not (channels or hooks):
            why = next((one.problem for one in ways.hooks.look() if one.problem), None)
            message = "there is no channel and no hook to test: a person is told with --to person:LOGIN"
            raise Failure(f"the folder of hooks {why}" if why else message)
        return [*(f"{CHANNEL}{name}" for name in channels), *(f"{HOOK}{name}" for name in hooks)]
    if only in channels:
        return [f"{CHANNEL}{only}"]
    if (only.startswith(HOOK) and only[len(HOOK) :] in hooks) or (only.startswith(PERSON) and only != PERSON):
        return [only]
    there = ", ".join([*channels, *(f"{HOOK}{name}" for name in hooks)])
    raise Failure(f"nothing is called {only[:80]!r}: there is {f'{there} and ' if there else ''}{PERSON}LOGIN")


def tried(ways: Ways, to: str, settings: Settings) -> Outcome:
    """How a test to one of them went."""
    from site_builder.alerts.model import TEST, Alert, Letter  # noqa: PLC0415
    from site_builder.alerts.render import message  # noqa: PLC0415

    at = int(time.time())
    what = "this is a test: alerts of this board arrive here"
    alert = Alert(
        f"test {at}", "test", TEST, "gpuboard: a test", what, at, link=settings.url, why="gpuboard alerts test"
    )
    letter = Letter(alert.id, to, (alert,), at, at)
    return ways.send(letter, message(letter, settings.zone))
