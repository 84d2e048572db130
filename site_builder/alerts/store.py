"""Alert state: state/alerts.json or Consul."""

from __future__ import annotations

import os
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, get_args, get_origin

import orjson

from site_builder.alerts.model import AlertState, Condition, DeliveryRecord, Notification, TrackedCondition
from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import MAX_VALUE_BYTES, KvStore
from site_builder.core import files, locks
from site_builder.core.model import ConsulAccess
from site_builder.core.records import Decoder, list_field_types, make_record_decoder

STATE_VERSION = 1
MAX_STATE_BYTES = 32 * 1024 * 1024
GZIP_MAGIC = b"\x1f\x8b"
StateChange = Callable[[AlertState], AlertState]
STATE_FILE = "alerts.json"
STATE_LOCK = "alerts.lock"
DAMAGED_FILE = "alerts.damaged.json"
# How long we wait for another writer, each of whom takes some milliseconds.
LOCK_TIMEOUT_S = 5.0
LOCK_POLL_INTERVAL_S = 0.005
# The longest pause before we try again after another writer was quicker.
MAX_RETRY_PAUSE_S = 0.1
BEGUN_ANEW = "starting over; conditions that already exist are not reported"
# What is kept when there is no room for everything.
MIN_KEPT_ENTRIES = 20
MAX_PEOPLE_WHEN_FULL = 3
# Keys of alerts.json that differ from the names of fields: the file stays as older versions wrote it.
STATE_KEYS: dict[object, dict[str, str]] = {
    AlertState: {
        "started_at": "begun",
        "conditions": "known",
        "reported_once": "once",
        "notifications": "letters",
        "sent_times": "sent",
        "id_counter": "number",
    },
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
        self.copied_file: Path | None = state_folder / STATE_FILE
        self.where = str(self.copied_file)
        self.max_bytes, self.is_packed = MAX_STATE_BYTES, False
        self.problem = ""
        self.cached_state: tuple[files.FileSignature | None, AlertState] | None = None

    def read(self) -> AlertState:
        """Read the state; return the same object as before if nothing was written since."""
        try:
            with open_alert_state_folder(self.state_folder) as folder:
                signature = files.read_signature(STATE_FILE, folder)
                if self.cached_state and self.cached_state[0] == signature:
                    return self.cached_state[1]
                data = b""
                if signature:
                    _, data = files.read_file(STATE_FILE, folder, self.max_bytes, files.check_own_file)
        except files.FileRefusedError as error:
            raise AlertStateError(f"{self.where} cannot be read: {error}") from None
        if signature and not data:
            state = self.read_copy("is empty", ", and there is no good copy")
        else:
            state = self.parse_content(data)
        self.cached_state = signature, state
        return state

    def parse_content(self, data: bytes) -> AlertState:
        """Parse the state; keep a damaged file aside, and take its copy."""
        try:
            return parse_alert_state(data, self.where)
        except DamagedStateError:
            with suppress(OSError):
                files.write_atomically(self.state_folder / DAMAGED_FILE, data, 0o600)
            return self.read_copy("is damaged")

    def read_copy(self, problem: str, without_copy: str = "") -> AlertState:
        """Return the last good copy, which is never older than the file was; an empty state if there is none."""
        content = files.read_file_copy(self.copied_file, self.max_bytes) if self.copied_file else b""
        self.problem = f"{problem}{without_copy}: {BEGUN_ANEW}"
        state = AlertState()
        with suppress(DamagedStateError, AlertStateError):
            if content:
                state = parse_alert_state(content, self.where)
                self.problem = f"{problem}: {files.COPY_USED_MESSAGE}"
        return state

    def change(self, change: StateChange, timeout_s: float = LOCK_TIMEOUT_S) -> AlertState:
        """Read, change and write the state, while nobody else does."""
        with try_alert_state_lock(self.state_folder, STATE_LOCK, timeout_s) as is_held:
            if not is_held:
                message = f"another process has been writing {self.state_folder / STATE_FILE} for {timeout_s:.0f} s"
                raise AlertStateError(message)
            before = self.read()
            after = change(before)
            if after != before:
                after, content = self.fit_to_limit(after)
                self.write(content)
                with open_alert_state_folder(self.state_folder) as folder:
                    self.cached_state = files.read_signature(STATE_FILE, folder), after
        return after

    def fit_to_limit(self, state: AlertState) -> tuple[AlertState, bytes]:
        while len(content := serialize_alert_state(state, self.is_packed)) > self.max_bytes:
            smaller = shrink_alert_state(state)
            if smaller == state:
                message = f"{self.where} would have {len(content)} bytes; the limit is {self.max_bytes}"
                raise AlertStateError(message)
            state = smaller
        return state, content

    def write(self, content: bytes) -> None:
        """Write the file atomically and to the disk, and its copy first."""

        def write_to_disk(file: IO[bytes]) -> None:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

        try:
            path = self.state_folder / STATE_FILE
            files.write_atomically(files.find_copy_file(path), content, 0o600)
            files.write_atomically(path, write_to_disk, 0o600)
            with open_alert_state_folder(self.state_folder) as folder:
                os.fsync(folder)
        except OSError as error:
            raise AlertStateError(f"{self.where} cannot be written: {error.strerror}") from None


class ConsulAlertStore(AlertStore):
    def __init__(self, state_folder: Path, access: ConsulAccess) -> None:
        super().__init__(state_folder)
        self.access, self.kv_store = access, KvStore(access)
        # a copy in state/ is older, or another builder's, and Consul keeps copies of its own
        self.copied_file = None
        self.where = f"{access.prefix}/{STATE_FILE} in Consul"
        self.max_bytes, self.is_packed = MAX_VALUE_BYTES, True
        self.modify_index: int | None = None
        self.last_state = AlertState()

    def read(self) -> AlertState:
        try:
            entry = self.kv_store.get(STATE_FILE)
        except ConsulUnavailableError as error:
            raise AlertStateError(f"{self.access.where} {error}: the alert state is stored there") from None
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
                raise AlertStateError(f"{self.where} keeps being changed by others: try again")
            time.sleep(random.uniform(0, MAX_RETRY_PAUSE_S))  # noqa: S311 # so that they do not meet again

    def try_write(self, content: bytes) -> bool:
        """Return True if it was written; if the answer was lost, compare what is there now."""
        try:
            return self.kv_store.put(STATE_FILE, content, cas=self.modify_index)
        except ConsulUnavailableError as error:
            with suppress(ConsulUnavailableError):
                entry = self.kv_store.get(STATE_FILE)
                if entry and entry.content == content:
                    return True
            raise AlertStateError(f"{self.access.where} {error}: unknown whether it was written") from None


def open_alert_store(state_folder: Path, access: ConsulAccess | None) -> AlertStore:
    return ConsulAlertStore(state_folder, access) if access else AlertStore(state_folder)


def shrink_alert_state(state: AlertState) -> AlertState:
    """Drop half of the old history, then of what was reported once, then most people, then half of the conditions."""
    if len(state.history) > MIN_KEPT_ENTRIES:
        return state._replace(history=state.history[len(state.history) // 2 :])
    if len(state.reported_once) > MIN_KEPT_ENTRIES:
        by_end = sorted(state.reported_once.items(), key=lambda item: item[1])
        return state._replace(reported_once=dict(by_end[len(by_end) // 2 :]))
    # keep only a few people of each condition and alert: a host can claim that anybody is on it
    conditions, most = {}, MAX_PEOPLE_WHEN_FULL
    for key, tracked in state.conditions.items():
        owners, people = tracked.condition.owners[:most], tracked.condition.people[:most]
        conditions[key] = tracked._replace(condition=tracked.condition._replace(owners=owners, people=people))
    notifications = []
    for notification in state.notifications:
        alerts = tuple(alert._replace(people=alert.people[:most]) for alert in notification.alerts)
        notifications.append(notification._replace(alerts=alerts))
    trimmed = state._replace(conditions=conditions, notifications=tuple(notifications))
    if trimmed != state:
        return trimmed
    # drop conditions of the hosts that have most, so that there is room for others
    counts = Counter(tracked.condition.host for tracked in state.conditions.values())
    room = Counter(dict.fromkeys(counts, max(MIN_KEPT_ENTRIES, max(counts.values(), default=0) // 2)))
    kept: dict[str, TrackedCondition] = {}
    for key, tracked in state.conditions.items():
        if room[tracked.condition.host] > 0:
            room[tracked.condition.host] -= 1
            kept[key] = tracked
    return state._replace(conditions=kept)


# Format


def parse_alert_state(data: bytes, where: str) -> AlertState:
    if not data:
        return AlertState()
    try:
        if data.startswith(GZIP_MAGIC):
            decompressor = zlib.decompressobj(wbits=31)
            data = decompressor.decompress(data, MAX_STATE_BYTES)  # up to what we would write
            if not decompressor.eof:
                raise DamagedStateError
        document = orjson.loads(data)
        if make_record_decoder(int)(document["gpuboard"]) > STATE_VERSION:
            raise AlertStateError(f"{where} was written by a newer gpuboard: update this one")
        if not {STATE_KEYS[AlertState].get(name, name) for name in AlertState._fields} <= document.keys():
            raise DamagedStateError
        return make_alert_state_decoder(AlertState)(document)  # type: ignore[no-any-return]
    except (DamagedStateError, ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        raise DamagedStateError from None


@cache
def make_alert_state_decoder(kind: Any) -> Decoder:  # noqa: ANN401 # a type or a typing construct
    """Return a function that turns parsed JSON into `kind`, or raises an error."""
    if hasattr(kind, "_fields"):  # one of our tuples; fields of a later gpuboard are ignored
        keys = STATE_KEYS.get(kind, {})
        decoders = {
            keys.get(name, name): (name, make_alert_state_decoder(field_type))
            for name, field_type in zip(kind._fields, list_field_types(kind))
        }

        def decode_fields(value: dict[str, Any]) -> Any:  # noqa: ANN401 # one of our tuples
            known_fields = ((decoders[key], field) for key, field in value.items() if key in decoders)
            return kind(**{name: decode(field) for (name, decode), field in known_fields})

        return decode_fields
    item_type = next((inner for inner in get_args(kind) if hasattr(inner, "_fields")), None)
    if item_type is None:
        return make_record_decoder(kind)
    decode_item = make_alert_state_decoder(item_type)
    if get_origin(kind) is dict:
        return lambda value: {key: decode_item(entry) for key, entry in value.items()}

    def decode_items(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise DamagedStateError
        return tuple(map(decode_item, value))

    return decode_items


def serialize_alert_state(state: AlertState, packed: bool = False) -> bytes:
    """Serialize a state; the same state always has the same bytes."""

    def tuple_to_json(value: Any, omit_defaults: bool = True) -> dict[str, Any]:  # noqa: ANN401 # any of our tuples
        keys, defaults = STATE_KEYS.get(type(value), {}), value._field_defaults if omit_defaults else {}
        return {
            keys.get(name, name): field
            for name, field in zip(value._fields, value)
            if name not in defaults or defaults[name] != field
        }

    document = {"gpuboard": STATE_VERSION, **tuple_to_json(state, omit_defaults=False)}
    plain = orjson.dumps(document, default=tuple_to_json)
    if not packed:
        return plain + b"\n"
    # as gzip does, but without the time, so that the same state has the same bytes
    compressor = zlib.compressobj(6, wbits=31)
    return compressor.compress(plain) + compressor.flush()


# Files


@contextmanager
def open_alert_state_folder(state_folder: Path) -> Iterator[int]:
    """Open the folder, if it is ours alone."""
    try:
        files.refuse_foreign_folder(state_folder)
        folder = os.open(state_folder, files.ROOT_FOLDER_FLAGS)
    except files.ForeignFolderError as error:
        raise AlertStateError(str(error)) from None
    except FileNotFoundError:
        message = f"the folder {state_folder} does not exist: `gpuboard build` creates it, or use --state"
        raise AlertStateError(message) from None
    except OSError as error:
        raise AlertStateError(f"{state_folder} cannot be read: {error.strerror}") from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def try_alert_state_lock(state_folder: Path, name: str, timeout_s: float) -> Iterator[bool]:
    """Yield whether we hold a lock in the folder; the kernel frees it, however the process ends."""
    with open_alert_state_folder(state_folder) as folder:
        try:
            handle = os.open(name, locks.LOCK_FLAGS, 0o600, dir_fd=folder)
        except OSError as error:
            raise AlertStateError(f"{state_folder / name} cannot be opened: {error.strerror}") from None
    try:
        try:
            is_held = locks.acquire_lock(handle, time.monotonic() + timeout_s, LOCK_POLL_INTERVAL_S)
        except OSError as error:
            raise AlertStateError(f"{state_folder / name} cannot be locked: {error.strerror}") from None
        yield is_held
    finally:
        os.close(handle)
