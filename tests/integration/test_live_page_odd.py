"""An open page when the server gives it nonsense, when there are many hosts, and when it is in another zone."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from bench.fleet import fleet
from tests.support.board_fixture import Lab, soon
from tests.support.live_board import Board, board, drawn, opened

__all__ = ["board", "drawn"]  # fixtures

HOUR = 3600
TOKYO = "Asia/Tokyo"


# Bad input


def cut(text: str) -> str:
    return text[: len(text) // 2]


def with_schema(text: str) -> str:
    return text.replace('"schema":1', '"schema":1000')


def older(text: str) -> str:
    live = json.loads(text)
    live["built"] -= 60_000
    return json.dumps(live)


BAD_LIVE: dict[str, tuple[Callable[[str], str | None], str]] = {
    "missing": (lambda _: None, "live.json could not be fetched:"),
    "empty": (lambda _: "", "live.json cannot be read:"),
    "cut": (cut, "live.json cannot be read:"),
    "html": (lambda _: "<h1>Log in</h1>", "live.json cannot be read:"),
    "schema": (with_schema, "live.json cannot be read:"),
    "array": (lambda _: "[]", "live.json cannot be read:"),
    "null": (lambda _: "null", "live.json cannot be read:"),
    "no hosts": (
        lambda text: re.sub(r'"hosts":.*', '"hosts":[1]}', text, flags=re.DOTALL),
        "live.json cannot be read:",
    ),
    "older": (older, "live.json is older than the page:"),
}


def spoil(path: Path, how: Callable[[str], str | None]) -> None:
    """Leave another content there, or none."""
    content = how(path.read_text())
    path.unlink()
    if content is not None:
        path.write_text(content)


@pytest.mark.parametrize("kind", BAD_LIVE)
def test_a_bad_live_json_leaves_the_page_as_it_is_and_is_reported(board: Board, kind: str) -> None:
    how, words = BAD_LIVE[kind]
    before = board.shown()
    board.host("juno", use=83, user="bob")
    board.build()
    spoil(board.file("live.json"), how)
    board.follow()
    assert board.trouble() == words
    assert board.shown().replace(f" {words}", "") == before
    board.next()
    assert board.trouble() == ""
    assert "bob" in board.cell("juno", 6)


BAD_CARDS: dict[str, tuple[Callable[[str], str | None], str]] = {
    "missing": (lambda _: None, "could not be fetched"),
    "empty": (lambda _: "", "is older than live.json"),
    "cut": (cut, "is incomplete, or not for juno"),
    "cut behind an element": (lambda text: text[: text.index("</thead>") + 8], "is incomplete, or not for juno"),
    "nothing but its revision": (lambda text: text.partition("\n")[0] + "\n", "is incomplete, or not for juno"),
    "older": (lambda text: "1" + text[text.index("\n") :], "is older than live.json"),
    "of another host": (lambda text: text.replace("juno", "mars"), "is incomplete, or not for juno"),
    "a page": (lambda _: "<!doctype html><h1>Log in</h1>", "is older than live.json"),
}


@pytest.mark.parametrize("kind", BAD_CARDS)
def test_a_bad_card_leaves_the_page_as_it_is_and_is_reported(board: Board, kind: str) -> None:
    how, words = BAD_CARDS[kind]
    board.host("juno", user="bob")
    board.host("ares", user="bob")
    board.build()
    spoil(board.file("cards/juno.html"), how)
    board.follow()
    assert board.trouble() == f"cards/juno.html {words}:"
    assert "alice" in board.cell("juno", 6)
    assert "bob" in board.cell("ares", 6)
    assert board.page.locator(".host h2").all_inner_texts() == ["ares", "juno", "mars"]
    board.next()
    assert board.trouble() == ""
    assert "bob" in board.cell("juno", 6)


def test_a_card_that_is_written_a_moment_after_live_json_is_no_trouble(board: Board) -> None:
    board.host("juno", user="bob")
    board.build()
    card = board.file("cards/juno.html")
    late = card.rename(card.with_suffix(".late"))
    board.page.evaluate("window.following = refresh(); 0")
    board.page.wait_for_timeout(300)
    late.rename(card)
    board.page.evaluate("window.following")
    assert board.trouble() == ""
    assert "bob" in board.cell("juno", 6)


# Many


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> Board:
    """Fifty hosts with 8 GPUs and 16 processes each."""
    folder = tmp_path_factory.mktemp("fifty")
    lab = Lab(folder)
    fleet(lab.data, 50)
    return Board(folder, lab)


def test_a_refresh_of_fifty_hosts_takes_less_than_10_kb(fifty: Board) -> None:
    fleet(fifty.lab.data, 50, tick=1)
    fifty.build()
    size = len(gzip.compress(fifty.file("live.json").read_bytes(), 6))
    assert size <= 10_000


def test_more_than_forty_changed_cards_are_fetched_as_one_page(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    board = Board(tmp_path, lab)
    names = [f"gpu{n:02}" for n in range(45)]
    for name in names:
        board.host(name, gpus=1)
    board.build()
    with opened(browser, board, tmp_path):
        board.page.evaluate("document.querySelector('#gpu07').mark = 'the same'")
        for name in names[1:]:
            board.host(name, use=83, user="bob", gpus=1)
        (lab.data / "hosts.txt").write_text("gpu00, , , hidden\n")
        asked = board.next()
        assert asked == ["live.json", ""]
        assert board.page.locator(".host h2").all_text_contents() == names[1:]
        expect(board.page.locator("#gpu44 li b")).to_have_text("bob")
        assert board.page.evaluate("document.querySelector('#gpu07').mark") == "the same"
        assert board.next() == ["live.json"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (cut, "the new page is cut:"),
        (lambda text: re.sub(r"data-built=\d+", "data-built=1000", text), "the new page is older than live.json:"),
    ],
    ids=["cut", "older"],
)
def test_a_bad_page_leaves_the_cards_as_they_are_and_is_reported(
    browser: Browser, tmp_path: Path, how: Callable[[str], str], words: str
) -> None:
    board = Board(tmp_path, Lab(tmp_path))
    with opened(browser, board, tmp_path):
        for n in range(45):
            board.host(f"gpu{n}", gpus=1)
        board.build()
        spoil(board.file("index.html"), how)
        board.follow()
        assert board.trouble() == words
        assert board.page.locator(".host").count() == 0
        board.next()
        assert board.trouble() == ""
        assert board.page.locator(".host").count() == 45


def test_sixty_refreshes_of_fifty_hosts_leave_the_page_as_large_as_it_was(
    browser: Browser, fifty: Board, tmp_path: Path
) -> None:
    ticks = []
    for tick in (1, 2):
        fleet(fifty.lab.data, 50, tick=tick)
        fifty.build()
        ticks.append(fifty.lab.live())
    with opened(browser, fifty, tmp_path):
        fifty.page.set_viewport_size({"width": 1440, "height": 6000})
        session = fifty.page.context.new_cdp_session(fifty.page)
        session.send("Performance.enable")

        def size() -> tuple[int, float]:
            session.send("HeapProfiler.collectGarbage")
            metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
            return fifty.page.evaluate("document.querySelectorAll('*').length"), metrics["JSHeapUsedSize"]

        def refreshed(times: int) -> None:
            for n in range(times):
                live = {**ticks[n % 2], "built": int(time.time() * 1000)}
                for number, host in enumerate(live["hosts"]):  # each time five cards move
                    if number % 10 == n % 10:
                        card = fifty.file(f"cards/{host[0]}.html")
                        host[1] = live["built"]
                        card.write_text(f"{live['built']}\n{card.read_text().partition(chr(10))[2]}")
                fifty.file("live.json").write_text(json.dumps(live))
                fifty.set_apart()
                fifty.follow()
                assert fifty.trouble() == ""

        refreshed(10)
        nodes, heap = size()
        refreshed(60)
        more_nodes, more_heap = size()
        assert more_nodes == nodes
        assert more_heap < heap * 1.2


# Times


def with_bookings(board: Board) -> None:
    """One that lasts, and one that is to come on a GPU that is free until then."""
    now = datetime.now(timezone.utc)
    at = [(now + timedelta(days=days)).replace(hour=3, minute=15).isoformat(timespec="seconds") for days in (20, 21)]
    soon_free = {"name": "carol", "from": soon(2 * HOUR), "date": soon(3 * HOUR)}
    board.lab.book({"juno": {"0": {"name": "bob", "date": at[0]}, "1": soon_free}})
    board.build()


def test_bookings_are_shown_in_the_zone_of_the_viewer_and_in_the_servers_on_hover(
    browser: Browser, tmp_path: Path, drawn: Lab
) -> None:
    board = Board(tmp_path, drawn=drawn)
    with_bookings(board)
    with opened(browser, board, tmp_path, timezone_id=TOKYO):
        until = board.page.locator("#juno .booking time.at").first
        assert until.inner_text().endswith("12:15")
        assert re.fullmatch(r"on the server .* 03:15", until.get_attribute("title") or "")
        free_until = board.page.locator(".free-now a[href='#juno'] time")
        there = datetime.now(timezone.utc) + timedelta(hours=2 + 9)
        assert free_until.inner_text()[-5:-3] == f"{there:%H}"
        assert (free_until.get_attribute("title") or "").startswith("on the server ")


def test_a_viewer_in_the_zone_of_the_server_sees_the_builders_own_words(
    browser: Browser, tmp_path: Path, drawn: Lab
) -> None:
    board = Board(tmp_path, drawn=drawn)
    with_bookings(board)
    written = re.findall(r"<time class=at [^>]*>([^<]*)<", board.file("index.html").read_text())
    assert len(written) == 6
    with opened(browser, board, tmp_path, timezone_id="UTC"):
        assert board.page.locator("time.at").all_text_contents() == written


def test_a_replaced_card_has_times_in_the_zone_of_the_viewer(browser: Browser, tmp_path: Path, drawn: Lab) -> None:
    board = Board(tmp_path, drawn=drawn)
    with opened(browser, board, tmp_path, timezone_id=TOKYO):
        with_bookings(board)
        board.follow()
        assert board.page.locator("#juno .booking time.at").first.inner_text().endswith("12:15")


def test_ages_name_their_moment_in_both_zones_also_after_an_update(
    browser: Browser, tmp_path: Path, drawn: Lab
) -> None:
    board = Board(tmp_path, drawn=drawn)
    with opened(browser, board, tmp_path, timezone_id=TOKYO):
        board.page.wait_for_timeout(1000)
        board.host("juno", use=83)
        board.next()
        for time_element in (board.page.locator("#juno .facts time"), board.page.locator(".age time")):
            moment = datetime.fromisoformat(time_element.get_attribute("datetime") or "")
            assert moment.utcoffset() == timedelta(0)
            here = moment + timedelta(hours=9)
            assert time_element.get_attribute("title") == f"{here:%H:%M} here, {moment.isoformat(' ')}"
