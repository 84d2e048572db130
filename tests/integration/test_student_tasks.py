"""What a student comes for, in a real browser, on a laptop and on a phone: how many clicks and seconds each task takes.

Before, to book two GPUs for six hours took six clicks and a date to type, one's own bookings a search in the calendar,
and a release three clicks on the card of the right host.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from site_builder.board.builder import Builder
from site_builder.core.model import AlertSettings, BookingPolicy
from tests.support.board_fixture import gpu, person, process, soon
from tests.support.booking_dialog import BookingSite, context_of, visit
from tests.support.pace import check, wall

SCREENS: dict[str, dict[str, Any]] = {
    "laptop": {"viewport": {"width": 1440, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}
# A choice from a list is no click on a button or a link.
PREPARE = """
    window.clicks = 0;
    addEventListener("click", (event) => {
        if (event.isTrusted && event.target.closest("a, button, summary")) window.clicks += 1;
    }, true);
    if (location.host) localStorage.setItem("gpuboard.me", "erin");
"""
HOUR = 3600
MAX_SECONDS = 5
MAIL = "mailto://127.0.0.1:1"
MAILS = AlertSettings(mail_url=MAIL, mail_domain="lab.example.org")


class Student:
    """Somebody with the board open, whose name this browser knows; their clicks and seconds are counted."""

    def __init__(self, page: Page, site: BookingSite) -> None:
        self.page, self.site = page, site
        self.started = time.monotonic()

    def need(self, count: int, model: str, hours: int) -> None:
        """Fill in the line at the top."""
        self.page.locator(".need [name=count]").fill(str(count))
        self.page.locator(".need [name=model]").select_option(model)
        self.page.locator(".need [name=hours]").select_option(str(hours))

    def finish(self, clicks: int) -> None:
        """Assert that the task took so many clicks, and no more seconds than it may."""
        check(time.monotonic() - self.started, MAX_SECONDS, wall)
        assert self.page.evaluate("clicks") == clicks


@pytest.fixture(scope="module")
def running_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingSite]:
    """A board with a booking service that takes people's word, and with alerts."""
    folder: Path = tmp_path_factory.mktemp("tasks")
    environment = {"GPUBOARD_BOOK_OPEN": "yes", "GPUBOARD_MAIL": MAIL, "GPUBOARD_MAIL_DOMAIN": "lab.example.org"}
    site = BookingSite(folder, None, **environment)
    site.builder.close()
    site.builder = Builder(site.lab.settings(booking_policy=BookingPolicy(url="book"), alerts=MAILS), 10)
    yield site
    site.stop()


@pytest.fixture(params=SCREENS)
def student(request: pytest.FixtureRequest, browser: Browser, running_site: BookingSite) -> Iterator[Student]:
    site = running_site
    site.reset()
    (site.lab.data / "watches.json").unlink(missing_ok=True)
    site.lab.book({"zeus": {"0": {"name": "erin", "from": soon(-HOUR), "date": soon(9 * HOUR), "id": "own1"}}})
    site.lab.host("hera", gpu(0, 40000, 0, uuid="GPU-e"), process(gpu="GPU-e"), person(user="bob"))
    site.builder.builder_state.idle_times.clear()
    site.builder.build(time.time())
    idle = site.builder.builder_state.idle_times["hera"]
    site.builder.builder_state.idle_times["hera"] = idle.__class__(time.time(), {"GPU-e": time.time() - 5 * HOUR})
    site.lab.host("hera", gpu(0, 40001, 0, uuid="GPU-e"), process(gpu="GPU-e"), person(user="bob"))
    site.builder.build(time.time())
    with context_of(browser, **SCREENS[request.param]) as context:
        context.add_init_script(PREPARE)
        page = visit(context, site.url)
        expect(page.locator(".need output")).not_to_be_empty()
        yield Student(page, site)


def test_two_free_a100s_are_seen_without_a_click(student: Student) -> None:
    student.need(2, ">A100 80 GB", 6)
    expect(student.page.locator(".need output")).to_have_text("→ atlas:1,2")
    chips = student.page.locator(".free-now > p").filter(has_text="A100 80 GB").locator("a")
    assert chips.all_inner_texts() == ["atlas:1,2,3"]
    student.finish(clicks=0)


def test_two_gpus_are_booked_for_six_hours_with_two_clicks(student: Student) -> None:
    student.need(2, ">A100 80 GB", 6)
    student.page.get_by_role("link", name="Book atlas:1,2").click()
    form = student.page.get_by_role("dialog")
    form.get_by_role("button", name="Book", exact=True).click()
    expect(form.get_by_role("status").first).to_have_class("good")
    expect(form.get_by_role("status").first).to_contain_text("atlas:1,2")
    student.finish(clicks=2)
    booked = [booking for booking in student.site.booked() if booking[0] == "atlas"]
    assert [(number, name) for _, number, name, _, _ in booked] == [("1", "erin"), ("2", "erin")]
    assert all(5.9 < (until.timestamp() - time.time()) / HOUR < 6.1 for _, _, _, until, _ in booked)


def test_who_could_give_one_is_one_click_away(student: Student) -> None:
    student.page.locator(".totals").get_by_role("button", name="Held idle").click()
    hosts = student.page.locator("main > .host:not([hidden])")
    expect(hosts).to_have_count(1)
    expect(hosts.locator(".who")).to_have_text("bob")
    student.finish(clicks=1)


def test_to_be_notified_takes_two_clicks(student: Student) -> None:
    student.need(4, ">A100 80 GB", 6)
    student.page.get_by_role("button", name="Notify me", exact=True).click()
    dialog = student.page.get_by_role("dialog")
    expect(dialog.locator("[name=when]")).to_have_value("4 GPUs with 80 GB free on one host for 6h")
    dialog.get_by_role("button", name="Notify me", exact=True).click()
    expect(dialog.get_by_role("status").first).to_have_class("good")
    student.finish(clicks=2)
    assert '"erin"' in (student.site.lab.data / "watches.json").read_text()


def test_my_bookings_are_seen_without_a_click_and_one_click_releases(student: Student) -> None:
    bookings = student.page.get_by_role("region", name="My bookings")
    expect(bookings.get_by_role("listitem")).to_contain_text("zeus:0 until ")
    student.finish(clicks=0)
    bookings.get_by_role("button", name=re.compile("^Release zeus:0")).click()
    expect(bookings.get_by_role("button", name="Undo")).to_be_visible()
    student.finish(clicks=1)
    assert student.site.booked() == []


def test_my_bookings_with_those_to_come_are_one_click_away(student: Student) -> None:
    student.page.get_by_role("button", name="erin", exact=True).click()
    expect(student.page.get_by_role("dialog").get_by_role("listitem")).to_contain_text("zeus:0")
    student.finish(clicks=1)
