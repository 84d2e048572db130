"""The sender sends each notification once, wherever it is killed."""

from __future__ import annotations

import io
import itertools
import os
import signal
import struct
import time
from dataclasses import replace
from datetime import timezone
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import pytest
from dateutil import tz

from site_builder.alerts import sender
from site_builder.alerts.model import AlertMessage, AlertState, DeliveryOutcome, Notification
from site_builder.alerts.sender import NotificationSender, SenderBusyError
from site_builder.alerts.store import STATE_FILE, AlertStateError, AlertStore, try_alert_state_lock
from site_builder.core.clock import find_zone, load_named_zone, read_localtime_zone
from site_builder.core.model import AlertSettings
from tests.support.board_fixture import Lab
from tests.support.forked import run_forked, start_forked, wait_forked
from tests.support.sender_fixtures import (
    PATIENCE,
    FakeTransport,
    build_notification,
    build_state,
    run_receiver,
    store_state,
    wait_until,
)

ROOT = Path(__file__).parents[2]
DAY = 86400


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def build_sender(lab: Lab, transport: FakeTransport, now: float = 1000) -> NotificationSender:
    """A post office with a clock."""
    return NotificationSender(lab.settings(), AlertStore(lab.state), transport.send, lambda: now)


def test_the_sender_sends_everything_that_is_due_and_ends(lab: Lab) -> None:
    store = store_state(
        lab.state,
        build_state(build_notification(1), build_notification(2, due_at=9000), build_notification(3, "channel:ops")),
    )
    transport, heard = FakeTransport(DeliveryOutcome("failed", "no")), []
    count = build_sender(lab, transport).send_due(
        lambda notification, outcome: heard.append((notification.id, outcome.status))
    )
    assert transport.sent == ["l1", "l3"]
    assert heard == [("l1", "failed"), ("l3", "sent")]
    assert count == 2
    assert [notification.id for notification in store.read().notifications] == ["l1", "l2"]
    assert not any(notification.claimed_by for notification in store.read().notifications)


def test_an_error_in_a_channel_is_unsure_and_affects_no_other_notification(lab: Lab) -> None:
    class Faulty(FakeTransport):
        def send(self, notification: Notification, _: object) -> DeliveryOutcome:
            if notification.id == "l1":
                message = "json://user:secret@host"
                raise RuntimeError(message)
            return DeliveryOutcome("sent")

    store = store_state(lab.state, build_state(build_notification(1), build_notification(2)))
    build_sender(lab, Faulty()).send_due()
    assert [(record.status, record.reason) for record in store.read().history] == [
        ("unsure", "internal error in gpuboard (RuntimeError)"),
        ("sent", ""),
    ]


def test_a_lost_answer_to_a_claim_still_sends_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "WRITE_RETRY_DELAY_S", 0)
    store = store_state(lab.state, build_state(build_notification(1), build_notification(2)))
    transport = FakeTransport()
    delivery = build_sender(lab, transport)
    change, lost = delivery.store.change, iter([False, True, False, True, False, False])

    def losing(what: object, patience: float = 5) -> AlertState:
        after = change(what, patience)  # type: ignore[arg-type]
        if next(lost, False):
            message = "unknown whether it was written"
            raise AlertStateError(message)
        return after

    monkeypatch.setattr(delivery.store, "change", losing)
    delivery.send_due()
    assert transport.sent == ["l1", "l2"]
    assert [delivery.status for delivery in store.read().history] == ["sent", "sent"]


def test_only_one_sender_runs_at_a_time(lab: Lab) -> None:
    store_state(lab.state, build_state(build_notification()))
    with try_alert_state_lock(lab.state, sender.SENDER_LOCK, 0) as is_held:
        assert is_held
        with pytest.raises(SenderBusyError, match="another process is already sending"):
            sender.send_due_notifications(lab.settings())
    with try_alert_state_lock(lab.state, sender.SENDER_LOCK, 0) as is_held:
        assert is_held


def test_a_lock_that_cannot_be_opened_is_named_in_the_build_log(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.state / sender.SENDER_LOCK).mkdir()
    settings = sender.pack_sender_settings(lab.settings())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(settings)))
    monkeypatch.setattr("signal.alarm", lambda _: None)
    sender.main()
    reason = f"alerts could not be sent: {lab.state / sender.SENDER_LOCK} cannot be opened: Is a directory"
    assert reason in (lab.state / "build.log").read_text()


def send_until(point: str, which: int, lab: Lab, port: int) -> None:
    """Send to a real web server, in a child that is killed at one of its writes, or between two of them."""
    writes, requests = itertools.count(1), itertools.count(1)
    current_write = 0
    rename = os.replace

    def die(at: str, number: int) -> None:
        if (at, number) == (point, which):
            os.kill(os.getpid(), signal.SIGKILL)

    class Store(AlertStore):
        def write(self, content: bytes) -> None:
            nonlocal current_write
            current_write = next(writes)
            die("before write", current_write)
            super().write(content)
            die("after write", current_write)

    def rename_or_die(new: Path, path: Path) -> None:
        if Path(path).name == STATE_FILE:
            die("before rename", current_write)
        rename(new, path)

    def send(notification: Notification, _: AlertMessage) -> DeliveryOutcome:
        number = next(requests)
        line = HTTPConnection("127.0.0.1", port, timeout=30)
        line.request("POST", "/", notification.id)
        die("after request", number)
        status = line.getresponse().status
        die("after answer", number)
        return DeliveryOutcome("sent" if status == 200 else "failed")

    os.replace = rename_or_die  # type: ignore[assignment]
    notification_sender = NotificationSender(lab.settings(), Store(lab.state), send, lambda: 1000)
    if point == "unlocked":
        notification_sender.claim_prefix = notification_sender.claim_name
    notification_sender.send_due()


CLAIM, RESULT = 1, 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "which", "how"),
    [
        ("nowhere", 0, "sent"),
        ("before write", CLAIM, "sent"),
        ("before rename", CLAIM, "sent"),
        ("after write", CLAIM, "unsure"),
        ("after request", 1, "unsure"),
        ("after answer", 1, "unsure"),
        ("before write", RESULT, "unsure"),
        ("before rename", RESULT, "unsure"),
        ("after write", RESULT, "sent"),
        ("after write", 3, "sent"),  # the claim of the next letter
    ],
)
def test_kill_9_at_any_point_loses_nothing_and_sends_nothing_twice(point: str, which: int, how: str, lab: Lab) -> None:
    store = store_state(lab.state, build_state(build_notification(1), build_notification(2)))
    with run_receiver() as web:
        for at in (point, "nowhere"):  # the one that is killed, and the one that the next build starts
            code = run_forked(partial(send_until, at, which, lab, web.server_port))
            assert code == (-9 if at == point != "nowhere" else 0)
    assert len(web.got) == len(set(web.got)), "something came twice"
    status_by_alert = {record.alerts[0].id: record.status for record in store.read().history}
    assert store.read().notifications == ()
    assert status_by_alert == {"a1": how, "a2": "unsure" if which == 3 else "sent"}
    for name in ("1", "2"):
        if status_by_alert[f"a{name}"] == "sent":
            assert f"l{name}".encode() in web.got


@pytest.mark.slow
def test_sigterm_lets_the_sender_finish_the_current_notification(lab: Lab) -> None:
    """A service that is stopped, a machine that is shut down."""
    at = int(time.time())
    store = store_state(lab.state, build_state(build_notification(1, made=at), build_notification(2, made=at)))
    with run_receiver() as web:
        web.answers = [(-1, {})]
        process = sender.start_sender_process(lab.settings(alerts=AlertSettings(channels=(("lab", web.url),))))
        wait_until(lambda: web.got)
        process.terminate()
        web.goes_on.set()
        assert process.wait(PATIENCE) == 0
    assert [entry.status for entry in store.read().history] == ["sent"]
    assert [(entry.id, entry.claimed_by) for entry in store.read().notifications] == [("l2", "")]


@pytest.mark.slow
def test_two_senders_on_one_state_send_each_notification_once(lab: Lab) -> None:
    """The lock of `alone` keeps them apart on one machine; in Consul only the claims do."""
    count = 20
    store_state(lab.state, build_state(*(build_notification(number) for number in range(count))))
    with run_receiver() as web:
        act = partial(send_until, "unlocked", 0, lab, web.server_port)
        both = [start_forked(act) for _ in range(2)]
        assert [wait_forked(child) for child in both] == [0, 0]
    assert sorted(web.got) == sorted(f"l{number}".encode() for number in range(count))


def test_the_sender_process_gets_the_same_settings(lab: Lab, tmp_path: Path) -> None:
    """Also where the zone is the machine's own."""
    machine = tmp_path / "localtime"
    machine.write_bytes(b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + bytes(6) + b"LAB\0")
    own = read_localtime_zone(machine)
    assert own
    by_name = timezone.utc, load_named_zone("Europe/Paris")
    for zone in (*by_name, own, tz.tzlocal()):
        settings = lab.settings(zone=zone)
        unpacked_settings = sender.unpack_sender_settings(sender.pack_sender_settings(settings))
        assert replace(unpacked_settings, zone=zone) == settings
        assert str(unpacked_settings.zone) == str(zone if zone in by_name else find_zone("", os.environ))


def test_the_sender_process_gets_folder_names_that_are_not_utf_8(lab: Lab) -> None:
    settings = lab.settings(
        www=lab.www / "b\udcf6ard", alerts=AlertSettings((("lab", "json://x"),), hooks_folder=lab.data)
    )
    assert sender.unpack_sender_settings(sender.pack_sender_settings(settings)) == settings


@pytest.mark.slow
def test_the_sender_process_is_independent_of_the_builder_and_ends(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_state(lab.state, build_state(build_notification(1, "channel:none")))
    monkeypatch.chdir(lab.data)  # where others may leave modules of any name
    (lab.data / "json.py").write_text("open('taken', 'w')\n")
    began = time.monotonic()
    process = sender.start_sender_process(lab.settings())
    assert time.monotonic() - began < PATIENCE
    assert os.getsid(process.pid) != os.getsid(0)
    assert process.wait(PATIENCE) == 0
    assert store.read().notifications == () or store.read().notifications[0].tries
    assert not (lab.data / "taken").exists()
