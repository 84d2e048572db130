"""A board that is built again while a page of it is open in a real browser."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from site_builder.board.builder import Builder
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.browser import PATIENCE, Site, served, wait_until

ITS_OWN = "Failed to load resource"  # what the browser itself says of a request that failed
GPUS = 3


class Board:
    """A lab, its builder that builds every 10 s, its server, and a page that is open."""

    def __init__(self, folder: Path, lab: Lab | None = None, drawn: Lab | None = None) -> None:
        """Build it for the first time; `drawn` is a lab like it, whose charts need not be drawn again."""
        self.lab = lab or Lab(folder)
        if drawn:
            shutil.copytree(drawn.state, self.lab.state, dirs_exist_ok=True)
            shutil.copytree(drawn.www, self.lab.www)
        if not lab:
            for name in ("ares", "juno", "mars"):
                self.host(name)
        self.builder = Builder(self.lab.settings(), 10)
        self.builds = 0
        self.build()
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.site: Site
        self.page: Page

    def host(self, name: str, use: int = 50, user: str = "alice", gpus: int = GPUS, disk: int = 610) -> None:
        """A host of which the first GPU is in use by somebody, or by nobody."""
        first = gpu(0, 9000 if user else 4, use, uuid=f"GPU-{name}-0")
        rest = "".join(gpu(n, uuid=f"GPU-{name}-{n}") for n in range(1, gpus))
        on = (process(gpu=f"GPU-{name}-0"), person(user=user)) if user else ("", "")
        facts = f"cpus=4\nload={use / 10} 1.2 1.0\nmemory_total=64000\nmemory_available=32000\ndisk=1000 {disk} /data\n"
        self.lab.host(name, first + rest, *on, facts)

    def build(self, epoch: float | None = None) -> None:
        """One build, a moment later than the last."""
        time.sleep(0.002)
        self.builder.build(time.time() if epoch is None else epoch)
        self.set_apart()

    def set_apart(self) -> None:
        """Servers tell files apart by whole seconds, and a builder does not build twice in one."""
        self.builds += 1
        os.utime(self.file("live.json"), (time.time() + self.builds,) * 2)

    def follow(self) -> list[str]:
        """Let the page look at the server, and return what it asked for."""
        self.asked.clear()
        self.page.evaluate("refresh()")
        return [*self.asked]

    def next(self) -> list[str]:
        """Build, and let the page follow."""
        self.build()
        return self.follow()

    def file(self, name: str) -> Path:
        """A file of the site."""
        return self.lab.www / name

    def cell(self, host: str, column: int, row: int = 0) -> str:
        """What a cell of a card says."""
        return squeezed(
            self.page.locator(f"#{host} .gpus > tbody > tr").nth(row).locator("> *").nth(column).inner_text()
        )

    def trouble(self) -> str:
        """What the page says of its own state, in words."""
        return squeezed(self.page.evaluate("document.querySelector('.age strong:not([hidden])')?.textContent ?? ''"))

    def shown(self) -> str:
        """All that the page says, but for ages, which depend on when one looks."""
        text = self.page.evaluate(
            "document.title + document.body.innerText + document.querySelector('[rel=icon]').href"
        )
        return re.sub(r"\d+ s ago", "", squeezed(text))


def squeezed(text: str) -> str:
    return " ".join(text.split())


@contextmanager
def opened(browser: Browser, board: Board, folder: Path, at: datetime | None = None, **options: Any) -> Iterator[Board]:  # noqa: ANN401 of playwright
    """The page, on a clock of its own if told."""
    with served(board.lab.www, folder / "server") as board.site:
        context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        try:
            board.page = page = context.new_page()
            page.set_default_timeout(PATIENCE)
            page.on("request", lambda request: board.asked.append(request.url.removeprefix(board.site.url)))
            page.on("console", lambda said: board.errors.extend([said.text] if said.type == "error" else []))
            page.on("pageerror", lambda error: board.errors.append(str(error)))
            if at:
                page.clock.install(time=at)
            page.goto(board.site.url)
            wait_until(page, "near.size > 0 || !document.querySelector('.host')")
            page.evaluate("new Promise(requestAnimationFrame)")
            yield board
        finally:
            context.close()
            board.builder.close()
    assert [error for error in board.errors if not error.startswith(ITS_OWN)] == []


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The three hosts of each board, built once."""
    board = Board(tmp_path_factory.mktemp("drawn"))
    board.builder.close()
    return board.lab


@pytest.fixture
def board(browser: Browser, tmp_path: Path, drawn: Lab) -> Iterator[Board]:
    """Three hosts on an open page."""
    with opened(browser, Board(tmp_path, drawn=drawn), tmp_path) as opened_board:
        yield opened_board


def settled(board: Board) -> None:
    """Wait until the page is asking for nothing."""
    wait_until(board.page, "!asking")
