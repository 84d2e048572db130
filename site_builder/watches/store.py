"""watches.json as it is read and written: beside the bookings, with their lock and the same care; or in Consul."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from site_builder.bookings import consul_store
from site_builder.bookings import store as booking_store
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import MAX_VALUE_BYTES, KvStore
from site_builder.core import files
from site_builder.core.files import find_booking_folder
from site_builder.core.locks import StorageError
from site_builder.core.model import KvAccess
from site_builder.watches import parser

WATCHES_FILE = booking_store.WATCHES_FILE
MAX_WATCHES_BYTES = MAX_VALUE_BYTES
WATCHES_KEY = f"data/{WATCHES_FILE}"
MAX_ATTEMPTS = 5
WatchEntries = list[object]


class WatchStore:
    """The file of one data folder, or what Consul has of it."""

    def __init__(self, data: Path, access: KvAccess | None = None) -> None:
        """Where it stands."""
        self.data_folder = data
        self.folder = find_booking_folder(data)
        self.kv_store = KvStore(access) if access else None
        self.access = access
        self.modify_index = 0
        self.signature: files.FileSignature | None = None

    def read_local_or_empty(self) -> bytes:
        """What this machine has of it, for somebody who only looks; one that cannot be read is empty."""
        try:
            return self.read_local()
        except StorageError:
            return b""

    def change(
        self, make: Callable[[WatchEntries], WatchEntries], patience: float = booking_store.LOCK_TIMEOUT_S
    ) -> None:
        """Make other entries of those that there are; one at a time, and whole or not at all."""
        for _ in range(MAX_ATTEMPTS):
            with booking_store.hold_data_lock(self.data_folder, patience) as book:
                self.folder = book.folder
                before = self.read()
                try:
                    entries = parser.parse_watch_entries(before)
                except parser.WatchFileError as why:
                    message = f"{self.folder / WATCHES_FILE} cannot be read: {why}; correct it, or remove it"
                    raise StorageError(message) from None
                after = make(list(entries))
                if after == entries or self.write(parser.serialize_watches(after)):
                    return
        message = f"{self.folder / WATCHES_FILE} was changed by others {MAX_ATTEMPTS} times meanwhile: try again"
        raise StorageError(message)

    def read(self) -> bytes:
        """All of it as it is now."""
        found = None
        if self.kv_store and self.access:
            try:
                found = self.kv_store.get(WATCHES_KEY)
            except ConsulUnavailableError as why:
                message = f"{self.access.where} {why}: watches live there, and nothing is written until it answers"
                raise StorageError(message) from None
            self.modify_index = found.modify_index if found else 0
        return self.read_local() if found is None else found.content

    def read_local(self) -> bytes:
        """The same of the file."""
        self.signature, content = booking_store.read_data_file(self.folder, WATCHES_FILE, MAX_WATCHES_BYTES)
        return content

    def write(self, content: bytes) -> bool:
        """Put it in the place of what was read; False where that is no longer what stands there."""
        if len(content) > MAX_WATCHES_BYTES:
            message = f"{WATCHES_FILE} is full: it may have {MAX_WATCHES_BYTES} bytes"
            raise StorageError(message)
        with booking_store.open_data_folder(self.folder) as folder:
            like = self.find_owner(folder)
            if self.kv_store:
                return self.write_to_consul(content)
            path = self.folder / WATCHES_FILE
            return booking_store.replace_data_file(
                folder, path, content, like, lambda: files.read_signature(WATCHES_FILE, folder) == self.signature
            )

    def write_to_consul(self, content: bytes) -> bool:
        """The same in Consul; the copy here is renewed with it."""
        try:
            written = self.kv_store is not None and self.kv_store.put(WATCHES_KEY, content, cas=self.modify_index)
        except ConsulUnavailableError as why:
            where = self.access.where if self.access else "Consul"
            message = f"{where} {why}, so that nobody knows whether it was written: look again"
            raise StorageError(message) from None
        if written:
            with suppress(OSError, files.FileRefusedError, StorageError):  # the next build renews it, or tells why
                consul_store.write_consul_copy(self.data_folder, WATCHES_FILE, content)
        return written

    def find_owner(self, folder: int) -> os.stat_result:
        """Whose the new file shall be: as the old one, or as that of the bookings; who may not book may not watch."""
        for name in (WATCHES_FILE, booking_store.BOOKINGS_FILE):
            with suppress(FileNotFoundError):
                like = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not os.access(name, os.W_OK, dir_fd=folder):
                    owner = booking_store.find_owner_name(like)
                    message = f"{self.folder / name} belongs to {owner}, and you may not write it: {booking_store.ASK_ADMIN_HINT}"
                    raise StorageError(message)
                return like
        return os.fstat(folder)
