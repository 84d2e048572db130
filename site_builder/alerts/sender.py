"""The sender: a process of its own that sends the notifications that are due, and then ends.

Nothing is sent twice: a notification is claimed in the alert state before its first byte is sent, and a claim whose
sender is gone is written off. The builder starts this process and never waits for it.
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
from typing import Any

from site_builder.alerts import model, queue, render, weekly_report
from site_builder.alerts.model import AlertMessage, AlertState, DeliveryOutcome, Notification
from site_builder.alerts.store import AlertStateError, AlertStore, StateChange, open_alert_store, try_alert_state_lock
from site_builder.config.settings import Settings
from site_builder.consul.leader import load_leader_builder_name
from site_builder.core import subprocesses
from site_builder.core.clock import find_zone
from site_builder.core.files import append_to_build_log
from site_builder.core.parallel import create_parallel_shared_file
from site_builder.core.records import build_dataclass_decoder, convert_for_json, replace_dicts_by_pairs
from site_builder.reports import collect

SENDER_LOCK = "post.lock"
# It ends after the first, so that the next one starts with the current settings; the kernel ends it after the second.
SEND_PERIOD_S, MAX_LIFETIME_S = 120, 600
# Writes that must succeed are repeated: the answer of Consul may have been lost.
WRITE_ATTEMPTS, WRITE_RETRY_DELAY_S = 3, 2.0
OutcomeListener = Callable[[Notification, DeliveryOutcome], None]
# Sends once, within a time, and never raises.
Delivery = Callable[[Notification, AlertMessage], DeliveryOutcome]


class SenderBusyError(Exception):
    """Another process is sending."""


def send_due_notifications(settings: Settings, on_outcome: OutcomeListener | None = None) -> int:
    from site_builder.alerts.channels import load_channels  # noqa: PLC0415 # the builder, which starts us, needs none

    with try_alert_state_lock(settings.state, SENDER_LOCK, timeout_s=0) as is_held:
        if not is_held:
            raise SenderBusyError("another process is already sending")
        store = open_alert_store(settings.state, settings.kv)
        sender = NotificationSender(settings, store, load_channels(settings).send)
        with stop_between_notifications(sender):
            return sender.send_due(on_outcome)


class NotificationSender:
    """Sends due notifications; its caller holds the sender lock."""

    def __init__(
        self, settings: Settings, store: AlertStore, deliver: Delivery, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings, self.store, self.deliver, self.clock = settings, store, deliver, clock
        self.claim_prefix = build_sender_claim_prefix(settings)
        self.claim_name = f"{self.claim_prefix or ''}{os.getpid()}.{secrets.token_hex(4)}"
        self.is_ending = False

    @property
    def now_s(self) -> int:
        return int(self.clock())

    def send_due(self, on_outcome: OutcomeListener | None = None) -> int:
        deadline = time.monotonic() + SEND_PERIOD_S
        state = self.store.change(lambda state: queue.write_off_lost_queue_claims(state, self.claim_prefix, self.now_s))
        count = 0
        while not self.is_ending and time.monotonic() < deadline:
            due = queue.list_due_notifications(state, self.now_s)
            if not due:
                break
            notification_id = due[0].id
            state = self.change_with_retries(
                lambda state: queue.claim_notification(state, notification_id, self.claim_name, self.now_s)  # noqa: B023 # called at once
            )
            notification = queue.find_queued_notification(state, notification_id, self.claim_name)
            if notification is None:  # another builder's sender was quicker
                continue
            outcome = self.send(notification)
            state = self.change_with_retries(
                lambda state: queue.record_queue_outcome(state, notification_id, self.claim_name, outcome, self.now_s)  # noqa: B023 # called at once
            )
            if on_outcome:
                on_outcome(notification, outcome)
            count += 1
        return count

    def change_with_retries(self, change: StateChange) -> AlertState:
        """Change the alert state; repeat it where it may not have been written, which does no harm."""
        for _ in range(WRITE_ATTEMPTS - 1):
            with suppress(AlertStateError):
                return self.store.change(change)
            time.sleep(WRITE_RETRY_DELAY_S)
        return self.store.change(change)

    def send(self, notification: Notification) -> DeliveryOutcome:
        try:
            message = self.render_message(notification)
        except Exception as error:
            return DeliveryOutcome(model.FAILED, f"it could not be rendered ({type(error).__name__})")
        try:
            return self.deliver(notification, message)
        except Exception as error:  # it may have been sent before
            return DeliveryOutcome(model.UNSURE, f"internal error in gpuboard ({type(error).__name__})")

    def render_message(self, notification: Notification) -> AlertMessage:
        message = render.render_notification(notification, self.settings.zone, self.settings.privacy.users)
        first_alert = notification.alerts[0]
        week = collect.parse_report_week(first_alert.about) if first_alert.rule == model.WEEKLY_REPORT_RULE else None
        report = weekly_report.build_report_message(self.settings, week, self.clock()) if week else None
        return report._replace(hook_json=message.hook_json) if report else message


def build_sender_claim_prefix(settings: Settings) -> str | None:
    """Return how the claims of senders on this machine begin; None where there are no other builders."""
    return None if settings.kv is None else f"{load_leader_builder_name(settings.state)} "


@contextmanager
def stop_between_notifications(sender: NotificationSender) -> Iterator[None]:
    """Finish the current notification after the first SIGTERM or SIGINT, and end at once after the second."""
    previous_handlers: dict[int, Any] = {}

    def end(number: int, _: object) -> None:
        sender.is_ending = True
        signal.signal(number, previous_handlers.get(number, signal.SIG_DFL))

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        previous_handlers[signal_number] = signal.signal(signal_number, end)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def start_sender_process(settings: Settings) -> subprocess.Popen[bytes]:
    """Start a sender; it gets the settings on stdin, since they contain passwords."""
    command, environment = subprocesses.build_module_command("site_builder.alerts", "sender", "gpuboard alerts run")
    with create_parallel_shared_file() as stdin:
        stdin.write(pack_sender_settings(settings))
        stdin.seek(0)
        # in a session of its own, or it would end with the builder; without our pipes, or cron would wait for it
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def pack_sender_settings(settings: Settings) -> bytes:
    """Serialize the settings; a machine's own time zone has no name, and the other process finds it itself."""
    zone = settings.zone
    zone_name = "UTC" if zone is timezone.utc else getattr(zone, "key", None) or getattr(zone, "_filename", None)
    values = {name: value for name, value in replace_dicts_by_pairs(settings).items() if name != "zone"}
    # unlike orjson, json accepts the name of a folder that is not UTF-8
    return json.dumps([values, zone_name if isinstance(zone_name, str) else ""], default=convert_for_json).encode()


def unpack_sender_settings(content: bytes) -> Settings:
    values, zone_name = json.loads(content)
    try:
        zone = timezone.utc if zone_name == "UTC" else find_zone(zone_name, os.environ)
    except ValueError:
        zone = find_zone("", os.environ)
    return build_dataclass_decoder(Settings, zone=zone)(values)  # type: ignore[no-any-return]


def main() -> None:
    """Run the sender process; write to the build log why it failed, without messages that may contain an address."""
    signal.alarm(MAX_LIFETIME_S)  # whatever hangs, the kernel ends it and frees the lock
    settings = unpack_sender_settings(sys.stdin.buffer.read())
    try:
        with suppress(SenderBusyError):
            send_due_notifications(settings)
    except Exception as error:
        reason = f"internal error in gpuboard ({type(error).__name__})"
        reason = str(error) if isinstance(error, AlertStateError) else reason
        append_to_build_log(settings.state, datetime.now(settings.zone), f"alerts could not be sent: {reason}")
