"""`gpuboard doctor` on alerts: rules, channels, contacts, hooks, and notifications that do not arrive."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from site_builder.alerts.model import Alert, AlertState, DeliveryRecord, Notification
from site_builder.alerts.store import STATE_FILE, AlertStore
from site_builder.core import locks
from site_builder.doctor.model import DoctorContext
from tests.support.board_fixture import Lab
from tests.support.doctor_fixtures import assert_finds, case_of, told

# Of a library of apprise, where Python is older than 3.13.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
SECRET = "s3cr3tT0ken"  # noqa: S105 # of nobody
JSON = "jsons://127.0.0.1:9/x"
ALERT = Alert("a", "host-down", "begun", "atlas is down", "no snapshot", 0)
CHECKS = ("rules", "channels", "contacts", "hooks", "notifications", "slack")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """An empty lab, with a home beside it that is nobody else's."""
    lab = Lab(tmp_path / "lab")
    lab.www.mkdir()
    (tmp_path / "home").mkdir(mode=0o700)
    return lab


def own(lab: Lab, name: str, text: str, mode: int = 0o600) -> str:
    """A file of the admin's."""
    path = lab.data.parent.parent / "home" / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def written(lab: Lab, book: AlertState) -> None:
    AlertStore(lab.state).change(lambda _: book)


def test_without_receivers_alert_checks_do_not_apply(lab: Lab) -> None:
    case = case_of(lab)
    for name in CHECKS:
        finding = told(case, name)
        assert finding[0] == "skip", finding
    assert_finds(case, "rules", "skip", "alerts are off: none of GPUBOARD_NOTIFY")


def test_all_is_well_where_all_is_set_up(lab: Lab) -> None:
    contacts = own(lab, "contacts.csv", f"alice,alice@lab.org\nbob,tgram://123456789:{SECRET}/42\n")
    case = case_of(
        lab,
        GPUBOARD_NOTIFY=f"lab={JSON} ops=mailtos://u:{SECRET}@smtp.lab.org?from=g@lab.org&to=o@lab.org",
        GPUBOARD_MAIL=f"mailtos://u:{SECRET}@smtp.lab.org?from=g@lab.org",
        GPUBOARD_MAIL_DOMAIN="lab.org",
        GPUBOARD_CONTACTS=contacts,
        GPUBOARD_ALERTS=own(lab, "alerts.conf", "[gpu-hot]\non = no\n[gpu-lost]\nto = ops\n"),
    )
    now = int(time.time())
    written(lab, AlertState(started_at=now, history=(DeliveryRecord(now - 60, "channel:lab", "sent", (ALERT,)),)))
    assert_finds(case, "rules", "pass", r"12 of 14 rules are on \(alerts.conf")
    assert_finds(case, "channels", "pass", "lab via JSON, ops via mail, people via mail; `gpuboard alerts test`")
    assert_finds(case, "contacts", "pass", "2 people in the contacts; all others get mail at LOGIN@lab.org")
    assert_finds(case, "notifications", "pass", "1 notification sent in the last day; none waiting")
    assert not any(SECRET in str(told(case, name)) for name in CHECKS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[host-down]\ndelays = 1m\nx\n",
            r"\(alerts.conf\): line 2: there is no key 'delays'; did you mean delay\? \(and 1 more\)",
        ),
        ("[host-down]\nto = opps\n", "host-down should go to opps, but GPUBOARD_NOTIFY has no such channel"),
        ("[all]\non = no\n", "all rules are off, so no alerts are sent"),
    ],
)
def test_rules_that_are_wrong(lab: Lab, text: str, words: str) -> None:
    assert_finds(
        case_of(lab, GPUBOARD_NOTIFY=JSON, GPUBOARD_ALERTS=own(lab, "alerts.conf", text)), "rules", "warn", words
    )


def test_rules_that_are_not_there_or_for_nobody(lab: Lab) -> None:
    missing = str(lab.data.parent.parent / "home/none.conf")
    case = case_of(lab, GPUBOARD_NOTIFY=JSON, GPUBOARD_ALERTS=missing)
    assert_finds(case, "rules", "warn", "it is not read: No such file or directory; the defaults apply")
    case = case_of(lab, GPUBOARD_ALERTS=own(lab, "alerts.conf", ""))
    assert_finds(case, "rules", "warn", "GPUBOARD_ALERTS is set, but there is no channel to send alerts to")
    assert list(lab.state.iterdir()) == [], "the doctor changes nothing"


def test_channels_that_cannot_be_used_show_no_secret(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(lab, GPUBOARD_NOTIFY=f"lab={JSON} ops=nonesuch://{SECRET}")
    assert_finds(case, "channels", "fail", "channel ops: its address nonesuch://… is not supported by apprise")
    assert SECRET not in str(told(case, "channels"))
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert_finds(case, "channels", "fail", r"apprise is missing: pip install 'gpuboard\[alerts\]' \(and 1 more\)")


@pytest.mark.parametrize(
    ("text", "mode", "status", "words"),
    [
        (f"alice\nbob,{SECRET}\n", 0o600, "warn", r"line 1: must be login,address \(and 1 more\)"),
        ("alice,alice@lab.org\n", 0o660, "fail", "other users can write it; fix: chmod 600 contacts.csv"),
        ("alice,alice@lab.org\n", 0o640, "warn", "other users can read .*contacts.csv, .* -> chmod 600"),
        (f"alice,nonesuch://{SECRET}\n", 0o600, "warn", "a contact of alice cannot be used: its address nonesuch://…"),
        ("alice,alice@lab.org\n", 0o600, "warn", "a contact of alice cannot be used: GPUBOARD_MAIL is not set"),
        ("alice,slack:U0A\nbob,slack:U0A\n", 0o600, "warn", "alice and bob have the same Slack member id"),
        ("alice,slack:U0A\n", 0o600, "warn", "a contact of alice cannot be used: the Slack bot is not set up"),
    ],
)
def test_contacts_that_do_not_reach_anybody(lab: Lab, text: str, mode: int, status: str, words: str) -> None:
    case = case_of(lab, GPUBOARD_NOTIFY=JSON, GPUBOARD_CONTACTS=own(lab, "contacts.csv", text, mode))
    assert_finds(case, "contacts", status, words)
    assert SECRET not in str(told(case, "contacts"))


def test_people_without_an_address(lab: Lab) -> None:
    assert_finds(case_of(lab, GPUBOARD_NOTIFY=JSON), "contacts", "skip", "people get no notifications")
    case = case_of(lab, GPUBOARD_NOTIFY=JSON, GPUBOARD_MAIL_DOMAIN="lab.org")
    assert_finds(case, "contacts", "warn", "GPUBOARD_MAIL_DOMAIN is set, but no mail server")


def test_hooks_that_may_not_be_run(lab: Lab) -> None:
    case = case_of(lab, GPUBOARD_HOOKS=str(lab.data))
    assert_finds(case, "hooks", "fail", "is inside .*data, where others can write")
    case = case_of(lab, GPUBOARD_HOOKS=str(lab.state / "none"))
    assert_finds(case, "hooks", "fail", "none cannot be read: No such file")


def notifications_case(lab: Lab) -> DoctorContext:
    return case_of(lab, GPUBOARD_NOTIFY=JSON)


def test_notifications_that_wait_or_were_given_up_are_reported(lab: Lab) -> None:
    case = notifications_case(lab)
    assert_finds(case, "notifications", "skip", "no build has evaluated the alert rules yet")
    now = int(time.time())
    letter = Notification("l", "channel:lab", (ALERT,), now - 900, now - 900, tries=3, last_error="json answered 500")
    given_up = DeliveryRecord(now - 60, "person:alice", "given up", (ALERT,), "no contact for alice")
    written(lab, AlertState(started_at=now, notifications=(letter,), history=(given_up,)))
    assert_finds(
        case, "notifications", "warn", r"a notification waits for channel lab: json answered 500 \(and 1 more\)"
    )
    written(lab, AlertState(started_at=now, history=(given_up,)))
    assert_finds(case, "notifications", "warn", "a notification was given up for person alice: no contact for alice")
    assert (lab.state / STATE_FILE).stat().st_mode & 0o777 == 0o600
    (lab.state / STATE_FILE).chmod(0o644)
    assert_finds(
        case,
        "notifications",
        "warn",
        "other users can read .*alerts.json, which lists who was notified of what -> chmod 600",
    )
    (lab.state / STATE_FILE).chmod(0o600)
    (lab.state / STATE_FILE).write_bytes(b"{")
    assert_finds(case, "notifications", "warn", "alerts.json is damaged")
    (lab.state / STATE_FILE).unlink()
    (lab.state / STATE_FILE).mkdir(mode=0o700)
    assert_finds(case, "notifications", "fail", "alerts.json cannot be read")


def test_a_bot_that_has_tokens_must_run(lab: Lab) -> None:
    app = {"GPUBOARD_SLACK_APP_TOKEN": f"xapp-{SECRET}"}
    assert_finds(case_of(lab, **app), "slack", "fail", "is set without GPUBOARD_SLACK_BOT_TOKEN")
    case = case_of(lab, GPUBOARD_SLACK_BOT_TOKEN=f"xoxb-{SECRET}", **app)
    assert_finds(case, "slack", "fail", "the Slack bot is not running")
    with locks.try_hold_lock(lab.state / locks.BOT_LOCK_NAME):
        assert_finds(case, "slack", "pass", "the Slack bot is running, as process")
    assert_finds(case, "slack", "fail", "the Slack bot is not running")
