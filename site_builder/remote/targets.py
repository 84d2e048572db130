"""Which hosts a command is for: named one by one, in a file, or by Consul."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from site_builder.consul.catalog import hosts as consul_hosts
from site_builder.remote.target_syntax import Target, chosen, is_machine, read

if TYPE_CHECKING:
    from site_builder.core.model import ConsulAccess

LONGEST_FILE = 1024 * 1024
MOST_TOLD = 5


class NoTargets(Exception):
    """Why it is not clear which hosts are meant, in one sentence."""


def of_words(words: Iterable[str]) -> list[Target]:
    """Those that were typed."""
    found, problems = chosen((0, word) for word in words)
    refuse(problems)
    return found


def of_file(path: Path) -> list[Target]:
    """Those of a file: lines as hosts.txt has them, or such words as are typed, one a line."""
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_FILE)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise NoTargets(message) from None
    found, problems = read(content)
    refuse([f"{path}, {what}" for what in problems])
    if not found:
        message = f"{path} names no host"
        raise NoTargets(message)
    return found


def refuse(problems: list[str]) -> None:
    """One host that is not clear could be any: nothing is done to the others either."""
    if problems:
        raise NoTargets("; ".join(problems[:MOST_TOLD]))


def of_consul(
    access: ConsulAccess | None, state: Path, data: Path, last_will_do: Callable[[str], None] | None = None
) -> list[Target]:
    """Those that Consul lists: each by its name on the board, reached by that of its node.

    With `last_will_do` the last good list serves while there is no other, and it is told why.
    """
    from site_builder.discovery.discover import ConsulList  # noqa: PLC0415 slow to import

    if access is None:
        message = "set GPUBOARD_CONSUL_SERVICE first, to the service that your GPU hosts have in Consul"
        raise NoTargets(message)
    listed = ConsulList(state, access)
    before = listed.since
    nodes, problems = listed.read()
    found, unclear = consul_hosts(nodes or (), folders_in(data))
    # whoever registers a service chooses its words: here they are no URL, no other user, no other port
    for name in [name for name, node in found.items() if not is_machine(node.node)]:
        node = found.pop(name).node
        unclear.append(f"the node '{node[:80]}' is left out: that cannot be the name of a machine")
    told = [f"{listed.where} {problem.what}" for problem in problems] + [f"{listed.where}: {what}" for what in unclear]
    is_new = listed.since != before
    if not found or (last_will_do is None and (unclear or not is_new)):
        raise NoTargets(told[0] if told else f"{listed.where} lists no host")
    if last_will_do is not None:
        for what in told:
            last_will_do(what)
    return [Target(node.node, name) for name, node in sorted(found.items())]


def folders_in(data: Path) -> list[str]:
    """The hosts that have data already: a node of Consul is matched with one of them first."""
    try:
        return [path.name for path in data.iterdir() if path.is_dir()]
    except OSError:
        return []
