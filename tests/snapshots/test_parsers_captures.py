"""Every recorded answer of nvidia-smi, as it is understood: a golden file each, so that a diff shows what changed.

A capture that has none yet fails: GPUBOARD_UPDATE_GOLDEN=1 writes it, and whoever does so reads it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from site_builder.snapshots import gpu_tools
from tests.snapshots.test_nvidia_csv import our_fields
from tests.support.captures import CAPTURES, GOLDEN, check_golden, needs_shared, replay, snapshot
from tests.support.nvidia_xml import xml_of

# What was recorded without the line that names the columns, by its file; the rest tells nothing but words without one.
HEADERS = {
    "orin-nvgpu": b"name, uuid, memory.used, memory.total, utilization.gpu\n",
    "csv-a6000-scattered-unknown-error": b"index, name, uuid, temperature.gpu, fan.speed, power.draw, power.limit, "
    b"memory.used, memory.total\n",
    "csv-gpu-requires-reset-nounits": b"index, uuid, memory.used, memory.total, utilization.gpu, temperature.gpu\n",
    "csv-loop-first-good-then-unknown": b"index, utilization.gpu, memory.used\n",
    "csv-infoROM-warning-first": b"index, name, utilization.gpu, memory.used, memory.total, temperature.gpu, "
    b"power.draw\n",
    "container-not-found": b"gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n",
    "windows-pid4-insufficient-permissions": b"pid, process_name, gpu_uuid, used_gpu_memory [MiB]\n",
}


def files(folder: str) -> list[Path]:
    return sorted(CAPTURES.glob(f"{folder}/*")) if CAPTURES.is_dir() else []


def short(path: Path) -> str:
    return path.stem.split("__", 1)[1]


def whose(path: Path) -> str:
    """Several projects call theirs nvidia-smi.xml."""
    return f"{path.stem.partition('+')[0]}-{short(path)}"


def told_as(path: Path) -> bytes:
    return HEADERS.get(short(path), b"") + path.read_bytes()


@needs_shared
@pytest.mark.parametrize("path", files("xml"), ids=whose)
def test_recorded_xml(path: Path) -> None:
    xml_part = b"# part nvidia-xml rc=0\n" + path.read_bytes()
    check_golden(f"xml-gpus-{whose(path)}", gpu_tools.parse_gpus_of_tools(snapshot("gpus", xml_part)))
    check_golden(f"xml-processes-{whose(path)}", gpu_tools.parse_processes_of_tools(snapshot("processes", xml_part)))


@needs_shared
@pytest.mark.parametrize("path", [*files("csv-gpu"), *files("errors")], ids=short)
def test_recorded_gpus(path: Path) -> None:
    if "device-handle-gpu-lost-old" in path.name:
        return  # test_readers_gpus.py has it below a header
    check_golden(f"gpus-{short(path)}", gpu_tools.parse_gpus_of_tools(snapshot("gpus", told_as(path))))


@needs_shared
@pytest.mark.parametrize("path", [*files("csv-apps"), *files("errors")], ids=short)
def test_recorded_processes(path: Path) -> None:
    check_golden(f"processes-{short(path)}", gpu_tools.parse_processes_of_tools(snapshot("processes", told_as(path))))


@needs_shared
@pytest.mark.parametrize("path", files("errors"), ids=short)
def test_an_error_in_the_place_of_xml_is_reported_as_in_the_place_of_csv(path: Path) -> None:
    xml_part = b"# part nvidia-xml rc=255\n" + path.read_bytes()
    by_xml, by_csv = (
        gpu_tools.parse_gpus_of_tools(snapshot("gpus", xml_part)),
        gpu_tools.parse_gpus_of_tools(snapshot("gpus", path.read_bytes())),
    )
    assert [gpu.lost for gpu in by_xml.rows] == [gpu.lost for gpu in by_csv.rows]
    assert [line.strip() for line in by_csv.messages] == list(by_xml.messages)
    assert gpu_tools.parse_processes_of_tools(snapshot("processes", xml_part)).tool_results[0].is_complete is False


@needs_shared
@pytest.mark.parametrize("path", files("bundles"), ids=short)
@pytest.mark.parametrize("state", ["idle", "load"])
def test_recorded_machines_by_csv(path: Path, state: str) -> None:
    supported_fields = set(re.findall(r'"([^"]+)"', replay(path, "--help-query-gpu").decode()))
    fields = ",".join(name for name in our_fields() if name in supported_fields)
    rows = replay(path, f"--query-gpu={fields}", "--format=csv,nounits", REPLAY_STATE=state)
    check_golden(f"gpus-{short(path)}-{state}", gpu_tools.parse_gpus_of_tools(snapshot("gpus", rows)))
    asked = "--query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name"
    process_dump = gpu_tools.parse_processes_of_tools(
        snapshot("processes", replay(path, asked, "--format=csv,nounits", REPLAY_STATE=state))
    )
    check_golden(f"processes-{short(path)}" + ("-idle" if state == "idle" else ""), process_dump)


@needs_shared
@pytest.mark.parametrize("path", files("bundles"), ids=short)
def test_recorded_machines_by_xml(path: Path) -> None:
    xml = xml_of(replay(path, "-q", REPLAY_STATE="load").decode()).encode()
    xml_parts = b"# part nvidia-xml rc=0\n" + xml + b"# part nvidia-xml/list rc=0\n" + replay(path, "-L")
    check_golden(f"xml-gpus-{whose(path)}", gpu_tools.parse_gpus_of_tools(snapshot("gpus", xml_parts)))
    check_golden(f"xml-processes-{whose(path)}", gpu_tools.parse_processes_of_tools(snapshot("processes", xml_parts)))


@needs_shared
def test_there_is_no_golden_file_of_a_capture_that_is_gone() -> None:
    names = {whose(path) for folder in ("xml", "bundles") for path in files(folder)}
    kept = {re.sub(r"^xml-(gpus|processes)-", "", path.stem) for path in GOLDEN.glob("xml-*.json")}
    assert kept <= names
