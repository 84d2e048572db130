"""What `gpuboard deploy` takes for 20 hosts: 20 users of one machine with a real sshd and cron, all on these cores."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Row
from tests.support.deploy_hosts import Lab
from tests.support.machine import Machine, need_machine
from tests.support.missing import MissingToolError

HOSTS = 20


def seconds(lab: Lab, *words: str) -> float:
    """One call over all hosts, which must end well."""
    began = time.monotonic()
    lab.deploy(*words, *lab.words)
    return time.monotonic() - began


def rows() -> Iterator[Row]:
    """From nothing to a snapshot of each on the web host; again; and back."""
    if os.geteuid() != 0:
        raise MissingToolError("it needs root")
    need_machine()
    with tempfile.TemporaryDirectory() as folder, Machine(Path(folder) / "machine", boxes=HOSTS) as machine:
        lab = Lab(machine, HOSTS)
        yield Row(f"deploy: {HOSTS} hosts, to their first snapshot", 60, seconds(lab), "s")
        yield Row("the same again: nothing to do", 20, seconds(lab), "s")
        yield Row("--check", 20, seconds(lab, "--check"), "s")
        yield Row("--remove", 60, seconds(lab, "--remove"), "s")
