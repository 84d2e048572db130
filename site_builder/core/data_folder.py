"""The folder data/: where bookings are, who may change what, and files that are parsed when they change."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic

from site_builder.core import files
from site_builder.core.faults import describe_fault
from site_builder.core.files import FileRefusedError, FileSignature, find_file_owner_login
from site_builder.core.formatting import format_local_time
from site_builder.core.model import ParsedFile, Problem, Row
from site_builder.core.names import BOOKINGS

FIX_HINT = "run `./install.sh web` on the web host, as the user who builds the board"
BOOKINGS_FILE, WATCHES_FILE = "comments.json", "watches.json"


def find_bookings_folder_in_data(data: Path) -> Path:
    """Return data/bookings/ if the owner of data/ or root made it, else data/ itself."""
    bookings_folder = data / BOOKINGS
    try:
        status = os.lstat(bookings_folder)
        owners = {0, os.stat(data).st_uid}  # noqa: PTH116 # at each build, several times
    except (FileNotFoundError, NotADirectoryError):
        return data
    except OSError:
        return bookings_folder  # reading there reports the reason
    return bookings_folder if stat.S_ISDIR(status.st_mode) and status.st_uid in owners else data


def find_bookings_file_in_data(data: Path) -> Path:
    return find_bookings_folder_in_data(data) / BOOKINGS_FILE


def is_moved_data_file_link(path: str | Path) -> bool:
    """Return True for the link in data/ that replaces a file which is in data/bookings/ now."""
    # no program follows it: it leads people who edit the file by hand, and stops programs of older versions
    name = os.path.basename(path)  # noqa: PTH119 # fast, for each link in data/
    try:
        return name in {BOOKINGS_FILE, WATCHES_FILE} and os.readlink(path) == f"{BOOKINGS}/{name}"  # noqa: PTH115 # the same
    except OSError:
        return False


def list_data_folder_problems(data: Path) -> list[Problem]:
    """List wrong permissions in data/, each with the command that corrects it."""
    problems = []
    try:
        if writers := name_data_folder_writers(data):
            hint = FIX_HINT if is_data_folder_ours(data) else "its owner must run `chmod go-w` on it"
            what = f"{writers} can put links into it and so redirect what is written there: {hint}"
            problems.append(Problem("data", what))
        if find_bookings_folder_in_data(data) == data:
            if os.path.lexists(data / BOOKINGS):
                what = "it is not used: it must be a folder of the owner of data/; change its owner, or remove it"
                problems.append(Problem(f"data/{BOOKINGS}", what))
            return problems
        hint = f"{FIX_HINT}, which moves its content"
        what = f"it is no longer read: bookings are in data/{BOOKINGS}/: {hint}"
        for name in (BOOKINGS_FILE, WATCHES_FILE):
            if is_unmoved_data_file(data / name):
                problems.append(Problem(f"data/{name}", what))
    except OSError:  # the build itself reports a data/ that cannot be read
        pass
    return problems


def name_data_folder_writers(data: Path) -> str:
    """Name the other accounts that can replace files in data/; empty if none can."""
    status = os.stat(data)  # noqa: PTH116 # at each build
    if status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "everybody on this machine"
    if not status.st_mode & stat.S_IWGRP:
        return ""
    with suppress(OSError):
        if os.getxattr(data, "system.posix_acl_access"):  # set by setfacl; then the mode does not say who can
            return "somebody in its access list"
    owner = find_file_owner_login(status.st_uid)
    try:
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return f"the group {status.st_gid}"
    # a group that has its owner's name and no other members is private
    return "" if group.gr_name == owner and set(group.gr_mem) <= {owner} else f"the group {group.gr_name}"


def is_data_folder_ours(data: Path) -> bool:
    """Return True if this account may change the modes of data/."""
    return os.geteuid() in {0, data.stat().st_uid}


def is_unmoved_data_file(path: Path) -> bool:
    """Return True for a file in data/ that belongs into data/bookings/."""
    return os.path.lexists(path) and not is_moved_data_file_link(path)


class CachedDataFile(Generic[Row]):
    """A file in data/ that is parsed again only if it changed; a missing one is empty."""

    def __init__(
        self,
        data: Path,
        state: Path | None,
        name: str,
        parser: Callable[[bytes], ParsedFile[Row]],
        limit: int = 1 << 20,
    ) -> None:
        """Load the last good content from state/, if there is a state folder."""
        self.data_folder, self.state_folder, self.name, self.parser, self.max_bytes = data, state, name, parser, limit
        self.signature: FileSignature | None = None
        self.content: bytes | None = None
        self.stored_content: bytes | None = None
        self.rows: tuple[Row, ...] = ()
        self.content_time = 0.0
        self.problems: tuple[str, ...] = ()
        if state is None:
            return
        with suppress(OSError, FileRefusedError):
            signature, content = files.read_with_signature(state / name, limit)
            parsed = self.parse(content)
            if parsed.is_complete:
                self.content = self.stored_content = content
                self.rows, self.content_time = parsed.rows, signature.modified_ns / 1e9

    @property
    def folder(self) -> Path:
        return self.data_folder

    def read(self) -> tuple[tuple[Row, ...], list[Problem]]:
        """Return the rows, and what is wrong with the file."""
        store_problems: list[Problem] = []
        try:
            folder = os.open(self.folder, files.ROOT_FOLDER_FLAGS)
            try:
                signature = files.read_signature(self.name, folder)
                if signature is None or signature != self.signature:
                    content, parsed = None, ParsedFile[Row]()
                    if signature:
                        signature, content = files.read_file(self.name, folder, self.max_bytes)
                        parsed = self.parse(content)
                    self.signature, self.problems = signature, parsed.problems
                    if parsed.is_complete:
                        self.rows, self.content = parsed.rows, content
                        self.content_time = signature.arrived_ns / 1e9 if signature else 0.0
                        store_problems = self.store_content(content) if content != self.stored_content else []
                    else:
                        self.problems = tuple(self.describe_fallback(f"not read: {what}") for what in parsed.problems)
            finally:
                os.close(folder)
        except (OSError, FileRefusedError) as error:
            self.signature = None
            self.problems = (self.describe_fallback(f"not read: {getattr(error, 'strerror', None) or error}"),)
        return self.rows, [Problem(f"data/{self.name}", what) for what in self.problems] + store_problems

    def parse(self, content: bytes) -> ParsedFile[Row]:
        """Parse; an exception costs this file alone."""
        try:
            return self.parser(content)
        except Exception as error:
            return ParsedFile(is_complete=False, problems=(describe_fault("it could not be parsed", error),))

    def store_content(self, content: bytes | None) -> list[Problem]:
        """Write the last good content to state/, or remove it if the file is gone."""
        if self.state_folder is None:
            return []
        store = self.state_folder / self.name
        try:
            if content is None:
                store.unlink(missing_ok=True)
            else:
                files.write_atomically(store, content, 0o600)
            self.stored_content = content
        except OSError as error:
            self.signature = None  # so that the next build tries again
            return [Problem(f"state/{self.name}", f"data/{self.name} could not be saved: {error.strerror}")]
        return []

    def describe_fallback(self, what: str) -> str:
        return (
            what if self.content is None else f"{what}; its content of {format_local_time(self.content_time)} is used"
        )
