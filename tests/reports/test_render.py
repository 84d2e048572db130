"""The weekly report as people get it: by `gpuboard serve`, from a mail, and as text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from site_builder.core.terminal_text import measure_width
from site_builder.reports.collect import CollectedReport
from site_builder.reports.commands import render_report_command_page as page_of
from site_builder.reports.render import render_report_text
from site_builder.waste.rules import WasteItem
from site_builder.web import static_files
from site_builder.web.static_files import CONTENT_SECURITY_POLICY
from tests.support.board_fixture import Lab
from tests.support.browser import PATIENCE, ROOT
from tests.support.page_checks import LAPTOP, each_view, find_parse_errors, run_axe, validate_elements
from tests.support.serve_fixtures import Running, running
from tests.support.week_fixtures import HOSTILE, MORNING, PARIS, lab_of, week_of

REPORT = "reports/2026-W46.html"
POLICY = "Content-Security-Policy"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return lab_of(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def week(lab: Lab) -> CollectedReport:
    return week_of(lab.settings(zone=PARIS))


@pytest.fixture(scope="module")
def html(lab: Lab, week: CollectedReport) -> str:
    return page_of(week, lab.settings(zone=PARIS), MORNING).decode()


@pytest.fixture(scope="module")
def server(lab: Lab, html: str) -> Iterator[Running]:
    """The real one."""
    (lab.www / "reports").mkdir(parents=True)
    (lab.www / REPORT).write_text(html)
    (lab.www / "index.html").write_text("<!doctype html><title>board</title>")
    with running(lab.data.parent) as running_server:
        yield running_server


@contextmanager
def opened(browser: Browser, url: str, width: int = LAPTOP, **options: Any) -> Iterator[Page]:  # noqa: ANN401 of playwright
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.add_init_script("window.alerts = 0; window.alert = () => { window.alerts += 1; };")
        page.goto(url)
        yield page
    finally:
        context.close()


def is_styled(page: Page) -> bool:
    """Whether the page looks as it should: a bar has the colour of its part."""
    return bool(
        page.evaluate("getComputedStyle(document.querySelector('.share .working')).fill === 'rgb(36, 89, 201)'")
    )


# Served, and mailed


@pytest.mark.slow
def test_gpuboard_serve_lets_it_have_its_style(browser: Browser, server: Running) -> None:
    context = browser.new_context()
    page = context.new_page()
    console_messages: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: console_messages.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"http://127.0.0.1:{server.port}/{REPORT}")
    assert is_styled(page)
    assert console_messages == []
    assert asked == [f"http://127.0.0.1:{server.port}/{REPORT}"]
    context.close()


@pytest.mark.slow
def test_only_a_report_may_have_a_style_in_itself(server: Running) -> None:
    assert server.get(f"/{REPORT}").headers[POLICY] == static_files.REPORT_SECURITY_POLICY
    for path in ("/", "/reports/none.html", "/reports/"):
        assert server.get(path).headers[POLICY] == CONTENT_SECURITY_POLICY


@pytest.mark.slow
def test_a_report_that_is_known_already_keeps_its_policy(server: Running) -> None:
    first = server.get(f"/{REPORT}")
    again = server.get(f"/{REPORT}", If_None_Match=first.headers["Etag"])
    assert (again.status, again.headers[POLICY]) == (304, static_files.REPORT_SECURITY_POLICY)


def test_its_own_policy_allows_that_one_style_and_no_script(html: str) -> None:
    style = html.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"\"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\"" in html


def test_another_style_and_a_script_are_refused(browser: Browser, html: str, tmp_path: Path) -> None:
    injected_html = (
        "<style>.share .working { fill: red }</style><script>alert(1)</script><p style='color: red'>x</p></main>"
    )
    (tmp_path / "report.html").write_text(html.replace("</main>", injected_html))
    with opened(browser, f"file://{tmp_path}/report.html") as page:
        assert is_styled(page)
        assert page.evaluate("window.alerts") == 0


def test_from_a_mail_it_looks_the_same_and_asks_for_nothing(browser: Browser, html: str, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(html)
    asked: list[str] = []
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{tmp_path}/report.html")
    expect(page.get_by_role("heading", name="Week 46 of 2026")).to_be_visible()
    assert asked == [f"file://{tmp_path}/report.html"]
    context.close()
    assert not re.search(r"""(?:src|href|url\()\s*=?\s*["']?(?!#|\(?["']?#)[a-z/.]""", html.partition("</head>")[2])


# What happened, and what is wasted now


def test_severe_events_come_first(html: str) -> None:
    health = html.partition("<h2>Health")[2]
    words = re.findall("<tr><th scope=row[^>]*>(.+?)<td[^>]*>([^<]*)<td[^>]*>([^<]*)<td[^>]*>([^<\n]*)", health)
    assert [(word[0], word[2]) for word in words] == [
        ("<strong class=critical>▲ critical</strong>", "hydra:0"),
        ("<strong class=warning>◆ warning</strong>", "atlas:0"),
        ("info", "atlas"),
    ]
    assert words[1][1:] == ("9 Nov 2026 00:02 – 02:00", "atlas:0", "slowed by heat")


def test_current_waste_says_what_to_do(html: str) -> None:
    now = html.partition("When this report was made")[2].partition("<h2>Health")[0]
    row = re.sub("<td[^>]*>", "|", now)
    assert "|31.5|31 GiB held, idle|Ask whether it is still needed." in row
    assert "On hydra: kill 4711" in now


# As text


def test_a_long_list_says_how_much_is_left_out(week: CollectedReport) -> None:
    report_text = render_report_text(
        week._replace(current_waste=[*week.current_waste] * 10, events=[*week.events] * 20)
    )
    assert "\n  and 12 more; gpuboard waste lists all\n" in report_text
    assert "\nand 40 more\n" in report_text


def test_no_line_of_the_text_is_longer_than_78_and_none_does_anything(week: CollectedReport) -> None:
    odd = WasteItem(
        "dead", "atlas", "", 1, "", people=("\x1b[31m計算機" * 40,), what="\x07\u202e" + "計" * 99, advice=HOSTILE
    )
    report_text = render_report_text(
        week._replace(current_waste=[*week.current_waste, odd]), f"https://gpus.lab.org/{'x' * 99}"
    )
    assert [line for line in report_text.splitlines() if measure_width(line) > 78] == []
    assert all(letter == "\n" or letter.isprintable() for letter in report_text)
    assert "\u202e" not in report_text


def test_the_text_has_all_parts_and_says_where_the_charts_are(week: CollectedReport) -> None:
    report_text = render_report_text(week, "https://gpus.lab.org/reports/2026-W46.html")
    heads = re.findall(r"\n\n([A-Z][a-z ]+)\n-+\n", report_text)
    assert heads == ["Summary", "Use by day", "Use by model", "People", "Waste", "Health"]
    assert report_text.endswith("\nWith charts: https://gpus.lab.org/reports/2026-W46.html\n")
    assert "- atlas:0: slowed by heat (9 Nov 2026 00:02 – 02:00)" in report_text
    assert "! hydra:0: lost: the driver could not reach it" in report_text


# How it looks


@pytest.mark.slow
def test_axe_finds_no_accessibility_fault_and_nothing_is_too_wide(browser: Browser, server: Running) -> None:
    with opened(browser, f"http://127.0.0.1:{server.port}/{REPORT}") as page:
        for rules in each_view(page):
            assert run_axe(page, rules).faults == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("window.alerts") == 0


@pytest.mark.slow
def test_the_html_is_valid(browser: Browser, lab: Lab, server: Running, tmp_path: Path) -> None:
    assert find_parse_errors(lab.www / REPORT) == []
    with opened(browser, f"http://127.0.0.1:{server.port}/{REPORT}", java_script_enabled=False) as page:
        assert validate_elements(tmp_path, {"report": page.content()}) == ""


# Every week


def test_the_docs_have_the_policy_of_reports() -> None:
    assert f"`{static_files.REPORT_SECURITY_POLICY}`" in (ROOT / "docs/security.md").read_text()


def test_cron_makes_it_on_monday_morning() -> None:
    (line,) = (
        line
        for line in (ROOT / "crontab.example").read_text().splitlines()
        if "gpuboard report" in line and line[0] != "#"
    )
    minute, hour, day, month, weekday, *command = line.split()
    assert minute.isdigit()
    assert 1 <= int(hour) < 9  # clocks are never put back from here to Sunday
    assert (day, month, weekday) == ("*", "*", "1")
    assert command == ["cd", "/FOLDER", "&&", "/VENV/bin/gpuboard", "report", "--week"]
