"""The desk: what may be booked, changed and released, what is refused and in which words, and what is logged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from dateutil import tz

from site_builder.bookings import service as booking_service
from site_builder.bookings.json_edit import JsonDocument
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.bookings.request import UnclearRequestError
from site_builder.bookings.service import BookingService
from site_builder.bookings.store import BookingStore, BookingsUnreadableError
from site_builder.bookings.transaction import BookingUser
from site_builder.core.locks import LockedFileError
from site_builder.core.model import BookingPolicy, PrivacySettings, StateLimits
from tests.support.board_fixture import Lab, gpu, person, process

PARIS = tz.gettz("Europe/Paris")
# A Monday that is not over yet, so that all that a test writes has been there before
NOW = datetime(2029, 11, 12, 10, 30, tzinfo=PARIS)
FRESH = StateLimits(stale_after=1e10, down_after=2e10)
ALICE, BOB, ADMIN = BookingUser("alice"), BookingUser("bob"), BookingUser("root", is_admin=True)


class Counter:
    """A booking service in a lab, at a moment that a test sets."""

    def __init__(self, lab: Lab, **rules: Any) -> None:  # noqa: ANN401
        self.lab = lab
        self.time = NOW.timestamp()
        self.service = BookingService(
            lab.settings(zone=PARIS, limits=FRESH, booking_policy=BookingPolicy(**rules)), lambda: self.time
        )

    def do(
        self,
        who: BookingUser = ALICE,
        since: str | None = None,
        length: str | None = None,
        **request: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        time_fields = {key: value for key, value in (("from", since), ("for", length)) if value}
        return booking_service.handle_service_request(self.service, {**request, **time_fields}, who)

    def book(
        self,
        *gpus: str,
        who: BookingUser = ALICE,
        since: str | None = None,
        length: str | None = "2h",
        **extra_fields: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        return self.do(who, since, length, **{"do": "book", "gpus": list(gpus), **extra_fields})

    def after(self, **time: float) -> None:
        self.time += sum(value * {"hours": 3600, "minutes": 60, "days": 86400}[unit] for unit, value in time.items())

    @property
    def path(self) -> Path:
        return self.lab.data / "comments.json"

    def content(self) -> Any:  # noqa: ANN401
        return json.loads(self.path.read_text())

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.lab.data / "bookings.log").read_text().splitlines()]


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


def refusal(act: Any, error: type[Exception] = BookingRefusedError) -> str:  # noqa: ANN401
    with pytest.raises(error) as raised:
        act()
    assert type(raised.value) is error
    return str(raised.value)


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
        ("atlass", "there is no host atlass; is it atlas?"),
        ("nowhere:0", "there is no host nowhere"),
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
        ({"do": "book", "gpu": "atlas"}, "book knows no `gpu`"),
        ({"do": "book", "gpus": ["atlas:0"]}, "until when? Give `until` or `for`"),
        ({"do": "book", "gpus": ["atlas:0"], "for": "2h", "until": "fri 18:00"}, "give `until` or `for`, not both"),
        ({"do": "book", "gpus": [], "for": "2h"}, "which GPU? Name a host, or some of its GPUs such as atlas:0,1"),
        ({"do": "book", "gpus": ["../x"], "for": "2h"}, '"../x" is no GPU: write a host, or atlas:0,1'),
        ({"do": "book", "gpus": [7], "for": "2h"}, "`gpus` must be a list of texts"),
        ({"do": "book", "gpus": ["atlas"], "for": 7}, "`for` must be a text"),
        ({"do": "book", "gpus": ["atlas"], "for": "2h", "comment": "x" * 501}, "`comment` is longer than 500 letters"),
        ({"do": "book", "any": True, "for": "2h"}, "`any` must be a number of GPUs"),
        ({"do": "book", "any": -1, "for": "2h"}, "`any` must be a number of GPUs"),
        ({"do": "release"}, "which booking? Give its `id`, or the GPUs"),
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
    assert counter.book("new")["warnings"] == ["new is unseen: listed by hosts.txt, but it never pushed"]


# Free ones


def test_any_picks_free_ones_of_the_host_with_the_fewest_to_spare(counter: Counter) -> None:
    assert [booking["where"] for booking in counter.book(any=2, who=ALICE)["bookings"]] == ["zeus:0,1"]
    assert [booking["where"] for booking in counter.book(any=2, who=ALICE)["bookings"]] == ["atlas:0,2"]


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
    assert (
        refusal(lambda: counter.book("atlas:0", since=past, length="4h"))
        == "it would begin 09:00, which is in the past"
    )
    assert refusal(lambda: counter.book("atlas:0", length=None, until="2029-11-12 10:00")) == (
        "it would end 10:00, before it begins 10:30"
    )


def test_an_ended_booking_cannot_be_changed(counter: Counter) -> None:
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    before = counter.path.read_bytes()
    counter.after(hours=3)
    why = f"booking {booking_id} ended 12:30, and the past stays as it was"
    assert refusal(lambda: counter.do(do="release", id=booking_id)) == why
    assert refusal(lambda: counter.do(do="change", id=booking_id, until="fri 18:00")) == why
    assert counter.path.read_bytes() == before


def test_release_ends_a_running_booking_now_and_removes_a_coming_one(counter: Counter) -> None:
    runs = counter.book("atlas:0")["bookings"][0]["id"]
    comes = counter.book("atlas:0", since="tomorrow 9:00")["bookings"][0]["id"]
    counter.after(hours=1)
    message = counter.do(do="release", id=runs)["said"]
    assert message == "atlas:0 of alice: what is left until Mon 12 Nov 12:30 is released"
    counter.do(do="release", id=comes)
    (left,) = counter.content()["atlas"]["0"]
    assert (left["id"], left["date"]) == (runs, "2029-11-12 11:30+01:00")


def test_the_beginning_of_what_has_begun_stays(counter: Counter) -> None:
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    counter.after(hours=1)
    why = f"booking {booking_id} has begun, and its beginning stays"
    assert refusal(lambda: counter.do(do="change", id=booking_id, since="12:00")) == why


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
    why = f"that could be {first} (until 13:00) or {second} (until 17:00): name its id"
    assert refusal(lambda: counter.do(do="release", gpus=["atlas:0"])) == why


def test_a_whole_host_is_released_whole(counter: Counter) -> None:
    booking_id = counter.book("atlas")["bookings"][0]["id"]
    why = f"booking {booking_id} is of all GPUs of atlas: release it whole"
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
    why = f"booking {booking_id} is alice's, and only they or an admin may change it"
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
    why = "you are alice: here nobody but an admin books under the name of bob"
    assert refusal(lambda: counter.book("atlas:0", name="bob"), BookingForbiddenError) == why
    assert counter.book("atlas:0", name="bob", who=ADMIN)


def test_an_open_board_believes_the_name_that_is_given(counter: Counter) -> None:
    anybody = BookingUser("alice", is_open=True)
    booking = counter.book("atlas:0", who=anybody, name="bob")["bookings"][0]
    assert (booking["name"], booking["by"]) == ("bob", None)
    assert counter.do(anybody, do="release", id=booking["id"])


# Limits


@pytest.mark.parametrize(
    ("limit", "request_", "why"),
    [
        ({"max_duration_s": 3600}, {}, "it would last 2 h, but a booking may be 1 h long"),
        (
            {"max_ahead_s": 86400},
            {"since": "fri 9:00"},
            "it would begin Fri 09:00, but bookings are made 1 d ahead",
        ),
        (
            {"max_gpus": 2},
            {"gpus": ["atlas"]},
            "that would be 4 GPUs of one person at the same time, but 2 are allowed",
        ),
        ({"max_gpu_hours": 7}, {"gpus": ["atlas"]}, "that would be 8 GPU-hours of one person, but 7 are allowed"),
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
        "that would be 3 GPUs of one person at the same time, but 2 are allowed"
    )
    assert refusal(lambda: counter.book("zeus:0", since="15:00", length="5h")) == (
        "that would be 11 GPU-hours of one person, but 10 are allowed"
    )
    assert counter.book("zeus:0", who=BOB)


def test_an_extension_is_held_to_the_limits_too(lab: Lab) -> None:
    counter = Counter(lab, max_duration_s=3 * 3600)
    booking_id = counter.book("atlas:0")["bookings"][0]["id"]
    assert refusal(lambda: counter.do(do="change", id=booking_id, length="4h")).startswith("it would last 4 h")


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
    assert counter.do(do="undo")["said"].startswith("taken back what alice did at 2029-11-12 10:30 (change): atlas:3")
    assert counter.content()["atlas"]["3"] == {"name": "alice", "date": "2029-12-01", "team": 7}
    counter.do(do="undo")
    assert list(counter.content()["atlas"]) == ["2", "3"]
    assert refusal(lambda: counter.do(do="undo")) == "there is nothing that alice changed and that could be taken back"
    assert counter.do(ADMIN, do="undo")
    assert list(counter.content()["atlas"]) == ["3"]


def test_undo_takes_ids_of_any_type(counter: Counter) -> None:
    counter.path.write_text('{"atlas": {"3": {"name": "alice", "date": "2029-12-01", "id": []}}}')
    counter.book("atlas:0")
    log = counter.path.with_name("bookings.log")
    line = json.loads(log.read_text().splitlines()[0])
    odd_line = {**line, "change": "odd", "what": "undo", "undoes": [], "before": [], "after": []}
    log.write_text(f"{json.dumps(line)}\n{json.dumps(odd_line)}\n")
    assert counter.do(do="undo")["said"].startswith("taken back what alice did")


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
    assert refusal(lambda: counter.do(do="undo")) == (
        "the booking of atlas:0 has been changed since, and is not taken back"
    )


# A broken file


def test_a_broken_file_is_never_overwritten_and_the_line_is_named(counter: Counter) -> None:
    counter.book("atlas:0")
    good = counter.path.read_bytes()
    counter.path.write_text('{\n  "atlas": [\n')
    why = refusal(lambda: counter.book("atlas:2"), BookingsUnreadableError)
    assert "line 3, column 1: " in why
    assert "comments.last-good.json beside it could be read last" in why
    assert counter.path.read_text() == '{\n  "atlas": [\n'
    assert (counter.lab.data / "comments.last-good.json").read_bytes() == good


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


def test_a_booking_beyond_the_maximum_is_refused(counter: Counter) -> None:
    many = [{"name": "o", "from": "2029-01-01", "date": "2029-10-30", "comment": str(n)} for n in range(5000)]
    counter.path.write_text(json.dumps({"zeus": {"0": many}}))
    why = "comments.json is full: more than 5000 bookings are not counted"
    assert refusal(lambda: counter.book("zeus:1")) == why
    assert refusal(lambda: counter.book("atlas:0")) == why


def test_a_file_that_would_be_too_large_is_refused(counter: Counter) -> None:
    large = {"name": "o", "date": "2029-12-01", "note": "y" * (3 * 1024 * 1024)}
    counter.path.write_text(json.dumps({"zeus": {"0": large}}))
    assert refusal(lambda: counter.book("atlas:0")).startswith("comments.json is full: it may have 3145728 bytes")
    (booking,) = booking_service.list_service_bookings(counter.service.begin_read(BookingUser("o")))["bookings"]
    assert counter.do(BookingUser("o"), do="release", id=booking["id"])  # which makes it no larger


def test_an_undo_is_done_once_and_is_the_one_that_was_shown(counter: Counter) -> None:
    counter.book("atlas:0", since="tomorrow 9:00")
    counter.do(do="release", gpus=["atlas:0"])
    shown = counter.do(do="undo", check=True)["undoes"]
    assert counter.do(do="undo", undoes=shown)["undoes"] == shown
    assert refusal(lambda: counter.do(do="undo", undoes=shown)) == "alice has changed something since: look again"
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
    assert "is gone again" in counter.do(do="undo")["said"]


def test_an_undo_does_not_change_the_past(counter: Counter) -> None:
    counter.book("atlas:0", length="1h")
    counter.after(hours=5)
    assert "and the past stays as it was" in refusal(lambda: counter.do(do="undo"))


def test_an_undo_is_held_to_the_limits_too(lab: Lab) -> None:
    counter = Counter(lab, max_gpus=2)
    counter.book("atlas:0,2", since="tomorrow 9:00")
    counter.do(do="release", gpus=["atlas:0,2"])
    counter.book("zeus:0", who=BOB, name="alice", since="tomorrow 9:00")
    assert "of one person at the same time" in refusal(lambda: counter.do(do="undo"))


def test_what_repeats_is_compared_as_far_as_the_other_goes(counter: Counter) -> None:
    counter.book("atlas:0", who=BOB, since="2031-12-02 9:00", length="3h")
    weekly: dict[str, Any] = {"length": "3h", "rrule": "FREQ=WEEKLY;BYDAY=TU"}
    assert "2 Dec 2031" in refusal(lambda: counter.book("atlas:0", since="2029-11-13 9:00", **weekly))
    counter.book("atlas:2", who=BOB, since="2031-12-02 9:00", **weekly)
    assert "2 Dec 2031" in refusal(lambda: counter.book("atlas:2", length="800d"))


@pytest.mark.parametrize(
    ("limits", "booking_options", "why"),
    [
        ({"max_ahead_s": 14 * 86400}, {"length": "3h", "rrule": "FREQ=DAILY"}, "bookings are made 14 d ahead"),
        (
            {"max_duration_s": 86400},
            {"length": "24h", "rrule": "FREQ=DAILY"},
            "it would begin again before it has ended",
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
    assert "4 GPUs of one person" in refusal(lambda: counter.book("atlas:1,3", **series))


def test_another_name_does_not_help_past_a_limit(lab: Lab) -> None:
    counter = Counter(lab, max_gpus=1)
    counter.book("atlas:0")
    assert "2 GPUs of one person" in refusal(lambda: counter.book("atlas:2", name="nobody"))


def test_a_beginning_is_not_moved_into_the_past(counter: Counter) -> None:
    booking_id = counter.book("atlas:0", since="2029-11-20 9:00")["bookings"][0]["id"]
    assert "which is in the past" in refusal(lambda: counter.do(do="change", id=booking_id, since="2029-11-01 9:00"))


def test_a_series_that_is_over_stays_as_it_was(counter: Counter) -> None:
    booking_id = counter.book("atlas:0", since="tomorrow 9:00", length="3h", rrule="FREQ=DAILY;COUNT=3")["bookings"][0][
        "id"
    ]
    counter.after(days=30)
    assert "ended 15 Nov 12:00, and the past stays" in refusal(lambda: counter.do(do="release", id=booking_id))
    assert refusal(lambda: counter.do(do="release", gpus=["atlas:0"])) == "you have not booked atlas:0"


def test_a_range_that_counts_backwards_is_refused(counter: Counter) -> None:
    assert refusal(lambda: counter.book("atlas:3-1"), UnclearRequestError) == "3-1 counts backwards: write 1-3"


def test_index_and_uuid_of_a_gpu_are_one(counter: Counter) -> None:
    assert counter.book("atlas:0,GPU-0")["bookings"][0]["gpus"] == ["0"]
    assert counter.do(do="release", gpus=["atlas:GPU-0", "atlas:0"])


def test_what_repeats_on_other_days_begins_on_the_first_of_these(counter: Counter) -> None:
    done = counter.book("atlas:0", since="11:00", rrule="FREQ=WEEKLY;BYDAY=TU")
    assert done["said"] == "atlas:0 for alice every Tue 11:00 to 13:00, first Tue 13 Nov 11:00"
    never: dict[str, Any] = {"since": "11:00", "rrule": "FREQ=WEEKLY;UNTIL=20200101"}
    assert (
        refusal(lambda: counter.book("atlas:2", **never), UnclearRequestError)
        == "it would not happen once within a year"
    )


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
    assert "nobody but an admin" in refusal(
        lambda: counter.do(do="change", id=booking_id, name="bob"), BookingForbiddenError
    )


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
