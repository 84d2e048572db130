"""The small lines of the board: a day of use for each GPU, drawn now and then, and never all at once."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from site_builder.board.builder import Builder
from site_builder.charts import cache
from site_builder.charts.cache import SparklineCache
from site_builder.history.writer import HistoryWriter
from tests.support import history_fixtures
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.history_fixtures import record

NAMES = [f"gpu{number:02}" for number in range(12)]
QUARTER_S = 900


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine draws as many lines as a quiet one."""
    monkeypatch.setattr(cache, "SPARKLINES_TIME_LIMIT_S", 60)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab")


def remember(lab: Lab, hosts: list[str], hours: int = 3, use: float = 50) -> None:
    """Some hours of each host, which end now; a minute of every five is enough."""
    history = HistoryWriter(lab.state, timezone.utc)
    sampled_hosts = [
        history_fixtures.host(history_fixtures.gpu("busy", ["alice"], key=f"GPU-{name}", use=use), name=name)
        for name in hosts
    ]
    now = int(time.time()) // 60 * 60
    for back in range(hours * 12, 0, -1):
        record(history, now - back * 300, 1, sampled_hosts)
    history.close()


def push(lab: Lab, hosts: list[str], use: int = 50) -> None:
    for number, name in enumerate(hosts):
        pid, key = 100 + number, f"GPU-{name}"
        lab.host(name, gpu(0, 9000, use, uuid=key), process(pid, key), person(pid))


def lined(lab: Lab) -> int:
    """How many GPUs have a line on the board."""
    return lab.page().count("<td class=day><svg ")


def revisions(lab: Lab) -> dict[str, int]:
    return {host[0]: host[1] for host in lab.live()["hosts"]}


def test_a_gpu_has_a_line_that_shows_its_mean_and_highest_use(lab: Lab) -> None:
    remember(lab, ["atlas"], use=62)
    push(lab, ["atlas"])
    lab.build()
    assert "<title>24 h: mean 62 %, highest 62 %</title>" in lab.page()
    assert "<th scope=col>24 h" in lab.page()


def test_a_line_has_gaps_where_nothing_was_seen(lab: Lab) -> None:
    remember(lab, ["atlas"], use=100)
    push(lab, ["atlas"])
    lab.build()
    path_match = re.search(r"<td class=day>.*?<path d=\"(M\d+ 0h\d+)\"", lab.page())
    assert path_match and int(path_match[1].split()[0][1:]) >= 41  # of 48 slots, the last are known


def test_as_long_as_there_is_next_to_no_history_the_board_has_no_such_column(lab: Lab) -> None:
    remember(lab, ["atlas"], hours=1)
    push(lab, ["atlas"])
    lab.build()
    assert lined(lab) == 0 and "24 h" not in lab.page()


@pytest.mark.slow
def test_a_build_that_comes_alone_draws_all_lines(lab: Lab) -> None:
    remember(lab, NAMES)
    push(lab, NAMES)
    lab.build()
    assert lined(lab) == len(NAMES)


@pytest.mark.slow
def test_a_builder_that_goes_on_draws_few_lines_at_each_build(lab: Lab) -> None:
    remember(lab, NAMES)
    push(lab, NAMES)
    builder = Builder(lab.settings(), build_interval_s=10)
    line_counts = []
    for number in range(7):
        builder.build(time.time() + number)
        line_counts.append(lined(lab))
    builder.close()
    assert line_counts == [2, 4, 6, 8, 10, 12, 12]


def test_a_line_stands_for_a_quarter_of_an_hour_so_that_its_card_does(lab: Lab) -> None:
    rest = QUARTER_S - time.time() % QUARTER_S
    if rest < 15:
        time.sleep(rest)  # or another begins meanwhile
    remember(lab, ["atlas"])
    push(lab, ["atlas"])
    lab.build()
    before = revisions(lab)
    push(lab, ["atlas"], use=99)  # only a number
    lab.build(after=5)
    assert revisions(lab) == before and lab.live()["hosts"][0][7][0][1] == "99 %"


def test_a_line_that_moved_is_news_of_its_card_alone(lab: Lab) -> None:
    remember(lab, NAMES[:3])
    push(lab, NAMES[:3])
    builder = Builder(lab.settings(), build_interval_s=10)
    now = time.time()
    builder.sparkline_cache.cached["gpu01"] = now, {"GPU-gpu01": "<svg></svg>"}
    for number in range(3):
        builder.build(now + number)
    before = revisions(lab)
    builder.sparkline_cache.cached["gpu01"] = now - 1000, builder.sparkline_cache.cached["gpu01"][1]
    builder.build(now + 4)
    after = revisions(lab)
    assert [name for name in after if after[name] != before[name]] == ["gpu01"]
    builder.close()


def test_the_next_builder_takes_up_the_lines(lab: Lab) -> None:
    remember(lab, ["atlas"])
    push(lab, ["atlas"])
    lab.build()
    lines = SparklineCache(lab.settings(), HistoryWriter(lab.state, timezone.utc))
    now, drawn_at = time.time(), lines.cached["atlas"][0]
    lines.render_hosts(["atlas"], now, patient=True)
    assert lines.cached["atlas"][0] == drawn_at
    lines.render_hosts(["atlas"], now + cache.SPARKLINE_LIFETIME_S + 1, patient=True)
    assert lines.cached["atlas"][0] > now


@pytest.mark.parametrize("content", [b"", b"[]", b'{"code": 1}', b"\xff", b'{"code": "x", "hosts": {"atlas": 1}}'])
def test_lines_that_cannot_be_read_are_drawn_again(lab: Lab, content: bytes) -> None:
    remember(lab, ["atlas"])
    push(lab, ["atlas"])
    (lab.state / "lines.json").write_bytes(content)
    lab.build()
    assert lined(lab) == 1


def test_past_100_hosts_the_board_has_no_lines(lab: Lab) -> None:
    remember(lab, ["gpu00"])
    lines = SparklineCache(lab.settings(), HistoryWriter(lab.state, timezone.utc))
    hosts = [f"gpu{number:02}" for number in range(101)]
    assert lines.render_hosts(hosts[:100], time.time(), patient=True).keys() == {"gpu00"}
    assert lines.render_hosts(hosts, time.time(), patient=True) == {}


def test_a_host_that_left_leaves_no_line(lab: Lab) -> None:
    remember(lab, ["atlas", "hydra"])
    lines = SparklineCache(lab.settings(), HistoryWriter(lab.state, timezone.utc))
    lines.render_hosts(["atlas", "hydra"], time.time(), patient=True)
    lines.render_hosts(["atlas"], time.time(), patient=True)
    lines.save()
    assert b"hydra" not in (lab.state / "lines.json").read_bytes()


def test_the_hosts_own_page_has_the_same_card(lab: Lab) -> None:
    remember(lab, ["atlas"])
    push(lab, ["atlas"])
    lab.build()
    assert "<td class=day><svg " in (lab.www / "hosts/atlas.html").read_text()


def test_the_page_of_a_host_that_is_silent_moves_along_with_time(lab: Lab) -> None:
    push(lab, ["atlas"])
    now = time.time()
    noon = timezone(timedelta(hours=12 - datetime.fromtimestamp(now, timezone.utc).hour))  # no day ends meanwhile
    builder = Builder(lab.settings(zone=noon), build_interval_s=10)
    builder.build(now)
    builder.build(now + 700)  # it is down by then
    written = [("hosts/atlas.html" in builder.build(now + 700 + after).written_files) for after in (60, 880, 920, 960)]
    assert written == [False, False, True, False]
    builder.close()
