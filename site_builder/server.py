"""The embedded web server: waitress, held to what plain files and the desk need."""

from __future__ import annotations

import logging
import resource
import socket
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from waitress import wasyncore
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.server import BaseWSGIServer, create_server
from waitress.task import ErrorTask, WSGITask

from site_builder.static import ALWAYS, Site, refusal

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

__all__ = ["Server", "Site", "is_private", "listen", "url_of"]

CONNECTIONS = 1000
BACKLOG = 1024
PATIENCE = 30  # seconds that a request may take to arrive
UNSENT = 1 << 20  # bytes that may wait for a reader who asks for more
AT_ONCE = 1 << 16  # bytes read for one send; of more, the allocator keeps some MiB for each thread that sent once
NEVER = 1 << 60
LIMITS = {
    "threads": 64,  # none ever waits for a reader: only for a disk, a body being compressed, or others who book
    "backlog": BACKLOG,
    "channel_timeout": 60,  # seconds; an open page asks every 10, on the same connection
    "cleanup_interval": 10,
    "max_request_header_size": 16 << 10,
    "max_request_body_size": 32 << 10,  # read, so that the sender gets to see that it is refused; the desk takes half
    "outbuf_high_watermark": NEVER,  # there a thread would wait for a reader; see Channel.write_soon
    "asyncore_use_poll": True,  # select() ends at 1024 files
    "log_socket_errors": False,  # a reader who went away is no news
    "clear_untrusted_proxy_headers": False,  # the desk itself asks from whom they are, and nothing else reads them
    "ident": None,
}


class Refusal(ErrorTask):
    """What waitress itself refuses, in our words; its own repeat the request."""

    def execute(self) -> None:
        """Write it, and end the connection."""
        error: Any = self.request.error  # type: ignore[attr-defined] # the stub takes the request for its error
        answer = refusal(error.code)
        self.status = f"{error.code} {error.reason}"
        self.response_headers = [*ALWAYS, *answer.headers]
        self.set_close_on_finish()
        self.content_length = len(answer.body)
        self.write(answer.body)


class Reply(WSGITask):
    """An answer that does not end the connection where it need not."""

    def set_close_on_finish(self) -> None:
        """End it; but a 304 has no length by its nature, and waitress takes that for a body of unknown length."""
        headers: dict[str, str] = self.request.headers  # type: ignore[attr-defined] # as above
        kept = self.version == "1.1" and headers.get("CONNECTION", "").lower() != "close"
        if not (kept and self.status.startswith("304")):
            super().set_close_on_finish()


class Channel(HTTPChannel):
    """A connection that neither a slow sender nor a slow reader can hold at others' cost."""

    task_class = Reply
    error_task_class = Refusal
    began = 0.0

    def __init__(self, *told: Any, **more: Any) -> None:  # noqa: ANN401 # as waitress gives them
        """Take up a connection; waitress would read as much at once as the system has room for, which may be MiB."""
        super().__init__(*told, **more)
        self.sendbuf_len = min(self.sendbuf_len, AT_ONCE)

    def received(self, data: bytes) -> bool:
        """Take up what arrived; a request that comes letter by letter is given up in the end."""
        now = time.monotonic()
        if self.request is None:
            self.began = now
        elif now - self.began > PATIENCE:
            self.will_close = True
            return False
        return super().received(data)

    def write_soon(self, data: bytes) -> int:
        """Send it; who asks for one file after the other and reads none gets no more of them."""
        if self.total_outbufs_len > UNSENT:
            raise ClientDisconnected
        return super().write_soon(data)


class Server:
    """A site on a socket that listens: `run` until `close`, from another thread or a signal handler."""

    def __init__(self, site: WSGIApplication, sock: socket.socket) -> None:
        """Make it ready; the socket is closed with it."""
        for name in ("waitress", "waitress.queue"):  # a queue of readers is no news either
            logging.getLogger(name).setLevel(logging.ERROR)
        self.map: dict[int, Any] = {}
        limits: dict[str, Any] = {**LIMITS, "connection_limit": connection_limit()}
        server = create_server(site, self.map, sockets=[sock], **limits)
        assert isinstance(server, BaseWSGIServer)  # noqa: S101 # as it is for one socket
        server.channel_class = Channel
        self.server = server
        self.ended = False

    def run(self) -> None:
        """Answer until it is closed; then nothing of it is left."""
        try:
            while not self.ended:
                wasyncore.loop(timeout=10, use_poll=True, map=self.map, count=1)
        finally:
            self.ended = True
            self.clear()

    def close(self) -> None:
        """End `run`; what is being sent is cut off."""
        if not self.ended:
            self.ended = True
            self.server.pull_trigger()  # takes no lock, so that a signal may come at any time

    def clear(self) -> None:
        """Give back threads, files and connections."""
        self.server.task_dispatcher.shutdown(timeout=2)
        for channel in [one for one in self.map.values() if isinstance(one, Channel)]:
            channel.handle_close()
        self.server.close()


def connection_limit() -> int:
    """How many at a time: with no file left to open, waitress would try to accept the next without end."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, soft * 3 // 4)


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens there; OSError says why it cannot be had."""
    failure: OSError | None = None
    for family, kind, protocol, _, where in socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(BACKLOG)  # two may bind the same port, but only one may listen
        except OSError as error:
            failure = failure or error
            if sock:
                sock.close()
        else:
            return sock
    raise failure or OSError("no such address")


def is_private(sock: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def url_of(sock: socket.socket) -> str:
    """Where the board is; by the name of this machine where it listens on all of its addresses."""
    address, port = sock.getsockname()[:2]
    host = socket.gethostname() if ip_address(address.partition("%")[0]).is_unspecified else address
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
