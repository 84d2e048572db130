"""Runs of `gpuboard run` on this machine with GPUs of its own, and what they leave: claims, bookings and processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from site_builder.bookings import parser as booking_parser
from site_builder.client import picker
from site_builder.core.model import Booking
from tests.support.board_fixture import Lab, gpu
from tests.support.booking_fixtures import lab_of
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.own_gpus import HERE, OwnGpus, row, uuid
from tests.support.quick_gpuboard import build_quick_command

SHOW = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"
LONG = 60
RUN_MODULES = {b"site_builder", b"tests.support.quick_gpuboard"}


def eventually(look: Callable[[], object], seconds: float = LONG) -> None:
    """Wait until it is so."""
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def own_gpus_for_runs(folder: Path) -> Iterator[OwnGpus]:
    """Four GPUs, the third of which is busy; no process of a run is left in the end."""
    machine = OwnGpus(folder / "own", row(0), row(1), row(2, 70000), row(3))
    yield machine
    eventually(lambda: not list_run_processes(machine.smi.parent))


def make_lab_with(own: OwnGpus, folder: Path) -> Lab:
    """A board on which this machine is, with the GPUs that its nvidia-smi reports; runs book in its folder."""
    lab = lab_of(folder / "lab")
    lab.host(HERE, "".join(gpu(index, 70000 if index == 2 else 4, uuid=uuid(index)) for index in range(4)))
    own.environment["GPUBOARD_DATA"] = str(lab.data)
    return lab


def command_of(*words: str) -> list[str]:
    return [sys.executable, "-m", "site_builder", "run", *words]


def run(own: OwnGpus, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_gpuboard(own.smi.parent, "run", *words, **{**own.environment, **environment})


@contextmanager
def running(
    own: OwnGpus, *words: str, constants: Sequence[str] = (), **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A run that goes on until the test ends it, maybe with other constants."""
    process = subprocess.Popen(
        build_quick_command(constants, "run", *words) if constants else command_of(*words),
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


def read_first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def list_claimed_gpus() -> set[str]:
    claimed_gpus = picker.ClaimedGpus()
    return {uuid(index) for index in range(8) if uuid(index) in claimed_gpus}


def read_bookings_here(lab: Lab) -> dict[str, Booking]:
    """What of this machine is booked at this moment."""
    path = lab.data / "comments.json"
    zone = datetime.now().astimezone().tzinfo or timezone.utc
    rows = booking_parser.parse_bookings(path.read_bytes(), zone).rows if path.exists() else ()
    return {
        booking.gpu: booking for booking in rows if booking.host == HERE and booking.until.timestamp() > time.time()
    }


def list_run_processes(folder: Path) -> list[int]:
    """The processes of runs that were started in a folder: gpuboard itself, and the supervisors."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"run" in words and RUN_MODULES.intersection(words) and (path / "cwd").readlink() == folder:
                pids.append(int(path.name))
        except OSError:
            continue
    return pids


def list_supervisors(own: OwnGpus, run_pid: int) -> list[int]:
    """The processes of runs that are not gpuboard itself."""
    return [pid for pid in list_run_processes(own.smi.parent) if pid != run_pid]
