"""Where a fleet comes from: a board's URL, a data folder, or with neither this machine's own GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from site_builder.client import status_parser
from site_builder.client.model import Failed, Fleet, Host
from site_builder.config.settings import Given, Settings
from site_builder.core import formatting

if TYPE_CHECKING:
    from site_builder.core.model import BoardHost, Booking

# Seconds after which the file of a builder that lives is written anew at the latest, and by which it may be late.
SIGN_OF_LIFE, LATE = 60, 30
USUALLY_EVERY = 60
NO_BOARD = "set GPUBOARD_URL to the address of a board, or GPUBOARD_DATA to its data folder"
Look = Callable[[], Fleet]


class NoDriver(Failed):
    """There is no tool of any maker on this machine at all."""


class Known(Protocol):
    """The settings, and where each came from."""

    @property
    def settings(self) -> Settings:
        """What is in force."""

    @property
    def given(self) -> Mapping[str, Given]:
        """As it was written."""


def kind_of(loaded: Known) -> str:
    """Where the fleet comes from: `url`, `data` or `machine`; an address on the command line goes before a folder."""
    data, url = loaded.given["GPUBOARD_DATA"], loaded.given["GPUBOARD_URL"]
    named = data.origin != "default" and not data.empty
    if loaded.settings.url and (url.origin == "--url" or not named):
        return "url"
    return "data" if named else "machine"


def open_fleet(loaded: Known) -> Look:
    """What looks at the fleet, as often as it is called; `Failed` says why it cannot."""
    settings, kind = loaded.settings, kind_of(loaded)
    if kind == "url":
        return lambda: of_url(settings.url or "", settings.login)
    if kind == "machine":
        return lambda: of_machine(settings)
    if not settings.data.is_dir():
        message = f"there is no folder {settings.data.absolute()}: set GPUBOARD_DATA to the data folder of a board"
        raise Failed(message)
    return lambda: of_data(settings)


def here() -> str:
    """What this machine is called, perhaps with its domain."""
    return os.uname().nodename or "localhost"


def host_of(fleet: Fleet, name: str | None, loaded: Known) -> Host:
    """The host that is meant: the one that is named, or else this machine."""
    if name is None and kind_of(loaded) == "machine":
        return fleet.hosts[0]
    found = fleet.host(name or fleet.here)
    if found:
        return found
    if name:
        message = f"{fleet.where} has no host {name}"
        raise Failed(message)
    message = f"this machine, {fleet.here}, is not on {fleet.where}"
    raise Failed(f"{message}: name one of its hosts with --host, or ask for all with `gpuboard available --all`")


def whose(loaded: Known, name: str | None) -> Callable[[str], bool]:
    """Whether a booking is of that person, or else of who runs this; a data folder knows their other names."""

    def is_mine(booked: str) -> bool:
        from site_builder.bookings.data_files import Names  # noqa: PLC0415
        from site_builder.core.people import People  # noqa: PLC0415 # only where something is booked

        me = name or login()
        aliases = Names(loaded.settings.data, None).read()[0] if kind_of(loaded) == "data" else {}
        people = People(aliases)
        return me is not None and people.person(booked) == people.person(me)

    return lru_cache(maxsize=None)(is_mine)


def login() -> str | None:
    """The login of the real user, and behind sudo that of the person: $USER is whatever somebody sets."""
    from site_builder.snapshots.local_machine import login_of  # noqa: PLC0415 # rarely needed

    sudo = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return sudo if sudo not in {"", "root"} else login_of(os.getuid())


def of_url(url: str, login: str | None = None) -> Fleet:
    """As a board elsewhere tells it; one that is no longer built tells nothing of now."""
    from site_builder.core import board_client  # noqa: PLC0415 # slow to import

    place = f"{url}status.json"
    try:
        answer = board_client.ask(place, login=login)
    except board_client.Refused as why:
        raise Failed(board_client.refused(why, place)) from None
    fleet, wrong = status_parser.read(answer.content)
    if fleet is None:
        message = f"{place} {wrong}" + (f": {board_client.CHECK}" if wrong == status_parser.NOT_OURS else "")
        raise Failed(message)
    check_age(fleet, url, time.time() + answer.ahead)
    return fleet._replace(where=f"the board at {url}", here=here(), ahead=answer.ahead)


def check_age(fleet: Fleet, url: str, now: float) -> None:
    """Refuse a board whose builder stands, by the clock of the server itself: ours may be off."""
    age = now - fleet.built
    most = SIGN_OF_LIFE + 3 * (fleet.every or USUALLY_EVERY) + LATE
    if age > most:
        message = f"the board at {url} was last built {formatting.duration(age)} ago, and nothing on it is of now"
        raise Failed(f"{message}: is `gpuboard build` still running there?")
    if age < -most:
        message = f"the board at {url} was built {formatting.duration(-age)} from now"
        raise Failed(f"{message}: the clock of its builder or of its server is wrong")


def of_data(settings: Settings) -> Fleet:
    """As the hosts told it that push to this folder, decided at this moment."""
    from site_builder.bookings.host_lookup import Lab  # noqa: PLC0415 # slow to import
    from site_builder.core.clock import Now  # noqa: PLC0415

    now = Now(time.time(), settings.zone)
    try:
        lab = Lab(settings)
        shown = [name for name, one in lab.hosts().items() if not one.hidden]
        boards = lab.look(shown, bookings_of(settings), now, remembered=True)
    except OSError as error:
        message = f"{error.filename or settings.data} cannot be read: {error.strerror}"
        raise Failed(message) from None
    return typed([boards[name] for name in shown], now.epoch, str(settings.data.absolute()))


def bookings_of(settings: Settings) -> Sequence[Booking]:
    """All bookings; where the file cannot be read those of the last good one, and without that nobody can tell."""
    from site_builder.bookings import parser as booking_parser  # noqa: PLC0415 # slow to import
    from site_builder.bookings import store as booking_store  # noqa: PLC0415
    from site_builder.bookings.data_files import BookingFile  # noqa: PLC0415
    from site_builder.core.shared_folder import booking_file  # noqa: PLC0415

    why: list[str] = []
    for name in (booking_store.FILE, booking_store.GOOD):
        file = BookingFile(
            settings.data, None, name, lambda content: booking_parser.read(content, settings.zone), booking_store.LIMIT
        )
        rows, problems = file.read()
        if file.content is not None or not (problems or why):  # nobody has booked anything yet
            return rows
        why += [one.what for one in problems]
    message = f"{booking_file(settings.data)} was {why[0]}"
    raise Failed(f"{message}; so nobody can tell what is booked")


def of_machine(settings: Settings) -> Fleet:
    """As the makers' tools tell it here and now."""
    from site_builder.snapshots import local_machine  # noqa: PLC0415 # slow to import

    asked = local_machine.ask()  # while it answers, we import the rest
    from site_builder.board.outputs import status  # noqa: F401, PLC0415
    from site_builder.core.clock import Now  # noqa: PLC0415
    from site_builder.core.model import Idle, KnownHost, Shown  # noqa: PLC0415
    from site_builder.core.people import People  # noqa: PLC0415
    from site_builder.core.subprocesses import MISSING  # noqa: PLC0415
    from site_builder.fleet import host_state  # noqa: PLC0415
    from site_builder.fleet.gpu_state import Rules  # noqa: PLC0415

    now = Now(time.time(), settings.zone)
    data = local_machine.look(asked, here(), now.epoch, Path(os.environ.get("GPUBOARD_PROC") or "/proc"))
    code = data.gpus.header.rc if data.gpus and data.gpus.header else 0
    if code == MISSING:
        message = f"there is no nvidia-smi, amd-smi or rocm-smi on this machine, and no board is named: {NO_BOARD}"
        raise NoDriver(message)
    rules = Rules(settings.limits, People({}), Shown())
    board = host_state.host(host_state.Case(KnownHost(here()), data, (), Idle(0, {}), {}), rules, now)
    if board.state != "fresh":
        raise Failed(board.reason)
    return typed([board], now.epoch, "this machine")


def typed(boards: list[BoardHost], now: float, where: str) -> Fleet:
    """The same as one would read it in status.json: there is one form."""
    from site_builder.board.outputs import status  # noqa: PLC0415 # slow to import

    parts = [(before, board.seen, after) for board in boards for before, after in [status.host(board)]]
    problems = [problem for board in boards for problem in board.problems]
    fleet, wrong = status_parser.read(status.status(parts, problems, now))
    if fleet is None:
        raise AssertionError(wrong)  # our own writer and our own reader
    return fleet._replace(where=where, here=here())
