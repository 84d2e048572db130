"""hosts.txt: the hosts that a person lists: `name, title, tag tag, hidden, maintenance: why`; the name is enough."""

from __future__ import annotations

import re

from site_builder.core.model import Dump, ListedHost
from site_builder.core.names import is_host
from site_builder.snapshots.envelope import bounded, text_of

MAINTENANCE = re.compile(r"(?:^|,)\s*maintenance\s*(?::\s*(.*))?$", re.IGNORECASE)
LONGEST = 200


def read(data: bytes) -> Dump[ListedHost]:
    """A host a line, in their order; `#` begins a comment."""
    found: dict[str, ListedHost] = {}
    problems: list[str] = []
    for number, line in enumerate(text_of(data).split("\n"), 1):
        host = one(line.partition("#")[0].strip())
        if host is None:
            continue
        if not is_host(host.name):
            hint = "; put commas between name, title and tags" if " " in host.name else ""
            problems.append(f"line {number}: '{host.name[:80]}' is not a host name{hint}")
        elif host.name in found:
            problems.append(f"line {number}: {host.name} stands there twice; the first line counts")
        else:
            found[host.name] = host
    return Dump(tuple(found.values()), problems=bounded(problems))


def one(line: str) -> ListedHost | None:
    """One line without its comment. The reason of a maintenance goes on to the end of the line, and may hold commas."""
    if not line:
        return None
    why = MAINTENANCE.search(line)
    if why:
        line = line[: why.start()]
    name, *cells = (cell.strip() for cell in line.split(","))
    words = [cell[:LONGEST] for cell in cells if cell.lower() != "hidden"]
    return ListedHost(
        name,
        title=words[0] or None if words else None,
        tags=tuple(words[1].split()) if len(words) > 1 else (),
        maintenance=((why[1] or "").strip() or "no reason given")[:LONGEST] if why else None,
        hidden=len(words) < len(cells),
    )
