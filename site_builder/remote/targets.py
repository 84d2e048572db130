"""Which hosts to pull from or deploy to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from site_builder.core.model import ConsulAccess
from site_builder.core.names import is_host_name
from site_builder.core.terminal_text import clean_text, decode_text
from site_builder.discovery.hosts import NUMERIC_NAME, ConsulHostList, match_discovered_nodes_to_hosts

URL_PREFIXES = ("http://", "https://")
# Text in the place of a port that is not one: a password cut off at a `#` or a comma.
URL_PASSWORD = re.compile(r"(://[^/:]*:)(?![0-9]{1,5}(?:/|$))[^/]*")
MACHINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
MAX_FILE_BYTES = 1024 * 1024
MAX_LISTED_PROBLEMS = 5
NAMED_TARGET = re.compile(r"([^=@:/\s]+)=(.*)", re.DOTALL)


class Target(NamedTuple):
    """A host to pull from or deploy to: a URL that serves its files, or whatever ssh accepts."""

    address: str
    given_name: str | None = None

    @property
    def name(self) -> str:
        """Return the name on the board, unless the host itself reports another."""
        if self.given_name:
            return self.given_name
        if self.is_url:
            return urlsplit(self.address).hostname or ""
        return (self.address.partition("://")[2] or self.address).rpartition("@")[2].partition(":")[0]

    @property
    def is_url(self) -> bool:
        return self.address.startswith(URL_PREFIXES)


class UnclearSshTargetsError(Exception): ...


def parse_target(word: str) -> Target:
    """Parse a host as somebody typed it."""
    named = NAMED_TARGET.fullmatch(word)
    given, address = named.groups() if named else (None, word)
    shown = clean_text(URL_PASSWORD.sub(r"\1…", word.rpartition("@")[2]) if "://" in word else word)[:80]
    if not address or address.startswith(("-", ".", "/")) or " " in address or not address.isprintable():
        raise UnclearSshTargetsError(f"'{shown}' is not a host")
    if given is not None and not is_host_name(given):
        raise UnclearSshTargetsError(f"'{clean_text(given)[:80]}' is not a valid name on the board")
    if address.startswith(URL_PREFIXES):
        try:
            parts = urlsplit(address)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.query or parts.fragment:
            raise UnclearSshTargetsError(f"'{shown}' is not the URL of a folder")
        return Target(address if parts.path.endswith("/") else f"{address}/", given)
    if "://" in address and not address.startswith("ssh://"):
        raise UnclearSshTargetsError(f"'{shown}' is neither a host nor a URL of http, https or ssh")
    return Target(address, given)


def parse_targets(words: Iterable[tuple[int, str]], place: str = "") -> list[Target]:
    """Parse numbered words, where 0 stands for no line number; refuse all if one is unclear, since it could be any."""
    targets: list[Target] = []
    problems: list[str] = []
    for number, word in words:
        try:
            address, name = parse_target(word)
            # a bare name in a list is the name on the board, as in hosts.txt
            if number and not name and is_host_name(address) and not NUMERIC_NAME.fullmatch(address):
                name = address
            if name and any(listed.given_name == name for listed in targets):
                raise UnclearSshTargetsError(f"the name {name} is given twice")
            targets.append(Target(address, name))
        except UnclearSshTargetsError as error:
            problems.append(f"{place}line {number}: {error}" if number else str(error))
    if problems:
        raise UnclearSshTargetsError("; ".join(problems[:MAX_LISTED_PROBLEMS]))
    return targets


def parse_typed_targets(words: Iterable[str]) -> list[Target]:
    return parse_targets((0, word) for word in words)


def read_targets_file(path: Path) -> list[Target]:
    """Read a file with a host on each line, before the first comma, so that hosts.txt can be one."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise UnclearSshTargetsError(f"{path} cannot be read: {error.strerror}") from None
    lines = (line.partition("#")[0].partition(",")[0].strip() for line in decode_text(content).split("\n"))
    targets = parse_targets(((number, line) for number, line in enumerate(lines, 1) if line), f"{path}, ")
    if not targets:
        raise UnclearSshTargetsError(f"{path} names no host")
    return targets


def read_consul_targets(
    access: ConsulAccess | None, state: Path, data: Path, on_stale_list: Callable[[str], None] | None = None
) -> list[Target]:
    """Read the hosts that Consul lists: each by its name on the board, reached by that of its node.

    With `on_stale_list` the last good list is used while there is no other, and the reason is passed on.
    """
    if access is None:
        message = "first set GPUBOARD_CONSUL_SERVICE to the service of your GPU hosts in Consul"
        raise UnclearSshTargetsError(message)
    host_list = ConsulHostList(state, access)
    previous_time = host_list.nodes_time
    nodes, problems = host_list.read()
    try:  # a node is matched first with a host that has data already
        data_folders = [path.name for path in data.iterdir() if path.is_dir()]
    except OSError:
        data_folders = []
    nodes_by_host, unclear = match_discovered_nodes_to_hosts(nodes or (), data_folders)
    # whoever registers a service chooses its words: here they are no URL, no other user, no other port
    for name in [name for name, node in nodes_by_host.items() if not MACHINE_NAME.fullmatch(node.node)]:
        node = nodes_by_host.pop(name).node
        unclear.append(f"the node '{node[:80]}' is ignored: not a valid machine name")
    messages = [f"{host_list.where} {problem.what}" for problem in problems]
    messages += [f"{host_list.where}: {what}" for what in unclear]
    is_new = host_list.nodes_time != previous_time
    if not nodes_by_host or (on_stale_list is None and (unclear or not is_new)):
        raise UnclearSshTargetsError(messages[0] if messages else f"{host_list.where} lists no host")
    if on_stale_list is not None:
        for what in messages:
            on_stale_list(what)
    return [Target(node.node, name) for name, node in sorted(nodes_by_host.items())]
