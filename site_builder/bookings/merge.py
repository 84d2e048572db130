"""Two people changed comments.json at once, one of them in an editor: both changes stay, entry by entry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from site_builder.bookings import json_edit, parser, policy
from site_builder.bookings.parser import Entry
from site_builder.bookings.policy import Refused
from site_builder.bookings.transaction import Found, Logged, Turn

MOST_TOLD = 3


def into(mine: Turn, original: Turn, theirs: Turn) -> None:
    """What others changed since the original is changed in my copy too; what both changed is refused."""
    before, here, there = (keys(one.file) for one in (original, mine, theirs))
    refuse_both(before, here, there)
    new, gone = there - before - (here - before), before - there
    if notes(theirs.file) != notes(original.file):
        if notes(mine.file) != notes(original.file):
            message = "the remarks in the file were changed by somebody else meanwhile, and by you"
            raise Refused(message)
        base, new, gone = theirs.file, here - before - (there - before), before - here
    else:
        base = mine.file
    mine.file = applied(base, new, gone)
    refuse_twice(mine, [one for one in theirs.found() if key(one.entry) not in before], before, here)


def refuse_both(before: Counter[str], here: Counter[str], there: Counter[str]) -> None:
    """Refuse an entry that both sides changed, each in another way."""
    for one in (before - here) & (before - there):
        host, gpu, _ = json.loads(one)
        added = [[new for new in side - before if json.loads(new)[:2] == [host, gpu]] for side in (here, there)]
        if added[0] != added[1]:
            message = f"the booking of {place(host, gpu)} was changed by somebody else meanwhile, and by you"
            raise Refused(message)


def refuse_twice(mine: Turn, theirs: Sequence[Found], before: Counter[str], here: Counter[str]) -> None:
    """Refuse a new booking of mine where somebody else has made one meanwhile."""
    others = [one.booking for one in theirs if key(one.entry) not in here]
    for one in mine.found():
        if key(one.entry) in here and key(one.entry) not in before:
            there = [other for other in others if other.host == one.booking.host]
            policy.check_overlap(one.booking, there, policy.Keys(mine.lab.gpus(one.booking.host)), mine.now)


def applied(file: json_edit.Text, new: Counter[str], gone: Counter[str]) -> json_edit.Text:
    """With some entries less and some more."""
    for one in gone.elements():
        found = next((entry for entry in file.entries() if key(entry) == one), None)
        if found:
            file = json_edit.removed(file, found)
    for one in new.elements():
        file = json_edit.added(file, *json.loads(one))
    return file


def key(entry: Entry) -> str:
    """An entry as one word: where it stands, and what it says."""
    return json.dumps([entry.host, entry.gpu, entry.content])


def keys(file: json_edit.Text) -> Counter[str]:
    """All entries of a file; two that say the same are two."""
    return Counter(key(entry) for entry in file.entries() if not json_edit.is_empty(entry.content))


def notes(file: json_edit.Text) -> Counter[str]:
    """What people wrote beside the entries."""
    found = (one[0] for one in parser.STRING_OR_COMMENT.finditer(file.text))
    beside = (f"{one.key}: {one.content}" for one in file.hosts() if not isinstance(one.content, (dict, list)))
    return Counter([one.strip() for one in found if not one.startswith('"')] + list(beside))


# What is logged and said of it


def logged(turn: Turn) -> list[Logged]:
    """The bookings of a file, as the log has them."""
    return [[one.booking.host, one.booking.gpu, one.entry.content] for one in turn.found()]


def only_first(before: Iterable[Logged], after: Iterable[Logged]) -> tuple[list[Logged], list[Logged]]:
    """What of each the other does not have."""
    first, second = (Counter(map(json.dumps, several)) for several in (before, after))
    return [json.loads(one) for one in (first - second).elements()], [
        json.loads(one) for one in (second - first).elements()
    ]


def told(before: Sequence[Logged], after: Sequence[Logged]) -> str:
    """`atlas:0 is new, zeus:1 is other, hydra is gone`."""
    places: dict[str, Any] = {}
    for at, several in enumerate((before, after)):
        for host, gpu, _ in several:
            places.setdefault(place(host, gpu), [0, 0])[at] += 1
    said = [f"{where} {word(*count)}" for where, count in places.items()]
    more = [f"{len(said) - MOST_TOLD} more"] if len(said) > MOST_TOLD else []
    return ", ".join(said[:MOST_TOLD] + more) or "no booking is another"


def word(gone: int, new: int) -> str:
    """What happened to the bookings of a GPU."""
    return "changed" if gone and new else "new" if new else "gone"


def place(host: str, gpu: str) -> str:
    """`atlas:0`, or the whole host."""
    return host if gpu == "*" else f"{host}:{gpu}"
