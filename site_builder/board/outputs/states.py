"""states/: each host with its GPUs, in the JSON shape of vesta. Not available is null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import Any

import orjson

from site_builder.board.outputs.plain import (
    EMPTY,
    addresses,
    available,
    index_of,
    moment,
    processes,
    program_of,
    stamp,
    whole,
)
from site_builder.core.clock import Now
from site_builder.core.model import BoardGpu, BoardHost
from site_builder.fleet.mig import Whole, wholes
from site_builder.history.model import GpuSample, HostSample

# What history calls a GPU that has no UUID.
NO_UUID = "index "


def host(board: BoardHost, looked: float | None, now: Now) -> bytes:
    """`{"atlas": …}` and a line end; `looked` is when its GPUs were."""
    at = stamp(looked, now.zone)
    entry = {
        "gpu_data": {key: whole_gpu(one, at) for key, one in by_key(wholes(board))},
        "timestamp": None if board.seen is None else int(moment(board.seen, now.zone, "%Y%m%d%H%M%S")),
    }
    content = {
        "data": [] if board.seen is None else [entry],
        "ip_address": next((address for _, address in addresses(board)), None),
        "state": board.state,
        "reason": board.reason,
    }
    return orjson.dumps({board.name: content}, option=orjson.OPT_APPEND_NEWLINE)


def whole_gpu(one: Whole, at: str | None) -> dict[str, Any]:
    """A GPU, with its instances where it is cut into some, by the same kind of key."""
    found = gpu(one.board, at)
    if one.instances:
        several = by_key([Whole(each) for each in one.instances])
        found["instances"] = {key: {**gpu(each.board, at), "profile": each.board.gpu.profile} for key, each in several}
    return found


def by_key(gpus: Iterable[Whole]) -> Iterator[tuple[str, Whole]]:
    """`gpu:0`; the UUID names one that has no number, or that of another."""
    taken: set[str] = set()
    for place, one in enumerate(gpus):
        keys = (one.board.gpu.number, one.board.gpu.uuid, f"? {place}")
        key = next(key for key in (f"gpu:{key}" for key in keys if key is not None) if key not in taken)
        taken.add(key)
        yield key, one


def gpu(board: BoardGpu, at: str | None) -> dict[str, Any]:
    """A GPU; memory in MiB."""
    told, several = board.gpu, processes(board)
    return {
        "available_memory": whole(available(board)),
        "device_num": told.index,
        "gpu_name": told.name,
        "gpu_volatile": whole(told.utilization_gpu),
        "processes": several
        and [
            {
                "name": program_of(one.command),
                "pid": one.pid,
                "used_memory": whole(one.used_memory),
                "user": one.user,
                "command": one.command,
            }
            for one in several
        ],
        "temperature": whole(told.temperature),
        "timestamp": at,
        "total_memory": whole(told.memory_total),
        "used_memory": whole(told.memory_used),
        "uuid": told.uuid,
        "state": board.state,
        "reason": board.reason,
    }


def minute(sample: HostSample, at: int, names: Mapping[str, str], zone: tzinfo, users: bool) -> dict[str, Any]:
    """An entry of history; `names` are those of GPUs by their UUIDs, of which history has a short one."""
    found: dict[str, dict[str, Any]] = {}
    for place, one in enumerate(sample.gpus):
        series = one.series
        keys = (series.index, series.key, f"? {place}")
        key = next(key for key in (f"gpu:{key}" for key in keys if key is not None) if key not in found)
        found[key] = gpu_then(one, names.get(series.key, series.model), stamp(at, zone), users)
    return {"gpu_data": found, "timestamp": int(moment(at, zone, "%Y%m%d%H%M%S"))}


def gpu_then(one: GpuSample, name: str, at: str | None, users: bool) -> dict[str, Any]:
    """A GPU at a moment of which history tells; of a process it knows whose it was, and no more."""
    series, state = one.series, one.standing.state
    free = None if one.memory is None or series.memory_total is None else max(0, series.memory_total - one.memory)
    people = one.standing.who.users
    told = [
        {"name": None, "pid": None, "used_memory": None, "user": user if users else None, "command": None}
        for user in people
    ]
    return {
        "available_memory": whole(free),
        "device_num": index_of(series.index),
        "gpu_name": name,
        "gpu_volatile": whole(one.use),
        "processes": told if told or state in EMPTY else None,
        "temperature": whole(one.temperature),
        "timestamp": at,
        "total_memory": whole(series.memory_total),
        "used_memory": whole(one.memory),
        "uuid": None if series.key.startswith(NO_UUID) else series.key,
        "state": state,
        "reason": "",
    }


def states(hosts: Iterable[bytes]) -> bytes:
    """All hosts in one object, from the content of their files."""
    return b"{" + b",\n".join(one.strip()[1:-1] for one in hosts) + b"}\n"
