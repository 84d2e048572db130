"""`nohup ./install.sh test &`: what tests start has default signal handling, and ends by the signal that they send."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.browser import ROOT
from tests.support.missing import missing

WRAPPER = ROOT / "tests/default_signals.py"
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
# As nohup and the background of a script start a program, which is the rest of the words.
IGNORE = f"""
import os, signal, sys
for number in {tuple(map(int, IGNORED))}:
    signal.signal(number, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])
"""
TOOLS = ("ruff", "mypy", "lint-imports", "python")
PROGRAMS = ("bats", "shellcheck", "shfmt", "npm")
COMMON = """
print_line() { :; }
die() { exit 2; }
become_root() { false; }
apt_install() { false; }
make_venv() { :; }
print_help() { :; }
"""


def run_ignoring(
    command: Sequence[str | Path], seconds: float = 120, **extra_environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command as nohup and a shell's background do."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    words = [sys.executable, "-c", IGNORE, *map(str, command)]
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        cwd=ROOT,
        env={**environment, **extra_environment},
    )


def ignored_in(text: str) -> set[signal.Signals]:
    """Parse the mask of ignored signals in /proc/PID/status."""
    mask = int(text.split("SigIgn:")[1].split(maxsplit=1)[0], 16)
    return {number for number in signal.Signals if mask >> (number - 1) & 1}


def test_the_signals_of_a_test_are_ignored_as_nohup_does() -> None:
    assert ignored_in(run_ignoring(["cat", "/proc/self/status"]).stdout) >= set(IGNORED)


def test_the_wrapper_starts_a_command_with_default_signal_handling() -> None:
    result = run_ignoring([sys.executable, WRAPPER, "cat", "/proc/self/status"])
    assert not ignored_in(result.stdout)


def test_the_wrapper_ends_as_the_command_does() -> None:
    assert run_ignoring([sys.executable, WRAPPER, "sh", "-c", "exit 7"]).returncode == 7
    assert run_ignoring([sys.executable, WRAPPER, "sh", "-c", "kill -INT $$"]).returncode == 130
    assert subprocess.run([sys.executable, WRAPPER, "sh", "-c", "exit 7"], check=False).returncode == 7


def test_under_nohup_the_command_outlives_the_terminal_and_ends_with_the_wrapper(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; trap 'echo ended > {tmp_path}/end; exit 0' TERM; while :; do sleep 0.05; done"
    command = [sys.executable, "-c", IGNORE, sys.executable, str(WRAPPER), "sh", "-c", script]
    with subprocess.Popen(command, start_new_session=True) as process:
        end = time.monotonic() + 20
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
            assert time.monotonic() < end
            time.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        assert os.getsid(pid) != os.getsid(process.pid)
        os.killpg(process.pid, signal.SIGHUP)  # as a terminal does that is closed
        assert process.poll() is None and Path(f"/proc/{pid}").exists()
        process.terminate()
        assert process.wait(20) == 0
    assert (tmp_path / "end").exists()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_tests_that_send_signals_pass_where_these_are_ignored(workers: str) -> None:
    """Real ones: a program that SIGINT, SIGHUP or Ctrl-C must reach; before, these failed or waited for ever."""
    chosen = [
        "tests/client/test_run_command.py",
        "tests/client/test_commands_list.py",
        "-k",
        "signal_reaches_the_command or ends_it_cleanly",
    ]
    result = run_ignoring([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers, *chosen])
    assert result.returncode == 0, result.stdout[-3000:]
    assert " passed" in result.stdout


def test_host_tests_start_programs_with_default_signal_handling(tmp_path: Path) -> None:
    bats = shutil.which("bats") or missing("bats is not here; ./install.sh test installs it")
    test = tmp_path / "signals.bats"
    test.write_text(
        '@test "a program that is started can be ended by SIGINT" {\n'
        "    sleep 30 3>&- & pid=$!\n"
        "    sh -c \"trap 'exit 3' INT; kill -INT \\$\\$; exit 0\" || code=$?\n"
        '    kill -9 "$pid"\n'
        '    [ "$code" = 3 ]\n'
        "}\n"
    )
    assert run_ignoring([bats, test]).returncode == 1  # no shell can trap what it found ignored
    result = run_ignoring([sys.executable, WRAPPER, bats, test])
    assert result.returncode == 0, result.stdout


def test_all_that_tests_run_sh_starts_has_default_signal_handling(tmp_path: Path) -> None:
    """The real script with stand-ins for all tools, each of which says what it ignores."""
    tree = tmp_path / "clone"
    for folder in ("tests/host", "install", "bin", ".venv/bin", ".tools/py-consul", ".tools/node_modules"):
        (tree / folder).mkdir(parents=True)
    for name in ("run.sh", "default_signals.py"):
        shutil.copy(ROOT / "tests" / name, tree / "tests")
    (tree / "install/common.sh").write_text(COMMON)
    tools = [*(tree / ".venv/bin" / name for name in TOOLS), *(tree / "bin" / name for name in PROGRAMS)]
    for tool in tools:
        tool.write_text(f'#!/bin/sh\nsed "s/^/{tool.name} /" /proc/self/status | grep SigIgn >>"{tmp_path}/seen"\n')
        tool.chmod(0o755)
    for name in ("consul", "chromium-headless-shell"):
        (tree / "bin" / name).symlink_to("/bin/true")
    path = f"{tree / 'bin'}:{os.environ['PATH']}"
    result = run_ignoring([tree / "tests/run.sh", "quick"], PATH=path)
    assert result.returncode == 0, result.stdout + result.stderr
    seen = (tmp_path / "seen").read_text().splitlines()
    assert {line.split()[0] for line in seen} >= {"bats", "python", "ruff"}
    assert [line for line in seen if ignored_in(line)] == []


def test_a_process_ends_with_a_test_that_fails() -> None:
    with pytest.raises(ZeroDivisionError), subprocess.Popen(["/bin/sleep", "100"]) as process:
        _ = 1 / 0
    assert process.returncode == -signal.SIGKILL
