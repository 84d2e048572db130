"""Hooks: programs in a folder that only the builder's user can write, each run once for an alert."""

from __future__ import annotations

import errno
import os
import pwd
import re
import selectors
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, cast

from site_builder.alerts.model import Outcome
from site_builder.snapshots.envelope import one_line

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What lies beside programs and is none: notes, what editors leave.
ASIDE = re.compile(r"\..*|README.*|.*~")
SECONDS = 30.0
OUTPUT = 16 * 1024
MOST = 100
MOST_LINKS = 40
LOOK_EVERY = 0.05
LONGEST_END = 5.0  # one that even a kill does not end hangs in the kernel, and we do not
AGAIN_LATER = os.EX_TEMPFAIL
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSTARTED = {
    errno.ENOENT: "the program that its first line names is not there",
    errno.ENOEXEC: "its first line must name its program, as #!/bin/sh does",
}
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)\S+")


class Hook(NamedTuple):
    """A file in the folder of hooks, and why it may not be run."""

    name: str
    problem: str | None = None


class Hooks:
    """The programs of GPUBOARD_HOOKS, looked at anew each time."""

    def __init__(self, folder: Path | None, never: tuple[Path, ...] = (), seconds: float = SECONDS) -> None:
        """Nothing inside `never` (data/, www/) is run: others write there. Without a folder there are no hooks."""
        self.folder, self.never, self.seconds = folder, never, seconds

    def names(self) -> tuple[str, ...]:
        """The names of those that may run."""
        return tuple(hook.name for hook in self.look() if not hook.problem)

    def look(self) -> list[Hook]:
        """Every file there, and what is wrong with it; a folder that is wrong is one without a name."""
        if self.folder is None:
            return []
        try:
            place = self.folder.resolve(strict=True)
            if problem := self.folder_problem(place):
                return [Hook("", problem)]
            names = sorted(one.name for one in place.iterdir() if not ASIDE.fullmatch(one.name))
        except (OSError, RuntimeError) as error:  # of a link that leads to itself
            return [Hook("", f"cannot be read: {getattr(error, 'strerror', None) or 'its links lead nowhere'}")]
        return [Hook(one_line(name, 64), file_problem(place / name)) for name in names[:MOST]]

    def folder_problem(self, place: Path) -> str | None:
        """Why nothing in this folder is run: somebody else could put or exchange a program there."""
        if not place.is_dir():
            return "is not a folder"
        for other in self.never:
            if (resolved := other.resolve()) == place or resolved in place.parents:
                return f"lies inside {other}, where others write: nothing in it is run"
        for one in dict.fromkeys(way_to(self.folder or place)):
            if why := open_to_others(one.lstat()):
                where = f"{one}, {'in which it lies' if one in place.parents else 'by which it is reached'}, "
                return f"{'' if one == place else where}{why}: nothing in it is run"
        return None

    def run(self, name: str, data: bytes) -> Outcome:
        """Run one, with an alert as JSON on its stdin; it is ended after its time, with all that it started."""
        if self.folder is None:
            return Outcome("refused", "GPUBOARD_HOOKS is not set any more")
        found = {hook.name: hook.problem for hook in self.look()}
        if "" in found:
            return Outcome("failed", f"the folder of hooks {found['']}")
        if name not in found:
            return Outcome("refused", "there is no such hook any more")
        if found[name]:
            return Outcome("failed", f"the hook {found[name]}")
        place = self.folder.resolve() / name
        try:
            with tempfile.TemporaryFile() as given:
                given.write(data)
                given.seek(0)
                program = subprocess.Popen(
                    [str(place)],
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=place.parent,
                    env=environment(),
                    start_new_session=True,
                )
        except OSError as error:
            return Outcome(
                "failed", f"the hook cannot be started: {UNSTARTED.get(error.errno or 0, str(error.strerror))}"
            )
        said = listened(program, time.monotonic() + self.seconds)
        return outcome(program.returncode, said, self.seconds)


def way_to(path: Path) -> Iterator[Path]:
    """Every folder that is passed on the way to a place, by links too: who can write one of them leads us elsewhere."""
    here, ahead, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    yield here
    while ahead:
        part = ahead.pop()
        one = here.parent if part == ".." else here / part
        if not one.is_symlink():
            here = one
        elif (links := links + 1) > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        else:
            target = one.readlink()
            here, parts = (Path("/"), target.parts[1:]) if target.is_absolute() else (here, target.parts)
            ahead += reversed(parts)
        yield here


def open_to_others(status: os.stat_result) -> str | None:
    """Whether others than the builder's user and root may write; a sticky folder is open too: anybody adds a file."""
    if status.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    return "can be written by others than its owner" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def file_problem(path: Path) -> str | None:
    """Why a file is not run."""
    if not NAME.fullmatch(path.name):
        return "has a name with other letters than A-Z a-z 0-9 . _ -"
    try:
        status = path.lstat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if stat.S_ISLNK(status.st_mode):
        return "is a link, and links are not followed"
    if not stat.S_ISREG(status.st_mode):
        return "is not a plain file"
    if why := open_to_others(status):
        return why
    return None if os.access(path, os.X_OK) else "is not executable: chmod u+x makes it so"


def environment() -> dict[str, str]:
    """What a hook may know of us: none of our settings, which hold secrets."""
    known = {"PATH": PATH, "LANG": "C.UTF-8"}
    with suppress(KeyError):  # in a container a user need not have a name
        person = pwd.getpwuid(os.geteuid())
        known |= {"HOME": person.pw_dir, "USER": person.pw_name, "LOGNAME": person.pw_name}
    return known


def listened(program: subprocess.Popen[bytes], until: float) -> bytes:
    """What a program says until it ends or its time is over; what is too much is read and forgotten."""
    said = bytearray()
    with cast("IO[bytes]", program.stdout) as pipe, selectors.DefaultSelector() as ready:
        os.set_blocking(pipe.fileno(), False)
        ready.register(pipe, selectors.EVENT_READ)
        is_open = True
        while not has_ended(program.pid) and time.monotonic() < until:
            if not is_open:
                time.sleep(LOOK_EVERY)
            elif ready.select(LOOK_EVERY):
                is_open = heard(pipe, said)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)  # also what it left behind; nobody else has this id before wait()
        heard(pipe, said)
    with suppress(subprocess.TimeoutExpired):
        program.wait(LONGEST_END)
    return bytes(said)


def has_ended(pid: int) -> bool:
    """Whether our child has ended, which stays to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def heard(pipe: IO[bytes], said: bytearray) -> bool:
    """Take what is there, once; whether there may be more."""
    with suppress(BlockingIOError):
        piece = os.read(pipe.fileno(), OUTPUT)
        said += piece[: OUTPUT - len(said)]
        return bool(piece)
    return True


def outcome(code: int | None, said: bytes, seconds: float) -> Outcome:
    """What the end of a hook means: 0 is sent, 75 again later; one that was ended may have told somebody."""
    if code == 0:
        return Outcome("sent")
    lines = said.decode("utf-8", "replace").strip().splitlines()
    words = f": {masked(lines[-1])}" if lines else ""
    if code is None or code == -signal.SIGKILL:
        return Outcome("unsure", f"the hook was ended after {seconds:.0f} s, or killed{words}")
    if code < 0:
        return Outcome("unsure", f"the hook died of signal {-code}{words}")
    if code == AGAIN_LATER:
        return Outcome("failed", f"the hook asks to be run again later{words}")
    return Outcome("refused", f"the hook ended with {code}{words}")


def masked(line: str) -> str:
    """What a program said, without the rest of any address: that is where tokens stand."""
    return ADDRESS.sub(r"\1…", one_line(line))
