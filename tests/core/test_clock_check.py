"""A clock that leaps: nothing is removed as over before it is believed, and what was removed can come back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from site_builder.alerts.model import AlertContext, AlertState, DeliveryRecord
from site_builder.alerts.rules import apply_alert_rules
from site_builder.bookings.store import ARCHIVE_FILE
from site_builder.core import clock_check
from site_builder.core.clock import Now
from site_builder.core.clock_check import ClockHistory, ClockReading, update_clock_history
from tests.support.board_fixture import Lab
from tests.support.booking_fixtures import ME, done, entries, lab_of, log
from tests.support.command_line import clean_environment, run_gpuboard

DAY, HOUR = 86400, 3600
AHEAD = 40 * DAY
NOW = 1_900_000_000


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return lab_of(tmp_path)


def date(days: float) -> str:
    """That many days from now, as people write it."""
    return (datetime.now(timezone.utc) + timedelta(days=days)).strftime("%Y-%m-%d %H:%M+00:00")


def build_at(folder: Path, offset: str, **environment: str) -> None:
    """A build on a machine whose clock is off."""
    command = ["faketime", "-f", offset, sys.executable, "-m", "site_builder", "build"]
    subprocess.run(command, cwd=folder, env=clean_environment(**environment), check=True, timeout=120)


def problems(lab: Lab) -> list[str]:
    return [problem["what"] for problem in lab.status()["problems"] if problem["where"] == "clock"]


# Real builds


@pytest.mark.slow
def test_one_build_with_the_clock_40_days_ahead_removes_nothing(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": {"0": {"name": "alice", "date": date(5)}}})
    before = (lab.data / "comments.json").read_bytes()
    for _ in range(2):
        done(tmp_path, "build")
    for _ in range(2):
        build_at(tmp_path, "+40d")
    assert (lab.data / "comments.json").read_bytes() == before
    assert not (lab.state / ARCHIVE_FILE).exists()
    (problem,) = problems(lab)
    assert problem.startswith("the clock of this machine jumped by 40 d ahead: bookings that seem to be over stay in ")
    assert "correct the clock" in problem
    done(tmp_path, "build")
    assert problems(lab) == []
    assert [booking["phase"] for booking in json.loads(done(tmp_path, "bookings", "--json").stdout)] == ["now"]


@pytest.mark.slow
def test_ended_bookings_are_removed_when_the_clock_is_right_again(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": {"0": {"name": "alice", "date": date(5)}, "1": {"name": "bob", "date": "2020-01-01"}}})
    done(tmp_path, "build")
    build_at(tmp_path, "+40d")
    assert set(entries(lab)["atlas"]) == {"0", "1"}
    done(tmp_path, "build")
    assert set(entries(lab)["atlas"]) == {"0"}


@pytest.mark.slow
def test_a_first_build_with_a_clock_that_no_host_confirms_removes_nothing(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": {"0": {"name": "alice", "date": date(5)}}})
    for _ in range(2):
        build_at(tmp_path, "+40d")
    assert set(entries(lab)["atlas"]) == {"0"}
    assert problems(lab)[0].startswith("no host has confirmed the clock of this machine yet: bookings ")


def test_a_clock_that_the_hosts_contradict_removes_nothing(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": {"0": {"name": "bob", "date": "2020-01-01"}}})
    for host in ("atlas", "zeus", "hera"):
        lab.host(host, time=int(time.time()) - AHEAD)
    for _ in range(2):
        done(tmp_path, "build")
    assert set(entries(lab)["atlas"]) == {"0"}
    assert problems(lab)[0].startswith("the clock of this machine is 40 d ahead of those of its hosts: bookings ")
    for host in ("atlas", "zeus"):  # one host alone decides nothing
        lab.host(host)
    for _ in range(2):
        done(tmp_path, "build")
    assert entries(lab)["atlas"] == {}


@pytest.mark.slow
def test_watches_stay_while_the_clock_is_in_doubt(lab: Lab, tmp_path: Path) -> None:
    contacts = tmp_path / "contacts.csv"
    contacts.write_text(f"{ME},json://127.0.0.1:9/\n")
    contacts.chmod(0o600)
    environment = {"GPUBOARD_NOTIFY": "lab=json://127.0.0.1:9/", "GPUBOARD_CONTACTS": "contacts.csv"}
    done(tmp_path, "notify", "me", "--when", "9 H100 free on one host", **environment)
    done(tmp_path, "build", **environment)
    before = (lab.data / "watches.json").read_bytes()
    build_at(tmp_path, "+40d", **environment)
    assert (lab.data / "watches.json").read_bytes() == before
    build_at(tmp_path, "+40d", **environment)
    assert (lab.data / "watches.json").read_bytes() == before


@pytest.mark.slow
def test_watch_with_a_clock_ahead_removes_no_other_watch(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "build")
    done(tmp_path, "notify", "me", "--when", "9 H100 free on one host")
    command = ["faketime", "-f", "+40d", sys.executable, "-m", "site_builder", "notify", "me", "--when", "8 A100 free"]
    subprocess.run(command, cwd=tmp_path, env=clean_environment(), check=True, timeout=60, capture_output=True)
    assert len(json.loads((lab.data / "watches.json").read_text())) == 2


# The decision

HERE = ClockReading(NOW, NOW - 100 * DAY, "boot")


def later(seconds: float, leapt: float = 0, rebooted: float | None = None) -> ClockReading:
    """The clock of the same machine after a while; `rebooted` is when it was started again."""
    at = int(NOW + seconds + leapt)
    return (
        ClockReading(at, NOW - 100 * DAY + int(leapt), "boot")
        if rebooted is None
        else ClockReading(at, int(rebooted), "new")
    )


@pytest.mark.parametrize(
    ("reading", "believed"),
    [
        (later(10), True),
        (later(90 * DAY), True),  # nobody built, but the machine ran all the time
        (later(10, leapt=500), True),
        (later(10, leapt=AHEAD), False),
        (later(10, leapt=100 * DAY), False),  # as if it had been started when the last build was
        (later(10, leapt=-AHEAD), False),
        (later(300, rebooted=NOW + 120), True),
        (later(90 * DAY, rebooted=NOW + 90 * DAY - 60), False),
        (ClockReading(NOW + 60), True),
        (ClockReading(NOW + AHEAD), False),
    ],
)
def test_evenly_running_clock_is_trusted(reading: ClockReading, believed: bool) -> None:
    assert bool(update_clock_history(ClockHistory(HERE), reading, []).doubt) is not believed


def confirmed_after(offsets: list[float], reading: ClockReading) -> float | None:
    """How long after it leapt a clock is believed, if it is within two weeks."""
    history = ClockHistory(HERE)
    for passed in range(0, 15 * DAY, 600):
        history = update_clock_history(history, reading._replace(at=reading.at + passed), offsets)
        if not history.doubt:
            return passed
    return None


def test_board_that_was_off_for_3_months_trusts_its_clock_once_hosts_agree() -> None:
    off = later(90 * DAY, rebooted=NOW + 90 * DAY - 60)
    assert confirmed_after([0.0, 3.0, -20 * DAY], off) == HOUR
    assert confirmed_after([], off) == 7 * DAY
    assert confirmed_after([-90 * DAY], off) is None


def test_clock_that_jumps_again_needs_confirmation_again() -> None:
    history = update_clock_history(ClockHistory(HERE), later(0, leapt=AHEAD), [0.0])
    history = update_clock_history(history, later(HOUR - 60, leapt=AHEAD), [0.0])
    history = update_clock_history(history, later(HOUR, leapt=AHEAD + DAY), [0.0])
    assert history.doubt
    assert not update_clock_history(history, later(HOUR + 60), []).doubt  # it is back at what was believed


def test_confirmation_period_begins_when_hosts_agree() -> None:
    history = update_clock_history(ClockHistory(HERE), later(0, leapt=AHEAD), [-AHEAD])
    history = update_clock_history(history, later(5 * HOUR, leapt=AHEAD), [-AHEAD])
    assert update_clock_history(history, later(5 * HOUR + 10, leapt=AHEAD), [0.0]).doubt


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'[[1,2],null,0,""]', b'[["a",1,""],null,0,""]', b"\xff"])
def test_damaged_file_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / clock_check.CLOCK_FILE).write_bytes(content)
    assert clock_check.find_clock_doubt(tmp_path, time.time(), [0.0]) == ""
    assert clock_check.is_clock_trusted(tmp_path, time.time())
    assert not clock_check.is_clock_trusted(tmp_path, time.time() + AHEAD)


def test_the_file_is_not_written_at_every_build(tmp_path: Path) -> None:
    now = time.time()
    clock_check.find_clock_doubt(tmp_path, now, [0.0])
    first = (tmp_path / clock_check.CLOCK_FILE).stat().st_ino
    clock_check.find_clock_doubt(tmp_path, now + 10, [0.0])
    assert (tmp_path / clock_check.CLOCK_FILE).stat().st_ino == first


def test_alerts_forget_nothing_while_the_clock_is_in_doubt() -> None:
    book = AlertState(
        started_at=NOW,
        silences={"atlas": NOW + DAY},
        reported_once={"k": NOW + DAY},
        history=(DeliveryRecord(NOW - 60 * DAY, "a", "sent", ()),),
    )
    now = Now(NOW + AHEAD, timezone.utc)
    scene = AlertContext({})
    kept = apply_alert_rules(book, [], {}, scene._replace(expires=False), now)
    assert (kept.silences, kept.reported_once, kept.history) == (book.silences, book.reported_once, book.history)
    gone = apply_alert_rules(book, [], {}, scene, now)
    assert (gone.silences, gone.reported_once, gone.history) == ({}, {}, ())


# The way back

OLD: dict[str, Any] = {"name": ME, "date": "2020-01-01 12:00", "team": "é", "id": "k7m2xp"}


def expired(lab: Lab, folder: Path, **bookings: dict[str, Any]) -> None:
    lab.book(json.dumps({"atlas": bookings}, ensure_ascii=False))
    for _ in range(2):
        done(folder, "build")
    assert entries(lab) == {"atlas": {}}


def test_archived_booking_can_be_restored_and_stays(lab: Lab, tmp_path: Path) -> None:
    expired(lab, tmp_path, **{"0": OLD})
    assert [booking["id"] for booking in json.loads(done(tmp_path, "bookings", "--past", "--json").stdout)] == [
        "k7m2xp"
    ]
    assert "k7m2xp" in done(tmp_path, "bookings", "--past").stdout
    completed = done(tmp_path, "bookings", "--restore", "k7m2xp")
    assert "the booking of atlas:0" in completed.stderr
    assert entries(lab) == {"atlas": {"0": OLD}}
    lines = len(log(lab))
    for _ in range(2):
        done(tmp_path, "build")
    assert entries(lab) == {"atlas": {"0": OLD}}
    assert len(log(lab)) == lines
    assert log(lab)[-1]["what"] == "restore"


def test_all_bookings_removed_by_a_wrong_clock_are_restored_at_once(lab: Lab, tmp_path: Path) -> None:
    live = {"name": ME, "date": date(5), "comment": "run"}
    line = {"host": "atlas", "gpu": "1", "id": "x1", "from": None, "date": date(5), "entry": live}
    expired(lab, tmp_path, **{"0": OLD})
    with (lab.state / ARCHIVE_FILE).open("a") as file:
        file.write(json.dumps(line) + "\n{torn\n" + json.dumps({**line, "gpu": "2"}) + "\n[]\n")
    done(tmp_path, "bookings", "--restore", "all")
    assert entries(lab) == {"atlas": {"1": live, "2": live}}
    completed = run_gpuboard(tmp_path, "bookings", "--restore", "all")
    assert (completed.returncode, completed.stderr.count("\n")) == (1, 1)
    assert "no booking that has not ended in the archive" in completed.stderr


def test_nothing_is_restored_over_a_booking_that_was_made_since(lab: Lab, tmp_path: Path) -> None:
    live = {"name": ME, "date": date(5), "id": "abc"}
    line = {"host": "atlas", "gpu": "0", "id": "abc", "from": None, "date": date(5), "entry": live}
    (lab.state / ARCHIVE_FILE).write_text(json.dumps(line) + "\n")
    done(tmp_path, "book", "atlas:0", "--for", "1h", "--name", "dana")
    before = entries(lab)
    completed = run_gpuboard(tmp_path, "bookings", "--restore", "abc")
    assert (completed.returncode, entries(lab)) == (1, before)
    assert "atlas:0 is booked by dana" in completed.stderr


def test_archive_elsewhere_is_reported_in_one_sentence(tmp_path: Path) -> None:
    for option in (["--past"], ["--restore", "abc"]):
        completed = run_gpuboard(tmp_path, "bookings", *option, "--url", "http://127.0.0.1:9/")
        assert (completed.returncode, completed.stderr.count("\n")) == (2, 1)
        assert "the archive is on the web host" in completed.stderr
