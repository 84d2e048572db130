"""What a check is, and what it finds: a status, one sentence, and what to do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

from site_builder.client import loader
from site_builder.client.model import Fleet
from site_builder.config.settings import LoadedSettings, Settings
from site_builder.core import board_client
from site_builder.core.board_client import BoardResponse
from site_builder.core.model import FleetUnavailableError, Problem

# No check takes longer: a share that hangs costs its own checks only.
CHECK_TIMEOUT_S = 30
PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
EXIT_CODES = {PASS: 0, WARN: 1, FAIL: 2}


class CheckResult(NamedTuple):
    """A status, one sentence and advice; a check that does not apply here is shown only with --verbose."""

    status: str
    message: str
    advice: str = ""
    is_not_applicable: bool = False

    @classmethod
    def passed(cls, message: str) -> CheckResult:
        return cls(PASS, message)

    @classmethod
    def warn(cls, message: str, advice: str) -> CheckResult:
        """Report something that is wrong while the board still works."""
        return cls(WARN, message, advice)

    @classmethod
    def fail(cls, message: str, advice: str) -> CheckResult:
        """Report something that keeps the board, or a part of it, from working, or lets in the wrong people."""
        return cls(FAIL, message, advice)

    @classmethod
    def skip(cls, reason: str) -> CheckResult:
        """Report that the check could not be made."""
        return cls(SKIP, reason)

    @classmethod
    def not_applicable(cls, reason: str) -> CheckResult:
        return cls(SKIP, reason, is_not_applicable=True)


class CheckEndedError(Exception):
    """Ends a check with a result, from within what it calls."""

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result.message)
        self.result = result


@dataclass(frozen=True)
class DoctorContext:
    """Everything that checks inspect."""

    loaded_settings: LoadedSettings | None
    settings_error: str = ""
    home: Path = field(default_factory=Path.home)
    proc_folder: Path = Path("/proc")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    read_clock: Callable[[], float] = time.time

    @property
    def settings(self) -> Settings:
        if self.loaded_settings is None:
            raise CheckEndedError(CheckResult.skip("the settings cannot be read"))
        return self.loaded_settings.settings

    @cached_property
    def url(self) -> str:
        """Return where the board is served, or an empty string."""
        if self.settings.url:
            return self.settings.url
        if self.loaded_settings is None or self.loaded_settings.given["GPUBOARD_LISTEN"].origin == "default":
            return ""
        address, port = self.settings.listen
        address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address, address)  # noqa: S104 # of the setting
        return f"http://[{address}]:{port}/" if ":" in address else f"http://{address}:{port}/"

    @cached_property
    def responses(self) -> dict[str, BoardResponse | str]:
        return {}

    def fetch(self, name: str) -> BoardResponse | str:
        """Fetch a file of the board once; return the reason if that fails."""
        if name not in self.responses:
            try:
                self.responses[name] = board_client.probe_board_url(urljoin(self.url, name), login=self.settings.login)
            except FleetUnavailableError as error:
                self.responses[name] = str(error)
        return self.responses[name]

    @cached_property
    def fleet(self) -> Fleet | str:
        """Load the hosts from data/; return the reason if that fails."""
        try:
            return loader.load_data_fleet(self.settings)
        except FleetUnavailableError as error:
            return str(error)


class Check(NamedTuple):
    group: str
    id: str
    run: Callable[[DoctorContext], CheckResult]


class CompletedCheck(NamedTuple):
    check: Check
    result: CheckResult


def run_check(check: Check, context: DoctorContext) -> CheckResult:
    """Run a check in its own thread, since a folder on a share can hang for ever."""
    results: list[CheckResult] = []

    def run() -> None:
        try:
            results.append(check.run(context))
        except CheckEndedError as error:
            results.append(error.result)
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) else "what it looks at"
            results.append(CheckResult.fail(f"{where}: {error.strerror or error}", "see that this user may read it"))
        except Exception as error:
            message = f"the check itself failed ({type(error).__name__}: {error})"
            advice = "this should not happen; `gpuboard --version` and this sentence help to mend it"
            results.append(CheckResult.fail(message, advice))

    thread = threading.Thread(target=run, name=check.id, daemon=True)
    thread.start()
    thread.join(CHECK_TIMEOUT_S)
    if not results:
        return CheckResult.fail(f"no answer within {CHECK_TIMEOUT_S} s", "see whether a share that it is on hangs")
    return results[0]


def find_worst_status(results: Iterable[CompletedCheck]) -> str:
    """Return the worst status; skipped checks do not count."""
    statuses = [completed.result.status for completed in results if completed.result.status in EXIT_CODES]
    return max(statuses, key=EXIT_CODES.__getitem__, default=PASS)


def format_first_check_message(texts: Sequence[str]) -> str:
    """Return the first text, and how many more there are."""
    return f"{texts[0]} (and {len(texts) - 1} more)" if len(texts) > 1 else texts[0]


def format_first_check_problem(problems: Sequence[Problem]) -> str:
    return format_first_check_message([f"{problem.where}: {problem.what}" for problem in problems])
