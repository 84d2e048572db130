"""The manual page: made of the commands' own help, and right in the eyes of those who print it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from site_builder.config import commands as config_commands
from site_builder.config.schema import SETTINGS
from tests.support.browser import missing
from tests.support.docs import ALL_COMMANDS, ROOT, help_of

PAGE = ROOT / "docs/gpuboard.1"
UPDATE = bool(os.environ.get("GPUBOARD_UPDATE_GOLDEN"))
NASTY = ".dot 'quote' \\back -- --dash \"double\" `tick` ^~ …"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """A program, with what it says on both streams."""
    path = shutil.which(command[0]) or missing(f"{command[0]} is not here; ./install.sh test installs it")
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat", "MAN_KEEP_FORMATTING": ""}
    return subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False, env=environment)


def plain(printed: str) -> str:
    """The words of a page, each with one blank between, whatever was bold."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|.\x08", "", printed).split())


def test_the_manual_page_is_made_of_the_help() -> None:
    command = [
        sys.executable,
        "-m",
        "site_builder.config.commands",
    ]  # on its own: click keeps what another test asked a command
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if UPDATE:
        PAGE.write_text(made)
    assert PAGE.read_text() == made


def test_mandoc_has_nothing_to_say_against_it() -> None:
    done = run("mandoc", "-Tlint", "-W", "warning", str(PAGE))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_man_prints_it_without_a_warning() -> None:
    done = run("man", "--warnings", "-l", str(PAGE))
    assert (done.returncode, done.stderr) == (0, "")
    assert "GPUBOARD(1)" in done.stdout


@pytest.fixture(scope="module")
def printed() -> str:
    """The page as a person reads it."""
    return plain(run("mandoc", "-Tutf8", "-O", "width=400", str(PAGE)).stdout)


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_the_page_has_every_command_with_all_of_its_options(name: str, printed: str) -> None:
    told = help_of(f"gpuboard {name}")
    flags = re.findall(r"^  (-.+?)(?:  |$)", told.partition("\nOptions:\n")[2], re.MULTILINE)
    part = printed.partition(plain(told.partition("\n\n")[0].removeprefix("Usage: ")))[2]
    assert flags
    assert [flag for flag in flags if f" {flag} " not in part] == []


def test_the_page_has_every_setting_and_the_exit_codes(printed: str) -> None:
    assert [one.name for one in SETTINGS if f" {one.name} " not in printed] == []
    for code in (0, 1, 2):
        assert f" {code} " in printed.partition("EXIT STATUS")[2].partition("ENVIRONMENT")[0]


def test_what_people_copy_from_the_page_is_what_they_must_type(printed: str) -> None:
    assert 'gpuboard book atlas:0,1 --until "fri 18:00" --comment "ICML run"' in printed
    assert 'eval "$(gpuboard completion bash)"' in printed


def test_no_letter_of_a_help_is_taken_for_roff(tmp_path: Path) -> None:
    @click.group(help=f"{NASTY}\n\n\b\n{NASTY}\n.SH no\n'br")
    def group() -> None:
        """Taken from above."""

    page = tmp_path / "nasty.1"
    page.write_text(config_commands.render_manpage(group))
    assert run("mandoc", "-Tlint", "-W", "warning", str(page)).stdout == ""
    for command in (["mandoc", "-Tutf8"], ["man", "--warnings", "-l"]):
        words = plain(run(*command, str(page)).stdout)
        assert words.count(NASTY) == 2
        assert f"{NASTY} .SH no 'br" in words
