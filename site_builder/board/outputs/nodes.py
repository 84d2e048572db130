"""nodes/: each host with its GPUs, in the JSON shape of the GPU Cluster Status Monitor. Not available is null."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from site_builder.board.outputs.plain import addresses, moment, processes, whole
from site_builder.core.clock import Now
from site_builder.core.model import BoardGpu, BoardHost
from site_builder.fleet.mig import Whole, wholes


def host(board: BoardHost, now: Now) -> bytes:
    """A host; `last_update` is in the zone of the board and without its offset, as programs for this shape want it."""
    content = {
        "hostname": board.name,
        "last_update": None if board.seen is None else moment(board.seen, now.zone, "%Y-%m-%dT%H:%M:%S.000000"),
        "ips": addresses(board),
        "gpus": [whole_gpu(one) for one in wholes(board)],
        "status": board.state == "fresh",
        "state": board.state,
        "reason": board.reason,
        "seen": whole(board.seen),
    }
    return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)


def whole_gpu(one: Whole) -> dict[str, Any]:
    """A GPU, with its instances where it is cut into some."""
    found = gpu(one.board)
    if one.instances:
        more = ({"place": each.gpu.place, "profile": each.gpu.profile, "uuid": each.gpu.uuid} for each in one.instances)
        found["instances"] = [{**gpu(each), **names} for each, names in zip(one.instances, more)]
    return found


def gpu(board: BoardGpu) -> dict[str, Any]:
    """A GPU; memory in MiB."""
    told, several = board.gpu, processes(board)
    return {
        "index": told.index,
        "name": told.name,
        "use_mem": whole(told.memory_used),
        "tot_mem": whole(told.memory_total),
        "utilize": whole(told.utilization_gpu),
        "temp": whole(told.temperature),
        "users": several
        and [
            {"pid": one.pid, "username": one.user, "mem(MiB)": whole(one.used_memory), "command": one.command}
            for one in several
        ],
        "state": board.state,
        "reason": board.reason,
    }


def nodes(hosts: Iterable[bytes]) -> bytes:
    """All hosts as the main node of that system tells them, from the content of their files."""
    return b'{"Nodes":[' + b",\n".join(one.strip() for one in hosts) + b"]}\n"
