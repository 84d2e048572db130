"""The first screen of the board: its bar, the line that finds GPUs, phones, paper and large fleets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from bench.fleet import fleet
from tests.support.board_fixture import Lab, gpu, person, process, soon
from tests.support.browser import Site, open_page, served, wait_until
from tests.support.every_state import make_lab
from tests.support.large_fleet import LargeFleet
from tests.support.page_checks import find_accessibility_faults
from tests.support.samples import format_topology

HOUR = 3600
PHONE = {"width": 390, "height": 844}
A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"
SHIFTS = """
    window.shift = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
    }).observe({ type: "layout-shift", buffered: true });
"""
SMALL_TARGETS = """() => [...document.querySelectorAll("a, button, select, input, summary")]
    .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.matches(".skip"))
    .filter((one) => one.getBoundingClientRect().height < 43.5).map((one) => one.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The board on which every state is."""
    folder = tmp_path_factory.mktemp("states")
    lab = make_lab(folder)
    with served(lab.www, folder / "server") as site:
        yield site


@pytest.fixture(scope="module")
def wishes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A lab in which GPUs are free for different times."""
    folder = tmp_path_factory.mktemp("wishes")
    lab = Lab(folder)
    rows = "".join(gpu(n, name=A100, uuid=f"GPU-h-{n}") for n in range(4))
    lab.host("hydra", rows)
    lab.host("vega", "".join(gpu(n, name=T4, total=15360, uuid=f"GPU-v-{n}") for n in range(3)))
    lab.host("zeus", gpu(0, 9000, 50, A100, "GPU-z-0"), process(gpu="GPU-z-0"), person())
    bookings = {
        n: {"name": "bob", "from": soon(HOUR * hours), "date": soon(HOUR * 90)} for n, hours in (("0", 3), ("1", 30))
    }
    lab.book({"hydra": bookings})
    lab.build()
    with served(lab.www, folder / "server") as site:
        yield site


def ask(page: Page, count: int = 1, model: str = "", hours: int = 6) -> str:
    """What the line offers, after these choices."""
    page.locator(".need [name=count]").fill(str(count))
    page.locator(".need [name=model]").select_option(model)
    page.locator(".need [name=hours]").select_option(str(hours))
    return page.locator(".need output").inner_text()


# The bar


@pytest.mark.parametrize("width", [1024, 1280, 1440, 1920])
def test_the_bar_is_one_row_of_48_pixels_and_nothing_moves_while_the_page_loads(
    browser: Browser, states: Site, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.add_init_script(SHIFTS)
    page = context.new_page()
    page.goto(states.url)
    wait_until(page, "document.documentElement.classList.contains('ready')")
    page.wait_for_timeout(300)  # shifts are reported a frame later
    bar = page.locator(".bar").bounding_box()
    assert bar
    assert bar["height"] == 48
    centres = page.evaluate(
        """() => [...document.querySelectorAll(".bar > *")].filter((one) => one.checkVisibility())
            .map((one) => one.getBoundingClientRect()).map((place) => (place.top + place.bottom) / 2)"""
    )
    assert all(abs(centre - 24) < 3 for centre in centres)
    assert page.evaluate("shift") <= 0.05
    context.close()


def test_the_bar_says_when_the_page_is_offline_and_the_line_offers_nothing(browser: Browser, wishes: Site) -> None:
    with open_page(browser, wishes.url) as page:
        assert re.search(r"^ ?updated \d+ s ago", page.locator(".age").inner_text())
        expect(page.locator(".need output")).to_contain_text("→ hydra:")
        page.evaluate("problem = 'offline, retrying'; updateAge(); updateNeed()")
        expect(page.locator(".age")).to_contain_text("Offline, retrying:")
        expect(page.locator(".need output")).to_contain_text("Not known")
        assert page.locator(".take").is_hidden()


def test_the_bar_asks_to_reload_the_page_also_where_the_board_is_old(browser: Browser, wishes: Site) -> None:
    with open_page(browser, wishes.url) as page:
        page.evaluate("document.body.append(Object.assign(document.createElement('dialog'), { open: true }))")
        shown = "reloadPage(); updateAge(); document.querySelector('.age strong').textContent"
        assert page.evaluate(shown) == "Reload the page for a new version:"
        assert page.evaluate(f"built = 0; {shown}") == "Out of date, reload the page for a new version:"


# What somebody needs


@pytest.mark.parametrize(
    ("count", "model", "hours", "offer"),
    [
        (1, "", 1, "→ hydra:0 until"),
        (1, "", 6, "→ hydra:1 until"),  # 0 is booked in 3 hours
        (1, "", 72, "→ hydra:2"),
        (2, "", 6, "→ hydra:1,2 until"),
        (2, "", 72, "→ hydra:2,3"),
        (3, "", 72, "→ vega:0,1,2"),
        (4, "", 1, "→ hydra:0,1,2,3 until"),
        (4, "", 6, "No host has 4 free that long"),
        (3, ">A100 80 GB", 72, "No host has 3 free that long"),
        (2, ">T4 15 GB", 72, "→ hydra:2,3"),
        (2, "=T4 15 GB", 72, "→ vega:0,1"),
    ],
)
def test_the_line_offers_gpus_that_stay_free_so_long(
    browser: Browser, wishes: Site, count: int, model: str, hours: int, offer: str
) -> None:
    with open_page(browser, wishes.url) as page:
        label = model.replace("T4 15 GB", page.evaluate("readAvailable().models[1][0]"))
        assert ask(page, count, label, hours).startswith(offer)


def test_the_line_offers_gpus_that_are_linked(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    for host in ("ares", "hydra"):
        lab.host(host, "".join(gpu(n, uuid=f"GPU-{host}-{n}") for n in range(4)))
    lab.write("hydra", "host.txt", format_topology("580-four-in-pairs"))
    lab.book({"hydra": {"0": {"name": "bob", "date": soon(HOUR * 90)}}})
    lab.build()
    with served(lab.www, tmp_path / "server") as site, open_page(browser, site.url) as page:
        assert ask(page, 2) == "→ hydra:2,3"
        assert ask(page, 1) == "→ ares:0"
        assert ask(page, 3) == "→ ares:0,1,2"
        lab.book({})
        lab.host("ares", gpu(0, 40000, 50))
        lab.build()
        page.reload()
        assert ask(page, 3) == "→ hydra:0,1,2"


def test_the_line_keeps_its_choice_for_the_next_visit(browser: Browser, wishes: Site) -> None:
    with open_page(browser, wishes.url) as page:
        ask(page, 2, ">A100 80 GB", 24)
        page.reload()
        expect(page.locator(".need output")).to_contain_text("→ hydra:1,2")
        assert page.locator(".need [name=model]").input_value() == ">A100 80 GB"


def test_a_chip_and_the_line_open_the_dialog_with_those_gpus(browser: Browser, wishes: Site) -> None:
    with open_page(browser, wishes.url) as page:
        ask(page, 2, "", 72)
        page.get_by_role("link", name="Book hydra:2,3").click()
        chosen = page.locator("dialog input[value]:checked")
        expect(chosen).to_have_count(2)
        assert chosen.evaluate_all("(boxes) => boxes.map((box) => box.value)") == ["2", "3"]
        # nothing to offer any more, so that the focus cannot return to the line
        page.evaluate("document.querySelector('.need').elements.count.value = 4; updateNeed()")
        page.keyboard.press("Escape")
        expect(page.locator("#hydra a.book")).to_be_focused()
        page.locator(".free-now a", has_text="vega:0,1,2").click()
        expect(page.locator("dialog input[value='2']")).to_be_checked()
        expect(page.locator("dialog")).to_contain_text("Book vega")


# A phone


@pytest.fixture
def phone(browser: Browser, states: Site) -> Iterator[Page]:
    with open_page(browser, states.url, 390, 844, has_touch=True, is_mobile=True) as page:
        wait_until(page, "document.documentElement.classList.contains('ready')")
        yield page


def test_a_phone_shows_a_free_gpu_within_140_pixels_of_the_top(phone: Page) -> None:
    bar, offer = (phone.locator(part).bounding_box() for part in (".bar", ".need output"))
    assert bar
    assert offer
    assert bar["height"] == 48
    assert offer["y"] + offer["height"] <= 140
    expect(phone.locator(".need output")).to_contain_text("→ atlas:2")
    assert phone.locator(".bar .sum").inner_text() == "3 of 17 free"


def test_a_phone_has_targets_for_thumbs_and_fields_that_do_not_zoom(phone: Page) -> None:
    phone.get_by_role("button", name="Search").click()
    phone.locator("#atlas button.fold").click()
    assert phone.evaluate(SMALL_TARGETS) == []
    sizes = phone.locator("input:visible, select:visible").evaluate_all(
        "(fields) => fields.map((field) => parseFloat(getComputedStyle(field).fontSize))"
    )
    assert len(sizes) >= 4
    assert min(sizes) >= 16
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_phone_searches_below_its_bar(phone: Page) -> None:
    assert phone.locator(".find").is_hidden()
    phone.get_by_role("button", name="Search").click()
    expect(phone.locator("[name=q]")).to_be_focused()
    phone.keyboard.type("nile")
    expect(phone.locator("#atlas")).to_be_hidden()


def test_a_phone_shows_what_matches_at_once(phone: Page) -> None:
    phone.get_by_role("button", name="Search").click()
    phone.keyboard.type("nile")
    expect(phone.locator(".free-now")).to_be_hidden()
    place, field = (phone.locator(part).bounding_box() for part in ("#nile", ".find"))
    assert place
    assert field
    assert field["y"] + field["height"] <= place["y"] < 300
    phone.locator("[name=q]").clear()
    expect(phone.locator(".free-now")).to_be_visible()


@pytest.mark.parametrize("width", [360, 390])
def test_numbers_of_a_large_fleet_fit_into_the_bar_of_a_phone(phone: Page, width: int) -> None:
    phone.set_viewport_size({"width": width, "height": 844})
    phone.evaluate(
        """() => {
            document.querySelector(".bar .sum").textContent = "2544 of 8271 free";
            document.querySelector(".age").insertAdjacentHTML("afterend", "<button class=me>Me</button>");
        }"""
    )
    place = phone.locator("button.me").bounding_box()
    assert place
    assert place["x"] + place["width"] <= width


def test_on_a_phone_nothing_that_has_the_focus_is_below_the_links_to_other_pages(phone: Page) -> None:
    covered = phone.evaluate(
        """() => {
            const top = document.querySelector(".bar nav").getBoundingClientRect().top;
            return [...document.querySelectorAll("main :is(a, button, summary)")].filter((one) => {
                one.focus();
                return one.checkVisibility() && one.getBoundingClientRect().bottom > top;
            }).map((one) => one.outerHTML);
        }"""
    )
    assert covered == []


def test_hosts_start_collapsed_on_a_phone(phone: Page) -> None:
    assert phone.locator(".gpus:visible").count() == 0
    phone.locator("#atlas button.fold").click()
    expect(phone.locator("#atlas .gpus")).to_be_visible()


# The line of a host


def test_each_gpu_has_a_square_with_its_state_in_words(browser: Browser, states: Site) -> None:
    with open_page(browser, states.url) as page:
        squares = page.locator("#hydra .squares")
        expect(squares).to_have_attribute("aria-label", re.compile("1 free"))
        titles = squares.locator("i").evaluate_all("(all) => all.map((one) => [one.className, one.title])")
        assert titles[2] == ["busy", "2 A100 40 GB: busy, erin and frank"]
        assert titles[3] == ["free", "3 A100 40 GB: free"]
        looks = page.evaluate(
            """() => Object.values(Object.fromEntries([...document.querySelectorAll(".squares i")].map((one) => {
                const style = getComputedStyle(one);
                const content = getComputedStyle(one, "::before").content;
                return [one.className, [content, style.borderStyle, style.borderRadius, style.backgroundImage].join()];
            })))"""
        )
        assert len(set(looks)) == len(looks) == 7  # told apart by shape too


def test_the_totals_explain_the_squares(browser: Browser, states: Site) -> None:
    with open_page(browser, states.url) as page:
        looks = page.evaluate(
            """() => [...document.querySelectorAll(".totals i")].map((mark) => {
                const square = document.querySelector(`.squares i.${mark.className}`);
                return [mark, square].map((one) => {
                    const style = getComputedStyle(one);
                    const content = getComputedStyle(one, "::before").content;
                    return [content, style.backgroundImage, style.borderStyle, style.borderRadius, style.width].join();
                });
            })"""
        )
        assert len(looks) == 7
        assert [mark for mark, square in looks if mark != square] == []


def test_a_command_takes_one_line_and_all_of_it_on_demand(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    command = f"python train.py {'--option value ' * 12}"
    lab.host("atlas", gpu(0, 9000, 50), process(), person(command=command))
    lab.build()
    with served(lab.www, tmp_path / "server") as site, open_page(browser, site.url) as page:
        line = page.locator("#atlas .gpus li")
        before = line.bounding_box()
        line.locator("code").click()
        after = line.bounding_box()
        assert before
        assert after
        assert before["height"] < 30 < after["height"]


# Paper


def count_pdf_pages(page: Page) -> int:
    page.emulate_media(media="print")
    return len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True, print_background=True)))


def test_fifteen_hosts_are_printed_on_one_page(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    fleet(lab.data, 15)
    lab.build()
    with served(lab.www, tmp_path / "server") as site, open_page(browser, site.url) as page:
        assert count_pdf_pages(page) == 1


def test_paper_has_the_models_and_the_time_however_wide_the_window_is(browser: Browser, states: Site) -> None:
    with open_page(browser, states.url, 800, 600) as page:
        assert page.locator("#hydra .models").is_hidden()
        page.emulate_media(media="print")
        expect(page.locator("#hydra .models")).to_be_visible()
        printed = page.evaluate("getComputedStyle(document.querySelector('.age time'), '::after').content")
        assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", printed)


# Large fleets


@pytest.mark.parametrize(
    ("hosts", "is_collapsed", "has_details"), [(30, False, True), (31, True, True), (201, True, False)]
)
def test_hosts_start_collapsed_past_30_and_without_details_past_200(
    browser: Browser, tmp_path: Path, hosts: int, is_collapsed: bool, has_details: bool
) -> None:
    large = LargeFleet(tmp_path, hosts)
    large.builder.close()
    with served(large.lab.www, tmp_path / "server") as site:
        with open_page(browser, site.url) as page:
            wait_until(page, "document.documentElement.classList.contains('ready')")
            assert (page.locator(".gpus").count() > 0) == has_details
            assert (page.locator(".gpus:visible").count() == 0) == is_collapsed
            assert (page.locator(".free-now details").count() > 0) == is_collapsed
        context = browser.new_context(java_script_enabled=False)
        plain = context.new_page()
        plain.goto(site.url)
        assert (plain.locator(".gpus:visible").count() > 0) == has_details  # without script nothing is hidden
        assert plain.locator("form:visible").count() == 0
        context.close()


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (3840, 2160)])
def test_200_hosts_fit_on_a_wall_screen(browser: Browser, tmp_path: Path, width: int, height: int) -> None:
    large = LargeFleet(tmp_path, 200)
    large.builder.close()
    with (
        served(large.lab.www, tmp_path / "server") as site,
        open_page(browser, f"{site.url}?wall", width, height) as page,
    ):
        wait_until(page, "document.documentElement.style.getPropertyValue('--square') !== ''")
        assert page.evaluate(
            "document.querySelector('main').scrollHeight <= document.querySelector('main').clientHeight + 1"
        )
        assert page.locator(".squares i:visible").count() == 1600
        last = page.locator("main > .host").last.bounding_box()
        assert last
        assert last["y"] + last["height"] <= height


def test_axe_finds_nothing_on_a_collapsed_board_with_its_menu_open(browser: Browser, tmp_path: Path) -> None:
    large = LargeFleet(tmp_path, 31)
    large.builder.close()
    with served(large.lab.www, tmp_path / "server") as site, open_page(browser, site.url) as page:
        page.locator("details.view > summary").click()
        assert find_accessibility_faults(page) == []
