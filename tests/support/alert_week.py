"""A small lab that lives through a week in seconds: a real builder reads what its hosts tell, and decides what is told.

Nothing is sent and no page is written: a letter is taken from the book when it is due, as if it had arrived.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from site_builder.alerts import queue
from site_builder.alerts.model import DeliveryOutcome, Notification
from site_builder.alerts.render import format_notification_headline
from site_builder.board.builder import Builder
from site_builder.core import files
from site_builder.core.model import AlertSettings, Problem
from site_builder.snapshots.store import HostFile, HostFiles
from tests.support.board_fixture import PROCESS_COLUMNS, PS_COLUMNS, TASKS, Lab, person, process
from tests.support.generated_fleet import PARIS

MINUTE, HOUR, DAY = 60, 3600, 86400
MONDAY = datetime(2026, 10, 19, tzinfo=PARIS)  # on the Sunday of this week the clocks are set back
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Mon+")
COLUMNS = (
    "index, uuid, name, memory.used, memory.total, utilization.gpu, utilization.memory, temperature.gpu, power.draw, "
    "power.limit, ecc.errors.uncorrected.aggregate.total, ecc.errors.corrected.aggregate.total"
)
# Each so many seconds, where nothing changes; and each minute for so long where something did, or will in the next.
EVERY = 10 * MINUTE
CLOSELY = 16 * MINUTE


def moment(when: str) -> int:
    """`Wed 14:05` of this week, as the clocks of the lab show it."""
    day, clock = when.split()
    hour, minute = map(int, clock.split(":"))
    at = (MONDAY + timedelta(days=DAYS.index(day))).replace(hour=hour, minute=minute)
    return int(at.timestamp())


def shown(at: int) -> str:
    """The same, the other way round."""
    local = datetime.fromtimestamp(at, PARIS)
    return f"{DAYS[(local.date() - MONDAY.date()).days]} {local:%H:%M}"


@dataclass
class Card:
    """A GPU as its host sees it; `user` is who is on it."""

    user: str | None = None
    use: int = 0
    temperature: int = 40
    lost: bool = False
    uncorrected: int = 0
    corrected: int = 0
    since: int = 0

    def row(self, index: int, host: str) -> str:
        name = f"{index}, GPU-{host}-{index}, NVIDIA A100-SXM4-80GB"
        if self.lost:
            return f"{name}{', [GPU is lost]' * 9}\n"
        used = 7000 if self.user else 4
        return (
            f"{name}, {used}, 81920, {self.use if self.user else 0}, 10, {self.temperature}, 61.50, 400.00, "
            f"{self.uncorrected}, {self.corrected}\n"
        )


@dataclass
class Server:
    """A host; it is silent while it is not `up`, and `fails` while its nvidia-smi does."""

    name: str
    gpus: dict[int, Card] = field(default_factory=dict)
    up: bool = True
    fails: bool = False
    files: dict[str, HostFile] = field(default_factory=dict)

    def push(self, now: int) -> None:
        """A whole snapshot of this moment."""
        on = {index: card for index, card in self.gpus.items() if card.user and not card.lost}
        bodies = {
            "gpus.csv": f"{COLUMNS}\n" + "".join(card.row(index, self.name) for index, card in self.gpus.items()),
            "processes.csv": f"{PROCESS_COLUMNS}\n"
            + "".join(process(100 + index, f"GPU-{self.name}-{index}") for index in on),
            "ps.txt": f"{PS_COLUMNS}\n"
            + "".join(person(100 + index, card.user or "", elapsed=now - card.since) for index, card in on.items()),
            "host.txt": "cpus=4\nload=1.5 1.2 1.0\nmemory_total=64000\nmemory_available=32000\n",
        }
        if self.fails:
            bodies["gpus.csv"] = "# err NVIDIA-SMI has failed\n"
        for file, body in bodies.items():
            rc = 9 if self.fails and file == "gpus.csv" else 0
            head = f"# gpuboard 1 task={TASKS[file]} host={self.name} time={now} every=20 took_ms=1 rc={rc}\n"
            content = f"{head}{body}# end\n".encode()
            signature = files.FileSignature(0, len(content), now * 10**9, now * 10**9)
            self.files[file] = HostFile(signature, content, float(now))


class FakeSnapshots:
    """Snapshots of the simulated hosts, in memory."""

    def __init__(self, servers: dict[str, Server]) -> None:
        self.servers = servers

    def read_hosts(self) -> tuple[list[HostFiles], list[Problem]]:
        hosts = [HostFiles(name, dict(server.files)) for name, server in sorted(self.servers.items()) if server.files]
        return hosts, []

    def save(self) -> None:
        pass


class RunningSender:
    """A sender that never ends."""

    def poll(self) -> None:
        """Return no exit code."""


class PagelessBuilder(Builder):
    def publish(self, *_: object) -> None:
        pass


class Sent(NamedTuple):
    at: str
    to: str
    title: str
    notification: Notification


class Week:
    """A lab, its clock, and everything that was sent."""

    def __init__(self, lab: Lab, rules: str, **changes: Any) -> None:  # noqa: ANN401
        self.lab, self.changes = lab, changes
        path = lab.state.parent / "alerts.conf"
        path.write_text(rules)
        path.chmod(0o600)
        self.alerts = AlertSettings(
            channels=(("lab", "json://127.0.0.1:9"),),
            mail_url="mailto://127.0.0.1:9",
            mail_domain="lab.example.org",
            rules_file=str(path),
        )
        self.servers: dict[str, Server] = {}
        self.story: list[tuple[int, Callable[[], object]]] = []
        self.bookings: dict[str, dict[str, list[dict[str, str]]]] = {}
        self.now = moment("Mon 00:00")
        self.sent: list[Sent] = []
        self.builder = self.new_builder()

    def new_builder(self) -> Builder:
        """Create a builder that continues after one that was killed."""
        settings = self.lab.settings(zone=PARIS, alerts=self.alerts, url="https://gpus.example.org/", **self.changes)
        builder = PagelessBuilder(settings, build_interval_s=10)
        builder.snapshots = FakeSnapshots(self.servers)  # type: ignore[assignment]
        builder.sparkline_cache.render_hosts = lambda *_, **__: {}  # type: ignore[method-assign] # they stand on pages, and take long
        assert builder.alert_engine
        builder.alert_engine.sender_process = RunningSender()  # type: ignore[assignment] # so that none is started
        return builder

    def change_builder(self) -> None:
        self.builder.history.close()
        self.builder = self.new_builder()

    def at(self, when: str, what: Callable[[], object]) -> None:
        """Something that happens."""
        self.story.append((moment(when), what))

    def host(self, name: str, gpus: int = 4) -> Server:
        self.servers[name] = Server(name, {index: Card() for index in range(gpus)})
        return self.servers[name]

    def down(self, name: str, since: str, until: str) -> None:
        """Nothing is heard of a host."""
        self.at(since, lambda: setattr(self.servers[name], "up", False))
        self.at(until, lambda: setattr(self.servers[name], "up", True))

    def gpu(self, place: str, since: str, until: str | None = None, **facts: Any) -> None:  # noqa: ANN401
        """A GPU is so for a while."""
        name, _, index = place.partition(":")
        card = self.servers[name].gpus[int(index)]

        def change(**changes: Any) -> None:  # noqa: ANN401
            if "user" in changes:
                card.since = self.now
            for key, value in changes.items():
                setattr(card, key, value)

        self.at(since, lambda: change(**facts))
        if until:
            before = {key: getattr(card, key) for key in facts}
            self.at(until, lambda: change(**before))

    def book(self, made: str, who: str, place: str, since: str, until: str) -> None:
        """Somebody books GPUs."""
        name, _, indices = place.partition(":")

        def write() -> None:
            for index in indices.split(","):
                entry = {
                    "name": who,
                    "from": datetime.fromtimestamp(moment(since), PARIS).isoformat(),
                    "date": datetime.fromtimestamp(moment(until), PARIS).isoformat(),
                    "id": f"{who}-{since.replace(' ', '-')}",
                }
                self.bookings.setdefault(name, {}).setdefault(index, []).append(entry)
            self.lab.book(self.bookings)

        self.at(made, write)

    def listed(self, when: str, text: str) -> None:
        """hosts.txt says something else."""
        self.at(when, lambda: (self.lab.data / "hosts.txt").write_text(text))

    def watch(self, when: str, who: str, wish: str) -> None:
        """Somebody wants to be told."""
        until = (MONDAY + timedelta(days=20)).isoformat()
        entry = {"id": "w1", "name": who, "when": wish, "via": "mail", "made": MONDAY.isoformat(), "until": until}
        self.at(when, lambda: (self.lab.data / "watches.json").write_text(json.dumps([entry])))

    def silence(self, when: str, host: str, seconds: int) -> None:
        """As `gpuboard alerts silence` does."""
        assert self.builder.alert_engine
        store = self.builder.alert_engine.store
        self.at(when, lambda: store.change(lambda state: state._replace(silences={host: self.now + seconds})))

    def times(self, until: str) -> Iterator[int]:
        """When the builder looks: each minute where something changed, and less often where nothing did."""
        closely = {at + after for at, _ in self.story for after in range(-MINUTE, CLOSELY, MINUTE)}
        return (at for at in range(self.now, moment(until) + 1, MINUTE) if at % EVERY == 0 or at in closely)

    def live(self, until: str) -> None:
        """All of it, as it happens."""
        story = sorted(self.story, key=lambda story_event: story_event[0])
        for at in self.times(until):
            self.now = at
            while story and story[0][0] <= at:
                story.pop(0)[1]()
            for server in self.servers.values():
                if server.up:
                    server.push(at)
            self.builder.build(float(at))
            self.carry(at)
        assert not story

    def carry(self, at: int) -> None:
        """Record the notifications that are due as sent."""
        assert self.builder.alert_engine
        assert not self.builder.alert_engine.failure
        store = self.builder.alert_engine.store
        for due in queue.list_due_notifications(store.read(), at):
            self.sent.append(Sent(shown(at), due.to, format_notification_headline(due.alerts, due.omitted_count), due))
            store.change(lambda state, due=due: queue.claim_notification(state, due.id, "test", at))  # type: ignore[misc]
            store.change(
                lambda state, due=due: queue.record_queue_outcome(state, due.id, "test", DeliveryOutcome("sent"), at)  # type: ignore[misc]
            )
