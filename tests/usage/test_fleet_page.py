"""The fleet page: use by model, the heat map of the week, and the reports that stand beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from site_builder.board.builder import Builder
from site_builder.core.clock import Now
from site_builder.core.model import PrivacySettings
from site_builder.core.people import PeopleDirectory
from site_builder.history.usage_sums import UsageShareSums
from site_builder.history.writer import HistoryWriter
from site_builder.usage.fleet_page import (
    NAMED_REPORT_START,
    NO_HISTORY_YET,
    compare_fleet_weeks,
    list_fleet_page_reports,
)
from tests.support import pace
from tests.support.board_fixture import Lab
from tests.support.browser import PATIENCE, ROOT, Site, served
from tests.support.generated_fleet import NOON, NOW, PARIS
from tests.support.history_fixtures import gpu, host, keep, roll
from tests.support.page_checks import LAPTOP, PHONE, each_view, find_parse_errors, run_axe, validate_elements

HOUR, DAY = 3600, 86400
PAPER = 794
START = int(NOW) // HOUR * HOUR
HOSTILE = "<script>alert(1)</script>\" onload='alert(2)"


def make_past(lab: Lab) -> None:
    """A week and a day of three GPUs, with a gap of a day; and one that was seen only in the first hour of it.

    Of the A100, 6 of each day's hours are taken, by two people; the V100 is held all the time. Noon is 11:00 UTC.
    """
    history = HistoryWriter(lab.state, PARIS)
    held, free = gpu("held", ["bob"], index=1, model="V100", use=1), gpu(index=2, model=HOSTILE)
    for back in range(8, 0, -1):
        at = START - back * DAY
        if back == 3:
            continue  # the builder was down
        if back == 8:
            keep(history, at - HOUR, at, [host(gpu(index=5, model="T4"), name="gone")])
        keep(history, at, at + 6 * HOUR, [host(gpu("busy", ["alice", "bob"], use=50), held, free)])
        keep(history, at + 6 * HOUR, at + DAY, [host(gpu(), held, free)])
    roll(history, NOW)
    history.close()


def build(lab: Lab, after: float = 0, **changes: Any) -> str:  # noqa: ANN401 # of Settings
    """A build at noon of a Monday in Paris, or so many seconds later; what it made of the page."""
    builder = Builder(lab.settings(**{"zone": PARIS, **changes}))
    builder.build(NOW + after)
    builder.close()
    return (lab.www / "fleet.html").read_text()


@contextmanager
def opened(browser: Browser, site: Site, width: int = LAPTOP, **options: Any) -> Iterator[Page]:  # noqa: ANN401 of playwright
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.clock.install(time=NOON)
        page.add_init_script("window.alerts = 0; window.alert = () => { window.alerts += 1; };")
        page.goto(f"{site.url}fleet.html")
        yield page
    finally:
        context.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("fleet"))
    make_past(lab)
    (lab.www / "reports").mkdir(parents=True)
    for name in ("2026-W45.html", "2026-W46.html", "notes.html", "2026-W46.html.bak"):
        (lab.www / "reports" / name).write_text("<!doctype html>")
    build(lab)
    return lab


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served(lab.www, tmp_path_factory.mktemp("server") / "files") as site:
        yield site


@pytest.fixture(scope="module")
def plain(browser: Browser, site: Site) -> Iterator[Page]:
    """Without JavaScript."""
    with opened(browser, site, java_script_enabled=False) as page:
        yield page


def row(page: Page, period: str, name: str) -> list[str]:
    """The cells of a model in one of the tables, without the picture."""
    table = page.get_by_role("region", name=f"Use by model, the last {period}")
    table_row = table.locator("tr").filter(has=page.get_by_role("rowheader", name=name, exact=True))
    return [text.strip() for text in table_row.locator("td").all_text_contents()]


# What it tells


@pytest.mark.slow
def test_the_hours_of_a_model_are_those_that_were_worked_out_on_paper(plain: Page) -> None:
    """Six days of seven were seen, on each of which the A100 was taken for 6 hours, with a use of 50 %."""
    cells = row(plain, "7 days", "A100 80 GB")
    assert [cells[0], *cells[2:]] == ["1", "36.0", "25 %", "0 %", "75 %", "50 %"]
    cells = row(plain, "7 days", "V100")
    assert [cells[0], *cells[2:]] == ["1", "144.0", "100 %", "100 %", "0 %", "1 %"]
    cells = row(plain, "7 days", "All GPUs")
    assert [cells[0], *cells[2:]] == ["3", "180.0", "42 %", "33 %", "58 %", "11 %"]


@pytest.mark.slow
def test_how_much_of_the_time_was_seen_is_reported(plain: Page) -> None:
    week = plain.locator("section.part").filter(has_text="Use by model, the last 7 days")
    expect(week).to_contain_text("Coverage: 86 % of GPU time was monitored")


@pytest.mark.slow
def test_a_model_that_was_not_seen_lately_has_no_data_and_is_not_left_out(plain: Page) -> None:
    assert row(plain, "24 hours", "T4") == ["–", "no data", *["–"] * 5]
    assert row(plain, "30 days", "T4")[2:4] == ["0.0", "0 %"]


def test_the_week_is_compared_with_the_one_before_it(plain: Page) -> None:
    """Of that, one day was seen: 6 hours of the A100 and 24 of the V100, by two people."""
    assert plain.locator("#_week p").all_text_contents() == [
        "42 % of GPU time was in use, up from 41 % in the previous 7 days.",
        "V100 GPUs were full in 44 of 44 working hours (Mon to Fri, 8 to 18 h), A100 80 GB in 24.",
        "2 people used 180.0 GPU-hours, up 500 % from the previous 7 days.",
        "144.0 GPU-hours were held or booked but idle, up 500 % from the previous 7 days.",
    ]


def test_a_login_that_ps_cut_is_no_second_person() -> None:
    had = dict.fromkeys(["maximilian", "maximil+", "Maximilian"], UsageShareSums(60, 0, 0, 0))
    assert compare_fleet_weeks({}, [had, {}], START, PeopleDirectory({})).people.now == 1


def heat_of(page: Page) -> dict[str, list[str]]:
    """The heat map: the cells of each day."""
    cells_by_day = {}
    for table_row in page.locator("#_heat tbody tr").all():
        cells_by_day[table_row.locator("th").inner_text()] = table_row.locator("td").all_inner_texts()
    return cells_by_day


def test_the_heat_map_has_each_hour_of_each_day_and_gaps_are_no_data(plain: Page) -> None:
    """From noon to 18:00 two of three GPUs are taken, else one; on Friday from noon on nobody looked."""
    cells_by_day = heat_of(plain)
    usual = [*["33"] * 12, *["67"] * 6, *["33"] * 6]
    assert list(cells_by_day) == [
        f"{day} Nov" for day in ("Tue 10", "Wed 11", "Thu 12", "Fri 13", "Sat 14", "Sun 15", "Mon 16")
    ]
    assert cells_by_day["Wed 11 Nov"] == usual
    assert cells_by_day["Fri 13 Nov"] == [*usual[:12], *["–"] * 12]
    assert cells_by_day["Sat 14 Nov"] == [*["–"] * 12, *usual[12:]]
    assert cells_by_day["Mon 16 Nov"] == [*usual[:12], *[""] * 12]


def test_every_cell_of_the_heat_map_says_what_it_is(plain: Page) -> None:
    cells = plain.locator("#_heat td")
    assert cells.count() == 7 * 24
    titles = cells.evaluate_all("(cells) => cells.map((cell) => cell.title)")
    assert titles[24 + 12] == "Wed 11 Nov 12:00: 67 % in use, 2.0 of 3.0 GPUs on average"
    assert titles[3 * 24 + 12] == "Fri 13 Nov 12:00: no data"
    assert titles[6 * 24 + 12] == "Mon 16 Nov 12:00: not yet"


@pytest.mark.slow
def test_what_the_lines_show_on_hover_stands_in_a_table_that_the_keyboard_opens(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        page.locator("summary").focus()
        page.keyboard.press("Enter")
        table = page.get_by_role("region", name="Day by day")
        expect(table).to_be_visible()
        model_row = table.locator("tr").filter(has=page.get_by_role("rowheader", name="A100 80 GB"))
        cells = model_row.locator("td").all_inner_texts()
        titles = page.get_by_label("A100 80 GB, in use over 30 days").locator("rect title").all_text_contents()
    assert len(cells) == len(titles) == 30
    assert cells[-7:] == ["25", "25", "25", "0", "50", "25", "0"]
    assert titles[-7:-2] == [
        "Tue 10 Nov: 25 % in use",
        "Wed 11 Nov: 25 % in use",
        "Thu 12 Nov: 25 % in use",
        "Fri 13 Nov: 0 % in use",
        "Sat 14 Nov: 50 % in use",
    ]
    assert cells[0] == "–"


def test_the_reports_are_listed_the_newest_first(plain: Page) -> None:
    links = plain.locator("#_reports a")
    assert links.evaluate_all("(links) => links.map((one) => one.getAttribute('href'))") == [
        "reports/2026-W46.html",
        "reports/2026-W45.html",
    ]


@pytest.mark.slow
def test_a_name_from_the_hosts_is_text_and_nothing_else(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        expect(page.get_by_role("rowheader", name=HOSTILE).first).to_be_visible()
        assert page.evaluate("window.alerts") == 0


# When it is made


def test_with_no_history_it_says_so(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert NO_HISTORY_YET in build(lab)


def test_in_its_first_hour_it_shows_of_minutes(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    history = HistoryWriter(lab.state, PARIS)
    keep(history, START - 20 * 60, START, [host(gpu("busy", ["alice"], use=50))])
    history.close()
    assert "<td class=n>0.3<td class=n>100 %" in build(lab)


@pytest.mark.slow
def test_fleet_html_is_written_once_an_hour_and_at_once_for_a_new_report(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    make_past(lab)
    lab.host()
    builder = Builder(lab.settings(zone=PARIS), 10)
    try:
        builder.build(NOW)
        builder.build(NOW + 301)
        first = builder.site_writer.published.files["fleet.html"]
        for after in (602, 1800):
            builder.build(NOW + after)
            assert builder.site_writer.published.files["fleet.html"] == first
        (lab.www / "reports").mkdir()
        (lab.www / "reports/2026-W46.html").write_text("<!doctype html>")
        builder.build(NOW + 2200)
        assert "reports/2026-W46.html" in (lab.www / "fleet.html").read_text()
    finally:
        builder.close()


@pytest.mark.slow
def test_while_a_builder_lives_it_is_never_so_old_that_the_page_says_so(tmp_path: Path) -> None:
    (old,) = re.findall(
        r"MAX_PAGE_AGE_S = (?:.*\?\? )?(\d+) \* 60\)?;", (ROOT / "www/assets/page-reload.js").read_text()
    )
    lab = Lab(tmp_path)
    make_past(lab)
    builder = Builder(lab.settings(zone=PARIS), 60)
    written = set()
    try:
        for minute in range(0, 200, 2):
            builder.build(NOW + minute * 60)
            written.add(builder.site_writer.published.files["fleet.html"][1])
    finally:
        builder.close()
    write_times = sorted(written)
    assert len(write_times) == 4
    assert max(after - before for before, after in zip(write_times, write_times[1:])) <= (int(old) - 2) * 60


@pytest.mark.slow
def test_where_nobody_looks_again_nothing_is_asked(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    make_past(lab)
    builder = Builder(lab.settings(zone=PARIS), 10)
    try:
        builder.build(NOW)
        looked = builder.fleet_page.checked_at
        builder.build(NOW + 10)
        assert builder.fleet_page.checked_at == looked
    finally:
        builder.close()


def test_where_users_are_not_shown_reports_that_name_them_go(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "2026-W45.html").write_bytes(NAMED_REPORT_START + b"\n<p>alice")
    (folder / "2026-W46.html").write_bytes(b"<!doctype html>\n<html lang=en>\n")
    (folder / "2026-W44.html").symlink_to(tmp_path / "elsewhere")
    assert list_fleet_page_reports(tmp_path, are_users_shown=True) == ["2026-W46", "2026-W45"]
    assert list_fleet_page_reports(tmp_path, are_users_shown=False) == ["2026-W46"]
    assert sorted(path.name for path in folder.iterdir()) == ["2026-W44.html", "2026-W46.html"]


def test_a_report_that_cannot_be_read_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_one(report: Path) -> bool:
        if report.stem == "2026-W45":
            raise PermissionError(report)
        return False

    monkeypatch.setattr("site_builder.usage.fleet_page.is_naming_report", refuse_one)
    (tmp_path / "reports").mkdir()
    for week in ("2026-W44", "2026-W45", "2026-W46"):
        (tmp_path / f"reports/{week}.html").write_text("<!doctype html>")
    assert list_fleet_page_reports(tmp_path, are_users_shown=True) == ["2026-W46", "2026-W45", "2026-W44"]
    assert list_fleet_page_reports(tmp_path, are_users_shown=False) == ["2026-W46", "2026-W44"]
    assert (tmp_path / "reports/2026-W45.html").exists()


@pytest.mark.slow
def test_fleet_html_names_nobody(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    make_past(lab)
    assert not re.search("alice|bob", build(lab, privacy=PrivacySettings(users=False)))
    assert not re.search("alice|bob", build(lab, 7200))


def test_a_damaged_history_costs_the_numbers_and_not_the_page(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    (lab.state / "history.db").mkdir()
    (lab.state / "history.db" / "x").touch()
    assert "<h2>Fleet</h2>" in build(lab)


@pytest.mark.slow
def test_a_month_of_40_models_is_drawn_within_a_second(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    history = HistoryWriter(lab.state, PARIS)
    models = [gpu("busy", ["alice"], index=number, model=f"model {number}") for number in range(40)]
    for back in range(30, 0, -1):  # an hour of each day is enough to draw them all
        keep(history, START - back * DAY, START - back * DAY + HOUR, [host(*models)])
    roll(history, NOW)
    history.close()
    builder = Builder(lab.settings(zone=PARIS))
    builder.build(NOW)
    page = builder.fleet_page

    def again() -> None:
        page.checked_at = -float("inf")
        (lab.www / "fleet.html").unlink()
        page.write(builder.site_writer, PeopleDirectory({}), Now(NOW, PARIS))

    pace.check(pace.took(again, rounds=3), 1.0)
    builder.close()


# How it looks


@pytest.mark.slow
@pytest.mark.parametrize("media", ["screen", "print"])
def test_columns_have_their_headings_on_a_phone_and_on_paper(
    browser: Browser, site: Site, media: Literal["screen", "print"]
) -> None:
    with opened(browser, site, PHONE if media == "screen" else PAPER) as page:
        page.emulate_media(media=media)
        for head in page.locator("section > .scroll thead").all():
            assert head.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_axe_finds_no_accessibility_fault_and_nothing_is_too_wide(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        page.evaluate("document.querySelector('details').open = true")
        page.clock.resume()
        for rules in each_view(page):
            assert run_axe(page, rules).faults == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
def test_the_html_is_valid(lab: Lab, plain: Page, tmp_path: Path) -> None:
    assert find_parse_errors(lab.www / "fleet.html") == []
    assert validate_elements(tmp_path, {"fleet": plain.content()}) == ""
