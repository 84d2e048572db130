"""`gpuboard run`."""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn

import click

from site_builder.bookings.backends import BookingBackend, open_booking_backend
from site_builder.bookings.commands import translate_booking_errors
from site_builder.client import loader
from site_builder.client.commands import (
    GPUS_PER_HOST_RANGE,
    ONE_INSTANCE_HINT,
    POLL_INTERVAL_S,
    GpuWaiter,
    parse_duration_option,
    with_gpu_picker,
)
from site_builder.client.model import VISIBLE_DEVICES_VARIABLES
from site_builder.client.picker import GpuChoice, GpuPicker, PickResult, claim_picked_gpu
from site_builder.client.run_reservation import ReservedGpu, RunReservation
from site_builder.core import command_options, formatting
from site_builder.core.command_options import (
    CommandError,
    NegativeResultError,
    print_command_message,
    translate_to_command_errors,
)
from site_builder.core.subprocesses import end_with_parent
from site_builder.core.terminal_text import clean_text
from site_builder.fleet import gpu_models

# Seconds: how often the booking is checked, how soon again after a failure, and the longest pause of a release.
MAX_CHECK_INTERVAL_S, RETRY_INTERVAL_S, MAX_RELEASE_PAUSE_S = 900.0, 30.0, 300.0
MIN_INTERVAL_S = 0.5
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_NOT_STARTED = 130, 127, 126
FORWARDED_SIGNALS = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
# Signals that Python ignores, and that no other program expects to be ignored.
RESET_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
# Seconds that we wait for the release; the supervisor goes on asking a slower board.
RELEASE_TIMEOUT_S = 3.0
# How often we read the messages of the supervisor.
SUPERVISOR_POLL_INTERVAL_S = 1.0
NO_BOOK_HINT = "use --no-book to run without a booking"


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=command_options.complete_file_option
)
@click.option("--gpus", "count", type=GPUS_PER_HOST_RANGE, default=1, metavar="N", help="Number of GPUs.  [default: 1]")
@click.option(
    "--for",
    "length",
    callback=parse_duration_option,
    default="1h",
    metavar="LENGTH",
    help="Minimum time to book; extended while it runs.  [default: 1h]",
)
@click.option("--wait", "patient", is_flag=True, help="Wait until enough GPUs are available.")
@click.option("--no-book", is_flag=True, help="Do not book the GPUs.")
@click.option(
    "--comment", metavar="TEXT", default="gpuboard run", help="Comment of the booking.  [default: gpuboard run]"
)
@with_gpu_picker
def run(
    picker: GpuPicker, command: tuple[str, ...], count: int, length: float, patient: bool, no_book: bool, comment: str
) -> None:
    """Run COMMAND on free GPUs of this machine, and book them.

    COMMAND sees only these GPUs, through CUDA_VISIBLE_DEVICES (with CUDA_DEVICE_ORDER=PCI_BUS_ID), or through
    HIP_VISIBLE_DEVICES for AMD. GPUs that you have booked yourself are taken first. A MIG instance counts as one
    GPU and is never combined with others. Two runs never get the same GPU.

    When COMMAND ends, in whatever way, its booking is released. gpuboard passes signals on and ends as COMMAND did.
    Exit 1 if there are not enough GPUs, 2 if their state is not known.

    \b
    gpuboard run -- python train.py
    gpuboard run --gpus 2 --model A100 --wait -- torchrun train.py
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it never hears how a child ended
    # open closed standard streams, so that no other file gets their number and is written over
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)
    program = shutil.which(command[0])
    if program is None:
        exists = "/" in command[0] and Path(command[0]).exists()
        name = clean_text(command[0])
        print_command_message(f"{name} is not a program" if exists else f"command not found: {name}")
        raise SystemExit(EXIT_NOT_STARTED if exists else EXIT_NOT_FOUND)
    waiter = GpuWaiter(None if patient else 0, POLL_INTERVAL_S)
    acquisition = RunGpuAcquisition(picker, count, length, None if no_book else comment, waiter)
    try:
        connection = acquisition.acquire()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    run_supervised(program, command, build_run_environment(acquisition.choices, os.environ), connection)


def build_run_environment(choices: Sequence[GpuChoice], environment: Mapping[str, str]) -> dict[str, str]:
    """Build an environment in which a program sees only these GPUs, and none of another maker.

    HIP reads CUDA's variable too, and programs complain if it differs from its own; variables that filter before HIP
    does would change the meaning of its numbers.
    """
    new_environment = dict(environment)
    host, vendor = choices[0].host, choices[0].gpu.vendor
    if vendor == "amd":
        for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
            new_environment.pop(name, None)
    else:
        new_environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    vendors = {gpu.vendor for gpu in (*host.gpus, *host.mig_gpus)}
    new_environment.update((name, "") for maker, name in VISIBLE_DEVICES_VARIABLES.items() if maker in vendors)
    variable = VISIBLE_DEVICES_VARIABLES.get(vendor, VISIBLE_DEVICES_VARIABLES["nvidia"])
    new_environment[variable] = ",".join(str(choice.visible_number) for choice in choices)
    return new_environment


@dataclass
class RunGpuAcquisition:
    """Takes GPUs for one run: claims each on this machine, then books all of them; None as a comment books nothing."""

    picker: GpuPicker
    count: int
    duration_s: float
    comment: str | None
    waiter: GpuWaiter
    choices: Sequence[GpuChoice] = ()
    booked_soon_count: int = 0
    lost_at: dict[str, float] = field(default_factory=dict)

    @cached_property
    def backend(self) -> BookingBackend | None:
        """Return where to book, found when there is something to book; None if there is no board that takes it."""
        source = loader.choose_fleet_source(self.picker.loaded)
        if self.comment is None or source == "machine":
            return None
        backend = open_booking_backend(self.picker.loaded)
        if source == "url":
            with translate_booking_errors(backend):
                if not backend.read_status().get("book"):
                    print_command_message("this board takes no bookings, so this run is not booked")
                    return None
        return backend

    def acquire(self) -> SupervisorConnection:
        """Take GPUs; if somebody else takes them first, choose again."""
        while True:
            try:
                self.choices = self.waiter.wait_for_gpus(
                    self.find_candidates, self.picker.request, self.count, own_first=True
                )
            except NegativeResultError as error:
                reasons = [error.message]  # and what only prevents a run
                if self.booked_soon_count:
                    within = formatting.format_duration(self.duration_s)
                    reasons.append(f"{self.booked_soon_count} booked by others within {within}: try a shorter --for")
                if self.lost_at:
                    reasons.append(f"{len(self.lost_at)} just booked or taken by others")
                raise NegativeResultError("; ".join(reasons)) from None
            connection = self.try_acquire()
            if connection:
                return connection

    def try_acquire(self) -> SupervisorConnection | None:
        """Take the chosen GPUs, all or none; None if others were faster, and these are not tried again at once."""
        claims: list[int] = []
        with ExitStack() as closing:  # the supervisor has them too
            for choice in self.choices:
                with translate_to_command_errors():
                    claim = claim_picked_gpu(choice.gpu.identifier)
                if claim is None:
                    self.lost_at[choice.gpu.identifier] = time.monotonic()
                    return None
                closing.callback(os.close, claim)
                claims.append(claim)
            reservation = None
            if self.backend:
                chosen_gpus = [choice.gpu for choice in self.choices]
                gpus = [ReservedGpu(gpu.label, gpu.identifier, gpu.parent_keys) for gpu in chosen_gpus]
                host = self.choices[0].host.name
                reservation = RunReservation(self.backend, host, gpus, self.duration_s, self.comment or "")
            outcome, connection = start_supervisor(reservation, claims)
        if not outcome.exit_code:
            return connection
        connection.release_and_close(RELEASE_TIMEOUT_S)
        if outcome.booked_gpus:
            self.lost_at.update(dict.fromkeys(outcome.booked_gpus, time.monotonic()))
            return None
        error_class = NegativeResultError if outcome.exit_code == 1 else CommandError
        raise error_class(f"{outcome.message}; {NO_BOOK_HINT}" if self.backend else outcome.message)

    def find_candidates(self) -> PickResult:
        """Find GPUs that are free for long enough, the user's own first, without those that others just took."""
        result = self.picker.find_gpus(for_run=True)
        end = result.now + self.duration_s
        long_enough = [choice for choice in result.choices if choice.free_until is None or choice.free_until >= end]
        self.booked_soon_count = len(result.choices) - len(long_enough)
        if self.waiter.deadline is None:  # it can be waited for
            self.lost_at = {uuid: at for uuid, at in self.lost_at.items() if time.monotonic() - at < POLL_INTERVAL_S}
        usable = [choice for choice in long_enough if choice.gpu.uuid or choice.gpu.vendor != gpu_models.DEFAULT_VENDOR]
        candidates = [choice for choice in usable if choice.gpu.identifier not in self.lost_at]
        if self.count > 1 and any(choice.gpu.parent_keys for choice in candidates):
            candidates = [choice for choice in candidates if not choice.gpu.parent_keys]
            result = result._replace(reason=f"{result.reason}; {ONE_INSTANCE_HINT}")
        return result._replace(choices=sorted(candidates, key=lambda choice: not choice.is_own_booking))


def run_supervised(
    program: str, command: Sequence[str], environment: dict[str, str], connection: SupervisorConnection
) -> NoReturn:
    """Run the command as our child, forward signals, release the booking, and end as the command did."""
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED_SIGNALS, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        end_with_parent(signal.SIGKILL)  # it does not outlive us if we are killed
        for reset_signal in RESET_SIGNALS:
            signal.signal(reset_signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        try:
            os.execve(program, list(command), environment)  # noqa: S606 # no shell is the point
        except OSError as error:
            print_command_message(f"{clean_text(program)} cannot be started: {error.strerror}")
        os._exit(EXIT_NOT_STARTED)
    status = None
    while status is None:
        received = signal.sigtimedwait({*FORWARDED_SIGNALS, signal.SIGCHLD}, SUPERVISOR_POLL_INTERVAL_S)
        # the terminal signals the command itself
        if received and received.si_signo != signal.SIGCHLD and received.si_code <= 0:
            os.kill(child, received.si_signo)
        for message in connection.read_messages():
            with suppress(OSError, ValueError):  # stderr may be closed
                print_command_message(message)
        with suppress(ChildProcessError):  # also reap other children, as the first process of a container must
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = ended[1] if ended[0] == child else status
    connection.release_and_close(RELEASE_TIMEOUT_S)
    if os.WIFSIGNALED(status):
        # end as the command did, so that a shell sees the same; the first process of a container cannot be killed so
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.Signals(number)})
        os.kill(os.getpid(), number)
        raise SystemExit(128 + number)
    raise SystemExit(os.WEXITSTATUS(status))


# The process that keeps the booking of a run


class SupervisedRunOutcome(NamedTuple):
    """The outcome of a booking: 0, or the exit code of a refusal or failure with its message; GPUs that others have."""

    exit_code: int
    message: str = ""
    booked_gpus: tuple[str, ...] = ()


class SupervisorConnection(NamedTuple):
    """The connection of `gpuboard run` to its supervisor, closed when the command has ended."""

    write_fd: int
    read_fd: int

    def read_messages(self) -> Iterator[str]:
        """Yield the messages of the supervisor."""
        while is_supervised_run_readable(self.read_fd, 0) and (content := os.read(self.read_fd, 65536)):
            yield from map(json.loads, content.splitlines())

    def release_and_close(self, timeout_s: float) -> None:
        """Have the booking released, and wait for that for a short time."""
        os.close(self.write_fd)
        is_supervised_run_readable(self.read_fd, timeout_s)
        os.close(self.read_fd)


def start_supervisor(
    reservation: RunReservation | None, claims: Sequence[int]
) -> tuple[SupervisedRunOutcome, SupervisorConnection]:
    """Book in a process that is not our child: a program that waits for all its children would wait for ever.

    Whatever happens to us from now on, that process releases the booking.
    """
    (run_ended, end_run), (messages, send_messages) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                for number in IGNORED_SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
                null_device = os.open(os.devnull, os.O_RDWR)
                for handle in range(3):
                    os.dup2(null_device, handle)
                # a pipe or a lock of the caller that we hold would be held beyond the run
                for handle in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
                    if handle > 2 and handle not in {*claims, run_ended, send_messages}:
                        with suppress(OSError):
                            os.close(handle)
                supervise_run(reservation, claims, run_ended, send_messages)
        finally:
            os._exit(0)
    os.close(run_ended)
    os.close(send_messages)
    os.waitpid(child, 0)
    content = b""
    while not content.endswith(b"\n") and (chunk := os.read(messages, 65536)):
        content += chunk
    try:
        code, message, booked_gpus = json.loads(content)
    except ValueError:
        code, message, booked_gpus = 2, "the supervisor of the run ended before the run began", ()
    return SupervisedRunOutcome(code, message, tuple(booked_gpus)), SupervisorConnection(end_run, messages)


def supervise_run(reservation: RunReservation | None, claims: Sequence[int], run_ended: int, messages: int) -> None:
    """Book, report it, keep the booking alive until the run ends, and release it."""
    outcome = SupervisedRunOutcome(0)
    try:
        try:
            if reservation:
                with translate_booking_errors(reservation.backend):
                    booked_gpus = tuple(gpu.uuid for gpu in reservation.begin(reservation.read_clock()))
                outcome = SupervisedRunOutcome(1 if booked_gpus else 0, booked_gpus=booked_gpus)
        except CommandError as error:
            outcome = SupervisedRunOutcome(error.exit_code, error.message)
        except Exception as error:
            outcome = SupervisedRunOutcome(2, f"the GPUs could not be booked: {type(error).__name__}: {error}")
        send_to_supervised_run(messages, outcome)
        if not outcome.exit_code and reservation:
            extend_supervised_run_until_end(reservation, run_ended, messages)
        elif not outcome.exit_code:
            os.read(run_ended, 1)
    finally:
        for claim in claims:
            os.close(claim)
        # ask a board that does not respond again, until the booking would have ended
        pause_s, end = MIN_INTERVAL_S, time.monotonic() + (reservation.duration.total_seconds() if reservation else 0)
        while reservation and reservation.own_bookings:
            with suppress(Exception):  # whatever it was, it may be over at the next try
                reservation.release()
            if not reservation.own_bookings or time.monotonic() > end:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_RELEASE_PAUSE_S)


def send_to_supervised_run(messages: int, message: object) -> None:
    """Send a message to `gpuboard run`, which may be gone by now."""
    with suppress(OSError):
        os.write(messages, json.dumps(message).encode() + b"\n")


def is_supervised_run_readable(handle: int, timeout_s: float) -> bool:
    """Return whether there is something to read, or the other end was closed, within the timeout."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0, timeout_s) * 1000))


def extend_supervised_run_until_end(reservation: RunReservation, run_ended: int, messages: int) -> None:
    """Extend the booking until the run ends; report once what prevents it."""
    interval_s = max(MIN_INTERVAL_S, min(reservation.duration.total_seconds() / 4, MAX_CHECK_INTERVAL_S))
    pause_s, last_message = interval_s, ""
    while not is_supervised_run_readable(run_ended, pause_s):
        is_done, message, prefix = True, "", f"the run on {reservation.host} continues, but"
        try:
            with translate_booking_errors(reservation.backend):
                other_start = reservation.extend_if_needed(reservation.read_clock())
            if other_start:
                start_text = f"{other_start.astimezone():%H:%M}"
                message = f"{prefix} its GPUs are booked by somebody else from {start_text}"
        except CommandError as error:
            is_done = error.exit_code == 1  # it is refused
            message = f"{prefix} its booking cannot be extended: {error.message}" if is_done else ""
        except Exception as error:
            is_done, message = False, f"{prefix} its booking could not be extended: {error}"
        pause_s = interval_s if is_done else min(interval_s, RETRY_INTERVAL_S)
        if message and message != last_message:
            send_to_supervised_run(messages, message)
            last_message = message
