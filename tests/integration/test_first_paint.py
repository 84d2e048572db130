"""The first moments of the board: nothing moves while its address is applied, and nothing stays hidden."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.browser import PATIENCE, Site
from tests.support.large_fleet import LargeFleet, find_moving_screens, serve_fleet

ADDRESSES = ("", "?q=gpu0001", "?q=nothing", "?group=model", "?sort=free", "?density=compact", "?folded=*", "?open=*")


# 201 hosts: from there on, details are on the pages of hosts
@pytest.fixture(scope="module", params=[15, 200, 201])
def served_fleet(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LargeFleet, Site]]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), request.param) as fleet_and_site:
        yield fleet_and_site


@pytest.fixture(scope="module")
def small_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serve_fleet(tmp_path_factory.mktemp("small"), 3) as (_, site):
        yield site


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_moves_while_the_choices_in_the_address_are_applied(
    browser: Browser, served_fleet: tuple[LargeFleet, Site], address: str
) -> None:
    fleet, site = served_fleet
    fleet.build()  # a page that is out of date says so, and that moves the bar
    assert find_moving_screens(browser, site, address) == []


def open_with_route(browser: Browser, site: Site, script: str, answer: str, address: str = "?q=gpu0001") -> Page:
    """Open a search with a script that is refused, broken, or that never comes."""
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE)

    def handle(route: Route) -> None:
        if answer == "refused":
            route.abort()
        elif answer == "broken":
            route.fulfill(content_type="text/javascript", body="throw new Error('broken')")

    page.route(f"**/assets/{script}.js*", handle)
    page.goto(f"{site.url}{address}", wait_until="commit")
    return page


@pytest.mark.parametrize("script", ["first-paint", "times", "search"])
@pytest.mark.parametrize("answer", ["refused", "broken"])
def test_hosts_are_shown_where_a_script_fails(browser: Browser, small_site: Site, script: str, answer: str) -> None:
    page = open_with_route(browser, small_site, script, answer)
    expect(page.locator("#gpu0001")).to_be_visible(timeout=4000)
    page.context.close()


def test_hosts_are_shown_where_a_script_does_not_come(browser: Browser, small_site: Site) -> None:
    page = open_with_route(browser, small_site, "search", "never")
    expect(page.locator("#gpu0001")).to_be_hidden()
    expect(page.locator("#gpu0001")).to_be_visible()
    page.context.close()


def test_without_a_choice_in_the_address_no_host_waits(browser: Browser, small_site: Site) -> None:
    page = open_with_route(browser, small_site, "search", "never", "")
    expect(page.locator("#gpu0001")).to_be_visible(timeout=4000)
    assert "waiting" not in (page.locator("html").get_attribute("class") or "")
    page.context.close()
