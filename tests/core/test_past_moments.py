"""Times that are over, as people say them: understood, or refused with what to write in their place."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from site_builder.core.timeparse import moments
from site_builder.core.timeparse.moments import UnclearTimeError

BERLIN = ZoneInfo("Europe/Berlin")
# A Tuesday.
NOW = datetime(2026, 11, 17, 9, 30, tzinfo=BERLIN)
WORDS = (
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


def said(text: str, now: datetime = NOW, end: bool = False) -> str:
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
def test_what_people_say_is_understood(text: str, meant: str) -> None:
    assert said(text) == meant


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
def test_an_end_is_understood_and_never_ahead(text: str, meant: str) -> None:
    assert said(text, end=True) == meant


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
        ("2 months", "not always equally long"),
        ("99999d", "is more than ten years"),
        ("1 Oct", "is not understood"),
        ("10/01/2026", "could be"),
        ("2026-10-25 02:30", "comes twice"),
        ("2026-03-29 02:30", "does not exist"),
        ("yesterday midnight", "could be the beginning or the end of that day"),
        ("next mon", "is not understood"),
        ("а" * 5, "letters in it that no time has"),  # noqa: RUF001 # that is the point
    ],
)
def test_what_is_not_clear_is_refused_with_what_to_write(text: str, why: str) -> None:
    with pytest.raises(UnclearTimeError, match=why) as told:
        said(text)
    assert told.value.examples


@pytest.mark.parametrize("text", ["today", "tue", "2026-11-17", "yesterday", "2026-11-10", "mon"])
def test_an_end_that_names_a_day_and_no_hour_is_refused_with_both(text: str) -> None:
    with pytest.raises(UnclearTimeError, match="could be the beginning") as told:
        said(text, end=True)
    first, last = (moments.parse_past_moment(one, NOW, end=True) for one in told.value.examples)
    assert first < last <= NOW


def test_what_is_offered_instead_is_over_too() -> None:
    with pytest.raises(UnclearTimeError) as told:
        said("whenever")
    assert all(moments.parse_past_moment(one, NOW) <= NOW for one in told.value.examples)


def test_a_day_ago_is_at_the_same_clock_time_over_a_change_of_the_clocks() -> None:
    after = datetime(2026, 10, 25, 12, 0, tzinfo=BERLIN)
    assert said("1d", after) == "2026-10-24T12:00:00+02:00"
    assert said("24h", after) == "2026-10-24T13:00:00+02:00"


def test_what_the_clock_shows_twice_is_over_when_it_was_shown_first() -> None:
    second = datetime(2026, 10, 25, 2, 10, tzinfo=BERLIN, fold=1)
    assert said("2026-10-25T02:30:00+02:00", second) == "2026-10-25T02:30:00+02:00"


@given(
    text=some.text(max_size=120) | some.lists(some.sampled_from(WORDS) | some.text(max_size=6)).map(" ".join),
    now=some.datetimes(datetime(1971, 1, 1), datetime(8000, 1, 1)),
    zone=some.sampled_from([timezone.utc, BERLIN, ZoneInfo("Asia/Kathmandu"), timezone(timedelta(hours=-12))]),
    end=some.booleans(),
)
@example("10000000000000000w", datetime(2026, 1, 1), timezone.utc, False)
@example("0001-01-01", datetime(2026, 1, 1), BERLIN, False)
@example("9999-12-31 24:00", datetime(2026, 1, 1), BERLIN, True)
@example("-", datetime(2026, 1, 1), BERLIN, True)
@example("10y", datetime(1971, 1, 1), BERLIN, True)
@example("3653d", datetime(1971, 1, 1), BERLIN, False)
def test_any_text_is_a_moment_that_is_over_or_unclear(text: str, now: datetime, zone: tzinfo, end: bool) -> None:
    moment = now.replace(tzinfo=zone)
    try:
        found = moments.parse_past_moment(text, moment, end=end)
    except UnclearTimeError as why:
        assert why.examples
    else:
        assert found.timestamp() <= moment.timestamp()
        assert found.utcoffset() is not None
