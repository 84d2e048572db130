"""A letter is sent once or told as lost: whatever the receiver answers, and wherever the sender is killed."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from site_builder.alerts import queue, sender
from site_builder.alerts.model import AlertState, DeliveryOutcome, DeliveryRecord, Notification
from site_builder.alerts.sender import NotificationSender, SenderBusyError
from site_builder.alerts.store import AlertStateError, AlertStore
from site_builder.config import conf_file
from site_builder.core.model import AlertSettings
from tests.support.board_fixture import Lab
from tests.support.sender_fixtures import PATIENCE, Carrier, alert, book, letter, put, receiver, waits_for

ROOT = Path(__file__).parents[2]
DAY = 86400


def sent(content: AlertState, *outcomes: DeliveryOutcome, now: int = 1000) -> AlertState:
    """The book after its letters were tried, one after the other."""
    for outcome in outcomes:
        (first, *_) = queue.list_due_notifications(content, now)
        content = queue.record_outcome(
            queue.claim_notification(content, first.id, "me", now), first.id, "me", outcome, now
        )
    return content


def test_a_letter_that_arrived_is_history() -> None:
    after = sent(book(letter(1), letter(2)), DeliveryOutcome("sent"), now=1005)
    assert [one.id for one in after.notifications] == ["l2"]
    (line,) = after.history
    assert (line.at, line.to, line.status, line.alerts, line.tries) == (1005, "channel:lab", "sent", (alert(1),), 1)


def test_one_that_did_not_waits_longer_each_time_and_is_given_up_after_a_day() -> None:
    content, now, waited = book(letter()), 1000, []
    while content.notifications:
        content = sent(content, DeliveryOutcome("failed", "connection refused"), now=now)
        if content.notifications:
            waited.append(content.notifications[0].due_at - now)
            assert not queue.list_due_notifications(content, content.notifications[0].due_at - 1)
            now = content.notifications[0].due_at
    assert waited[:9] == [30, 60, 120, 300, 600, 1800, 3600, 3600, 3600]
    assert DAY - 3600 <= now - 1000 <= DAY
    (line,) = content.history
    assert (line.status, line.reason, line.tries) == ("given up", "connection refused", len(waited) + 1)


@pytest.mark.parametrize(("wait", "pause"), [(None, 30), (5, 30), (90, 90), (10**9, 6 * 3600), (-5, 30)])
def test_a_receiver_can_ask_for_a_longer_pause_but_not_for_ever(wait: int | None, pause: int) -> None:
    after = sent(book(letter()), DeliveryOutcome("failed", "429", wait))
    assert after.notifications[0].due_at == 1000 + pause


def test_with_one_letter_all_others_for_the_same_receiver_wait_and_nobody_elses() -> None:
    many = book(letter(1), letter(2), letter(3, "channel:ops"), letter(4, via="mail"), letter(5, due_at=5000))
    after = sent(many, DeliveryOutcome("failed", "it is down"))
    assert {one.id: one.due_at for one in after.notifications} == {
        "l1": 1030,
        "l2": 1030,
        "l3": 1000,
        "l4": 1000,
        "l5": 5000,
    }
    assert [one.id for one in queue.list_due_notifications(after, 1030)] == [
        "l3",
        "l4",
        "l1",
        "l2",
    ]  # those first whose receiver is well
    assert [one.tries for one in after.notifications] == [1, 0, 0, 0, 0]


def test_when_a_receiver_is_given_up_so_is_all_that_is_as_old() -> None:
    many = book(letter(1), letter(2), letter(3, made=1000 + DAY))
    after = sent(many, DeliveryOutcome("failed", "it is down"), now=1000 + DAY)
    assert [one.id for one in after.notifications] == ["l3"]
    assert [(one.status, one.tries) for one in after.history] == [("given up", 1), ("given up", 0)]


@pytest.mark.parametrize(("how", "told"), [("refused", "given up"), ("unsure", "unsure")])
def test_what_must_not_be_tried_again_is_not(how: str, told: str) -> None:
    after = sent(book(letter()), DeliveryOutcome(how, "because"))
    assert not after.notifications
    assert (after.history[0].status, after.history[0].reason) == (told, "because")


def test_a_letter_that_somebody_has_in_hand_is_nobody_elses() -> None:
    content = queue.claim_notification(book(letter()), "l1", "me", 1000)
    assert not queue.list_due_notifications(content, 1000)
    assert queue.claim_notification(content, "l1", "you", 1001) == content
    assert queue.record_outcome(content, "l1", "you", DeliveryOutcome("sent"), 1001) == content
    assert queue.find_claimed_notification(content, "l1", "me")
    assert not queue.find_claimed_notification(content, "l1", "you")


@pytest.mark.parametrize(
    ("claimed", "ours", "later", "is_gone"),
    [
        ("77.ab", None, 0, True),  # where all senders are ours, whoever holds the lock is the only one
        ("one 77.ab", "one ", 0, True),
        ("two 77.ab", "one ", 0, False),  # another machine's sender may live
        ("two 77.ab", "one ", 899, False),
        ("two 77.ab", "one ", 900, True),
        ("one-more 77.ab", "one ", 0, False),
    ],
)
def test_a_letter_whose_sender_is_gone_is_unsure_and_not_sent_again(
    claimed: str, ours: str | None, later: int, is_gone: bool
) -> None:
    content = book(letter(1, claimed_by=claimed, claimed_at=1000), letter(2))
    after = queue.write_off_lost_claims(content, ours, 1000 + later)
    assert [one.id for one in after.notifications] == (["l2"] if is_gone else ["l1", "l2"])
    assert [one.status for one in after.history] == ["unsure"] * is_gone


def test_whether_there_is_anything_to_do() -> None:
    claimed = letter(1, claimed_by="one 77.ab", claimed_at=1000)
    assert queue.has_due_work(book(letter()), None, 1000)
    assert not queue.has_due_work(book(letter(due_at=1001)), None, 1000)
    assert [queue.has_due_work(book(claimed), None, 1000 + later) for later in (0, 119, 120)] == [False, False, True]
    assert [queue.has_due_work(book(claimed), "two ", 1000 + later) for later in (120, 899, 900)] == [
        False,
        False,
        True,
    ]


def test_the_history_is_bounded() -> None:
    content = book(*(letter(number, made=1000 + number) for number in range(1100)))
    for _ in range(1100):
        content = sent(content, DeliveryOutcome("sent"), now=5000)
    assert [one.alerts[0].id for one in content.history[:2]] == ["a100", "a101"]
    later = sent(content._replace(notifications=(letter(9),)), DeliveryOutcome("sent"), now=5000 + 90 * DAY)
    assert len(queue.recent(later.history, 5000 + 90 * DAY)) == 1


@given(some.lists(some.sampled_from(["sent", "failed", "refused", "unsure"]), max_size=60), some.integers(1, 6))
def test_no_letter_is_lost_or_told_twice(hows: list[str], count: int) -> None:
    content = book(*(letter(number, f"channel:{number % 2}") for number in range(count)))
    now = 1000
    for how in hows:
        now = max(now, min((one.due_at for one in content.notifications), default=now))
        if content.notifications:
            content = sent(content, DeliveryOutcome(how), now=now)
    left, told = [one.alerts[0].id for one in content.notifications], [one.alerts[0].id for one in content.history]
    assert sorted(left + told) == [f"a{number}" for number in range(count)]


def test_many_people_whom_nobody_can_tell_are_one_sentence() -> None:
    lines = tuple(
        DeliveryRecord(1000 + at, f"person:u{at}", "given up", (alert(1),), f"no way to u{at}") for at in range(4)
    )
    assert queue.describe_delivery_problems(AlertState(history=lines), 2000) == [
        "letters were given up for 4 people, the last for person u3: no way to u3"
    ]
    assert len(queue.describe_delivery_problems(AlertState(history=lines[1:]), 2000)) == 3


def test_what_keeps_letters_from_arriving_is_a_sentence_each() -> None:
    content = book(letter(1), letter(2), letter(3, "person:alice"))
    assert queue.describe_delivery_problems(content, 1000) == []
    after = sent(
        content, DeliveryOutcome("failed", "connection refused"), DeliveryOutcome("refused", "no way to alice is known")
    )
    assert queue.describe_delivery_problems(after, 1000) == [
        "a letter waits for channel lab: connection refused",
        "a letter was given up for person alice: no way to alice is known",
    ]
    assert queue.describe_delivery_problems(after, 1000 + DAY) == ["2 letters wait for channel lab: connection refused"]
    assert queue.describe_delivery_problems(content, 1700) == [
        "2 letters wait for channel lab: nobody sends them",
        "a letter waits for person alice: nobody sends them",
    ]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def office(lab: Lab, carrier: Carrier, now: float = 1000) -> NotificationSender:
    """A post office with a clock."""
    return NotificationSender(lab.settings(), AlertStore(lab.state), carrier, lambda: now)


def test_all_that_is_due_is_sent_and_then_it_ends(lab: Lab) -> None:
    found = put(lab.state, book(letter(1), letter(2, due_at=9000), letter(3, "channel:ops")))
    carrier, heard = Carrier(DeliveryOutcome("failed", "no")), []
    count = office(lab, carrier).send_due(lambda one, outcome: heard.append((one.id, outcome.status)))
    assert carrier.sent == ["l1", "l3"]
    assert heard == [("l1", "failed"), ("l3", "sent")]
    assert count == 2
    assert [one.id for one in found.read().notifications] == ["l1", "l2"]
    assert not any(one.claimed_by for one in found.read().notifications)


def test_a_fault_of_a_way_is_unsure_and_costs_no_other_letter(lab: Lab) -> None:
    class Faulty(Carrier):
        def send(self, letter: Notification, _: object) -> DeliveryOutcome:
            if letter.id == "l1":
                message = "json://user:secret@host"
                raise RuntimeError(message)
            return DeliveryOutcome("sent")

    found = put(lab.state, book(letter(1), letter(2)))
    office(lab, Faulty()).send_due()
    assert [(one.status, one.reason) for one in found.read().history] == [
        ("unsure", "a fault of gpuboard's own (RuntimeError)"),
        ("sent", ""),
    ]


def test_where_the_answer_to_a_claim_is_lost_the_letter_is_still_sent_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "WRITE_RETRY_DELAY_S", 0)
    found = put(lab.state, book(letter(1), letter(2)))
    carrier = Carrier()
    one = office(lab, carrier)
    change, lost = one.store.change, iter([False, True, False, True, False, False])

    def losing(what: object, patience: float = 5) -> AlertState:
        after = change(what, patience)  # type: ignore[arg-type]
        if next(lost, False):
            message = "nobody knows whether it was written"
            raise AlertStateError(message)
        return after

    monkeypatch.setattr(one.store, "change", losing)
    one.send_due()
    assert carrier.sent == ["l1", "l2"]
    assert [one.status for one in found.read().history] == ["sent", "sent"]


def test_there_is_one_sender_at_a_time(lab: Lab) -> None:
    put(lab.state, book(letter()))
    with sender.hold_sender_lock(lab.state), pytest.raises(SenderBusyError, match="another process sends just now"):
        sender.send_due_notifications(lab.settings())
    with sender.hold_sender_lock(lab.state):
        pass


# A sender that is killed at one of its writes, or between two of them; each letter goes to a real web server.
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from http.client import HTTPConnection
from site_builder.alerts import store
from site_builder.alerts.model import DeliveryOutcome
from site_builder.alerts.sender import NotificationSender
from site_builder.config.settings import Settings

root, folder, port, point, which = sys.argv[1:]

def die(at, number):
    if (at, number) == (point, int(which)):
        os.kill(os.getpid(), signal.SIGKILL)

class Store(store.AlertStore):
    count = 0
    def write(self, content):
        Store.count += 1
        die("before write", Store.count)
        super().write(content)
        die("after write", Store.count)

rename = os.rename
def renaming(*arguments, **more):
    die("before rename", Store.count)
    rename(*arguments, **more)
os.rename = renaming

class Web:
    count = 0
    def send(self, notification, message):
        Web.count += 1
        line = HTTPConnection("127.0.0.1", int(port), timeout=30)
        line.request("POST", "/", notification.id)
        die("after request", Web.count)
        status = line.getresponse().status
        die("after answer", Web.count)
        return DeliveryOutcome("sent" if status == 200 else "failed")

state = Path(folder)
settings = Settings(data=state, www=state, state=state, zone=None, limits=None, privacy=None, consul=None)
sender = NotificationSender(settings, Store(state), Web(), lambda: 1000)
sender.render_message = lambda notification: None
sender.send_due()
"""
CLAIM, RESULT = 1, 2


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
def test_kill_9_at_any_point_loses_nothing_and_sends_nothing_twice(
    point: str, which: int, how: str, tmp_path: Path
) -> None:
    found = put(tmp_path, book(letter(1), letter(2)))
    with receiver() as web:
        for at in (point, "nowhere"):  # the one that is killed, and the one that the next build starts
            command = [sys.executable, "-c", KILLED, str(ROOT), str(tmp_path), str(web.server_port), at, str(which)]
            done = subprocess.run(command, timeout=PATIENCE, check=False, capture_output=True)
            assert done.returncode == (-9 if at == point != "nowhere" else 0), done.stderr.decode()
    assert len(web.got) == len(set(web.got)), "something came twice"
    told = {one.alerts[0].id: one.status for one in found.read().history}
    assert found.read().notifications == ()
    assert told == {"a1": how, "a2": "unsure" if which == 3 else "sent"}
    for name in ("1", "2"):
        if told[f"a{name}"] == "sent":
            assert f"l{name}".encode() in web.got


def test_a_sender_that_is_told_to_end_ends_what_it_has_in_hand(lab: Lab) -> None:
    """A service that is stopped, a machine that is shut down."""
    at = int(time.time())
    found = put(lab.state, book(letter(1, made=at), letter(2, made=at)))
    with receiver() as web:
        web.answers = [(-1, {})]
        process = sender.start_sender_process(lab.settings(alerts=AlertSettings(channels=(("lab", web.url),))))
        waits_for(lambda: web.got)
        process.terminate()
        web.goes_on.set()
        assert process.wait(PATIENCE) == 0
    assert [one.status for one in found.read().history] == ["sent"]
    assert [(one.id, one.claimed_by) for one in found.read().notifications] == [("l2", "")]


def test_two_senders_on_one_book_send_each_letter_once(tmp_path: Path) -> None:
    """The lock of `alone` keeps them apart on one machine; in Consul only the claims do."""
    count = 20
    put(tmp_path, book(*(letter(number) for number in range(count))))
    with receiver() as web:
        command = [sys.executable, "-c", KILLED.replace("office.work()", "office.builder = office.name; office.work()")]
        command += [str(ROOT), str(tmp_path), str(web.server_port), "nowhere", "0"]
        both = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
        for one in both:
            _, words = one.communicate(timeout=PATIENCE)
            assert one.returncode == 0, words.decode()
    assert sorted(web.got) == sorted(f"l{number}".encode() for number in range(count))


def test_the_process_beside_the_builder_has_the_same_settings(lab: Lab, tmp_path: Path) -> None:
    """Also where the zone is the machine's own."""
    machine = tmp_path / "localtime"
    machine.write_bytes(b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + bytes(6) + b"LAB\0")
    own = conf_file.read_localtime_zone(machine)
    assert own
    by_name = timezone.utc, conf_file.load_named_zone("Europe/Paris")
    for zone in (*by_name, own, conf_file.load_system_zone()):
        settings = lab.settings(zone=zone)
        found = sender.unpack_settings(sender.pack_settings(settings))
        assert replace(found, zone=zone) == settings
        assert str(found.zone) == str(zone if zone in by_name else conf_file.find_zone("", os.environ))


def test_the_process_beside_the_builder_has_folders_whose_names_are_no_utf_8(lab: Lab) -> None:
    settings = lab.settings(
        www=lab.www / "b\udcf6ard", alerts=AlertSettings((("lab", "json://x"),), hooks_folder=lab.data)
    )
    assert sender.unpack_settings(sender.pack_settings(settings)) == settings


def test_the_process_beside_the_builder_holds_nothing_of_it_and_ends(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    found = put(lab.state, book(letter(1, "channel:none")))
    monkeypatch.chdir(lab.data)  # where others may leave modules of any name
    (lab.data / "json.py").write_text("open('taken', 'w')\n")
    began = time.monotonic()
    process = sender.start_sender_process(lab.settings())
    assert time.monotonic() - began < PATIENCE
    assert os.getsid(process.pid) != os.getsid(0)
    assert process.wait(PATIENCE) == 0
    assert found.read().notifications == () or found.read().notifications[0].tries
    assert not (lab.data / "taken").exists()
