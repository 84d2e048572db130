"""`gpuboard run`: a command on GPUs that are picked and booked for it, and released when it ends."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from site_builder.bookings.command_common import No, Place, in_sentences, place_of, shown
from site_builder.client import completion, run_supervisor
from site_builder.client.command_common import ONE_INSTANCE, seconds_of, with_picker
from site_builder.client.model import VISIBLE
from site_builder.client.wait_command import COUNT, EVERY, Patience, until_found
from site_builder.core import formatting
from site_builder.core.command_options import Failure, failing, tell
from site_builder.demo.live_board import PR_SET_PDEATHSIG

if TYPE_CHECKING:
    from site_builder.bookings.run_reservation import Keeper
    from site_builder.client.picker import Found, Picker
    from site_builder.fleet.select import Choice

INTERRUPTED, NOT_FOUND, NOT_STARTED = 130, 127, 126
PASSED_ON = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
# What Python ignores for itself, and no other program expects to be ignored.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
# Seconds that we wait for the release; a board that is slower is asked on by the guard.
RELEASED_WITHIN = 3.0
# How often we look whether the guard has something to say.
LOOK_EVERY = 1.0
NO_BOOK = "--no-book runs it all the same"


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=completion.files)
@click.option("--gpus", "count", type=COUNT, default=1, metavar="N", help="So many GPUs.  [default: 1]")
@click.option(
    "--for",
    "length",
    callback=seconds_of,
    default="1h",
    metavar="LENGTH",
    help="Free and booked for at least so long, and longer while it runs.  [default: 1h]",
)
@click.option("--wait", "patient", is_flag=True, help="Wait until there are so many.")
@click.option("--no-book", is_flag=True, help="Do not book them.")
@click.option("--comment", metavar="TEXT", default="gpuboard run", help="What the booking says.")
@with_picker
def run(  # noqa: PLR0913, PLR0917 # one for each option
    picker: Picker,
    command: tuple[str, ...],
    count: int,
    length: float,
    patient: bool,
    no_book: bool,
    comment: str,
) -> None:
    """Run COMMAND on free GPUs of this machine, and book them while it runs.

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
    open_all()
    program = shutil.which(command[0])
    if program is None:
        there = "/" in command[0] and Path(command[0]).exists()
        what = f"{shown(command[0])} is no program" if there else f"there is no command {shown(command[0])}"
        tell(what)
        raise SystemExit(NOT_STARTED if there else NOT_FOUND)
    patience = Patience(None if patient else 0, EVERY)
    taking = Taking(picker, count, length, None if no_book else comment, patience)
    try:
        line = taking.taken()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    supervised(program, command, seeing(taking.chosen, os.environ), line)


def seeing(chosen: Sequence[Choice], before: Mapping[str, str]) -> dict[str, str]:
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
    makers = {gpu.vendor for gpu in (*host.gpus, *host.cut)}
    found.update((name, "") for maker, name in VISIBLE.items() if maker in makers)
    found[VISIBLE.get(vendor, VISIBLE["nvidia"])] = ",".join(str(one.number) for one in chosen)
    return found


def open_all() -> None:
    """Where somebody closed stdin, stdout or stderr, nothing takes its place that is then written over."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)


def desk_of(picker: Picker) -> Place | None:
    """Where to book; None where there is no board, or it takes no bookings."""
    from site_builder.client import loader  # noqa: PLC0415 # --help needs none of it

    kind = loader.kind_of(picker.loaded)
    if kind == "machine":
        return None
    place = place_of(picker.loaded)
    if kind == "url":
        with in_sentences(place):
            if not place.status().get("book"):
                tell("the board takes no bookings, so that this run is not booked")
                return None
    return place


class Taking:
    """Takes GPUs for one run: each by a claim on this machine, then all of them by a booking."""

    def __init__(self, picker: Picker, count: int, length: float, comment: str | None, patience: Patience) -> None:
        """So many, for so long; without a comment they are not booked."""
        self.picker = picker
        self.count = count
        self.length = length
        self.comment = comment
        self.patience = patience
        self.lost: dict[str | None, float] = {}
        self.too_soon = 0
        self.chosen: list[Choice] = []

    @cached_property
    def place(self) -> Place | None:
        """Where to book; found out once there is something to book."""
        return None if self.comment is None else desk_of(self.picker)

    def taken(self) -> run_supervisor.Line:
        """Take them: where others were faster, others are taken."""
        while True:
            try:
                self.chosen = until_found(self.look, self.picker.wish, self.count, self.patience)
            except No as why:
                raise self.in_full(why) from None
            line = self.try_once()
            if line:
                return line

    def try_once(self) -> run_supervisor.Line | None:
        """Those that were chosen, or None if others were faster."""
        claims = self.claimed()
        if claims is None:
            return None
        try:
            outcome, line = run_supervisor.start(run_supervisor.Job(self.keeper(), self.place, claims))
        finally:
            for claim in claims:  # the guard has them
                os.close(claim)
        if not outcome.code:
            return line
        line.end(RELEASED_WITHIN)
        if outcome.promised:
            self.lose(*outcome.promised)
            return None
        kind = No if outcome.code == 1 else Failure
        raise kind(f"{outcome.said}; {NO_BOOK}" if self.place else outcome.said)

    def keeper(self) -> Keeper | None:
        """Who books them."""
        from site_builder.bookings.run_reservation import Card, Keeper  # noqa: PLC0415

        if self.place is None:
            return None
        cards = [Card(one.gpu.label, one.gpu.handle, one.gpu.of) for one in self.chosen if one.gpu.index is not None]
        return Keeper(self.place, self.chosen[0].host.name, cards, self.length, self.comment or "")

    def look(self) -> Found:
        """What can be had for long enough, one's own first, without what others just took."""
        from site_builder.fleet import select  # noqa: PLC0415

        found = self.picker.found(for_run=True)
        now = time.time() + found.fleet.ahead
        long_enough = [one for one in found.choices if self.is_free(one, now)]
        self.too_soon = len(found.choices) - len(long_enough)
        if self.patience.end is None:  # it can be waited for
            self.lost = {uuid: at for uuid, at in self.lost.items() if time.monotonic() - at < EVERY}
        named = [one for one in long_enough if one.gpu.uuid or one.gpu.vendor != select.FIRST]
        ours = [one for one in named if one.gpu.handle not in self.lost]
        if self.count > 1 and any(one.gpu.of for one in ours):
            ours = [one for one in ours if not one.gpu.of]
            found = found._replace(why=f"{found.why}; {ONE_INSTANCE}")
        return found._replace(choices=sorted(ours, key=lambda one: not one.mine))

    def is_free(self, choice: Choice, now: float) -> bool:
        """Whether it is promised to nobody else before its time is over."""
        return not any(
            one.since and one.since.timestamp() < now + self.length and not (one.name and self.picker.is_mine(one.name))
            for one in choice.gpu.bookings
            if one.until.timestamp() > now
        )

    def in_full(self, why: No) -> No:
        """A refusal with what stands in the way of a run alone."""
        told = [why.message]
        if self.too_soon:
            within = formatting.duration(self.length)
            told.append(f"{self.too_soon} promised to others within {within}: a shorter --for may do")
        if self.lost:
            told.append(f"{len(self.lost)} promised to others, or taken just now")
        return No("; ".join(told))

    def lose(self, *uuids: str | None) -> None:
        """Do not try these again at once."""
        self.lost.update(dict.fromkeys(uuids, time.monotonic()))

    def claimed(self) -> list[int] | None:
        """The claims on them on this machine, all or none."""
        from site_builder.client import gpu_locks  # noqa: PLC0415

        found: list[int] = []
        for one in self.chosen:
            with failing():
                claim = gpu_locks.claim(one.gpu.handle)
            if claim is None:
                self.lose(one.gpu.handle)
                for handle in found:
                    os.close(handle)
                return None
            found.append(claim)
        return found


def supervised(
    program: str, command: Sequence[str], environment: dict[str, str], line: run_supervisor.Line
) -> NoReturn:
    """Run the command as our child, pass on what we are told, release, and end as it did."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        become(program, command, environment, before)
    status = None
    while status is None:
        told = signal.sigtimedwait({*PASSED_ON, signal.SIGCHLD}, LOOK_EVERY)
        if told and told.si_signo != signal.SIGCHLD and told.si_code <= 0:  # the terminal tells the command itself
            os.kill(child, told.si_signo)
        for sentence in line.news():
            with suppress(OSError, ValueError):  # nobody may listen any more
                tell(sentence)
        status = buried(child)
    line.end(RELEASED_WITHIN)
    if os.WIFSIGNALED(status):
        end_by(os.WTERMSIG(status))
    raise SystemExit(os.WEXITSTATUS(status))


def become(program: str, command: Sequence[str], environment: dict[str, str], mask: Iterable[int]) -> NoReturn:
    """In the child: the command, which does not outlive us if we are killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execve(program, list(command), environment)  # noqa: S606 # no shell is the point
    except OSError as error:
        tell(f"{shown(program)} cannot be started: {error.strerror}")
    os._exit(NOT_STARTED)


def buried(child: int) -> int | None:
    """How the command ended, if it has; whoever else ended under us is buried too, as the first process must."""
    ended = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended = status if pid == child else ended
    return ended


def end_by(number: int) -> NoReturn:
    """End as the command did, so that a shell sees the same; the first process of a container cannot be killed so."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.Signals(number)})
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)
