"""What is wrong with GPUs, wherever it is shown; and that nobody is given one that is in trouble."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from playwright.sync_api import Browser

from site_builder.alerts.channels import NOTIFY_TYPES
from site_builder.alerts.conditions import find_health_conditions
from site_builder.alerts.model import Condition
from site_builder.board.outputs import metrics
from site_builder.bookings import gpu_selection, policy
from site_builder.client import loader, picker, search
from site_builder.client import render as client_render
from site_builder.client.model import Fleet
from site_builder.core.clock import Now
from site_builder.core.model import Booking, FreeGpu, Gpu, GpuProblem, GpuStatus, HostStatus
from site_builder.core.records import as_clean_text
from site_builder.health import page as health_page
from site_builder.health import problems
from site_builder.health.model import (
    COUNT_NAMES,
    EVENT_PROBLEM_KINDS,
    EVENT_SEVERITIES,
    PROBLEM_KINDS,
    SEVERITY_LABELS,
    GpuHealthMetrics,
    HealthEvent,
)
from site_builder.health.page import COUNT_TITLES
from site_builder.watches import build as watch_build
from site_builder.watches import store as watch_store
from tests.support.board_fixture import Lab, person, process
from tests.support.browser import ServedBoard, open_page, serve_board
from tests.support.generated_fleet import now as a_moment
from tests.support.page_checks import TOO_WIDE, each_view, find_parse_errors, remove_charts, run_axe
from tests.support.problem_fixtures import UNCORRECTED, lost, make, row, tell

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    problem_lab = make(tmp_path_factory.mktemp("problems"))
    problem_lab.build()
    return problem_lab


@pytest.fixture(scope="module")
def fleet(lab: Lab) -> Fleet:
    parsed_fleet, wrong = loader.parse_status((lab.www / "status.json").read_bytes())
    assert parsed_fleet, wrong
    return parsed_fleet


def kinds(lab: Lab, host: str = "atlas") -> list[list[str]]:
    return [[problem["kind"] for problem in gpu["problems"]] for gpu in lab.host_status(host)["gpus"]]


def test_status_json_has_the_problems_of_each_gpu(lab: Lab) -> None:
    assert kinds(lab) == [
        [],
        ["ecc-uncorrected"],
        ["inforom"],
        ["fan", "heat"],
        ["reset"],
        ["prohibited"],
        ["repair-pending", "link"],
        ["ecc-before", "link"],
    ]
    assert kinds(lab, "hydra") == [["persistence"]] * 4
    assert kinds(lab, "lyra") == [[], []]
    problem = lab.host_status()["gpus"][1]["problems"][0]
    assert (problem["severity"], problem["avoid"]) == ("critical", True)
    assert problem["what"] == "2 uncorrected ECC errors since the driver was loaded"
    assert "nvidia-smi --gpu-reset -i 1" in problem["advice"]
    schema = json.loads((ROOT / "docs/status.schema.json").read_text())
    jsonschema.validate(lab.status(), schema)


def test_states_stay_what_they_are(lab: Lab) -> None:
    assert lab.states() == ["free", "free", "busy", "busy", "lost", "free", "free", "free"]


def test_a_host_that_is_not_fresh_shows_no_problems(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    tell(lab, "atlas", row(0, {UNCORRECTED: "2"}))
    lab.build(after=3600)
    assert lab.host_status()["state"] == "down"
    assert kinds(lab) == [[]]


# An error in a cell


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A host whose GPUs are free but for an error in one cell, or for processes that are not reported."""
    lab = Lab(tmp_path_factory.mktemp("failing"))
    rows = (
        row(0)
        + row(1).replace("NVIDIA A100-SXM4-80GB, 4,", "NVIDIA A100-SXM4-80GB, [Unknown Error],")
        + row(2, {"pstate": "[GPU requires reset]"})
        + row(3, {"gpu_recovery_action": "Reboot"})
        + row(4, {"gpu_recovery_action": "Drain P2P"})
        + row(5)
    )
    words = "GPU-5, [Not Supported], [Not Supported], [Not Supported]\n"
    tell(lab, "atlas", rows, process(42, "GPU-2", 3) + words, person())
    lab.build()
    return lab


def test_an_error_in_one_cell_is_reported_wherever_states_are(failing: Lab) -> None:
    states = ["free", "unknown", "lost", "lost", "unknown", "unknown"]
    assert failing.states() == states
    reasons = [gpu["reason"] for gpu in failing.host_status()["gpus"][1:]]
    assert reasons == [
        "its memory cannot be read: Unknown Error",
        "the driver cannot reach it: GPU requires reset",
        "the driver asks for recovery: Reboot",
        "the driver asks for recovery: Drain P2P",
        "the processes on it could not be read: Not Supported",
    ]
    assert failing.host_status()["gpus"][5]["processes"] == []
    page = failing.page().lower()
    for reason in reasons:
        assert page.count(reason.lower()) == 1, reason
    metrics = (failing.www / "metrics").read_text()
    for index, state in enumerate(states):
        assert f'gpuboard_gpu_state{{host="atlas",gpu="{index}",state="{state}"}} 1' in metrics
    table = (failing.www / "term.txt").read_text()
    assert "\nfree: atlas:0\n" in table
    assert "\nlost: atlas:2,3\nunknown: atlas:1,4,5\n" in table
    assert (failing.www / "available/atlas.txt").read_text().strip() == "0"
    jsonschema.validate(failing.status(), json.loads((ROOT / "docs/status.schema.json").read_text()))


def test_who_is_on_a_lost_gpu_is_shown(failing: Lab) -> None:
    """They must end what runs on it before it can be reset."""
    (lost_row,) = re.findall(r"<tr class=lost><th scope=row>2.*", failing.page())
    assert "Alice" in lost_row or "alice" in lost_row


def test_a_gpu_that_was_lost_stays_lost_for_programs_while_its_host_is_down(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    tell(lab, "atlas", row(0) + lost(1))
    lab.build(after=3600)
    assert lab.states() == ["unknown", "lost"]
    fleet, wrong = loader.parse_status((lab.www / "status.json").read_bytes())
    host = fleet.find_host("atlas") if fleet else None
    assert host, wrong
    assert [gpu.state for gpu in host.gpus] == ["unknown", "lost"]


# Severities


@pytest.mark.parametrize("kind", PROBLEM_KINDS)
def test_every_place_shows_a_problem_with_the_same_severity(kind: str) -> None:
    problem, severity = problems.build_problem(kind, "x", "y"), PROBLEM_KINDS[kind].severity
    status = GpuStatus(Gpu(0, "GPU-0", "A100"), "A100", "free", "", problems=(problem,))
    ((_, class_name, label, *_),) = health_page.build_health_page_problem_rows(
        HostStatus("atlas", None, (), "fresh", "", gpus=(status,))
    )
    assert (class_name, label) == (severity, SEVERITY_LABELS[severity])
    row_html = health_page.render_problems((problem,))
    if severity == "info":
        assert row_html == ""
    else:
        assert f'class="problem {severity}' in row_html
        assert f">{SEVERITY_LABELS[severity][0]} " in row_html
    (line,) = metrics.format_gpu_health_metrics([("{a", metrics.build_stable_gpu_metrics(status))])[-1]
    assert f'severity="{severity}"' in line
    gpu_fields = {"index": 0, "state": "free", "problems": [problem._asdict()]}  # as in status.json
    assert loader.parse_fleet_gpu(gpu_fields, as_clean_text, "fresh").problems[0].severity == severity


@pytest.mark.parametrize("kind", EVENT_SEVERITIES)
def test_every_place_shows_an_event_with_the_severity_of_its_problem(kind: str) -> None:
    severity = EVENT_SEVERITIES[kind]
    if kind in EVENT_PROBLEM_KINDS:
        assert severity == PROBLEM_KINDS[EVENT_PROBLEM_KINDS[kind]].severity
    event = HealthEvent("atlas", 1, "GPU-0", 0, kind, (7, 9, 7), int(a_moment().epoch))
    row = health_page.build_health_page_event_row(event, {}, "atlas", a_moment())
    assert (row.severity or "info") == severity
    for condition in find_health_conditions([event], {}, a_moment()):
        assert condition.severity == severity
    for severity_name, notify_type in NOTIFY_TYPES.items():
        assert {"failure": "critical"}.get(notify_type, notify_type) == severity_name


def test_counts_have_the_severity_of_their_problems() -> None:
    counts = [2 if name in COUNT_TITLES else None for name in COUNT_NAMES]
    gpu = GpuHealthMetrics(
        "GPU-0", 0, None, None, tuple(counts), None, pending=True, failed=False, heat=True, power=True, hot=()
    )
    rows = dict(health_page.build_health_page_count_rows([gpu]))
    assert rows.pop(COUNT_TITLES["uncorrected"]) == [("▲ 2", PROBLEM_KINDS["ecc-uncorrected"].severity)]
    assert rows.pop("Memory repair") == [("◆ waiting for a reset", PROBLEM_KINDS["repair-pending"].severity)]
    assert rows.pop("Throttled") == [("◆ by heat and by its power limit", PROBLEM_KINDS["heat"].severity)]
    assert {cell for cells in rows.values() for cell in cells} == {("2", "")}
    (failed_row,) = [
        cells
        for _, cells in health_page.build_health_page_count_rows([gpu._replace(failed=True)])
        if cells[0][0] == "▲ failed"
    ]
    assert failed_row[0][1] == PROBLEM_KINDS["repair-failed"].severity


def test_the_alert_rules_of_prometheus_have_the_same_severities() -> None:
    text = (ROOT / "docs/prometheus-alerts.yml").read_text()
    severities = dict(re.findall(r"alert: (\w+)\n(?:.*\n)*?\s+labels: \{severity: (\w+)\}", text))
    problem_kinds = {
        "GpuHot": "hot",
        "GpuSlowedByHeat": "heat",
        "GpuMemoryErrors": "ecc-uncorrected",
        "GpuNeedsRecovery": "recovery",
        "GpuNeedsReset": "repair-pending",
        "GpuBroken": "repair-failed",
        "GpuLost": "lost",
    }
    assert {name: severities[name] for name in problem_kinds} == {
        name: PROBLEM_KINDS[kind].severity for name, kind in problem_kinds.items()
    }
    rules = {
        "GpuHostDown": "host-down",
        "GpuHostFailed": "host-failed",
        "GpuConflict": "booking-broken",
        "GpuHeld": "gpu-held",
        "GpuBookedUnused": "booking-unused",
    }
    assert {name: severities[name] for name in rules} == {
        name: Condition(rule).severity for name, rule in rules.items()
    }
    assert severities["GpuMissing"] == EVENT_SEVERITIES["gone"]


# Who is given a GPU


def asker() -> picker.GpuRequester:
    return picker.GpuRequester(lambda _: True, frozenset(), 0)


def test_nobody_is_given_a_gpu_that_is_in_trouble(lab: Lab, fleet: Fleet) -> None:
    assert (lab.www / "available/atlas.txt").read_text().strip() == "0,6,7"
    choices = picker.pick_available_gpus(fleet.hosts, picker.GpuRequest(), asker())
    assert [choice.gpu.index for choice in choices if choice.host.name == "atlas"] == [0, 6, 7]


def test_a_refused_gpu_has_its_reason(fleet: Fleet) -> None:
    atlas = fleet.find_host("atlas")
    assert atlas
    assert picker.explain_no_gpu_to_pick([atlas], picker.GpuRequest(), asker()) == "3 free, 2 faulty, 2 busy, 1 lost"


def test_those_who_wait_for_a_gpu_are_not_sent_to_one_in_trouble() -> None:
    well = FreeGpu("A100", 81920, "atlas", 0)
    free = watch_build.WatchFreeGpuIndex([well._replace(index=1, is_avoided=True), well], 0)
    assert free.find_gpus(watch_store.WatchedGpus()) == [well]
    assert watch_build.WatchFreeGpuIndex([well._replace(is_avoided=True)], 0).find_gpus(watch_store.WatchedGpus()) == []


def test_a_booking_of_any_free_gpu_passes_it_by() -> None:
    ill = GpuProblem("repair-failed", "critical", "a repair failed", "have it replaced", avoid=True)
    well = GpuStatus(Gpu(0, "GPU-0", "A100"), "A100", "free", "")
    new = Booking("atlas", "0", "alice", a_moment().local + timedelta(hours=2))
    keys = policy.GpuKeyMap([well.gpu])
    assert gpu_selection.can_book_gpu(new, (), keys, well, a_moment())
    assert not gpu_selection.can_book_gpu(new, (), keys, well._replace(problems=(ill,)), a_moment())


def test_the_board_says_of_one_that_is_free_that_it_is_in_trouble(lab: Lab) -> None:
    top = lab.page().partition("Free now")[2].partition("</section>")[0]
    assert re.search(r'<a href="#atlas" data-gpus="atlas:0,6,7">atlas:0,6,7</a>', top)
    assert re.search(r'<a href="#atlas">atlas:1,5 <small>faulty</small></a>', top)


@pytest.mark.parametrize(
    ("old", "new"), [("grave", "critical"), ("look", "warning"), ("told", "info"), ("odd", "info")]
)
def test_an_older_board_is_read_with_its_own_words_for_states_and_severities(old: str, new: str) -> None:
    problems = [{"kind": "fan", "weight": old, "what": "its fan stands still", "advice": "", "avoid": False}]
    gpu_fields = {"index": 0, "state": "violated", "reason": "booked by alice, used by bob", "problems": problems}
    gpu = loader.parse_fleet_gpu(gpu_fields, as_clean_text, "fresh")
    assert (gpu.state, gpu.reason) == ("conflict", "booked by alice, used by bob")
    assert gpu.problems == (GpuProblem("fan", new, "its fan stands still", ""),)


def test_a_board_that_reports_odd_problems_is_read_all_the_same() -> None:
    gpu_fields = {"problems": [{"kind": 7, "severity": ["critical"], "what": None, "avoid": "yes"}, 3, None]}
    gpu = loader.parse_fleet_gpu({"index": 0, "state": "free", **gpu_fields}, as_clean_text, "fresh")
    assert gpu.problems == (GpuProblem("", "info", "?", ""),)
    malformed_problems: tuple[object, ...] = (None, {}, "x", 3)
    for odd in malformed_problems:
        assert (
            loader.parse_fleet_gpu({"index": 0, "state": "free", "problems": odd}, as_clean_text, "fresh").problems
            == ()
        )


# The page


def row_of(lab: Lab, index: int) -> str:
    """A GPU in the card of atlas."""
    card = (lab.www / "cards/atlas.html").read_text()
    row_match = re.search(rf"<tr class=\w+><th scope=row>{index}<td(.*?)(?=\n<tr|</tbody>)", card, re.DOTALL)
    assert row_match
    return row_match[1]


def test_the_row_of_a_gpu_says_what_is_wrong_in_words_and_what_to_do(lab: Lab) -> None:
    assert 'class="problem critical avoid"' in row_of(lab, 1)
    assert "▲ 2 uncorrected ECC errors since the driver was loaded" in row_of(lab, 1)
    assert "nvidia-smi --gpu-reset -i 1" in row_of(lab, 1)
    assert "◆ its infoROM is corrupted" in row_of(lab, 2)
    assert "◆ slowed by heat to half of its clock speed or less" in row_of(lab, 3)
    assert "Prohibited" in row_of(lab, 5)
    assert "problem" not in row_of(lab, 0)


def test_infos_are_not_on_the_board(lab: Lab) -> None:
    assert "problem" not in row_of(lab, 7)
    assert "persistence" not in lab.page()


def test_the_row_of_a_lost_gpu_has_advice_for_its_message(lab: Lab) -> None:
    text = "The driver cannot reach it: GPU requires reset. Stop its processes and reset it (as root: nvidia-smi"
    assert text in row_of(lab, 4)


def test_the_host_page_shows_each_problem_once(lab: Lab) -> None:
    page = (lab.www / "hosts/hydra.html").read_text()
    part = page.partition("<section class=part id=_wrong>")[2].partition("</section>")[0]
    assert part.count("<tr>") == 2
    assert "<th scope=row>0, 1, 2 and 3<td>info<td>" in part
    assert "Persistence mode is off: every query reloads the driver, which takes 2.0 s." in part
    assert "_wrong" not in (lab.www / "hosts/lyra.html").read_text()


def test_critical_problems_come_first_on_the_host_page(lab: Lab) -> None:
    page = (lab.www / "hosts/atlas.html").read_text()
    part = page.partition("<section class=part id=_wrong>")[2].partition("</section>")[0]
    signs = re.findall(r">(▲ critical|◆ warning|info)<", part)
    assert signs == sorted(signs, key=["▲ critical", "◆ warning", "info"].index)
    assert signs.count("▲ critical") == 2


def test_a_problem_that_comes_is_a_new_card_and_numbers_are_not(tmp_path: Path) -> None:
    lab = Lab(tmp_path)

    def revision() -> Any:  # noqa: ANN401
        lab.build()
        return lab.live()["hosts"][0][1]

    tell(lab, "atlas", row(0))
    first = revision()
    tell(lab, "atlas", row(0, use=3))
    assert revision() == first
    tell(lab, "atlas", row(0, {"remapped_rows.pending": "Yes"}))
    assert revision() != first


HOSTILE = "<img src=x onerror=alert(1)>{{ 7 * 7 }}"


def test_what_a_driver_says_is_shown_and_not_believed(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    tell(
        lab,
        "atlas",
        f"WARNING: gpu 0000:00:00.0 {HOSTILE}\n"
        + row(0, {"gpu_recovery_action": HOSTILE.replace("{", "").replace("}", "")}),
    )
    tell(lab, "hydra", f"WARNING: gpu 0000:01:00.0 {HOSTILE}\n" + row(1))
    lab.build()
    for file in ("index.html", "hosts/atlas.html", "hosts/hydra.html"):
        text = (lab.www / file).read_text()
        assert "<img src" not in text
        assert "&lt;img src" in text


# The terminal


def test_the_table_says_what_is_wrong(fleet: Fleet) -> None:
    atlas_fleet = fleet._replace(hosts=tuple(host for host in fleet.hosts if host.name == "atlas"))
    lines = client_render.format_gpu_table(atlas_fleet, Now(fleet.built, a_moment().zone), 80, heads=False)
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert re.search(r"^ 0 \[ \]", text, re.MULTILINE)
    assert re.search(r"^ 1 \[!\].* 2 uncorrected ECC errors", text, re.MULTILINE)
    assert re.search(r"^ 5 \[!\].* its compute mode", text, re.MULTILINE)
    assert re.search(r"^ 6 \[ \].* a memory repair is waiting", text, re.MULTILINE)
    assert "persistence" not in text


@pytest.mark.parametrize(
    ("word", "expected"), [("ecc", [1]), ("inforom", [2]), ("heat", [3]), ("gpu-reset", [4]), ("lanes", [6])]
)
def test_a_search_finds_what_the_rows_say(fleet: Fleet, word: str, expected: list[int]) -> None:
    matching_fleet = search.search_fleet(fleet, [word])
    assert [gpu.index for host in matching_fleet.hosts for gpu in host.gpus] == expected


def test_texts_for_curl_say_it_too(lab: Lab) -> None:
    detail = (lab.www / "detail.txt").read_text()
    assert "│ ! 2 uncorrected ECC errors since the driver was loaded " in detail
    assert {len(line) for line in detail.splitlines() if line.startswith("  │")} == {78}
    term = (lab.www / "term.txt").read_text()
    assert "\nfree: atlas:0,6,7 hydra:0,1,2,3 lyra:0,1\n" in term
    assert "\nproblem: atlas:1,2,3,5,6\n" in term


def test_metrics_have_a_line_for_each_problem(lab: Lab) -> None:
    text = (lab.www / "metrics").read_text()
    lines = [line for line in text.splitlines() if line.startswith("gpuboard_gpu_problem{")]
    assert 'gpuboard_gpu_problem{host="atlas",gpu="1",kind="ecc-uncorrected",severity="critical"} 1' in lines
    assert len(lines) == 10 + 4  # of atlas, and of hydra
    assert not any('host="lyra"' in line for line in lines)


# In a browser


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBoard]:
    with serve_board(lab, tmp_path_factory.mktemp("server")) as running_site:
        yield running_site


@pytest.mark.parametrize("path", ["", "hosts/atlas.html"])
def test_axe_finds_nothing_and_nothing_is_too_wide(browser: Browser, site: ServedBoard, path: str) -> None:
    with open_page(browser, f"{site.site.url}{path}") as page:
        remove_charts(page)
        for rules in each_view(page):
            assert page.evaluate(TOO_WIDE) == []
            assert run_axe(page, rules).faults == []


def test_what_nobody_should_be_given_cannot_be_copied(browser: Browser, site: ServedBoard) -> None:
    with open_page(browser, site.site.url) as page:
        page.wait_for_selector("#atlas button.copy")
        labels = page.eval_on_selector_all("#atlas .gpus button.copy", "all => all.map((one) => one.title)")
    assert labels == [f"Copy CUDA_VISIBLE_DEVICES={index}" for index in (0, 6, 7)]


def test_the_html_is_valid(lab: Lab) -> None:
    assert find_parse_errors(lab.www / "index.html", lab.www / "hosts/atlas.html") == []
