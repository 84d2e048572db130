"""Two people changed comments.json at once, one of them in an editor: both changes stay, entry by entry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from site_builder.bookings import json_edit, parser, policy
from site_builder.bookings.parser import BookingEntry
from site_builder.bookings.policy import BookingRefusedError
from site_builder.bookings.transaction import BookingTransaction, LoggedEntry, StoredBooking

MAX_NAMED_CHANGES = 3


def merge_edits(mine: BookingTransaction, original: BookingTransaction, theirs: BookingTransaction) -> None:
    """What others changed since the original is changed in my copy too; what both changed is refused."""
    before, here, there = (count_entries(one.document) for one in (original, mine, theirs))
    refuse_conflicting_edits(before, here, there)
    new, gone = there - before - (here - before), before - there
    if count_remarks(theirs.document) != count_remarks(original.document):
        if count_remarks(mine.document) != count_remarks(original.document):
            message = "the remarks in the file were changed by somebody else meanwhile, and by you"
            raise BookingRefusedError(message)
        base, new, gone = theirs.document, here - before - (there - before), before - here
    else:
        base = mine.document
    mine.document = apply_entry_changes(base, new, gone)
    refuse_double_bookings(
        mine, [one for one in theirs.list_bookings() if build_entry_key(one.entry) not in before], before, here
    )


def refuse_conflicting_edits(before: Counter[str], here: Counter[str], there: Counter[str]) -> None:
    """Refuse an entry that both sides changed, each in another way."""
    for one in (before - here) & (before - there):
        host, gpu, _ = json.loads(one)
        added = [[new for new in side - before if json.loads(new)[:2] == [host, gpu]] for side in (here, there)]
        if added[0] != added[1]:
            message = f"the booking of {format_place(host, gpu)} was changed by somebody else meanwhile, and by you"
            raise BookingRefusedError(message)


def refuse_double_bookings(
    mine: BookingTransaction, theirs: Sequence[StoredBooking], before: Counter[str], here: Counter[str]
) -> None:
    """Refuse a new booking of mine where somebody else has made one meanwhile."""
    others = [one.booking for one in theirs if build_entry_key(one.entry) not in here]
    for one in mine.list_bookings():
        if build_entry_key(one.entry) in here and build_entry_key(one.entry) not in before:
            there = [other for other in others if other.host == one.booking.host]
            policy.check_conflicts(
                one.booking, there, policy.GpuKeyMap(mine.hosts.list_gpus(one.booking.host)), mine.now
            )


def apply_entry_changes(
    file: json_edit.BookingDocument, new: Counter[str], gone: Counter[str]
) -> json_edit.BookingDocument:
    """With some entries less and some more."""
    for one in gone.elements():
        found = next((entry for entry in file.list_entries() if build_entry_key(entry) == one), None)
        if found:
            file = json_edit.remove_entry(file, found)
    for one in new.elements():
        file = json_edit.add_entry(file, *json.loads(one))
    return file


def build_entry_key(entry: BookingEntry) -> str:
    """An entry as one word: where it stands, and what it says."""
    return json.dumps([entry.host, entry.gpu, entry.content])


def count_entries(file: json_edit.BookingDocument) -> Counter[str]:
    """All entries of a file; two that say the same are two."""
    return Counter(
        build_entry_key(entry) for entry in file.list_entries() if not json_edit.is_empty_content(entry.content)
    )


def count_remarks(file: json_edit.BookingDocument) -> Counter[str]:
    """What people wrote beside the entries."""
    found = (one[0] for one in parser.STRING_OR_COMMENT.finditer(file.text))
    beside = (f"{one.key}: {one.content}" for one in file.list_hosts() if not isinstance(one.content, (dict, list)))
    return Counter([one.strip() for one in found if not one.startswith('"')] + list(beside))


# What is logged and said of it


def list_logged_entries(turn: BookingTransaction) -> list[LoggedEntry]:
    """The bookings of a file, as the log has them."""
    return [[one.booking.host, one.booking.gpu, one.entry.content] for one in turn.list_bookings()]


def find_entry_differences(
    before: Iterable[LoggedEntry], after: Iterable[LoggedEntry]
) -> tuple[list[LoggedEntry], list[LoggedEntry]]:
    """What of each the other does not have."""
    first, second = (Counter(map(json.dumps, several)) for several in (before, after))
    return [json.loads(one) for one in (first - second).elements()], [
        json.loads(one) for one in (second - first).elements()
    ]


def describe_entry_changes(before: Sequence[LoggedEntry], after: Sequence[LoggedEntry]) -> str:
    """`atlas:0 is new, zeus:1 is other, hydra is gone`."""
    places: dict[str, Any] = {}
    for at, several in enumerate((before, after)):
        for host, gpu, _ in several:
            places.setdefault(format_place(host, gpu), [0, 0])[at] += 1
    said = [f"{where} {describe_change_kind(*count)}" for where, count in places.items()]
    more = [f"{len(said) - MAX_NAMED_CHANGES} more"] if len(said) > MAX_NAMED_CHANGES else []
    return ", ".join(said[:MAX_NAMED_CHANGES] + more) or "no booking is another"


def describe_change_kind(gone: int, new: int) -> str:
    """What happened to the bookings of a GPU."""
    return "changed" if gone and new else "new" if new else "gone"


def format_place(host: str, gpu: str) -> str:
    """`atlas:0`, or the whole host."""
    return host if gpu == "*" else f"{host}:{gpu}"
