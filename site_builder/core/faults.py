"""Exceptions that nobody foresaw: each costs one host, one entry or one output, and is shown as a problem."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from site_builder.core.model import Problem

Item = TypeVar("Item")
PACKAGE = str(Path(__file__).parents[1]) + "/"
FAULT = "which is a fault of gpuboard's own: please report it"
NOT_MADE = "it could not be made anew"
# Names the outputs among the places of problems.
WWW = "www/"


def place_of(error: BaseException) -> str:
    """`OverflowError in renderers/host.py, line 90`: the last line of gpuboard that was reached.

    The message is left out: it may quote people and paths, and may be another one at each build.
    """
    place = ""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if file.startswith(PACKAGE):
            place = f" in {file[len(PACKAGE) :]}, line {step.tb_lineno}"
        step = step.tb_next
    return f"{type(error).__name__}{place}"


def describe(what: str, error: BaseException | str) -> str:
    """Say what failed and where: by the exception, or by its place."""
    return f"{what}, {FAULT} ({error if isinstance(error, str) else place_of(error)})"


def concerns_a_file(error: BaseException) -> bool:
    """Return whether the disk, a folder or a file is at fault, which has its own message; a number can be too."""
    return isinstance(error, OSError) and error.errno != errno.EOVERFLOW


def split_by_use(
    items: Iterable[Item], use: Callable[[Sequence[Item]], object]
) -> tuple[list[Item], list[tuple[Item, str]]]:
    """Try each item alone; return those that work, and the others with the place of the exception."""
    good: list[Item] = []
    bad: list[tuple[Item, str]] = []
    for one in items:
        try:
            use([one])
        except Exception as error:
            bad.append((one, place_of(error)))
        else:
            good.append(one)
    return good, bad


class Catch:
    """What `Faults.catch` returns; some thousand times a build, and contextlib's takes three times as long."""

    __slots__ = ("clears", "faults", "what", "where")

    def __init__(self, faults: Faults, where: str, what: str, clears: bool) -> None:
        """For the work of one place."""
        self.faults, self.where, self.what, self.clears = faults, where, what, clears

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Note what was raised; nothing that stops the program, or is about a file, is held back."""
        if error is None:
            if self.clears and self.where not in self.faults.noted:
                self.faults.forget(self.where)
            return False
        if not isinstance(error, Exception) or concerns_a_file(error):
            return False
        self.faults.note(self.where, self.what, error)
        return True


class Faults:
    """What failed, by its place; an entry stays until the same is done without an exception."""

    def __init__(self) -> None:
        """Nothing failed yet."""
        self.found: dict[str, Problem] = {}
        self.noted: set[str] = set()  # in this build

    def start(self) -> None:
        """Begin a build."""
        self.noted = set()

    def recall(self, sentences: Iterable[str]) -> None:
        """Take up the outputs that the last builder could not make, from the problems that it remembered."""
        for sentence in sentences:
            where, colon, what = sentence.partition(": ")
            if colon and where.startswith(WWW) and FAULT in what:
                self.found[where] = Problem(where, what)

    def note(self, where: str, what: str, error: BaseException) -> None:
        """Remember a fault."""
        self.found[where] = Problem(where, describe(what, error))
        self.noted.add(where)

    def forget(self, where: str) -> None:
        """Drop what is remembered of a place."""
        self.found.pop(where, None)

    def catch(self, where: str, what: str = NOT_MADE, clears: bool = True) -> Catch:
        """Turn an exception into a problem; one about a file passes, as the caller says more about it.

        Without one, an older problem of that place is over, unless this is but a part of the work.
        """
        return Catch(self, where, what, clears)

    @property
    def problems(self) -> list[Problem]:
        """All that is remembered."""
        return list(self.found.values())
