"""Parse watches, and what people ask to be notified of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from site_builder.core import formatting
from site_builder.core.faults import describe_fault
from site_builder.core.model import ParsedFile
from site_builder.core.terminal_text import clean_text, describe_json_error, limit_problems
from site_builder.core.timeparse import dates, moments
from site_builder.core.timeparse.moments import UnclearTimeError

REQUEST_EXAMPLES = ("2 A100 free on one host", "1 GPU with 40 GB free on atlas for 4h")
MAX_TEXT_CHARACTERS = 200
MAX_GPUS = 1024
MAX_HOSTS = 20
MAX_MODEL_WORDS = 6
HOST_PATTERN = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9_])?"
HOST_NOUN = r"(?:hosts?|machines?|servers?|nodes?|box(?:es)?)"
# Each is looked for and taken out, so that the order in which people say them makes no difference.
DURATION_PHRASE = re.compile(
    rf"\bfor (?:at least )?(an? (?:day|hour|week)|{moments.DURATION_PART}(?:(?: and | ?){moments.DURATION_PART})*)\b",
    re.I,
)
OR_LONGER = re.compile(r"\b(?:or|and) longer\b", re.I)
MEMORY_PHRASE = re.compile(
    r"(?:\b(?:with|having|of) )?(?:\b(?:at least|more than|min(?:imum)?) |>=? ?|≥ ?)?"
    r"(?<![a-z0-9.])(\d{1,4}) ?(?:gi?b|gigs?|g)\b(?!\.\d)(?: ?\+)?"
    r"(?: or (?:more|better))?(?: (?:of )?(?:gpu )?(?:memory|vram|ram|mem))?(?: each)?",
    re.I,
)
ANYWHERE_PHRASE = re.compile(
    r"\b(?:anywhere|wherever|in (?:all|total)|altogether|"
    r"(?:on|across|over) (?:(?:any|all|several|different|the|whichever) )?(?:hosts|machines|servers|nodes))\b",
    re.I,
)
ONE_HOST_PHRASE = re.compile(
    rf"\b(?:on (?:(?:one|1|the same|a single|a|any|any one|some|whichever)(?: and the same)? {HOST_NOUN})|together)\b",
    re.I,
)
HOST_SEPARATOR = re.compile(r" ?, ?(?:(?:or|and) )?| or | and ", re.I)
HOSTS_PHRASE = re.compile(
    rf"\b(?:on|at) (?:{HOST_NOUN} )?({HOST_PATTERN}(?:(?:{HOST_SEPARATOR.pattern}){HOST_PATTERN})*)(?![a-z0-9._-]*[a-z0-9])",
    re.I,
)
# `2x 3090` and `2 x 3090`, but there may be a model X1; and behind it, as in `A100 x2`.
COUNT_BEFORE_X = re.compile(r"(\d{1,4})(?:[x×] ?| [x×] )(?=[a-z0-9])(.*)", re.I)
COUNT_AFTER_X = re.compile(r"(.*(?:[a-z]|\d{3}).*?) ?[x×] ?(\d{1,2})", re.I)
COUNT_PATTERN = re.compile(r"\d{1,4}")
NUMBER_WORDS = {
    **{"a": 1, "an": 1, "any": 1, "some": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6},
    **{"seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12, "sixteen": 16},
}
# Words that say nothing which is not clear without them.
FILLER_WORDS = frozenset(
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
MODEL_FAMILY_WORDS = frozenset(
    {
        *("rtx", "gtx", "titan", "ti", "super", "x", "xp", "v", "pro", "ada", "blackwell", "generation", "max-q"),
        *("workstation", "server", "edition", "grid", "instinct", "radeon", "orin"),
    }
)
MODEL_WORD = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}", re.I)
PLURAL_ENDING = re.compile(r"(?<=\d)s$")


class WatchRequest(NamedTuple):
    """So many GPUs, of a model by part of its name, with so many GB; on one of some hosts, or of all.

    `together` is on one host; `length` is for how many seconds nobody may be promised them.
    """

    gpu_count: int = 1
    model: str = ""
    memory_gb: int = 0
    hosts: tuple[str, ...] = ()
    duration_s: int = 0
    is_on_one_host: bool = True


def parse_watch_request(text: str) -> WatchRequest:
    """What a text says; `Unclear` where it says something else, in words that follow the quoted text."""
    found = parse_request_text(text)
    # it is kept and said back in words of ours, which must mean the same
    if parse_request_text(format_watch_request(found)) != found:
        raise UnclearTimeError("is not understood", *REQUEST_EXAMPLES)
    return found


def parse_request_text(text: str) -> WatchRequest:
    """What a text says, if it can be said again."""
    rest = normalize_request_text(text)
    length, rest = extract_duration(rest)
    rest, memory = extract_pattern(MEMORY_PHRASE, rest)
    rest, spread = extract_pattern(ANYWHERE_PHRASE, rest)
    rest, together = extract_pattern(ONE_HOST_PHRASE, rest)
    if spread and together:
        raise UnclearTimeError("says both that they are on one host and that they are not", *REQUEST_EXAMPLES)
    rest, on = extract_pattern(HOSTS_PHRASE, rest)
    hosts = tuple(dict.fromkeys(host.lower() for host in HOST_SEPARATOR.split(on[1]))) if on else ()
    if len(hosts) > MAX_HOSTS:
        raise UnclearTimeError(f"names more than {MAX_HOSTS} hosts", *REQUEST_EXAMPLES)
    count, model = parse_count_and_model(rest)
    size = int(memory[1]) if memory else 0
    if memory and not size:
        raise UnclearTimeError("asks for no memory at all", *REQUEST_EXAMPLES)
    return WatchRequest(count, model, size, hosts, length, not spread or count == 1 or bool(hosts))


def format_watch_request(wish: WatchRequest) -> str:
    """A wish in words, which mean the same when they are read again."""
    what = wish.model or ("GPU" if wish.gpu_count == 1 else "GPUs")
    told = [f"{wish.gpu_count} {what}"]
    if wish.memory_gb:
        told.append(f"with {wish.memory_gb} GB or more")
    told.append("free")
    if wish.hosts:
        told.append(f"on {' or '.join(wish.hosts)}")
    elif wish.gpu_count > 1:
        told.append("on one host" if wish.is_on_one_host else "anywhere")
    if wish.duration_s:
        told.append(f"for {formatting.format_duration(wish.duration_s)} or longer")
    return " ".join(told)


def normalize_request_text(text: str) -> str:
    """The text with single blanks, refused where it can be no wish at all."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise UnclearTimeError("is too long", *REQUEST_EXAMPLES)
    text = " ".join(clean_text(text).replace("“", " ").replace("”", " ").replace('"', " ").split()).strip(" .!?;,")
    if not text:
        raise UnclearTimeError("is empty", *REQUEST_EXAMPLES)
    return text


def extract_pattern(pattern: re.Pattern[str], text: str) -> tuple[str, re.Match[str] | None]:
    """The text without what a pattern finds in it, and that."""
    found = pattern.search(text)
    if not found:
        return text, None
    return " ".join(f"{text[: found.start()]} {text[found.end() :]}".split()), found


def extract_duration(text: str) -> tuple[int, str]:
    """For how long, in seconds, and the text without it."""
    rest, found = extract_pattern(DURATION_PHRASE, text)
    if not found:
        return 0, text
    told = re.sub(r"^an? ", "1 ", found[1], flags=re.I)
    days, seconds = moments.parse_duration(told)
    return days * formatting.DAY + seconds, extract_pattern(OR_LONGER, rest)[0]


def parse_count_and_model(text: str) -> tuple[int, str]:
    """How many, and of which model; what is neither is not understood."""
    several = [word.strip("-.:") for word in text.replace(",", " ").split()]
    count, kept = extract_count([word for word in several if word and word.lower() not in FILLER_WORDS])
    for word in kept:
        known = any(map(str.isdigit, word)) or word.lower() in MODEL_FAMILY_WORDS
        if not MODEL_WORD.fullmatch(word) or not known or (word.isdigit() and len(word) < 3):
            raise UnclearTimeError(f'is not understood at "{word[:40]}"', *REQUEST_EXAMPLES)
    if len(kept) > MAX_MODEL_WORDS:
        raise UnclearTimeError("names more than one model", *REQUEST_EXAMPLES)
    return count, " ".join(map(normalize_model_word, kept))


def extract_count(several: list[str]) -> tuple[int, list[str]]:
    """The number in front, or behind an x; one that is too large, such as 4090, is a model."""
    count, rest = 0, list(several)
    word = 1
    while rest and rest[0].lower() in NUMBER_WORDS:
        word = max(word, NUMBER_WORDS[rest.pop(0).lower()])
    times = COUNT_BEFORE_X.fullmatch(" ".join(rest))
    if times:
        rest = [times[1], *times[2].split()]
    if rest and COUNT_PATTERN.fullmatch(rest[0]) and int(rest[0]) <= MAX_GPUS:
        count = int(rest.pop(0))
        if not count:
            raise UnclearTimeError("asks for no GPU at all", *REQUEST_EXAMPLES)
    behind = COUNT_AFTER_X.fullmatch(" ".join(rest))
    if behind and (count or not int(behind[2])):
        raise UnclearTimeError("says twice how many" if count else "asks for no GPU at all", *REQUEST_EXAMPLES)
    if behind:
        count, rest = int(behind[2]), behind[1].split()
    return count or word, rest


def normalize_model_word(word: str) -> str:
    """A part of a model's name as people write it: `A100s` are several, an L40S is one."""
    if word.lower() != "l40s":
        word = PLURAL_ENDING.sub("", word)
    return word.upper() if word.islower() else word


WATCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,19}")
VIA_PATTERN = re.compile(r"[a-z][a-z0-9+.-]{0,19}")
MAX_NAME_CHARACTERS = 80
# What is more was not made by people at the desk.
MAX_WATCHES = 1000
# So many of one person.
MAX_WATCHES_PER_PERSON = 20
# Days after which nobody waits any more.
MAX_DAYS = 30
MAX_LIFETIME_S = MAX_DAYS * 86400


class WatchFileError(Exception):
    """Why nothing of the file can be read."""


class InvalidWatchError(Exception):
    """Why an entry does not count."""


class Watch(NamedTuple):
    """What somebody waits for, since when and until when; `via` is the way by which they want to hear of it."""

    id: str
    name: str
    request: WatchRequest
    created_at: int
    until: int
    via: str = ""


def parse_watches(data: bytes) -> ParsedFile[Watch]:
    """Every watch that can be understood; not `whole` if the file cannot be read at all."""
    try:
        several = parse_watch_entries(data)
    except WatchFileError as why:
        return ParsedFile(is_complete=False, problems=(str(why),))
    found: dict[str, Watch] = {}
    problems: list[str] = []
    for number, entry in enumerate(several[:MAX_WATCHES], 1):
        one, problem = parse_watch(entry)
        if one and found.setdefault(one.id, one) is not one:
            problem = f'there are two with the id "{one.id}"; the first counts'
        if problem:
            problems.append(f"watch {number}: {problem}")
    if len(several) > MAX_WATCHES:
        problems.append(f"there are more than {MAX_WATCHES} watches; the rest does not count")
    return ParsedFile(tuple(found.values()), problems=limit_problems(problems))


def parse_watch_entries(data: bytes) -> list[object]:
    """The entries as they stand there, whatever they are; a file that is empty has none."""
    if not data.strip():
        return []
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise WatchFileError(describe_json_error(error)) from None
    except (ValueError, RecursionError):
        message = "it is no JSON in UTF-8, or nested too deeply"
        raise WatchFileError(message) from None
    if not isinstance(content, list):
        message = "it must be a list of watches: [ … ]"
        raise WatchFileError(message)
    return content


def parse_watch(entry: object) -> tuple[Watch | None, str]:
    """One entry, or why it does not count."""
    try:
        return build_watch(entry), ""
    except InvalidWatchError as why:
        return None, str(why)
    except Exception as error:  # a fault of ours costs the entry alone
        return None, describe_fault("it does not count", error)


def build_watch(entry: object) -> Watch:
    """One entry, whatever it is."""
    if not isinstance(entry, dict):
        raise InvalidWatchError("it is no object with id, name and when")
    its_id, name, told, via = (entry.get(key) for key in ("id", "name", "when", "via"))
    if not isinstance(its_id, str) or not WATCH_ID.fullmatch(its_id):
        raise InvalidWatchError("it has no id of letters and digits")
    if not is_person_name(name):
        raise InvalidWatchError("it names nobody")
    if via not in (None, "") and not (isinstance(via, str) and VIA_PATTERN.fullmatch(via)):
        raise InvalidWatchError("its way is no word such as mail")
    made, until = parse_epoch(entry.get("made")), parse_epoch(entry.get("until"))
    if made is None or until is None:
        raise InvalidWatchError("it does not say since when and until when")
    if not isinstance(told, str):
        raise InvalidWatchError("it does not say what for")
    try:
        wish = parse_watch_request(told)
    except UnclearTimeError as why:
        raise InvalidWatchError(f'"{clean_text(told)[:80]}" {why}') from None
    return Watch(its_id, str(name), wish, made, min(until, made + MAX_LIFETIME_S), via or "")


def is_person_name(name: object) -> bool:
    """Whether it can be that of a person: one line, as it is."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_CHARACTERS:
        return False
    return clean_text(name) == name and " ".join(name.split()) == name


def parse_epoch(told: object) -> int | None:
    """A time with its offset, in seconds since 1970."""
    found = dates.exact(told)
    return int(found.timestamp()) if found else None


def watch_to_entry(one: Watch) -> dict[str, str]:
    """A watch as it is written."""
    via = {"via": one.via} if one.via else {}
    return {
        "id": one.id,
        "name": one.name,
        "when": format_watch_request(one.request),
        **via,
        **format_watch_times(one),
    }


def format_watch_times(one: Watch) -> dict[str, str]:
    """When it was made, and until when it counts."""
    return {
        key: datetime.fromtimestamp(at, timezone.utc).isoformat()
        for key, at in (("made", one.created_at), ("until", one.until))
    }


def serialize_watches(several: Iterable[object]) -> bytes:
    """The file with these entries, one a line."""
    lines: Sequence[str] = [json.dumps(one, ensure_ascii=True) for one in several]
    return ("[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n").encode()
