"""The booking dialog and who may use it: tokens, admins, and what is hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from site_builder.core.model import PrivacySettings
from tests.support.board_fixture import soon
from tests.support.booking_dialog import (
    DAY,
    LAPTOP,
    PHONE,
    TOO_SMALL,
    TOO_WIDE,
    BookingSite,
    choose,
    context_of,
    dialog,
    keep_token,
    later,
    press,
    said,
    serve_bookings,
    visit,
)
from tests.support.page_checks import each_view, run_axe


@pytest.fixture(scope="module")
def token_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingSite]:
    """A booking service that asks for tokens."""
    with serve_bookings(tmp_path_factory.mktemp("token"), GPUBOARD_ADMINS="root") as running_service:
        yield running_service


@pytest.fixture
def by_token(token_service: BookingSite) -> BookingSite:
    token_service.reset()
    return token_service


@pytest.mark.parametrize("text", ["gpuboard_abc\u2026", "gpuboard\u2013abc", "gpuboard_\u200babc", "gpuboard abc"])
def test_what_cannot_be_a_token_is_reported_and_not_kept(browser: Browser, by_token: BookingSite, text: str) -> None:
    with context_of(browser) as context:
        page = visit(context, by_token.url)
        form = dialog(page)
        form.get_by_label("Token", exact=True).fill(text)
        press(form, "Sign in")
        expect(said(form)).to_contain_text("The token has invalid characters")
        expect(form.get_by_label("Token", exact=True)).to_be_focused()
        assert page.evaluate("localStorage.getItem('gpuboard.token')") is None


def test_a_token_that_was_kept_and_cannot_be_one_is_not_used(browser: Browser, by_token: BookingSite) -> None:
    with context_of(browser) as context:
        keep_token(context, "gpuboard_abc\u2026")
        form = dialog(visit(context, by_token.url))
        expect(said(form)).to_have_text("Sign in with your token.")
        expect(form.get_by_label("Token", exact=True)).to_be_visible()


def test_a_token_says_who_one_is(browser: Browser, by_token: BookingSite) -> None:
    by_token.lab.book({"atlas": {"2": {"name": "carol", "date": soon(3 * DAY), "id": "carols"}}})
    with context_of(browser) as context:
        page = visit(context, by_token.url)
        form = dialog(page)
        expect(form).to_contain_text("gpuboard token NAME")
        expect(said(form)).to_have_text("Sign in with your token.")
        form.get_by_label("Token", exact=True).fill("nonsense")
        press(form, "Sign in")
        expect(said(form)).to_contain_text("Unknown or revoked token")
        form.get_by_label("Token", exact=True).fill(by_token.token("alice"))
        page.keyboard.press("Enter")
        expect(form).to_contain_text("Signed in as alice")
        expect(form.get_by_label("Token", exact=True)).to_be_hidden()
        expect(form.get_by_role("button", name="Change")).to_have_count(0)
        choose(form, "3", until=later(2))
        expect(said(form)).to_contain_text("atlas:3 for alice")
        press(form, "Book")
        expect(said(form)).to_contain_text("Booked: atlas:3 for alice")
        expect(form.get_by_role("button", name="Change atlas:3")).to_be_visible()
        page.reload()
        expect(dialog(page)).to_contain_text("Signed in as alice")
        assert page.evaluate("localStorage.getItem('gpuboard.me')") == "alice"
        press(form, "Sign out")
        expect(form.get_by_label("Token", exact=True)).to_be_visible()
        assert page.evaluate("localStorage.getItem('gpuboard.token')") is None


def test_an_admin_may_change_everybodys(browser: Browser, by_token: BookingSite) -> None:
    by_token.lab.book({"atlas": {"2": {"name": "carol", "date": soon(3 * DAY), "id": "carols"}}})
    token = by_token.token("root")
    with context_of(browser) as context:
        keep_token(context, token)
        form = dialog(visit(context, by_token.url))
        expect(form).to_contain_text("Signed in as root (admin)")
        form.get_by_role("button", name=re.compile("^Release atlas:2")).click()
        form.get_by_role("button", name="Yes, release").click()
        expect(said(form)).to_contain_text("atlas:2 of ")
        assert by_token.booked() == []


def test_where_nobody_books_for_others_there_is_no_name_to_give(browser: Browser, tmp_path: Path) -> None:
    with serve_bookings(tmp_path, GPUBOARD_BOOK_FOR_OTHERS="no") as booking_site, context_of(browser) as context:
        keep_token(context, booking_site.token("alice"))
        form = dialog(visit(context, booking_site.url))
        expect(form).to_contain_text("Signed in as alice")
        expect(form.get_by_label("Name")).to_be_hidden()


def test_where_users_are_hidden_nobody_else_is_named(browser: Browser, tmp_path: Path) -> None:
    shown = PrivacySettings(users=False)
    with serve_bookings(tmp_path, shown, GPUBOARD_BOOK_OPEN="yes", GPUBOARD_SHOW_USERS="no") as booking_site:
        booking_site.lab.book({"atlas": {"2": {"name": "carol", "date": soon(3 * DAY), "comment": "secret"}}})
        with context_of(browser) as context:
            form = dialog(visit(context, booking_site.url))
            expect(form.get_by_role("listitem")).to_contain_text("atlas:2")
            choose(form, "2", until=later(1), name="bob")
            expect(said(form)).to_contain_text("atlas:2 is booked until")
            assert not {"carol", "secret", "null"} & set(re.findall(r"\w+", form.inner_text()))


def test_with_a_booking_service_axe_finds_nothing_either(browser: Browser, by_token: BookingSite) -> None:
    by_token.lab.book({"atlas": {"2": {"name": "alice", "date": soon(3 * DAY), "comment": "long " * 40}}})
    with context_of(browser) as context:
        page = visit(context, by_token.url)
        form = dialog(page)
        expect(said(form)).to_have_text("Sign in with your token.")
        for is_known in (False, True):
            if is_known:
                form.get_by_label("Token", exact=True).fill(by_token.token("alice"))
                press(form, "Sign in")
                expect(form).to_contain_text("Signed in as alice")
            choose(form, "0", until=later(1))
            if is_known:
                expect(said(form)).to_contain_text("atlas:0 for alice")
            expect(said(form)).to_have_css("opacity", "1")  # no longer fading in
            for rules in each_view(page, LAPTOP["width"], PHONE["width"]):
                assert run_axe(page, rules, "dialog").faults == []
                assert page.evaluate(TOO_WIDE) == []
                assert page.evaluate(TOO_SMALL) == []
