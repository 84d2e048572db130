"""Parse and store watches."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from site_builder.bookings import consul_store
from site_builder.bookings import store as booking_store
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import MAX_VALUE_BYTES, KvStore
from site_builder.core import files, formatting
from site_builder.core.data_folder import BOOKINGS_FILE, WATCHES_FILE, find_bookings_folder_in_data
from site_builder.core.faults import describe_fault
from site_builder.core.locks import LockedFileError
from site_builder.core.model import ConsulAccess, ParsedFile
from site_builder.core.records import describe_json_error
from site_builder.core.terminal_text import clean_text, limit_problems
from site_builder.core.timeparse import dates, moments
from site_builder.core.timeparse.moments import UnclearTimeError

REQUEST_EXAMPLES = ("2 A100 free on one host", "1 GPU with 40 GB free on atlas for 4h")
MAX_TEXT_CHARACTERS = 200
MAX_GPUS = 1024
MAX_HOSTS = 20
MAX_MODEL_WORDS = 6
HOST_PATTERN = r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9_])?"
HOST_NOUN = r"(?:hosts?|machines?|servers?|nodes?|box(?:es)?)"
# Each phrase is found and removed, so that their order makes no difference.
DURATION_PHRASE = re.compile(
    rf"\bfor (?:at least )?(an? (?:day|hour|week)|{moments.AMOUNT}(?:(?: and | ?){moments.AMOUNT})*)\b",
    re.I,
)
QUOTATION_MARKS = re.compile('[“”"]')
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
    rf"\b(?:on|at) (?:{HOST_NOUN} )?({HOST_PATTERN}(?:(?:{HOST_SEPARATOR.pattern}){HOST_PATTERN})*)"
    r"(?![a-z0-9._-]*[a-z0-9])",
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
# Words that add nothing.
FILLER_TEXT = (
    "when whenever as soon if once there is are be become becomes get gets me notify tell please i want need at least "
    "the that which can had free available idle unused gpu gpus card cards graphics of model type with and nvidia "
    "tesla geforce quadro amd"
)
FILLER_WORDS = frozenset(FILLER_TEXT.split())
# Words of model names that have no digit.
MODEL_FAMILY_TEXT = (
    "rtx gtx titan ti super x xp v pro ada blackwell generation max-q workstation server edition grid instinct radeon "
    "orin"
)
MODEL_FAMILY_WORDS = frozenset(MODEL_FAMILY_TEXT.split())
MODEL_WORD = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}", re.I)
PLURAL_ENDING = re.compile(r"(?<=\d)s$")
WATCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,19}")
VIA_PATTERN = re.compile(r"[a-z][a-z0-9+.-]{0,19}")
MAX_NAME_CHARACTERS = 80
MAX_WATCHES = 1000
MAX_WATCHES_PER_PERSON = 20
MAX_DAYS = 30
MAX_LIFETIME_S = MAX_DAYS * formatting.DAY
MAX_WATCHES_BYTES = MAX_VALUE_BYTES
WATCHES_KEY = f"data/{WATCHES_FILE}"
MAX_ATTEMPTS = 5
WatchEntries = list[object]


class WatchedGpus(NamedTuple):
    """GPUs that somebody wants: `model` is part of a name, and nobody may have booked them for `duration_s`."""

    gpu_count: int = 1
    model: str = ""
    memory_gb: int = 0
    hosts: tuple[str, ...] = ()
    duration_s: int = 0
    is_on_one_host: bool = True


def parse_watched_gpus(text: str) -> WatchedGpus:
    """Parse a request, or raise UnclearTimeError with words that follow the quoted text."""
    request = parse_watched_gpus_text(text)
    # it is stored and shown in our words, which must mean the same
    if parse_watched_gpus_text(format_watched_gpus(request)) != request:
        raise UnclearTimeError("is not understood", *REQUEST_EXAMPLES)
    return request


def parse_watched_gpus_text(text: str) -> WatchedGpus:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise UnclearTimeError("is too long", *REQUEST_EXAMPLES)
    rest = " ".join(QUOTATION_MARKS.sub(" ", clean_text(text)).split()).strip(" .!?;,")
    if not rest:
        raise UnclearTimeError("is empty", *REQUEST_EXAMPLES)
    duration_s = 0
    rest, duration = extract_watch_pattern(DURATION_PHRASE, rest)
    if duration:
        days, seconds = moments.parse_duration(re.sub(r"^an? ", "1 ", duration[1], flags=re.I))
        duration_s = days * formatting.DAY + seconds
        rest, _ = extract_watch_pattern(OR_LONGER, rest)
    rest, memory = extract_watch_pattern(MEMORY_PHRASE, rest)
    rest, anywhere = extract_watch_pattern(ANYWHERE_PHRASE, rest)
    rest, one_host = extract_watch_pattern(ONE_HOST_PHRASE, rest)
    if anywhere and one_host:
        raise UnclearTimeError("asks for one host and for several hosts", *REQUEST_EXAMPLES)
    rest, host_list = extract_watch_pattern(HOSTS_PHRASE, rest)
    hosts = tuple(dict.fromkeys(map(str.lower, HOST_SEPARATOR.split(host_list[1])))) if host_list else ()
    if len(hosts) > MAX_HOSTS:
        raise UnclearTimeError(f"names more than {MAX_HOSTS} hosts", *REQUEST_EXAMPLES)
    words = [word.strip("-.:") for word in rest.replace(",", " ").split()]
    count, model_words = extract_watched_count([word for word in words if word and word.lower() not in FILLER_WORDS])
    for word in model_words:
        is_model = any(map(str.isdigit, word)) or word.lower() in MODEL_FAMILY_WORDS
        if not MODEL_WORD.fullmatch(word) or not is_model or (word.isdigit() and len(word) < 3):
            raise UnclearTimeError(f'is not understood at "{word[:40]}"', *REQUEST_EXAMPLES)
    if len(model_words) > MAX_MODEL_WORDS:
        raise UnclearTimeError("names more than one model", *REQUEST_EXAMPLES)
    # `A100s` is a plural, L40S is not
    model_words = [word if word.lower() == "l40s" else PLURAL_ENDING.sub("", word) for word in model_words]
    model = " ".join(word.upper() if word.islower() else word for word in model_words)
    memory_gb = int(memory[1]) if memory else 0
    if memory and not memory_gb:
        raise UnclearTimeError("asks for 0 GB of memory", *REQUEST_EXAMPLES)
    is_on_one_host = not anywhere or count == 1 or bool(hosts)
    return WatchedGpus(count, model, memory_gb, hosts, duration_s, is_on_one_host)


def format_watched_gpus(request: WatchedGpus) -> str:
    """Format a request in words that mean the same when they are parsed."""
    words = [
        f"{request.gpu_count} {request.model}" if request.model else formatting.format_count(request.gpu_count, "GPU")
    ]
    if request.memory_gb:
        words.append(f"with {request.memory_gb} GB or more")
    words.append("free")
    if request.hosts:
        words.append(f"on {' or '.join(request.hosts)}")
    elif request.gpu_count > 1:
        words.append("on one host" if request.is_on_one_host else "anywhere")
    if request.duration_s:
        words.append(f"for {formatting.format_duration(request.duration_s)} or longer")
    return " ".join(words)


def extract_watch_pattern(pattern: re.Pattern[str], text: str) -> tuple[str, re.Match[str] | None]:
    match = pattern.search(text)
    if not match:
        return text, None
    return " ".join(f"{text[: match.start()]} {text[match.end() :]}".split()), match


def extract_watched_count(words: list[str]) -> tuple[int, list[str]]:
    """Return the number in front or behind an x, and the other words; a large one, such as 4090, is a model."""
    count, spelled_count, rest = 0, 1, list(words)
    while rest and rest[0].lower() in NUMBER_WORDS:
        spelled_count = max(spelled_count, NUMBER_WORDS[rest.pop(0).lower()])
    times = COUNT_BEFORE_X.fullmatch(" ".join(rest))
    if times:
        rest = [times[1], *times[2].split()]
    if rest and COUNT_PATTERN.fullmatch(rest[0]) and int(rest[0]) <= MAX_GPUS:
        count = int(rest.pop(0))
        if not count:
            raise UnclearTimeError("asks for 0 GPUs", *REQUEST_EXAMPLES)
    behind = COUNT_AFTER_X.fullmatch(" ".join(rest))
    if behind and (count or not int(behind[2])):
        raise UnclearTimeError("gives the number twice" if count else "asks for 0 GPUs", *REQUEST_EXAMPLES)
    if behind:
        count, rest = int(behind[2]), behind[1].split()
    return count or spelled_count, rest


class WatchFileError(Exception):
    """Nothing of the file can be read."""


class Watch(NamedTuple):
    """What somebody waits for; `via` is the kind of contact to use."""

    id: str
    name: str
    request: WatchedGpus
    created_at: int
    until: int
    via: str = ""


def parse_watches(data: bytes) -> ParsedFile[Watch]:
    try:
        entries = parse_watch_entries(data)
    except WatchFileError as error:
        return ParsedFile(is_complete=False, problems=(str(error),))
    watches: dict[str, Watch] = {}
    problems: list[str] = []
    for number, entry in enumerate(entries[:MAX_WATCHES], 1):
        watch, problem = parse_watch(entry)
        if watch and watches.setdefault(watch.id, watch) is not watch:
            problem = f'two watches have the id "{watch.id}"; the first is used'
        if problem:
            problems.append(f"watch {number}: {problem}")
    if len(entries) > MAX_WATCHES:
        problems.append(f"there are more than {MAX_WATCHES} watches; the rest is ignored")
    return ParsedFile(tuple(watches.values()), problems=limit_problems(problems))


def parse_watch_entries(data: bytes) -> list[object]:
    if not data.strip():
        return []
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise WatchFileError(describe_json_error(error)) from None
    except (ValueError, RecursionError):
        raise WatchFileError("it is not JSON in UTF-8, or nested too deeply") from None
    if not isinstance(content, list):
        raise WatchFileError("it must be a list of watches: [ … ]")
    return content


def parse_watch(entry: object) -> tuple[Watch | None, str]:
    """Return a watch, or why the entry does not count."""
    if not isinstance(entry, dict):
        return None, "it is not an object with id, name and when"
    try:
        watch_id, name, text, via = (entry.get(key) for key in ("id", "name", "when", "via"))
        if not isinstance(watch_id, str) or not WATCH_ID.fullmatch(watch_id):
            return None, "it has no id of letters and digits"
        if not is_watch_person_name(name):
            return None, "it has no valid name"
        if via not in (None, "") and not (isinstance(via, str) and VIA_PATTERN.fullmatch(via)):
            return None, "its `via` is not a word such as mail"
        created_at, until = (
            dates.parse_date_with_offset(entry.get("made")),
            dates.parse_date_with_offset(entry.get("until")),
        )
        if created_at is None or until is None:
            return None, "it has no valid `made` and `until`"
        if not isinstance(text, str):
            return None, "it has no valid `when`"
        try:
            request = parse_watched_gpus(text)
        except UnclearTimeError as error:
            return None, f'"{clean_text(text)[:80]}" {error}'
        made = int(created_at.timestamp())
        end = min(int(until.timestamp()), made + MAX_LIFETIME_S)
        return Watch(watch_id, str(name), request, made, end, via or ""), ""
    except Exception as error:  # an error of ours affects this entry alone
        return None, describe_fault("it is ignored", error)


def is_watch_person_name(name: object) -> bool:
    """Return True if a name is one clean line."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_CHARACTERS:
        return False
    return clean_text(name) == name and " ".join(name.split()) == name


def watch_to_entry(watch: Watch) -> dict[str, str]:
    entry = {"id": watch.id, "name": watch.name, "when": format_watched_gpus(watch.request)}
    if watch.via:
        entry["via"] = watch.via
    for key, epoch in (("made", watch.created_at), ("until", watch.until)):
        entry[key] = datetime.fromtimestamp(epoch, timezone.utc).isoformat()
    return entry


def serialize_watches(entries: Iterable[object]) -> bytes:
    lines = [json.dumps(entry, ensure_ascii=True) for entry in entries]
    return ("[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n").encode()


class WatchStore:
    """The watches of one data folder, or of Consul."""

    def __init__(self, data: Path, access: ConsulAccess | None = None) -> None:
        self.data_folder = data
        self.folder = find_bookings_folder_in_data(data)
        self.kv_store = KvStore(access) if access else None
        self.access = access
        self.modify_index = 0
        self.signature: files.FileSignature | None = None

    def change(
        self, change_entries: Callable[[WatchEntries], WatchEntries], timeout_s: float = booking_store.LOCK_TIMEOUT_S
    ) -> None:
        """Replace the entries by what `change_entries` returns, while nobody else writes."""
        for _ in range(MAX_ATTEMPTS):
            with booking_store.hold_booking_store_lock(self.data_folder, timeout_s) as locked:
                self.folder = locked.folder
                before = self.read()
                try:
                    entries = parse_watch_entries(before)
                except WatchFileError as error:
                    fault = f"{self.folder / WATCHES_FILE} cannot be read: {error}"
                    raise LockedFileError(f"{fault}; correct it, or remove it") from None
                after = change_entries(list(entries))
                if after == entries or self.write(serialize_watches(after)):
                    return
        message = f"{self.folder / WATCHES_FILE} keeps being changed by others: try again"
        raise LockedFileError(message)

    def read(self) -> bytes:
        entry = None
        if self.kv_store and self.access:
            try:
                entry = self.kv_store.get(WATCHES_KEY)
            except ConsulUnavailableError as error:
                consequence = "notifications are stored there, and nothing is written until it replies"
                message = f"{self.access.where} {error}: {consequence}"
                raise LockedFileError(message) from None
            self.modify_index = entry.modify_index if entry else 0
        return self.read_local() if entry is None else entry.content

    def read_local(self) -> bytes:
        self.signature, content = booking_store.read_booking_store_file(self.folder, WATCHES_FILE, MAX_WATCHES_BYTES)
        return content

    def write(self, content: bytes) -> bool:
        """Replace what was read; return False if somebody else wrote meanwhile."""
        if len(content) > MAX_WATCHES_BYTES:
            raise LockedFileError(f"{WATCHES_FILE} is full: it may have {MAX_WATCHES_BYTES} bytes")
        with booking_store.open_booking_store_folder(self.folder) as folder:
            owner = self.find_owner(folder)
            if not self.kv_store or not self.access:
                path = self.folder / WATCHES_FILE
                return booking_store.replace_booking_store_file(
                    folder, path, content, owner, lambda: files.read_signature(WATCHES_FILE, folder) == self.signature
                )
        try:
            is_written = self.kv_store.put(WATCHES_KEY, content, cas=self.modify_index)
        except ConsulUnavailableError as error:
            message = f"{self.access.where} {error}, so the change may be missing: check your notifications"
            raise LockedFileError(message) from None
        if is_written:  # the next build updates the copy of this machine, or reports why not
            with suppress(OSError, files.FileRefusedError, LockedFileError):
                consul_store.write_consul_store_copy(self.data_folder, WATCHES_FILE, content)
        return is_written

    def find_owner(self, folder: int) -> os.stat_result:
        """Return the status of the file whose owner and mode the new one gets: the old one, or the bookings.

        Whoever may not book may not watch either.
        """
        for name in (WATCHES_FILE, BOOKINGS_FILE):
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not os.access(name, os.W_OK, dir_fd=folder):
                    reason = f"belongs to {files.find_file_owner_login(status.st_uid)}, and you cannot write it"
                    raise LockedFileError(f"{self.folder / name} {reason}: {booking_store.ASK_ADMIN_HINT}")
                return status
        return os.fstat(folder)
