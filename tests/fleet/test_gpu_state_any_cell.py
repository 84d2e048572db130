"""An error in any one cell of a good answer, whichever parser reads it: the GPU is no longer free."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.model import HostStatus
from site_builder.snapshots import gpu_tools
from site_builder.snapshots.parsers import legacy_files
from tests.support.amd_fixtures import card, listed, metric, part, running, value
from tests.support.error_words import (
    AMD_ERRORS,
    AMD_REFUSALS,
    HARMLESS,
    LOST_WORDS,
    NVIDIA_ERRORS,
    NVIDIA_REFUSALS,
    add_brackets,
)
from tests.support.generated_fleet import NOW, decide, host_data
from tests.support.good_answers import CELLS, HANDED_OUT, LEGACY_ROW, PLAIN_ROWS, GoodAnswer, list_good_answers
from tests.support.hypothesis_profiles import examples
from tests.support.samples import snapshot

ANSWERS = list_good_answers()
WORDS: Mapping[str, tuple[str, ...]] = {
    "csv": (*add_brackets(NVIDIA_ERRORS), "[Some New Word Of The Next Driver]", *LOST_WORDS),
    "xml": (*NVIDIA_ERRORS, *LOST_WORDS),
    **dict.fromkeys(("json", "indented text", "table"), (*AMD_ERRORS, *LOST_WORDS)),
}
# Words that no healthy GPU is to be taken away for, in cells other than memory, use and temperature.
GOOD_WORDS: Mapping[str, tuple[str, ...]] = {
    "csv": (*add_brackets(NVIDIA_REFUSALS), *HARMLESS),
    "xml": (*NVIDIA_REFUSALS, *(word.strip("[]") for word in HARMLESS if word)),
    **dict.fromkeys(("json", "indented text", "table"), (*AMD_REFUSALS, "N/A", "Not supported")),
}


def describe_cell(answer: GoodAnswer, cell: tuple[int, int], word: str) -> str:
    return f"{answer.source}: {answer.text[max(0, cell[0] - 60) : cell[1]]!r} = {word!r}"


def check_error(answer: GoodAnswer, cell: tuple[int, int], word: str) -> None:
    """A GPU with an error in this cell is not free; an error of its fan or power sensor is a warning, as documented."""
    if answer.text.startswith("<addressing_mode>", cell[0] - len("<addressing_mode>")) and word == "Unknown Error":
        return  # GPUs that are well have it
    for status in answer.decide_with(cell, word).gpus:
        if status.state in HANDED_OUT:
            kinds = {problem.kind for problem in status.problems}
            assert kinds & {"fan", "power"} and word not in LOST_WORDS, describe_cell(answer, cell, word)


@examples(400)
@given(st.data())
def test_an_error_in_any_cell_is_never_a_free_gpu(data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from(ANSWERS))
    cell = data.draw(st.sampled_from([*answer.cells]))
    check_error(answer, cell, data.draw(st.sampled_from(WORDS[answer.form])))


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer.source}, {answer.form}")
def test_each_cell_of_each_answer_may_be_an_error(answer: GoodAnswer) -> None:
    words = WORDS[answer.form]
    for number, cell in enumerate(answer.cells):
        check_error(answer, cell, words[number % len(words)])


@examples(400)
@given(st.data())
def test_words_that_healthy_drivers_print_take_no_gpu_away(data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from(ANSWERS))
    cell = data.draw(st.sampled_from([*answer.cells]))
    word = data.draw(st.sampled_from(GOOD_WORDS[answer.form]))
    statuses = answer.decide_with(cell, word).gpus
    assert all(not (status.gpu.other_error or status.gpu.lost) for status in statuses), describe_cell(
        answer, cell, word
    )


# A GPU with one process and hardly any memory: what is known of it stands in the answer about processes alone.

APPS = "gpu_uuid, pid, used_gpu_memory [MiB], process_name\nGPU-1, 42, 4, python\n"
PROCESS_XML = """\
# part nvidia-xml rc=0
<nvidia_smi_log>
<gpu id="00000000:01:00.0">
<product_name>NVIDIA A100</product_name>
<uuid>GPU-1</uuid>
<fb_memory_usage><total>81920 MiB</total><used>4 MiB</used></fb_memory_usage>
<utilization><gpu_util>0 %</gpu_util></utilization>
<processes>
<process_info>
<gpu_instance_id>N/A</gpu_instance_id>
<compute_instance_id>N/A</compute_instance_id>
<pid>42</pid>
<type>C</type>
<process_name>python</process_name>
<used_memory>4 MiB</used_memory>
</process_info>
</processes>
</gpu>
</nvidia_smi_log>
"""
AMD_GPU = part("amd-smi/names", [listed()]) + part(
    "amd-smi/metric",
    [
        metric(
            usage={"gfx_activity": value(0, "%")},
            mem_usage={"total_vram": value(1000, "MB"), "used_vram": value(4, "MB")},
        )
    ],
)
ROCM_GPU = part("rocm-smi/names", {"card0": {**card(), "VRAM Total Used Memory (B)": "1048576", "GPU use (%)": "0"}})
AMD_TEXT = "GPU: 0\n    PROCESS_INFO:\n        NAME: python\n        PID: 42\n        MEM_USAGE: 4.0 MB\n"
ROCM_PIDS = "PID PROCESS NAME GPU(s) VRAM USED SDMA USED CU OCCUPANCY\n42 python 1 1048576 0 0\n"
ROCM_PIDS += "PID 42 is using 1 DRM device(s):\n0\n"
NAMES = part("amd-smi/names", [listed()])
PROCESS_ANSWERS: Mapping[str, tuple[bytes, str, str]] = {
    "nvidia-smi csv": (PLAIN_ROWS.encode(), APPS, "csv"),
    "nvidia-smi xml": (PROCESS_XML.encode(), PROCESS_XML, "xml"),
    "legacy files": (LEGACY_ROW.encode(), "2026/11/16 12:00:00.000, GPU-1, 4, python, 42\n", "csv"),
    "amd-smi json": (
        AMD_GPU,
        (NAMES + part("amd-smi/processes", [running(0, ("python", 42, 4 * 2**20))])).decode(),
        "json",
    ),
    "amd-smi json, none": (AMD_GPU, (NAMES + part("amd-smi/processes", [running(0)])).decode(), "json"),
    "amd-smi text": (AMD_GPU, (NAMES + part("amd-smi/processes", AMD_TEXT)).decode(), "indented text"),
    "rocm-smi text": (ROCM_GPU, (ROCM_GPU + part("rocm-smi/processes", ROCM_PIDS)).decode(), "words"),
}
WORD_CELLS = re.compile(r"(?<=[ \n])[^\s:]+(?=[ \n])")


def decide_processes(form: str, gpus: bytes, processes: bytes) -> HostStatus:
    if form == "legacy files":
        parsed_gpus, newest = legacy_files.parse_legacy_gpus(gpus)
        parsed_processes = legacy_files.parse_legacy_processes(processes, newest)
        return decide(host_data(parsed_gpus, parsed_processes, is_legacy=True, taken_at={"gpus.csv": NOW}))
    parsed_gpus = gpu_tools.parse_gpus_of_tools(snapshot("gpus", gpus))
    return decide(host_data(parsed_gpus, gpu_tools.parse_processes_of_tools(snapshot("processes", processes))))


@pytest.mark.slow
@pytest.mark.parametrize("form", PROCESS_ANSWERS)
def test_an_error_in_any_cell_about_a_process_is_never_a_free_gpu(form: str) -> None:
    gpus, text, cell_form = PROCESS_ANSWERS[form]
    expected = {"free"} if form.endswith("none") else {"busy"}
    assert {status.state for status in decide_processes(form, gpus, text.encode()).gpus} == expected
    begin = text.index("/processes ") if "/processes " in text else text.index("<processes>") if "xml" in form else 0
    begin = text.index("\n") if form == "nvidia-smi csv" else begin
    for match in (WORD_CELLS if cell_form == "words" else CELLS[cell_form]).finditer(text, begin):
        for word in WORDS.get(cell_form, WORDS["table"]):
            printed = orjson.dumps(word).decode() if cell_form == "json" else word
            answer = f"{text[: match.start()]}{printed}{text[match.end() :]}"
            states = {status.state for status in decide_processes(form, gpus, answer.encode()).gpus}
            assert not states & HANDED_OUT, f"{match[0]} = {word!r}"
