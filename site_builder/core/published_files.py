"""Files in www/: written whole or not at all, and only if their content changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import orjson

from site_builder import __version__
from site_builder.core import files
from site_builder.core.clock import Now
from site_builder.core.files import ASSETS_FOLDER, PACKAGE_FOLDER, compute_digest
from site_builder.core.records import make_record_decoder

# Names the builder that wrote the site last, where several builders share it.
WRITER_FILE = ".builder"
# After this time without writing, a builder has left the site; one that lost its state/ has a new name, too.
WRITER_TIMEOUT_S = 300


class PublishedFiles:
    """What we have written to www/; state/published.json keeps it."""

    def __init__(self, www: Path, state: Path) -> None:
        self.www = www
        self.store_path = state / "published.json"
        self.files: dict[str, tuple[str, float, int, int]] = {}
        self.saved_content = b""
        try:
            self.saved_content = files.read_own_file(self.store_path)
            self.files = make_record_decoder(dict[str, tuple[str, float, int, int]])(orjson.loads(self.saved_content))
        except (OSError, files.FileRefusedError, ValueError):
            self.files = {}

    def is_unchanged(self, name: str, fingerprint: bytes) -> bool:
        """Return True if the file has this fingerprint and is still as it was written, however long ago."""
        entry = self.files.get(name)
        if entry is None or entry[0] != fingerprint.hex():
            return False
        try:
            status = os.lstat(f"{self.www}/{name}")  # thousands of times a build: a Path takes longer than lstat
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == entry[2:]

    def write(self, name: str, fingerprint: bytes, content: bytes, now: float) -> None:
        path = f"{self.www}/{name}"
        files.write_atomically(path, content)
        status = os.lstat(path)
        self.files[name] = (fingerprint.hex(), now, status.st_size, status.st_mtime_ns)

    def touch(self, name: str, now: float) -> None:
        """Renew the time of an unchanged file: its age shows that the builder runs."""
        path = self.www / name
        os.utime(path)
        self.files[name] = (self.files[name][0], now, *self.files[name][2:3], os.lstat(path).st_mtime_ns)

    def remove(self, name: str) -> None:
        (self.www / name).unlink(missing_ok=True)
        del self.files[name]

    def save(self) -> None:
        content = orjson.dumps(self.files)
        if content != self.saved_content:
            files.write_atomically(self.store_path, content, 0o600)
            self.saved_content = content


class PublishedFile(NamedTuple):
    """A file of www/ that is rendered only if its fingerprint is new; `has_build_time` if it says when it was built."""

    name: str
    fingerprint: bytes
    render: Callable[[], bytes]
    has_build_time: bool = True


class SiteFiles(Protocol):
    """What a feature needs to publish a page of its own; board.site_writer.SiteWriter implements it."""

    published: PublishedFiles
    assets_version: str

    def write_file(self, name: str, fingerprint: bytes, content: bytes, now: Now) -> None:
        """Write a file."""

    def write_changed_files(self, files: Iterable[PublishedFile], now: Now) -> None:
        """Write the files whose fingerprint is new."""

    def find_write_time(self, name: str) -> float:
        """Return when a file was written; 0 if it never was."""


def publish_assets(www: Path) -> str:
    """Copy the assets to www/ unless they are there, and return a version that changes with any of them."""
    contents = {path.name: path.read_bytes() for path in sorted(ASSETS_FOLDER.iterdir()) if path.is_file()}
    target = www / "assets"
    if not target.exists() or not target.samefile(ASSETS_FOLDER):
        target.mkdir(exist_ok=True)
        for name, content in contents.items():
            with suppress(OSError):
                if (target / name).read_bytes() == content:
                    continue
            files.write_atomically(target / name, content)
    return compute_digest(*contents.values()).hex()[:8]


def find_published_files_writer(www: Path, now: float) -> str | None:
    """Return the builder that writes the site; None if there is none, or not any more."""
    try:
        is_left = now - (www / WRITER_FILE).stat().st_mtime > WRITER_TIMEOUT_S
        return None if is_left else (www / WRITER_FILE).read_text("ascii").strip()[:200] or None
    except (OSError, ValueError):
        return None


def claim_published_files(www: Path, name: str, now: float) -> None:
    """Record that we write the site."""
    if find_published_files_writer(www, now) == name:
        os.utime(www / WRITER_FILE)
        return
    www.mkdir(parents=True, exist_ok=True)
    files.write_atomically(www / WRITER_FILE, f"{name}\n".encode())


# The version, and the name, size and time of every module and template: after an update of gpuboard, everything cached
# is made again. Computed once: this process builds with the code that it has loaded, whatever is installed meanwhile.
CODE_FILES = (path for pattern in ("*.py", "*.html") for path in PACKAGE_FOLDER.rglob(pattern))
CODE_STATS = {str(path.relative_to(PACKAGE_FOLDER)): path.stat() for path in CODE_FILES}
CODE_VERSIONS = sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in CODE_STATS.items())
CODE_FINGERPRINT = __version__, tuple(CODE_VERSIONS)
