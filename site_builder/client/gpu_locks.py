"""Which GPUs of this machine a `gpuboard run` has taken: each by a name that only one process at a time can have.

The names are abstract sockets: all users share them, no file is left behind, and the kernel frees them whatever
happens to the process that has them.
"""

from __future__ import annotations

import errno
import socket
from hashlib import blake2b
from pathlib import Path

from site_builder.client.model import Failed

NAME = "gpuboard/run/"
TABLE = Path("/proc/net/unix")


def claim(uuid: str) -> int | None:
    """Take a GPU for as long as this handle is open somewhere; None if another has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        try:
            taken.bind(f"\0{name_of(uuid)}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            message = f"no GPU can be taken on this machine: {error.strerror}"
            raise Failed(message) from None
        return taken.detach()


def name_of(uuid: str) -> str:
    """The name of a GPU, short and plain whatever a board calls it."""
    return f"{NAME}{blake2b(uuid.encode('utf-8', 'replace'), digest_size=16).hexdigest()}"


class Claimed:
    """All that are taken at this moment."""

    def __init__(self) -> None:
        """Look."""
        try:
            lines = TABLE.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        names = (line.rpartition(" ")[2] for line in lines)
        self.names = frozenset(name[1:] for name in names if name.startswith(f"@{NAME}"))

    def __contains__(self, uuid: object) -> bool:
        """Whether a GPU is."""
        return isinstance(uuid, str) and name_of(uuid) in self.names
