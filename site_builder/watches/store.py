"""watches.json as it is read and written: beside the bookings, with their lock and the same care; or in Consul."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from site_builder.bookings import consul_copies
from site_builder.bookings import store as booking_store
from site_builder.bookings.store import Unwritable
from site_builder.consul.client import Unusable
from site_builder.consul.kv import KvStore
from site_builder.consul.kv_reply import LONGEST_VALUE
from site_builder.core import files
from site_builder.core.model import KvAccess
from site_builder.core.shared_folder import booking_folder
from site_builder.watches import parser

FILE = booking_store.WATCHES
LIMIT = LONGEST_VALUE
KEY = f"data/{FILE}"
TRIES = 5
Entries = list[object]


class WatchList:
    """The file of one data folder, or what Consul has of it."""

    def __init__(self, data: Path, access: KvAccess | None = None) -> None:
        """Where it stands."""
        self.data = data
        self.folder = booking_folder(data)
        self.store = KvStore(access) if access else None
        self.access = access
        self.index = 0
        self.signature: files.Signature | None = None

    def glance(self) -> bytes:
        """What this machine has of it, for somebody who only looks; one that cannot be read is empty."""
        try:
            return self.here()
        except Unwritable:
            return b""

    def change(self, make: Callable[[Entries], Entries], patience: float = booking_store.PATIENCE) -> None:
        """Make other entries of those that there are; one at a time, and whole or not at all."""
        for _ in range(TRIES):
            with booking_store.locked(self.data, patience) as book:
                self.folder = book.folder
                before = self.read()
                try:
                    entries = parser.entries(before)
                except parser.Unreadable as why:
                    message = f"{self.folder / FILE} cannot be read: {why}; correct it, or remove it"
                    raise Unwritable(message) from None
                after = make(list(entries))
                if after == entries or self.write(parser.written(after)):
                    return
        message = f"{self.folder / FILE} was changed by others {TRIES} times meanwhile: try again"
        raise Unwritable(message)

    def read(self) -> bytes:
        """All of it as it is now."""
        found = None
        if self.store and self.access:
            try:
                found = self.store.get(KEY)
            except Unusable as why:
                message = f"{self.access.where} {why}: watches live there, and nothing is written until it answers"
                raise Unwritable(message) from None
            self.index = found.moved if found else 0
        return self.here() if found is None else found.content

    def here(self) -> bytes:
        """The same of the file."""
        self.signature, content = booking_store.look(self.folder, FILE, LIMIT)
        return content

    def write(self, content: bytes) -> bool:
        """Put it in the place of what was read; False where that is no longer what stands there."""
        if len(content) > LIMIT:
            message = f"{FILE} is full: it may have {LIMIT} bytes"
            raise Unwritable(message)
        with booking_store.opened(self.folder) as folder:
            like = self.like(folder)
            if self.store:
                return self.put(content)
            path = self.folder / FILE
            return booking_store.replace(
                folder, path, content, like, lambda: files.look(FILE, folder) == self.signature
            )

    def put(self, content: bytes) -> bool:
        """The same in Consul; the copy here is renewed with it."""
        try:
            written = self.store is not None and self.store.put(KEY, content, cas=self.index)
        except Unusable as why:
            where = self.access.where if self.access else "Consul"
            message = f"{where} {why}, so that nobody knows whether it was written: look again"
            raise Unwritable(message) from None
        if written:
            with suppress(OSError, files.Refused, Unwritable):  # the next build renews it, or tells why
                consul_copies.write(self.data, FILE, content)
        return written

    def like(self, folder: int) -> os.stat_result:
        """Whose the new file shall be: as the old one, or as that of the bookings; who may not book may not watch."""
        for name in (FILE, booking_store.FILE):
            with suppress(FileNotFoundError):
                like = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not os.access(name, os.W_OK, dir_fd=folder):
                    owner = booking_store.owner(like)
                    message = f"{self.folder / name} belongs to {owner}, and you may not write it: {booking_store.ASK}"
                    raise Unwritable(message)
                return like
        return os.fstat(folder)
