"""state/ is ours alone: nothing is read there that others may write, or that belongs to somebody else."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from site_builder.core import files

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Bytes that are read of a file of ours: 20,000 hosts need a third of it.
LIMIT = 64 * 1024 * 1024
# What a file of another shape can raise where it is taken apart.
WRONG_SHAPE = (ValueError, TypeError, AttributeError, KeyError, OverflowError)
COPY = ".bak"
USED = "the last good copy of it is used"
Value = TypeVar("Value")


class ForeignFolderError(Exception):
    """Why state/ is not used, and the command that corrects it, in one sentence."""


def check_folder(state: Path) -> None:
    """Refuse a state/ that belongs to another user or that others may write; one that is not there yet is made.

    As root, refuse to make one in another user's folder too: that user's next build could not write to it.
    """
    where = state.absolute()
    try:
        link, status = where.lstat(), where.stat()
    except OSError:
        if os.geteuid() == 0:
            refuse_other_owner(next((one for one in where.parents if one.is_dir()), Path("/")))
        return
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        message = f"{where} is another user's link: set GPUBOARD_STATE to the folder itself"
        raise ForeignFolderError(message)
    if not stat.S_ISDIR(status.st_mode):
        message = f"{where} is not a folder: set GPUBOARD_STATE to one"
        raise ForeignFolderError(message)
    refuse_other_owner(where)
    if status.st_mode & OTHERS_WRITE:
        message = f"others can write to {where}: check what they put there, then close it: chmod 700 {quote(where)}"
        raise ForeignFolderError(message)


def refuse_other_owner(folder: Path) -> None:
    """Refuse a folder that is neither root's nor ours."""
    owner = folder.stat().st_uid
    if owner in (0, os.geteuid()):
        return
    name = user_name(owner)
    if os.geteuid() == 0:
        message = f"{folder} belongs to {name}: run this as {name}, with sudo -u {name_for_sudo(owner)}"
    else:
        message = f"{folder} belongs to {name}: run this as {name}, or set GPUBOARD_STATE to a folder of your own"
    raise ForeignFolderError(message)


def user_name(uid: int) -> str:
    """Return the name of a user, or in a container without names the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def name_for_sudo(uid: int) -> str:
    """Return how sudo wants to have a user named."""
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"'#{uid}'"


def quote(path: Path) -> str:
    """Return a path as a shell needs it."""
    return shlex.quote(str(path))


def check_file(status: os.stat_result) -> None:
    """Refuse a file that is not a plain one, that is another user's, or that others may write."""
    files.check(status)
    if status.st_uid not in (0, os.geteuid()):
        message = f"it belongs to {user_name(status.st_uid)}"
        raise files.Refused(message)
    if status.st_mode & OTHERS_WRITE:
        message = "others can write it: check it, then close it with chmod 600"
        raise files.Refused(message)


def read(path: Path, limit: int = LIMIT) -> bytes:
    """Read a file of ours; FileNotFoundError where there is none, files.Refused says why it is not read."""
    folder = os.open(path.parent, files.TOP)
    try:
        os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        return files.read(path.name, folder, limit, check_file)[1]
    finally:
        os.close(folder)


def is_empty(path: Path) -> bool:
    """Return True for a file that somebody or something has emptied: none of ours is written so."""
    try:
        return path.is_file() and not path.stat().st_size
    except OSError:
        return False


def copy_of(path: Path) -> Path:
    """Return where the last good copy of a file stands."""
    return path.with_name(path.name + COPY)


def replace(path: Path, content: bytes) -> None:
    """Write a small file that cannot be rebuilt, and its copy first: so the copy is never older than the file."""
    files.replace(copy_of(path), content, 0o600)
    files.replace(path, content, 0o600)


def read_copy(path: Path, limit: int = LIMIT) -> bytes:
    """Read the last good copy of a file; nothing where there is none that may be read."""
    with suppress(OSError, files.Refused):
        return read(copy_of(path), limit)
    return b""


def load(path: Path, parse: Callable[[bytes], Value], limit: int = LIMIT) -> tuple[Value | None, str]:
    """Return what a small file holds, and what is wrong with it; its copy answers for one that is empty or damaged.

    A file that is not there is a new one, and nothing is wrong: whoever wants to begin anew deletes it.
    """
    try:
        content = read(path, limit)
        if content:
            return parse(content), ""
        problem = "is empty"
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except (OSError, files.Refused) as why:
        problem = f"cannot be read ({getattr(why, 'strerror', None) or why})"
    except WRONG_SHAPE:
        problem = "is damaged"
    if copy := read_copy(path, limit):
        with suppress(*WRONG_SHAPE):
            return parse(copy), f"{problem}: {USED}"
    return None, f"{problem}, and there is no good copy of it: begun anew"
