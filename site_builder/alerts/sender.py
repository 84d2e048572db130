"""The post office: sends the letters that are due, in a process of its own, which ends by itself.

Nothing is sent twice: a letter is claimed in the book before its first byte goes out, and whoever finds a claim whose
sender is gone writes it off. The builder starts this and never waits for it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from site_builder.alerts import queue
from site_builder.alerts.model import Book, Letter, Message, Outcome
from site_builder.alerts.store import AlertBook, Change, Unwritable, book_of, opened
from site_builder.config.settings import Settings
from site_builder.core import locks, own_process
from site_builder.core.typed_json import decode_dataclass, list_pairs, simplify

if TYPE_CHECKING:
    from site_builder.alerts.channels import Ways

LOCK = "post.lock"
WEEKLY = "weekly-report"
# Seconds after which it ends, so that the next one begins with what is set then; and after which it must have.
SENDS_FOR, LIVES_FOR = 120, 600
# How often, and how many seconds apart, what must be written is tried: the answer of Consul may have been lost.
TRIES, AGAIN = 3, 2.0
HEARD: Callable[[Letter, Outcome], None] = lambda _letter, _outcome: None  # noqa: E731 for its type


class Busy(Exception):
    """Another process sends just now."""


class Sends(Protocol):
    """What can send a letter."""

    def send(self, letter: Letter, message: Message) -> Outcome:
        """Once, within a time; it never raises."""


def deliver(settings: Settings, heard: Callable[[Letter, Outcome], None] = HEARD) -> int:
    """Send all that is due, and say of each letter how it went; how many there were."""
    with alone(settings.state):
        office = Office(settings, book_of(settings.state, settings.kv), ways_of(settings))
        with ended_between_letters(office):
            return office.work(heard)


class Office:
    """Sends, for whoever holds the lock."""

    def __init__(
        self, settings: Settings, book: AlertBook, ways: Sends, clock: Callable[[], float] = time.time
    ) -> None:
        """What this sender is called: those of the same builder before it are gone."""
        self.settings, self.book, self.ways, self.clock = settings, book, ways, clock
        self.builder = ours(settings)
        self.is_ending = False
        self.name = f"{self.builder or ''}{os.getpid()}.{secrets.token_hex(4)}"

    @property
    def now(self) -> int:
        """This moment."""
        return int(self.clock())

    def work(self, heard: Callable[[Letter, Outcome], None] = HEARD) -> int:
        """Letter by letter, until none is due."""
        end = time.monotonic() + SENDS_FOR
        book = self.book.change(lambda book: queue.written_off(book, self.builder, self.now))
        count = 0
        while not self.is_ending and time.monotonic() < end and (waiting := queue.due(book, self.now)):
            name = waiting[0].id
            book = self.certain(lambda book: queue.claim(book, name, self.name, self.now))  # noqa: B023 # called at once
            letter = queue.in_hand(book, name, self.name)
            if letter is None:  # another builder's sender was quicker
                continue
            outcome = self.send(letter)
            book = self.certain(lambda book: queue.settle(book, name, self.name, outcome, self.now))  # noqa: B023 # the same
            heard(letter, outcome)
            count += 1
        return count

    def certain(self, change: Change) -> Book:
        """Change the book; where nobody knows whether that was written, once more, which does no harm."""
        for _ in range(TRIES - 1):
            with suppress(Unwritable):
                return self.book.change(change)
            time.sleep(AGAIN)
        return self.book.change(change)

    def send(self, letter: Letter) -> Outcome:
        """How it went; a fault of ours may have come after it was sent."""
        try:
            message = self.worded(letter)
        except Exception as error:
            return Outcome(queue.FAILED, f"it could not be put into words ({type(error).__name__})")
        try:
            return self.ways.send(letter, message)
        except Exception as error:
            return Outcome(queue.UNSURE, f"a fault of gpuboard's own ({type(error).__name__})")

    def worded(self, letter: Letter) -> Message:
        """A letter in words; the report of a week is made when it is sent."""
        from site_builder.alerts import render  # noqa: PLC0415 # not before there is one

        plain = render.message(letter, self.settings.zone, self.settings.shown.users)
        if letter.alerts[0].rule == WEEKLY:
            from site_builder.core.timeparse import weeks  # noqa: PLC0415
            from site_builder.reports import build as report_build  # noqa: PLC0415

            first = weeks.read(letter.alerts[0].about)
            report = report_build.message(self.settings, first, self.clock()) if first else None
            if report:
                return report._replace(data=plain.data)
        return plain


def ours(settings: Settings) -> str | None:
    """How the claims of senders on this machine begin; None where there are no others."""
    if settings.kv is None:
        return None
    from site_builder.consul.leader import name_of  # noqa: PLC0415 # few need it

    return f"{name_of(settings.state)} "


@contextmanager
def ended_between_letters(office: Office) -> Iterator[None]:
    """Who is told to end, as all are when a machine is shut down, first ends what is in hand; told twice, at once."""
    before: dict[signal.Signals, Any] = {}

    def end(number: int, _: object) -> None:
        office.is_ending = True
        signal.signal(number, before[signal.Signals(number)])

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ways_of(settings: Settings) -> Ways:
    """All ways that are set up, to people as the contacts are now."""
    from site_builder.alerts import slack_client  # noqa: PLC0415 # what both need is slow
    from site_builder.alerts.channels import Ways  # noqa: PLC0415
    from site_builder.alerts.config_files import contacts_of  # noqa: PLC0415

    slack = settings.alerts.slack
    direct = (lambda member, message: slack_client.send(slack, member, message)) if slack.bot_token else None
    return Ways(settings, contacts_of(settings), direct)


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """One sender at a time; the kernel frees the lock, however it ends."""
    with opened(state) as folder:
        handle = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        if not locks.taken(handle):
            message = "another process sends just now"
            raise Busy(message)
        yield
    finally:
        os.close(handle)


def start(settings: Settings) -> subprocess.Popen[bytes]:
    """Begin to send, in a process that nobody waits for; what is set goes by its stdin: there are passwords in it."""
    from site_builder.core.parallel import room  # noqa: PLC0415

    command, environment = own_process.command("site_builder.alerts", "sender", "gpuboard alerts run")
    with room() as told:
        told.write(packed(settings))
        told.seek(0)
        # in a session of its own, or it would end with the builder; without pipes of ours, or cron would wait for it
        return subprocess.Popen(
            command,
            stdin=told,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def packed(settings: Settings) -> bytes:
    """The settings for the other process; this machine's own zone, which has no name, it finds itself."""
    zone = settings.zone
    zone_name = "UTC" if zone is timezone.utc else getattr(zone, "key", None) or getattr(zone, "_filename", None)
    names = {name: value for name, value in list_pairs(settings).items() if name != "zone"}
    # unlike orjson, it hands over the name of a folder that is no UTF-8
    return json.dumps([names, zone_name if isinstance(zone_name, str) else ""], default=simplify).encode()


def unpacked(content: bytes) -> Settings:
    """The same there."""
    from site_builder.config.conf_file import zone_of  # noqa: PLC0415

    names, zone_name = json.loads(content)
    try:
        zone = timezone.utc if zone_name == "UTC" else zone_of(zone_name, os.environ)
    except ValueError:
        zone = zone_of("", os.environ)
    return decode_dataclass(Settings, zone=zone)(names)  # type: ignore[no-any-return]


def main() -> None:
    """The process beside the builder; why it ended too soon goes to the log, without the words of others."""
    signal.alarm(LIVES_FOR)  # whatever hangs: the kernel ends it, and frees the lock
    settings = unpacked(sys.stdin.buffer.read())
    try:
        deliver(settings)
    except Busy:
        return
    except Unwritable as why:
        note(settings, str(why))
    except Exception as error:
        note(settings, f"a fault of gpuboard's own ({type(error).__name__})")


def note(settings: Settings, why: str) -> None:
    """A line of the log."""
    from site_builder.core.log_file import Log  # noqa: PLC0415

    Log(settings.state).write(datetime.now(settings.zone), f"alerts could not be sent: {why}")
