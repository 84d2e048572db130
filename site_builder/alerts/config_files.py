"""Read alerts.conf and the contacts file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from site_builder.alerts.model import ALL_RULES, WATCH_RULE, WEEKLY_REPORT_RULE, AlertRule
from site_builder.config.settings import Settings
from site_builder.config.types import (
    RESERVED_CHANNEL_NAMES,
    SettingType,
    check_setting_range,
    duration_between,
    format_short_duration,
)
from site_builder.core import files
from site_builder.core.formatting import DAY, DAY_NAMES, HOUR, MINUTE, join_names
from site_builder.core.model import AlertSettings, Problem
from site_builder.core.names import fold_alias, fold_login
from site_builder.core.terminal_text import decode_text, limit_problems
from site_builder.core.timeparse.moments import FULL_DAY_NAMES
from site_builder.fleet.gpu_models import NameFiles

ALL_SECTION = "all"
LAB_RECEIVERS, PERSON_RECEIVERS = ("all", "hooks"), ("person", "hooks")
DEFAULT_RULES = {
    rule.name: rule
    for rule in (
        # after an outage of the web host itself, every host looks down until it pushes again
        AlertRule("host-down", delay=2 * MINUTE, resolve_after=5 * MINUTE, to=LAB_RECEIVERS),
        AlertRule("host-failed", delay=5 * MINUTE, resolve_after=5 * MINUTE, to=LAB_RECEIVERS),
        AlertRule("host-new", to=LAB_RECEIVERS),
        AlertRule("gpu-lost", delay=2 * MINUTE, resolve_after=5 * MINUTE, to=LAB_RECEIVERS),
        AlertRule("gpu-hot", delay=10 * MINUTE, resolve_after=15 * MINUTE, to=LAB_RECEIVERS),
        AlertRule("gpu-error", resolve_after=15 * MINUTE, send_resolved=False, to=LAB_RECEIVERS),
        AlertRule("gpu-held", delay=5 * MINUTE, resolve_after=15 * MINUTE, send_resolved=False, to=PERSON_RECEIVERS),
        AlertRule("booking-begins", to=PERSON_RECEIVERS),
        AlertRule("booking-ends", to=PERSON_RECEIVERS, before=30 * MINUTE),
        AlertRule("booking-broken", delay=5 * MINUTE, resolve_after=15 * MINUTE, to=PERSON_RECEIVERS),
        AlertRule("booking-unused", delay=HOUR, resolve_after=15 * MINUTE, send_resolved=False, to=PERSON_RECEIVERS),
        AlertRule(WATCH_RULE, to=PERSON_RECEIVERS),
        AlertRule(WEEKLY_REPORT_RULE, on=False, to=("all",), at=(0, 8 * 60)),
    )
}
COMMON_KEYS = ("on", "to", "quiet_hours", "max_per_hour")
LASTING_KEYS = ("delay", "resolve_after", "send_resolved")
# Keys of older versions, and what they are called now.
RENAMED_KEYS = {
    "hold": "delay",
    "most": "max_per_hour",
    "over": "resolve_after",
    "quiet": "quiet_hours",
    "recovery": "send_resolved",
}
BOOKING_TIME_RULES = ("booking-begins", "booking-ends")
# Conditions of these rules have happened when they are seen: they need not last, and are never over.
MOMENTARY_RULES = ("host-new", *BOOKING_TIME_RULES, WATCH_RULE, WEEKLY_REPORT_RULE)
SECTION_PATTERN = re.compile(r"\[\s*([^\[\]]*?)\s*\]")
KEY_VALUE_PATTERN = re.compile(r"([^=:\s]+)\s*[=:]\s*(.*)")
COMMENT_PATTERN = re.compile(r"(?:^|\s)[#;].*")
RECEIVER_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
CLOCK_PATTERN = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
QUIET_HOURS_PATTERN = re.compile(r"([0-9:]+) ?(?:-|–|to|until) ?([0-9:]+)")
TRUE_WORDS, FALSE_WORDS = ("yes", "true", "on", "1"), ("no", "false", "off", "0")
MAX_LINE_CHARACTERS = 1000
MAX_QUOTED_CHARACTERS = 32
# The lead is not longer than that of alerts.conditions.
MAX_DURATION_S, MAX_LEAD_S = 7 * DAY, DAY


def parse_rules(data: bytes) -> tuple[dict[str, AlertRule], list[str]]:
    """Return every rule as it is in force, and what is wrong with the file; a line that cannot be read is ignored."""
    sections: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    section: str | None = None
    for number, line in enumerate(decode_text(data).lstrip("\ufeff").split("\n"), 1):
        text = COMMENT_PATTERN.sub("", line[:MAX_LINE_CHARACTERS]).strip()
        problem = ""
        if head := SECTION_PATTERN.fullmatch(text):
            section = head[1].lower().replace("_", "-")
            if section != ALL_SECTION and section not in DEFAULT_RULES:
                hint = suggest_rule_word(section, (ALL_SECTION, *ALL_RULES))
                section, problem = (
                    "",
                    f"there is no rule {quote_rule_value(head[1])}; {hint}",
                )  # ignore the lines below it
        elif text and section is None:
            example = f"begin with [{ALL_SECTION}], or with a rule such as [{ALL_RULES[0]}]"
            problem = f"this stands before any section: {example}"
        elif text and section:
            problem = parse_rule_line(text, section, sections.setdefault(section, {}))
        if problem:
            problems.append(f"line {number}: {problem}")
    rules = {name: apply_rule_values(rule, sections) for name, rule in DEFAULT_RULES.items()}
    return rules, list(limit_problems(problems))


def parse_rule_line(text: str, section: str, values: dict[str, Any]) -> str:
    """Add the value of a line to `values`; return what is wrong with it."""
    pair = KEY_VALUE_PATTERN.fullmatch(text)
    if not pair:
        return "it is neither a [section] nor `key = value`"
    key, value = pair[1].lower(), " ".join(pair[2].split())
    allowed = tuple(RULE_KEYS) if section == ALL_SECTION else list_rule_keys(section)
    if key in RENAMED_KEYS:
        return f"{key} is called {RENAMED_KEYS[key]} now: rename it, for this line does not count"
    if key not in RULE_KEYS:
        return f"there is no key {quote_rule_value(key)}; {suggest_rule_word(key, allowed)}"
    if key not in allowed:
        return f"{key} means nothing to {section}, which has {', '.join(allowed)}"
    is_repeated = key in values
    try:
        values[key] = RULE_KEYS[key].value_type.parse(value)
    except ValueError:
        return f"{key} is {quote_rule_value(value)}, {RULE_KEYS[key].value_type.refusal}"
    return f"{key} stands there twice for {section}; the last one counts" if is_repeated else ""


def apply_rule_values(rule: AlertRule, sections: Mapping[str, Mapping[str, Any]]) -> AlertRule:
    """Apply the values of [all], then those of the rule's own section."""
    for_all = dict(sections.get(ALL_SECTION, {}))
    if "person" in rule.to:  # what is for a person goes to others only by a line of its own section
        for_all.pop("to", None)
    if for_all.get("on"):  # a rule that is off by default is switched on by its own name
        del for_all["on"]
    values = {**for_all, **sections.get(rule.name, {})}
    return rule._replace(**{key: value for key, value in values.items() if key in list_rule_keys(rule.name)})


def drop_unknown_channels(
    rules: Mapping[str, AlertRule], channels: Collection[str]
) -> tuple[dict[str, AlertRule], list[str]]:
    """Remove channels that do not exist; a rule without receivers gets its default ones."""
    kept_rules: dict[str, AlertRule] = {}
    rules_by_missing: dict[str, list[str]] = {}
    for name, rule in rules.items():
        kept = tuple(word for word in rule.to if word in channels or word in RESERVED_CHANNEL_NAMES)
        for word in rule.to:
            if word not in kept:
                rules_by_missing.setdefault(word, []).append(name)
        kept_rules[name] = rule if kept == rule.to else rule._replace(to=kept or DEFAULT_RULES[name].to)
    problems = [
        f"{join_names(rule_names)} should go to {word}, but GPUBOARD_NOTIFY has no such channel; "
        f"{suggest_rule_word(word, (*channels, *sorted(RESERVED_CHANNEL_NAMES)))}"
        for word, rule_names in rules_by_missing.items()
    ]
    return kept_rules, list(limit_problems(problems))


def format_rule_values(rule: AlertRule) -> dict[str, str]:
    """Format each value of a rule as it is written in the file."""
    return {key: RULE_KEYS[key].format_value(getattr(rule, key)) for key in list_rule_keys(rule.name)}


def list_rule_keys(rule_name: str) -> tuple[str, ...]:
    keys = COMMON_KEYS if rule_name in MOMENTARY_RULES else (*COMMON_KEYS, *LASTING_KEYS)
    if rule_name in BOOKING_TIME_RULES:
        return (*keys, "before")
    return (*keys, "at") if rule_name == WEEKLY_REPORT_RULE else keys


def suggest_rule_word(word: str, allowed: Collection[str]) -> str:
    """Suggest what may have been meant."""
    close = get_close_matches(word, allowed, 1)
    return f"is it {close[0]}?" if close else f"there are {', '.join(allowed)}"


def quote_rule_value(text: str) -> str:
    """Quote a wrong value, unless it may be an address with a password."""
    if len(text) > MAX_QUOTED_CHARACTERS or ":/" in text or "@" in text or not text.isprintable():
        return "something else"
    return f"'{text}'"


def parse_rule_flag(text: str) -> bool:
    if text.lower() not in (*TRUE_WORDS, *FALSE_WORDS):
        raise ValueError(text)
    return text.lower() in TRUE_WORDS


def parse_rule_receivers(text: str) -> tuple[str, ...]:
    """Parse names with blanks or commas between them; `none` is nobody."""
    words = tuple(dict.fromkeys(text.lower().replace(",", " ").split()))
    if not words or any(not RECEIVER_NAME.fullmatch(word) for word in words) or ("none" in words and len(words) > 1):
        raise ValueError(text)
    return () if words == ("none",) else words


def parse_rule_minute_of_day(text: str) -> int:
    """Parse `7:30` as the minute of the day."""
    clock = CLOCK_PATTERN.fullmatch(text)
    if not clock:
        raise ValueError(text)
    return int(clock[1]) * 60 + int(clock[2])


def parse_rule_quiet_hours(text: str) -> tuple[int, int] | None:
    """Parse `22:00-07:00`, or `none`."""
    if text.lower() in ("", "none", "no"):
        return None
    hours = QUIET_HOURS_PATTERN.fullmatch(text.lower())
    if not hours:
        raise ValueError(text)
    first, last = parse_rule_minute_of_day(hours[1]), parse_rule_minute_of_day(hours[2])
    if first == last:  # never or all day is unclear; `none` and `on = no` say it
        raise ValueError(text)
    return first, last


def parse_rule_hourly_limit(text: str) -> int:
    if not re.fullmatch("[0-9]{1,4}", text):
        raise ValueError(text)
    return int(check_setting_range(int(text), 1, 1000))


def parse_rule_weekly_time(text: str) -> tuple[int, int]:
    """Parse `Mon 08:00` as the day, with Monday as 0, and the minute of the day."""
    day, _, clock = text.lower().partition(" ")
    for number, name in enumerate(FULL_DAY_NAMES):
        if len(day) > 2 and name.startswith(day):
            return number, parse_rule_minute_of_day(clock)
    raise ValueError(text)


def format_rule_minute_of_day(minute: int) -> str:
    """Format a minute of the day as `07:30`."""
    return f"{minute // 60:02}:{minute % 60:02}"


class RuleKey(NamedTuple):
    value_type: SettingType
    format_value: Callable[[Any], str]


YES_NO_KEY = RuleKey(SettingType("but must be yes or no", parse_rule_flag), lambda value: "yes" if value else "no")
DURATION_KEY = RuleKey(duration_between(0, MAX_DURATION_S), format_short_duration)
RULE_KEYS: Mapping[str, RuleKey] = {
    "on": YES_NO_KEY,
    "to": RuleKey(
        SettingType(
            "but must be names of channels with blanks between them, or all, person, hooks or none",
            parse_rule_receivers,
        ),
        lambda value: " ".join(value) or "none",
    ),
    "quiet_hours": RuleKey(
        SettingType("but must be two times such as 22:00-07:00, or none", parse_rule_quiet_hours),
        lambda value: "-".join(map(format_rule_minute_of_day, value)) if value else "none",
    ),
    "max_per_hour": RuleKey(SettingType("but must be a number from 1 to 1000", parse_rule_hourly_limit), str),
    "delay": DURATION_KEY,
    "resolve_after": DURATION_KEY,
    "send_resolved": YES_NO_KEY,
    "before": RuleKey(duration_between(0, MAX_LEAD_S), format_short_duration),
    "at": RuleKey(
        SettingType("but must be a day and a time such as Mon 08:00", parse_rule_weekly_time),
        lambda value: f"{DAY_NAMES[value[0]]} {format_rule_minute_of_day(value[1])}",
    ),
}


# Contacts

MAIL_KIND, SLACK_KIND = "mail", "slack"
MAIL_ADDRESS = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._%+'-]{0,63}@(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*"
)
SLACK_MEMBER = re.compile(r"slack:([UW][A-Z0-9]{2,20})", re.IGNORECASE)
SERVICE_URL = re.compile(r"([a-z][a-z0-9+.-]{0,31})://[!-~]{1,2000}", re.IGNORECASE)
# A login that may stand before the @ of an address: anybody can write names into bookings.
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
        """Return the logins in the contacts that are names of one person."""
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
            if any(
                contact.kind == kind and not contact.is_url and contact.address.lower() == address
                for contact in contacts
            )
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
        """Return the logins of different people that share a Slack member id."""
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
            problems.append(f"line {number}: it is not of the form login,address")
            continue
        if contact is None:
            wanted = "a mail address, slack:MEMBER-ID, or an address of a service such as tgram://…"
            problems.append(f"line {number}: the address behind the comma is not {wanted}")
            continue
        contacts = by_login.setdefault(fold_login(login), {})
        if len(contacts) == MAX_CONTACTS_PER_PERSON and contact not in contacts:
            limit = f"more than {MAX_CONTACTS_PER_PERSON} addresses"
            problems.append(f"line {number}: this person has {limit}; this one does not count")
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


class AlertConfigFiles:
    """Reads both files, each again only if it changed.

    Neither may lie in data/ or www/, where others write or read. The last good rules are kept in state/, but no copy
    of the contacts, since they contain secrets.
    """

    def __init__(self, alerts: AlertSettings, data: Path, www: Path, state: Path | None = None) -> None:
        self.alerts, self.state_folder = alerts, state
        self.rules_file = ProtectedConfigFile("GPUBOARD_ALERTS", alerts.rules_file, (data, www), MAX_RULES_BYTES)
        self.contacts_file = ProtectedConfigFile(
            "GPUBOARD_CONTACTS", alerts.contacts_file, (data, www), MAX_CONTACTS_BYTES, is_secret=True
        )
        if alerts.rules_file and state:
            with suppress(OSError, files.FileRefusedError):
                self.rules_file.content = files.read(state / GOOD_RULES_FILE, MAX_RULES_BYTES)
        self.parse_rules = lru_cache(maxsize=1)(self.parse_rules_for_channels)
        self.parse_contacts = lru_cache(maxsize=1)(parse_contacts)

    def list_problems(self) -> list[Problem]:
        return self.read_rules()[1] + self.read_contacts()[1]

    def read_rules(self) -> tuple[dict[str, AlertRule], list[Problem]]:
        """Return the rules in force, and what is wrong with their file; never raise."""
        file, before = self.rules_file, self.rules_file.content
        problems = file.refresh("the rules of before count", "those by default count")
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
        problems = file.refresh("the contacts of before count", "what is for people waits")
        if file.content is None:
            return Contacts(mail_domain=mail_domain, is_complete=not self.alerts.contacts_file), problems
        contacts = self.parse_contacts(file.content, mail_domain)
        return contacts, problems + [Problem(file.where, problem) for problem in contacts.problems]


def load_contacts(settings: Settings) -> Contacts:
    """Load the contacts as they are now, with aliases."""
    contacts, _ = AlertConfigFiles(settings.alerts, settings.data, settings.www).read_contacts()
    aliases, _, unread = NameFiles(settings.data, None).read_names()  # only the builder keeps what it read
    return replace(contacts, aliases=aliases, is_complete=contacts.is_complete and not unread)


class ProtectedConfigFile:
    """A file that only the builder's user and root can write, nor their groups if it contains secrets."""

    def __init__(
        self,
        setting: str,
        path: str | None,
        forbidden_folders: tuple[Path, ...],
        max_bytes: int,
        is_secret: bool = False,
    ) -> None:
        self.path = Path(path).absolute() if path else None
        self.max_bytes, self.is_secret, self.forbidden_folders = max_bytes, is_secret, forbidden_folders
        self.where = f"{setting} ({self.path.name})" if self.path else ""
        self.signature: files.FileSignature | None = None
        self.content: bytes | None = None

    def refresh(self, previous_counts: str, nothing_counts: str) -> list[Problem]:
        """Read the file if it is set and changed; else return why not, and what counts in its place."""
        if self.path is None:
            return []
        name, parent = self.path.name, self.path.parent
        try:
            real_parent = Path(os.path.realpath(parent))
            for forbidden in self.forbidden_folders:  # hosts write in data/, and everybody reads www/
                if Path(os.path.realpath(forbidden)) in (real_parent, *real_parent.parents):
                    reason = f"it lies in {forbidden.name}/, which is not the builder's alone"
                    raise files.FileRefusedError(f"{reason}; put it beside gpuboard.conf")
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
            raise files.FileRefusedError("it is another user's; only the builder's user and root may own it")
        if status.st_mode & writers:
            mode, name = "600" if self.is_secret else "o-w", self.path.name if self.path else ""
            raise files.FileRefusedError(f"others can write it; chmod {mode} {name} closes it")
