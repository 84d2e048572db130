"""Contain unforeseen exceptions: each costs one host, entry or output, and is shown as a problem."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TypeVar

from site_builder.core.model import Problem

Item = TypeVar("Item")
PACKAGE_PATH = str(Path(__file__).parents[1]) + "/"
FAULT_NOTE = "internal error in gpuboard, please report it"
NOT_RENDERED_MESSAGE = "it could not be updated"
# Begins the place of a problem with an output file.
WWW_PREFIX = "www/"


class FaultLog:
    """Faults by place; an entry stays until the same work is done without an exception."""

    def __init__(self) -> None:
        self.problems_by_place: dict[str, Problem] = {}
        self.failed_places: set[str] = set()  # in this build

    def start_build(self) -> None:
        self.failed_places = set()

    def recall(self, sentences: Iterable[str]) -> None:
        """Restore the faults of outputs from the problems that the last builder stored."""
        for sentence in sentences:
            where, colon, what = sentence.partition(": ")
            if colon and where.startswith(WWW_PREFIX) and FAULT_NOTE in what:
                self.problems_by_place[where] = Problem(where, what)

    def note(self, where: str, what: str, error: BaseException) -> None:
        self.problems_by_place[where] = Problem(where, describe_fault(what, error))
        self.failed_places.add(where)

    def forget(self, where: str) -> None:
        self.problems_by_place.pop(where, None)

    def catch(self, where: str, what: str = NOT_RENDERED_MESSAGE, clears: bool = True) -> Catch:
        """Turn an exception into a problem, except one about a file; success ends an older problem if `clears`."""
        return Catch(self, where, what, clears)

    @property
    def problems(self) -> list[Problem]:
        return list(self.problems_by_place.values())


class Catch:
    """Context manager of `FaultLog.catch`; contextlib's takes three times as long, thousands of times a build."""

    __slots__ = ("clears", "faults", "what", "where")

    def __init__(self, faults: FaultLog, where: str, what: str, clears: bool) -> None:
        self.faults, self.where, self.what, self.clears = faults, where, what, clears

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Note the exception; let those pass that stop the program or are about a file."""
        if error is None:
            if self.clears and self.where not in self.faults.failed_places:
                self.faults.forget(self.where)
            return False
        if not isinstance(error, Exception) or is_file_system_fault(error):
            return False
        self.faults.note(self.where, self.what, error)
        return True


def locate_exception(error: BaseException) -> str:
    """Return the last line of gpuboard reached, as `OverflowError in board/card.py, line 90`."""
    place = ""
    frame = error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file.startswith(PACKAGE_PATH):
            place = f" in {file[len(PACKAGE_PATH) :]}, line {frame.tb_lineno}"
        frame = frame.tb_next
    # without its message, which may quote people and paths, and may differ at each build
    return f"{type(error).__name__}{place}"


def describe_fault(what: str, error: BaseException | str) -> str:
    """Say what failed and where; `error` is the exception or its location."""
    return f"{what}: {FAULT_NOTE} ({error if isinstance(error, str) else locate_exception(error)})"


def limit_fault_reports(report: Callable[[str], None], max_count: int = 100) -> Callable[[str], None]:
    """Return a function that reports each sentence once, up to a limit, so that no client can fill a log."""
    reported: set[str] = set()
    lock = Lock()

    def report_once(sentence: str) -> None:
        with lock:
            if sentence in reported or len(reported) >= max_count:
                return
            reported.add(sentence)
        report(sentence)

    return report_once


def is_file_system_fault(error: BaseException) -> bool:
    """Return True if a disk, folder or file is at fault, which is reported elsewhere; EOVERFLOW comes from numbers."""
    return isinstance(error, OSError) and error.errno != errno.EOVERFLOW


def split_by_fault(
    items: Iterable[Item], use: Callable[[Sequence[Item]], object]
) -> tuple[list[Item], list[tuple[Item, str]]]:
    """Try each item alone; return those that work, and the others with the location of the exception."""
    good: list[Item] = []
    bad: list[tuple[Item, str]] = []
    for item in items:
        try:
            use([item])
        except Exception as error:
            bad.append((item, locate_exception(error)))
        else:
            good.append(item)
    return good, bad


def iterate_error_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, wherever requests and urllib3 hide them."""
    seen: set[int] = set()
    candidates: list[object] = [error]
    while candidates:
        cause = candidates.pop(0)
        if isinstance(cause, BaseException) and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            candidates += [cause.__cause__, cause.__context__, getattr(cause, "reason", None), *cause.args]
