"""users.html of www/: when it is due, and what it is made of. Once a minute, and no build waits for the past."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import date

from site_builder.board.host_pipeline import CODE, Card
from site_builder.board.site_writer import Site
from site_builder.config.settings import Settings
from site_builder.core.clock import Now
from site_builder.core.people import People
from site_builder.core.published_files import digest
from site_builder.history.gpu_minutes import Month, Place, Seen
from site_builder.history.reader import Past
from site_builder.history.rollups import Running, Shape
from site_builder.usage import people_page, recent, totals

PAGE = "users.html"
# Seconds after which it is written anew; a little less than a minute, or every other one would be missed.
EVERY = 55
# Seconds of a build that may go into adding up the past, where there is something to do.
WITHIN = 0.03
# The same of a builder that builds but once, and has nobody waiting for the next.
ALONE = 1.0
HOURS = (2, 24, 168)
MONTHS = 13
# Averages that are older are none: nobody has added up since.
OLD = 1800
OTHERS = "not on the board"


class UsersPage:
    """The page, and the sums behind it."""

    def __init__(self, settings: Settings, past: Past, patient: bool = False) -> None:
        """The sums of the last builder are taken up when they are needed."""
        self.settings = settings
        self.within = ALONE if patient else WITHIN
        self.past = past
        self.sums: Running | None = None

    def write(self, site: Site, cards: Mapping[str, Card], people: People, now: Now) -> None:
        """Write it, if its time has come."""
        # a host that is hidden, or gone, is not named for as long as a minute
        facts = digest(repr((CODE, site.version, self.settings.shown.users, str(now.zone), list(cards))).encode())
        due = not 0 <= now.epoch - site.when(PAGE) < EVERY or not site.published.says(PAGE, facts)
        if self.sums is None:
            self.sums = Running(self.past, HOURS, MONTHS, self.unseen)
        if due or not self.sums.done:
            self.sums.go_on(now.epoch, self.within)
        if due:
            site.write(PAGE, facts, self.page(self.sums, cards, people, site.version, now), now)

    def save(self) -> None:
        """Keep the sums for the next builder."""
        if self.sums:
            self.sums.save()

    def page(self, sums: Running, cards: Mapping[str, Card], people: People, version: str, now: Now) -> bytes:
        """What it says."""
        windows = [one for one in sums.kept.windows if 0 <= now.epoch - one.until < OLD]
        known = People(people.aliases, {*people.logins, *recent.names_in(windows)})
        told = ((host, one.summary.people.had, one.summary.people.standing) for host, one in cards.items())
        present = recent.present(told)
        trouble = f"{self.past.trouble.where}: {self.past.trouble.what}" if self.past.trouble else ""
        shown = self.settings.shown.users
        page = people_page.People(
            recent.lines(present, windows, known) if shown else [],
            recent.whole(present, windows),
            [recent.over(one) for one in windows],
            shown,
            trouble,
            sums.of_months(self.made_of(cards, people), lambda months: self.tables(months, cards, people)),
        )
        return people_page.page(page, version, now)

    def made_of(self, cards: Mapping[str, Card], people: People) -> bytes:
        """What tells one set of tables from another, beside the months themselves."""
        settings = self.settings
        names = (sorted(people.aliases.items()), sorted(people.logins), list(cards))
        facts = (CODE, settings.shown.users, str(settings.zone), settings.limits.held_after, names)
        return repr(facts).encode("utf-8", "replace")

    def tables(self, months: Sequence[Month], cards: Mapping[str, Card], people: People) -> str:
        """The GPU-hours, which change once an hour."""
        there = [one for one in months if one.seen]
        known = People(people.aliases, {*people.logins, *recent.names_in(there)})
        told = [told_of(one, known, cards) for one in there]
        settings = self.settings
        return people_page.tables(told, settings.shown.users, settings.limits.held_after, cards.keys(), settings.zone)

    def unseen(self, shapes: Iterable[Shape], first: date, until: int, seen: Mapping[Place, Seen]) -> dict[Place, int]:
        """The minutes of a month in which GPUs should have been seen and were not."""
        since = totals.midnight(first, self.past.zone)
        minutes = {place: one.seen for place, one in seen.items()}
        return totals.unseen(totals.stays(shapes), minutes, since, until)


def told_of(month: Month, people: People, hosts: Container[str]) -> people_page.Month:
    """A month in lines; hosts that are not on the board, since they are hidden or gone, are named no more."""
    persons = {name: totals.of_share(share) for name, share in month.shares.items()}
    places: dict[totals.Place, totals.Sums] = {}
    for (first, host, model), sums in totals.places_of(month).items():
        place = (first, host if host in hosts else OTHERS, model)
        places[place] = totals.together([places[place], sums]) if place in places else sums
    rows = {by: totals.usage(persons, places, people, by) for by in ("person", "model", "host")}
    return people_page.Month(month.first, month.since, month.until, rows["person"], rows["model"], rows["host"])
