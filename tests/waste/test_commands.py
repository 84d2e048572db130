"""`gpuboard waste`: a table that fits, in which what nobody can know is not 0, for people and for programs."""

from __future__ import annotations

import json
import time
from datetime import timezone
from pathlib import Path

import pytest

from site_builder.core import terminal_text
from site_builder.core.clock import Now
from site_builder.waste import render as waste_render
from site_builder.waste.rules import WasteItem, WasteReport
from tests.support import waste_fixtures
from tests.support.board_fixture import Lab
from tests.support.booking_fixtures import Terminal
from tests.support.browser import served
from tests.support.command_line import run_gpuboard

NOW = Now(1_790_000_000, timezone.utc)
HELD = WasteItem(
    "held", "atlas", "GPU-0", 0, "A100 80 GB", ("alice",), 1_789_000_000, None, 277.78, (),
    "31 GiB held, idle", "Ask alice whether it is still needed.",
)  # fmt: skip
DEAD = HELD._replace(kind="dead", index=3, hours=None, pids=(7, 8), advice="On atlas:", command="kill 7 8")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return waste_fixtures.make(tmp_path_factory.mktemp("waste"))


def run(lab: Lab, *words: str, **environment: str) -> tuple[int, str, str]:
    result = run_gpuboard(lab.data.parent, "waste", *words, **environment)
    return result.returncode, result.stdout, result.stderr


# The table


def test_the_table_says_how_much_where_who_since_when_and_what_to_do() -> None:
    assert waste_render.render_waste_table([HELD, DEAD], NOW) == [
        "GPU-hours  GPU      kind  since         who",
        "      278  atlas:0  held  10 Sep 00:26  alice",
        "           A100 80 GB: 31 GiB held, idle. Ask alice whether it is still needed.",
        "        ?  atlas:3  dead  10 Sep 00:26  alice",
        "           A100 80 GB: 31 GiB held, idle. On atlas:",
        "             kill 7 8",
        "",
        "      278  total",
        "        ?  1 more of unknown length",
    ]


@pytest.mark.parametrize("across", [40, 80, 200])
def test_no_line_is_longer_than_the_terminal_but_for_a_command(across: int) -> None:
    long = DEAD._replace(
        host="x" * 63, people=("慶" * 30,), command=f"kill {' '.join(map(str, range(100000, 100020)))}"
    )
    lines = waste_render.render_waste_table([HELD, long], NOW, across)
    assert f"{' ' * 13}{long.command}" in lines
    assert [line for line in lines if terminal_text.measure_width(line) > across and long.command not in line] == []


def test_a_large_number_of_hours_is_readable_and_a_small_one_exact() -> None:
    assert [waste_render.format_waste_hours(hours) for hours in (None, 0.0, 0.44, 9.94, 9.96, 1234.5)] == [
        "?",
        "0.0",
        "0.4",
        "9.9",
        "10",
        "1,234",
    ]


# The command


def test_all_waste_is_listed_the_most_hours_first(lab: Lab) -> None:
    code, out, err = run(lab)
    assert (code, err) == (0, "")
    places = [
        line.split()[1] for line in out.splitlines()[1:] if line and ("atlas:" in line[:25] or "hydra:" in line[:25])
    ]
    assert [place for place in places if ":" in place] == [
        "atlas:1",
        "atlas:0",
        "atlas:3",
        "hydra:0",
        "hydra:1",
        "hydra:2",
    ]
    assert "kill 71 72" in out


@pytest.mark.slow
def test_at_a_terminal_of_80_columns_it_fits(lab: Lab) -> None:
    terminal = Terminal(lab.data.parent, "waste", COLUMNS="80")
    while terminal.more():
        pass
    assert terminal.process.wait() == 0
    lines = terminal.text.replace("\r", "").splitlines()
    assert len(lines) > 12
    assert max(map(terminal_text.measure_width, lines)) <= 80


def test_only_some_kinds_and_some_hosts(lab: Lab) -> None:
    code, out, _ = run(lab, "ATLAS.lab.org", "--kind", "held", "--kind", "dead", "--json")
    assert code == 0
    parsed_report = json.loads(out)
    assert [(waste_item["kind"], waste_item["host"]) for waste_item in parsed_report["items"]] == [("held", "atlas")]
    assert parsed_report["gpu_hours"] == parsed_report["items"][0]["gpu_hours"]


def test_json_is_what_the_board_publishes(lab: Lab) -> None:
    _, out, _ = run(lab, "--json")
    assert json.loads(out) == json.loads((lab.www / "waste.json").read_text())


def test_no_waste_is_stated_and_exits_0(lab: Lab) -> None:
    assert run(lab, "hydra", "--kind", "held") == (0, "Nothing is wasted on hydra of kind held.\n", "")


def test_a_host_that_there_is_not_is_refused(lab: Lab) -> None:
    assert run(lab, "atlsa") == (2, "", "gpuboard: the board has no host atlsa; did you mean atlas?\n")


def test_a_board_elsewhere_is_asked_by_its_address(lab: Lab, tmp_path: Path) -> None:
    with served(lab.www, tmp_path / "server") as site:
        result = run_gpuboard(tmp_path, "waste", "--kind", "held", GPUBOARD_URL=site.url)
    assert (result.returncode, result.stderr) == (0, "")
    assert "atlas:0" in result.stdout


def test_where_there_is_no_board_one_sentence_says_what_to_set(tmp_path: Path) -> None:
    result = run_gpuboard(tmp_path, "waste")
    assert (result.returncode, result.stdout) == (2, "")
    assert "there is no " in result.stderr
    assert "set GPUBOARD_URL" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>", "is not the waste.json of a gpuboard"),
        (b'{"schema": 9, "built": 1, "items": []}', "update gpuboard here"),
        (b'{"schema": 1, "built": 1, "items": []}', "was last built"),
    ],
)
def test_a_file_that_is_not_ours_or_old_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www/waste.json").write_bytes(content)
    result = run_gpuboard(tmp_path, "waste")
    assert result.returncode == 2
    assert said in result.stderr


def test_unreadable_history_is_reported_beside_the_table(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    waste_report = WasteReport(
        int(time.time()), 10, (HELD,), ("atlas",), problem="state/history.db: it could not be read"
    )
    (tmp_path / "www/waste.json").write_bytes(waste_render.render_waste_json(waste_report))
    result = run_gpuboard(tmp_path, "waste")
    assert result.returncode == 0
    assert "the list may be incomplete" in result.stderr


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "www/waste.json").mkdir(parents=True)
    result = run_gpuboard(tmp_path, "waste")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "could not be read: Is a directory" in result.stderr


# What a board elsewhere may tell


def test_what_is_published_is_read_back_as_it_was() -> None:
    waste_report = WasteReport(5, 10, (HELD, DEAD._replace(gpu_key="index 3")), ("atlas",), 3, "no")
    assert waste_render.parse_waste_json(waste_render.render_waste_json(waste_report)) == (waste_report, "")


def test_a_hostile_board_steers_no_terminal_and_a_line_of_another_form_is_left_out() -> None:
    bad = HELD._replace(what="\x1b[31mred\n\x07", people=("\u202eeve\x9b2J",), model="\x1b]0;x\x07", command="rm\n-rf")
    content = json.loads(
        waste_render.render_waste_json(WasteReport(5, 10, (bad, HELD._replace(host="../x"), HELD._replace(kind="x"))))
    )
    content["items"] += [None, 7, {"kind": "held"}]
    content["items"][0] |= {"gpu_hours": -1, "pids": "no"}
    parsed_report, _ = waste_render.parse_waste_json(json.dumps(content).encode())
    assert parsed_report
    (waste_item,) = parsed_report.items
    assert (waste_item.hours, waste_item.pids) == (None, ())
    assert all(
        letter.isprintable()
        for text in (waste_item.what, *waste_item.people, waste_item.model, waste_item.command)
        for letter in text
    )
