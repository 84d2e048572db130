"""A simulated week of a small lab: every alert that must come, and every near miss that must not."""

from __future__ import annotations

import pytest

from tests.support.alert_week import HOUR, Week, moment
from tests.support.board_fixture import Lab

RULES = """
[all]
quiet_hours = 23:00-07:00
[gpu-lost]
quiet_hours = none
[weekly-report]
on = yes
"""


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Week:
    """It is lived once, and each test looks at what was told."""
    lived = Week(Lab(tmp_path_factory.mktemp("week")), RULES)
    for name, count in {"atlas": 1, "boreas": 1, "cetus": 4, "delos": 4}.items():
        lived.host(name, count)
    hosts(lived)
    gpus(lived)
    bookings(lived)
    all_at_once(lived)
    lived.live("Mon+ 09:00")
    lived.builder.close()
    return lived


def hosts(week: Week) -> None:
    """What happens to hosts."""
    old = week.host("old", 1)
    old.push(week.now - 86400)
    old.up = False
    week.at("Wed 10:00", lambda: setattr(old, "up", True))
    week.at("Thu 10:30", lambda: setattr(old, "up", False))
    week.gpu("atlas:0", "Mon 13:00", "Mon 14:00", user="alice", use=90)
    week.down("atlas", "Mon 10:00", "Mon 10:09")  # a new start
    week.down("atlas", "Mon 14:00", "Mon 16:00")
    week.down("atlas", "Tue 02:00", "Tue 04:00")  # and nobody noticed
    week.down("atlas", "Wed 02:00", "Wed 09:00")
    for minute in (0, 12, 24, 36):  # one snapshot now and then
        week.down("boreas", f"Tue 13:{minute:02}", f"Tue 13:{minute + 11}")
    for minute in (0, 13, 26, 39):
        week.down("boreas", f"Thu 17:{minute:02}", f"Thu 17:{minute + 12}")
    week.silence("Sat 15:00", "atlas", 2 * HOUR)
    week.down("atlas", "Sat 15:01", "Sat 16:30")
    week.down("boreas", "Fri 09:00", "Fri 17:00")
    week.listed("Fri 08:00", "boreas, maintenance: new fans\n")
    week.listed("Fri 18:00", "")
    week.down("atlas", "Sun 01:00", "Sun 12:00")  # through the night that has an hour more
    for since, until in (("Tue 11:00", "Tue 11:04"), ("Tue 15:00", "Tue 15:30")):
        week.at(since, lambda: setattr(week.servers["cetus"], "fails", True))
        week.at(until, lambda: setattr(week.servers["cetus"], "fails", False))
    week.at("Fri 12:00", lambda: week.host("hydra", 1))


def gpus(week: Week) -> None:
    """What happens to GPUs."""
    week.gpu("cetus:1", "Wed 11:00", "Wed 15:00", lost=True)
    week.gpu("cetus:2", "Wed 11:00", "Wed 15:00", lost=True)
    week.gpu("cetus:3", "Wed 10:00", "Wed 12:00", user="bob", use=90)
    week.gpu("boreas:0", "Fri 10:00", lost=True)  # while it is open on the bench
    week.gpu("cetus:0", "Thu 13:00", "Thu 13:06", temperature=95)
    week.gpu("cetus:0", "Thu 15:00", "Thu 16:00", temperature=95)
    week.gpu("cetus:3", "Fri 10:00", uncorrected=2)
    week.gpu("cetus:3", "Fri 10:06", uncorrected=3)
    week.gpu("cetus:3", "Fri 11:00", corrected=40)
    week.gpu("delos:3", "Tue 19:00", "Wed 09:00", user="frank", use=0)
    week.gpu("delos:2", "Mon 11:00", "Mon 12:50", user="gina", use=0)  # and then she works
    week.gpu("delos:2", "Mon 12:50", "Mon 16:00", user="gina", use=80)


def bookings(week: Week) -> None:
    """What people are promised."""
    week.book("Mon 09:00", "alice", "delos:0,1", "Tue 10:00", "Tue 18:00")
    week.gpu("delos:0", "Tue 10:10", "Tue 18:30", user="alice", use=90)
    week.gpu("delos:1", "Tue 10:10", "Tue 18:30", user="alice", use=90)
    week.book("Mon 09:00", "bob", "delos:2", "Tue 12:00", "Tue 12:20")  # too short to stand unused
    week.book("Wed 09:00", "carol", "delos:0", "Wed 09:00", "Wed 13:00")  # from now on
    week.book("Wed 09:00", "alice", "delos:2", "Wed 14:00", "Wed 18:00")
    week.gpu("delos:2", "Wed 14:02", "Wed 14:30", user="alice", use=90)
    week.gpu("delos:2", "Wed 14:30", "Wed 15:30", user="bob", use=90)
    week.gpu("delos:2", "Wed 16:00", "Wed 16:03", user="bob", use=90)  # looked whether it runs there
    week.gpu("delos:2", "Wed 16:05", "Wed 18:00", user="alice", use=90)
    week.book("Thu 09:00", "frank", "delos:1", "Thu 23:30", "Fri 06:00")  # all of it at night
    week.book("Thu 09:00", "gina", "delos:3", "Thu 20:00", "Fri 08:00")
    week.gpu("delos:3", "Thu 20:05", "Fri 08:00", user="gina", use=90)
    week.watch("Thu 10:00", "dave", "1 gpu free on hydra")


def all_at_once(week: Week) -> None:
    """What a switch does that is broken, and a builder that is ended and begins again."""
    for name in ("atlas", "boreas", "cetus", "delos"):
        week.down(name, "Sat 12:00", "Sat 12:40")
    week.at("Thu 00:02", week.change_builder)
    week.at("Wed 14:10", week.change_builder)


TOLD = """
Mon 14:11  channel:lab   atlas is down
Mon 16:05  channel:lab   atlas is back, after 2 h 1 min
Tue 10:00  person:alice  alice: your booking of delos:0,1 has begun
Tue 12:00  person:bob    bob: your booking of delos:2 has begun
Tue 12:10  person:bob    bob: your booking of delos:2 ends at 12:20
Tue 15:05  channel:lab   cetus has failed
Tue 15:35  channel:lab   cetus works again, after 30 min
Tue 17:30  person:alice  alice: your booking of delos:0,1 ends at 18:00
Tue 21:10  person:frank  frank: you hold delos:3 idle
Wed 07:00  channel:lab   atlas is down
Wed 09:05  channel:lab   atlas is back, after 7 h 1 min
Wed 10:00  person:carol  carol: your booking of delos:0 is unused
Wed 11:02  channel:lab   2 GPUs of cetus are lost: 1, 2
Wed 12:30  person:carol  carol: your booking of delos:0 ends at 13:00
Wed 14:00  person:alice  alice: your booking of delos:2 has begun
Wed 14:35  person:alice  alice: your booking of delos:2 is in conflict
Wed 15:05  channel:lab   2 GPUs of cetus are back: 1, 2
Wed 15:45  person:alice  alice: your booking of delos:2 is no longer in conflict, after 1 h
Wed 17:30  person:alice  alice: your booking of delos:2 ends at 18:00
Thu 10:41  channel:lab   old is down
Thu 15:10  channel:lab   GPU 0 of cetus is too hot
Thu 16:15  channel:lab   GPU 0 of cetus has cooled down, after 1 h
Thu 17:11  channel:lab   boreas is down
Thu 17:56  channel:lab   boreas is back, after 52 min
Thu 20:00  person:gina   gina: your booking of delos:3 has begun
Fri 07:30  person:gina   gina: your booking of delos:3 ends at 08:00
Fri 10:00  channel:lab   GPU 3 of cetus has an error
Fri 12:00  channel:lab   hydra is new on the board
Fri 12:01  person:dave   dave: hydra:0 is free (A100 80 GB)
Fri 18:02  channel:lab   GPU 0 of boreas is lost
Sat 12:11  channel:lab   4 hosts are down: atlas, boreas, cetus, delos
Sat 12:45  channel:lab   4 hosts are back: atlas, boreas, cetus, delos
Sun 07:00  channel:lab   atlas is down
Sun 12:05  channel:lab   atlas is back, after 12 h 1 min
Mon+ 08:00 channel:lab   weekly report 2026-W43
"""
NEAR_MISSES = {
    "a host that was dead when alerts were set up is neither down": ("Mon 00:00", "Thu 10:40", "old is"),
    "a host that starts anew in ten minutes is not down": ("Mon 09:00", "Mon 13:59", "atlas"),
    "a GPU that stands still for less than two hours is not held": ("Mon 00:00", "Tue 00:00", "hold"),
    "a host that was down and back in the same night is no news": ("Tue 00:00", "Wed 06:59", "atlas"),
    "a host of which something is heard now and then is not down": ("Tue 00:00", "Thu 17:10", "boreas"),
    "an nvidia-smi that fails for four minutes is no failure": ("Tue 00:00", "Tue 15:04", "cetus"),
    "a booking of 20 minutes does not stand unused": ("Tue 00:00", "Tue 23:59", "unused"),
    "whoever books from now on is not told that it begins": ("Wed 00:00", "Wed 23:59", "delos:0 has begun"),
    "what is released by its end is not in use again": ("Wed 10:01", "Sun 23:59", "is used"),
    "who looks for three minutes breaks no booking": ("Wed 14:36", "Sun 23:59", "is in conflict"),
    "a GPU that is hot for six minutes is not hot": ("Thu 00:00", "Thu 15:09", "hot"),
    "a host that comes and goes is down once": ("Thu 17:12", "Thu 17:55", "boreas"),
    "a booking of the night is over before anybody may be told": ("Thu 00:00", "Sun 23:59", "frank"),
    "more errors of the same kind are no news": ("Fri 10:02", "Sun 23:59", "error"),
    "a host in maintenance is quiet": ("Fri 00:00", "Fri 18:01", "boreas"),
    "a host that is silenced is quiet": ("Sat 12:46", "Sun 06:59", "atlas"),
}


def told(week: Week) -> list[str]:
    """All that was told, in the form of the table."""
    return [f"{notification.at:10} {notification.to:13} {notification.title}" for notification in week.sent]


def test_a_week_reports_what_it_must_and_nothing_else(week: Week) -> None:
    assert told(week) == TOLD.strip().splitlines()


@pytest.mark.parametrize("promise", NEAR_MISSES)
def test_near_misses_raise_no_alert(week: Week, promise: str) -> None:
    since, until, word = NEAR_MISSES[promise]
    between = [notification for notification in week.sent if moment(since) <= moment(notification.at) <= moment(until)]
    assert [notification.title for notification in between if word in notification.title] == []


def test_alerts_name_affected_people(week: Week) -> None:
    affected = {notification.at: notification.notification.alerts[0].people for notification in week.sent}
    assert affected["Mon 14:11"] == ("alice",)  # who was on it when it was heard last
    assert affected["Wed 11:02"] == ("bob",)  # who is on another GPU of that host
    assert affected["Wed 14:35"] == ("alice", "bob")


def test_alerts_say_since_when_even_if_reported_later(week: Week) -> None:
    since = {notification.at: notification.notification.alerts[0].since for notification in week.sent}
    assert since["Wed 07:00"] == moment("Wed 01:59")
    assert since["Wed 14:35"] == moment("Wed 14:30")
    assert since["Fri 18:02"] == moment("Fri 18:00")  # since somebody could see it


def test_every_alert_of_a_host_links_its_page(week: Week) -> None:
    alerts = [alert for notification in week.sent for alert in notification.notification.alerts]
    assert {alert.link for alert in alerts} == {
        f"https://gpus.example.org/hosts/{alert.host}.html" if alert.host else None for alert in alerts
    }


def test_nothing_is_reported_twice_after_a_restart(week: Week) -> None:
    ids = [alert.id for notification in week.sent for alert in notification.notification.alerts]
    assert len(ids) == len(set(ids)) == 43


def test_conditions_left_at_the_end_still_exist(week: Week) -> None:
    assert week.builder.alert_engine
    book = week.builder.alert_engine.store.read()
    assert sorted(condition.condition.key for condition in book.conditions.values()) == [
        "gpu-lost boreas GPU-boreas-0",
        "host-down old ",
    ]
    assert (book.notifications, book.silences) == ((), {})
