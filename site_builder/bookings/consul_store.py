"""comments.json where it lives in Consul: read there, and written by check-and-set; data/ has a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from site_builder.bookings import consul_copies, store
from site_builder.consul.client import Unusable
from site_builder.consul.kv import KvStore
from site_builder.consul.kv_reply import LONGEST_VALUE
from site_builder.core import files
from site_builder.core.model import KvAccess

KEY = f"data/{store.FILE}"


class KvLedger(store.Ledger):
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
            raise store.Unwritable(message) from None
        if found is None:
            self.index = 0
            return super().read()
        self.index = found.moved
        if not found.content.strip() and store.has_bookings(self.folder / store.GOOD):
            message = (
                f"{self.store.data}{store.FILE} is empty in Consul, though {self.folder / store.GOOD} has bookings"
            )
            raise store.Unwritable(f"{message}: put that there with `consul kv put`, or write {{}}")
        return found.content if found.content.strip() else b"{}\n"

    def glance(self) -> bytes:
        """The same for somebody who only looks: while Consul cannot be asked, the copy serves."""
        try:
            return self.read()
        except store.Unwritable:
            return super().read()

    def write(self, content: bytes) -> bool:
        """Put the new content in the place of what was read; False where that is no longer what stands there."""
        with store.opened(self.folder) as folder:
            self.like(folder)  # who may not write the copy may not book either
        if len(content) > self.most:
            message = f"comments.json would have {len(content)} bytes, and Consul takes no more than {self.most}"
            raise store.Unwritable(message)
        try:
            if not self.store.put(KEY, content, cas=self.index):
                return False
        except Unusable as why:
            self.check_written(content, str(why))
        with suppress(OSError, files.Refused, store.Unwritable):  # it is booked; the next build renews it, or tells why
            consul_copies.write(self.data, store.FILE, content)
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
            raise store.Unwritable(message)


def ledger_of(data: Path, access: KvAccess | None) -> store.Ledger:
    """The bookings, wherever they live."""
    return KvLedger(data, access) if access else store.Ledger(data)


@contextmanager
def locked(data: Path, access: KvAccess | None) -> Iterator[store.Ledger]:
    """The same for us alone, on this machine."""
    with store.locked(data) as book:
        yield KvLedger(data, access) if access else book
