"""Checks of data/: the folder, what people write there, and what the hosts say."""

from __future__ import annotations

import os
import stat
from collections import Counter

from site_builder.core import protection
from site_builder.core.formatting import duration, names
from site_builder.core.shared_folder import booking_folder
from site_builder.doctor.check_result import Case, Found, failed, passed, skipped, warned

STATES = ("fresh", "maintenance", "stale", "failed", "unseen", "down")
WELL = ("fresh", "maintenance")


def folder(case: Case) -> Found:
    """The folder that the hosts push to."""
    data = case.settings.data.absolute()
    if not data.is_dir():
        return failed(f"{data} is not there", "set GPUBOARD_DATA to the folder that the hosts push to, or mount it")
    if not os.access(data, os.R_OK | os.X_OK):
        return failed(f"{data} cannot be read by this user", "let this user be in its group, with g+rx")
    if risks := protection.list_problems(data):
        what, _, advice = risks[0].what.partition(": ")
        return failed(f"{data}{risks[0].where.removeprefix('data')}: {what}", advice)
    if data.stat().st_mode & stat.S_IWOTH:
        what = f"everybody on this machine can write to {data}, and so say what they like about any host"
        return warned(what, f"chmod o-w {data}")
    place = booking_folder(data)
    if case.settings.rules.url and not os.access(place, os.W_OK):
        what = f"{place} cannot be written by this user, so that nobody can book over the web"
        return warned(what, "let the user of `gpuboard serve` write there, or set no GPUBOARD_BOOK_URL")
    return passed(str(data))


def comments(case: Case) -> Found:
    """The bookings."""
    from site_builder.bookings import parser as booking_parser  # noqa: PLC0415 # slow to import
    from site_builder.bookings import store as booking_store  # noqa: PLC0415
    from site_builder.bookings.data_files import BookingFile  # noqa: PLC0415

    zone = case.settings.zone
    file = BookingFile(
        case.settings.data,
        None,
        booking_store.FILE,
        lambda content: booking_parser.read(content, zone),
        booking_store.LIMIT,
    )
    rows, problems = file.read()
    if problems and file.content is None:
        return failed(
            f"{booking_store.FILE}: {problems[0].what}", "correct it: the last good bookings stay on the board"
        )
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return warned(f"{booking_store.FILE}: {problems[0].what}{more}", "correct the entry; the others count")
    return passed(
        f"{booking_store.FILE} has {counted(len(rows), 'booking')}" if file.content else "nobody has booked yet"
    )


def lists(case: Case) -> Found:
    """The other files that people write."""
    from site_builder.bookings.data_files import Names  # noqa: PLC0415 # slow to import
    from site_builder.discovery.discover import Discovery  # noqa: PLC0415

    _, problems = Discovery(case.settings.data, None, None).read(())
    problems += Names(case.settings.data, None).read()[2]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return warned(f"{problems[0].where}: {problems[0].what}{more}", "correct the line; the others count")
    return passed("hosts.txt, aliases.csv and gpu-names.csv, where they are there, can be read")


def hosts(case: Case) -> Found:
    """How the hosts stand."""
    fleet = case.fleet
    if isinstance(fleet, str):
        return failed(fleet, "see the check data")
    if not fleet.hosts:
        return warned(
            "no host has pushed yet",
            "call ./install.sh host on a GPU host; gpu-doctor.sh there tells what is in its way",
        )
    count = Counter(host.state for host in fleet.hosts)
    told = ", ".join(f"{count[state]} {state}" for state in STATES if count[state])
    bad = [host for host in fleet.hosts if host.state not in WELL]
    if not bad:
        return passed(f"{counted(len(fleet.hosts), 'host')}: {told}")
    what = f"{counted(len(fleet.hosts), 'host')}: {told}; {names([host.name for host in bad])}: {bad[0].reason}"
    advice = "call gpu-doctor.sh there; one that is gone for good: gpuboard forget HOST"
    return warned(what, advice) if count["fresh"] else failed(what, advice)


def clocks(case: Case) -> Found:
    """Whose clock is off, among those who push."""
    from site_builder.snapshots.store import Snapshots  # noqa: PLC0415 # slow to import

    told, _ = Snapshots(case.settings.data, None, case.settings.snapshot_bytes).read()
    off = {one.name: clock for one in told if (clock := one.data().clock) is not None}
    if not off:
        return skipped("no host tells its clock")
    wrong = sorted(
        (name for name in off if abs(off[name]) > case.settings.limits.clock_off), key=lambda one: -abs(off[one])
    )
    if not wrong:
        return passed(f"{counted(len(off), 'clock')} within {case.settings.limits.clock_off:.0f} s of this one's")
    which = "ahead" if off[wrong[0]] > 0 else "behind"
    what = f"the clock of {names(wrong)} is off: that of {wrong[0]} by {duration(abs(off[wrong[0]]))} {which}"
    return warned(what, "set it by NTP; where all are off, it is this machine's clock that is wrong")


def problems(case: Case) -> Found:
    """What else is wrong with what the hosts push."""
    fleet = case.fleet
    if isinstance(fleet, str):
        return skipped("data/ cannot be read")
    told = [one for one in fleet.problems if "the clock of this host" not in one]
    if told:
        more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        return warned(
            f"{told[0]}{more}", "all of them stand at the end of the page; docs/troubleshooting.md tells more"
        )
    return passed("all that the hosts push is understood")


def counted(number: int, what: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
