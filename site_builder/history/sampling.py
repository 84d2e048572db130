"""What history keeps of a host at this moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from site_builder.core.model import BoardGpu, BoardHost, HostFacts
from site_builder.history.model import GpuSample, HostSample, Series, Standing


def sample(board: BoardHost) -> HostSample | None:
    """A host that is fresh; of any other nothing is known, and so nothing is kept."""
    if board.state != "fresh":
        return None
    facts = board.facts or HostFacts()
    load = 100 * facts.load[0] / facts.cpus if facts.load and facts.cpus else None
    memory = None
    if facts.memory_total and facts.memory_available is not None:
        memory = 100 * (1 - facts.memory_available / facts.memory_total)
    keys: dict[str, int] = {}
    return HostSample(board.name, load, memory, tuple(gpu(one, key_of(one, keys)) for one in board.gpus))


def key_of(board: BoardGpu, keys: dict[str, int]) -> str:
    """What names a GPU on its host; of several under one name, each has its own."""
    key = board.key
    count = keys[key] = keys.get(key, 0) + 1
    return key if count == 1 else f"{key} #{count}"


def keys_of(gpus: Iterable[BoardGpu]) -> list[str]:
    """What names each of the GPUs that a host has now."""
    keys: dict[str, int] = {}
    return [key_of(one, keys) for one in gpus]


def gpu(board: BoardGpu, key: str) -> GpuSample:
    """A GPU."""
    told = board.gpu
    return GpuSample(
        Series(key, told.number, board.model, told.memory_total),
        told.utilization_gpu,
        told.memory_used,
        told.temperature,
        told.power_draw,
        Standing(board.state, board.who),
    )


def outdated(hosts: Mapping[str, tuple[Sequence[str], float | None]]) -> set[str]:
    """Hosts all of whose GPUs another one tells that was heard later: old names of it, or each minute counts twice.

    Of each host its GPUs' UUIDs, and when it was heard last.
    """
    every = [uuid for uuids, _ in hosts.values() for uuid in uuids]
    if len(set(every)) == len(every):  # as it should be
        return set()
    last: dict[str, float] = {}
    for uuids, seen in hosts.values():
        for uuid in uuids:
            last[uuid] = max(last.get(uuid, 0), seen or 0)
    return {name for name, (uuids, seen) in hosts.items() if uuids and all(last[uuid] > (seen or 0) for uuid in uuids)}
