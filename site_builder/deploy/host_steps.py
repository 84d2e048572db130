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

from site_builder.core.files import PACKAGE_FOLDER, SCRIPTS_FOLDER
from site_builder.core.names import is_host_name
from site_builder.core.subprocesses import extract_last_line
from site_builder.core.terminal_text import clean_text
from site_builder.deploy.web_host import WebHost, WebHostState, parse_web_host_public_key
from site_builder.remote.ssh import RemoteCommandResult, SshConnection, connect_ssh
from site_builder.remote.ssh_config import HostKey
from site_builder.remote.targets import Target

DESTINATION_PATTERN = re.compile(r"ssh://(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(?::([0-9]{1,5}))?")
WAITING = "waiting"
# Results, as the report has them.
INSTALLED, UPGRADED, UP_TO_DATE, REMOVED, NOT_INSTALLED = "installed", "upgraded", "up to date", "removed", "not there"
WOULD_INSTALL, WOULD_UPGRADE, FAILED, STOPPED = "to be installed", "to be upgraded", "failed", "stopped"
GOOD_RESULTS = (INSTALLED, UPGRADED, UP_TO_DATE, REMOVED, NOT_INSTALLED)
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


class HostDeployError(Exception):
    """Why a host is not done, in one sentence."""


class HostDeployStoppedError(Exception): ...


@dataclass
class HostDeployJob:
    """A host and what became of it so far; written only by its own thread."""

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
        return self.name or self.target.given_name or self.target.address

    def measure_seconds(self, now: float) -> float:
        return (self.ended_at or now) - self.started_at if self.started_at else 0.0


@dataclass
class HostDeployPlan:
    """What is the same for all hosts of a deploy."""

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

    def claim_name(self, job: HostDeployJob, name: str) -> None:
        """Give a name to one host only."""
        with self.lock:
            owner = self.claimed_names.setdefault(name, job.target.address)
        if owner != job.target.address:
            raise HostDeployError(f"it is called {name}, as {owner} is: give one of them another name, with NAME=HOST")
        job.name = name

    def begin_step(self, job: HostDeployJob, step: str) -> None:
        """Start the next step, unless the deploy is being stopped."""
        if self.stop_event.is_set():
            raise HostDeployStoppedError
        job.step = step

    def pause(self, seconds: float) -> None:
        """Wait, unless the deploy is being stopped."""
        if self.stop_event.wait(seconds):
            raise HostDeployStoppedError


def build_known_hosts_lines(destination: str, keys: list[HostKey]) -> tuple[str, list[str]]:
    """Return the name of the web host in known_hosts, and its lines there."""
    match = DESTINATION_PATTERN.fullmatch(destination)
    if not match:
        message = f"'{destination}' is no destination for deploy: it must be ssh://USER@WEB or ssh://USER@WEB:PORT"
        raise HostDeployError(message)
    host = match[2].strip("[]")
    address = host if match[3] in (None, "22") else f"[{host}]:{match[3]}"
    return address, [f"{address} {key.key_type} {key.base64_key}" for key in keys]


def list_host_scripts() -> list[Path]:
    """List the scripts that `./install.sh host` copies, relative to their folder."""
    folder = SCRIPTS_FOLDER
    library = [path for path in (folder / "lib").rglob("*") if path.is_file()]
    library_files = [path for path in library if not path.name.startswith(".") and not path.name.endswith("~")]
    return sorted(path.relative_to(folder) for path in [*library_files, *folder.glob("*.sh")])


def compute_scripts_digest() -> str:
    """Compute the digest that install/look.sh computes on the host."""
    names = sorted(f"./{path}" for path in list_host_scripts())
    lines = [f"{hashlib.sha256((SCRIPTS_FOLDER / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def build_install_program() -> str:
    """Build the shell program that unpacks the installer and all scripts."""
    script = find_installer()
    files = {
        "install.sh": script,
        **{f"install/{path.name}": path for path in sorted((script.parent / "install").glob("*.*"))},
        **{f"scripts/{path}": SCRIPTS_FOLDER / path for path in list_host_scripts()},
    }
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, path in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return UNPACK_SCRIPT.format(packed=encodebytes(content.getvalue()).decode())


@dataclass
class HostInspection:
    """What a host is like before anything is changed."""

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
        return [program for program in self.missing_programs if program not in OPTIONAL_PROGRAMS]

    @property
    def has_driver(self) -> bool:
        """Return True if there is a GPU tool; look.sh reports nvidia-smi as missing for all of them."""
        return "nvidia-smi" not in self.missing_programs


def parse_host_inspection(output: bytes) -> HostInspection:
    """Parse the answer of look.sh; a login shell may print anything before it."""
    lines = output.decode(errors="replace").split("\n")
    if "gpuboard-look 1" not in lines or "end 1" not in lines:
        raise HostDeployError("its answer is not whole: does its login shell let `ssh HOST sh -s` through?")
    inspection = HostInspection()
    for line in lines[lines.index("gpuboard-look 1") + 1 : lines.index("end 1")]:
        word, _, text = line.partition(" ")
        value = clean_text(text[:MAX_VALUE_CHARACTERS]).strip()
        first, _, rest = value.partition(" ")
        if word == "key":
            inspection.public_key = parse_web_host_public_key(value)
        elif word == "key-before":
            inspection.previous_key = parse_web_host_public_key(value)
        elif word == "seen":
            inspection.our_address = first if IP_ADDRESS.fullmatch(first) else ""
        elif word == "reach":
            inspection.addresses_by_name[first] = tuple(rest.split())
        elif word == "missing" and len(inspection.missing_programs) < MAX_LINES:
            inspection.missing_programs.append(value[:MAX_PROGRAM_CHARACTERS])
        elif word == "known" and len(inspection.known_hosts_lines) < MAX_LINES:
            inspection.known_hosts_lines.append(value)
        elif word in TEXT_FIELDS:
            setattr(inspection, TEXT_FIELDS[word], value)
    if not is_host_name(inspection.name):
        name = inspection.name[:63]
        message = f"it is called '{name}', which cannot be a host's name on the board: NAME=HOST gives it one"
        raise HostDeployError(message)
    return inspection


def process_deploy_host(job: HostDeployJob, plan: HostDeployPlan) -> None:
    """Connect to a host, inspect it, and install, check or remove."""
    plan.begin_step(job, "connect")
    with connect_ssh(job.target.address, plan.connect_timeout_s, plan.config_file) as host:
        job.connection = host
        try:
            process = {"deploy": install_deploy_host, "check": check_deploy_host, "remove": remove_gpuboard_from_host}[
                plan.action
            ]
            process(job, plan, host, inspect_deploy_host(job, plan, host))
        finally:
            job.connection = None


def inspect_deploy_host(job: HostDeployJob, plan: HostDeployPlan, host: SshConnection) -> HostInspection:
    plan.begin_step(job, "look")
    command = " ".join(["exec sh -s --", job.target.given_name or "-", *plan.web_host.host_names])
    result = host.run(command, plan.inspect_program.encode(), INSPECT_TIMEOUT_S)
    try:
        inspection = parse_host_inspection(result.stdout)
    except HostDeployError as error:
        reason = f" ({result.last_line})" if result.exit_code else ""
        raise HostDeployError(f"{error}{reason}") from None
    if job.target.given_name not in (None, inspection.name):
        message = f"it answers for {inspection.name}, and not for {job.target.given_name}"
        raise HostDeployError(f"{message}: is that an sh, or somebody who lies?")
    plan.claim_name(job, inspection.name)
    if inspection.missing_required and plan.action != "remove":
        raise HostDeployError(f"it lacks {', '.join(inspection.missing_required)}: install that first")
    return inspection


def install_deploy_host(
    job: HostDeployJob, plan: HostDeployPlan, host: SshConnection, inspection: HostInspection
) -> None:
    """Install gpuboard, or what is missing of it, and wait for its first snapshot."""
    check_deploy_host_name(job, plan, inspection)
    name, previous_name = inspection.name, inspection.installed_name
    destination = plan.destination or choose_deploy_host_destination(plan, host, inspection)
    address, known_hosts_lines = build_known_hosts_lines(destination, plan.web_host.host_keys)
    if not list_outdated_host_parts(plan, inspection, destination, known_hosts_lines):
        job.result = UP_TO_DATE
        return
    key = inspection.public_key
    if not key or not set(known_hosts_lines) <= set(inspection.known_hosts_lines):
        plan.begin_step(job, "key")
        input_lines = "".join(f"{line}\n" for line in known_hosts_lines)
        command = f"./install.sh key {name} {destination} {address} <<'END'\n{input_lines}END"
        key = parse_web_host_public_key(
            run_installer_on_host(plan, host, command, KEY_TIMEOUT_S).strip().rpartition("\n")[2]
        )
        if not key:
            raise HostDeployError("what it made is no public key")
    plan.begin_step(job, "enrol")
    # what is so already is not written; its line may name the data folder of before
    plan.web_host.enrol_host(name, key)
    plan.begin_step(job, "install")
    is_unnamed = name == inspection.own_name and previous_name in ("", name)
    name_option = "" if is_unnamed else f" --name {name}"
    run_installer_on_host(
        plan, host, f"./install.sh host{name_option} --dest {destination} </dev/null", INSTALL_TIMEOUT_S
    )
    plan.begin_step(job, "snapshot")
    deadline = time.monotonic() + plan.snapshot_timeout_s
    last_arrival = max(plan.web_state.clock_s - 1, plan.web_state.arrival_times.get(name, 0))
    while plan.web_host.read_arrival_time(name) <= last_arrival:
        if time.monotonic() > deadline:
            message = f"all is in place there, but nothing arrived within {plan.snapshot_timeout_s:.0f} s"
            raise HostDeployError(f"{message}: gpu-check.sh status on the host tells why")
        plan.pause(POLL_INTERVAL_S)
    previous_key = plan.web_state.enrolled_keys.get(previous_name)
    if previous_name not in ("", name) and previous_key and previous_key == inspection.previous_key:
        plan.web_host.revoke_host(previous_name)
    if not inspection.has_driver:
        job.reason = (
            "it has no nvidia-smi, amd-smi or rocm-smi: the board shows it as failed until its driver is installed"
        )
    job.result = UPGRADED if previous_name else INSTALLED


def is_deploy_host_named_by_user(target: Target, name: str) -> bool:
    """Return True if the user typed this name; a host may not claim a name that is taken."""
    address = target.address.rpartition("@")[2].rpartition("//")[2].partition(":")[0]
    return name in (target.given_name, address, address.partition(".")[0])


def is_deploy_host_sending(plan: HostDeployPlan, name: str) -> bool:
    """Return True if a host of this name still sends snapshots."""
    return plan.web_state.clock_s - plan.web_state.arrival_times.get(name, 0) <= MAX_SENDING_AGE_S


def is_deploy_host_enrolled(plan: HostDeployPlan, inspection: HostInspection) -> bool:
    return bool(inspection.public_key) and plan.web_state.enrolled_keys.get(inspection.name) == inspection.public_key


def check_deploy_host_name(job: HostDeployJob, plan: HostDeployPlan, inspection: HostInspection) -> None:
    """Refuse a name under which another host sends snapshots."""
    name = inspection.name
    if is_deploy_host_enrolled(plan, inspection):
        return
    is_taken = plan.web_state.enrolled_keys.get(name) or is_deploy_host_sending(plan, name)
    if is_taken and not is_deploy_host_named_by_user(job.target, name):
        message = f"it says that it is {name}, a name that is taken: if it is that very host, say so too, with"
        raise HostDeployError(f"{message} {name}={job.target.address}")
    if inspection.installed_name == name or not is_deploy_host_sending(plan, name):
        return
    plan.begin_step(job, "name")
    deadline = time.monotonic() + NAME_CHECK_S
    while time.monotonic() < deadline:
        if plan.web_host.read_arrival_time(name) > plan.web_state.arrival_times.get(name, 0):
            message = f"another host sends snapshots as {name}: give this one another name, with NAME=HOST"
            raise HostDeployError(f"{message}, or if it is this very machine, stop first what sends them there")
        plan.pause(POLL_INTERVAL_S)


def choose_deploy_host_destination(plan: HostDeployPlan, host: SshConnection, inspection: HostInspection) -> str:
    """Choose where this host reaches the web host; keep its present destination if it can be right."""
    web_host = plan.web_host
    is_direct = web_host.is_local and not host.host.jumps and not host.host.proxy_command
    our_address = inspection.our_address if is_direct else ""
    reachable = []
    for name in web_host.host_names:  # the host must find us by this name, and not itself
        addresses = inspection.addresses_by_name.get(name, ())
        if our_address in addresses if our_address else not all(map(is_deploy_host_loopback, addresses)):
            reachable.append(name)
    port = "" if web_host.port == 22 else f":{web_host.port}"
    destinations = [
        f"ssh://{web_host.user}@{f'[{address}]' if ':' in address else address}{port}"
        for address in [*reachable, our_address]
        if address
    ]
    if not destinations:
        own_names = " nor ".join(web_host.host_names) or "our name"
        message = f"it does not know {own_names}: say where it finds the web host, with --dest ssh://USER@WEB"
        raise HostDeployError(message)
    return inspection.destination if inspection.destination in destinations else destinations[0]


def is_deploy_host_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def list_outdated_host_parts(
    plan: HostDeployPlan, inspection: HostInspection, destination: str, known_hosts_lines: list[str]
) -> list[str]:
    name = inspection.name
    line_ends = [f" {name}", *(["/gpu-check.sh", "/gpu-check.sh'"] if name == inspection.own_name else [])]
    is_current = {
        "scripts": inspection.scripts_digest == plan.scripts_digest,
        "crontab": inspection.crontab_line.endswith(tuple(line_ends)),
        "destination": inspection.destination == destination,
        "key": is_deploy_host_enrolled(plan, inspection),
        "web host's key": set(known_hosts_lines) <= set(inspection.known_hosts_lines),
        "loops": inspection.loop_status == "ok" and inspection.installed_name == name,
        "snapshot": is_deploy_host_sending(plan, name),
    }
    return [part for part, is_good in is_current.items() if not is_good]


def run_installer_on_host(plan: HostDeployPlan, host: SshConnection, command: str, timeout_s: float) -> str:
    """Run install.sh on the host in a temporary folder; retry while another host that shares the home runs it."""
    program = f"{plan.install_program}{command}\n".encode()
    for attempt in range(MAX_INSTALLER_ATTEMPTS):
        result = host.run("exec sh -s", program, timeout_s)
        if result.exit_code != 2 or BUSY_MESSAGE not in result.last_line or attempt == MAX_INSTALLER_ATTEMPTS - 1:
            break
        plan.pause(POLL_INTERVAL_S)
    if result.exit_code:
        raise HostDeployError(describe_installer_failure(result))
    return result.stdout.decode(errors="replace")


def describe_installer_failure(result: RemoteCommandResult) -> str:
    lines = [line for line in result.stderr.decode(errors="replace").split("\n") if line.strip()]
    last_lines = lines[-2 if result.exit_code == 1 else -1 :]
    message = "; ".join(SCRIPT_PREFIX.sub("", extract_last_line(line)) for line in last_lines) or result.last_line
    fix = FIX_LINE.search(result.stdout.decode(errors="replace"))
    return f"{message}; {extract_last_line(fix[1])}" if fix and result.exit_code == 1 else message


def remove_gpuboard_from_host(
    job: HostDeployJob, plan: HostDeployPlan, host: SshConnection, inspection: HostInspection
) -> None:
    """Remove gpuboard from the host, and its key from the web host; data stays."""
    name = inspection.name
    is_installed = bool(inspection.installed_name or inspection.public_key or inspection.crontab_line)
    if is_installed:
        plan.begin_step(job, "remove")
        run_installer_on_host(plan, host, "./install.sh remove host </dev/null", INSTALL_TIMEOUT_S)
    enrolled_key = plan.web_state.enrolled_keys.get(name)
    is_ours = is_deploy_host_enrolled(plan, inspection)
    if is_ours or (
        enrolled_key and not is_deploy_host_sending(plan, name) and is_deploy_host_named_by_user(job.target, name)
    ):
        plan.begin_step(job, "key")
        plan.web_host.revoke_host(name)
        is_installed = True
    elif enrolled_key and is_deploy_host_sending(plan, name):
        job.reason = f"another host sends snapshots as {name}: its key stays enrolled"
    elif enrolled_key:
        job.reason = (
            f"the key of {name} stays enrolled, for it is not this host's: {name}={job.target.address} takes it too"
        )
    job.result = REMOVED if is_installed else NOT_INSTALLED


def check_deploy_host(
    job: HostDeployJob, plan: HostDeployPlan, host: SshConnection, inspection: HostInspection
) -> None:
    """Report what the host is like and what deploy would do; change nothing."""
    web_state, name = plan.web_state, inspection.name
    job.check_facts = {
        "version": inspection.version or None,
        "loops": inspection.loop_status or None,
        "enrolled": is_deploy_host_enrolled(plan, inspection),
        "age": web_state.clock_s - web_state.arrival_times[name] if name in web_state.arrival_times else None,
    }
    destination = plan.destination or choose_deploy_host_destination(plan, host, inspection)
    _, known_hosts_lines = build_known_hosts_lines(destination, plan.web_host.host_keys)
    outdated_parts = list_outdated_host_parts(plan, inspection, destination, known_hosts_lines)
    if outdated_parts and inspection.installed_name:
        detail = f" ({inspection.loop_status})" if inspection.loop_status not in ("", "ok") else ""
        job.reason = f"not as it should be: {', '.join(outdated_parts)}{detail}"
    job.result = UP_TO_DATE if not outdated_parts else WOULD_UPGRADE if inspection.installed_name else WOULD_INSTALL


def find_installer() -> Path:
    """Return install.sh; the folder `install` that it reads is beside it."""
    packed = PACKAGE_FOLDER / "install.sh"
    return packed if packed.is_file() else PACKAGE_FOLDER.parent / "install.sh"
