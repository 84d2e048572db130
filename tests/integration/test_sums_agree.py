"""The same fleet by every way in which gpuboard adds it up: all of them come to the same, to the minute.

Two weeks in Berlin: clocks change in the first, a month ends in the second. GPUs are shared, booked, held and lost, one
moves to another host and one host gets another name, both in the middle of an hour; hydra is down for a night, and for
a while the builder is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import html5lib
import pytest

from site_builder import cli
from site_builder.board.builder import Builder
from site_builder.history import commands as history_commands
from site_builder.history.reader import HistoryReader
from site_builder.history.writer import HistoryWriter
from site_builder.reports import collect
from site_builder.reports import commands as report_commands
from site_builder.usage import commands as usage_commands
from tests.support.board_fixture import Lab
from tests.support.history_fixtures import epoch, gpu, host, keep, roll

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600
MONDAY = epoch("2026-10-19T00:00", BERLIN)
NOW = epoch("2026-11-02T10:00", BERLIN)
WEEKS = [date(2026, 10, 19), date(2026, 10, 26)]
Command = Callable[..., str]


def at(text: str) -> int:
    return epoch(f"2026-{text}", BERLIN)


def make_past(lab: Lab) -> None:
    """All that happened."""
    history = HistoryWriter(lab.state, BERLIN)
    (lab.data / "aliases.csv").write_text("asmith, Alice Smith\nalice, Alice Smith\n")
    shared = gpu("busy", ["alice", "bob"], index=1)
    three = gpu("conflict", ["bob", "dave", "erin"], ["carol"], index=2)
    booked = gpu("booked", [], ["carol", "asmith"], index=2)
    held = gpu("held", ["Bob", "asmith"], index=1)
    lost, unowned = gpu("lost", [], ["dave"], index=3), gpu("busy", [], index=3)
    moved = gpu("busy", ["asmith"], ["alice"], [], index=0, key="GPU-m", model="H100")
    stays = gpu("busy", ["carol"], index=1, key="GPU-h", model="H100")
    atlas = host(gpu("busy", ["alice"]), shared, three, lost)
    # the first week, at the end of which 2 o'clock comes twice
    keep(history, MONDAY, at("10-24T18:20"), [atlas, host(moved, stays, name="hydra")])
    keep(history, at("10-24T18:20"), at("10-25T07:47"), [atlas])  # hydra is down
    atlas = host(gpu(), held, booked, unowned)
    keep(history, at("10-25T07:47"), at("10-27T09:05"), [atlas, host(moved, stays, name="hydra")])
    # the builder is down; after that a GPU is put into another host, and the host that it was in gets another name
    keep(history, at("10-27T14:22"), at("10-28T11:25"), [atlas, host(moved, stays, name="hydra")])
    atlas = host(gpu(), held, booked, unowned, moved)
    keep(history, at("10-28T11:25"), at("10-30T12:40"), [atlas, host(stays, name="hydra")])
    keep(history, at("10-30T12:40"), at("10-31T22:17"), [atlas, host(stays, name="lerna")])
    atlas = host(gpu("busy", ["alice"]), shared, booked, gpu(index=3), moved)
    keep(history, at("10-31T22:17"), NOW, [atlas, host(stays, name="lerna")])
    roll(history, NOW)
    history.close()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("agree"))
    make_past(lab)
    return lab


@pytest.fixture
def run(lab: Lab, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """A command in the lab, now."""
    clock = SimpleNamespace(now=lambda zone: datetime.fromtimestamp(NOW, zone), fromtimestamp=datetime.fromtimestamp)
    monkeypatch.chdir(lab.data.parent)
    monkeypatch.setenv("GPUBOARD_ZONE", "Europe/Berlin")
    monkeypatch.setattr(history_commands, "datetime", clock)
    for command in (report_commands, usage_commands):
        monkeypatch.setattr(command, "time", SimpleNamespace(time=lambda: NOW))

    def told(*words: str) -> str:
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main([*words])
        out, err = capfdbinary.readouterr()
        assert not end.value.code, err
        return out.decode()

    return told


def minutes(hours: dict[str, Any]) -> dict[str, float]:
    """GPU-hours as minutes; hours are told to six decimals."""
    return {name: round(value * 60, 3) for name, value in hours.items() if isinstance(value, (int, float))}


def of_stats(run: Command, first: object, last: object, by: str = "host") -> dict[str, dict[str, float]]:
    stats = json.loads(run("stats", "--since", str(first), "--until", str(last), "--by", by, "--json"))
    return {"": minutes(stats["total"]), **{row["name"]: minutes(row) for row in stats["rows"]}}


def of_export(run: Command, step: int, since: str, until: str) -> list[dict[str, Any]]:
    export_rows: list[dict[str, Any]] = json.loads(
        run("export", "--since", since, "--until", until, "--step", str(step), "--json")
    )
    return export_rows


def added(rows: Sequence[dict[str, Any]], by: str) -> dict[str, dict[str, int]]:
    """Minutes of an export, by one of its columns."""
    sums_by_name: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("seen", "taken", "held", "booked"), 0))
    for row in rows:
        for name in ("seen", "taken", "held", "booked"):
            sums_by_name[row[by]][name] += row[name]
    return sums_by_name


def taken(sums: dict[str, float]) -> dict[str, float]:
    """The same four of what stats tells."""
    return {
        "seen": sums["seen"],
        "taken": round(sums["used"] + sums["unowned"], 3),
        "held": sums["held"],
        "booked": sums["booked"],
    }


# What is exported


@pytest.mark.parametrize("step", [300, 3600])
@pytest.mark.parametrize("by", ["host", "model"])
def test_an_export_has_the_sums_of_stats(run: Command, step: int, by: str) -> None:
    rows = of_export(run, step, "2026-10-19", "2026-11-02 10:00")
    stats_sums = of_stats(run, "2026-10-19", "2026-11-02", by)
    assert dict(added(rows, by)) == {name: taken(sums) for name, sums in stats_sums.items() if name}


@pytest.mark.parametrize(("month", "last"), [("2026-10", "2026-10-31"), ("2026-11", "2026-11-02")])
def test_an_export_of_a_month_comes_to_what_stats_shows_of_it(run: Command, month: str, last: str) -> None:
    rows = of_export(run, 3600, "2026-10-19", "2026-11-02 10:00")
    month_sums = added([{**row, "month": row["time"][:7]} for row in rows], "month")[month]
    assert month_sums == taken(of_stats(run, f"{month}-01", last)[""])


def test_an_export_of_minutes_has_the_sums_of_stats_for_each_person(run: Command) -> None:
    minutes_by_person: dict[str, float] = defaultdict(float)
    for row in of_export(run, 60, "2026-11-01", "2026-11-02 00:00"):
        for name in row["users"]:
            minutes_by_person[name] += row["taken"] / len(row["users"])
    stats = json.loads(run("stats", "--since", "2026-11-01", "--until", "2026-11-01", "--json"))
    assert minutes_by_person == {row["name"]: pytest.approx(row["used"] * 60) for row in stats["rows"] if row["used"]}


# The report


@pytest.mark.parametrize("first", WEEKS, ids=str)
def test_a_report_has_the_sums_of_stats_for_its_week(lab: Lab, run: Command, first: date) -> None:
    week_sums = of_stats(run, first, first + timedelta(days=6))[""]
    past = HistoryReader(lab.state, BERLIN)
    week = collect.collect_report(lab.settings(zone=BERLIN), past, first, NOW)
    past.close()
    assert week
    days, total = week.usage.days.values(), week.usage.total
    assert [sum(getattr(day, name) for day in days) for name in ("seen", "taken", "held")] == [
        total.seen,
        total.taken,
        total.held,
    ]
    names = ("seen", "taken", "held")
    assert {name: getattr(total, name) for name in names} == {name: taken(week_sums)[name] for name in names}
    assert (total.booked, total.free, total.unclear) == (
        week_sums["booked_idle"],
        week_sums["free"],
        week_sums["unclear"],
    )
    heat = [cell for row in week.cells for cell in row]
    assert (sum(cell.seen for cell in heat), sum(cell.taken for cell in heat)) == (total.seen, total.taken)


@pytest.mark.parametrize("first", WEEKS, ids=str)
def test_a_text_report_has_the_sums_of_stats_for_each_person(run: Command, first: date) -> None:
    text = run("report", "--week", f"{first:%G-W%V}", "--text").partition("\nPeople\n")[2].partition("\nWaste\n")[0]
    rows = {line[:26].strip(): line[26:].split() for line in text.splitlines() if line[:26].strip()}
    stats = json.loads(run("stats", "--since", str(first), "--until", str(first + timedelta(days=6)), "--json"))
    for row in stats["rows"]:
        report_hours = [float(cell.replace(",", "")) for cell in (rows[row["name"]][0], *rows[row["name"]][-3:])]
        assert report_hours == pytest.approx([row[name] for name in ("used", "held", "booked", "unused")], abs=0.051)
    assert len(stats["rows"]) == len(rows) - 3 - ("owner unknown" in rows)


# The pages


@pytest.fixture(scope="module")
def www(lab: Lab) -> Path:
    (lab.data / "hosts.txt").write_text("atlas\nhydra\nlerna\n")  # the others are named no more
    builder = Builder(lab.settings(zone=BERLIN))
    builder.people_page.time_limit_s = 600
    builder.build(NOW)
    assert builder.people_page.rollup
    assert builder.people_page.rollup.is_done
    builder.close()
    return lab.www


def tables(path: Path) -> dict[str, dict[str, list[dict[str, str]]]]:
    """Of each table by its title the cells of each row by its name and by their headings, of each group of columns."""
    tree = html5lib.parse(path.read_text(), namespaceHTMLElements=False)
    parsed_tables = {}
    for region in tree.findall(".//div[@role='region']"):
        head_rows = [[*map(read, row)] for row in region.findall(".//thead/tr")]
        heads = head_rows[-1] if len(head_rows) > 1 else head_rows[0][1:]
        size = heads.index(heads[0], 1) if heads[0] in heads[1:] else len(heads)
        rows = {}
        for row in (*region.findall(".//tbody/tr"), *region.findall(".//tfoot/tr")):
            name, *cells = map(read, row)
            rows[name] = [dict(zip(heads, cells[start : start + size])) for start in range(0, len(cells), size)]
        parsed_tables[region.get("aria-label") or ""] = rows
    return parsed_tables


def read(element: Any) -> str:  # noqa: ANN401 # of html5lib
    return " ".join("".join(element.itertext()).split())


def near(cells: dict[str, str], sums: dict[str, float], names: dict[str, str]) -> bool:
    """Whether cells have these sums, rounded; a column that is left out has nothing but zeros."""
    hours = [float(cells.get(label, "0").replace(",", "")) for label in names.values()]
    return hours == pytest.approx([sums[name] for name in names], abs=0.051)


PERSON = {"used": "Used", "held": "Held idle", "booked": "Booked", "unused": "Booked, unused"}


@pytest.mark.parametrize(("month", "title", "place"), [("2026-11", "November", 0), ("2026-10", "October", 1)])
def test_users_html_has_the_sums_of_stats_for_each_month(
    run: Command, www: Path, month: str, title: str, place: int
) -> None:
    page = tables(www / "users.html")
    (people,) = (table for name, table in page.items() if name.startswith(f"GPU-hours by person, {title} 2026"))
    stats_by_group = {
        by: json.loads(run("stats", "--month", month, "--by", by, "--json")) for by in ("person", "model", "host")
    }
    for row in stats_by_group["person"]["rows"]:
        assert near(people[row["name"]][0], row, PERSON)
    for table, by in ((page["By model"], "model"), (page["By host"], "host")):
        for row in stats_by_group[by]["rows"]:
            assert near(table[row["name"]][place], row, {**PERSON, "free": "Free"})
    total = stats_by_group["person"]["total"]
    parts = {
        **{"Used by people": "used", "Owner unknown": "unowned", "Booked, idle": "booked_idle", "Free": "free"},
        **{"Lost or unknown": "unclear", "All monitored": "seen", "Not monitored": "unseen"},
    }
    for name, part in parts.items():
        (cells,) = page["All GPU-hours"][name]
        (label,) = (label for label in cells if label.startswith(title))
        assert near(cells, total, {part: label})
    (cells,) = page["By month"][f"{title} 2026"]
    assert near(cells, total, {**PERSON, "free": "Free", "seen": "All monitored"})


def test_users_html_shows_nothing_of_a_host_in_a_month_in_which_it_was_not_seen(www: Path) -> None:
    assert set(tables(www / "users.html")["By host"]["hydra"][0].values()) == {"–"}


def test_fleet_html_has_the_sums_of_stats(run: Command, www: Path) -> None:
    month = tables(www / "fleet.html")["Use by model, the last 30 days"]
    model_sums = of_stats(run, "2026-10-03", "2026-11-02", "model")
    for name, sums in model_sums.items():
        assert near(month[name or "All GPUs"][0], {"taken": taken(sums)["taken"] / 60}, {"taken": "GPU-hours"})
    assert len(model_sums) == len(month)
