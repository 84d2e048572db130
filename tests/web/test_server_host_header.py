"""`gpuboard serve` answers under the names of the board alone: DNS rebinding leads a browser here under another."""

from __future__ import annotations

import io
import socket
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core import board_client
from site_builder.web import server
from site_builder.web.identity import parse_host_header
from site_builder.web.server import HostHeaderCheck
from tests.support.board_fixture import Lab
from tests.support.command_line import run_gpuboard
from tests.support.ports import free_port
from tests.support.serve_fixtures import PAGE, Running, running

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

HOSTNAME = socket.gethostname().lower()


def fill(folder: Path) -> None:
    """Make a small site with two GPU hosts, of which one has capital letters."""
    for name in ("states/atlas", "states/GPU-Two", "nodes", "hosts"):
        (folder / "www" / name).mkdir(parents=True)
    for name in ("index.html", "status.json", "term.txt", "hosts/atlas.html", "states/index.json", "nodes/index.json"):
        (folder / "www" / name).write_text(PAGE)
    (folder / "www/states/atlas/index.json").write_text("{}")


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A board with an address and two more names."""
    folder = tmp_path_factory.mktemp("board")
    fill(folder)
    url, names = "https://gpus.lab.org/board/", "Other.lab.org, short."
    with running(folder, GPUBOARD_URL=url, GPUBOARD_SERVER_NAMES=names) as served:
        yield served


def status(board: Running, host: str, path: str = "/", protocol: str = "HTTP/1.1", **headers: str) -> int:
    """Return the status of a request with this very Host header."""
    lines = [f"GET {path} {protocol}", f"Host: {host}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return int(board.raw("\r\n".join([*lines, "", ""]).encode("latin-1")).split()[1])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8080",
        "192.0.2.7:80",
        "[::1]",
        "[::1]:8080",
        "[2001:DB8::7]:443",
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "board.localhost",
        HOSTNAME,
        f"{HOSTNAME.upper()}:8080",
        f"{HOSTNAME.partition('.')[0]}.local",
        "gpus.lab.org",
        "GPUs.Lab.Org:443",
        "gpus.lab.org.",
        "gpus.lab.org.:443",
        "gpus.lab.org:",
        "other.lab.org",
        "short",
    ],
)
def test_it_answers_under_its_own_names_whatever_their_port(board: Running, host: str) -> None:
    assert status(board, host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "gpus.lab.org.evil.example",
        "xgpus.lab.org",
        "lab.org",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1.nip.io",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "xn--bcher-kva.example",
        "_",
        f"{HOSTNAME}x",
        f"{HOSTNAME.partition('.')[0]}.evil.example",
        "atlas",
    ],
)
@pytest.mark.parametrize("path", ["/", "/status.json", "/nowhere", "/hosts/atlas.html", "/?color=true"])
def test_under_any_other_name_it_is_421(board: Running, host: str, path: str) -> None:
    assert status(board, host, path) == 421


def test_the_421_names_the_setting_and_shows_nothing_of_the_board(board: Running) -> None:
    answer = board.raw(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 421 Misdirected Request\r\n")
    assert b"GPUBOARD_SERVER_NAMES" in body
    assert b"atlas" not in body and b"evil" not in body
    assert b"\r\nX-Frame-Options: SAMEORIGIN" in head


@pytest.mark.parametrize(
    "host",
    [
        "evil.example, localhost",
        "localhost, evil.example",
        "localhost/evil.example",
        "user@localhost",
        "localhost:80:80",
        "localhost:port",
        "::1",
        "[::1",
        "[localhost]",
        "[::1].evil.example",
        "local host",
        "b\xfccher.example",
        "a..b",
        ".localhost",
        ".",
        ":80",
        "a" * 300,
        "%6cocalhost",
    ],
)
def test_a_host_that_is_not_well_formed_is_400(board: Running, host: str) -> None:
    assert status(board, host) == 400


def test_two_hosts_are_400(board: Running) -> None:
    for first, second in (("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost", "localhost")):
        lines = f"GET / HTTP/1.1\r\nHost: {first}\r\nHost: {second}\r\nConnection: close\r\n\r\n"
        assert board.raw(lines.encode()).split()[1] == b"400"


@pytest.mark.parametrize("header", ["", "Host:\r\n", "Host: \r\n"])
def test_without_a_host_http_1_1_is_400_and_1_0_which_no_browser_sends_is_answered(board: Running, header: str) -> None:
    for protocol, expected in (("HTTP/1.1", b"400"), ("HTTP/1.0", b"200")):
        assert board.raw(f"GET / {protocol}\r\n{header}Connection: close\r\n\r\n".encode()).split()[1] == expected


def test_http_1_0_with_another_name_is_421(board: Running) -> None:
    assert status(board, "evil.example", protocol="HTTP/1.0") == 421


@pytest.mark.parametrize("name", ["X_Forwarded_Host", "Forwarded", "X_Host", "X_Original_Host", "X_Real_Host"])
def test_no_other_header_stands_for_the_host(board: Running, name: str) -> None:
    assert status(board, "evil.example", **{name: "localhost"}) == 421
    assert status(board, "localhost", **{name: "evil.example"}) == 200


def test_a_name_in_the_request_line_must_be_ours_too(board: Running) -> None:
    assert status(board, "localhost", "http://gpus.lab.org/") == 200
    assert status(board, "localhost", "http://evil.example/") == 421
    assert status(board, "evil.example", "http://localhost/") == 421
    assert status(board, "localhost", "http://user@localhost/") == 400


@pytest.mark.parametrize(
    "path",
    ["/get-status", "/states/", "/states/atlas/", "/nodes/", "/nodes/index.json", "/?term=true", "/?a=b&TERM=true"],
)
@pytest.mark.parametrize("host", ["atlas", "ATLAS:80", "gpu-two", "atlas."])
def test_routes_of_older_clients_also_know_the_names_of_gpu_hosts(board: Running, path: str, host: str) -> None:
    assert status(board, host, path) == 200
    assert status(board, "evil.example", path) == 421
    assert status(board, "atlas.evil.example", path) == 421


@pytest.mark.parametrize("path", ["/states/../index.html", "//states/", "/get-status/../status.json", "/?term=false"])
def test_no_trick_with_a_path_makes_a_page_one_of_these_routes(board: Running, path: str) -> None:
    assert status(board, "atlas", path) in {404, 421}


@pytest.mark.slow
def test_a_booking_request_under_another_name_is_421(tmp_path: Path) -> None:
    fill(tmp_path)
    with running(tmp_path, GPUBOARD_BOOK_URL="book", GPUBOARD_BOOK_OPEN="yes") as desk:
        head = "POST /book HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\nX-Gpuboard: 1\r\n"
        answer = desk.raw(f"{head}Connection: close\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        assert answer.split()[1] == b"421"


@pytest.mark.slow
def test_the_password_is_not_asked_for_under_another_name(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "users").write_text("alice:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n")
    with running(tmp_path, GPUBOARD_HTPASSWD=str(tmp_path / "users")) as board:
        assert (status(board, "evil.example"), status(board, "localhost")) == (421, 401)


@pytest.mark.parametrize(
    "text", ["http://gpus.lab.org", "gpus.lab.org:80", "a/b", "*", "a..b", "b\xfccher.de", "x" * 64]
)
def test_a_setting_that_is_no_name_is_one_sentence(tmp_path: Path, text: str) -> None:
    result = run_gpuboard(tmp_path, "config", GPUBOARD_SERVER_NAMES=text)
    assert result.returncode == 2
    assert "names without ports, separated by commas, such as gpus.lab.org" in result.stderr


def test_more_than_50_names_are_refused(tmp_path: Path) -> None:
    names = [f"gpu{number}.lab.org" for number in range(51)]
    assert run_gpuboard(tmp_path, "config", GPUBOARD_SERVER_NAMES=" ".join(names[1:])).returncode == 0
    assert run_gpuboard(tmp_path, "config", GPUBOARD_SERVER_NAMES=" ".join(names)).returncode == 2


def test_a_command_that_uses_another_name_says_what_to_set() -> None:
    url = "http://gpus:8080/status.json"
    response = urllib.error.HTTPError(url, 421, "Misdirected Request", Message(), io.BytesIO())
    error = board_client.build_board_response_error(response, url, has_login=False)
    assert str(error) == "the board does not answer as gpus:8080: its admin can add that name to GPUBOARD_SERVER_NAMES"


# The name that DNS gives to this machine


def answer(_: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    """Answer anything."""
    start_response("200 OK", [])
    return [b""]


def ask(check: HostHeaderCheck, host: str) -> str:
    """Return the status of a request within this process."""
    status_lines: list[str] = []
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "GET",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REQUEST_URI": "/",
        "HTTP_HOST": host,
    }
    check(environ, lambda line, *_: status_lines.append(line) or (lambda _: None))  # type: ignore[func-returns-value]
    return status_lines[0][:3]


def test_the_full_name_of_the_machine_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(socket, "gethostname", lambda: "Web")
    monkeypatch.setattr(socket, "getfqdn", lambda name: asked.append(name) or "web.lab.org")  # type: ignore[func-returns-value]
    check = HostHeaderCheck(answer, Lab(tmp_path).settings(), tmp_path)
    hosts = ("web", "web.local", "web.lab.org", "WEB.LAB.ORG:80", "web.evil.example", "evil.example")
    assert [ask(check, host) for host in hosts] == ["200"] * 4 + ["421"] * 2
    assert asked == ["web"]


@pytest.mark.slow
def test_hanging_dns_delays_only_requests_under_names_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "web")
    monkeypatch.setattr(socket, "getfqdn", lambda _: time.sleep(60) or "")  # type: ignore[func-returns-value]
    monkeypatch.setattr(server, "DNS_TIMEOUT_S", 0.3)
    check = HostHeaderCheck(answer, Lab(tmp_path).settings(), tmp_path)
    began = time.monotonic()
    assert [ask(check, host) for host in ("web", "127.0.0.1", "evil.example")] == ["200", "200", "421"]
    assert time.monotonic() - began < 0.3
    assert ask(check, "web.lab.org") == "421"
    assert time.monotonic() - began < 5


def test_a_machine_without_a_name_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    monkeypatch.setattr(socket, "getfqdn", lambda _: "")
    check = HostHeaderCheck(answer, Lab(tmp_path).settings(), tmp_path)
    check.lookup_thread.join()
    assert [ask(check, host) for host in (".local", "x.local")] == ["400", "421"]


def test_a_name_to_listen_on_is_one_of_the_board(tmp_path: Path) -> None:
    settings = replace(Lab(tmp_path).settings(), listen=("Board.lab.org", free_port()))
    check = HostHeaderCheck(answer, settings, tmp_path)
    assert ask(check, "board.lab.org") == "200"


@given(host=st.text(max_size=40))
def test_no_host_whatsoever_breaks_the_parser(host: str) -> None:
    name = parse_host_header(host)
    assert name is None or (name and name == name.lower())
