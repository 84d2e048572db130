"""Install gpuboard on one host, check it or remove it, step by step."""

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

from site_builder.core.files import SCRIPTS_FOLDER
from site_builder.core.names import is_host_name
from site_builder.core.subprocesses import extract_last_line
from site_builder.core.terminal_text import clean_text
from site_builder.deploy.web_host import WebHost, WebHostError, WebHostState, find_installer, parse_web_host_public_key
from site_builder.remote.ssh import RemoteCommandResult, SshConnection, connect_ssh
from site_builder.remote.ssh_config import SshError
from site_builder.remote.targets import Target

WAITING = "waiting"
# Results, as the report has them.
INSTALLED, UPGRADED, UP_TO_DATE, REMOVED, NOT_INSTALLED = "installed", "upgraded", "up to date", "removed", "not there"
WOULD_INSTALL, WOULD_UPGRADE, FAILED, STOPPED = "to be installed", "to be upgraded", "failed", "stopped"
GOOD_RESULTS = (INSTALLED, UPGRADED, UP_TO_DATE, REMOVED, NOT_INSTALLED)
STOPPED_REASON = "stopped: run this again to finish"
IP_ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}")
OPTIONAL_PROGRAMS = ("nvidia-smi",)
# As look.sh itself bounds them.
MAX_VALUE_CHARACTERS, MAX_LINES = 4000, 50
MAX_PROGRAM_CHARACTERS = 20
# Words of look.sh whose value is taken as it is.
PLAIN_WORDS = ("own", "name", "installed", "scripts", "version", "crontab", "dest", "loops")
INSPECT_TIMEOUT_S = 60.0
KEY_TIMEOUT_S = 90.0
INSTALL_TIMEOUT_S = 180.0
NAME_CHECK_S = 22.0
POLL_INTERVAL_S = 1.0
MAX_INSTALLER_ATTEMPTS = 5
BUSY_MESSAGE = "another install.sh has been"
FIX_LINE = re.compile(r"To fix it: (.*)")
SCRIPT_PREFIX = re.compile(r"^[\w.-]+\.sh: ")


class HostDeployError(Exception):
    """Why a host is not done, in one sentence."""


class HostDeployStoppedError(Exception): ...


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
    unpack_script = (script.parent / "install/unpack.sh").read_text()
    return unpack_script.replace("PACKED\n", encodebytes(content.getvalue()).decode())


@dataclass
class HostInspection:
    """What a host is like before anything is changed; many fields are called as in look.sh."""

    own: str = ""
    name: str = ""
    our_address: str = ""  # our address, as the host sees it
    addresses_by_name: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing_programs: list[str] = field(default_factory=list)
    installed: str = ""  # the name under which it is installed
    scripts: str = ""  # their digest
    version: str = ""
    crontab: str = ""
    dest: str = ""
    public_key: str = ""
    previous_key: str = ""  # that of the name under which it is installed
    known_hosts_lines: list[str] = field(default_factory=list)
    loops: str = ""

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
        raise HostDeployError("its answer is incomplete: check that `ssh HOST sh -s` works with its login shell")
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
        elif word in PLAIN_WORDS:
            setattr(inspection, word, value)
    if not is_host_name(inspection.name):
        name = inspection.name[:63]
        message = f"it is called '{name}', which is not a valid name on the board: use NAME=HOST"
        raise HostDeployError(message)
    return inspection


@dataclass
class HostDeployJob:
    """A host and what became of it so far; written only by its own thread."""

    target: Target
    plan: HostDeployPlan
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

    def run(self) -> None:
        """Work on the host until it has a result, whatever happens."""
        is_stopped = self.plan.stop_event.is_set
        if is_stopped():
            self.result, self.reason = STOPPED, "stopped before it started: run this again"
            return
        self.started_at = time.monotonic()
        try:
            self.begin_step("connect")
            with connect_ssh(self.target.address, self.plan.connect_timeout_s, self.plan.config_file) as host:
                self.connection = host
                work = {"deploy": self.install, "check": self.check, "remove": self.remove}[self.plan.action]
                work(host, self.inspect(host))
        except HostDeployStoppedError:
            self.result, self.reason = STOPPED, f"stopped at the step '{self.step}': run this again to finish"
        except (HostDeployError, SshError, WebHostError) as error:
            self.result, self.reason = (STOPPED, STOPPED_REASON) if is_stopped() else (FAILED, str(error))
        except Exception as error:  # one host must not cost the others
            name = type(error).__name__
            self.result, self.reason = FAILED, f"this is a bug: {name}: {extract_last_line(str(error))}"
        self.ended_at = time.monotonic()

    def begin_step(self, step: str) -> None:
        """Start the next step, unless the deploy is being stopped."""
        if self.plan.stop_event.is_set():
            raise HostDeployStoppedError
        self.step = step

    def pause(self) -> None:
        """Wait before the next attempt, unless the deploy is being stopped."""
        if self.plan.stop_event.wait(POLL_INTERVAL_S):
            raise HostDeployStoppedError

    def inspect(self, host: SshConnection) -> HostInspection:
        """Find out what the host is like, and give its name to it alone."""
        self.begin_step("look")
        given_name, address = self.target.given_name, self.target.address
        command = " ".join(["exec sh -s --", given_name or "-", *self.plan.web_host.host_names])
        result = host.run(command, self.plan.inspect_program.encode(), INSPECT_TIMEOUT_S)
        try:
            inspection = parse_host_inspection(result.stdout)
        except HostDeployError as error:
            reason = f" ({result.last_line})" if result.exit_code else ""
            raise HostDeployError(f"{error}{reason}") from None
        name = inspection.name
        if given_name not in (None, name):
            message = f"it answered for {name} instead of {given_name}"
            raise HostDeployError(f"{message}: its shell did not run the command as sent")
        with self.plan.lock:
            owner = self.plan.claimed_names.setdefault(name, address)
        if owner != address:
            raise HostDeployError(f"it is called {name}, like {owner}: give one of them another name with NAME=HOST")
        self.name = name
        if inspection.missing_required and self.plan.action != "remove":
            raise HostDeployError(f"missing: {', '.join(inspection.missing_required)}; install that first")
        return inspection

    def install(self, host: SshConnection, inspection: HostInspection) -> None:
        """Install gpuboard, or what is missing of it, and wait for its first snapshot."""
        self.check_name(inspection)
        plan, web_host, web_state = self.plan, self.plan.web_host, self.plan.web_state
        name, previous_name = inspection.name, inspection.installed
        destination = plan.destination or self.choose_destination(host, inspection)
        address, known_hosts_lines = web_host.build_known_hosts_lines(destination)
        if not self.list_outdated_parts(inspection, destination):
            self.result = UP_TO_DATE
            return
        key = inspection.public_key
        if not key or not set(known_hosts_lines) <= set(inspection.known_hosts_lines):
            self.begin_step("key")
            input_lines = "".join(f"{line}\n" for line in known_hosts_lines)
            command = f"./install.sh key {name} {destination} {address} <<'END'\n{input_lines}END"
            output = self.run_installer(host, command, KEY_TIMEOUT_S)
            key = parse_web_host_public_key(output.strip().rpartition("\n")[2])
            if not key:
                raise HostDeployError("it did not create a valid public key")
        self.begin_step("enrol")
        # an unchanged key is not enrolled again; its line may name the previous data folder
        web_host.enrol_host(name, key)
        self.begin_step("install")
        name_option = "" if name == inspection.own and previous_name in ("", name) else f" --name {name}"
        command = f"./install.sh host{name_option} --dest {destination} </dev/null"
        self.run_installer(host, command, INSTALL_TIMEOUT_S)
        self.begin_step("snapshot")
        deadline = time.monotonic() + plan.snapshot_timeout_s
        last_arrival = max(web_state.clock_s - 1, web_state.arrival_times.get(name, 0))
        while web_host.read_arrival_time(name) <= last_arrival:
            if time.monotonic() > deadline:
                message = f"everything is installed there, but nothing arrived within {plan.snapshot_timeout_s:.0f} s"
                raise HostDeployError(f"{message}: gpu-check.sh status on the host shows why")
            self.pause()
        previous_key = web_state.enrolled_keys.get(previous_name)
        if previous_name not in ("", name) and previous_key and previous_key == inspection.previous_key:
            web_host.revoke_host(previous_name)
        if not inspection.has_driver:
            problem = "no nvidia-smi, amd-smi or rocm-smi"
            self.reason = f"{problem}: the board shows it as failed until a GPU driver is installed"
        self.result = UPGRADED if previous_name else INSTALLED

    def is_named_by_user(self, name: str) -> bool:
        """Return True if the user typed this name; a host may not claim a name that is taken."""
        address = self.target.address.rpartition("@")[2].rpartition("//")[2].partition(":")[0]
        return name in (self.target.given_name, address, address.partition(".")[0])

    def is_enrolled(self, inspection: HostInspection) -> bool:
        key = inspection.public_key
        return bool(key) and self.plan.web_state.enrolled_keys.get(inspection.name) == key

    def check_name(self, inspection: HostInspection) -> None:
        """Refuse a name under which another host sends snapshots."""
        name, web_state = inspection.name, self.plan.web_state
        if self.is_enrolled(inspection):
            return
        is_taken = web_state.enrolled_keys.get(name) or web_state.is_sending(name)
        if is_taken and not self.is_named_by_user(name):
            message = f"it says that it is {name}, but that name is taken; if it is the same host, confirm with"
            raise HostDeployError(f"{message} {name}={self.target.address}")
        if inspection.installed == name or not web_state.is_sending(name):
            return
        self.begin_step("name")
        deadline = time.monotonic() + NAME_CHECK_S
        while time.monotonic() < deadline:
            if self.plan.web_host.read_arrival_time(name) > web_state.arrival_times.get(name, 0):
                message = f"another host sends snapshots as {name}: give this host another name with NAME=HOST"
                raise HostDeployError(f"{message}, or if it is this machine, first stop what sends them")
            self.pause()

    def choose_destination(self, host: SshConnection, inspection: HostInspection) -> str:
        """Choose where this host reaches the web host; keep its present destination if it can be right."""
        web_host = self.plan.web_host
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
            message = f"it cannot resolve {own_names}: set the address of the web host with --dest ssh://USER@WEB"
            raise HostDeployError(message)
        return inspection.dest if inspection.dest in destinations else destinations[0]

    def list_outdated_parts(self, inspection: HostInspection, destination: str) -> list[str]:
        name, (_, known_hosts_lines) = inspection.name, self.plan.web_host.build_known_hosts_lines(destination)
        line_ends = [f" {name}", *(["/gpu-check.sh", "/gpu-check.sh'"] if name == inspection.own else [])]
        is_current = {
            "scripts": inspection.scripts == self.plan.scripts_digest,
            "crontab": inspection.crontab.endswith(tuple(line_ends)),
            "destination": inspection.dest == destination,
            "key": self.is_enrolled(inspection),
            "web host's key": set(known_hosts_lines) <= set(inspection.known_hosts_lines),
            "loops": inspection.loops == "ok" and inspection.installed == name,
            "snapshot": self.plan.web_state.is_sending(name),
        }
        return [part for part, is_good in is_current.items() if not is_good]

    def run_installer(self, host: SshConnection, command: str, timeout_s: float) -> str:
        """Run install.sh on the host in a temporary folder; retry while another host that shares the home runs it."""
        program = f"{self.plan.install_program}{command}\n".encode()
        for attempt in range(MAX_INSTALLER_ATTEMPTS):
            result = host.run("exec sh -s", program, timeout_s)
            if result.exit_code != 2 or BUSY_MESSAGE not in result.last_line or attempt == MAX_INSTALLER_ATTEMPTS - 1:
                break
            self.pause()
        if result.exit_code:
            raise HostDeployError(describe_installer_failure(result))
        return result.stdout.decode(errors="replace")

    def remove(self, host: SshConnection, inspection: HostInspection) -> None:
        """Remove gpuboard from the host, and its key from the web host; data stays."""
        name, web_state = inspection.name, self.plan.web_state
        is_installed = bool(inspection.installed or inspection.public_key or inspection.crontab)
        if is_installed:
            self.begin_step("remove")
            self.run_installer(host, "./install.sh remove host </dev/null", INSTALL_TIMEOUT_S)
        enrolled_key, is_sending = web_state.enrolled_keys.get(name), web_state.is_sending(name)
        is_unused = enrolled_key and not is_sending
        if self.is_enrolled(inspection) or (is_unused and self.is_named_by_user(name)):
            self.begin_step("key")
            self.plan.web_host.revoke_host(name)
            is_installed = True
        elif is_unused:
            problem = f"the key of {name} stays enrolled, because it is not the key of this host"
            self.reason = f"{problem}: {name}={self.target.address} removes it too"
        elif enrolled_key:
            self.reason = f"another host sends snapshots as {name}: its key stays enrolled"
        self.result = REMOVED if is_installed else NOT_INSTALLED

    def check(self, host: SshConnection, inspection: HostInspection) -> None:
        """Report what the host is like and what deploy would do; change nothing."""
        web_state, name = self.plan.web_state, inspection.name
        self.check_facts = {
            "version": inspection.version or None,
            "loops": inspection.loops or None,
            "enrolled": self.is_enrolled(inspection),
            "age": web_state.clock_s - web_state.arrival_times[name] if name in web_state.arrival_times else None,
        }
        destination = self.plan.destination or self.choose_destination(host, inspection)
        outdated_parts = self.list_outdated_parts(inspection, destination)
        if outdated_parts and inspection.installed:
            detail = f" ({inspection.loops})" if inspection.loops not in ("", "ok") else ""
            self.reason = f"outdated: {', '.join(outdated_parts)}{detail}"
        self.result = UP_TO_DATE if not outdated_parts else WOULD_UPGRADE if inspection.installed else WOULD_INSTALL


def is_deploy_host_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def describe_installer_failure(result: RemoteCommandResult) -> str:
    lines = [line for line in result.stderr.decode(errors="replace").split("\n") if line.strip()]
    last_lines = lines[-2 if result.exit_code == 1 else -1 :]
    message = "; ".join(SCRIPT_PREFIX.sub("", extract_last_line(line)) for line in last_lines) or result.last_line
    fix = FIX_LINE.search(result.stdout.decode(errors="replace"))
    return f"{message}; {extract_last_line(fix[1])}" if fix and result.exit_code == 1 else message
