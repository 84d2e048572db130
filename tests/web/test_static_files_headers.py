"""What stands beside a file: security, what a reader has already, and compression."""

from __future__ import annotations

import errno
import gzip
import html
import http.client
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from site_builder.web import static_files
from site_builder.web.static_files import StaticSite
from tests.support.browser import ROOT
from tests.support.serve_fixtures import (
    LARGE,
    PAGE,
    SECURITY,
    Running,
    ask_site,
    serving,
)

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
    with serving(folder) as one:
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
    with serving(folder) as one:
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


def test_a_large_page_is_compressed_once_for_50_readers_and_head(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "www/index.html").write_bytes(os.urandom(1000) * (LARGE // 1000))
    times = []
    really = gzip.compress

    def counted(*arguments: Any, **named: Any) -> bytes:  # noqa: ANN401 # as it is called
        times.append(time.monotonic())
        return really(*arguments, **named)

    monkeypatch.setattr(gzip, "compress", counted)
    site = StaticSite(folder / "www")
    ask_site(site, "HEAD")
    with ThreadPoolExecutor(50) as readers:
        bodies = set(readers.map(lambda _: ask_site(site), range(50)))
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
