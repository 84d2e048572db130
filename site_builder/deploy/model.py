"""Types of a deploy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DeployOptions:
    hosts: tuple[str, ...]
    consul: bool
    hosts_file: str | None
    name: str | None
    check: bool
    remove: bool
    dest: str | None
    web: str | None
    ssh_config: str | None

    @property
    def action(self) -> str:
        return "check" if self.check else "remove" if self.remove else "deploy"

    @property
    def config_file(self) -> Path | None:
        return Path(self.ssh_config) if self.ssh_config else None
