"""Which GPUs somebody can have now, and which of them are best."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from functools import lru_cache
from typing import NamedTuple

from site_builder.fleet import RUN, Gpu, Host

MIB_A_GIB = 1024
# When cards of these names came out: the newest that fits a name counts.
YEARS = (
    (2025, r"G?B300|MI35\d|RTX PRO|RTX 50[5-9]0|GB10\b"),
    (2024, r"G?B[12]00|MI325"),
    (2023, r"G?H200|H20\b|L40S|MI300|L2\b"),
    (2022, r"H[18]00|L40\b|L4\b|L20\b|RTX 40[5-9]0|\bAda\b"),
    (2021, r"MI2[15]0|A16\b|A2\b|RTX A[24]00\b|RTX A1000"),
    (2020, r"A[18]00\b|A[134]0G?\b|RTX 30[5-9]0|(RTX )?A[2456][05]00|MI100"),
    (2018, r"T4G?\b|RTX 20[6-8]0|RTX [34568]000|TITAN RTX|GTX 16[356]0|T[46]00\b|T1000|MI[56]0\b"),
    (2017, r"V100S?|TITAN V|GV100"),
    (2016, r"P100|P40\b|P4\b|GTX 10[5-8]0|TITAN Xp|TITAN X \(Pascal|Quadro G?P\d+"),
    (2015, r"M[46]0\b|M10\b|GTX 9[5-8]0|TITAN X\b|Quadro M\d+"),
    (2013, r"K[1248]0\w*|GTX 7[5-8]0|Quadro K\d+"),
)
NEWEST_FIRST = tuple((year, re.compile(rf"(?<![A-Za-z0-9])(?:{names})")) for year, names in YEARS)


class Wish(NamedTuple):
    """What a GPU must have: a model by part of its name, free memory in MiB."""

    model: str = ""
    memory: float = 0


class Choice(NamedTuple):
    """A GPU that can be had; `mine` if it is promised to whoever asks."""

    host: Host
    gpu: Gpu
    mine: bool = False

    @property
    def number(self) -> int | None:
        """What CUDA calls it where we are."""
        return self.gpu.index if self.gpu.number is None else self.gpu.number


class Asker(NamedTuple):
    """Who wants a GPU: which names of bookings are theirs, which UUIDs are taken already, and when it is.

    What another run of theirs has booked is not for them; a run itself asks at the desk whether that holds still.
    """

    is_mine: Callable[[str], bool]
    taken: Container[str]
    now: float
    for_run: bool = False


@lru_cache(maxsize=1024)
def year(name: str | None) -> int:
    """When a model came out; 0 where nobody knows."""
    return next((year for year, names in NEWEST_FIRST if name and names.search(name)), 0)


def free_memory(gpu: Gpu) -> float | None:
    """How much of its memory nobody uses, in MiB."""
    if gpu.memory_total is None or gpu.memory_used is None:
        return None
    return max(0.0, gpu.memory_total - gpu.memory_used)


def rank(model_name: str | None, free: float | None, load: float | None) -> tuple[int, int, float]:
    """The best first: the most free memory in whole GiB, then the newest model, then the host with the least to do."""
    return -round((free or 0) / MIB_A_GIB), -year(model_name), float("inf") if load is None else load


def load_of(host: Host) -> float | None:
    """How much a host has to do, for each of its CPUs."""
    return None if host.load is None else host.load[0] / (host.cpus or 1)


def available(hosts: Iterable[Host], wish: Wish, asker: Asker) -> list[Choice]:
    """All that can be had, the best first; of those that are alike, as people count them."""
    found = [
        Choice(host, gpu, gpu.state == "booked")
        for host in hosts
        if host.state == "fresh"
        for gpu in host.gpus
        if can_be_had(gpu, asker) and fits(gpu, wish)
    ]
    return sorted(found, key=lambda one: rank(one.gpu.name, free_memory(one.gpu), load_of(one.host)))


def can_be_had(gpu: Gpu, asker: Asker) -> bool:
    """Free, or promised to the asker and unused; nothing that is in error, taken, or has no number to name it by."""
    if gpu.index is None or (gpu.uuid is not None and gpu.uuid in asker.taken):
        return False
    return gpu.state in {"free", "booked"} and is_theirs(gpu, asker)


def is_theirs(gpu: Gpu, asker: Asker) -> bool:
    """Whether nobody else is promised it now; one that is called booked must be the asker's."""
    current = [
        one
        for one in gpu.bookings
        if (one.since is None or one.since.timestamp() <= asker.now) and asker.now < one.until.timestamp()
    ]
    return bool(current or gpu.state == "free") and all(
        one.name is not None and asker.is_mine(one.name) and (asker.for_run or not (one.id or "").startswith(RUN))
        for one in current
    )


def fits(gpu: Gpu, wish: Wish) -> bool:
    """Whether it is of the model, and has the memory; one that does not tell its memory has too little."""
    enough = not wish.memory or (free_memory(gpu) or 0) >= wish.memory
    return enough and is_model(wish.model, gpu.model, gpu.name)


def is_model(wanted: str, *names: str | None) -> bool:
    """Whether one of its names has the wanted one in it; an A100 is no A1000, and an L4 no L40."""
    pattern = rf"(?<![a-z0-9]){re.escape(wanted.lower())}(?!\d)" if wanted else ""
    return any(re.search(pattern, name.lower()) for name in names if name) or not wanted


def on_one_host(choices: Iterable[Choice], count: int) -> list[Choice]:
    """So many of one host: the best that there are on the first host that has enough; none if no host has."""
    by_host: dict[str, list[Choice]] = {}
    for one in choices:
        several = by_host.setdefault(one.host.name, [])
        several.append(one)
        if len(several) == count:
            return several
    return []


def why_none(hosts: Iterable[Host], wish: Wish, asker: Asker) -> str:
    """Why nothing more can be had, as far as that can be said in a line."""
    several = [gpu for host in hosts for gpu in host.gpus]
    right = [gpu for gpu in several if is_model(wish.model, gpu.model, gpu.name)]
    if not right:
        return f"none of its {len(several)} GPUs is of that model" if several else "there is no GPU"
    counts: dict[str, int] = {}
    for gpu in right:
        why = reason(gpu, wish, asker)
        counts[why] = counts.get(why, 0) + 1
    return ", ".join(f"{count} {why}" for why, count in counts.items())


def reason(gpu: Gpu, wish: Wish, asker: Asker) -> str:
    """What keeps us from a GPU, in a word or two."""
    if gpu.state not in {"free", "booked"}:
        return gpu.state
    if gpu.uuid in asker.taken:
        return "taken by another run"
    if not is_theirs(gpu, asker):
        return "booked"
    return "free" if fits(gpu, wish) else "with too little memory"
