"""waste.json, as programs read it: that of a board elsewhere may hold anything."""

from __future__ import annotations

import orjson

from site_builder.client.status_parser import advice, cleaned, listed, number, whole
from site_builder.core.names import is_host
from site_builder.snapshots.envelope import clean
from site_builder.waste.model import FILE, KINDS, Item, Wasted

SCHEMA = 1
NOT_OURS = f"is not the {FILE} of a gpuboard"


def read(content: bytes) -> tuple[Wasted | None, str]:
    """What is wasted, or why nobody can tell; a line of another form is left out."""
    try:
        told = orjson.loads(content)
    except ValueError:
        return None, NOT_OURS
    if not isinstance(told, dict) or not isinstance(told.get("items"), list) or type(told.get("built")) is not int:
        return None, NOT_OURS
    schema = told.get("schema")
    if schema != SCHEMA:
        return None, f"has schema {clean(str(schema))[:20]}, but {SCHEMA} is what is read here: {advice(schema)}"
    found = Wasted(
        told["built"],
        whole(told.get("every")) or 0,
        tuple(one for each in told["items"] if (one := item(each))),
        tuple(one for one in listed(told.get("hosts")) if isinstance(one, str) and is_host(one)),
        whole(told.get("history_since")),
        cleaned(told.get("trouble")),
    )
    return found, ""


def item(told: object) -> Item | None:
    """A line."""
    if not isinstance(told, dict):
        return None
    kind, host, index = told.get("kind"), told.get("host"), whole(told.get("index"))
    place = cleaned(told.get("place"))
    if kind not in KINDS or not isinstance(host, str) or not is_host(host):
        return None
    return Item(
        str(kind),
        host,
        cleaned(told.get("uuid")) or f"index {place or index}",
        place or index,
        cleaned(told.get("model")) or "GPU",
        tuple(name for each in listed(told.get("who")) if (name := cleaned(each))),
        whole(told.get("since")),
        whole(told.get("until")),
        number(told.get("gpu_hours")),
        tuple(pid for each in listed(told.get("pids")) if (pid := whole(each)) is not None),
        cleaned(told.get("what")) or "?",
        cleaned(told.get("do")) or "",
        cleaned(told.get("command")) or "",
    )
