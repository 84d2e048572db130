"""data/ is read safely, and only what changed is parsed again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from site_builder.model import Dump, HostData, Problem
from site_builder.sources import snapshots
from site_builder.sources.snapshots import Snapshots

TASKS = {"gpus.csv": "gpus", "processes.csv": "processes", "ps.txt": "ps", "host.txt": "host"}
GPU = "index, uuid, name\n0, GPU-1, T4\n"
PROCESS = "gpu_uuid, pid, used_gpu_memory [MiB], process_name\nGPU-1, 42, 512, python\n"


class Lab:
    """A data folder and a builder's memory."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.state = folder / "state"
        self.data.mkdir()
        self.state.mkdir()
        self.builder = Snapshots(self.data, self.state)

    def write(self, host: str, file: str, body: str = "", **header: object) -> Path:
        """A file of a snapshot; `end` may be something else than the end."""
        end = header.pop("end", "# end\n")
        told = {
            "task": TASKS[file],
            "host": host,
            "time": int(time.time()),
            "every": 20,
            "took_ms": 1,
            "rc": 0,
            **header,
        }
        path = self.data / host / file
        path.parent.mkdir(exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(f"# gpuboard 1 {' '.join(f'{key}={value}' for key, value in told.items())}\n{body}{end}")
        new.replace(path)
        return path

    def read(self, after: float = 0) -> tuple[dict[str, HostData], list[Problem]]:
        hosts, problems = self.builder.read(time.time() + after)
        return {host.name: host for host in hosts}, problems


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def whole(lab: Lab, host: str = "atlas") -> None:
    lab.write(host, "host.txt", "cpus=4\n")
    lab.write(host, "gpus.csv", GPU)
    lab.write(host, "processes.csv", PROCESS)
    lab.write(host, "ps.txt", "pid\tcommand\n42\tpython\n")


def test_a_host_is_all_its_files(lab: Lab) -> None:
    whole(lab)
    hosts, problems = lab.read()
    atlas = hosts["atlas"]
    assert atlas.gpus
    assert atlas.processes
    assert atlas.ps
    assert atlas.facts
    assert (atlas.gpus.rows[0].uuid, atlas.processes.rows[0].pid, atlas.ps.rows[0].pid) == ("GPU-1", 42, 42)
    assert (atlas.facts.rows[0].cpus, problems) == (4, [])


def test_the_age_counts_from_the_arrival_and_by_one_clock_alone(lab: Lab) -> None:
    now = int(time.time())
    lab.write("atlas", "host.txt", time=now)
    lab.write("atlas", "gpus.csv", GPU, time=now - 300)
    hosts, _ = lab.read(after=50)
    assert hosts["atlas"].ages["host.txt"] == pytest.approx(50, abs=2)
    assert hosts["atlas"].ages["gpus.csv"] == pytest.approx(350, abs=2)


def test_a_file_that_is_sent_again_unchanged_does_not_look_fresh(lab: Lab) -> None:
    now = int(time.time())
    lab.write("atlas", "gpus.csv", GPU, time=now - 1000)
    lab.write("atlas", "host.txt", time=now)
    hosts, _ = lab.read()
    assert hosts["atlas"].ages["gpus.csv"] == pytest.approx(1000, abs=2)


@pytest.mark.parametrize(("off", "words"), [(31_536_000, "ahead"), (-3600, "behind")])
def test_a_clock_that_is_off_is_a_warning_and_changes_no_age(lab: Lab, off: int, words: str) -> None:
    now = int(time.time())
    lab.write("atlas", "host.txt", time=now + off)
    lab.write("atlas", "gpus.csv", GPU, time=now + off - 5)
    hosts, (problem,) = lab.read()
    assert hosts["atlas"].ages["gpus.csv"] == pytest.approx(5, abs=2)
    assert problem.where == "atlas"
    assert f"s {words}" in problem.what


def test_a_torn_file_is_answered_by_the_last_whole_one(lab: Lab) -> None:
    whole(lab)
    lab.read()
    lab.write("atlas", "gpus.csv", "index, uuid, na", end="")
    hosts, problems = lab.read()
    gpus = hosts["atlas"].gpus
    assert gpus
    assert [gpu.uuid for gpu in gpus.rows] == ["GPU-1"]
    assert problems == [Problem("data/atlas/gpus.csv", "the file is torn: it has no end")]


def test_a_torn_host_file_does_not_make_the_host_look_fresh(lab: Lab) -> None:
    lab.write("atlas", "host.txt")
    lab.read()
    before = lab.builder.kept["atlas", "host.txt"].best_arrived_ns
    time.sleep(0.05)
    lab.write("atlas", "host.txt", end="")
    hosts, _ = lab.read()
    assert hosts["atlas"].seen == before / 1e9


def test_the_last_whole_one_survives_the_builder(lab: Lab) -> None:
    whole(lab)
    lab.read()
    lab.builder.save()
    lab.write("atlas", "gpus.csv", "index, uu", end="")
    lab.builder = Snapshots(lab.data, lab.state)
    hosts, _ = lab.read()
    gpus = hosts["atlas"].gpus
    assert gpus
    assert gpus.rows[0].uuid == "GPU-1"


def test_a_damaged_memory_is_begun_anew(lab: Lab) -> None:
    whole(lab)
    (lab.state / "snapshots.pickle").write_bytes(b"\x80nonsense")
    lab.builder = Snapshots(lab.data, lab.state)
    hosts, problems = lab.read()
    assert (list(hosts), problems) == (["atlas"], [])


def test_only_what_changed_is_parsed_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(lab)
    lab.read()
    parsed: list[str] = []

    def noting(name: str, reader: Callable[[bytes], Dump[Any]]) -> Callable[[bytes], Dump[Any]]:
        def read(data: bytes) -> Dump[Any]:
            parsed.append(name)
            return reader(data)

        return read

    for name, reader in list(snapshots.READERS.items()):
        monkeypatch.setitem(snapshots.READERS, name, noting(name, reader))
    lab.read()
    assert parsed == []
    lab.write("atlas", "gpus.csv", GPU)
    lab.read()
    assert parsed == ["gpus.csv"]


def test_a_host_that_is_gone_is_forgotten(lab: Lab) -> None:
    whole(lab)
    lab.read()
    for path in (lab.data / "atlas").iterdir():
        path.unlink()
    (lab.data / "atlas").rmdir()
    hosts, _ = lab.read()
    assert hosts == {}
    assert lab.builder.kept == {}


def test_the_name_in_a_file_must_be_its_folders(lab: Lab) -> None:
    lab.write("atlas", "host.txt")
    lab.write("hydra", "gpus.csv", GPU).replace(lab.data / "atlas/gpus.csv")
    (lab.data / "hydra").rmdir()
    hosts, (problem,) = lab.read()
    assert hosts["atlas"].gpus is None
    assert problem.where == "data/atlas/gpus.csv"
    assert problem.what == "it says host=hydra, which is not its folder's name, and does not count"


@pytest.mark.parametrize("name", ['a b"<x>', "x" * 200, "ü", "-x", "a\nb"])
def test_a_folder_that_cannot_be_a_host_is_told_and_left_alone(lab: Lab, name: str) -> None:
    (lab.data / name).mkdir()
    whole(lab)
    hosts, (problem,) = lab.read()
    assert list(hosts) == ["atlas"]
    assert problem.what == "the folder's name cannot be that of a host"
    assert "\n" not in problem.where


def test_links_are_not_followed(lab: Lab, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "gpus.csv").write_text("top secret")
    whole(lab)
    (lab.data / "evil").symlink_to(secret)
    lab.write("hydra", "host.txt")
    (lab.data / "hydra/gpus.csv").symlink_to(secret / "gpus.csv")
    hosts, problems = lab.read()
    assert set(hosts) == {"atlas", "hydra"}
    assert hosts["hydra"].gpus is None
    assert Problem("data/'evil'", "it is a link, and links are not followed") in problems
    assert Problem("data/hydra/gpus.csv", "not read: it is a link, and links are not followed") in problems


def test_what_is_not_a_plain_file_is_not_read(lab: Lab) -> None:
    whole(lab)
    (lab.data / "atlas/gpus.csv").unlink()
    os.mkfifo(lab.data / "atlas/gpus.csv")
    _, problems = lab.read()
    assert problems == [Problem("data/atlas/gpus.csv", "not read: it is not a plain file")]


def test_a_file_of_200_mb_is_not_read(lab: Lab) -> None:
    whole(lab)
    with lab.write("hydra", "gpus.csv", GPU).open("r+b") as file:
        file.truncate(200_000_000)
    hosts, (problem,) = lab.read()
    assert problem.what == "not read: it has 200000000 bytes, more than the 8388608 that are read"
    assert hosts["atlas"].gpus


def test_a_folder_that_is_not_there_is_a_problem(lab: Lab) -> None:
    lab.builder = Snapshots(lab.data / "none", lab.state)
    hosts, (problem,) = lab.read()
    assert (hosts, problem.what) == ({}, "the folder cannot be read: No such file or directory")
