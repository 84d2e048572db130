"""`gpuboard run`."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from site_builder.bookings.backends import BookingBackend, open_booking_backend
from site_builder.bookings.commands import clean_for_terminal, translate_booking_errors
from site_builder.client import completion
from site_builder.client.commands import (
    GPUS_PER_HOST_RANGE,
    ONE_INSTANCE_HINT,
    POLL_INTERVAL_S,
    WaitPolicy,
    parse_duration_option,
    wait_for_gpus,
    with_gpu_picker,
)
from site_builder.client.model import VISIBLE_DEVICES_VARIABLES
from site_builder.core import formatting
from site_builder.core.command_options import CommandError, NegativeResultError, print_message, translate_fleet_errors
from site_builder.core.subprocesses import end_with_parent

if TYPE_CHECKING:
    from site_builder.bookings.backends import BookingBackend
    from site_builder.client.picker import GpuChoice, GpuPicker, PickResult
    from site_builder.client.run_reservation import RunReservation

# Seconds: how often the booking is looked at, how soon again after a failure, and the longest pause of a release.
MAX_CHECK_INTERVAL_S, RETRY_INTERVAL_S, MAX_RELEASE_PAUSE_S = 900.0, 30.0, 300.0
MIN_INTERVAL_S = 0.5
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


class ReservationOutcome(NamedTuple):
    """What came of a booking: 0, or the exit code of a refusal or failure with its words; GPUs that others have."""

    exit_code: int
    message: str = ""
    booked_gpus: tuple[str, ...] = ()


class SupervisorConnection(NamedTuple):
    """What `gpuboard run` holds: to be closed when the command has ended, and to hear that all is released."""

    write_fd: int
    read_fd: int

    def read_messages(self) -> Iterator[str]:
        """What the guard has to say to whoever runs this."""
        while is_readable_within(self.read_fd, 0) and (told := os.read(self.read_fd, 65536)):
            yield from map(json.loads, told.splitlines())

    def release_and_close(self, within: float) -> None:
        """Have it released, and wait for that, but not for long."""
        os.close(self.write_fd)
        is_readable_within(self.read_fd, within)
        os.close(self.read_fd)


class SupervisedRun(NamedTuple):
    """What the guard is for; without a keeper nothing is booked."""

    reservation: RunReservation | None
    backend: BookingBackend | None
    claims: Sequence[int]


def start_supervisor(job: SupervisedRun) -> tuple[ReservationOutcome, SupervisorConnection]:
    """Have it booked by a guard, who is no child of ours: a program that waits for all of its own would wait for ever.

    Whatever happens to us from now on, somebody is there who releases it.
    """
    (theirs, say), (hear, answer) = os.pipe(), os.pipe()
    first = os.fork()
    if first == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                detach_process({*job.claims, theirs, answer})
                supervise_run(job, theirs, answer)
        finally:
            os._exit(0)
    os.close(theirs)
    os.close(answer)
    os.waitpid(first, 0)
    told = b""
    while not told.endswith(b"\n") and (more := os.read(hear, 65536)):
        told += more
    try:
        code, said, promised = json.loads(told)
    except ValueError:
        return ReservationOutcome(2, "the guard of the run has ended before it began"), SupervisorConnection(say, hear)
    return ReservationOutcome(code, said, tuple(promised)), SupervisorConnection(say, hear)


def detach_process(kept: set[int]) -> None:
    """Hold nothing of the caller's: a pipe or a lock that we hold would be held beyond the run."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in range(3):
        os.dup2(nothing, handle)
    for handle in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle not in kept:
            with suppress(OSError):
                os.close(handle)


def supervise_run(job: SupervisedRun, line: int, answer: int) -> None:
    """All that it does: book, say so, keep the booking alive, and release it."""
    try:
        outcome = begin_reservation(job)
        send_to_run(answer, outcome)
        if not outcome.exit_code:
            extend_until_end(job, line, answer)
    finally:
        for claim in job.claims:
            os.close(claim)
        release_reservation(job)


def send_to_run(answer: int, what: object) -> None:
    """A word to `gpuboard run`, which may be gone by now."""
    with suppress(OSError):
        os.write(answer, json.dumps(what).encode() + b"\n")


def is_readable_within(handle: int, within: float) -> bool:
    """Whether there is something to read, or the other end was closed, within so many seconds."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0, within) * 1000))


def read_backend_clock(place: BookingBackend | None) -> datetime:
    """What time it is where bookings are made."""
    return datetime.now(timezone.utc) + timedelta(seconds=place.clock_ahead_s if place else 0)


def begin_reservation(job: SupervisedRun) -> ReservationOutcome:
    """The first booking."""
    from site_builder.client.run_reservation import GpusBookedError  # noqa: PLC0415

    try:
        if job.reservation:
            with translate_booking_errors(job.backend):
                job.reservation.begin(read_backend_clock(job.backend))
    except GpusBookedError as why:
        return ReservationOutcome(1, booked_gpus=tuple(one.uuid for one in why.gpus))
    except CommandError as why:
        return ReservationOutcome(why.exit_code, why.message)
    except Exception as error:
        return ReservationOutcome(2, f"it could not be booked: {type(error).__name__}: {error}")
    return ReservationOutcome(0)


def extend_until_end(job: SupervisedRun, line: int, answer: int) -> None:
    """Until the line ends; what is booked is made longer in time, and what is in the way of that is told once."""
    every = MAX_CHECK_INTERVAL_S if job.reservation is None else job.reservation.duration.total_seconds() / 4
    every = max(MIN_INTERVAL_S, min(every, MAX_CHECK_INTERVAL_S))
    wait, told = every, ""
    while not is_readable_within(line, wait):
        wait, sentence = every, ""
        if job.reservation:
            is_done, sentence = extend_reservation(job.reservation, job.backend)
            wait = every if is_done else min(every, RETRY_INTERVAL_S)
        if sentence and sentence != told:
            send_to_run(answer, sentence)
            told = sentence


def extend_reservation(keeper: RunReservation, place: BookingBackend | None) -> tuple[bool, str]:
    """Whether the booking was looked after, and what to say of it; the run is what counts, and goes on in any case."""
    on = f"the run on {keeper.host} goes on, but"
    try:
        with translate_booking_errors(place):
            others = keeper.extend_if_needed(read_backend_clock(place))
    except CommandError as why:
        return why.exit_code == 1, f"{on} cannot be booked for longer: {why.message}" if why.exit_code == 1 else ""
    except Exception as error:
        return False, f"{on} its booking could not be made longer: {error}"
    at = others.astimezone() if others else None
    return True, f"{on} from {at:%H:%M} on its GPUs are promised to somebody else" if at else ""


def release_reservation(job: SupervisedRun) -> None:
    """Give back what is left; a board that does not answer is asked again, for as long as there is something left."""
    keeper, pause = job.reservation, MIN_INTERVAL_S
    end = time.monotonic() + (keeper.duration.total_seconds() if keeper else 0)
    while keeper and keeper.own_bookings:
        with suppress(Exception):  # whatever it was, it may be over at the next try
            keeper.release()
        if not keeper.own_bookings or time.monotonic() > end:
            return
        time.sleep(pause)
        pause = min(2 * pause, MAX_RELEASE_PAUSE_S)


EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_NOT_STARTED = 130, 127, 126
FORWARDED_SIGNALS = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
# What Python ignores for itself, and no other program expects to be ignored.
RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
# Seconds that we wait for the release; a board that is slower is asked on by the guard.
RELEASE_TIMEOUT_S = 3.0
# How often we look whether the guard has something to say.
SUPERVISOR_POLL_INTERVAL_S = 1.0
NO_BOOK_HINT = "--no-book runs it all the same"


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=completion.complete_files)
@click.option("--gpus", "count", type=GPUS_PER_HOST_RANGE, default=1, metavar="N", help="So many GPUs.  [default: 1]")
@click.option(
    "--for",
    "length",
    callback=parse_duration_option,
    default="1h",
    metavar="LENGTH",
    help="Free and booked for at least so long, and longer while it runs.  [default: 1h]",
)
@click.option("--wait", "patient", is_flag=True, help="Wait until there are so many.")
@click.option("--no-book", is_flag=True, help="Do not book them.")
@click.option("--comment", metavar="TEXT", default="gpuboard run", help="What the booking says.")
@with_gpu_picker
def run(  # one for each option
    picker: GpuPicker,
    command: tuple[str, ...],
    count: int,
    length: float,
    patient: bool,
    no_book: bool,
    comment: str,
) -> None:
    """Run COMMAND on free GPUs of this machine, and book them.

    CUDA_VISIBLE_DEVICES names them, in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID; those of AMD HIP_VISIBLE_DEVICES
    does, and none of another maker is seen. GPUs that you have booked yourself are taken first; a MIG instance is one
    GPU, and never one of several. However COMMAND ends, what was booked for it is released; gpuboard passes signals
    on, and ends as it did. Two that run at once never get the same GPU. Exit 1 if there are not enough, 2 if nobody
    can tell.

    \b
    gpuboard run -- python train.py
    gpuboard run --gpus 2 --model A100 --wait -- torchrun train.py
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it never hears how a child ended
    open_standard_streams()
    program = shutil.which(command[0])
    if program is None:
        there = "/" in command[0] and Path(command[0]).exists()
        what = (
            f"{clean_for_terminal(command[0])} is no program"
            if there
            else f"there is no command {clean_for_terminal(command[0])}"
        )
        print_message(what)
        raise SystemExit(EXIT_NOT_STARTED if there else EXIT_NOT_FOUND)
    patience = WaitPolicy(None if patient else 0, POLL_INTERVAL_S)
    taking = GpuAcquisition(picker, count, length, None if no_book else comment, patience)
    try:
        line = taking.acquire()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    run_supervised(program, command, build_run_environment(taking.choices, os.environ), line)


def build_run_environment(chosen: Sequence[GpuChoice], before: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a program sees these GPUs alone, and none of another maker.

    HIP takes CUDA's word too, and programs complain where it differs from its own; what filters before HIP does would
    make its numbers mean others.
    """
    found = dict(before)
    host, vendor = chosen[0].host, chosen[0].gpu.vendor
    if vendor == "amd":
        for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
            found.pop(name, None)
    else:
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    makers = {gpu.vendor for gpu in (*host.gpus, *host.mig_gpus)}
    found.update((name, "") for maker, name in VISIBLE_DEVICES_VARIABLES.items() if maker in makers)
    found[VISIBLE_DEVICES_VARIABLES.get(vendor, VISIBLE_DEVICES_VARIABLES["nvidia"])] = ",".join(
        str(one.visible_number) for one in chosen
    )
    return found


def open_standard_streams() -> None:
    """Where somebody closed stdin, stdout or stderr, nothing takes its place that is then written over."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)


def open_run_backend(picker: GpuPicker) -> BookingBackend | None:
    """Where to book; None where there is no board, or it takes no bookings."""
    from site_builder.client import loader  # noqa: PLC0415 # --help needs none of it

    kind = loader.choose_fleet_source(picker.loaded)
    if kind == "machine":
        return None
    place = open_booking_backend(picker.loaded)
    if kind == "url":
        with translate_booking_errors(place):
            if not place.read_status().get("book"):
                print_message("the board takes no bookings, so that this run is not booked")
                return None
    return place


class GpuAcquisition:
    """Takes GPUs for one run: each by a claim on this machine, then all of them by a booking."""

    def __init__(self, picker: GpuPicker, count: int, length: float, comment: str | None, patience: WaitPolicy) -> None:
        """So many, for so long; without a comment they are not booked."""
        self.picker = picker
        self.count = count
        self.duration_s = length
        self.comment = comment
        self.wait_policy = patience
        self.lost_at: dict[str | None, float] = {}
        self.booked_soon_count = 0
        self.choices: list[GpuChoice] = []

    @cached_property
    def backend(self) -> BookingBackend | None:
        """Where to book; found out once there is something to book."""
        return None if self.comment is None else open_run_backend(self.picker)

    def acquire(self) -> SupervisorConnection:
        """Take them: where others were faster, others are taken."""
        while True:
            try:
                self.choices = wait_for_gpus(self.find_candidates, self.picker.request, self.count, self.wait_policy)
            except NegativeResultError as why:
                raise self.explain_shortage(why) from None
            line = self.try_acquire()
            if line:
                return line

    def try_acquire(self) -> SupervisorConnection | None:
        """Those that were chosen, or None if others were faster."""
        claims = self.claim_gpus()
        if claims is None:
            return None
        try:
            outcome, line = start_supervisor(SupervisedRun(self.build_reservation(), self.backend, claims))
        finally:
            for claim in claims:  # the guard has them
                os.close(claim)
        if not outcome.exit_code:
            return line
        line.release_and_close(RELEASE_TIMEOUT_S)
        if outcome.booked_gpus:
            self.mark_lost(*outcome.booked_gpus)
            return None
        kind = NegativeResultError if outcome.exit_code == 1 else CommandError
        raise kind(f"{outcome.message}; {NO_BOOK_HINT}" if self.backend else outcome.message)

    def build_reservation(self) -> RunReservation | None:
        """Who books them."""
        from site_builder.client.run_reservation import ReservedGpu, RunReservation  # noqa: PLC0415

        if self.backend is None:
            return None
        cards = [
            ReservedGpu(one.gpu.label, one.gpu.identifier, one.gpu.parent_keys)
            for one in self.choices
            if one.gpu.index is not None
        ]
        return RunReservation(self.backend, self.choices[0].host.name, cards, self.duration_s, self.comment or "")

    def find_candidates(self) -> PickResult:
        """What can be had for long enough, one's own first, without what others just took."""
        from site_builder.fleet import gpu_models  # noqa: PLC0415

        found = self.picker.find_gpus(for_run=True)
        now = time.time() + found.fleet.clock_ahead_s
        long_enough = [one for one in found.choices if self.is_free_long_enough(one, now)]
        self.booked_soon_count = len(found.choices) - len(long_enough)
        if self.wait_policy.deadline is None:  # it can be waited for
            self.lost_at = {uuid: at for uuid, at in self.lost_at.items() if time.monotonic() - at < POLL_INTERVAL_S}
        named = [one for one in long_enough if one.gpu.uuid or one.gpu.vendor != gpu_models.DEFAULT_VENDOR]
        ours = [one for one in named if one.gpu.identifier not in self.lost_at]
        if self.count > 1 and any(one.gpu.parent_keys for one in ours):
            ours = [one for one in ours if not one.gpu.parent_keys]
            found = found._replace(reason=f"{found.reason}; {ONE_INSTANCE_HINT}")
        return found._replace(choices=sorted(ours, key=lambda one: not one.is_own_booking))

    def is_free_long_enough(self, choice: GpuChoice, now: float) -> bool:
        """Whether it is promised to nobody else before its time is over."""
        return not any(
            one.since
            and one.since.timestamp() < now + self.duration_s
            and not (one.name and self.picker.is_mine(one.name))
            for one in choice.gpu.bookings
            if one.until.timestamp() > now
        )

    def explain_shortage(self, why: NegativeResultError) -> NegativeResultError:
        """A refusal with what stands in the way of a run alone."""
        told = [why.message]
        if self.booked_soon_count:
            within = formatting.format_duration(self.duration_s)
            told.append(f"{self.booked_soon_count} promised to others within {within}: a shorter --for may do")
        if self.lost_at:
            told.append(f"{len(self.lost_at)} promised to others, or taken just now")
        return NegativeResultError("; ".join(told))

    def mark_lost(self, *uuids: str | None) -> None:
        """Do not try these again at once."""
        self.lost_at.update(dict.fromkeys(uuids, time.monotonic()))

    def claim_gpus(self) -> list[int] | None:
        """The claims on them on this machine, all or none."""
        from site_builder.client import run_reservation  # noqa: PLC0415

        found: list[int] = []
        for one in self.choices:
            with translate_fleet_errors():
                claim = run_reservation.claim_gpu(one.gpu.identifier)
            if claim is None:
                self.mark_lost(one.gpu.identifier)
                for handle in found:
                    os.close(handle)
                return None
            found.append(claim)
        return found


def run_supervised(
    program: str, command: Sequence[str], environment: dict[str, str], line: SupervisorConnection
) -> NoReturn:
    """Run the command as our child, pass on what we are told, release, and end as it did."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED_SIGNALS, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        exec_command(program, command, environment, before)
    status = None
    while status is None:
        told = signal.sigtimedwait({*FORWARDED_SIGNALS, signal.SIGCHLD}, SUPERVISOR_POLL_INTERVAL_S)
        if told and told.si_signo != signal.SIGCHLD and told.si_code <= 0:  # the terminal tells the command itself
            os.kill(child, told.si_signo)
        for sentence in line.read_messages():
            with suppress(OSError, ValueError):  # nobody may listen any more
                print_message(sentence)
        status = reap_children(child)
    line.release_and_close(RELEASE_TIMEOUT_S)
    if os.WIFSIGNALED(status):
        end_by_signal(os.WTERMSIG(status))
    raise SystemExit(os.WEXITSTATUS(status))


def exec_command(program: str, command: Sequence[str], environment: dict[str, str], mask: Iterable[int]) -> NoReturn:
    """In the child: the command, which does not outlive us if we are killed."""
    end_with_parent(signal.SIGKILL)
    for number in RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execve(program, list(command), environment)  # noqa: S606 # no shell is the point
    except OSError as error:
        print_message(f"{clean_for_terminal(program)} cannot be started: {error.strerror}")
    os._exit(EXIT_NOT_STARTED)


def reap_children(child: int) -> int | None:
    """How the command ended, if it has; whoever else ended under us is buried too, as the first process must."""
    ended = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended = status if pid == child else ended
    return ended


def end_by_signal(number: int) -> NoReturn:
    """End as the command did, so that a shell sees the same; the first process of a container cannot be killed so."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.Signals(number)})
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)
