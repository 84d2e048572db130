"""`gpuboard serve --htpasswd`: a name and a password before everything, which nobody guesses and few wait for."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import Mock

import pytest
from playwright.sync_api import Browser

from site_builder.config.settings import load_settings
from site_builder.core import files
from site_builder.core.model import BookingPolicy
from site_builder.web import basic_auth
from site_builder.web.basic_auth import MAX_CACHED_LOGINS, BasicAuth, PasswordFile, PasswordFileError, PasswordVerifier
from site_builder.web.identity import read_server_login
from site_builder.web.server import CLEARTEXT_WARNING, WAITRESS_SETTINGS, list_server_start_messages
from site_builder.web.static_files import SECURITY_HEADERS
from tests.support import booking_servers
from tests.support.board_fixture import Lab
from tests.support.booking_servers import Served, basic
from tests.support.command_line import run_gpuboard

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

PASSWORD = "correct horse: battery ✓"  # noqa: S105
BOOK = {"do": "book", "gpus": ["atlas:0"], "for": "2h"}


def line_of(name: str, kind: str, password: str = PASSWORD) -> str:
    """A line as the programs of the docs write it."""
    if kind in ("-6", "-5"):
        command = ["openssl", "passwd", kind, password]
    else:
        booking_servers.program("htpasswd")
        command = ["htpasswd", "-nb", *kind.split(), name, password]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return made if made.startswith(f"{name}:") else f"{name}:{made}"


KINDS = {"alice": "-B", "bob": "-6", "carol": "-5", "dave": "-m", "zoë": "-s"}


@pytest.fixture(scope="module")
def lines() -> dict[str, str]:
    return {name: line_of(name, kind) for name, kind in KINDS.items()}


# Over real sockets


@pytest.fixture(scope="module")
def served(lines: dict[str, str]) -> Iterator[Served]:
    """The real command before a built board."""
    with booking_servers.place() as place:
        place.lab.build(booking_policy=BookingPolicy(url="book"))
        file = place.folder / "users"
        file.write_text("# of the lab\n\n" + "\n".join(lines.values()) + "\n")
        place.set(HTPASSWD=str(file))
        with booking_servers.serve(place) as server:
            yield Served(place, server.port, basic("alice", PASSWORD))


PATHS = (
    "/",
    "/live.json",
    "/status.json",
    "/metrics",
    "/assets/style.css",
    "/cards/atlas.html",
    "/book",
    "/nothing",
    "*",
)


@pytest.mark.slow
def test_nothing_is_answered_without_the_right_password(served: Served) -> None:
    for path in PATHS:
        for sent in (
            None,
            basic("alice", "wrong"),
            basic("nobody", PASSWORD),
            "Basic !",
            f"Bearer {served.place.token}",
        ):
            if sent and "Basic" in sent and path != "/":
                continue  # a wrong one costs something
            got = served.ask("GET", path=path, Authorization=sent)
            assert got.status == 401, (path, sent)
            assert got.headers["Www-Authenticate"] == 'Basic realm="GPU board", charset="UTF-8"'
            assert dict(SECURITY_HEADERS).items() <= got.headers.items()
    assert served.post(BOOK, Authorization=None).status == 401
    assert served.ask("HEAD", path="/").status == 401


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_hash_that_we_take_opens_everything(served: Served, name: str) -> None:
    for path in ("/", "/live.json", "/metrics", "/assets/board.css", "/book"):
        assert served.ask("GET", path=path, Authorization=basic(name, PASSWORD)).status == 200, path
    assert served.ask("GET", path="/nothing", Authorization=basic(name, PASSWORD)).status == 404


def test_whoever_logs_in_books_under_their_own_name(served: Served) -> None:
    forged_headers = {"X_Remote_User": "bob", "Remote_User": "bob", "REMOTE_USER": "bob"}
    listed = served.get(**forged_headers, Authorization=basic("zoë", PASSWORD))
    assert (listed.said["who"], listed.said["how"]) == ("zoë", "server")
    assert served.post(BOOK, **forged_headers).status == 200
    assert served.place.booked() == [("atlas", "0", "alice")]


@pytest.mark.slow
def test_a_browser_with_the_password_shows_the_board_and_complains_of_nothing(served: Served, browser: Browser) -> None:
    context = browser.new_context(http_credentials={"username": "alice", "password": PASSWORD})
    console_messages: list[str] = []
    try:
        page = context.new_page()
        page.on("console", lambda message: console_messages.append(message.text))
        page.goto(f"http://127.0.0.1:{served.port}/")
        assert page.evaluate("fetch('live.json').then((got) => got.status)") == 200
        assert page.locator("text=atlas").count()
    finally:
        context.close()
    assert console_messages == []


def test_commands_on_other_machines_log_in_and_never_print_the_password(served: Served, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{served.port}/"
    secret = f"alice:{PASSWORD}"
    finished = run_gpuboard(tmp_path, "list", "--url", url, "--json", GPUBOARD_LOGIN=secret)
    assert (finished.returncode, [host_entry["name"] for host_entry in json.loads(finished.stdout)["hosts"]]) == (
        0,
        ["atlas"],
    ), finished
    mine = run_gpuboard(
        tmp_path, "bookings", GPUBOARD_URL=url, GPUBOARD_LOGIN=secret, GPUBOARD_TOKEN=served.place.token
    )
    assert mine.returncode == 0, mine
    made = run_gpuboard(tmp_path, "book", "atlas:1", "--for", "2h", GPUBOARD_URL=url, GPUBOARD_LOGIN=secret)
    assert (made.returncode, "clear" in made.stderr) == (0, False), made
    assert ("atlas", "1", "alice") in served.place.booked()
    warned = run_gpuboard(tmp_path, "config", GPUBOARD_URL="http://web.lab/", GPUBOARD_LOGIN=secret).stderr
    assert warned == "gpuboard: your password is sent unencrypted: http://web.lab/ should be https\n"
    for name, words in (
        ("", f"127.0.0.1:{served.port} asks for a name and password: set GPUBOARD_LOGIN=name:password"),
        ("alice:my-wrong-one", f"127.0.0.1:{served.port} rejects the name and password in GPUBOARD_LOGIN"),
    ):
        for command in ("list", "bookings"):
            finished = run_gpuboard(tmp_path, command, "--url", url, GPUBOARD_LOGIN=name)
            assert finished.returncode == 2
            assert words in finished.stderr
            assert "my-wrong-one" not in finished.stderr
    config_output = run_gpuboard(tmp_path, "config", GPUBOARD_LOGIN=secret).stdout
    assert "GPUBOARD_LOGIN" in config_output
    assert "battery" not in config_output
    finished = run_gpuboard(tmp_path, "list", "--url", url.replace("//", f"//alice:{'my-wrong-one'}@"))
    assert finished.returncode == 2
    assert "a name and password for it go into GPUBOARD_LOGIN" in finished.stderr
    assert "my-wrong-one" not in finished.stderr


def test_a_login_in_the_file_goes_to_the_board_of_the_file_alone(tmp_path: Path) -> None:
    conf = tmp_path / "gpuboard.conf"
    conf.write_text("GPUBOARD_URL=https://web/gpus/\nGPUBOARD_LOGIN=alice:pw\nGPUBOARD_TOKEN=token\n")
    for flags, environment, sent in (
        ({}, {}, ("alice:pw", "token")),
        ({"GPUBOARD_URL": "https://WEB/other"}, {}, ("alice:pw", "token")),
        ({"GPUBOARD_URL": "https://web.evil/gpus/"}, {}, (None, None)),
        ({"GPUBOARD_URL": "http://web/gpus/"}, {}, (None, None)),
        ({"GPUBOARD_URL": "https://web:8443/"}, {}, (None, None)),
        ({}, {"GPUBOARD_URL": "https://other/"}, (None, None)),
        ({"GPUBOARD_URL": "https://other/"}, {"GPUBOARD_LOGIN": "bob:pw"}, ("bob:pw", None)),
    ):
        loaded_settings = load_settings(str(conf), flags, environment).settings
        assert (loaded_settings.login, loaded_settings.token) == sent, (flags, environment)


def test_a_changed_file_counts_at_once_and_a_bad_one_never(served: Served, lines: dict[str, str]) -> None:
    file = served.place.folder / "users"

    def statuses() -> list[int]:
        asked = ((name, basic(name, PASSWORD)) for name in ("alice", "dave"))
        return [served.ask("GET", path="/", Authorization=sent).status for _, sent in asked]

    def write(text: str) -> None:
        new = file.with_suffix(".new")
        new.write_text(text)
        new.replace(file)

    assert statuses() == [200, 200]
    write(lines["alice"])
    assert statuses() == [200, 401]
    write("alice:plain\n")
    assert statuses() == [200, 401]
    file.unlink()
    assert statuses() == [200, 401]
    write(lines["dave"])
    assert statuses() == [401, 200]
    log_text = served.place.words()
    plain = f"gpuboard: the passwords in {file} cannot be used: line 1: the password of alice is in plain text"
    assert log_text.count(plain) == 1
    assert log_text.count("No such file or directory; make the file with `htpasswd -B -c FILE NAME`; until then") == 1
    assert "plain\n" not in log_text
    write("\n".join(lines.values()))


def test_a_file_that_cannot_be_read_for_a_moment_is_tried_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    log_lines: list[str] = []
    desk.passwords.report = log_lines.append
    assert desk.ask("alice", "pw").status == 200
    desk.passwords.path.write_text("bob:{SHA}GpHWL3ymc5liWkNopqtdSjuqYHM=\n")
    with monkeypatch.context() as patched:
        patched.setattr(files, "read_file", Mock(side_effect=files.FileRefusedError(os.strerror(errno.EMFILE))))
        assert [desk.ask("alice", "pw").status for _ in range(3)] == [200] * 3
    assert [log_line.partition(": ")[2] for log_line in log_lines] == [
        "Too many open files; make the file with `htpasswd -B -c FILE NAME`; until then the previous passwords are used"
    ]
    assert desk.ask("alice", "pw").status == 401  # the file is the same as when it could not be read


# At the start


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory; make the file with `htpasswd -B -c FILE NAME`"),
        ("", "it is empty: `htpasswd -B` adds a person"),
        ("# alice\n\n", "it is empty"),
        ("alice:secret\n", "line 1: the password of alice is in plain text or has an unsupported hash"),
        ("# x\nalice:.ryZ9gQCYXY8Y\n", "line 2: the password of alice is in plain text or has an unsupported hash"),
        ("alice:$1$salt$qJH7.N4xYta3aEG/dfqo/0\n", "line 1: the password of alice"),
        (
            f"a:$2y$31${'.' * 53}\n",
            "the cost in the hash of a is not from 4 to 17: create it again with `htpasswd -B`",
        ),
        (f"a:$2y$03${'.' * 53}\n", "the cost in the hash of a is not from 4 to 17"),
        (f"a:$6$rounds=10$a${'.' * 86}\n", "the hash of a is damaged: create it again with `htpasswd -B`"),
        ("alice\n", "line 1 is not NAME:HASH: create it again with `htpasswd -B`"),
        (":$apr1$a$" + "b" * 22, "line 1 is not NAME:HASH"),
        (b"caf\xe9:x\n", "line 1 is not UTF-8"),
        ("a:{SHA}GpHWL3ymc5liWkNopqtdSjuqYHM=\n" * 2, "line 2: a is also in line 1: remove one of them"),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_start_with_a_sentence(
    tmp_path: Path, content: str | bytes | None, words: str
) -> None:
    file = tmp_path / "users"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PasswordFileError) as why:
        PasswordFile(file, lambda _: None)
    assert str(why.value).startswith(f"the passwords in {file} cannot be ")
    assert words in str(why.value)
    assert "secret" not in str(why.value).replace(str(tmp_path), "")


def test_no_link_to_a_folder_no_pipe_and_no_file_without_end_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 30)
    for name in ("pipe", "large", "."):
        with pytest.raises(PasswordFileError):
            PasswordFile(tmp_path / name, lambda _: None)


def test_the_command_exits_2_and_listens_nowhere(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "users").write_text("alice:secret\n")
    finished = run_gpuboard(tmp_path, "serve", "--htpasswd", "users")
    assert finished.returncode == 2
    assert finished.stderr.startswith(f"gpuboard: the passwords in {tmp_path}/users cannot be used: line 1: ")
    assert finished.stderr.count("\n") == 1
    finished = run_gpuboard(tmp_path, "serve", "--htpasswd", "")
    assert (finished.returncode, finished.stderr.startswith("gpuboard: --htpasswd names no file: ")) == (2, True)


def test_a_password_that_others_on_the_network_could_read_is_warned_of(tmp_path: Path) -> None:
    settings = Lab(tmp_path).settings(htpasswd="users")
    for address, warning_count in (("0.0.0.0", 1), ("127.0.0.1", 0)):  # noqa: S104
        with socket.socket() as bound:
            bound.bind((address, 0))
            warnings = [CLEARTEXT_WARNING] * warning_count
            readers = ["everybody on the network with a password can read it"] * warning_count
            assert list_server_start_messages(bound, settings, is_terminal=False) == warnings
            assert list_server_start_messages(bound, settings, is_terminal=True)[1:] == [*readers, *warnings]


# Guesses, and what a login costs


class Asked(NamedTuple):
    """A status, and the headers with it."""

    status: int
    headers: dict[str, str]


class Desk:
    """A login before an application that only says who asks."""

    def __init__(self, folder: Path, content: str) -> None:
        (folder / "users").write_text(content)
        self.now = 1000.0
        self.seen: list[WSGIEnvironment] = []
        self.passwords = PasswordFile(folder / "users", lambda _: None)
        self.login = BasicAuth(self.inner, self.passwords, BookingPolicy(), lambda: self.now)

    def inner(self, environ: WSGIEnvironment, start: Any) -> Iterable[bytes]:  # noqa: ANN401
        self.seen.append(environ)
        start("200 OK", [])
        return [b""]

    def ask(self, name: str, password: str, address: str = "10.0.0.1") -> Asked:
        answers: list[Asked] = []
        environ = {"REQUEST_METHOD": "GET", "REMOTE_ADDR": address, "HTTP_AUTHORIZATION": basic(name, password)}
        self.login(environ, lambda status, headers: answers.append(Asked(int(status[:3]), dict(headers))))  # type: ignore[arg-type]
        return answers[0]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, "alice:{SHA}GpHWL3ymc5liWkNopqtdSjuqYHM=\n")  # pw


def test_only_the_address_that_guesses_passwords_has_to_wait(desk: Desk) -> None:
    assert desk.ask("alice", "pw").status == 200
    assert [desk.ask("alice", f"guess {number}").status for number in range(12)] == [401] * 10 + [429] * 2
    got = desk.ask("bob", "other")
    assert (got.status, got.headers["Retry-After"]) == (429, "6")
    assert desk.ask("alice", "pw").status == 200  # who is in stays in, even at the address of the one who guesses
    assert desk.ask("alice", "guess", "10.0.0.2").status == 401
    desk.now += 6
    assert [desk.ask("alice", f"guess {number}").status for number in range(2)] == [401, 429]


def test_a_login_reaches_the_booking_service_unchanged(tmp_path: Path) -> None:
    names = ("voilà", "Å", "zoë", "a\u00a0b", "李")  # the UTF-8 of some ends in what Latin-1 takes for a blank
    desk = Desk(tmp_path, "".join(f"{name}:{{SHA}}GpHWL3ymc5liWkNopqtdSjuqYHM=\n" for name in names))
    for name in names:
        assert desk.ask(name, "pw").status == 200
        assert read_server_login(desk.seen[-1]) == name


def test_a_slow_hash_is_asked_once_for_an_open_page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    plain = PasswordVerifier.is_correct

    def is_right(users: PasswordVerifier, name: str, password: bytes) -> bool:
        asked.append(name)
        return plain(users, name, password)

    monkeypatch.setattr(PasswordVerifier, "is_correct", is_right)
    threads = [threading.Thread(target=desk.ask, args=("alice", "pw")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(desk.seen) == 8
    assert len(asked) <= basic_auth.MAX_ACTIVE  # those that came at the very same moment
    assert [desk.ask("alice", "pw").status for _ in range(50)] == [200] * 50
    assert len(asked) <= basic_auth.MAX_ACTIVE


def test_what_is_remembered_is_bounded_and_is_no_password(desk: Desk) -> None:
    users = desk.passwords.refresh()
    users.hash_context = type("Any", (), {"verify": staticmethod(lambda *_: True)})()
    for number in range(MAX_CACHED_LOGINS + 10):
        assert users.is_correct("alice", f"password {number}".encode())
    assert len(users.verified_digests) == MAX_CACHED_LOGINS
    assert not users.was_verified("alice", b"password 0")
    assert users.was_verified("alice", b"password 999")
    assert not any(b"password" in digest for digest in users.verified_digests)


def test_guessing_takes_few_threads_and_the_board_answers_meanwhile(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WAITRESS_SETTINGS["threads"] == 2 * (basic_auth.MAX_ACTIVE + basic_auth.MAX_WAITING)
    assert desk.ask("alice", "pw").status == 200
    hold = threading.Event()
    plain = PasswordVerifier.is_correct
    monkeypatch.setattr(PasswordVerifier, "is_correct", lambda *arguments: hold.wait(60) and plain(*arguments))
    statuses: list[int] = []
    guess = lambda number: statuses.append(desk.ask("alice", "x", f"10.1.0.{number}").status)  # noqa: E731
    threads = [threading.Thread(target=guess, args=(number,)) for number in range(40)]
    try:
        for thread in threads:
            thread.start()
        end = time.monotonic() + 30
        while len(statuses) < 40 - basic_auth.MAX_ACTIVE - basic_auth.MAX_WAITING and time.monotonic() < end:
            time.sleep(0.01)
        assert statuses == [503] * (40 - basic_auth.MAX_ACTIVE - basic_auth.MAX_WAITING)
        assert desk.ask("alice", "pw").status == 200
    finally:
        hold.set()
        for thread in threads:
            thread.join()
    assert statuses.count(401) == basic_auth.MAX_ACTIVE + basic_auth.MAX_WAITING


def test_an_unknown_name_takes_as_long_as_a_known_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    users = desk.passwords.refresh()
    asked: list[str] = []

    def verify(_: bytes, expected: str) -> bool:
        asked.append(expected)
        return True

    monkeypatch.setattr(users, "hash_context", type("Any", (), {"verify": staticmethod(verify)})())
    assert not users.is_correct("nobody", b"pw")
    assert asked == list(users.hashes.values())
    assert not users.was_verified("nobody", b"pw")


def test_passwords_that_no_hash_can_have_are_wrong_and_no_failure(tmp_path: Path) -> None:
    long = "x" * 80
    desk = Desk(tmp_path, f"alice:$2y$05${'.' * 53}\n{line_of('bob', '-B', long)}\n")
    assert desk.ask("alice", "a\0b").status == 401
    assert desk.ask("alice", long).status == 401
    assert desk.ask("bob", long).status == 200  # of which bcrypt knows the first 72 bytes
    assert desk.ask("bob", "y" * 2000).status == 401
    assert desk.ask("bob", "").status == 401


def test_every_accepted_line_can_be_verified(lines: dict[str, str]) -> None:
    assert set(basic_auth.parse_htpasswd("\n".join(lines.values()).encode())) == set(KINDS)
    with_comment = f"{lines['alice']}:the admin\r\n".encode()
    assert basic_auth.parse_htpasswd(with_comment) == {"alice": lines["alice"].partition(":")[2]}
