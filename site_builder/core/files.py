"""Read and write files whose content, owner or folder we do not trust."""

from __future__ import annotations

import hashlib
import os
import pwd
import shlex
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# The folder that the admin names may be a link, for example to a share; folders inside it may not.
ROOT_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Largest file of ours in bytes: 20,000 hosts need a third of it.
MAX_STATE_FILE_BYTES = 64 * 1024 * 1024
# What parsing a file of an unexpected form can raise.
PARSE_ERRORS = (ValueError, TypeError, AttributeError, KeyError, OverflowError)
COPY_USED_MESSAGE = "the last good copy is used"
Value = TypeVar("Value")
MAX_LOG_BYTES = 512 * 1024
MAX_LINE_CHARACTERS = 500
PACKAGE_FOLDER = Path(__file__).parents[1]
# They are inside an installed package, and beside that of a clone.
SCRIPTS_FOLDER, ASSETS_FOLDER = (
    packed if (packed := PACKAGE_FOLDER / Path(source).name).is_dir() else PACKAGE_FOLDER.parent / source
    for source in ("scripts", "www/assets")
)


class FileRefusedError(Exception):
    """Why a file is not read, in words."""


class FileTooLargeError(FileRefusedError):
    """A file is larger than what is read of one."""


class ForeignFolderError(Exception):
    """Why state/ is not used, and the command that corrects it, in one sentence."""


class FileSignature(NamedTuple):
    """What changes with the content of a file; and when it arrived."""

    inode: int
    size: int
    modified_ns: int
    arrived_ns: int

    @staticmethod
    def from_stat(status: os.stat_result) -> FileSignature:
        return FileSignature(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_signature(name: str, folder: int) -> FileSignature | None:
    """Return the signature of a file in an open folder; None if it is missing."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileRefusedError(error.strerror or "it cannot be inspected") from error
    check_regular_file(status)
    return FileSignature.from_stat(status)


def check_regular_file(status: os.stat_result) -> None:
    """Refuse links and everything else that is not a plain file."""
    if stat.S_ISLNK(status.st_mode):
        raise FileRefusedError("it is a link, and links are not followed")
    if not stat.S_ISREG(status.st_mode):
        raise FileRefusedError("it is not a plain file")


def read_file(
    name: str, folder: int, limit: int, check: Callable[[os.stat_result], None] = check_regular_file
) -> tuple[FileSignature, bytes]:
    """Read a file in an open folder; `check` may refuse the very file that was opened."""
    try:
        handle = os.open(name, READ_FLAGS, dir_fd=folder)
    except OSError as error:
        raise FileRefusedError(error.strerror or "it cannot be opened") from error
    try:
        status = os.fstat(handle)
        check(status)
        if status.st_size > limit:
            raise FileTooLargeError(f"it has {status.st_size} bytes, and the limit is {limit}")
        data = os.read(handle, status.st_size + 1)
        while len(data) != status.st_size and (chunk := os.read(handle, 65536)):
            data += chunk
            if len(data) > limit:
                raise FileTooLargeError(f"it grew past the limit of {limit} bytes")
    except OSError as error:
        raise FileRefusedError(error.strerror or "it cannot be read") from error
    finally:
        os.close(handle)
    return FileSignature.from_stat(status), data


def read_own_file(path: Path, limit: int = MAX_STATE_FILE_BYTES) -> bytes:
    """Read a file of ours; raise FileNotFoundError, or FileRefusedError with the reason."""
    return read_with_signature(path, limit)[1]


def read_with_signature(path: Path, limit: int) -> tuple[FileSignature, bytes]:
    folder = os.open(path.parent, ROOT_FOLDER_FLAGS)
    try:
        os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        return read_file(path.name, folder, limit, check_own_file)
    finally:
        os.close(folder)


def check_own_file(status: os.stat_result) -> None:
    """Refuse a file that is not plain, that is another user's, or that others may write to."""
    check_regular_file(status)
    if status.st_uid not in (0, os.geteuid()):
        raise FileRefusedError(f"it belongs to {find_file_owner_login(status.st_uid)}")
    if status.st_mode & OTHERS_WRITE:
        raise FileRefusedError("others can write to it: check it, then run chmod 600 on it")


def load_file_or_copy(path: Path, parse: Callable[[bytes], Value]) -> tuple[Value | None, str]:
    """Return the content of a small file, and what is wrong with it; a copy replaces an empty or damaged file."""
    try:
        if content := read_own_file(path):
            return parse(content), ""
        problem = "is empty"
    except (FileNotFoundError, NotADirectoryError):  # a new one: to start over, people delete the file
        return None, ""
    except (OSError, FileRefusedError) as error:
        problem = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    except PARSE_ERRORS:
        problem = "is damaged"
    if copy_content := read_file_copy(path):
        with suppress(*PARSE_ERRORS):
            return parse(copy_content), f"{problem}: {COPY_USED_MESSAGE}"
    return None, f"{problem}, and there is no good copy: starting over"


def read_file_copy(path: Path, limit: int = MAX_STATE_FILE_BYTES) -> bytes:
    """Read the last good copy of a file; empty if there is none that may be read."""
    with suppress(OSError, FileRefusedError):
        return read_own_file(find_copy_file(path), limit)
    return b""


def find_copy_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def is_emptied_file(path: Path) -> bool:
    """Return True for a file that was emptied: we never write an empty one."""
    with suppress(OSError):
        return path.is_file() and not path.stat().st_size
    return False


def write_atomically(
    path: Path | str, content: bytes | Iterable[bytes] | Callable[[IO[bytes]], object], mode: int = 0o644
) -> None:
    """Write a file, perhaps piece by piece, whole or not at all; the old content stays until then."""
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{name}.new")  # noqa: PTH118 # thousands of times a build; a Path is slow
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            if mode == 0o600:
                os.fchmod(handle, mode)  # what a killed writer left may have another
            if callable(content):
                content(file)
            else:
                file.writelines([content] if isinstance(content, bytes) else content)
        os.replace(new, path)  # noqa: PTH105 # the same
    except OSError as error:
        with suppress(FileNotFoundError):
            os.unlink(new)  # noqa: PTH108 # the same
        error.filename, error.filename2 = str(path), None  # the error of a full disk has no file name
        raise


def write_atomically_in_folder(folder: int, name: str, content: bytes, mode: int = 0o640) -> None:
    """Write a file into an open folder, which nobody can replace meanwhile; only one writer per folder."""
    new = f".{name}.put"  # a push of the same host uses other names
    try:
        # what somebody else put there is not opened: a pipe would block
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


def write_file_and_copy(path: Path, content: bytes) -> None:
    """Write a small file that cannot be rebuilt, and its copy first: so the copy is never older than the file."""
    write_atomically(find_copy_file(path), content, 0o600)
    write_atomically(path, content, 0o600)


def create_protected_folder(folder: Path) -> None:
    """Create a missing folder so that nobody else can write to it, whatever the umask."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(folder.stat().st_mode & 0o755)


def compute_digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d " % len(part))
        digest.update(part)
    return digest.digest()


def refuse_foreign_folder(state: Path) -> None:
    """Refuse a state/ that belongs to another user or that others may write to; a missing one is accepted."""
    path = state.absolute()
    try:
        link, status = path.lstat(), path.stat()
    except OSError:
        if os.geteuid() == 0:  # the next build of the user who has the folder could not write to one of root's
            refuse_folder_of_other_owner(next((parent for parent in path.parents if parent.is_dir()), Path("/")))
        return
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise ForeignFolderError(f"{path} is a link of another user: set GPUBOARD_STATE to the folder itself")
    if not stat.S_ISDIR(status.st_mode):
        raise ForeignFolderError(f"{path} is not a folder: set GPUBOARD_STATE to a folder")
    refuse_folder_of_other_owner(path)
    if status.st_mode & OTHERS_WRITE:
        quoted = shlex.quote(str(path))
        raise ForeignFolderError(f"others can write to {path}: check what is in it, then run: chmod 700 {quoted}")


def refuse_folder_of_other_owner(folder: Path) -> None:
    owner = folder.stat().st_uid
    if owner in (0, os.geteuid()):
        return
    name = find_file_owner_login(owner)
    message = f"{folder} belongs to {name}: run this as {name}, or set GPUBOARD_STATE to a folder of your own"
    if os.geteuid() == 0:
        sudo_name = f"'#{owner}'" if name == f"user {owner}" else name  # sudo wants ids in this form
        message = f"{folder} belongs to {name}: run this as {name}, with sudo -u {sudo_name}"
    raise ForeignFolderError(message)


def find_file_owner_login(uid: int) -> str:
    """Return the login of an account, or its number if this machine has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def append_to_build_log(state: Path, moment: datetime, line: str) -> None:
    """Append a line, or lose it: a full disk is reported elsewhere. A large file is first renamed to build.log.1."""
    path, text = state / "build.log", " ".join(line.split())[:MAX_LINE_CHARACTERS]
    with suppress(OSError):
        with suppress(FileNotFoundError):  # there is none yet, or another process has renamed it
            if path.stat().st_size > MAX_LOG_BYTES:
                path.replace(path.with_name("build.log.1"))
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{moment.isoformat(timespec='seconds')} {text}\n")
