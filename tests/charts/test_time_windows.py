"""The day, week, month and year of charts: which slots they have by the clock of the lab, and what is told of each."""

from __future__ import annotations

from array import array
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest

from site_builder.charts import time_windows
from site_builder.charts.cache import compute_sparkline_values
from site_builder.charts.time_windows import TimeGrid, build_time_window_grid
from site_builder.history.block_format import NO_CODE, Columns
from site_builder.history.model import GpuSeries
from tests.support.history_fixtures import epoch

BERLIN = ZoneInfo("Europe/Berlin")
UTC = timezone.utc
EVERY = ("day", "week", "month", "year")
NOON = epoch("2026-11-15 12:02")


def line(**columns: list[int]) -> Columns:
    """What history gives of a GPU, as it keeps it: use in half percents, memory in 8 MiB."""
    kinds = {"use": "B", "memory": "H", "temperature": "B", "power": "H", "owner": "H", "booker": "H", "seen": "B"}
    return {name: array(kinds[name], numbers) for name, numbers in columns.items()}


def lengths(grid: TimeGrid) -> list[int]:
    return [len(some) for some in grid.buckets]


@pytest.mark.parametrize("span", EVERY)
@pytest.mark.parametrize("zone", [UTC, BERLIN, ZoneInfo("Asia/Kathmandu"), ZoneInfo("America/St_Johns")])
def test_buckets_and_rows_cover_all_that_is_asked_of_history_once(span: str, zone: ZoneInfo) -> None:
    grid = build_time_window_grid(span, NOON, zone)
    asked = (grid.until - grid.since) // grid.step
    for ranges, end in (
        (grid.buckets, asked),
        ([row.history_range for row in grid.rows], asked),
        ([row.buckets for row in grid.rows], len(grid.buckets)),
    ):
        assert ranges[0].start == 0 and ranges[-1].stop == end
        assert all(before.stop == after.start < after.stop for before, after in zip(ranges, ranges[1:]))


@pytest.mark.parametrize(
    ("span", "slots", "rows"), [("day", 288, 25), ("week", 168, 29), ("month", 30 * 8 + 5, 31), ("year", 365, 53)]
)
def test_a_window_ends_now_and_has_as_many_buckets_as_a_screen_shows(span: str, slots: int, rows: int) -> None:
    grid = build_time_window_grid(span, NOON, UTC)
    assert grid.until - grid.step < NOON <= grid.until
    assert (len(grid.buckets), len(grid.rows)) == (slots, rows)


def test_a_moment_on_the_edge_of_a_bucket_does_not_begin_a_new_one() -> None:
    assert build_time_window_grid("day", epoch("2026-11-15 12:00"), UTC).until == epoch("2026-11-15 12:00")


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)])
def test_a_day_of_the_year_is_as_long_as_the_clocks_make_it(day: str, hours: int) -> None:
    grid = build_time_window_grid("year", epoch(f"{day} 23:30", BERLIN), BERLIN)
    assert lengths(grid)[-1] == hours
    assert set(lengths(grid)[1:-1]) <= {23, 24, 25}


def test_the_day_on_which_an_hour_comes_twice_shows_which_of_them_is_meant() -> None:
    words = [row.label for row in build_time_window_grid("day", epoch("2026-10-25 12:00", BERLIN), BERLIN).rows]
    assert {"Sun 25 Oct 02:00 – 02:00 CEST", "Sun 25 Oct 02:00 – 03:00 CET"} <= set(words)
    assert len(set(words)) == len(words)


def test_rows_say_when_they_are() -> None:
    def last(span: str) -> str:
        return build_time_window_grid(span, NOON, UTC).rows[-1].label

    assert last("day") == "Sun 15 Nov 12:00 – 12:05"
    assert last("week") == "Sun 15 Nov 12:00 – 13:00"
    assert last("month") == "Sun 15 Nov"
    assert last("year") == "Mon 9 Nov – Sun 15 Nov"


def test_words_stand_at_six_hours_days_mondays_and_months() -> None:
    def words(span: str) -> list[str]:
        return [word for _, word in build_time_window_grid(span, NOON, UTC).ticks]

    assert words("day") == ["18:00", "Sun 15", "06:00", "12:00"]
    assert words("week") == ["Mon 9", "Tue 10", "Wed 11", "Thu 12", "Fri 13", "Sat 14", "Sun 15"]
    assert words("month") == ["19 Oct", "26 Oct", "2 Nov", "9 Nov"]
    assert words("year")[:3] == ["Dec", "2026", "Feb"]


def test_a_word_stands_where_its_time_begins() -> None:
    grid = build_time_window_grid("day", NOON, UTC)
    slot = next(slot for slot, word in grid.ticks if word == "Sun 15")
    assert datetime.fromtimestamp(grid.since + slot * grid.step, UTC) == datetime(2026, 11, 15, tzinfo=UTC)


def test_hosts_that_are_drawn_at_a_time_share_one_grid() -> None:
    assert build_time_window_grid("year", NOON, BERLIN) is build_time_window_grid("year", NOON + 60, BERLIN)


def test_a_mean_counts_each_bucket_by_the_minutes_that_were_seen_in_it() -> None:
    means = time_windows.aggregate_time_window_ranges(line(use=[20, 200, 255], seen=[5, 15, 0]), "use", [range(0, 3)])
    assert means == [77.5]  # (5 × 10 % + 15 × 100 %) / 20


def test_a_value_that_was_not_reported_is_no_zero_in_a_mean() -> None:
    assert time_windows.aggregate_time_window_ranges(
        line(power=[100, 65535, 300], seen=[60, 60, 60]), "power", [range(0, 3)]
    ) == [200]


def test_the_highest_temperature_counts() -> None:
    history_line = line(temperature=[40, 255, 81, 60, 255, 255], seen=[60, 0, 60, 60, 0, 0])
    assert time_windows.aggregate_time_window_ranges(history_line, "temperature", [range(0, 4), range(4, 6)]) == [
        81,
        None,
    ]


def test_where_nothing_was_seen_there_is_no_value() -> None:
    history_line = line(use=[255, 255, 0], memory=[65535, 65535, 4], seen=[0, 0, 5])
    assert time_windows.aggregate_time_window_ranges(history_line, "use", [range(0, 1), range(1, 2), range(2, 3)]) == [
        None,
        None,
        0,
    ]
    assert time_windows.aggregate_time_window_ranges(history_line, "memory", [range(0, 2), range(2, 3)]) == [None, 32]


def test_memory_is_in_mib_and_use_in_percent() -> None:
    history_line = line(use=[175], memory=[1000], seen=[5])
    assert time_windows.aggregate_time_window_ranges(history_line, "use", [range(0, 1)]) == [87.5]
    assert time_windows.aggregate_time_window_ranges(history_line, "memory", [range(0, 1)]) == [8000]


def test_who_had_most_of_some_time_is_reported_and_nobody_where_that_was_nobody() -> None:
    history_line = line(owner=[0, 1, 1, NO_CODE, NO_CODE, 0])
    assert time_windows.find_time_window_people(
        history_line, "owner", ["alice", "bob"], [range(0, 3), range(3, 6)]
    ) == [
        "bob",
        None,
    ]
    each = time_windows.find_time_window_people(
        history_line, "owner", ["alice", "bob"], [range(place, place + 1) for place in range(6)]
    )
    assert each == ["alice", "bob", "bob", None, None, "alice"]


def test_a_tie_between_two_people_is_always_decided_the_same() -> None:
    first, second = (
        time_windows.find_time_window_people(line(owner=codes), "owner", ["alice", "bob"], [range(0, 4)])
        for codes in ([0, 0, 1, 1], [1, 1, 0, 0])
    )
    assert first == second


def test_a_gpu_over_a_window_is_reported_by_buckets_and_by_rows() -> None:
    grid = build_time_window_grid("day", epoch("2026-11-15 12:00"), UTC)
    history_line = line(
        use=[200] * 12 + [255] * 276,
        memory=[100] * 12 + [65535] * 276,
        temperature=[50] * 12 + [255] * 276,
        power=[300] * 12 + [65535] * 276,
        owner=[0] * 12 + [NO_CODE] * 276,
        booker=[NO_CODE] * 288,
        seen=[5] * 12 + [0] * 276,
    )
    window_series = time_windows.build_gpu_time_window_series(
        GpuSeries("GPU-0", 0, "A100", 81920.0), history_line, ["alice"], grid, str.upper
    )
    assert window_series.chart_series.values["use"] == [100] * 12 + [None] * 276
    assert window_series.chart_series.row_values["use"] == [100] + [None] * 23
    assert window_series.owners[11:13] == ["ALICE", None] and set(window_series.bookers) == {None}
    assert window_series.is_seen == [True] * 12 + [False] * 276


def test_the_line_of_the_board_has_a_bucket_for_each_half_hour_of_the_day() -> None:
    sparkline = compute_sparkline_values(line(use=[0, 0, 0, 120, 120, 120] + [255] * 282, seen=[5] * 6 + [0] * 282))
    assert sparkline == [30] + [None] * 47
