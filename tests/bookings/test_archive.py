"""Bookings that are long over: out of comments.json, into state/, and nothing of them lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from site_builder.bookings import archive
from site_builder.bookings.store import ARCHIVE_FILE, BookingsFile
from site_builder.core.model import BookingPolicy
from tests.support.board_fixture import Lab
from tests.support.command_line import run_gpuboard

OLD = {"name": "alice", "date": "2020-01-01 12:00", "team": "é"}
DAY = 86400


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path)
    lab.host("atlas")
    return lab


def move(lab: Lab, epoch: float, keep: float = 30 * DAY) -> list[str]:
    settings = lab.settings(booking_policy=BookingPolicy(retention_s=keep))
    rows, _ = BookingsFile(lab.data, None, settings.zone).read()
    return [problem.what for problem in archive.archive_ended_bookings(settings, rows, epoch, "")]


def lines(lab: Lab) -> list[dict[str, Any]]:
    path = lab.state / ARCHIVE_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


ENDED = 1577880000  # of OLD


def test_a_booking_is_archived_after_the_retention_and_not_before(lab: Lab) -> None:
    lab.book(json.dumps({"atlas": [OLD, {"name": "bob", "date": "2199-01-01"}]}))
    before = (lab.data / "comments.json").read_bytes()
    assert move(lab, ENDED + 30 * DAY - 1) == []
    assert (lab.data / "comments.json").read_bytes() == before
    assert move(lab, ENDED + 30 * DAY) == []
    assert json.loads((lab.data / "comments.json").read_text()) == {
        "atlas": [{}, {"name": "bob", "date": "2199-01-01"}]
    }
    (line,) = lines(lab)
    assert (line["host"], line["gpu"], line["date"], line["entry"]) == ("atlas", "0", "2020-01-01T12:00:00+00:00", OLD)


def test_no_booking_is_archived_without_a_retention(lab: Lab) -> None:
    lab.book(json.dumps({"atlas": [OLD]}))
    move(lab, ENDED * 2, keep=0)
    assert lines(lab) == []


def test_a_repeating_booking_is_archived_after_its_last_time(lab: Lab) -> None:
    series = {"name": "a", "from": "2020-01-01 09:00", "date": "2020-01-01 12:00"}
    rules = ("FREQ=DAILY", "FREQ=DAILY;COUNT=3", "FREQ=DAILY;UNTIL=20200105")
    lab.book(json.dumps({"atlas": [{**series, "rrule": rule} for rule in rules]}))
    move(lab, ENDED + 33 * DAY)
    assert [line["gpu"] for line in lines(lab)] == ["1"]
    move(lab, ENDED + 40 * DAY)
    assert [line["gpu"] for line in lines(lab)] == ["1", "2"]


def test_a_build_killed_between_both_files_loses_and_doubles_nothing(lab: Lab) -> None:
    lab.book(json.dumps({"atlas": [OLD]}))
    content = (lab.data / "comments.json").read_bytes()
    move(lab, ENDED + 40 * DAY)
    (lab.data / "comments.json").write_bytes(content)
    with (lab.state / ARCHIVE_FILE).open("ab") as file:
        file.write(b'{"host": "torn')
    move(lab, ENDED + 41 * DAY)
    text = (lab.state / ARCHIVE_FILE).read_text()
    assert text.count('"alice"') == 1
    assert text.endswith('{"host": "torn\n')


def test_a_builder_that_may_not_write_data_says_so_on_the_page(lab: Lab) -> None:
    lab.book(json.dumps({"atlas": [OLD]}))
    path = lab.data / "comments.json"
    (lab.data / "bookings.log").mkdir()
    (problem,) = move(lab, ENDED + 40 * DAY)
    assert problem.startswith("old bookings could not be moved to the archive: ")
    assert "atlas" in path.read_text()


def test_the_builder_archives_ended_bookings(lab: Lab) -> None:
    lab.book(json.dumps({"atlas": [OLD]}))
    for _ in range(2):  # it is known to be over once it has been read
        assert run_gpuboard(lab.data.parent, "build").returncode == 0
    assert json.loads((lab.data / "comments.json").read_text()) == {"atlas": [{}]}
    assert len(lines(lab)) == 1
