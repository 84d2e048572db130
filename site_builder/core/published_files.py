"""www/: each file is written whole or not at all, and only if what it says has changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import orjson

from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.files import compute_digest, find_assets_folder
from site_builder.core.records import make_decoder

# Names who wrote the site last, where several builders may share it.
WRITER_FILE = ".builder"
# Whoever has not written it for so many seconds has left it; a builder that lost its state/ has another name, too.
WRITER_TIMEOUT_S = 300
# A file that says when it was built is written anew after so many seconds, as a sign that the builder lives.
REWRITE_INTERVAL_S = 60


def to_milliseconds(epoch: float) -> int:
    """A time as pages and revisions tell it."""
    return int(epoch * 1000)


class PublishedFiles:
    """What stands in www/, as far as it was written by us; state/published.json keeps it."""

    def __init__(self, www: Path, state: Path) -> None:
        """Take up what the last build wrote."""
        self.www = www
        self.store_path = state / "published.json"
        self.files: dict[str, tuple[str, float, int, int]] = {}
        self.saved_content = b""
        try:
            self.saved_content = files.read(self.store_path)
            self.files = make_decoder(dict[str, tuple[str, float, int, int]])(orjson.loads(self.saved_content))
        except (OSError, files.FileRefusedError, ValueError):
            self.files = {}

    def is_current(self, name: str, facts: bytes, now: float) -> bool:
        """Whether the file says just this, was written not long ago, and is still as it was written."""
        written = self.files.get(name)
        return written is not None and 0 <= now - written[1] < REWRITE_INTERVAL_S and self.is_unchanged(name, facts)

    def is_unchanged(self, name: str, facts: bytes) -> bool:
        """Whether the file says just this, and is still as it was written, however long ago."""
        written = self.files.get(name)
        if written is None or written[0] != facts.hex():
            return False
        try:
            status = os.lstat(f"{self.www}/{name}")  # thousands of times a build, and a Path takes longer than the look
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == written[2:]

    def write(self, name: str, facts: bytes, content: bytes, now: float) -> None:
        """Put a new content in its place."""
        path = f"{self.www}/{name}"  # as in `says`
        files.write_atomically(path, content)
        status = os.lstat(path)
        self.files[name] = (facts.hex(), now, status.st_size, status.st_mtime_ns)

    def touch(self, name: str, now: float) -> None:
        """Make a file that says nothing new as young as if it did: its age tells that the builder lives."""
        path = self.www / name
        os.utime(path)
        self.files[name] = (self.files[name][0], now, *self.files[name][2:3], os.lstat(path).st_mtime_ns)

    def remove(self, name: str) -> None:
        """Take a file away that we have written."""
        (self.www / name).unlink(missing_ok=True)
        del self.files[name]

    def save(self) -> None:
        """Remember what was written."""
        content = orjson.dumps(self.files)
        if content != self.saved_content:
            files.write_atomically(self.store_path, content, 0o600)
            self.saved_content = content


class OutputFile(NamedTuple):
    """A file of www/ that is rendered only if its fingerprint is new; `has_build_time` if it says when it was built."""

    name: str
    fingerprint: bytes
    render: Callable[[], bytes]
    has_build_time: bool = True


class SiteFiles(Protocol):
    """What a feature needs to publish a page of its own; board.site_writer.SiteWriter has it."""

    published: PublishedFiles
    assets_version: str

    def write_file(self, name: str, facts: bytes, content: bytes, now: Now) -> None:
        """Write a file."""

    def write_changed_files(self, files: Iterable[OutputFile], now: Now) -> None:
        """Write the files whose fingerprint is new."""

    def find_write_time(self, name: str) -> float:
        """Return when a file was written; 0 if it never was."""


def copy_assets(www: Path) -> str:
    """Put them where www is another folder, and return what changes with any of them."""
    contents = {path.name: path.read_bytes() for path in sorted(find_assets_folder().iterdir()) if path.is_file()}
    target = www / "assets"
    if not target.exists() or not target.samefile(find_assets_folder()):
        target.mkdir(exist_ok=True)
        for name, content in contents.items():
            try:
                same = (target / name).read_bytes() == content
            except OSError:
                same = False
            if not same:
                files.write_atomically(target / name, content)
    return compute_digest(*contents.values()).hex()[:8]


def find_site_writer(www: Path, now: float) -> str | None:
    """Who writes the site; None where nobody says so, or has said so for long."""
    try:
        is_left = now - (www / WRITER_FILE).stat().st_mtime > WRITER_TIMEOUT_S
        return None if is_left else (www / WRITER_FILE).read_text("ascii").strip()[:200] or None
    except (OSError, ValueError):
        return None


def claim_site(www: Path, name: str, now: float) -> None:
    """Say that we write it."""
    if find_site_writer(www, now) == name:
        os.utime(www / WRITER_FILE)
        return
    www.mkdir(parents=True, exist_ok=True)
    files.write_atomically(www / WRITER_FILE, f"{name}\n".encode())
