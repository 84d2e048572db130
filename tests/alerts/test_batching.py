"""Who gets a letter, and when: receivers, quiet hours, and at most so many letters an hour."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from site_builder.alerts.config_files import DEFAULT_RULES
from site_builder.alerts.model import STEP_BEGUN, STEP_HAPPENED, STEP_OVER, AlertState, Condition, Notification
from site_builder.alerts.queue import (
    MAX_ALERTS_PER_NOTIFICATION,
    MAX_QUEUED,
    MAX_QUEUED_PER_HOOK,
    AlertContext,
    NotificationBuilder,
)
from site_builder.alerts.queue import MAX_PEOPLE_PER_HOST as MOST_OF_HOST_TOLD
from site_builder.alerts.render import format_headline
from site_builder.core.clock import Now
from tests.support.alert_fixtures import (
    AT_ONCE,
    FRESH,
    HELD,
    HOUR,
    LOST,
    MINUTE,
    NIGHT,
    START,
    Desk,
    begins,
    down,
    ends,
    ruled,
)
from tests.support.generated_fleet import PARIS

# Clocks that are set


@pytest.mark.parametrize("back", [60, 20 * HOUR, 24 * HOUR, 400 * 24 * HOUR])
def test_a_clock_that_is_set_back_keeps_no_letter_for_longer_than_was_meant(back: int) -> None:
    letter = Notification("1-1", "channel:lab", (), created_at=int(START), due_at=int(START) + 30)
    found = NotificationBuilder(
        AlertState(notifications=(letter,)), AlertContext(FRESH, PARIS), Now(START - back, PARIS)
    )
    assert [0 <= one.due_at - found.now_s <= 30 for one in found.notifications] == [True]


# To whom


def test_each_rule_goes_to_whom_it_names() -> None:
    rules = {**AT_ONCE, "gpu-lost": AT_ONCE["gpu-lost"]._replace(to=("ops",))}
    desk = Desk(rules, channels=("lab", "ops"), hooks=("page",))
    got = Counter(letter.to for letter in desk.look(down(), LOST, HELD))
    assert got == {"channel:lab": 1, "channel:ops": 2, "hook:page": 2, "person:alice": 1}


def test_several_at_once_are_one_letter_and_hooks_get_each_alone() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(5)}
    desk = Desk(hosts=hosts, hooks=("page",))
    letters = desk.look(*(down(host) for host in hosts))
    assert [len(one.alerts) for one in letters if one.to == "channel:lab"] == [5]
    assert [len(one.alerts) for one in letters if one.to == "hook:page"] == [1] * 5
    assert format_headline(letters[0].alerts) == "5 hosts are down: gpu0, gpu1, gpu2, gpu3, gpu4"


def test_hosts_that_go_one_after_the_other_are_one_letter_and_one_alone_does_not_wait() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(6)}
    desk = Desk(ruled(delay=2 * MINUTE, resolve_after=5 * MINUTE), hosts=hosts)
    several = [down(name) for name in hosts]
    for count in range(1, 7):  # within a minute
        desk.look(*several[:count], after=10)
    first = desk.at - 50
    while not desk.sent:
        desk.look(*several, after=10)
    assert (len(desk.alerts), desk.at - first) == (6, 170)
    for count in range(1, 7):
        desk.look(*several[count:], after=10)
    for _ in range(40):
        desk.look(after=10)
    assert [len(letter.alerts) for letter in desk.sent] == [6, 6]
    desk.look(several[0])
    assert len(desk.titles(several[0], after=2 * MINUTE)) == 1


def test_a_thousand_at_once_are_one_letter_that_has_room_for_some() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(1000)}
    desk = Desk(hosts=hosts, hooks=("page",))
    letter, *for_hooks = desk.look(*(down(host) for host in hosts))
    assert (len(letter.alerts), letter.omitted_count) == (
        MAX_ALERTS_PER_NOTIFICATION,
        1000 - MAX_ALERTS_PER_NOTIFICATION,
    )
    assert (
        format_headline(letter.alerts, letter.omitted_count)
        == "1000 hosts are down: gpu0, gpu1, gpu2, gpu3 and 996 more"
    )
    assert len(for_hooks) == MAX_QUEUED_PER_HOOK


def test_whoever_is_not_shown_is_named_to_nobody_but_themselves() -> None:
    desk = Desk(ruled("gpu-held", to=("all", "person")), users_shown=False)
    channel, own = desk.look(HELD)
    assert (channel.alerts[0].title, channel.alerts[0].people) == ("atlas:0 is held idle", ())
    assert (own.alerts[0].title, own.alerts[0].people) == ("alice: you hold atlas:0 idle", ("alice",))


def test_whoever_cannot_be_reached_gets_no_letter_unless_they_asked_for_one() -> None:
    desk = Desk(ruled("gpu-held", to=("all", "person")), can_reach={"bob"}.__contains__)
    watch = Condition("watch", "", "w1", (), "atlas:0 is free", owners=("alice",), is_lasting=False)
    letters = desk.look(HELD._replace(owners=("alice", "bob")), watch)
    assert [(one.to, one.alerts[0].rule) for one in letters] == [
        ("channel:lab", "gpu-held"),
        ("person:bob", "gpu-held"),
        ("person:alice", "watch"),
    ]


def test_a_host_that_names_any_number_of_people_has_few_of_them_told() -> None:
    several = [
        HELD._replace(about=f"GPU-{gpu}", owners=tuple(f"user{gpu}-{number}" for number in range(8)))
        for gpu in range(99)
    ]
    desk = Desk(hosts={**FRESH, **{f"gpu{number}": ("fresh", 4) for number in range(99)}}, channels=())
    assert len(desk.look(*several)) == MOST_OF_HOST_TOLD
    desk.look(*(one._replace(host=f"gpu{number}") for number in range(99) for one in several[number:]))
    assert len(desk.sent) <= MOST_OF_HOST_TOLD + MAX_QUEUED


def test_an_alert_says_since_when_and_links_the_page_of_its_host() -> None:
    desk = Desk(url="https://gpus.example.org/")
    (letter,) = desk.look(down(people=("alice",)))
    (told,) = letter.alerts
    assert (told.step, told.since, told.people) == (STEP_BEGUN, START - 600, ("alice",))
    assert told.link == "https://gpus.example.org/hosts/atlas.html"
    (letter,) = desk.look(after=2 * HOUR)
    (told,) = letter.alerts
    assert (told.step, told.since, told.until, told.people) == (STEP_OVER, START - 600, desk.at, ("alice",))


# Quiet hours, and at most so many an hour


def night() -> Desk:
    """It is 23:00, and nothing is sent until 7:00."""
    desk = Desk(ruled(quiet_hours=NIGHT))
    desk.look(after=11 * HOUR)
    return desk


def test_a_night_in_which_more_goes_and_comes_back_than_a_letter_has_room_for_is_no_news() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(MAX_ALERTS_PER_NOTIFICATION + 50)}
    desk = Desk(ruled(quiet_hours=NIGHT), hosts={**hosts, "atlas": ("fresh", 4)})
    assert desk.titles(down()) == ["atlas is down"]
    desk.look(down(), *map(down, hosts), after=11 * HOUR)
    (letter,) = desk.book.notifications
    assert (len(letter.alerts), letter.omitted_count) == (MAX_ALERTS_PER_NOTIFICATION, 50)
    desk.look(down(), *map(down, list(hosts)[:50]))
    (letter,) = desk.book.notifications
    assert len(letter.alerts) + letter.omitted_count == 50
    assert {one.step for one in letter.alerts} == {STEP_BEGUN}
    desk.look()
    (letter,) = desk.book.notifications
    assert [(one.host, one.step) for one in letter.alerts] == [("atlas", STEP_OVER)]


def test_in_quiet_hours_a_letter_waits_for_their_end() -> None:
    desk = night()
    assert desk.titles(down()) == []
    assert desk.titles(down(), down("boreas"), after=HOUR) == []
    (letter,) = desk.look(down(), down("boreas"), after=7 * HOUR)
    assert [one.title for one in letter.alerts] == ["atlas is down", "boreas is down"]
    assert Now(letter.due_at, PARIS).local.strftime("%a %H:%M") == "Tue 07:00"


def test_what_could_not_be_sent_before_the_night_wakes_nobody() -> None:
    desk = Desk(ruled(quiet_hours=NIGHT), hooks=("page",))
    failed = [one._replace(tries=3, due_at=desk.at + HOUR) for one in desk.look(down(), after=9 * HOUR)]
    assert [one.to for one in failed] == ["channel:lab", "hook:page"]
    desk.book = desk.book._replace(notifications=tuple(failed))
    desk.look(down(), after=HOUR + 30 * MINUTE)
    (letter,) = desk.book.notifications
    assert Now(letter.due_at, PARIS).local.strftime("%a %H:%M") == "Tue 07:00"
    assert desk.sent[-1].to == "hook:page"
    same = desk.book
    desk.look(down())
    assert desk.book == same
    desk.rules |= AT_ONCE
    assert desk.look(down(), after=9 * HOUR)[0].id == letter.id


def test_the_report_of_a_week_is_a_letter_of_its_own() -> None:
    report = Condition("weekly-report", about="2026-W46", is_lasting=False)
    for looks in ([(down(),), (down(), report)], [(report,), (report, down())]):
        desk = night()
        desk.rules["weekly-report"] = desk.rules["weekly-report"]._replace(on=True, quiet_hours=NIGHT)
        for matters in looks:
            assert desk.look(*matters) == []
        rules = sorted(tuple(one.rule for one in letter.alerts) for letter in desk.book.notifications)
        assert rules == [("host-down",), ("weekly-report",)]


def test_what_is_over_by_the_end_of_quiet_hours_is_not_told_at_all() -> None:
    desk = night()
    desk.look(down(), down("boreas"))
    desk.look(down("boreas"), after=HOUR)
    (letter,) = desk.look(down("boreas"), after=8 * HOUR)
    assert [one.title for one in letter.alerts] == ["boreas is down"]
    assert desk.look() != []
    assert [one.title for one in desk.alerts if one.host == "atlas"] == []


def test_what_is_over_for_a_moment_of_the_night_is_neither_back_nor_down_again() -> None:
    desk = Desk(ruled(quiet_hours=NIGHT))
    assert desk.titles(down()) == ["atlas is down"]
    desk.look(down(), after=11 * HOUR)
    assert desk.titles() == desk.titles(down()) == []
    assert desk.titles(down(), after=9 * HOUR) == []
    assert len(desk.titles()) == 1


def test_a_booking_that_is_over_by_the_end_of_quiet_hours_is_no_news() -> None:
    desk = Desk(ruled("booking-ends", quiet_hours=NIGHT))
    late = ends(START + 11 * HOUR + 30 * MINUTE)
    assert desk.titles(late, after=11 * HOUR + 10 * MINUTE) == []
    assert not desk.book.notifications


@pytest.mark.parametrize(
    ("quiet", "at", "until"),
    [
        ((22 * 60, 7 * 60), "21:59", None),
        ((22 * 60, 7 * 60), "22:00", "Tue 07:00"),
        ((22 * 60, 7 * 60), "06:59", "Mon 07:00"),
        ((22 * 60, 7 * 60), "07:00", None),
        ((12 * 60, 13 * 60 + 30), "12:15", "Mon 13:30"),
    ],
)
def test_quiet_hours_are_those_of_the_day_as_people_read_it(quiet: tuple[int, int], at: str, until: str | None) -> None:
    desk = Desk(ruled(quiet_hours=quiet))
    hour, minute = at.split(":")
    desk.at = int(Now(START, PARIS).local.replace(hour=int(hour), minute=int(minute)).timestamp()) - MINUTE
    told = desk.look(down())
    (letter,) = told or desk.book.notifications
    assert bool(told) == (until is None)
    assert until is None or Now(letter.due_at, PARIS).local.strftime("%a %H:%M") == until


def test_what_is_more_than_the_hour_allows_is_gathered_into_one_letter() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(30)}
    desk = Desk(ruled(max_per_hour=3), hosts=hosts)
    bad: list[Condition] = []
    for host in hosts:
        bad.append(down(host))
        desk.look(*bad)
    assert [len(one.alerts) for one in desk.sent] == [1, 1, 1]
    letters = [letter for _ in range(90) for letter in desk.look(*bad)]
    assert [len(one.alerts) for one in letters] == [27]
    assert letters[0].due_at - desk.sent[0].due_at == HOUR


def test_what_the_hour_has_no_room_for_is_not_told_at_night() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(3)}
    desk = Desk(
        ruled(quiet_hours=NIGHT, max_per_hour=1) | {"gpu-lost": AT_ONCE["gpu-lost"]._replace(max_per_hour=1)},
        hosts=hosts,
    )
    assert len(desk.look(down("gpu0"), after=9 * HOUR + 30 * MINUTE)) == 1
    for several in ((down("gpu0"), down("gpu1")), (LOST._replace(host="gpu2"), down("gpu0"), down("gpu1"))):
        assert desk.look(*several, after=10 * MINUTE) == []
    told = {Now(one.due_at, PARIS).local.strftime("%a %H:%M"): one.alerts[0].rule for one in desk.book.notifications}
    assert told == {"Tue 07:00": "host-down", "Mon 22:30": "gpu-lost"}


def test_one_receiver_does_not_use_up_the_hour_of_another() -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(6)}
    desk = Desk(ruled("gpu-held", max_per_hour=1), hosts=hosts)
    for user in ("alice", "bob", "carol"):
        several = [HELD._replace(host=host, owners=(user,)) for host in list(hosts)[:2]]
        assert [letter.to for letter in desk.look(*several)] == [f"person:{user}"]
        desk.look()


# Whatever happens


MATTERS = [
    down(),
    down("boreas"),
    LOST,
    HELD,
    begins(START + 2 * HOUR),
    ends(START + 3 * HOUR),
    Condition("gpu-error", "boreas", "GPU-1 uncorrected", ("1",), is_lasting=False),
    Condition("watch", "", "w", is_lasting=False, owners=("bob",)),
]
LOOKS = st.lists(
    st.tuples(
        st.integers(-2 * HOUR, 12 * HOUR) | st.integers(0, 10 * MINUTE),
        st.sets(st.sampled_from(range(len(MATTERS)))),
        st.sampled_from(["fresh", "fresh", "fresh", "stale", "down", "maintenance"]),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=150)
@given(looks=LOOKS, quiet=st.sampled_from([None, NIGHT, (0, 1439)]), most=st.integers(1, 4), begun=st.booleans())
def test_whatever_happens_nothing_is_told_twice_and_no_end_without_a_beginning(
    looks: list[tuple[int, set[int], str]], quiet: tuple[int, int] | None, most: int, begun: bool
) -> None:
    rules = {
        name: rule._replace(
            on=True, quiet_hours=quiet, max_per_hour=most, send_resolved=True, to=("all", "person", "hooks")
        )
        for name, rule in DEFAULT_RULES.items()
    }
    desk = Desk(rules, begun=begun, hooks=("page",))
    for after, which, state in looks:
        desk.state("atlas", state)
        before = desk.book
        for letter in desk.look(*(MATTERS[one] for one in sorted(which)), after=after):
            due = Now(letter.due_at, PARIS).local
            at_night = is_quiet(quiet, due.hour * 60 + due.minute)
            set_back = desk.at < letter.created_at  # by hours perhaps, and then it waits no longer
            assert letter.to.startswith("hook:") or not at_night or set_back
        assert before.started_at in (None, desk.book.started_at)
    for to in {letter.to for letter in desk.sent}:
        letters = [letter for letter in desk.sent if letter.to == to]
        ids = [one.id for letter in letters for one in letter.alerts]
        assert len(ids) == len(set(ids))
        told: dict[str, list[str]] = {}
        for letter in letters:
            for one in letter.alerts:
                told.setdefault(f"{one.rule} {one.host} {one.about}", []).append(one.step)
        for steps in told.values():
            # begun and over take turns, begun first; what happened stands for itself
            assert (
                steps == [STEP_HAPPENED] * len(steps) or steps == ([STEP_BEGUN, STEP_OVER] * len(steps))[: len(steps)]
            )
    names = [letter.id for letter in desk.sent]
    assert len(names) == len(set(names))


def is_quiet(quiet: tuple[int, int] | None, minute: int) -> bool:
    if quiet is None:
        return False
    begin, end = quiet
    return begin <= minute < end if begin < end else minute >= begin or minute < end


@settings(deadline=None, max_examples=100)
@given(looks=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 29)), max_size=60), most=st.integers(1, 5))
def test_nobody_gets_more_letters_an_hour_than_the_rule_allows(looks: list[tuple[int, int]], most: int) -> None:
    hosts = {f"gpu{number}": ("fresh", 4) for number in range(30)}
    desk = Desk(ruled(max_per_hour=most), hosts=hosts)
    so: set[int] = set()
    for after, which in looks:
        so ^= {which}
        desk.look(*(down(f"gpu{one}") for one in sorted(so)), after=after)
    desk.look(*(down(f"gpu{one}") for one in sorted(so)), after=2 * HOUR)
    times = sorted(letter.due_at for letter in desk.sent)
    assert all(later - earlier >= HOUR for earlier, later in zip(times, times[most:]))
