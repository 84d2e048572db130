"""states/HOST and nodes/HOST: a host in the JSON shapes of vesta and of the GPU Cluster Status Monitor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from site_builder.core.clock import Now
from site_builder.core.faults import FAULT_NOTE
from site_builder.core.formatting import format_local_epoch
from site_builder.core.model import Gpu, GpuStatus, HostStatus, ProcessStatus
from site_builder.core.names import gpu_number_to_index
from site_builder.fleet.gpu_state import EMPTY_STATES
from site_builder.fleet.mig import WholeGpu, list_whole_gpus
from site_builder.fleet.processes import extract_process_program
from site_builder.health.model import UNNAMED_KEY_PREFIX
from site_builder.history.model import HostSample

STATES_FOLDER, NODES_FOLDER = "states", "nodes"
TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"


def round_json_value(value: float | None) -> int | None:
    """Round a number: the other systems have no fractions."""
    return None if value is None else round(value)


def compute_host_json_available_memory(gpu_status: GpuStatus) -> float | None:
    used, total = gpu_status.gpu.memory_used, gpu_status.gpu.memory_total
    return None if used is None or total is None else max(0, total - used)


def list_host_json_processes(gpu_status: GpuStatus) -> tuple[ProcessStatus, ...] | None:
    """Return the processes on a GPU; None if they are unknown."""
    return gpu_status.processes or (() if gpu_status.state in EMPTY_STATES else None)


def list_host_json_addresses(host_status: HostStatus) -> list[tuple[str, str]]:
    """Return interfaces with their addresses, without the size of the network."""
    interfaces = host_status.facts.interfaces if host_status.facts else ()
    return [(name, address.partition("/")[0]) for name, address in interfaces]


def format_host_json_time(epoch: float | None, zone: tzinfo) -> str | None:
    """Format a time as `2019/03/24 20:00:00.000`."""
    return None if epoch is None else format_local_epoch(epoch, zone, "%Y/%m/%d %H:%M:%S.000")


@lru_cache(maxsize=20_000)
def extract_host_json_program(command: str | None) -> str | None:
    return None if command is None else extract_process_program(command)


# For vesta


def render_host_states_json(host_status: HostStatus, gpus_taken_at: float | None, now: Now) -> bytes:
    """Render `{"atlas": …}`; `gpus_taken_at` is when its GPUs were read."""
    entries = []
    if host_status.last_seen is not None:
        read_time = format_host_json_time(gpus_taken_at, now.zone)
        gpus = convert_gpus_to_states_json(list_whole_gpus(host_status), read_time)
        timestamp = int(format_local_epoch(host_status.last_seen, now.zone, TIMESTAMP_FORMAT))
        entries.append({"gpu_data": gpus, "timestamp": timestamp})
    content = {
        "data": entries,
        "ip_address": next((address for _, address in list_host_json_addresses(host_status)), None),
        "state": host_status.state,
        "reason": host_status.reason,
    }
    return orjson.dumps({host_status.name: content}, option=orjson.OPT_APPEND_NEWLINE)


def convert_gpus_to_states_json(
    gpus: Iterable[WholeGpu], read_time: str | None, series_keys: Sequence[str] = ()
) -> dict[str, Any]:
    """Convert GPUs, by keys such as `gpu:0`, each with its MIG instances; `series_keys` are their keys in history."""
    contents: dict[str, Any] = {}
    for position, (gpu_status, instances) in enumerate(gpus):
        gpu, processes = gpu_status.gpu, list_host_json_processes(gpu_status)
        content: dict[str, Any] = {
            "available_memory": round_json_value(compute_host_json_available_memory(gpu_status)),
            "device_num": gpu.index,
            "gpu_name": gpu.name,
            "gpu_volatile": round_json_value(gpu.utilization_gpu),
            "processes": processes
            and [
                {
                    "name": extract_host_json_program(process.command),
                    "pid": process.pid,
                    "used_memory": round_json_value(process.used_memory),
                    "user": process.user,
                    "command": process.command,
                }
                for process in processes
            ],
            "temperature": round_json_value(gpu.temperature),
            "timestamp": read_time,
            "total_memory": round_json_value(gpu.memory_total),
            "used_memory": round_json_value(gpu.memory_used),
            "uuid": gpu.uuid,
            "state": gpu_status.state,
            "reason": gpu_status.reason,
        }
        if gpu.parent:
            content["profile"] = gpu.profile
        if gpu.is_memory_shared:
            content["memory_shared"] = True
        if instances:
            content["instances"] = convert_gpus_to_states_json(map(WholeGpu, instances), read_time)
        names = (gpu.number, series_keys[position] if series_keys else gpu.uuid, f"? {position}")
        keys = (f"gpu:{name}" for name in names if name is not None)
        contents[next(key for key in keys if key not in contents)] = content
    return contents


def convert_sample_to_states_json(
    sample: HostSample, epoch: int, gpu_names: Mapping[str, str], zone: tzinfo, users: bool
) -> dict[str, Any]:
    """Convert a minute of history, which knows whose the processes were, but nothing else of them.

    `gpu_names` are the driver's names by UUID, since history has only a short name.
    """
    gpus = []
    for gpu_sample in sample.gpus:
        series, occupancy = gpu_sample.series, gpu_sample.occupancy
        gpu = Gpu(
            index=gpu_number_to_index(series.index),
            uuid=None if series.key.startswith(UNNAMED_KEY_PREFIX) else series.key,
            name=gpu_names.get(series.key, series.model),
            memory_used=gpu_sample.memory,
            memory_total=series.memory_total,
            utilization_gpu=gpu_sample.use,
            temperature=gpu_sample.temperature,
            place=series.index if isinstance(series.index, str) else None,
        )
        people = occupancy.people.users if users else [None] * len(occupancy.people.users)
        processes = tuple(ProcessStatus(None, user, None, None, None) for user in people)
        gpus.append(WholeGpu(GpuStatus(gpu, series.model, occupancy.state, "", processes)))
    return {
        "gpu_data": convert_gpus_to_states_json(
            gpus, format_host_json_time(epoch, zone), [gpu_sample.series.key for gpu_sample in sample.gpus]
        ),
        "timestamp": int(format_local_epoch(epoch, zone, TIMESTAMP_FORMAT)),
    }


def join_host_states_json(hosts: Iterable[bytes]) -> bytes:
    """Join the files of all hosts into one object."""
    return b"{" + b",\n".join(content.strip()[1:-1] for content in hosts) + b"}\n"


# For the GPU Cluster Status Monitor


def render_host_node_json(host_status: HostStatus, now: Now) -> bytes:
    """Render a host with local time without its offset, as the monitor's programs want it."""
    last_update = None
    if host_status.last_seen is not None:
        last_update = format_local_epoch(host_status.last_seen, now.zone, "%Y-%m-%dT%H:%M:%S.000000")
    content = {
        "hostname": host_status.name,
        "last_update": last_update,
        "ips": list_host_json_addresses(host_status),
        "gpus": [convert_gpu_to_node_json(*whole_gpu) for whole_gpu in list_whole_gpus(host_status)],
        "status": host_status.state == "fresh",
        "state": host_status.state,
        "reason": host_status.reason,
        "seen": round_json_value(host_status.last_seen),
    }
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)


def convert_gpu_to_node_json(gpu_status: GpuStatus, instances: Iterable[GpuStatus] = ()) -> dict[str, Any]:
    gpu, processes = gpu_status.gpu, list_host_json_processes(gpu_status)
    content = {
        "index": gpu.index,
        "name": gpu.name,
        "use_mem": round_json_value(gpu.memory_used),
        "tot_mem": round_json_value(gpu.memory_total),
        "utilize": round_json_value(gpu.utilization_gpu),
        "temp": round_json_value(gpu.temperature),
        "users": processes
        and [
            {
                "pid": process.pid,
                "username": process.user,
                "mem(MiB)": round_json_value(process.used_memory),
                "command": process.command,
            }
            for process in processes
        ],
        "state": gpu_status.state,
        "reason": gpu_status.reason,
    }
    if gpu.is_memory_shared:
        content["memory_shared"] = True
    if instances:
        content["instances"] = [
            {
                **convert_gpu_to_node_json(instance),
                "place": instance.gpu.place,
                "profile": instance.gpu.profile,
                "uuid": instance.gpu.uuid,
            }
            for instance in instances
        ]
    return content


def join_host_nodes_json(hosts: Iterable[bytes]) -> bytes:
    """Join the files of all hosts as the monitor's main node does."""
    return b'{"Nodes":[' + b",\n".join(content.strip() for content in hosts) + b"]}\n"


# The files


def build_host_json_states_path(host: str) -> str:
    """Return the file of a host in the shape of vesta; no host may have the name of the file of all hosts."""
    return f"{STATES_FOLDER}/{'_' if host == 'index.json' else ''}{host}/index.json"


def build_host_json_node_path(host: str) -> str:
    """Return the file of a host in the shape of the GPU Cluster Status Monitor."""
    return f"{NODES_FOLDER}/{'_' if host == 'index' else ''}{host}.json"


class JoinedHostJson(NamedTuple):
    """A file that is made of those of all hosts."""

    name: str
    build_host_path: Callable[[str], str]
    join: Callable[[Iterable[bytes]], bytes]


JOINED_FILES = (
    JoinedHostJson(f"{STATES_FOLDER}/index.json", build_host_json_states_path, join_host_states_json),
    JoinedHostJson(f"{NODES_FOLDER}/index.json", build_host_json_node_path, join_host_nodes_json),
)


def render_host_json_files(host_status: HostStatus, gpus_taken_at: float | None, now: Now) -> dict[str, bytes]:
    return {
        build_host_json_states_path(host_status.name): render_host_states_json(host_status, gpus_taken_at, now),
        build_host_json_node_path(host_status.name): render_host_node_json(host_status, now),
    }


def render_failed_host_json_files(name: str) -> dict[str, bytes]:
    """Render the same files by hand, without GPUs, for a host at which the renderers fail."""
    failed = {"state": "failed", "reason": f"its files for programs could not be rendered: {FAULT_NOTE}"}
    state: dict[str, object] = {"data": [], "ip_address": None, **failed}
    node: dict[str, object] = {"hostname": name, "last_update": None, "ips": [], "gpus": [], "status": False}
    node |= {**failed, "seen": None}
    return {
        build_host_json_states_path(name): orjson.dumps({name: state}, option=orjson.OPT_APPEND_NEWLINE),
        build_host_json_node_path(name): orjson.dumps(node, option=orjson.OPT_APPEND_NEWLINE),
    }
