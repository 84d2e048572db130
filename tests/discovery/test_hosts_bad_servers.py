"""Which hosts there are, where what answers is no good Consul."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from site_builder.consul import client
from site_builder.consul.client import ConsulRequest
from tests.support.consul_server import ConsulServer
from tests.support.discovery_fixtures import Answer, Lab, entry, fill, read, says
from tests.support.missing import missing

SERVES = "; the list of 20"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def server(consul: ConsulServer) -> ConsulServer:
    """A Consul without ACLs that knows some hosts, by http and by https."""
    fill(consul)
    return consul


# Servers that are no good Consul.


@pytest.fixture
def stand_in() -> Iterator[Callable[[Answer], str]]:
    """Makes small HTTP servers that answer as they are told."""
    servers: list[ThreadingHTTPServer] = []

    def make(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(OSError):
                    answer(self)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"127.0.0.1:{server.server_address[1]}"

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte at a time, for ever: no single wait is ever long."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\nX-Slow: ")
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.2)


def drip_body(handler: BaseHTTPRequestHandler) -> None:
    says("", Content_Length="1000000")(handler)
    while True:
        handler.wfile.write(b"[")
        time.sleep(0.2)


def never(_: BaseHTTPRequestHandler) -> None:
    time.sleep(8)


def endless(handler: BaseHTTPRequestHandler) -> None:
    says("", Content_Length=str(1 << 40))(handler)
    while True:
        handler.wfile.write(b"[" * 100_000)


def keep_a_list(lab: Lab) -> None:
    content = {"service": "gpu", "datacenter": None, "nodes": [entry("atlas")]}
    (lab.state / "consul.json").write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.parametrize("slow", [never, drip, drip_body])
def test_a_consul_that_does_not_answer_in_time_is_not_waited_for(
    lab: Lab, stand_in: Callable[[Answer], str], slow: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.6)
    keep_a_list(lab)
    discovery = lab.discovery(stand_in(slow))
    discovery.start_consul_request()
    hosts, (problem,) = read(discovery)
    assert list(hosts) == ["atlas"]
    assert "does not answer within 3 s" + SERVES in problem
    assert discovery.consul_list
    assert discovery.consul_list.request is None or not threads_after(discovery.consul_list.request, 30)


def threads_after(question: ConsulRequest, seconds: float) -> bool:
    """Whether the thread still lives then."""
    question.thread.join(seconds)
    return question.thread.is_alive()


@pytest.mark.slow
def test_while_a_question_hangs_no_second_one_is_asked(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    asked: list[object] = []

    def hang(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        go_on.wait(20)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.3)
    keep_a_list(lab)
    discovery = lab.discovery("consul.example:8500")
    assert "does not answer within 3 s" + SERVES in read(discovery)[1][0]
    for _ in range(2):
        discovery.start_consul_request()
        hosts, (problem,) = read(discovery)
        assert list(hosts) == ["atlas"]
        assert "does not answer: an earlier request is still waiting" + SERVES in problem
    assert len(asked) == 1
    go_on.set()
    assert discovery.consul_list
    assert discovery.consul_list.request
    assert not threads_after(discovery.consul_list.request, 5)
    assert "cannot be found (Name or service not known); correct CONSUL_HTTP_ADDR" in read(discovery)[1][0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says("<html>Welcome to nginx</html>"), "answers with a page in HTML; correct CONSUL_HTTP_ADDR"),
        (says("hello"), "answers with something other than a Consul list"),
        (says('{"Node": 1}'), "answers with something other than a Consul list"),
        (says("null"), "answers with something other than a Consul list"),
        (says("[1, 2"), "does not answer with JSON"),
        (says("[" * 200_000), "does not answer with JSON"),
        (says(b"[\xff\xfe]"), "does not answer with JSON"),
        (says("[1, 2]"), "answers, but none of its entries is a service"),
        (says(b"\x1f\x8b\x08\x00", Content_Encoding="gzip"), "answers with something other than a Consul list"),
        (says("[]", Content_Length="100"), "closes the connection in the middle of its answer"),
        (endless, "sends more than 16 MB"),
        (says("", 302, Location="http://127.0.0.1:1/"), "answers with a redirect (302), which is not followed"),
        (says("No cluster leader", 500), "has no leader at the moment, or cannot reach it"),
        (says("<html>Bad gateway</html>", 502), "answers with an error (502)"),
        (says("", 404), "answers with an error (404)"),
        (says("no secret-token here\x1b", 403), "refuses the request (no (token) here?); the token needs"),
        (lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH\r\n"), "does not speak HTTP; correct CONSUL_HTTP_ADDR"),
        (lambda _: None, "closes the connection without an answer"),
    ],
)
def test_nonsense_is_reported_in_one_sentence_and_the_last_good_list_serves(
    lab: Lab, stand_in: Callable[[Answer], str], answer: Answer, words: str
) -> None:
    keep_a_list(lab)
    address = stand_in(answer)
    hosts, (problem,) = lab.read(address=address, token="secret-token")  # noqa: S106 of nobody
    assert list(hosts) == ["atlas"]
    assert problem.startswith(f"Consul at {address}: {words}")
    assert SERVES in problem
    assert "secret-token" not in problem


def test_a_malformed_entry_costs_that_entry(lab: Lab, stand_in: Callable[[Answer], str]) -> None:
    entries = [entry("atlas"), 7, entry(None), entry("x", Service=[]), entry("y", Checks="all"), entry("hydra")]
    hosts, problems = lab.read(address=stand_in(says(json.dumps(entries))))
    assert list(hosts) == ["atlas", "hydra"]
    assert [problem.partition(": ")[2] for problem in problems] == [
        "entry 2 of its answer is ignored: it is not an object",
        "entry 3 of its answer is ignored: its node has no name",
        "entry 4 of its answer is ignored: Service is not an object",
        "entry 5 of its answer is ignored: Checks is not a list",
    ]


@pytest.mark.slow
def test_an_answer_that_came_before_it_was_wanted_is_used(lab: Lab, stand_in: Callable[[Answer], str]) -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        says(json.dumps([entry("atlas")]))(handler)

    discovery = lab.discovery(stand_in(answer), datacenter="dc 1")
    for number in (1, 2, 3):
        discovery.start_consul_request()
        time.sleep(0.2)
        assert (list(read(discovery)[0]), len(asked)) == (["atlas"], number)
    assert set(asked) == {"/v1/health/service/gpu?dc=dc+1"}


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("unix:///run/consul.sock", "its address is not host:port"),
        ("ftp://consul:8500", "its address is not host:port, http://host:port or https://host:port"),
        ("consul:99999", "its address is not host:port"),
        ("http://me:secret@consul:8500", "its address is not host:port"),
        ("two words", "its address is not host:port"),
    ],
)
def test_invalid_address_is_reported(lab: Lab, address: str, words: str) -> None:
    _, (problem,) = lab.read(address=address)
    assert words in problem
    assert "secret" not in problem


def test_an_address_of_ipv6_is_asked(lab: Lab) -> None:
    class Six(ThreadingHTTPServer):
        address_family = socket.AF_INET6

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            says(json.dumps([entry("atlas")]))(self)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = Six(("::1", 0), Handler)
    except OSError:
        missing("this machine has no IPv6")
    with server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert list(lab.read(address=f"[::1]:{server.server_address[1]}")[0]) == ["atlas"]
