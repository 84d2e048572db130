"""What every reader of a tool promises, whoever made the GPUs: it is asked of each that stands in TOOLS."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.core.model import Gpu, GpuProcessRow, ParsedFile
from site_builder.core.terminal_text import MAX_MESSAGES, MAX_PROBLEM_CHARACTERS
from site_builder.snapshots import gpu_tools
from site_builder.snapshots.envelope import SnapshotPart
from site_builder.snapshots.gpu_tools import GPU_TOOLS, MAX_GPUS, MAX_PROCESSES
from tests.support.amd_fixtures import card, listed, metric, running, static
from tests.support.samples import snapshot

Read = Callable[[bytes], "ParsedFile[Gpu] | ParsedFile[GpuProcessRow]"]
READERS: dict[str, Read] = {"gpus": gpu_tools.parse_gpus_of_tools, "processes": gpu_tools.parse_processes_of_tools}
CSV = "index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]\n"
APPS = "gpu_uuid, pid, used_gpu_memory [MiB], process_name\n"
# Answers of every form that there is, for each reader to stumble over: a new form adds one.
SHAPES = (
    CSV + "0, GPU-1, T4, 1024, 16384, 37\n",
    APPS + "GPU-1, 42, 512, python\n",
    json.dumps({"card0": card(0), "card1": card(1), "system": {"PID7": "python, 1, 1048576, 0, 0"}}, indent=4),
    json.dumps([listed(0), listed(1)], indent=4),
    json.dumps({"gpu_data": [static(0), metric(0)]}, indent=4),
    json.dumps([running(0, ("python", 71, 2**30)), running(1)], indent=4),
    "GPU[0]\t\t: GPU use (%): 7\nPID 71 is using 1 DRM device(s):\n0\n",
    "GPU: 0\n    PROCESS_INFO:\n        NAME: x\n        PID: 7\n        MEM_USAGE: 1 GB\n",
    "<nvidia_smi_log><gpu><uuid>GPU-1</uuid></gpu></nvidia_smi_log>\n",
)
HOSTILE = (
    "",
    "\n\n\n",
    "\x00\x1b[31m\u202e\ud800",
    "N/A",
    "[N/A], [N/A], [N/A]",
    "null",
    "[]",
    "{}",
    "[[[[[[]]]]]]",
    '{"card0": null}',
    '{"card0": {"Device Name": "\\u001b[31m\\u202e\\u0000", "Unique ID": "\\n", "PCI Bus": "\\t\\u0007"}}',
    '[{"gpu": 0, "asic": {"market_name": "\\u001b]0;x\\u0007"}, "bdf": "\\r\\n", "\\u001b": 1, "\\u001b": 2}]',
    '[{"gpu": 0, "process_list": [{"process_info": {"pid": 7, "name": "\\u001b[2J\\u2066"}}]}]',
    '{"card0": "x", "card1": [], "card99999": {}, "system": []}',
    '[{"gpu": "x"}, {"gpu": -1}, {"gpu": 1e999}, {"gpu": 0, "usage": [1, 2]}, 7, null]',
    '{"gpu_data": {"gpu_data": {"gpu": 0}}}',
    "GPU[0]: \nGPU[99999]: a: b\nGPU[-1]: a: b",
    "GPU:\n    A:\n  B: 1\n        C:\n",
    "<!DOCTYPE x [<!ENTITY a 'b'>]><nvidia_smi_log>&a;</nvidia_smi_log>",
    "<gpu>" * 1000,
)
TASKS = pytest.mark.parametrize("task", sorted(READERS))
FORMS = pytest.mark.parametrize("form", sorted(GPU_TOOLS))


def read(
    form: str, task: str, text: str | bytes, rc: int = 0, question: str = ""
) -> ParsedFile[Gpu] | ParsedFile[GpuProcessRow]:
    """What is understood of an answer; and that it is as every answer must be."""
    body = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    name = f"{form}/{question}" if question else form
    dump = READERS[task](snapshot(task, f"# part {name} rc={rc}\n".encode() + body + b"\n"))
    assert len(dump.rows) <= (MAX_GPUS if task == "gpus" else MAX_PROCESSES)
    assert len(dump.problems) <= MAX_MESSAGES + 1
    assert all(len(what) <= MAX_PROBLEM_CHARACTERS + 1 for what in dump.problems)
    assert len(dump.messages) <= 2 * MAX_MESSAGES
    for row in dump.rows:
        assert_sane(row)
    return dump


def assert_sane(row: Gpu | GpuProcessRow) -> None:
    """No number below 0, no text without end, nothing that steers a terminal."""
    if isinstance(row, Gpu):
        readings = [row.memory_used, row.memory_total, row.utilization_gpu, row.utilization_memory]
        readings += [row.temperature, row.power_draw, row.power_limit, row.clock]
        assert len(row.columns) == len(row.cells)
        texts = [row.name, row.uuid, row.lost, row.place, *row.cells]
        assert row.index is None or row.index >= 0
        assert row.vendor in {tool.vendor for tool in GPU_TOOLS.values()}
    else:
        readings = [row.used_memory]
        texts = [row.name, row.gpu_key]
        assert row.pid is None or row.pid >= 0
    assert all(value is None or 0 <= value < 1e15 for value in readings)
    assert not any(ord(letter) < 32 for text in texts if text for letter in text)
    assert len(row.name or "") <= 1000


@FORMS
@TASKS
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_any_answer_is_parsed_without_an_exception(form: str, task: str, text: str) -> None:
    for row in read(form, task, text).rows:
        readings = (row.used_memory,) if isinstance(row, GpuProcessRow) else (row.memory_used, row.utilization_gpu)
        assert readings in {(None,), (None, None)}, "what is not told is not available, and never 0"


@FORMS
@TASKS
def test_an_unknown_answer_is_a_problem(form: str, task: str) -> None:
    """In its own words, or as a problem: nothing gets lost."""
    dump = read(form, task, "the driver fell over", rc=9)
    assert (dump.rows, dump.tool_results[0].rc) == ((), 9)
    assert "the driver fell over" in " ".join((*dump.messages, *dump.problems))


@FORMS
def test_without_process_data_processes_are_unknown(form: str) -> None:
    """No answer, and half a one, must not look like a GPU on which nobody is."""
    for text in ("", "the driver fell over", "[", "{", '{"gpu_data": [', "<nvidia_smi_log>"):
        dump = read(form, "processes", text)
        assert not dump.tool_results[0].is_complete, text


@FORMS
@TASKS
@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_an_answer_cut_anywhere_does_no_harm(form: str, task: str, shape: str) -> None:
    for place in range(0, len(shape), max(1, len(shape) // 60)):
        read(form, task, shape[:place])


@FORMS
@TASKS
@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_an_answer_with_changed_characters_does_no_harm(form: str, task: str, shape: str) -> None:
    chance = random.Random(11)  # noqa: S311 # the same letters each time
    for _ in range(60):
        letters = list(shape)
        for _ in range(chance.randint(1, 6)):
            letters[chance.randrange(len(letters))] = chance.choice('{}[]",:#<>/-%0919eEN\n\t \u202eé')
        read(form, task, "".join(letters))


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(
                st.text(max_size=8),
                st.sampled_from(
                    (
                        *("gpu", "card0", "system", "process_list", "process_info", "pid", "PID7", "value", "unit"),
                        *("usage", "gfx_activity", "mem_usage", "used_vram", "node_id", "hip_id", "gpu_data"),
                        "Unique ID",
                    )
                ),
            ),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=20,
)


@FORMS
@TASKS
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300), ANYTHING), st.sampled_from(["", "names"]))
def test_no_answer_raises_an_exception(form: str, task: str, tool_answer: object, question: str) -> None:
    text = tool_answer if isinstance(tool_answer, (bytes, str)) else json.dumps(tool_answer)
    read(form, task, text, question=question)


FLOODS: dict[str, Callable[[int], str]] = {
    "one line": lambda size: "x" * size,
    "lines": lambda size: "x\n" * (size // 2),
    "rows": lambda size: "0, GPU-1, T4, 1, 2, 3\n" * (size // 22),
    "open brackets": lambda size: "[" * size,
    "open braces": lambda size: '{"a":' * (size // 5),
    "braces on lines": lambda size: "{\n" * (size // 2),
    "digits": lambda size: "[" + "9" * size + "]",
    "cards": lambda size: "{" + ",".join(f'"card{n}":{{"GPU use (%)":"1"}}' for n in range(size // 40)) + "}",
    "gpus": lambda size: "[" + ",".join(f'{{"gpu":{n},"usage":{{"gfx_activity":1}}}}' for n in range(size // 45)) + "]",
    "processes": lambda size: (
        '[{"gpu":0,"process_list":['
        + ",".join(f'{{"process_info":{{"pid":{n},"name":"x"}}}}' for n in range(size // 50))
        + "]}]"
    ),
    "facts": lambda size: '[{"gpu":0,' + ",".join(f'"k{n}":{{"value":{n}}}' for n in range(size // 30)) + "}]",
    "text": lambda size: "GPU[0]\t\t: k: v\n" * (size // 15),
    "pids": lambda size: "PID 1 is using 1 DRM device(s):\n" + "0 " * (size // 2),
    "spaces": lambda size: "GPU: 0\n" + " " * size + "A: 1",
    "tags": lambda size: "<gpu>" * (size // 5),
}
MIB = 2**20
KIB = 2**10


@FORMS
@TASKS
@pytest.mark.parametrize("flood", sorted(FLOODS))
@pytest.mark.parametrize("size", [64 * KIB, pytest.param(MIB, marks=pytest.mark.slow)])
def test_a_flood_costs_little_time(form: str, task: str, flood: str, size: int) -> None:
    pieces = {"": SnapshotPart(0, tuple(line for line in FLOODS[flood](size).split("\n") if line))}
    tool = GPU_TOOLS[form]
    began = time.process_time()
    tool.parse(task, pieces)
    assert time.process_time() - began < 1 + size / MIB


@pytest.mark.slow
@FORMS
@pytest.mark.parametrize("flood", ["gpus", "facts", "cards", "braces on lines"])
def test_a_flood_costs_little_memory(form: str, flood: str) -> None:
    size = MIB // 8
    pieces = {"": SnapshotPart(0, tuple(FLOODS[flood](size).split("\n")))}
    tracemalloc.start()
    try:
        GPU_TOOLS[form].parse("gpus", pieces)
        assert tracemalloc.get_traced_memory()[1] < 64 * size
    finally:
        tracemalloc.stop()
