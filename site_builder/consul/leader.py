"""Elect one of several builders: the leader holds PREFIX/leader in Consul, and renews it every few seconds.

A process beside the builder talks to Consul, so that no build, however long, delays it. It ends with the builder,
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
from site_builder.core.model import ConsulAccess, Problem

LEADER_KEY = "leader"
# How often the leader sends a heartbeat, how long it relies on one, and after what silence others take over. The last
# must be the longest: at no moment may two builders believe that they lead.
HEARTBEAT_INTERVAL_S, LEASE_S, TAKEOVER_AFTER_S = 2.0, 6.0, 8.0
# How long after an outage of Consul the leader has for a heartbeat. If Consul lost its data, nobody takes the lead
# before an earlier heartbeat has expired.
GRACE_PERIOD_S = 5.0
SESSION_TTL_S = 30
MISSING_RIGHTS = "the token needs"
# A builder without a build for this long hangs, and does not lead.
BUILDER_TIMEOUT_S = 120.0
HEARTBEAT_PATTERN = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._-]{0,99}) beat [0-9]{1,12}\n?")


class LeadershipStatus(NamedTuple):
    """Result of an attempt: whether we lead, as of which moment of the monotonic clock, and who does."""

    is_leader: bool
    checked_at: float
    leader: str = ""
    taken_from: str = ""  # the silent leader that we replaced
    problem: str = ""
    is_undecided: bool = False


class Leadership:
    """The builder's side of the election."""

    def __init__(self, state: Path, access: ConsulAccess) -> None:
        self.access = access
        self.name = load_leader_builder_name(state)
        self.status: LeadershipStatus | None = None
        self.unread_bytes = b""
        self.start_process()

    def start_process(self) -> None:
        """Start the process; it gets the request by stdin, because there is a token in it."""
        command, environment = subprocesses.build_module_command("site_builder.consul", "leader")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0)
        request = {"consul": asdict(self.access), "name": self.name}
        if process.stdin is None or process.stdout is None:
            raise AssertionError  # both are pipes
        process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process, self.input_fd, self.output_fd = process, process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(self.input_fd, False)
        os.set_blocking(self.output_fd, False)

    def is_leader(self, patience: float = 0.0) -> bool:
        """Return True if we lead now; a builder that builds only once waits for the first status."""
        if self.process.poll() is not None:
            self.close_pipes()
            self.status, self.unread_bytes = None, b""
            self.start_process()
        with suppress(OSError):
            os.write(self.input_fd, b".")
        deadline = time.monotonic() + patience
        while True:
            self.read_status()
            left = deadline - time.monotonic()
            if self.status or left <= 0:
                break
            select.select([self.output_fd], [], [], left)
            if self.process.poll() is not None:
                break
        return bool(self.status and self.status.is_leader and time.monotonic() - self.status.checked_at < LEASE_S)

    def list_problems(self) -> list[Problem]:
        """Report missing rights; other problems are reported by those who read the store."""
        problem = self.status.problem if self.status else ""
        return [Problem(self.access.where, f"{problem}; this builder cannot lead")] if MISSING_RIGHTS in problem else []

    def read_status(self) -> None:
        """Read the newest status; keep whom we replaced while we lead."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.output_fd, 65536):
                self.unread_bytes += chunk
        *lines, self.unread_bytes = self.unread_bytes.split(b"\n")
        for line in lines:
            status = LeadershipStatus(**json.loads(line))
            taken_from = self.status.taken_from if self.status and self.status.is_leader and status.is_leader else ""
            self.status = status._replace(taken_from=status.taken_from or taken_from)

    def close(self) -> None:
        """Give the lead away, and wait until that is done."""
        self.close_pipes()
        try:
            self.process.wait(4)  # the next builder waits for this
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


def load_leader_builder_name(state: Path) -> str:
    """Return this builder's name: the machine, and a stored random word, since a machine may have several."""
    store = state / "builder"
    with suppress(OSError, files.FileRefusedError, ValueError):
        name = files.read_own_file(store).decode("ascii").strip()
        if HEARTBEAT_PATTERN.fullmatch(f"{name} beat 0".encode()):
            return name
    node = re.sub(r"[^A-Za-z0-9-]", "", os.uname().nodename.partition(".")[0])[:60] or "builder"
    name = f"{node}-{secrets.token_hex(3)}" if node[0] != "-" else f"builder-{secrets.token_hex(3)}"
    with suppress(OSError):
        files.write_atomically(store, f"{name}\n".encode(), 0o600)
    return name


class LeaderCandidate:
    """Tries to become or stay the leader."""

    def __init__(self, store: KvStore, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.name, self.clock = store, name, clock
        self.session: str | None = None
        self.heartbeat_count = 0
        self.watched_index = 0
        self.takeover_at = 0.0
        self.free_at = 0.0
        self.released_index = 0

    def attempt(self) -> LeadershipStatus:
        """Send a heartbeat, take the lead if it is free, or see who has it."""
        started_at = self.clock()
        try:
            # if the key is unreadable, or lost with Consul's data, the lead is not free at once
            try:
                held = self.store.get(LEADER_KEY)
            except ConsulUnavailableError:
                self.free_at = self.clock() + LEASE_S
                raise
            if self.watched_index and (held is None or held.modify_index < self.watched_index):
                self.watched_index, self.free_at = 0, self.clock() + LEASE_S
            if held and held.session and held.session != self.session:
                return self.wait_or_take_over(held, started_at)
            if held and held.session:
                return self.send_heartbeat(started_at, is_ours=True)
            undecided = LeadershipStatus(False, started_at, is_undecided=True)
            if held and held.modify_index != self.released_index and parse_leader_name(held.content) != self.name:
                # it was just given away: its last holder comes first, as cron may restart it
                self.released_index = held.modify_index
                return undecided
            return undecided if self.clock() < self.free_at else self.send_heartbeat(started_at)
        except ConsulUnavailableError as error:
            self.takeover_at = max(self.takeover_at, self.clock() + GRACE_PERIOD_S)
            return LeadershipStatus(False, started_at, problem=str(error))

    def wait_or_take_over(self, held: KvValue, started_at: float) -> LeadershipStatus:
        """Watch another leader, and take over after too long a silence."""
        self.release()  # a session of ours is of no use any more
        if held.modify_index != self.watched_index:
            self.watched_index = held.modify_index
            self.takeover_at = self.clock() + TAKEOVER_AFTER_S  # from now on: the response may have been slow
        leader = parse_leader_name(held.content)
        if started_at < self.takeover_at:
            return LeadershipStatus(False, started_at, leader)
        self.store.destroy_session(held.session or "")
        return self.send_heartbeat(self.clock())._replace(taken_from=leader)

    def send_heartbeat(self, started_at: float, is_ours: bool = False) -> LeadershipStatus:
        """Keep or take the lead."""
        if self.session is None:
            self.session = self.store.create_session(f"gpuboard {self.name}", SESSION_TTL_S)
        self.heartbeat_count += 1
        content = f"{self.name} beat {self.heartbeat_count}\n".encode()
        try:
            is_leader = self.store.put(LEADER_KEY, content, acquire=self.session)
            self.store.renew_session(self.session)
        except ConsulUnavailableError:
            if not is_ours:
                self.session = None  # it may have ended; if not, Consul ends it
            raise
        return LeadershipStatus(is_leader, started_at, self.name if is_leader else "")

    def release(self) -> None:
        """Let another builder lead at once."""
        if self.session is not None:
            with suppress(ConsulUnavailableError):
                self.store.destroy_session(self.session)
            self.session = None


def parse_leader_name(content: bytes) -> str:
    """Return the holder named in the key, which anybody with the rights may have written."""
    match = HEARTBEAT_PATTERN.fullmatch(content[:200])
    return match[1].decode() if match else "somebody"


def main() -> None:
    """Run beside a builder: read the request on the first line of stdin, then a byte per build, until the end."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the builder, whose end we notice
        signal.signal(number, signal.SIG_IGN)
    request = json.loads(sys.stdin.buffer.readline())
    candidate = LeaderCandidate(KvStore(ConsulAccess(**request["consul"])), request["name"])
    try:
        run_leader_candidate(candidate, sys.stdin.fileno(), sys.stdout.fileno())
    finally:
        candidate.release()


def run_leader_candidate(candidate: LeaderCandidate, input_fd: int, output_fd: int) -> None:
    last_build = time.monotonic()
    was_reported = False
    while True:
        started_at = time.monotonic()
        if started_at - last_build < BUILDER_TIMEOUT_S:
            status = candidate.attempt()
        else:
            candidate.release()
            status = LeadershipStatus(False, started_at, problem="the builder hangs")
        try:
            if was_reported or not status.is_undecided:  # a builder that builds only once waits for the first status
                os.write(output_fd, json.dumps(status._asdict()).encode() + b"\n")
                was_reported = True
        except OSError:
            return
        while (left := started_at + HEARTBEAT_INTERVAL_S - time.monotonic()) > 0:
            if select.select([input_fd], [], [], left)[0]:
                if not os.read(input_fd, 4096):
                    return
                last_build = time.monotonic()
