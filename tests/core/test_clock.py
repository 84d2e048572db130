"""How long decisions made at a moment stay valid."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from dateutil import tz
from hypothesis import given
from hypothesis import strategies as st

from site_builder.board.card import build_card, render_card
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.model import (
    Booking,
    DiscoveredHost,
    Gpu,
    GpuProcessRow,
    HostSnapshot,
    HostStatus,
    IdleTimes,
    ParsedFile,
    PrivacySettings,
    StateLimits,
)
from site_builder.fleet import booking_use
from tests.support.generated_fleet import EVERY, FILES, NOW, PARIS, decide, gpu, head, now, person, process
from tests.support.hypothesis_profiles import examples

HOUR, DAY = 3600, 86400


def after(days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> float:
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()


def test_decision_without_a_deadline_never_expires() -> None:
    assert now().valid_until == math.inf


def test_passed_moment_sets_no_expiry() -> None:
    moment = now()
    assert moment.has_passed(NOW)
    assert moment.valid_until == math.inf


def test_decision_expires_at_the_first_moment_not_passed() -> None:
    moment = now()
    assert not any(moment.has_passed(NOW + seconds) for seconds in (300, 20, 5000))
    assert moment.valid_until == NOW + 20


def test_copy_has_its_own_expiry() -> None:
    moment = now()
    moment.has_passed(NOW + 20)
    copy = moment.copy_with_own_expiry()
    copy.has_passed(NOW + 300)
    assert (moment.valid_until, copy.valid_until) == (NOW + 20, NOW + 300)


@pytest.mark.parametrize(
    ("day", "zone", "hours"),
    [
        (datetime(2026, 11, 16, 0, 0), PARIS, 24),
        (datetime(2026, 10, 25, 0, 0), PARIS, 25),
        (datetime(2026, 3, 29, 0, 0), PARIS, 23),
        (datetime(2026, 3, 29, 0, 0), tz.gettz("Europe/Paris"), 23),
        (datetime(2026, 9, 5, 0, 0), ZoneInfo("America/Santiago"), 24),  # 6 September begins at one o'clock there
    ],
)
def test_next_midnight_follows_clock_changes(day: datetime, zone: tzinfo, hours: float) -> None:
    epoch = day.replace(tzinfo=zone).timestamp()
    assert Now(epoch, zone).next_midnight == epoch + hours * HOUR


# What was said holds until it is said to: the cards are kept on this alone

ZONES = [
    timezone.utc,
    PARIS,
    ZoneInfo("America/New_York"),
    ZoneInfo("America/Santiago"),  # the clocks change at midnight
    ZoneInfo("Australia/Lord_Howe"),  # by half an hour
    ZoneInfo("Asia/Kathmandu"),
]
MIDNIGHTS = [datetime(2026, 3, 29), datetime(2026, 9, 6), datetime(2026, 10, 25), datetime(2026, 12, 31)]
EPOCHS = st.one_of(
    st.floats(NOW - 400 * DAY, NOW + 400 * DAY),
    st.builds(lambda day, after: day.timestamp() + after, st.sampled_from(MIDNIGHTS), st.floats(-2 * DAY, 2 * DAY)),
)
# a share of the time for which it holds; the last moment of it is the one that tells most
SHARES = st.one_of(st.floats(0, 1, exclude_max=True), st.just(1.0))


def later(moment: Now, share: float) -> Now:
    """A moment at which all that was decided still holds."""
    until = min(moment.valid_until, moment.epoch + 100 * DAY)
    assert until > moment.epoch
    epoch = moment.epoch + (until - moment.epoch) * share
    # a datetime has no more than microseconds
    return Now(max(moment.epoch, min(epoch, until - 1e-5)), moment.zone)


@given(EPOCHS, st.floats(0.001, 400 * DAY), SHARES)
def test_time_left_stays_the_same_until_its_expiry(epoch: float, seconds: float, share: float) -> None:
    moment = Now(epoch, PARIS)
    text = formatting.format_time_left(epoch + seconds, moment)
    assert formatting.format_time_left(epoch + seconds, later(moment, share)) == text


@given(EPOCHS, st.floats(0.001, 400 * DAY))
def test_time_left_expires_within_its_unit(epoch: float, seconds: float) -> None:
    moment = Now(epoch, PARIS)
    formatting.format_time_left(epoch + seconds, moment)
    assert moment.valid_until <= epoch + HOUR


@given(EPOCHS, st.floats(-20 * DAY, 400 * DAY), st.sampled_from(ZONES), SHARES)
def test_moment_is_formatted_the_same_until_its_expiry(
    epoch: float, seconds: float, zone: tzinfo, share: float
) -> None:
    moment = Now(epoch, zone)
    then = datetime.fromtimestamp(epoch + seconds, timezone.utc)
    text = formatting.format_moment(then, moment)
    assert formatting.format_moment(then, later(moment, share)) == text


AGES = st.one_of(st.sampled_from([0.0, 5.0, 59.9, 60.0, 89.9, 599.9, 600.0]), st.floats(0, 120), st.floats(0, 3 * DAY))
FRESH = st.floats(0, 59)
GPUS = st.builds(
    gpu,
    st.integers(0, 2),
    st.sampled_from([None, 4, 1023, 1024, 7000]),
    st.sampled_from([None, 0, 4.9, 5, 90]),
    lost=st.sampled_from([None, None, None, "GPU is lost"]),
)
RULES = st.sampled_from(
    [
        None,
        None,
        "FREQ=DAILY",
        "FREQ=DAILY;INTERVAL=3",
        "FREQ=WEEKLY",
        "FREQ=WEEKLY;BYDAY=MO,WE,FR",
        "FREQ=DAILY;COUNT=40",
        "FREQ=MONTHLY",
        "FREQ=DAILY;BYDAY=MO,TU,TH",
        "FREQ=DAILY;BYHOUR=2,9,14",
    ]
)


@st.composite
def bookings(draw: st.DrawFn, epoch: float) -> Booking:
    zone = draw(st.sampled_from(ZONES))
    rule = draw(RULES)
    begins = draw(st.floats(-60 * DAY, 20 * DAY) if rule else st.floats(-4 * DAY, 4 * DAY))
    since = datetime.fromtimestamp(epoch + begins, zone)
    until = since + timedelta(seconds=draw(st.one_of(st.floats(60, DAY), st.floats(60, 10 * DAY))))
    return Booking(
        "atlas",
        draw(st.sampled_from(["0", "1", "*", "gpu-0", "99"])),
        draw(st.sampled_from(["alice", "bob", "a guest", ""])),
        until,
        since if rule or draw(st.booleans()) else None,
        rrule=rule,
    )


@st.composite
def promises(draw: st.DrawFn) -> tuple[Now, list[Booking]]:
    """A moment, and bookings around it."""
    epoch = draw(EPOCHS)
    return Now(epoch, draw(st.sampled_from(ZONES))), draw(st.lists(bookings(epoch), min_size=1, max_size=2))


@examples(200)
@given(promises(), SHARES)
def test_booking_status_stays_the_same_until_its_expiry(what: tuple[Now, list[Booking]], share: float) -> None:
    moment, booking_list = what
    first = booking_use.build_fleet_booking_statuses(booking_list, PrivacySettings(), moment)
    assert booking_use.build_fleet_booking_statuses(booking_list, PrivacySettings(), later(moment, share)) == first


@st.composite
def host_datas(draw: st.DrawFn, epoch: float) -> HostSnapshot:
    ages = FRESH if draw(st.booleans()) else AGES
    taken = {file: epoch - draw(ages) for file in FILES}
    gpus: list[Gpu] = draw(st.lists(GPUS, max_size=3, unique_by=lambda gpu_row: gpu_row.index))
    processes: list[GpuProcessRow] = [process(42, "GPU-0"), process(43, "GPU-1")][: draw(st.integers(0, 2))]
    parsed_gpus: ParsedFile[Gpu] = ParsedFile(tuple(gpus), head("gpus", draw(st.sampled_from([0, 0, 15]))))
    is_there = draw(st.booleans())
    return HostSnapshot(
        "atlas",
        parsed_gpus if gpus or is_there else None,
        ParsedFile(tuple(processes), head("processes")) if draw(st.integers(0, 5)) else None,
        ParsedFile((person(42, "alice"), person(43, draw(st.sampled_from(["bob", None, "1000"])))), head("ps")),
        None,
        taken["host.txt"],
        taken,
        {**EVERY, "gpus.csv": draw(st.sampled_from([20, 20, 300, 999_999]))},
        draw(st.sampled_from([0.0, 61.0, -4000.0])),
        is_legacy=draw(st.integers(0, 9)) == 0,
    )


@st.composite
def moments(draw: st.DrawFn) -> tuple[Now, HostSnapshot, list[Booking], IdleTimes]:
    """A moment, and all that a host is judged by at it."""
    epoch = draw(EPOCHS)
    idle = {key: epoch - draw(st.floats(0, 3 * HOUR)) for key in ("GPU-0", "GPU-1")}
    data = draw(host_datas(epoch))
    looked = data.taken_at["gpus.csv"] - draw(st.sampled_from([0, 20, 700]))
    booking_list = draw(st.lists(bookings(epoch), max_size=4))
    return Now(epoch, draw(st.sampled_from(ZONES))), data, booking_list, IdleTimes(looked, idle)


def both(
    what: tuple[Now, HostSnapshot, list[Booking], IdleTimes], share: float, limits: StateLimits, shown: PrivacySettings
) -> tuple[tuple[HostStatus, str], tuple[HostStatus, str]]:
    """What is decided and written at a moment, and at a later one at which that still holds."""
    moment, data, booking_list, idle = what

    def at(when: Now) -> tuple[HostStatus, str]:
        discovered = DiscoveredHost("atlas", consul_status="critical")
        board = decide(data, booking_list, idle=idle, known=discovered, limits=limits, shown=shown, at=when)
        return board, render_card(build_card(board, when))

    first = at(moment)
    return first, at(later(moment, share))


@examples(200)
@given(
    moments(),
    SHARES,
    st.sampled_from([StateLimits(), StateLimits(soon=7200, held_after=60)]),
    st.sampled_from([True, False]),
)
def test_host_status_and_card_stay_the_same_until_their_expiry(
    what: tuple[Now, HostSnapshot, list[Booking], IdleTimes], share: float, limits: StateLimits, users: bool
) -> None:
    first, again = both(what, share, limits, PrivacySettings(users=users))
    assert again[0] == first[0]
    assert again[1] == first[1]
