"""`gpuboard edit`: edit comments.json in an editor, and check it before it counts."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import tzinfo
from functools import partial
from pathlib import Path

import click

from site_builder.bookings import commands, consul_store, parser, store
from site_builder.bookings.backends import BookingBackend, LocalBookingBackend
from site_builder.bookings.operations import EditOperation
from site_builder.core.command_options import CommandError, print_command_message
from site_builder.core.data_folder import BOOKINGS_FILE, find_bookings_file_in_data, find_bookings_folder_in_data
from site_builder.core.files import FOLDER_FLAGS, ROOT_FOLDER_FLAGS
from site_builder.core.terminal_text import clean_text

LINE_REFERENCE = re.compile(r"line \d+(?:, column \d+)?")
MAX_PROBLEMS = 10
# Each copy has a folder, which is locked as long as we or the editor live; beside the copy is the original.
COPY_FOLDER_PREFIX, ORIGINAL_FILE = "gpuboard-edit-", "original.json"
# A copy that was left behind is named once, by this file beside it, and removed a day later.
NAMED_FILE = ".named"
NAMED_RETENTION_S = 86400
# Seconds in which a new folder may not be locked yet.
NEW_FOLDER_GRACE_S = 60
# An editor that needs no shell: a program, and words for it.
PLAIN_COMMAND = re.compile(r"[A-Za-z0-9_./+-]+( [A-Za-z0-9_./+:,=-]+)*")
END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# Seconds that an editor has to end, if we are ended.
EDITOR_END_TIMEOUT_S = 5


@click.command()
@commands.with_booking_backend
def edit(place: BookingBackend) -> None:
    """Edit comments.json in your editor, safely.

    Opens a copy in $VISUAL, $EDITOR or vi. When you leave the editor, the copy is checked and merged with what
    others booked meanwhile. A copy with errors is kept, and you are told where; so is the copy of an edit that was
    killed. The next edit names it again, and it is removed after a day.

    \b
    gpuboard edit
    """
    if not isinstance(place, LocalBookingBackend):
        message = "comments.json of a board on another machine cannot be edited from here: use `gpuboard change ID`"
        raise CommandError(message)
    booking_folder = find_bookings_folder_in_data(place.settings.data)
    with store.open_booking_store_folder(booking_folder) as folder:  # refused before the work, not after it
        store.BookingStore(place.settings.data).check_owner(folder)
    if not os.access(booking_folder, os.W_OK):
        raise CommandError(f"{booking_folder.absolute()} cannot be written: {store.ASK_ADMIN_HINT}")
    original = consul_store.open_consul_or_local_store(place.settings.data, place.settings.kv).read()
    remove_left_edit_copies()
    with exit_edit_on_signals(), hold_edit_copy(original) as (copy, lock):
        if commands.is_interactive_booking():
            print_command_message(f"you edit a copy, {copy}; it is saved when you leave the editor")
        edited = edit_until_valid(copy, original, place.settings.zone, lock)
        if edited == original:
            print_command_message("nothing changed")
            return
        with commands.translate_booking_errors():
            transaction = place.service.execute(place.user, EditOperation(original, edited))
        path = find_bookings_file_in_data(place.settings.data)
        print_command_message(f"{path} is written: {clean_text(transaction.message)}")


@contextmanager
def hold_edit_copy(original: bytes) -> Iterator[tuple[Path, int]]:
    """Make a copy in a folder of its own; if something goes wrong, it stays if somebody has worked on it."""
    copy = Path(tempfile.mkdtemp(prefix=COPY_FOLDER_PREFIX)) / BOOKINGS_FILE
    lock = os.open(copy.parent, ROOT_FOLDER_FLAGS)
    try:
        with suppress(OSError):  # where folders cannot be locked, no copy is ever taken for one that was left behind
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in (copy.with_name(ORIGINAL_FILE), copy):
            path.touch(0o600)
            path.write_bytes(original)
        yield copy, lock  # which the editor inherits: it shows that the copy is open
    except BaseException as error:
        os.close(lock)
        is_open = True
        with suppress(OSError), lock_left_edit_folder(copy.parent):
            is_open = False
        if not is_open and not has_edited_copy(copy, original):
            shutil.rmtree(copy.parent, ignore_errors=True)
            raise
        where = f"nothing was written; your version is in {copy}"
        if isinstance(error, CommandError):
            raise type(error)(f"{error.message}; {where}") from None
        with suppress(OSError):  # the terminal may be gone
            print_command_message(where)
        raise
    os.close(lock)
    shutil.rmtree(copy.parent, ignore_errors=True)


def has_edited_copy(copy: Path, original: bytes | None) -> bool:
    """Return whether there is something to lose: a copy that differs, or what an editor saved beside it."""
    try:
        saved_files = {path.name for path in copy.parent.iterdir()} - {copy.name, ORIGINAL_FILE, NAMED_FILE}
        return bool(saved_files) or (copy.exists() and copy.read_bytes() != original)
    except OSError:
        return True


@contextmanager
def exit_edit_on_signals() -> Iterator[None]:
    """Exit by an exception when we are ended or the terminal is closed, so that `hold_edit_copy` can clean up."""

    def exit_with_code(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    old_handlers = {number: signal.getsignal(number) for number in END_SIGNALS}
    for number, handler in old_handlers.items():
        if handler != signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, exit_with_code)
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def remove_left_edit_copies() -> None:
    """Remove copies of ours that are not open any more; name one with edits, once, and remove it a day later."""
    for folder in Path(tempfile.gettempdir()).glob(f"{COPY_FOLDER_PREFIX}*"):
        with suppress(OSError), lock_left_edit_folder(folder) as is_left:
            if not is_left:
                continue
            copy, original_path, named_path = (folder / name for name in (BOOKINGS_FILE, ORIGINAL_FILE, NAMED_FILE))
            original = original_path.read_bytes() if original_path.exists() else None
            is_named = named_path.exists()
            is_expired = is_named and time.time() - named_path.stat().st_mtime > NAMED_RETENTION_S
            if is_expired or not has_edited_copy(copy, original):
                shutil.rmtree(folder, ignore_errors=True)
            elif not is_named:
                named_path.touch(0o600)
                left = f"an earlier version of yours that was not saved is in {copy}"
                print_command_message(f"{left}; it is removed after a day")


@contextmanager
def lock_left_edit_folder(folder: Path) -> Iterator[bool]:
    """Lock a folder, and yield whether it is ours and not open."""
    handle = os.open(folder, FOLDER_FLAGS)
    try:
        status = os.fstat(handle)
        is_ours = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
        is_new = abs(time.time() - status.st_mtime) < NEW_FOLDER_GRACE_S and not any(folder.iterdir())
        if is_ours and not is_new:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield is_ours and not is_new
    finally:
        os.close(handle)


def edit_until_valid(copy: Path, original: bytes, zone: tzinfo, lock: int) -> bytes:
    """Run the editor until the copy has no problems that the original does not have, and return its content."""
    while True:
        run_editor(copy, lock)
        try:
            edited = copy.read_bytes()
        except OSError as error:
            raise CommandError(f"{copy} cannot be read any more: {error.strerror}") from None
        if edited == original:
            return edited
        before, after = (parser.parse_bookings(content, zone) for content in (original, edited))
        problems = list(after.problems)
        if after.is_complete:  # what the original has, on whichever line, is not new
            known = Counter(LINE_REFERENCE.sub("", problem) for problem in before.problems)
            for problem in after.problems:
                text = LINE_REFERENCE.sub("", problem)
                if known[text]:
                    known[text] -= 1
                    problems.remove(problem)
        if not problems:
            return edited
        commands.print_booking_problems(problems, MAX_PROBLEMS, "more problems")
        if not commands.is_interactive_booking() or not commands.ask_booking_confirmation("Edit again?"):
            raise CommandError("a file with new problems is not saved")


def run_editor(copy: Path, lock: int) -> None:
    """Run the user's editor, which inherits the lock."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # it draws on the terminal, also if our own stdout is none
    output = None if sys.stdout.isatty() or not sys.stderr.isatty() else sys.stderr.fileno()
    old_handler = signal.signal(signal.SIGINT, lambda *_: None)  # the editor handles Ctrl-C
    # a signal that ends us waits until we have an editor to pass it on to
    restore_mask = partial(signal.pthread_sigmask, signal.SIG_SETMASK, signal.pthread_sigmask(signal.SIG_BLOCK, []))
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    start = partial(subprocess.Popen, stdout=output, pass_fds=(lock,), preexec_fn=restore_mask)
    process = None
    try:
        if PLAIN_COMMAND.fullmatch(editor):  # without a shell, which would not pass on a signal
            with suppress(OSError):  # the shell reports it in its own way
                process = start([*editor.split(), str(copy)])
        if process is None:  # by sh as git does it, so that it may have options
            process = start(["/bin/sh", "-c", f'{editor} "$@"', editor, str(copy)])
        try:
            restore_mask()
            code = process.wait()
        except SystemExit:  # we are ended: end it too, so that it can save its work
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(EDITOR_END_TIMEOUT_S)
            raise
    finally:
        restore_mask()
        signal.signal(signal.SIGINT, old_handler)
    if code:
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        hint = ": set EDITOR to an installed editor" if code in (126, 127) else ""
        raise CommandError(f"the editor ({clean_text(editor)}) {how}{hint}")
