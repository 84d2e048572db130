"""Bad files and folders under history, through real builds: one sentence says so, and the build goes on."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from site_builder.core.model import PrivacySettings
from site_builder.history.database import list_broken_databases
from tests.support.fake_clock import Machine, machine_in
from tests.support.history_fixtures import used


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with machine_in(tmp_path, monkeypatch) as made:
        yield made


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(20_000))


def other(path: Path) -> None:
    garbage(path.with_name("other"))
    path.with_name("other").rename(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").touch()


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [garbage, other, directory])
@pytest.mark.parametrize("log", ["with its log", "alone"])
def test_a_file_that_is_replaced_while_building_is_set_aside_and_one_sentence_says_so(
    machine: Machine, damage: Callable[[Path], None], log: str
) -> None:
    machine.minutes(3)
    machine.close()
    machine.minutes(1)
    for path in machine.lab.state.glob("history.db-*") if log == "with its log" else ():
        path.unlink()
    damage(machine.lab.state / "history.db")
    machine.minutes(4)
    (name,) = list_broken_databases(machine.lab.state)
    (what,) = machine.problems()
    assert "was damaged, and a new one was started" in what
    assert name in what
    assert name in machine.lab.page()
    assert used(machine.tallies())["alice"] >= 2


def test_a_file_that_is_emptied_while_building_is_begun_anew(machine: Machine) -> None:
    machine.minutes(3)
    machine.close()
    empty(machine.lab.state / "history.db")
    machine.minutes(3)
    assert used(machine.tallies()) == {"alice": 3}


def test_a_file_that_is_deleted_while_building_is_begun_anew(machine: Machine) -> None:
    machine.minutes(3)
    (machine.lab.state / "history.db").unlink()
    machine.minutes(3)
    assert used(machine.tallies()) == {"alice": 3}
    assert machine.problems() == []


def test_a_copy_that_is_put_in_its_place_while_building_is_gone_on_with(machine: Machine) -> None:
    machine.minutes(3)
    copy = machine.lab.state / "copy.db"
    connection = sqlite3.connect(machine.lab.state / "history.db")
    connection.execute(f"VACUUM INTO '{copy}'")
    connection.close()
    machine.minutes(3)
    copy.rename(machine.lab.state / "history.db")
    machine.minutes(3)
    assert used(machine.tallies()) == {"alice": 6}
    machine.close()
    assert used(machine.tallies()) == {"alice": 6}
    assert machine.problems() == []


def test_a_log_that_is_deleted_while_building_costs_nothing(machine: Machine) -> None:
    machine.minutes(3)
    (machine.lab.state / "history.db-wal").unlink()
    machine.minutes(3)
    assert used(machine.tallies()) == {"alice": 6}
    assert machine.problems() == []


def test_a_file_of_a_newer_version_is_left_alone_and_one_sentence_says_so(machine: Machine) -> None:
    connection = sqlite3.connect(machine.lab.state / "history.db")
    connection.execute("PRAGMA user_version=99")
    connection.close()
    before = (machine.lab.state / "history.db").read_bytes()
    machine.minutes(2)
    (what,) = machine.problems()
    assert "newer gpuboard (version 99" in what
    assert (machine.lab.state / "history.db").read_bytes() == before


def mounted(*words: str) -> None:
    subprocess.run([shutil.which("mount") or "/usr/bin/mount", *words], check=True)


def unmounted(path: Path) -> None:
    subprocess.run([shutil.which("umount") or "/usr/bin/umount", str(path)], check=True)


@pytest.mark.root
def test_a_read_only_state_folder_costs_its_minutes_and_one_sentence(machine: Machine) -> None:
    machine.minutes(3)
    state = machine.lab.state
    machine.close()
    mounted("--bind", "-o", "ro", str(state), str(state))
    try:
        machine.minutes(3)
        (what,) = machine.problems()
        assert "could not be written" in what
        assert "history was not recorded for this minute" in what
        assert what in machine.lab.page()
    finally:
        unmounted(state)
    machine.minutes(3)
    assert used(machine.tallies()) == {"alice": 6}
    assert machine.problems() == []


def filled(path: Path) -> None:
    """A file as large as there is room."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY)
    for size in (65536, 512):
        with suppress(OSError):
            while os.write(handle, bytes(size)):
                pass
    os.close(handle)


@pytest.mark.slow
@pytest.mark.root
def test_a_disk_that_is_full_for_a_while_costs_its_minutes_and_one_sentence(machine: Machine) -> None:
    state = machine.lab.state
    mounted("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(state))
    try:
        machine.minutes(3)
        filled(state / "large")
        machine.minutes(63)
        (what,) = machine.problems()
        assert "could not be written" in what
        assert "history was not recorded for this minute" in what
        (state / "large").unlink()
        machine.minutes(3)
        assert machine.problems() == []
        alice_minutes = used(machine.tallies())["alice"]
        assert 6 <= alice_minutes < 69
        connection = sqlite3.connect(state / "history.db")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
    finally:
        machine.close()
        unmounted(state)


def test_where_people_are_hidden_the_sentence_names_none_and_history_goes_on(machine: Machine) -> None:
    machine.close()
    machine.builders = [machine.builder(privacy=PrivacySettings(users=False))]
    machine.minutes(2)
    (machine.lab.state / "history.db").write_text("alice" * 2000)
    machine.minutes(2)
    assert "alice" not in machine.lab.page()
    assert used(machine.tallies())


def test_one_cause_is_one_sentence_whatever_it_prevents(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (builder,) = machine.builders

    def full() -> None:
        message = "database or disk is full"
        raise sqlite3.OperationalError(message)

    monkeypatch.setattr(builder.history, "connect", full)
    machine.minutes(2)
    (what,) = machine.problems()
    assert what == (
        "it could not be written (database or disk is full): history was not recorded for this minute, "
        "and older data was not changed"
    )
