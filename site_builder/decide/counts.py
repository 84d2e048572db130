"""How many GPUs each person is on and has booked, and how many bookings there are: of one host, to be summed up."""

from __future__ import annotations

from site_builder.model import BoardBooking, BoardHost


def users(board: BoardHost) -> tuple[dict[str, int], dict[str, int]]:
    """On how many GPUs each person has a process, and how many are promised to them now; nobody where none is shown."""
    using: dict[str, int] = {}
    booked: dict[str, int] = {}
    if not board.users_shown:
        return using, booked
    for gpu in board.gpus:
        for user in {one.user for one in gpu.processes if one.user}:
            using[user] = using.get(user, 0) + 1
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
