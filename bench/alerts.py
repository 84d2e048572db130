"""What alerts add to a build: a look at 1,000 hosts, with nothing and with much the matter."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.build_site import environment, lab
from bench.fleet import fleet
from bench.measure import Row

HOSTS, MATTERS = 1000, 100
# Looks, 10 seconds apart: those of 5 minutes, so that what is read once a minute counts.
LOOKS = 30
# Nothing answers at that address: the process that sends says so in the book, and ends.
NOTIFY = "json://127.0.0.1:9/"
LOOK = """
import gc, json, sys, time
from site_builder.alerts.model import Condition
from site_builder.board.builder import Builder
from site_builder.core.clock import Now
from site_builder.core.command_options import load_command_settings
hosts, matters, looks = map(int, sys.argv[1:])
settings = load_command_settings(None, {}).settings
builder = Builder(settings, build_interval_s=10)
alerts, found = builder.alert_engine, {}
builder.process_alerts = lambda cards, now: found.update(cards)
epoch = time.time() - 1200  # what falls due is so for the sender too, and is tried again only after these looks
builder.build(epoch)
gc.disable()

def look():
    global epoch
    epoch += 10
    now = Now(epoch, settings.zone)
    began = time.perf_counter()
    alerts.process_build(found, now, lambda: True)
    took = 1000 * (time.perf_counter() - began)
    assert not alerts.failure, alerts.failure
    return took

def median(several):
    return sorted(several)[len(several) // 2]

first = look()
quiet = median([look() for _ in range(looks)])
for name in sorted(found)[:matters]:
    down = Condition("host-down", name, what="no snapshot since 14:02", since=int(epoch), people=("alice", "bob"))
    found[name] = found[name]._replace(conditions=(down,))
told = []
while not (alerts.last_state and alerts.last_state.notifications):
    told.append(look())
worst = told[-1]
alerts.sender_process.wait(120)
stand = median([look() for _ in range(looks)])
if alerts.sender_process:
    alerts.sender_process.wait(120)
state = alerts.store.read()
size = (settings.state / "alerts.json").stat().st_size / 1000
print(json.dumps([first, quiet, stand, worst, size, len(state.conditions)]))
builder.close()
"""


def rows() -> Iterator[Row]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as path:
        folder = lab(Path(path), "alerts")
        fleet(folder / "data", HOSTS, 1)
        command = [sys.executable, "-c", LOOK, str(HOSTS), str(MATTERS), str(LOOKS)]
        known = {**environment(), "GPUBOARD_NOTIFY": NOTIFY}
        told = subprocess.run(command, cwd=folder, env=known, check=True, stdout=subprocess.PIPE, text=True)
    _, quiet, stand, worst, size, count = json.loads(told.stdout)
    assert count >= MATTERS
    yield Row(f"a look for alerts, {HOSTS} hosts, nothing the matter", 10, quiet, "ms")
    yield Row(f"the same while {MATTERS} hosts are down", 20, stand, "ms")
    yield Row(f"the look that tells of {MATTERS}, and starts a sender", 50, worst, "ms")
    yield Row(f"the book of the alerts, {MATTERS} hosts down", 512, size, "KB")
