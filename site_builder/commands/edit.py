"""`gpuboard edit`: comments.json in an editor, checked before it counts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from site_builder.commands.booking import Here, Place, agreed, in_sentences, is_asked, shown, with_place
from site_builder.commands.options import Failure, tell

if TYPE_CHECKING:
    from datetime import tzinfo

LINE = re.compile(r"line \d+(?:, column \d+)?")
MOST_PROBLEMS = 10


@click.command()
@with_place
def edit(place: Place) -> None:
    """Edit the bookings by hand, safely.

    Opens a copy of comments.json in $VISUAL, $EDITOR or vi. When you leave the editor, the copy is checked, and what
    others booked meanwhile is kept. A copy that cannot be used stays where it is, and you are told where.

    \b
    gpuboard edit
    """
    from site_builder.sources import kv_ledger, ledger  # noqa: PLC0415 # --help needs none of it

    if not isinstance(place, Here):
        message = "the file of a board on another machine cannot be edited from here: use `gpuboard change ID`"
        raise Failure(message)
    check_writable(place.settings.data)
    original = kv_ledger.ledger_of(place.settings.data, place.settings.kv).read()
    copy = Path(tempfile.mkdtemp(prefix="gpuboard-edit-")) / ledger.FILE
    copy.touch(0o600)
    copy.write_bytes(original)
    if is_asked():
        tell(f"this is a copy, {copy}; it counts when you leave the editor")
    with kept(copy, original):
        edited = until_good(copy, original, place.settings.zone)
        if edited == original:
            tell("nothing was changed")
            return
        with in_sentences():
            done = place.desk.put(place.who, original, edited)
        tell(f"{place.settings.data / ledger.FILE} is written: {shown(done.words)}")


def check_writable(data: Path) -> None:
    """Refuse before the work, not after it."""
    from site_builder.sources import ledger  # noqa: PLC0415

    with ledger.opened(data) as folder:
        ledger.Ledger(data).like(folder)
    if not os.access(data, os.W_OK):
        message = f"{data.absolute()} cannot be written: {ledger.ASK}"
        raise Failure(message)


@contextmanager
def kept(copy: Path, original: bytes) -> Iterator[None]:
    """Whatever goes wrong, the copy stays if somebody has worked on it."""
    try:
        yield
    except BaseException as error:
        if not copy.exists() or copy.read_bytes() == original:
            shutil.rmtree(copy.parent, ignore_errors=True)
            raise
        where = f"nothing was written, and what you edited is in {copy}"
        if isinstance(error, Failure):
            raise type(error)(f"{error.message}; {where}") from None
        tell(where)
        raise
    shutil.rmtree(copy.parent, ignore_errors=True)


def until_good(copy: Path, original: bytes, zone: tzinfo) -> bytes:
    """What comes out of the editor, once it has no problems that were not there before."""
    while True:
        run_editor(copy)
        try:
            edited = copy.read_bytes()
        except OSError as error:
            raise Failure(f"{copy} cannot be read any more: {error.strerror}") from None
        found = problems(original, edited, zone)
        if edited == original or not found:
            return edited
        for problem in found[:MOST_PROBLEMS]:
            tell(shown(problem))
        if len(found) > MOST_PROBLEMS:
            tell(f"and {len(found) - MOST_PROBLEMS} more problems")
        if not is_asked() or not agreed("Edit again?"):
            message = "a file with new problems does not count"
            raise Failure(message)


def problems(original: bytes, edited: bytes, zone: tzinfo) -> list[str]:
    """Those of the edited file that the original does not have, wherever they stand."""
    from site_builder.readers import comments  # noqa: PLC0415

    before, after = (comments.read(content, zone) for content in (original, edited))
    if not after.whole:
        return list(after.problems)
    known = Counter(LINE.sub("", one) for one in before.problems)
    found = []
    for one in after.problems:
        same = LINE.sub("", one)
        if known[same]:
            known[same] -= 1
        else:
            found.append(one)
    return found


def run_editor(copy: Path) -> None:
    """The editor of that person, by sh as git does it, so that it may have options."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is the editor's, which has its own way with it
    try:
        code = subprocess.call(["/bin/sh", "-c", f'{editor} "$@"', editor, str(copy)], stdout=terminal())
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        hint = ": set EDITOR to one that is here" if code in (126, 127) else ""
        raise Failure(f"the editor ({shown(editor)}) {how}{hint}")


def terminal() -> int | None:
    """Where an editor draws, also where our own stdout leads elsewhere."""
    return None if sys.stdout.isatty() or not sys.stderr.isatty() else sys.stderr.fileno()
