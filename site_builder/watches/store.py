"""Read and write watches.json, beside the bookings and with their lock, or in Consul."""

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
    """The watches of one data folder, or of Consul."""

    def __init__(self, data: Path, access: KvAccess | None = None) -> None:
        self.data_folder = data
        self.folder = find_booking_folder(data)
        self.kv_store = KvStore(access) if access else None
        self.access = access
        self.modify_index = 0
        self.signature: files.FileSignature | None = None

    def read_local_or_empty(self) -> bytes:
        """Read the file of this machine; return nothing if it cannot be read."""
        try:
            return self.read_local()
        except StorageError:
            return b""

    def change(
        self, change_entries: Callable[[WatchEntries], WatchEntries], timeout_s: float = booking_store.LOCK_TIMEOUT_S
    ) -> None:
        """Replace the entries by what `change_entries` returns, while nobody else writes."""
        for _ in range(MAX_ATTEMPTS):
            with booking_store.hold_data_lock(self.data_folder, timeout_s) as locked:
                self.folder = locked.folder
                before = self.read()
                try:
                    entries = parser.parse_watch_entries(before)
                except parser.WatchFileError as error:
                    message = f"{self.folder / WATCHES_FILE} cannot be read: {error}; correct it, or remove it"
                    raise StorageError(message) from None
                after = change_entries(list(entries))
                if after == entries or self.write(parser.serialize_watches(after)):
                    return
        message = f"{self.folder / WATCHES_FILE} was changed by others {MAX_ATTEMPTS} times meanwhile: try again"
        raise StorageError(message)

    def read(self) -> bytes:
        entry = None
        if self.kv_store and self.access:
            try:
                entry = self.kv_store.get(WATCHES_KEY)
            except ConsulUnavailableError as error:
                message = f"{self.access.where} {error}: watches live there, and nothing is written until it answers"
                raise StorageError(message) from None
            self.modify_index = entry.modify_index if entry else 0
        return self.read_local() if entry is None else entry.content

    def read_local(self) -> bytes:
        self.signature, content = booking_store.read_data_file(self.folder, WATCHES_FILE, MAX_WATCHES_BYTES)
        return content

    def write(self, content: bytes) -> bool:
        """Replace what was read; return False if somebody else wrote meanwhile."""
        if len(content) > MAX_WATCHES_BYTES:
            raise StorageError(f"{WATCHES_FILE} is full: it may have {MAX_WATCHES_BYTES} bytes")
        with booking_store.open_data_folder(self.folder) as folder:
            owner = self.find_owner(folder)
            if self.kv_store:
                return self.write_to_consul(content)
            path = self.folder / WATCHES_FILE
            return booking_store.replace_data_file(
                folder, path, content, owner, lambda: files.read_signature(WATCHES_FILE, folder) == self.signature
            )

    def write_to_consul(self, content: bytes) -> bool:
        """Replace what was read in Consul, and update the copy of this machine."""
        try:
            written = self.kv_store is not None and self.kv_store.put(WATCHES_KEY, content, cas=self.modify_index)
        except ConsulUnavailableError as error:
            where = self.access.where if self.access else "Consul"
            message = f"{where} {error}, so that nobody knows whether it was written: look again"
            raise StorageError(message) from None
        if written:
            with suppress(
                OSError, files.FileRefusedError, StorageError
            ):  # the next build updates it, or reports why not
                consul_store.write_consul_copy(self.data_folder, WATCHES_FILE, content)
        return written

    def find_owner(self, folder: int) -> os.stat_result:
        """Return the status of the file whose owner and mode the new one gets: the old one, or the bookings.

        Whoever may not book may not watch either.
        """
        for name in (WATCHES_FILE, booking_store.BOOKINGS_FILE):
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not os.access(name, os.W_OK, dir_fd=folder):
                    reason = f"belongs to {booking_store.find_owner_name(status)}, and you may not write it"
                    raise StorageError(f"{self.folder / name} {reason}: {booking_store.ASK_ADMIN_HINT}")
                return status
        return os.fstat(folder)
