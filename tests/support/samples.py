"""The samples of what tools print, in tests/samples, as parts of a snapshot; tests/samples/README.md describes them."""

from __future__ import annotations

import re
from pathlib import Path

from site_builder.core.model import Gpu, GpuProcessRow, ParsedFile
from site_builder.snapshots import gpu_tools

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests/samples"
# The part of a snapshot that the answers in each folder become.
FORMATS = {
    **{"nvidia/gpus": "nvidia-csv", "nvidia/processes": "nvidia-csv", "nvidia/xml": "nvidia-xml"},
    **{"nvidia/errors": "nvidia-csv", "amd/rocm-smi": "rocm-smi", "amd/amd-smi": "amd-smi"},
}
EXIT_CODE = re.compile(r"rc(\d{1,3})-")
# Where a sample is a folder, its files are the answers to several queries. Each task has some of these.
QUERIES = {"gpus": ("names", "static", "metric"), "processes": ("names", "static", "processes")}


def list_queried_fields() -> list[str]:
    """Return the fields that the scripts query, under the newest name of each."""
    match = re.search(r"GPU_FIELDS='(.*?)'", (ROOT / "scripts/lib/nvidia.sh").read_text(), re.DOTALL)
    assert match
    return [name.split("|")[0] for name in match[1].split()]


def snapshot(task: str, body: bytes, rc: int = 0) -> bytes:
    """Return a file of a snapshot, as the host scripts write it."""
    first = f"# gpuboard 1 task={task} host=gpu1 time=1700000000 every=20 took_ms=70 rc={rc}\n".encode()
    return first + body + (b"" if body.endswith(b"\n") or not body else b"\n") + b"# end\n"


def format_topology(name: str) -> str:
    """Return a matrix of `nvidia-smi topo -m` as the host scripts write it into host.txt."""
    text = (SAMPLES / f"nvidia/topology/{name}.txt").read_text(errors="replace")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
    return "".join(f"topology={line}\n" for line in lines if re.match(r"[\t ]*GPU[0-9]", line))


def list_samples(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (SAMPLES / folder).iterdir())


def name_sample(path: Path) -> str:
    """Return the place of a sample without its extension, which is also that of its golden file."""
    return str(path.relative_to(SAMPLES).with_suffix("") if path.is_file() else path.relative_to(SAMPLES))


def build_part(name: str, body: bytes, rc: str = "0") -> bytes:
    """Return an answer as the host scripts write it into a part: no line of it may look like one of theirs."""
    text = re.sub(rb"^# ", b" # ", body, flags=re.MULTILINE)
    return f"# part {name} rc={rc}\n".encode() + text + (b"" if text.endswith(b"\n") or not text else b"\n")


def build_parts(path: Path, task: str, file_format: str | None = None) -> bytes:
    """Return a sample as parts of a snapshot; its exit code is in its name."""
    match = EXIT_CODE.match(path.name)
    tool = file_format or FORMATS[str(path.parent.relative_to(SAMPLES))]
    if path.is_dir():
        answers = {answer.stem: answer.read_bytes() for answer in path.iterdir()}
        queries = (query for query in QUERIES[task] if query in answers)
        return b"".join(build_part(f"{tool}/{query}", answers[query]) for query in queries)
    parts = build_part(tool, path.read_bytes(), match[1] if match else "0")
    device_list = SAMPLES / "nvidia/list" / f"{path.stem}.txt"
    if tool == "nvidia-xml" and device_list.is_file():
        parts += build_part("nvidia-xml/list", device_list.read_bytes())
    return parts


def read_gpus(path: Path, file_format: str | None = None) -> ParsedFile[Gpu]:
    return gpu_tools.parse_gpus_of_tools(snapshot("gpus", build_parts(path, "gpus", file_format)))


def read_processes(path: Path, file_format: str | None = None) -> ParsedFile[GpuProcessRow]:
    return gpu_tools.parse_processes_of_tools(snapshot("processes", build_parts(path, "processes", file_format)))
