"""A command that shows a board until Ctrl-C, started as a person would start it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.command_line import clean_environment

READY = re.compile(r"is at (http://\S+) until Ctrl-C")


class Live:
    """`gpuboard WORDS` in a folder, until the board answers."""

    def __init__(self, folder: Path, *words: str, command: list[str] | None = None, **environment: str) -> None:
        """Start it, and wait for the words that say where the board is."""
        self.log = folder / f"log-{time.monotonic_ns()}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*(command or [sys.executable, "-m", "site_builder"]), *words],
                cwd=folder,
                env=clean_environment(**environment),
                stdout=log,
                stderr=log,
            )
        try:
            self.url = self.wait_for(lambda: READY.search(self.said()), 240)[1]
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Live:
        """It runs already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever came of the test, it does not outlive it."""
        self.kill()

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        """All that it told so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, look: Callable[[], Any], seconds: float) -> Any:  # noqa: ANN401 # whatever it looks for
        """What `look` finds, as soon as it does."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if outcome := look():
                return outcome
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        message = f"not found in time; it said: {self.said()}"
        raise TimeoutError(message)

    def get(self, path: str = "") -> str:
        """A file of the board."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:  # noqa: S310 # our own
            content: bytes = answer.read()
        return content.decode()

    def status(self) -> dict[str, Any]:
        """status.json."""
        board_status: dict[str, Any] = json.loads(self.get("status.json"))
        return board_status

    def book(self, **request: object) -> tuple[int, dict[str, Any]]:
        """The status and the answer of its booking service."""
        connection = http.client.HTTPConnection(self.url.split("/")[2], timeout=30)
        try:
            headers = {"Content-Type": "application/json", "X-Gpuboard": "1"}
            connection.request("POST", "/book", json.dumps({"do": "book", **request}), headers)
            answer = connection.getresponse()
            is_json = answer.getheader("Content-Type") == "application/json"
            return answer.status, json.loads(answer.read()) if is_json else {}
        finally:
            connection.close()

    def children(self) -> list[int]:
        """The processes that it has started."""
        return [
            int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if parent_of(path) == self.process.pid
        ]

    def stop(self, by: int = signal.SIGINT) -> int:
        """End it as Ctrl-C does, and return its exit code."""
        self.process.send_signal(by)
        return self.process.wait(30)


def parent_of(stat: Path) -> int:
    """The parent of a process, by its /proc/PID/stat."""
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
