"""`gpuboard stats`: a table that fits, JSON that is held to its schema, CSV that no spreadsheet calculates."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections.abc import Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.history import HOSTS, NOW, Machine, add_sums
from site_builder.core.formatting import DAY
from site_builder.core.terminal_text import measure_width
from site_builder.history.database import begin_database_transaction
from site_builder.history.export import format_csv_lines
from site_builder.history.usage_sums import UNITS_PER_MINUTE
from site_builder.history.writer import HistoryWriter
from site_builder.usage import commands as usage_commands
from site_builder.usage.totals import UNUSED_PARTS, UsageRow, UsageTable, UsageTotals
from tests.support.booking_fixtures import Terminal
from tests.support.command_line import run_gpuboard
from tests.support.docs import blocks, text_of
from tests.support.history_fixtures import epoch, gpu, host, record, roll
from tests.support.pace import check, took

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/stats.schema.json").read_text())
START = epoch("2026-03-31T22:00")
OCTOBER = (date(2026, 10, 1), date(2026, 10, 31))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hours of two hosts at the end of March 2026, of which hydra has two and alice two names."""
    folder = tmp_path_factory.mktemp("lab")
    for name in ("data", "state"):
        (folder / name).mkdir()
    (folder / "data/aliases.csv").write_text("asmith, Alice Smith\nalice, Alice Smith\n")
    history = HistoryWriter(folder / "state", timezone.utc)
    atlas = host(gpu("busy", ["alice"], ["carol"]), gpu("held", ["asmith", "bob"], index=1), gpu(index=2))
    hydra = host(gpu("booked", [], ["carol"], key="GPU-h", model="H100"), name="hydra")
    record(history, START, 240, lambda number: [atlas, hydra] if number < 120 else [atlas])
    roll(history, START + DAY)
    history.close()
    return folder


def stats(folder: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    finished = run_gpuboard(folder, "stats", *words, **{"GPUBOARD_ZONE": "UTC", **environment})
    return finished.returncode, finished.stdout, finished.stderr


def answer(folder: Path, *words: str) -> str:
    code, output, complaint = stats(folder, *words)
    assert code == 0, complaint
    return output


MARCH = ("--since", "2026-03-31", "--until", "2026-03-31")
ALL = ("--since", "2026-03-31", "--until", "2026-04-01")


# The table


def test_the_table_of_the_docs_shows_who_had_how_much_and_what_was_nobodys(lab: Path) -> None:
    (example,) = [block.text for block in blocks("text") if block.page == "docs/people.md"]
    assert answer(lab, *MARCH) == example


def test_by_host_each_line_says_how_much_of_its_time_was_monitored(lab: Path) -> None:
    lines = answer(lab, "--month", "2026-04", "--by", "host").splitlines()
    assert lines[:5] == [
        "GPU-hours, 1 to 30 Apr 2026; monitored 0 % of the time",
        "",
        "host   used  held  booked  unused  free  monitored  of all",
        "atlas   4.0   2.0     2.0     2.0   2.0        6.0     0 %",
        "total   4.0   2.0     2.0     2.0   2.0        6.0     0 %",
    ]


@pytest.mark.parametrize("by", ["person", "model", "host", "month"])
@pytest.mark.parametrize("across", [80, 60, 40])
def test_stats_fit_a_terminal_with_any_names_and_sums(by: str, across: int) -> None:
    many = UsageTotals(*[1000 * 8 * 31 * 24 * 60 * UNITS_PER_MINUTE] * len(UsageTotals._fields))
    names = ["x" * 200, "李" * 60, "a\nb\tc", "e\u0301" * 50, ""]
    usage_stats = usage_commands.UsageStats(
        UsageTable(by, tuple(UsageRow(name, name, many) for name in names), many), *OCTOBER, "UTC"
    )
    lines = usage_commands.render_usage_stats_table(usage_stats, across)
    assert max(measure_width(line) for line in lines) <= across
    assert across < 80 or all(re.search(r"\d$", line) or line.endswith("%") for line in lines[3:8])


def test_a_real_terminal_of_80_cells_shows_it(lab: Path) -> None:
    environment = {"TERM": "xterm", "COLUMNS": "80", "GPUBOARD_ZONE": "UTC"}
    code, text = Terminal(lab, "stats", *ALL, "--by", "model", **environment).end()
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert "A100 80 GB" in text


def test_a_hostile_name_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    history = HistoryWriter(state, timezone.utc)
    record(history, START, 5, [host(gpu("busy", ["\x1b]0;owned\x07\x1b[2J\u202eevil\r\n"], model="\x1b[31mred"))])
    history.close()
    for by in ("person", "model"):
        output = answer(tmp_path, *MARCH, "--by", by)
        assert not re.search(r"[^\n\x20-\x7e\ufffd?…]", output), output


def test_history_that_begins_later_is_reported(lab: Path) -> None:
    code, output, complaint = stats(lab, "--month", "2026-03")
    assert (code, complaint) == (0, "gpuboard: history begins on 2026-03-31: nothing before that is included\n")
    assert output.startswith("GPU-hours, 31 Mar 2026; monitored 100 %")


# For programs


@pytest.mark.parametrize("by", ["person", "model", "host", "month"])
def test_json_is_what_the_schema_says_and_closed(lab: Path, by: str) -> None:
    parsed_stats = json.loads(answer(lab, *ALL, "--by", by, "--json"))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(parsed_stats, SCHEMA)
    total = parsed_stats["total"]
    assert sum(total[name] for name in ("used", "unowned", "booked_idle", "free", "unclear")) == total["seen"] == 14
    for name in ("used", "held", "booked", "unused"):
        assert sum(row[name] for row in parsed_stats["rows"]) == pytest.approx(total[name])
    assert (parsed_stats["since"], parsed_stats["until"], parsed_stats["zone"]) == ("2026-03-31", "2026-04-01", "UTC")


def test_json_shows_all_names_of_a_person(lab: Path) -> None:
    rows = json.loads(answer(lab, *ALL, "--json"))["rows"]
    assert {row["name"]: row["names"] for row in rows}["Alice Smith"] == ["alice", "asmith"]


def test_what_was_not_seen_is_in_the_months_in_which_it_was_missed(lab: Path) -> None:
    rows = json.loads(answer(lab, *ALL, "--by", "month", "--json"))["rows"]
    assert [(row["name"], row["seen"]) for row in rows] == [("2026-03", 8), ("2026-04", 6)]
    assert rows[0]["unseen"] == 0


# For spreadsheets


def test_the_hours_of_a_csv_come_to_all_that_was_seen(lab: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(answer(lab, *ALL, "--csv"))))
    seen = sum(float(row["hours"]) for row in rows if row["kind"] != "unseen")
    assert seen == 14
    assert {row["person"]: row["hours"] for row in rows if row["kind"] == "person"}["Alice Smith"] == "6.0"
    assert {row["kind"]: row["hours"] for row in rows if not row["person"]}["free"] == "4.0"


@pytest.mark.parametrize("by", ["model", "host", "month"])
def test_each_line_of_a_csv_is_closed(lab: Path, by: str) -> None:
    for row in csv.DictReader(io.StringIO(answer(lab, *ALL, "--by", by, "--csv"))):
        parts = [float(row[name]) for name in ("used", "unowned", "booked_idle", "free", "unclear")]
        assert sum(parts) == float(row["seen"])
        assert row[by]


FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    " =1+1",
    '"=1+1',
    "'=1+1",
    ";=1+1",
    "a;=1+1",
    "a,=1+1",
    'a";=1+1',
    "a\t=1+1",
    "a\n=1+1",
    "＝1+1",  # noqa: RUF001 # wide, as Excel reads it too
    "=cmd|'/C calc'!A0",
    '=HYPERLINK("http://evil.example","x")',
]
STARTS = re.compile(r"[\s\"']*[=+\-@＝＋－＠]")  # noqa: RUF001 # the same


@pytest.mark.parametrize("name", FORMULAS)
def test_no_spreadsheet_finds_a_formula_whatever_it_takes_for_the_end_of_a_cell(name: str) -> None:
    row = UsageRow(name, name, UsageTotals(used=UNITS_PER_MINUTE * 60), (name,))
    usage_stats = usage_commands.UsageStats(UsageTable("person", (row,), row.sums), *OCTOBER, "UTC")
    text = "".join(usage_commands.render_usage_stats_csv(usage_stats))
    for delimiter in ",;\t|":
        for cells in csv.reader(io.StringIO(text), delimiter=delimiter):
            for cell in cells:
                formula_start = STARTS.match(cell.replace('"', ""))
                assert not formula_start or "'" in formula_start[0], (delimiter, cell)
    assert len(text.splitlines()) == 1 + 1 + len(UNUSED_PARTS) + 1


@pytest.mark.parametrize("name", ["alice", "Łukasz Żak", "O'Neil", "anne-marie", "a;b", 'a "b" c', "李雷", "x,y"])
def test_a_usual_name_stays_as_it_is(name: str) -> None:
    (line,) = format_csv_lines((), [(name, 1.5, None)])
    assert next(csv.reader([line])) == [name, "1.5", ""]


# Wrong use, and what cannot be answered


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--month", "October"], "'October' is not a month from 1970 to 2200: write it like 2026-10"),
        (["--month", "2026-13"], "'2026-13' is not a month from 1970 to 2200: write it like 2026-10"),
        (["--since", "1969-12-31"], "'1969-12-31' is not a day from 1970 to 2200: write it like 2026-10-31"),
        (["--until", "2201-01-01"], "'2201-01-01' is not a day from 1970 to 2200: write it like 2026-10-31"),
        (["--month", "9999-12"], "'9999-12' is not a month from 1970 to 2200: write it like 2026-10"),
        (["--since", "yesterday"], "'yesterday' is not a day from 1970 to 2200: write it like 2026-10-31"),
        (["--month", "2026-10", "--since", "2026-10-01"], "use either --month, or --since and --until"),
        (["--until", "2026-10-01"], "--until needs --since"),
        (["--since", "2026-10-02", "--until", "2026-10-01"], "--until 2026-10-01 is before --since 2026-10-02"),
        (["--json", "--csv"], "use either --json or --csv"),
        (["--by", "moon"], "'moon' is not one of 'person', 'model', 'host', 'month'"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_2(lab: Path, words: Sequence[str], sentence: str) -> None:
    code, output, complaint = stats(lab, *words)
    assert (code, output) == (2, "")
    assert sentence in complaint


def test_days_that_have_not_come_are_refused(lab: Path) -> None:
    code, output, complaint = stats(lab, "--month", "2199-01")
    assert (code, output) == (2, "")
    assert re.fullmatch(r"gpuboard: 2199-01 is in the future: today is \d{4}-\d\d-\d\d\n", complaint)


def test_a_month_of_which_nothing_is_kept_is_one_sentence(lab: Path) -> None:
    code, _, complaint = stats(lab, "--month", "2020-01")
    where = lab / "state/history.db"
    assert (code, complaint) == (1, f"gpuboard: there is no history of 2020-01 in {where}: it begins on 2026-03-31\n")


@pytest.mark.parametrize("words", [["--since", "1970-01-01"], ["--since", "1970-01-01", "--until", "2200-12-31"]])
def test_days_from_1970_to_2200_are_understood(lab: Path, words: Sequence[str]) -> None:
    for zone in ("UTC", "America/New_York", "Asia/Tokyo"):
        code, output, _ = stats(lab, *words, GPUBOARD_ZONE=zone)
        assert (code, output[:9]) == (0, "GPU-hours")


def test_no_history_is_one_sentence(tmp_path: Path) -> None:
    code, _, complaint = stats(tmp_path)
    assert (code, complaint.count("\n")) == (2, 1)
    assert "there is no history yet: `gpuboard build` creates" in complaint
    code, _, complaint = stats(tmp_path, GPUBOARD_URL="https://gpu.lab.example/")
    assert code == 2
    assert "run this on the web host of https://gpu.lab.example/" in complaint


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"x" * 5000, b"no database" * 900])
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/history.db").write_bytes(content)
    code, output, complaint = stats(tmp_path)
    assert (code, output, complaint.count("\n")) == (2, "", 1)
    assert str(tmp_path / "state/history.db") in complaint


def test_stats_read_while_a_builder_writes_and_from_a_read_only_folder(lab: Path) -> None:
    before = answer(lab, *ALL)
    with sqlite3.connect(lab / "state/history.db") as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert answer(lab, *ALL) == before
        connection.rollback()
    (lab / "state").chmod(0o500)
    try:
        assert answer(lab, *ALL) == before
    finally:
        (lab / "state").chmod(0o700)


def test_the_docs_say_what_each_sum_means() -> None:
    page = text_of("docs/people.md")
    assert [name for name in UsageTotals._fields if f"| `{name}` |" not in page and name != "seen"] == []


def test_the_help_has_examples_and_fits() -> None:
    help_text = run_gpuboard(ROOT, "stats", "--help").stdout
    assert "gpuboard stats --month 2026-10 --csv > october.csv" in help_text
    assert max(map(len, help_text.splitlines())) <= 80


# How long it takes


@pytest.mark.slow
def test_a_month_of_400_gpus_takes_less_than_a_second(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    history = HistoryWriter(state, timezone.utc)
    machines = [Machine(number) for number in range(HOSTS)]
    for minute in range(30):
        history.record([machine.sample() for machine in machines], NOW + 60 * minute)
    with begin_database_transaction(history.connect()):
        for machine in machines:
            add_sums(history, machine)
    history.close()
    month = f"{datetime.fromtimestamp(NOW, timezone.utc):%Y-%m}"

    def run() -> dict[str, Any]:
        parsed_stats: dict[str, Any] = json.loads(answer(tmp_path, "--month", month, "--json"))
        return parsed_stats

    assert len(run()["rows"]) == 40
    check(took(run), 3)
