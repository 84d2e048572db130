"""Snapshots of hosts whose GPUs are held."""

from __future__ import annotations

from site_builder.core.model import (
    HostSnapshot,
)
from tests.support.generated_fleet import (
    gpu,
    used_by,
)

IDLE_USE = [gpu(used=7000, use=0)]


def held_by(*users: str) -> HostSnapshot:
    return used_by(*users, gpus=IDLE_USE)
