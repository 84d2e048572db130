"""`gpuboard alerts`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

import click

from site_builder.alerts import model, sender, table
from site_builder.alerts.build import PROBLEM_WHERE, AlertEngine
from site_builder.alerts.channels import NotificationChannels, load_channels
from site_builder.alerts.contacts import ContactsAndRules
from site_builder.alerts.model import Alert, AlertContext, AlertState, DeliveryOutcome, Notification
from site_builder.alerts.render import format_alert_time, render_notification
from site_builder.alerts.store import AlertStateError, open_alert_store
from site_builder.board.host_pipeline import run_host_pipeline
from site_builder.bookings.host_lookup import HostLookup
from site_builder.bookings.policy import BookingRefusedError
from site_builder.client.loader import load_fleet_bookings
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.command_options import (
    CommandError,
    NegativeResultError,
    print_command_message,
    translate_to_command_errors,
    with_settings,
)
from site_builder.core.formatting import DAY
from site_builder.core.model import Problem
from site_builder.core.terminal_text import clean_text, find_terminal_width, replace_unencodable
from site_builder.core.timeparse import moments
from site_builder.health.store import StoredEventReader
from site_builder.history.reader import HistoryReader
from site_builder.snapshots.completion import complete_hosts
from site_builder.watches.build import WatchConditions

MAX_SILENCE_S = 31 * DAY  # for longer there is maintenance, in hosts.txt
NO_RECEIVERS_MESSAGE = "alerts are off: set GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS (docs/alerts.md)"


@click.group()
def alerts() -> None:
    """Show problems and who was notified; test and silence.

    The builder sends notifications by itself if GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS is set; see
    docs/alerts.md. Run these commands on the web host, as the user who builds the board.

    \b
    gpuboard alerts test
    gpuboard alerts list
    gpuboard alerts silence atlas --for 2h
    """


@alerts.command("test")
@click.option("--to", "only", metavar="NAME", help="Only to this channel, hook:FILE or person:LOGIN.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@with_settings
def send_test(settings: Settings, only: str | None, as_json: bool) -> None:
    """Send a test message to all channels and hooks, or one.

    The result of each is printed; exit 1 if one failed. Quiet hours and limits do not apply, and the test is not in
    the history.

    \b
    gpuboard alerts test
    gpuboard alerts test --to lab
    gpuboard alerts test --to person:alice
    """
    if not settings.alerts.is_enabled:
        raise CommandError(NO_RECEIVERS_MESSAGE)
    channels = load_channels(settings)
    now = int(time.time())
    alert = Alert(
        id=f"test {now}",
        rule="test",
        step=model.STEP_TEST,
        title="gpuboard: a test",
        what="this is a test: alerts of this board arrive here",
        at=now,
        link=settings.url,
        why="gpuboard alerts test",
    )
    tests = []
    for to in find_test_receivers(channels, only):
        notification = Notification(id=alert.id, to=to, alerts=(alert,), created_at=now, due_at=now)
        outcome = channels.send(notification, render_notification(notification, settings.zone))
        tests.append({"to": to, "status": outcome.status, "reason": outcome.reason})
        if not as_json:
            print_alert_lines([table.format_table_outcome(to, outcome)])
    if as_json:
        click.echo(table.dump_alert_table_json({"tests": tests}))
    if any(test["status"] != model.SENT for test in tests):
        sys.exit(1)


def find_test_receivers(channels: NotificationChannels, only: str | None) -> list[str]:
    """Return the receivers of a test as notifications name them."""
    hooks = channels.hooks.check_hooks()
    receivers = {name: f"{model.CHANNEL_PREFIX}{name}" for name in channels.channel_urls}
    receivers |= {name: name for name in (f"{model.HOOK_PREFIX}{hook.name}" for hook in hooks if hook.name)}
    if only is None:
        if not receivers:
            problem = next((hook.problem for hook in hooks if hook.problem), None)
            message = "no channels or hooks to test; to test a person, use --to person:LOGIN"
            raise CommandError(f"the hooks folder {problem}" if problem else message)
        return list(receivers.values())
    if only in receivers:
        return [receivers[only]]
    if only.startswith(model.PERSON_PREFIX) and only != model.PERSON_PREFIX:
        return [only]
    names = ", ".join(receivers)
    raise CommandError(
        f"unknown receiver {only[:80]!r}; use {f'{names} or ' if names else ''}{model.PERSON_PREFIX}LOGIN"
    )


@alerts.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in full.")
@with_settings
def list_alerts(settings: Settings, as_json: bool) -> None:
    """List problems and when each was reported, or why not.

    Also lists coming conditions, queued notifications, silenced hosts, receivers, and the rules in force, as of the
    last build.

    \b
    gpuboard alerts list
    gpuboard alerts list --json
    """
    now = Now(time.time(), settings.zone)
    state = read_alert_state_or_exit(settings)
    config_files = ContactsAndRules(settings.alerts, settings.data, settings.www, settings.state)
    rules, _ = config_files.read_rules()
    channels = load_channels(settings)
    with translate_alert_errors(settings):
        hosts = HostLookup(settings).list_hosts().values()
    # the state of hosts is not decided here: maintenance is enough
    context = AlertContext(
        {host.name: ("" if host.maintenance is None else "maintenance", 0) for host in hosts if not host.is_hidden}
    )
    alert_list = table.AlertList(
        table.list_condition_table_statuses(state, rules, context, now),
        state.notifications,
        {host: until for host, until in state.silences.items() if until > now.epoch},
        channels.check_receivers(),
        tuple(rules.values()),
    )
    if as_json:
        click.echo(table.alert_list_to_json(alert_list))
    else:
        print_alert_lines(table.format_alert_list(alert_list, now, find_terminal_width()))
    print_alert_command_problems(config_files.list_problems(), settings)
    if settings.alerts.is_enabled and state.started_at is None:
        print_command_message(
            "no build has evaluated the alert rules yet; `gpuboard alerts run --dry-run` shows what would be sent"
        )


@alerts.command("history")
@click.option("--since", metavar="TIME", default="7d", show_default=True, help="Start: 2h, 7d, yesterday, mon.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in full.")
@with_settings
def show_alert_history(settings: Settings, since: str, as_json: bool) -> None:
    """List sent and failed notifications, latest first.

    \b
    gpuboard alerts history
    gpuboard alerts history --since 30d --json
    """
    now = Now(time.time(), settings.zone)
    try:
        first = moments.parse_past_moment(since, now.local).timestamp()
    except moments.UnclearTimeError as error:
        raise click.UsageError(f'--since: "{since}" {error}') from None
    history = read_alert_state_or_exit(settings).history
    records = sorted((record for record in history if record.at >= first), key=lambda record: -record.at)
    if as_json:
        click.echo(table.dump_alert_table_json({"history": records}))
    elif records:
        print_alert_lines(table.format_history_table(records, now, find_terminal_width()))
    else:
        print_command_message(f"nothing was sent since {format_alert_time(first, now)}")


@alerts.command("silence")
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_hosts)
@click.option("--for", "length", metavar="TIME", help="Length: 2h, 1d 12h.")
@click.option("--end", is_flag=True, help="End the silence.")
@with_settings
def silence_hosts(settings: Settings, hosts: Sequence[str], length: str | None, end: bool) -> None:
    """Silence alerts of HOST and its GPUs for a time.

    Problems that end before the silence does are never reported; those that last are reported then. Messages about
    bookings, and about GPUs that people wait for, are still sent. A host marked as maintenance in hosts.txt is
    silent anyway.

    \b
    gpuboard alerts silence atlas --for 2h
    gpuboard alerts silence atlas hydra --for '1d 12h'
    gpuboard alerts silence atlas --end
    """
    if end == (length is not None):
        raise click.UsageError("give a duration such as --for 2h, or --end")
    now, until = Now(time.time(), settings.zone), None
    if length is not None:
        try:
            until = int(moments.parse_duration(length).add_to(now.local, now.zone).timestamp())
        except moments.UnclearTimeError as error:
            raise click.UsageError(f'--for: "{length}" {error}') from None
        if not now.epoch < until <= now.epoch + MAX_SILENCE_S:
            message = "a host can be silenced for up to 31 days; for longer, mark it as maintenance in data/hosts.txt"
            raise click.UsageError(message)
    store = open_alert_store(settings.state, settings.kv)
    try:
        with translate_alert_errors(settings):
            before = store.read().silences
            lookup = HostLookup(settings)
            names = list(dict.fromkeys(host if end and host in before else lookup.find_host(host) for host in hosts))
    except BookingRefusedError as error:
        raise NegativeResultError(str(error)) from None

    def change_silences(state: AlertState) -> AlertState:
        silences = {host: ends_at for host, ends_at in state.silences.items() if ends_at > now.epoch}
        for name in names:
            silences.pop(name, None)
        return state._replace(silences=silences if until is None else {**silences, **dict.fromkeys(names, until)})

    with translate_alert_errors(settings):
        store.change(change_silences)
    for name in names:
        change = "is no longer silenced" if before.get(name, 0) > now.epoch else "was not silenced"
        if until is not None:
            change = f"is silenced until {format_alert_time(until, now)}"
        print_command_message(f"{name} {change}")


@alerts.command("run")
@click.option("--dry-run", is_flag=True, help="Show what would be sent and why; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with --dry-run.")
@with_settings
def run_alerts_command(settings: Settings, dry_run: bool, as_json: bool) -> None:
    """Send queued notifications that are due.

    The builder does this by itself. --dry-run decides from data/ as the next build would, shows each notification
    with its receivers and reason, and changes nothing.

    \b
    gpuboard alerts run
    gpuboard alerts run --dry-run
    """
    if as_json and not dry_run:
        raise click.UsageError("--json needs --dry-run")
    if dry_run:
        show_alerts_dry_run(settings, as_json)
        return
    if not settings.alerts.is_enabled:
        raise CommandError(NO_RECEIVERS_MESSAGE)
    failures = []

    def print_outcome(notification: Notification, outcome: DeliveryOutcome) -> None:
        if outcome.status != model.SENT:
            failures.append(outcome)
        titles = table.list_table_alert_titles(notification.alerts, notification.omitted_count)
        indented = [f"{table.COLUMN_GAP * 3}{title}" for title in titles]
        print_alert_lines([table.format_table_outcome(notification.to, outcome), *indented])

    with translate_alert_errors(settings):
        try:
            count = sender.send_due_notifications(settings, print_outcome)
        except sender.SenderBusyError as error:
            print_command_message(str(error))
            return
        except OSError as error:
            raise CommandError(f"{error.filename or settings.state} cannot be opened: {error.strerror}") from None
    if not count:
        print_command_message("no notification is due")
    if failures:
        sys.exit(1)


def show_alerts_dry_run(settings: Settings, as_json: bool) -> None:
    """Decide all hosts as the next build would, apply the rules, and show what would be sent, and what not."""
    now = Now(time.time(), settings.zone)
    with translate_alert_errors(settings), translate_to_command_errors():
        lookup = HostLookup(settings)
        shown = [name for name, host in lookup.list_hosts().items() if not host.is_hidden]
        decided = lookup.decide_hosts(shown, load_fleet_bookings(settings), now, remembered=True)
        hosts = {}
        for host in decided.inputs:
            built_host, _ = run_host_pipeline(host, decided.rules, now.copy_with_own_expiry())
            hosts[host.discovered.name] = built_host
        with closing(HistoryReader(settings.state, settings.zone)) as history:
            engine = AlertEngine(settings, StoredEventReader(history), WatchConditions(settings))
            state = engine.update_state(hosts, now, dry_run=True)
    channels = load_channels(settings)
    addresses = {receiver.name: receiver.problem or receiver.masked_address for receiver in channels.check_receivers()}
    notifications = []
    for notification in state.notifications:
        address = addresses.get(notification.to, "")
        if person := model.parse_person_receiver(notification.to):
            contacts = channels.check_person(person, notification.via)
            address = ", ".join(contact.problem or contact.masked_address for contact in contacts)
        message = render_notification(notification, settings.zone, settings.privacy.users)
        notifications.append((notification, message, address))
    rules, _ = engine.config_files.read_rules()
    statuses = table.list_condition_table_statuses(state, rules, engine.build_context(hosts), now)
    if as_json:
        click.echo(table.dry_run_table_to_json(notifications, statuses))
    else:
        print_alert_lines(table.format_dry_run_table(notifications, statuses, now, find_terminal_width()))
    failure = Problem(PROBLEM_WHERE, engine.failure) if engine.failure else None
    problems = [*engine.config_files.list_problems(), *engine.watches.problems, history.problem, failure]
    print_alert_command_problems(filter(None, problems), settings)


def read_alert_state_or_exit(settings: Settings) -> AlertState:
    """Read the alert state, and print what is wrong with it."""
    store = open_alert_store(settings.state, settings.kv)
    with translate_alert_errors(settings):
        state = store.read()
    if store.problem:
        print_command_message(f"{store.where} {store.problem}")
    return state


@contextmanager
def translate_alert_errors(settings: Settings) -> Iterator[None]:
    try:
        yield
    except AlertStateError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename or settings.data} cannot be read: {error.strerror}") from None


def print_alert_command_problems(problems: Iterable[Problem], settings: Settings) -> None:
    for problem in problems:
        print_command_message(f"{problem.where}: {problem.what}")
    if not settings.alerts.is_enabled:
        print_command_message(NO_RECEIVERS_MESSAGE)


def print_alert_lines(lines: Sequence[str]) -> None:
    """Print lines without control characters."""
    click.echo("\n".join(replace_unencodable(clean_text(line)) for line in lines))
