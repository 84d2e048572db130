"""state/noticed.json: when each event of the calendars was first seen, and since when it says what it says.

A calendar program goes by these times, and comments.json has neither: a file's own age changes with every edit of it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.core import files, own_files
from site_builder.core.typed_json import make_decoder


class Notice(NamedTuple):
    """In whole seconds, and by what one content is told from the next."""

    first: int
    changed: int
    digest: str


class Noticed:
    """What was noticed of each event."""

    def __init__(self, state: Path) -> None:
        """Take up what the last builder noticed."""
        self.store = state / "noticed.json"
        self.events: dict[str, Notice] = {}
        self.saved = b""
        try:
            self.saved = own_files.read(self.store)
            self.events = make_decoder(dict[str, Notice])(orjson.loads(self.saved))
        except (OSError, files.Refused, ValueError):
            self.events = {}

    def of(self, uid: str, digest: str, now: float) -> Notice:
        """What is known of an event that says this now."""
        before = self.events.get(uid)
        if before is None or before.digest != digest:
            self.events[uid] = Notice(before.first if before else int(now), int(now), digest)
        return self.events[uid]

    def save(self, uids: Collection[str]) -> None:
        """Keep it for as long as the event is there."""
        self.events = {uid: notice for uid, notice in self.events.items() if uid in uids}
        content = orjson.dumps({uid: tuple(notice) for uid, notice in self.events.items()})
        if content != self.saved:
            files.replace(self.store, content, 0o600)
            self.saved = content
