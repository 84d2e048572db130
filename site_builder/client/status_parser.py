"""status.json, as programs read it: that of a board elsewhere may hold anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from site_builder.client.model import Booking, Disk, Fleet, Gpu, Host, Process
from site_builder.core.model import GpuProblem
from site_builder.core.terminal_text import one_line
from site_builder.core.timeparse import dates
from site_builder.snapshots.envelope import clean

SCHEMA = 1
NUMBERS = (int, float)
TOO_LARGE = 1e15
# In ASCII, what is not clean can only come as one of these: an escape, or the last letter that there is.
UNCLEAN = (b"\\u", b"\\n", b"\\t", b"\\r", b"\\b", b"\\f", b"\x7f")
GPU_STATES = frozenset({"unknown", "lost", "violated", "held", "busy", "booked", "free"})
HOST_STATES = frozenset({"fresh", "stale", "down", "failed", "unseen", "maintenance"})
WEIGHTS = ("grave", "look", "told")
NOT_OURS = "is not the status.json of a gpuboard"
UNKNOWN_STATE = "the board tells a state that this gpuboard does not know"
NO_INSTANCES = "its instances could not be understood"
Text = Callable[[object], "str | None"]


def read(content: bytes) -> tuple[Fleet | None, str]:
    """The fleet, or why there is none; a host or GPU of another form is left out, and counted among the problems."""
    try:
        told = orjson.loads(content)
    except ValueError:
        return None, NOT_OURS
    if not isinstance(told, dict) or not isinstance(told.get("hosts"), list) or type(told.get("built")) is not int:
        return None, NOT_OURS
    schema = told.get("schema")
    if schema != SCHEMA:
        return None, f"has schema {clean(str(schema))[:20]}, but {SCHEMA} is what is read here: {advice(schema)}"
    text = plain if content.isascii() and not any(one in content for one in UNCLEAN) else cleaned
    hosts = tuple(found for one in told["hosts"] if (found := host(one, text)))
    problems = tuple(problems_of(told.get("problems"), text))
    if len(hosts) < len(told["hosts"]):
        problems = (*problems, f"{len(told['hosts']) - len(hosts)} hosts of status.json could not be understood")
    every = told.get("every")
    return Fleet(told["built"], hosts, problems, every=every if type(every) is int and every > 0 else None), ""


def advice(schema: object) -> str:
    """Which of the two is to be updated."""
    return "update gpuboard here" if type(schema) is int and schema > SCHEMA else "update the board"


def plain(value: object) -> str | None:
    """A text that is known to be clean."""
    return value if isinstance(value, str) else None


def cleaned(value: object) -> str | None:
    """A text in one line, without what would steer a terminal or turn a line of it around."""
    return one_line(clean(value)) if isinstance(value, str) else None


def number(value: object) -> float | None:
    """A number from 0 up that somebody can mean; true and false are none."""
    return value if type(value) in NUMBERS and 0 <= value < TOO_LARGE else None  # type: ignore[operator,return-value]


def whole(value: object) -> int | None:
    """A whole number from 0 up."""
    return value if type(value) is int and 0 <= value < TOO_LARGE else None


def listed(value: object) -> list[Any]:
    """A list, or none."""
    return value if isinstance(value, list) else []


def problems_of(several: object, text: Text) -> list[str]:
    """What the board tells its admin, in sentences."""
    return [
        f"{text(one.get('where')) or '?'}: {text(one.get('what')) or '?'}"
        for one in listed(several)
        if isinstance(one, dict)
    ]


def host(told: Any, text: Text) -> Host | None:  # noqa: ANN401 # anything may stand there
    """One host, if it has a name."""
    name = text(told.get("name")) if isinstance(told, dict) else None
    if not name:
        return None
    state, reason = text(told.get("state")) or "", text(told.get("reason")) or ""
    if state not in HOST_STATES:
        state, reason = "failed", UNKNOWN_STATE
    memory = told.get("memory") if isinstance(told.get("memory"), dict) else {}
    load = tuple(one for one in map(number, listed(told.get("load"))) if one is not None)
    tags = tuple(filter(None, map(text, listed(told.get("tags")))))
    gpus = [whole_gpu(one, text, state) for one in listed(told.get("gpus")) if isinstance(one, dict)]
    return Host(
        name,
        text(told.get("title")),
        tags,
        state,
        reason,
        whole(told.get("seen")),
        (load[0], load[1], load[2]) if len(load) == 3 else None,
        whole(told.get("cpus")),
        number(memory.get("total")),
        number(memory.get("available")),
        tuple(one for each in gpus for one in each[1] or each[:1]),
        tuple(found for one in listed(told.get("disks")) if (found := disk(one, text))),
        tuple(one for one, parts in gpus if parts is not None),
    )


def whole_gpu(told: dict[str, Any], text: Text, host_state: str) -> tuple[Gpu, tuple[Gpu, ...] | None]:
    """A GPU and its instances; None where it is not in MIG mode."""
    one = gpu(told, text, host_state)
    if told.get("instances") is None:
        return one, None
    several = [each for each in listed(told["instances"]) if isinstance(each, dict)]
    found = [gpu(each, text, host_state)._replace(index=one.index, of=one.names) for each in several]
    # what nobody can name is nothing that could be had, and the GPU as a whole is not either
    parts = tuple(each for each in found if each.place)
    empty = not told["instances"] and one.state not in {"free", "booked"}
    return one if parts or empty else one._replace(state="unknown", reason=NO_INSTANCES), parts


def gpu(told: dict[str, Any], text: Text, host_state: str) -> Gpu:
    """One GPU; a state that nobody knows, or that a host which is not fresh cannot tell, is no promise."""
    get = told.get
    state, reason = text(get("state")) or "", text(get("reason")) or ""
    if state not in GPU_STATES:
        state, reason = "unknown", UNKNOWN_STATE
    elif host_state != "fresh" and state not in {"lost", "unknown"}:
        state, reason = "unknown", f"its host is {host_state}"
    name = text(get("name"))
    return Gpu(
        whole(get("index")),
        text(get("uuid")),
        name,
        text(get("model")) or name or "GPU",
        state,
        reason,
        number(get("memory.used")),
        number(get("memory.total")),
        number(get("utilization.gpu")),
        number(get("utilization.memory")),
        number(get("temperature.gpu")),
        number(get("power.draw")),
        number(get("power.limit")),
        number(get("clocks.sm")),
        tuple(process(one, text) for one in listed(get("processes")) if isinstance(one, dict)),
        tuple(one for each in listed(get("bookings")) if isinstance(each, dict) and (one := booking(each, text))),
        whole(get("free_again")),
        place=text(get("place")),
        profile=text(get("profile")),
        vendor=text(get("vendor")) or "nvidia",
        problems=tuple(problem(one, text) for one in told["problems"] if isinstance(one, dict))
        if isinstance(get("problems"), list)
        else (),
    )


def problem(told: dict[str, Any], text: Text) -> GpuProblem:
    """What is wrong with a GPU; one of a weight that nobody knows is told."""
    get = told.get
    weight = get("weight")
    return GpuProblem(
        text(get("kind")) or "",
        weight if weight in WEIGHTS else "told",
        text(get("what")) or "?",
        text(get("advice")) or "",
        get("avoid") is True,
    )


def process(told: dict[str, Any], text: Text) -> Process:
    """A process on a GPU."""
    get = told.get
    return Process(
        whole(get("pid")),
        text(get("user")),
        text(get("command")),
        number(get("used_gpu_memory")),
        whole(get("started")),
    )


def booking(told: dict[str, Any], text: Text) -> Booking | None:
    """A booking, if its times are some."""
    until = dates.exact(told.get("date"))
    since = dates.exact(told["from"]) if told.get("from") else None
    if until is None or (told.get("from") and since is None):
        return None
    used_by = tuple(filter(None, map(text, listed(told.get("used_by")))))
    return Booking(
        text(told.get("id")),
        text(told.get("name")),
        since,
        until,
        text(told.get("comment")),
        whole(told.get("unused_since")),
        used_by or None,
        whole(told.get("used_by_since")),
        number(told.get("mean_use")),
    )


def disk(told: object, text: Text) -> Disk | None:
    """A local file system, if all of it is told."""
    if not isinstance(told, dict):
        return None
    mount, total, used = text(told.get("mount")), number(told.get("total")), number(told.get("used"))
    return None if mount is None or total is None or used is None else Disk(mount, total, used)
