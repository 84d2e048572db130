"""Checks of data/, ssh keys and Consul."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import stat
import time
from collections import Counter
from contextlib import closing

from site_builder.bookings.store import BookingsFile
from site_builder.consul import client, kv, leader
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import KvStore
from site_builder.core.data_folder import BOOKINGS_FILE, find_bookings_folder_in_data, list_data_folder_problems
from site_builder.core.formatting import format_count, format_duration, format_names, format_size
from site_builder.discovery import hosts
from site_builder.discovery.hosts import HostDiscovery, request_discovered_nodes
from site_builder.doctor.builder_checks import BYTES_PER_MIB
from site_builder.doctor.model import CheckResult, DoctorContext, fail, not_applicable, not_checked, passed, skip, warn
from site_builder.fleet.gpu_models import NameFiles
from site_builder.history import database
from site_builder.snapshots.store import SnapshotStore

MAX_FILE_BYTES = 1 << 20
KEY_PATTERN = re.compile(r"(?:^|\s)((?:ssh|ecdsa|sk)-[\w@.-]+)\s+[A-Za-z0-9+/=]+(?:\s+(.*))?$")
FORCED_COMMAND = re.compile(r'(?:^|,)command="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
RECEIVER_SCRIPT = "gpu-receive.sh"
# Characters that make a shell run more than one command.
SHELL_OPERATORS = re.compile(r"[;&|<>()$`\n]")
# Options that undo part of `restrict`.
LOOSENING_OPTIONS = {"agent-forwarding", "port-forwarding", "pty", "user-rc", "x11-forwarding"}
HOST_STATES = ("fresh", "maintenance", "stale", "failed", "unseen", "down")
GOOD_HOST_STATES = ("fresh", "maintenance")
# Seconds that SQLite may take to check the whole file.
QUICK_CHECK_TIMEOUT_S = 10


def check_authorized_keys(context: DoctorContext) -> CheckResult:
    """Check that each key of this user can push for one host, and do nothing else."""
    path = context.home / ".ssh/authorized_keys"
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_FILE_BYTES).decode(errors="replace").splitlines()
            mode = os.fstat(file.fileno()).st_mode
    except FileNotFoundError:
        return skip(f"{path} does not exist: no host pushes here with an ssh key of this user")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return fail(f"other users can write to {path}: sshd ignores its keys", f"chmod go-w {path}")
    keys = []
    for number, line in enumerate(lines, 1):
        match = KEY_PATTERN.search(line)
        if match and not line.lstrip().startswith("#"):
            comment = "".join(letter if letter.isprintable() else "?" for letter in match[2] or "")[:40]
            shown = f"line {number} ({comment})" if comment else f"line {number}"
            keys.append((shown, line[: match.start(1)].strip()))
    for script in sorted({(split_forced_command(options) or [""])[0] for _, options in keys}):
        if script.endswith(f"/{RECEIVER_SCRIPT}") and not os.access(script, os.X_OK):
            message = f"{path} names {script}, which does not exist: nothing arrives from those hosts"
            return fail(message, "run ./install.sh web, or enrol the hosts again: gpu-enrol.sh add HOST")
    unrestricted = [shown for shown, options in keys if is_authorized_key_unrestricted(options)]
    if unrestricted:
        counts = f"{len(unrestricted)} of {format_count(len(keys), 'key')} in {path}"
        message = f"{counts} can do more than push for one host: {format_names(unrestricted)}"
        advice = "restrict the keys of GPU hosts with gpu-enrol.sh add HOST; see docs/security.md"
        return warn(message, f"{advice}. Keys of people can stay")
    keys_text = f"all {len(keys)} keys" if len(keys) != 1 else "the only key"
    return passed(f"{keys_text} in {path} can only push for one host")


def split_forced_command(options: str) -> list[str]:
    """Split a forced command into words as a shell would, with its operators as words."""
    command = FORCED_COMMAND.search(options)
    lexer = shlex.shlex(command[1].replace('\\"', '"') if command else "", posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True
    try:
        return list(lexer)
    except ValueError:  # a quote without its end
        return []


def is_authorized_key_unrestricted(options: str) -> bool:
    program, *words = split_forced_command(options) or [""]
    plain = {option.strip().lower() for option in FORCED_COMMAND.sub("", options).split(",")}
    is_ours = program.rpartition("/")[2] == RECEIVER_SCRIPT and not SHELL_OPERATORS.search(" ".join(words))
    return not is_ours or "restrict" not in plain or bool(plain & LOOSENING_OPTIONS)


def check_consul(context: DoctorContext) -> CheckResult:
    access = context.settings.consul
    if access is None:
        return not_applicable("GPUBOARD_CONSUL_SERVICE is not set")
    where = f"Consul at {client.format_agent_address(access.address)}"
    request = request_discovered_nodes(access)
    failure = request.wait()
    parsed_nodes = hosts.parse_discovered_nodes(request.response)
    if not failure and not parsed_nodes.is_complete:
        failure = f"answers, but {'; '.join(parsed_nodes.problems)}"
    if failure:
        advice = "check CONSUL_HTTP_ADDR and CONSUL_HTTP_TOKEN; until then the last good list is used"
        return fail(f"{where} {failure}", advice)
    if not parsed_nodes.rows:
        problem = f"{where} lists no host with the service {access.service}"
        rights = f"{'' if access.token else 'CONSUL_HTTP_TOKEN must be set, and '}{client.SERVICE_RIGHTS}"
        return warn(problem, f"correct GPUBOARD_CONSUL_SERVICE, or if Consul has ACLs, {rights}")
    if parsed_nodes.problems:
        return warn(f"{where}: {parsed_nodes.problems[0]}", "correct that registration; the others are used")
    failing = sum(node.status == "critical" for node in parsed_nodes.rows)
    message = f"{where} lists {format_count(len(parsed_nodes.rows), 'host')} with the service {access.service}"
    return passed(f"{message}, {failing} with a failing check" if failing else message)


def check_kv_store(context: DoctorContext) -> CheckResult:
    access = context.settings.kv
    if access is None:
        return not_applicable("GPUBOARD_KV is not set")
    store = KvStore(access)
    request = store.request_all()
    failure = request.wait()
    dump = kv.parse_kv_entries(request.body or b"[]", store.data_prefix)
    held = None
    try:
        held = None if failure else store.get(leader.LEADER_KEY)
    except ConsulUnavailableError as error:
        failure = str(error)
    if not failure and not dump.is_complete:
        failure = "; ".join(dump.problems)
    if failure:
        advice = "check GPUBOARD_KV and CONSUL_HTTP_TOKEN; until then the board shows what data/ has"
        return fail(f"{access.where} {failure}", advice)
    summary = f"{access.where} has {format_count(len(dump.rows), 'key')} under {store.data_prefix}"
    if not dump.rows:
        message = f"{access.where} has no keys under {store.data_prefix}"
        return warn(message, "check that hosts push there, and that the token may read it")
    if held is None or not held.session:
        return warn(f"{summary}, but no builder leads", "start a builder: see the check crontab")
    return passed(f"{summary}; {leader.parse_leader_name(held.content)} leads")


def check_data_folder(context: DoctorContext) -> CheckResult:
    data = context.settings.data.absolute()
    if not data.is_dir():
        return fail(f"{data} does not exist", "mount it, or set GPUBOARD_DATA to the folder that the hosts push to")
    if not os.access(data, os.R_OK | os.X_OK):
        return fail(f"this user cannot read {data}", "add this user to its group, and chmod g+rx it")
    if risks := list_data_folder_problems(data):
        what, _, advice = risks[0].what.partition(": ")
        return fail(f"{data}{risks[0].where.removeprefix('data')}: {what}", advice)
    if data.stat().st_mode & stat.S_IWOTH:
        what = f"every user of this machine can write to {data} and fake the data of any host"
        return warn(what, f"chmod o-w {data}")
    place = find_bookings_folder_in_data(data)
    if context.settings.booking_policy.url and not os.access(place, os.W_OK):
        what = f"this user cannot write to {place}, so nobody can book on the web page"
        return warn(what, "make it writable for the user of `gpuboard serve`, or unset GPUBOARD_BOOK_URL")
    return passed(str(data))


def check_bookings_file(context: DoctorContext) -> CheckResult:
    name, file = BOOKINGS_FILE, BookingsFile(context.data, None, context.settings.zone)
    rows, problems = file.read()
    if problems and file.content is None:
        return fail(
            f"{name}: {problems[0].what}", "correct the file; until then the board shows the last good bookings"
        )
    if problems:
        return warn([f"{name}: {problem.what}" for problem in problems], "correct the entry; the others are used")
    if not file.content:
        return passed("no bookings yet")
    return passed(f"{name} has {format_count(len(rows), 'booking')}")


def check_name_lists(context: DoctorContext) -> CheckResult:
    _, problems = HostDiscovery(context.data, None, None).list_hosts(())
    problems += NameFiles(context.data, None).read_names()[2]
    if problems:
        return warn(problems, "correct the line; the others are used")
    return passed("no errors in hosts.txt, aliases.csv and gpu-names.csv")


def check_hosts(context: DoctorContext) -> CheckResult:
    bookings_file = BookingsFile(context.data, None, context.settings.zone)
    _, problems = bookings_file.read()
    fleet = context.fleet
    if isinstance(fleet, str):
        if problems and bookings_file.content is None:
            return not_checked("comments")
        return fail(fleet, "make it readable for this user")
    if not fleet.hosts:
        advice = "run ./install.sh host on a GPU host; gpu-doctor.sh there shows what is wrong"
        return warn("no host has pushed yet", advice)
    counts = Counter(host.state for host in fleet.hosts)
    summary = ", ".join(f"{counts[state]} {state}" for state in HOST_STATES if counts[state])
    bad_hosts = [host for host in fleet.hosts if host.state not in GOOD_HOST_STATES]
    if not bad_hosts:
        return passed(f"{format_count(len(fleet.hosts), 'host')}: {summary}")
    names = format_names([host.name for host in bad_hosts])
    message = f"{format_count(len(fleet.hosts), 'host')}: {summary}; {names}: {bad_hosts[0].reason}"
    advice = "run gpu-doctor.sh there; to remove a host for good: gpuboard forget HOST"
    return warn(message, advice) if counts["fresh"] else fail(message, advice)


def check_host_clocks(context: DoctorContext) -> CheckResult:
    host_files, _ = SnapshotStore(context.data, None, context.settings.snapshot_bytes).read_hosts()
    offsets = {files.name: clock for files in host_files if (clock := files.parse().clock_offset) is not None}
    if not offsets:
        return skip("no host reports its clock")
    limit_s = context.settings.limits.clock_off
    by_offset = sorted(offsets, key=lambda name: -abs(offsets[name]))
    wrong_hosts = [name for name in by_offset if abs(offsets[name]) > limit_s]
    if not wrong_hosts:
        return passed(f"{format_count(len(offsets), 'clock')} within {limit_s:.0f} s of this machine's")
    direction = "ahead" if offsets[wrong_hosts[0]] > 0 else "behind"
    offset = format_duration(abs(offsets[wrong_hosts[0]]))
    message = f"wrong clock on {format_names(wrong_hosts)}: {wrong_hosts[0]} is {offset} {direction}"
    return warn(message, "synchronise it with NTP; if all hosts are off, this machine's clock is wrong")


def check_host_problems(context: DoctorContext) -> CheckResult:
    fleet = context.fleet if context.data else ""
    if isinstance(fleet, str):
        return not_checked("hosts")
    problems = [problem for problem in fleet.problems if "the clock of this host" not in problem]
    if problems:
        return warn(problems, "the end of the page lists all of them; docs/troubleshooting.md explains them")
    return passed("no problems with what the hosts push")


def check_history(context: DoctorContext) -> CheckResult:
    path = context.settings.state / database.DATABASE_NAME
    if not path.exists():
        return skip("no history yet: the first builds start it")
    deadline = time.monotonic() + QUICK_CHECK_TIMEOUT_S
    try:
        with closing(database.open_database(path, read_only=True)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
            (outcome,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except database.HistoryUnusableError as error:
        return warn(f"{path}: {error}", "update gpuboard here, or run `gpuboard build` to update the database")
    except sqlite3.Error as error:
        outcome = "ok" if "interrupted" in str(error) else str(error)  # nothing was wrong until the deadline
    if outcome != "ok":
        advice = "the next build sets a damaged database aside and starts a new one: see docs/history.md"
        return fail(f"{path} cannot be read: {outcome}", advice)
    problems = database.describe_broken_databases(context.settings.state)
    if problems:
        return warn(
            f"{problems[0].where} {problems[0].what}", "check whether the disk is full or is a network file system"
        )
    return passed(f"history.db has {format_size(path.stat().st_size / BYTES_PER_MIB)}")
