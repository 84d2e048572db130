"""Short names of GPUs: `NVIDIA A100-SXM4-80GB` is an `A100 80 GB`. gpu-names.csv (`long, short`) overrides."""

from __future__ import annotations

import re
from functools import lru_cache

from site_builder.snapshots.envelope import text_of

MAKER = re.compile(r"^(?:(?:NVIDIA|Tesla|GeForce|Quadro|AMD|Graphics Device)\s+)+", re.IGNORECASE)
FORM = re.compile(r"[- ](?:SXM\d*|PCI[Ee]|HBM\d\w*|NVL|OAM)\b", re.IGNORECASE)
SIZE = re.compile(r"[- ](\d+) ?GB\b", re.IGNORECASE)
# Of AMD: `Arcturus GL-XL [Instinct MI100]` is an `MI100`, `Navi 22 [Radeon RX 6700 XT]` an `RX 6700 XT`.
INSTINCT = re.compile(r"\bMI\d{1,3}[A-Z]?\b")
CHIP = re.compile(r"^[^\[\]]*\[((?:AMD )?Radeon [^\[\]]+)\]$")
FAMILY = re.compile(r"^(?:AMD )?Radeon (?=RX |PRO |AI )", re.IGNORECASE)

# What cards are sold with, in GB.
SIZES = (1, 2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 192, 256, 288)


def read(data: bytes) -> dict[str, str]:
    """The short name of each long one that the file tells."""
    told: dict[str, str] = {}
    for line in text_of(data).split("\n"):
        long_name, comma, short = line.partition("#")[0].partition(",")
        if comma and long_name.strip() and short.strip():
            told[long_name.strip()] = short.strip()
    return told


@lru_cache(maxsize=4096)
def bare(name: str) -> tuple[str, str | None]:
    """The name without the maker and the form, and the size of the memory where the name has it."""
    text = FAMILY.sub("", CHIP.sub(r"\1", MAKER.sub("", name.strip())))
    size = SIZE.search(text)
    text = FORM.sub("", SIZE.sub("", text, count=1)).strip(" -")
    if instinct := INSTINCT.search(text):
        text = instinct[0]
    return text or name, size[1] if size else None


def of_instance(name: str | None, told: dict[str, str], profile: str | None) -> str:
    """What people call an instance of a GPU: `H100 1g.10gb`, in which its own memory is told."""
    whole = "GPU" if name is None else told.get(name) or bare(name)[0]
    return f"{whole} {profile or 'MIG'}"


def short(name: str, told: dict[str, str], memory: float | None = None) -> str:
    """What people call it, with the size of its memory: as the name has it, or else as `memory`, in MiB, tells."""
    if name in told:
        return told[name]
    text, size = bare(name)
    if size and memory and int(size) > 2 * memory / 1024:  # a GH200 has the memory of its CPU in its name
        size = None
    if size is None and memory:
        # the driver keeps some for itself, so that a card of 16 GB tells 15 GiB
        size = str(next((gb for gb in SIZES if gb >= memory / 1024 - 0.3), round(memory / 1024)))
    return f"{text} {size} GB" if size else text
