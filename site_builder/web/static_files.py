"""The files of www/ as answers to HTTP requests, and nothing else of this machine but the desk, if there is one."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from site_builder.web import compat_routes
from site_builder.web.compat_routes import INDEX_FILE
from site_builder.web.http_headers import SECURITY_HEADERS

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    ResponseHeaders = tuple[tuple[str, str], ...]

# A report has its style in itself, and allows by a policy of its own that one alone; nothing else is ever in it.
REPORTS_FOLDER = "reports"
REPORT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
TEXT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "txt": "text/plain; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "ics": "text/calendar; charset=utf-8",
    "json": "application/json",
    "webmanifest": "application/manifest+json",
    "xml": "application/xml; charset=utf-8",
    "svg": "image/svg+xml",
}
IMAGE_TYPES = {"png": "image/png", "ico": "image/x-icon"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DEFAULT_TYPE = "application/octet-stream"

MAX_PATH_CHARACTERS = 2000  # letters of a path
MIN_COMPRESSED_BYTES = 1024  # a text below this many bytes is not worth compressing
MAX_BUFFERED_BYTES = 16 << 20  # a file up to this size is read at once, a larger one is streamed
MAX_CACHED_BYTES = 32 << 20  # bytes of bodies that are kept for the next reader
RETRY_AFTER_S = "10"  # seconds until a reader may try again

FOLDER_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
NOT_FOUND_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EINVAL}
FORBIDDEN_ERRNOS = {errno.EACCES, errno.EPERM}
ABSOLUTE_URL_START = re.compile(r"\Ahttps?://[^/?#]*", re.IGNORECASE)
ETAG_PATTERN = re.compile(r'"([^"]*)"')
SAFE_QUERY_CHARACTERS = "!$%&'()*+,-./:;=?@_~"  # what may stand in a query as it is
QUALITY_PATTERN = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)

STATUS_MESSAGES = {
    400: "This request cannot be understood.",
    403: "The server has no right to read this file.",
    404: "There is no such page here.",
    405: "Only GET and HEAD are answered here.",
    406: "This file cannot be sent in a form that was asked for.",
    413: "A request with a body, or with so long a one, is not answered here.",
    431: "The header of this request is too long.",
    501: "This form of request is not known here.",
    503: "This file cannot be read just now; try again in a moment.",
}
NOT_BUILT_MESSAGE = (
    "The board has not been built yet: run <code>gpuboard build</code> on the web host. "
    "This page looks again every 10 seconds."
)
REFRESH_TAG = f"<meta http-equiv=refresh content={RETRY_AFTER_S}>"


class FileChangedError(Exception):
    """A file that changed in its place while it was read."""


class FileStream(io.FileIO):
    """A file that is sent while it is read; one that was cut short ends the connection, which else would wait."""

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes."""
        found = bytes(super().read(size))
        if not found and size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return found


@dataclass(frozen=True)
class HttpResponse:
    """What a reader gets: a body, or a file that is streamed, and closed by whoever sends it."""

    status: int
    headers: ResponseHeaders
    body: bytes = b""
    stream: FileStream | None = None


def build_error_response(status: int, *headers: tuple[str, str], sentence: str = "", head: str = "") -> HttpResponse:
    """An answer that is a sentence; nothing of the request is repeated in it."""
    words = sentence or STATUS_MESSAGES.get(status, "Something went wrong here; the admin can read what on the server.")
    title = HTTPStatus(status).phrase
    text = f"<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n{head}<title>{title}</title>\n<p>{words}</p>\n"
    body = text.encode()
    told = (("Content-Type", TEXT_TYPES["html"]), ("Content-Length", str(len(body))), ("Cache-Control", "no-cache"))
    return HttpResponse(status, (*told, *headers), body)


def send_response(environ: WSGIEnvironment, start_response: StartResponse, answer: HttpResponse) -> list[bytes]:
    """A refusal, with the headers that all answers have."""
    status = HTTPStatus(answer.status)
    start_response(f"{status.value} {status.phrase}", [*SECURITY_HEADERS, *answer.headers])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]


class BodyCache:
    """The bodies asked for last, within a limit; each is made once, however many ask for it at the same time."""

    def __init__(self, limit: int) -> None:
        """Keep up to so many bytes, and the newest body in any case."""
        self.max_bytes = limit
        self.cached_bytes = 0
        self.lock = Lock()
        self.bodies: OrderedDict[tuple[str, str], Future[bytes]] = OrderedDict()

    def get(self, key: tuple[str, str], make: Callable[[], bytes]) -> bytes:
        """The body, made by the first who asks; if that fails, it fails for all who wait, and the next one tries."""
        with self.lock:
            found = self.bodies.get(key)
            if found is None:
                mine = self.bodies[key] = Future()
            else:
                self.bodies.move_to_end(key)
        if found is not None:
            return found.result()
        try:
            body = make()
        except BaseException as error:
            with self.lock:
                del self.bodies[key]
            mine.set_exception(error)
            raise
        mine.set_result(body)
        with self.lock:
            self.cached_bytes += len(body)
            self.evict_oldest()
        return body

    def evict_oldest(self) -> None:
        """Let go of those that nobody asked for in the longest time."""
        for key, body in list(self.bodies.items())[:-1]:
            if self.cached_bytes <= self.max_bytes:
                return
            if body.done():
                self.cached_bytes -= len(body.result())
                del self.bodies[key]


class StaticSite:
    """A WSGI application: the files of one folder, and at one address another application."""

    def __init__(
        self,
        www: Path,
        tell: Callable[[str], None] = lambda _: None,
        desk: tuple[str, WSGIApplication] | None = None,
        minutes: Callable[[bytes, int], bytes] | None = None,
    ) -> None:
        """Serve this folder; `tell` gets a sentence about each file that cannot be read; `desk` answers at its path.

        `minutes` makes of a host's file in states/ one with so many entries.
        """
        self.booking_route = desk
        self.add_history = minutes
        self.www = www.absolute()
        self.report = tell
        self.reported: set[str] = set()
        self.body_cache = BodyCache(MAX_CACHED_BYTES)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """One answer."""
        if self.booking_route and parse_request_target(environ)[0] == f"/{self.booking_route[0].lstrip('/')}":
            return self.booking_route[1](environ, start_response)
        try:
            answer = self.build_response(environ)
        except Exception as error:  # a reader never brings the server down, and never sees why
            self.report_once(f"an answer failed: {type(error).__name__}: {error}; this should not happen")
            answer = build_error_response(500)
        status = HTTPStatus(answer.status)
        told = dict(answer.headers)
        always = [one for one in SECURITY_HEADERS if one[0] not in told]
        start_response(f"{status.value} {status.phrase}", [*always, *answer.headers])
        if environ["REQUEST_METHOD"] == "HEAD":
            if answer.stream:
                answer.stream.close()
            return []
        if not answer.stream and len(answer.body) < 65536:
            return [answer.body] if answer.body else []
        # waitress copies a list's bytes for each reader, to a file where they are many; a file it reads as it sends
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](answer.stream or io.BytesIO(answer.body))
        return wrapped

    def report_once(self, sentence: str) -> None:
        """Tell it the first time; no reader can fill a log."""
        if sentence not in self.reported and len(self.reported) < 100:
            self.reported.add(sentence)
            self.report(sentence)

    def build_response(self, environ: WSGIEnvironment) -> HttpResponse:
        """What this request gets."""
        path, query = parse_request_target(environ)
        refused = refuse_bad_request(environ, path)
        parts = split_path(path)
        if refused or parts is None:
            return refused or build_error_response(404)
        try:
            parts = compat_routes.resolve_file_path(path, parts, query)
        except compat_routes.InvalidQueryError as error:
            return build_error_response(400, sentence=str(error))
        for _ in range(3):
            try:
                return self.serve_file(parts, query, environ)
            except FileChangedError:
                continue
            except OSError as error:
                return self.build_file_error(parts, error)
        return build_error_response(404)

    def build_file_error(self, parts: list[str], error: OSError) -> HttpResponse:
        """The answer where a file cannot be had."""
        if error.errno in NOT_FOUND_ERRNOS:
            if parts == [INDEX_FILE]:
                return build_error_response(
                    503, ("Retry-After", RETRY_AFTER_S), sentence=NOT_BUILT_MESSAGE, head=REFRESH_TAG
                )
            return build_error_response(404)
        where = self.www.joinpath(*parts)
        self.report_once(f"{where} cannot be read: {error.strerror}; whoever asks for it gets an error")
        return (
            build_error_response(403)
            if error.errno in FORBIDDEN_ERRNOS
            else build_error_response(503, ("Retry-After", RETRY_AFTER_S))
        )

    def open_file(self, parts: list[str]) -> int:
        """The file, by a way on which no link is followed, whoever changes it meanwhile."""
        handle = os.open(self.www, FOLDER_FLAGS)  # the folder that the admin names may be a link
        try:
            for part in parts[:-1]:
                inner = os.open(part.encode(), FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = inner
            return os.open(parts[-1].encode(), FILE_FLAGS, dir_fd=handle)
        finally:
            os.close(handle)

    def serve_file(self, parts: list[str], query: str, environ: WSGIEnvironment) -> HttpResponse:
        """The file as it stands at this moment: it is opened once, and all that is told is told of what was opened."""
        handle = self.open_file(parts)
        try:
            status = os.fstat(handle)
            index = compat_routes.find_index_file(parts)
            if stat.S_ISDIR(status.st_mode) and is_regular_file(os.stat(index, dir_fd=handle, follow_symlinks=False)):
                to = f"./{quote(parts[-1])}/" + (
                    f"?{quote(query, safe=SAFE_QUERY_CHARACTERS, encoding='latin-1')}" if query else ""
                )
                return build_error_response(
                    308, ("Location", to), sentence="This page stands in a folder: a slash is missing."
                )
            if not is_regular_file(status):
                return build_error_response(404)
            return self.build_file_response(handle, status, parts, query, environ)
        finally:
            os.close(handle)

    def build_file_response(
        self, handle: int, status: os.stat_result, parts: list[str], query: str, environ: WSGIEnvironment
    ) -> HttpResponse:
        """An open file, whole, compressed, streamed, or told to be known already."""
        kind, is_text = find_content_type(parts[-1])
        packed = choose_compression(
            environ.get("HTTP_ACCEPT_ENCODING", ""), is_text and status.st_size <= MAX_BUFFERED_BYTES, status.st_size
        )
        if packed is None:
            return build_error_response(406, ("Vary", "Accept-Encoding"))
        tag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}" + ("-gzip" if packed else "")
        forever = query and parts[0] == "assets"
        entries = compat_routes.parse_entry_count(parts, query) if self.add_history else 1
        tag += f"-{entries}" if entries > 1 else ""
        headers = (
            ("Cache-Control", "public, max-age=31536000, immutable" if forever else "no-cache"),
            ("ETag", f'"{tag}"'),
            ("Last-Modified", formatdate(max(0, min(status.st_mtime, time.time())), usegmt=True)),
            *((("Vary", "Accept-Encoding"),) if is_text else ()),
            *((("Content-Security-Policy", REPORT_SECURITY_POLICY),) if parts[0] == REPORTS_FOLDER else ()),
        )
        if environ["REQUEST_METHOD"] != "POST" and is_not_modified(environ, tag, status.st_mtime):
            return HttpResponse(304, headers)
        headers += (("Content-Type", kind), *((("Content-Encoding", "gzip"),) if packed else ()))
        if status.st_size > MAX_BUFFERED_BYTES:
            return HttpResponse(
                200, (*headers, ("Content-Length", str(status.st_size))), stream=FileStream(os.dup(handle))
            )

        def make() -> bytes:
            found = read_open_file(handle, status)
            if self.add_history and entries > 1:
                found = self.add_history(found, entries)
            return gzip.compress(found, 6, mtime=0) if packed else found

        body = self.body_cache.get(("/".join(parts), tag), make)
        return HttpResponse(200, (*headers, ("Content-Length", str(len(body)))), body)


def refuse_bad_request(environ: WSGIEnvironment, path: str) -> HttpResponse | None:
    """The refusal of a method or a body that is not taken there."""
    open_to = ("GET", "HEAD", "POST") if path == compat_routes.ALL_NODES_PATH else ("GET", "HEAD")
    if environ["REQUEST_METHOD"] not in open_to:
        return build_error_response(405, ("Allow", ", ".join(open_to)))
    length = environ.get("CONTENT_LENGTH") or "0"
    most = compat_routes.MAX_BODY_BYTES if environ["REQUEST_METHOD"] == "POST" else 0
    return None if length.isdecimal() and len(length) < 10 and int(length) <= most else build_error_response(413)


def parse_request_target(environ: WSGIEnvironment) -> tuple[str, str]:
    """Path and query as they were sent; PATH_INFO has lost the slashes that it began with."""
    target, _, query = environ["REQUEST_URI"].partition("#")[0].partition("?")
    return ABSOLUTE_URL_START.sub("", target, count=1) or "/", query


def split_path(path: str) -> list[str] | None:
    """The names on the way to a file, index.html for a folder; None if one of them could lead anywhere else."""
    if len(path) > MAX_PATH_CHARACTERS:
        return None
    try:
        text = unquote_to_bytes(path.encode("latin-1")).decode()
    except UnicodeDecodeError:
        return None
    start, *parts = text.split("/")
    if start or not parts:
        return None
    parts[-1] = parts[-1] or INDEX_FILE
    wrong = any(not part or part[0] == "." or "\\" in part or not part.isprintable() for part in parts)
    return None if wrong else parts


def is_regular_file(status: os.stat_result) -> bool:
    """Whether it is a plain file."""
    return stat.S_ISREG(status.st_mode)


def find_content_type(name: str) -> tuple[str, bool]:
    """The type of a file by its name, and whether it is a text."""
    if name == "metrics":
        return METRICS_TYPE, True
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    return TEXT_TYPES.get(suffix) or IMAGE_TYPES.get(suffix, DEFAULT_TYPE), suffix in TEXT_TYPES


def choose_compression(accepted: str, can_be: bool, size: int) -> bool | None:
    """Whether the body goes out compressed; None if the reader wants neither form that we have."""
    qualities: dict[str, float] = {}
    for item in accepted.lower().split(","):
        name, *rest = (word.strip() for word in item.split(";"))
        found = QUALITY_PATTERN.fullmatch(rest[0]) if rest else None
        qualities[name] = float(found[1]) if found else 0.0 if rest else 1.0
    zipped = qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0.0))) if can_be else 0.0
    plain = qualities.get("identity", 0.0 if qualities.get("*") == 0 else None)
    if plain == 0:
        return True if zipped else None
    return size >= MIN_COMPRESSED_BYTES and zipped > 0 and zipped >= (plain or 0)


def is_not_modified(environ: WSGIEnvironment, tag: str, modified: float) -> bool:
    """Whether the reader has this very body already."""
    tags = environ.get("HTTP_IF_NONE_MATCH")
    if tags is not None:
        return tags.strip() == "*" or tag in ETAG_PATTERN.findall(tags)
    try:
        since = parsedate_to_datetime(environ["HTTP_IF_MODIFIED_SINCE"]).timestamp()
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        return False
    return int(modified) <= since


def read_open_file(handle: int, status: os.stat_result) -> bytes:
    """All of an open file, if it is still what it was when it was looked at."""
    with open(handle, "rb", closefd=False) as file:  # it has no path any more
        content = file.read(status.st_size + 1)
    now = os.fstat(handle)
    if len(content) != status.st_size or now.st_mtime_ns != status.st_mtime_ns:
        raise FileChangedError
    return content
