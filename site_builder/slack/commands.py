"""`gpuboard slack`: the bot that answers in Slack."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

import click

from site_builder.core.command_options import Failure, refuse_foreign, tell, with_settings

if TYPE_CHECKING:
    from site_builder.alerts.slack_client import Me, Slack, Socket
    from site_builder.config.settings import Settings
    from site_builder.slack.bot import Bot

TOKENS = {"GPUBOARD_SLACK_BOT_TOKEN": "xoxb-", "GPUBOARD_SLACK_APP_TOKEN": "xapp-"}
# How long a line may be cut before we open another; the library tries by itself every few seconds.
CUT_FOR = 60.0
LOOK_EVERY = 0.5
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
# What was last said, in state/, and after how many seconds the same is said again.
SAID, SAY_AGAIN = "slack.said", 6 * 3600


@click.command()
@with_settings
def slack(settings: Settings) -> None:
    """Answer in Slack until Ctrl-C.

    It opens a connection to Slack by itself, so that nothing has to reach this machine, and answers whoever mentions it
    in a channel or writes to it: hosts, all, all detail, where USER, free [MODEL], book, release, help. It needs the
    two tokens of an app (GPUBOARD_SLACK_BOT_TOKEN, GPUBOARD_SLACK_APP_TOKEN): docs/slack.md. Where another one runs
    already, it ends at once.

    \b
    gpuboard slack
    """
    check(settings)
    refuse_foreign(settings)
    from site_builder.core import locks  # noqa: PLC0415 # --help needs none of it

    try:
        with locks.alone(settings.state / locks.BOT) as other:
            if other is None:
                run(settings)
            elif sys.stderr.isatty():  # cron asks every minute, and would mail it
                tell(f"the bot runs already, as process {other}; {reached(settings)}")
    except OSError as error:
        raise Failure(f"{error.filename or settings.state} cannot be opened: {error.strerror}") from None


def check(settings: Settings) -> None:
    """Refuse to begin without tokens."""
    access = settings.alerts.slack
    missing = [name for name, value in zip(TOKENS, (access.bot_token, access.app_token)) if not value]
    if missing:
        what = " and ".join(f"{name} ({TOKENS[name]}…)" for name in missing)
        raise Failure(f"{what} must be set: docs/slack.md tells how to make an app in Slack")


def reached(settings: Settings) -> str:
    """Whether Slack answers at this moment, for whoever wonders why the one that runs is silent."""
    from site_builder.alerts.slack_client import NotDone, Slack  # noqa: PLC0415

    try:
        Slack(settings.alerts.slack).me()
    except NotDone as why:
        return str(why)
    return "Slack can be reached from here, and knows its token"


def run(settings: Settings) -> None:
    """Until somebody ends it, or Slack says no."""
    from site_builder.alerts.slack_client import NotDone, Slack, Socket  # noqa: PLC0415
    from site_builder.slack.bot import Bot  # noqa: PLC0415

    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        api = Slack(settings.alerts.slack)
        me = who(api, stop)
        if me is None:
            return
        bot = Bot(settings, api, me, tell)
        socket = Socket(api, bot.hear)
        try:
            listen(bot, socket, stop)
        finally:
            socket.leave()
            bot.close()
    except NotDone as why:
        if was_said(settings, str(why)):
            sys.exit(2)
        raise Failure(str(why)) from None


def was_said(settings: Settings, why: str) -> bool:
    """Whether cron, which starts it every minute and mails what it says, has mailed the same not long ago."""
    from site_builder.core import files  # noqa: PLC0415

    if sys.stderr.isatty():
        return False
    store, now = settings.state / SAID, time.time()
    with suppress(OSError):
        if store.read_text("utf-8") == why and 0 <= now - store.stat().st_mtime < SAY_AGAIN:
            return True
    with suppress(OSError):
        files.replace(store, why.encode(), 0o600)
    return False


def who(api: Slack, stop: Event) -> Me | None:
    """Who we are in Slack; it is asked until Slack answers."""
    from site_builder.alerts.slack_client import NotDone  # noqa: PLC0415

    pause = FIRST_PAUSE
    while True:
        try:
            return api.me()
        except NotDone as why:
            pause = paused(why, pause, stop)
            if stop.is_set():
                return None


def listen(bot: Bot, socket: Socket, stop: Event) -> None:
    """Keep a line open; one that stays cut is opened anew."""
    from site_builder.alerts.slack_client import NotDone  # noqa: PLC0415

    pause = FIRST_PAUSE
    while not stop.is_set():
        try:
            socket.open()
        except NotDone as why:
            pause = paused(why, pause, stop)
            continue
        if sys.stderr.isatty():
            tell("the bot answers in Slack until Ctrl-C")
        pause, open_at = FIRST_PAUSE, time.monotonic()
        while not stop.wait(LOOK_EVERY) and time.monotonic() - open_at < CUT_FOR:
            if socket.is_open():
                open_at = time.monotonic()
        if not stop.is_set():
            bot.tell_once("the line to Slack was cut for a minute, and is opened anew")


def paused(why: Exception, pause: float, stop: Event) -> float:
    """Wait, and how long to wait the next time; where Slack itself says no, there is nothing to wait for."""
    if getattr(why, "hopeless", False):
        raise why
    if pause == FIRST_PAUSE:
        tell(f"{why}; tried again until it works")
    stop.wait(getattr(why, "wait", None) or pause)
    return min(pause * 2, LONGEST_PAUSE)
