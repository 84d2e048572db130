"""The watch dialog of the page, in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from site_builder.board.builder import Builder
from site_builder.core.model import AlertSettings, BookingPolicy
from tests.support.board_fixture import Lab
from tests.support.booking_dialog import LAPTOP, PHONE, TOO_SMALL, TOO_WIDE, BookingSite, context_of, press, said, visit
from tests.support.browser import PATIENCE
from tests.support.page_checks import each_view, run_axe

ASKED = re.compile(r"/book\?")  # who is asking
MAIL = "mailto://127.0.0.1:1"
TELLS = AlertSettings(mail_url=MAIL, mail_domain="lab.example.org")


def watched(folder: Path, **environment: str) -> BookingSite:
    """A board that sends mail to people."""
    booking_site = BookingSite(folder, None, GPUBOARD_MAIL=MAIL, GPUBOARD_MAIL_DOMAIN="lab.example.org", **environment)
    booking_site.builder.close()
    booking_site.builder = Builder(
        booking_site.lab.settings(booking_policy=BookingPolicy(url="book"), alerts=TELLS), 10
    )
    booking_site.builder.build(time.time())
    return booking_site


@pytest.fixture(scope="module")
def booking_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingSite]:
    """One at which everybody is whom they say."""
    running_site = watched(tmp_path_factory.mktemp("open"), GPUBOARD_BOOK_OPEN="yes")
    yield running_site
    running_site.stop()


@pytest.fixture(autouse=True)
def nobody_waits(booking_site: BookingSite) -> None:
    (booking_site.lab.data / "watches.json").unlink(missing_ok=True)


def waiting(booking_site: BookingSite) -> list[tuple[str, str, str | None]]:
    path = booking_site.lab.data / "watches.json"
    watches: list[dict[str, Any]] = json.loads(path.read_bytes()) if path.exists() else []
    return [(watch["name"], watch["when"], watch.get("via")) for watch in watches]


def dialog(page: Page) -> Locator:
    page.locator("button.watch").click()
    watch_dialog = page.get_by_role("dialog", name="Notify me when GPUs are free")
    expect(watch_dialog).to_be_visible()
    return watch_dialog


def test_the_button_needs_booking_and_receivers(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    offered = []
    for rules, alerts in ((None, None), ("book", None), (None, MAIL), ("book", MAIL)):
        lab.build(booking_policy=BookingPolicy(url=rules), alerts=AlertSettings(mail_url=alerts))
        offered.append("class=watch" in lab.page())
    assert offered == [False, False, False, True]


def test_a_watch_is_made_and_ended_in_the_dialog(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, booking_site.url)
        form = dialog(page)
        expect(form).to_contain_text("Enter your name to get notified")
        expect(form.get_by_label("GPUs", exact=True)).to_have_value("1 GPU free for 6h")
        expect(said(form)).to_have_text("Enter your name.")
        form.get_by_label("GPUs", exact=True).fill("")
        expect(said(form)).to_have_text("Enter the GPUs that you need.")
        form.get_by_label("GPUs", exact=True).fill("three A100s for 4h on atlas")
        expect(said(form)).to_have_text("Enter your name.")
        form.get_by_label("Name").fill("bob")
        form.get_by_label("Notify by").select_option("mail")
        expect(said(form)).to_contain_text(
            "We will notify bob by mail when there are 3 A100 free on atlas for 4 h or longer, until "
        )
        expect(said(form).locator("span")).to_have_text("Free already: atlas:1,2,3")
        assert waiting(booking_site) == []
        press(form, "Notify me")
        expect(said(form)).to_have_class("good")
        expect(said(form)).to_contain_text("We will notify bob by mail when there are 3 A100 free on atlas")
        assert waiting(booking_site) == [("bob", "3 A100 free on atlas for 4 h or longer", "mail")]
        line = form.get_by_role("listitem")
        expect(line).to_contain_text("3 A100 free on atlas for 4 h or longer · by mail, until ")
        expect(form.get_by_label("GPUs", exact=True)).to_have_value("")
        form.get_by_label("Name").fill("carol")
        expect(line).to_have_count(0)
        form.get_by_label("Name").fill("bob")
        press(form, "Cancel: 3 A100 free on atlas for 4 h or longer")
        expect(said(form)).to_contain_text("We will no longer notify bob of 3 A100 free on atlas")
        expect(line).to_have_count(0)
        assert waiting(booking_site) == []


def test_the_dialog_shows_the_error_of_the_service(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        form = dialog(visit(context, booking_site.url))
        form.get_by_label("Name").fill("bob")
        form.get_by_label("GPUs", exact=True).fill("<img src=x onerror=alert(1)> A100")
        expect(said(form)).to_contain_text('is not understood at "<img": write "2 A100 free on one host"')
        expect(said(form)).to_have_class("bad")
        press(form, "1 A100 free")
        expect(form.get_by_label("GPUs", exact=True)).to_have_value("1 A100 free")
        expect(said(form)).to_contain_text("We will notify bob when there is 1 A100 free, until ")


def test_the_keyboard_alone_is_enough(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, booking_site.url)
        opener = page.locator("button.watch")
        opener.focus()
        page.keyboard.press("Enter")
        form = page.get_by_role("dialog")
        expect(form.get_by_label("GPUs", exact=True)).to_be_focused()
        expect(form.get_by_label("Name")).to_be_visible()  # once the service has answered that it wants one
        page.keyboard.type("2 GPUs")
        for _ in range(9):
            if page.evaluate("document.activeElement.name") == "name":
                break
            page.keyboard.press("Tab")
        page.keyboard.type("dora")
        page.keyboard.press("Enter")
        expect(said(form)).to_contain_text("We will notify dora when there are 2 GPUs free on one host, until ")
        page.keyboard.press("Escape")
        expect(form).to_be_hidden()
        expect(opener).to_be_focused()
        assert waiting(booking_site) == [("dora", "2 GPUs free on one host", None)]


def test_who_confirms_before_the_service_has_answered_is_notified(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, booking_site.url)
        page.evaluate("localStorage.setItem('gpuboard.me', 'bob')")
        held: list[Route] = []

        def hold(route: Route) -> None:
            held.append(route)

        page.route(ASKED, hold)
        form = dialog(page)
        press(form, "Notify me")
        end = time.monotonic() + PATIENCE / 1000
        while len(held) < 2:  # who is asking, when it opens and when it is confirmed
            assert time.monotonic() < end
            page.wait_for_timeout(20)
        for route in held:
            route.continue_()
        page.unroute(ASKED)
        expect(said(form)).to_have_class("good")
        assert waiting(booking_site) == [("bob", "1 GPU free for 6 h or longer", None)]


def test_axe_finds_nothing_and_nothing_is_too_wide_or_too_small(browser: Browser, booking_site: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, booking_site.url)
        form = dialog(page)
        form.get_by_label("Name").fill("bob")
        form.get_by_label("GPUs", exact=True).fill("9 A100")
        expect(said(form).locator("span")).to_have_text("No host has 9 GPUs; the largest has 4")
        press(form, "Notify me")
        expect(form.get_by_role("listitem")).to_have_count(1)
        expect(said(form)).to_have_css("opacity", "1")  # no longer fading in
        for rules in each_view(page, LAPTOP["width"], PHONE["width"]):
            assert run_axe(page, rules, "dialog, .need").faults == []
            assert page.evaluate(TOO_WIDE) == []
            assert page.evaluate(TOO_SMALL) == []


def test_without_script_there_is_no_button_and_with_it_nothing_is_fetched_before_it_is_wanted(
    browser: Browser, booking_site: BookingSite
) -> None:
    with context_of(browser, java_script_enabled=False) as context:
        expect(visit(context, booking_site.url).locator("button.watch")).to_be_hidden()
    with context_of(browser) as context:
        asked: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        page = visit(context, booking_site.url)
        page.wait_for_load_state("networkidle")
        assert [
            requested_url
            for requested_url in asked
            if "watch-dialog.js" in requested_url or "dialog-parts" in requested_url
        ] == []


def test_the_dialog_asks_for_a_token(browser: Browser, tmp_path: Path) -> None:
    booking_site = watched(tmp_path)
    try:
        with context_of(browser) as context:
            form = dialog(visit(context, booking_site.url))
            expect(said(form)).to_have_text("Sign in with your token.")
            expect(form.get_by_label("Name")).to_be_hidden()
            form.get_by_label("Token", exact=True).fill(booking_site.token("alice"))
            press(form, "Sign in")
            expect(form).to_contain_text("Signed in as alice")
            form.get_by_label("GPUs", exact=True).fill("9 GPUs")
            press(form, "Notify me")
            expect(said(form)).to_contain_text("We will notify alice when there are 9 GPUs free on one host, until ")
            assert waiting(booking_site) == [("alice", "9 GPUs free on one host", None)]
    finally:
        booking_site.stop()


def test_nobody_is_promised_a_notification_that_cannot_reach_them(browser: Browser, tmp_path: Path) -> None:
    booking_site = BookingSite(tmp_path, None, GPUBOARD_MAIL=MAIL, GPUBOARD_BOOK_OPEN="yes")
    booking_site.builder.close()
    settings = booking_site.lab.settings(booking_policy=BookingPolicy(url="book"), alerts=AlertSettings(mail_url=MAIL))
    booking_site.builder = Builder(settings, 10)
    booking_site.builder.build(time.time())
    try:
        with context_of(browser) as context:
            form = dialog(visit(context, booking_site.url))
            form.get_by_label("Name").fill("bob")
            press(form, "1 GPU free")
            expect(said(form)).to_have_text("No contact for bob: ask the admin to add one (GPUBOARD_CONTACTS).")
            press(form, "Notify me")
            expect(said(form)).to_have_class("bad")
            assert waiting(booking_site) == []
    finally:
        booking_site.stop()
