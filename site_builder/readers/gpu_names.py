"""Short names of GPUs: `NVIDIA A100-SXM4-80GB` is an `A100 80 GB`. gpu-names.csv (`long, short`) overrides."""

from __future__ import annotations

import re

from site_builder.readers.form import text_of

MAKER = re.compile(r"^(?:NVIDIA|Tesla|GeForce|Quadro|AMD|Graphics Device)\s+", re.IGNORECASE)
FORM = re.compile(r"[- ](?:SXM\d*|PCI[Ee]|HBM\d\w*|NVL|OAM)\b", re.IGNORECASE)
SIZE = re.compile(r"[- ](\d+) ?GB\b", re.IGNORECASE)


def read(data: bytes) -> dict[str, str]:
    """The short name of each long one that the file tells."""
    told: dict[str, str] = {}
    for line in text_of(data).split("\n"):
        long_name, comma, short = line.partition("#")[0].partition(",")
        if comma and long_name.strip() and short.strip():
            told[long_name.strip()] = short.strip()
    return told


def short(name: str, told: dict[str, str]) -> str:
    """What people call it: without the maker and the form, with the size of the memory where the name has it."""
    if name in told:
        return told[name]
    text = name.strip()
    while (bare := MAKER.sub("", text)) != text:
        text = bare
    size = SIZE.search(text)
    text = FORM.sub("", SIZE.sub("", text, count=1)).strip(" -")
    return (f"{text} {size[1]} GB" if size else text) or name
