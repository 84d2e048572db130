"""states/HOST and nodes/HOST."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import Any

import orjson

from site_builder.board.outputs.values import (
    EMPTY_STATES,
    compute_unused_memory,
    extract_program_cached,
    format_local_epoch,
    format_vesta_time,
    list_addresses,
    list_known_processes,
    round_value,
)
from site_builder.core.clock import Now
from site_builder.core.model import GpuStatus, HostStatus
from site_builder.core.names import parse_gpu_index
from site_builder.fleet.mig import WholeGpu, list_whole_gpus
from site_builder.history.model import GpuSample, HostSample

# What history calls a GPU that has no UUID.
UNNAMED_KEY_PREFIX = "index "


def render_states_host(board: HostStatus, looked: float | None, now: Now) -> bytes:
    """`{"atlas": …}` and a line end; `looked` is when its GPUs were."""
    at = format_vesta_time(looked, now.zone)
    entry = {
        "gpu_data": {key: whole_gpu_to_states_json(one, at) for key, one in assign_gpu_keys(list_whole_gpus(board))},
        "timestamp": None
        if board.last_seen is None
        else int(format_local_epoch(board.last_seen, now.zone, "%Y%m%d%H%M%S")),
    }
    content = {
        "data": [] if board.last_seen is None else [entry],
        "ip_address": next((address for _, address in list_addresses(board)), None),
        "state": board.state,
        "reason": board.reason,
    }
    return orjson.dumps({board.name: content}, option=orjson.OPT_APPEND_NEWLINE)


def whole_gpu_to_states_json(one: WholeGpu, at: str | None) -> dict[str, Any]:
    """A GPU, with its instances where it is cut into some, by the same kind of key."""
    found = gpu_to_states_json(one.status, at)
    if one.instances:
        several = assign_gpu_keys([WholeGpu(each) for each in one.instances])
        found["instances"] = {
            key: {**gpu_to_states_json(each.status, at), "profile": each.status.gpu.profile} for key, each in several
        }
    return found


def assign_gpu_keys(gpus: Iterable[WholeGpu]) -> Iterator[tuple[str, WholeGpu]]:
    """`gpu:0`; the UUID names one that has no number, or that of another."""
    taken: set[str] = set()
    for place, one in enumerate(gpus):
        keys = (one.status.gpu.number, one.status.gpu.uuid, f"? {place}")
        key = next(key for key in (f"gpu:{key}" for key in keys if key is not None) if key not in taken)
        taken.add(key)
        yield key, one


def gpu_to_states_json(board: GpuStatus, at: str | None) -> dict[str, Any]:
    """A GPU; memory in MiB."""
    told, several = board.gpu, list_known_processes(board)
    return {
        "available_memory": round_value(compute_unused_memory(board)),
        "device_num": told.index,
        "gpu_name": told.name,
        "gpu_volatile": round_value(told.utilization_gpu),
        "processes": several
        and [
            {
                "name": extract_program_cached(one.command),
                "pid": one.pid,
                "used_memory": round_value(one.used_memory),
                "user": one.user,
                "command": one.command,
            }
            for one in several
        ],
        "temperature": round_value(told.temperature),
        "timestamp": at,
        "total_memory": round_value(told.memory_total),
        "used_memory": round_value(told.memory_used),
        "uuid": told.uuid,
        "state": board.state,
        "reason": board.reason,
    }


def sample_to_states_json(
    sample: HostSample, at: int, names: Mapping[str, str], zone: tzinfo, users: bool
) -> dict[str, Any]:
    """An entry of history; `names` are those of GPUs by their UUIDs, of which history has a short one."""
    found: dict[str, dict[str, Any]] = {}
    for place, one in enumerate(sample.gpus):
        series = one.series
        keys = (series.index, series.key, f"? {place}")
        key = next(key for key in (f"gpu:{key}" for key in keys if key is not None) if key not in found)
        found[key] = gpu_sample_to_states_json(
            one, names.get(series.key, series.model), format_vesta_time(at, zone), users
        )
    return {"gpu_data": found, "timestamp": int(format_local_epoch(at, zone, "%Y%m%d%H%M%S"))}


def gpu_sample_to_states_json(one: GpuSample, name: str, at: str | None, users: bool) -> dict[str, Any]:
    """A GPU at a moment of which history tells; of a process it knows whose it was, and no more."""
    series, state = one.series, one.occupancy.state
    free = None if one.memory is None or series.memory_total is None else max(0, series.memory_total - one.memory)
    people = one.occupancy.people.users
    told = [
        {"name": None, "pid": None, "used_memory": None, "user": user if users else None, "command": None}
        for user in people
    ]
    return {
        "available_memory": round_value(free),
        "device_num": parse_gpu_index(series.index),
        "gpu_name": name,
        "gpu_volatile": round_value(one.use),
        "processes": told if told or state in EMPTY_STATES else None,
        "temperature": round_value(one.temperature),
        "timestamp": at,
        "total_memory": round_value(series.memory_total),
        "used_memory": round_value(one.memory),
        "uuid": None if series.key.startswith(UNNAMED_KEY_PREFIX) else series.key,
        "state": state,
        "reason": "",
    }


def render_all_states(hosts: Iterable[bytes]) -> bytes:
    """All hosts in one object, from the content of their files."""
    return b"{" + b",\n".join(one.strip()[1:-1] for one in hosts) + b"}\n"


def render_node_host(board: HostStatus, now: Now) -> bytes:
    """A host; `last_update` is in the zone of the board and without its offset, as programs for this shape want it."""
    content = {
        "hostname": board.name,
        "last_update": None
        if board.last_seen is None
        else format_local_epoch(board.last_seen, now.zone, "%Y-%m-%dT%H:%M:%S.000000"),
        "ips": list_addresses(board),
        "gpus": [whole_gpu_to_node_json(one) for one in list_whole_gpus(board)],
        "status": board.state == "fresh",
        "state": board.state,
        "reason": board.reason,
        "seen": round_value(board.last_seen),
    }
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)


def whole_gpu_to_node_json(one: WholeGpu) -> dict[str, Any]:
    """A GPU, with its instances where it is cut into some."""
    found = gpu_to_node_json(one.status)
    if one.instances:
        more = ({"place": each.gpu.place, "profile": each.gpu.profile, "uuid": each.gpu.uuid} for each in one.instances)
        found["instances"] = [{**gpu_to_node_json(each), **names} for each, names in zip(one.instances, more)]
    return found


def gpu_to_node_json(board: GpuStatus) -> dict[str, Any]:
    """A GPU; memory in MiB."""
    told, several = board.gpu, list_known_processes(board)
    return {
        "index": told.index,
        "name": told.name,
        "use_mem": round_value(told.memory_used),
        "tot_mem": round_value(told.memory_total),
        "utilize": round_value(told.utilization_gpu),
        "temp": round_value(told.temperature),
        "users": several
        and [
            {"pid": one.pid, "username": one.user, "mem(MiB)": round_value(one.used_memory), "command": one.command}
            for one in several
        ],
        "state": board.state,
        "reason": board.reason,
    }


def render_all_nodes(hosts: Iterable[bytes]) -> bytes:
    """All hosts as the main node of that system tells them, from the content of their files."""
    return b'{"Nodes":[' + b",\n".join(one.strip() for one in hosts) + b"]}\n"
