"""hosts/HOST.html: all that is known of one host, in a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from site_builder.core.model import PrivacySettings
from tests.support.board_fixture import GPU_COLUMNS, Lab, gpu, person, process, soon
from tests.support.browser import ServedBoard, at_a_later_second, open_page, serve_board, wait_until
from tests.support.every_state import make_lab
from tests.support.hostile_texts import HOSTILE, is_shown
from tests.support.page_checks import (
    LAPTOP,
    PHONE,
    TOO_WIDE,
    find_accessibility_faults,
    find_parse_errors,
    remove_charts,
    validate_elements,
)

MORE = {
    "fan.speed": "37",
    "clocks.current.sm": "1410",
    "ecc.errors.corrected.volatile.total": "3",
    "driver_version": "550.54.15",
    "serial": "[N/A]",
    "clocks_event_reasons.active": "0x0000000000000024",
}
FACTS = """cpus=96
load=12.5 11.2 10.1
memory_total=1031000
memory_available=800000
uptime=86400
kernel=6.1.0-18-amd64
driver=550.54.15
collector=0.1.0
disk=953869 581860 /
disk=7630885 4654839 /data
disk_use=2.1T /data/alice
interface=eth0 10.0.0.17/24
interface=ib0 192.168.7.1/16
"""
LONG = "python " + "--flag=value " * 300


def write_full(lab: Lab, use: int = 80, fan: str = "37") -> None:
    """A host of which everything is known."""
    cells = {**MORE, "fan.speed": fan}
    rows = [gpu(n, 9000, use, uuid=f"GPU-full-{n}").strip() + f", {', '.join(cells.values())}\n" for n in range(2)]
    lab.host(
        "full",
        processes=process(42, "GPU-full-0") + process(610, "GPU-full-1") + process(77, "GPU-gone"),
        ps=person(42, "alice", LONG, container="docker 3fb1c2a97de4")
        + person(611, "grace", "python worker.py", gpu_pid=610)
        + person(77, "zoe", "python lost.py"),
        facts=FACTS,
    )
    lab.write("full", "gpus.csv", f"{GPU_COLUMNS}, {', '.join(cells)}\n{''.join(rows)}odd row\n")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBoard]:
    folder = tmp_path_factory.mktemp("full")
    lab = Lab(folder)
    write_full(lab)
    booking = {"name": "carol", "comment": "ICML run"}
    lab.book({"full": {"0": [{**booking, "date": soon(5 * 3600)}, {"name": "ivan", "date": soon(-3600)}]}})
    (lab.data / "hosts.txt").write_text("full, In the basement, vision\n")
    lab.build()
    with serve_board(lab, folder) as server:
        yield server


@pytest.fixture(scope="module")
def plain(browser: Browser, full: ServedBoard) -> Iterator[Page]:
    """Its page without JavaScript."""
    with open_page(browser, full.url("full"), java_script_enabled=False) as page:
        yield page


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBoard]:
    folder = tmp_path_factory.mktemp("states")
    with serve_board(make_lab(folder), folder) as server:
        yield server


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBoard]:
    folder = tmp_path_factory.mktemp("hostile")
    lab = Lab(folder)
    bookings, listed = {}, []
    for name, text in HOSTILE.items():
        clean = text.replace("\n", " ")
        rows = gpu(0, 9000, 50, name=clean).strip() + f", {clean}\n"
        lab.host(
            name,
            rows,
            process(name=clean),
            person(user=clean, command=clean, container=clean),
            f"kernel={clean}\n{one_word('key' + clean)}=1\ninterface=eth0 {one_word(clean)}\ndisk=1000 900 /{clean}\n",
        )
        lab.write(name, "gpus.csv", f"{GPU_COLUMNS}, vbios_version\n{rows}")
        listed.append(f"{name}, {clean}, {one_word(clean)}")
        bookings[name] = {"0": {"name": clean, "comment": clean, "date": "2099-01-01"}}
    (lab.data / "hosts.txt").write_text("\n".join(listed))
    lab.book(bookings)
    lab.build()
    with serve_board(lab, folder) as server:
        yield server


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBoard]:
    folder = tmp_path_factory.mktemp("crowded")
    lab = Lab(folder)
    many = range(100, 140)
    lab.host("quotes", gpu(0, 9000, 50), process(), person(command="x" * 4000))
    lab.host("words", gpu(0, 9000, 50), process(), person(user="u" * 300, command=LONG, container="c" * 300))
    lab.host("sixteen", "".join(gpu(n, 9000, 50) for n in range(16)))
    lab.host("crowd", gpu(0, 80000, 99), "".join(process(n, memory=900) for n in many), "".join(map(person, many)))
    (lab.data / "hosts.txt").write_text(f'quotes, "It\'s" <b>{"long" * 50}\nsixteen, {"w " * 100}, {"tag" * 60}\n')
    lab.build()
    with serve_board(lab, folder) as server:
        yield server


def one_word(text: str) -> str:
    return re.sub(r"[\s=]", "_", text)


# All that is known


@pytest.mark.parametrize(
    "text",
    [
        "In the basement",
        "vision",
        "2 × A100 80 GB",
        "12.50 · 11.20 · 10.10",
        "96",
        "1007 GiB",
        "6.1.0-18-amd64",
        "550.54.15",
        "10.0.0.17/24",
        "192.168.7.1/16",
        "/data",
        "/data/alice",
        LONG.strip(),
        "docker 3fb1c2a97de4",
        "kill 611",
        "zoe",
        "python lost.py",
        "carol",
        "ICML run",
        "ivan",
        "GPU-full-1",
    ],
)
def test_without_script_it_is_there(plain: Page, text: str) -> None:
    assert text in " ".join((plain.locator("main").text_content() or "").split())


def test_each_field_of_nvidia_smi_is_there_under_its_name(plain: Page) -> None:
    fields = plain.locator(".fields tbody tr").evaluate_all(
        "(rows) => rows.map((r) => [...r.cells].map((c) => c.textContent.trim()))"
    )
    values_by_field = {name: values for name, *values in fields}
    assert values_by_field["fan.speed"] == ["37", "37"]
    assert values_by_field["clocks.current.sm"] == ["1410", "1410"]
    assert values_by_field["ecc.errors.corrected.volatile.total"] == ["3", "3"]
    assert values_by_field["clocks_event_reasons.active"] == ["power limit, thermal slowdown by the driver"] * 2
    assert values_by_field["memory.used"] == ["9000", "9000"]
    assert "serial" not in values_by_field  # which no GPU tells


def test_problems_of_the_host_are_there(plain: Page) -> None:
    assert "gpus.csv" in (plain.locator("#_problems").text_content() or "")


def test_host_page_and_board_link_to_each_other(browser: Browser, full: ServedBoard) -> None:
    with open_page(browser, full.site.url) as page:
        page.locator("#full h2 a").click()
        expect(page).to_have_title("full · gpuboard")
        page.locator("h1 a").click()
        expect(page.locator(".free-now")).to_be_visible()


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("volga", "couldn't communicate with the NVIDIA driver"),
        ("pascal", "down"),
        ("tiber", "unseen"),
        ("rhine", "New power supply, back on Friday"),
        ("ganges", "stale"),
    ],
)
def test_a_host_that_is_not_fresh_says_why(states: ServedBoard, host: str, why: str) -> None:
    note = re.search(r"<p class=note>(.*?)</p>", states.html(host))
    assert note
    assert len(note[1]) > 10
    assert why in states.html(host).replace("&#x27;", "'").replace("&#39;", "'")


def test_a_booking_of_a_host_without_gpus_is_in_its_list(browser: Browser, states: ServedBoard) -> None:
    with open_page(browser, states.url("tiber"), java_script_enabled=False) as page:
        expect(page.locator("#_bookings td").first).to_have_text("ivan")


# What may not be shown


def test_what_is_not_to_be_shown_of_people_is_not_there(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    write_full(lab)
    path = lab.data / "full/gpus.csv"
    path.write_text(path.read_text().replace("odd row", "bob runs secret.py"))
    lab.book(
        {
            "full": {
                "0": {"name": "carol", "comment": "for dora", "date": soon(3600)},
                "9": {"name": "erin", "date": soon(60)},
            }
        }
    )
    lab.build(privacy=PrivacySettings("none", users=False))
    text = (lab.www / "hosts/full.html").read_text()
    secrets = ("alice", "grace", "zoe", "carol", "dora", "erin", "bob", "--flag", ".py", "python", "3fb1c2a97de4")
    assert [secret for secret in secrets if secret in text] == []
    assert "6.1.0-18-amd64" in text


@pytest.mark.parametrize("how", ["forgotten", "hidden"])
def test_a_host_that_is_gone_has_no_page(tmp_path: Path, how: str) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    lab.host("hydra")
    lab.build()
    assert (lab.www / "hosts/atlas.html").exists()
    if how == "hidden":
        (lab.data / "hosts.txt").write_text("atlas, , , hidden\n")
    else:
        for file in (lab.data / "atlas").iterdir():
            file.unlink()
        (lab.data / "atlas").rmdir()
        (lab.state / "forget").mkdir()
        (lab.state / "forget/atlas").touch()
    lab.build()
    assert [path.name for path in (lab.www / "hosts").iterdir()] == ["hydra.html"]


# Hostile text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_shown_as_text(browser: Browser, hostile: ServedBoard, name: str) -> None:
    hostile_text = HOSTILE[name]
    with open_page(browser, hostile.url(name), bypass_csp=True) as page:
        cells = page.locator("#_processes tbody td").all_text_contents()
        machine = dict(
            zip(page.locator("#_machine dt").all_text_contents(), page.locator("#_machine dd").all_text_contents())
        )
        field = page.locator(".fields tr").filter(has_text="vbios_version").locator("td")
        shown = {
            "user": (cells[1], hostile_text),
            "container": (cells[4], hostile_text),
            "command": (cells[5], hostile_text),
            "kernel": (machine.get("Kernel"), hostile_text),
            "address": (machine.get("eth0"), one_word(hostile_text)),
            "booking": (page.locator("#_bookings td").nth(0).text_content(), hostile_text),
            "comment": (page.locator("#_bookings td").nth(2).text_content(), hostile_text),
            "field": (field.text_content(), hostile_text),
        }
        assert page.evaluate("window.alerts") == 0
        assert page.locator("script").count() == 5
        assert page.locator("img, iframe, object, embed, form, base, [style], [onerror]").count() == 0
        assert page.locator("main a:not(.book, [href='../index.html'])").count() == 0
        assert page.locator("a.book").get_attribute("href") == f"../bookings.html#{name}"
    assert {key: shown_text for key, (shown_text, text) in shown.items() if not is_shown(shown_text, text)} == {}


@pytest.mark.parametrize("host", ["long", "image", "bidi"])
def test_hostile_text_stays_inside(browser: Browser, hostile: ServedBoard, host: str) -> None:
    with open_page(browser, hostile.url(host)) as page:
        for width in (320, PHONE, LAPTOP):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(TOO_WIDE) == [], width


# Much of everything


@pytest.mark.parametrize("host", ["quotes", "words", "sixteen", "crowd"])
def test_no_screen_scrolls_sideways(browser: Browser, crowded: ServedBoard, host: str) -> None:
    with open_page(browser, crowded.url(host)) as page:
        remove_charts(page)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        for width in (320, PHONE, LAPTOP):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(TOO_WIDE) == [], width


def test_forty_processes_on_one_gpu_are_all_listed_with_their_whole_commands(
    browser: Browser, crowded: ServedBoard
) -> None:
    with open_page(browser, crowded.url("crowd")) as page:
        pids = page.locator("#_processes tbody td:nth-child(2)").all_text_contents()
        assert sorted(pids) == [str(n) for n in range(100, 140)]
        page.goto(crowded.url("quotes"))
        assert page.locator("#_processes code").text_content() == "x" * 4000
        assert (page.locator("#quotes .title").text_content() or "").startswith('"It\'s" <b>long')


def test_no_heading_and_no_pid_is_broken_beside_a_long_command(browser: Browser, crowded: ServedBoard) -> None:
    with open_page(browser, crowded.url("quotes"), LAPTOP) as page:
        heads = page.locator("#_processes thead").bounding_box()
        assert heads
        assert heads["height"] < 35
        counts = page.locator("#_processes tbody .n").evaluate_all(
            """(cells) => cells.map((cell) => {
                const range = document.createRange();
                range.selectNodeContents(cell);
                return new Set([...range.getClientRects()].map((line) => line.top)).size;
            })"""
        )
        assert max(counts) == 1


def test_sixteen_gpus_have_sixteen_columns_and_the_keyboard_scrolls_them(
    browser: Browser, crowded: ServedBoard
) -> None:
    with open_page(browser, crowded.url("sixteen"), PHONE) as page:
        assert page.locator(".fields thead th").count() == 17
        page.locator(".scroll").focus()
        page.keyboard.press("ArrowRight")
        wait_until(page, "document.querySelector('.scroll').scrollLeft > 0")


# Live


def test_an_open_host_page_follows_the_board(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    write_full(lab)
    lab.build()
    with serve_board(lab, tmp_path) as server, open_page(browser, server.url("full")) as page:
        use = page.locator("#full .gpus td:nth-child(3)").first
        expect(use).to_contain_text("80 %")
        write_full(lab, 33)
        with at_a_later_second(lab):
            lab.build()
        page.evaluate("refresh()")
        expect(use).to_contain_text("33 %")
        lab.write("full", "processes.csv", "gpu_uuid, pid, used_gpu_memory [MiB], process_name\n")
        with at_a_later_second(lab):
            lab.build()
        page.evaluate("refresh()")
        expect(page.locator("#full .gpus li")).to_have_count(0)
        expect(page.locator("#full h2 a")).to_have_count(0)


def test_within_a_minute_all_of_it_is_new(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    write_full(lab)
    lab.build()
    context = browser.new_context()
    with serve_board(lab, tmp_path) as server:
        page = context.new_page()
        page.clock.install(time=time.time())
        page.goto(server.url("full"))
        fan = page.locator(".fields tr").filter(has_text="fan.speed").locator("td").first
        expect(fan).to_have_text("37")
        page.locator("#full summary").click()
        write_full(lab, fan="99")
        lab.build()
        for _ in range(8):
            page.clock.run_for(10_000)
            page.wait_for_timeout(50)
        expect(fan).to_have_text("99")
        expect(page.locator("#full .panel")).to_be_visible()
        expect(page.locator("#full button.copy").first).to_be_visible()
    context.close()


def test_a_page_whose_host_is_gone_stays_and_says_that_it_does_not_follow(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    write_full(lab)
    lab.host("other")
    lab.build()
    context = browser.new_context()
    with serve_board(lab, tmp_path) as server:
        page = context.new_page()
        page.clock.install(time=time.time())
        page.goto(server.url("full"))
        (lab.data / "hosts.txt").write_text("full, , , hidden\n")
        lab.build()
        for _ in range(8):
            page.clock.run_for(10_000)
            page.wait_for_timeout(50)
        expect(page.locator(".age strong")).to_be_visible()
        expect(page.locator("#full .gpus")).to_be_visible()
    context.close()


def test_a_click_copies_the_command_that_ends_a_dead_family(browser: Browser, full: ServedBoard) -> None:
    with open_page(browser, full.url("full"), permissions=["clipboard-read", "clipboard-write"]) as page:
        page.locator("#_processes .copy").click()
        expect(page.get_by_role("status").filter(has_text="Copied")).to_have_text("Copied: kill 611")
        assert page.evaluate("navigator.clipboard.readText()") == "kill 611"


# For everyone


def test_axe_finds_no_accessibility_fault(browser: Browser, full: ServedBoard, states: ServedBoard) -> None:
    wrong = []
    for url in (full.url("full"), states.url("volga"), states.url("hydra")):
        with open_page(browser, url) as page:
            page.locator("button.copy").first.wait_for()
            remove_charts(page)
            wrong += [(url, *fault) for fault in find_accessibility_faults(page)]
    assert wrong == []


def test_the_html_is_valid(
    browser: Browser, full: ServedBoard, states: ServedBoard, hostile: ServedBoard, tmp_path: Path
) -> None:
    pages = {"full": full, "tiber": states, "volga": states, "nile": states, **dict.fromkeys(HOSTILE, hostile)}
    files = [board.lab.www / f"hosts/{name}.html" for name, board in pages.items()]
    assert find_parse_errors(*files) == []
    contents = {}
    with open_page(browser, full.url("full"), java_script_enabled=False) as page:
        for name, board in pages.items():
            page.goto(board.url(name))
            if name != "full":
                remove_charts(page)
            contents[name] = page.content()
    assert validate_elements(tmp_path, contents) == ""
