"""status.json: the whole fleet for programs, as docs/status.schema.json says. Not available is null."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import orjson

from site_builder.core.model import BookingStatus, GpuProblem, GpuStatus, HostFacts, HostStatus, Problem, ProcessStatus
from site_builder.fleet.mig import WholeGpu, is_mig_without_instances, list_whole_gpus

STATUS_SCHEMA = 1


def render_status_host(board: HostStatus) -> tuple[bytes, bytes]:
    """A host, in two parts, between which its age stands: that alone changes with every build."""
    facts = board.facts or HostFacts()
    fresh = board.state == "fresh"
    before: dict[str, Any] = {
        "name": board.name,
        "title": board.title,
        "tags": board.tags,
        "state": board.state,
        "reason": board.reason,
        "seen": None if board.last_seen is None else int(board.last_seen),
    }
    after: dict[str, Any] = {
        "load": facts.load if fresh else None,
        "cpus": facts.cpus,
        "memory": {"total": facts.memory_total, "available": facts.memory_available if fresh else None},
        "disks": [{"mount": disk.mount, "total": disk.total, "used": disk.used} for disk in facts.disks],
        "gpus": [whole_gpu_to_status_json(one) for one in list_whole_gpus(board)],
    }
    return orjson.dumps(before)[:-1] + b',"age":', b"," + orjson.dumps(after)[1:]


def whole_gpu_to_status_json(one: WholeGpu) -> dict[str, Any]:
    """A GPU, with its instances where it is in MIG mode."""
    found = gpu_to_status_json(one.status)
    if one.instances or is_mig_without_instances(one.status.gpu):
        found["instances"] = [{**gpu_to_status_json(each), "profile": each.gpu.profile} for each in one.instances]
    return found


def gpu_to_status_json(board: GpuStatus) -> dict[str, Any]:
    """A GPU, under nvidia-smi's names and units; its place is told where that is more than its index."""
    told = board.gpu
    found = {
        "index": told.index,
        "uuid": told.uuid,
        "name": told.name,
        "vendor": told.vendor,
        "model": board.model,
        "state": board.state,
        "reason": board.reason,
        "memory.used": told.memory_used,
        "memory.total": told.memory_total,
        "utilization.gpu": told.utilization_gpu,
        "utilization.memory": told.utilization_memory,
        "temperature.gpu": told.temperature,
        "power.draw": told.power_draw,
        "power.limit": told.power_limit,
        "clocks.sm": told.clock,
        "processes": [process_to_json(one) for one in board.processes],
        "bookings": [booking_to_status_json(one) for one in board.bookings],
        "free_again": board.free_again,
        "problems": [gpu_problem_to_json(one) for one in board.problems],
    }
    if told.place is not None:
        found["place"] = told.place
    return found


@lru_cache(maxsize=4096)
def gpu_problem_to_json(one: GpuProblem) -> orjson.Fragment:
    """What is wrong with a GPU; hosts have much the same."""
    return orjson.Fragment(orjson.dumps(one._asdict()))


@lru_cache(maxsize=40_000)
def process_to_json(one: ProcessStatus) -> orjson.Fragment:
    """A process on a GPU; the same for as long as it runs, at every build."""
    content = {
        "pid": one.pid,
        "user": one.user,
        "command": one.command,
        "used_gpu_memory": one.used_memory,
        "started": one.started,
    }
    return orjson.Fragment(orjson.dumps(content))


def booking_to_status_json(one: BookingStatus) -> dict[str, Any]:
    """A booking; `date` is its end, as in comments.json."""
    return {
        "id": one.id,
        "name": one.name,
        "from": one.since and one.since.isoformat(),
        "date": one.until.isoformat(),
        "comment": one.comment,
        "unused_since": one.unused_since,
        "used_by": one.used_by,
        "used_by_since": one.used_by_since,
        "mean_use": one.mean_use,
    }


def render_status_json(
    hosts: Iterable[tuple[bytes, float | None, bytes]],
    problems: Iterable[Problem],
    built: float,
    book: str | None = None,
    every: int | None = None,
) -> bytes:
    """The whole file, from the parts of each host and its age; `book` is where the desk is, `every` when it is next."""

    def age(seen: float | None) -> bytes:
        return b"null" if seen is None else b"%d" % max(0, int(built) - int(seen))  # of the two that the file tells

    told = [b"".join((before, age(seen), after)) for before, seen, after in hosts]
    return b'{"schema":%d,"built":%d,"every":%s,"book":%s,"hosts":[%s],"problems":%s}\n' % (
        STATUS_SCHEMA,
        built,
        orjson.dumps(every),
        orjson.dumps(book),
        b",\n".join(told),
        orjson.dumps([{"where": problem.where, "what": problem.what} for problem in problems]),
    )
