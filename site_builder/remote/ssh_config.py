"""What the person's own ssh would do for a host: address, user, keys, jumps, and the host keys that it knows.

ssh and ssh-keygen are asked themselves, so that Include, Match, hashed names and patterns count as they always do.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ASKED_WITHIN = 10
# What may stand for a host: never an option, never two words.
DESTINATION = re.compile(r"[^\s\x00-\x1f\x7f-][^\s\x00-\x1f\x7f]{0,254}")
TOKEN = re.compile(r"%(.)")


class SshError(Exception):
    """Why a host cannot be reached, or not do what it was told, in one sentence."""


class HostKey(NamedTuple):
    """One key of a host: its type, and itself in base64."""

    kind: str
    key: str


@dataclass(frozen=True)
class Way:
    """How to reach a host."""

    name: str
    address: str
    port: int
    user: str
    identities: tuple[Path, ...] = ()
    only_identities: bool = False
    agent: str | None = None  # a socket, "none", or the one of the environment
    jumps: tuple[str, ...] = ()
    command: str | None = None
    alias: str | None = None
    known: tuple[Path, ...] = ()
    config: Path | None = field(default=None, compare=False)

    @property
    def shown(self) -> str:
        """For a sentence and for a person's shell."""
        return self.name


def home() -> Path:
    """The person's own, as ssh finds it: not by the environment."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def asked(program: str, *words: str) -> subprocess.CompletedProcess[str]:
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
            timeout=ASKED_WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        message = f"`{program} {' '.join(words)}` does not end within {ASKED_WITHIN} s"
        raise SshError(message) from None


def way_to(host: str, config: Path | None = None) -> Way:
    """What ssh's configuration says of this host, which may be user@host or ssh://user@host:port."""
    if not DESTINATION.fullmatch(host):
        message = f"{host[:80]!r} cannot be a host: no option, no blank, 255 characters at most"
        raise SshError(message)
    words = ["-F", str(config)] if config else []
    done = asked("ssh", *words, "-G", "--", host)
    if done.returncode:
        message = f"ssh does not understand {host!r} or its own configuration: {last_line(done.stderr)}"
        raise SshError(message)
    return read_way(host, done.stdout, config)


def last_line(text: str) -> str:
    """The last thing that a program said, in one line of bounded length, without control characters."""
    lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
    shown = "".join(one if one.isprintable() else "?" for one in (lines[-1].strip() if lines else "no reason given"))
    return shown[:300]


def read_way(host: str, told: str, config: Path | None) -> Way:
    """The answer of `ssh -G`."""
    said: dict[str, list[str]] = {}
    for line in told.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)

    def first(key: str) -> str | None:
        value = said.get(key, ["none"])[0]
        return None if value.lower() == "none" else value

    way = Way(host, first("hostname") or host, int(first("port") or 22), first("user") or "", config=config)
    files = [expanded(name, way) for name in said.get("identityfile", ()) if name.lower() != "none"]
    known = [*said.get("userknownhostsfile", ()), *said.get("globalknownhostsfile", ())]
    jumps, command = first("proxyjump"), first("proxycommand")
    agent = said.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    return Way(
        host,
        way.address,
        way.port,
        way.user,
        identities=tuple(Path(name) for name in files if Path(name).is_file()),
        only_identities=first("identitiesonly") == "yes",
        agent=None if agent == "SSH_AUTH_SOCK" else expanded(agent, way),
        jumps=tuple(jumps.split(",")) if jumps else (),
        command=expanded(command, way) if command else None,
        alias=first("hostkeyalias"),
        known=tuple(Path(expanded(name, way)) for line in known for name in line.split() if name.lower() != "none"),
        config=config,
    )


def expanded(text: str, way: Way) -> str:
    """With ssh's own tokens, and the home for a ~."""
    values = {
        "%": "%",
        "h": way.address,
        "n": way.name.rpartition("@")[2],
        "p": str(way.port),
        "r": way.user,
        "d": str(home()),
        "u": pwd.getpwuid(os.getuid()).pw_name,
        "i": str(os.getuid()),
        "l": socket.gethostname(),
        "L": socket.gethostname().partition(".")[0],
    }
    text = TOKEN.sub(lambda found: values.get(found[1], found[0]), text)
    return f"{home()}{text[1:]}" if text == "~" or text.startswith("~/") else text


def names_of(way: Way) -> list[str]:
    """How known_hosts may call it, as ssh looks for it: without the port, where it is not known with it."""
    plain = way.alias or way.address
    return [plain] if way.port == 22 or way.alias else [f"[{plain}]:{way.port}", plain]


def known_keys(way: Way) -> list[HostKey]:
    """The keys that known_hosts has of this host; those that it revokes are none."""
    for name in names_of(way):
        good, revoked = marked_keys(name, way.known)
        if good or revoked:
            return [key for key in good if key not in revoked]
    return []


def by_authority(way: Way) -> bool:
    """Whether known_hosts has a certificate authority for it, which paramiko does not know how to ask."""
    found = (known_lines(name, way.known) for name in names_of(way))
    return any(line.startswith("@cert-authority") for lines in found for line in lines)


def known_lines(name: str, files: tuple[Path, ...]) -> list[str]:
    """The lines of this name in all files, as ssh-keygen finds them."""
    there = [file for file in files if file.is_file()]
    return [line for file in there for line in asked("ssh-keygen", "-F", name, "-f", str(file)).stdout.splitlines()]


def marked_keys(name: str, files: tuple[Path, ...]) -> tuple[list[HostKey], set[HostKey]]:
    """The keys of this name, and the revoked ones."""
    good: list[HostKey] = []
    revoked: set[HostKey] = set()
    for line in known_lines(name, files):
        words = line.split()
        if len(words) >= 4 and words[0] == "@revoked":
            revoked.add(HostKey(words[2], words[3]))
        elif len(words) >= 3 and not line.startswith(("#", "@")):
            good.append(HostKey(words[1], words[2]))
    return good, revoked
