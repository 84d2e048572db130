"""What a check is, and what it finds: a status, one sentence, and what to do."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin

from site_builder import __version__
from site_builder.client.model import Fleet
from site_builder.config.settings import Settings
from site_builder.core.board_client import FleetUnavailableError

if TYPE_CHECKING:
    from site_builder.config.conf_file import LoadedSettings
    from site_builder.core.board_client import RawResponse

# No check takes longer: a share that hangs costs its own checks only.
CHECK_TIMEOUT_S = 30
PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
EXIT_CODES = {PASS: 0, WARN: 1, FAIL: 2}


class CheckResult(NamedTuple):
    """What a check found. `apart` is a skip of what does not apply here, told only to whoever asks for all."""

    status: str
    message: str
    advice: str = ""
    is_not_applicable: bool = False


def report_pass(what: str) -> CheckResult:
    """All is well."""
    return CheckResult(PASS, what)


def report_warning(what: str, advice: str) -> CheckResult:
    """Something is wrong, but the board works all the same."""
    return CheckResult(WARN, what, advice)


def report_failure(what: str, advice: str) -> CheckResult:
    """Something keeps the board, or a part of it, from working; or lets in whom it should not."""
    return CheckResult(FAIL, what, advice)


def report_skip(why: str) -> CheckResult:
    """Nobody can tell."""
    return CheckResult(SKIP, why)


def report_not_applicable(why: str) -> CheckResult:
    """It does not apply here."""
    return CheckResult(SKIP, why, is_not_applicable=True)


class NoSettingsError(Exception):
    """The settings cannot be read, and a check needs them."""


@dataclass(frozen=True)
class DoctorContext:
    """All that the checks look at; `wrong` is why there are no settings."""

    loaded_settings: LoadedSettings | None
    settings_error: str = ""
    home: Path = field(default_factory=Path.home)
    proc_folder: Path = Path("/proc")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    read_clock: Callable[[], float] = time.time

    @property
    def settings(self) -> Settings:
        """What is in force."""
        if self.loaded_settings is None:
            raise NoSettingsError
        return self.loaded_settings.settings

    @cached_property
    def url(self) -> str:
        """Where the board is served; empty where nobody said so."""
        if self.settings.url:
            return self.settings.url
        if self.loaded_settings is None or self.loaded_settings.given["GPUBOARD_LISTEN"].origin == "default":
            return ""
        address, port = self.settings.listen
        address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address, address)  # noqa: S104 # of the setting
        return f"http://[{address}]:{port}/" if ":" in address else f"http://{address}:{port}/"

    @cached_property
    def responses(self) -> dict[str, RawResponse | str]:
        """What the web server has answered so far."""
        return {}

    def fetch(self, name: str) -> RawResponse | str:
        """A file of the board as it is served, asked for once; or why there is none."""
        if name not in self.responses:
            from site_builder.core import board_client  # noqa: PLC0415 # slow to import

            try:
                self.responses[name] = board_client.probe_url(urljoin(self.url, name), login=self.settings.login)
            except FleetUnavailableError as why:
                self.responses[name] = str(why)
        return self.responses[name]

    @cached_property
    def fleet(self) -> Fleet | str:
        """The hosts as they stand now, or why nobody can tell."""
        from site_builder.client import loader  # noqa: PLC0415 # slow to import

        try:
            return loader.load_data_fleet(self.settings)
        except FleetUnavailableError as why:
            return str(why)


class Check(NamedTuple):
    """One thing that is looked at; its id is what docs/doctor.md tells of."""

    group: str
    id: str
    run: Callable[[DoctorContext], CheckResult]


class CompletedCheck(NamedTuple):
    """A check, and what it found."""

    check: Check
    result: CheckResult


def run_checks(checks: Iterable[Check], case: DoctorContext) -> Iterator[CompletedCheck]:
    """Each check, as soon as it is done."""
    for check in checks:
        yield CompletedCheck(check, run_check(check, case))


def run_check(check: Check, case: DoctorContext) -> CheckResult:
    """What one check finds; in a thread of its own, since a folder on a share can hang for ever."""
    answer: list[CheckResult] = []

    def run() -> None:
        try:
            answer.append(check.run(case))
        except NoSettingsError:
            answer.append(report_skip("the settings cannot be read"))
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) else "what it looks at"
            answer.append(report_failure(f"{where}: {error.strerror or error}", "see that this user may read it"))
        except Exception as error:
            what = f"the check itself failed ({type(error).__name__}: {error})"
            answer.append(
                report_failure(what, "this should not happen; `gpuboard --version` and this sentence help to mend it")
            )

    thread = threading.Thread(target=run, name=check.id, daemon=True)
    thread.start()
    thread.join(CHECK_TIMEOUT_S)
    return (
        answer[0]
        if answer
        else report_failure(f"no answer within {CHECK_TIMEOUT_S} s", "see whether a share that it is on hangs")
    )


def find_worst_result(results: Iterable[CompletedCheck]) -> str:
    """The worst of all; what was skipped counts neither way."""
    return max((one.result.status for one in results), key=lambda status: EXIT_CODES.get(status, 0), default=PASS)


def checks_to_json(results: list[CompletedCheck], host: str) -> str:
    """All of it, in the form that gpu-doctor.sh has too."""
    checks = [
        {
            "id": check.id,
            "group": check.group,
            "status": found.status,
            "what": found.message,
            "do": found.advice or None,
        }
        for check, found in results
    ]
    status = find_worst_result(results)
    told = {"host": host, "version": __version__, "worst": status if status in EXIT_CODES else PASS, "checks": checks}
    return json.dumps(told, indent=1, ensure_ascii=False)
