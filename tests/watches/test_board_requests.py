"""Watches are made and ended at the booking service."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from site_builder.alerts.model import AlertRule
from site_builder.bookings.policy import BookingForbiddenError, BookingRefusedError
from site_builder.bookings.request import UnclearRequestError
from site_builder.bookings.service import BookingService
from site_builder.bookings.transaction import BookingUser
from site_builder.core.model import AlertSettings, BookingPolicy, PrivacySettings, SlackAccess
from site_builder.watches import board_requests
from tests.support.board_fixture import Lab
from tests.support.booking_fixtures import lab_of

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


def desk_of(lab: Lab, **changes: Any) -> BookingService:  # noqa: ANN401
    return BookingService(lab.settings(**{"alerts": TELLS, **changes}))


def watch(desk: BookingService, who: BookingUser, when: str, **extra_fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return board_requests.handle_board_request(desk, {"do": "watch", "when": when, **extra_fields}, who)


def ids(desk: BookingService, who: BookingUser) -> list[str]:
    return [watch_entry["id"] for watch_entry in board_requests.answer_board_list_request(desk, who)["watches"]]


def test_a_file_that_cannot_be_read_costs_no_list_of_bookings(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    (lab.data / "other").write_text("[]")
    (lab.data / "watches.json").symlink_to("other")
    assert ids(desk_of(lab), ALICE) == []


@pytest.mark.parametrize("entry", [{"id": [], "name": "x"}, {"id": {}}, {"id": None}, 7])
def test_an_entry_that_cannot_be_understood_keeps_nobody_from_watching(tmp_path: Path, entry: object) -> None:
    lab = lab_of(tmp_path)
    (lab.data / "watches.json").write_text(json.dumps([entry]))
    made = watch(desk_of(lab), ALICE, "3 H100")["watches"][0]
    assert ids(desk_of(lab), ALICE) == [made["id"]]
    assert json.loads((lab.data / "watches.json").read_bytes())[0] == entry


def test_a_watch_is_confirmed_and_stored(tmp_path: Path) -> None:
    desk = desk_of(lab_of(tmp_path))
    asked = watch(desk, ALICE, "two h100s on the same machine for 4h", via="Mail", check=True)
    assert asked["said"].startswith(
        "we will notify alice by mail when there are 2 H100 free on one host for 4 h or longer, until "
    )
    assert (asked["watches"][0]["id"], ids(desk, ALICE)) == (None, [])
    made = watch(desk, ALICE, "3 H100", until="2d")["watches"][0]
    assert (made["name"], made["when"], made["via"], made["mine"]) == ("alice", "3 H100 free on one host", None, True)
    length = datetime.fromisoformat(made["until"]) - datetime.now(timezone.utc)
    assert timedelta(days=1.99) < length <= timedelta(days=2)
    assert ids(desk, ALICE) == [made["id"]]
    assert ids(desk, BOB) == []
    assert ids(desk, BookingUser("root", is_admin=True)) == [made["id"]]


@pytest.mark.parametrize(
    ("when", "note"),
    [
        ("2 H100", "free already: zeus:0,1"),
        ("1 V100", "no GPU here is called V100; there are A100 80 GB, H100 80 GB"),
        ("5 A100", "no host has 5 GPUs; the largest has 4"),
    ],
)
def test_a_watch_is_made_with_warnings(tmp_path: Path, when: str, note: str) -> None:
    assert watch(desk_of(lab_of(tmp_path)), ALICE, when, check=True)["warnings"] == [note]


def test_a_person_without_a_contact_is_refused_and_another_kind_of_contact_is_named(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    contacts = tmp_path / "contacts.csv"
    contacts.write_text("alice,slack:U0123ABCD\n")
    contacts.chmod(0o600)
    slack = SlackAccess(bot_token="xoxb-1")  # noqa: S106
    alerts = AlertSettings(mail_url="mailto://127.0.0.1:1", contacts_file=str(contacts), slack=slack)
    desk = desk_of(lab, alerts=alerts)
    assert watch(desk, ALICE, "9 V100", via="mail")["warnings"][1:] == [
        "no contact of alice by mail: slack will be used"
    ]
    for is_check in (True, False):
        with pytest.raises(BookingRefusedError, match="no contact for bob: ask the admin to add one"):
            watch(desk, BOB, "9 V100", check=is_check)
    contacts.chmod(0o666)  # it is not read
    assert "there may be no contact for bob" in watch(desk, BOB, "9 V100", check=True)["warnings"][1]


def test_a_contact_that_the_board_cannot_write_to_is_none(tmp_path: Path) -> None:
    contacts = tmp_path / "contacts.csv"
    contacts.write_text("alice,slack:U0123ABCD\n")
    contacts.chmod(0o600)
    alerts = AlertSettings(mail_url="mailto://127.0.0.1:1", contacts_file=str(contacts))  # no Slack bot
    with pytest.raises(BookingRefusedError, match="no contact for alice"):
        watch(desk_of(lab_of(tmp_path), alerts=alerts), ALICE, "9 V100")


def test_no_watch_is_made_while_the_rule_is_off(tmp_path: Path) -> None:
    rules = tmp_path / "alerts.conf"
    desk = desk_of(lab_of(tmp_path), alerts=AlertSettings(mail_url="mailto://127.0.0.1:1", rules_file=str(rules)))
    for text in ("[watch]\non = no\n", "[watch]\nto = none\n"):
        rules.write_text(text)
        with pytest.raises(BookingRefusedError, match="the admin has turned these notifications off"):
            watch(desk, ALICE, "9 V100")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"when": "hello"}, '"hello" is not understood at "hello": write "2 A100 free on one host"'),
        ({"when": ""}, 'no GPUs named: give `when`, such as "2 A100 free on one host"'),
        ({"when": ["GPU"]}, "`when` must be text"),
        ({"when": "GPU", "via": "mailto://me@evil.example"}, "`via` is longer than 20 characters"),
        ({"when": "GPU", "via": "a:b"}, '"a:b" is not a kind of contact'),
        ({"when": "GPU", "until": "2020-01-01 10:00"}, '"2020-01-01 10:00" has already passed'),
        ({"when": "GPU", "until": "8w"}, "a notification can wait 30 days at most"),
        ({"when": "GPU", "name": "bob"}, "watch does not take `name`"),
    ],
)
def test_unclear_requests_are_refused(tmp_path: Path, request_: dict[str, object], why: str) -> None:
    with pytest.raises(UnclearRequestError) as error_info:
        board_requests.handle_board_request(desk_of(lab_of(tmp_path)), {"do": "watch", **request_}, ALICE)
    assert str(error_info.value).startswith(why)


def test_limits_are_refused_in_a_sentence(tmp_path: Path) -> None:
    desk = desk_of(lab_of(tmp_path))
    with pytest.raises(BookingRefusedError, match="no host atlass; did you mean atlas"):
        watch(desk, ALICE, "1 GPU on atlass")
    with pytest.raises(BookingRefusedError, match="the board looks at most 1 d ahead: ask for a shorter time"):
        watch(desk, ALICE, "1 GPU for 2d")
    with pytest.raises(BookingRefusedError, match="this board cannot send notifications"):
        watch(desk_of(Lab(tmp_path / "silent"), alerts=AlertSettings()), ALICE, "1 GPU")
    for number in range(1, 21):
        watch(desk, ALICE, f"{number} GPUs anywhere")
    for again in (False, True):
        with pytest.raises(BookingRefusedError, match=r"you have this notification already \([a-z0-9]{6}\)"):
            watch(desk, ALICE, "3 gpus wherever", check=again)
    with pytest.raises(BookingRefusedError, match="you have 20 notifications, and 20 is the limit"):
        watch(desk, ALICE, "21 GPUs anywhere")
    assert watch(desk, BOB, "3 GPUs anywhere")["watches"]


def test_only_own_watches_can_be_ended(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    desk = desk_of(lab)
    made = watch(desk, ALICE, "9 GPUs")["watches"][0]["id"]

    def end(who: BookingUser, watch_id: str = made, **extra_fields: Any) -> dict[str, Any]:  # noqa: ANN401
        return board_requests.handle_board_request(desk, {"do": "unwatch", "id": watch_id, **extra_fields}, who)

    for wrong_id in ("", "nobody"):
        with pytest.raises((BookingRefusedError, UnclearRequestError)):
            end(ALICE, wrong_id)
    with pytest.raises(
        BookingRefusedError, match=f"no notification {made} of yours: list them with `gpuboard notify list`"
    ):
        end(BOB)
    # at an open desk everybody is whom they say, and so sees all, and may end all
    with pytest.raises(
        BookingForbiddenError, match=f"notification {made} is alice's: only they or an admin may cancel it"
    ):
        board_requests.handle_board_request(
            desk_of(lab, booking_policy=BookingPolicy(is_open=True)), {"do": "unwatch", "id": made}, BOB
        )
    assert end(ALICE, check=True)["said"] == "we will no longer notify alice of 9 GPUs free on one host"
    assert ids(desk, ALICE) == [made]
    assert end(BookingUser("carol", is_admin=True))["watches"][0]["id"] == made
    assert ids(desk, ALICE) == []


def test_with_hidden_people_open_booking_lists_no_watches(tmp_path: Path) -> None:
    lab = lab_of(tmp_path)
    rules = BookingPolicy(is_open=True)
    somebody = BookingUser("", via="web, open", is_open=True)
    watch(desk_of(lab), ALICE, "9 GPUs")
    assert len(ids(desk_of(lab, booking_policy=rules), somebody)) == 1
    assert ids(desk_of(lab, booking_policy=rules, privacy=PrivacySettings(users=False)), somebody) == []
