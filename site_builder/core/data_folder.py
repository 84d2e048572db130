"""The layout of data/: where bookings are, and who may change what."""

from __future__ import annotations

import grp
import os
import stat
from contextlib import suppress
from pathlib import Path

from site_builder.core.files import find_file_owner_login
from site_builder.core.model import Problem
from site_builder.core.names import BOOKINGS

FIX_HINT = "call `./install.sh web` on the web host, as the user who builds the board"
BOOKINGS_FILE, WATCHES_FILE = "comments.json", "watches.json"


def find_booking_data_folder(data: Path) -> Path:
    """Return data/bookings/ if the owner of data/ or root made it, else data/ itself."""
    bookings_folder = data / BOOKINGS
    try:
        status = os.lstat(bookings_folder)
        owners = {0, os.stat(data).st_uid}  # noqa: PTH116 # at each build, several times
    except (FileNotFoundError, NotADirectoryError):
        return data
    except OSError:
        return bookings_folder  # reading there reports the reason
    return bookings_folder if stat.S_ISDIR(status.st_mode) and status.st_uid in owners else data


def find_bookings_data_file(data: Path) -> Path:
    return find_booking_data_folder(data) / BOOKINGS_FILE


def is_moved_data_file_link(path: str | Path) -> bool:
    """Return True for the link in data/ that replaces a file which is in data/bookings/ now.

    No program follows it. It leads people who edit the file by hand, and stops programs of older versions.
    """
    name = os.path.basename(path)  # noqa: PTH119 # fast, for each link in data/
    try:
        return name in {BOOKINGS_FILE, WATCHES_FILE} and os.readlink(path) == f"{BOOKINGS}/{name}"  # noqa: PTH115 # the same
    except OSError:
        return False


def list_data_folder_problems(data: Path) -> list[Problem]:
    """List wrong permissions in data/, each with the command that corrects it."""
    problems = []
    try:
        writers = name_data_folder_writers(data)
        if writers:
            help_ = FIX_HINT if is_data_folder_ours(data) else "its owner must call `chmod go-w` for it"
            what = f"{writers} can put links into it, and so redirect what is written there: {help_}"
            problems.append(Problem("data", what))
        if find_booking_data_folder(data) == data:
            if os.path.lexists(data / BOOKINGS):
                what = "it is not used: it must be a folder of the owner of data/; give it to them, or remove it"
                problems.append(Problem(f"data/{BOOKINGS}", what))
            return problems
        what = (
            f"it is not read any more, since bookings are in data/{BOOKINGS}/: {FIX_HINT}, which takes over what it has"
        )
        problems += [
            Problem(f"data/{name}", what) for name in (BOOKINGS_FILE, WATCHES_FILE) if is_unmoved_data_file(data / name)
        ]
    except OSError:  # the build itself reports a data/ that cannot be read
        pass
    return problems


def name_data_folder_writers(data: Path) -> str:
    """Name the other accounts that can replace files in data/; empty if none can.

    In a sticky folder none can. A group that has its owner's name and no other members is private; with an access list,
    the mode does not say who can.
    """
    status = os.stat(data)  # noqa: PTH116 # at each build
    if status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "everybody on this machine"
    if not status.st_mode & stat.S_IWGRP:
        return ""
    with suppress(OSError):
        if os.getxattr(data, "system.posix_acl_access"):  # set by setfacl
            return "somebody in its access list"
    owner = find_file_owner_login(status.st_uid)
    try:
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return f"the group {status.st_gid}"
    return "" if group.gr_name == owner and set(group.gr_mem) <= {owner} else f"the group {group.gr_name}"


def is_data_folder_ours(data: Path) -> bool:
    """Return True if this account may change the modes of data/."""
    return os.geteuid() in {0, data.stat().st_uid}


def is_unmoved_data_file(path: Path) -> bool:
    """Return True for a file in data/ that belongs into data/bookings/."""
    return os.path.lexists(path) and not is_moved_data_file_link(path)
