"""A real browser and a real web server for the tests of the page: Debian's chromium, and nginx where it is."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.board_fixture import Lab
from tests.support.command_line import run_gpuboard
from tests.support.missing import missing
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
NODE_MODULES = ROOT / ".tools/node_modules"
PATIENCE = 30_000  # milliseconds: a machine that is busy with something else is no failure of ours
expect.set_options(timeout=PATIENCE)
# In one process of our own rights, with all that it writes in one folder.
NGINX = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    types {{ text/html html; text/css css; text/javascript js; image/svg+xml svg; application/json json; }}
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {www};
    }}
}}
"""


def node_module(path: str) -> Path:
    """A file of what ./install.sh test fetches by npm."""
    module_path = NODE_MODULES / path
    return (
        module_path
        if module_path.exists()
        else missing(f"{path.partition('/')[0]} is not here; ./install.sh test fetches it")
    )


def build(folder: Path) -> None:
    """`gpuboard build` in the folder of a lab, as a user starts it: with no settings of ours."""
    finished = run_gpuboard(folder, "build")
    assert finished.returncode == 0, finished.stderr


def wait_until(page: Page, words: str, argument: object = None) -> None:
    """Wait until this JavaScript is true; by asking again, since the page's own policy lets it evaluate nothing."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(words, argument):
        assert time.monotonic() < end, words
        page.wait_for_timeout(20)


class Site:
    """A web server over a folder, on a free port of 127.0.0.1."""

    def __init__(self, www: Path, folder: Path) -> None:
        """Start it, and wait until it answers; `folder` is for its own files."""
        folder.mkdir()
        self.port = free_port()
        nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if nginx:
            conf = folder / "nginx.conf"
            conf.write_text(NGINX.format(folder=folder, port=self.port, www=www))
            command = [nginx, "-p", str(folder), "-c", str(conf), "-e", str(folder / "error.log")]
        else:
            command = [sys.executable, "-m", "http.server", str(self.port), "--bind", "127.0.0.1"]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=www, stdout=log, stderr=log)
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """Where the board is."""
        return f"http://127.0.0.1:{self.port}/"

    def wait(self) -> None:
        """Wait until it takes connections."""
        end = time.monotonic() + PATIENCE / 1000
        while time.monotonic() < end and self.process.poll() is None:
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        message = f"the web server did not start: {self.log.read_text()}"
        raise TimeoutError(message)

    def stop(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def served(www: Path, folder: Path) -> Iterator[Site]:
    """A web server for as long as it is needed."""
    site = Site(www, folder)
    try:
        yield site
    finally:
        site.stop()


class ServedBoard(NamedTuple):
    """A lab, and who serves its site."""

    lab: Lab
    site: Site

    def url(self, host: str) -> str:
        """The page of a host."""
        return f"{self.site.url}hosts/{host}.html"

    def html(self, host: str) -> str:
        """What stands in it."""
        return (self.lab.www / f"hosts/{host}.html").read_text()


@contextmanager
def serve_board(lab: Lab, folder: Path) -> Iterator[ServedBoard]:
    """Serve the site of a lab; `folder` is for the server's own files."""
    with served(lab.www, folder / "server") as site:
        yield ServedBoard(lab, site)


@contextmanager
def at_a_later_second(lab: Lab) -> Iterator[None]:
    """Build within this: a web server tells versions of live.json apart by whole seconds."""
    live = lab.www / "live.json"
    next_second = int(live.stat().st_mtime) + 1
    yield
    if live.stat().st_mtime < next_second:
        os.utime(live, (next_second, next_second))


@contextmanager
def open_page(browser: Browser, url: str, width: int = 1440, height: int = 900, **options: Any) -> Iterator[Page]:  # noqa: ANN401 of playwright
    """Open a page of its own, which must not write a word to the console, and which counts alerts."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    try:
        context.add_init_script("window.alerts = 0; window.alert = () => { window.alerts += 1 }")
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        console_messages: list[str] = []
        page.on("console", lambda message: console_messages.append(message.text))
        page.on("pageerror", lambda error: console_messages.append(str(error)))
        page.goto(url)
        yield page
        assert console_messages == []
    finally:
        context.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; it refuses to shut itself in where it is started by root."""
    # the same without windows, where there is one: a page costs it a quarter of the time
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    program = program or missing("chromium is not here; ./install.sh test installs it")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    with chromium() as chromium_browser:
        yield chromium_browser
