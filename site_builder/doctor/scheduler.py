"""Checks of what starts the builder: cron, or the units of systemd in docs/systemd.md."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

from site_builder.doctor.check_result import Case, Found, apart, failed, passed, skipped, warned

DAEMONS = {"cron", "crond", "cronie", "fcron", "systemd-cron", "anacron"}
# With the program, where its place is written out.
OUR_LINE = re.compile(r"""(?:(?:(?<=\s)|(?<=['"]))(/[^\s'"]*/gpuboard)['"]?|(?:site_builder|gpuboard)['"]?) build\b""")
LINGER = Path("/var/lib/systemd/linger")
SECONDS = 10
SYSTEMD = "docs/systemd.md"
NOT_CRON, NOT_SYSTEMD = "a unit of systemd starts the builder, and not cron", "cron starts the builder, and not systemd"


def units(case: Case) -> list[str]:
    """The units of ours that are enabled for this user; of one that was removed by hand, the link stays."""
    folder = Path(case.environment.get("XDG_CONFIG_HOME") or case.home / ".config") / "systemd/user"
    return sorted(link.name for link in folder.glob("*.wants/gpuboard-build.*") if link.exists())


def cron_daemon(case: Case) -> Found:
    """Whether one runs."""
    if units(case):
        return apart(NOT_CRON)
    for comm in case.proc.glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() in DAEMONS:
                return passed("a cron daemon runs")
        except OSError:  # it has just ended
            continue
    if not os.access(case.proc / "1/stat", os.R_OK):
        return skipped("other people's processes are hidden here (hidepid), and with them a cron daemon")
    advice = f"as root: systemctl enable --now cron (or crond); or let systemd start it: {SYSTEMD}"
    return failed("no cron daemon runs: nobody starts the builder", advice)


def crontab_of_user() -> tuple[str | None, str]:
    """The crontab, or None and why there is none to be read."""
    program = shutil.which("crontab", path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin")
    if program is None:
        return None, "there is no crontab command here"
    try:
        done = subprocess.run(
            [program, "-l"], capture_output=True, text=True, timeout=SECONDS, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return None, f"crontab -l did not answer within {SECONDS} s"
    words = " ".join(done.stderr.split())[:200]
    if done.returncode and not re.search("no crontab for|No such file", words, re.IGNORECASE):
        return None, words or f"crontab -l ends with {done.returncode}"
    return done.stdout, ""


def cron_allowed(case: Case) -> Found:
    """Whether this user may have a crontab, as crontab itself tells it."""
    if units(case):
        return apart(NOT_CRON)
    table, why = crontab_of_user()
    if table is not None:
        return passed("this user may have a crontab")
    if "not allowed" in why:
        advice = f"as root, add it to /etc/cron.allow, or take it out of /etc/cron.deny; or use systemd: {SYSTEMD}"
        return failed(f"this user may not have a crontab: {why}", advice)
    return failed(f"the crontab cannot be read: {why}", f"install cron, or let systemd start the builder: {SYSTEMD}")


def crontab(case: Case) -> Found:
    """Whether something starts the builder again."""
    if enabled := units(case):
        return passed(f"systemd starts it: {', '.join(enabled)}")
    table, _ = crontab_of_user()
    if table is None:
        return skipped("the crontab cannot be read")
    for line in table.splitlines():
        if not line.lstrip().startswith("#") and (found := OUR_LINE.search(line)):
            program = found[1]
            if program and not os.access(program, os.X_OK):
                return failed(f"the crontab calls {program}, which is not there", "call ./install.sh web again")
            return passed(" ".join(line.split()))
    what = "the crontab of this user has no line for `gpuboard build`"
    return warned(what, "call ./install.sh web as the user who builds, and this as the same user")


def linger(case: Case) -> Found:
    """Without it, the units of a user end with their last session, and do not begin at boot."""
    if not units(case):
        return apart(NOT_SYSTEMD)
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return skipped("this user has no name")
    if (LINGER / user).exists():
        return passed("units of this user run without a login")
    what = "units of this user end with their last login, and do not begin at boot"
    return failed(what, f"loginctl enable-linger {user}")
