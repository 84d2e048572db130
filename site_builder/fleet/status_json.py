"""status.json: the whole fleet for programs, see docs/status.schema.json."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import orjson

from site_builder.core.model import GpuProblem, HostFacts, HostStatus, Problem, ProcessStatus
from site_builder.fleet.gpu_models import DEFAULT_VENDOR
from site_builder.fleet.mig import is_mig_without_instances, list_whole_gpus
from site_builder.fleet.topology import locate_gpu

STATUS_SCHEMA = 1


def render_status_host(host_status: HostStatus, gpus_taken_at: float | None = None) -> tuple[bytes, bytes]:
    """Render a host in two parts, before and after its age: that alone changes with every build.

    `gpus_taken_at` is when its GPUs were read.
    """
    facts = host_status.facts or HostFacts()
    is_fresh = host_status.state == "fresh"
    before_age: dict[str, Any] = {
        "name": host_status.name,
        "title": host_status.title,
        "tags": host_status.tags,
        "state": host_status.state,
        "reason": host_status.reason,
        "seen": None if host_status.last_seen is None else int(host_status.last_seen),
    }
    gpus = []
    for status, instances in list_whole_gpus(host_status):
        gpu = gpu_to_status_json(status.gpu, status)
        if facts.topology and status.gpu.vendor == DEFAULT_VENDOR:
            place = locate_gpu(facts.topology, status.gpu)
            gpu.update({"numa": place.numa_node, "linked": place.linked})
        if instances or is_mig_without_instances(status.gpu):
            gpu["instances"] = [
                {**gpu_to_status_json(instance.gpu, instance), "profile": instance.gpu.profile}
                for instance in instances
            ]
        gpus.append(gpu)
    after_age: dict[str, Any] = {
        "load": facts.load if is_fresh else None,
        "cpus": facts.cpus,
        "memory": {"total": facts.memory_total, "available": facts.memory_available if is_fresh else None},
        "disks": facts.disks,
        "addresses": list_host_addresses(facts),
        "gpus_read": None if gpus_taken_at is None else int(gpus_taken_at),
        "gpus": gpus,
    }
    return orjson.dumps(before_age)[:-1] + b',"age":', b"," + orjson.dumps(after_age)[1:]


def list_host_addresses(facts: HostFacts) -> list[tuple[str, str]]:
    """Return interfaces with their addresses, without the size of the network."""
    return [(name, address.partition("/")[0]) for name, address in facts.interfaces]


def split_status_hosts(content: bytes) -> list[bytes]:
    """Return the JSON of each host in the content of the file, which has a line for each; none if it is not ours."""
    hosts = content.partition(b'"hosts":[')[2].rpartition(b'],"problems":')[0]
    return hosts.split(b",\n") if hosts else []


def gpu_to_status_json(gpu: Any, status: Any) -> dict[str, Any]:  # noqa: ANN401 # Gpu and GpuStatus, or FleetGpu for both
    """Convert a GPU, under nvidia-smi's names and units; only a MIG instance has a place."""
    content = {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "vendor": gpu.vendor,
        "model": status.model,
        "state": status.state,
        "reason": status.reason,
        "memory.used": gpu.memory_used,
        "memory.total": gpu.memory_total,
        "memory.shared": gpu.is_memory_shared,
        "utilization.gpu": gpu.utilization_gpu,
        "utilization.memory": gpu.utilization_memory,
        "temperature.gpu": gpu.temperature,
        "power.draw": gpu.power_draw,
        "power.limit": gpu.power_limit,
        "clocks.sm": gpu.clock,
        "processes": [process_to_status_json(process) for process in status.processes],
        "bookings": [
            {
                "id": booking.id,
                "name": booking.name,
                "from": booking.since and booking.since.isoformat(),
                "date": booking.until.isoformat(),  # its end, as in comments.json
                "comment": booking.comment,
                "unused_since": booking.unused_since,
                "used_by": booking.used_by,
                "used_by_since": booking.used_by_since,
                "mean_use": booking.mean_use,
                **({} if booking.written_name is None else {"written_name": booking.written_name}),
            }
            for booking in status.bookings
        ],
        "free_again": status.free_again,
        "problems": [gpu_problem_to_status_json(problem) for problem in status.problems],
    }
    if gpu.place is not None:
        content["place"] = gpu.place
    return content


@lru_cache(maxsize=4096)
def gpu_problem_to_status_json(problem: GpuProblem) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(problem._asdict()))


@lru_cache(maxsize=40_000)
def process_to_status_json(process: ProcessStatus) -> orjson.Fragment:
    """Convert a process once for as long as it runs."""
    content = {
        "pid": process.pid,
        "user": process.user,
        "command": process.command,
        "used_gpu_memory": process.used_memory,
        "started": process.started,
    }
    return orjson.Fragment(orjson.dumps(content))


def render_status_json(
    hosts: Iterable[tuple[bytes, float | None, bytes]],
    problems: Iterable[Problem],
    built: float,
    booking_url: str | None = None,
    build_interval_s: int | None = None,
    users_shown: bool = True,
) -> bytes:
    """Render the whole file from the two parts of each host and when it was last seen."""
    host_texts = []
    for before, last_seen, after in hosts:
        # whole seconds, as `built` and `seen` are in this file
        age = b"null" if last_seen is None else b"%d" % max(0, int(built) - int(last_seen))
        host_texts.append(b"".join((before, age, after)))
    return b'{"schema":%d,"built":%d,"every":%s,"book":%s,"users_shown":%s,"hosts":[%s],"problems":%s}\n' % (
        STATUS_SCHEMA,
        built,
        orjson.dumps(build_interval_s),
        orjson.dumps(booking_url),
        orjson.dumps(users_shown),
        b",\n".join(host_texts),
        orjson.dumps([{"where": problem.where, "what": problem.what} for problem in problems]),
    )
