"""Free ports for the servers of the tests."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

# Below those that the kernel gives to every outgoing connection: such a port could be taken before its server starts.
CANDIDATES = range(10_000, 32_000)


def is_free(port: int) -> bool:
    """Whether nobody has the port, for TCP and UDP alike, as Consul's gossip needs both."""
    with ExitStack() as sockets:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                sockets.enter_context(socket.socket(type=kind)).bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def free_ports(count: int) -> list[int]:
    """Choose ports of 127.0.0.1 on which nothing listens."""
    free: set[int] = set()
    while len(free) < count:
        port = random.SystemRandom().choice(CANDIDATES)
        if is_free(port):
            free.add(port)
    return list(free)


def free_port() -> int:
    """Choose one."""
    return free_ports(1)[0]
