"""Which hosts to pull from or deploy to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from site_builder.core.names import is_host_name
from site_builder.core.terminal_text import clean_text, decode_text
from site_builder.discovery.hosts import NUMERIC_NAME
from site_builder.discovery.hosts import match_nodes_to_hosts as consul_hosts

if TYPE_CHECKING:
    from site_builder.core.model import ConsulAccess

URL_PREFIXES = ("http://", "https://")
# What stands at the place of a port and is none: a password of which a `#` or a comma has cut the rest.
URL_PASSWORD = re.compile(r"(://[^/:]*:)(?![0-9]{1,5}(?:/|$))[^/]*")
MACHINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
NAMED_TARGET = re.compile(r"([^=@:/\s]+)=(.*)", re.DOTALL)


class Target(NamedTuple):
    """A host: a URL at which it serves its files, or whatever ssh understands; and its name, where somebody says it."""

    address: str
    given_name: str | None = None

    @property
    def name(self) -> str:
        """What it is called on the board, unless the host itself says something else."""
        if self.given_name or not self.is_url:
            return (
                self.given_name
                or (self.address.partition("://")[2] or self.address).rpartition("@")[2].partition(":")[0]
            )
        return urlsplit(self.address).hostname or ""

    @property
    def is_url(self) -> bool:
        """Whether it serves its files itself."""
        return self.address.startswith(URL_PREFIXES)


def is_machine_name(name: str) -> bool:
    """Whether it can be the name or the address of a machine, and nothing besides."""
    return MACHINE_NAME.fullmatch(name) is not None


def parse_target(word: str) -> Target | str:
    """A host as somebody names it, or what is wrong with that, in words."""
    named = NAMED_TARGET.fullmatch(word)
    given, address = named.groups() if named else (None, word)
    shown = clean_text(URL_PASSWORD.sub(r"\1…", word.rpartition("@")[2]) if "://" in word else word)[:80]
    if not address or address.startswith(("-", ".", "/")) or " " in address or not address.isprintable():
        return f"'{shown}' is not a host"
    if given is not None and not is_host_name(given):
        return f"'{clean_text(given)[:80]}' cannot be a host's name on the board"
    if address.startswith(URL_PREFIXES):
        return build_url_target(given, address, shown)
    if "://" in address and not address.startswith("ssh://"):
        return f"'{shown}' is neither a host nor a URL of http, https or ssh"
    return Target(address, given)


def build_url_target(given: str | None, url: str, shown: str) -> Target | str:
    """A folder of files at a URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts.query or parts.fragment:
        return f"'{shown}' is not the URL of a folder"
    return Target(url if parts.path.endswith("/") else f"{url}/", given)


def parse_targets_file(data: bytes) -> tuple[list[Target], list[str]]:
    """Those of a file: a host a line, before the first comma, so that hosts.txt can be one; `#` begins a comment."""
    lines = (line.partition("#")[0].partition(",")[0].strip() for line in decode_text(data).split("\n"))
    return parse_targets((number, line) for number, line in enumerate(lines, 1) if line)


def name_listed_target(target: Target) -> Target:
    """A bare name in a list is the one on the board, as in hosts.txt."""
    bare = is_host_name(target.address) and not NUMERIC_NAME.fullmatch(target.address)
    return Target(target.address, target.address) if bare and not target.given_name else target


def parse_targets(words: Iterable[tuple[int, str]]) -> tuple[list[Target], list[str]]:
    """Each host once, and what is wrong with the rest; the number is that of a line, or 0."""
    found: list[Target] = []
    problems: list[str] = []
    for number, word in words:
        target = parse_target(word)
        if isinstance(target, Target) and number:
            target = name_listed_target(target)
        if (
            isinstance(target, Target)
            and target.given_name
            and any(other.given_name == target.given_name for other in found)
        ):
            target = f"the name {target.given_name} is there twice"
        if isinstance(target, Target):
            found.append(target)
        else:
            problems.append(f"line {number}: {target}" if number else target)
    return found, problems


MAX_FILE_BYTES = 1024 * 1024
MAX_LISTED_PROBLEMS = 5


class UnclearTargetsError(Exception):
    """Why it is not clear which hosts are meant, in one sentence."""


def parse_typed_targets(words: Iterable[str]) -> list[Target]:
    """Those that were typed."""
    found, problems = parse_targets((0, word) for word in words)
    refuse_unclear_targets(problems)
    return found


def read_targets_file(path: Path) -> list[Target]:
    """Those of a file: lines as hosts.txt has them, or such words as are typed, one a line."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise UnclearTargetsError(message) from None
    found, problems = parse_targets_file(content)
    refuse_unclear_targets([f"{path}, {what}" for what in problems])
    if not found:
        message = f"{path} names no host"
        raise UnclearTargetsError(message)
    return found


def refuse_unclear_targets(problems: list[str]) -> None:
    """One host that is not clear could be any: nothing is done to the others either."""
    if problems:
        raise UnclearTargetsError("; ".join(problems[:MAX_LISTED_PROBLEMS]))


def read_consul_targets(
    access: ConsulAccess | None, state: Path, data: Path, last_will_do: Callable[[str], None] | None = None
) -> list[Target]:
    """Those that Consul lists: each by its name on the board, reached by that of its node.

    With `last_will_do` the last good list serves while there is no other, and it is told why.
    """
    from site_builder.discovery.hosts import ConsulHostList  # noqa: PLC0415 slow to import

    if access is None:
        message = "set GPUBOARD_CONSUL_SERVICE first, to the service that your GPU hosts have in Consul"
        raise UnclearTargetsError(message)
    listed = ConsulHostList(state, access)
    before = listed.nodes_time
    nodes, problems = listed.read()
    found, unclear = consul_hosts(nodes or (), list_data_folders(data))
    # whoever registers a service chooses its words: here they are no URL, no other user, no other port
    for name in [name for name, node in found.items() if not is_machine_name(node.node)]:
        node = found.pop(name).node
        unclear.append(f"the node '{node[:80]}' is left out: that cannot be the name of a machine")
    told = [f"{listed.where} {problem.what}" for problem in problems] + [f"{listed.where}: {what}" for what in unclear]
    is_new = listed.nodes_time != before
    if not found or (last_will_do is None and (unclear or not is_new)):
        raise UnclearTargetsError(told[0] if told else f"{listed.where} lists no host")
    if last_will_do is not None:
        for what in told:
            last_will_do(what)
    return [Target(node.node, name) for name, node in sorted(found.items())]


def list_data_folders(data: Path) -> list[str]:
    """The hosts that have data already: a node of Consul is matched with one of them first."""
    try:
        return [path.name for path in data.iterdir() if path.is_dir()]
    except OSError:
        return []
