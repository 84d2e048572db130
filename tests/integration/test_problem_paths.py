"""What www/ says of files that are missing, damaged or closed: never where they stand on the web host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from site_builder.board.pages import hide_page_problem_details
from site_builder.core.formatting import hide_paths
from site_builder.core.model import AlertSettings, Problem
from tests.support.board_fixture import Lab, gpu
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.missing import missing

RULES = "[host-down]\ndelay = 5m\n"
OVER = '{"atlas": {"0": {"name": "alice", "date": "2020-01-01 12:00"}}}'


class Board:
    """A built board with a file of each kind, alerts and hooks, by settings with absolute paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lab = lab = Lab(folder / "lab")
        lab.state.chmod(0o700)
        lab.host("atlas")
        lab.host("hydra", gpus=gpu(0, uuid="GPU-7"))
        self.conf = folder / "conf"
        (self.conf / "hooks").mkdir(parents=True)
        hook = self.conf / "hooks/tell"
        hook.write_text(f"#!/bin/sh\necho no such file: {folder}/secret >&2\nexit 1\n")
        hook.chmod(0o700)
        self.files = {
            lab.data / "comments.json": OVER,
            lab.data / "hosts.txt": "atlas\nhydra\n",
            lab.data / "aliases.csv": "ann,alice\n",
            lab.data / "gpu-names.csv": "NVIDIA A100-SXM4-80GB,A100\n",
            lab.data / "watches.json": "[]",
            self.conf / "alerts.conf": RULES,
            self.conf / "contacts.csv": "alice,alice@lab.org\n",
        }
        for path, content in self.files.items():
            path.write_text(content)
            path.chmod(0o600)
        settings = {
            "DATA": lab.data,
            "WWW": lab.www,
            "STATE": lab.state,
            "ALERTS": self.conf / "alerts.conf",
            "CONTACTS": self.conf / "contacts.csv",
            "HOOKS": self.conf / "hooks",
        }
        self.environment = {f"GPUBOARD_{name}": str(path) for name, path in settings.items()}
        assert run_gpuboard(folder, "build", **self.environment).returncode == 0

    def build(self) -> None:
        """Build once, as a user who may not read everything."""
        command = [sys.executable, "-m", "site_builder", "build"]
        if os.geteuid() == 0:
            rights = "-dac_override,-dac_read_search"
            setpriv = shutil.which("setpriv") or missing("root reads everything, and setpriv is not here")
            command = [setpriv, "--bounding-set", rights, "--inh-caps", rights, *command]
        variables = clean_environment(**self.environment)
        result = subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True, check=False)
        assert "Traceback" not in result.stderr, result.stderr
        self.said = result.stderr

    def all_files(self) -> list[Path]:
        """Every file that a builder reads, but for those that it makes anew without a word."""
        state = [path for path in self.lab.state.rglob("*") if path.is_file() and "lock" not in path.name]
        hosts = [path for path in self.lab.data.glob("*/*") if path.is_file()]
        return [*self.files, *state, *hosts]

    def problems(self) -> list[str]:
        """What the page says is wrong."""
        return [f"{problem['where']}: {problem['what']}" for problem in self.lab.status()["problems"]]

    def assert_hidden(self) -> None:
        """No file of the site names a folder of this machine, however it is written."""
        places = {str(place) for place in (self.folder, *self.folder.parents, Path.home())} - {"/"}
        forms = {form for place in places for form in (place, place.replace("/", "&#47;"), place.replace("/", "\\/"))}
        for path in self.lab.www.rglob("*"):
            text = path.read_text(errors="replace").replace("…/", "") if path.is_file() else ""
            for form in forms:
                assert form not in text, (path, form, [line for line in text.splitlines() if form in line][:3])


def remove(path: Path) -> None:
    path.unlink()


def close(path: Path) -> None:
    path.chmod(0)


def damage(path: Path) -> None:
    path.write_bytes(b"\xff{[<nonsense\x00" * 100)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path) -> None:
    target = path.with_name(f"{path.name}.elsewhere")
    path.rename(target)
    path.symlink_to(target)


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize(
    "harm",
    [remove, close, damage, empty, replace_by_folder, replace_by_link, open_to_all],
    ids=lambda harm: harm.__name__,
)
def test_no_harm_to_files_puts_a_path_on_the_page(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    board = Board(tmp_path)
    for path in board.all_files():
        harm(path)
    board.build()
    board.assert_hidden()
    (board.lab.data / "vulcan").mkdir()  # the problems of a second builder, and one host that is whole
    board.lab.host("vulcan", gpus=gpu(0, uuid="GPU-9"))
    board.build()
    board.assert_hidden()
    assert board.problems(), board.said


@pytest.mark.parametrize("closed", ["data/atlas", "state", "conf", "conf/hooks", "data/comments.json"])
def test_no_closed_folder_puts_a_path_on_the_page(tmp_path: Path, closed: str) -> None:
    board = Board(tmp_path)
    place = tmp_path / closed if closed.startswith("conf") else board.lab.data.parent / closed
    before = place.stat().st_mode
    place.chmod(0o500 if closed == "state" else 0)
    try:
        board.build()
    finally:
        place.chmod(before)
    board.assert_hidden()


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_folders_of_hooks_that_others_may_write_are_not_named_by_their_path(tmp_path: Path, mode: int) -> None:
    board = Board(tmp_path)
    tmp_path.chmod(mode)
    board.build()
    assert [problem for problem in board.problems() if "its parent folder, can be written by users other" in problem]
    board.assert_hidden()


def test_the_log_of_the_builder_still_names_the_whole_path(tmp_path: Path) -> None:
    board = Board(tmp_path)
    damage(board.lab.state / "alerts.json")
    board.build()
    assert "alerts: state/alerts.json is damaged" in "\n".join(board.problems())
    assert f"alerts: {board.lab.state}/alerts.json is damaged" in (board.lab.state / "build.log").read_text()


def test_folders_and_files_of_the_settings_have_their_names(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "my lab")
    alerts = AlertSettings(
        rules_file="/etc/gpuboard/alerts.conf", contacts_file="/etc/gpuboard/contacts", hooks_folder=Path("/opt/hooks")
    )
    settings = lab.settings(alerts=alerts)
    sentences = {
        f"{lab.data}/comments.json cannot be written": "data/comments.json cannot be written",
        f"[Errno 13] Permission denied: '{lab.state}/x.json'": "[Errno 13] Permission denied: 'state/x.json'",
        f"{lab.data}: closed": "data: closed",
        f"{lab.data}-old/x is closed": "…/my lab/data-old/x is closed",
        f"/mnt{lab.state.parent.parent}/x is closed": "…/x is closed",
        "chmod 600 /etc/gpuboard/contacts": "chmod 600 GPUBOARD_CONTACTS",
        "/opt/hooks/tell failed; /opt is open": "GPUBOARD_HOOKS/tell failed; …/opt is open",
        "see https://lab.org/a/b, consul://127.0.0.1:8500/gpuboard or 3/4": None,
        "/, its parent folder, is open": None,
    }
    for sentence, expected in sentences.items():
        shown = hide_page_problem_details([Problem(sentence, sentence)], settings)
        assert shown == [Problem(expected or sentence, expected or sentence)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/x", "…/x"),
        ("('/srv/a/b')", "('…/b')"),
        ("at /srv/a/: no", "at …/a/: no"),
        ("path=/srv/a", "path=…/a"),
        ("a:/srv/b", "a:…/b"),
        ("http://a/b/c", "http://a/b/c"),
        ("50 MiB/s, 1/2, and/or", "50 MiB/s, 1/2, and/or"),
        ("~/.config/x and data/x", "~/.config/x and data/x"),
    ],
)
def test_any_other_path_is_cut_to_its_last_part(text: str, shown: str) -> None:
    assert hide_paths(text) == shown
