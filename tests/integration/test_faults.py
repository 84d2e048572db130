"""Exceptions that nobody foresaw, at each boundary in turn: one host, one entry or one file pays, all else stands."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from site_builder.alerts.store import AlertStore
from site_builder.board.builder import Builder, BuildError
from site_builder.board.outputs import metrics
from site_builder.core import faults
from site_builder.core.faults import FAULT_NOTE, FaultLog
from tests.support.board_fixture import Lab, gpu, soon, words
from tests.support.fault_fixtures import CHANNEL, EVIL, break_function, fill, is_evil, log_of

ROOT = Path(__file__).parents[2]
# Every file of the fleet, and what makes it.
FLEET_FILES = {
    "board.outputs.available.build_fleet_available_file": ["available.txt"],
    "board.pages.render_board_page": ["index.html"],
    "board.pages.render_board_parts": ["index.html", "live.json", "icon.svg"],
    "core.published_files.publish_assets": ["assets"],
    "board.pages.render_page_icon": ["icon.svg"],
    "board.site_writer.SiteWriter.write_live_json": ["live.json"],
    "fleet.status_json.render_status_json": ["status.json"],
    "board.outputs.metrics.render_metrics": ["metrics"],
    "board.outputs.term.render_term_txt": ["term.txt", "term-ansi.txt"],
    "board.outputs.detail.render_detail_txt": ["detail.txt"],
    "waste.render.render_waste_json": ["waste.json"],
    "bookings.calendar.render_calendar_page": ["bookings.html"],
    "bookings.ics.render_ics_feed": ["bookings.ics", "bookings/hosts/good.ics", "bookings/people/alice.ics"],
    "usage.fleet_page.FleetPageBuilder.render_page": ["fleet.html"],
    "usage.people_page.PeoplePageBuilder.render_page": ["users.html"],
    "board.outputs.host_json.JOINED_FILES.0": ["states/index.json"],
    "board.outputs.host_json.JOINED_FILES.1": ["nodes/index.json"],
    "board.outputs.host_json.JOINED_FILES.2": ["nvgpu/cluster_status"],
}
# Those that an older content would make dangerous: they are written, and hand out nothing.
EMPTIED = {"available.txt"}
ALL = {name for several in FLEET_FILES.values() for name in several if name != "assets"} | {
    f"{folder}/{host}{end}"
    for host in ("good", EVIL)
    for folder, end in {
        "hosts": ".html",
        "cards": ".html",
        "nodes": ".json",
        "states": "/index.json",
        "nvgpu": "/gpu_status",
        "available": ".txt",
    }.items()
}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path)
    fill(made)
    return made


# One output


@pytest.mark.parametrize("function", FLEET_FILES)
def test_a_file_that_cannot_be_made_costs_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    assert set(lab.build(alerts=CHANNEL).written_files) >= ALL
    before = {name: (lab.www / name).read_bytes() for name in ALL}
    fill(lab, 9000)
    lab.book({"good": {"0": {"name": "alice", "date": soon(19000)}}})
    assert break_function(monkeypatch, function) == []
    report = lab.build(4000, alerts=CHANNEL)
    failing = FLEET_FILES[function]
    assert {*ALL} - {*report.written_files} <= {*failing}
    for name in ALL.intersection(failing):
        kept = b"" if name in EMPTIED else before[name]
        assert (lab.www / name).read_bytes() == kept
    problem_text = words(report)
    assert f"www/{failing[0]}: it could not be updated: {FAULT_NOTE} (" in problem_text
    assert "Error in " in problem_text or "StopIteration in " in problem_text
    assert str(lab.www) not in problem_text
    assert "nobody foresaw" not in problem_text
    if "status.json" not in failing:
        assert f"www/{failing[0]}" in [problem["where"] for problem in lab.status()["problems"]]
    if "index.html" not in failing:
        assert f"www/{failing[0]}" in lab.page()
    assert AlertStore(lab.state).read().started_at
    assert orjson_of(lab.state / "memory.json")["problems"]
    assert orjson_of(lab.state / "published.json")


def orjson_of(path: Path) -> dict[str, Any]:
    parsed_json: dict[str, Any] = json.loads(path.read_bytes())
    return parsed_json


def test_a_file_that_can_be_made_again_is_no_longer_a_problem(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        break_function(broken, "board.outputs.metrics.render_metrics")
        assert "www/metrics" in words(lab.build())
    assert words(lab.build()) == ""
    assert "www/metrics" not in lab.page()
    assert log_of(lab).count("new: www/metrics") == log_of(lab).count("over: www/metrics") == 1


@pytest.mark.parametrize("every", [None, 10])
def test_the_same_fault_again_and_again_is_logged_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, every: int | None
) -> None:
    break_function(monkeypatch, "usage.people_page.PeoplePageBuilder.render_page")
    break_function(monkeypatch, "fleet.status_json.render_status_host", is_evil)
    break_function(monkeypatch, "charts.cache.ChartCache.render_host", lambda _, asked, *__: asked.host == "good")
    builder = Builder(lab.settings(), every)
    for number in range(6):
        if every is None:
            builder = Builder(lab.settings(), every)
        fill(lab, 7000 + number)
        report = builder.build(time.time() + number)
        if every is None:
            builder.close()
        assert "www/users.html" in words(report)
        assert f"data/{EVIL}: its card could not be rendered" in words(report)
        assert "www/hosts/good.html: its charts could not be rendered" in words(report)
    lines = log_of(lab).splitlines()
    assert len(lines) == 3, lines
    assert all("RuntimeError in " in line for line in lines)


def test_a_full_disk_ends_the_build_with_its_own_message(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(metrics, "render_metrics", full)
    with pytest.raises(BuildError, match="could not be written: No space left on device"):
        lab.build()


def test_a_number_that_the_system_refuses_is_no_full_disk() -> None:
    fault_log = FaultLog()
    with fault_log.catch("www/x"):
        raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW))
    assert [problem.where for problem in fault_log.problems] == ["www/x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_whoever_stops_the_builder_stops_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def stopped(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(metrics, "render_metrics", stopped)
    with pytest.raises(error):
        lab.build()


# One entry


@pytest.mark.parametrize(
    "function",
    [
        "bookings.parser.parse_booking",
        "fleet.booking_use.expand_fleet_booking",
        "fleet.booking_use.list_fleet_booking_times",
        "bookings.calendar.has_left_calendar",
        "bookings.ics.build_calendar_event",
        "board.host_pipeline.list_pipeline_booking_facts",
    ],
)
def test_a_booking_at_which_we_fail_costs_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    entries = {"0": {"name": "alice", "date": soon(9000)}, "1": {"name": "mallory", "date": soon(9000)}}
    lab.book({"good": entries, EVIL: {"0": {"name": "carol", "date": soon(9000)}}})
    break_function(monkeypatch, function, lambda *arguments, **_: "mallory" in repr(arguments))
    report = lab.build()
    problem_text = words(report)
    page = lab.page()
    assert lab.host_status("good")["state"] == "fresh"
    assert "alice" in (lab.www / "bookings.ics").read_text()
    assert "carol" in (lab.www / "bookings.html").read_text()
    assert "<b>alice</b>" in page
    if function != "board.host_pipeline.list_pipeline_booking_facts":
        assert "data/comments.json: " in problem_text
        assert "mallory" in problem_text or "good, GPU 1" in problem_text
        assert FAULT_NOTE in problem_text


def test_a_watch_at_which_we_fail_costs_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"made": soon(-60), "until": soon(9000)}
    watches = [
        {"id": "w1", "name": "mallory", "when": "2 gpus", **times},
        {"id": "w2", "name": "bob", "when": "1 gpu", **times},
    ]
    (lab.data / "watches.json").write_text(json.dumps(watches))
    break_function(monkeypatch, "watches.build.WatchFreeGpuIndex.find_gpus", lambda _, request: request.gpu_count == 2)
    builder = Builder(lab.settings(alerts=CHANNEL), 10)
    builder.build(time.time())
    problem_text = words(builder.build(time.time() + 10))
    builder.close()
    assert f"data/watches.json: watch w1 of mallory is ignored: {FAULT_NOTE}" in problem_text
    assert json.loads((lab.state / "watches.json").read_text()).keys() == {"w2"}


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("core.people.parse_aliases", "aliases.csv"),
        ("fleet.gpu_models.parse_gpu_model_names", "gpu-names.csv"),
        ("discovery.hosts.parse_hosts_txt", "hosts.txt"),
        ("bookings.json_edit.text_to_plain_json", "comments.json"),
        ("watches.store.parse_watch_entries", "watches.json"),
    ],
)
def test_a_file_of_people_at_which_we_fail_is_kept_as_it_was(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str, file: str
) -> None:
    content = {"comments.json": "{}", "watches.json": "[]"}.get(file, "a, b\n")
    if file != "comments.json":
        (lab.data / file).write_text(content)
    lab.build(alerts=CHANNEL)
    (lab.data / file).write_text(f"{content}\n \n")
    break_function(monkeypatch, function, lambda text, *_: is_new(text))
    report = lab.build(alerts=CHANNEL)
    assert f"data/{file}: not read: it could not be parsed: {FAULT_NOTE}" in words(report)
    assert lab.host_status("good")["gpus"][0]["bookings"]
    assert lab.states(EVIL) == ["busy", "free"]


def is_new(content: str | bytes) -> bool:
    """Whether it is the content of which there is no copy in state/."""
    text = content if isinstance(content, str) else content.decode()
    return text.endswith("\n \n")


# One step of a build


@pytest.mark.parametrize(
    ("function", "where"),
    [
        ("history.writer.HistoryWriter.record", "state/history.db"),
        ("health.store.HealthEventStore.record", "state/history.db"),
        ("history.writer.HistoryWriter.write_minute", "state/history.db"),
        ("fleet.summary.find_outdated_hosts_in_summaries", ""),
        ("fleet.summary.find_duplicate_uuids_in_summaries", "data"),
        ("board.builder.Builder.forget_hosts", "state/forget"),
        ("fleet.store.FleetStore.update_booking_uses", "good"),
        ("waste.build.collect_waste", ""),
        ("history.writer.HistoryWriter.roll_up", None),
    ],
)
def test_a_step_that_fails_costs_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, function: str, where: str | None
) -> None:
    break_function(monkeypatch, function)
    if where is None:
        with pytest.raises(BuildError, match="the board could not be built"):
            lab.build(alerts=CHANNEL)
    else:
        report = lab.build(alerts=CHANNEL)
        assert (where in words(report)) or not where
        assert {*ALL} <= {*report.written_files}
    assert lab.states("good") == ["busy", "free"]
    assert AlertStore(lab.state).read().started_at
    assert (lab.state / "memory.json").exists()


def test_a_fault_at_one_host_does_not_stop_alerts_of_another(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("good", EVIL):
        lab.write(name, "gpus.csv", "NVIDIA-SMI has failed\n", rc=9)
    break_function(
        monkeypatch,
        "alerts.build.apply_alert_rules",
        lambda _, matters, *__: any(condition.host == EVIL for condition in matters),
    )
    builder = Builder(lab.settings(alerts=CHANNEL), 10)
    builder.build(time.time())
    assert {condition.condition.host for condition in AlertStore(lab.state).read().conditions.values()} == {"good"}
    assert f"alerts: internal error in gpuboard at {EVIL} (RuntimeError in " in words(builder.build(time.time() + 1))
    builder.close()


def test_the_place_of_a_fault_is_the_last_line_of_ours() -> None:
    try:
        json.loads("{")
        pytest.fail("it is broken")
    except ValueError as error:
        assert faults.locate_exception(error) == "JSONDecodeError"
    try:
        faults.split_by_fault(3, len)  # type: ignore[arg-type]
        pytest.fail("3 is no list")
    except TypeError as error:
        assert faults.locate_exception(error).startswith("TypeError in core/faults.py, line ")


# The command itself


def run(lab: Lab, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """`gpuboard`, as a user calls it, in a Python in which something else was done before."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    environment = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "HOME": str(lab.data.parent),
        "GPUBOARD_NOTIFY": "lab=json://127.0.0.1:9",
    }
    code = f"{before}\nfrom site_builder.cli import main\nmain()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=lab.data.parent, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


BREAK = """
from site_builder.fleet import host_state
from site_builder.board.outputs import metrics
real = host_state.decide_host_status
def decide(sources, snapshot, rules, now):
    if sources.discovered.name == "evil":
        raise ZeroDivisionError("oh")
    return real(sources, snapshot, rules, now)
host_state.decide_host_status = decide
def broken(*_):
    raise ZeroDivisionError("oh")
metrics.render_metrics = broken
"""


def down_for_long(lab: Lab) -> None:
    """A third host, which failed: somebody wants to hear of it."""
    lab.host("third")
    lab.write("third", "gpus.csv", "NVIDIA-SMI has failed\n", rc=9)


def test_a_host_that_claims_to_run_for_3000_years_stops_no_build(lab: Lab) -> None:
    lab.host(EVIL, gpu(0, uuid="GPU-e"), facts="cpus=4\nuptime=99999999999\n")
    down_for_long(lab)
    result = run(lab, "build")
    assert (result.returncode, result.stderr) == (0, "")
    (problem,) = (issue for issue in lab.status()["problems"] if issue["where"] == f"data/{EVIL}/host.txt")
    assert problem["what"] == "uptime is 99999999999, which is impossible: it is ignored"
    assert all((lab.www / f"hosts/{name}.html").exists() for name in ("good", EVIL, "third"))
    assert {issue.condition.host for issue in AlertStore(lab.state).read().conditions.values()} >= {"third"}


@pytest.mark.parametrize("arguments", [("build",), ("build", "--every", "1", "--for", "3")])
def test_the_command_ends_well_and_alerts_are_evaluated_whatever_we_fail_at(lab: Lab, arguments: Sequence[str]) -> None:
    down_for_long(lab)
    result = run(lab, *arguments, before=BREAK)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert lab.host_status(EVIL)["state"] == "failed"
    assert lab.states("good") == ["busy", "free"]
    problem_places = {issue["where"] for issue in lab.status()["problems"]}
    assert {f"data/{EVIL}", "www/metrics"} <= problem_places
    assert {issue.condition.host for issue in AlertStore(lab.state).read().conditions.values()} >= {EVIL, "third"}
    assert log_of(lab).count("www/metrics") == log_of(lab).count(f"data/{EVIL}:") == 1
    assert not (lab.www / "metrics").exists()


def test_a_build_that_fails_as_a_whole_does_not_end_the_loop(lab: Lab) -> None:
    before = """
from site_builder.board.host_pipeline import HostPipeline
real, count = HostPipeline.build_hosts, []
def build_hosts(*arguments):
    count.append(1)
    if len(count) == 1:
        raise ZeroDivisionError("oh")
    return real(*arguments)
HostPipeline.build_hosts = build_hosts
"""
    result = run(lab, "build", "--every", "1", "--for", "4", before=before)
    assert result.returncode == 0
    assert result.stderr.count("\n") == 1
    assert f"the board could not be built: {FAULT_NOTE} (ZeroDivisionError in board/builder.py, line " in result.stderr
    assert lab.states("good") == ["busy", "free"]
