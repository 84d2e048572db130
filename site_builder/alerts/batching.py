"""Alerts become letters: to whom, when, and several in one; what is over before it was sent is taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from site_builder.alerts import titles
from site_builder.alerts.model import (
    BEGUN,
    CHANNEL,
    HAPPENED,
    HOOK,
    OVER,
    PERSON,
    Alert,
    AlertRule,
    Book,
    Letter,
    Matter,
)
from site_builder.core import formatting
from site_builder.core.clock import Now
from site_builder.core.formatting import HOUR

# What somebody asked for, and what is a letter of its own: its sender makes it of more than its alert.
ASKED_FOR = "watch"
# Alerts that one letter has room for, and letters that wait for one hook.
MOST_IN_LETTER = 100
MOST_FOR_HOOK = 200
# Letters that wait for people, who are named by hosts; and so many people hear of one host at a time.
MOST_WAITING = 1000
MOST_OF_HOST = 100
# No letter waits for longer, in seconds: quiet hours are those of a day, which may have 25.
LONGEST_WAIT = 26 * HOUR
# What is a whole letter by itself, made when it is sent.
ALONE = "weekly-report"
# What takes each other back, where the first was not sent yet.
TAKES_BACK = {OVER: BEGUN, BEGUN: OVER}


class Scene(NamedTuple):
    """What a step goes by beside matters and rules.

    `hosts` are those that the board shows, with their state and how many GPUs each has (of a card: `summary.state` and
    `len(summary.gpus)`). `channels` and `hooks` are names. `blind` are rules of which nobody can look now whether what
    they tell of is still so. `home` tells which host has a GPU now, by its UUID, `reaches` whether any
    way to a person is known. `unclear` are hosts of which nobody knows what is the matter, by a fault of ours.
    `expires` is False while the clock is in doubt: then nothing is forgotten because its time is over.
    """

    hosts: Mapping[str, tuple[str, int]]
    zone: tzinfo
    channels: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    url: str | None = None
    users_shown: bool = True
    blind: frozenset[str] = frozenset()
    home: Callable[[str], str | None] | None = None
    reaches: Callable[[str], bool] | None = None
    unclear: frozenset[str] = frozenset()
    expires: bool = True


class News(NamedTuple):
    """What is to be told of a matter: that it is so, is over or happened, and from when until when.

    `told` is when it was to be told that what is over was so.
    """

    matter: Matter
    step: str
    since: int | None
    until: int | None
    why: str
    told: int | None = None


class Outbox:
    """The letters of a book while a step adds to them; `number` counts on."""

    def __init__(self, book: Book, scene: Scene, now: Now) -> None:
        """With those that wait already."""
        self.scene, self.now, self.at = scene, now, int(now.epoch)
        self.letters = [self.rebased(one) for one in book.letters]
        self.sent = book.sent
        self.number = book.number
        self.new: dict[tuple[str, str, str], list[Alert]] = {}
        self.rules: dict[str, AlertRule] = {}
        self.reached: dict[str, set[str]] = {}

    def rebased(self, letter: Letter) -> Letter:
        """Return a letter as of now if the clock was set back since it was made: it waits no longer than was meant."""
        if letter.due > self.at + LONGEST_WAIT:
            return letter._replace(due=self.at)
        if letter.made <= self.at:
            return letter
        return letter._replace(made=self.at, due=self.at + max(0, letter.due - letter.made))

    def add(self, news: News, rule: AlertRule) -> None:
        """Tell all who are to be told."""
        self.number += 1
        self.rules[rule.name] = rule
        for to in self.receivers(news.matter, rule):
            if not self.take_back(to, news.matter.key, TAKES_BACK.get(news.step), news.told):
                via = news.matter.via if to.startswith(PERSON) else ""
                self.new.setdefault((to, via, rule.name), []).append(self.alert(news, to))

    def withdraw(self, key: str) -> None:
        """Tell nobody any more that something is so."""
        for to in {one.to for one in self.letters}:
            self.take_back(to, key, BEGUN)

    def holds_back(self, matter: Matter, rule: AlertRule) -> bool:
        """Tell nobody, if nobody was told so far: every letter that says it still waits."""
        told = {to for to in self.receivers(matter, rule) if not self.is_waiting(to, matter.key)}
        if told or not any(self.is_waiting(one.to, matter.key) for one in self.letters):
            return False
        self.withdraw(matter.key)
        return True

    def is_waiting(self, to: str, key: str) -> bool:
        """Whether a letter waits for its time that tells somebody of it."""
        return any(
            one.step == BEGUN and key_of(one) == key
            for letter in self.letters
            if letter.to == to and self.waits(letter)
            for one in letter.alerts
        )

    def receivers(self, matter: Matter, rule: AlertRule) -> Iterator[str]:
        """Whom a rule names."""
        for name in self.scene.channels:
            if "all" in rule.to or name in rule.to:
                yield CHANNEL + name
        if "person" in rule.to:
            yield from (
                PERSON + name for name in matter.whose if self.has_room(name, matter) and self.reaches(name, matter)
            )
        if "hooks" in rule.to:
            yield from (HOOK + name for name in self.scene.hooks)

    def reaches(self, name: str, matter: Matter) -> bool:
        """Whether a letter to somebody can arrive; whoever asked for one sees in the history that it did not."""
        return self.scene.reaches is None or matter.rule == ASKED_FOR or self.scene.reaches(name)

    def has_room(self, name: str, matter: Matter) -> bool:
        """Whether one more may hear of a host: it can claim that anybody is on it."""
        told = self.reached.setdefault(matter.host, set()) if matter.host else {name}
        if len(told) < MOST_OF_HOST:
            told.add(name)
        return name in told

    def take_back(self, to: str, key: str, step: str | None, told: int | None = None) -> bool:
        """Whether a letter that still waits for its time would have said the contrary; it no longer does.

        `told` is when that was decided, where it was.
        """
        for place, letter in enumerate(self.letters):
            if letter.to != to or not self.waits(letter):
                continue
            kept = tuple(one for one in letter.alerts if one.step != step or key_of(one) != key)
            if len(kept) == len(letter.alerts):
                if not letter.more or told is None or told < letter.made:
                    continue
                # one for which the letter had no room
                self.letters[place] = letter._replace(more=letter.more - 1)
                return True
            if not kept and letter.more:  # it must say something, beside how much more there is
                return False
            self.letters[place] = letter._replace(alerts=kept)
            if not kept:
                del self.letters[place]
            return True
        return False

    def waits(self, letter: Letter) -> bool:
        """Whether nobody has begun to send it, nor should."""
        return letter.due > self.at and not letter.tries and not letter.claimed

    def alert(self, news: News, to: str) -> Alert:
        """What one receiver is told; where people are not shown, each reads of nobody but themselves."""
        matter = news.matter
        reader = to[len(PERSON) :] if to.startswith(PERSON) else None
        if not self.scene.users_shown:
            mine = (reader,) if reader else ()
            matter = matter._replace(whose=mine, people=mine)
        link = f"{self.scene.url.rstrip('/')}/hosts/{matter.host}.html" if self.scene.url and matter.host else None
        lasted = None if news.since is None or news.until is None else news.until - news.since
        return Alert(
            f"{self.at}-{self.number}",
            matter.rule,
            news.step,
            titles.title(matter, news.step, lasted, reader, self.now),
            matter.what,
            self.at,
            matter.host,
            matter.gpus,
            news.since,
            news.until,
            matter.people,
            link,
            matter.about,
            news.why,
        )

    def hush(self, rules: Mapping[str, AlertRule]) -> None:
        """What could not be sent before the night waits for its end, unless one of its rules knows no night."""
        for place, letter in enumerate(self.letters):
            known = [rules[one.rule] for one in letter.alerts if one.rule in rules]
            if known and not letter.claimed and not letter.to.startswith(HOOK):
                due = max(letter.due, self.at)
                later = min(self.speaks(rule, due) for rule in known)
                if later > due:
                    self.letters[place] = letter._replace(due=later)

    def close(self) -> None:
        """Make letters of all that was added."""
        for (to, via, name), alerts in self.new.items():
            if to.startswith(HOOK):
                self.for_hook(to, alerts)
            else:
                self.put(to, via, self.rules[name], alerts)

    def for_hook(self, to: str, alerts: list[Alert]) -> None:
        """A letter an alert, at once: a program needs no sleep. It is not meant for more than it can get through."""
        waiting = sum(one.to == to for one in self.letters)
        room = max(0, MOST_FOR_HOOK - waiting)
        for place, one in enumerate(alerts[:room]):
            last = place == room - 1
            self.post(to, "", (one,), self.at, len(alerts) - room if last else 0)

    def put(self, to: str, via: str, rule: AlertRule, alerts: list[Alert]) -> None:
        """One letter, or a part of one that waits: for the end of quiet hours, or until the hour allows one more."""
        when = self.free(to, rule)
        # what will be past by then is no news
        alerts = [one for one in alerts if one.step != HAPPENED or one.until is None or when < one.until]
        if not alerts:
            return
        for place, letter in enumerate(self.letters if when > self.at and rule.name != ALONE else ()):
            if (letter.to, letter.via) != (to, via) or any(one.rule == ALONE for one in letter.alerts):
                continue
            if self.waits(letter) and letter.due == self.speaks(rule, letter.due) <= when + HOUR:
                several = (*letter.alerts, *alerts)
                more = letter.more + max(0, len(several) - MOST_IN_LETTER)
                self.letters[place] = letter._replace(alerts=several[:MOST_IN_LETTER], more=more)
                return
        if to.startswith(PERSON) and len(self.letters) >= MOST_WAITING:
            return
        self.sent = {one: tuple(times) for one in self.sent if (times := self.lately(one, self.at))}
        self.sent[to] = (*self.sent.get(to, ()), when)
        self.post(to, via, tuple(alerts[:MOST_IN_LETTER]), when, max(0, len(alerts) - MOST_IN_LETTER))

    def post(self, to: str, via: str, alerts: tuple[Alert, ...], due: int, more: int) -> None:
        """A letter more."""
        self.number += 1
        self.letters.append(Letter(f"{self.at}-{self.number}", to, alerts, self.at, due, via, more=more))

    def lately(self, to: str, when: int) -> list[int]:
        """When letters went to somebody in the hour before, or will; a clock that was set does not count."""
        return sorted(one for one in self.sent.get(to, ()) if when - HOUR < one <= self.at + LONGEST_WAIT)

    def speaks(self, rule: AlertRule, when: int) -> int:
        """When quiet hours are over, or at once where there are none then."""
        return quiet_until(rule.quiet, when, self.now.zone)

    def free(self, to: str, rule: AlertRule) -> int:
        """From when on there is room in the hour, and that is not at night."""
        when = self.at
        while (later := self.speaks(rule, self.allowed(to, rule.most, when))) > when:
            when = later
        return when

    def allowed(self, to: str, most: int, when: int) -> int:
        """From when on the hour has room for one more, and the hour after it too, for which some may wait."""
        while len(times := [one for one in self.lately(to, when) if one < when + HOUR]) >= most > 0:
            when = times[-most] + HOUR
        return when


def key_of(alert: Alert) -> str:
    """The key of the matter that it tells of."""
    return Matter(alert.rule, alert.host, alert.about).key


def quiet_until(quiet: tuple[int, int] | None, at: int, zone: tzinfo) -> int:
    """When quiet hours are over, or at once where there are none then."""
    if quiet is None or quiet[0] == quiet[1]:
        return at
    begin, end = quiet
    local = datetime.fromtimestamp(at, zone)
    minute = local.hour * 60 + local.minute
    inside = begin <= minute < end if begin < end else minute >= begin or minute < end
    if not inside:
        return at
    day = local.date() + timedelta(days=int(begin > end and minute >= begin))
    moment = datetime.combine(day, datetime.min.time(), zone).replace(hour=end // 60, minute=end % 60)
    return max(at, int(moment.timestamp()))


def waited(seconds: int) -> str:
    """How long something was so: `at once`, `for 40 s`, `for 2 min`."""
    if seconds <= 0:
        return "at once"
    return f"for {seconds} s" if seconds < formatting.MINUTE else f"for {formatting.duration(seconds)}"
