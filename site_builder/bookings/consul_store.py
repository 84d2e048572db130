"""Bookings in Consul's KV store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from site_builder.bookings import store
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import MAX_VALUE_BYTES, KvStore
from site_builder.core import files, locks
from site_builder.core.files import find_booking_folder
from site_builder.core.model import KvAccess, Problem

COPIED_FILES = (store.BOOKINGS_FILE, store.WATCHES_FILE, "hosts.txt", "hosts.json", "aliases.csv", "gpu-names.csv")
BY_HAND_SUFFIX = ".by-hand"
# Files that gpuboard makes in data/ itself: a host of such a name would take their place.
RESERVED_NAMES = frozenset(
    {store.LAST_GOOD_FILE, store.LOG_FILE, f"{store.LOG_FILE}.1", *(f"{name}{BY_HAND_SUFFIX}" for name in COPIED_FILES)}
)


class ConsulCopies:
    """Those of one data folder."""

    def __init__(self, data: Path, store: KvStore) -> None:
        """Which folder, and where they live."""
        self.data_folder, self.kv_store = data, store
        self.known_versions: dict[str, tuple[int, files.FileSignature | None]] = {}

    def update_changed(self, indexes: Mapping[str, int]) -> list[Problem]:
        """Renew those that moved in Consul, or that somebody changed here."""
        problems: list[Problem] = []
        failed: list[Problem] = []
        for name in COPIED_FILES:
            if (
                name in indexes
                and self.known_versions.get(name) != (indexes[name], self.read_copy_signature(name))
                and not failed
            ):
                failed = self.renew_copy(name)  # the others are then not asked for either: each would wait as long
            if (find_copy_folder(self.data_folder, name) / f"{name}{BY_HAND_SUFFIX}").exists():
                what = f"was changed by hand, but lives in Consul: what you wrote is in data/{name}{BY_HAND_SUFFIX}"
                help_ = (
                    "use `gpuboard edit`"
                    if name == store.BOOKINGS_FILE
                    else f"put it with `consul kv put {self.kv_store.data_prefix}{name}`"
                )
                problems.append(Problem(f"data/{name}", f"{what}; {help_}, and remove that file"))
        return problems + failed

    def read_copy_signature(self, name: str) -> files.FileSignature | None:
        """What tells one content of the copy from the next."""
        try:
            with store.open_data_folder(find_copy_folder(self.data_folder, name)) as folder:
                return files.read_signature(name, folder)
        except (files.FileRefusedError, locks.StorageError):
            return None

    def renew_copy(self, name: str) -> list[Problem]:
        """Ask once more, with the lock: whoever books here meanwhile has written what is newer than our answer."""
        try:
            with store.hold_data_lock(self.data_folder, patience=0):
                value = self.kv_store.get(f"data/{name}")
                if value is None:
                    return []
                write_consul_copy(self.data_folder, name, value.content)
                self.known_versions[name] = value.modify_index, self.read_copy_signature(name)
        except locks.StorageBusyError:
            return []  # who has it renews the copy
        except ConsulUnavailableError as why:
            return [Problem(f"data/{name}", f"the copy of what Consul has is not renewed: Consul {why}")]
        except (locks.StorageError, files.FileRefusedError, OSError) as why:
            return [Problem(f"data/{name}", f"the copy of what Consul has is not renewed: {why}")]
        return []


def write_consul_copy(data: Path, name: str, content: bytes) -> None:
    """Make the copy, for whoever holds the lock; what somebody wrote there by hand is kept beside it."""
    mark = f".{name}.copy"
    place = find_copy_folder(data, name)
    with store.open_data_folder(place) as folder:
        here = (
            files.read_file(name, folder, store.MAX_BOOKINGS_BYTES)[1] if files.read_signature(name, folder) else None
        )
        marked = files.read_file(mark, folder, 100)[1] if files.read_signature(mark, folder) else b""
        like = os.fstat(folder) if here is None else os.stat(name, dir_fd=folder, follow_symlinks=False)
        if here is not None and here != content and compute_copy_digest(here) != marked:
            store.replace_data_file(folder, place / f"{name}{BY_HAND_SUFFIX}", here, like, lambda: True)
        if marked != compute_copy_digest(content):
            store.replace_data_file(folder, place / mark, compute_copy_digest(content), like, lambda: True)
        if here != content:
            store.replace_data_file(folder, place / name, content, like, lambda: True)


def find_copy_folder(data: Path, name: str) -> Path:
    """Return the folder in which a copy stands."""
    return find_booking_folder(data) if name in {store.BOOKINGS_FILE, store.WATCHES_FILE} else data


def compute_copy_digest(content: bytes) -> bytes:
    """What tells one content from another."""
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode()


BOOKINGS_KEY = f"data/{store.BOOKINGS_FILE}"


class ConsulBookingStore(store.BookingStore):
    """The bookings of several web hosts; the log is that of this one."""

    def __init__(self, data: Path, access: KvAccess) -> None:
        """The folder of the copy and the log, and where the bookings are."""
        super().__init__(data)
        self.access, self.kv_store = access, KvStore(access)
        self.max_bytes = MAX_VALUE_BYTES
        self.modify_index = 0

    def read(self) -> bytes:
        """The bookings as Consul has them; before anybody booked there, those of data/, which are then put there."""
        try:
            found = self.kv_store.get(BOOKINGS_KEY)
        except ConsulUnavailableError as why:
            message = f"{self.access.where} {why}: bookings live there, and nothing is written until it answers"
            raise locks.StorageError(message) from None
        if found is None:
            self.modify_index = 0
            return super().read()
        self.modify_index = found.modify_index
        if not found.content.strip() and store.has_bookings(self.folder / store.LAST_GOOD_FILE):
            message = f"{self.kv_store.data_prefix}{store.BOOKINGS_FILE} is empty in Consul, though {self.folder / store.LAST_GOOD_FILE} has bookings"
            raise locks.StorageError(f"{message}: put that there with `consul kv put`, or write {{}}")
        return found.content if found.content.strip() else b"{}\n"

    def read_unlocked(self) -> bytes:
        """The same for somebody who only looks: while Consul cannot be asked, the copy serves."""
        try:
            return self.read()
        except locks.StorageError:
            return super().read()

    def write(self, content: bytes) -> bool:
        """Put the new content in the place of what was read; False where that is no longer what stands there."""
        with store.open_data_folder(self.folder) as folder:
            self.check_owner(folder)  # who may not write the copy may not book either
        if len(content) > self.max_bytes:
            message = f"comments.json would have {len(content)} bytes, and Consul takes no more than {self.max_bytes}"
            raise locks.StorageError(message)
        try:
            if not self.kv_store.put(BOOKINGS_KEY, content, cas=self.modify_index):
                return False
        except ConsulUnavailableError as why:
            self.verify_write(content, str(why))
        with suppress(
            OSError, files.FileRefusedError, locks.StorageError
        ):  # it is booked; the next build renews it, or tells why
            write_consul_copy(self.data_folder, store.BOOKINGS_FILE, content)
        return True

    def verify_write(self, content: bytes, why: str) -> None:
        """Find out whether it was written, where the answer to that was lost."""
        try:
            found = self.kv_store.get(BOOKINGS_KEY)
        except ConsulUnavailableError:
            found = None
        if found is None or found.content != content:
            # another may have written since then what has ours in it
            same = found is not None and found.modify_index == self.modify_index
            sure = "and nothing was written so far" if same else "so that nobody knows whether it was written"
            message = f"{self.access.where} {why}, {sure}: look again"
            raise locks.StorageError(message)


def open_booking_store(data: Path, access: KvAccess | None) -> store.BookingStore:
    """The bookings, wherever they live."""
    return ConsulBookingStore(data, access) if access else store.BookingStore(data)


@contextmanager
def hold_booking_lock(data: Path, access: KvAccess | None) -> Iterator[store.BookingStore]:
    """The same for us alone, on this machine."""
    with store.hold_data_lock(data) as book:
        yield ConsulBookingStore(data, access) if access else book
