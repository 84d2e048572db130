"""states/HOST and nodes/HOST: a host in the JSON shapes of vesta and of the GPU Cluster Status Monitor."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from datetime import tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from site_builder.core.clock import Now
from site_builder.core.faults import FAULT_NOTE
from site_builder.core.formatting import format_local_epoch
from site_builder.core.model import GpuNumber, GpuStatus, HostStatus, ProcessStatus
from site_builder.core.names import gpu_number_to_index
from site_builder.fleet.gpu_state import EMPTY_STATES
from site_builder.fleet.mig import WholeGpu, list_whole_gpus
from site_builder.fleet.processes import extract_process_program
from site_builder.health.model import UNNAMED_KEY_PREFIX
from site_builder.history.model import GpuSample, HostSample

STATES_FOLDER, NODES_FOLDER = "states", "nodes"
TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"


def round_json_value(value: float | None) -> int | None:
    """Round a number: the other systems have no fractions."""
    return None if value is None else round(value)


def compute_host_json_available_memory(gpu_status: GpuStatus) -> float | None:
    used, total = gpu_status.gpu.memory_used, gpu_status.gpu.memory_total
    return None if used is None or total is None else max(0, total - used)


def list_host_json_processes(gpu_status: GpuStatus) -> tuple[ProcessStatus, ...] | None:
    """Return the processes on a GPU; None if nobody knows whether there are any."""
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


def render_states_host(host_status: HostStatus, gpus_taken_at: float | None, now: Now) -> bytes:
    """Render `{"atlas": …}` for vesta; `gpus_taken_at` is when its GPUs were read."""
    entries = []
    if host_status.last_seen is not None:
        read_time = format_host_json_time(gpus_taken_at, now.zone)
        entry = {
            "gpu_data": gpus_to_host_json_states(list_whole_gpus(host_status), read_time),
            "timestamp": int(format_local_epoch(host_status.last_seen, now.zone, TIMESTAMP_FORMAT)),
        }
        entries.append(entry)
    content = {
        "data": entries,
        "ip_address": next((address for _, address in list_host_json_addresses(host_status)), None),
        "state": host_status.state,
        "reason": host_status.reason,
    }
    return orjson.dumps({host_status.name: content}, option=orjson.OPT_APPEND_NEWLINE)


def gpus_to_host_json_states(gpus: Iterable[WholeGpu], read_time: str | None) -> dict[str, Any]:
    """Convert GPUs, by keys such as `gpu:0`, each with its MIG instances."""
    contents: dict[str, Any] = {}
    for position, (gpu_status, instances) in enumerate(gpus):
        gpu = gpu_status.gpu
        content = gpu_to_host_json_state(gpu_status, read_time)
        if gpu.parent:
            content["profile"] = gpu.profile
        if instances:
            content["instances"] = gpus_to_host_json_states(map(WholeGpu, instances), read_time)
        contents[choose_host_json_gpu_key((gpu.number, gpu.uuid, f"? {position}"), contents)] = content
    return contents


def choose_host_json_gpu_key(names: Iterable[GpuNumber], taken: Container[str]) -> str:
    """Return a key such as `gpu:0`, of the first name that is known and not taken."""
    return next(key for key in (f"gpu:{name}" for name in names if name is not None) if key not in taken)


def gpu_to_host_json_state(gpu_status: GpuStatus, read_time: str | None) -> dict[str, Any]:
    gpu, processes = gpu_status.gpu, list_host_json_processes(gpu_status)
    return {
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


def sample_to_host_json_states(
    sample: HostSample, epoch: int, gpu_names: Mapping[str, str], zone: tzinfo, users: bool
) -> dict[str, Any]:
    """Convert a minute of history; `gpu_names` are the driver's names by UUID, since history has only a short name."""
    gpus: dict[str, dict[str, Any]] = {}
    for position, gpu_sample in enumerate(sample.gpus):
        series = gpu_sample.series
        key = choose_host_json_gpu_key((series.index, series.key, f"? {position}"), gpus)
        name = gpu_names.get(series.key, series.model)
        gpus[key] = gpu_sample_to_states_json(gpu_sample, name, format_host_json_time(epoch, zone), users)
    return {"gpu_data": gpus, "timestamp": int(format_local_epoch(epoch, zone, TIMESTAMP_FORMAT))}


def gpu_sample_to_states_json(sample: GpuSample, name: str, read_time: str | None, users: bool) -> dict[str, Any]:
    """Convert a GPU of history, which knows whose the processes were, but nothing else of them."""
    series, state = sample.series, sample.occupancy.state
    unused = None
    if sample.memory is not None and series.memory_total is not None:
        unused = max(0, series.memory_total - sample.memory)
    processes = [
        {"name": None, "pid": None, "used_memory": None, "user": user if users else None, "command": None}
        for user in sample.occupancy.people.users
    ]
    return {
        "available_memory": round_json_value(unused),
        "device_num": gpu_number_to_index(series.index),
        "gpu_name": name,
        "gpu_volatile": round_json_value(sample.use),
        "processes": processes if processes or state in EMPTY_STATES else None,
        "temperature": round_json_value(sample.temperature),
        "timestamp": read_time,
        "total_memory": round_json_value(series.memory_total),
        "used_memory": round_json_value(sample.memory),
        "uuid": None if series.key.startswith(UNNAMED_KEY_PREFIX) else series.key,
        "state": state,
        "reason": "",
    }


def render_all_states(hosts: Iterable[bytes]) -> bytes:
    """Join the files of all hosts into one object."""
    return b"{" + b",\n".join(content.strip()[1:-1] for content in hosts) + b"}\n"


def render_node_host(host_status: HostStatus, now: Now) -> bytes:
    """Render a host for the GPU Cluster Status Monitor, whose programs want local time without its offset."""
    last_update = None
    if host_status.last_seen is not None:
        last_update = format_local_epoch(host_status.last_seen, now.zone, "%Y-%m-%dT%H:%M:%S.000000")
    content = {
        "hostname": host_status.name,
        "last_update": last_update,
        "ips": list_host_json_addresses(host_status),
        "gpus": [whole_gpu_to_node_json(whole_gpu) for whole_gpu in list_whole_gpus(host_status)],
        "status": host_status.state == "fresh",
        "state": host_status.state,
        "reason": host_status.reason,
        "seen": round_json_value(host_status.last_seen),
    }
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)


def whole_gpu_to_node_json(whole_gpu: WholeGpu) -> dict[str, Any]:
    content = gpu_to_node_json(whole_gpu.status)
    if whole_gpu.instances:
        content["instances"] = [
            {
                **gpu_to_node_json(instance),
                "place": instance.gpu.place,
                "profile": instance.gpu.profile,
                "uuid": instance.gpu.uuid,
            }
            for instance in whole_gpu.instances
        ]
    return content


def gpu_to_node_json(gpu_status: GpuStatus) -> dict[str, Any]:
    gpu, processes = gpu_status.gpu, list_host_json_processes(gpu_status)
    return {
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


def render_all_nodes(hosts: Iterable[bytes]) -> bytes:
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
    JoinedHostJson(f"{STATES_FOLDER}/index.json", build_host_json_states_path, render_all_states),
    JoinedHostJson(f"{NODES_FOLDER}/index.json", build_host_json_node_path, render_all_nodes),
)


def render_host_json_files(host_status: HostStatus, gpus_taken_at: float | None, now: Now) -> dict[str, bytes]:
    return {
        build_host_json_states_path(host_status.name): render_states_host(host_status, gpus_taken_at, now),
        build_host_json_node_path(host_status.name): render_node_host(host_status, now),
    }


def render_failed_host_json_files(name: str) -> dict[str, bytes]:
    """Render the same files by hand, without GPUs, for a host at which the renderers fail."""
    reason = f"its files for programs could not be made, {FAULT_NOTE}"
    state: dict[str, object] = {"data": [], "ip_address": None, "state": "failed", "reason": reason}
    node: dict[str, object] = {
        "hostname": name,
        "last_update": None,
        "ips": [],
        "gpus": [],
        "status": False,
        "state": "failed",
        "reason": reason,
        "seen": None,
    }
    return {
        build_host_json_states_path(name): orjson.dumps({name: state}, option=orjson.OPT_APPEND_NEWLINE),
        build_host_json_node_path(name): orjson.dumps(node, option=orjson.OPT_APPEND_NEWLINE),
    }
