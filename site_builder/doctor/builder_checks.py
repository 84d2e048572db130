"""Checks of the program, the builder and what starts it."""

from __future__ import annotations

import fcntl
import os
import platform
import pwd
import re
import shutil
import sqlite3
import stat
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from site_builder import __version__
from site_builder.core.board_client import FleetUnavailableError
from site_builder.core.formatting import format_size, join_names
from site_builder.doctor.model import (
    CheckResult,
    DoctorContext,
    report_failure,
    report_not_applicable,
    report_pass,
    report_skip,
    report_warning,
)

# By the names under which they are imported, and those that pip knows.
REQUIRED_PACKAGES = {
    "click": "click",
    "consul": "python-consul",
    "dateutil": "python-dateutil",
    "icalendar": "icalendar",
    "jinja2": "jinja2",
    "orjson": "orjson",
    "paramiko": "paramiko",
    "rich": "rich",
    "waitress": "waitress",
}


def check_python(case: DoctorContext) -> CheckResult:  # noqa: ARG001 # a check's own form
    """Which Python this is; one that is too old does not come this far."""
    return report_pass(f"gpuboard {__version__} with Python {platform.python_version()}")


def check_packages(case: DoctorContext) -> CheckResult:  # noqa: ARG001 # the same
    """Whether all that pip should have installed is here."""
    missing = [pip for name, pip in REQUIRED_PACKAGES.items() if find_spec(name) is None]
    if missing:
        return report_failure(
            f"not installed: {', '.join(missing)}", "call ./install.sh web again, or pip install them"
        )
    return report_pass(f"all {len(REQUIRED_PACKAGES)} packages are here")


def check_settings(case: DoctorContext) -> CheckResult:
    """Which file counts, and what in it hardly can be meant."""
    if case.loaded_settings is None:
        return report_failure(
            case.settings_error, "correct it, then call this again: what needs the settings is skipped below"
        )
    conf = case.loaded_settings.conf
    if conf.warnings:
        more = f" (and {len(conf.warnings) - 1} more)" if len(conf.warnings) > 1 else ""
        return report_warning(f"{conf.warnings[0]}{more}", "correct it: `gpuboard config` shows what is in force")
    if conf.path is None:
        return report_pass("there is no gpuboard.conf: environment and defaults count")
    relative = [
        name
        for name in ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")
        if not case.loaded_settings.given[name].text.startswith("/")
    ]
    if relative and conf.path.parent != conf.path.cwd():
        what = f"{join_names(relative)} in {conf.path} count from where gpuboard is started, and cron starts it at home"
        return report_warning(what, "write them whole, beginning with /")
    return report_pass(str(conf.path))


CRON_DAEMONS = {"cron", "crond", "cronie", "fcron", "systemd-cron", "anacron"}
# With the program, where its place is written out.
BUILD_LINE = re.compile(
    r"""(?:(?:(?<=\s)|(?<=['"]))(/[^\s'"]*/gpuboard)['"]?|(?:site_builder|gpuboard)['"]?) build\b"""
)
LINGER_FOLDER = Path("/var/lib/systemd/linger")
CRONTAB_TIMEOUT_S = 10
SYSTEMD_DOC = "docs/systemd.md"
STARTED_BY_SYSTEMD, STARTED_BY_CRON = (
    "a unit of systemd starts the builder, and not cron",
    "cron starts the builder, and not systemd",
)


def list_enabled_units(case: DoctorContext) -> list[str]:
    """The units of ours that are enabled for this user; of one that was removed by hand, the link stays."""
    folder = Path(case.environment.get("XDG_CONFIG_HOME") or case.home / ".config") / "systemd/user"
    return sorted(link.name for link in folder.glob("*.wants/gpuboard-build.*") if link.exists())


def check_cron_daemon(case: DoctorContext) -> CheckResult:
    """Whether one runs."""
    if list_enabled_units(case):
        return report_not_applicable(STARTED_BY_SYSTEMD)
    for comm in case.proc_folder.glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() in CRON_DAEMONS:
                return report_pass("a cron daemon runs")
        except OSError:  # it has just ended
            continue
    if not os.access(case.proc_folder / "1/stat", os.R_OK):
        return report_skip("other people's processes are hidden here (hidepid), and with them a cron daemon")
    advice = f"as root: systemctl enable --now cron (or crond); or let systemd start it: {SYSTEMD_DOC}"
    return report_failure("no cron daemon runs: nobody starts the builder", advice)


def read_user_crontab() -> tuple[str | None, str]:
    """The crontab, or None and why there is none to be read."""
    program = shutil.which("crontab", path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin")
    if program is None:
        return None, "there is no crontab command here"
    try:
        done = subprocess.run(
            [program, "-l"], capture_output=True, text=True, timeout=CRONTAB_TIMEOUT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return None, f"crontab -l did not answer within {CRONTAB_TIMEOUT_S} s"
    words = " ".join(done.stderr.split())[:200]
    if done.returncode and not re.search("no crontab for|No such file", words, re.IGNORECASE):
        return None, words or f"crontab -l ends with {done.returncode}"
    return done.stdout, ""


def check_cron_allowed(case: DoctorContext) -> CheckResult:
    """Whether this user may have a crontab, as crontab itself tells it."""
    if list_enabled_units(case):
        return report_not_applicable(STARTED_BY_SYSTEMD)
    table, why = read_user_crontab()
    if table is not None:
        return report_pass("this user may have a crontab")
    if "not allowed" in why:
        advice = f"as root, add it to /etc/cron.allow, or take it out of /etc/cron.deny; or use systemd: {SYSTEMD_DOC}"
        return report_failure(f"this user may not have a crontab: {why}", advice)
    return report_failure(
        f"the crontab cannot be read: {why}", f"install cron, or let systemd start the builder: {SYSTEMD_DOC}"
    )


def check_crontab(case: DoctorContext) -> CheckResult:
    """Whether something starts the builder again."""
    if enabled := list_enabled_units(case):
        return report_pass(f"systemd starts it: {', '.join(enabled)}")
    table, _ = read_user_crontab()
    if table is None:
        return report_skip("the crontab cannot be read")
    for line in table.splitlines():
        if not line.lstrip().startswith("#") and (found := BUILD_LINE.search(line)):
            program = found[1]
            if program and not os.access(program, os.X_OK):
                return report_failure(f"the crontab calls {program}, which is not there", "call ./install.sh web again")
            return report_pass(" ".join(line.split()))
    what = "the crontab of this user has no line for `gpuboard build`"
    return report_warning(what, "call ./install.sh web as the user who builds, and this as the same user")


def check_linger(case: DoctorContext) -> CheckResult:
    """Without it, the units of a user end with their last session, and do not begin at boot."""
    if not list_enabled_units(case):
        return report_not_applicable(STARTED_BY_CRON)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return report_skip("this user has no name")
    if (LINGER_FOLDER / user).exists():
        return report_pass("units of this user run without a login")
    what = "units of this user end with their last login, and do not begin at boot"
    return report_failure(what, f"loginctl enable-linger {user}")


BYTES_PER_MIB = 1 << 20
# Room below which the next days, or the next build, are at risk.
LOW_SPACE_BYTES, NO_SPACE_BYTES = 500 * BYTES_PER_MIB, 20 * BYTES_PER_MIB
MIN_FREE_FILES = 1000
NETWORK_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "ceph",
    "beegfs",
    "afs",
    "9p",
    "fuse.sshfs",
    "glusterfs",
    "ocfs2",
)
# Files of state/ that nothing can rebuild.
IRREPLACEABLE_FILES = ("tokens.json", "alerts.json", "memory.json")
# Seconds for which SQLite may look at the whole file.
QUICK_CHECK_TIMEOUT_S = 10


def check_state_folder(case: DoctorContext) -> CheckResult:
    """What the builder remembers: it must be the builder's alone."""
    from site_builder.core import files  # noqa: PLC0415 # slow to import

    folder = case.settings.state.absolute()
    if not folder.is_dir():
        return report_skip(f"{folder} is not there yet: the first `gpuboard build` makes it")
    told = folder.stat()
    if told.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return report_failure(f"others can write to {folder}, so that no build uses it", f"chmod 700 {folder}")
    if told.st_uid != os.geteuid():
        return report_failure(f"{folder} is another user's", "call this as the user who builds, or set GPUBOARD_STATE")
    emptied = [name for name in IRREPLACEABLE_FILES if files.is_empty(folder / name)]
    if emptied:
        what = f"{folder / emptied[0]} is empty; the last good copy of it is used, if there is one"
        return report_warning(what, "see why: a full disk, or somebody who emptied it")
    return check_state_access(case, folder)


def check_state_access(case: DoctorContext, folder: Path) -> CheckResult:
    """Check who can read state/, and what it is on."""
    told = folder.stat()
    if told.st_mode & 0o077:
        return report_warning(f"others can look into {folder}, which holds tokens and names", f"chmod 700 {folder}")
    kind = find_file_system_type(case.proc_folder, folder)
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        what = f"{folder} is on a network file system ({kind}), on which locks and databases break"
        return report_warning(what, "set GPUBOARD_STATE to a folder on a local disk")
    return report_pass(str(folder))


def find_file_system_type(proc: Path, folder: Path) -> str:
    """The kind of file system that a folder is on, by the longest mount that it lies below."""
    found = ("", "")
    real = f"{os.path.realpath(folder)}/"
    for line in (proc / "mounts").read_text(errors="replace").splitlines():
        _, mount, kind, *_ = [*line.split(" "), "", "", ""]
        mount = f"{mount.rstrip('/')}/".replace("\\040", " ")
        if real.startswith(mount) and len(mount) >= len(found[0]):
            found = mount, kind
    return found[1]


def check_builder(case: DoctorContext) -> CheckResult:
    """Whether the site is of now."""
    from site_builder.client import loader  # noqa: PLC0415 # slow to import

    www, file = case.settings.www.absolute(), case.settings.www.absolute() / "status.json"
    owner = find_builder_pid(case.settings.state)
    start = "start it: the check crontab tells what should"
    if not file.is_file():
        return report_failure(
            f"{www} has no status.json: the board was never built", f"{start}, or call `gpuboard build`"
        )
    fleet, wrong = loader.parse_status(file.read_bytes())
    if fleet is None:
        return report_failure(f"{file} {wrong}", "call `gpuboard build`, which tells what is wrong")
    try:
        loader.check_board_age(fleet, str(www), case.read_clock())
    except FleetUnavailableError as why:
        advice = f"process {owner} has the lock: end it, if it hangs" if owner else start
        return report_failure(str(why).partition(": ")[0], advice)
    age = max(0, case.read_clock() - fleet.built)
    return report_pass(f"built {age:.0f} s ago" + (f"; process {owner} is at work" if owner else ""))


def find_builder_pid(folder: Path) -> str:
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


def check_www_folder(case: DoctorContext) -> CheckResult:
    """Whether the site can be written, and be read by a web server that is another user."""
    www = case.settings.www.absolute()
    if not www.is_dir():
        return report_failure(f"{www} is not there", "call `gpuboard build`, or set GPUBOARD_WWW")
    if not os.access(www, os.W_OK):
        return report_failure(
            f"{www} cannot be written by this user", "call this as the user who builds, or set GPUBOARD_WWW"
        )
    if www.stat().st_mode & stat.S_IWOTH:
        return report_failure(
            f"everybody on this machine can write to {www}, and so put scripts on the page", f"chmod o-w {www}"
        )
    # one build as root leaves folders in which nobody else can write
    closed = [one for one in sorted(www.iterdir()) if one.is_dir() and not os.access(one, os.W_OK | os.X_OK)]
    if closed:
        what = f"{closed[0]} cannot be written by this user, though {www} can"
        return report_failure(what, f"as root: chown -R --reference={www} {www}")
    return report_pass(str(www))


def check_disk_space(case: DoctorContext) -> CheckResult:
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
        if told.f_files and told.f_favail < MIN_FREE_FILES:
            little.append((0, f"{folder.absolute()} has room for {told.f_favail} more files"))
        elif room < LOW_SPACE_BYTES:
            little.append((room, f"{folder.absolute()} has {format_size(room / BYTES_PER_MIB)} left"))
    if not little:
        return (
            report_pass(f"at least {format_size(least / BYTES_PER_MIB)} to spare")
            if least < float("inf")
            else report_skip("no folder is there")
        )
    least, what = min(little)
    advice = "make room; the page stays as it is while there is none"
    return report_failure(what, advice) if least < NO_SPACE_BYTES else report_warning(what, advice)


def check_history(case: DoctorContext) -> CheckResult:
    """Whether the file of the past can be read."""
    from site_builder.history import database  # noqa: PLC0415 # slow to import

    path = case.settings.state / database.DATABASE_NAME
    if not path.exists():
        return report_skip("there is no history yet: the first builds begin it")
    try:
        told = run_quick_check(path)
    except database.HistoryUnusableError as why:
        return report_warning(f"{path}: {why}", "update gpuboard here, or let `gpuboard build` bring it up to date")
    except sqlite3.Error as error:
        told = str(error)
    if told != "ok":
        advice = "the next build sets a damaged one aside and begins anew; docs/history.md tells what can be saved"
        return report_failure(f"{path} cannot be read: {told}", advice)
    problems = database.describe_broken_files(case.settings.state)
    if problems:
        return report_warning(
            f"{problems[0].where} {problems[0].what}", "see why: a full disk, or a share that is no local disk"
        )
    return report_pass(f"history.db has {format_size(path.stat().st_size / BYTES_PER_MIB)}")


def run_quick_check(path: Path) -> str:
    """What SQLite says of a file, as far as there is time; `ok` if nothing is wrong."""
    from site_builder.history import database  # noqa: PLC0415 # slow to import

    connection = database.open_database(path, read_only=True)
    end = time.monotonic() + QUICK_CHECK_TIMEOUT_S
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
