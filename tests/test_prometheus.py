"""A real Prometheus reads the board, and what docs/prometheus.md gives people for it works there."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from site_builder.model import BoardHost
from site_builder.renderers import metrics
from tests import desk_servers as servers
from tests.docs import ROOT, blocks
from tests.lab import Lab, gpu
from tests.live import free_port
from tests.prometheus import Prometheus, boards, every_state, program, prometheus
from tests.test_docs import rows
from tests.test_metrics import full_gpu

ALERTS = ROOT / "docs/prometheus-alerts.yml"
DASHBOARD = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
KIND = "text/plain; version=0.0.4; charset=utf-8"
ODD_NAME = 'NVIDIA "A\\B" {中文} \\n# 1'
NAMES = {family.name for family in metrics.ALL}
# Panels that are empty where all is well.
EMPTY_WHERE_ALL_IS_WELL = {"Errors in the memory of GPUs"}


def block(kind: str) -> str:
    """The one block of that kind."""
    (found,) = blocks(kind)
    return found.text


def get(port: int, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    """/metrics of a server here."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        line.request("GET", "/metrics", headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = line.getresponse()
        return answer, answer.read()
    finally:
        line.close()


class Scraped(NamedTuple):
    """A lab with every state, nginx before its site, and a Prometheus that has read it."""

    port: int
    lab: Lab
    content: bytes
    boards: list[BoardHost]
    prometheus: Prometheus


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("prometheus")
    lab = every_state(folder)
    lab.host("full")
    lab.host("odd", gpu(0, name=ODD_NAME, uuid="GPU-odd"))
    lab.write("full", "gpus.csv", "\n".join(", ".join(row) for row in (full_gpu().columns, full_gpu().cells)) + "\n")
    for _ in range(2):  # the second tells how long the first took
        lab.build()
    content, several = (lab.www / "metrics").read_bytes(), boards(lab)
    with servers.place() as place:
        port = free_port()
        server = f"server {{ listen 127.0.0.1:{port}; root {lab.www}; {block('nginx-metrics')} }}"
        conf = block("prometheus").replace("web.example.org:80", f"127.0.0.1:{port}").replace("30s", "1s")
        conf = conf.replace("/etc/prometheus/gpuboard-alerts.yml", str(ALERTS))
        with servers.nginx(place, server, port), prometheus(folder / "prometheus", conf) as one:
            yield Scraped(port, lab, content, several, one)


# The file, from the web server to Prometheus


def test_nginx_says_what_the_file_is_and_compresses_it(scraped: Scraped) -> None:
    answer, body = get(scraped.port)
    assert (answer.status, answer.getheader("Content-Type"), body) == (200, KIND, scraped.content)
    answer, body = get(scraped.port, Accept_Encoding="gzip")
    assert (answer.getheader("Content-Encoding"), gzip.decompress(body)) == ("gzip", scraped.content)


def test_apache_says_what_the_file_is() -> None:
    with servers.place() as place:
        (place.lab.www / "metrics").write_text("# nothing\n")
        port = free_port()
        modules = ("mpm_event", "dir", "mime", "cgid", "authz_core")
        load = "\n".join(f"LoadModule {name}_module {servers.MODULES}/mod_{name}.so" for name in modules)
        conf = place.folder / "apache.conf"
        facts = {"port": port, "folder": place.folder, "www": place.lab.www, "modules": load}
        types = "TypesConfig /dev/null\n"
        conf.write_text(servers.APACHE.format(content=types + block("apache-metrics"), **facts))
        with servers.running(place, port, servers.program("apache2"), "-f", str(conf), "-D", "FOREGROUND"):
            answer, body = get(port)
    assert (answer.status, answer.getheader("Content-Type"), body) == (200, KIND, b"# nothing\n")


def test_gpuboard_serve_says_what_the_file_is() -> None:
    with servers.place() as place:
        (place.lab.www / "metrics").write_text("# nothing\n")
        with servers.serve(place) as served:
            answer, body = get(served.port)
    assert (answer.status, answer.getheader("Content-Type"), body) == (200, KIND, b"# nothing\n")


def test_prometheus_takes_every_sample(scraped: Scraped) -> None:
    lines = [line for line in scraped.content.splitlines() if not line.startswith(b"#")]
    assert scraped.prometheus.query("up")[0][1] == 1
    assert scraped.prometheus.query("scrape_samples_scraped")[0][1] == len(lines)
    assert scraped.prometheus.query('count({__name__=~"gpuboard_.*"})')[0][1] == len(lines)


def test_prometheus_answers_with_the_values_of_the_board(scraped: Scraped) -> None:
    for family, reading in metrics.READINGS.items():
        expected = {
            (one.name, str(row.gpu.index)): row.gpu[reading.place] * reading.times / reading.over  # type: ignore[operator]
            for one in scraped.boards
            for row in one.gpus
            if row.gpu[reading.place] is not None
        }
        found = scraped.prometheus.query(family.name)
        assert {(labels["host"], labels["gpu"]): value for labels, value in found} == expected
    assert scraped.prometheus.query("gpuboard_problems")[0][1] == len(scraped.lab.status()["problems"]) > 0
    states = scraped.prometheus.query("gpuboard_gpu_state")
    assert {(labels["host"], labels["gpu"]): labels["state"] for labels, _ in states} == {
        (one.name, str(row.gpu.index)): row.state for one in scraped.boards for row in one.gpus
    }


def test_prometheus_reads_an_odd_name_as_it_is(scraped: Scraped) -> None:
    ((labels, _),) = scraped.prometheus.query('gpuboard_gpu_info{host="odd"}')
    assert labels["name"] == ODD_NAME


def test_prometheus_has_every_metric_that_there_is(scraped: Scraped) -> None:
    told = {labels["__name__"] for labels, _ in scraped.prometheus.query('{__name__=~"gpuboard_.*"}')}
    assert told == NAMES


def test_prometheus_knows_the_type_and_the_help_of_every_metric(scraped: Scraped) -> None:
    (target,) = scraped.prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    told = {one["metric"]: (one["type"], one["help"]) for one in scraped.prometheus.ask("targets/metadata")}
    assert told == {family.name: (family.kind, family.what) for family in metrics.ALL}


# What the docs say


def test_the_docs_list_every_metric_and_no_other() -> None:
    told = [(row[0].strip("`"), row[1], row[2]) for row in rows("docs/prometheus.md", "metric")]
    assert told == [(family.name, family.labels, family.what) for family in metrics.ALL]


def test_every_label_is_one_that_the_docs_name(scraped: Scraped) -> None:
    labels = {family.name: {*family.labels.split(", ")} - {""} for family in metrics.ALL}
    for line in scraped.content.decode().splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("{")
            assert set(re.findall(r'(\w+)="', rest)) == labels[name.split()[0]]


def test_the_settings_of_the_docs_are_understood(tmp_path: Path) -> None:
    conf = tmp_path / "prometheus.yml"
    conf.write_text(block("prometheus").replace("/etc/prometheus/gpuboard-alerts.yml", str(ALERTS)))
    subprocess.run([program("promtool"), "check", "config", str(conf)], check=True)


@pytest.mark.parametrize("words", [one.text for one in blocks("promql")])
def test_the_queries_of_the_docs_find_something(scraped: Scraped, words: str) -> None:
    assert set(re.findall(r"gpuboard_\w+", words)) <= NAMES
    assert scraped.prometheus.query(words)


# The dashboard


def expressions() -> list[tuple[str, str]]:
    """Each query of the dashboard, with the title of its panel, as Grafana sends it where nothing is chosen."""
    found = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    return [(title, re.sub(r"\$(host|model)\b", ".*", words)) for title, words in found]


@pytest.mark.parametrize(("title", "words"), expressions())
def test_every_panel_shows_something(scraped: Scraped, title: str, words: str) -> None:
    assert "$" not in words
    assert set(re.findall(r"gpuboard_\w+", words)) <= NAMES
    assert scraped.prometheus.query(words) or title in EMPTY_WHERE_ALL_IS_WELL


def test_free_gpus_by_model_are_those_of_the_board(scraped: Scraped) -> None:
    (words,) = (words for title, words in expressions() if title == "Free now, by model")
    free: dict[str, int] = {}
    for board in scraped.boards:
        for row in board.gpus:
            if row.state == "free":
                free[row.model] = free.get(row.model, 0) + 1
    assert {labels["model"]: value for labels, value in scraped.prometheus.query(words)} == free


def test_a_choice_of_the_dashboard_offers_what_there_is(scraped: Scraped) -> None:
    choices = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    for name in ("host", "model"):
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", choices[name]["definition"])
        assert match and match[1] in NAMES
        assert scraped.prometheus.query(f'{match[1]}{{{match[2]}!=""}}')


def test_the_panels_have_each_their_own_place_and_number() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells


def test_the_dashboard_names_no_data_source_of_ours() -> None:
    sources = {json.dumps(panel["datasource"], sort_keys=True) for panel in PANELS}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}


# The alerts


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
        "Prometheus gets no metrics from the board; look at the web server and at /metrics.",
    ),
    Alert(
        "GpuboardBuilderStopped",
        {"gpuboard_build_last_success_timestamp_seconds": "0+0x60", "gpuboard_build_interval_seconds": "10+0x60"},
        1,
        10,
        {},
        "The board was last built 10m 0s ago; look at cron and at state/build.log on the web host.",
    ),
    Alert(
        "GpuboardProblems",
        {"gpuboard_problems": "3+0x120"},
        59,
        61,
        {},
        "The board tells 3 problems; they stand at the end of the page.",
    ),
    Alert(
        "GpuHostStale",
        host_in("stale"),
        9,
        11,
        {"host": "atlas", "state": "stale"},
        "atlas sends old snapshots; try gpu-check.sh status there.",
    ),
    Alert(
        "GpuHostDown",
        host_in("down"),
        1,
        3,
        {"host": "atlas", "state": "down"},
        "Nothing has come from atlas for more than 10 minutes; is it up, and can it reach the web host?",
    ),
    Alert(
        "GpuHostFailed",
        host_in("failed"),
        1,
        3,
        {"host": "atlas", "state": "failed"},
        "nvidia-smi tells no GPU on atlas; the reason is on its card.",
    ),
    Alert(
        "GpuHostUnseen",
        host_in("unseen"),
        59,
        61,
        {"host": "atlas", "state": "unseen"},
        "atlas is listed, but it never pushed; ./install.sh host sets it up.",
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
        "The driver of atlas cannot reach GPU 2; a reset or a reboot may help.",
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
        "atlas tells 1 GPUs, fewer than an hour ago.",
    ),
    Alert(
        "GpuViolated",
        in_state("violated"),
        9,
        11,
        {**GPU, "state": "violated"},
        "GPU 2 of atlas is booked by one person and used by another.",
    ),
    Alert(
        "GpuHeld",
        in_state("held"),
        359,
        361,
        {**GPU, "state": "held"},
        "The memory of GPU 2 of atlas is taken, but hardly used.",
    ),
    Alert(
        "GpuBookedUnused",
        in_state("booked"),
        719,
        721,
        {**GPU, "state": "booked"},
        "GPU 2 of atlas is promised, and nobody has used it for 12 hours.",
    ),
    Alert("GpuHot", {gpu_series("temperature_celsius"): "93+0x60"}, 9, 11, GPU, "GPU 2 of atlas has 93 °C."),
    Alert(
        "GpuSlowedByHeat",
        {gpu_series("throttled", ', reason="heat"'): ALWAYS, gpu_series("throttled", ', reason="power"'): ALWAYS},
        9,
        11,
        {**GPU, "reason": "heat"},
        "GPU 2 of atlas runs slower since it is too warm; look at its fans and at the room.",
    ),
    Alert(
        "GpuMemoryErrors",
        {gpu_series("ecc_errors_total", ', kind="uncorrected"'): "0+0x20 1+0x20"},
        20,
        25,
        {**GPU, "kind": "uncorrected"},
        "GPU 2 of atlas had errors in its memory that could not be corrected; what ran there may be wrong.",
    ),
    Alert(
        "GpuNeedsReset",
        {gpu_series("repair_pending"): "0+0x60", gpu_series("recovery_needed"): ALWAYS},
        4,
        6,
        GPU,
        "GPU 2 of atlas asks for a reset; do it when nobody is on it.",
    ),
    Alert(
        "GpuBroken",
        {gpu_series("repair_failed"): ALWAYS},
        4,
        6,
        GPU,
        "GPU 2 of atlas could not replace a bad row of its memory; have it exchanged.",
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
    """How grave each alert of the file is."""
    return dict(re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", ALERTS.read_text(), re.DOTALL))


def group(case: Alert) -> dict[str, Any]:
    """A case as promtool reads it."""
    firing = {
        "exp_labels": {**case.labels, "severity": severities()[case.name]},
        "exp_annotations": {"summary": case.summary},
    }
    return {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{case.quiet}m", "alertname": case.name, "exp_alerts": []},
            {"eval_time": f"{case.fires}m", "alertname": case.name, "exp_alerts": [firing]},
        ],
    }


def test_promtool_understands_the_alerts() -> None:
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES)} rules found" in done.stdout


def test_every_alert_has_a_case_here_and_names_metrics_that_there_are() -> None:
    assert set(severities()) == {case.name for case in CASES}
    assert set(re.findall(r"gpuboard_\w+", ALERTS.read_text())) <= NAMES


def test_every_alert_fires_in_time_and_not_before(tmp_path: Path) -> None:
    # JSON is YAML, and Python has a writer for it
    file = tmp_path / "cases.yml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [group(case) for case in CASES]}))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
    told = [{"series": name, "values": values} for name, values in series.items()]
    tests = [{"interval": "1m", "input_series": told, "alert_rule_test": quiet}]
    file = tmp_path / "well.yml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": tests}))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
