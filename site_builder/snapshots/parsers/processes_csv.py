"""processes.csv: the compute processes on the GPUs of a host, as its tools told them."""

from __future__ import annotations

from dataclasses import replace

from site_builder.core.model import Dump, GpuProcess
from site_builder.snapshots import registry
from site_builder.snapshots.envelope import bounded

MOST_PROCESSES = 10_000


def read(data: bytes) -> Dump[GpuProcess]:
    """Every row of every tool."""
    dump, rows = registry.told(data, "processes", lambda tool, pieces: tool.processes(pieces))
    found = [row for _, several in rows for row in several]
    problems = list(dump.problems)
    voices = dump.voices
    if len(found) > MOST_PROCESSES:
        problems.append(f"{len(found)} GPU processes are told; only the first {MOST_PROCESSES} count")
        voices = tuple(one._replace(answered=False) for one in voices)  # no GPU is free for want of the others
    return replace(dump, rows=tuple(found[:MOST_PROCESSES]), problems=bounded(problems), voices=voices)
