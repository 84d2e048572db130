"""The booking of a run at a real desk, by a clock of its own: as long as it is wanted, beside one's own and others'."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from site_builder.bookings import service as booking_service
from site_builder.bookings.backends import BookingBackend
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import BookingUser
from site_builder.client.run_reservation import ReservedGpu, RunReservation
from site_builder.config.settings import Settings
from site_builder.core.model import BookingPolicy
from tests.support.board_fixture import Lab, gpu

BERLIN = ZoneInfo("Europe/Berlin")
TEN = datetime(2027, 3, 3, 10, tzinfo=BERLIN)  # a Wednesday
ZERO, ONE = ReservedGpu(0, "GPU-0"), ReservedGpu(1, "GPU-1")


class Place:
    """A desk of a folder, at which alice stands, and a clock that the test sets."""

    def __init__(self, folder: Path, **rules: Any) -> None:  # noqa: ANN401
        self.lab = Lab(folder)
        self.lab.host("vm", gpu(0) + gpu(1))
        self.now = TEN
        self.asked: list[str] = []
        self.settings: Settings = self.lab.settings(zone=BERLIN, booking_policy=BookingPolicy(**rules))
        self.service = BookingService(self.settings, self.clock)

    def clock(self) -> float:
        return self.now.timestamp()

    def send(self, request: Mapping[str, Any], who: str = "alice") -> dict[str, Any]:
        self.asked.append(request["do"])
        return booking_service.handle_service_request(self.service, request, BookingUser(who))

    def list_bookings(self) -> dict[str, Any]:
        return booking_service.list_service_bookings(self.service.begin_read(BookingUser("alice")))

    def keeper(self, length: float, *cards: ReservedGpu) -> RunReservation:
        return RunReservation(cast("BookingBackend", self), "vm", cards or (ZERO,), length, "gpuboard run")

    def book(self, name: str, gpus: str, since: str, until: str, **extra_fields: str) -> None:
        self.send(
            {"do": "book", "gpus": [f"vm:{gpus}"], "from": since, "until": until, "name": name, **extra_fields}, name
        )
        self.asked.clear()

    def after(self, minutes: float) -> datetime:
        """The moment so many minutes after ten o'clock, as it is from now on."""
        self.now = (TEN.astimezone(timezone.utc) + timedelta(minutes=minutes)).astimezone(BERLIN)
        return self.now.astimezone(timezone.utc)

    def spans(self, card: ReservedGpu = ZERO) -> list[tuple[str, str]]:
        """What the runs have booked of a GPU, as local times of the day, in the order of time."""
        run_bookings = [
            booking
            for booking in self.list_bookings()["bookings"]
            if booking["id"].startswith("run-") and str(card.number) in booking["gpus"]
        ]
        return sorted((booking["from"][11:16], booking["date"][11:16]) for booking in run_bookings)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_reservation_begins_now_and_is_extended_at_half_time(place: Place) -> None:
    keeper = place.keeper(3600, ZERO, ONE)
    keeper.begin(place.after(0))
    assert (place.spans(), place.spans(ONE)) == ([("10:00", "11:00")], [("10:00", "11:00")])
    keeper.extend_if_needed(place.after(15))
    assert place.asked == ["book"]
    keeper.extend_if_needed(place.after(31))
    assert (place.spans(), place.spans(ONE), place.asked) == (
        [("10:00", "11:31")],
        [("10:00", "11:31")],
        ["book", "change"],
    )
    keeper.release()
    assert place.spans() == []
    assert keeper.own_bookings == {}


@pytest.mark.parametrize("seconds", [20, 61, 90, 120, 180, 300, 3600, 86400])
@pytest.mark.parametrize("begins", [0, 10, 40, 59])
def test_there_is_never_a_gap(place: Place, seconds: int, begins: int) -> None:
    keeper = place.keeper(seconds)
    at = begins / 60
    keeper.begin(place.after(at))
    for _ in range(12):
        at += seconds / 4 / 60
        moment = place.after(at)
        (booking,) = place.list_bookings()["bookings"]
        assert booking["phase"] == "now"
        keeper.extend_if_needed(moment)
    assert len(place.list_bookings()["bookings"]) == 1


def test_a_gpu_that_others_booked_is_not_reserved(place: Place) -> None:
    place.book("bob", "1", "2027-03-03 10:30", "2027-03-03 12:00")
    assert (place.keeper(3600, ZERO, ONE).begin(place.after(0)), place.asked) == ([ONE], [])
    assert place.keeper(1200, ZERO, ONE).begin(place.after(0)) == []
    assert place.spans(ONE) == [("10:00", "10:20")]


def test_a_reservation_ends_before_other_bookings_and_continues_once_they_are_gone(place: Place) -> None:
    keeper = place.keeper(3600, ZERO, ONE)
    keeper.begin(place.after(0))
    place.book("bob", "0", "2027-03-03 11:20", "2027-03-03 12:00")
    next_booking_start = keeper.extend_if_needed(place.after(40))
    assert next_booking_start
    assert next_booking_start.astimezone(BERLIN).hour == 11
    assert (place.spans()[-1][1], place.spans(ONE)[-1][1]) == ("11:20", "11:40")
    (bobs,) = (booking["id"] for booking in place.list_bookings()["bookings"] if booking["name"] == "bob")
    place.send({"do": "release", "id": bobs, "host": "vm"}, "bob")
    assert keeper.extend_if_needed(place.after(70)) is None
    assert place.spans()[-1][1] == place.spans(ONE)[-1][1] == "12:10"


def test_ones_own_booking_is_left_as_it_is_and_ours_fills_what_is_missing(place: Place) -> None:
    place.book("alice", "0", "2027-03-03 10:20", "2027-03-03 10:50")
    keeper = place.keeper(3600, ZERO, ONE)
    keeper.begin(place.after(0))
    assert (place.spans(), place.spans(ONE)) == ([("10:00", "10:20")], [("10:00", "11:00")])
    keeper.extend_if_needed(place.after(25))
    assert place.spans() == [("10:50", "11:25")]
    keeper.release()
    assert [booking["name"] for booking in place.list_bookings()["bookings"]] == ["alice"]


def test_ones_own_booking_of_one_gpu_does_not_end_that_of_the_other(place: Place) -> None:
    place.book("alice", "0", "2027-03-03 11:10", "2027-03-03 13:00")
    keeper = place.keeper(3600, ZERO, ONE)
    keeper.begin(place.after(0))
    for minutes in (31, 62, 93):
        keeper.extend_if_needed(place.after(minutes))
    assert place.spans(ONE)[-1][1] == "12:33"
    assert place.list_bookings()["bookings"][0]["phase"] == "now"


@pytest.mark.parametrize("gpus", ["*", "0", "GPU-0"])
def test_ones_own_booking_counts_by_whatever_name_it_has(place: Place, gpus: str) -> None:
    place.lab.book({"vm": {gpus: {"name": "alice", "date": "2027-03-03 12:00"}}})
    place.keeper(3600).begin(place.after(0))
    assert place.asked == []


def test_ones_own_booking_that_repeats_counts_at_its_times(place: Place) -> None:
    place.book("alice", "0", "2027-03-03 10:30", "2027-03-03 11:00", rrule="FREQ=DAILY")
    keeper = place.keeper(3600)
    keeper.begin(place.after(0))
    assert place.spans() == [("10:00", "10:30")]
    keeper.extend_if_needed(place.after(40))
    assert place.spans() == [("11:00", "11:40")]


def test_what_i_booked_for_others_is_theirs(place: Place) -> None:
    place.lab.book({"vm": {"0": {"name": "bob", "by": "alice", "date": "2027-03-03 12:00", "id": "forbob"}}})
    assert place.keeper(3600).begin(place.after(0)) == [ZERO]


def test_what_another_run_of_mine_has_booked_is_not_for_this_one(place: Place) -> None:
    place.keeper(3600).begin(place.after(0))
    assert place.keeper(3600).begin(place.after(1)) == [ZERO]


def test_the_lab_may_forbid_it_and_what_was_not_made_is_released_all_the_same(tmp_path: Path) -> None:
    place = Place(tmp_path, max_duration_s=3600)
    keeper = place.keeper(7200)
    with pytest.raises(BookingRefusedError, match="a booking may last 1 h at most"):
        keeper.begin(place.after(0.5))
    keeper.release()
    assert keeper.own_bookings == {}
    place.keeper(3600).begin(place.after(0.5))
    assert place.spans() == [("10:00", "11:00")]


@pytest.mark.parametrize(
    ("begins", "until"),
    [
        (datetime(2027, 3, 28, 1, 50, tzinfo=BERLIN), datetime(2027, 3, 28, 4, 20, tzinfo=BERLIN)),
        (datetime(2027, 10, 31, 2, 30, tzinfo=BERLIN, fold=0), datetime(2027, 10, 31, 3, 0, tzinfo=BERLIN)),
    ],
    ids=["spring", "autumn"],
)
def test_an_hour_and_a_half_is_that_long_also_when_the_clocks_change(
    place: Place, begins: datetime, until: datetime
) -> None:
    place.now = begins
    place.keeper(5400).begin(begins.astimezone(timezone.utc))
    (booking_entry,) = json.loads((place.lab.data / "comments.json").read_text())["vm"].values()
    assert datetime.fromisoformat(booking_entry["date"]) == until


def test_an_answer_that_never_came_leaves_nothing_behind(place: Place) -> None:
    keeper = place.keeper(3600)
    original_send = place.send

    def deaf(request: Mapping[str, Any], who: str = "alice") -> dict[str, Any]:
        original_send(request, who)
        raise TimeoutError

    place.send = deaf  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        keeper.begin(place.after(0))
    place.send = original_send  # type: ignore[method-assign]
    assert place.spans() == [("10:00", "11:00")]
    keeper.release()
    assert place.spans() == []
