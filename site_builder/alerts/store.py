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
MAX_STATE_BYTES = 32 * 1024 * 1024
GZIP_MAGIC = b"\x1f\x8b"
Parsed = TypeVar("Parsed")
StateChange = Callable[[AlertState], AlertState]
STATE_FILE = "alerts.json"
STATE_LOCK = "alerts.lock"
DAMAGED_FILE = "alerts.damaged.json"
# How long we wait for another writer, each of whom takes some milliseconds.
LOCK_TIMEOUT_S = 5.0
LOCK_POLL_INTERVAL_S = 0.005
# The longest pause before we try again after another writer was quicker.
MAX_RETRY_PAUSE_S = 0.1
# What is kept when there is no room for everything.
MIN_KEPT_ENTRIES = 20
MAX_PEOPLE_WHEN_FULL = 3
# Keys of alerts.json that differ from the names of fields: the file stays as older versions wrote it.
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


class AlertStateError(Exception):
    """The alert state cannot be read or written."""


class DamagedStateError(Exception):
    """The content is not what we wrote."""


class AlertStore:
    """The alert state in a file; `problem` is what was wrong with it when it was last read."""

    def __init__(self, state_folder: Path) -> None:
        self.state_folder = state_folder
        self.where = str(state_folder / STATE_FILE)
        self.max_bytes = MAX_STATE_BYTES
        self.problem = ""
        self.cached_state: tuple[files.FileSignature | None, AlertState] | None = None

    def read(self) -> AlertState:
        """Read the state; return the same object as before if nothing was written since."""
        try:
            with open_state_folder(self.state_folder) as folder:
                signature = files.read_signature(STATE_FILE, folder)
                if self.cached_state and self.cached_state[0] == signature:
                    return self.cached_state[1]
                data = files.read_file(STATE_FILE, folder, self.max_bytes, files.check_file)[1] if signature else b""
        except files.FileRefusedError as error:
            raise AlertStateError(f"{self.where} cannot be read: {error}") from None
        if data or not signature:
            state = self.parse_content(data)
        else:
            copy = self.read_copy("is empty")
            if copy is None:
                beginning = "begun anew, and what was so already is not told"
                self.problem = f"is empty, and there is no good copy of it: {beginning}"
            state = copy or AlertState()
        self.cached_state = signature, state
        return state

    def read_copy(self, problem: str) -> AlertState | None:
        """Return the last good copy, if there is one; it is never older than the file was."""
        content = files.read_copy(self.state_folder / STATE_FILE, self.max_bytes)
        copy = parse_alert_state(content)
        if not content or copy.problem:
            return None
        self.problem = f"{problem}: {files.USED}"
        return copy.state

    def parse_content(self, data: bytes) -> AlertState:
        """Parse the state; keep a damaged file aside."""
        parsed = parse_alert_state(data)
        if parsed.is_newer:
            raise AlertStateError(f"{self.where} {parsed.problem}")
        if parsed.problem:
            self.problem = parsed.problem
            with suppress(OSError):
                files.write_atomically(self.state_folder / DAMAGED_FILE, data, 0o600)
            return self.read_copy("is damaged") or parsed.state
        return parsed.state

    def change(self, change: StateChange, timeout_s: float = LOCK_TIMEOUT_S) -> AlertState:
        """Read, change and write the state, while nobody else does."""
        with hold_state_lock(self.state_folder, timeout_s):
            before = self.read()
            after = change(before)
            if after != before:
                after, content = self.fit_to_limit(after)
                self.write(content)
                with open_state_folder(self.state_folder) as folder:
                    self.cached_state = files.read_signature(STATE_FILE, folder), after
        return after

    def fit_to_limit(self, state: AlertState) -> tuple[AlertState, bytes]:
        """Return the state and its bytes; without room for everything, drop old history first, then the rest."""
        content = self.serialize(state)
        while len(content) > self.max_bytes and len(state.history) > MIN_KEPT_ENTRIES:
            state = state._replace(history=state.history[len(state.history) // 2 :])
            content = self.serialize(state)
        while len(content) > self.max_bytes and len(state.reported_once) > MIN_KEPT_ENTRIES:
            by_end = sorted(state.reported_once.items(), key=lambda item: item[1])
            state = state._replace(reported_once=dict(by_end[len(by_end) // 2 :]))
            content = self.serialize(state)
        if len(content) > self.max_bytes:
            state = trim_people(state)
            content = self.serialize(state)
        while len(content) > self.max_bytes and (trimmed := trim_conditions(state)) != state:
            state = trimmed
            content = self.serialize(state)
        if len(content) > self.max_bytes:
            raise AlertStateError(f"{self.where} would have {len(content)} bytes, and {self.max_bytes} is the limit")
        return state, content

    def serialize(self, state: AlertState) -> bytes:
        return serialize_alert_state(state)

    def write(self, content: bytes) -> None:
        """Write the file atomically, and its copy first."""
        try:
            files.write_atomically(files.copy_of(self.state_folder / STATE_FILE), content, 0o600)
            with open_state_folder(self.state_folder) as folder:
                write_state_file(folder, STATE_FILE, content)
        except OSError as error:
            raise AlertStateError(f"{self.where} cannot be written: {error.strerror}") from None


class ConsulAlertStore(AlertStore):
    """The alert state of several builders, in Consul."""

    def __init__(self, state_folder: Path, access: KvAccess) -> None:
        super().__init__(state_folder)
        self.access, self.kv_store = access, KvStore(access)
        self.where = f"{access.prefix}/{STATE_FILE} in Consul"
        self.max_bytes = MAX_VALUE_BYTES
        self.modify_index: int | None = None
        self.last_state = AlertState()

    def read(self) -> AlertState:
        try:
            entry = self.kv_store.get(STATE_FILE)
        except ConsulUnavailableError as error:
            raise AlertStateError(f"{self.access.where} {error}: what alerts remember is there") from None
        modify_index = entry.modify_index if entry else 0
        if modify_index != self.modify_index:
            self.last_state = self.parse_content(entry.content if entry else b"")
            self.modify_index = modify_index
        return self.last_state

    def change(self, change: StateChange, timeout_s: float = LOCK_TIMEOUT_S) -> AlertState:
        """Read, change and write the state; repeat it if somebody else wrote meanwhile."""
        deadline = time.monotonic() + timeout_s
        while True:
            before = self.read()
            after = change(before)
            if after == before:
                return before
            after, content = self.fit_to_limit(after)
            if self.try_write(content):
                return after
            if time.monotonic() > deadline:
                raise AlertStateError(f"{self.where} is written by others again and again")
            time.sleep(random.uniform(0, MAX_RETRY_PAUSE_S))  # noqa: S311 # so that they do not meet again

    def read_copy(self, problem: str) -> AlertState | None:  # noqa: ARG002
        """Return nothing: a copy in state/ is older, or another builder's, and Consul keeps copies of its own."""
        return None

    def try_write(self, content: bytes) -> bool:
        """Return True if it was written; if the answer was lost, compare what is there now."""
        try:
            return self.kv_store.put(STATE_FILE, content, cas=self.modify_index)
        except ConsulUnavailableError as error:
            with suppress(ConsulUnavailableError):
                entry = self.kv_store.get(STATE_FILE)
                if entry and entry.content == content:
                    return True
            raise AlertStateError(f"{self.access.where} {error}: nobody knows whether it was written") from None

    def serialize(self, state: AlertState) -> bytes:
        return serialize_alert_state(state, packed=True)


def open_alert_store(state_folder: Path, access: KvAccess | None) -> AlertStore:
    return ConsulAlertStore(state_folder, access) if access else AlertStore(state_folder)


def trim_people(state: AlertState) -> AlertState:
    """Keep only a few people of each condition and alert: a host can claim that anybody is on it."""
    conditions = {}
    for key, tracked in state.conditions.items():
        condition = tracked.condition._replace(
            owners=tracked.condition.owners[:MAX_PEOPLE_WHEN_FULL],
            people=tracked.condition.people[:MAX_PEOPLE_WHEN_FULL],
        )
        conditions[key] = tracked._replace(condition=condition)
    notifications = []
    for notification in state.notifications:
        alerts = tuple(alert._replace(people=alert.people[:MAX_PEOPLE_WHEN_FULL]) for alert in notification.alerts)
        notifications.append(notification._replace(alerts=alerts))
    return state._replace(conditions=conditions, notifications=tuple(notifications))


def trim_conditions(state: AlertState) -> AlertState:
    """Drop half of the conditions of the hosts that have most, so that there is room for others."""
    counts = Counter(tracked.condition.host for tracked in state.conditions.values())
    limit = max(MIN_KEPT_ENTRIES, max(counts.values(), default=0) // 2)
    room = Counter(dict.fromkeys(counts, limit))
    kept: dict[str, TrackedCondition] = {}
    for key, tracked in state.conditions.items():
        if room[tracked.condition.host] > 0:
            room[tracked.condition.host] -= 1
            kept[key] = tracked
    return state._replace(conditions=kept)


# Format


class ParsedAlertState(NamedTuple):
    """A parsed state, or an empty one and why; one of a newer version must not be overwritten."""

    state: AlertState
    problem: str = ""
    is_newer: bool = False


def parse_alert_state(data: bytes) -> ParsedAlertState:
    if not data:
        return ParsedAlertState(AlertState())
    try:
        document = orjson.loads(decompress_state(data))
        if require_integer(document["gpuboard"]) > STATE_VERSION:
            return ParsedAlertState(AlertState(), "was written by a newer gpuboard: update this one", is_newer=True)
        return ParsedAlertState(build_alert_state(document))
    except (DamagedStateError, ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        return ParsedAlertState(AlertState(), "is damaged: begun anew, and what was so already is not told")


def serialize_alert_state(state: AlertState, packed: bool = False) -> bytes:
    """Serialize a state; the same state always has the same bytes."""
    document = {
        "gpuboard": STATE_VERSION,
        "begun": state.started_at,
        "known": {key: tuple_to_json(tracked) for key, tracked in state.conditions.items()},
        "once": state.reported_once,
        "letters": [tuple_to_json(notification) for notification in state.notifications],
        "silences": state.silences,
        "sent": state.sent_times,
        "history": [tuple_to_json(record) for record in state.history],
        "number": state.id_counter,
    }
    plain = orjson.dumps(document)
    return compress_state(plain) if packed else plain + b"\n"


def tuple_to_json(value: Any) -> dict[str, Any]:  # noqa: ANN401 # any of our tuples
    """Convert a tuple to its fields, without those that have their default."""
    fields: dict[str, Any] = {}
    keys = STATE_KEYS.get(type(value), {})
    for name, field in zip(value._fields, value):
        if name in value._field_defaults and value._field_defaults[name] == field:
            continue
        key = keys.get(name, name)
        if hasattr(field, "_fields"):
            fields[key] = tuple_to_json(field)
        elif isinstance(field, tuple):
            fields[key] = [tuple_to_json(item) if hasattr(item, "_fields") else item for item in field]
        else:
            fields[key] = field
    return fields


def compress_state(plain: bytes) -> bytes:
    """Compress as gzip does, but without the time, so that the same state has the same bytes."""
    compressor = zlib.compressobj(6, wbits=31)
    return compressor.compress(plain) + compressor.flush()


def decompress_state(data: bytes) -> bytes:
    """Decompress if needed, up to what we would write."""
    if not data.startswith(GZIP_MAGIC):
        return data
    decompressor = zlib.decompressobj(wbits=31)
    plain = decompressor.decompress(data, MAX_STATE_BYTES)
    if not decompressor.eof:
        raise DamagedStateError
    return plain


def build_alert_state(document: dict[str, Any]) -> AlertState:
    def require_integers(values: dict[Any, Any]) -> dict[str, int]:
        return {require_text(key): require_integer(value) for key, value in values.items()}

    return AlertState(
        started_at=None if document["begun"] is None else require_integer(document["begun"]),
        conditions={
            require_text(key): build_tuple(TrackedCondition, value) for key, value in document["known"].items()
        },
        reported_once=require_integers(document["once"]),
        notifications=require_list(document["letters"], lambda value: build_tuple(Notification, value)),
        silences=require_integers(document["silences"]),
        sent_times={require_text(key): require_list(value, require_integer) for key, value in document["sent"].items()},
        history=require_list(document["history"], lambda value: build_tuple(DeliveryRecord, value)),
        id_counter=require_integer(document["number"]),
    )


def build_tuple(kind: Callable[..., Parsed], value: Any) -> Parsed:  # noqa: ANN401 # JSON
    """Build one of our tuples; ignore fields of a later gpuboard."""
    if not isinstance(value, dict):
        raise DamagedStateError
    keys = STATE_KEYS.get(kind, {})
    fields = {}
    for name, parse in FIELD_PARSERS[kind].items():
        key = keys.get(name, name)
        if key in value:
            fields[name] = parse(value[key])
    return kind(**fields)


def require_text(value: object) -> str:
    if not isinstance(value, str):
        raise DamagedStateError
    return value


def require_integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DamagedStateError
    return value


def require_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise DamagedStateError
    return value


def require_list(value: object, parse: Callable[[Any], Parsed]) -> tuple[Parsed, ...]:
    if not isinstance(value, list):
        raise DamagedStateError
    return tuple(parse(item) for item in value)


# By the annotations of the fields in alerts/model.py.
PARSERS_BY_TYPE: dict[str, Callable[[Any], Any]] = {
    "str": require_text,
    "str | None": lambda value: None if value is None else require_text(value),
    "int": require_integer,
    "int | None": lambda value: None if value is None else require_integer(value),
    "bool": require_boolean,
    "tuple[str, ...]": lambda value: require_list(value, require_text),
    "tuple[Alert, ...]": lambda value: require_list(value, lambda item: build_tuple(Alert, item)),
    "Condition": lambda value: build_tuple(Condition, value),
}
FIELD_PARSERS: dict[object, dict[str, Callable[[Any], Any]]] = {
    kind: {
        name: PARSERS_BY_TYPE[annotation if isinstance(annotation, str) else annotation.__forward_arg__]
        for name, annotation in kind.__annotations__.items()
    }
    for kind in (Condition, Alert, Notification, TrackedCondition, DeliveryRecord)
}


# Files


@contextmanager
def open_state_folder(state_folder: Path) -> Iterator[int]:
    """Open the folder, if it is ours alone."""
    try:
        files.check_folder(state_folder)
        folder = os.open(state_folder, files.ROOT_FOLDER_FLAGS)
    except files.ForeignFolderError as error:
        raise AlertStateError(str(error)) from None
    except FileNotFoundError:
        message = f"there is no folder {state_folder}: `gpuboard build` makes it, or --state names another"
        raise AlertStateError(message) from None
    except OSError as error:
        raise AlertStateError(f"{state_folder} cannot be read: {error.strerror}") from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def hold_state_lock(state_folder: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock of the alert state; the kernel frees it, however the process ends."""
    lock_path = state_folder / STATE_LOCK
    with open_state_folder(state_folder) as folder:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(STATE_LOCK, flags, 0o600, dir_fd=folder)
        except OSError as error:
            raise AlertStateError(f"{lock_path} cannot be opened: {error.strerror}") from None
    try:
        try:
            is_locked = locks.acquire_lock(handle, time.monotonic() + timeout_s, LOCK_POLL_INTERVAL_S)
        except OSError as error:
            raise AlertStateError(f"{lock_path} cannot be locked: {error.strerror}") from None
        if not is_locked:
            message = f"somebody else has been writing {state_folder / STATE_FILE} for {timeout_s:.0f} s"
            raise AlertStateError(message)
        yield
    finally:
        os.close(handle)


def write_state_file(folder: int, name: str, content: bytes) -> None:
    """Write a file atomically and to the disk; the caller holds the lock."""
    new_name = f".{name}.new"
    try:
        with suppress(FileNotFoundError):
            os.unlink(new_name, dir_fd=folder)
        handle = os.open(new_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.rename(new_name, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError:
        with suppress(OSError):
            os.unlink(new_name, dir_fd=folder)
        raise
