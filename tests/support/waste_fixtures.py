"""A lab in which something of every kind is wasted, and beside each what is nearly so."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path

from site_builder.core.formatting import DAY, HOUR
from site_builder.history.block_format import PackedSample
from site_builder.history.writer import HistoryWriter
from tests.support import history_fixtures
from tests.support.board_fixture import Lab, gpu, person, process, soon
from tests.support.idle_run_fixtures import wear

LONG = 31 * 24
ODD_FOR = 400


def until_now(history: HistoryWriter, at: int, sample: PackedSample) -> None:
    """What was so since a moment on the hour; two minutes more, so that the build comes not after them."""
    end = int(time.time()) + 120
    whole = (end - at) // HOUR
    if whole:
        wear(history, at, whole, sample)
    wear(
        history, at + whole * HOUR, 1, lambda slot: sample if slot == 0 or at + whole * HOUR + slot * 60 < end else None
    )


def atlas(lab: Lab, user: str = "alice") -> None:
    """0 is held, 1 was never used, 2 was used once, 3 is booked and unused, 4 is used."""
    gpus = gpu(0, 31744, 0) + gpu(1) + gpu(2) + gpu(3) + gpu(4, 9000, 80)
    on = process(42, "GPU-0", 31000) + process(43, "GPU-4")
    lab.host("atlas", gpus, on, person(42, user) + person(43, "bob"), every=600)
    hour = int(time.time()) // HOUR * HOUR
    began = datetime.fromtimestamp(hour - 3 * HOUR, timezone.utc).isoformat()
    lab.book({"atlas": {"3": {"name": "carol", "from": began, "date": soon(2 * HOUR)}}})
    history = HistoryWriter(lab.state, timezone.utc)

    def fleet(held: bool = False, used: bool = False, booked: bool = False) -> PackedSample:
        return history_fixtures.host(
            history_fixtures.gpu("busy", [user], index=0, use=0 if held else 80),
            history_fixtures.gpu(index=1),
            history_fixtures.gpu("busy", ["bob"], index=2) if used else history_fixtures.gpu(index=2),
            history_fixtures.gpu("booked", [], ["carol"], index=3)
            if booked
            else history_fixtures.gpu("busy", ["bob"], index=3),
            history_fixtures.gpu("busy", ["bob"], index=4, use=80),
        )

    wear(history, hour - LONG * HOUR, LONG - 24, fleet())
    wear(history, hour - DAY, 1, lambda slot: fleet(used=slot == 30))
    wear(history, hour - DAY + HOUR, 13, fleet())
    wear(history, hour - 10 * HOUR, 7, fleet(held=True))
    until_now(history, hour - 3 * HOUR, fleet(held=True, booked=True))
    history.close()


def hydra(lab: Lab) -> None:
    """0 has a dead process, 1 one of unknown owner, 2 memory that no process has; 3 is in use by somebody."""
    gpus = "".join(gpu(n, 9000, 60, uuid=f"GPU-h{n}") for n in range(4))
    on = process(70, "GPU-h0") + process(80, "GPU-h1") + process(90, "GPU-h3")
    ps = person(70, "dave", state="Z") + person(71, "dave", gpu_pid=70) + person(72, "dave", gpu_pid=70)
    lab.host("hydra", gpus, on, ps + person(90, "erin"), every=600)


def make(folder: Path, **changes: object) -> Lab:
    """Built, as it is after some minutes."""
    lab = Lab(folder)
    atlas(lab)
    hydra(lab)
    later(lab, **changes)
    return lab


def later(lab: Lab, **changes: object) -> None:
    """Build it, and again when what is odd has been so for some minutes."""
    lab.build(0, **changes)
    file = lab.state / "memory.json"
    builder_state = json.loads(file.read_text())
    builder_state["odd"] = {name: since - ODD_FOR for name, since in builder_state["odd"].items()}
    file.write_text(json.dumps(builder_state))
    lab.build(0, **changes)
