"""GPUs that somebody waits for, as people say it: `2 A100 free on one host`, `any GPU with 40 GB`."""

from __future__ import annotations

import re
from typing import NamedTuple

from site_builder.core import formatting
from site_builder.core.timeparse import durations
from site_builder.core.timeparse.durations import Unclear
from site_builder.snapshots.envelope import clean

__all__ = ["Unclear", "Wish", "read", "said"]

EXAMPLES = ("2 A100 free on one host", "1 GPU with 40 GB free on atlas for 4h")
LONGEST = 200
MOST_GPUS = 1024
MOST_HOSTS = 20
MOST_WORDS = 6
HOST = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9_])?"
MACHINE = r"(?:hosts?|machines?|servers?|nodes?|box(?:es)?)"
# Each is looked for and taken out, so that the order in which people say them makes no difference.
FOR = re.compile(
    rf"\bfor (?:at least )?(an? (?:day|hour|week)|{durations.PART}(?:(?: and | ?){durations.PART})*)\b", re.I
)
LONGER = re.compile(r"\b(?:or|and) longer\b", re.I)
MEMORY = re.compile(
    r"(?:\b(?:with|having|of) )?(?:\b(?:at least|more than|min(?:imum)?) |>=? ?|≥ ?)?"
    r"(?<![a-z0-9.])(\d{1,4}) ?(?:gi?b|gigs?|g)\b(?!\.\d)(?: ?\+)?"
    r"(?: or (?:more|better))?(?: (?:of )?(?:gpu )?(?:memory|vram|ram|mem))?(?: each)?",
    re.I,
)
SPREAD = re.compile(
    r"\b(?:anywhere|wherever|in (?:all|total)|altogether|"
    r"(?:on|across|over) (?:(?:any|all|several|different|the|whichever) )?(?:hosts|machines|servers|nodes))\b",
    re.I,
)
TOGETHER = re.compile(
    rf"\b(?:on (?:(?:one|1|the same|a single|a|any|any one|some|whichever)(?: and the same)? {MACHINE})|together)\b",
    re.I,
)
BETWEEN = re.compile(r" ?, ?(?:(?:or|and) )?| or | and ", re.I)
ON = re.compile(rf"\b(?:on|at) (?:{MACHINE} )?({HOST}(?:(?:{BETWEEN.pattern}){HOST})*)(?![a-z0-9._-]*[a-z0-9])", re.I)
# `2x 3090` and `2 x 3090`, but there may be a model X1; and behind it, as in `A100 x2`.
BEFORE = re.compile(r"(\d{1,4})(?:[x×] ?| [x×] )(?=[a-z0-9])(.*)", re.I)
BEHIND = re.compile(r"(.*(?:[a-z]|\d{3}).*?) ?[x×] ?(\d{1,2})", re.I)
COUNT = re.compile(r"\d{1,4}")
NUMBERS = {
    **{"a": 1, "an": 1, "any": 1, "some": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6},
    **{"seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12, "sixteen": 16},
}
# Words that say nothing which is not clear without them.
EMPTY = frozenset(
    {
        *(
            "when",
            "whenever",
            "as",
            "soon",
            "if",
            "once",
            "there",
            "is",
            "are",
            "be",
            "become",
            "becomes",
            "get",
            "gets",
        ),
        *("me", "notify", "tell", "please", "i", "want", "need", "at", "least", "the", "that", "which", "can", "had"),
        *("free", "available", "idle", "unused", "gpu", "gpus", "card", "cards", "graphics", "of", "model", "type"),
        *("with", "and", "nvidia", "tesla", "geforce", "quadro", "amd"),
    }
)
# What names of models are made of beside what has a digit in it.
FAMILIES = frozenset(
    {
        *("rtx", "gtx", "titan", "ti", "super", "x", "xp", "v", "pro", "ada", "blackwell", "generation", "max-q"),
        *("workstation", "server", "edition", "grid", "instinct", "radeon", "orin"),
    }
)
WORD = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}", re.I)
PLURAL = re.compile(r"(?<=\d)s$")


class Wish(NamedTuple):
    """So many GPUs, of a model by part of its name, with so many GB; on one of some hosts, or of all.

    `together` is on one host; `length` is for how many seconds nobody may be promised them.
    """

    gpus: int = 1
    model: str = ""
    memory: int = 0
    hosts: tuple[str, ...] = ()
    length: int = 0
    together: bool = True


def read(text: str) -> Wish:
    """What a text says; `Unclear` where it says something else, in words that follow the quoted text."""
    found = understood(text)
    # it is kept and said back in words of ours, which must mean the same
    if understood(said(found)) != found:
        raise Unclear("is not understood", *EXAMPLES)
    return found


def understood(text: str) -> Wish:
    """What a text says, if it can be said again."""
    rest = tidy(text)
    length, rest = length_of(rest)
    rest, memory = taken(MEMORY, rest)
    rest, spread = taken(SPREAD, rest)
    rest, together = taken(TOGETHER, rest)
    if spread and together:
        raise Unclear("says both that they are on one host and that they are not", *EXAMPLES)
    rest, on = taken(ON, rest)
    hosts = tuple(dict.fromkeys(host.lower() for host in BETWEEN.split(on[1]))) if on else ()
    if len(hosts) > MOST_HOSTS:
        raise Unclear(f"names more than {MOST_HOSTS} hosts", *EXAMPLES)
    count, model = count_and_model(rest)
    size = int(memory[1]) if memory else 0
    if memory and not size:
        raise Unclear("asks for no memory at all", *EXAMPLES)
    return Wish(count, model, size, hosts, length, not spread or count == 1 or bool(hosts))


def said(wish: Wish) -> str:
    """A wish in words, which mean the same when they are read again."""
    what = wish.model or ("GPU" if wish.gpus == 1 else "GPUs")
    told = [f"{wish.gpus} {what}"]
    if wish.memory:
        told.append(f"with {wish.memory} GB or more")
    told.append("free")
    if wish.hosts:
        told.append(f"on {' or '.join(wish.hosts)}")
    elif wish.gpus > 1:
        told.append("on one host" if wish.together else "anywhere")
    if wish.length:
        told.append(f"for {formatting.duration(wish.length)} or longer")
    return " ".join(told)


def tidy(text: str) -> str:
    """The text with single blanks, refused where it can be no wish at all."""
    if len(text) > LONGEST:
        raise Unclear("is too long", *EXAMPLES)
    text = " ".join(clean(text).replace("“", " ").replace("”", " ").replace('"', " ").split()).strip(" .!?;,")
    if not text:
        raise Unclear("is empty", *EXAMPLES)
    return text


def taken(pattern: re.Pattern[str], text: str) -> tuple[str, re.Match[str] | None]:
    """The text without what a pattern finds in it, and that."""
    found = pattern.search(text)
    if not found:
        return text, None
    return " ".join(f"{text[: found.start()]} {text[found.end() :]}".split()), found


def length_of(text: str) -> tuple[int, str]:
    """For how long, in seconds, and the text without it."""
    rest, found = taken(FOR, text)
    if not found:
        return 0, text
    told = re.sub(r"^an? ", "1 ", found[1], flags=re.I)
    days, seconds = durations.length(told)
    return days * formatting.DAY + seconds, taken(LONGER, rest)[0]


def count_and_model(text: str) -> tuple[int, str]:
    """How many, and of which model; what is neither is not understood."""
    several = [word.strip("-.:") for word in text.replace(",", " ").split()]
    count, kept = count_of([word for word in several if word and word.lower() not in EMPTY])
    for word in kept:
        known = any(map(str.isdigit, word)) or word.lower() in FAMILIES
        if not WORD.fullmatch(word) or not known or (word.isdigit() and len(word) < 3):
            raise Unclear(f'is not understood at "{word[:40]}"', *EXAMPLES)
    if len(kept) > MOST_WORDS:
        raise Unclear("names more than one model", *EXAMPLES)
    return count, " ".join(map(model_word, kept))


def count_of(several: list[str]) -> tuple[int, list[str]]:
    """The number in front, or behind an x; one that is too large, such as 4090, is a model."""
    count, rest = 0, list(several)
    word = 1
    while rest and rest[0].lower() in NUMBERS:
        word = max(word, NUMBERS[rest.pop(0).lower()])
    times = BEFORE.fullmatch(" ".join(rest))
    if times:
        rest = [times[1], *times[2].split()]
    if rest and COUNT.fullmatch(rest[0]) and int(rest[0]) <= MOST_GPUS:
        count = int(rest.pop(0))
        if not count:
            raise Unclear("asks for no GPU at all", *EXAMPLES)
    behind = BEHIND.fullmatch(" ".join(rest))
    if behind and (count or not int(behind[2])):
        raise Unclear("says twice how many" if count else "asks for no GPU at all", *EXAMPLES)
    if behind:
        count, rest = int(behind[2]), behind[1].split()
    return count or word, rest


def model_word(word: str) -> str:
    """A part of a model's name as people write it: `A100s` are several, an L40S is one."""
    if word.lower() != "l40s":
        word = PLURAL.sub("", word)
    return word.upper() if word.islower() else word
