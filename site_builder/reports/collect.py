"""The report of a week: what it is made of, all from history."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta

from site_builder.bookings.data_files import Names
from site_builder.config.settings import Settings
from site_builder.core.cached_file import KeptFile
from site_builder.core.people import People
from site_builder.core.timeparse import weeks
from site_builder.discovery import hosts_txt
from site_builder.health.model import Event
from site_builder.health.store import Events
from site_builder.history import rollups
from site_builder.history.export_rows import Called
from site_builder.history.reader import DAY, HOUR, Past, Tallies, step_for
from site_builder.reports import rules
from site_builder.reports.rules import DAYS, GpuSlot, GpuWeek, Told, WastedNow, Week
from site_builder.usage import totals, trends
from site_builder.usage.totals import Period, Stay
from site_builder.usage.trends import midnight
from site_builder.waste import parser as waste_parser

COLUMNS = ("busy", "held", "violated", "booked", "owner", "booker")
# Seconds of what is looked at at once, where it is kept so finely.
SLOT = 300
# What is wasted now is told in a report of a week that ended not longer ago.
FRESH = DAYS * DAY
# And only where the board was built in the last so many seconds.
OLD = HOUR
HIDDEN = "a hidden host"


class Unread(Exception):
    """Why history could not be read, in words."""


def hidden_in(settings: Settings) -> frozenset[str]:
    """The hosts that are to stand nowhere."""
    rows, _ = KeptFile(settings.data, None, "hosts.txt", hosts_txt.read).read()
    return frozenset(one.name for one in rows if one.hidden)


def gather(settings: Settings, past: Past, first: date, now: float) -> Week | None:
    """The report of the week that begins with this Monday; None where history has nothing of it."""
    zone = settings.zone
    tallies = tallies_of(past, first, now)
    if not tallies.seen:
        return None
    end = midnight(first + timedelta(days=DAYS), zone)
    until = min(end, now)
    back = first - timedelta(days=DAYS)
    earlier = tallies_of(past, back, now)
    names = {row.person for several in (tallies, earlier) for row in several.shares}
    people = People(Names(settings.data, None).read()[0], names)
    hours = rules.Hours(int(until - midnight(first, zone)) // 60, Called(people, names), settings.shown.users)
    hidden = hidden_in(settings)
    for gpu in gpus_of(past, midnight(first, zone), until, now):
        hours.add(gpu._replace(host=HIDDEN, index=None) if gpu.host in hidden else gpu)
    stays, begins = totals.stays(rollups.shapes(past)), rollups.first_day(past)
    period, earlier_period = (Period(one, one + timedelta(days=DAYS - 1), zone, now) for one in (first, back))
    found = Week(
        first,
        until,
        end <= now,
        zone,
        without(told(tallies, hours.most_at_once(zone), stays, people, period, begins), hidden),
        told(earlier, {}, stays, people, earlier_period, begins) if earlier.seen else None,
        trends.cells(hours.fleet, rules.days_from(first), zone),
        hours.waste(),
        waste_of(settings, now) if now - until < FRESH else (),
        [one for one in events_of(past, midnight(first, zone), until) if one.host not in hidden],
        settings.shown.users,
    )
    check(past)
    return found


def file_of(first: date) -> str:
    """The name of a report in www/."""
    return f"reports/{weeks.name(first)}.html"


def address(settings: Settings, first: date) -> str:
    """Where its page is, if there is one."""
    name = file_of(first)
    return f"{settings.url.rstrip('/')}/{name}" if settings.url and (settings.www / name).exists() else ""


def tallies_of(past: Past, first: date, now: float) -> Tallies:
    """What is added up of a week."""
    found = past.tallies(first, first + timedelta(days=DAYS - 1), now)
    check(past)
    return found


def check(past: Past) -> None:
    """Go on only where the file could be read."""
    if past.trouble:
        raise Unread(past.trouble.what)


def told(  # noqa: PLR0913, PLR0917 # each is one thing
    tallies: Tallies,
    most: Mapping[tuple[date, str], int],
    stays: Sequence[Stay],
    people: People,
    period: Period,
    begins: date | None,
) -> Told:
    """What history tells of a week."""
    named, places = totals.added(tallies.shares, tallies.seen, totals.unseen_in(stays, tallies.seen, period))
    persons, hosts = (totals.usage(named, places, people, by) for by in ("person", "host"))
    return rules.told(period, tallies.seen, most, persons, hosts, begins)


def without(one: Told, hidden: Container[str]) -> Told:
    """What is told, but for the names of these hosts; sums stay."""
    rows = tuple(row for row in one.hosts.rows if row.name not in hidden)
    return one._replace(hosts=one.hosts._replace(rows=rows))


def gpus_of(past: Past, since: float, until: float, now: float) -> Iterator[GpuWeek]:
    """Each GPU in the hours that begin in that time; in the finest slots, or waste would be told of who came next."""
    step = max(SLOT, step_for(since, now))
    for host in past.hosts():
        found = past.series(host, -(-since // HOUR) * HOUR, until, step, COLUMNS)
        check(past)
        for gpu in found.gpus:
            line, owners, bookers = gpu.line, gpu.people("owner"), gpu.people("booker")
            slots = [
                GpuSlot(
                    (found.since + place * step) // HOUR * HOUR,
                    minutes,
                    line["busy"][place] + line["held"][place] + line["violated"][place],
                    line["held"][place],
                    line["booked"][place],
                    owners[place],
                    bookers[place],
                )
                for place, minutes in enumerate(line["seen"])
                if minutes
            ]
            yield GpuWeek(host, gpu.series.index, gpu.series.model, slots)


def waste_of(settings: Settings, now: float) -> Sequence[WastedNow]:
    """What is wasted at the time of the report, as the board publishes it; what is old is not told.

    Nor is what was published when users were still shown: its sentences name them.
    """
    with suppress(OSError):
        found, _ = waste_parser.read((settings.www / "waste.json").read_bytes())
        if found and abs(now - found.built) < OLD and (settings.shown.users or not any(one.who for one in found.items)):
            return [
                WastedNow(one.host, one.index, one.who, one.hours, one.what, f"{one.do} {one.command}".strip())
                for one in found.items
            ]
    return ()


def events_of(past: Past, since: float, until: float) -> Sequence[Event]:
    """What happened to GPUs."""
    return Events(past).read(since, until)
