"""The board in a real browser, over a real web server."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from site_builder.board import pages
from site_builder.core.clock import Now
from site_builder.core.model import HostFacts
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.browser import PATIENCE, Site, at_a_later_second, build, served, wait_until
from tests.support.every_state import make_lab
from tests.support.hostile_texts import HOSTILE, cleaned, is_shown
from tests.support.page_checks import LAPTOP, PHONE, each_view, find_parse_errors, run_axe, validate_elements

WALL = 2560
SINCE = r"since \d{4}-\d\d-\d\d \d\d:\d\d[+-]\d\d:\d\d"
NOTHING_WIDER = """() => {
    const wide = [document.documentElement, ...document.querySelectorAll(".host, .free-now, .problems, .bar, .panel")];
    return wide.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.id || one.className);
}"""


class Built(NamedTuple):
    """A lab with its site, and who serves it."""

    folder: Path
    lab: Lab
    site: Site

    @property
    def html(self) -> str:
        return (self.lab.www / "index.html").read_text()

    @property
    def moment(self) -> datetime:
        """When it was built, to the second."""
        time_match = re.search(r'updated</span> <time class=ago datetime="([^"]+)"', self.html)
        assert time_match
        return datetime.fromisoformat(time_match[1])


@contextmanager
def serving(folder: Path, lab: Lab) -> Iterator[Built]:
    with served(lab.www, folder / "server") as site:
        yield Built(folder, lab, site)


@contextmanager
def opened(browser: Browser, site: Site, width: int = LAPTOP, height: int = 900, **options: Any) -> Iterator[Page]:  # noqa: ANN401 of playwright
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(site.url)
        yield page
    finally:
        context.close()


def unfold(page: Page) -> None:
    """Lay out all of it, also what is out of sight."""
    page.evaluate(
        """() => {
            for (const one of document.querySelectorAll("details:not(.view)")) one.open = true;
            for (const one of document.querySelectorAll(".host")) one.classList.add("full");
            document.styleSheets[0].insertRule(".host { content-visibility: visible !important }");
        }"""
    )


def resize(page: Page, width: int) -> Page:
    page.set_viewport_size({"width": width, "height": 900})
    return page


@pytest.fixture(scope="module")
def every_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder = tmp_path_factory.mktemp("states")
    with serving(folder, make_lab(folder)) as built:
        yield built


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder = tmp_path_factory.mktemp("hostile")
    lab = Lab(folder)
    listed: list[str] = []
    bookings: dict[str, Any] = {'<img src=x onerror="alert(1)">': {"0": {"name": "x", "date": "2099-01-01"}}}
    soon = datetime.now(timezone.utc) + timedelta(hours=3)
    for name, text in HOSTILE.items():
        rows = gpu(0, 9000, 50, name=text) + gpu(1, name=text)
        facts = f"disk=1000 900 /{text}\ndisk_use=5G /{text}\n"
        lab.host(name, rows, process(name=text), person(user=text, command=text, container=text), facts)
        lab.host(f"{name}-failed")
        lab.write(f"{name}-failed", "gpus.csv", f"# err {text}\n", rc=9)
        lab.host(f"{name}-off")
        listed += [f"{name}, {text}, {one_word(text)}", f"{name}-off, , , maintenance: {text}"]
        booking = {"name": text, "comment": text, "date": "2099-01-01"}
        bookings[name] = {"0": booking, "1": {**booking, "from": soon.isoformat()}}
    (lab.data / "hosts.txt").write_text("\n".join(listed))
    (lab.data / "comments.json").write_text(json.dumps(bookings))
    build(folder)
    with serving(folder, lab) as built:
        yield built


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder = tmp_path_factory.mktemp("odd")
    lab = Lab(folder)
    for name in ("problems", "free", "main", "location", "constructor", "disks"):
        lab.host(name)
    lab.host("sixteen", "".join(gpu(n, 9000, 50) for n in range(16)))
    many = range(100, 140)
    lab.host("crowd", gpu(0, 80000, 99), "".join(process(n, memory=900) for n in many), "".join(map(person, many)))
    (lab.data / "comments.json").write_text('{"nobody": [{"name": "x", "date": "2099-01-01"}]}')
    build(folder)
    with serving(folder, lab) as built:
        yield built


@pytest.fixture
def live(tmp_path: Path, steady_lab: tuple[Path, Lab]) -> Iterator[Built]:
    """A lab that a test may change, whose charts need not be drawn again."""
    lab = Lab(tmp_path)
    shutil.copytree(steady_lab[1].state, lab.state, dirs_exist_ok=True)
    with serving(tmp_path, build_twelve_hosts(tmp_path, lab)) as built:
        yield built


@pytest.fixture(scope="module")
def steady_lab(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lab]:
    folder = tmp_path_factory.mktemp("steady")
    return folder, build_twelve_hosts(folder, Lab(folder))


@pytest.fixture
def steady(steady_lab: tuple[Path, Lab], tmp_path: Path) -> Iterator[Built]:
    """The same lab for all tests that leave it as it is, each with a web server of its own."""
    with served(steady_lab[1].www, tmp_path / "server") as site:
        yield Built(*steady_lab, site)


def build_twelve_hosts(folder: Path, lab: Lab) -> Lab:
    for n in range(12):
        use_host(lab, n, 50)
    build(folder)
    return lab


def use_host(lab: Lab, number: int, use: int) -> None:
    """A host with so much use."""
    rows = "".join(gpu(n, 9000, use, uuid=f"GPU-{number}-{n}") for n in range(4))
    lab.host(f"gpu{number}", rows, process(gpu=f"GPU-{number}-0"), person())


def next_build(built: Built) -> None:
    """Build again, in a later second."""
    with at_a_later_second(built.lab):
        build(built.folder)


def one_word(text: str) -> str:
    return text.replace(" ", "_")


# The page of a host


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        ({"swap_total": "16384", "swap_free": "512"}, [("Swap", "16 GiB, 0.5 GiB free")]),
        ({"swap_total": "16384", "swap_free": "?"}, [("swap_total", "16384"), ("swap_free", "?")]),
        ({"swap_total": "16384"}, [("swap_total", "16384")]),
    ],
)
def test_swap_has_its_unit(extra: dict[str, str], shown: list[tuple[str, str]]) -> None:
    assert list(pages.list_host_page_machine_facts(HostFacts(extra=extra), Now(0, timezone.utc))) == shown


# Without JavaScript


@pytest.fixture(scope="module")
def plain(browser: Browser, every_state: Built) -> Iterator[Page]:
    with opened(browser, every_state.site, java_script_enabled=False) as page:
        yield page


@pytest.mark.slow
def test_without_script_the_totals_are_there(plain: Page) -> None:
    totals = plain.locator(".totals li").all_inner_texts()
    words = [text.replace("\n", " ") for text in totals]
    assert words == ["3 Free", "5 Busy", "1 Held idle", "1 Booked", "1 Booking conflict", "1 Lost", "5 Unknown"]


@pytest.mark.slow
def test_without_script_each_free_gpu_has_a_link_to_its_host(plain: Page) -> None:
    links = plain.locator(".free-now a")
    assert [text.split()[0] for text in links.all_inner_texts()] == ["atlas:2", "hydra:3", "nile:0"]
    links.nth(1).click()
    assert plain.url.endswith("#hydra")
    expect(plain.locator("#hydra")).to_be_in_viewport()


@pytest.mark.slow
def test_without_script_every_host_and_gpu_is_there(plain: Page) -> None:
    hosts = plain.locator(".host h2").all_text_contents()
    assert hosts == ["atlas", "ganges", "hydra", "nile", "pascal", "rhine", "tiber", "volga"]
    assert [plain.locator(f"#{host} > table > tbody > tr").count() for host in hosts] == [4, 1, 4, 5, 2, 1, 0, 0]


def test_without_script_a_process_has_user_command_memory_start_and_container(plain: Page) -> None:
    text = plain.locator("#hydra tr.conflict li").text_content() or ""
    assert re.fullmatch(
        rf"dave python sweep\.py --token=••• · pid 502 · 22 GiB · {SINCE} · docker 3fb1c2a97de4",
        text,
    )


def test_without_script_bookings_say_how_much_is_left(plain: Page) -> None:
    text = plain.locator("#atlas tr.booked .booking").text_content() or ""
    assert re.fullmatch(r"carol until .+ · (19|20) h( \d+ min)? left · unused since \d\d:\d\d · demo", text)


def test_without_script_the_page_loads_itself_again(plain: Page) -> None:
    assert plain.locator("noscript meta[http-equiv=refresh]").get_attribute("content") == "20"


def test_without_script_details_open(plain: Page) -> None:
    panel = plain.locator("#atlas .panel")
    assert not panel.is_visible()
    plain.locator("#atlas summary").click()
    assert "/data/alice" in panel.inner_text()


# What the page may do


@pytest.mark.slow
def test_no_violation_of_the_policy_no_error_and_no_request_to_others(browser: Browser, live: Built) -> None:
    context = browser.new_context()
    page = context.new_page()
    browser_messages: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: browser_messages.append(message.text))
    page.on("pageerror", lambda error: browser_messages.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.clock.install()
    page.goto(live.site.url)
    use_host(live.lab, 0, 77)
    next_build(live)
    page.clock.run_for(10_000)
    expect(page.locator("#gpu0")).to_contain_text("77 %")
    context.close()
    assert browser_messages == []
    assert len(asked) >= 4  # page, style, script, icon or the refresh
    assert {url for url in asked if not url.startswith(live.site.url)} == set()


@pytest.mark.slow
def test_an_inline_script_would_be_refused(browser: Browser, every_state: Built) -> None:
    with opened(browser, every_state.site) as page:
        page.evaluate(
            "() => { const s = document.createElement('script'); s.text = 'window.ran = 1'; document.body.append(s) }"
        )
        assert page.evaluate("window.ran") is None


@pytest.mark.slow
@pytest.mark.parametrize("script", [True, False])
def test_no_style_and_no_script_stands_in_the_page_itself(browser: Browser, every_state: Built, script: bool) -> None:
    with opened(browser, every_state.site, java_script_enabled=script) as page:
        assert page.locator("[style], style, script:not([src])").count() == 0
        assert handlers(page) == []


def handlers(page: Page) -> list[str]:
    """Attributes that would run something."""
    attribute_names: list[str] = page.locator("html").evaluate(
        """(html) => [...html.querySelectorAll("*")].flatMap((one) => one.getAttributeNames())
            .filter((name) => name.startsWith("on"))"""
    )
    return attribute_names


# Hostile text


@pytest.fixture(scope="module")
def attacked(browser: Browser, hostile: Built) -> Iterator[Page]:
    # without the policy, so that escaping alone must do
    context = browser.new_context(bypass_csp=True, viewport={"width": LAPTOP, "height": 900})
    context.add_init_script("window.alerts = 0; window.alert = () => { window.alerts += 1 }")
    page = context.new_page()
    page.goto(hostile.site.url)
    unfold(page)
    yield page
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_shown_as_text(attacked: Page, name: str) -> None:
    hostile_text = HOSTILE[name]
    card = attacked.locator(f"[id='{name}']")
    row = card.locator("tr.busy")
    shown = {
        "user": (row.locator("li > b").text_content(), hostile_text),
        "command": (row.locator("li > code").text_content(), hostile_text),
        "container": ((row.locator("li").text_content() or "").split(" · ", 4)[4], hostile_text),
        "title": (card.locator(".title").text_content(), hostile_text),
        "tag": (card.locator(".tag").text_content(), one_word(hostile_text)),
        "booking": (row.locator(".booking b").text_content(), hostile_text),
        "comment": ((row.locator(".booking .soft").text_content() or "")[2:], hostile_text),
        "mount": (card.locator(".panel th[scope=row]").nth(0).text_content(), f"/{hostile_text}"),
        "by person": (card.locator(".panel th[scope=row]").nth(1).text_content(), f"/{hostile_text}"),
        "maintenance": (
            (attacked.locator(f"[id='{name}-off'] .reason").text_content() or "").removesuffix(".").lower(),
            hostile_text.lower(),
        ),
        "error": (
            (attacked.locator(f"[id='{name}-failed'] .reason").text_content() or "")
            .removeprefix("nvidia-smi ended with exit code 9: ")
            .removesuffix("."),
            hostile_text,
        ),
    }
    assert {field: shown_text for field, (shown_text, text) in shown.items() if not is_shown(shown_text, text)} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_of_a_gpu_is_shown_as_text(attacked: Page, name: str) -> None:
    hostile_text = cleaned(HOSTILE[name])
    models = attacked.locator(f"[id='{name}'] .models").text_content() or ""
    free = attacked.locator(".free-now p").filter(has=attacked.locator(f"a[href='#{name}']")).locator("> span")
    assert is_shown(models.removeprefix("2 × ").removesuffix(" 80 GB"), hostile_text)
    assert is_shown((free.text_content() or "").removesuffix(" 80 GB"), hostile_text)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_in_an_attribute_stays_there(attacked: Page, name: str) -> None:
    title = attacked.locator(f"[id='{name}'] tr.free td:nth-child(2)").get_attribute("title") or ""
    assert is_shown(title.partition("then booked by ")[2], HOSTILE[name])


def test_hostile_text_makes_no_element_and_runs_nothing(attacked: Page) -> None:
    assert attacked.evaluate("window.alerts") == 0
    assert attacked.locator("script").count() == 7
    assert attacked.locator("img, iframe, object, embed, form:not(.find, .need), base").count() == 0
    assert attacked.locator("main a:not(.book, .take, [href^='#'], [href^='hosts/'])").count() == 0
    places = attacked.locator(".host").evaluate_all("(cards) => cards.map((card) => `bookings.html#${card.id}`)")
    assert attacked.locator("a.book").evaluate_all("(all) => all.map((one) => one.getAttribute('href'))") == places
    assert attacked.locator(".host").count() == 3 * len(HOSTILE)
    assert handlers(attacked) == []


def test_a_malformed_host_name_is_shown_as_text(attacked: Page) -> None:
    assert '<img src=x onerror="alert(1)">' in (attacked.locator("#_problems").text_content() or "")


@pytest.mark.parametrize("width", [320, PHONE, 965, LAPTOP, WALL])
def test_hostile_text_does_not_break_the_layout(attacked: Page, width: int) -> None:
    assert resize(attacked, width).evaluate(NOTHING_WIDER) == []


def test_text_that_turns_its_direction_turns_no_other(attacked: Page) -> None:
    item = resize(attacked, LAPTOP).locator("#bidi tr.busy li")
    places = [item.locator(part).bounding_box() for part in ("> b", "> code", "> time")]
    left = [place["x"] for place in places if place]
    assert len(left) == 3
    assert left == sorted(left)


# Every screen, every eye


@pytest.fixture(scope="module")
def board(browser: Browser, every_state: Built) -> Iterator[Page]:
    with opened(browser, every_state.site) as page:
        unfold(page)
        yield page


@pytest.mark.parametrize("width", [320, PHONE, 965, 1285, LAPTOP, WALL])
def test_no_screen_scrolls_sideways(board: Page, width: int) -> None:
    assert resize(board, width).evaluate(NOTHING_WIDER) == []


@pytest.mark.parametrize("width", [965, 1285, LAPTOP, WALL])
def test_processes_have_room(board: Page, width: int) -> None:
    resize(board, width)
    for host in ("atlas", "nile"):
        place = board.locator(f"#{host} tr.busy td:nth-child(7)").first.bounding_box()
        assert place
        assert place["width"] >= 200


@pytest.mark.parametrize("width", [965, 1285, LAPTOP, WALL])
def test_the_titles_of_the_columns_take_one_line(board: Page, width: int) -> None:
    place = resize(board, width).locator("#atlas > table > thead").bounding_box()
    assert place
    assert place["height"] < 35


@pytest.mark.parametrize("width", [PHONE, WALL])
def test_links_and_summaries_can_be_hit_by_a_thumb(board: Page, width: int) -> None:
    small = resize(board, width).evaluate(
        """() => [...document.querySelectorAll("a, summary, button, select, input")]
            .filter((one) => one.checkVisibility())
            .filter((one) => one.getBoundingClientRect().height < 24).map((one) => one.outerHTML)"""
    )
    assert small == []


@pytest.mark.slow
def test_axe_finds_no_accessibility_fault(browser: Browser, every_state: Built) -> None:
    context = browser.new_context(viewport={"width": LAPTOP, "height": 900})
    page = context.new_page()
    page.clock.install(time=datetime.now(timezone.utc) + timedelta(hours=1))
    page.route("**/live.json", lambda route: route.abort())  # so that it says that it is old
    page.goto(every_state.site.url)
    unfold(page)
    expect(page.locator(".age strong")).to_be_visible()
    page.clock.resume()
    for rules in each_view(page):
        # of a cell of two lines over several columns it knows no background; its colours are those of all cells
        report = run_axe(page, rules, {"exclude": "tr.lost > td[colspan]"})
        assert report.contrast_count > 200
        assert report.unclear_contrast == []
        assert report.faults == []
    context.close()


def test_every_state_has_a_word(board: Page) -> None:
    rows = board.evaluate(
        """() => [...document.querySelectorAll(".host > table > tbody > tr")]
            .map((row) => [row.className, row.cells[1].firstChild.data.trim()])"""
    )
    hosts = board.evaluate(
        """() => [...document.querySelectorAll("header > .note > .state")]
            .map((one) => [one.classList[1], one.textContent])"""
    )
    assert {state for state, _ in rows} == {"free", "busy", "held", "booked", "conflict", "lost", "unknown"}
    assert {word for state, word in rows if word != {"held": "held idle"}.get(state, state)} == set()
    assert {state for state, _ in hosts} == {"stale", "down", "maintenance", "unseen", "failed"}
    assert [word for state, word in hosts if state != word] == []


# The HTML itself


@pytest.mark.slow
def test_the_html_is_valid(browser: Browser, every_state: Built, hostile: Built, odd: Built, tmp_path: Path) -> None:
    assert find_parse_errors(*(built.lab.www / "index.html" for built in (every_state, hostile, odd))) == []
    contents = {}
    for name, built in (("states", every_state), ("hostile", hostile)):
        with opened(browser, built.site, java_script_enabled=False) as page:
            contents[name] = page.content()  # with the end tags that we leave out
    assert validate_elements(tmp_path, contents) == ""


# Odd labs


@pytest.fixture(scope="module")
def odd_page(browser: Browser, odd: Built) -> Iterator[Page]:
    with opened(browser, odd.site) as page:
        yield page


@pytest.mark.slow
def test_a_host_may_be_called_as_a_part_of_the_page(odd_page: Page) -> None:
    for name in ("problems", "free", "main", "location", "constructor", "disks"):
        odd_page.locator(f".free-now a[href^='#{name}']").first.evaluate("(link) => { location.hash = link.hash }")
        expect(odd_page.locator(f"section.host#{name}")).to_be_in_viewport()
    odd_page.locator(".problem-count").click()
    expect(odd_page.locator("#_problems")).to_be_in_viewport()


@pytest.mark.slow
def test_element_ids_are_unique(odd_page: Page) -> None:
    names = odd_page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_a_board_with_odd_host_names_is_kept_up_to_date(odd: Built, odd_page: Page) -> None:
    expect(odd_page.locator("#main .gpus td:nth-child(3)").nth(0)).to_contain_text("0 %")
    odd.lab.host("main", gpu(0, 9000, 31))
    next_build(odd)
    odd_page.evaluate("refresh()")
    expect(odd_page.locator("#main .gpus td:nth-child(3)").nth(0)).to_contain_text("31 %")


def test_sixteen_gpus_have_sixteen_rows(odd_page: Page) -> None:
    rows = odd_page.locator("#sixteen > table > tbody th").all_text_contents()
    assert rows == [str(n) for n in range(16)]


def test_twenty_of_forty_processes_are_shown_and_the_rest_counted(odd_page: Page) -> None:
    assert odd_page.locator("#crowd .gpus li").count() == 20
    assert odd_page.locator("#crowd .gpus ul + p").text_content() == "and 20 more processes"


# The script


@contextmanager
def clocked(browser: Browser, built: Built, moment: datetime) -> Iterator[Page]:
    """The board on a clock that the test sets."""
    context = browser.new_context(viewport={"width": LAPTOP, "height": 700})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.clock.install(time=moment)
    page.goto(built.site.url)
    page.evaluate("window.marker = 'not loaded again'")
    yield page
    context.close()


@pytest.fixture
def ticking(browser: Browser, live: Built) -> Iterator[Page]:
    """The board of a lab that the test changes."""
    with clocked(browser, live, datetime.now(timezone.utc)) as page:
        yield page


@pytest.fixture
def still(browser: Browser, steady: Built) -> Iterator[Page]:
    """The board just after it was built."""
    with clocked(browser, steady, steady.moment) as page:
        yield page


def seconds(text: str | None) -> int:
    age_match = re.fullmatch(r"(\d+) s ago", text or "")
    assert age_match, text
    return int(age_match[1])


@pytest.mark.slow
def test_ages_count_up(still: Page) -> None:
    age = still.locator("#gpu0 .facts time")
    before = seconds(age.text_content())
    still.clock.run_for(5000)
    assert 5 <= seconds(age.text_content()) - before < 30  # a busy machine is late


@pytest.mark.slow
def test_the_time_itself_is_in_the_title(still: Page) -> None:
    for time_of in (still.locator("#gpu0 .facts time"), still.locator(".age time")):
        # Chromium's own time stands before it where TZ is a zone that Chromium does not know
        assert (time_of.get_attribute("title") or "").endswith(time_of.get_attribute("datetime") or "?")
    began = still.locator("#gpu0 li time").get_attribute("title") or ""
    assert re.search(SINCE.removeprefix("since ") + "$", began)


@pytest.mark.slow
def test_run_times_are_shown_as_durations(still: Page) -> None:
    assert re.fullmatch(r"1 h( 1 min)?", still.locator("#gpu0 li time").text_content() or "")


@pytest.mark.slow
def test_script_and_builder_agree_on_the_time_left_of_a_booking(
    browser: Browser, plain: Page, every_state: Built
) -> None:
    built = plain.locator("time.left").all_text_contents()
    assert len(built) > 4
    with clocked(browser, every_state, every_state.moment) as page:
        page.clock.set_fixed_time(every_state.moment)
        page.evaluate("document.querySelectorAll('.host').forEach(updateTimes)")
        assert page.locator("time.left").all_text_contents() == built
        page.clock.set_fixed_time(every_state.moment + timedelta(days=30))
        page.evaluate("document.querySelectorAll('.host').forEach(updateTimes)")
        assert set(page.locator("time.left").all_text_contents()) == {"ended"}


@pytest.mark.slow
def test_a_new_build_is_taken_over_without_loading_the_page_again(live: Built, ticking: Page) -> None:
    use_host(live.lab, 5, 83)
    live.lab.host("gpu12", gpu(uuid="GPU-12"))
    (live.lab.data / "hosts.txt").write_text("gpu1, , , hidden\n")
    next_build(live)
    ticking.clock.run_for(10_000)
    expect(ticking.locator("#gpu5 .gpus td:nth-child(3)").nth(0)).to_contain_text("83 %")
    names = [f"gpu{n}" for n in range(13) if n != 1]
    assert ticking.locator(".host h2").all_text_contents() == names
    assert ticking.title() == "1 free · gpuboard"
    assert ticking.evaluate("window.marker") == "not loaded again"


@pytest.mark.slow
def test_open_details_focus_and_target_stay(live: Built, ticking: Page) -> None:
    ticking.goto(f"{live.site.url}#gpu3")
    ticking.locator("#gpu3 summary").click()
    use_host(live.lab, 3, 83)
    next_build(live)
    ticking.clock.run_for(10_000)
    expect(ticking.locator("#gpu3 .gpus td:nth-child(3)").nth(0)).to_contain_text("83 %")
    assert ticking.locator("details[open]").count() == 1
    assert ticking.locator("#gpu3 .panel").is_visible()
    assert ticking.evaluate("document.activeElement.closest('details').id") == "gpu3:disks"
    assert ticking.locator(":target").get_attribute("id") == "gpu3"


@pytest.mark.slow
def test_the_place_on_the_page_stays(live: Built, ticking: Page) -> None:
    ticking.locator("#gpu9").scroll_into_view_if_needed()
    ticking.wait_for_timeout(100)
    place = "document.querySelector('#gpu9').getBoundingClientRect().top"
    before = ticking.evaluate(place)
    assert ticking.evaluate("scrollY") > 500
    for n in range(12):  # of which some grow
        use_host(live.lab, n, 83)
    live.lab.host("aaa", "".join(gpu(n, uuid=f"GPU-a-{n}") for n in range(8)))
    next_build(live)
    ticking.clock.run_for(10_000)
    expect(ticking.locator("#gpu9 .gpus td:nth-child(3)").nth(0)).to_contain_text("83 %")
    ticking.wait_for_timeout(100)
    assert ticking.locator("#aaa").count() == 1
    assert ticking.evaluate(place) == pytest.approx(before, abs=2)


@pytest.mark.slow
def test_a_page_of_another_version_is_loaded_again(live: Built, ticking: Page) -> None:
    path = live.lab.www / "live.json"
    path.write_text(re.sub(r'"version":"\w+"', '"version":"new"', path.read_text()))
    with ticking.expect_navigation():
        ticking.clock.run_for(10_000)
    assert ticking.evaluate("window.marker") is None


@pytest.mark.slow
def test_when_the_server_is_away_the_page_stays_and_says_that_it_is_old(steady: Built, still: Page) -> None:
    steady.site.stop()
    still.clock.run_for(12_000)
    expect(still.locator(".age strong")).to_have_text("Offline, retrying:")
    still.clock.run_for(150_000)
    expect(still.locator(".age")).to_have_text("Out of date, offline, retrying: last update 2 min ago")
    assert still.locator(".host").count() == 12


@pytest.mark.slow
def test_when_the_builder_has_stopped_the_page_says_that_it_is_old(browser: Browser, live: Built) -> None:
    built = live.lab.live()["built"]
    for path in (live.lab.www / "index.html", live.lab.www / "live.json"):
        path.write_text(path.read_text().replace(str(built), str(built - 5 * 60_000)))
    with clocked(browser, live, datetime.now(timezone.utc)) as page:
        expect(page.locator(".age")).to_have_text("Out of date: last update 5 min ago")


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_wrong_makes_no_age_wrong(browser: Browser, live: Built, hours: int) -> None:
    with clocked(browser, live, datetime.now(timezone.utc) + timedelta(hours=hours)) as page:
        page.clock.run_for(10_000)
        wait_until(page, "clockAhead !== 0")
        page.clock.run_for(1000)
        assert 0 <= seconds(page.locator(".age time").text_content()) < 60
        expect(page.locator(".age strong")).not_to_be_visible()


@pytest.mark.slow
def test_the_link_to_the_problems_opens_them(odd_page: Page) -> None:
    odd_page.goto(odd_page.url.partition("#")[0])
    odd_page.locator(".problem-count").click()
    expect(odd_page.locator("#_problems")).to_be_visible()


def test_hosts_without_data_are_named_above_all_cards(plain: Page) -> None:
    text = " ".join((plain.locator(".hosts").text_content() or "").split())
    assert text.startswith("9 hosts") or "hosts ·" in text
    assert "failed:" in text
    assert "down:" in text
    assert "unseen:" in text
