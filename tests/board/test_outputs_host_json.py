"""states/, nodes/ and nvgpu/: the JSON shapes of other systems, for the scripts that people already have."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from site_builder.board import site_writer
from site_builder.board.builder import Builder
from site_builder.board.outputs.host_json import (
    convert_gpu_to_node_json,
    convert_gpu_to_nvgpu_json,
    convert_sample_to_states_json,
    format_nvgpu_age,
    shorten_nvgpu_command,
)
from site_builder.core.model import Gpu, GpuStatus, PrivacySettings
from site_builder.fleet.status_json import gpu_to_status_json
from site_builder.history.model import GpuSample, GpuSeries, HostSample, OccupancySample
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.browser import ROOT

FACTS = "cpus=4\nload=1 1 1\ninterface=eno1 192.168.0.3/24\ninterface=ib0 10.0.0.3/16\n"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab")


def read(lab: Lab, name: str) -> Any:  # noqa: ANN401
    return json.loads((lab.www / name).read_bytes())


def check(lab: Lab) -> None:
    """All files are as their schemas say."""
    for folder in ("states", "nodes", "nvgpu"):
        schema = json.loads((ROOT / f"docs/{folder}.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        for path in filter(Path.is_file, (lab.www / folder).rglob("*")):
            jsonschema.validate(json.loads(path.read_bytes()), schema)


def busy(lab: Lab) -> None:
    rows = gpu(0, 7000, 97) + gpu(1)
    lab.host("atlas", rows, process(42, memory=6400), person(42, "alice", "/usr/bin/python3 train.py"), FACTS)


@pytest.mark.slow
def test_a_lab_in_every_state_is_as_the_schemas_say(lab_in_every_state: Lab) -> None:
    lab = lab_in_every_state
    check(lab)
    hosts = ["atlas", "ganges", "hydra", "nile", "pascal", "rhine", "tiber", "volga"]
    assert list(read(lab, "states/index.json")) == hosts
    assert [node["hostname"] for node in read(lab, "nodes/index.json")["Nodes"]] == hosts
    for host in hosts:
        assert read(lab, f"states/{host}/index.json") == {host: read(lab, "states/index.json")[host]}
        assert read(lab, f"nodes/{host}.json") in read(lab, "nodes/index.json")["Nodes"]
        assert read(lab, f"nvgpu/{host}/gpu_status") in read(lab, "nvgpu/cluster_status")


def test_a_host_in_the_shape_of_vesta_has_numbers_as_numbers(lab: Lab) -> None:
    busy(lab)
    now = datetime.now(timezone.utc)
    lab.build()
    host = read(lab, "states/atlas/index.json")["atlas"]
    assert host["ip_address"] == "192.168.0.3"
    (entry,) = host["data"]
    assert abs(datetime.strptime(f"{entry['timestamp']} +0000", "%Y%m%d%H%M%S %z") - now) < timedelta(seconds=60)
    gpu_entry = entry["gpu_data"]["gpu:0"]
    assert gpu_entry.pop("timestamp")[:10] == f"{now:%Y/%m/%d}" and gpu_entry.pop("reason") == "in use by alice"
    assert gpu_entry == {
        "available_memory": 74920,
        "device_num": 0,
        "gpu_name": "NVIDIA A100-SXM4-80GB",
        "gpu_volatile": 97,
        "processes": [
            {
                "name": "python3",
                "pid": "42",
                "used_memory": 6400,
                "user": "alice",
                "command": "/usr/bin/python3 train.py",
            }
        ],
        "temperature": 41,
        "total_memory": 81920,
        "used_memory": 7000,
        "uuid": "GPU-0",
        "state": "busy",
    }
    assert entry["gpu_data"]["gpu:1"]["processes"] == []
    assert type(gpu_entry["used_memory"]) is int


def test_a_node_has_what_scripts_for_its_status_read(lab: Lab) -> None:
    busy(lab)
    lab.build(zone=timezone(timedelta(hours=-3)))
    node = read(lab, "nodes/atlas.json")
    assert (node["hostname"], node["ips"]) == ("atlas", [["eno1", "192.168.0.3"], ["ib0", "10.0.0.3"]])
    here = datetime.now(timezone(timedelta(hours=-3))).replace(tzinfo=None)
    assert abs(datetime.fromisoformat(node["last_update"]) - here) < timedelta(seconds=60)
    assert abs(node["seen"] - time.time()) < 60
    assert node["gpus"][0] == {
        "index": 0,
        "name": "NVIDIA A100-SXM4-80GB",
        "use_mem": 7000,
        "tot_mem": 81920,
        "utilize": 97,
        "temp": 41,
        "users": [{"pid": 42, "username": "alice", "mem(MiB)": 6400, "command": "/usr/bin/python3 train.py"}],
        "state": "busy",
        "reason": "in use by alice",
    }


def test_an_agent_of_nvgpu_is_told_as_it_would_answer(lab: Lab) -> None:
    busy(lab)
    lab.host("hydra", gpu(0, 7000, 3, uuid="GPU-h"), process(43, "GPU-h"))
    lab.build()
    busy_gpu, free_gpu = read(lab, "nvgpu/atlas/gpu_status")["gpus"]
    assert busy_gpu == {
        "type": "NVIDIA A100-SXM4-80GB",
        "is_available": False,
        "pids": "42",
        "users": "alice",
        "running_since": "1 hour ago",
        "utilization": 97,
        "clock_mhz": None,
        "temperature": 41,
        "cmd": "train.py",
        "index": 0,
        "state": "busy",
        "reason": "in use by alice",
    }
    assert (free_gpu["is_available"], free_gpu["pids"], free_gpu["users"], free_gpu["cmd"]) == (True, "", "", "")
    (unowned,) = read(lab, "nvgpu/hydra/gpu_status")["gpus"]
    assert (unowned["users"], unowned["pids"]) == ("?", "43")
    assert [host["hostname"] for host in read(lab, "nvgpu/cluster_status")] == ["atlas", "hydra"]


def test_a_master_of_nvgpu_is_told_why_a_host_has_no_gpus(lab: Lab) -> None:
    busy(lab)
    lab.build(after=3600)
    check(lab)
    answer = read(lab, "nvgpu/atlas/gpu_status")
    assert answer.keys() == {"hostname", "error"}
    assert answer["error"].startswith("atlas is down: no snapshot since ")


def test_a_gpu_that_is_not_to_be_taken_is_not_available_for_nvgpu() -> None:
    status = GpuStatus(Gpu(0, None, None), "GPU", "free", "")
    free = gpu_to_status_json(status.gpu, status)
    problem = {"avoid": True}
    cases = [(free, True, ""), ({**free, "problems": [problem]}, False, ""), ({**free, "state": "booked"}, False, "")]
    cases += [({**free, "state": state}, False, "?") for state in ("lost", "unknown")]
    for gpu_entry, is_available, users in cases:
        content = convert_gpu_to_nvgpu_json(gpu_entry, 0)
        assert (content["is_available"], content["users"]) == (is_available, users)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python -m ipykernel_launcher -f x.json", "jupyter"),
        ("/usr/bin/python3 -u src/train.py --lr 1", "src/train.py"),
        ("./a.out", "./a.out"),
        ("VLLM::EngineCore --model llama-70b", "VLLM::EngineCore --model ..."),
    ],
)
def test_nvgpu_has_commands_as_it_shortens_them(command: str, shown: str) -> None:
    assert shorten_nvgpu_command(command) == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "just now"), (59, "just now"), (60, "1 minute ago"), (7300, "2 hours ago"), (9e5, "10 days ago")],
)
def test_nvgpu_has_ages_in_words(seconds: float, text: str) -> None:
    assert format_nvgpu_age(seconds) == text


def test_a_host_that_is_silent_never_looks_idle(lab: Lab) -> None:
    busy(lab)
    lab.build(after=3600)
    check(lab)
    node, state = read(lab, "nodes/atlas.json"), read(lab, "states/atlas/index.json")["atlas"]
    assert (node["status"], node["state"], state["state"]) == (False, "down", "down")
    assert node["reason"].startswith("no snapshot since ")
    for gpu_entry in node["gpus"]:
        assert (gpu_entry["use_mem"], gpu_entry["utilize"], gpu_entry["temp"]) == (None, None, None)
        assert gpu_entry["users"] == []
        assert (gpu_entry["state"], gpu_entry["reason"]) == ("unknown", "its host is down")
    for gpu_entry in state["data"][0]["gpu_data"].values():
        assert {gpu_entry[name] for name in ("available_memory", "gpu_volatile", "processes", "used_memory")} == {None}


def test_a_host_that_was_never_seen_has_no_data(lab: Lab) -> None:
    (lab.data / "hosts.txt").write_text("tiber\n")
    lab.build()
    check(lab)
    host = read(lab, "states/index.json")["tiber"]
    assert (host["data"], host["ip_address"], host["state"]) == ([], None, "unseen")
    assert read(lab, "nodes/tiber.json")["last_update"] is None


def test_gpus_without_an_index_or_with_the_same_are_all_told(lab: Lab) -> None:
    without = gpu(0, uuid="GPU-x").replace("0, ", "[N/A], ", 1)
    lab.host("atlas", without + gpu(2, uuid="GPU-2a") + gpu(2, uuid="GPU-2b"))
    lab.build()
    check(lab)
    gpu_entries = read(lab, "states/atlas/index.json")["atlas"]["data"][0]["gpu_data"]
    assert {key: gpu_entry["device_num"] for key, gpu_entry in gpu_entries.items()} == {
        "gpu:2": 2,
        "gpu:GPU-2b": 2,
        "gpu:GPU-x": None,
    }
    assert [gpu_entry["index"] for gpu_entry in read(lab, "nodes/atlas.json")["gpus"]] == [2, 2, None]


def test_people_who_are_not_shown_are_in_no_shape(lab: Lab) -> None:
    busy(lab)
    lab.build(privacy=PrivacySettings("program", False))
    check(lab)
    (user_process,) = read(lab, "nodes/atlas.json")["gpus"][0]["users"]
    assert user_process == {"pid": 42, "username": None, "mem(MiB)": 6400, "command": "python3"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index", "index.json", "states", "HOST.txt", "gpu_status", "cluster_status"])
def test_no_name_of_a_host_takes_the_place_of_a_file_of_all(lab: Lab, name: str) -> None:
    lab.host(name)
    lab.host("atlas", gpu(0, uuid="GPU-a"))
    lab.build()
    check(lab)
    assert set(read(lab, "states/index.json")) == {name, "atlas"}
    assert {node["hostname"] for node in read(lab, "nodes/index.json")["Nodes"]} == {name, "atlas"}
    assert {node["hostname"] for node in read(lab, "nvgpu/cluster_status")} == {name, "atlas"}
    for path in (lab.data / name).iterdir():
        path.unlink()
    (lab.data / name).rmdir()
    (lab.state / "forget").mkdir()
    (lab.state / "forget" / name).touch()
    lab.build(after=5)
    assert list(read(lab, "states/index.json")) == ["atlas"]


def test_nothing_stays_of_a_host_that_left_the_board(lab: Lab) -> None:
    for name in ("atlas", "hydra"):
        lab.host(name, gpu(0, uuid=f"GPU-{name}"))
    lab.build()
    assert (lab.www / "states/hydra/index.json").exists()
    (lab.data / "hosts.txt").write_text("hydra, hidden\n")
    lab.build(after=5)
    left = [str(path.relative_to(lab.www)) for path in lab.www.rglob("*") if "hydra" in path.name]
    assert left == []
    joined = ("states/index.json", "nodes/index.json", "nvgpu/cluster_status")
    for name in (*joined, "term.txt", "detail.txt", "available.txt", "metrics"):
        text = (lab.www / name).read_text()
        assert "hydra" not in text and ("atlas" in text)


def test_a_host_that_leaves_the_board_leaves_the_files_of_all_hosts_at_once(lab: Lab) -> None:
    for name in ("atlas", "hydra"):
        lab.host(name, gpu(0, uuid=f"GPU-{name}"))
    builder = Builder(lab.settings(), build_interval_s=10)
    began = time.time()
    builder.build(began)
    (lab.data / "hosts.txt").write_text("hydra, hidden\n")
    builder.build(began + 5)
    assert list(read(lab, "states/index.json")) == ["atlas"]
    assert [node["hostname"] for node in read(lab, "nodes/index.json")["Nodes"]] == ["atlas"]


@pytest.mark.parametrize("prompt_hosts", [0, 1])
def test_files_with_all_hosts_are_as_fresh_as_status_json_and_others_at_the_pace_of_pages(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, prompt_hosts: int
) -> None:
    monkeypatch.setattr(site_writer, "MAX_PROMPT_HOSTS", prompt_hosts)
    busy(lab)
    builder = Builder(lab.settings(), build_interval_s=10)
    began = time.time()
    joined = {"states/index.json", "nodes/index.json", "nvgpu/cluster_status"}
    ours = {"hosts/atlas.html", "states/atlas/index.json", "nodes/atlas.json", "nvgpu/atlas/gpu_status"}
    assert ours | joined <= set(builder.build(began).written_files)
    for after, all_of_it in ((10, False), (60, True)):
        lab.host("atlas", gpu(0, 7000 + after, 50) + gpu(1))
        written = set(builder.build(began + after).written_files)
        assert (ours <= written) == all_of_it
        assert (joined <= written) == bool(all_of_it or prompt_hosts)
    assert read(lab, "nodes/index.json")["Nodes"][0]["gpus"][0]["use_mem"] == 7060


def test_a_file_that_somebody_took_away_comes_back(lab: Lab) -> None:
    busy(lab)
    lab.build()
    for name in ("states/atlas/index.json", "nodes/atlas.json", "nodes/index.json", "available/atlas.txt"):
        (lab.www / name).unlink()
    (lab.www / "states/atlas").rmdir()
    lab.build(after=5)
    check(lab)
    assert read(lab, "states/index.json")["atlas"] == read(lab, "states/atlas/index.json")["atlas"]
    assert (lab.www / "available/atlas.txt").read_text() == "1\n"
    assert (lab.www / "nodes/atlas.json").exists()


def test_a_busy_gpu_of_which_no_process_is_reported_never_looks_idle(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas", gpu(0, 30000, 50) + gpu(1))
    (lab.data / "atlas/processes.csv").unlink()
    lab.build()
    assert [gpu_entry["state"] for gpu_entry in read(lab, "nodes/atlas.json")["gpus"]] == ["busy", "unknown"]
    assert [gpu_entry["users"] for gpu_entry in read(lab, "nodes/atlas.json")["gpus"]] == [[], []]
    assert [gpu_entry["is_available"] for gpu_entry in read(lab, "nvgpu/atlas/gpu_status")["gpus"]] == [False, False]
    lab.host("atlas", gpu(0, 30000, 50) + gpu(1))
    lab.build()
    assert [gpu_entry["is_available"] for gpu_entry in read(lab, "nvgpu/atlas/gpu_status")["gpus"]] == [False, True]
    ((entry,),) = (host["data"] for host in read(lab, "states/atlas/index.json").values())
    assert [gpu_entry["processes"] for gpu_entry in entry["gpu_data"].values()] == [None, []]


def test_past_gpus_without_a_uuid_are_told_apart_by_their_keys_in_history() -> None:
    series = [
        GpuSeries(key, index, "A100", 81920) for key, index in (("GPU-1", 0), ("index 0", 0), ("index None", None))
    ]
    gpus = tuple(GpuSample(gpu_series, 1, 2, 3, 4, OccupancySample("busy")) for gpu_series in series)
    minute = convert_sample_to_states_json(
        HostSample("atlas", 1, 1, gpus), 1_800_000_000, {}, timezone.utc, PrivacySettings()
    )
    assert list(minute["gpu_data"]) == ["gpu:0", "gpu:index 0", "gpu:index None"]


def test_every_instance_of_a_node_has_its_place_and_no_whole_gpu_has_one() -> None:
    status = GpuStatus(Gpu(0, "GPU-1", "A100"), "A100", "busy", "")
    whole = gpu_to_status_json(status.gpu, status)
    instance = {**whole, "uuid": "MIG-1", "place": "0:1", "profile": "1g.10gb"}
    content = convert_gpu_to_node_json({**whole, "instances": [instance]})
    assert not {"place", "profile", "uuid"} & content.keys()
    assert [(entry["place"], entry["uuid"]) for entry in content["instances"]] == [("0:1", "MIG-1")]
