"""Letters on their way: which comes next, who has it in hand, and what comes of it. All of it is book in, book out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby

from site_builder.alerts.model import PERSON, Book, Letter, Outcome, Told

SENT, FAILED, REFUSED, UNSURE, GIVEN_UP = "sent", "failed", "refused", "unsure", "given up"
# Seconds until a letter is tried again that did not arrive; the last counts for all further ones.
BACK_OFF = (30, 60, 120, 300, 600, 1800, 3600)
# Seconds after which nobody wants to hear of it any more, and the longest that a receiver can make us wait.
TOO_OLD = 24 * 3600
LONGEST_WAIT = 6 * 3600
# Seconds for which another builder's claim is believed: no send takes as long.
BELIEVED = 900
# Seconds after which we look whether a sender on this machine still lives.
LOOKED_AT = 120
# Seconds after which a letter that nobody took up is told of.
OVERDUE = 600
# How much of the past is kept.
MOST_TOLD = 1000
KEPT = 90 * 86400
LONGEST_WHY = 300
# People of whom each has a sentence.
FEW = 3


def due(book: Book, now: int) -> list[Letter]:
    """The letters that can be sent now, the oldest of each receiver first, and those before whose go well."""
    waiting = sorted((one for one in book.letters if not one.claimed and one.due <= now), key=lambda one: one.made)
    failing = {receiver(one) for one in book.letters if one.tries}
    return sorted(waiting, key=lambda one: receiver(one) in failing)


def is_due(book: Book, ours: str | None, now: int) -> bool:
    """Whether there is anything to do: a letter to send, or one whose sender may be gone (`ours` as in written_off)."""
    return any(
        one.due <= now
        and (not one.claimed or abs(now - one.claimed_at) >= (LOOKED_AT if is_of(one, ours) else BELIEVED))
        for one in book.letters
    )


def is_of(letter: Letter, ours: str | None) -> bool:
    """Whether a sender on this machine claimed it."""
    return ours is None or letter.claimed.startswith(ours)


def receiver(letter: Letter) -> tuple[str, str]:
    """Whom it is for, and by which way."""
    return letter.to, letter.via


def claim(book: Book, name: str, who: str, now: int) -> Book:
    """The letter of that name in somebody's hand, if nobody else has it."""
    taken = (
        one._replace(claimed=who, claimed_at=now) if one.id == name and not one.claimed else one for one in book.letters
    )
    return book._replace(letters=tuple(taken))


def in_hand(book: Book, name: str, who: str) -> Letter | None:
    """The letter, if it is theirs."""
    return next((one for one in book.letters if one.id == name and one.claimed == who), None)


def settle(book: Book, name: str, who: str, outcome: Outcome, now: int) -> Book:
    """What comes of a letter that somebody had in hand; one that is no longer theirs was written off by another."""
    letter = in_hand(book, name, who)
    if letter is None:
        return book
    tries, why = letter.tries + 1, outcome.why[:LONGEST_WHY]
    if outcome.how == FAILED:
        return postponed(book, letter._replace(tries=tries, why=why), outcome.wait, now)
    how = GIVEN_UP if outcome.how == REFUSED else outcome.how
    return ended(book, letter._replace(tries=tries), how, why, now)


def postponed(book: Book, letter: Letter, wait: int | None, now: int) -> Book:
    """One that did not arrive waits, and with it all others for the same receiver; until it is too old."""
    pause = BACK_OFF[min(letter.tries, len(BACK_OFF)) - 1]
    again = now + max(pause, min(wait or 0, LONGEST_WAIT))
    held = {one.id for one in book.letters if receiver(one) == receiver(letter) and not one.claimed}
    book = put(book, letter._replace(claimed="", claimed_at=0))
    for one in [one for one in book.letters if one.id in held or one.id == letter.id]:
        if again - one.made > TOO_OLD:
            book = ended(book, one, GIVEN_UP, letter.why, now)
        else:
            book = put(book, one._replace(due=max(one.due, again)))
    return book


def put(book: Book, letter: Letter) -> Book:
    """The book with a letter in the place of the one of its name."""
    return book._replace(letters=tuple(letter if one.id == letter.id else one for one in book.letters))


def ended(book: Book, letter: Letter, how: str, why: str, now: int) -> Book:
    """A letter that is off our hands, and the line of the history that says how."""
    told = Told(now, letter.to, how, letter.alerts, why, letter.tries)
    letters = tuple(one for one in book.letters if one.id != letter.id)
    return book._replace(letters=letters, history=(*book.history, told)[-MOST_TOLD:])


def recent(history: tuple[Told, ...], now: int) -> tuple[Told, ...]:
    """Return the lines of the history that are not too old to be kept."""
    return tuple(one for one in history if now - one.at < KEPT)


def written_off(book: Book, ours: str | None, now: int) -> Book:
    """Without those whose sender ended before it could say how it went: they may have arrived, and are not sent again.

    `ours` begins the claims of senders on this machine, of whom none is left; None where all senders are ours.
    """
    for letter in book.letters:
        if letter.claimed and (is_of(letter, ours) or abs(now - letter.claimed_at) >= BELIEVED):
            why = "whoever sent it was ended in the middle: it may have arrived, and is not sent again"
            book = ended(book, letter._replace(tries=letter.tries + 1), UNSURE, why, now)
    return book


def troubles(book: Book, now: int) -> list[str]:
    """What keeps letters from arriving, in a sentence for each receiver."""
    waiting = sorted((one for one in book.letters if one.tries or now - one.due > OVERDUE), key=lambda one: one.to)
    found = [waits(to, list(letters)) for to, letters in groupby(waiting, key=lambda one: one.to)]
    lately = [one for one in book.history if one.how == GIVEN_UP and now - one.at < TOO_OLD]
    names = sorted({one.to for one in lately})
    people = [to for to in names if to.startswith(PERSON)]
    if len(people) > FEW:  # one cause, mostly: nobody has written down how to tell them
        last = next(one for one in reversed(lately) if one.to in people)
        found.append(f"letters were given up for {len(people)} people, the last for {words(last.to)}: {last.why}")
        names = [to for to in names if to not in people]
    found += [gave_up(to, [one for one in lately if one.to == to]) for to in names]
    return found + list(unsure(book, now))


def unsure(book: Book, now: int) -> Iterator[str]:
    """Yield a sentence for each receiver of whom it is not known whether notifications of the last day arrived."""
    lately = [one for one in book.history if one.how == UNSURE and abs(now - one.at) < TOO_OLD]
    receivers = sorted({one.to for one in lately})
    people = [to for to in receivers if to.startswith(PERSON)]
    if len(people) > FEW:
        last = next(one for one in reversed(lately) if one.to in people)
        about = f"{len(people)} people arrived, the last of them for {words(last.to)}"
        yield f"it is not known whether notifications for {about}: {last.why}"
        receivers = [to for to in receivers if to not in people]
    for to in receivers:
        several = [one for one in lately if one.to == to]
        them = "a notification" if len(several) == 1 else f"{len(several)} notifications"
        yield f"it is not known whether {them} for {words(to)} arrived: {several[-1].why}"


def waits(to: str, letters: Collection[Letter]) -> str:
    """Of letters that could not be sent so far."""
    why = next((one.why for one in letters if one.why), "nobody sends them")
    them = "a letter waits" if len(letters) == 1 else f"{len(letters)} letters wait"
    return f"{them} for {words(to)}: {why}"


def gave_up(to: str, lines: Iterable[Told]) -> str:
    """Of letters that nobody will get."""
    last = list(lines)
    them = "a letter was given up" if len(last) == 1 else f"{len(last)} letters were given up"
    return f"{them} for {words(to)}: {last[-1].why}"


def words(to: str) -> str:
    """A receiver as people call it: `channel lab`."""
    kind, _, name = to.partition(":")
    return f"{kind} {name}"
