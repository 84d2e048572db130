"""What amd-smi and rocm-smi have in common: JSON with lines around it, sizes and depths, and the cells of a GPU."""

from __future__ import annotations

import json

import pytest

from site_builder.core.model import Gpu
from site_builder.snapshots.parsers import amd_common, amd_smi, rocm_smi, values
from site_builder.snapshots.parsers.amd_common import (
    ReadingParser,
    extract_amd_json,
    filter_amd_messages,
    flatten_amd_json,
    parse_amd_index,
    parse_amd_text,
)
from tests.support.amd_fixtures import build_tool_parts, card, listed, metric, static, value

ALL_READINGS: dict[str, ReadingParser] = {
    "utilization.gpu": values.parse_percent,
    "utilization.memory": values.parse_percent,
    "fan.speed": values.parse_percent,
    "temperature.gpu": values.parse_celsius,
    "temperature.memory": values.parse_celsius,
    "power.draw": values.parse_watts,
    "power.limit": values.parse_watts,
    "clocks.current.sm": values.parse_mhz,
    "clocks.current.memory": values.parse_mhz,
    "ecc.errors.corrected.volatile.total": values.parse_count,
    "ecc.errors.uncorrected.volatile.total": values.parse_count,
    "pcie.link.width.current": amd_common.parse_amd_link_width,
    "pcie.link.gen.current": amd_common.parse_amd_link_generation,
}


def parse_gpu(*outputs: object) -> Gpu:
    (gpu,) = amd_smi.parse_amd_smi_gpus(build_tool_parts(*outputs)).rows
    return gpu


# names and units


@pytest.mark.parametrize(("tool", "unit", "mib"), [("amd-smi", "mb", 7), ("rocm-smi", "b", 7 / 2**20)])
def test_each_tool_has_names_for_every_reading_and_its_own_unit_of_memory(tool: str, unit: str, mib: float) -> None:
    field_names = amd_common.load_amd_field_names(tool, unit, amd_smi.WATCHED_FIELDS)
    parsers = {column: parse for column, (parse, _) in field_names.readings.items()}
    memory_columns = ("memory.used", "memory.total", "gtt.used", "gtt.total")
    assert [parsers.pop(column)(7) for column in memory_columns] == [mib] * 4
    assert all(parse is ALL_READINGS[column] for column, parse in parsers.items())
    assert ALL_READINGS.keys() - parsers.keys() <= {column for column in ALL_READINGS if column.startswith("ecc.")}
    assert all(names for _, names in field_names.readings.values())
    assert sorted(field_names.texts) == [
        *("architecture", "device", "memory_type", "name", "pci.bus_id", "serial", "sku", "vbios_version")
    ]
    assert field_names.watched is amd_smi.WATCHED_FIELDS


# JSON with text around it


def test_each_json_value_of_an_output_counts() -> None:
    printed = extract_amd_json([json.dumps({"card0": card()}), "[INFO] next", json.dumps({"card1": card(1)})])
    assert [list(entry) for entry in printed.values if isinstance(entry, dict)] == [["card0"], ["card1"]]
    assert (printed.text_lines, printed.problems) == (["[INFO] next"], [])


def test_a_last_line_that_looks_like_json_is_text() -> None:
    printed = extract_amd_json(["{}", "[INFO] done"])
    assert (printed.values, printed.text_lines, printed.problems) == ([{}], ["[INFO] done"], [])


def test_json_that_ends_early_is_a_problem_and_no_text() -> None:
    printed = extract_amd_json(['{"card0": {}}', '{"card1": {"a": "1"'])
    assert (printed.values, printed.text_lines) == ([{"card0": {}}], [])
    assert [problem[:24] for problem in printed.problems] == ["its JSON cannot be read:"]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (
            ["{", ' "card0": {', '  "a": "1" "b": "2",', '  "c":', "  [1]", " }", "}"],
            "its JSON cannot be read: line 3, ",
        ),
        (["[" * 200_000], "its JSON cannot be read: it is nested too deeply"),
    ],
)
def test_nothing_counts_after_a_fault_within_json(lines: list[str], problem: str) -> None:
    printed = extract_amd_json([*lines, "and more"])
    assert (printed.values, printed.text_lines) == ([], [])
    assert [found[: len(problem)] for found in printed.problems] == [problem]


def test_a_line_in_brackets_before_other_text_is_a_problem_where_there_is_no_json() -> None:
    printed = extract_amd_json(["[INFO] started", "and nothing more"])
    assert printed.text_lines == ["[INFO] started", "and nothing more"]
    assert [problem[:24] for problem in printed.problems] == ["its JSON cannot be read:"]


def test_names_that_stand_twice_are_quoted_shortened_and_at_most_eight() -> None:
    pairs = ", ".join(f'"{number}{"x" * 200}": 0, "{number}{"x" * 200}": 1' for number in range(10))
    problems = extract_amd_json([f"{{{pairs}}}"]).problems
    assert problems == [f"“{number}{'x' * 79}” occurs twice; the last is used" for number in range(8)]


@pytest.mark.parametrize("json_lines", [0, 9])
def test_lines_of_text_beyond_the_limit_do_not_count_and_are_a_problem(
    json_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amd_common, "MAX_JSON_LINES", 5)
    lines = ["{", *[f'"{number}": 0,' for number in range(json_lines - 3)], '"x": 0', "}"] if json_lines else []
    text = ["a", "b", "c", "d", "e"]
    if json_lines:
        text.pop()  # the rest of the line on which the JSON ends counts as one
    whole, too_long = extract_amd_json([*lines, *text]), extract_amd_json([*lines, *text, "f", "g"])
    assert (whole.text_lines, whole.problems) == (text, [])
    assert too_long.text_lines == text
    assert too_long.problems == ["it has more than 5 lines; the rest is ignored"]
    assert extract_amd_json([*lines, *text, "f"]).problems == too_long.problems


# facts


def test_facts_have_names_in_lower_case_to_a_depth_of_six() -> None:
    nested: object = 1
    for name in ("h", "g", "f", "E", "d", "c", "b", "Xgmi"):
        nested = {name: nested}
    assert flatten_amd_json(nested) == {"xgmi.b.c.d.e.f": {"g": {"h": 1}}}


def test_facts_beyond_the_limit_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd_common, "MAX_FLAT_KEYS", 3)
    assert list(flatten_amd_json(dict.fromkeys("abcde", 1))) == ["a", "b", "c"]


def test_numbers_of_gpus_are_below_2000() -> None:
    assert (parse_amd_index(1999), parse_amd_index(2000), parse_amd_index("1.5")) == (1999, None, None)


@pytest.mark.parametrize("no_text", [True, False, ["a"], {"a": "b"}, 1.5, None])
def test_only_words_and_whole_numbers_are_text(no_text: object) -> None:
    assert parse_amd_text(no_text) is None
    assert parse_amd_text(77) == "77"


def test_an_indented_line_is_a_message_unless_it_belongs_to_a_traceback() -> None:
    lines = ["  the driver is old", "Traceback (most recent call last):", '  File "x"', "ValueError: odd"]
    assert filter_amd_messages(lines) == ["the driver is old", "ValueError: odd"]


def test_messages_beyond_the_limit_of_lines_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd_common, "MAX_MESSAGE_LINES", 3)
    assert filter_amd_messages(["a", "====", "b", "c"]) == ["a", "b"]


# a GPU


def test_the_cells_of_a_gpu_have_its_number_uuid_and_no_model_numbers() -> None:
    fields = parse_gpu([listed(hip_id=3)], [static(board={"model_number": "102-G30211-00", "product_serial": "77"})])
    assert (fields.raw_fields["index"], fields.raw_fields["uuid"]) == ("3", "GPU-abc0000000000001")
    assert fields.raw_fields.keys() == {
        *("index", "uuid", "name", "driver_version", "pci.bus_id", "serial", "vbios_version"),
        *("memory.total", "power.limit"),
    }


def test_readings_keep_their_decimals_and_large_counts_all_digits() -> None:
    gpu = parse_gpu([metric(power={"socket_power": value(120.5, "W")}, ecc={"total_correctable_count": 12345678})])
    fields = gpu.raw_fields
    assert (fields["power.draw"], fields["ecc.errors.corrected.volatile.total"]) == ("120.5", "12345678")


def test_of_two_errors_of_the_power_the_best_name_counts() -> None:
    power = {"socket_power": "AMDSMI_STATUS_TIMEOUT", "current_socket_power": "AMDSMI_STATUS_BUSY"}
    assert parse_gpu([metric(power=power)]).raw_fields["power.draw"] == "AMDSMI_STATUS_TIMEOUT"


@pytest.mark.parametrize(
    ("reading", "failed"),
    [
        ({"mem_usage": {"used_vram": value(5, "MB")}}, {"usage": {"gfx_activity": "AMDSMI_STATUS_BUSY"}}),
        ({"usage": {"gfx_activity": value(5, "%")}}, {"temperature": {"edge": "AMDSMI_STATUS_BUSY"}}),
        ({"temperature": {"edge": value(5, "C")}}, {"usage": {"gfx_activity": "AMDSMI_STATUS_BUSY"}}),
    ],
)
def test_a_gpu_with_one_live_reading_is_not_lost(reading: dict[str, object], failed: dict[str, object]) -> None:
    gpu = parse_gpu([{"gpu": 0, **reading, **failed}])
    assert (gpu.lost, (gpu.error or "")[-18:]) == (None, "AMDSMI_STATUS_BUSY")
    assert parse_gpu([{"gpu": 0, **failed}]).lost == "AMDSMI_STATUS_BUSY"


@pytest.mark.parametrize("query_count", [1, 2])
def test_messages_and_problems_of_all_answers_are_kept(query_count: int) -> None:
    outputs = [f'WARNING: {number}\n{{"a{number}": 0, "a{number}": 0}}' for number in range(query_count)]
    parts = build_tool_parts(*outputs)
    for output in (
        *(amd_smi.parse_amd_smi_gpus(parts), amd_smi.parse_amd_smi_processes(parts)),
        *(rocm_smi.parse_rocm_smi_gpus(parts), rocm_smi.parse_rocm_smi_processes(parts)),
    ):
        assert output.messages == [f"WARNING: {number}" for number in range(query_count)]
        assert [problem[:4] for problem in output.problems] == [f"“a{number}”" for number in range(query_count)]
