"""`gpuboard report`: a week on one page that needs nothing beside it, and as text for a mail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from site_builder.history.writer import HistoryWriter
from site_builder.usage.fleet_page import NAMED_REPORT_START
from tests.support.board_fixture import Lab
from tests.support.history_fixtures import epoch, gpu, host, keep, roll
from tests.support.week_fixtures import DAY, HOUR, MONDAY, MORNING, PARIS, Report, lab_of, reporter


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """With a past; no test changes it."""
    return lab_of(tmp_path_factory.mktemp("report"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Report:
    """The command in a lab, at a moment."""
    return reporter(monkeypatch, capfd)


def cells(html: str, name: str) -> list[list[str]]:
    """The cells of each row of that name, as text."""
    rows = re.findall(rf"<tr><th scope=row>{re.escape(name)}(.*?)(?=\n|<tr>|</tbody>|</tfoot>)", html)
    return [[re.sub("<[^>]*>", "", cell).strip() for cell in row.split("<td")[1:]] for row in rows]


def texts(row: list[str]) -> list[str]:
    return [cell.rpartition(">")[2] for cell in row]


# What it tells


@pytest.mark.slow
def test_use_by_model_is_what_was_worked_out_on_paper(lab: Lab, run: Report) -> None:
    html = run(lab, "--out", "-").out
    use = html.partition("<h3>By model")[2]
    assert texts(cells(use, "A100 80 GB")[0])[2:] == ["96.0", "57 %", "7 %", "0 %", "43 %", "79 %", "+129 %"]
    assert texts(cells(use, "V100")[0])[2:] == ["0.0", "0 %", "0 %", "100 %", "0 %", "–", "0 %"]
    assert texts(cells(use, "L40S")[0])[:1] + texts(cells(use, "L40S")[0])[2:4] == ["1", "24.0", "100 %"]
    assert texts(cells(use, "All GPUs")[0])[2:4] == ["120.0", "23 %"]


@pytest.mark.slow
def test_a_host_that_is_hidden_is_not_named_and_its_hours_count(lab: Lab, run: Report) -> None:
    (lab.data / "hosts.txt").write_text("hydra, hidden\natlas, hidden\n")
    report_text = run(lab, "--text").out
    assert "hydra" not in report_text and "atlas" not in report_text
    assert "a hidden host" in report_text
    assert "120.0" in report_text
    (lab.data / "hosts.txt").unlink()


@pytest.mark.slow
def test_people_have_what_was_worked_out_on_paper(lab: Lab, run: Report) -> None:
    """Of 12 hours that two hold a GPU, each has 6; nobody knows who was on hydra."""
    html = run(lab, "--out", "-").out.partition("<h2>People")[2]
    assert texts(cells(html, "alice")[0])[1:] == ["90.0", "+114 %", "6.0", "0.0", "0.0"]
    assert texts(cells(html, "bob")[0])[1:] == ["6.0", "new", "6.0", "0.0", "0.0"]
    assert texts(cells(html, "carol")[0])[1:] == ["0.0", "0 %", "0.0", "168.0", "168.0"]
    assert texts(cells(html, "owner unknown")[0])[1] == "24.0"
    assert texts(cells(html, "All people")[0])[1:] == ["120.0", "+186 %", "12.0", "168.0", "168.0"]


def test_a_person_who_is_spelt_otherwise_than_in_the_week_before_is_not_new(tmp_path: Path, run: Report) -> None:
    lab = Lab(tmp_path)
    history = HistoryWriter(lab.state, PARIS)
    keep(history, MONDAY - 7 * DAY, MONDAY - 7 * DAY + 10 * HOUR, [host(gpu("busy", ["Alice"]))])
    keep(history, MONDAY, MONDAY + 15 * HOUR, [host(gpu("busy", ["alice"]))])
    roll(history, MORNING)
    history.close()
    html = run(lab, "--out", "-").out.partition("<h2>People")[2]
    assert texts(cells(html, "alice")[0])[1:3] == ["15.0", "+50 %"]


def test_what_one_person_held_under_two_spellings_is_one_line(tmp_path: Path, run: Report) -> None:
    lab = Lab(tmp_path)
    history = HistoryWriter(lab.state, PARIS)
    for start, name in ((MONDAY, "Alice"), (MONDAY + 10 * HOUR, "alice")):
        keep(history, start, start + 10 * HOUR, [host(gpu("held", [name]))])
    roll(history, MORNING)
    history.close()
    assert re.search(r"GPU-hours\n +atlas:0 +A100 80 GB +alice +20.0\n", run(lab, "--text").out)


def test_idle_time_is_not_charged_to_who_worked_in_the_rest_of_the_hour(tmp_path: Path, run: Report) -> None:
    lab = Lab(tmp_path)
    history = HistoryWriter(lab.state, PARIS)
    for start in range(MONDAY, MONDAY + 6 * HOUR, HOUR):
        keep(history, start, start + 1500, [host(gpu("held", ["bob"]))])
        keep(history, start + 1500, start + HOUR, [host(gpu("busy", ["alice"]))])
    roll(history, MORNING)
    history.close()
    assert re.search(r"Held idle: 2.5 GPU-hours\n +atlas:0 +A100 80 GB +bob +2.5\n", run(lab, "--text").out)


def test_waste_is_listed_by_gpu_and_person(lab: Lab, run: Report) -> None:
    report_text = run(lab, "--text").out
    waste = report_text.partition("Waste\n")[2].partition("Health\n")[0]
    assert "Held idle: 12.0 GPU-hours" in waste
    assert re.search(r"atlas:0 +A100 80 GB +alice +12.0", waste)
    assert "Booked, idle: 168.0 GPU-hours" in waste
    assert re.search(r"atlas:1 +V100 +carol +168.0", waste)
    assert re.search(r"Not used all week: 168.0 GPU-hours\n +atlas:2 +T4 +168.0", waste)


def test_a_week_with_gaps_says_how_much_was_seen(lab: Lab, run: Report) -> None:
    """Of four GPUs, three were seen all week, and one for a day of seven."""
    html = run(lab, "--out", "-").out
    assert "Coverage: 78 % of GPU time was monitored" in html
    assert texts(cells(html.partition("Hosts with gaps in monitoring")[2], "hydra")[0]) == ["14 %", "144.0"]


def test_where_the_week_before_is_not_whole_it_says_so(lab: Lab, run: Report) -> None:
    html = run(lab, "--week", "2026-W45", "--out", "-", now=MORNING).out
    assert "There is no data for the previous week." in html
    assert "of GPU time was in use." in html


def test_a_week_that_is_not_over_is_compared_with_none(lab: Lab, run: Report) -> None:
    html = run(lab, "--week", "2026-W46", "--out", "-", now=MONDAY + 2 * DAY + 90 * 60).out
    assert "This week is not over: figures are up to Wed 11 Nov 01:30, and not compared with other weeks." in html
    assert " from the previous week." not in html and " in the previous week." not in html
    assert 'title="Wed 11 Nov 05:00: not yet"' in html


def test_each_day_has_a_bar_and_each_hour_a_cell(lab: Lab, run: Report) -> None:
    html = run(lab, "--out", "-").out
    days = html.partition("<h3>Day by day")[2].partition("<h3>Hour by hour")[0]
    hours = html.partition("<h3>Hour by hour")[2].partition("<h3>By model")[0]
    assert days.count("<svg class=share") == 8 + 5  # the last are the legend
    assert texts(cells(days, "Mon 9 Nov")[0])[2:4] == ["48.0", "50 %"]
    assert [row[0].rpartition(">")[2] for row in cells(hours, "Mon 9 Nov")] == ["50"]
    assert hours.count(' title="') == 7 * 24


# Weeks whose length or name is odd


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "monday", "hours"),
    [
        ("2026-W13", "2026-03-23T00:00", 167),
        ("2026-W43", "2026-10-19T00:00", 169),
        ("2026-W53", "2026-12-28T00:00", 168),
    ],
)
def test_a_week_has_as_many_hours_as_its_clocks_say(
    tmp_path: Path, run: Report, name: str, monday: str, hours: int
) -> None:
    lab = Lab(tmp_path)
    start = epoch(monday, PARIS)
    history = HistoryWriter(lab.state, PARIS)
    keep(history, start - HOUR, start + hours * HOUR + HOUR, [host(gpu("busy", ["alice"], use=50))])
    roll(history, start + 9 * DAY)
    history.close()
    report_text = run(lab, "--week", name, "--text", now=start + 9 * DAY).out
    assert re.search(rf"alice +{hours}\.0 ", report_text)
    assert re.search(rf"A100 80 GB +1 +100 % +0 % +{hours}\.0", report_text)
    html = run(lab, "--week", name, "--out", "-", now=start + 9 * DAY).out
    assert html.count(": 100 % in use, 1.0 of 1.0 GPUs on average") == hours - (hours == 169)
    assert ("(twice," in html, "skipped by" in html) == (hours == 169, hours == 167)


@pytest.mark.slow
def test_a_week_that_lies_in_two_years_and_months_is_whole(tmp_path: Path, run: Report) -> None:
    lab = Lab(tmp_path)
    start = epoch("2026-12-28T00:00", PARIS)
    history = HistoryWriter(lab.state, PARIS)
    keep(history, start, start + 7 * DAY, [host(gpu("busy", ["alice"], use=50))])
    history.close()
    report_text = run(lab, "--text", now=start + 7 * DAY + HOUR).out
    assert report_text.startswith("gpuboard: week 53 of 2026\nMon 28 Dec 2026 to Sun 3 Jan 2027, Europe/Paris\n")
    assert re.search(r"alice +168\.0 ", report_text)


@pytest.mark.slow
def test_an_old_week_is_reported_with_its_hours_too(tmp_path: Path, run: Report) -> None:
    """Of which sums by the hour are kept no more."""
    lab = Lab(tmp_path)
    history = HistoryWriter(lab.state, PARIS)
    keep(history, MONDAY, MONDAY + DAY, [host(gpu("busy", ["alice"], use=50))])
    for day in range(1, 80):
        history.record([host(gpu())], MONDAY + day * DAY + 10 * DAY)
        roll(history, MONDAY + day * DAY + 10 * DAY + 2 * HOUR)
    history.close()
    report_html = run(lab, "--week", "2026-W46", "--out", "-", now=MONDAY + 91 * DAY).out
    assert report_html.count(": 100 % in use, 1.0 of 1.0 GPUs on average") == 24
    assert "When this report was made" not in report_html


# Which week, and where to


@pytest.mark.parametrize("words", [[], ["--week"], ["--week", "2026-W46"]])
def test_without_a_name_it_is_the_last_week_that_is_over(
    lab: Lab, run: Report, words: list[str], tmp_path: Path
) -> None:
    assert run(lab, *words, "--www", str(tmp_path)) == (0, "", "")
    assert [path.name for path in (tmp_path / "reports").iterdir()] == ["2026-W46.html"]


def test_the_week_ends_by_the_clock_of_the_lab(lab: Lab, run: Report) -> None:
    before, after = (run(lab, "--text", now=MONDAY + 7 * DAY + offset).out.partition("\n")[0] for offset in (-60, 60))
    assert (before, after) == ("gpuboard: week 45 of 2026", "gpuboard: week 46 of 2026")


@pytest.mark.parametrize("word", ["2026-45", "2027-W53", "last", "2026-W4x"])
def test_what_is_no_week_is_wrong_use(lab: Lab, run: Report, word: str) -> None:
    finished = run(lab, "--week", word)
    assert finished == (2, "", f"gpuboard: '{word}' is not a week: write it like 2026-W46\n")


def test_a_week_to_come_is_wrong_use(lab: Lab, run: Report) -> None:
    finished = run(lab, "--week", "2026-W48")
    assert finished == (2, "", "gpuboard: 2026-W48 is in the future: this week is 2026-W47\n")


@pytest.mark.parametrize("word", ["2026-W30", "1970-W01"])
def test_a_week_without_history_exits_1(lab: Lab, run: Report, word: str) -> None:
    finished = run(lab, "--week", word)
    assert (finished.code, finished.out) == (1, "")
    assert re.fullmatch(
        rf"gpuboard: there is no history of {word} in .*history.db: it begins on 2026-11-02\n", finished.err
    )


def test_where_no_board_is_built_one_sentence_says_so(tmp_path: Path, run: Report) -> None:
    finished = run(Lab(tmp_path))
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1)
    assert "run this where the board is built" in finished.err


def test_a_history_that_cannot_be_read_is_one_sentence(tmp_path: Path, run: Report) -> None:
    lab = Lab(tmp_path)
    (lab.state / "history.db").write_bytes(b"nonsense" * 1000)
    finished = run(lab)
    assert (finished.code, finished.out, finished.err.count("\n")) == (2, "", 1)


def test_a_report_is_written_whole_or_not_at_all(lab: Lab, run: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("before")
    before = file.stat().st_ino
    assert run(lab, "--out", str(file)).code == 0
    assert file.stat().st_ino != before
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    finished = run(lab, "--out", str(tmp_path / "nowhere/report.html"))
    assert (finished.code, finished.err.count("\n")) == (2, 1)


def test_a_pipe_is_written_to_and_not_replaced(lab: Lab, run: Report, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    assert run(lab, "--out", str(link)).code == 0
    assert link.is_symlink()


def test_text_goes_to_a_file_where_one_is_named(lab: Lab, run: Report, tmp_path: Path) -> None:
    assert run(lab, "--text", "--out", str(tmp_path / "mail.txt")) == (0, "", "")
    assert (tmp_path / "mail.txt").read_text() == run(lab, "--text").out


# People


def test_aliases_merge_names(tmp_path: Path, run: Report) -> None:
    lab = Lab(tmp_path)
    (lab.data / "aliases.csv").write_text("alice, Alice A.\nasmith, Alice A.\n")
    history = HistoryWriter(lab.state, PARIS)
    keep(history, MONDAY - 2 * HOUR, MONDAY, [host(gpu("busy", ["asmith"]))])
    keep(history, MONDAY, MONDAY + HOUR, [host(gpu("busy", ["alice"]))])
    keep(history, MONDAY + HOUR, MONDAY + 3 * HOUR, [host(gpu("busy", ["asmith"]))])
    history.close()
    assert re.search(r"\nAlice A\. +3\.0 +\+50 %", run(lab, "--text").out)


@pytest.mark.parametrize("words", [["--text"], ["--out", "-"]])
def test_where_users_are_not_shown_nobody_is_named(lab: Lab, run: Report, words: list[str]) -> None:
    report_output = run(lab, *words, GPUBOARD_SHOW_USERS="no").out
    assert "This site does not show people" in report_output
    assert not re.search("alice|bob|carol|data-people", report_output)


def test_a_report_that_names_people_says_so_in_its_first_line(lab: Lab, run: Report) -> None:
    assert run(lab, "--out", "-").out.encode().startswith(NAMED_REPORT_START)
