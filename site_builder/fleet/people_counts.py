"""How many GPUs each person is on and has booked, and how many bookings there are: of one host, to be summed up."""

from __future__ import annotations

from typing import NamedTuple

from site_builder.core.model import BoardBooking, BoardHost
from site_builder.history.gpu_minutes import shared
from site_builder.history.model import TAKEN, UNCLEAR


class Had(NamedTuple):
    """What a person has of a host now: parts of GPUs, of which one has tallied.UNIT; on how many of them they are; MiB
    of their memory; how many processes, and of how many of these the memory is not told."""

    units: int = 0
    gpus: int = 0
    memory: float = 0
    processes: int = 0
    untold: int = 0

    def plus(self, other: Had) -> Had:
        """Both together."""
        return Had(
            self.units + other.units,
            self.gpus + other.gpus,
            self.memory + other.memory,
            self.processes + other.processes,
            self.untold + other.untold,
        )


class Standing(NamedTuple):
    """How many GPUs are used by somebody who is known, taken by nobody that is, promised, free, and not clear; and
    how many there are on a host of which nothing is heard."""

    used: int = 0
    unowned: int = 0
    promised: int = 0
    free: int = 0
    unclear: int = 0
    unseen: int = 0

    def plus(self, other: Standing) -> Standing:
        """Both together."""
        return Standing(*(one + more for one, more in zip(self, other)))


def standing(board: BoardHost) -> Standing:
    """Of a host; history counts in the same way."""
    if board.state != "fresh":
        return Standing(unseen=len(board.gpus))
    taken = [gpu for gpu in board.gpus if gpu.state in TAKEN]
    used = sum(bool(gpu.who.users) for gpu in taken)
    states = [gpu.state for gpu in board.gpus]
    unclear = sum(state in UNCLEAR for state in states)
    return Standing(used, len(taken) - used, states.count("booked"), states.count("free"), unclear)


def had(board: BoardHost) -> dict[str, Had]:
    """What each person has of a host; nobody where none is shown."""
    found: dict[str, list[float]] = {}
    if not board.users_shown:
        return {}
    on = [(gpu.processes, gpu.state in TAKEN) for gpu in board.gpus]
    on += [(several, False) for several in board.unplaced.values()]  # how much of the GPU they have, nobody knows
    for processes, taken in on:
        here: dict[str, None] = {}
        for one in processes:
            user, memory = one.user, one.used_memory
            if user:
                here[user] = None
                row = found.get(user)
                if row is None:
                    row = found[user] = [0, 0, 0, 0, 0]
                row[2] += memory or 0
                row[3] += 1
                row[4] += memory is None
        for user, units in shared(list(here), 1):
            found[user][0] += units if taken else 0
            found[user][1] += 1
    return {user: Had(int(row[0]), int(row[1]), row[2], int(row[3]), int(row[4])) for user, row in found.items()}


def users(board: BoardHost) -> tuple[dict[str, int], dict[str, int]]:
    """On how many GPUs each person has a process, and how many are promised to them now; nobody where none is shown."""
    using: dict[str, int] = {}
    booked: dict[str, int] = {}
    if not board.users_shown:
        return using, booked
    for processes in (*(gpu.processes for gpu in board.gpus), *board.unplaced.values()):
        for user in {one.user for one in processes if one.user}:
            using[user] = using.get(user, 0) + 1
    for gpu in board.gpus:
        for name in {one.name for one in gpu.bookings if one.name and one.phase == "now"}:
            booked[name] = booked.get(name, 0) + 1
    return using, booked


def bookings(board: BoardHost) -> tuple[int, int]:
    """How many run now and how many are to come; one over several GPUs, or with repeats, counts once."""
    found: dict[str, set[object]] = {"now": set(), "coming": set(), "ended": set()}
    for several in (board.bookings, *(gpu.bookings for gpu in board.gpus)):
        for one in several:
            found[one.phase].add(key(one))
    return len(found["now"]), len(found["coming"])


def key(booking: BoardBooking) -> object:
    """What a booking is known by; without an id, that the same person has the same time for the same reason."""
    return booking.id or (booking.name, booking.comment, booking.since, booking.until)
