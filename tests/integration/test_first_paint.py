"""The first moments of the board: nothing moves while its address is applied, and nothing stays hidden."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from bench.fleet import fleet
from site_builder.board.builder import Builder
from tests.support.board_fixture import Lab
from tests.support.browser import PATIENCE, Site, served, wait_until

SCREENS = ((1440, 900), (390, 844))
MAX_SHIFT = 0.05
COUNT_SHIFTS = """
    window.shift = 0;
    window.shiftObserver = new PerformanceObserver((list) => addShifts(list.getEntries()));
    window.addShifts = (entries) => { for (const entry of entries) if (!entry.hadRecentInput) shift += entry.value; };
    shiftObserver.observe({ type: "layout-shift", buffered: true });
"""
# Shifts are reported with the frame after, and cards that come near the screen are laid out over several.
READ_SHIFTS = """async () => {
    for (let frame = 0; frame < 12; frame += 1) await new Promise(requestAnimationFrame);
    addShifts(shiftObserver.takeRecords());
    return shift;
}"""
ADDRESSES = ("", "?q=gpu0001", "?q=nothing", "?group=model", "?sort=free", "?density=compact", "?folded=*", "?open=*")


class BuiltFleet:
    """A fleet of so many hosts, its builder, and who serves its site."""

    def __init__(self, builder: Builder, site: Site) -> None:
        self.builder, self.site = builder, site

    def open(self, browser: Browser, address: str = "", width: int = 1440, height: int = 900) -> Page:
        page = browser.new_context(viewport={"width": width, "height": height}).new_page()
        page.set_default_timeout(PATIENCE)
        page.add_init_script(COUNT_SHIFTS)
        page.goto(f"{self.site.url}{address}")
        return page


@pytest.fixture(scope="module", params=[15, 200, 1000])
def built_fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltFleet]:
    folder: Path = tmp_path_factory.mktemp("fleet")
    lab = Lab(folder)
    fleet(lab.data, request.param)
    builder = Builder(lab.settings(), 10)
    builder.build(time.time())
    with served(lab.www, folder / "server") as site:
        yield BuiltFleet(builder, site)
    builder.close()


@pytest.fixture(scope="module")
def small_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltFleet]:
    folder = tmp_path_factory.mktemp("small")
    lab = Lab(folder)
    fleet(lab.data, 3)
    builder = Builder(lab.settings(), 10)
    builder.build(time.time())
    with served(lab.www, folder / "server") as site:
        yield BuiltFleet(builder, site)
    builder.close()


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_moves_while_the_choices_in_the_address_are_applied(
    browser: Browser, built_fleet: BuiltFleet, address: str
) -> None:
    built_fleet.builder.build(time.time())  # a page that is out of date says so, and that moves the bar
    for width, height in SCREENS:
        page = built_fleet.open(browser, address, width, height)
        wait_until(page, "document.documentElement.classList.contains('ready')")
        assert page.evaluate(READ_SHIFTS) <= MAX_SHIFT, width
        page.context.close()


def open_with_route(
    browser: Browser, fleet_site: BuiltFleet, script: str, answer: str, address: str = "?q=gpu0001"
) -> Page:
    """Open a search with a script that is refused, broken, or that never comes."""
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE)

    def handle(route: Route) -> None:
        if answer == "refused":
            route.abort()
        elif answer == "broken":
            route.fulfill(content_type="text/javascript", body="throw new Error('broken')")

    page.route(f"**/assets/{script}.js*", handle)
    page.goto(f"{fleet_site.site.url}{address}", wait_until="commit")
    return page


@pytest.mark.parametrize("script", ["first-paint", "times", "search"])
@pytest.mark.parametrize("answer", ["refused", "broken"])
def test_hosts_are_shown_where_a_script_fails(
    browser: Browser, small_fleet: BuiltFleet, script: str, answer: str
) -> None:
    page = open_with_route(browser, small_fleet, script, answer)
    expect(page.locator("#gpu0001")).to_be_visible(timeout=4000)
    page.context.close()


def test_hosts_are_shown_where_a_script_does_not_come(browser: Browser, small_fleet: BuiltFleet) -> None:
    page = open_with_route(browser, small_fleet, "search", "never")
    expect(page.locator("#gpu0001")).to_be_hidden()
    expect(page.locator("#gpu0001")).to_be_visible()
    page.context.close()


def test_without_a_choice_in_the_address_no_host_waits(browser: Browser, small_fleet: BuiltFleet) -> None:
    page = open_with_route(browser, small_fleet, "search", "never", "")
    expect(page.locator("#gpu0001")).to_be_visible(timeout=4000)
    assert "waiting" not in (page.locator("html").get_attribute("class") or "")
    page.context.close()
