"""A part of a fleet for programs, in the form of status.json. Not available is null."""

from __future__ import annotations

from typing import Any

import orjson

from site_builder.client.model import Booking, Fleet, Gpu, Host, Process

SCHEMA = 1


def fleet(told: Fleet) -> bytes:
    """When it was looked at, and its hosts."""
    hosts = [host(one, told.built) for one in told.hosts]
    return orjson.dumps({"schema": SCHEMA, "built": told.built, "hosts": hosts}, option=orjson.OPT_INDENT_2)


def host(one: Host, built: int) -> dict[str, Any]:
    """A host with its GPUs."""
    return {
        "name": one.name,
        "title": one.title,
        "tags": one.tags,
        "state": one.state,
        "reason": one.reason,
        "seen": one.seen,
        "age": None if one.seen is None else max(0, built - one.seen),
        "load": one.load,
        "cpus": one.cpus,
        "memory": {"total": one.memory_total, "available": one.memory_available},
        "disks": [disk._asdict() for disk in one.disks],
        "gpus": gpus(one),
    }


def gpus(host: Host) -> list[dict[str, Any]]:
    """Its GPUs, each instance within its own."""
    found: dict[object, dict[str, Any]] = {}
    for place, one in enumerate(host.gpus):
        if not one.of:
            found[place] = {**gpu(one), "instances": []} if one in host.cut else gpu(one)
            continue
        told = found.setdefault(one.of, {**gpu(host.whole_of(one)), "instances": []})
        told["instances"].append({**gpu(one), "profile": one.profile})
    return list(found.values())


def gpu(one: Gpu) -> dict[str, Any]:
    """A GPU, under nvidia-smi's names and units."""
    found = {
        "index": one.index,
        "uuid": one.uuid,
        "name": one.name,
        "vendor": one.vendor,
        "model": one.model,
        "state": one.state,
        "reason": one.reason,
        "memory.used": one.memory_used,
        "memory.total": one.memory_total,
        "utilization.gpu": one.utilization_gpu,
        "utilization.memory": one.utilization_memory,
        "temperature.gpu": one.temperature,
        "power.draw": one.power_draw,
        "power.limit": one.power_limit,
        "clocks.sm": one.clock,
        "processes": [process(each) for each in one.processes],
        "bookings": [booking(each) for each in one.bookings],
        "free_again": one.free_again,
        "problems": [each._asdict() for each in one.problems],
    }
    if one.place is not None:
        found["place"] = one.place
    return found


def process(one: Process) -> dict[str, Any]:
    """A process on a GPU."""
    return {
        "pid": one.pid,
        "user": one.user,
        "command": one.command,
        "used_gpu_memory": one.used_memory,
        "started": one.started,
    }


def booking(one: Booking) -> dict[str, Any]:
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
