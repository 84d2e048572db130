"""gpus.csv: the GPUs of a host, as its tools told them."""

from __future__ import annotations

from dataclasses import replace

from site_builder.core.model import Dump, Gpu
from site_builder.snapshots import registry
from site_builder.snapshots.envelope import bounded

MOST_GPUS = 1024


def read(data: bytes) -> Dump[Gpu]:
    """Each GPU once, in the order of its number; those of a second maker come behind, and have its name in theirs."""
    dump, rows = registry.told(data, "gpus", lambda tool, pieces: tool.gpus(pieces))
    problems = list(dump.problems)
    kept: list[Gpu] = []
    makers: set[str] = set()
    for tool, found in rows:
        if found and tool.vendor in makers:
            problems.append(f"GPUs of {tool.vendor} are told by two parts; the first part counts")
            continue
        makers |= {tool.vendor} if found else set()
        several = sorted(distinct(found, problems), key=lambda one: (one.index is None, one.index or 0))
        # also where the first maker tells no GPU just now: what a booking calls amd0 must not become 0
        if tool.vendor != rows[0][0].vendor:
            several = [one._replace(place=f"{tool.vendor}{one.label}") for one in several]
        kept += several
    if len(kept) > MOST_GPUS:
        problems.append(f"{len(kept)} GPUs are told; only the first {MOST_GPUS} count")
    return replace(dump, rows=tuple(kept[:MOST_GPUS]), problems=bounded(problems))


def distinct(found: tuple[Gpu, ...], problems: list[str]) -> list[Gpu]:
    """Each GPU once. A row of nothing but errors belongs to the message before it."""
    kept: list[Gpu] = []
    uuids: set[str] = set()
    for one in found:
        if one.uuid is None and one.index is None and one.lost and kept and kept[-1].lost and kept[-1].uuid is None:
            continue
        if one.uuid is not None and one.uuid in uuids:
            problems.append(f"the GPU {one.uuid} is told twice; the first row counts")
            continue
        if one.uuid is not None:
            uuids.add(one.uuid)
        kept.append(one)
    return kept
