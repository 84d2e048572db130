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
from site_builder.core.data_folder import BOOKINGS_FILE, WATCHES_FILE, find_bookings_folder_in_data
from site_builder.core.model import ConsulAccess, Problem

COPIED_FILES = (BOOKINGS_FILE, WATCHES_FILE, "hosts.txt", "hosts.json", "aliases.csv", "gpu-names.csv")
BY_HAND_SUFFIX = ".by-hand"
# Files that gpuboard makes in data/ itself: a host of such a name would take their place.
RESERVED_NAMES = frozenset(
    {store.LAST_GOOD_FILE, store.LOG_FILE, f"{store.LOG_FILE}.1", *(f"{name}{BY_HAND_SUFFIX}" for name in COPIED_FILES)}
)


class ConsulStoreCopies:
    """Local copies of the files of a data folder that live in Consul."""

    def __init__(self, data: Path, kv_store: KvStore) -> None:
        self.data_folder, self.kv_store = data, kv_store
        self.known_versions: dict[str, tuple[int, files.FileSignature | None]] = {}

    def update_changed(self, indexes: Mapping[str, int]) -> list[Problem]:
        """Renew the copies that changed in Consul, or that somebody changed here."""
        problems: list[Problem] = []
        failed: list[Problem] = []
        for name in COPIED_FILES:
            version = (indexes[name], self.read_copy_signature(name)) if name in indexes else None
            if version and version != self.known_versions.get(name) and not failed:
                failed = self.renew_copy(name)  # the others are then not asked for either: each would wait as long
            if (find_consul_store_folder(self.data_folder, name) / f"{name}{BY_HAND_SUFFIX}").exists():
                fault = f"was edited by hand, but is stored in Consul: your version is in data/{name}{BY_HAND_SUFFIX}"
                hint = f"store it with `consul kv put {self.kv_store.data_prefix}{name}`"
                if name == BOOKINGS_FILE:
                    hint = "use `gpuboard edit`"
                problems.append(Problem(f"data/{name}", f"{fault}; {hint}, and remove that file"))
        return problems + failed

    def read_copy_signature(self, name: str) -> files.FileSignature | None:
        try:
            with store.open_booking_store_folder(find_consul_store_folder(self.data_folder, name)) as folder:
                return files.read_signature(name, folder)
        except (files.FileRefusedError, locks.LockedFileError):
            return None

    def renew_copy(self, name: str) -> list[Problem]:
        """Renew a copy under the lock: a booking made here meanwhile is newer than Consul's first response."""
        try:
            with store.hold_booking_store_lock(self.data_folder, timeout_s=0):
                value = self.kv_store.get(f"data/{name}")
                if value is None:
                    return []
                write_consul_store_copy(self.data_folder, name, value.content)
                self.known_versions[name] = value.modify_index, self.read_copy_signature(name)
        except locks.LockedFileBusyError:
            return []  # who has it renews the copy
        except (ConsulUnavailableError, locks.LockedFileError, files.FileRefusedError, OSError) as error:
            reason = f"Consul {error}" if isinstance(error, ConsulUnavailableError) else error
            return [Problem(f"data/{name}", f"the copy of the data in Consul could not be updated: {reason}")]
        return []


def write_consul_store_copy(data: Path, name: str, content: bytes) -> None:
    """Write a copy, with the lock held; keep what somebody wrote there by hand beside it."""
    digest_name = f".{name}.copy"
    copy_folder = find_consul_store_folder(data, name)
    with store.open_booking_store_folder(copy_folder) as folder:
        present, known_digest = None, b""
        if files.read_signature(name, folder):
            present = files.read_file(name, folder, store.MAX_BOOKINGS_BYTES)[1]
        if files.read_signature(digest_name, folder):
            known_digest = files.read_file(digest_name, folder, 100)[1]
        owner_status = os.fstat(folder) if present is None else os.stat(name, dir_fd=folder, follow_symlinks=False)
        if present is not None and present != content and compute_consul_store_digest(present) != known_digest:
            store.replace_booking_store_file(folder, copy_folder / f"{name}{BY_HAND_SUFFIX}", present, owner_status)
        digest = compute_consul_store_digest(content)
        if known_digest != digest:
            store.replace_booking_store_file(folder, copy_folder / digest_name, digest, owner_status)
        if present != content:
            store.replace_booking_store_file(folder, copy_folder / name, content, owner_status)


def find_consul_store_folder(data: Path, name: str) -> Path:
    return find_bookings_folder_in_data(data) if name in {BOOKINGS_FILE, WATCHES_FILE} else data


def compute_consul_store_digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode()


BOOKINGS_KEY = f"data/{BOOKINGS_FILE}"


class ConsulBookingStore(store.BookingStore):
    """The bookings of several web hosts, in Consul; the log is that of this host."""

    def __init__(self, data: Path, access: ConsulAccess) -> None:
        super().__init__(data)
        self.access, self.kv_store = access, KvStore(access)
        self.max_bytes = MAX_VALUE_BYTES
        self.modify_index = 0

    def read(self) -> bytes:
        """Read the bookings from Consul; before anybody booked there, those of data/, which are then put there."""
        try:
            value = self.kv_store.get(BOOKINGS_KEY)
        except ConsulUnavailableError as error:
            message = f"{self.access.where} {error}: bookings are stored there, and nothing is written until it answers"
            raise locks.LockedFileError(message) from None
        if value is None:
            self.modify_index = 0
            return super().read()
        self.modify_index = value.modify_index
        if not value.content.strip() and store.has_any_bookings(self.folder / store.LAST_GOOD_FILE):
            key, last_good = f"{self.kv_store.data_prefix}{BOOKINGS_FILE}", self.folder / store.LAST_GOOD_FILE
            message = f"{key} is empty in Consul, though {last_good} has bookings"
            raise locks.LockedFileError(f"{message}: store that with `consul kv put`, or write {{}}")
        return value.content if value.content.strip() else b"{}\n"

    def read_unlocked(self) -> bytes:
        """Read without changing anything; from the copy while Consul does not respond."""
        try:
            return self.read()
        except locks.LockedFileError:
            return super().read()

    def write(self, content: bytes) -> bool:
        """Replace the content that was read; return False if it has changed since."""
        with store.open_booking_store_folder(self.folder) as folder:
            self.check_owner(folder)  # who may not write the copy may not book either
        if len(content) > self.max_bytes:
            message = f"comments.json would have {len(content)} bytes; Consul's limit is {self.max_bytes}"
            raise locks.LockedFileError(message)
        try:
            if not self.kv_store.put(BOOKINGS_KEY, content, cas=self.modify_index):
                return False
        except ConsulUnavailableError as error:  # it may be written all the same
            value = None
            with suppress(ConsulUnavailableError):
                value = self.kv_store.get(BOOKINGS_KEY)
            if value is None or value.content != content:
                # another may have written since then what has ours in it
                certainty = "so the change may be missing"
                if value and value.modify_index == self.modify_index:
                    certainty = "and nothing has been written"
                raise locks.LockedFileError(f"{self.access.where} {error}, {certainty}: check the bookings") from None
        # it is booked; the next build renews the copy, or reports why not
        with suppress(OSError, files.FileRefusedError, locks.LockedFileError):
            write_consul_store_copy(self.data_folder, BOOKINGS_FILE, content)
        return True


def open_consul_or_local_store(data: Path, access: ConsulAccess | None) -> store.BookingStore:
    return ConsulBookingStore(data, access) if access else store.BookingStore(data)


@contextmanager
def hold_consul_booking_lock(data: Path, access: ConsulAccess | None) -> Iterator[store.BookingStore]:
    """Hold the lock on this machine, and yield the bookings, wherever they live."""
    with store.hold_booking_store_lock(data) as booking_store:
        yield ConsulBookingStore(data, access) if access else booking_store
