"""The booking dialog when its service is slow, busy or gone, and when people are fast."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from site_builder.core.model import BookingPolicy
from site_builder.web import rate_limit
from tests.support.board_fixture import Lab, soon
from tests.support.booking_dialog import (
    DAY,
    BookingSite,
    choose,
    context_of,
    dialog,
    four,
    in_field,
    later,
    press,
    said,
    serve_bookings,
    visit,
)
from tests.support.browser import PATIENCE, served


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingSite]:
    """A booking service for which everybody is whom they say."""
    with serve_bookings(tmp_path_factory.mktemp("open"), GPUBOARD_BOOK_OPEN="yes") as running_service:
        yield running_service


@pytest.fixture
def free_for_all(open_service: BookingSite) -> BookingSite:
    open_service.reset()
    return open_service


def held_back(page: Page, address: str, method: str = "GET") -> list[Route]:
    """Requests that wait until the test lets them go on; those that only check do not."""
    waiting: list[Route] = []

    def hold(route: Route) -> None:
        request = route.request
        if request.method == method and '"check"' not in (request.post_data or ""):
            waiting.append(route)
        else:
            route.continue_()

    page.route(address, hold)
    return waiting


def let_go(page: Page, waiting: list[Route]) -> None:
    """Wait for one of them, and let it go on."""
    end = time.monotonic() + PATIENCE / 1000
    while not waiting:
        assert time.monotonic() < end
        page.wait_for_timeout(20)
    waiting.pop(0).continue_()


def test_a_user_who_is_faster_than_the_booking_service_books_too(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        waiting = held_back(page, "**/book?host=atlas")
        form = dialog(page)
        choose(form, "3", until=later(1), name="gil")
        expect(said(form)).to_have_text("")
        for _ in range(2):
            page.keyboard.press("Enter")
            expect(said(form)).to_have_text("Waiting for the booking service …")
        let_go(page, waiting)
        let_go(page, waiting)
        expect(said(form)).to_contain_text("Booked: atlas:3 for gil")
        assert [booking[:3] for booking in free_for_all.booked()] == [("atlas", "3", "gil")]


@pytest.mark.parametrize("how", ["by Book", "by a letter"])
def test_a_booking_service_that_could_not_answer_is_asked_again(
    browser: Browser, free_for_all: BookingSite, how: str
) -> None:
    free_for_all.lab.book("{")
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        expect(said(form)).to_contain_text("comments.json")
        sentence = said(form).inner_text()
        choose(form, "3", until=later(1), name="bob")
        with form.page.expect_response("**/book?host=atlas"):  # it asks again, and gets the same answer
            press(form, "Book")
        expect(said(form)).to_have_text(sentence)
        expect(said(form)).to_have_class("bad")
        expect(form.get_by_label("Token", exact=True)).to_be_hidden()
        free_for_all.lab.book({})
        if how == "by Book":
            press(form, "Book")
            expect(said(form)).to_contain_text("Booked: atlas:3 for bob")
        else:
            form.get_by_label("Purpose (optional)").press("x")
            expect(said(form)).to_contain_text("atlas:3 for bob from now")


def test_a_booking_under_way_leaves_the_form_of_the_next_host_alone(
    browser: Browser, free_for_all: BookingSite
) -> None:
    end = later(2)
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        waiting = held_back(page, "**/book", "POST")
        form = dialog(page)
        choose(form, "3", until=end, name="bob")
        press(form, "Book")
        page.keyboard.press("Escape")
        expect(form).to_be_hidden()
        dialog(page, "zeus")
        choose(form, until=end, comment="mine", name="bob")
        press(form, "Book")
        expect(said(form)).to_contain_text("Your request for atlas is still being sent.")
        let_go(page, waiting)
        expect(said(form)).to_contain_text("zeus:0 for bob from now")
        assert [booking[:3] for booking in free_for_all.booked()] == [("atlas", "3", "bob")]
        expect(form.get_by_label("Purpose (optional)")).to_have_value("mine")
        expect(form.get_by_label("End time")).to_have_value(in_field(end))
        expect(form.get_by_role("checkbox")).to_be_checked()
        press(form, "Book")
        let_go(page, waiting)
        expect(said(form)).to_contain_text("Booked: zeus:0 for bob")


def test_who_opens_the_dialog_again_sees_what_was_under_way(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        waiting = held_back(page, "**/book", "POST")
        form = dialog(page)
        choose(form, "3", until=later(2), name="bob")
        press(form, "Book")
        page.keyboard.press("Escape")
        expect(form).to_be_hidden()
        dialog(page)
        form.get_by_label("Purpose (optional)").fill("next")
        let_go(page, waiting)
        expect(form.get_by_role("listitem")).to_contain_text("atlas:3 bob until ")
        expect(form.get_by_label("Purpose (optional)")).to_have_value("next")


def test_a_booking_service_that_is_gone_is_reported_and_the_form_stays(browser: Browser, tmp_path: Path) -> None:
    with serve_bookings(tmp_path, GPUBOARD_BOOK_OPEN="yes") as booking_site, context_of(browser) as context:
        page = visit(context, booking_site.url)
        form = dialog(page)
        choose(form, "3", until=later(1), name="bob")
        expect(said(form)).to_contain_text("atlas:3 for bob")
        booking_site.stop()
        press(form, "Book")
        expect(said(form)).to_contain_text("No reply. Check the calendar before you retry.")
        expect(form.get_by_label("Name")).to_have_value("bob")


def test_an_address_without_a_booking_service_is_reported(browser: Browser, tmp_path: Path) -> None:
    lab = four(Lab(tmp_path))
    lab.build(booking_policy=BookingPolicy(url="book"))
    with served(lab.www, tmp_path / "server") as site, context_of(browser) as context:
        form = dialog(visit(context, site.url))
        expect(said(form)).to_contain_text("Ask the admin to check GPUBOARD_BOOK_URL")


def test_who_asks_too_often_is_reported_to_wait(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        form = dialog(page)
        expect(form).to_contain_text("Enter your name to book")
        full = {
            "127.0.0.1": [rate_limit.BUCKET_CAPACITY, time.time() + DAY]
        }  # a vessel that does not empty while we look
        (free_for_all.lab.state / rate_limit.REQUESTS_FILE).write_text(json.dumps(full))
        choose(form, "3", until=later(1), name="bob")
        expect(said(form)).to_contain_text("Too many requests from your address: try again in")


def test_a_double_click_books_once(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        form.get_by_role("checkbox", name="All GPUs of atlas").check()
        choose(form, until=later(2), name="bob")
        form.get_by_role("button", name="Book", exact=True).dblclick()
        expect(said(form)).to_contain_text("Booked: atlas for bob")
        form.page.wait_for_timeout(300)
        expect(said(form)).to_contain_text("Booked: atlas for bob")
        log = (free_for_all.lab.data / "bookings.log").read_text().splitlines()
        assert (len(log), [booking[1] for booking in free_for_all.booked()]) == (1, ["*"])


def test_the_second_of_two_tabs_is_told_who_was_first(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        forms = [dialog(visit(context, free_for_all.url)) for _ in range(2)]
        for form, name in zip(forms, ("ann", "bob")):
            choose(form, "3", until=later(2), name=name)
            expect(said(form)).to_contain_text(f"atlas:3 for {name}")
        for form in forms:
            press(form, "Book")
        expect(said(forms[0])).to_contain_text("Booked: atlas:3 for ann")
        expect(said(forms[1])).to_contain_text("atlas:3 is booked by ann")
        assert [booking[2] for booking in free_for_all.booked()] == ["ann"]


def test_bookings_that_cannot_be_loaded_are_never_none(browser: Browser, tmp_path: Path) -> None:
    with serve_bookings(tmp_path, GPUBOARD_BOOK_OPEN="yes") as booking_site, context_of(browser) as context:
        booking_site.lab.book({"atlas": {"2": {"name": "carol", "date": soon(3 * DAY)}}})
        booking_site.builder.build(time.time())
        page = visit(context, booking_site.url)
        context.route("**/book?host=*", lambda route: route.abort())
        form = dialog(page)
        expect(form).to_contain_text("Could not be loaded. The board shows:")
        expect(form.get_by_role("listitem")).to_contain_text("atlas:2 carol until ")
        expect(form).not_to_contain_text("No bookings")
        page.keyboard.press("Escape")
        form = dialog(page, "zeus")
        expect(form).to_contain_text("Could not be loaded. The board shows none.")


@pytest.mark.parametrize("opener", ["#atlas a.book", "button.watch"])
def test_a_dialog_that_cannot_be_loaded_leaves_the_board_as_it_is(
    browser: Browser, free_for_all: BookingSite, opener: str
) -> None:
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        if opener == "button.watch":  # this board sends no mail
            page.evaluate("document.querySelector('main').append(createCopyButton('x', 'Notify me'))")
            page.evaluate("document.querySelector('main').lastChild.className = 'watch'")
        context.set_offline(True)
        page.locator(opener).click()
        expect(page.get_by_role("status").filter(has_text="Not loaded: the server does not reply.")).to_be_visible()
        assert page.url == free_for_all.url
        expect(page.locator("#atlas")).to_be_visible()
        context.set_offline(False)
        page.locator("#atlas a.book").click()
        expect(page.get_by_role("dialog")).to_be_visible()
