"""Times as people write them: what is understood, and what is refused with a better text."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from dateutil import tz
from hypothesis import example, given
from hypothesis import strategies as st

from site_builder.core.timeparse import moments
from site_builder.core.timeparse.moments import (
    Duration,
    UnclearTimeError,
    describe_moment_in_full,
    parse_duration,
    parse_moment,
)
from tests.support.pace import within

PARIS: tzinfo = tz.gettz("Europe/Paris") or timezone.utc
# the two kinds of zones that a setting may lead to
BOTH = (PARIS, ZoneInfo("Europe/Paris"))
NOW = datetime(2026, 11, 18, 10, 0, tzinfo=PARIS)  # a Wednesday
LEAP = datetime(2026, 3, 28, 12, 0, tzinfo=PARIS)  # the day before the clocks go forward
BACK = datetime(2026, 10, 24, 12, 0, tzinfo=PARIS)  # the day before they go back


def read(text: str, now: datetime = NOW, start: datetime | None = None, end: bool = False) -> str:
    moment = parse_moment(text, now, start=start, end=end)
    assert moment.tzinfo is not None
    return moment.replace(tzinfo=None).isoformat(" ", "minutes")


def refused(text: str, now: datetime = NOW, start: datetime | None = None, end: bool = False) -> str:
    """What is said of it; and that each example in it would do."""
    with pytest.raises(UnclearTimeError) as error:
        parse_moment(text, now, start=start, end=end)
    assert 1 <= len(error.value.examples) <= 2
    for suggestion in error.value.examples:
        assert f'"{suggestion}"' in str(error.value)
        parse_moment(suggestion, now, start=start, end=end)
    return str(error.value)


def examples(text: str, now: datetime = NOW, start: datetime | None = None, end: bool = False) -> list[str]:
    """The moments that the refusal offers."""
    refused(text, now, start, end)
    with pytest.raises(UnclearTimeError) as error:
        parse_moment(text, now, start=start, end=end)
    return [read(suggestion, now, start, end) for suggestion in error.value.examples]


LENGTHS = {
    "90m": Duration(0, 5400),
    "2h": Duration(0, 7200),
    "2d3h": Duration(2, 10800),
    "1w": Duration(7, 0),
    "2 days": Duration(2, 0),
    "1 day 3 hours": Duration(1, 10800),
    "1 Day, 3 Hours and 5 mins": Duration(1, 11100),
    "1.5h": Duration(0, 5400),
    "1.5d": Duration(1, 43200),
    "0.5w": Duration(3, 43200),
    "1h30": Duration(0, 5400),
    "1h30m": Duration(0, 5400),
    "18h": Duration(0, 64800),
    "+2d": Duration(2, 0),
    "+ 2 d": Duration(2, 0),
    "in 2 hours": Duration(0, 7200),
    "2H": Duration(0, 7200),
    "2\u00a0h": Duration(0, 7200),
}


@pytest.mark.parametrize("text", LENGTHS)
def test_duration_is_parsed(text: str) -> None:
    assert parse_duration(text) == LENGTHS[text]
    assert parse_moment(text, NOW) == LENGTHS[text].add_to(NOW, PARIS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0h", "is zero"),
        ("0.001m", "is zero"),
        ("-2h", "in the past"),
        ("11000d", "more than ten years"),
        (f"{'9' * 90}h", "more than ten years"),
        ("1mo", "unit of varying length"),
        ("1 month", "unit of varying length"),
        ("2y", "unit of varying length"),
        ("1h 2h", "twice"),
        ("1m 1h30", "twice"),
        ("3", "has no unit"),
        ("18:00", "not a duration"),
        ("fri", "not a duration"),
        ("1,5h", "not a duration"),
        ("", "empty"),
        ("2h" * 51, "too long"),
        ("2\x00h", "control"),
        ("٢h", "characters"),
    ],
)
def test_invalid_duration_is_refused_with_an_example(text: str, why: str) -> None:
    with pytest.raises(UnclearTimeError, match=why) as error:
        parse_duration(text)
    assert error.value.examples
    assert all(parse_duration(example) for example in error.value.examples)


def test_duration_counts_from_the_start_only_for_an_end() -> None:
    start = datetime(2026, 11, 20, 9, 0, tzinfo=PARIS)
    assert read("2h", start=start, end=True) == "2026-11-20 11:00"
    assert read("2h", end=True) == "2026-11-18 12:00"
    assert read("2h", start=start) == "2026-11-18 12:00"


@pytest.mark.parametrize("zone", BOTH)
def test_days_keep_the_clock_time_and_hours_are_exact(zone: tzinfo) -> None:
    before = LEAP.replace(tzinfo=zone)
    assert read("1d", before) == "2026-03-29 12:00"
    assert read("24h", before) == "2026-03-29 13:00"
    assert read("1d24h", before) == "2026-03-30 12:00"
    assert read("24h", BACK.replace(tzinfo=zone)) == "2026-10-25 11:00"
    assert read("1w", BACK.replace(tzinfo=zone)) == "2026-10-31 12:00"


@pytest.mark.parametrize("zone", BOTH)
def test_day_that_would_end_in_a_skipped_hour_ends_at_the_jump(zone: tzinfo) -> None:
    assert read("1d", datetime(2026, 3, 28, 2, 30, tzinfo=zone)) == "2026-03-29 03:00"
    moment = parse_moment("1d", datetime(2026, 10, 24, 2, 30, tzinfo=zone))
    assert moment.utcoffset() == timedelta(hours=2)
    second = datetime(2026, 10, 25, 2, 10, tzinfo=zone, fold=1)
    assert parse_moment("20m", second).isoformat() == "2026-10-25T02:30:00+01:00"


CLEAR = {
    "now": "2026-11-18 10:00",
    "today 18:00": "2026-11-18 18:00",
    "today 9:00": "2026-11-18 09:00",
    "tonight 20:00": "2026-11-18 20:00",
    "tonight at 8pm": "2026-11-18 20:00",
    "tonight midnight": "2026-11-19 00:00",
    "tomorrow 9:00": "2026-11-19 09:00",
    "Tomorrow at noon": "2026-11-19 12:00",
    "noon tomorrow": "2026-11-19 12:00",
    "tomorrow": "2026-11-19 00:00",
    "tomorrow 24:00": "2026-11-20 00:00",
    "tomorrow 18.10": "2026-11-19 18:10",
    "fri 18:00": "2026-11-20 18:00",
    "Friday 6pm": "2026-11-20 18:00",
    "on friday at 18:00": "2026-11-20 18:00",
    "18:00 fri": "2026-11-20 18:00",
    "6 p.m. on Friday": "2026-11-20 18:00",
    "fri 18h": "2026-11-20 18:00",
    "fri 18h30": "2026-11-20 18:30",
    "fri 18.30": "2026-11-20 18:30",
    "FRI, 18:00": "2026-11-20 18:00",
    "this fri 18:00": "2026-11-20 18:00",
    "fri noon": "2026-11-20 12:00",
    "fri 24:00": "2026-11-21 00:00",
    "fri": "2026-11-20 00:00",
    "sun 18:00": "2026-11-22 18:00",
    "mon 0:00": "2026-11-23 00:00",
    "tues 9:00": "2026-11-24 09:00",
    "thur 9:00": "2026-11-19 09:00",
    "thurs 9:00": "2026-11-19 09:00",
    "wed 18:00": "2026-11-18 18:00",
    "wed 9:00": "2026-11-25 09:00",
    "wed 10:00": "2026-11-25 10:00",
    "next wed 9:00": "2026-11-25 09:00",
    "18:00": "2026-11-18 18:00",
    "9:00": "2026-11-19 09:00",
    "6pm": "2026-11-18 18:00",
    "9 am": "2026-11-19 09:00",
    "12am": "2026-11-19 00:00",
    "12pm": "2026-11-18 12:00",
    "12:30 am": "2026-11-19 00:30",
    "at 18h": "2026-11-18 18:00",
    "18.30": "2026-11-18 18:30",
    "18h": "2026-11-19 04:00",
    "24:00": "2026-11-19 00:00",
    "noon": "2026-11-18 12:00",
    "midnight": "2026-11-19 00:00",
    "20 Nov 18:00": "2026-11-20 18:00",
    "Nov 20 18:00": "2026-11-20 18:00",
    "nov. 20th, 6pm": "2026-11-20 18:00",
    "the 20th of November at noon": "2026-11-20 12:00",
    "Fri 20 Nov 18:00": "2026-11-20 18:00",
    "18 Nov 18:00": "2026-11-18 18:00",
    "17 Nov 18:00": "2027-11-17 18:00",
    "1 Jan 0:00": "2027-01-01 00:00",
    "31 Dec 24:00": "2027-01-01 00:00",
    "29 Feb 12:00": "2028-02-29 12:00",
    "20 Nov": "2026-11-20 00:00",
    "2026-12-01": "2026-12-01 00:00",
    "2026-12-01 18:00": "2026-12-01 18:00",
    "2026-12-01T18:00": "2026-12-01 18:00",
    "2026-12-01 24:00": "2026-12-02 00:00",
    "2026-12-01T18:00Z": "2026-12-01 19:00",
    "2026-12-01T18:00:00-05:00": "2026-12-02 00:00",
    "2026-12-01T18:00 CET": "2026-12-01 18:00",
    "18:00 UTC 1 Dec 2026": "2026-12-01 19:00",
    "1 Dec 2026 6pm": "2026-12-01 18:00",
    "Tue 1 Dec 2026 18h30": "2026-12-01 18:30",
    "Thurs 3 Dec 2026 18:00": "2026-12-03 18:00",
    "13/12/2026 18:00": "2026-12-13 18:00",
    "2028-02-29 12:00": "2028-02-29 12:00",
}


@pytest.mark.parametrize("text", CLEAR)
def test_clear_time_is_parsed(text: str) -> None:
    assert read(text) == CLEAR[text]


@pytest.mark.parametrize("text", [text for text in CLEAR if text not in {"tomorrow", "fri", "20 Nov", "2026-12-01"}])
def test_clear_time_is_the_same_for_an_end(text: str) -> None:
    assert read(text, end=True) == CLEAR[text]


TWO_THINGS = {
    "tomorrow": ["2026-11-19 00:00", "2026-11-20 00:00"],
    "tomorrow midnight": ["2026-11-19 00:00", "2026-11-20 00:00"],
    "fri": ["2026-11-20 00:00", "2026-11-21 00:00"],
    "fri midnight": ["2026-11-20 00:00", "2026-11-21 00:00"],
    "wed": ["2026-11-19 00:00", "2026-11-26 00:00"],
    "2026-12-01": ["2026-12-01 00:00", "2026-12-02 00:00"],
    "1 Dec 2026": ["2026-12-01 00:00", "2026-12-02 00:00"],
    "1 Dec": ["2026-12-01 00:00", "2026-12-02 00:00"],
    "next fri 18:00": ["2026-11-20 18:00", "2026-11-27 18:00"],
    "next fri": ["2026-11-21 00:00", "2026-11-28 00:00"],
    "3/4 18:00": ["2027-04-03 18:00", "2027-03-04 18:00"],
    "3/4": ["2027-04-04 00:00", "2027-03-05 00:00"],
    "3/4/2027 18:00": ["2027-03-04 18:00", "2027-04-03 18:00"],
    "3/4/2027": ["2027-03-05 00:00", "2027-04-04 00:00"],
    "20/11 18:00": ["2026-11-20 18:00"],
    "3.12": ["2026-11-19 03:12", "2026-12-03 18:00"],
    "fri 3.12": ["2026-11-19 03:12", "2026-12-03 18:00"],
    "9": ["2026-11-19 09:00", "2026-11-18 19:00"],
    "tonight": ["2026-11-18 20:00", "2026-11-19 00:00"],
    "tonight 2:00": ["2026-11-18 02:00", "2026-11-19 02:00"],
    "18 Nov 9:00": ["2026-11-18 09:00", "2027-11-18 09:00"],
    "Mon 20 Nov 18:00": ["2026-11-20 18:00", "2026-11-23 18:00"],
    "Mon 1 Dec 2026 18:00": ["2026-12-01 18:00", "2026-11-23 18:00"],
}


@pytest.mark.parametrize("text", TWO_THINGS)
def test_ambiguous_end_is_refused_with_both_moments(text: str) -> None:
    assert examples(text, end=True) == TWO_THINGS[text]


def test_start_today_is_ambiguous() -> None:
    assert examples("today") == ["2026-11-18 10:00", "2026-11-18 00:00"]
    assert examples("wed") == ["2026-11-18 10:00", "2026-11-25 00:00"]
    assert examples("18 Nov") == ["2026-11-18 10:00", "2027-11-18 00:00"]


@pytest.mark.parametrize("text", ["today", "today midnight", "18 Nov", "2026-11-18"])
def test_end_today_is_the_end_of_the_day(text: str) -> None:
    assert read(text, end=True) == "2026-11-19 00:00"


def test_end_comes_after_its_start() -> None:
    start = datetime(2026, 11, 23, 9, 0, tzinfo=PARIS)
    assert read("18:00", start=start, end=True) == "2026-11-23 18:00"
    assert read("fri 18:00", start=start, end=True) == "2026-11-27 18:00"
    assert read("22 Nov 18:00", start=start, end=True) == "2027-11-22 18:00"
    assert read("tomorrow 18:00", start=start, end=True) == "2026-11-19 18:00"
    assert examples("mon", start=start, end=True) == ["2026-11-24 00:00", "2026-12-01 00:00"]
    assert read("18:00", start=NOW - timedelta(days=9), end=True) == "2026-11-18 18:00"


def test_weekdays_and_dates_roll_over_to_the_next_week_and_year() -> None:
    sunday = datetime(2026, 12, 27, 23, 59, tzinfo=PARIS)
    assert read("mon 0:00", sunday) == "2026-12-28 00:00"
    assert read("sun 23:58", sunday) == "2027-01-03 23:58"
    assert read("next sun 9:00", sunday) == "2027-01-03 09:00"
    last = datetime(2026, 12, 31, 23, 0, tzinfo=PARIS)
    assert read("2h", last) == "2027-01-01 01:00"
    assert read("tomorrow 9:00", last) == "2027-01-01 09:00"
    assert read("24:00", last) == "2027-01-01 00:00"
    assert read("1 Jan 9:00", last) == "2027-01-01 09:00"
    assert read("1d", datetime(2028, 2, 28, 9, 0, tzinfo=PARIS)) == "2028-02-29 09:00"
    assert read("29 Feb 9:00", datetime(2096, 3, 1, tzinfo=PARIS)) == "2104-02-29 09:00"


@pytest.mark.parametrize("zone", BOTH)
def test_skipped_time_is_refused(zone: tzinfo) -> None:
    for text in ("2:30", "tomorrow 2:30", "sun 2:30", "29 Mar 2:30", "2026-03-29 02:30", "2026-03-29T02:00"):
        message = refused(text, LEAP.replace(tzinfo=zone))
        assert "does not exist" in message
        assert "from 02:00 to 03:00" in message
        assert '"2026-03-29 03:00"' in message
    assert read("2:30", datetime(2026, 3, 29, 10, 0, tzinfo=zone)) == "2026-03-30 02:30"


@pytest.mark.parametrize("zone", BOTH)
def test_repeated_time_is_refused_with_both_moments(zone: tzinfo) -> None:
    for text in ("2:30", "sun 2:30", "2026-10-25 02:30"):
        message = refused(text, BACK.replace(tzinfo=zone))
        assert '"2026-10-25T02:30+02:00" or "2026-10-25T02:30+01:00"' in message
    for exact in ("2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"):
        assert parse_moment(exact, BACK.replace(tzinfo=zone)).isoformat(timespec="minutes") == exact
    assert read("3:00", BACK.replace(tzinfo=zone)) == "2026-10-25 03:00"


def test_clock_changes_of_the_southern_hemisphere() -> None:
    sydney = tz.gettz("Australia/Sydney")
    assert "from 02:00 to 03:00" in refused("2026-10-04 02:30", datetime(2026, 10, 3, 12, 0, tzinfo=sydney))
    message = refused("tomorrow 2:30", datetime(2026, 4, 4, 12, 0, tzinfo=sydney))
    assert '"2026-04-05T02:30+11:00" or "2026-04-05T02:30+10:00"' in message
    lord_howe = tz.gettz("Australia/Lord_Howe")
    assert "from 02:00 to 02:30" in refused("2026-10-04 02:15", datetime(2026, 10, 3, 12, 0, tzinfo=lord_howe))


@pytest.mark.parametrize("kind", [tz.gettz, ZoneInfo])
def test_day_begins_where_clocks_jump_at_midnight(kind: type[ZoneInfo]) -> None:
    santiago = datetime(2026, 9, 5, 12, 0, tzinfo=kind("America/Santiago"))  # 24:00 is 01:00 then
    assert read("tomorrow", santiago) == "2026-09-06 01:00"
    assert read("today 24:00", santiago) == "2026-09-06 01:00"
    havana = datetime(2026, 10, 31, 12, 0, tzinfo=kind("America/Havana"))  # 00:00 comes twice
    assert parse_moment("tomorrow", havana).isoformat() == "2026-11-01T00:00:00-04:00"
    assert parse_moment("today 24:00", havana) == parse_moment("tomorrow", havana)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("x" * 101, "too long"),
        ("9" * 5000, "too long"),
        ("9" * 100, "not understood"),
        ("fri\x0018:00", "control characters"),
        ("fri\n18:00", "control characters"),
        ("vendredí 18:00", "characters"),
        ("١٨:٣٣", "characters"),
        ("soon", "not understood"),
        ("last fri", "not understood"),
        ("next week", "not understood"),
        ("2 hours ago", "not understood"),
        ("fri 18:00 19:00", "not understood"),
        ("00:00 1 Dec 2026 19:00", "not understood"),
        ("25:00", "not a time of day"),
        ("24:01", "not a time of day"),
        ("fri 9:60", "not a time of day"),
        ("13pm", "not a time of day"),
        ("0am", "not a time of day"),
        ("fri 18", "the number 18"),
        ("20 Nov 18", "the number 18"),
        ("0", "has no unit"),
        ("90", "has no unit"),
        ("1mo", "unit of varying length"),
        ("0h", "is zero"),
        ("-2h", "in the past"),
        ("30 Feb 9:00", "not a date of any year"),
        ("31/31 9:00", "not a date of any year"),
        ("2026-02-30 9:00", "not understood"),
        ("0001-01-01 9:00", "outside the years 1970 to 2200"),
        ("2200-12-31 24:00", "outside the years 1970 to 2200"),
        ("9999-12-31", "outside the years 1970 to 2200"),
        ("2200-12-31 23:30-12:00", "outside the years 1970 to 2200"),
        ("2026-12-24 18:00+24:00", "offset from UTC that no time zone has"),
        ("2026-12-24 18:00 UTC-30", "offset from UTC that no time zone has"),
        ("2026-12-24 18:00+14:01", "offset from UTC that no time zone has"),
        ("2026-12-01 18:00 XYZ", "unknown time zone"),
    ],
)
def test_invalid_time_is_refused_with_examples(text: str, why: str) -> None:
    assert why in refused(text)
    assert why in refused(text, end=True)


def test_full_moment_format() -> None:
    assert describe_moment_in_full(datetime(2026, 11, 20, 18, 0, tzinfo=PARIS), NOW) == "Fri 20 Nov 18:00"
    assert describe_moment_in_full(datetime(2027, 1, 1, 9, 5, tzinfo=PARIS), NOW) == "Fri 1 Jan 2027 09:05"
    assert describe_moment_in_full(datetime(2026, 12, 31, 23, 30, tzinfo=timezone.utc), NOW) == "Fri 1 Jan 2027 00:30"
    assert describe_moment_in_full(parse_moment("2026-10-25T02:30+01:00", BACK), BACK) == "Sun 25 Oct 02:30 (+01:00)"


@pytest.mark.parametrize("text", [text for text in CLEAR if text != "today 9:00"])
def test_formatted_moment_can_be_parsed(text: str) -> None:
    if CLEAR[text] > "2026-11-18 10:00":
        assert read(describe_moment_in_full(parse_moment(text, NOW), NOW)) == CLEAR[text]


WORDS = """
now today tonight tomorrow fri Friday mon next this on at in of the noon midnight 18:00 2:30 24:00 6pm 9 am 18h 18h30
18.30 3.12 3/4 3/4/2027 20 20th Nov feb 29 30 2026 2027 2026-12-01 2026-12-01T18:00 +01:00 Z CET XYZ 2d 3h 90m 1mo -2h
1.5h + - , . : / 0 00 9999 0001-01-01 9999-12-31 99999999999999
"""
WORD = st.sampled_from(WORDS.split())
TEXTS = st.one_of(st.text(), st.text("0123456789:.-/+ hdwmaptz"), st.lists(WORD, max_size=5).map(" ".join))


@given(TEXTS, st.booleans())
def test_any_text_is_a_moment_or_refused_with_examples(text: str, end: bool) -> None:
    try:
        assert parse_moment(text, NOW, end=end).utcoffset() is not None
    except UnclearTimeError:
        refused(text, end=end)


@given(TEXTS)
def test_any_text_is_a_duration_or_refused_with_examples(text: str) -> None:
    try:
        assert parse_duration(text).add_to(NOW, PARIS) > NOW
    except UnclearTimeError as error:
        assert all(parse_duration(example) for example in error.examples)


@pytest.mark.parametrize("text", ["1" * 99, "1h" * 50, "1 " * 50, "1 day and " * 9, "fri " * 25, "at " * 33, "9:" * 50])
def test_odd_text_is_refused_quickly(text: str) -> None:
    with within(1):
        refused(text)


BERLIN = ZoneInfo("Europe/Berlin")
# A Tuesday.
TUESDAY = datetime(2026, 11, 17, 9, 30, tzinfo=BERLIN)
PAST_WORDS = (
    "7d",
    "ago",
    "yesterday",
    "today",
    "now",
    "mon",
    "2026-10-01",
    "24:00",
    "noon",
    "midnight",
    "T",
    "-",
    "+",
    "in",
)


def read_past(text: str, now: datetime = TUESDAY, end: bool = False) -> str:
    return moments.parse_past_moment(text, now, end=end).isoformat()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-17T09:30:00+01:00"),
        ("7d", "2026-11-10T09:30:00+01:00"),
        ("-7d", "2026-11-10T09:30:00+01:00"),
        ("2 days ago", "2026-11-15T09:30:00+01:00"),
        ("90m", "2026-11-17T08:00:00+01:00"),
        ("1w 12h ago", "2026-11-09T21:30:00+01:00"),
        ("today", "2026-11-17T00:00:00+01:00"),
        ("8:00", "2026-11-17T08:00:00+01:00"),
        ("yesterday", "2026-11-16T00:00:00+01:00"),
        ("Yesterday 18:00", "2026-11-16T18:00:00+01:00"),
        ("tue", "2026-11-17T00:00:00+01:00"),
        ("tue 10:00", "2026-11-10T10:00:00+01:00"),
        ("Monday", "2026-11-16T00:00:00+01:00"),
        ("wed 9:00", "2026-11-11T09:00:00+01:00"),
        ("2026-10-01", "2026-10-01T00:00:00+02:00"),
        ("2026-10-01 12:00", "2026-10-01T12:00:00+02:00"),
        ("2026-10-01T12:00:00Z", "2026-10-01T14:00:00+02:00"),
        ("1 Oct 2026", "2026-10-01T00:00:00+02:00"),
    ],
)
def test_past_moment_is_parsed(text: str, meant: str) -> None:
    assert read_past(text) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-10-31 24:00", "2026-11-01T00:00:00+01:00"),
        ("yesterday 24:00", "2026-11-17T00:00:00+01:00"),
        ("mon 18:00", "2026-11-16T18:00:00+01:00"),
        ("1d", "2026-11-16T09:30:00+01:00"),
        ("2030-01-01 00:00", "2026-11-17T09:30:00+01:00"),
        ("2026-11-18 00:00", "2026-11-17T09:30:00+01:00"),
    ],
)
def test_past_end_is_parsed_and_never_in_the_future(text: str, meant: str) -> None:
    assert read_past(text, end=True) == meant


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("tomorrow", "is not understood"),
        ("2027-01-01", "has not come yet"),
        ("18:00", "has not come yet"),
        ("in 7d", "has not come yet"),
        ("+7d", "has not come yet"),
        ("7", "hour of the day or a number of hours"),
        ("2 months", "unit of varying length"),
        ("99999d", "is more than ten years"),
        ("1 Oct", "is not understood"),
        ("10/01/2026", "could be"),
        ("2026-10-25 02:30", "occurs twice"),
        ("2026-03-29 02:30", "does not exist"),
        ("yesterday midnight", "could be the beginning or the end of that day"),
        ("next mon", "is not understood"),
        ("а" * 5, "characters that no time has"),  # noqa: RUF001 # that is the point
    ],
)
def test_unclear_past_moment_is_refused_with_examples(text: str, why: str) -> None:
    with pytest.raises(UnclearTimeError, match=why) as error:
        read_past(text)
    assert error.value.examples


@pytest.mark.parametrize("text", ["today", "tue", "2026-11-17", "yesterday", "2026-11-10", "mon"])
def test_past_end_without_an_hour_is_refused_with_both_ends(text: str) -> None:
    with pytest.raises(UnclearTimeError, match="could be the beginning") as error:
        read_past(text, end=True)
    first, last = (moments.parse_past_moment(suggestion, TUESDAY, end=True) for suggestion in error.value.examples)
    assert first < last <= TUESDAY


def test_examples_for_past_moments_are_in_the_past() -> None:
    with pytest.raises(UnclearTimeError) as error:
        read_past("whenever")
    assert all(moments.parse_past_moment(suggestion, TUESDAY) <= TUESDAY for suggestion in error.value.examples)


def test_a_day_ago_keeps_the_clock_time_over_a_clock_change() -> None:
    after = datetime(2026, 10, 25, 12, 0, tzinfo=BERLIN)
    assert read_past("1d", after) == "2026-10-24T12:00:00+02:00"
    assert read_past("24h", after) == "2026-10-24T13:00:00+02:00"


def test_repeated_hour_is_past_after_its_first_time() -> None:
    second = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)
    assert read_past("2026-10-25T02:30:00+02:00", second) == "2026-10-25T02:30:00+02:00"


@given(
    text=st.text(max_size=120) | st.lists(st.sampled_from(PAST_WORDS) | st.text(max_size=6)).map(" ".join),
    now=st.datetimes(datetime(1971, 1, 1), datetime(8000, 1, 1)),
    zone=st.sampled_from([timezone.utc, BERLIN, ZoneInfo("Asia/Kathmandu"), timezone(timedelta(hours=-12))]),
    end=st.booleans(),
)
@example("10000000000000000w", datetime(2026, 1, 1), timezone.utc, False)
@example("0001-01-01", datetime(2026, 1, 1), BERLIN, False)
@example("9999-12-31 24:00", datetime(2026, 1, 1), BERLIN, True)
@example("-", datetime(2026, 1, 1), BERLIN, True)
@example("10y", datetime(1971, 1, 1), BERLIN, True)
@example("3653d", datetime(1971, 1, 1), BERLIN, False)
def test_any_text_is_a_past_moment_or_refused(text: str, now: datetime, zone: tzinfo, end: bool) -> None:
    moment = now.replace(tzinfo=zone)
    try:
        past_moment = moments.parse_past_moment(text, moment, end=end)
    except UnclearTimeError as why:
        assert why.examples
    else:
        assert past_moment.timestamp() <= moment.timestamp()
        assert past_moment.utcoffset() is not None
