"""The value of a host in Consul's KV store: its snapshot files one after the other, in gzip."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

from site_builder.core.model import Header
from site_builder.snapshots import envelope

FILES = {"gpus": "gpus.csv", "processes": "processes.csv", "ps": "ps.txt", "host": "host.txt"}
# As much as data/ would be read of one file; half a megabyte in gzip can be half a gigabyte of nothing.
MOST = 8 * 1024 * 1024
GZIP = 16 + zlib.MAX_WBITS
TASK = re.compile(rb"# gpuboard \d{1,4} task=([a-z]{1,20}) ")
END = b"\n# end\n"


class Bundle(NamedTuple):
    """The files by their names, host.txt last; when that was written by the host's own clock; or what is wrong."""

    files: dict[str, bytes]
    time: int | None = None
    problem: str | None = None


def read(value: bytes, host: str) -> Bundle:
    """What a host put there; of one that is not whole, or not of this host, nothing counts."""
    try:
        content = unpacked(value)
        parts = content.split(END)
        if parts.pop():
            raise NotOurs(envelope.TORN)
        found = {}
        for part in parts:
            name, header = header_of(part, host)
            if name in found:
                message = f"it has {name} twice"
                raise NotOurs(message)
            found[name] = header.time, part + END
        if not found:
            message = "it is empty"
            raise NotOurs(message)
    except NotOurs as why:
        return Bundle({}, problem=str(why))
    files = {name: found[name][1] for name in FILES.values() if name in found}
    return Bundle(files, found["host.txt"][0] if "host.txt" in found else None)


class NotOurs(Exception):
    """Why a value is not that of a host, in words."""


def unpacked(value: bytes) -> bytes:
    """All that is in it, up to a limit."""
    unzip = zlib.decompressobj(GZIP)
    try:
        content = unzip.decompress(value, MOST + 1)
    except zlib.error:
        message = "it is not in gzip" if value[:2] != b"\x1f\x8b" else "its gzip is damaged"
        raise NotOurs(message) from None
    if len(content) > MOST:
        message = f"it has more than the {MOST >> 20} MB that are read"
        raise NotOurs(message)
    if not value:
        message = "it is empty"
        raise NotOurs(message)
    if not unzip.eof or unzip.unused_data:
        message = "its gzip has no end" if not unzip.eof else "there is more behind the end of its gzip"
        raise NotOurs(message)
    return content


def header_of(part: bytes, host: str) -> tuple[str, Header]:
    """Which file it is, and its first line."""
    found = TASK.match(part)
    task = found[1].decode() if found else ""
    if task not in FILES:
        message = f"it has a snapshot of {task}, which nobody knows" if task else "it is not a snapshot of gpuboard"
        raise NotOurs(message)
    header, problem = envelope.header(part, task)
    if header is None:
        raise NotOurs(problem)
    if header.host != host:
        message = f"it says host={envelope.clean(header.host[:80])}, which is not its key's name"
        raise NotOurs(message)
    return FILES[task], header
