"""History for notebooks: a row for each GPU and slot of time in which it was seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, tzinfo
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from site_builder.core.model import Number
from site_builder.core.people import People
from site_builder.history import block_format
from site_builder.history.buckets import MEANS, NAMED, Line
from site_builder.history.model import STATES, TAKEN, HostSample, Series
from site_builder.usage.totals import person_of, shown


class Row(NamedTuple):
    """A GPU in a slot: the state of most of its minutes, means of use, memory and power, the highest temperature.

    `seen`, `taken`, `held` and `booked` are minutes; `users` and `bookers` are all of them in a slot of one minute,
    and else the one who had most of it.
    """

    time: str
    host: str
    gpu: Number
    uuid: str
    model: str
    memory_total: float | None
    state: str
    use: float | None
    memory_used: float | None
    temperature: float | None
    power: float | None
    seen: int
    taken: int
    held: int
    booked: int
    users: tuple[str, ...]
    bookers: tuple[str, ...]


class Called:
    """What people are called: one name for each, however it was spelt."""

    def __init__(self, people: People, names: Iterable[str]) -> None:
        """`names` are those that history knows; one that is newer is as aliases.csv has it."""
        self.people = people
        self.of: dict[str, str] = {}
        several = defaultdict(list)
        for name in sorted(names):
            several[person_of(name, people)].append(name)
        for one in several.values():
            self.of.update(dict.fromkeys(one, shown(one, people)))

    def name(self, name: str) -> str:
        """The name to show."""
        return self.of.get(name) or self.people.user(name)

    def each(self, names: Iterable[str]) -> tuple[str, ...]:
        """The same of several, each once."""
        return tuple(dict.fromkeys(map(self.name, names)))


def of_minutes(samples: Iterable[tuple[int, HostSample]], called: Called, zone: tzinfo) -> Iterator[Row]:
    """The GPUs of a host, minute by minute."""
    for at, sample in samples:
        time = datetime.fromtimestamp(at, zone).isoformat()
        for which, use, memory, temperature, power, (state, who) in sample.gpus:
            yield Row(
                *(time, sample.host, which.index, which.key, which.model, which.memory_total),
                *(state, use, memory, temperature, power),
                *(1, int(state in TAKEN), int(state == "held"), int(bool(who.bookers))),
                *(called.each(who.users), called.each(who.bookers)),
            )


def of_slots(  # noqa: PLR0913, PLR0917 # each is one thing
    host: str,
    since: int,
    step: int,
    gpus: Sequence[tuple[Series, Line, Sequence[str]]],
    called: Called,
    zone: tzinfo,
) -> Iterator[Row]:
    """The GPUs of a host, slot by slot; of each its columns, and the names that they refer to."""
    if not gpus:
        return
    count = len(gpus[0][1]["seen"])
    times = [datetime.fromtimestamp(since + step * place, zone).isoformat() for place in range(count)]
    for slot in zip(*(of_gpu(host, times, *one, called) for one in gpus)):
        for row in slot:
            if row.seen:
                yield row


def of_gpu(  # noqa: PLR0913, PLR0917 # the same
    host: str, times: Sequence[str], which: Series, line: Line, names: Sequence[str], called: Called
) -> Iterator[Row]:
    """All slots of a GPU, also those in which it was not seen; whole columns at once, since there may be millions."""
    states = [judged(counts) for counts in zip(*(line[state] for state in STATES))]
    found = {code: (called.name(name),) for code, name in enumerate(names)}
    nobody: tuple[str, ...] = ()
    fixed = (host, which.index, which.key, which.model, which.memory_total)
    columns = (
        *(times, *map(repeat, fixed), (state for state, _ in states)),
        *(block_format.values(line[name], *how) for name, how in MEANS.items()),
        *(line["seen"], (taken for _, taken in states), line["held"], line["promised"]),
        *([found.get(code, nobody) for code in line[name]] for name in NAMED),
    )
    return map(Row._make, zip(*columns))


@lru_cache(maxsize=4096)
def judged(counts: tuple[int, ...]) -> tuple[str, int]:
    """The state of most minutes, of two that are equal the graver, and in how many the GPU was taken."""
    by_state = dict(zip(STATES, counts))
    return max(STATES, key=by_state.__getitem__), sum(by_state[state] for state in TAKEN)
