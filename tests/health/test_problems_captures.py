"""What is wrong with the GPUs of recorded machines, and with those of recorded errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_builder.health.problems import ProblemFinder
from site_builder.snapshots import gpu_tools
from tests.support.captures import list_captures, name_capture, read_capture, replay_gpus
from tests.support.samples import snapshot

LINUX_BUNDLES = [path for path in list_captures("bundles") if "linux" in path.name]


@pytest.mark.slow
@pytest.mark.parametrize("bundle", LINUX_BUNDLES, ids=name_capture)
@pytest.mark.parametrize("state", ["idle", "load"])
def test_recorded_machines_have_only_their_real_problems(bundle: Path, state: str) -> None:
    answer = replay_gpus(bundle, REPLAY_STATE=state, REPLAY_GPUS="8")
    parsed_gpus = gpu_tools.parse_gpus_of_tools(snapshot("gpus", answer))
    finder = ProblemFinder(parsed_gpus, parsed_gpus.tool_results)
    kinds = {problem.kind for gpu in parsed_gpus.rows for problem in finder.find_problems(gpu)}
    assert len(parsed_gpus.rows) == 8
    assert kinds == ({"persistence"} if "geforce" in bundle.name else set())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("csv-gpu-requires-reset-nounits", [["reset"]]),
        ("csv-infoROM-warning-first", [["inforom"]]),
        ("device-handle-gpu-lost-old", [["off-bus"]]),
        ("device-handle-unknown-new-then-table-610", [["lost"]]),
    ],
)
def test_recorded_errors_are_problems_of_their_gpus(name: str, expected: list[list[str]]) -> None:
    (path,) = (path for path in list_captures("errors") if name_capture(path) == name)
    # its place on the bus was not queried, as gpuboard does
    body = read_capture(path).replace(b"power.draw\n", b"pci.bus_id\n").replace(b", 16.20", b", 00000000:01:00.0")
    parsed_gpus = gpu_tools.parse_gpus_of_tools(snapshot("gpus", body))
    finder = ProblemFinder(parsed_gpus, parsed_gpus.tool_results)
    assert [[problem.kind for problem in finder.find_problems(gpu)] for gpu in parsed_gpus.rows] == expected
