"""hosts.json of the original scripts: `{"short name": "fully qualified name"}`."""

from __future__ import annotations

import json

from site_builder.core.model import Dump, ListedHost
from site_builder.core.names import is_host
from site_builder.snapshots.envelope import bounded, json_fault, text_of

LONGEST = 200
MOST_HOSTS = 20_000


def read(data: bytes) -> Dump[ListedHost]:
    """The hosts with their full names as titles; not `whole` if the file cannot be read at all."""
    try:
        content = json.loads(text_of(data).lstrip("\ufeff"), strict=False)
    except json.JSONDecodeError as error:
        return Dump(whole=False, problems=(json_fault(error),))
    except (ValueError, RecursionError):
        return Dump(whole=False, problems=("it is nested too deeply to be read",))
    if not isinstance(content, dict):
        return Dump(whole=False, problems=('it must be an object of names: {"atlas": "atlas.example.org"}',))
    found: list[ListedHost] = []
    problems: list[str] = []
    for name, full in content.items():
        shown = printable(name)[:80]
        if not is_host(name):
            problems.append(f"'{shown}' is not a host name")
        elif full is not None and not isinstance(full, str):
            problems.append(f"the full name of {shown} is not a text")
        else:
            found.append(ListedHost(name, title=printable(full or "")[:LONGEST] or None))
    if len(found) > MOST_HOSTS:
        problems.append(f"it has {len(found)} hosts; only the first {MOST_HOSTS} count")
    return Dump(tuple(found[:MOST_HOSTS]), problems=bounded(problems))


def printable(text: str) -> str:
    """In one line, without the control characters and halves of characters that JSON can write as escapes."""
    return " ".join(text_of(text.encode("utf-8", "replace")).split())
