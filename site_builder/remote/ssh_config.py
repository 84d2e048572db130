"""Read what ssh's configuration and known_hosts say of a host."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from site_builder.core.subprocesses import extract_last_line

# Python 3.9 has two of them.
TIMEOUT_ERRORS = (TimeoutError, socket.timeout)
PROGRAM_TIMEOUT_S = 10
# What may be a host: never an option, never two words.
DESTINATION_PATTERN = re.compile(r"[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]{0,254}")
TOKEN_PATTERN = re.compile(r"%(.)")


class SshError(Exception):
    """Why a host cannot be reached or did not do what it was asked, in one sentence."""


class HostKey(NamedTuple):
    key_type: str
    base64_key: str


@dataclass(frozen=True)
class SshHostConfig:
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


def find_ssh_home_folder() -> Path:
    """Return the home folder as ssh finds it: not by the environment."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def run_openssh_program(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = shutil.which(program)
    if path is None:
        raise SshError(f"{program} is not installed; on Debian and Ubuntu it is in openssh-client")
    try:
        return subprocess.run(
            [path, *words], input="", capture_output=True, errors="replace", timeout=PROGRAM_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SshError(f"`{program} {' '.join(words)}` did not finish within {PROGRAM_TIMEOUT_S} s") from None


def resolve_ssh_host(host: str, config: Path | None = None) -> SshHostConfig:
    """Read what ssh's configuration says of a host: a name, user@host or ssh://user@host:port."""
    if not DESTINATION_PATTERN.fullmatch(host):
        raise SshError(f"{host[:80]!r} is not a valid host: no options, no spaces, at most 255 characters")
    options = ["-F", str(config)] if config else []
    result = run_openssh_program("ssh", *options, "-G", "--", host)
    if result.returncode:
        raise SshError(f"ssh rejects {host!r} or its own configuration: {extract_last_line(result.stderr)}")
    values: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)

    def first(key: str) -> str | None:
        value = values.get(key, ["none"])[0]
        return None if value.lower() == "none" else value

    address, port, user = first("hostname") or host, int(first("port") or 22), first("user") or ""
    resolved = SshHostConfig(host, address, port, user, config_file=config)
    files = [expand_ssh_tokens(file, resolved) for file in values.get("identityfile", ()) if file.lower() != "none"]
    known_hosts = [*values.get("userknownhostsfile", ()), *values.get("globalknownhostsfile", ())]
    jumps, command = first("proxyjump"), first("proxycommand")
    agent = values.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    return replace(
        resolved,
        identities=tuple(Path(file) for file in files if Path(file).is_file()),
        is_identities_only=first("identitiesonly") == "yes",
        agent=None if agent == "SSH_AUTH_SOCK" else expand_ssh_tokens(agent, resolved),
        jumps=tuple(jumps.split(",")) if jumps else (),
        proxy_command=expand_ssh_tokens(command, resolved) if command else None,
        host_key_alias=first("hostkeyalias"),
        known_hosts_files=tuple(
            Path(expand_ssh_tokens(file, resolved)) for file in " ".join(known_hosts).split() if file.lower() != "none"
        ),
    )


def expand_ssh_tokens(text: str, host: SshHostConfig) -> str:
    """Replace ssh's tokens such as %h, and ~ by the home folder."""
    values = {
        "%": "%",
        "h": host.address,
        "n": host.name.rpartition("@")[2],
        "p": str(host.port),
        "r": host.user,
        "d": str(find_ssh_home_folder()),
        "u": pwd.getpwuid(os.getuid()).pw_name,
        "i": str(os.getuid()),
        "l": socket.gethostname(),
        "L": socket.gethostname().partition(".")[0],
    }
    text = TOKEN_PATTERN.sub(lambda match: values.get(match[1], match[0]), text)
    return f"{find_ssh_home_folder()}{text[1:]}" if text == "~" or text.startswith("~/") else text


def list_known_hosts_names(host: SshHostConfig) -> list[str]:
    """List the names under which known_hosts may have the host, in the order of ssh."""
    plain = host.host_key_alias or host.address
    return [plain] if host.port == 22 or host.host_key_alias else [f"[{plain}]:{host.port}", plain]


def read_known_host_keys(host: SshHostConfig) -> list[HostKey]:
    for name in list_known_hosts_names(host):
        keys: list[HostKey] = []
        revoked: set[HostKey] = set()
        for line in read_known_hosts_lines(name, host.known_hosts_files):
            words = line.split()
            if len(words) >= 4 and words[0] == "@revoked":
                revoked.add(HostKey(words[2], words[3]))
            elif len(words) >= 3 and not line.startswith(("#", "@")):
                keys.append(HostKey(words[1], words[2]))
        if keys or revoked:
            return [key for key in keys if key not in revoked]
    return []


def has_known_hosts_authority(host: SshHostConfig) -> bool:
    lines_by_name = (read_known_hosts_lines(name, host.known_hosts_files) for name in list_known_hosts_names(host))
    return any(line.startswith("@cert-authority") for lines in lines_by_name for line in lines)


def read_known_hosts_lines(name: str, files: tuple[Path, ...]) -> list[str]:
    return [
        line
        for file in files
        if file.is_file()
        for line in run_openssh_program("ssh-keygen", "-F", name, "-f", str(file)).stdout.splitlines()
    ]
