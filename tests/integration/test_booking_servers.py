"""The desk behind real web servers: `gpuboard serve`, nginx, Apache and a plain WSGI server do the same."""

from __future__ import annotations

import contextlib
import fcntl
import json
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from site_builder.bookings.store import LOCK_FILE
from site_builder.web.rate_limit import LISTS_FILE, REQUESTS_FILE
from site_builder.web.static_files import SECURITY_HEADERS
from tests.support import booking_servers
from tests.support.booking_servers import SCRIPT, Got, Place, Served, basic
from tests.support.docs import ROOT
from tests.support.live_page import Live
from tests.support.pace import wall, within

BOOK = {"do": "book", "gpus": ["atlas:0"], "for": "2h"}
KINDS: dict[str, Callable[[Place], contextlib.AbstractContextManager[Served]]] = {
    "serve": booking_servers.serve,
    "nginx and fcgiwrap": booking_servers.nginx_cgi,
    "nginx before serve": booking_servers.nginx_proxy,
    "apache": booking_servers.apache,
    "wsgi": booking_servers.wsgi,
}


@pytest.fixture(scope="module", params=KINDS)
def each(request: pytest.FixtureRequest) -> Iterator[Served]:
    """Each server in turn, with one lab for all its tests."""
    with booking_servers.place() as place, KINDS[request.param](place) as served:
        yield served


@pytest.fixture
def desk(each: Served) -> Served:
    """The same, with nothing booked and nobody counted."""
    lab = each.place.lab
    for folder, names in (
        (lab.data, ("comments.json", "comments.last-good.json")),
        (lab.state, (REQUESTS_FILE, LISTS_FILE)),
    ):
        for name in names:
            (folder / name).unlink(missing_ok=True)
    return each


@pytest.fixture
def place() -> Iterator[Place]:
    with booking_servers.place() as booking_place:
        yield booking_place


def test_alice_books_is_listed_and_releases_and_the_file_has_it(desk: Served) -> None:
    made = desk.post({**BOOK, "from": "tomorrow 10:00"})  # what has begun would stay in the file, and end now
    assert made.status == 200, made
    assert made.said["said"].startswith("atlas:0 for alice from ")
    assert desk.place.booked() == [("atlas", "0", "alice")]
    listed = desk.get()
    assert (listed.status, listed.said["who"], listed.said["zone"]) == (200, "alice", "Europe/Paris")
    assert [booking["mine"] for booking in listed.said["bookings"]] == [True]
    assert desk.post({"do": "release", "id": made.said["bookings"][0]["id"]}).status == 200
    assert desk.place.booked() == []


def test_what_is_booked_is_not_booked_twice(desk: Served) -> None:
    assert desk.post(BOOK).status == 200
    again = desk.post({**BOOK, "name": "bob"})
    assert again.status == 409
    assert again.said["error"].startswith("atlas:0 is booked by alice ")
    assert desk.place.booked() == [("atlas", "0", "alice")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"X_Gpuboard": None}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Authorization": None}, 401),
        ({"Authorization": None, "Remote_User": "alice", "REMOTE_USER": "alice", "Auth_Type": "Basic"}, 401),
        ({"Authorization": None, "X_Remote_User": "alice"}, 401),
    ],
)
def test_what_does_not_come_from_alice_on_the_board_is_refused(
    desk: Served, headers: dict[str, str | None], status: int
) -> None:
    assert desk.post(BOOK, **headers).status == status
    assert desk.place.booked() == []


def test_the_boards_own_page_may_book(desk: Served) -> None:
    got = desk.post(BOOK, Origin=f"http://127.0.0.1:{desk.port}")
    assert got.status == 200, got


@pytest.mark.parametrize("size", [16385, 20_000, 5_000_000])
def test_what_is_too_large_is_refused(desk: Served, size: int) -> None:
    with contextlib.suppress(ConnectionError):  # it need not be read to its end
        assert desk.post(b" " * size).status == 413
    assert desk.place.booked() == []


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "HEAD"])
def test_no_other_method_is_answered_and_no_other_page_invited(desk: Served, method: str) -> None:
    got = desk.ask(method, Authorization=desk.login, Origin="https://evil.example")
    assert got.status == 405
    assert [name for name in got.headers if name.lower().startswith("access-control")] == []


def test_the_answer_has_its_headers_and_is_kept_nowhere(desk: Served) -> None:
    headers = desk.get().headers
    assert dict(SECURITY_HEADERS).items() <= headers.items()
    assert headers["Cache-Control"] == "no-store"


def test_who_asks_too_often_waits(desk: Served) -> None:
    level = json.dumps({"127.0.0.1": [60, time.time() + 30]})  # full, and not emptying for half a minute
    (desk.place.lab.state / "attempts.json").write_text(level)
    got = desk.post(BOOK)
    assert (got.status, got.headers["Retry-After"]) == (429, "2")


def test_the_board_itself_is_served_as_before(desk: Served) -> None:
    if desk.path == "/book":
        assert desk.ask("GET", path="/", Authorization=desk.login).status == 200
        assert desk.ask("POST", b"{}", path="/", Authorization=desk.login).status in (
            200,
            405,
        )  # Apache takes it for GET


# Each by itself


def test_nginx_passes_on_a_name_that_nobody_checked_and_it_is_not_believed(place: Place) -> None:
    with booking_servers.nginx_cgi(place) as served:
        assert served.post(BOOK, Authorization=basic("alice", "wrong")).status == 401
        served.path = "/token"
        assert served.post(BOOK, Authorization=basic("alice")).status == 401
        assert served.get(Authorization=basic("alice")).said["who"] is None
        assert served.post(BOOK, Authorization=f"Bearer {place.token}").status == 200
    assert place.booked() == [("atlas", "0", "alice")]


def test_apache_passes_a_token_where_it_is_configured_to(place: Place) -> None:
    with booking_servers.apache(place, tokens=True) as served:
        assert served.get().said["how"] == "token"
        assert served.post(BOOK).status == 200
        assert served.post(BOOK, Authorization="Bearer wrong").status == 401
    assert place.booked() == [("atlas", "0", "alice")]


def test_behind_nginx_the_address_that_counts_is_the_readers_and_not_what_they_say(place: Place) -> None:
    with booking_servers.nginx_proxy(place) as served:
        served.post(BOOK, X_Forwarded_For="198.51.100.1", X_Remote_User="root")
    assert list(json.loads((place.lab.state / "attempts.json").read_text())) == ["127.0.0.1"]
    assert place.booked() == [("atlas", "0", "alice")]


def test_behind_nginx_no_header_of_a_page_elsewhere_says_that_it_is_the_board(place: Place) -> None:
    with booking_servers.nginx_proxy(place) as served:
        for host in ("evil.example", "evil.example, web"):
            got = served.post(BOOK, Origin="http://evil.example", X_Forwarded_Host=host)
            assert got.status == 403
    assert place.booked() == []


def test_the_board_answers_while_many_wait_for_the_booking_service(place: Place) -> None:
    answers: list[Got] = []
    with booking_servers.serve(place) as served:
        served.post({**BOOK, "gpus": ["atlas:1"]})
        threads = [threading.Thread(target=lambda: answers.append(served.post(BOOK))) for _ in range(60)]
        with (place.lab.data / LOCK_FILE).open("rb") as lock:  # as somebody who books, and takes long
            fcntl.flock(lock, fcntl.LOCK_EX)
            for request in threads:
                request.start()
            end = time.monotonic() + 30
            while not answers and time.monotonic() < end:
                time.sleep(0.01)
            with within(10, wall):
                assert served.ask("GET", path="/").status == 200
        for request in threads:
            request.join()
    refused = [request for request in answers if request.status == 503]
    assert refused[0].headers["Retry-After"] == "10"
    assert refused[0].said["error"] == "the booking service is busy: try again in a moment"
    assert [request.status for request in answers].count(200) == 1
    assert sorted(place.booked()) == [("atlas", "0", "alice"), ("atlas", "1", "alice")]


def test_serve_without_an_address_for_bookings_takes_none(place: Place) -> None:
    place.set(BOOK_URL="")
    with booking_servers.serve(place) as served:
        assert (served.get().status, served.post(BOOK).status) == (404, 405)
    assert place.booked() == []


def test_the_booking_service_has_one_address(place: Place) -> None:
    with booking_servers.serve(place) as served:
        for path in ("//book", "/book/", "/%62ook", "/x/../book", "/Book"):
            served.path = path
            assert served.post(BOOK).status == 405, path
        served.path = "/book?x=1"
        assert served.post(BOOK).status == 200


def test_here_takes_bookings_only_where_its_settings_say_so(tmp_path: Path) -> None:
    (tmp_path / "my.conf").write_text("GPUBOARD_BOOK_URL=book\n")
    with Live(tmp_path, "here", "--conf", "my.conf") as board:
        assert board.book(**BOOK, name="zoe")[0] == 401
        assert board.status()["book"] == "book"
        assert board.stop() == 0
    with Live(tmp_path, "here") as board:
        assert board.book(**BOOK, name="zoe")[0] == 405
        board.wait_for(lambda: board.status()["book"] is None, 30)  # the page of before stands until it is built anew
        assert board.stop() == 0


def cgi(place: Place, content: object, script: Path = SCRIPT, **extra_environment: str) -> subprocess.Popen[bytes]:
    """book.cgi as a web server starts it: with nothing but what the standard says."""
    body = json.dumps(content).encode()
    request = {
        "GATEWAY_INTERFACE": "CGI/1.1",
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_X_GPUBOARD": "1",
        "REMOTE_ADDR": f"10.0.0.{random.randrange(250)}",  # noqa: S311
        "AUTH_TYPE": "Basic",
        "REMOTE_USER": "alice",
        "SERVER_NAME": "web",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "GPUBOARD_CONF": str(place.conf),
        **extra_environment,
    }
    process = place.start(str(script), env=request, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(body)
        process.stdin.close()
    process.stdin = None
    return process


def answer(process: subprocess.Popen[bytes]) -> str:
    output, _ = process.communicate(timeout=60)
    return output.decode()


def test_a_cgi_that_is_killed_at_any_moment_leaves_the_file_whole_and_the_next_one_books(place: Place) -> None:
    began = time.monotonic()
    answer(cgi(place, {**BOOK, "check": True}))
    took = time.monotonic() - began
    place.lab.book({"zeus": {"0": {"name": "bob", "date": "2199-01-01"}}})
    for part in range(12):
        process = cgi(place, {**BOOK, "from": f"2030-01-{part + 1:02}", "for": "1h"})
        time.sleep(took * (0.6 + part * 0.05))
        process.send_signal(signal.SIGKILL)
        answer(process)
        content = json.loads((place.lab.data / "comments.json").read_text())
        assert content["zeus"] == {"0": {"name": "bob", "date": "2199-01-01"}}
    assert "Status: 200 OK" in answer(cgi(place, {**BOOK, "gpus": ["atlas:1"]}))
    assert json.loads((place.lab.data / "comments.json").read_text())["atlas"]["1"]["name"] == "alice"
    assert [data_file.name for data_file in place.lab.data.iterdir() if ".new" in data_file.name] == []


def test_the_cgi_of_an_installed_package_finds_its_own_python(place: Place) -> None:
    home = place.folder / "venv"
    venv.create(home, symlinks=True)
    packages = home / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    ignore = shutil.ignore_patterns("__pycache__", ".ruff_cache")
    shutil.copytree(ROOT / "site_builder", packages / "site_builder", ignore=ignore)
    shutil.copytree(ROOT / "scripts", packages / "site_builder/scripts", ignore=ignore)
    (packages / "needs.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    copy = packages / "site_builder/web/booking_app.py"
    copy.write_text(f"{copy.read_text()}\n\nBAD_SETTINGS_MESSAGE = 'this very copy'\n")
    link = place.folder / "link.cgi"
    link.symlink_to(packages / "site_builder/scripts/book.cgi")
    for script in (link, packages / "site_builder/scripts/book.cgi"):
        assert "this very copy" in answer(cgi(place, BOOK, script, GPUBOARD_BOOK_OPEN="maybe"))
    assert "Status: 200 OK" in answer(cgi(place, BOOK, link))
    assert place.booked() == [("atlas", "0", "alice")]


def test_a_cgi_without_a_python_says_so_to_the_admin_and_answers(place: Place) -> None:
    copy = place.folder / "cgi-bin/book.cgi"
    copy.parent.mkdir()
    shutil.copy(SCRIPT, copy)
    bare = place.folder / "bin"
    bare.mkdir()
    for name in ("readlink", "sh"):
        (bare / name).symlink_to(str(shutil.which(name)))
    response = answer(cgi(place, BOOK, copy, PATH=str(bare)))
    assert response.startswith("Status: 503 Service Unavailable\r\nContent-Type: application/json\r\n")
    assert json.loads(response.partition("\r\n\r\n")[2])["error"].startswith("the booking service has wrong settings")
    assert f"{copy} finds no Python with gpuboard" in place.words()


def test_the_cgi_looks_for_no_module_in_the_folder_in_which_it_is_started(place: Place) -> None:
    for name in ("orjson", "click", "wsgiref", "site_builder"):
        (place.folder / f"{name}.py").write_text("raise SystemExit('taken in')\n")
    assert "Status: 200 OK" in answer(cgi(place, BOOK, PYTHONPATH=str(place.folder)))
