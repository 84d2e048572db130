"""This machine's own GPUs of AMD: amd-smi is asked here and now, or rocm-smi, as the host's script asks them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from site_builder.core.subprocesses import MISSING, NOT_STARTED, STILL_HANGS, TIMED_OUT, Asked

TOOLS = ("amd-smi", "rocm-smi")
# What could not be asked at all will not answer another question either.
UNANSWERED = frozenset({TIMED_OUT, MISSING, NOT_STARTED, STILL_HANGS})
METRICS = ("--usage", "--mem-usage", "--temperature", "--power", "--clock")
# Each question, and how an older tool is asked.
AMD_SMI: dict[str, tuple[tuple[str, ...], ...]] = {
    "names": (("list", "-e", "--json"), ("list", "--json")),
    "static": (("static", "--json"),),
    "metric": (("metric", *METRICS, "--json"), ("metric", "--json")),
    "processes": (("process", "--json"),),
}
ROCM_SMI: dict[str, tuple[tuple[str, ...], ...]] = {
    "names": (("--showid", "--showuniqueid", "--showproductname", "--showbus", "--showmaxpower", "--json"),),
    "metric": (
        (
            *("--showuse", "--showmemuse", "--showmeminfo", "vram", "--showtemp", "--showpower", "--showclocks"),
            "--json",
        ),
    ),
    "processes": (("--showpids", "--showpidgpus"),),
}


def programs(environment: Mapping[str, str]) -> list[str]:
    """The tools that are here, the better one first; ROCm keeps its own in a folder that few have on their PATH."""
    told = environment.get("GPUBOARD_AMD") or "auto"
    wanted = {"auto": TOOLS, "no": ()}.get(told, (told,))
    place = os.path.join(environment.get("ROCM_PATH") or "/opt/rocm", "bin")  # noqa: PTH118 # for which() alone
    found = (shutil.which(tool) or shutil.which(tool, path=place) for tool in wanted)
    return [one for one in found if one]


class Amd:
    """All questions to one tool, asked at once; to the next one if it fails."""

    def __init__(self, several: list[str]) -> None:
        """Ask the first."""
        self.program, *self.others = several
        self.form = os.path.basename(self.program)  # noqa: PTH119
        self.questions = ROCM_SMI if self.form == "rocm-smi" else AMD_SMI
        self.asked = {name: Asked((self.program, *ways[0])) for name, ways in self.questions.items()}
        self.told: dict[str, tuple[int, bytes]] = {}

    def answer(self, name: str) -> tuple[int, bytes]:
        """What it says to one of them; one that it does not know is put in an older way."""
        if name not in self.told:
            code, said = self.asked[name].answer()
            for way in self.questions[name][1:]:
                if code and code not in UNANSWERED:
                    code, said = Asked((self.program, *way)).answer()
            self.told[name] = code, said
        return self.told[name]

    def parts(self, *names: str) -> bytes:
        """The answers, as the parts of a snapshot."""
        found = []
        for name in ("names", "static", *names):
            if name in self.questions:
                code, said = self.answer(name)
                found.append(b"# part %s/%s rc=%d\n%s" % (self.form.encode(), name.encode(), code % 256, said))
        return b"".join(found)


def ask(environment: Mapping[str, str]) -> Amd | None:
    """Begin to ask, where there is a tool."""
    several = programs(environment)
    return Amd(several) if several else None


def settled(asked: Amd) -> Amd:
    """The tool that answers: where the better one fails, the other one; where none does, the last one's words count."""
    while asked.others and asked.answer("names")[0] and asked.answer("names")[0] not in UNANSWERED:
        asked = Amd(asked.others)
    return asked
