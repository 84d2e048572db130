"""The files of all hosts in data/, read when they change and parsed once for each change."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson

from site_builder.core import files, records
from site_builder.core.data_folder import is_moved_data_file_link
from site_builder.core.faults import describe_fault
from site_builder.core.model import HostSnapshot, ParsedFile, Problem
from site_builder.core.names import BOOKINGS, is_host_name
from site_builder.snapshots import envelope, gpu_tools
from site_builder.snapshots.envelope import TASKS_BY_FILE
from site_builder.snapshots.parsers import host_and_ps_txt, legacy_files

Result = TypeVar("Result")
LEGACY_FILE_NAME = re.compile(rf"(.+)_({'|'.join(map(re.escape, legacy_files.LEGACY_FILES))})")
# The original scripts leave these files empty where there is nothing to report.
POSSIBLY_EMPTY_FILES = frozenset(legacy_files.LEGACY_FILES) - {"gpus.csv"}
# Bytes that are read of a file: by default, and the most that GPUBOARD_SNAPSHOT_KIB can allow.
DEFAULT_SNAPSHOT_BYTES, MAX_SNAPSHOT_BYTES = 1024 * 1024, 8 * 1024 * 1024
LIMIT_HINT = "GPUBOARD_SNAPSHOT_KIB allows more"
MAX_HOSTS = 20_000
FOLDER_MODE = 0o750
MAX_EPOCH = 1e11  # the year 5138: no file arrives later
# The number in the title changes with the form of the file: a file of an older form is not used.
STORE_FILE, STORE_TITLE = "snapshots.kept", "gpuboard snapshots 3"
# An older gpuboard left a pickle, which could execute code, and is never read.
OLD_STORE_FILE = "snapshots.pickle"
# Bytes of the files whose results are cached; the results take four times as much memory.
MAX_CHEAP_BYTES = 2 * 1024 * 1024
# Results that took this many seconds have a cache of their own, so that a large fleet does not push them out.
MAX_EXPENSIVE_BYTES, EXPENSIVE_AFTER_S = 16 * 1024 * 1024, 0.01


class ParseCache:
    """The last result of each file with its content and what else it depends on, up to a limit of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self.entries: dict[tuple[str, str], tuple[bytes, object, object]] = {}

    def keep(self, key: tuple[str, str], content: bytes, dependencies: object, result: object) -> None:
        """Add a result, and drop the oldest ones to make room."""
        if len(content) > self.max_bytes:
            return
        self.entries[key] = content, dependencies, result
        self.size += len(content)
        while self.size > self.max_bytes:
            self.drop(next(iter(self.entries)))

    def drop(self, key: tuple[str, str]) -> None:
        self.size -= len(self.entries.pop(key, (b"",))[0])


CACHE_LOCK = threading.Lock()
CHEAP_CACHE, EXPENSIVE_CACHE = ParseCache(MAX_CHEAP_BYTES), ParseCache(MAX_EXPENSIVE_BYTES)


def parse_stored_snapshot_once(
    key: tuple[str, str], content: bytes, dependencies: object, parse: Callable[[], Result]
) -> Result:
    """Return the cached result of a file, or parse it; the result depends on its content and `dependencies`."""
    caches = (CHEAP_CACHE, EXPENSIVE_CACHE)
    for cache in caches:
        entry = cache.entries.get(key)
        if entry and entry[1] == dependencies and entry[0] == content:
            return entry[2]  # type: ignore[return-value] # of the same key
    began = time.thread_time()
    result = parse()
    is_expensive = time.thread_time() - began > EXPENSIVE_AFTER_S
    with CACHE_LOCK:
        for cache in caches:
            cache.drop(key)
        caches[is_expensive].keep(key, content, dependencies, result)
    return result


class HostFile(NamedTuple):
    """A file: its signature (None if it is gone), its last whole content, when that arrived, and what is wrong now."""

    signature: files.FileSignature | None
    content: bytes
    arrived_at: float
    problem: str | None = None

    @property
    def is_missing(self) -> bool:
        return self.signature is None and not self.problem


class StoredSnapshotFile(NamedTuple):
    """What is stored of a file beside its content."""

    name: str
    signature: files.FileSignature | None
    arrived_at: float
    problem: str | None


class StoredSnapshotHost(NamedTuple):
    """What is stored of a host beside the contents of its files."""

    name: str
    is_legacy: bool
    files: tuple[StoredSnapshotFile, ...]


class HostFiles(NamedTuple):
    """The files of one host; those of the original scripts are `is_legacy`."""

    name: str
    files: dict[str, HostFile]
    is_legacy: bool = False
    problems: tuple[Problem, ...] = ()

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """Return a value that stays the same as long as no file changes."""
        return (*((file.signature, file.arrived_at, file.problem) for file in self.files.values()), self.problems)

    def parse(self) -> HostSnapshot:
        return parse_stored_legacy_snapshot(self) if self.is_legacy else parse_stored_snapshot(self)


FilesByHost = dict[str, dict[str, HostFile]]


class SnapshotStore:
    """Reads data/ again and again, and remembers the files between builds."""

    def __init__(self, data: Path, state: Path | None, limit: int = DEFAULT_SNAPSHOT_BYTES) -> None:
        """Load what the last build stored in state/; `limit` is the size that is read of each file."""
        self.data_folder = data
        self.max_bytes = limit
        self.store_path = state / STORE_FILE if state else Path(os.devnull)
        self.native_files: FilesByHost = {}
        self.legacy_files: FilesByHost = {}
        self.has_changes = False
        # if the stored file is damaged, all files are read again
        with suppress(records.DamagedFileError, ValueError):
            if state:
                self.load()

    def load(self) -> None:
        """Load the files as the last builder stored them; raise DamagedFileError if any of it is damaged."""
        decode = records.make_record_decoder(StoredSnapshotHost)
        native: FilesByHost = {}
        legacy: FilesByHost = {}
        for text, contents in records.read_record_file(self.store_path, STORE_TITLE):
            host: StoredSnapshotHost = decode(orjson.loads(text))
            file_names = legacy_files.LEGACY_FILES if host.is_legacy else TASKS_BY_FILE
            is_possible = all(file.name in file_names and 0 <= file.arrived_at < MAX_EPOCH for file in host.files)
            if not is_host_name(host.name) or len(host.files) != len(contents) or not is_possible:
                raise records.DamagedFileError(host.name)
            (legacy if host.is_legacy else native)[host.name] = {
                file.name: HostFile(file.signature, content, file.arrived_at, file.problem)
                for file, content in zip(host.files, contents)
            }
        self.native_files, self.legacy_files = native, legacy

    def read_hosts(self, only: Container[str] | None = None) -> tuple[list[HostFiles], list[Problem]]:
        """Return every host that data/ has, or had until it is forgotten; raise OSError if data/ cannot be read."""
        problems: list[Problem] = []
        folders, legacy_hosts = self.list_entries(problems)
        if only is not None:
            folders = {name for name in folders if name in only}
            legacy_hosts = {name: legacy for name, legacy in legacy_hosts.items() if name in only}
        for name in folders.union(self.native_files):
            try:
                with open_snapshot_folder(f"{self.data_folder}/{name}") if name in folders else nullcontext() as folder:
                    self.update_host_files(self.native_files, name, TASKS_BY_FILE, folder)
            except OSError as error:
                problems.append(Problem(f"data/{name}", f"the folder cannot be read: {error.strerror}"))
            except Exception as error:  # a fault of ours costs this host alone, and what was read before is not trusted
                self.native_files.pop(name, None)
                problems.append(Problem(f"data/{name}", describe_fault("its files could not be read", error)))
        with open_snapshot_folder(self.data_folder, files.ROOT_FOLDER_FLAGS) as folder:
            for name in legacy_hosts.keys() | self.legacy_files.keys():
                present = legacy_hosts.get(name, set()) | self.legacy_files.get(name, {}).keys()
                try:
                    self.update_host_files(self.legacy_files, name, present, folder)
                except Exception as error:  # as above
                    self.legacy_files[name] = {}
                    problems.append(Problem(f"data/{name}_*", describe_fault("its files could not be read", error)))
        hosts: list[HostFiles] = []
        for name in sorted(folders.union(self.native_files, self.legacy_files)):
            native, legacy = self.native_files.get(name, {}), self.legacy_files.get(name, {})
            if not legacy:
                hosts.append(HostFiles(name, native))
                continue
            newest = max(file.arrived_at for file in legacy.values())
            if native and max(file.arrived_at for file in native.values()) >= newest:
                what = f"files of the original scripts, older than data/{name}/ and not used: remove them"
                hosts.append(HostFiles(name, native, problems=(Problem(f"data/{name}_*", what),)))
            else:
                hosts.append(HostFiles(name, legacy, is_legacy=True))
        return hosts, problems

    def list_entries(self, problems: list[Problem]) -> tuple[set[str], dict[str, set[str]]]:
        """Return the folders of hosts, and the legacy files of each host; anything else is a problem."""
        folders: set[str] = set()
        legacy_hosts: dict[str, set[str]] = {}
        with os.scandir(self.data_folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == BOOKINGS:
                    continue
                if entry.is_symlink() and is_moved_data_file_link(entry.path):
                    continue
                where = f"data/{entry.name[:80]!a}"
                if entry.is_symlink():
                    problems.append(Problem(where, "it is a link, and links are not followed"))
                    continue
                is_folder = entry.is_dir(follow_symlinks=False)
                match = None if is_folder else LEGACY_FILE_NAME.fullmatch(entry.name)
                if not is_folder and not match:
                    continue
                name, names = (match[1], legacy_hosts.keys()) if match else (entry.name, folders)
                if not is_host_name(name):
                    problems.append(Problem(where, "its name is not a valid host name"))
                elif name not in names and len(names) >= MAX_HOSTS:
                    problems.append(Problem(where, f"there are more than {MAX_HOSTS} hosts"))
                elif match:
                    legacy_hosts.setdefault(name, set()).add(match[2])
                else:
                    folders.add(name)
        return folders, legacy_hosts

    def update_host_files(self, hosts: FilesByHost, name: str, names: Iterable[str], folder: int | None) -> None:
        """Read the files of a host that changed; a file that was never there is left out."""
        before, is_legacy, limit = hosts.get(name, {}), hosts is self.legacy_files, self.max_bytes
        now = {
            file: updated
            for file in names
            if (updated := update_stored_snapshot_file(before.get(file), name, file, folder, is_legacy, limit))
        }
        if now != before:
            hosts[name] = now
            self.has_changes = True
        if not now:
            hosts.pop(name, None)

    def forget_host(self, name: str) -> None:
        for hosts in (self.native_files, self.legacy_files):
            self.has_changes = hosts.pop(name, None) is not None or self.has_changes

    def list_clock_offsets(self, now: float, recent: float) -> Iterator[float]:
        """Yield by how many seconds the clock of each host that pushed recently is ahead of ours."""
        for host_files in self.native_files.values():
            file = host_files.get("host.txt")
            if file and abs(now - file.arrived_at) <= recent:
                header, _ = envelope.parse_snapshot_header(file.content, "host")
                if header:
                    yield header.time - file.arrived_at

    def save(self) -> None:
        """Store what was read for the next build."""
        if self.has_changes:
            records.write_record_file(self.store_path, STORE_TITLE, self.build_records())
            self.has_changes = False

    def build_records(self) -> Iterator[records.Record]:
        for hosts, is_legacy in ((self.native_files, False), (self.legacy_files, True)):
            for name, host_files in hosts.items():
                stored = tuple(
                    StoredSnapshotFile(file_name, file.signature, file.arrived_at, file.problem)
                    for file_name, file in host_files.items()
                )
                with suppress(TypeError):  # a host with a text that JSON cannot hold is read again
                    text = records.encode_record(StoredSnapshotHost(name, is_legacy, stored))
                    yield text, [file.content for file in host_files.values()]


def remove_stored_snapshots(data: Path, name: str) -> list[str]:
    """Delete the files of a host that we know, and return the names of others that are left in its folder."""
    with open_snapshot_folder(data, files.ROOT_FOLDER_FLAGS) as top:
        unlink_stored_snapshot_files([f"{name}_{file}" for file in legacy_files.LEGACY_FILES], top)
    if not (data / name).is_dir() or (data / name).is_symlink():
        return []
    with open_snapshot_folder(data / name) as folder:
        for file in TASKS_BY_FILE:  # the last two are what a push, a pull or the copy of Consul's store has not renamed
            unlink_stored_snapshot_files([file, f".{file}.new", f".{file}.put"], folder)
        with suppress(OSError):
            with open_snapshot_folder(".new", top=folder) as new_folder:
                unlink_stored_snapshot_files(TASKS_BY_FILE, new_folder)
            os.rmdir(".new", dir_fd=folder)
        remaining = sorted(os.listdir(folder))  # noqa: PTH208 # an open folder has no path
    if not remaining:
        (data / name).rmdir()
    return remaining


def unlink_stored_snapshot_files(names: Iterable[str], folder: int) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


@contextmanager
def open_snapshot_folder(path: Path | str, flags: int = files.FOLDER_FLAGS, top: int | None = None) -> Iterator[int]:
    """Open a folder, perhaps within another, so that nobody can exchange it for another while it is read."""
    handle = os.open(path, flags, dir_fd=top)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def prepare_stored_snapshot_folder(data: Path, name: str) -> Iterator[int]:
    """Open the folder of a host to write in it: made if need be, ours, and writable for nobody else.

    It is checked when it is open, so that nobody can exchange it for a link or a folder of theirs.
    """
    with open_snapshot_folder(data, files.ROOT_FOLDER_FLAGS) as top:
        is_new = False
        with suppress(FileExistsError):
            os.mkdir(name, FOLDER_MODE, dir_fd=top)
            is_new = True
        with open_snapshot_folder(name, top=top) as folder:
            status = os.fstat(folder)
            if os.geteuid() not in {0, status.st_uid}:
                owner, own_login = files.find_file_owner_login(status.st_uid), files.find_file_owner_login(os.geteuid())
                problem = f"it belongs to {owner}, not to {own_login}: remove it, or chown it"
                raise PermissionError(errno.EPERM, problem, str(data / name))
            mode = stat.S_IMODE(status.st_mode)
            wanted = mode | FOLDER_MODE if is_new else mode & ~0o022  # whatever the umask: the group only reads
            if mode != wanted:
                os.fchmod(folder, wanted)
            yield folder


def update_stored_snapshot_file(
    before: HostFile | None, name: str, file: str, folder: int | None, is_legacy: bool, limit: int
) -> HostFile | None:
    """Return a file as it counts now, given how it counted before; `folder` is None if it is gone."""
    path = f"{name}_{file}" if is_legacy else file
    try:
        signature = files.read_signature(path, folder) if folder is not None else None
        if before and signature == before.signature and not before.problem:
            return before
        if signature is None or folder is None:
            return before._replace(signature=None, problem=None) if before and before.content else None
        signature, content = files.read_file(path, folder, limit)
    except files.FileRefusedError as error:
        refusal = f"not read: {error}"
        if isinstance(error, files.FileTooLargeError) and limit < MAX_SNAPSHOT_BYTES:
            refusal += f"; {LIMIT_HINT}"
        return before._replace(problem=refusal) if before else HostFile(None, b"", 0, refusal)
    # legacy files may be copied with their own times, and files from Consul may be older than the copy in data/;
    # only a time in the past can be true
    own_time = signature.modified_ns / 1e9 if is_legacy else envelope.parse_envelope_as_of_line(content)
    arrived_at = max(0.0, min(signature.arrived_ns / 1e9, own_time))
    if is_legacy:  # these have neither header nor end
        is_whole = content.endswith(b"\n") or (not content and file in POSSIBLY_EMPTY_FILES)
        problem = None if is_whole else "the file is incomplete: its last line is cut off"
    else:
        problem = find_snapshot_fault(content, name, file)
    if before and before.content and (problem or before.content == content):
        return HostFile(signature, before.content, before.arrived_at, problem)
    return HostFile(signature, b"" if problem else content, arrived_at, problem)


def find_snapshot_fault(content: bytes, name: str, file: str) -> str | None:
    """Return what is wrong with a file as a whole, so that it cannot be used."""
    header, problem = envelope.parse_snapshot_header(content, TASKS_BY_FILE[file])
    if header is None:
        return problem
    if header.host != name:
        return f"it says host={header.host[:80]}, which does not match its folder, and is ignored"
    return None if envelope.has_envelope_end(content) else envelope.TORN_MESSAGE


def parse_stored_snapshot(host: HostFiles) -> HostSnapshot:
    """Parse the four files of a snapshot."""
    parsed_files: dict[str, ParsedFile[Any]] = {}
    problems = list(host.problems)

    def parse(
        file_name: str, parser: Callable[[bytes], ParsedFile[Any]], dependencies: object = None
    ) -> ParsedFile[Any] | None:
        file = host.files.get(file_name)
        if file is None:
            return None
        content, key = file.content, (host.name, file_name)
        parsed_file = (
            parse_stored_snapshot_once(key, content, dependencies, lambda: parser(content)) if content else ParsedFile()
        )
        where = f"data/{host.name}/{file_name}"
        if file.problem and file.problem not in parsed_file.problems:
            problems.append(Problem(where, file.problem))
        problems.extend(Problem(where, problem) for problem in parsed_file.problems)
        if parsed_file.header is None:
            return None
        parsed_files[file_name] = parsed_file
        return parsed_file

    facts = parse("host.txt", host_and_ps_txt.parse_host_txt)
    gpus = parse("gpus.csv", gpu_tools.parse_gpus_of_tools)
    processes = parse("processes.csv", gpu_tools.parse_processes_of_tools)
    pids = {row.pid for row in processes.rows if row.pid is not None} if processes else set()
    ps_rows = parse("ps.txt", lambda content: host_and_ps_txt.parse_ps_txt(content, pids), pids)
    last_seen = clock_offset = None
    taken_at: dict[str, float] = {}
    if facts and facts.header:
        last_seen = host.files["host.txt"].arrived_at
        clock_offset = facts.header.time - last_seen
        for file_name, parsed_file in parsed_files.items():
            if parsed_file.header:
                # the host's clock may be wrong: only the difference of two of its times counts
                age = max(0, facts.header.time - parsed_file.header.time)
                taken_at[file_name] = min(last_seen - age, host.files[file_name].arrived_at)
    return HostSnapshot(
        name=host.name,
        gpus=gpus,
        processes=processes,
        ps_rows=ps_rows,
        facts=facts,
        last_seen=last_seen,
        taken_at=taken_at,
        intervals={name: parsed.header.every for name, parsed in parsed_files.items() if parsed.header},
        clock_offset=clock_offset,
        missing_files=tuple(name for name, file in host.files.items() if file.is_missing),
        problems=tuple(problems),
    )


def parse_stored_legacy_snapshot(host: HostFiles) -> HostSnapshot:
    """Parse the files of the original scripts; their age is that of the GPUs' file."""
    # a file that was never read completely is missing, which is not the same as empty
    contents = {name: file.content for name, file in host.files.items() if file.content or not file.problem}

    def parse(file_name: str, parser: Callable[[bytes], Any], dependencies: object = None) -> Any:  # noqa: ANN401
        content = contents.get(file_name)
        if content is None:
            return None
        return parse_stored_snapshot_once((host.name, f"_{file_name}"), content, dependencies, lambda: parser(content))

    gpus, newest = parse("gpus.csv", legacy_files.parse_legacy_gpus) or (None, None)
    # the clock of the host may have been set back: a loop that goes on changes its file
    arrivals = {name: file.arrived_at for name, file in host.files.items()}
    unchanged_s = arrivals.get("gpus.csv", 0) - arrivals.get("processes.csv", 0)
    is_outdated = unchanged_s > legacy_files.MAX_SAMPLE_AGE.total_seconds()
    processes = parse(
        "processes.csv",
        lambda content: legacy_files.parse_legacy_processes(content, newest, is_outdated),
        (newest, is_outdated),
    )
    ps_rows = parse("users.csv", lambda content: legacy_files.parse_legacy_users(content, newest), newest)
    status, disks, local = (contents.get(file, b"") for file in ("status.csv", "disks.csv", "local.txt"))
    facts = parse_stored_snapshot_once(
        (host.name, "_facts"), status, (disks, local), lambda: legacy_files.parse_legacy_facts(status, disks, local)
    )
    parsed_files = {"gpus.csv": gpus, "processes.csv": processes, "users.csv": ps_rows, "status.csv": facts}
    problems = list(host.problems)
    for file_name, file in host.files.items():
        parsed_file = parsed_files.get(file_name)
        file_problems = (*((file.problem,) if file.problem else ()), *(parsed_file.problems if parsed_file else ()))
        problems += [Problem(f"data/{host.name}_{file_name}", problem) for problem in file_problems]
    last_seen = host.files["gpus.csv"].arrived_at or None if gpus else None
    return HostSnapshot(
        name=host.name,
        gpus=gpus,
        processes=processes,
        ps_rows=ps_rows,
        facts=facts,
        last_seen=last_seen,
        taken_at={"gpus.csv": last_seen} if last_seen is not None else {},
        intervals={"gpus.csv": legacy_files.INTERVAL_S},
        missing_files=tuple(name for name, file in host.files.items() if file.is_missing),
        is_legacy=True,
        problems=tuple(problems),
    )
