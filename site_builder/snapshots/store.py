"""What each host says: the four files of a snapshot in data/HOST/, or those of the original scripts in data/ itself.

What is kept of a file, in memory and in state/, is the last whole content. It answers for one that is torn, refused or
gone, and only what changed is read again.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from site_builder.core import files
from site_builder.core.faults import describe
from site_builder.core.model import Dump, HostData, Problem
from site_builder.core.names import BOOKINGS, is_host
from site_builder.core.record_file import DamagedFileError, Record, read_records, write_records
from site_builder.core.shared_folder import is_pointer
from site_builder.core.typed_json import dump_json, make_decoder
from site_builder.snapshots import envelope
from site_builder.snapshots.parse_cache import parse_once
from site_builder.snapshots.parsers import gpus_csv, host_txt, legacy_files, processes_csv, ps_txt

TASKS = {"host.txt": "host", "gpus.csv": "gpus", "processes.csv": "processes", "ps.txt": "ps"}
OF_HOST = re.compile(rf"(.+)_({'|'.join(map(re.escape, legacy_files.SUFFIXES))})")
# An empty file of these is what the original scripts write where there is nothing to tell.
MAY_BE_EMPTY = frozenset(legacy_files.SUFFIXES) - {"gpus.csv"}
# Bytes of a file: as many as are read unless GPUBOARD_SNAPSHOT_KIB says otherwise, and as it may say at most.
READ, LIMIT = 1024 * 1024, 8 * 1024 * 1024
MORE = "GPUBOARD_SNAPSHOT_KIB allows more"
MOST_HOSTS = 20_000
FOLDER_MODE = 0o750
# A new number whenever what is kept changes its shape: an older file is then not used.
LAST_MOMENT = 1e11  # the year 5138: no file arrives later
STORE, TITLE = "snapshots.kept", "gpuboard snapshots 3"
# What an older gpuboard left: a pickle, which could execute code, and is never read.
OLD_STORE = "snapshots.pickle"


class Kept(NamedTuple):
    """A file as it was last seen (None: it is gone), its last whole content, when that came, and what is wrong now."""

    signature: files.Signature | None
    content: bytes
    arrived: float
    problem: str | None = None


class StoredFile(NamedTuple):
    """What is stored of a file beside its content."""

    name: str
    signature: files.Signature | None
    arrived: float
    problem: str | None


class StoredHost(NamedTuple):
    """What is stored of a host beside the contents of its files."""

    name: str
    is_original: bool
    files: tuple[StoredFile, ...]


class Told(NamedTuple):
    """One host: its files, whether they are those of the original scripts, and what is wrong beside them."""

    name: str
    files: dict[str, Kept]
    legacy: bool = False
    problems: tuple[Problem, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same as long as nothing changed."""
        return (*((kept.signature, kept.arrived, kept.problem) for kept in self.files.values()), self.problems)

    def data(self) -> HostData:
        """All that can be understood of it."""
        return of_original(self) if self.legacy else of_snapshot(self)


class Snapshots:
    """Looks at data/ again and again; remembers what it has read."""

    def __init__(self, data: Path, state: Path | None, limit: int = READ) -> None:
        """Take up what the last build left in state/, if there is any and it can be read; `limit` is for each file."""
        self.data = data
        self.limit = limit
        self.store = state / STORE if state else Path(os.devnull)
        self.native: dict[str, dict[str, Kept]] = {}
        self.original: dict[str, dict[str, Kept]] = {}
        self.changed = False
        # of a damaged file nothing counts, and all is read again
        with suppress(DamagedFileError, ValueError):
            self.native, self.original = load_hosts(self.store) if state else ({}, {})

    def read(self, only: Container[str] | None = None) -> tuple[list[Told], list[Problem]]:
        """Every host that data/ has, or had until it is forgotten; an OSError if the folder cannot be read."""
        problems: list[Problem] = []
        folders, originals = self.entries(problems)
        if only is not None:
            folders = {name for name in folders if name in only}
            originals = {name: files for name, files in originals.items() if name in only}
        for name in folders.union(self.native):
            self.look_into(name, name in folders, problems)
        with folder_of(self.data, files.TOP) as folder:
            for name in originals.keys() | self.original.keys():
                present = originals.get(name, set()) | self.original.get(name, {}).keys()
                try:
                    self.look_at(self.original, name, {file: f"{name}_{file}" for file in present}, folder)
                except Exception as error:  # as in look_into
                    self.original[name] = {}
                    problems.append(Problem(f"data/{name}_*", describe("its files could not be read", error)))
        return [self.told(name) for name in sorted(folders.union(self.native, self.original))], problems

    def entries(self, problems: list[Problem]) -> tuple[set[str], dict[str, set[str]]]:
        """The folders that can be hosts and the files of the original scripts; what can be neither is told."""
        folders: set[str] = set()
        originals: dict[str, set[str]] = {}
        with os.scandir(self.data) as found:
            for entry in found:
                if entry.name.startswith(".") or entry.name == BOOKINGS:
                    continue
                if entry.is_symlink() and is_pointer(entry.path):
                    continue
                if entry.is_symlink():
                    problems.append(Problem(f"data/{entry.name[:80]!a}", "it is a link, and links are not followed"))
                elif entry.is_dir(follow_symlinks=False):
                    if is_host(entry.name) and len(folders) < MOST_HOSTS:
                        folders.add(entry.name)
                    else:
                        problems.append(Problem(f"data/{entry.name[:80]!a}", why_not(entry.name)))
                elif match := OF_HOST.fullmatch(entry.name):
                    if is_host(match[1]) and (match[1] in originals or len(originals) < MOST_HOSTS):
                        originals.setdefault(match[1], set()).add(match[2])
                    else:
                        problems.append(Problem(f"data/{entry.name[:80]!a}", why_not(match[1])))
        return folders, originals

    def look_into(self, name: str, present: bool, problems: list[Problem]) -> None:
        """The four files in the folder of a host."""
        try:
            with folder_of(f"{self.data}/{name}") if present else no_folder() as folder:
                self.look_at(self.native, name, {file: file for file in TASKS}, folder)
        except OSError as error:
            problems.append(Problem(f"data/{name}", f"the folder cannot be read: {error.strerror}"))
        except Exception as error:  # a fault of ours costs this host alone, and what was read before is not believed
            self.native.pop(name, None)
            problems.append(Problem(f"data/{name}", describe("its files could not be read", error)))

    def look_at(self, kept: dict[str, dict[str, Kept]], name: str, paths: dict[str, str], folder: int | None) -> None:
        """See what changed among the files of a host; one that was never there is none."""
        before = kept.get(name, {})
        now: dict[str, Kept] = {}
        for file, path in paths.items():
            one = look(before.get(file), name, file, path, folder, kept is self.original, self.limit)
            if one is not None:
                now[file] = one
        if now != before:
            kept[name] = now
            self.changed = True
        if not now:
            kept.pop(name, None)

    def told(self, name: str) -> Told:
        """The newer of the two kinds of files, where a host has both."""
        native, original = self.native.get(name, {}), self.original.get(name, {})
        if not original:
            return Told(name, native)
        newest = max(kept.arrived for kept in original.values())
        if native and max(kept.arrived for kept in native.values()) >= newest:
            what = f"files of the original scripts that are older than data/{name}/, and not read; remove them"
            return Told(name, native, problems=(Problem(f"data/{name}_*", what),))
        return Told(name, original, legacy=True)

    def forget(self, name: str) -> None:
        """Let go of what is kept of a host."""
        for kept in (self.native, self.original):
            self.changed = kept.pop(name, None) is not None or self.changed

    def clock_offsets(self, now: float, recent: float) -> Iterator[float]:
        """Return by how many seconds the clock of each host that pushed recently is ahead of ours."""
        for several in self.native.values():
            kept = several.get("host.txt")
            if kept and abs(now - kept.arrived) <= recent:
                told, _ = envelope.header(kept.content, "host")
                if told:
                    yield told.time - kept.arrived

    def save(self) -> None:
        """Keep what was read, for the next build; whole or not at all."""
        if self.changed:
            write_records(self.store, TITLE, self.records())
            self.changed = False

    def records(self) -> Iterator[Record]:
        """Yield what is stored, host by host."""
        for kept, is_original in ((self.native, False), (self.original, True)):
            for name, by_file in kept.items():
                stored = [StoredFile(file, one.signature, one.arrived, one.problem) for file, one in by_file.items()]
                with suppress(TypeError):  # a text that JSON cannot hold costs that host a second reading
                    text = dump_json(StoredHost(name, is_original, tuple(stored)))
                    yield text, [one.content for one in by_file.values()]


def load_hosts(store: Path) -> tuple[dict[str, dict[str, Kept]], dict[str, dict[str, Kept]]]:
    """Load what the last builder stored, of native files and of the original scripts; all of it, or an error."""
    decode = make_decoder(StoredHost)
    native: dict[str, dict[str, Kept]] = {}
    original: dict[str, dict[str, Kept]] = {}
    for text, contents in read_records(store, TITLE):
        host: StoredHost = decode(orjson.loads(text))
        known = legacy_files.SUFFIXES if host.is_original else TASKS
        possible = all(one.name in known and 0 <= one.arrived < LAST_MOMENT for one in host.files)
        if not is_host(host.name) or len(host.files) != len(contents) or not possible:
            raise DamagedFileError(host.name)
        (original if host.is_original else native)[host.name] = {
            one.name: Kept(one.signature, content, one.arrived, one.problem)
            for one, content in zip(host.files, contents)
        }
    return native, original


def remove(data: Path, name: str) -> list[str]:
    """Delete the files of a host, those that we know and no other; what is left in its folder."""
    with folder_of(data, files.TOP) as top:
        for file in legacy_files.SUFFIXES:
            unlink(f"{name}_{file}", top)
    if not (data / name).is_dir() or (data / name).is_symlink():
        return []
    with folder_of(data / name) as folder:
        for file in TASKS:
            unlink(file, folder)
            unlink(f".{file}.new", folder)  # what a push has not yet renamed
            unlink(f".{file}.put", folder)  # nor a pull, nor the copy of Consul's store
        with suppress(OSError):
            new = os.open(".new", files.FOLDER, dir_fd=folder)
            try:
                for file in TASKS:
                    unlink(file, new)
            finally:
                os.close(new)
            os.rmdir(".new", dir_fd=folder)
        with os.scandir(folder) as entries:
            left = sorted(entry.name for entry in entries)
    if not left:
        (data / name).rmdir()
    return left


def unlink(file: str, folder: int) -> None:
    """Delete a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(file, dir_fd=folder)


def why_not(name: str) -> str:
    """Why there can be no host of this name."""
    return f"there are more than {MOST_HOSTS} hosts" if is_host(name) else "its name cannot be that of a host"


@contextmanager
def folder_of(path: Path | str, flags: int = files.FOLDER) -> Iterator[int]:
    """An open folder, which nobody can exchange for another while it is read."""
    handle = os.open(path, flags)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def own_folder_of(data: Path, name: str) -> Iterator[int]:
    """Open the folder of a host to write in it: made if need be, ours, and writable for nobody else.

    It is checked when it is open, so that nobody can exchange it for a link or a folder of theirs.
    """
    with folder_of(data, files.TOP) as top:
        made = False
        with suppress(FileExistsError):
            os.mkdir(name, FOLDER_MODE, dir_fd=top)
            made = True
        folder = os.open(name, files.FOLDER, dir_fd=top)
    try:
        status = os.fstat(folder)
        if os.geteuid() not in {0, status.st_uid}:
            us = files.login_of(os.geteuid())
            what = f"it belongs to {files.login_of(status.st_uid)}, not to {us}: remove it, or chown it"
            raise PermissionError(errno.EPERM, what, str(data / name))
        mode = stat.S_IMODE(status.st_mode)
        wanted = mode | FOLDER_MODE if made else mode & ~0o022  # whatever the umask: the group reads, and no more
        if mode != wanted:
            os.fchmod(folder, wanted)
        yield folder
    finally:
        os.close(folder)


@contextmanager
def no_folder() -> Iterator[None]:
    """A folder that is gone."""
    yield None


def look(  # noqa: PLR0913, PLR0917 a file is found by all of these
    before: Kept | None, name: str, file: str, path: str, folder: int | None, original: bool, limit: int = READ
) -> Kept | None:
    """What counts of a file now, given what counted before."""
    try:
        signature = files.look(path, folder) if folder is not None else None
        if before and signature == before.signature and not before.problem:
            return before
        if signature is None or folder is None:
            return before._replace(signature=None, problem=None) if before and before.content else None
        signature, content = files.read(path, folder, limit)
    except files.TooLarge as why:
        refusal = f"not read: {why}; {MORE}" if limit < LIMIT else f"not read: {why}"
        return before._replace(problem=refusal) if before else Kept(None, b"", 0, refusal)
    except files.Refused as why:
        refusal = f"not read: {why}"
        return before._replace(problem=refusal) if before else Kept(None, b"", 0, refusal)
    arrived = signature.arrived_ns / 1e9
    # the original ones may be copied with their own times, and what came from Consul may be older than the file; only
    # what lies in the past can be true
    arrived = max(0.0, min(arrived, signature.modified_ns / 1e9 if original else envelope.as_of(content)))
    problem, counts = (fault_of_original if original else fault)(content, name, file)
    if before and before.content and (problem or before.content == content):
        return Kept(signature, before.content, before.arrived, problem)
    return Kept(signature, content if counts else b"", arrived, problem)


def fault(content: bytes, name: str, file: str) -> tuple[str | None, bool]:
    """What is wrong with a file of a snapshot as a whole, and whether it counts."""
    header, problem = envelope.header(content, TASKS[file])
    if header is None:
        return problem, False
    if header.host != name:
        return f"it says host={header.host[:80]}, which is not its folder's name, and does not count", False
    return (None, True) if envelope.is_whole(content) else (envelope.TORN, False)


def fault_of_original(content: bytes, _: str, file: str) -> tuple[str | None, bool]:
    """The same for one of the original scripts: they have neither header nor end, only lines."""
    if content.endswith(b"\n") or (not content and file in MAY_BE_EMPTY):
        return None, True
    return "the file is torn: its last line has no end", False


def of_snapshot(told: Told) -> HostData:
    """What the four files of a snapshot say."""
    found: dict[str, Dump[Any]] = {}
    problems = list(told.problems)

    def read(file: str, reader: Callable[[bytes], Dump[Any]], given: object = None) -> Dump[Any] | None:
        kept = told.files.get(file)
        if kept is None:
            return None
        content = kept.content
        dump = parse_once((told.name, file), content, given, lambda: reader(content)) if content else Dump()
        if kept.problem and kept.problem not in dump.problems:
            problems.append(Problem(f"data/{told.name}/{file}", kept.problem))
        problems.extend(Problem(f"data/{told.name}/{file}", what) for what in dump.problems)
        if dump.header is None:
            return None
        found[file] = dump
        return dump

    facts, gpu_rows, process_rows = (
        read("host.txt", host_txt.read),
        read("gpus.csv", gpus_csv.read),
        read("processes.csv", processes_csv.read),
    )
    pids = {row.pid for row in process_rows.rows if row.pid is not None} if process_rows else set()
    ps_rows = read("ps.txt", lambda content: ps_txt.read(content, pids), pids)
    seen = told.files["host.txt"].arrived if facts else None
    return HostData(
        told.name,
        gpu_rows,
        process_rows,
        ps_rows,
        facts,
        seen,
        {file: min(moment, told.files[file].arrived) for file, moment in taken(found, seen).items()},
        {file: dump.header.every for file, dump in found.items() if dump.header},
        facts.header.time - seen if facts and facts.header and seen is not None else None,
        tuple(file for file, kept in told.files.items() if kept.signature is None and not kept.problem),
        problems=tuple(problems),
    )


def taken(dumps: dict[str, Dump[Any]], seen: float | None) -> dict[str, float]:
    """When host.txt arrived, less how much older a file's own time is: only differences on one clock count."""
    facts = dumps.get("host.txt")
    if seen is None or facts is None or facts.header is None:
        return {}
    time = facts.header.time
    return {file: seen - max(0, time - dump.header.time) for file, dump in dumps.items() if dump.header}


def of_original(told: Told) -> HostData:
    """What the files of the original scripts say; their age is that of the GPUs' file."""
    # one of which no whole content was ever read is not told, which is another thing than empty
    contents = {file: kept.content for file, kept in told.files.items() if kept.content or not kept.problem}

    def read(file: str, parse: Callable[[bytes], Any], given: object = None) -> Any:  # noqa: ANN401 # each has its own
        content = contents.get(file)
        return None if content is None else parse_once((told.name, f"_{file}"), content, given, lambda: parse(content))

    gpu_rows, newest = read("gpus.csv", legacy_files.gpus) or (None, None)
    process_rows = read("processes.csv", lambda content: legacy_files.processes(content, newest), newest)
    ps_rows = read("users.csv", lambda content: legacy_files.users(content, newest), newest)
    status, disks, local = (contents.get(file, b"") for file in ("status.csv", "disks.csv", "local.txt"))
    facts = parse_once((told.name, "_facts"), status, (disks, local), lambda: legacy_files.host(status, disks, local))
    dumps = {"gpus.csv": gpu_rows, "processes.csv": process_rows, "users.csv": ps_rows, "status.csv": facts}
    seen = told.files["gpus.csv"].arrived or None if gpu_rows else None
    return HostData(
        told.name,
        gpu_rows,
        process_rows,
        ps_rows,
        facts,
        seen,
        {"gpus.csv": seen} if seen is not None else {},
        {"gpus.csv": legacy_files.EVERY},
        gone=tuple(file for file, kept in told.files.items() if kept.signature is None and not kept.problem),
        legacy=True,
        problems=(*told.problems, *problems_of_original(told, dumps)),
    )


def problems_of_original(told: Told, dumps: dict[str, Dump[Any] | None]) -> Iterable[Problem]:
    """What is wrong with the files, and what their readers could not understand."""
    for file, kept in told.files.items():
        dump = dumps.get(file)
        for what in (*((kept.problem,) if kept.problem else ()), *(dump.problems if dump else ())):
            yield Problem(f"data/{told.name}_{file}", what)
