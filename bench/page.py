"""What a page costs whoever opens it: until 1,000 hosts can be read and searched, and a refresh of 50 hosts."""

import gzip
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser

from bench.measure import Row
from tests.support.browser import at_a_later_second, chromium, open_page, wait_until
from tests.support.large_fleet import serve_fleet

RUNS = 7
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
IS_READY = "document.documentElement.classList.contains('ready')"


def rows() -> Iterator[Row]:
    """The rows of the table."""
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        yield Row("page of 1000 hosts ready in Chromium", 1.4, measure_ready(browser, Path(folder, "ready")), "s")
        yield Row(
            "refresh of 50 hosts, all changed, gzipped", 10, measure_refresh(browser, Path(folder, "fresh")), "KB"
        )


def measure_ready(browser: Browser, folder: Path) -> float:
    """Return the seconds from the request until the page can be used; the median, each in a new browser context."""
    folder.mkdir()
    seconds = []
    with serve_fleet(folder, 1000) as (_, site):
        for _ in range(RUNS):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            began = time.monotonic()
            page.goto(site.url, wait_until="commit")
            wait_until(page, IS_READY)
            page.evaluate(TWO_FRAMES)  # until it is drawn
            seconds.append(time.monotonic() - began)
            context.close()
    return statistics.median(seconds)


def measure_refresh(browser: Browser, folder: Path) -> float:
    """Return the kilobytes of all that an open page asks for after a build in which every host changed."""
    folder.mkdir()
    with serve_fleet(folder, 50) as (large, site), open_page(browser, site.url) as page:
        wait_until(page, IS_READY)
        large.change(1)
        with at_a_later_second(large.lab):
            large.build()
        names: list[str] = []
        page.on("request", lambda request: names.append(request.url.removeprefix(site.url).partition("?")[0]))
        built = page.evaluate("built")
        page.evaluate("refresh()")
        wait_until(page, "(before) => built > before && !asking", built)
        files = [(large.lab.www / name).read_bytes() for name in names]
    return sum(len(gzip.compress(content, 6)) for content in files) / 1000
