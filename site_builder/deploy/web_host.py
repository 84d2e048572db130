"""The web host of a deploy, here or over ssh: who is enrolled, and when each host last sent a snapshot."""

from __future__ import annotations

import getpass
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from site_builder.core.files import PACKAGE_FOLDER, SCRIPTS_FOLDER
from site_builder.core.subprocesses import extract_last_line
from site_builder.remote.ssh import RemoteCommandResult, connect_ssh
from site_builder.remote.ssh_config import HostKey, SshError, read_known_host_keys

# Only such a key is ever accepted from a host, or given to one.
PUBLIC_KEY = re.compile(r"(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]{40,3500}={0,3})(?: .*)?")
SCRIPT_TIMEOUT_S = CONNECT_TIMEOUT_S = 40.0
SSH_FOLDER = Path("/etc/ssh")
INSTALLED_SCRIPTS = ".local/share/gpuboard/scripts"
PORT_LINE = re.compile(r"^\s*Port\s+([0-9]{1,5})\s*$", re.IGNORECASE | re.MULTILINE)
# What may stand in a command: no host name holds anything else.
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
DESTINATION_PATTERN = re.compile(r"ssh://(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(?::([0-9]{1,5}))?")
# A host that sent something within this time still sends.
MAX_SENDING_AGE_S = 120


class WebHostError(Exception): ...


class WebHostState(NamedTuple):
    clock_s: int
    enrolled_keys: dict[str, str]
    arrival_times: dict[str, int]

    def is_sending(self, name: str) -> bool:
        """Return True if a host of this name still sends snapshots."""
        return self.clock_s - self.arrival_times.get(name, 0) <= MAX_SENDING_AGE_S


def find_installer() -> Path:
    """Return install.sh; the folder `install` that it reads is beside it."""
    packed = PACKAGE_FOLDER / "install.sh"
    return packed if packed.is_file() else PACKAGE_FOLDER.parent / "install.sh"


@dataclass
class WebHost:
    """Runs install/enrolment.sh on the web host, and knows how GPU hosts reach it."""

    run_enrolment: Callable[[Sequence[str]], RemoteCommandResult]
    host_names: list[str]
    user: str
    port: int
    host_keys: list[HostKey]
    is_local: bool = False
    # one after the other: gpu-enrol.sh has a lock, and a connection no more than ten channels
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Keep only names that are safe in a command."""
        self.host_names = [name for name in dict.fromkeys(self.host_names) if SAFE_NAME.fullmatch(name)]

    def run_script(self, *words: str) -> str:
        with self.lock:
            try:
                result = self.run_enrolment(words)
            except SshError as error:
                raise WebHostError(str(error)) from None
            except (OSError, subprocess.SubprocessError) as error:
                raise WebHostError(f"sh cannot be started: {extract_last_line(str(error))}") from None
        if result.exit_code:
            raise WebHostError(f"on the web host: {result.last_line}")
        return result.stdout.decode(errors="replace")

    def read_state(self) -> WebHostState:
        """Read who is enrolled, and when the last snapshot of each host arrived."""
        state = WebHostState(0, {}, {})
        lines = self.run_script("state").split("\n")
        if "end 1" not in lines:
            raise WebHostError("the answer of the web host is incomplete")
        for line in lines:
            word, _, value = line.partition(" ")
            name, _, rest = value.partition(" ")
            if word == "enrolled":
                state.enrolled_keys[name] = parse_web_host_public_key(rest)
            elif word == "arrived" and rest.isdecimal():
                state.arrival_times[name] = int(rest)
            elif word == "now" and name.isdecimal():
                state = state._replace(clock_s=int(name))
        return state

    def read_arrival_time(self, name: str) -> int:
        """Read when the last snapshot of a host arrived, by the clock of the web host; 0 for never."""
        output = self.run_script("arrival", name).strip().rpartition("\n")[2]
        return int(output) if output.isdecimal() else 0

    def enrol_host(self, name: str, key: str) -> None:
        self.run_script("enrol", name, f"{parse_web_host_public_key(key)} {name}")

    def revoke_host(self, name: str) -> None:
        self.run_script("revoke", name)

    def build_known_hosts_lines(self, destination: str) -> tuple[str, list[str]]:
        """Return its name in known_hosts, as ssh will call it, and its lines there."""
        match = DESTINATION_PATTERN.fullmatch(destination)
        if not match:
            problem = f"'{destination}' is not a valid destination"
            raise WebHostError(f"{problem}: it must be ssh://USER@WEB or ssh://USER@WEB:PORT")
        host = match[2].strip("[]")
        address = host if match[3] in (None, "22") else f"[{host}]:{match[3]}"
        return address, [f"{address} {key.key_type} {key.base64_key}" for key in self.host_keys]


def parse_web_host_public_key(line: str) -> str:
    """Return the type and the key of a line, or an empty string."""
    match = PUBLIC_KEY.fullmatch(line.strip())
    return f"{match[1]} {match[2]}" if match else ""


@contextmanager
def open_web_host(data: Path, address: str | None, config: Path | None) -> Iterator[WebHost]:
    """Open the web host: this machine, or the account at an address, to which hosts push."""
    program = (find_installer().parent / "install/enrolment.sh").read_bytes()
    if address is None:
        installed = Path.home() / INSTALLED_SCRIPTS
        scripts = installed if (installed / "gpu-enrol.sh").exists() else SCRIPTS_FOLDER
        shell = ["/bin/sh", "-s", "--", str(scripts.absolute()), str(data.absolute())]

        def run_here(words: Sequence[str]) -> RemoteCommandResult:
            result = subprocess.run(
                [*shell, *words], input=program, capture_output=True, timeout=SCRIPT_TIMEOUT_S, check=False
            )
            return RemoteCommandResult(result.returncode, result.stdout, result.stderr)

        names = [name for name in (socket.getfqdn(), socket.gethostname()) if not name.startswith("localhost")]
        port, keys = find_web_host_sshd_port(), read_web_host_sshd_keys()
        yield WebHost(run_here, names, getpass.getuser(), port, keys, is_local=True)
        return
    with connect_ssh(address, CONNECT_TIMEOUT_S, config) as connection:

        def run_there(words: Sequence[str]) -> RemoteCommandResult:
            return connection.run(shlex.join(["exec", "sh", "-s", "--", "-", "-", *words]), program, SCRIPT_TIMEOUT_S)

        host = connection.host
        keys = read_known_host_keys(host) or [connection.host_key]
        yield WebHost(run_there, [host.address], host.user, host.port, keys)


def find_web_host_sshd_port() -> int:
    """Find the port of our sshd in its configuration; only root may ask sshd itself."""
    for path in (SSH_FOLDER / "sshd_config", *sorted((SSH_FOLDER / "sshd_config.d").glob("*.conf"))):
        try:
            match = PORT_LINE.search(path.read_text(errors="replace"))
        except OSError:
            continue
        if match:
            return int(match[1])
    return 22


def read_web_host_sshd_keys() -> list[HostKey]:
    """Read the host keys of our sshd; a public key without its private half is not one of them."""
    keys = []
    for path in sorted(path for path in SSH_FOLDER.glob("*.pub") if path.with_suffix("").exists()):
        try:
            key = parse_web_host_public_key(path.read_text().split("\n")[0])
        except (OSError, UnicodeDecodeError):
            continue
        if key:
            keys.append(HostKey(*key.split(" ")))
    return keys
