"""The web side of a deploy: who is enrolled, when each last sent something, and by which keys hosts know it.

It is this machine, or another one over ssh; what is done there is the same small shell program in both cases.
"""

from __future__ import annotations

import getpass
import re
import shlex
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from site_builder.core.resources import scripts_folder
from site_builder.deploy.host_facts import public_key
from site_builder.remote.ssh import Connection, HostKey, Result, SshError
from site_builder.remote.ssh_config import known_keys, last_line

LIMIT = 40.0
SSH_FOLDER = Path("/etc/ssh")
INSTALLED = ".local/share/gpuboard/scripts"
PORT = re.compile(r"^\s*Port\s+([0-9]{1,5})\s*$", re.IGNORECASE | re.MULTILINE)
# What may stand in a command: no host name holds anything else.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
# Where the scripts and the data are, on the machine that has them.
WHERE = """LC_ALL=C
export LC_ALL
enrol={scripts}/gpu-enrol.sh data={data}
conf=~/.config/gpuboard/gpuboard.conf
[ -f "$conf" ] || conf=/etc/gpuboard/gpuboard.conf
[ -n "$data" ] || data=$(sed -n 's/^GPUBOARD_DATA=//p' "$conf" 2>/dev/null | head -n 1)
lacks() {{ echo "$1 is not there: call ./install.sh web first, as $(id -un)" >&2; exit 2; }}
[ -x "$enrol" ] || lacks gpu-enrol.sh
[ -d "$data" ] || lacks "the data folder $data"
"""
LOOK = """echo "now $(date +%s)"
"$enrol" list | sed 's/^/enrolled /'
cd "$data" && for place in */host.txt; do
    [ ! -f "$place" ] || echo "arrived ${place%/host.txt} $(stat -c %Z "$place")"
done
echo "end 1"
"""
ARRIVED = """stat -c %Z "$data/{name}/host.txt" 2>/dev/null || echo 0
"""
ADD = """"$enrol" --data "$data" add {name} <<'END'
{key}
END
"""
REMOVE = """"$enrol" remove {name}
"""


class WebFailed(Exception):
    """Why the web side does not do its part, in one sentence."""


class Shell(Protocol):
    """Whatever runs a program of sh."""

    def __call__(self, program: str) -> Result:
        """Run it, and tell what came of it."""
        ...


class Side(NamedTuple):
    """What is known of the web side at the beginning."""

    now: int
    enrolled: dict[str, str]
    arrived: dict[str, int]


def on_this_machine(program: str) -> Result:
    """On this machine."""
    done = subprocess.run(["/bin/sh", "-s"], input=program.encode(), capture_output=True, timeout=LIMIT, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


@dataclass
class Web:
    """The web side: what runs a program there, and how hosts know it: by names, an account, a port, and keys."""

    shell: Shell
    where: str
    names: list[str]
    user: str
    port: int
    keys: list[HostKey]
    # one after the other: gpu-enrol.sh has a lock, and a connection no more than ten channels
    turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Only what is safe in a command."""
        self.names = [name for name in dict.fromkeys(self.names) if NAME.fullmatch(name)]

    @property
    def here(self) -> bool:
        """Whether it is this machine."""
        return self.shell is on_this_machine

    def run(self, program: str) -> str:
        """Run it there."""
        with self.turn:
            try:
                done = self.shell(self.where + program)
            except SshError as error:
                raise WebFailed(str(error)) from None
            except (OSError, subprocess.SubprocessError) as error:
                message = f"sh cannot be started here: {last_line(str(error))}"
                raise WebFailed(message) from None
        if done.code:
            message = f"on the web host: {done.words}"
            raise WebFailed(message)
        return done.out.decode(errors="replace")

    def look(self) -> Side:
        """Who is enrolled, and when each host's last snapshot arrived."""
        side = Side(0, {}, {})
        lines = self.run(LOOK).split("\n")
        if "end 1" not in lines:
            message = "the answer of the web host is not whole"
            raise WebFailed(message)
        for line in lines:
            word, _, value = line.partition(" ")
            name, _, rest = value.partition(" ")
            if word == "enrolled":
                side.enrolled[name] = public_key(rest)
            elif word == "arrived" and rest.isdecimal():
                side.arrived[name] = int(rest)
            elif word == "now" and name.isdecimal():
                side = side._replace(now=int(name))
        return side

    def arrived(self, name: str) -> int:
        """When this host's last snapshot came, by the clock of the web host; 0 for never."""
        told = self.run(ARRIVED.format(name=name)).strip().rpartition("\n")[2]
        return int(told) if told.isdecimal() else 0

    def enrol(self, name: str, key: str) -> None:
        """Let this key bring the snapshots of this host."""
        self.run(ADD.format(name=name, key=f"{public_key(key)} {name}"))

    def remove(self, name: str) -> None:
        """Let it bring no more."""
        self.run(REMOVE.format(name=name))


def this_machine(data: Path) -> Web:
    """The usual case: deploy runs on the web host, as the user who builds the board."""
    installed = Path.home() / INSTALLED
    scripts = installed if (installed / "gpu-enrol.sh").exists() else scripts_folder()
    where = WHERE.format(scripts=shlex.quote(str(scripts.absolute())), data=shlex.quote(str(data.absolute())))
    names = [name for name in (socket.getfqdn(), socket.gethostname()) if not name.startswith("localhost")]
    return Web(on_this_machine, where, names, getpass.getuser(), own_port(), own_keys())


def own_port() -> int:
    """That of our sshd; root alone may ask sshd itself."""
    for path in (SSH_FOLDER / "sshd_config", *sorted((SSH_FOLDER / "sshd_config.d").glob("*.conf"))):
        try:
            found = PORT.search(path.read_text(errors="replace"))
        except OSError:
            continue
        if found:
            return int(found[1])
    return 22


def own_keys() -> list[HostKey]:
    """Those by which our sshd proves itself: what has no private half beside it is an authority's, or somebody's."""
    found = []
    for path in sorted(path for path in SSH_FOLDER.glob("*.pub") if path.with_suffix("").exists()):
        try:
            key = public_key(path.read_text().split("\n")[0])
        except (OSError, UnicodeDecodeError):
            continue
        if key:
            kind, _, text = key.partition(" ")
            found.append(HostKey(kind, text))
    return found


def over_ssh(connection: Connection) -> Web:
    """Where deploy runs elsewhere: the account that we logged in to is the one that hosts push to."""
    way = connection.way

    def shell(program: str) -> Result:
        return connection.run("exec sh -s", program.encode(), LIMIT)

    where = WHERE.format(scripts=f"~/{INSTALLED}", data="")
    return Web(shell, where, [way.address], way.user, way.port, known_keys(way) or [connection.host_key])
