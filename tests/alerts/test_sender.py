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
from site_builder.alerts.model import Book, Letter, Outcome, Told
from site_builder.alerts.sender import Busy, Office
from site_builder.alerts.store import AlertBook, Unwritable
from site_builder.config import conf_file
from site_builder.core.model import AlertSettings
from tests.support.board_fixture import Lab
from tests.support.sender_fixtures import PATIENCE, Carrier, alert, book, letter, put, receiver, waits_for

ROOT = Path(__file__).parents[2]
DAY = 86400


def sent(content: Book, *outcomes: Outcome, now: int = 1000) -> Book:
    """The book after its letters were tried, one after the other."""
    for outcome in outcomes:
        (first, *_) = queue.due(content, now)
        content = queue.settle(queue.claim(content, first.id, "me", now), first.id, "me", outcome, now)
    return content


def test_a_letter_that_arrived_is_history() -> None:
    after = sent(book(letter(1), letter(2)), Outcome("sent"), now=1005)
    assert [one.id for one in after.letters] == ["l2"]
    (line,) = after.history
    assert (line.at, line.to, line.how, line.alerts, line.tries) == (1005, "channel:lab", "sent", (alert(1),), 1)


def test_one_that_did_not_waits_longer_each_time_and_is_given_up_after_a_day() -> None:
    content, now, waited = book(letter()), 1000, []
    while content.letters:
        content = sent(content, Outcome("failed", "connection refused"), now=now)
        if content.letters:
            waited.append(content.letters[0].due - now)
            assert not queue.due(content, content.letters[0].due - 1)
            now = content.letters[0].due
    assert waited[:9] == [30, 60, 120, 300, 600, 1800, 3600, 3600, 3600]
    assert DAY - 3600 <= now - 1000 <= DAY
    (line,) = content.history
    assert (line.how, line.why, line.tries) == ("given up", "connection refused", len(waited) + 1)


@pytest.mark.parametrize(("wait", "pause"), [(None, 30), (5, 30), (90, 90), (10**9, 6 * 3600), (-5, 30)])
def test_a_receiver_can_ask_for_a_longer_pause_but_not_for_ever(wait: int | None, pause: int) -> None:
    after = sent(book(letter()), Outcome("failed", "429", wait))
    assert after.letters[0].due == 1000 + pause


def test_with_one_letter_all_others_for_the_same_receiver_wait_and_nobody_elses() -> None:
    many = book(letter(1), letter(2), letter(3, "channel:ops"), letter(4, via="mail"), letter(5, due=5000))
    after = sent(many, Outcome("failed", "it is down"))
    assert {one.id: one.due for one in after.letters} == {"l1": 1030, "l2": 1030, "l3": 1000, "l4": 1000, "l5": 5000}
    assert [one.id for one in queue.due(after, 1030)] == [
        "l3",
        "l4",
        "l1",
        "l2",
    ]  # those first whose receiver is well
    assert [one.tries for one in after.letters] == [1, 0, 0, 0, 0]


def test_when_a_receiver_is_given_up_so_is_all_that_is_as_old() -> None:
    many = book(letter(1), letter(2), letter(3, made=1000 + DAY))
    after = sent(many, Outcome("failed", "it is down"), now=1000 + DAY)
    assert [one.id for one in after.letters] == ["l3"]
    assert [(one.how, one.tries) for one in after.history] == [("given up", 1), ("given up", 0)]


@pytest.mark.parametrize(("how", "told"), [("refused", "given up"), ("unsure", "unsure")])
def test_what_must_not_be_tried_again_is_not(how: str, told: str) -> None:
    after = sent(book(letter()), Outcome(how, "because"))
    assert not after.letters
    assert (after.history[0].how, after.history[0].why) == (told, "because")


def test_a_letter_that_somebody_has_in_hand_is_nobody_elses() -> None:
    content = queue.claim(book(letter()), "l1", "me", 1000)
    assert not queue.due(content, 1000)
    assert queue.claim(content, "l1", "you", 1001) == content
    assert queue.settle(content, "l1", "you", Outcome("sent"), 1001) == content
    assert queue.in_hand(content, "l1", "me")
    assert not queue.in_hand(content, "l1", "you")


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
    content = book(letter(1, claimed=claimed, claimed_at=1000), letter(2))
    after = queue.written_off(content, ours, 1000 + later)
    assert [one.id for one in after.letters] == (["l2"] if is_gone else ["l1", "l2"])
    assert [one.how for one in after.history] == ["unsure"] * is_gone


def test_whether_there_is_anything_to_do() -> None:
    claimed = letter(1, claimed="one 77.ab", claimed_at=1000)
    assert queue.is_due(book(letter()), None, 1000)
    assert not queue.is_due(book(letter(due=1001)), None, 1000)
    assert [queue.is_due(book(claimed), None, 1000 + later) for later in (0, 119, 120)] == [False, False, True]
    assert [queue.is_due(book(claimed), "two ", 1000 + later) for later in (120, 899, 900)] == [False, False, True]


def test_the_history_is_bounded() -> None:
    content = book(*(letter(number, made=1000 + number) for number in range(1100)))
    for _ in range(1100):
        content = sent(content, Outcome("sent"), now=5000)
    assert [one.alerts[0].id for one in content.history[:2]] == ["a100", "a101"]
    later = sent(content._replace(letters=(letter(9),)), Outcome("sent"), now=5000 + 90 * DAY)
    assert len(queue.recent(later.history, 5000 + 90 * DAY)) == 1


@given(some.lists(some.sampled_from(["sent", "failed", "refused", "unsure"]), max_size=60), some.integers(1, 6))
def test_no_letter_is_lost_or_told_twice(hows: list[str], count: int) -> None:
    content = book(*(letter(number, f"channel:{number % 2}") for number in range(count)))
    now = 1000
    for how in hows:
        now = max(now, min((one.due for one in content.letters), default=now))
        if content.letters:
            content = sent(content, Outcome(how), now=now)
    left, told = [one.alerts[0].id for one in content.letters], [one.alerts[0].id for one in content.history]
    assert sorted(left + told) == [f"a{number}" for number in range(count)]


def test_many_people_whom_nobody_can_tell_are_one_sentence() -> None:
    lines = tuple(Told(1000 + at, f"person:u{at}", "given up", (alert(1),), f"no way to u{at}") for at in range(4))
    assert queue.troubles(Book(history=lines), 2000) == [
        "letters were given up for 4 people, the last for person u3: no way to u3"
    ]
    assert len(queue.troubles(Book(history=lines[1:]), 2000)) == 3


def test_what_keeps_letters_from_arriving_is_a_sentence_each() -> None:
    content = book(letter(1), letter(2), letter(3, "person:alice"))
    assert queue.troubles(content, 1000) == []
    after = sent(content, Outcome("failed", "connection refused"), Outcome("refused", "no way to alice is known"))
    assert queue.troubles(after, 1000) == [
        "a letter waits for channel lab: connection refused",
        "a letter was given up for person alice: no way to alice is known",
    ]
    assert queue.troubles(after, 1000 + DAY) == ["2 letters wait for channel lab: connection refused"]
    assert queue.troubles(content, 1700) == [
        "2 letters wait for channel lab: nobody sends them",
        "a letter waits for person alice: nobody sends them",
    ]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def office(lab: Lab, carrier: Carrier, now: float = 1000) -> Office:
    """A post office with a clock."""
    return Office(lab.settings(), AlertBook(lab.state), carrier, lambda: now)


def test_all_that_is_due_is_sent_and_then_it_ends(lab: Lab) -> None:
    found = put(lab.state, book(letter(1), letter(2, due=9000), letter(3, "channel:ops")))
    carrier, heard = Carrier(Outcome("failed", "no")), []
    count = office(lab, carrier).work(lambda one, outcome: heard.append((one.id, outcome.how)))
    assert carrier.sent == ["l1", "l3"]
    assert heard == [("l1", "failed"), ("l3", "sent")]
    assert count == 2
    assert [one.id for one in found.read().letters] == ["l1", "l2"]
    assert not any(one.claimed for one in found.read().letters)


def test_a_fault_of_a_way_is_unsure_and_costs_no_other_letter(lab: Lab) -> None:
    class Faulty(Carrier):
        def send(self, letter: Letter, _: object) -> Outcome:
            if letter.id == "l1":
                message = "json://user:secret@host"
                raise RuntimeError(message)
            return Outcome("sent")

    found = put(lab.state, book(letter(1), letter(2)))
    office(lab, Faulty()).work()
    assert [(one.how, one.why) for one in found.read().history] == [
        ("unsure", "a fault of gpuboard's own (RuntimeError)"),
        ("sent", ""),
    ]


def test_where_the_answer_to_a_claim_is_lost_the_letter_is_still_sent_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "AGAIN", 0)
    found = put(lab.state, book(letter(1), letter(2)))
    carrier = Carrier()
    one = office(lab, carrier)
    change, lost = one.book.change, iter([False, True, False, True, False, False])

    def losing(what: object, patience: float = 5) -> Book:
        after = change(what, patience)  # type: ignore[arg-type]
        if next(lost, False):
            message = "nobody knows whether it was written"
            raise Unwritable(message)
        return after

    monkeypatch.setattr(one.book, "change", losing)
    one.work()
    assert carrier.sent == ["l1", "l2"]
    assert [one.how for one in found.read().history] == ["sent", "sent"]


def test_there_is_one_sender_at_a_time(lab: Lab) -> None:
    put(lab.state, book(letter()))
    with sender.alone(lab.state), pytest.raises(Busy, match="another process sends just now"):
        sender.deliver(lab.settings())
    with sender.alone(lab.state):
        pass


# A sender that is killed at one of its writes, or between two of them; each letter goes to a real web server.
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from http.client import HTTPConnection
from site_builder.alerts.model import Outcome
from site_builder.alerts.sender import Office
from site_builder.alerts import store as alert_book
from site_builder.config.settings import Settings
from tests.support.board_fixture import Lab

root, folder, port, point, which = sys.argv[1:]

def die(at, number):
    if (at, number) == (point, int(which)):
        os.kill(os.getpid(), signal.SIGKILL)

class Book(alert_book.AlertBook):
    count = 0
    def write(self, content):
        Book.count += 1
        die("before write", Book.count)
        super().write(content)
        die("after write", Book.count)

rename = os.rename
def renaming(*arguments, **more):
    die("before rename", Book.count)
    rename(*arguments, **more)
os.rename = renaming

class Web:
    count = 0
    def send(self, letter, message):
        Web.count += 1
        line = HTTPConnection("127.0.0.1", int(port), timeout=30)
        line.request("POST", "/", letter.id)
        die("after request", Web.count)
        status = line.getresponse().status
        die("after answer", Web.count)
        return Outcome("sent" if status == 200 else "failed")

state = Path(folder)
settings = Settings(data=state, www=state, state=state, zone=None, limits=None, shown=None, consul=None)
office = Office(settings, Book(state), Web(), lambda: 1000)
office.worded = lambda letter: None
office.work()
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
    told = {one.alerts[0].id: one.how for one in found.read().history}
    assert found.read().letters == ()
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
        process = sender.start(lab.settings(alerts=AlertSettings(channels=(("lab", web.url),))))
        waits_for(lambda: web.got)
        process.terminate()
        web.goes_on.set()
        assert process.wait(PATIENCE) == 0
    assert [one.how for one in found.read().history] == ["sent"]
    assert [(one.id, one.claimed) for one in found.read().letters] == [("l2", "")]


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
    own = conf_file.zone_in(machine)
    assert own
    by_name = timezone.utc, conf_file.named_zone("Europe/Paris")
    for zone in (*by_name, own, conf_file.own_zone()):
        settings = lab.settings(zone=zone)
        found = sender.unpacked(sender.packed(settings))
        assert replace(found, zone=zone) == settings
        assert str(found.zone) == str(zone if zone in by_name else conf_file.zone_of("", os.environ))


def test_the_process_beside_the_builder_has_folders_whose_names_are_no_utf_8(lab: Lab) -> None:
    settings = lab.settings(www=lab.www / "b\udcf6ard", alerts=AlertSettings((("lab", "json://x"),), hooks=lab.data))
    assert sender.unpacked(sender.packed(settings)) == settings


def test_the_process_beside_the_builder_holds_nothing_of_it_and_ends(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    found = put(lab.state, book(letter(1, "channel:none")))
    monkeypatch.chdir(lab.data)  # where others may leave modules of any name
    (lab.data / "json.py").write_text("open('taken', 'w')\n")
    began = time.monotonic()
    process = sender.start(lab.settings())
    assert time.monotonic() - began < PATIENCE
    assert os.getsid(process.pid) != os.getsid(0)
    assert process.wait(PATIENCE) == 0
    assert found.read().letters == () or found.read().letters[0].tries
    assert not (lab.data / "taken").exists()
