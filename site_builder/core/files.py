"""Read and write files of which we do not trust the content, the owner or the folder."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import shlex
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Generic, NamedTuple, TypeVar

from site_builder.core.faults import describe_fault
from site_builder.core.formatting import format_local_time
from site_builder.core.model import ParsedFile, Problem, Row
from site_builder.core.names import BOOKINGS

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# The folder that the admin names may be a link, to a share for example; none inside it may.
ROOT_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class FileRefusedError(Exception):
    """Why a file is not read, in words."""


class FileTooLargeError(FileRefusedError):
    """That a file has more than is read of one."""


class FileSignature(NamedTuple):
    """What tells one content of a file from the next; and when it came."""

    inode: int
    size: int
    modified_ns: int
    arrived_ns: int

    @staticmethod
    def from_stat(status: os.stat_result) -> FileSignature:
        """The signature of a file."""
        return FileSignature(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def login_of(number: int) -> str:
    """Return the login of an account, or its number where this machine does not know it."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def make_closed(folder: Path) -> None:
    """Make a folder, if it is not there, that nobody else can write to, whatever the umask."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(folder.stat().st_mode & 0o755)


def read_signature(name: str, folder: int) -> FileSignature | None:
    """The signature of a file in an open folder; None if it is not there."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileRefusedError(error.strerror or "it cannot be looked at") from error
    check_regular_file(status)
    return FileSignature.from_stat(status)


def check_regular_file(status: os.stat_result) -> None:
    """Refuse what is not a plain file."""
    if stat.S_ISLNK(status.st_mode):
        message = "it is a link, and links are not followed"
        raise FileRefusedError(message)
    if not stat.S_ISREG(status.st_mode):
        message = "it is not a plain file"
        raise FileRefusedError(message)


def read_file(
    name: str, folder: int, limit: int, refuse: Callable[[os.stat_result], None] = check_regular_file
) -> tuple[FileSignature, bytes]:
    """A file in an open folder, as it is now; `refuse` may ask more of the very file that was opened."""
    try:
        handle = os.open(name, READ_FLAGS, dir_fd=folder)
    except OSError as error:
        raise FileRefusedError(error.strerror or "it cannot be opened") from error
    try:
        status = os.fstat(handle)
        refuse(status)
        if status.st_size > limit:
            message = f"it has {status.st_size} bytes, more than the {limit} that are read"
            raise FileTooLargeError(message)
        data = os.read(handle, status.st_size + 1)
        while len(data) != status.st_size and (more := os.read(handle, 65536)):
            data += more
            if len(data) > limit:
                message = f"it grew past the {limit} bytes that are read"
                raise FileTooLargeError(message)
    except OSError as error:
        raise FileRefusedError(error.strerror or "it cannot be read") from error
    finally:
        os.close(handle)
    return FileSignature.from_stat(status), data


def write_atomically(
    path: Path | str, content: bytes | Iterable[bytes] | Callable[[IO[bytes]], object], mode: int = 0o644
) -> None:
    """Write a file, perhaps piece by piece, whole or not at all; what stood there stays until then."""
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{name}.new")  # noqa: PTH118 # thousands of times a build: a Path takes a third of it
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.writelines([content] if isinstance(content, bytes) else content)
        os.replace(new, path)  # noqa: PTH105 # the same
    except OSError as error:
        with suppress(FileNotFoundError):
            os.unlink(new)  # noqa: PTH108 # the same
        error.filename, error.filename2 = str(path), None  # a full disk names no file
        raise


def write_atomically_in_folder(folder: int, name: str, content: bytes, mode: int = 0o640) -> None:
    """The same in an open folder, which nobody can exchange for another meanwhile; one at a time in a folder.

    A push of the same host has other names, and what somebody else has put at ours is not opened: a pipe would wait.
    """
    new = f".{name}.put"
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)  # whatever the umask: the group reads
            file.write(content)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise


def compute_digest(*parts: bytes) -> bytes:
    """What tells one content from another."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(b"%d " % len(part))
        found.update(part)
    return found.digest()


def read_file_from_folder(folder: Path, name: str, limit: int) -> tuple[FileSignature, bytes]:
    """A file in state/."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return read_file(name, handle, limit, check_file)
    finally:
        os.close(handle)


OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Bytes that are read of a file of ours: 20,000 hosts need a third of it.
LIMIT = 64 * 1024 * 1024
# What a file of another shape can raise where it is taken apart.
WRONG_SHAPE = (ValueError, TypeError, AttributeError, KeyError, OverflowError)
COPY = ".bak"
USED = "the last good copy of it is used"
Value = TypeVar("Value")


class ForeignFolderError(Exception):
    """Why state/ is not used, and the command that corrects it, in one sentence."""


def check_folder(state: Path) -> None:
    """Refuse a state/ that belongs to another user or that others may write; one that is not there yet is made.

    As root, refuse to make one in another user's folder too: that user's next build could not write to it.
    """
    where = state.absolute()
    try:
        link, status = where.lstat(), where.stat()
    except OSError:
        if os.geteuid() == 0:
            refuse_other_owner(next((one for one in where.parents if one.is_dir()), Path("/")))
        return
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        message = f"{where} is another user's link: set GPUBOARD_STATE to the folder itself"
        raise ForeignFolderError(message)
    if not stat.S_ISDIR(status.st_mode):
        message = f"{where} is not a folder: set GPUBOARD_STATE to one"
        raise ForeignFolderError(message)
    refuse_other_owner(where)
    if status.st_mode & OTHERS_WRITE:
        message = f"others can write to {where}: check what they put there, then close it: chmod 700 {quote(where)}"
        raise ForeignFolderError(message)


def refuse_other_owner(folder: Path) -> None:
    """Refuse a folder that is neither root's nor ours."""
    owner = folder.stat().st_uid
    if owner in (0, os.geteuid()):
        return
    name = user_name(owner)
    if os.geteuid() == 0:
        message = f"{folder} belongs to {name}: run this as {name}, with sudo -u {name_for_sudo(owner)}"
    else:
        message = f"{folder} belongs to {name}: run this as {name}, or set GPUBOARD_STATE to a folder of your own"
    raise ForeignFolderError(message)


def user_name(uid: int) -> str:
    """Return the name of a user, or in a container without names the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def name_for_sudo(uid: int) -> str:
    """Return how sudo wants to have a user named."""
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"'#{uid}'"


def quote(path: Path) -> str:
    """Return a path as a shell needs it."""
    return shlex.quote(str(path))


def check_file(status: os.stat_result) -> None:
    """Refuse a file that is not a plain one, that is another user's, or that others may write."""
    check_regular_file(status)
    if status.st_uid not in (0, os.geteuid()):
        message = f"it belongs to {user_name(status.st_uid)}"
        raise FileRefusedError(message)
    if status.st_mode & OTHERS_WRITE:
        message = "others can write it: check it, then close it with chmod 600"
        raise FileRefusedError(message)


def read(path: Path, limit: int = LIMIT) -> bytes:
    """Read a file of ours; FileNotFoundError where there is none, files.Refused says why it is not read."""
    folder = os.open(path.parent, ROOT_FOLDER_FLAGS)
    try:
        os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        return read_file(path.name, folder, limit, check_file)[1]
    finally:
        os.close(folder)


def is_empty(path: Path) -> bool:
    """Return True for a file that somebody or something has emptied: none of ours is written so."""
    try:
        return path.is_file() and not path.stat().st_size
    except OSError:
        return False


def copy_of(path: Path) -> Path:
    """Return where the last good copy of a file stands."""
    return path.with_name(path.name + COPY)


def replace(path: Path, content: bytes) -> None:
    """Write a small file that cannot be rebuilt, and its copy first: so the copy is never older than the file."""
    write_atomically(copy_of(path), content, 0o600)
    write_atomically(path, content, 0o600)


def read_copy(path: Path, limit: int = LIMIT) -> bytes:
    """Read the last good copy of a file; nothing where there is none that may be read."""
    with suppress(OSError, FileRefusedError):
        return read(copy_of(path), limit)
    return b""


def load(path: Path, parse: Callable[[bytes], Value], limit: int = LIMIT) -> tuple[Value | None, str]:
    """Return what a small file holds, and what is wrong with it; its copy answers for one that is empty or damaged.

    A file that is not there is a new one, and nothing is wrong: whoever wants to begin anew deletes it.
    """
    try:
        content = read(path, limit)
        if content:
            return parse(content), ""
        problem = "is empty"
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except (OSError, FileRefusedError) as why:
        problem = f"cannot be read ({getattr(why, 'strerror', None) or why})"
    except WRONG_SHAPE:
        problem = "is damaged"
    if copy := read_copy(path, limit):
        with suppress(*WRONG_SHAPE):
            return parse(copy), f"{problem}: {USED}"
    return None, f"{problem}, and there is no good copy of it: begun anew"


CORRECT = "call `./install.sh web` on the web host, as the user who builds the board"


def name_writers(data: Path) -> str:
    """Name the other accounts that can replace what stands in data/; empty if none can.

    In a sticky folder they can not. Nobody else is in a group that has its owner's name and no other members; but where
    there is an access list, the mode does not tell who can.
    """
    status = os.stat(data)  # noqa: PTH116 # at each build
    if status.st_mode & stat.S_ISVTX:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "everybody on this machine"
    if not status.st_mode & stat.S_IWGRP:
        return ""
    if has_access_list(data):
        return "somebody in its access list"
    owner = login_of(status.st_uid)
    try:
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return f"the group {status.st_gid}"
    return "" if group.gr_name == owner and set(group.gr_mem) <= {owner} else f"the group {group.gr_name}"


def has_access_list(folder: Path) -> bool:
    """Return True if rights in a folder are given by a list (setfacl), not by its mode alone."""
    try:
        return bool(os.getxattr(folder, "system.posix_acl_access"))
    except OSError:
        return False


def is_ours(data: Path) -> bool:
    """Return True if this account may change the modes of data/."""
    return os.geteuid() in {0, data.stat().st_uid}


def list_problems(data: Path) -> list[Problem]:
    """List what is wrong with who may write where, each with the command that corrects it."""
    found = []
    try:
        writers = name_writers(data)
        if writers:
            help_ = CORRECT if is_ours(data) else "its owner must call `chmod go-w` for it"
            what = f"{writers} can put links into it, and so redirect what is written there: {help_}"
            found.append(Problem("data", what))
        if find_booking_folder(data) == data:
            if os.path.lexists(data / BOOKINGS):
                what = "it is not used: it must be a folder of the owner of data/; give it to them, or remove it"
                found.append(Problem(f"data/{BOOKINGS}", what))
            return found
        what = (
            f"it is not read any more, since bookings are in data/{BOOKINGS}/: {CORRECT}, which takes over what it has"
        )
        found += [Problem(f"data/{name}", what) for name in (BOOKINGS_FILE, WATCHES_FILE) if is_left(data / name)]
    except OSError:  # the build itself tells that data/ cannot be read
        pass
    return found


def is_left(path: Path) -> bool:
    """Return True for a file that stands in data/ though it belongs into data/bookings/."""
    return os.path.lexists(path) and not is_moved_file_link(path)


BOOKINGS_FILE, WATCHES_FILE = "comments.json", "watches.json"


def find_booking_folder(data: Path) -> Path:
    """Return the folder of the bookings: data/bookings/ if the owner of data/ or root made it, else data/ itself."""
    inner = data / BOOKINGS
    try:
        status = os.lstat(inner)
        owners = {0, os.stat(data).st_uid}  # noqa: PTH116 # at each build, several times
    except (FileNotFoundError, NotADirectoryError):
        return data
    except OSError:
        return inner  # whoever reads there is told why they cannot
    return inner if stat.S_ISDIR(status.st_mode) and status.st_uid in owners else data


def find_bookings_file(data: Path) -> Path:
    """Return the path of comments.json."""
    return find_booking_folder(data) / BOOKINGS_FILE


def is_moved_file_link(path: str | Path) -> bool:
    """Return True for the link that data/ has in the place of a file which is in data/bookings/ now.

    No program follows it. It leads people who edit the file by hand, and stops programs of older versions.
    """
    name = os.path.basename(path)  # noqa: PTH119 # for each link in data/
    try:
        return name in {BOOKINGS_FILE, WATCHES_FILE} and os.readlink(path) == f"{BOOKINGS}/{name}"  # noqa: PTH115 # the same
    except OSError:
        return False


MAX_FILE_BYTES = 1024 * 1024


class CachedFile(Generic[Row]):
    """Read again only if it changed; one that is not there is empty."""

    def __init__(
        self,
        data: Path,
        state: Path | None,
        name: str,
        reader: Callable[[bytes], ParsedFile[Row]],
        limit: int = MAX_FILE_BYTES,
    ) -> None:
        """Take up the last good content; without a state folder none is kept."""
        self.data_folder, self.state_folder, self.name, self.parser, self.max_bytes = data, state, name, reader, limit
        self.signature: FileSignature | None = None
        self.content: bytes | None = None
        self.stored_content: bytes | None = None
        self.rows: tuple[Row, ...] = ()
        self.content_time = 0.0
        self.problems: tuple[str, ...] = ()
        with suppress(OSError, FileRefusedError):
            if state is None:
                return
            signature, content = read_file_from_folder(state, name, limit)
            dump = self.understood(content)
            if dump.is_complete:
                self.content = self.stored_content = content
                self.rows, self.content_time = dump.rows, signature.modified_ns / 1e9

    @property
    def folder(self) -> Path:
        """Where it is now."""
        return self.data_folder

    def read(self) -> tuple[tuple[Row, ...], list[Problem]]:
        """What it says, and what is wrong with it."""
        unkept: list[Problem] = []
        try:
            folder = os.open(self.folder, ROOT_FOLDER_FLAGS)
            try:
                signature = read_signature(self.name, folder)
                if signature is None or signature != self.signature:
                    content = None
                    if signature:
                        signature, content = read_file(self.name, folder, self.max_bytes)
                    unkept = self.parse_content(signature, content)
            finally:
                os.close(folder)
        except (OSError, FileRefusedError) as why:
            self.signature = None
            self.problems = (self.describe_fallback(f"not read: {getattr(why, 'strerror', None) or why}"),)
        return self.rows, [Problem(f"data/{self.name}", what) for what in self.problems] + unkept

    def parse_content(self, signature: FileSignature | None, content: bytes | None) -> list[Problem]:
        """Understand a new content, and keep it if it is good."""
        dump: ParsedFile[Row] = ParsedFile() if content is None else self.understood(content)
        self.signature, self.problems = signature, dump.problems
        if not dump.is_complete:
            self.problems = tuple(self.describe_fallback(f"not read: {what}") for what in dump.problems)
            return []
        self.rows, self.content = dump.rows, content
        self.content_time = signature.arrived_ns / 1e9 if signature else 0.0
        return self.store_content(content) if content != self.stored_content else []

    def understood(self, content: bytes) -> ParsedFile[Row]:
        """What the reader makes of it; one that raises costs this file alone."""
        try:
            return self.parser(content)
        except Exception as error:
            return ParsedFile(is_complete=False, problems=(describe_fault("it could not be understood", error),))

    def store_content(self, content: bytes | None) -> list[Problem]:
        """Write the last good content to state/, or remove it with the file that it was."""
        if self.state_folder is None:
            return []
        store = self.state_folder / self.name
        try:
            if content is None:
                store.unlink(missing_ok=True)
            else:
                write_atomically(store, content, 0o600)
            self.stored_content = content
        except OSError as error:
            self.signature = None  # so that it is tried again
            return [Problem(f"state/{self.name}", f"data/{self.name} could not be kept: {error.strerror}")]
        return []

    def describe_fallback(self, what: str) -> str:
        """Say what is used in the place of a file that cannot be read."""
        return what if self.content is None else f"{what}; its content of {format_local_time(self.content_time)} serves"


MAX_LOG_BYTES = 512 * 1024
MAX_LINE_CHARACTERS = 500


class BuildLog:
    """Appends lines; what cannot be written is lost, since a full disk is told elsewhere."""

    def __init__(self, state: Path) -> None:
        """The folder in which it stands."""
        self.path = state / "build.log"

    def write(self, when: datetime, line: str) -> None:
        """One line; when the file is large, it becomes build.log.1, and a new one is begun."""
        text = " ".join(line.split())[:MAX_LINE_CHARACTERS]
        with suppress(OSError):
            with suppress(FileNotFoundError):
                if self.path.stat().st_size > MAX_LOG_BYTES:
                    self.path.replace(self.path.with_name("build.log.1"))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{when.isoformat(timespec='seconds')} {text}\n")


PACKAGE_FOLDER = Path(__file__).parents[1]


def find_assets_folder() -> Path:
    """The style, the script and the icon of the page."""
    packed = PACKAGE_FOLDER / "assets"
    return packed if packed.is_dir() else PACKAGE_FOLDER.parent / "www/assets"


def find_scripts_folder() -> Path:
    """All that runs on a GPU host."""
    packed = PACKAGE_FOLDER / "scripts"
    return packed if packed.is_dir() else PACKAGE_FOLDER.parent / "scripts"


def find_installer() -> Path:
    """install.sh, beside which is what it reads: the folder `install`."""
    packed = PACKAGE_FOLDER / "install.sh"
    return packed if packed.is_file() else PACKAGE_FOLDER.parent / "install.sh"
