"""Whoever waits for GPUs is notified once, when they have been free for a while."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from site_builder.alerts.model import AlertRule, AlertState, Condition
from site_builder.board.builder import Builder
from site_builder.board.host_pipeline import BuiltHost
from site_builder.bookings import store as booking_store
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import BookingUser
from site_builder.core.clock import Now
from site_builder.core.locks import LockedFileError
from site_builder.core.model import AlertSettings
from site_builder.watches import board_requests
from site_builder.watches.build import HOLD_S, WatchConditions
from tests.support.board_fixture import Lab, gpu, process
from tests.support.booking_fixtures import lab_of
from tests.support.receivers import Post, mail_server
from tests.support.sender_fixtures import wait_until

ALICE, BOB = BookingUser("alice", via="web, token"), BookingUser("bob", via="web, token")
TELLS = AlertSettings(mail_url="mailto://127.0.0.1:1", mail_domain="lab.example.org")
MADE = 1_790_000_000
ENTRY: dict[str, Any] = {
    "id": "k7m2xp",
    "name": "alice",
    "when": "2 A100 free on one host",
    "via": "mail",
    "made": "2026-11-16T10:00:00+00:00",
    "until": "2026-11-20T18:00:00+01:00",
}
RULE = AlertRule("watch", to=("person",))


def written(*entries: object) -> bytes:
    return json.dumps(entries).encode()


def desk_of(lab: Lab, **changes: Any) -> BookingService:  # noqa: ANN401
    return BookingService(lab.settings(**{"alerts": TELLS, **changes}))


def watch(desk: BookingService, who: BookingUser, when: str, **extra_fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return board_requests.handle_board_request(desk, {"do": "watch", "when": when, **extra_fields}, who)


def ids(desk: BookingService, who: BookingUser) -> list[str]:
    return [watch_entry["id"] for watch_entry in board_requests.answer_board_list_request(desk, who)["watches"]]


class Watched:
    """A board whose builds are looked at for watches, at moments that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.lab = lab_of(folder)
        self.busy("atlas", 4)
        self.busy("zeus", 2)
        self.desk = desk_of(self.lab)
        self.watches = WatchConditions(self.lab.settings(alerts=TELLS))
        self.now = time.time()

    def busy(self, host: str, count: int, free: tuple[int, ...] = ()) -> None:
        """A host all of whose GPUs are in use but for some."""
        name = "NVIDIA H100 80GB HBM3" if host == "zeus" else "NVIDIA A100-SXM4-80GB"
        rows = [
            gpu(gpu_index, 4 if gpu_index in free else 9000, 0, name, f"GPU-{host}-{gpu_index}")
            for gpu_index in range(count)
        ]
        busy = [
            process(gpu_index + 9, f"GPU-{host}-{gpu_index}") for gpu_index in range(count) if gpu_index not in free
        ]
        self.lab.host(host, "".join(rows), "".join(busy))

    def cards(self) -> Mapping[str, BuiltHost]:
        builder = Builder(self.lab.settings())
        builder.build(time.time())
        builder.close()
        return builder.pipeline.built_hosts

    def look(self, after: float = 0, rule: AlertRule = RULE, alert_state: AlertState | None = None) -> list[Condition]:
        self.now += after
        conditions = self.watches.find_conditions(self.cards(), rule, Now(self.now, timezone.utc))
        current_state = (
            AlertState(reported_once={condition.key: MADE for condition in conditions})
            if alert_state is None
            else alert_state
        )
        self.watches.save_fulfilled_since()
        self.watches.remove_finished(conditions, current_state)
        return conditions

    def left(self) -> list[str]:
        path = self.lab.data / "watches.json"
        return [watch_entry["id"] for watch_entry in json.loads(path.read_bytes())] if path.exists() else []


@pytest.fixture
def board(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_watch_is_reported_once_when_fulfilled_for_a_while(board: Watched) -> None:
    made = watch(board.desk, ALICE, "2 H100", via="mail")["watches"][0]["id"]
    second_id = watch(board.desk, BOB, "3 A100")["watches"][0]["id"]
    assert board.look() == []
    board.busy("zeus", 2, (1,))
    assert board.look(60) == []
    board.busy("zeus", 2, (0, 1))
    assert board.look(10) == []
    board.watches = WatchConditions(board.lab.settings(alerts=TELLS))  # the next builder takes up what this one saw
    (condition,) = board.look(HOLD_S)
    assert (condition.rule, condition.host, condition.about, condition.gpus) == ("watch", "zeus", made, ("0", "1"))
    assert (condition.owners, condition.people, condition.via, condition.is_lasting) == (
        ("alice",),
        ("alice",),
        "mail",
        False,
    )
    assert condition.what == "zeus:0,1 are free (H100 80 GB); you waited for 2 H100 free on one host"
    assert condition.since == int(board.now - HOLD_S)
    assert board.left() == [second_id]
    assert board.look(10) == []


def test_gpus_that_are_free_for_a_moment_are_not_reported(board: Watched) -> None:
    watch(board.desk, ALICE, "1 H100")
    board.busy("zeus", 2, (0,))
    assert board.look() == []
    board.busy("zeus", 2)
    assert board.look(HOLD_S - 5) == []
    board.busy("zeus", 2, (0,))
    assert board.look(10) == []
    assert len(board.look(HOLD_S)) == 1


def test_in_quiet_hours_a_watch_waits_for_their_end(board: Watched) -> None:
    watch(board.desk, ALICE, "1 H100")
    board.busy("zeus", 2, (0,))
    board.now = board.now // 86400 * 86400 + 3 * 3600
    board.watches.file.read()
    quiet = RULE._replace(quiet_hours=(22 * 60, 7 * 60))
    assert board.look(0, quiet) == []
    assert board.look(HOLD_S, quiet) == []
    assert board.look(1, RULE._replace(on=False)) == []
    assert len(board.left()) == 1
    assert len(board.look(4 * 3600, quiet)) == 1


def test_a_watch_over_several_hosts_names_each_place_and_keeps_its_key(board: Watched) -> None:
    watch(board.desk, ALICE, "3 GPUs anywhere")
    board.busy("zeus", 2, (1,))
    board.busy("atlas", 4, (0, 3))
    board.look()
    (condition,) = board.look(HOLD_S, alert_state=AlertState())
    assert (condition.host, condition.gpus) == ("", ())
    assert condition.what.startswith(
        "atlas:0,3 and zeus:1 are free (A100 80 GB, H100 80 GB); you waited for 3 GPUs free anywhere"
    )
    assert condition.key == condition._replace(host="zeus").key
    assert len(board.left()) == 1  # nothing in the book says that it was told


def test_an_expired_watch_is_removed_without_a_report(board: Watched) -> None:
    watch(board.desk, ALICE, "1 H100", until="1h")
    board.busy("zeus", 2, (0,))
    board.watches.fulfilled_since = {}
    assert board.look(3601) == []
    assert board.left() == []


def test_a_failed_removal_and_a_broken_file_are_problems(board: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(board.desk, ALICE, "1 H100")
    board.busy("zeus", 2, (0,))
    board.look()
    monkeypatch.setattr(
        booking_store, "replace_booking_store_file", lambda *_: (_ for _ in ()).throw(LockedFileError("no room"))
    )
    assert len(board.look(HOLD_S)) == 1
    assert [(problem.where, problem.what) for problem in board.watches.problems] == [
        ("data/watches.json", "ended watches could not be removed: no room")
    ]
    monkeypatch.undo()
    (board.lab.data / "watches.json").write_text("[")
    board.look(10, alert_state=AlertState())
    assert [problem.what[:40] for problem in board.watches.problems] == ["not read: line 1, column 2: a value is m"]


def test_a_build_does_not_wait_for_another_writer(board: Watched) -> None:
    watch(board.desk, ALICE, "1 H100")
    board.busy("zeus", 2, (0,))
    board.look()
    with booking_store.hold_booking_store_lock(board.lab.data):
        assert len(board.look(HOLD_S)) == 1
        assert (len(board.left()), board.watches.problems) == (1, [])
    board.look(1)
    assert board.left() == []


def test_a_person_has_a_limited_number_of_watches(board: Watched) -> None:
    (board.lab.data / "watches.json").write_bytes(
        written(*({**ENTRY, "id": f"x{number}", "when": "1 GPU", **fresh()} for number in range(60)))
    )
    board.busy("zeus", 2, (0,))
    board.look()
    assert len(board.look(HOLD_S)) == 20


def fresh() -> dict[str, str]:
    """Times of a watch that still counts."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    return {"made": now.isoformat(), "until": (now + timedelta(days=1)).isoformat()}


@pytest.mark.slow
def test_one_mail_comes_however_often_the_board_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_builder.watches.build.HOLD_S", 0)  # who sends goes by the clock of this machine
    board = Watched(tmp_path)
    post = Post()
    with mail_server(post) as port:
        mail = f"mailto://127.0.0.1:{port}?from=board@lab.example.org"
        alerts = AlertSettings(mail_url=mail, mail_domain="lab.example.org")
        settings = board.lab.settings(alerts=alerts, url="https://board.example.org/")
        watch(board.desk, ALICE, "2 H100", via="mail")
        before = (board.lab.data / "watches.json").read_bytes()
        builder = Builder(settings, 10)
        builder.build(time.time())
        board.busy("zeus", 2, (0, 1))
        builder.build(time.time())
        assert board.left() == []
        wait_until(lambda: post.came)
        (board.lab.data / "watches.json").write_bytes(before)  # as somebody does who edits an old copy
        for _ in range(2):
            builder.build(time.time())
        assert board.left() == []
        wait_until(
            lambda: (
                not builder.alert_engine
                or not builder.alert_engine.sender_process
                or builder.alert_engine.sender_process.poll() is not None
            )
        )
        builder.close()
    ((to, told),) = post.came
    assert to == ("alice@lab.example.org",)
    assert told["Subject"] == "alice: zeus:0,1 are free (H100 80 GB)"
    text = told.get_body(("plain",))
    assert text
    assert "zeus:0,1 are free (H100 80 GB); you waited for 2 H100 free on one host." in text.get_content()
    assert "https://board.example.org/hosts/zeus.html" in text.get_content()
