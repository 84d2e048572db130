"""Run `gpuboard` as a user would call it: in this process, which is fast, or in one of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO
from unittest import mock

from site_builder.cli import main

ROOT = Path(__file__).parents[2]
GPUBOARD = [sys.executable, "-m", "site_builder"]
# Python reads these once, when it starts.
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_")
# It becomes the command that it is given.
REPLACES_ITS_PROCESS = "run"


def clean_environment(**extra_variables: str) -> dict[str, str]:
    """Return our environment without settings of gpuboard or Consul, and with these variables."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUBOARD_", "CONSUL_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "GPUBOARD_CONF": os.devnull, **extra_variables}


def run_gpuboard(
    folder: Path, *words: str, stdin: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with the settings in `environment` alone."""
    return run_in_environment(folder, clean_environment(**environment), *words, stdin=stdin)


def run_in_environment(
    folder: Path, environment: Mapping[str, str], *words: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in exactly this environment; in this process, if that cannot make a difference."""
    differs = {key for key in {*environment, *os.environ} if environment.get(key) != os.environ.get(key)}
    own_process = any(key.startswith(READ_AT_START) and key != "PYTHONPATH" for key in differs)
    own_process |= REPLACES_ITS_PROCESS in words or threading.current_thread() is not threading.main_thread()
    if own_process:
        return run_in_own_process(folder, environment, *words, stdin=stdin)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
        given.write((stdin or "").encode())
        given.seek(0)
        with standard_streams(given, out, err), process_state(folder, environment):
            code = call_main(words)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    return subprocess.CompletedProcess([*GPUBOARD, *words], code, *texts)


def run_in_own_process(
    folder: Path, environment: Mapping[str, str], *words: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as a shell does."""
    command, content = [*GPUBOARD, *words], stdin or ""
    return subprocess.run(
        command, cwd=folder, env=environment, input=content, capture_output=True, text=True, check=False
    )


def call_main(words: tuple[str, ...]) -> int:
    """Call the command line, and return the exit code that its process would have."""
    try:
        main(list(words), prog_name="gpuboard")
    except SystemExit as ending:
        if isinstance(ending.code, str):
            sys.stderr.write(f"{ending.code}\n")
        return ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    except BaseException:  # as Python itself does
        traceback.print_exc()
        return 1
    return 0


@contextlib.contextmanager
def standard_streams(*files: IO[bytes]) -> Iterator[None]:
    """Let these files be standard input, output and error, for us and for what we start."""
    names = ("stdin", "stdout", "stderr")
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(number) for number in range(3)]
    ours = [getattr(sys, name) for name in names]
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        for number, name in enumerate(names):
            errors = "backslashreplace" if name == "stderr" else "strict"
            stream = open(number, "w" if number else "r", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        yield
    finally:
        for name, own in zip(names, ours):
            with contextlib.suppress(ValueError, BrokenPipeError):
                getattr(sys, name).close()
            setattr(sys, name, own)
        for number, saved in enumerate(before):
            os.dup2(saved, number)
            os.close(saved)


@contextlib.contextmanager
def process_state(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Set the working directory and the environment; afterwards restore them, the umask and the signal handlers."""
    working_directory = os.getcwd()  # noqa: PTH109
    mask = os.umask(0)
    os.umask(mask)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        with mock.patch.dict(os.environ, environment, clear=True):
            os.chdir(folder)
            time.tzset()
            tempfile.tempdir = None  # by TMPDIR of this environment
            yield
    finally:
        tempfile.tempdir = None
        os.chdir(working_directory)
        time.tzset()
        os.umask(mask)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)
