"""What a check is, and what it finds: a status, one sentence, and what to do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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


def passed(message: str) -> CheckResult:
    return CheckResult(PASS, message)


def warn(messages: str | Sequence[str | Problem], advice: str) -> CheckResult:
    """Report a problem that the board works in spite of."""
    return CheckResult(WARN, shorten_check_messages(messages), advice)


def fail(messages: str | Sequence[str | Problem], advice: str) -> CheckResult:
    """Report a problem that stops the board or a part of it, or gives access to the wrong people."""
    return CheckResult(FAIL, shorten_check_messages(messages), advice)


def skip(reason: str) -> CheckResult:
    """Report that the check could not be made."""
    return CheckResult(SKIP, reason)


def not_checked(cause: str) -> CheckResult:
    """Report that the check depends on the check `cause`, which failed."""
    return skip(f"not checked: see the check {cause}")


def not_applicable(reason: str) -> CheckResult:
    return CheckResult(SKIP, reason, is_not_applicable=True)


def shorten_check_messages(messages: str | Sequence[str | Problem]) -> str:
    """Return the only message, or the first and how many more there are."""
    if isinstance(messages, str):
        return messages
    texts = [message if isinstance(message, str) else f"{message.where}: {message.what}" for message in messages]
    return f"{texts[0]} (and {len(texts) - 1} more)" if len(texts) > 1 else texts[0]


class CheckEndedError(Exception):
    """Ends a check with a result, from within what it calls."""

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result.message)
        self.result = result


@dataclass(frozen=True)
class DoctorContext:
    """Everything that the checks inspect."""

    loaded_settings: LoadedSettings | None
    settings_error: str = ""
    home: Path = field(default_factory=Path.home)
    proc_folder: Path = Path("/proc")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    read_clock: Callable[[], float] = time.time
    responses: dict[str, BoardResponse | str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        if self.loaded_settings is None:
            raise CheckEndedError(not_checked("settings"))
        return self.loaded_settings.settings

    @property
    def data(self) -> Path:
        """Return the data folder, or end the check if it cannot be read."""
        folder = self.settings.data.absolute()
        if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
            raise CheckEndedError(not_checked("data"))
        return folder

    def format_board_age(self) -> str:
        """Return how long ago the board was built, such as `2 s`; empty if that is too long, or unknown."""
        try:
            fleet, _ = loader.parse_status((self.settings.www / "status.json").read_bytes())
            if fleet is None:
                return ""
            loader.check_loaded_board_age(fleet.built, fleet.every, "", self.read_clock())
        except (OSError, FleetUnavailableError):
            return ""
        return f"{max(0, self.read_clock() - fleet.built):.0f} s"

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

    def fetch(self, name: str) -> BoardResponse | str:
        """Fetch a file of the board once; return the reason if that fails."""
        if name not in self.responses:
            try:
                self.responses[name] = board_client.probe_board_url(urljoin(self.url, name), login=self.settings.login)
            except FleetUnavailableError as error:
                self.responses[name] = str(error)
        return self.responses[name]

    def fetch_served(self, name: str) -> BoardResponse:
        """Fetch a file of the board, or end the check."""
        page = self.fetch("") if self.url else ""
        if isinstance(page, str) or page.status != 200:
            raise CheckEndedError(not_applicable("not checked: see the check url"))
        response = self.fetch(name)
        if isinstance(response, str):
            raise CheckEndedError(fail(response, "see the check url"))
        if response.status != 200:
            message = f"{urljoin(self.url, name)} answers {response.status}"
            raise CheckEndedError(
                fail(message, "check that the web server serves www/, and that the board has been built")
            )
        return response

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


def run_check(check: Check, context: DoctorContext) -> CheckResult:
    """Run a check in its own thread, since a folder on a share can hang for ever."""
    results: list[CheckResult] = []

    def run() -> None:
        try:
            results.append(check.run(context))
        except CheckEndedError as error:
            results.append(error.result)
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) else "what it checks"
            results.append(fail(f"{where}: {error.strerror or error}", "make it readable for this user"))
        except Exception as error:
            message = f"the check itself failed ({type(error).__name__}: {error})"
            advice = "this is a bug: please report this message with the output of `gpuboard --version`"
            results.append(fail(message, advice))

    thread = threading.Thread(target=run, name=check.id, daemon=True)
    thread.start()
    thread.join(CHECK_TIMEOUT_S)
    if not results:
        return fail(f"no answer within {CHECK_TIMEOUT_S} s", "check whether a network file system hangs")
    return results[0]
