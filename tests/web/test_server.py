"""`gpuboard serve`: the files of www/ to whoever may ask, and nothing else to anybody."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import html
import http.client
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, ConsoleMessage

from site_builder.core.model import BookingPolicy
from site_builder.web import server, static_files
from site_builder.web.server import (
    WebServer,
    build_server_url,
    describe_server_listen_error,
    is_server_local_only,
    list_server_start_messages,
    open_listening_socket,
)
from site_builder.web.static_files import StaticSite
from tests.support.board_fixture import Lab
from tests.support.browser import ROOT, build, missing
from tests.support.live_page import free_port
from tests.support.pace import wall, within

SECRET = b"nobody-may-read-this"
PAGE = "<!doctype html><title>board</title>" + "<p>atlas is free</p>" * 200
LARGE = 6_000_000
SECURITY = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
}


def clean_environment(**extra_variables: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PRIVATE": SECRET.decode(), **extra_variables}


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Running:
    """The real command in a folder, on a free port of 127.0.0.1."""

    def __init__(self, folder: Path, before: tuple[str, ...] = (), **environment: str) -> None:
        self.port = free_port()
        self.log = folder / "stderr"
        command = [*before, sys.executable, "-m", "site_builder", "serve", "--listen", f"127.0.0.1:{self.port}"]
        variables = clean_environment(**environment)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                self.process.wait()
                message = f"it did not start: {self.log.read_text()}"
                raise TimeoutError(message)
            time.sleep(0.02)

    def answers(self) -> bool:
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", self.port)) == 0

    def get(self, path: str = "/", method: str = "GET", body: bytes | None = None, **headers: str) -> Got:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            line.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = line.getresponse()
            return Got(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            line.close()

    def raw(self, request: bytes) -> bytes:
        """What is answered to these very bytes, until the connection ends."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            line.sendall(request)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := line.recv(65536):
                    received += chunk
            return received

    def target(self, target: bytes) -> bytes:
        """The same for a path as it stands on the request line."""
        return self.raw(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextlib.contextmanager
def running(folder: Path, before: tuple[str, ...] = (), **environment: str) -> Iterator[Running]:
    one = Running(folder, before, **environment)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.stop()


def fill(folder: Path) -> None:
    """A site, with secrets beside it and all ways to them that a file system has."""
    www = folder / "www"
    for name in ("assets", "hosts", "states/atlas", "lists", ".git"):
        (www / name).mkdir(parents=True)
    (www / "index.html").write_text(PAGE)
    (www / "hosts/index.html").write_text("<p>hosts")
    (www / "hosts/atlas.html").write_text("<p>atlas")
    (www / "states/index.json").write_text("{}")
    (www / "metrics").write_text("gpuboard_up 1\n")
    (www / "small.txt").write_text("small")
    (www / "empty.txt").write_text("")
    (www / "assets/board.css").write_text("p{color:red}" * 200)
    (www / "picture.png").write_bytes(b"\x89PNG" + bytes(4000))
    (www / "odd%name.txt").write_text("odd")
    for suffix in ("css", "js", "json", "svg", "ico", "csv", "ics", "webmanifest", "xml", "bin", "HTML"):
        (www / f"file.{suffix}").write_text("content")
    (folder / "secret.txt").write_bytes(SECRET)
    (folder / "www-secret").mkdir()
    (folder / "www-secret/secret.txt").write_bytes(SECRET)
    (www / ".hidden").write_bytes(SECRET)
    (www / ".git/config").write_bytes(SECRET)
    (www / "link.txt").symlink_to("../secret.txt")
    (www / "absolute.txt").symlink_to(folder / "secret.txt")
    (www / "up").symlink_to("..")
    (www / "hosts/root").symlink_to("/")
    (www / "lists/index.html").symlink_to("../../secret.txt")
    os.mkfifo(www / "pipe.txt")
    short = os.open(www, os.O_RDONLY)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{short}/socket.txt")
    finally:
        os.close(short)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("site")
    fill(folder)
    with running(folder) as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small site of a test's own."""
    (tmp_path / "www").mkdir()
    (tmp_path / "www/index.html").write_text(PAGE)
    return tmp_path


def serve(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command where it cannot start."""
    command = [sys.executable, "-m", "site_builder", "serve", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


# Starting and ending


def test_it_says_to_a_terminal_where_the_board_is_in_one_line(folder: Path) -> None:
    port = free_port()
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "site_builder", "serve", "--listen", str(port)]
    with subprocess.Popen(command, cwd=folder, env=clean_environment(), stderr=its) as process:
        terminal_text = os.read(ours, 4096).decode()
        process.terminate()
    assert terminal_text == f"gpuboard: the board is at http://127.0.0.1:{port}/ until Ctrl-C\r\n"
    os.close(ours)
    os.close(its)


def test_cron_which_would_mail_it_hears_nothing(site: Running) -> None:
    assert site.log.read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_it_with_exit_0_and_no_further_word(folder: Path, number: int) -> None:
    with running(folder) as one:
        one.get()
        with socket.create_connection(("127.0.0.1", one.port)):
            assert one.stop(number) == 0
        assert one.log.read_text() == ""


def test_after_the_end_the_port_is_free_at_once(folder: Path) -> None:
    with running(folder) as one:
        one.get()
        one.stop()
        open_listening_socket("127.0.0.1", one.port).close()


def test_a_port_that_is_taken_is_one_sentence_and_exit_2(folder: Path, site: Running) -> None:
    result = serve(folder, "--listen", str(site.port))
    assert (result.returncode, result.stdout) == (2, "")
    what = f"127.0.0.1:{site.port} is taken by another program"
    assert result.stderr == f"gpuboard: {what}: choose another with --listen or GPUBOARD_LISTEN\n"


def test_an_address_of_another_machine_is_one_sentence_and_exit_2(folder: Path) -> None:
    result = serve(folder, GPUBOARD_LISTEN="192.0.2.1:8080")
    assert result.returncode == 2
    assert result.stderr.startswith("gpuboard: 192.0.2.1 is not an address of this machine: ")
    assert result.stderr.count("\n") == 1


def test_the_flag_counts_more_than_the_environment(folder: Path, site: Running) -> None:
    result = serve(folder, "--listen", str(site.port), GPUBOARD_LISTEN="192.0.2.1:8080")
    assert f"127.0.0.1:{site.port} is taken" in result.stderr


def test_a_flag_that_is_no_address_is_one_sentence_and_exit_2(folder: Path) -> None:
    result = serve(folder, "--listen", "here")
    assert result.returncode == 2
    assert "GPUBOARD_LISTEN is 'here' (--listen), but must be address:port" in result.stderr


def test_a_port_for_root_alone_is_one_sentence() -> None:
    message = describe_server_listen_error(PermissionError(errno.EACCES, "Permission denied"), "127.0.0.1", 80)
    assert message.startswith("only root may listen on port 80: choose one from 1024 on")


def test_a_name_that_nobody_knows_is_one_sentence() -> None:
    message = describe_server_listen_error(
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "nowhere", 8080
    )
    assert message.startswith("nowhere is not an address of this machine")


@pytest.mark.parametrize("www", ["nowhere", "stderr.txt"])
def test_a_www_that_is_no_folder_is_one_sentence_and_exit_2(tmp_path: Path, www: str) -> None:
    (tmp_path / "stderr.txt").touch()
    result = serve(tmp_path, "--www", www, "--listen", str(free_port()))
    assert result.returncode == 2
    assert f"there is no folder {tmp_path}/{www}" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_address_that_the_network_can_reach_is_reported(tmp_path: Path) -> None:
    plain = Lab(tmp_path).settings()
    desk = replace(plain, booking_policy=BookingPolicy(url="book", is_open=True))
    with socket.socket() as bound:  # it does not listen
        bound.bind(("0.0.0.0", 0))  # noqa: S104
        assert not is_server_local_only(bound)
        assert list_server_start_messages(bound, plain, True)[1:] == ["everybody on the network can read it"]
        assert list_server_start_messages(bound, desk, True)[2:] == [
            "anybody who reaches it may book, under any name: GPUBOARD_BOOK_OPEN=no ends that"
        ]
        assert build_server_url(bound) == f"http://{socket.gethostname()}:{bound.getsockname()[1]}/"


def test_an_ipv6_address_has_brackets_in_its_url() -> None:
    try:
        bound = open_listening_socket("::1", free_port())
    except OSError:
        missing("this machine has no IPv6")
    with bound:
        assert is_server_local_only(bound)
        assert build_server_url(bound).startswith("http://[::1]:")


def test_a_server_runs_in_a_thread_until_it_is_closed(folder: Path) -> None:
    sock = open_listening_socket("127.0.0.1", free_port())
    port = sock.getsockname()[1]
    one = WebServer(StaticSite(folder / "www"), sock)
    thread = threading.Thread(target=one.run)
    thread.start()
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    line.request("GET", "/")
    assert line.getresponse().read() == PAGE.encode()
    one.stop()
    one.stop()
    thread.join(10)
    line.close()
    assert not thread.is_alive()
    open_listening_socket("127.0.0.1", port).close()


def test_a_site_that_is_not_built_yet_says_so_and_is_there_once_it_is(folder: Path) -> None:
    (folder / "www/index.html").rename(folder / "page")
    with running(folder) as one:
        before = one.get()
        (folder / "page").rename(folder / "www/index.html")
        assert one.get().status == 200
    assert before.status == 503
    assert before.headers["Retry-After"] == "10"
    assert b"has not been built yet: run <code>gpuboard build</code>" in before.body


# What is served


def test_the_root_is_the_board(site: Running) -> None:
    assert site.get("/").body == PAGE.encode()


def test_head_has_the_headers_of_get_and_no_body(site: Running) -> None:
    head, get = site.get("/", "HEAD"), site.get("/")
    assert (head.status, head.body) == (200, b"")
    assert {**head.headers, "Date": ""} == {**get.headers, "Date": ""}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "PROPFIND", "X"])
def test_any_other_method_is_refused(site: Running, method: str) -> None:
    answer = site.get("/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("/hosts", "./hosts/"),
        ("/hosts?a=1&b=%20%22", "./hosts/?a=1&b=%20%22"),
        ("/hosts?<script>", "./hosts/?%3Cscript%3E"),
    ],
)
def test_a_folder_without_its_slash_redirects_to_it(site: Running, path: str, to: str) -> None:
    answer = site.get(path)
    assert (answer.status, answer.headers["Location"]) == (308, to)


@pytest.mark.parametrize("path", ["/states/atlas", "/states/atlas/", "/assets", "/assets/", "/lists", "/lists/"])
def test_a_folder_is_never_listed(site: Running, path: str) -> None:
    assert site.get(path).status == 404


@pytest.mark.parametrize("path", ["/hosts/", "/hosts/index.html", "/hosts/%61tlas.html", "/odd%25name.txt"])
def test_a_plain_path_is_decoded_once_and_found(site: Running, path: str) -> None:
    assert site.get(path).status == 200


def test_an_address_in_full_is_understood(site: Running) -> None:
    assert site.target(b"http://localhost/small.txt").endswith(b"\r\n\r\nsmall")


def test_an_empty_file_is_an_empty_answer(site: Running) -> None:
    answer = site.get("/empty.txt")
    assert (answer.status, answer.headers["Content-Length"], answer.body) == (200, "0", b"")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("index.html", "text/html; charset=utf-8"),
        ("file.HTML", "text/html; charset=utf-8"),
        ("file.css", "text/css; charset=utf-8"),
        ("file.js", "text/javascript; charset=utf-8"),
        ("small.txt", "text/plain; charset=utf-8"),
        ("file.csv", "text/csv; charset=utf-8"),
        ("file.ics", "text/calendar; charset=utf-8"),
        ("file.json", "application/json"),
        ("file.webmanifest", "application/manifest+json"),
        ("file.xml", "application/xml; charset=utf-8"),
        ("file.svg", "image/svg+xml"),
        ("picture.png", "image/png"),
        ("file.ico", "image/x-icon"),
        ("metrics", "text/plain; version=0.0.4; charset=utf-8"),
        ("file.bin", "application/octet-stream"),
    ],
)
def test_a_file_has_the_type_of_its_name(site: Running, name: str, kind: str) -> None:
    assert site.get(f"/{name}").headers["Content-Type"] == kind


def test_a_very_large_file_is_sent_whole(folder: Path) -> None:
    content = os.urandom(1 << 20) * 20
    (folder / "www/large.bin").write_bytes(content)
    with running(folder) as one:
        assert one.get("/large.bin").body == content
        assert one.get("/large.bin", "HEAD").headers["Content-Length"] == str(len(content))


# What is not served


@pytest.mark.parametrize(
    "target",
    [
        b"/../secret.txt",
        b"/hosts/../../secret.txt",
        b"/%2e%2e/secret.txt",
        b"/%2E%2E%2Fsecret.txt",
        b"/..%5csecret.txt",
        b"/..\\secret.txt",
        b"/%252e%252e/secret.txt",
        b"/%c0%ae%c0%ae/secret.txt",
        b"/.",
        b"/./small.txt",
        b"/hosts/./atlas.html",
        b"/hosts//atlas.html",
        b"//small.txt",
        b"//board/small.txt",
        b"/%2fsmall.txt",
        b"/%2f/etc/passwd",
        b"/.hidden",
        b"/.git/config",
        b"/small.txt/",
        b"/small.txt/..",
        b"/small.txt%00",
        b"/small.txt%00.html",
        b"/small.txt%0a",
        b"/small.txt%7f",
        b"/small.txt%c2%85",
        b"/%ff",
        b"/small%2etxt%e2%80%ae",
        b"/link.txt",
        b"/absolute.txt",
        b"/up/secret.txt",
        b"/up/www/small.txt",
        b"/hosts/root/etc/passwd",
        b"/lists/index.html",
        b"/pipe.txt",
        b"/socket.txt",
        b"/../www-secret/secret.txt",
        b"small.txt",
        b"*",
        b"http://localhost/../secret.txt",
        b"file:///etc/passwd",
        b"/" + b"a" * 300,
        b"/" + b"a/" * 1500,
        b"/" + b"../" * 300 + b"etc/passwd",
    ],
)
def test_no_trick_with_a_path_finds_anything(site: Running, target: bytes) -> None:
    answer = site.target(target)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert SECRET not in answer


TRICKS = rb"""
    / // \ .. . ... %2e%2e %2e %2f %5c %252e %c0%ae %00 % ? # ; : ~ http://x file:// www www-secret secret.txt up hosts
    root link.txt absolute.txt .hidden .git config lists index.html proc self environ cwd pipe.txt assets
"""
BYTES = st.binary(min_size=1, max_size=3)
ESCAPED = BYTES.map(lambda found: "".join(f"%{byte:02x}" for byte in found).encode())
PIECES = st.one_of(st.sampled_from(TRICKS.split()), BYTES, ESCAPED)
PATHS = st.builds(bytes.join, st.sampled_from([b"", b"/"]), st.lists(PIECES, min_size=1, max_size=8))


@given(path=PATHS, absolute=st.booleans())
@settings(max_examples=400)
def test_no_path_whatsoever_yields_a_byte_of_a_secret(site: Running, path: bytes, absolute: bool) -> None:
    folder = bytes(site.log.parent) if absolute else b""
    answer = site.target(b"/" + folder + path)
    assert answer.startswith(b"HTTP/1.")
    assert SECRET not in answer


def test_a_device_is_not_opened_for_reading(folder: Path) -> None:
    try:
        os.mknod(folder / "www/zero.txt", 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        missing("only root can make a device")
    with running(folder) as one:
        assert one.get("/zero.txt").status == 404


def test_a_file_without_the_right_to_read_it_is_403_and_reported_once_without_a_path_on_the_page(folder: Path) -> None:
    (folder / "www/closed.txt").write_bytes(SECRET)
    (folder / "www/closed.txt").chmod(0)
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:
        rights = "-dac_override,-dac_read_search"
        setpriv = shutil.which("setpriv") or missing("root reads everything, and setpriv is not here")
        before = (setpriv, "--bounding-set", rights, "--inh-caps", rights)
    with running(folder, before) as one:
        answers = [one.get("/closed.txt") for _ in range(3)]
        log = one.log.read_text().splitlines()
    assert {answer.status for answer in answers} == {403}
    assert b"closed" not in answers[0].body
    assert log == [
        f"gpuboard: {folder}/www/closed.txt cannot be read: Permission denied; whoever asks for it gets an error"
    ]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n8000\r\n" + b"x" * 0x8000, 413),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nLong: " + b"x" * 20000 + b"\r\n\r\n", 431),
        (b"POST /get-status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"POST /get-status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"get <script> HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_what_is_no_plain_request_is_refused_with_our_headers(site: Running, request_bytes: bytes, status: int) -> None:
    head, _, body = site.raw(request_bytes).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert b"\r\nX-Frame-Options: SAMEORIGIN" in head
    assert b"script>" not in body
    assert b"waitress" not in head + body


@pytest.mark.parametrize("coding", [b"chunked", b"gzip", b"CHUNKED", b"identity", b""])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_request_with_two_lengths_is_400_and_what_follows_it_is_not_answered(
    site: Running, coding: bytes, version: bytes
) -> None:
    smuggled = b"GET /small.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for names in ((b"Content-Length", b"Transfer-Encoding"), (b"content-length", b"TRANSFER-ENCODING")):
        length, te = names
        head = b"POST /get-status HTTP/" + version + b"\r\nHost: localhost\r\nConnection: keep-alive\r\n"
        head += length + b": 5\r\n" + te + b": " + coding + b"\r\n\r\n"
        answer = site.raw(head + b"0\r\n\r\n" + smuggled)
        assert answer.split()[1] == b"400"
        assert b"\r\nConnection: close\r\n" in answer
        assert answer.count(b"HTTP/1.") == 1


# Headers


@pytest.mark.parametrize("path", ["/", "/hosts", "/nowhere", "/assets/board.css?1", "/picture.png", "/states/"])
@pytest.mark.parametrize("name", SECURITY)
def test_every_answer_has_the_headers_of_security(site: Running, path: str, name: str) -> None:
    assert site.get(path).headers[name] == SECURITY[name]


def test_the_policy_is_the_pages_own_and_says_who_may_frame_it(site: Running) -> None:
    template = (ROOT / "site_builder/board/templates/head.html").read_text()
    policy_match = re.search(r'Content-Security-Policy content="([^"]+)"', template)
    assert policy_match
    assert site.get().headers["Content-Security-Policy"] == f"{html.unescape(policy_match[1])}; frame-ancestors 'self'"


def test_it_sends_the_time_but_no_server_name(site: Running) -> None:
    headers = site.get().headers
    assert "Date" in headers
    assert not {"Server", "Via"} & set(headers)


@pytest.mark.parametrize(
    ("path", "control"),
    [
        ("/", "no-cache"),
        ("/?1", "no-cache"),
        ("/assets/board.css", "no-cache"),
        ("/assets/board.css?", "no-cache"),
        ("/assets/board.css?4f2a", "public, max-age=31536000, immutable"),
        ("/assets/gone.css?4f2a", "no-cache"),
        ("/nowhere", "no-cache"),
    ],
)
def test_only_an_asset_with_a_version_is_kept_without_asking(site: Running, path: str, control: str) -> None:
    assert site.get(path).headers["Cache-Control"] == control


def test_an_error_does_not_repeat_the_path(site: Running) -> None:
    assert b"hello" not in site.get("/hello<b>").body


# What a reader has already


@pytest.mark.parametrize("form", ["{0}", "W/{0}", '"other", {0}', '"a" , W/{0},"b"', "*", " * "])
def test_a_known_tag_is_304(site: Running, form: str) -> None:
    tag = site.get().headers["Etag"]
    answer = site.get(If_None_Match=form.format(tag))
    assert (answer.status, answer.body) == (304, b"")


@pytest.mark.parametrize("form", ['"other"', "", '"', "other", '"{0}'])
def test_a_changed_etag_sends_the_file_again(site: Running, form: str) -> None:
    tag = site.get().headers["Etag"].strip('"')
    assert site.get(If_None_Match=form.format(tag[:-1])).status == 200


def test_a_304_has_the_headers_that_caches_need(site: Running) -> None:
    full = site.get("/assets/board.css?1").headers
    cached_headers = site.get("/assets/board.css?1", If_None_Match=full["Etag"]).headers
    names = ("Etag", "Cache-Control", "Vary", "Last-Modified", "Content-Security-Policy")
    assert [cached_headers[name] for name in names] == [full[name] for name in names]
    assert "Content-Length" not in cached_headers


def test_a_304_keeps_the_connection(site: Running) -> None:
    tag = site.get().headers["Etag"]
    line = http.client.HTTPConnection("127.0.0.1", site.port, timeout=10)
    line.request("GET", "/", headers={"If-None-Match": tag})
    assert line.getresponse().read() == b""
    sock = line.sock
    line.request("GET", "/small.txt")
    assert line.getresponse().read() == b"small"
    assert line.sock is sock
    line.close()


def test_a_304_ends_the_connection_where_the_reader_wants_that(site: Running) -> None:
    tag = site.get().headers["Etag"].encode()
    ask = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nIf-None-Match: " + tag + b"\r\n\r\n"
    assert b"\r\nConnection: close\r\n" in site.raw(ask)


@pytest.mark.parametrize(("seconds", "status"), [(0, 304), (3600, 304), (-1, 200)])
def test_the_date_of_what_is_known_counts_to_the_second(site: Running, seconds: int, status: int) -> None:
    modified = (site.log.parent / "www/index.html").stat().st_mtime
    assert site.get(If_Modified_Since=formatdate(modified + seconds, usegmt=True)).status == status


@pytest.mark.parametrize("text", ["", "yesterday", "Mon, 99 Foo 2026 00:00:00 GMT", "0", "-1", "Sat, 01 Jan 0000"])
def test_a_date_that_is_none_is_ignored(site: Running, text: str) -> None:
    assert site.get(If_Modified_Since=text).status == 200


def test_the_tag_counts_more_than_the_date(site: Running) -> None:
    later = formatdate(time.time() + 3600, usegmt=True)
    assert site.get(If_None_Match='"other"', If_Modified_Since=later).status == 200


def test_a_new_content_has_a_new_tag(folder: Path) -> None:
    with running(folder) as one:
        before = one.get().headers["Etag"]
        (folder / "new").write_text(PAGE.replace("free", "busy"))
        (folder / "new").replace(folder / "www/index.html")
        assert one.get(If_None_Match=before).status == 200


@pytest.mark.parametrize("when", [-1e11, 1e12, 2**62 / 1e9])
def test_a_file_of_an_impossible_time_is_served_all_the_same(folder: Path, when: float) -> None:
    try:
        os.utime(folder / "www/index.html", (when, when))
    except OSError as error:
        assert error.errno in (errno.EINVAL, errno.EOVERFLOW)  # then no file here can have it
    with running(folder) as one:
        assert one.get().status == 200


# Compression


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("GZIP", "gzip"),
        ("x-gzip", "gzip"),
        ("gzip, deflate, br, zstd", "gzip"),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", "gzip"),
        ("*", "gzip"),
        ("br", None),
        ("gzip;q=0", None),
        ("gzip;q=0.000", None),
        ("gzip; q=0.5", "gzip"),
        ("gzip;q=0, *", None),
        ("identity", None),
        ("identity;q=1, gzip;q=0.5", None),
        ("identity;q=0.5, gzip", "gzip"),
        ("identity;q=0, gzip", "gzip"),
        ("*;q=0, gzip", "gzip"),
        ("gzip;q=nonsense", None),
        (";;,,;q=", None),
    ],
)
def test_a_text_is_compressed_where_the_reader_takes_it(site: Running, accepted: str, encoding: str | None) -> None:
    answer = site.get(Accept_Encoding=accepted)
    assert (answer.status, answer.headers.get("Content-Encoding")) == (200, encoding)
    assert (gzip.decompress(answer.body) if encoding else answer.body) == PAGE.encode()


def test_a_text_below_1_kb_is_not_worth_it(site: Running) -> None:
    assert "Content-Encoding" not in site.get("/small.txt", Accept_Encoding="gzip").headers


def test_a_small_text_is_compressed_for_who_takes_nothing_else(site: Running) -> None:
    answer = site.get("/small.txt", Accept_Encoding="gzip, identity;q=0")
    assert gzip.decompress(answer.body) == b"small"


def test_a_picture_is_not_compressed(site: Running) -> None:
    headers = site.get("/picture.png", Accept_Encoding="gzip").headers
    assert not {"Content-Encoding", "Vary"} & set(headers)


@pytest.mark.parametrize("accepted", ["identity;q=0", "*;q=0", "gzip;q=0, identity;q=0"])
def test_a_client_that_accepts_no_encoding_gets_406(site: Running, accepted: str) -> None:
    assert site.get(Accept_Encoding=accepted).status == 406


def test_the_compressed_form_has_a_tag_of_its_own(site: Running) -> None:
    plain, packed = site.get(), site.get(Accept_Encoding="gzip")
    assert packed.headers["Etag"] == plain.headers["Etag"][:-1] + '-gzip"'
    assert packed.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert site.get(Accept_Encoding="gzip", If_None_Match=packed.headers["Etag"]).status == 304
    assert site.get(Accept_Encoding="gzip", If_None_Match=plain.headers["Etag"]).status == 200


def asked(site: StaticSite, method: str = "GET") -> bytes:
    """What the application itself answers to somebody who takes gzip."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "REQUEST_URI": "/",
        "HTTP_ACCEPT_ENCODING": "gzip",
        "wsgi.file_wrapper": lambda file: [file.read()],
    }
    return b"".join(site(environ, lambda *_: lambda _: None))


def test_a_large_page_is_compressed_once_for_50_readers_and_head(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "www/index.html").write_bytes(os.urandom(1000) * (LARGE // 1000))
    times = []
    really = gzip.compress

    def counted(*arguments: Any, **named: Any) -> bytes:  # noqa: ANN401 # as it is called
        times.append(time.monotonic())
        return really(*arguments, **named)

    monkeypatch.setattr(gzip, "compress", counted)
    site = StaticSite(folder / "www")
    asked(site, "HEAD")
    with ThreadPoolExecutor(50) as readers:
        bodies = set(readers.map(lambda _: asked(site), range(50)))
    assert (len(times), len(bodies)) == (1, 1)


def test_bodies_are_kept_within_a_limit_and_the_newest_in_any_case() -> None:
    bodies = static_files.BodyCache(100)
    for number in range(20):
        bodies.get((str(number), ""), lambda: bytes(30))
    assert list(bodies.bodies) == [(str(number), "") for number in (17, 18, 19)]
    bodies.get(("large", ""), lambda: bytes(1000))
    assert (list(bodies.bodies), bodies.cached_bytes) == ([("large", "")], 1000)


def test_a_body_that_could_not_be_made_is_tried_again() -> None:
    bodies = static_files.BodyCache(100)

    def fail() -> bytes:
        raise static_files.StaticFileChangedError

    with pytest.raises(static_files.StaticFileChangedError):
        bodies.get(("page", ""), fail)
    assert bodies.get(("page", ""), lambda: b"whole") == b"whole"


# Many and slow readers


def version(number: int) -> bytes:
    return f"<p>{number:04d} is the version of this line</p>\n".encode() * (LARGE // 43)


def test_50_readers_get_a_page_whole_while_it_is_replaced(folder: Path) -> None:
    """Each body is one of the versions, and each tag stands for one body."""
    page, new = folder / "www/index.html", folder / "new"
    page.write_bytes(version(0))
    number_by_digest = {hashlib.blake2b(version(number)).digest(): number for number in range(21)}
    versions_by_tag: dict[str, set[int | None]] = {}
    done = threading.Event()
    with running(folder) as one, ThreadPoolExecutor(50) as readers:

        def read(number: int) -> None:
            while True:
                last = done.is_set()
                packed = number % 2 == 0
                answer = one.get(Accept_Encoding="gzip" if packed else "identity")
                body = gzip.decompress(answer.body) if packed else answer.body
                versions_by_tag.setdefault(answer.headers["Etag"], set()).add(
                    number_by_digest.get(hashlib.blake2b(body).digest())
                )
                if last:
                    return

        reading = [readers.submit(read, number) for number in range(50)]
        for number in range(1, 21):
            new.write_bytes(version(number))
            new.replace(page)
            time.sleep(0.1)
        done.set()
        for each in reading:
            each.result()
        log = one.log.read_text()
    assert all(len(versions) == 1 and None not in versions for versions in versions_by_tag.values())
    assert 20 in set().union(*versions_by_tag.values())
    assert log == ""


def test_stalled_clients_do_not_delay_others(folder: Path) -> None:
    (folder / "www/index.html").write_bytes(version(0))
    (folder / "www/small.txt").write_text("small")
    (folder / "www/large.bin").touch()
    os.truncate(folder / "www/large.bin", static_files.MAX_BUFFERED_BYTES + 1)
    page, large = (b"GET %s HTTP/1.1\r\nHost: localhost\r\n" % path for path in (b"/", b"/large.bin"))
    with running(folder) as one, contextlib.ExitStack() as lines:
        for request in [page, (page + b"\r\n") * 100, (large + b"\r\n") * 100] * 20:
            line = lines.enter_context(socket.create_connection(("127.0.0.1", one.port), timeout=10))
            line.sendall(request)
        time.sleep(1)
        with within(10, wall):
            assert one.get("/small.txt").body == b"small"
        about = Path(f"/proc/{one.process.pid}")
        memory_match = re.search(r"VmRSS:\s+([0-9]+)", (about / "status").read_text())
        assert memory_match
        assert int(memory_match[1]) < 60_000  # KiB; the page is in memory once, not once a reader or once a thread
        assert len(list((about / "fd").iterdir())) < 150  # and a large file is open once a reader, not once a request
        assert one.log.read_text() == ""


def test_hundreds_of_idle_connections_keep_nobody_waiting(site: Running) -> None:
    with contextlib.ExitStack() as lines:
        for _ in range(400):
            lines.enter_context(socket.create_connection(("127.0.0.1", site.port), timeout=10))
        assert site.get("/small.txt").body == b"small"


def test_a_request_that_comes_byte_by_byte_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    sock = open_listening_socket("127.0.0.1", free_port())
    one = WebServer(StaticSite(folder / "www"), sock)
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        with socket.create_connection(sock.getsockname(), timeout=5) as line:
            with contextlib.suppress(ConnectionError):
                for letter in b"GET /index.html HTTP/1.1":
                    line.sendall(bytes([letter]))
                    time.sleep(0.05)
            with contextlib.suppress(ConnectionError):
                assert line.recv(100) == b""
    finally:
        one.stop()
        thread.join(10)


def test_a_file_that_is_written_in_its_place_is_whole_or_not_there(folder: Path) -> None:
    """Nobody should; but whoever does never makes half of a page be kept under the tag of a whole one."""
    page = folder / "www/index.html"
    site = StaticSite(folder / "www")
    handle = os.open(page, os.O_RDONLY)
    try:
        status = os.fstat(handle)
        page.write_text("half")
        with pytest.raises(static_files.StaticFileChangedError):
            static_files.read_open_static_file(handle, status)
    finally:
        os.close(handle)
    assert asked(site) == b"half"


# In a browser


def test_a_browser_shows_the_board_without_an_error_or_a_violation(tmp_path: Path, browser: Browser) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    build(tmp_path)
    browser_messages: list[str] = []

    def tell(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            browser_messages.append(message.text)

    with running(tmp_path) as one:
        context = browser.new_context()
        try:
            page = context.new_page()
            page.on("console", tell)
            page.on("pageerror", lambda error: browser_messages.append(str(error)))
            page.on("requestfailed", lambda request: browser_messages.append(request.url))
            answers: list[int] = []
            page.on("response", lambda response: answers.append(response.status))
            page.goto(f"http://127.0.0.1:{one.port}/")
            page.wait_for_load_state("networkidle")
            assert page.locator("#atlas").is_visible()
            assert page.evaluate("getComputedStyle(document.querySelector('.bar')).display") == "flex"
        finally:
            context.close()
    assert browser_messages == []
    assert set(answers) <= {200, 304}
