"""The two files of alerts that the admin writes, rules and contacts: as they are now, or as they last could be read."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from site_builder.alerts import contacts, rules_file
from site_builder.alerts.contacts import Contacts
from site_builder.alerts.model import AlertRule
from site_builder.bookings.data_files import Names
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.cached_file import read_in
from site_builder.core.model import AlertSettings, Problem

# Bytes that are read: of rules, which are a few pages at the most, and of contacts.
RULES_LIMIT, LIMIT = 64 * 1024, 1024 * 1024
# The last good rules: what somebody switched off stays off, though the file cannot be read after a restart.
KEPT = "alerts.conf.good"


class Ruled(NamedTuple):
    """What is in force: every rule by its name, the contacts (without aliases), and what is wrong with either file."""

    rules: dict[str, AlertRule]
    contacts: Contacts
    problems: list[Problem]


class AlertFiles:
    """Both files; each is read again only if it changed."""

    def __init__(self, alerts: AlertSettings, data: Path, www: Path, state: Path | None = None) -> None:
        """Nothing is read from data/ or www/, where others write or read; in state/ the last good rules are kept."""
        shared = (data, www)
        self.rules = RulesFile(alerts, shared, state)
        self.contacts = ContactsFile(alerts, shared)

    def read(self) -> Ruled:
        """What counts now; it never raises."""
        rules, first = self.rules.read()
        contacts, second = self.contacts.read()
        return Ruled(rules, contacts, first + second)


def contacts_of(settings: Settings) -> Contacts:
    """The contacts as they are now, through aliases.csv: for whoever sends a letter, or asks who somebody is."""
    contacts, _ = ContactsFile(settings.alerts, (settings.data, settings.www)).read()
    aliases, _, unread = Names(settings.data, None).read()  # only the builder keeps what it read
    return replace(contacts.through(aliases), whole=contacts.whole and not unread)


class OwnFile:
    """A file that only the builder's user and root write; with secrets in it, their groups do not either."""

    def __init__(self, setting: str, path: str, shared: tuple[Path, ...], limit: int, *, secret: bool = False) -> None:
        """The setting that names it, and the folders that it may not lie in."""
        self.path, self.shared, self.limit, self.secret = Path(path).absolute(), shared, limit, secret
        self.where = f"{setting} ({self.path.name})"
        self.signature: files.Signature | None = None
        self.content: bytes | None = None

    def look(self, before: str, none: str) -> list[Problem]:
        """Take up what it says now; or say why not, and what counts in its place."""
        try:
            self.refuse_shared()
            folder = os.open(self.path.parent, files.TOP)
            try:
                if files.look(self.path.name, folder) != self.signature or self.signature is None:
                    self.signature, self.content = files.read(self.path.name, folder, self.limit, self.refuse)
            finally:
                os.close(folder)
        except (OSError, files.Refused) as why:
            self.signature = None  # so that it is tried again
            instead = none if self.content is None else before
            what = f"it is not read: {getattr(why, 'strerror', None) or why}; {instead}"
            return [Problem(self.where, what)]
        return []

    def refuse_shared(self) -> None:
        """Hosts write to data/, and everybody reads www/."""
        real = Path(os.path.realpath(self.path.parent))
        for folder in self.shared:
            top = Path(os.path.realpath(folder))
            if real == top or top in real.parents:
                message = f"it lies in {folder.name}/, which is not the builder's alone; put it beside gpuboard.conf"
                raise files.Refused(message)

    def refuse(self, status: os.stat_result) -> None:
        """Refuse one that somebody else can write, of the very file that was opened."""
        files.check(status)
        writers = stat.S_IWGRP | stat.S_IWOTH if self.secret else stat.S_IWOTH
        if status.st_uid not in (os.geteuid(), 0):
            message = "it is another user's; only the builder's user and root may own it"
            raise files.Refused(message)
        if status.st_mode & writers:
            message = f"others can write it; chmod {'600' if self.secret else 'o-w'} {self.path.name} closes it"
            raise files.Refused(message)


class RulesFile:
    """GPUBOARD_ALERTS: the rules in force."""

    def __init__(self, alerts: AlertSettings, shared: tuple[Path, ...], state: Path | None) -> None:
        """Begin with those that were good last."""
        self.channels = tuple(name for name, _ in alerts.channels)
        self.file = OwnFile("GPUBOARD_ALERTS", alerts.rules, shared, RULES_LIMIT) if alerts.rules else None
        self.state = state
        self.understood: tuple[bytes | None, dict[str, AlertRule], list[str]] | None = None
        if self.file and state:
            with suppress(OSError, files.Refused):
                self.file.content = read_in(state, KEPT, RULES_LIMIT)[1]

    def read(self) -> tuple[dict[str, AlertRule], list[Problem]]:
        """The rules, and what is wrong with them."""
        before, problems = self.content, []
        if self.file:
            problems = self.file.look("the rules of before count", "those by default count")
            if self.state and self.content is not None and self.content != before:
                with suppress(OSError):  # the page tells of a state folder that cannot be written, by other files
                    files.replace(self.state / KEPT, self.content, 0o600)
        if self.understood is None or self.understood[0] != self.content:
            rules, wrong = rules_file.read(self.content or b"")
            rules, missing = rules_file.with_channels(rules, self.channels)
            self.understood = self.content, rules, [*wrong, *missing]
        _, rules, told = self.understood
        where = self.file.where if self.file else ""
        return rules, problems + [Problem(where, what) for what in told]

    @property
    def content(self) -> bytes | None:
        """The file, as far as it could be read."""
        return self.file.content if self.file else None


class ContactsFile:
    """GPUBOARD_CONTACTS: the ways to people. It is kept nowhere else, for the secrets in it."""

    def __init__(self, alerts: AlertSettings, shared: tuple[Path, ...]) -> None:
        """With nobody known yet."""
        self.domain = alerts.mail_domain
        self.file = (
            OwnFile("GPUBOARD_CONTACTS", alerts.contacts, shared, LIMIT, secret=True) if alerts.contacts else None
        )
        self.understood: tuple[bytes, Contacts] | None = None

    def read(self) -> tuple[Contacts, list[Problem]]:
        """The contacts, and what is wrong with them."""
        if not self.file:
            return Contacts(domain=self.domain), []
        problems = self.file.look("the contacts of before count", "what is for people waits")
        content = self.file.content
        if content is None:
            return Contacts(domain=self.domain, whole=False), problems
        if self.understood is None or self.understood[0] != content:
            self.understood = content, contacts.read(content, self.domain)
        found = self.understood[1]
        return found, problems + [Problem(self.file.where, what) for what in found.problems]
