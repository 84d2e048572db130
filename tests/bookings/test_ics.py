"""Calendar feeds, read back by another program's parser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
import vobject
from dateutil import tz

from site_builder.board.builder import Builder, BuildReport
from site_builder.bookings.ics import EMPTY_FEED_RETENTION_S, build_ics_feed_path
from site_builder.core.clock import Now
from site_builder.core.model import Booking, PrivacySettings
from site_builder.core.people import PeopleDirectory
from site_builder.fleet import booking_use
from tests.support.board_fixture import Lab, gpu
from tests.support.browser import ROOT
from tests.support.generated_fleet import NOON, NOW, PARIS

DAY = 86400
FLEET = "bookings.ics"
LONG = "Lösung 🚀, " * 50
TEXTS = {
    "plain": "ICML run",
    "marks": r"a, b; c: d \n \, \; \\ end\\",
    "quotes": "\"quoted\" 'too' DTSTART:20260101 BEGIN:VEVENT",
    "emoji": "🚀🧪 👩‍🔬 Grüße",
    "bidi": "שלום עולם abc",
    "html": "<script>alert(1)</script> &amp;",
    "long": "x" * 500,
    "long emoji": LONG[:500].strip(),
}


class Read(NamedTuple):
    """An event as the other program understands it."""

    uid: str
    summary: str
    begins: datetime
    ends: datetime
    location: str
    description: str


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path)
    for host in ("atlas", "hydra"):
        lab.host(host, "".join(gpu(n, uuid=f"GPU-{host}-{n}") for n in range(4)))
    return lab


def build(lab: Lab, after: float = 0, **changes: object) -> BuildReport:
    """A build at noon of a Monday in Paris, or so many seconds later."""
    builder = Builder(lab.settings(**{"zone": PARIS, **changes}))
    report = builder.build(NOW + after)
    builder.close()
    return report


def at(days: float = 0, hours: float = 0) -> str:
    """A date in comments.json, from noon of that Monday on."""
    return (NOON.replace(tzinfo=None) + timedelta(days=days, hours=hours)).isoformat(" ")


def one(name: str = "alice", begins: float | None = 1, ends: float = 2, **extra_fields: object) -> dict[str, object]:
    """A booking, in days from that Monday on."""
    start = {} if begins is None else {"from": at(begins)}
    return {"name": name, "date": at(ends), **start, **extra_fields}


def calendar(lab: Lab, name: str = FLEET) -> Any:  # noqa: ANN401 of vobject
    return vobject.readOne((lab.www / name).read_bytes().decode())


def components(lab: Lab, name: str = FLEET) -> list[Any]:
    return list(calendar(lab, name).contents.get("vevent", []))


def events(lab: Lab, name: str = FLEET) -> dict[str, Read]:
    events_by_uid = {}
    for event in components(lab, name):
        description_text = event.description.value if "description" in event.contents else ""
        place = (event.dtstart.value, event.dtend.value, event.location.value, description_text)
        events_by_uid[event.uid.value] = Read(event.uid.value, event.summary.value, *place)
    assert len(events_by_uid) == len(components(lab, name))
    return events_by_uid


def summaries(lab: Lab, name: str = FLEET) -> list[str]:
    return [event.summary for event in events(lab, name).values()]


def feeds(lab: Lab) -> set[str]:
    return {str(path.relative_to(lab.www)) for path in lab.www.rglob("*.ics")}


def contents(lab: Lab) -> dict[str, tuple[bytes, int]]:
    return {name: ((lab.www / name).read_bytes(), (lab.www / name).stat().st_mtime_ns) for name in feeds(lab)}


# One event for each booking


def test_a_booking_of_several_gpus_is_one_event(lab: Lab) -> None:
    booking = one(comment="ICML run", id="icml")
    lab.book({"atlas": {"0": booking, "GPU-atlas-1": booking, "3": one("bob", id="other")}})
    build(lab)
    events_by_uid = events(lab)
    assert set(events_by_uid) == {"icml.atlas@gpuboard", "other.atlas@gpuboard"}
    event = events_by_uid["icml.atlas@gpuboard"]
    assert event.summary == "atlas:0,1 alice: ICML run"
    assert (event.begins, event.ends) == (NOON + timedelta(days=1), NOON + timedelta(days=2))
    assert (event.location, event.description) == ("atlas", "ICML run")


def test_a_whole_host_is_named_without_its_gpus(lab: Lab) -> None:
    lab.book({"atlas": {"*": one("admin", comment="new fans")}})
    build(lab)
    assert summaries(lab) == ["atlas admin: new fans"]


def test_who_booked_for_another_is_reported(lab: Lab) -> None:
    lab.book({"atlas": {"0": one(comment="ICML run", by="bob")}})
    build(lab)
    (event,) = events(lab).values()
    assert event.description == "ICML run\nBooked by bob"


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_any_text_comes_back_as_it_was_written(lab: Lab, text: str) -> None:
    name = text[:80].strip()
    lab.book({"atlas": {"0": one(name, comment=text)}})
    build(lab)
    (event,) = events(lab).values()
    assert event.description == text
    shown_text = text if len(text) <= 80 else f"{text[:79]}…"
    assert event.summary == f"atlas:0 {name}: {shown_text}"


def test_every_event_of_every_feed_comes_back_as_it_was_booked(lab: Lab) -> None:
    booked = {
        (host, str(number)): one(name, number, number + 1, comment=text, id=f"{host}-{number}")
        for host in ("atlas", "hydra")
        for number, (name, text) in enumerate(zip(("alice", "bob", "Zoë 🚀", "alice"), TEXTS.values()))
    }
    lab.book(
        {
            host: {gpu: booking for (at_host, gpu), booking in booked.items() if at_host == host}
            for host in ("atlas", "hydra")
        }
    )
    build(lab)
    expected = {
        f"{host}-{gpu}.{host}@gpuboard": Read(
            f"{host}-{gpu}.{host}@gpuboard",
            f"{host}:{gpu} {booking['name']}: {booking['comment']}",
            NOON + timedelta(days=int(gpu)),
            NOON + timedelta(days=int(gpu) + 1),
            host,
            str(booking["comment"]),
        )
        for (host, gpu), booking in booked.items()
    }
    assert events(lab) == expected
    for host in ("atlas", "hydra"):
        of_host = {uid: event for uid, event in expected.items() if event.location == host}
        assert events(lab, f"bookings/hosts/{host}.ics") == of_host
    for name in ("alice", "bob", "Zoë 🚀"):
        of_person = {uid: event for uid, event in expected.items() if f" {name}: " in event.summary}
        assert events(lab, build_ics_feed_path(name, PeopleDirectory({}))) == of_person


def test_the_form_is_that_of_the_standard(lab: Lab) -> None:
    lab.book({"atlas": {"0": one("Zoë", comment=LONG, rrule="FREQ=DAILY")}})
    build(lab)
    text = (lab.www / FLEET).read_bytes()
    assert text.endswith(b"END:VCALENDAR\r\n")
    assert text.count(b"\n") == text.count(b"\r\n") == text.count(b"\r")
    assert max(map(len, text.split(b"\r\n"))) <= 75
    for line in text.split(b"\r\n"):
        line.decode()  # no letter is torn in two
    whole = calendar(lab)
    assert whole.version.value == "2.0"
    assert whole.prodid.value.startswith("-//gpuboard//")
    assert whole.contents["x-wr-calname"][0].value == "GPU bookings"
    assert whole.contents["x-published-ttl"][0].value == "PT15M"
    assert b"REFRESH-INTERVAL;VALUE=DURATION:PT15M\r\n" in text
    (event,) = components(lab)
    assert event.transp.value == "TRANSPARENT"


def test_a_calendar_without_bookings_is_one_nevertheless(lab: Lab) -> None:
    build(lab)
    assert feeds(lab) == {FLEET}
    assert components(lab) == []


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        ("1970-01-01", "2200-12-31T10:59:59-12:00"),
        ("1970-01-02T00:00+14:00", "2026-11-20"),
        (None, "2200-12-31"),
        ("2199-01-01", "2200-12-31T22:59:59.999999+00:00"),
    ],
)
@pytest.mark.parametrize("rule", ["", "FREQ=YEARLY", "FREQ=YEARLY;UNTIL=22001231T000000Z", "FREQ=DAILY;COUNT=99999"])
def test_the_first_and_the_last_day_that_are_accepted_are_no_trouble(
    lab: Lab, begins: str | None, ends: str, rule: str
) -> None:
    start = {"from": begins, "rrule": rule} if begins else {}
    lab.book({"atlas": {"0": {"name": "alice", "date": ends, **start}}})
    build(lab)
    assert len(events(lab)) == 1
    assert "alice" in (lab.www / "bookings.html").read_text() or begins == "2199-01-01"


# Repeats


def expanded(event: Any, until: datetime) -> list[datetime]:  # noqa: ANN401 of vobject
    """When an event begins, as the other program works it out."""
    occurrences = []
    for begins in event.getrruleset(addRDate=True):
        moment = begins.replace(tzinfo=begins.tzinfo or event.dtstart.value.tzinfo)
        if moment > until:
            break
        occurrences.append(moment.astimezone(timezone.utc))
    return occurrences


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=DAILY",
        "FREQ=WEEKLY;BYDAY=MO,WE,FR",
        "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU",
        "FREQ=MONTHLY;BYMONTHDAY=1",
        "FREQ=WEEKLY;COUNT=3",
        "FREQ=DAILY;UNTIL=20261030T120000Z",
    ],
)
@pytest.mark.parametrize(
    "zone",
    [
        PARIS,
        *(
            pytest.param(zone, marks=pytest.mark.slow)
            for zone in (
                tz.gettz("Europe/Paris"),
                timezone.utc,
                timezone(timedelta(hours=5, minutes=30)),
                ZoneInfo("America/New_York"),
            )
        ),
    ],
    ids=["zoneinfo", "dateutil", "utc", "offset", "new-york"],
)
def test_repeats_are_those_of_the_board_also_when_the_clocks_change(lab: Lab, rule: str, zone: tzinfo) -> None:
    begins = datetime(2026, 10, 19, 23, 30, tzinfo=zone)  # six days before Paris puts its clocks back
    moment = begins.timestamp() + 3600
    lab.book(
        {
            "atlas": {
                "0": {
                    "name": "alice",
                    "from": str(begins)[:16],
                    "date": str(begins + timedelta(hours=2))[:16],
                    "rrule": rule,
                }
            }
        }
    )
    build(lab, moment - NOW, zone=zone)
    (event,) = components(lab)
    booking = Booking("atlas", "0", "alice", begins + timedelta(hours=2), begins, rrule=rule)
    last = begins + timedelta(days=14)
    board = [
        since
        for since, _ in booking_use.list_fleet_booking_times(booking, Now(moment, zone))
        if since and since <= last
    ]
    assert len(board) > (0 if "INTERVAL" in rule or "MONTHLY" in rule else 1)
    assert expanded(event, last) == [since.astimezone(timezone.utc) for since in board]


@pytest.mark.parametrize("zone", [PARIS, tz.gettz("Europe/Paris"), ZoneInfo("America/New_York")], ids=str)
@pytest.mark.parametrize("rule", ["FREQ=WEEKLY", "FREQ=DAILY;INTERVAL=5"])
def test_repeats_keep_their_hour_for_years_through_every_change_of_the_clocks(
    lab: Lab, rule: str, zone: tzinfo
) -> None:
    begins = datetime(2026, 10, 18, 9, 30, tzinfo=zone)  # a Sunday, as those on which clocks change
    times = {"from": str(begins)[:16], "date": str(begins + timedelta(hours=2))[:16]}
    lab.book({"atlas": {"0": {"name": "alice", "rrule": rule, **times}}})
    build(lab, begins.timestamp() - NOW, zone=zone)
    (event,) = components(lab)
    step = timedelta(days=7 if "WEEKLY" in rule else 5)
    number = timedelta(days=5 * 365) // step
    expected = [begins + step * turn for turn in range(number)]  # by the clock on the wall
    assert len({occurrence.utcoffset() for occurrence in expected[-52:]}) == 2
    assert expanded(event, expected[-1]) == [occurrence.astimezone(timezone.utc) for occurrence in expected]


@pytest.mark.parametrize(
    ("zone", "changes"),
    [
        (PARIS, 2),
        (tz.gettz("Europe/Paris"), 2),
        (ZoneInfo("America/New_York"), 2),
        (ZoneInfo("Australia/Lord_Howe"), 2),
        (ZoneInfo("Europe/Dublin"), 2),
        (ZoneInfo("Asia/Kolkata"), 0),
    ],
    ids=str,
)
def test_the_clocks_change_when_they_do_by_the_time_before_the_change(lab: Lab, zone: tzinfo, changes: int) -> None:
    """By RFC 5545, 3.6.5: each onset is told in the local time before it, TZOFFSETFROM."""
    lab.book({"atlas": {"0": one(rrule="FREQ=DAILY")}})
    build(lab, zone=zone)
    text = (lab.www / FLEET).read_bytes().decode().replace("\r\n ", "")
    onsets = set()
    for part in re.findall(r"BEGIN:(?:STANDARD|DAYLIGHT)\r\n(.*?)END:", text, re.DOTALL):
        properties = dict(line.partition(":")[::2] for line in part.split("\r\n"))
        before, after = (datetime.strptime(properties[f"TZOFFSET{end}"], "%z").utcoffset() for end in ("FROM", "TO"))
        assert before is not None
        for onset in re.findall(r"(?:DTSTART|RDATE):(\w+)\r\n", part):
            moment = (datetime.strptime(onset, "%Y%m%dT%H%M%S") - before).replace(tzinfo=timezone.utc)
            if before != after:
                sides = [(moment - timedelta(seconds=back)).astimezone(zone).utcoffset() for back in (1, 0)]
                assert sides == [before, after], onset
                onsets.add(moment)
    years = [moment.year for moment in onsets]
    assert [years.count(year) for year in range(2026, 2038)] == [changes] * 12


def test_the_end_of_repeats_is_written_in_utc(lab: Lab) -> None:
    lab.book({"atlas": {"0": one(rrule="FREQ=DAILY;UNTIL=20261130")}})
    build(lab)
    (event,) = components(lab)
    assert event.rrule.value == "FREQ=DAILY;UNTIL=20261130T225959Z"


def test_repeats_begin_with_the_first_that_the_rule_gives(lab: Lab) -> None:
    lab.book({"atlas": {"0": one(begins=1, ends=1.1, rrule="FREQ=WEEKLY;BYDAY=FR")}})  # from a Tuesday on
    build(lab)
    (event,) = components(lab)
    assert expanded(event, NOON + timedelta(days=12)) == [NOON + timedelta(days=4), NOON + timedelta(days=11)]


def test_repeats_that_are_over_vanish_two_days_after_the_last(lab: Lab) -> None:
    lab.book({"atlas": {"0": one(begins=0, ends=0.25, rrule="FREQ=DAILY;COUNT=3")}})
    build(lab, 4.2 * DAY)
    assert len(components(lab)) == 1
    build(lab, 4.3 * DAY)
    assert components(lab) == []


# What changes, and what stays


@pytest.fixture
def booked(lab: Lab) -> Lab:
    booking = one(id="icml", comment="ICML run")
    lab.book({"atlas": {"0": booking, "1": booking}, "hydra": {"2": one("bob", None, 5, id="bob")}})
    build(lab)
    return lab


def test_there_is_a_feed_for_the_fleet_and_each_host_and_person(booked: Lab) -> None:
    assert feeds(booked) == {
        FLEET,
        "bookings/hosts/atlas.ics",
        "bookings/hosts/hydra.ics",
        "bookings/people/alice.ics",
        "bookings/people/bob.ics",
    }


def test_what_says_the_same_is_not_written_again(booked: Lab) -> None:
    before = contents(booked)
    for days in (0.001, 0.1, 1.2, 2.7):
        build(booked, days * DAY)
        assert contents(booked) == before


@pytest.mark.slow
def test_a_build_that_writes_no_feed_does_not_load_the_library(booked: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, site_builder.board.builder; print('icalendar' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    monkeypatch.setitem(sys.modules, "icalendar", None)  # which makes its import fail
    assert "bookings.ics" not in build(booked, 1).written_files


def test_an_event_that_changes_keeps_its_name_and_gets_a_new_stamp(booked: Lab) -> None:
    before = {event.uid.value: event.dtstamp.value for event in components(booked)}
    assert set(before.values()) == {datetime.fromtimestamp(NOW, timezone.utc)}
    booked.book({"atlas": {"0": one(ends=3, id="icml")}, "hydra": {"2": one("bob", None, 5, id="bob")}})
    build(booked, 600)
    after = {event.uid.value: event.dtstamp.value for event in components(booked)}
    assert after["bob.hydra@gpuboard"] == before["bob.hydra@gpuboard"]
    assert after["icml.atlas@gpuboard"] == before["icml.atlas@gpuboard"] + timedelta(seconds=600)
    assert events(booked)["icml.atlas@gpuboard"].ends == NOON + timedelta(days=3)


def test_what_has_no_start_begins_on_the_day_that_it_was_first_seen(booked: Lab) -> None:
    midnight = NOON.replace(hour=0)
    assert events(booked)["bob.hydra@gpuboard"].begins == midnight
    booked.book({"hydra": {"2": one("bob", None, 6, id="bob", comment="longer")}})
    build(booked, 2 * DAY)
    assert events(booked)["bob.hydra@gpuboard"].begins == midnight


def test_what_was_over_when_it_was_first_seen_begins_on_the_day_of_its_end(lab: Lab) -> None:
    lab.book({"hydra": {"2": {"name": "bob", "date": "2026-11-16 00:00"}}})
    build(lab)
    (event,) = events(lab).values()
    assert event.begins == NOON.replace(hour=0) - timedelta(days=1)


def test_an_ended_booking_stays_for_two_days(booked: Lab) -> None:
    build(booked, 3.99 * DAY)
    assert len(summaries(booked)) == 2
    build(booked, 4 * DAY)
    assert summaries(booked) == ["hydra:2 bob"]


def test_a_released_booking_vanishes_at_once(booked: Lab) -> None:
    booked.book({"hydra": {"2": one("bob", None, 5, id="bob")}})
    build(booked, 20)
    assert summaries(booked) == ["hydra:2 bob"]


def test_a_feed_that_lost_its_last_booking_stays_for_its_subscribers(booked: Lab) -> None:
    before = feeds(booked)
    booked.book({})
    build(booked, 20)
    assert feeds(booked) == before
    assert [components(booked, name) for name in before] == [[]] * len(before)
    written = contents(booked)
    build(booked, EMPTY_FEED_RETENTION_S)
    assert contents(booked) == written
    build(booked, EMPTY_FEED_RETENTION_S + 100)
    assert feeds(booked) == {FLEET}


def test_the_feed_of_a_host_that_leaves_the_board_goes(booked: Lab) -> None:
    (booked.data / "hosts.txt").write_text("atlas, hidden\n")
    build(booked, 20)
    assert "bookings/hosts/atlas.ics" not in feeds(booked)
    assert summaries(booked) == ["hydra:2 bob"]


def test_a_feed_that_somebody_damaged_is_written_again(booked: Lab) -> None:
    (booked.www / "bookings/people/alice.ics").write_text("oops")
    (booked.www / FLEET).unlink()
    build(booked, 20)
    assert summaries(booked, "bookings/people/alice.ics") == ["atlas:0,1 alice: ICML run"]
    assert len(summaries(booked)) == 2


def test_a_builder_that_forgot_everything_writes_the_same_bookings(booked: Lab) -> None:
    before = events(booked)
    for path in booked.state.glob("*.json"):
        if path.name != "comments.json":
            path.write_text('{"a": 1}')
    build(booked, 20)
    assert events(booked) == before


# People


NAMES = [
    "alice", "ALICE B", "alice b.", "alice/b", "../alice", ".alice", "alice?", "alice#1", "Zoë", "zoe", "zo", "שלום",
    "🚀", "CON", "a" * 63, "a" * 64, "a" * 80, "-", "~", "x-0123456789abcdef", "alice%2fb", "alice b",
]  # fmt: skip


def test_two_people_never_share_a_feed() -> None:
    people = PeopleDirectory({})
    made = [build_ics_feed_path(name, people) for name in NAMES]
    again = [build_ics_feed_path(path.rpartition("/")[2][: -len(".ics")], people) for path in made]
    assert len({people.resolve_person(name) for name in NAMES}) == len(set(made))
    assert [path for path in made if path.count("/") != 2 or not path.isascii() or "/." in path] == []
    lossy = [(a, b) for a, b, name in zip(made, again, NAMES) if a == b and a != f"bookings/people/{name}.ics"]
    assert lossy == [("bookings/people/con.ics", "bookings/people/con.ics")]


def test_the_names_of_one_person_share_a_feed(lab: Lab) -> None:
    (lab.data / "aliases.csv").write_text("carol, caro, Carol D.\n")
    lab.book({"atlas": {"0": one("carol"), "1": one("Caro", 3, 4), "2": one("carol d.", 5, 6)}})
    build(lab)
    (name,) = feeds(lab) - {FLEET, "bookings/hosts/atlas.ics"}
    assert len(events(lab, name)) == 3


def test_where_users_are_not_shown_no_feed_names_them(booked: Lab) -> None:
    build(booked, 20, privacy=PrivacySettings(users=False))
    assert feeds(booked) == {FLEET, "bookings/hosts/atlas.ics", "bookings/hosts/hydra.ics"}
    texts = [(booked.www / name).read_text() for name in feeds(booked)]
    assert [word for word in ("alice", "bob", "ICML", "icml") for text in texts if word in text] == []
    assert summaries(booked) == ["atlas:0,1 booked", "hydra:2 booked"]


def test_where_users_are_not_shown_an_event_keeps_its_name_while_its_booking_changes(booked: Lab) -> None:
    hidden = PrivacySettings(users=False)
    build(booked, 20, privacy=hidden)
    before = set(events(booked))
    booking = one(ends=4, id="icml", comment="longer")
    booked.book({"atlas": {"0": booking}, "hydra": {"2": one("carol", None, 6, id="bob")}})
    build(booked, 40, privacy=hidden)
    assert set(events(booked)) == before
    assert len(before) == 2


def test_where_users_are_hidden_no_event_id_reveals_who_booked(lab: Lab) -> None:
    uids: list[str] = []
    for name in ("alice", "bob"):  # whose entries have no id but one that is made of what they say
        lab.book({"atlas": {"0": one(name)}})
        build(lab, privacy=PrivacySettings(users=False))
        uids += events(lab)
    assert uids[0] == uids[1]


# Many


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "crowd")
    for n in range(100):
        lab.host(f"gpu{n}", gpu(uuid=f"GPU-{n}"))
    lab.book({f"gpu{n}": {"0": [one(f"user{n}-{k}", k, k + 1) for k in range(3)]} for n in range(100)})
    yield lab


@pytest.mark.slow
def test_only_who_has_bookings_has_a_feed_and_one_change_writes_few(crowd: Lab) -> None:
    build(crowd)
    assert len(feeds(crowd)) == 1 + 100 + 300
    bookings = json.loads((crowd.data / "comments.json").read_text())
    bookings["gpu7"]["0"][0]["comment"] = "changed"
    crowd.book(bookings)
    written = {name for name in build(crowd, 20).written_files if name.endswith(".ics")}
    assert written == {FLEET, "bookings/hosts/gpu7.ics", "bookings/people/user7-0.ics"}


@pytest.mark.slow
@pytest.mark.parametrize("zone", [tz.tzlocal(), tz.gettz("Europe/Paris"), tz.tzstr("CET-1CEST,M3.5.0,M10.5.0/3")])
def test_what_repeats_is_no_obstacle_in_any_kind_of_zone(lab: Lab, zone: tzinfo) -> None:
    series = {"name": "alice", "from": "2026-11-03 09:00", "date": "2026-11-03 12:00", "rrule": "FREQ=WEEKLY"}
    lab.book({"atlas": [series]})
    lab.build(zone=zone)
    assert "RRULE:FREQ=WEEKLY" in (lab.www / FLEET).read_text()
