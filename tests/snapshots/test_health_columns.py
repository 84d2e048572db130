"""The columns of nvidia-smi that are about the health of a GPU, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from site_builder.core.model import GpuHealth, MemoryErrorCounts
from site_builder.snapshots.parsers import health_columns
from site_builder.snapshots.parsers.health_columns import COUNT_COLUMNS, FABRIC_GOOD_WORDS, HEALTH_COLUMNS


def health_of(unread_fan: str = "", unread_power: str = "", **cells: str) -> GpuHealth:
    """Parse cells by the names of their columns, with _ for each dot; the others say that there is no value."""
    by_column = {name.replace(".", "_"): name for name in HEALTH_COLUMNS}
    texts = {by_column[name]: cell for name, cell in cells.items()}
    row = tuple(texts.get(column, "[N/A]") for column in HEALTH_COLUMNS)
    return health_columns.parse_health_columns(row, unread_fan, unread_power)


def test_a_gpu_that_reports_nothing_has_no_health() -> None:
    assert health_of() == GpuHealth(error_counts=MemoryErrorCounts(*[None] * len(COUNT_COLUMNS)))


def test_each_count_of_memory_errors_has_its_column() -> None:
    assert len(COUNT_COLUMNS) == len(MemoryErrorCounts._fields)
    cells = {column.replace(".", "_"): str(number) for number, column in enumerate(COUNT_COLUMNS, 1)}
    assert health_of(**cells).error_counts == MemoryErrorCounts(*range(1, len(COUNT_COLUMNS) + 1))


@pytest.mark.parametrize(
    ("column", "cell", "field", "expected"),
    [
        ("remapped_rows_failure", "Yes", "has_repair_failed", True),
        ("remapped_rows_failure", "No", "has_repair_failed", False),
        ("gpu_recovery_action", "None", "recovery_action", ""),
        ("gpu_recovery_action", "Reset", "recovery_action", "Reset"),
        ("gpu_recovery_action", "[N/A]", "recovery_action", None),
        ("gpu_recovery_action", "Requested functionality has been deprecated", "recovery_action", None),
        ("reset_status_drain_and_reset_recommended", "Yes", "is_drain_recommended", True),
        ("pcie_link_width_current", "16", "lanes", 16),
        ("pcie_link_width_current", "16x", "lanes", 16),
        ("pcie_link_width_current", "X8", "lanes", 8),
        ("pcie_link_width_current", "64", "lanes", 64),
        ("pcie_link_width_current", "65", "lanes", None),
        ("pcie_link_width_current", "1", "lanes", 1),
        ("pcie_link_width_current", "0", "lanes", None),
        ("pcie_link_width_max", "8", "max_lanes", 8),
        ("pstate", "P0", "pstate", 0),
        ("pstate", "P12", "pstate", 12),
        ("pstate", "12", "pstate", None),
        ("pstate", "", "pstate", None),
        ("persistence_mode", "Enabled", "is_persistent", True),
        ("persistence_mode", "Disabled", "is_persistent", False),
        ("compute_mode", "Prohibited", "is_prohibited", True),
        ("compute_mode", "Default", "is_prohibited", False),
        ("mig_mode_current", "Enabled", "is_in_mig_mode", True),
        ("mig_mode_current", "Disabled", "is_in_mig_mode", False),
        ("driver_version", "570.1", "driver", "570.1"),
        ("kmd_version", "571.1", "driver", "571.1"),
    ],
)
def test_a_column_is_read_into_its_field(column: str, cell: str, field: str, expected: Any) -> None:  # noqa: ANN401
    assert health_of(**{column: cell}) == health_of()._replace(**{field: expected})


@pytest.mark.parametrize(
    ("remapped", "retired", "expected"),
    [
        ("[N/A]", "[N/A]", None),
        ("[N/A]", "No", False),
        ("[N/A]", "Yes", True),
        ("No", "[N/A]", False),
        ("No", "No", False),
        ("No", "Yes", True),
        ("Yes", "[N/A]", True),
        ("Yes", "No", True),
    ],
)
def test_a_repair_is_pending_if_rows_or_pages_are(remapped: str, retired: str, expected: bool | None) -> None:
    health = health_of(remapped_rows_pending=remapped, retired_pages_pending=retired)
    assert health.is_repair_pending is expected


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ("0x0000000000000004", "[N/A]", 4),
        ("[N/A]", "0x0000000000000008", 8),
        ("0x0000000000000004", "0x0000000000000008", 4),
        ("0x0000000000000000", "0x0000000000000008", 0),
        ("0xFFFFFFFFFFFFFFFF", "[N/A]", 2**64 - 1),
        ("0x00000000000000001", "[N/A]", None),
        ("4", "[N/A]", None),
        ("0xG", "[N/A]", None),
    ],
)
def test_the_reasons_of_a_clock_have_a_new_and_an_old_name(new: str, old: str, expected: int | None) -> None:
    health = health_of(clocks_event_reasons_active=new, clocks_throttle_reasons_active=old)
    assert health.clock_reasons == expected


def test_the_driver_of_linux_comes_before_that_of_windows() -> None:
    assert health_of(driver_version="570.1", kmd_version="571.1").driver == "570.1"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("", None),
        ("[N/A]", None),
        ("42 %", None),
        ("ERR!", "ERR!"),
        ("[Unknown Error]", "Unknown Error"),
        ("[Insufficient Permissions]", None),
        ("x" * 100, "x" * 80),
    ],
)
def test_a_fan_or_power_reading_that_fails_has_its_words(cell: str, expected: str | None) -> None:
    health = health_of(unread_fan=cell, unread_power="Timeout")
    assert (health.fan_error, health.power_error) == (expected, "Timeout")
    health = health_of(unread_fan="Timeout", unread_power=cell)
    assert (health.fan_error, health.power_error) == ("Timeout", expected)


@pytest.mark.parametrize("word", ["Yes", "1", "Active", "Enabled", "TRUE"])
def test_yes_has_many_words(word: str) -> None:
    assert health_columns.parse_health_boolean(word) is True


@pytest.mark.parametrize("word", ["No", "0", "Not Active", "Disabled", "FALSE"])
def test_no_has_many_words(word: str) -> None:
    assert health_columns.parse_health_boolean(word) is False


@pytest.mark.parametrize("word", ["", "[N/A]", "perhaps", "2"])
def test_anything_else_is_neither_yes_nor_no(word: str) -> None:
    assert health_columns.parse_health_boolean(word) is None


def test_a_long_row_is_cut_cell_by_cell() -> None:
    health = health_of(gpu_recovery_action="R" * 500, driver_version="570.1")
    assert (health.recovery_action, health.driver) == ("R" * 80, "570.1")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("42", 42),
        ("-3 C", -3),
        ("499.9", 499.9),
        ("500", None),
        ("-499.9", -499.9),
        ("-500", None),
        ("N/A", None),
        ("nan", None),
        ("1" + " " * 100 + "x", 1),
    ],
)
def test_a_margin_of_temperature_may_be_below_0(cell: str, expected: float | None) -> None:
    assert health_columns.parse_health_temperature_margin(cell) == expected


# The NVLink fabric


def fabric_of(**cells: str) -> tuple[str | None, str | None, str | None]:
    """Parse cells by the last words of their columns: how far the registration has come, faults, what is unknown."""
    names = {name.rpartition(".")[2]: name.replace(".", "_") for name in FABRIC_GOOD_WORDS}
    health = health_of(**{names[name]: cell for name, cell in cells.items()})
    return health.fabric_registration, health.fabric_faults, health.fabric_unknown


@pytest.mark.parametrize(
    "cells",
    [
        {name.rpartition(".")[2]: word.capitalize() for name, word in FABRIC_GOOD_WORDS.items()},
        {"state": "N/A", "status": "N/A"},
        {"state": "Not Supported", "status": "[Not Supported]", "summary": "Not Supported"},
        {"state": "Completed", "status": "Success"},
        {"state": "[Insufficient Permissions]", "status": "Insufficient Permissions"},
        {"state": "[Function Not Found]", "summary": "[Requested functionality has been deprecated]", "bandwidth": ""},
    ],
)
def test_a_fabric_that_is_well_or_that_there_is_none_of_is_no_problem(cells: dict[str, str]) -> None:
    assert fabric_of(**cells) == (None, None, None)


@pytest.mark.parametrize("word", ["In Progress", "Not Started", "[In Progress]"])
def test_a_gpu_that_is_being_registered_with_its_fabric_is_not_set_up(word: str) -> None:
    assert fabric_of(state=word) == (word.strip("[]"), None, None)
    assert fabric_of(state=word, status="Unknown Error") == (word.strip("[]"), None, None)  # it is not yet valid


@pytest.mark.parametrize(
    ("cells", "faults"),
    [
        ({"status": "Insufficient Resources"}, "registration failed (Insufficient Resources)"),
        ({"summary": "Unhealthy"}, "reported as Unhealthy"),
        ({"summary": "Limited Capacity"}, "reported as Limited Capacity"),
        ({"summary": "Limited Capacity", "bandwidth": "Degraded"}, "bandwidth degraded"),
        ({"route_recovery_in_progress": "True"}, "route recovery in progress"),
        ({"summary": "Unhealthy", "route_unhealthy": "True"}, "route unhealthy"),
        ({"access_timeout_recovery": "TRUE"}, "recovery from an access timeout"),
        ({"incorrect_configuration": "No Partition"}, "incorrect configuration (No Partition)"),
        (
            {"bandwidth": "Degraded", "route_unhealthy": "True", "incorrect_configuration": "Invalid Location"},
            "bandwidth degraded, route unhealthy and incorrect configuration (Invalid Location)",
        ),
        ({"incorrect_configuration": "x" * 100}, f"incorrect configuration ({'x' * 40})"),
    ],
)
def test_the_faults_of_a_fabric_are_named(cells: dict[str, str], faults: str) -> None:
    assert fabric_of(state="Completed", **cells) == (None, faults, None)


def test_faults_are_named_beside_a_registration_that_goes_on() -> None:
    assert fabric_of(state="In Progress", bandwidth="Degraded") == ("In Progress", "bandwidth degraded", None)


@pytest.mark.parametrize("name", ["state", "summary", "bandwidth", "route_unhealthy", "access_timeout_recovery"])
def test_what_is_reported_of_a_fabric_in_unknown_words_is_kept(name: str) -> None:
    column = next(column for column in FABRIC_GOOD_WORDS if column.endswith(f".{name}"))
    assert fabric_of(**{name: "Tired"}) == (None, None, f"{column} Tired")
