"""Names and models of GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from site_builder.core import people
from site_builder.core.data_folder import CachedDataFile
from site_builder.core.model import Gpu, HostSnapshot, ParsedFile, Problem
from site_builder.core.terminal_text import decode_text

MIB_PER_GIB = 1024
# Ranks behind every load that is known; JSON has no infinity.
UNKNOWN_LOAD = 1e300
# The vendor whose GPUs are meant where a host has those of two, and nobody says which.
DEFAULT_VENDOR = "nvidia"
# The years in which cards came out; the newest that fits a name counts.
MODEL_YEARS = (
    (2025, r"G?B300|MI35\d|RTX PRO|RTX 50[5-9]0|GB10\b|RX 90[5-7]0|AI PRO R9\d00"),
    (2024, r"G?B[12]00|MI325"),
    (2023, r"G?H200|H20\b|L40S|MI300|L2\b|RX 7[6-8]00|PRO W7\d00"),
    (2022, r"H[18]00|L40\b|L4\b|L20\b|RTX 40[5-9]0|\bAda\b|RX 7900|RX 6[4-9]50"),
    (2021, r"MI2[015]0|RX 6[67]00|PRO W6\d00|A16\b|A2\b|RTX A[24]00\b|RTX A1000"),
    (2020, r"A[18]00\b|A[134]0G?\b|RTX 30[5-9]0|(RTX )?A[2456][05]00|MI100|RX 6[89]00"),
    (2019, r"Radeon VII|RX 5[3-7]00|PRO W5\d00"),
    (2018, r"T4G?\b|RTX 20[6-8]0|RTX [34568]000|TITAN RTX|GTX 16[356]0|T[46]00\b|T1000|MI[56]0\b"),
    (2017, r"V100S?|TITAN V|GV100|MI25\b|MI[68]\b|RX Vega|RX 5[4-8]0|Vega"),
    (2016, r"RX 4[6-8]0|P100|P40\b|P4\b|GTX 10[5-8]0|TITAN Xp|TITAN X \(Pascal|Quadro G?P\d+"),
    (2015, r"M[46]0\b|M10\b|GTX 9[5-8]0|TITAN X\b|Quadro M\d+"),
    (2013, r"K[1248]0\w*|GTX 7[5-8]0|Quadro K\d+"),
)
MODEL_YEAR_PATTERNS = tuple((year, re.compile(rf"(?<![A-Za-z0-9])(?:{names})")) for year, names in MODEL_YEARS)
VENDOR_PREFIX = re.compile(r"^(?:(?:NVIDIA|Tesla|GeForce|Quadro|AMD|Graphics Device)\s+)+", re.IGNORECASE)
FORM_FACTOR = re.compile(r"[- ](?:SXM\d*|PCI[Ee]|HBM\d\w*|NVL|OAM)\b", re.IGNORECASE)
MEMORY_SIZE = re.compile(r"[- ](\d+) ?GB\b", re.IGNORECASE)
# Of AMD: `Arcturus GL-XL [Instinct MI100]` is an `MI100`, `Navi 22 [Radeon RX 6700 XT]` an `RX 6700 XT`.
INSTINCT_MODEL = re.compile(r"\bMI\d{1,3}[A-Z]?\b")
CHIP_NAME = re.compile(r"^[^\[\]]*\[((?:AMD )?Radeon [^\[\]]+)\]$")
RADEON_PREFIX = re.compile(r"^(?:AMD )?Radeon (?=RX |PRO |AI )", re.IGNORECASE)
# The memory sizes of cards, in GB.
MEMORY_SIZES_GB = (
    *(1, 2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96),
    *(128, 141, 144, 180, 192, 256, 288),
)
MAX_MODEL_CHARACTERS = 80
MAX_NAMED_GPUS = 20


@lru_cache(maxsize=1024)
def find_model_year(name: str | None) -> int:
    """Return the year in which a model came out; 0 where it is not known."""
    return next((year for year, names in MODEL_YEAR_PATTERNS if name and names.search(name)), 0)


def rank_gpu_model(model_name: str | None, free: float | None, load: float | None) -> tuple[int, int, float]:
    """Rank by free memory in whole GiB, then by the model's year, then by the load of the host; the best is lowest."""
    return -round((free or 0) / MIB_PER_GIB), -find_model_year(model_name), UNKNOWN_LOAD if load is None else load


def is_matching_model(wanted: str, *names: str | None) -> bool:
    """Return True if one of the names contains `wanted`; an A100 is no A1000, and an L4 no L40."""
    pattern = rf"(?<![a-z0-9]){re.escape(wanted.lower())}(?!\d)" if wanted else ""
    return any(re.search(pattern, name.lower()) for name in names if name) or not wanted


def is_matching_model_profile(wanted: str, profile: str | None) -> bool:
    """Return True if `wanted` names the profile of an instance: `1g.10gb`, `H100 1g.10gb`."""
    return profile is not None and profile.lower() in wanted.lower().split()


def parse_gpu_model_names(data: bytes) -> dict[str, str]:
    """Return the short name of each long one in gpu-names.csv."""
    names: dict[str, str] = {}
    for line in decode_text(data).split("\n"):
        long_name, comma, short_name = line.partition("#")[0].partition(",")
        if comma and long_name.strip() and short_name.strip():
            names[long_name.strip()] = short_name.strip()
    return names


@lru_cache(maxsize=4096)
def split_gpu_model_name(name: str) -> tuple[str, str | None]:
    """Return the name without vendor and form factor, and the size of the memory where the name has it."""
    text = RADEON_PREFIX.sub("", CHIP_NAME.sub(r"\1", VENDOR_PREFIX.sub("", name.strip())))
    size = MEMORY_SIZE.search(text)
    text = FORM_FACTOR.sub("", MEMORY_SIZE.sub("", text, count=1)).strip(" -")
    if instinct := INSTINCT_MODEL.search(text):
        text = instinct[0]
    return text or name, size[1] if size else None


def shorten_gpu_model_instance(name: str | None, short_names: dict[str, str], profile: str | None) -> str:
    """Return the name of an instance, `H100 1g.10gb`, which contains its own memory size."""
    gpu = "GPU" if name is None else short_names.get(name) or split_gpu_model_name(name)[0]
    return f"{gpu} {profile or 'MIG'}"


def shorten_gpu_name(name: str, short_names: dict[str, str], memory: float | None = None) -> str:
    """Return what people call a GPU, with its memory size: as the name has it, or else by `memory` in MiB."""
    if name in short_names:
        return short_names[name]
    text, size = split_gpu_model_name(name)
    if size and memory and int(size) > 2 * memory / 1024:  # a GH200 has the memory of its CPU in its name
        size = None
    if size is None and memory:
        # the driver keeps some for itself, so that a card of 16 GB reports 15 GiB
        size = str(next((gb for gb in MEMORY_SIZES_GB if gb >= memory / 1024 - 0.3), round(memory / 1024)))
    return f"{text} {size} GB" if size else text


class NameFiles:
    """aliases.csv and gpu-names.csv: the names to show of people and of GPUs, read at each build if they changed."""

    def __init__(self, data: Path, state: Path | None) -> None:
        def parse_with(parse: Callable[[bytes], dict[str, str]]) -> Callable[[bytes], ParsedFile[tuple[str, str]]]:
            return lambda content: ParsedFile(tuple(parse(content).items()))

        self.alias_file = CachedDataFile(data, state, "aliases.csv", parse_with(people.parse_aliases))
        self.gpu_name_file = CachedDataFile(data, state, "gpu-names.csv", parse_with(parse_gpu_model_names))

    def read_names(self) -> tuple[dict[str, str], dict[str, str], list[Problem]]:
        """Return the names of people, those of GPUs, and the problems."""
        aliases, alias_problems = self.alias_file.read()
        gpu_names, gpu_name_problems = self.gpu_name_file.read()
        return dict(aliases), dict(gpu_names), alias_problems + gpu_name_problems


def build_model_names(snapshot: HostSnapshot, gpu_names: dict[str, str]) -> dict[str | None, str]:
    """Return what people call each GPU, by its full name; a lost one has the memory of others of its name."""
    memory_by_name: dict[str, float | None] = {}
    for row in snapshot.gpus.rows if snapshot.gpus else ():
        gpu = row.parent or row
        if gpu.name:
            memory_by_name[gpu.name] = memory_by_name.get(gpu.name) or gpu.memory_total
    models: dict[str | None, str] = {None: "GPU"}
    for name, memory in memory_by_name.items():
        models[name] = shorten_gpu_name(name, gpu_names, memory)[:MAX_MODEL_CHARACTERS]
    return models


def format_gpu_model(gpu: Gpu, models: dict[str | None, str], gpu_names: dict[str, str]) -> str:
    """Return what people call a GPU; an instance has its profile in its name."""
    if gpu.parent is None:
        return models[gpu.name]
    return shorten_gpu_model_instance(gpu.name, gpu_names, gpu.profile)[:MAX_MODEL_CHARACTERS]


def format_gpu_labels(gpus: Sequence[Gpu]) -> str:
    """Return `GPU 0`, `GPUs 0 to 3` or `GPUs 0:0, 0:1, 1`."""
    labels = [gpu.label for gpu in gpus]
    if len(labels) == 1 or not any(gpu.place for gpu in gpus):
        return f"GPU {labels[0]}" if len(labels) == 1 else f"GPUs {labels[0]} to {labels[-1]}"
    return f"GPUs {', '.join(labels[:MAX_NAMED_GPUS])}{' and others' if len(labels) > MAX_NAMED_GPUS else ''}"
