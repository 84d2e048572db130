"""Read alerts.conf and the contacts file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from site_builder.alerts.model import ALL_RULES, AlertRule
from site_builder.config.settings import Settings
from site_builder.config.types import (
    RESERVED_CHANNEL_NAMES,
    SettingType,
    check_range,
    duration_between,
    format_short_duration,
)
from site_builder.core import files
from site_builder.core.files import read_file_from_folder
from site_builder.core.formatting import DAY_NAMES, join_names
from site_builder.core.model import AlertSettings, Problem
from site_builder.core.names import fold_alias, fold_login
from site_builder.core.terminal_text import decode_text, limit_problems
from site_builder.fleet.gpu_models import NameFiles

ALL_SECTION = "all"
LAB_RECEIVERS, PERSON_RECEIVERS = ("all", "hooks"), ("person", "hooks")
MINUTE_S, HOUR_S = 60, 3600
DEFAULT_RULES = {
    rule.name: rule
    for rule in (
        # after an outage of the web host itself, every host looks down until it pushes again
        AlertRule("host-down", delay=2 * MINUTE_S, resolve_after=5 * MINUTE_S, to=LAB_RECEIVERS),
        AlertRule("host-failed", delay=5 * MINUTE_S, resolve_after=5 * MINUTE_S, to=LAB_RECEIVERS),
        AlertRule("host-new", to=LAB_RECEIVERS),
        AlertRule("gpu-lost", delay=2 * MINUTE_S, resolve_after=5 * MINUTE_S, to=LAB_RECEIVERS),
        AlertRule("gpu-hot", delay=10 * MINUTE_S, resolve_after=15 * MINUTE_S, to=LAB_RECEIVERS),
        AlertRule("gpu-error", resolve_after=15 * MINUTE_S, send_resolved=False, to=LAB_RECEIVERS),
        AlertRule(
            "gpu-held", delay=5 * MINUTE_S, resolve_after=15 * MINUTE_S, send_resolved=False, to=PERSON_RECEIVERS
        ),
        AlertRule("booking-begins", to=PERSON_RECEIVERS),
        AlertRule("booking-ends", to=PERSON_RECEIVERS, before=30 * MINUTE_S),
        AlertRule("booking-broken", delay=5 * MINUTE_S, resolve_after=15 * MINUTE_S, to=PERSON_RECEIVERS),
        AlertRule(
            "booking-unused", delay=HOUR_S, resolve_after=15 * MINUTE_S, send_resolved=False, to=PERSON_RECEIVERS
        ),
        AlertRule("watch", to=PERSON_RECEIVERS),
        AlertRule("weekly-report", on=False, to=("all",), at=(0, 8 * 60)),
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
# What has happened when it is seen: it need not last, and is never over.
MOMENTARY_RULES = ("host-new", *BOOKING_TIME_RULES, "watch", "weekly-report")
SECTION_PATTERN = re.compile(r"\[\s*([^\[\]]*?)\s*\]")
KEY_VALUE_PATTERN = re.compile(r"([^=:\s]+)\s*[=:]\s*(.*)")
COMMENT_PATTERN = re.compile(r"(?:^|\s)[#;].*")
RECEIVER_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
CLOCK_PATTERN = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
QUIET_HOURS_PATTERN = re.compile(r"([0-9:]+) ?(?:-|–|to|until) ?([0-9:]+)")
FULL_DAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
TRUE_WORDS, FALSE_WORDS = ("yes", "true", "on", "1"), ("no", "false", "off", "0")
MAX_LINE_CHARACTERS = 1000
MAX_QUOTED_CHARACTERS = 32
# Seconds: of what lasts, and ahead of a booking, which becomes a matter that early (decide/matters.py).
MAX_DURATION_S, MAX_LEAD_S = 7 * 86400, 86400


def parse_rules(data: bytes) -> tuple[dict[str, AlertRule], list[str]]:
    """Every rule as it is in force, and what is wrong with the file; a line that cannot be read costs that line."""
    found: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    section: str | None = None
    for number, line in enumerate(decode_text(data).lstrip("\ufeff").split("\n"), 1):
        text = COMMENT_PATTERN.sub("", line[:MAX_LINE_CHARACTERS]).strip()
        problem = ""
        if head := SECTION_PATTERN.fullmatch(text):
            section, problem = parse_section_name(head[1])
        elif text and section is None:
            problem = (
                f"this stands before any section: begin with [{ALL_SECTION}], or with a rule such as [{ALL_RULES[0]}]"
            )
        elif text and section:
            problem = parse_rule_line(text, section, found.setdefault(section, {}))
        if problem:
            problems.append(f"line {number}: {problem}")
    return {name: apply_rule_values(rule, found) for name, rule in DEFAULT_RULES.items()}, list(
        limit_problems(problems)
    )


def parse_section_name(text: str) -> tuple[str, str]:
    """The rule that a section is of, or `all`; or nothing and why: what stands below it is then passed over."""
    name = text.lower().replace("_", "-")
    if name == ALL_SECTION or name in DEFAULT_RULES:
        return name, ""
    return "", f"there is no rule {quote_value(text)}; {suggest_word(name, (ALL_SECTION, *ALL_RULES))}"


def parse_rule_line(text: str, section: str, found: dict[str, Any]) -> str:
    """Understand one line of a section; or why it does not count."""
    pair = KEY_VALUE_PATTERN.fullmatch(text)
    if not pair:
        return "it is neither a [section] nor `key = value`"
    key, value = pair[1].lower(), " ".join(pair[2].split())
    allowed = tuple(RULE_KEYS) if section == ALL_SECTION else list_rule_keys(section)
    if key in RENAMED_KEYS:
        return f"{key} is called {RENAMED_KEYS[key]} now: rename it, for this line does not count"
    if key not in RULE_KEYS:
        return f"there is no key {quote_value(key)}; {suggest_word(key, allowed)}"
    if key not in allowed:
        return f"{key} means nothing to {section}, which has {', '.join(allowed)}"
    again = key in found
    try:
        found[key] = RULE_KEYS[key].value_type.parse(value)
    except ValueError:
        return f"{key} is {quote_value(value)}, {RULE_KEYS[key].value_type.refusal}"
    return f"{key} stands there twice for {section}; the last one counts" if again else ""


def apply_rule_values(rule: AlertRule, found: Mapping[str, Mapping[str, Any]]) -> AlertRule:
    """A rule with what the file says of all, and of it."""
    for_all = dict(found.get(ALL_SECTION, {}))
    if "person" in rule.to:  # what is a person's own goes to others only by a line of its own section
        for_all.pop("to", None)
    if for_all.get("on"):  # so is every rule; what is off by default is switched on by its own name
        del for_all["on"]
    said = {**for_all, **found.get(rule.name, {})}
    return rule._replace(**{key: value for key, value in said.items() if key in list_rule_keys(rule.name)})


def drop_unknown_channels(
    rules: Mapping[str, AlertRule], channels: Collection[str]
) -> tuple[dict[str, AlertRule], list[str]]:
    """The rules without channels that are not there; what nobody would hear of goes where it does by default."""
    found: dict[str, AlertRule] = {}
    missing: dict[str, list[str]] = {}
    for name, rule in rules.items():
        there = tuple(word for word in rule.to if word in channels or word in RESERVED_CHANNEL_NAMES)
        for word in rule.to:
            if word not in there:
                missing.setdefault(word, []).append(name)
        found[name] = rule if there == rule.to else rule._replace(to=there or DEFAULT_RULES[name].to)
    problems = [
        f"{join_names(several)} should go to {word}, but GPUBOARD_NOTIFY has no such channel; "
        f"{suggest_word(word, (*channels, *sorted(RESERVED_CHANNEL_NAMES)))}"
        for word, several in missing.items()
    ]
    return found, list(limit_problems(problems))


def format_rule_values(rule: AlertRule) -> dict[str, str]:
    """Each key of a rule with its value, as it is written in the file."""
    return {key: RULE_KEYS[key].format_value(getattr(rule, key)) for key in list_rule_keys(rule.name)}


def list_rule_keys(rule: str) -> tuple[str, ...]:
    """Which keys a rule has."""
    lasting = () if rule in MOMENTARY_RULES else LASTING_KEYS
    return (*COMMON_KEYS, *lasting, *("before",) * (rule in BOOKING_TIME_RULES), *("at",) * (rule == "weekly-report"))


def suggest_word(word: str, allowed: Collection[str]) -> str:
    """What somebody may have meant."""
    close = get_close_matches(word, allowed, 1)
    return f"is it {close[0]}?" if close else f"there are {', '.join(allowed)}"


def quote_value(text: str) -> str:
    """What is wrong, fit to be shown: an address that somebody has put here may hold a password."""
    if len(text) > MAX_QUOTED_CHARACTERS or ":/" in text or "@" in text or not text.isprintable():
        return "something else"
    return f"'{text}'"


def parse_yes_or_no(text: str) -> bool:
    """`yes` or `no`, and what else people write for them."""
    if text.lower() not in (*TRUE_WORDS, *FALSE_WORDS):
        raise ValueError(text)
    return text.lower() in TRUE_WORDS


def parse_receivers(text: str) -> tuple[str, ...]:
    """Names with blanks or commas between them, each once; `none` is nobody."""
    words = tuple(dict.fromkeys(text.lower().replace(",", " ").split()))
    if not words or any(not RECEIVER_NAME.fullmatch(word) for word in words) or ("none" in words and len(words) > 1):
        raise ValueError(text)
    return () if words == ("none",) else words


def parse_minute_of_day(text: str) -> int:
    """The minute of the day of `7:30`."""
    found = CLOCK_PATTERN.fullmatch(text)
    if not found:
        raise ValueError(text)
    return int(found[1]) * 60 + int(found[2])


def parse_quiet_hours(text: str) -> tuple[int, int] | None:
    """From when until when, `22:00-07:00`; nothing is None."""
    if text.lower() in ("", "none", "no"):
        return None
    found = QUIET_HOURS_PATTERN.fullmatch(text.lower())
    if not found:
        raise ValueError(text)
    first, last = parse_minute_of_day(found[1]), parse_minute_of_day(found[2])
    if first == last:  # never, or all day? whoever wants either has `none`, and `on = no`
        raise ValueError(text)
    return first, last


def parse_hourly_limit(text: str) -> int:
    """How many an hour."""
    if not re.fullmatch("[0-9]{1,4}", text):
        raise ValueError(text)
    return int(check_range(int(text), 1, 1000))


def parse_weekly_time(text: str) -> tuple[int, int]:
    """`Mon 08:00`: the day from Monday on, and the minute of it."""
    day, _, clock = text.lower().partition(" ")
    several = [number for number, whole in enumerate(FULL_DAY_NAMES) if len(day) > 2 and whole.startswith(day)]
    if not several:
        raise ValueError(text)
    return several[0], parse_minute_of_day(clock)


def format_minute_of_day(minute: int) -> str:
    """`07:30`."""
    return f"{minute // 60:02}:{minute % 60:02}"


class RuleKey(NamedTuple):
    """What a value of a key may be, and how it is written."""

    value_type: SettingType
    format_value: Callable[[Any], str]


YES_NO_KEY = RuleKey(SettingType("but must be yes or no", parse_yes_or_no), lambda value: "yes" if value else "no")
DURATION_KEY = RuleKey(duration_between(0, MAX_DURATION_S), format_short_duration)
RULE_KEYS: Mapping[str, RuleKey] = {
    "on": YES_NO_KEY,
    "to": RuleKey(
        SettingType(
            "but must be names of channels with blanks between them, or all, person, hooks or none", parse_receivers
        ),
        lambda value: " ".join(value) or "none",
    ),
    "quiet_hours": RuleKey(
        SettingType("but must be two times such as 22:00-07:00, or none", parse_quiet_hours),
        lambda value: "-".join(map(format_minute_of_day, value)) if value else "none",
    ),
    "max_per_hour": RuleKey(SettingType("but must be a number from 1 to 1000", parse_hourly_limit), str),
    "delay": DURATION_KEY,
    "resolve_after": DURATION_KEY,
    "send_resolved": YES_NO_KEY,
    "before": RuleKey(duration_between(0, MAX_LEAD_S), format_short_duration),
    "at": RuleKey(
        SettingType("but must be a day and a time such as Mon 08:00", parse_weekly_time),
        lambda value: f"{DAY_NAMES[value[0]]} {format_minute_of_day(value[1])}",
    ),
}


MAIL_KIND, SLACK_KIND = "mail", "slack"
MAIL_ADDRESS = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._%+'-]{0,63}@(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*"
)
SLACK_MEMBER = re.compile(r"slack:([UW][A-Z0-9]{2,20})", re.IGNORECASE)
SERVICE_URL = re.compile(r"([a-z][a-z0-9+.-]{0,31})://[!-~]{1,2000}", re.IGNORECASE)
# What may stand before the @ of an address that is made of a login: the names in bookings are anybody's to write.
LOGIN_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
# Names that are no person's in a domain, but an office's or a list's; a line in the contacts makes them one.
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
    """One way to a person: its kind is `mail` for an address, `slack` for a member id, else the scheme of a URL.

    Where `url` is set the address is one that apprise understands; else it is a bare mail address or member id.
    """

    kind: str
    address: str = field(repr=False)
    is_url: bool = False

    @property
    def written_address(self) -> str:
        """The address as it stands in the file: `slack:` is before a member id."""
        return f"{SLACK_KIND}:{self.address}" if self.kind == SLACK_KIND and not self.is_url else self.address


@dataclass(frozen=True)
class Contacts:
    """Who is told by which ways; not `whole` where a file could not be read, so that whoever is not here may be there.

    `known` has logins as `folded` makes them. Aliases lead from other names to them, but others than the admin may
    write those: they take away no address that somebody has, and make nobody known under a name that is not theirs.
    """

    contacts_by_login: Mapping[str, tuple[Contact, ...]] = field(default_factory=dict, repr=False)
    mail_domain: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_complete: bool = True
    problems: tuple[str, ...] = ()

    def with_aliases(self, aliases: Mapping[str, str]) -> Contacts:
        """The same with the names of aliases.csv (`People.aliases`)."""
        return replace(self, aliases=aliases)

    def find_contacts(self, person: str, via: str = "") -> tuple[Contact, ...]:
        """The ways to a person: those of the kind `via`, or all where none of theirs is of it; empty if there is none.

        Those of this very name come before those of their other names. Whoever has no line has LOGIN@DOMAIN, where a
        domain is set.
        """
        found = self.contacts_by_login.get(fold_login(person.strip()), ())
        if not found:
            others = (way for login in self.find_logins(person) for way in self.contacts_by_login[login])
            found = tuple(dict.fromkeys(others))[:MAX_CONTACTS_PER_PERSON]
        if not found and self.is_complete and self.mail_domain and is_personal_login(login := self.find_login(person)):
            found = (Contact(MAIL_KIND, f"{login}@{self.mail_domain}"),)
        return tuple(way for way in found if way.kind == via) or found

    def list_addresses(self, person: str) -> tuple[str, ...]:
        """The same as they are written: a mail address, a URL, or `slack:MEMBER-ID`."""
        return tuple(way.written_address for way in self.find_contacts(person))

    def find_logins(self, person: str) -> list[str]:
        """The logins here that are names of one person."""
        one = resolve_alias(self.aliases, person)
        return [login for login in self.contacts_by_login if resolve_alias(self.aliases, login) == one]

    def find_login(self, person: str) -> str:
        """The login of a person: the name itself where it has a line, else the first in aliases.csv that can be one."""
        given, one = fold_login(person.strip()), resolve_alias(self.aliases, person)
        if given in self.contacts_by_login:
            return given
        names = (
            name for name in self.aliases if LOGIN_PATTERN.fullmatch(name) and resolve_alias(self.aliases, name) == one
        )
        return next(names, given)

    def find_person(self, kind: str, address: str) -> str | None:
        """The login that has a mail address (LOGIN@DOMAIN too) or a member id of Slack; None where that is not sure."""
        wanted = address.lower()
        several = [
            login
            for login, ways in self.contacts_by_login.items()
            if any(way.kind == kind and not way.is_url and way.address.lower() == wanted for way in ways)
        ]
        if several:
            return several[0] if self.is_same_person(several) else None
        login, _, domain = wanted.partition("@")
        if (
            kind != MAIL_KIND
            or not self.mail_domain
            or domain != self.mail_domain.lower()
            or not LOGIN_PATTERN.fullmatch(login)
        ):
            return None
        # whoever has another address in the contacts does not read this one, and neither may another name of theirs
        return login if not self.find_logins(login) and self.find_login(login) == login else None

    def find_shared_members(self) -> list[tuple[str, ...]]:
        """Logins that have one member id of Slack: whoever writes from there could be any of them."""
        several: dict[str, list[str]] = {}
        for login, ways in self.contacts_by_login.items():
            for way in ways:
                if way.kind == SLACK_KIND and not way.is_url:
                    several.setdefault(way.address, []).append(login)
        return [tuple(logins) for logins in several.values() if not self.is_same_person(logins)]

    def is_same_person(self, logins: Collection[str]) -> bool:
        """Whether they are names of one person."""
        return len({resolve_alias(self.aliases, login) for login in logins}) == 1


def is_personal_login(name: str) -> bool:
    """Whether LOGIN@DOMAIN may be the address of a person."""
    return bool(LOGIN_PATTERN.fullmatch(name)) and not ROLE_MAILBOXES.fullmatch(name)


def resolve_alias(aliases: Mapping[str, str], name: str) -> str:
    """One word for one person, as `People.person` has it."""
    name = name.strip()
    return fold_login(aliases.get(fold_alias(name), name))


def parse_contacts(data: bytes, domain: str | None = None) -> Contacts:
    """The ways to each person; a line that cannot be read costs that line, and its words are never told."""
    found: dict[str, dict[Contact, None]] = {}
    problems: list[str] = []
    for number, line in enumerate(decode_text(data).lstrip("\ufeff").split("\n"), 1):
        text = CONTACT_COMMENT_PATTERN.sub("", line).strip()
        login, comma, address = (part.strip() for part in text.partition(","))
        if not text or (number == 1 and (login.lower(), address.lower()) == HEADER_CELLS):
            continue
        way = parse_contact(address) if comma and len(text) <= MAX_CONTACT_CHARACTERS else None
        if not comma or not login or len(login) > MAX_LOGIN_CHARACTERS or SERVICE_URL.match(login):
            problems.append(f"line {number}: it is not of the form login,address")
        elif way is None:
            wanted = "a mail address, slack:MEMBER-ID, or an address of a service such as tgram://…"
            problems.append(f"line {number}: the address behind the comma is not {wanted}")
        elif len(ways := found.setdefault(fold_login(login), {})) == MAX_CONTACTS_PER_PERSON and way not in ways:
            problems.append(
                f"line {number}: this person has more than {MAX_CONTACTS_PER_PERSON} addresses; this one does not count"
            )
        else:
            ways[way] = None
    return Contacts({login: tuple(ways) for login, ways in found.items()}, domain, problems=limit_problems(problems))


def parse_contact(address: str) -> Contact | None:
    """An address, as people write it."""
    if MAIL_ADDRESS.fullmatch(address):
        return Contact(MAIL_KIND, address)
    if member := SLACK_MEMBER.fullmatch(address):
        return Contact(SLACK_KIND, member[1].upper())
    if url := SERVICE_URL.fullmatch(address):
        scheme = url[1].lower()
        return Contact(MAIL_KIND if scheme in MAIL_SCHEMES else scheme, address, is_url=True)
    return None


# Bytes that are read: of rules, which are a few pages at the most, and of contacts.
MAX_RULES_BYTES, MAX_CONTACTS_BYTES = 64 * 1024, 1024 * 1024
# The last good rules: what somebody switched off stays off, though the file cannot be read after a restart.
GOOD_RULES_FILE = "alerts.conf.good"


class AlertConfig(NamedTuple):
    """What is in force: every rule by its name, the contacts (without aliases), and what is wrong with either file."""

    rules: dict[str, AlertRule]
    contacts: Contacts
    problems: list[Problem]


class AlertConfigFiles:
    """Both files; each is read again only if it changed."""

    def __init__(self, alerts: AlertSettings, data: Path, www: Path, state: Path | None = None) -> None:
        """Nothing is read from data/ or www/, where others write or read; in state/ the last good rules are kept."""
        shared = (data, www)
        self.rules_file = RulesFile(alerts, shared, state)
        self.contacts_file = ContactsFile(alerts, shared)

    def read(self) -> AlertConfig:
        """What counts now; it never raises."""
        rules, first = self.rules_file.read()
        contacts, second = self.contacts_file.read()
        return AlertConfig(rules, contacts, first + second)


def load_contacts(settings: Settings) -> Contacts:
    """The contacts as they are now, through aliases.csv: for whoever sends a letter, or asks who somebody is."""
    contacts, _ = ContactsFile(settings.alerts, (settings.data, settings.www)).read()
    aliases, _, unread = NameFiles(settings.data, None).read_names()  # only the builder keeps what it read
    return replace(contacts.with_aliases(aliases), is_complete=contacts.is_complete and not unread)


class ProtectedFile:
    """A file that only the builder's user and root write; with secrets in it, their groups do not either."""

    def __init__(self, setting: str, path: str, shared: tuple[Path, ...], limit: int, *, secret: bool = False) -> None:
        """The setting that names it, and the folders that it may not lie in."""
        self.path, self.forbidden_folders, self.max_bytes, self.is_secret = Path(path).absolute(), shared, limit, secret
        self.where = f"{setting} ({self.path.name})"
        self.signature: files.FileSignature | None = None
        self.content: bytes | None = None

    def refresh(self, before: str, none: str) -> list[Problem]:
        """Take up what it says now; or say why not, and what counts in its place."""
        try:
            self.check_folder()
            folder = os.open(self.path.parent, files.ROOT_FOLDER_FLAGS)
            try:
                if files.read_signature(self.path.name, folder) != self.signature or self.signature is None:
                    self.signature, self.content = files.read_file(
                        self.path.name, folder, self.max_bytes, self.check_status
                    )
            finally:
                os.close(folder)
        except (OSError, files.FileRefusedError) as why:
            self.signature = None  # so that it is tried again
            instead = none if self.content is None else before
            what = f"it is not read: {getattr(why, 'strerror', None) or why}; {instead}"
            return [Problem(self.where, what)]
        return []

    def check_folder(self) -> None:
        """Hosts write to data/, and everybody reads www/."""
        real = Path(os.path.realpath(self.path.parent))
        for folder in self.forbidden_folders:
            top = Path(os.path.realpath(folder))
            if real == top or top in real.parents:
                message = f"it lies in {folder.name}/, which is not the builder's alone; put it beside gpuboard.conf"
                raise files.FileRefusedError(message)

    def check_status(self, status: os.stat_result) -> None:
        """Refuse one that somebody else can write, of the very file that was opened."""
        files.check_regular_file(status)
        writers = stat.S_IWGRP | stat.S_IWOTH if self.is_secret else stat.S_IWOTH
        if status.st_uid not in (os.geteuid(), 0):
            message = "it is another user's; only the builder's user and root may own it"
            raise files.FileRefusedError(message)
        if status.st_mode & writers:
            message = f"others can write it; chmod {'600' if self.is_secret else 'o-w'} {self.path.name} closes it"
            raise files.FileRefusedError(message)


class RulesFile:
    """GPUBOARD_ALERTS: the rules in force."""

    def __init__(self, alerts: AlertSettings, shared: tuple[Path, ...], state: Path | None) -> None:
        """Begin with those that were good last."""
        self.channel_names = tuple(name for name, _ in alerts.channels)
        self.file = (
            ProtectedFile("GPUBOARD_ALERTS", alerts.rules_file, shared, MAX_RULES_BYTES) if alerts.rules_file else None
        )
        self.state_folder = state
        self.parsed: tuple[bytes | None, dict[str, AlertRule], list[str]] | None = None
        if self.file and state:
            with suppress(OSError, files.FileRefusedError):
                self.file.content = read_file_from_folder(state, GOOD_RULES_FILE, MAX_RULES_BYTES)[1]

    def read(self) -> tuple[dict[str, AlertRule], list[Problem]]:
        """The rules, and what is wrong with them."""
        before, problems = self.content, []
        if self.file:
            problems = self.file.refresh("the rules of before count", "those by default count")
            if self.state_folder and self.content is not None and self.content != before:
                with suppress(OSError):  # the page tells of a state folder that cannot be written, by other files
                    files.write_atomically(self.state_folder / GOOD_RULES_FILE, self.content, 0o600)
        if self.parsed is None or self.parsed[0] != self.content:
            rules, wrong = parse_rules(self.content or b"")
            rules, missing = drop_unknown_channels(rules, self.channel_names)
            self.parsed = self.content, rules, [*wrong, *missing]
        _, rules, told = self.parsed
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
        self.mail_domain = alerts.mail_domain
        self.file = (
            ProtectedFile("GPUBOARD_CONTACTS", alerts.contacts_file, shared, MAX_CONTACTS_BYTES, secret=True)
            if alerts.contacts_file
            else None
        )
        self.parsed: tuple[bytes, Contacts] | None = None

    def read(self) -> tuple[Contacts, list[Problem]]:
        """The contacts, and what is wrong with them."""
        if not self.file:
            return Contacts(mail_domain=self.mail_domain), []
        problems = self.file.refresh("the contacts of before count", "what is for people waits")
        content = self.file.content
        if content is None:
            return Contacts(mail_domain=self.mail_domain, is_complete=False), problems
        if self.parsed is None or self.parsed[0] != content:
            self.parsed = content, parse_contacts(content, self.mail_domain)
        found = self.parsed[1]
        return found, problems + [Problem(self.file.where, what) for what in found.problems]
