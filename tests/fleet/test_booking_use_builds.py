"""Whether booked GPUs are used, over many builds and on the open page."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from site_builder.board import card
from site_builder.board.builder import Builder
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.model import (
    GpuBookingUse,
    IdleTimes,
    PrivacySettings,
)
from site_builder.fleet.store import FleetStore
from tests.support import board_fixture
from tests.support.board_fixture import Lab, soon
from tests.support.browser import served
from tests.support.generated_fleet import (
    booking,
    decide,
    now,
    used_by,
)
from tests.support.live_board import Board, opened

TOO_WIDE = """() => {
    const cells = [...document.querySelectorAll(".gpus td:last-child")];
    return cells.filter((one) => one.scrollWidth > one.clientWidth + 1).length;
}"""


# What is remembered in state/


def test_what_is_remembered_is_the_same_after_a_restart(tmp_path: Path) -> None:
    kept = {
        "GPU-0": GpuBookingUse(5, None, {"bob": 3}, {"7 alice": (4, 1.0, 2.5)}),
        "GPU-1": GpuBookingUse(5, 4, {}, {}),
    }
    memory = FleetStore(tmp_path)
    memory.update_booking_uses("atlas", kept)
    memory.save()
    assert FleetStore(tmp_path).booking_uses == {"atlas": kept}


def test_the_memory_of_a_builder_that_knew_nothing_of_this_is_read(tmp_path: Path) -> None:
    old = {"idle": {"atlas": {"looked": 1, "since": {"GPU-0": 1.5}}}, "logins": ["alice"], "problems": []}
    (tmp_path / "memory.json").write_text(json.dumps(old))
    memory = FleetStore(tmp_path)
    assert (memory.booking_uses, memory.idle_times, memory.logins) == (
        {},
        {"atlas": IdleTimes(1, {"GPU-0": 1.5})},
        {"alice"},
    )


@pytest.mark.parametrize(
    "damaged",
    [
        [],
        {"atlas": []},
        {"atlas": {"GPU-0": {}}},
        {"atlas": {"GPU-0": {"looked": 1, "empty_since": 1, "others": {}, "use": {"a": [1]}}}},
    ],
)
def test_a_damaged_memory_begins_anew(tmp_path: Path, damaged: object) -> None:
    (tmp_path / "memory.json").write_text(json.dumps({"idle": {}, "kept": damaged, "logins": ["a"], "problems": []}))
    memory = FleetStore(tmp_path)
    assert (memory.booking_uses, memory.logins) == ({}, set())


# Whole builds


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def booked(lab: Lab) -> dict[str, Any]:
    booking_status: dict[str, Any] = lab.host_status()["gpus"][0]["bookings"][0]
    return booking_status


def test_builds_by_builders_of_their_own_remember(lab: Lab) -> None:
    begin = int(time.time())
    lab.book({"atlas": [{"name": "alice", "from": soon(-HOUR), "date": soon(DAY)}]})
    for minute in range(11):
        lab.host(
            "atlas",
            board_fixture.gpu(0, 7000, 80),
            board_fixture.process(),
            board_fixture.person(),
            time=begin + minute * 60,
        )
        lab.build()
    assert (booked(lab)["mean_use"], booked(lab)["unused_since"]) == (80, None)
    assert "80 % used on average" in lab.page()
    lab.host("atlas", time=begin + 660)
    lab.build()
    since = booked(lab)["unused_since"]
    assert begin <= since <= time.time()
    lab.host("atlas", time=begin + 680)
    lab.build(after=20)
    assert booked(lab)["unused_since"] == since
    assert "unused since <time" in lab.page()


def test_a_build_in_which_nothing_is_new_writes_no_card(lab: Lab) -> None:
    lab.book({"atlas": [{"name": "alice", "from": soon(-HOUR), "date": soon(3 * DAY + 1800)}]})
    lab.host("atlas")
    builder = Builder(lab.settings())
    at = time.time()
    builder.build(at)
    kept = (lab.state / "memory.json").read_bytes()
    assert "cards/atlas.html" not in builder.build(at + 1).written_files
    assert (lab.state / "memory.json").read_bytes() == kept


def test_forgetting_a_host_forgets_how_its_bookings_are_kept(lab: Lab) -> None:
    lab.book({"atlas": [{"name": "alice", "date": soon(DAY)}]})
    lab.host("atlas")
    lab.build()
    assert "atlas" in FleetStore(lab.state).booking_uses
    (lab.state / "forget").mkdir()
    (lab.state / "forget/atlas").touch()
    for file in (lab.data / "atlas").iterdir():
        file.unlink()
    (lab.data / "atlas").rmdir()
    lab.build()
    assert FleetStore(lab.state).booking_uses == {}


def test_a_broken_booking_names_who_and_since_when(lab: Lab) -> None:
    lab.book({"atlas": [{"name": "alice", "from": soon(-HOUR), "date": soon(DAY)}]})
    lab.host(
        "hydra",
        board_fixture.gpu(0, 7000, 9, uuid="GPU-h"),
        board_fixture.process(1, "GPU-h"),
        board_fixture.person(1, "alice"),
    )
    lab.host(
        "atlas", board_fixture.gpu(0, 7000, 90), board_fixture.process(), board_fixture.person(user="bob", elapsed=1800)
    )
    lab.build()
    assert booked(lab)["used_by"] == ["bob"]
    assert abs(booked(lab)["used_by_since"] - (time.time() - 1800)) < 60
    assert "used by bob since <time" in lab.page()
    assert "used by bob since <time" in (lab.www / "hosts/atlas.html").read_text().partition("id=_bookings")[2]


def test_hidden_users_are_not_named_by_what_they_break(lab: Lab) -> None:
    lab.book({"atlas": [{"name": "alice", "from": soon(-HOUR), "date": soon(DAY)}]})
    lab.host(
        "hydra",
        board_fixture.gpu(0, 7000, 9, uuid="GPU-h"),
        board_fixture.process(1, "GPU-h"),
        board_fixture.person(1, "alice"),
    )
    lab.host("atlas", board_fixture.gpu(0, 7000, 90), board_fixture.process(), board_fixture.person(user="bob"))
    lab.build(privacy=PrivacySettings(users=False))
    assert booked(lab)["used_by"] is None
    assert booked(lab)["used_by_since"] is not None
    everything = "".join(path.read_text() for path in lab.www.rglob("*") if path.suffix in {".html", ".json"})
    assert not re.search(r"\b(bob|alice)\b", everything)


def test_a_chain_of_bookings_says_when_the_gpu_is_free_again(lab: Lab) -> None:
    bookings = [
        {"name": "alice", "from": soon(-HOUR), "date": soon(HOUR)},
        {"name": "bob", "from": soon(HOUR), "date": soon(2 * DAY)},
    ]
    lab.book({"atlas": {"0": bookings}})
    lab.host("atlas")
    lab.build()
    assert abs(lab.host_status()["gpus"][0]["free_again"] - (time.time() + 2 * DAY)) < 60
    assert "free again <time" in lab.page()
    assert "No GPU is free. Next: <a" in lab.page()


def test_one_booking_alone_says_itself_when_it_ends(lab: Lab) -> None:
    lab.book({"atlas": [{"name": "alice", "date": soon(HOUR)}]})
    lab.host("atlas")
    lab.build()
    assert "free again" not in lab.page()


# Bookings of a whole host


def whole_host(lab: Lab, *extra_entries: dict[str, str]) -> None:
    entry = {"name": "alice", "from": soon(-HOUR), "date": soon(DAY), "comment": "course"}
    lab.book({"atlas": {"*": [entry, *extra_entries]}})


def test_a_booking_of_the_whole_host_is_shown_once(lab: Lab) -> None:
    whole_host(lab, {"name": "bob", "from": soon(2 * DAY), "date": soon(3 * DAY)})
    lab.host(
        "atlas",
        board_fixture.gpu(0, 7000, 90) + board_fixture.gpu(1) + board_fixture.gpu(2),
        board_fixture.process(),
        board_fixture.person(),
    )
    lab.build()
    page = lab.page()
    assert (page.count("course"), page.count("<b>bob</b>"), page.count("Whole host: ")) == (1, 1, 2)
    assert page.count("unused since") == 2
    assert [len(gpu["bookings"]) for gpu in lab.host_status()["gpus"]] == [2, 2, 2]


def test_a_host_with_one_gpu_shows_booking_use_in_its_row(lab: Lab) -> None:
    whole_host(lab)
    lab.host("atlas")
    lab.build()
    assert "Whole host" not in lab.page()
    assert lab.page().count("course") == 1


def test_hidden_users_are_not_named_by_a_booking_of_the_whole_host(lab: Lab) -> None:
    whole_host(lab)
    lab.host("atlas", board_fixture.gpu(0) + board_fixture.gpu(1))
    lab.build(privacy=PrivacySettings(users=False))
    assert "Whole host: until" in lab.page()
    assert "alice" not in lab.page()
    assert "course" not in lab.page()


# The open page


def at_midday() -> tuple[str, timezone]:
    """A zone in which it is about noon, so that a moment of an hour ago is one of today; never UTC."""
    ahead = 12 - datetime.now(timezone.utc).hour or 2
    return f"Etc/GMT{-ahead:+}", timezone(timedelta(hours=ahead))


@pytest.mark.slow
def test_an_open_page_follows_who_comes_and_goes(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    entry = {"name": "alice", "from": soon(-2 * HOUR), "date": soon(3 * DAY + 1800)}
    lab.book({"juno": [entry], "ares": {"*": entry}})
    following = Board(tmp_path, lab)
    following.host("ares", user="")
    following.host("juno")
    following.build()
    name, zone = at_midday()
    with opened(browser, following, tmp_path, timezone_id=name) as page:
        assert "since" not in page.cell("juno", 7)
        page.host("juno", use=0, user="")
        assert "cards/juno.html" in page.next()
        since, whole = (
            datetime.fromtimestamp(lab.host_status(host)["gpus"][0]["bookings"][0]["unused_since"], zone)
            for host in ("juno", "ares")
        )
        assert page.cell("juno", 7).endswith(f"left · unused since {since:%H:%M}")
        page.host("juno", use=1, user="")
        assert page.next() == ["live.json"]
        page.host("juno", user="bob")
        page.next()
        assert re.search(r" · used by bob since \d\d:\d\d$", page.cell("juno", 7))
        assert page.cell("ares", 7, 2) == f"alice unused since {whole:%H:%M}"
        assert page.page.locator("#ares > .booking").inner_text().startswith("Whole host: alice until")


def test_the_mean_alone_moves_no_card_but_in_steps() -> None:
    def structure(mean: float) -> bytes:
        host_status = decide(used_by("alice"), [booking("alice", begins=-1)])
        (gpu_status,) = host_status.gpus
        judged = gpu_status._replace(bookings=(gpu_status.bookings[0]._replace(mean_use=mean),))
        return card.serialize_card_structure(card.build_card(replace(host_status, gpus=(judged,)), now()))

    assert structure(83.1) == structure(84.9) != structure(88)


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 1024, 1440])
def test_hostile_booking_text_stays_inside(browser: Browser, tmp_path: Path, width: int) -> None:
    lab = Lab(tmp_path)
    names = ("someone-with-a-very-long-login-name", "another-one-with-an-even-longer-login-name-than-that")
    lab.book({"atlas": [{"name": names[0], "from": soon(-HOUR), "date": soon(DAY)}] * 2})
    lab.host(
        "hydra",
        board_fixture.gpu(0, 7000, 9, uuid="GPU-h"),
        board_fixture.process(1, "GPU-h"),
        board_fixture.person(1, names[0]),
    )
    lab.host(
        "atlas",
        board_fixture.gpu(0, 7000, 90) + board_fixture.gpu(1),
        board_fixture.process(),
        board_fixture.person(user=names[1]),
    )
    lab.build()
    with served(lab.www, tmp_path / "server") as site:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto(site.url)
        expect(page.locator("#atlas tr.conflict .booking")).to_contain_text(f"used by {names[1]} since")
        wide = page.evaluate("document.documentElement.scrollWidth")
        cells = page.evaluate(TOO_WIDE)
        page.close()
    assert (wide, cells) == (width, 0)
