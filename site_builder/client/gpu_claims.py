"""Claim GPUs on this machine, so that two runs never take the same."""

from __future__ import annotations

import errno
import socket
from hashlib import blake2b
from pathlib import Path

from site_builder.core.model import FleetUnavailableError

SOCKET_PREFIX = "gpuboard/run/"
SOCKET_TABLE = Path("/proc/net/unix")


def claim_gpu_for_run(uuid: str) -> int | None:
    """Claim a GPU for as long as the returned handle is open in any process; None if another has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim_socket:
        try:
            claim_socket.bind(f"\0{build_run_socket_name(uuid)}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            message = f"no GPU can be taken on this machine: {error.strerror}"
            raise FleetUnavailableError(message) from None
        return claim_socket.detach()


def build_run_socket_name(uuid: str) -> str:
    """Return a short plain name for a GPU, whatever a board calls it."""
    return f"{SOCKET_PREFIX}{blake2b(uuid.encode('utf-8', 'replace'), digest_size=16).hexdigest()}"


class ClaimedGpus:
    """The GPUs of this machine that runs have claimed at this moment."""

    def __init__(self) -> None:
        try:
            lines = SOCKET_TABLE.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        names = (line.rpartition(" ")[2] for line in lines)
        self.socket_names = frozenset(name[1:] for name in names if name.startswith(f"@{SOCKET_PREFIX}"))

    def __contains__(self, uuid: object) -> bool:
        return isinstance(uuid, str) and build_run_socket_name(uuid) in self.socket_names
