"""`gpuboard alerts`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from site_builder.alerts import table as alert_table
from site_builder.alerts.model import (
    Alert,
    AlertMessage,
    AlertReceiver,
    AlertRule,
    AlertState,
    Condition,
    DeliveryOutcome,
    DeliveryRecord,
    Notification,
    TrackedCondition,
)
from site_builder.alerts.rules import DEFAULT_RULES
from site_builder.alerts.store import AlertStore
from site_builder.alerts.table import ConditionTableStatus, explain_waiting_condition
from site_builder.board.builder import Builder
from site_builder.cli import main
from site_builder.config.settings import load_settings
from site_builder.core import terminal_text
from site_builder.core.clock import Now
from tests.support.board_fixture import Lab, gpu, soon
from tests.support.booking_fixtures import Terminal
from tests.support.docs import ROOT
from tests.support.sender_fixtures import Receiver, run_receiver

# apprise imports what Python will drop
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NOW = Now(1_790_000_000, timezone.utc)  # 14:13:20
AT = int(NOW.epoch)
DOWN = Condition("host-down", "atlas", what="no snapshot since 14:02", since=AT - 680, people=("alice", "bob"))
HOT = Condition("gpu-hot", "hydra", "GPU-1", ("1", "3"), "it is at 97 °C", AT - 7200)
ENDS = Condition(
    "booking-ends", "atlas", "b1", ("0", "1"), since=AT - 60, owners=("alice",), is_lasting=False, until=AT + 2400
)
SECRET = "hunter2"  # noqa: S105 # of nobody


def alert(title: str = "atlas is down", **overrides: Any) -> Alert:  # noqa: ANN401 # any field
    return Alert("a", "host-down", "begun", title, "no snapshot", AT, host="atlas", why="it held for 2m")._replace(
        **overrides
    )


def build_notification(**overrides: Any) -> Notification:  # noqa: ANN401 # any field
    return Notification("l", "channel:lab", (alert(),), AT - 60, AT)._replace(**overrides)


# The tables


def test_the_list_shows_conditions_and_whether_they_were_reported() -> None:
    alert_list = alert_table.AlertList(
        [
            ConditionTableStatus(TrackedCondition(DOWN, AT - 600, reported_at=AT - 480), "reported", "", AT - 680),
            ConditionTableStatus(
                TrackedCondition(HOT, AT - 7000, cleared_at=AT - 60), "unreported", "the rule gpu-hot is off", AT - 7200
            ),
            ConditionTableStatus(TrackedCondition(ENDS, AT - 60), "upcoming", "", AT + 600),
        ],
        [build_notification(tries=3, due_at=AT + 120, last_error="it refused the connection")],
        {"zeus": AT + 3600},
        [
            AlertReceiver("channel:lab", "slack://•••"),
            AlertReceiver("channel:ops", "foo://•••", "apprise does not know foo://"),
            AlertReceiver("mail", "mail (mailto://…)"),
        ],
        [DEFAULT_RULES["host-down"], AlertRule("gpu-hot", on=False), DEFAULT_RULES["weekly-report"]._replace(on=True)],
    )
    assert alert_table.format_alert_list(alert_list, NOW, 80) == [
        "Conditions: 2",
        "  since  rule       where      reported",
        "  14:02  host-down  atlas      14:05",
        "      no snapshot since 14:02; affects alice and bob",
        "  12:13  gpu-hot    hydra:1,3  no",
        "      it is at 97 °C; the rule gpu-hot is off; over since 14:12",
        "",
        "Upcoming: 1",
        "  at     rule          where      whose",
        "  14:23  booking-ends  atlas:0,1  alice",
        "",
        "Queued notifications: 1",
        "  created  to   due",
        "  14:12    lab  14:15",
        "      atlas is down",
        "      tried 3 times: it refused the connection",
        "",
        "Silenced",
        "  zeus until 15:13",
        "",
        "Receivers",
        "  lab     slack://•••",
        "  ops     foo://•••",
        "      apprise does not know foo://",
        "  people  mail (mailto://…)",
        "",
        "Rules",
        "  rule           when                     to          quiet  an hour",
        "  host-down      after 2m, over after 5m  all, hooks  -      20",
        "  gpu-hot        off",
        "  weekly-report  Mon 08:00                all         -      20",
    ]


def test_the_list_without_conditions_is_short() -> None:
    lines = alert_table.format_alert_list(alert_table.AlertList([], [], {}, [], []), NOW, 80)
    assert lines == ["Conditions: none", "", "Receivers: none", "", "Rules"]


def test_the_history_shows_receivers_and_outcomes() -> None:
    delivery_records = [
        DeliveryRecord(AT - 60, "channel:lab", "sent", (alert(), alert("zeus is down"))),
        DeliveryRecord(AT - 90000, "person:alice", "given up", (alert(),), "mail.lab.org refused it", 9),
        DeliveryRecord(
            AT - 90000, "hook:page", "unsure", tuple(alert(f"h{at} is down") for at in range(7)), "it was ended"
        ),
    ]
    assert alert_table.format_history_table(delivery_records, NOW, 80) == [
        "  when          to         how",
        "  14:12         lab        sent",
        "      atlas is down",
        "      zeus is down",
        "  20 Sep 13:13  alice      given up, after 9 tries",
        "      atlas is down",
        "      mail.lab.org refused it",
        "  20 Sep 13:13  hook:page  unsure",
        *(f"      h{at} is down" for at in range(5)),
        "      and 2 more",
        "      it was ended",
    ]


def test_a_dry_run_shows_each_notification_with_receivers_and_reasons() -> None:
    message = AlertMessage("atlas is down", "no snapshot since 14:02\n\nhttps://gpus.lab.org/hosts/atlas.html\n", "")
    untold = [ConditionTableStatus(TrackedCondition(HOT, AT - 60), "unreported", "it is so for 1 min", AT - 7200)]
    planned_notifications = [
        (build_notification(), message, "Slack (slack://…)"),
        (build_notification(to="hook:page", due_at=AT + 600), message, ""),
    ]
    assert alert_table.format_dry_run_table(planned_notifications, untold, NOW, 80) == [
        "Would be sent: 2 notifications",
        "",
        "  to lab, Slack (slack://…), due",
        "  to hook:page, due at 14:23",
        "  | atlas is down",
        "  | no snapshot since 14:02",
        "  |",
        "  | https://gpus.lab.org/hosts/atlas.html",
        "  why: it held for 2m",
        "",
        "Would not be reported: 1",
        "  since  rule     where",
        "  12:13  gpu-hot  hydra:1,3",
        "      it is at 97 °C; it is so for 1 min",
    ]


@pytest.mark.parametrize("across", [40, 80, 200])
def test_no_line_is_longer_than_the_terminal(across: int) -> None:
    long = DOWN._replace(host="x" * 63, what="慶 " * 90, people=("y" * 60,) * 9)
    alert_list = alert_table.AlertList(
        [ConditionTableStatus(TrackedCondition(long, AT), "unreported", "why " * 50, AT)],
        [build_notification(to=f"person:{'z' * 60}", tries=1, last_error="because " * 40)],
        {},
        [AlertReceiver("lab", "slack://•••", "what is wrong " * 20)],
        list(DEFAULT_RULES.values()),
    )
    trial = [(build_notification(), AlertMessage("t " * 90, "w " * 300, ""), "slack://•••")]
    for lines in (
        alert_table.format_alert_list(alert_list, NOW, across),
        alert_table.format_dry_run_table(trial, alert_list.conditions, NOW, across),
    ):
        assert [line for line in lines if terminal_text.measure_width(line) > across] == []


def test_the_list_explains_why_notifications_wait() -> None:
    notifications = [
        build_notification(),
        build_notification(to="person:alice"),
        build_notification(to="hook:page", claimed_by="somebody"),
        build_notification(to="channel:ops", due_at=AT + 600),
        build_notification(to="channel:all-of-us", due_at=AT + 600, tries=2, last_error="it is full"),
    ]
    assert explain_waiting_condition(notifications, NOW).split("; ") == [
        "the notifications to lab and alice are due",
        "the notification to hook:page is being sent",
        "the notification to ops is due at 14:23",
        "the notification to all-of-us is tried again at 14:23 (it is full)",
    ]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (DeliveryOutcome("sent", "202"), "lab: sent"),
        (DeliveryOutcome("failed", "it is full"), "lab: not sent: it is full"),
        (DeliveryOutcome("unsure", "it did not answer"), "lab: may have arrived: it did not answer"),
    ],
)
def test_the_outcome_of_a_test_is_one_sentence(outcome: DeliveryOutcome, words: str) -> None:
    assert alert_table.format_table_outcome("channel:lab", outcome) == words


# The commands


class Board:
    """A lab with a receiver, and the command in it."""

    def __init__(self, folder: Path, channel: Receiver, capture: pytest.CaptureFixture[str]) -> None:
        self.lab, self.channel, self.capture = Lab(folder), channel, capture
        for host in ("atlas", "hydra"):
            self.lab.host(host, "".join(gpu(index, uuid=f"GPU-{host}-{index}") for index in range(2)))
        self.conf = folder / "gpuboard.conf"
        self.set(f"lab=json://user:{SECRET}@127.0.0.1:{channel.server_port}/")

    def set(self, notify: str, *extra_lines: str) -> None:
        """What is set."""
        lines = (f"GPUBOARD_NOTIFY={notify}", "GPUBOARD_URL=https://gpus.lab.org/", "GPUBOARD_ZONE=UTC", *extra_lines)
        self.conf.write_text("\n".join(lines) + "\n")
        self.conf.chmod(0o600)

    def run(self, *words: str) -> tuple[int, str, str]:
        """`gpuboard alerts WORDS`: its exit code, and what it said on both streams; never a secret."""
        lab = self.lab
        names = ("--conf", self.conf, "--data", lab.data, "--www", lab.www, "--state", lab.state)
        with pytest.raises(SystemExit) as end:
            main(["alerts", *words, *map(str, names)])
        captured_output = self.capture.readouterr()
        assert SECRET not in captured_output.out + captured_output.err
        assert isinstance(end.value.code, int)
        return end.value.code, captured_output.out, captured_output.err

    def json(self, *words: str) -> dict[str, Any]:
        """The same, as a program reads it."""
        parsed_output: dict[str, Any] = json.loads(self.run(*words, "--json")[1])
        return parsed_output

    @property
    def alert_state(self) -> AlertState:
        """As it is kept."""
        return AlertStore(self.lab.state).read()

    def write(self, alert_state: AlertState) -> None:
        """Keep another one."""
        AlertStore(self.lab.state).change(lambda _: alert_state)

    def files(self) -> dict[str, tuple[int, int]]:
        """Everything in its folders, and when it was written."""
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size)
            for top in (self.lab.data, self.lab.state)
            for path in top.rglob("*")
            if path.is_file() and not path.name.startswith("history.db-")  # of SQLite, for whoever reads
        }


@pytest.fixture(scope="module")
def channel() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        yield receiver


@pytest.fixture
def board(tmp_path: Path, channel: Receiver, capsys: pytest.CaptureFixture[str]) -> Board:
    channel.got.clear()
    return Board(tmp_path, channel, capsys)


@pytest.mark.slow
def test_a_test_goes_to_every_channel_and_says_how_each_went(board: Board) -> None:
    board.set(f"{board.conf.read_text().partition('=')[2].split()[0]} ops=json://127.0.0.1:1/")
    code, out, _ = board.run("test")
    assert code == 1
    first, second = out.splitlines()
    assert first == "lab: sent"
    assert second.startswith("ops: not sent: ")
    assert [json.loads(request)["title"] for request in board.channel.got] == ["gpuboard: a test"]
    assert board.alert_state == AlertState()


def test_a_test_can_go_to_one(board: Board) -> None:
    board.set(f"{board.conf.read_text().partition('=')[2].split()[0]} ops=json://127.0.0.1:1/")
    assert board.run("test", "--to", "lab")[:2] == (0, "lab: sent\n")
    assert board.json("test", "--to", "lab")["tests"] == [{"to": "channel:lab", "status": "sent", "reason": ""}]
    assert len(board.channel.got) == 2
    code, out, err = board.run("test", "--to", "lap")
    assert (code, out) == (2, "")
    assert err == "gpuboard: unknown receiver 'lap'; use lab, ops or person:LOGIN\n"


def test_a_test_reaches_hooks_too(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_builder.alerts.hooks.find_hook_permission_problem", lambda _: None)  # /tmp is
    hooks = tmp_path / "hooks"
    hooks.mkdir(mode=0o700)
    (hooks / "keep").write_text(f"#!/bin/sh\ncat > {tmp_path}/got.json\n")
    (hooks / "keep").chmod(0o700)
    board.set("", f"GPUBOARD_HOOKS={hooks}")
    assert board.run("test")[:2] == (0, "hook:keep: sent\n")
    assert json.loads((tmp_path / "got.json").read_text())["step"] == "test"


def test_without_receivers_it_says_what_to_set(board: Board) -> None:
    board.set("")
    for words, expected in ((["test"], 2), (["run"], 2), (["run", "--dry-run"], 0), (["list"], 0)):
        code, _, err = board.run(*words)
        assert (code, err.count("\n")) == (expected, 1)
        assert "set GPUBOARD_NOTIFY, GPUBOARD_MAIL or GPUBOARD_HOOKS" in err


def test_the_list_shows_the_stored_state(board: Board) -> None:
    assert "no build has evaluated the alert rules yet" in board.run("list")[2]
    now = int(time.time())
    evil = HOT._replace(what="a\x1b[2Jb")
    tracked_conditions = {entry.key: TrackedCondition(entry, now - 600, reported_at=now) for entry in (DOWN, evil)}
    board.write(
        AlertState(
            started_at=1,
            conditions=tracked_conditions,
            notifications=(build_notification(to="person:alice"),),
            silences={"atlas": now + 60, "hydra": 1},
        )
    )
    code, out, err = board.run("list")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert "no snapshot since 14:02; affects alice and bob" in out
    listing = board.json("list")
    assert [(entry["rule"], entry["state"]) for entry in listing["conditions"]] == [
        ("host-down", "waiting"),
        ("gpu-hot", "reported"),
    ]
    assert [entry["to"] for entry in listing["notifications"]] == ["person:alice"]
    assert listing["silences"] == [{"host": "atlas", "until": now + 60}]
    assert [entry["name"] for entry in listing["rules"]] == list(DEFAULT_RULES)


def test_the_history_goes_back_as_far_as_asked_the_latest_first(board: Board) -> None:
    now = int(time.time())
    delivery_records = [
        DeliveryRecord(now - age, "channel:lab", "sent", (alert(f"{age} s ago"),)) for age in (864000, 7200, 60)
    ]
    board.write(AlertState(started_at=1, history=tuple(delivery_records)))
    history_entries = board.json("history")["history"]
    assert [entry["alerts"][0]["title"] for entry in history_entries] == ["60 s ago", "7200 s ago"]
    schema = json.loads((ROOT / "docs/alert.schema.json").read_text())
    jsonschema.validate({"schema": 1, **history_entries[0]["alerts"][0]}, schema)  # as hooks have it
    assert len(board.json("history", "--since", "30d")["history"]) == 3
    assert board.run("history", "--since", "1h")[1].splitlines()[2:] == ["      60 s ago"]
    board.write(AlertState(started_at=1))
    assert board.run("history")[2].startswith("gpuboard: nothing was sent since ")
    assert board.run("history", "--since", "soon")[0] == 2


def test_a_host_is_silenced_for_a_while_and_speaks_again(board: Board) -> None:
    board.write(AlertState(started_at=1, silences={"long-gone": 5}))
    before = time.time()
    code, out, err = board.run("silence", "atlas", "HYDRA", "--for", "2h")
    assert (code, out) == (0, "")
    assert err.startswith("gpuboard: atlas is silenced until ")
    assert [*board.alert_state.silences] == ["atlas", "hydra"]
    assert all(before + 7195 <= until <= time.time() + 7205 for until in board.alert_state.silences.values())
    assert board.run("silence", "atlas", "--end")[2] == "gpuboard: atlas is no longer silenced\n"
    assert board.run("silence", "atlas", "--end")[2] == "gpuboard: atlas was not silenced\n"
    assert [*board.alert_state.silences] == ["hydra"]
    board.write(AlertState(started_at=1, silences={"forgotten": int(before) + 600}))
    assert board.run("silence", "forgotten", "--end")[2] == "gpuboard: forgotten is no longer silenced\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["atlsa", "--for", "2h"], 1, "no host atlsa; did you mean atlas?"),
        (["atlas"], 2, "give a duration such as --for 2h, or --end"),
        (["atlas", "--for", "2h", "--end"], 2, "give a duration such as --for 2h, or --end"),
        (["atlas", "--for", "2"], 2, '"2" has no unit'),
        (["atlas", "--for", "40d"], 2, "up to 31 days"),
    ],
)
def test_a_silence_that_is_not_understood_changes_nothing(board: Board, words: list[str], code: int, said: str) -> None:
    outcome = board.run("silence", *words)
    assert outcome[0] == code
    assert said in outcome[2]
    assert board.alert_state == AlertState()


def test_a_state_folder_that_is_not_there_is_one_sentence(board: Board) -> None:
    board.lab.state.rmdir()
    for words in (["list"], ["history"], ["silence", "atlas", "--for", "2h"], ["run"], ["run", "--dry-run"]):
        code, out, err = board.run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "`gpuboard build` creates it" in err


def test_a_damaged_state_is_reported(board: Board) -> None:
    (board.lab.state / "alerts.json").write_bytes(b"{")
    for words in ("list", "history"):
        code, _, err = board.run(words)
        assert code == 0
        assert "alerts.json is damaged: starting over" in err


# What waits, and what would


def test_run_sends_due_notifications_once_and_prints_each(board: Board) -> None:
    now = int(time.time())
    due, later = (
        build_notification(created_at=now, due_at=now),
        build_notification(id="m", created_at=now, due_at=now + 3600),
    )
    board.write(AlertState(started_at=1, notifications=(due, later)))
    assert board.run("run")[:2] == (0, "lab: sent\n      atlas is down\n")
    assert board.run("run") == (0, "", "gpuboard: no notification is due\n")
    assert len(board.channel.got) == 1
    assert [entry.id for entry in board.alert_state.notifications] == ["m"]
    assert [entry.status for entry in board.alert_state.history] == ["sent"]


def test_run_exits_1_if_a_notification_failed(board: Board) -> None:
    now = int(time.time())
    board.channel.answers.append((503, {}))
    board.write(AlertState(started_at=1, notifications=(build_notification(created_at=now, due_at=now),)))
    code, out, _ = board.run("run")
    assert code == 1
    assert out.startswith("lab: not sent: ")
    assert board.alert_state.notifications[0].tries == 1


@pytest.mark.slow
def test_a_dry_run_shows_the_next_build_and_changes_nothing(board: Board) -> None:
    alerts = load_settings(str(board.conf), {}, {}).settings.alerts
    board.lab.build(alerts=alerts)
    board.run("silence", "atlas", "--for", "2h")
    for host in ("atlas", "hydra"):
        board.lab.write(host, "gpus.csv", "# err no devices were found\n", rc=6)
    board.lab.build(alerts=alerts)
    assert board.json("run", "--dry-run")["notifications"] == []  # it must hold
    longer = {
        key: entry._replace(first_seen_at=entry.first_seen_at - 600)
        for key, entry in board.alert_state.conditions.items()
    }
    board.write(board.alert_state._replace(conditions=longer))
    before = board.files()
    code, out, err = board.run("run", "--dry-run")
    assert (code, err) == (0, "")
    sent, unsent = out.split("Would not be reported: 1\n")
    assert sent.startswith("Would be sent: 1 notification\n\n  to lab, JSON (json://…), due\n")
    assert "\n  | hydra has failed\n" in sent
    assert "\n  | https://gpus.lab.org/hosts/hydra.html\n" in sent
    assert "\n  why: rule host-failed: it has lasted 1" in sent
    assert "host-failed  atlas\n" in unsent
    assert unsent.endswith("atlas is silenced\n")
    after = board.files()
    assert [name for name in {**before, **after} if before.get(name) != after.get(name)] == []
    assert board.channel.got == []
    builder = Builder(board.lab.settings(alerts=alerts))
    builder.build(time.time())
    assert builder.alert_engine
    assert builder.alert_engine.sender_process
    assert builder.alert_engine.sender_process.wait(60) == 0
    builder.close()
    assert [json.loads(entry)["title"] for entry in board.channel.got] == ["hydra has failed"]
    assert [entry["alerts"][0]["title"] for entry in board.json("history")["history"]] == ["hydra has failed"]


def test_a_dry_run_removes_no_watch(board: Board) -> None:
    wish = {"id": "w1", "name": "alice", "when": "2 A100 free on one host", "made": soon(-900), "until": soon(3600)}
    (board.lab.data / "watches.json").write_text(json.dumps([wish]))
    (board.lab.state / "watches.json").write_text(json.dumps({"w1": int(time.time()) - 60}))
    board.write(AlertState(started_at=1))
    before = board.files()
    (notification,) = (
        planned_notification
        for planned_notification in board.json("run", "--dry-run")["notifications"]
        if planned_notification["to"] == "person:alice"
    )
    assert "you waited for 2 A100" in notification["text"]
    assert "no contact for alice" in notification["address"]
    assert board.files() == before


@pytest.mark.slow
def test_the_list_fits_a_terminal(board: Board) -> None:
    now = int(time.time())
    board.write(
        AlertState(
            started_at=1,
            conditions={DOWN.key: TrackedCondition(DOWN._replace(what="word " * 60), now, reported_at=now)},
        )
    )
    terminal = Terminal(board.lab.data.parent, "alerts", "list", "--conf", str(board.conf), COLUMNS="80")
    code, output = terminal.end()
    assert code == 0
    assert [line for line in output.splitlines() if terminal_text.measure_width(line) > 80] == []
