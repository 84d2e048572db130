"""The simulated lab: settled by a seed, made by the real scripts, and gone without a trace after Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from site_builder.core.formatting import MINUTE
from site_builder.demo import commands, scenario
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.live_page import Live, is_gone
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
FILES = {"gpus.csv", "processes.csv", "ps.txt", "host.txt"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a demo as it is at its start."""
    return once(tmp_path_factory.mktemp("demo"))


@pytest.fixture
def no_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a demo begin without its five weeks of history, which take most of the time."""
    monkeypatch.setattr(commands, "fill_history", lambda *_: None)


def once(folder: Path, *words: str) -> Path:
    result = run_gpuboard(folder, "demo", "--once", "--folder", "lab", *words)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    return folder / "lab"


def hosts_of(folder: Path) -> dict[str, Any]:
    return {host["name"]: host for host in json.loads((folder / "www/status.json").read_text())["hosts"]}


# What the scripts make of it


def test_every_snapshot_is_by_the_real_scripts_and_whole(page: Path) -> None:
    folders = [path for path in (page / "data").iterdir() if path.is_dir()]
    assert {path.name for path in folders} == {machine.name for machine in scenario.MACHINES} - {scenario.LEGACY_HOST}
    for folder in folders:
        assert {path.name for path in folder.iterdir() if path.is_file()} == FILES
        for name in FILES:
            lines = (folder / name).read_text().splitlines()
            assert lines[0].startswith("# gpuboard 1 task=")
            assert lines[-1] == "# end"


def test_the_page_says_that_it_is_simulated(page: Path) -> None:
    assert "<p class=notice>Simulated: " in (page / "www/index.html").read_text()


def test_every_state_of_a_gpu_and_the_main_ones_of_a_host_are_there_from_the_start(page: Path) -> None:
    hosts = hosts_of(page)
    states = {gpu["state"] for host in hosts.values() for gpu in host["gpus"]}
    assert states == {"free", "busy", "held", "booked", "conflict", "lost", "unknown"}
    assert {host["state"] for host in hosts.values()} == {"fresh", "down", "maintenance"}


def test_only_the_lost_gpu_is_a_problem(page: Path) -> None:
    problems = json.loads((page / "www/status.json").read_text())["problems"]
    assert {problem["where"].partition("/")[2].partition("/")[0] for problem in problems} == {"hydra"}


# GPUs of all kinds


def labels_of(host: dict[str, Any]) -> dict[str, dict[str, Any]]:
    gpus_by_label = {}
    for gpu in host["gpus"]:
        for instance in gpu.get("instances", [gpu]):
            gpus_by_label[instance.get("place", str(gpu["index"]))] = instance
    return gpus_by_label


def test_a_host_has_a_gpu_that_is_cut_into_instances(page: Path) -> None:
    gemini = hosts_of(page)["gemini"]
    instances = labels_of(gemini)
    assert {name: json_entry["state"] for name, json_entry in instances.items()} == {
        "0:0": "busy",
        "0:1": "busy",
        "0:2": "booked",
        "0:3": "free",
        "1": "busy",
    }
    assert [instances[name]["profile"] for name in ("0:0", "0:1", "0:2", "0:3")] == [
        "3g.40gb",
        "2g.20gb",
        "1g.10gb",
        "1g.10gb",
    ]
    assert {
        name: [json_entry["user"] for json_entry in instances[name]["processes"]] for name in ("0:0", "0:1", "1")
    } == {
        "0:0": ["kavya"],
        "0:1": ["greta"],
        "1": ["dana"],
    }
    assert instances["0:0"]["utilization.gpu"] is None
    assert gemini["gpus"][0]["temperature.gpu"]


def test_a_host_has_gpus_of_amd(page: Path) -> None:
    gpus = labels_of(hosts_of(page)["aquila"])
    assert {name: json_entry["name"] for name, json_entry in gpus.items()} == dict.fromkeys(
        "0123", "AMD Instinct MI210"
    )
    assert [json_entry["user"] for name in "01" for json_entry in gpus[name]["processes"]] == ["hiro", "hiro"]
    readings = ("memory.used", "memory.total", "utilization.gpu", "temperature.gpu", "power.draw", "power.limit")
    assert all(json_entry[name] for json_entry in gpus.values() for name in readings)


def test_a_host_has_gpus_of_both_makers(page: Path) -> None:
    gpus = labels_of(hosts_of(page)["centaurus"])
    assert {name: json_entry["name"] for name, json_entry in gpus.items()} == {
        **dict.fromkeys("01", "NVIDIA RTX A6000"),
        **dict.fromkeys(("amd0", "amd1"), "Radeon RX 7900 XTX"),
    }
    assert [[json_entry["user"] for json_entry in gpus[name]["processes"]] for name in ("0", "amd0", "amd1")] == [
        ["lena"],
        ["ines"],
        [],
    ]
    assert gpus["amd1"]["state"] == "free"


def test_the_person_behind_a_container_of_root_is_reported(page: Path) -> None:
    assert "\troot\t" in (page / "data/vega/ps.txt").read_text()
    assert {process["user"] for process in hosts_of(page)["vega"]["gpus"][0]["processes"]} == {"kavya"}


def test_one_gpu_is_slowed_by_heat_one_is_lost_and_one_has_a_degraded_fabric(page: Path) -> None:
    kinds_by_gpu = {
        (host["name"], gpu["index"]): [problem["kind"] for problem in gpu["problems"] if problem["severity"] != "info"]
        for host in hosts_of(page).values()
        for gpu in host["gpus"]
    }
    assert {where: kinds for where, kinds in kinds_by_gpu.items() if kinds} == {
        ("atlas", 2): ["heat"],
        ("atlas", 3): ["fabric"],
        ("hydra", 5): ["off-bus"],
    }


def test_the_past_of_each_gpu_goes_on_under_the_same_name(page: Path) -> None:
    connection = sqlite3.connect(page / "state/history.db")
    for name in ("gemini", "aquila", "centaurus"):
        shapes = connection.execute("SELECT gpus FROM shape WHERE host = ?", (name,)).fetchall()
        assert len({gpus for (gpus,) in shapes}) == 1
    connection.close()


def test_a_token_on_a_command_line_is_masked_as_on_any_host(page: Path) -> None:
    text = (page / "www/index.html").read_text()
    assert "sweep.py --token=•••" in text
    assert "hf_abc" not in text


def test_cpus_disks_addresses_and_users_are_those_of_the_simulated_host(page: Path) -> None:
    atlas = hosts_of(page)["atlas"]
    assert (atlas["cpus"], atlas["memory"]["total"]) == (192, 2063000)
    assert [disk["mount"] for disk in atlas["disks"]] == ["/", "/data"]
    assert "interface=eno1 192.0.2.1/24" in (page / "data/atlas/host.txt").read_text()
    assert {process["user"] for process in atlas["gpus"][0]["processes"]} == {"alice"}


@pytest.mark.usefixtures("no_past")
def test_an_hour_later_a_driver_is_gone(tmp_path: Path) -> None:
    perseus = hosts_of(once(tmp_path, "--after", "70m", "--hosts", "8"))["perseus"]
    assert perseus["state"] == "failed"
    assert "Driver/library version mismatch" in perseus["reason"]


@pytest.mark.usefixtures("no_past")
def test_at_speed_hours_become_minutes_and_states_still_hold(tmp_path: Path) -> None:
    hosts = hosts_of(once(tmp_path, "--speed", "60", "--hosts", "12"))
    assert hosts["atlas"]["gpus"][5]["state"] == "conflict"
    assert hosts["atlas"]["gpus"][6]["state"] == "held"
    assert hosts["pascal"]["state"] == "down"
    job = hosts["atlas"]["gpus"][0]["processes"][0]["started"]
    assert 50 * MINUTE < time.time() - job < 54 * MINUTE


@pytest.mark.usefixtures("no_past")
def test_hosts_beyond_those_of_the_scenario_are_fresh_too(tmp_path: Path) -> None:
    hosts = hosts_of(once(tmp_path, "--hosts", "32"))
    assert len(hosts) == 32
    assert sum(host["state"] == "fresh" for host in hosts.values()) == 30


# While it runs


@pytest.fixture(scope="module")
def shared_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A demo for tests that end nothing."""
    with Live(tmp_path_factory.mktemp("shared"), "demo", "--speed", "60", "--hosts", "4") as demo:
        yield demo


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A folder for temporary files with a blank in its name."""
    path = tmp_path / "a room"
    path.mkdir()
    return path


@pytest.fixture
def small(room: Path) -> Iterator[Live]:
    """A demo that a test may end, in a folder with a blank in its name."""
    words = ("--speed", "60", "--hosts", "1", "--listen", str(free_port()))
    with Live(room, "demo", *words, TMPDIR=str(room)) as demo:
        yield demo


def test_an_open_board_lives(shared_demo: Live) -> None:
    first = shared_demo.status()
    assert len(first["hosts"]) == 4
    later = shared_demo.wait_for(lambda: (now := shared_demo.status())["built"] > first["built"] + 5 and now, 60)
    power = [[gpu["power.draw"] for host in snapshot["hosts"] for gpu in host["gpus"]] for snapshot in (first, later)]
    assert power[0] != power[1]
    assert {host["state"] for host in later["hosts"]} == {"fresh"}


def test_everybody_may_try_booking(shared_demo: Live) -> None:
    assert shared_demo.status()["book"] == "book"
    assert ' data-book="book">' in shared_demo.get()
    name = shared_demo.status()["hosts"][0]["name"]
    request = {"gpus": [f"{name}:0"], "from": "2030-01-01 10:00", "for": "2h"}
    status, answer = shared_demo.book(**request, name="zoe")
    assert (status, answer["bookings"][0]["name"]) == (200, "zoe"), answer
    assert shared_demo.book(**request, name="bob")[0] == 409
    shared_demo.wait_for(lambda: "zoe" in shared_demo.get("status.json"), 60)
    assert "anybody who can reach it can book" not in shared_demo.said()


def test_bookings_in_it_can_be_edited(shared_demo: Live) -> None:
    path = Path(shared_demo.said().partition("edit ")[2].splitlines()[0])
    hosts = shared_demo.status()["hosts"]
    name = next(host["name"] for host in hosts if any(gpu["state"] == "free" for gpu in host["gpus"]))
    path.write_text(json.dumps({name: {"*": {"name": "me", "date": "2099-01-01"}}}))
    shared_demo.wait_for(lambda: '"name":"me"' in shared_demo.get("status.json"), 60)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_or_a_closed_terminal_leaves_nothing(small: Live, room: Path, by: int) -> None:
    children = small.children()
    assert children
    assert small.stop(by) == 0
    assert small.said().endswith("gpuboard: ended\n")
    assert all(is_gone(pid) for pid in children)
    assert left_in(room) == []
    with pytest.raises(OSError):
        small.get()


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith("log-")]


def test_a_second_ctrl_c_does_not_cut_the_clean_up_short(small: Live, room: Path) -> None:
    for _ in range(20):
        small.process.send_signal(signal.SIGINT)
        small.process.send_signal(signal.SIGTERM)
        time.sleep(0.005)
    assert small.process.wait(60) == 0
    assert left_in(room) == []


@pytest.mark.parametrize("after", [0.02, 0.2, 0.5, 1])
def test_a_signal_during_the_first_round_leaves_nothing(tmp_path: Path, after: float) -> None:
    command = [sys.executable, "-m", "site_builder", "demo", "--hosts", "60"]
    environment = clean_environment(TMPDIR=str(tmp_path))
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr
        first = demo.stderr.readline()
        time.sleep(after)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(60) == 0
    assert "starting 60 simulated hosts" in first
    assert left_in(tmp_path) == []


def test_no_python_file_of_the_folder_where_it_is_started_is_run(tmp_path: Path) -> None:
    (tmp_path / "orjson.py").write_text("raise SystemExit('somebody else's code')")
    command = [f"{Path(sys.executable).parent}/gpuboard", "demo", "--once", "--hosts", "1", "--folder", "lab"]
    environment = {key: value for key, value in clean_environment().items() if key != "PYTHONPATH"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_settings_of_somebody_else_do_not_reach_the_simulated_lab(tmp_path: Path) -> None:
    result = run_gpuboard(
        tmp_path, "demo", "--once", "--hosts", "1", "--folder", "lab", GPUBOARD_SHOW_USERS="no", GPUBOARD_SOON="never"
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "alice" in (tmp_path / "lab/www/index.html").read_text()


def test_killed_it_takes_its_builder_along(small: Live) -> None:
    children = small.children()
    small.process.kill()
    small.process.wait()
    end = time.monotonic() + 30
    while time.monotonic() < end and not all(is_gone(pid) for pid in children):
        time.sleep(0.1)
    assert [pid for pid in children if not is_gone(pid)] == []


def test_where_the_port_is_taken_the_next_one_serves_and_that_is_reported(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port that rests is no obstacle
        with contextlib.suppress(OSError):  # taken already, by whomever
            held.bind(("127.0.0.1", 8080))
            held.listen()
        with Live(tmp_path, "demo", "--hosts", "1") as demo:
            port = int(demo.url.rstrip("/").rpartition(":")[2])
            assert 8080 < port < 8130
            assert demo.stop() == 0
    assert f"port 8080 is taken: using {port}" in demo.said()


def test_a_port_that_was_asked_for_and_is_taken_is_reported(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        result = run_gpuboard(tmp_path, "demo", "--hosts", "1", "--listen", str(held.getsockname()[1]))
    assert result.returncode == 2
    assert "is taken by another program" in result.stderr


# This machine's own GPUs


def test_here_shows_this_machine_and_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").symlink_to(ROOT / "site_builder/demo/stand-ins/nvidia-smi")
    (tmp_path / "smi").mkdir()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    with Live(tmp_path, "here", PATH=path, SMI=str(tmp_path / "smi")) as board:
        (host,) = board.status()["hosts"]
        assert host["name"] == os.uname().nodename.partition(".")[0]
        assert (host["state"], [gpu["state"] for gpu in host["gpus"]]) == ("fresh", ["busy", "busy"])
        children = board.children()
        assert board.stop() == 0
    assert all(is_gone(pid) for pid in children)
    assert {"data", "www", "state"} <= {leftover_path.name for leftover_path in tmp_path.iterdir()}


def test_here_reads_the_settings_file_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "my.conf").write_text("GPUBOARD_NOTICE=Hello\n")
    odd = tmp_path / "it's odd"
    odd.mkdir()
    with Live(tmp_path, "here", "--conf", "my.conf", TMPDIR=str(odd)) as board:
        assert "<p class=notice>Hello</p>" in board.get()
        assert board.stop() == 0
    assert list(odd.iterdir()) == []
