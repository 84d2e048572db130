"""A booking takes the place of those that have ended, as the page of the original gpu-monitor reads one per GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.board_fixture import Lab, gpu
from tests.support.service_fixtures import BOB, Counter, refusal


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    lab = Lab(tmp_path)
    lab.host("atlas", gpu(0) + gpu(1))
    return Counter(lab)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"atlas": [{ENDED}, {OTHER}]}', '{"atlas": [{NEW}, {OTHER}]}'),
        ('{"atlas": {"0": {ENDED}, "1": {OTHER}}}', '{"atlas": {"0": {NEW}, "1": {OTHER}}}'),
        ('{"atlas": {"0": [{ENDED}, {ENDED2}], "1": {OTHER}}}', '{"atlas": {"0": {NEW}, "1": {OTHER}}}'),
        ('{"atlas": {"0": [{ENDED}, {LATER}]}}', '{"atlas": {"0": [{ENDED}, {LATER}, {NEW}]}}'),
        ('{"atlas": [{ENDED} // remark\n]}', '{"atlas": [{NEW} // remark\n]}'),
        ('{"atlas": {"0": [{ENDED} // remark\n]}}', '{"atlas": {"0": [{ENDED}, {NEW} // remark\n]}}'),
        (
            '{"atlas": [[{ENDED}, {"name": "x", "date": "y"}]]}',
            '{"atlas": [[{ENDED}, {"name": "x", "date": "y"}, {NEW}]]}',
        ),
    ],
)
def test_a_booking_takes_the_place_of_those_that_have_ended(counter: Counter, before: str, after: str) -> None:
    texts = {
        "ENDED": '{"name": "carol", "date": "2029-11-12 10:00", "comment": "old", "team": "é"}',
        "ENDED2": '{"name": "dora", "date": "2029-11-11 10:00"}',
        "OTHER": '{"name": "bob", "date": "2029-12-01 10:00", "comment": ""}',
        "LATER": '{"name": "bob", "from": "2029-12-01 10:00", "date": "2029-12-02 10:00"}',
    }

    def fill(text: str, **more: str) -> str:
        for name, content in {**texts, **more}.items():
            text = text.replace(f"{{{name}}}", content)
        return text

    counter.lab.book(fill(before))
    (booking,) = counter.book("atlas:0")["bookings"]
    (_, _, content) = counter.log()[-1]["after"][0]
    assert content["id"] == booking["id"]
    assert counter.path.read_text() == fill(after, NEW=json.dumps(content, ensure_ascii=False))


def test_what_a_booking_replaces_is_logged_archived_and_comes_back_with_undo(counter: Counter) -> None:
    ended = {"name": "carol", "date": "2029-11-12 10:00", "comment": "old", "team": "é"}
    counter.lab.book({"atlas": [ended, ended]})
    counter.book("atlas:0,1")
    assert counter.log()[-1]["before"] == [["atlas", "0", ended], ["atlas", "1", ended]]
    archived = [json.loads(line) for line in (counter.lab.state / "bookings-past.jsonl").read_text().splitlines()]
    assert [(line["host"], line["gpu"], line["entry"]) for line in archived] == [
        ("atlas", "0", ended),
        ("atlas", "1", ended),
    ]
    done = counter.do(do="undo")
    assert done["said"].endswith("atlas:0,1 no longer booked")
    assert (done["bookings"], counter.content()) == ([], {"atlas": [ended, ended]})


def test_a_check_replaces_nothing(counter: Counter) -> None:
    counter.lab.book({"atlas": [{"name": "carol", "date": "2029-11-12 10:00"}]})
    before = counter.path.read_bytes()
    counter.book("atlas:0", check=True)
    assert counter.path.read_bytes() == before
    assert not (counter.lab.state / "bookings-past.jsonl").exists()


def test_a_release_is_undone_though_another_booking_took_its_place(counter: Counter) -> None:
    booking_id = counter.book("atlas:0", length="8h")["bookings"][0]["id"]
    counter.after(minutes=10)
    counter.do(do="release", id=booking_id)
    theirs = counter.book("atlas:0", who=BOB, since="tomorrow 9:00")["bookings"][0]["id"]
    assert counter.content()["atlas"]["0"]["id"] == theirs
    assert counter.do(do="undo")["bookings"][0]["id"] == booking_id
    assert [entry["id"] for entry in counter.content()["atlas"]["0"]] == [theirs, booking_id]


def test_a_booking_that_has_ended_is_not_undone_though_another_took_its_place(counter: Counter) -> None:
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    counter.after(hours=3)
    counter.book("atlas:0", who=BOB)
    assert f"booking {booking_id} ended" in refusal(lambda: counter.do(do="undo"))
