"""Real shells, and somebody who types in them and presses TAB."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

from tests.support.command_line import clean_environment
from tests.support.missing import missing

STEERING = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>()][0B]?)|[\x07\x0f]|\x08+")
WIDE = struct.pack("HHHH", 200, 400, 0, 0)  # nothing is wrapped, and no list needs a page
PATIENCE = 30
START = {
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
READY = {
    "bash": "PS1='READY>'; bind 'set show-all-if-ambiguous on'; bind 'set bell-style none'",
    "zsh": "unsetopt auto_menu auto_remove_slash list_ambiguous; bindkey -e;"
    " autoload -Uz compinit; compinit -D -u; PS1='READY>'",
}


class Offered(NamedTuple):
    """The line as TAB left it, and the words that the shell listed."""

    line: str
    words: set[str]


def program(name: str) -> str:
    """Where a shell is."""
    return shutil.which(name) or missing(f"{name} is not here; ./install.sh test installs it")


def home(folder: Path) -> dict[str, str]:
    """The environment of somebody who has `gpuboard`, and nothing else of ours."""
    command = folder / "bin/gpuboard"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m site_builder "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    return clean_environment(HOME=str(folder), PATH=path, TERM="xterm", LC_ALL="C.UTF-8")


class Terminal:
    """A shell with a terminal of its own, in a folder."""

    def __init__(self, shell: str, folder: Path, setup: str) -> None:
        """Start it, and type what sets it up."""
        program(shell)
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, WIDE)
        words = ["setsid", "--ctty", *START[shell]]
        self.process = subprocess.Popen(words, cwd=folder, env=home(folder), stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.seen = ""
        self.type(f"{READY[shell]}\r{setup}\recho SET''UP\r")
        self.until(r"^SETUP$")

    def type(self, text: str) -> None:
        """As fast as a machine can."""
        os.write(self.ours, text.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """Read on until a line is there."""
        end = time.monotonic() + PATIENCE
        while not (screen_match := re.search(pattern, self.screen(), re.MULTILINE)):
            ready, _, _ = select.select([self.ours], [], [], max(0, end - time.monotonic()))
            assert ready, f"not in time: {pattern}\n{self.screen()}"
            self.seen += os.read(self.ours, 65536).decode(errors="replace")
        return screen_match

    def screen(self) -> str:
        """What was shown, without what steers a terminal."""
        return STEERING.sub("", self.seen).replace("\r", "\n")

    def tab(self, line: str) -> Offered:
        """Type a line and press TAB; what then stands there is printed, and so ends what was listed."""
        self.seen = ""
        self.type(line + "\t\x01echo GOT: \x05.\r")
        screen_match = self.until(r"^GOT: (.*)\.$")
        return Offered(screen_match[1], set(self.screen()[: screen_match.start()].split()))

    def close(self) -> None:
        """Hang up."""
        os.close(self.ours)
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def fish(folder: Path, line: str, setup: str = "gpuboard completion fish | source") -> list[str]:
    """What fish itself says that TAB offers."""
    command = [program("fish"), "--no-config", "-c", f"{setup}; complete -C $argv[1]", line]
    done = subprocess.run(command, cwd=folder, env=home(folder), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()
