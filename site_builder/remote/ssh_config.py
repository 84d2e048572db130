"""Read ssh's configuration, and log in."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import paramiko  # noqa: TID251 for mypy

# Python 3.9 has two of them.
TIMEOUT_ERRORS = (TimeoutError, socket.timeout)


def require_time_left(deadline: float) -> float:
    """Seconds until then."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def log_in_by_key(transport: paramiko.Transport, way: SshHostConfig, deadline: float) -> None:
    """With the first key that the host takes."""
    locked: list[Path] = []
    tried = 0
    with open_agent_keys(way, deadline) as held:
        for key in iterate_login_keys(way, held, locked):
            tried += 1
            transport.auth_timeout = require_time_left(deadline)
            if try_login_key(transport, way, key, tried):
                return
            require_time_left(deadline)
    raise SshError(describe_refused_keys(way, tried, locked))


def try_login_key(transport: paramiko.Transport, way: SshHostConfig, key: paramiko.PKey, tried: int) -> bool:
    """Whether the host takes this key, and wants nothing else."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    try:
        more = transport.auth_publickey(way.user, key)
    except paramiko.BadAuthenticationType as error:
        raise SshError(describe_other_login(way, error.allowed_types)) from None
    except (paramiko.SSHException, EOFError, OSError) as error:
        if transport.is_active():
            return False
        what = f"{way.name} refused {tried} keys and ended the connection ({extract_last_line(str(error))})"
        message = f"{what}; name the right one in ssh's configuration, with IdentitiesOnly"
        raise SshError(message) from None
    if more:
        raise SshError(describe_other_login(way, more))
    return True


def describe_other_login(way: SshHostConfig, kinds: list[str]) -> str:
    """The sentence on a host that wants more, or other, than a key."""
    what = " or ".join(sorted(kinds))
    return f"{way.name} takes no key from {way.user}, it asks for: {extract_last_line(what)}; let its sshd take keys"


def describe_refused_keys(way: SshHostConfig, tried: int, locked: list[Path]) -> str:
    """The sentence on a host that takes none of our keys."""
    if locked:
        return f"{way.name} takes no other key than {locked[0]}, perhaps, which has a password: ssh-add {locked[0]}"
    keys = "your key" if tried == 1 else f"any of your {tried} keys"
    said = f"{way.name} does not take {keys}" if tried else f"you have no key here for {way.name}"
    return f"{said}, as {way.user}: ssh-copy-id {way.name} (ssh-keygen first, if there is none)"


def iterate_login_keys(
    way: SshHostConfig, held: tuple[paramiko.AgentKey, ...], locked: list[Path]
) -> Iterator[paramiko.PKey]:
    """As ssh tries them: those of the agent that the configuration names, its others, then files; each once."""
    named = {blob: file for file in way.identities for blob in [read_public_half(file)] if blob}
    yield from (key for key in held if key.asbytes() in named)
    if not way.is_identities_only:
        yield from (key for key in held if key.asbytes() not in named)
    done = {key.asbytes() for key in held}
    for file in way.identities:
        if file.suffix != ".pub" and read_public_half(file) not in done:
            key = load_private_key(file, locked)
            if key and key.asbytes() not in done:
                yield key


def read_public_half(file: Path) -> bytes | None:
    """What stands beside a key, or in its place where the agent alone has it."""
    beside = file if file.suffix == ".pub" else file.with_name(f"{file.name}.pub")
    with suppress(OSError, ValueError, IndexError):
        return b64decode(beside.read_text().split()[1])
    return None


def load_private_key(file: Path, locked: list[Path]) -> paramiko.PKey | None:
    """The key in a file; None where it cannot be had without a password, or is of an unknown kind."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    try:
        return paramiko.PKey.from_path(file)
    except (paramiko.PasswordRequiredException, TypeError):  # as cryptography tells of a password
        locked.append(file)
    except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, OSError, ValueError):
        pass
    return None


@contextmanager
def open_agent_keys(way: SshHostConfig, deadline: float) -> Iterator[tuple[paramiko.AgentKey, ...]]:
    """Those of the agent, while it is open; one that hangs or is gone has none."""
    from paramiko.agent import AgentSSH  # noqa: PLC0415, TID251 slow to import
    from paramiko.ssh_exception import SSHException  # noqa: PLC0415, TID251 the same

    place = os.path.expandvars(way.agent) if way.agent else os.environ.get("SSH_AUTH_SOCK", "none")
    agent = AgentSSH()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        with suppress(OSError, SSHException):
            line.settimeout(require_time_left(deadline) / 4)
            if place.lower() != "none":
                line.connect(place)
                agent._connect(line)  # type: ignore[attr-defined] # paramiko's own knows no limit and no IdentityAgent
            line.settimeout(require_time_left(deadline))  # to sign may need a person's yes
        yield agent.get_keys()


PROGRAM_TIMEOUT_S = 10
# What may stand for a host: never an option, never two words.
DESTINATION_PATTERN = re.compile(r"[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]{0,254}")
TOKEN_PATTERN = re.compile(r"%(.)")


class SshError(Exception):
    """Why a host cannot be reached, or not do what it was told, in one sentence."""


class HostKey(NamedTuple):
    """One key of a host: its type, and itself in base64."""

    key_type: str
    base64_key: str


@dataclass(frozen=True)
class SshHostConfig:
    """How to reach a host."""

    name: str
    address: str
    port: int
    user: str
    identities: tuple[Path, ...] = ()
    is_identities_only: bool = False
    agent: str | None = None  # a socket, "none", or the one of the environment
    jumps: tuple[str, ...] = ()
    proxy_command: str | None = None
    host_key_alias: str | None = None
    known_hosts_files: tuple[Path, ...] = ()
    config_file: Path | None = field(default=None, compare=False)


def find_home_folder() -> Path:
    """The person's own, as ssh finds it: not by the environment."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def run_openssh_program(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What a program of OpenSSH says."""
    path = shutil.which(program)
    if path is None:
        message = f"{program} is not installed here; Debian and Ubuntu have it in openssh-client"
        raise SshError(message)
    try:
        return subprocess.run(
            [path, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROGRAM_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        message = f"`{program} {' '.join(words)}` does not end within {PROGRAM_TIMEOUT_S} s"
        raise SshError(message) from None


def resolve_ssh_host(host: str, config: Path | None = None) -> SshHostConfig:
    """What ssh's configuration says of this host, which may be user@host or ssh://user@host:port."""
    if not DESTINATION_PATTERN.fullmatch(host):
        message = f"{host[:80]!r} cannot be a host: no option, no blank, 255 characters at most"
        raise SshError(message)
    words = ["-F", str(config)] if config else []
    done = run_openssh_program("ssh", *words, "-G", "--", host)
    if done.returncode:
        message = f"ssh does not understand {host!r} or its own configuration: {extract_last_line(done.stderr)}"
        raise SshError(message)
    return parse_ssh_config(host, done.stdout, config)


def extract_last_line(text: str) -> str:
    """The last thing that a program said, in one line of bounded length, without control characters."""
    lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
    shown = "".join(one if one.isprintable() else "?" for one in (lines[-1].strip() if lines else "no reason given"))
    return shown[:300]


def parse_ssh_config(host: str, told: str, config: Path | None) -> SshHostConfig:
    """The answer of `ssh -G`."""
    said: dict[str, list[str]] = {}
    for line in told.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)

    def first(key: str) -> str | None:
        value = said.get(key, ["none"])[0]
        return None if value.lower() == "none" else value

    way = SshHostConfig(
        host, first("hostname") or host, int(first("port") or 22), first("user") or "", config_file=config
    )
    files = [expand_ssh_tokens(name, way) for name in said.get("identityfile", ()) if name.lower() != "none"]
    known = [*said.get("userknownhostsfile", ()), *said.get("globalknownhostsfile", ())]
    jumps, command = first("proxyjump"), first("proxycommand")
    agent = said.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    return SshHostConfig(
        host,
        way.address,
        way.port,
        way.user,
        identities=tuple(Path(name) for name in files if Path(name).is_file()),
        is_identities_only=first("identitiesonly") == "yes",
        agent=None if agent == "SSH_AUTH_SOCK" else expand_ssh_tokens(agent, way),
        jumps=tuple(jumps.split(",")) if jumps else (),
        proxy_command=expand_ssh_tokens(command, way) if command else None,
        host_key_alias=first("hostkeyalias"),
        known_hosts_files=tuple(
            Path(expand_ssh_tokens(name, way)) for line in known for name in line.split() if name.lower() != "none"
        ),
        config_file=config,
    )


def expand_ssh_tokens(text: str, way: SshHostConfig) -> str:
    """With ssh's own tokens, and the home for a ~."""
    values = {
        "%": "%",
        "h": way.address,
        "n": way.name.rpartition("@")[2],
        "p": str(way.port),
        "r": way.user,
        "d": str(find_home_folder()),
        "u": pwd.getpwuid(os.getuid()).pw_name,
        "i": str(os.getuid()),
        "l": socket.gethostname(),
        "L": socket.gethostname().partition(".")[0],
    }
    text = TOKEN_PATTERN.sub(lambda found: values.get(found[1], found[0]), text)
    return f"{find_home_folder()}{text[1:]}" if text == "~" or text.startswith("~/") else text


def list_known_hosts_names(way: SshHostConfig) -> list[str]:
    """How known_hosts may call it, as ssh looks for it: without the port, where it is not known with it."""
    plain = way.host_key_alias or way.address
    return [plain] if way.port == 22 or way.host_key_alias else [f"[{plain}]:{way.port}", plain]


def read_known_host_keys(way: SshHostConfig) -> list[HostKey]:
    """The keys that known_hosts has of this host; those that it revokes are none."""
    for name in list_known_hosts_names(way):
        good, revoked = read_marked_host_keys(name, way.known_hosts_files)
        if good or revoked:
            return [key for key in good if key not in revoked]
    return []


def has_certificate_authority(way: SshHostConfig) -> bool:
    """Whether known_hosts has a certificate authority for it, which paramiko does not know how to ask."""
    found = (read_known_hosts_lines(name, way.known_hosts_files) for name in list_known_hosts_names(way))
    return any(line.startswith("@cert-authority") for lines in found for line in lines)


def read_known_hosts_lines(name: str, files: tuple[Path, ...]) -> list[str]:
    """The lines of this name in all files, as ssh-keygen finds them."""
    there = [file for file in files if file.is_file()]
    return [
        line
        for file in there
        for line in run_openssh_program("ssh-keygen", "-F", name, "-f", str(file)).stdout.splitlines()
    ]


def read_marked_host_keys(name: str, files: tuple[Path, ...]) -> tuple[list[HostKey], set[HostKey]]:
    """The keys of this name, and the revoked ones."""
    good: list[HostKey] = []
    revoked: set[HostKey] = set()
    for line in read_known_hosts_lines(name, files):
        words = line.split()
        if len(words) >= 4 and words[0] == "@revoked":
            revoked.add(HostKey(words[2], words[3]))
        elif len(words) >= 3 and not line.startswith(("#", "@")):
            good.append(HostKey(words[1], words[2]))
    return good, revoked
