"""One build: read data/, decide, render, publish. The clock is read once, by the caller."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, NamedTuple

from site_builder.board.host_pages import HostPages, shown_of
from site_builder.board.host_pipeline import OLD_STORE as OLD_CARDS
from site_builder.board.host_pipeline import Card, Cards
from site_builder.board.site_writer import Page, Site
from site_builder.bookings import calendar
from site_builder.bookings.data_files import Bookings, Names
from site_builder.bookings.tokens import check_tokens
from site_builder.charts.cache import Lines
from site_builder.config.settings import Settings
from site_builder.core import protection, published_files
from site_builder.core.clock import Now
from site_builder.core.faults import WWW, concerns_a_file, describe
from site_builder.core.log_file import Log
from site_builder.core.model import Problem
from site_builder.core.names import natural
from site_builder.core.people import People
from site_builder.discovery.discover import Discovery
from site_builder.fleet import active_bookings, summary
from site_builder.fleet.gpu_state import Rules
from site_builder.fleet.host_view import NEVER, Host
from site_builder.fleet.store import Memory
from site_builder.health import diff
from site_builder.health.store import WITHIN, EventLog
from site_builder.history.rollups import OLD_NAME as OLD_SUMS
from site_builder.history.sampling import outdated
from site_builder.history.writer import History
from site_builder.snapshots.store import OLD_STORE as OLD_SNAPSHOTS
from site_builder.snapshots.store import Snapshots
from site_builder.usage.people_build import PAGE as USERS_PAGE
from site_builder.usage.people_build import UsersPage
from site_builder.usage.trends_build import PAGE as FLEET_PAGE
from site_builder.usage.trends_build import FleetPage
from site_builder.waste.build import Wastes
from site_builder.waste.model import FILE as WASTE

if TYPE_CHECKING:
    from site_builder.alerts.engine import Alerts
    from site_builder.board.consul_mirror import Mirror
    from site_builder.consul.leader import Lead

# Seconds after which the last whole files are written to state/ again, where the same builder goes on.
SAVE_EVERY = 60
MOST_PROBLEMS = 1000
# Seconds between two builds that cron starts, at most: what lies between is then like the first.
ONE_BY_ONE = 300
# Seconds that the first build waits to know whether it leads: for many a builder it is the only one.
FIRST_WORD = 5.0
# Seconds of a build that may go into making old history coarser.
ROLL_UP = 0.25


class Failed(Exception):
    """Why no page was written, in one sentence; the old one stands."""


class Report(NamedTuple):
    """What a build did; `troubles` are sentences on what could not be kept in state/."""

    hosts: int
    totals: dict[str, int]
    problems: list[Problem]
    written: list[str]
    troubles: list[str]


class Builder:
    """Builds again and again, from one memory of what it has read and made."""

    def __init__(self, settings: Settings, every: int | None = None) -> None:
        """Take up what the last builder left in state/; `every` is how often it builds, where it does so again."""
        self.settings = settings
        self.every = every
        data, state = settings.data, settings.state
        remove_executable_files(state)
        self.snapshots = Snapshots(data, state, settings.snapshot_bytes)
        self.discovery = Discovery(data, state, settings.consul)
        self.mirror, self.lead = with_others(settings)
        self.leads = self.lead is None  # whether we do what must happen only once; a builder that is alone does all
        self.bookings = Bookings(data, state, settings.zone)
        self.names = Names(data, state)
        self.memory = Memory(state)
        self.took = self.memory.took  # kept when all is over, or the memory would be written at each build
        self.cards = Cards(state)
        self.cards.paused = self.memory.paused
        self.site = Site(settings, every)
        self.faults = self.site.faults  # what we failed at, for the page
        self.faults.recall(self.memory.problems)
        self.cards_made: dict[str, Card] | None = None  # in this build
        self.history = History(state, settings.zone)
        self.events = EventLog(self.history, diff.compare)
        self.history.idle_percent = settings.limits.idle_percent
        self.wastes = Wastes(self.history, self.memory, self.site.every)
        self.fleet_page = FleetPage(settings, self.history)
        self.users_page = UsersPage(settings, self.history, patient=not every)
        self.host_pages, self.lines = HostPages(settings, self.history, self.events), Lines(settings, self.history)
        self.host_pages.faults = self.lines.faults = self.faults
        self.alerts = alerts_of(settings, self.events)
        self.log = Log(state)
        self.snapshots_saved = 0.0
        self.beside: list[Problem] = []  # what went wrong around the build, for the same page
        self.doubt = ""  # why the clock is not believed; then nothing is removed because its time is over

    def build(self, epoch: float) -> Report:
        """One build, at that moment; whatever goes wrong in it, people are told what is known, and state is saved."""
        now = Now(epoch, self.settings.zone)
        self.cards_made = None
        try:
            return self.build_at(now)
        except Failed:
            self.tell(self.cards_made, now)
            raise
        except Exception as error:
            self.tell(self.cards_made, now)
            if concerns_a_file(error):
                where = getattr(error, "filename", None) or self.settings.state
                message = f"{where} could not be read or written: {getattr(error, 'strerror', None)}"
            else:
                message = describe("the board could not be built", error)
            list(self.save((), now))
            raise Failed(message) from error

    def build_at(self, now: Now) -> Report:
        """The same; what is not foreseen here ends this build."""
        began = time.monotonic()
        epoch = now.epoch
        self.faults.start()
        forgotten: list[Path] = []
        with self.faults.catch("state/forget", "no host could be forgotten"):
            forgotten = self.forget()
        self.discovery.start()
        if self.mirror:
            self.mirror.start()
        hosts, rules, names, problems = self.read(now)
        cards = self.cards.make(hosts, rules, names, self.settings, now)
        if self.learn(cards):  # a verdict needs logins that we know, and some are known only now
            rules = replace(rules, people=People(rules.people.aliases, self.memory.logins))
            cards = self.cards.make(hosts, rules, names, self.settings, now)
        hosts = [self.cards.readable(host, now) for host in hosts]
        self.cards_made = cards
        problems += [problem for one in cards.values() for problem in one.summary.problems]
        with self.faults.catch("data", "GPUs that two hosts tell could not be looked for"):
            problems += summary.doubles({host: one.summary.uuids for host, one in cards.items()})
        with self.faults.catch("state/history.db", "this minute is missing in it"):
            self.remember(cards, now)
        problems += self.state_problems()
        problems += self.history.problems + (self.alerts.problems(now) if self.alerts else [])
        problems += self.beside
        before = self.told_problems(problems)
        try:
            self.site.wasted = self.wastes.look(cards, rules, now)
            self.note(before, now)
            told = before
            if self.may_write(now):
                self.publish(hosts, cards, rules, names, before, now)
                told = self.told_problems(problems)
                if told != before:  # of what could not be made the page knows only now
                    self.note(told, now)
                    self.write_fleet(cards, told, now)
        except OSError as error:
            message = f"{error.filename or self.settings.www} could not be written: {error.strerror}"
            raise Failed(message) from error
        report = Report(len(cards), totals_of(cards), told, self.site.written, list(self.save(forgotten, now)))
        self.tell(cards, now)
        self.history.roll_up(epoch, ROLL_UP)
        self.took = round(time.monotonic() - began, 3)
        return report

    def told_problems(self, problems: Sequence[Problem]) -> list[Problem]:
        """All problems, those of outputs among them, in their order."""
        found = {*problems, *self.faults.problems, *self.site.calendars.problems}
        return bounded(sorted(found, key=lambda one: (one.where, one.what)))

    def remember(self, cards: Mapping[str, Card], now: Now) -> None:
        """Write the minute into history."""
        old = outdated({host: (one.summary.uuids, one.seen) for host, one in cards.items()})
        samples = [one.sample for host, one in cards.items() if one.sample and host not in old]
        self.history.record(samples, now.epoch, self.every or ONE_BY_ONE)
        signs = {host: None if host in old else one.signed for host, one in cards.items()}
        self.events.record(signs, now.epoch, WITHIN if self.every else float("inf"))

    def write_fleet(self, cards: Mapping[str, Card], problems: Sequence[Problem], now: Now) -> None:
        """Write the files of the fleet that say something new."""
        self.site.fleet(cards, totals_of(cards), shown_of(problems, self.settings), now, self.took)

    def publish(  # noqa: PLR0913, PLR0917 all that was read and made
        self,
        hosts: list[Host],
        cards: dict[str, Card],
        rules: Rules,
        names: dict[str, str],
        problems: Sequence[Problem],
        now: Now,
    ) -> None:
        """Write what says something new: that of the fleet first, and what exists once a host after it."""
        site = self.site
        site.start()
        self.write_fleet(cards, problems, now)
        with site.catch(WASTE):
            self.wastes.write(site, now)
        site.calendar([calendar_of(host, cards[host.known.name]) for host in hosts], rules.people, now)
        with site.catch(FLEET_PAGE):
            self.fleet_page.write(site, rules.people, now)
        with site.catch(USERS_PAGE):
            self.users_page.write(site, cards, rules.people, now)
        self.host_pages.start(cards, patient=not self.every)
        pages: list[Page] = []
        for host in hosts:
            name = host.known.name
            with self.faults.catch(f"{WWW}hosts/{name}.html", clears=False):
                pages += self.host_pages.of(host, cards[name], rules, names, now)
        site.hosts(pages, cards, now, patient=not self.every)

    def tell(self, cards: Mapping[str, Card] | None, now: Now) -> None:
        """Have people told what is new, if that is for us to do; without cards, what waits."""
        if self.alerts:
            self.alerts.expires = not self.doubt
            self.alerts.look(cards, now, lambda: self.lead is None or self.lead.leads())

    def may_write(self, now: Now) -> bool:
        """Whether the site is ours: we lead, or wrote it last, or nobody did; a builder that is alone has it always."""
        if self.lead is None:
            return True
        led, self.leads = self.leads, self.lead.leads(0.0 if self.snapshots_saved else FIRST_WORD)
        if self.leads and not led and self.lead.word and self.lead.word.took:
            self.log.write(now.local, f"this builder leads now: {self.lead.word.took} has been silent")
        writer = published_files.writer_of(self.settings.www, now.epoch)
        if not self.leads and writer not in (None, self.lead.name):
            self.site.written, self.site.recalled = [], False  # another one writes, and leaves files of its own
            return False
        published_files.sign(self.settings.www, self.lead.name, now.epoch)
        return True

    def read(self, now: Now) -> tuple[list[Host], Rules, dict[str, str], list[Problem]]:
        """All that there is to know: hosts, by what to judge them, names of GPUs, and what is wrong."""
        copied: list[Problem] = []
        with self.faults.catch("Consul", "what it has could not be copied"):
            copied += self.mirror.copy() if self.mirror else []
            copied += self.lead.problems() if self.lead else []
        try:
            told, problems = self.snapshots.read()
        except OSError as error:
            message = f"{self.settings.data} cannot be read: {error.strerror}"
            raise Failed(message) from error
        aliases, gpu_names, more = self.names.read()
        problems += copied + more + protection.list_problems(self.settings.data)
        every_booking, more = self.bookings.read()
        problems += more
        by_name = {one.name: one for one in told}
        known, more = self.discovery.read(by_name)
        problems += more
        bookings, more = active_bookings.by_host(every_booking, known, now)
        problems += more
        shown = [name for name, one in known.items() if not one.hidden]
        lines = self.lines.of(shown, now.epoch, patient=not self.every)
        hosts = [
            Host(
                one,
                by_name.get(name),
                bookings.get(name, ()),
                self.memory.idle.get(name, NEVER),
                self.memory.kept.get(name, {}),
                lines.get(name, {}),
            )
            for name, one in sorted(known.items(), key=lambda item: natural(item[0]))
            if not one.hidden
        ]
        rules = Rules(self.settings.limits, People(aliases, self.memory.logins), self.settings.shown)
        return hosts, rules, gpu_names, problems

    def state_problems(self) -> list[Problem]:
        """Report files of state/ that were found empty or damaged, and could not be rebuilt."""
        memory = [Problem("state/memory.json", self.memory.problem)] if self.memory.problem else []
        return memory + check_tokens(self.settings.state)

    def learn(self, cards: dict[str, Card]) -> bool:
        """Remember what the next build cannot see for itself; whether there are logins that were not known."""
        known = len(self.memory.logins)
        for host, card in cards.items():
            with self.faults.catch(host, "what it tells could not be remembered"):
                self.learn_of(host, card)
        for remembered in (self.memory.kept, self.memory.paused):
            for gone in remembered.keys() - cards.keys():
                del remembered[gone]
        return len(self.memory.logins) > known

    def learn_of(self, host: str, card: Card) -> None:
        """The same of one host."""
        self.memory.learn(card.summary.logins)
        idle = card.summary.idle
        if idle and idle.since:
            self.memory.idle[host] = idle
        elif idle:
            self.memory.idle.pop(host, None)
        self.memory.keep(host, card.summary.kept)

    def forget(self) -> list[Path]:
        """Let go of the hosts that `gpuboard forget` named."""
        folder = self.settings.state / "forget"
        requests = list(folder.iterdir()) if folder.is_dir() else []
        for request in requests:
            self.snapshots.forget(request.name)
            if self.mirror:  # what the build before this one copied, while the entry was being deleted
                self.mirror.forget(request.name)
            self.memory.idle.pop(request.name, None)
            self.memory.kept.pop(request.name, None)
        return requests

    def note(self, problems: Sequence[Problem], now: Now) -> None:
        """Log which problems are new and which are over."""
        current = {f"{one.where}: {one.what}" for one in problems}
        for sentence in sorted(current - self.memory.problems):
            self.log.write(now.local, f"new: {sentence}")
        for sentence in sorted(self.memory.problems - current):
            self.log.write(now.local, f"over: {sentence}")
        self.memory.problems = current

    def save(self, forgotten: Sequence[Path], now: Now) -> Iterator[str]:
        """Keep what the next build needs; the site is written by then, so that a failure is no more than told."""
        if forgotten or now.epoch - self.snapshots_saved >= SAVE_EVERY:
            yield from self.kept(self.snapshots.save)
            self.snapshots_saved = now.epoch
        yield from self.kept(self.memory.save)
        yield from self.kept(self.site.published.save)
        for request in forgotten:
            yield from self.kept(lambda request=request: request.unlink(missing_ok=True))  # type: ignore[misc]

    def kept(self, work: Callable[[], object]) -> Iterator[str]:
        """Do something for the next build, or say why that is not possible."""
        try:
            work()
        except OSError as error:
            where = error.filename or self.settings.state
            yield f"{where} could not be written: {error.strerror}; the site is, but not what it remembers"
        except Exception as error:
            yield describe("what the builder remembers could not be written", error)

    def close(self) -> None:
        """Keep what was read and made for the next builder, which else does both again."""
        self.memory.took = self.took
        parts = (self.snapshots, self.cards, self.lines, self.memory, self.users_page)
        for part in parts:
            with suppress(Exception):
                part.save()
        self.history.close()
        if self.lead:
            self.lead.close()


def remove_executable_files(state: Path) -> None:
    """Delete, unread, what an older gpuboard kept in formats that can execute code; all of it is rebuilt."""
    with suppress(OSError):
        for name in (OLD_CARDS, OLD_SNAPSHOTS, OLD_SUMS):
            (state / name).unlink(missing_ok=True)
            (state / f".{name}.new").unlink(missing_ok=True)
        compiled = state / "templates"  # by Jinja
        if compiled.is_symlink():
            compiled.unlink()
        elif compiled.is_dir():
            rmtree(compiled)


def with_others(settings: Settings) -> tuple[Mirror | None, Lead | None]:
    """What a builder needs that reads from Consul's KV store, as others may do too."""
    if settings.kv is None:
        return None, None
    from site_builder.board.consul_mirror import Mirror  # noqa: PLC0415 few need it
    from site_builder.consul.leader import Lead  # noqa: PLC0415

    return Mirror(settings.data, settings.state, settings.kv), Lead(settings.state, settings.kv)


def alerts_of(settings: Settings, events: EventLog) -> Alerts | None:
    """What tells people, where there is a way to."""
    if not settings.alerts.wanted:
        return None
    from site_builder.alerts.engine import Alerts  # noqa: PLC0415 most have none

    return Alerts(settings, events)


def totals_of(cards: Mapping[str, Card]) -> dict[str, int]:
    """How many GPUs there are in each state."""
    return dict(sum((Counter(one.summary.states) for one in cards.values()), Counter()))


def calendar_of(host: Host, card: Card) -> calendar.Host:
    """What the calendar takes of a host."""
    return calendar.Host(host.known.name, tuple(host.bookings), card.summary.gpus)


def bounded(problems: list[Problem]) -> list[Problem]:
    """As many as a page can hold: whoever has more must begin somewhere."""
    if len(problems) <= MOST_PROBLEMS:
        return problems
    return [*problems[:MOST_PROBLEMS], Problem("data", f"and {len(problems) - MOST_PROBLEMS} more problems")]
