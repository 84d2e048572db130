"""The files of all hosts in data/, parsed once for each change."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson

from site_builder.core import files
from site_builder.core.faults import describe_fault
from site_builder.core.files import is_moved_file_link
from site_builder.core.model import HostSnapshot, ParsedFile, Problem
from site_builder.core.names import BOOKINGS, is_host_name
from site_builder.core.records import DamagedFileError, Record, dump_json, make_decoder, read_records, write_records
from site_builder.snapshots import envelope, registry
from site_builder.snapshots.parsers import host_txt, legacy_files, ps_txt

Result = TypeVar("Result")
# Bytes of files whose results are kept, the newest; what they were parsed to takes four times as much memory.
MAX_CHEAP_BYTES = 2 * 1024 * 1024
# The same of files that took longer to parse than so many seconds, which a large fleet must not push out.
MAX_EXPENSIVE_BYTES, EXPENSIVE_AFTER_S = 16 * 1024 * 1024, 0.01


class ParseCacheEntry(NamedTuple):
    """A file's content, what else its result depends on, and the result."""

    content: bytes
    dependencies: object
    result: object


class ParseCache:
    """The last result of each file, within a limit."""

    def __init__(self, most: int) -> None:
        """Nothing was parsed yet."""
        self.max_bytes = most
        self.size = 0
        self.entries: dict[tuple[str, str], ParseCacheEntry] = {}

    def find(self, key: tuple[str, str], content: bytes, given: object) -> ParseCacheEntry | None:
        """Return the entry of a file that still says the same."""
        found = self.entries.get(key)
        return found if found and found.dependencies == given and found.content == content else None

    def keep(self, key: tuple[str, str], entry: ParseCacheEntry) -> None:
        """Keep a result; the oldest make room."""
        if len(entry.content) > self.max_bytes:
            return
        self.entries[key] = entry
        self.size += len(entry.content)
        while self.size > self.max_bytes:
            self.drop(next(iter(self.entries)))

    def drop(self, key: tuple[str, str]) -> None:
        """Let go of a result."""
        found = self.entries.pop(key, None)
        self.size -= len(found.content) if found else 0


CACHE_LOCK = threading.Lock()
CHEAP_CACHE, EXPENSIVE_CACHE = ParseCache(MAX_CHEAP_BYTES), ParseCache(MAX_EXPENSIVE_BYTES)


def parse_once(key: tuple[str, str], content: bytes, given: object, parse: Callable[[], Result]) -> Result:
    """Return what a file was parsed to, or parse it now; `given` is what the result depends on beside its content."""
    for known in (CHEAP_CACHE, EXPENSIVE_CACHE):
        found = known.find(key, content, given)
        if found:
            return found.result  # type: ignore[return-value] # of the same key
    began = time.thread_time()
    result = parse()
    is_costly = time.thread_time() - began > EXPENSIVE_AFTER_S
    with CACHE_LOCK:
        for known in (CHEAP_CACHE, EXPENSIVE_CACHE):
            known.drop(key)
        (EXPENSIVE_CACHE if is_costly else CHEAP_CACHE).keep(key, ParseCacheEntry(content, given, result))
    return result


TASKS_BY_FILE = {"host.txt": "host", "gpus.csv": "gpus", "processes.csv": "processes", "ps.txt": "ps"}
LEGACY_FILE_NAME = re.compile(rf"(.+)_({'|'.join(map(re.escape, legacy_files.LEGACY_FILES))})")
# An empty file of these is what the original scripts write where there is nothing to tell.
POSSIBLY_EMPTY_FILES = frozenset(legacy_files.LEGACY_FILES) - {"gpus.csv"}
# Bytes of a file: as many as are read unless GPUBOARD_SNAPSHOT_KIB says otherwise, and as it may say at most.
DEFAULT_SNAPSHOT_BYTES, MAX_SNAPSHOT_BYTES = 1024 * 1024, 8 * 1024 * 1024
LIMIT_HINT = "GPUBOARD_SNAPSHOT_KIB allows more"
MAX_HOSTS = 20_000
FOLDER_MODE = 0o750
# A new number whenever what is kept changes its shape: an older file is then not used.
MAX_EPOCH = 1e11  # the year 5138: no file arrives later
STORE_FILE, STORE_TITLE = "snapshots.kept", "gpuboard snapshots 3"
# What an older gpuboard left: a pickle, which could execute code, and is never read.
OLD_STORE_FILE = "snapshots.pickle"


class HostFile(NamedTuple):
    """A file as it was last seen (None: it is gone), its last whole content, when that came, and what is wrong now."""

    signature: files.FileSignature | None
    content: bytes
    arrived_at: float
    problem: str | None = None


class StoredFile(NamedTuple):
    """What is stored of a file beside its content."""

    name: str
    signature: files.FileSignature | None
    arrived_at: float
    problem: str | None


class StoredHost(NamedTuple):
    """What is stored of a host beside the contents of its files."""

    name: str
    is_legacy: bool
    files: tuple[StoredFile, ...]


class HostFiles(NamedTuple):
    """One host: its files, whether they are those of the original scripts, and what is wrong beside them."""

    name: str
    files: dict[str, HostFile]
    is_legacy: bool = False
    problems: tuple[Problem, ...] = ()

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """What is the same as long as nothing changed."""
        return (*((kept.signature, kept.arrived_at, kept.problem) for kept in self.files.values()), self.problems)

    def parse(self) -> HostSnapshot:
        """All that can be understood of it."""
        return parse_legacy_host_files(self) if self.is_legacy else parse_snapshot_files(self)


class SnapshotStore:
    """Looks at data/ again and again; remembers what it has read."""

    def __init__(self, data: Path, state: Path | None, limit: int = DEFAULT_SNAPSHOT_BYTES) -> None:
        """Take up what the last build left in state/, if there is any and it can be read; `limit` is for each file."""
        self.data_folder = data
        self.max_bytes = limit
        self.store_path = state / STORE_FILE if state else Path(os.devnull)
        self.native_files: dict[str, dict[str, HostFile]] = {}
        self.legacy_files: dict[str, dict[str, HostFile]] = {}
        self.has_changes = False
        # of a damaged file nothing counts, and all is read again
        with suppress(DamagedFileError, ValueError):
            self.native_files, self.legacy_files = load_stored_hosts(self.store_path) if state else ({}, {})

    def read_hosts(self, only: Container[str] | None = None) -> tuple[list[HostFiles], list[Problem]]:
        """Every host that data/ has, or had until it is forgotten; an OSError if the folder cannot be read."""
        problems: list[Problem] = []
        folders, originals = self.list_entries(problems)
        if only is not None:
            folders = {name for name in folders if name in only}
            originals = {name: files for name, files in originals.items() if name in only}
        for name in folders.union(self.native_files):
            self.update_host_folder(name, name in folders, problems)
        with open_folder(self.data_folder, files.ROOT_FOLDER_FLAGS) as folder:
            for name in originals.keys() | self.legacy_files.keys():
                present = originals.get(name, set()) | self.legacy_files.get(name, {}).keys()
                try:
                    self.update_host_files(
                        self.legacy_files, name, {file: f"{name}_{file}" for file in present}, folder
                    )
                except Exception as error:  # as in look_into
                    self.legacy_files[name] = {}
                    problems.append(Problem(f"data/{name}_*", describe_fault("its files could not be read", error)))
        return [
            self.choose_host_files(name) for name in sorted(folders.union(self.native_files, self.legacy_files))
        ], problems

    def list_entries(self, problems: list[Problem]) -> tuple[set[str], dict[str, set[str]]]:
        """The folders that can be hosts and the files of the original scripts; what can be neither is told."""
        folders: set[str] = set()
        originals: dict[str, set[str]] = {}
        with os.scandir(self.data_folder) as found:
            for entry in found:
                if entry.name.startswith(".") or entry.name == BOOKINGS:
                    continue
                if entry.is_symlink() and is_moved_file_link(entry.path):
                    continue
                if entry.is_symlink():
                    problems.append(Problem(f"data/{entry.name[:80]!a}", "it is a link, and links are not followed"))
                elif entry.is_dir(follow_symlinks=False):
                    if is_host_name(entry.name) and len(folders) < MAX_HOSTS:
                        folders.add(entry.name)
                    else:
                        problems.append(Problem(f"data/{entry.name[:80]!a}", explain_refused_host(entry.name)))
                elif match := LEGACY_FILE_NAME.fullmatch(entry.name):
                    if is_host_name(match[1]) and (match[1] in originals or len(originals) < MAX_HOSTS):
                        originals.setdefault(match[1], set()).add(match[2])
                    else:
                        problems.append(Problem(f"data/{entry.name[:80]!a}", explain_refused_host(match[1])))
        return folders, originals

    def update_host_folder(self, name: str, present: bool, problems: list[Problem]) -> None:
        """The four files in the folder of a host."""
        try:
            with open_folder(f"{self.data_folder}/{name}") if present else open_missing_folder() as folder:
                self.update_host_files(self.native_files, name, {file: file for file in TASKS_BY_FILE}, folder)
        except OSError as error:
            problems.append(Problem(f"data/{name}", f"the folder cannot be read: {error.strerror}"))
        except Exception as error:  # a fault of ours costs this host alone, and what was read before is not believed
            self.native_files.pop(name, None)
            problems.append(Problem(f"data/{name}", describe_fault("its files could not be read", error)))

    def update_host_files(
        self, kept: dict[str, dict[str, HostFile]], name: str, paths: dict[str, str], folder: int | None
    ) -> None:
        """See what changed among the files of a host; one that was never there is none."""
        before = kept.get(name, {})
        now: dict[str, HostFile] = {}
        for file, path in paths.items():
            one = update_stored_file(
                before.get(file), name, file, path, folder, kept is self.legacy_files, self.max_bytes
            )
            if one is not None:
                now[file] = one
        if now != before:
            kept[name] = now
            self.has_changes = True
        if not now:
            kept.pop(name, None)

    def choose_host_files(self, name: str) -> HostFiles:
        """The newer of the two kinds of files, where a host has both."""
        native, original = self.native_files.get(name, {}), self.legacy_files.get(name, {})
        if not original:
            return HostFiles(name, native)
        newest = max(kept.arrived_at for kept in original.values())
        if native and max(kept.arrived_at for kept in native.values()) >= newest:
            what = f"files of the original scripts that are older than data/{name}/, and not read; remove them"
            return HostFiles(name, native, problems=(Problem(f"data/{name}_*", what),))
        return HostFiles(name, original, is_legacy=True)

    def forget_host(self, name: str) -> None:
        """Let go of what is kept of a host."""
        for kept in (self.native_files, self.legacy_files):
            self.has_changes = kept.pop(name, None) is not None or self.has_changes

    def list_clock_offsets(self, now: float, recent: float) -> Iterator[float]:
        """Return by how many seconds the clock of each host that pushed recently is ahead of ours."""
        for several in self.native_files.values():
            kept = several.get("host.txt")
            if kept and abs(now - kept.arrived_at) <= recent:
                told, _ = envelope.parse_snapshot_header(kept.content, "host")
                if told:
                    yield told.time - kept.arrived_at

    def save(self) -> None:
        """Keep what was read, for the next build; whole or not at all."""
        if self.has_changes:
            write_records(self.store_path, STORE_TITLE, self.build_records())
            self.has_changes = False

    def build_records(self) -> Iterator[Record]:
        """Yield what is stored, host by host."""
        for kept, is_original in ((self.native_files, False), (self.legacy_files, True)):
            for name, by_file in kept.items():
                stored = [StoredFile(file, one.signature, one.arrived_at, one.problem) for file, one in by_file.items()]
                with suppress(TypeError):  # a text that JSON cannot hold costs that host a second reading
                    text = dump_json(StoredHost(name, is_original, tuple(stored)))
                    yield text, [one.content for one in by_file.values()]


def load_stored_hosts(store: Path) -> tuple[dict[str, dict[str, HostFile]], dict[str, dict[str, HostFile]]]:
    """Load what the last builder stored, of native files and of the original scripts; all of it, or an error."""
    decode = make_decoder(StoredHost)
    native: dict[str, dict[str, HostFile]] = {}
    original: dict[str, dict[str, HostFile]] = {}
    for text, contents in read_records(store, STORE_TITLE):
        host: StoredHost = decode(orjson.loads(text))
        known = legacy_files.LEGACY_FILES if host.is_legacy else TASKS_BY_FILE
        possible = all(one.name in known and 0 <= one.arrived_at < MAX_EPOCH for one in host.files)
        if not is_host_name(host.name) or len(host.files) != len(contents) or not possible:
            raise DamagedFileError(host.name)
        (original if host.is_legacy else native)[host.name] = {
            one.name: HostFile(one.signature, content, one.arrived_at, one.problem)
            for one, content in zip(host.files, contents)
        }
    return native, original


def remove_host_files(data: Path, name: str) -> list[str]:
    """Delete the files of a host, those that we know and no other; what is left in its folder."""
    with open_folder(data, files.ROOT_FOLDER_FLAGS) as top:
        for file in legacy_files.LEGACY_FILES:
            unlink_if_present(f"{name}_{file}", top)
    if not (data / name).is_dir() or (data / name).is_symlink():
        return []
    with open_folder(data / name) as folder:
        for file in TASKS_BY_FILE:
            unlink_if_present(file, folder)
            unlink_if_present(f".{file}.new", folder)  # what a push has not yet renamed
            unlink_if_present(f".{file}.put", folder)  # nor a pull, nor the copy of Consul's store
        with suppress(OSError):
            new = os.open(".new", files.FOLDER_FLAGS, dir_fd=folder)
            try:
                for file in TASKS_BY_FILE:
                    unlink_if_present(file, new)
            finally:
                os.close(new)
            os.rmdir(".new", dir_fd=folder)
        with os.scandir(folder) as entries:
            left = sorted(entry.name for entry in entries)
    if not left:
        (data / name).rmdir()
    return left


def unlink_if_present(file: str, folder: int) -> None:
    """Delete a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(file, dir_fd=folder)


def explain_refused_host(name: str) -> str:
    """Why there can be no host of this name."""
    return f"there are more than {MAX_HOSTS} hosts" if is_host_name(name) else "its name cannot be that of a host"


@contextmanager
def open_folder(path: Path | str, flags: int = files.FOLDER_FLAGS) -> Iterator[int]:
    """An open folder, which nobody can exchange for another while it is read."""
    handle = os.open(path, flags)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def open_own_folder(data: Path, name: str) -> Iterator[int]:
    """Open the folder of a host to write in it: made if need be, ours, and writable for nobody else.

    It is checked when it is open, so that nobody can exchange it for a link or a folder of theirs.
    """
    with open_folder(data, files.ROOT_FOLDER_FLAGS) as top:
        made = False
        with suppress(FileExistsError):
            os.mkdir(name, FOLDER_MODE, dir_fd=top)
            made = True
        folder = os.open(name, files.FOLDER_FLAGS, dir_fd=top)
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
def open_missing_folder() -> Iterator[None]:
    """A folder that is gone."""
    yield None


def update_stored_file(
    before: HostFile | None,
    name: str,
    file: str,
    path: str,
    folder: int | None,
    original: bool,
    limit: int = DEFAULT_SNAPSHOT_BYTES,
) -> HostFile | None:
    """What counts of a file now, given what counted before."""
    try:
        signature = files.read_signature(path, folder) if folder is not None else None
        if before and signature == before.signature and not before.problem:
            return before
        if signature is None or folder is None:
            return before._replace(signature=None, problem=None) if before and before.content else None
        signature, content = files.read_file(path, folder, limit)
    except files.FileTooLargeError as why:
        refusal = f"not read: {why}; {LIMIT_HINT}" if limit < MAX_SNAPSHOT_BYTES else f"not read: {why}"
        return before._replace(problem=refusal) if before else HostFile(None, b"", 0, refusal)
    except files.FileRefusedError as why:
        refusal = f"not read: {why}"
        return before._replace(problem=refusal) if before else HostFile(None, b"", 0, refusal)
    arrived = signature.arrived_ns / 1e9
    # the original ones may be copied with their own times, and what came from Consul may be older than the file; only
    # what lies in the past can be true
    arrived = max(0.0, min(arrived, signature.modified_ns / 1e9 if original else envelope.parse_as_of_line(content)))
    problem, counts = (find_legacy_fault if original else find_snapshot_fault)(content, name, file)
    if before and before.content and (problem or before.content == content):
        return HostFile(signature, before.content, before.arrived_at, problem)
    return HostFile(signature, content if counts else b"", arrived, problem)


def find_snapshot_fault(content: bytes, name: str, file: str) -> tuple[str | None, bool]:
    """What is wrong with a file of a snapshot as a whole, and whether it counts."""
    header, problem = envelope.parse_snapshot_header(content, TASKS_BY_FILE[file])
    if header is None:
        return problem, False
    if header.host != name:
        return f"it says host={header.host[:80]}, which is not its folder's name, and does not count", False
    return (None, True) if envelope.has_end_line(content) else (envelope.TORN_MESSAGE, False)


def find_legacy_fault(content: bytes, _: str, file: str) -> tuple[str | None, bool]:
    """The same for one of the original scripts: they have neither header nor end, only lines."""
    if content.endswith(b"\n") or (not content and file in POSSIBLY_EMPTY_FILES):
        return None, True
    return "the file is torn: its last line has no end", False


def parse_snapshot_files(told: HostFiles) -> HostSnapshot:
    """What the four files of a snapshot say."""
    found: dict[str, ParsedFile[Any]] = {}
    problems = list(told.problems)

    def read(file: str, reader: Callable[[bytes], ParsedFile[Any]], given: object = None) -> ParsedFile[Any] | None:
        kept = told.files.get(file)
        if kept is None:
            return None
        content = kept.content
        dump = parse_once((told.name, file), content, given, lambda: reader(content)) if content else ParsedFile()
        if kept.problem and kept.problem not in dump.problems:
            problems.append(Problem(f"data/{told.name}/{file}", kept.problem))
        problems.extend(Problem(f"data/{told.name}/{file}", what) for what in dump.problems)
        if dump.header is None:
            return None
        found[file] = dump
        return dump

    facts, gpu_rows, process_rows = (
        read("host.txt", host_txt.parse_host_txt),
        read("gpus.csv", registry.parse_gpus_csv),
        read("processes.csv", registry.parse_processes_csv),
    )
    pids = {row.pid for row in process_rows.rows if row.pid is not None} if process_rows else set()
    ps_rows = read("ps.txt", lambda content: ps_txt.parse_ps_txt(content, pids), pids)
    seen = told.files["host.txt"].arrived_at if facts else None
    return HostSnapshot(
        told.name,
        gpu_rows,
        process_rows,
        ps_rows,
        facts,
        seen,
        {file: min(moment, told.files[file].arrived_at) for file, moment in compute_file_times(found, seen).items()},
        {file: dump.header.every for file, dump in found.items() if dump.header},
        facts.header.time - seen if facts and facts.header and seen is not None else None,
        tuple(file for file, kept in told.files.items() if kept.signature is None and not kept.problem),
        problems=tuple(problems),
    )


def compute_file_times(dumps: dict[str, ParsedFile[Any]], seen: float | None) -> dict[str, float]:
    """When host.txt arrived, less how much older a file's own time is: only differences on one clock count."""
    facts = dumps.get("host.txt")
    if seen is None or facts is None or facts.header is None:
        return {}
    time = facts.header.time
    return {file: seen - max(0, time - dump.header.time) for file, dump in dumps.items() if dump.header}


def parse_legacy_host_files(told: HostFiles) -> HostSnapshot:
    """What the files of the original scripts say; their age is that of the GPUs' file."""
    # one of which no whole content was ever read is not told, which is another thing than empty
    contents = {file: kept.content for file, kept in told.files.items() if kept.content or not kept.problem}

    def read(file: str, parse: Callable[[bytes], Any], given: object = None) -> Any:  # noqa: ANN401 # each has its own
        content = contents.get(file)
        return None if content is None else parse_once((told.name, f"_{file}"), content, given, lambda: parse(content))

    gpu_rows, newest = read("gpus.csv", legacy_files.parse_legacy_gpus) or (None, None)
    process_rows = read("processes.csv", lambda content: legacy_files.parse_legacy_processes(content, newest), newest)
    ps_rows = read("users.csv", lambda content: legacy_files.parse_legacy_users(content, newest), newest)
    status, disks, local = (contents.get(file, b"") for file in ("status.csv", "disks.csv", "local.txt"))
    facts = parse_once(
        (told.name, "_facts"), status, (disks, local), lambda: legacy_files.parse_legacy_facts(status, disks, local)
    )
    dumps = {"gpus.csv": gpu_rows, "processes.csv": process_rows, "users.csv": ps_rows, "status.csv": facts}
    seen = told.files["gpus.csv"].arrived_at or None if gpu_rows else None
    return HostSnapshot(
        told.name,
        gpu_rows,
        process_rows,
        ps_rows,
        facts,
        seen,
        {"gpus.csv": seen} if seen is not None else {},
        {"gpus.csv": legacy_files.INTERVAL_S},
        missing_files=tuple(file for file, kept in told.files.items() if kept.signature is None and not kept.problem),
        is_legacy=True,
        problems=(*told.problems, *list_legacy_problems(told, dumps)),
    )


def list_legacy_problems(told: HostFiles, dumps: dict[str, ParsedFile[Any] | None]) -> Iterable[Problem]:
    """What is wrong with the files, and what their readers could not understand."""
    for file, kept in told.files.items():
        dump = dumps.get(file)
        for what in (*((kept.problem,) if kept.problem else ()), *(dump.problems if dump else ())):
            yield Problem(f"data/{told.name}_{file}", what)
