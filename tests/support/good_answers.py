"""Answers of tools in which one GPU is free, from the samples, and where their cells stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.core.model import HostStatus
from site_builder.snapshots import gpu_tools
from site_builder.snapshots.parsers import legacy_files
from tests.support.amd_fixtures import card, listed, part, running
from tests.support.generated_fleet import NOW, decide, host_data
from tests.support.samples import QUERIES, build_part, build_parts, list_samples, name_sample, snapshot

HANDED_OUT = frozenset({"free", "booked"})
# The files of the original scripts, and what `gpuboard pull` asks for where it can write no file on the host.
LEGACY, PLAIN = "legacy files", "plain nvidia-smi"
LEGACY_ROW = "0, GPU-1, NVIDIA A100, 4, 81920, 0, 0, 41, 2026/11/16 12:00:00.000\n"
PLAIN_ROWS = """\
index, uuid, name, driver_version, memory.total [MiB], memory.used [MiB], utilization.gpu [%], utilization.memory [%], \
temperature.gpu, power.draw [W], power.limit [W]
0, GPU-1, NVIDIA A100, 550.54, 81920, 4, 0, 0, 41, 60.00, 400.00
"""
# An answer without a process, for GPUs whose answer lists none itself.
NO_PROCESS = {
    "nvidia": b"gpu_uuid, pid, used_gpu_memory [MiB], process_name\n",
    "amd/amd-smi": part("amd-smi/names", [listed()]) + part("amd-smi/processes", [running(0)]),
    "amd/rocm-smi": part("rocm-smi/names", {"card0": card()})
    + part("rocm-smi/processes", "No KFD PIDs currently running"),
}
# Where the cells stand, by the form of an answer.
CELLS = {
    "csv": re.compile(r"(?<=, )[^,\n]+|^[^,\n]+(?=,)", re.MULTILINE),
    "xml": re.compile(r"(?<=>)[^<>\n]+(?=</)"),
    "json": re.compile(r'(?<=[\s\[{])(?:"(?:[^"\\]|\\.)*"|-?\d[\d.]*)(?=\s*[,}\]])'),
    "indented text": re.compile(r"(?<=: )(?:(?!: ).)+$", re.MULTILINE),
    "table": re.compile(r"\S+(?: \S+)*(?=\s\s|$)", re.MULTILINE),
}


class GoodAnswer(NamedTuple):
    source: str
    form: str
    text: str
    first_cell: int  # where the cells of the GPU begin

    @property
    def cells(self) -> Iterator[tuple[int, int]]:
        """Yield where each cell begins and ends."""
        return (match.span() for match in CELLS[self.form].finditer(self.text, self.first_cell))

    def decide_with(self, cell: tuple[int, int] | None = None, word: str = "") -> HostStatus:
        """Return what the board says of the host, where this word stands in that cell."""
        text = self.text
        if cell:
            start, end = cell
            text = f"{text[:start]}{orjson.dumps(word).decode() if self.form == 'json' else word}{text[end:]}"
        return decide_answer(self.source, text.encode())


def decide_answer(source: str, body: bytes) -> HostStatus:
    if source == LEGACY:
        parsed_gpus, newest = legacy_files.parse_legacy_gpus(body)
        processes = legacy_files.parse_legacy_processes(b"", newest)
        return decide(host_data(parsed_gpus, processes, is_legacy=True, taken_at={"gpus.csv": NOW}))
    # XML lists the processes of a GPU in the same answer
    no_process = next((none for start, none in NO_PROCESS.items() if source.startswith(start)), NO_PROCESS["nvidia"])
    processes_body = body if source.startswith("nvidia/xml") else no_process
    parsed_processes = gpu_tools.parse_processes_of_tools(snapshot("processes", processes_body))
    return decide(host_data(gpu_tools.parse_gpus_of_tools(snapshot("gpus", body)), parsed_processes))


def split_csv(source: str, text: str) -> Iterator[GoodAnswer]:
    header, *rows = text.splitlines()
    return (GoodAnswer(source, "csv", f"{header}\n{row}\n", len(header) + 1) for row in rows)


def split_xml(source: str, text: str) -> Iterator[GoodAnswer]:
    text = re.sub(r"(?<=<attached_gpus>)\d+", "1", text)
    text = re.sub(r"<processes>.*?</processes>", "<processes>\n</processes>", text, flags=re.DOTALL)
    text = re.sub(r"<mig_device>.*</mig_device>\s*(?=<mig_device>)", "", text, flags=re.DOTALL)  # all but the last
    head, *devices = re.split(r"(?=<gpu )", text)
    rest = devices[-1].partition("</gpu>")[2]
    for device in devices:
        yield GoodAnswer(source, "xml", f"{head}{device.partition('</gpu>')[0]}</gpu>{rest}", len(head))


def take_first_amd_gpu(path: Path) -> tuple[str, str]:
    """Return the form of an answer, and the answer without its other GPUs."""
    text = path.read_text()
    if path.suffix != ".json":
        if "GPU%" in text:
            return "table", re.split(r"(?m)^[1-9] ", text)[0]
        text = re.sub(r"(?m)^CPU: .*\n(?: .*\n)*", "", text)
        return "indented text", "\n".join(re.findall(r"(?m)^(?:GPU\[0\]|GPU: 0| ).*", text.partition("\nGPU: 1")[0]))
    answer = orjson.loads(text)
    entries = answer["gpu_data"] if isinstance(answer, dict) and "gpu_data" in answer else answer
    first = {"card0": entries.get("card0", {})} if isinstance(entries, dict) else entries[:1]
    return "json", orjson.dumps(first, option=orjson.OPT_INDENT_2).decode()


def take_amd_answer(path: Path) -> Iterator[GoodAnswer]:
    files = [path]
    if path.is_dir():
        files = [file for query in QUERIES["gpus"] for file in path.glob(f"{query}.*")]
    answers = {file: take_first_amd_gpu(file) for file in files}
    parts = [
        build_part(f"{path.parent.name}/{file.stem}" if path.is_dir() else path.parent.name, text.encode()).decode()
        for file, (_, text) in answers.items()
    ]
    forms = {form for form, _ in answers.values()}
    if len(forms) == 1:
        text = "".join(parts)
        form = forms.pop()
        # a table begins with the names of its columns
        yield GoodAnswer(name_sample(path), form, text, text.index("\n0 ") + 1 if form == "table" else 0)


@lru_cache
def list_good_answers() -> tuple[GoodAnswer, ...]:
    """Return those in which the GPU is free, each with one GPU, or its instances."""
    answers = [*split_csv(PLAIN, PLAIN_ROWS), GoodAnswer(LEGACY, "csv", LEGACY_ROW, 0)]
    for path in list_samples("nvidia/gpus", "nvidia/xml"):
        if path.name[0].isdigit():
            split = split_xml if path.suffix == ".xml" else split_csv
            body = build_parts(path, "gpus").decode() if path.suffix == ".xml" else path.read_text()
            answers += split(name_sample(path), body)
    for path in list_samples("amd/amd-smi", "amd/rocm-smi"):
        if not path.name.startswith(("hostile", "rc", "error", "warnings")):
            answers += take_amd_answer(path)
    return tuple(answer for answer in answers if HANDED_OUT & {status.state for status in answer.decide_with().gpus})
