"""Upgrade a board of an older version: no history, booking, token or alert state is lost.

tests/samples/upgrade/README.md says what the older version left behind.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest

from site_builder.alerts import sender
from site_builder.core.files import FileSignature
from site_builder.core.model import BookingPolicy
from site_builder.health.store import StoredEventReader
from site_builder.history.reader import HistoryReader
from site_builder.web.booking_app import BookingApplication
from tests.support.board_fixture import Lab
from tests.support.command_line import run_gpuboard
from tests.support.docs import ROOT, commands
from tests.support.receivers import Web

SAMPLES = ROOT / "tests/samples/upgrade"
ANSWERS: dict[str, Any] = json.loads((SAMPLES / "answers.json").read_bytes())
BUILT_AT: int = ANSWERS["built_at"]
NEW_KEYS = {"promised": "booked_idle", "violated": "conflict"}
NEW_STATES = {"told": "reported", "waits": "waiting", "untold": "unreported", "coming": "upcoming"}
# Run gpuboard on the clock of the story, on which files arrive when they were written; `alerts run` alone sends.
AT_MOMENT = """
import runpy, sys, time
now = float(sys.argv[1])
time.time = lambda: now
from site_builder.alerts import sender
from site_builder.core.files import FileSignature
FileSignature.from_stat = staticmethod(lambda of: FileSignature(of.st_ino, of.st_size, of.st_mtime_ns, of.st_mtime_ns))
sender.start_sender_process = lambda _: None
sys.argv = ["gpuboard", *sys.argv[2:]]
runpy.run_module("site_builder", run_name="__main__")
"""


@contextlib.contextmanager
def stop_clock_at(now: int) -> Iterator[None]:
    """Do in this process what AT_MOMENT does in one of its own."""

    def build_signature(of: os.stat_result) -> FileSignature:
        return FileSignature(of.st_ino, of.st_size, of.st_mtime_ns, of.st_mtime_ns)

    with (
        mock.patch.object(time, "time", lambda: float(now)),
        mock.patch.object(FileSignature, "from_stat", staticmethod(build_signature)),
        mock.patch.object(sender, "start_sender_process", lambda _: None),
    ):
        yield


class Board:
    """A copy of the samples, with receivers that answer."""

    def __init__(self, folder: Path, receiver: Web) -> None:
        self.folder, self.receiver = folder, receiver
        self.lab = Lab(folder)
        shutil.copytree(SAMPLES, folder, dirs_exist_ok=True)
        for path in (*(folder / "state").iterdir(), *folder.glob("*.c*")):
            path.chmod(0o600)
        for path in (folder / "gpuboard.conf", folder / "contacts.csv"):
            path.write_text(path.read_text().replace("127.0.0.1:18999", f"127.0.0.1:{receiver.port}"))
        (folder / "state").chmod(0o700)
        self.push(BUILT_AT)

    def push(self, now: int) -> None:
        """Let all hosts but hydra, which is down, tell the same again."""
        for path in self.lab.data.rglob("*"):
            if path.parent.name in ("atlas", "nile"):
                path.write_text(re.sub(r" time=[0-9]+ ", f" time={now} ", path.read_text()))
            if path.name.startswith("lyra_"):
                at = datetime.fromtimestamp(now, timezone.utc).strftime("%Y/%m/%d %H:%M:%S")
                path.write_text(re.sub("2026/03/10 [0-9:]+", at, path.read_text()))
            arrived = BUILT_AT - 7260 if path.parent.name == "hydra" else now
            os.utime(path, (arrived, arrived))

    def run(self, now: int, *words: str) -> str:
        environment = {**os.environ, "GPUBOARD_CONF": "gpuboard.conf", "PYTHONPATH": str(ROOT), "TZ": "UTC"}
        command = [sys.executable, "-c", AT_MOMENT, str(now), *words]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, now: int, *words: str) -> Any:  # noqa: ANN401 # whatever a command prints
        return json.loads(self.run(now, *words, "--json"))

    def build(self, now: int) -> None:
        """Build within this process; all else has clocks that are set when its modules are loaded."""
        self.push(now)
        with stop_clock_at(now):
            done = run_gpuboard(self.folder, "build", GPUBOARD_CONF="gpuboard.conf", TZ="UTC")
        assert done.returncode == 0, done.stderr

    def rename_keys(self) -> None:
        """Do what docs/upgrading.md says about alerts.conf."""
        (command,) = (line for line in commands("docs/upgrading.md") if line.startswith("sed "))
        subprocess.run(["/bin/sh", "-c", command], cwd=self.folder, check=True)

    def problems(self) -> list[tuple[str, str]]:
        return [(problem["where"], problem["what"]) for problem in self.lab.status()["problems"]]


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    receiver = Web()
    yield Board(tmp_path / "board", receiver)
    receiver.close()


def with_new_keys(old: dict[str, Any]) -> dict[str, Any]:
    """What `stats` answered before, with the keys of today."""
    rows = [{NEW_KEYS.get(key, key): value for key, value in row.items()} for row in old["rows"]]
    return {**old, "rows": rows, "total": {NEW_KEYS.get(key, key): value for key, value in old["total"].items()}}


def read_export(text: str, before: str = "9999") -> list[dict[str, str]]:
    """The rows of an export up to a time, with the states of today."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return [{**row, "state": NEW_KEYS.get(row["state"], row["state"])} for row in rows if row["time"] < before]


def test_every_host_is_read_as_before_also_one_with_the_original_scripts(board: Board) -> None:
    board.rename_keys()
    board.build(BUILT_AT + 10)
    states = {host["name"]: [gpu["state"] for gpu in host["gpus"]] for host in board.lab.status()["hosts"]}
    assert states == ANSWERS["states"]
    assert states["lyra"] == ["busy", "free"]
    assert board.problems() == []


@pytest.mark.parametrize("by", ["person", "host", "model"])
def test_stats_has_the_same_gpu_hours(board: Board, by: str) -> None:
    now = board.json(BUILT_AT + 30, "stats", "--month", "2026-03", "--by", by)
    assert now == with_new_keys(ANSWERS["stats"][by])
    assert (now["total"]["booked_idle"], now["total"]["conflict"]) == (7.0, 2.0)


def test_stats_goes_on_from_the_sums_of_before(board: Board) -> None:
    for minute in range(1, 4):
        board.build(BUILT_AT + 60 * minute)
    old, new = ANSWERS["stats"]["person"]["total"], board.json(BUILT_AT + 200, "stats", "--month", "2026-03")["total"]
    gained = {key: round(60 * (new[NEW_KEYS.get(key, key)] - hours)) for key, hours in old.items()}
    expected = dict.fromkeys(old, 0) | {"used": 9, "held": 3, "booked": 3, "unused": 3, "promised": 3, "free": 9}
    assert gained == expected | {"seen": 21, "unseen": gained["unseen"]}


def test_an_export_has_the_same_rows_before_and_after_a_build(board: Board) -> None:
    words = ("export", "--since", "2026-03-10", "--step", "3600", "--csv")
    assert read_export(board.run(BUILT_AT + 30, *words)) == read_export(ANSWERS["export"])
    assert "conflict" in {row["state"] for row in read_export(ANSWERS["export"])}
    board.build(BUILT_AT + 60)
    two = "2026-03-10T14"
    assert read_export(board.run(BUILT_AT + 70, *words), two) == read_export(ANSWERS["export"], two)


def without_mine(bookings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out whether they are of the user who runs the tests, and the name that older versions did not tell."""
    return [{key: value for key, value in booking.items() if key not in {"mine", "person"}} for booking in bookings]


def test_all_bookings_are_there(board: Board) -> None:
    board.build(BUILT_AT + 10)
    assert without_mine(board.json(BUILT_AT + 30, "bookings")) == without_mine(ANSWERS["bookings"])
    assert without_mine(board.json(BUILT_AT + 30, "bookings", "--past")) == without_mine(ANSWERS["past_bookings"])
    assert (board.folder / "data/watches.json").read_bytes() == (SAMPLES / "data/watches.json").read_bytes()


def test_the_token_still_books(board: Board) -> None:
    settings = board.lab.settings(booking_policy=BookingPolicy(url="book"))
    application = BookingApplication(settings, lambda _: None, lambda: BUILT_AT + 30.0)
    body = orjson.dumps({"do": "book", "gpus": ["nile:0"], "for": "2h"})
    heard: list[str] = []
    environment = {
        "REQUEST_METHOD": "POST",
        "REMOTE_ADDR": "192.0.2.7",
        "HTTP_HOST": "web:8080",
        "HTTP_X_GPUBOARD": "1",
        "HTTP_AUTHORIZATION": f"Bearer {ANSWERS['token']}",
        "QUERY_STRING": "",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    answer = b"".join(application(environment, lambda status, *_: heard.append(status)))  # type: ignore[arg-type]
    assert heard == ["200 OK"], answer
    entries = json.loads((board.folder / "data/comments.json").read_bytes())["nile"]["0"]
    assert [entry["name"] for entry in entries] == ["carol", "alice"]


def add_severity(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Alerts of the older version, which had no severity, as this one lists them."""
    return [{**alert, "severity": "info"} for alert in alerts]


def test_the_state_of_alerts_is_the_same(board: Board) -> None:
    old, new = ANSWERS["alerts"], board.json(BUILT_AT + 30, "alerts", "list")
    assert [
        (alert_record["rule"], alert_record["about"], alert_record["state"], alert_record["reported"])
        for alert_record in new["conditions"]
    ] == [
        (alert_record["rule"], alert_record["about"], NEW_STATES[alert_record["state"]], alert_record["told"])
        for alert_record in old["matters"]
    ]
    assert {alert_record["state"] for alert_record in new["conditions"]} == {*NEW_STATES.values()}
    assert [
        (alert_record["to"], alert_record["due"], alert_record["alerts"]) for alert_record in new["notifications"]
    ] == [
        (alert_record["to"], alert_record["leaves"], add_severity(alert_record["alerts"]))
        for alert_record in old["letters"]
    ]
    assert [alert_record["to"] for alert_record in new["notifications"]] == ["person:bob"]
    history = board.json(BUILT_AT + 30, "alerts", "history")["history"]
    assert [
        (alert_record["at"], alert_record["to"], alert_record["status"], alert_record["alerts"])
        for alert_record in history
    ] == [
        (alert_record["at"], alert_record["to"], alert_record["how"], add_severity(alert_record["alerts"]))
        for alert_record in ANSWERS["alert_history"]["history"]
    ]


def test_nothing_is_notified_twice_and_what_was_queued_or_waited_arrives_once(board: Board) -> None:
    board.rename_keys()
    for minute in range(1, 13):
        board.build(BUILT_AT + 60 * minute)
    board.run(BUILT_AT + 730, "alerts", "run")
    assert [body["title"] for _, body in board.receiver.came] == ["GPU 0 of nile is too hot"]
    quiet_hours_end = BUILT_AT + 3 * 3600
    for minute in range(1, 4):
        board.build(quiet_hours_end + 60 * minute)
        board.run(quiet_hours_end + 60 * minute + 30, "alerts", "run")
    assert [body["title"] for _, body in board.receiver.came] == [
        "GPU 0 of nile is too hot",
        "bob: you hold atlas:1 idle",
    ]


def test_the_health_timeline_is_the_same(board: Board) -> None:
    history = HistoryReader(board.lab.state, timezone.utc)
    try:
        events = StoredEventReader(history).read_events(BUILT_AT - 2 * 86400, BUILT_AT + 86400)
    finally:
        history.close()
    event_rows = [
        [event.host, event.gpu_key, event.kind, event.began_at, event.began_after, event.ended_at] for event in events
    ]
    assert event_rows == ANSWERS["health_events"] != []


def test_old_keys_of_alerts_conf_are_refused_with_the_new_name(board: Board) -> None:
    board.build(BUILT_AT + 10)
    names = {"most": "max_per_hour", "hold": "delay", "over": "resolve_after"}
    names |= {"recovery": "send_resolved", "quiet": "quiet_hours"}
    numbers = {"most": 2, "hold": 4, "over": 5, "recovery": 6, "quiet": 8}
    assert board.problems() == [
        (
            "GPUBOARD_ALERTS (alerts.conf)",
            f"line {numbers[old]}: {old} is now called {new}: rename it; until then this line is ignored",
        )
        for old, new in names.items()
    ]
