"""Serve the files of www/ over HTTP, with the headers that every response of gpuboard has."""

from __future__ import annotations

import errno
import gzip
import html
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

import orjson

from site_builder.board.outputs import host_json
from site_builder.core.faults import limit_fault_reports
from site_builder.web import compat_routes
from site_builder.web.compat_hosts import CompatHosts, NodePasswordError, find_requested_host
from site_builder.web.compat_routes import INDEX_FILE
from site_builder.web.identity import parse_host_header

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

# The page has the same policy in a meta tag, but only a header can say who may frame it.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
SECURITY_HEADERS = (
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), microphone=(), geolocation=()"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "SAMEORIGIN"),
)
# A report has inline styles, which only its own policy allows.
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

MAX_PATH_CHARACTERS = 2000
MIN_COMPRESSED_BYTES = 1024  # a text below this many bytes is not compressed
MAX_BUFFERED_BYTES = 16 << 20  # a file up to this size is read at once, a larger one is streamed
MAX_CACHED_BYTES = 32 << 20  # bytes of bodies that are kept for the next request
RETRY_AFTER_S = "10"  # seconds

FOLDER_FLAGS = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
NOT_FOUND_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EINVAL}
ABSOLUTE_URL_START = re.compile(r"\Ahttps?://[^/?#]*", re.IGNORECASE)
ETAG_PATTERN = re.compile(r'"([^"]*)"')
SAFE_QUERY_CHARACTERS = "!$%&'()*+,-./:;=?@_~"  # what may be in a query without escapes
QUALITY_PATTERN = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)

STATUS_MESSAGES = {
    400: "This request is invalid.",
    403: "The server is not allowed to read this file.",
    404: "There is no such page.",
    406: "This file is not available in an accepted encoding.",
    413: "The request has a body, or one that is too large.",
    431: "The request header is too long.",
    501: "This kind of request is not supported.",
    503: "This file cannot be read right now; try again in a moment.",
}
NOT_BUILT_MESSAGE = (
    "The board has not been built yet: run <code>gpuboard build</code> on the web host. "
    "This page tries again every 10 seconds."
)
UNKNOWN_STATUS_MESSAGE = "Something went wrong; the server's log has the reason for the admin."
REFRESH_TAG = f"<meta http-equiv=refresh content={RETRY_AFTER_S}>"


SEVERAL_HOSTS_MESSAGE = (
    "This board has several hosts: name one of them in the path, or as the host of the address (docs/outputs.md)."
)
STATUS_FILE = "status.json"


class StaticFileChangedError(Exception):
    """A file changed while it was read."""


class StaticFileStream(io.FileIO):
    """A file that is sent while it is read; if it was truncated, an error ends the connection."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = bytes(super().read(size))
        if not data and size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data


@dataclass(frozen=True)
class StaticResponse:
    """A body, or a file that is streamed and closed by whoever sends it."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    stream: StaticFileStream | None = None


def build_static_error_response(
    status: int, *headers: tuple[str, str], sentence: str = "", head: str = ""
) -> StaticResponse:
    """Build a response that is a sentence; nothing of the request is repeated in it."""
    message = sentence or STATUS_MESSAGES.get(status, UNKNOWN_STATUS_MESSAGE)
    title = HTTPStatus(status).phrase
    text = f"<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n{head}<title>{title}</title>\n<p>{message}</p>\n"
    body = text.encode()
    length_header = ("Content-Length", str(len(body)))
    html_headers = (("Content-Type", TEXT_TYPES["html"]), length_header, ("Cache-Control", "no-cache"))
    return StaticResponse(status, (*html_headers, *headers), body)


# As vesta answers for a host that it does not know.
UNKNOWN_HOST_BODY = b'{"status":"ERROR","status_code":404,"message":"not found"}\n'
UNKNOWN_HOST_RESPONSE = StaticResponse(
    404,
    (
        ("Content-Type", TEXT_TYPES["json"]),
        ("Content-Length", str(len(UNKNOWN_HOST_BODY))),
        ("Cache-Control", "no-cache"),
    ),
    UNKNOWN_HOST_BODY,
)


def send_static_response(
    environ: WSGIEnvironment, start_response: StartResponse, response: StaticResponse
) -> Iterable[bytes]:
    """Send a response, with the security headers that it does not set itself."""
    own_headers = dict(response.headers)
    security_headers = [header for header in SECURITY_HEADERS if header[0] not in own_headers]
    status_line = f"{response.status} {HTTPStatus(response.status).phrase}"
    start_response(status_line, [*security_headers, *response.headers])
    if environ["REQUEST_METHOD"] == "HEAD":
        if response.stream:
            response.stream.close()
        return []
    if not response.stream and len(response.body) < 65536:
        return [response.body] if response.body else []
    # waitress copies the bytes of a list for each client, many of them to a file; a file it reads as it sends
    wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](response.stream or io.BytesIO(response.body))
    return wrapped


class BodyCache:
    """The bodies requested last, within a limit; each is made once, however many request it at the same time."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.cached_bytes = 0
        self.lock = Lock()
        self.bodies: OrderedDict[tuple[str, str], Future[bytes]] = OrderedDict()

    def get(self, key: tuple[str, str], make: Callable[[], bytes]) -> bytes:
        """Return the body; the first caller makes it, and if that fails, it fails for all who wait for it."""
        with self.lock:
            cached = self.bodies.get(key)
            if cached is None:
                mine = self.bodies[key] = Future()
            else:
                self.bodies.move_to_end(key)
        if cached is not None:
            return cached.result()
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
            # drop the bodies that were not requested for the longest time, but not the newest
            for old_key, old_body in list(self.bodies.items())[:-1]:
                if self.cached_bytes <= self.max_bytes:
                    break
                if old_body.done():
                    self.cached_bytes -= len(old_body.result())
                    del self.bodies[old_key]
        return body


class StaticSite:
    """A WSGI application: the files of one folder, and at one address another application."""

    def __init__(
        self,
        www: Path,
        report: Callable[[str], None] = lambda _: None,
        booking_route: tuple[str, WSGIApplication] | None = None,
        compat_hosts: CompatHosts | None = None,
    ) -> None:
        """Serve this folder; `report` gets a sentence about each file that cannot be read.

        `booking_route` is a path and what answers there; `compat_hosts` answers for hosts from status.json.
        """
        self.booking_route = booking_route
        self.compat_hosts = compat_hosts
        self.www = www.absolute()
        self.report_once = limit_fault_reports(report)
        self.body_cache = BodyCache(MAX_CACHED_BYTES)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if self.booking_route and parse_static_target(environ)[0] == f"/{self.booking_route[0].lstrip('/')}":
            return self.booking_route[1](environ, start_response)
        try:
            response = self.build_response(environ)
        except Exception as error:  # no request may bring the server down, and no client sees why
            self.report_once(f"an answer failed: {type(error).__name__}: {error}; this is a bug")
            response = build_static_error_response(500)
        return send_static_response(environ, start_response, response)

    def build_response(self, environ: WSGIEnvironment) -> StaticResponse:
        path, query = parse_static_target(environ)
        path_parts = split_static_path(path)
        takes_post = compat_routes.is_compat_node_path(path, path_parts)
        methods = ("GET", "HEAD", "POST") if takes_post else ("GET", "HEAD")
        if environ["REQUEST_METHOD"] not in methods:
            sentence = f"Only {', '.join(methods[:-1])} and {methods[-1]} are allowed."
            return build_static_error_response(405, ("Allow", ", ".join(methods)), sentence=sentence)
        length = environ.get("CONTENT_LENGTH") or "0"
        max_length = compat_routes.MAX_BODY_BYTES if environ["REQUEST_METHOD"] == "POST" else 0
        if not length.isdecimal() or len(length) > 9 or int(length) > max_length:
            return build_static_error_response(413)
        if path_parts is None:
            return build_static_error_response(404)
        if self.compat_hosts and (path == compat_routes.AGENT_PATH or environ["REQUEST_METHOD"] == "POST"):
            return self.serve_requested_host(self.compat_hosts, path_parts, environ, int(length))
        try:
            path_parts = compat_routes.resolve_compat_path(path, path_parts, query)
        except compat_routes.CompatQueryError as error:
            return build_static_error_response(400, sentence=str(error))
        retry_header = ("Retry-After", RETRY_AFTER_S)
        for _ in range(3):
            try:
                return self.serve_host_file(path_parts, query, environ) or self.serve_file(path_parts, query, environ)
            except StaticFileChangedError:
                continue
            except OSError as error:
                if error.errno in NOT_FOUND_ERRNOS and path_parts == [INDEX_FILE]:
                    return build_static_error_response(503, retry_header, sentence=NOT_BUILT_MESSAGE, head=REFRESH_TAG)
                if error.errno in NOT_FOUND_ERRNOS:
                    is_host = path_parts[0] == compat_routes.STATES_FOLDER
                    return UNKNOWN_HOST_RESPONSE if is_host else build_static_error_response(404)
                where = self.www.joinpath(*path_parts)
                self.report_once(f"{where} cannot be read: {error.strerror}; requests for it fail")
                if error.errno in (errno.EACCES, errno.EPERM):
                    return build_static_error_response(403)
                return build_static_error_response(503, retry_header)
        return build_static_error_response(404)

    def serve_requested_host(
        self, compat_hosts: CompatHosts, path_parts: list[str], environ: WSGIEnvironment, length: int
    ) -> StaticResponse:
        """Answer for the host in the path, or for the one that the Host header means, or for the only one."""
        is_post = environ["REQUEST_METHOD"] == "POST"
        retry_header = ("Retry-After", RETRY_AFTER_S)
        try:
            if is_post:
                compat_hosts.check_password(environ, environ["wsgi.input"].read(length))
            handle = self.open_file([STATUS_FILE])
            try:
                status = self.read_status(handle, os.fstat(handle))
            finally:
                os.close(handle)
        except NodePasswordError as error:
            if error.wait_s:
                return build_static_error_response(429, ("Retry-After", str(error.wait_s)), sentence=str(error))
            return build_static_error_response(403, sentence=str(error))
        except StaticFileChangedError:
            return build_static_error_response(503, retry_header)
        except OSError:
            return build_static_error_response(503, retry_header, sentence=NOT_BUILT_MESSAGE)
        host = compat_routes.find_compat_node_name(path_parts)
        if host is None:
            host = find_requested_host(status, parse_host_header(str(environ.get("HTTP_HOST", ""))) or "")
        if host is None:
            return build_static_error_response(404, sentence=SEVERAL_HOSTS_MESSAGE)
        build_path = host_json.build_host_json_node_path if is_post else host_json.build_host_json_nvgpu_path
        body = compat_hosts.render(build_path(host), status)
        if body is None:
            return build_static_error_response(404)
        if is_post and (reason := find_silent_node_reason(body)):  # a node that is down would not answer either
            return build_static_error_response(503, retry_header, sentence=html.escape(reason))
        length_header = ("Content-Length", str(len(body)))
        headers = (("Content-Type", TEXT_TYPES["json"]), length_header, ("Cache-Control", "no-cache"))
        return StaticResponse(200, headers, body)

    def serve_host_file(self, path_parts: list[str], query: str, environ: WSGIEnvironment) -> StaticResponse | None:
        """Serve a file of states/, nodes/ or nvgpu/ from status.json; None if that has no such host."""
        if not self.compat_hosts or path_parts[0] not in compat_routes.FOLDER_INDEXES:
            return None
        try:
            handle = self.open_file([STATUS_FILE])
        except OSError:
            return None
        try:
            file_stat = os.fstat(handle)
            if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_size > MAX_BUFFERED_BYTES:
                return None
            if not self.compat_hosts.has_file("/".join(path_parts), self.read_status(handle, file_stat)):
                return None
            return self.build_file_response(handle, file_stat, path_parts, query, environ, is_from_status=True)
        finally:
            os.close(handle)

    def read_status(self, handle: int, file_stat: os.stat_result) -> bytes:
        """Read status.json, or take what the cache has of it."""
        etag = build_static_etag(file_stat)
        return self.body_cache.get((STATUS_FILE, etag), lambda: read_open_static_file(handle, file_stat))

    def open_file(self, path_parts: list[str]) -> int:
        """Open a file without following a link, whoever changes the folders meanwhile."""
        handle = os.open(self.www, FOLDER_FLAGS)  # the folder that the admin names may be a link
        try:
            for part in path_parts[:-1]:
                inner = os.open(part.encode(), FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = inner
            return os.open(path_parts[-1].encode(), FILE_FLAGS, dir_fd=handle)
        finally:
            os.close(handle)

    def serve_file(self, path_parts: list[str], query: str, environ: WSGIEnvironment) -> StaticResponse:
        """Serve a file as it is now: it is opened once, and everything is read from what was opened."""
        handle = self.open_file(path_parts)
        try:
            file_stat = os.fstat(handle)
            if stat.S_ISREG(file_stat.st_mode):
                return self.build_file_response(handle, file_stat, path_parts, query, environ)
            index = compat_routes.find_compat_index_file(path_parts)
            is_folder = stat.S_ISDIR(file_stat.st_mode)
            if not is_folder or not stat.S_ISREG(os.stat(index, dir_fd=handle, follow_symlinks=False).st_mode):
                return build_static_error_response(404)
            location = f"./{quote(path_parts[-1])}/"
            if query:
                location += f"?{quote(query, safe=SAFE_QUERY_CHARACTERS, encoding='latin-1')}"
            sentence = "This address is a folder: add a slash."
            return build_static_error_response(308, ("Location", location), sentence=sentence)
        finally:
            os.close(handle)

    def build_file_response(
        self,
        handle: int,
        file_stat: os.stat_result,
        path_parts: list[str],
        query: str,
        environ: WSGIEnvironment,
        is_from_status: bool = False,
    ) -> StaticResponse:
        """Send an open file whole, compressed or streamed, or say that the client has it already.

        With `is_from_status` it is status.json, of which the file on this path is made.
        """
        content_type, is_text = find_content_type(path_parts[-1])
        size = file_stat.st_size
        is_compressible = is_text and size <= MAX_BUFFERED_BYTES
        is_gzip = choose_compression(environ.get("HTTP_ACCEPT_ENCODING", ""), is_compressible, size)
        if is_gzip is None:
            return build_static_error_response(406, ("Vary", "Accept-Encoding"))
        entry_count = compat_routes.parse_compat_entry_count(path_parts, query) if self.compat_hosts else 1
        etag = build_static_etag(file_stat) + ("-gzip" if is_gzip else "")
        etag += f"-{entry_count}" if entry_count > 1 else ""
        is_immutable = query and path_parts[0] == "assets"
        headers = [
            ("Cache-Control", "public, max-age=31536000, immutable" if is_immutable else "no-cache"),
            ("ETag", f'"{etag}"'),
            ("Last-Modified", formatdate(max(0, min(file_stat.st_mtime, time.time())), usegmt=True)),
        ]
        if is_text:
            headers.append(("Vary", "Accept-Encoding"))
        if path_parts[0] == REPORTS_FOLDER:
            headers.append(("Content-Security-Policy", REPORT_SECURITY_POLICY))
        if environ["REQUEST_METHOD"] != "POST" and is_static_file_not_modified(environ, etag, file_stat.st_mtime):
            return StaticResponse(304, tuple(headers))
        headers.append(("Content-Type", content_type))
        if is_gzip:
            headers.append(("Content-Encoding", "gzip"))
        if size > MAX_BUFFERED_BYTES:
            headers.append(("Content-Length", str(size)))
            return StaticResponse(200, tuple(headers), stream=StaticFileStream(os.dup(handle)))

        def make_body() -> bytes:
            if self.compat_hosts and is_from_status:
                status = self.read_status(handle, file_stat)
                content = self.compat_hosts.render("/".join(path_parts), status, entry_count) or b""
            else:
                content = read_open_static_file(handle, file_stat)
                if self.compat_hosts and entry_count > 1:
                    content = self.compat_hosts.history(content, entry_count)
            return gzip.compress(content, 6, mtime=0) if is_gzip else content

        body = self.body_cache.get(("/".join(path_parts), etag), make_body)
        return StaticResponse(200, (*headers, ("Content-Length", str(len(body)))), body)


def parse_static_target(environ: WSGIEnvironment) -> tuple[str, str]:
    """Return path and query as they were sent; PATH_INFO has lost its leading slashes."""
    target, _, query = environ["REQUEST_URI"].partition("#")[0].partition("?")
    return ABSOLUTE_URL_START.sub("", target, count=1) or "/", query


def split_static_path(path: str) -> list[str] | None:
    """Return the names on the way to a file, index.html for a folder; None if one of them could lead elsewhere."""
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
    is_unsafe = any(not part or part[0] == "." or "\\" in part or not part.isprintable() for part in parts)
    return None if is_unsafe else parts


def build_static_etag(file_stat: os.stat_result) -> str:
    return f"{file_stat.st_ino:x}-{file_stat.st_mtime_ns:x}-{file_stat.st_size:x}"


def find_silent_node_reason(body: bytes) -> str:
    """Return why a node in the shape of the GPU Cluster Status Monitor has no current data; empty if it has."""
    node = orjson.loads(body)
    return "" if node["status"] else f"{node['hostname']} is {node['state']}: {node['reason']}"


def find_content_type(name: str) -> tuple[str, bool]:
    """Return the type of a file by its name, and whether it is a text."""
    if name == "metrics":
        return "text/plain; version=0.0.4; charset=utf-8", True
    if name in {host_json.NVGPU_HOST_FILE, host_json.NVGPU_CLUSTER_FILE}:
        return TEXT_TYPES["json"], True
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    return TEXT_TYPES.get(suffix) or IMAGE_TYPES.get(suffix, "application/octet-stream"), suffix in TEXT_TYPES


def choose_compression(accepted: str, is_compressible: bool, size: int) -> bool | None:
    """Return True if the body is to be compressed; None if the client accepts neither form."""
    qualities: dict[str, float] = {}
    for item in accepted.lower().split(","):
        name, *parameters = (word.strip() for word in item.split(";"))
        quality = QUALITY_PATTERN.fullmatch(parameters[0]) if parameters else None
        qualities[name] = float(quality[1]) if quality else 0.0 if parameters else 1.0
    gzip_quality = 0.0
    if is_compressible:
        gzip_quality = qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0.0)))
    plain_quality = qualities.get("identity", 0.0 if qualities.get("*") == 0 else None)
    if plain_quality == 0:
        return True if gzip_quality else None
    return size >= MIN_COMPRESSED_BYTES and gzip_quality > 0 and gzip_quality >= (plain_quality or 0)


def is_static_file_not_modified(environ: WSGIEnvironment, etag: str, modified: float) -> bool:
    known_etags = environ.get("HTTP_IF_NONE_MATCH")
    if known_etags is not None:
        return known_etags.strip() == "*" or etag in ETAG_PATTERN.findall(known_etags)
    try:
        since = parsedate_to_datetime(environ["HTTP_IF_MODIFIED_SINCE"]).timestamp()
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        return False
    return int(modified) <= since


def read_open_static_file(handle: int, file_stat: os.stat_result) -> bytes:
    """Read an open file, if it is still the same as when `file_stat` was taken."""
    with open(handle, "rb", closefd=False) as file:  # it has no path any more
        content = file.read(file_stat.st_size + 1)
    if len(content) != file_stat.st_size or os.fstat(handle).st_mtime_ns != file_stat.st_mtime_ns:
        raise StaticFileChangedError
    return content
