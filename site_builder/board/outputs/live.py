"""live.json, which updates open pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import orjson

from site_builder.board.card import HostCard
from site_builder.core.model import HostStatus

LIVE_SCHEMA = 1


class LiveHeader(NamedTuple):
    """The keys of live.json before the hosts; `built` and the revisions of `parts` are times in milliseconds."""

    schema: int
    built: int
    every: int
    version: str
    free: int
    parts: dict[str, int]


def render_live_host(host_status: HostStatus, host_card: HostCard) -> tuple[bytes, bytes]:
    """Render the numbers of a card in two parts, before and after its revision."""
    gpus = [
        [row.state, row.use, row.memory_access, row.memory_used, int(row.memory_bar), row.temperature, row.power_draw]
        for row in host_card.gpu_rows
    ]
    seen = None if host_status.last_seen is None else int(host_status.last_seen)
    after = orjson.dumps([host_status.state, seen, host_card.load, host_card.memory, host_card.fullest_disk, gpus])
    return orjson.dumps([host_status.name])[:-1] + b",", b"," + after[1:]


def render_live_json(header: LiveHeader, hosts: Iterable[tuple[bytes, int, bytes]]) -> bytes:
    """Render the whole file; a revision is when a card last changed in more than its numbers."""
    host_texts = [b"%s%d%s" % host for host in hosts]
    return orjson.dumps(header._asdict())[:-1] + b',"hosts":[' + b",\n".join(host_texts) + b"]}\n"
