"""Booking in the page: the dialog of a card, with a desk and without one, in a real browser."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect

from site_builder.board.builder import Builder
from site_builder.bookings import parser as booking_parser
from site_builder.core.model import BookingPolicy, PrivacySettings
from site_builder.web import rate_limit
from tests.support.board_fixture import Lab, gpu, person, process, soon
from tests.support.browser import PATIENCE, node_module, served
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.hostile_texts import HOSTILE
from tests.support.live_board import ITS_OWN, Board
from tests.support.live_board import opened as following
from tests.support.live_page import free_port

DAY = 86400
PHONE = {"width": 360, "height": 740}
LAPTOP = {"width": 1280, "height": 900}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
TRICKY = """it's "ICML" $(date) `id` \\ !x"""
MONDAY = datetime(2026, 11, 16, 10, 0, tzinfo=timezone.utc)
TOO_WIDE = """() => [document.documentElement, ...document.querySelectorAll("dialog, dialog *:not(pre, .soft, input)")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline")
    .map((one) => one.className || one.tagName)"""
TOO_SMALL = """() => [...document.querySelectorAll("dialog button, dialog input, dialog label, a.book")]
    .filter((one) => one.checkVisibility() && !(one.matches("[type=checkbox], [type=radio]")))
    .filter((one) => one.getBoundingClientRect().height < 24).map((one) => one.outerHTML)"""


def later(days: float) -> datetime:
    """A whole minute, so many days from now."""
    return (datetime.now(timezone.utc) + timedelta(days=days)).replace(second=0, microsecond=0)


def in_field(moment: datetime) -> str:
    """As a field of the form has it."""
    return moment.strftime("%Y-%m-%dT%H:%M")


def four(lab: Lab) -> Lab:
    """atlas with four GPUs, of which alice uses the first; zeus with one."""
    lab.host("atlas", gpu(0, 9000, 50) + "".join(map(gpu, range(1, 4))), process(), person())
    lab.host("zeus")
    return lab


@contextlib.contextmanager
def context_of(browser: Browser, **options: Any) -> Iterator[BrowserContext]:  # noqa: ANN401 of playwright
    """A browser's profile in which nothing goes wrong, and nobody else is asked."""
    context = browser.new_context(**{"viewport": LAPTOP, "timezone_id": "UTC", **options})
    wrong: list[str] = []
    asked: set[str] = set()
    context.on("console", lambda said: wrong.extend([said.text] if said.type in ("error", "warning") else []))
    context.on("weberror", lambda error: wrong.append(str(error.error)))
    context.on("request", lambda request: asked.add(re.sub(r"(?<=:)\d+", "", request.url).split("/")[2]))
    context.add_init_script("addEventListener('securitypolicyviolation', (e) => console.error(e.violatedDirective))")
    try:
        yield context
        assert [message for message in wrong if not message.startswith(ITS_OWN)] == []
        assert asked <= {"127.0.0.1:"}
    finally:
        context.close()


def visit(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    return page


def dialog(page: Page, host: str = "atlas") -> Locator:
    """The dialog of a host, opened by its link."""
    page.locator(f"[id='{host}'] a.book").click()
    opened_dialog = page.get_by_role("dialog")
    expect(opened_dialog).to_be_visible()
    return opened_dialog


def choose(form: Locator, *gpus: str, until: datetime, **texts: str) -> None:
    """Fill it in; `gpus` are words of their labels."""
    for gpu_label in gpus:
        form.get_by_role("checkbox", name=re.compile(rf"^{gpu_label}\b")).check()
    form.get_by_label("Until when").fill(in_field(until))
    for name, text in texts.items():
        form.get_by_label({"comment": "What for"}.get(name, re.compile("ame$"))).fill(text)


def said(form: Locator) -> Locator:
    return form.get_by_role("status")


def at_rest(form: Locator) -> Locator:
    """The form, once the list that follows a change has come: it takes the place of the one before."""
    expect(form).not_to_have_attribute("aria-busy", "true")
    return form


# Without a desk


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A board whose settings name no desk; the address of its site."""
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


def command(form: Locator) -> list[str]:
    """The words of the command, as a shell would split them."""
    return shlex.split(form.get_by_label("the command", exact=True).inner_text())


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
    form.get_by_label("From when").fill(in_field(start))
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
    end = form.get_by_role("button", name="until +1 week")
    end.focus()
    page.keyboard.press("Enter")
    expect(form.get_by_label("Until when")).not_to_have_value("")
    expect(end).to_be_focused()


def test_the_dialog_names_missing_fields(page: Page) -> None:
    form = dialog(page)
    expect(said(form)).to_have_text("Choose a GPU.")
    form.get_by_role("checkbox", name=re.compile("^3 ")).check()
    expect(said(form)).to_have_text("Say until when.")
    form.get_by_label("Until when").fill(in_field(later(-1)))
    expect(said(form)).to_have_text("It would end before it begins.")
    expect(form.locator("pre").first).to_be_hidden()
    form.get_by_label("Until when").fill(in_field(later(1)))
    expect(form.get_by_label("the command", exact=True)).to_be_visible()
    expect(form.get_by_label("the JSON", exact=True)).to_be_hidden()
    form.get_by_label("Your name").fill("eve")
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
        form.get_by_label("What for").focus()
        form.page.keyboard.press("Control+V")
        expect(form.get_by_label("What for")).to_have_value(text)
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
        form.get_by_role("button", name="Copy gpuboard release atlas:1,2").click()
        expect(said(form)).to_have_text("Copied.")
        assert page.evaluate("navigator.clipboard.readText()") == "gpuboard release atlas:1,2"
        page.keyboard.press("Escape")
        expect(dialog(page, "zeus").get_by_role("button", name="Copy gpuboard release zeus")).to_be_visible()


@pytest.mark.parametrize(
    ("hour", "ends"),
    [
        (10, {"+2 h": "16T12:00", "today 18:00": "16T18:00", "tomorrow 09:00": "17T09:00", "Fri 18:00": "20T18:00"}),
        (19, {"+2 h": "16T21:00", "tomorrow 09:00": "17T09:00", "Fri 18:00": "20T18:00"}),
        (4 * 24 + 10, {"+2 h": "20T12:00", "today 18:00": "20T18:00", "tomorrow 09:00": "21T09:00"}),
        (4 * 24 + 19, {"+2 h": "20T21:00", "tomorrow 09:00": "21T09:00", "Fri 18:00": "27T18:00"}),
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
                form.get_by_label("Until when").input_value().removeprefix("2026-11-")
            )
        assert ends_by_button == {**ends, "+1 week": week}


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    page.locator("#atlas a.book").focus()
    page.keyboard.press("Enter")
    form = page.get_by_role("dialog")
    expect(form.get_by_role("checkbox", name="All GPUs of atlas")).to_be_focused()
    for _ in range(4):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    for _ in range(20):
        if page.evaluate("document.activeElement.ariaLabel") == "until +1 week":
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


def test_where_it_cannot_be_fetched_the_link_leads_to_the_calendar(browser: Browser, still: str) -> None:
    with context_of(browser) as context:
        context.route("**/assets/booking-dialog.js*", lambda route: route.abort())
        page = visit(context, still)
        page.locator("#atlas a.book").click()
        page.wait_for_url("**/bookings.html#atlas")


def test_a_card_that_is_made_anew_changes_nothing_in_it(browser: Browser, tmp_path: Path) -> None:
    with following(browser, Board(tmp_path), tmp_path) as board:
        form = dialog(board.page, "juno")
        choose(form, "1", until=later(1), comment="half a sen")
        form.get_by_label("What for").focus()
        board.host("juno", user="zoe")
        board.host("mars", user="zoe")
        board.next()
        expect(board.page.locator("#juno li > b")).to_have_text("zoe")
        expect(form.get_by_label("What for")).to_be_focused()
        expect(form.get_by_label("What for")).to_have_value("half a sen")
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


# For everyone


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_too_wide_or_too_small(
    browser: Browser, still: str, size: dict[str, int], scheme: Literal["light", "dark"]
) -> None:
    with context_of(browser, viewport=size, color_scheme=scheme, bypass_csp=True) as context:
        page = visit(context, still)
        form = dialog(page)
        choose(form, "0", "3", until=later(1), comment="a long comment " * 9, name="alice")
        page.add_script_tag(path=node_module("axe-core/axe.min.js"))
        axe_report = page.evaluate("(rules) => axe.run('dialog', { runOnly: rules })", RULES)
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in axe_report["violations"]] == []
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


# With a desk


class Desk:
    """A lab, and `gpuboard serve` with a desk at `book`."""

    def __init__(self, folder: Path, shown: PrivacySettings | None = None, **environment: str) -> None:
        """Build it, and wait until it answers."""
        self.folder = folder
        self.lab = four(Lab(folder))
        self.builder = Builder(
            self.lab.settings(booking_policy=BookingPolicy(url="book"), privacy=shown or PrivacySettings()), 10
        )
        self.builder.build(time.time())
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        environment = {"GPUBOARD_BOOK_URL": "book", "GPUBOARD_ZONE": "UTC", **environment}
        words = [sys.executable, "-m", "site_builder", "serve", "--listen", f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(words, cwd=folder, env=clean_environment(**environment))
        end = time.monotonic() + 20
        while not answers(port):
            assert self.process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self.builder.close()

    def token(self, name: str) -> str:
        """One that the admin makes."""
        return run_gpuboard(self.folder, "token", name).stdout.strip()

    def booked(self) -> list[tuple[str, str, str, datetime, str]]:
        """What stands in the file."""
        path = self.lab.data / "comments.json"
        bookings = booking_parser.parse_bookings(path.read_bytes(), timezone.utc).rows if path.exists() else ()
        return [
            (booking.host, booking.gpu, booking.name, booking.until, booking.comment)
            for booking in bookings
            if booking.until > datetime.now(timezone.utc)
        ]


def answers(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def serve_bookings(folder: Path, shown: PrivacySettings | None = None, **environment: str) -> Iterator[Desk]:
    desk = Desk(folder, shown, **environment)
    try:
        yield desk
    finally:
        desk.stop()


@pytest.fixture
def free_for_all(tmp_path: Path) -> Iterator[Desk]:
    """A desk at which everybody is whom they say."""
    with serve_bookings(tmp_path, GPUBOARD_BOOK_OPEN="yes") as desk:
        yield desk


@pytest.fixture
def by_token(tmp_path: Path) -> Iterator[Desk]:
    with serve_bookings(tmp_path, GPUBOARD_ADMINS="root") as desk:
        yield desk


def keep_token(context: BrowserContext, token: str) -> None:
    """As if it had been given before; an empty page can keep nothing."""
    context.add_init_script(f"if (location.host) localStorage.setItem('gpuboard.token', '{token}')")


def press(form: Locator, name: str) -> None:
    form.get_by_role("button", name=name, exact=True).click()


def test_an_open_board_takes_a_booking_from_whoever_says_a_name(browser: Browser, free_for_all: Desk) -> None:
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


def test_what_overlaps_is_refused_in_the_words_of_the_booking_service(browser: Browser, free_for_all: Desk) -> None:
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


def test_one_changes_and_releases_what_is_ones_own(browser: Browser, free_for_all: Desk) -> None:
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


def test_the_beginning_of_what_has_begun_stays_and_its_comment_can_go(browser: Browser, free_for_all: Desk) -> None:
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
    browser: Browser, free_for_all: Desk, worded: bool
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


def test_a_change_and_a_release_name_the_host(browser: Browser, free_for_all: Desk) -> None:
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


def test_a_repeating_booking_keeps_its_times(browser: Browser, free_for_all: Desk) -> None:
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


def test_who_asks_too_often_is_reported_to_wait(browser: Browser, free_for_all: Desk) -> None:
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        form = dialog(page)
        expect(form).to_contain_text("Anybody can book here")
        full = {
            "127.0.0.1": [rate_limit.BUCKET_CAPACITY, time.time() + DAY]
        }  # a vessel that does not empty while we look
        (free_for_all.lab.state / rate_limit.REQUESTS_FILE).write_text(json.dumps(full))
        choose(form, "3", until=later(1), name="bob")
        expect(said(form)).to_contain_text("too many requests from your address: try again in")


def test_a_double_click_books_once(browser: Browser, free_for_all: Desk) -> None:
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


def test_the_second_of_two_tabs_is_told_who_was_first(browser: Browser, free_for_all: Desk) -> None:
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


def test_the_keyboard_alone_books(browser: Browser, free_for_all: Desk) -> None:
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


def test_a_user_who_is_faster_than_the_booking_service_books_too(browser: Browser, free_for_all: Desk) -> None:
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        waiting = held_back(page, "**/book?host=atlas")
        form = dialog(page)
        choose(form, "3", until=later(1), name="gil")
        expect(said(form)).to_have_text("")
        for _ in range(2):
            page.keyboard.press("Enter")
            expect(said(form)).to_have_text("Waiting for the booking service to answer.")
        let_go(page, waiting)
        let_go(page, waiting)
        expect(said(form)).to_contain_text("Booked: atlas:3 for gil")
        assert [booking[:3] for booking in free_for_all.booked()] == [("atlas", "3", "gil")]


@pytest.mark.parametrize("how", ["by Book", "by a letter"])
def test_a_booking_service_that_could_not_answer_is_asked_again(browser: Browser, free_for_all: Desk, how: str) -> None:
    free_for_all.lab.book("{")
    with context_of(browser) as context:
        form = dialog(visit(context, free_for_all.url))
        expect(said(form)).to_contain_text("comments.json")
        sentence = said(form).inner_text()
        choose(form, "3", until=later(1), name="bob")
        press(form, "Book")
        form.page.wait_for_timeout(600)
        expect(said(form)).to_have_text(sentence)
        expect(said(form)).to_have_class("bad")
        expect(form.get_by_label("Token", exact=True)).to_be_hidden()
        free_for_all.lab.book({})
        if how == "by Book":
            press(form, "Book")
            expect(said(form)).to_contain_text("Booked: atlas:3 for bob")
        else:
            form.get_by_label("What for").press("x")
            expect(said(form)).to_contain_text("atlas:3 for bob from now")


def test_a_booking_under_way_leaves_the_form_of_the_next_host_alone(browser: Browser, free_for_all: Desk) -> None:
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
        expect(said(form)).to_contain_text("What you asked for atlas is still under way")
        let_go(page, waiting)
        expect(said(form)).to_contain_text("zeus:0 for bob from now")
        assert [booking[:3] for booking in free_for_all.booked()] == [("atlas", "3", "bob")]
        expect(form.get_by_label("What for")).to_have_value("mine")
        expect(form.get_by_label("Until when")).to_have_value(in_field(end))
        expect(form.get_by_role("checkbox")).to_be_checked()
        press(form, "Book")
        let_go(page, waiting)
        expect(said(form)).to_contain_text("Booked: zeus:0 for bob")


def test_who_opens_the_dialog_again_sees_what_was_under_way(browser: Browser, free_for_all: Desk) -> None:
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        waiting = held_back(page, "**/book", "POST")
        form = dialog(page)
        choose(form, "3", until=later(2), name="bob")
        press(form, "Book")
        page.keyboard.press("Escape")
        expect(form).to_be_hidden()
        dialog(page)
        form.get_by_label("What for").fill("next")
        let_go(page, waiting)
        expect(form.get_by_role("listitem")).to_contain_text("atlas:3 bob until ")
        expect(form.get_by_label("What for")).to_have_value("next")


@pytest.mark.parametrize("text", ["gpuboard_abc\u2026", "gpuboard\u2013abc", "gpuboard_\u200babc", "gpuboard abc"])
def test_what_cannot_be_a_token_is_reported_and_not_kept(browser: Browser, by_token: Desk, text: str) -> None:
    with context_of(browser) as context:
        page = visit(context, by_token.url)
        form = dialog(page)
        form.get_by_label("Token", exact=True).fill(text)
        press(form, "Use the token")
        expect(said(form)).to_contain_text("This is no token")
        expect(form.get_by_label("Token", exact=True)).to_be_focused()
        assert page.evaluate("localStorage.getItem('gpuboard.token')") is None


def test_a_token_that_was_kept_and_cannot_be_one_is_not_used(browser: Browser, by_token: Desk) -> None:
    with context_of(browser) as context:
        keep_token(context, "gpuboard_abc\u2026")
        form = dialog(visit(context, by_token.url))
        expect(said(form)).to_have_text("Say who you are first: give your token.")
        expect(form.get_by_label("Token", exact=True)).to_be_visible()


def test_a_token_says_who_one_is(browser: Browser, by_token: Desk) -> None:
    by_token.lab.book({"atlas": {"2": {"name": "carol", "date": soon(3 * DAY), "id": "carols"}}})
    with context_of(browser) as context:
        page = visit(context, by_token.url)
        form = dialog(page)
        expect(form).to_contain_text("gpuboard token NAME")
        expect(said(form)).to_have_text("Say who you are first: give your token.")
        form.get_by_label("Token", exact=True).fill("nonsense")
        press(form, "Use the token")
        expect(said(form)).to_contain_text("this token is not known here")
        form.get_by_label("Token", exact=True).fill(by_token.token("alice"))
        page.keyboard.press("Enter")
        expect(form).to_contain_text("You are alice.")
        expect(form.get_by_label("Token", exact=True)).to_be_hidden()
        expect(form.get_by_role("button", name="Change")).to_have_count(0)
        choose(form, "3", until=later(2))
        expect(said(form)).to_contain_text("atlas:3 for alice")
        press(form, "Book")
        expect(said(form)).to_contain_text("Booked: atlas:3 for alice")
        expect(form.get_by_role("button", name="Change atlas:3")).to_be_visible()
        page.reload()
        expect(dialog(page)).to_contain_text("You are alice.")
        assert page.evaluate("localStorage.getItem('gpuboard.me')") == "alice"
        press(form, "Forget the token")
        expect(form.get_by_label("Token", exact=True)).to_be_visible()
        assert page.evaluate("localStorage.getItem('gpuboard.token')") is None


def test_an_admin_may_change_everybodys(browser: Browser, by_token: Desk) -> None:
    by_token.lab.book({"atlas": {"2": {"name": "carol", "date": soon(3 * DAY), "id": "carols"}}})
    token = by_token.token("root")
    with context_of(browser) as context:
        keep_token(context, token)
        form = dialog(visit(context, by_token.url))
        expect(form).to_contain_text("You are root, an admin.")
        form.get_by_role("button", name=re.compile("^Release atlas:2")).click()
        form.get_by_role("button", name="Yes, release").click()
        expect(said(form)).to_contain_text("Released: atlas:2")
        assert by_token.booked() == []


def test_where_nobody_books_for_others_there_is_no_name_to_give(browser: Browser, tmp_path: Path) -> None:
    with serve_bookings(tmp_path, GPUBOARD_BOOK_FOR_OTHERS="no") as booking_site, context_of(browser) as context:
        keep_token(context, booking_site.token("alice"))
        form = dialog(visit(context, booking_site.url))
        expect(form).to_contain_text("You are alice.")
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


def test_a_booking_service_that_is_gone_is_reported_and_the_form_stays(browser: Browser, free_for_all: Desk) -> None:
    with context_of(browser) as context:
        page = visit(context, free_for_all.url)
        form = dialog(page)
        choose(form, "3", until=later(1), name="bob")
        expect(said(form)).to_contain_text("atlas:3 for bob")
        free_for_all.stop()
        press(form, "Book")
        expect(said(form)).to_contain_text("The booking service does not answer")
        expect(form.get_by_label("Name")).to_have_value("bob")


def test_an_address_without_a_booking_service_is_reported(browser: Browser, tmp_path: Path) -> None:
    lab = four(Lab(tmp_path))
    lab.build(booking_policy=BookingPolicy(url="book"))
    with served(lab.www, tmp_path / "server") as site, context_of(browser) as context:
        form = dialog(visit(context, site.url))
        expect(said(form)).to_contain_text("ask its admin to check GPUBOARD_BOOK_URL")


def test_times_of_another_zone_are_labelled_and_mean_the_same(browser: Browser, free_for_all: Desk) -> None:
    end = later(2).astimezone(timezone(timedelta(hours=9)))
    with context_of(browser, timezone_id="Asia/Tokyo") as context:
        form = dialog(visit(context, free_for_all.url))
        expect(form).to_contain_text("in your zone (Asia/Tokyo); the booking service answers in its own (UTC)")
        choose(form, "3", until=end, name="bob")
        press(form, "Book")
        expect(said(form)).to_contain_text("Booked")
        assert free_for_all.booked()[0][3] == end


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_with_a_booking_service_axe_finds_nothing_either(
    browser: Browser, by_token: Desk, size: dict[str, int]
) -> None:
    by_token.lab.book({"atlas": {"2": {"name": "alice", "date": soon(3 * DAY), "comment": "long " * 40}}})
    with context_of(browser, viewport=size, bypass_csp=True) as context:
        page = visit(context, by_token.url)
        form = dialog(page)
        page.add_script_tag(path=node_module("axe-core/axe.min.js"))
        for _ in range(2):
            choose(form, "0", until=later(1))
            page.wait_for_timeout(600)
            axe_report = page.evaluate("(rules) => axe.run('dialog', { runOnly: rules })", RULES)
            assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in axe_report["violations"]] == []
            assert page.evaluate(TOO_WIDE) == []
            assert page.evaluate(TOO_SMALL) == []
            if form.get_by_label("Token", exact=True).is_visible():
                form.get_by_label("Token", exact=True).fill(by_token.token("alice"))
                press(form, "Use the token")
                expect(form).to_contain_text("You are alice.")
