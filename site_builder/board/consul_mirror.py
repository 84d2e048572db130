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

from site_builder.bookings.consul_copies import OTHERS, PLAIN, Copies
from site_builder.consul import kv_reply
from site_builder.consul.catalog import KV_RIGHTS
from site_builder.consul.client import LATE, Question
from site_builder.consul.kv import KvStore
from site_builder.consul.kv_reply import Entry
from site_builder.core import files, own_files
from site_builder.core.cached_file import minute
from site_builder.core.model import KvAccess, Problem
from site_builder.core.names import is_host
from site_builder.core.parallel import both
from site_builder.snapshots import bundle, envelope
from site_builder.snapshots import store as snapshots_store

# What moved since a look that was no longer ago than this is new: cron builds once a minute.
NEAR = 90
# A host's clock may be ahead by so many seconds; by more, it does not tell how old an entry is.
AHEAD = 60
MOST_TOLD = 10


class NotOurs(Exception):
    """Why an entry is not copied, in words."""


class Copied(NamedTuple):
    """What came of an entry: what tells the contents of its files from the next, why it is not ours, or what failed."""

    wrote: dict[str, int] | None = None
    wrong: str | None = None
    failure: str | None = None


class Mirror:
    """Looks at the store again and again, and copies what moved; state/kv.json keeps what it saw."""

    def __init__(self, data: Path, state: Path, access: KvAccess) -> None:
        """Take up what the last builder saw, if it was there too."""
        self.data, self.access = data, access
        self.state = state / "kv.json"
        self.store = KvStore(access)
        self.copies = Copies(data, self.store)
        self.looked = 0.0
        self.seen: dict[str, int] = {}  # by name, the index of the last look
        self.done: dict[str, int] = {}  # by name, the index that was copied, or found not to be ours
        self.wrong: dict[str, str] = {}  # by name, why it was not copied
        self.wrote: dict[str, dict[str, int]] = {}  # by host and file, what tells one content from the next
        self.question: Question | None = None
        with suppress(OSError, files.Refused, *own_files.WRONG_SHAPE):
            told = orjson.loads(own_files.read(self.state))
            if told["of"] == self.of:
                self.seen = {str(name): int(index) for name, index in told["seen"].items()}
                self.wrong = {str(name): str(why) for name, why in told["wrong"].items()}
                self.looked = float(told["looked"])
        self.done = {
            name: index
            for name, index in self.seen.items()
            if name in self.wrong or (is_host(name) and (data / name / "host.txt").exists())
        }

    @property
    def of(self) -> list[str]:
        """What was looked at."""
        return [self.access.consul.address, self.access.prefix]

    def start(self) -> None:
        """Ask, unless an earlier question still hangs."""
        if self.question is None or not self.question.thread.is_alive():
            self.question = self.store.everything()

    def copy(self) -> list[Problem]:
        """Bring data/ up to date, as far as Consul answers; what is wrong."""
        if self.question is None or self.question.given_up:
            self.start()
        question = self.question
        if question is None or question.given_up:
            return [self.failed("does not answer, and still hangs on an earlier question")]
        if not question.wait():
            question.give_up()
            return [self.failed(LATE)]
        self.question = None
        if question.failure:
            return [self.failed(question.failure)]
        body, question.answer, question.body = question.body or b"[]", None, None
        dump = kv_reply.read(body, self.store.data)
        del body  # the entries have their own
        if not dump.whole:
            return [self.failed("; ".join(dump.problems))]
        return [Problem(self.access.where, what) for what in dump.problems] + self.take(dump.rows, question)

    def failed(self, what: str) -> Problem:
        """The one sentence on a store that cannot be read."""
        serves = f"what it had at {minute(self.looked)} serves, and grows old" if self.looked else "data/ serves"
        return Problem(self.access.where, f"{what}; {serves}")

    def take(self, entries: tuple[Entry, ...], question: Question) -> list[Problem]:
        """Copy what moved."""
        failures: list[str] = []
        moved = [entry for entry in entries if self.done.get(entry.name) != entry.moved]
        # to make a file and to rename it takes longer than all else, so that both cores do it
        for entry, copied in zip(moved, both(lambda entry: self.try_one(entry, question.arrived), moved)):
            if copied.failure:
                failures.append(f"data/{entry.name} cannot be written: {copied.failure}")
                continue
            self.done[entry.name] = entry.moved
            self.wrong.pop(entry.name, None)
            if copied.wrong:
                self.wrong[entry.name] = copied.wrong
            elif copied.wrote:
                self.wrote[entry.name] = copied.wrote
        names = {entry.name for entry in entries}
        self.wrong = {name: why for name, why in self.wrong.items() if name in names}
        self.seen = {entry.name: entry.moved for entry in entries}
        self.looked = question.asked
        if not entries:  # without rights, Consul shows nothing rather than to refuse
            rights = f"correct GPUBOARD_KV, or if Consul has ACLs, {KV_RIGHTS}"
            failures.append(f"{self.store.data} has no entries; {rights}")
        problems = [Problem(self.access.where, what) for what in self.told() + bounded(failures)]
        return problems + self.copies.look(self.seen) + self.save()

    def told(self) -> list[str]:
        """What is not ours, a sentence each."""
        where = self.store.data
        return bounded(
            [f"{where}{kv_reply.shown(name)[1:-1]} is not copied: {why}" for name, why in self.wrong.items()]
        )

    def try_one(self, entry: Entry, now: float) -> Copied:
        """One entry, whatever happens."""
        try:
            return Copied(self.copy_one(entry, now))
        except (NotOurs, files.Refused) as why:
            return Copied(wrong=str(why))
        except OSError as error:
            return Copied(failure=error.strerror or "for no reason that is told")

    def copy_one(self, entry: Entry, now: float) -> dict[str, int] | None:
        """One entry, if it is ours; what its files are now."""
        if entry.name in PLAIN:
            return None  # those that people write: `copies` looks at them
        if not is_host(entry.name) or entry.name in OTHERS:
            message = "its name is neither that of a host nor that of a file that we know"
            raise NotOurs(message)
        content = entry.content()
        if content is None:
            message = "its value is not what Consul writes"
            raise NotOurs(message)
        found = bundle.read(content, entry.name)
        if found.problem:
            raise NotOurs(found.problem)
        stands = self.standing(entry.name)
        contents = dict(found.files)
        if found.time is not None and found.time == stands:
            del contents["host.txt"]  # by which its age counts: the same once more makes nobody younger
            return self.write(entry.name, contents, self.wrote.get(entry.name, {}))
        went_back = found.time is not None and stands is not None and found.time < stands
        moment = self.moment(entry, found.time or 0, now, went_back)
        if moment is None:
            return self.write(entry.name, contents, self.wrote.get(entry.name, {}))
        if "host.txt" in contents:
            contents["host.txt"] = envelope.dated(contents["host.txt"], moment)
        return self.write(entry.name, contents, {})

    def moment(self, entry: Entry, told: int, now: float, went_back: bool) -> float | None:
        """From when it is, where that may be long ago; None if it moved since our last look, which was just now.

        What is older than what we have may come from a backup of Consul's. A look that is yet to come was told by
        another clock than ours is now.
        """
        has_moved = self.seen.get(entry.name) != entry.moved and not went_back
        since = self.looked if has_moved and self.looked <= now else 0.0
        if since and now - since <= NEAR:
            return None
        if told > now + AHEAD:
            if not since:
                message = f"its clock is {told - now:.0f} s ahead, so that nobody knows how old it is until it moves"
                raise NotOurs(message)
            return since
        return max(since, min(told, now))

    def standing(self, host: str) -> int | None:
        """The time that the host.txt tells which stands in data/ already."""
        try:
            folder = os.open(self.data / host, files.FOLDER)
        except OSError:
            return None
        try:
            header, _ = envelope.header(files.read("host.txt", folder, bundle.MOST)[1], "host")
        except files.Refused:
            return None
        finally:
            os.close(folder)
        return header.time if header and header.host == host else None

    def write(self, host: str, contents: dict[str, bytes], before: dict[str, int]) -> dict[str, int]:
        """The files of a host, those that are others than before; host.txt, by which its age counts, is the last."""
        now = {name: hash(content) for name, content in contents.items()}
        with snapshots_store.own_folder_of(self.data, host) as folder:
            for name, content in contents.items():
                if before.get(name) != now[name]:
                    files.put(folder, name, content)
        return now

    def forget(self, host: str) -> None:
        """Let go of a host whose entry was deleted, and of its files."""
        for kept in (self.seen, self.done, self.wrong, self.wrote):
            kept.pop(host, None)
        with suppress(OSError):
            snapshots_store.remove(self.data, host)

    def save(self) -> list[Problem]:
        """Keep what we saw, and when."""
        try:
            kept = {"of": self.of, "looked": self.looked, "seen": self.seen, "wrong": self.wrong}
            files.replace(self.state, orjson.dumps(kept), 0o600)
        except OSError as error:
            return [Problem("state/kv.json", f"what was seen in Consul could not be kept: {error.strerror}")]
        return []


def bounded(sentences: list[str]) -> list[str]:
    """As many as anybody reads."""
    more = len(sentences) - MOST_TOLD
    return sentences if more <= 0 else [*sentences[:MOST_TOLD], f"{more} more entries are not copied either"]
