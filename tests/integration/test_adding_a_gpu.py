"""docs/adding-a-gpu.md does what it says: its reader keeps the contract, and its collector's files are understood."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from site_builder.core.model import GpuProcessRow
from site_builder.snapshots import gpu_tools
from site_builder.snapshots.gpu_tools import GPU_TOOLS, GpuTool
from tests.snapshots import test_parsers_contract
from tests.support.docs import ROOT, blocks
from tests.support.missing import missing
from tests.support.samples import snapshot

FORM = "acme-smi"


def block(kind: str, which: int = 0) -> str:
    return [code_block.text for code_block in blocks(kind) if code_block.page == "docs/adding-a-gpu.md"][which]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The reader of the page, among the tools."""
    path = tmp_path / "acme_smi.py"
    path.write_text(block("reader"))
    spec = importlib.util.spec_from_file_location("acme_smi", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "site_builder.snapshots.parsers.acme_smi", module)
    monkeypatch.setitem(GPU_TOOLS, FORM, GpuTool(FORM, "acme", "acme_smi"))
    yield module


@pytest.mark.usefixtures("reader")
def test_the_reader_of_the_page_understands_its_answers() -> None:
    body = f"# part {FORM}/gpus rc=0\n{block('answer', 0)}".encode()
    first, second = gpu_tools.parse_gpus_of_tools(snapshot("gpus", body)).rows
    assert (first.index, first.uuid, first.name, first.vendor) == (0, "ACME-A17", "Acme X1", "acme")
    assert (first.memory_used, first.utilization_gpu, first.power_draw, second.power_draw) == (512, 3, None, 210)
    dump = gpu_tools.parse_processes_of_tools(
        snapshot("processes", f"# part {FORM}/processes rc=0\n{block('answer', 1)}".encode())
    )
    assert dump.rows == (GpuProcessRow("ACME-A18", 4242, 29500, "train"),)
    assert dump.tool_results[0].is_complete


@pytest.mark.usefixtures("reader")
def test_the_added_parser_keeps_the_contract() -> None:
    for task in test_parsers_contract.READERS:
        for text in test_parsers_contract.HOSTILE:
            test_parsers_contract.test_any_answer_is_parsed_without_an_exception(FORM, task, text)
        for shape in (*test_parsers_contract.SHAPES, block("answer", 0), block("answer", 1)):
            test_parsers_contract.test_an_answer_cut_anywhere_does_no_harm(FORM, task, shape)
            test_parsers_contract.test_an_answer_with_changed_characters_does_no_harm(FORM, task, shape)
        test_parsers_contract.test_an_unknown_answer_is_a_problem(FORM, task)
        for flood in test_parsers_contract.FLOODS:
            test_parsers_contract.test_a_flood_costs_little_time(FORM, task, flood, test_parsers_contract.MIB)
    test_parsers_contract.test_without_process_data_processes_are_unknown(FORM)


@pytest.mark.usefixtures("reader")
def test_what_its_collector_writes_is_understood(tmp_path: Path) -> None:
    scripts = tmp_path / "scripts"
    shutil.copytree(ROOT / "scripts", scripts)
    (scripts / "lib/acme.sh").write_text(block("collector"))
    collector = scripts / "lib/collect.sh"
    text = collector.read_text()
    assert "VENDORS='nvidia amd'" in text
    collector.write_text(text.replace("VENDORS='nvidia amd'", ". \"$LIB/acme.sh\"\nVENDORS='nvidia amd acme'"))
    tool = tmp_path / "bin/acme-smi"
    tool.parent.mkdir()
    for name, which in (("--gpus", 0), ("--processes", 1)):
        (tmp_path / name).write_text(block("answer", which))
    tool.write_text(f'#!/bin/sh\nexec cat "{tmp_path}/$1"\n')
    tool.chmod(0o755)
    (tmp_path / "data").mkdir()
    environment = {
        "PATH": f"{tool.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HOST": "gpu1",
        "GPUBOARD_NVIDIA": "no",
        "GPUBOARD_AMD": "no",
        "GPUBOARD_SPOOL": str(tmp_path / "spool"),
        "GPUBOARD_DEST": str(tmp_path / "data"),
    }
    subprocess.run([scripts / "gpu-run.sh", "once"], env=environment, check=True, cwd=tmp_path)
    dump = gpu_tools.parse_gpus_of_tools((tmp_path / "data/gpu1/gpus.csv").read_bytes())
    assert ([gpu.uuid for gpu in dump.rows], dump.problems) == (["ACME-A17", "ACME-A18"], ())
    dump_of = gpu_tools.parse_processes_of_tools((tmp_path / "data/gpu1/processes.csv").read_bytes())
    assert ([row.pid for row in dump_of.rows], dump_of.problems) == ([4242], ())


def test_the_collector_is_written_as_all_of_ours(tmp_path: Path) -> None:
    lint = shutil.which("shellcheck") or missing("shellcheck is not here")
    (tmp_path / "acme.sh").write_text(block("collector"))
    subprocess.run([str(lint), str(tmp_path / "acme.sh")], check=True)
