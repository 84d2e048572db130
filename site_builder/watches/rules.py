"""Which of the GPUs that are free somebody was waiting for."""

from __future__ import annotations

from collections.abc import Iterable

from site_builder.core.model import FreeGpu, Number
from site_builder.fleet.select import is_model, is_profile
from site_builder.watches.request_parser import Wish

# Of a card that is sold with 40 GB the driver tells a little more than 40 GB, or a little less than 40 GiB.
MIB_A_GB = 1e9 / 2**20


class Free:
    """The GPUs that are free at a moment, for many wishes."""

    def __init__(self, several: Iterable[FreeGpu], now: float) -> None:
        """By their models, of which there are few: a wish for one that is not free costs nothing."""
        self.now = now
        self.models: dict[str, list[FreeGpu]] = {}
        for gpu in several:
            if not gpu.avoid:
                self.models.setdefault(gpu.model, []).append(gpu)
        self.found: dict[Wish, list[FreeGpu]] = {}

    def for_wish(self, wish: Wish) -> list[FreeGpu]:
        """As many of them as are wished for; none where there are not enough."""
        if wish not in self.found:
            self.found[wish] = self.look(wish)
        return self.found[wish]

    def look(self, wish: Wish) -> list[FreeGpu]:
        """The same for a wish that nobody had before."""
        there = [gpu for model, gpus in self.models.items() if is_model(wish.model, model) for gpu in gpus]
        fit = [gpu for gpu in there if self.fits(gpu, wish)]
        if len(fit) < wish.gpus:
            return []
        if not wish.together:
            return fit[: wish.gpus]
        return next((gpus[: wish.gpus] for gpus in by_host(fit).values() if len(gpus) >= wish.gpus), [])

    def fits(self, gpu: FreeGpu, wish: Wish) -> bool:
        """Whether one of them will do; when it is promised is known as far as the board looks ahead."""
        host = gpu.host.lower()
        named = not wish.hosts or host in wish.hosts or any(one.partition(".")[0] == host for one in wish.hosts)
        enough = gpu.memory >= wish.memory * MIB_A_GB
        # a process sees but one instance: several are what somebody wants who asks for their profile
        if wish.gpus > 1 and is_part(gpu.index) and not is_profile(wish.model, gpu.model.rpartition(" ")[2]):
            return False
        return named and enough and (gpu.until is None or gpu.until - self.now >= wish.length)


def is_part(number: Number) -> bool:
    """Whether it is the number of an instance, such as 0:1."""
    return isinstance(number, str) and ":" in number


def by_host(several: Iterable[FreeGpu]) -> dict[str, list[FreeGpu]]:
    """The GPUs of each host, in their order."""
    found: dict[str, list[FreeGpu]] = {}
    for gpu in several:
        found.setdefault(gpu.host, []).append(gpu)
    return found


def places(several: Iterable[FreeGpu]) -> str:
    """`atlas:0,1 and zeus:3`."""
    hosts = by_host(several).items()
    told = [f"{host}:{','.join('?' if gpu.index is None else str(gpu.index) for gpu in gpus)}" for host, gpus in hosts]
    return " and ".join(filter(None, (", ".join(told[:-1]), told[-1] if told else "")))
