"""amd-smi: older names, text instead of JSON, facts that are reported twice, and what is more than the limits."""

from __future__ import annotations

import pytest

from site_builder.core.model import GpuProcessRow
from site_builder.snapshots.envelope import ToolOutput
from site_builder.snapshots.parsers import amd_common, amd_smi
from site_builder.snapshots.parsers.amd_smi import parse_amd_smi_gpus, parse_amd_smi_processes, parse_amd_smi_text
from tests.support.amd_fixtures import build_tool_parts, listed, metric, running, static, value

# Of GPUs, in lines instead of JSON.
TEXT_OF_ONE = """GPU: 1
    USAGE:
        GFX_ACTIVITY: 7 %
"""
TEXT = f"""amdgpu is slow today
GPU: 0
    POWER:
        SOCKET POWER: 140 W
    CLOCK:
        GFX_0:
            CLK: 1500 MHz
        MEM_0:
            CLK: 900 MHz
{TEXT_OF_ONE}"""


def list_indices(*outputs: object) -> list[int | None]:
    return [gpu.index for gpu in parse_amd_smi_gpus(build_tool_parts(*outputs)).rows]


def parse_processes(*process_lists: list[object]) -> ToolOutput[GpuProcessRow]:
    entries = [{"gpu": number, "process_list": entries} for number, entries in enumerate(process_lists)]
    return parse_amd_smi_processes(build_tool_parts(entries))


def process(pid: int, **overrides: object) -> dict[str, object]:
    return {"process_info": {"name": "x", "pid": pid, "memory_usage": {"vram_mem": value(2**20, "B")}, **overrides}}


# GPUs


@pytest.mark.parametrize(
    ("first", "second", "use"),
    [
        (value(37, "%"), value(40, "%"), 40),
        ("37 %", "40 %", 40),
        ("37 %", "N/A", 37),
        ("N/A", "40 %", 40),
        (37, 0, 0),
    ],
)
def test_of_a_fact_that_is_reported_twice_the_last_counts_unless_it_is_missing(
    first: object, second: object, use: float
) -> None:
    outputs = [[metric(usage={"gfx_activity": reading})] for reading in (first, second)]
    assert [gpu.utilization_gpu for gpu in parse_amd_smi_gpus(build_tool_parts(*outputs)).rows] == [use]


@pytest.mark.parametrize(
    ("output", "indices"),
    [
        ([[[metric()]]], [0]),
        ([[[[metric()]]]], []),
        ({"a": {"b": {"c": metric()}}}, [0]),
        ({"a": {"b": {"c": {"d": metric()}}}}, []),
    ],
)
def test_gpus_are_found_at_most_three_levels_deep(output: object, indices: list[int]) -> None:
    assert list_indices(output) == indices


def test_entries_beyond_the_limit_do_not_count_and_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd_smi, "MAX_ENTRIES", 2)
    whole = parse_amd_smi_gpus(build_tool_parts([metric(number) for number in range(2)]))
    too_long = parse_amd_smi_gpus(build_tool_parts([metric(number) for number in range(5)]))
    assert ([gpu.index for gpu in whole.rows], whole.problems) == ([0, 1], [])
    assert [gpu.index for gpu in too_long.rows] == [0, 1]
    assert too_long.problems == ["it has more than 2 entries; the rest is ignored"]


def test_the_words_of_each_error_are_messages() -> None:
    errors = [{"error": "one"}, {"error_message": "two"}, {"message": "three"}, {"code": "four"}]
    assert parse_amd_smi_gpus(build_tool_parts(errors)).messages == ["one", "two", "three"]


def test_an_entry_without_a_number_hides_none_after_it() -> None:
    assert list_indices(f"CPU: 0\nGPU: x\n{TEXT}") == [0, 1]


@pytest.mark.parametrize(
    ("outputs", "is_understood"),
    [
        (([metric()],), True),
        (("nothing to see", [metric()]), False),
        (([metric()], "nothing to see"), False),
        (([metric()], f'{{"a": 0, "a": 1}}\n{TEXT_OF_ONE}'), False),
    ],
)
def test_an_output_is_understood_if_each_answer_is(outputs: tuple[object, ...], is_understood: bool) -> None:
    assert parse_amd_smi_gpus(build_tool_parts(*outputs)).is_complete is is_understood


def test_a_gpu_of_which_only_the_number_is_reported_hides_no_other() -> None:
    assert list_indices([{"gpu": 0}, metric(1)]) == [1]


@pytest.mark.parametrize("name", ["version", "driver_version"])
def test_the_version_of_the_driver_has_two_names(name: str) -> None:
    (gpu,) = parse_amd_smi_gpus(build_tool_parts([static(driver={name: "6.1"})])).rows
    assert gpu.raw_fields["driver_version"] == "6.1"


# text instead of JSON


def test_text_is_understood_by_its_indentation_after_lines_of_another_form() -> None:
    output = parse_amd_smi_gpus(build_tool_parts(TEXT))
    first, second = output.rows
    assert (first.power_draw, first.clock, first.raw_fields["clocks.current.memory"]) == (140, 1500, "900")
    assert (second.index, second.utilization_gpu) == (1, 7)
    assert output.messages == ["amdgpu is slow today"]


def test_gpus_in_text_beyond_the_limit_are_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd_common, "MAX_GPUS", 2)
    gpus, messages = parse_amd_smi_text(["GPU: 0", "GPU: 1", "GPU: 1", "    A: 1"])
    assert (gpus, messages) == ([{"gpu": "0"}, {"gpu": "1"}], ["GPU: 1"])


def test_text_is_understood_to_a_depth_of_eight() -> None:
    lines = ["GPU: 0", *(f"{' ' * depth}{chr(96 + depth)}:" for depth in range(1, 11))]
    (gpu,), _ = parse_amd_smi_text(lines)
    assert list(amd_common.flatten_amd_json(gpu["a"])) == ["b.c.d.e.f.g"]
    assert str(gpu).count("{") == 8


# processes


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        ({"memory_usage": {"vram_mem": value(2**21, "B")}, "mem_usage": value(2**20, "B")}, 2),
        ({"vram_mem": "3 MB"}, 3),
        ({"memory_usage": {"vram_mem": "N/A"}, "mem_usage": value(2**20, "B")}, 1),
        ({"memory_usage": {}, "mem_usage": "4.0 MB"}, 4),
    ],
)
def test_the_memory_of_a_process_has_had_several_names(memory: dict[str, object], mib: float) -> None:
    facts = {"memory_usage": "N/A", **memory}
    assert [row.used_memory for row in parse_processes([process(7, **facts)]).rows] == [mib]


@pytest.mark.parametrize(
    ("names", "name"),
    [
        ({"name": "python3", "process_name": "other"}, "python3"),
        ({"name": "N/A", "process_name": "python3"}, "python3"),
        ({"name": "N/A"}, None),
    ],
)
def test_the_name_of_a_process_has_had_two_names(names: dict[str, object], name: str | None) -> None:
    assert [row.name for row in parse_processes([process(7, **names)]).rows] == [name]


def test_a_process_needs_no_process_info_around_it() -> None:
    assert parse_processes([{"pid": 7, "name": "x"}]).rows == (GpuProcessRow("amd 0", 7, None, "x"),)


@pytest.mark.parametrize("entry", ["No running processes detected", "N/A", None, {"name": "no pid"}, [7]])
def test_an_entry_that_is_no_process_hides_none_after_it(entry: object) -> None:
    assert [row.pid for row in parse_processes([entry, process(7)]).rows] == [7]


def test_words_instead_of_processes_are_quoted_shortened() -> None:
    output = parse_processes(["x" * 200])
    assert output.unreported == {"amd 0": "x" * 80}
    assert output.problems == [f"amd-smi reports a process of GPU 0 that cannot be parsed: {'x' * 80}"]


TOO_MANY = "more than 2 processes are reported; only the first 2 are used"


@pytest.mark.parametrize(
    ("process_lists", "pids", "problems"),
    [
        ([[process(1), process(2)]], [1, 2], []),
        ([[process(1)], [process(2)]], [1, 2], []),
        ([[process(1), process(2), process(3)]], [1, 2], [TOO_MANY]),
        ([[process(1)], [process(2), process(3)]], [1, 2], [TOO_MANY]),
        ([[process(1), process(2)], [process(3)]], [1, 2], [TOO_MANY]),
        ([["N/A"], [process(1), process(2)]], [1], [TOO_MANY]),
    ],
)
def test_processes_beyond_the_limit_make_the_list_incomplete(
    process_lists: list[list[object]], pids: list[int], problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU whose processes were left out must not look free."""
    monkeypatch.setattr(amd_common, "MAX_PROCESSES", 2)
    output = parse_processes(*process_lists)
    assert [row.pid for row in output.rows] == pids
    assert [problem for problem in output.problems if "more than" in problem] == problems
    assert output.is_complete == (not problems)


@pytest.mark.parametrize(
    ("query", "output", "is_complete"),
    [
        ("processes", [running(0)], True),
        ("processes", [metric()], False),
        ("names", [running(0)], False),
        ("static", [running(0)], False),
    ],
)
def test_the_list_is_complete_if_the_answer_has_processes(query: str, output: object, is_complete: bool) -> None:
    (part,) = build_tool_parts(output).values()
    assert parse_amd_smi_processes({query: part}).is_complete is is_complete


def test_the_processes_of_all_answers_count() -> None:
    outputs = [[listed(0)], [running(0, ("a", 7, 2**20))], [running(0, ("b", 8, 2**20))]]
    assert [row.pid for row in parse_amd_smi_processes(build_tool_parts(*outputs)).rows] == [7, 8]
