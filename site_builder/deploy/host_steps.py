"""Install gpuboard on one host, step by step."""

from __future__ import annotations

import hashlib
import io
import ipaddress
import re
import tarfile
import threading
import time
from base64 import encodebytes
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from site_builder.core.files import find_installer, find_scripts_folder
from site_builder.core.names import is_host_name
from site_builder.core.terminal_text import clean_text
from site_builder.remote.ssh import connect_ssh
from site_builder.remote.ssh_config import extract_last_line
from site_builder.remote.targets import Target

if TYPE_CHECKING:
    from site_builder.deploy.web_host import WebHost, WebHostState
    from site_builder.remote.ssh import RemoteCommandResult, SshConnection
    from site_builder.remote.ssh_config import HostKey
    from site_builder.remote.targets import Target

DESTINATION_PATTERN = re.compile(r"ssh://(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(?::([0-9]{1,5}))?")
WAITING = "waiting"
# Results, as the report has them.
INSTALLED, UPGRADED, UP_TO_DATE, REMOVED, NOT_INSTALLED = "installed", "upgraded", "up to date", "removed", "not there"
WOULD_INSTALL, WOULD_UPGRADE, FAILED, STOPPED = "to be installed", "to be upgraded", "failed", "stopped"
GOOD_RESULTS = (INSTALLED, UPGRADED, UP_TO_DATE, REMOVED, NOT_INSTALLED)


class HostDeployError(Exception):
    """Why a host is not done, in one sentence."""


class DeployStoppedError(Exception):
    """Somebody pressed Ctrl-C."""


@dataclass
class DeployJob:
    """One host, and what became of it until now; written by its own thread alone."""

    target: Target
    name: str = ""
    step: str = WAITING
    result: str = ""
    reason: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    check_facts: dict[str, object] = field(default_factory=dict)
    connection: SshConnection | None = None

    @property
    def display_name(self) -> str:
        """Its name on the board, once that is known."""
        return self.name or self.target.given_name or self.target.address

    def measure_seconds(self, now: float) -> float:
        """How long it has been at work."""
        return (self.ended_at or now) - self.started_at if self.started_at else 0.0


@dataclass
class DeployPlan:
    """What is to be done with all of them."""

    web_host: WebHost
    web_state: WebHostState
    install_program: str
    inspect_program: str
    scripts_digest: str
    action: str = "deploy"  # or check, or remove
    destination: str | None = None
    config_file: Path | None = None
    connect_timeout_s: float = 40.0
    snapshot_timeout_s: float = 60.0
    claimed_names: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop_event: threading.Event = field(default_factory=threading.Event)

    def claim_name(self, job: DeployJob, name: str) -> None:
        """A name is one host's alone."""
        with self.lock:
            other = self.claimed_names.setdefault(name, job.target.address)
        if other != job.target.address:
            message = f"it is called {name}, as {other} is: give one of them another name, with NAME=HOST"
            raise HostDeployError(message)
        job.name = name

    def begin_step(self, job: DeployJob, step: str) -> None:
        """The next step, unless all is to end."""
        if self.stop_event.is_set():
            raise DeployStoppedError
        job.step = step

    def pause(self, seconds: float) -> None:
        """A pause that Ctrl-C ends."""
        if self.stop_event.wait(seconds):
            raise DeployStoppedError


def build_known_hosts_lines(dest: str, keys: list[HostKey]) -> tuple[str, list[str]]:
    """How ssh calls the web host of a destination, and the lines of known_hosts for it."""
    found = DESTINATION_PATTERN.fullmatch(dest)
    if not found:
        message = f"'{dest}' is no destination for deploy: it must be ssh://USER@WEB or ssh://USER@WEB:PORT"
        raise HostDeployError(message)
    host = found[2].strip("[]")
    address = host if found[3] in (None, "22") else f"[{host}]:{found[3]}"
    return address, [f"{address} {key.key_type} {key.base64_key}" for key in keys]


def read_monotonic_clock() -> float:
    """A clock that nobody sets."""
    return time.monotonic()


# In the home, where programs may be started: /tmp often forbids it. What a killed one left goes with the next.
UNPACK_SCRIPT = """set -eu
full() {{ echo "the scripts cannot be unpacked in $HOME: is its disk full, or your quota?" >&2; exit 2; }}
find "$HOME" -maxdepth 1 -name '.gpuboard-deploy.??????' -user "$(id -u)" -mmin +60 -exec rm -rf {{}} + 2>/dev/null || :
work=$(mktemp -d "$HOME/.gpuboard-deploy.XXXXXX" 2>/dev/null) || full
trap 'cd / && rm -rf "$work"' EXIT
trap 'exit 143' TERM INT HUP
base64 -d <<'END' | tar -xzf - -C "$work" 2>/dev/null || full
{packed}END
cd "$work"
"""


def list_host_scripts() -> list[Path]:
    """The scripts that a GPU host has, as `./install.sh host` copies them; seen from their folder."""
    folder = find_scripts_folder()
    library = [path for path in (folder / "lib").rglob("*") if path.is_file()]
    found = [path for path in library if not path.name.startswith(".") and not path.name.endswith("~")]
    return sorted(path.relative_to(folder) for path in [*found, *folder.glob("*.sh")])


def compute_scripts_digest() -> str:
    """What install/look.sh makes of the same files on the host."""
    names = sorted(f"./{path}" for path in list_host_scripts())
    lines = [f"{hashlib.sha256((find_scripts_folder() / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def build_install_program() -> str:
    """All of it, for a program of sh."""
    script = find_installer()
    files = {"install.sh": script}
    files.update({f"install/{path.name}": path for path in sorted((script.parent / "install").glob("*.*"))})
    files.update({f"scripts/{path}": find_scripts_folder() / path for path in list_host_scripts()})
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, path in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return UNPACK_SCRIPT.format(packed=encodebytes(content.getvalue()).decode())


def read_inspect_program() -> str:
    """What is asked before anything is copied."""
    return (find_installer().parent / "install" / "look.sh").read_text()


# Nothing else than one such key is ever taken from a host, or given to one.
PUBLIC_KEY = re.compile(r"(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]{40,3500}={0,3})(?: .*)?")
IP_ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}")
OPTIONAL_PROGRAMS = ("nvidia-smi",)
# As look.sh itself bounds them.
MAX_VALUE_CHARACTERS, MAX_LINES = 4000, 50
MAX_PROGRAM_CHARACTERS = 20
# Words of look.sh whose value is taken as it is, with their fields.
TEXT_FIELDS = {
    "own": "own_name",
    "name": "name",
    "home": "home",
    "installed": "installed_name",
    "scripts": "scripts_digest",
    "version": "version",
    "crontab": "crontab_line",
    "dest": "destination",
    "loops": "loop_status",
}


class HostInspectionError(Exception):
    """What cannot be understood of an answer, in one sentence."""


@dataclass
class HostInspection:
    """A host as it is before anything is done."""

    own_name: str = ""
    name: str = ""
    home: str = ""
    our_address: str = ""  # our address, as the host sees it
    addresses_by_name: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing_programs: list[str] = field(default_factory=list)
    installed_name: str = ""
    scripts_digest: str = ""
    version: str = ""
    crontab_line: str = ""
    destination: str = ""
    public_key: str = ""
    previous_key: str = ""  # that of the name under which it is installed
    known_hosts_lines: list[str] = field(default_factory=list)
    loop_status: str = ""

    @property
    def missing_required(self) -> list[str]:
        """The programs without which nothing works."""
        return [program for program in self.missing_programs if program not in OPTIONAL_PROGRAMS]

    @property
    def has_driver(self) -> bool:
        """Whether there is an nvidia-smi, or a tool of another maker: look.sh names the first for all."""
        return "nvidia-smi" not in self.missing_programs


def parse_public_key(line: str) -> str:
    """The type and the key of a line, or nothing where it is none."""
    found = PUBLIC_KEY.fullmatch(line.strip())
    return f"{found[1]} {found[2]}" if found else ""


def parse_host_inspection(answer: bytes) -> HostInspection:
    """All that was told between the first and the last line; before them a login shell may say anything."""
    lines = answer.decode(errors="replace").split("\n")
    if "gpuboard-look 1" not in lines or "end 1" not in lines:
        message = "its answer is not whole: does its login shell let `ssh HOST sh -s` through?"
        raise HostInspectionError(message)
    facts = HostInspection()
    for line in lines[lines.index("gpuboard-look 1") + 1 : lines.index("end 1")]:
        word, _, value = line.partition(" ")
        add_inspection_fact(facts, word, clean_text(value[:MAX_VALUE_CHARACTERS]).strip())
    if not is_host_name(facts.name):
        message = (
            f"it is called '{facts.name[:63]}', which cannot be a host's name on the board: NAME=HOST gives it one"
        )
        raise HostInspectionError(message)
    return facts


def add_inspection_fact(facts: HostInspection, word: str, value: str) -> None:
    """One fact."""
    if word == "key":
        facts.public_key = parse_public_key(value)
    elif word == "key-before":
        facts.previous_key = parse_public_key(value)
    elif word == "seen":
        first = value.partition(" ")[0]
        facts.our_address = first if IP_ADDRESS.fullmatch(first) else ""
    elif word == "reach":
        name, _, addresses = value.partition(" ")
        facts.addresses_by_name[name] = tuple(addresses.split())
    elif word == "missing":
        facts.missing_programs = [*facts.missing_programs, value[:MAX_PROGRAM_CHARACTERS]][:MAX_LINES]
    elif word == "known":
        facts.known_hosts_lines = [*facts.known_hosts_lines, value][:MAX_LINES]
    elif word in TEXT_FIELDS:
        setattr(facts, TEXT_FIELDS[word], value)


INSPECT_TIMEOUT_S = 60.0
KEY_TIMEOUT_S = 90.0
INSTALL_TIMEOUT_S = 180.0
# A host that sent something within this time still sends.
MAX_SENDING_AGE_S = 120
NAME_CHECK_S = 22.0
POLL_INTERVAL_S = 1.0
MAX_INSTALLER_ATTEMPTS = 5
BUSY_MESSAGE = "has been at work"
FIX_LINE = re.compile(r"To fix it: (.*)")
SCRIPT_PREFIX = re.compile(r"^[\w.-]+\.sh: ")


def process_host(job: DeployJob, order: DeployPlan) -> None:
    """All of it, for one host."""
    order.begin_step(job, "connect")
    with connect_ssh(job.target.address, order.connect_timeout_s, order.config_file) as host:
        job.connection = host
        try:
            facts = inspect_host(job, order, host)
            {"deploy": install_host, "check": check_host, "remove": remove_from_host}[order.action](
                job, order, host, facts
            )
        finally:
            job.connection = None


def inspect_host(job: DeployJob, order: DeployPlan, host: SshConnection) -> HostInspection:
    """How it is there."""
    order.begin_step(job, "look")
    words = " ".join(["exec sh -s --", job.target.given_name or "-", *order.web_host.host_names])
    done = host.run(words, order.inspect_program.encode(), INSPECT_TIMEOUT_S)
    try:
        facts = parse_host_inspection(done.stdout)
    except HostInspectionError as why:
        reason = f" ({done.last_line})" if done.exit_code else ""
        message = f"{why}{reason}"
        raise HostDeployError(message) from None
    if job.target.given_name not in (None, facts.name):
        message = (
            f"it answers for {facts.name}, and not for {job.target.given_name}: is that an sh, or somebody who lies?"
        )
        raise HostDeployError(message)
    order.claim_name(job, facts.name)
    if facts.missing_required and order.action != "remove":
        message = f"it lacks {', '.join(facts.missing_required)}: install that first"
        raise HostDeployError(message)
    return facts


def install_host(job: DeployJob, order: DeployPlan, host: SshConnection, facts: HostInspection) -> None:
    """Install it, or what is missing of it, and see that it arrives."""
    check_host_name(job, order, facts)
    dest = order.destination or choose_destination(order, host, facts)
    address, known = build_known_hosts_lines(dest, order.web_host.host_keys)
    if not list_outdated_parts(order, facts, dest, known):
        job.result = UP_TO_DATE
        return
    key = facts.public_key
    if not key or not set(known) <= set(facts.known_hosts_lines):
        order.begin_step(job, "key")
        key = create_host_key(order, host, f"{facts.name} {dest} {address}", known)
    order.begin_step(job, "enrol")
    order.web_host.enrol_host(
        facts.name, key
    )  # what is so already is not written; its line may name the data folder of before
    order.begin_step(job, "install")
    install_scripts(order, host, facts, dest)
    order.begin_step(job, "snapshot")
    wait_for_snapshot(order, facts.name)
    revoke_previous_name(order, facts)
    if not facts.has_driver:
        job.reason = (
            "it has no nvidia-smi, amd-smi or rocm-smi: the board shows it as failed until its driver is installed"
        )
    job.result = UPGRADED if facts.installed_name else INSTALLED


def is_named_by_user(target: Target, name: str) -> bool:
    """Whether a person called it so; what a host says of itself gives it no right to the place of another."""
    address = target.address.rpartition("@")[2].rpartition("//")[2].partition(":")[0]
    return name in (target.given_name, address, address.partition(".")[0])


def check_host_name(job: DeployJob, order: DeployPlan, facts: HostInspection) -> None:
    """Another host must not be pushed off the board by one that has its name, or says so: does it send even now?"""
    name = facts.name
    last = order.web_state.arrival_times.get(name, 0)
    sends = order.web_state.clock_s - last <= MAX_SENDING_AGE_S
    enrolled = order.web_state.enrolled_keys.get(name)
    if enrolled and enrolled == facts.public_key:
        return
    if (enrolled or sends) and not is_named_by_user(job.target, name):
        message = f"it says that it is {name}, a name that is taken: if it is that very host, say so too, with"
        raise HostDeployError(f"{message} {name}={job.target.address}")
    if facts.installed_name == name or not sends:
        return
    order.begin_step(job, "name")
    end = read_monotonic_clock() + NAME_CHECK_S
    while read_monotonic_clock() < end:
        if order.web_host.read_arrival_time(name) > last:
            message = f"another host sends snapshots as {name}: give this one another name, with NAME=HOST"
            raise HostDeployError(f"{message}, or if it is this very machine, stop first what sends them there")
        order.pause(POLL_INTERVAL_S)


def choose_destination(order: DeployPlan, host: SshConnection, facts: HostInspection) -> str:
    """Where this host reaches the web host; what it has stays, if it can be right: others may share its home."""
    web = order.web_host
    direct = web.is_local and not host.host.jumps and not host.host.proxy_command
    names = [name for name in web.host_names if can_reach_web_host(facts, name, facts.our_address if direct else None)]
    found = [
        build_destination(web, name)
        for name in [*names, *([facts.our_address] if direct and facts.our_address else [])]
    ]
    if not found:
        known = " nor ".join(web.host_names) or "our name"
        message = f"it does not know {known}: say where it finds the web host, with --dest ssh://USER@WEB"
        raise HostDeployError(message)
    return facts.destination if facts.destination in found else found[0]


def build_destination(web: WebHost, address: str) -> str:
    """The web host's account at this address."""
    shown = f"[{address}]" if ":" in address else address
    return f"ssh://{web.user}@{shown}" + ("" if web.port == 22 else f":{web.port}")


def can_reach_web_host(facts: HostInspection, name: str, must_be: str | None) -> bool:
    """Whether the host knows us by this name, and where we know our address there, by this one; never as itself."""
    addresses = facts.addresses_by_name.get(name, ())
    if must_be:
        return must_be in addresses
    return any(not is_loopback(address) for address in addresses)


def is_loopback(address: str) -> bool:
    """Whether that is the host itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def list_outdated_parts(order: DeployPlan, facts: HostInspection, dest: str, known: list[str]) -> list[str]:
    """What is not as it should be, in words."""
    line = facts.crontab_line.endswith(
        ("/gpu-check.sh", "/gpu-check.sh'") if facts.name == facts.own_name else f" {facts.name}"
    )
    found = {
        "scripts": facts.scripts_digest == order.scripts_digest,
        "crontab": bool(facts.crontab_line) and (line or facts.crontab_line.endswith(f" {facts.name}")),
        "destination": facts.destination == dest,
        "key": bool(facts.public_key) and order.web_state.enrolled_keys.get(facts.name) == facts.public_key,
        "web host's key": set(known) <= set(facts.known_hosts_lines),
        "loops": facts.loop_status == "ok" and facts.installed_name == facts.name,
        "snapshot": order.web_state.clock_s - order.web_state.arrival_times.get(facts.name, 0) <= MAX_SENDING_AGE_S,
    }
    return [what for what, good in found.items() if not good]


def run_installer(order: DeployPlan, host: SshConnection, command: str, limit: float) -> RemoteCommandResult:
    """Run a command of install.sh on the host, in a folder that goes with it; others that share its home have turns."""
    program = f"{order.install_program}{command}\n".encode()
    for number in range(MAX_INSTALLER_ATTEMPTS):
        done = host.run("exec sh -s", program, limit)
        if done.exit_code != 2 or BUSY_MESSAGE not in done.last_line or number == MAX_INSTALLER_ATTEMPTS - 1:
            break
        order.pause(POLL_INTERVAL_S)
    return done


def create_host_key(order: DeployPlan, host: SshConnection, words: str, known: list[str]) -> str:
    """The public half of the host's key, which was made there and stays there."""
    text = "".join(f"{line}\n" for line in known)
    done = run_installer(order, host, f"./install.sh key {words} <<'END'\n{text}END", KEY_TIMEOUT_S)
    if done.exit_code:
        raise HostDeployError(describe_installer_failure(done))
    lines = done.stdout.decode(errors="replace").strip().split("\n")
    key = parse_public_key(lines[-1])
    if not key:
        message = "what it made is no public key"
        raise HostDeployError(message)
    return key


def install_scripts(order: DeployPlan, host: SshConnection, facts: HostInspection, dest: str) -> None:
    """As a person would, in a clone there."""
    named = (
        "" if facts.name == facts.own_name and facts.installed_name in ("", facts.own_name) else f" --name {facts.name}"
    )
    done = run_installer(order, host, f"./install.sh host{named} --dest {dest} </dev/null", INSTALL_TIMEOUT_S)
    if done.exit_code:
        raise HostDeployError(describe_installer_failure(done))


def describe_installer_failure(done: RemoteCommandResult) -> str:
    """What install.sh said, and what helps."""
    lines = [line for line in done.stderr.decode(errors="replace").split("\n") if line.strip()]
    told = (
        "; ".join(SCRIPT_PREFIX.sub("", extract_last_line(line)) for line in lines[-2 if done.exit_code == 1 else -1 :])
        or done.last_line
    )
    fix = FIX_LINE.search(done.stdout.decode(errors="replace"))
    return f"{told}; {extract_last_line(fix[1])}" if fix and done.exit_code == 1 else told


def wait_for_snapshot(order: DeployPlan, name: str) -> None:
    """Until the web host has one that came since we began."""
    end = read_monotonic_clock() + order.snapshot_timeout_s
    before = max(order.web_state.clock_s - 1, order.web_state.arrival_times.get(name, 0))
    while order.web_host.read_arrival_time(name) <= before:
        if read_monotonic_clock() > end:
            message = f"all is in place there, but nothing arrived within {order.snapshot_timeout_s:.0f} s: gpu-check.sh status"
            raise HostDeployError(f"{message} on the host tells why")
        order.pause(POLL_INTERVAL_S)


def revoke_previous_name(order: DeployPlan, facts: HostInspection) -> None:
    """A host that has another name now needs the key of its last one no more."""
    last = facts.installed_name
    if (
        last
        and last != facts.name
        and facts.previous_key
        and order.web_state.enrolled_keys.get(last) == facts.previous_key
    ):
        order.web_host.revoke_host(last)


def remove_from_host(job: DeployJob, order: DeployPlan, host: SshConnection, facts: HostInspection) -> None:
    """All that deploy did there, and the key's line on the web host; data stays."""
    name = facts.name
    there = bool(facts.installed_name or facts.public_key or facts.crontab_line)
    if there:
        order.begin_step(job, "remove")
        done = run_installer(order, host, "./install.sh remove host </dev/null", INSTALL_TIMEOUT_S)
        if done.exit_code:
            raise HostDeployError(describe_installer_failure(done))
    enrolled = order.web_state.enrolled_keys.get(name)
    sends = order.web_state.clock_s - order.web_state.arrival_times.get(name, 0) <= MAX_SENDING_AGE_S
    if enrolled and (enrolled == facts.public_key or (not sends and is_named_by_user(job.target, name))):
        order.begin_step(job, "key")
        order.web_host.revoke_host(name)
        there = True
    elif enrolled and sends:
        job.reason = f"another host sends snapshots as {name}: its key stays enrolled"
    elif enrolled:
        job.reason = (
            f"the key of {name} stays enrolled, for it is not this host's: {name}={job.target.address} takes it too"
        )
    job.result = REMOVED if there else NOT_INSTALLED


def check_host(job: DeployJob, order: DeployPlan, host: SshConnection, facts: HostInspection) -> None:
    """How it is, and what deploy would do; nothing is changed."""
    side, name = order.web_state, facts.name
    job.check_facts = {
        "version": facts.version or None,
        "loops": facts.loop_status or None,
        "enrolled": bool(facts.public_key) and side.enrolled_keys.get(name) == facts.public_key,
        "age": side.clock_s - side.arrival_times[name] if name in side.arrival_times else None,
    }
    dest = order.destination or choose_destination(order, host, facts)
    lacks = list_outdated_parts(order, facts, dest, build_known_hosts_lines(dest, order.web_host.host_keys)[1])
    if lacks and facts.installed_name:
        said = f" ({facts.loop_status})" if facts.loop_status not in ("", "ok") else ""
        job.reason = f"not as it should be: {', '.join(lacks)}{said}"
    job.result = UP_TO_DATE if not lacks else WOULD_UPGRADE if facts.installed_name else WOULD_INSTALL
