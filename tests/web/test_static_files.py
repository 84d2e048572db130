"""The files of www/ to whoever may ask, and nothing else to anybody."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hypothesis_profiles import examples
from tests.support.missing import missing
from tests.support.serve_fixtures import (
    PAGE,
    SECRET,
    Running,
    running,
    serving,
)

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
    with serving(folder) as one:
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
@examples(400)
def test_no_path_whatsoever_yields_a_byte_of_a_secret(site: Running, path: bytes, absolute: bool) -> None:
    folder = bytes(site.log.parent) if absolute else b""
    answer = site.target(b"/" + folder + path)
    assert answer.startswith(b"HTTP/1.")
    assert SECRET not in answer


@pytest.mark.root
def test_a_device_is_not_opened_for_reading(folder: Path) -> None:
    try:
        os.mknod(folder / "www/zero.txt", 0o600 | 0o020000, os.makedev(1, 5))
    except PermissionError:  # in some containers
        missing("no device can be made here")
    with serving(folder) as one:
        assert one.get("/zero.txt").status == 404


@pytest.mark.slow
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
    assert log == [f"gpuboard: {folder}/www/closed.txt cannot be read: Permission denied; requests for it fail"]


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
