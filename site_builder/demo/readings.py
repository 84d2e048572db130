"""What follows from the use of a simulated GPU, as numbers, and what names it; each maker's tool has its own words."""

from __future__ import annotations

import hashlib
from random import Random
from typing import NamedTuple

from site_builder.demo.cast import Machine, Model

DRIVER = "590.48.01"
RESERVED = 280
# One that gets too warm as soon as it works, and the degrees at which it slows itself down.
WARM = {("atlas", 2)}
TOO_WARM = 87


class Readings(NamedTuple):
    """Use in percent, memory in MiB, and what follows from them, in nvidia-smi's units."""

    use: int
    used: int
    access: int
    heat: int
    watts: float
    clock: int
    slowed: bool

    @property
    def held(self) -> bool:
        """Whether somebody has memory on it."""
        return self.used > 1000


def uuid(machine: Machine, gpu: int) -> str:
    """The own name of a GPU or an instance: another one for each of the lab, in the form of its maker."""
    unit = machine.units[gpu]
    name = hashlib.sha256(f"{machine.name} {gpu}".encode()).hexdigest()
    if unit.maker == "amd":
        return f"GPU-{name[:16]}"
    return f"{'MIG' if unit.instance else 'GPU'}-{dashed(name)}"


def whole_uuid(machine: Machine) -> str:
    """That of the GPU that is cut into instances."""
    return f"GPU-{dashed(hashlib.sha256(f'{machine.name} whole'.encode()).hexdigest())}"


def dashed(name: str) -> str:
    """As UUIDs are written."""
    return f"{name[:8]}-{name[8:12]}-{name[12:16]}-{name[16:20]}-{name[20:32]}"


def readings(model: Model, key: str, use: int, used: int, now: float, warm: bool = False) -> Readings:  # noqa: PLR0913, PLR0917 # each is one thing
    """What follows from its use and its memory; no two GPUs are quite the same, nor two moments."""
    held = used > 1000
    own, moment = Random(key), Random(f"{key} {int(now) // 5}")  # noqa: S311 nothing secret
    heat = int(27 + own.randrange(9) + 8 * held + (0.3 + own.random() * 0.15) * use)
    watts = model.watts * (0.07 + own.random() * 0.05 + 0.06 * held + 0.74 * use / 100) + moment.uniform(-4, 4)
    access = int(use * (0.25 + own.random() * 0.4) + moment.uniform(0, 4)) if use else 0
    clock = int(model.clock * (0.88 + moment.random() * 0.08)) if use else 210
    slowed = warm and bool(use)
    if slowed:
        heat, clock = TOO_WARM + moment.randrange(2), int(clock * 0.6)
    return Readings(use, used, access, heat, min(watts, model.watts), clock, slowed)
