"""`gpuboard run`: picks, books, runs, releases; and never gives a GPU to two."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest

from site_builder.bookings import parser as booking_parser
from site_builder.client import picker
from site_builder.core.model import Booking
from tests.support.board_fixture import Lab, gpu, soon
from tests.support.booking_fixtures import ME, Terminal, done, lab_of, log, served
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.live_page import is_gone
from tests.support.own_gpus import HERE, OwnGpus, row, uuid
from tests.support.pace import wall, within

SHOW = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"
LONG = 30


def eventually(look: Callable[[], object], seconds: float = LONG) -> None:
    """Until it is so."""
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnGpus]:
    """This machine, on which no guard is left in the end."""
    machine = OwnGpus(tmp_path / "own", row(0), row(1), row(2, 70000), row(3))
    yield machine
    eventually(lambda: not runs_in(machine.smi.parent))


@pytest.fixture
def lab(tmp_path: Path, own: OwnGpus) -> Lab:
    """A board on which this machine is, with the GPUs that its nvidia-smi tells; the third is busy."""
    new_lab = lab_of(tmp_path / "lab")
    new_lab.host(HERE, "".join(gpu(index, 70000 if index == 2 else 4, uuid=uuid(index)) for index in range(4)))
    own.environment["GPUBOARD_DATA"] = str(new_lab.data)
    return new_lab


def command_of(*words: str) -> list[str]:
    return [sys.executable, "-m", "site_builder", "run", *words]


def run(own: OwnGpus, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_gpuboard(own.smi.parent, "run", *words, **{**own.environment, **environment})


@contextmanager
def running(own: OwnGpus, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A run that goes on until the test ends it; its first line is read."""
    process = subprocess.Popen(
        command_of(*words),
        cwd=own.smi.parent,
        env=clean_environment(**{**own.environment, **environment}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def taken() -> set[str]:
    there = picker.ClaimedGpus()
    return {uuid(index) for index in range(8) if uuid(index) in there}


def booked(lab: Lab) -> dict[str, Booking]:
    """What of this machine is booked at this moment."""
    path = lab.data / "comments.json"
    rows = (
        booking_parser.parse_bookings(path.read_bytes(), datetime.now().astimezone().tzinfo or timezone.utc).rows
        if path.exists()
        else ()
    )
    return {
        booking.gpu: booking for booking in rows if booking.host == HERE and booking.until.timestamp() > time.time()
    }


# On a single machine


def test_the_command_sees_the_gpus_that_were_picked_in_nvidia_smis_order(own: OwnGpus) -> None:
    finished = run(own, "--gpus", "2", "--", "sh", "-c", SHOW)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "0,1 PCI_BUS_ID\n", "")


def test_the_exit_code_is_that_of_the_command(own: OwnGpus) -> None:
    assert run(own, "--", "sh", "-c", "exit 7").returncode == 7
    assert run(own, "--", "sh", "-c", "kill -9 $$").returncode == -9


def test_run_returns_the_exit_code_where_the_caller_ignores_sigchld(own: OwnGpus) -> None:
    script = f"trap '' CHLD; exec {shlex.join(command_of('--', 'sh', '-c', 'exit 7'))}"
    finished = subprocess.run(
        ["/usr/bin/env", "bash", "-c", script],
        cwd=own.smi.parent,
        env=clean_environment(**own.environment),
        check=False,
    )
    assert finished.returncode == 7


def test_its_input_its_output_and_its_words_are_those_of_the_command(own: OwnGpus) -> None:
    with running(own, "--", "sh", "-c", "read line; echo got $line; echo oops >&2") as process:
        assert process.communicate("a line\n", timeout=LONG) == ("got a line\n", "oops\n")


def test_options_behind_the_command_are_the_commands_own(own: OwnGpus) -> None:
    assert run(own, "echo", "--gpus", "9", "--help").stdout == "--gpus 9 --help\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_reaches_the_command(own: OwnGpus, number: signal.Signals) -> None:
    name = number.name[3:]
    script = f"trap 'echo caught {name}; exit 3' {name}; echo ready; while :; do sleep 0.1; done"
    with running(own, "--", "sh", "-c", script) as process:
        assert first_line(process) == "ready"
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


def test_a_program_that_waits_for_all_its_children_does_not_wait_for_us(own: OwnGpus) -> None:
    script = "import os\ntry:\n    while True: os.wait()\nexcept ChildProcessError:\n    print('none')"
    assert run(own, "--", sys.executable, "-c", script).stdout == "none\n"


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
    assert (finished.returncode, finished.stderr) == (127, "gpuboard: there is no command nosuchcommand\n")
    assert taken() == set()


def test_a_file_that_cannot_be_started_gives_back_what_it_took(own: OwnGpus, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/nowhere/at/all\n")
    script.chmod(0o755)
    finished = run(own, "--", str(script))
    assert finished.returncode == 126
    assert "cannot be started" in finished.stderr
    eventually(lambda: not taken())


def test_with_too_few_the_command_is_not_started(own: OwnGpus) -> None:
    finished = run(own, "--gpus", "4", "--", "echo", "started")
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "3 of the 4 GPUs can be had" in finished.stderr


def test_without_a_command_the_use_is_reported(own: OwnGpus) -> None:
    assert run(own, "--gpus", "2").returncode == 2


def test_two_at_once_never_get_the_same_gpu(own: OwnGpus) -> None:
    own.tell(*(row(index) for index in range(6)))
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
        for _ in range(8)
    ]
    try:
        got = [first_line(process) for process in crowd]
        assert sorted(filter(None, got)) == [f"{index} PCI_BUS_ID" for index in range(6)]
        assert len(taken()) == 6
    finally:
        outputs = [process.communicate("\n", timeout=LONG) for process in crowd]
    assert sorted(process.returncode for process in crowd) == [0, 0, 0, 0, 0, 0, 1, 1]
    assert sum("can be had" in words for _, words in outputs) == 2
    eventually(lambda: not taken())


def test_what_is_taken_is_free_again_however_the_command_ends(own: OwnGpus) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with running(own, "--", "sh", "-c", f"{SHOW}; exec sleep 60") as process:
            assert first_line(process) == "0 PCI_BUS_ID"
            assert taken() == {uuid(0)}
            process.send_signal(number)
            process.wait(LONG)
        eventually(lambda: not taken())


def test_run_waits_until_enough_gpus_are_free(own: OwnGpus) -> None:
    own.tell(row(0, 70000))
    with running(own, "--wait", "--", "sh", "-c", SHOW) as process:
        time.sleep(1.5)
        assert process.poll() is None
        own.tell(row(0))
        assert first_line(process) == "0 PCI_BUS_ID"


# With a board


def test_what_runs_is_booked_and_released_when_it_ends(own: OwnGpus, lab: Lab) -> None:
    with running(own, "--gpus", "2", "--comment", "ICML", "--", "sh", "-c", f"{SHOW}; read line") as process:
        assert first_line(process) == "0,1 PCI_BUS_ID"
        bookings = booked(lab)
        assert {key: (booking.name, booking.comment) for key, booking in bookings.items()} == {
            "0": (ME, "ICML"),
            "1": (ME, "ICML"),
        }
        assert 3500 < bookings["0"].until.timestamp() - time.time() < 3600
        process.communicate("\n", timeout=LONG)
    eventually(lambda: not booked(lab))
    assert [line["what"] for line in log(lab)] == ["book", "release"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_is_released_whatever_kills_it(own: OwnGpus, lab: Lab, number: signal.Signals) -> None:
    with running(own, "--", "sh", "-c", f"{SHOW}; exec sleep 60") as process:
        assert first_line(process)
        assert booked(lab)
        process.send_signal(number)
        process.wait(LONG)
    eventually(lambda: not booked(lab))


def test_the_booking_goes_on_while_it_runs_and_ends_by_itself_when_nobody_is_left(own: OwnGpus, lab: Lab) -> None:
    with running(own, "--for", "4s", "--", "sh", "-c", f"{SHOW}; exec sleep 60") as process:
        assert first_line(process)
        first = booked(lab)["0"].until
        eventually(lambda: "0" in booked(lab) and booked(lab)["0"].until > first)
        guards = guards_of(own, process.pid)
        assert len(guards) == 1
        os.kill(guards[0], signal.SIGKILL)  # both are killed, as where the power fails
        process.kill()
        process.wait(LONG)
    eventually(lambda: not booked(lab), 15)
    assert is_gone(guards[0])


def runs_in(folder: Path) -> list[int]:
    """The processes of runs that were started in a folder: gpuboard itself, and the guards."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"site_builder" in words and b"run" in words and (path / "cwd").readlink() == folder:
                pids.append(int(path.name))
        except OSError:
            continue
    return pids


def guards_of(own: OwnGpus, watched: int) -> list[int]:
    """Those that are not gpuboard itself."""
    return [pid for pid in runs_in(own.smi.parent) if pid != watched]


def test_what_others_have_booked_is_not_taken_now_or_soon(own: OwnGpus, lab: Lab) -> None:
    lab.book(
        {
            HERE: {
                "0": {"name": "bob", "date": soon(7200)},
                "1": {"name": "bob", "from": soon(1800), "date": soon(7200)},
            }
        }
    )
    assert run(own, "--", "sh", "-c", SHOW).stdout == "3 PCI_BUS_ID\n"
    finished = run(own, "--gpus", "2", "--", "sh", "-c", SHOW)
    assert finished.returncode == 1
    assert "1 booked by others within 1 h" in finished.stderr
    assert run(own, "--gpus", "2", "--for", "20m", "--", "sh", "-c", SHOW).stdout == "1,3 PCI_BUS_ID\n"


def test_what_i_have_booked_is_taken_first_and_stays_booked(own: OwnGpus, lab: Lab) -> None:
    lab.book({HERE: {"3": {"name": ME, "date": soon(7200)}}})
    assert run(own, "--", "sh", "-c", SHOW).stdout == "3 PCI_BUS_ID\n"
    assert run(own, "--gpus", "2", "--", "sh", "-c", SHOW).stdout == "3,0 PCI_BUS_ID\n"
    eventually(lambda: list(booked(lab)) == ["3"])


def test_two_runs_in_my_own_booking_get_two_gpus(own: OwnGpus, lab: Lab) -> None:
    lab.book({HERE: {"1": {"name": ME, "date": soon(7200)}, "3": {"name": ME, "date": soon(7200)}}})
    with running(own, "--", "sh", "-c", f"{SHOW}; read line") as first_run:
        assert first_line(first_run) == "1 PCI_BUS_ID"
        assert run(own, "--", "sh", "-c", SHOW).stdout == "3 PCI_BUS_ID\n"


def test_where_my_own_booking_begins_soon_that_takes_over(own: OwnGpus, lab: Lab) -> None:
    begins = soon(1200)
    lab.book({HERE: {key: [{"name": ME, "from": begins, "date": soon(7200)}] for key in ("0", "1", "3")}})
    with running(own, "--", "sh", "-c", f"{SHOW}; read line") as process:
        assert first_line(process) == "0 PCI_BUS_ID"
        (made,) = log(lab)[-1]["after"]
        assert (made[1], datetime.fromisoformat(made[2]["date"])) == ("0", datetime.fromisoformat(begins))


def test_where_my_own_booking_ends_soon_ours_follows(own: OwnGpus, lab: Lab) -> None:
    ends = soon(600)
    lab.book({HERE: {"1": {"name": ME, "date": ends}}})
    with running(own, "--", "sh", "-c", f"{SHOW}; read line") as process:
        assert first_line(process) == "1 PCI_BUS_ID"
        (made,) = log(lab)[-1]["after"]
        assert (made[1], datetime.fromisoformat(made[2]["from"])) == ("1", datetime.fromisoformat(ends))
        process.communicate("\n", timeout=LONG)
    eventually(lambda: [line["what"] for line in log(lab)] == ["book", "release"])


def test_a_gpu_that_somebody_began_to_use_since_the_snapshot_is_not_taken(own: OwnGpus, lab: Lab) -> None:
    own.tell(row(0, 60000), row(1), row(2, 70000), row(3))
    assert booked(lab) == {}
    assert run(own, "--", "sh", "-c", SHOW).stdout == "1 PCI_BUS_ID\n"


def test_without_booking_nothing_is_written(own: OwnGpus, lab: Lab) -> None:
    assert run(own, "--no-book", "--", "sh", "-c", SHOW).stdout == "0 PCI_BUS_ID\n"
    assert not (lab.data / "comments.json").exists()


def test_a_broken_file_of_bookings_is_reported_and_nothing_started(own: OwnGpus, lab: Lab) -> None:
    (lab.data / "comments.json").write_text('{"atlas": [')
    finished = run(own, "--", "echo", "started")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "comments.json was not read: line 1" in finished.stderr
    eventually(lambda: not taken())


# Through a board's address


def test_a_run_books_and_releases_at_a_board_elsewhere(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    with served(lab) as url:
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        with running(own, "--", "sh", "-c", f"{SHOW}; read line") as process:
            assert first_line(process) == "0 PCI_BUS_ID"
            assert booked(lab)["0"].name == "alice"
            process.communicate("\n", timeout=LONG)
        eventually(lambda: not booked(lab))


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_limit_of_the_lab_is_reported_and_the_command_not_started(own: OwnGpus, lab: Lab, count: str) -> None:
    del own.environment["GPUBOARD_DATA"]
    lab.book({"zeus": {"0": {"name": "alice", "date": soon(7200)}}})
    with served(lab, GPUBOARD_BOOK_GPUS="1") as url:
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        finished = run(own, "--gpus", count, "--", "echo", "started", GPUBOARD_URL=url, GPUBOARD_TOKEN=token)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "--no-book runs it all the same" in finished.stderr
    assert booked(lab) == {}
    eventually(lambda: not taken())


def test_without_a_token_the_message_says_what_is_missing(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    with served(lab) as url:
        finished = run(own, "--", "echo", "started", GPUBOARD_URL=url)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "GPUBOARD_TOKEN" in finished.stderr
    eventually(lambda: not taken())


def test_a_board_that_takes_no_bookings_says_so_and_the_command_runs(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    with served(lab, GPUBOARD_BOOK_URL="") as url:
        assert json.loads((lab.www / "status.json").read_bytes())["book"] is None
        finished = run(own, "--", "sh", "-c", SHOW, GPUBOARD_URL=url)
    assert (finished.returncode, finished.stdout) == (0, "0 PCI_BUS_ID\n")
    assert "the board takes no bookings" in finished.stderr


def test_a_board_that_fell_silent_does_not_keep_the_caller(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    with served(lab) as url:
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        process = subprocess.Popen(
            command_of("--", "sh", "-c", f"{SHOW}; read line"),
            cwd=own.smi.parent,
            env=clean_environment(**own.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert first_line(process) == "0 PCI_BUS_ID"
        guards = guards_of(own, process.pid)
    try:
        with within(5, wall):
            process.communicate("\n", timeout=LONG)  # the server is gone; all pipes end all the same
    finally:
        for pid in guards:
            os.kill(pid, signal.SIGKILL)


def test_a_misspelt_option_is_not_taken_for_the_command(own: OwnGpus) -> None:
    finished = run(own, "--gpu", "2", "--", "true")
    assert (finished.returncode, "No such option" in finished.stderr) == (2, True)


# What others do meanwhile


def test_a_run_is_not_taken_for_ones_own_booking_by_the_next(own: OwnGpus, lab: Lab) -> None:
    """In two containers no claim is seen, and the board alone keeps the two apart."""
    apart = ("unshare", "--net") if os.getuid() == 0 else ("unshare", "--user", "--net")
    command = [*apart, *command_of("--", "sh", "-c", f"{SHOW}; read line")]
    environment = clean_environment(**own.environment)
    got, started = [], []
    try:
        for _ in range(2):
            process = subprocess.Popen(
                command,
                cwd=own.smi.parent,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            got.append(first_line(process))
    finally:
        for process in started:
            process.communicate("\n", timeout=LONG)
    assert got == ["0 PCI_BUS_ID", "1 PCI_BUS_ID"]
    eventually(lambda: not booked(lab))


def test_a_board_that_is_seconds_old_is_asked_again(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    lab.book({HERE: {"0": {"name": "alice", "date": soon(7200)}}})
    with served(lab) as url:
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        lab.book({HERE: {"0": {"name": "bob", "date": soon(7200)}}})  # the board is not built anew
        with running(own, "--name", "alice", "--", "sh", "-c", f"{SHOW}; read line") as process:
            assert first_line(process) == "1 PCI_BUS_ID"
        eventually(lambda: not taken() and list(booked(lab)) == ["0"])  # what is bob's; the run has given back its own
        lab.book({})
        with running(own, "--name", "alice", "--", "sh", "-c", f"{SHOW}; read line") as process:
            assert first_line(process) == "0 PCI_BUS_ID"
            assert list(booked(lab)) == ["0"]
        eventually(lambda: not booked(lab))


def test_the_gpus_of_another_host_are_not_those_of_this_machine(own: OwnGpus, lab: Lab) -> None:
    finished = run(own, "--host", "atlas", "--", "echo", "started")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "the GPUs of atlas are not those of this machine" in finished.stderr
    assert booked(lab) == {}


def test_a_container_that_sees_some_gpus_counts_them_as_its_own_nvidia_smi_does(own: OwnGpus, lab: Lab) -> None:
    own.tell(row(0).replace(uuid(0), uuid(1)), row(1).replace(uuid(1), uuid(3)))
    with running(own, "--gpus", "2", "--", "sh", "-c", f"{SHOW}; read line") as process:
        assert first_line(process) == "0,1 PCI_BUS_ID"
        assert sorted(booked(lab)) == ["1", "3"]
    assert run(own, "--gpus", "3", "--", "true").returncode == 1


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
        pid = int(first_line(process))
        eventually(lambda: taken() == {uuid(0)} and b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
        time.sleep(0.3)
        assert taken() == {uuid(0)}
    finally:
        os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=LONG)
    eventually(lambda: not taken())


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_as_the_first_process_of_a_container_it_releases_too(own: OwnGpus, lab: Lab, script: str, code: int) -> None:
    apart = ["unshare", *(["--user", "--map-root-user"] if os.getuid() else []), "--pid", "--fork", "--mount-proc"]
    finished = subprocess.run(
        [*apart, *command_of("--", "sh", "-c", f"{SHOW}; {script}")],
        cwd=own.smi.parent,
        env=clean_environment(**own.environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (finished.returncode, finished.stdout) == (code, "0 PCI_BUS_ID\n"), finished.stderr
    assert booked(lab) == {}
    assert [line["what"] for line in log(lab)] == ["book", "release"]


def test_a_run_that_is_killed_while_it_is_booked_leaves_nothing(own: OwnGpus, lab: Lab) -> None:
    with (lab.data / ".comments.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with running(own, "--", "sleep", "60") as process:
            eventually(lambda: bool(taken()))
            time.sleep(0.5)
            process.kill()
    eventually(lambda: (lab.data / "bookings.log").exists() and len(log(lab)) == 2)
    eventually(lambda: booked(lab) == {})  # a change is logged before it is written


def test_a_run_after_another_gets_the_gpu_that_the_board_still_calls_booked(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    own.tell(row(0), row(1, 70000), row(2, 70000), row(3, 70000))
    with served(lab) as url:
        token = done(lab.data.parent, "token", ME).stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        with running(own, "--", "sh", "-c", f"{SHOW}; read line") as process:
            assert first_line(process) == "0 PCI_BUS_ID"
            done(lab.data.parent, "build", GPUBOARD_BOOK_URL="book")
            assert lab.states(HERE)[0] == "booked"
            process.communicate("\n", timeout=LONG)
        assert run(own, "--", "sh", "-c", SHOW).stdout == "0 PCI_BUS_ID\n"


def test_a_driver_that_fails_here_is_reported_whatever_the_board_says(own: OwnGpus, lab: Lab) -> None:
    (own.smi / "say").write_text("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")
    (own.smi / "rc").write_text("9")
    finished = run(own, "--", "echo", "started")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "nvidia-smi ended with exit code 9" in finished.stderr
    assert booked(lab) == {}


def test_in_a_container_whose_first_process_is_a_shell_it_is_released_too(own: OwnGpus, lab: Lab) -> None:
    apart = ["unshare", *(["--user", "--map-root-user"] if os.getuid() else []), "--pid", "--fork", "--mount-proc"]
    script = f"{shlex.join(command_of('--', 'true'))}; :"
    subprocess.run(
        [*apart, "/bin/sh", "-c", script], cwd=own.smi.parent, env=clean_environment(**own.environment), check=True
    )
    assert booked(lab) == {}
    assert [line["what"] for line in log(lab)] == ["book", "release"]


def test_a_command_that_outlives_nobody_ends_with_a_run_that_is_killed(own: OwnGpus) -> None:
    with running(own, "--", "sh", "-c", "echo $$; exec sleep 60") as process:
        child = int(first_line(process))
        process.kill()
        process.wait(LONG)
        eventually(lambda: is_gone(child))
    eventually(lambda: not taken())


def test_ctrl_c_at_a_terminal_reaches_the_command_once(own: OwnGpus) -> None:
    script = "trap 'echo caught' INT; echo ready; for i in 1 2 3 4 5 6; do sleep 0.2; done; exit 5"
    terminal = Terminal(own.smi.parent, "run", "--", "sh", "-c", script, **own.environment)
    terminal.until("ready")
    os.write(terminal.ours, b"\x03")
    code, text = terminal.end()
    assert (code, text.count("caught")) == (5, 1)


def test_ctrl_c_while_it_waits_ends_it_as_a_shell_expects(own: OwnGpus) -> None:
    own.tell(row(0, 70000))
    terminal = Terminal(own.smi.parent, "run", "--wait", "--", "true", **own.environment)
    terminal.until("1 busy; waiting")
    os.write(terminal.ours, b"\x03")
    assert terminal.end()[0] == 130


def test_a_run_is_released_whenever_it_is_killed(own: OwnGpus, lab: Lab) -> None:
    """From its first moment on: before it books, while it does, and before the command begins."""
    for wait in (0.15, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6):
        with running(own, "--", "sleep", "60") as process:
            time.sleep(wait)
            process.kill()
    eventually(lambda: not booked(lab) and not taken())


@pytest.mark.parametrize("patient", [(), ("--wait",)])
def test_what_a_rule_forbids_is_reported_at_once(own: OwnGpus, lab: Lab, patient: tuple[str, ...]) -> None:
    del own.environment["GPUBOARD_DATA"]
    with served(lab, GPUBOARD_BOOK_LONGEST="2h") as url:
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        finished = run(own, "--for", "3h", *patient, "--", "echo", "started")
        assert (finished.returncode, finished.stdout) == (1, "")
        assert "a booking may be 2 h long; --no-book runs it all the same" in finished.stderr
        assert run(own, "--for", "2h", "--", "echo", "started").stdout == "started\n"


def test_a_supervisor_without_a_reader_keeps_the_gpu(own: OwnGpus, lab: Lab) -> None:
    ours, theirs = os.pipe()
    process = subprocess.Popen(
        command_of("--for", "4s", "--", "sleep", "60"),
        cwd=own.smi.parent,
        env=clean_environment(**own.environment),
        stderr=theirs,
    )
    os.close(theirs)
    try:
        eventually(lambda: bool(booked(lab)))
        os.close(ours)
        ends = max(booking.until for booking in booked(lab).values())
        follows = ends.astimezone(timezone.utc).isoformat()
        there = json.loads((lab.data / "comments.json").read_text())
        there[HERE]["0"] = [there[HERE]["0"], {"name": "bob", "from": follows, "date": soon(7200)}]
        lab.book(there)
        time.sleep(5)
        assert taken() == {uuid(0)}
    finally:
        process.kill()
        process.wait(LONG)
    eventually(lambda: not taken())


def test_a_path_that_is_no_program_is_126_and_the_gpus_of_no_uuid_are_not_taken(own: OwnGpus) -> None:
    assert run(own, "--", "/etc/passwd").returncode == 126
    assert run(own, "--for", "0s", "--", "true").returncode == 2
    own.tell("0, [N/A], NVIDIA A100-SXM4-80GB, 4, 81920, 0, 41, 1410\n")
    assert run(own, "--", "true").returncode == 1
