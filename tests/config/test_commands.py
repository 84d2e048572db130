"""`gpuboard completion`: what TAB offers in bash, zsh and fish; and the manual page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from site_builder.cli import COMMANDS
from site_builder.config.schema import SETTINGS
from tests.support.board_fixture import GPU_COLUMNS, Lab, gpu
from tests.support.docs import ALL_COMMANDS, ROOT, help_of
from tests.support.manual_page import render_manpage
from tests.support.missing import missing
from tests.support.pace import children, within
from tests.support.shells import Offered, Terminal, fish, home, program

SHELLS = ("bash", pytest.param("zsh", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home, with a data folder of three hosts, a settings file and some folders."""
    place = tmp_path_factory.mktemp("home")
    lab = Lab(place)
    for host, count in (("atlas", 3), ("hydra", 2), ("hyper", 1)):
        lab.host(host, "".join(gpu(index) for index in range(count)))
    (lab.data / "old1_gpus.csv").write_text("0, GPU-old, Tesla P100, 10, 16280, 3, 2, 40, 2026/11/16 12:00:00.000\n")
    for name in ("spare", "spade"):
        (place / name).mkdir()
    (place / "spoken.conf").write_text("")
    return place


@pytest.fixture(scope="module", params=SHELLS)
def terminal(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    """A shell in that home that was told of it by the line of the help."""
    shell = Terminal(request.param, folder, f'eval "$(gpuboard completion {request.param})"')
    yield shell
    shell.close()


def same(offered: Offered, line: str) -> bool:
    """Whether the line is that one, with or without the blank that some shells put behind it."""
    return offered.line.rstrip() == line


@pytest.mark.slow
def test_tab_completes_a_command(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard tok"), "gpuboard token")


@pytest.mark.slow
def test_tab_completes_a_command_of_a_command_and_its_host(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard alerts sil"), "gpuboard alerts silence")
    assert same(terminal.tab("gpuboard alerts silence at"), "gpuboard alerts silence atlas")


def test_tab_lists_the_commands(terminal: Terminal) -> None:
    assert {*COMMANDS} <= terminal.tab("gpuboard ").words


@pytest.mark.slow
def test_tab_lists_the_commands_that_begin_so(terminal: Terminal) -> None:
    offered = terminal.tab("gpuboard b")
    assert {"book", "bookings", "build"} <= offered.words
    assert "serve" not in offered.words


@pytest.mark.slow
def test_tab_completes_options_of_the_command(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard build --ev"), "gpuboard build --every")
    assert {"--until", "--undo"} & terminal.tab("gpuboard book --u").words == {"--until"}


@pytest.mark.slow
def test_tab_knows_the_shells(terminal: Terminal) -> None:
    assert {"bash", "zsh", "fish"} <= terminal.tab("gpuboard completion ").words


@pytest.mark.slow
def test_tab_completes_a_host(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard forget at"), "gpuboard forget atlas")
    offered = terminal.tab("gpuboard bookings hy")
    assert {"hydra", "hyper"} <= offered.words
    assert "atlas" not in offered.words


@pytest.mark.slow
def test_tab_knows_hosts_of_the_original_scripts(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard forget ol"), "gpuboard forget old1")


@pytest.mark.slow
def test_tab_offers_the_gpus_of_the_only_host_that_is_left(terminal: Terminal) -> None:
    offered = terminal.tab("gpuboard book hyd")
    assert same(offered, "gpuboard book hydra")
    assert {"hydra", "hydra:0", "hydra:1"} <= offered.words


@pytest.mark.slow
def test_tab_completes_gpus_behind_the_colon(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard book hyper:"), "gpuboard book hyper:0")
    assert same(terminal.tab("gpuboard release atlas:0,1,"), "gpuboard release atlas:0,1,2")
    assert same(terminal.tab("gpuboard book hydra:0 atlas:2,0,"), "gpuboard book hydra:0 atlas:2,0,1")


@pytest.mark.slow
def test_tab_leaves_a_gpu_that_is_typed_already(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard book atlas:0,1"), "gpuboard book atlas:0,1")
    assert same(terminal.tab("gpuboard book atlas:7"), "gpuboard book atlas:7")


@pytest.mark.slow
def test_tab_offers_folders_where_a_folder_is_wanted(terminal: Terminal) -> None:
    offered = terminal.tab("gpuboard build --data sp")
    assert {"spare/", "spade/"} <= offered.words
    assert "spoken.conf" not in offered.words
    assert same(terminal.tab("gpuboard build --data spar"), "gpuboard build --data spare/")
    assert same(terminal.tab("gpuboard build --data=spar"), "gpuboard build --data=spare/")


@pytest.mark.slow
def test_tab_offers_files_where_a_file_is_wanted(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard config --conf spo"), "gpuboard config --conf spoken.conf")


@pytest.mark.slow
def test_tab_looks_into_the_folder_that_the_line_names(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard forget --data spare at"), "gpuboard forget --data spare at")


@pytest.mark.slow
def test_tab_offers_nothing_where_nothing_is_known(terminal: Terminal) -> None:
    assert same(terminal.tab("gpuboard change k7"), "gpuboard change k7")
    assert same(terminal.tab("gpuboard nonsense sp"), "gpuboard nonsense sp")


# fish, which says itself what TAB would offer


def words(lines: list[str]) -> list[str]:
    """Without the help beside each."""
    return [line.partition("\t")[0] for line in lines]


@pytest.mark.slow
def test_fish_offers_commands_with_their_help(folder: Path) -> None:
    assert sorted(words(fish(folder, "gpuboard "))) == sorted(COMMANDS)
    assert fish(folder, "gpuboard tok") == ["token\tCreate a booking token for NAME, and print..."]


@pytest.mark.slow
def test_fish_offers_options_shells_hosts_and_gpus(folder: Path) -> None:
    assert words(fish(folder, "gpuboard build --ev")) == ["--every"]
    assert sorted(words(fish(folder, "gpuboard completion "))) == ["bash", "fish", "zsh"]
    assert words(fish(folder, "gpuboard bookings hy")) == ["hydra", "hyper"]
    assert words(fish(folder, "gpuboard book hyd")) == ["hydra", "hydra:0", "hydra:1"]
    assert words(fish(folder, "gpuboard book atlas:0,")) == ["atlas:0,1", "atlas:0,2"]


@pytest.mark.slow
def test_fish_offers_folders_and_files_where_they_are_wanted(folder: Path) -> None:
    assert words(fish(folder, "gpuboard build --data sp")) == ["spade/", "spare/"]
    assert words(fish(folder, "gpuboard build --data=sp")) == ["--data=spade/", "--data=spare/"]
    assert "spoken.conf" in words(fish(folder, "gpuboard config --conf spo"))
    assert words(fish(folder, "gpuboard forget sp")) == []


# Where the files of ./install.sh web lie, and how long it takes


@pytest.mark.slow
def test_bash_completion_finds_the_script_by_itself(folder: Path) -> None:
    base = Path("/usr/share/bash-completion/bash_completion")
    place = folder / ".local/share/bash-completion/completions"
    place.mkdir(parents=True)
    put(folder, "bash", place / "gpuboard")
    shell = Terminal("bash", folder, f". {base}")
    try:
        assert same(shell.tab("gpuboard tok"), "gpuboard token")
        assert same(shell.tab("gpuboard book hyper:"), "gpuboard book hyper:0")
    finally:
        shell.close()


@pytest.mark.slow
def test_zsh_finds_the_script_in_a_folder_of_its_functions(folder: Path) -> None:
    (folder / "functions").mkdir()
    put(folder, "zsh", folder / "functions/_gpuboard")
    shell = Terminal("zsh", folder, "fpath=(~/functions $fpath); compinit -D -u")
    try:
        assert same(shell.tab("gpuboard tok"), "gpuboard token")
        assert same(shell.tab("gpuboard zzz"), "gpuboard zzz")
    finally:
        shell.close()


@pytest.mark.slow
def test_fish_finds_the_script_by_itself(folder: Path) -> None:
    place = folder / ".config/fish/completions"
    place.mkdir(parents=True)
    put(folder, "fish", place / "gpuboard.fish")
    command = [program("fish"), "-c", "complete -C 'gpuboard tok'"]
    done = subprocess.run(command, cwd=folder, env=home(folder), capture_output=True, text=True, check=True)
    assert words(done.stdout.splitlines()) == ["token"]


def put(folder: Path, shell: str, place: Path) -> None:
    """The script, in a file."""
    command = [str(folder / "bin/gpuboard"), "completion", shell]
    place.write_bytes(subprocess.run(command, env=home(folder), stdout=subprocess.PIPE, check=True).stdout)


@pytest.fixture(scope="module")
def folder_of_1000_hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hosts")
    lab = Lab(place)
    for number in range(1000):
        lab.write(f"gpu{number}", "gpus.csv", f"{GPU_COLUMNS}\n{gpu()}")
    return place


@pytest.mark.slow
@pytest.mark.parametrize("line", ["gpuboard ", "gpuboard book gpu1", "gpuboard book gpu77:", "gpuboard build --d"])
def test_an_answer_to_tab_takes_little_time(line: str, folder_of_1000_hosts: Path) -> None:
    environment = {**home(folder_of_1000_hosts), "_GPUBOARD_LINE": line, "_GPUBOARD_COMPLETE": "bash_complete"}
    command = [str(folder_of_1000_hosts / "bin/gpuboard")]
    with within(1, children):
        done = subprocess.run(command, cwd=folder_of_1000_hosts, env=environment, capture_output=True, check=True)
    assert done.stdout.startswith(b"plain\t")


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


@pytest.mark.slow
def test_manual_page_is_generated_from_the_help() -> None:
    # on its own: click keeps what another test asked a command
    command = [sys.executable, "-m", "tests.support.manual_page"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if UPDATE:
        PAGE.write_text(made)
    assert PAGE.read_text() == made


def test_mandoc_accepts_the_manual_page() -> None:
    done = run("mandoc", "-Tlint", "-W", "warning", str(PAGE))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_man_prints_the_manual_page_without_a_warning() -> None:
    done = run("man", "--warnings", "-l", str(PAGE))
    assert (done.returncode, done.stderr) == (0, "")
    assert "GPUBOARD(1)" in done.stdout


@pytest.fixture(scope="module")
def printed() -> str:
    """The page as a person reads it."""
    return plain(run("mandoc", "-Tutf8", "-O", "width=400", str(PAGE)).stdout)


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_the_page_has_every_command_with_all_of_its_options(name: str, printed: str) -> None:
    help_text = help_of(f"gpuboard {name}")
    flags = re.findall(r"^  (-.+?)(?:  |$)", help_text.partition("\nOptions:\n")[2], re.MULTILINE)
    part = printed.partition(plain(help_text.partition("\n\n")[0].removeprefix("Usage: ")))[2]
    assert flags
    assert [flag for flag in flags if f" {flag} " not in part] == []


def test_the_page_has_every_setting_and_the_exit_codes(printed: str) -> None:
    assert [name for name in SETTINGS if f" {name} " not in printed] == []
    for code in (0, 1, 2):
        assert f" {code} " in printed.partition("EXIT STATUS")[2].partition("ENVIRONMENT")[0]


def test_text_copied_from_the_page_can_be_typed(printed: str) -> None:
    assert 'gpuboard book atlas:0,1 --until "fri 18:00" --comment "ICML run"' in printed
    assert 'eval "$(gpuboard completion bash)"' in printed


def test_help_text_is_escaped_for_roff(tmp_path: Path) -> None:
    @click.group(help=f"{NASTY}\n\n\b\n{NASTY}\n.SH no\n'br")
    def group() -> None:
        """Taken from above."""

    page = tmp_path / "nasty.1"
    page.write_text(render_manpage(group))
    assert run("mandoc", "-Tlint", "-W", "warning", str(page)).stdout == ""
    for command in (["mandoc", "-Tutf8"], ["man", "--warnings", "-l"]):
        words = plain(run(*command, str(page)).stdout)
        assert words.count(NASTY) == 2
        assert f"{NASTY} .SH no 'br" in words
