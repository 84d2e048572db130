"""Checks of data/, ssh keys and Consul."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections import Counter
from typing import TYPE_CHECKING

from site_builder.core import files
from site_builder.core.files import find_booking_folder
from site_builder.core.formatting import format_duration, join_names
from site_builder.core.model import ConsulAccess
from site_builder.doctor.model import (
    CheckResult,
    DoctorContext,
    report_failure,
    report_not_applicable,
    report_pass,
    report_skip,
    report_warning,
)

if TYPE_CHECKING:
    from site_builder.consul.client import ConsulRequest

MAX_FILE_BYTES = 1 << 20
KEY_PATTERN = re.compile(r"(?:^|\s)((?:ssh|ecdsa|sk)-[\w@.-]+)\s+[A-Za-z0-9+/=]+(?:\s+(.*))?$")
FORCED_COMMAND = re.compile(r'(?:^|,)command="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
RECEIVER_SCRIPT = "gpu-receive.sh"
# By which a shell would do more than it is told by one command.
SHELL_OPERATORS = re.compile(r"[;&|<>()$`\n]")
# What gives back, behind `restrict`, what it took.
LOOSENING_OPTIONS = {"agent-forwarding", "port-forwarding", "pty", "user-rc", "x11-forwarding"}


def check_authorized_keys(case: DoctorContext) -> CheckResult:
    """Each key that logs in here as this user should be able to push for one host, and nothing else."""
    path = case.home / ".ssh/authorized_keys"
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_FILE_BYTES).decode(errors="replace").splitlines()
            mode = os.fstat(file.fileno()).st_mode
    except FileNotFoundError:
        return report_skip(f"{path} is not there: no host pushes here by a key of this user")
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return report_failure(f"others can write to {path}: sshd takes no key of it", f"chmod go-w {path}")
    found = [(number, *split_key_line(line)) for number, line in enumerate(lines, 1) if is_key_line(line)]
    gone = sorted(
        {
            script
            for _, options, _ in found
            if (script := find_receiver_script(options)) and not os.access(script, os.X_OK)
        }
    )
    if gone:
        what = f"{path} names {gone[0]}, which is not there: nothing arrives from those hosts"
        return report_failure(what, "call ./install.sh web, or enrol them again: gpu-enrol.sh add HOST")
    loose = [
        f"line {number}{f' ({comment})' if comment else ''}"
        for number, options, comment in found
        if is_unrestricted_key(options)
    ]
    if loose:
        what = f"of {len(found)} keys in {path}, {len(loose)} can do more than push for one host: {join_names(loose)}"
        advice = "a GPU host's key belongs behind restrict,command=: gpu-enrol.sh add HOST; see docs/security.md"
        return report_warning(what, f"{advice}. A person's own key may stay")
    return report_pass(f"all {len(found)} keys in {path} push for one host each, and do nothing else")


def is_key_line(line: str) -> bool:
    """Whether a line holds a key at all."""
    return bool(line.strip()) and not line.lstrip().startswith("#") and bool(KEY_PATTERN.search(line))


def split_key_line(line: str) -> tuple[str, str]:
    """The options before a key, and the comment behind it."""
    match = KEY_PATTERN.search(line)
    if match is None:
        return "", ""
    comment = "".join(letter if letter.isprintable() else "?" for letter in match[2] or "")
    return line[: match.start(1)].strip(), comment[:40]


def split_forced_command(options: str) -> list[str]:
    """The words of a forced command as a shell sees them, what it would make more of as words of their own."""
    command = FORCED_COMMAND.search(options)
    found = shlex.shlex(command[1].replace('\\"', '"') if command else "", posix=True, punctuation_chars=True)
    found.commenters, found.whitespace_split = "", True
    try:
        return list(found)
    except ValueError:  # a quote without its end
        return []


def find_receiver_script(options: str) -> str:
    """The receiver that a forced command names; empty where it is something else."""
    words = split_forced_command(options)
    return words[0] if words and words[0].endswith(f"/{RECEIVER_SCRIPT}") else ""


def is_unrestricted_key(options: str) -> bool:
    """Whether a key can do more than the one thing."""
    program, *words = split_forced_command(options) or [""]
    plain = {option.strip().lower() for option in FORCED_COMMAND.sub("", options).split(",")}
    is_ours = program.rpartition("/")[2] == RECEIVER_SCRIPT and not SHELL_OPERATORS.search(" ".join(words))
    return not is_ours or "restrict" not in plain or bool(plain & LOOSENING_OPTIONS)


def check_consul(case: DoctorContext) -> CheckResult:
    """Whether it answers, has a leader, takes the token, and lists hosts."""
    access = case.settings.consul
    if access is None:
        return report_not_applicable("GPUBOARD_CONSUL_SERVICE is not set: Consul is not asked for hosts")
    from site_builder.consul import client
    from site_builder.discovery import hosts

    where = f"Consul at {client.format_agent_address(access.address)}"
    answer, failure = query_service_nodes(access)
    dump = hosts.parse_service_nodes(answer)
    if not failure and not dump.is_complete:
        failure = f"answers, but {'; '.join(dump.problems)}"
    if failure:
        return report_failure(
            f"{where} {failure}", "the last good list serves meanwhile; see CONSUL_HTTP_ADDR and CONSUL_HTTP_TOKEN"
        )
    if not dump.rows:
        what = f"{where} lists no host with the service {access.service}"
        rights = (
            client.SERVICE_RIGHTS if access.token else f"CONSUL_HTTP_TOKEN must be set, and {client.SERVICE_RIGHTS}"
        )
        return report_warning(what, f"correct GPUBOARD_CONSUL_SERVICE, or if Consul has ACLs, {rights}")
    if dump.problems:
        return report_warning(f"{where}: {dump.problems[0]}", "correct that registration; the others count")
    ill = sum(one.status == "critical" for one in dump.rows)
    told = f"{where} lists {len(dump.rows)} with the service {access.service}"
    return report_pass(f"{told}, of which {ill} fail their check" if ill else told)


def query_service_nodes(access: ConsulAccess) -> tuple[object, str]:
    """What Consul knows of the service, or why there is no answer."""
    from site_builder.discovery.hosts import request_service_nodes  # noqa: PLC0415 # slow to import

    question = request_service_nodes(access)
    why = wait_for_consul(question)
    return question.response, why


def wait_for_consul(question: ConsulRequest) -> str:
    """Why there is no answer to a question; empty where there is one."""
    from site_builder.consul.client import TIMEOUT_MESSAGE  # noqa: PLC0415 # slow to import

    if not question.wait():
        question.cancel()
        return TIMEOUT_MESSAGE
    return question.failure or ""


def check_kv_store(case: DoctorContext) -> CheckResult:
    """Whether the store of which data/ is a copy answers, holds something, and has a builder that leads."""
    access = case.settings.kv
    if access is None:
        return report_not_applicable("GPUBOARD_KV is not set: data/ is no copy of Consul's KV store")
    from site_builder.consul import kv, leader  # noqa: PLC0415 # slow to import
    from site_builder.consul.client import ConsulUnavailableError  # noqa: PLC0415
    from site_builder.consul.kv import KvStore  # noqa: PLC0415

    store = KvStore(access)
    question = store.request_all()
    failure = wait_for_consul(question)
    dump = kv.parse_kv_entries(question.body or b"[]", store.data_prefix)
    held = None
    try:
        held = None if failure else store.get(leader.LEADER_KEY)
    except ConsulUnavailableError as why:
        failure = str(why)
    if not failure and not dump.is_complete:
        failure = "; ".join(dump.problems)
    if failure:
        return report_failure(
            f"{access.where} {failure}", "data/ serves as it is, and grows old; see GPUBOARD_KV and CONSUL_HTTP_TOKEN"
        )
    told = f"{access.where} has {len(dump.rows)} entries below {store.data_prefix}"
    if not dump.rows:
        return report_warning(
            f"{access.where} has nothing below {store.data_prefix}",
            "no host pushes there, or the token may not read it",
        )
    if held is None or not held.session:
        return report_warning(f"{told}, and no builder leads", "start one: the check crontab tells what should")
    return report_pass(f"{told}; {leader.parse_leader_name(held.content)} leads")


HOST_STATES = ("fresh", "maintenance", "stale", "failed", "unseen", "down")
GOOD_HOST_STATES = ("fresh", "maintenance")


def check_data_folder(case: DoctorContext) -> CheckResult:
    """The folder that the hosts push to."""
    data = case.settings.data.absolute()
    if not data.is_dir():
        return report_failure(
            f"{data} is not there", "set GPUBOARD_DATA to the folder that the hosts push to, or mount it"
        )
    if not os.access(data, os.R_OK | os.X_OK):
        return report_failure(f"{data} cannot be read by this user", "let this user be in its group, with g+rx")
    if risks := files.list_problems(data):
        what, _, advice = risks[0].what.partition(": ")
        return report_failure(f"{data}{risks[0].where.removeprefix('data')}: {what}", advice)
    if data.stat().st_mode & stat.S_IWOTH:
        what = f"everybody on this machine can write to {data}, and so say what they like about any host"
        return report_warning(what, f"chmod o-w {data}")
    place = find_booking_folder(data)
    if case.settings.booking_policy.url and not os.access(place, os.W_OK):
        what = f"{place} cannot be written by this user, so that nobody can book over the web"
        return report_warning(what, "let the user of `gpuboard serve` write there, or set no GPUBOARD_BOOK_URL")
    return report_pass(str(data))


def check_bookings_file(case: DoctorContext) -> CheckResult:
    """The bookings."""
    from site_builder.bookings import parser as booking_parser  # noqa: PLC0415 # slow to import
    from site_builder.bookings import store as booking_store  # noqa: PLC0415
    from site_builder.bookings.store import SharedBookingFile  # noqa: PLC0415

    zone = case.settings.zone
    file = SharedBookingFile(
        case.settings.data,
        None,
        booking_store.BOOKINGS_FILE,
        lambda content: booking_parser.parse_bookings(content, zone),
        booking_store.MAX_BOOKINGS_BYTES,
    )
    rows, problems = file.read()
    if problems and file.content is None:
        return report_failure(
            f"{booking_store.BOOKINGS_FILE}: {problems[0].what}", "correct it: the last good bookings stay on the board"
        )
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return report_warning(
            f"{booking_store.BOOKINGS_FILE}: {problems[0].what}{more}", "correct the entry; the others count"
        )
    return report_pass(
        f"{booking_store.BOOKINGS_FILE} has {format_plural(len(rows), 'booking')}"
        if file.content
        else "nobody has booked yet"
    )


def check_name_lists(case: DoctorContext) -> CheckResult:
    """The other files that people write."""
    from site_builder.discovery.hosts import HostDiscovery  # noqa: PLC0415
    from site_builder.fleet.gpu_models import NameFiles  # noqa: PLC0415 # slow to import

    _, problems = HostDiscovery(case.settings.data, None, None).list_hosts(())
    problems += NameFiles(case.settings.data, None).read_names()[2]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return report_warning(f"{problems[0].where}: {problems[0].what}{more}", "correct the line; the others count")
    return report_pass("hosts.txt, aliases.csv and gpu-names.csv, where they are there, can be read")


def check_hosts(case: DoctorContext) -> CheckResult:
    """How the hosts stand."""
    fleet = case.fleet
    if isinstance(fleet, str):
        return report_failure(fleet, "see the check data")
    if not fleet.hosts:
        return report_warning(
            "no host has pushed yet",
            "call ./install.sh host on a GPU host; gpu-doctor.sh there tells what is in its way",
        )
    count = Counter(host.state for host in fleet.hosts)
    told = ", ".join(f"{count[state]} {state}" for state in HOST_STATES if count[state])
    bad = [host for host in fleet.hosts if host.state not in GOOD_HOST_STATES]
    if not bad:
        return report_pass(f"{format_plural(len(fleet.hosts), 'host')}: {told}")
    what = (
        f"{format_plural(len(fleet.hosts), 'host')}: {told}; {join_names([host.name for host in bad])}: {bad[0].reason}"
    )
    advice = "call gpu-doctor.sh there; one that is gone for good: gpuboard forget HOST"
    return report_warning(what, advice) if count["fresh"] else report_failure(what, advice)


def check_host_clocks(case: DoctorContext) -> CheckResult:
    """Whose clock is off, among those who push."""
    from site_builder.snapshots.store import SnapshotStore  # noqa: PLC0415 # slow to import

    told, _ = SnapshotStore(case.settings.data, None, case.settings.snapshot_bytes).read_hosts()
    off = {one.name: clock for one in told if (clock := one.parse().clock_offset) is not None}
    if not off:
        return report_skip("no host tells its clock")
    wrong = sorted(
        (name for name in off if abs(off[name]) > case.settings.limits.clock_off), key=lambda one: -abs(off[one])
    )
    if not wrong:
        return report_pass(
            f"{format_plural(len(off), 'clock')} within {case.settings.limits.clock_off:.0f} s of this one's"
        )
    which = "ahead" if off[wrong[0]] > 0 else "behind"
    what = (
        f"the clock of {join_names(wrong)} is off: that of {wrong[0]} by {format_duration(abs(off[wrong[0]]))} {which}"
    )
    return report_warning(what, "set it by NTP; where all are off, it is this machine's clock that is wrong")


def check_host_problems(case: DoctorContext) -> CheckResult:
    """What else is wrong with what the hosts push."""
    fleet = case.fleet
    if isinstance(fleet, str):
        return report_skip("data/ cannot be read")
    told = [one for one in fleet.problems if "the clock of this host" not in one]
    if told:
        more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        return report_warning(
            f"{told[0]}{more}", "all of them stand at the end of the page; docs/troubleshooting.md tells more"
        )
    return report_pass("all that the hosts push is understood")


def format_plural(number: int, what: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
