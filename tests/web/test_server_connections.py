"""`gpuboard serve` keeps slots for new connections, however many somebody else opens and leaves idle."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser

from site_builder.web import server
from site_builder.web.server import WebServer, open_listening_socket
from site_builder.web.static_files import StaticSite
from tests.support.board_fixture import Lab
from tests.support.browser import build
from tests.support.ports import free_port
from tests.support.serve_fixtures import PAGE, Running, running

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

MANY = 1000
PARTIAL = b"GET / HTTP/1.1\r\nHost: loc"
ASK = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(autouse=True)
def enough_files() -> Iterator[None]:
    """Let this process open both ends of some thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small site."""
    (tmp_path / "www").mkdir()
    (tmp_path / "www/index.html").write_text(PAGE)
    return tmp_path


def connect(port: int, source: str = "127.0.0.1", send: bytes = b"") -> socket.socket:
    """Open a connection from one of this machine's loopback addresses."""
    line = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))
    with contextlib.suppress(ConnectionError):  # it may be closed already, to make room
        line.sendall(send)
    return line


@contextlib.contextmanager
def many(port: int, sources: Iterable[str], send: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open that many connections, and leave them as they are."""
    with contextlib.ExitStack() as lines:
        yield [lines.enter_context(connect(port, source, send)) for source in sources]


def get(port: int, source: str = "127.0.0.1") -> tuple[int, bytes]:
    """Ask for the page over a connection of its own; who must wait for others to go gets no answer in this time."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(source, 0))
    try:
        line.request("GET", "/")
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def count_open(lines: Iterable[socket.socket]) -> int:
    """Count the connections that the server has not closed."""
    poll = select.poll()
    lines_by_descriptor = {line.fileno(): line for line in lines}
    for number in lines_by_descriptor:
        poll.register(number, select.POLLIN | select.POLLHUP)
    return len(lines_by_descriptor) - len(poll.poll(0))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come within 120 s."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextlib.contextmanager
def serving(site: WSGIApplication, proxy: str | None = None) -> Iterator[int]:
    """Run a server in this process, so that its limits can be lowered; the port."""
    sock = open_listening_socket("127.0.0.1", free_port())
    port = sock.getsockname()[1]
    server = WebServer(site, sock, proxy)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield port
    finally:
        server.stop()
        thread.join(20)


class Waiting:
    """A site of which /wait is answered when the test says so."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.arrived = threading.Semaphore(0)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        if environ["PATH_INFO"] == "/wait":
            self.arrived.release()
            assert self.release.wait(30)
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]


def addresses(count: int) -> list[str]:
    """So many connections, from 50 addresses in turn."""
    return [f"127.0.1.{number % 50 + 1}" for number in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("send", [b"", b"G", PARTIAL], ids=["silent", "one byte", "half a request"])
@pytest.mark.parametrize("sources", [["127.0.0.1"] * MANY, addresses(2 * MANY)], ids=["one address", "50 addresses"])
def test_a_thousand_connections_without_a_request_keep_nobody_waiting(
    folder: Path, sources: list[str], send: bytes
) -> None:
    with running(folder) as board, many(board.port, sources, send):
        for source in ("127.0.0.1", "127.0.0.9"):
            assert get(board.port, source) == (200, PAGE.encode())
        assert board.log.read_text() == ""


@pytest.mark.slow
def test_a_thousand_connections_by_way_of_the_proxy_keep_nobody_waiting(folder: Path) -> None:
    sources = ["127.0.0.1"] * 2 * MANY
    with running(folder, GPUBOARD_PROXY="127.0.0.1") as board, many(board.port, sources):
        assert get(board.port)[0] == 200


@pytest.mark.slow
def test_clients_that_open_connections_without_end_keep_nobody_waiting(folder: Path) -> None:
    stop = threading.Event()

    def flood(port: int) -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                with many(port, addresses(500), PARTIAL):
                    pass

    with running(folder) as board:
        thread = threading.Thread(target=flood, args=(board.port,))
        thread.start()
        try:
            for _ in range(5):
                assert get(board.port, "127.0.0.9")[0] == 200
        finally:
            stop.set()
            thread.join()


def test_the_oldest_idle_connections_of_an_address_are_closed(folder: Path) -> None:
    with serving(StaticSite(folder / "www")) as port, many(port, ["127.0.0.1"] * 150) as lines:
        wait_until(lambda: count_open(lines) == server.IDLE_LIMIT_PER_ADDRESS)
        assert [count_open([line]) for line in lines] == [0] * 50 + [1] * 100


def test_connections_of_the_proxy_are_not_limited_by_its_address(folder: Path) -> None:
    with serving(StaticSite(folder / "www"), "127.0.0.1") as port, many(port, ["127.0.0.1"] * 300) as lines:
        for _ in range(3):
            assert get(port)[0] == 200
        assert count_open(lines) == 300


def test_bytes_of_half_a_request_make_a_connection_no_younger(folder: Path) -> None:
    with serving(StaticSite(folder / "www")) as port, many(port, ["127.0.0.1"] * 100, PARTIAL) as slow:
        for line in slow:
            line.sendall(b"a")
        assert get(port)[0] == 200
        with many(port, ["127.0.0.1"] * 60) as idle:
            wait_until(lambda: count_open(slow) <= 40)
            assert count_open(idle) == 60


def test_a_connection_that_was_answered_is_younger_than_one_that_sent_nothing(folder: Path) -> None:
    with serving(StaticSite(folder / "www")) as port, connect(port) as first, many(port, ["127.0.0.1"] * 98) as silent:
        get(port)  # by now all of them are accepted
        first.sendall(ASK % b"")
        wait_until(lambda: count_open([first]) == 0)  # the answer has come
        answer, page = b"", (folder / "www/index.html").read_bytes()
        while not answer.endswith(page):
            answer += first.recv(65536)
        with many(port, ["127.0.0.1"] * 50):
            wait_until(lambda: count_open(silent) == 49)
            first.sendall(ASK % b"")
            assert first.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_a_request_that_is_being_answered_is_never_cut_off() -> None:
    site = Waiting()
    with serving(site) as port, connect(port, send=ASK % b"wait") as busy:
        assert site.arrived.acquire(timeout=10)
        with many(port, ["127.0.0.1"] * 300), many(port, addresses(MANY)):
            assert get(port) == (200, b"ok")
            site.release.set()
            assert busy.recv(100).startswith(b"HTTP/1.1 200 OK")


def connect_until_busy(site: Waiting, port: int) -> socket.socket:
    """Open a connection whose request is being answered; one of too many is closed if its request comes too late."""
    while True:
        line = connect(port, send=ASK % b"wait")
        while not site.arrived.acquire(timeout=0.1):
            if not count_open([line]):
                break
        else:
            return line
        line.close()


@pytest.mark.slow
def test_busy_connections_of_one_address_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_LIMIT_PER_ADDRESS", 5)
    monkeypatch.setattr(server, "MAX_PER_ADDRESS", 20)
    site = Waiting()
    with serving(site) as port, contextlib.ExitStack() as lines:
        busy = [lines.enter_context(connect_until_busy(site, port)) for _ in range(20)]
        with many(port, ["127.0.0.1"] * 10) as refused:
            wait_until(lambda: count_open(refused) == 0)
        assert get(port, "127.0.0.9") == (200, b"ok")
        site.release.set()
        assert all(line.recv(100).startswith(b"HTTP/1.1 200 OK") for line in busy)


@pytest.mark.slow
def test_clients_that_read_nothing_lose_their_slots_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 100)
    monkeypatch.setattr(server, "STALLED_AFTER_S", 0.2)
    (folder / "www/large.bin").touch()
    os.truncate(folder / "www/large.bin", 64 << 20)
    with serving(StaticSite(folder / "www")) as port, many(port, addresses(150), ASK % b"large.bin"):
        assert get(port, "127.0.0.9")[0] == 200


@pytest.mark.slow
def test_an_open_page_goes_on_after_its_connection_was_closed(tmp_path: Path, browser: Browser) -> None:
    Lab(tmp_path).host("atlas")
    build(tmp_path)
    with running(tmp_path) as board:
        context = browser.new_context()
        try:
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{board.port}/")
            page.wait_for_load_state("networkidle")
            fetch = "fetch('live.json', {cache: 'no-store'}).then((answer) => answer.status)"
            for _ in range(3):
                with many(board.port, ["127.0.0.1"] * 300):
                    get(board.port)
                    assert page.evaluate(fetch) == 200
        finally:
            context.close()


@pytest.mark.slow
def test_with_few_files_allowed_it_answers_all_the_same(folder: Path) -> None:
    limited = ("sh", "-c", 'ulimit -n 200 && exec "$@"', "sh")
    board = Running(folder, limited)
    try:
        with many(board.port, addresses(600)):
            assert get(board.port)[0] == 200
    finally:
        board.stop()
