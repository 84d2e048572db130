"""`gpuboard serve`: how it starts, what it says, and how it ends."""

from __future__ import annotations

import errno
import http.client
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage

from site_builder.core.model import BookingPolicy
from site_builder.web.server import (
    WebServer,
    build_server_url,
    describe_server_listen_error,
    is_server_local_only,
    list_server_start_messages,
    open_listening_socket,
)
from site_builder.web.static_files import StaticSite
from tests.support.board_fixture import Lab
from tests.support.browser import build
from tests.support.missing import missing
from tests.support.ports import free_port
from tests.support.serve_fixtures import (
    PAGE,
    Running,
    clean_environment,
    running,
    serve,
    serving,
)

# Starting and ending


@pytest.mark.slow
def test_it_says_to_a_terminal_where_the_board_is_in_one_line(folder: Path) -> None:
    port = free_port()
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "site_builder", "serve", "--listen", str(port)]
    with subprocess.Popen(command, cwd=folder, env=clean_environment(), stderr=its) as process:
        terminal_text = os.read(ours, 4096).decode()
        process.terminate()
    assert terminal_text == f"gpuboard: the board is at http://127.0.0.1:{port}/ until Ctrl-C\r\n"
    os.close(ours)
    os.close(its)


@pytest.mark.slow
def test_cron_which_would_mail_it_hears_nothing(site: Running) -> None:
    assert site.log.read_text() == ""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_it_with_exit_0_and_no_further_word(folder: Path, number: int) -> None:
    with running(folder) as one:
        one.get()
        with socket.create_connection(("127.0.0.1", one.port)):
            assert one.stop(number) == 0
        assert one.log.read_text() == ""


@pytest.mark.slow
def test_after_the_end_the_port_is_free_at_once(folder: Path) -> None:
    with running(folder) as one:
        one.get()
        one.stop()
        open_listening_socket("127.0.0.1", one.port).close()


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_sentence_and_exit_2(folder: Path, site: Running) -> None:
    result = serve(folder, "--listen", str(site.port))
    assert (result.returncode, result.stdout) == (2, "")
    what = f"127.0.0.1:{site.port} is taken by another program"
    assert result.stderr == f"gpuboard: {what}: choose another with --listen or GPUBOARD_LISTEN\n"


@pytest.mark.slow
def test_an_address_of_another_machine_is_one_sentence_and_exit_2(folder: Path) -> None:
    result = serve(folder, GPUBOARD_LISTEN="192.0.2.1:8080")
    assert result.returncode == 2
    assert result.stderr.startswith("gpuboard: 192.0.2.1 is not an address of this machine: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_flag_counts_more_than_the_environment(folder: Path, site: Running) -> None:
    result = serve(folder, "--listen", str(site.port), GPUBOARD_LISTEN="192.0.2.1:8080")
    assert f"127.0.0.1:{site.port} is taken" in result.stderr


@pytest.mark.slow
def test_a_flag_that_is_no_address_is_one_sentence_and_exit_2(folder: Path) -> None:
    result = serve(folder, "--listen", "here")
    assert result.returncode == 2
    assert "GPUBOARD_LISTEN is 'here' (--listen), but must be address:port" in result.stderr


def test_a_port_for_root_alone_is_one_sentence() -> None:
    message = describe_server_listen_error(PermissionError(errno.EACCES, "Permission denied"), "127.0.0.1", 80)
    assert message.startswith("only root may listen on port 80: choose one from 1024 on")


def test_a_name_that_nobody_knows_is_one_sentence() -> None:
    message = describe_server_listen_error(
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "nowhere", 8080
    )
    assert message.startswith("nowhere is not an address of this machine")


@pytest.mark.slow
@pytest.mark.parametrize("www", ["nowhere", "stderr.txt"])
def test_a_www_that_is_no_folder_is_one_sentence_and_exit_2(tmp_path: Path, www: str) -> None:
    (tmp_path / "stderr.txt").touch()
    result = serve(tmp_path, "--www", www, "--listen", str(free_port()))
    assert result.returncode == 2
    assert f"there is no folder {tmp_path}/{www}" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_address_that_the_network_can_reach_is_reported(tmp_path: Path) -> None:
    plain = Lab(tmp_path).settings()
    desk = replace(plain, booking_policy=BookingPolicy(url="book", is_open=True))
    with socket.socket() as bound:  # it does not listen
        bound.bind(("0.0.0.0", 0))  # noqa: S104
        assert not is_server_local_only(bound)
        assert list_server_start_messages(bound, plain, True)[1:] == ["everybody on the network can read it"]
        assert list_server_start_messages(bound, desk, True)[2:] == [
            "anybody who can reach it can book under any name; to prevent that: GPUBOARD_BOOK_OPEN=no"
        ]
        assert build_server_url(bound) == f"http://{socket.gethostname()}:{bound.getsockname()[1]}/"


def test_an_ipv6_address_has_brackets_in_its_url() -> None:
    try:
        bound = open_listening_socket("::1", free_port())
    except OSError:
        missing("this machine has no IPv6")
    with bound:
        assert is_server_local_only(bound)
        assert build_server_url(bound).startswith("http://[::1]:")


def test_a_server_runs_in_a_thread_until_it_is_closed(folder: Path) -> None:
    sock = open_listening_socket("127.0.0.1", free_port())
    port = sock.getsockname()[1]
    one = WebServer(StaticSite(folder / "www"), sock)
    thread = threading.Thread(target=one.run)
    thread.start()
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    line.request("GET", "/")
    assert line.getresponse().read() == PAGE.encode()
    one.stop()
    one.stop()
    thread.join(10)
    line.close()
    assert not thread.is_alive()
    open_listening_socket("127.0.0.1", port).close()


def test_a_server_that_ends_while_it_is_stopped_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = WebServer(StaticSite(folder / "www"), open_listening_socket("127.0.0.1", 0))
    thread = threading.Thread(target=server.run)
    thread.start()
    pull_trigger = server.pull_trigger

    def pull_trigger_too_late() -> None:
        pull_trigger()
        thread.join(10)
        pull_trigger()

    monkeypatch.setattr(server, "pull_trigger", pull_trigger_too_late)
    server.stop()
    assert not thread.is_alive()


def test_a_site_that_is_not_built_yet_says_so_and_is_there_once_it_is(folder: Path) -> None:
    (folder / "www/index.html").rename(folder / "page")
    with serving(folder) as one:
        before = one.get()
        (folder / "page").rename(folder / "www/index.html")
        assert one.get().status == 200
    assert before.status == 503
    assert before.headers["Retry-After"] == "10"
    assert b"has not been built yet: run <code>gpuboard build</code>" in before.body


# In a browser


@pytest.mark.slow
def test_a_browser_shows_the_board_without_an_error_or_a_violation(tmp_path: Path, browser: Browser) -> None:
    lab = Lab(tmp_path)
    lab.host("atlas")
    build(tmp_path)
    browser_messages: list[str] = []

    def tell(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            browser_messages.append(message.text)

    with running(tmp_path) as one:
        context = browser.new_context()
        try:
            page = context.new_page()
            page.on("console", tell)
            page.on("pageerror", lambda error: browser_messages.append(str(error)))
            page.on("requestfailed", lambda request: browser_messages.append(request.url))
            answers: list[int] = []
            page.on("response", lambda response: answers.append(response.status))
            page.goto(f"http://127.0.0.1:{one.port}/")
            page.wait_for_load_state("networkidle")
            assert page.locator("#atlas").is_visible()
            assert page.evaluate("getComputedStyle(document.querySelector('.bar')).display") == "flex"
        finally:
            context.close()
    assert browser_messages == []
    assert set(answers) <= {200, 304}
