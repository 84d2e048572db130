"""What befell GPUs of the simulated lab in the weeks before the demo begins, as events of state/history.db."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from site_builder.demo.cast import Machine
from site_builder.demo.readings import DRIVER, uuid
from site_builder.health.model import Event, Value
from site_builder.health.store import put
from site_builder.history.reader import HOUR, MINUTE


class Harm(NamedTuple):
    """Something that happened to a GPU so many hours ago, and lasted for so many; to its host where there is no GPU."""

    gpu: int | None
    kind: str
    value: Value
    ago: float
    hours: float = 0


HARMS: dict[str, tuple[Harm, ...]] = {
    "atlas": (
        Harm(None, "driver", ("580.95.05", DRIVER), 19 * 24 + 3),
        *(Harm(2, "power", (41 + day, 9000 + 700 * day, None), 24 * day + 17, 13) for day in range(6)),
        Harm(2, "hot", (94, 90), 9 * 24 + 7, 2.5),
        Harm(2, "heat", (), 9 * 24 + 7.2, 2.2),
    ),
    "hydra": (
        Harm(5, "uncorrected", (1, 1), 12 * 24 + 5),
        Harm(5, "rows_uncorrected", (1, 1), 12 * 24 + 5),
        Harm(5, "pending", (), 12 * 24 + 5, 30),
        Harm(5, "lost", ("GPU is lost",), 6 * 24, 11),
    ),
    "lyra": (Harm(1, "corrected", (214, 214), 4 * 24 + 2, 5),),
}


def tell(connection: sqlite3.Connection, machines: Iterable[Machine], start: int, now: float) -> None:
    """Put it there, in the transaction of the caller; the lab is watched since `start`."""
    for machine in machines:
        put(connection, list(events(machine, int(now) // MINUTE * MINUTE)))
        # its signs are not known yet
        connection.execute("INSERT OR REPLACE INTO counter VALUES(?,?,NULL,x'',x'')", (machine.name, start))


def events(machine: Machine, now: int) -> Iterator[Event]:
    """What happened to the GPUs of a host, the oldest first."""
    harms = sorted(HARMS.get(machine.name, ()), key=lambda one: -one.ago)
    for number, one in enumerate(harms, 1):
        at = now - int(one.ago * HOUR) // MINUTE * MINUTE
        gpu = "" if one.gpu is None else uuid(machine, one.gpu)
        until = at + int(one.hours * HOUR)
        yield Event(machine.name, number, gpu, one.gpu, one.kind, one.value, at, None, min(until, now))
