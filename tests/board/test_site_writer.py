"""How old the files for programs may get, as docs/outputs.md says."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from site_builder.board.builder import Builder
from tests.support.board_fixture import Lab, gpu

TWO_MINUTES, ONE_MINUTE = 120, 60
FEW_BUILDS = 40


def number_in(path: Path) -> int:
    """The number of the snapshot that a file of `nodes/` was made of."""
    document = json.loads(path.read_text())
    (node,) = document.get("Nodes", [document])
    return int(node["gpus"][0]["tot_mem"])


@pytest.mark.slow
@pytest.mark.parametrize("every", [10, 59.9], ids=["a builder that stays", "cron, a little early"])
def test_files_for_programs_are_never_older_than_the_docs_say(tmp_path: Path, every: float) -> None:
    lab, began = Lab(tmp_path), time.time()
    builder = Builder(lab.settings(), 10 if every == 10 else None)  # cron lets one build once
    free, node_ages, every_one = [0.0], [0.0], [0.0]
    for number in range(1, FEW_BUILDS):
        now = began + number * every
        lab.host("atlas", gpu(0, total=number))  # which is told of a host that is not fresh, too
        builder.build(now)
        # just before it is built again
        free += [
            now + every - builder.site_writer.find_write_time(name) for name in ("available.txt", "available/atlas.txt")
        ]
        node_ages.append((number + 1 - number_in(lab.www / "nodes/atlas.json")) * every)
        every_one.append((number + 1 - number_in(lab.www / "nodes/index.json")) * every)
    builder.close()
    assert max(free) <= TWO_MINUTES
    assert max(node_ages) <= ONE_MINUTE + every
    assert max(every_one) <= every
