"""What a build leaves behind: no rubbish in memory, and charts of every host in the end."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from site_builder.board import host_pipeline, pages
from site_builder.board.builder import Builder
from site_builder.charts import cache
from site_builder.core.clock import Now
from site_builder.fleet import host_state
from site_builder.fleet.gpu_state import StateRules
from tests.support.board_fixture import Lab, gpu


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_a_build_leaves_no_reference_cycles(lab: Lab) -> None:
    lab.host("atlas", gpu(0))
    builder = Builder(lab.settings())
    builder.build(time.time())
    unreachable_counts = []
    gc.disable()
    try:
        for number in range(1, 4):  # threads of other tests may leave cycles meanwhile, but not each time
            lab.host("atlas", gpu(0, 7000 + number, 97))
            gc.collect()
            report = builder.build(time.time() + number)
            unreachable_counts.append(gc.collect())
            assert "hosts/atlas.html" in report.written_files
    finally:
        gc.enable()
    builder.close()
    assert 0 in unreachable_counts


def test_a_host_is_decided_once_for_its_card_its_page_and_what_programs_read_of_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [f"gpu{number}" for number in range(8)]
    decided: list[str] = []

    def count_decision(host: host_state.HostStatusSources, rules: StateRules, now: Now) -> host_state.BuiltHostStatus:
        decided.append(host.discovered.name)
        return host_state.build_host_status(host, rules, now)

    monkeypatch.setattr(pages, "build_host_status", count_decision)
    monkeypatch.setattr(host_pipeline, "build_host_status", count_decision)
    for used in (4, 7000):
        for name in hosts:
            lab.host(name, gpu(0, used, uuid=f"GPU-{name}"))
        decided.clear()
        written = lab.build().written_files
        assert {f"hosts/{name}.html" for name in hosts} | {f"nodes/{name}.json" for name in hosts} <= set(written)
        assert sorted(decided) == hosts


@pytest.mark.slow
def test_with_time_for_one_host_per_build_all_hosts_get_charts_in_the_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [f"gpu{number}" for number in range(4)]
    for name in hosts:
        lab.host(name, gpu(0, uuid=f"GPU-{name}"))
    now = time.time()
    lab.build()  # from now on there is history
    draw = cache.ChartCache.render_host

    def draw_one(self: cache.ChartCache, asked: cache.CachedChartRequest, now: Now) -> bytes:
        drawn_charts = draw(self, asked, now)
        self.deadline = 0
        return drawn_charts

    monkeypatch.setattr(cache.ChartCache, "render_host", draw_one)
    for path in (lab.state / cache.CHARTS_FOLDER).iterdir():
        path.unlink()
    builder = Builder(lab.settings())
    for number in range(1, 61):
        for name in hosts:
            lab.host(name, gpu(0, number, uuid=f"GPU-{name}"))
        builder.build(now + number)
    builder.close()
    assert not [name for name in hosts if cache.NOT_DRAWN_YET in (lab.www / f"hosts/{name}.html").read_text()]


def test_in_a_large_fleet_a_page_with_charts_is_made_less_often_than_what_programs_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LARGE_FLEET_HOSTS", 1)
    monkeypatch.setattr(cache, "PAGE_INTERVAL_PER_HOST_S", 100)
    written = {}
    builder = Builder(lab.settings(), build_interval_s=10)
    for number, after in enumerate((0, 60, 120, 201)):
        for name in ("atlas", "hydra"):
            lab.host(name, gpu(0, number, uuid=f"GPU-{name}"))
        written[after] = builder.build(time.time() + after).written_files
    builder.close()
    assert [after for after, names in written.items() if "states/atlas/index.json" in names] == [0, 60, 120, 201]
    assert [after for after, names in written.items() if "hosts/atlas.html" in names] == [0, 201]
