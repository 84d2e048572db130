"""Contacts: how people are reached; read the contacts file, and alerts.conf."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from site_builder.alerts.model import AlertRule
from site_builder.alerts.rules import drop_unknown_channels, parse_rules
from site_builder.config.settings import Settings
from site_builder.core import files
from site_builder.core.model import AlertSettings, Problem
from site_builder.core.people import fold_alias, fold_login
from site_builder.core.terminal_text import decode_text, limit_problems
from site_builder.fleet.gpu_models import NameFiles

MAIL_KIND, SLACK_KIND = "mail", "slack"
MAIL_ADDRESS = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._%+'-]{0,63}@(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*"
)
SLACK_MEMBER = re.compile(r"slack:([UW][A-Z0-9]{2,20})", re.IGNORECASE)
SERVICE_URL = re.compile(r"([a-z][a-z0-9+.-]{0,31})://[!-~]{1,2000}", re.IGNORECASE)
# A login that may be used as the local part of an address: anybody can write names into bookings.
LOGIN_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
# Mailboxes of an office or a list; a line in the contacts makes such a name a person.
ROLE_MAILBOXES = re.compile(
    "abuse|admin|administrator|all|announce|contact|everybody|everyone|group|help|hostmaster|info|it|lab|lists?|mail|"
    "mailer-daemon|members|news|no-?reply|nobody|office|operator|ops|postmaster|root|security|staff|students|support|"
    "sysadmin|system|team|test|users?|webmaster|www"
)
CONTACT_COMMENT_PATTERN = re.compile(r"(?:^|\s)#.*")
HEADER_CELLS = ("login", "address")
MAIL_SCHEMES = ("mailto", "mailtos")
MAX_LOGIN_CHARACTERS = 80
MAX_CONTACT_CHARACTERS = 3000
MAX_CONTACTS_PER_PERSON = 10


@dataclass(frozen=True)
class Contact:
    """How to reach a person; `kind` is `mail`, `slack` for a member id, or the scheme of a URL.

    The address is a URL as apprise writes them, or else a mail address or a member id.
    """

    kind: str
    address: str = field(repr=False)
    is_url: bool = False


@dataclass(frozen=True)
class Contacts:
    """Who is reached how; not complete where a file could not be read.

    Aliases lead from other names to logins, but not only the admin writes them: they take away no address that
    somebody has, and make nobody known under a name that is not theirs.
    """

    contacts_by_login: Mapping[str, tuple[Contact, ...]] = field(default_factory=dict, repr=False)
    mail_domain: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_complete: bool = True
    problems: tuple[str, ...] = ()

    def find_contacts(self, person: str, via: str = "") -> tuple[Contact, ...]:
        """Return the contacts of a person: those of the kind `via`, or all if none is of it.

        Those of this very name come before those of their other names. Whoever has no line has LOGIN@DOMAIN, where a
        domain is set.
        """
        contacts = self.contacts_by_login.get(fold_login(person.strip()), ())
        if not contacts:
            of_other_names = (
                contact for login in self.find_logins(person) for contact in self.contacts_by_login[login]
            )
            contacts = tuple(dict.fromkeys(of_other_names))[:MAX_CONTACTS_PER_PERSON]
        if not contacts and self.is_complete and self.mail_domain:
            login = self.find_login(person)
            if LOGIN_PATTERN.fullmatch(login) and not ROLE_MAILBOXES.fullmatch(login):
                contacts = (Contact(MAIL_KIND, f"{login}@{self.mail_domain}"),)
        return tuple(contact for contact in contacts if contact.kind == via) or contacts

    def find_logins(self, person: str) -> list[str]:
        resolved = resolve_contact_alias(self.aliases, person)
        return [login for login in self.contacts_by_login if resolve_contact_alias(self.aliases, login) == resolved]

    def find_login(self, person: str) -> str:
        """Return the name itself if it has a line, else the first name of the person in aliases.csv that is a login."""
        login, resolved = fold_login(person.strip()), resolve_contact_alias(self.aliases, person)
        if login in self.contacts_by_login:
            return login
        for name in self.aliases:
            if LOGIN_PATTERN.fullmatch(name) and resolve_contact_alias(self.aliases, name) == resolved:
                return name
        return login

    def find_person(self, kind: str, address: str) -> str | None:
        """Return the login of a mail address (LOGIN@DOMAIN too) or a Slack member id; None if that is not sure."""
        address = address.lower()
        logins = [
            login
            for login, contacts in self.contacts_by_login.items()
            if (kind, address)
            in [(contact.kind, contact.address.lower()) for contact in contacts if not contact.is_url]
        ]
        if logins:
            return logins[0] if self.is_same_person(logins) else None
        login, _, domain = address.partition("@")
        if kind != MAIL_KIND or not self.mail_domain or domain != self.mail_domain.lower():
            return None
        # whoever has another address in the contacts does not read this one, and neither may another name of theirs
        is_own = LOGIN_PATTERN.fullmatch(login) and not self.find_logins(login) and self.find_login(login) == login
        return login if is_own else None

    def find_shared_members(self) -> list[tuple[str, ...]]:
        logins_by_member: dict[str, list[str]] = {}
        for login, contacts in self.contacts_by_login.items():
            for contact in contacts:
                if contact.kind == SLACK_KIND and not contact.is_url:
                    logins_by_member.setdefault(contact.address, []).append(login)
        return [tuple(logins) for logins in logins_by_member.values() if not self.is_same_person(logins)]

    def is_same_person(self, logins: Collection[str]) -> bool:
        return len({resolve_contact_alias(self.aliases, login) for login in logins}) == 1


def resolve_contact_alias(aliases: Mapping[str, str], name: str) -> str:
    """Return one name for one person, as PeopleDirectory.resolve_person does."""
    name = name.strip()
    return fold_login(aliases.get(fold_alias(name), name))


def parse_contacts(data: bytes, mail_domain: str | None = None) -> Contacts:
    """Parse the contacts; a line that cannot be read is ignored, and never quoted."""
    by_login: dict[str, dict[Contact, None]] = {}
    problems: list[str] = []
    for number, line in enumerate(decode_text(data).lstrip("\ufeff").split("\n"), 1):
        text = CONTACT_COMMENT_PATTERN.sub("", line).strip()
        login, comma, address = (part.strip() for part in text.partition(","))
        if not text or (number == 1 and (login.lower(), address.lower()) == HEADER_CELLS):
            continue
        contact = parse_contact(address) if comma and len(text) <= MAX_CONTACT_CHARACTERS else None
        if not comma or not login or len(login) > MAX_LOGIN_CHARACTERS or SERVICE_URL.match(login):
            problems.append(f"line {number}: must be login,address")
            continue
        if contact is None:
            wanted = "a mail address, slack:MEMBER-ID, or an address of a service such as tgram://…"
            problems.append(f"line {number}: the address after the comma is not {wanted}")
            continue
        contacts = by_login.setdefault(fold_login(login), {})
        if len(contacts) == MAX_CONTACTS_PER_PERSON and contact not in contacts:
            limit = f"more than {MAX_CONTACTS_PER_PERSON} addresses"
            problems.append(f"line {number}: this person has {limit}; this line is ignored")
        else:
            contacts[contact] = None
    contacts_by_login = {login: tuple(contacts) for login, contacts in by_login.items()}
    return Contacts(contacts_by_login, mail_domain, problems=limit_problems(problems))


def parse_contact(address: str) -> Contact | None:
    if MAIL_ADDRESS.fullmatch(address):
        return Contact(MAIL_KIND, address)
    if member := SLACK_MEMBER.fullmatch(address):
        return Contact(SLACK_KIND, member[1].upper())
    if url := SERVICE_URL.fullmatch(address):
        scheme = url[1].lower()
        return Contact(MAIL_KIND if scheme in MAIL_SCHEMES else scheme, address, is_url=True)
    return None


# Files

MAX_RULES_BYTES, MAX_CONTACTS_BYTES = 64 * 1024, 1024 * 1024
# The last good rules: a rule that was switched off stays off if the file cannot be read after a restart.
GOOD_RULES_FILE = "alerts.conf.good"


class ContactsAndRules:
    """Reads both files, each again only if it changed.

    Neither may lie in data/ or www/, where others write or read. The last good rules are kept in state/, but no copy
    of the contacts, since they contain secrets.
    """

    def __init__(self, alerts: AlertSettings, data: Path, www: Path, state: Path | None = None) -> None:
        self.alerts, self.state_folder = alerts, state
        rules, contacts, forbidden = alerts.rules_file, alerts.contacts_file, (data, www)
        self.rules_file = ProtectedConfigFile("GPUBOARD_ALERTS", rules, forbidden, MAX_RULES_BYTES)
        self.contacts_file = ProtectedConfigFile("GPUBOARD_CONTACTS", contacts, forbidden, MAX_CONTACTS_BYTES, True)
        if rules and state:
            with suppress(OSError, files.FileRefusedError):
                self.rules_file.content = files.read_own_file(state / GOOD_RULES_FILE, MAX_RULES_BYTES)
        self.parse_rules = lru_cache(maxsize=1)(self.parse_rules_for_channels)
        self.parse_contacts = lru_cache(maxsize=1)(parse_contacts)

    def list_problems(self) -> list[Problem]:
        return self.read_rules()[1] + self.read_contacts()[1]

    def read_rules(self) -> tuple[dict[str, AlertRule], list[Problem]]:
        """Return the rules in force, and what is wrong with their file; never raise."""
        file, before = self.rules_file, self.rules_file.content
        problems = file.refresh("the previous rules stay in effect", "the defaults apply")
        if self.state_folder and file.content is not None and file.content != before:
            with suppress(OSError):  # other files report a state folder that cannot be written
                files.write_atomically(self.state_folder / GOOD_RULES_FILE, file.content, 0o600)
        rules, mistakes = self.parse_rules(file.content or b"")
        return rules, problems + [Problem(file.where, mistake) for mistake in mistakes]

    def parse_rules_for_channels(self, content: bytes) -> tuple[dict[str, AlertRule], list[str]]:
        rules, mistakes = parse_rules(content)
        rules, missing_channels = drop_unknown_channels(rules, [name for name, _ in self.alerts.channels])
        return rules, mistakes + missing_channels

    def read_contacts(self) -> tuple[Contacts, list[Problem]]:
        """Return the contacts without aliases, and what is wrong with their file; never raise."""
        file, mail_domain = self.contacts_file, self.alerts.mail_domain
        problems = file.refresh("the previous contacts stay in effect", "notifications to people wait")
        if file.content is None:
            return Contacts(mail_domain=mail_domain, is_complete=not self.alerts.contacts_file), problems
        contacts = self.parse_contacts(file.content, mail_domain)
        return contacts, problems + [Problem(file.where, problem) for problem in contacts.problems]


def load_contacts(settings: Settings) -> Contacts:
    contacts, _ = ContactsAndRules(settings.alerts, settings.data, settings.www).read_contacts()
    aliases, _, unread = NameFiles(settings.data, None).read_names()  # only the builder keeps what it read
    return replace(contacts, aliases=aliases, is_complete=contacts.is_complete and not unread)


@dataclass
class ProtectedConfigFile:
    """A file that only the builder's user and root can write, nor their groups if it contains secrets."""

    setting: str
    path: str | None
    forbidden_folders: tuple[Path, ...]
    max_bytes: int
    is_secret: bool = False
    signature: files.FileSignature | None = None
    content: bytes | None = field(default=None, repr=False)  # it may hold passwords

    @property
    def where(self) -> str:
        return f"{self.setting} ({Path(self.path).name})" if self.path else ""

    def refresh(self, previous_counts: str, nothing_counts: str) -> list[Problem]:
        """Read the file if it is set and changed; else return why not, and what counts in its place."""
        if not self.path:
            return []
        path = Path(self.path).absolute()
        name, parent = path.name, path.parent
        try:
            real_parent = Path(os.path.realpath(parent))
            for forbidden in self.forbidden_folders:  # hosts write in data/, and everybody reads www/
                if Path(os.path.realpath(forbidden)) in (real_parent, *real_parent.parents):
                    reason = f"it is in {forbidden.name}/, where others can write"
                    raise files.FileRefusedError(f"{reason}; put it next to gpuboard.conf")
            folder = os.open(parent, files.ROOT_FOLDER_FLAGS)
            try:
                if files.read_signature(name, folder) != self.signature or self.signature is None:
                    self.signature, self.content = files.read_file(name, folder, self.max_bytes, self.check_status)
            finally:
                os.close(folder)
        except (OSError, files.FileRefusedError) as error:
            self.signature = None  # so that it is tried again
            consequence = nothing_counts if self.content is None else previous_counts
            reason = getattr(error, "strerror", None) or str(error)
            return [Problem(self.where, f"it is not read: {reason}; {consequence}")]
        return []

    def check_status(self, status: os.stat_result) -> None:
        """Refuse a file that somebody else can write; the status is of the file that was opened."""
        files.check_regular_file(status)
        writers = stat.S_IWGRP | stat.S_IWOTH if self.is_secret else stat.S_IWOTH
        if status.st_uid not in (os.geteuid(), 0):
            raise files.FileRefusedError("it belongs to another user; its owner must be the builder's user or root")
        if status.st_mode & writers:
            mode = "600" if self.is_secret else "o-w"
            raise files.FileRefusedError(f"other users can write it; fix: chmod {mode} {Path(self.path or '').name}")
