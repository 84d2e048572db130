"""A build writes only what changed."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from site_builder.board import site_writer
from site_builder.board.builder import Builder
from tests.support import board_fixture
from tests.support.board_fixture import Lab, gpu
from tests.support.builder_fixtures import ROOT, busy_lab, signatures

FLEET = ["index.html", "icon.svg", "live.json", "status.json"]
TEXTS = ["metrics", "term.txt", "term-ansi.txt", "detail.txt"]
JOINED = ["states/index.json", "nodes/index.json", "nvgpu/cluster_status"]
ALWAYS = ["live.json", "metrics"]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab whose clock stands still: no minute ends between two builds, after which more would be written."""
    moment = time.time()
    monkeypatch.setattr(board_fixture, "time", SimpleNamespace(time=lambda: moment))
    return Lab(tmp_path)


def once_a_host(name: str) -> list[str]:
    """What is written at the pace of its page."""
    return [f"hosts/{name}.html", f"states/{name}/index.json", f"nodes/{name}.json", f"nvgpu/{name}/gpu_status"]


def test_the_files_of_the_fleet_are_written_first_and_those_of_each_host_after_them(lab: Lab) -> None:
    busy_lab(lab)
    written = lab.build().written_files
    assert written[:9] == ["available.txt", *FLEET, *TEXTS]
    assert written[9:11] == ["available/atlas.txt", "available/hydra.txt"]
    parts = ("_top", "_waste", "_problems", "atlas", "hydra")
    assert set(written[11:16]) == {f"cards/{name}.html" for name in parts}
    assert written[16:21] == ["waste.json", "bookings.html", "bookings.ics", "fleet.html", "users.html"]
    assert set(written[21:29]) == {*once_a_host("atlas"), *once_a_host("hydra")}
    assert written[29:] == JOINED


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


@pytest.mark.slow
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
