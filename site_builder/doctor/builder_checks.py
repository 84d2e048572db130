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
from site_builder.doctor.model import CheckResult, DoctorContext, fail, not_applicable, passed, skip, warn

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
STARTED_BY_SYSTEMD = "a unit of systemd starts the builder, and not cron"
STARTED_BY_CRON = "cron starts the builder, and not systemd"
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
        return fail(f"not installed: {', '.join(missing)}", "call ./install.sh web again, or pip install them")
    return passed(f"all {len(REQUIRED_PACKAGES)} packages are here")


def check_settings(context: DoctorContext) -> CheckResult:
    if context.loaded_settings is None:
        advice = "correct it, then call this again: what needs the settings is skipped below"
        return fail(context.settings_error, advice)
    conf = context.loaded_settings.conf
    if conf.warnings:
        return warn(conf.warnings, "correct it: `gpuboard config` shows what is in force")
    if conf.path is None:
        return passed("there is no gpuboard.conf: environment and defaults count")
    relative_folders = [
        name
        for name in ("GPUBOARD_DATA", "GPUBOARD_WWW", "GPUBOARD_STATE")
        if not context.loaded_settings.given[name].text.startswith("/")
    ]
    if relative_folders and conf.path.parent != conf.path.cwd():
        names = format_names(relative_folders)
        message = f"{names} in {conf.path} count from where gpuboard is started, and cron starts it at home"
        return warn(message, "write them whole, beginning with /")
    return passed(str(conf.path))


def list_enabled_units(context: DoctorContext) -> list[str]:
    """List our systemd units that are enabled for this user; ignore dangling links."""
    folder = Path(context.environment.get("XDG_CONFIG_HOME") or context.home / ".config") / "systemd/user"
    return sorted(link.name for link in folder.glob("*.wants/gpuboard-build.*") if link.exists())


def check_cron_daemon(context: DoctorContext) -> CheckResult:
    if list_enabled_units(context):
        return not_applicable(STARTED_BY_SYSTEMD)
    for comm in context.proc_folder.glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() in CRON_DAEMONS:
                return passed("a cron daemon runs")
        except OSError:  # it has just ended
            continue
    if not os.access(context.proc_folder / "1/stat", os.R_OK):
        return skip("other people's processes are hidden here (hidepid), and with them a cron daemon")
    advice = f"as root: systemctl enable --now cron (or crond); or let systemd start it: {SYSTEMD_DOC}"
    return fail("no cron daemon runs: nobody starts the builder", advice)


def read_user_crontab() -> tuple[str | None, str]:
    """Return the crontab, or None and the reason."""
    program = shutil.which("crontab", path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin")
    if program is None:
        return None, "there is no crontab command here"
    try:
        result = subprocess.run(
            [program, "-l"], capture_output=True, text=True, timeout=CRONTAB_TIMEOUT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return None, f"crontab -l did not answer within {CRONTAB_TIMEOUT_S} s"
    message = " ".join(result.stderr.split())[:200]
    if result.returncode and not re.search("no crontab for|No such file", message, re.IGNORECASE):
        return None, message or f"crontab -l ends with {result.returncode}"
    return result.stdout, ""


def check_cron_allowed(context: DoctorContext) -> CheckResult:
    if list_enabled_units(context):
        return not_applicable(STARTED_BY_SYSTEMD)
    crontab, why = read_user_crontab()
    if crontab is not None:
        return passed("this user may have a crontab")
    if "not allowed" in why:
        advice = f"as root, add it to /etc/cron.allow, or take it out of /etc/cron.deny; or use systemd: {SYSTEMD_DOC}"
        return fail(f"this user may not have a crontab: {why}", advice)
    return fail(f"the crontab cannot be read: {why}", f"install cron, or let systemd start the builder: {SYSTEMD_DOC}")


def check_crontab(context: DoctorContext) -> CheckResult:
    if enabled := list_enabled_units(context):
        return passed(f"systemd starts it: {', '.join(enabled)}")
    crontab, _ = read_user_crontab()
    if crontab is None:
        return skip("the crontab cannot be read")
    for line in crontab.splitlines():
        if not line.lstrip().startswith("#") and (match := BUILD_LINE.search(line)):
            program = match[1]
            if program and not os.access(program, os.X_OK):
                return fail(f"the crontab calls {program}, which is not there", "call ./install.sh web again")
            return passed(" ".join(line.split()))
    what = "the crontab of this user has no line for `gpuboard build`"
    return warn(what, "call ./install.sh web as the user who builds, and this as the same user")


def check_linger(context: DoctorContext) -> CheckResult:
    """Without it, the units of a user end with their last session, and do not begin at boot."""
    if not list_enabled_units(context):
        return not_applicable(STARTED_BY_CRON)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return skip("this user has no name")
    if (LINGER_FOLDER / user).exists():
        return passed("units of this user run without a login")
    what = "units of this user end with their last login, and do not begin at boot"
    return fail(what, f"loginctl enable-linger {user}")


def check_state_folder(context: DoctorContext) -> CheckResult:
    folder = context.settings.state.absolute()
    if not folder.is_dir():
        return skip(f"{folder} is not there yet: the first `gpuboard build` makes it")
    status = folder.stat()
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return fail(f"others can write to {folder}, so that no build uses it", f"chmod 700 {folder}")
    if status.st_uid != os.geteuid():
        return fail(f"{folder} is another user's", "call this as the user who builds, or set GPUBOARD_STATE")
    empty_files = [name for name in IRREPLACEABLE_FILES if files.is_emptied_file(folder / name)]
    if empty_files:
        message = f"{folder / empty_files[0]} is empty; the last good copy of it is used, if there is one"
        return warn(message, "see why: a full disk, or somebody who emptied it")
    if status.st_mode & 0o077:
        return warn(f"others can look into {folder}, which holds tokens and names", f"chmod 700 {folder}")
    mount_point, file_system = "", ""  # the longest mount point above the folder
    for line in (context.proc_folder / "mounts").read_text(errors="replace").splitlines():
        _, mount, mounted_type, *_ = [*line.split(" "), "", "", ""]
        mount = f"{mount.rstrip('/')}/".replace("\\040", " ")
        if f"{os.path.realpath(folder)}/".startswith(mount) and len(mount) >= len(mount_point):
            mount_point, file_system = mount, mounted_type
    if NETWORK_FILE_SYSTEM.match(file_system):
        message = f"{folder} is on a network file system ({file_system}), on which locks and databases break"
        return warn(message, "set GPUBOARD_STATE to a folder on a local disk")
    return passed(str(folder))


def check_builder(context: DoctorContext) -> CheckResult:
    www, file = context.settings.www.absolute(), context.settings.www.absolute() / "status.json"
    builder_pid = locks.find_lock_holder(context.settings.state / "lock")
    advice_to_start = "start it: the check crontab tells what should"
    if not file.is_file():
        message = f"{www} has no status.json: the board was never built"
        return fail(message, f"{advice_to_start}, or call `gpuboard build`")
    fleet, problem = loader.parse_status(file.read_bytes())
    if fleet is None:
        return fail(f"{file} {problem}", "call `gpuboard build`, which tells what is wrong")
    try:
        loader.check_loaded_board_age(fleet.built, fleet.every, str(www), context.read_clock())
    except FleetUnavailableError as error:
        advice = f"process {builder_pid} has the lock: end it, if it hangs" if builder_pid else advice_to_start
        return fail(str(error).partition(": ")[0], advice)
    age = max(0, context.read_clock() - fleet.built)
    return passed(f"built {age:.0f} s ago" + (f"; process {builder_pid} is at work" if builder_pid else ""))


def check_www_folder(context: DoctorContext) -> CheckResult:
    www = context.settings.www.absolute()
    if not www.is_dir():
        return fail(f"{www} is not there", "call `gpuboard build`, or set GPUBOARD_WWW")
    if not os.access(www, os.W_OK):
        return fail(f"{www} cannot be written by this user", "call this as the user who builds, or set GPUBOARD_WWW")
    if www.stat().st_mode & stat.S_IWOTH:
        return fail(f"everybody on this machine can write to {www}, and so put scripts on the page", f"chmod o-w {www}")
    # one build as root leaves folders in which nobody else can write
    for path in sorted(www.iterdir()):
        if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
            message = f"{path} cannot be written by this user, though {www} can"
            return fail(message, f"as root: chown -R --reference={www} {www}")
    return passed(str(www))


def check_disk_space(context: DoctorContext) -> CheckResult:
    settings = context.settings
    spaces: list[tuple[float, str]] = []  # of each folder, how much is left, and what to say where that is little
    for folder in (settings.data, settings.state, settings.www):
        if folder.is_dir():
            usage = os.statvfs(folder)
            free_bytes = usage.f_bavail * usage.f_frsize
            if usage.f_files and usage.f_favail < MIN_FREE_FILES:
                spaces.append((0, f"{folder.absolute()} has room for {usage.f_favail} more files"))
            else:
                free = format_size(free_bytes / BYTES_PER_MIB)
                spaces.append((free_bytes, f"{folder.absolute()} has {free} left"))
    if not spaces:
        return skip("no folder is there")
    least_free, message = min(spaces)
    if least_free >= LOW_SPACE_BYTES:
        return passed(f"at least {format_size(least_free / BYTES_PER_MIB)} to spare")
    advice = "make room; the page stays as it is while there is none"
    return fail(message, advice) if least_free < NO_SPACE_BYTES else warn(message, advice)
