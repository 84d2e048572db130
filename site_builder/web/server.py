"""The embedded web server: waitress, held to what plain files and the desk need."""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections import Counter
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import BaseWSGIServer, TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask

from site_builder.bookings.rate_limit import group
from site_builder.web.static_files import ALWAYS, Site, refusal

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

__all__ = ["Server", "Site", "is_private", "listen", "url_of"]

CONNECTIONS = 1000
# Connections of one address above which its oldest idle ones are closed: browsers open 6, and several people may share
# an address. Above the second number a new connection is refused, however busy the others are.
PER_ADDRESS, MOST_PER_ADDRESS = 100, 400
# New connections taken in one round; as many slots stay free, for which idle connections are closed.
ACCEPTED_AT_ONCE = 64
STALLED = 5  # seconds after which a client that reads nothing of its answer may lose its slot
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


class RequestParser(HTTPRequestParser):
    """Refuse a request whose end two servers could see at different places (request smuggling)."""

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the header; waitress itself takes the Transfer-Encoding and ignores the Content-Length."""
        names = {line.partition(b":")[0].strip().lower() for line in header_plus.split(b"\r\n")[1:]}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise ParsingError("both Content-Length and Transfer-Encoding")
        super().parse_header(header_plus)
        if "TRANSFER_ENCODING" in self.headers:  # left there by waitress in a request that is not HTTP/1.1
            raise ParsingError("Transfer-Encoding is of HTTP/1.1")


class Channel(HTTPChannel):
    """A connection that neither a slow sender nor a slow reader can hold at others' cost."""

    parser_class = RequestParser
    task_class = Reply
    error_task_class = Refusal
    began = 0.0

    def __init__(self, server: BaseWSGIServer, sock: socket.socket, addr: Any, *more: Any, **named: Any) -> None:  # noqa: ANN401 # as waitress gives them
        """Take up a connection; waitress would read as much at once as the system has room for, which may be MiB."""
        super().__init__(server, sock, addr, *more, **named)
        self.sendbuf_len = min(self.sendbuf_len, AT_ONCE)
        self.client = group(str(addr[0]))
        self.idle_since = time.monotonic()

    def service(self) -> None:
        """Answer one request; from then on the connection is idle, even if part of another request arrives."""
        super().service()
        self.idle_since = time.monotonic()

    def is_idle(self) -> bool:
        """Return True if no request is being answered, no client is reading an answer, and nothing waits to be read.

        Part of a request does not count: whoever sends it byte by byte holds the connection for nothing.
        """
        if self.requests or (self.total_outbufs_len and time.time() - self.last_activity < STALLED):
            return False
        if self.socket is None:
            return True
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # b"": the client has closed it
        except OSError:  # mostly EAGAIN: nothing has arrived
            return True

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


class BoardServer(TcpWSGIServer):
    """Keep slots for new connections, however many idle ones somebody opens."""

    channel_class = Channel
    active_channels: dict[int, Channel]  # type: ignore[assignment] # the stub takes one channel for all

    def __init__(self, site: WSGIApplication, sockets: dict[int, Any], sock: socket.socket, proxy: str | None) -> None:
        """Listen on this socket; connections from `proxy` are those of many people, and not limited by address."""
        self.sockets = sockets
        self.proxy = group(proxy) if proxy else None
        self.has_new_connections = False
        limits: dict[str, Any] = {**LIMITS, "connection_limit": connection_limit(), "sockets": [sock]}
        adjustments = Adjustments(**limits)
        self.idle_limit = adjustments.connection_limit - min(ACCEPTED_AT_ONCE, adjustments.connection_limit // 4)
        threads = ThreadedTaskDispatcher()
        threads.set_thread_count(adjustments.threads)
        place = (sock.family, sock.type, sock.proto, sock.getsockname())
        super().__init__(
            site, sockets, _sock=sock, dispatcher=threads, adj=adjustments, sockinfo=place, bind_socket=False
        )

    def count_clients(self) -> Counter[str]:
        """Count the connections of each address but the proxy's."""
        counts = Counter(channel.client for channel in list(self.active_channels.values()))
        counts.pop(self.proxy or "", None)
        return counts

    def handle_accept(self) -> None:
        """Accept all connections that wait, up to a limit; waitress accepts one in each round of its loop."""
        counts = self.count_clients()
        self.has_new_connections = True
        for _ in range(min(ACCEPTED_AT_ONCE, self.adj.connection_limit - len(self.sockets))):
            try:
                accepted = self.accept()
                if accepted is None:
                    return
                sock, address = accepted
                client = group(str(address[0]))
                if client != self.proxy and counts[client] >= MOST_PER_ADDRESS:
                    sock.close()
                    continue
                self.set_socket_options(sock)
            except OSError:  # the client has closed it already, or no file is left to open
                return
            counts[client] += 1
            self.channel_class(self, sock, self.fix_addr(address), self.adj, map=self.sockets)

    def make_room(self) -> None:
        """Close the oldest idle connections: of addresses with too many, and of all addresses where slots run out.

        Call it between two rounds of the loop: within a round a new connection could get the file number of a closed
        one, and the events that were meant for that.
        """
        excess = len(self.sockets) - self.idle_limit
        if not self.has_new_connections and excess <= 0:
            return
        self.has_new_connections = False
        counts = self.count_clients()
        if excess <= 0 and max(counts.values(), default=0) <= PER_ADDRESS:
            return
        for channel in sorted(self.active_channels.values(), key=lambda channel: channel.idle_since):
            if (excess > 0 or counts[channel.client] > PER_ADDRESS) and channel.is_idle():
                channel.handle_close()
                counts[channel.client] -= 1
                excess -= 1


class Server:
    """A site on a socket that listens: `run` until `close`, from another thread or a signal handler."""

    def __init__(self, site: WSGIApplication, sock: socket.socket, proxy: str | None = None) -> None:
        """Make it ready; the socket is closed with it. `proxy` is the address of a web server before it."""
        for name in ("waitress", "waitress.queue"):  # a queue of readers is no news either
            logging.getLogger(name).setLevel(logging.ERROR)
        self.map: dict[int, Any] = {}
        self.server = BoardServer(site, self.map, sock, proxy)
        self.ended = False

    def run(self) -> None:
        """Answer until it is closed; then nothing of it is left."""
        try:
            while not self.ended:
                self.server.make_room()
                timeout = 1 if self.server.in_connection_overflow else 10
                wasyncore.loop(timeout=timeout, use_poll=True, map=self.map, count=1)
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
