"""GPUs in MIG mode from data/ to www/: every output tells instances under their GPU, and commands have them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import jsonschema
import pytest

from site_builder.client import loader, search
from site_builder.client import render as client_render
from site_builder.client.model import Fleet
from site_builder.health import gpu_health
from site_builder.history import block_format
from site_builder.history.reader import HistoryReader
from site_builder.history.writer import sample_host
from tests.support.board_fixture import GPU_COLUMNS, Lab
from tests.support.board_fixture import gpu as gpu_row
from tests.support.booking_fixtures import ME, entries
from tests.support.browser import ROOT
from tests.support.generated_fleet import decide, gpu, host_data
from tests.support.mig_fixtures import gpuboard, instances, lab_in, push, readable
from tests.support.prometheus import program

FULL = "mig 0 0:0=7000 0:1=7000 0:2=7000 0:3=7000"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with readable():
        yield lab_in(tmp_path)


def fleet_of(lab: Lab) -> Fleet:
    fleet, wrong = loader.parse_status((lab.www / "status.json").read_bytes())
    assert fleet, wrong
    return fleet


def text(lab: Lab, name: str) -> str:
    return (lab.www / name).read_text()


# status.json and its likes


@pytest.mark.parametrize("name", ["status", "states/index", "nodes/index", "waste"])
def test_files_for_programs_are_as_their_schemas_say(lab: Lab, name: str) -> None:
    lab.build()
    schema = json.loads((ROOT / f"docs/{name.partition('/')[0]}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(text(lab, f"{name}.json")), schema)


def test_a_gpu_appears_once_with_its_instances(lab: Lab) -> None:
    lab.build()
    cut, plain = lab.host_status()["gpus"]
    assert (cut["index"], cut["uuid"], cut["state"]) == (0, "GPU-0", "busy")
    assert cut["reason"] == "3 of 4 instances are free: 0:0, 0:2, 0:3"
    assert [process_or_instance["user"] for process_or_instance in cut["processes"]] == ["alice"]
    assert [
        (process_or_instance["place"], process_or_instance["profile"], process_or_instance["state"])
        for process_or_instance in cut["instances"]
    ] == [
        ("0:0", "3g.40gb", "free"),
        ("0:1", "2g.20gb", "busy"),
        ("0:2", "1g.10gb", "free"),
        ("0:3", "1g.10gb", "free"),
    ]
    assert "instances" not in plain
    assert "place" not in plain


def test_use_is_never_zero_where_it_is_not_available(lab: Lab) -> None:
    lab.build()
    cut = lab.host_status()["gpus"][0]
    for device in (cut, *cut["instances"]):
        assert device["utilization.gpu"] is None
        assert device["utilization.memory"] is None
    assert cut["temperature.gpu"] == 44
    assert [device["temperature.gpu"] for device in cut["instances"]] == [None] * 4


def test_whoever_reads_it_has_instances_as_what_can_be_had(lab: Lab) -> None:
    lab.build()
    (host,) = fleet_of(lab).hosts
    assert [device.label for device in host.gpus] == ["0:0", "0:1", "0:2", "0:3", "1"]
    assert host.gpus[0].parent_keys == ("0", "gpu-0")
    assert [device.label for device in host.mig_gpus] == ["0"]


@pytest.mark.parametrize("odd", [[7], [{}], [{"state": "free"}], "all", {"0:1": {}}])
def test_instances_that_cannot_be_understood_make_no_gpu_free(lab: Lab, odd: object) -> None:
    lab.build()
    board_status = lab.status()
    board_status["hosts"][0]["gpus"][0].update(instances=odd, state="free")
    fleet, _ = loader.parse_status(json.dumps(board_status).encode())
    assert fleet
    assert fleet.hosts[0].gpus[0].state == "unknown"


def test_a_gpu_without_a_number_has_its_instances_too(lab: Lab) -> None:
    lab.build()
    board_status = lab.status()
    board_status["hosts"][0]["gpus"][0]["index"] = None
    fleet, _ = loader.parse_status(json.dumps(board_status).encode())
    assert fleet
    (host,) = fleet.hosts
    assert [len(gpu_json.get("instances", ())) for gpu_json in client_render.client_gpus_to_json(host)] == [4, 0]
    assert "H100 80 GB (3g.40gb, 2g.20gb, 2 × 1g.10gb)" in search.list_searched_models(host).values()


def test_list_agrees_with_status_json(lab: Lab, tmp_path: Path) -> None:
    lab.build()
    listing = json.loads(gpuboard(tmp_path, "list", "--json", "--data", "data").stdout)
    assert listing["hosts"][0]["gpus"] == lab.host_status()["gpus"]


def test_list_shows_instances_below_their_gpu(lab: Lab, tmp_path: Path) -> None:  # noqa: ARG001
    lines = gpuboard(tmp_path, "list", "--data", "data").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["0", "MIG"],
        ["0:0", "["],
        ["0:1", "[~]"],
        ["0:2", "["],
        ["0:3", "["],
        ["1", "["],
    ]
    assert "3 of 4 instances are free" in lines[1]


@pytest.mark.parametrize(("words", "labels"), [("1g.10gb", "0:2,0:3"), ("state:busy", "0:1"), ("alice", "0:1")])
def test_a_search_finds_instances(lab: Lab, tmp_path: Path, words: str, labels: str) -> None:  # noqa: ARG001
    listing = json.loads(gpuboard(tmp_path, "list", "--json", "--data", "data", words).stdout)
    places = [instance["place"] for cut in listing["hosts"][0]["gpus"] for instance in cut.get("instances", ())]
    # a model that stands in the head of a host fits all that it has
    assert set(labels.split(",")) <= set(places)


# Texts


def test_term_txt_has_instances_below_their_gpu(lab: Lab) -> None:
    lab.build()
    rows = [line.split("|")[2] for line in text(lab, "term.txt").splitlines() if line.startswith("|")][2:]
    assert [row.split()[0] for row in rows] == ["0:H100", "0:0", "0:1", "0:2", "0:3", "1:A100-SXM4-80GB"]
    assert "free: atlas:0:0,0:2,0:3,1\n" in text(lab, "term.txt")
    assert all(len(line) <= 80 for line in text(lab, "term.txt").splitlines())


def test_detail_txt_has_a_box_for_each(lab: Lab) -> None:
    lab.build()
    for name in ("[ gpu:0 H100 80GB HBM3 ", "[ gpu:0:1 H100 2g.20gb ", "[ gpu:1 A100-SXM4-80GB "):
        assert name in text(lab, "detail.txt")
    assert text(lab, "detail.txt").count("python train.py") == 1


def test_whole_gpus_are_for_one_process_and_instances_by_name(lab: Lab) -> None:
    lab.build()
    assert text(lab, "available/atlas.txt") == "GPU-1\n"  # where one is cut, numbers are not CUDA's
    assert text(lab, "available.txt") == "atlas:1 atlas:0:0 atlas:0:2 atlas:0:3\n"


def test_where_there_are_only_instances_it_is_the_best_of_them(lab: Lab) -> None:
    push(lab, gpus=gpu_row(1, 70000, 99))
    lab.build()
    assert text(lab, "available/atlas.txt") == "MIG-0-0\n"


def test_a_gpu_in_mig_mode_that_is_full_is_not_available(lab: Lab) -> None:
    push(lab, mig=FULL, gpus=gpu_row(1, 70000, 99))
    lab.build()
    assert text(lab, "available.txt") == ""


# Metrics


def samples(lab: Lab, name: str) -> dict[str, str]:
    lines = (line for line in text(lab, "metrics").splitlines() if line.startswith(f"gpuboard_gpu_{name}{{"))
    return {line.partition('gpu="')[2].partition('"')[0]: line.rpartition(" ")[2] for line in lines}


def test_promtool_has_nothing_to_say(lab: Lab) -> None:
    lab.build()
    command = [program("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=(lab.www / "metrics").read_bytes(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_memory_and_states_are_those_of_instances_and_the_rest_is_the_gpus(lab: Lab) -> None:
    lab.build()
    parts = {"0:0", "0:1", "0:2", "0:3", "1"}
    for name in ("memory_used_bytes", "memory_total_bytes", "state", "booked"):
        assert set(samples(lab, name)) == parts, name
    for name in ("temperature_celsius", "power_watts"):
        assert set(samples(lab, name)) == {"0", "1"}, name
    assert set(samples(lab, "utilization_ratio")) == {"1"}
    assert set(samples(lab, "info")) == parts | {"0"}


# Health and history


def test_the_health_of_a_gpu_appears_once() -> None:
    health_metrics = gpu_health.build_host_health_metrics(decide(host_data([*instances(), gpu(1)])))
    assert health_metrics
    assert [(gpu_metrics.key, gpu_metrics.index) for gpu_metrics in health_metrics.gpus] == [("GPU-0", 0), ("GPU-1", 1)]


def test_history_keeps_memory_and_state_of_instances_and_no_use() -> None:
    host_sample = sample_host(decide(host_data(instances())))
    assert host_sample
    kept = block_format.unpack_minute_block(block_format.pack_minute_block([block_format.pack_sample(host_sample)]))
    packed_up = block_format.pack_sample(host_sample)
    hour = block_format.build_hour_block(packed_up.gpu_set_id, {0: kept})
    again = hour.build_sample(0, "atlas", block_format.unpack_gpu_series(packed_up.packed_series))
    assert again
    assert [(gpu_sample.series.index, gpu_sample.series.key) for gpu_sample in again.gpus] == [
        (f"0:{n}", f"MIG-0-{n}") for n in range(4)
    ]
    assert {gpu_sample.use for gpu_sample in again.gpus} == {None}
    assert [gpu_sample.memory for gpu_sample in again.gpus] == [14.0] * 4


def test_what_older_versions_kept_is_read_on(lab: Lab, tmp_path: Path) -> None:
    """The same file, before and after GPU 0 is cut into instances."""
    lab.host("atlas", gpus=gpu_row(0) + gpu_row(1))
    lab.build()
    (series,) = block_format.unpack_gpu_series(b'[["GPU-0",0,"A100 80 GB",81920.0]]')
    assert series.index == 0
    push(lab)
    lab.build(60)
    minutes = HistoryReader(lab.state, timezone.utc).read_minutes("atlas", 5, time.time() + 60)
    assert [[gpu_sample.series.index for gpu_sample in sample.gpus] for _, sample in minutes] == [
        [0, 1],
        ["0:0", "0:1", "0:2", "0:3", 1],
    ]
    finished = gpuboard(tmp_path, "export", "--csv", "--data", "data", "--state", "state", "--since", "1h")
    assert [row.split(",")[2] for row in finished.stdout.splitlines()[1:]] == ["0", "1"]


# Bookings


@pytest.mark.parametrize(("written", "key"), [("0:1", "0:1"), ("MIG-0-1", "MIG-0-1"), ("0", "0"), ("GPU-0", "GPU-0")])
def test_an_instance_and_a_gpu_in_mig_mode_can_be_booked(lab: Lab, tmp_path: Path, written: str, key: str) -> None:
    finished = gpuboard(tmp_path, "book", f"atlas:{written}", "--for", "2h")
    assert finished.returncode == 0, finished.stderr
    assert f"atlas:{key} for {ME} from now until" in finished.stderr
    assert list(entries(lab)["atlas"]) == [key]


@pytest.mark.parametrize(("first", "second"), [("0:1", "0"), ("0", "0:1"), ("0:1", "MIG-0-1"), ("GPU-0", "0:3")])
def test_a_booking_of_the_gpu_books_its_instances(lab: Lab, tmp_path: Path, first: str, second: str) -> None:  # noqa: ARG001
    assert gpuboard(tmp_path, "book", f"atlas:{first}", "--for", "2h").returncode == 0
    finished = gpuboard(tmp_path, "book", f"atlas:{second}", "--for", "2h", "--name", "bob")
    assert finished.returncode == 1
    assert "is booked by" in finished.stderr


def test_two_instances_can_be_two_persons(lab: Lab, tmp_path: Path) -> None:
    assert gpuboard(tmp_path, "book", "atlas:0:0,0:2", "--for", "2h").returncode == 0
    assert gpuboard(tmp_path, "book", "atlas:0:3", "--for", "2h", "--name", "bob").returncode == 0
    lab.build()
    states = {instance["place"]: instance["state"] for instance in lab.host_status()["gpus"][0]["instances"]}
    assert states == {"0:0": "booked", "0:1": "busy", "0:2": "booked", "0:3": "booked"}


def test_who_names_the_gpu_and_an_instance_books_the_gpu(lab: Lab, tmp_path: Path) -> None:
    assert gpuboard(tmp_path, "book", "atlas:0:1,0", "--for", "2h").returncode == 0
    assert list(entries(lab)["atlas"]) == ["0"]


def test_an_instance_that_there_is_not_is_refused(lab: Lab, tmp_path: Path) -> None:  # noqa: ARG001
    finished = gpuboard(tmp_path, "book", "atlas:0:7", "--for", "2h")
    assert finished.returncode == 1
    assert "atlas has no GPU 0:7, only GPUs 0:0, 0:1, 0:2, 0:3, 1" in finished.stderr


def test_an_instance_is_released_by_its_name(lab: Lab, tmp_path: Path) -> None:
    assert gpuboard(tmp_path, "book", "atlas:0:2", "--for", "2h").returncode == 0
    finished = gpuboard(tmp_path, "release", "atlas:0:2")
    assert finished.returncode == 0, finished.stderr
    assert "atlas:0:2" in finished.stderr
    lab.build()
    assert lab.host_status()["gpus"][0]["instances"][2]["state"] == "free"


def test_any_takes_whole_gpus_first_and_instances_by_their_profile(lab: Lab, tmp_path: Path) -> None:
    for _ in range(2):
        assert gpuboard(tmp_path, "book", "--any", "1", "--for", "2h").returncode == 0
    assert list(entries(lab)["atlas"]) == ["1", "0:0"]
    finished = gpuboard(tmp_path, "book", "--any", "2", "--for", "2h")
    assert (finished.returncode, "no host has 2 free GPUs" in finished.stderr) == (1, True)
    assert gpuboard(tmp_path, "book", "--any", "2", "--model", "1g.10gb", "--for", "2h").returncode == 0
    assert list(entries(lab)["atlas"]) == ["1", "0:0", "0:2", "0:3"]


def test_the_calendar_has_a_row_for_each_instance_that_is_booked(lab: Lab, tmp_path: Path) -> None:
    assert gpuboard(tmp_path, "book", "atlas:0", "--for", "2h").returncode == 0
    lab.build()
    assert "0:0, 0:1, 0:2, 0:3" in text(lab, "bookings.html")
    assert "atlas:0:0" in text(lab, "bookings.ics").replace("\r\n ", "")


# Picking


def available(folder: Path, *words: str) -> str:
    return gpuboard(folder, "available", "--host", "atlas", "--data", "data", *words).stdout


def test_available_gives_whole_gpus_or_one_instance_by_its_uuid(lab: Lab, tmp_path: Path) -> None:
    assert available(tmp_path) == "GPU-1\n"
    push(lab, gpus=gpu_row(1, 70000, 99))
    assert available(tmp_path) == "MIG-0-0\n"


@pytest.mark.parametrize(("used", "state"), [(4, "unknown"), (70000, "busy")])
def test_beside_a_mig_gpu_without_instances_indexes_are_not_those_of_cuda(
    lab: Lab, tmp_path: Path, used: int, state: str
) -> None:
    rows = [
        f"{row.strip()}, {mode}\n" for row, mode in ((gpu_row(0, used, "[N/A]"), "Enabled"), (gpu_row(1), "Disabled"))
    ]
    lab.host("atlas")
    lab.write("atlas", "gpus.csv", f"{GPU_COLUMNS}, mig.mode.current\n{''.join(rows)}")
    lab.build()
    assert text(lab, "available/atlas.txt") == "GPU-1\n"
    assert 'data-cuda="GPU-1"' in text(lab, "index.html")
    assert available(tmp_path) == "GPU-1\n"
    jsonschema.validate(lab.status(), json.loads((ROOT / "docs/status.schema.json").read_text()))
    cut = lab.status()["hosts"][0]["gpus"][0]
    assert (cut["state"], cut["instances"]) == (state, [])
    listed = json.loads(gpuboard(tmp_path, "list", "--json", "--data", "data").stdout)
    assert [gpu_entry.get("instances") for gpu_entry in listed["hosts"][0]["gpus"]] == [[], None]


def test_who_asks_for_a_profile_gets_all_of_it(lab: Lab, tmp_path: Path) -> None:  # noqa: ARG001
    assert available(tmp_path, "--model", "1g.10gb") == "MIG-0-2,MIG-0-3\n"
    assert available(tmp_path, "--model", "1g.10gb", "-l", "1") == "MIG-0-2\n"
    assert available(tmp_path, "--model", "H100") == "MIG-0-0\n"


def test_two_gpus_are_never_two_instances(lab: Lab, tmp_path: Path) -> None:
    push(lab, gpus=gpu_row(1, 70000, 99))
    finished = gpuboard(tmp_path, "available", "--host", "atlas", "--data", "data", "--at-least", "2")
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "a process can use only one MIG instance, and no other GPU beside it" in finished.stderr


def test_all_names_instances_by_their_place(lab: Lab, tmp_path: Path) -> None:  # noqa: ARG001
    finished = gpuboard(tmp_path, "available", "--all", "--data", "data", "--model", "1g.10gb")
    assert finished.stdout == "atlas:0:2 atlas:0:3\n"
