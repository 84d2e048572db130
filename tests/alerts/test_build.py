"""Alerts from a host that goes down to a notification: real builds, a real sender process, a real receiver."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import timezone
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from site_builder.alerts import sender
from site_builder.alerts.channels import NotificationChannels
from site_builder.alerts.contacts import Contacts
from site_builder.alerts.model import DeliveryOutcome, Notification
from site_builder.alerts.sender import NotificationSender
from site_builder.alerts.store import AlertStateError, AlertStore
from site_builder.board.builder import Builder, BuildError
from site_builder.core.clock import Now
from site_builder.core.model import AlertSettings, StateLimits
from tests.support.board_fixture import Lab, gpu
from tests.support.fake_clock import Machine, machine_in
from tests.support.forked import run_forked
from tests.support.sender_fixtures import (
    Receiver,
    build_notification,
    build_state,
    run_receiver,
    store_state,
    wait_until,
)

ROOT = Path(__file__).parents[2]
URL = "https://gpus.example.org/"
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")  # of apprise's own


@pytest.fixture
def web() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        yield receiver


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A lab whose clock is two hours slow: what it has sent is due on ours."""
    with machine_in(tmp_path, monkeypatch) as fake_machine:
        fake_machine.now = float(int(time.time()) // 60 * 60 - 7200)
        fake_machine.use("hydra", uuid="GPU-1")
        yield fake_machine


def told(machine: Machine, url: str, **alert_options: object) -> Builder:
    """A builder that tells a channel."""
    alerts = AlertSettings(channels=(("lab", url),), **alert_options)  # type: ignore[arg-type]
    machine.builders = [machine.builder(alerts=alerts, url=URL)]
    return machine.builders[0]


def sender_ended(builder: Builder) -> None:
    """Wait for the process that sends."""
    assert builder.alert_engine
    if builder.alert_engine.sender_process:
        assert builder.alert_engine.sender_process.wait(60) == 0


def said(web: Receiver) -> list[str]:
    """The titles of all letters that came."""
    return [json.loads(request)["title"] for request in web.got]


@pytest.mark.slow
def test_a_host_that_goes_down_and_comes_back_is_reported_once_each(machine: Machine, web: Receiver) -> None:
    builder = told(machine, web.url)
    machine.minutes(3)
    away = machine.hosts.pop("atlas")
    machine.minutes(11)
    assert said(web) == []
    machine.minutes(3)
    sender_ended(builder)
    assert said(web) == ["atlas is down"]
    (first,) = (json.loads(entry) for entry in web.got)
    assert f"{URL}hosts/atlas.html" in first["message"]
    assert "alice" in first["message"]  # who was on it
    machine.minutes(20)
    machine.hosts["atlas"] = away
    machine.minutes(10)
    sender_ended(builder)
    assert len(web.got) == 2
    assert said(web)[1].startswith("atlas is back")
    machine.minutes(5)
    sender_ended(builder)
    assert len(web.got) == 2
    assert not [entry for entry in machine.lab.status()["problems"] if entry["where"] == "alerts"]
    assert [entry.status for entry in AlertStore(machine.lab.state).read().history] == ["sent", "sent"]


@pytest.mark.slow
def test_hosts_that_are_down_at_first_start_are_not_reported(machine: Machine, web: Receiver) -> None:
    machine.minutes(1)
    machine.hosts.clear()
    machine.now += 3600
    builder = told(machine, web.url)
    machine.minutes(5)
    sender_ended(builder)
    assert said(web) == []
    assert len(AlertStore(machine.lab.state).read().conditions) == 2


@pytest.mark.slow
def test_a_receiver_that_is_slow_does_not_delay_the_page(machine: Machine, web: Receiver) -> None:
    web.answers = [(0, {})]
    builder = told(machine, web.url)
    store_state(machine.lab.state, build_state(build_notification(made=int(machine.now))))
    machine.minutes(1)
    wait_until(lambda: web.got)
    machine.minutes(5)  # it hangs there, and we build
    assert builder.alert_engine
    assert builder.alert_engine.sender_process
    assert builder.alert_engine.sender_process.poll() is None
    assert machine.lab.status()["built"] > machine.now - 120
    web.ends.set()
    sender_ended(builder)


@pytest.mark.slow
def test_no_password_stands_in_a_file_or_in_the_arguments_of_a_process(machine: Machine, web: Receiver) -> None:
    web.answers = [(0, {}), (500, {})]
    url = web.url.replace("://", "://gpus:hunter2@")
    machine.builders = [machine.builder(alerts=AlertSettings(channels=(("lab", url), ("ops", url))))]
    (builder,) = machine.builders
    notifications = [
        build_notification(number, f"channel:{to}", made=int(machine.now)) for number, to in enumerate(("lab", "ops"))
    ]
    store_state(machine.lab.state, build_state(*notifications))
    machine.minutes(1)
    wait_until(lambda: web.got)
    assert builder.alert_engine
    assert builder.alert_engine.sender_process
    command = Path(f"/proc/{builder.alert_engine.sender_process.pid}/cmdline").read_bytes()
    assert b"alerts run" in command
    assert b"hunter2" not in command
    web.ends.set()
    sender_ended(builder)
    machine.minutes(2)
    files = [path for path in machine.lab.state.parent.rglob("*") if path.is_file()]
    assert machine.lab.state / "alerts.json" in files
    assert [path.name for path in files if b"hunter2" in path.read_bytes()] == []
    alert_state = AlertStore(machine.lab.state).read()
    assert (alert_state.history[0].status, alert_state.notifications[0].tries) == ("unsure", 1)
    assert " for channel ops: " in str(machine.lab.status()["problems"])


def test_hooks_that_may_not_run_are_named_on_the_page(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "hooks"
    folder.mkdir()
    folder.chmod(0o777)
    machine.builders = [machine.builder(alerts=AlertSettings(hooks_folder=folder))]
    machine.minutes(1)
    (problem,) = (one["what"] for one in machine.lab.status()["problems"] if one["where"] == "GPUBOARD_HOOKS")
    assert problem.endswith("nothing in it runs")


@pytest.mark.slow
def test_queued_notifications_are_sent_though_data_cannot_be_read(machine: Machine, web: Receiver) -> None:
    builder = told(machine, web.url)
    store_state(machine.lab.state, build_state(build_notification(made=int(machine.now))))
    machine.lab.data.rename(machine.lab.data.with_name("away"))
    with pytest.raises(BuildError):
        builder.build(machine.now)
    sender_ended(builder)
    assert said(web) == ["atlas1 is down"]


def test_where_no_process_can_be_started_the_page_says_so(
    machine: Machine, web: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = told(machine, web.url)
    store_state(machine.lab.state, build_state(build_notification(made=int(machine.now))))

    def none(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", none)
    machine.minutes(2)
    assert builder.alert_engine
    (problem,) = (one["what"] for one in machine.lab.status()["problems"] if one["where"] == "alerts")
    assert problem == "no notifications can be sent: Resource temporarily unavailable"


def test_a_fault_of_alerts_never_costs_the_page(
    machine: Machine, web: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(machine, web.url)

    def faulty(*_: object, **__: object) -> None:
        message = "json://user:secret@host"
        raise RuntimeError(message)

    monkeypatch.setattr("site_builder.alerts.build.apply_alert_rules", faulty)
    machine.minutes(2)
    assert "atlas" in machine.lab.page()
    (problem,) = (one["what"] for one in machine.lab.status()["problems"] if one["where"] == "alerts")
    assert problem == "internal error in gpuboard (RuntimeError): no new alerts are sent"
    (builder,) = machine.builders
    assert builder.alert_engine
    builder.alert_engine.process_build({}, Now(machine.now, timezone.utc), faulty)  # type: ignore[arg-type]
    monkeypatch.setattr("site_builder.alerts.queue.describe_queue_problems", faulty)
    machine.minutes(1)
    assert machine.report
    assert "secret" not in machine.lab.page()


@pytest.mark.slow
def test_a_full_disk_sends_nothing_that_is_not_stored(
    machine: Machine, web: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = told(machine, web.url)
    machine.minutes(1)
    machine.hosts.pop("atlas")
    assert builder.alert_engine

    def full(_: bytes) -> None:
        message = "alerts.json cannot be written: No space left on device"
        raise AlertStateError(message)

    with monkeypatch.context() as patch:
        patch.setattr(builder.alert_engine.store, "write", full)
        machine.minutes(16)
    problems = [problem["what"] for problem in machine.lab.status()["problems"] if problem["where"] == "alerts"]
    assert problems == ["alerts.json cannot be written: No space left on device: no alerts are sent until then"]
    assert said(web) == []
    machine.minutes(3)
    sender_ended(builder)
    assert said(web) == ["atlas is down"]


def test_a_damaged_state_is_a_first_start_and_named_on_the_page(machine: Machine, web: Receiver) -> None:
    told(machine, web.url)
    machine.minutes(1)
    machine.hosts.pop("atlas")
    machine.now += 1800
    (machine.lab.state / "alerts.json").write_bytes(b"\0" * 100)
    (machine.lab.state / "alerts.json.bak").unlink()
    builder = told(machine, web.url)
    machine.minutes(2)
    problems = [problem["what"] for problem in machine.lab.status()["problems"] if problem["where"] == "alerts"]
    assert [problem.split("/")[-1] for problem in problems] == [
        "alerts.json is damaged: starting over; conditions that already exist are not reported"
    ]
    sender_ended(builder)
    assert said(web) == []


def die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def build_until(point: str, lab: Lab, url: str) -> None:
    """Build by the clock of this machine, in a child that dies where it decides."""
    if point == "before it writes":
        AlertStore.write = die  # type: ignore[assignment, method-assign]
    if point == "before it sends":
        sender.start_sender_process = die  # type: ignore[assignment]
    alerts = AlertSettings(channels=(("lab", url),), rules_file=str(lab.data.parent / "alerts.conf"))
    lab.build(alerts=alerts, limits=StateLimits(stale_after=0, down_after=1))


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before it writes", "before it sends"])
def test_kill_9_between_deciding_and_sending_loses_and_repeats_nothing(
    point: str, web: Receiver, tmp_path: Path
) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", gpu(), every=1)
    (tmp_path / "alerts.conf").write_text("[host-down]\ndelay = 0s\n[host-new]\non = no\n")
    store_state(lab.state, build_state())  # it was well when somebody looked first
    wait_until(lambda: time.time() - (lab.data / "atlas/host.txt").stat().st_ctime > 2)
    store = AlertStore(lab.state)
    for at, code in ((point, -9), ("nowhere", 0), ("nowhere", 0)):
        assert run_forked(partial(build_until, at, lab, web.url)) == code
        assert "atlas" in lab.page()
        if at == point:
            assert len(store.read().notifications) == (point == "before it sends")
        else:
            wait_until(lambda: store.read().history)
    assert said(web) == ["atlas is down"]
    assert [record.status for record in store.read().history] == ["sent"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "how", "wait"),
    [
        ((500, {}), "failed", 30),
        ((503, {"Retry-After": "120"}), "failed", 120),
        ((429, {"Retry-After": "90"}), "failed", 90),
        ((429, {}), "failed", 30),
        ((0, {}), "unsure", None),  # it took the request, and says nothing
        (None, "failed", 30),  # nobody listens
    ],
)
def test_a_receiver_that_is_not_well(
    answer: tuple[int, dict[str, str]] | None, how: str, wait: int | None, tmp_path: Path
) -> None:
    lab, at = Lab(tmp_path), int(time.time())
    store = store_state(lab.state, build_state(build_notification(made=at)))
    timeout_s = 1 if how == "unsure" else 30
    with run_receiver() as web:
        web.answers = [answer] if answer else []
        url = web.url if answer else "json://127.0.0.1:1"
        settings = lab.settings(alerts=AlertSettings(channels=(("lab", url),)))
        heard: list[str] = []

        def note(_: Notification, outcome: DeliveryOutcome) -> None:
            heard.append(outcome.status)

        NotificationSender(
            settings, store, NotificationChannels(settings, Contacts(), timeout_s=timeout_s).send, lambda: at
        ).send_due(note)
        assert heard == [how]
        left = store.read()
        if wait is None:
            assert not left.notifications
            assert left.history[0].status == how
            return
        assert left.notifications[0].due_at == at + wait
        assert "127.0.0.1" not in left.notifications[0].last_error
        if answer:  # it gets well
            NotificationSender(
                settings, store, NotificationChannels(settings, Contacts(), timeout_s=timeout_s).send, lambda: at + wait
            ).send_due(note)
            assert heard == [how, "sent"]
            assert len(web.got) == 1


def test_without_receivers_there_are_no_alerts(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", gpu())
    lab.build()
    assert not (lab.state / "alerts.json").exists()
