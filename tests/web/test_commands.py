"""The parts that `gpuboard here` and `gpuboard demo` share."""

from __future__ import annotations

import subprocess
import sys

import pytest

WAIT_FOR_CHILD = """
import os, signal, subprocess, sys
from site_builder.web.commands import stop_serving_on_signals
with stop_serving_on_signals(), subprocess.Popen(["sleep", "0.6"]) as child:
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    child.wait()
print(child.returncode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signal_name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_command_after_the_process_that_it_waits_for(signal_name: str) -> None:
    command = [sys.executable, "-c", WAIT_FOR_CHILD, signal_name]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stdout) == (0, "0\n"), finished.stderr
    assert finished.stderr == "gpuboard: ended\n"
