"""`gpuboard run` with a board elsewhere: it books, is refused and releases through the board's address."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from site_builder.client.run_command import RELEASE_TIMEOUT_S
from tests.support.board_fixture import Lab, soon
from tests.support.board_server import serve_board
from tests.support.booking_fixtures import ME, done
from tests.support.own_gpus import HERE, OwnGpus, row
from tests.support.pace import wall, within
from tests.support.run_fixtures import (
    LONG,
    SHOW,
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


def test_a_run_books_and_releases_at_a_board_elsewhere(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    with serve_board(lab) as url:
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        with running(own, "--", "sh", "-c", f"{SHOW}; read line") as process:
            assert read_first_line(process) == "0 PCI_BUS_ID"
            assert read_bookings_here(lab)["0"].name == "alice"
            process.communicate("\n", timeout=LONG)
        eventually(lambda: not read_bookings_here(lab))


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_limit_of_the_lab_is_reported_and_the_command_not_started(own: OwnGpus, lab: Lab, count: str) -> None:
    del own.environment["GPUBOARD_DATA"]
    lab.book({"zeus": {"0": {"name": "alice", "date": soon(7200)}}})
    with serve_board(lab, GPUBOARD_BOOK_GPUS="1") as url:
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        finished = run(own, "--gpus", count, "--", "echo", "started", GPUBOARD_URL=url, GPUBOARD_TOKEN=token)
    assert (finished.returncode, finished.stdout) == (1, "")
    assert "use --no-book to run without a booking" in finished.stderr
    assert read_bookings_here(lab) == {}
    eventually(lambda: not list_claimed_gpus())


def test_without_a_token_the_message_says_what_is_missing(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    with serve_board(lab) as url:
        finished = run(own, "--", "echo", "started", GPUBOARD_URL=url)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "GPUBOARD_TOKEN" in finished.stderr
    eventually(lambda: not list_claimed_gpus())


def test_a_board_that_takes_no_bookings_says_so_and_the_command_runs(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    with serve_board(lab, GPUBOARD_BOOK_URL="") as url:
        assert json.loads((lab.www / "status.json").read_bytes())["book"] is None
        finished = run(own, "--", "sh", "-c", SHOW, GPUBOARD_URL=url)
    assert (finished.returncode, finished.stdout) == (0, "0 PCI_BUS_ID\n")
    assert "this board takes no bookings" in finished.stderr


def test_a_board_that_fell_silent_does_not_keep_the_caller(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    with ExitStack() as stack:
        url = stack.enter_context(serve_board(lab))
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        constants = ["client.run_command:RELEASE_TIMEOUT_S=0.3"]
        with running(own, "--", "sh", "-c", f"{SHOW}; read line", constants=constants) as process:
            assert read_first_line(process) == "0 PCI_BUS_ID"
            supervisors = list_supervisors(own, process.pid)
            stack.close()
            try:
                with within(10, wall):
                    process.communicate("\n", timeout=LONG)  # the server is gone; all pipes end all the same
            finally:
                for pid in supervisors:
                    os.kill(pid, signal.SIGKILL)
    assert RELEASE_TIMEOUT_S <= 3


def test_a_board_that_is_seconds_old_is_asked_again(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    lab.book({HERE: {"0": {"name": "alice", "date": soon(7200)}}})
    with serve_board(lab) as url:
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        lab.book({HERE: {"0": {"name": "bob", "date": soon(7200)}}})  # the board is not built anew
        with running(own, "--name", "alice", "--", "sh", "-c", f"{SHOW}; read line") as process:
            assert read_first_line(process) == "1 PCI_BUS_ID"
        # what is bob's stays; the run has given back its own
        eventually(lambda: not list_claimed_gpus() and list(read_bookings_here(lab)) == ["0"])
        lab.book({})
        with running(own, "--name", "alice", "--", "sh", "-c", f"{SHOW}; read line") as process:
            assert read_first_line(process) == "0 PCI_BUS_ID"
            assert list(read_bookings_here(lab)) == ["0"]
        eventually(lambda: not read_bookings_here(lab))


def test_a_run_after_another_gets_the_gpu_that_the_board_still_calls_booked(own: OwnGpus, lab: Lab) -> None:
    del own.environment["GPUBOARD_DATA"]
    own.tell(row(0), row(1, 70000), row(2, 70000), row(3, 70000))
    with serve_board(lab) as url:
        token = done(lab.data.parent, "token", ME).stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        with running(own, "--", "sh", "-c", f"{SHOW}; read line") as process:
            assert read_first_line(process) == "0 PCI_BUS_ID"
            done(lab.data.parent, "build", GPUBOARD_BOOK_URL="book")
            assert lab.states(HERE)[0] == "booked"
            process.communicate("\n", timeout=LONG)
        assert run(own, "--", "sh", "-c", SHOW).stdout == "0 PCI_BUS_ID\n"


@pytest.mark.parametrize("patient", [(), ("--wait",)])
def test_what_a_rule_forbids_is_reported_at_once(own: OwnGpus, lab: Lab, patient: tuple[str, ...]) -> None:
    del own.environment["GPUBOARD_DATA"]
    with serve_board(lab, GPUBOARD_BOOK_LONGEST="2h") as url:
        token = done(lab.data.parent, "token", "alice").stdout.strip()
        own.environment |= {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token}
        finished = run(own, "--for", "3h", *patient, "--", "echo", "started")
        assert (finished.returncode, finished.stdout) == (1, "")
        assert (
            "a booking may last 2 h at most; this one would last 3 h; use --no-book to run without a booking"
            in finished.stderr
        )
        assert run(own, "--for", "2h", "--", "echo", "started").stdout == "started\n"
