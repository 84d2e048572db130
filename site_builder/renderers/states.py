"""states/: each host with its GPUs, in the JSON shape of vesta. Not available is null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from site_builder.model import BoardGpu, BoardHost
from site_builder.now import Now
from site_builder.renderers.plain import addresses, available, moment, processes, program_of, stamp, whole


def host(board: BoardHost, looked: float | None, now: Now) -> bytes:
    """`{"atlas": …}` and a line end; `looked` is when its GPUs were."""
    at = stamp(looked, now.zone)
    entry = {
        "gpu_data": {key: gpu(one, at) for key, one in by_key(board.gpus)},
        "timestamp": None if board.seen is None else int(moment(board.seen, now.zone, "%Y%m%d%H%M%S")),
    }
    content = {
        "data": [] if board.seen is None else [entry],
        "ip_address": next((address for _, address in addresses(board)), None),
        "state": board.state,
        "reason": board.reason,
    }
    return orjson.dumps({board.name: content}, option=orjson.OPT_APPEND_NEWLINE)


def by_key(gpus: Iterable[BoardGpu]) -> Iterator[tuple[str, BoardGpu]]:
    """`gpu:0`; the UUID names one that has no index, or that of another."""
    taken: set[str] = set()
    for place, one in enumerate(gpus):
        keys = (one.gpu.index, one.gpu.uuid, f"? {place}")
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


def states(hosts: Iterable[bytes]) -> bytes:
    """All hosts in one object, from the content of their files."""
    return b"{" + b",\n".join(one.strip()[1:-1] for one in hosts) + b"}\n"
