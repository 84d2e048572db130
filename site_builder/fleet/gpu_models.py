"""Names and models of GPUs."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from site_builder.core import people
from site_builder.core.files import CachedFile
from site_builder.core.model import ParsedFile, Problem
from site_builder.core.terminal_text import decode_text

MIB_PER_GIB = 1024


# Ranks behind every load that is known; JSON has no infinity.
UNKNOWN_LOAD = 1e300


# Whose GPUs are meant where a host has those of two makers, and nobody says.
DEFAULT_VENDOR = "nvidia"


# When cards of these names came out: the newest that fits a name counts.
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


@lru_cache(maxsize=1024)
def find_model_year(name: str | None) -> int:
    """When a model came out; 0 where nobody knows."""
    return next((year for year, names in MODEL_YEAR_PATTERNS if name and names.search(name)), 0)


def rank_gpu(model_name: str | None, free: float | None, load: float | None) -> tuple[int, int, float]:
    """The best first: the most free memory in whole GiB, then the newest model, then the host with the least to do."""
    return -round((free or 0) / MIB_PER_GIB), -find_model_year(model_name), UNKNOWN_LOAD if load is None else load


def is_matching_model(wanted: str, *names: str | None) -> bool:
    """Whether one of its names has the wanted one in it; an A100 is no A1000, and an L4 no L40."""
    pattern = rf"(?<![a-z0-9]){re.escape(wanted.lower())}(?!\d)" if wanted else ""
    return any(re.search(pattern, name.lower()) for name in names if name) or not wanted


def is_matching_profile(wanted: str, profile: str | None) -> bool:
    """Whether somebody asks for instances of that profile by its name: `1g.10gb`, `H100 1g.10gb`."""
    return profile is not None and profile.lower() in wanted.lower().split()


VENDOR_PREFIX = re.compile(r"^(?:(?:NVIDIA|Tesla|GeForce|Quadro|AMD|Graphics Device)\s+)+", re.IGNORECASE)
FORM_FACTOR = re.compile(r"[- ](?:SXM\d*|PCI[Ee]|HBM\d\w*|NVL|OAM)\b", re.IGNORECASE)
MEMORY_SIZE = re.compile(r"[- ](\d+) ?GB\b", re.IGNORECASE)
# Of AMD: `Arcturus GL-XL [Instinct MI100]` is an `MI100`, `Navi 22 [Radeon RX 6700 XT]` an `RX 6700 XT`.
INSTINCT_MODEL = re.compile(r"\bMI\d{1,3}[A-Z]?\b")
CHIP_NAME = re.compile(r"^[^\[\]]*\[((?:AMD )?Radeon [^\[\]]+)\]$")
RADEON_PREFIX = re.compile(r"^(?:AMD )?Radeon (?=RX |PRO |AI )", re.IGNORECASE)

# What cards are sold with, in GB.
MEMORY_SIZES_GB = (
    1,
    2,
    3,
    4,
    6,
    8,
    10,
    11,
    12,
    16,
    20,
    24,
    32,
    40,
    48,
    64,
    72,
    80,
    94,
    96,
    128,
    141,
    144,
    180,
    192,
    256,
    288,
)


def parse_gpu_names(data: bytes) -> dict[str, str]:
    """The short name of each long one that the file tells."""
    told: dict[str, str] = {}
    for line in decode_text(data).split("\n"):
        long_name, comma, short = line.partition("#")[0].partition(",")
        if comma and long_name.strip() and short.strip():
            told[long_name.strip()] = short.strip()
    return told


@lru_cache(maxsize=4096)
def split_gpu_name(name: str) -> tuple[str, str | None]:
    """The name without the maker and the form, and the size of the memory where the name has it."""
    text = RADEON_PREFIX.sub("", CHIP_NAME.sub(r"\1", VENDOR_PREFIX.sub("", name.strip())))
    size = MEMORY_SIZE.search(text)
    text = FORM_FACTOR.sub("", MEMORY_SIZE.sub("", text, count=1)).strip(" -")
    if instinct := INSTINCT_MODEL.search(text):
        text = instinct[0]
    return text or name, size[1] if size else None


def shorten_instance_name(name: str | None, told: dict[str, str], profile: str | None) -> str:
    """What people call an instance of a GPU: `H100 1g.10gb`, in which its own memory is told."""
    whole = "GPU" if name is None else told.get(name) or split_gpu_name(name)[0]
    return f"{whole} {profile or 'MIG'}"


def shorten_gpu_name(name: str, told: dict[str, str], memory: float | None = None) -> str:
    """What people call it, with the size of its memory: as the name has it, or else as `memory`, in MiB, tells."""
    if name in told:
        return told[name]
    text, size = split_gpu_name(name)
    if size and memory and int(size) > 2 * memory / 1024:  # a GH200 has the memory of its CPU in its name
        size = None
    if size is None and memory:
        # the driver keeps some for itself, so that a card of 16 GB tells 15 GiB
        size = str(next((gb for gb in MEMORY_SIZES_GB if gb >= memory / 1024 - 0.3), round(memory / 1024)))
    return f"{text} {size} GB" if size else text


class NameFiles:
    """aliases.csv and gpu-names.csv: what people and GPUs are called."""

    def __init__(self, data: Path, state: Path | None) -> None:
        """Both are read at each build, if they changed."""
        self.alias_file = CachedFile(
            data, state, "aliases.csv", lambda content: build_name_rows(people.parse_aliases(content))
        )
        self.gpu_name_file = CachedFile(
            data, state, "gpu-names.csv", lambda content: build_name_rows(parse_gpu_names(content))
        )

    def read_names(self) -> tuple[dict[str, str], dict[str, str], list[Problem]]:
        """The names to show of people and of GPUs, and what is wrong."""
        people, problems = self.alias_file.read()
        gpus, more = self.gpu_name_file.read()
        return dict(people), dict(gpus), problems + more


def build_name_rows(names: dict[str, str]) -> ParsedFile[tuple[str, str]]:
    """Names as rows."""
    return ParsedFile(tuple(names.items()))
