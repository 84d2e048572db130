"""What gpuboard concludes from each sample of a tool's output: a golden file each, so that a diff shows what changed.

A sample that has none yet fails: GPUBOARD_UPDATE_GOLDEN=1 writes it, and whoever does so reads it.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from site_builder.core.model import Gpu, GpuProcessRow, HostStatus, ParsedFile
from site_builder.snapshots import gpu_tools
from site_builder.snapshots.parsers import host_and_ps_txt, legacy_files
from site_builder.snapshots.parsers.values import UNIT_SUFFIX, parse_cell
from tests.samples.make_nvidia_samples import build_samples
from tests.samples.nvidia_machines import MACHINES, Machine
from tests.support.generated_fleet import decide, host_data
from tests.support.golden import GOLDEN, check_golden, describe_parsed_file
from tests.support.samples import (
    FORMATS,
    SAMPLES,
    list_queried_fields,
    list_samples,
    name_sample,
    read_gpus,
    read_processes,
    snapshot,
)

NVIDIA_GPUS, NVIDIA_XML = list_samples("nvidia/gpus"), list_samples("nvidia/xml")
NVIDIA_PROCESSES, NVIDIA_ERRORS = list_samples("nvidia/processes"), list_samples("nvidia/errors")
AMD, PS = list_samples("amd/rocm-smi", "amd/amd-smi"), list_samples("ps")
NO_PROCESS = b"gpu_uuid, pid, used_gpu_memory [MiB], process_name\n"
IDLE_GPUS = (
    b"index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], temperature.gpu\n"
    + b"".join(b"%d, GPU-00000000-0000-0000-0000-%012d, NVIDIA A10, 3, 23028, 0, 31\n" % (n, n + 1) for n in range(3))
)
# States in which somebody is handed a GPU.
HANDED_OUT = re.compile(r"\S+ (?:free|booked)")


def drop_missing(content: Any) -> Any:  # noqa: ANN401
    """Return the same without values that are missing: what a golden file does not name is not known."""
    if isinstance(content, dict):
        return {name: drop_missing(value) for name, value in content.items() if value not in (None, {}, [], ())}
    return [drop_missing(entry) for entry in content] if isinstance(content, (list, tuple)) else content


def describe(parsed_file: ParsedFile[Any]) -> dict[str, Any]:
    """Return what was understood of an answer, and whether it is a whole answer."""
    content: dict[str, Any] = drop_missing(describe_parsed_file(parsed_file))
    results = content.pop("tool_results", [])
    del content["header"], content["is_complete"]
    content["is_answer"] = all(result["is_complete"] for result in results)
    if any(result["rc"] for result in results):
        content["exit_codes"] = [result["rc"] for result in results]
    for row in content.get("rows", []):
        row.pop("told", None)
    return content


def describe_board(host: HostStatus) -> dict[str, Any]:
    """Return what the board says of the host and of its GPUs, each in a line."""
    gpus = []
    for gpu in host.gpus:
        kinds = ", ".join(problem.kind for problem in gpu.problems)
        avoided = " (not handed out)" if gpu.is_avoided else ""
        gpus.append(f"{gpu.gpu.label} {gpu.state}: {gpu.reason}{f' [{kinds}]' if kinds else ''}{avoided}")
    problems = [f"{problem.where}: {problem.what}" for problem in host.problems]
    board: dict[str, Any] = drop_missing({"host": f"{host.state}: {host.reason}", "gpus": gpus, "problems": problems})
    return board


def decide_board(gpus: ParsedFile[Gpu], processes: ParsedFile[GpuProcessRow]) -> dict[str, Any]:
    return describe_board(decide(host_data(gpus, processes)))


def parse_gpus(body: bytes) -> ParsedFile[Gpu]:
    return gpu_tools.parse_gpus_of_tools(snapshot("gpus", body))


def parse_processes(body: bytes) -> ParsedFile[GpuProcessRow]:
    return gpu_tools.parse_processes_of_tools(snapshot("processes", body))


@pytest.mark.parametrize("path", NVIDIA_GPUS, ids=name_sample)
def test_gpus_of_nvidia_csv(path: Path) -> None:
    """Beside the processes of the same machine, else beside none."""
    processes = SAMPLES / "nvidia/processes" / path.name
    gpus = read_gpus(path)
    is_machine = processes.is_file() and path.stem in {machine.name for machine in MACHINES}
    board = decide_board(gpus, read_processes(processes) if is_machine else parse_processes(NO_PROCESS))
    check_golden(name_sample(path), {"board": board, "gpus": describe(gpus)})


@pytest.mark.parametrize("path", NVIDIA_PROCESSES, ids=name_sample)
def test_processes_of_nvidia_csv(path: Path) -> None:
    """On the GPUs of the same machine, else on three idle ones."""
    gpus = SAMPLES / "nvidia/gpus" / path.name
    is_machine = path.stem in {machine.name for machine in MACHINES}
    processes = read_processes(path)
    board = decide_board(read_gpus(gpus) if is_machine else parse_gpus(IDLE_GPUS), processes)
    check_golden(name_sample(path), {"board": board, "processes": describe(processes)})


@pytest.mark.parametrize("path", NVIDIA_XML, ids=name_sample)
def test_gpus_and_processes_of_nvidia_xml(path: Path) -> None:
    gpus, processes = read_gpus(path), read_processes(path)
    check_golden(
        name_sample(path),
        {"board": decide_board(gpus, processes), "gpus": describe(gpus), "processes": describe(processes)},
    )


@pytest.mark.parametrize("path", NVIDIA_ERRORS, ids=name_sample)
def test_an_error_in_the_place_of_an_answer(path: Path) -> None:
    """In each place where it may stand; the other answers are those of a host that is well."""
    gpus, processes = read_gpus(path), read_processes(path)
    xml_gpus, xml_processes = read_gpus(path, "nvidia-xml"), read_processes(path, "nvidia-xml")
    golden = {
        "instead of GPUs": {"board": decide_board(gpus, parse_processes(NO_PROCESS)), "gpus": describe(gpus)},
        "instead of processes": {
            "board": decide_board(parse_gpus(IDLE_GPUS), processes),
            "processes": describe(processes),
        },
        "instead of XML": {
            "board": decide_board(xml_gpus, xml_processes),
            "gpus": describe(xml_gpus),
            "processes": describe(xml_processes),
        },
    }
    check_golden(name_sample(path), golden)
    handed_out = [line for part in golden.values() for line in part["board"].get("gpus", ()) if HANDED_OUT.match(line)]
    assert handed_out == []


@pytest.mark.parametrize("path", AMD, ids=name_sample)
def test_gpus_and_processes_of_amd(path: Path) -> None:
    gpus, processes = read_gpus(path), read_processes(path)
    check_golden(
        name_sample(path),
        {"board": decide_board(gpus, processes), "gpus": describe(gpus), "processes": describe(processes)},
    )


@pytest.mark.parametrize("path", [path for path in PS if "ps.txt" in path.name], ids=name_sample)
def test_rows_of_ps_txt(path: Path) -> None:
    check_golden(name_sample(path), drop_missing(describe_parsed_file(host_and_ps_txt.parse_ps_txt(path.read_bytes()))))


@pytest.mark.parametrize("path", [path for path in PS if path.name.startswith("original")], ids=name_sample)
def test_users_of_the_original_scripts(path: Path) -> None:
    parsed_file = legacy_files.parse_legacy_users(path.read_bytes(), datetime(2018, 10, 4, 10))
    check_golden(name_sample(path), drop_missing(describe_parsed_file(parsed_file)))


ANSWERS = [*NVIDIA_GPUS, *NVIDIA_PROCESSES, *NVIDIA_XML, *NVIDIA_ERRORS, *AMD]


@pytest.mark.parametrize("file_format", sorted(gpu_tools.GPU_TOOLS))
def test_an_answer_of_another_tool_is_never_an_idle_gpu(file_format: str) -> None:
    """Nor a list without processes: it is no answer."""
    for path in ANSWERS:
        if path.is_file() and FORMATS[str(path.parent.relative_to(SAMPLES))] != file_format:
            gpus, processes = read_gpus(path, file_format), read_processes(path, file_format)
            assert [gpu for gpu in gpus.rows if gpu.memory_used is not None and not gpu.lost] == [], path
            assert not processes.tool_results[0].is_complete, path


@pytest.mark.parametrize("machine", [machine for machine in MACHINES if "csv" in machine.forms], ids=lambda m: m.name)
def test_xml_and_csv_of_a_machine_report_the_same(machine: Machine) -> None:
    by_csv = read_gpus(SAMPLES / f"nvidia/gpus/{machine.name}.csv").rows
    rows = read_gpus(SAMPLES / f"nvidia/xml/{machine.name}.xml").rows
    by_xml = [*{gpu.index: gpu.parent or gpu for gpu in rows}.values()]
    printed: dict[str, Any] = {"columns": (), "cells": ()}
    if machine.branch < 535:  # its XML has this, and its CSV does not
        printed.update(temperature_margin=None, health=None)
    assert [gpu._replace(**printed) for gpu in by_csv] == [gpu._replace(**printed) for gpu in by_xml]
    for csv_gpu, xml_gpu in zip(by_csv, by_xml):
        names = csv_gpu.raw_fields.keys() & xml_gpu.raw_fields.keys()
        assert len(names) > 30
        for name in names:
            assert parse_cell(UNIT_SUFFIX.sub("", csv_gpu.raw_fields[name])) == parse_cell(xml_gpu.raw_fields[name]), (
                name
            )


@pytest.mark.parametrize("path", list_samples("nvidia/help"), ids=name_sample)
def test_the_columns_of_a_machine_are_the_fields_that_gpuboard_queries_of_its_driver(path: Path) -> None:
    """By the names of each line, as query_fields.awk takes them; tests/host/fields.bats asks the scripts themselves."""
    header = (SAMPLES / "nvidia/gpus" / f"{path.stem}.csv").read_text().partition("\n")[0]
    columns = [re.sub(r" \[.*", "", name) for name in header.split(", ")]
    lines = [line for line in path.read_text().splitlines() if line.startswith('"')]
    known = {name for line in lines for name in re.findall(r'"([^"]+)"', line)}
    assert [name for name in columns if name not in known] == []
    assert [name for name in list_queried_fields() if name in known and name not in columns] == []


def test_the_samples_of_machines_are_what_their_script_writes() -> None:
    """Run `python -m tests.samples.make_nvidia_samples` after a change of the script."""
    for place, text in build_samples().items():
        assert (SAMPLES / "nvidia" / place).read_bytes() == text.encode(), place


def test_there_is_no_golden_file_without_its_sample() -> None:
    places = {name_sample(path) for path in (*ANSWERS, *PS)}
    golden = {str(path.relative_to(GOLDEN).with_suffix("")) for path in GOLDEN.rglob("*.json")}
    assert {place for place in golden if not place.startswith("captures/")} <= places
