"""live.json, by which an open page keeps itself up to date."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from site_builder.board.card import HostCard
from site_builder.core.model import HostStatus

LIVE_SCHEMA = 1


def render_live_host(board: HostStatus, texts: HostCard) -> tuple[bytes, bytes]:
    """A host, in two parts, between which its revision stands."""
    gpus = [
        [row.state, row.use, row.memory_access, row.memory_used, int(row.memory_bar), row.temperature, row.power_draw]
        for row in texts.gpu_rows
    ]
    seen = None if board.last_seen is None else int(board.last_seen)
    after = orjson.dumps([board.state, seen, texts.load, texts.memory, texts.fullest_disk, gpus])
    return orjson.dumps([board.name])[:-1] + b",", b"," + after[1:]


class LiveHeader(NamedTuple):
    """What stands before the hosts; `built` and the revisions of `parts` are times in milliseconds."""

    schema: int
    built: int
    every: int
    version: str
    free: int
    parts: dict[str, int]


def render_live_json(head: LiveHeader, hosts: Iterable[tuple[bytes, int, bytes]]) -> bytes:
    """The whole file; a revision is when a card last changed but for its numbers."""
    told = [b"%s%d%s" % one for one in hosts]
    return orjson.dumps(head._asdict())[:-1] + b',"hosts":[' + b",\n".join(told) + b"]}\n"
