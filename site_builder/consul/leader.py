"""Which of several builders leads: who holds PREFIX/leader in Consul, and tells so every few seconds.

A process beside the builder asks Consul, so that no build, however long, makes it late. It ends with the builder,
however that ends, and then gives the lead away. Consul may keep the session of a dead machine for twice its TTL, of at
least 10 s: so those who wait end it themselves once its holder has been silent.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from site_builder.consul.client import ConsulUnavailableError
from site_builder.consul.kv import KvStore, KvValue
from site_builder.core import files, subprocesses
from site_builder.core.model import ConsulAccess, KvAccess, Problem

LEADER_KEY = "leader"
# Seconds between two signs of life; for how long one counts with its giver, and after which others take the lead. The
# last must be the longest: at no moment do two believe that they lead.
HEARTBEAT_INTERVAL_S, LEASE_S, TAKEOVER_AFTER_S = 2.0, 6.0, 8.0
# After a time without Consul whoever leads has so long for a sign of life. One that lost its data shows nobody who
# does: then nobody takes the lead before a sign from the time before has ceased to count.
GRACE_PERIOD_S = 5.0
SESSION_TTL_S = 30
MISSING_RIGHTS = "the token needs"
# A builder that has not built for so long does not lead: it hangs.
BUILDER_TIMEOUT_S = 120.0
HEARTBEAT_PATTERN = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._-]{0,99}) beat [0-9]{1,12}\n?")


class LeadershipStatus(NamedTuple):
    """What an attempt found: whether we lead, since which moment of the machine's clock that holds, and who does."""

    is_leader: bool
    checked_at: float
    leader: str = ""
    taken_from: str = ""  # from whom, who had been silent
    problem: str = ""
    is_undecided: bool = False


class LeaderCandidate:
    """Tries to lead, again and again."""

    def __init__(self, store: KvStore, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """By which name."""
        self.store, self.name, self.clock = store, name, clock
        self.session: str | None = None
        self.heartbeat_count = 0
        self.watched_index = 0
        self.takeover_at = 0.0
        self.free_at = 0.0
        self.released_index = 0

    def attempt(self) -> LeadershipStatus:
        """Give a sign of life, take the lead if it is free, or see who has it."""
        began = self.clock()
        try:
            held = self.read_leader_key()
            if held and held.session and held.session != self.session:
                return self.wait_or_take_over(held, began)
            mine = held is not None and held.session is not None
            if not mine and (self.defers_to_previous_leader(held) or self.clock() < self.free_at):
                return LeadershipStatus(False, began, is_undecided=True)
            return self.send_heartbeat(began, mine)
        except ConsulUnavailableError as why:
            self.takeover_at = max(self.takeover_at, self.clock() + GRACE_PERIOD_S)
            return LeadershipStatus(False, began, problem=str(why))

    def read_leader_key(self) -> KvValue | None:
        """Who holds it; where that cannot be seen, or is gone with all that Consul had, it is not free at once."""
        try:
            held = self.store.get(LEADER_KEY)
        except ConsulUnavailableError:
            self.free_at = self.clock() + LEASE_S
            raise
        if self.watched_index and (held is None or held.modify_index < self.watched_index):
            self.watched_index, self.free_at = 0, self.clock() + LEASE_S
        return held

    def defers_to_previous_leader(self, held: KvValue | None) -> bool:
        """Whether it has just been given away: whoever had it comes first, as cron may start it anew just now."""
        if held is None or held.modify_index == self.released_index or parse_leader_name(held.content) == self.name:
            return False
        self.released_index = held.modify_index
        return True

    def wait_or_take_over(self, held: KvValue, began: float) -> LeadershipStatus:
        """Somebody else has it; one who has been silent for too long loses it."""
        self.release()  # what we may have of our own is of no use any more
        if held.modify_index != self.watched_index:
            self.watched_index, self.takeover_at = (
                held.modify_index,
                self.clock() + TAKEOVER_AFTER_S,
            )  # from when we know it: the answer may be slow
        who = parse_leader_name(held.content)
        if began < self.takeover_at:
            return LeadershipStatus(False, began, who)
        self.store.destroy_session(held.session or "")
        return self.send_heartbeat(self.clock())._replace(taken_from=who)

    def send_heartbeat(self, began: float, mine: bool = False) -> LeadershipStatus:
        """Hold it, or take it."""
        if self.session is None:
            self.session = self.store.create_session(f"gpuboard {self.name}", SESSION_TTL_S)
        self.heartbeat_count += 1
        try:
            held = self.store.put(
                LEADER_KEY, f"{self.name} beat {self.heartbeat_count}\n".encode(), acquire=self.session
            )
            self.store.renew_session(self.session)
        except ConsulUnavailableError:
            if not mine:
                self.session = None  # it may be over; if not, Consul ends it
            raise
        return LeadershipStatus(held, began, self.name if held else "")

    def release(self) -> None:
        """Let another lead at once."""
        if self.session is not None:
            with suppress(ConsulUnavailableError):
                self.store.destroy_session(self.session)
            self.session = None


def parse_leader_name(content: bytes) -> str:
    """Who holds it, as the key says, which anybody with the rights may have written."""
    found = HEARTBEAT_PATTERN.fullmatch(content[:200])
    return found[1].decode() if found else "somebody"


def main() -> None:
    """The process beside a builder: who we are on the first line, and then a sign at each build, until the end."""
    for one in (signal.SIGINT, signal.SIGTERM):  # they are the builder's, whose end we see
        signal.signal(one, signal.SIG_IGN)
    told = json.loads(sys.stdin.buffer.readline())
    candidate = LeaderCandidate(KvStore(KvAccess(ConsulAccess(**told["consul"]), told["prefix"])), told["name"])
    try:
        run_candidate(candidate, sys.stdin.fileno(), sys.stdout.fileno())
    finally:
        candidate.release()


def run_candidate(candidate: LeaderCandidate, builder: int, tell: int) -> None:
    """Until the builder is gone."""
    heard = time.monotonic()
    told = False
    while True:
        began = time.monotonic()
        if began - heard < BUILDER_TIMEOUT_S:
            word = candidate.attempt()
        else:
            candidate.release()
            word = LeadershipStatus(False, began, problem="the builder hangs")
        try:
            if told or not word.is_undecided:  # who builds only once waits for the first
                os.write(tell, json.dumps(word._asdict()).encode() + b"\n")
                told = True
        except OSError:
            return
        while (left := began + HEARTBEAT_INTERVAL_S - time.monotonic()) > 0:
            if select.select([builder], [], [], left)[0]:
                if not os.read(builder, 4096):
                    return
                heard = time.monotonic()


class Leadership:
    """The builder's side of it."""

    def __init__(self, state: Path, access: KvAccess) -> None:
        """Begin to ask."""
        self.access = access
        self.name = load_builder_name(state)
        self.status: LeadershipStatus | None = None
        self.unread_bytes = b""
        self.process = self.start_process()

    def start_process(self) -> subprocess.Popen[bytes]:
        """The process, which gets what it must know by its stdin: there is a token in it."""
        command, environment = subprocesses.build_module_command("site_builder.consul", "leader")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0)
        told = {"consul": asdict(self.access.consul), "prefix": self.access.prefix, "name": self.name}
        if process.stdin is None or process.stdout is None:
            raise AssertionError  # both are pipes
        process.stdin.write(json.dumps(told).encode() + b"\n")
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def is_leader(self, patience: float = 0.0) -> bool:
        """Whether we lead at this moment; somebody who builds only once waits for the first word."""
        if self.process.poll() is not None:
            self.close_pipes()
            self.status, self.unread_bytes, self.process = None, b"", self.start_process()
        with suppress(OSError):
            os.write(self.input_fd, b".")
        end = time.monotonic() + patience
        while True:
            self.read_status()
            left = end - time.monotonic()
            if self.status or left <= 0:
                break
            select.select([self.output_fd], [], [], left)
            if self.process.poll() is not None:
                break
        return bool(self.status and self.status.is_leader and time.monotonic() - self.status.checked_at < LEASE_S)

    def list_problems(self) -> list[Problem]:
        """Why nobody here can lead, if that lies in the rights: all else is told by who reads the store."""
        trouble = self.status.problem if self.status else ""
        return [Problem(self.access.where, f"{trouble}; this builder cannot lead")] if MISSING_RIGHTS in trouble else []

    @property
    def input_fd(self) -> int:
        """Where the process hears us."""
        return self.process.stdin.fileno() if self.process.stdin else -1

    @property
    def output_fd(self) -> int:
        """Where it tells."""
        return self.process.stdout.fileno() if self.process.stdout else -1

    def read_status(self) -> None:
        """The last word that there is; that somebody was silent is not forgotten with it."""
        with suppress(BlockingIOError):
            while more := os.read(self.output_fd, 65536):
                self.unread_bytes += more
        *lines, self.unread_bytes = self.unread_bytes.split(b"\n")
        for line in lines:
            word = LeadershipStatus(**json.loads(line))
            took = self.status.taken_from if self.status and self.status.is_leader and word.is_leader else ""
            self.status = word._replace(taken_from=word.taken_from or took)

    def close(self) -> None:
        """Give the lead away, and wait until it is."""
        self.close_pipes()
        try:
            self.process.wait(4)  # the next builder waits for us
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close_pipes(self) -> None:
        """Close both pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


def load_builder_name(state: Path) -> str:
    """What this builder is called: the machine, and a word that it keeps, since a machine may have several."""
    store = state / "builder"
    with suppress(OSError, files.FileRefusedError, ValueError):
        name = files.read(store).decode("ascii").strip()
        if HEARTBEAT_PATTERN.fullmatch(f"{name} beat 0".encode()):
            return name
    node = re.sub(r"[^A-Za-z0-9-]", "", os.uname().nodename.partition(".")[0])[:60] or "builder"
    name = f"{node}-{secrets.token_hex(3)}" if node[0] != "-" else f"builder-{secrets.token_hex(3)}"
    with suppress(OSError):
        files.write_atomically(store, f"{name}\n".encode(), 0o600)
    return name
