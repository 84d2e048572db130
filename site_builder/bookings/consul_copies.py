"""The files that people write, where they live in Consul: data/ has a copy, and who changes that by hand is told.

`.NAME.copy` beside a copy has the digest of what Consul had, so that another content is known to be somebody's own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from site_builder.bookings import store
from site_builder.consul.client import Unusable
from site_builder.consul.kv import KvStore
from site_builder.core import files
from site_builder.core.model import Problem
from site_builder.core.shared_folder import booking_folder

PLAIN = (store.FILE, store.WATCHES, "hosts.txt", "hosts.json", "aliases.csv", "gpu-names.csv")
MINE = ".by-hand"
# Files that gpuboard makes in data/ itself: a host of such a name would take their place.
OTHERS = frozenset({store.GOOD, store.LOG, f"{store.LOG}.1", *(f"{name}{MINE}" for name in PLAIN)})


class Copies:
    """Those of one data folder."""

    def __init__(self, data: Path, store: KvStore) -> None:
        """Which folder, and where they live."""
        self.data, self.store = data, store
        self.known: dict[str, tuple[int, files.Signature | None]] = {}

    def look(self, indexes: Mapping[str, int]) -> list[Problem]:
        """Renew those that moved in Consul, or that somebody changed here."""
        problems: list[Problem] = []
        failed: list[Problem] = []
        for name in PLAIN:
            if name in indexes and self.known.get(name) != (indexes[name], self.signature(name)) and not failed:
                failed = self.renew(name)  # the others are then not asked for either: each would wait as long
            if (place_of(self.data, name) / f"{name}{MINE}").exists():
                what = f"was changed by hand, but lives in Consul: what you wrote is in data/{name}{MINE}"
                help_ = (
                    "use `gpuboard edit`"
                    if name == store.FILE
                    else f"put it with `consul kv put {self.store.data}{name}`"
                )
                problems.append(Problem(f"data/{name}", f"{what}; {help_}, and remove that file"))
        return problems + failed

    def signature(self, name: str) -> files.Signature | None:
        """What tells one content of the copy from the next."""
        try:
            with store.opened(place_of(self.data, name)) as folder:
                return files.look(name, folder)
        except (files.Refused, store.Unwritable):
            return None

    def renew(self, name: str) -> list[Problem]:
        """Ask once more, with the lock: whoever books here meanwhile has written what is newer than our answer."""
        try:
            with store.locked(self.data, patience=0):
                value = self.store.get(f"data/{name}")
                if value is None:
                    return []
                write(self.data, name, value.content)
                self.known[name] = value.moved, self.signature(name)
        except store.Busy:
            return []  # who has it renews the copy
        except Unusable as why:
            return [Problem(f"data/{name}", f"the copy of what Consul has is not renewed: Consul {why}")]
        except (store.Unwritable, files.Refused, OSError) as why:
            return [Problem(f"data/{name}", f"the copy of what Consul has is not renewed: {why}")]
        return []


def write(data: Path, name: str, content: bytes) -> None:
    """Make the copy, for whoever holds the lock; what somebody wrote there by hand is kept beside it."""
    mark = f".{name}.copy"
    place = place_of(data, name)
    with store.opened(place) as folder:
        here = files.read(name, folder, store.LIMIT)[1] if files.look(name, folder) else None
        marked = files.read(mark, folder, 100)[1] if files.look(mark, folder) else b""
        like = os.fstat(folder) if here is None else os.stat(name, dir_fd=folder, follow_symlinks=False)
        if here is not None and here != content and digest(here) != marked:
            store.replace(folder, place / f"{name}{MINE}", here, like, lambda: True)
        if marked != digest(content):
            store.replace(folder, place / mark, digest(content), like, lambda: True)
        if here != content:
            store.replace(folder, place / name, content, like, lambda: True)


def place_of(data: Path, name: str) -> Path:
    """Return the folder in which a copy stands."""
    return booking_folder(data) if name in {store.FILE, store.WATCHES} else data


def digest(content: bytes) -> bytes:
    """What tells one content from another."""
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode()
