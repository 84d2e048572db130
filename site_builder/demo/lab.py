"""The simulated lab at work: its files in data/ and state/, and round after round of the real scripts on its hosts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from site_builder.core import files
from site_builder.core.model import Idle
from site_builder.core.resources import scripts_folder
from site_builder.core.shared_folder import booking_file
from site_builder.demo import cast
from site_builder.demo.host import SimulatedHost, idle_since
from site_builder.demo.readings import uuid
from site_builder.demo.story import BOOKINGS, HOUR, MINUTE, stories
from site_builder.fleet.store import Memory

STAND_INS = Path(__file__).parent / "stand-ins"
CORES = os.cpu_count() or 1
# Seconds that a core needs for a snapshot, as long as nobody has measured it.
SNAPSHOT_TAKES = 0.2
# Seconds between two rounds, where the machine is fast enough for that.
PACE = 5
# The old scripts of one host stopped long ago.
OLD_AGE = 2 * HOUR + 13 * MINUTE


@dataclass(frozen=True)
class Play:
    """How the lab is played: so many hosts, what settles it, how fast, and from which moment on."""

    hosts: int = len(cast.MACHINES)
    seed: int = 1
    speed: float = 1.0
    after: float = 0.0


class DemoLab:
    """A lab in `folder` (data/ and state/), with what its hosts are made of in `backstage`."""

    def __init__(self, play: Play, folder: Path, backstage: Path) -> None:
        """Put all there that was there before the demo began."""
        self.play, self.data, self.state, self.backstage = play, folder / "data", folder / "state", backstage
        self.began = time.time()
        self.machines = cast.lab(play.hosts)
        self.stories = list(stories(self.machines, play.seed))
        self.hosts = [
            SimulatedHost(backstage / story.machine.name, story, play.speed)
            for story in self.stories
            if story.machine.name != cast.OLD
        ]
        self.round_took = len(self.hosts) * SNAPSHOT_TAKES / CORES
        files.make_closed(self.data)
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.write_lists()
        self.write_bookings()
        self.write_old_host()
        self.remember()

    @property
    def every(self) -> int:
        """Seconds between two snapshots of a host."""
        return max(PACE, math.ceil(self.round_took))

    def settings(self) -> dict[str, str]:
        """For the builder: what takes hours in a lab takes as much less as the lab is faster."""
        stale = max(1, round(30 / self.play.speed))
        return {
            "GPUBOARD_NOTICE": self.notice(),
            "GPUBOARD_STALE_AFTER": str(stale),
            "GPUBOARD_DOWN_AFTER": str(max(round(600 / self.play.speed), 6 * self.every + stale + 5)),
            "GPUBOARD_HELD_AFTER": str(round(2 * HOUR / self.play.speed)),
        }

    def notice(self) -> str:
        """What the page says of itself."""
        speed = self.play.speed
        pace = "" if speed == 1 else f", {speed:g} times as fast, and so are its limits"
        return f"Simulated{pace}: these hosts, people and jobs do not exist."

    def at(self, wall: float) -> float:
        """The moment of the lab at that time of ours."""
        return (wall - self.began) * self.play.speed + self.play.after

    def wall(self, moment: float) -> float:
        """The time of ours at that moment of the lab."""
        return self.began + (moment - self.play.after) / self.play.speed

    def round(self) -> None:
        """One snapshot of each host that is up, by the scripts that a real host runs."""
        began = time.monotonic()
        now = time.time()
        up = [host for host in self.hosts if not host.story.is_silent(self.at(now))]
        pool = ThreadPoolExecutor(CORES)
        try:
            for told in pool.map(self.snapshot, up):
                if told:
                    raise OSError(0, told, "gpu-run.sh")
        finally:
            pool.shutdown(cancel_futures=True)
        self.round_took = time.monotonic() - began

    def snapshot(self, host: SimulatedHost) -> str:
        """One host's; what went wrong, if something did."""
        now = time.time()
        host.show(self.at(now), now - self.began)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GPUBOARD_")}
        environment = {
            **kept,
            "PATH": f"{STAND_INS}:{STAND_INS}/amd:{kept.get('PATH', '')}",
            "SMI": str(host.smi),
            "HOST": host.machine.name,
            "GPUBOARD_CONF": os.devnull,
            # a host has but these, whatever this very machine has
            "GPUBOARD_NVIDIA": "auto" if host.has("nvidia") else "no",
            "GPUBOARD_AMD": host.machine.amd or "no",
            "GPUBOARD_PROC": str(host.proc),
            "GPUBOARD_SPOOL": str(self.backstage / "spool"),
            "GPUBOARD_DEST": str(self.data.absolute()),
            **{f"GPUBOARD_{task}_EVERY": str(self.every) for task in ("GPUS", "PROCESSES", "PS")},
        }
        command = [str(scripts_folder() / "gpu-run.sh"), "once"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return ended.stderr.strip() if ended.returncode else ""

    def write_lists(self) -> None:
        """What the lab's admin wrote."""
        lines = [f"{one.name}, {one.title}, {one.tags}, {one.remark}".rstrip(", ") for one in self.machines]
        files.replace(self.data / "hosts.txt", "".join(f"{line}\n" for line in lines).encode())
        files.replace(self.data / "aliases.csv", cast.ALIASES.encode())

    def write_bookings(self) -> None:
        """What people wrote into comments.json; from then on it is whoever edits it that counts."""
        found: dict[str, list[tuple[str, dict[str, str]]]] = {}
        machines = {one.name: one for one in self.machines}
        for one in BOOKINGS:
            if one.host not in machines:
                continue
            labels = [unit.label for unit in machines[one.host].units]
            entry = {"name": one.person, "from": self.date(one.begins), "date": self.date(one.ends)}
            entry.update({key: value for key, value in (("comment", one.comment), ("rrule", one.rrule)) if value})
            for gpu in ("*",) if one.gpus is None else (labels[number] for number in one.gpus):
                found.setdefault(one.host, []).append((gpu, entry))
        lines = (
            f" {json.dumps(host)}: {{\n"
            + ",\n".join(f"  {json.dumps(gpu)}: {json.dumps(one)}" for gpu, one in gpus)
            + "\n }"
            for host, gpus in found.items()
        )
        files.replace(booking_file(self.data), ("{\n" + ",\n".join(lines) + "\n}\n").encode())

    def date(self, moment: float) -> str:
        """A moment of the lab as people write it: to the quarter of an hour, where that is not too coarse."""
        step = max(1, 15 * MINUTE / self.play.speed)
        local = datetime.fromtimestamp(round(self.wall(moment) / step) * step)
        return f"{local:%Y-%m-%d %H:%M}" if step % MINUTE == 0 else f"{local:%Y-%m-%d %H:%M:%S}"

    def write_old_host(self) -> None:
        """A host with the old scripts, which ended some hours ago."""
        for machine in self.machines:
            if machine.name == cast.OLD:
                then = self.began - OLD_AGE / self.play.speed
                stamp = f"{datetime.fromtimestamp(then):%Y/%m/%d %H:%M:%S}.000"
                model = machine.model
                row = "{n}, {uuid}, {name}, 4, {memory}, 0, 0, 31, {stamp}\n"
                rows = (
                    row.format(n=n, uuid=uuid(machine, n), name=model.name, memory=model.memory, stamp=stamp)
                    for n in range(machine.gpus)
                )
                path = self.data / f"{machine.name}_gpus.csv"
                files.replace(path, "".join(rows).encode())
                os.utime(path, (then, then))

    def remember(self) -> None:
        """What a builder would know that had watched the lab before: since when GPUs are idle, and the logins."""
        memory, now = Memory(self.state), self.play.after
        memory.learn(frozenset(cast.PEOPLE))
        for host in self.hosts:
            idle = idle_since(host.story.at(now), host.machine, now)
            if idle:
                since = {uuid(host.machine, gpu): self.wall(moment) for gpu, moment in idle.items()}
                memory.idle[host.machine.name] = Idle(self.began, since)
        memory.save()
