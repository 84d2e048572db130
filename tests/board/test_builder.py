"""gpuboard build: the site is written whole or not at all, only where something changed, and a failure is told."""

from __future__ import annotations

import json
import shutil
import time
from datetime import tzinfo
from pathlib import Path

import jsonschema
import pytest
from dateutil import tz

from site_builder.board.builder import Builder, BuildError
from site_builder.core.model import PrivacySettings, StateLimits
from tests.support.board_fixture import Lab, gpu, person, process, soon, words
from tests.support.builder_fixtures import ROOT, busy_lab, gpuboard
from tests.support.samples import format_topology


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


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


def test_links_and_numa_nodes_are_on_the_page_of_the_host_and_in_status_json(lab: Lab) -> None:
    gpus = "".join(gpu(index, uuid=f"GPU-{index}") for index in range(4))
    lab.host("atlas", gpus, facts="cpus=4\nkernel=6.1\n" + format_topology("580-four-in-pairs"))
    lab.host("hydra", gpu(0, uuid="GPU-h") + gpu(5, uuid="GPU-5"), facts=format_topology("580-four-in-pairs"))
    lab.build()
    page = (lab.www / "hosts/atlas.html").read_text()
    assert "<dt>NVLink<dd>GPUs 0, 1 · GPUs 2, 3 (NV4)</div>" in page
    assert "<dt>NUMA nodes<dd>0: GPUs 0, 1 · 1: GPUs 2, 3</div>" in page
    assert "topology" not in page
    atlas, hydra = lab.status()["hosts"]
    assert [(member["numa"], member["linked"]) for member in atlas["gpus"]] == [(0, [1]), (0, [0]), (1, [3]), (1, [2])]
    # a matrix without one of its GPUs is of another time
    assert not any("numa" in member or "linked" in member for member in hydra["gpus"])
    assert "NVLink" not in (lab.www / "hosts/hydra.html").read_text()
    schema = json.loads((ROOT / "docs/status.schema.json").read_text())
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
    assert "<span class=title>Vision lab</span>" in lab.page()
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
    assert words(lab.build()) == "data/hydra/gpus.csv: atlas also reports the GPU GPU-0"


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
        "new: data/comments.json: not read: line 1, column 2: a name in double quotes is missing here",
        "over: data/comments.json: not read: line 1, column 2: a name in double quotes is missing here",
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
