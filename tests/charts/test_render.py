"""Charts of a host: what they tell, what they leave out, and when each is drawn anew."""

from __future__ import annotations

import gzip
import re
import time
import zlib
from collections.abc import Iterator
from datetime import timezone
from pathlib import Path

import pytest

from site_builder.charts import cache
from site_builder.charts import render as charts_render
from site_builder.charts.render import TINT_COUNT
from site_builder.core.model import PrivacySettings
from site_builder.core.people import PeopleDirectory
from site_builder.history.writer import HistoryWriter
from tests.support import pace
from tests.support.board_fixture import Lab
from tests.support.chart_fixtures import DAY, HOUR, Drawing, past_of, plot, rows_of
from tests.support.history_fixtures import epoch, gpu, host, record

NOW = epoch("2026-11-15 12:00")
SPANS = ["day", "week", "month", "year"]
NAUGHTY = "<script>alert(1)</script>'\"&"


@pytest.fixture(scope="module", autouse=True)
def enough_time() -> Iterator[None]:
    """A busy machine draws as many charts as a quiet one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "CHARTS_TIME_LIMIT_S", 60)
        patch.setattr(cache, "CHARTS_TIME_LIMIT_ALONE_S", 60)
        yield


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "lab")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drawing]:
    """A host with eight GPUs and a full day."""
    lab = Lab(tmp_path_factory.mktemp("full"))
    past_of(lab.state, NOW)
    drawing = Drawing(lab)
    yield drawing
    drawing.history.close()


@pytest.fixture(scope="module")
def drawn(full: Drawing) -> str:
    return full.draw(NOW)


def small(lab: Lab, minutes: int, *gpus: object, before: int = 0) -> Drawing:
    """A host of which so many minutes are known, the last of them `before` minutes ago."""
    history = HistoryWriter(lab.state, timezone.utc)
    record(history, NOW - (minutes + before) * 60, minutes, [host(*gpus)])  # type: ignore[arg-type]
    history.close()
    return Drawing(lab)


# What they tell


@pytest.mark.slow
def test_each_gpu_and_the_machine_have_a_chart_of_each_window(drawn: str) -> None:
    for span in SPANS:
        assert re.findall(rf'id="_{span}-(\w+)"', drawn) == [*(str(n) for n in range(8)), "machine"]


def test_a_row_shows_mean_use_memory_and_power_highest_temperature_owner_and_booking(lab: Lab) -> None:
    gpus = [
        gpu("busy", ["alice"], ["bob"], use=use, memory=40960, temperature=temperature, power=power)
        for use, temperature, power in ((100, 60, 300), (50, 80, 100))
    ]
    history = HistoryWriter(lab.state, timezone.utc)
    record(history, NOW - 3600, 60, lambda minute: [host(gpus[minute % 2])])
    history.close()
    *_, last = rows_of(plot(Drawing(lab).draw(NOW), "day", 0))
    assert last == ["Sun 15 Nov 11:00 – 12:00", "75 %", "40 GiB", "80 °C", "200 W", "alice", "bob"]


def test_the_machine_shows_load_and_memory(lab: Lab) -> None:
    charts = small(lab, 60, gpu()).draw(NOW)
    machine = charts.partition('id="_day-machine"')[2]
    assert rows_of(machine)[-1] == ["Sun 15 Nov 11:00 – 12:00", "50 %", "25 %"]


def test_a_gap_is_a_gap_in_the_line_and_in_the_table(lab: Lab) -> None:
    history = HistoryWriter(lab.state, timezone.utc)
    for start in (NOW - 3 * HOUR, NOW - HOUR):
        record(history, start, 60, [host(gpu(use=0))])
    history.close()
    chart = plot(Drawing(lab).draw(NOW), "day", 0)
    assert rows_of(chart)[-2][1:] == ["–", "–", "–", "–", "", ""]
    assert rows_of(chart)[-1][1] == rows_of(chart)[-3][1] == "0 %"
    (line,) = re.findall(r'class=use d="([^"]*)"', chart)
    assert line == "M252 40h12M276 40h12"
    assert "no data" in chart


def test_an_unavailable_value_is_a_gap_beside_others(lab: Lab) -> None:
    history = HistoryWriter(lab.state, timezone.utc)
    record(history, NOW - 7200, 120, lambda minute: [host(gpu(power=None if minute >= 60 else 70, use=50))])
    history.close()
    chart = plot(Drawing(lab).draw(NOW), "day", 0)
    assert [row[1:5] for row in rows_of(chart)[-2:]] == [
        ["50 %", "0 GiB", "40 °C", "70 W"],
        ["50 %", "0 GiB", "40 °C", "–"],
    ]


def test_what_a_gpu_never_reports_has_no_panel(lab: Lab) -> None:
    instance = gpu(index=1, key="GPU-1", use=None, temperature=None, power=None)
    charts = small(lab, 60, gpu(), instance).draw(NOW)
    assert re.findall(r"<text y=\d+>(\w+)", plot(charts, "day", 1)) == ["Memory"]
    assert rows_of(plot(charts, "day", 1))[-1][1:] == ["0 GiB", "", ""]
    assert re.findall(r"<text y=\d+>(\w+)", plot(charts, "day", 0)) == ["Use", "Memory", "Temperature", "Power"]
    used, drawn = (set(re.findall(pattern, charts)) for pattern in (r"href=#(_day-grid-\d+)", r"id=(_day-grid-\d+)"))
    assert used == drawn
    assert len(used) == 3


@pytest.mark.parametrize(
    ("slots", "expected_label"), [(60, "booked: &lt;dana&gt;"), (20, "&lt;dana&gt;"), (6, "&lt;d…"), (2, None)]
)
def test_a_name_that_has_no_room_is_cut_and_says_so(slots: int, expected_label: str | None) -> None:
    labels = re.findall(
        r"<text x=3 y=12>([^<]*)</text>",
        charts_render.render_chart_band_label(range(0, slots), 100, 0, "booked: <dana>", "<dana>"),
    )
    assert labels == ([expected_label] if expected_label else [])


@pytest.mark.slow
def test_people_and_bookings_stand_behind_by_name(drawn: str) -> None:
    chart = plot(drawn, "day", 1)
    assert {"alice", "bob", "dana"} <= set(re.findall(r"<text x=3 y=12>([^<]*)</text>", chart))
    assert 'fill="url(#_day-hatch)"' in chart


def test_one_person_has_one_tint_whatever_the_host_and_the_window(drawn: str) -> None:
    tint = zlib.crc32(b"alice") % TINT_COUNT
    assert f'class="who t{tint}"' in plot(drawn, "day", 0)
    assert f'class="who t{tint}"' in plot(drawn, "week", 0)


def test_two_names_of_one_person_are_one(lab: Lab) -> None:
    drawing = small(lab, 60, gpu("busy", ["al"]))
    drawing.asked = drawing.asked._replace(people=PeopleDirectory({"al": "Alice L."}))
    assert rows_of(plot(drawing.draw(NOW), "day", 0))[-1][5] == "Alice L."


def test_people_who_are_not_shown_are_in_no_chart(full: Drawing, drawn: str) -> None:
    asked, full.asked = full.asked, full.asked._replace(privacy=PrivacySettings("program", False))
    try:
        charts = full.draw(NOW)
    finally:
        full.asked = asked
    assert not re.search("alice|bob|carol|dana", charts) and re.search("alice", drawn)
    assert {"in use", "booked"} <= {cell for row in rows_of(plot(charts, "day", 1)) for cell in row}


def test_names_are_shown_as_text(lab: Lab) -> None:
    charts = small(lab, 60, gpu("busy", [NAUGHTY], [NAUGHTY], model=NAUGHTY)).draw(NOW)
    assert "<script" not in charts and "&lt;script&gt;" in charts


def test_each_axis_ends_at_a_round_number_above_all_values(lab: Lab) -> None:
    charts = small(lab, 60, gpu(power=613, memory=1000), gpu(index=1, power=20)).draw(NOW)
    for number in (0, 1):
        axis_labels = re.findall(r"<text class=axis x=-4 y=\d+>(\d+)</text>", plot(charts, "day", number))
        assert axis_labels == ["100", "0", "80", "0", "100", "0", "700", "0"]


def test_a_gpu_that_the_host_has_no_more_comes_last_and_says_so(lab: Lab) -> None:
    charts = small(lab, 60, gpu(index=0, key="GPU-old"), gpu(index=1)).draw(NOW)
    assert "GPU 1" in plot(charts, "day", 0)
    assert "no longer on this host" in plot(charts, "day", 1)


def test_a_host_with_more_gpus_than_a_page_can_hold_says_how_many_are_left_out(lab: Lab) -> None:
    charts = small(lab, 2, *(gpu(index=number) for number in range(66))).draw(NOW)
    assert charts.count("and 2 more GPUs without a chart") == 4


def test_a_host_that_was_not_seen_says_so(lab: Lab) -> None:
    charts = small(lab, 5, gpu(), before=2 * 24 * 60).draw(NOW)
    assert charts.count("No data for this host in this period.") == 1


def test_without_history_there_is_no_chart(lab: Lab) -> None:
    assert Drawing(lab).draw(NOW) == ""


def test_history_that_cannot_be_read_is_one_sentence_and_nothing_of_it_is_kept(lab: Lab) -> None:
    drawing = small(lab, 60, gpu())
    connection = drawing.history.connect()
    connection.execute("ALTER TABLE shape RENAME TO hidden")
    assert drawing.draw(NOW).count("state/history.db: it could not be read") == 4
    assert not list(drawing.charts.folder.glob("*"))


# When they are drawn


@pytest.mark.slow
def test_the_day_is_drawn_every_five_minutes_and_the_longer_windows_once_an_hour(lab: Lab) -> None:
    drawing = small(lab, 60, gpu())
    assert drawing.times(NOW) == dict.fromkeys(SPANS, NOW)
    seen: dict[str, set[int]] = {span: set() for span in SPANS}
    for minute in range(1, 241):
        for span, at in drawing.times(NOW + minute * 60).items():
            seen[span].add(at)
    assert sorted(seen["day"]) == [NOW, *range(NOW + 300, NOW + 14401, 300)]
    for span in SPANS[1:]:
        assert 4 <= len(seen[span]) <= 5, seen
        moments = sorted(seen[span])
        assert all(after - before == HOUR for before, after in zip(moments[1:], moments[2:]))


@pytest.mark.slow
def test_no_page_draws_two_longer_windows_after_the_first(lab: Lab) -> None:
    drawing = small(lab, 60, gpu())
    before = drawing.times(NOW)
    for minute in range(1, 181):
        after = drawing.times(NOW + minute * 60)
        assert sum(before[span] != after[span] for span in SPANS[1:]) <= 1
        before = after


def test_another_builder_takes_up_what_was_drawn(lab: Lab) -> None:
    small(lab, 60, gpu()).draw(NOW)
    assert Drawing(lab).times(NOW + 600) == {"day": NOW + 600, "week": NOW, "month": NOW, "year": NOW}


def test_a_clock_that_was_ahead_keeps_no_chart_for_ever(lab: Lab) -> None:
    drawing = small(lab, 60, gpu())
    drawing.draw(NOW + 365 * DAY)
    assert set(drawing.times(NOW).values()) == {NOW}


@pytest.mark.parametrize("content", [b"", b"x", b"abc def\nx", b"\xff\xfe 1\n"])
def test_a_kept_chart_that_is_damaged_is_drawn_again(lab: Lab, content: bytes) -> None:
    drawing = small(lab, 60, gpu())
    drawing.draw(NOW)
    (drawing.charts.folder / "atlas.week").write_bytes(content)
    assert drawing.times(NOW + 60)["week"] == NOW + 60


def test_when_people_are_no_longer_shown_no_kept_chart_shows_of_them(lab: Lab) -> None:
    drawing = small(lab, 60, gpu("busy", ["alice"]))
    assert "alice" in drawing.draw(NOW)
    drawing.asked = drawing.asked._replace(privacy=PrivacySettings("program", False))
    assert "alice" not in drawing.draw(NOW + 1)
    assert not [path for path in drawing.charts.folder.iterdir() if b"alice" in path.read_bytes()]


def test_nothing_is_kept_of_a_host_that_left(lab: Lab) -> None:
    drawing = small(lab, 60, gpu())
    drawing.draw(NOW)
    assert list(drawing.charts.folder.iterdir())
    drawing.charts.start_build(["hydra"], patient=True)
    assert list(drawing.charts.folder.iterdir()) == []


def test_a_truncated_cached_chart_is_drawn_again(lab: Lab) -> None:
    drawing = small(lab, 60, gpu())
    whole = drawing.draw(NOW)
    path = drawing.charts.folder / "atlas.year"
    path.write_bytes(path.read_bytes()[:-100])
    assert drawing.draw(NOW) == whole


def test_what_is_kept_is_for_the_builder_alone(lab: Lab) -> None:
    drawing = small(lab, 60, gpu())
    drawing.draw(NOW)
    assert {path.stat().st_mode & 0o77 for path in (drawing.charts.folder, *drawing.charts.folder.iterdir())} == {0}


def test_a_state_folder_that_cannot_be_written_costs_no_chart(lab: Lab) -> None:
    drawing = small(lab, 60, gpu())
    (lab.state / "charts").write_bytes(b"")  # no folder can be made there
    assert drawing.times(NOW) == dict.fromkeys(SPANS, NOW)


def test_in_a_large_fleet_the_day_is_drawn_less_often(lab: Lab) -> None:
    small(lab, 60, gpu())
    drawing = Drawing(lab, ["atlas", *(f"gpu{number:04}" for number in range(999))])
    drawing.draw(NOW)
    assert [drawing.times(NOW + after)["day"] - NOW for after in (60, 400, 560)] == [0, 0, 560]


def test_a_build_that_has_no_time_left_takes_what_is_kept_and_draws_the_rest_later(lab: Lab) -> None:
    drawing = small(lab, 60, gpu())
    drawing.charts.deadline = time.monotonic() - 1
    assert drawing.draw(NOW).count(cache.NOT_DRAWN_YET) == 4
    drawing.charts.deadline = float("inf")
    drawing.draw(NOW)
    drawing.charts.deadline = time.monotonic() - 1
    assert drawing.times(NOW + 3 * HOUR) == dict.fromkeys(SPANS, NOW)


def test_a_build_that_stands_alone_does_not_draw_for_minutes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = small(lab, 60, gpu())
    monkeypatch.setattr(cache, "CHARTS_TIME_LIMIT_ALONE_S", -1)
    drawing.charts.start_build(["atlas"], patient=True)
    assert drawing.draw(NOW).count(cache.NOT_DRAWN_YET) == 4


# What they cost


def test_charts_of_eight_gpus_weigh_less_than_150_kb(drawn: str) -> None:
    assert len(gzip.compress(drawn.encode(), 6)) < 100_000  # the page has a card, too


def test_charts_of_eight_gpus_are_drawn_in_little_time(full: Drawing) -> None:
    full.draw(NOW)
    pace.check(pace.took(lambda: full.draw(NOW + 60), rounds=3), 0.2)


def test_the_first_drawing_of_all_windows_takes_little_time(full: Drawing) -> None:
    def first() -> None:
        for path in full.charts.folder.iterdir():
            path.unlink()
        full.draw(NOW)

    pace.check(pace.took(first), 2)
