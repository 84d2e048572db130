"""A file in data/ that people write: as it is now, or as it last could be read, which state/ keeps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic

from site_builder.core import files, own_files
from site_builder.core.faults import describe
from site_builder.core.model import Dump, Problem, Row

LIMIT = 1024 * 1024


class KeptFile(Generic[Row]):
    """Read again only if it changed; one that is not there is empty."""

    def __init__(
        self, data: Path, state: Path | None, name: str, reader: Callable[[bytes], Dump[Row]], limit: int = LIMIT
    ) -> None:
        """Take up the last good content; without a state folder none is kept."""
        self.data, self.state, self.name, self.reader, self.limit = data, state, name, reader, limit
        self.signature: files.Signature | None = None
        self.content: bytes | None = None
        self.stored: bytes | None = None
        self.rows: tuple[Row, ...] = ()
        self.since = 0.0
        self.problems: tuple[str, ...] = ()
        with suppress(OSError, files.Refused):
            if state is None:
                return
            signature, content = read_in(state, name, limit)
            dump = self.understood(content)
            if dump.whole:
                self.content = self.stored = content
                self.rows, self.since = dump.rows, signature.modified_ns / 1e9

    @property
    def folder(self) -> Path:
        """Where it is now."""
        return self.data

    def read(self) -> tuple[tuple[Row, ...], list[Problem]]:
        """What it says, and what is wrong with it."""
        unkept: list[Problem] = []
        try:
            folder = os.open(self.folder, files.TOP)
            try:
                signature = files.look(self.name, folder)
                if signature is None or signature != self.signature:
                    content = None
                    if signature:
                        signature, content = files.read(self.name, folder, self.limit)
                    unkept = self.take(signature, content)
            finally:
                os.close(folder)
        except (OSError, files.Refused) as why:
            self.signature = None
            self.problems = (self.serves(f"not read: {getattr(why, 'strerror', None) or why}"),)
        return self.rows, [Problem(f"data/{self.name}", what) for what in self.problems] + unkept

    def take(self, signature: files.Signature | None, content: bytes | None) -> list[Problem]:
        """Understand a new content, and keep it if it is good."""
        dump: Dump[Row] = Dump() if content is None else self.understood(content)
        self.signature, self.problems = signature, dump.problems
        if not dump.whole:
            self.problems = tuple(self.serves(f"not read: {what}") for what in dump.problems)
            return []
        self.rows, self.content = dump.rows, content
        self.since = signature.arrived_ns / 1e9 if signature else 0.0
        return self.keep(content) if content != self.stored else []

    def understood(self, content: bytes) -> Dump[Row]:
        """What the reader makes of it; one that raises costs this file alone."""
        try:
            return self.reader(content)
        except Exception as error:
            return Dump(whole=False, problems=(describe("it could not be understood", error),))

    def keep(self, content: bytes | None) -> list[Problem]:
        """Write the last good content to state/, or remove it with the file that it was."""
        if self.state is None:
            return []
        store = self.state / self.name
        try:
            if content is None:
                store.unlink(missing_ok=True)
            else:
                files.replace(store, content, 0o600)
            self.stored = content
        except OSError as error:
            self.signature = None  # so that it is tried again
            return [Problem(f"state/{self.name}", f"data/{self.name} could not be kept: {error.strerror}")]
        return []

    def serves(self, what: str) -> str:
        """Say what is used in the place of a file that cannot be read."""
        return what if self.content is None else f"{what}; its content of {minute(self.since)} serves"


def read_in(folder: Path, name: str, limit: int) -> tuple[files.Signature, bytes]:
    """A file in state/."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return files.read(name, handle, limit, own_files.check_file)
    finally:
        os.close(handle)


def minute(when: float) -> str:
    """A time as people write it, on this machine's clock."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
