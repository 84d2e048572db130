"""Copy the entries of Consul's KV store to data/, as the usual files.

A file's age is when we saw its entry change. One that may have changed long before says in its second line from when it
is: so an old entry never looks new to a builder that has just started.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import orjson

from site_builder.bookings.consul_store import COPIED_FILES, RESERVED_NAMES, ConsulStoreCopies
from site_builder.consul import kv
from site_builder.consul.client import KV_RIGHTS, ConsulRequest
from site_builder.consul.kv import KvEntry, KvStore
from site_builder.core import files
from site_builder.core.formatting import format_local_time
from site_builder.core.model import ConsulAccess, Problem
from site_builder.core.names import is_host_name
from site_builder.core.parallel import map_parallel
from site_builder.snapshots import envelope
from site_builder.snapshots import store as snapshots_store

# An entry that changed since a check no longer ago than this is new: cron builds once a minute.
RECENT_CHECK_S = 90
# A host's clock may be ahead by so many seconds; by more, it does not show how old an entry is.
MAX_CLOCK_AHEAD_S = 60
MAX_PROBLEMS = 10


class MirrorEntryRefusedError(Exception):
    """Why an entry is not copied, in one sentence."""


class ConsulMirror:
    """Copies changed entries at each build; state/kv.json has what was seen last."""

    def __init__(self, data: Path, state: Path, access: ConsulAccess) -> None:
        self.data_folder, self.access = data, access
        self.store_path = state / "kv.json"
        self.kv_store = KvStore(access)
        self.copies = ConsulStoreCopies(data, self.kv_store)
        self.checked_at = 0.0
        self.seen_indexes: dict[str, int] = {}  # by name, at the last check
        self.copied_indexes: dict[str, int] = {}  # by name, the index that was copied or refused
        self.refusals: dict[str, str] = {}  # by name, why it was not copied
        self.written_hashes: dict[str, dict[str, int]] = {}  # by host and file
        self.request: ConsulRequest | None = None
        with suppress(OSError, files.FileRefusedError, *files.PARSE_ERRORS):
            stored = orjson.loads(files.read_own_file(self.store_path))
            if stored["of"] == self.source:
                self.seen_indexes = {str(name): int(index) for name, index in stored["seen"].items()}
                self.refusals = {str(name): str(why) for name, why in stored["wrong"].items()}
                self.checked_at = float(stored["looked"])
        self.copied_indexes = {
            name: index
            for name, index in self.seen_indexes.items()
            if name in self.refusals or (is_host_name(name) and (data / name / "host.txt").exists())
        }

    @property
    def source(self) -> list[str]:
        return [self.access.address, self.access.prefix]

    def start_request(self) -> None:
        """Request all entries, unless an earlier request still hangs."""
        if self.request is None or not self.request.thread.is_alive():
            self.request = self.kv_store.request_all()

    def copy_changes(self) -> list[Problem]:
        """Bring data/ up to date, as far as Consul answers; return what is wrong."""
        if self.request is None or self.request.is_cancelled:
            self.start_request()
        request = self.request
        if request is None or request.is_cancelled:
            return [self.build_problem("does not answer: an earlier request is still waiting")]
        failure = request.wait()
        self.request = request if request.is_cancelled else None
        if failure:
            return [self.build_problem(failure)]
        body, request.response, request.body = request.body or b"[]", None, None
        dump = kv.parse_kv_entries(body, self.kv_store.data_prefix)
        del body  # the entries have their own
        if not dump.is_complete:
            return [self.build_problem("; ".join(dump.problems))]
        return [Problem(self.access.where, what) for what in dump.problems] + self.copy_entries(dump.rows, request)

    def build_problem(self, what: str) -> Problem:
        """Say why the store cannot be read, and how old the copy is."""
        serves = f"its data of {format_local_time(self.checked_at)} is used" if self.checked_at else "data/ is used"
        return Problem(self.access.where, f"{what}; {serves}")

    def copy_entries(self, entries: tuple[KvEntry, ...], request: ConsulRequest) -> list[Problem]:
        failures: list[str] = []
        changed = [entry for entry in entries if self.copied_indexes.get(entry.name) != entry.modify_index]
        # creating and renaming files takes longer than the rest, so both cores do it
        results = map_parallel(lambda entry: self.try_copy_entry(entry, request.received_at), changed)
        for entry, result in zip(changed, results):
            if isinstance(result, OSError):
                reason = result.strerror or "unknown reason"
                failures.append(f"data/{entry.name} cannot be written: {reason}")
                continue
            self.copied_indexes[entry.name] = entry.modify_index
            self.refusals.pop(entry.name, None)
            if isinstance(result, Exception):
                self.refusals[entry.name] = str(result)
            elif result:
                self.written_hashes[entry.name] = result
        names = {entry.name for entry in entries}
        self.refusals = {name: why for name, why in self.refusals.items() if name in names}
        self.seen_indexes = {entry.name: entry.modify_index for entry in entries}
        self.checked_at = request.sent_at
        if not entries:  # without rights, Consul shows nothing instead of refusing
            rights = f"correct GPUBOARD_KV, or if Consul has ACLs, {KV_RIGHTS}"
            failures.append(f"{self.kv_store.data_prefix} has no entries; {rights}")
        refusals = [
            f"{self.kv_store.data_prefix}{kv.format_kv_key(name)[1:-1]} is not copied: {why}"
            for name, why in self.refusals.items()
        ]
        sentences = truncate_mirror_sentences(refusals) + truncate_mirror_sentences(failures)
        problems = [Problem(self.access.where, sentence) for sentence in sentences]
        return problems + self.copies.update_changed(self.seen_indexes) + self.save()

    def try_copy_entry(self, entry: KvEntry, now: float) -> dict[str, int] | Exception | None:
        try:
            return self.copy_entry(entry, now)
        except (MirrorEntryRefusedError, files.FileRefusedError, OSError) as error:
            return error

    def copy_entry(self, entry: KvEntry, now: float) -> dict[str, int] | None:
        """Copy an entry of a host, and return the hashes of its files."""
        if entry.name in COPIED_FILES:
            return None  # files that people edit: ConsulStoreCopies copies them
        if not is_host_name(entry.name) or entry.name in RESERVED_NAMES:
            raise MirrorEntryRefusedError("its name is neither a valid host name nor a known file")
        content = entry.decode_value()
        if content is None:
            raise MirrorEntryRefusedError("its value is not valid base64")
        bundle = envelope.parse_bundle(content, entry.name)
        if bundle.problem:
            raise MirrorEntryRefusedError(bundle.problem)
        stored_time = self.read_stored_time(entry.name)
        contents = dict(bundle.files)
        written_hashes = self.written_hashes.get(entry.name, {})
        if bundle.host_time is not None and bundle.host_time == stored_time:
            del contents["host.txt"]  # its file time is the host's age: the same content must not make it younger
            return self.write_host_files(entry.name, contents, written_hashes)
        went_back = bundle.host_time is not None and stored_time is not None and bundle.host_time < stored_time
        entry_time = self.find_entry_time(entry, bundle.host_time or 0, now, went_back)
        if entry_time is None:
            return self.write_host_files(entry.name, contents, written_hashes)
        if "host.txt" in contents:
            contents["host.txt"] = envelope.insert_envelope_as_of_line(contents["host.txt"], entry_time)
        return self.write_host_files(entry.name, contents, {})

    def find_entry_time(self, entry: KvEntry, host_time: int, now: float, went_back: bool) -> float | None:
        """Return from when an entry is if that may be long ago; None if it changed since our last, recent check.

        An entry older than our copy may come from a backup of Consul. If the last check lies in the future, our clock
        was set back.
        """
        has_changed = self.seen_indexes.get(entry.name) != entry.modify_index and not went_back
        since = self.checked_at if has_changed and self.checked_at <= now else 0.0
        if since and now - since <= RECENT_CHECK_S:
            return None
        if host_time > now + MAX_CLOCK_AHEAD_S:
            if not since:
                ahead_s = host_time - now
                message = f"its clock is {ahead_s:.0f} s ahead: its age is unknown until its next push"
                raise MirrorEntryRefusedError(message)
            return since
        return max(since, min(host_time, now))

    def read_stored_time(self, host: str) -> int | None:
        """Return the time in the host.txt that is in data/ already."""
        try:
            folder = os.open(self.data_folder / host, files.FOLDER_FLAGS)
        except OSError:
            return None
        try:
            _, content = files.read_file("host.txt", folder, envelope.MAX_BUNDLE_BYTES)
            header, _ = envelope.parse_snapshot_header(content, "host")
        except files.FileRefusedError:
            return None
        finally:
            os.close(folder)
        return header.time if header and header.host == host else None

    def write_host_files(self, host: str, contents: dict[str, bytes], written_hashes: dict[str, int]) -> dict[str, int]:
        """Write the files of a host that changed; host.txt is the last, since its time is the host's age."""
        hashes = {name: hash(content) for name, content in contents.items()}
        with snapshots_store.prepare_stored_snapshot_folder(self.data_folder, host) as folder:
            for name, content in contents.items():
                if written_hashes.get(name) != hashes[name]:
                    files.write_atomically_in_folder(folder, name, content)
        return hashes

    def forget_host(self, host: str) -> None:
        """Forget a host whose entry was deleted, and remove its files."""
        for entries in (self.seen_indexes, self.copied_indexes, self.refusals, self.written_hashes):
            entries.pop(host, None)
        with suppress(OSError):
            snapshots_store.remove_stored_snapshots(self.data_folder, host)

    def save(self) -> list[Problem]:
        try:
            stored = {"of": self.source, "looked": self.checked_at, "seen": self.seen_indexes, "wrong": self.refusals}
            files.write_atomically(self.store_path, orjson.dumps(stored), 0o600)
        except OSError as error:
            return [Problem("state/kv.json", f"the state of the copy could not be saved: {error.strerror}")]
        return []


def truncate_mirror_sentences(sentences: list[str]) -> list[str]:
    omitted_count = len(sentences) - MAX_PROBLEMS
    if omitted_count <= 0:
        return sentences
    return [*sentences[:MAX_PROBLEMS], f"{omitted_count} more entries are not copied"]
