"""Fetch the snapshots of a host over ssh or HTTP."""

from __future__ import annotations

import email.utils
import gzip
import http.client
import io
import math
import socket
import tarfile
import threading
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from site_builder.core import files, locks, terminal_text
from site_builder.core.command_options import print_command_message
from site_builder.core.files import SCRIPTS_FOLDER
from site_builder.core.formatting import format_duration
from site_builder.core.parallel import WorkerPool
from site_builder.core.subprocesses import extract_last_line, require_time_left
from site_builder.remote import legacy_http
from site_builder.remote.ssh_config import TIMEOUT_ERRORS, SshError
from site_builder.remote.targets import Target
from site_builder.snapshots import envelope
from site_builder.snapshots.envelope import TASKS_BY_FILE
from site_builder.snapshots.store import MAX_SNAPSHOT_BYTES, find_snapshot_fault, prepare_stored_snapshot_folder

if TYPE_CHECKING:  # paramiko is slow to import, and needed only where a host is reached by ssh
    import paramiko  # noqa: TID251

    from site_builder.remote.ssh import SshConnection

# host.txt last: the age of all counts from when it came.
SNAPSHOT_FILES = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")
# Another pull has a folder for a moment only; but whoever may read the folder can hold its lock for ever.
LOCK_TIMEOUT_S = 1.0
LOCK_POLL_INTERVAL_S = 0.02
# What the fallback asks ps for, in lib/pull.sh, and what ps.txt has.
FALLBACK_PS_FIELDS = ("pid", "ppid", "pgrp", "uid", "elapsed", "cpu", "rss", "state", "user", "command")
PS_FIELDS = ("pid", "ppid", "gpu_pid", "pgrp", "uid", "user", "elapsed", "cpu", "rss", "state", "container", "command")
PS_COLUMNS = b"pid\tppid\tgpu_pid\tpgrp\tuid\tuser\telapsed [s]\tcpu [%]\trss [KiB]\tstate\tcontainer\tcommand"
MEMORY_KEYS = {
    b"MemTotal:": b"memory_total",
    b"MemAvailable:": b"memory_available",
    b"SwapTotal:": b"swap_total",
    b"SwapFree:": b"swap_free",
}
FALLBACK_MESSAGE = "no folder on this host is writable: only plain nvidia-smi and ps were used, with less detail"
LINE_MARK = b"gpuboard-pull "
CHUNK_BYTES = 65536
# A login may print a greeting; nobody prints more.
MAX_GREETING_BYTES = 65536
MAX_LINE_BYTES = 200
MAX_STDERR_BYTES = 4096
# How many of the numbers of an answer are no sizes, by its kind and how many there are.
LEADING_NUMBER_COUNTS = {("files", 2): 1, ("files", 6): 1, ("plain", 7): 3}
# What one question to nvidia-smi may take on the host. There are two, and where an earlier one hangs, each waits three
# seconds longer: all that must fit into the time limit of a pull.
MAX_QUERY_TIMEOUT_S = 10
# After so many seconds of silence beyond a round, the host considers the connection dead and cleans up.
SILENCE_TIMEOUT_S = 60
# A server may end a connection that waits for the next round: then we come again, once.
CONNECTION_ENDED_ERRORS = (
    http.client.RemoteDisconnected,
    BrokenPipeError,
    ConnectionResetError,
    ConnectionAbortedError,
)
STATUS_MEANINGS = {
    401: "asks for a password: use name=https://user:password@host/path/ in a file that only you can read",
    403: "may not be read: configure the web server there to serve it",
    404: "does not exist: is this the folder that the loops of that host push to?",
}


# How much later than its own time limit a fetcher may say why: it knows better than we do.
REPORT_GRACE_S = 1.0
# How long we wait for all connections to end.
CLOSE_TIMEOUT_S = 3.0
FetchOutcome = tuple[dict[str, bytes], list[str]]  # the files that came, and what went wrong


class PullError(Exception):
    """Why nothing came from a host, in one sentence."""


class UnexpectedFetchReplyError(Exception): ...


def write_pulled_files(data: Path, name: str, contents: Mapping[str, bytes]) -> list[str]:
    """Write the valid files of a host, and return what is wrong with the others."""
    if legacy_http.has_legacy_files(contents):
        legacy_http.write_legacy_files(data, contents)
        return []
    faults = {file: find_pulled_file_fault(contents[file], name, file) for file in SNAPSHOT_FILES if file in contents}
    problems = [f"{file} {fault}" for file, fault in faults.items() if fault]
    if all(faults.values()):
        return problems
    with prepare_stored_snapshot_folder(data, name) as folder:
        # the lock ends with the open folder
        if not locks.acquire_lock(folder, time.monotonic() + LOCK_TIMEOUT_S, LOCK_POLL_INTERVAL_S):
            return [*problems, "another pull is writing its files right now"]
        for file in [file for file, fault in faults.items() if not fault]:
            try:
                _, stored = files.read_file(file, folder, MAX_SNAPSHOT_BYTES)
            except files.FileRefusedError:
                stored = b""
            # the same snapshot, written again, would look fresh
            is_same = stored.partition(b"\n")[0] == contents[file].partition(b"\n")[0]
            if not is_same or not envelope.has_envelope_end(stored):
                files.write_atomically_in_folder(folder, file, contents[file])
    return problems


def find_pulled_file_fault(content: bytes, name: str, file: str) -> str | None:
    if len(content) > MAX_SNAPSHOT_BYTES:
        return f"is larger than {MAX_SNAPSHOT_BYTES >> 20} MiB"
    header, _ = envelope.parse_snapshot_header(content, TASKS_BY_FILE[file])
    if header and header.host != name:
        return f"says host={terminal_text.clean_text(header.host)[:80]}: pull it by that name"
    problem = find_snapshot_fault(content, name, file)
    return f"is ignored: {problem}" if problem else None


def build_fetch_fallback_files(name: str, every: int, numbers: list[int], texts: list[bytes]) -> dict[str, bytes]:
    """Build the files that the scripts would write; `numbers` are the host's time and two exit codes."""
    moment, gpus_code, apps_code = numbers
    gpus, apps, people, facts = texts
    programs = {}
    ps_lines = [PS_COLUMNS]
    for line in people.splitlines():
        process = dict(zip(FALLBACK_PS_FIELDS, line.split(None, 9)))
        if len(process) == len(FALLBACK_PS_FIELDS):
            program = process["command"].replace(b"\t", b" ")
            programs[process["pid"]] = program.strip()
            process |= {"gpu_pid": process["pid"], "state": process["state"][:1], "container": b"-", "command": program}
            ps_lines.append(b"\t".join(process[field] for field in PS_FIELDS))
    app_lines = []
    for line in apps.splitlines():  # with the program that ps lists for the pid
        cells = line.split(b", ")
        if line.startswith(b"gpu_uuid, pid"):
            app_lines.append(line + b", process_name")
        elif len(cells) == 3 and cells[1].strip().isdigit():
            app_lines.append(line + b", " + programs.get(cells[1].strip(), b"[N/A]"))
        else:
            app_lines.append(line)
    host_lines = []
    fact_lines = facts.splitlines()
    if len(fact_lines) >= 5:
        load, up, kernel, zone, cpus, *memory = fact_lines
        host_lines = [b"load=" + b" ".join(load.split()[:3]), b"uptime=" + up.partition(b".")[0]]
        host_lines += [b"kernel=" + kernel, b"zone=" + zone, b"cpus=" + cpus]
        for line in memory:
            words = line.split()
            if len(words) > 1 and words[0] in MEMORY_KEYS and words[1].isdigit():
                host_lines.append(MEMORY_KEYS[words[0]] + b"=%d" % (int(words[1]) // 1024))
    bodies = {
        "gpus.csv": (gpus_code, gpus.splitlines(), []),
        "processes.csv": (apps_code, app_lines, []),
        "ps.txt": (0, ps_lines, []),
        "host.txt": (0, host_lines, [f"# err {FALLBACK_MESSAGE}".encode()]),
    }
    fallback_files = {}
    for file, (code, lines, last_lines) in bodies.items():
        head = f"# gpuboard 1 task={TASKS_BY_FILE[file]} host={name} time={moment} every={every}"
        body = [line for line in lines if not line.startswith(b"#")]  # none that looks like its end
        first_line = f"{head} took_ms=0 rc={code % 256}".encode()
        fallback_files[file] = b"\n".join([first_line, *body, *last_lines, b"# end", b""])
    return fallback_files


class SshFetcher:
    """Fetch over one ssh session that stays open between rounds.

    The host answers with lines that have our mark, and the bytes that each line announces.
    """

    def __init__(self, target: Target, interval_s: int, timeout_s: int, config_file: Path | None = None) -> None:
        from site_builder.remote.ssh import connect_ssh  # noqa: PLC0415 # imports paramiko, which is slow

        self.connect_ssh = connect_ssh
        self.target, self.interval_s, self.timeout_s, self.config_file = target, interval_s, timeout_s, config_file
        self.connection: SshConnection | None = None
        self.channel: paramiko.Channel | None = None
        self.buffer = bytearray()
        self.last_unmarked_line = b""  # the last line that was not for us
        self.is_closed = False

    def close(self) -> None:
        """Close it while another thread waits for it; the program on the host reads the end and cleans up."""
        self.is_closed = True
        if self.connection:
            self.connection.close()

    def fetch(self, deadline: float) -> dict[str, bytes]:
        name = self.target.name
        try:
            channel = self.channel or self.open_session(deadline)
            self.send(channel, b"go\n", deadline)
            kind, *words = self.read_marked_line(channel, deadline, 0)
            numbers = [int(word) for word in words if word.isdecimal() and len(word) < 12]
            code_count = LEADING_NUMBER_COUNTS.get((kind, len(words)), 0)
            if not code_count or len(numbers) != len(words):
                raise UnexpectedFetchReplyError(" ".join([kind, *words]))
            if max(numbers[code_count:]) > MAX_SNAPSHOT_BYTES:
                raise PullError(f"{name} has files larger than {MAX_SNAPSHOT_BYTES >> 20} MiB")
            texts = [self.read_bytes(channel, size, deadline) for size in numbers[code_count:]]
            if kind == "plain":
                return build_fetch_fallback_files(name, self.interval_s, numbers[:code_count], texts)
            if len(texts) < len(SNAPSHOT_FILES):
                message = extract_last_line(texts[0].decode("utf-8", "replace") or f"exit {numbers[0]}")
                raise PullError(f"cannot take a snapshot on {name}: {message}")
            return dict(zip(SNAPSHOT_FILES, texts))
        except SshError as error:
            raise PullError(str(error)) from None
        except TIMEOUT_ERRORS:
            message = (
                f"{name} sent no complete snapshot within {self.timeout_s} s; if it is very busy, use a larger --limit"
            )
            raise PullError(message) from None
        except UnexpectedFetchReplyError as error:
            raise PullError(f"{name} does not answer like a shell: {extract_last_line(str(error))}") from None
        except OSError as error:
            raise PullError(f"the connection to {name} was lost ({error.strerror or type(error).__name__})") from None

    def open_session(self, deadline: float) -> paramiko.Channel:
        """Connect, and send the program that takes snapshots."""
        self.connection = self.connect_ssh(self.target.address, require_time_left(deadline), self.config_file)
        if self.is_closed:
            self.connection.close()
            raise TimeoutError
        try:
            channel = self.connection.transport.open_session(timeout=require_time_left(deadline))
            channel.settimeout(require_time_left(deadline))
            channel.exec_command("exec sh")
        except TIMEOUT_ERRORS:
            raise
        except Exception as error:  # of paramiko, which is not imported here
            raise UnexpectedFetchReplyError(extract_last_line(str(error) or type(error).__name__)) from None
        self.send(channel, build_fetch_program(self.target.name, self.interval_s, self.timeout_s), deadline)
        words = self.read_marked_line(channel, deadline, MAX_GREETING_BYTES)
        if words == ["scripts"]:
            packed = pack_pull_scripts()
            self.send(channel, b"%d\n%b" % (len(packed), packed), deadline)
            words = self.read_marked_line(channel, deadline, MAX_GREETING_BYTES)
        if words != ["ready"]:
            raise UnexpectedFetchReplyError(" ".join(words))
        self.channel = channel
        return channel

    def send(self, channel: paramiko.Channel, data: bytes, deadline: float) -> None:
        """Send everything; if the host stops reading, raise what it printed before."""
        view = memoryview(data)
        while view:
            channel.settimeout(require_time_left(deadline))
            try:
                view = view[channel.send(bytes(view[:CHUNK_BYTES])) :]
            except TIMEOUT_ERRORS:
                raise
            except OSError:
                with suppress(UnexpectedFetchReplyError, OSError):
                    self.receive(channel, deadline)
                output = self.describe_last_output(channel)
                if not output:
                    raise
                raise UnexpectedFetchReplyError(output) from None

    def receive(self, channel: paramiko.Channel, deadline: float) -> None:
        channel.settimeout(require_time_left(deadline))
        piece = channel.recv(CHUNK_BYTES)
        if not piece:
            raise UnexpectedFetchReplyError(self.describe_last_output(channel))
        self.buffer += piece

    def read_marked_line(self, channel: paramiko.Channel, deadline: float, noise: int) -> list[str]:
        """Read the words of the next line with our mark; a login may print up to `noise` bytes before the first."""
        while True:
            while b"\n" not in self.buffer:
                if len(self.buffer) > max(noise, MAX_LINE_BYTES):
                    raise UnexpectedFetchReplyError(self.describe_last_output(channel))
                self.receive(channel, deadline)
            line = self.read_bytes(channel, self.buffer.index(b"\n") + 1, deadline)[:-1]
            if line.startswith(LINE_MARK) and len(line) <= MAX_LINE_BYTES:
                return line[len(LINE_MARK) :].decode("ascii", "replace").split() or [""]
            self.last_unmarked_line = line
            noise -= len(line) + 1
            if noise <= 0:
                raise UnexpectedFetchReplyError(self.describe_last_output(channel))

    def read_bytes(self, channel: paramiko.Channel, size: int, deadline: float) -> bytes:
        while len(self.buffer) < size:
            self.receive(channel, deadline)
        content = bytes(self.buffer[:size])
        del self.buffer[:size]
        return content

    def describe_last_output(self, channel: paramiko.Channel) -> str:
        output = bytes(self.buffer) or self.last_unmarked_line
        if channel.recv_stderr_ready():
            output = channel.recv_stderr(MAX_STDERR_BYTES)
        return extract_last_line(output.decode("utf-8", "replace"))


def build_fetch_program(name: str, interval_s: int, timeout_s: int) -> bytes:
    """Build what the shell on the host reads: variables, none of which needs quotes, and the program."""
    query_timeout_s = min(MAX_QUERY_TIMEOUT_S, max(1, (timeout_s - 9) // 2))
    intervals = " ".join(f"GPUBOARD_{task}_EVERY={interval_s}" for task in ("GPUS", "PROCESSES", "PS"))
    patience_s = interval_s + timeout_s + SILENCE_TIMEOUT_S
    settings = f"export HOST={name} GPUBOARD_LIMIT={query_timeout_s} {intervals}\npatience={patience_s}\n"
    return settings.encode() + (SCRIPTS_FOLDER / "lib/pull.sh").read_bytes()


@lru_cache(maxsize=1)
def pack_pull_scripts() -> bytes:
    """Pack everything that gpu-run.sh needs, with the same bytes on every machine."""
    packed = io.BytesIO()
    folder = SCRIPTS_FOLDER
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as tar:
        for path in [folder / "gpu-run.sh", *sorted((folder / "lib").iterdir())]:
            if path.suffix in {".sh", ".awk"}:
                content = path.read_bytes()
                entry = tarfile.TarInfo(str(path.relative_to(folder)))
                entry.size, entry.mode = len(content), 0o755
                tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


class HttpFetcher:
    def __init__(self, target: Target) -> None:
        self.url = urlsplit(target.address)
        self.server = self.url.netloc.rpartition("@")[2]
        self.name = target.name
        self.connection: http.client.HTTPConnection | None = None
        self.is_closed = False
        self.headers = {"User-Agent": "gpuboard", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        if self.url.username is not None:
            credentials = f"{unquote(self.url.username)}:{unquote(self.url.password or '')}"
            self.headers["Authorization"] = f"Basic {b64encode(credentials.encode()).decode()}"
        self.validators: dict[str, dict[str, str]] = {}  # headers by which a server knows what we have of a file
        self.last_snapshot: tuple[int, int] | None = None  # time and interval of the last host.txt
        self.legacy_paths: dict[str, str] = {}  # what the original scripts serve, by the names of the files in data/
        self.legacy_written_at: float | None = None

    def close(self) -> None:
        """Close it while another thread waits for it."""
        self.is_closed = True
        connection = self.connection
        if connection and connection.sock:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def fetch(self, deadline: float) -> dict[str, bytes]:
        """Fetch the files that changed; fail if the newest is old by the server's own clock."""
        try:
            if not self.legacy_paths:
                try:
                    return self.fetch_files({file: file for file in SNAPSHOT_FILES}, deadline)
                except (PullError, ValueError) as error:
                    if self.last_snapshot is None and not isinstance(error, OSError):  # of TLS, some are both
                        self.legacy_paths = self.find_legacy_paths(deadline)
                    if not self.legacy_paths:
                        raise
            try:
                contents = self.fetch_files(self.legacy_paths, deadline)
            except PullError:
                self.legacy_paths = {}  # since then, the host may have got gpuboard's scripts, or another name
                self.validators.clear()
                raise
            if not legacy_http.has_legacy_processes(self.legacy_paths):  # as while its loops begin
                self.legacy_paths = {}
            return contents
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PullError(self.describe_error(error)) from None

    def fetch_files(self, paths: Mapping[str, str], deadline: float) -> dict[str, bytes]:
        fetched = {name: self.fetch_file(path, deadline) for name, path in paths.items()}
        return {name: content for name, content in fetched.items() if content is not None}

    def find_legacy_paths(self, deadline: float) -> dict[str, str]:
        """Find the files of the original gpu-monitor in what the server lists, if it does."""
        if self.connection:  # the last response may not have been read
            self.connection.close()
            self.connection = None
        self.validators.pop("", None)  # of a listing that has not changed, nothing would be sent
        try:
            listing = self.fetch_file("", deadline)
        except (PullError, OSError, http.client.HTTPException, ValueError):
            return {}
        try:
            return legacy_http.parse_legacy_listing(listing or b"", self.name)
        except legacy_http.UnclearListingError as error:
            raise PullError(f"{self.server} {error}") from None

    def fetch_file(self, file: str, deadline: float) -> bytes | None:
        """Fetch a file; return None if it has not changed."""
        for may_retry in (self.connection is not None, False):
            connection = self.connect(deadline)
            try:
                headers = {**self.headers, **self.validators.get(file, {})}
                connection.request("GET", f"{self.url.path}{file}", headers=headers)
                return self.read_response(file, connection.getresponse(), deadline)
            except CONNECTION_ENDED_ERRORS:
                connection.close()
                self.connection = None
                if not may_retry or self.is_closed:
                    raise
        raise AssertionError

    def connect(self, deadline: float) -> http.client.HTTPConnection:
        seconds = deadline - time.monotonic()
        if seconds <= 0 or self.is_closed:
            raise TimeoutError
        connection = self.connection
        if connection is None:
            is_https = self.url.scheme == "https"
            connection_type = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
            self.connection = connection = connection_type(self.url.hostname or "", self.url.port, timeout=seconds)
        if connection.sock is None:
            connection.timeout = seconds
            connection.connect()
        connection.sock.settimeout(seconds)
        return connection

    def read_response(self, file: str, response: http.client.HTTPResponse, deadline: float) -> bytes | None:
        if response.status == 304 and file in self.validators:
            response.read()
            content = None
        elif response.status == 200:
            content = read_snapshot_body(response, deadline)
            etag, last_modified = response.headers.get("ETag"), response.headers.get("Last-Modified")
            validators = {"If-None-Match": etag, **({} if etag else {"If-Modified-Since": last_modified})}
            self.validators[file] = {name: value for name, value in validators.items() if value}
        else:
            place = f"{self.server}{self.url.path}{file}"
            if 300 <= response.status < 400:
                location = terminal_text.clean_excerpt(response.headers.get("Location") or "elsewhere")
                raise PullError(f"{place} redirects to {location}, which is not followed: use that address")
            reason = f"was answered with {response.status} {terminal_text.clean_excerpt(response.reason or '', 80)}"
            raise PullError(f"{place} {STATUS_MEANINGS.get(response.status, reason)}")
        if file == "host.txt":  # refused if it is old by the clock of the server, which is most often that of the host
            header = envelope.parse_snapshot_header(content, TASKS_BY_FILE[file])[0] if content else None
            if header:
                self.last_snapshot = header.time, header.every
            now = parse_http_time(response, "Date") or time.time()
            taken_at, interval_s = self.last_snapshot or (now, 0)
            if now - taken_at > 3 * interval_s + 30:
                age = format_duration(now - taken_at)
                raise PullError(f"the files on {self.server} are {age} old: do the loops of gpu-check.sh run there?")
        if file in self.legacy_paths.values() and file.endswith(legacy_http.GPU_FILE):
            self.legacy_written_at = parse_http_time(response, "Last-Modified") or self.legacy_written_at
            now = parse_http_time(response, "Date") or time.time()
            age_s = now - (self.legacy_written_at or now)
            if age_s > legacy_http.MAX_AGE_S:
                age = format_duration(age_s)
                raise PullError(f"the files on {self.server} are {age} old: does the loop of gpu-run.sh 3 run there?")
        return content

    def describe_error(self, error: Exception) -> str:
        import ssl  # noqa: PLC0415 # slow to import

        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the certificate of {self.server} is not trusted: {error.verify_message}"
        messages: tuple[tuple[type[Exception], str], ...] = (
            (ssl.SSLError, "does not speak TLS: should it be http://?"),
            (socket.timeout, "did not answer in time"),
            (TimeoutError, "did not answer in time"),
            (socket.gaierror, "is not known on this network"),
            (ConnectionRefusedError, "does not answer: is a web server running there?"),
            (http.client.HTTPException, "did not answer like a web server"),
        )
        for error_type, message in messages:
            if isinstance(error, error_type):
                return f"{self.server} {message}"
        return f"{self.server}: {getattr(error, 'strerror', None) or terminal_text.clean_excerpt(error)}"


def parse_http_time(response: http.client.HTTPResponse, header: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(response.headers.get(header) or "").timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def read_snapshot_body(response: http.client.HTTPResponse, deadline: float) -> bytes:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ValueError("it sends compressed files although it was asked not to")
    content = bytearray()
    while chunk := response.read1(CHUNK_BYTES):
        content += chunk
        if len(content) > MAX_SNAPSHOT_BYTES:
            raise ValueError(f"it sends a file larger than {MAX_SNAPSHOT_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    response.read()  # nothing is left; but only this frees the connection, or reveals a torn response
    return bytes(content)


class PullLoop:
    """Pull from all targets; connections stay open between rounds, and a sentence about a host is printed once."""

    def __init__(
        self, targets: list[Target], interval_s: int, timeout_s: int, data_folder: Path, config_file: Path | None = None
    ) -> None:
        self.targets, self.data_folder = targets, data_folder
        self.interval_s, self.timeout_s, self.config_file = interval_s, timeout_s, config_file
        self.fetchers: dict[str, HttpFetcher | SshFetcher] = {}
        self.pool: WorkerPool[str, FetchOutcome] = WorkerPool()
        self.failed_hosts: set[str] = set()
        self.printed: set[tuple[str, str]] = set()

    def run(self, every: int | None, began: float, end: float) -> set[str]:
        """Pull until `end`, finish the round that is under way, and return the hosts whose last round failed."""
        count = 0
        while True:
            busy = self.pool.pending  # with the last round
            for target in self.targets:
                if target.name not in busy:
                    if target.name not in self.fetchers:
                        ssh_options = (self.interval_s, self.timeout_s, self.config_file)
                        fetcher = HttpFetcher(target) if target.is_url else SshFetcher(target, *ssh_options)
                        self.fetchers[target.name] = fetcher
                    task = partial(self.run_fetch, self.fetchers[target.name])
                    self.pool.add(target.name, task, self.timeout_s + REPORT_GRACE_S)
            # the next tick that is still ahead: those that were missed are not made up for
            count = max(count + 1, math.ceil((time.monotonic() - began) / every)) if every else 1
            tick = began + count * every if every else end
            is_last = every is None or tick >= end
            for name, outcome in self.pool.iterate_results(math.inf if is_last else tick):
                # time limits of libraries do not help against a byte a minute
                self.store_outcome(name, *(outcome or ({}, [f"no complete answer within {self.timeout_s:.0f} s"])))
            if is_last:
                return self.failed_hosts
            time.sleep(max(0.0, tick - time.monotonic()))

    def run_fetch(self, fetcher: HttpFetcher | SshFetcher) -> FetchOutcome:
        """Fetch the files of one host, in its thread."""
        try:
            return fetcher.fetch(time.monotonic() + self.timeout_s), []
        except PullError as error:
            return {}, [str(error)]
        except Exception as error:  # a thread that dies in silence would be a host that hangs
            return {}, [f"unexpected error: {type(error).__name__}: {terminal_text.clean_excerpt(error)}"]

    def store_outcome(self, name: str, files: dict[str, bytes], problems: list[str]) -> None:
        """Write the files that came, and print what went wrong."""
        try:
            problems += write_pulled_files(self.data_folder, name, files)
        except OSError as error:
            problems.append(f"{self.data_folder / name} cannot be written: {error.strerror}; its old files are kept")
        self.failed_hosts.discard(name)
        if not problems:
            return
        self.failed_hosts.add(name)
        fetcher = self.fetchers.pop(name, None)  # it takes what did not count for known: the next round opens another
        if fetcher:
            threading.Thread(target=fetcher.close, daemon=True).start()
        sentence = "; ".join(problems)
        if (name, sentence) not in self.printed:
            print_command_message(sentence if sentence.startswith((f"{name} ", f"{name}:")) else f"{name}: {sentence}")
        self.printed.add((name, sentence))

    def close(self) -> None:
        """Close all connections at once: each takes a moment."""
        threads = [threading.Thread(target=fetcher.close, daemon=True) for fetcher in self.fetchers.values()]
        for thread in threads:
            thread.start()
        end = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
