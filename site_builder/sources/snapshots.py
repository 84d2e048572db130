"""What each host says: the four files of a snapshot in data/HOST/.

Files that did not change are not parsed again; a torn one is answered by the last whole one. Both come from one file in
state/, which holds what was understood of every file at the last build.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from site_builder.model import Dump, HostData, Problem
from site_builder.readers import gpus, host, processes, ps
from site_builder.readers.names import is_host
from site_builder.sources import files

READERS: dict[str, Callable[[bytes], Dump[Any]]] = {
    "host.txt": host.read,
    "gpus.csv": gpus.read,
    "processes.csv": processes.read,
    "ps.txt": ps.read,
}
LIMIT = 8 * 1024 * 1024
CLOCK_OFF = 60
# A new number whenever what is kept changes its shape: an older file is then not used.
KEPT_VERSION = 1


@dataclass(frozen=True)
class Kept:
    """What was understood of a file, and the best that there is: itself, or if it is torn the last whole one."""

    signature: files.Signature
    dump: Dump[Any]
    best: Dump[Any]
    best_arrived_ns: int


class Snapshots:
    """Reads data/ again and again; remembers what it has understood."""

    def __init__(self, data: Path, state: Path) -> None:
        """Take up what the last build left in state/, if it can be read."""
        self.data = data
        self.store = state / "snapshots.pickle"
        self.kept: dict[tuple[str, str], Kept] = {}
        try:
            version, kept = pickle.loads(self.store.read_bytes())  # noqa: S301 state/ is the builder's alone
            if version == KEPT_VERSION:
                self.kept = kept
        except Exception:  # noqa: S110 anything may stand in a damaged file; then all is parsed again
            pass

    def read(self, now: float) -> tuple[list[HostData], list[Problem]]:
        """Every host that has a folder in data/, in the order of their names."""
        problems: list[Problem] = []
        hosts = [self.read_host(name, now, problems) for name in self.names(problems)]
        present = {found.name for found in hosts}
        self.kept = {key: value for key, value in self.kept.items() if key[0] in present}
        return hosts, problems

    def names(self, problems: list[Problem]) -> list[str]:
        """The folders that can be hosts; any other is told."""
        try:
            with os.scandir(self.data) as entries:
                found = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            problems.append(Problem(str(self.data), f"the folder cannot be read: {error.strerror}"))
            return []
        names = []
        for entry in sorted(found, key=lambda entry: entry.name):
            if entry.is_symlink():
                problems.append(Problem(f"data/{entry.name[:80]!a}", "it is a link, and links are not followed"))
            elif entry.is_dir(follow_symlinks=False):
                if is_host(entry.name):
                    names.append(entry.name)
                else:
                    problems.append(Problem(f"data/{entry.name[:80]!a}", "the folder's name cannot be that of a host"))
        return names

    def read_host(self, name: str, now: float, problems: list[Problem]) -> HostData:
        """One host: its files, how old they are, and whether its clock is right."""
        dumps: dict[str, Dump[Any]] = {}
        seen: float | None = None
        with folder_of(self.data / name, problems) as folder:
            if folder is None:
                return HostData(name)
            for file in READERS:
                kept = self.read_file(name, file, folder, problems)
                if kept is None:
                    continue
                problems += [Problem(f"data/{name}/{file}", what) for what in kept.dump.problems]
                if kept.best.header is None:
                    continue
                dumps[file] = kept.best
                if file == "host.txt":
                    seen = kept.best_arrived_ns / 1e9
        problems += clock_problem(name, dumps.get("host.txt"), seen)
        return HostData(
            name,
            gpus=dumps.get("gpus.csv"),
            processes=dumps.get("processes.csv"),
            ps=dumps.get("ps.txt"),
            facts=dumps.get("host.txt"),
            seen=seen,
            ages=ages(dumps, seen, now),
        )

    def read_file(self, name: str, file: str, folder: int, problems: list[Problem]) -> Kept | None:
        """What is understood of a file now; what was understood before, where it cannot be read."""
        key = name, file
        before = self.kept.get(key)
        try:
            signature = files.look(file, folder)
            if signature is None:
                self.kept.pop(key, None)
                return None
            if before and before.signature == signature:
                return before
            signature, data = files.read(file, folder, LIMIT)
        except files.Refused as why:
            problems.append(Problem(f"data/{name}/{file}", f"not read: {why}"))
            return before
        dump = READERS[file](data)
        if dump.header and dump.header.host != name:
            what = f"it says host={dump.header.host[:80]}, which is not its folder's name, and does not count"
            dump = replace(dump, rows=(), header=None, whole=False, problems=(*dump.problems, what))
        if before and before.best.whole and not dump.whole:
            self.kept[key] = Kept(signature, dump, before.best, before.best_arrived_ns)
        else:
            self.kept[key] = Kept(signature, dump, dump, signature.arrived_ns)
        return self.kept[key]

    def save(self) -> None:
        """Keep what was understood, for the next build; whole or not at all."""
        new = self.store.with_suffix(".new")
        new.write_bytes(pickle.dumps((KEPT_VERSION, self.kept), protocol=pickle.HIGHEST_PROTOCOL))
        new.replace(self.store)


@contextmanager
def folder_of(path: Path, problems: list[Problem]) -> Iterator[int | None]:
    """An open folder, which nobody can exchange for another while it is read; None if it cannot be opened."""
    try:
        handle = os.open(path, files.FOLDER)
    except OSError as error:
        problems.append(Problem(f"data/{path.name}", f"the folder cannot be read: {error.strerror}"))
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def ages(dumps: dict[str, Dump[Any]], seen: float | None, now: float) -> dict[str, float]:
    """Seconds since host.txt arrived, and how much older a file's own time is: only differences on one clock count."""
    facts = dumps.get("host.txt")
    if seen is None or facts is None or facts.header is None:
        return {}
    since = max(0.0, now - seen)
    return {file: since + max(0, facts.header.time - dump.header.time) for file, dump in dumps.items() if dump.header}


def clock_problem(name: str, facts: Dump[Any] | None, seen: float | None) -> list[Problem]:
    """A host whose clock is off is told so; it changes no age."""
    if seen is None or facts is None or facts.header is None:
        return []
    off = facts.header.time - seen
    if abs(off) <= CLOCK_OFF:
        return []
    words = "ahead" if off > 0 else "behind, or its snapshots take that long to arrive"
    return [Problem(name, f"the clock of this host is {abs(off):.0f} s {words}")]
