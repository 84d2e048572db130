"""`gpuboard slack`: run the Slack bot."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from threading import Event

import click

from site_builder.alerts.slack_client import SlackClient, SlackRequestError, SlackSocket
from site_builder.config.settings import Settings
from site_builder.core import files, locks
from site_builder.core.command_options import CommandError, print_command_message, refuse_foreign_board, with_settings
from site_builder.core.formatting import HOUR
from site_builder.slack.bot import SlackBot

TOKEN_PREFIXES = {"GPUBOARD_SLACK_BOT_TOKEN": "xoxb-", "GPUBOARD_SLACK_APP_TOKEN": "xapp-"}
# How long a connection may be lost before we open another; the library tries by itself every few seconds.
RECONNECT_AFTER_S = 60.0
POLL_INTERVAL_S = 0.5
FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 1.0, 60.0
# The last error, in state/, and after what time the same one is printed again.
LAST_ERROR_FILE, REPEAT_ERROR_AFTER_S = "slack.said", 6 * HOUR


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
    access = settings.alerts.slack
    missing = [name for name, value in zip(TOKEN_PREFIXES, (access.bot_token, access.app_token)) if not value]
    if missing:
        names = " and ".join(f"{name} ({TOKEN_PREFIXES[name]}…)" for name in missing)
        raise CommandError(f"{names} must be set: docs/slack.md tells how to make an app in Slack")
    refuse_foreign_board(settings)
    try:
        with locks.try_hold_lock(settings.state / locks.BOT_LOCK_NAME) as holder_pid:
            if holder_pid is None:
                run_bot(settings)
            elif sys.stderr.isatty():  # cron starts it every minute, and would mail this
                connection = "Slack can be reached from here, and knows its token"
                try:
                    SlackClient(access).fetch_identity()
                except SlackRequestError as error:
                    connection = str(error)
                print_command_message(f"the bot runs already, as process {holder_pid}; {connection}")
    except OSError as error:
        raise CommandError(f"{error.filename or settings.state} cannot be opened: {error.strerror}") from None


def run_bot(settings: Settings) -> None:
    """Keep a connection open until a signal, or until Slack refuses; open another one if it stays lost."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    bot, pause = None, FIRST_RETRY_DELAY_S
    try:
        client = SlackClient(settings.alerts.slack)
        while not stop.is_set():
            try:
                if bot is None:
                    bot = SlackBot(settings, client, client.fetch_identity())
                    socket = SlackSocket(client, bot.handle_envelope)
                    pause = FIRST_RETRY_DELAY_S
                socket.open()
            except SlackRequestError as error:
                if error.is_permanent:
                    raise
                if pause == FIRST_RETRY_DELAY_S:
                    print_command_message(f"{error}; tried again until it works")
                stop.wait(error.retry_after_s or pause)
                pause = min(pause * 2, MAX_RETRY_DELAY_S)
                continue
            if sys.stderr.isatty():
                print_command_message("the bot answers in Slack until Ctrl-C")
            pause, open_at = FIRST_RETRY_DELAY_S, time.monotonic()
            while not stop.wait(POLL_INTERVAL_S) and time.monotonic() - open_at < RECONNECT_AFTER_S:
                if socket.is_open():
                    open_at = time.monotonic()
            if not stop.is_set():
                bot.log_once("the line to Slack was cut for a minute, and is opened anew")
    except SlackRequestError as error:
        if was_bot_error_recently_reported(settings, str(error)):
            sys.exit(2)
        raise CommandError(str(error)) from None
    finally:
        if bot:
            socket.stop_reconnecting()
            bot.close()


def was_bot_error_recently_reported(settings: Settings, message: str) -> bool:
    """Return True if cron, which starts the bot every minute, has mailed the same message not long ago."""
    if sys.stderr.isatty():
        return False
    path = settings.state / LAST_ERROR_FILE
    with suppress(OSError):
        is_recent = 0 <= time.time() - path.stat().st_mtime < REPEAT_ERROR_AFTER_S
        if is_recent and path.read_text("utf-8") == message:
            return True
    with suppress(OSError):
        files.write_atomically(path, message.encode(), 0o600)
    return False
