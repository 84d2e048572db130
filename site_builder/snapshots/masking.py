"""Mask secrets in commands with the awk programs of the GPU hosts, so that there is one set of rules."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from site_builder.core.resources import scripts_folder

PROGRAMS = (
    *("shapes.awk", "mask-names.awk", "mask-programs.awk", "mask-values.awk", "mask-words.awk", "mask.awk"),
    *("mask-lines.awk", "names.awk"),
)
TIME_LIMIT = 10
# As the host's script does it: a newline becomes a space, any other control character a question mark.
CLEAN = bytes(32 if byte == 10 else 63 if byte < 32 or byte == 127 else byte for byte in range(256))


def mask(commands: Sequence[Sequence[bytes]], names: Sequence[str]) -> tuple[list[str | None], list[str | None]]:
    """Return the commands, each given as its arguments, and the process names as they may be shown.

    Where awk cannot be run, each is None: what is not masked is not shown.
    """
    lines = [line for one in commands for line in (*(b"a" + argument.translate(CLEAN) for argument in one), b"c")]
    lines += [b"n" + name.encode().translate(CLEAN) for name in names]
    shown: list[str | None] = list(run_awk(lines)) if lines else []
    if len(shown) != len(commands) + len(names):
        shown = [None] * (len(commands) + len(names))
    return shown[: len(commands)], shown[len(commands) :]


def run_awk(lines: Sequence[bytes]) -> list[str]:
    """Return what the programs print; nothing if they fail."""
    folder = scripts_folder() / "lib"
    command = ["awk", *(word for name in PROGRAMS for word in ("-f", str(folder / name)))]
    environment = {**os.environ, "LC_ALL": "C"}
    text = b"".join(line + b"\n" for line in lines)
    try:
        ended = subprocess.run(
            command, input=text, env=environment, capture_output=True, timeout=TIME_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return ended.stdout.decode("utf-8", "replace").split("\n")[:-1] if ended.returncode == 0 else []
