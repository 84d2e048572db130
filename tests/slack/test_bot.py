"""`gpuboard slack` against a stand-in of Slack."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from site_builder.alerts import slack_client
from site_builder.alerts.model import AlertMessage
from site_builder.core import locks
from site_builder.core.model import SlackAccess
from tests.support import block_kit
from tests.support.board_fixture import Lab, gpu, person, process, soon
from tests.support.command_line import ROOT, clean_environment, run_gpuboard
from tests.support.slack_stand_in import ACCEPTED_WITHIN, APP_TOKEN, BOT_TOKEN, GENERAL, ME, Slack, member

ALICE, BOB, CAROL, EVE = "UALICE001", "UBOB00001", "UCAROL001", "UEVE00001"
HOSTILE = "<!channel> *x* & <@UBOB00001> `y`"


class Bot:
    """The command in a folder, against a stand-in."""

    def __init__(self, folder: Path, slack: Slack, **extra_variables: str) -> None:
        self.log = folder / f"log-{time.monotonic_ns()}"
        self.environment = {**settings(slack), **extra_variables}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "site_builder", "slack"],
                cwd=folder,
                env=clean_environment(**self.environment),
                stdout=log,
                stderr=log,
            )

    def said(self) -> str:
        return self.log.read_text()

    def end(self, by: int = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return self.process.wait(60)


def settings(slack: Slack) -> dict[str, str]:
    """Of a lab in the folder where it is started."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "")
    return {
        "GPUBOARD_SLACK_BOT_TOKEN": BOT_TOKEN,
        "GPUBOARD_SLACK_APP_TOKEN": APP_TOKEN,
        "GPUBOARD_SLACK_URL": slack.url,
        "GPUBOARD_CONTACTS": "contacts.csv",
        "GPUBOARD_MAIL_DOMAIN": "lab.org",
        "GPUBOARD_ZONE": "UTC",
        "GPUBOARD_URL": "https://gpus.lab.org/",
        **proxies,
    }


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("slack")
    lab = Lab(folder)
    lab.host(
        "atlas",
        gpu(0) + gpu(1, 70000, 90) + gpu(2, 70000, 80),
        process(42, "GPU-1") + process(43, "GPU-2"),
        person(42, "alice", f"python train.py {HOSTILE}") + person(43, "bob", "python eval.py"),
        every=600,
    )
    lab.host("zeus", gpu(0, name="NVIDIA H100 80GB HBM3", uuid="GPU-z0"), every=600)
    (lab.data / "hosts.txt").write_text("hera\n")
    lab.book({"zeus": {"0": {"name": "bob", "from": soon(7200), "date": soon(9000), "comment": HOSTILE}}})
    contacts = folder / "contacts.csv"
    contacts.write_text(f"alice,slack:{ALICE}\nbob,bob@elsewhere.org\n")
    contacts.chmod(0o600)
    lab.build(url="https://gpus.lab.org/")
    return lab


@pytest.fixture(scope="module")
def workspace() -> Iterator[Slack]:
    with Slack() as fake_slack:
        fake_slack.members = {
            ALICE: member("alice@lab.org"),
            BOB: member("bob@elsewhere.org"),
            CAROL: member("carol@lab.org"),
            EVE: member("alice@lab.org", is_email_confirmed=False),
        }
        yield fake_slack


@pytest.fixture(scope="module")
def bot(lab: Lab, workspace: Slack) -> Iterator[Bot]:
    started_bot = Bot(lab.data.parent, workspace)
    try:
        workspace.wait(lambda: workspace.lines or started_bot.process.poll() is not None, 120)
        assert started_bot.process.poll() is None, started_bot.said()
        yield started_bot
    finally:
        started_bot.process.kill()
        started_bot.process.wait()


@pytest.fixture(scope="module")
def slack(bot: Bot, workspace: Slack) -> Slack:
    """The workspace with the bot in it."""
    assert bot.process.pid
    return workspace


def anyone() -> str:
    """Somebody who has asked nothing yet: nobody is answered more than 20 times a minute."""
    return f"U{time.monotonic_ns():012}"


def words(posted: dict[str, Any]) -> str:
    """All texts of a message, one a line."""
    assert block_kit.faults(posted) == []
    return "\n".join(block_kit.texts(posted.get("blocks", [])) if posted.get("blocks") else [posted["text"]])


def rows(posted: dict[str, Any]) -> list[list[str]]:
    """The table of a message, without its titles."""
    (table,) = (block for block in posted["blocks"] if block["type"] == "table")
    return [[cell["text"] for cell in row] for row in table["rows"][1:]]


# What it answers


@pytest.mark.slow
def test_hosts_are_listed_below_the_question_and_a_silent_host_is_not_idle(slack: Slack) -> None:
    envelope = slack.says(anyone(), "hosts", GENERAL)
    before = len(slack.posted)
    assert slack.tell(envelope) == [True]
    slack.wait(lambda: len(slack.posted) > before)
    posted = slack.posted[before]
    assert (posted["channel"], posted["thread_ts"]) == (GENERAL, envelope["payload"]["event"]["ts"])
    assert [row[:3] for row in rows(posted)] == [["atlas", "up", "1/3"], ["hera", "unseen", "?"], ["zeus", "up", "1/1"]]
    assert posted["text"] == "3 hosts, 2 of 4 GPUs free"
    assert "<https://gpus.lab.org/|the board>" in words(posted)


@pytest.mark.slow
def test_all_lists_users_and_gpus_and_mentions_nobody(slack: Slack) -> None:
    text_by_host = dict(rows(slack.ask(anyone(), "all")))
    assert text_by_host["atlas"] == "0 free · 1 alice · 2 bob"
    assert text_by_host["hera"].startswith("unseen: ")
    detail = slack.ask(anyone(), "all detail")
    assert "thread_ts" not in detail
    row_by_gpu = {row[0]: row for row in rows(detail)}
    assert "alice train.py ‹!channel›" in row_by_gpu["atlas:1"][-1]  # noqa: RUF001
    assert row_by_gpu["atlas:1"][2:4] == ["90 %", "68/80 GiB"]
    assert "then booked: bob" in row_by_gpu["zeus:0"][-1]
    assert [row[0] for row in rows(slack.ask(anyone(), "all detail zeus"))] == ["zeus:0"]


def test_where_takes_a_login_a_mention_or_me_and_hints_at_slips(slack: Slack) -> None:
    posted = slack.ask(anyone(), "where alice")
    assert posted["text"] == "alice is on 1 GPU of 1 host"
    assert rows(posted)[0][:2] == ["atlas", "1"]
    assert "unknown: hera is unseen" in words(posted)
    assert slack.ask(anyone(), f"where <@{ALICE}>")["text"] == posted["text"]
    assert slack.ask(anyone(), "where <@UNOBODY99>")["text"] == "I do not know who that is"
    assert slack.ask(ALICE, "where me")["text"] == posted["text"]
    assert "did you mean alice?" in words(slack.ask(anyone(), "where alcie"))
    booked = words(slack.ask(anyone(), "where bob"))
    assert "booked: zeus:0 from" in booked
    assert "&lt;!channel&gt;" in booked


def test_free_lists_the_best_gpus_first(slack: Slack) -> None:
    posted = slack.ask(anyone(), "free")
    assert posted["text"] == "2 GPUs free"
    assert {row[0] for row in rows(posted)} == {"atlas", "zeus"}
    assert [row[0] for row in rows(slack.ask(anyone(), "free h100"))] == ["zeus"]
    none = slack.ask(anyone(), "free V100")
    assert none["text"] == "No V100 is free"
    assert "no GPU of that model; available models:" in words(none)


def test_an_unknown_command_gets_help_and_a_hint(slack: Slack) -> None:
    assert slack.ask(anyone(), "")["text"] == "Commands"
    assert "`release ID`" in words(slack.ask(anyone(), "help", GENERAL))
    assert "did you mean `hosts`?" in words(slack.ask(anyone(), "hosst"))
    assert slack.ask(anyone(), HOSTILE.replace("&", "&amp;"))["text"].startswith("Unknown command")


def test_book_and_release_act_as_the_person_in_the_contacts(slack: Slack, lab: Lab) -> None:
    posted = slack.ask(ALICE, "book atlas:0 for 2h comment ICML &amp; co")
    booking = posted["text"].removeprefix("Booked ")
    entries = json.loads((lab.data / "comments.json").read_text())
    assert [
        (booking_record["name"], booking_record["comment"], booking_record["id"])
        for booking_record in [entries["atlas"]["0"]]
    ] == [("alice", "ICML & co", booking)]
    (line,) = (json.loads(booking_record) for booking_record in (lab.data / "bookings.log").read_text().splitlines())
    assert (line["who"], line["via"]) == ("alice", "slack")
    assert "atlas:0 for alice from now until" in words(posted)
    assert "times of UTC" in words(posted)
    assert "cannot be done" in words(slack.ask(CAROL, "book atlas:0 for 1h"))  # by address, and it is taken
    assert "cannot be done" in words(slack.ask(BOB, f"release {booking}"))  # known by the contacts' address
    assert booking in words(slack.ask(ALICE, "release"))
    assert "Until when?" in words(slack.ask(ALICE, "book 2 A100"))
    assert slack.ask(ALICE, f"release {booking}")["text"] == "Released"
    assert "I do not know who you are" in words(slack.ask(EVE, "book atlas:0 for 1h"))
    stranger = words(slack.ask("UNEW00001", "release atlas:0"))
    assert "LOGIN,slack:UNEW00001" in stranger or "I could not find out who you are" in stranger


# What it never does


def test_each_message_is_answered_once_however_often_it_comes(slack: Slack) -> None:
    before = len(slack.posted)
    assert slack.tell(slack.says(anyone(), "free"), times=3) == [True] * 3
    slack.ask(anyone(), "help")
    slack.wait(lambda: len(slack.posted) > before + 1)
    assert sorted(posted_message["text"] for posted_message in slack.posted[before:]) == [
        "2 GPUs free",
        "Commands",
    ]


@pytest.mark.parametrize(
    "extra_fields",
    [
        {"bot_id": "B777"},
        {"subtype": "message_changed"},
        {"user": ME},
        {"user": "USLACKBOT"},
        {"channel_type": "channel"},
        {"type": "reaction_added"},
        {"text": None},
        {"channel": "../x"},
        {"ts": "now"},
    ],
)
def test_the_bot_never_answers_itself_or_other_bots(slack: Slack, extra_fields: dict[str, Any]) -> None:
    before = len(slack.posted)
    assert slack.tell(slack.says(anyone(), "hosts", event=extra_fields)) == [True]
    assert slack.ask(anyone(), "help")["text"] == "Commands"
    assert len(slack.posted) == before + 1


def test_envelopes_of_other_kinds_are_accepted_and_left(slack: Slack) -> None:
    for envelope in ({"type": "slash_commands", "payload": {}}, {"type": "events_api", "payload": None}):
        assert slack.tell(envelope) == [True]


def test_nothing_is_answered_in_a_shared_channel(slack: Slack) -> None:
    posted = slack.ask(anyone(), "hosts", GENERAL, outer={"is_ext_shared_channel": True})
    assert "outside your company" in words(posted)
    assert "atlas" not in json.dumps(posted)


def test_an_old_redelivered_question_is_ignored(slack: Slack) -> None:
    before = len(slack.posted)
    old = slack.says(anyone(), "hosts", event={"ts": f"{time.time() - 3000:.6f}"})
    line = slack.wait(lambda: slack.lines and slack.lines[-1])
    line.send(json.dumps({**old, "envelope_id": "late", "retry_attempt": 1, "retry_reason": "timeout"}))
    slack.wait(lambda: "late" in slack.accepted)
    slack.ask(anyone(), "help")
    assert len(slack.posted) == before + 1


def test_the_rate_limit_is_answered_once(slack: Slack) -> None:
    before, who = len(slack.posted), anyone()
    for _ in range(24):
        assert slack.tell(slack.says(who, "help")) == [True]
    slack.ask(anyone(), "free")
    slack.wait(lambda: len(slack.posted) >= before + 22)
    reply_texts = [reply["text"] for reply in slack.posted[before:]]
    assert [reply_texts.count(reply) for reply in ("Commands", "2 GPUs free")] == [20, 1]
    assert sum("Too many messages in a minute" in reply for reply in reply_texts) == 1


# What goes wrong


@pytest.mark.slow
def test_a_line_that_slack_renews_or_that_breaks_is_opened_again_and_nothing_is_lost(slack: Slack) -> None:
    opened = slack.opened
    slack.disconnect()
    slack.wait(lambda: slack.opened > opened and slack.lines)
    before, slack.patience = len(slack.posted), 2.0  # while a line is renewed, it may have to be told again
    assert slack.ask(anyone(), "free")["text"] == "2 GPUs free"
    slack.patience = ACCEPTED_WITHIN
    opened = slack.opened
    slack.cut()
    slack.wait(lambda: slack.opened > opened and slack.lines)
    assert slack.ask(anyone(), "help")["text"] == "Commands"
    assert len(slack.posted) == before + 2


@pytest.mark.slow
def test_the_bot_respects_retry_after_and_falls_back_to_text(slack: Slack) -> None:
    slack.next["chat.postMessage"] = deque([(429, {"Retry-After": "1"}, {"ok": False, "error": "ratelimited"})])
    began = time.monotonic()
    assert slack.ask(anyone(), "free")["text"] == "2 GPUs free"
    assert time.monotonic() - began >= 1
    for code in ("invalid_blocks", "invalid_attachments", "internal_error"):
        slack.next["chat.postMessage"] = deque([(200, {}, {"ok": False, "error": code})])
        posted = slack.ask(anyone(), "all")
        assert "blocks" not in posted, code
        assert "```host" in posted["text"]
        assert "1 alice" in posted["text"]
        assert block_kit.faults(posted) == []


def test_an_answer_that_may_have_arrived_is_not_sent_again(slack: Slack) -> None:
    before = len(slack.posted)
    slack.next["chat.postMessage"] = deque([None])  # it takes the request, and hangs up
    assert slack.tell(slack.says(anyone(), "free")) == [True]
    slack.wait(lambda: not slack.next["chat.postMessage"])
    slack.ask(anyone(), "help")
    assert [posted_message["text"] for posted_message in slack.posted[before:]] == ["Commands"]


def test_a_second_bot_ends_at_once_and_shows_no_token(bot: Bot, lab: Lab) -> None:
    finished = run_gpuboard(lab.data.parent, "slack", **bot.environment)
    assert (finished.returncode, finished.stdout + finished.stderr) == (0, "")
    assert bot.process.poll() is None
    assert "secret" not in bot.said()
    doctor_report = json.loads(run_gpuboard(lab.data.parent, "doctor", "--json", **bot.environment).stdout)
    (check,) = (doctor_check for doctor_check in doctor_report["checks"] if doctor_check["id"] == "slack")
    assert check["status"] == "pass"
    assert f"process {bot.process.pid}" in str(check)


@pytest.mark.slow
def test_in_a_terminal_a_second_bot_says_whether_slack_can_be_reached(bot: Bot, lab: Lab, slack: Slack) -> None:
    terminal_messages = []
    for refusals in (0, 1):
        slack.next["auth.test"] = deque([(200, {}, {"ok": False, "error": "account_inactive"})] * refusals)
        ours, its = pty.openpty()
        command, environment = [sys.executable, "-m", "site_builder", "slack"], clean_environment(**bot.environment)
        subprocess.run(command, cwd=lab.data.parent, env=environment, stderr=its, timeout=60, check=True)
        terminal_messages.append(os.read(ours, 4096).decode().strip())
        os.close(ours)
        os.close(its)
    running = f"gpuboard: the bot is already running, as process {bot.process.pid}; "
    assert terminal_messages == [
        f"{running}Slack can be reached and accepts the token",
        f"{running}the app was removed from this workspace",
    ]


@pytest.mark.slow
def test_the_bot_ends_on_sigterm_and_another_begins(lab: Lab, slack: Slack, bot: Bot) -> None:
    assert bot.end() == 0
    slack.wait(lambda: not slack.lines)
    again = Bot(lab.data.parent, slack, GPUBOARD_SHOW_USERS="no")
    try:
        slack.wait(lambda: slack.lines)
        assert "hides names" in words(slack.ask(anyone(), "where alice"))
        lab.www.rename(lab.www.with_name("aside"))
        assert "has not been built yet" in words(slack.ask(anyone(), "free"))
        lab.www.with_name("aside").rename(lab.www)
        status = json.loads((lab.www / "status.json").read_text())
        (lab.www / "status.json").write_text(json.dumps({**status, "built": status["built"] - 9000}))
        assert "its data are out of date" in words(slack.ask(anyone(), "free"))
    finally:
        assert again.end(signal.SIGINT) == 0
    assert locks.find_lock_holder(lab.state / locks.BOT_LOCK_NAME) is None


@pytest.mark.slow
def test_tokens_that_are_missing_wrong_or_refused_are_one_sentence_and_never_shown(
    tmp_path: Path, workspace: Slack
) -> None:
    right = {**settings(workspace), "GPUBOARD_CONTACTS": ""}
    for changes, expected in (
        ({"GPUBOARD_SLACK_APP_TOKEN": ""}, "GPUBOARD_SLACK_APP_TOKEN (xapp-…) must be set"),
        ({"GPUBOARD_SLACK_BOT_TOKEN": "xoxp-secret"}, "which begins with xoxb-"),
        ({"GPUBOARD_SLACK_BOT_TOKEN": "xoxb-secret"}, "Slack does not know the token"),
        ({"GPUBOARD_SLACK_APP_TOKEN": "xapp-secret"}, "Slack does not know the token"),
        ({"GPUBOARD_SLACK_URL": "http://slack.com/api/"}, "must be an address such as https://slack.com/api/"),
    ):
        finished = run_gpuboard(tmp_path, "slack", **{**right, **changes})
        (tmp_path / "state/slack.said").unlink(missing_ok=True)  # or the same would not be said again
        assert (finished.returncode, finished.stdout) == (2, "")
        assert expected in finished.stderr
        assert finished.stderr.count("\n") == 1
        assert "secret" not in finished.stderr


def test_cron_which_starts_it_every_minute_mails_a_refusal_once(tmp_path: Path, workspace: Slack) -> None:
    refused = {**settings(workspace), "GPUBOARD_CONTACTS": "", "GPUBOARD_SLACK_BOT_TOKEN": "xoxb-secret"}
    finished_runs = [run_gpuboard(tmp_path, "slack", **refused) for _ in range(2)]
    assert [finished_run.returncode for finished_run in finished_runs] == [2, 2]
    assert [finished_run.stderr.count("\n") for finished_run in finished_runs] == [1, 0]


# Alerts as direct messages


def access(slack: Slack, token: str = BOT_TOKEN) -> SlackAccess:
    return SlackAccess(token, None, slack.url)


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_proxy")
def test_an_alert_reaches_a_member_and_says_how_that_went(workspace: Slack) -> None:
    message = AlertMessage("atlas is down", f"atlas is down\nno snapshot since 14:02: {HOSTILE}", "")
    assert slack_client.send_direct_message(access(workspace), ALICE, message).status == "sent"
    posted = workspace.posted[-1]
    assert posted["channel"] == ALICE
    assert posted["text"].startswith("*atlas is down*\nno snapshot since 14:02: &lt;!channel&gt;")
    assert posted["text"].count("atlas is down") == 1
    long = slack_client.send_direct_message(access(workspace), ALICE, AlertMessage("t", "<&>" * 4000, ""))
    assert (long.status, len(workspace.posted[-1]["text"]) <= 4000) == ("sent", True)
    for canned_response, how, wait in (
        ((429, {"Retry-After": "17"}, {"ok": False, "error": "ratelimited"}), "failed", 17),
        ((429, {"Retry-After": "soon"}, b""), "failed", 30),
        ((500, {}, b"<html>"), "failed", None),
        ((200, {}, b"<html>a portal</html>"), "failed", None),
        ((200, {}, {"ok": False, "error": "token_revoked"}), "failed", None),
        ((200, {}, {"ok": False, "error": "internal_error"}), "unsure", None),
        (None, "unsure", None),
    ):
        workspace.next["chat.postMessage"] = deque([canned_response])
        asked = workspace.asked.count("chat.postMessage")
        delivery = slack_client.send_direct_message(access(workspace), ALICE, message)
        assert (delivery.status, delivery.retry_after_s) == (how, wait)
        assert delivery.reason
        assert "secret" not in delivery.reason
        assert workspace.asked.count("chat.postMessage") == asked + 1
    assert slack_client.send_direct_message(access(workspace), "U404", message).status == "refused"
    assert slack_client.send_direct_message(access(workspace, "xoxb-1-secret"), ALICE, message).reason.startswith(
        "Slack does not know the token"
    )
    assert slack_client.send_direct_message(SlackAccess(None), ALICE, message).status == "failed"
    closed = SlackAccess(BOT_TOKEN, None, "http://127.0.0.1:9/api/")
    assert slack_client.send_direct_message(closed, ALICE, message).status == "failed"


@pytest.mark.slow
@pytest.mark.usefixtures("no_proxy")
def test_a_slack_that_never_answers_is_unsure() -> None:
    import socket  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as server:
        deaf = SlackAccess(BOT_TOKEN, None, f"http://127.0.0.1:{server.getsockname()[1]}/api/")
        delivery = slack_client.send_direct_message(deaf, ALICE, AlertMessage("t", "x", ""), 1)
    assert (delivery.status, "did not answer" in delivery.reason) == ("unsure", True)


@pytest.mark.slow
def test_slack_sdk_is_imported_only_when_needed() -> None:
    code = "import sys, site_builder.cli, site_builder.slack.commands; sys.exit('slack_sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
