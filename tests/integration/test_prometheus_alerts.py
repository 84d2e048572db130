"""The alerts of docs/prometheus-alerts.yml, by promtool: each fires in time, says what it should, and ends."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from site_builder.board.outputs import metrics
from tests.support.prometheus import ALERTS, program, promtool, series_of

RULES = {"rule_files": [str(ALERTS)]}
NAMES = {family.name for family in metrics.ALL_FAMILIES}


class Alert(NamedTuple):
    """What is scraped each minute, in which minute it is still quiet and in which it fires, and what it says then."""

    name: str
    series: Mapping[str, str]
    quiet: int
    fires: int
    labels: Mapping[str, str]
    summary: str


GPU = {"host": "atlas", "gpu": "2"}
ALWAYS = "1+0x1000"


def gpu_series(name: str, labels: str = "") -> str:
    return f'gpuboard_gpu_{name}{{host="atlas", gpu="2"{labels}}}'


def in_state(state: str) -> dict[str, str]:
    return {gpu_series("state", f', state="{state}"'): ALWAYS}


def host_in(state: str) -> dict[str, str]:
    return {f'gpuboard_host_state{{host="atlas", state="{state}"}}': ALWAYS}


CASES = (
    Alert(
        "GpuboardGone",
        {"up": ALWAYS},
        4,
        6,
        {},
        "Prometheus gets no metrics from the board; check the web server and /metrics.",
    ),
    Alert(
        "GpuboardBuilderStopped",
        {"gpuboard_build_last_success_timestamp_seconds": "0+0x60", "gpuboard_build_interval_seconds": "10+0x60"},
        1,
        10,
        {},
        "The board was last built 10m 0s ago; check cron and state/build.log on the web host.",
    ),
    Alert(
        "GpuboardProblems",
        {"gpuboard_problems": "3+0x120"},
        59,
        61,
        {},
        "The board reports 3 problems; they are listed at the end of the page.",
    ),
    Alert(
        "GpuHostStale",
        host_in("stale"),
        9,
        11,
        {"host": "atlas", "state": "stale"},
        "atlas sends old snapshots; run gpu-check.sh status there.",
    ),
    Alert(
        "GpuHostDown",
        host_in("down"),
        1,
        3,
        {"host": "atlas", "state": "down"},
        "No data from atlas for more than 10 minutes; check that it is up and can reach the web host.",
    ),
    Alert(
        "GpuHostFailed",
        host_in("failed"),
        1,
        3,
        {"host": "atlas", "state": "failed"},
        "The GPUs of atlas cannot be read; the board shows the reason.",
    ),
    Alert(
        "GpuHostUnseen",
        host_in("unseen"),
        59,
        61,
        {"host": "atlas", "state": "unseen"},
        "atlas is listed but has never pushed; set it up with ./install.sh host.",
    ),
    Alert(
        "GpuHostDiskFull",
        {
            'gpuboard_host_disk_used_bytes{host="atlas", mount="/data"}': "97+0x60",
            'gpuboard_host_disk_total_bytes{host="atlas", mount="/data"}': "100+0x60",
        },
        29,
        31,
        {"host": "atlas", "mount": "/data"},
        "/data on atlas is 97% full.",
    ),
    Alert(
        "GpuLost",
        in_state("lost"),
        0,
        2,
        {**GPU, "state": "lost"},
        "The driver of atlas cannot reach GPU 2; try a reset or a reboot.",
    ),
    Alert(
        "GpuMissing",
        {
            'gpuboard_gpu_info{host="atlas", gpu="0"}': "1+0x200",
            'gpuboard_gpu_info{host="atlas", gpu="1"}': "1+0x100 stale",
            **host_in("fresh"),
        },
        100,
        110,
        {"host": "atlas"},
        "atlas reports 1 GPUs; it had more in the last week.",
    ),
    Alert(
        "GpuConflict",
        in_state("conflict"),
        9,
        11,
        {**GPU, "state": "conflict"},
        "GPU 2 of atlas is booked by one person and used by another.",
    ),
    Alert(
        "GpuHeld",
        in_state("held"),
        359,
        361,
        {**GPU, "state": "held"},
        "GPU 2 of atlas is held idle: memory taken, hardly used.",
    ),
    Alert(
        "GpuBookedUnused",
        in_state("booked"),
        719,
        721,
        {**GPU, "state": "booked"},
        "GPU 2 of atlas is booked, but has not been used for 12 hours.",
    ),
    Alert("GpuHot", {gpu_series("temperature_celsius"): "93+0x60"}, 9, 11, GPU, "GPU 2 of atlas is at 93 °C."),
    Alert(
        "GpuSlowedByHeat",
        {gpu_series("throttled", ', reason="heat"'): ALWAYS, gpu_series("throttled", ', reason="power"'): ALWAYS},
        9,
        11,
        {**GPU, "reason": "heat"},
        "GPU 2 of atlas is slowed by heat; check its fans and the room temperature.",
    ),
    Alert(
        "GpuMemoryErrors",
        {gpu_series("ecc_errors_total", ', kind="uncorrected"'): "0+0x20 1+0x20"},
        20,
        25,
        {**GPU, "kind": "uncorrected"},
        "GPU 2 of atlas had uncorrected memory errors; results computed on it may be wrong.",
    ),
    Alert(
        "GpuNeedsRecovery",
        {gpu_series("recovery_needed"): ALWAYS},
        4,
        6,
        GPU,
        "The driver asks for recovery of GPU 2 of atlas; the board shows what it asks for.",
    ),
    Alert(
        "GpuNeedsReset",
        {gpu_series("repair_pending"): ALWAYS},
        4,
        6,
        GPU,
        "GPU 2 of atlas needs a reset to finish a memory repair; reset it when it is not in use.",
    ),
    Alert(
        "GpuBroken",
        {gpu_series("repair_failed"): ALWAYS},
        4,
        6,
        GPU,
        "GPU 2 of atlas could not repair its memory; replace the GPU.",
    ),
    Alert(
        "NoGpuFree",
        {"gpuboard_build_info": ALWAYS, **in_state("busy")},
        59,
        61,
        {"state": "free"},
        "No GPU has been free for an hour.",
    ),
)


def severities() -> dict[str, str]:
    """The severity of each alert of the file."""
    return dict(re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", ALERTS.read_text(), re.DOTALL))


def group(case: Alert, *extra_minutes: int) -> dict[str, Any]:
    """A case as promtool reads it; it may fire in more minutes than one."""
    firing = {
        "exp_labels": {**case.labels, "severity": severities()[case.name]},
        "exp_annotations": {"summary": case.summary},
    }
    return {
        "interval": "1m",
        "input_series": series_of(case.series),
        "alert_rule_test": [
            {"eval_time": f"{case.quiet}m", "alertname": case.name, "exp_alerts": []},
            *(
                {"eval_time": f"{at}m", "alertname": case.name, "exp_alerts": [firing]}
                for at in (case.fires, *extra_minutes)
            ),
        ],
    }


def test_promtool_understands_the_alerts() -> None:
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES) + ALERTS.read_text().count('- record: ')} rules found" in done.stdout


def test_every_alert_has_a_case_here_and_names_metrics_that_there_are() -> None:
    assert set(severities()) == {case.name for case in CASES}
    assert set(re.findall(r"gpuboard_\w+", ALERTS.read_text())) <= NAMES


def test_every_alert_fires_in_time_and_not_before(tmp_path: Path) -> None:
    assert not promtool(tmp_path, {**RULES, "tests": [group(case) for case in CASES]})


def test_a_gpu_that_is_missing_is_reported_for_a_week(tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == "GpuMissing")
    week = 7 * 24 * 60
    steps = {"1+0x200": "1+0x2400", ALWAYS: "1+0x2400", "1+0x100 stale": "1+0x12 stale"}  # gone after an hour
    series = {name: steps[values] for name, values in case.series.items()}
    test = group(case._replace(series=series, fires=150, quiet=week + 90), 24 * 60, week)
    assert not promtool(tmp_path, {**RULES, "evaluation_interval": "5m", "tests": [{**test, "interval": "5m"}]})


def test_a_board_where_all_is_well_fires_nothing(tmp_path: Path) -> None:
    series = {
        "gpuboard_build_last_success_timestamp_seconds": "0+60x800",
        "gpuboard_build_interval_seconds": "60+0x800",
        "gpuboard_build_info": ALWAYS,
        "gpuboard_problems": "0+0x800",
        **host_in("fresh"),
        **in_state("free"),
        gpu_series("info"): ALWAYS,
        gpu_series("temperature_celsius"): "60+0x800",
        gpu_series("ecc_errors_total", ', kind="uncorrected"'): "2+0x800",
        **{gpu_series(name): "0+0x800" for name in ("repair_pending", "repair_failed", "recovery_needed")},
        gpu_series("throttled", ', reason="heat"'): "0+0x800",
    }
    quiet = [{"eval_time": "780m", "alertname": case.name, "exp_alerts": []} for case in CASES]
    tests = [{"interval": "1m", "input_series": series_of(series), "alert_rule_test": quiet}]
    assert not promtool(tmp_path, {**RULES, "tests": tests})


def test_a_gpu_that_is_cut_anew_into_fewer_instances_is_not_missing(tmp_path: Path) -> None:
    series = {
        'gpuboard_gpu_info{host="atlas", gpu="0"}': "1+0x200",
        'gpuboard_gpu_info{host="atlas", gpu="0:0"}': "1+0x200",
        'gpuboard_gpu_info{host="atlas", gpu="0:1"}': "1+0x100 stale",
        **host_in("fresh"),
    }
    quiet = [{"eval_time": "110m", "alertname": "GpuMissing", "exp_alerts": []}]
    tests = [{"interval": "1m", "input_series": series_of(series), "alert_rule_test": quiet}]
    assert not promtool(tmp_path, {**RULES, "tests": tests})
