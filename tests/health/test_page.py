"""The health of GPUs on hosts/HOST.html: built from data/, and in a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from site_builder.board.builder import Builder
from site_builder.config.settings import Settings
from site_builder.core.model import GpuStatus, HostStatus, PrivacySettings
from site_builder.demo import history as demo_history
from site_builder.demo.scenario import MACHINES, SCENARIO
from site_builder.health import page as health_page
from site_builder.health.gpu_health import pack_gpu_health
from site_builder.health.model import HostHealthTimelines
from site_builder.health.store import HealthEventStore
from site_builder.history.database import begin_database_transaction
from site_builder.history.writer import HistoryWriter
from tests.support import pace
from tests.support.board_fixture import GPU_COLUMNS, Lab, gpu
from tests.support.browser import ServedBoard, open_page, serve_board
from tests.support.generated_fleet import now
from tests.support.health_fixtures import parse_health_cells
from tests.support.page_checks import (
    LAPTOP,
    PHONE,
    TOO_WIDE,
    find_accessibility_faults,
    find_parse_errors,
    remove_charts,
    validate_elements,
)

FIELDS = {
    "pci.bus_id": "00000000:{bus}:00.0",
    "driver_version": "590.48.01",
    "ecc.errors.corrected.volatile.total": "0",
    "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "remapped_rows.correctable": "0",
    "remapped_rows.uncorrectable": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "No",
    "clocks_event_reasons.active": "0x0000000000000001",
    "gpu_recovery_action": "None",
}
UNCORRECTED = "ecc.errors.uncorrected.aggregate.total"
REASONS = "clocks_event_reasons.active"
HOSTILE = "<img src=x onerror=alert(1)>{{ 7 * 7 }}"


class Told:
    """A lab whose GPUs tell of their health, minute by minute."""

    def __init__(self, folder: Path, host: str = "atlas", **settings: Any) -> None:  # noqa: ANN401
        self.lab, self.host = Lab(folder), host
        self.settings: Settings = self.lab.settings(**settings)
        self.number = -400

    def minute(self, *gpus: dict[str, str], facts: str = "cpus=4\n") -> None:
        """A build, a minute after the last one; each GPU with what it tells otherwise."""
        rows = []
        for index, overrides in enumerate(gpus):
            cells = {**FIELDS, **overrides}
            own = ", ".join(cells.values()).replace("{bus}", str(17 + index))
            rows.append(
                gpu(index, 4, 0).strip() + f", {own}\n" if "lost" not in overrides else lost(index, overrides["lost"])
            )
        self.lab.host(self.host, facts=facts)
        self.lab.write(self.host, "gpus.csv", f"{GPU_COLUMNS}, {', '.join(FIELDS)}\n{''.join(rows)}")
        builder = Builder(self.settings)
        began = time.time() // 60 * 60
        # hosts are fresh by the clock of the files, and so the clock of history is the one that goes
        real = builder.history.record, builder.event_log.record
        builder.history.record = lambda samples, now, reach=0: real[0](samples, began + 60 * self.number, reach)  # type: ignore[method-assign] # noqa: ARG005
        builder.event_log.record = lambda metrics_by_host, now, time_limit=9: real[1](  # type: ignore[method-assign] # noqa: ARG005
            metrics_by_host, began + 60 * self.number, time_limit
        )
        builder.build(time.time())
        builder.close()
        self.number += 1

    @property
    def html(self) -> str:
        return (self.lab.www / f"hosts/{self.host}.html").read_text()

    @property
    def part(self) -> str:
        """The words of this part."""
        section_match = re.search(r"<section class=part id=_health>.*?</section>", self.html, re.DOTALL)
        return " ".join(re.sub(r"<[^>]+>", " ", section_match[0]).split()) if section_match else ""


def lost(index: int, why: str) -> str:
    """The row of a GPU that the driver cannot reach."""
    names = GPU_COLUMNS.split(", ")
    cells = {"index": str(index), "uuid": f"GPU-{index}", "name": "NVIDIA A100-SXM4-80GB"}
    row_cells = [cells.get(name, f"[{why}]") for name in (*names, *FIELDS)]
    return ", ".join(row_cells) + "\n"


# What it says


def test_where_nothing_happened_it_says_since_when(tmp_path: Path) -> None:
    health_lab = Told(tmp_path)
    health_lab.minute({}, {})
    assert re.search(r"No events for any GPU since \d+ \w+ \d{4} \d\d:\d\d\.", health_lab.part)
    assert "Uncorrected ECC errors, lifetime 0 0" in health_lab.part
    assert "Corrected ECC errors, lifetime" not in health_lab.part  # which no GPU tells


def test_what_happened_is_there_with_when_and_how_long_and_its_severity(tmp_path: Path) -> None:
    health_lab = Told(tmp_path)
    for gpu_cells in ({}, {"lost": "GPU is lost"}, {"lost": "GPU is lost"}, {}, {UNCORRECTED: "2", REASONS: "0x20"}):
        health_lab.minute({}, gpu_cells)
    clock = r"\d+ \w+ \d{4} \d\d:\d\d"
    lost_for = (
        rf"{clock} – (\d+ \w+ \d{{4}} )?\d\d:\d\d ▲ critical lost: the driver could not reach it: GPU is lost 2 min"
    )
    assert re.search(lost_for, health_lab.part)
    assert re.search(rf"{clock} ▲ critical uncorrected ECC errors: 2 more \(now 2\)", health_lab.part)
    assert re.search(rf"since {clock} ◆ warning slowed by heat", health_lab.part)
    assert "No events for GPU 0 since" in health_lab.part
    assert "Uncorrected ECC errors, lifetime 0 2" in health_lab.part


def test_an_xid_error_is_there_with_what_it_means_what_to_do_and_the_words_of_the_driver(tmp_path: Path) -> None:
    health_lab = Told(tmp_path)
    ago = int(time.time()) - 500 * 60
    fallen = f"xid={ago} {ago} 1 0000:12:00 79 GPU has fallen off the bus.\n"
    page_fault = f"xid={ago} {ago + 90} 12 0000:11:00 31 MMU Fault {HOSTILE}\n"
    unknown = f"xid={ago} {ago} 1 0000:99:00 998 something new\n"
    health_lab.minute({"pci.bus_id": "00000000:11:00.0"}, {"pci.bus_id": "00000000:12:00.0"})
    for _ in range(2):
        health_lab.minute(
            {"pci.bus_id": "00000000:11:00.0"},
            {"pci.bus_id": "00000000:12:00.0"},
            facts=f"uptime=90000\nkernel_log=dmesg\n{fallen}{page_fault}{unknown}",
        )
    clock = r"\d+ \w+ \d{4} \d\d:\d\d"
    assert re.search(
        rf"{clock} ▲ critical Xid 79: fell off the bus Reboot the host; if it happens again, check power, seating"
        r" and cooling\. GPU has fallen off the bus\.",
        health_lab.part,
    )
    assert re.search(
        rf"{clock} – .{{0,30}} Xid 31: a program accessed invalid memory \(page fault\), 12 times", health_lab.part
    )
    assert "MMU Fault &lt;img src=x onerror=alert(1)&gt;{{ 7 * 7 }}" in health_lab.html
    assert re.search(
        rf"The host When Event Duration {clock} ◆ warning Xid 998 \(PCI 99:00\): something new Look the code up",
        health_lab.part,
    )
    assert health_lab.part.count("something new") == 1
    assert re.search(r"<dt>Kernel log\s*<dd>dmesg", health_lab.html)
    assert find_parse_errors(health_lab.lab.www / "hosts/atlas.html") == []


def test_a_kernel_log_that_cannot_be_read_is_said_with_what_allows_it_and_is_no_problem(tmp_path: Path) -> None:
    health_lab = Told(tmp_path)
    health_lab.minute({}, facts="kernel_log=unreadable\n")
    assert re.search(r"<dt>Kernel log\s*<dd>not readable, .*usermod -aG systemd-journal USER", health_lab.html)
    assert "Kernel log" not in (health_lab.lab.www / "index.html").read_text()


def test_a_host_that_is_down_keeps_its_time_line(tmp_path: Path) -> None:
    health_lab = Told(tmp_path)
    health_lab.minute({})
    health_lab.minute({UNCORRECTED: "1"})
    health_lab.lab.build(after=3600)
    assert "uncorrected ECC errors: 1 more" in health_lab.part
    assert "Now" not in health_lab.part


def test_gpus_without_health_readings_have_no_table(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    lab.build()
    page = (lab.www / "hosts/atlas.html").read_text()
    assert "No events for the GPU since" in page
    assert "Current counts" not in page


def test_the_health_section_is_the_same_where_people_are_hidden(tmp_path: Path) -> None:
    parts = []
    for users in (True, False):
        health_lab = Told(tmp_path / str(users), privacy=PrivacySettings(users=users))
        health_lab.minute({})
        health_lab.minute({UNCORRECTED: "1"})
        parts.append(re.sub(r"\d+ \w+ \d{4} \d\d:\d\d|\d\d:\d\d", "", health_lab.part))
    assert parts[0] == parts[1]


def test_the_latest_and_the_critical_of_many_events_are_shown(tmp_path: Path) -> None:
    history = HistoryWriter(tmp_path, now().zone)
    log = HealthEventStore(history)
    host = board([{UNCORRECTED: "0"}])
    start = int(now().epoch) - 100 * 3600
    for number in range(100):
        warm = {REASONS: "0x20"} if number % 2 else {}
        host = board([{UNCORRECTED: "1" if number > 3 else "0", **warm}])
        history.record([], start + 3600 * number)
        log.record({"atlas": pack_gpu_health(host, None)}, start + 3600 * number)
    lines = log.read_timelines("atlas", ("GPU-0",), now().epoch, 20)
    history.close()
    well = health_page.build_health_page_section(host, lines, now())
    assert well
    ((_, _, rows, earlier_count),) = well.timelines
    assert len(rows) == 21
    assert rows[-1].what == "uncorrected ECC errors: 1 more (now 1)"
    assert earlier_count == lines.timelines[0].event_count - 21 > 20
    assert [event.what for event in well.urgent_events] == ["uncorrected ECC errors: 1 more (now 1)"]


@pytest.mark.parametrize(("count", "quiet"), [(1, "the GPU"), (3, "any GPU"), (0, "any GPU")])
def test_gpus_to_which_nothing_happened_are_named_together(count: int, quiet: str) -> None:
    well = health_page.build_health_page_section(board([{}] * count), HostHealthTimelines(1, ()), now())
    assert well
    assert well.quiet_gpus == quiet


def board(gpus: list[dict[str, str]]) -> HostStatus:
    """A host that is fresh."""
    rows = []
    for index, overrides in enumerate(gpus):
        cells = {**FIELDS, **overrides}
        one = parse_health_cells(cells, index=index, uuid=f"GPU-{index}", temperature=40)
        rows.append(GpuStatus(one, "A100", "free", ""))
    return HostStatus("atlas", None, (), "fresh", "", gpus=tuple(rows))


def test_a_row_that_is_not_understood_takes_no_gpu_away(tmp_path: Path) -> None:
    health_lab = Told(tmp_path)
    health_lab.minute({}, {})
    health_lab.minute({}, {UNCORRECTED: "0, 0"})
    health_lab.minute({}, {})
    assert "gone" not in health_lab.part


def test_the_demo_has_time_lines_from_the_start(tmp_path: Path) -> None:
    history = HistoryWriter(tmp_path, now().zone)
    connection, start = history.connect(), int(now().epoch) - 35 * 86400
    with begin_database_transaction(connection):
        demo_history.insert_demo_events(connection, MACHINES, start, now().epoch)
    log = HealthEventStore(history)
    history.record([], now().epoch)
    log.record({machine.name: pack_gpu_health(board([{}]), None) for machine in MACHINES}, now().epoch)
    timelines_by_host = {machine.name: log.read_timelines(machine.name, (), now().epoch, 50) for machine in MACHINES}
    assert not history.problems
    history.close()
    assert {host_timelines.watched_since for host_timelines in timelines_by_host.values()} == {start}
    kinds = [event.kind for lines in timelines_by_host.values() for line in lines.timelines for event in line.events]
    assert sorted(kinds) == sorted(event["kind"] for events in SCENARIO["health_events"].values() for event in events)


# In a browser


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBoard]:
    """A host with a long time line, told by a file that is hostile."""
    folder = tmp_path_factory.mktemp("health")
    health_lab = Told(folder)
    health_lab.minute({}, {}, {})
    for number in range(1, 26):
        warm = {REASONS: ("0x24", "0x0")[number % 2], UNCORRECTED: str(number), "remapped_rows.failure": "Yes"}
        faulty_cells = {"lost": "GPU is lost"} if number % 3 else {"gpu_recovery_action": HOSTILE.replace(",", "")}
        health_lab.number += 11
        health_lab.minute({**warm, "driver_version": f"590.{number}"}, faulty_cells, {}, *([{}] if number == 9 else []))
    with serve_board(health_lab.lab, folder) as site:
        yield site


@pytest.mark.slow
def test_no_screen_scrolls_sideways(browser: Browser, long: ServedBoard) -> None:
    with open_page(browser, long.url("atlas")) as page:
        for width in (320, PHONE, LAPTOP):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(TOO_WIDE) == [], width


@pytest.mark.slow
def test_hostile_text_is_text(browser: Browser, long: ServedBoard) -> None:
    with open_page(browser, long.url("atlas"), bypass_csp=True) as page:
        assert page.locator("#_health img").count() == 0
        assert HOSTILE in " ".join(page.locator("#_health td").all_text_contents())
        assert page.evaluate("window.alerts") == 0


@pytest.mark.slow
def test_axe_finds_no_accessibility_fault(browser: Browser, long: ServedBoard) -> None:
    with open_page(browser, long.url("atlas")) as page:
        remove_charts(page)
        assert find_accessibility_faults(page) == []


@pytest.mark.slow
def test_the_html_is_valid(browser: Browser, long: ServedBoard, tmp_path: Path) -> None:
    assert find_parse_errors(long.lab.www / "hosts/atlas.html") == []
    with open_page(browser, long.url("atlas"), java_script_enabled=False) as page:
        remove_charts(page)
        assert validate_elements(tmp_path, {"atlas": page.content()}) == ""


# Time


@pytest.mark.slow
def test_a_long_time_line_is_read_and_drawn_in_little_time(tmp_path: Path) -> None:
    history = HistoryWriter(tmp_path, now().zone)
    log = HealthEventStore(history)
    keys = [f"GPU-{gpu_index}" for gpu_index in range(8)]
    start = int(now().epoch) - 400 * 3600
    for number in range(400):
        host = board([{REASONS: "0x24" if number % 2 else "0x0", UNCORRECTED: str(number)}] * 8)
        history.record([], start + 3600 * number)
        log.record({"atlas": pack_gpu_health(host, None)}, start + 3600 * number)

    def draw() -> None:
        assert health_page.build_health_page_section(host, log.read_timelines("atlas", keys, now().epoch, 20), now())

    draw()
    pace.check(pace.took(draw, rounds=3), 0.2)
    history.close()
