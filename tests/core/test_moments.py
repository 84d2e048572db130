"""Times as people say them: what is understood, and what is refused with something that would be."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from dateutil import tz
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.timeparse.moments import (
    Duration,
    UnclearTimeError,
    format_full_moment,
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
    found = parse_moment(text, now, start=start, end=end)
    assert found.tzinfo is not None
    return found.replace(tzinfo=None).isoformat(" ", "minutes")


def refused(text: str, now: datetime = NOW, start: datetime | None = None, end: bool = False) -> str:
    """What is said of it; and that each example in it would do."""
    with pytest.raises(UnclearTimeError) as told:
        parse_moment(text, now, start=start, end=end)
    assert 1 <= len(told.value.examples) <= 2
    for example in told.value.examples:
        assert f'"{example}"' in str(told.value)
        parse_moment(example, now, start=start, end=end)
    return str(told.value)


def examples(text: str, now: datetime = NOW, start: datetime | None = None, end: bool = False) -> list[str]:
    """The moments that the refusal offers."""
    refused(text, now, start, end)
    with pytest.raises(UnclearTimeError) as told:
        parse_moment(text, now, start=start, end=end)
    return [read(example, now, start, end) for example in told.value.examples]


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
def test_a_length_is_read(text: str) -> None:
    assert parse_duration(text) == LENGTHS[text]
    assert parse_moment(text, NOW) == LENGTHS[text].add_to(NOW, PARIS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0h", "no time at all"),
        ("0.001m", "no time at all"),
        ("-2h", "into the past"),
        ("11000d", "more than ten years"),
        (f"{'9' * 90}h", "more than ten years"),
        ("1mo", "not always equally long"),
        ("1 month", "not always equally long"),
        ("2y", "not always equally long"),
        ("1h 2h", "twice"),
        ("1m 1h30", "twice"),
        ("3", "has no unit"),
        ("18:00", "not a length"),
        ("fri", "not a length"),
        ("1,5h", "not a length"),
        ("", "empty"),
        ("2h" * 51, "too long"),
        ("2\x00h", "control"),
        ("٢h", "letters"),
    ],
)
def test_what_is_no_length_is_refused_with_one(text: str, why: str) -> None:
    with pytest.raises(UnclearTimeError, match=why) as told:
        parse_duration(text)
    assert told.value.examples
    assert all(parse_duration(example) for example in told.value.examples)


def test_a_length_counts_from_the_start_only_as_an_end() -> None:
    start = datetime(2026, 11, 20, 9, 0, tzinfo=PARIS)
    assert read("2h", start=start, end=True) == "2026-11-20 11:00"
    assert read("2h", end=True) == "2026-11-18 12:00"
    assert read("2h", start=start) == "2026-11-18 12:00"


@pytest.mark.parametrize("zone", BOTH)
def test_a_day_ends_at_the_same_clock_time_and_hours_are_exact(zone: tzinfo) -> None:
    before = LEAP.replace(tzinfo=zone)
    assert read("1d", before) == "2026-03-29 12:00"
    assert read("24h", before) == "2026-03-29 13:00"
    assert read("1d24h", before) == "2026-03-30 12:00"
    assert read("24h", BACK.replace(tzinfo=zone)) == "2026-10-25 11:00"
    assert read("1w", BACK.replace(tzinfo=zone)) == "2026-10-31 12:00"


@pytest.mark.parametrize("zone", BOTH)
def test_a_day_that_would_end_in_the_hour_of_the_jump_still_ends(zone: tzinfo) -> None:
    assert read("1d", datetime(2026, 3, 28, 2, 30, tzinfo=zone)) == "2026-03-29 03:00"
    found = parse_moment("1d", datetime(2026, 10, 24, 2, 30, tzinfo=zone))
    assert found.utcoffset() == timedelta(hours=2)
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
def test_a_clear_time_is_read(text: str) -> None:
    assert read(text) == CLEAR[text]


@pytest.mark.parametrize("text", [text for text in CLEAR if text not in {"tomorrow", "fri", "20 Nov", "2026-12-01"}])
def test_a_clear_time_is_the_same_as_an_end(text: str) -> None:
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
def test_an_end_that_could_be_two_moments_is_refused_with_both(text: str) -> None:
    assert examples(text, end=True) == TWO_THINGS[text]


def test_a_beginning_today_could_be_now() -> None:
    assert examples("today") == ["2026-11-18 10:00", "2026-11-18 00:00"]
    assert examples("wed") == ["2026-11-18 10:00", "2026-11-25 00:00"]
    assert examples("18 Nov") == ["2026-11-18 10:00", "2027-11-18 00:00"]


@pytest.mark.parametrize("text", ["today", "today midnight", "18 Nov", "2026-11-18"])
def test_an_end_today_is_the_end_of_the_day(text: str) -> None:
    assert read(text, end=True) == "2026-11-19 00:00"


def test_an_end_is_looked_for_after_its_start() -> None:
    start = datetime(2026, 11, 23, 9, 0, tzinfo=PARIS)
    assert read("18:00", start=start, end=True) == "2026-11-23 18:00"
    assert read("fri 18:00", start=start, end=True) == "2026-11-27 18:00"
    assert read("22 Nov 18:00", start=start, end=True) == "2027-11-22 18:00"
    assert read("tomorrow 18:00", start=start, end=True) == "2026-11-19 18:00"
    assert examples("mon", start=start, end=True) == ["2026-11-24 00:00", "2026-12-01 00:00"]
    assert read("18:00", start=NOW - timedelta(days=9), end=True) == "2026-11-18 18:00"


def test_weeks_and_years_turn_where_they_turn() -> None:
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
def test_a_time_that_the_clock_leaps_over_is_refused(zone: tzinfo) -> None:
    for text in ("2:30", "tomorrow 2:30", "sun 2:30", "29 Mar 2:30", "2026-03-29 02:30", "2026-03-29T02:00"):
        told = refused(text, LEAP.replace(tzinfo=zone))
        assert "does not exist" in told
        assert "from 02:00 to 03:00" in told
        assert '"2026-03-29 03:00"' in told
    assert read("2:30", datetime(2026, 3, 29, 10, 0, tzinfo=zone)) == "2026-03-30 02:30"


@pytest.mark.parametrize("zone", BOTH)
def test_a_time_that_comes_twice_is_refused_with_both(zone: tzinfo) -> None:
    for text in ("2:30", "sun 2:30", "2026-10-25 02:30"):
        told = refused(text, BACK.replace(tzinfo=zone))
        assert '"2026-10-25T02:30+02:00" or "2026-10-25T02:30+01:00"' in told
    for exact in ("2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"):
        assert parse_moment(exact, BACK.replace(tzinfo=zone)).isoformat(timespec="minutes") == exact
    assert read("3:00", BACK.replace(tzinfo=zone)) == "2026-10-25 03:00"


def test_the_southern_half_jumps_the_other_way() -> None:
    sydney = tz.gettz("Australia/Sydney")
    assert "from 02:00 to 03:00" in refused("2026-10-04 02:30", datetime(2026, 10, 3, 12, 0, tzinfo=sydney))
    told = refused("tomorrow 2:30", datetime(2026, 4, 4, 12, 0, tzinfo=sydney))
    assert '"2026-04-05T02:30+11:00" or "2026-04-05T02:30+10:00"' in told
    lord_howe = tz.gettz("Australia/Lord_Howe")
    assert "from 02:00 to 02:30" in refused("2026-10-04 02:15", datetime(2026, 10, 3, 12, 0, tzinfo=lord_howe))


@pytest.mark.parametrize("kind", [tz.gettz, ZoneInfo])
def test_a_day_begins_also_where_the_clocks_jump_at_midnight(kind: type[ZoneInfo]) -> None:
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
        ("vendredí 18:00", "letters"),
        ("١٨:٣٣", "letters"),
        ("soon", "not understood"),
        ("last fri", "not understood"),
        ("next week", "not understood"),
        ("2 hours ago", "not understood"),
        ("fri 18:00 19:00", "not understood"),
        ("00:00 1 Dec 2026 19:00", "not understood"),
        ("25:00", "not a time of the day"),
        ("24:01", "not a time of the day"),
        ("fri 9:60", "not a time of the day"),
        ("13pm", "not a time of the day"),
        ("0am", "not a time of the day"),
        ("fri 18", "the number 18"),
        ("20 Nov 18", "the number 18"),
        ("0", "has no unit"),
        ("90", "has no unit"),
        ("1mo", "not always equally long"),
        ("0h", "no time at all"),
        ("-2h", "into the past"),
        ("30 Feb 9:00", "not a day of any year"),
        ("31/31 9:00", "not a day of any year"),
        ("2026-02-30 9:00", "not understood"),
        ("0001-01-01 9:00", "outside the years 1970 to 2200"),
        ("2200-12-31 24:00", "outside the years 1970 to 2200"),
        ("9999-12-31", "outside the years 1970 to 2200"),
        ("2200-12-31 23:30-12:00", "outside the years 1970 to 2200"),
        ("2026-12-24 18:00+24:00", "offset from UTC that no time zone has"),
        ("2026-12-24 18:00 UTC-30", "offset from UTC that no time zone has"),
        ("2026-12-24 18:00+14:01", "offset from UTC that no time zone has"),
        ("2026-12-01 18:00 XYZ", "time zone that is not known"),
    ],
)
def test_what_is_no_time_is_refused_with_what_would_be(text: str, why: str) -> None:
    assert why in refused(text)
    assert why in refused(text, end=True)


def test_a_moment_is_said_plainly() -> None:
    assert format_full_moment(datetime(2026, 11, 20, 18, 0, tzinfo=PARIS), NOW) == "Fri 20 Nov 18:00"
    assert format_full_moment(datetime(2027, 1, 1, 9, 5, tzinfo=PARIS), NOW) == "Fri 1 Jan 2027 09:05"
    assert format_full_moment(datetime(2026, 12, 31, 23, 30, tzinfo=timezone.utc), NOW) == "Fri 1 Jan 2027 00:30"
    assert format_full_moment(parse_moment("2026-10-25T02:30+01:00", BACK), BACK) == "Sun 25 Oct 02:30 (+01:00)"


@pytest.mark.parametrize("text", [text for text in CLEAR if text != "today 9:00"])
def test_what_is_said_is_understood(text: str) -> None:
    if CLEAR[text] > "2026-11-18 10:00":
        assert read(format_full_moment(parse_moment(text, NOW), NOW)) == CLEAR[text]


WORDS = """
now today tonight tomorrow fri Friday mon next this on at in of the noon midnight 18:00 2:30 24:00 6pm 9 am 18h 18h30
18.30 3.12 3/4 3/4/2027 20 20th Nov feb 29 30 2026 2027 2026-12-01 2026-12-01T18:00 +01:00 Z CET XYZ 2d 3h 90m 1mo -2h
1.5h + - , . : / 0 00 9999 0001-01-01 9999-12-31 99999999999999
"""
WORD = st.sampled_from(WORDS.split())
TEXTS = st.one_of(st.text(), st.text("0123456789:.-/+ hdwmaptz"), st.lists(WORD, max_size=5).map(" ".join))


@given(TEXTS, st.booleans())
def test_any_text_is_a_moment_or_refused_with_what_would_be(text: str, end: bool) -> None:
    try:
        assert parse_moment(text, NOW, end=end).utcoffset() is not None
    except UnclearTimeError:
        refused(text, end=end)


@given(TEXTS)
def test_any_text_is_a_length_or_refused_with_one(text: str) -> None:
    try:
        assert parse_duration(text).add_to(NOW, PARIS) > NOW
    except UnclearTimeError as told:
        assert all(parse_duration(example) for example in told.examples)


@pytest.mark.parametrize("text", ["1" * 99, "1h" * 50, "1 " * 50, "1 day and " * 9, "fri " * 25, "at " * 33, "9:" * 50])
def test_an_odd_text_takes_no_time(text: str) -> None:
    with within(1):
        refused(text)
