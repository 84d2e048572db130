"""states/, nodes/ and nvgpu/: hosts in the JSON shapes of vesta, the GPU Cluster Status Monitor and nvgpu.

All are made of hosts as status.json has them, so that `gpuboard serve` can make them of that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from site_builder.core.clock import Now
from site_builder.core.faults import FAULT_NOTE
from site_builder.core.formatting import DAY, HOUR, MINUTE, format_count, format_local_epoch
from site_builder.core.model import HostStatus, PrivacySettings
from site_builder.core.names import extract_program_name, gpu_number_to_index
from site_builder.fleet.gpu_state import EMPTY_STATES
from site_builder.fleet.status_json import list_host_addresses
from site_builder.health.model import UNNAMED_KEY_PREFIX
from site_builder.history.model import HostSample, ProcessSample

STATES_FOLDER, NODES_FOLDER, NVGPU_FOLDER = "states", "nodes", "nvgpu"
NVGPU_HOST_FILE, NVGPU_CLUSTER_FILE = "gpu_status", "cluster_status"
TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"
UNKNOWN_TEXT = "?"
# As much of a command as nvgpu shows.
MAX_NVGPU_COMMAND_CHARACTERS = 25
AGE_UNITS = ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"))
# A host, a GPU or a process as status.json has it.
StatusObject = Mapping[str, Any]


def round_json_value(value: float | None) -> int | None:
    """Round a number: the other systems have no fractions."""
    return None if value is None else round(value)


def compute_host_json_available_memory(used: float | None, total: float | None) -> float | None:
    return None if used is None or total is None else max(0, total - used)


def list_host_json_addresses(host_status: HostStatus) -> list[tuple[str, str]]:
    return list_host_addresses(host_status.facts) if host_status.facts else []


def format_host_json_time(epoch: float | None, zone: tzinfo) -> str | None:
    """Format a time as `2019/03/24 20:00:00.000`."""
    return None if epoch is None else format_local_epoch(epoch, zone, "%Y/%m/%d %H:%M:%S.000")


@lru_cache(maxsize=20_000)
def extract_host_json_program(command: str | None) -> str | None:
    return None if command is None else extract_program_name(command)


def find_host_json_number(gpu: StatusObject) -> int | str | None:
    """Return what people call a GPU: its place, or else its index."""
    place: str | None = gpu.get("place")
    index: int | None = gpu["index"]
    return index if place is None else place


# For vesta


def convert_host_to_states_json(host: StatusObject, now: Now) -> dict[str, Any]:
    """Convert a host to `{"atlas": …}`."""
    entries = []
    if host["seen"] is not None:
        read_time = format_host_json_time(host.get("gpus_read"), now.zone)
        timestamp = int(format_local_epoch(host["seen"], now.zone, TIMESTAMP_FORMAT))
        entries.append({"gpu_data": convert_gpus_to_states_json(host["gpus"], read_time), "timestamp": timestamp})
    content = {
        "data": entries,
        "ip_address": next((address for _, address in host.get("addresses", ())), None),
        "state": host["state"],
        "reason": host["reason"],
    }
    return {host["name"]: content}


def convert_gpus_to_states_json(
    gpus: Iterable[StatusObject], read_time: str | None, series_keys: Sequence[str] = ()
) -> dict[str, Any]:
    """Convert GPUs, by keys such as `gpu:0`, each with its MIG instances; `series_keys` are their keys in history."""
    contents: dict[str, Any] = {}
    for position, gpu in enumerate(gpus):
        used, total = gpu["memory.used"], gpu["memory.total"]
        processes = [
            {
                "name": extract_host_json_program(process["command"]),
                "pid": None if process["pid"] is None else str(process["pid"]),
                "used_memory": round_json_value(process["used_gpu_memory"]),
                "user": process["user"],
                "command": process["command"],
            }
            for process in gpu["processes"]
        ]
        content: dict[str, Any] = {
            "available_memory": round_json_value(compute_host_json_available_memory(used, total)),
            "device_num": gpu["index"],
            "gpu_name": gpu["name"],
            "gpu_volatile": round_json_value(gpu["utilization.gpu"]),
            # null where nobody knows whether there are any
            "processes": processes or ([] if gpu["state"] in EMPTY_STATES else None),
            "temperature": round_json_value(gpu["temperature.gpu"]),
            "timestamp": read_time,
            "total_memory": round_json_value(total),
            "used_memory": round_json_value(used),
            "uuid": gpu["uuid"],
            "state": gpu["state"],
            "reason": gpu["reason"],
        }
        if "profile" in gpu:
            content["profile"] = gpu["profile"]
        if gpu.get("memory.shared"):
            content["memory_shared"] = True
        if gpu.get("instances"):
            content["instances"] = convert_gpus_to_states_json(gpu["instances"], read_time)
        names = (find_host_json_number(gpu), series_keys[position] if series_keys else gpu["uuid"], f"? {position}")
        keys = (f"gpu:{name}" for name in names if name is not None)
        contents[next(key for key in keys if key not in contents)] = content
    return contents


def convert_sample_to_states_json(
    sample: HostSample, epoch: int, gpu_names: Mapping[str, str], zone: tzinfo, privacy: PrivacySettings
) -> dict[str, Any]:
    """Convert a minute of history, of which no more is shown than the board shows now.

    `gpu_names` are the driver's names by UUID, since history has only a short name.
    """
    gpus = []
    for gpu_sample in sample.gpus:
        series = gpu_sample.series
        gpu = {
            "index": gpu_number_to_index(series.index),
            "uuid": None if series.key.startswith(UNNAMED_KEY_PREFIX) else series.key,
            "name": gpu_names.get(series.key, series.model),
            "memory.used": gpu_sample.memory,
            "memory.total": series.memory_total,
            "utilization.gpu": gpu_sample.use,
            "temperature.gpu": gpu_sample.temperature,
            "processes": [convert_process_sample(process, privacy) for process in gpu_sample.processes or ()],
            "state": gpu_sample.occupancy.state,
            "reason": "",
            "place": series.index if isinstance(series.index, str) else None,
        }
        gpus.append(gpu)
    return {
        "gpu_data": convert_gpus_to_states_json(
            gpus, format_host_json_time(epoch, zone), [gpu_sample.series.key for gpu_sample in sample.gpus]
        ),
        "timestamp": int(format_local_epoch(epoch, zone, TIMESTAMP_FORMAT)),
    }


def convert_process_sample(process: ProcessSample, privacy: PrivacySettings) -> dict[str, Any]:
    """Convert a process of history to the form of status.json; of its command there is the program."""
    return {
        "pid": process.pid,
        "command": None if privacy.commands == "none" else process.program,
        "used_gpu_memory": process.memory,
        "user": process.user if privacy.users else None,
    }


def join_host_states_json(hosts: Iterable[bytes]) -> bytes:
    """Join the JSON of all hosts into one object."""
    return b"{" + b",\n".join(content[1:-1] for content in hosts) + b"}\n"


# For the GPU Cluster Status Monitor


def convert_host_to_node_json(host: StatusObject, now: Now) -> dict[str, Any]:
    """Convert a host, with local time without its offset, as the monitor's programs want it."""
    last_update = None
    if host["seen"] is not None:
        last_update = format_local_epoch(host["seen"], now.zone, "%Y-%m-%dT%H:%M:%S.000000")
    return {
        "hostname": host["name"],
        "last_update": last_update,
        "ips": host.get("addresses", []),
        "gpus": [convert_gpu_to_node_json(gpu) for gpu in host["gpus"]],
        "status": host["state"] == "fresh",
        "state": host["state"],
        "reason": host["reason"],
        "seen": host["seen"],
    }


def convert_gpu_to_node_json(gpu: StatusObject) -> dict[str, Any]:
    """Convert a GPU; `users` is a list also where nobody knows, since the monitor's programs go through it."""
    content = {
        "index": gpu["index"],
        "name": gpu["name"],
        "use_mem": round_json_value(gpu["memory.used"]),
        "tot_mem": round_json_value(gpu["memory.total"]),
        "utilize": round_json_value(gpu["utilization.gpu"]),
        "temp": round_json_value(gpu["temperature.gpu"]),
        "users": [
            {
                "pid": process["pid"],
                "username": process["user"],
                "mem(MiB)": round_json_value(process["used_gpu_memory"]),
                "command": process["command"],
            }
            for process in gpu["processes"]
        ],
        "state": gpu["state"],
        "reason": gpu["reason"],
    }
    if gpu.get("memory.shared"):
        content["memory_shared"] = True
    if gpu.get("instances"):
        content["instances"] = [
            {
                **convert_gpu_to_node_json(instance),
                "place": instance["place"],
                "profile": instance["profile"],
                "uuid": instance["uuid"],
            }
            for instance in gpu["instances"]
        ]
    return content


def join_host_nodes_json(hosts: Iterable[bytes]) -> bytes:
    """Join the JSON of all hosts as the monitor's main node does."""
    return b'{"Nodes":[' + b",\n".join(hosts) + b"]}\n"


# For nvgpu


def convert_host_to_nvgpu_json(host: StatusObject, now: Now) -> dict[str, Any]:
    """Convert a host to what an agent of nvgpu answers; of one that is not fresh, say why in `error`."""
    if host["state"] != "fresh":
        reason = f": {host['reason']}" if host["reason"] else ""
        return {"hostname": host["name"], "error": f"{host['name']} is {host['state']}{reason}"}
    return {"hostname": host["name"], "gpus": [convert_gpu_to_nvgpu_json(gpu, now.epoch) for gpu in host["gpus"]]}


def convert_gpu_to_nvgpu_json(gpu: StatusObject, now: float) -> dict[str, Any]:
    """Convert a GPU; nvgpu marks it with [ ] if it is available, [!] if its users are `?`, and else [~]."""
    processes, is_unclear = gpu["processes"], gpu["state"] in {"unknown", "lost"}
    users = [process["user"] or UNKNOWN_TEXT for process in processes]
    if is_unclear or (processes and set(users) == {UNKNOWN_TEXT}):
        users = [UNKNOWN_TEXT]
    starts = [process["started"] for process in processes if process["started"] is not None]
    return {
        "type": gpu["name"] or gpu["model"],
        "is_available": gpu["state"] == "free" and not any(problem["avoid"] for problem in gpu["problems"]),
        "pids": ",".join(str(process["pid"]) for process in processes if process["pid"] is not None),
        "users": ",".join(users),
        "running_since": format_nvgpu_age(now - min(starts)) if starts else "",
        "utilization": round_json_value(gpu["utilization.gpu"]),
        "clock_mhz": round_json_value(gpu["clocks.sm"]),
        "temperature": round_json_value(gpu["temperature.gpu"]),
        "cmd": next((shorten_nvgpu_command(process["command"]) for process in processes if process["command"]), ""),
        "index": gpu["index"],
        "state": gpu["state"],
        "reason": gpu["reason"],
    }


def format_nvgpu_age(seconds: float) -> str:
    """Format an age as `2 days ago`."""
    for unit, name in AGE_UNITS:
        if seconds >= unit:
            return f"{format_count(int(seconds // unit), name)} ago"
    return "just now"


@lru_cache(maxsize=20_000)
def shorten_nvgpu_command(command: str) -> str:
    """Return `jupyter`, the script of a Python program, or the beginning of a command."""
    if "ipykernel_launcher" in command:
        return "jupyter"
    script = next((word for word in command.split() if word.endswith(".py")), None)
    if script:
        return script
    is_short = len(command) <= MAX_NVGPU_COMMAND_CHARACTERS
    return command if is_short else f"{command[:MAX_NVGPU_COMMAND_CHARACTERS]}..."


def join_host_nvgpu_json(hosts: Iterable[bytes]) -> bytes:
    """Join the JSON of all hosts as nvgpu's master does."""
    return b"[" + b",\n".join(hosts) + b"]\n"


# The files


def build_host_json_states_path(host: str) -> str:
    """Return the file of a host in the shape of vesta; no host may have the name of the file of all hosts."""
    return f"{STATES_FOLDER}/{'_' if host == 'index.json' else ''}{host}/index.json"


def build_host_json_node_path(host: str) -> str:
    """Return the file of a host in the shape of the GPU Cluster Status Monitor."""
    return f"{NODES_FOLDER}/{'_' if host == 'index' else ''}{host}.json"


def build_host_json_nvgpu_path(host: str) -> str:
    """Return the file of a host in the shape of nvgpu."""
    return f"{NVGPU_FOLDER}/{'_' if host == NVGPU_CLUSTER_FILE else ''}{host}/{NVGPU_HOST_FILE}"


class HostJsonShape(NamedTuple):
    """A shape of JSON: the file of all hosts, that of a host, and how they are made."""

    name: str
    build_host_path: Callable[[str], str]
    convert: Callable[[StatusObject, Now], dict[str, Any]]
    join: Callable[[Iterable[bytes]], bytes]

    def render_host(self, host: StatusObject, now: Now) -> bytes:
        return orjson.dumps(self.convert(host, now))

    def render_fleet(self, hosts: Iterable[StatusObject], now: Now) -> bytes:
        return self.join(self.render_host(host, now) for host in hosts)


JOINED_FILES = (
    HostJsonShape(
        f"{STATES_FOLDER}/index.json", build_host_json_states_path, convert_host_to_states_json, join_host_states_json
    ),
    HostJsonShape(
        f"{NODES_FOLDER}/index.json", build_host_json_node_path, convert_host_to_node_json, join_host_nodes_json
    ),
    HostJsonShape(
        f"{NVGPU_FOLDER}/{NVGPU_CLUSTER_FILE}",
        build_host_json_nvgpu_path,
        convert_host_to_nvgpu_json,
        join_host_nvgpu_json,
    ),
)


def list_host_json_paths(host: str) -> tuple[str, ...]:
    return tuple(shape.build_host_path(host) for shape in JOINED_FILES)


def render_host_json_files(host: StatusObject, now: Now) -> dict[str, bytes]:
    return {shape.build_host_path(host["name"]): shape.render_host(host, now) + b"\n" for shape in JOINED_FILES}


def build_failed_status_host(name: str) -> StatusObject:
    """Build a host without GPUs, for one at which the renderers fail: an older file could call a GPU free."""
    reason = f"its files for programs could not be rendered: {FAULT_NOTE}"
    return {"name": name, "state": "failed", "reason": reason, "seen": None, "gpus": []}
