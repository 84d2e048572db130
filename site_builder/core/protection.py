"""Whether other accounts could redirect what is written in data/, and what of the bookings is not where it belongs."""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

from site_builder.core import files
from site_builder.core.model import Problem
from site_builder.core.names import BOOKINGS
from site_builder.core.shared_folder import FILE, WATCHES, booking_folder, is_pointer

CORRECT = "call `./install.sh web` on the web host, as the user who builds the board"


def name_writers(data: Path) -> str:
    """Name the other accounts that can replace what stands in data/; empty if none can.

    In a sticky folder they can not. Nobody else is in a group that has its owner's name and no other members; but where
    there is an access list, the mode does not tell who can.
    """
    status = os.stat(data)  # noqa: PTH116 # at each build
    if status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "everybody on this machine"
    if not status.st_mode & stat.S_IWGRP:
        return ""
    if has_access_list(data):
        return "somebody in its access list"
    owner = files.login_of(status.st_uid)
    try:
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return f"the group {status.st_gid}"
    return "" if group.gr_name == owner and set(group.gr_mem) <= {owner} else f"the group {group.gr_name}"


def has_access_list(folder: Path) -> bool:
    """Return True if rights in a folder are given by a list (setfacl), not by its mode alone."""
    try:
        return bool(os.getxattr(folder, "system.posix_acl_access"))
    except OSError:
        return False


def is_ours(data: Path) -> bool:
    """Return True if this account may change the modes of data/."""
    return os.geteuid() in {0, data.stat().st_uid}


def list_problems(data: Path) -> list[Problem]:
    """List what is wrong with who may write where, each with the command that corrects it."""
    found = []
    try:
        writers = name_writers(data)
        if writers:
            help_ = CORRECT if is_ours(data) else "its owner must call `chmod go-w` for it"
            what = f"{writers} can put links into it, and so redirect what is written there: {help_}"
            found.append(Problem("data", what))
        if booking_folder(data) == data:
            if os.path.lexists(data / BOOKINGS):
                what = "it is not used: it must be a folder of the owner of data/; give it to them, or remove it"
                found.append(Problem(f"data/{BOOKINGS}", what))
            return found
        what = (
            f"it is not read any more, since bookings are in data/{BOOKINGS}/: {CORRECT}, which takes over what it has"
        )
        found += [Problem(f"data/{name}", what) for name in (FILE, WATCHES) if is_left(data / name)]
    except OSError:  # the build itself tells that data/ cannot be read
        pass
    return found


def is_left(path: Path) -> bool:
    """Return True for a file that stands in data/ though it belongs into data/bookings/."""
    return os.path.lexists(path) and not is_pointer(path)
