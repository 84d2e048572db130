"""One's own current bookings on the board, each with a button that releases it at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.support.board_fixture import soon
from tests.support.booking_dialog import (
    DAY,
    LAPTOP,
    BookingSite,
    choose,
    context_of,
    dialog,
    keep_name,
    keep_token,
    later,
    press,
    said,
    serve_bookings,
    visit,
)
from tests.support.page_checks import each_view, run_axe

ASKED = re.compile(r"/book\?")  # whose bookings are these
HOUR = 3600
SHIFTS = """
    window.shift = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
    }).observe({ type: "layout-shift", buffered: true });
"""


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingSite]:
    """A booking service for which everybody is whom they say."""
    with serve_bookings(tmp_path_factory.mktemp("open"), GPUBOARD_BOOK_OPEN="yes") as running_service:
        yield running_service


@pytest.fixture
def booking_site(open_service: BookingSite) -> BookingSite:
    """A lab in which bob has atlas:2 and 3 now, and zeus tomorrow."""
    open_service.reset()
    book(open_service)
    return open_service


def book(site: BookingSite) -> None:
    both = {"name": "bob", "from": soon(-HOUR), "date": soon(DAY), "comment": "sweep", "id": "bobs1"}
    site.lab.book(
        {
            "atlas": {"1": {"name": "carol", "date": soon(DAY), "id": "car01"}, "2": both, "3": both},
            "zeus": {"0": {"name": "bob", "from": soon(DAY), "date": soon(2 * DAY), "id": "bobs2"}},
        }
    )


def own(page: Page) -> Locator:
    return page.get_by_role("region", name="My bookings")


def test_own_bookings_are_shown_and_one_click_releases_them(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        keep_name(context, "Bob")
        page = visit(context, booking_site.url)
        expect(own(page).get_by_role("listitem")).to_have_count(1)  # neither carol's, nor what comes tomorrow
        expect(own(page).get_by_role("listitem")).to_contain_text(re.compile("^atlas:2,3 until .+"))
        own(page).get_by_role("button", name=re.compile(r"^Release atlas:2,3 until ")).click()
        expect(own(page).get_by_role("status")).to_contain_text("atlas:2,3 of bob released (was until ")
        expect(own(page).get_by_role("button", name="Undo")).to_be_focused()
        expect(own(page).get_by_role("listitem")).to_have_count(0)
        assert [booking[:3] for booking in booking_site.booked()] == [("atlas", "1", "carol"), ("zeus", "0", "bob")]
        page.keyboard.press("Enter")
        expect(own(page).get_by_role("listitem")).to_have_count(1)
        expect(own(page).get_by_role("status")).to_contain_text("Undone: the release by ")
        assert [booking[1] for booking in booking_site.booked()] == ["1", "2", "3", "0"]
        own(page).get_by_role("button", name="Release").click()
        expect(own(page).get_by_role("listitem")).to_have_count(0)


def test_a_double_click_releases_once(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        keep_name(context, "bob")
        page = visit(context, booking_site.url)
        own(page).get_by_role("button", name="Release").dblclick()
        expect(own(page).get_by_role("status")).to_contain_text("atlas:2,3 of bob released")
        assert len(booking_site.booked()) == 2


def test_who_is_not_known_sees_no_bookings_and_asks_for_none(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        asked: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        page = visit(context, booking_site.url)
        page.wait_for_load_state("networkidle")
        expect(own(page)).to_be_hidden()
        assert [url for url in asked if ASKED.search(url) or "own-bookings" in url or "dialog-parts" in url] == []


def test_a_booking_made_in_the_dialog_is_shown_when_it_closes(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, booking_site.url)
        form = dialog(page)
        choose(form, "0", until=later(1), name="dora")
        press(form, "Book")
        expect(said(form).last).to_have_class("good")
        page.keyboard.press("Escape")
        expect(own(page).get_by_role("listitem")).to_contain_text("atlas:0 until ")


def test_a_token_says_whose_bookings_they_are(browser: Browser, tmp_path: Path) -> None:
    with serve_bookings(tmp_path) as site, context_of(browser) as context:
        book(site)
        keep_token(context, site.token("bob"))
        page = visit(context, site.url)
        own(page).get_by_role("button", name=re.compile("^Release atlas:2,3")).click()
        expect(own(page).get_by_role("status")).to_contain_text("atlas:2,3 of bob released")
        page.get_by_role("button", name="Me", exact=True).click()
        form = page.get_by_role("dialog")
        expect(form).to_contain_text("Signed in as bob")
        context.add_init_script("localStorage.clear()")
        press(form, "Sign out")
        expect(form.get_by_label("Token", exact=True)).to_be_visible()
        page.keyboard.press("Escape")
        expect(own(page)).to_be_hidden()


def test_the_button_of_a_booking_that_repeats_opens_the_menu_in_which_its_repeats_can_be_stopped(
    browser: Browser, booking_site: BookingSite
) -> None:
    start, end = later(-1 / 24), later(1 / 24)
    daily = {"name": "bob", "from": start.isoformat(), "date": end.isoformat(), "rrule": "FREQ=DAILY", "id": "bobs3"}
    booking_site.lab.book({"zeus": {"0": daily}})
    with context_of(browser) as context:
        keep_name(context, "bob")
        page = visit(context, booking_site.url)
        expect(own(page).get_by_role("listitem")).to_contain_text("zeus:0 ")
        expect(own(page).get_by_role("button", name="Release")).to_have_count(0)
        own(page).get_by_role("button", name=re.compile("^Details of zeus:0 until ")).click()
        menu = page.get_by_role("dialog")
        menu.get_by_role("button", name=re.compile("^Stop repeating zeus:0 every day ")).click()
        expect(menu.get_by_role("status")).to_contain_text("zeus:0 of bob will no longer repeat; a repeat that has")
        press(menu, "Undo")
        expect(menu.get_by_role("status")).to_contain_text("Undone: the release by bob")
        page.keyboard.press("Escape")
        expect(own(page).get_by_role("button", name=re.compile("^Details"))).to_be_focused()


def test_of_many_bookings_the_rest_are_in_the_menu(browser: Browser, booking_site: BookingSite) -> None:
    bookings = {
        str(number): {"name": "bob", "date": soon(DAY + number * HOUR), "id": f"bobs{number}"} for number in range(4)
    }
    booking_site.lab.book({"atlas": bookings, "zeus": {"0": {"name": "bob", "date": soon(HOUR), "id": "first"}}})
    with context_of(browser) as context:
        keep_name(context, "bob")
        page = visit(context, booking_site.url)
        items = own(page).get_by_role("listitem")
        expect(items).to_have_count(3)
        expect(items.first).to_contain_text("zeus:0 until")  # what ends first is first
        own(page).get_by_role("button", name="2 more").click()
        expect(page.get_by_role("dialog").get_by_role("listitem")).to_have_count(5)
        page.keyboard.press("Escape")
        expect(own(page).get_by_role("button", name="2 more")).to_be_focused()


def test_bookings_that_cannot_be_loaded_are_said_to_be(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        keep_name(context, "bob")
        page = visit(context, booking_site.url)
        expect(own(page).get_by_role("listitem")).to_have_count(1)
        page.route(ASKED, lambda route: route.abort())
        page.reload()
        expect(own(page).get_by_role("status")).to_have_text("Could not be loaded.")
        expect(own(page).get_by_role("listitem")).to_have_count(0)


def test_a_release_that_is_refused_says_why(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        keep_name(context, "bob")
        page = visit(context, booking_site.url)
        expect(own(page).get_by_role("listitem")).to_have_count(1)
        booking_site.lab.book({})
        own(page).get_by_role("button", name="Release").click()
        expect(own(page).get_by_role("status")).to_contain_text("bobs1")
        expect(own(page).get_by_role("status")).to_have_class("bad")
        expect(own(page).get_by_role("listitem")).to_have_count(0)


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (390, 844)])
def test_nothing_moves_when_they_come(browser: Browser, booking_site: BookingSite, width: int, height: int) -> None:
    with context_of(browser, viewport={"width": width, "height": height}) as context:
        context.add_init_script(SHIFTS)
        keep_name(context, "bob")
        page = visit(context, booking_site.url)
        expect(own(page).get_by_role("listitem")).to_have_count(1)
        waiting: list[Route] = []
        page.route(ASKED, lambda route: waiting.append(route))  # noqa: PLW0108 playwright asks for its signature
        page.reload()
        expect(own(page)).to_be_visible()
        before = page.locator("#atlas").bounding_box()
        expect(own(page).get_by_role("listitem")).to_have_count(0)
        for route in waiting:
            route.continue_()
        expect(own(page).get_by_role("listitem")).to_have_count(1)
        assert page.locator("#atlas").bounding_box() == before
        assert page.evaluate("shift") <= 0.05


def test_axe_finds_nothing_and_a_phone_has_targets_for_thumbs(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        keep_name(context, "bob")
        page = visit(context, booking_site.url)
        button = own(page).get_by_role("button", name="Release")
        expect(button).to_be_visible()
        heights = []
        for rules in each_view(page, LAPTOP["width"], 390):
            assert run_axe(page, rules).faults == []
            box = button.bounding_box()
            assert box
            heights.append(box["height"])
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert heights[0] >= 28
        assert heights[1] >= 44
        button.click()
        undo = own(page).get_by_role("button", name="Undo").bounding_box()
        assert undo
        assert undo["height"] >= 44
        for rules in each_view(page, LAPTOP["width"], 390):
            assert run_axe(page, rules, ".own-bookings").faults == []


def test_without_script_there_is_no_empty_line(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser, java_script_enabled=False) as context:
        expect(visit(context, booking_site.url).locator(".own-bookings")).to_be_hidden()
