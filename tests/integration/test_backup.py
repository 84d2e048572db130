"""docs/backup.md: its commands, as they stand there, on the board of a simulated lab."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from site_builder.history import block_format
from tests.support.docs import ROOT, commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = "docs/backup.md"
PERSON = "alice"


class Board:
    """A board in ~/gpuboard of a home of its own, whose `gpuboard` is the one that is tested."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "gpuboard"
        for name in (".ssh", "bin", ".config/gpuboard"):
            (home / name).mkdir(parents=True)
        (home / ".ssh/authorized_keys").write_text("restrict ssh-ed25519 AAAA gpuboard gpu1\n")
        self.conf = home / ".config/gpuboard/gpuboard.conf"
        self.conf.write_text(
            "".join(f"GPUBOARD_{name.upper()}={self.folder / name}\n" for name in ("data", "www", "state"))
        )
        program = home / "bin/gpuboard"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m site_builder "$@"\n')
        program.chmod(0o755)
        self.type("gpuboard demo --once --hosts 2 --folder gpuboard", home)

    def type(self, line: str, folder: Path | None = None) -> str:
        line = line.replace("~/.local/share/gpuboard/venv/bin/python", sys.executable).replace("~/clone", str(ROOT))
        environment = {
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
        }
        done = subprocess.run(
            ["/bin/sh", "-euc", line],
            cwd=folder or self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def hours(self) -> dict[str, Any]:
        rows = json.loads(self.type("gpuboard stats --json"))["rows"]
        return {row["name"]: (row["used"], row["booked"]) for row in rows}

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def files_that_name(self, person: str) -> list[str]:
        assets = self.folder / "www/assets"  # our own scripts have examples with names
        paths = [path for path in self.folder.rglob("*") if path.is_file() and assets not in path.parents]
        return [str(path.relative_to(self.folder)) for path in paths if person.encode() in path.read_bytes()]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "home")


def lines_of(part: str) -> list[str]:
    """The commands under a heading of the page."""
    text = (ROOT / PAGE).read_text().split(f"## {part}\n")[1].split("\n## ")[0]
    return [line for line in commands(PAGE) if line in text]


def test_what_was_lost_is_there_again(board: Board) -> None:
    board.type(f"gpuboard token {PERSON}")
    names = ("data/comments.json", "data/hosts.txt", "data/aliases.csv", "state/tokens.json", "state/memory.json")
    before, hours = {name: board.read(name) for name in names}, board.hours()
    assert PERSON in hours
    for line in lines_of("Backup"):
        board.type(line)
    assert (board.home / "backup").stat().st_mode & 0o777 == 0o700
    shutil.rmtree(board.folder)
    board.folder.mkdir()
    board.conf.unlink()
    for line in lines_of("Restore"):
        if line != "gpuboard doctor":
            board.type(line)
    assert {name: board.read(name) for name in names} == before
    assert board.hours() == hours
    assert [(board.folder / name).stat().st_mode & 0o777 for name in ("state", "state/history.db")] == [0o700, 0o600]
    assert board.type("gpuboard config").startswith(f"# {board.conf}")
    board.type("gpuboard build")


def test_nothing_names_a_person_who_was_removed(board: Board) -> None:
    board.type(f"gpuboard token {PERSON}")
    for host in [path.name for path in (board.folder / "data").iterdir() if path.is_dir()]:
        shutil.rmtree(board.folder / "data" / host)  # their processes have ended
        board.type(f"gpuboard forget {host} || true")
    (board.folder / "data/aliases.csv").write_text("")
    board.type("gpuboard build")
    hours = board.hours()
    assert hours[PERSON][0] > 0
    (board.folder / "data/bookings.log").write_text(json.dumps({"who": PERSON}) + "\n")
    (board.folder / "state/bookings-past.jsonl").write_text(json.dumps({"entry": {"name": PERSON}}) + "\n")
    for line in lines_of("Removing a person's data"):
        board.type(line)
    assert board.hours() == {("former member 1" if name == PERSON else name): row for name, row in hours.items()}
    assert PERSON not in board.type("gpuboard export --since 30d --csv")
    with sqlite3.connect(board.folder / "state/history.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        blocks = connection.execute("SELECT block FROM minute UNION ALL SELECT block FROM chunk").fetchall()
        words = [str(block_format.unpack_block(block)[0]) for (block,) in blocks]
        assert not [text for text in words if PERSON in text or f"{PERSON.title()} " in text]
        assert any("former member 1" in text for text in words)
    assert "former member 1" in board.read("data/bookings.log") + board.read("state/bookings-past.jsonl")
    assert board.files_that_name(PERSON) == []


def test_a_name_of_a_host_or_of_nobody_is_refused(board: Board) -> None:
    host = next(path.name for path in (board.folder / "data").iterdir() if path.is_dir())
    script = f"{sys.executable} {ROOT / 'docs/remove_person.py'}"
    refused = board.type(f"{script} {host} 2>&1 || echo refused")
    assert refused == f"{host}: this is the name of a host or model too\nrefused\n"
    refused = board.type(f"{script} somebody-else 2>&1 || echo refused")
    assert refused == "nothing names somebody-else\nrefused\n"
