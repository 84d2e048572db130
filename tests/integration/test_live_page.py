"""An open page follows the board: what moves, what stays, when it looks, and how old it says that all is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from email.utils import formatdate
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.support.board_fixture import Lab, gpu, soon
from tests.support.browser import wait_until
from tests.support.live_board import Board, board, drawn, opened, settled, squeezed

__all__ = ["board", "drawn"]  # fixtures

HOUR = 3600


@pytest.fixture
def clocked(browser: Browser, tmp_path: Path, drawn: Lab) -> Iterator[Board]:
    """The same, where the test lets time pass."""
    with opened(browser, Board(tmp_path, drawn=drawn), tmp_path, datetime.now(timezone.utc)) as opened_board:
        yield opened_board


# Numbers and cards


def test_numbers_are_set_in_their_place_by_live_json_alone(board: Board) -> None:
    board.page.evaluate("document.querySelectorAll('.gpus tr').forEach((row) => { row.mark = 'the same'; })")
    board.host("juno", use=83)
    assert board.next() == ["live.json"]
    assert board.cell("juno", 2).startswith("83 %")
    assert board.page.locator("#juno .load").inner_text().startswith("load 8")
    marks = board.page.evaluate("[...document.querySelectorAll('.gpus tr')].map((row) => row.mark)")
    assert set(marks) == {"the same"}


def test_the_bar_of_a_number_moves_with_it(board: Board) -> None:
    board.host("juno", use=83)
    board.next()
    assert board.page.locator("#juno .gpus td.w83").count() == 1


def test_a_card_is_fetched_when_somebody_else_is_on_it(board: Board) -> None:
    board.host("juno", user="bob")
    assert board.next() == ["live.json", "cards/juno.html"]
    assert "bob" in board.cell("juno", 6)


def test_a_gpu_that_becomes_free_is_shown_everywhere(board: Board) -> None:
    assert board.page.title() == "6 free · gpuboard"
    board.host("juno", use=0, user="")
    asked = board.next()
    assert sorted(asked) == ["cards/_top.html", "cards/juno.html", "live.json"]
    assert board.page.evaluate("document.querySelector('[rel=icon]').href").endswith("icon.svg?7")
    assert board.cell("juno", 1).startswith("free")
    assert board.page.title() == "7 free · gpuboard"
    assert squeezed(board.page.locator(".totals li.free").inner_text()) == "7 Free"
    assert board.page.locator(".free-now a[href='#juno']").inner_text() == "juno:0,1,2"


def test_what_has_not_moved_is_asked_for_no_more(board: Board) -> None:
    board.host("juno", user="bob")
    board.next()
    assert board.next() == ["live.json"]


def test_a_host_comes_goes_and_comes_back(board: Board) -> None:
    names = board.page.locator(".host h2")
    board.host("ceres")
    board.next()
    assert names.all_inner_texts() == ["ares", "ceres", "juno", "mars"]
    hosts = board.lab.data / "hosts.txt"
    hosts.write_text("ceres, , , hidden\n")
    board.next()
    assert names.all_inner_texts() == ["ares", "juno", "mars"]
    hosts.write_text("")
    board.host("ceres", use=77)
    board.next()
    expect(names).to_have_text(["ares", "ceres", "juno", "mars"], use_inner_text=True)
    assert board.cell("ceres", 2).startswith("77 %")


def test_the_first_host_takes_the_place_of_the_words_that_there_is_none(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, Board(tmp_path, Lab(tmp_path)), tmp_path) as board:
        expect(board.page.locator("main")).to_contain_text("No host yet")
        board.host("ares")
        board.next()
        expect(board.page.locator("main")).not_to_contain_text("No host yet")
        assert board.page.locator(".host h2").all_inner_texts() == ["ares"]


def test_problems_are_counted_as_they_come_and_go(board: Board) -> None:
    count = board.page.locator(".problem-count")
    assert count.count() == 0
    board.lab.book("{")
    board.next()
    assert count.inner_text() == "1 problem"
    board.lab.book({})
    board.next()
    assert count.count() == 0
    assert board.page.locator("#_admin").count() == 0


def caught_up(board: Board) -> str:
    """What the page of four hosts says when it knows the last build; it may just have been asking for one before."""
    wait_until(board.page, "near.size === 4")
    settled(board)
    board.follow()
    return board.shown()


def test_after_many_changes_an_open_page_equals_a_new_one(board: Board) -> None:
    board.host("juno", use=83)
    board.next()
    board.host("ares", use=0, user="", disk=720)
    board.host("ceres", gpus=5)
    end = soon(50 * HOUR + 1800)  # so far away that what is left stays the same, however slow we are
    board.lab.book({"mars": {"1": {"name": "bob", "date": end}}, "nobody": {"0": {"name": "x"}}})
    board.next()
    board.lab.write("mars", "gpus.csv", "# err no driver\n", rc=9)
    board.host("ceres", use=12, gpus=5)
    board.next()
    board.host("juno", use=31, user="carol")
    board.next()
    after = caught_up(board)
    board.page.reload()
    assert caught_up(board).split() == after.split()


@pytest.mark.parametrize("mount", ["/R&D", "/a'b", "/<b>"])
def test_the_name_of_a_disk_stays_as_it_is(board: Board, mount: str) -> None:
    facts = f"cpus=4\nload=1 1 1\ndisk=1000 610 {mount}\n"
    board.lab.host("juno", facts=facts)
    board.next()
    board.lab.host("juno", gpu(use=9), facts=facts)
    board.next()
    assert mount in board.page.locator("#juno summary").inner_text()


# What stays


def test_scroll_details_and_focus_stay(board: Board) -> None:
    page = board.page
    page.set_viewport_size({"width": 1440, "height": 300})
    page.locator("#juno summary").click()
    page.locator("#juno summary").focus()
    page.evaluate("scrollTo(0, document.querySelector('#juno').offsetTop - 60)")
    before = page.evaluate("[scrollY > 50, document.querySelector('#juno').getBoundingClientRect().top]")
    board.host("ares", use=0, user="", gpus=6)
    board.host("juno", user="bob")
    board.host("aaron")
    board.next()
    assert "bob" in board.cell("juno", 6)
    assert page.locator("#juno details[open]").count() == 1
    assert page.evaluate("document.activeElement.closest('details').id") == "juno:disks"
    after = page.evaluate("[scrollY > 50, document.querySelector('#juno').getBoundingClientRect().top]")
    assert (before[0], after[0]) == (True, True)
    assert after[1] == pytest.approx(before[1], abs=2)


@pytest.mark.parametrize("place", ["body", "main", "#juno"])
def test_a_half_filled_dialog_stays(board: Board, place: str) -> None:
    board.page.evaluate(
        """(place) => {
            const dialog = document.createElement("dialog");
            dialog.id = "_booking";
            dialog.open = true;
            dialog.append(document.createElement("input"));
            document.querySelector(place).append(dialog);
        }""",
        place,
    )
    field = board.page.locator("dialog input")
    field.fill("until Fri")
    for user in ("bob", "carol"):
        for name in ("ares", "juno", "mars"):
            board.host(name, user=user)
        board.next()
    board.page.evaluate("fetchPage(0)")
    assert field.input_value() == "until Fri"
    assert board.page.evaluate("document.activeElement.localName") == "input"


def select(board: Board, selector: str) -> Callable[[], str]:
    """Select the text of an element, and return what tells what is selected."""
    board.page.evaluate("(s) => getSelection().selectAllChildren(document.querySelector(s))", selector)
    return lambda: squeezed(board.page.evaluate("getSelection().toString()"))


def test_selected_text_keeps_its_card_until_it_is_let_go(board: Board) -> None:
    selected = select(board, "#juno li code")
    board.host("juno", use=83, user="bob")
    board.host("mars", use=83, user="bob")
    board.next()
    assert selected() == "python train.py"
    assert "alice" in board.cell("juno", 6)
    assert board.cell("juno", 2).startswith("50 %")
    assert "bob" in board.cell("mars", 6)
    board.page.evaluate("getSelection().empty()")
    board.follow()
    assert "bob" in board.cell("juno", 6)
    assert board.cell("juno", 2).startswith("83 %")


@pytest.mark.parametrize("selector", ["#juno .gpus td:nth-child(3)", "#juno .facts time", "#juno .load", ".age time"])
def test_a_selected_number_stays_selected(clocked: Board, selector: str) -> None:
    selected = select(clocked, selector)
    before = selected()
    clocked.host("juno", use=83)
    clocked.page.clock.run_for(1100)
    clocked.next()
    assert selected() == before != ""


def test_selected_text_keeps_its_card_when_the_whole_page_is_fetched(board: Board) -> None:
    selected = select(board, "#juno li code")
    board.host("juno", user="bob")
    board.host("mars", user="bob")
    board.build()
    board.page.evaluate("fetchPage(0)")
    assert selected() == "python train.py"
    assert "bob" in board.cell("mars", 6)
    board.page.evaluate("getSelection().empty()")
    board.follow()
    assert "bob" in board.cell("juno", 6)


def test_selected_text_keeps_the_card_of_a_host_that_has_gone(board: Board) -> None:
    selected = select(board, "#juno li code")
    (board.lab.data / "hosts.txt").write_text("juno, , , hidden\n")
    board.next()
    assert selected() == "python train.py"
    board.page.evaluate("getSelection().empty()")
    board.follow()
    assert board.page.locator("#juno").count() == 0


# When the page looks


def looks(board: Board) -> int:
    return board.asked.count("live.json")


def test_the_page_polls_every_ten_seconds(clocked: Board) -> None:
    for count in (1, 2, 3):
        clocked.page.clock.run_for(10_100)
        settled(clocked)
        assert looks(clocked) == count


def test_a_server_that_is_away_is_asked_less_and_less(clocked: Board) -> None:
    clocked.site.stop()
    for _ in range(120):
        clocked.page.clock.run_for(5000)
        settled(clocked)
    assert 5 <= looks(clocked) <= 9  # in ten minutes


def test_a_server_that_is_back_is_followed_again(clocked: Board, tmp_path: Path) -> None:
    away = tmp_path / "away"
    clocked.file("live.json").rename(away)
    clocked.page.clock.run_for(10_100)
    expect(clocked.page.locator(".age strong")).to_have_text("live.json could not be fetched:")
    clocked.host("juno", use=83)
    clocked.build()
    clocked.page.clock.run_for(20_100)
    expect(clocked.page.locator("#juno .gpus td:nth-child(3)").first).to_contain_text("83 %")
    expect(clocked.page.locator(".age strong")).to_be_hidden()


def hide(board: Board, hidden: bool) -> None:
    board.page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_a_hidden_page_requests_nothing_until_it_is_visible(clocked: Board) -> None:
    hide(clocked, True)
    clocked.page.clock.run_for(300_000)
    assert looks(clocked) == 0
    clocked.host("juno", use=83)
    clocked.build()
    hide(clocked, False)
    expect(clocked.page.locator("#juno .gpus td:nth-child(3)").first).to_contain_text("83 %")
    assert looks(clocked) == 1


# Age


def age_of(text: str) -> int:
    age_match = re.search(r"(\d+) s ago", text)
    assert age_match, text
    return int(age_match[1])


def test_the_age_of_each_host_counts_up_and_falls_when_it_is_seen_again(clocked: Board) -> None:
    age = clocked.page.locator("#juno .facts time")
    before = age_of(age.inner_text())
    clocked.page.clock.run_for(7000)
    assert 6 <= age_of(age.inner_text()) - before < 20  # both are whole seconds
    moment = age.get_attribute("datetime")
    clocked.page.wait_for_timeout(1000)
    clocked.host("juno")
    clocked.next()
    assert age.get_attribute("datetime") != moment


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_within_a_minute_every_viewer_sees_that_the_builder_has_stopped(
    browser: Browser, tmp_path: Path, drawn: Lab, hours: int
) -> None:
    board = Board(tmp_path, drawn=drawn)
    with opened(browser, board, tmp_path, datetime.now(timezone.utc) + timedelta(hours=hours)):
        passed = Passing(board)
        word = board.page.locator(".age strong")
        passed.by(20)
        expect(word).to_be_hidden()
        passed.by(40)
        expect(word).to_have_text("Out of date:")
        board.build(time.time() + passed.seconds)
        passed.by(10)
        expect(word).to_be_hidden()


class Passing:
    """Time that passes for the server and the viewer alike."""

    def __init__(self, board: Board) -> None:
        """From now on the server tells this time."""
        self.seconds = 0
        self.board = board
        board.page.route("**/live.json", self.answer)

    def answer(self, route: Route) -> None:
        """What the server says, at a later time."""
        server_response = route.fetch()
        route.fulfill(
            response=server_response,
            headers={**server_response.headers, "date": formatdate(time.time() + self.seconds, usegmt=True)},
        )

    def by(self, seconds: int) -> None:
        """In steps, of which each has one look at the server."""
        for _ in range(0, seconds, 10):
            self.seconds += 10
            self.board.page.clock.run_for(10_000)
            settled(self.board)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wrong_clock_calls_no_page_old_not_even_at_first(
    browser: Browser, tmp_path: Path, drawn: Lab, hours: int
) -> None:
    board = Board(tmp_path, drawn=drawn)
    with opened(browser, board, tmp_path, datetime.now(timezone.utc) + timedelta(hours=hours)):
        wait_until(board.page, "clockAhead !== 0")
        settled(board)
        assert board.trouble() == ""
        assert age_of(board.page.locator(".age").inner_text()) < 30
