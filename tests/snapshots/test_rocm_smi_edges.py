"""rocm-smi: the tables for people, rows of processes in all widths, and what is more than the limits."""

from __future__ import annotations

import pytest

from site_builder.core.model import Gpu, GpuProcessRow
from site_builder.snapshots.envelope import ToolOutput
from site_builder.snapshots.parsers import rocm_smi
from site_builder.snapshots.parsers.rocm_smi import parse_rocm_smi_gpus, parse_rocm_smi_processes
from tests.support.amd_fixtures import build_tool_parts, card

OLD_HEADER = "GPU  Temp ({place})  AvgPwr  SCLK  MCLK  Fan  Perf  PwrCap  VRAM%  GPU%"
OLD_ROW = "{number}  66.0c  210.0W  1500Mhz  945Mhz  61.18%  {perf}  220.0W  57%  97%"
# Two lines; the second says where the temperature is measured.
HEADER = """Device  [Model : Revision]  Temp  Power  SCLK  GPU%
        Name (20 chars)  ({place})  (Socket)
"""
ROW = "0  {ids}  66.0c  280.0W  1500Mhz  97%\n"


def parse_gpus(*outputs: object) -> ToolOutput[Gpu]:
    return parse_rocm_smi_gpus(build_tool_parts(*outputs))


def parse_gpu(*outputs: object) -> Gpu:
    (gpu,) = parse_gpus(*outputs).rows
    return gpu


def parse_processes(*outputs: object) -> ToolOutput[GpuProcessRow]:
    return parse_rocm_smi_processes(build_tool_parts(*outputs))


# GPUs in JSON and in lines


def test_numbers_may_stand_in_json_without_quotes() -> None:
    sensor = "Temperature (Sensor edge) (C)"
    cards = [{"card0": {"GPU use (%)": 7, sensor: 41.5}}, {"card0": {"GPU use (%)": None}}]
    assert (parse_gpu(*cards).utilization_gpu, parse_gpu(*cards).temperature) == (7, 41.5)


def test_where_rocm_smi_reports_the_number_of_hip_it_counts() -> None:
    cards = {"card0": card(0, HIP_ID="1"), "card1": card(1, HIP_ID="0")}
    assert [(gpu.index, gpu.uuid) for gpu in parse_gpus(cards).rows] == [
        (1, "GPU-abc0000000000001"),
        (0, "GPU-abc0000000000002"),
    ]


@pytest.mark.parametrize("form", ["json", "text"])
def test_facts_of_the_cards_within_the_limit_count_wherever_they_stand(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocm_smi, "MAX_GPUS", 2)
    lines = [(0, "GPU use (%)", 7), (1, "GPU use (%)", 8), (2, "GPU use (%)", 9), (0, "Fan speed (%)", 5)]
    if form == "text":
        gpus = parse_gpus("\n".join(f"GPU[{number}]\t\t: {name}: {fact}" for number, name, fact in lines)).rows
    else:
        gpus = parse_gpus(*[{f"card{number}": {name: str(fact)}} for number, name, fact in lines]).rows
    assert [(gpu.index, gpu.utilization_gpu, gpu.fan_speed) for gpu in gpus] == [(0, 7, 5), (1, 8, None)]


# the tables for people


@pytest.mark.parametrize(
    ("table", "is_edge"),
    [
        (f"{OLD_HEADER}\n{OLD_ROW}".format(place="DieEdge", number=0, perf="auto"), True),
        (f"{OLD_HEADER}\n{OLD_ROW}".format(place="Junction", number=0, perf="auto"), False),
        (f"{OLD_HEADER}\n{OLD_ROW}".format(place="DieJunction", number=0, perf="auto"), False),
        (f"{HEADER}{ROW}".format(place="Edge", ids="[0x740f : 0x02]"), True),
        (f"{HEADER}{ROW}".format(place="Junction", ids="[0x740f : 0x02]"), False),
    ],
)
def test_the_temperature_of_a_table_is_that_of_the_place_in_its_header(table: str, is_edge: bool) -> None:
    """Where both places are known the edge counts."""
    both = {"Temperature (Sensor edge) (C)": "41.0", "Temperature (Sensor junction) (C)": "47.0"}
    assert parse_gpu(table).temperature == 66
    assert parse_gpu({"card0": both}, table).temperature == (66 if is_edge else 41)


def test_the_name_of_a_card_stands_in_the_one_line_below_it() -> None:
    text = f"{HEADER}{ROW}".format(place="Edge", ids="[0x1234 : 0x02]")
    output = parse_gpus(f"{text}        Radeon Pro W9999\n        it gets warm\n")
    assert [gpu.name for gpu in output.rows] == ["Radeon Pro W9999"]
    assert output.messages == ["it gets warm"]


def test_a_table_without_device_ids_has_gpus_without_names() -> None:
    assert parse_gpu(f"{HEADER}{ROW}".format(place="Edge", ids="N/A")).name is None


def test_a_lost_gpu_in_a_table_is_lost() -> None:
    text = f"{OLD_HEADER}\n{OLD_ROW}".format(place="DieEdge", number=0, perf="GPU is lost")
    assert parse_gpu(text).lost == "GPU is lost"


def test_cards_of_a_table_have_at_most_four_digits() -> None:
    rows = "\n".join(OLD_ROW.format(number=number, perf="auto") for number in (1000, 10000))
    output = parse_gpus(f"{OLD_HEADER}\n{rows}".format(place="DieEdge"))
    assert [gpu.index for gpu in output.rows] == [1000]
    assert [message.split()[0] for message in output.messages] == ["10000"]


@pytest.mark.parametrize(
    "line",
    [
        OLD_ROW.format(number="x", perf="auto"),
        "0  is slow",
        "1  66.0c  210.0W",
        "Device  is gone",
        "12",
    ],
)
def test_a_line_that_is_no_row_is_a_message(line: str) -> None:
    text = f"{OLD_HEADER}\n{OLD_ROW}\n{line}".format(place="DieEdge", number=0, perf="auto")
    output = parse_gpus(text)
    assert [(gpu.index, gpu.temperature, gpu.name) for gpu in output.rows] == [(0, 66, None)]
    assert output.messages == [line]
    assert parse_gpus(line).messages == [line]


# processes

PROCESS_HEADER = "PID\tPROCESS NAME\tGPU(s)\tVRAM USED\tSDMA USED\tCU OCCUPANCY"


@pytest.mark.parametrize(
    "cells", ["1\t1048576\t0\t4", "1\t1048576\t0", "1\t1048576", "1\t1048576\tUNKNOWN\tN/A", "1\t1048576\t104857600"]
)
def test_rows_of_processes_have_had_three_widths(cells: str) -> None:
    output = parse_processes({"card0": card()}, f"{PROCESS_HEADER}\n71\tpt main_thread\t{cells}")
    assert output.rows == (GpuProcessRow("GPU-abc0000000000001", 71, 1, "pt main_thread"),)
    assert output.messages == []


@pytest.mark.parametrize(
    "line",
    [
        "71",
        "71 ended",
        "71 has no such file here",
        "71 slept 1 time 12345 12345",
        "WARNING: retried 1 2 3",
        "12345678901 python3 1 1048576 0 0",
        "0 1",
    ],
)
def test_a_line_that_is_no_process_is_a_message(line: str) -> None:
    output = parse_processes({"card0": card()}, f"{PROCESS_HEADER}\n{line}")
    assert (output.rows, output.messages) == ((), [line])
    assert parse_processes({"card0": card()}, line).messages == [line]


def test_an_indented_line_is_no_process() -> None:
    output = parse_processes({"card0": card()}, f"{PROCESS_HEADER}\n  71 python3 1 1048576 0 0")
    assert (output.rows, output.messages) == ((), ["71 python3 1 1048576 0 0"])


@pytest.mark.parametrize("name", ["123", "a, b", "a, 12", "python3"])
def test_the_name_of_a_process_may_have_numbers_and_commas(name: str) -> None:
    system = {"PID7": f"{name}, 1, 1048576, 0, 0"}
    output = parse_processes({"card0": card(), "system": system})
    assert output.rows == (GpuProcessRow("GPU-abc0000000000001", 7, 1, name),)
    short = parse_processes({"card0": card(), "system": {"PID7": f"{name}, 1, 1048576"}})
    assert name in {"a, 12"} or short.rows == output.rows


def test_processes_beyond_the_limit_make_the_list_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose processes were left out must not look free."""
    monkeypatch.setattr(rocm_smi, "MAX_PROCESSES", 2)
    cards = {"card0": card(0), "card1": card(1)}
    lines = [
        *("PID 1 is using 2 DRM device(s):", "0 1"),
        *("PID 2 is using 1 DRM device(s):", "0"),
        *("PID 3 is using 0 DRM device(s)",),
    ]
    whole = parse_processes(cards, "\n".join(lines[:4]))
    assert ([row.pid for row in whole.rows], whole.problems, whole.is_complete) == ([1, 1, 2], [], True)
    too_long = parse_processes(cards, "\n".join(lines))
    assert [row.pid for row in too_long.rows] == [1, 1, 2]
    assert too_long.problems == ["3 processes are reported; only the first 2 are used"]
    assert not too_long.is_complete


def test_of_many_processes_without_a_card_the_first_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocm_smi, "MAX_PROCESSES", 2)
    pids = "\n".join(f"PID {pid} is using 1 DRM device(s):\n0" for pid in (1, 2, 3))
    assert [row.pid for row in parse_processes({"card0": card()}, pids).rows] == [1, 2]
