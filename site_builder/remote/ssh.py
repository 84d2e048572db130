"""A connection to a host by ssh, as the person's own ssh would make it, with a time limit on everything.

Nothing is asked: a host that wants a password, or whose key is not known, is refused with the sentence that helps.
"""

from __future__ import annotations

import logging
import random
import select
import socket
import subprocess
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from site_builder.remote.ssh_config import (
    TIMEOUT_ERRORS,
    HostKey,
    SshError,
    SshHostConfig,
    extract_last_line,
    has_certificate_authority,
    log_in_by_key,
    read_known_host_keys,
    require_time_left,
    resolve_ssh_host,
)

if TYPE_CHECKING:
    import paramiko  # noqa: TID251 for mypy

CONNECT_TIMEOUT_S = 20.0
RUN_TIMEOUT_S = 30.0
MAX_STDOUT_BYTES = 16 * 1024 * 1024
MAX_STDERR_BYTES = 64 * 1024
CHUNK_BYTES = 32 * 1024
MAX_JUMPS = 8
# Behind the exit of a command nobody waits longer than this for one of its children that holds its output.
LATE_OUTPUT_GRACE_S = 1.0
# sshd turns away whoever comes beyond its MaxStartups; the crowd must not come back all at once.
MAX_CONNECT_ATTEMPTS = 8
FIRST_RETRY_DELAY_S = 0.3
MAX_RETRY_DELAY_S = 3.0
# One kind of key signs in several ways.
SIGNATURE_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")}


class RemoteCommandResult(NamedTuple):
    """What a command did."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def last_line(self) -> str:
        """The last line that it said on stderr, or else on stdout, fit to be shown."""
        return extract_last_line((self.stderr if self.stderr.strip() else self.stdout).decode(errors="replace"))


class ConnectionDroppedError(Exception):
    """The connection ended before it began: too many at once, or sshd starts just now."""


class SshConnection:
    """An open connection to a host, and those to the hosts that it jumps over."""

    def __init__(self, way: SshHostConfig, transport: paramiko.Transport, before: tuple[SshProxy, ...]) -> None:
        """Keep it."""
        self.host = way
        self.transport = transport
        self.proxies = before

    def __enter__(self) -> SshConnection:
        """As it is."""
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End it, from any thread; whoever waits for a command hears that it was cut."""
        self.transport.close()
        for line in self.proxies:
            line.close()

    @property
    def host_key(self) -> HostKey:
        """The key by which the host proved that it is itself."""
        key = self.transport.get_remote_server_key()
        return HostKey(key.get_name(), b64encode(key.asbytes()).decode())

    def run(
        self, command: str, stdin: bytes = b"", limit: float = RUN_TIMEOUT_S, most: int = MAX_STDOUT_BYTES
    ) -> RemoteCommandResult:
        """Run a command of the host's own shell; of what it says at most so many bytes are taken."""
        import paramiko  # noqa: PLC0415, TID251 slow to import

        deadline = time.monotonic() + limit
        try:
            channel = self.transport.open_session(timeout=limit)
            with channel:
                channel.settimeout(limit)
                channel.exec_command(command)
                send_stdin(channel, stdin, deadline)
                return read_command_result(channel, deadline, most)
        except TIMEOUT_ERRORS:
            message = f"{self.host.name} did not do it within {limit:.0f} s"
        except OutputTooLargeError:
            message = f"{self.host.name} says more than the {most} bytes that are read"
        except (paramiko.SSHException, OSError, EOFError) as error:
            message = (
                f"the connection to {self.host.name} was cut ({extract_last_line(str(error) or type(error).__name__)})"
            )
        raise SshError(message)


class OutputTooLargeError(Exception):
    """More output than anybody reads."""


class SshProxy(NamedTuple):
    """What must be closed behind a connection: one to a jump host, or a ProxyCommand."""

    jump: SshConnection | None = None
    process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End it."""
        if self.jump:
            self.jump.close()
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def send_stdin(channel: paramiko.Channel, stdin: bytes, deadline: float) -> None:
    """Give it all that it reads; a command that ends before it has read all is no failure of ours."""
    view = memoryview(stdin)
    with suppress(BrokenPipeError, ConnectionError):
        while view:
            channel.settimeout(require_time_left(deadline))
            try:
                view = view[channel.send(bytes(view[:CHUNK_BYTES])) :]
            except TIMEOUT_ERRORS:
                raise
            except OSError:  # it was closed on their side
                return
        channel.shutdown_write()


def read_command_result(channel: paramiko.Channel, deadline: float, most: int) -> RemoteCommandResult:
    """All that it says until it ends."""
    out, err = bytearray(), bytearray()
    last = deadline
    while True:
        if channel.recv_ready():
            out += channel.recv(CHUNK_BYTES)
            if len(out) > most:
                raise OutputTooLargeError
        elif channel.recv_stderr_ready():
            piece = channel.recv_stderr(CHUNK_BYTES)
            err += piece[: MAX_STDERR_BYTES - len(err)]
        elif channel.eof_received or channel.closed:
            break
        else:
            if channel.exit_status_ready():
                last = min(last, time.monotonic() + LATE_OUTPUT_GRACE_S)
            if time.monotonic() > last and last < deadline:
                break
            select.select([channel], [], [], min(require_time_left(deadline), 0.5))
        require_time_left(deadline)
    if not channel.status_event.wait(require_time_left(deadline)):
        raise TimeoutError
    if channel.exit_status < 0 and not (channel.transport and channel.transport.is_active()):
        message = "it ended before the command did"
        raise EOFError(message)
    return RemoteCommandResult(channel.exit_status, bytes(out), bytes(err))


def connect_ssh(host: str, limit: float = CONNECT_TIMEOUT_S, config: Path | None = None) -> SshConnection:
    """A connection to user@host, a name of ssh's configuration or ssh://user@host:port, within so many seconds."""
    deadline = time.monotonic() + limit
    log = logging.getLogger("paramiko")
    if not log.handlers:
        log.addHandler(logging.NullHandler())  # or it prints tracebacks
    way = resolve_ssh_host(host, config)
    try:
        return connect_with_retries(way, deadline, MAX_JUMPS)
    except TIMEOUT_ERRORS:
        message = f"{way.name} does not answer within {limit:.0f} s; find out why this does not work: ssh {way.name}"
        raise SshError(message) from None


def connect_with_retries(way: SshHostConfig, deadline: float, jumps: int) -> SshConnection:
    """Where sshd turns us away at the door, come back a little later, as often as time allows."""
    for number in range(MAX_CONNECT_ATTEMPTS):
        try:
            return connect_once(way, deadline, jumps)
        except ConnectionDroppedError as why:
            pause = min(FIRST_RETRY_DELAY_S * 2**number, MAX_RETRY_DELAY_S) * random.uniform(0.5, 1.5)  # noqa: S311 no secret
            if number == MAX_CONNECT_ATTEMPTS - 1 or time.monotonic() + pause > deadline:
                what = f"{way.name} ends each connection at its beginning ({why})"
                message = f"{what}: is that an sshd, and are its MaxStartups enough?"
                raise SshError(message) from None
            time.sleep(pause)
    raise AssertionError


def connect_once(way: SshHostConfig, deadline: float, jumps: int) -> SshConnection:
    """One try: a line, the host's key, our own."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    keys = read_known_host_keys(way)
    sock, before = open_ssh_socket(way, deadline, jumps)
    transport = None
    try:
        transport = paramiko.Transport(sock)
        negotiate_transport(transport, way, keys, deadline)
        check_host_key(transport, way, keys)
        log_in_by_key(transport, way, deadline)
    except BaseException:
        if transport:
            transport.close()
        with suppress(OSError):
            sock.close()
        for line in before:
            line.close()
        raise
    return SshConnection(way, transport, before)


def open_ssh_socket(
    way: SshHostConfig, deadline: float, jumps: int
) -> tuple[socket.socket | paramiko.Channel, tuple[SshProxy, ...]]:
    """What carries the bytes: a socket, a channel of a jump host, or a ProxyCommand."""
    if way.jumps:
        return open_jump_channel(way, deadline, jumps)
    if way.proxy_command:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {way.proxy_command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return ours, (SshProxy(process=process),)
    try:
        return socket.create_connection((way.address, way.port), require_time_left(deadline)), ()
    except TIMEOUT_ERRORS:
        raise TimeoutError from None
    except socket.gaierror as error:
        message = f"{way.name} cannot be found: {way.address}: {error.strerror}"
    except ConnectionResetError:
        raise ConnectionDroppedError("connection reset") from None
    except OSError as error:
        message = f"{way.name} cannot be reached at {way.address} port {way.port}: {error.strerror or error}"
    raise SshError(message)


def open_jump_channel(way: SshHostConfig, deadline: float, jumps: int) -> tuple[paramiko.Channel, tuple[SshProxy, ...]]:
    """By the last jump host, which is reached by those before it."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    if not jumps:
        message = f"{way.name} is behind more than {MAX_JUMPS} jump hosts; does ssh's configuration go in a circle?"
        raise SshError(message)
    *first, last = way.jumps
    name = last if last.startswith("ssh://") or ":" not in last else f"ssh://{last}"
    jump = resolve_ssh_host(name, way.config_file)
    if first:
        jump = replace(jump, jumps=tuple(first), proxy_command=None)
    connection = connect_with_retries(jump, deadline, jumps - 1)
    try:
        channel = connection.transport.open_channel(
            "direct-tcpip", (way.address, way.port), ("127.0.0.1", 0), timeout=require_time_left(deadline)
        )
    except (paramiko.SSHException, EOFError) as error:
        connection.close()
        message = f"{way.name} cannot be reached from {jump.name}: {extract_last_line(str(error))}"
        raise SshError(message) from None
    return channel, (SshProxy(jump=connection),)


def negotiate_transport(
    transport: paramiko.Transport, way: SshHostConfig, keys: list[HostKey], deadline: float
) -> None:
    """Agree on how to speak; the kinds of key that are known come first."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    options = transport.get_security_options()
    kinds = {kind for key in keys for kind in SIGNATURE_ALGORITHMS.get(key.key_type, (key.key_type,))}
    options.key_types = tuple(sorted(options.key_types, key=lambda kind: kind not in kinds))
    transport.banner_timeout = transport.handshake_timeout = require_time_left(deadline)
    try:
        transport.start_client(timeout=require_time_left(deadline))
    except (EOFError, ConnectionError) as error:
        raise ConnectionDroppedError(extract_last_line(str(error) or "it was closed")) from None
    except paramiko.SSHException as error:
        require_time_left(deadline)  # time that is over is the reason
        if "banner" in str(error):
            raise ConnectionDroppedError("no greeting") from None
        message = f"{way.name} and we cannot agree on how to speak: {extract_last_line(str(error))}"
        raise SshError(message) from None
    require_time_left(deadline)


def check_host_key(transport: paramiko.Transport, way: SshHostConfig, keys: list[HostKey]) -> None:
    """It must be one that known_hosts has: none is ever accepted by itself."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    try:
        key = transport.get_remote_server_key()
    except paramiko.SSHException:
        raise TimeoutError from None
    offered = HostKey(key.get_name(), b64encode(key.asbytes()).decode())
    if offered in keys:
        return
    raise SshError(explain_untrusted_key(way, bool(keys)))


def explain_untrusted_key(way: SshHostConfig, known: bool) -> str:
    """The sentence on a host whose key is not the one that is known, or whose key nobody knows."""
    if known:
        what = f"{way.name} has another key than known_hosts says: it was installed anew, or is not itself"
        name = way.host_key_alias or (way.address if way.port == 22 else f"[{way.address}]:{way.port}")
        return f"{what}; if you know that it is, ssh-keygen -R '{name}' and log in there once by hand: ssh {way.name}"
    if has_certificate_authority(way):
        return f"{way.name} is known by a certificate alone, which is not understood here: put its key into known_hosts"
    return f"the key of {way.name} is not known here; log in there once by hand, to see and accept it: ssh {way.name}"
