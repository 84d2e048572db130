"""Dates: whatever stands there is refused in one sentence, or can be used in every calculation."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from dateutil import tz
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from site_builder.bookings import calendar as booking_calendar
from site_builder.bookings import ics, policy
from site_builder.bookings import parser as booking_parser
from site_builder.bookings import service as booking_service
from site_builder.bookings.json_edit import JsonEntry
from site_builder.bookings.parser import booking_to_entry
from site_builder.bookings.request import UnclearRequestError
from site_builder.bookings.service import BookingService
from site_builder.bookings.times import has_booking_ended
from site_builder.bookings.transaction import BookingUser
from site_builder.client import loader
from site_builder.core.clock import Now
from site_builder.core.model import Booking, PrivacySettings
from site_builder.core.timeparse import dates, moments, recurrence
from site_builder.core.timeparse.moments import UnclearTimeError
from site_builder.core.timeparse.recurrence import end_recurrence_rule
from site_builder.fleet import booking_use
from site_builder.reports import collect
from site_builder.watches import store as watch_store
from tests.support.board_fixture import Lab
from tests.support.booking_fixtures import done, lab_of
from tests.support.command_line import run_gpuboard
from tests.support.hypothesis_profiles import examples
from tests.support.pace import within

ZONES: tuple[tzinfo, ...] = (
    timezone.utc,
    ZoneInfo("Europe/Paris"),
    ZoneInfo("Pacific/Kiritimati"),
    timezone(timedelta(hours=-12)),
    tz.gettz("America/New_York") or timezone.utc,
)
# Each stopped every build once.
FATAL = [
    {"date": "2026-12-24 18:00+24:00"},
    {"date": "2026-12-24 18:00 UTC-30"},
    {"from": "9999-12-31 20:00-14:00", "date": "9999-12-31 23:59-14:00", "rrule": "FREQ=DAILY"},
]
GOOD = {"name": "bob", "date": "2199-01-01"}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return lab_of(tmp_path)


# The commands, on entries that stopped them


@pytest.mark.parametrize("entry", FATAL)
def test_edit_refuses_a_date_that_cannot_be_used(lab: Lab, tmp_path: Path, entry: dict[str, str]) -> None:
    lab.book({"atlas": {"0": GOOD}})
    new = tmp_path / "new.json"
    new.write_text(json.dumps({"atlas": {"0": GOOD, "1": {"name": "eve", **entry}}}))
    completed = run_gpuboard(tmp_path, "edit", EDITOR=f"cp {new}", TMPDIR=str(tmp_path))
    assert (completed.returncode, json.loads((lab.data / "comments.json").read_text())) == (2, {"atlas": {"0": GOOD}})
    assert "atlas, GPU 1: the " in completed.stderr
    assert dates.BAD_OFFSET in completed.stderr or dates.OUT_OF_RANGE in completed.stderr


@pytest.mark.parametrize("entry", FATAL)
def test_unusable_date_costs_only_its_entry(lab: Lab, tmp_path: Path, entry: dict[str, str]) -> None:
    lab.book({"atlas": {"0": GOOD, "1": {"name": "eve", **entry}}})
    done(tmp_path, "build")
    (problem,) = [booking["what"] for booking in lab.status()["problems"]]
    assert "line 1, atlas, GPU 1: the " in problem
    assert [booking["name"] for booking in lab.host_status("atlas")["gpus"][0]["bookings"]] == ["bob"]
    assert lab.host_status("atlas")["gpus"][1]["bookings"] == []
    completed = done(tmp_path, "bookings", "--json")
    assert [booking["name"] for booking in json.loads(completed.stdout)] == ["bob"]
    assert "atlas, GPU 1: the " in completed.stderr


@pytest.mark.parametrize("option", ["--until", "--from"])
@pytest.mark.parametrize("text", ["2026-12-24 18:00+24:00", "2026-12-24 18:00 UTC-30", "9999-12-31 23:59-14:00"])
def test_book_refuses_an_unusable_date_in_one_sentence(lab: Lab, tmp_path: Path, option: str, text: str) -> None:
    length = ["--for", "1h"] if option == "--from" else []
    completed = run_gpuboard(tmp_path, "book", "atlas:0", option, text, *length, "--yes")
    assert (completed.returncode, completed.stderr.count("\n")) == (2, 1)
    assert "offset from UTC that no time zone has" in completed.stderr or dates.OUT_OF_RANGE in completed.stderr
    assert not (lab.data / "comments.json").exists()


def test_a_booking_that_would_end_after_the_last_year_is_refused(lab: Lab, tmp_path: Path) -> None:
    lab.book({})
    completed = run_gpuboard(tmp_path, "book", "atlas:0", "--from", "2200-12-31 20:00", "--for", "1d", "--yes")
    assert (completed.returncode, completed.stderr.count("\n")) == (2, 1)
    assert "is too far in the future" in completed.stderr


def test_a_series_whose_first_time_is_after_the_last_year_is_refused(lab: Lab) -> None:
    friday, later = "2200-12-26 09:00", "2200-12-26 10:00"
    request = {"do": "book", "gpus": ["atlas:0"], "from": friday, "until": later, "rrule": "FREQ=YEARLY;BYMONTHDAY=1"}
    with pytest.raises(UnclearRequestError, match="not occur within a year"):
        booking_service.handle_service_request(BookingService(lab.settings()), request, BookingUser("alice"))


@pytest.mark.parametrize("text", ["1969-W52", "2201-W01", "0001-W01", "9999-W52"])
def test_week_out_of_bounds_is_refused(text: str) -> None:
    assert collect.parse_report_week(text) is None


# Bounds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1970-01-01 00:00", ""),
        ("2200-12-31 23:59:59.999999", ""),
        ("1969-12-31 23:59", dates.OUT_OF_RANGE),
        ("2201-01-01", dates.OUT_OF_RANGE),
        ("2026-01-01 00:00+14:00", ""),
        ("2026-01-01 00:00-12:00", ""),
        ("2026-01-01 00:00+14:01", dates.BAD_OFFSET),
        ("2026-01-01 00:00-12:01", dates.BAD_OFFSET),
        ("2026-01-01 00:00+05:30:15", dates.BAD_OFFSET),
        ("2026-01-01 00:00+23:59", dates.BAD_OFFSET),
        # as people in the zone of the board read it
        ("1970-01-01 00:00+01:00", dates.OUT_OF_RANGE),
        ("2200-12-31 23:59-01:00", dates.OUT_OF_RANGE),
    ],
)
def test_years_and_offsets_have_bounds(text: str, why: str) -> None:
    assert dates.parse_date(text, timezone.utc)[1] == why


def test_written_dates_can_be_read_again() -> None:
    for zone in ZONES:
        now = Now(datetime(2026, 11, 18, tzinfo=timezone.utc).timestamp(), zone)
        last = recurrence.extend_recurrence_to_day_end(dates.parse_date("2200-12-31", zone)[0] or now.local, zone)
        rule = recurrence.parse_recurrence("daily", last, zone)
        assert recurrence.parse_recurrence_rule(rule, zone) == (rule, "")
        assert end_recurrence_rule(rule, now).startswith("FREQ=DAILY;UNTIL=2026")


# Anything

WORDS = """
        0001-01-01 1969-12-31 1970-01-01 2026-02-29 2026-11-18 2200-12-31 2201-01-01 9999-12-31 20261118 2026-W47-3
        24 Dec 2026 May 3/4/2027 31.12.2200 1/1/1970 T 00:00 18:00 23:59:59.999999 24:00 6pm 12am
        Z z UTC UTC-30 UTC+99 GMT+3 GMT-14 CET EST XYZ +24:00 -24:00 +14:00 -12:00 +23:59:59.999999 -99:99 +1 -0030
        AM PM am mon Fri now tomorrow next 2d 9999d 1e9 1E400 ١٢ 2026\N{EN DASH}12\N{EN DASH}24
"""
PIECES = st.one_of(
    st.sampled_from(WORDS.split()),
    st.from_regex(r"\A[+-]\d\d:?\d\d\Z"),
    st.from_regex(r"\A\d{1,4}[-/. ]\d{1,2}[-/. ]\d{1,4}\Z"),
)
TEXTS = st.one_of(st.text(max_size=120), st.lists(PIECES, max_size=4).flatmap(lambda words: st.sampled_from([
    " ".join(words), "".join(words)
])))  # fmt: skip
RULES = st.one_of(
    st.sampled_from(
        ["", "FREQ=DAILY", "FREQ=YEARLY;INTERVAL=999", "FREQ=DAILY;COUNT=99999", "FREQ=MONTHLY;BYDAY=-1FR"]
    ),
    st.builds(
        "FREQ={};INTERVAL={};UNTIL={}".format,
        st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]),
        st.integers(1, 999),
        st.sampled_from(
            ["00010101", "19700101T000000Z", "20270630", "22001231", "22010101T000000Z", "99991231T235959Z"]
        ),
    ),
    st.text(max_size=30),
)
NOWS = st.sampled_from(["2026-11-18T10:00", "1970-01-01T00:00", "2037-12-31T23:59", "2200-12-31T12:00"])


@given(TEXTS, st.sampled_from(ZONES), NOWS)
@example("2026-12-24 18:00+24:00", timezone.utc, "2026-11-18T10:00")
def test_any_text_is_a_date_or_refused(text: str, zone: tzinfo, at: str) -> None:
    parsed_moment, reason = dates.parse_date(text, zone)
    assert (parsed_moment is None) == bool(reason)
    if parsed_moment:
        assert 1970 <= parsed_moment.astimezone(zone).year <= 2200
    exact = dates.parse_date_with_offset(text)
    assert exact is None or exact.timestamp() is not None
    entry = {"id": "k7m2xp", "name": "alice", "when": "1 GPU free", "made": text, "until": text}
    assert (watch_store.parse_watch(entry)[0] is None) == (exact is None)
    loader.parse_fleet_booking({"date": text, "from": text}, str)
    dates.parse_day(text)
    now = datetime.fromisoformat(f"{at}+00:00").astimezone(zone)
    for end in (False, True):
        try:
            moment = moments.parse_moment(text, now, end=end)
        except UnclearTimeError:
            continue
        assert not dates.find_date_fault(moment, zone)
        assert moments.describe_moment_in_full(moment, now)


@pytest.mark.slow
@given(TEXTS, TEXTS, RULES, st.sampled_from(ZONES), NOWS)
@example("9999-12-31 20:00-14:00", "9999-12-31 23:59-14:00", "FREQ=DAILY", timezone.utc, "2026-11-18T10:00")
@example("1970-01-01", "1970-01-02", "FREQ=DAILY;COUNT=99999", ZONES[1], "2200-12-31T12:00")
@example("2200-12-30", "2200-12-31 23:00", "FREQ=DAILY", ZONES[2], "2200-12-31T12:00")
def test_accepted_dates_can_be_decided_and_shown(begins: str, ends: str, rule: str, zone: tzinfo, at: str) -> None:
    entry = JsonEntry("atlas", "0", {"name": "alice", "from": begins, "date": ends, "rrule": rule}, 0, 0)
    booking, _ = booking_parser.parse_booking(entry, zone)
    if booking is None:
        return
    now = Now(datetime.fromisoformat(f"{at}+00:00").timestamp(), zone)
    use(booking, now)


def use(booking: Booking, now: Now) -> None:
    """Everything that is worked out of a booking."""
    booking_use.build_fleet_booking_statuses([booking], PrivacySettings(), now)
    host = booking_calendar.CalendarHost("atlas", (booking,), ())
    booking_calendar.build_calendar([host], PrivacySettings(), now)
    (promise,) = booking_calendar.group_calendar_bookings(host, PrivacySettings())[1]
    booking_calendar.has_left_calendar(booking, now)
    ics.render_ics_feed("x", [ics.build_calendar_event(promise, "x@x", int(now.epoch), now.local)])
    assert booking_service.group_service_bookings([booking], now)[0]["date"]
    has_booking_ended(booking, now)
    booking_to_entry(booking, now)
    assert moments.describe_moment_in_full(booking.until, now.local)
    if booking.rrule and booking.since:
        assert recurrence.describe_recurrence(booking.rrule, booking.since, booking.until, now.zone)
    for neighbour in (booking, Booking("atlas", "0", "bob", now.local + timedelta(days=1), now.local)):
        try:
            policy.check_booking_conflicts(booking, [neighbour], policy.GpuKeyMap(()), now, names_shown=True)
        except policy.BookingRefusedError:
            continue


@pytest.mark.slow
@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXTS, TEXTS, RULES), min_size=30, max_size=60), st.sampled_from(ZONES))
def test_a_build_and_its_commands_take_any_dates(
    lab: Lab, date_texts: list[tuple[str, str, str]], zone: tzinfo
) -> None:
    entries = [{"name": "a", "from": begins, "date": ends, "rrule": rule} for begins, ends, rule in date_texts]
    lab.book({"atlas": {"0": entries, "*": [FATAL[0], GOOD]}})
    lab.build(zone=zone)
    assert "bob" in lab.page()
    listed = booking_service.list_service_bookings(
        BookingService(lab.settings(zone=zone)).begin_read(BookingUser("bob"))
    )
    assert "bob" in {booking["name"] for booking in listed["bookings"]}


@pytest.mark.slow
def test_repetitions_up_to_the_last_year_are_computed_quickly(lab: Lab) -> None:
    rule = "FREQ=DAILY;UNTIL=22001231"
    entries = [
        {"name": "a", "from": f"1970-01-02 {n // 60:02}:{n % 60:02}", "date": "1970-01-03", "rrule": rule}
        for n in range(300)
    ]
    lab.book({"atlas": {"0": entries}})
    with within(4):
        lab.build()
