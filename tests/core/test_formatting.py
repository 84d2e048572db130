"""How durations, times, sizes and names are written."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from site_builder.core import formatting
from tests.support.generated_fleet import NOON, NOW, PARIS, now

HOUR, DAY = 3600, 86400


def after(days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> float:
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()


# Durations


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (after(days=2, hours=2, minutes=1), "2 d 3 h left"),
        (after(days=2, hours=3), "2 d 3 h left"),
        (after(days=2), "2 d left"),
        (after(days=1, hours=23, minutes=1), "2 d left"),
        (after(days=1, seconds=1), "1 d 1 h left"),
        (after(days=1), "1 d left"),
        (after(hours=23, minutes=59, seconds=1), "1 d left"),
        (after(hours=23, minutes=59), "23 h 59 min left"),
        (after(hours=3, minutes=20), "3 h 20 min left"),
        (after(hours=1, seconds=1), "1 h 1 min left"),
        (after(hours=1), "1 h left"),
        (after(minutes=59.5), "1 h left"),
        (after(minutes=59), "59 min left"),
        (after(seconds=30), "1 min left"),
        (after(seconds=0.001), "1 min left"),
    ],
)
def test_duration_has_two_units_at_most_and_is_rounded_up(seconds: float, expected: str) -> None:
    assert formatting.format_time_left(NOW + seconds, now()) == expected


@pytest.mark.parametrize("seconds", [0, -1, -1e6])
def test_duration_is_never_negative(seconds: float) -> None:
    assert formatting.format_duration(seconds) == "0 min"


# Times


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (NOON, "12:00"),
        (datetime(2026, 11, 16, 0, 0, tzinfo=PARIS), "00:00"),
        (datetime(2026, 11, 16, 23, 59, tzinfo=PARIS), "23:59"),
        (datetime(2026, 11, 17, 9, 5, tzinfo=PARIS), "tomorrow 09:05"),
        (datetime(2026, 11, 18, 18, 0, tzinfo=PARIS), "Wed 18:00"),
        (datetime(2026, 11, 22, 18, 0, tzinfo=PARIS), "Sun 18:00"),
        (datetime(2026, 11, 23, 18, 0, tzinfo=PARIS), "23 Nov 18:00"),
        (datetime(2026, 11, 15, 18, 0, tzinfo=PARIS), "15 Nov 18:00"),
        (datetime(2027, 1, 2, 3, 4, tzinfo=PARIS), "2 Jan 2027 03:04"),
        (datetime(2026, 11, 16, 23, 30, tzinfo=timezone.utc), "tomorrow 00:30"),
        (datetime(9999, 12, 31, 23, 59, tzinfo=timezone.utc), "31 Dec 9999 23:59"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), "1 Jan 1 00:00"),
    ],
)
def test_moment_is_formatted_in_our_zone(moment: datetime, expected: str) -> None:
    assert formatting.format_moment(moment, now()) == expected


# Sizes


@pytest.mark.parametrize(
    ("mib", "expected"),
    [
        (None, "–"),
        (0, "0"),
        (4, "0"),
        (52, "0.1"),
        (1024, "1"),
        (3500, "3.4"),
        (10_188, "9.9"),
        (10_240, "10"),
        (72_700, "71"),
        (81_920, "80"),
    ],
)
def test_gib_has_a_decimal_only_below_ten(mib: float | None, expected: str) -> None:
    assert formatting.format_gib(mib) == expected


@pytest.mark.parametrize(
    ("mib", "expected"),
    [
        (0, "0 MiB"),
        (512, "512 MiB"),
        (1023, "1023 MiB"),
        (1023.6, "1 GiB"),
        (1024, "1 GiB"),
        (3500, "3.4 GiB"),
        (72_700, "71 GiB"),
        (10_000 * 1024, "9.8 TiB"),
    ],
)
def test_size_has_a_suitable_unit(mib: float, expected: str) -> None:
    assert formatting.format_size(mib) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["alice"], "alice"),
        (["alice", "bob"], "alice and bob"),
        (["alice", "bob", "carol"], "alice, bob and carol"),
        (["alice", "bob", "carol", "dan", "eve"], "alice, bob and 3 more"),
    ],
)
def test_join_names_shortens_long_lists(names: list[str], expected: str) -> None:
    assert formatting.format_names(names) == expected
