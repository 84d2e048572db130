"""Bad input over the whole of history, through real builds: nothing counts twice, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import pytest

from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.people import PeopleDirectory, PeopleNames
from site_builder.fleet.gpu_models import NameFiles
from site_builder.fleet.summary import find_outdated_hosts_in_summaries
from site_builder.history.reader import HistoryReader
from tests.support.fake_clock import NOON, Machine, machine_in
from tests.support.history_fixtures import minutes, used

ROOT = Path(__file__).parents[2]
# In so many minutes from then on, an hour ends.
LATE, SOME = NOON + 45 * MINUTE, 25


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with machine_in(tmp_path, monkeypatch) as made:
        yield made


def test_a_clock_that_does_not_jump_counts_each_minute_once(machine: Machine) -> None:
    machine.minutes(SOME, LATE)
    daily_usage = machine.tallies()
    assert (minutes(daily_usage), used(daily_usage)) == (SOME, {"alice": SOME})
    assert machine.problems() == []


# Clocks


@pytest.mark.parametrize("back", [HOUR, DAY])
def test_a_clock_that_jumps_back_counts_no_minute_twice_and_loses_none(machine: Machine, back: int) -> None:
    machine.minutes(20, NOON + 50 * MINUTE)
    machine.minutes(30, machine.now - back)
    machine.minutes(10, NOON + 70 * MINUTE)
    seen = {NOON + n * MINUTE for n in range(50, 80)}
    seen |= {NOON + 70 * MINUTE - back + n * MINUTE for n in range(30)}
    assert used(machine.tallies()) == {"alice": len(seen)}
    machine.minutes(1, NOON + 3 * DAY)
    assert used(machine.tallies()) == {"alice": len(seen) + 1}
    assert machine.problems() == []


def test_the_first_account_of_a_minute_stands(machine: Machine) -> None:
    machine.minutes(10)
    machine.use("atlas", "bob")
    machine.minutes(20, NOON)
    assert used(machine.tallies()) == {"alice": 10, "bob": 10}


def test_a_clock_a_year_ahead_and_back_costs_no_minute_and_adds_none(machine: Machine) -> None:
    machine.minutes(SOME, LATE)
    machine.use("atlas", "eve")
    machine.minutes(10, NOON + 365 * DAY)
    machine.use("atlas", "alice")
    machine.minutes(SOME, LATE + SOME * MINUTE)
    assert used(machine.tallies()) == {"alice": 2 * SOME}
    past = HistoryReader(machine.lab.state, timezone.utc)
    (gpu_history,) = past.read_host("atlas", LATE, machine.now, 60).gpus
    assert list(gpu_history.columns["seen"]) == [1] * (2 * SOME)
    assert {*gpu_history.list_people("owner")} == {"alice"}
    past.close()
    assert machine.problems() == []


def test_a_clock_a_year_ahead_deletes_nothing(machine: Machine) -> None:
    for day in range(3):
        machine.minutes(2, NOON + day * DAY)
    machine.minutes(3, NOON + 365 * DAY)
    machine.minutes(2, NOON + 3 * DAY)
    past = HistoryReader(machine.lab.state, timezone.utc)
    for step in (60, 300, 3600):
        (gpu_history,) = past.read_host("atlas", NOON, machine.now, step).gpus
        assert sum(gpu_history.columns["seen"]) == 8
    past.close()


@pytest.mark.parametrize("moment", [0.0, 59.0, 4e9, 2.0**33])
def test_a_clock_that_shows_any_time_costs_neither_page_nor_history(machine: Machine, moment: float) -> None:
    machine.minutes(3)
    machine.minutes(2, moment)
    machine.minutes(3, NOON + 3 * MINUTE)
    daily_usage = machine.tallies()
    assert used(daily_usage)["alice"] - 6 in (0, 2)  # what is told of 1970 is long over
    assert machine.report
    assert machine.report.host_count == 1


# GPUs, hosts and people


def test_a_gpu_that_moves_to_another_host_counts_once_and_on_both(machine: Machine) -> None:
    machine.use("hydra", "bob", "GPU-9")
    machine.minutes(10)
    machine.use("atlas", "alice", "GPU-8")
    machine.use("hydra", "bob", "GPU-0")
    machine.minutes(10)
    machine.minutes(1, NOON + 2 * DAY)
    daily_usage = machine.tallies()
    assert used(daily_usage) == {"alice": 21, "bob": 21}
    assert minutes(daily_usage) == 42
    past = HistoryReader(machine.lab.state, timezone.utc)
    seen_by_host = {
        name: [
            sum(gpu_history.columns["seen"])
            for gpu_history in past.read_host(name, NOON, NOON + HOUR, 300).gpus
            if gpu_history.series.key == key
        ]
        for name, key in (("atlas", "GPU-0"), ("hydra", "GPU-0"))
    }
    past.close()
    assert seen_by_host == {"atlas": [10], "hydra": [10]}


def test_a_host_that_is_renamed_counts_once_also_while_its_old_name_looks_fresh(machine: Machine) -> None:
    machine.minutes(10)
    del machine.hosts["atlas"]
    machine.use("zeus")
    machine.minutes(10)
    daily_usage = machine.tallies()
    assert used(daily_usage) == {"alice": 20}
    assert {(row.host, row.seen.seen) for row in daily_usage.seen} == {("atlas", 10), ("zeus", 10)}


@pytest.mark.parametrize(
    ("hosts", "old"),
    [
        ({"a": (["1", "2"], 10), "b": (["1", "2"], 20)}, {"a"}),
        ({"a": (["1", "2"], 10), "b": (["1"], 20), "c": (["2"], 20)}, {"a"}),
        ({"a": (["1", "2"], 10), "b": (["1"], 20)}, set()),
        ({"a": (["1"], 20), "b": (["1"], 20)}, set()),
        ({"a": ([], 10), "b": ([], 20), "c": (["1"], None)}, set()),
        ({"a": (["1"], None), "b": (["1"], 5)}, {"a"}),
    ],
)
def test_a_host_is_outdated_only_if_others_report_all_of_its_gpus_later(
    hosts: dict[str, tuple[list[str], float | None]], old: set[str]
) -> None:
    assert find_outdated_hosts_in_summaries(hosts) == old


def test_five_spellings_of_one_user_are_one_person(machine: Machine) -> None:
    (machine.lab.data / "aliases.csv").write_text("asmith, alice, Alice Smith\n")
    spellings = ["alice", "Alice", "asmith", "ASMITH", "Alice Smith"]
    machine.lab.book({"atlas": [{"name": "alice smith", "date": "2026-03-11", "from": "2026-03-10"}]})
    for name in spellings:
        machine.use("atlas", name)
        machine.minutes(2)
    daily_usage = machine.tallies()
    people = PeopleDirectory(NameFiles(machine.lab.data, None).read_names()[0])
    called = PeopleNames(people, {row.person for row in daily_usage.shares})
    for what, expected in (("used", 10), ("booked", 10), ("unused", 0)):
        sums: dict[str, float] = {}
        for name, count in used(daily_usage, what).items():
            sums[called.find_display_name(name)] = sums.get(called.find_display_name(name), 0) + count
        assert sums == ({"Alice Smith": expected} if expected else {})


# Builders


def test_two_builders_count_each_minute_once(machine: Machine) -> None:
    machine.builders.append(machine.builder())
    machine.minutes(SOME, LATE)
    assert used(machine.tallies()) == {"alice": SOME}
    assert machine.problems() == []


RECORDS = """
import sys
from datetime import timezone
from pathlib import Path
from site_builder.history.writer import HistoryWriter
from tests.support.history_fixtures import gpu, host
history = HistoryWriter(Path(sys.argv[1]), timezone.utc)
hosts = [host(gpu("busy", ["alice"], use=50), name=f"gpu{n}") for n in range(8)]
for number in range(150):
    at = int(sys.argv[2]) + 60 * number
    while history.recorded_at != at:  # the other may keep it locked for long on a slow machine
        history.record(hosts, at)
    history.roll_up(at, 0.01)
while not history.roll_up(at + 3 * 86400, 60):
    pass
"""


def test_two_processes_at_the_same_time_count_each_minute_once(machine: Machine) -> None:
    command = [sys.executable, "-c", RECORDS, str(machine.lab.state), str(NOON)]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    assert [process.wait(300) for process in processes] == [0, 0]
    daily_usage = machine.tallies(NOON + 3 * DAY)
    assert (minutes(daily_usage), used(daily_usage)) == (8 * 150, {"alice": 8 * 150})


def test_another_builder_takes_up_where_the_last_one_was_killed(machine: Machine) -> None:
    machine.minutes(SOME, LATE)
    machine.builders = [machine.builder()]  # the first is not closed, as one that is killed
    machine.minutes(10)
    assert used(machine.tallies()) == {"alice": SOME + 10}
