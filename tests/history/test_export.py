"""`gpuboard export`: a row for each GPU and slot that was seen, for notebooks and spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import pytest

from site_builder.core import people
from site_builder.core.formatting import DAY, HOUR
from site_builder.core.people import PeopleDirectory, PeopleNames
from site_builder.history import commands as history_commands
from site_builder.history import export
from site_builder.history.block_format import pack_block, unpack_block
from site_builder.history.database import begin_database_transaction
from site_builder.history.export import ExportRow
from site_builder.history.model import GPU_STATES
from site_builder.history.reader import HistoryReader
from site_builder.history.writer import HistoryWriter, store_history_chunk
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.docs import blocks, prose_of
from tests.support.history_fixtures import epoch, folder, gpu, host, record, roll

NOON = epoch("2026-03-10T12:00")
BERLIN = ZoneInfo("Europe/Berlin")
PAGE = "docs/history.md"


def called(*names: str, aliases: str = "") -> PeopleNames:
    return PeopleNames(PeopleDirectory(people.parse_aliases(aliases.encode()), names), names)


def rows(
    past: HistoryReader,
    span: tuple[int, int, int],
    name: str = "atlas",
    who: PeopleNames | None = None,
    zone: tzinfo = timezone.utc,
) -> list[ExportRow]:
    return list(history_commands.read_export_command_rows(past, name, span, who or called(), zone))


def cells(export_rows: Sequence[ExportRow]) -> list[dict[str, str]]:
    """The same, through CSV."""
    return list(csv.DictReader(io.StringIO("".join(export.render_export_csv(export_rows)))))


# What stands in a row


def test_a_minute_shows_all_that_was_known_of_it(history: HistoryWriter) -> None:
    record(history, NOON, 1, [host(gpu("conflict", ["bob", "carol"], ["alice"], use=55, memory=7000, power=61.5))])
    (row,) = rows(history, (NOON, NOON + 60, 60))
    assert row[:7] == ("2026-03-10T12:00:00+00:00", "atlas", 0, "GPU-0", "A100 80 GB", 81920, "conflict")
    assert row[7:11] == (55, 7000, 40, 61.5)
    assert row[11:] == (1, 1, 0, 1, ("bob", "carol"), ("alice",))


@pytest.mark.parametrize("step", [300, 3600])
@pytest.mark.parametrize("rolled", [False, True])
def test_a_longer_bucket_shows_means_and_minutes_and_who_had_most(
    history: HistoryWriter, step: int, rolled: bool
) -> None:
    record(history, NOON, 3, [host(gpu("busy", ["alice"], ["dana"], use=90, temperature=70, memory=8000))])
    record(history, NOON + 180, 1, [host(gpu("held", ["bob"], use=0, temperature=50, memory=8000))])
    record(history, NOON + 240, 1, [host(gpu(use=0, memory=0))])
    if rolled:
        roll(history, NOON + 2 * DAY)
    (row,) = rows(history, (NOON, NOON + step, step))
    assert row[6:11] == ("busy", 54, 6400, 70, 61)
    assert row[11:] == (5, 4, 1, 3, ("alice",), ("dana",))


@pytest.mark.parametrize(("step", "expected"), [(60, 7), (300, 3), (3600, 2)])
def test_where_nothing_was_seen_there_is_no_row(history: HistoryWriter, step: int, expected: int) -> None:
    record(history, NOON, 6, [host(gpu(use=0))])
    record(history, NOON + 2 * HOUR, 1, [host(gpu(use=0))])
    export_rows = rows(history, (NOON - DAY, NOON + DAY, step))
    assert len(export_rows) == expected
    assert sum(row.seen for row in export_rows) == 7
    assert {row.use for row in export_rows} == {0}


def test_what_is_not_available_is_empty_in_csv_and_null_in_json(history: HistoryWriter) -> None:
    nothing = gpu("unknown", use=None, memory=None, temperature=None, power=None)
    record(history, NOON, 1, [host(nothing)])
    for step in (60, 300):
        export_rows = rows(history, (NOON, NOON + step, step))
        (cell,) = cells(export_rows)
        assert [cell[name] for name in ("use", "memory_used", "temperature", "power", "users")] == [""] * 5
        (json_row,) = json.loads("".join(export.render_export_json(export_rows)))
        assert [json_row[name] for name in ("use", "memory_used", "temperature", "power")] == [None] * 4
        assert (json_row["users"], json_row["state"]) == ([], "unknown")


@pytest.mark.parametrize("step", [60, 300])
def test_csv_and_json_say_the_same(history: HistoryWriter, step: int) -> None:
    record(history, NOON, 5, [host(gpu("busy", ["alice"], use=50.5), gpu(index=1))])
    export_rows = rows(history, (NOON, NOON + 300, step))
    objects = json.loads("".join(export.render_export_json(export_rows)))
    plain = [
        {key: ", ".join(cell) if isinstance(cell, list) else str(cell) for key, cell in o.items()} for o in objects
    ]
    assert cells(export_rows) == plain
    assert list(objects[0]) == list(ExportRow._fields)


@pytest.mark.parametrize("step", [60, 300])
def test_no_name_is_a_formula_and_none_breaks_a_line(history: HistoryWriter, step: int) -> None:
    hostile = ["=cmd()", "+1", "-2", "@SUM(A1)", 'a"b', "c,d", "e\nf", "\x1b[31mred"]
    record(history, NOON, 1, lambda _: [host(*(gpu("busy", [entry], index=n) for n, entry in enumerate(hostile)))])
    export_rows = rows(history, (NOON, NOON + step, step))
    text = "".join(export.render_export_csv(export_rows))
    assert len(text.splitlines()) == 1 + len(hostile)
    names = [entry["users"] for entry in cells(export_rows)]
    assert not [name for name in names if name[0] in "=+-@"]
    assert [names[4], names[5]] == ['a"b', "c,d"]
    assert "\x1b" not in text


def test_five_spellings_of_one_person_are_one_name(history: HistoryWriter) -> None:
    spellings = ["asmith", "ASmith", "alice", "Alice Smith", "alice smith"]
    record(
        history,
        NOON,
        1,
        [host(*(gpu("busy", [spelling], [spelling], index=n) for n, spelling in enumerate(spellings)))],
    )
    who = called(*spellings, aliases="asmith, alice, Alice Smith\n")
    for step in (60, 300):
        export_rows = rows(history, (NOON, NOON + step, step), who=who)
        assert {row.users + row.bookers for row in export_rows} == {("Alice Smith", "Alice Smith")}


def test_one_person_under_two_names_on_one_gpu_is_named_once(history: HistoryWriter) -> None:
    record(history, NOON, 1, [host(gpu("busy", ["asmith", "alice"]))])
    (row,) = rows(history, (NOON, NOON + 60, 60), who=called(aliases="asmith, alice\n"))
    assert row.users == ("alice",)


def test_without_aliases_upper_and_lower_case_are_one_person() -> None:
    assert {called("Alice", "alice").find_display_name(spelling) for spelling in ("Alice", "alice")} == {"alice"}


def test_a_gpu_that_moved_is_reported_by_both_hosts_and_counts_once(history: HistoryWriter) -> None:
    moved = gpu(key="GPU-moved", use=70)
    record(history, NOON, 10, [host(moved, name="atlas"), host(gpu(key="GPU-9"), name="hydra")])
    record(history, NOON + 600, 10, [host(gpu(key="GPU-8"), name="atlas"), host(moved, name="hydra")])
    roll(history, NOON + 2 * DAY)
    span = (NOON, NOON + 1200, 300)
    rows_by_host = {
        name: [row for row in rows(history, span, name) if row.uuid == "GPU-moved"] for name in ("atlas", "hydra")
    }
    assert [len(host_rows) for host_rows in rows_by_host.values()] == [2, 2]
    assert len({row.time for gpu_rows in rows_by_host.values() for row in gpu_rows}) == 4


def test_a_block_that_is_damaged_is_a_gap_and_the_rest_is_there(history: HistoryWriter) -> None:
    for day in range(3):
        record(history, NOON + day * DAY, 1, [host(gpu())])
    roll(history, NOON + 4 * DAY)
    history.connect().execute("UPDATE chunk SET block=x'00' WHERE step=300 AND at=?", (NOON // DAY * DAY + DAY,))
    export_rows = rows(history, (NOON, NOON + 3 * DAY, 300))
    assert [row.time[:10] for row in export_rows] == ["2026-03-10", "2026-03-12"]
    assert history.problem is None


def test_an_hour_with_a_state_of_a_newer_gpuboard_is_a_gap_and_the_rest_is_there(history: HistoryWriter) -> None:
    for hour in range(3):
        record(history, NOON + hour * HOUR, 60, [host(gpu())])
    roll(history, NOON + 3 * DAY)
    connection = history.connect()
    where = "WHERE step=60 AND at=?"
    (block,) = connection.execute(f"SELECT block FROM chunk {where}", (NOON + HOUR,)).fetchone()  # noqa: S608
    words, columns = unpack_block(block)
    odd_block = pack_block({**words, "standings": ["[7]"] * len(words["standings"])}, columns, 6)
    connection.execute(f"UPDATE chunk SET block=? {where}", (odd_block, NOON + HOUR))  # noqa: S608
    host_history = history.read_host("atlas", NOON, NOON + 3 * HOUR, 60)
    assert [sum(host_history.gpus[0].columns["seen"][start : start + 60]) for start in (0, 60, 120)] == [60, 0, 60]
    assert history.problem is None


# Times


@pytest.mark.parametrize(("day", "hours"), [("2026-10-25", 25), ("2026-03-29", 23)])
def test_over_a_change_of_the_clocks_each_hour_has_its_own_time(history: HistoryWriter, day: str, hours: int) -> None:
    first = epoch(f"{day}T00:00", BERLIN)
    last = first + hours * HOUR
    for at in range(first - HOUR, last + HOUR, HOUR):
        record(history, at, 1, [host(gpu())])
    roll(history, last + 3 * DAY)
    export_rows = rows(history, (first, last, 3600), zone=BERLIN)
    assert len({row.time for row in export_rows}) == len(export_rows) == hours
    assert {row.time[:10] for row in export_rows} == {day}
    assert [int(datetime.fromisoformat(row.time).timestamp()) for row in export_rows] == [*range(first, last, HOUR)]
    assert {row.time[-6:] for row in export_rows} == {"+01:00", "+02:00"}


@pytest.mark.parametrize("step", [60, 300, 3600])
def test_two_exports_that_meet_have_each_bucket_once(history: HistoryWriter, step: int) -> None:
    record(history, NOON, 150, [host(gpu())])
    now = datetime.fromtimestamp(NOON + 3 * HOUR, timezone.utc)
    edges = ["2026-03-10 11:00", "2026-03-10 12:37:20", "2026-03-10 13:15", "now"]
    spans = [history_commands.parse_export_period(*pair, str(step), now) for pair in zip(edges, edges[1:])]
    bucket_times = [row.time for span in spans for row in rows(history, span)]
    assert bucket_times == [
        row.time for row in rows(history, history_commands.parse_export_period(edges[0], edges[-1], str(step), now))
    ]
    assert len(bucket_times) == len(set(bucket_times))


@pytest.mark.parametrize(("since", "step"), [("1h", 60), ("2d", 60), ("3d", 300), ("35d", 300), ("36d", 3600)])
def test_by_default_it_is_as_fine_as_it_is_kept(since: str, step: int) -> None:
    assert (
        history_commands.parse_export_period(since, None, None, datetime.fromtimestamp(NOON, timezone.utc))[2] == step
    )


def test_export_is_coarser_where_history_is_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    now = datetime.fromtimestamp(NOON, timezone.utc)
    assert history_commands.parse_export_period("7d", None, "60", now)[2] == 300
    assert "minutes are kept for 2 days: since 7d these are steps of 5 minutes" in capsys.readouterr().err
    assert history_commands.parse_export_period("7d", None, "3600", now)[2] == 3600
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("since", "until", "why"),
    [
        ("soon", None, '--since: "soon" is not understood'),
        ("1d", "whenever", '--until: "whenever" is not understood'),
        ("2030-01-01", None, "has not come yet"),
        ("1d", "2d", "--until 2d is not after --since 1d"),
        ("now", None, "--until now is not after --since now"),
    ],
)
def test_times_that_cannot_be_meant_are_refused(since: str, until: str | None, why: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(why)):
        history_commands.parse_export_period(since, until, None, datetime.fromtimestamp(NOON, timezone.utc))


# The command


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the last hours of two hosts."""
    place = tmp_path_factory.mktemp("lab")
    history = HistoryWriter(folder(place), timezone.utc)
    start = int(time.time()) // 60 * 60 - 2 * HOUR
    record(history, start, 5, [host(gpu("busy", ["Łukasz"])), host(gpu(key="GPU-9"), name="hydra2")])
    history.close()
    (place / "data").mkdir()
    (place / "data/aliases.csv").write_text("Łukasz, lukas\n")
    return place


def test_all_hosts_are_exported_or_those_that_are_named(lab: Path) -> None:
    finished = run_gpuboard(lab, "export", "--since", "3h", "--csv")
    assert (finished.returncode, finished.stderr) == (0, "")
    csv_rows = list(csv.DictReader(finished.stdout.splitlines()))
    assert [exported["host"] for exported in csv_rows] == ["atlas"] * 5 + ["hydra2"] * 5
    assert {exported["users"] for exported in csv_rows} == {"lukas", ""}
    exported = run_gpuboard(
        lab, "export", "--since", "3h", "--json", "--host", "hydra2", "--host", "hydra2", "--step", "3600"
    )
    assert {row["host"] for row in json.loads(exported.stdout)} == {"hydra2"}
    assert sum(row["seen"] for row in json.loads(exported.stdout)) == 5


def test_times_have_the_offset_of_the_zone(lab: Path) -> None:
    finished = run_gpuboard(lab, "export", "--since", "3h", "--csv", GPUBOARD_ZONE="Asia/Kathmandu")
    assert all(csv_row["time"].endswith("+05:45") for csv_row in csv.DictReader(finished.stdout.splitlines()))


@pytest.mark.parametrize(
    ("words", "code", "out", "why"),
    [
        (["--since", "1h", "--csv"], 1, ",".join(ExportRow._fields) + "\n", "nothing was recorded in that time"),
        (["--since", "1h", "--json"], 1, "[]\n", "nothing was recorded in that time"),
        (["--since", "3h"], 2, "", "use either --csv or --json"),
        (["--since", "3h", "--csv", "--json"], 2, "", "use either --csv or --json"),
        (["--csv"], 2, "", "--since"),
        (["--since", "3h", "--csv", "--host", "atlsa"], 2, "", "history has no host 'atlsa': it has atlas, hydra2"),
        (["--since", "3h", "--csv", "--state", "elsewhere"], 2, "", "there is no history yet"),
        (["--since", "3h", "--csv", "--step", "7"], 2, "", "--step"),
    ],
)
def test_an_impossible_export_is_explained_in_one_sentence(
    lab: Path, words: list[str], code: int, out: str, why: str
) -> None:
    finished = run_gpuboard(lab, "export", *words)
    assert (finished.returncode, finished.stdout) == (code, out)
    assert why in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("content", [b"no database at all" * 300, b""])
def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path, content: bytes) -> None:
    (folder(tmp_path) / "history.db").write_bytes(content)
    finished = run_gpuboard(tmp_path, "export", "--since", "3h", "--csv")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "could not be read" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


def test_a_reader_of_the_export_may_stop_early(history: HistoryWriter) -> None:
    start = int(time.time()) // 60 * 60 - HOUR
    record(history, start, 30, [host(*(gpu(index=number) for number in range(100)))])
    words = shlex.join([sys.executable, "-m", "site_builder", "export", "--since", "2h", "--csv"])
    command = ["/bin/sh", "-c", f"{words} | head -n 1"]
    place, environment = history.path.parent.parent, clean_environment()
    (place / "data").mkdir()
    finished = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert (finished.stdout, finished.stderr) == (",".join(ExportRow._fields) + "\n", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")  # noqa: PTH110 # no file
def test_a_full_disk_is_reported(lab: Path) -> None:
    command = [sys.executable, "-m", "site_builder", "export", "--since", "3h", "--csv"]
    with open("/dev/full", "wb") as full:  # noqa: PTH123 # no file
        finished = subprocess.run(
            command, cwd=lab, env=clean_environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert finished.returncode == 2
    assert finished.stderr == "gpuboard: the rows could not be written: No space left on device\n"


def peak(past: HistoryReader, days: int) -> int:
    """The most memory that so many days take."""
    tracemalloc.start()
    for _ in export.render_export_csv(
        history_commands.read_export_command_rows(past, "atlas", (NOON - days * DAY, NOON, 300), called(), timezone.utc)
    ):
        pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


@pytest.mark.slow
def test_a_month_needs_no_more_memory_than_some_days(history: HistoryWriter) -> None:
    record(history, NOON, 1, [host(*(gpu("busy", ["alice"], index=number) for number in range(8)))])
    roll(history, NOON + 2 * DAY)
    today = NOON // DAY * DAY
    connection = history.connect()
    ((shape, block),) = connection.execute("SELECT shape, block FROM chunk WHERE step=300")
    with begin_database_transaction(connection):
        for day in range(1, 32):
            store_history_chunk(connection, 300, today - day * DAY, shape, block)
    peak(history, 2)
    assert peak(history, 30) < 1.5 * peak(history, 3)


# docs/history.md


def test_the_docs_name_all_columns_in_their_order() -> None:
    table = prose_of(PAGE).partition("| column |")[2].partition("\n\n")[0]
    assert [line.split("|")[1].strip(" `") for line in table.splitlines()[2:]] == list(ExportRow._fields)


def test_the_docs_name_all_states() -> None:
    assert [state for state in GPU_STATES if f"`{state}`" not in prose_of(PAGE)] == []


def test_the_example_for_a_notebook_names_columns_that_there_are() -> None:
    (notebook,) = [block.text for block in blocks("py") if block.page == PAGE]
    compile(notebook, PAGE, "exec")
    named = re.findall(r'[\[(]"([a-z_]+)"', notebook)
    assert len(named) > 5
    assert set(named) <= {*ExportRow._fields, "h"}
