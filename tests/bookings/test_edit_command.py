"""`gpuboard edit`: whatever happens in the editor or beside it, no booking is lost."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import sys
from pathlib import Path

import pytest

from tests.support.board_fixture import Lab
from tests.support.booking_fixtures import ME, Terminal, done, lab_of, log
from tests.support.command_line import ROOT, run_gpuboard

BOB = '{"name": "bob", "date": "2199-01-01", "comment": "bob\'s"}'
TEXT = f"""{{
  // ours
  "atlas": {{
    "0": {BOB},
    "1": {{"name": "eve", "date": "2199-01-01"}},
  }},
}}
"""
COPY = re.compile(r"(/\S+/comments\.json)")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    new_lab = lab_of(tmp_path)
    new_lab.book(TEXT)
    return new_lab


def editor(folder: Path, *lines: str) -> str:
    """A script that edits the file which it is given, as $EDITOR."""
    script = folder / "editor"
    script.write_text("#!/bin/sh\nset -e\n" + "\n".join(lines) + "\n")
    script.chmod(0o755)
    return shlex.quote(str(script))


def text(lab: Lab) -> str:
    return (lab.data / "comments.json").read_text()


def booked_meanwhile(folder: Path, *words: str) -> str:
    """A line of an editor: somebody books while it is open."""
    python = shlex.join([sys.executable, "-m", "site_builder", *words])
    return f"(cd {shlex.quote(str(folder))} && {python} >/dev/null 2>&1 </dev/null)"


def temporary(folder: Path) -> dict[str, str]:
    """Where copies are made."""
    place = folder / "tmp"
    place.mkdir()
    return {"TMPDIR": str(place)}


def test_what_was_edited_is_put_in_place_and_logged_as_what_differs(lab: Lab, tmp_path: Path) -> None:
    (lab.data / "comments.json").chmod(0o664)
    place = temporary(tmp_path)
    finished = done(tmp_path, "edit", EDITOR=editor(tmp_path, 'sed -i s/eve/zoe/ "$1"'), **place)
    assert text(lab) == TEXT.replace("eve", "zoe")
    assert "atlas:1 changed" in finished.stderr
    (line,) = log(lab)
    assert (line["who"], line["what"]) == (ME, "edit")
    assert [[*logged_booking[:2], logged_booking[2]["name"]] for logged_booking in line["before"] + line["after"]] == [
        ["atlas", "1", "eve"],
        ["atlas", "1", "zoe"],
    ]
    assert stat.S_IMODE((lab.data / "comments.json").stat().st_mode) == 0o664
    assert list(Path(place["TMPDIR"]).iterdir()) == []


def test_an_edit_is_undone_like_any_change(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "edit", EDITOR=editor(tmp_path, 'sed -i s/eve/zoe/ "$1"'))
    done(tmp_path, "bookings", "--undo")
    bookings = json.loads(done(tmp_path, "bookings", "--json").stdout)
    assert sorted(booking["name"] for booking in bookings) == ["bob", "eve"]
    assert "// ours" in text(lab)


def test_a_copy_that_is_not_changed_changes_nothing(lab: Lab, tmp_path: Path) -> None:
    place = temporary(tmp_path)
    finished = done(tmp_path, "edit", EDITOR="touch", **place)
    assert finished.stderr == "gpuboard: nothing changed\n"
    assert not (lab.data / "bookings.log").exists()
    assert list(Path(place["TMPDIR"]).iterdir()) == []


def test_the_copy_is_for_nobody_else(lab: Lab, tmp_path: Path) -> None:
    look = 'stat -c %a "$1" "$(dirname "$1")" >&2'
    assert done(tmp_path, "edit", EDITOR=editor(tmp_path, look)).stderr.split()[:2] == ["600", "700"]
    assert text(lab) == TEXT


def test_an_editor_may_have_options_and_visual_comes_first(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "edit", VISUAL="sed -i -e s/eve/zoe/", EDITOR="false")
    assert "zoe" in text(lab)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('s/eve/zoe/; s/2199-01-01"}/soon"}/', 'line 5, atlas, GPU 1: the date "soon" is not a date'),
        ("s/^}$//", "line 8, column 1: a name in double quotes"),
    ],
)
def test_a_copy_with_new_problems_is_not_put_in_place_and_not_lost(
    lab: Lab, tmp_path: Path, change: str, said: str
) -> None:
    finished = run_gpuboard(tmp_path, "edit", EDITOR=f"sed -i -e {shlex.quote(change)}", **temporary(tmp_path))
    assert finished.returncode == 2
    assert said in finished.stderr
    assert text(lab) == TEXT
    copy = COPY.search(finished.stderr)
    assert copy
    assert Path(copy[1]).read_text() != TEXT


def test_problems_that_were_there_before_keep_nobody_from_editing(lab: Lab, tmp_path: Path) -> None:
    lab.book(TEXT.replace('"eve", "date": "2199-01-01"', '"eve", "date": "soon"'))
    done(tmp_path, "edit", EDITOR="sed -i -e '1a // one line more' -e s/bob/zoe/")
    assert "zoe" in text(lab)


def test_a_broken_file_can_be_repaired(lab: Lab, tmp_path: Path) -> None:
    lab.book(TEXT.rstrip().rstrip("}"))
    done(tmp_path, "edit", EDITOR=editor(tmp_path, 'echo "}" >> "$1"'))
    assert len(json.loads(done(tmp_path, "bookings", "--json").stdout)) == 2


@pytest.mark.slow
def test_at_a_terminal_one_goes_back_to_the_same_copy(lab: Lab, tmp_path: Path) -> None:
    first_breaks = 'if grep -q eve "$1"; then sed -i s/eve/[zoe/ "$1"; sed -i "s/}$//" "$1"; else cp ../good "$1"; fi'
    (tmp_path / "good").write_text(TEXT.replace("eve", "zoe"))
    script = editor(tmp_path, first_breaks.replace("../good", str(tmp_path / "good")))
    terminal = Terminal(tmp_path, "edit", EDITOR=script)
    terminal.until("Edit again? [Y/n]")
    terminal.answer("")
    code, output = terminal.end()
    assert (code, "is written" in output) == (0, True)
    assert text(lab) == TEXT.replace("eve", "zoe")


@pytest.mark.parametrize("how", ["kill -9 $$", "exit 3", "no-such-editor"])
def test_an_editor_that_fails_writes_nothing_and_the_copy_stays(lab: Lab, tmp_path: Path, how: str) -> None:
    script = editor(tmp_path, 'sed -i s/eve/zoe/ "$1"', how)
    finished = run_gpuboard(tmp_path, "edit", EDITOR=script, **temporary(tmp_path))
    assert finished.returncode == 2
    assert "the editor (" in finished.stderr
    copy = COPY.search(finished.stderr)
    assert copy
    assert "zoe" in Path(copy[1]).read_text()
    assert text(lab) == TEXT


def test_a_killed_edit_leaves_its_copy_where_it_said(lab: Lab, tmp_path: Path) -> None:
    script = editor(tmp_path, 'sed -i s/eve/zoe/ "$1"', "echo edited", "sleep 10")
    terminal = Terminal(tmp_path, "edit", EDITOR=script, **temporary(tmp_path))
    output = terminal.until("edited\r\n")
    terminal.process.send_signal(signal.SIGKILL)
    terminal.end()
    copy = COPY.search(output)
    assert copy
    assert "zoe" in Path(copy[1]).read_text()
    assert text(lab) == TEXT


# Whoever is killed

WAITS = ("sleep 60 &", "trap 'kill $!; wait; exit 0' TERM", "echo edited", "wait $!")
CHANGES = 'sed -i s/eve/zoe/ "$1"'
# The editor is at work before we know that it has started.
SLOW_START = """
import subprocess, time
start = subprocess.Popen.__init__
def start_slowly(self, *arguments, **options):
    start(self, *arguments, **options)
    time.sleep(2)
subprocess.Popen.__init__ = start_slowly
"""


def edit_until(folder: Path, *lines: str, **environment: str) -> tuple[Terminal, Path]:
    """An edit whose editor has done these lines and waits, and where its copy is."""
    terminal = Terminal(folder, "edit", EDITOR=editor(folder, *lines, *WAITS), **environment)
    copy = COPY.search(terminal.until("edited\r\n"))
    assert copy
    return terminal, Path(copy[1])


def killed(folder: Path, *lines: str, **environment: str) -> Path:
    """The copy of an edit that was killed together with its editor."""
    terminal, copy = edit_until(folder, *lines, **environment)
    os.killpg(terminal.process.pid, signal.SIGKILL)
    terminal.end()
    assert copy.exists()
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_edit_that_is_ended_leaves_no_copy_behind(lab: Lab, tmp_path: Path, number: signal.Signals) -> None:
    terminal, copy = edit_until(tmp_path, **temporary(tmp_path))
    terminal.process.send_signal(number)
    code, _ = terminal.end()
    assert (code, copy.parent.exists(), text(lab)) == (128 + number, False, TEXT)


@pytest.mark.slow
def test_an_edit_that_is_ended_while_its_editor_starts_leaves_no_copy_behind(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_START)
    place = {**temporary(tmp_path), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    terminal, copy = edit_until(tmp_path, **place)
    terminal.process.send_signal(signal.SIGTERM)
    code, _ = terminal.end()
    assert (code, copy.parent.exists(), text(lab)) == (128 + signal.SIGTERM, False, TEXT)


def test_an_edit_that_is_ended_keeps_what_was_edited(lab: Lab, tmp_path: Path) -> None:
    terminal, copy = edit_until(tmp_path, CHANGES, **temporary(tmp_path))
    terminal.process.send_signal(signal.SIGTERM)
    _, output = terminal.end()
    assert f"nothing was written; your version is in {copy}" in output
    assert ("zoe" in copy.read_text(), text(lab)) == (True, TEXT)


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_the_next_edit_removes_the_copy_of_one_that_was_killed_before_anything_was_edited(tmp_path: Path) -> None:
    place = temporary(tmp_path)
    copy = killed(tmp_path, **place)
    finished = done(tmp_path, "edit", EDITOR="true", **place)
    assert (copy.parent.exists(), finished.stderr) == (False, "gpuboard: nothing changed\n")


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("work", [CHANGES, 'echo unsaved > "$(dirname "$1")/.comments.json.swp"'])
def test_what_was_edited_is_named_once_and_removed_a_day_later(tmp_path: Path, work: str) -> None:
    place = temporary(tmp_path)
    copy = killed(tmp_path, work, **place)
    messages = [done(tmp_path, "edit", EDITOR="true", **place).stderr for _ in range(2)]
    assert [str(copy) in message for message in messages] == [True, False]
    assert copy.exists()
    named = copy.with_name(".named")
    os.utime(named, (named.stat().st_mtime - 90000,) * 2)
    done(tmp_path, "edit", EDITOR="true", **place)
    assert not copy.parent.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_the_copy_of_an_editor_that_lives_is_left_alone(tmp_path: Path) -> None:
    place = temporary(tmp_path)
    terminal, copy = edit_until(tmp_path, "trap '' HUP", **place)
    try:
        terminal.process.kill()  # the editor goes on
        terminal.process.wait()
        finished = done(tmp_path, "edit", EDITOR="true", **place)
        assert (copy.exists(), finished.stderr) == (True, "gpuboard: nothing changed\n")
    finally:
        os.killpg(terminal.process.pid, signal.SIGKILL)


@pytest.mark.usefixtures("lab")
def test_folders_that_only_look_like_ours_are_left_alone(tmp_path: Path) -> None:
    place = temporary(tmp_path)
    (tmp_path / "target").mkdir(0o700)
    (tmp_path / "tmp/gpuboard-edit-link").symlink_to(tmp_path / "target")
    (tmp_path / "tmp/gpuboard-edit-open").mkdir(0o777)
    (tmp_path / "tmp/gpuboard-edit-open").chmod(0o777)
    (tmp_path / "tmp/gpuboard-edit-file").touch()
    done(tmp_path, "edit", EDITOR="true", **place)
    assert len(list((tmp_path / "tmp").iterdir())) == 3


# While somebody else books


def test_what_others_book_meanwhile_stays(lab: Lab, tmp_path: Path) -> None:
    meanwhile = booked_meanwhile(tmp_path, "book", "zeus", "--for", "1h", "--name", "dana")
    done(tmp_path, "edit", EDITOR=editor(tmp_path, meanwhile, 'sed -i s/eve/zoe/ "$1"'))
    bookings = json.loads(done(tmp_path, "bookings", "--json").stdout)
    assert sorted(booking["name"] for booking in bookings) == ["bob", "dana", "zoe"]
    assert "// ours" in text(lab)
    assert [line["what"] for line in log(lab)] == ["book", "edit"]
    assert [booking[2]["name"] for booking in log(lab)[1]["before"] + log(lab)[1]["after"]] == ["eve", "zoe"]


@pytest.mark.slow
def test_what_others_release_meanwhile_is_gone(lab: Lab, tmp_path: Path) -> None:
    lab.book(TEXT.replace('"name": "bob"', f'"from": "2198-01-01", "id": "ours", "name": "{ME}"'))
    meanwhile = booked_meanwhile(tmp_path, "release", "ours", "--yes")
    done(tmp_path, "edit", EDITOR=editor(tmp_path, meanwhile, 'sed -i s/eve/zoe/ "$1"'))
    assert [booking["name"] for booking in json.loads(done(tmp_path, "bookings", "--json").stdout)] == ["zoe"]


def test_remarks_that_others_write_meanwhile_stay(lab: Lab, tmp_path: Path) -> None:
    meanwhile = f"sed -i 's/ours/theirs/' {shlex.quote(str(lab.data / 'comments.json'))}"
    done(tmp_path, "edit", EDITOR=editor(tmp_path, meanwhile, 'sed -i s/eve/zoe/ "$1"'))
    assert ("// theirs" in text(lab), "zoe" in text(lab), "eve" in text(lab)) == (True, True, False)


def test_a_booking_that_both_changed_is_refused_by_its_place_and_the_copy_stays(lab: Lab, tmp_path: Path) -> None:
    meanwhile = f"sed -i s/eve/dana/ {shlex.quote(str(lab.data / 'comments.json'))}"
    script = editor(tmp_path, meanwhile, 'sed -i s/eve/zoe/ "$1"')
    finished = run_gpuboard(tmp_path, "edit", EDITOR=script, **temporary(tmp_path))
    assert finished.returncode == 1
    assert "the booking of atlas:1 was changed by you and by somebody else at the same time" in finished.stderr
    copy = COPY.search(finished.stderr)
    assert copy
    assert "zoe" in Path(copy[1]).read_text()
    assert text(lab) == TEXT.replace("eve", "dana")


def test_the_same_change_by_both_is_no_conflict(lab: Lab, tmp_path: Path) -> None:
    meanwhile = f"sed -i s/eve/zoe/ {shlex.quote(str(lab.data / 'comments.json'))}"
    done(tmp_path, "edit", EDITOR=editor(tmp_path, meanwhile, 'sed -i s/eve/zoe/ "$1"'))
    assert text(lab) == TEXT.replace("eve", "zoe")


@pytest.mark.slow
def test_no_gpu_is_booked_twice_by_two_edits_at_once(lab: Lab, tmp_path: Path) -> None:
    meanwhile = booked_meanwhile(tmp_path, "book", "zeus:0", "--for", "1h", "--name", "dana")
    mine = '"zeus": {"0": {"name": "me", "date": "2199-01-01"}},'
    script = editor(tmp_path, meanwhile, f"""sed -i '2a {mine}' "$1" """)
    finished = run_gpuboard(tmp_path, "edit", EDITOR=script, **temporary(tmp_path))
    assert finished.returncode == 1
    assert "zeus:0 is booked by dana" in finished.stderr
    assert '"me"' not in text(lab)


def test_a_board_elsewhere_cannot_be_edited_from_here(lab: Lab, tmp_path: Path) -> None:
    finished = run_gpuboard(tmp_path, "edit", "--url", "http://127.0.0.1:9/")
    assert finished.returncode == 2
    assert "gpuboard change ID" in finished.stderr
    assert text(lab) == TEXT
