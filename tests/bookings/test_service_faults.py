"""The booking service with a broken file, and with requests that somebody made up to break it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from site_builder.bookings import service as booking_service
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.bookings.request import UnclearRequestError
from site_builder.bookings.service import BookingService
from site_builder.bookings.store import BookingsUnreadableError
from site_builder.bookings.transaction import BookingUser
from site_builder.core.locks import LockedFileError
from site_builder.core.model import PrivacySettings
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.service_fixtures import ALICE, BOB, FRESH, NOW, PARIS, Counter, refusal


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


# A broken file


def test_a_broken_file_is_never_overwritten_and_the_line_is_named(counter: Counter) -> None:
    counter.book("atlas:0")
    good = counter.path.read_bytes()
    counter.path.write_text('{\n  "atlas": [\n')
    why = refusal(lambda: counter.book("atlas:2"), BookingsUnreadableError)
    assert "line 3, column 1: " in why
    assert "comments.last-good.json beside it is the last good copy" in why
    assert counter.path.read_text() == '{\n  "atlas": [\n'
    assert (counter.lab.data / "comments.last-good.json").read_bytes() == good


@pytest.mark.slow
def test_an_empty_file_has_no_bookings(counter: Counter) -> None:
    counter.path.write_text("")
    assert counter.book("atlas:0")


def test_names_are_hidden_from_others_where_the_board_hides_them(lab: Lab) -> None:
    service = BookingService(lab.settings(zone=PARIS, privacy=PrivacySettings(users=False)), NOW.timestamp)
    booking_service.handle_service_request(
        service, {"do": "book", "gpus": ["atlas:0"], "for": "2h", "comment": "secret"}, BOB
    )
    (seen,) = booking_service.list_service_bookings(service.begin_read(ALICE))["bookings"]
    assert (seen["name"], seen["comment"], seen["id"], seen["mine"]) == (None, None, None, False)
    assert booking_service.list_service_bookings(service.begin_read(BOB))["bookings"][0]["comment"] == "secret"
    with pytest.raises(BookingRefusedError) as why:
        booking_service.handle_service_request(service, {"do": "book", "gpus": ["atlas:0"], "for": "2h"}, ALICE)
    assert "bob" not in str(why.value)


# What was found by trying to break it


def test_hosts_that_share_a_short_name_are_two(lab: Lab) -> None:
    for name in ("gpu.math", "gpu", "Atlas"):
        lab.host(name, gpu(0, uuid=f"GPU-{name}"))
    counter = Counter(lab)
    for host in ("gpu.math", "gpu", "Atlas", "atlas"):
        counter.book(f"{host}:0")
        assert refusal(lambda: counter.book(f"{host}:0", who=BOB)).startswith(f"{host}:0 is booked")  # noqa: B023
    assert list(counter.content()) == ["gpu.math", "gpu", "Atlas", "atlas"]


@pytest.mark.slow
def test_an_empty_file_where_there_were_bookings_is_not_taken_for_none(counter: Counter) -> None:
    counter.book("atlas:0")
    good = (counter.lab.data / "comments.last-good.json").read_bytes()
    for spoil in (lambda: counter.path.write_text(""), counter.path.unlink):
        spoil()
        why = refusal(lambda: counter.book("atlas:2"), LockedFileError)
        assert "though comments.last-good.json beside it has bookings: copy that back, or write {}" in why
        assert (counter.lab.data / "comments.last-good.json").read_bytes() == good
    counter.path.write_text("{}")
    assert counter.book("atlas:2")


@pytest.mark.slow
def test_a_booking_beyond_the_maximum_is_refused(counter: Counter) -> None:
    many = [{"name": "o", "from": "2029-01-01", "date": "2029-10-30", "comment": str(n)} for n in range(5000)]
    counter.path.write_text(json.dumps({"zeus": {"0": many}}))
    why = "comments.json is full: more than 5000 bookings do not fit"
    assert refusal(lambda: counter.book("zeus:1")) == why
    assert refusal(lambda: counter.book("atlas:0")) == why


def test_a_file_that_would_be_too_large_is_refused(counter: Counter) -> None:
    large = {"name": "o", "date": "2029-12-01", "note": "y" * (3 * 1024 * 1024)}
    counter.path.write_text(json.dumps({"zeus": {"0": large}}))
    assert refusal(lambda: counter.book("atlas:0")).startswith("comments.json is full: the limit is 3145728 bytes")
    (booking,) = booking_service.list_service_bookings(counter.service.begin_read(BookingUser("o")))["bookings"]
    assert counter.do(BookingUser("o"), do="release", id=booking["id"])  # which makes it no larger


def test_an_undo_is_done_once_and_is_the_one_that_was_shown(counter: Counter) -> None:
    counter.book("atlas:0", since="tomorrow 9:00")
    counter.do(do="release", gpus=["atlas:0"])
    shown = counter.do(do="undo", check=True)["undoes"]
    assert counter.do(do="undo", undoes=shown)["undoes"] == shown
    assert (
        refusal(lambda: counter.do(do="undo", undoes=shown))
        == "another change was made since, by alice: check the bookings again"
    )
    assert isinstance(counter.content()["atlas"]["0"], dict)


def test_the_log_names_the_change_that_an_undo_took_back(counter: Counter) -> None:
    counter.book("atlas:0")
    undone = counter.do(do="undo")["undoes"]
    assert counter.log()[-1]["undoes"] == undone


def test_a_change_that_was_logged_and_never_made_stands_in_no_undos_way(counter: Counter) -> None:
    counter.book("atlas:0")
    line = counter.log()[0]
    never = {**line, "change": "00000000", "after": [["atlas", "2", {**line["after"][0][2], "id": "never1"}]]}
    with (counter.lab.data / "bookings.log").open("a") as log:
        log.write(json.dumps(never) + "\n" + json.dumps({**never, "change": "1", "after": 5}) + "\n")
    assert "no longer booked" in counter.do(do="undo")["said"]


def test_an_undo_does_not_change_the_past(counter: Counter) -> None:
    counter.book("atlas:0", length="1h")
    counter.after(hours=5)
    assert "and can no longer change" in refusal(lambda: counter.do(do="undo"))


def test_an_undo_is_held_to_the_limits_too(lab: Lab) -> None:
    counter = Counter(lab, max_gpus=2)
    counter.book("atlas:0,2", since="tomorrow 9:00")
    counter.do(do="release", gpus=["atlas:0,2"])
    counter.book("zeus:0", who=BOB, name="alice", since="tomorrow 9:00")
    assert "one person may book " in refusal(lambda: counter.do(do="undo"))


def test_what_repeats_is_compared_as_far_as_the_other_goes(counter: Counter) -> None:
    counter.book("atlas:0", who=BOB, since="2031-12-02 9:00", length="3h")
    weekly: dict[str, Any] = {"length": "3h", "rrule": "FREQ=WEEKLY;BYDAY=TU"}
    assert "2 Dec 2031" in refusal(lambda: counter.book("atlas:0", since="2029-11-13 9:00", **weekly))
    counter.book("atlas:2", who=BOB, since="2031-12-02 9:00", **weekly)
    assert "2 Dec 2031" in refusal(lambda: counter.book("atlas:2", length="800d"))


@pytest.mark.parametrize(
    ("limits", "booking_options", "why"),
    [
        ({"max_ahead_s": 14 * 86400}, {"length": "3h", "rrule": "FREQ=DAILY"}, "bookings can be made 14 d ahead"),
        (
            {"max_duration_s": 86400},
            {"length": "24h", "rrule": "FREQ=DAILY"},
            "the next repeat would start before this one ends",
        ),
        ({"max_gpu_hours": 10}, {"length": "20h", "since": "2029-12-20 9:00", "rrule": "FREQ=DAILY"}, "GPU-hours"),
    ],
)
def test_the_limits_bind_what_repeats(
    lab: Lab, limits: dict[str, float], booking_options: dict[str, Any], why: str
) -> None:
    assert why in refusal(lambda: Counter(lab, **limits).book("atlas:0", **booking_options))


def test_two_series_far_ahead_count_together(lab: Lab) -> None:
    counter = Counter(lab, max_gpus=2)
    series: dict[str, Any] = {"length": "3h", "since": "2029-12-20 9:00", "rrule": "FREQ=DAILY"}
    counter.book("atlas:0,2", **series)
    assert "this would make 4" in refusal(lambda: counter.book("atlas:1,3", **series))


def test_another_name_does_not_help_past_a_limit(lab: Lab) -> None:
    counter = Counter(lab, max_gpus=1)
    counter.book("atlas:0")
    assert "this would make 2" in refusal(lambda: counter.book("atlas:2", name="nobody"))


def test_a_beginning_is_not_moved_into_the_past(counter: Counter) -> None:
    booking_id = counter.book("atlas:0", since="2029-11-20 9:00")["bookings"][0]["id"]
    assert "is in the past" in refusal(lambda: counter.do(do="change", id=booking_id, since="2029-11-01 9:00"))


def test_a_series_that_is_over_stays_as_it_was(counter: Counter) -> None:
    booking_id = counter.book("atlas:0", since="tomorrow 9:00", length="3h", rrule="FREQ=DAILY;COUNT=3")["bookings"][0][
        "id"
    ]
    counter.after(days=30)
    assert "ended 15 Nov 12:00 and can no longer change" in refusal(lambda: counter.do(do="release", id=booking_id))
    assert refusal(lambda: counter.do(do="release", gpus=["atlas:0"])) == "you have not booked atlas:0"


def test_a_range_that_counts_backwards_is_refused(counter: Counter) -> None:
    assert refusal(lambda: counter.book("atlas:3-1"), UnclearRequestError) == "3-1 is in the wrong order: write 1-3"


def test_index_and_uuid_of_a_gpu_are_one(counter: Counter) -> None:
    assert counter.book("atlas:0,GPU-0")["bookings"][0]["gpus"] == ["0"]
    assert counter.do(do="release", gpus=["atlas:GPU-0", "atlas:0"])


def test_what_repeats_on_other_days_begins_on_the_first_of_these(counter: Counter) -> None:
    done = counter.book("atlas:0", since="11:00", rrule="FREQ=WEEKLY;BYDAY=TU")
    assert done["said"] == "atlas:0 for alice every Tue 11:00 to 13:00, first Tue 13 Nov 11:00"
    never: dict[str, Any] = {"since": "11:00", "rrule": "FREQ=WEEKLY;UNTIL=20200101"}
    assert refusal(lambda: counter.book("atlas:2", **never), UnclearRequestError) == "it would not occur within a year"


def test_the_gpus_that_one_keeps_of_a_running_booking_keep_its_id(counter: Counter) -> None:
    booking_id = counter.book("atlas:0,2", length="8h")["bookings"][0]["id"]
    counter.after(hours=1)
    counter.do(do="release", gpus=["atlas:0"])
    (left,) = booking_service.list_service_bookings(counter.service.begin_read(ALICE))["bookings"]
    assert (left["id"], left["where"]) == (booking_id, "atlas:2")
    assert counter.do(do="release", id=booking_id)


def test_what_was_released_this_very_minute_can_be_booked(counter: Counter) -> None:
    counter.book("atlas:0", who=BOB, length="8h")
    counter.time += 3640
    counter.do(BOB, do="release", gpus=["atlas:0"])
    counter.time += 5
    assert counter.book("atlas:0")


def test_a_change_leaves_what_it_does_not_name_letter_by_letter(counter: Counter) -> None:
    entry = {"name": "alice", "date": "2029-12-01", "comment": "x" * 800, "rrule": None, "half": "\ud83d"}
    counter.path.write_text(json.dumps({"atlas": {"0": entry}}))
    (booking,) = booking_service.list_service_bookings(counter.service.begin_read(ALICE))["bookings"]
    counter.do(do="change", id=booking["id"], until="2029-12-02 9:00")
    assert counter.content()["atlas"]["0"] == {**entry, "date": "2029-12-02 09:00+01:00", "id": booking["id"]}
    counter.do(do="undo")
    assert counter.content()["atlas"]["0"] == entry


def test_a_series_that_runs_can_be_handed_over(counter: Counter) -> None:
    booking_id = counter.book("atlas:0", length="3h", rrule="FREQ=DAILY")["bookings"][0]["id"]
    counter.after(days=3)
    assert counter.do(do="change", id=booking_id, name="bob")["bookings"][0]["name"] == "bob"


def test_a_handing_over_may_be_forbidden_too(lab: Lab) -> None:
    counter = Counter(lab, can_book_for_others=False)
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    assert "only an admin" in refusal(lambda: counter.do(do="change", id=booking_id, name="bob"), BookingForbiddenError)


@pytest.mark.parametrize("date", ["2200-12-31 23:59", "2200-12-31 10:59-12:00", "2200-12-31T22:59:59Z"])
def test_the_longest_booking_can_be_changed_and_released(counter: Counter, date: str) -> None:
    counter.path.write_text(json.dumps({"atlas": {"0": {"name": "alice", "from": "1970-01-01", "date": date}}}))
    assert "atlas:0 is booked by alice" in refusal(lambda: counter.book("atlas:0"))
    (booking,) = booking_service.list_service_bookings(counter.service.begin_read(ALICE))["bookings"]
    assert counter.do(do="change", id=booking["id"], comment="still")
    assert counter.do(do="release", id=booking["id"])


def test_an_id_on_two_hosts_is_reported_apart_by_the_host(counter: Counter) -> None:
    entry = {"name": "alice", "date": "2029-12-01", "id": "abc"}
    counter.path.write_text(json.dumps({"atlas": {"0": entry}, "zeus": {"0": entry}}))
    assert refusal(lambda: counter.do(do="release", id="abc")).endswith("name the host too")
    assert counter.do(do="release", id="abc", host="zeus")["bookings"][0]["host"] == "zeus"


def test_a_host_whose_name_looks_like_an_id_is_a_host(lab: Lab) -> None:
    lab.host("dgx222")
    counter = Counter(lab)
    counter.book("dgx222")
    assert counter.do(do="release", id="dgx222")["bookings"][0]["host"] == "dgx222"


def test_any_is_chosen_under_the_lock(counter: Counter) -> None:
    taken = {counter.book(any=1, who=BookingUser(f"user{n}"))["bookings"][0]["where"] for n in range(5)}
    assert taken == {"atlas:0", "atlas:2", "atlas:3", "zeus:0", "zeus:1"}


def test_check_is_true_or_false(counter: Counter) -> None:
    for odd in (1, "true", None):
        message = refusal(lambda: counter.book("atlas:0", check=odd), UnclearRequestError)  # noqa: B023
        assert message == "`check` must be true or false"


def test_an_offset_that_there_is_not_is_no_time(counter: Counter) -> None:
    why = refusal(lambda: counter.book("atlas:0", length=None, until="2030-03-17T17:46:40+99:99"), UnclearRequestError)
    assert why.startswith('"2030-03-17T17:46:40+99:99" ')


def test_where_users_are_hidden_an_open_board_names_no_owner(lab: Lab) -> None:
    service = BookingService(
        lab.settings(zone=PARIS, limits=FRESH, privacy=PrivacySettings(users=False)), NOW.timestamp
    )
    booking_service.handle_service_request(
        service, {"do": "book", "gpus": ["atlas:0"], "for": "2h", "comment": "secret"}, BOB
    )
    answer = booking_service.handle_service_request(
        service, {"do": "release", "gpus": ["atlas:0"], "check": True}, BookingUser("", is_open=True)
    )
    assert "bob" not in json.dumps(answer)
    assert "secret" not in json.dumps(answer)
