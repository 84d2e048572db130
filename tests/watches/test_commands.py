"""`gpuboard notify` on a data folder, over HTTP with a token, and with open booking."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.support.board_fixture import Lab
from tests.support.booking_fixtures import ME, Terminal, done, lab_of, served
from tests.support.command_line import run_gpuboard

MAIL = {
    "GPUBOARD_MAIL": "mailto://user:verysecret@127.0.0.1:1",
    "GPUBOARD_MAIL_DOMAIN": "lab.example.org",
    "GPUBOARD_CONTACTS": "contacts.csv",
}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    contacts = tmp_path / "contacts.csv"
    contacts.write_text(f"{ME},me@lab.example.org\n")  # root@ is no person's mailbox
    contacts.chmod(0o600)
    return lab_of(tmp_path)


def test_me_list_and_stop_on_the_data_folder(lab: Lab, tmp_path: Path) -> None:
    finished = done(tmp_path, "notify", "me", "--when", "three H100s", "--via", "mail", **MAIL)
    made = finished.stdout.strip()
    assert (
        f"gpuboard: watch {made}: we will notify {ME} by mail when there are 3 H100 free on one host, until "
        in finished.stderr
    )
    assert "verysecret" not in (lab.data / "watches.json").read_text()
    listed_lines = done(tmp_path, "notify", "list", **MAIL).stdout.splitlines()
    assert listed_lines[0].split() == ["ID", "BY", "UNTIL", "WHEN"]
    assert listed_lines[1].startswith(f"{made}  mail  ")
    assert listed_lines[1].endswith("  3 H100 free on one host")
    assert max(map(len, listed_lines)) <= 80
    (watch_entry,) = json.loads(done(tmp_path, "notify", "list", "--json", **MAIL).stdout)
    assert (watch_entry["id"], watch_entry["name"], watch_entry["mine"]) == (made, ME, True)
    finished = done(tmp_path, "notify", "stop", made, **MAIL)
    assert finished.stderr == f"gpuboard: we will no longer notify {ME} of 3 H100 free on one host\n"
    assert done(tmp_path, "notify", "list", **MAIL).stderr == "gpuboard: you have no notifications\n"


def test_an_admin_sees_names_and_an_unreadable_file_is_reported(lab: Lab, tmp_path: Path) -> None:
    file = lab.data / "watches.json"
    times = {"made": datetime.now(timezone.utc).isoformat(), "until": "2199-01-01T00:00:00+00:00"}
    file.write_text(json.dumps([{"id": "k7m2xp", "name": "bob", "when": "1 GPU", **times}]))
    listed_lines = done(tmp_path, "notify", "list", GPUBOARD_ADMINS=ME, **MAIL).stdout.splitlines()
    assert [line.split()[:2] for line in listed_lines] == [["ID", "WHO"], ["k7m2xp", "bob"]]
    file.unlink()
    file.mkdir()
    finished = done(tmp_path, "notify", "list", **MAIL)
    assert f"{file.name} cannot be read: " in finished.stderr
    assert "nothing" not in finished.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["me"], 2, 'gpuboard notify me --when "2 A100 free on one host" --via mail'),
        (["me", "--when", "blue car"], 2, '"blue car" is not understood at "blue": write "2 A100 free on one host"'),
        (["me", "--when", "1 GPU on atlass"], 1, "no host atlass; did you mean atlas?"),
        (["me", "--when", "1 GPU", "--until", "8w"], 2, "a notification can wait 30 days at most"),
        (["stop"], 2, "which notification? Give its id"),
        (["stop", "nosuch"], 1, "no notification nosuch of yours: list them with `gpuboard notify list`"),
    ],
)
def test_errors_are_one_sentence(lab: Lab, tmp_path: Path, words: list[str], code: int, said: str) -> None:
    finished = run_gpuboard(tmp_path, "notify", *words, **MAIL)
    assert (finished.returncode, finished.stdout) == (code, "")
    assert said in finished.stderr
    assert not (lab.data / "watches.json").exists()


@pytest.mark.slow
def test_a_terminal_asks_for_confirmation(lab: Lab, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "notify", "me", "--when", "9 A100", **MAIL)
    assert f"we will notify {ME} when there are 9 A100 free on one host, until " in terminal.until("Notify you?")
    terminal.answer("n")
    assert terminal.end()[0] == 1
    assert not (lab.data / "watches.json").exists()


def test_without_receivers_a_local_watch_is_made_with_a_note(lab: Lab, tmp_path: Path) -> None:
    finished = done(tmp_path, "notify", "me", "--when", "2 GPUs")
    assert "note: this board may not send notifications: the settings on this machine do not show it" in finished.stderr
    assert (lab.data / "watches.json").exists()
    (lab.data / "watches.json").write_text('[{"id": 1}]')
    assert "watches.json: watch 1: it has no id of letters and digits" in done(tmp_path, "notify", "list").stderr


@pytest.mark.slow
def test_over_http_a_token_names_the_user(lab: Lab, tmp_path: Path) -> None:
    alice = done(tmp_path, "token", "alice").stdout.strip()
    bob = done(tmp_path, "token", "bob").stdout.strip()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with served(lab, **MAIL) as url:
        mine = {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": alice}
        finished = done(elsewhere, "notify", "me", "--when", "9 H100", **mine)
        made = finished.stdout.strip()
        assert "we will notify alice when there are 9 H100 free on one host, until " in finished.stderr
        assert done(elsewhere, "notify", "list", **mine).stdout.splitlines()[1].startswith(made)
        finished = run_gpuboard(elsewhere, "notify", "stop", made, **{**mine, "GPUBOARD_TOKEN": bob})
        assert (finished.returncode, finished.stderr.count(f"no notification {made} of yours")) == (1, 1)
        finished = run_gpuboard(elsewhere, "notify", "list", GPUBOARD_URL=url)
        assert (finished.returncode, finished.stdout) == (2, "")
        assert (
            "the board does not know who you are: ask its admin for a token, and set GPUBOARD_TOKEN to it"
            in finished.stderr
        )
        assert "we will no longer notify " in done(elsewhere, "notify", "stop", made, **mine).stderr


@pytest.mark.slow
def test_with_open_booking_the_local_user_name_counts(lab: Lab, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with served(lab, GPUBOARD_BOOK_OPEN="yes", **MAIL) as url:
        made = done(elsewhere, "notify", "me", "--when", "9 H100", GPUBOARD_URL=url).stdout.strip()
        (watch_entry,) = json.loads((lab.data / "watches.json").read_bytes())
        assert (watch_entry["id"], watch_entry["name"]) == (made, ME)
        assert done(elsewhere, "notify", "list", GPUBOARD_URL=url).stdout.splitlines()[1].startswith(made)
        done(elsewhere, "notify", "stop", made, GPUBOARD_URL=url)
        assert json.loads((lab.data / "watches.json").read_bytes()) == []
