"""What was fetched from a host, put into data/ as a push would: checked, whole or absent, and never the same twice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from site_builder.core import files, locks
from site_builder.snapshots import envelope
from site_builder.snapshots.store import LIMIT, TASKS, fault, own_folder_of

# host.txt last: the age of all counts from when it came.
FILES = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")
# Another pull has a folder for a moment only; but whoever may read the folder can hold its lock for ever.
PATIENCE = 1.0
LOOK_EVERY = 0.02


class NotPulled(Exception):
    """Why nothing came from a host, in one sentence."""


class Way(Protocol):
    """The way to a host; it stays open between rounds."""

    def fetch(self, deadline: float) -> dict[str, bytes]:
        """The files that are new, until a moment on the monotonic clock; a NotPulled says why there are none."""

    def close(self) -> None:
        """End it, from any thread; a fetch that is under way ends soon."""


def put(data: Path, name: str, found: Mapping[str, bytes]) -> list[str]:
    """Write what counts of the files of a host, and tell what does not; an OSError if it cannot be written."""
    problems = []
    good = {}
    for file in FILES:
        if file in found:
            problem = refusal(found[file], name, file)
            if problem:
                problems.append(f"{file} {problem}")
            else:
                good[file] = found[file]
    if not good:
        return problems
    with own_folder_of(data, name) as folder:
        if not locks.wait(folder, time.monotonic() + PATIENCE, LOOK_EVERY):  # it ends with the open folder
            return [*problems, "another pull is writing its files just now"]
        for file, content in good.items():
            if not has(folder, file, content):
                files.put(folder, file, content)
    return problems


def refusal(content: bytes, name: str, file: str) -> str | None:
    """Why a file does not count, if it does not."""
    if len(content) > LIMIT:
        return f"has more than the {LIMIT >> 20} MiB that are read"
    header, _ = envelope.header(content, TASKS[file])
    if header and header.host != name:
        return f"says host={envelope.clean(header.host)[:80]}: pull it by that name"
    problem, _ = fault(content, name, file)
    return f"does not count: {problem}" if problem else None


def has(folder: int, file: str, content: bytes) -> bool:
    """Whether this very snapshot stands there: written again, it would look fresh."""
    try:
        _, kept = files.read(file, folder, LIMIT)
    except files.Refused:
        return False
    return envelope.is_whole(kept) and kept.partition(b"\n")[0] == content.partition(b"\n")[0]
