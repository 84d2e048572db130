"""comments.json where it lives in Consul: read there, and written by check-and-set; data/ has a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from site_builder.model import KvAccess
from site_builder.readers.kv import LONGEST_VALUE
from site_builder.sources import files, kv_copies, ledger
from site_builder.sources.consul_api import Unusable
from site_builder.sources.kv_store import KvStore

KEY = f"data/{ledger.FILE}"


class KvLedger(ledger.Ledger):
    """The bookings of several web hosts; the log is that of this one."""

    def __init__(self, data: Path, access: KvAccess) -> None:
        """The folder of the copy and the log, and where the bookings are."""
        super().__init__(data)
        self.access, self.store = access, KvStore(access)
        self.most = LONGEST_VALUE
        self.index = 0

    def read(self) -> bytes:
        """The bookings as Consul has them; before anybody booked there, those of data/, which are then put there."""
        try:
            found = self.store.get(KEY)
        except Unusable as why:
            message = f"{self.access.where} {why}: bookings live there, and nothing is written until it answers"
            raise ledger.Unwritable(message) from None
        if found is None:
            self.index = 0
            return super().read()
        self.index = found.moved
        if not found.content.strip() and ledger.has_bookings(self.folder / ledger.GOOD):
            message = (
                f"{self.store.data}{ledger.FILE} is empty in Consul, though {self.folder / ledger.GOOD} has bookings"
            )
            raise ledger.Unwritable(f"{message}: put that there with `consul kv put`, or write {{}}")
        return found.content if found.content.strip() else b"{}\n"

    def glance(self) -> bytes:
        """The same for somebody who only looks: while Consul cannot be asked, the copy serves."""
        try:
            return self.read()
        except ledger.Unwritable:
            return super().read()

    def write(self, content: bytes) -> bool:
        """Put the new content in the place of what was read; False where that is no longer what stands there."""
        with ledger.opened(self.folder) as folder:
            self.like(folder)  # who may not write the copy may not book either
        if len(content) > self.most:
            message = f"comments.json would have {len(content)} bytes, and Consul takes no more than {self.most}"
            raise ledger.Unwritable(message)
        try:
            if not self.store.put(KEY, content, cas=self.index):
                return False
        except Unusable as why:
            self.check_written(content, str(why))
        with suppress(
            OSError, files.Refused, ledger.Unwritable
        ):  # it is booked; the next build renews it, or tells why
            kv_copies.write(self.data, ledger.FILE, content)
        return True

    def check_written(self, content: bytes, why: str) -> None:
        """Find out whether it was written, where the answer to that was lost."""
        try:
            found = self.store.get(KEY)
        except Unusable:
            found = None
        if found is None or found.content != content:
            # another may have written since then what has ours in it
            same = found is not None and found.moved == self.index
            sure = "and nothing was written so far" if same else "so that nobody knows whether it was written"
            message = f"{self.access.where} {why}, {sure}: look again"
            raise ledger.Unwritable(message)


def ledger_of(data: Path, access: KvAccess | None) -> ledger.Ledger:
    """The bookings, wherever they live."""
    return KvLedger(data, access) if access else ledger.Ledger(data)


@contextmanager
def locked(data: Path, access: KvAccess | None) -> Iterator[ledger.Ledger]:
    """The same for us alone, on this machine."""
    with ledger.locked(data) as book:
        yield KvLedger(data, access) if access else book
