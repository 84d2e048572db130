"""A lab in which people book by command: on its folder, at its terminal, and through its server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import pwd
import re
import select
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.board_fixture import Lab, gpu
from tests.support.command_line import clean_environment, run_gpuboard
from tests.support.ports import free_port

ME = pwd.getpwuid(os.getuid()).pw_name
LONG = 60
PARIS = {"GPUBOARD_ZONE": "Europe/Paris"}


def lab_of(folder: Path) -> Lab:
    """Two hosts with GPUs."""
    lab = Lab(folder)
    lab.host("atlas", "".join(gpu(index, uuid=f"GPU-atlas-{index}") for index in range(4)))
    lab.host("zeus", "".join(gpu(index, uuid=f"GPU-zeus-{index}", name="NVIDIA H100 80GB HBM3") for index in range(2)))
    return lab


def entries(lab: Lab) -> dict[str, Any]:
    """comments.json, whose entries are plain JSON here."""
    booking_entries: dict[str, Any] = json.loads((lab.data / "comments.json").read_text())
    return booking_entries


def log(lab: Lab) -> list[dict[str, Any]]:
    """bookings.log."""
    return [json.loads(line) for line in (lab.data / "bookings.log").read_text().splitlines()]


def done(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that must succeed."""
    finished = run_gpuboard(folder, *words, **environment)
    assert finished.returncode == 0, finished.stderr
    return finished


class Terminal:
    """A command at a terminal of its own, which somebody reads and answers."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        """Start it."""
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "site_builder", *words],
            cwd=folder,
            env=clean_environment(**{"TERM": "dumb", **environment}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 # so that Ctrl-C reaches it
        )
        os.close(theirs)
        self.text = ""

    def more(self) -> bool:
        """Read on; whether there is more to come."""
        if not select.select([self.ours], [], [], LONG)[0]:
            raise TimeoutError(self.text)
        try:
            content = os.read(self.ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            return False
        self.text += content.decode(errors="replace")
        return bool(content)

    def until(self, words: str) -> str:
        """All that was said up to these words."""
        while words not in self.text:
            assert self.more(), self.text
        return self.text

    def answer(self, text: str) -> None:
        """Type it, and Enter."""
        self.text = ""
        os.write(self.ours, f"{text}\n".encode())

    def end(self) -> tuple[int, str]:
        """The exit code, and what was said to the end."""
        deadline = time.monotonic() + LONG
        while self.more():
            if time.monotonic() > deadline:
                self.process.kill()
                raise TimeoutError(self.text[-2000:])
        os.close(self.ours)
        return self.process.wait(LONG), self.text.replace("\r\n", "\n")


@contextmanager
def served(lab: Lab, **environment: str) -> Iterator[str]:
    """`gpuboard serve` with its desk, and where it is."""
    folder, port = lab.data.parent, free_port()
    settings = {"GPUBOARD_BOOK_URL": "book", **environment}
    done(folder, "build", **settings)
    process = subprocess.Popen(
        [sys.executable, "-m", "site_builder", "serve", "--listen", f"127.0.0.1:{port}"],
        cwd=folder,
        env=clean_environment(**settings),
    )
    try:
        end = time.monotonic() + LONG
        while True:
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < end
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(LONG)


def lines(text: str) -> Sequence[str]:
    """Without what colours a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
