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
from site_builder.client.model import Failed, Fleet
from site_builder.config.settings import Settings

if TYPE_CHECKING:
    from site_builder.config.conf_file import Loaded
    from site_builder.core.board_client import Seen

# No check takes longer: a share that hangs costs its own checks only.
LIMIT = 30
PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"
EXITS = {PASS: 0, WARN: 1, FAIL: 2}


class Found(NamedTuple):
    """What a check found. `apart` is a skip of what does not apply here, told only to whoever asks for all."""

    status: str
    what: str
    advice: str = ""
    apart: bool = False


def passed(what: str) -> Found:
    """All is well."""
    return Found(PASS, what)


def warned(what: str, advice: str) -> Found:
    """Something is wrong, but the board works all the same."""
    return Found(WARN, what, advice)


def failed(what: str, advice: str) -> Found:
    """Something keeps the board, or a part of it, from working; or lets in whom it should not."""
    return Found(FAIL, what, advice)


def skipped(why: str) -> Found:
    """Nobody can tell."""
    return Found(SKIP, why)


def apart(why: str) -> Found:
    """It does not apply here."""
    return Found(SKIP, why, apart=True)


class Unsettled(Exception):
    """The settings cannot be read, and a check needs them."""


@dataclass(frozen=True)
class Case:
    """All that the checks look at; `wrong` is why there are no settings."""

    loaded: Loaded | None
    wrong: str = ""
    home: Path = field(default_factory=Path.home)
    proc: Path = Path("/proc")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    now: Callable[[], float] = time.time

    @property
    def settings(self) -> Settings:
        """What is in force."""
        if self.loaded is None:
            raise Unsettled
        return self.loaded.settings

    @cached_property
    def url(self) -> str:
        """Where the board is served; empty where nobody said so."""
        if self.settings.url:
            return self.settings.url
        if self.loaded is None or self.loaded.given["GPUBOARD_LISTEN"].origin == "default":
            return ""
        address, port = self.settings.listen
        address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address, address)  # noqa: S104 # of the setting
        return f"http://[{address}]:{port}/" if ":" in address else f"http://{address}:{port}/"

    @cached_property
    def answers(self) -> dict[str, Seen | str]:
        """What the web server has answered so far."""
        return {}

    def served(self, name: str) -> Seen | str:
        """A file of the board as it is served, asked for once; or why there is none."""
        if name not in self.answers:
            from site_builder.core import board_client  # noqa: PLC0415 # slow to import

            try:
                self.answers[name] = board_client.look(urljoin(self.url, name), login=self.settings.login)
            except Failed as why:
                self.answers[name] = str(why)
        return self.answers[name]

    @cached_property
    def fleet(self) -> Fleet | str:
        """The hosts as they stand now, or why nobody can tell."""
        from site_builder.client import loader  # noqa: PLC0415 # slow to import

        try:
            return loader.of_data(self.settings)
        except Failed as why:
            return str(why)


class Check(NamedTuple):
    """One thing that is looked at; its id is what docs/doctor.md tells of."""

    group: str
    id: str
    look: Callable[[Case], Found]


class Result(NamedTuple):
    """A check, and what it found."""

    check: Check
    found: Found


def look_at(checks: Iterable[Check], case: Case) -> Iterator[Result]:
    """Each check, as soon as it is done."""
    for check in checks:
        yield Result(check, look(check, case))


def look(check: Check, case: Case) -> Found:
    """What one check finds; in a thread of its own, since a folder on a share can hang for ever."""
    answer: list[Found] = []

    def run() -> None:
        try:
            answer.append(check.look(case))
        except Unsettled:
            answer.append(skipped("the settings cannot be read"))
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) else "what it looks at"
            answer.append(failed(f"{where}: {error.strerror or error}", "see that this user may read it"))
        except Exception as error:
            what = f"the check itself failed ({type(error).__name__}: {error})"
            answer.append(
                failed(what, "this should not happen; `gpuboard --version` and this sentence help to mend it")
            )

    thread = threading.Thread(target=run, name=check.id, daemon=True)
    thread.start()
    thread.join(LIMIT)
    return answer[0] if answer else failed(f"no answer within {LIMIT} s", "see whether a share that it is on hangs")


def worst(results: Iterable[Result]) -> str:
    """The worst of all; what was skipped counts neither way."""
    return max((one.found.status for one in results), key=lambda status: EXITS.get(status, 0), default=PASS)


def as_json(results: list[Result], host: str) -> str:
    """All of it, in the form that gpu-doctor.sh has too."""
    checks = [
        {"id": check.id, "group": check.group, "status": found.status, "what": found.what, "do": found.advice or None}
        for check, found in results
    ]
    status = worst(results)
    told = {"host": host, "version": __version__, "worst": status if status in EXITS else PASS, "checks": checks}
    return json.dumps(told, indent=1, ensure_ascii=False)
