"""What happened to GPUs, in history.db: told once by however many builders, bounded, and read back as time lines."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path
from typing import Any

import orjson
import pytest

from site_builder.core.formatting import DAY, HOUR, MINUTE
from site_builder.core.model import Xid
from site_builder.health import store as health_store
from site_builder.health.events import describe_event
from site_builder.health.model import BEFORE_FIRST_CHECK, PackedHealthMetrics
from site_builder.health.store import StoredEventReader
from site_builder.history.block_format import DamagedBlockError
from site_builder.history.reader import HistoryReader
from tests.support import pace
from tests.support.health_fixtures import NOON, A, B, Keeper, gpu, signed
from tests.support.history_fixtures import folder, roll
from tests.support.history_fixtures import gpu as sample
from tests.support.history_fixtures import host as host_of

LOST = {"lost": "GPU is lost"}


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(folder(tmp_path))
    yield made
    made.close()


@pytest.fixture
def other(keeper: Keeper) -> Iterator[Keeper]:
    """A second builder on the same history."""
    made = Keeper(keeper.history.path.parent)
    yield made
    made.close()


# Told once


def test_events_are_read_back_as_they_were_written(keeper: Keeper) -> None:
    keeper.look(NOON, gpu())
    keeper.look(NOON + 60, gpu(**LOST))
    keeper.look(NOON + 120, gpu())
    (line,) = keeper.log.read_timelines("atlas", (A,), NOON + 120, 20).timelines
    (event,) = line.events
    assert (event.kind, event.began_at, event.ended_at, event.value) == (
        "lost",
        NOON + 60,
        NOON + 120,
        ("GPU is lost",),
    )
    assert (line.gpu_key, line.event_count) == (A, 1)
    assert StoredEventReader(HistoryReader(keeper.history.path.parent, timezone.utc)).read_events(NOON, NOON + DAY) == [
        event
    ]


def test_a_healthy_host_has_the_time_since_when_it_is_checked(keeper: Keeper) -> None:
    keeper.look(NOON, gpu())
    keeper.look(NOON + 60, gpu())
    assert keeper.log.read_timelines("atlas", (A,), NOON + DAY, 20) == (NOON, (), 0)
    assert keeper.log.read_timelines("hydra", (B,), NOON + DAY, 20) == (None, (), 0)


def test_a_minute_is_looked_at_once(keeper: Keeper) -> None:
    keeper.look(NOON, gpu())
    keeper.look(NOON + 20, gpu(**LOST))
    assert keeper.rows == []
    keeper.look(NOON + 60, gpu(**LOST))
    assert keeper.told() == [(A, "lost")]


def test_two_builders_on_one_history_write_no_event_twice(keeper: Keeper, other: Keeper) -> None:
    for number in range(12):
        gpus = gpu(failed=number % 4 == 1, uncorrected=number, uncorrected_ever=number)
        for current_keeper in (keeper, other):
            current_keeper.look(NOON + 60 * number + (5 if current_keeper is other else 0), gpus)
    (failed, count) = keeper.told()
    assert {failed[1], count[1]} == {"failed", "uncorrected"}
    assert [row[5] for row in keeper.rows if row[4] == "uncorrected"] == [b"[11,11]"]


def test_what_another_builder_wrote_before_it_ended_is_ended_by_us(keeper: Keeper, other: Keeper) -> None:
    keeper.look(NOON, gpu())
    other.look(NOON + 30, gpu(**LOST))
    other.close()
    keeper.look(NOON + 60, gpu())
    assert [row[8] for row in keeper.rows] == [NOON + 60]


def test_a_builder_that_is_late_undoes_nothing(keeper: Keeper, other: Keeper) -> None:
    keeper.look(NOON, gpu())
    other.look(NOON, gpu())
    keeper.look(NOON + 60, gpu(failed=True))
    other.look(NOON + 70, gpu(), taken=NOON + 40)
    assert [row[8] for row in keeper.rows] == [None]
    other.look(NOON + 130, gpu(), taken=NOON + 125)
    assert [row[8] for row in keeper.rows] == [NOON + 120]


def test_a_builder_that_begins_anew_goes_on_where_the_last_one_was(keeper: Keeper) -> None:
    state = keeper.history.path.parent
    for number, gpus in enumerate([gpu(), gpu(**LOST), gpu(**LOST), gpu(), gpu(**LOST)]):
        new_keeper = Keeper(state)
        new_keeper.look(NOON + 60 * number, gpus)
        new_keeper.close()
    assert [(row[1], row[4], row[6], row[8]) for row in keeper.rows] == [(1, "lost", NOON + 60, None)]


def test_a_builder_that_fails_in_between_writes_each_event_once(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.look(NOON, gpu())
    real = health_store.insert_stored_events

    def full(connection: sqlite3.Connection, events: Any) -> int:  # noqa: ANN401
        real(connection, events)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(health_store, "insert_stored_events", full)
    keeper.history.record([host_of(sample())], NOON + 60)
    keeper.log.record({"atlas": signed(gpu(uncorrected=2, uncorrected_ever=2), taken=NOON + 60)}, NOON + 60)
    assert ["health" in problem.what for problem in keeper.history.problems] == [True]
    assert keeper.rows == []
    monkeypatch.undo()
    keeper.look(NOON + 120, gpu(uncorrected=2, uncorrected_ever=2))
    ((*_, at, since, until, by),) = keeper.rows
    assert (at, since, until, by) == (NOON + 120, NOON, NOON + 120, None)


# Xid errors


OFF_BUS = Xid("17:00", 79, NOON + 65, NOON + 65, 1, "GPU has fallen off the bus.")


def test_an_xid_error_is_recorded_once_over_restarts_and_by_two_builders(keeper: Keeper, other: Keeper) -> None:
    state = keeper.history.path.parent
    keeper.look(NOON, gpu())
    keeper.look(NOON + 120, gpu(), xids=[OFF_BUS])
    other.look(NOON + 125, gpu(), xids=[OFF_BUS])
    for number in range(3):
        new_keeper = Keeper(state)
        new_keeper.look(NOON + 180 + 60 * number, gpu(), xids=[OFF_BUS, OFF_BUS._replace(bus="20:00")][: number + 1])
        new_keeper.close()
    assert [(row[2], row[4], row[6], row[8]) for row in keeper.rows] == [
        (A, "xid-79", NOON + 60, NOON + 60),
        ("", "xid-79", NOON + 60, NOON + 60),
    ]
    (host_line, line) = keeper.log.read_timelines("atlas", (A,), NOON + DAY, 20).timelines
    assert (line.gpu_key, line.events[0].value) == (A, (1, "GPU has fallen off the bus.", None))
    assert describe_event(host_line.events[0]) == "Xid 79 (PCI 20:00): fell off the bus"


def test_an_xid_error_that_is_logged_again_stays_one_row(keeper: Keeper) -> None:
    keeper.look(NOON, gpu())
    for number in range(1, 6):
        keeper.look(NOON + 60 * number, gpu(), xids=[OFF_BUS._replace(last=NOON + 65 * number, times=number)])
    ((*_, kind, value, at, _, until, _),) = keeper.rows
    assert (kind, value, at, until) == ("xid-79", b'[5,"GPU has fallen off the bus.",null]', NOON + 60, NOON + 300)


def test_a_host_without_xid_errors_is_stored_as_an_older_gpuboard_stores_it(keeper: Keeper) -> None:
    keeper.look(NOON, gpu())
    (packed, state) = keeper.history.connect().execute("SELECT signs, state FROM counter").fetchone()
    assert (len(orjson.loads(packed)), len(orjson.loads(state))) == (3, 5)
    keeper.look(NOON + 60, gpu(), xids=[OFF_BUS])
    (packed, state) = keeper.history.connect().execute("SELECT signs, state FROM counter").fetchone()
    assert (len(orjson.loads(packed)), len(orjson.loads(state))) == (4, 6)


@pytest.mark.parametrize(
    "known",
    [7, [7], [[]], [[[], []]], [[["17:00", 79, "x", 1, 1, ""], []]], [[["17:00", 79, 1, 1, 1, ""], [1] * 10]], [{}]],
)
def test_damaged_xid_errors_in_a_state_are_begun_anew(keeper: Keeper, known: object) -> None:
    keeper.look(NOON, gpu())
    keeper.look(NOON + 60, gpu(), xids=[OFF_BUS])
    (state,) = keeper.history.connect().execute("SELECT state FROM counter").fetchone()
    damaged = orjson.dumps([*orjson.loads(state)[:5], known])
    keeper.history.connect().execute("UPDATE counter SET state=?", (damaged,))
    keeper.look(NOON + 120, gpu(), xids=[OFF_BUS._replace(times=2)])
    keeper.look(NOON + 180, gpu(), xids=[OFF_BUS._replace(times=2)])
    numbers = [row[1] for row in keeper.rows]
    assert len(numbers) == len(set(numbers)) == 2


KILLED = """
import os, sys
from pathlib import Path
from tests.support.health_fixtures import NOON, Keeper, gpu
from site_builder.health import store
real = store.insert_stored_events
def insert_and_die(connection, events):
    real(connection, events)
    os.kill(os.getpid(), 9)
store.insert_stored_events = insert_and_die
Keeper(Path(sys.argv[1])).look(NOON + 60, gpu(failed=True))
"""


def test_a_builder_that_is_killed_in_between_leaves_nothing_half(keeper: Keeper) -> None:
    keeper.look(NOON, gpu())
    keeper.close()
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", KILLED, str(keeper.history.path.parent)]
    result = subprocess.run(command, env={**os.environ, "PYTHONPATH": root}, cwd=root, check=False)
    assert result.returncode == -9
    assert keeper.rows == []
    keeper.look(NOON + 120, gpu(failed=True))
    assert [(row[1], row[4], row[6]) for row in keeper.rows] == [(1, "failed", NOON + 120)]


# Hosts that are away, and GPUs that move


def test_what_happened_while_a_host_was_away_happened_in_between(keeper: Keeper) -> None:
    keeper.look(NOON, gpu())
    for number in range(1, 4):
        keeper.build(NOON + 60 * number, {"atlas": None})
    keeper.look(NOON + 240, gpu(failed=True))
    ((*_, at, since, until, _),) = keeper.rows
    assert (at, since, until) == (NOON + 240, NOON, None)


def test_a_host_that_comes_back_as_it_was_has_no_events(keeper: Keeper) -> None:
    keeper.look(NOON, gpu(power=None))
    keeper.build(NOON + 60, {"atlas": None})
    keeper.build(NOON + 120, {})
    keeper.look(NOON + 3 * HOUR, gpu(power=None))
    assert keeper.rows == []


def test_a_gpu_that_moves_takes_its_time_line_along(keeper: Keeper) -> None:
    both: dict[str, PackedHealthMetrics | None] = {
        "atlas": signed(gpu(), gpu(B, index=1)),
        "hydra": signed(gpu("GPU-c")),
    }
    keeper.build(NOON, both)
    keeper.build(NOON + 60, {**both, "atlas": signed(gpu(), gpu(B, index=1, uncorrected=3, uncorrected_ever=3))})
    keeper.build(NOON + 120, {**both, "atlas": signed(gpu())})
    keeper.build(NOON + 180, {"atlas": signed(gpu()), "hydra": signed(gpu("GPU-c"), gpu(B, index=1))})
    host_timelines = keeper.log.read_timelines("hydra", ("GPU-c", B), NOON + 240, 20)
    assert [[(event.host, describe_event(event)) for event in line.events] for line in host_timelines.timelines] == [
        [
            ("hydra", "new in this host, previously in atlas"),
            ("atlas", "uncorrected ECC errors: 3 more (now 3)"),
        ]
    ]
    assert keeper.told("atlas", NOON + 240) == [(B, "gone"), (B, "uncorrected")]


def test_where_a_gpu_was_is_known_also_where_nothing_ever_happened_to_it(keeper: Keeper) -> None:
    for number in range(3):
        keeper.history.record([host_of(sample(key=B), name="atlas")], NOON + 60 * number)
    roll(keeper.history, NOON + HOUR)
    keeper.look(NOON + HOUR, gpu(), name="hydra")
    keeper.look(NOON + HOUR + 60, gpu(), gpu(B, index=1), name="hydra")
    assert [row[5] for row in keeper.rows] == [b'["atlas"]']


def test_what_another_host_claims_of_a_gpu_is_not_in_its_time_line(keeper: Keeper) -> None:
    keeper.build(NOON, {"atlas": signed(gpu()), "liar": signed(gpu("GPU-c"))})
    for number in range(1, 30):
        claim = signed(gpu(failed=bool(number % 2), index=number % 2))
        keeper.build(NOON + 660 * number, {"atlas": signed(gpu()), "liar": claim})
    assert keeper.told("atlas") == []
    assert keeper.told("liar", NOON + DAY, 50, A) != []


# Hostile hosts, and bounds


def test_gpus_that_are_others_each_minute_stay_within_bounds(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_store, "MAX_EVENTS_PER_HOST", 300)
    for number in range(8):
        keeper.look(
            NOON + HOUR * number, *(gpu(f"GPU-{number}-{gpu_number}", index=gpu_number) for gpu_number in range(200))
        )
    host_timelines = keeper.log.read_timelines(
        "atlas", [f"GPU-7-{gpu_number}" for gpu_number in range(200)], NOON + DAY, 2
    )
    assert len(keeper.rows) <= 300 + health_store.MAX_EVENTS_AT_ONCE
    assert host_timelines.omitted_gpu_count > 0
    assert len(host_timelines.timelines) <= 200 + health_store.MAX_FORMER_GPUS
    ((state,),) = keeper.history.connect().execute("SELECT state FROM counter").fetchall()
    assert len(state) < 400_000


def test_a_gpu_that_keeps_failing_keeps_its_last_and_its_ongoing_events(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_store, "MAX_EVENTS_PER_GPU", {1: 5, 2: 5, 0: 10})
    for number in range(60):
        keeper.look(NOON + HOUR * number, gpu(failed=True, heat=bool(number % 2), power=bool(number % 2)))
    kinds = [row[4] for row in keeper.rows]
    assert 10 <= len(kinds) <= 20
    assert (keeper.rows[0][4], keeper.rows[0][7], keeper.rows[0][8]) == ("failed", BEFORE_FIRST_CHECK, None)
    assert max(row[1] for row in keeper.rows) in {row[1] for row in keeper.rows[-2:]}


def test_errors_of_programs_take_no_room_from_other_events(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_store, "MAX_EVENTS_PER_GPU", {1: 5, 2: 7, 0: 10})
    keeper.look(NOON, gpu())
    keeper.look(NOON + 60, gpu(**LOST), xids=[OFF_BUS])
    for number in range(60):
        at = NOON + HOUR * (number + 1)
        keeper.look(at, gpu(), xids=[Xid("17:00", 31, at, at, 1, "MMU Fault")])
    kinds = [row[4] for row in keeper.rows]
    assert kinds[:2] == ["lost", "xid-79"]
    assert 7 <= kinds.count("xid-31") <= 9
    assert keeper.rows[-1][6] == NOON + 60 * HOUR


def test_a_loud_host_takes_no_room_from_the_others(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_store, "MAX_EVENTS", 50)
    keeper.build(
        NOON,
        {
            "loud": signed(*(gpu(f"GPU-{gpu_number}", index=gpu_number) for gpu_number in range(100))),
            "atlas": signed(gpu()),
        },
    )
    loud = signed(*(gpu(f"GPU-{gpu_number}", index=gpu_number, failed=True) for gpu_number in range(100)))
    keeper.build(NOON + 60, {"loud": loud, "atlas": signed(gpu(failed=True))})
    keeper.build(NOON + HOUR, {"loud": loud, "atlas": signed(gpu(failed=True))})
    assert keeper.told() == [(A, "failed")]
    assert len(keeper.rows) <= 50


@pytest.mark.parametrize("text", ["<script>", "\x00\x1b[31m", "'; DROP TABLE event; --", "{0.__class__}", "é" * 80])
def test_hostile_words_are_kept_as_words(keeper: Keeper, text: str) -> None:
    keeper.look(NOON, gpu(f"GPU {text}"))
    keeper.look(NOON + 60, gpu(f"GPU {text}", lost=text, recovery=text))
    host_timelines = keeper.log.read_timelines("atlas", (f"GPU {text}",), NOON + 60, 20)
    assert {event.value for event in host_timelines.timelines[0].events} == {(text,)}
    assert all(text in describe_event(event) for event in host_timelines.timelines[0].events)


def test_after_two_years_events_go_and_hosts_that_are_away_as_long(keeper: Keeper) -> None:
    keeper.build(NOON, {"atlas": signed(gpu()), "old": signed(gpu(B))})
    keeper.build(NOON + 60, {"atlas": signed(gpu(uncorrected_ever=1)), "old": None})
    for day in range(1, 800):
        keeper.history.connect().execute("INSERT OR IGNORE INTO rolled VALUES(?, 0, 1)", (NOON + DAY * day,))
    assert keeper.history.roll_up(NOON + 800 * DAY, 60)
    assert keeper.rows == []
    assert keeper.history.connect().execute("SELECT host FROM counter").fetchall() == [("atlas",)]


# Damage, and faults of our own


@pytest.mark.parametrize("damage", [b"", b"\xff", b"[]", b"[1,2,3,4,5]", b'[0,0,0,null,{"GPU-a":[0,null,[1],{}]}]'])
def test_a_state_that_is_damaged_is_begun_anew(keeper: Keeper, damage: bytes) -> None:
    keeper.look(NOON, gpu())
    keeper.look(NOON + 60, gpu(failed=True))
    keeper.history.connect().execute("UPDATE counter SET state=?", (damage,))
    keeper.look(NOON + 120, gpu(failed=True, pending=True))
    assert [(row[1], row[4], row[8] is None) for row in keeper.rows] == [
        (1, "failed", False),
        (2, "pending", True),
        (3, "failed", True),
    ]
    keeper.look(NOON + 180, gpu())
    assert [row[8] for row in keeper.rows[1:]] == [NOON + 180] * 2


def test_a_value_that_is_damaged_is_not_known(keeper: Keeper) -> None:
    keeper.look(NOON, gpu())
    keeper.look(NOON + 60, gpu(uncorrected_ever=1))
    keeper.history.connect().execute("UPDATE event SET value=x'ff00'")
    (line,) = keeper.log.read_timelines("atlas", (A,), NOON + 60, 20).timelines
    assert describe_event(line.events[0]) == "uncorrected ECC errors: ? more (now ?)"


def test_a_host_that_we_fail_at_does_not_cost_the_others(keeper: Keeper) -> None:
    bad = PackedHealthMetrics(b"not json", NOON)
    keeper.history.record([host_of(sample())], NOON)
    keeper.log.record({"bad": bad, "atlas": signed(gpu(failed=True))}, NOON)
    assert [
        "bad" in problem.what and DamagedBlockError.__name__ in problem.what for problem in keeper.history.problems
    ] == [True]
    assert keeper.told() == [(A, "failed")]
    keeper.build(NOON + 60, {"bad": signed(gpu(B)), "atlas": signed(gpu())})


def test_a_clock_that_ran_a_year_ahead_hides_nothing_that_goes_on(keeper: Keeper) -> None:
    keeper.look(NOON, gpu())
    keeper.look(NOON + 365 * DAY, gpu(failed=True, uncorrected_ever=1))
    keeper.look(NOON + 60, gpu(failed=True, uncorrected_ever=1))
    (line,) = keeper.log.read_timelines("atlas", (A,), NOON + 60, 20).timelines
    assert [(event.kind, event.began_at, event.began_after) for event in line.events] == [
        ("failed", NOON + 60, BEFORE_FIRST_CHECK)
    ]


# Time


def fleet(number: int, hosts: int = 1000, gpus: int = 8) -> dict[str, PackedHealthMetrics | None]:
    """Many hosts, of whose GPUs some other ones are slowed by power each time."""
    return {
        f"gpu{host_number:04}": signed(
            *(
                gpu(f"GPU-{host_number:04}-{n}", index=n, bus=f"{n}:00.0", power=(number + n) % 3 == 1)
                for n in range(gpus)
            )
        )
        for host_number in range(hosts)
    }


def test_what_takes_long_is_spread_over_builds(keeper: Keeper) -> None:
    hosts = fleet(0, 50, 1)
    for number in range(50):
        keeper.history.record([host_of(sample())], NOON)
        keeper.log.record(hosts, NOON + number, 0)
        count = keeper.history.connect().execute("SELECT count(*) FROM counter").fetchone()
        assert count == (number + 1,)
    assert keeper.log.recorded_minute == NOON


@pytest.mark.slow
def test_where_nothing_is_new_a_thousand_hosts_cost_nothing(keeper: Keeper) -> None:
    keeper.build(NOON, fleet(0))
    again, moments = fleet(0), iter(range(NOON + MINUTE, NOON + DAY, MINUTE))

    def minute() -> None:
        at = next(moments)
        keeper.history.recorded_at = at
        keeper.log.record(again, at)

    pace.check(pace.took(minute), 0.1)
    assert not keeper.history.problems
