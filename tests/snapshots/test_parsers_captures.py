"""Every recorded answer, as it is understood: a golden file each, so that a diff shows what changed.

A capture that has none yet fails: GPUBOARD_UPDATE_GOLDEN=1 writes it, and whoever does so reads it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from site_builder.snapshots import gpu_tools
from site_builder.snapshots.parsers.values import parse_cell, parse_number
from tests.support.captures import (
    list_captures,
    name_capture,
    name_capture_with_project,
    read_capture,
    replay,
    replay_gpus,
    replay_processes,
)
from tests.support.golden import GOLDEN, check_golden, describe_parsed_file
from tests.support.nvidia_xml import xml_of
from tests.support.samples import snapshot

pytestmark = pytest.mark.slow

# What moved between two queries, a tenth of a second apart.
MOVING_FIELDS = {"power.draw", "temperature.gpu", "temperature.memory", "fan.speed", "clocks_event_reasons.active"}
MOVING_FIELDS |= {"clocks.current.graphics", "clocks.current.sm", "clocks.current.memory"}
# And what only the XML has.
MOVING_HEALTH: dict[str, Any] = {"clock_reasons": None, "max_lanes": None}
STATES = pytest.mark.parametrize("state", ["idle", "load"])
BUNDLES = pytest.mark.parametrize("bundle", list_captures("bundles"), ids=name_capture)


def check_gpus(name: str, body: bytes) -> None:
    parsed_gpus = gpu_tools.parse_gpus_of_tools(snapshot("gpus", body))
    check_golden(f"captures/{name}", describe_parsed_file(parsed_gpus))


def check_processes(name: str, body: bytes) -> None:
    parsed_processes = gpu_tools.parse_processes_of_tools(snapshot("processes", body))
    check_golden(f"captures/{name}", describe_parsed_file(parsed_processes))


@pytest.mark.parametrize("path", list_captures("xml"), ids=name_capture_with_project)
def test_recorded_xml(path: Path) -> None:
    xml_part = b"# part nvidia-xml rc=0\n" + path.read_bytes()
    check_gpus(f"xml-gpus-{name_capture_with_project(path)}", xml_part)
    check_processes(f"xml-processes-{name_capture_with_project(path)}", xml_part)


@pytest.mark.parametrize("path", [*list_captures("csv-gpu"), *list_captures("errors")], ids=name_capture)
def test_recorded_gpus(path: Path) -> None:
    check_gpus(f"gpus-{name_capture(path)}", read_capture(path))


@pytest.mark.parametrize("path", [*list_captures("csv-apps"), *list_captures("errors")], ids=name_capture)
def test_recorded_processes(path: Path) -> None:
    check_processes(f"processes-{name_capture(path)}", read_capture(path))


@pytest.mark.parametrize("path", [*list_captures("rocm"), *list_captures("amdsmi")], ids=name_capture)
def test_recorded_answers_of_amd(path: Path) -> None:
    tool = "rocm-smi" if path.parent.name == "rocm" else "amd-smi"
    part = f"# part {tool} rc=0\n".encode() + path.read_bytes()
    check_gpus(f"gpus-{path.parent.name}-{name_capture(path)}", part)
    check_processes(f"processes-{path.parent.name}-{name_capture(path)}", part)


@pytest.mark.parametrize("path", list_captures("errors"), ids=name_capture)
def test_a_recorded_error_in_the_place_of_xml_is_reported_as_in_the_place_of_csv(path: Path) -> None:
    xml_part = b"# part nvidia-xml rc=255\n" + path.read_bytes()
    by_xml = gpu_tools.parse_gpus_of_tools(snapshot("gpus", xml_part))
    by_csv = gpu_tools.parse_gpus_of_tools(snapshot("gpus", path.read_bytes()))
    assert [gpu.lost for gpu in by_xml.rows] == [gpu.lost for gpu in by_csv.rows]
    assert [line.strip() for line in by_csv.messages] == list(by_xml.messages)
    assert gpu_tools.parse_processes_of_tools(snapshot("processes", xml_part)).tool_results[0].is_complete is False


@BUNDLES
@STATES
def test_recorded_machines_by_csv(bundle: Path, state: str) -> None:
    check_gpus(f"gpus-{name_capture(bundle)}-{state}", replay_gpus(bundle, REPLAY_STATE=state))
    suffix = "-idle" if state == "idle" else ""
    check_processes(f"processes-{name_capture(bundle)}{suffix}", replay_processes(bundle, REPLAY_STATE=state))


@BUNDLES
def test_recorded_machines_by_xml(bundle: Path) -> None:
    xml = xml_of(replay(bundle, "-q", REPLAY_STATE="load").decode()).encode()
    xml_parts = b"# part nvidia-xml rc=0\n" + xml + b"# part nvidia-xml/list rc=0\n" + replay(bundle, "-L")
    check_gpus(f"xml-gpus-{name_capture_with_project(bundle)}", xml_parts)
    check_processes(f"xml-processes-{name_capture_with_project(bundle)}", xml_parts)


@BUNDLES
@STATES
def test_xml_and_csv_of_a_recorded_machine_report_the_same_field_by_field(bundle: Path, state: str) -> None:
    (by_csv,) = gpu_tools.parse_gpus_of_tools(snapshot("gpus", replay_gpus(bundle, REPLAY_STATE=state))).rows
    xml_part = b"# part nvidia-xml rc=0\n" + xml_of(replay(bundle, "-q", REPLAY_STATE=state).decode()).encode()
    first, *_ = gpu_tools.parse_gpus_of_tools(snapshot("gpus", xml_part)).rows
    by_xml = first.parent or first
    csv_fields, xml_fields = by_csv.raw_fields, by_xml.raw_fields
    assert set(csv_fields) - set(xml_fields) == {"compute_cap"}  # which the XML does not have
    for name in csv_fields.keys() & xml_fields.keys() - MOVING_FIELDS:
        assert parse_cell(xml_fields[name]) == parse_cell(csv_fields[name]), name
    for name in MOVING_FIELDS:
        assert (parse_number(xml_fields[name]) is None) == (parse_number(csv_fields[name]) is None), name
    assert by_csv.health._replace(**MOVING_HEALTH) == by_xml.health._replace(**MOVING_HEALTH)


def test_there_is_no_golden_file_of_a_capture_that_is_gone() -> None:
    names = {name_capture_with_project(path) for folder in ("xml", "bundles") for path in list_captures(folder)}
    golden_names = {re.sub(r"^xml-(gpus|processes)-", "", path.stem) for path in GOLDEN.glob("captures/xml-*.json")}
    assert golden_names <= names
