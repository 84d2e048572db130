"""Exceptions that nobody foresaw at one host: it is shown with that problem, hands out nothing, and all else stands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from site_builder.alerts.store import AlertStore
from site_builder.board.builder import Builder
from site_builder.board.outputs import host_json
from site_builder.core import parallel
from site_builder.core.faults import FAULT_NOTE
from tests.support.board_fixture import Lab, words
from tests.support.fault_fixtures import CHANNEL, EVIL, break_function, fill, is_evil, name_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    fill(made)
    return made


HOST_PARTS = (
    "snapshots.store.HostFiles.parse",
    "snapshots.store.update_stored_snapshot_file",
    "fleet.host_state.decide_host_status",
    "fleet.host_state.decide_host_state",
    "fleet.host_state.find_host_state_problems",
    "health.gpu_health.list_gpu_health_gpus",
    "board.card.build_card",
    "board.card.format_card_models",
    "fleet.status_json.render_status_host",
    "board.card.render_live_card_numbers",
    "board.outputs.term.render_term_host",
    "board.outputs.detail.render_detail_host",
    "board.outputs.metrics.render_host_metrics",
    "fleet.summary.summarize_host",
    "board.host_pipeline.sample_host",
    "board.host_pipeline.pack_gpu_health",
)


def is_evil_file(*arguments: object, **_: object) -> bool:
    return EVIL in arguments


@pytest.mark.parametrize(
    ("function", "extra_host_count"),
    [
        *((function, 0) for function in HOST_PARTS),
        # of which a child process makes some
        ("board.card.build_card", 28),
        ("snapshots.store.HostFiles.parse", 28),
    ],
)
def test_a_host_at_which_we_fail_is_shown_with_that_problem_and_hands_out_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str, extra_host_count: int
) -> None:
    monkeypatch.setattr(parallel, "MIN_PARALLEL_ITEMS", 20)
    extra_hosts = [f"gpu{number}" for number in range(extra_host_count)]
    fill(lab, 7000, *extra_hosts)
    lab.build()
    assert f"{EVIL}:1" in (lab.www / "available.txt").read_text()
    fill(lab, 9000, *extra_hosts)
    break_function(monkeypatch, function, is_evil_file if function.endswith("update_stored_snapshot_file") else is_evil)
    report = lab.build(70, alerts=CHANNEL)
    status = lab.host_status(EVIL)
    assert status["state"] in {"failed", "unseen"}
    assert {entry["state"] for entry in status["gpus"]} <= {"unknown"}
    assert lab.states("good") == ["busy", "free"]
    (what,) = (entry.what for entry in report.problems if entry.where == f"data/{EVIL}")
    assert FAULT_NOTE in what
    assert "RuntimeError in " in what
    assert str(ROOT) not in what
    page = lab.page()
    assert f'id="{EVIL}"' in page
    assert FAULT_NOTE.replace("'", "&#39;") in page or FAULT_NOTE.replace("'", "&#x27;") in page
    assert EVIL in (lab.www / "term.txt").read_text()
    assert EVIL in (lab.www / "detail.txt").read_text()
    assert f"{EVIL}:" not in (lab.www / "available.txt").read_text()
    assert (lab.www / f"available/{EVIL}.txt").read_bytes() == b""
    metrics = (lab.www / "metrics").read_text()
    assert f'host="{EVIL}",gpu="1",state="free"' not in metrics
    assert 'host="good",gpu="1",state="free"' in metrics
    assert f'gpuboard_host_state{{host="{EVIL}",state="{status["state"]}"}} 1' in metrics
    assert "free" not in (lab.www / f"states/{EVIL}/index.json").read_text()
    assert '"state":"free"' in (lab.www / "states/good/index.json").read_text()
    assert [host for host in lab.live()["hosts"] if host[0] == EVIL]
    assert {f"hosts/{name}.html" for name in ("good", EVIL)} <= set(report.written_files)
    assert AlertStore(lab.state).read().started_at


@pytest.mark.parametrize("function", ["fleet.host_state.decide_fresh_host_gpus", "board.card.build_card_rows"])
def test_a_host_at_which_we_failed_keeps_its_gpus_and_is_tried_again_though_its_files_are_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    with monkeypatch.context() as broken:
        break_function(
            broken, function, lambda argument, *_: is_evil(argument) and getattr(argument, "state", "fresh") == "fresh"
        )
        lab.build()
        assert lab.host_status(EVIL)["state"] == "failed"
        assert lab.states(EVIL) == ["unknown", "unknown"]
        assert (lab.www / f"available/{EVIL}.txt").read_bytes() == b""
    lab.build(61)
    assert lab.states(EVIL) == ["busy", "free"]


@pytest.mark.parametrize(
    ("function", "still"),
    [
        ("board.pages.list_host_page_machine_facts", "Machine"),
        ("board.pages.render_host_page", ""),
        ("charts.cache.ChartCache.render_host", "Driver details"),
        ("health.store.StoredEventReader.read_timelines", "Driver details"),
        ("health.page.build_health_page_section", "Driver details"),
    ],
)
def test_a_page_of_a_host_that_cannot_be_made_says_so(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str, still: str
) -> None:
    lab.build()
    old = (lab.www / f"hosts/{EVIL}.html").read_text()
    fill(lab, 9000)
    evil = iter([True])  # the first that is asked
    break_function(monkeypatch, function, lambda *arguments, **_: is_evil(*arguments) or asks_for(arguments, evil))
    report = lab.build(70)
    problem_text = words(report)
    assert "www/hosts/" in problem_text
    assert FAULT_NOTE in problem_text
    assert lab.states(EVIL) == lab.states("good") == ["busy", "free"]  # which is so, and costs nobody anything
    if still:
        assert all(still in (lab.www / f"hosts/{name}.html").read_text() for name in (EVIL, "good"))
    else:
        assert (lab.www / f"hosts/{EVIL}.html").read_text() == old
        assert "hosts/good.html" in report.written_files


def asks_for(arguments: Sequence[object], first: Any) -> bool:  # noqa: ANN401
    """Whether a call without the name of a host is the first of its kind."""
    return not any(isinstance(name_of(argument), str) for argument in arguments) and next(first, False)


@pytest.mark.parametrize(
    ("function", "joined_file"),
    [
        ("convert_gpus_to_states_json", "states/index.json"),
        ("convert_gpu_to_node_json", "nodes/index.json"),
        ("convert_gpu_to_nvgpu_json", "nvgpu/cluster_status"),
    ],
)
def test_files_for_programs_that_cannot_be_made_call_no_gpu_free(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str, joined_file: str
) -> None:
    lab.build()
    fill(lab, 9000)
    function = f"board.outputs.host_json.{function}"
    break_function(monkeypatch, function, lambda gpus, *_: f"GPU-{EVIL}-0" in repr(gpus))
    assert f"www/states/{EVIL}/index.json: it could not be updated" in words(lab.build(70))
    for name in host_json.list_host_json_paths(EVIL):
        assert b"free" not in (lab.www / name).read_bytes()
    good, evil = sorted((lab.www / joined_file).read_bytes().splitlines(), key=lambda line: EVIL.encode() in line)
    assert b"9000" in good or b"in use by alice" in good
    assert b"failed" in evil
    assert b"free" not in evil


def test_an_available_file_that_cannot_be_made_hands_out_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.build()
    assert (lab.www / f"available/{EVIL}.txt").read_text() == "1\n"
    fill(lab, 9000)

    def of_evil(gpus: Sequence[Any], *_: object) -> bool:
        return any(one.host == EVIL for one in gpus)

    break_function(monkeypatch, "board.outputs.available.render_host_available", of_evil)
    assert f"www/available/{EVIL}.txt: it could not be updated" in words(lab.build())
    assert (lab.www / f"available/{EVIL}.txt").read_text() == ""
    assert (lab.www / "available/good.txt").read_text() == "1\n"


def test_lines_that_cannot_be_drawn_cost_the_lines(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.build()
    break_function(monkeypatch, "charts.cache.SparklineCache.render_host", is_evil)
    problem_text = words(lab.build(70))
    assert f"www/cards/{EVIL}.html: the sparklines of its GPUs could not be rendered" in problem_text
    assert lab.states(EVIL) == ["busy", "free"]


def test_the_fault_of_a_host_that_left_the_board_leaves_with_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder(lab.settings(), 10)
    break_function(monkeypatch, "board.pages.render_host_page", is_evil)
    assert f"www/hosts/{EVIL}.html" in words(builder.build(time.time()))
    (lab.data / "hosts.txt").write_text(f"{EVIL}, hidden\n")
    assert words(builder.build(time.time() + 60)) == ""
    builder.close()
