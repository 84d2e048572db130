"""A real sshd for tests: on a free port of 127.0.0.1, for the user who runs them, with a configuration for clients."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType

from tests.support.machine import keygen, wait_for
from tests.support.missing import need
from tests.support.ports import free_port

PROGRAM = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
UsePAM no
StrictModes no
AuthorizedKeysFile {folder}/authorized_keys
{more}
"""
CLIENT = """
Host box
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/id
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
"""


class Sshd:
    """One server, whose key known_hosts has; `config` is ssh's configuration, in which it is called `box`."""

    def __init__(self, folder: Path, extra_config: str = "") -> None:
        """Start it."""
        need("" if PROGRAM else "sshd is not installed")
        folder.mkdir()
        self.folder = folder
        self.port = free_port()
        keygen(folder / "host_key")
        keygen(folder / "id")
        shutil.copy(folder / "id.pub", folder / "authorized_keys")
        self.known = folder / "known_hosts"
        self.know()
        self.config = folder / "config"
        self.config.write_text(CLIENT.format(port=self.port, user=getpass.getuser(), folder=folder))
        (folder / "sshd_config").write_text(SERVER.format(port=self.port, folder=folder, more=extra_config))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        with (folder / "log").open("wb") as log:
            command = [str(PROGRAM), "-D", "-e", "-f", str(folder / "sshd_config")]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self.answers)

    def know(self, key: str | None = None) -> None:
        """Let known_hosts have this key of it."""
        self.known.write_text(f"[127.0.0.1]:{self.port} {key or (self.folder / 'host_key.pub').read_text()}\n")

    def answers(self) -> bool:
        """Whether one can connect."""
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", self.port)) == 0

    def configured(self, text: str) -> Path:
        """Another configuration: this text before the usual one, since the first value counts."""
        path = self.folder / f"config-{len(list(self.folder.iterdir()))}"
        path.write_text(text + self.config.read_text())
        return path

    def __enter__(self) -> Sshd:
        """As it is."""
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(20)
