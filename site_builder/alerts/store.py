"""Where the alerts' book is kept: state/alerts.json, or where builders share Consul's KV store, a key of it.

One writer at a time: by a lock that the kernel frees, or by check-and-set. A write has reached the disk when it is
done: what was claimed there and sent must not be sent again after the power failed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from site_builder.alerts import state_format
from site_builder.alerts.model import Book, Known
from site_builder.consul.client import Unusable
from site_builder.consul.kv import KvStore
from site_builder.consul.kv_reply import LONGEST_VALUE
from site_builder.core import files, locks, own_files
from site_builder.core.model import KvAccess

FILE = "alerts.json"
LOCK = "alerts.lock"
DAMAGED = "alerts.damaged.json"
# Seconds that we wait for another writer, each of whom takes some milliseconds.
PATIENCE = 5.0
LOOK_EVERY = 0.005
# The longest pause, in seconds, before we begin again after another one was quicker.
PAUSE = 0.1
# How much is kept in any case, when there is no room for all of it; and of the people whom something affects.
FEWEST = 20
FEW = 3
Change = Callable[[Book], Book]


class Unwritable(Exception):
    """Why the book cannot be read or written, in one sentence."""


class AlertBook:
    """The book in a file; `problem` is what was wrong with it when it was last read."""

    def __init__(self, state: Path) -> None:
        """The folder in which it stands."""
        self.state = state
        self.where = str(state / FILE)
        self.most = state_format.LONGEST
        self.problem = ""
        self.seen: tuple[files.Signature | None, Book] | None = None

    def read(self) -> Book:
        """The book as it is now; it is the same object as before where nothing was written since."""
        try:
            with opened(self.state) as folder:
                signature = files.look(FILE, folder)
                if self.seen and self.seen[0] == signature:
                    return self.seen[1]
                data = files.read(FILE, folder, self.most, own_files.check_file)[1] if signature else b""
        except files.Refused as why:
            raise Unwritable(f"{self.where} cannot be read: {why}") from None
        book = self.understood(data) if data or not signature else self.from_copy("is empty") or self.emptied()
        self.seen = signature, book
        return book

    def emptied(self) -> Book:
        """Begin anew where the file was emptied and there is no copy of it."""
        self.problem = "is empty, and there is no good copy of it: begun anew, and what was so already is not told"
        return Book()

    def from_copy(self, why: str) -> Book | None:
        """Return the last good copy, if there is one; it is never older than the file was."""
        content = own_files.read_copy(self.state / FILE, self.most)
        copy = state_format.read(content)
        if not content or copy.problem:
            return None
        self.problem = f"{why}: {own_files.USED}"
        return copy.book

    def understood(self, data: bytes) -> Book:
        """What stands there; one that is damaged is put aside, for whoever wants to know."""
        found = state_format.read(data)
        if found.newer:
            raise Unwritable(f"{self.where} {found.problem}")
        if found.problem:
            self.problem = found.problem
            with suppress(OSError):
                files.replace(self.state / DAMAGED, data, 0o600)
            return self.from_copy("is damaged") or found.book
        return found.book

    def change(self, change: Change, patience: float = PATIENCE) -> Book:
        """Read it, change it, write it; nobody else changes it meanwhile."""
        with locked(self.state, patience):
            before = self.read()
            after = change(before)
            if after != before:
                after, content = self.fitting(after)
                self.write(content)
                with opened(self.state) as folder:
                    self.seen = files.look(FILE, folder), after
        return after

    def fitting(self, book: Book) -> tuple[Book, bytes]:
        """The book and its bytes; where there is no room for all, the oldest of the history goes, then of the rest."""
        content = self.bytes_of(book)
        while len(content) > self.most and len(book.history) > FEWEST:
            book = book._replace(history=book.history[len(book.history) // 2 :])
            content = self.bytes_of(book)
        while len(content) > self.most and len(book.once) > FEWEST:  # else nothing could be told at all
            later = sorted(book.once.items(), key=lambda item: item[1])[len(book.once) // 2 :]
            book = book._replace(once=dict(later))
            content = self.bytes_of(book)
        if len(content) > self.most:
            book = with_few_names(book)
            content = self.bytes_of(book)
        while len(content) > self.most and (fewer := without_most(book)) != book:
            book = fewer
            content = self.bytes_of(book)
        if len(content) > self.most:
            message = f"{self.where} would have {len(content)} bytes, and {self.most} is the limit"
            raise Unwritable(message)
        return book, content

    def bytes_of(self, book: Book) -> bytes:
        """As it is kept."""
        return state_format.write(book)

    def write(self, content: bytes) -> None:
        """Whole or not at all, and on the disk when it is done."""
        try:
            files.replace(own_files.copy_of(self.state / FILE), content, 0o600)
            with opened(self.state) as folder:
                put(folder, FILE, content)
        except OSError as error:
            raise Unwritable(f"{self.where} cannot be written: {error.strerror}") from None


class KvAlertBook(AlertBook):
    """The book of several builders, in Consul."""

    def __init__(self, state: Path, access: KvAccess) -> None:
        """Where a damaged one is put aside, and whose store it is."""
        super().__init__(state)
        self.access, self.store = access, KvStore(access)
        self.where = f"{access.prefix}/{FILE} in Consul"
        self.most = LONGEST_VALUE
        self.index: int | None = None
        self.last = Book()

    def read(self) -> Book:
        """The book as Consul has it."""
        try:
            found = self.store.get(FILE)
        except Unusable as why:
            raise Unwritable(f"{self.access.where} {why}: what alerts remember is there") from None
        index = found.moved if found else 0
        if index != self.index:
            self.last = self.understood(found.content if found else b"")
            self.index = index
        return self.last

    def change(self, change: Change, patience: float = PATIENCE) -> Book:
        """Read it, change it, and write it if nobody else did meanwhile; else once more."""
        end = time.monotonic() + patience
        while True:
            before = self.read()
            after = change(before)
            if after == before:
                return before
            after, content = self.fitting(after)
            if self.set(content):
                return after
            if time.monotonic() > end:
                message = f"{self.where} is written by others again and again"
                raise Unwritable(message)
            time.sleep(random.uniform(0, PAUSE))  # noqa: S311 # so that they do not meet again

    def from_copy(self, why: str) -> Book | None:  # noqa: ARG002 # Consul keeps copies of its own
        """Return nothing: a copy in state/ is from before, or another builder's."""
        return None

    def set(self, content: bytes) -> bool:
        """Whether it was written; where the answer was lost, what stands there tells."""
        try:
            return self.store.put(FILE, content, cas=self.index)
        except Unusable as why:
            with suppress(Unusable):
                found = self.store.get(FILE)
                if found and found.content == content:
                    return True
            raise Unwritable(f"{self.access.where} {why}: nobody knows whether it was written") from None

    def bytes_of(self, book: Book) -> bytes:
        """As it is kept there."""
        return state_format.write(book, packed=True)


def with_few_names(book: Book) -> Book:
    """The book, where everything affects a few people at the most: a host can claim that anybody is on it."""
    known = {
        key: one._replace(matter=one.matter._replace(whose=one.matter.whose[:FEW], people=one.matter.people[:FEW]))
        for key, one in book.known.items()
    }
    letters = tuple(
        one._replace(alerts=tuple(alert._replace(people=alert.people[:FEW]) for alert in one.alerts))
        for one in book.letters
    )
    return book._replace(known=known, letters=letters)


def without_most(book: Book) -> Book:
    """The book with half of what is known of those hosts of which most is, so that there is room for others."""
    counts = Counter(one.matter.host for one in book.known.values())
    most = max(FEWEST, max(counts.values(), default=0) // 2)
    room = Counter(dict.fromkeys(counts, most))
    kept: dict[str, Known] = {}
    for key, one in book.known.items():
        if room[one.matter.host] > 0:
            room[one.matter.host] -= 1
            kept[key] = one
    return book._replace(known=kept)


def book_of(state: Path, access: KvAccess | None) -> AlertBook:
    """The book, wherever it is kept."""
    return KvAlertBook(state, access) if access else AlertBook(state)


@contextmanager
def opened(state: Path) -> Iterator[int]:
    """The folder, if it is ours alone."""
    try:
        own_files.check_folder(state)
        folder = os.open(state, files.TOP)
    except own_files.ForeignFolderError as why:
        raise Unwritable(str(why)) from None
    except FileNotFoundError:
        raise Unwritable(f"there is no folder {state}: `gpuboard build` makes it, or --state names another") from None
    except OSError as error:
        raise Unwritable(f"{state} cannot be read: {error.strerror}") from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def locked(state: Path, patience: float) -> Iterator[None]:
    """For us alone; the kernel frees it, however we end."""
    with opened(state) as folder:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(LOCK, flags, 0o600, dir_fd=folder)
        except OSError as error:
            raise Unwritable(f"{state / LOCK} cannot be opened: {error.strerror}") from None
    try:
        try:
            if not locks.wait(handle, time.monotonic() + patience, LOOK_EVERY):
                message = f"somebody else has been writing {state / FILE} for {patience:.0f} s"
                raise Unwritable(message)
        except OSError as error:
            raise Unwritable(f"{state / LOCK} cannot be locked: {error.strerror}") from None
        yield
    finally:
        os.close(handle)


def put(folder: int, name: str, content: bytes) -> None:
    """Write a file of ours, for somebody who holds the lock."""
    new = f".{name}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise
