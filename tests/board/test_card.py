"""GPUs in MIG mode on the page, in a real browser: instances under their GPU, found, copied and booked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.board_fixture import Lab, person, process
from tests.support.board_fixture import gpu as gpu_row
from tests.support.browser import Site, open_page, served, wait_until
from tests.support.mig_fixtures import lab_in, push, readable
from tests.support.page_checks import find_accessibility_faults, remove_charts

SHOWN = """() => [...document.querySelectorAll('.gpus > tbody > tr')].filter((one) => one.checkVisibility())
    .map((one) => one.cells[0].textContent)"""
WIDE = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Site]]:
    folder = tmp_path_factory.mktemp("mig")
    with readable():
        lab = lab_in(folder / "lab")
        until = "2040-01-01 12:00+00:00"
        bookings = {
            "atlas": {"0:2": {"name": "bob", "date": until}, "0": {"name": "dora", "from": "2039-12-01", "date": until}}
        }
        (lab.data / "comments.json").write_text(json.dumps(bookings))
        lab.build()
        with served(lab.www, folder / "server") as web_server:
            yield lab, web_server


@pytest.fixture
def page(browser: Browser, site: tuple[Lab, Site]) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    board_page = context.new_page()
    board_page.goto(site[1].url)
    wait_until(board_page, "() => document.querySelector('button.copy') !== null")
    yield board_page
    context.close()


def rows(page: Page) -> list[str]:
    row_texts: list[str] = page.evaluate(SHOWN)
    return row_texts


@pytest.mark.slow
def test_instances_stand_below_their_gpu(page: Page) -> None:
    assert rows(page) == ["0", "0:0", "0:1", "0:2", "0:3", "1"]
    head = page.locator("tr.mig")
    expect(head.locator("td").nth(0)).to_have_text("MIG")
    expect(head.locator("td").nth(3)).to_have_text("44 °C")
    expect(head).to_contain_text("H100 80 GB: 2 of 4 instances are free: 0:0, 0:3")
    expect(head.locator(".booking")).to_contain_text("dora from")


@pytest.mark.slow
def test_use_is_a_dash_without_a_meter_and_says_why(page: Page) -> None:
    for row in page.locator("tr.mig, tr[data-of]").all():
        cell = row.locator("td").nth(1)
        expect(cell).to_have_text("–")
        expect(cell).to_have_attribute("title", "Not available in MIG mode")
        expect(cell).not_to_have_class("w0")


@pytest.mark.slow
def test_what_is_free_names_instances_by_their_profile(page: Page) -> None:
    expect(page.locator(".free-now")).to_contain_text("H100 1g.10gb 1 of 2 atlas:0:3")


@pytest.mark.slow
def test_a_search_shows_instances_with_their_gpu(page: Page) -> None:
    field = page.locator("form.find [name=q]")
    field.fill("state:busy")
    wait_until(page, "() => document.querySelector('form.find output').textContent === '1 GPU on 1 host'")
    assert rows(page) == ["0", "0:1"]
    field.fill("state:free mem<20")
    wait_until(page, "() => document.querySelector('form.find output').textContent === '1 GPU on 1 host'")
    assert rows(page) == ["0", "0:3"]
    field.fill("state:free mem>60")
    wait_until(page, "() => document.querySelectorAll('.gpus > tbody > tr[hidden]').length === 5")
    assert rows(page) == ["1"]


@pytest.mark.slow
def test_what_is_copied_is_what_cuda_takes(page: Page) -> None:
    titles = page.locator("tr button.copy").evaluate_all("(several) => several.map((one) => one.title)")
    assert titles == [f"Copy CUDA_VISIBLE_DEVICES={device}" for device in ("MIG-0-0", "MIG-0-3", "GPU-1")]


@pytest.mark.slow
def test_numbers_that_move_stay_in_their_rows(page: Page, site: tuple[Lab, Site]) -> None:
    lab, _ = site
    ours = process(gpu="MIG-0-1")
    push(lab, mig="mig 0 0:1=12014", gpus=gpu_row(1, 4, 0), processes=ours, ps=person())
    lab.build(30)
    live_rows = lab.live()["hosts"][0][7]
    assert [live_row[0] for live_row in live_rows] == ["mig", "free", "busy", "booked", "free", "free"]
    page.evaluate("() => pollServer()")
    wait_until(page, "() => document.querySelectorAll('.gpus > tbody > tr')[2].cells[3].textContent.startsWith('12 /')")
    assert rows(page) == ["0", "0:0", "0:1", "0:2", "0:3", "1"]
    assert page.locator("tr[data-of] > td:nth-child(3)[class^=w]").count() == 0
    assert page.locator("tr.mig > td").nth(3).text_content() == "44 °C"


@pytest.mark.slow
def test_the_dialog_offers_the_gpu_and_its_instances(page: Page) -> None:
    page.locator("a.book").first.click()
    boxes = page.locator("dialog fieldset.choose input[value]")
    expect(boxes.first).to_be_visible()
    assert boxes.evaluate_all("(several) => several.map((one) => one.value)") == [
        *("*", "0", "0:0", "0:1", "0:2", "0:3", "1")
    ]
    page.get_by_label("End time").fill("2039-01-01T12:00")
    page.locator("dialog input[value='0:3']").check()
    expect(page.locator("dialog")).to_contain_text("gpuboard book atlas:0:3")
    page.locator("dialog input[value='0']").check()
    expect(page.locator("dialog")).to_contain_text("gpuboard book atlas:0 ")


@pytest.mark.slow
def test_an_address_opens_the_dialog_for_an_instance(page: Page, site: tuple[Lab, Site]) -> None:
    page.goto(f"{site[1].url}?book=atlas:0:3")
    expect(page.locator("dialog input[value='0:3']")).to_be_checked()


@pytest.mark.slow
def test_axe_finds_nothing_and_nothing_is_too_wide(browser: Browser, site: tuple[Lab, Site]) -> None:
    with open_page(browser, site[1].url) as page:
        for url in (site[1].url, f"{site[1].url}hosts/atlas.html"):
            page.goto(url)
            wait_until(page, "() => document.querySelector('button.copy') !== null")
            remove_charts(page)
            assert find_accessibility_faults(page) == []
            for width in (1440, 1000, 390):
                page.set_viewport_size({"width": width, "height": 900})
                assert not page.evaluate(WIDE), (url, width)


def test_hostile_words_of_a_host_stay_within_their_attributes(tmp_path: Path) -> None:
    with readable():
        lab = Lab(tmp_path)
        push(lab, gpus=gpu_row(1, uuid='GPU-"><script>'))
        lab.build()
        assert '"><script>' not in lab.page()
