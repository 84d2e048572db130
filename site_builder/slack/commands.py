"""`gpuboard slack`: run the Slack bot."""

from __future__ import annotations

import sys

import click

from site_builder.alerts.slack_client import SlackClient, SlackRequestError
from site_builder.config.settings import Settings
from site_builder.core import command_options, locks
from site_builder.core.command_options import CommandError, print_command_message, with_settings
from site_builder.slack.bot import run_bot

TOKEN_PREFIXES = {"GPUBOARD_SLACK_BOT_TOKEN": "xoxb-", "GPUBOARD_SLACK_APP_TOKEN": "xapp-"}


@click.command()
@with_settings
def slack(settings: Settings) -> None:
    """Run the Slack bot until Ctrl-C.

    The bot connects to Slack, so nothing needs to reach this machine. It answers mentions and direct messages:
    hosts, all, all detail, where USER, free [MODEL], book, release, help. It needs the two tokens of a Slack app
    (GPUBOARD_SLACK_BOT_TOKEN, GPUBOARD_SLACK_APP_TOKEN): docs/slack.md. If another bot is running already, it
    exits.

    \b
    gpuboard slack
    """
    access = settings.alerts.slack
    missing = [name for name, value in zip(TOKEN_PREFIXES, (access.bot_token, access.app_token)) if not value]
    if missing:
        names = " and ".join(f"{name} ({TOKEN_PREFIXES[name]}…)" for name in missing)
        raise CommandError(f"{names} must be set: docs/slack.md explains how to create the Slack app")
    command_options.refuse_command_on_foreign_board(settings)
    try:
        with locks.try_hold_lock(settings.state / locks.BOT_LOCK_NAME) as holder_pid:
            if holder_pid is None:
                run_bot(settings)
            elif sys.stderr.isatty():  # cron starts it every minute, and would mail this
                connection = "Slack can be reached and accepts the token"
                try:
                    SlackClient(access).fetch_identity()
                except SlackRequestError as error:
                    connection = str(error)
                print_command_message(f"the bot is already running, as process {holder_pid}; {connection}")
    except OSError as error:
        raise CommandError(f"{error.filename or settings.state} cannot be opened: {error.strerror}") from None
