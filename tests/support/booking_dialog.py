"""The dialog in which people book, in a real browser: without a booking service, and with one."""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from site_builder.board.builder import Builder
from site_builder.bookings import parser as booking_parser
from site_builder.core.model import BookingPolicy, PrivacySettings
from site_builder.web import rate_limit
from tests.support.board_fixture import Lab, gpu, person, process
from tests.support.browser import PATIENCE
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.live_board import ITS_OWN
from tests.support.ports import free_port

DAY = 86400
# Whom the board knows, so that it does not ask whether a name is right.
KNOWN_PEOPLE = ("ann", "bob", "carol", "dora", "eve", "gil")
PHONE = {"width": 360, "height": 740}
LAPTOP = {"width": 1280, "height": 900}
TRICKY = """it's "ICML" $(date) `id` \\ !x"""
TOO_WIDE = """() => [document.documentElement, ...document.querySelectorAll("dialog, dialog *:not(pre, .soft, input)")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline")
    .map((one) => one.className || one.tagName)"""
TOO_SMALL = """() => [...document.querySelectorAll("dialog button, dialog input, dialog label, a.book")]
    .filter((one) => one.checkVisibility() && !(one.matches("[type=checkbox], [type=radio]")))
    .filter((one) => one.getBoundingClientRect().height < 24).map((one) => one.outerHTML)"""


def later(days: float) -> datetime:
    """A whole minute, so many days from now."""
    return (datetime.now(timezone.utc) + timedelta(days=days)).replace(second=0, microsecond=0)


def in_field(moment: datetime) -> str:
    """As a field of the form has it."""
    return moment.strftime("%Y-%m-%dT%H:%M")


def four(lab: Lab) -> Lab:
    """atlas with four GPUs, of which alice uses the first; zeus with one."""
    lab.host("atlas", gpu(0, 9000, 50) + "".join(map(gpu, range(1, 4))), process(), person())
    lab.host("zeus")
    (lab.data / "aliases.csv").write_text("\n".join(KNOWN_PEOPLE))
    return lab


@contextlib.contextmanager
def context_of(browser: Browser, **options: Any) -> Iterator[BrowserContext]:  # noqa: ANN401 of playwright
    """A browser's profile in which nothing goes wrong, and nobody else is asked."""
    context = browser.new_context(**{"viewport": LAPTOP, "timezone_id": "UTC", **options})
    wrong: list[str] = []
    asked: set[str] = set()
    context.on("console", lambda said: wrong.extend([said.text] if said.type in ("error", "warning") else []))
    context.on("weberror", lambda error: wrong.append(str(error.error)))
    context.on("request", lambda request: asked.add(re.sub(r"(?<=:)\d+", "", request.url).split("/")[2]))
    context.add_init_script("addEventListener('securitypolicyviolation', (e) => console.error(e.violatedDirective))")
    try:
        yield context
        assert [message for message in wrong if not message.startswith(ITS_OWN)] == []
        assert asked <= {"127.0.0.1:"}
    finally:
        context.close()


def visit(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    return page


def dialog(page: Page, host: str = "atlas") -> Locator:
    """The dialog of a host, opened by its link."""
    page.locator(f"[id='{host}'] a.book").click()
    opened_dialog = page.get_by_role("dialog")
    expect(opened_dialog).to_be_visible()
    return opened_dialog


def choose(form: Locator, *gpus: str, until: datetime, **texts: str) -> None:
    """Fill it in; `gpus` are words of their labels."""
    for gpu_label in gpus:
        form.get_by_role("checkbox", name=re.compile(rf"^{gpu_label}\b")).check()
    form.get_by_label("End time").fill(in_field(until))
    for name, text in texts.items():
        form.get_by_label({"comment": "Purpose (optional)"}.get(name, re.compile("ame$"))).fill(text)


def said(form: Locator) -> Locator:
    return form.get_by_role("status")


def at_rest(form: Locator) -> Locator:
    """The form, once the list that follows a change has come: it takes the place of the one before."""
    expect(form).not_to_have_attribute("aria-busy", "true")
    return form


def press(form: Locator, name: str) -> None:
    form.get_by_role("button", name=name, exact=True).click()


def keep_token(context: BrowserContext, token: str) -> None:
    """As if it had been given before; an empty page can keep nothing."""
    context.add_init_script(f"if (location.host) localStorage.setItem('gpuboard.token', '{token}')")


def keep_name(context: BrowserContext, name: str) -> None:
    """As if somebody had booked here before."""
    context.add_init_script(f"if (location.host) localStorage.setItem('gpuboard.me', '{name}')")


def command(form: Locator) -> list[str]:
    """The words of the command, as a shell would split them."""
    return shlex.split(form.get_by_label("the command", exact=True).inner_text())


class BookingSite:
    """A lab, and `gpuboard serve` with a booking service at `book`."""

    def __init__(self, folder: Path, shown: PrivacySettings | None = None, **environment: str) -> None:
        """Build it, and wait until it answers."""
        self.folder = folder
        self.lab = four(Lab(folder))
        self.builder = Builder(
            self.lab.settings(booking_policy=BookingPolicy(url="book"), privacy=shown or PrivacySettings()), 10
        )
        self.builder.build(time.time())
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        environment = {"GPUBOARD_BOOK_URL": "book", "GPUBOARD_ZONE": "UTC", **environment}
        words = [sys.executable, "-m", "site_builder", "serve", "--listen", f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(words, cwd=folder, env=clean_environment(**environment))
        end = time.monotonic() + 20
        while not answers(port):
            assert self.process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)

    def reset(self) -> None:
        """Forget all bookings and requests, and see the hosts anew."""
        for name in ("comments.json", "comments.last-good.json", "bookings.log", "watches.json"):
            (self.lab.data / name).unlink(missing_ok=True)
        (self.lab.state / rate_limit.REQUESTS_FILE).unlink(missing_ok=True)
        four(self.lab)
        self.builder.build(time.time())

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self.builder.close()

    def token(self, name: str) -> str:
        """One that the admin makes."""
        return run_gpuboard(self.folder, "token", name).stdout.strip()

    def booked(self) -> list[tuple[str, str, str, datetime, str]]:
        """What stands in the file."""
        path = self.lab.data / "comments.json"
        bookings = booking_parser.parse_bookings(path.read_bytes(), timezone.utc).rows if path.exists() else ()
        return [
            (booking.host, booking.gpu, booking.name, booking.until, booking.comment)
            for booking in bookings
            if booking.until > datetime.now(timezone.utc)
        ]


def answers(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def serve_bookings(folder: Path, shown: PrivacySettings | None = None, **environment: str) -> Iterator[BookingSite]:
    booking_site = BookingSite(folder, shown, **environment)
    try:
        yield booking_site
    finally:
        booking_site.stop()
