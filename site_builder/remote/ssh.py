"""A connection to a host by ssh, as the person's own ssh would make it, with a time limit on everything.

Nothing is asked: a host that wants a password, or whose key is not known, is refused with the sentence that helps.
"""

from __future__ import annotations

import logging
import os
import random
import select
import socket
import subprocess
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import paramiko  # noqa: TID251

from site_builder.core.subprocesses import end_process, extract_last_line, require_time_left
from site_builder.remote import ssh_config
from site_builder.remote.ssh_config import TIMEOUT_ERRORS, HostKey, SshError, SshHostConfig, resolve_ssh_host

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
    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def last_line(self) -> str:
        """Return the last line of stderr, or else of stdout, cleaned for display."""
        return extract_last_line((self.stderr if self.stderr.strip() else self.stdout).decode(errors="replace"))


class SshConnectionDroppedError(Exception):
    """The connection ended before it began: too many at once, or sshd starts just now."""


class SshConnection(AbstractContextManager["SshConnection"]):
    def __init__(self, host: SshHostConfig, transport: paramiko.Transport, resources: ExitStack) -> None:
        self.host = host
        self.transport = transport
        self.resources = resources  # the transport itself, and what it goes through

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close it from any thread; a command that is waited for fails."""
        with suppress(EOFError, OSError, paramiko.SSHException):  # the jump host that it goes through may be gone first
            self.resources.close()

    @property
    def host_key(self) -> HostKey:
        return read_offered_ssh_key(self.transport)

    def run(
        self, command: str, stdin: bytes = b"", timeout_s: float = RUN_TIMEOUT_S, max_bytes: int = MAX_STDOUT_BYTES
    ) -> RemoteCommandResult:
        """Run a command in the login shell of the host."""
        deadline = time.monotonic() + timeout_s
        try:
            with self.transport.open_session(timeout=timeout_s) as channel:
                channel.settimeout(timeout_s)
                channel.exec_command(command)
                send_stdin(channel, stdin, deadline)
                out, err = bytearray(), bytearray()
                give_up_at = deadline
                while True:
                    if channel.recv_ready():
                        out += channel.recv(CHUNK_BYTES)
                        if len(out) > max_bytes:
                            raise SshError(f"{self.host.name} printed more than {max_bytes} bytes")
                    elif channel.recv_stderr_ready():
                        chunk = channel.recv_stderr(CHUNK_BYTES)
                        err += chunk[: MAX_STDERR_BYTES - len(err)]
                    elif channel.eof_received or channel.closed:
                        break
                    else:
                        if channel.exit_status_ready():
                            give_up_at = min(give_up_at, time.monotonic() + LATE_OUTPUT_GRACE_S)
                        if time.monotonic() > give_up_at and give_up_at < deadline:
                            break
                        select.select([channel], [], [], min(require_time_left(deadline), 0.5))
                    require_time_left(deadline)
                if not channel.status_event.wait(require_time_left(deadline)):
                    raise TimeoutError
                if channel.exit_status < 0 and not (channel.transport and channel.transport.is_active()):
                    raise EOFError("it ended before the command finished")
                return RemoteCommandResult(channel.exit_status, bytes(out), bytes(err))
        except TIMEOUT_ERRORS:
            message = f"{self.host.name} did not finish within {timeout_s:.0f} s"
        except (paramiko.SSHException, OSError, EOFError) as error:
            reason = extract_last_line(str(error) or type(error).__name__)
            message = f"the connection to {self.host.name} was lost ({reason})"
        raise SshError(message)


def send_stdin(channel: paramiko.Channel, stdin: bytes, deadline: float) -> None:
    """Send all input; a command that ends before it has read everything has not failed."""
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


def connect_ssh(host: str, timeout_s: float = CONNECT_TIMEOUT_S, config: Path | None = None) -> SshConnection:
    """Connect to user@host, a name in ssh's configuration or ssh://user@host:port."""
    deadline = time.monotonic() + timeout_s
    log = logging.getLogger("paramiko")
    if not log.handlers:
        log.addHandler(logging.NullHandler())  # or it prints tracebacks
    host_config = resolve_ssh_host(host, config)
    try:
        return connect_ssh_with_retries(host_config, deadline, MAX_JUMPS)
    except TIMEOUT_ERRORS:
        name = host_config.name
        message = f"{name} does not answer within {timeout_s:.0f} s; find out why this fails: ssh {name}"
        raise SshError(message) from None


def connect_ssh_with_retries(host: SshHostConfig, deadline: float, jumps: int) -> SshConnection:
    """Connect; if sshd drops the connection at once, retry a little later while there is time."""
    for attempt in range(MAX_CONNECT_ATTEMPTS):
        try:
            return connect_ssh_once(host, deadline, jumps)
        except SshConnectionDroppedError as error:
            pause = min(FIRST_RETRY_DELAY_S * 2**attempt, MAX_RETRY_DELAY_S) * random.uniform(0.5, 1.5)  # noqa: S311
            if attempt == MAX_CONNECT_ATTEMPTS - 1 or time.monotonic() + pause > deadline:
                problem = f"{host.name} closes every connection at once ({error})"
                raise SshError(f"{problem}: check that it is an sshd, and its MaxStartups") from None
            time.sleep(pause)
    raise AssertionError


def connect_ssh_once(host: SshHostConfig, deadline: float, jumps: int) -> SshConnection:
    keys = ssh_config.read_known_host_keys(host)
    with ExitStack() as resources:
        sock = open_ssh_socket(host, deadline, jumps, resources)
        resources.callback(sock.close)
        transport = paramiko.Transport(sock)
        resources.callback(transport.close)
        # agree on algorithms, with those of known keys first
        options = transport.get_security_options()
        kinds = {kind for key in keys for kind in SIGNATURE_ALGORITHMS.get(key.key_type, (key.key_type,))}
        options.key_types = tuple(sorted(options.key_types, key=lambda kind: kind not in kinds))
        transport.banner_timeout = transport.handshake_timeout = require_time_left(deadline)
        try:
            transport.start_client(timeout=require_time_left(deadline))
        except (EOFError, ConnectionError) as error:
            raise SshConnectionDroppedError(extract_last_line(str(error) or "it was closed")) from None
        except paramiko.SSHException as error:
            require_time_left(deadline)  # time that is over is the reason
            if "banner" in str(error):
                raise SshConnectionDroppedError("no greeting") from None
            reason = extract_last_line(str(error))
            raise SshError(f"{host.name} and this machine have no common ssh algorithm: {reason}") from None
        require_time_left(deadline)
        check_host_key(transport, host, keys)
        log_in_by_key(transport, host, deadline)
        return SshConnection(host, transport, resources.pop_all())


def open_ssh_socket(
    host: SshHostConfig, deadline: float, jumps: int, resources: ExitStack
) -> socket.socket | paramiko.Channel:
    """Open a way to the host: through a jump host or a ProxyCommand, which `resources` close, or directly."""
    if host.jumps:  # through the last jump host, which is reached through those before it
        if not jumps:
            problem = f"{host.name} is behind more than {MAX_JUMPS} jump hosts"
            raise SshError(f"{problem}; check the ssh configuration for a loop")
        *earlier_jumps, last_jump = host.jumps
        name = last_jump if last_jump.startswith("ssh://") or ":" not in last_jump else f"ssh://{last_jump}"
        jump = resolve_ssh_host(name, host.config_file)
        if earlier_jumps:
            jump = replace(jump, jumps=tuple(earlier_jumps), proxy_command=None)
        connection = resources.enter_context(connect_ssh_with_retries(jump, deadline, jumps - 1))
        try:
            return connection.transport.open_channel(
                "direct-tcpip", (host.address, host.port), ("127.0.0.1", 0), timeout=require_time_left(deadline)
            )
        except (paramiko.SSHException, EOFError) as error:
            raise SshError(f"{host.name} cannot be reached from {jump.name}: {extract_last_line(str(error))}") from None
    if host.proxy_command:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {host.proxy_command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        resources.callback(end_process, process, 2)
        return ours
    try:
        return socket.create_connection((host.address, host.port), require_time_left(deadline))
    except TIMEOUT_ERRORS:
        raise TimeoutError from None
    except socket.gaierror as error:
        message = f"{host.name} cannot be found: {host.address}: {error.strerror}"
    except ConnectionResetError:
        raise SshConnectionDroppedError("connection reset") from None
    except OSError as error:
        message = f"{host.name} cannot be reached at {host.address} port {host.port}: {error.strerror or error}"
    raise SshError(message)


def read_offered_ssh_key(transport: paramiko.Transport) -> HostKey:
    key = transport.get_remote_server_key()
    return HostKey(key.get_name(), b64encode(key.asbytes()).decode())


def check_host_key(transport: paramiko.Transport, host: SshHostConfig, keys: list[HostKey]) -> None:
    """Refuse a host whose key is not in known_hosts: none is ever accepted by itself."""
    try:
        if read_offered_ssh_key(transport) in keys:
            return
    except paramiko.SSHException:
        raise TimeoutError from None
    if keys:
        problem = f"{host.name} has a different key than in known_hosts: it was reinstalled, or is another machine"
        command = f"ssh-keygen -R '{ssh_config.list_known_hosts_names(host)[0]}'"
        message = f"{problem}; if it was reinstalled, run {command} and log in there once by hand: ssh {host.name}"
    elif ssh_config.has_known_hosts_authority(host):
        problem = f"{host.name} has only a certificate in known_hosts, which is not supported here"
        message = f"{problem}: put its key into known_hosts"
    else:
        problem = f"the host key of {host.name} is not known here"
        message = f"{problem}; log in there once by hand to check and accept it: ssh {host.name}"
    raise SshError(message)


def log_in_by_key(transport: paramiko.Transport, host: SshHostConfig, deadline: float) -> None:
    """Log in with the first key that the host accepts."""
    locked_files: list[Path] = []
    tried = 0
    with open_ssh_agent_keys(host, deadline) as agent_keys:
        for key in iterate_ssh_login_keys(host, agent_keys, locked_files):
            tried += 1
            transport.auth_timeout = require_time_left(deadline)
            try:
                other_methods = transport.auth_publickey(host.user, key)
                if not other_methods:
                    return
            except paramiko.BadAuthenticationType as error:
                other_methods = error.allowed_types
            except (paramiko.SSHException, EOFError, OSError) as error:
                if not transport.is_active():
                    reason = extract_last_line(str(error))
                    problem = f"{host.name} refused {tried} keys and ended the connection ({reason})"
                    message = f"{problem}; set the right key in the ssh configuration, with IdentitiesOnly"
                    raise SshError(message) from None
                require_time_left(deadline)
                continue
            methods = extract_last_line(" or ".join(sorted(other_methods)))
            raise SshError(f"{host.name} accepts no keys from {host.user}, only: {methods}; allow keys in its sshd")
    if locked_files:
        file = locked_files[0]
        raise SshError(f"{host.name} may accept only {file}, which has a passphrase: ssh-add {file}")
    keys = "your key" if tried == 1 else f"any of your {tried} keys"
    problem = f"{host.name} does not accept {keys}" if tried else f"you have no ssh key for {host.name}"
    raise SshError(f"{problem}, as {host.user}: ssh-copy-id {host.name} (run ssh-keygen first if you have no key)")


def iterate_ssh_login_keys(
    host: SshHostConfig, agent_keys: tuple[paramiko.AgentKey, ...], locked_files: list[Path]
) -> Iterator[paramiko.PKey]:
    """Yield keys in the order of ssh: those of the agent that the configuration names, its others, then files."""
    named = {blob: file for file in host.identities for blob in [read_public_half_of_ssh_key(file)] if blob}
    yield from (key for key in agent_keys if key.asbytes() in named)
    if not host.is_identities_only:
        yield from (key for key in agent_keys if key.asbytes() not in named)
    tried_keys = {key.asbytes() for key in agent_keys}
    for file in host.identities:
        if file.suffix != ".pub" and read_public_half_of_ssh_key(file) not in tried_keys:
            try:
                key = paramiko.PKey.from_path(file)
            except (paramiko.PasswordRequiredException, TypeError):  # as cryptography tells of a password
                locked_files.append(file)
            except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, OSError, ValueError):
                pass
            else:
                if key.asbytes() not in tried_keys:
                    yield key


def read_public_half_of_ssh_key(file: Path) -> bytes | None:
    beside = file if file.suffix == ".pub" else file.with_name(f"{file.name}.pub")
    with suppress(OSError, ValueError, IndexError):
        return b64decode(beside.read_text().split()[1])
    return None


@contextmanager
def open_ssh_agent_keys(host: SshHostConfig, deadline: float) -> Iterator[tuple[paramiko.AgentKey, ...]]:
    """Open the ssh agent and yield its keys; an agent that hangs or is gone has none."""
    socket_path = os.path.expandvars(host.agent) if host.agent else os.environ.get("SSH_AUTH_SOCK", "none")
    agent = paramiko.agent.AgentSSH()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent_socket:
        with suppress(OSError, paramiko.SSHException):
            agent_socket.settimeout(require_time_left(deadline) / 4)
            if socket_path.lower() != "none":
                agent_socket.connect(socket_path)
                agent._connect(agent_socket)  # type: ignore[attr-defined] # paramiko's own knows no limit and no IdentityAgent
            agent_socket.settimeout(require_time_left(deadline))  # to sign may need a person's yes
        yield agent.get_keys()
