"""The past of the simulated lab: settled by its options, kept as a builder would have, with no seam to its story."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timezone, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.demo import history, scenario
from site_builder.demo.past_weeks import DOWN_HOSTS
from site_builder.demo.scenario import LEAD_TIME_S, build_scenarios
from site_builder.history.block_format import unpack_gpu_series
from site_builder.history.buckets import RETENTION_DAYS
from site_builder.history.model import GPU_STATES, TAKEN_STATES
from site_builder.history.reader import HistoryReader
from site_builder.history.usage_sums import UNITS_PER_MINUTE
from site_builder.history.writer import HistoryWriter
from tests.support.command_line import run_gpuboard
from tests.support.history_fixtures import epoch, folder, minutes, roll, used
from tests.support.pace import check, own

# A Tuesday afternoon, not on the hour.
NOW = epoch("2026-09-22T14:37") + 12
EVER = (date(1990, 1, 1), date(2100, 1, 1))
BERLIN = ZoneInfo("Europe/Berlin")
ALL = len(scenario.MACHINES)


def filled(
    state: Path, hosts: int = ALL, seed: int = 1, after: float = 0, zone: tzinfo = timezone.utc, now: int = NOW
) -> HistoryReader:
    history.fill_history(state, zone, now, hosts, seed, after)
    return HistoryReader(state, zone)


class Past(NamedTuple):
    """A history, and the seconds that this process worked to fill it."""

    reader: HistoryReader
    seconds: float


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    began = own()
    reader = filled(folder(tmp_path_factory.mktemp("past")))
    yield Past(reader, own() - began)
    reader.close()


@pytest.fixture(scope="module")
def whole(past: Past) -> HistoryReader:
    """The past of the whole lab."""
    return past.reader


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The past of a lab of two hosts, for tests that write nothing."""
    state = folder(tmp_path_factory.mktemp("two"))
    filled(state, hosts=2).close()
    return state


@pytest.fixture
def two_hosts_copy(two_hosts: Path, tmp_path: Path) -> Path:
    return shutil.copytree(two_hosts, tmp_path / "copy")


def content(state: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables."""
    connection = sqlite3.connect(state / "history.db")
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    rows_by_table = {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}  # noqa: S608 # ours
    connection.close()
    return rows_by_table


# Settled


@pytest.mark.slow
def test_the_same_options_are_the_same_past(tmp_path: Path, two_hosts: Path) -> None:
    state = folder(tmp_path)
    filled(state, hosts=2).close()
    assert content(state) == content(two_hosts)


@pytest.mark.slow
def test_another_seed_is_another_past(tmp_path: Path, two_hosts: Path) -> None:
    usages = []
    for reader in (HistoryReader(two_hosts, timezone.utc), filled(folder(tmp_path), hosts=2, seed=2)):
        usages.append(used(reader.read_daily_usage(*EVER, NOW)))
        reader.close()
    assert usages[0] != usages[1]


@pytest.mark.slow
def test_a_history_that_is_there_stays_as_it_is(two_hosts: Path, two_hosts_copy: Path) -> None:
    filled(two_hosts_copy, hosts=2).close()
    filled(two_hosts_copy, hosts=1, seed=2).close()
    assert content(two_hosts_copy) == content(two_hosts)


@pytest.mark.slow
def test_a_host_has_the_same_past_in_a_larger_lab(two_hosts: Path, whole: HistoryReader) -> None:
    reader = HistoryReader(two_hosts, timezone.utc)
    small = reader.read_daily_usage(*EVER, NOW)
    reader.close()
    large = whole.read_daily_usage(*EVER, NOW)
    hosts = {row.host for row in small.seen}
    assert [row for row in large.shares if row.host in hosts] == small.shares
    assert [row for row in large.seen if row.host in hosts] == small.seen


@pytest.mark.slow
def test_the_simulated_history_is_there_at_once(past: Past) -> None:
    check(past.seconds, 6)


# As a builder would have kept it


@pytest.mark.slow
def test_five_weeks_are_there_of_each_host(whole: HistoryReader) -> None:
    assert whole.list_hosts() == sorted(machine.name for machine in scenario.MACHINES)
    for name in whole.list_hosts():
        (first, *_) = whole.read_host(name, NOW - 36 * DAY, NOW, 3600).gpus
        seen = [at for at, count in enumerate(first.columns["seen"]) if count]
        assert seen[0] <= 24
        assert len(seen) > 30 * 24


def test_the_past_ends_now(whole: HistoryReader) -> None:
    for step in (60, 300, 3600):
        host_history = whole.read_host("atlas", NOW - HOUR, NOW + DAY, step)
        last = max(at for at, count in enumerate(host_history.gpus[0].columns["seen"]) if count)
        assert host_history.since + last * step <= NOW


@pytest.mark.slow
def test_all_steps_say_the_same(whole: HistoryReader) -> None:
    since = NOW // DAY * DAY - DAY
    for name in whole.list_hosts():
        sums_by_step = []
        for step in (60, 300, 3600):
            host_history = whole.read_host(name, since, NOW, step)
            sums_by_step.append(
                [[sum(gpu.columns[state]) for state in ("seen", *GPU_STATES, "promised")] for gpu in host_history.gpus]
            )
        assert sums_by_step[0] == sums_by_step[1] == sums_by_step[2]


def test_the_sums_are_those_of_the_minutes(whole: HistoryReader) -> None:
    daily_usage = whole.read_daily_usage(*EVER, NOW)
    start = NOW // DAY * DAY - RETENTION_DAYS[300] * DAY
    by_host = Counter[str]()
    for row in daily_usage.seen:
        by_host[row.host] += row.seen.seen
    for name in whole.list_hosts():
        drawn = whole.read_host(name, start, NOW, 300)
        assert sum(sum(gpu.columns["seen"]) for gpu in drawn.gpus) == by_host[name]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["2026-09-22T00:00", "2026-09-22T00:01", "2026-09-22T14:00", "2026-10-25T23:59"])
@pytest.mark.parametrize("zone", [BERLIN, ZoneInfo("Asia/Kathmandu")])
def test_the_simulated_history_is_complete_at_any_start_time_and_zone(
    tmp_path: Path, moment: str, zone: tzinfo
) -> None:
    now = epoch(moment)
    told = filled(folder(tmp_path), hosts=1, zone=zone, now=now)
    start = now // DAY * DAY - RETENTION_DAYS[300] * DAY
    assert minutes(told.read_daily_usage(*EVER, now)) == 8 * (now - start) // MINUTE
    for step, since in ((60, now - 2 * DAY), (300, start), (3600, start)):
        host_history = told.read_host("atlas", since, now, step)
        assert sum(sum(gpu.columns["seen"]) for gpu in host_history.gpus) == 8 * (now - since) // MINUTE
    told.close()


def test_states_and_shares_of_the_simulated_history_add_up(whole: HistoryReader) -> None:
    daily_usage = whole.read_daily_usage(*EVER, NOW)
    for row in daily_usage.seen:
        assert row.seen.seen == sum(getattr(row.seen, state) for state in GPU_STATES)
    taken = sum(minutes(daily_usage, state) for state in TAKEN_STATES)
    assert (
        sum(row.share.used for row in daily_usage.shares)
        == (taken - minutes(daily_usage, "unowned")) * UNITS_PER_MINUTE
    )
    assert sum(row.share.held for row in daily_usage.shares) == minutes(daily_usage, "held") * UNITS_PER_MINUTE
    assert all(row.share.unused <= row.share.booked for row in daily_usage.shares)


@pytest.mark.slow
def test_the_sums_by_the_hour_are_those_by_the_day(whole: HistoryReader) -> None:
    daily_usage, hours = whole.read_daily_usage(*EVER, NOW), whole.read_hourly_usage(NOW - 40 * DAY, NOW)
    assert sum(seen.seen for seen in hours.seen.values()) == minutes(daily_usage)
    by_person = Counter[str]()
    for (_, _, person), share in hours.shares.items():
        by_person[person] += share.used
    assert {person: round(units / UNITS_PER_MINUTE, 6) for person, units in by_person.items() if units} == used(
        daily_usage
    )


@pytest.mark.slow
def test_days_are_those_of_the_zone(tmp_path: Path) -> None:
    daily_usage = filled(folder(tmp_path), hosts=1, zone=BERLIN).read_daily_usage(*EVER, NOW)
    assert max(row.day for row in daily_usage.seen) == datetime.fromtimestamp(NOW, BERLIN).date()
    by_day = Counter[date]()
    for row in daily_usage.seen:
        by_day[row.day] += row.seen.seen
    assert by_day[date(2026, 9, 10)] == 8 * 24 * 60


def test_a_builder_goes_on_with_it_and_counts_nothing_again(two_hosts_copy: Path) -> None:
    history = HistoryWriter(two_hosts_copy, timezone.utc)
    before = history.read_daily_usage(*EVER, NOW)
    for now in (NOW, NOW + DAY, NOW + 2 * DAY):
        roll(history, now)
        daily_usage = history.read_daily_usage(*EVER, now)
        assert (minutes(daily_usage), used(daily_usage)) == (minutes(before), used(before))
    drawn = history.read_host("atlas", NOW // DAY * DAY, NOW, 300)
    assert sum(drawn.gpus[0].columns["seen"]) == (NOW - NOW // DAY * DAY) // MINUTE
    history.close()


# What happened in it


@pytest.mark.parametrize("name", [down_host for down_host in DOWN_HOSTS if down_host != scenario.LEGACY_HOST])
def test_a_host_that_was_down_has_a_gap_and_no_zeros(whole: HistoryReader, name: str) -> None:
    begins, ends = (max(-35 * DAY, min(0, moment)) for moment in DOWN_HOSTS[name])
    for step in (300, 3600):
        inside = whole.read_host(name, NOW + begins + HOUR, NOW + ends - HOUR, step)
        assert inside.gpus == ()
        assert set(inside.list_values("load")) == {None}
    assert whole.read_host(name, NOW + begins - DAY, NOW + begins - HOUR, 300).gpus


def test_people_have_habits_of_their_own(whole: HistoryReader) -> None:
    hours = used(whole.read_daily_usage(*EVER, NOW))
    assert set(hours) == set(scenario.PEOPLE)
    assert max(hours.values()) > 1.8 * min(hours.values())


def test_nights_and_weekends_are_quieter(whole: HistoryReader) -> None:
    taken, seen = Counter[str](), Counter[str]()
    for (at, _), hour_usage in whole.read_hourly_usage(NOW - 30 * DAY, NOW - 3 * DAY).seen.items():
        local = datetime.fromtimestamp(at, timezone.utc)
        when = "weekend" if local.weekday() >= 5 else "day" if 10 <= local.hour < 19 else "night"
        taken[when] += hour_usage.busy + hour_usage.held + hour_usage.conflict
        seen[when] += hour_usage.seen
    share = {when: taken[when] / seen[when] for when in seen}
    assert share["day"] > share["night"] > 0.2
    assert share["day"] > 1.1 * share["weekend"]


def test_there_is_waste_of_each_kind(whole: HistoryReader) -> None:
    daily_usage = whole.read_daily_usage(*EVER, NOW)
    assert minutes(daily_usage, "held") > 0.05 * minutes(daily_usage)
    assert sum(row.share.unused for row in daily_usage.shares) > 0
    assert minutes(daily_usage, "conflict") > 0
    (unused,) = (gpu for gpu in whole.read_host("perseus", NOW - 35 * DAY, NOW, 3600).gpus if gpu.series.index == 7)
    assert sum(unused.columns["free"]) == sum(unused.columns["seen"]) > 30 * 24 * 60


def test_an_instance_has_a_past_of_its_own_of_which_its_use_is_not_known(whole: HistoryReader) -> None:
    drawn = whole.read_host("gemini", NOW - 7 * DAY, NOW, 3600)
    assert [gpu.series.index for gpu in drawn.gpus] == ["0:0", "0:1", "0:2", "0:3", 1]
    assert [gpu.series.model for gpu in drawn.gpus][::3] == ["H100 3g.40gb", "H100 1g.10gb"]
    first, *_, last = drawn.gpus
    assert first.series.key.startswith("MIG-")
    assert set(first.list_values("use")) == {None}
    assert any(first.columns["busy"])
    assert sum(first.columns["held"]) == 0
    assert any(last.list_values("use"))


def test_gpus_of_two_makers_on_a_host_have_each_their_past(whole: HistoryReader) -> None:
    drawn = whole.read_host("centaurus", NOW - 7 * DAY, NOW, 3600)
    assert [gpu.series.index for gpu in drawn.gpus] == [0, 1, "amd0", "amd1"]
    assert [gpu.series.model for gpu in drawn.gpus][1:3] == ["RTX A6000 48 GB", "RX 7900 XTX 24 GB"]
    assert all(any(gpu.list_values("use")) for gpu in drawn.gpus)


# No seam


def people_at(after: float) -> dict[tuple[str, str], set[str]]:
    """Who is on which GPU, by the story itself."""
    people_by_gpu: dict[tuple[str, str], set[str]] = {}
    for story in build_scenarios(scenario.build_scenario_machines(ALL), 1):
        lost = story.list_lost_gpus(after)
        for job in story.list_jobs_at(after):
            for gpu in job.gpus:
                if gpu not in lost:
                    label = story.machine.units[gpu].label
                    people_by_gpu.setdefault((story.machine.name, label), set()).add(job.person)
    return people_by_gpu


def test_who_was_there_last_is_who_is_there_when_it_begins(whole: HistoryReader) -> None:
    check_last_people(whole, 0)


@pytest.mark.slow
def test_who_was_there_last_is_who_is_there_when_it_begins_later(tmp_path: Path) -> None:
    reader = filled(folder(tmp_path), after=5 * HOUR)
    check_last_people(reader, 5 * HOUR)
    reader.close()


def check_last_people(told: HistoryReader, after: float) -> None:
    expected, recorded_people = people_at(after), {}
    for name in told.list_hosts():
        for _, sample in told.read_minutes(name, 1, NOW, NOW - 10 * MINUTE):
            for gpu_sample in sample.gpus:
                if gpu_sample.occupancy.people.users:
                    recorded_people[name, str(gpu_sample.series.index)] = set(gpu_sample.occupancy.people.users)
    silent = {name for name in told.list_hosts() if not told.read_minutes(name, 1, NOW, NOW - 10 * MINUTE)}
    expected = {key: people for key, people in expected.items() if key[0] not in silent}
    same = sum(people == recorded_people.get(key) for key, people in expected.items())
    assert same >= len(expected) - 2  # somebody may come or go in the last minutes
    assert set(recorded_people) - set(expected) == set() or len(set(recorded_people) - set(expected)) <= 2


def test_the_lab_is_as_full_before_its_story_begins_as_after(whole: HistoryReader) -> None:
    def share(since: float, until: float) -> float:
        hour_usages = whole.read_hourly_usage(since, until).seen.values()
        return sum(hour_usage.busy + hour_usage.held + hour_usage.conflict for hour_usage in hour_usages) / sum(
            hour_usage.seen for hour_usage in hour_usages
        )

    edge = NOW - LEAD_TIME_S
    assert share(edge, edge + 4 * HOUR) > 0.8 * share(edge - 4 * HOUR, edge)


@pytest.mark.slow
def test_the_first_build_goes_on_with_the_same_gpus(tmp_path: Path) -> None:
    assert run_gpuboard(tmp_path, "demo", "--once", "--hosts", "3", "--folder", "lab").returncode == 0
    told = HistoryReader(tmp_path / "lab/state", timezone.utc)
    now = time.time() + 60
    for name in told.list_hosts():
        drawn = told.read_host(name, now - DAY, now, 60)
        assert len(drawn.gpus) == next(
            machine_or_series.gpu_count for machine_or_series in scenario.MACHINES if machine_or_series.name == name
        )
        assert sum(bool(count) for count in drawn.gpus[0].columns["seen"]) >= 1438
    connection = sqlite3.connect(tmp_path / "lab/state/history.db")
    shapes = connection.execute("SELECT host, gpus FROM shape").fetchall()
    # a lost GPU does not tell how much memory it has
    assert (
        len(
            {
                (name, tuple(machine_or_series[:3] for machine_or_series in unpack_gpu_series(gpus)))
                for name, gpus in shapes
            }
        )
        == 3
    )
    assert connection.execute("SELECT count(*) FROM minute").fetchone() >= (1,)
    connection.close()
    told.close()
