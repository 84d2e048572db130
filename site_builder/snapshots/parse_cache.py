"""Files of hosts as they were parsed: each is parsed once, however many ask, until its content changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")
# Bytes of files whose results are kept, the newest; what they were parsed to takes four times as much memory.
MOST_CHEAP = 2 * 1024 * 1024
# The same of files that took longer to parse than so many seconds, which a large fleet must not push out.
MOST_EXPENSIVE, EXPENSIVE = 16 * 1024 * 1024, 0.01


class Entry(NamedTuple):
    """A file's content, what else its result depends on, and the result."""

    content: bytes
    given: object
    result: object


class ParsedFiles:
    """The last result of each file, within a limit."""

    def __init__(self, most: int) -> None:
        """Nothing was parsed yet."""
        self.most = most
        self.size = 0
        self.entries: dict[tuple[str, str], Entry] = {}

    def find(self, key: tuple[str, str], content: bytes, given: object) -> Entry | None:
        """Return the entry of a file that still says the same."""
        found = self.entries.get(key)
        return found if found and found.given == given and found.content == content else None

    def keep(self, key: tuple[str, str], entry: Entry) -> None:
        """Keep a result; the oldest make room."""
        if len(entry.content) > self.most:
            return
        self.entries[key] = entry
        self.size += len(entry.content)
        while self.size > self.most:
            self.drop(next(iter(self.entries)))

    def drop(self, key: tuple[str, str]) -> None:
        """Let go of a result."""
        found = self.entries.pop(key, None)
        self.size -= len(found.content) if found else 0


CHANGING = threading.Lock()
CHEAP, COSTLY = ParsedFiles(MOST_CHEAP), ParsedFiles(MOST_EXPENSIVE)


def parse_once(key: tuple[str, str], content: bytes, given: object, parse: Callable[[], Result]) -> Result:
    """Return what a file was parsed to, or parse it now; `given` is what the result depends on beside its content."""
    for known in (CHEAP, COSTLY):
        found = known.find(key, content, given)
        if found:
            return found.result  # type: ignore[return-value] # of the same key
    began = time.thread_time()
    result = parse()
    is_costly = time.thread_time() - began > EXPENSIVE
    with CHANGING:
        for known in (CHEAP, COSTLY):
            known.drop(key)
        (COSTLY if is_costly else CHEAP).keep(key, Entry(content, given, result))
    return result
