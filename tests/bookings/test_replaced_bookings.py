"""A booking takes the place of those that have ended, as the page of the original gpu-monitor reads one per GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.board_fixture import Lab, gpu
from tests.support.service_fixtures import Counter


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
