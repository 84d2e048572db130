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
    LAPTOP,
    PHONE,
    TOO_WIDE,
    TRICKY,
    BookingSite,
    at_rest,
    choose,
    context_of,
    dialog,
    in_field,
    keep_name,
    later,
    press,
    said,
    serve_bookings,
    visit,
)
from tests.support.page_checks import each_view, run_axe


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
        expect(form).to_contain_text("Enter your name to book")
        choose(form, "0", "1", until=end, comment=TRICKY)
        expect(said(form)).to_have_text("Enter your name.")
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
        assert form.get_by_label("End time").input_value() == in_field(end)


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
        expect(said(form)).to_have_text("Nothing changed yet.")
        form.get_by_label("Start time").fill(in_field(start))
        form.get_by_label("End time").fill(in_field(end))
        form.get_by_label("Purpose (optional)").fill("moved")
        expect(said(form)).to_contain_text("atlas:3 for bob from ")
        press(form, "Save changes")
        expect(said(form)).to_contain_text("Changed: atlas:3 for bob")
        assert free_for_all.booked()[1] == ("atlas", "3", "bob", end, "moved")
        assert json.loads((free_for_all.lab.data / "comments.json").read_text())["atlas"]["3"]["kept"] == 1
        at_rest(form).get_by_role("button", name=re.compile("^Release atlas:3")).click()
        expect(said(form)).to_contain_text("atlas:3 of bob released (was from ")
        assert [booking[2] for booking in free_for_all.booked()] == ["carol"]
        press(form, "Undo")
        expect(said(form)).to_contain_text("Undone: the release by bob")
        assert free_for_all.booked()[1] == ("atlas", "3", "bob", end, "moved")
        at_rest(form).get_by_role("button", name=re.compile("^Release atlas:3")).click()
        expect(said(form)).to_contain_text("atlas:3 of bob released (was ")
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
        expect(form.get_by_label("Start time")).to_be_hidden()
        form.get_by_label("Purpose (optional)").fill("")
        press(form, "Save changes")
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
        form.get_by_label("Purpose (optional)").fill("mine")
        press(form, "Save changes")
        expect(said(form)).to_contain_text("Changed: atlas:2 for bob")
        assert [booking[4] for booking in free_for_all.booked()] == ["mine", ""]
        at_rest(form).get_by_role("button", name=re.compile("^Release atlas:2")).click()
        expect(said(form)).to_contain_text("atlas:2 of ")
        assert [booking[0] for booking in free_for_all.booked()] == ["zeus"]


def test_a_repeating_booking_keeps_its_times(browser: Browser, free_for_all: BookingSite) -> None:
    weekly = {"name": "bob", "from": soon(DAY), "date": soon(DAY + 7200), "rrule": "FREQ=WEEKLY", "comment": "class"}
    free_for_all.lab.book({"atlas": {"1": weekly}})
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        form.get_by_label("Name").fill("bob")
        expect(form.get_by_role("listitem")).to_contain_text(", first tomorrow")
        form.get_by_role("button", name=re.compile("^Change atlas:1")).click()
        expect(form.get_by_label("Purpose (optional)")).to_be_focused()
        expect(form.get_by_label("End time")).to_be_hidden()
        press(form, "New booking")
        expect(form.get_by_role("heading", level=2)).to_have_text("Book atlas")
        form.get_by_role("button", name=re.compile("^Change atlas:1")).click()
        form.get_by_label("Purpose (optional)").fill("course")
        press(form, "Save changes")
        expect(said(form)).to_contain_text("Changed: atlas:1 for bob")
        entry = json.loads((free_for_all.lab.data / "comments.json").read_text())["atlas"]["1"]
        assert {**weekly, "comment": "course"}.items() <= entry.items()
        at_rest(form).get_by_role("button", name=re.compile("^Stop repeating atlas:1, every ")).click()
        expect(said(form)).to_contain_text("atlas:1 of bob will no longer repeat")
        assert free_for_all.booked() == []


def test_a_message_begins_with_a_capital_unless_a_host_begins_it(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        choose(form, "All GPUs", until=later(0.1), name="bob")
        expect(said(form)).to_contain_text(re.compile("^atlas for bob from now until "))
        form.get_by_label("End time").fill("2020-01-01T10:00")
        expect(said(form)).to_contain_text(re.compile("^The end "))


def test_two_clicks_book_two_gpus_for_six_hours(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        context.add_init_script("if (location.host) localStorage.setItem('gpuboard.me', 'bob')")
        page = visit(context, free_for_all.url)
        page.evaluate("document.querySelector('main').append(createCopyButton('x', 'Book'))")
        page.evaluate("document.querySelector('main').lastChild.dataset.gpus = 'atlas:1,3'")
        page.get_by_role("button", name="Copy x").click()
        form = page.get_by_role("dialog")
        expect(form.get_by_role("button", name="Book", exact=True)).to_be_focused()
        press(form, "Book")
        expect(said(form)).to_contain_text("Booked: atlas:1,3 for bob from now until ")
        assert [booking[1:3] for booking in free_for_all.booked()] == [("1", "bob"), ("3", "bob")]
        assert abs(free_for_all.booked()[0][3] - later(0.25)) < timedelta(minutes=2)
        press(form, "Undo")
        expect(said(form)).to_contain_text("atlas:1,3 no longer booked")
        assert free_for_all.booked() == []


def test_a_gpu_that_is_booked_soon_is_booked_until_then_with_two_clicks(
    browser: Browser, free_for_all: BookingSite
) -> None:
    next_start = later(3 / 24)
    bookings = {"2": {"name": "carol", "from": next_start.isoformat(), "date": soon(DAY)}}
    free_for_all.lab.book({"atlas": bookings})
    free_for_all.builder.build(time.time())
    with context_of(browser) as context:
        keep_name(context, "bob")
        page = visit(context, free_for_all.url)
        page.locator(".free-now a[data-gpus='atlas:2']").click()
        form = page.get_by_role("dialog")
        expect(form.get_by_label("End time")).to_have_value(in_field(next_start))
        expect(form.get_by_label("End time")).to_have_accessible_description(re.compile(r"^Already booked from .+\.$"))
        expect(said(form)).to_contain_text("atlas:2 for bob from now until ")
        press(form, "Book")
        expect(said(form)).to_contain_text("Booked: atlas:2 for bob ")
        booked = [booking for booking in free_for_all.booked() if booking[2] == "bob"]
        assert booked == [("atlas", "2", "bob", next_start, "")]


def test_an_end_that_somebody_chose_stays_whatever_gpus_are_chosen(browser: Browser, free_for_all: BookingSite) -> None:
    """Until then it follows the chosen GPUs, and the whole host is booked as soon as one of its GPUs is."""
    next_start, end = later(3 / 24), later(5 / 24)
    free_for_all.lab.book({"atlas": {"2": {"name": "carol", "from": next_start.isoformat(), "date": soon(DAY)}}})
    free_for_all.builder.build(time.time())
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        end_field, note = form.get_by_label("End time"), form.get_by_text("Already booked from")
        checkbox = form.get_by_role("checkbox", name=re.compile("^2 "))
        checkbox.check()
        expect(end_field).to_have_value(in_field(next_start))
        checkbox.uncheck()
        form.get_by_role("checkbox", name=re.compile("^3 ")).check()
        expect(end_field).not_to_have_value(in_field(next_start))
        expect(note).to_be_hidden()
        form.get_by_role("checkbox", name="All GPUs of atlas").check()
        expect(end_field).to_have_value(in_field(next_start))
        end_field.fill(in_field(end))
        checkbox.uncheck()
        checkbox.check()
        expect(end_field).to_have_value(in_field(end))
        expect(note).to_be_visible()
        form.get_by_label("Start time").fill(in_field(later(2)))
        expect(note).to_be_hidden()


def test_a_gpu_that_is_booked_in_some_minutes_is_said_to_be(browser: Browser, free_for_all: BookingSite) -> None:
    next_start = later(5 / 24 / 60)
    free_for_all.lab.book({"zeus": {"*": {"name": "carol", "from": next_start.isoformat(), "date": soon(DAY)}}})
    free_for_all.builder.build(time.time())
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url), "zeus")
        expect(form.get_by_text("Already booked from")).to_be_visible()
        expect(form.get_by_label("End time")).not_to_have_value(in_field(next_start))


def test_an_unusual_end_and_an_unknown_name_are_asked_about(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        choose(form, "3", until=later(500), name="bbo")
        form.get_by_role("button", name="Book", exact=True).dblclick()
        expect(said(form)).to_contain_text("Please check: it ends more than a year from now, ")
        expect(said(form)).to_contain_text("no user of these hosts is known as bbo")
        assert free_for_all.booked() == []
        form.get_by_label("End time").fill(in_field(later(1)))
        expect(form.get_by_role("button", name="Book", exact=True)).to_be_visible()
        press(form, "Book")
        expect(said(form)).to_have_text("Please check: no user of these hosts is known as bbo.")
        form.page.wait_for_timeout(700)  # what comes at once is the second of a double click
        press(form, "Book anyway")
        expect(said(form)).to_contain_text("Booked: atlas:3 for bbo")


def test_me_lists_what_is_ones_own_and_releases_it_with_one_click(browser: Browser, free_for_all: BookingSite) -> None:
    free_for_all.lab.book(
        {
            "atlas": {
                "2": {"name": "carol", "date": soon(3 * DAY)},
                "3": {"name": "bob", "date": soon(DAY), "id": "b3"},
            },
            "zeus": {"0": {"name": "bob", "date": soon(DAY), "id": "b0"}},
        }
    )
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        button = page.get_by_role("button", name="Me", exact=True)
        button.focus()
        page.keyboard.press("Enter")
        form = page.get_by_role("dialog", name="My bookings and notifications")
        form.get_by_label("Name").fill("bob")
        page.keyboard.press("Enter")
        expect(form.get_by_role("listitem")).to_have_count(2)
        form.get_by_role("button", name=re.compile("^Release zeus:0")).click()
        expect(said(form)).to_contain_text("zeus:0 of bob released (was until ")
        expect(form.get_by_role("listitem")).to_have_count(1)
        assert [booking[2] for booking in free_for_all.booked()] == ["carol", "bob"]
        press(form, "Undo")
        expect(form.get_by_role("listitem")).to_have_count(2)
        for rules in each_view(page, LAPTOP["width"], PHONE["width"]):
            assert run_axe(page, rules, "dialog, .bar").faults == []
            assert page.evaluate(TOO_WIDE) == []
        page.keyboard.press("Escape")
        expect(form).to_be_hidden()
        expect(button).to_be_focused()


def test_the_keyboard_alone_books(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser) as context:
        page = visit(context, f"{free_for_all.url}hosts/atlas.html")
        page.locator("#atlas a.book").focus()
        page.keyboard.press("Enter")
        form = page.get_by_role("dialog")
        expect(form.get_by_role("checkbox", name="All GPUs of atlas")).to_be_focused()
        page.keyboard.press("Space")
        for label, key in (("End: 2 h", "Enter"), ("", "")):
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


def test_the_dialog_speaks_the_time_of_its_viewer_with_the_labs_beside_it(
    browser: Browser, free_for_all: BookingSite
) -> None:
    end = later(0.1).astimezone(timezone(timedelta(hours=9)))
    both = f"until .*{end:%H:%M} \\(lab: .*{end.astimezone(timezone.utc):%H:%M}\\)"
    with context_of(browser, timezone_id="Asia/Tokyo") as context:
        form = dialog(visit(context, free_for_all.url))
        expect(form).to_contain_text("Times are yours (Tokyo); lab: UTC")
        choose(form, "3", until=end, name="bob")
        expect(said(form)).to_contain_text(re.compile(both))
        press(form, "Book")
        expect(said(form)).to_contain_text(re.compile(f"Booked: .*{both}"))
        assert free_for_all.booked()[0][3] == end
        expect(form.get_by_role("listitem")).to_contain_text(re.compile(both))
        choose(form, "3", until=end, name="bob")
        expect(said(form)).to_contain_text(re.compile(f"is booked by bob .*{both}"))


def test_a_viewer_in_the_labs_own_time_sees_no_second_time(browser: Browser, free_for_all: BookingSite) -> None:
    with context_of(browser, timezone_id="Africa/Abidjan") as context:  # another name for UTC
        form = dialog(visit(context, free_for_all.url))
        choose(form, "3", until=later(1), name="bob")
        expect(said(form)).to_contain_text("atlas:3 for bob")
        expect(form).not_to_contain_text(re.compile("lab: |Times are yours"))
