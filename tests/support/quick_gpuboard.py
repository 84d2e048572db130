"""`gpuboard` with other constants: `python -m tests.support.quick_gpuboard MODULE:NAME=SECONDS… -- WORDS`.

For tests of a process that would otherwise wait for minutes, or for the longest pause that a person accepts.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from site_builder.cli import main


def build_quick_command(constants: Sequence[str], *words: str) -> list[str]:
    """Return the command line of `gpuboard WORDS` with these constants, each as MODULE:NAME=SECONDS."""
    return [sys.executable, "-m", __name__, *constants, "--", *words]


def run_quick_gpuboard(words: Sequence[str]) -> None:
    """Set the constants, and run the command."""
    end = words.index("--")
    for assignment in words[:end]:
        place, _, value = assignment.partition("=")
        module_name, _, name = place.partition(":")
        module = importlib.import_module(f"site_builder.{module_name}")
        assert isinstance(getattr(module, name), (int, float)), place
        setattr(module, name, float(value))
    main(list(words[end + 1 :]), prog_name="gpuboard")


if __name__ == "__main__":
    run_quick_gpuboard(sys.argv[1:])
