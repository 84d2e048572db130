"""What is wasted, in whole builds: on the board, in waste.json, and live."""

from __future__ import annotations

import json
import re
import time
from datetime import timezone
from pathlib import Path
from typing import Any

import html5lib
import jsonschema
import pytest
from playwright.sync_api import Browser, expect

from site_builder.board.builder import Builder
from site_builder.core.clock import Now
from site_builder.core.formatting import HOUR
from site_builder.core.model import Gpu, GpuPeople, GpuStatus, HostStatus, PrivacySettings, StateLimits
from site_builder.core.people import PeopleDirectory
from site_builder.fleet.gpu_state import StateRules
from site_builder.fleet.summary import summarize_host
from site_builder.history import idle_runs
from site_builder.history.writer import HistoryWriter
from site_builder.waste import build as waste_build
from site_builder.waste import rules as waste_rules
from site_builder.waste.render import MAX_BOARD_LINES, render_waste_section
from site_builder.waste.rules import WasteItem, WasteReport
from tests.support import history_fixtures, waste_fixtures
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.browser import served
from tests.support.idle_run_fixtures import wear
from tests.support.live_board import Board, opened
from tests.support.pace import check, took

ROOT = Path(__file__).parents[2]
SECTION = "cards/_waste.html"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return waste_fixtures.make(tmp_path_factory.mktemp("waste"))


def told(lab: Lab) -> dict[str, Any]:
    waste_report: dict[str, Any] = json.loads((lab.www / "waste.json").read_text())
    return waste_report


def kinds(lab: Lab) -> dict[str, str]:
    return {f"{waste_item['host']}:{waste_item['index']}": waste_item["kind"] for waste_item in told(lab)["items"]}


# Each kind


def test_every_kind_is_reported_and_near_misses_are_not(made: Lab) -> None:
    assert kinds(made) == {
        "atlas:0": "held",
        "atlas:1": "vacant",
        "atlas:3": "booking",
        "hydra:0": "dead",
        "hydra:1": "ownerless",
        "hydra:2": "unexplained",
    }


def test_hours_are_those_of_history_and_the_sum_is_of_what_is_known(made: Lab) -> None:
    hours = {waste_item["kind"]: waste_item["gpu_hours"] for waste_item in told(made)["items"]}
    assert 10 <= hours["held"] < 11.2
    assert 3 <= hours["booking"] < 4.2
    assert 31 * 24 <= hours["vacant"] < 31 * 24 + 1.2
    assert [hours[kind] for kind in ("dead", "ownerless", "unexplained")] == [None] * 3
    assert told(made)["gpu_hours"] == pytest.approx(hours["held"] + hours["booking"] + hours["vacant"])
    assert told(made)["hours_not_known"] == 3


def test_a_dead_process_is_reported_with_the_command_that_ends_its_children(made: Lab) -> None:
    (dead,) = (waste_item for waste_item in told(made)["items"] if waste_item["kind"] == "dead")
    assert (dead["do"], dead["command"], dead["pids"], dead["who"]) == ("On hydra:", "kill 71 72", [71, 72], ["dave"])


def test_waste_json_is_as_its_schema_says(made: Lab) -> None:
    schema = json.loads((ROOT / "docs/waste.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(told(made), schema)


def test_without_ps_nobody_is_called_unknown(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("hydra", gpu(0, 9000, 60), process(), every=600)
    waste_fixtures.later(lab)
    assert kinds(lab) == {}


def test_memory_is_explained_where_the_processes_could_not_be_read(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("hydra", gpu(0, 9000, 60), every=600)
    (lab.data / "hydra/processes.csv").unlink()
    waste_fixtures.later(lab)
    assert kinds(lab) == {}


def test_a_gpu_that_was_used_a_moment_ago_is_not_reported_though_history_does_not_know_yet(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    hour = int(time.time()) // HOUR * HOUR
    history = HistoryWriter(lab.state, timezone.utc)
    wear(history, hour - waste_fixtures.LONG * HOUR, waste_fixtures.LONG, history_fixtures.host(history_fixtures.gpu()))
    history.close()
    lab.host("atlas")
    lab.build()
    assert kinds(lab) == {"atlas:0": "vacant"}
    lab.host("atlas", gpu(0, 9000, 50), process(), person())
    lab.build()
    assert kinds(lab) == {}
    lab.host("atlas")
    lab.build()
    assert kinds(lab) == {}


def test_a_booking_that_ended_unused_is_reported_and_one_that_ended_long_ago_is_not(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    hour = int(time.time()) // HOUR * HOUR
    history = HistoryWriter(lab.state, timezone.utc)
    for days, name in ((9, "bob"), (3, "carol")):
        wear(history, hour - days * 24 * HOUR, 5, history_fixtures.host(history_fixtures.gpu("booked", [], [name])))
        wear(history, hour - days * 24 * HOUR + 5 * HOUR, 1, history_fixtures.host(history_fixtures.gpu()))
    history.close()
    lab.host("atlas")
    lab.build()
    (waste_item,) = told(lab)["items"]
    assert (waste_item["kind"], waste_item["who"], waste_item["gpu_hours"]) == ("booking", ["carol"], 5.0)
    assert waste_item["until"] - waste_item["since"] == 5 * HOUR
    assert "5.0" not in lab.page()
    html = (lab.www / "fleet.html").read_text()
    assert "<h3>Booked, never used, ended in the last 7 days: 5.0 GPU-hours</h3>" in html
    assert "<td>carol" in html


# People


def test_where_people_are_hidden_no_file_names_them(tmp_path: Path) -> None:
    lab = waste_fixtures.make(tmp_path, privacy=PrivacySettings(users=False))
    assert kinds(lab)["atlas:0"] == "held"
    for file in ("index.html", "waste.json", SECTION):
        text = (lab.www / file).read_text()
        assert not [name for name in ("alice", "carol", "dave") if name in text]


def test_hostile_names_are_shown_and_do_nothing(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    waste_fixtures.atlas(lab, '"><img/src=x/onerror=alert(1)>')
    lab.build()
    section = (lab.www / SECTION).read_text()
    assert "<img" not in section
    assert "&lt;img" in section
    parser = html5lib.HTMLParser()
    parser.parse(lab.page())
    assert parser.errors == []


# On the board


def test_the_board_lists_what_can_be_acted_on_now_with_its_owners_and_whom_to_ask(made: Lab) -> None:
    page = made.page()
    section = page[page.index('<section class="part waste"') :]
    assert re.findall(r'<li><a href="#(\w+)">([^<]+)</a>', section) == [
        *(("atlas", "atlas:0"), ("atlas", "atlas:3")),
        *(("hydra", f"hydra:{number}") for number in range(3)),
    ]
    assert re.search(r"<p><b>alice</b>: 31 GiB held, idle <span class=soft>since <time", section)
    assert "<b>carol</b>: booked, idle <span" in section
    assert "<h2 id=_wasted>2 GPUs idle, 3 to check</h2>" in section
    assert page.index('id="hydra"') < page.index("id=_waste")
    assert '<a class=waste-count href="#_waste">2 GPUs idle</a>' in page


def test_gpus_that_nobody_uses_are_on_the_fleet_page_and_not_on_the_board(made: Lab) -> None:
    html = (made.www / "fleet.html").read_text()
    assert re.search(r"<h3>Not used for 30 days or longer: 74\d GPU-hours</h3>", html)
    row = re.sub("<t[dh][^>]*>", "|", html.partition("Not used for 30 days")[2])
    assert "|atlas:1|A100 80 GB|" in row
    assert "never used in 31 days" not in made.page()


def test_where_nothing_is_wasted_the_board_says_nothing_of_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host()
    lab.build()
    assert "waste" not in lab.page().replace("board.css", "")
    assert told(lab)["items"] == []


def large(hosts: int) -> dict[str, HostStatus]:
    """Hosts of 8 GPUs that are all held, each by somebody else."""
    since = time.time() - 3 * HOUR
    host_statuses = {}
    for number in range(hosts):
        name = f"gpu{number:04}"
        gpus = tuple(
            GpuStatus(
                Gpu(n, f"GPU-{number}-{n}", "A100", 31744.0 + n, 81920.0, 0.0), "A100", "held", "", idle_since=since
            )._replace(people=GpuPeople((f"user{n}",)))
            for n in range(8)
        )
        host_statuses[name] = HostStatus(name, None, (), "fresh", "", gpus=gpus)
    return host_statuses


def test_only_the_worst_of_many_are_on_the_board_and_the_rest_is_counted() -> None:
    count = MAX_BOARD_LINES + 7
    items = tuple(WasteItem("held", f"gpu{number}", f"GPU-{number}", 0, "A100", hours=3.0) for number in range(count))
    section = render_waste_section(WasteReport(1, 0, items), Now(2, timezone.utc)).decode()
    assert section.count("<li>") == MAX_BOARD_LINES
    assert f"{count} GPUs idle" in section
    assert "and 7 more" in section


@pytest.mark.slow
def test_a_thousand_hosts_are_gathered_in_little_time(tmp_path: Path) -> None:
    history = HistoryWriter(history_fixtures.folder(tmp_path), timezone.utc)
    boards = large(1000)
    hour = int(time.time()) // HOUR * HOUR
    for name in list(boards)[:50]:
        keys = [gpu_status.key for gpu_status in boards[name].gpus]
        wear(
            history,
            hour - HOUR,
            1,
            history_fixtures.host(*(history_fixtures.gpu("busy", ["a"], key=key, use=0) for key in keys), name=name),
        )
    summaries = {name: summarize_host(board, None) for name, board in boards.items()}
    marks = {name: waste_rules.find_waste_candidates(board) for name, board in boards.items()}
    rules = StateRules(StateLimits(), PeopleDirectory({}), PrivacySettings())
    waste_report = waste_build.collect_waste(summaries, marks, history, rules, {}, time.time())
    assert len(waste_report.items) == 8000
    check(took(lambda: waste_build.collect_waste(summaries, marks, history, rules, {}, time.time())), 2)
    history.close()


def test_history_is_asked_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    known_of = idle_runs.read_idle_history

    def counted(*words: Any) -> idle_runs.IdleRunHistory:  # noqa: ANN401 # whatever it takes
        asked.append(words)
        return known_of(*words)

    monkeypatch.setattr(waste_build, "read_idle_history", counted)
    lab = Lab(tmp_path)
    lab.host(every=600)
    builder = Builder(lab.settings(), 10)
    now = time.time()
    for tick in range(13):
        builder.build(now + 10 * tick)
    builder.close()
    assert len(asked) == 3


def test_a_history_that_cannot_be_read_costs_what_it_knew_and_is_reported(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    waste_fixtures.hydra(lab)
    (lab.state / "history.db").mkdir()
    for number in range(4):  # what is set aside leaves room for a new one, so often
        (lab.state / f"history.db.broken-{number}").mkdir()
    waste_fixtures.later(lab)
    assert "dead" in kinds(lab).values()
    assert told(lab)["trouble"].startswith("state/history.db: it could not be read")


def test_a_fault_of_our_own_costs_the_section_and_not_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waste_build, "find_unused_waste_candidates", lambda *_: [None])
    lab = Lab(tmp_path)
    lab.host()
    lab.build()
    assert lab.states() == ["free"]
    assert "please report it" in told(lab)["trouble"]


def test_the_limit_of_use_is_that_of_the_settings(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    assert Builder(lab.settings(limits=StateLimits(idle_percent=12))).history.idle_percent == 12


# Live


@pytest.mark.slow
def test_an_open_page_is_reported_as_waste_comes_and_goes(browser: Browser, tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.host("ares")
    lab.host("juno", gpu(uuid="GPU-j"))
    lab.book("{")
    with opened(browser, Board(tmp_path, lab), tmp_path) as board:
        section, count = board.page.locator("#_waste"), board.page.locator(".waste-count")
        assert (section.count(), count.count()) == (0, 0)
        board.lab.host("ares", gpu(0, 9000, 0), process(), person())
        board.builder.builder_state.idle_times.clear()
        board.build()
        board.builder.builder_state.idle_times["ares"] = board.builder.builder_state.idle_times["ares"].__class__(
            time.time(), {"GPU-0": time.time() - 3 * HOUR}
        )
        board.lab.host("ares", gpu(0, 9001, 0), process(), person())
        board.builder.waste_monitor.report = None
        board.next()
        expect(section).to_contain_text("held, idle")
        assert count.inner_text() == "1 GPU idle"
        places = board.page.evaluate("[...document.querySelectorAll('main > *')].map((one) => one.id)")
        assert places == ["", "_top", "ares", "juno", "_waste", "_admin"]  # first what somebody needs
        assert board.page.locator(".top .waste-count").count() == board.page.locator(".bar .problem-count").count() == 1
        lab.host("zeus", gpu(uuid="GPU-z"))
        board.next()
        assert board.page.locator("#zeus + #_waste").count() == 1
        board.lab.host("ares")
        board.builder.waste_monitor.report = None
        board.next()
        assert (section.count(), count.count()) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1000, 1200, 1440, 1920])
def test_a_link_to_it_does_not_end_behind_the_bar(browser: Browser, made: Lab, tmp_path: Path, width: int) -> None:
    with served(made.www, tmp_path / "server") as site:
        context = browser.new_context(viewport={"width": width, "height": 300})
        page = context.new_page()
        page.goto(f"{site.url}#_waste")
        boxes = [page.locator(selector).bounding_box() for selector in (".bar", "#_wasted")]
        context.close()
    assert boxes[0] and boxes[1] and boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
