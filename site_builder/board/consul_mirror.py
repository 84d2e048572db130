"""data/ as a copy of what stands in Consul's KV store: what moved there is written here, as the usual files.

A file's age is when we saw its entry move. One that may have moved long before, because nobody looked, says in its
second line from when it is: so an old entry never looks new to a builder that has just begun.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import orjson

from site_builder.bookings.consul_store import COPIED_FILES, RESERVED_NAMES, ConsulCopies
from site_builder.consul import kv
from site_builder.consul.client import KV_RIGHTS, TIMEOUT_MESSAGE, ConsulRequest
from site_builder.consul.kv import KvEntry, KvStore
from site_builder.core import files
from site_builder.core.formatting import format_local_time
from site_builder.core.model import KvAccess, Problem
from site_builder.core.names import is_host_name
from site_builder.core.parallel import map_parallel
from site_builder.snapshots import envelope
from site_builder.snapshots import store as snapshots_store

# What moved since a look that was no longer ago than this is new: cron builds once a minute.
RECENT_CHECK_S = 90
# A host's clock may be ahead by so many seconds; by more, it does not tell how old an entry is.
MAX_CLOCK_AHEAD_S = 60
MAX_PROBLEMS = 10


class EntryRefusedError(Exception):
    """Why an entry is not copied, in words."""


class CopyResult(NamedTuple):
    """What came of an entry: what tells the contents of its files from the next, why it is not ours, or what failed."""

    written_hashes: dict[str, int] | None = None
    refusal: str | None = None
    failure: str | None = None


class ConsulMirror:
    """Looks at the store again and again, and copies what moved; state/kv.json keeps what it saw."""

    def __init__(self, data: Path, state: Path, access: KvAccess) -> None:
        """Take up what the last builder saw, if it was there too."""
        self.data_folder, self.access = data, access
        self.store_path = state / "kv.json"
        self.kv_store = KvStore(access)
        self.copies = ConsulCopies(data, self.kv_store)
        self.checked_at = 0.0
        self.seen_indexes: dict[str, int] = {}  # by name, the index of the last look
        self.copied_indexes: dict[str, int] = {}  # by name, the index that was copied, or found not to be ours
        self.refusals: dict[str, str] = {}  # by name, why it was not copied
        self.written_hashes: dict[str, dict[str, int]] = {}  # by host and file, what tells one content from the next
        self.request: ConsulRequest | None = None
        with suppress(OSError, files.FileRefusedError, *files.WRONG_SHAPE):
            told = orjson.loads(files.read(self.store_path))
            if told["of"] == self.source:
                self.seen_indexes = {str(name): int(index) for name, index in told["seen"].items()}
                self.refusals = {str(name): str(why) for name, why in told["wrong"].items()}
                self.checked_at = float(told["looked"])
        self.copied_indexes = {
            name: index
            for name, index in self.seen_indexes.items()
            if name in self.refusals or (is_host_name(name) and (data / name / "host.txt").exists())
        }

    @property
    def source(self) -> list[str]:
        """What was looked at."""
        return [self.access.consul.address, self.access.prefix]

    def start_request(self) -> None:
        """Ask, unless an earlier question still hangs."""
        if self.request is None or not self.request.thread.is_alive():
            self.request = self.kv_store.request_all()

    def copy_changes(self) -> list[Problem]:
        """Bring data/ up to date, as far as Consul answers; what is wrong."""
        if self.request is None or self.request.is_cancelled:
            self.start_request()
        question = self.request
        if question is None or question.is_cancelled:
            return [self.build_problem("does not answer, and still hangs on an earlier question")]
        if not question.wait():
            question.cancel()
            return [self.build_problem(TIMEOUT_MESSAGE)]
        self.request = None
        if question.failure:
            return [self.build_problem(question.failure)]
        body, question.response, question.body = question.body or b"[]", None, None
        dump = kv.parse_kv_entries(body, self.kv_store.data_prefix)
        del body  # the entries have their own
        if not dump.is_complete:
            return [self.build_problem("; ".join(dump.problems))]
        return [Problem(self.access.where, what) for what in dump.problems] + self.copy_entries(dump.rows, question)

    def build_problem(self, what: str) -> Problem:
        """The one sentence on a store that cannot be read."""
        serves = (
            f"what it had at {format_local_time(self.checked_at)} serves, and grows old"
            if self.checked_at
            else "data/ serves"
        )
        return Problem(self.access.where, f"{what}; {serves}")

    def copy_entries(self, entries: tuple[KvEntry, ...], question: ConsulRequest) -> list[Problem]:
        """Copy what moved."""
        failures: list[str] = []
        moved = [entry for entry in entries if self.copied_indexes.get(entry.name) != entry.modify_index]
        # to make a file and to rename it takes longer than all else, so that both cores do it
        for entry, copied in zip(
            moved, map_parallel(lambda entry: self.try_copy_entry(entry, question.received_at), moved)
        ):
            if copied.failure:
                failures.append(f"data/{entry.name} cannot be written: {copied.failure}")
                continue
            self.copied_indexes[entry.name] = entry.modify_index
            self.refusals.pop(entry.name, None)
            if copied.refusal:
                self.refusals[entry.name] = copied.refusal
            elif copied.written_hashes:
                self.written_hashes[entry.name] = copied.written_hashes
        names = {entry.name for entry in entries}
        self.refusals = {name: why for name, why in self.refusals.items() if name in names}
        self.seen_indexes = {entry.name: entry.modify_index for entry in entries}
        self.checked_at = question.sent_at
        if not entries:  # without rights, Consul shows nothing rather than to refuse
            rights = f"correct GPUBOARD_KV, or if Consul has ACLs, {KV_RIGHTS}"
            failures.append(f"{self.kv_store.data_prefix} has no entries; {rights}")
        problems = [
            Problem(self.access.where, what) for what in self.describe_refusals() + truncate_sentences(failures)
        ]
        return problems + self.copies.update_changed(self.seen_indexes) + self.save()

    def describe_refusals(self) -> list[str]:
        """What is not ours, a sentence each."""
        where = self.kv_store.data_prefix
        return truncate_sentences(
            [f"{where}{kv.format_kv_key(name)[1:-1]} is not copied: {why}" for name, why in self.refusals.items()]
        )

    def try_copy_entry(self, entry: KvEntry, now: float) -> CopyResult:
        """One entry, whatever happens."""
        try:
            return CopyResult(self.copy_entry(entry, now))
        except (EntryRefusedError, files.FileRefusedError) as why:
            return CopyResult(refusal=str(why))
        except OSError as error:
            return CopyResult(failure=error.strerror or "for no reason that is told")

    def copy_entry(self, entry: KvEntry, now: float) -> dict[str, int] | None:
        """One entry, if it is ours; what its files are now."""
        if entry.name in COPIED_FILES:
            return None  # those that people write: `copies` looks at them
        if not is_host_name(entry.name) or entry.name in RESERVED_NAMES:
            message = "its name is neither that of a host nor that of a file that we know"
            raise EntryRefusedError(message)
        content = entry.decode_value()
        if content is None:
            message = "its value is not what Consul writes"
            raise EntryRefusedError(message)
        found = envelope.parse_bundle(content, entry.name)
        if found.problem:
            raise EntryRefusedError(found.problem)
        stands = self.read_stored_time(entry.name)
        contents = dict(found.files)
        if found.host_time is not None and found.host_time == stands:
            del contents["host.txt"]  # by which its age counts: the same once more makes nobody younger
            return self.write_host_files(entry.name, contents, self.written_hashes.get(entry.name, {}))
        went_back = found.host_time is not None and stands is not None and found.host_time < stands
        moment = self.find_entry_time(entry, found.host_time or 0, now, went_back)
        if moment is None:
            return self.write_host_files(entry.name, contents, self.written_hashes.get(entry.name, {}))
        if "host.txt" in contents:
            contents["host.txt"] = envelope.insert_as_of_line(contents["host.txt"], moment)
        return self.write_host_files(entry.name, contents, {})

    def find_entry_time(self, entry: KvEntry, told: int, now: float, went_back: bool) -> float | None:
        """From when it is, where that may be long ago; None if it moved since our last look, which was just now.

        What is older than what we have may come from a backup of Consul's. A look that is yet to come was told by
        another clock than ours is now.
        """
        has_moved = self.seen_indexes.get(entry.name) != entry.modify_index and not went_back
        since = self.checked_at if has_moved and self.checked_at <= now else 0.0
        if since and now - since <= RECENT_CHECK_S:
            return None
        if told > now + MAX_CLOCK_AHEAD_S:
            if not since:
                message = f"its clock is {told - now:.0f} s ahead, so that nobody knows how old it is until it moves"
                raise EntryRefusedError(message)
            return since
        return max(since, min(told, now))

    def read_stored_time(self, host: str) -> int | None:
        """The time that the host.txt tells which stands in data/ already."""
        try:
            folder = os.open(self.data_folder / host, files.FOLDER_FLAGS)
        except OSError:
            return None
        try:
            header, _ = envelope.parse_snapshot_header(
                files.read_file("host.txt", folder, envelope.MAX_BUNDLE_BYTES)[1], "host"
            )
        except files.FileRefusedError:
            return None
        finally:
            os.close(folder)
        return header.time if header and header.host == host else None

    def write_host_files(self, host: str, contents: dict[str, bytes], before: dict[str, int]) -> dict[str, int]:
        """The files of a host, those that are others than before; host.txt, by which its age counts, is the last."""
        now = {name: hash(content) for name, content in contents.items()}
        with snapshots_store.open_own_folder(self.data_folder, host) as folder:
            for name, content in contents.items():
                if before.get(name) != now[name]:
                    files.write_atomically_in_folder(folder, name, content)
        return now

    def forget_host(self, host: str) -> None:
        """Let go of a host whose entry was deleted, and of its files."""
        for kept in (self.seen_indexes, self.copied_indexes, self.refusals, self.written_hashes):
            kept.pop(host, None)
        with suppress(OSError):
            snapshots_store.remove_host_files(self.data_folder, host)

    def save(self) -> list[Problem]:
        """Keep what we saw, and when."""
        try:
            kept = {"of": self.source, "looked": self.checked_at, "seen": self.seen_indexes, "wrong": self.refusals}
            files.write_atomically(self.store_path, orjson.dumps(kept), 0o600)
        except OSError as error:
            return [Problem("state/kv.json", f"what was seen in Consul could not be kept: {error.strerror}")]
        return []


def truncate_sentences(sentences: list[str]) -> list[str]:
    """As many as anybody reads."""
    more = len(sentences) - MAX_PROBLEMS
    return sentences if more <= 0 else [*sentences[:MAX_PROBLEMS], f"{more} more entries are not copied either"]
