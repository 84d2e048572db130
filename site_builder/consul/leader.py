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

from site_builder.consul.client import Unusable
from site_builder.consul.kv import KvStore, Value
from site_builder.core import files, own_files, own_process
from site_builder.core.model import ConsulAccess, KvAccess, Problem

KEY = "leader"
# Seconds between two signs of life; for how long one counts with its giver, and after which others take the lead. The
# last must be the longest: at no moment do two believe that they lead.
BEAT, COUNTS, SILENT = 2.0, 6.0, 8.0
# After a time without Consul whoever leads has so long for a sign of life. One that lost its data shows nobody who
# does: then nobody takes the lead before a sign from the time before has ceased to count.
GRACE = 5.0
TTL = 30
RIGHTS = "the token needs"
# A builder that has not built for so long does not lead: it hangs.
HANGS = 120.0
NAME = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._-]{0,99}) beat [0-9]{1,12}\n?")


class Word(NamedTuple):
    """What an attempt found: whether we lead, since which moment of the machine's clock that holds, and who does."""

    leads: bool
    at: float
    who: str = ""
    took: str = ""  # from whom, who had been silent
    trouble: str = ""
    undecided: bool = False


class Candidate:
    """Tries to lead, again and again."""

    def __init__(self, store: KvStore, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """By which name."""
        self.store, self.name, self.clock = store, name, clock
        self.session: str | None = None
        self.beats = 0
        self.watched = 0
        self.until = 0.0
        self.free_from = 0.0
        self.given = 0

    def attempt(self) -> Word:
        """Give a sign of life, take the lead if it is free, or see who has it."""
        began = self.clock()
        try:
            held = self.look()
            if held and held.session and held.session != self.session:
                return self.wait(held, began)
            mine = held is not None and held.session is not None
            if not mine and (self.yields(held) or self.clock() < self.free_from):
                return Word(False, began, undecided=True)
            return self.beat(began, mine)
        except Unusable as why:
            self.until = max(self.until, self.clock() + GRACE)
            return Word(False, began, trouble=str(why))

    def look(self) -> Value | None:
        """Who holds it; where that cannot be seen, or is gone with all that Consul had, it is not free at once."""
        try:
            held = self.store.get(KEY)
        except Unusable:
            self.free_from = self.clock() + COUNTS
            raise
        if self.watched and (held is None or held.moved < self.watched):
            self.watched, self.free_from = 0, self.clock() + COUNTS
        return held

    def yields(self, held: Value | None) -> bool:
        """Whether it has just been given away: whoever had it comes first, as cron may start it anew just now."""
        if held is None or held.moved == self.given or holder(held.content) == self.name:
            return False
        self.given = held.moved
        return True

    def wait(self, held: Value, began: float) -> Word:
        """Somebody else has it; one who has been silent for too long loses it."""
        self.release()  # what we may have of our own is of no use any more
        if held.moved != self.watched:
            self.watched, self.until = held.moved, self.clock() + SILENT  # from when we know it: the answer may be slow
        who = holder(held.content)
        if began < self.until:
            return Word(False, began, who)
        self.store.end_session(held.session or "")
        return self.beat(self.clock())._replace(took=who)

    def beat(self, began: float, mine: bool = False) -> Word:
        """Hold it, or take it."""
        if self.session is None:
            self.session = self.store.new_session(f"gpuboard {self.name}", TTL)
        self.beats += 1
        try:
            held = self.store.put(KEY, f"{self.name} beat {self.beats}\n".encode(), acquire=self.session)
            self.store.renew_session(self.session)
        except Unusable:
            if not mine:
                self.session = None  # it may be over; if not, Consul ends it
            raise
        return Word(held, began, self.name if held else "")

    def release(self) -> None:
        """Let another lead at once."""
        if self.session is not None:
            with suppress(Unusable):
                self.store.end_session(self.session)
            self.session = None


def holder(content: bytes) -> str:
    """Who holds it, as the key says, which anybody with the rights may have written."""
    found = NAME.fullmatch(content[:200])
    return found[1].decode() if found else "somebody"


def main() -> None:
    """The process beside a builder: who we are on the first line, and then a sign at each build, until the end."""
    for one in (signal.SIGINT, signal.SIGTERM):  # they are the builder's, whose end we see
        signal.signal(one, signal.SIG_IGN)
    told = json.loads(sys.stdin.buffer.readline())
    candidate = Candidate(KvStore(KvAccess(ConsulAccess(**told["consul"]), told["prefix"])), told["name"])
    try:
        beside(candidate, sys.stdin.fileno(), sys.stdout.fileno())
    finally:
        candidate.release()


def beside(candidate: Candidate, builder: int, tell: int) -> None:
    """Until the builder is gone."""
    heard = time.monotonic()
    told = False
    while True:
        began = time.monotonic()
        if began - heard < HANGS:
            word = candidate.attempt()
        else:
            candidate.release()
            word = Word(False, began, trouble="the builder hangs")
        try:
            if told or not word.undecided:  # who builds only once waits for the first
                os.write(tell, json.dumps(word._asdict()).encode() + b"\n")
                told = True
        except OSError:
            return
        while (left := began + BEAT - time.monotonic()) > 0:
            if select.select([builder], [], [], left)[0]:
                if not os.read(builder, 4096):
                    return
                heard = time.monotonic()


class Lead:
    """The builder's side of it."""

    def __init__(self, state: Path, access: KvAccess) -> None:
        """Begin to ask."""
        self.access = access
        self.name = name_of(state)
        self.word: Word | None = None
        self.rest = b""
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """The process, which gets what it must know by its stdin: there is a token in it."""
        command, environment = own_process.command("site_builder.consul", "leader")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0)
        told = {"consul": asdict(self.access.consul), "prefix": self.access.prefix, "name": self.name}
        if process.stdin is None or process.stdout is None:
            raise AssertionError  # both are pipes
        process.stdin.write(json.dumps(told).encode() + b"\n")
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        return process

    def leads(self, patience: float = 0.0) -> bool:
        """Whether we lead at this moment; somebody who builds only once waits for the first word."""
        if self.process.poll() is not None:
            self.drop()
            self.word, self.rest, self.process = None, b"", self.start()
        with suppress(OSError):
            os.write(self.input, b".")
        end = time.monotonic() + patience
        while True:
            self.hear()
            left = end - time.monotonic()
            if self.word or left <= 0:
                break
            select.select([self.output], [], [], left)
            if self.process.poll() is not None:
                break
        return bool(self.word and self.word.leads and time.monotonic() - self.word.at < COUNTS)

    def problems(self) -> list[Problem]:
        """Why nobody here can lead, if that lies in the rights: all else is told by who reads the store."""
        trouble = self.word.trouble if self.word else ""
        return [Problem(self.access.where, f"{trouble}; this builder cannot lead")] if RIGHTS in trouble else []

    @property
    def input(self) -> int:
        """Where the process hears us."""
        return self.process.stdin.fileno() if self.process.stdin else -1

    @property
    def output(self) -> int:
        """Where it tells."""
        return self.process.stdout.fileno() if self.process.stdout else -1

    def hear(self) -> None:
        """The last word that there is; that somebody was silent is not forgotten with it."""
        with suppress(BlockingIOError):
            while more := os.read(self.output, 65536):
                self.rest += more
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            word = Word(**json.loads(line))
            took = self.word.took if self.word and self.word.leads and word.leads else ""
            self.word = word._replace(took=word.took or took)

    def close(self) -> None:
        """Give the lead away, and wait until it is."""
        self.drop()
        try:
            self.process.wait(4)  # the next builder waits for us
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def drop(self) -> None:
        """Close both pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


def name_of(state: Path) -> str:
    """What this builder is called: the machine, and a word that it keeps, since a machine may have several."""
    store = state / "builder"
    with suppress(OSError, files.Refused, ValueError):
        name = own_files.read(store).decode("ascii").strip()
        if NAME.fullmatch(f"{name} beat 0".encode()):
            return name
    node = re.sub(r"[^A-Za-z0-9-]", "", os.uname().nodename.partition(".")[0])[:60] or "builder"
    name = f"{node}-{secrets.token_hex(3)}" if node[0] != "-" else f"builder-{secrets.token_hex(3)}"
    with suppress(OSError):
        files.replace(store, f"{name}\n".encode(), 0o600)
    return name
