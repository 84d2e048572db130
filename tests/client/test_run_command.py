"""`gpuboard run` on a single machine: picks, claims, runs; and never gives a GPU to two."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.booking_fixtures import Terminal
from tests.support.command_line import clean_environment
from tests.support.live_page import is_gone
from tests.support.own_gpus import OwnGpus, row, uuid
from tests.support.run_fixtures import (
    LONG,
    SHOW,
    command_of,
    eventually,
    list_claimed_gpus,
    own_gpus_for_runs,
    read_first_line,
    run,
    running,
)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnGpus]:
    with own_gpus_for_runs(tmp_path) as machine:
        yield machine


@pytest.mark.slow
def test_the_command_sees_the_gpus_that_were_picked_in_nvidia_smis_order(own: OwnGpus) -> None:
    finished = run(own, "--gpus", "2", "--", "sh", "-c", SHOW)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "0,1 PCI_BUS_ID\n", "")


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_command(own: OwnGpus) -> None:
    assert run(own, "--", "sh", "-c", "exit 7").returncode == 7
    assert run(own, "--", "sh", "-c", "kill -9 $$").returncode == -9


@pytest.mark.slow
def test_run_returns_the_exit_code_where_the_caller_ignores_sigchld(own: OwnGpus) -> None:
    script = f"trap '' CHLD; exec {shlex.join(command_of('--', 'sh', '-c', 'exit 7'))}"
    finished = subprocess.run(
        ["/usr/bin/env", "bash", "-c", script],
        cwd=own.smi.parent,
        env=clean_environment(**own.environment),
        check=False,
    )
    assert finished.returncode == 7


@pytest.mark.slow
def test_its_input_its_output_and_its_words_are_those_of_the_command(own: OwnGpus) -> None:
    with running(own, "--", "sh", "-c", "read line; echo got $line; echo oops >&2") as process:
        assert process.communicate("a line\n", timeout=LONG) == ("got a line\n", "oops\n")


@pytest.mark.slow
def test_options_behind_the_command_are_the_commands_own(own: OwnGpus) -> None:
    assert run(own, "echo", "--gpus", "9", "--help").stdout == "--gpus 9 --help\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_reaches_the_command(own: OwnGpus, number: signal.Signals) -> None:
    name = number.name[3:]
    script = f"trap 'echo caught {name}; exit 3' {name}; echo ready; while :; do sleep 0.1; done"
    with running(own, "--", "sh", "-c", script) as process:
        assert read_first_line(process) == "ready"
        process.send_signal(number)
        assert process.communicate(timeout=LONG)[0] == f"caught {name}\n"
        assert process.returncode == 3


def test_a_program_that_writes_to_nobody_ends_as_it_would_alone(own: OwnGpus) -> None:
    script = f"{shlex.join(command_of('--', 'sh', '-c', 'yes; echo $? >&2'))} | head -n 1"
    environment = clean_environment(**own.environment)
    finished = subprocess.run(
        ["/bin/sh", "-c", script], cwd=own.smi.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.stdout == "y\n"
    assert "Broken pipe" not in finished.stderr


@pytest.mark.slow
def test_a_program_that_waits_for_all_its_children_does_not_wait_for_us(own: OwnGpus) -> None:
    script = "import os\ntry:\n    while True: os.wait()\nexcept ChildProcessError:\n    print('none')"
    assert run(own, "--", sys.executable, "-c", script).stdout == "none\n"


@pytest.mark.slow
def test_no_file_of_the_caller_is_held_beyond_the_command(own: OwnGpus, tmp_path: Path) -> None:
    script = f"exec 9>{tmp_path}/lock; flock 9; {shlex.join(command_of('--', 'true'))}; exec 9>&-; "
    script += f"flock -n {tmp_path}/lock true && echo free"
    finished = subprocess.run(
        ["/bin/sh", "-c", script],
        cwd=own.smi.parent,
        env=clean_environment(**own.environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stdout == "free\n"


def test_a_command_that_is_not_there_takes_nothing(own: OwnGpus) -> None:
    finished = run(own, "--", "nosuchcommand")
    assert (finished.returncode, finished.stderr) == (127, "gpuboard: command not found: nosuchcommand\n")
    assert list_claimed_gpus() == set()


@pytest.mark.slow
def test_a_file_that_cannot_be_started_gives_back_what_it_took(own: OwnGpus, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nowhere/at/all\n")
    script.chmod(0o755)
    finished = run(own, "--", str(script))
    assert finished.returncode == 126
    assert "cannot be started" in finished.stderr
    eventually(lambda: not list_claimed_gpus())


def test_with_too_few_the_command_is_not_started(own: OwnGpus) -> None:
    finished = run(own, "--gpus", "4", "--", "echo", "started")
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "only 3 of 4 GPUs available" in finished.stderr


def test_without_a_command_the_use_is_reported(own: OwnGpus) -> None:
    assert run(own, "--gpus", "2").returncode == 2


@pytest.mark.slow
def test_two_at_once_never_get_the_same_gpu(own: OwnGpus) -> None:
    own.tell(*(row(index) for index in range(4)))
    script = f"{SHOW}; read line"
    crowd = [
        subprocess.Popen(
            command_of("--", "sh", "-c", script),
            cwd=own.smi.parent,
            env=clean_environment(**own.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    try:
        got = [read_first_line(process) for process in crowd]
        assert sorted(filter(None, got)) == [f"{index} PCI_BUS_ID" for index in range(4)]
        assert len(list_claimed_gpus()) == 4
    finally:
        outputs = [process.communicate("\n", timeout=LONG) for process in crowd]
    assert sorted(process.returncode for process in crowd) == [0, 0, 0, 0, 1, 1]
    assert sum("available" in words for _, words in outputs) == 2
    eventually(lambda: not list_claimed_gpus())


@pytest.mark.slow
def test_what_is_taken_is_free_again_however_the_command_ends(own: OwnGpus) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with running(own, "--", "sh", "-c", f"{SHOW}; exec sleep 60") as process:
            assert read_first_line(process) == "0 PCI_BUS_ID"
            assert list_claimed_gpus() == {uuid(0)}
            process.send_signal(number)
            process.wait(LONG)
        eventually(lambda: not list_claimed_gpus())


@pytest.mark.slow
def test_run_waits_until_enough_gpus_are_free(own: OwnGpus) -> None:
    own.tell(row(0, 70000))
    constants = ["client.run_command:POLL_INTERVAL_S=0.2"]
    with running(own, "--wait", "--", "sh", "-c", SHOW, constants=constants) as process:
        time.sleep(1)
        assert process.poll() is None
        own.tell(row(0))
        assert read_first_line(process) == "0 PCI_BUS_ID"


def test_a_misspelt_option_is_not_taken_for_the_command(own: OwnGpus) -> None:
    finished = run(own, "--gpu", "2", "--", "true")
    assert (finished.returncode, "No such option" in finished.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_a_run_with_closed_files_keeps_its_gpus(own: OwnGpus, closed: str) -> None:
    script = f"{shlex.join(command_of('--', 'sleep', '30'))} {closed} & echo $!; wait"
    process = subprocess.Popen(
        ["/bin/sh", "-c", script],
        cwd=own.smi.parent,
        env=clean_environment(**own.environment),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pid = int(read_first_line(process))
        eventually(lambda: list_claimed_gpus() == {uuid(0)} and b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
        time.sleep(0.3)
        assert list_claimed_gpus() == {uuid(0)}
    finally:
        os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=LONG)
    eventually(lambda: not list_claimed_gpus())


@pytest.mark.slow
def test_a_command_that_outlives_nobody_ends_with_a_run_that_is_killed(own: OwnGpus) -> None:
    with running(own, "--", "sh", "-c", "echo $$; exec sleep 60") as process:
        child = int(read_first_line(process))
        process.kill()
        process.wait(LONG)
        eventually(lambda: is_gone(child))
    eventually(lambda: not list_claimed_gpus())


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_reaches_the_command_once(own: OwnGpus) -> None:
    script = "trap 'echo caught' INT; echo ready; for i in 1 2 3 4 5 6; do sleep 0.2; done; exit 5"
    terminal = Terminal(own.smi.parent, "run", "--", "sh", "-c", script, **own.environment)
    terminal.until("ready")
    os.write(terminal.ours, b"\x03")
    code, text = terminal.end()
    assert (code, text.count("caught")) == (5, 1)


@pytest.mark.slow
def test_ctrl_c_while_it_waits_ends_it_as_a_shell_expects(own: OwnGpus) -> None:
    own.tell(row(0, 70000))
    terminal = Terminal(own.smi.parent, "run", "--wait", "--", "true", **own.environment)
    terminal.until("1 busy; waiting")
    os.write(terminal.ours, b"\x03")
    assert terminal.end()[0] == 130


@pytest.mark.slow
def test_a_path_that_is_no_program_is_126_and_the_gpus_of_no_uuid_are_not_taken(own: OwnGpus) -> None:
    assert run(own, "--", "/etc/passwd").returncode == 126
    assert run(own, "--for", "0s", "--", "true").returncode == 2
    own.tell("0, [N/A], NVIDIA A100-SXM4-80GB, 4, 81920, 0, 41, 1410\n")
    assert run(own, "--", "true").returncode == 1
