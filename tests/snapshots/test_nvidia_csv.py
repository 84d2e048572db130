"""Parse nvidia-smi's CSV: GPUs with their errors, and processes whatever stands in a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.model import ToolResult
from site_builder.snapshots import gpu_tools
from tests.support.samples import snapshot

HEADER = b"index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], temperature.gpu\n"
GOOD = b"0, GPU-1, NVIDIA A100-SXM4-80GB, 1024, 81920, 37, 41\n"
PROCESS_HEADER = b"gpu_uuid, pid, used_gpu_memory [MiB], process_name\n"


def test_a_row_is_understood_by_the_names_of_its_columns() -> None:
    dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + GOOD))
    (gpu,) = dump.rows
    assert (gpu.index, gpu.uuid, gpu.name) == (0, "GPU-1", "NVIDIA A100-SXM4-80GB")
    assert (gpu.memory_used, gpu.memory_total, gpu.utilization_gpu, gpu.temperature) == (1024, 81920, 37, 41)
    assert (gpu.power_draw, gpu.lost, dump.problems, dump.messages) == (None, None, (), ())
    assert not dump.has_missing_gpu


def test_columns_may_come_in_any_order_and_number() -> None:
    names = ["uuid", "name", *(f"new.{n} [W]" for n in range(500)), "index"]
    row = ["GPU-1", "T4", *("7" for _ in range(500)), "3"]
    (gpu,) = gpu_tools.parse_gpus_of_tools(snapshot("gpus", f"{', '.join(names)}\n{', '.join(row)}\n".encode())).rows
    assert (gpu.index, gpu.uuid, gpu.raw_fields["new.499"]) == (3, "GPU-1", "7")


@pytest.mark.parametrize(
    "cell",
    [
        "[N/A]",
        "N/A",
        "[Not Supported]",
        "[Insufficient Permissions]",
        "[Unknown Error]",
        "",
        "nan",
        "inf",
        "-1",
        "1e99",
        "1_000",
        "٣١",
        "x",
    ],
)
def test_what_is_not_a_number_is_not_available(cell: str) -> None:
    row = f"0, GPU-1, T4, {cell}, 81920, 37, 41\n".encode()
    (gpu,) = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + row)).rows
    assert gpu.memory_used is None
    assert (gpu.utilization_gpu, gpu.lost) == (37, None)


def test_units_in_cells_and_a_missing_space_do_no_harm() -> None:
    (gpu,) = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + b"0, GPU-1, T4, 6 MiB,49140 MiB, 30 %, 34\n")).rows
    assert (gpu.memory_used, gpu.memory_total, gpu.utilization_gpu) == (6, 49140, 30)


def test_gpus_stand_in_the_order_of_their_numbers() -> None:
    rows = b"".join(b"%d, GPU-%d, T4, 6, 16384, 30, 34\n" % (n, n) for n in (10, 0, 2))
    assert [gpu.index for gpu in gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + rows)).rows] == [0, 2, 10]


def test_a_file_may_have_parts_each_with_its_own_code_and_words() -> None:
    dump = gpu_tools.parse_gpus_of_tools(
        snapshot("gpus", b"# part nvidia-csv rc=15\n" + HEADER + GOOD + b"# err one fell off\n")
    )
    assert [gpu.uuid for gpu in dump.rows] == ["GPU-1"]
    assert dump.tool_results == (ToolResult("nvidia-smi", "nvidia", 15, ("one fell off",)),)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (b"# part nvidia-csv rc=0\n", "it has the part nvidia-csv rc=0 twice"),
        (b"# part future-smi rc=0\n", "it has a part future-smi, which this gpuboard does not know"),
        (b"# part ../../etc rc=0\n", "an unreadable part: # part ../../etc rc=0"),
        (b"# part nvidia-csv rc=\n", "an unreadable part: # part nvidia-csv rc="),
        (b"".join(b"# part x%d rc=0\n" % n for n in range(500)), "it has too many parts"),
    ],
)
def test_a_part_that_cannot_be_one_costs_only_itself(part: bytes, problem: str) -> None:
    odd = part + HEADER + GOOD.replace(b"GPU-1", b"GPU-2")
    dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", b"# part nvidia-csv rc=0\n" + HEADER + GOOD + odd))
    assert [gpu.uuid for gpu in dump.rows] == ["GPU-1"]
    assert any(what.startswith(problem) for what in dump.problems)


def test_a_lost_gpu_keeps_its_row_and_the_others_theirs() -> None:
    message = b"Unable to determine the device handle for GPU1: 0000:34:00.0: Unknown Error\n"
    errors = b", ".join([b"[Unknown Error]"] * 7) + b"\n"
    dump = gpu_tools.parse_gpus_of_tools(
        snapshot("gpus", HEADER + GOOD + message + errors + b"2, GPU-3, T4, 1, 2, 3, 4\n", rc=255)
    )
    assert [gpu.index for gpu in dump.rows] == [0, 1, 2]
    assert [gpu.lost for gpu in dump.rows] == [None, "Unknown Error", None]
    assert dump.rows[1].raw_fields == {"pci.bus_id": "0000:34:00.0"}
    assert dump.messages == (message.decode().strip(),)


def test_two_lost_gpus_that_follow_each_other_are_two() -> None:
    """Old drivers name them by their places on the bus alone."""
    message = b"Unable to determine the device handle for GPU 0000:0%d:00.0: GPU is lost\n"
    errors = b", ".join([b"[Unknown Error]"] * 7) + b"\n"
    for lines in (message % 1 + message % 2, message % 1 + errors + message % 2 + errors):
        dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + lines, rc=15))
        assert [(gpu.bus_id, gpu.lost) for gpu in dump.rows] == [
            ("0000:01:00.0", "GPU is lost"),
            ("0000:02:00.0", "GPU is lost"),
        ]


@pytest.mark.parametrize("word", ["GPU is lost", "GPU requires reset", "Unknown Error"])
def test_a_row_without_any_reading_says_why(word: str) -> None:
    row = f"0, GPU-1, T4, [{word}], [{word}], [{word}], [{word}]\n".encode()
    (gpu,) = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + row)).rows
    assert (gpu.uuid, gpu.lost) == ("GPU-1", word)


def test_long_cells_are_cut_where_they_are_kept() -> None:
    header = b"index, uuid, name, pci.bus_id, temperature.gpu, temperature.gpu.tlimit\n"
    row = b"0, GPU-a, A100, %s, 40, %s\n" % (b"7" * 100_000, b"9" * 100_000)
    (gpu,) = gpu_tools.parse_gpus_of_tools(snapshot("gpus", header + row)).rows
    assert (gpu.bus_id, gpu.temperature_margin) == ("7" * 80, None)


def test_a_gpu_that_is_reported_twice_counts_once() -> None:
    dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + GOOD + GOOD))
    assert len(dump.rows) == 1
    assert dump.problems == ("the GPU GPU-1 is reported twice; the busier row is used",)


@pytest.mark.parametrize("other", ["1024, 81920, 99, 41", "70000, 81920, 37, 41", "[GPU is lost], 81920, 37, 41"])
def test_of_two_rows_of_a_gpu_the_busier_counts(other: str) -> None:
    row = f"0, GPU-1, NVIDIA A100-SXM4-80GB, {other}\n".encode()
    (expected,) = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + row)).rows
    for rows in (GOOD + row, row + GOOD):
        assert gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + rows)).rows == (expected,)


def test_a_header_that_is_printed_again_is_no_gpu() -> None:
    dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + GOOD + HEADER))
    assert ([gpu.uuid for gpu in dump.rows], dump.messages, dump.problems) == (["GPU-1"], (), ())


def test_warnings_between_the_rows_are_words_not_rows() -> None:
    warning = b"WARNING: infoROM is corrupted at gpu 0000:41:00.0\n"
    dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", warning + HEADER + warning + GOOD + warning))
    assert len(dump.rows) == 1
    assert dump.messages == (warning.decode().strip(),) * 3


def test_a_row_with_cells_too_few_is_a_problem_and_costs_itself_alone() -> None:
    dump = gpu_tools.parse_gpus_of_tools(
        snapshot("gpus", HEADER + b"0, GPU-1, T4, 1024, 81920\n" + b"1, GPU-2, T4, 1, 2, 3, 4\n")
    )
    assert [gpu.uuid for gpu in dump.rows] == ["GPU-2"]
    assert "5 cells where the header has 7" in dump.problems[0]
    assert dump.has_missing_gpu


def test_a_row_that_is_cut_after_its_uuid_is_a_missing_gpu_and_no_message() -> None:
    dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + GOOD + b"1, GPU-2, NVI\n"))
    assert ([gpu.uuid for gpu in dump.rows], dump.messages, dump.has_missing_gpu) == (["GPU-1"], (), True)
    assert dump.problems == ("a row has 3 cells where the header has 7: 1, GPU-2, NVI",)


def test_a_failed_nvidia_smi_is_no_gpu_but_a_reason() -> None:
    dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", b"No devices were found\n", rc=6))
    assert (dump.rows, dump.messages) == ((), ("No devices were found",))
    assert dump.header
    assert dump.header.rc == 6


def test_script_and_terminal_escapes_stay_harmless_text() -> None:
    (gpu,) = gpu_tools.parse_gpus_of_tools(
        snapshot("gpus", HEADER + b"0, GPU-1, <script>\x1b[31m\x00, 1, 2, 3, 4\n")
    ).rows
    assert gpu.name == "<script>?[31m?"


def test_a_torn_file_is_known_as_such() -> None:
    dump = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + GOOD)[:-6])
    assert (dump.is_complete, dump.problems) == (False, ("the file is incomplete: its end is missing",))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the first line is not a gpuboard snapshot header"),
        (b"\xff\xfe\x00", "the first line is not a gpuboard snapshot header"),
        (snapshot("ps", b""), "it is a snapshot of ps, not of gpus"),
        (snapshot("gpus", b"").replace(b"gpuboard 1", b"gpuboard 2"), "its snapshot format has version 2"),
    ],
)
def test_a_file_that_is_not_ours_is_a_problem(data: bytes, problem: str) -> None:
    dump = gpu_tools.parse_gpus_of_tools(data)
    assert (dump.rows, dump.is_complete) == ((), False)
    assert dump.problems[0].startswith(problem)


CELL = st.one_of(
    st.sampled_from(
        [
            "[N/A]",
            "[Unknown Error]",
            "[GPU is lost]",
            "0",
            "GPU-1",
            "index",
            "uuid",
            ",",
            "Unable to determine the device handle for GPU",
        ]
    ),
    st.text(),
    st.floats().map(str),
    st.integers().map(str),
)


@given(st.one_of(st.binary(), st.lists(st.lists(CELL), max_size=8)))
def test_nothing_makes_the_reader_fail(content: bytes | list[list[str]]) -> None:
    if isinstance(content, bytes):
        gpu_tools.parse_gpus_of_tools(content)
        body = content
    else:
        body = "\n".join(", ".join(row) for row in content).encode("utf-8", "surrogatepass")
    for gpu in gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + body)).rows:
        assert gpu.memory_used is None or gpu.memory_used >= 0


# Processes


def read_one(row: str, header: bytes = PROCESS_HEADER) -> tuple[str, int | None, float | None, str | None]:
    (process,) = gpu_tools.parse_processes_of_tools(snapshot("processes", header + row.encode())).rows
    return process.gpu_key, process.pid, process.used_memory, process.name


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


def test_what_the_driver_does_not_report_is_not_available() -> None:
    assert read_one("GPU-1, [N/A], 512, [Not Found]") == ("GPU-1", None, 512, None)


def test_a_process_with_a_pid_is_one_whatever_else_is_hidden() -> None:
    """As in WSL2, in containers, and for whoever is not root."""
    assert read_one("GPU-1, 42, [N/A], [Not Found]") == ("GPU-1", 42, None, None)
    assert read_one("GPU-1, 42, [N/A], [Insufficient Permissions]") == ("GPU-1", 42, None, None)


@pytest.mark.parametrize("words", ["Insufficient Permissions", "Not Supported", "N/A", "Unknown Error"])
def test_a_row_of_words_alone_is_no_process_but_says_that_none_is_reported(words: str) -> None:
    text = f"GPU-1, [{words}], [{words}], [{words}]\nGPU-2, 42, 512, python\n".encode()
    dump = gpu_tools.parse_processes_of_tools(snapshot("processes", PROCESS_HEADER + text))
    assert [(row.gpu_key, row.pid) for row in dump.rows] == [("GPU-2", 42)]
    assert dump.unreported == {"GPU-1": words}
    assert dump.tool_results[0].is_complete


def test_a_row_of_words_that_names_no_gpu_says_that_nothing_is_reported() -> None:
    dump = gpu_tools.parse_processes_of_tools(snapshot("processes", PROCESS_HEADER + b"[N/A], [N/A], [N/A], [N/A]\n"))
    assert (dump.rows, dump.tool_results[0].is_complete) == ((), False)


def test_no_process_is_no_problem() -> None:
    dump = gpu_tools.parse_processes_of_tools(snapshot("processes", PROCESS_HEADER))
    assert (dump.rows, dump.messages, dump.problems) == ((), (), ())


def test_words_that_are_no_rows_are_kept_as_words() -> None:
    dump = gpu_tools.parse_processes_of_tools(
        snapshot("processes", b"Failed to initialize NVML: Unknown Error\n", rc=255)
    )
    assert (dump.rows, dump.messages) == ((), ("Failed to initialize NVML: Unknown Error",))


@pytest.mark.parametrize("row", ["GPU-2", "GPU-2, 43", "GPU-2, 43, 512", "MIG-2, 4"])
def test_a_process_row_that_is_cut_is_no_list_without_that_process(row: str) -> None:
    dump = gpu_tools.parse_processes_of_tools(
        snapshot("processes", PROCESS_HEADER + f"GPU-1, 42, 512, python\n{row}\n".encode())
    )
    assert ([process.pid for process in dump.rows], dump.tool_results[0].is_complete) == ([42], False)
    assert dump.problems == (f"a row that cannot be parsed: {row}",)


def test_ten_thousand_processes_are_parsed_and_more_are_a_problem() -> None:
    rows = b"".join(b"GPU-1, %d, 1, x\n" % n for n in range(10_001))
    dump = gpu_tools.parse_processes_of_tools(snapshot("processes", PROCESS_HEADER + rows))
    assert len(dump.rows) == 10_000
    assert "10001 GPU processes are reported" in dump.problems[0]


@given(st.one_of(st.binary(), st.text().map(lambda text: f"GPU-1, 42, 512, {text}".encode("utf-8", "surrogatepass"))))
def test_nothing_makes_the_reader_fail_of_processes(body: bytes) -> None:
    gpu_tools.parse_processes_of_tools(body)
    gpu_tools.parse_processes_of_tools(snapshot("processes", PROCESS_HEADER + body))


@pytest.mark.parametrize(
    ("name", "is_shared"),
    [
        ("NVIDIA GB10", True),
        ("Orin (nvgpu)", True),
        ("NVIDIA Thor", True),
        ("NVIDIA Tegra Xavier", True),
        ("GRID A100-10C", False),
        ("NVIDIA GB100", False),
        ("NVIDIA GH200 480GB", False),
        ("[N/A]", False),
    ],
)
def test_gpus_on_the_chip_of_the_cpu_share_its_memory(name: str, is_shared: bool) -> None:
    (gpu,) = gpu_tools.parse_gpus_of_tools(
        snapshot("gpus", HEADER + f"0, GPU-1, {name}, [N/A], [N/A], 0, 41\n".encode())
    ).rows
    assert (gpu.memory_used, gpu.memory_total, gpu.is_memory_shared) == (None, None, is_shared)


@pytest.mark.parametrize(
    ("memory", "is_shared"),
    [("[Not Supported]", True), ("131072", False), ("[Unknown Error]", False), ("[Insufficient Permissions]", False)],
)
def test_memory_that_is_reported_or_an_error_is_not_taken_for_that_of_the_host(memory: str, is_shared: bool) -> None:
    row = f"0, GPU-1, NVIDIA GB10, {memory}, {memory}, 0, 41\n".encode()
    (gpu,) = gpu_tools.parse_gpus_of_tools(snapshot("gpus", HEADER + row)).rows
    assert gpu.is_memory_shared is is_shared
