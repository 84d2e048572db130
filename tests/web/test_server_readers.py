"""`gpuboard serve` with many and slow readers."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from site_builder.web import server, static_files
from site_builder.web.server import (
    WebServer,
    open_listening_socket,
)
from site_builder.web.static_files import StaticSite
from tests.support.ports import free_port
from tests.support.serve_fixtures import (
    LARGE,
    Running,
    ask_site,
    running,
)

VERSIONS = 10


def version(number: int, size: int = 1_000_000) -> bytes:
    return f"<p>{number:04d} is the version of this line</p>\n".encode() * (size // 43)


@pytest.mark.slow
def test_50_readers_get_a_page_whole_while_it_is_replaced(folder: Path) -> None:
    """Each body is one of the versions, and each tag stands for one body."""
    page, new = folder / "www/index.html", folder / "new"
    page.write_bytes(version(0))
    number_by_digest = {hashlib.blake2b(version(number)).digest(): number for number in range(VERSIONS + 1)}
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
        for number in range(1, VERSIONS + 1):
            new.write_bytes(version(number))
            new.replace(page)
            time.sleep(0.1)
        done.set()
        for each in reading:
            each.result()
        log = one.log.read_text()
    assert all(len(versions) == 1 and None not in versions for versions in versions_by_tag.values())
    assert VERSIONS in set().union(*versions_by_tag.values())
    assert log == ""


@pytest.mark.slow
def test_stalled_clients_do_not_delay_others(folder: Path) -> None:
    (folder / "www/index.html").write_bytes(version(0, LARGE))
    (folder / "www/small.txt").write_text("small")
    (folder / "www/large.bin").touch()
    os.truncate(folder / "www/large.bin", static_files.MAX_BUFFERED_BYTES + 1)
    page, large = (b"GET %s HTTP/1.1\r\nHost: localhost\r\n" % path for path in (b"/", b"/large.bin"))
    with running(folder) as one, contextlib.ExitStack() as lines:
        for request in [page, (page + b"\r\n") * 100, (large + b"\r\n") * 100] * 20:
            line = lines.enter_context(socket.create_connection(("127.0.0.1", one.port), timeout=10))
            line.sendall(request)
        time.sleep(1)
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


@pytest.mark.slow
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
    assert ask_site(site) == b"half"
