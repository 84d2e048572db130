"""processes.csv: parsed from both ends, whatever stands in a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.snapshots import registry
from tests.support.captures import CAPTURES, check_golden, needs_shared, replay, snapshot

HEADER = b"gpu_uuid, pid, used_gpu_memory [MiB], process_name\n"
BUNDLES = sorted(CAPTURES.glob("bundles/*linux*")) if CAPTURES.is_dir() else []


def read_one(row: str, header: bytes = HEADER) -> tuple[str, int | None, float | None, str | None]:
    (found,) = registry.parse_processes_csv(snapshot("processes", header + row.encode())).rows
    return found.gpu_key, found.pid, found.used_memory, found.name


@pytest.mark.parametrize(
    "name",
    [
        "python",
        "/usr/bin/python3 train.py --x=1, 2, 3",
        "[celeryd: w1] -active- (-A run.worker)",
        "VLLM::EngineCore",
        'a "quoted" name',
        "naïve ünïcode",
        "a,b, c",
    ],
)
def test_a_name_is_taken_whole(name: str) -> None:
    assert read_one(f"GPU-1, 42, 512, {name}") == ("GPU-1", 42, 512, name)


def test_columns_right_of_the_name_are_counted_from_the_right() -> None:
    header = b"gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
    assert read_one("GPU-1, 42, a, b, c, 130004 MiB", header) == ("GPU-1", 42, 130004, "a, b, c")


def test_what_the_driver_does_not_tell_is_not_available() -> None:
    assert read_one("GPU-1, [N/A], 512, [Not Found]") == ("GPU-1", None, 512, None)


def test_a_process_with_a_pid_is_one_whatever_else_is_hidden() -> None:
    """As in WSL2, in containers, and for whoever is not root."""
    assert read_one("GPU-1, 42, [N/A], [Not Found]") == ("GPU-1", 42, None, None)
    assert read_one("GPU-1, 42, [N/A], [Insufficient Permissions]") == ("GPU-1", 42, None, None)


@pytest.mark.parametrize("words", ["Insufficient Permissions", "Not Supported", "N/A", "Unknown Error"])
def test_a_row_of_words_alone_is_no_process_but_says_that_none_is_reported(words: str) -> None:
    text = f"GPU-1, [{words}], [{words}], [{words}]\nGPU-2, 42, 512, python\n".encode()
    dump = registry.parse_processes_csv(snapshot("processes", HEADER + text))
    assert [(row.gpu_key, row.pid) for row in dump.rows] == [("GPU-2", 42)]
    assert dump.unreported == {"GPU-1": words}
    assert dump.tool_results[0].is_complete


def test_a_row_of_words_that_names_no_gpu_says_that_nothing_is_reported() -> None:
    dump = registry.parse_processes_csv(snapshot("processes", HEADER + b"[N/A], [N/A], [N/A], [N/A]\n"))
    assert (dump.rows, dump.tool_results[0].is_complete) == ((), False)


def test_no_process_is_no_problem() -> None:
    dump = registry.parse_processes_csv(snapshot("processes", HEADER))
    assert (dump.rows, dump.messages, dump.problems) == ((), (), ())


def test_words_that_are_no_rows_are_kept_as_words() -> None:
    dump = registry.parse_processes_csv(snapshot("processes", b"Failed to initialize NVML: Unknown Error\n", rc=255))
    assert (dump.rows, dump.messages) == ((), ("Failed to initialize NVML: Unknown Error",))


def test_ten_thousand_processes_are_read_and_more_are_told() -> None:
    rows = b"".join(b"GPU-1, %d, 1, x\n" % n for n in range(10_001))
    dump = registry.parse_processes_csv(snapshot("processes", HEADER + rows))
    assert len(dump.rows) == 10_000
    assert "10001 GPU processes are told" in dump.problems[0]


@given(st.one_of(st.binary(), st.text().map(lambda text: f"GPU-1, 42, 512, {text}".encode("utf-8", "surrogatepass"))))
def test_nothing_makes_the_reader_fail(body: bytes) -> None:
    registry.parse_processes_csv(body)
    registry.parse_processes_csv(snapshot("processes", HEADER + body))


@needs_shared
@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.stem.split("__", 1)[1])
def test_recorded_machines(bundle: Path) -> None:
    said = replay(bundle, "--query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name", "--format=csv,nounits")
    check_golden(
        f"processes-{bundle.stem.split('__', 1)[1]}", registry.parse_processes_csv(snapshot("processes", said))
    )


@needs_shared
@pytest.mark.parametrize("name", ["h200x8-busy-after", "mig-container-unreadable-row"])
def test_recorded_answers(name: str) -> None:
    (path,) = CAPTURES.glob(f"csv-apps/*{name}.csv")
    check_golden(f"processes-{name}", registry.parse_processes_csv(snapshot("processes", path.read_bytes())))
