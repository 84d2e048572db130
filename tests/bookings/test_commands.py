"""Booking by command: what was understood is said first, it is done whole or not at all, and errors help."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from site_builder.core.timeparse import moments, recurrence
from tests.support.board_fixture import Lab, soon
from tests.support.booking_fixtures import ME, PARIS, Terminal, done, entries, lab_of, lines, log
from tests.support.command_line import run_gpuboard


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return lab_of(tmp_path)


# Book


def test_a_booking_is_written_logged_and_confirmed_in_one_sentence(lab: Lab, tmp_path: Path) -> None:
    finished = done(tmp_path, "book", "atlas:0,1", "--for", "2d", "--comment", "ICML run")
    booking = finished.stdout.strip()
    first, second = entries(lab)["atlas"].values()
    assert first == second
    assert (first["name"], first["comment"], first["id"]) == (ME, "ICML run", booking)
    assert f"gpuboard: booked {booking}: atlas:0,1 for {ME} from now until " in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert [(line["who"], line["what"], len(line["after"])) for line in log(lab)] == [(ME, "book", 2)]


def test_a_booking_is_under_the_login_of_the_real_user_whatever_the_environment_says(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "book", "atlas:0", "--for", "1h", USER="mallory", LOGNAME="mallory")
    assert entries(lab)["atlas"]["0"]["name"] == ME


def test_behind_sudo_stands_a_person_but_only_root_is_believed_to_be_behind_it(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "book", "atlas:0", "--for", "1h", SUDO_USER="alice")
    is_root = os.getuid() == 0
    assert entries(lab)["atlas"]["0"]["name"] == ("alice" if is_root else ME)
    assert [(line["who"], line["via"]) for line in log(lab)] == [("alice", "sudo") if is_root else (ME, "command")]


def test_a_booking_for_somebody_else_says_who_made_it(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "book", "atlas", "--for", "1h", "--name", "bob")
    booking_entry = entries(lab)["atlas"]["*"]
    assert (booking_entry["name"], booking_entry["by"]) == ("bob", ME)


def test_times_are_read_in_the_zone_of_the_settings(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "book", "atlas:0", "--from", "2040-07-02 9:00", "--until", "2040-07-06 18:00", **PARIS)
    booking_entry = entries(lab)["atlas"]["0"]
    assert (booking_entry["from"], booking_entry["date"]) == ("2040-07-02 09:00+02:00", "2040-07-06 18:00+02:00")


def test_any_books_free_gpus_of_that_model_on_one_host(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "book", "--any", "2", "--model", "h100", "--for", "1h")
    assert set(entries(lab)["zeus"]) == {"0", "1"}
    finished = run_gpuboard(tmp_path, "book", "--any", "1", "--model", "H100", "--for", "1h")
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "no host has 1 free H100" in finished.stderr


def test_json_has_what_was_booked(lab: Lab, tmp_path: Path) -> None:
    answer = json.loads(done(tmp_path, "book", "atlas:0-2", "zeus", "--for", "1h", "--json").stdout)
    assert [(booking["host"], booking["gpus"]) for booking in answer["bookings"]] == [
        ("atlas", ["0", "1", "2"]),
        ("zeus", ["*"]),
    ]
    assert {booking["id"] for booking in answer["bookings"]} == {
        entries(lab)["atlas"]["0"]["id"],
        entries(lab)["zeus"]["*"]["id"],
    }


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("book",), 2, 'gpuboard book atlas:0,1 --until "fri 18:00"'),
        (("book", "atlas:0"), 2, "until when?"),
        (("book", "atlas:0", "--until", "18:00", "--for", "2h"), 2, "use either --until or --for"),
        (("book", "atlas:0", "--any", "2", "--for", "2h"), 2, "use either GPUS or --any"),
        (("book", "atlas:0", "--for", "2"), 2, '"2" has no unit: write "2h" or "2d"'),
        (("book", "atlas:0", "--for", "2h", "--model", "H100"), 2, "--model needs --any"),
        (("book", "atlas:0", "--for", "2h", "--repeat", "tue"), 2, '--repeat needs the first time: --from "tue 9:00"'),
        (
            ("book", "atlas:0", "--for", "2h", "--from", "9:00", "--repeat", "often"),
            2,
            '"often" is not a valid repetition',
        ),
        (("book", "atlsa", "--for", "2h"), 1, "did you mean atlas?"),
        (("book", "atlas:9", "--for", "2h"), 1, "atlas has no GPU 9, only GPUs 0 to 3"),
        (("book", "atlas:0", "--until", "2001-01-01 10:00"), 1, "is before the start"),
        (("change", "nothing", "--for", "2h"), 1, "no booking nothing"),
        (("change", "nothing"), 2, "what should change?"),
        (("release",), 2, "which booking?"),
        (("release", "bcdfgh"), 1, "no booking bcdfgh"),
        (("release", "atlas:0"), 1, "you have not booked atlas:0"),
        (("bookings", "atlsa"), 1, "did you mean atlas?"),
        (("bookings", "--undo"), 1, "no change by "),
        (("bookings", "--undo", "--mine"), 2, "use it alone"),
    ],
)
def test_a_refused_booking_has_its_reason_and_writes_nothing(
    lab: Lab, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    finished = run_gpuboard(tmp_path, *words)
    assert (finished.returncode, finished.stdout) == (code, "")
    assert said in finished.stderr
    assert not (lab.data / "comments.json").exists()


def test_a_gpu_that_is_taken_is_refused_with_whose_it_is(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": {"0": {"name": "bob", "date": soon(7200), "id": "bobs"}}})
    finished = run_gpuboard(tmp_path, "book", "zeus", "atlas:0", "--for", "1h")
    assert finished.returncode == 1
    assert "atlas:0 is booked by bob until " in finished.stderr
    assert "zeus" not in entries(lab)


def test_a_broken_file_is_left_as_it_is(lab: Lab, tmp_path: Path) -> None:
    lab.book('{"atlas": [')
    finished = run_gpuboard(tmp_path, "book", "atlas:0", "--for", "1h")
    assert finished.returncode == 2
    assert "line 1, column" in finished.stderr
    assert (lab.data / "comments.json").read_text() == '{"atlas": ['


# Where


def test_without_a_board_the_message_says_what_to_set(tmp_path: Path) -> None:
    finished = run_gpuboard(tmp_path, "bookings")
    assert finished.returncode == 2
    assert "set GPUBOARD_DATA to its data folder, or GPUBOARD_URL to its address" in finished.stderr


def test_a_folder_that_was_named_and_is_not_there_is_no_reason_to_look_elsewhere(lab: Lab, tmp_path: Path) -> None:
    for words in (("--data", "dta"), ()):
        environment = {} if words else {"GPUBOARD_DATA": "dta"}
        finished = run_gpuboard(tmp_path, "bookings", *words, GPUBOARD_URL="http://127.0.0.1:9/", **environment)
        assert finished.returncode == 2
        assert f"there is no folder {tmp_path / 'dta'}" in finished.stderr
    assert lab.data.is_dir()


# At a terminal


@pytest.mark.slow
def test_at_a_terminal_the_parsed_request_is_shown_and_enter_confirms(lab: Lab, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "book", "--any", "1", "--for", "2h")
    output = terminal.until("Book it? [Y/n]")
    assert f"for {ME} from now until" in output
    assert not (lab.data / "comments.json").exists()
    terminal.answer("")
    code, output = terminal.end()
    assert (code, output.count("gpuboard: booked ")) == (0, 1)
    assert len(output.splitlines()) == 2
    assert len(entries(lab)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["n", "\x04", "\x03"])
def test_answering_no_or_ctrl_c_books_nothing(lab: Lab, tmp_path: Path, answer: str) -> None:
    terminal = Terminal(tmp_path, "book", "atlas", "--for", "2h")
    terminal.until("Book it? [Y/n]")
    terminal.answer(answer)
    code, output = terminal.end()
    assert (code, "gpuboard: nothing changed" in output) == (1, True)
    assert not (lab.data / "comments.json").exists()


@pytest.mark.slow
def test_an_answer_that_is_neither_yes_nor_no_is_asked_for_again(lab: Lab, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "book", "atlas", "--for", "2h")
    terminal.until("Book it? [Y/n]")
    terminal.answer("perhaps")
    terminal.until("Answer y or n.\r\nBook it?")
    terminal.answer("No")
    code, output = terminal.end()
    assert (code, "gpuboard: nothing changed" in output) == (1, True)
    assert not (lab.data / "comments.json").exists()


@pytest.mark.slow
def test_yes_does_not_ask(lab: Lab, tmp_path: Path) -> None:
    code, output = Terminal(tmp_path, "book", "atlas", "--for", "2h", "-y").end()
    assert (code, "[Y/n]" in output, "booked" in output) == (0, False, True)
    assert entries(lab)["atlas"]


# Change, release, undo


def test_a_change_keeps_what_is_not_named(lab: Lab, tmp_path: Path) -> None:
    booking = done(tmp_path, "book", "atlas:0", "--from", "2040-07-02 9:00", "--for", "2h", "--comment", "x").stdout
    done(tmp_path, "change", booking.strip(), "--until", "18:00")
    booking_entry = entries(lab)["atlas"]["0"]
    assert (booking_entry["from"][:16], booking_entry["date"][:16], booking_entry["comment"]) == (
        "2040-07-02 09:00",
        "2040-07-02 18:00",
        "x",
    )
    done(tmp_path, "change", booking.strip(), "--for", "3h", "--comment", "")
    booking_entry = entries(lab)["atlas"]["0"]
    assert (booking_entry["date"][:16], "comment" in booking_entry) == ("2040-07-02 12:00", False)


def test_one_gpu_of_a_booking_is_released_and_the_other_stays(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "book", "atlas:0,1", "--from", "2040-07-02 9:00", "--for", "2h")
    finished = done(tmp_path, "release", "atlas:0")
    assert f"atlas:0 of {ME} released (was from " in finished.stderr
    assert set(entries(lab)["atlas"]) == {"1"}


def test_several_bookings_are_released_by_their_ids(lab: Lab, tmp_path: Path) -> None:
    ids = done(tmp_path, "book", "atlas:0", "zeus", "--from", "2040-07-02 9:00", "--for", "2h").stdout.split()
    answer = json.loads(done(tmp_path, "release", *ids, "--json").stdout)
    assert [booking["id"] for booking in answer["bookings"]] == ids
    assert not any(entries(lab).values())


def test_undo_says_what_it_takes_back_and_takes_it_back_once(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "book", "atlas:0,1", "--for", "2h")
    finished = done(tmp_path, "bookings", "--undo")
    assert f"undo of the booking by {ME}, " in finished.stderr
    assert "atlas:0,1 no longer booked" in finished.stderr
    assert not any(entries(lab).values())
    assert run_gpuboard(tmp_path, "bookings", "--undo").returncode == 1


@pytest.mark.parametrize("answer", ["n", "y"])
def test_undo_shows_what_would_change_before_it_asks_and_what_was_done_after_it(
    lab: Lab, tmp_path: Path, answer: str
) -> None:
    done(tmp_path, "book", "atlas:0,1", "--for", "2h")
    terminal = Terminal(tmp_path, "bookings", "--undo")
    before = terminal.until("Undo this? [Y/n]")
    assert "gpuboard: preview: " in before
    assert "done" not in before
    assert list(entries(lab)["atlas"]) == ["0", "1"]
    terminal.answer(answer)
    code, after = terminal.end()
    assert ("gpuboard: done: " in after, "gpuboard: nothing changed" in after) == (answer == "y", answer == "n")
    assert (code, any(entries(lab).values())) == ((0, False) if answer == "y" else (1, True))


# What repeats


def test_a_repeating_booking_begins_on_its_first_day_and_is_described(lab: Lab, tmp_path: Path) -> None:
    words = ("--from", "2040-07-02 9:00", "--until", "12:00", "--repeat", "tue", "--repeat-until", "2041-06-30")
    finished = done(tmp_path, "book", "atlas:0", *words, **PARIS)
    entry = entries(lab)["atlas"]["0"]
    assert (entry["from"], entry["date"]) == ("2040-07-03 09:00", "2040-07-03 12:00")
    assert entry["rrule"] == "FREQ=WEEKLY;BYDAY=TU;UNTIL=20410630T215959Z"
    assert "every Tue 09:00 to 12:00 until 30 Jun 2041, first Tue 3 Jul 2040 09:00" in finished.stderr


def test_what_repeats_stays_at_its_hour_when_the_clocks_change(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "book", "atlas:0", "--from", "2040-07-03 9:00", "--for", "3h", "--repeat", "tue", **PARIS)
    december = ("book", "atlas:0", "--from", "2040-12-04 12:00", "--for", "1h")
    assert run_gpuboard(tmp_path, *december, **PARIS).returncode == 0
    assert (
        run_gpuboard(tmp_path, "book", "atlas:0", "--from", "2040-12-04 9:00", "--for", "1h", **PARIS).returncode == 1
    )
    assert len(entries(lab)["atlas"]["0"]) == 2


def test_what_repeats_is_coming_between_two_of_its_times(lab: Lab, tmp_path: Path) -> None:
    began = datetime.now(timezone.utc) - timedelta(days=8)
    entry = {
        "name": "bob",
        "from": f"{began:%Y-%m-%d %H:%M}+00:00",
        "date": f"{began + timedelta(hours=1):%Y-%m-%d %H:%M}+00:00",
    }
    over = {**entry, "rrule": "FREQ=WEEKLY;COUNT=1"}
    lab.book({"atlas": {"0": {**entry, "rrule": "FREQ=WEEKLY"}, "1": over}})
    bookings = json.loads(done(tmp_path, "bookings", "--json").stdout)
    assert [(booking["gpus"], booking["phase"]) for booking in bookings] == [(["0"], "coming")]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("daily", "FREQ=DAILY"),
        ("every day", "FREQ=DAILY"),
        ("weekly", "FREQ=WEEKLY"),
        ("monthly", "FREQ=MONTHLY"),
        ("tue", "FREQ=WEEKLY;BYDAY=TU"),
        ("wed, mon", "FREQ=WEEKLY;BYDAY=MO,WE"),
        ("every Tuesday and Thursdays", "FREQ=WEEKLY;BYDAY=TU,TH"),
        ("weekdays", "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR"),
        ("fri-mon", "FREQ=WEEKLY;BYDAY=MO,FR,SA,SU"),
        ("RRULE:FREQ=MONTHLY;BYDAY=1TU", "FREQ=MONTHLY;BYDAY=1TU"),
    ],
)
def test_a_way_to_repeat_is_a_rule(text: str, rule: str) -> None:
    assert recurrence.parse_recurrence(text) == rule


@pytest.mark.parametrize("text", ["", "often", "2", "tue to thu", "weekdays-fri", "FREQ=HOURLY", "a=b", "mon;tue"])
def test_what_is_no_way_to_repeat_is_refused(text: str) -> None:
    with pytest.raises(moments.UnclearTimeError):
        recurrence.parse_recurrence(text)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("FREQ=DAILY", "every day 09:00 to 12:00"),
        ("FREQ=WEEKLY", "every Tue 09:00 to 12:00"),
        ("FREQ=WEEKLY;BYDAY=MO,WE;COUNT=5", "every Mon, Wed 09:00 to 12:00, 5 times"),
        ("FREQ=WEEKLY;INTERVAL=2;BYDAY=TU", "every 2nd week on Tue 09:00 to 12:00"),
        ("FREQ=MONTHLY;BYDAY=1TU", "every month on the 1st Tue 09:00 to 12:00"),
        ("FREQ=MONTHLY;BYDAY=-1FR", "every month on the last Fri 09:00 to 12:00"),
        ("FREQ=MONTHLY", "every month on the 3rd 09:00 to 12:00"),
        ("FREQ=YEARLY", "every year on 3 Jul 09:00 to 12:00"),
        ("FREQ=DAILY;UNTIL=20410630T215959Z", "every day 09:00 to 12:00 until 30 Jun 2041"),
    ],
)
def test_a_refusing_rule_is_described(rule: str, said: str) -> None:
    paris = ZoneInfo("Europe/Paris")
    since = datetime(2040, 7, 3, 9, tzinfo=paris)
    assert recurrence.describe_recurrence(rule, since, since + timedelta(hours=3), paris) == said


# The list


def test_the_list_fits_80_columns_with_those_of_now_first(lab: Lab, tmp_path: Path) -> None:
    long = "a very long comment about a very long run " * 5
    lab.book(
        {
            "atlas": [{}, {"name": "bob", "from": soon(90000), "date": soon(190000), "comment": long}],
            "zeus": {"*": {"name": "a-very-long-name-of-somebody", "date": soon(7200), "id": "an-id-that-is-long"}},
        }
    )
    finished = done(tmp_path, "bookings")
    head, first, second = finished.stdout.splitlines()
    assert head.split() == ["ID", "GPUS", "WHO", "WHEN", "NOTES"]
    assert first.split()[1:3] == ["zeus", "a-very-long…"]
    assert second.endswith("…")
    assert max(map(len, (head, first, second))) == 80
    assert json.loads(done(tmp_path, "bookings", "--json").stdout)[1]["comment"] == long.strip()


def test_mine_are_those_that_i_have_or_made(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": [{"name": "bob", "date": soon(7200)}, {"name": "eve", "date": soon(7200), "by": ME}]})
    done(tmp_path, "book", "zeus", "--for", "1h")
    bookings = json.loads(done(tmp_path, "bookings", "--mine", "--json").stdout)
    assert sorted(booking["where"] for booking in bookings) == ["atlas:1", "zeus"]


def test_an_empty_list_is_an_answer(lab: Lab, tmp_path: Path) -> None:
    for words, expected_message in (
        ((), "there are no bookings"),
        (("atlas", "--mine"), "you have no bookings on atlas"),
    ):
        finished = done(tmp_path, "bookings", *words)
        assert (finished.stdout, finished.stderr) == ("", f"gpuboard: {expected_message}\n")
    assert lab.data.is_dir()


def test_problems_of_the_file_are_reported_beside_the_list(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": [{"name": "bob", "date": "soon"}] * 9, "zeus": [{"name": "eve", "date": soon(7200)}]})
    finished = done(tmp_path, "bookings")
    assert "eve" in finished.stdout
    assert finished.stderr.count('the date "soon" is not a date') == 5
    assert "and 4 more problems" in finished.stderr


def test_the_list_says_whether_a_booking_is_kept_while_the_board_is_fresh(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": [{"name": "bob", "date": soon(7200), "from": soon(-7200), "comment": "x" * 40}] * 2})
    lab.build()
    finished = done(tmp_path, "bookings")
    assert finished.stdout.splitlines()[2].startswith("    unused since ")
    (booking,) = json.loads(done(tmp_path, "bookings", "--json").stdout)
    assert time.time() - 60 < booking["unused_since"] <= time.time()
    status = lab.status()
    (lab.www / "status.json").write_text(json.dumps({**status, "built": status["built"] - 700}))
    assert "unused" not in done(tmp_path, "bookings").stdout


@pytest.mark.slow
def test_colour_is_for_terminals_that_want_it(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": [{"name": "bob", "date": soon(7200), "from": soon(-7200)}]})
    lab.build()
    _, coloured = Terminal(tmp_path, "bookings").end()
    _, plain = Terminal(tmp_path, "bookings", NO_COLOR="1").end()
    assert "\x1b[33m" in coloured
    assert "\x1b[" not in plain + done(tmp_path, "bookings").stdout
    assert lines(coloured) == plain.splitlines()


def test_no_name_or_comment_steers_a_terminal(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": [{"name": "b\x1b[2Job", "date": soon(7200), "comment": "\x9b31m\x07"}]})
    finished = done(tmp_path, "bookings")
    assert not [letter for letter in finished.stdout + finished.stderr if ord(letter) < 32 and letter != "\n"]
