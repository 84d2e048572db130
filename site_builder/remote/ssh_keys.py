"""How we log in on a host: by the agent and the keys of the person, and never by a password."""

from __future__ import annotations

import os
import socket
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from site_builder.remote.ssh_config import SshError, Way, last_line

if TYPE_CHECKING:
    import paramiko  # noqa: TID251 for mypy

# Python 3.9 has two of them.
TIMEOUTS = (TimeoutError, socket.timeout)


def left(deadline: float) -> float:
    """Seconds until then."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def log_in(transport: paramiko.Transport, way: Way, deadline: float) -> None:
    """With the first key that the host takes."""
    locked: list[Path] = []
    tried = 0
    with agent_keys(way, deadline) as held:
        for key in keys_for(way, held, locked):
            tried += 1
            transport.auth_timeout = left(deadline)
            if takes(transport, way, key, tried):
                return
            left(deadline)
    raise SshError(no_key(way, tried, locked))


def takes(transport: paramiko.Transport, way: Way, key: paramiko.PKey, tried: int) -> bool:
    """Whether the host takes this key, and wants nothing else."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    try:
        more = transport.auth_publickey(way.user, key)
    except paramiko.BadAuthenticationType as error:
        raise SshError(wants(way, error.allowed_types)) from None
    except (paramiko.SSHException, EOFError, OSError) as error:
        if transport.is_active():
            return False
        what = f"{way.shown} refused {tried} keys and ended the connection ({last_line(str(error))})"
        message = f"{what}; name the right one in ssh's configuration, with IdentitiesOnly"
        raise SshError(message) from None
    if more:
        raise SshError(wants(way, more))
    return True


def wants(way: Way, kinds: list[str]) -> str:
    """The sentence on a host that wants more, or other, than a key."""
    what = " or ".join(sorted(kinds))
    return f"{way.shown} takes no key from {way.user}, it asks for: {last_line(what)}; let its sshd take keys"


def no_key(way: Way, tried: int, locked: list[Path]) -> str:
    """The sentence on a host that takes none of our keys."""
    if locked:
        return f"{way.shown} takes no other key than {locked[0]}, perhaps, which has a password: ssh-add {locked[0]}"
    keys = "your key" if tried == 1 else f"any of your {tried} keys"
    said = f"{way.shown} does not take {keys}" if tried else f"you have no key here for {way.shown}"
    return f"{said}, as {way.user}: ssh-copy-id {way.name} (ssh-keygen first, if there is none)"


def keys_for(way: Way, held: tuple[paramiko.AgentKey, ...], locked: list[Path]) -> Iterator[paramiko.PKey]:
    """As ssh tries them: those of the agent that the configuration names, its others, then files; each once."""
    named = {blob: file for file in way.identities for blob in [public_half(file)] if blob}
    yield from (key for key in held if key.asbytes() in named)
    if not way.only_identities:
        yield from (key for key in held if key.asbytes() not in named)
    done = {key.asbytes() for key in held}
    for file in way.identities:
        if file.suffix != ".pub" and public_half(file) not in done:
            key = key_in(file, locked)
            if key and key.asbytes() not in done:
                yield key


def public_half(file: Path) -> bytes | None:
    """What stands beside a key, or in its place where the agent alone has it."""
    beside = file if file.suffix == ".pub" else file.with_name(f"{file.name}.pub")
    with suppress(OSError, ValueError, IndexError):
        return b64decode(beside.read_text().split()[1])
    return None


def key_in(file: Path, locked: list[Path]) -> paramiko.PKey | None:
    """The key in a file; None where it cannot be had without a password, or is of an unknown kind."""
    import paramiko  # noqa: PLC0415, TID251 slow to import

    try:
        return paramiko.PKey.from_path(file)
    except (paramiko.PasswordRequiredException, TypeError):  # as cryptography tells of a password
        locked.append(file)
    except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, OSError, ValueError):
        pass
    return None


@contextmanager
def agent_keys(way: Way, deadline: float) -> Iterator[tuple[paramiko.AgentKey, ...]]:
    """Those of the agent, while it is open; one that hangs or is gone has none."""
    from paramiko.agent import AgentSSH  # noqa: PLC0415, TID251 slow to import
    from paramiko.ssh_exception import SSHException  # noqa: PLC0415, TID251 the same

    place = os.path.expandvars(way.agent) if way.agent else os.environ.get("SSH_AUTH_SOCK", "none")
    agent = AgentSSH()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        with suppress(OSError, SSHException):
            line.settimeout(left(deadline) / 4)
            if place.lower() != "none":
                line.connect(place)
                agent._connect(line)  # type: ignore[attr-defined] # paramiko's own knows no limit and no IdentityAgent
            line.settimeout(left(deadline))  # to sign may need a person's yes
        yield agent.get_keys()
