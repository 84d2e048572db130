"""Run hook programs with a notification on their stdin, and judge how that ended."""

from __future__ import annotations

import errno
import os
import pwd
import re
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, cast

from site_builder.alerts.model import FAILED, REFUSED, SENT, UNSURE, DeliveryOutcome
from site_builder.core.terminal_text import clean_excerpt

HOOK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
IGNORED_NAME = re.compile(r"\..*|README.*|.*~")  # notes, and what editors leave
HOOK_TIMEOUT_S = 30.0
MAX_OUTPUT_BYTES = 16 * 1024
MAX_HOOKS = 100
MAX_LINKS = 40
POLL_INTERVAL_S = 0.02
KILL_TIMEOUT_S = 5.0  # a program that survives SIGKILL hangs in the kernel: do not wait for it
EXIT_RETRY_LATER = os.EX_TEMPFAIL
HOOK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_ERRORS = {
    errno.ENOENT: "the program in its first line does not exist",
    errno.ENOEXEC: "its first line must name its interpreter, such as #!/bin/sh",
}
URL_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)\S+")


class Hook(NamedTuple):
    """A file in the hooks folder, and why it may not run; one without a name is the folder itself."""

    name: str
    problem: str | None = None


@dataclass(frozen=True)
class HookFolder:
    """The programs in GPUBOARD_HOOKS; nothing in a forbidden folder (data/, www/) runs, since others write there."""

    folder: Path | None
    forbidden_folders: tuple[Path, ...] = ()
    timeout_s: float = HOOK_TIMEOUT_S

    def list_runnable_names(self) -> tuple[str, ...]:
        return tuple(hook.name for hook in self.check_hooks() if not hook.problem)

    def check_hooks(self) -> list[Hook]:
        if self.folder is None:
            return []
        try:
            folder = self.folder.resolve(strict=True)
            if problem := self.find_folder_problem(folder):
                return [Hook("", problem)]
            names = sorted(path.name for path in folder.iterdir() if not IGNORED_NAME.fullmatch(path.name))
        except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
            return [Hook("", f"cannot be read: {getattr(error, 'strerror', None) or 'its links are broken'}")]
        return [Hook(clean_excerpt(name, 64), find_hook_problem(folder / name)) for name in names[:MAX_HOOKS]]

    def find_folder_problem(self, folder: Path) -> str | None:
        """Explain why nothing in this folder may run: somebody else could put a program there."""
        if not folder.is_dir():
            return "is not a folder"
        for forbidden in self.forbidden_folders:
            if (resolved := forbidden.resolve()) == folder or resolved in folder.parents:
                return f"is inside {forbidden}, where others can write: nothing in it runs"
        for path in dict.fromkeys(iterate_hook_path_folders(self.folder or folder)):
            if reason := find_hook_permission_problem(path.lstat()):
                where = f"{path}, {'its parent folder' if path in folder.parents else 'on the path to it'}, "
                return f"{'' if path == folder else where}{reason}: nothing in it runs"
        return None

    def run_hook(self, name: str, alert_json: bytes) -> DeliveryOutcome:
        """Run a hook with an alert on its stdin; end it after a time, with everything that it started."""
        if self.folder is None:
            return DeliveryOutcome(REFUSED, "GPUBOARD_HOOKS is no longer set")
        problems = {hook.name: hook.problem for hook in self.check_hooks()}
        if "" in problems:
            return DeliveryOutcome(FAILED, f"the hooks folder {problems['']}")
        if name not in problems:
            return DeliveryOutcome(REFUSED, "this hook no longer exists")
        if problems[name]:
            return DeliveryOutcome(FAILED, f"the hook {problems[name]}")
        path = self.folder.resolve() / name
        try:
            with tempfile.TemporaryFile() as stdin:
                stdin.write(alert_json)
                stdin.seek(0)
                program = subprocess.Popen(
                    [str(path)],
                    bufsize=0,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=path.parent,
                    env=build_hook_environment(),
                    start_new_session=True,
                )
        except OSError as error:
            reason = START_ERRORS.get(error.errno or 0, str(error.strerror))
            return DeliveryOutcome(FAILED, f"the hook cannot be started: {reason}")
        output = read_hook_output(program, time.monotonic() + self.timeout_s)
        code = program.returncode
        if code == 0:
            return DeliveryOutcome(SENT)
        lines = output.decode("utf-8", "replace").strip().splitlines()
        # the rest of an address may be a token
        last_line = ": " + URL_PATTERN.sub(r"\1…", clean_excerpt(lines[-1])) if lines else ""
        # one that was killed may have sent something
        if code is None or code == -signal.SIGKILL:
            return DeliveryOutcome(UNSURE, f"the hook was stopped after {self.timeout_s:.0f} s, or killed{last_line}")
        if code < 0:
            return DeliveryOutcome(UNSURE, f"the hook was killed by signal {-code}{last_line}")
        if code == EXIT_RETRY_LATER:
            return DeliveryOutcome(FAILED, f"the hook asked to be run again later{last_line}")
        return DeliveryOutcome(REFUSED, f"the hook failed with exit code {code}{last_line}")


def iterate_hook_path_folders(path: Path) -> Iterator[Path]:
    """Yield every folder on the way to a path, through links too: who can write in one can redirect us."""
    folder, parts_ahead, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    yield folder
    while parts_ahead:
        part = parts_ahead.pop()
        child = folder.parent if part == ".." else folder / part
        if not child.is_symlink():
            folder = child
        elif (links := links + 1) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        else:
            target = child.readlink()
            folder, parts = (Path("/"), target.parts[1:]) if target.is_absolute() else (folder, target.parts)
            parts_ahead += reversed(parts)
        yield folder


def find_hook_permission_problem(status: os.stat_result) -> str | None:
    """Explain who besides the builder's user and root may write; a sticky folder counts, since anybody adds files."""
    if status.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    return "can be written by users other than its owner" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def find_hook_problem(path: Path) -> str | None:
    if not HOOK_NAME.fullmatch(path.name):
        return "has a name with characters other than A-Z a-z 0-9 . _ -"
    try:
        status = path.lstat()
    except OSError as error:
        return f"cannot be inspected: {error.strerror}"
    if stat.S_ISLNK(status.st_mode):
        return "is a link, and links are not followed"
    if not stat.S_ISREG(status.st_mode):
        return "is not a plain file"
    if reason := find_hook_permission_problem(status):
        return reason
    return None if os.access(path, os.X_OK) else "is not executable: chmod u+x"


def build_hook_environment() -> dict[str, str]:
    environment = {"PATH": HOOK_PATH, "LANG": "C.UTF-8"}
    with suppress(KeyError):  # in a container a user need not have a name
        user = pwd.getpwuid(os.geteuid())
        environment |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    return environment


def read_hook_output(program: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Read what a program prints until it ends or its time is over; then kill it, and drop what is too much."""
    output, has_ended = b"", False
    with cast("IO[bytes]", program.stdout) as pipe:
        os.set_blocking(pipe.fileno(), False)
        while not has_ended:
            # WNOWAIT: the process stays a zombie, so that nobody else gets its id before killpg
            status = os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            has_ended = status is not None or time.monotonic() >= deadline
            if has_ended:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(program.pid, signal.SIGKILL)  # also what it left behind
            chunk = pipe.read(MAX_OUTPUT_BYTES)  # None if it has printed nothing new
            output = (output + (chunk or b""))[:MAX_OUTPUT_BYTES]
            if not chunk and not has_ended:
                time.sleep(POLL_INTERVAL_S)
    with suppress(subprocess.TimeoutExpired):
        program.wait(KILL_TIMEOUT_S)
    return output
