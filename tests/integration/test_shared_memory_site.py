"""GPUs that share the memory of their host, from data/ to www/: every output shows what a program can allocate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from playwright.sync_api import Browser, Page, expect

from site_builder.client import loader, picker, search
from site_builder.client.model import Fleet
from site_builder.core.model import HostFacts, ParsedFile, SharedMemory
from site_builder.history.writer import sample_host
from tests.integration.test_page_search import SHOWN
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.browser import ROOT, Site, open_page, served, wait_until
from tests.support.command_line import run_gpuboard
from tests.support.generated_fleet import decide, head, host_data
from tests.support.generated_fleet import gpu as parsed_gpu
from tests.support.page_checks import find_accessibility_faults

GB10 = gpu(0, "[N/A]", 0, "NVIDIA GB10", "GPU-spark", "[N/A]")
SEARCHES = [
    ("mem>=10", {"atlas": "0", "spark": "0"}),
    ("mem>=20", {"atlas": "0", "spark": "0"}),
    ("mem>=21", {"atlas": "0"}),
    ("mem=20", {"spark": "0"}),
    ("mem<30", {"spark": "0"}),
]


def push(lab: Lab, available: int = 20_480) -> None:
    """An idle DGX Spark, beside a host whose GPU has memory of its own; each with 120 GiB."""
    facts = f"cpus=20\nload=1.5 1.2 1.0\nmemory_total=122880\nmemory_available={available}\n"
    lab.host("spark", GB10, facts=facts)
    lab.host("atlas", gpu(), facts=facts)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    board_lab = Lab(tmp_path / "lab")
    push(board_lab)
    board_lab.build()
    return board_lab


def text(lab: Lab, name: str) -> str:
    return (lab.www / name).read_text()


def load_fleet(lab: Lab) -> Fleet:
    fleet, wrong = loader.parse_status((lab.www / "status.json").read_bytes())
    assert fleet, wrong
    return fleet


@pytest.mark.parametrize("name", ["status", "states/index", "nodes/index"])
def test_files_for_programs_are_as_their_schemas_say(lab: Lab, name: str) -> None:
    schema = json.loads((ROOT / f"docs/{name.partition('/')[0]}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(text(lab, f"{name}.json")), schema)


def test_files_for_programs_have_the_memory_and_say_that_it_is_shared(lab: Lab) -> None:
    (spark,) = lab.host_status("spark")["gpus"]
    assert (spark["memory.used"], spark["memory.total"], spark["memory.shared"]) == (102_400, 122_880, True)
    assert spark["state"] == "free"
    assert lab.host_status("atlas")["gpus"][0]["memory.shared"] is False
    node = json.loads(text(lab, "nodes/spark.json"))["gpus"][0]
    assert (node["use_mem"], node["tot_mem"], node["memory_shared"]) == (102_400, 122_880, True)
    states = json.loads(text(lab, "states/spark/index.json"))["spark"]["data"][0]["gpu_data"]["gpu:0"]
    assert (states["available_memory"], states["total_memory"], states["memory_shared"]) == (20_480, 122_880, True)
    assert "memory_shared" not in text(lab, "nodes/atlas.json") + text(lab, "states/atlas/index.json")


def test_metrics_name_only_the_gpus_that_share_their_memory(lab: Lab) -> None:
    metrics = text(lab, "metrics").splitlines()
    assert [line for line in metrics if line.startswith("gpuboard_gpu_memory_shared{")] == [
        'gpuboard_gpu_memory_shared{host="spark",gpu="0"} 1'
    ]
    assert f'gpuboard_gpu_memory_total_bytes{{host="spark",gpu="0"}} {122_880 * 2**20}.0' in metrics


def test_texts_for_a_terminal_say_that_it_is_shared(lab: Lab, tmp_path: Path) -> None:
    term = text(lab, "term.txt")
    assert " 102400 / 122880 |" in term
    assert "\nshared memory: spark:0\n" in term
    assert "free: atlas:0 spark:0\n" in term
    detail = text(lab, "detail.txt")
    assert detail.count("│ memory shared with the host ") == 1
    listed = run_gpuboard(tmp_path, "list", "--data", str(lab.data)).stdout
    assert [line.count("100/120 GiB shared") for line in listed.splitlines() if "GiB" in line] == [0, 1]
    spark = json.loads(run_gpuboard(tmp_path, "list", "--json", "--data", str(lab.data)).stdout)["hosts"][1]["gpus"][0]
    assert (spark["memory.used"], spark["memory.total"], spark["memory.shared"]) == (102_400, 122_880, True)


def test_a_request_for_memory_counts_what_can_be_allocated_now(lab: Lab, tmp_path: Path) -> None:
    def pick(gib: int) -> str:
        words = ("available", "--all", "--min-memory", f"{gib}GiB", "--data", str(lab.data))
        return run_gpuboard(tmp_path, *words).stdout.strip()

    assert (pick(19), pick(21)) == ("atlas:0 spark:0", "atlas:0")
    assert text(lab, "available.txt") == "atlas:0 spark:0\n"
    requester = picker.GpuRequester(lambda _: False, frozenset(), 0)
    choices = picker.pick_available_gpus(load_fleet(lab).hosts, picker.GpuRequest(memory=20_480), requester)
    assert [(choice.host.name, choice.gpu.free_memory) for choice in choices] == [("atlas", 81_916), ("spark", 20_480)]


@pytest.mark.parametrize(("words", "expected_gpus"), SEARCHES)
def test_a_search_counts_what_can_be_allocated_now(lab: Lab, words: str, expected_gpus: dict[str, str]) -> None:
    matching = search.search_fleet(load_fleet(lab), [words])
    assert {host.name: "".join(gpu.label for gpu in host.gpus) for host in matching.hosts} == expected_gpus


def test_the_board_and_the_hosts_page_have_a_label(lab: Lab) -> None:
    for page in ("index.html", "hosts/spark.html"):
        assert '100 / 120 GiB <small title="Memory of the host, which programs' in text(lab, page)
    assert "shared</small>" not in text(lab, "hosts/atlas.html")


def test_unknown_memory_of_the_host_stays_unknown(lab: Lab) -> None:
    lab.host("spark", GB10, facts="cpus=20\n")
    lab.build(30)
    (spark,) = lab.host_status("spark")["gpus"]
    assert (spark["memory.used"], spark["memory.total"], spark["memory.shared"]) == (None, None, True)
    assert "– / – GiB <small" in text(lab, "hosts/spark.html")


def test_a_job_makes_it_busy_however_much_memory_is_left(lab: Lab) -> None:
    lab.host("spark", GB10, process(42, "GPU-spark"), person(), facts="memory_total=122880\nmemory_available=122000\n")
    lab.build(30)
    assert lab.states("spark") == ["busy"]


def test_history_has_the_memory_in_use() -> None:
    shared = parsed_gpu(used=None, memory_total=None, shared_memory=SharedMemory(is_all=True))
    facts = ParsedFile((HostFacts(memory_total=122_880, memory_available=20_480),), head("host"))
    sample = sample_host(decide(host_data([shared], facts=facts)))
    assert sample
    assert [(one.memory, one.series.memory_total) for one in sample.gpus] == [(102_400, 122_880)]


# The page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Site]]:
    folder = tmp_path_factory.mktemp("shared-memory")
    board_lab = Lab(folder / "lab")
    push(board_lab)
    board_lab.build()
    with served(board_lab.www, folder / "server") as web_server:
        yield board_lab, web_server


@pytest.fixture
def page(browser: Browser, site: tuple[Lab, Site]) -> Iterator[Page]:
    with open_page(browser, site[1].url) as board_page:
        yield board_page


@pytest.mark.slow
def test_the_page_searches_as_the_terminal_does(page: Page) -> None:
    for words, expected_gpus in SEARCHES:
        page.locator("[name=q]").fill(words)
        wait_until(
            page,
            f"(expected) => JSON.stringify(({SHOWN})()) === expected",
            json.dumps(expected_gpus, separators=(",", ":")),
        )
    assert find_accessibility_faults(page) == []


@pytest.mark.slow
def test_numbers_that_move_keep_the_label(page: Page, site: tuple[Lab, Site]) -> None:
    lab, _ = site
    cell = page.locator("#spark .gpus td").nth(2)
    expect(cell).to_have_text("100 / 120 GiB shared")
    push(lab, available=40_960)
    lab.build(30)
    page.evaluate("() => pollServer()")
    expect(cell).to_have_text("80 / 120 GiB shared")
    push(lab)
