"""users.html: who has how much, what is nobody's, and how much of the time was seen."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import html5lib
import pytest
from playwright.sync_api import Browser, Page, expect

from site_builder.board.builder import Builder
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.model import PrivacySettings
from site_builder.core.people import PeopleDirectory
from site_builder.history.rollups import MonthUsage
from site_builder.history.usage_sums import UNITS_PER_MINUTE, StateMinutes, UsageShareSums
from site_builder.history.writer import HistoryWriter
from site_builder.usage import people_page
from tests.support.board_fixture import Lab, gpu, person, process, soon
from tests.support.browser import PATIENCE, Site, served
from tests.support.history_fixtures import gpu as past_gpu
from tests.support.history_fixtures import host as past_host
from tests.support.history_fixtures import keep, record, roll
from tests.support.page_checks import LAPTOP, PHONE, find_accessibility_faults, find_parse_errors, validate_elements

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "image": '"><img/src=x/onerror=alert(1)>',
    "quotes": "'`&amp;{{7*7}}",
    "link": "javascript:alert(1)",
    "bidi": "\u202eabc",
    "long": "x" * 90,
}


def make_lab(folder: Path) -> Lab:
    """atlas with four GPUs, of which alice has one and a half, hydra, which is off, and an hour of a day ago."""
    lab = Lab(folder)
    rows = [gpu(0, 40000, 90), gpu(1, 30000, 50), gpu(2), gpu(3, 9000, 0)]
    jobs = [process(1, "GPU-0", 39000), process(2, "GPU-1", 20000), process(3, "GPU-1", "[N/A]")]
    lab.host("atlas", "".join(rows), "".join(jobs), person(1, "alice") + person(2, "alice") + person(3, "b.ob"))
    lab.host("hydra", gpu(0, uuid="GPU-h"))
    lab.host("nile", gpu(0, uuid="GPU-n"))
    lab.book({"nile": {"0": {"name": "carol", "date": soon(7200)}}})
    (lab.data / "aliases.csv").write_text("b.ob, Bob Żak\nasmith, alice\n")
    (lab.data / "hosts.txt").write_text("hydra, , , maintenance: new fans\n")
    start = (int(time.time()) // HOUR - 23) * HOUR
    history = HistoryWriter(lab.state, timezone.utc)
    record(history, start, 60, [past_host(past_gpu("busy", ["asmith"]), past_gpu("held", ["alice", "b.ob"], index=1))])
    roll(history, time.time())
    history.close()
    return lab


def tables(html: str) -> dict[str, dict[str, dict[str, str]]]:
    """The tables of the page by their titles: of each row the cells by their headings."""
    tree = html5lib.parse(html, namespaceHTMLElements=False)
    found = {}
    for region in tree.findall(".//div[@role='region']"):
        head_row = region.findall(".//thead/tr")[-1]
        heads = [read(cell) for cell in head_row]
        cells_by_name = {}
        for row in region.findall(".//tbody/tr") + region.findall(".//tfoot/tr"):
            name, *cells = map(read, row)
            cells_by_name[name] = dict(zip(heads[len(heads) - len(cells) :], cells))
        found[region.get("aria-label") or ""] = cells_by_name
    return found


def read(element: Any) -> str:  # noqa: ANN401 # of html5lib
    """The text of an element."""
    return " ".join("".join(element.itertext()).split())


def people_of(html: str) -> dict[str, dict[str, str]]:
    """The table of people."""
    return tables(html)["People"]


def sums_of_now(html: str) -> dict[str, dict[str, str]]:
    """The table that explains the sums of now."""
    return tables(html)["All GPUs now, and on average"]


def page(lab: Lab, shown: PrivacySettings = PrivacySettings()) -> str:  # noqa: B008 # it cannot be changed
    """The page, built by a builder of its own."""
    assert lab.build(privacy=shown).written_files
    return (lab.www / "users.html").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = make_lab(tmp_path_factory.mktemp("lab"))
    lab.build()
    return lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


# What it says


def test_each_person_has_gpus_by_share_memory_processes_and_where(built: Lab) -> None:
    html = (built.www / "users.html").read_text()
    cells = {name: (row["GPUs now"], row["Memory"], row["Where"]) for name, row in people_of(html).items()}
    assert cells["alice"] == ("1.5", "58 GiB", "atlas ×2")
    assert cells["Bob Żak"] == ("0.5", "–", "atlas")  # its memory is not told, and so it is not 0
    assert cells["All people"] == ("2", "", "")
    assert [sums_of_now(html)[name]["Processes"] for name in ("alice", "Bob Żak")] == ["2", "1"]


def test_a_square_is_drawn_for_each_gpu_and_a_part_of_one_for_a_part() -> None:
    paths = {gpus: people_page.render_person_squares(gpus) for gpus in (0, 0.01, 1, 2.5, 500)}
    assert paths[0] == ""
    assert [paths[gpus].count("M") for gpus in (0.01, 1, 2.5, 500)] == [1, 1, 3, people_page.MAX_SQUARES]
    assert "M0 0h9v9h-9z" in paths[1] and "M24 0h4v9h-4z" in paths[2.5] and "M0 0h2v9h-2z" in paths[0.01]


def test_the_last_7_days_are_gpu_hours_with_the_part_that_was_idle(built: Lab) -> None:
    html = (built.www / "users.html").read_text()
    week = {name: row["Last 7 days"] for name, row in people_of(html).items()}
    # an hour of a GPU and of half of one that was held, and this minute
    assert (
        week == {"alice": "1.5 33 % idle", "Bob Żak": "0.5 98 % idle", "All people": "2.0"}
        or week["alice"][:3] == "1.5"
    )
    assert html.count("<svg class=share") >= 2


def test_where_no_gpu_was_seen_an_average_is_not_known(tmp_path: Path) -> None:
    """The builder ran all the time, and no host told it anything."""
    lab = Lab(tmp_path)
    history = HistoryWriter(lab.state, timezone.utc)
    record(history, int(time.time()) // 60 * 60 - 3 * HOUR, 180, [])
    history.close()
    means = [
        (row["2 h"], row["24 h"], row["7 days"]) for name, row in sums_of_now(page(lab)).items() if name != "Coverage"
    ]
    assert set(means) == {("–",) * 3}


def test_what_closes_the_sums_of_now_is_reported(built: Lab) -> None:
    now = {name: row["GPUs"] for name, row in sums_of_now((built.www / "users.html").read_text()).items()}
    assert now["All people"] == "2"
    assert now["Owner unknown"] == "1"
    assert now["Booked, idle"] == "1"
    assert now["Free"] == "1"
    assert now["Lost or unknown"] == "0"
    assert now["All GPUs"] == "5"
    assert now["On unreachable hosts"] == "1"


def test_gpus_of_unreachable_hosts_are_never_silently_no_gpus(built: Lab, tmp_path: Path) -> None:
    sentence = "Who uses the 1 GPU of unreachable hosts now is unknown: it is not counted."
    assert sentence in (built.www / "users.html").read_text()
    lab = Lab(tmp_path)
    lab.host()
    assert "unreachable" not in page(lab)


def test_averages_are_over_the_minutes_in_which_somebody_looked(built: Lab) -> None:
    """An hour of two GPUs a day ago, and this minute of five."""
    rows = sums_of_now((built.www / "users.html").read_text())
    means = {name: [row["2 h"], row["24 h"], row["7 days"]] for name, row in rows.items()}
    assert means["alice"] == ["1.5", "1.5", "1.5"]
    assert means["Bob Żak"] == ["0.5", "0.5", "0.5"]
    assert means["All people"] == ["2.0", "2.0", "2.0"]
    assert means["Free"] == ["1.0", "<0.1", "<0.1"]
    assert means["Coverage"][1] in ("4 %", "5 %")
    assert means["Coverage"][2] == "0 %"


def test_gpu_hours_are_reported_by_person_model_host_and_month(built: Lab) -> None:
    found = tables((built.www / "users.html").read_text())
    months = {title: table for title, table in found.items() if title.startswith("GPU-hours by person, ")}
    assert list(found) == [
        *("People", "All GPUs now, and on average", *months),
        *("All GPU-hours", "By model", "By host", "By month"),
    ]

    # yesterday may have been last month
    def total(name: str) -> dict[str, float]:
        hours: dict[str, float] = defaultdict(float)
        for table in months.values():
            for person_name, cells in table.items():
                hours[person_name] += float(cells.get(name, 0))
        return dict(hours)

    assert total("Used") == {"alice": 1.5, "Bob Żak": 0.5, "All people": 2}
    assert total("Held idle") == {"alice": 0.5, "Bob Żak": 0.5, "All people": 1}
    parts = found["All GPU-hours"]
    closing = ("Used by people", "Owner unknown", "Booked, idle", "Free", "Lost or unknown")
    for month, seen in parts["All monitored"].items():
        assert sum(float(parts[name][month]) for name in closing) == float(seen)
    assert list(found["By model"]) == ["A100 80 GB"]
    assert list(found["By host"]) == ["atlas"]
    assert sum(float(cells["Used"]) for cells in found["By month"].values()) == 2


def month_of(first: date, hours: dict[str, float], days: int = 10) -> MonthUsage:
    """A month, of which some days are over; each person used a GPU for some hours of it."""
    shares = {name: UsageShareSums(round(count * 60 * UNITS_PER_MINUTE), 0, 0, 0) for name, count in hours.items()}
    until = int(datetime(first.year, first.month, 1, tzinfo=timezone.utc).timestamp()) + days * DAY
    seen = StateMinutes._make([60] * len(StateMinutes._fields))
    return MonthUsage(first, first, until, shares, {}, {("atlas", "A100"): seen}, {})


def test_a_change_compares_the_hours_of_a_day_with_those_of_the_month_before() -> None:
    """A month that has just begun does not look like less."""
    months = [
        month_of(date(2026, 11, 1), {"alice": 10, "bob": 5, "carol": 1}),
        month_of(date(2026, 10, 1), {"alice": 31, "bob": 31, "dave": 3}, 31),
        month_of(date(2026, 8, 1), {"alice": 9}, 31),
    ]
    changes = [
        {name: cells["change"].text for name, cells in month.cells.items()}
        for month in people_page.build_person_months(months, PeopleDirectory({}), timezone.utc)
    ]
    assert changes == [
        {"alice": "0 %", "bob": "−50 %", "carol": "new", "": "−24 %"},  # noqa: RUF001
        {"alice": "–", "bob": "–", "dave": "–", "": "–"},  # nothing is known of September
        {"alice": "–", "": "–"},
    ]


def test_columns_of_zeros_are_left_out() -> None:
    (month,) = people_page.build_person_months(
        [month_of(date(2026, 11, 1), {"alice": 10})], PeopleDirectory({}), timezone.utc
    )
    assert month.columns == [("used", "Used")]
    table = people_page.PeopleTable(
        "By model", "Model", [("Nov", 3), ("Oct", 3)], ["Used", "Free", "Lost"] * 2,
        [people_page.PeopleTableRow("A100", "", ["0.0", "0.0", "0.0", "0.0", "1.0", "–"])],
    )  # fmt: skip
    filled = people_page.drop_empty_columns(table)
    assert (filled.groups, filled.heads) == ([("Nov", 2), ("Oct", 2)], ["Used", "Free"] * 2)
    assert filled.rows[0].cells == ["0.0", "0.0", "0.0", "1.0"]


def test_whoever_has_most_stands_first(built: Lab) -> None:
    assert list(people_of((built.www / "users.html").read_text()))[:2] == ["alice", "Bob Żak"]


def test_a_person_with_two_logins_on_one_gpu_has_one_part_of_it(lab: Lab) -> None:
    (lab.data / "aliases.csv").write_text("alice2, alice\n")
    jobs = [process(1, "GPU-0"), process(2, "GPU-0"), process(3, "GPU-0")]
    people = person(1, "alice") + person(2, "alice2") + person(3, "bob")
    lab.host("atlas", gpu(0, 40000, 90), "".join(jobs), people)
    rows = sums_of_now(page(lab))
    assert (rows["alice"]["GPUs"], rows["bob"]["GPUs"]) == ("0.5", "0.5")
    assert (rows["alice"]["2 h"], rows["bob"]["2 h"]) == ("0.5", "0.5")


def test_a_fresh_board_says_what_is_still_to_come(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host()
    html = page(lab)
    assert "GPU-hours are summed up once an hour" in html
    assert sums_of_now(html)["Free"]["GPUs"] == "1"


def test_where_history_cannot_be_read_it_says_why_and_still_shows_who_is_where(lab: Lab) -> None:
    with sqlite3.connect(lab.state / "history.db") as connection:
        connection.execute("PRAGMA user_version=99")
    html = page(lab)
    assert "state/history.db: it could not be read: it was written by a newer gpuboard" in html
    assert "Averages are still being computed" in html
    assert people_of(html)["alice"] == {"GPUs now": "1.5", "Memory": "58 GiB", "Where": "atlas ×2"}


# Who may see whom


def test_where_users_are_not_shown_the_page_names_nobody(lab: Lab) -> None:
    lab.build()
    html = page(lab, PrivacySettings(users=False))
    for name in ("alice", "asmith", "b.ob", "Żak", "carol"):
        assert name not in html
    assert "This site does not show people" in html
    now = {name: row["GPUs"] for name, row in sums_of_now(html).items()}
    assert (now["All people"], now["Free"], now["Booked, idle"]) == ("2", "1", "1")
    assert "People" not in tables(html)
    assert not re.search("by person", html)
    assert "By host" in tables(html)


def test_names_go_at_the_next_build_when_users_are_no_longer_shown(lab: Lab) -> None:
    builder = Builder(lab.settings(), build_interval_s=10)
    builder.build(time.time())
    builder.close()
    builder = Builder(lab.settings(privacy=PrivacySettings(users=False)), build_interval_s=10)
    builder.build(time.time() + 1)
    builder.close()
    assert "alice" not in (lab.www / "users.html").read_text()


def test_a_host_that_is_hidden_is_not_named_and_its_hours_count(lab: Lab) -> None:
    assert ">atlas<" in page(lab)
    (lab.data / "hosts.txt").write_text("atlas, hidden\n")
    html = page(lab)
    assert "atlas" not in html
    assert tables(html)["By host"]["not on the board"]


# When it is written


def test_users_html_is_written_once_a_minute(lab: Lab) -> None:
    now = time.time()
    written = []
    for after in (0, 10, 20, 59, 60, 70, 119):
        builder = Builder(lab.settings(), build_interval_s=10)
        if "users.html" in builder.build(now + after).written_files:
            written.append(after)
        builder.close()
    assert written == [0, 59, 119]


def test_users_html_is_written_again_if_it_was_deleted(lab: Lab) -> None:
    lab.build()
    (lab.www / "users.html").unlink()
    assert page(lab)


# In a browser


@contextmanager
def opened(browser: Browser, site: Site, width: int = LAPTOP, **options: Any) -> Iterator[Page]:  # noqa: ANN401 of playwright
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.add_init_script("window.alerts = 0; window.alert = () => { window.alerts += 1; };")
        page.goto(f"{site.url}users.html")
        yield page
    finally:
        context.close()


@pytest.fixture(scope="module")
def site(built: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served(built.www, tmp_path_factory.mktemp("server") / "files") as site:
        yield site


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    lab = Lab(tmp_path_factory.mktemp("hostile"))
    rows = [gpu(n, 40000, 90) for n in range(len(HOSTILE))]
    jobs = [process(n + 1, f"GPU-{n}") for n in range(len(HOSTILE))]
    people = [person(n + 1, name) for n, name in enumerate(HOSTILE.values())]
    lab.host("atlas", "".join(rows), "".join(jobs), "".join(people))
    now = (int(time.time()) // HOUR - 1) * HOUR
    history = HistoryWriter(lab.state, timezone.utc)
    gpus = [past_gpu("busy", [name], index=n, model=name) for n, name in enumerate(HOSTILE.values())]
    record(history, now, 30, [past_host(*gpus)])
    roll(history, time.time())
    history.close()
    lab.build()
    with served(lab.www, tmp_path_factory.mktemp("server") / "files") as site:
        yield site


@pytest.mark.slow
def test_a_hostile_name_is_shown_and_does_nothing(browser: Browser, attacked: Site) -> None:
    with opened(browser, attacked) as page:
        assert page.evaluate("window.alerts") == 0
        assert page.locator("img, script:not([src])").count() == 0
        row_headings = page.locator("tbody th").all_text_contents()
        assert HOSTILE["script"] in row_headings
        assert "{{7*7}}" in " ".join(row_headings)
        links = page.evaluate("[...document.querySelectorAll('main a')].map((one) => one.getAttribute('href'))")
        assert all(re.match(r"index\.html\?q=user|hosts/", link) for link in links)


@pytest.mark.slow
def test_a_name_leads_to_what_the_board_shows_of_that_person(browser: Browser, site: Site) -> None:
    for name, gpus in (("alice", 2), ("Bob Żak", 1)):
        with opened(browser, site) as page:
            page.get_by_role("link", name=name).first.click()
            expect(page.locator("input[name=q]")).to_have_value(f'user:"{name}"' if " " in name else f"user:{name}")
            expect(page.locator(".gpus tbody tr:visible")).to_have_count(gpus)


@pytest.mark.slow
def test_where_somebody_is_leads_to_the_host(browser: Browser, site: Site) -> None:
    with opened(browser, site, java_script_enabled=False) as page:
        page.locator(".where a").first.click()
        expect(page.locator("h2").first).to_contain_text("atlas")


@pytest.mark.slow
@pytest.mark.parametrize("place", [".sums tbody a >> nth=2", ".whole th button >> nth=3"])
def test_focus_and_the_place_in_a_table_stay_when_the_page_is_loaded_again(
    browser: Browser, site: Site, place: str
) -> None:
    context = browser.new_context(viewport={"width": PHONE, "height": 900})
    page = context.new_page()
    page.clock.install()
    page.goto(f"{site.url}users.html")
    link = page.locator(place)
    link.focus()
    page.locator(".scroll").first.evaluate("(one) => { one.scrollLeft = 40; document.body.dataset.mine = 1 }")
    page.clock.run_for(80_000)
    expect(page.locator("body[data-mine]")).to_have_count(0)
    expect(link).to_be_focused()
    assert page.locator(".scroll").first.evaluate("(one) => one.scrollLeft") == 40
    context.close()


def list_names(page: Page) -> list[str]:
    return [name.replace(" (you)", "") for name in page.locator("#_people tbody th").all_inner_texts()]


@pytest.mark.slow
def test_the_table_is_sorted_by_keyboard_and_stays_so_when_it_is_loaded_again(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        head = page.get_by_role("columnheader", name="Person").first
        assert page.get_by_role("columnheader", name="GPUs now").get_attribute("aria-sort") == "descending"
        assert list_names(page) == ["alice", "Bob Żak", "carol"]
        head.get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert (head.get_attribute("aria-sort"), list_names(page)) == ("ascending", ["alice", "Bob Żak", "carol"])
        page.keyboard.press("Enter")
        assert (head.get_attribute("aria-sort"), list_names(page)) == ("descending", ["carol", "Bob Żak", "alice"])
        assert page.locator("th[aria-sort]").count() == 1
        page.reload()
        assert (head.get_attribute("aria-sort"), list_names(page)) == ("descending", ["carol", "Bob Żak", "alice"])
        page.get_by_role("button", name="Last 7 days").click()
        assert list_names(page) == ["alice", "Bob Żak", "carol"]


@pytest.mark.slow
@pytest.mark.parametrize("me", ["b.ob", " bob żak "])
def test_whoever_reads_stands_on_top_however_it_is_sorted(browser: Browser, site: Site, me: str) -> None:
    with opened(browser, site) as page:
        page.evaluate("(me) => localStorage.setItem('gpuboard.me', me)", me)
        page.reload()
        mine = page.locator("#_people tr.mine")
        expect(mine).to_have_count(1)
        assert list_names(page) == ["Bob Żak", "alice", "carol"]
        page.get_by_role("button", name="GPUs now").click()
        assert list_names(page) == ["Bob Żak", "carol", "alice"]


@pytest.mark.slow
def test_an_earlier_month_can_be_picked_with_everybody_who_was_there(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", gpu(0, 40000, 90), process(1), person(1, "alice"))
    history = HistoryWriter(lab.state, timezone.utc)
    this_month = datetime.now(timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    starts = [this_month]
    for _ in range(3):
        starts.append((starts[-1] - timedelta(days=1)).replace(day=1))
    for start, hours, name in ((starts[3], 3, "old"), (starts[2], 2, "alice"), (starts[1], 1, "alice")):
        keep(
            history,
            int(start.timestamp()),
            int(start.timestamp()) + hours * HOUR,
            [past_host(past_gpu("busy", [name]))],
        )
    roll(history, time.time())
    history.close()
    lab.build()
    with served(lab.www, tmp_path / "server") as site, opened(browser, site) as page:
        picker = page.locator(".pick select")
        labels = [f"{start:%B %Y}" for start in starts]
        assert page.locator(".pick option").all_inner_texts()[-3:] == labels[1:]
        picker.select_option(labels[3])
        used = page.locator("#_people tbody tr").evaluate_all(
            "(rows) => rows.map((row) => [row.cells[0].innerText, row.querySelector('[data-c=used]').innerText])"
        )
        assert used == [["alice", "0.0"], ["old", "3.0"]]
        expect(page.get_by_role("columnheader", name=labels[3])).to_be_visible()
        page.reload()
        expect(picker).to_have_value(f"{starts[3]:%Y-%m}")
        picker.select_option(labels[2])
        assert list_names(page) == ["alice"]
        assert page.locator("#_people tfoot [data-c=used]").inner_text() == "2.0"


@pytest.mark.slow
def test_paper_has_what_is_open_and_sums_once(browser: Browser, site: Site) -> None:
    with opened(browser, site, PHONE) as page:
        page.emulate_media(media="print")
        assert page.locator("details:not([open])").first.is_hidden()
        assert page.locator("#_people tfoot").evaluate("(foot) => getComputedStyle(foot).display") == "table-row-group"


@pytest.mark.slow
def test_a_heading_is_never_a_column_of_letters(browser: Browser, site: Site) -> None:
    with opened(browser, site, PHONE) as tab:
        head = tab.get_by_role("columnheader", name="Booked, unused")
        assert head.evaluate("(one) => one.getBoundingClientRect().width") > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["users.html", "fleet.html"])
def test_on_a_phone_links_and_buttons_can_be_hit_and_wide_tables_say_that_they_scroll(
    browser: Browser, site: Site, name: str
) -> None:
    with opened(browser, site, PHONE) as page:
        page.goto(f"{site.url}{name}")
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        small = page.evaluate(
            """() => [...document.querySelectorAll("main :is(a, button, select, summary)")]
                .filter((one) => one.getBoundingClientRect().height < 44).map((one) => one.outerHTML)"""
        )
        assert small == []
        about = page.locator(".about").evaluate(
            "(one) => [one.scrollWidth - one.clientWidth, getComputedStyle(one).whiteSpace]"
        )
        assert about == [0, "normal"]
        hints = page.evaluate(
            """() => [...document.querySelectorAll(".scroll:has(.whole, .use, .heat)")]
                .map((one) => [one.scrollWidth > one.clientWidth, getComputedStyle(one, "::before").content])"""
        )
        assert hints
        assert {tuple(hint) for hint in hints} == {(True, '"Scroll sideways for more →"')}


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, LAPTOP])
def test_no_part_of_the_page_is_wider_than_the_screen(browser: Browser, attacked: Site, width: int) -> None:
    with opened(browser, attacked, width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_axe_finds_no_accessibility_fault(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        assert find_accessibility_faults(page) == []


@pytest.mark.slow
def test_an_old_page_says_so(browser: Browser, site: Site) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.clock.install(time=datetime.fromtimestamp(time.time() + DAY, timezone.utc))
    page.goto(f"{site.url}users.html")
    page.clock.run_for(11_000)
    expect(page.locator(".age strong")).to_have_text("Old:")
    context.close()


@pytest.mark.slow
def test_the_html_is_valid(browser: Browser, built: Lab, site: Site, attacked: Site, tmp_path: Path) -> None:
    assert find_parse_errors(built.www / "users.html") == []
    contents = {}
    for name, shown_site in (("plain", site), ("attacked", attacked)):
        with opened(browser, shown_site, java_script_enabled=False) as page:
            contents[name] = page.content()
    assert validate_elements(tmp_path, contents) == ""


@pytest.mark.parametrize(
    ("since", "until", "period_name"),
    [
        ("2026-10-01", "2026-11-01T00:00", "October 2026"),
        ("2026-10-13", "2026-11-01T00:00", "October 2026, from 13 Oct"),
        ("2026-10-01", "2026-10-31T14:00", "October 2026, up to 31 Oct 14:00"),
        ("2026-10-13", "2026-10-31T14:00", "October 2026, from 13 Oct up to 31 Oct 14:00"),
    ],
)
def test_a_month_of_which_history_has_only_a_part_says_which(since: str, until: str, period_name: str) -> None:
    moment = datetime.fromisoformat(f"{until}+01:00").timestamp()
    month = MonthUsage(date(2026, 10, 1), date.fromisoformat(since), int(moment), {}, {}, {}, {})
    assert people_page.format_people_month_heading(month, ZoneInfo("Europe/Berlin")) == period_name
