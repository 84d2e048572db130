"""Which GPUs somebody can have now, and which of them are best."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from site_builder.client.model import RUN, Gpu, Host

MIB_A_GIB = 1024
# Ranks behind every load that is known; JSON has no infinity.
UNKNOWN_LOAD = 1e300
# Whose GPUs are meant where a host has those of two makers, and nobody says.
FIRST = "nvidia"
# When cards of these names came out: the newest that fits a name counts.
YEARS = (
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
NEWEST_FIRST = tuple((year, re.compile(rf"(?<![A-Za-z0-9])(?:{names})")) for year, names in YEARS)


class Wish(NamedTuple):
    """What a GPU must have: a model by part of its name, free memory in MiB, and of which maker it must be."""

    model: str = ""
    memory: float = 0
    vendor: str | None = None


ANY = Wish()


class Choice(NamedTuple):
    """A GPU that can be had; `mine` if it is promised to whoever asks."""

    host: Host
    gpu: Gpu
    mine: bool = False

    @property
    def number(self) -> int | str | None:
        """What CUDA or HIP calls it where we are; where some GPUs are cut, CUDA's numbers are not what they seem."""
        if self.gpu.uuid and (self.gpu.of or (self.host.cut and self.gpu.vendor == FIRST)):
            return self.gpu.uuid
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
    return -round((free or 0) / MIB_A_GIB), -year(model_name), UNKNOWN_LOAD if load is None else load


def load_of(host: Host) -> float | None:
    """How much a host has to do, for each of its CPUs."""
    return None if host.load is None else host.load[0] / (host.cpus or 1)


def available(hosts: Iterable[Host], wish: Wish, asker: Asker) -> list[Choice]:
    """All that can be had, the best first, instances behind whole GPUs; of those that are alike, as people count."""
    found = [
        Choice(host, gpu, gpu.state == "booked")
        for host in hosts
        if host.state == "fresh"
        for gpu in host.gpus
        if can_be_had(gpu, asker) and fits(gpu, wish)
    ]
    return sorted(
        found, key=lambda one: (bool(one.gpu.of), rank(one.gpu.name, free_memory(one.gpu), load_of(one.host)))
    )


def can_be_had(gpu: Gpu, asker: Asker) -> bool:
    """Free, or promised to the asker and unused; nothing that is in error, taken, or has no name that CUDA takes."""
    if gpu.index is None or gpu.avoid or gpu.handle in asker.taken or (gpu.of and gpu.uuid is None):
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
    return enough and is_right(gpu, wish)


def is_right(gpu: Gpu, wish: Wish) -> bool:
    """Whether it is of the maker and of the model."""
    return wish.vendor in {None, gpu.vendor} and is_model(wish.model, gpu.model, gpu.name)


def of_one_maker(host: Host, wish: Wish) -> Wish:
    """The wish for GPUs of a host that one program shall see: numbers of two makers never mean anything together."""
    makers = [gpu.vendor for gpu in (*host.gpus, *host.cut)]
    return wish if wish.vendor or not makers else wish._replace(vendor=FIRST if FIRST in makers else makers[0])


def is_model(wanted: str, *names: str | None) -> bool:
    """Whether one of its names has the wanted one in it; an A100 is no A1000, and an L4 no L40."""
    pattern = rf"(?<![a-z0-9]){re.escape(wanted.lower())}(?!\d)" if wanted else ""
    return any(re.search(pattern, name.lower()) for name in names if name) or not wanted


def is_profile(wanted: str, profile: str | None) -> bool:
    """Whether somebody asks for instances of that profile by its name: `1g.10gb`, `H100 1g.10gb`."""
    return profile is not None and profile.lower() in wanted.lower().split()


def for_one_process(choices: Sequence[Choice], wish: Wish) -> list[Choice]:
    """What CUDA_VISIBLE_DEVICES takes of one host: whole GPUs, or else one instance, for a process sees but one.

    Who asks for a profile gets all of that, for as many processes.
    """
    wholes = [one for one in choices if not one.gpu.of]
    asked = [one for one in choices if is_profile(wish.model, one.gpu.profile)]
    return asked or wholes or list(choices[:1])


def on_one_host(choices: Iterable[Choice], count: int, wish: Wish = ANY) -> list[Choice]:
    """So many of one host and maker: the best that there are on the first host that has enough; none if no host has.

    Where several are wanted, instances are none of them unless their profile is: a process sees but one.
    """
    by_host: dict[tuple[str, str], list[Choice]] = {}
    for one in choices:
        if count > 1 and one.gpu.of and not is_profile(wish.model, one.gpu.profile):
            continue
        several = by_host.setdefault((one.host.name, one.gpu.vendor), [])
        several.append(one)
        if len(several) == count:
            return several
    return []


def why_none(hosts: Iterable[Host], wish: Wish, asker: Asker) -> str:
    """Why nothing more can be had, as far as that can be said in a line."""
    several = [gpu for host in hosts for gpu in host.gpus]
    right = [gpu for gpu in several if is_right(gpu, wish)]
    if not right:
        what = "model" if any(wish.vendor in {None, gpu.vendor} for gpu in several) else "maker"
        return f"none of its {len(several)} GPUs is of that {what}" if several else "there is no GPU"
    counts: dict[str, int] = {}
    for gpu in right:
        why = reason(gpu, wish, asker)
        counts[why] = counts.get(why, 0) + 1
    return ", ".join(f"{count} {why}" for why, count in counts.items())


def reason(gpu: Gpu, wish: Wish, asker: Asker) -> str:
    """What keeps us from a GPU, in a word or two."""
    if gpu.state not in {"free", "booked"}:
        return gpu.state
    if gpu.avoid:
        return "in trouble"
    if gpu.handle in asker.taken:
        return "taken by another run"
    if not is_theirs(gpu, asker):
        return "booked"
    if gpu.of and gpu.uuid is None:
        return "without a UUID"
    return "free" if fits(gpu, wish) else "with too little memory"
