"""gpuboard build: the site is written whole or not at all, only where something changed, and a failure is told."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import tzinfo
from pathlib import Path

import jsonschema
import pytest
from dateutil import tz

from site_builder.board import commands as board_commands
from site_builder.board import site_writer
from site_builder.board.builder import Builder, BuildError, BuildReport
from site_builder.core import parallel
from site_builder.core.clock import Now
from site_builder.core.model import HostSnapshot, HostStatus, PrivacySettings, StateLimits
from site_builder.fleet import host_state
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.host_state import HostStatusSources
from tests.support.board_fixture import Lab, gpu, person, process, soon, words
from tests.support.command_line import run_gpuboard
from tests.support.machine import wait_for

ROOT = Path(__file__).parents[2]
LONG = 60  # seconds: a machine that is busy with something else is no failure of ours


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def gpuboard(lab: Lab, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a user calls it in the lab's folder."""
    return run_gpuboard(lab.data.parent, *arguments, HOME=str(lab.data.parent), TZ="UTC")


def busy_lab(lab: Lab) -> None:
    """Two hosts: one with a job and a free GPU, one that is idle."""
    lab.host("atlas", gpu(0, 7000, 97) + gpu(1), process(42), person(42, "alice"))
    lab.host("hydra", gpu(0, uuid="GPU-h"))


# What stands in www/


def test_the_board_and_status_json_agree(lab: Lab) -> None:
    busy_lab(lab)
    report = lab.build()
    assert (report.host_count, report.gpu_counts, report.problems) == (2, {"busy": 1, "free": 2}, [])
    assert [host["name"] for host in lab.status()["hosts"]] == ["atlas", "hydra"]
    assert lab.states("atlas") == ["busy", "free"]
    assert "<title>2 free · gpuboard</title>" in lab.page()
    assert "<b>alice</b> <code>python train.py</code>" in lab.page()


def test_status_json_is_as_its_schema_says(lab: Lab) -> None:
    busy_lab(lab)
    lab.write("broken", "host.txt")
    (lab.data / "hosts.txt").write_text("later, Not yet here, tag\n")
    lab.book(
        {"atlas": {"*": {"name": "bob", "from": soon(-60), "date": soon(9000), "id": "x1", "comment": "y"}}, "x": []}
    )
    lab.build()
    schema = json.loads((ROOT / "docs/status.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(lab.status(), schema)


def test_a_host_in_status_json_has_the_documented_names_and_units(lab: Lab) -> None:
    busy_lab(lab)
    lab.book({"atlas": {"0": {"name": "bob", "date": "2199-01-01 10:00", "comment": "demo"}}})
    lab.build()
    host = lab.host_status("atlas")
    assert host["load"] == [1.5, 1.2, 1.0]
    assert (host["cpus"], host["memory"]) == (4, {"total": 64000, "available": 32000})
    assert host["disks"] == [{"mount": "/data", "total": 1000, "used": 610}]
    assert host["age"] <= 2
    first_gpu = host["gpus"][0]
    assert (
        first_gpu["memory.used"],
        first_gpu["memory.total"],
        first_gpu["utilization.gpu"],
        first_gpu["power.limit"],
    ) == (
        7000,
        81920,
        97,
        400,
    )
    assert first_gpu["processes"][0]["user"] == "alice"
    assert abs(first_gpu["processes"][0]["started"] - (time.time() - 3600)) < 60
    (booked,) = first_gpu["bookings"]
    assert {name: booked[name] for name in ("id", "name", "from", "date", "comment")} == {
        "id": "x039d1eb8",
        "name": "bob",
        "from": None,
        "date": "2199-01-01T10:00:00+00:00",
        "comment": "demo",
    }


def test_a_host_that_is_silent_has_null_for_what_is_not_known(lab: Lab) -> None:
    lab.host("atlas", gpu(0, 7000, 97), process(42), person(42))
    lab.build(after=3600)
    host = lab.host_status()
    assert (host["state"], host["gpus"][0]["state"]) == ("down", "unknown")
    assert host["gpus"][0]["utilization.gpu"] is None
    assert host["gpus"][0]["memory.used"] is None
    assert (host["gpus"][0]["memory.total"], host["gpus"][0]["processes"]) == (81920, [])
    assert "No snapshot since" in lab.page()


def test_hosts_stand_in_the_order_in_which_people_count(lab: Lab) -> None:
    for name in ("gpu10", "gpu9", "Atlas"):
        lab.host(name, gpu(0, uuid=f"GPU-{name}"))
    lab.build()
    assert [host["name"] for host in lab.status()["hosts"]] == ["Atlas", "gpu9", "gpu10"]


def test_a_hidden_host_is_nowhere(lab: Lab) -> None:
    busy_lab(lab)
    lab.write("hydra", "gpus.csv", "torn", end="")
    (lab.data / "hosts.txt").write_text("hydra, hidden\n")
    lab.build()
    assert "hydra" not in (lab.page() + (lab.www / "status.json").read_text())


def test_titles_tags_and_short_names_are_shown(lab: Lab) -> None:
    busy_lab(lab)
    (lab.data / "hosts.txt").write_text("atlas, Vision lab, vision a100\n")
    (lab.data / "gpu-names.csv").write_text("NVIDIA A100-SXM4-80GB, the big one\n")
    (lab.data / "aliases.csv").write_text("alice, Alice B.\n")
    lab.build()
    assert "<span>Vision lab</span>" in lab.page()
    assert "<span class=tag>vision</span>" in lab.page()
    assert "<span class=models>2 × the big one</span>" in lab.page()
    assert "<b>Alice B.</b>" in lab.page()


def test_a_notice_stands_at_the_top_of_the_page_as_text(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    assert "class=notice" not in lab.page()
    lab.build(notice="Power cut on <Friday>")
    assert "<p class=notice>Power cut on &lt;Friday&gt;</p>" in lab.page()


def test_files_of_the_original_scripts_make_a_board(lab: Lab) -> None:
    stamp = time.strftime("%Y/%m/%d %H:%M:%S.000")
    lab.original(
        "old_box",
        gpus=f"0, GPU-1, Tesla T4, 9000, 15360, 80, 40, 60, {stamp}\n1, GPU-2, Tesla T4, 3, 15360, 0, 0, 40, {stamp}\n",
        processes=f"{stamp}, GPU-1, 8990, python, 42\n",
        users=f"42 alice {time.strftime('%a %b %e %H:%M:%S %Y')}\n",
        status="Mem: 64000 1 1 1 1 32000\n96\n up 1 day, load average: 0,54, 0,31, 0,14\n",
    )
    report = lab.build()
    assert (lab.states("old_box"), words(report)) == (["busy", "free"], "")
    assert lab.host_status("old_box")["load"] == [0.54, 0.31, 0.14]
    assert "T4 16 GB" in lab.page()


def test_the_same_gpu_on_two_hosts_is_reported(lab: Lab) -> None:
    lab.host("atlas")
    lab.host("hydra")
    assert words(lab.build()) == "data/hydra/gpus.csv: atlas tells the GPU GPU-0 too"


def test_bookings_show_the_time_left_and_grey_for_two_days(lab: Lab) -> None:
    lab.host()
    lab.book({"atlas": [{"name": "bob", "date": soon(2 * 86400 + 2 * 3600 + 60), "comment": "ICML"}]})
    lab.build()
    assert "2 d 3 h left" in lab.page()
    lab.build(after=3 * 86400)
    assert '<p class="booking ended"><b>bob</b>' in lab.page()
    lab.build(after=4.5 * 86400)
    assert "bob" not in lab.page()


def test_a_gpu_is_held_after_two_hours_of_idling_also_with_a_new_builder_at_each_build(lab: Lab) -> None:
    slow = StateLimits(stale_after=1e6, down_after=1e6)
    lab.host("atlas", gpu(0, 7000, 1), process(42), person(42))
    lab.build(limits=slow)
    assert lab.states() == ["busy"]
    lab.build(after=7300, limits=slow)
    assert lab.states() == ["held"]
    lab.host("atlas", gpu(0, 7000, 50), process(42), person(42))
    lab.build(after=7310, limits=slow)
    assert lab.states() == ["busy"]


def test_a_verdict_is_there_at_the_first_build(lab: Lab) -> None:
    lab.host("hydra", gpu(0, 7000, 9, uuid="GPU-h"), process(1, "GPU-h"), person(1, "erin"))
    lab.host("atlas", gpu(0, 7000, 97), process(42), person(42, "dave"))
    lab.book({"atlas": [{"name": "erin", "date": soon(9000)}]})
    lab.build()
    assert lab.states("atlas") == ["conflict"]


def test_a_login_that_was_seen_once_is_known_for_verdicts(lab: Lab) -> None:
    lab.host("hydra", gpu(0, 7000, 9, uuid="GPU-h"), process(1, "GPU-h"), person(1, "erin"))
    lab.host("atlas", gpu(0, 7000, 97), process(42), person(42, "dave"))
    lab.book({"atlas": [{"name": "Erin", "date": soon(9000)}]})
    lab.build()
    lab.host("hydra", gpu(0, uuid="GPU-h"))
    lab.build()
    assert lab.states("atlas") == ["conflict"]
    assert "used by dave since" in lab.page()


# Privacy


def test_without_users_no_name_is_anywhere_in_www(lab: Lab) -> None:
    lab.host(
        "atlas",
        gpu(0, 7000, 97) + gpu(1),
        process(42),
        person(42, "alice", "/home/alice/bin/python /home/alice/x.py", container="docker:alice-dev"),
        "disk=9 8 /d\ndisk_use=9G /d/alice\n",
    )
    carla = {"name": "carla", "date": soon(900), "comment": "with alice", "id": "carla-1"}
    lab.book({"atlas": {"0": carla, "1": {"name": "carla"}}})
    lab.build(privacy=PrivacySettings(users=False))
    site = lab.page() + (lab.www / "status.json").read_text()
    assert "alice" not in site
    assert "carla" not in site
    assert lab.states() == ["busy", "free"]
    assert lab.host_status()["gpus"][0]["processes"][0]["user"] is None


@pytest.mark.parametrize(
    ("commands", "expected"), [("full", "/usr/bin/python x.py"), ("program", "python"), ("none", None)]
)
def test_commands_are_shown_as_the_setting_says(lab: Lab, commands: str, expected: str | None) -> None:
    lab.host("atlas", gpu(0, 7000, 97), process(42), person(42, "alice", "/usr/bin/python x.py"))
    lab.build(privacy=PrivacySettings(commands=commands))
    assert lab.host_status()["gpus"][0]["processes"][0]["command"] == expected
    assert ("x.py" in lab.page()) == (commands == "full")


# Only what changed


def signatures(lab: Lab) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(lab.www)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in lab.www.rglob("*") if p.is_file()
    }


FLEET = ["index.html", "icon.svg", "live.json", "status.json"]
TEXTS = ["metrics", "term.txt", "term-ansi.txt", "detail.txt"]
JOINED = ["states/index.json", "nodes/index.json"]
ALWAYS = ["live.json", "metrics"]


def once_a_host(name: str) -> list[str]:
    """What is written at the pace of its page."""
    return [f"hosts/{name}.html", f"states/{name}/index.json", f"nodes/{name}.json"]


def test_the_files_of_the_fleet_are_written_first_and_those_of_each_host_after_them(lab: Lab) -> None:
    busy_lab(lab)
    written = lab.build().written_files
    assert written[:9] == ["available.txt", *FLEET, *TEXTS]
    assert written[9:11] == ["available/atlas.txt", "available/hydra.txt"]
    parts = ("_top", "_waste", "_problems", "atlas", "hydra")
    assert set(written[11:16]) == {f"cards/{name}.html" for name in parts}
    assert written[16:21] == ["waste.json", "bookings.html", "bookings.ics", "fleet.html", "users.html"]
    assert set(written[21:27]) == {*once_a_host("atlas"), *once_a_host("hydra")}
    assert written[27:] == JOINED


def test_unchanged_files_are_not_rewritten_except_those_with_the_build_time(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    before = signatures(lab)
    assert lab.build().written_files == ALWAYS
    after = signatures(lab)
    assert {name for name in before if before[name] != after[name]} == set(ALWAYS)


def test_a_card_is_written_when_more_than_its_numbers_moved(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    lab.host("hydra", gpu(0, 4, 1, uuid="GPU-h"))
    moved = {"index.html", "status.json", *ALWAYS, *TEXTS, *once_a_host("hydra"), *JOINED}
    assert set(lab.build().written_files) == moved
    lab.host("hydra", gpu(0, 9000, 50, uuid="GPU-h"))
    assert {"cards/hydra.html", "cards/_top.html"} <= set(lab.build().written_files)


def test_a_living_builder_shows_within_a_minute_that_it_lives(lab: Lab) -> None:
    lab.host()
    later = 4201 - time.time() % 600  # not where ten minutes are over, when there is news on fleet.html
    lab.build(after=later)
    assert lab.build(after=later + 50).written_files == ALWAYS
    again = ["index.html", "live.json", "status.json", *TEXTS, "waste.json", "users.html"]
    assert lab.build(after=later + 61).written_files == again


def test_metrics_have_the_duration_of_the_last_build_even_of_another_builder(lab: Lab) -> None:
    lab.host()
    lab.build()
    assert "gpuboard_build_duration_seconds" not in (lab.www / "metrics").read_text()
    lab.build()
    duration_match = re.search(
        r"^gpuboard_build_duration_seconds ([0-9.]+)$", (lab.www / "metrics").read_text(), re.MULTILINE
    )
    assert duration_match
    assert 0 < float(duration_match[1]) < 60


def test_a_page_that_somebody_deleted_or_changed_is_written_again(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    (lab.www / "index.html").write_text("mine now")
    assert lab.build().written_files == ["index.html", *ALWAYS]
    for name in ("status.json", "cards/atlas.html", "term.txt", "available/atlas.txt", "states/index.json"):
        (lab.www / name).unlink()
        assert set(lab.build().written_files) == {name, *ALWAYS}
    (lab.www / "hosts/atlas.html").unlink()
    assert set(lab.build().written_files) == {"hosts/atlas.html", *ALWAYS}


def test_revisions_are_kept_from_one_builder_to_the_next(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    first = lab.live()
    lab.build(after=20)
    later = lab.live()
    assert later["built"] > first["built"]
    assert [host[:2] for host in later["hosts"]] == [host[:2] for host in first["hosts"]]
    assert later["parts"] == first["parts"]


def test_a_host_that_is_no_longer_on_the_board_has_no_files_either(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    (lab.data / "hosts.txt").write_text("hydra, hidden\n")
    lab.build()
    assert not [name for name in signatures(lab) if "hydra" in name]


def test_where_it_builds_again_and_again_the_pages_of_hosts_are_spread(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(9):
        lab.host(f"gpu{number}", gpu(uuid=f"GPU-{number}"))
    monkeypatch.setattr(site_writer, "PAGES_TIME_LIMIT_S", 0.0)
    builder = Builder(lab.settings(), build_interval_s=10)
    now = time.time()
    written = [builder.build(now + 10 * n).written_files for n in range(18)]
    counts = [
        [sum(name.startswith(folder) for name in names) for names in written] for folder in ("hosts/", "nodes/gpu")
    ]
    assert [max(count) for count in counts] == [1, 1]
    assert [sum(count) for count in counts] == [9, 9]


def test_only_the_card_of_a_host_that_changed_is_made_again(lab: Lab) -> None:
    busy_lab(lab)
    builder = Builder(lab.settings())
    builder.build(time.time())
    before = dict(builder.pipeline.built_hosts)
    lab.host("hydra", gpu(0, 30000, 90, uuid="GPU-h"))
    builder.build(time.time())
    after = builder.pipeline.built_hosts
    assert (after["atlas"] is before["atlas"], after["hydra"] is before["hydra"]) == (True, False)


def test_assets_are_copied_where_www_is_another_folder_and_renewed_when_they_differ(lab: Lab) -> None:
    lab.build()
    style = lab.www / "assets/board.css"
    assert style.read_bytes() == (ROOT / "www/assets/board.css").read_bytes()
    style.write_text("old")
    lab.build()
    assert style.read_bytes() == (ROOT / "www/assets/board.css").read_bytes()


# Whole or absent


@pytest.mark.slow
def test_killed_at_any_moment_a_build_leaves_whole_files(lab: Lab) -> None:
    for number in range(40):
        lab.host(f"gpu{number}", gpu(0, uuid=f"GPU-{number}"))
    lab.build()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "site_builder", "build"]
    for delay in range(12):
        lab.host("gpu1", gpu(0, 4000 + delay, 9, uuid="GPU-1"), process(42 + delay, "GPU-1"))
        with subprocess.Popen(command, cwd=lab.data.parent, env=environment) as builder:
            time.sleep(0.1 + delay * 0.03)
            builder.send_signal(signal.SIGKILL)
        assert lab.page().endswith("</html>")
        assert len(lab.status()["hosts"]) == 40
    assert gpuboard(lab, "build").returncode == 0
    assert lab.host_status("gpu1")["gpus"][0]["memory.used"] == 4011
    assert [path.name for path in lab.www.iterdir() if path.name.startswith(".")] == []


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of 2 MB."""
    path.mkdir()
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["/usr/bin/umount", str(path)], check=True)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk of its own")


@needs_root
def test_out_of_disk_the_old_page_stays_whole_and_one_sentence_says_why(lab: Lab) -> None:
    busy_lab(lab)
    with small_disk(lab.www):
        assert gpuboard(lab, "build").returncode == 0
        before = lab.page()
        (lab.www / "filler").write_bytes(b"x" * (os.statvfs(lab.www).f_bavail * 4096 - 8192))
        lab.host("hydra", "".join(gpu(n, uuid=f"GPU-{n}-{'x' * 60}") for n in range(60)))
        result = gpuboard(lab, "build")
        assert (result.returncode, lab.page()) == (2, before)
        assert "could not be written: No space left on device; the page stays as it is" in result.stderr
        assert len(result.stderr.splitlines()) == 1
        (lab.www / "filler").unlink()
        assert gpuboard(lab, "build").returncode == 0
        assert [path.name for path in lab.www.iterdir() if path.name.startswith(".")] == []


def test_a_folder_that_is_not_there_or_cannot_be_read_is_one_sentence_and_exit_2(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    before = signatures(lab)
    result = gpuboard(lab, "build", "--data", "nowhere")
    assert (result.returncode, result.stdout) == (2, "")
    where = lab.data.parent / "nowhere"
    hint = "start gpuboard in the folder that has it, or set GPUBOARD_DATA"
    assert result.stderr == f"gpuboard: {where} is not there: {hint}\n"
    assert signatures(lab) == before


@pytest.mark.parametrize("folder", ["www", "state"])
def test_a_folder_that_cannot_be_written_is_one_sentence_and_exit_2(lab: Lab, folder: str) -> None:
    busy_lab(lab)
    result = gpuboard(lab, "build", f"--{folder}", "/proc/none")
    assert result.returncode == 2
    assert result.stderr.startswith("gpuboard: /proc/none")
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_of_which_one_host_cannot_be_read_costs_that_host(lab: Lab) -> None:
    busy_lab(lab)
    (lab.data / "hydra/gpus.csv").unlink()
    (lab.data / "hydra/gpus.csv").mkdir()
    report = lab.build()
    assert words(report) == "data/hydra/gpus.csv: not read: it is not a plain file"
    assert (lab.host_status("hydra")["state"], lab.states("atlas")) == ("failed", ["busy", "free"])


def test_a_damaged_memory_costs_nothing_but_itself(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    for path in lab.state.iterdir():
        if path.is_file():
            path.write_bytes(b"\x80\x04nonsense {")
    (lab.www / "index.html").unlink()
    report = lab.build()
    assert report.host_count == 2
    # what the hosts cannot tell again
    assert [problem.where for problem in report.problems] == ["state/history.db", "state/memory.json"]
    assert "index.html" in report.written_files


def test_an_empty_share_keeps_the_hosts_on_the_board(lab: Lab) -> None:
    busy_lab(lab)
    lab.build()
    lab.data.rename(lab.data.with_name("away"))
    lab.data.mkdir()
    lab.build(after=700)
    assert lab.host_status("atlas")["state"] == "down"
    assert "its files are gone from data/" in lab.host_status("atlas")["reason"]


# Again and again


@pytest.mark.slow
def test_for_cron_it_builds_again_and_again_and_ends_in_time(lab: Lab) -> None:
    busy_lab(lab)
    began = time.monotonic()
    builder = subprocess.Popen(
        [sys.executable, "-m", "site_builder", "build", "--every", "1", "--for", "4"],
        cwd=lab.data.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )
    wait_for((lab.www / "index.html").exists, LONG)
    lab.host("nile", gpu(0, uuid="GPU-n"))
    wait_for(lambda: "nile" in lab.page(), LONG)
    _, error_output = builder.communicate(timeout=LONG)
    assert (builder.returncode, error_output) == (0, b"")
    assert 3 <= time.monotonic() - began < LONG


@pytest.mark.slow
def test_a_second_builder_waits_for_the_lock_and_the_board_never_pauses(lab: Lab) -> None:
    busy_lab(lab)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "site_builder", "build", "--every", "1", "--for"]
    first = subprocess.Popen([*command, "3"], cwd=lab.data.parent, env=environment)
    wait_for((lab.www / "index.html").exists, LONG)
    second = subprocess.Popen([*command, "6"], cwd=lab.data.parent, env=environment)
    first.wait(timeout=LONG)
    lab.host("late", gpu(0, uuid="GPU-late"))
    wait_for(lambda: "late" in lab.page(), LONG)
    assert second.wait(timeout=LONG) == 0


def test_a_builder_that_never_gets_the_lock_ends_in_its_time_without_a_word(lab: Lab) -> None:
    busy_lab(lab)
    first = subprocess.Popen(
        [sys.executable, "-m", "site_builder", "build", "--every", "1"],
        cwd=lab.data.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        wait_for((lab.www / "index.html").exists, LONG)
        result = gpuboard(lab, "build", "--every", "1", "--for", "1")
        assert result.returncode == 0
        assert "Traceback" not in result.stderr
    finally:
        first.kill()
        first.wait()
    assert gpuboard(lab, "build").returncode == 0  # whoever is killed frees the lock


def test_the_same_error_is_printed_once_a_run_and_the_next_build_is_tried(lab: Lab) -> None:
    result = gpuboard(lab, "build", "--every", "1", "--for", "3", "--data", "nowhere")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_for_without_every_is_wrong_use(lab: Lab) -> None:
    assert gpuboard(lab, "build", "--for", "60").returncode == 2


def test_a_build_by_hand_or_by_cron_says_nothing_into_a_pipe(lab: Lab) -> None:
    busy_lab(lab)
    lab.book("{")
    result = gpuboard(lab, "build")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_unforeseen_error_is_one_sentence(lab: Lab) -> None:
    busy_lab(lab)
    (lab.state / "forget").mkdir()
    (lab.state / "forget/atlas").mkdir()  # a request is a file, so that this can never be taken back
    result = gpuboard(lab, "build")
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


def test_a_host_at_which_we_fail_costs_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    busy_lab(lab)
    real = host_state.decide_host_status

    def failing(case: HostStatusSources, snapshot: HostSnapshot, rules: StateRules, now: Now) -> HostStatus:
        if case.discovered.name == "hydra":
            message = "oh"
            raise ZeroDivisionError(message)
        return real(case, snapshot, rules, now)

    monkeypatch.setattr(host_state, "decide_host_status", failing)
    assert "data/hydra: its files could not be understood" in words(lab.build())
    assert (lab.host_status("hydra")["state"], lab.states("atlas")) == ("failed", ["busy", "free"])


class FakeTime:
    """A clock that moves as somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = time.time()

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_slow_builder_ends_in_its_time_and_makes_up_for_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    began = clock.now
    builds: list[float] = []

    def slow(_: Builder, at: float) -> BuildReport:
        builds.append(at - began)
        clock.sleep(1.2)
        return BuildReport(0, {}, [], [], [])

    monkeypatch.setattr(Builder, "build", slow)
    monkeypatch.setattr(board_commands, "time", clock)
    board_commands.run_build_command_loop(Builder(lab.settings()), 1, began, began + 3)
    assert builds == [0, 2]
    assert clock.now - began < 4


# Both cores


def test_many_hosts_are_made_on_both_cores_with_the_same_result(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(parallel.MIN_PARALLEL_ITEMS):
        lab.host(f"gpu{number}", gpu(0, 100 + number, uuid=f"GPU-{number}"))
    at = time.time()
    both = Builder(lab.settings())
    both.build(at)
    monkeypatch.setattr(parallel, "MIN_PARALLEL_ITEMS", 10_000)
    (lab.state / "cards.kept").unlink(missing_ok=True)
    alone = Builder(lab.settings())
    alone.build(at)
    assert both.pipeline.built_hosts == alone.pipeline.built_hosts


def test_without_room_for_a_child_one_core_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", fork)
    assert parallel.map_parallel(lambda item: item * 2, range(500)) == [item * 2 for item in range(500)]


def test_a_child_that_dies_leaves_no_gap() -> None:
    mother = os.getpid()

    def work(item: int) -> int:
        if os.getpid() != mother:
            os.kill(os.getpid(), signal.SIGKILL)
        return item * 2

    assert parallel.map_parallel(work, range(500)) == [item * 2 for item in range(500)]


def test_the_work_of_a_child_that_dies_midway_counts_and_the_rest_is_redone() -> None:
    mother, done = os.getpid(), []

    def work(item: int) -> int:
        if os.getpid() != mother:
            done.append(item)
            if len(done) > 20:
                os.kill(os.getpid(), signal.SIGKILL)
        else:
            time.sleep(0.001)  # the child has its share
        return item * 2

    assert parallel.map_parallel(work, range(500)) == [item * 2 for item in range(500)]


def test_a_python_that_cannot_share_memory_shares_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert parallel.map_parallel(lambda item: item * 2, range(500)) == [item * 2 for item in range(500)]


# The log, and forgetting


def test_the_log_has_when_a_problem_began_and_ended(lab: Lab) -> None:
    busy_lab(lab)
    lab.book("{")
    lab.build()
    lab.build()
    lab.book("{}")
    lab.build()
    lines = (lab.state / "build.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "new: data/comments.json: not read: line 1, column 2: a name in double quotes should stand here",
        "over: data/comments.json: not read: line 1, column 2: a name in double quotes should stand here",
    ]


def test_the_log_does_not_grow_for_ever(lab: Lab) -> None:
    (lab.state / "build.log").write_text("x" * 600_000)
    lab.host()
    lab.book("{")
    lab.build()
    assert (lab.state / "build.log").stat().st_size < 1000
    assert (lab.state / "build.log.1").stat().st_size == 600_000


def test_a_forgotten_host_is_gone_for_good(lab: Lab) -> None:
    busy_lab(lab)
    lab.original("atlas", age=900, gpus="0, GPU-9, T4, 3, 15360, 0, 0, 40, 2026/11/16 09:00:00.123\n")
    (lab.data / "atlas/.new").mkdir()
    (lab.data / "atlas/.new/gpus.csv").write_text("half")
    lab.build()
    result = gpuboard(lab, "forget", "atlas")
    assert result.returncode == 0
    assert "atlas pushed within the last 10 minutes" in result.stderr
    lab.build()
    assert [host["name"] for host in lab.status()["hosts"]] == ["hydra"]
    assert sorted(path.name for path in lab.data.iterdir()) == ["hydra"]
    assert list((lab.state / "forget").iterdir()) == []


def test_forgetting_touches_nothing_but_the_files_of_a_host(lab: Lab, tmp_path: Path) -> None:
    busy_lab(lab)
    lab.build()
    (lab.data / "atlas/notes.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "gpus.csv").write_text("not yours")
    (lab.data / "atlas/.new").symlink_to(elsewhere)
    result = gpuboard(lab, "forget", "atlas")
    assert "notes.txt" in result.stderr
    assert (lab.data / "atlas/notes.txt").read_text() == "mine"
    assert (elsewhere / "gpus.csv").read_text() == "not yours"


@pytest.mark.parametrize(("name", "code"), [("nobody", 1), ("../../etc", 2), ("-x", 2)])
def test_a_host_that_is_none_cannot_be_forgotten(lab: Lab, name: str, code: int) -> None:
    busy_lab(lab)
    assert gpuboard(lab, "forget", "--", name).returncode == code


def test_a_failed_build_is_an_exception_of_one_sentence(lab: Lab) -> None:
    lab.data.rmdir()
    with pytest.raises(BuildError, match="cannot be read: No such file or directory"):
        Builder(lab.settings()).build(time.time())


def test_nothing_stays_of_a_host_that_left_while_no_builder_remembers_it(lab: Lab) -> None:
    lab.host("atlas")
    lab.host("zeus")
    lab.build()
    there = [path for path in lab.www.rglob("*zeus*") if path.is_file() or list(path.iterdir())]
    assert len(there) >= 5
    shutil.rmtree(lab.data / "zeus")
    shutil.rmtree(lab.state)
    lab.state.mkdir()
    lab.build()
    assert list(lab.www.rglob("*zeus*")) == []
    assert (lab.www / "available/atlas.txt").read_text() == "0\n"


@pytest.mark.parametrize("zone", [tz.tzlocal(), tz.gettz("Europe/Paris"), tz.tzstr("CET-1CEST")], ids=str)
def test_a_machine_without_a_database_of_zones_builds_all_the_same(lab: Lab, zone: tzinfo) -> None:
    lab.host("atlas", gpu(0, 9000, 50) + gpu(1), process(42), person(42))
    report = lab.build(zone=zone)
    assert words(report) == ""
    assert lab.states() == ["busy", "free"]
    for name in ("index.html", "term.txt", "detail.txt", "metrics", "hosts/atlas.html", "states/atlas/index.json"):
        assert "A100" in (lab.www / name).read_text()
