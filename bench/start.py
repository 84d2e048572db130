"""A newcomer's first minutes: from a clone to a living board, and what a second start takes."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import ROOT, Row
from tests.support.live_page import Live


def seconds_to_board(clone: Path) -> float:
    """From `./install.sh run` to a page that answers."""
    began = time.monotonic()
    board = Live(clone, "run", command=["./install.sh"])
    try:
        assert "</html>" in board.get()
        return time.monotonic() - began
    finally:
        board.stop()


def rows() -> Iterator[Row]:
    """The promises of the first ten minutes."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "gpuboard"
        subprocess.run(["/usr/bin/env", "git", "clone", "--quiet", ROOT, clone], check=True)
        yield Row("./install.sh run in a fresh clone, until a page", 120, seconds_to_board(clone), "s")
        yield Row("the same, started again", 10, seconds_to_board(clone), "s")
