"""The booking service on the web: what another page could send, limits, and many at once."""

from __future__ import annotations

import io
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.bookings.tokens import TokenStore
from site_builder.web import booking_app
from site_builder.web.booking_app import (
    MAX_ACTIVE,
    MAX_WAITING,
    BookingApplication,
    BookingConcurrencyLimit,
    BookingHttpError,
)
from site_builder.web.rate_limit import MAX_ADDRESSES, RateLimiter, build_rate_limit_address_key
from tests.support.booking_app_fixtures import BOOK, LOGIN, NOW, Got, Web


@pytest.fixture
def web(tmp_path: Path) -> Web:
    return Web(tmp_path)


# What another page could send


@pytest.mark.parametrize(
    ("environ", "status", "said"),
    [
        ({"HTTP_X_GPUBOARD": None}, 403, "the header X-Gpuboard is missing"),
        ({"CONTENT_TYPE": None}, 415, "the request must be JSON"),
        ({"CONTENT_TYPE": "text/plain"}, 415, "the request must be JSON"),
        ({"CONTENT_TYPE": "application/x-www-form-urlencoded"}, 415, "the request must be JSON"),
        ({"HTTP_SEC_FETCH_SITE": "cross-site"}, 403, "this request comes from another page"),
        ({"HTTP_SEC_FETCH_SITE": "same-site"}, 403, "this request comes from another page"),
        ({"HTTP_SEC_FETCH_SITE": "none"}, 403, "this request comes from another page"),
        ({"HTTP_ORIGIN": "https://evil.example"}, 403, "this request comes from another page"),
        ({"HTTP_ORIGIN": "null"}, 403, "this request comes from another page"),
        ({"HTTP_ORIGIN": ""}, 403, "this request comes from another page"),
        ({"HTTP_ORIGIN": "http://web"}, 403, "this request comes from another page"),
        ({"HTTP_ORIGIN": "http://web:8081"}, 403, "this request comes from another page"),
        ({"HTTP_ORIGIN": "file://web:8080"}, 403, "this request comes from another page"),
        ({"HTTP_ORIGIN": "http://web:8081", "HTTP_HOST": "web", "SERVER_PORT": "8080"}, 403, "from another page"),
        ({"HTTP_ORIGIN": "http://web:", "HTTP_HOST": "web", "SERVER_PORT": ""}, 403, "from another page"),
        ({"HTTP_ORIGIN": "http://:80", "HTTP_HOST": ""}, 403, "from another page"),
        ({"HTTP_ORIGIN": "http://web:8080", "HTTP_HOST": None}, 403, "this request comes from another page"),
        ({"CONTENT_LENGTH": None}, 411, "has no length"),
        ({"CONTENT_LENGTH": ""}, 411, "has no length"),
        ({"CONTENT_LENGTH": "-1"}, 400, "the Content-Length is not a number"),
        ({"CONTENT_LENGTH": "²"}, 400, "the Content-Length is not a number"),
        ({"CONTENT_LENGTH": "16385"}, 413, "the request is longer than 16384 bytes"),
        ({"CONTENT_LENGTH": "9" * 5000}, 413, "the request is longer than 16384 bytes"),
        ({"CONTENT_LENGTH": "16384"}, 400, "the request was cut off"),
    ],
)
def test_what_is_not_the_boards_own_request_is_refused_and_nothing_is_booked(
    web: Web, environ: dict[str, str | None], status: int, said: str
) -> None:
    got = web.post(**{**LOGIN, **environ})
    assert (got.status, web.names()) == (status, [])
    assert said in got.error


@pytest.mark.parametrize(
    "environ",
    [
        {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_ORIGIN": "https://behind.a.proxy"},
        {"HTTP_ORIGIN": "http://WEB:8080"},
        {"HTTP_ORIGIN": "https://web", "HTTP_HOST": "web:443"},
        {"HTTP_ORIGIN": "http://web:8080", "HTTP_HOST": "web", "SERVER_PORT": "8080"},
        {"HTTP_ORIGIN": "http://[::1]", "HTTP_HOST": "[::1]:80"},
        {"CONTENT_TYPE": "Application/JSON; charset=utf-8"},
        {"HTTP_HOST": None},
    ],
)
def test_the_boards_own_page_and_programs_are_let_through(web: Web, environ: dict[str, str | None]) -> None:
    assert web.post(**{**LOGIN, **environ}).status == 200


def test_a_body_that_is_too_long_is_not_even_read() -> None:
    class Unread(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise AssertionError

    environ = {"CONTENT_LENGTH": "16385", "wsgi.input": Unread()}
    with pytest.raises(BookingHttpError, match="longer than 16384 bytes"):
        booking_app.read_booking_request_body(environ)


@pytest.mark.parametrize("forged_host", ["evil.example", "evil.example, web:8080", "web:8080, evil.example"])
@pytest.mark.parametrize("address", ["192.0.2.1", "192.0.2.7"])
def test_the_host_comes_from_the_host_header_and_from_no_other(web: Web, forged_host: str, address: str) -> None:
    forwarded = {"HTTP_X_FORWARDED_HOST": forged_host, "HTTP_FORWARDED": f"host={forged_host}", "REMOTE_ADDR": address}
    web.set(proxy="192.0.2.1")
    assert web.post(**LOGIN, **forwarded, HTTP_ORIGIN="http://evil.example").status == 403
    assert web.post({**BOOK, "check": True}, **LOGIN, **forwarded, HTTP_ORIGIN="http://web:8080").status == 200
    for rules in ({"is_open": True}, {"is_open": True, "url": "http://web/"}):
        web.set(proxy="192.0.2.1", **rules)
        assert web.post({**BOOK, "name": "eve"}, **forwarded, HTTP_HOST="evil.example").status == 403
    assert web.names() == []


def test_where_the_board_has_an_address_it_books_under_that_name_alone(web: Web) -> None:
    web.set(url="https://gpus.lab.org/board/")
    assert web.post(**LOGIN).error == "the board is at https://gpus.lab.org/board/: book there"
    assert web.post(HTTP_HOST="rebound.example", **LOGIN).status == 403
    assert web.post(HTTP_HOST="GPUS.lab.org:8443", **LOGIN).status == 200
    assert web.get().status == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the request is not JSON"),
        (b"book atlas", "the request is not JSON"),
        (b"\xff\xfe", "the request is not JSON"),
        (b'{"do": NaN}', "the request is not JSON"),
        (b"[" * 16000, "the request is not JSON"),
        (b"[" * 8000 + b"]" * 8000, "the request is not JSON"),
        (b'{"do":' * 2000 + b"1" + b"}" * 2000, "the request is not JSON"),
        (b"[]", "the request must be a JSON object"),
        (b'"book"', "the request must be a JSON object"),
        (b"null", "the request must be a JSON object"),
        (b"{}", "`do` must be book, change, release, undo"),
        (b'{"do": ["book"]}', "`do` must be book, change, release, undo"),
        (b'{"do": "book", "gpus": ["atlas:0"]}', "no end"),
        (b'{"do": "book", "gpus": [{}], "for": "1h"}', "`gpus` must be a list of texts"),
        (b'{"do": "book", "gpus": "atlas:0", "for": "1h", "\\u001b": 1}', "book does not take `?`"),
    ],
)
def test_what_cannot_be_understood_is_one_sentence(web: Web, body: bytes, said: str) -> None:
    got = web.post(body, **LOGIN)
    assert (got.status, web.told) == (400, [])
    assert said in got.error


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["do", "gpus", "any", "id", "for", "from", "until", "name", "as"]), inner)
        ),
        max_leaves=12,
    ),
    st.sampled_from(["book", "change", "release", "undo"]),
)
def test_no_request_makes_the_booking_service_fail(
    tmp_path_factory: pytest.TempPathFactory, content: object, kind: str
) -> None:
    web = Web(tmp_path_factory.mktemp("any"))
    request = {**content, "do": kind} if isinstance(content, dict) else content
    got = web.post(orjson.dumps(request), **LOGIN)
    assert got.status in (200, 400, 403, 409)
    assert web.told == []


# Limits


def test_thirty_bookings_or_sixty_questions_a_minute_and_then_one_waits(web: Web) -> None:
    answers = [web.post(b"{}", **LOGIN).status for _ in range(31)]
    assert answers == [400] * 30 + [429]
    got = web.post(b"{}", **LOGIN)
    assert (got.headers["Retry-After"], got.error) == ("2", "too many requests from your address: try again in 2 s")
    assert web.post(b"{}", REMOTE_ADDR="192.0.2.8").status == 401
    assert web.get().status == 200
    web.time += 60
    question = {**BOOK, "check": True}
    assert [web.post(question, **LOGIN).status for _ in range(61)] == [200] * 60 + [429]


def test_240_looks_a_minute_and_then_one_waits_but_can_still_book(web: Web) -> None:
    assert {web.get().status for _ in range(240)} == {200}
    got = web.get()
    assert (got.status, got.headers["Retry-After"]) == (429, "1")
    assert web.get(REMOTE_ADDR="192.0.2.8").status == 200
    assert web.post(**LOGIN).status == 200
    web.time += 1
    assert [web.get().status for _ in range(5)] == [200] * 4 + [429]


def test_who_has_booked_too_often_may_still_look(web: Web) -> None:
    assert [web.post(b"{}", **LOGIN).status for _ in range(31)][-1] == 429
    assert web.get().status == 200


def test_what_is_refused_for_want_of_time_does_not_make_one_wait_longer(web: Web) -> None:
    for _ in range(50):
        web.post(b"no json", **LOGIN)
    web.time += 2
    assert web.post(**LOGIN).status == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_ten_wrong_tokens_a_minute_and_then_not_even_a_right_one_is_tried(web: Web, method: str) -> None:
    right = TokenStore(web.lab.state).create_token("alice", NOW)
    ask: Callable[..., Got] = web.get if method == "GET" else web.post
    wrong = [ask(HTTP_AUTHORIZATION="Bearer wrong").status for _ in range(11)]
    assert wrong == [401] * 10 + [429]
    assert ask(HTTP_AUTHORIZATION=f"Bearer {right}").status == 429
    web.time += 6
    assert ask(HTTP_AUTHORIZATION=f"Bearer {right}").status == 200


def test_the_count_holds_over_processes_and_threads(web: Web) -> None:
    second_app = BookingApplication(web.app.settings, web.told.append, lambda: web.time)
    for number in range(30):
        web.app, second_app = second_app, web.app
        assert web.post(b"{}", **LOGIN).status == 400, number
    assert web.post(b"{}", **LOGIN).status == 429
    count = RateLimiter(web.lab.state, lambda: NOW)
    allowed: list[int] = []
    threads = [threading.Thread(target=lambda: allowed.append(count.count_request("192.0.2.9", 6))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allowed.count(0) == 10


def test_behind_the_proxy_each_address_counts_by_itself_as_the_proxy_saw_it(web: Web) -> None:
    web.set(proxy="192.0.2.1")
    there = {"REMOTE_ADDR": "192.0.2.1", "HTTP_X_REMOTE_USER": "alice"}
    for number in range(30):
        web.post(b"{}", HTTP_X_FORWARDED_FOR=f"10.0.0.{number}, 198.51.100.1", **there)
    assert web.post(b"{}", HTTP_X_FORWARDED_FOR="10.9.9.9, 198.51.100.1", **there).status == 429
    assert web.post(b"{}", HTTP_X_FORWARDED_FOR="198.51.100.2", **there).status == 400
    for number in range(31):
        got = web.post(b"{}", HTTP_X_FORWARDED_FOR=f"198.51.100.{number}", REMOTE_ADDR="203.0.113.5")
    assert got.status == 429


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("localhost", "unknown"),
    ],
)
def test_an_ipv6_address_counts_with_its_neighbours(address: str, counted: str) -> None:
    assert build_rate_limit_address_key(address) == counted


def test_no_more_addresses_are_remembered_than_a_file_can_hold_and_none_for_long(tmp_path: Path) -> None:
    now = NOW
    count = RateLimiter(tmp_path, lambda: now)
    path = tmp_path / "attempts.json"
    path.write_bytes(orjson.dumps({f"10.0.{n // 256}.{n % 256}": [10, NOW] for n in range(MAX_ADDRESSES + 500)}))
    count.count_request("192.0.2.7", 60)
    assert len(count.read_levels()) == MAX_ADDRESSES
    assert "192.0.2.7" in count.read_levels()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    now += 61
    count.count_request("192.0.2.8", 2)
    assert list(count.read_levels()) == ["192.0.2.8"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"a": 1}', b'{"192.0.2.7": [1]}', b'{"192.0.2.7": ["x", "y"]}']
)
def test_a_damaged_count_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "attempts.json").write_bytes(content)
    assert RateLimiter(tmp_path, lambda: NOW).count_request("192.0.2.7", 60) == 0


def test_a_clock_that_was_set_back_locks_nobody_out_for_longer_than_a_minute(tmp_path: Path) -> None:
    now = NOW
    count = RateLimiter(tmp_path, lambda: now)
    count.count_request("192.0.2.7", 60)
    now -= 86400
    assert 0 < count.count_request("192.0.2.7", 2) <= 60
    now += 61
    assert count.count_request("192.0.2.7", 2) == 0


def test_a_clock_that_was_set_back_keeps_nobody_waiting_who_only_asks_how_long(tmp_path: Path) -> None:
    now = NOW
    count = RateLimiter(tmp_path, lambda: now)
    for address in ("192.0.2.7", "192.0.2.8"):
        count.count_request(address, 60)
    now -= 86400
    assert 0 < count.find_wait_s("192.0.2.7", 2) <= 60
    now += 61
    assert [count.find_wait_s(address, 2) for address in ("192.0.2.7", "192.0.2.8")] == [0, 0]


# Many at once


class Slow:
    """An application that answers when a test lets it, and counts who is in it."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.lock = threading.Lock()
        self.inside = self.most = 0

    def __call__(self, _: object, start: Callable[..., object]) -> list[bytes]:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.go.wait(30)
        with self.lock:
            self.inside -= 1
        start("200 OK", [])
        return [b"{}"]


def at_once(app: Callable[..., Any], number: int) -> tuple[list[threading.Thread], list[tuple[str, dict[str, str]]]]:
    """So many requests at the same time, and what they get, in the order of the answers."""
    heard: list[tuple[str, dict[str, str]]] = []

    def ask() -> None:
        app({"REQUEST_METHOD": "POST"}, lambda status, headers: heard.append((status, dict(headers))))

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads, heard


def test_few_requests_are_handled_at_once_some_wait_and_the_rest_is_refused() -> None:
    slow = Slow()
    threads, heard = at_once(BookingConcurrencyLimit(slow, timeout_s=30), 64)
    wait_until(lambda: len(heard) == 64 - MAX_ACTIVE - MAX_WAITING and slow.inside == MAX_ACTIVE)
    assert {status for status, _ in heard} == {"503 Service Unavailable"}
    assert {headers["Retry-After"] for _, headers in heard} == {"10"}
    slow.go.set()
    for thread in threads:
        thread.join()
    assert [status for status, _ in heard].count("200 OK") == MAX_ACTIVE + MAX_WAITING
    assert slow.most == MAX_ACTIVE == 4


def test_a_request_does_not_wait_for_long_and_afterwards_there_is_room_again() -> None:
    slow = Slow()
    limited = BookingConcurrencyLimit(slow, timeout_s=0.05)
    threads, heard = at_once(limited, MAX_ACTIVE + 3)
    wait_until(lambda: len(heard) == 3)
    slow.go.set()
    for thread in threads:
        thread.join()
    threads, again = at_once(limited, MAX_ACTIVE)
    for thread in threads:
        thread.join()
    assert [status for status, _ in again] == ["200 OK"] * MAX_ACTIVE


def test_a_request_that_fails_frees_its_place() -> None:
    def fail(*_: object) -> list[bytes]:
        raise ZeroDivisionError

    limited = BookingConcurrencyLimit(fail, timeout_s=0.05)
    for _ in range(3 * (MAX_ACTIVE + MAX_WAITING)):
        with pytest.raises(ZeroDivisionError):
            limited({"REQUEST_METHOD": "POST"}, lambda *_: lambda _: None)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
