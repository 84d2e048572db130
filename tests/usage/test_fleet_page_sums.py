"""How much of the fleet is used: by model, by hour of the week, and against the week before."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest

from site_builder.history.model import GPU_STATES
from site_builder.history.usage_sums import StateMinutes
from site_builder.reports import collect
from site_builder.usage import fleet_page
from site_builder.usage.fleet_page import HeatmapSums, build_heatmap_hourly_rows
from site_builder.usage.totals import (
    MAX_MODELS,
    NOTHING_SEEN,
    OTHER_MODELS,
    PeriodComparison,
    UsageChange,
    UseSummary,
    compare_usage_periods,
    describe_usage_coverage,
    find_usage_midnight,
    summarize_usage_by_model,
    summarize_usage_total,
    summarize_use,
)
from tests.support.history_fixtures import epoch

PARIS, KOLKATA, LORD_HOWE = ZoneInfo("Europe/Paris"), ZoneInfo("Asia/Kolkata"), ZoneInfo("Australia/Lord_Howe")
HOUR = 3600
MONDAY = date(2026, 3, 23)  # of the week in which Paris puts its clocks forward
AUTUMN = date(2026, 10, 19)  # and back


def seen(**minutes: int) -> StateMinutes:
    """Minutes in some states; all of them were seen."""
    rows = dict.fromkeys(StateMinutes._fields, 0)
    states = {name: count for name, count in minutes.items() if name in GPU_STATES}
    return StateMinutes(**{**rows, "seen": sum(states.values()), **minutes})


def whole_week(monday: date, zone: tzinfo, busy_at: int) -> dict[tuple[int, str], StateMinutes]:
    """One GPU over a week; busy in the hours of one time of the day, and free in all others."""
    seen_hours = {}
    at, end = find_usage_midnight(monday, zone) // HOUR * HOUR, find_usage_midnight(monday + timedelta(days=7), zone)
    while at < end:
        busy = datetime.fromtimestamp(at, zone).hour == busy_at
        seen_hours[at, "A100"] = seen(busy=60) if busy else seen(free=60)
        at += HOUR
    return seen_hours


def days(monday: date) -> list[date]:
    return fleet_page.list_fleet_days_until(monday + timedelta(days=6), 7)


# By model


def test_the_use_of_a_model_is_what_was_worked_out_on_paper() -> None:
    """Two hours of two GPUs: the first busy with 80 %, then held with 0 %; the second booked, then lost and free."""
    seen_hours = {
        (0, "A100"): seen(busy=60, booked=60, taken_told=60, taken_use=160 * 60),
        (HOUR, "A100"): seen(held=60, lost=20, free=40, taken_told=60, taken_use=0),
        (0, "V100"): seen(conflict=30, free=30, taken_told=0),
    }
    model_summaries = summarize_usage_by_model(seen_hours)
    assert model_summaries == {
        "A100": UseSummary(gpus=2, seen=240, taken=120, held=60, booked=60, free=40, unclear=20, use_percent=40.0),
        "V100": UseSummary(gpus=1, seen=60, taken=30, held=0, booked=0, free=30, unclear=0, use_percent=None),
    }
    assert [model_summaries["A100"].share(what) for what in ("taken", "held", "booked", "free", "unclear")] == [
        50.0,
        25.0,
        25.0,
        pytest.approx(100 / 6),
        pytest.approx(100 / 12),
    ]
    assert summarize_usage_total(model_summaries, seen_hours.values()) == UseSummary(3, 300, 150, 60, 60, 70, 20, 40.0)


def test_the_parts_of_what_was_seen_are_all_of_it() -> None:
    summary = summarize_use(seen(busy=1, held=2, conflict=3, booked=4, free=5, lost=6, unknown=7), 1)
    assert summary.taken + summary.booked + summary.free + summary.unclear == summary.seen == 28


def test_many_models_have_one_row_together_and_no_minute_is_lost() -> None:
    seen_hours = {(0, f"model {number:03}"): seen(busy=60 + number) for number in range(100)}
    model_summaries = summarize_usage_by_model(seen_hours)
    assert next(iter(model_summaries)) == "model 099"
    assert (len(model_summaries), list(model_summaries)[-1]) == (MAX_MODELS + 1, OTHER_MODELS)
    assert sum(tally.seen for tally in model_summaries.values()) == sum(tally.seen for tally in seen_hours.values())
    assert model_summaries[OTHER_MODELS].gpus == 60 + 59  # all but the smallest had more than 60 minutes in the hour


def test_unseen_time_has_no_share() -> None:
    assert NOTHING_SEEN.share("taken") is None
    row = fleet_page.build_fleet_page_row("T4", NOTHING_SEEN)
    assert (row.gpus, row.hours, row.taken, row.free, row.use_percent) == ("–",) * 5
    assert row.bar == "no data"


# Hour by hour


def test_each_hour_of_the_week_has_its_own_cell() -> None:
    cells = fleet_page.build_fleet_heatmap_cells(
        whole_week(MONDAY, timezone.utc, busy_at=9), days(MONDAY), timezone.utc
    )
    assert [len(row) for row in cells] == [24] * 7
    assert {row[9] for row in cells} == {HeatmapSums(1, 60, 60)}
    assert {cell for row in cells for hour, cell in enumerate(row) if hour != 9} == {HeatmapSums(1, 60, 0)}


def test_in_spring_an_hour_is_left_out_and_none_moves() -> None:
    seen_hours = whole_week(MONDAY, PARIS, busy_at=9)
    cells = fleet_page.build_fleet_heatmap_cells(seen_hours, days(MONDAY), PARIS)
    assert len(seen_hours) == 167
    assert cells[6][2] == HeatmapSums(0, 0, 0)
    assert {row[9] for row in cells} == {HeatmapSums(1, 60, 60)}
    assert sum(cell.seen for row in cells for cell in row) == 167 * 60


def test_in_autumn_an_hour_comes_twice_and_none_moves() -> None:
    seen_hours = whole_week(AUTUMN, PARIS, busy_at=9)
    cells = fleet_page.build_fleet_heatmap_cells(seen_hours, days(AUTUMN), PARIS)
    assert len(seen_hours) == 169
    assert cells[6][2] == HeatmapSums(2, 120, 0)
    assert {row[9] for row in cells} == {HeatmapSums(1, 60, 60)}
    assert sum(cell.seen for row in cells for cell in row) == 169 * 60


@pytest.mark.parametrize("zone", [KOLKATA, LORD_HOWE, ZoneInfo("Asia/Kathmandu"), ZoneInfo("Pacific/Apia")])
@pytest.mark.parametrize("monday", [MONDAY, AUTUMN, date(2026, 3, 30), date(2026, 9, 28), date(2025, 12, 29)])
def test_in_no_zone_an_hour_counts_twice_or_not_at_all(zone: tzinfo, monday: date) -> None:
    seen_hours = whole_week(monday, zone, busy_at=9)
    first = min(seen_hours)
    if datetime.fromtimestamp(first[0], zone).date() < monday:  # it begins in the week before, and counts there
        del seen_hours[first]
    cells = fleet_page.build_fleet_heatmap_cells(seen_hours, days(monday), zone)
    assert sum(cell.seen for row in cells for cell in row) == len(seen_hours) * 60
    assert sum(cell.hour_count for row in cells for cell in row) == len(seen_hours)


def test_a_gap_is_no_data_and_never_0() -> None:
    at = epoch("2026-03-23T10:00", PARIS)
    cells = fleet_page.build_fleet_heatmap_cells({(at, "A100"): seen(free=60)}, days(MONDAY), PARIS)
    assert [cells[0][hour].share for hour in (9, 10, 11)] == [None, 0, None]
    texts = build_heatmap_hourly_rows(days(MONDAY), cells)[0].cells
    assert (texts[9].text, texts[9].tint, texts[9].title) == ("–", "", "Mon 23 Mar 09:00: no data")
    assert (texts[10].text, texts[10].title) == ("0", "Mon 23 Mar 10:00: 0 % in use, 0.0 of 1.0 GPUs on average")


def test_the_hours_of_a_change_of_the_clocks_say_so() -> None:
    spring = build_heatmap_hourly_rows(
        days(MONDAY), fleet_page.build_fleet_heatmap_cells(whole_week(MONDAY, PARIS, 2), days(MONDAY), PARIS)
    )
    autumn = build_heatmap_hourly_rows(
        days(AUTUMN), fleet_page.build_fleet_heatmap_cells(whole_week(AUTUMN, PARIS, 2), days(AUTUMN), PARIS)
    )
    assert spring[6].cells[2] == ("", "", "Sun 29 Mar 02:00: skipped by the clock change")
    assert autumn[6].cells[2].text == "100"
    assert "(twice, by the clock change): 100 % in use, 1.0 of 1.0 GPUs" in autumn[6].cells[2].title


def test_an_hour_to_come_is_neither_0_nor_a_gap() -> None:
    heatmap_cells = fleet_page.build_fleet_heatmap_cells({}, days(MONDAY), PARIS)
    row = build_heatmap_hourly_rows(days(MONDAY), heatmap_cells, datetime(2026, 3, 23, 10, tzinfo=PARIS))[0].cells
    assert (row[9].text, row[10].text) == ("–", "")
    assert row[10].title == "Mon 23 Mar 10:00: not yet"


def test_a_line_breaks_where_nothing_was_seen() -> None:
    at = epoch("2026-03-23T06:00", timezone.utc)
    seen_hours = {(at + hour * HOUR, "A100"): seen(busy=30, free=30) for hour in range(6)}
    course = fleet_page.build_fleet_page_course(seen_hours, days(MONDAY)[:2], timezone.utc)
    assert course.percents == [None, 50.0, None, None, None, None, None, None]
    assert [day.share for day in course.days] == [50.0, None]
    picture = fleet_page.render_fleet_page_course(course, days(MONDAY)[:2], "<b>")
    assert "Mon 23 Mar: 50 % in use" in picture
    assert "Tue 24 Mar: no data" in picture
    assert "&lt;b&gt;, in use over 2 days: mean 50 %, highest 50 %" in picture


# Against the week before


@pytest.mark.parametrize(
    ("now", "before", "words"),
    [
        (112, 100, ", up 12 % from last week"),
        (88, 100, ", down 12 % from last week"),
        (100.1, 100, ", about the same as in last week"),
        (99.9, 100, ", about the same as in last week"),
        (0, 0, ", about the same as in last week"),
        (5, 0, ""),
        (5, None, ""),
    ],
)
def test_a_change_is_reported_in_words(now: float, before: float | None, words: str) -> None:
    assert fleet_page.describe_use_change(UsageChange(now, before), "last week") == words


def test_working_hours_in_which_a_model_was_full_are_counted() -> None:
    """On Monday from 10 on the A100 has no free minute, on Tuesday half an hour of its 60; the V100 is lost."""
    rows = {"A100": seen(busy=60, free=60), "V100": seen(lost=60), "T4": seen(free=60)}
    hours = [epoch(f"2026-03-{day}T{hour:02}:00", PARIS) for day in range(23, 30) for hour in range(24)]
    week = {(hour, model): row for hour in hours for model, row in rows.items()}
    for hour in range(10, 24):
        week[epoch(f"2026-03-23T{hour:02}:00", PARIS), "A100"] = seen(busy=60, held=30, booked=30)
        week[epoch(f"2026-03-28T{hour:02}:00", PARIS), "A100"] = seen(busy=120)
    week[epoch("2026-03-24T12:00", PARIS), "A100"] = seen(busy=57, free=3)
    week[epoch("2026-03-24T13:00", PARIS), "A100"] = seen(busy=56, free=4)
    week[epoch("2026-03-25T12:00", PARIS), "A100"] = seen()
    assert fleet_page.count_full_hours(week, PARIS) == [fleet_page.FullHours("A100", 9, 49, has_several=True)]


def test_a_period_is_described_in_sentences() -> None:
    comparison = PeriodComparison(UsageChange(50, 40), (59.0, 53.2), UsageChange(3, 2), UsageChange(5, 5))
    full_hours = [fleet_page.FullHours("A100", 34, 50), fleet_page.FullHours("H100", 12, 50)]
    assert fleet_page.describe_use_in_sentences(comparison, "the previous week", full_hours) == [
        "59 % of GPU time was in use, up from 53 % in the previous week.",
        "A100 GPUs were full in 34 of 50 working hours (Mon to Fri, 8 to 18 h), H100 in 12.",
        "3 people (2 before) used 50.0 GPU-hours, up 25 % from the previous week.",
        "5.0 GPU-hours were held or booked but idle, about the same as in the previous week.",
    ]
    alone = PeriodComparison(UsageChange(1, None), (9.0, None), UsageChange(1, None), UsageChange(0, None))
    assert fleet_page.describe_use_in_sentences(alone, "the previous week") == [
        "9 % of GPU time was in use.",
        "1 person used 1.0 GPU-hours.",
        "0.0 GPU-hours were held or booked but idle.",
    ]


def test_a_column_of_zeros_is_left_out() -> None:
    uses = (summarize_use(seen(busy=60, free=60), 2), summarize_use(seen(held=60), 1), NOTHING_SEEN)
    rows = [fleet_page.build_fleet_page_row("A100", use) for use in uses]
    labels = [label for _, label in fleet_page.list_filled_columns(fleet_page.USE_COLUMNS, rows)]
    assert labels == ["GPU-hours", "In use", "Held idle", "Free"]


def test_where_the_week_before_was_not_seen_nothing_is_compared() -> None:
    comparison = compare_usage_periods(summarize_use(seen(busy=60, free=60), 2), 3, NOTHING_SEEN, 0)
    assert (comparison.used, comparison.people, comparison.wasted) == (
        UsageChange(1, None),
        UsageChange(3, None),
        UsageChange(0, None),
    )
    assert comparison.taken_percents == (50, None)


def test_how_much_was_seen_is_reported_where_it_was_not_all() -> None:
    use = summarize_use(seen(busy=1440, free=1440), 2)
    assert describe_usage_coverage(use, 1) == ""
    assert describe_usage_coverage(use, 2) == "Coverage: 50 % of GPU time was monitored"
    assert describe_usage_coverage(NOTHING_SEEN, 1) == "No data"


# Weeks by their names


@pytest.mark.parametrize(
    ("name", "monday"),
    [
        ("2026-W01", date(2025, 12, 29)),  # the first of a year may begin in the year before
        ("2026-W53", date(2026, 12, 28)),  # and the last may end in the next
        ("2020-W53", date(2020, 12, 28)),
        ("2027-W01", date(2027, 1, 4)),
        ("2026-W45", date(2026, 11, 2)),
    ],
)
def test_a_week_has_one_name(name: str, monday: date) -> None:
    assert collect.parse_report_week(name) == monday
    assert {collect.format_report_week(monday + timedelta(days=day)) for day in range(7)} == {name}


@pytest.mark.parametrize(
    "text", ["2027-W53", "2026-W00", "2026-W54", "2026-45", "2026-W4", "W45", "", "2026-W\u0664\u0665", "0000-W01"]
)
def test_what_is_no_week_is_none(text: str) -> None:
    assert collect.parse_report_week(text) is None


@pytest.mark.parametrize("text", ["2026-w45", "2026W45", " 2026-W45 "])
def test_a_week_may_be_written_in_other_ways(text: str) -> None:
    assert collect.parse_report_week(text) == date(2026, 11, 2)


@pytest.mark.parametrize("day", range(7))
def test_the_last_whole_week_ended_before_this_one_began(day: int) -> None:
    assert collect.find_last_whole_week(date(2027, 1, 4) + timedelta(days=day)) == date(2026, 12, 28)
