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


def list_queried_fields() -> list[str]:
    """Return the fields that the scripts query, under the newest name of each."""
    match = re.search(r"GPU_FIELDS='(.*?)'", (ROOT / "scripts/lib/nvidia.sh").read_text(), re.DOTALL)
    assert match
    return [name.split("|")[0] for name in match[1].split()]


def snapshot(task: str, body: bytes, rc: int = 0) -> bytes:
    """Return a file of a snapshot, as the host scripts write it."""
    first = f"# gpuboard 1 task={task} host=gpu1 time=1700000000 every=20 took_ms=70 rc={rc}\n".encode()
    return first + body + (b"" if body.endswith(b"\n") or not body else b"\n") + b"# end\n"


def list_samples(folder: str) -> list[Path]:
    return sorted(path for path in (SAMPLES / folder).iterdir() if path.suffix != ".md")


def find_sample(place: str) -> Path:
    """Return the one sample that this pattern matches."""
    (path,) = SAMPLES.glob(place)
    return path


def name_sample(path: Path) -> str:
    """Return the place of a sample without its extension, which is also that of its golden file."""
    return str(path.relative_to(SAMPLES).with_suffix(""))


def build_part(path: Path, file_format: str | None = None) -> bytes:
    """Return a sample as the part of a snapshot; its exit code is in its name."""
    match = EXIT_CODE.match(path.name)
    file_format = file_format or FORMATS[str(path.parent.relative_to(SAMPLES))]
    body = path.read_bytes()
    part = f"# part {file_format} rc={match[1] if match else 0}\n".encode() + body
    part += b"" if body.endswith(b"\n") else b"\n"
    device_list = SAMPLES / "nvidia/list" / f"{path.stem}.txt"
    if file_format == "nvidia-xml" and device_list.is_file():
        part += b"# part nvidia-xml/list rc=0\n" + device_list.read_bytes()
    return part


def read_gpus(path: Path, file_format: str | None = None) -> ParsedFile[Gpu]:
    return gpu_tools.parse_gpus_of_tools(snapshot("gpus", build_part(path, file_format)))


def read_processes(path: Path, file_format: str | None = None) -> ParsedFile[GpuProcessRow]:
    return gpu_tools.parse_processes_of_tools(snapshot("processes", build_part(path, file_format)))
