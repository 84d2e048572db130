"""Booking at a board on another machine: as on the folder, and whatever answers there, the token goes nowhere else."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from site_builder.core import board_client
from tests.support.board_fixture import Lab, soon
from tests.support.booking_fixtures import ME, done, entries, lab_of, log, served
from tests.support.command_line import run_gpuboard
from tests.support.ports import free_port

SECRET = "of-alice"  # noqa: S105 # nobody's
BOARD = {"schema": 1, "built": 1, "book": "book", "hosts": [], "problems": []}
LISTED = {"who": "alice", "how": "token", "admin": False, "zone": "UTC", "for_others": True, "bookings": []}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    (tmp_path / "away").mkdir()
    return lab_of(tmp_path / "web")


def token_of(lab: Lab, name: str) -> str:
    return done(lab.data.parent, "token", name).stdout.strip()


# The real board


@pytest.mark.slow
def test_who_has_a_token_books_changes_lists_and_releases_as_its_owner(lab: Lab, tmp_path: Path) -> None:
    with served(lab) as url:
        me = {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token_of(lab, "alice")}
        away = tmp_path / "away"
        finished = done(away, "book", "atlas:0,1", "--for", "2d", "--comment", "ICML run", **me)
        booking = finished.stdout.strip()
        assert f"gpuboard: booked {booking}: atlas:0,1 for alice from now until " in finished.stderr
        assert entries(lab)["atlas"]["0"]["name"] == "alice"
        done(away, "change", booking, "--for", "3d", **me)
        (listed_booking,) = json.loads(done(away, "bookings", "--mine", "--json", **me).stdout)
        assert (listed_booking["id"], listed_booking["where"]) == (booking, "atlas:0,1")
        assert booking in done(away, "bookings", "atlas", **me).stdout
        done(away, "release", "atlas:0", **me)
        done(away, "bookings", "--undo", **me)
    assert [(line["who"], line["via"], line["what"]) for line in log(lab)] == [
        ("alice", "web, token", what) for what in ("book", "change", "release", "undo")
    ]


@pytest.mark.slow
def test_what_is_somebody_elses_is_refused_with_exit_1(lab: Lab, tmp_path: Path) -> None:
    lab.book({"atlas": {"0": {"name": "bob", "date": soon(7200), "id": "bobs"}}})
    with served(lab) as url:
        me = {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token_of(lab, "alice")}
        for words, refusal in (
            (("release", "bobs"), "booking bobs is bob's"),
            (("change", "bobs", "--for", "1h"), "booking bobs is bob's"),
            (("book", "atlas:0", "--for", "1h"), "atlas:0 is booked by bob"),
            (("bookings", "nowhere"), "no host nowhere"),
        ):
            finished = run_gpuboard(tmp_path / "away", *words, **me)
            assert (finished.returncode, finished.stderr.count("\n")) == (1, 1)
            assert refusal in finished.stderr


@pytest.mark.slow
def test_without_a_valid_token_the_message_says_what_to_set(lab: Lab, tmp_path: Path) -> None:
    with served(lab) as url:
        for token in ({}, {"GPUBOARD_TOKEN": "wrong"}):
            finished = run_gpuboard(tmp_path / "away", "book", "atlas:0", "--for", "1h", "--url", url, **token)
            assert (finished.returncode, finished.stdout, "GPUBOARD_TOKEN" in finished.stderr) == (2, "", True)
        assert run_gpuboard(tmp_path / "away", "bookings", "--mine", "--url", url).returncode == 2
        assert run_gpuboard(tmp_path / "away", "bookings", "--url", url).returncode == 0
    assert not (lab.data / "comments.json").exists()


@pytest.mark.slow
def test_an_open_board_gets_the_login_of_this_machine(lab: Lab, tmp_path: Path) -> None:
    with served(lab, GPUBOARD_BOOK_OPEN="yes") as url:
        me = {"GPUBOARD_URL": url}
        done(tmp_path / "away", "book", "atlas:0", "--from", "2040-07-02 9:00", "--for", "1h", **me)
        assert entries(lab)["atlas"]["0"]["name"] == ME
        assert len(json.loads(done(tmp_path / "away", "bookings", "--mine", "--json", **me).stdout)) == 1
        done(tmp_path / "away", "bookings", "--undo", **me)
        assert not any(entries(lab).values())


@pytest.mark.slow
def test_times_are_those_of_whoever_books_and_another_clock_is_reported(lab: Lab, tmp_path: Path) -> None:
    with served(lab, GPUBOARD_ZONE="Asia/Tokyo") as url:
        me = {"GPUBOARD_URL": url, "GPUBOARD_TOKEN": token_of(lab, "alice"), "GPUBOARD_ZONE": "Europe/Paris"}
        words = ("book", "atlas:0", "--from", "2040-07-02 9:00", "--for", "1h")
        finished = done(tmp_path / "away", *words, **me)
    assert entries(lab)["atlas"]["0"]["from"] == "2040-07-02 16:00+09:00"
    assert "the board's time zone is +0900" in finished.stderr


def test_a_named_folder_comes_before_the_address_of_the_settings(lab: Lab, tmp_path: Path) -> None:
    done(tmp_path, "book", "atlas", "--for", "1h", "--data", "web/data", GPUBOARD_URL="http://127.0.0.1:9/")
    assert entries(lab)["atlas"]["*"]["name"] == ME


@pytest.mark.slow
def test_a_board_that_takes_no_bookings_says_so(lab: Lab, tmp_path: Path) -> None:
    with served(lab, GPUBOARD_BOOK_URL="") as url:
        finished = run_gpuboard(tmp_path / "away", "book", "atlas", "--for", "1h", "--url", url)
    assert finished.returncode == 2
    assert "takes no bookings: its admin must set GPUBOARD_BOOK_URL there" in finished.stderr


# Whatever else may answer


class Odd:
    """A server that answers as it likes, and remembers what it was told."""

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        """Start it."""
        self.heard: list[tuple[str, str, str | None]] = []
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.append((self.command, self.path, self.headers["Authorization"]))
                answer(self)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.thread = Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()


@contextmanager
def odd(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[Odd]:
    """Such a server, for a while."""
    odd_server = Odd(answer)
    try:
        yield odd_server
    finally:
        odd_server.server.shutdown()
        odd_server.server.server_close()
        odd_server.thread.join()


def send(handler: BaseHTTPRequestHandler, code: int, content: object, **headers: str) -> None:
    """An answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(code)
    for key, value in headers.items():
        handler.send_header(key.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def board(answer: Callable[[BaseHTTPRequestHandler], None]) -> Callable[[BaseHTTPRequestHandler], None]:
    """A good status.json, and a desk that answers so."""
    return lambda handler: send(handler, 200, BOARD) if "status" in handler.path else answer(handler)


def book_at(folder: Path, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Try to book there with a token."""
    words = words or ("book", "atlas", "--for", "1h")
    return run_gpuboard(folder, *words, GPUBOARD_URL=url, GPUBOARD_TOKEN=SECRET)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (lambda handler: send(handler, 404, b"no"), 2, "there is nothing at"),
        (lambda handler: send(handler, 200, b"<html>"), 2, "did not answer like a gpuboard"),
        (lambda handler: send(handler, 200, []), 2, "did not answer like a gpuboard"),
        (lambda handler: send(handler, 200, {"hosts": []}), 2, "is not from a gpuboard"),
        (lambda handler: send(handler, 200, {**BOARD, "book": None}), 2, "takes no bookings"),
        (lambda handler: send(handler, 200, {**BOARD, "book": "//127.0.0.2/x"}), 2, "to another server"),
        (lambda handler: handler.wfile.write(b"nonsense\r\n\r\n"), 2, "did not answer like a gpuboard"),
        (lambda handler: send(handler, 302, b"", Location="http://127.0.0.2/"), 2, "redirects to http://127.0.0.2/"),
        (board(lambda handler: send(handler, 307, b"", Location="/other")), 2, "redirects to"),
        (board(lambda handler: send(handler, 200, {})), 2, "did not answer like a gpuboard"),
        (
            board(lambda handler: send(handler, 200, {"said": "x", "bookings": [{}]})),
            2,
            "did not answer like a gpuboard",
        ),
        (board(lambda handler: send(handler, 200, b"no gzip", Content_Encoding="gzip")), 2, "did not answer like"),
        (board(lambda handler: send(handler, 401, {"error": "who?"})), 2, "who?; GPUBOARD_TOKEN was sent"),
        (board(lambda handler: send(handler, 400, {"error": "what?"})), 2, "gpuboard: what?"),
        (board(lambda handler: send(handler, 403, {"error": "not yours"})), 1, "gpuboard: not yours"),
        (board(lambda handler: send(handler, 409, {"error": "taken \x1b[2J"})), 1, "gpuboard: taken ?[2J"),
        (board(lambda handler: send(handler, 429, b"")), 2, "too many requests"),
        (board(lambda handler: send(handler, 503, {"error": "broken"})), 2, "gpuboard: broken"),
        (board(lambda handler: send(handler, 500, b"")), 2, "answered 500"),
    ],
)
def test_each_odd_answer_is_one_sentence(
    tmp_path: Path, answer: Callable[[BaseHTTPRequestHandler], None], code: int, said: str
) -> None:
    with odd(answer) as there:
        finished = book_at(tmp_path, there.url)
    assert (finished.returncode, finished.stdout, finished.stderr.count("\n")) == (code, "", 1)
    assert said in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.slow
def test_a_token_is_sent_to_the_board_alone_and_never_elsewhere(tmp_path: Path) -> None:
    with odd(lambda handler: send(handler, 200, LISTED)) as thief:
        for code in (301, 302, 303, 307, 308):
            with odd(board(lambda handler: send(handler, code, b"", Location=thief.url))) as there:  # noqa: B023
                assert book_at(tmp_path, there.url).returncode == 2
                assert book_at(tmp_path, there.url, "bookings").returncode == 2
                assert {path: token for _, path, token in there.heard} == {
                    "/status.json": None,
                    "/book": f"Bearer {SECRET}",
                }
        assert thief.heard == []


def test_a_token_in_the_clear_is_reported_unless_it_stays_on_this_machine(tmp_path: Path) -> None:
    away = book_at(tmp_path, "http://board.invalid/")
    assert "your token is sent unencrypted" in away.stderr
    assert "board.invalid is not known on this network" in away.stderr
    here = book_at(tmp_path, f"http://127.0.0.1:{free_port()}/")
    assert "unencrypted" not in here.stderr
    assert "nothing answers at 127.0.0.1:" in here.stderr


@pytest.mark.slow
def test_a_silent_booking_service_is_given_up_with_advice_how_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_client, "REQUEST_TIMEOUT_S", 1)
    ended = Event()
    with odd(board(lambda _: assert_waited(ended))) as there:
        finished = book_at(tmp_path, there.url)
        ended.set()
    assert finished.returncode == 2
    assert "did not answer within 1 s" in finished.stderr
    assert "`gpuboard bookings` shows whether it was done" in finished.stderr


def assert_waited(event: Event) -> None:
    assert event.wait(60)


def test_an_answer_without_end_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_client, "MAX_RESPONSE_BYTES", 1 << 20)
    bomb = gzip.compress(b"0" * (2 << 20))
    with odd(lambda handler: send(handler, 200, bomb, Content_Encoding="gzip")) as there:
        finished = book_at(tmp_path, there.url)
    assert finished.returncode == 2
    assert "larger than 1 MiB" in finished.stderr


@pytest.mark.slow
def test_a_certificate_that_nobody_vouches_for_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    import ssl  # noqa: PLC0415 # only here

    key, cert = tmp_path / "key", tmp_path / "cert"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    with odd(lambda handler: send(handler, 200, BOARD)) as there:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        plain = there.url.replace("http:", "https:")
        assert "does not speak TLS" in book_at(tmp_path, plain).stderr
        there.server.socket = context.wrap_socket(there.server.socket, server_side=True)
        finished = book_at(tmp_path, plain)
        assert (finished.returncode, there.heard) == (2, [])
        assert "is not trusted" in finished.stderr
        trusted = run_gpuboard(tmp_path, "bookings", "--url", plain, SSL_CERT_FILE=str(cert))
        assert "did not answer like a gpuboard" in trusted.stderr
