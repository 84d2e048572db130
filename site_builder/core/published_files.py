"""www/: each file is written whole or not at all, and only if what it says has changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import orjson

from site_builder.core import files, own_files
from site_builder.core.resources import assets_folder
from site_builder.core.typed_json import make_decoder

# Names who wrote the site last, where several builders may share it.
WRITER = ".builder"
# Whoever has not written it for so many seconds has left it; a builder that lost its state/ has another name, too.
LEFT = 300
# A file that says when it was built is written anew after so many seconds, as a sign that the builder lives.
SIGN_OF_LIFE = 60


def digest(*parts: bytes) -> bytes:
    """What tells one content from another."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(b"%d " % len(part))
        found.update(part)
    return found.digest()


def milliseconds(epoch: float) -> int:
    """A time as pages and revisions tell it."""
    return int(epoch * 1000)


class Published:
    """What stands in www/, as far as it was written by us; state/published.json keeps it."""

    def __init__(self, www: Path, state: Path) -> None:
        """Take up what the last build wrote."""
        self.www = www
        self.store = state / "published.json"
        self.files: dict[str, tuple[str, float, int, int]] = {}
        self.saved = b""
        try:
            self.saved = own_files.read(self.store)
            self.files = make_decoder(dict[str, tuple[str, float, int, int]])(orjson.loads(self.saved))
        except (OSError, files.Refused, ValueError):
            self.files = {}

    def is_current(self, name: str, facts: bytes, now: float) -> bool:
        """Whether the file says just this, was written not long ago, and is still as it was written."""
        written = self.files.get(name)
        return written is not None and 0 <= now - written[1] < SIGN_OF_LIFE and self.says(name, facts)

    def says(self, name: str, facts: bytes) -> bool:
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
        files.replace(path, content)
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
        if content != self.saved:
            files.replace(self.store, content, 0o600)
            self.saved = content


def copy_assets(www: Path) -> str:
    """Put them where www is another folder, and return what changes with any of them."""
    contents = {path.name: path.read_bytes() for path in sorted(assets_folder().iterdir()) if path.is_file()}
    target = www / "assets"
    if not target.exists() or not target.samefile(assets_folder()):
        target.mkdir(exist_ok=True)
        for name, content in contents.items():
            try:
                same = (target / name).read_bytes() == content
            except OSError:
                same = False
            if not same:
                files.replace(target / name, content)
    return digest(*contents.values()).hex()[:8]


def writer_of(www: Path, now: float) -> str | None:
    """Who writes the site; None where nobody says so, or has said so for long."""
    try:
        is_left = now - (www / WRITER).stat().st_mtime > LEFT
        return None if is_left else (www / WRITER).read_text("ascii").strip()[:200] or None
    except (OSError, ValueError):
        return None


def sign(www: Path, name: str, now: float) -> None:
    """Say that we write it."""
    if writer_of(www, now) == name:
        os.utime(www / WRITER)
        return
    www.mkdir(parents=True, exist_ok=True)
    files.replace(www / WRITER, f"{name}\n".encode())
