"""state/build.log: what went wrong and when it was over; two files of bounded size."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path

LIMIT = 512 * 1024
LINE_CHARACTERS = 500


class Log:
    """Appends lines; what cannot be written is lost, since a full disk is told elsewhere."""

    def __init__(self, state: Path) -> None:
        """The folder in which it stands."""
        self.path = state / "build.log"

    def write(self, when: datetime, line: str) -> None:
        """One line; when the file is large, it becomes build.log.1, and a new one is begun."""
        text = " ".join(line.split())[:LINE_CHARACTERS]
        with suppress(OSError):
            with suppress(FileNotFoundError):
                if self.path.stat().st_size > LIMIT:
                    self.path.replace(self.path.with_name("build.log.1"))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{when.isoformat(timespec='seconds')} {text}\n")
