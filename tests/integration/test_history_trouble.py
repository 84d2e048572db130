"""History when things go wrong: nothing is lost but the last minute, nothing counts twice, and the page says why."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date, timezone
from pathlib import Path

import pytest

from site_builder.core.formatting import DAY, HOUR
from site_builder.history import database
from site_builder.history.reader import HistoryReader
from site_builder.history.writer import HistoryWriter
from tests.support.board_fixture import Lab, words
from tests.support.history_fixtures import epoch, files_of, gpu, host, minutes, record, roll, used
from tests.support.missing import missing
from tests.support.pace import wall, within

NOON = epoch("2026-03-10T12:00")
EVER = (date(1990, 1, 1), date(2100, 1, 1))
HERE = [host(gpu("busy", ["alice"], use=50))]
ROOT = Path(__file__).parents[2]


def whole(state: Path) -> None:
    """The file is in order."""
    connection = sqlite3.connect(state / "history.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


RECORDS = """
import sys
from datetime import timezone
from pathlib import Path
from site_builder.history.writer import HistoryWriter
from tests.support.history_fixtures import gpu, host
history = HistoryWriter(Path(sys.argv[1]), timezone.utc)
hosts = [host(gpu("busy", ["alice"], use=50), name=f"gpu{n}") for n in range(40)]
print("begun", flush=True)
for number in range(100000):
    history.record(hosts, int(sys.argv[2]) + 60 * number)
    assert not history.problems, history.problems
    print(number, flush=True)
"""
ROLLS = """
import sys
from datetime import timezone
from pathlib import Path
from site_builder.history.writer import HistoryWriter
history = HistoryWriter(Path(sys.argv[1]), timezone.utc)
print("begun", flush=True)
for _ in range(100000):
    if history.roll_up(int(sys.argv[2]), 0):
        break
    print("step", flush=True)
"""


def killed(program: str, state: Path, moment: int, lines: int) -> list[str]:
    """What a process said that was killed after so many lines."""
    command = [sys.executable, "-c", program, str(state), str(moment)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        output_lines = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        output_lines += process.stdout.read().splitlines()
    return [line.strip() for line in output_lines]


@pytest.mark.parametrize("lines", [2, 9, 30])
def test_a_builder_that_is_killed_while_it_records_loses_nothing_that_it_had_recorded(state: Path, lines: int) -> None:
    printed_numbers = [int(line) for line in killed(RECORDS, state, NOON, lines) if line.isdigit()]
    whole(state)
    past = HistoryReader(state, timezone.utc)
    seen_minutes = minutes(past.read_daily_usage(*EVER, NOON + DAY))
    assert seen_minutes in {40 * (printed_numbers[-1] + 1), 40 * (printed_numbers[-1] + 2)}


@pytest.mark.parametrize("lines", [1, 2, 8, 20, 45])
def test_a_builder_that_is_killed_while_it_rolls_up_counts_nothing_twice(state: Path, lines: int) -> None:
    history = HistoryWriter(state, timezone.utc)
    hosts = [host(gpu("busy", ["alice", "bob"], use=50), name=f"gpu{n}") for n in range(40)]
    record(history, NOON, 70, hosts)
    history.close()
    killed(ROLLS, state, NOON + 2 * DAY, lines)
    whole(state)
    history = HistoryWriter(state, timezone.utc)
    for _ in range(2):
        daily_usage = history.read_daily_usage(*EVER, NOON + 2 * DAY)
        assert minutes(daily_usage) == 40 * 70
        assert used(daily_usage) == {"alice": 1400, "bob": 1400}
        assert sum(history.read_host("gpu7", NOON, NOON + 2 * HOUR, 300).gpus[0].columns["seen"]) == 70
        roll(history, NOON + 2 * DAY)
    history.close()


def test_a_full_disk_costs_the_minute_and_not_the_file(state: Path, history: HistoryWriter) -> None:
    record(history, NOON, 5, HERE)
    history.close()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (state / "history.db").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        # sqlite writes into the log beside the file first, which may grow as long
        for number in range(40):
            big = [host(*(gpu(index=n, key=os.urandom(40).hex()) for n in range(50)))]
            history.record(big, NOON + 600 + 60 * number)
            if history.problems:
                break
        (problem,) = history.problems
        assert "could not be written" in problem.what
        assert "history was not recorded for this minute" in problem.what
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    history.record(HERE, NOON + 6000)
    assert not history.problems
    whole(state)
    minute_samples = history.read_minutes("atlas", 99, NOON + 7000)
    assert [at for at, _ in minute_samples][:5] == [NOON + 60 * number for number in range(5)]
    assert minute_samples[-1][0] == NOON + 6000


@pytest.mark.root
def test_a_build_on_a_full_disk_writes_the_page_and_says_so(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(lab.state)], check=True)
    try:
        report = lab.build()
        assert "state/history.db: it could not be written" in words(report)
        assert "state/history.db" in lab.page()
    finally:
        subprocess.run(["/usr/bin/umount", str(lab.state)], check=True)


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(100)
        file.write(os.urandom(8192))


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 100)


def text(path: Path) -> None:
    path.write_text("this is no database, but a letter to the admin\n" * 100)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").touch()


@pytest.mark.parametrize("damage", [overwritten, truncated, text, directory])
def test_a_damaged_file_is_set_aside_and_the_page_says_so(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    history = HistoryWriter(lab.state, timezone.utc)
    record(history, NOON, 30, [host(gpu(), name=f"gpu{n}") for n in range(40)])
    roll(history, NOON + 3 * DAY)
    history.close()
    damage(lab.state / "history.db")
    for number in range(3):
        lab.build(after=60 * number)
    aside = [name for name in files_of(lab.state) if ".broken-" in name]
    assert len(aside) == 1
    assert aside[0] in lab.page()
    whole(lab.state)
    assert HistoryReader(lab.state, timezone.utc).read_minutes("atlas", 5, time.time() + 300)
    shutil.rmtree(lab.state / aside[0]) if damage is directory else (lab.state / aside[0]).unlink()
    assert "history.db" not in words(lab.build(after=180))


def test_a_disk_that_breaks_each_file_is_not_filled_with_them(state: Path, history: HistoryWriter) -> None:
    for number in range(6):
        history.close()
        text(state / "history.db")
        history.record(HERE, NOON + 60 * number)
    assert len(database.list_broken_databases(state)) == 3
    assert any("repeatedly" in problem.what for problem in history.problems)
    assert len(history.problems) == 2


def test_numbers_that_were_damaged_within_a_sound_file_are_a_gap(history: HistoryWriter) -> None:
    record(history, NOON, 10, HERE)
    connection = history.connect()
    connection.execute("UPDATE minute SET block=? WHERE at=?", (b"\x78\x9crubbish", NOON + 120))
    connection.execute("UPDATE minute SET block=? WHERE at=?", (b"", NOON + 180))
    assert history.read_host("atlas", NOON, NOON + 600, 60).gpus[0].list_values("use") == [
        50,
        50,
        None,
        None,
        *[50] * 6,
    ]
    roll(history, NOON + 3 * DAY)
    assert minutes(history.read_daily_usage(*EVER, NOON + 3 * DAY)) == 8


def test_a_file_of_a_newer_gpuboard_is_left_alone(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    connection = sqlite3.connect(lab.state / "history.db")
    connection.execute("CREATE TABLE later(x)")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    before = (lab.state / "history.db").read_bytes()
    assert "newer gpuboard" in words(lab.build())
    assert (lab.state / "history.db").read_bytes() == before
    past = HistoryReader(lab.state, timezone.utc)
    assert past.read_minutes("atlas", 1, time.time()) == []
    assert past.problem
    assert "newer gpuboard" in past.problem.what


def test_a_file_of_an_older_version_is_brought_up_to_date(
    state: Path, history: HistoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(history, NOON, 10, HERE)
    roll(history, NOON + HOUR)
    history.close()
    later = [*database.MIGRATIONS, ("ALTER TABLE seen ADD COLUMN energy INTEGER", "CREATE TABLE later(at INTEGER)")]
    monkeypatch.setattr(database, "MIGRATIONS", later)
    past = HistoryReader(state, timezone.utc)
    assert past.read_minutes("atlas", 1, NOON + HOUR) == []
    assert past.problem
    assert "the next `gpuboard build` updates it to 2" in past.problem.what
    history.record(HERE, NOON + HOUR)
    assert not history.problems
    connection = history.connect()
    assert connection.execute("PRAGMA user_version").fetchone() == (len(later),)
    assert connection.execute("SELECT sum(seen), max(energy) FROM seen").fetchone() == (10, None)
    assert len(past.read_minutes("atlas", 99, NOON + HOUR)) == 11


def test_a_step_to_a_new_version_that_fails_leaves_the_file_as_it_was(
    history: HistoryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(history, NOON, 10, HERE)
    history.close()
    with monkeypatch.context() as patch:
        patch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, ("CREATE TABLE half(x)", "no SQL at all")])
        history.record(HERE, NOON + 600)
        assert "could not be written" in history.problems[0].what
    history.record(HERE, NOON + 660)
    assert not history.problems
    tables = {name for (name,) in history.connect().execute("SELECT name FROM sqlite_master")}
    assert "half" not in tables


def test_two_builders_on_one_history_count_nothing_twice(state: Path) -> None:
    first_writer, two = HistoryWriter(state, timezone.utc), HistoryWriter(state, timezone.utc)
    for number in range(130):
        for history in (first_writer, two) if number % 2 else (two, first_writer):
            history.record(HERE, NOON + 60 * number)
            history.roll_up(NOON + 60 * number, 0.001)
            assert not history.problems
    for history in (first_writer, two):
        assert used(history.read_daily_usage(*EVER, NOON + 130 * 60)) == {"alice": 130}
        history.close()


def test_a_file_that_another_program_keeps_locked_costs_the_minute_and_little_time(
    state: Path, history: HistoryWriter
) -> None:
    record(history, NOON, 1, HERE)
    locking_connection = sqlite3.connect(state / "history.db", isolation_level=None)
    locking_connection.execute("BEGIN EXCLUSIVE")
    with within(5, wall):
        history.record(HERE, NOON + 60)
    assert "locked" in history.problems[0].what
    locking_connection.execute("ROLLBACK")
    locking_connection.close()
    history.record(HERE, NOON + 60)
    assert not history.problems
    assert len(history.read_minutes("atlas", 9, NOON + 60)) == 2


@pytest.mark.root
def test_a_read_only_state_folder_is_reported_and_the_page_is_built(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    lab.build()
    mount = shutil.which("mount") or missing("there is no mount")
    subprocess.run([mount, "--bind", "-o", "ro", str(lab.state), str(lab.state)], check=True)
    try:
        report = lab.build(after=60)
        assert "state/history.db: it could not be written" in words(report)
        assert len(HistoryReader(lab.state, timezone.utc).read_minutes("atlas", 9, time.time())) <= 1
    finally:
        subprocess.run(["/usr/bin/umount", str(lab.state)], check=True)


def test_history_is_read_while_it_is_written(state: Path, history: HistoryWriter) -> None:
    record(history, NOON, 50, HERE)
    past = HistoryReader(state, timezone.utc)
    connection = history.connect()
    with database.begin_database_transaction(connection):
        connection.execute("DELETE FROM minute")
        assert minutes(past.read_daily_usage(*EVER, NOON + HOUR)) == 50
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")
    roll(history, NOON + 2 * HOUR)
    assert minutes(past.read_daily_usage(*EVER, NOON + HOUR)) == 50


@pytest.mark.parametrize("all_of_it", [True, False])
def test_the_admin_may_delete_it_at_any_time(state: Path, history: HistoryWriter, all_of_it: bool) -> None:
    record(history, NOON, 5, HERE)
    for path in list(state.glob("history.db*")) if all_of_it else [state / "history.db"]:
        path.unlink()
    record(history, NOON + 600, 5, HERE)
    whole(state)
    assert len(history.read_minutes("atlas", 99, NOON + DAY)) == 5


def test_a_clock_that_goes_back_counts_no_minute_twice(history: HistoryWriter) -> None:
    record(history, NOON, 90, HERE)
    roll(history, NOON + 90 * 60)
    record(history, NOON + 30 * 60, 90, HERE)
    roll(history, NOON + 2 * HOUR)
    roll(history, NOON + 5 * HOUR)
    assert used(history.read_daily_usage(*EVER, NOON + 5 * HOUR)) == {"alice": 120}
    assert history.read_host("atlas", NOON, NOON + 2 * HOUR, 60).gpus[0].list_values("use") == [50] * 120


def test_minutes_that_come_late_fill_the_hour_that_is_rolled_up(history: HistoryWriter) -> None:
    record(history, NOON, 20, HERE)
    roll(history, NOON + 2 * DAY)
    record(history, NOON + 30 * 60, 20, [host(gpu("busy", ["bob"], use=80))])
    roll(history, NOON + 2 * DAY)
    expected = [*[50] * 20, *[None] * 10, *[80] * 20, *[None] * 10]
    assert history.read_host("atlas", NOON, NOON + HOUR, 60).gpus[0].list_values("use") == expected
    assert history.read_host("atlas", NOON, NOON + HOUR, 300).gpus[0].list_values("use") == expected[::5]
    assert used(history.read_daily_usage(*EVER, NOON + 2 * DAY)) == {"alice": 20, "bob": 20}


def test_a_clock_a_year_ahead_and_back_costs_nothing_older(history: HistoryWriter) -> None:
    start = NOON - 5 * DAY
    for day in range(6):
        record(history, start + day * DAY, 30, HERE)
    year = NOON + 365 * DAY
    roll(history, NOON + HOUR)
    record(history, year, 3, [host(gpu("busy", ["eve"]))])
    assert history.roll_up(year + 180, 60)
    record(history, NOON + 2 * HOUR, 30, HERE)
    roll(history, NOON + 4 * HOUR)
    assert used(history.read_daily_usage(*EVER, NOON + 4 * HOUR)) == {"alice": 7 * 30}
    assert history.read_host("atlas", NOON, NOON + HOUR, 60).gpus[0].list_values("use").count(50) == 30
    assert history.read_host("atlas", start, NOON, 300).gpus[0].list_values("use").count(50) == 30
    assert history.read_host("atlas", NOON, NOON + 400 * DAY, 3600).gpus[0].list_people("owner").count("eve") <= 1


def test_days_that_have_not_come_are_not_reported_even_if_they_are_rolled_up(history: HistoryWriter) -> None:
    record(history, NOON, 10, HERE)
    record(history, NOON + 365 * DAY, 60, [host(gpu("busy", ["eve"]))])
    roll(history, NOON + 365 * DAY + 2 * HOUR)
    assert used(history.read_daily_usage(*EVER, NOON + HOUR)) == {"alice": 10}
    assert used(history.read_daily_usage(*EVER, NOON + 366 * DAY)) == {"alice": 10, "eve": 60}


def test_what_a_clock_that_ran_ahead_wrote_makes_room_for_what_is_true(history: HistoryWriter) -> None:
    record(history, NOON + DAY, 10, [host(gpu("busy", ["eve"]))])
    record(history, NOON, 2, HERE)
    record(history, NOON + DAY, 10, HERE)
    assert used(history.read_daily_usage(*EVER, NOON + 2 * DAY)) == {"alice": 12}
