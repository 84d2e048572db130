"""Checks of the builder: its folders, whether it is alive, the room that it has, and its history."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time
from pathlib import Path

from site_builder.client.model import Failed
from site_builder.core.formatting import size
from site_builder.doctor.check_result import Case, Found, failed, passed, skipped, warned

MIB = 1 << 20
# Room below which the next days, or the next build, are at risk.
LITTLE, NONE = 500 * MIB, 20 * MIB
FEW_NAMES = 1000
NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "ceph", "beegfs", "afs", "9p", "fuse.sshfs", "glusterfs", "ocfs2")
# Files of state/ that nothing can rebuild.
SMALL = ("tokens.json", "alerts.json", "memory.json")
# Seconds for which SQLite may look at the whole file.
LOOK = 10


def state(case: Case) -> Found:
    """What the builder remembers: it must be the builder's alone."""
    from site_builder.core import own_files  # noqa: PLC0415 # slow to import

    folder = case.settings.state.absolute()
    if not folder.is_dir():
        return skipped(f"{folder} is not there yet: the first `gpuboard build` makes it")
    told = folder.stat()
    if told.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return failed(f"others can write to {folder}, so that no build uses it", f"chmod 700 {folder}")
    if told.st_uid != os.geteuid():
        return failed(f"{folder} is another user's", "call this as the user who builds, or set GPUBOARD_STATE")
    emptied = [name for name in SMALL if own_files.is_empty(folder / name)]
    if emptied:
        what = f"{folder / emptied[0]} is empty; the last good copy of it is used, if there is one"
        return warned(what, "see why: a full disk, or somebody who emptied it")
    return readable(case, folder)


def readable(case: Case, folder: Path) -> Found:
    """Check who can read state/, and what it is on."""
    told = folder.stat()
    if told.st_mode & 0o077:
        return warned(f"others can look into {folder}, which holds tokens and names", f"chmod 700 {folder}")
    kind = file_system(case.proc, folder)
    if kind.startswith(NETWORK):
        what = f"{folder} is on a network file system ({kind}), on which locks and databases break"
        return warned(what, "set GPUBOARD_STATE to a folder on a local disk")
    return passed(str(folder))


def file_system(proc: Path, folder: Path) -> str:
    """The kind of file system that a folder is on, by the longest mount that it lies below."""
    found = ("", "")
    real = f"{os.path.realpath(folder)}/"
    for line in (proc / "mounts").read_text(errors="replace").splitlines():
        _, mount, kind, *_ = [*line.split(" "), "", "", ""]
        mount = f"{mount.rstrip('/')}/".replace("\\040", " ")
        if real.startswith(mount) and len(mount) >= len(found[0]):
            found = mount, kind
    return found[1]


def builder(case: Case) -> Found:
    """Whether the site is of now."""
    from site_builder.client import loader, status_parser  # noqa: PLC0415 # slow to import

    www, file = case.settings.www.absolute(), case.settings.www.absolute() / "status.json"
    owner = at_work(case.settings.state)
    start = "start it: the check crontab tells what should"
    if not file.is_file():
        return failed(f"{www} has no status.json: the board was never built", f"{start}, or call `gpuboard build`")
    fleet, wrong = status_parser.read(file.read_bytes())
    if fleet is None:
        return failed(f"{file} {wrong}", "call `gpuboard build`, which tells what is wrong")
    try:
        loader.check_age(fleet, str(www), case.now())
    except Failed as why:
        advice = f"process {owner} has the lock: end it, if it hangs" if owner else start
        return failed(str(why).partition(": ")[0], advice)
    age = max(0, case.now() - fleet.built)
    return passed(f"built {age:.0f} s ago" + (f"; process {owner} is at work" if owner else ""))


def at_work(folder: Path) -> str:
    """The builder that has the lock; empty where there is none."""
    try:
        handle = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"
    finally:
        os.close(handle)
    return ""


def site(case: Case) -> Found:
    """Whether the site can be written, and be read by a web server that is another user."""
    www = case.settings.www.absolute()
    if not www.is_dir():
        return failed(f"{www} is not there", "call `gpuboard build`, or set GPUBOARD_WWW")
    if not os.access(www, os.W_OK):
        return failed(f"{www} cannot be written by this user", "call this as the user who builds, or set GPUBOARD_WWW")
    if www.stat().st_mode & stat.S_IWOTH:
        return failed(
            f"everybody on this machine can write to {www}, and so put scripts on the page", f"chmod o-w {www}"
        )
    # one build as root leaves folders in which nobody else can write
    closed = [one for one in sorted(www.iterdir()) if one.is_dir() and not os.access(one, os.W_OK | os.X_OK)]
    if closed:
        what = f"{closed[0]} cannot be written by this user, though {www} can"
        return failed(what, f"as root: chown -R --reference={www} {www}")
    return passed(str(www))


def disk(case: Case) -> Found:
    """The room where data, site and memory are."""
    settings = case.settings
    little: list[tuple[float, str]] = []
    least = float("inf")
    for folder in (settings.data, settings.state, settings.www):
        if not folder.is_dir():
            continue
        told = os.statvfs(folder)
        room = told.f_bavail * told.f_frsize
        least = min(least, room)
        if told.f_files and told.f_favail < FEW_NAMES:
            little.append((0, f"{folder.absolute()} has room for {told.f_favail} more files"))
        elif room < LITTLE:
            little.append((room, f"{folder.absolute()} has {size(room / MIB)} left"))
    if not little:
        return (
            passed(f"at least {size(least / MIB)} to spare") if least < float("inf") else skipped("no folder is there")
        )
    least, what = min(little)
    advice = "make room; the page stays as it is while there is none"
    return failed(what, advice) if least < NONE else warned(what, advice)


def history(case: Case) -> Found:
    """Whether the file of the past can be read."""
    from site_builder.history import database  # noqa: PLC0415 # slow to import

    path = case.settings.state / database.NAME
    if not path.exists():
        return skipped("there is no history yet: the first builds begin it")
    try:
        told = checked(path)
    except database.Unusable as why:
        return warned(f"{path}: {why}", "update gpuboard here, or let `gpuboard build` bring it up to date")
    except sqlite3.Error as error:
        told = str(error)
    if told != "ok":
        advice = "the next build sets a damaged one aside and begins anew; docs/history.md tells what can be saved"
        return failed(f"{path} cannot be read: {told}", advice)
    problems = database.problems(case.settings.state)
    if problems:
        return warned(
            f"{problems[0].where} {problems[0].what}", "see why: a full disk, or a share that is no local disk"
        )
    return passed(f"history.db has {size(path.stat().st_size / MIB)}")


def checked(path: Path) -> str:
    """What SQLite says of a file, as far as there is time; `ok` if nothing is wrong."""
    from site_builder.history import database  # noqa: PLC0415 # slow to import

    connection = database.connect(path, read_only=True)
    end = time.monotonic() + LOOK
    connection.set_progress_handler(lambda: time.monotonic() > end, 100_000)
    try:
        (told,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        return "ok"
    finally:
        connection.close()
    return str(told)
