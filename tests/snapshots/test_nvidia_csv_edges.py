"""The CSV of nvidia-smi at its edges: odd headers, short rows, long cells, and what makes a GPU lost or unknown."""

from __future__ import annotations

import pytest

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.snapshots.envelope import MAX_COLUMNS, SnapshotPart, ToolOutput
from site_builder.snapshots.parsers.nvidia_csv import (
    MAX_LINES,
    MAX_PROCESS_LINES,
    parse_nvidia_csv_gpus,
    parse_nvidia_csv_processes,
)

HEADER = "index, uuid, name, memory.used [MiB], utilization.gpu [%], temperature.gpu, pci.bus_id"
PROCESS_HEADER = "gpu_uuid, pid, used_gpu_memory [MiB], process_name"


def parts_of(*lines: str, name: str = "") -> dict[str, SnapshotPart]:
    return {name: SnapshotPart(0, lines, ())}


def parsed_gpus(*lines: str, header: str = HEADER) -> ToolOutput[Gpu]:
    return parse_nvidia_csv_gpus(parts_of(header, *lines))


def parsed_gpu(**cells: str) -> Gpu:
    """Parse a row of these columns, in which _ stands for a dot and __ for an underscore."""
    names = [name.replace("__", "|").replace("_", ".").replace("|", "_") for name in cells]
    (gpu,) = parsed_gpus(", ".join(["0", "GPU-1", *cells.values()]), header=", ".join(["index", "uuid", *names])).rows
    return gpu


def parsed_processes(*lines: str, header: str = PROCESS_HEADER) -> ToolOutput[GpuProcessRow]:
    return parse_nvidia_csv_processes(parts_of(header, *lines))


# GPUs


def test_each_reading_has_its_column() -> None:
    gpu = parsed_gpu(
        memory_used="1",
        memory_total="2",
        utilization_gpu="3",
        utilization_memory="4",
        temperature_gpu="5",
        power_draw="6",
        power_limit="7",
        clocks_current_sm="8",
        fan_speed="9",
        temperature_gpu_tlimit="10",
        pci_bus__id="00000000:01:00.0",
        name="Tesla T4",
    )
    assert gpu[:14] == (0, "GPU-1", "Tesla T4", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "00000000:01:00.0")
    assert (gpu.lost, gpu.error, gpu.vendor, gpu.parent) == (None, None, "nvidia", None)
    assert gpu.health.fan_error is None
    assert gpu.health.power_error is None


def test_what_was_reported_is_kept_by_its_column() -> None:
    gpu = parsed_gpu(memory_used="1", compute_cap="9.0")
    assert gpu.columns == ("index", "uuid", "memory.used", "compute.cap")
    assert gpu.cells == ("0", "GPU-1", "1", "9.0")


@pytest.mark.parametrize("header", ["index, name", "uuid, name", "name, index", "name, uuid"])
def test_a_header_has_a_number_or_a_uuid(header: str) -> None:
    output = parsed_gpus("1, 1", header=header)
    assert (len(output.rows), output.messages) == (1, [])


@pytest.mark.parametrize("line", ["name, memory.used", "the uuid, and the index of it", "xindex, uuidx"])
def test_a_line_without_either_as_a_column_is_a_message(line: str) -> None:
    output = parsed_gpus(f" {line} ", "0, 1, 2", header="")
    assert (output.rows, output.messages) == ((), [line, "0, 1, 2"])


def test_a_second_header_is_no_row() -> None:
    output = parsed_gpus("0, 1", "index, uuid", header="index, uuid")
    assert [gpu.index for gpu in output.rows] == [0]


def test_more_columns_than_there_can_be_are_a_problem_and_the_first_count() -> None:
    names = ["index", "uuid", *(f"c{number}" for number in range(MAX_COLUMNS - 1))]
    output = parsed_gpus(", ".join(["7"] * len(names)), header=", ".join(names))
    (gpu,) = output.rows
    assert (len(gpu.columns), len(gpu.cells)) == (MAX_COLUMNS, MAX_COLUMNS)
    assert output.problems == [f"{MAX_COLUMNS + 1} columns are reported; only the first {MAX_COLUMNS} are used"]


def test_more_lines_than_any_host_has_are_a_problem_and_the_first_count() -> None:
    output = parsed_gpus(*["7, 7"] * MAX_LINES, header="index, uuid")
    assert len(output.rows) == MAX_LINES - 1
    assert output.problems == [f"{MAX_LINES + 1} lines are reported; only the first {MAX_LINES} are used"]


@pytest.mark.parametrize(
    ("line", "is_row"),
    [
        ("1, 2, 3, 4", True),  # more than half of the 7 columns
        ("1, 2, 3, 4, 5, 6, 7, 8", True),
        ("1, 2, 3", False),
        ("1", False),
    ],
)
def test_a_line_with_many_cells_is_a_row_that_cannot_be_read(line: str, is_row: bool) -> None:
    output = parsed_gpus(line)
    problem = f"a row has {len(line.split(','))} cells where the header has 7: {line}"
    assert (output.rows, output.has_missing_gpu) == ((), is_row)
    assert output.problems == ([problem] if is_row else [])
    assert output.messages == ([] if is_row else [line])


def test_two_words_are_no_row_whatever_the_header() -> None:
    output = parsed_gpus("Warning, x", header="index, uuid, name")
    assert (output.messages, output.has_missing_gpu) == (["Warning, x"], False)
    assert parsed_gpus("1, 2, 3", header="index, uuid").has_missing_gpu


def test_of_a_row_that_cannot_be_read_the_beginning_is_quoted() -> None:
    (problem,) = parsed_gpus("1, 2, 3, 4, " + "x" * 100).problems
    assert problem == "a row has 5 cells where the header has 7: 1, 2, 3, 4, " + "x" * 68


def test_a_message_about_a_gpu_without_a_handle_is_the_gpu() -> None:
    line = "Unable to determine the device handle for GPU3: 0000:34:00.0: GPU is lost.  Reboot the system. "
    output = parsed_gpus(line)
    assert output.messages == [line.strip()]
    assert output.rows == (
        Gpu(
            3,
            None,
            None,
            bus_id="0000:34:00.0",
            lost="GPU is lost.  Reboot the system",
            columns=("pci.bus_id",),
            cells=("0000:34:00.0",),
        ),
    )
    (gpu,) = parsed_gpus("Unable to determine the device handle for GPU 0000:03:00.0: Unknown Error").rows
    assert (gpu.index, gpu.lost) == (None, "Unknown Error")


def test_without_a_part_of_its_own_the_lines_of_all_parts_count() -> None:
    parts = {**parts_of(HEADER, name="a"), **parts_of("0, GPU-1, T4, 1, 2, 3, x", name="b")}
    assert [gpu.uuid for gpu in parse_nvidia_csv_gpus(parts).rows] == ["GPU-1"]
    alone = {**parts, **parts_of("words")}
    assert (parse_nvidia_csv_gpus(alone).rows, parse_nvidia_csv_gpus(alone).messages) == ((), ["words"])


@pytest.mark.parametrize(("cell", "lost"), [("Yes", "GPU requires reset"), ("yes", "GPU requires reset"), ("No", None)])
def test_a_gpu_that_must_be_reset_is_lost(cell: str, lost: str | None) -> None:
    assert parsed_gpu(reset__status_reset__required=cell, memory_used="1").lost == lost


def test_what_any_cell_says_of_a_lost_gpu_comes_before_its_reset() -> None:
    assert parsed_gpu(reset__status_reset__required="Yes", name="[GPU is lost]").lost == "GPU is lost"


@pytest.mark.parametrize(
    ("cells", "error"),
    [
        ({"memory_used": "[Unknown Error]"}, "its memory cannot be read: Unknown Error"),
        ({"memory_total": "ERR!"}, "its memory cannot be read: ERR!"),
        ({"utilization_gpu": "ERR!", "memory_used": "1"}, "its use cannot be read: ERR!"),
        ({"temperature_gpu": "ERR!", "memory_used": "1.5"}, "its temperature cannot be read: ERR!"),
        ({"temperature_memory": "ERR!", "memory_used": "1"}, "its temperature cannot be read: ERR!"),
        ({"temperature_gpu_tlimit": "ERR!", "memory_used": "1"}, "its temperature cannot be read: ERR!"),
        ({"memory_used": "N/A", "utilization_gpu": "[N/A]"}, None),
        ({"power_draw": "ERR!"}, None),
        ({"clocks_current_memory": "ERR!"}, None),
    ],
)
def test_an_error_in_memory_use_or_temperature_is_the_error_of_the_gpu(
    cells: dict[str, str], error: str | None
) -> None:
    assert parsed_gpu(**cells).error == error


@pytest.mark.parametrize("column", ["memory_used", "utilization_gpu", "temperature_gpu"])
def test_one_live_reading_proves_that_a_gpu_with_an_error_is_not_lost(column: str) -> None:
    cells = dict.fromkeys(["memory_used", "utilization_gpu", "temperature_gpu", "memory_total"], "[Timeout]")
    assert parsed_gpu(**cells).lost == "Timeout"
    assert parsed_gpu(**{**cells, column: "0"}).lost is None
    assert parsed_gpu(**{**cells, "memory_total": "42"}).lost == "Timeout"


def test_a_fan_or_power_reading_that_fails_is_a_warning_with_its_words() -> None:
    health = parsed_gpu(fan_speed="[Unknown Error]", power_draw="ERR!").health
    assert (health.fan_error, health.power_error) == ("Unknown Error", "ERR!")


def test_a_long_name_is_cut_and_one_that_is_not_reported_is_none() -> None:
    assert parsed_gpu(name="x" * 300).name == "x" * 200
    assert parsed_gpu(name="[N/A]").name is None
    assert parsed_gpu(name="").name is None


@pytest.mark.parametrize("cell", ["", "[N/A]", "N/A"])
def test_a_bus_id_a_uuid_or_a_margin_that_is_not_reported_is_none(cell: str) -> None:
    (gpu,) = parsed_gpus(f"0, {cell}, {cell}, {cell}", header="index, uuid, pci.bus_id, temperature.gpu.tlimit").rows
    assert (gpu.uuid, gpu.bus_id, gpu.temperature_margin) == (None, None, None)


# Processes


def test_a_process_is_read_by_the_names_of_its_columns() -> None:
    output = parsed_processes("a, b, 42, GPU-1, 512", header="process_name, pid, gpu_uuid, used_gpu_memory [MiB]")
    assert output.rows == (GpuProcessRow("GPU-1", 42, 512, "a, b"),)
    assert (output.messages, output.problems, output.is_complete) == ([], [], True)


def test_columns_that_are_missing_are_not_available() -> None:
    output = parsed_processes("GPU-1, python", header="gpu_uuid, process_name")
    assert output.rows == (GpuProcessRow("GPU-1", None, None, "python"),)


def test_a_file_without_spaces_is_read_too() -> None:
    output = parsed_processes("GPU-1,42,512,python", header="gpu_uuid,pid,used_gpu_memory [MiB],process_name")
    assert output.rows == (GpuProcessRow("GPU-1", 42, 512, "python"),)


@pytest.mark.parametrize("name", ["x" * 1000, "x" * 1001])
def test_the_name_of_a_process_is_cut(name: str) -> None:
    assert parsed_processes(f"MIG-1, 42, 512, {name}").rows == (GpuProcessRow("MIG-1", 42, 512, "x" * 1000),)


@pytest.mark.parametrize("header", ["pid, process_name", "gpu_uuid, pid, my_process_name", "gpu_uuid, pid"])
def test_without_names_of_columns_nothing_is_known_of_processes(header: str) -> None:
    output = parsed_processes(" GPU-1, 42, python ", header=header)
    assert (output.rows, output.messages, output.problems) == ((), [header, "GPU-1, 42, python"], [])
    assert not output.is_complete


@pytest.mark.parametrize(
    ("line", "is_problem"),
    [
        ("gpu 1, 42, 512, python", True),
        ("GPU-1, 42, 512", True),
        ("GPU-1,42,512,python, x", True),
        ("Warning: x", False),
        ("gpu_uuid, pid, used_gpu_memory [MiB], process_name", True),
        ("gpu 1, 42, 512, " + "x" * 100, True),
    ],
)
def test_a_row_of_a_process_that_cannot_be_understood_is_a_problem(line: str, is_problem: bool) -> None:
    output = parsed_processes(line, "GPU-1, 42, 512, python")
    assert [process.pid for process in output.rows] == [42]
    assert output.messages == [line]
    assert output.problems == ([f"a row that cannot be parsed: {line[:80]}"] if is_problem else [])
    assert output.is_complete is not is_problem


@pytest.mark.parametrize("line", ["x", "GPU-1", "GPU-1, 42", "GPU-1, 42, python"])
def test_a_row_that_ends_before_or_with_the_name_is_no_process(line: str) -> None:
    output = parsed_processes(line, header="gpu_uuid, pid, process_name, used_gpu_memory [MiB]")
    assert (output.rows, output.messages) == ((), [line])


def test_a_gpu_with_words_in_the_place_of_its_processes_has_the_first_words() -> None:
    output = parsed_processes(
        "GPU-1, [N/A], [Not Supported], [N/A]", "GPU-1, [Unknown Error], [N/A], [N/A]", "GPU-2, N/A, N/A, N/A"
    )
    assert (output.rows, output.unreported) == ((), {"GPU-1": "N/A", "GPU-2": "N/A"})


def test_more_columns_of_processes_than_there_can_be_are_a_problem() -> None:
    names = ["gpu_uuid", "process_name", *(f"c{number}" for number in range(MAX_COLUMNS - 1))]
    output = parsed_processes(header=", ".join(names))
    assert output.problems == [f"{MAX_COLUMNS + 1} columns are reported; only the first {MAX_COLUMNS} are used"]
    assert not output.is_complete


def test_more_lines_of_processes_than_any_host_has_are_a_problem() -> None:
    output = parsed_processes(*["GPU-1, 42, 512, python"] * MAX_PROCESS_LINES)
    assert len(output.rows) == MAX_PROCESS_LINES - 1
    assert output.problems == [
        f"{MAX_PROCESS_LINES + 1} lines are reported; only the first {MAX_PROCESS_LINES} are used"
    ]
