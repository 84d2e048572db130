"""`gpuboard run`: a command on GPUs that are picked and booked for it, and released when it ends."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from site_builder import words
from site_builder.commands import guard, hints
from site_builder.commands.booking import No, Place, in_sentences, place_of, shown
from site_builder.commands.options import Failure, tell
from site_builder.commands.picking import Found, Picker, failing, seconds_of, with_picker
from site_builder.commands.wait import COUNT, EVERY, Patience, until_found

if TYPE_CHECKING:
    from site_builder.booking.keeper import Keeper
    from site_builder.decide.pick import Choice

NOT_FOUND, NOT_STARTED = 127, 126
# What is passed on to a command that is not in our place.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# What Python ignores for itself, and no other program expects to be ignored.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
NO_BOOK = "--no-book runs it all the same"


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=hints.files)
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

    CUDA_VISIBLE_DEVICES names them, in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID. GPUs that you have booked yourself
    are taken first. However COMMAND ends, what was booked for it is released; its exit code is that of gpuboard. Two
    that run at once never get the same GPU. Exit 1 if there are not enough, 2 if nobody can tell.

    \b
    gpuboard run -- python train.py
    gpuboard run --gpus 2 --model A100 --wait -- torchrun train.py
    """
    open_all()
    program = shutil.which(command[0])
    if program is None:
        there = "/" in command[0] and Path(command[0]).exists()
        what = f"{shown(command[0])} is no program" if there else f"there is no command {shown(command[0])}"
        tell(what)
        raise SystemExit(NOT_STARTED if there else NOT_FOUND)
    taking = Taking(picker, count, length, None if no_book else comment)
    while not taking.try_once(patient):
        pass
    start(program, command, taking)


def open_all() -> None:
    """Where somebody closed stdin, stdout or stderr, nothing takes its place that is then written over."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)


def desk_of(picker: Picker) -> Place | None:
    """Where to book; None where there is no board, or it takes no bookings."""
    from site_builder import fleets  # noqa: PLC0415 # --help needs none of it

    kind = fleets.kind_of(picker.loaded)
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

    def __init__(self, picker: Picker, count: int, length: float, comment: str | None) -> None:
        """So many, for so long; without a comment they are not booked."""
        self.picker = picker
        self.count = count
        self.length = length
        self.comment = comment
        self.lost: dict[str | None, float] = {}
        self.too_soon = 0
        self.patient = False
        self.chosen: list[Choice] = []
        self.outcome = guard.Outcome(0)

    @cached_property
    def place(self) -> Place | None:
        """Where to book; found out once there is something to book."""
        return None if self.comment is None else desk_of(self.picker)

    def try_once(self, patient: bool) -> bool:
        """Whether all of them are ours now; if not, others were faster, and it can be tried again."""
        self.patient = patient
        patience = Patience(None if patient else 0, EVERY)
        try:
            self.chosen = until_found(self.look, self.picker, self.count, patience)
        except No as why:
            raise self.promised(why) from None
        claims = self.claim()
        if claims is None:
            return False
        try:
            self.outcome = guard.start(self.keeper(), claims)
        finally:
            for claim in claims:  # the guard has them
                os.close(claim)
        if self.outcome.promised:
            self.lose(*self.outcome.promised)
            return False
        if self.outcome.code:
            kind = No if self.outcome.code == 1 else Failure
            raise kind(f"{self.outcome.said}; {NO_BOOK}")
        return True

    def keeper(self) -> Keeper | None:
        """Who books them."""
        from site_builder.booking.keeper import Keeper, Wanted  # noqa: PLC0415

        if self.place is None:
            return None
        gpus = [Wanted(one.gpu.index or 0, one.gpu.uuid or "") for one in self.chosen]
        return Keeper(self.place, self.chosen[0].host.name, gpus, self.length, self.comment or "")

    def look(self) -> Found:
        """What can be had for long enough, one's own first, without what others just took."""
        found = self.picker.found(everywhere=False, here=True)
        now = time.time() + found.fleet.ahead
        long_enough = [one for one in found.choices if self.is_free(one, now)]
        self.too_soon = len(found.choices) - len(long_enough)
        if self.patient:
            self.lost = {uuid: at for uuid, at in self.lost.items() if time.monotonic() - at < EVERY}
        ours = [one for one in long_enough if one.gpu.uuid and one.gpu.uuid not in self.lost]
        return found._replace(choices=sorted(ours, key=lambda one: not one.mine))

    def is_free(self, choice: Choice, now: float) -> bool:
        """Whether it is promised to nobody else before its time is over."""
        return not any(
            one.since and one.since.timestamp() < now + self.length and not (one.name and self.picker.is_mine(one.name))
            for one in choice.gpu.bookings
            if one.until.timestamp() > now
        )

    def promised(self, why: No) -> No:
        """The same, with what stands in the way of a run alone."""
        told = [why.message]
        if self.too_soon:
            told.append(
                f"{self.too_soon} promised to others within {words.duration(self.length)}: a shorter --for may do"
            )
        if self.lost:
            told.append(f"{len(self.lost)} taken by others just now")
        return No("; ".join(told))

    def lose(self, *uuids: str | None) -> None:
        """Do not try these again at once."""
        self.lost.update(dict.fromkeys(uuids, time.monotonic()))

    def claim(self) -> list[int] | None:
        """Take them on this machine, all or none."""
        from site_builder.sources import claims  # noqa: PLC0415

        found: list[int] = []
        for one in self.chosen:
            with failing():
                claim = claims.claim(one.gpu.uuid or "")
            if claim is None:
                self.lose(one.gpu.uuid)
                for handle in found:
                    os.close(handle)
                return None
            found.append(claim)
        return found


def start(program: str, command: Sequence[str], taking: Taking) -> NoReturn:
    """Become the command; the guard beside it releases what it had when it ends."""
    numbers = ",".join(str(one.number) for one in taking.chosen)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if os.getpid() == 1:  # all of a container ends with its first process, and the guard would too
        raise SystemExit(supervise(program, command, environment, taking))
    become(program, command, environment)


def become(program: str, command: Sequence[str], environment: dict[str, str]) -> NoReturn:
    """The command in our place."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, list(command), environment)  # noqa: S606 # no shell is the point
    except OSError as error:
        tell(f"{shown(program)} cannot be started: {error.strerror}")
        os._exit(NOT_STARTED)


def supervise(program: str, command: Sequence[str], environment: dict[str, str], taking: Taking) -> int:
    """The command as our child: pass signals on, bury whoever dies, release, and tell its exit code."""
    child = os.fork()
    if child == 0:
        become(program, command, environment)
    for number in SIGNALS:
        signal.signal(number, lambda number, _: os.kill(child, number))
    while True:
        pid, status = os.wait()
        if pid == child:
            break
    keeper = taking.keeper()
    if keeper and taking.outcome.ids:
        keeper.ids = list(taking.outcome.ids)
        guard.release(keeper, tries=1)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
