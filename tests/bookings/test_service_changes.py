"""Bookings that are changed, released and taken back, and who may do it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from site_builder.bookings import service as booking_service
from site_builder.bookings.policy import BookingForbiddenError
from site_builder.bookings.transaction import BookingUser
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.service_fixtures import ADMIN, ALICE, BOB, Counter, refusal


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path)
    busy = gpu(1, used=40000, use=90)
    lab.host("atlas", gpu(0) + busy + gpu(2) + gpu(3), process(7, "GPU-1"), person(7, "carol"))
    lab.host("zeus", gpu(0, name="NVIDIA H100 80GB HBM3", uuid="GPU-z0") + gpu(1, name="Tesla T4", uuid="GPU-z1"))
    return lab


@pytest.fixture
def counter(lab: Lab) -> Counter:
    return Counter(lab)


# Changes


def test_a_booking_is_lengthened_and_the_rest_of_its_entry_stays(counter: Counter) -> None:
    counter.path.write_text(
        '{"atlas": {\n  // the old one\n  "0": {"name": "alice", "date": "2029-11-13", "team": ["x"]}\n}}'
    )
    (booking,) = booking_service.list_service_bookings(counter.service.begin_read(ALICE))["bookings"]
    counter.do(do="change", id=booking["id"], until="2029-11-14 09:00", comment="longer")
    assert counter.path.read_text() == (
        '{"atlas": {\n  // the old one\n  "0": {"name": "alice", "date": "2029-11-14 09:00+01:00", "team": ["x"], '
        f'"comment": "longer", "id": "{booking["id"]}"}}\n}}}}'
    )


def test_a_change_into_somebody_elses_time_is_refused(counter: Counter) -> None:
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    counter.book("atlas:0", who=BOB, since="13:00")
    assert "is booked by bob" in refusal(lambda: counter.do(do="change", id=booking_id, length="3h"))
    assert counter.do(do="change", id=booking_id, length="150m")["said"].endswith("until Mon 12 Nov 13:00 (2 h 30 min)")


def test_the_gpus_of_a_booking_change_together_and_one_of_them_can_be_released(counter: Counter) -> None:
    booking_id = counter.book("atlas:0,2,3", since="tomorrow 9:00")["bookings"][0]["id"]
    counter.do(do="change", id=booking_id, until="wed 9:00")
    assert {entry["date"] for entry in counter.content()["atlas"].values()} == {"2029-11-14 09:00+01:00"}
    counter.do(do="release", gpus=["atlas:2"])
    (left,) = booking_service.list_service_bookings(counter.service.begin_read(ALICE))["bookings"]
    assert left["where"] == "atlas:0,3"


def test_release_asks_which_of_two_bookings_is_meant(counter: Counter) -> None:
    first, second = (counter.book("atlas:0", since=at)["bookings"][0]["id"] for at in ("11:00", "15:00"))
    why = f"more than one booking matches: give the id {first} (until 13:00) or {second} (until 17:00)"
    assert refusal(lambda: counter.do(do="release", gpus=["atlas:0"])) == why


def test_a_whole_host_is_released_whole(counter: Counter) -> None:
    booking_id = counter.book("atlas")["bookings"][0]["id"]
    why = f"booking {booking_id} covers all GPUs of atlas: release the whole booking"
    assert refusal(lambda: counter.do(do="release", gpus=["atlas:1"])) == why
    assert counter.do(do="release", gpus=["atlas"])


def test_a_series_that_has_begun_gets_an_end_and_one_that_has_not_is_gone(counter: Counter) -> None:
    series: dict[str, Any] = {"length": "3h", "rrule": "FREQ=DAILY;COUNT=30"}
    booking_id = counter.book("atlas:0", **series)["bookings"][0]["id"]
    later = counter.book("atlas:2", **series, since="tomorrow 9:00")["bookings"][0]["id"]
    counter.after(hours=1)
    counter.do(do="release", id=later)
    counter.after(days=2, hours=-1)
    counter.do(do="release", id=booking_id)
    assert counter.content()["atlas"]["0"]["rrule"] == "FREQ=DAILY;UNTIL=20291114T093000Z"
    assert counter.book("atlas:0", who=BOB, since="fri 9:00")


# Whose it is


def test_only_the_owner_whoever_made_it_or_an_admin_changes_a_booking(counter: Counter) -> None:
    booking_id = counter.book("atlas:0", who=BOB, name="alice")["bookings"][0]["id"]
    assert counter.content()["atlas"]["0"]["by"] == "bob"
    why = f"booking {booking_id} is alice's: only they or an admin may change it"
    assert (
        refusal(
            lambda: counter.do(BookingUser("mallory"), do="change", id=booking_id, comment="x"), BookingForbiddenError
        )
        == why
    )
    assert (
        refusal(lambda: counter.do(BookingUser("mallory"), do="release", id=booking_id), BookingForbiddenError) == why
    )
    assert refusal(lambda: counter.do(BookingUser("mallory"), do="release", gpus=["atlas:0"])) == (
        "you have not booked atlas:0; it is booked by alice"
    )
    for who in (ALICE, BOB, ADMIN):
        counter.do(who, do="change", id=booking_id, comment=f"by {who.name}")


def test_one_person_has_many_names(counter: Counter) -> None:
    (counter.lab.data / "aliases.csv").write_text("alice,Alice A.\nasmith,Alice A.\n")
    booking_id = counter.book("atlas:0", who=BookingUser("asmith"))["bookings"][0]["id"]
    assert counter.do(ALICE, do="change", id=booking_id, comment="mine too")
    assert counter.book("atlas:2", who=ALICE, name="asmith")["bookings"][0]["by"] is None


def test_booking_for_others_may_be_forbidden(lab: Lab) -> None:
    counter = Counter(lab, can_book_for_others=False)
    why = "you are alice: only an admin may book for bob"
    assert refusal(lambda: counter.book("atlas:0", name="bob"), BookingForbiddenError) == why
    assert counter.book("atlas:0", name="bob", who=ADMIN)


def test_an_open_board_believes_the_name_that_is_given(counter: Counter) -> None:
    anybody = BookingUser("alice", is_open=True)
    booking = counter.book("atlas:0", who=anybody, name="bob")["bookings"][0]
    assert (booking["name"], booking["by"]) == ("bob", None)
    assert counter.do(anybody, do="release", id=booking["id"])


# Log and undo


def test_each_change_has_a_line_with_who_when_what_before_and_after(counter: Counter) -> None:
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    counter.do(do="change", id=booking_id, comment="x")
    counter.do(BookingUser("root", is_admin=True, via="page"), do="release", id=booking_id)
    lines = counter.log()
    assert [(line["who"], line["via"], line["what"]) for line in lines] == [
        ("alice", "command", "book"),
        ("alice", "command", "change"),
        ("root", "page", "release"),
    ]
    assert {line["when"] for line in lines} == {"2029-11-12 10:30:00+01:00"}
    assert (lines[0]["before"], lines[0]["after"][0][:2]) == ([], ["atlas", "0"])
    assert lines[1]["before"] == lines[0]["after"]
    assert lines[1]["after"][0][2]["comment"] == "x"
    assert (lines[2]["before"], lines[2]["after"]) == (lines[1]["after"], [])


def test_undo_takes_back_ones_own_changes_one_after_the_other(counter: Counter) -> None:
    counter.path.write_text('{"atlas": {"3": {"name": "alice", "date": "2029-12-01", "team": 7}}}')
    counter.book("atlas:0")
    counter.book("atlas:2", who=BOB)
    (by_hand,) = (
        booking["id"]
        for booking in booking_service.list_service_bookings(counter.service.begin_read(ALICE))["bookings"]
        if booking["gpus"] == ["3"]
    )
    counter.do(do="change", id=by_hand, until="2029-12-02 12:00")
    assert counter.do(do="undo")["said"].startswith("undo of the change by alice, Mon 12 Nov 10:30: atlas:3")
    assert counter.content()["atlas"]["3"] == {"name": "alice", "date": "2029-12-01", "team": 7}
    counter.do(do="undo")
    assert list(counter.content()["atlas"]) == ["2", "3"]
    assert refusal(lambda: counter.do(do="undo")) == "no change by alice can be undone"
    assert counter.do(ADMIN, do="undo")
    assert list(counter.content()["atlas"]) == ["3"]


def test_undo_takes_ids_of_any_type(counter: Counter) -> None:
    counter.path.write_text('{"atlas": {"3": {"name": "alice", "date": "2029-12-01", "id": []}}}')
    counter.book("atlas:0")
    log = counter.path.with_name("bookings.log")
    line = json.loads(log.read_text().splitlines()[0])
    odd_line = {**line, "change": "odd", "what": "undo", "undoes": [], "before": [], "after": []}
    log.write_text(f"{json.dumps(line)}\n{json.dumps(odd_line)}\n")
    assert counter.do(do="undo")["said"].startswith("undo of the booking by alice")


def test_a_release_is_taken_back_unless_somebody_else_has_booked_meanwhile(counter: Counter) -> None:
    booking_id = counter.book("atlas:0", since="tomorrow 9:00")["bookings"][0]["id"]
    counter.do(do="release", id=booking_id)
    theirs = counter.book("atlas:0", who=BOB, since="tomorrow 9:00")["bookings"][0]["id"]
    assert "is booked by bob" in refusal(lambda: counter.do(do="undo"))
    counter.do(BOB, do="release", id=theirs)
    assert counter.do(do="undo")["bookings"][0]["id"] == booking_id


@pytest.mark.parametrize("act", ["release", "change"])
def test_a_time_that_somebody_else_has_had_since_is_not_taken_back(counter: Counter, act: str) -> None:
    booking_id = counter.book("atlas:0", length="8h")["bookings"][0]["id"]
    counter.after(minutes=10)
    changed_fields: dict[str, Any] = {"until": "11:00"} if act == "change" else {}
    counter.do(do=act, id=booking_id, **changed_fields)
    counter.book("atlas:0", who=BOB, since="11:00", length="30m")
    before = counter.content()
    counter.after(hours=2)
    assert "atlas:0 was booked by bob from 11:00 until 11:30" in refusal(lambda: counter.do(do="undo"))
    assert counter.content() == before


def test_undo_refuses_a_booking_that_was_changed_since(counter: Counter) -> None:
    counter.book("atlas:0")
    counter.path.write_text(counter.path.read_text().replace('"alice"', '"anna"'))
    assert refusal(lambda: counter.do(do="undo")) == ("the booking of atlas:0 has changed since and cannot be undone")
