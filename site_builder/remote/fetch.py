"""Fetch the snapshots of a host over ssh or HTTP."""

from __future__ import annotations

import email.utils
import gzip
import http.client
import io
import socket
import ssl
import tarfile
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from site_builder.core import files, locks, terminal_text
from site_builder.core.files import find_scripts_folder
from site_builder.core.formatting import format_duration
from site_builder.remote import ssh
from site_builder.remote.ssh_config import TIMEOUT_ERRORS, SshError, extract_last_line, require_time_left
from site_builder.remote.targets import Target
from site_builder.snapshots import envelope
from site_builder.snapshots.store import MAX_SNAPSHOT_BYTES, TASKS_BY_FILE, find_snapshot_fault, open_own_folder

if TYPE_CHECKING:
    import paramiko  # noqa: TID251 for mypy

# host.txt last: the age of all counts from when it came.
SNAPSHOT_FILES = ("gpus.csv", "processes.csv", "ps.txt", "host.txt")
# Another pull has a folder for a moment only; but whoever may read the folder can hold its lock for ever.
LOCK_TIMEOUT_S = 1.0
LOCK_POLL_INTERVAL_S = 0.02


class PullError(Exception):
    """Why nothing came from a host, in one sentence."""


class SnapshotFetcher(Protocol):
    """The way to a host; it stays open between rounds."""

    def fetch(self, deadline: float) -> dict[str, bytes]:
        """The files that are new, until a moment on the monotonic clock; a NotPulled says why there are none."""

    def close(self) -> None:
        """End it, from any thread; a fetch that is under way ends soon."""


def write_pulled_files(data: Path, name: str, found: Mapping[str, bytes]) -> list[str]:
    """Write what counts of the files of a host, and tell what does not; an OSError if it cannot be written."""
    problems = []
    good = {}
    for file in SNAPSHOT_FILES:
        if file in found:
            problem = find_pulled_file_fault(found[file], name, file)
            if problem:
                problems.append(f"{file} {problem}")
            else:
                good[file] = found[file]
    if not good:
        return problems
    with open_own_folder(data, name) as folder:
        if not locks.acquire_lock(
            folder, time.monotonic() + LOCK_TIMEOUT_S, LOCK_POLL_INTERVAL_S
        ):  # it ends with the open folder
            return [*problems, "another pull is writing its files just now"]
        for file, content in good.items():
            if not has_same_snapshot(folder, file, content):
                files.write_atomically_in_folder(folder, file, content)
    return problems


def find_pulled_file_fault(content: bytes, name: str, file: str) -> str | None:
    """Why a file does not count, if it does not."""
    if len(content) > MAX_SNAPSHOT_BYTES:
        return f"has more than the {MAX_SNAPSHOT_BYTES >> 20} MiB that are read"
    header, _ = envelope.parse_snapshot_header(content, TASKS_BY_FILE[file])
    if header and header.host != name:
        return f"says host={terminal_text.clean_text(header.host)[:80]}: pull it by that name"
    problem, _ = find_snapshot_fault(content, name, file)
    return f"does not count: {problem}" if problem else None


def has_same_snapshot(folder: int, file: str, content: bytes) -> bool:
    """Whether this very snapshot stands there: written again, it would look fresh."""
    try:
        _, kept = files.read_file(file, folder, MAX_SNAPSHOT_BYTES)
    except files.FileRefusedError:
        return False
    return envelope.has_end_line(kept) and kept.partition(b"\n")[0] == content.partition(b"\n")[0]


PROGRAM_COLUMN = b", process_name"
PS_COLUMNS = b"pid\tppid\tgpu_pid\tpgrp\tuid\tuser\telapsed [s]\tcpu [%]\trss [KiB]\tstate\tcontainer\tcommand"
MEMORY_KEYS = {
    b"MemTotal:": b"memory_total",
    b"MemAvailable:": b"memory_available",
    b"SwapTotal:": b"swap_total",
    b"SwapFree:": b"swap_free",
}
FALLBACK_MESSAGE = "no folder can be written on this host: plain nvidia-smi and ps were asked, and tell less"


def build_fallback_files(name: str, every: int, numbers: Sequence[int], texts: Sequence[bytes]) -> dict[str, bytes]:
    """As the scripts would have written them; the numbers are the host's time, and nvidia-smi's two exit codes."""
    gpus, apps, people, facts = texts
    rows = [row for line in people.splitlines() if len(row := line.split(None, 9)) == 10]
    programs = {row[0]: row[9].replace(b"\t", b" ").strip() for row in rows}
    bodies = {
        "gpus": (numbers[1], gpus),
        "processes": (numbers[2], b"\n".join(append_program_name(line, programs) for line in apps.splitlines())),
        "ps": (0, b"\n".join([PS_COLUMNS, *(build_fallback_ps_row(row) for row in rows)])),
        "host": (0, build_fallback_host_txt(facts)),
    }
    return {
        f"{task}.{'csv' if task in {'gpus', 'processes'} else 'txt'}": build_fallback_file(
            task, name, numbers[0], every, *body
        )
        for task, body in bodies.items()
    }


def build_fallback_file(task: str, name: str, moment: int, every: int, code: int, body: bytes) -> bytes:
    """One file; a line in it that looks like its end is none."""
    first = f"# gpuboard 1 task={task} host={name} time={moment} every={every} took_ms=0 rc={code % 256}"
    lines = [line for line in body.splitlines() if not line.startswith(b"#")]
    last = [f"# err {FALLBACK_MESSAGE}".encode()] if task == "host" else []
    return b"\n".join([first.encode(), *lines, *last, b"# end", b""])


def append_program_name(line: bytes, programs: dict[bytes, bytes]) -> bytes:
    """A row of nvidia-smi's, with the program that ps tells for its pid."""
    cells = line.split(b", ")
    if line.startswith(b"gpu_uuid, pid"):
        return line + PROGRAM_COLUMN
    if len(cells) == 3 and cells[1].strip().isdigit():
        return line + b", " + programs.get(cells[1].strip(), b"[N/A]")
    return line


def build_fallback_ps_row(row: Sequence[bytes]) -> bytes:
    """A row of ps.txt."""
    pid, parent, group, uid, elapsed, cpu, rss, state, user, program = row
    return b"\t".join(
        [pid, parent, pid, group, uid, user, elapsed, cpu, rss, state[:1], b"-", program.replace(b"\t", b" ")]
    )


def build_fallback_host_txt(facts: bytes) -> bytes:
    """host.txt, of five lines and those of /proc/meminfo; what is missing is left out."""
    lines = facts.splitlines()
    if len(lines) < 5:
        return b""
    load, up, kernel, zone, cpus, *memory = lines
    told = [
        b"load=" + b" ".join(load.split()[:3]),
        b"uptime=" + up.partition(b".")[0],
        b"kernel=" + kernel,
        b"zone=" + zone,
        b"cpus=" + cpus,
    ]
    for line in memory:
        words = line.split()
        if len(words) > 1 and words[0] in MEMORY_KEYS and words[1].isdigit():
            told.append(MEMORY_KEYS[words[0]] + b"=%d" % (int(words[1]) // 1024))
    return b"\n".join(told)


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
# After so many seconds of silence beyond a round, the host takes the connection for dead and clears up.
SILENCE_TIMEOUT_S = 60


class UnexpectedReplyError(Exception):
    """What a host said that no host of ours says."""


class SshFetcher:
    """A host, and the conversation with it that stays open between rounds."""

    def __init__(self, target: Target, every: int, limit: int, config: Path | None = None) -> None:
        """Nothing is asked yet; `config` is another configuration of ssh than the person's own."""
        self.target = target
        self.config_file = config
        self.interval_s = every
        self.timeout_s = limit
        self.connection: ssh.SshConnection | None = None
        self.session: PullSession | None = None
        self.is_closed = False

    def close(self) -> None:
        """End it under whoever waits for it; what runs on the host reads the end, and clears up."""
        self.is_closed = True
        if self.connection:
            self.connection.close()

    def fetch(self, deadline: float) -> dict[str, bytes]:
        """Ask for a snapshot, and take it."""
        name = self.target.name
        try:
            talk = self.session or self.open_session(deadline)
            talk.send(b"go\n", deadline)
            return self.read_snapshot(talk, deadline)
        except SshError as why:
            raise PullError(str(why)) from None
        except TIMEOUT_ERRORS:
            message = f"{name} sent no whole snapshot within {self.timeout_s} s; is it very busy? --limit allows more"
            raise PullError(message) from None
        except UnexpectedReplyError as what:
            raise PullError(f"{name} does not answer as a shell does: {extract_last_line(str(what))}") from None
        except OSError as error:
            raise PullError(f"the connection to {name} was cut ({error.strerror or type(error).__name__})") from None

    def open_session(self, deadline: float) -> PullSession:
        """Connect, and hand over what is to be done."""
        self.connection = ssh.connect_ssh(self.target.address, require_time_left(deadline), self.config_file)
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
            raise UnexpectedReplyError(extract_last_line(str(error) or type(error).__name__)) from None
        talk = PullSession(channel)
        talk.send(build_pull_program(self.target.name, self.interval_s, self.timeout_s), deadline)
        words = talk.read_marked_line(deadline, MAX_GREETING_BYTES)
        if words == ["scripts"]:
            packed = pack_pull_scripts()
            talk.send(b"%d\n%b" % (len(packed), packed), deadline)
            words = talk.read_marked_line(deadline, MAX_GREETING_BYTES)
        if words != ["ready"]:
            raise UnexpectedReplyError(" ".join(words))
        self.session = talk
        return talk

    def read_snapshot(self, talk: PullSession, deadline: float) -> dict[str, bytes]:
        """The answer to one `go`."""
        kind, *words = talk.read_marked_line(deadline, 0)
        numbers = [int(word) for word in words if word.isdecimal() and len(word) < 12]
        codes = LEADING_NUMBER_COUNTS.get((kind, len(words)), 0)
        if not codes or len(numbers) != len(words):
            raise UnexpectedReplyError(" ".join([kind, *words]))
        if max(numbers[codes:]) > MAX_SNAPSHOT_BYTES:
            message = f"{self.target.name} has files of more than the {MAX_SNAPSHOT_BYTES >> 20} MiB that are read"
            raise PullError(message)
        texts = [talk.read_bytes(size, deadline) for size in numbers[codes:]]
        if kind == "plain":
            return build_fallback_files(self.target.name, self.interval_s, numbers[:codes], texts)
        if len(texts) < len(SNAPSHOT_FILES):
            said = extract_last_line(texts[0].decode("utf-8", "replace") or f"exit {numbers[0]}")
            raise PullError(f"no snapshot could be taken on {self.target.name}: {said}")
        return dict(zip(SNAPSHOT_FILES, texts))


class PullSession:
    """What is said over one channel: lines with our mark, and so many bytes behind them."""

    def __init__(self, channel: paramiko.Channel) -> None:
        """Nothing was heard yet."""
        self.channel = channel
        self.buffer = bytearray()
        self.last_unmarked_line = b""  # the last line that was not for us

    def send(self, data: bytes, deadline: float) -> None:
        """All of it; where nobody takes it any more, what was said before counts more than that."""
        view = memoryview(data)
        while view:
            self.channel.settimeout(require_time_left(deadline))
            try:
                view = view[self.channel.send(bytes(view[:CHUNK_BYTES])) :]
            except TIMEOUT_ERRORS:
                raise
            except OSError:
                with suppress(UnexpectedReplyError, OSError):
                    self.receive(deadline)
                words = self.describe_last_output()
                if not words:
                    raise
                raise UnexpectedReplyError(words) from None

    def receive(self, deadline: float) -> None:
        """Wait for what comes next."""
        self.channel.settimeout(require_time_left(deadline))
        piece = self.channel.recv(CHUNK_BYTES)
        if not piece:
            raise UnexpectedReplyError(self.describe_last_output())
        self.buffer += piece

    def read_marked_line(self, deadline: float, noise: int) -> list[str]:
        """The words of the next line that is for us; before the first of all a login may print what it likes."""
        while True:
            while b"\n" not in self.buffer:
                if len(self.buffer) > max(noise, MAX_LINE_BYTES):
                    raise UnexpectedReplyError(self.describe_last_output())
                self.receive(deadline)
            end = self.buffer.index(b"\n")
            line = bytes(self.buffer[:end])
            del self.buffer[: end + 1]
            if line.startswith(LINE_MARK) and len(line) <= MAX_LINE_BYTES:
                return line[len(LINE_MARK) :].decode("ascii", "replace").split() or [""]
            self.last_unmarked_line = line
            noise -= len(line) + 1
            if noise <= 0:
                raise UnexpectedReplyError(self.describe_last_output())

    def read_bytes(self, size: int, deadline: float) -> bytes:
        """So many bytes."""
        while len(self.buffer) < size:
            self.receive(deadline)
        found = bytes(self.buffer[:size])
        del self.buffer[:size]
        return found

    def describe_last_output(self) -> str:
        """What came on stderr, or else what was heard last, fit to be shown."""
        said = (
            self.channel.recv_stderr(MAX_STDERR_BYTES)
            if self.channel.recv_stderr_ready()
            else bytes(self.buffer) or self.last_unmarked_line
        )
        return extract_last_line(said.decode("utf-8", "replace"))


def build_pull_program(name: str, every: int, limit: int) -> bytes:
    """What the shell there reads: its variables, of which none needs quotes, and what it does."""
    question = min(MAX_QUERY_TIMEOUT_S, max(1, (limit - 9) // 2))
    intervals = " ".join(f"GPUBOARD_{task}_EVERY={every}" for task in ("GPUS", "PROCESSES", "PS"))
    settings = (
        f"export HOST={name} GPUBOARD_LIMIT={question} {intervals}\npatience={every + limit + SILENCE_TIMEOUT_S}\n"
    )
    return settings.encode() + (find_scripts_folder() / "lib/pull.sh").read_bytes()


@lru_cache(maxsize=1)
def pack_pull_scripts() -> bytes:
    """All that gpu-run.sh needs, packed the same whoever packs it."""
    packed = io.BytesIO()
    folder = find_scripts_folder()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as tar:
        for path in [folder / "gpu-run.sh", *sorted((folder / "lib").iterdir())]:
            if path.suffix in {".sh", ".awk"}:
                add_archive_entry(tar, path, str(path.relative_to(folder)))
    return packed.getvalue()


def add_archive_entry(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """One file, that can be run."""
    content = path.read_bytes()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))


CHUNK_BYTES = 65536
# A server may end a connection that waits for the next round: then we come again, once.
CONNECTION_ENDED_ERRORS = (
    http.client.RemoteDisconnected,
    BrokenPipeError,
    ConnectionResetError,
    ConnectionAbortedError,
)
STATUS_MEANINGS = {
    401: "wants a password: give it as name=https://user:password@host/path/ in a file of your own",
    403: "may not be read: let the web server there serve it to us",
    404: "is not there: is this the folder that the loops of that host push to?",
}


class FileValidators(NamedTuple):
    """What a server called the last version of a file, so that it can tell whether it has another."""

    etag: str | None
    last_modified: str | None


class HttpFetcher:
    """One connection to one server."""

    def __init__(self, target: Target) -> None:
        """Nothing is asked yet."""
        self.url = urlsplit(target.address)
        self.server = self.url.netloc.rpartition("@")[2]
        self.connection: http.client.HTTPConnection | None = None
        self.is_closed = False
        self.validators: dict[str, FileValidators] = {}
        self.last_snapshot: tuple[int, int] | None = None  # time and interval of the last host.txt

    def close(self) -> None:
        """End it under whoever waits for it."""
        self.is_closed = True
        line = self.connection
        if line and line.sock:
            with suppress(OSError):
                line.sock.shutdown(socket.SHUT_RDWR)
            line.close()

    def fetch(self, deadline: float) -> dict[str, bytes]:
        """Those that changed; if the newest is old by the server's own clock, none: it must not look fresh here."""
        found = {}
        try:
            for file in SNAPSHOT_FILES:
                content = self.fetch_file(file, deadline)
                if content is not None:
                    found[file] = content
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PullError(self.describe_error(error)) from None
        return found

    def fetch_file(self, file: str, deadline: float) -> bytes | None:
        """One file; None if it is the one that we have."""
        for again in (self.connection is not None, False):
            line = self.connect(deadline)
            try:
                line.request("GET", f"{self.url.path}{file}", headers=self.build_headers(file))
                return self.read_response(file, line.getresponse(), deadline)
            except CONNECTION_ENDED_ERRORS:
                line.close()
                self.connection = None
                if not again or self.is_closed:
                    raise
        raise AssertionError

    def connect(self, deadline: float) -> http.client.HTTPConnection:
        """The connection, new or kept, with the time that is left."""
        seconds = deadline - time.monotonic()
        if seconds <= 0 or self.is_closed:
            raise TimeoutError
        line = self.connection
        if line is None:
            host, port = self.url.hostname or "", self.url.port
            if self.url.scheme == "https":
                line = http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
            else:
                line = http.client.HTTPConnection(host, port, timeout=seconds)
            self.connection = line
        if line.sock is None:
            line.timeout = seconds
            line.connect()
        line.sock.settimeout(seconds)
        return line

    def build_headers(self, file: str) -> dict[str, str]:
        """What is asked for."""
        headers = {"User-Agent": "gpuboard", "Accept-Encoding": "identity", "Cache-Control": "no-cache"}
        if self.url.username is not None:
            words = f"{unquote(self.url.username)}:{unquote(self.url.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(words.encode()).decode()}"
        kept = self.validators.get(file)
        if kept and kept.etag:
            headers["If-None-Match"] = kept.etag
        elif kept and kept.last_modified:
            headers["If-Modified-Since"] = kept.last_modified
        return headers

    def read_response(self, file: str, answer: http.client.HTTPResponse, deadline: float) -> bytes | None:
        """What a server says to one question."""
        if answer.status == 304 and file in self.validators:
            answer.read()
            content = None
        elif answer.status == 200:
            content = read_served_file(answer, deadline)
            self.validators[file] = FileValidators(answer.headers.get("ETag"), answer.headers.get("Last-Modified"))
        else:
            raise PullError(self.describe_bad_status(file, answer))
        if file == "host.txt":
            self.check_age(content, answer.headers.get("Date"))
        return content

    def check_age(self, content: bytes | None, date: str | None) -> None:
        """By the clock of the server, which is most often that of the host."""
        header = envelope.parse_snapshot_header(content, TASKS_BY_FILE["host.txt"])[0] if content else None
        if header:
            self.last_snapshot = header.time, header.every
        if self.last_snapshot is None:
            return
        try:
            now = email.utils.parsedate_to_datetime(date or "").timestamp()
        except (TypeError, ValueError, IndexError, OverflowError):
            now = time.time()
        moment, every = self.last_snapshot
        if now - moment > 3 * every + 30:
            message = f"what {self.server} serves is {format_duration(now - moment)} old: do the loops of gpu-check.sh run there?"
            raise PullError(message)

    def describe_bad_status(self, file: str, answer: http.client.HTTPResponse) -> str:
        """An answer other than the file, in words."""
        place = f"{self.server}{self.url.path}{file}"
        if 300 <= answer.status < 400:
            to = terminal_text.clean_excerpt(answer.headers.get("Location") or "elsewhere")
            return f"{place} leads to {to}, and nothing was fetched there: give the address itself"
        reason = terminal_text.clean_excerpt(answer.reason or "", 80)
        return f"{place} {STATUS_MEANINGS.get(answer.status, f'is answered with {answer.status} {reason}')}"

    def describe_error(self, error: Exception) -> str:
        """Why nothing came, and what to do."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the certificate of {self.server} cannot be trusted: {error.verify_message}"
        known: tuple[tuple[type[Exception], str], ...] = (
            (ssl.SSLError, "speaks no TLS that we understand: is it http://?"),
            (socket.timeout, "did not answer in time"),
            (TimeoutError, "did not answer in time"),
            (socket.gaierror, "is not known on this network"),
            (ConnectionRefusedError, "does not answer: does a web server run there?"),
            (http.client.HTTPException, "did not answer as a web server does"),
        )
        for kind, what in known:
            if isinstance(error, kind):
                return f"{self.server} {what}"
        return f"{self.server}: {getattr(error, 'strerror', None) or terminal_text.clean_excerpt(error)}"


def read_served_file(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """All of a file, within its limits."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        message = "it sends what it was asked not to send: compressed files"
        raise ValueError(message)
    found = bytearray()
    while chunk := answer.read1(CHUNK_BYTES):
        found += chunk
        if len(found) > MAX_SNAPSHOT_BYTES:
            message = f"it sends more than the {MAX_SNAPSHOT_BYTES >> 20} MiB that are read of a file"
            raise ValueError(message)
        if time.monotonic() > deadline:
            raise TimeoutError
    answer.read()  # nothing is left; but only this frees the connection for the next question, or tells of a torn one
    return bytes(found)
