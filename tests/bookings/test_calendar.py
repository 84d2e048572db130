"""The calendar: what it shows, and how, in a real browser over a real web server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from site_builder.board.builder import Builder, BuildReport
from site_builder.bookings import calendar as booking_calendar
from site_builder.core.clock import Now
from site_builder.core.model import Booking, GpuIdentity, PrivacySettings
from tests.support.board_fixture import Lab, gpu
from tests.support.browser import PATIENCE, Site, served
from tests.support.generated_fleet import NOON, NOW, PARIS
from tests.support.page_checks import LAPTOP, PHONE, each_view, find_parse_errors, run_axe, validate_elements

DAY = 86400
HOSTILE = {
    "script": "<script>alert(1)</script>",
    "image": '"><img src=x onerror=alert(1)>',
    "svg": "</text></svg></section><svg onload=alert(1)>",
    "quotes": "' \" ` &amp; {{ 7 * 7 }}",
    "bidi": "\u202eabc שלום def",
    "emoji": "🚀👩‍🔬",
    "long": "x" * 500,
}


def at(days: float = 0, hours: float = 0) -> str:
    """A date in comments.json, from the first midnight of the calendar on."""
    return (NOON.replace(hour=0, tzinfo=None) + timedelta(days=days, hours=hours)).isoformat(" ", "minutes")


def one(name: str, begins: float | None, ends: float, comment: str = "", **extra_fields: object) -> dict[str, object]:
    """A booking, in days from the first midnight of the calendar on."""
    start = {} if begins is None else {"from": at(begins)}
    return {"name": name, "date": at(ends), "comment": comment, **start, **extra_fields}


def build(lab: Lab, after: float = 0, **changes: object) -> BuildReport:
    """A build at noon of a Monday in Paris, or so many seconds later."""
    builder = Builder(lab.settings(**{"zone": PARIS, **changes}))
    report = builder.build(NOW + after)
    builder.close()
    return report


def make_lab(folder: Path) -> Lab:
    """Five hosts, with a booking of each kind."""
    lab = Lab(folder)
    for host, gpus in (("atlas", 4), ("hydra", 8), ("nile", 2), ("rhine", 4), ("tiber", 1)):
        lab.host(host, "".join(gpu(n, uuid=f"GPU-{host}-{n}") for n in range(gpus)))
    icml = one("alice", None, 4.75, "ICML run")
    teaching = one("bob", 0.375, 0.75, "teaching", rrule="FREQ=WEEKLY;BYDAY=MO,WE")
    lab.book(
        {
            "atlas": {"0": icml, "1": icml, "3": [one("carol", 1, 3, "demo"), one("dave", 2, 6, "later")]},
            "hydra": {"3": teaching, "5": teaching, "*": one("admin", 10, 10.5, "new fans")},
            "nile": {"GPU-nile-0": one("noor", 3, 40), "1": one("noor", -9, -1, "over"), "9": one("noor", 5, 6)},
            "tiber": {"0": one("noor", 14, 15, "too far ahead")},
        }
    )
    return lab


@contextmanager
def opened(
    browser: Browser,
    site: Site,
    width: int = LAPTOP,
    me: str = "",
    timezone_id: str = "Europe/Paris",
    **options: Any,  # noqa: ANN401 of playwright
) -> Iterator[Page]:
    """The calendar, on a clock that stands at noon of that Monday in the lab's zone, or in another."""
    context = browser.new_context(viewport={"width": width, "height": 900}, timezone_id=timezone_id, **options)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.clock.install(time=NOON)
        page.add_init_script("window.alerts = 0; window.alert = () => { window.alerts += 1; };")
        if me:
            page.add_init_script(f"localStorage.setItem('gpuboard.me', '{me}')")
        page.goto(f"{site.url}bookings.html")
        yield page
    finally:
        context.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = make_lab(tmp_path_factory.mktemp("calendar"))
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


def bars(page: Page, host: str) -> dict[str, list[dict[str, float]]]:
    """The bars of a host by what stands in them: where each is, in rows and in days."""
    bar_places = page.evaluate(
        """(host) => {
            const chart = document.querySelector(`[id='${host}'] .bars`).getBoundingClientRect();
            return [...document.querySelectorAll(`[id='${host}'] .one`)].map((one) => {
                const place = one.querySelector("rect").getBoundingClientRect();
                const day = chart.width / 14;
                return [one.querySelector("text").textContent.trim(), {
                    begins: (place.left - chart.left) / day, ends: (place.right - chart.left) / day,
                    top: place.top - chart.top, bottom: place.bottom - chart.top,
                }];
            });
        }""",
        host,
    )
    by_text: dict[str, list[dict[str, float]]] = {}
    for text, place in bar_places:
        by_text.setdefault(text, []).append(place)
    return by_text


def days_of(place: dict[str, float]) -> list[float]:
    """From which day to which, to half an hour."""
    return [round(place[edge] * 48) / 48 for edge in ("begins", "ends")]


# What it shows


@pytest.mark.slow
def test_a_booking_of_several_gpus_is_one_bar_over_their_rows(plain: Page) -> None:
    (icml,) = bars(plain, "atlas")["alice ICML run"]
    assert days_of(icml) == [0, 4.75]
    assert icml["bottom"] - icml["top"] > 40
    assert plain.locator("#atlas .labels text").all_text_contents() == ["0", "1", "3"]


@pytest.mark.slow
def test_gpus_that_do_not_stand_together_have_a_bar_each(plain: Page) -> None:
    assert len(bars(plain, "hydra")["bob teaching"]) == 2 * 4


@pytest.mark.slow
def test_a_whole_host_is_one_bar_over_all_its_rows(plain: Page) -> None:
    (fans,) = bars(plain, "hydra")["admin new fans"]
    assert days_of(fans) == [10, 10.5]
    assert fans["bottom"] - fans["top"] > 7 * 24


def test_bookings_of_one_gpu_that_overlap_are_both_in_sight(plain: Page) -> None:
    bars_by_text = bars(plain, "atlas")
    (carol,), (dave,) = bars_by_text["carol demo"], bars_by_text["dave later"]
    assert days_of(carol) == [1, 3]
    assert days_of(dave) == [2, 6]
    assert carol["bottom"] <= dave["top"]


def test_a_gpu_by_its_uuid_and_one_that_is_not_there_have_their_rows(plain: Page) -> None:
    assert plain.locator("#nile .labels text").all_text_contents() == ["0", "9"]
    noor_bars = bars(plain, "nile")["noor"]
    assert days_of(noor_bars[0]) == [3, 14]


def test_gpus_without_a_booking_are_named_beside_the_host(plain: Page) -> None:
    assert plain.locator("#atlas h3 .soft").text_content() == "not booked: 2"
    assert plain.locator("#hydra h3 .soft").count() == 0


def test_hosts_without_a_booking_are_counted_and_named_in_one_place(plain: Page) -> None:
    assert plain.locator(".plan").count() == 3
    assert plain.locator(".others summary").text_content() == "2 hosts have no booking in these two weeks"
    assert plain.locator(".others p").text_content() == "rhine, tiber"


def test_the_days_have_names_and_weekends_another_ground(plain: Page) -> None:
    names = plain.locator("symbol text").all_text_contents()
    assert names[:3] == ["Mon 16 Nov", "Tue 17", "Wed 18"]
    assert len(names) == 14
    assert plain.locator("symbol text.weekend").all_text_contents() == ["Sat 21", "Sun 22", "Sat 28", "Sun 29"]
    fills = plain.evaluate("[...document.querySelectorAll('.day')].map((one) => getComputedStyle(one).fill !== 'none')")
    assert [number for number, filled in enumerate(fills) if filled] == [5, 6, 12, 13]


def test_now_is_marked(plain: Page) -> None:
    assert {line.get_attribute("x1") for line in plain.locator(".bars > .now").all()} == {f"{100 * 0.5 / 14:.3f}%"}


def test_the_full_text_is_the_tooltip_of_a_bar(plain: Page) -> None:
    title = plain.locator("#atlas .one title").first.text_content()
    assert title == "until Fri 20 Nov 18:00 · atlas:0,1 · alice · ICML run"


def test_the_list_has_every_booking_with_when_where_who_and_what(plain: Page) -> None:
    rows = [
        " | ".join(cell.strip() for cell in row.locator("th, td").all_text_contents())
        for row in plain.locator("#_list tbody tr").all()
    ]
    assert rows == [
        "until Fri 20 Nov 18:00 | atlas | 0, 1 | alice | ICML run",
        "Mon 16 Nov 09:00 – 18:00 | hydra | 3, 5 | bob | teaching",
        "Tue 17 Nov 00:00 – Thu 19 Nov 00:00 | atlas | 3 | carol | demo",
        "Wed 18 Nov 00:00 – Sun 22 Nov 00:00 | atlas | 3 | dave | later",
        "Wed 18 Nov 09:00 – 18:00 | hydra | 3, 5 | bob | teaching",
        "Thu 19 Nov 00:00 – Sat 26 Dec 00:00 | nile | 0 | noor | ",
        "Sat 21 Nov 00:00 – Sun 22 Nov 00:00 | nile | 9 | noor | ",
        "Mon 23 Nov 09:00 – 18:00 | hydra | 3, 5 | bob | teaching",
        "Wed 25 Nov 09:00 – 18:00 | hydra | 3, 5 | bob | teaching",
        "Thu 26 Nov 00:00 – 12:00 | hydra | all GPUs | admin | new fans",
    ]


def test_the_zone_of_the_times_is_reported(plain: Page) -> None:
    expect(plain.locator(".about")).to_contain_text("Times are in Europe/Paris.")


def test_every_link_leads_somewhere(plain: Page, lab: Lab) -> None:
    link_targets = {link.get_attribute("href") or "" for link in plain.locator("a").all()}
    assert {"index.html", "bookings.ics", "hosts/atlas.html", "bookings/hosts/atlas.ics", "#atlas"} <= link_targets
    assert "bookings/people/alice.ics" in link_targets
    lost = [
        link_target
        for link_target in link_targets
        if not (plain.locator(link_target).count() if link_target[0] == "#" else (lab.www / link_target).is_file())
    ]
    assert lost == []


@pytest.mark.slow
def test_the_board_and_the_hosts_pages_lead_to_the_calendar_and_back(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        page.get_by_role("link", name="Board", exact=True).click()
        page.get_by_role("link", name="Calendar", exact=True).click()
        page.locator("#atlas h3 a").first.click()
        expect(page).to_have_url(f"{site.url}hosts/atlas.html")
        page.get_by_role("link", name="Calendar", exact=True).click()
        expect(page).to_have_url(f"{site.url}bookings.html")
        page.goto(f"{site.url}bookings.html#nile")
        expect(page.locator(".plan:target h3")).to_be_in_viewport()


def test_a_lab_without_bookings_has_a_calendar_that_says_so(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host()
    build(lab)
    text = (lab.www / "bookings.html").read_text()
    assert "No bookings in these two weeks." in text
    assert "1 host has no booking" in text


# Viewers in other zones


def read_columns(page: Page) -> list[tuple[str, float, float]]:
    """The columns of the days: the name of each, and from where to where it goes, in hours from the first midnight."""
    columns: list[tuple[str, float, float]] = page.evaluate(
        """() => [...document.querySelectorAll("symbol svg")].map((column) => {
            const [x, width] = ["x", "width"].map((name) => parseFloat(column.getAttribute(name)) * 14 * 24 / 100);
            return [column.textContent, Math.round(x * 100) / 100, Math.round((x + width) * 100) / 100];
        })"""
    )
    return columns


@pytest.mark.slow
def test_a_viewer_in_another_zone_sees_their_own_days_and_times(browser: Browser, site: Site) -> None:
    with opened(browser, site, timezone_id="Asia/Tokyo") as page:
        bars_by_text = bars(page, "atlas")
        expect(page.locator(".about h2")).to_have_text("Bookings from Mon 16 Nov to Mon 30 Nov")
        expect(page.locator(".about")).to_contain_text("Times are yours (Tokyo); lab: Paris.")
        expect(page.locator(".age")).to_contain_text("as of 20:00")
        columns = read_columns(page)
        assert len(columns) == 15
        assert [tuple(column) for column in columns[:3]] == [
            ("Mon 16", 0, 16),
            ("Tue 17", 16, 40),
            ("Wed 18", 40, 64),
        ]
        assert tuple(columns[-1]) == ("", 328, 336)
        names = page.locator("symbol text.weekend").all_text_contents()
        assert names == ["Sat 21", "Sun 22", "Sat 28", "Sun 29"]
        assert page.locator("symbol text.today").all_text_contents() == ["Mon 16"]
        assert days_of(bars_by_text["carol demo"][0]) == [1, 3]  # the picture is of the same two weeks
        titles = page.locator("#atlas .one title").all_text_contents()
        assert titles[0] == "until Sat 21 Nov 02:00 (lab: Fri 18:00) · atlas:0,1 · alice · ICML run"
        rows = page.locator("#_list tbody th").all_text_contents()
        assert rows[:3] == [
            "until Sat 21 Nov 02:00 (lab: Fri 18:00)",
            "Mon 16 Nov 17:00 – Tue 17 Nov 02:00 (lab: Mon 09:00 – 18:00)",
            "Tue 17 Nov 08:00 – Thu 19 Nov 08:00 (lab: 00:00 – 00:00)",
        ]


@pytest.mark.slow
def test_days_begin_at_midnight_also_where_clocks_differ_by_half_hours(browser: Browser, site: Site) -> None:
    with opened(browser, site, timezone_id="America/St_Johns") as page:
        columns = read_columns(page)
        assert [tuple(column) for column in columns[:3]] == [
            ("", 0, 4.5),
            ("Mon 16 Nov", 4.5, 28.5),
            ("Tue 17", 28.5, 52.5),
        ]
        assert page.locator("symbol text.today").all_text_contents() == ["Mon 16 Nov"]


@pytest.mark.slow
@pytest.mark.parametrize("timezone_id", ["Europe/Berlin", "Africa/Lagos"])
def test_a_viewer_whose_clock_is_the_labs_sees_no_second_time(browser: Browser, site: Site, timezone_id: str) -> None:
    with opened(browser, site, timezone_id=timezone_id) as page:
        expect(page.locator(".about")).to_contain_text("Times are in Europe/Paris.")
        expect(page.locator(".about h2")).to_have_text("Bookings from Mon 16 Nov to Sun 29 Nov")
        assert len(read_columns(page)) == 14
        assert "lab" not in page.locator("main").inner_text().replace("atlas", "")
        assert page.locator("#_list tbody th").nth(1).text_content() == "Mon 16 Nov 09:00 – 18:00"


@pytest.mark.slow
def test_where_the_clocks_differ_for_a_part_of_the_two_weeks_only_that_part_has_two_times(
    browser: Browser, tmp_path: Path
) -> None:
    """In Paris summer time ends on 25 October, in Johannesburg there is none: the clocks agree until then."""
    lab = Lab(tmp_path)
    lab.host()
    days = {
        str(day): {"name": "eve", "from": f"2026-10-{day} 09:00", "date": f"2026-10-{day} 18:00"} for day in (24, 26)
    }
    lab.book({"atlas": days})
    moment = datetime(2026, 10, 20, 12, tzinfo=PARIS)
    build(lab, moment.timestamp() - NOW)
    with (
        served(lab.www, tmp_path / "server") as site,
        opened(browser, site, timezone_id="Africa/Johannesburg") as page,
    ):
        rows = page.locator("#_list tbody th").all_text_contents()
        assert rows == ["Sat 24 Oct 09:00 – 18:00", "Mon 26 Oct 10:00 – 19:00 (lab: 09:00 – 18:00)"]
        expect(page.locator(".about")).to_contain_text("Times are yours (Johannesburg); lab: Paris.")
        widths = {round(end - start) for _, start, end in read_columns(page)}
        assert widths == {24, 1}


# Clocks that change


@pytest.mark.parametrize(
    ("moment", "hours"), [(datetime(2026, 10, 20, 12), 25), (datetime(2027, 3, 20, 12), 23)], ids=["back", "forward"]
)
def test_a_day_on_which_the_clocks_change_is_as_long_as_it_is(moment: datetime, hours: int) -> None:
    now = Now(moment.replace(tzinfo=PARIS).timestamp(), PARIS)
    begins, ends = (datetime(moment.year, moment.month, 21, hour, tzinfo=PARIS) for hour in (6, 18))
    booking = Booking("atlas", "0", "alice", ends, begins, rrule="FREQ=DAILY")
    calendar = booking_calendar.build_calendar(
        [booking_calendar.CalendarHost("atlas", (booking,), (GpuIdentity(0, None),))], PrivacySettings(), now
    )
    days = booking_calendar.build_calendar_day_columns(calendar.midnights)
    widths = [float(width) for _, width, _, _ in days]
    odd = {name: width for (_, width, _, name), wide in zip(days, widths) if abs(wide - widths[0]) > 0.05}
    assert list(odd) == [f"Sun {25 if hours == 25 else 28}"]
    assert sum(widths) == pytest.approx(100, abs=0.02)
    assert float(next(iter(odd.values()))) / widths[0] == pytest.approx(hours / 24, abs=0.002)
    first, last = calendar.midnights[0].timestamp(), calendar.midnights[-1].timestamp()
    for time in calendar.occurrences:  # each of them lies in its own day
        assert time.begins
        place = booking_calendar.compute_position_percent(time.begins.timestamp(), first, last)
        (left, width) = next((float(x), float(w)) for x, w, _, n in days if n.split()[1] == str(time.begins.day))
        assert left < place < left + width / 3
        assert (time.begins.hour, time.ends.hour) == (6, 18)


# Looks


def test_a_look_goes_with_the_name_alone(tmp_path: Path) -> None:
    """Somebody else who books, or no longer does, changes nobody's colour."""
    names = [f"user{number}" for number in range(40)]

    def find_looks(folder: Path, people: Sequence[str]) -> dict[str, str]:
        lab = Lab(folder)
        lab.host()
        lab.book({"atlas": {"0": [one(name, 0, 1) for name in people]}})
        build(lab)
        html = (lab.www / "bookings.html").read_text()
        looks = re.findall(r'<li class=who\d+ data-names="([^"]*)"><svg class="one (h\d+)"[^>]*>(.*?)</svg>', html)
        return {name: hue + pattern for name, hue, pattern in looks}

    (tmp_path / "all").mkdir()
    (tmp_path / "few").mkdir()
    everybody, few = find_looks(tmp_path / "all", names), find_looks(tmp_path / "few", names[7:9])
    assert set(everybody) == set(names)
    assert few == {name: everybody[name] for name in names[7:9]}


def test_the_name_on_a_short_bar_is_not_cut(plain: Page) -> None:
    boxes = plain.evaluate(
        """() => [...document.querySelectorAll("#hydra .one")].filter((one) => one.textContent.includes("bob"))
            .map((one) => [getComputedStyle(one).overflow, getComputedStyle(one.querySelector("tspan")).display])"""
    )
    assert boxes
    assert {tuple(box) for box in boxes} == {("visible", "none")}


def test_the_line_of_now_crosses_no_name(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host(gpus=gpu(0) + gpu(1, uuid="GPU-1"))
    lab.book({"atlas": {"0": one("alice", 0, 2), "1": one("bob", 2, 3)}})
    build(lab)
    chart = (lab.www / "bookings.html").read_text().partition('aria-label="Bookings of atlas')[2]
    drawn = re.findall(r"<line class=now x1=\"([\d.]+)%|<text x=7 [^>]*>(\w+)", chart)
    assert drawn == [("3.571", ""), ("24.997", ""), ("", "alice"), ("", "bob")]  # noon of 14 days, and of these two


def test_looks_differ_between_people() -> None:
    looks = {booking_calendar.choose_calendar_style(f"user{number}") for number in range(2000)}
    assert len(looks) > 750  # of 864


def test_a_person_has_the_same_look_on_every_host_and_in_the_list_of_people(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    for host in ("atlas", "hydra"):
        lab.host(host)
    (lab.data / "aliases.csv").write_text("al, alice\n")
    lab.book({"atlas": {"0": one("al", 0, 1)}, "hydra": {"0": [one("Alice", 0, 1), one("bob", 1, 2)]}})
    build(lab)
    text = (lab.www / "bookings.html").read_text()
    looks = re.findall(r'<svg class="one (h\d+) (who\d)"', text)
    assert len(looks) == 3
    assert len(set(looks)) == 2
    assert re.findall(r"<li class=who1 data-names=\"([^\"]*)\"", text) == ["alice\nal"]


# Whose


@pytest.mark.slow
@pytest.mark.parametrize("me", ["bob", " BOB "])
def test_what_is_mine_stands_out(browser: Browser, site: Site, me: str) -> None:
    with opened(browser, site, me=me) as page:
        marked = page.locator(".one.mine text").all_text_contents()
        assert {text.strip() for text in marked} == {"bob teaching"}
        assert page.locator("#_list tr.mine").count() == 4
        wide = page.locator(".one.mine rect").first.evaluate("(one) => getComputedStyle(one).strokeWidth")
        assert wide == "4px"


@pytest.mark.slow
@pytest.mark.parametrize("me", ["", "nobody", "[x]"])
def test_who_has_no_booking_or_no_name_sees_no_mark(browser: Browser, site: Site, me: str) -> None:
    with opened(browser, site, me=me) as page:
        expect(page.locator(".plan")).to_have_count(3)
        assert page.locator(".mine").count() == 0


# An open page


@pytest.mark.slow
def test_a_page_that_nobody_touches_is_loaded_again_and_one_in_use_is_not(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        page.evaluate("window.marker = 1")
        page.locator(".others summary").click()
        page.clock.run_for(320_000)
        assert page.evaluate("window.marker") == 1
        page.locator(".others summary").click()
        with page.expect_navigation():
            page.clock.run_for(100_000)
        assert page.evaluate("window.marker") is None


@pytest.mark.slow
def test_a_page_whose_server_is_away_stays(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        page.evaluate("window.marker = 1")
        page.route("**/bookings.html", lambda route: route.abort())
        with page.expect_request("**/bookings.html"):
            page.clock.run_for(320_000)
        expect(page.locator(".plan")).to_have_count(3)
        assert page.evaluate("window.marker") == 1


@pytest.mark.slow
def test_a_page_that_no_builder_renews_says_that_it_is_old(browser: Browser, site: Site) -> None:
    with opened(browser, site) as page:
        page.clock.run_for(20_000)
        expect(page.locator(".age strong")).to_be_hidden()
        page.clock.set_system_time(NOON + timedelta(hours=2))
        page.locator(".others summary").click()
        page.clock.run_for(20_000)
        expect(page.locator(".age")).to_have_text("Old: as of Mon 16 Nov 12:00")


# Hostile text


@pytest.fixture(scope="module")
def attacked(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("attacked")
    lab = Lab(folder)
    for host in HOSTILE:
        lab.host(host)
    lab.book({host: {"0": one(text, 0, 9, text), text: one("x", 1, 2)} for host, text in HOSTILE.items()})
    build(lab)
    with served(lab.www, folder / "server") as site, opened(browser, site) as page:
        yield page


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTILE)
def test_hostile_text_is_shown_and_nothing_else(attacked: Page, host: str) -> None:
    hostile_text = HOSTILE[host].replace("\u202e", "?")
    title = attacked.locator(f"#{host} .one title").first.text_content() or ""
    assert title.endswith(f" · {hostile_text}")
    assert (
        attacked.locator(f"#_list tr:has(a[href='#{host}']) td:last-child span").first.text_content() or ""
    ) == hostile_text


def test_hostile_text_makes_no_element_and_runs_nothing(attacked: Page) -> None:
    assert attacked.evaluate("window.alerts") == 0
    assert attacked.locator("script").count() == 3
    assert attacked.locator("img, iframe, object, embed, form, base, [onload], [onerror], [style]").count() == 0
    assert attacked.locator(".plan").count() == len(HOSTILE)


@pytest.mark.parametrize("width", [320, PHONE, 965, LAPTOP])
def test_hostile_text_does_not_break_the_layout(attacked: Page, width: int) -> None:
    attacked.set_viewport_size({"width": width, "height": 900})
    assert attacked.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_users_that_are_not_shown_are_nowhere(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    build(lab, privacy=PrivacySettings(users=False))
    text = (lab.www / "bookings.html").read_text()
    words = ("alice", "bob", "carol", "admin", "noor", "ICML", "teaching", "new fans", "people/")
    assert [word for word in words if word in text] == []
    assert set(re.findall(r'<svg class="one ([^" ]*)', text)) == {"h0"}
    assert "Mon 16 Nov 09:00 – 18:00" in text


# Every screen, every eye


@pytest.mark.parametrize("width", [320, PHONE, 965, LAPTOP, 2560])
def test_the_page_does_not_scroll_sideways_but_the_chart_may(plain: Page, width: int) -> None:
    plain.set_viewport_size({"width": width, "height": 900})
    assert plain.evaluate("document.documentElement.scrollWidth <= innerWidth")
    wider = plain.evaluate(
        "document.querySelector('.chart').scrollWidth > document.querySelector('.chart').clientWidth"
    )
    assert wider == (width < 1100)
    plain.set_viewport_size({"width": LAPTOP, "height": 900})


@pytest.mark.slow
def test_on_a_phone_the_names_of_hosts_and_rows_stay_in_sight(browser: Browser, site: Site) -> None:
    with opened(browser, site, PHONE) as page:
        before = [page.locator(f"#hydra {part}").bounding_box() for part in ("h3", ".labels")]
        page.evaluate("document.querySelector('.chart').scrollLeft = 400")
        after = [page.locator(f"#hydra {part}").bounding_box() for part in ("h3", ".labels")]
        assert [position and position["x"] for position in after] == [position and position["x"] for position in before]


@pytest.mark.slow
def test_axe_finds_no_accessibility_fault(browser: Browser, site: Site) -> None:
    with opened(browser, site, me="alice") as page:
        page.evaluate("document.querySelector('details').open = true")
        page.clock.resume()
        for rules in each_view(page):
            assert run_axe(page, rules).faults == []
            # of text in a picture it cannot tell the ground; the test below can
            beside = run_axe(page, ["color-contrast"], {"exclude": "svg"})
            assert beside.contrast_count > 30
            assert beside.unclear_contrast == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_text_of_every_hue_can_be_read(browser: Browser, site: Site, scheme: Literal["light", "dark"]) -> None:
    with opened(browser, site, color_scheme=scheme) as page:
        contrasts = page.evaluate(
            """(hues) => [...Array(hues).keys()].map((hue) => {
                const one = document.querySelector("#atlas .one");
                one.setAttribute("class", `one h${hue}`);
                const light = (colour) => {
                    const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => part / 255)
                        .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
                    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
                };
                const ink = light(getComputedStyle(one.querySelector("text")).fill);
                const ground = light(getComputedStyle(one.querySelector("rect")).fill);
                return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
            })""",
            booking_calendar.HUE_COUNT,
        )
        assert len(contrasts) == booking_calendar.HUE_COUNT
        assert min(contrasts) >= 7


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(PHONE, 44), (LAPTOP, 24)])
def test_links_can_be_hit_by_a_thumb(browser: Browser, site: Site, width: int, height: int) -> None:
    with opened(browser, site, width) as page:
        small = page.evaluate(
            """(height) => [...document.querySelectorAll("main a, main summary")]
                .filter((one) => one.getBoundingClientRect().height < height).map((one) => one.outerHTML)""",
            height,
        )
        assert small == []


@pytest.mark.slow
def test_on_paper_nothing_is_cut_and_people_have_different_patterns(browser: Browser, site: Site) -> None:
    with opened(browser, site, 1047, color_scheme="dark") as page:
        page.emulate_media(media="print", color_scheme="dark")
        place = page.evaluate(
            "[...document.querySelectorAll('.chart, .plan, .bars')].map((one) => one.getBoundingClientRect().right)"
        )
        assert max(place) <= 1047
        assert page.locator(".bar nav").is_hidden()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        looks = page.evaluate(
            """() => [...document.querySelectorAll(".people li")].map((one) =>
                one.querySelector(".pattern")?.getAttribute("fill") ?? "none")"""
        )
        assert len(set(looks)) > 2
        paper = page.pdf(prefer_css_page_size=True)
    assert paper.startswith(b"%PDF")
    sizes = {tuple(map(float, page_size)) for page_size in re.findall(rb"/MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", paper)}
    assert sizes
    assert all(wide > high for wide, high in sizes)


@pytest.mark.slow
def test_the_html_is_valid(lab: Lab, plain: Page, attacked: Page, tmp_path: Path) -> None:
    assert find_parse_errors(lab.www / "bookings.html") == []
    assert validate_elements(tmp_path, {"plain": plain.content(), "attacked": attacked.content()}) == ""


@pytest.mark.slow
def test_no_two_elements_have_one_id(tmp_path: Path, browser: Browser) -> None:
    lab = Lab(tmp_path)
    names = ("m1", "days", "list", "people", "h0", "chart")
    for host in names:
        lab.host(host)
    lab.book({host: {"0": one("alice", 0, 1)} for host in names})
    build(lab)
    with served(lab.www, tmp_path / "server") as site, opened(browser, site) as page:
        element_ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(element_ids) == len(set(element_ids))
    assert set(names) < set(element_ids)


# When it is written


@pytest.mark.slow
def test_bookings_html_is_written_when_bookings_change_and_every_half_hour(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)

    def is_written(after: float) -> bool:
        return "bookings.html" in build(lab, after).written_files

    assert is_written(0)
    assert not is_written(10)
    assert not is_written(1790)
    assert is_written(1800)
    lab.host("volga")
    assert is_written(1810)
    lab.book({"atlas": {"0": one("alice", 0, 1)}})
    assert is_written(1820)
    assert not is_written(1830)


def test_the_calendar_begins_with_the_current_day(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    builder = Builder(lab.settings(zone=PARIS))
    builder.build(NOW)
    builder.build(NOW + DAY / 2)
    text = (lab.www / "bookings.html").read_text()
    assert ">Tue 17 Nov</text>" in text
    assert ">Mon 16 Nov</text>" not in text


# Many


def test_more_than_can_be_read_is_counted() -> None:
    now = Now(NOW, PARIS)
    until = NOON + timedelta(days=1)
    hosts = [
        booking_calendar.CalendarHost(
            f"gpu{n}",
            tuple(Booking(f"gpu{n}", "0", "x", until, id=str(k)) for k in range(500)),
            (GpuIdentity(0, None),),
        )
        for n in range(10)
    ]
    calendar = booking_calendar.build_calendar(hosts, PrivacySettings(), now)
    assert len(calendar.occurrences) == booking_calendar.MAX_OCCURRENCES
    assert calendar.omitted_count == 5000 - booking_calendar.MAX_OCCURRENCES


def test_the_days_begin_at_midnight_of_the_zone() -> None:
    calendar = booking_calendar.build_calendar([], PrivacySettings(), Now(NOW, PARIS))
    assert [midnight.date() for midnight in calendar.midnights] == [
        date(2026, 11, 16) + timedelta(days=n) for n in range(15)
    ]
    assert {(midnight.hour, midnight.tzinfo) for midnight in calendar.midnights} == {(0, PARIS)}
