"""The desk: what may be booked, changed and released, what is refused and in which words, and what is logged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from site_builder.bookings import service as booking_service
from site_builder.bookings.json_edit import JsonDocument
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.request import UnclearRequestError
from site_builder.bookings.store import BookingStore
from site_builder.bookings.transaction import BookingUser
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.samples import format_topology
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


# Booking


def test_a_booking_is_in_the_file_and_confirmed_in_words(counter: Counter) -> None:
    done = counter.book("atlas:0,2", until="fri 18:00", comment="ICML run", length=None)
    (booking,) = done["bookings"]
    assert done["said"] == "atlas:0,2 for alice from now until Fri 16 Nov 18:00 (4 d 8 h)"
    entry = {
        "name": "alice",
        "from": "2029-11-12 10:30+01:00",
        "date": "2029-11-16 18:00+01:00",
        "comment": "ICML run",
        "id": booking["id"],
    }
    assert counter.content() == {"atlas": {"0": entry, "2": entry}}
    assert (booking["where"], booking["phase"], done["warnings"]) == ("atlas:0,2", "now", [])


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "book", "gpus": ["atlas:1"], "for": "2h"},
        {"do": "change", "id": "k7m2xp", "for": "5h"},
        {"do": "release", "id": "k7m2xp"},
    ],
)
def test_a_request_reads_and_parses_the_file_once(
    counter: Counter, request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"name": "alice", "from": "2029-11-12 09:00", "date": "2029-11-12 12:00", "id": "k7m2xp"}
    counter.lab.book({"atlas": {"0": entry}})
    calls = []
    read, parse = BookingStore.read, JsonDocument.from_bytes

    def count_read(store: BookingStore) -> bytes:
        calls.append("read")
        return read(store)

    def count_parse(data: bytes) -> JsonDocument:
        calls.append("parse")
        return parse(data)

    monkeypatch.setattr(BookingStore, "read", count_read)
    monkeypatch.setattr(JsonDocument, "from_bytes", staticmethod(count_parse))
    booking_service.handle_service_request(counter.service, request_, ALICE)
    assert calls == ["read", "parse"]


def test_a_check_says_the_same_and_writes_nothing(counter: Counter) -> None:
    done = counter.book("atlas:0", check=True)
    assert done["said"].startswith("atlas:0 for alice from now until Mon 12 Nov 12:30 (2 h)")
    assert not counter.path.exists()
    assert not (counter.lab.data / "bookings.log").exists()


@pytest.mark.parametrize(
    ("target", "keys"),
    [
        ("atlas", ["*"]),
        ("ATLAS.lab.org:0", ["0"]),
        ("atlas:0-2", ["0", "1", "2"]),
        ("atlas:02", ["2"]),
        ("atlas:gpu-3", ["GPU-3"]),
        ("atlas:*,1", ["*"]),
        ("atlas:1,1", ["1"]),
    ],
)
def test_gpus_as_people_name_them(counter: Counter, target: str, keys: list[str]) -> None:
    assert list(counter.book(target)["bookings"][0]["gpus"]) == keys


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("atlass", "no host atlass; did you mean atlas?"),
        ("nowhere:0", "no host nowhere"),
        ("atlas:9", "atlas has no GPU 9, only GPUs 0 to 3"),
        ("atlas:GPU-", "atlas has no GPU GPU-, only GPUs 0 to 3"),
    ],
)
def test_a_gpu_that_there_is_not_is_refused(counter: Counter, target: str, why: str) -> None:
    assert refusal(lambda: counter.book(target)) == why


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"do": "steal"}, "`do` must be book, change, release, undo"),
        ({"do": "book", "gpu": "atlas"}, "book does not take `gpu`"),
        ({"do": "book", "gpus": ["atlas:0"]}, "no end: give `until` or `for`"),
        ({"do": "book", "gpus": ["atlas:0"], "for": "2h", "until": "fri 18:00"}, "give `until` or `for`, not both"),
        ({"do": "book", "gpus": [], "for": "2h"}, "no GPU named: give a host, some of its GPUs such as atlas:0,1"),
        ({"do": "book", "gpus": ["../x"], "for": "2h"}, '"../x" is not a GPU: write a host, or atlas:0,1'),
        ({"do": "book", "gpus": [7], "for": "2h"}, "`gpus` must be a list of texts"),
        ({"do": "book", "gpus": ["atlas"], "for": 7}, "`for` must be text"),
        ({"do": "book", "gpus": ["atlas"], "for": "2h", "comment": "x" * 501}, "`comment` is longer than 500"),
        ({"do": "book", "any": True, "for": "2h"}, "`any` must be a number of GPUs"),
        ({"do": "book", "any": -1, "for": "2h"}, "`any` must be a number of GPUs"),
        ({"do": "release"}, "no booking named: give its `id`, or the GPUs"),
        ({"do": "book", "gpus": ["atlas"], "for": "2h", "rrule": "FREQ=HOURLY"}, 'the rrule "FREQ=HOURLY" repeats too'),
    ],
)
def test_an_unclear_request_is_refused_with_the_reason(counter: Counter, request_: Mapping[str, Any], why: str) -> None:
    assert refusal(
        lambda: booking_service.handle_service_request(counter.service, request_, ALICE), UnclearRequestError
    ).startswith(why)


def test_a_time_that_could_mean_two_is_refused_with_both(counter: Counter) -> None:
    why = refusal(lambda: counter.book("atlas:0", until="fri", length=None), UnclearRequestError)
    assert why.startswith('"fri" could be')
    assert why.endswith('write "2029-11-16 00:00" or "2029-11-16 24:00"')


def test_a_busy_gpu_may_be_booked_with_a_warning(counter: Counter) -> None:
    assert counter.book("atlas:0,1")["warnings"] == ["atlas:1 is busy: in use by carol"]
    assert counter.book("atlas:1", since="tomorrow 9:00")["warnings"] == []


def test_a_silent_host_may_be_booked_with_a_warning(counter: Counter) -> None:
    (counter.lab.data / "hosts.txt").write_text("new\n")
    assert counter.book("new")["warnings"] == ["new is unseen: listed by hosts.txt, but it has never pushed"]


# Free ones


def test_any_picks_free_ones_of_the_host_with_the_fewest_to_spare(counter: Counter) -> None:
    assert [booking["where"] for booking in counter.book(any=2, who=ALICE)["bookings"]] == ["zeus:0,1"]
    assert [booking["where"] for booking in counter.book(any=2, who=ALICE)["bookings"]] == ["atlas:0,2"]


def test_any_prefers_gpus_that_are_linked(counter: Counter) -> None:
    links = format_topology("580-four-in-pairs")
    counter.lab.write("atlas", "host.txt", links)
    assert [booking["where"] for booking in counter.book(any=2)["bookings"]] == ["atlas:2,3"]
    assert [booking["where"] for booking in counter.book(any=2)["bookings"]] == ["zeus:0,1"]
    assert [booking["where"] for booking in counter.book(any=1, since="15:00")["bookings"]] == ["zeus:0"]


def test_any_takes_a_linked_pair_also_where_a_gpu_of_another_model_comes_first(counter: Counter) -> None:
    names = ("NVIDIA T400 4GB", "NVIDIA RTX A6000", "NVIDIA RTX A6000")
    rows = "".join(gpu(index, name=name, uuid=f"GPU-z{index}") for index, name in enumerate(names))
    counter.lab.host("zeus", rows, facts=format_topology("590-h100-mig"))  # with NVLinks between 1 and 2
    assert counter.book(any=2)["bookings"][0]["where"] == "zeus:1,2"
    assert counter.book(any=1)["bookings"][0]["where"] == "zeus:0"


def test_any_single_one_is_taken_from_where_it_breaks_no_pair(counter: Counter) -> None:
    counter.lab.write("atlas", "host.txt", format_topology("580-four-in-pairs"))
    assert counter.book(any=1, model="A100")["bookings"][0]["where"] == "atlas:0"
    assert counter.book(any=2, model="A100")["bookings"][0]["where"] == "atlas:2,3"


def test_any_with_a_model_books_that_model(counter: Counter) -> None:
    assert counter.book(any=1, model="h100")["bookings"][0]["where"] == "zeus:0"
    assert refusal(lambda: counter.book(any=1, model="H100")) == "no host has 1 free H100 for that time"


def test_any_respects_bookings_in_that_time(counter: Counter) -> None:
    counter.book("zeus:1", since="12:00")
    assert counter.book(any=1, model="T4", length="90m")["bookings"][0]["where"] == "zeus:1"
    assert refusal(lambda: counter.book(any=1, model="T4", length="2h")) == "no host has 1 free T4 for that time"


def test_where_no_one_host_has_enough_the_rest_is_named(counter: Counter) -> None:
    why = refusal(lambda: counter.book(any=4))
    assert why == "no host has 4 free GPUs for that time; free are atlas:0,2,3, zeus:0,1"


# Overlaps


def test_a_booked_gpu_is_refused_and_the_other_booking_named(counter: Counter) -> None:
    first = counter.book("atlas:0", who=BOB)["bookings"][0]["id"]
    why = f"atlas:0 is booked by bob from 10:30 until 12:30 (booking {first})"
    assert refusal(lambda: counter.book("atlas:0,2")) == why
    assert refusal(lambda: counter.book("atlas")) == why
    assert refusal(lambda: counter.book("atlas:GPU-0")).startswith("atlas:GPU-0 is booked by bob")
    assert list(counter.content()["atlas"]) == ["0"]  # all of it or nothing


def test_one_ends_where_the_next_begins(counter: Counter) -> None:
    counter.book("atlas:0", who=BOB)
    assert counter.book("atlas:0", since="12:30")["bookings"][0]["phase"] == "coming"


def test_a_booking_by_uuid_follows_its_gpu_when_the_index_moves(counter: Counter) -> None:
    counter.book("atlas:GPU-0", who=BOB)
    counter.lab.host("atlas", gpu(0, uuid="GPU-new") + gpu(1, uuid="GPU-0"))
    assert "is booked by bob" in refusal(lambda: counter.book("atlas:1"))
    assert counter.book("atlas:0")["bookings"]


def test_a_booking_by_hand_under_another_form_of_the_name_counts(counter: Counter) -> None:
    counter.path.write_text('{"Atlas.lab.org": [{"name": "bob", "date": "2029-11-13 09:00"}]}')
    assert refusal(lambda: counter.book("atlas:0")).startswith("atlas:0 is booked by bob until tomorrow 09:00")
    counter.book("atlas:2")
    assert list(counter.content()) == ["Atlas.lab.org"]


def test_what_repeats_is_refused_where_any_of_its_times_is_taken(counter: Counter) -> None:
    counter.book("atlas:0", who=BOB, since="2029-12-11 10:00")
    weekly: dict[str, Any] = {"since": "tue 9:00", "length": "3h", "rrule": "FREQ=WEEKLY;BYDAY=TU"}
    assert "is booked by bob from 11 Dec 10:00 until 11 Dec 12:00" in refusal(lambda: counter.book("atlas:0", **weekly))
    counter.book("atlas:2", who=BOB, **weekly)
    why = refusal(lambda: counter.book("atlas:2", since="2030-06-04 11:00", length="1h"))
    assert why.startswith("atlas:2 is booked by bob from 4 Jun 2030 09:00 until 4 Jun 2030 12:00")
    assert counter.book("atlas:2", since="2030-06-05 11:00", length="1h")


# The past


def test_nothing_is_booked_in_the_past(counter: Counter) -> None:
    past = "2029-11-12 09:00"
    assert refusal(lambda: counter.book("atlas:0", since=past, length="4h")) == "the start (09:00) is in the past"
    assert refusal(lambda: counter.book("atlas:0", length=None, until="2029-11-12 10:00")) == (
        "the end (10:00) is before the start (10:30)"
    )


def test_an_ended_booking_cannot_be_changed(counter: Counter) -> None:
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    before = counter.path.read_bytes()
    counter.after(hours=3)
    why = f"booking {booking_id} ended 12:30 and can no longer change"
    assert refusal(lambda: counter.do(do="release", id=booking_id)) == why
    assert refusal(lambda: counter.do(do="change", id=booking_id, until="fri 18:00")) == why
    assert counter.path.read_bytes() == before


def test_release_ends_a_running_booking_now_and_removes_a_coming_one(counter: Counter) -> None:
    runs = counter.book("atlas:0")["bookings"][0]["id"]
    comes = counter.book("atlas:0", since="tomorrow 9:00")["bookings"][0]["id"]
    counter.after(hours=1)
    message = counter.do(do="release", id=runs)["said"]
    assert message == "atlas:0 of alice released (was until Mon 12 Nov 12:30)"
    counter.do(do="release", id=comes)
    (left,) = counter.content()["atlas"]["0"]
    assert (left["id"], left["date"]) == (runs, "2029-11-12 11:30+01:00")


def test_the_beginning_of_what_has_begun_stays(counter: Counter) -> None:
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    counter.after(hours=1)
    why = f"booking {booking_id} has started, so its start cannot change"
    assert refusal(lambda: counter.do(do="change", id=booking_id, since="12:00")) == why


# Limits


@pytest.mark.parametrize(
    ("limit", "request_", "why"),
    [
        ({"max_duration_s": 3600}, {}, "a booking may last 1 h at most; this one would last 2 h"),
        (
            {"max_ahead_s": 86400},
            {"since": "fri 9:00"},
            "bookings can start 1 d ahead at most; this one would start Fri 09:00",
        ),
        (
            {"max_gpus": 2},
            {"gpus": ["atlas"]},
            "one person may book 2 GPUs at a time; this would make 4",
        ),
        ({"max_gpu_hours": 7}, {"gpus": ["atlas"]}, "one person may book 7 GPU-hours; this would make 8"),
    ],
)
def test_limits_bind_everybody_but_an_admin(
    lab: Lab, limit: dict[str, float], request_: dict[str, Any], why: str
) -> None:
    counter = Counter(lab, **limit)
    wanted: dict[str, Any] = {"gpus": ["atlas:0"], **request_}
    assert refusal(lambda: counter.book(**wanted)) == why
    assert counter.book(**wanted, who=ADMIN)


def test_what_somebody_has_already_counts(lab: Lab) -> None:
    counter = Counter(lab, max_gpus=2, max_gpu_hours=10)
    counter.book("atlas:0,2")
    counter.book("atlas:3", since="12:30")  # not at the same time
    assert refusal(lambda: counter.book("zeus:0", length="1h")) == (
        "one person may book 2 GPUs at a time; this would make 3"
    )
    assert refusal(lambda: counter.book("zeus:0", since="15:00", length="5h")) == (
        "one person may book 10 GPU-hours; this would make 11"
    )
    assert counter.book("zeus:0", who=BOB)


def test_an_extension_is_held_to_the_limits_too(lab: Lab) -> None:
    counter = Counter(lab, max_duration_s=3 * 3600)
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    assert refusal(lambda: counter.do(do="change", id=booking_id, length="4h")).endswith("this one would last 4 h")


BERLIN_VIEWER = BookingUser("alice", zone=ZoneInfo("Europe/Berlin"))


def test_messages_have_the_times_of_a_viewer_in_another_zone_with_the_labs_beside_them(counter: Counter) -> None:
    tokyo = BookingUser("alice", zone=ZoneInfo("Asia/Tokyo"))
    until = "2029-11-12T22:30:00+09:00"  # the lab is in Paris, where it is 14:30
    booked = counter.do(tokyo, do="book", gpus=["atlas:0"], until=until)
    assert "until Mon 12 Nov 22:30 (lab: 14:30)" in booked["said"]
    with pytest.raises(BookingRefusedError, match=r"until 22:30 \(lab: 14:30\)"):
        counter.do(BookingUser("bob", zone=tokyo.zone), do="book", gpus=["atlas:0"], until=until)
    late = counter.do(tokyo, do="book", gpus=["atlas:1"], until="2029-11-13T01:00:00+09:00", check=True)
    assert "until Tue 13 Nov 01:00 (lab: Mon 17:00)" in late["said"]


def test_a_viewer_whose_clock_shows_the_same_sees_no_second_time(counter: Counter) -> None:
    assert "lab" not in counter.do(BERLIN_VIEWER, do="book", gpus=["atlas:0"], **{"for": "2h"})["said"]


def test_an_unusual_end_and_an_unknown_name_are_to_be_confirmed(counter: Counter) -> None:
    far = counter.do(do="book", gpus=["atlas:0"], until="2036-01-01 10:00", check=True)
    assert far["confirm"] == ["it ends more than a year from now, Tue 1 Jan 2036 10:00"]
    assert far["warnings"] == far["confirm"]
    anybody = BookingUser("bbo", is_open=True)
    typed = counter.do(anybody, do="book", gpus=["atlas:0"], length="2h", check=True)
    assert typed["confirm"] == ["no user of these hosts is known as bbo"]
    counter.do(anybody, do="book", gpus=["atlas:0"], length="2h")
    for_other: dict[str, Any] = {"do": "book", "gpus": ["atlas:2"], "length": "2h", "check": True}
    assert "confirm" not in counter.do(**for_other, name="bbo")  # who has a booking by now
    assert counter.do(**for_other, name="nobody")["confirm"]
    assert "confirm" not in counter.do(**for_other)  # under one's own name


def test_a_change_can_be_undone_by_the_id_in_its_response(counter: Counter) -> None:
    change = counter.book("atlas:0")["change"]
    assert counter.do(do="undo", undoes=change)["undoes"] == change
    assert not any(counter.content().values())


def test_a_person_is_listed_with_ones_own_bookings(counter: Counter) -> None:
    counter.book("atlas:0")
    counter.book("atlas:2", who=BOB)
    transaction = counter.service.begin_read(BookingUser("", is_open=True))
    for name, places in (("bob", ["atlas:2"]), ("", []), (None, ["atlas:0", "atlas:2"])):
        listed = booking_service.list_service_bookings(transaction, person=name)["bookings"]
        assert [booking["where"] for booking in listed] == places
    own = booking_service.list_service_bookings(counter.service.begin_read(ALICE), person="")["bookings"]
    assert [booking["where"] for booking in own] == ["atlas:0"]
