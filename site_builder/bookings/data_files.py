"""Who was promised what: data/comments.json, and what else people write about themselves and their GPUs."""

from __future__ import annotations

from datetime import tzinfo
from pathlib import Path

from site_builder.bookings import parser, store
from site_builder.core import aliases
from site_builder.core.cached_file import KeptFile
from site_builder.core.model import Booking, Dump, Problem, Row
from site_builder.core.shared_folder import booking_folder
from site_builder.snapshots import gpu_names


class BookingFile(KeptFile[Row]):
    """A file that accounts which book may write."""

    @property
    def folder(self) -> Path:
        """With the bookings, also where these move while we run."""
        return booking_folder(self.data)


class Bookings(BookingFile[Booking]):
    """The bookings: those of the last good file, while the present one cannot be read."""

    def __init__(self, data: Path, state: Path | None, zone: tzinfo) -> None:
        """Dates without an offset are in `zone`."""
        super().__init__(data, state, store.FILE, lambda content: parser.read(content, zone), store.LIMIT)

    def keep(self, content: bytes | None) -> list[Problem]:
        """Keep the last good content in state/, and beside the file, where people look for it."""
        if self.state and content is not None:
            store.keep_good(self.data, content)
        return super().keep(content)


class Names:
    """aliases.csv and gpu-names.csv: what people and GPUs are called."""

    def __init__(self, data: Path, state: Path | None) -> None:
        """Both are read at each build, if they changed."""
        self.aliases = KeptFile(data, state, "aliases.csv", lambda content: pairs(aliases.read(content)))
        self.gpus = KeptFile(data, state, "gpu-names.csv", lambda content: pairs(gpu_names.read(content)))

    def read(self) -> tuple[dict[str, str], dict[str, str], list[Problem]]:
        """The names to show of people and of GPUs, and what is wrong."""
        people, problems = self.aliases.read()
        gpus, more = self.gpus.read()
        return dict(people), dict(gpus), problems + more


def pairs(names: dict[str, str]) -> Dump[tuple[str, str]]:
    """Names as rows."""
    return Dump(tuple(names.items()))
