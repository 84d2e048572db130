"""`gpuboard slack`: the bot that answers in Slack."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from threading import Event

import click

from site_builder.alerts.slack_client import BotIdentity, SlackClient, SlackRequestError, SlackSocket
from site_builder.config.settings import Settings
from site_builder.core.command_options import CommandError, print_message, refuse_foreign, with_settings
from site_builder.slack.bot import SlackBot

TOKEN_PREFIXES = {"GPUBOARD_SLACK_BOT_TOKEN": "xoxb-", "GPUBOARD_SLACK_APP_TOKEN": "xapp-"}
# How long a line may be cut before we open another; the library tries by itself every few seconds.
RECONNECT_AFTER_S = 60.0
POLL_INTERVAL_S = 0.5
FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 1.0, 60.0
# What was last said, in state/, and after how many seconds the same is said again.
LAST_ERROR_FILE, REPEAT_ERROR_AFTER_S = "slack.said", 6 * 3600


@click.command()
@with_settings
def slack(settings: Settings) -> None:
    """Run the Slack bot until Ctrl-C.

    It opens a connection to Slack by itself, so that nothing has to reach this machine, and answers whoever mentions it
    in a channel or writes to it: hosts, all, all detail, where USER, free [MODEL], book, release, help. It needs the
    two tokens of an app (GPUBOARD_SLACK_BOT_TOKEN, GPUBOARD_SLACK_APP_TOKEN): docs/slack.md. Where another one runs
    already, it ends at once.

    \b
    gpuboard slack
    """
    require_slack_tokens(settings)
    refuse_foreign(settings)
    from site_builder.core import locks  # noqa: PLC0415 # --help needs none of it

    try:
        with locks.try_hold_lock(settings.state / locks.BOT_LOCK_NAME) as other:
            if other is None:
                run_bot(settings)
            elif sys.stderr.isatty():  # cron asks every minute, and would mail it
                print_message(f"the bot runs already, as process {other}; {check_slack_connection(settings)}")
    except OSError as error:
        raise CommandError(f"{error.filename or settings.state} cannot be opened: {error.strerror}") from None


def require_slack_tokens(settings: Settings) -> None:
    """Refuse to begin without tokens."""
    access = settings.alerts.slack
    missing = [name for name, value in zip(TOKEN_PREFIXES, (access.bot_token, access.app_token)) if not value]
    if missing:
        what = " and ".join(f"{name} ({TOKEN_PREFIXES[name]}…)" for name in missing)
        raise CommandError(f"{what} must be set: docs/slack.md tells how to make an app in Slack")


def check_slack_connection(settings: Settings) -> str:
    """Whether Slack answers at this moment, for whoever wonders why the one that runs is silent."""
    try:
        SlackClient(settings.alerts.slack).fetch_identity()
    except SlackRequestError as why:
        return str(why)
    return "Slack can be reached from here, and knows its token"


def run_bot(settings: Settings) -> None:
    """Until somebody ends it, or Slack says no."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        api = SlackClient(settings.alerts.slack)
        me = wait_for_identity(api, stop)
        if me is None:
            return
        bot = SlackBot(settings, api, me, print_message)
        socket = SlackSocket(api, bot.handle_envelope)
        try:
            keep_connected(bot, socket, stop)
        finally:
            socket.stop_reconnecting()
            bot.close()
    except SlackRequestError as why:
        if was_recently_reported(settings, str(why)):
            sys.exit(2)
        raise CommandError(str(why)) from None


def was_recently_reported(settings: Settings, why: str) -> bool:
    """Whether cron, which starts it every minute and mails what it says, has mailed the same not long ago."""
    from site_builder.core import files  # noqa: PLC0415

    if sys.stderr.isatty():
        return False
    store, now = settings.state / LAST_ERROR_FILE, time.time()
    with suppress(OSError):
        if store.read_text("utf-8") == why and 0 <= now - store.stat().st_mtime < REPEAT_ERROR_AFTER_S:
            return True
    with suppress(OSError):
        files.write_atomically(store, why.encode(), 0o600)
    return False


def wait_for_identity(api: SlackClient, stop: Event) -> BotIdentity | None:
    """Who we are in Slack; it is asked until Slack answers."""
    pause = FIRST_RETRY_DELAY_S
    while True:
        try:
            return api.fetch_identity()
        except SlackRequestError as why:
            pause = wait_before_retry(why, pause, stop)
            if stop.is_set():
                return None


def keep_connected(bot: SlackBot, socket: SlackSocket, stop: Event) -> None:
    """Keep a line open; one that stays cut is opened anew."""
    pause = FIRST_RETRY_DELAY_S
    while not stop.is_set():
        try:
            socket.open()
        except SlackRequestError as why:
            pause = wait_before_retry(why, pause, stop)
            continue
        if sys.stderr.isatty():
            print_message("the bot answers in Slack until Ctrl-C")
        pause, open_at = FIRST_RETRY_DELAY_S, time.monotonic()
        while not stop.wait(POLL_INTERVAL_S) and time.monotonic() - open_at < RECONNECT_AFTER_S:
            if socket.is_open():
                open_at = time.monotonic()
        if not stop.is_set():
            bot.log_once("the line to Slack was cut for a minute, and is opened anew")


def wait_before_retry(why: SlackRequestError, pause: float, stop: Event) -> float:
    """Wait, and how long to wait the next time; where Slack itself says no, there is nothing to wait for."""
    if why.is_permanent:
        raise why
    if pause == FIRST_RETRY_DELAY_S:
        print_message(f"{why}; tried again until it works")
    stop.wait(why.retry_after_s or pause)
    return min(pause * 2, MAX_RETRY_DELAY_S)
