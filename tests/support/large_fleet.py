"""A fleet of many hosts with its builder, and how much moves on the screen while a page of it is opened."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser

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


class LargeFleet:
    """A lab of many hosts with its builder."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.lab, self.hosts = Lab(folder), hosts
        self.change(0)
        self.builder = Builder(self.lab.settings(), 10)
        self.build()

    @property
    def page(self) -> Path:
        return self.lab.www / "index.html"

    def change(self, tick: int) -> None:
        """Give each host new readings."""
        fleet(self.lab.data, self.hosts, tick)

    def build(self) -> None:
        self.builder.build(time.time())


@contextmanager
def serve_fleet(folder: Path, hosts: int) -> Iterator[tuple[LargeFleet, Site]]:
    fleet_lab = LargeFleet(folder, hosts)
    with served(fleet_lab.lab.www, folder / "server") as site:
        yield fleet_lab, site
    fleet_lab.builder.close()


def find_moving_screens(browser: Browser, site: Site, address: str) -> list[int]:
    """Return the widths of the screens on which the page moves while the choices in its address are applied."""
    widths = []
    for width, height in SCREENS:
        context = browser.new_context(viewport={"width": width, "height": height})
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.add_init_script(COUNT_SHIFTS)
        page.goto(f"{site.url}{address}")
        wait_until(page, "document.documentElement.classList.contains('ready')")
        if page.evaluate(READ_SHIFTS) > MAX_SHIFT:
            widths.append(width)
        context.close()
    return widths
