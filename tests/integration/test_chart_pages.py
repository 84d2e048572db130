"""Charts and lines in a real browser: readable with and without JavaScript, by pointer, keyboard and screen reader."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.browser import PATIENCE, ServedBoard, open_page, serve_board, served
from tests.support.chart_fixtures import GPUS, past_of
from tests.support.page_checks import (
    LAPTOP,
    PHONE,
    TOO_WIDE,
    find_accessibility_faults,
    find_parse_errors,
    validate_elements,
)

WALL = 2560
LINES = """(one) => {
    const all = document.createRange();
    all.selectNodeContents(one);
    return all.getClientRects().length;
}"""
SPANS = ("day", "week", "month", "year")


def push(lab: Lab) -> None:
    rows = "".join(gpu(number, 9000, 50) for number in range(GPUS))
    lab.host("atlas", rows, process(), person())


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBoard]:
    folder = tmp_path_factory.mktemp("charts")
    lab = Lab(folder)
    past_of(lab.state, time.time())
    push(lab)
    lab.build()
    with serve_board(lab, folder) as board:
        yield board


@pytest.fixture
def plain(browser: Browser, past: ServedBoard) -> Iterator[Page]:
    """The host's page without JavaScript."""
    with open_page(browser, past.url("atlas"), java_script_enabled=False) as page:
        yield page


def open_all(page: Page) -> None:
    """All spans, without JavaScript of ours."""
    for span in SPANS[1:]:
        page.locator(f"#_{span} > summary").click()


def row(page: Page, chart: str, number: int) -> Locator:
    return page.locator(f"#{chart} tbody tr").nth(number)


def is_read(cell: Locator) -> bool:
    """Whether a cell can be seen."""
    return str(cell.evaluate("(one) => getComputedStyle(one).opacity")) == "1"


def texts(elements: Locator) -> list[str]:
    return [text.strip() for text in elements.all_text_contents()]


# Without JavaScript


def test_the_day_is_open_and_the_longer_windows_open_without_script(plain: Page) -> None:
    assert plain.locator("#_day-0 svg").first.is_visible()
    assert not plain.locator("#_week-0").is_visible()
    open_all(plain)
    for span in SPANS:
        assert plain.locator(f"#_{span} .plot").count() == GPUS + 1
        assert plain.locator(f"#_{span}-7").is_visible()


def test_a_line_is_drawn_where_its_values_are(plain: Page) -> None:
    line, drawn = (plain.locator(f"#_day-0 {selector}") for selector in ("path.use", ".drawn > svg"))
    inner, outer = line.bounding_box(), drawn.bounding_box()
    assert inner and outer
    assert outer["x"] - 2 <= inner["x"] and inner["x"] + inner["width"] <= outer["x"] + outer["width"] + 2
    assert inner["width"] > outer["width"] * 0.9 and 10 < inner["height"] < 45


def test_pointing_at_a_chart_shows_the_values_of_that_time_and_of_no_other(plain: Page) -> None:
    table_row = row(plain, "_day-0", 12)
    assert not is_read(table_row.locator("td").first)
    plain.locator("#_day-0").scroll_into_view_if_needed()
    table_row.hover()
    assert [is_read(cell) for cell in table_row.locator("th, td").all()] == [True] * 7
    assert not is_read(row(plain, "_day-0", 13).locator("td").first)


def test_focus_shows_the_newest_values_without_script(plain: Page) -> None:
    plain.locator("#_day-tables > summary").focus()
    plain.keyboard.press("Tab")
    last = row(plain, "_day-0", -1)
    expect(last).to_be_focused()
    assert is_read(last.locator("td").first)
    plain.keyboard.press("Tab")
    expect(row(plain, "_day-1", -1)).to_be_focused()


def test_a_row_of_the_table_lies_over_its_part_of_the_chart(plain: Page) -> None:
    rows = plain.locator("#_day-0 tbody tr").all()
    boxes = [table_row.bounding_box() for table_row in rows]
    whole = plain.locator("#_day-0 .drawn > svg").bounding_box()
    assert whole and all(boxes)
    assert abs(sum(box["width"] for box in boxes if box) - whole["width"]) < 2
    full = [box["width"] for box in boxes[1:-1] if box]
    assert max(full) - min(full) < 1.5  # whole hours, but for the first and the last


def test_charts_become_tables_without_script(plain: Page) -> None:
    plain.locator("#_day-tables > summary").click()
    assert not plain.locator("#_day-0 .drawn > svg").is_visible()
    heads = texts(plain.locator("#_day-0 thead th"))
    assert heads[:3] == ["When", "Use, mean", "Memory, mean"] and heads[-2:] == ["Used by", "Booked by"]
    cells = row(plain, "_day-0", 3).locator("th, td")
    tops = {round(box["y"]) for cell in cells.all() if (box := cell.bounding_box())}
    assert len(tops) == 1 and all(is_read(cell) for cell in cells.all())


def test_a_screen_reader_finds_a_table_for_each_chart(browser: Browser, past: ServedBoard) -> None:
    with open_page(browser, past.url("atlas")) as page:
        table = page.get_by_role("table", name="The last 24 hours of GPU 0")
        assert table.get_by_role("row").count() == page.locator("#_day-0 tr").count()
        assert table.get_by_role("columnheader", name="Temperature, highest").count() == 1
        first = table.get_by_role("row").nth(5)
        assert first.get_by_role("rowheader").count() == 1 and first.get_by_role("cell").count() == 6


# With JavaScript


def test_the_arrow_keys_walk_along_a_chart(browser: Browser, past: ServedBoard) -> None:
    with open_page(browser, past.url("atlas")) as page:
        count = page.locator("#_day-0 tbody tr").count()
        row(page, "_day-0", -1).focus()
        for key, place in (("ArrowLeft", count - 2), ("ArrowLeft", count - 3), ("Home", 0), ("ArrowLeft", 0)):
            page.keyboard.press(key)
            expect(row(page, "_day-0", place)).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(row(page, "_day-0", 1)).to_be_focused()
        assert is_read(row(page, "_day-0", 1).locator("td").first)
        page.keyboard.press("Tab")
        expect(row(page, "_day-1", -1)).to_be_focused()
        page.keyboard.press("Shift+Tab")
        expect(row(page, "_day-0", 1)).to_be_focused()


def test_focus_and_open_parts_stay_when_the_page_is_renewed(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    past_of(lab.state, time.time(), 120, (30, 40))
    push(lab)
    lab.build()
    with served(lab.www, tmp_path / "server") as site:
        context = browser.new_context(viewport={"width": LAPTOP, "height": 900})
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.clock.install()
        page.goto(f"{site.url}hosts/atlas.html")
        page.locator("#_week > summary").click()
        page.locator("#_day-tables > summary").click()
        row(page, "_day-3", -1).focus()
        page.keyboard.press("ArrowLeft")
        drawn = page.locator("#_week").get_attribute("data-drawn")
        page.locator("#_week tbody").first.evaluate("(one) => { one.dataset.mine = 1 }")
        page.locator("#_day tbody").first.evaluate("(one) => { one.dataset.mine = 1 }")
        push(lab)
        (lab.state / "charts/atlas.day").unlink()  # it is not due yet
        lab.build(after=2)
        page.clock.fast_forward(75_000)
        expect(page.locator("#_day tbody[data-mine]")).to_have_count(0)
        expect(row(page, "_day-3", -2)).to_be_focused()
        assert page.locator("#_week").evaluate("(one) => one.open")
        assert page.locator("#_day-tables").evaluate("(one) => one.open")
        # the week was not drawn again, and so it is left alone
        assert page.locator("#_week").get_attribute("data-drawn") == drawn
        assert page.locator("#_week tbody[data-mine]").count() == 1
        context.close()


def test_an_open_board_sets_numbers_beside_a_line(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    past_of(lab.state, time.time(), 240, (30, 40))
    lab.host("atlas", "".join(gpu(number, 9000, 50) for number in range(GPUS)))
    lab.build()
    with served(lab.www, tmp_path / "server") as site:
        context = browser.new_context()
        page = context.new_page()
        page.clock.install()
        page.goto(site.url)
        use = page.locator("#atlas .gpus tbody tr").first.locator("td").nth(1)
        expect(use).to_contain_text("50 %")
        page.locator("#atlas .day svg").first.evaluate("(one) => { one.dataset.mine = 1 }")
        lab.host("atlas", "".join(gpu(number, 9000, 83) for number in range(GPUS)))
        lab.build(after=2)
        page.clock.run_for(12_000)
        expect(use).to_contain_text("83 %")
        assert page.locator("#atlas .day svg[data-mine]").count() == 1
        context.close()


# How it looks


def test_nothing_is_wider_than_its_place(browser: Browser, past: ServedBoard) -> None:
    widths = (PHONE, 800, LAPTOP, WALL)
    with open_page(browser, past.url("atlas")) as page:
        open_all(page)
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(TOO_WIDE) == [], width
        page.locator("#_day-tables > summary").click()
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            cells = page.locator("#_day-0 tbody tr").first.locator("th, td:nth-child(-n + 5)").all()
            assert {cell.evaluate(LINES) for cell in cells} == {1}  # and no time or number is broken in two
        page.goto(past.site.url)
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(TOO_WIDE) == [], width


def test_on_a_phone_charts_stand_below_each_other(browser: Browser, past: ServedBoard) -> None:
    with open_page(browser, past.url("atlas"), PHONE) as page:
        boxes = [page.locator(f"#_day-{number}").bounding_box() for number in range(3)]
        assert all(boxes) and len({box["x"] for box in boxes if box}) == 1


def test_a_line_of_the_board_is_seen_on_a_screen_and_on_a_phone(browser: Browser, past: ServedBoard) -> None:
    for width in (PHONE, LAPTOP):
        with open_page(browser, past.site.url, width) as page:
            if width == PHONE:
                page.locator("#atlas button.fold").click()
            box = page.locator("#atlas .day svg").first.bounding_box()
            assert box and box["width"] > 90 and 15 < box["height"] < 40


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBoard]:
    """A host with two GPUs, of which all can be looked at within a moment."""
    folder = tmp_path_factory.mktemp("few")
    lab = Lab(folder)
    past_of(lab.state, time.time(), 300, (30, 100), gpus=2)
    lab.host("atlas", gpu(0, 9000, 50) + gpu(1), process(), person())
    lab.build()
    with serve_board(lab, folder) as board:
        yield board


def test_axe_finds_no_accessibility_fault(browser: Browser, few: ServedBoard) -> None:
    with open_page(browser, few.url("atlas")) as page:
        page.locator("#_week > summary").click()
        page.evaluate("document.querySelectorAll('#_month .plot, #_year .plot').forEach((one) => one.remove())")
        wrong = find_accessibility_faults(page)
        page.locator("#_day-tables > summary").click()
        wrong += find_accessibility_faults(page)
        page.goto(few.site.url)
        wrong += find_accessibility_faults(page)
    assert wrong == []


def test_the_html_is_valid(browser: Browser, past: ServedBoard, few: ServedBoard, tmp_path: Path) -> None:
    assert find_parse_errors(past.lab.www / "hosts/atlas.html", past.lab.www / "index.html") == []
    with open_page(browser, few.url("atlas"), java_script_enabled=False) as page:
        contents = {"host": page.content()}
        page.goto(few.site.url)
        contents["board"] = page.content()
    assert validate_elements(tmp_path, contents) == ""
