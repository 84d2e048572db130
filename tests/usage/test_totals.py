"""GPU-hours that a lab can bill by: each sum below was worked out on paper, and all of them are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from site_builder.core.formatting import DAY, HOUR
from site_builder.core.people import PeopleDirectory
from site_builder.history.block_format import PackedSample
from site_builder.history.reader import read_history_gpu_set_changes
from site_builder.history.writer import HistoryWriter
from site_builder.usage import totals
from site_builder.usage.totals import UsageTable, UsageTotals, usage_total_to_hours
from tests.support.history_fixtures import A100, epoch, gpu, host, record, roll

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
NOBODY = PeopleDirectory({})
NOON = epoch("2026-03-10T12:00")
CLOSED = ("used", "unowned", "booked_idle", "free", "unclear")


def told(
    history: HistoryWriter, first: str, last: str, now: float, by: str = "person", people: PeopleDirectory = NOBODY
) -> UsageTable:
    """What `gpuboard stats` is made of, from one day to another."""
    days = date.fromisoformat(first), date.fromisoformat(last)
    tallies = history.read_daily_usage(*days, now)
    changes = read_history_gpu_set_changes(history)
    unseen = totals.count_unseen_usage_by_month(changes, tallies.seen, days, history.zone, now)
    persons, places = totals.total_daily_usage(tallies.shares, tallies.seen, unseen.items())
    return totals.build_usage_totals_table(persons, places, people, by)


def in_hours(usage_table: UsageTable, what: str = "used") -> dict[str, float]:
    """Of each line, but for those that have none."""
    hours_by_name = {row.name: round(usage_total_to_hours(getattr(row.sums, what)), 6) for row in usage_table.rows}
    return {name: number for name, number in hours_by_name.items() if number}


def total(usage_table: UsageTable) -> dict[str, float]:
    return {name: round(usage_total_to_hours(units), 6) for name, units in usage_table.total._asdict().items() if units}


def assert_closed(total: UsageTotals) -> None:
    assert sum(getattr(total, name) for name in CLOSED) == total.seen


# A fleet that was added up by hand


def hand_made(number: int) -> list[PackedSample]:
    """Five hours of two hosts: atlas has four GPUs, hydra two of another model and is down in the third hour."""
    hour = number // 60
    atlas = host(
        gpu("held" if hour == 4 else "busy", ["alice"], ["alice"], index=0),
        gpu("busy", ["alice", "bob"], index=1),
        gpu("conflict", ["bob"], ["carol"], index=2) if hour < 2 else gpu("booked", [], ["carol"], index=2),
        gpu("lost", [], ["dave"], index=3) if hour == 0 else gpu("busy", [], index=3) if hour == 1 else gpu(index=3),
    )
    h100 = [gpu("busy", ["carol", "dave", "erin"], index=n, key=f"GPU-h{n}", model="H100") for n in range(2)]
    return [atlas] if hour == 2 else [atlas, host(*h100, name="hydra")]


@pytest.fixture
def by_hand(history: HistoryWriter) -> Iterator[Callable[[str], UsageTable]]:
    record(history, NOON, 300, hand_made)
    end = NOON + 5 * HOUR
    yield lambda by: told(history, "2026-03-01", "2026-03-31", end, by)


ROLLED = pytest.mark.parametrize("rolled", [False, True])


@pytest.mark.slow
@ROLLED
def test_each_person_has_the_hours_worked_out_on_paper(
    history: HistoryWriter, by_hand: Callable[[str], UsageTable], rolled: bool
) -> None:
    if rolled:
        roll(history, NOON + 30 * DAY)
    usage_table = by_hand("person")
    assert in_hours(usage_table) == {
        "alice": 5 + 2.5,
        "bob": 2.5 + 2,
        "carol": round(8 / 3, 6),
        "dave": round(8 / 3, 6),
        "erin": round(8 / 3, 6),
    }
    assert in_hours(usage_table, "held") == {"alice": 1}
    assert in_hours(usage_table, "booked") == {"alice": 5, "carol": 5, "dave": 1}
    # that nobody could reach the GPU which dave had booked was not dave's fault
    assert in_hours(usage_table, "unused") == {"carol": 5}


@pytest.mark.slow
@ROLLED
@pytest.mark.parametrize("by", totals.GROUPINGS)
def test_the_total_is_the_same_for_every_grouping(
    history: HistoryWriter, by_hand: Callable[[str], UsageTable], rolled: bool, by: str
) -> None:
    if rolled:
        roll(history, NOON + 30 * DAY)
    usage_table = by_hand(by)
    assert total(usage_table) == {
        "used": 12 + 8,
        "held": 1,
        "booked": 11,
        "unused": 5,
        "unowned": 1,
        "booked_idle": 3,
        "free": 3,
        "unclear": 1,
        "seen": 20 + 8,
        "unseen": 2,
        "conflict": 2,
    }
    assert_closed(usage_table.total)


def test_rows_of_models_hosts_and_months_add_up_to_the_total(by_hand: Callable[[str], UsageTable]) -> None:
    for by, names in (("model", [A100, "H100"]), ("host", ["atlas", "hydra"]), ("month", ["2026-03"])):
        usage_table = by_hand(by)
        assert [row.name for row in usage_table.rows] == names
        assert totals.add_usage_totals(row.sums for row in usage_table.rows) == usage_table.total
        for row in usage_table.rows:
            assert_closed(row.sums)


def test_a_host_that_was_down_has_no_zeros_but_is_reported_as_not_seen(by_hand: Callable[[str], UsageTable]) -> None:
    atlas, hydra = by_hand("host").rows
    assert (
        usage_total_to_hours(hydra.sums.seen),
        usage_total_to_hours(hydra.sums.unseen),
        usage_total_to_hours(hydra.sums.free),
    ) == (
        8,
        2,
        0,
    )
    assert (totals.compute_usage_percent_seen(atlas.sums), totals.compute_usage_percent_seen(hydra.sums)) == (100, 80)


# Days and months of the lab


@pytest.mark.slow
@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK], ids=str)
@pytest.mark.parametrize(("change", "length"), [("spring", 23), ("autumn", 25)])
def test_a_day_on_which_clocks_change_has_its_own_hours(state: Path, zone: tzinfo, change: str, length: int) -> None:
    berlin = {"spring": "2026-03-29", "autumn": "2026-10-25"}
    new_york = {"spring": "2026-03-08", "autumn": "2026-11-01"}
    day = (berlin if zone is BERLIN else new_york)[change]
    history = HistoryWriter(state, zone)
    start = epoch(f"{day}T00:00", zone) - 2 * HOUR
    now = start + 30 * HOUR
    record(history, start, 30 * 60, [host(gpu("busy", ["alice"]), gpu(index=1))])
    for _ in range(2):
        usage_table = told(history, day, day, now)
        assert in_hours(usage_table) == {"alice": length}
        assert total(usage_table) == {"used": length, "free": length, "seen": 2 * length}
        roll(history, now)
    history.close()


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK], ids=str)
def test_a_month_ends_at_midnight_in_the_lab(state: Path, zone: tzinfo) -> None:
    history = HistoryWriter(state, zone)
    end = epoch("2026-11-01T00:00", zone)
    record(history, end - 3 * HOUR, 8 * 60, [host(gpu("busy", ["alice"]))])
    now = end + 5 * HOUR
    for _ in range(2):
        usage_table = told(history, "2026-10-01", "2026-11-30", now, "month")
        assert in_hours(usage_table) == {"2026-10": 3, "2026-11": 5}
        assert in_hours(told(history, "2026-10-01", "2026-10-31", now)) == {"alice": 3}
        assert not usage_table.total.unseen
        roll(history, now)
    history.close()


# What was not seen


def test_time_in_which_nobody_looked_is_reported_as_not_seen(history: HistoryWriter) -> None:
    record(history, NOON, 60, [host(gpu("busy", ["alice"]), gpu(index=1))])
    record(history, NOON + 3 * HOUR, 60, [host(gpu("busy", ["alice"]), gpu(index=1))])
    usage_table = told(history, "2026-03-10", "2026-03-10", NOON + 4 * HOUR)
    assert total(usage_table) == {"used": 2, "free": 2, "seen": 4, "unseen": 4}
    assert totals.compute_usage_percent_seen(usage_table.total) == 50


def test_a_host_counts_from_the_minute_on_in_which_it_came(history: HistoryWriter) -> None:
    both = [host(gpu()), host(gpu(key="GPU-9"), name="hydra")]
    record(history, NOON, 120, lambda number: both[: 1 if number < 60 else 2])
    assert not told(history, "2026-03-10", "2026-03-10", NOON + 2 * HOUR).total.unseen


def test_a_host_that_was_never_seen_in_a_month_is_not_missed_in_it(history: HistoryWriter) -> None:
    both = [host(gpu()), host(gpu(key="GPU-9"), name="hydra")]
    record(history, epoch("2026-03-31T23:00"), 120, lambda number: both[: 2 if number < 60 else 1])
    usage_table = told(history, "2026-03-01", "2026-04-30", epoch("2026-04-01T01:00"), "month")
    assert in_hours(usage_table, "unseen") == {}


def test_a_gpu_that_moved_to_another_host_counts_once(history: HistoryWriter) -> None:
    moving, staying = gpu("busy", ["alice"], index=1, key="GPU-m"), gpu(index=0, key="GPU-s")
    before = [host(staying, moving), host(gpu(key="GPU-h"), name="hydra")]
    after = [host(staying), host(gpu(key="GPU-h"), moving, name="hydra")]
    record(history, NOON, 180, lambda number: after if 60 <= number < 120 else before)
    now = NOON + 3 * HOUR
    for _ in range(2):
        usage_table = told(history, "2026-03-10", "2026-03-10", now, "host")
        assert in_hours(usage_table) == {"atlas": 2, "hydra": 1}
        assert total(usage_table) == {"used": 3, "free": 6, "seen": 9}  # and none is missed where it was before
        roll(history, now)


def test_a_gpu_that_was_taken_out_is_not_missed(history: HistoryWriter) -> None:
    record(history, NOON, 120, lambda number: [host(gpu(index=0), *([gpu(index=1)] if number < 60 else []))])
    assert total(told(history, "2026-03-10", "2026-03-10", NOON + 2 * HOUR)) == {"free": 3, "seen": 3}


def test_a_host_that_got_another_name_counts_once(history: HistoryWriter) -> None:
    record(history, NOON, 120, lambda number: [host(gpu("busy", ["alice"]), name="old" if number < 60 else "new")])
    usage_table = told(history, "2026-03-10", "2026-03-10", NOON + 2 * HOUR, "host")
    assert in_hours(usage_table) == {"new": 1, "old": 1}
    assert not usage_table.total.unseen


def test_a_clock_that_jumped_back_or_ahead_counts_nothing_twice(history: HistoryWriter) -> None:
    record(history, NOON, 60, [host(gpu("busy", ["alice"]))])
    record(history, NOON - 30 * 60, 60, [host(gpu("busy", ["bob"]))])
    record(history, NOON + 365 * DAY, 5, [host(gpu("busy", ["carol"]), gpu(index=1))])
    record(history, NOON + HOUR, 30, [host(gpu("busy", ["alice"]))])
    for _ in range(2):
        usage_table = told(history, "2026-03-01", "2026-03-31", NOON + 1.5 * HOUR)
        assert in_hours(usage_table) == {"alice": 1.5, "bob": 0.5}
        assert total(usage_table) == {"used": 2, "seen": 2}
        roll(history, NOON + 1.5 * HOUR)


# Names


SPELLINGS = ["alice", "Alice", "asmith", "ALICE", "alice.smith"]


def test_five_spellings_of_one_name_are_one_person(history: HistoryWriter) -> None:
    people = PeopleDirectory({"asmith": "Alice Smith", "alice": "Alice Smith", "alice.smith": "Alice Smith"})
    record(history, NOON, 100, lambda number: [host(gpu("busy", [SPELLINGS[number // 20]]))])
    usage_table = told(history, "2026-03-10", "2026-03-10", NOON + 2 * HOUR, people=people)
    assert in_hours(usage_table) == {"Alice Smith": round(100 / 60, 6)}
    assert sorted(usage_table.rows[0].names) == sorted(SPELLINGS)


def test_without_aliases_only_the_case_of_letters_makes_no_difference(history: HistoryWriter) -> None:
    record(history, NOON, 100, lambda number: [host(gpu("busy", [SPELLINGS[number // 20]]))])
    usage_table = told(history, "2026-03-10", "2026-03-10", NOON + 2 * HOUR)
    assert {row.name: len(row.names) for row in usage_table.rows} == {"alice": 3, "asmith": 1, "alice.smith": 1}


def test_a_name_that_ps_cut_is_whose_it_can_only_be(history: HistoryWriter) -> None:
    names = ["maximilian", "maximil+", "bo+"]
    record(history, NOON, 60, lambda number: [host(gpu("busy", [names[number // 20]]))])
    people = PeopleDirectory({}, ["maximilian", "bob", "boris"])
    usage_table = told(history, "2026-03-10", "2026-03-10", NOON + HOUR, people=people)
    assert in_hours(usage_table) == {"maximilian": round(2 / 3, 6), "bo+": round(1 / 3, 6)}
