"""The booking dialog of a board without a booking service: it gives the command and the JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from site_builder.bookings import parser as booking_parser
from tests.support.board_fixture import Lab, gpu, person, process, soon
from tests.support.booking_dialog import (
    DAY,
    LAPTOP,
    PHONE,
    TOO_SMALL,
    TOO_WIDE,
    TRICKY,
    choose,
    command,
    context_of,
    dialog,
    four,
    in_field,
    later,
    said,
    visit,
)
from tests.support.browser import served
from tests.support.command_line import run_gpuboard
from tests.support.hostile_texts import HOSTILE
from tests.support.live_board import Board
from tests.support.live_board import opened as following
from tests.support.page_checks import each_view, run_axe

MONDAY = datetime(2026, 11, 16, 10, 0, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A board whose settings name no booking service; the address of its site."""
    folder = tmp_path_factory.mktemp("still")
    lab = four(Lab(folder))
    both = {"name": "carol", "date": soon(2 * DAY), "comment": "ICML run"}
    lab.book(
        {
            "atlas": {"1": both, "2": [both, {"name": "dan", "from": soon(3 * DAY), "date": soon(4 * DAY)}]},
            "zeus": {"*": {"name": "erin", "date": soon(DAY)}},
        }
    )
    lab.host("lonely")
    lab.write("lonely", "gpus.csv", "# err no driver\n", rc=9)
    lab.build()
    with served(lab.www, folder / "server") as site:
        yield site.url


@pytest.fixture
def page(browser: Browser, still: str) -> Iterator[Page]:
    with context_of(browser) as context:
        yield visit(context, still)


def entries(form: Locator, folder: Path) -> list[tuple[str, str, str, datetime, datetime | None, str]]:
    """The JSON, pasted into a file and read by our reader."""
    file = folder / "comments.json"
    file.write_text(form.get_by_label("the JSON", exact=True).inner_text())
    parsed_bookings = booking_parser.parse_bookings(file.read_bytes(), timezone.utc)
    assert parsed_bookings.problems == ()
    return [
        (booking.host, booking.gpu, booking.name, booking.until, booking.since, booking.comment)
        for booking in parsed_bookings.rows
    ]


def test_without_script_the_link_leads_to_the_calendar(browser: Browser, still: str) -> None:
    with context_of(browser, java_script_enabled=False) as context:
        for path in ("", "hosts/atlas.html"):
            page = visit(context, still + path)
            page.locator("#atlas a.book").click()
            assert page.url == f"{still}bookings.html#atlas"
            expect(page.locator("[id='atlas']")).to_be_visible()


def test_the_command_and_the_json_say_what_the_form_says(page: Page, tmp_path: Path) -> None:
    form, end = dialog(page), later(5)
    choose(form, "0", "1", until=end, comment=TRICKY, name="alice")
    end_text = f"{end:%Y-%m-%d %H:%M}"
    words = ["gpuboard", "book", "atlas:0,1", "--until", end_text, "--comment", TRICKY, "--name", "alice"]
    assert command(form) == words
    assert (
        form.get_by_label("the command", exact=True)
        .inner_text()
        .startswith(f"gpuboard book atlas:0,1 --until '{end_text}' --comment 'it'\\''s ")
    )
    both = [("atlas", number, "alice", end, None, TRICKY) for number in ("0", "1")]
    assert entries(form, tmp_path) == both


def test_the_command_books_what_the_dialog_says(page: Page, tmp_path: Path) -> None:
    lab = four(Lab(tmp_path))
    form, start, end = dialog(page), later(5), later(6)
    choose(form, "2", "3", until=end, comment=TRICKY, name="alice")
    form.get_by_label("Start time").fill(in_field(start))
    done = run_gpuboard(tmp_path, *command(form)[1:], "--yes", GPUBOARD_ZONE="UTC")
    assert done.returncode == 0, done.stderr
    bookings = booking_parser.parse_bookings((lab.data / "comments.json").read_bytes(), timezone.utc).rows
    assert [(booking.gpu, booking.name, booking.since, booking.until, booking.comment) for booking in bookings] == [
        (number, "alice", start, end, TRICKY) for number in ("2", "3")
    ]
    assert entries(form, tmp_path) == [("atlas", number, "alice", end, start, TRICKY) for number in ("2", "3")]


def test_the_whole_host_is_all_of_its_gpus_however_they_are_chosen(page: Page, tmp_path: Path) -> None:
    form, end = dialog(page), later(1)
    everything = form.get_by_role("checkbox", name="All GPUs of atlas")
    everything.check()
    choose(form, until=end, name="bob")
    assert command(form)[2] == "atlas"
    assert entries(form, tmp_path) == [("atlas", "*", "bob", end, None, "")]
    form.get_by_role("checkbox", name=re.compile("^1 ")).uncheck()
    expect(everything).not_to_be_checked()
    assert command(form)[2] == "atlas:0,2,3"
    form.get_by_role("checkbox", name=re.compile("^1 ")).check()
    assert command(form)[2] == "atlas"


def test_the_one_gpu_of_a_host_is_chosen_already(page: Page) -> None:
    form = dialog(page, "zeus")
    expect(form.get_by_role("checkbox")).to_have_count(1)
    choose(form, until=later(1))
    assert command(form)[2] == "zeus:0"


def test_a_host_that_reports_no_gpu_can_be_booked_whole(page: Page) -> None:
    form = dialog(page, "lonely")
    choose(form, until=later(1))
    assert command(form)[2] == "lonely"


def test_each_gpu_says_its_state_and_who_is_on_it(page: Page) -> None:
    labels = dialog(page).locator(".choose label")
    assert [" ".join(label_text.split()) for label_text in labels.all_inner_texts()] == [
        "All GPUs of atlas",
        "0 busy alice",
        "1 booked carol",
        "2 booked carol",
        "3 free",
    ]


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_beside_a_long_name_the_state_stays_whole(browser: Browser, tmp_path: Path, size: dict[str, int]) -> None:
    lab = Lab(tmp_path)
    name = "somebody-with-a-very-long-login-name-" * 2
    lab.host("atlas", gpu(0, 9000, 50) + "".join(map(gpu, range(1, 12))), process(), person(user=name))
    lab.book({"atlas": {key: {"name": name, "date": soon(DAY)} for key in ("1", "11")}})
    lab.build()
    with served(lab.www, tmp_path / "server") as site, context_of(browser, viewport=size) as context:
        form = dialog(visit(context, site.url))
        for number in ("0", "1", "11"):
            label = form.locator(".choose label").filter(has=form.page.locator(f"b:text-is('{number}')"))
            lines = label.evaluate("(one) => [...one.querySelectorAll('b, .word')].map((part) => part.clientHeight)")
            assert max(lines) < 30, lines
            assert label.locator(".soft").evaluate("(one) => one.scrollWidth > one.clientWidth && one.clientWidth > 20")
            expect(label.locator(".soft")).to_have_attribute("title", name)
        assert form.page.evaluate(TOO_WIDE) == []


def test_an_end_that_has_the_focus_keeps_it(page: Page) -> None:
    form = dialog(page)
    end = form.get_by_role("button", name="End: 1 week")
    end.focus()
    page.keyboard.press("Enter")
    expect(form.get_by_label("End time")).not_to_have_value("")
    expect(end).to_be_focused()


def test_the_dialog_names_missing_fields(page: Page) -> None:
    form = dialog(page)
    expect(said(form)).to_have_text("Choose a GPU.")
    form.get_by_role("checkbox", name=re.compile("^3 ")).check()
    expect(form.get_by_label("the command", exact=True)).to_be_visible()  # an end is chosen already
    form.get_by_label("End time").fill("")
    expect(said(form)).to_have_text("Choose an end time.")
    form.get_by_label("End time").fill(in_field(later(-1)))
    expect(said(form)).to_have_text("The end is before the start.")
    expect(form.locator("pre").first).to_be_hidden()
    form.get_by_label("End time").fill(in_field(later(1)))
    expect(form.get_by_label("the command", exact=True)).to_be_visible()
    expect(form.get_by_label("the JSON", exact=True)).to_be_hidden()
    form.get_by_label("Name").fill("eve")
    expect(form.get_by_label("the JSON", exact=True)).to_be_visible()


def test_in_another_zone_the_command_means_the_same_moment(browser: Browser, still: str, tmp_path: Path) -> None:
    tokyo = timezone(timedelta(hours=9))
    end = later(3).astimezone(tokyo)
    with context_of(browser, timezone_id="Asia/Tokyo") as context:
        form = dialog(visit(context, still))
        choose(form, "3", until=end, name="eve")
        assert command(form)[4] == f"{end:%Y-%m-%d %H:%M}+09:00"
        assert entries(form, tmp_path) == [("atlas", "3", "eve", end, None, "")]


@pytest.mark.parametrize("where", ["a clipboard", "plain http"])
def test_a_click_copies(browser: Browser, still: str, where: str) -> None:
    with context_of(browser, permissions=["clipboard-read", "clipboard-write"]) as context:
        if where == "plain http":
            context.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        form = dialog(visit(context, still))
        choose(form, "3", until=later(1), name="eve")
        text = form.get_by_label("the command", exact=True).inner_text()
        form.get_by_role("button", name="Copy the command").click()
        expect(said(form)).to_have_text("Copied.")
        form.get_by_label("Purpose (optional)").focus()
        form.page.keyboard.press("Control+V")
        expect(form.get_by_label("Purpose (optional)")).to_have_value(text)
        assert form.page.evaluate("localStorage.getItem('gpuboard.me')") == "eve"


def test_what_is_booked_comes_with_the_command_that_releases_it(browser: Browser, still: str) -> None:
    with context_of(browser, permissions=["clipboard-read", "clipboard-write"]) as context:
        page = visit(context, still)
        form = dialog(page)
        lines = form.get_by_role("listitem")
        expect(lines).to_have_count(2)
        expect(lines.first).to_contain_text("atlas:1,2 carol until ")
        expect(lines.first).to_contain_text(re.compile(r"until [^·]+ · ICML run"))
        expect(lines.last).to_contain_text("atlas:2 dan from ")
        form.get_by_role("button", name="Copy release command of atlas:1,2").click()
        expect(said(form)).to_have_text("Copied.")
        assert page.evaluate("navigator.clipboard.readText()") == "gpuboard release atlas:1,2"
        page.keyboard.press("Escape")
        expect(dialog(page, "zeus").get_by_role("button", name="Copy release command of zeus")).to_be_visible()


@pytest.mark.parametrize(
    ("hour", "ends"),
    [
        (
            10,
            {
                "2 h": "16T12:00",
                "6 h": "16T16:00",
                "today 18:00": "16T18:00",
                "tomorrow 09:00": "17T09:00",
                "Fri 18:00": "20T18:00",
            },
        ),
        (19, {"2 h": "16T21:00", "6 h": "17T01:00", "tomorrow 09:00": "17T09:00", "Fri 18:00": "20T18:00"}),
        (4 * 24 + 10, {"2 h": "20T12:00", "6 h": "20T16:00", "today 18:00": "20T18:00", "tomorrow 09:00": "21T09:00"}),
        (4 * 24 + 19, {"2 h": "20T21:00", "6 h": "21T01:00", "tomorrow 09:00": "21T09:00", "Fri 18:00": "27T18:00"}),
    ],
)
def test_only_ends_that_lie_ahead_are_offered(browser: Browser, still: str, hour: int, ends: dict[str, str]) -> None:
    moment = MONDAY.replace(hour=0) + timedelta(hours=hour)
    week = f"{moment + timedelta(days=7):%dT%H:%M}"
    with context_of(browser) as context:
        context.route("**/live.json", lambda route: route.abort())  # whose clock is that of today
        page = context.new_page()
        page.clock.install(time=moment)
        page.goto(still)
        form = dialog(page)
        ends_by_button = {}
        for end_button in form.locator(".ends button").all():
            end_button.click()
            ends_by_button[end_button.inner_text()] = (
                form.get_by_label("End time").input_value().removeprefix("2026-11-")
            )
        assert ends_by_button == {**ends, "1 week": week}


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    page.locator("#atlas a.book").focus()
    page.keyboard.press("Enter")
    form = page.get_by_role("dialog")
    expect(form.get_by_role("checkbox", name="All GPUs of atlas")).to_be_focused()
    for _ in range(4):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    for _ in range(20):
        if page.evaluate("document.activeElement.ariaLabel") == "End: 1 week":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert command(form)[2] == "atlas:3"
    page.keyboard.press("Escape")
    expect(form).to_be_hidden()
    expect(page.locator("#atlas a.book")).to_be_focused()


def test_the_page_of_a_host_has_it_too(browser: Browser, still: str) -> None:
    with context_of(browser) as context:
        page = visit(context, f"{still}hosts/atlas.html")
        form = dialog(page)
        choose(form, "3", until=later(1))
        assert command(form)[2] == "atlas:3"


def test_an_address_opens_it(browser: Browser, still: str) -> None:
    with context_of(browser) as context:
        page = visit(context, f"{still}?book=atlas:1,3")
        form = page.get_by_role("dialog")
        expect(form.get_by_role("checkbox", checked=True)).to_have_count(2)
        page.goto(f"{still}?book=<b>nobody")
        expect(form).to_have_count(0)


def test_a_click_with_a_key_opens_the_calendar_beside_it(page: Page) -> None:
    with page.context.expect_page() as page_info:
        page.locator("#atlas a.book").click(modifiers=["Control"])
    page_info.value.wait_for_url("**/bookings.html#atlas")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_nothing_is_fetched_for_it_before_it_is_wanted(browser: Browser, still: str) -> None:
    with context_of(browser) as context:
        asked: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        page = visit(context, still)
        page.wait_for_load_state("networkidle")
        assert [asked_url for asked_url in asked if "booking-dialog" in asked_url or "dialog-parts" in asked_url] == []
        dialog(page)
        assert (
            len([asked_url for asked_url in asked if "booking-dialog" in asked_url or "dialog-parts" in asked_url]) == 2
        )


def test_where_it_cannot_be_fetched_the_board_stays_and_says_so(browser: Browser, still: str) -> None:
    with context_of(browser) as context:
        context.route("**/assets/booking-dialog.js*", lambda route: route.abort())
        page = visit(context, still)
        page.locator("#atlas a.book").click()
        expect(page.get_by_text("Not loaded: the server does not reply. Try again.")).to_be_visible()
        assert page.url == still


def test_a_control_that_names_gpus_opens_it_with_these_chosen_and_an_end(browser: Browser, still: str) -> None:
    with context_of(browser) as context:
        page = visit(context, still)
        page.evaluate("document.querySelector('main').append(createCopyButton('x', 'Book both'))")
        page.evaluate(
            "Object.assign(document.querySelector('main').lastChild.dataset, { gpus: 'atlas:1,3', hours: 4 })"
        )
        opener = page.get_by_role("button", name="Copy x")
        opener.click()
        form = page.get_by_role("dialog")
        expect(form.get_by_role("checkbox", checked=True)).to_have_count(2)
        end = datetime.fromisoformat(form.get_by_label("End time").input_value() + "+00:00")
        assert abs(end - later(4 / 24)) < timedelta(minutes=2)
        page.keyboard.press("Escape")
        expect(opener).to_be_focused()


def test_a_card_that_is_made_anew_changes_nothing_in_it(browser: Browser, tmp_path: Path) -> None:
    with following(browser, Board(tmp_path), tmp_path) as board:
        form = dialog(board.page, "juno")
        choose(form, "1", until=later(1), comment="half a sen")
        form.get_by_label("Purpose (optional)").focus()
        board.host("juno", user="zoe")
        board.host("mars", user="zoe")
        board.next()
        expect(board.page.locator("#juno li > b")).to_have_text("zoe")
        expect(form.get_by_label("Purpose (optional)")).to_be_focused()
        expect(form.get_by_label("Purpose (optional)")).to_have_value("half a sen")
        assert command(form)[2] == "juno:1"
        board.page.keyboard.press("Escape")
        expect(board.page.locator("#juno a.book")).to_be_focused()
        assert board.page.locator("#juno a.book").get_attribute("href") == "bookings.html#juno"


def test_on_the_page_of_a_host_the_link_of_a_new_card_still_leads_to_the_calendar(
    browser: Browser, tmp_path: Path
) -> None:
    with following(browser, Board(tmp_path), tmp_path) as board:
        board.page.goto(f"{board.site.url}hosts/juno.html")
        board.host("juno", user="zoe")
        board.next()
        expect(board.page.locator("#juno li > b")).to_have_text("zoe")
        assert board.page.locator("#juno a.book").get_attribute("href") == "../bookings.html#juno"


def test_axe_finds_nothing_and_nothing_is_too_wide_or_too_small(page: Page) -> None:
    form = dialog(page)
    choose(form, "0", "3", until=later(1), comment="a long comment " * 9, name="alice")
    for rules in each_view(page, LAPTOP["width"], PHONE["width"]):
        assert run_axe(page, rules, "dialog").faults == []
        assert page.evaluate(TOO_WIDE) == []
        assert page.evaluate(TOO_SMALL) == []


def test_hostile_texts_are_texts(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    bookings = {}
    for name, text in HOSTILE.items():
        clean = text.replace("\n", " ")
        lab.host(name, gpu(0, 9000, 50) + gpu(1), process(), person(user=clean))
        bookings[name] = {"1": {"name": clean, "comment": clean, "date": soon(DAY)}}
    lab.book(bookings)
    lab.build()
    with served(lab.www, tmp_path / "server") as site, context_of(browser, viewport=PHONE) as context:
        context.add_init_script("window.alerts = 0; window.alert = () => { window.alerts += 1 }")
        page = visit(context, site.url)
        for name in HOSTILE:
            form = dialog(page, name)
            choose(form, "1", until=later(1), name="<b>eve", comment="</pre><img src=x onerror=alert(1)>")
            assert command(form)[-1] == "<b>eve"
            assert page.evaluate(TOO_WIDE) == []
            assert form.locator("img, script, li b b").count() == 0
            page.keyboard.press("Escape")
        assert page.evaluate("alerts") == 0
