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

from site_builder.remote.ssh_config import HostKey, SshError, Way, by_authority, known_keys, last_line, way_to
from site_builder.remote.ssh_keys import TIMEOUTS, left, log_in

if TYPE_CHECKING:
    import paramiko  # noqa: TID251 for mypy

__all__ = ["Connection", "HostKey", "Result", "SshError", "connect"]

LIMIT = 20.0
RUN_LIMIT = 30.0
MOST_OUT = 16 * 1024 * 1024
MOST_ERR = 64 * 1024
PIECE = 32 * 1024
MOST_JUMPS = 8
# Behind the exit of a command nobody waits longer than this for one of its children that holds its output.
LATE = 1.0
# sshd turns away whoever comes beyond its MaxStartups; the crowd must not come back all at once.
TRIES = 8
PAUSE = 0.3
LONGEST_PAUSE = 3.0
# One kind of key signs in several ways.
SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")}


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: bytes
    err: bytes

    @property
    def words(self) -> str:
        """The last line that it said on stderr, or else on stdout, fit to be shown."""
        return last_line((self.err if self.err.strip() else self.out).decode(errors="replace"))


class TurnedAway(Exception):
    """The connection ended before it began: too many at once, or sshd starts just now."""


class Connection:
    """An open connection to a host, and those to the hosts that it jumps over."""

    def __init__(self, way: Way, transport: paramiko.Transport, before: tuple[Line, ...]) -> None:
        """Keep it."""
        self.way = way
        self.transport = transport
        self.before = before

    def __enter__(self) -> Connection:
        """As it is."""
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End it, from any thread; whoever waits for a command hears that it was cut."""
        self.transport.close()
        for line in self.before:
            line.close()

    @property
    def host_key(self) -> HostKey:
        """The key by which the host proved that it is itself."""
        key = self.transport.get_remote_server_key()
        return HostKey(key.get_name(), b64encode(key.asbytes()).decode())

    def run(self, command: str, stdin: bytes = b"", limit: float = RUN_LIMIT, most: int = MOST_OUT) -> Result:
        """Run a command of the host's own shell; of what it says at most so many bytes are taken."""
        import paramiko  # noqa: PLC0415, TID251 slow to import

        deadline = time.monotonic() + limit
        try:
            channel = self.transport.open_session(timeout=limit)
            with channel:
                channel.settimeout(limit)
                channel.exec_command(command)
                send(channel, stdin, deadline)
                return heard(channel, deadline, most)
        except TIMEOUTS:
            message = f"{self.way.shown} did not do it within {limit:.0f} s"
        except TooMuch:
            message = f"{self.way.shown} says more than the {most} bytes that are read"
        except (paramiko.SSHException, OSError, EOFError) as error:
            message = f"the connection to {self.way.shown} was cut ({last_line(str(error) or type(error).__name__)})"
        raise SshError(message)


class TooMuch(Exception):
    """More output than anybody reads."""


class Line(NamedTuple):
    """What must be closed behind a connection: one to a jump host, or a ProxyCommand."""

    jump: Connection | None = None
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


def send(channel: paramiko.Channel, stdin: bytes, deadline: float) -> None:
    """Give it all that it reads; a command that ends before it has read all is no failure of ours."""
    view = memoryview(stdin)
    with suppress(BrokenPipeError, ConnectionError):
        while view:
            channel.settimeout(left(deadline))
            try:
                view = view[channel.send(bytes(view[:PIECE])) :]
            except TIMEOUTS:
                raise
            except OSError:  # it was closed on their side
                return
        channel.shutdown_write()


def heard(channel: paramiko.Channel, deadline: float, most: int) -> Result:
    """All that it says until it ends."""
    out, err = bytearray(), bytearray()
    last = deadline
    while True:
        if channel.recv_ready():
            out += channel.recv(PIECE)
            if len(out) > most:
                raise TooMuch
        elif channel.recv_stderr_ready():
            piece = channel.recv_stderr(PIECE)
            err += piece[: MOST_ERR - len(err)]
        elif channel.eof_received or channel.closed:
            break
        else:
            if channel.exit_status_ready():
                last = min(last, time.monotonic() + LATE)
            if time.monotonic() > last and last < deadline:
                break
            select.select([channel], [], [], min(left(deadline), 0.5))
        left(deadline)
    if not channel.status_event.wait(left(deadline)):
        raise TimeoutError
    if channel.exit_status < 0 and not (channel.transport and channel.transport.is_active()):
        message = "it ended before the command did"
        raise EOFError(message)
    return Result(channel.exit_status, bytes(out), bytes(err))


def connect(host: str, limit: float = LIMIT, config: Path | None = None) -> Connection:
    """A connection to user@host, a name of ssh's configuration or ssh://user@host:port, within so many seconds."""
    deadline = time.monotonic() + limit
    log = logging.getLogger("paramiko")
    if not log.handlers:
        log.addHandler(logging.NullHandler())  # or it prints tracebacks
    way = way_to(host, config)
    try:
        return again_and_again(way, deadline, MOST_JUMPS)
    except TIMEOUTS:
        message = f"{way.shown} does not answer within {limit:.0f} s; find out why this does not work: ssh {way.name}"
        raise SshError(message) from None


def again_and_again(way: Way, deadline: float, jumps: int) -> Connection:
    """Where sshd turns us away at the door, come back a little later, as often as time allows."""
    for number in range(TRIES):
        try:
            return once(way, deadline, jumps)
        except TurnedAway as why:
            pause = min(PAUSE * 2**number, LONGEST_PAUSE) * random.uniform(0.5, 1.5)  # noqa: S311 no secret
            if number == TRIES - 1 or time.monotonic() + pause > deadline:
                what = f"{way.shown} ends each connection at its beginning ({why})"
                message = f"{what}: is that an sshd, and are its MaxStartups enough?"
                raise SshError(message) from None
            time.sleep(pause)
    raise AssertionError


def once(way: Way, deadline: float, jumps: int) -> Connection:
    """One try: a line, the host's key, our own."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    keys = known_keys(way)
    sock, before = line_to(way, deadline, jumps)
    transport = None
    try:
        transport = paramiko.Transport(sock)
        shake_hands(transport, way, keys, deadline)
        check_host_key(transport, way, keys)
        log_in(transport, way, deadline)
    except BaseException:
        if transport:
            transport.close()
        with suppress(OSError):
            sock.close()
        for line in before:
            line.close()
        raise
    return Connection(way, transport, before)


def line_to(way: Way, deadline: float, jumps: int) -> tuple[socket.socket | paramiko.Channel, tuple[Line, ...]]:
    """What carries the bytes: a socket, a channel of a jump host, or a ProxyCommand."""
    if way.jumps:
        return over_jump(way, deadline, jumps)
    if way.command:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {way.command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return ours, (Line(process=process),)
    try:
        return socket.create_connection((way.address, way.port), left(deadline)), ()
    except TIMEOUTS:
        raise TimeoutError from None
    except socket.gaierror as error:
        message = f"{way.shown} cannot be found: {way.address}: {error.strerror}"
    except ConnectionResetError:
        raise TurnedAway("connection reset") from None
    except OSError as error:
        message = f"{way.shown} cannot be reached at {way.address} port {way.port}: {error.strerror or error}"
    raise SshError(message)


def over_jump(way: Way, deadline: float, jumps: int) -> tuple[paramiko.Channel, tuple[Line, ...]]:
    """By the last jump host, which is reached by those before it."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    if not jumps:
        message = f"{way.shown} is behind more than {MOST_JUMPS} jump hosts; does ssh's configuration go in a circle?"
        raise SshError(message)
    *first, last = way.jumps
    name = last if last.startswith("ssh://") or ":" not in last else f"ssh://{last}"
    jump = way_to(name, way.config)
    if first:
        jump = replace(jump, jumps=tuple(first), command=None)
    connection = again_and_again(jump, deadline, jumps - 1)
    try:
        channel = connection.transport.open_channel(
            "direct-tcpip", (way.address, way.port), ("127.0.0.1", 0), timeout=left(deadline)
        )
    except (paramiko.SSHException, EOFError) as error:
        connection.close()
        message = f"{way.shown} cannot be reached from {jump.shown}: {last_line(str(error))}"
        raise SshError(message) from None
    return channel, (Line(jump=connection),)


def shake_hands(transport: paramiko.Transport, way: Way, keys: list[HostKey], deadline: float) -> None:
    """Agree on how to speak; the kinds of key that are known come first."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    options = transport.get_security_options()
    kinds = {kind for key in keys for kind in SIGNATURES.get(key.kind, (key.kind,))}
    options.key_types = tuple(sorted(options.key_types, key=lambda kind: kind not in kinds))
    transport.banner_timeout = transport.handshake_timeout = left(deadline)
    try:
        transport.start_client(timeout=left(deadline))
    except (EOFError, ConnectionError) as error:
        raise TurnedAway(last_line(str(error) or "it was closed")) from None
    except paramiko.SSHException as error:
        left(deadline)  # time that is over is the reason
        if "banner" in str(error):
            raise TurnedAway("no greeting") from None
        message = f"{way.shown} and we cannot agree on how to speak: {last_line(str(error))}"
        raise SshError(message) from None
    left(deadline)


def check_host_key(transport: paramiko.Transport, way: Way, keys: list[HostKey]) -> None:
    """It must be one that known_hosts has: none is ever accepted by itself."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    try:
        key = transport.get_remote_server_key()
    except paramiko.SSHException:
        raise TimeoutError from None
    offered = HostKey(key.get_name(), b64encode(key.asbytes()).decode())
    if offered in keys:
        return
    raise SshError(stranger(way, bool(keys)))


def stranger(way: Way, known: bool) -> str:
    """The sentence on a host whose key is not the one that is known, or whose key nobody knows."""
    if known:
        what = f"{way.shown} has another key than known_hosts says: it was installed anew, or is not itself"
        name = way.alias or (way.address if way.port == 22 else f"[{way.address}]:{way.port}")
        return f"{what}; if you know that it is, ssh-keygen -R '{name}' and log in there once by hand: ssh {way.name}"
    if by_authority(way):
        return (
            f"{way.shown} is known by a certificate alone, which is not understood here: put its key into known_hosts"
        )
    return f"the key of {way.shown} is not known here; log in there once by hand, to see and accept it: ssh {way.name}"
