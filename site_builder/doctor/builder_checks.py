"""Checks of the program, the builder and what starts it."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path

from site_builder import __version__
from site_builder.client import loader
from site_builder.core import files, locks
from site_builder.core.formatting import format_names, format_size
from site_builder.core.model import FleetUnavailableError
from site_builder.doctor.model import CheckResult, DoctorContext, fail, not_applicable, not_checked, passed, skip, warn

# By the names under which they are imported, and those by which pip knows them where that is another.
REQUIRED_PACKAGES = ("click", "consul", "dateutil", "icalendar", "jinja2", "orjson", "paramiko", "rich", "waitress")
PIP_NAMES = {"consul": "python-consul", "dateutil": "python-dateutil"}
CRON_DAEMONS = {"cron", "crond", "cronie", "fcron", "systemd-cron", "anacron"}
# With the program, where its place is written out.
BUILD_LINE = re.compile(
    r"""(?:(?:(?<=\s)|(?<=['"]))(/[^\s'"]*/gpuboard)['"]?|(?:site_builder|gpuboard)['"]?) build\b"""
)
LINGER_FOLDER = Path("/var/lib/systemd/linger")
CRONTAB_TIMEOUT_S = 10
SYSTEMD_DOC = "docs/systemd.md"
STARTED_BY_SYSTEMD = "systemd starts the builder, not cron"
STARTED_BY_CRON = "cron starts the builder, not systemd"
BYTES_PER_MIB = 1 << 20
# Room below which the next days, or the next build, are at risk.
LOW_SPACE_BYTES, NO_SPACE_BYTES = 500 * BYTES_PER_MIB, 20 * BYTES_PER_MIB
MIN_FREE_FILES = 1000
NETWORK_FILE_SYSTEM = re.compile(r"nfs|cifs|smb|lustre|gpfs|ceph|beegfs|afs|9p|fuse\.sshfs|glusterfs|ocfs2")
# Files of state/ that nothing can rebuild.
IRREPLACEABLE_FILES = ("tokens.json", "alerts.json", "memory.json")


def check_python(context: DoctorContext) -> CheckResult:  # noqa: ARG001 # a check's own form
    return passed(f"gpuboard {__version__} with Python {platform.python_version()}")


def check_packages(context: DoctorContext) -> CheckResult:  # noqa: ARG001 # the same
    missing = [PIP_NAMES.get(name, name) for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if missing:
        return fail(f"not installed: {', '.join(missing)}", "run ./install.sh web again, or install them with pip")
    return passed(f"all {len(REQUIRED_PACKAGES)} packages are installed")


def check_settings(context: DoctorContext) -> CheckResult:
    if context.loaded_settings is None:
        advice = "correct it, then run this again; checks that need the settings are skipped"
        return fail(context.settings_error, advice)
    conf = context.loaded_settings.conf
    if conf.warnings:
        return warn(conf.warnings, "correct it; `gpuboard config` shows the settings in effect")
    if conf.path is None:
        return passed("no gpuboard.conf: the environment and the defaults apply")
    relative_folders = [
        name
        for name in ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")
        if not context.loaded_settings.given[name].text.startswith("/")
    ]
    if relative_folders and conf.path.parent != conf.path.cwd():
        names = format_names(relative_folders)
        message = (
            f"{names} in {conf.path} are relative to the folder that gpuboard starts in; with cron, the home folder"
        )
        return warn(message, "use absolute paths, starting with /")
    return passed(str(conf.path))


def list_enabled_units(context: DoctorContext) -> list[str]:
    """List our systemd units that are enabled for this user; ignore dangling links."""
    folder = Path(context.environment.get("XDG_CONFIG_HOME") or context.home / ".config") / "systemd/user"
    return sorted(link.name for link in folder.glob("*.wants/gpuboard-build.*") if link.exists())


def check_cron_daemon(context: DoctorContext) -> CheckResult:
    if list_enabled_units(context):
        return not_applicable(STARTED_BY_SYSTEMD)
    is_running = find_cron_daemon(context)
    if is_running:
        return passed("a cron daemon is running")
    if is_running is None:
        return skip("cannot tell: the processes of other users are hidden here (hidepid)")
    advice = f"as root: systemctl enable --now cron (or crond); or use systemd: {SYSTEMD_DOC}"
    if age := context.format_board_age():
        message = f"no cron daemon is running, but something else built the board {age} ago"
        return warn(message, f"make sure that it also starts after a reboot; or {advice}")
    return fail("no cron daemon is running, so nothing starts the builder", advice)


def find_cron_daemon(context: DoctorContext) -> bool | None:
    """Return whether a cron daemon runs; None if processes of other users are hidden."""
    for comm in context.proc_folder.glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() in CRON_DAEMONS:
                return True
        except OSError:  # it has just ended
            continue
    return False if os.access(context.proc_folder / "1/stat", os.R_OK) else None


def read_user_crontab() -> tuple[str | None, str]:
    """Return the crontab, or None and the reason."""
    program = shutil.which("crontab", path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin")
    if program is None:
        return None, "there is no crontab command"
    try:
        result = subprocess.run(
            [program, "-l"], capture_output=True, text=True, timeout=CRONTAB_TIMEOUT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return None, f"crontab -l did not answer within {CRONTAB_TIMEOUT_S} s"
    message = " ".join(result.stderr.split())[:200]
    if result.returncode and not re.search("no crontab for|No such file", message, re.IGNORECASE):
        return None, message or f"crontab -l failed with exit code {result.returncode}"
    return result.stdout, ""


def check_cron_allowed(context: DoctorContext) -> CheckResult:
    if list_enabled_units(context):
        return not_applicable(STARTED_BY_SYSTEMD)
    if find_cron_daemon(context) is False:
        return not_checked("cron-daemon")
    crontab, why = read_user_crontab()
    if crontab is not None:
        return passed("this user is allowed to use cron")
    if "not allowed" in why:
        advice = (
            f"as root, add the user to /etc/cron.allow, or remove it from /etc/cron.deny; or use systemd: {SYSTEMD_DOC}"
        )
        return fail(f"this user is not allowed to use cron: {why}", advice)
    return fail(f"the crontab cannot be read: {why}", f"install cron, or use systemd: {SYSTEMD_DOC}")


def check_crontab(context: DoctorContext) -> CheckResult:
    if enabled := list_enabled_units(context):
        return passed(f"systemd starts the builder: {', '.join(enabled)}")
    if find_cron_daemon(context) is False:
        return not_checked("cron-daemon")
    crontab, _ = read_user_crontab()
    if crontab is None:
        return not_checked("cron-allowed")
    for line in crontab.splitlines():
        if not line.lstrip().startswith("#") and (match := BUILD_LINE.search(line)):
            program = match[1]
            if program and not os.access(program, os.X_OK):
                return fail(f"the crontab starts {program}, which does not exist", "run ./install.sh web again")
            return passed(" ".join(line.split()))
    advice = "run ./install.sh web as the user who builds, and this command as the same user"
    message = "this user's crontab has no line for `gpuboard build`"
    if age := context.format_board_age():
        message += f", but something else built the board {age} ago"
        advice = f"make sure that it also starts after a reboot; or {advice}"
    return warn(message, advice)


def check_linger(context: DoctorContext) -> CheckResult:
    """Without it, the units of a user end with their last session, and do not begin at boot."""
    if not list_enabled_units(context):
        return not_applicable(STARTED_BY_CRON)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return skip("this user has no name")
    if (LINGER_FOLDER / user).exists():
        return passed("units of this user run without a login session")
    message = "units of this user stop at logout and do not start at boot"
    return fail(message, f"loginctl enable-linger {user}")


def check_state_folder(context: DoctorContext) -> CheckResult:
    folder = context.settings.state.absolute()
    if not folder.is_dir():
        return skip(f"{folder} does not exist yet: the first `gpuboard build` creates it")
    status = folder.stat()
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return fail(f"other users can write to {folder}, so the builder refuses to use it", f"chmod 700 {folder}")
    if status.st_uid != os.geteuid():
        return fail(f"{folder} belongs to another user", "run this as the user who builds, or set GPUBOARD_STATE")
    empty_files = [name for name in IRREPLACEABLE_FILES if files.is_emptied_file(folder / name)]
    if empty_files:
        message = f"{folder / empty_files[0]} is empty; its last good copy is used if there is one"
        return warn(message, "check whether the disk is full, or somebody emptied the file")
    if status.st_mode & 0o077:
        return warn(f"other users can read {folder}, which contains tokens and names", f"chmod 700 {folder}")
    mount_point, file_system = "", ""  # the longest mount point above the folder
    for line in (context.proc_folder / "mounts").read_text(errors="replace").splitlines():
        _, mount, mounted_type, *_ = [*line.split(" "), "", "", ""]
        mount = f"{mount.rstrip('/')}/".replace("\\040", " ")
        if f"{os.path.realpath(folder)}/".startswith(mount) and len(mount) >= len(mount_point):
            mount_point, file_system = mount, mounted_type
    if NETWORK_FILE_SYSTEM.match(file_system):
        message = f"{folder} is on a network file system ({file_system}), where locks and databases are unreliable"
        return warn(message, "set GPUBOARD_STATE to a folder on a local disk")
    return passed(str(folder))


def check_builder(context: DoctorContext) -> CheckResult:
    www, file = context.settings.www.absolute(), context.settings.www.absolute() / "status.json"
    builder_pid = locks.find_lock_holder(context.settings.state / "lock")
    advice_to_start = "start the builder: see the check crontab"
    if not www.is_dir():
        return not_checked("www")
    if not file.is_file():
        return fail(
            f"{www} has no status.json: the board was never built", f"{advice_to_start}; or run `gpuboard build`"
        )
    fleet, problem = loader.parse_status(file.read_bytes())
    if fleet is None:
        return fail(f"{file} {problem}", "run `gpuboard build`, which reports what is wrong")
    try:
        loader.check_loaded_board_age(fleet.built, fleet.every, str(www), context.read_clock())
    except FleetUnavailableError as error:
        message = str(error).partition(": ")[0]
        if builder_pid is None and not list_enabled_units(context) and find_cron_daemon(context) is False:
            return skip(f"{message}: see the check cron-daemon")
        advice = f"process {builder_pid} holds the lock: end it if it hangs" if builder_pid else advice_to_start
        return fail(message, advice)
    age = max(0, context.read_clock() - fleet.built)
    return passed(f"built {age:.0f} s ago" + (f"; process {builder_pid} is running" if builder_pid else ""))


def check_www_folder(context: DoctorContext) -> CheckResult:
    www = context.settings.www.absolute()
    if not www.is_dir():
        return fail(f"{www} does not exist", "run `gpuboard build`, or correct GPUBOARD_WWW")
    if not os.access(www, os.W_OK):
        return fail(f"this user cannot write to {www}", "run this as the user who builds, or correct GPUBOARD_WWW")
    if www.stat().st_mode & stat.S_IWOTH:
        return fail(f"every user of this machine can write to {www} and put scripts on the page", f"chmod o-w {www}")
    # one build as root leaves folders in which nobody else can write
    for path in sorted(www.iterdir()):
        if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
            message = f"this user can write to {www}, but not to {path}"
            return fail(message, f"as root: chown -R --reference={www} {www}")
    return passed(str(www))


def check_disk_space(context: DoctorContext) -> CheckResult:
    settings = context.settings
    spaces: list[tuple[float, str]] = []  # free bytes of each folder, and a message
    for folder in (settings.data, settings.state, settings.www):
        if folder.is_dir():
            usage = os.statvfs(folder)
            free_bytes = usage.f_bavail * usage.f_frsize
            if usage.f_files and usage.f_favail < MIN_FREE_FILES:
                spaces.append((0, f"{folder.absolute()} has room for only {usage.f_favail} more files"))
            else:
                free = format_size(free_bytes / BYTES_PER_MIB)
                spaces.append((free_bytes, f"{folder.absolute()} has {free} of free space"))
    if not spaces:
        return skip("none of the folders exists")
    least_free, message = min(spaces)
    if least_free >= LOW_SPACE_BYTES:
        return passed(f"at least {format_size(least_free / BYTES_PER_MIB)} of free space")
    advice = "free some space; the page is not updated while the disk is full"
    return fail(message, advice) if least_free < NO_SPACE_BYTES else warn(message, advice)
