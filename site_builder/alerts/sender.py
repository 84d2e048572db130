"""The post office: sends the letters that are due, in a process of its own, which ends by itself.

Nothing is sent twice: a letter is claimed in the book before its first byte goes out, and whoever finds a claim whose
sender is gone writes it off. The builder starts this and never waits for it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from site_builder.alerts import queue
from site_builder.alerts.model import AlertState, DeliveryOutcome, Message, Notification
from site_builder.alerts.store import AlertStateError, AlertStore, StateChange, open_alert_store, open_state_folder
from site_builder.config.settings import Settings
from site_builder.core import locks, subprocesses
from site_builder.core.records import decode_dataclass, list_pairs, simplify

if TYPE_CHECKING:
    from site_builder.alerts.channels import NotificationChannels

SENDER_LOCK = "post.lock"
WEEKLY_REPORT_RULE = "weekly-report"
# Seconds after which it ends, so that the next one begins with what is set then; and after which it must have.
SEND_PERIOD_S, MAX_LIFETIME_S = 120, 600
# How often, and how many seconds apart, what must be written is tried: the answer of Consul may have been lost.
WRITE_ATTEMPTS, WRITE_RETRY_DELAY_S = 3, 2.0
IGNORE_OUTCOME: Callable[[Notification, DeliveryOutcome], None] = lambda _letter, _outcome: None  # noqa: E731 for its type


class SenderBusyError(Exception):
    """Another process sends just now."""


class NotificationTransport(Protocol):
    """What can send a letter."""

    def send(self, letter: Notification, message: Message) -> DeliveryOutcome:
        """Once, within a time; it never raises."""


def send_due_notifications(
    settings: Settings, heard: Callable[[Notification, DeliveryOutcome], None] = IGNORE_OUTCOME
) -> int:
    """Send all that is due, and say of each letter how it went; how many there were."""
    with hold_sender_lock(settings.state):
        office = NotificationSender(settings, open_alert_store(settings.state, settings.kv), load_channels(settings))
        with stop_between_notifications(office):
            return office.send_due(heard)


class NotificationSender:
    """Sends, for whoever holds the lock."""

    def __init__(
        self, settings: Settings, book: AlertStore, ways: NotificationTransport, clock: Callable[[], float] = time.time
    ) -> None:
        """What this sender is called: those of the same builder before it are gone."""
        self.settings, self.store, self.channels, self.clock = settings, book, ways, clock
        self.claim_prefix = build_claim_prefix(settings)
        self.is_ending = False
        self.claim_name = f"{self.claim_prefix or ''}{os.getpid()}.{secrets.token_hex(4)}"

    @property
    def now_s(self) -> int:
        """This moment."""
        return int(self.clock())

    def send_due(self, heard: Callable[[Notification, DeliveryOutcome], None] = IGNORE_OUTCOME) -> int:
        """Letter by letter, until none is due."""
        end = time.monotonic() + SEND_PERIOD_S
        book = self.store.change(lambda book: queue.write_off_lost_claims(book, self.claim_prefix, self.now_s))
        count = 0
        while (
            not self.is_ending
            and time.monotonic() < end
            and (waiting := queue.list_due_notifications(book, self.now_s))
        ):
            name = waiting[0].id
            book = self.change_with_retries(
                lambda book: queue.claim_notification(book, name, self.claim_name, self.now_s)  # noqa: B023 # called at once
            )
            letter = queue.find_claimed_notification(book, name, self.claim_name)
            if letter is None:  # another builder's sender was quicker
                continue
            outcome = self.send(letter)
            book = self.change_with_retries(
                lambda book: queue.record_outcome(book, name, self.claim_name, outcome, self.now_s)  # noqa: B023 # the same
            )
            heard(letter, outcome)
            count += 1
        return count

    def change_with_retries(self, change: StateChange) -> AlertState:
        """Change the book; where nobody knows whether that was written, once more, which does no harm."""
        for _ in range(WRITE_ATTEMPTS - 1):
            with suppress(AlertStateError):
                return self.store.change(change)
            time.sleep(WRITE_RETRY_DELAY_S)
        return self.store.change(change)

    def send(self, letter: Notification) -> DeliveryOutcome:
        """How it went; a fault of ours may have come after it was sent."""
        try:
            message = self.render_message(letter)
        except Exception as error:
            return DeliveryOutcome(queue.FAILED, f"it could not be put into words ({type(error).__name__})")
        try:
            return self.channels.send(letter, message)
        except Exception as error:
            return DeliveryOutcome(queue.UNSURE, f"a fault of gpuboard's own ({type(error).__name__})")

    def render_message(self, letter: Notification) -> Message:
        """A letter in words; the report of a week is made when it is sent."""
        from site_builder.alerts import render  # noqa: PLC0415 # not before there is one

        plain = render.render_notification(letter, self.settings.zone, self.settings.privacy.users)
        if letter.alerts[0].rule == WEEKLY_REPORT_RULE:
            from site_builder.alerts import build  # noqa: PLC0415
            from site_builder.reports import rules as report_rules  # noqa: PLC0415

            first = report_rules.parse_week(letter.alerts[0].about)
            report = build.build_report_message(self.settings, first, self.clock()) if first else None
            if report:
                return report._replace(hook_json=plain.hook_json)
        return plain


def build_claim_prefix(settings: Settings) -> str | None:
    """How the claims of senders on this machine begin; None where there are no others."""
    if settings.kv is None:
        return None
    from site_builder.consul.leader import load_builder_name  # noqa: PLC0415 # few need it

    return f"{load_builder_name(settings.state)} "


@contextmanager
def stop_between_notifications(office: NotificationSender) -> Iterator[None]:
    """Who is told to end, as all are when a machine is shut down, first ends what is in hand; told twice, at once."""
    before: dict[signal.Signals, Any] = {}

    def end(number: int, _: object) -> None:
        office.is_ending = True
        signal.signal(number, before[signal.Signals(number)])

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def load_channels(settings: Settings) -> NotificationChannels:
    """All ways that are set up, to people as the contacts are now."""
    from site_builder.alerts import slack_client  # noqa: PLC0415 # what both need is slow
    from site_builder.alerts.channels import NotificationChannels  # noqa: PLC0415
    from site_builder.alerts.config_files import load_contacts  # noqa: PLC0415

    slack = settings.alerts.slack
    direct = (
        (lambda member, message: slack_client.send_direct_message(slack, member, message)) if slack.bot_token else None
    )
    return NotificationChannels(settings, load_contacts(settings), direct)


@contextmanager
def hold_sender_lock(state: Path) -> Iterator[None]:
    """One sender at a time; the kernel frees the lock, however it ends."""
    with open_state_folder(state) as folder:
        handle = os.open(SENDER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        if not locks.try_acquire_lock(handle):
            message = "another process sends just now"
            raise SenderBusyError(message)
        yield
    finally:
        os.close(handle)


def start_sender_process(settings: Settings) -> subprocess.Popen[bytes]:
    """Begin to send, in a process that nobody waits for; what is set goes by its stdin: there are passwords in it."""
    from site_builder.core.parallel import create_shared_file  # noqa: PLC0415

    command, environment = subprocesses.build_module_command("site_builder.alerts", "sender", "gpuboard alerts run")
    with create_shared_file() as told:
        told.write(pack_settings(settings))
        told.seek(0)
        # in a session of its own, or it would end with the builder; without pipes of ours, or cron would wait for it
        return subprocess.Popen(
            command,
            stdin=told,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def pack_settings(settings: Settings) -> bytes:
    """The settings for the other process; this machine's own zone, which has no name, it finds itself."""
    zone = settings.zone
    zone_name = "UTC" if zone is timezone.utc else getattr(zone, "key", None) or getattr(zone, "_filename", None)
    names = {name: value for name, value in list_pairs(settings).items() if name != "zone"}
    # unlike orjson, it hands over the name of a folder that is no UTF-8
    return json.dumps([names, zone_name if isinstance(zone_name, str) else ""], default=simplify).encode()


def unpack_settings(content: bytes) -> Settings:
    """The same there."""
    from site_builder.config.conf_file import find_zone  # noqa: PLC0415

    names, zone_name = json.loads(content)
    try:
        zone = timezone.utc if zone_name == "UTC" else find_zone(zone_name, os.environ)
    except ValueError:
        zone = find_zone("", os.environ)
    return decode_dataclass(Settings, zone=zone)(names)  # type: ignore[no-any-return]


def main() -> None:
    """The process beside the builder; why it ended too soon goes to the log, without the words of others."""
    signal.alarm(MAX_LIFETIME_S)  # whatever hangs: the kernel ends it, and frees the lock
    settings = unpack_settings(sys.stdin.buffer.read())
    try:
        send_due_notifications(settings)
    except SenderBusyError:
        return
    except AlertStateError as why:
        log_send_failure(settings, str(why))
    except Exception as error:
        log_send_failure(settings, f"a fault of gpuboard's own ({type(error).__name__})")


def log_send_failure(settings: Settings, why: str) -> None:
    """A line of the log."""
    from site_builder.core.files import BuildLog  # noqa: PLC0415

    BuildLog(settings.state).write(datetime.now(settings.zone), f"alerts could not be sent: {why}")
