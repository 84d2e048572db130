"""Files of state/ that hold one record a host: JSON for what has a shape, and raw bytes beside it.

A file that is torn, damaged or of another version raises DamagedFileError, at the latest when its end is reached;
whoever reads it then rebuilds what it held.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import IO

from site_builder.core import files, own_files

# Bytes of a whole file: more than 20,000 hosts can need.
LIMIT = 4 * 1024**3
LONGEST_LINE = 1024
SIZES = re.compile(rb"[0-9]{1,10}(?: [0-9]{1,10}){0,63}")
Record = tuple[bytes, Sequence[bytes]]


class DamagedFileError(Exception):
    """A file is not what was written."""


def write_records(path: Path, title: str, records: Iterable[Record]) -> None:
    """Write a file record by record: all of it in memory would be as much again."""

    def write(file: IO[bytes]) -> None:
        total = count = 0
        file.write(f"{title}\n".encode())
        for text, blobs in records:
            parts = [text, *blobs]
            file.write(b" ".join(b"%d" % len(part) for part in parts) + b"\n")
            payload = b"".join(parts)
            total = zlib.crc32(payload, total)
            file.write(payload)
            file.write(b"\n")
            count += 1
        file.write(b"end %d %08x\n" % (count, total))

    files.replace(path, write, 0o600)


def read_records(path: Path, title: str) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield what was written; only who gets to the end without an error knows that it is whole."""
    try:
        handle = os.open(path, files.FLAGS)
    except OSError as error:
        raise DamagedFileError(error.strerror) from error
    with os.fdopen(handle, "rb") as file:
        try:
            own_files.check_file(os.fstat(handle))
            yield from parse_records(file, title)
        except (OSError, files.Refused) as why:
            raise DamagedFileError(str(why)) from why


def parse_records(file: IO[bytes], title: str) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield the records of an open file."""
    left = os.fstat(file.fileno()).st_size
    if left > LIMIT or read_line(file) != title.encode():
        raise DamagedFileError(title)
    total = count = 0
    while not (line := read_line(file)).startswith(b"end "):
        if not SIZES.fullmatch(line):
            raise DamagedFileError(title)
        ends = list(accumulate(map(int, line.split())))
        left -= ends[-1]
        if left < 0:  # before anything of that size is made
            raise DamagedFileError(title)
        payload = file.read(ends[-1])
        if len(payload) != ends[-1] or file.read(1) != b"\n":
            raise DamagedFileError(title)
        total = zlib.crc32(payload, total)
        count += 1
        yield payload[: ends[0]], [payload[start:end] for start, end in zip(ends, ends[1:])]
    if line != b"end %d %08x" % (count, total) or file.read(1):
        raise DamagedFileError(title)


def read_line(file: IO[bytes]) -> bytes:
    """Return a line without its end; a file that ends within it is damaged."""
    line = file.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise DamagedFileError(line[:80])
    return line[:-1]
