"""Single values as tools print them: numbers with units, and the words that stand in the place of a reading."""

from __future__ import annotations

from typing import Any

import pytest

from site_builder.snapshots.parsers import values
from tests.support.error_words import (
    AMD_ERRORS,
    AMD_REFUSALS,
    HARMLESS,
    NO_READING,
    NVIDIA_ERRORS,
    NVIDIA_REFUSALS,
)

# Numbers


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("0", 0),
        ("-0", 0),
        ("42", 42),
        ("42.5", 42.5),
        ("512 MiB", 512),
        ("512 KiB", 512),
        ("98 %", 98),
        ("71.25 W", 71.25),
        ("1980 MHz", 1980),
        ("45 C", 45),
        ("7 us", 7),
        ("7 ms", 7),
        ("1e-6", 1e-6),
        ("1e-7", None),
        ("999999999999999", 999999999999999),
        ("1e15", None),
        ("-1", None),
        ("-1 MiB", None),
        ("nan", None),
        ("inf", None),
        ("[N/A]", None),
        ("[42]", None),
        ("", None),
        ("MiB", None),
        ("512 GiB", None),
        ("512MiB", None),
        ("x 512 MiB", None),
    ],
)
def test_a_number_is_plain_from_0_up_with_or_without_a_unit(cell: str, expected: float | None) -> None:
    assert values.parse_number(cell) == expected


def test_many_numbers_are_parsed_as_one_is_whether_cached_or_not() -> None:
    short, long = ["1", "x", "2 MiB"], ["1", "x", "2 MiB", "0" * 300 + "7"]
    assert values.parse_numbers(short) == [1, None, 2]
    assert values.parse_numbers(long) == [1, None, 2, 7]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("0", 0),
        ("007", 7),
        ("123456789012", 123456789012),
        ("1234567890123", None),
        ("-1", None),
        ("1.0", None),
        ("", None),
        ("²", None),
    ],
)
def test_an_integer_has_nothing_but_up_to_12_digits(cell: str, expected: int | None) -> None:
    assert values.parse_integer(cell) == expected


# Cells


@pytest.mark.parametrize(
    "cell",
    [
        *("N/A", "[N/A]", "", "-", "ERR!", "[Not Supported]", "Not Supported", "Not Found", "Unknown Error"),
        *("[Unknown Error]", "GPU is lost", "[GPU is lost]", "GPU requires reset", "Insufficient Permissions"),
    ],
)
def test_a_cell_that_says_that_there_is_no_value_has_none(cell: str) -> None:
    assert values.parse_cell(cell) is None


@pytest.mark.parametrize("cell", ["python", "[python]", "[N/A] x", "x [N/A]", "[Kworker/3]", "n/a"])
def test_a_cell_with_anything_else_has_its_text(cell: str) -> None:
    assert values.parse_cell(cell) == cell


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("[Unknown Error]", "Unknown Error"),
        (" [Unknown Error] ", "Unknown Error"),
        ("ERR!", "ERR!"),
        ("!", "!"),
        ("z", "z"),
        ("Timeout", "Timeout"),
        ("[Xid error X]", "Xid error X"),
        ("[Some  new\twords]", "Some new words"),
        ("[" + "x" * 200, "x" * 79),
        ("MiB", "MiB"),
        ("12 Volt", "12 Volt"),
        ("[N/A]", None),
        ("N/A MiB", None),
        ("na", None),
        ("-", None),
        ("", None),
        ("none", None),
        ("[Not Supported]", None),
        ("unsupported", None),
        ("Not Available", None),
        ("Not Applicable", None),
        ("[Not Found]", None),
        ("[Function Not Found]", None),
        ("[Requested functionality has been deprecated]", None),
        ("42", None),
        ("42 MiB", None),
        ("1e3", None),
        ("-42", None),
        ("?", None),
    ],
)
def test_any_other_words_in_the_place_of_a_reading_are_an_error(cell: str, expected: str | None) -> None:
    assert values.parse_error_value(cell) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[GPU is lost]", "GPU is lost"),
        (" [GPU requires reset] ", "GPU requires reset"),
        ("LOST", "LOST"),
        ("[Xid 79: fallen off the PCI-X]", "Xid 79: fallen off the PCI-X"),
        ("the GPU needs a reset", "the GPU needs a reset"),
        ("require an GPU reset", "require an GPU reset"),
        ("Reset required", "Reset required"),
        ("a reset is needed", "a reset is needed"),
        ("GPU has fallen off the bus", "GPU has fallen off the bus"),
        ("it fell off", "it fell off"),
        ("GPU is lost " + "x" * 100, "GPU is lost " + "x" * 68),
        ("blossom-lostly", None),
        ("reset", None),
        ("turned off", None),
        ("42", None),
    ],
)
def test_words_for_a_gpu_that_must_be_reset_are_found_without_their_brackets(text: str, expected: str | None) -> None:
    assert values.find_lost_value(("42", text, "[Reset required]" if expected else "ok")) == expected
    assert values.find_lost_value(iter([text])) == expected


def test_readings_that_failed_are_named_in_the_order_of_their_weight_with_the_words_of_the_first() -> None:
    cells = [("temperature", "ERR!"), ("use", "42 %"), ("memory", "[Unknown Error]"), ("memory", "12 MiB")]
    error = values.find_reading_error(cells)
    assert error == values.ReadingError("memory and temperature", "Unknown Error")
    assert error is not None
    assert error.sentence == "its memory and temperature cannot be read: Unknown Error"


def test_without_a_reading_that_failed_there_is_no_error() -> None:
    assert values.find_reading_error([("use", "42 %"), ("memory", "[N/A]")]) is None


# Columns


@pytest.mark.parametrize("padding", ["", "x" * 4000])
def test_the_names_in_a_header_have_neither_units_nor_spaces(padding: str) -> None:
    names = values.parse_column_names(f"index, memory.used [MiB],name [a] [b],{padding}")
    assert names == ("index", "memory.used", "name", padding)
    assert values.parse_column_names(f"a;b, c;{padding}", ";") == ("a", "b, c", padding)


def test_a_column_that_is_missing_is_behind_the_last() -> None:
    assert values.find_column_positions(("a", "b", "c"), ("c", "x", "a")) == (2, 3, 0)


# Readings with units of their own


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (42, (42.0, "")),
        (4.5, (4.5, "")),
        (0, (0.0, "")),
        (-1, None),
        (True, None),
        (None, None),
        ([], None),
        (float("nan"), None),
        (float("inf"), None),
        (10**30, None),
        (-(10**30), None),
        (10**24, (1e24, "")),
        (int(1e25), None),
        (10**400, None),
        ("42", (42.0, "")),
        (" 42.5 MB ", (42.5, "mb")),
        ("42%", (42.0, "%")),
        ("(300Mhz)", (300.0, "mhz")),
        ("42 °C", (42.0, "°c")),
        ("-42", None),
        ("N/A", None),
        ("42 43", None),
        ("4e3", None),
        ({"value": 42, "unit": "W"}, (42.0, "w")),
        ({"value": "42 kW", "unit": "W"}, (42.0, "kw")),
        ({"value": "42", "unit": "W"}, (42.0, "w")),
        ({"value": 42, "unit": None}, (42.0, "")),
        ({"value": 42}, (42.0, "")),
        ({"unit": "W"}, None),
        ({"value": "N/A", "unit": "W"}, None),
        ({"value": {"value": 1}, "unit": "W"}, None),
    ],
)
def test_a_quantity_is_a_number_from_0_up_and_its_unit(reading: object, expected: tuple[float, str] | None) -> None:
    assert values.parse_quantity(reading) == expected


@pytest.mark.parametrize(
    ("parser", "limit"),
    [
        (values.parse_percent, 100),
        (values.parse_celsius, 500),
        (values.parse_watts, 10_000),
        (values.parse_mhz, 60_000),
        (values.parse_count, 1e12),
    ],
)
def test_a_reading_beyond_what_there_can_be_is_none(parser: Any, limit: float) -> None:  # noqa: ANN401
    assert parser(limit) == limit
    assert parser(0) == 0
    assert parser(limit * 1.001) is None
    assert parser("N/A") is None


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("0 (300Mhz)", 300),
        ("S: (137Mhz)", 137),
        ("1.5 MHz", 1.5),
        ("level 1 of 300 mhz", 300),
        ("42", 42),
        ("S", None),
        (42, 42),
        ({"value": 1300, "unit": "MHz"}, 1300),
    ],
)
def test_a_clock_may_have_its_level_before_it(reading: object, expected: float | None) -> None:
    assert values.parse_mhz(reading) == expected


@pytest.mark.parametrize(
    ("reading", "default_unit", "expected"),
    [
        (2**20, "b", 1),
        ("42", "mb", 42),
        ("2 GB", "b", 2048),
        ("1 TB", "b", 2**20),
        ("2048 KB", "b", 2),
        ("3 MB", "b", 3),
        ({"value": 2, "unit": "GB"}, "mb", 2048),
        ("0 parsecs", "mb", None),
        ("1 parsec", "mb", None),
        (10**9, "mb", 10**9),
        (10**9 + 1, "mb", None),
        (None, "mb", None),
    ],
)
def test_a_memory_size_is_in_mib_whatever_its_unit(reading: object, default_unit: str, expected: float | None) -> None:
    assert values.build_mib_parser(default_unit)(reading) == expected


@pytest.mark.parametrize("word", [*NVIDIA_ERRORS, *AMD_ERRORS])
@pytest.mark.parametrize("form", ["{}", "[{}]", " {} ", "a driver's {}"])
def test_each_known_word_for_an_error_is_one_in_any_cell(word: str, form: str) -> None:
    cell = form.format(word)
    errors = values.find_cell_errors(("serial", "pstate"), ("0", cell))
    expected = cell.strip().strip("[]")[:80]
    assert errors == values.CellErrors(other=f"the driver reports an error in pstate: {expected}")


@pytest.mark.parametrize("word", [*NO_READING, *HARMLESS, *NVIDIA_REFUSALS, *AMD_REFUSALS, "P0", "NVIDIA A10", "0 %"])
def test_a_word_of_healthy_machines_is_no_error(word: str) -> None:
    assert values.find_cell_errors(("pstate",), (word,), has_brackets=True) == values.NO_CELL_ERRORS


def test_a_word_in_brackets_is_an_error_unless_it_is_known_where_words_have_brackets() -> None:
    names, cells = ("uuid", "name", "serial", "pstate"), ("[N/A]", "A10 [x]", "[Not Supported]", "[Odd Thing]")
    assert values.find_cell_errors(names, cells) == values.NO_CELL_ERRORS
    errors = values.find_cell_errors(names, cells, has_brackets=True)
    assert errors == values.CellErrors(other="the driver reports an error in pstate: Odd Thing")
    assert values.find_cell_errors(names[:3], cells[:3], has_brackets=True) == values.NO_CELL_ERRORS


def test_errors_of_fan_and_power_are_kept_apart_and_the_first_of_each_counts() -> None:
    cells = {
        **{"fan.speed": "ERR!", "fan.rpm": "Timeout", "power.draw": "No data", "enforced.power.limit": "Failed"},
        **{"serial": "Not Ready", "pstate": "Unknown Error", "addressing_mode": "Unknown Error"},
    }
    errors = values.find_cell_errors([*cells], [*cells.values()])
    assert errors == values.CellErrors("ERR!", "No data", "the driver reports an error in serial: Not Ready")


def test_an_unknown_addressing_mode_is_no_error_and_any_other_is() -> None:
    for cell in ("Unknown Error", "[Unknown Error]"):
        errors = values.find_cell_errors(("addressing_mode",), (cell,), has_brackets=True)
        assert errors == values.NO_CELL_ERRORS
    errors = values.find_cell_errors(("addressing_mode",), ("Timeout",))
    assert errors.other == "the driver reports an error in addressing_mode: Timeout"
