"""A real Prometheus reads the board, and what docs/prometheus.md gives people for it works there."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from site_builder.board.outputs import metrics
from site_builder.core.model import HostStatus
from tests.support import booking_servers
from tests.support.board_fixture import Lab, gpu
from tests.support.docs import ROOT, blocks, rows
from tests.support.ports import free_port
from tests.support.prometheus import (
    ALERTS,
    Prometheus,
    boards,
    every_state,
    full_gpu,
    program,
    prometheus,
    promtool,
    series_of,
)

DASHBOARD = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
KIND = "text/plain; version=0.0.4; charset=utf-8"
ODD_NAME = 'NVIDIA "A\\B" {中文} \\n# 1'
NAMES = {family.name for family in metrics.ALL_FAMILIES}
# Panels that are empty where all is well.
EMPTY_WHERE_ALL_IS_WELL = {"Uncorrected GPU memory errors"}


def block(kind: str) -> str:
    """The one block of that kind."""
    (doc_block,) = blocks(kind)
    return doc_block.text


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
    boards: list[HostStatus]
    prometheus: Prometheus


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    folder = tmp_path_factory.mktemp("prometheus")
    lab = every_state(folder)
    lab.host("full")
    lab.host("odd", gpu(0, name=ODD_NAME, uuid="GPU-odd"))
    lab.host("spark", gpu(0, "[N/A]", 0, "NVIDIA GB10", "GPU-spark", "[N/A]"))
    lab.write("full", "gpus.csv", "\n".join(", ".join(row) for row in (full_gpu().columns, full_gpu().cells)) + "\n")
    for _ in range(2):  # the second tells how long the first took
        lab.build()
    content, lab_boards = (lab.www / "metrics").read_bytes(), boards(lab)
    with booking_servers.place() as place:
        port = free_port()
        files = {path.name: path.read_text() for path in (ROOT / "docs/webservers").glob("nginx-*.conf")}
        server = f"server {{ listen 127.0.0.1:{port}; root {lab.www};\n{files['nginx-files.conf']} }}"
        conf = block("prometheus").replace("web.example.org:80", f"127.0.0.1:{port}").replace("30s", "1s")
        conf = conf.replace("/etc/prometheus/gpuboard-alerts.yml", str(ALERTS))
        with (
            booking_servers.nginx(place, files["nginx-maps.conf"] + server, port),
            prometheus(folder / "prometheus", conf) as prometheus_server,
        ):
            yield Scraped(port, lab, content, lab_boards, prometheus_server)


# The file, from the web server to Prometheus


def test_nginx_says_what_the_file_is_and_compresses_it(scraped: Scraped) -> None:
    answer, body = get(scraped.port)
    assert (answer.status, answer.getheader("Content-Type"), body) == (200, KIND, scraped.content)
    answer, body = get(scraped.port, Accept_Encoding="gzip")
    assert (answer.getheader("Content-Encoding"), gzip.decompress(body)) == ("gzip", scraped.content)


def test_prometheus_takes_every_sample(scraped: Scraped) -> None:
    lines = [line for line in scraped.content.splitlines() if not line.startswith(b"#")]
    assert scraped.prometheus.query("up")[0][1] == 1
    assert scraped.prometheus.query("scrape_samples_scraped")[0][1] == len(lines)
    assert scraped.prometheus.query('count({__name__=~"gpuboard_.*"})')[0][1] == len(lines)


def test_prometheus_answers_with_the_values_of_the_board(scraped: Scraped) -> None:
    for family, (field, multiplier, divisor) in metrics.READING_FAMILIES.items():
        expected = {
            (board.name, str(row.gpu.index)): getattr(row.gpu, field) * multiplier / divisor
            for board in scraped.boards
            for row in board.gpus
            if getattr(row.gpu, field) is not None
        }
        samples = scraped.prometheus.query(family.name)
        assert {(labels["host"], labels["gpu"]): value for labels, value in samples} == expected
    assert scraped.prometheus.query("gpuboard_problems")[0][1] == len(scraped.lab.status()["problems"]) > 0
    states = scraped.prometheus.query("gpuboard_gpu_state")
    assert {(labels["host"], labels["gpu"]): labels["state"] for labels, _ in states} == {
        (board.name, str(row.gpu.index)): row.state for board in scraped.boards for row in board.gpus
    }


def test_prometheus_reads_an_odd_name_as_it_is(scraped: Scraped) -> None:
    ((labels, _),) = scraped.prometheus.query('gpuboard_gpu_info{host="odd"}')
    assert labels["name"] == ODD_NAME


def test_prometheus_has_every_metric_that_there_is(scraped: Scraped) -> None:
    metric_names = {labels["__name__"] for labels, _ in scraped.prometheus.query('{__name__=~"gpuboard_.*"}')}
    assert metric_names == NAMES


def test_prometheus_knows_the_type_and_the_help_of_every_metric(scraped: Scraped) -> None:
    (target,) = scraped.prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    metric_descriptions = {
        metadata_entry["metric"]: (metadata_entry["type"], metadata_entry["help"])
        for metadata_entry in scraped.prometheus.ask("targets/metadata")
    }
    assert metric_descriptions == {
        family.name: (family.metric_type, family.help_text) for family in metrics.ALL_FAMILIES
    }


# What the docs say


def test_the_docs_list_every_metric_with_its_labels_and_no_other() -> None:
    documented = {
        name: row[0] for row in rows("docs/prometheus.md", "labels") for name in re.findall("`(.*?)`", row[1])
    }
    assert documented == {family.name: family.labels or "none" for family in metrics.ALL_FAMILIES}


def test_every_label_is_one_that_the_docs_name(scraped: Scraped) -> None:
    labels = {family.name: {*family.labels.split(", ")} - {""} for family in metrics.ALL_FAMILIES}
    for line in scraped.content.decode().splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("{")
            assert set(re.findall(r'(\w+)="', rest)) == labels[name.split()[0]]


def test_the_settings_of_the_docs_are_understood(tmp_path: Path) -> None:
    conf = tmp_path / "prometheus.yml"
    conf.write_text(block("prometheus").replace("/etc/prometheus/gpuboard-alerts.yml", str(ALERTS)))
    subprocess.run([program("promtool"), "check", "config", str(conf)], check=True)


@pytest.mark.parametrize("words", [query_block.text for query_block in blocks("promql")])
def test_the_queries_of_the_docs_find_something(scraped: Scraped, words: str) -> None:
    assert set(re.findall(r"gpuboard_\w+", words)) <= NAMES
    assert scraped.prometheus.query(words)


# The dashboard


def expressions() -> list[tuple[str, str]]:
    """Each query of the dashboard, with the title of its panel, as Grafana sends it where nothing is chosen."""
    titled_queries = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    return [(title, re.sub(r"\$(host|model)\b", ".*", words)) for title, words in titled_queries]


@pytest.mark.parametrize(("title", "words"), expressions())
def test_every_panel_shows_something(scraped: Scraped, title: str, words: str) -> None:
    assert "$" not in words
    assert set(re.findall(r"gpuboard_\w+", words)) <= NAMES
    assert scraped.prometheus.query(words) or title in EMPTY_WHERE_ALL_IS_WELL


GOT = re.compile(r"expr: (\".*\"), time: \w+,\n +exp: nil\n +got: (.*)")


def shown(folder: Path, series: Mapping[str, str], minute: int) -> dict[str, str]:
    """What each panel that shows something does in that minute, by promtool: it is told that none does, and objects."""
    queries = [{"expr": words, "eval_time": f"{minute}m"} for _, words in expressions()]
    tests = [{"interval": "1m", "input_series": series_of(series), "promql_expr_test": queries}]
    promtool_output = promtool(folder, {"tests": tests})
    panel_outputs = {json.loads(words): got for words, got in GOT.findall(promtool_output)}
    assert promtool_output.count("expr: ") == len(panel_outputs), promtool_output
    return {title: panel_outputs[words] for title, words in expressions() if words in panel_outputs}


def scrapes(content: bytes) -> dict[str, str]:
    """A file of metrics that is scraped again and again, and was built in minute 0."""
    lines = [line.rpartition(" ") for line in content.decode().splitlines() if not line.startswith("#")]
    series_by_name = {name: f"{value}+0x60" for name, _, value in lines}
    return {**series_by_name, "gpuboard_build_last_success_timestamp_seconds": "0+0x60"}


def test_with_no_metrics_no_panel_shows_a_number(tmp_path: Path) -> None:
    assert shown(tmp_path, {"up": "1+0x60"}, 10) == {}


def test_the_numbers_of_a_board_that_stands_are_not_shown(scraped: Scraped, tmp_path: Path) -> None:
    series = scrapes(scraped.content)
    titles = {panel["title"] for panel in PANELS}
    assert titles - EMPTY_WHERE_ALL_IS_WELL == shown(tmp_path, series, 3).keys()
    assert shown(tmp_path, series, 10) == {"Age of the board": "{} 6E+02"}


def test_a_board_with_no_hosts_has_none_in_any_state(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab")
    lab.build()
    panel_outputs = shown(tmp_path, scrapes((lab.www / "metrics").read_bytes()), 1)
    titles = {"Free GPUs", "In use", "Booked, unused", "Lost or unknown", "Hosts not fresh"}
    assert {title: panel_outputs.get(title) for title in titles} == dict.fromkeys(titles, "{} 0E+00")


def test_free_gpus_by_model_are_those_of_the_board(scraped: Scraped) -> None:
    (words,) = (words for title, words in expressions() if title == "Free now, by model")
    free: dict[str, int] = {}
    for board in scraped.boards:
        for row in board.gpus:
            if row.state == "free":
                free[row.model] = free.get(row.model, 0) + 1
    assert {labels["model"]: value for labels, value in scraped.prometheus.query(words)} == free


def test_a_choice_of_the_dashboard_offers_what_there_is(scraped: Scraped) -> None:
    choices = {template_variable["name"]: template_variable for template_variable in DASHBOARD["templating"]["list"]}
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
