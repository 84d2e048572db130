"""live.json: what an open page asks for again and again: all numbers and states, and a revision of each card.

There may be a thousand hosts, so that each is a list: name, revision, state, seen, load, memory, disk, GPUs. A GPU is
one too: state, use, access, memory in use, the same of 100, temperature, power. All are as the card writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from site_builder.board.card import CardTexts
from site_builder.core.model import BoardHost

SCHEMA = 1


def host(board: BoardHost, texts: CardTexts) -> tuple[bytes, bytes]:
    """A host, in two parts, between which its revision stands."""
    gpus = [
        [row.state, row.use, row.access, row.used, int(row.used_bar), row.temperature, row.draw] for row in texts.rows
    ]
    seen = None if board.seen is None else int(board.seen)
    after = orjson.dumps([board.state, seen, texts.load, texts.memory, texts.disk, gpus])
    return orjson.dumps([board.name])[:-1] + b",", b"," + after[1:]


class Head(NamedTuple):
    """What stands before the hosts; `built` and the revisions of `parts` are times in milliseconds."""

    schema: int
    built: int
    every: int
    version: str
    free: int
    parts: dict[str, int]


def live(head: Head, hosts: Iterable[tuple[bytes, int, bytes]]) -> bytes:
    """The whole file; a revision is when a card last changed but for its numbers."""
    told = [b"%s%d%s" % one for one in hosts]
    return orjson.dumps(head._asdict())[:-1] + b',"hosts":[' + b",\n".join(told) + b"]}\n"
