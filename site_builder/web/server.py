"""The web server of `gpuboard serve`: the WSGI application, the check of the Host header, and waitress."""

from __future__ import annotations

import errno
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import BaseWSGIServer, TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask

from site_builder.config.settings import Settings
from site_builder.core.command_options import CommandError, print_command_message
from site_builder.web import compat_routes, static_files
from site_builder.web.basic_auth import BasicAuth, PasswordFile, PasswordFileError
from site_builder.web.booking_app import BookingApplication, BookingConcurrencyLimit
from site_builder.web.compat_hosts import CompatHosts
from site_builder.web.identity import parse_host_header, parse_ip_address
from site_builder.web.rate_limit import build_rate_limit_address_key
from site_builder.web.static_files import StaticResponse, StaticSite, build_static_error_response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

DNS_TIMEOUT_S = 2.0  # seconds that a request waits for the first DNS answer of this process
UNKNOWN_NAME_MESSAGE = (
    "The board does not answer under this name. Its admin can add the name to GPUBOARD_SERVER_NAMES, "
    "or set GPUBOARD_URL to the address that people use."
)

CLEARTEXT_WARNING = (
    "passwords are sent unencrypted: listen on 127.0.0.1, behind a web server with TLS (docs/webservers.md)"
)
CHOOSE_ADDRESS_HINT = "choose another with --listen or GPUBOARD_LISTEN"
MAX_CONNECTIONS = 1000
# Connections of one address above which its oldest idle ones are closed: browsers open 6, and several people may share
# an address. Above the second number a new connection is refused, however busy the others are.
IDLE_LIMIT_PER_ADDRESS, MAX_PER_ADDRESS = 100, 400
# New connections taken in one round; as many slots stay free, for which idle connections are closed.
MAX_ACCEPTED_PER_ROUND = 64
STALLED_AFTER_S = 5  # seconds after which a client that reads nothing of its answer may lose its slot
BACKLOG = 1024
REQUEST_TIMEOUT_S = 30  # seconds that a request may take to arrive
MAX_UNSENT_BYTES = 1 << 20  # bytes that may wait for a reader who asks for more
# bytes read for one send; of more, the allocator keeps some MiB for each thread that sent once
SEND_CHUNK_BYTES = 1 << 16
UNLIMITED_BYTES = 1 << 60
WAITRESS_SETTINGS: dict[str, Any] = {
    "threads": 64,  # none ever waits for a reader: only for a disk, a body being compressed, or others who book
    "backlog": BACKLOG,
    "channel_timeout": 60,  # seconds; an open page asks every 10, on the same connection
    "cleanup_interval": 10,
    "max_request_header_size": 16 << 10,
    "max_request_body_size": 32 << 10,  # read, so that the sender sees that it is refused; bookings may have half
    "outbuf_high_watermark": UNLIMITED_BYTES,  # there a thread would wait for a reader; see ServerChannel.write_soon
    "asyncore_use_poll": True,  # select() ends at 1024 files
    "log_socket_errors": False,  # clients that went away are usual
    "clear_untrusted_proxy_headers": False,  # the booking service checks who sent them, and nothing else reads them
    "ident": None,
}


def build_server_application(www: Path, settings: Settings) -> WSGIApplication:
    """Build what answers requests: under the board's own names, and with passwords if the settings name a file."""
    url, booking_route = settings.booking_policy.url, None
    if url is not None:
        booking_route = (url, BookingConcurrencyLimit(BookingApplication(settings, print_command_message)))
    application: WSGIApplication = StaticSite(www, print_command_message, booking_route, CompatHosts(settings))
    if settings.htpasswd:
        try:
            passwords = PasswordFile(Path(settings.htpasswd), print_command_message)
        except PasswordFileError as error:
            raise CommandError(str(error)) from None
        application = BasicAuth(application, passwords, settings.booking_policy)
    return HostHeaderCheck(application, settings, www)


class HostHeaderCheck:
    """A WSGI application that lets requests through to another if their Host header is a name of the board."""

    def __init__(self, inner: WSGIApplication, settings: Settings, www: Path) -> None:
        """Take the names from the settings and this machine, and those of GPU hosts from www/."""
        self.application = inner
        self.states_folder = www / compat_routes.STATES_FOLDER
        self.host_name = socket.gethostname().lower().rstrip(".")
        self.short_name = self.host_name.partition(".")[0]
        machine_names = {self.host_name, self.short_name, f"{self.short_name}.local"} - {"", ".local"}
        url = urlsplit(settings.url or "").hostname or "localhost"
        board_names = {"localhost", settings.listen[0].lower(), url.rstrip("."), *settings.server_names}
        self.allowed_names = board_names | machine_names
        # once, and in the background, since DNS may take long to fail
        self.lookup_thread = Thread(target=self.look_up_full_name, daemon=True)
        self.lookup_thread.start()

    def look_up_full_name(self) -> None:
        with suppress(OSError, UnicodeError):  # a host name can be one that DNS does not allow
            self.allowed_names = self.allowed_names | {socket.getfqdn(self.host_name).lower().rstrip(".")}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if refusal := self.check_host(environ):
            return static_files.send_static_response(environ, start_response, refusal)
        return self.application(environ, start_response)

    def check_host(self, environ: WSGIEnvironment) -> StaticResponse | None:
        """Return the refusal of a request under another name; X-Forwarded-Host is not read, anybody can send it."""
        hosts = [str(environ.get("HTTP_HOST", ""))]
        if not hosts[0]:
            if environ["SERVER_PROTOCOL"] != "HTTP/1.0":
                return build_static_error_response(400)
            hosts = []  # no browser: each sends a Host
        target = static_files.ABSOLUTE_URL_START.match(environ["REQUEST_URI"])
        if target:  # a name there counts more than the header (RFC 9112, 3.2.2), so that both must be ours
            hosts.append(target[0].partition("//")[2])
        for host in hosts:
            name = parse_host_header(host)
            if name is None:
                return build_static_error_response(400)
            if not self.is_allowed(name, environ):
                return build_static_error_response(421, sentence=UNKNOWN_NAME_MESSAGE)
        return None

    def is_allowed(self, name: str, environ: WSGIEnvironment) -> bool:
        """Return True if it is a name of the board, or on a route of older clients one of a GPU host."""
        if name in self.allowed_names or name.endswith(".localhost") or parse_ip_address(name):
            return True
        if name.startswith(f"{self.short_name}."):  # wait for DNS only where its answer can make a difference
            self.lookup_thread.join(DNS_TIMEOUT_S)
            if name in self.allowed_names:
                return True
        path, query = static_files.parse_static_target(environ)
        if compat_routes.is_compat_route(path, static_files.split_static_path(path), query):
            host, _, domain = name.partition(".")
            # a domain without a dot may be anybody's, as dev is
            names = {name, host} if "." in domain and domain in self.allowed_names else {name}
            with suppress(OSError):
                return any(folder.name.lower() in names for folder in self.states_folder.iterdir())
        return False


class ErrorResponseTask(ErrorTask):
    """Refusals by waitress itself, in our words: its own repeat the request."""

    def execute(self) -> None:
        error: Any = self.request.error  # type: ignore[attr-defined] # the stub takes the request for its error
        response = build_static_error_response(error.code)
        self.status = f"{error.code} {error.reason}"
        self.response_headers = [*static_files.SECURITY_HEADERS, *response.headers]
        self.set_close_on_finish()
        self.content_length = len(response.body)
        self.write(response.body)


class ResponseTask(WSGITask):
    """A response that keeps the connection open where it can."""

    def set_close_on_finish(self) -> None:
        """Close the connection, but not after a 304: it has no length, which waitress takes for an unknown length."""
        headers: dict[str, str] = self.request.headers  # type: ignore[attr-defined] # as above
        kept = self.version == "1.1" and headers.get("CONNECTION", "").lower() != "close"
        if not (kept and self.status.startswith("304")):
            super().set_close_on_finish()


class ServerRequestParser(HTTPRequestParser):
    """Refuse a request whose end two servers could see at different places (request smuggling)."""

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the header; waitress itself takes the Transfer-Encoding and ignores the Content-Length."""
        names = {line.partition(b":")[0].strip().lower() for line in header_plus.split(b"\r\n")[1:]}
        if {b"content-length", b"transfer-encoding"} <= names:
            raise ParsingError("both Content-Length and Transfer-Encoding")
        super().parse_header(header_plus)
        if "TRANSFER_ENCODING" in self.headers:  # left there by waitress in a request that is not HTTP/1.1
            raise ParsingError("Transfer-Encoding needs HTTP/1.1")


class ServerChannel(HTTPChannel):
    """A connection that neither a slow sender nor a slow reader can hold at others' cost."""

    parser_class = ServerRequestParser
    task_class = ResponseTask
    error_task_class = ErrorResponseTask
    request_began_at = 0.0

    def __init__(self, server: BaseWSGIServer, sock: socket.socket, addr: Any, *more: Any, **named: Any) -> None:  # noqa: ANN401 # as waitress gives them
        """Limit what is read at once: waitress would read as much as the system has room for, which may be MiB."""
        super().__init__(server, sock, addr, *more, **named)
        self.sendbuf_len = min(self.sendbuf_len, SEND_CHUNK_BYTES)
        self.client = build_rate_limit_address_key(str(addr[0]))
        self.idle_since = time.monotonic()

    def service(self) -> None:
        """Answer one request; from then on the connection is idle, even if part of another request arrives."""
        super().service()
        self.idle_since = time.monotonic()

    def is_idle(self) -> bool:
        """Return True if no request is being answered, no client is reading an answer, and nothing waits to be read.

        Part of a request does not count: whoever sends it byte by byte holds the connection for nothing.
        """
        if self.requests or (self.total_outbufs_len and time.time() - self.last_activity < STALLED_AFTER_S):
            return False
        if self.socket is None:
            return True
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # b"": the client has closed it
        except OSError:  # mostly EAGAIN: nothing has arrived
            return True

    def received(self, data: bytes) -> bool:
        """Handle what arrived; a request that comes byte by byte is given up after a while."""
        now = time.monotonic()
        if self.request is None:
            self.request_began_at = now
        elif now - self.request_began_at > REQUEST_TIMEOUT_S:
            self.will_close = True
            return False
        return super().received(data)

    def write_soon(self, data: bytes) -> int:
        """Send data; a client that asks for more files and reads none is disconnected."""
        if self.total_outbufs_len > MAX_UNSENT_BYTES:
            raise ClientDisconnected
        return super().write_soon(data)


class WebServer(TcpWSGIServer):
    """A site on a socket that listens: `run` until `stop`; keeps slots for new connections, however many are idle."""

    channel_class = ServerChannel
    active_channels: dict[int, ServerChannel]  # type: ignore[assignment] # the stub takes one channel for all

    def __init__(self, site: WSGIApplication, sock: socket.socket, proxy: str | None = None) -> None:
        """Prepare to serve on a socket that it closes in the end.

        `proxy` is the address of a web server before it, whose connections are those of many people, and not limited.
        """
        for name in ("waitress", "waitress.queue"):  # a queue of requests is usual, too
            logging.getLogger(name).setLevel(logging.ERROR)
        self.socket_map: dict[int, Any] = {}
        self.proxy = build_rate_limit_address_key(proxy) if proxy else None
        self.has_new_connections = False
        self.is_stopped = False
        # without a free file, waitress would try to accept the next connection forever
        max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_CONNECTIONS if max_files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, max_files * 3 // 4)
        self.idle_limit = limit - min(MAX_ACCEPTED_PER_ROUND, limit // 4)
        adjustments = Adjustments(**WAITRESS_SETTINGS, connection_limit=limit, sockets=[sock])
        threads = ThreadedTaskDispatcher()
        threads.set_thread_count(adjustments.threads)
        place = (sock.family, sock.type, sock.proto, sock.getsockname())
        super().__init__(
            site, self.socket_map, _sock=sock, dispatcher=threads, adj=adjustments, sockinfo=place, bind_socket=False
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
        for _ in range(min(MAX_ACCEPTED_PER_ROUND, self.adj.connection_limit - len(self.socket_map))):
            try:
                accepted = self.accept()
                if accepted is None:
                    return
                sock, address = accepted
                client = build_rate_limit_address_key(str(address[0]))
                if client != self.proxy and counts[client] >= MAX_PER_ADDRESS:
                    sock.close()
                    continue
                self.set_socket_options(sock)
            except OSError:  # the client has closed it already, or no file is left to open
                return
            counts[client] += 1
            self.channel_class(self, sock, self.fix_addr(address), self.adj, map=self.socket_map)

    def make_room(self) -> None:
        """Close the oldest idle connections: of addresses with too many, and of all addresses where slots run out.

        Call it between two rounds of the loop: within a round a new connection could get the file number of a closed
        one, and the events that were meant for that.
        """
        excess = len(self.socket_map) - self.idle_limit
        if not self.has_new_connections and excess <= 0:
            return
        self.has_new_connections = False
        counts = self.count_clients()
        if excess <= 0 and max(counts.values(), default=0) <= IDLE_LIMIT_PER_ADDRESS:
            return
        for channel in sorted(self.active_channels.values(), key=lambda channel: channel.idle_since):
            if (excess > 0 or counts[channel.client] > IDLE_LIMIT_PER_ADDRESS) and channel.is_idle():
                channel.handle_close()
                counts[channel.client] -= 1
                excess -= 1

    def run(self) -> None:
        """Serve until it is stopped, then release everything."""
        try:
            while not self.is_stopped:
                self.make_room()
                timeout = 1 if self.in_connection_overflow else 10
                wasyncore.loop(timeout=timeout, use_poll=True, map=self.socket_map, count=1)
        finally:
            self.is_stopped = True
            self.task_dispatcher.shutdown(timeout=2)
            for channel in list(self.active_channels.values()):
                channel.handle_close()
            self.close()

    def stop(self) -> None:
        """End `run`, from another thread or a signal handler; responses that are being sent are cut off."""
        if not self.is_stopped:
            self.is_stopped = True
            with suppress(OSError):  # the loop may have seen it already, and closed the trigger
                self.pull_trigger()  # takes no lock, so that a signal may come at any time


def open_listening_socket(address: str, port: int) -> socket.socket:
    """Open a socket that listens there, or raise OSError."""
    failure: OSError | None = None
    for family, kind, _, _, where in socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        try:
            with ExitStack() as stack:
                sock = stack.enter_context(socket.socket(family, kind))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(where)
                sock.listen(BACKLOG)  # two may bind the same port, but only one may listen
                stack.pop_all()
                return sock
        except OSError as error:
            failure = failure or error
    raise failure or OSError("no such address")


def open_free_server_port(listen: tuple[str, int], tries: int = 1) -> socket.socket:
    """Listen on that port or on one of the next, up to a number of tries."""
    address, first = listen
    for port in range(first, min(first + tries, 65536)):
        try:
            sock = open_listening_socket(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or tries == 1:
                raise CommandError(describe_server_listen_error(error, address, port)) from None
        else:
            if port != first:
                print_command_message(f"port {first} is taken: using {port}")
            return sock
    raise CommandError(f"no port from {first} to {port} is free on {address}: choose another with --listen")


def is_server_local_only(sock: socket.socket) -> bool:
    return ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def build_server_url(sock: socket.socket) -> str:
    """Return the URL of the board, with the name of this machine if it listens on all addresses."""
    address, port = sock.getsockname()[:2]
    host = socket.gethostname() if ip_address(address.partition("%")[0]).is_unspecified else address
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def list_server_start_messages(sock: socket.socket, settings: Settings, is_terminal: bool) -> list[str]:
    """Say where the board is and who can read it, if somebody watches; warn if passwords cross the network."""
    messages = [f"the board is at {build_server_url(sock)} until Ctrl-C"] if is_terminal else []
    if is_server_local_only(sock):
        return messages
    if is_terminal:
        messages.append(f"everybody on the network {'with a password ' if settings.htpasswd else ''}can read it")
        messages += list_server_booking_warnings(sock, settings)
    return [*messages, CLEARTEXT_WARNING] if settings.htpasswd else messages


def list_server_booking_warnings(sock: socket.socket, settings: Settings) -> list[str]:
    policy = settings.booking_policy
    is_open = policy.url is not None and policy.is_open and not settings.htpasswd and not is_server_local_only(sock)
    return (
        ["anybody who can reach it can book under any name; to prevent that: GPUBOARD_BOOK_OPEN=no"] if is_open else []
    )


def describe_server_listen_error(error: OSError, address: str, port: int) -> str:
    place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is taken by another program: {CHOOSE_ADDRESS_HINT}"
    if error.errno == errno.EACCES:
        return f"only root may listen on port {port}: choose one from 1024 on with --listen or GPUBOARD_LISTEN"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{address} is not an address of this machine: {CHOOSE_ADDRESS_HINT}"
    return f"cannot listen on {place}: {error.strerror or error}; {CHOOSE_ADDRESS_HINT}"
