"""`gpuboard alerts`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from site_builder.alerts.build import PROBLEM_WHERE, AlertEngine
from site_builder.alerts.model import AlertRule, AlertState, Condition
from site_builder.alerts.queue import AlertContext
from site_builder.alerts.store import LOCK_TIMEOUT_S, AlertStore, StateChange
from site_builder.board.host_pipeline import build_host
from site_builder.bookings.host_lookup import HostLookup
from site_builder.client import completion
from site_builder.client.loader import load_bookings
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.command_options import (
    CommandError,
    NegativeResultError,
    print_message,
    translate_fleet_errors,
    with_settings,
)
from site_builder.core.model import Problem
from site_builder.health.store import EventReader
from site_builder.history.reader import HistoryReader
from site_builder.watches.build import WatchConditions

if TYPE_CHECKING:
    from site_builder.alerts.channels import NotificationChannels
    from site_builder.alerts.config_files import AlertConfig
    from site_builder.alerts.model import AlertState, DeliveryOutcome, Notification
    from site_builder.alerts.queue import AlertContext
    from site_builder.alerts.store import AlertStore, StateChange
    from site_builder.config.settings import Settings
    from site_builder.core.clock import Now

# Seconds: for what lasts longer there is maintenance, in hosts.txt.
MAX_SILENCE_S = 31 * 86400


def read_clock(settings: Settings) -> Now:
    """This one."""
    from site_builder.core.clock import Now  # noqa: PLC0415 # --help needs none of it

    return Now(time.time(), settings.zone)


def parse_since(text: str, now: Now) -> float:
    """The moment that is meant."""
    from site_builder.core.timeparse import moments  # noqa: PLC0415 # --help needs none of it
    from site_builder.core.timeparse.moments import UnclearTimeError  # noqa: PLC0415

    try:
        return moments.parse_past_moment(text, now.local).timestamp()
    except UnclearTimeError as why:
        message = f'--since: "{text}" {why}'
        raise click.UsageError(message) from None


def parse_silence_end(text: str, now: Now) -> int:
    """When a silence is over that begins now."""
    from site_builder.core.timeparse.moments import UnclearTimeError, parse_duration  # noqa: PLC0415 # --help needs none of it

    try:
        until = int(parse_duration(text).add_to(now.local, now.zone).timestamp())
    except UnclearTimeError as why:
        message = f'--for: "{text}" {why}'
        raise click.UsageError(message) from None
    if not now.epoch < until <= now.epoch + MAX_SILENCE_S:
        message = "a host can be silenced for up to 31 days: for longer, mark it as maintenance in data/hosts.txt"
        raise click.UsageError(message)
    return until


def open_store(settings: Settings) -> AlertStore:
    """The book of the alerts."""
    from site_builder.alerts import store  # noqa: PLC0415 # --help needs none of it

    return store.open_alert_store(settings.state, settings.kv)


def read_alert_state(settings: Settings) -> AlertState:
    """What stands in it; that it is damaged is told."""
    kept = open_store(settings)
    with translate_state_errors():
        book = kept.read()
    if kept.problem:
        print_message(f"{kept.where} {kept.problem}")
    return book


def load_alert_config(settings: Settings) -> AlertConfig:
    """Rules and contacts."""
    from site_builder.alerts.config_files import AlertConfigFiles  # noqa: PLC0415

    return AlertConfigFiles(settings.alerts, settings.data, settings.www, settings.state).read()


def build_alert_context(settings: Settings, ways: NotificationChannels) -> AlertContext:
    """What alerts go by, without a look at what the hosts say: it is enough that we know which are in maintenance."""
    from site_builder.alerts.queue import AlertContext  # noqa: PLC0415
    from site_builder.bookings.host_lookup import HostLookup  # noqa: PLC0415

    try:
        known = HostLookup(settings).list_hosts().values()
    except OSError as error:
        raise CommandError(f"{error.filename or settings.data} cannot be read: {error.strerror}") from None
    hosts = {one.name: ("" if one.maintenance is None else "maintenance", 0) for one in known if not one.is_hidden}
    return AlertContext(
        hosts,
        settings.zone,
        ways.list_channel_names(),
        ways.hooks.list_runnable_names(),
        settings.url,
        settings.privacy.users,
    )


@contextmanager
def translate_state_errors() -> Iterator[None]:
    """What stands in the way of reading and writing the book, in one sentence."""
    from site_builder.alerts.store import AlertStateError  # noqa: PLC0415

    try:
        yield
    except AlertStateError as why:
        raise CommandError(str(why)) from None


def print_lines(lines: Sequence[str]) -> None:
    """Print them, without what would steer a terminal."""
    from site_builder.bookings.commands import clean_for_terminal  # noqa: PLC0415
    from site_builder.core.terminal_text import replace_unencodable  # noqa: PLC0415

    click.echo("\n".join(replace_unencodable(clean_for_terminal(line)) for line in lines))


def measure_terminal() -> int | None:
    """How wide the terminal is; None where there is none."""
    from site_builder.core.terminal_text import find_terminal_width as measured  # noqa: PLC0415

    return measured()


class DryRunResult(NamedTuple):
    """The book as it is, as the next build would leave it, and by what that was decided."""

    before: AlertState
    after: AlertState
    rules: dict[str, AlertRule]
    context: AlertContext
    problems: list[Problem]


class ReadOnlyAlertStore(AlertStore):
    """A book that is read, and changed only for whoever asks."""

    def __init__(self, book: AlertStore) -> None:
        """The one that is kept."""
        self.store, self.where, self.problem = book, book.where, book.problem

    def read(self) -> AlertState:
        """As it is."""
        return self.store.read()

    def change(self, change: StateChange, patience: float = LOCK_TIMEOUT_S) -> AlertState:  # noqa: ARG002 # nobody is waited for
        """As it would be."""
        return change(self.read())


class ReadOnlyWatches(WatchConditions):
    """Watches that are looked at, and stay as they are."""

    def save_fulfilled_since(self) -> None:
        """Since when they come true is the builder's to remember."""

    def remove_reported(self, matters: Iterable[Condition], book: AlertState, expires: bool = True) -> None:
        """None of them was told."""


def simulate_next_build(settings: Settings, now: Now) -> DryRunResult:
    """Look at all hosts as a build would; OSError and `fleet.Failed` say why that cannot be."""
    lab = HostLookup(settings)
    shown = [name for name, one in lab.list_hosts().items() if not one.is_hidden]
    found = lab.decide_hosts(shown, load_bookings(settings), now, remembered=True)
    cards = {
        host.discovered.name: build_host(host, found.rules, lab.gpu_names, now.copy_with_own_expiry())
        for host in found.inputs
    }
    past = HistoryReader(settings.state, settings.zone)
    try:
        alerts = AlertEngine(settings, EventReader(past), ReadOnlyWatches(settings))
        alerts.store = ReadOnlyAlertStore(alerts.store)
        before, after = alerts.store.read(), alerts.update_state(cards, now)
        scene = alerts.build_context(
            {host: (card.summary.state, len(card.summary.gpu_identities)) for host, card in cards.items()}
        )
        ruled = alerts.config_files.read()
    finally:
        past.close()
    troubles = [*ruled.problems, *alerts.watches.problems, *([past.problem] if past.problem else [])]
    if alerts.failure:
        troubles.append(Problem(PROBLEM_WHERE, alerts.failure))
    return DryRunResult(before, after, ruled.rules, scene, troubles)


NO_RECEIVERS_MESSAGE = "nobody is told anything: set GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS (docs/alerts.md)"


@click.group()
def alerts() -> None:
    """Show problems and who was notified; test and silence.

    The builder tells people by itself where GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS is set; docs/alerts.md
    says how. Call these on the web host, as the user who builds the board.

    \b
    gpuboard alerts test
    gpuboard alerts list
    gpuboard alerts silence atlas --for 2h
    """


@alerts.command("test")
@click.option("--to", "only", metavar="NAME", help="Only there: a channel, hook:FILE or person:LOGIN.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@with_settings
def send_test(settings: Settings, only: str | None, as_json: bool) -> None:
    """Send a test now, to every channel and hook or to one, and say of each how it went.

    Exit 1 if one failed. Neither quiet hours nor limits hold it back, and no history keeps it.

    \b
    gpuboard alerts test
    gpuboard alerts test --to lab
    gpuboard alerts test --to person:alice
    """
    from site_builder.alerts import table  # noqa: PLC0415 # --help needs none of it

    if not settings.alerts.is_enabled:
        raise CommandError(NO_RECEIVERS_MESSAGE)
    from site_builder.alerts.sender import load_channels  # noqa: PLC0415

    ways = load_channels(settings)
    found: list[tuple[str, DeliveryOutcome]] = []
    for to in find_test_receivers(ways, only):
        found.append((to, send_test_notification(ways, to, settings)))
        if not as_json:
            print_lines([table.format_outcome(*found[-1])])
    if as_json:
        click.echo(table.outcomes_to_json(found))
    if any(outcome.status != "sent" for _, outcome in found):
        sys.exit(1)


@alerts.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs, with nothing cut.")
@with_settings
def list_alerts(settings: Settings, as_json: bool) -> None:
    """List what is the matter, since when, and whether it was told or why not.

    Then what is to come, letters that wait, hosts that are silent, where alerts go, and the rules in force. It is as
    the builder knew it at its last look.

    \b
    gpuboard alerts list
    gpuboard alerts list --json
    """
    from site_builder.alerts import table  # noqa: PLC0415
    from site_builder.alerts.rules import list_condition_statuses  # noqa: PLC0415 # --help needs none of it
    from site_builder.alerts.sender import load_channels  # noqa: PLC0415

    now = read_clock(settings)
    book = read_alert_state(settings)
    ruled = load_alert_config(settings)
    ways = load_channels(settings)
    found = table.AlertList(
        list_condition_statuses(book, ruled.rules, build_alert_context(settings, ways), now),
        book.notifications,
        {host: until for host, until in book.silences.items() if until > now.epoch},
        [table.ListedReceiver(*one) for one in ways.check_receivers()],
        tuple(ruled.rules.values()),
    )
    if as_json:
        click.echo(table.alert_list_to_json(found))
    else:
        print_lines(table.format_alert_list(found, now, measure_terminal()))
    for problem in ruled.problems:
        print_message(f"{problem.where}: {problem.what}")
    if not settings.alerts.is_enabled:
        print_message(NO_RECEIVERS_MESSAGE)
    elif book.started_at is None:
        print_message("no build has looked yet; `gpuboard alerts run --dry-run` shows what it would tell")


@alerts.command("history")
@click.option("--since", metavar="TIME", default="7d", show_default=True, help="From then on: 2h, 7d, yesterday, mon.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs, with nothing cut.")
@with_settings
def show_history(settings: Settings, since: str, as_json: bool) -> None:
    """List what was told, the latest first, and what could not be.

    \b
    gpuboard alerts history
    gpuboard alerts history --since 30d --json
    """
    from site_builder.alerts import table  # noqa: PLC0415 # --help needs none of it

    now = read_clock(settings)
    first = parse_since(since, now)
    book = read_alert_state(settings)
    found = sorted((one for one in book.history if one.at >= first), key=lambda one: -one.at)
    if as_json:
        click.echo(table.delivery_history_to_json(found))
    elif found:
        print_lines(table.format_delivery_history(found, now, measure_terminal()))
    else:
        print_message(f"nothing was told since {table.format_time_cell(first, now)}")


@alerts.command("silence")
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=completion.complete_hosts)
@click.option("--for", "length", metavar="TIME", help="For how long, like 2h or 1d 12h.")
@click.option("--end", is_flag=True, help="Let it speak again.")
@with_settings
def silence_hosts(settings: Settings, hosts: Sequence[str], length: str | None, end: bool) -> None:
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
    from site_builder.alerts.table import format_time_cell  # noqa: PLC0415
    from site_builder.bookings.host_lookup import HostLookup  # noqa: PLC0415 # --help needs none of it
    from site_builder.bookings.policy import BookingRefusedError  # noqa: PLC0415

    now = read_clock(settings)
    until = None if length is None else parse_silence_end(length, now)
    book = open_store(settings)
    with translate_state_errors():
        before = book.read().silences
    try:
        lab = HostLookup(settings)
        names = list(dict.fromkeys(host if end and host in before else lab.find_host(host) for host in hosts))
    except BookingRefusedError as why:
        raise NegativeResultError(str(why)) from None
    except OSError as error:
        raise CommandError(f"{error.filename or settings.data} cannot be read: {error.strerror}") from None
    with translate_state_errors():
        book.change(build_silence_change(names, until, now))
    for name in names:
        if until is not None:
            print_message(f"{name} is silent until {format_time_cell(until, now)}")
        elif before.get(name, 0) > now.epoch:
            print_message(f"{name} is silent no longer")
        else:
            print_message(f"{name} was not silent")


@alerts.command("run")
@click.option("--dry-run", is_flag=True, help="Only show what would be sent and why, and what not and why not.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: as JSON, for programs.")
@with_settings
def send_queued(settings: Settings, dry_run: bool, as_json: bool) -> None:
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
        show_dry_run(settings, as_json)
        return
    if not settings.alerts.is_enabled:
        raise CommandError(NO_RECEIVERS_MESSAGE)
    from site_builder.alerts import sender, table  # noqa: PLC0415 # --help needs none of it

    failed = 0

    def heard(letter: Notification, outcome: DeliveryOutcome) -> None:
        nonlocal failed
        failed += outcome.status != "sent"
        print_lines(table.format_sent_notification(letter, outcome))

    with translate_state_errors():
        try:
            count = sender.send_due_notifications(settings, heard)
        except sender.SenderBusyError as why:
            print_message(str(why))
            return
        except OSError as error:
            raise CommandError(f"{error.filename or settings.state} cannot be opened: {error.strerror}") from None
    if not count:
        print_message("no letter is due")
    if failed:
        sys.exit(1)


def build_silence_change(names: Sequence[str], until: int | None, now: Now) -> StateChange:
    """A book in which these hosts are silent until then, or no longer; silences that are over are let go of."""

    def change(book: AlertState) -> AlertState:
        kept = {host: end for host, end in book.silences.items() if end > now.epoch and host not in names}
        return book._replace(silences=kept if until is None else {**kept, **dict.fromkeys(names, until)})

    return change


# A rehearsal


def show_dry_run(settings: Settings, as_json: bool) -> None:
    """Show what the next build would send, and what not."""
    from site_builder.alerts import table  # noqa: PLC0415 # --help needs none of it
    from site_builder.alerts.render import render_notification  # noqa: PLC0415
    from site_builder.alerts.rules import list_condition_statuses  # noqa: PLC0415
    from site_builder.alerts.sender import load_channels  # noqa: PLC0415

    now = read_clock(settings)
    with translate_state_errors(), translate_fleet_errors():
        try:
            found = simulate_next_build(settings, now)
        except OSError as error:
            raise CommandError(f"{error.filename or settings.data} cannot be read: {error.strerror}") from None
    ways = load_channels(settings)
    there = {one.name: one.problem or one.masked_address for one in ways.check_receivers()}
    trial = table.DryRunList(
        [
            (
                letter,
                render_notification(letter, settings.zone, settings.privacy.users),
                describe_destination(letter, ways, there),
            )
            for letter in found.after.notifications
        ],
        list_condition_statuses(found.after, found.rules, found.context, now),
    )
    if as_json:
        click.echo(table.dry_run_to_json(trial))
    else:
        print_lines(table.format_dry_run(trial, now, measure_terminal()))
    for problem in found.problems:
        print_message(f"{problem.where}: {problem.what}")
    if not settings.alerts.is_enabled:
        print_message(NO_RECEIVERS_MESSAGE)


def describe_destination(letter: Notification, ways: NotificationChannels, there: Mapping[str, str]) -> str:
    """Where a letter goes, masked."""
    from site_builder.alerts.model import PERSON_PREFIX  # noqa: PLC0415

    if not letter.to.startswith(PERSON_PREFIX):
        return there.get(letter.to, "")
    found = ways.check_person(letter.to[len(PERSON_PREFIX) :], letter.via)
    return ", ".join(one.problem or one.masked_address for one in found)


# A test


def find_test_receivers(ways: NotificationChannels, only: str | None) -> list[str]:
    """Whom a test is for, as letters name them."""
    from site_builder.alerts.model import CHANNEL_PREFIX, HOOK_PREFIX, PERSON_PREFIX  # noqa: PLC0415 # --help needs none of it

    channels, hooks = ways.list_channel_names(), [one.name for one in ways.hooks.check_hooks() if one.name]
    if only is None:
        if not (channels or hooks):
            why = next((one.problem for one in ways.hooks.check_hooks() if one.problem), None)
            message = "there is no channel and no hook to test: a person is told with --to person:LOGIN"
            raise CommandError(f"the folder of hooks {why}" if why else message)
        return [*(f"{CHANNEL_PREFIX}{name}" for name in channels), *(f"{HOOK_PREFIX}{name}" for name in hooks)]
    if only in channels:
        return [f"{CHANNEL_PREFIX}{only}"]
    if (only.startswith(HOOK_PREFIX) and only[len(HOOK_PREFIX) :] in hooks) or (
        only.startswith(PERSON_PREFIX) and only != PERSON_PREFIX
    ):
        return [only]
    there = ", ".join([*channels, *(f"{HOOK_PREFIX}{name}" for name in hooks)])
    raise CommandError(
        f"nothing is called {only[:80]!r}: there is {f'{there} and ' if there else ''}{PERSON_PREFIX}LOGIN"
    )


def send_test_notification(ways: NotificationChannels, to: str, settings: Settings) -> DeliveryOutcome:
    """How a test to one of them went."""
    from site_builder.alerts.model import STEP_TEST, Alert, Notification  # noqa: PLC0415
    from site_builder.alerts.render import render_notification  # noqa: PLC0415

    at = int(time.time())
    what = "this is a test: alerts of this board arrive here"
    alert = Alert(
        f"test {at}", "test", STEP_TEST, "gpuboard: a test", what, at, link=settings.url, why="gpuboard alerts test"
    )
    letter = Notification(alert.id, to, (alert,), at, at)
    return ways.send(letter, render_notification(letter, settings.zone))
