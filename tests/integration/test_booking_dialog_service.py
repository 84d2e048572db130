"""The booking dialog with a booking service: bookings are made, changed and released in it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import timedelta, timezone

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.support.board_fixture import soon
from tests.support.booking_dialog import (
    DAY,
    TRICKY,
    BookingSite,
    at_rest,
    choose,
    context_of,
    dialog,
    in_field,
    later,
    press,
    said,
    serve_bookings,
    visit,
)


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingSite]:
    """A booking service for which everybody is whom they say."""
    with serve_bookings(tmp_path_factory.mktemp("open"), GPUBOARD_BOOK_OPEN="yes") as running_service:
        yield running_service


@pytest.fixture
def free_for_all(open_service: BookingSite) -> BookingSite:
    open_service.reset()
    return open_service


def test_an_open_board_takes_a_booking_from_whoever_says_a_name(browser: Browser, free_for_all: BookingSite) -> None:
    end = later(2)
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        form = dialog(page)
        expect(form).to_contain_text("Anybody can book here: say who you are.")
        choose(form, "0", "1", until=end, comment=TRICKY)
        expect(said(form)).to_have_text("Say who you are.")
        form.get_by_label("Name").fill("bob")
        expect(said(form)).to_contain_text("atlas:0,1 for bob from now until ")
        expect(said(form).locator("span")).to_have_text("atlas:0 is busy: in use by alice")
        assert free_for_all.booked() == []
        press(form, "Book")
        expect(said(form)).to_contain_text("Booked: atlas:0,1 for bob from now until ")
        assert free_for_all.booked() == [("atlas", number, "bob", end, TRICKY) for number in ("0", "1")]
        expect(form.get_by_role("listitem")).to_contain_text(f"· {TRICKY}")
        assert page.evaluate("localStorage.getItem('gpuboard.me')") == "bob"
        free_for_all.builder.build(time.time())
        page.evaluate("refresh()")
        expect(page.locator("#atlas .booking b").first).to_have_text("bob")
        expect(form.get_by_role("listitem")).to_have_count(1)


def test_what_overlaps_is_refused_in_the_words_of_the_booking_service(
    browser: Browser, free_for_all: BookingSite
) -> None:
    free_for_all.lab.book({"atlas": {"2": {"name": "carol", "date": soon(3 * DAY), "id": "carols"}}})
    end = later(2)
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        choose(form, "2", until=end, name="bob")
        expect(said(form)).to_contain_text(re.compile(r"^atlas:2 is booked by carol until .* \(booking carols\)\.$"))
        press(form, "Book")
        expect(said(form)).to_have_class("bad")
        assert [booking[2] for booking in free_for_all.booked()] == ["carol"]
        assert form.get_by_label("Until when").input_value() == in_field(end)


def test_one_changes_and_releases_what_is_ones_own(browser: Browser, free_for_all: BookingSite) -> None:
    free_for_all.lab.book(
        {
            "atlas": {
                "2": {"name": "carol", "date": soon(3 * DAY), "id": "carols"},
                "3": {"name": "bob", "from": soon(DAY), "date": soon(3 * DAY), "id": "bobs", "kept": 1},
            }
        }
    )
    start, end = later(2), later(4)
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        expect(form.get_by_role("listitem")).to_have_count(2)
        expect(form.get_by_role("button", name="Change")).to_have_count(0)
        form.get_by_label("Name").fill("Bob")
        form.get_by_role("button", name=re.compile("^Change atlas:3")).click()
        expect(form.get_by_role("heading", level=2)).to_have_text("Change atlas:3")
        expect(said(form)).to_have_text("Nothing is changed yet.")
        form.get_by_label("From when").fill(in_field(start))
        form.get_by_label("Until when").fill(in_field(end))
        form.get_by_label("What for").fill("moved")
        expect(said(form)).to_contain_text("atlas:3 for bob from ")
        press(form, "Change")
        expect(said(form)).to_contain_text("Changed: atlas:3 for bob")
        assert free_for_all.booked()[1] == ("atlas", "3", "bob", end, "moved")
        assert json.loads((free_for_all.lab.data / "comments.json").read_text())["atlas"]["3"]["kept"] == 1
        at_rest(form).get_by_role("button", name=re.compile("^Release atlas:3")).click()
        form.get_by_role("button", name="No, keep").click()
        assert len(free_for_all.booked()) == 2
        form.get_by_role("button", name=re.compile("^Release atlas:3")).click()
        expect(form.get_by_role("button", name="Yes, release")).to_be_focused()
        form.page.keyboard.press("Enter")
        expect(said(form)).to_contain_text("Released: atlas:3")
        expect(form.get_by_role("listitem")).to_have_count(1)
        assert [booking[2] for booking in free_for_all.booked()] == ["carol"]


def test_the_beginning_of_what_has_begun_stays_and_its_comment_can_go(
    browser: Browser, free_for_all: BookingSite
) -> None:
    free_for_all.lab.book({"atlas": {"*": {"name": "bob", "date": soon(3 * DAY), "comment": "sweep"}}})
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        form.get_by_label("Name").fill("bob")
        form.get_by_role("button", name=re.compile("^Change atlas")).click()
        expect(form.get_by_label("From when")).to_be_hidden()
        form.get_by_label("What for").fill("")
        press(form, "Change")
        expect(said(form)).to_contain_text("Changed: atlas for bob")
        ((_, gpu_key, _, until, comment),) = free_for_all.booked()
        assert (gpu_key, comment) == ("*", "")
        assert abs(until.timestamp() - time.time() - 3 * DAY) < 60
        expect(form.get_by_role("heading", level=2)).to_have_text("Book atlas")


@pytest.mark.parametrize("worded", [True, False])
def test_what_repeats_is_reported_in_words_as_far_as_the_booking_service_has_some(
    browser: Browser, free_for_all: BookingSite, worded: bool
) -> None:
    weekly = {"name": "bob", "from": soon(DAY), "date": soon(DAY + 7200), "rrule": "FREQ=WEEKLY"}
    free_for_all.lab.book({"atlas": {"1": weekly}})

    def without_words(route: Route) -> None:
        answer = route.fetch()
        listing = answer.json()
        listing["bookings"][0]["repeats"] = None
        route.fulfill(response=answer, json=listing)

    words = r"every [A-Z][a-z][a-z] \d\d:\d\d to \d\d:\d\d" if worded else r"repeats \(FREQ=WEEKLY\)"
    with context_of(browser) as context:
        if not worded:
            context.route("**/book?host=atlas", without_words)
        line = dialog(visit(context, free_for_all.url)).get_by_role("listitem")
        expect(line).to_contain_text(re.compile(rf"bob {words}, first tomorrow \d\d:\d\d"))


def test_a_change_and_a_release_name_the_host(browser: Browser, free_for_all: BookingSite) -> None:
    entry = {"name": "bob", "date": soon(3 * DAY), "id": "copied"}
    free_for_all.lab.book({"atlas": {"2": entry}, "zeus": {"0": entry}})
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        form.get_by_label("Name").fill("bob")
        form.get_by_role("button", name=re.compile("^Change atlas:2")).click()
        form.get_by_label("What for").fill("mine")
        press(form, "Change")
        expect(said(form)).to_contain_text("Changed: atlas:2 for bob")
        assert [booking[4] for booking in free_for_all.booked()] == ["mine", ""]
        at_rest(form).get_by_role("button", name=re.compile("^Release atlas:2")).click()
        form.get_by_role("button", name="Yes, release").click()
        expect(said(form)).to_contain_text("Released: atlas:2")
        assert [booking[0] for booking in free_for_all.booked()] == ["zeus"]


def test_a_repeating_booking_keeps_its_times(browser: Browser, free_for_all: BookingSite) -> None:
    weekly = {"name": "bob", "from": soon(DAY), "date": soon(DAY + 7200), "rrule": "FREQ=WEEKLY", "comment": "class"}
    free_for_all.lab.book({"atlas": {"1": weekly}})
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        form.get_by_label("Name").fill("bob")
        expect(form.get_by_role("listitem")).to_contain_text(", first tomorrow")
        form.get_by_role("button", name=re.compile("^Change atlas:1")).click()
        expect(form.get_by_label("What for")).to_be_focused()
        expect(form.get_by_label("Until when")).to_be_hidden()
        press(form, "Back to a new booking")
        expect(form.get_by_role("heading", level=2)).to_have_text("Book atlas")
        form.get_by_role("button", name=re.compile("^Change atlas:1")).click()
        form.get_by_label("What for").fill("course")
        press(form, "Change")
        expect(said(form)).to_contain_text("Changed: atlas:1 for bob")
        entry = json.loads((free_for_all.lab.data / "comments.json").read_text())["atlas"]["1"]
        assert {**weekly, "comment": "course"}.items() <= entry.items()


def test_the_keyboard_alone_books(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, f"{free_for_all.url}hosts/atlas.html")
        page.locator("#atlas a.book").focus()
        page.keyboard.press("Enter")
        form = page.get_by_role("dialog")
        expect(form.get_by_role("checkbox", name="All GPUs of atlas")).to_be_focused()
        page.keyboard.press("Space")
        for label, key in (("until +2 h", "Enter"), ("", "")):
            for _ in range(20):
                name = page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.name")
                if name == (label or "name"):
                    break
                page.keyboard.press("Tab")
            if key:
                page.keyboard.press(key)
        page.keyboard.type("gil")
        page.keyboard.press("Enter")
        expect(said(form)).to_contain_text("Booked: atlas for gil")
        assert [booking[:3] for booking in free_for_all.booked()] == [("atlas", "*", "gil")]


def test_times_of_another_zone_are_labelled_and_mean_the_same(browser: Browser, free_for_all: BookingSite) -> None:
    end = later(2).astimezone(timezone(timedelta(hours=9)))
    with context_of(browser, timezone_id="Asia/Tokyo") as context:
        form = dialog(visit(context, free_for_all.url))
        expect(form).to_contain_text("in your zone (Asia/Tokyo); the booking service answers in its own (UTC)")
        choose(form, "3", until=end, name="bob")
        press(form, "Book")
        expect(said(form)).to_contain_text("Booked")
        assert free_for_all.booked()[0][3] == end
