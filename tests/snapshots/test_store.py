"""data/ is read safely, and only what changed is parsed again."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from site_builder.core import files
from site_builder.core.model import HostSnapshot, Problem
from site_builder.snapshots.store import SnapshotStore
from tests.support import board_fixture

GPU = "index, uuid, name\n0, GPU-1, T4\n"
PROCESS = "gpu_uuid, pid, used_gpu_memory [MiB], process_name\nGPU-1, 42, 512, python\n"


class Lab(board_fixture.Lab):
    """A lab, and what the builder reads of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.builder = SnapshotStore(self.data, self.state)

    def read(self) -> tuple[dict[str, HostSnapshot], list[Problem]]:
        host_snapshots, problems = self.builder.read_hosts()
        hosts = {host_snapshot.name: host_snapshot.parse() for host_snapshot in host_snapshots}
        return hosts, [*problems, *(problem for host in hosts.values() for problem in host.problems)]


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
    assert atlas.ps_rows
    assert atlas.facts
    assert (atlas.gpus.rows[0].uuid, atlas.processes.rows[0].pid, atlas.ps_rows.rows[0].pid) == ("GPU-1", 42, 42)
    assert (atlas.facts.rows[0].cpus, problems) == (4, [])


def test_the_age_counts_from_the_arrival_and_by_one_clock_alone(lab: Lab) -> None:
    now = int(time.time())
    lab.write("atlas", "host.txt", time=now)
    lab.write("atlas", "gpus.csv", GPU, time=now - 300)
    hosts, _ = lab.read()
    assert hosts["atlas"].last_seen == hosts["atlas"].taken_at["host.txt"] == pytest.approx(time.time(), abs=60)
    assert hosts["atlas"].taken_at["gpus.csv"] == pytest.approx(hosts["atlas"].taken_at["host.txt"] - 300, abs=0.01)


@pytest.mark.parametrize("off", [31_536_000, -3600])
def test_a_clock_that_is_off_is_reported_and_changes_no_age(lab: Lab, off: int) -> None:
    now = int(time.time())
    lab.write("atlas", "host.txt", time=now + off)
    lab.write("atlas", "gpus.csv", GPU, time=now + off - 5)
    hosts, _ = lab.read()
    assert hosts["atlas"].taken_at["host.txt"] == pytest.approx(time.time(), abs=60)
    assert hosts["atlas"].taken_at["gpus.csv"] == pytest.approx(hosts["atlas"].taken_at["host.txt"] - 5, abs=0.01)
    assert hosts["atlas"].clock_offset == pytest.approx(off, abs=60)


@pytest.mark.parametrize("file", ["host.txt", "gpus.csv"])
def test_a_file_that_is_sent_again_unchanged_does_not_look_fresh(lab: Lab, file: str) -> None:
    whole(lab)
    before, _ = lab.read()
    time.sleep(0.05)
    path = lab.data / "atlas" / file
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)
    after, _ = lab.read()
    assert after["atlas"].taken_at == before["atlas"].taken_at


def test_a_torn_file_is_answered_by_the_last_whole_one(lab: Lab) -> None:
    whole(lab)
    lab.read()
    lab.write("atlas", "gpus.csv", "index, uuid, na", end="")
    hosts, problems = lab.read()
    gpus = hosts["atlas"].gpus
    assert gpus
    assert [gpu.uuid for gpu in gpus.rows] == ["GPU-1"]
    assert problems == [Problem("data/atlas/gpus.csv", "the file is incomplete: its end is missing")]


def test_a_torn_host_file_does_not_make_the_host_look_fresh(lab: Lab) -> None:
    lab.write("atlas", "host.txt")
    lab.read()
    before = lab.builder.native_files["atlas"]["host.txt"].arrived_at
    time.sleep(0.05)
    lab.write("atlas", "host.txt", end="")
    hosts, _ = lab.read()
    assert hosts["atlas"].last_seen == before


def test_the_last_whole_one_survives_the_builder(lab: Lab) -> None:
    whole(lab)
    lab.read()
    lab.builder.save()
    lab.write("atlas", "gpus.csv", "index, uu", end="")
    lab.builder = SnapshotStore(lab.data, lab.state)
    hosts, _ = lab.read()
    gpus = hosts["atlas"].gpus
    assert gpus
    assert gpus.rows[0].uuid == "GPU-1"


def test_a_damaged_memory_is_begun_anew(lab: Lab) -> None:
    whole(lab)
    (lab.state / "snapshots.kept").write_bytes(b"\x80nonsense")
    lab.builder = SnapshotStore(lab.data, lab.state)
    hosts, problems = lab.read()
    assert (list(hosts), problems) == (["atlas"], [])


def test_only_what_changed_is_read_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(lab)
    (before,), _ = lab.builder.read_hosts()
    opened: list[str] = []
    real = files.read_file

    def noting(name: str, folder: int, limit: int) -> tuple[files.FileSignature, bytes]:
        opened.append(name)
        return real(name, folder, limit)

    monkeypatch.setattr(files, "read_file", noting)
    (again,), _ = lab.builder.read_hosts()
    assert (opened, again.fingerprint == before.fingerprint) == ([], True)
    lab.write("atlas", "gpus.csv", GPU)
    (after,), _ = lab.builder.read_hosts()
    assert (opened, after.fingerprint == before.fingerprint) == (["gpus.csv"], False)


def test_a_host_whose_folder_is_gone_stays_until_it_is_forgotten(lab: Lab) -> None:
    whole(lab)
    before, _ = lab.read()
    lab.builder.save()
    shutil.rmtree(lab.data / "atlas")
    lab.builder = SnapshotStore(lab.data, lab.state)
    hosts, problems = lab.read()
    assert hosts["atlas"].gpus == before["atlas"].gpus
    assert (set(hosts["atlas"].missing_files), hosts["atlas"].last_seen, problems) == (
        set(board_fixture.TASKS),
        before["atlas"].last_seen,
        [],
    )
    lab.builder.forget_host("atlas")
    assert lab.read() == ({}, [])


def test_a_file_that_is_gone_is_answered_by_the_last_one_which_grows_old(lab: Lab) -> None:
    now = int(time.time())
    whole(lab)
    lab.read()
    (lab.data / "atlas/gpus.csv").unlink()
    lab.write("atlas", "host.txt", time=now + 100)
    hosts, _ = lab.read()
    assert hosts["atlas"].gpus
    assert hosts["atlas"].missing_files == ("gpus.csv",)
    assert hosts["atlas"].taken_at["gpus.csv"] == pytest.approx(time.time() - 100, abs=60)


def test_the_name_in_a_file_must_be_its_folders(lab: Lab) -> None:
    lab.write("atlas", "host.txt")
    lab.write("hydra", "gpus.csv", GPU).replace(lab.data / "atlas/gpus.csv")
    (lab.data / "hydra").rmdir()
    hosts, (problem,) = lab.read()
    assert hosts["atlas"].gpus is None
    assert problem.where == "data/atlas/gpus.csv"
    assert problem.what == "it says host=hydra, which does not match its folder, and is ignored"


@pytest.mark.parametrize("name", ['a b"<x>', "x" * 200, "ü", "-x", "a\nb"])
def test_a_folder_that_cannot_be_a_host_is_reported_and_left_alone(lab: Lab, name: str) -> None:
    (lab.data / name).mkdir()
    whole(lab)
    hosts, (problem,) = lab.read()
    assert list(hosts) == ["atlas"]
    assert problem.what == "its name is not a valid host name"
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
    limit = "and the limit is 1048576; GPUBOARD_SNAPSHOT_KIB allows more"
    assert problem.what == f"not read: it has 200000000 bytes, {limit}"
    assert hosts["atlas"].gpus


def test_a_folder_that_is_not_there_is_no_empty_lab(lab: Lab) -> None:
    with pytest.raises(OSError, match="No such file"):
        SnapshotStore(lab.data / "none", lab.state).read_hosts()


ROW = "0, GPU-1, T4, 3, 15360, 0, 0, 40, 2026/11/16 09:00:00.123\n"


def test_the_files_of_the_original_scripts_are_read_too(lab: Lab) -> None:
    lab.original(
        "old_box",
        age=30,
        gpus=ROW,
        processes="2026/11/16 09:00:01.1, GPU-1, 512, python, 42\n",
        users='{"42": ["42"]}\n42 alice Mon Nov 16 08:00:00 2026\n',
        status="96\n",
        local="12G\t/local/alice\n",
    )
    hosts, problems = lab.read()
    box = hosts["old_box"]
    assert box.gpus
    assert box.processes
    assert box.ps_rows
    assert box.facts
    assert (box.gpus.rows[0].uuid, box.processes.rows[0].pid, box.ps_rows.rows[0].user) == ("GPU-1", 42, "alice")
    assert (box.facts.rows[0].cpus, box.facts.rows[0].disk_use[0].used) == (96, 12 * 1024)
    assert (box.is_legacy, problems) == (True, [])
    assert box.taken_at["gpus.csv"] == pytest.approx(time.time() - 30, abs=20)


@pytest.mark.parametrize("at", ["2026/11/16 10:00:00.1", "2026/11/16 09:00:01.1"])
def test_original_rows_of_processes_end_with_their_file_though_the_clock_was_set_back(lab: Lab, at: str) -> None:
    rows = f"{at}, GPU-1, 512, python, 42\n"

    def count(age: float, gpu_time: str) -> int:
        lab.original("old", age=age, gpus=ROW.replace("09:00:00", gpu_time), processes=rows)
        processes = lab.read()[0]["old"].processes
        assert processes is not None
        return len(processes.rows)

    assert count(200, "09:00:00") == 1
    assert count(120, "09:00:20") == 1  # the same rows are copied again and again
    assert count(0, "09:00:40") == 0


def test_an_original_file_from_the_future_is_as_old_as_its_arrival(lab: Lab) -> None:
    lab.original("old", age=-10_000_000, gpus=ROW)
    hosts, _ = lab.read()
    assert hosts["old"].last_seen == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize("torn", ["", ROW + "1, GPU-2, T"])
def test_an_original_file_that_is_being_copied_is_answered_by_the_last_whole_one(lab: Lab, torn: str) -> None:
    lab.original("old", gpus=ROW)
    lab.read()
    lab.original("old", gpus=torn)
    hosts, problems = lab.read()
    assert hosts["old"].gpus
    assert [gpu.uuid for gpu in hosts["old"].gpus.rows] == ["GPU-1"]
    assert problems == [Problem("data/old_gpus.csv", "the file is incomplete: its last line is cut off")]


def test_the_newer_files_count_for_a_host_with_both_kinds(lab: Lab) -> None:
    lab.original("atlas", age=100, gpus=ROW)
    whole(lab)
    hosts, (problem,) = lab.read()
    assert (hosts["atlas"].is_legacy, problem.where) == (False, "data/atlas_*")
    time.sleep(0.05)
    lab.original("atlas", gpus=ROW.replace("40", "41"))
    hosts, problems = lab.read()
    assert (hosts["atlas"].is_legacy, problems) == (True, [])


def test_a_time_ahead_of_the_hosts_own_keeps_no_file_fresh(lab: Lab) -> None:
    lab.write("atlas", "gpus.csv", GPU, time=999_999_999_999)
    lab.read()
    before = lab.builder.native_files["atlas"]["gpus.csv"].arrived_at
    time.sleep(0.05)
    lab.write("atlas", "host.txt")
    hosts, _ = lab.read()
    assert hosts["atlas"].taken_at["gpus.csv"] == before


def test_the_folder_that_the_admin_names_may_be_a_link(lab: Lab, tmp_path: Path) -> None:
    whole(lab)
    (tmp_path / "share").symlink_to(lab.data)
    host_snapshots, problems = SnapshotStore(tmp_path / "share", lab.state).read_hosts()
    assert ([host_snapshot.name for host_snapshot in host_snapshots], problems) == (["atlas"], [])
