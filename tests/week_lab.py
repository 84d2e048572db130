"""Two weeks of a small lab, as reports tell them."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from site_builder.sources.history import History
from tests.lab import Lab
from tests.past_lab import epoch, gpu, host, keep, roll

PARIS = ZoneInfo("Europe/Paris")
HOUR, DAY = 3600, 86400
MONDAY = epoch("2026-11-09T00:00", PARIS)
MORNING = MONDAY + 7 * DAY + 6 * HOUR  # when cron makes the report


def make_past(lab: Lab) -> None:
    """Two weeks of four GPUs; each number in the tests below was worked out on paper.

    In the first, alice is on the A100 for 42 hours. In the second for 84; then she and bob hold it for 12. carol has
    booked the V100 for all of it and is never there, the T4 is not used, and hydra is seen on the first day only.
    """
    history = History(lab.state, PARIS)
    free = gpu(index=2, model="T4")
    booked = gpu("booked", [], ["carol"], index=1, model="V100")
    busy, held = gpu("busy", ["alice"], use=90), gpu("held", ["alice", "bob"], use=0)
    before = MONDAY - 7 * DAY
    keep(history, before, before + 42 * HOUR, [host(busy, booked, free)])
    keep(history, before + 42 * HOUR, MONDAY, [host(gpu(), gpu(index=1, model="V100"), free)])
    other = host(gpu("busy", [], key="GPU-h", model="L40S"), name="hydra")
    keep(history, MONDAY, MONDAY + DAY, [host(busy, booked, free), other])
    keep(history, MONDAY + DAY, MONDAY + 84 * HOUR, [host(busy, booked, free)])
    keep(history, MONDAY + 84 * HOUR, MONDAY + 96 * HOUR, [host(held, booked, free)])
    keep(history, MONDAY + 96 * HOUR, MORNING, [host(gpu(), booked, free)])
    roll(history, MORNING)
    history.close()
