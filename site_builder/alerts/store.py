"""Alert state: state/alerts.json or Consul."""

from __future__ import annotations

import os
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson

from site_builder.alerts.model import Alert, AlertState, Condition, DeliveryRecord, Notification, TrackedCondition
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import MAX_VALUE_BYTES, KvStore
from site_builder.core import files, locks
from site_builder.core.model import KvAccess

STATE_VERSION = 1
# Bytes: unpacked that are read, and packed that Consul takes.
MAX_STATE_BYTES = 32 * 1024 * 1024
GZIP_MAGIC = b"\x1f\x8b"
Parsed = TypeVar("Parsed")
# Keys of alerts.json where they differ from our names of fields: the file stays as older versions wrote it.
STATE_KEYS: dict[object, dict[str, str]] = {
    Condition: {"owners": "whose", "is_lasting": "lasting"},
    Notification: {
        "created_at": "made",
        "due_at": "due",
        "claimed_by": "claimed",
        "last_error": "why",
        "omitted_count": "more",
    },
    TrackedCondition: {
        "condition": "matter",
        "first_seen_at": "seen",
        "reported_at": "told",
        "cleared_at": "gone",
        "is_suppressed": "unsaid",
    },
    DeliveryRecord: {"status": "how", "reason": "why"},
}


class ParsedAlertState(NamedTuple):
    """What was understood; `problem` is why that is a new book, and `newer` one that we must not write over."""

    state: AlertState
    problem: str = ""
    is_newer: bool = False


class DamagedStateError(Exception):
    """It is not what we wrote."""


def parse_alert_state(data: bytes) -> ParsedAlertState:
    """The book that was written; nothing at all is one that nobody has begun."""
    if not data:
        return ParsedAlertState(AlertState())
    try:
        told = orjson.loads(decompress_state(data))
        version = require_integer(told["gpuboard"])
        if version > STATE_VERSION:
            return ParsedAlertState(AlertState(), "was written by a newer gpuboard: update this one", is_newer=True)
        return ParsedAlertState(build_alert_state(told))
    except (DamagedStateError, ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        return ParsedAlertState(AlertState(), "is damaged: begun anew, and what was so already is not told")


def serialize_alert_state(book: AlertState, packed: bool = False) -> bytes:
    """The same as bytes; the same book is always the same bytes."""
    told = {
        "gpuboard": STATE_VERSION,
        "begun": book.started_at,
        "known": {key: tuple_to_json(one) for key, one in book.conditions.items()},
        "once": book.reported_once,
        "letters": [tuple_to_json(one) for one in book.notifications],
        "silences": book.silences,
        "sent": book.sent_times,
        "history": [tuple_to_json(one) for one in book.history],
        "number": book.id_counter,
    }
    plain = orjson.dumps(told)
    return compress_state(plain) if packed else plain + b"\n"


def tuple_to_json(one: Any) -> dict[str, Any]:  # noqa: ANN401 any of our tuples
    """A tuple by the names of its fields, but for those that say what they say by default."""
    fields: dict[str, Any] = {}
    keys = STATE_KEYS.get(type(one), {})
    for name, value in zip(one._fields, one):
        if name in one._field_defaults and one._field_defaults[name] == value:
            continue
        key = keys.get(name, name)
        if hasattr(value, "_fields"):
            fields[key] = tuple_to_json(value)
        elif isinstance(value, tuple):
            fields[key] = [tuple_to_json(each) if hasattr(each, "_fields") else each for each in value]
        else:
            fields[key] = value
    return fields


def compress_state(plain: bytes) -> bytes:
    """Packed; without the time, which would make each one another."""
    packer = zlib.compressobj(6, wbits=31)
    return packer.compress(plain) + packer.flush()


def decompress_state(data: bytes) -> bytes:
    """Unpacked, where it is packed, and no more of it than we would write."""
    if not data.startswith(GZIP_MAGIC):
        return data
    reader = zlib.decompressobj(wbits=31)
    plain = reader.decompress(data, MAX_STATE_BYTES)
    if not reader.eof:
        raise DamagedStateError
    return plain


def build_alert_state(told: dict[str, Any]) -> AlertState:
    """All of it."""
    return AlertState(
        started_at=require_optional_integer(told["begun"]),
        conditions={require_text(key): parse_tracked_condition(one) for key, one in told["known"].items()},
        reported_once={require_text(key): require_integer(until) for key, until in told["once"].items()},
        notifications=require_list(told["letters"], parse_notification),
        silences={require_text(key): require_integer(until) for key, until in told["silences"].items()},
        sent_times={require_text(key): require_list(times, require_integer) for key, times in told["sent"].items()},
        history=require_list(told["history"], parse_delivery_record),
        id_counter=require_integer(told["number"]),
    )


def build_tuple(kind: Callable[..., Parsed], told: Any, fields: dict[str, Callable[[Any], Any]]) -> Parsed:  # noqa: ANN401 JSON
    """One of our tuples; a field of a later gpuboard is passed over."""
    if not isinstance(told, dict):
        raise DamagedStateError
    keys = STATE_KEYS.get(kind, {})
    return kind(**{name: take(told[key]) for name, take in fields.items() if (key := keys.get(name, name)) in told})


def require_text(told: object) -> str:
    """A text."""
    if not isinstance(told, str):
        raise DamagedStateError
    return told


def require_integer(told: object) -> int:
    """A whole number."""
    if not isinstance(told, int) or isinstance(told, bool):
        raise DamagedStateError
    return told


def require_optional_integer(told: object) -> int | None:
    """The same, or nothing."""
    return None if told is None else require_integer(told)


def require_boolean(told: object) -> bool:
    """Yes or no."""
    if not isinstance(told, bool):
        raise DamagedStateError
    return told


def require_list(told: object, take: Callable[[Any], Parsed]) -> tuple[Parsed, ...]:
    """Several."""
    if not isinstance(told, list):
        raise DamagedStateError
    return tuple(take(one) for one in told)


def require_texts(told: object) -> tuple[str, ...]:
    """Several texts."""
    return require_list(told, require_text)


def parse_tracked_condition(told: object) -> TrackedCondition:
    """What is remembered of a matter."""
    return build_tuple(TrackedCondition, told, TRACKED_CONDITION_FIELDS)


def parse_condition(told: object) -> Condition:
    """A matter."""
    return build_tuple(Condition, told, CONDITION_FIELDS)


def parse_alert(told: object) -> Alert:
    """An alert."""
    return build_tuple(Alert, told, ALERT_FIELDS)


def parse_notification(told: object) -> Notification:
    """A letter."""
    return build_tuple(Notification, told, NOTIFICATION_FIELDS)


def parse_delivery_record(told: object) -> DeliveryRecord:
    """A line of the history."""
    return build_tuple(DeliveryRecord, told, DELIVERY_RECORD_FIELDS)


def parse_alerts(told: object) -> tuple[Alert, ...]:
    """Those that a letter carries."""
    return require_list(told, parse_alert)


# What each field holds, by the type that alert.py gives it; a test holds the two together.
PARSERS_BY_TYPE: dict[str, Callable[[Any], Any]] = {
    "str": require_text,
    "str | None": lambda told: None if told is None else require_text(told),
    "int": require_integer,
    "int | None": require_optional_integer,
    "bool": require_boolean,
    "tuple[str, ...]": require_texts,
    "tuple[Alert, ...]": parse_alerts,
    "Condition": parse_condition,
}


def build_field_parsers(kind: type) -> dict[str, Callable[[Any], Any]]:
    """How each field of one of our tuples is read."""
    return {
        name: PARSERS_BY_TYPE[of if isinstance(of, str) else of.__forward_arg__]
        for name, of in kind.__annotations__.items()
    }


CONDITION_FIELDS, ALERT_FIELDS, NOTIFICATION_FIELDS, TRACKED_CONDITION_FIELDS, DELIVERY_RECORD_FIELDS = (
    build_field_parsers(kind) for kind in (Condition, Alert, Notification, TrackedCondition, DeliveryRecord)
)


STATE_FILE = "alerts.json"
STATE_LOCK = "alerts.lock"
DAMAGED_FILE = "alerts.damaged.json"
# Seconds that we wait for another writer, each of whom takes some milliseconds.
LOCK_TIMEOUT_S = 5.0
LOCK_POLL_INTERVAL_S = 0.005
# The longest pause, in seconds, before we begin again after another one was quicker.
MAX_RETRY_PAUSE_S = 0.1
# How much is kept in any case, when there is no room for all of it; and of the people whom something affects.
MIN_KEPT_ENTRIES = 20
MAX_PEOPLE_WHEN_FULL = 3
StateChange = Callable[[AlertState], AlertState]


class AlertStateError(Exception):
    """Why the book cannot be read or written, in one sentence."""


class AlertStore:
    """The book in a file; `problem` is what was wrong with it when it was last read."""

    def __init__(self, state: Path) -> None:
        """The folder in which it stands."""
        self.state_folder = state
        self.where = str(state / STATE_FILE)
        self.max_bytes = MAX_STATE_BYTES
        self.problem = ""
        self.cached_state: tuple[files.FileSignature | None, AlertState] | None = None

    def read(self) -> AlertState:
        """The book as it is now; it is the same object as before where nothing was written since."""
        try:
            with open_state_folder(self.state_folder) as folder:
                signature = files.read_signature(STATE_FILE, folder)
                if self.cached_state and self.cached_state[0] == signature:
                    return self.cached_state[1]
                data = files.read_file(STATE_FILE, folder, self.max_bytes, files.check_file)[1] if signature else b""
        except files.FileRefusedError as why:
            raise AlertStateError(f"{self.where} cannot be read: {why}") from None
        book = self.parse_content(data) if data or not signature else self.from_copy("is empty") or self.emptied()
        self.cached_state = signature, book
        return book

    def emptied(self) -> AlertState:
        """Begin anew where the file was emptied and there is no copy of it."""
        self.problem = "is empty, and there is no good copy of it: begun anew, and what was so already is not told"
        return AlertState()

    def from_copy(self, why: str) -> AlertState | None:
        """Return the last good copy, if there is one; it is never older than the file was."""
        content = files.read_copy(self.state_folder / STATE_FILE, self.max_bytes)
        copy = parse_alert_state(content)
        if not content or copy.problem:
            return None
        self.problem = f"{why}: {files.USED}"
        return copy.state

    def parse_content(self, data: bytes) -> AlertState:
        """What stands there; one that is damaged is put aside, for whoever wants to know."""
        found = parse_alert_state(data)
        if found.is_newer:
            raise AlertStateError(f"{self.where} {found.problem}")
        if found.problem:
            self.problem = found.problem
            with suppress(OSError):
                files.write_atomically(self.state_folder / DAMAGED_FILE, data, 0o600)
            return self.from_copy("is damaged") or found.state
        return found.state

    def change(self, change: StateChange, patience: float = LOCK_TIMEOUT_S) -> AlertState:
        """Read it, change it, write it; nobody else changes it meanwhile."""
        with hold_state_lock(self.state_folder, patience):
            before = self.read()
            after = change(before)
            if after != before:
                after, content = self.fit_to_limit(after)
                self.write(content)
                with open_state_folder(self.state_folder) as folder:
                    self.cached_state = files.read_signature(STATE_FILE, folder), after
        return after

    def fit_to_limit(self, book: AlertState) -> tuple[AlertState, bytes]:
        """The book and its bytes; where there is no room for all, the oldest of the history goes, then of the rest."""
        content = self.serialize(book)
        while len(content) > self.max_bytes and len(book.history) > MIN_KEPT_ENTRIES:
            book = book._replace(history=book.history[len(book.history) // 2 :])
            content = self.serialize(book)
        while (
            len(content) > self.max_bytes and len(book.reported_once) > MIN_KEPT_ENTRIES
        ):  # else nothing could be told at all
            later = sorted(book.reported_once.items(), key=lambda item: item[1])[len(book.reported_once) // 2 :]
            book = book._replace(reported_once=dict(later))
            content = self.serialize(book)
        if len(content) > self.max_bytes:
            book = trim_people(book)
            content = self.serialize(book)
        while len(content) > self.max_bytes and (fewer := trim_conditions(book)) != book:
            book = fewer
            content = self.serialize(book)
        if len(content) > self.max_bytes:
            message = f"{self.where} would have {len(content)} bytes, and {self.max_bytes} is the limit"
            raise AlertStateError(message)
        return book, content

    def serialize(self, book: AlertState) -> bytes:
        """As it is kept."""
        return serialize_alert_state(book)

    def write(self, content: bytes) -> None:
        """Whole or not at all, and on the disk when it is done."""
        try:
            files.write_atomically(files.copy_of(self.state_folder / STATE_FILE), content, 0o600)
            with open_state_folder(self.state_folder) as folder:
                write_state_file(folder, STATE_FILE, content)
        except OSError as error:
            raise AlertStateError(f"{self.where} cannot be written: {error.strerror}") from None


class ConsulAlertStore(AlertStore):
    """The book of several builders, in Consul."""

    def __init__(self, state: Path, access: KvAccess) -> None:
        """Where a damaged one is put aside, and whose store it is."""
        super().__init__(state)
        self.access, self.kv_store = access, KvStore(access)
        self.where = f"{access.prefix}/{STATE_FILE} in Consul"
        self.max_bytes = MAX_VALUE_BYTES
        self.modify_index: int | None = None
        self.last_state = AlertState()

    def read(self) -> AlertState:
        """The book as Consul has it."""
        try:
            found = self.kv_store.get(STATE_FILE)
        except ConsulUnavailableError as why:
            raise AlertStateError(f"{self.access.where} {why}: what alerts remember is there") from None
        index = found.modify_index if found else 0
        if index != self.modify_index:
            self.last_state = self.parse_content(found.content if found else b"")
            self.modify_index = index
        return self.last_state

    def change(self, change: StateChange, patience: float = LOCK_TIMEOUT_S) -> AlertState:
        """Read it, change it, and write it if nobody else did meanwhile; else once more."""
        end = time.monotonic() + patience
        while True:
            before = self.read()
            after = change(before)
            if after == before:
                return before
            after, content = self.fit_to_limit(after)
            if self.try_write(content):
                return after
            if time.monotonic() > end:
                message = f"{self.where} is written by others again and again"
                raise AlertStateError(message)
            time.sleep(random.uniform(0, MAX_RETRY_PAUSE_S))  # noqa: S311 # so that they do not meet again

    def from_copy(self, why: str) -> AlertState | None:  # noqa: ARG002 # Consul keeps copies of its own
        """Return nothing: a copy in state/ is from before, or another builder's."""
        return None

    def try_write(self, content: bytes) -> bool:
        """Whether it was written; where the answer was lost, what stands there tells."""
        try:
            return self.kv_store.put(STATE_FILE, content, cas=self.modify_index)
        except ConsulUnavailableError as why:
            with suppress(ConsulUnavailableError):
                found = self.kv_store.get(STATE_FILE)
                if found and found.content == content:
                    return True
            raise AlertStateError(f"{self.access.where} {why}: nobody knows whether it was written") from None

    def serialize(self, book: AlertState) -> bytes:
        """As it is kept there."""
        return serialize_alert_state(book, packed=True)


def trim_people(book: AlertState) -> AlertState:
    """The book, where everything affects a few people at the most: a host can claim that anybody is on it."""
    known = {
        key: one._replace(
            condition=one.condition._replace(
                owners=one.condition.owners[:MAX_PEOPLE_WHEN_FULL], people=one.condition.people[:MAX_PEOPLE_WHEN_FULL]
            )
        )
        for key, one in book.conditions.items()
    }
    letters = tuple(
        one._replace(alerts=tuple(alert._replace(people=alert.people[:MAX_PEOPLE_WHEN_FULL]) for alert in one.alerts))
        for one in book.notifications
    )
    return book._replace(conditions=known, notifications=letters)


def trim_conditions(book: AlertState) -> AlertState:
    """The book with half of what is known of those hosts of which most is, so that there is room for others."""
    counts = Counter(one.condition.host for one in book.conditions.values())
    most = max(MIN_KEPT_ENTRIES, max(counts.values(), default=0) // 2)
    room = Counter(dict.fromkeys(counts, most))
    kept: dict[str, TrackedCondition] = {}
    for key, one in book.conditions.items():
        if room[one.condition.host] > 0:
            room[one.condition.host] -= 1
            kept[key] = one
    return book._replace(conditions=kept)


def open_alert_store(state: Path, access: KvAccess | None) -> AlertStore:
    """The book, wherever it is kept."""
    return ConsulAlertStore(state, access) if access else AlertStore(state)


@contextmanager
def open_state_folder(state: Path) -> Iterator[int]:
    """The folder, if it is ours alone."""
    try:
        files.check_folder(state)
        folder = os.open(state, files.ROOT_FOLDER_FLAGS)
    except files.ForeignFolderError as why:
        raise AlertStateError(str(why)) from None
    except FileNotFoundError:
        raise AlertStateError(
            f"there is no folder {state}: `gpuboard build` makes it, or --state names another"
        ) from None
    except OSError as error:
        raise AlertStateError(f"{state} cannot be read: {error.strerror}") from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def hold_state_lock(state: Path, patience: float) -> Iterator[None]:
    """For us alone; the kernel frees it, however we end."""
    with open_state_folder(state) as folder:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(STATE_LOCK, flags, 0o600, dir_fd=folder)
        except OSError as error:
            raise AlertStateError(f"{state / STATE_LOCK} cannot be opened: {error.strerror}") from None
    try:
        try:
            if not locks.acquire_lock(handle, time.monotonic() + patience, LOCK_POLL_INTERVAL_S):
                message = f"somebody else has been writing {state / STATE_FILE} for {patience:.0f} s"
                raise AlertStateError(message)
        except OSError as error:
            raise AlertStateError(f"{state / STATE_LOCK} cannot be locked: {error.strerror}") from None
        yield
    finally:
        os.close(handle)


def write_state_file(folder: int, name: str, content: bytes) -> None:
    """Write a file of ours, for somebody who holds the lock."""
    new = f".{name}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise
