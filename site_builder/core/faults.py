"""Exceptions that nobody foresaw: each costs one host, one entry or one output, and is shown as a problem."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from site_builder.core.model import Problem

Item = TypeVar("Item")
PACKAGE_PATH = str(Path(__file__).parents[1]) + "/"
FAULT_NOTE = "which is a fault of gpuboard's own: please report it"
NOT_RENDERED_MESSAGE = "it could not be made anew"
# Names the outputs among the places of problems.
WWW_PREFIX = "www/"


def locate_exception(error: BaseException) -> str:
    """`OverflowError in renderers/host.py, line 90`: the last line of gpuboard that was reached.

    The message is left out: it may quote people and paths, and may be another one at each build.
    """
    place = ""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if file.startswith(PACKAGE_PATH):
            place = f" in {file[len(PACKAGE_PATH) :]}, line {step.tb_lineno}"
        step = step.tb_next
    return f"{type(error).__name__}{place}"


def describe_fault(what: str, error: BaseException | str) -> str:
    """Say what failed and where: by the exception, or by its place."""
    return f"{what}, {FAULT_NOTE} ({error if isinstance(error, str) else locate_exception(error)})"


def is_file_error(error: BaseException) -> bool:
    """Return whether the disk, a folder or a file is at fault, which has its own message; a number can be too."""
    return isinstance(error, OSError) and error.errno != errno.EOVERFLOW


def split_by_success(
    items: Iterable[Item], use: Callable[[Sequence[Item]], object]
) -> tuple[list[Item], list[tuple[Item, str]]]:
    """Try each item alone; return those that work, and the others with the place of the exception."""
    good: list[Item] = []
    bad: list[tuple[Item, str]] = []
    for one in items:
        try:
            use([one])
        except Exception as error:
            bad.append((one, locate_exception(error)))
        else:
            good.append(one)
    return good, bad


class Catch:
    """What `Faults.catch` returns; some thousand times a build, and contextlib's takes three times as long."""

    __slots__ = ("clears", "faults", "what", "where")

    def __init__(self, faults: FaultLog, where: str, what: str, clears: bool) -> None:
        """For the work of one place."""
        self.faults, self.where, self.what, self.clears = faults, where, what, clears

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Note what was raised; nothing that stops the program, or is about a file, is held back."""
        if error is None:
            if self.clears and self.where not in self.faults.failed_places:
                self.faults.forget(self.where)
            return False
        if not isinstance(error, Exception) or is_file_error(error):
            return False
        self.faults.note(self.where, self.what, error)
        return True


class FaultLog:
    """What failed, by its place; an entry stays until the same is done without an exception."""

    def __init__(self) -> None:
        """Nothing failed yet."""
        self.problems_by_place: dict[str, Problem] = {}
        self.failed_places: set[str] = set()  # in this build

    def start_build(self) -> None:
        """Begin a build."""
        self.failed_places = set()

    def recall(self, sentences: Iterable[str]) -> None:
        """Take up the outputs that the last builder could not make, from the problems that it remembered."""
        for sentence in sentences:
            where, colon, what = sentence.partition(": ")
            if colon and where.startswith(WWW_PREFIX) and FAULT_NOTE in what:
                self.problems_by_place[where] = Problem(where, what)

    def note(self, where: str, what: str, error: BaseException) -> None:
        """Remember a fault."""
        self.problems_by_place[where] = Problem(where, describe_fault(what, error))
        self.failed_places.add(where)

    def forget(self, where: str) -> None:
        """Drop what is remembered of a place."""
        self.problems_by_place.pop(where, None)

    def catch(self, where: str, what: str = NOT_RENDERED_MESSAGE, clears: bool = True) -> Catch:
        """Turn an exception into a problem; one about a file passes, as the caller says more about it.

        Without one, an older problem of that place is over, unless this is but a part of the work.
        """
        return Catch(self, where, what, clears)

    @property
    def problems(self) -> list[Problem]:
        """All that is remembered."""
        return list(self.problems_by_place.values())
