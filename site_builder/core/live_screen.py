"""A screen that is drawn anew again and again, in one piece, until Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from site_builder.client.model import Failed
from site_builder.core import formatting
from site_builder.core.command_options import Failure, failing
from site_builder.core.terminal_text import cut

if TYPE_CHECKING:
    from site_builder.client.model import Fleet

# A screen of its own without a cursor, so that what was on the terminal comes back at the end; where that is very
# narrow, a line ends at its edge.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
# Nothing is cleared before it is written over: that would flicker.
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
SIZE = (80, 24)
# How soon a terminal that changes its size is drawn anew.
TURN = 0.1
# For how long the last look stays where the next ones fail: then nobody knows which GPU is free.
LASTS = 300


class Gone(Exception):
    """The terminal is no longer there."""


def watched(look: Callable[[], Fleet], drawn: Callable[[Fleet], Sequence[str]], every: float) -> None:
    """Show what `drawn` makes of each look; one that fails is told, the last one stays, the next is tried."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        message = "--watch needs a terminal that can be drawn on: leave it out, and run the command again and again"
        raise Failure(message)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with failing():
            fleet = look()  # what is wrong at the very beginning is no matter of time
    except KeyboardInterrupt:
        return
    with suppress(Gone, KeyboardInterrupt):
        try:
            write(ENTER)
            for_ever(fleet, look, drawn, every)
        finally:
            write(LEAVE)


def for_ever(fleet: Fleet, look: Callable[[], Fleet], drawn: Callable[[Fleet], Sequence[str]], every: float) -> None:
    """Draw, wait, look."""
    said, looked = "", time.monotonic()
    while True:
        head = said or f"every {every:g} s until Ctrl-C: {fleet.where}"
        shown = drawn if time.monotonic() < looked + LASTS else nothing
        show(head, shown, fleet, time.monotonic() + every)
        try:
            fleet, said, looked = look(), "", time.monotonic()
        except Failed as why:
            said = f"{seconds_old(time.monotonic() - looked)} old: {why}"


def seconds_old(age: float) -> str:
    """`12 s`, from a minute on `3 min`."""
    return f"{age:.0f} s" if age < formatting.MINUTE else formatting.duration(age)


def nothing(_: Fleet) -> Sequence[str]:
    """No table."""
    return ()


def show(head: str, drawn: Callable[[Fleet], Sequence[str]], fleet: Fleet, until: float) -> None:
    """Keep it on the screen until a moment, whatever the size of that becomes."""
    before = None
    while time.monotonic() < until:
        size = shutil.get_terminal_size(SIZE)
        if size != before:
            write(frame([cut(head, size.columns), *drawn(fleet)], size.columns, size.lines))
            before = size
        time.sleep(max(0, min(TURN, until - time.monotonic())))


def frame(lines: Sequence[str], across: int, height: int) -> str:
    """As many lines as there is room for, each in the place of what was there."""
    if len(lines) > height:
        more = f"… and {len(lines) - height + 1} more lines: a higher terminal shows them, or words find them"
        lines = [*lines[: height - 1], cut(more, across)]
    # cleared before it is written: after the last cell of a line, that would take this cell too
    return HOME + "\n".join(f"{REST_OF_LINE}{line}" for line in lines) + REST_OF_SCREEN


def write(text: str) -> None:
    """To the terminal, at once."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:
        raise Gone from None
