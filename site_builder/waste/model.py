"""Types of the waste report, and waste.json."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from site_builder.client.loader import as_clean_text, as_integer, as_list, as_number, suggest_update
from site_builder.core.model import GpuNumber
from site_builder.core.names import is_host_name
from site_builder.core.terminal_text import clean_text

# In the order in which they are told of one GPU.
WASTE_KINDS = ("dead", "held", "ownerless", "unexplained", "booking", "unused")
WASTE_FILE = "waste.json"


class WasteItem(NamedTuple):
    """Something that is wasted: on which GPU, by whom, since when, how many GPU-hours, what it is and what to do.

    `key` names the GPU on its host; `who` is as people are shown, and empty where nobody is named; `until` is when a
    booking ended that is over. Hours that nobody can know are None. `command` is what `do` asks to be run, if anything.
    """

    kind: str
    host: str
    gpu_key: str
    index: GpuNumber  # type: ignore[assignment] # nvidia-smi's word hides a method of tuples
    model: str
    people: tuple[str, ...]
    since: int | None
    until: int | None
    hours: float | None
    pids: tuple[int, ...]
    what: str
    advice: str
    command: str = ""


class WasteReport(NamedTuple):
    """All that is wasted at a moment, the most GPU-hours first.

    `every` is how often the board is built, in seconds; `hosts` are all that it has; `watched` is since when history is
    kept, and `trouble` why it could not be read.
    """

    built_at: int
    build_interval_s: int
    items: tuple[WasteItem, ...]
    hosts: tuple[str, ...] = ()
    history_since: int | None = None
    problem: str | None = None


def sum_waste_hours(found: Iterable[WasteItem]) -> tuple[float, int]:
    """How many GPU-hours in all, and of how many lines nobody can know them."""
    hours = [one.hours for one in found]
    return round(sum(one for one in hours if one is not None), 2), sum(one is None for one in hours)


class WasteLine(NamedTuple):
    """What is the same of several GPUs of a host, for people; `hours` are those of all together."""

    first_item: WasteItem
    hours: float | None
    gpu_label: str


def group_waste_items(items: Iterable[WasteItem]) -> list[WasteLine]:
    """GPUs that differ in nothing but their numbers, in one line; still the most GPU-hours first."""
    groups: dict[tuple[object, ...], list[WasteItem]] = {}
    for one in items:
        same = one._replace(gpu_key="", index=None, hours=None)
        groups.setdefault((same, one.hours is None), []).append(one)
    found = []
    for several in groups.values():
        labels = ",".join("?" if one.index is None else str(one.index) for one in several)
        hours = None if several[0].hours is None else sum_waste_hours(several)[0]
        found.append(WasteLine(several[0], hours, f"{several[0].host}:{labels}"))
    return sorted(found, key=lambda line: (line.hours is None, -(line.hours or 0)))


WASTE_SCHEMA = 1
NOT_A_WASTE_FILE = f"is not the {WASTE_FILE} of a gpuboard"


def parse_waste(content: bytes) -> tuple[WasteReport | None, str]:
    """What is wasted, or why nobody can tell; a line of another form is left out."""
    try:
        told = orjson.loads(content)
    except ValueError:
        return None, NOT_A_WASTE_FILE
    if not isinstance(told, dict) or not isinstance(told.get("items"), list) or type(told.get("built")) is not int:
        return None, NOT_A_WASTE_FILE
    schema = told.get("schema")
    if schema != WASTE_SCHEMA:
        return (
            None,
            f"has schema {clean_text(str(schema))[:20]}, but {WASTE_SCHEMA} is what is read here: {suggest_update(schema)}",
        )
    found = WasteReport(
        told["built"],
        as_integer(told.get("every")) or 0,
        tuple(one for each in told["items"] if (one := parse_waste_item(each))),
        tuple(one for one in as_list(told.get("hosts")) if isinstance(one, str) and is_host_name(one)),
        as_integer(told.get("history_since")),
        as_clean_text(told.get("trouble")),
    )
    return found, ""


def parse_waste_item(told: object) -> WasteItem | None:
    """A line."""
    if not isinstance(told, dict):
        return None
    kind, host, index = told.get("kind"), told.get("host"), as_integer(told.get("index"))
    place = as_clean_text(told.get("place"))
    if kind not in WASTE_KINDS or not isinstance(host, str) or not is_host_name(host):
        return None
    return WasteItem(
        str(kind),
        host,
        as_clean_text(told.get("uuid")) or f"index {place or index}",
        place or index,
        as_clean_text(told.get("model")) or "GPU",
        tuple(name for each in as_list(told.get("who")) if (name := as_clean_text(each))),
        as_integer(told.get("since")),
        as_integer(told.get("until")),
        as_number(told.get("gpu_hours")),
        tuple(pid for each in as_list(told.get("pids")) if (pid := as_integer(each)) is not None),
        as_clean_text(told.get("what")) or "?",
        as_clean_text(told.get("do")) or "",
        as_clean_text(told.get("command")) or "",
    )
