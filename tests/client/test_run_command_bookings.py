"""`gpuboard run` with a data folder: what runs is booked, and released however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.support.board_fixture import Lab, soon
from tests.support.booking_fixtures import ME, log
from tests.support.command_line import clean_environment
from tests.support.live_page import is_gone
from tests.support.own_gpus import HERE, OwnGpus, row, uuid
from tests.support.run_fixtures import (
    LONG,
    SHOW,
    command_of,
    eventually,
    list_claimed_gpus,
    list_supervisors,
    make_lab_with,
    own_gpus_for_runs,
    read_bookings_here,
    read_first_line,
    run,
    running,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnGpus]:
    with own_gpus_for_runs(tmp_path) as machine:
        yield machine


@pytest.fixture
def lab(tmp_path: Path, own: OwnGpus) -> Lab:
    return make_lab_with(own, tmp_path)


def test_what_runs_is_booked_and_released_when_it_ends(own: OwnGpus, lab: Lab) -> None:
    with running(own, "--gpus", "2", "--comment", "ICML", "--", "sh", "-c", f"{SHOW}; read line") as process:
        assert read_first_line(process) == "0,1 PCI_BUS_ID"
        bookings = read_bookings_here(lab)
        assert {key: (booking.name, booking.comment) for key, booking in bookings.items()} == {
            "0": (ME, "ICML"),
            "1": (ME, "ICML"),
        }
        assert 3500 < bookings["0"].until.timestamp() - time.time() < 3600
        process.communicate("\n", timeout=LONG)
    eventually(lambda: not read_bookings_here(lab))
    assert [line["what"] for line in log(lab)] == ["book", "release"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_is_released_whatever_kills_it(own: OwnGpus, lab: Lab, number: signal.Signals) -> None:
    with running(own, "--", "sh", "-c", f"{SHOW}; exec sleep 60") as process:
        assert read_first_line(process)
        assert read_bookings_here(lab)
        process.send_signal(number)
        process.wait(LONG)
    eventually(lambda: not read_bookings_here(lab))


def test_the_booking_goes_on_while_it_runs_and_ends_by_itself_when_nobody_is_left(own: OwnGpus, lab: Lab) -> None:
    with running(own, "--for", "4s", "--", "sh", "-c", f"{SHOW}; exec sleep 60") as process:
        assert read_first_line(process)
        eventually(lambda: "0" in read_bookings_here(lab))
        first = read_bookings_here(lab)["0"].until
        eventually(lambda: "0" in read_bookings_here(lab) and read_bookings_here(lab)["0"].until > first)
        supervisors = list_supervisors(own, process.pid)
        assert len(supervisors) == 1
        os.kill(supervisors[0], signal.SIGKILL)  # both are killed, as where the power fails
        process.kill()
        process.wait(LONG)
    eventually(lambda: not read_bookings_here(lab))
    assert is_gone(supervisors[0])


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
    eventually(lambda: list(read_bookings_here(lab)) == ["3"])


def test_linked_gpus_are_taken_together_and_to_what_i_have_booked(own: OwnGpus, lab: Lab) -> None:
    matrix = ["\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity"]
    for gpu in range(4):
        words = ["NV4" if {gpu, other} == {1, 3} else "X" if gpu == other else "SYS" for other in range(4)]
        matrix.append(f"GPU{gpu}\t" + "\t".join(words))
    lab.write(HERE, "host.txt", "".join(f"topology={line}\n" for line in matrix))
    assert run(own, "--gpus", "2", "--", "sh", "-c", SHOW).stdout == "1,3 PCI_BUS_ID\n"
    assert run(own, "--", "sh", "-c", SHOW).stdout == "0 PCI_BUS_ID\n"
    lab.book({HERE: {"3": {"name": ME, "date": soon(7200)}}})
    assert run(own, "--gpus", "2", "--", "sh", "-c", SHOW).stdout == "3,1 PCI_BUS_ID\n"


def test_two_runs_in_my_own_booking_get_two_gpus(own: OwnGpus, lab: Lab) -> None:
    lab.book({HERE: {"1": {"name": ME, "date": soon(7200)}, "3": {"name": ME, "date": soon(7200)}}})
    with running(own, "--", "sh", "-c", f"{SHOW}; read line") as first_run:
        assert read_first_line(first_run) == "1 PCI_BUS_ID"
        assert run(own, "--", "sh", "-c", SHOW).stdout == "3 PCI_BUS_ID\n"


def test_where_my_own_booking_begins_soon_that_takes_over(own: OwnGpus, lab: Lab) -> None:
    begins = soon(1200)
    lab.book({HERE: {key: [{"name": ME, "from": begins, "date": soon(7200)}] for key in ("0", "1", "3")}})
    with running(own, "--", "sh", "-c", f"{SHOW}; read line") as process:
        assert read_first_line(process) == "0 PCI_BUS_ID"
        (made,) = log(lab)[-1]["after"]
        assert (made[1], datetime.fromisoformat(made[2]["date"])) == ("0", datetime.fromisoformat(begins))


def test_where_my_own_booking_ends_soon_ours_follows(own: OwnGpus, lab: Lab) -> None:
    ends = soon(600)
    lab.book({HERE: {"1": {"name": ME, "date": ends}}})
    with running(own, "--", "sh", "-c", f"{SHOW}; read line") as process:
        assert read_first_line(process) == "1 PCI_BUS_ID"
        (made,) = log(lab)[-1]["after"]
        assert (made[1], datetime.fromisoformat(made[2]["from"])) == ("1", datetime.fromisoformat(ends))
        process.communicate("\n", timeout=LONG)
    eventually(lambda: [line["what"] for line in log(lab)] == ["book", "release"])


def test_a_gpu_that_somebody_began_to_use_since_the_snapshot_is_not_taken(own: OwnGpus, lab: Lab) -> None:
    own.tell(row(0, 60000), row(1), row(2, 70000), row(3))
    assert read_bookings_here(lab) == {}
    assert run(own, "--", "sh", "-c", SHOW).stdout == "1 PCI_BUS_ID\n"


def test_without_booking_nothing_is_written(own: OwnGpus, lab: Lab) -> None:
    assert run(own, "--no-book", "--", "sh", "-c", SHOW).stdout == "0 PCI_BUS_ID\n"
    assert not (lab.data / "comments.json").exists()


def test_a_broken_file_of_bookings_is_reported_and_nothing_started(own: OwnGpus, lab: Lab) -> None:
    (lab.data / "comments.json").write_text('{"atlas": [')
    finished = run(own, "--", "echo", "started")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "comments.json was not read: line 1" in finished.stderr
    eventually(lambda: not list_claimed_gpus())


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
            got.append(read_first_line(process))
    finally:
        for process in started:
            process.communicate("\n", timeout=LONG)
    assert got == ["0 PCI_BUS_ID", "1 PCI_BUS_ID"]
    eventually(lambda: not read_bookings_here(lab))


def test_the_gpus_of_another_host_are_not_those_of_this_machine(own: OwnGpus, lab: Lab) -> None:
    finished = run(own, "--host", "atlas", "--", "echo", "started")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "the GPUs of atlas are not those of this machine" in finished.stderr
    assert read_bookings_here(lab) == {}


def test_a_container_that_sees_some_gpus_counts_them_as_its_own_nvidia_smi_does(own: OwnGpus, lab: Lab) -> None:
    own.tell(row(0).replace(uuid(0), uuid(1)), row(1).replace(uuid(1), uuid(3)))
    with running(own, "--gpus", "2", "--", "sh", "-c", f"{SHOW}; read line") as process:
        assert read_first_line(process) == "0,1 PCI_BUS_ID"
        assert sorted(read_bookings_here(lab)) == ["1", "3"]
    assert run(own, "--gpus", "3", "--", "true").returncode == 1


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
    assert read_bookings_here(lab) == {}
    assert [line["what"] for line in log(lab)] == ["book", "release"]


def test_a_run_that_is_killed_while_it_is_booked_leaves_nothing(own: OwnGpus, lab: Lab) -> None:
    with (lab.data / ".comments.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with running(own, "--", "sleep", "60") as process:
            eventually(lambda: bool(list_claimed_gpus()))
            time.sleep(0.5)
            process.kill()
    eventually(lambda: (lab.data / "bookings.log").exists() and len(log(lab)) == 2)
    eventually(lambda: read_bookings_here(lab) == {})  # a change is logged before it is written


def test_a_driver_that_fails_here_is_reported_whatever_the_board_says(own: OwnGpus, lab: Lab) -> None:
    (own.smi / "say").write_text("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")
    (own.smi / "rc").write_text("9")
    finished = run(own, "--", "echo", "started")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "nvidia-smi ended with exit code 9" in finished.stderr
    assert read_bookings_here(lab) == {}


def test_in_a_container_whose_first_process_is_a_shell_it_is_released_too(own: OwnGpus, lab: Lab) -> None:
    apart = ["unshare", *(["--user", "--map-root-user"] if os.getuid() else []), "--pid", "--fork", "--mount-proc"]
    script = f"{shlex.join(command_of('--', 'true'))}; :"
    subprocess.run(
        [*apart, "/bin/sh", "-c", script], cwd=own.smi.parent, env=clean_environment(**own.environment), check=True
    )
    assert read_bookings_here(lab) == {}
    assert [line["what"] for line in log(lab)] == ["book", "release"]


def test_a_run_is_released_whenever_it_is_killed(own: OwnGpus, lab: Lab) -> None:
    """From its first moment on: before it books, while it does, and before the command begins."""
    for wait in (0.15, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6):
        with running(own, "--", "sleep", "60") as process:
            time.sleep(wait)
            process.kill()
    eventually(lambda: not read_bookings_here(lab) and not list_claimed_gpus())


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
        eventually(lambda: bool(read_bookings_here(lab)))
        os.close(ours)
        ends = max(booking.until for booking in read_bookings_here(lab).values())
        follows = ends.astimezone(timezone.utc).isoformat()
        there = json.loads((lab.data / "comments.json").read_text())
        there[HERE]["0"] = [there[HERE]["0"], {"name": "bob", "from": follows, "date": soon(7200)}]
        lab.book(there)
        time.sleep(max(0, ends.timestamp() + 0.5 - time.time()))
        assert list_claimed_gpus() == {uuid(0)}
    finally:
        process.kill()
        process.wait(LONG)
    eventually(lambda: not list_claimed_gpus())
