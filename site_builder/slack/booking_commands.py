"""Bookings by Slack: an order in people's words becomes a request to the desk, and its answer a few sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from site_builder.bookings import api, json_edit
from site_builder.bookings.identity import OddName, right_name
from site_builder.bookings.policy import Refused
from site_builder.bookings.service import Broken, Desk
from site_builder.bookings.store import Unwritable
from site_builder.bookings.transaction import Who
from site_builder.client.model import Failed
from site_builder.config.settings import Settings
from site_builder.core import formatting
from site_builder.core.names import folded
from site_builder.slack.blocks import Answer

KEYS = {
    "from": "from",
    "until": "until",
    "till": "until",
    "to": "until",
    "for": "for",
    "comment": "comment",
    "name": "name",
}
COUNT = re.compile(r"([0-9]{1,4})x?", re.IGNORECASE)
ANY = {"any", "some", "a", "an"}
FILLERS = {"gpu", "gpus", "of", "x", "×", "on", "one", "host"}
MOST_TOLD = 20
HOW = ("`book atlas:0,1 until fri 18:00`", "`book 2 A100 for 8h`", "`book zeus from mon 9:00 for 3h comment ICML run`")


class Unclear(Exception):
    """What an order lacks, in one sentence."""


class Clerk(NamedTuple):
    """The desk, for somebody."""

    settings: Settings
    desk: Desk

    def who(self, name: str) -> Who:
        """Somebody whom Slack and the contacts made known to us."""
        name = right_name(name)
        return Who(name, folded(name) in self.settings.rules.admins, "slack")

    def book(self, name: str, asked: Sequence[str]) -> Answer:
        """Book what was asked for."""
        if not asked:
            return Answer("which GPUs, and until when?", HOW)

        def do(who: Who) -> Answer:
            done = api.do(self.desk, order(asked), who)
            ids = list(dict.fromkeys(str(one["id"]) for one in done["bookings"]))
            back = f"to give it back: `release {' '.join(ids)}`"
            lines = (done["said"], *notes(done), back)
            return Answer(f"booked {', '.join(ids)}", lines, None, (self.zone(),), self.settings.url)

        return self.answered(name, do)

    def release(self, name: str, asked: Sequence[str]) -> Answer:
        """Release what was named; without a word, say what there is."""
        return self.answered(name, lambda who: self.released(who, asked) if asked else self.mine(who))

    def released(self, who: Who, asked: Sequence[str]) -> Answer:
        """All of it or nothing."""
        requests = self.releases(who, asked)
        for one in requests if len(requests) > 1 else ():
            api.do(self.desk, {**one, "check": True}, who)
        done = [api.do(self.desk, one, who) for one in requests]
        lines = tuple(line for one in done for line in (one["said"], *notes(one)))
        return Answer("released", lines, link=self.settings.url)

    def releases(self, who: Who, asked: Sequence[str]) -> list[dict[str, Any]]:
        """One request for each id, and one for all GPUs."""
        names = self.desk.look(who).lab.names()
        several = list(dict.fromkeys(one.strip(",") for one in asked if one.strip(",")))
        gpus = [one for one in several if ":" in one or names.find(one)]
        found: list[dict[str, Any]] = [{"do": "release", "id": one} for one in several if one not in gpus]
        return [*found, {"do": "release", "gpus": gpus}] if gpus else found

    def mine(self, who: Who) -> Answer:
        """What somebody has booked."""
        own = [one for one in api.listed(self.desk, who)["bookings"] if one["mine"]]
        if not own:
            return Answer("you have booked nothing", link=self.settings.url)
        lines = [f"`{one['id']}` {one['where']} until {one['date'][:16].replace('T', ' ')}" for one in own[:MOST_TOLD]]
        more = [f"and {len(own) - MOST_TOLD} more"] if len(own) > MOST_TOLD else []
        lines += [*more, "`release ID` gives one back"]
        return Answer("which of your bookings?", tuple(lines), None, (self.zone(),), self.settings.url)

    def zone(self) -> str:
        """Whose times these are: who asks may be elsewhere."""
        now = self.desk.now()
        return f"times of {getattr(now.zone, 'key', None) or now.local.tzname()}"

    def answered(self, name: str, do: Callable[[Who], Answer]) -> Answer:
        """Whatever the desk has against it is told in one sentence."""
        try:
            return do(self.who(name))
        except Unclear as why:
            return Answer(str(why), HOW)
        except (Refused, json_edit.Odd, api.Unclear, OddName) as why:
            return Answer("that cannot be done", (str(why),), link=self.settings.url)
        except (Broken, Failed, Unwritable) as why:
            return Answer("the desk cannot write just now", (self.without_folders(str(why)),))

    def without_folders(self, sentence: str) -> str:
        """For people elsewhere, whom the folders of this machine do not concern."""
        folders = {"data": self.settings.data, "state": self.settings.state}
        labels = {str(form): name for name, path in folders.items() for form in (path.absolute(), path)}
        return formatting.hide_paths(sentence, labels)


def notes(done: dict[str, Any]) -> list[str]:
    """What to know beside it."""
    return [f"note: {one}" for one in done["warnings"]]


# What was asked for


def order(asked: Sequence[str]) -> dict[str, Any]:
    """`atlas:0,1 until fri 18:00 comment ICML run` as a request to the desk."""
    places, parts = apart(asked)
    if not places:
        message = "which GPUs?"
        raise Unclear(message)
    if not parts.keys() & {"until", "for"}:
        message = "until when?"
        raise Unclear(message)
    return {"do": "book", **which(places), **parts}


def apart(asked: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The GPUs, and what stands behind each word that leads something in; a comment goes on to the end."""
    places: list[str] = []
    parts: dict[str, list[str]] = {}
    current = places
    for number, word in enumerate(asked):
        key = KEYS.get(word.lower().removeprefix("--").rstrip(":="))
        if key == "comment":
            parts[key] = list(asked[number + 1 :])
            break
        if key and key in parts:
            message = f"`{key}` stands there twice"
            raise Unclear(message)
        if key:
            current = parts[key] = []
        else:
            current.append(word)
    said = {key: " ".join(several).strip("\"' ") for key, several in parts.items()}
    for key, text in said.items():
        if not text:
            message = f"what belongs behind `{key}`?"
            raise Unclear(message)
    return places, said


def which(places: Sequence[str]) -> dict[str, Any]:
    """GPUs by name, or so many of a model: `2 A100`, `any A100`."""
    first = places[0].lower()
    found = COUNT.fullmatch(first)
    if not found and first not in ANY:
        # `atlas:0, 1` is one word that was written as two
        joined = re.sub(r"\s*,\s*", ",", " ".join(places))
        return {"gpus": [one.strip(",") for one in joined.split() if one.strip(",")]}
    rest = [one for one in places[1:] if one.lower() not in FILLERS]
    count = int(found[1]) if found else 1
    if not found and rest and (second := COUNT.fullmatch(rest[0])):
        count, rest = int(second[1]), rest[1:]
    model = " ".join(rest)
    return {"any": count, **({"model": model} if model else {})}
