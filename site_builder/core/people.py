"""Tell people apart: logins, aliases and the names that are shown."""

from __future__ import annotations

import re
import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from site_builder.core.terminal_text import clean_text, decode_text

# A user without a name, as `ps` or we print it; an id above 2³¹ may be printed negative.
UID_PATTERN = re.compile(r"(?:uid )?(-?[0-9]{1,10})")
UID_MODULUS = 2**32
# The column of `ps` has room for eight digits.
MIN_TRUNCATED_UID = 10**8
MAX_CACHED_LOGINS = 20_000


ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class PeopleDirectory:
    """People by aliases.csv (lower-case name to display name) and by the logins ever seen on a host."""

    def __init__(self, aliases: Mapping[str, str], logins: Iterable[str] = ()) -> None:
        self.aliases = aliases
        self.logins = frozenset(logins)
        spellings = {fold_login(login): login for login in sorted(self.logins) if self.is_full_login(login)}
        self.known_names = {**dict(zip(aliases, aliases)), **spellings}
        self.known_people = {self.resolve_person(name) for name in self.known_names}
        self.full_login_cache: dict[str, str | None] = {}

    def display_name(self, name: str) -> str:
        return self.aliases.get(fold_alias(name), name)

    def resolve_person(self, name: str) -> str:
        """Return the same word for all names of one person."""
        return fold_login(self.display_name(name.strip()))

    def is_aliased(self, login: str) -> bool:
        """Return True if aliases.csv has a display name for this very login, or for its number."""
        return fold_alias(login if is_truncated_login(login) else self.find_full_login(login) or login) in self.aliases

    def is_known(self, name: str) -> bool:
        """Return True for a login that was seen, and for a name of its owner."""
        return self.resolve_person(name) in self.known_people

    def find_person(self, login: str | None) -> str | None:
        """Return the person behind a login printed by `ps`; None for a number or an ambiguous truncated name."""
        full_login = self.find_full_login(login) if login else None
        if full_login is None or (
            parse_login_uid(full_login) is not None and fold_alias(full_login) not in self.aliases
        ):
            return None
        return self.resolve_person(full_login)

    def resolve_user(self, login: str) -> str:
        """Return one word for a user, even where the person is unknown."""
        return self.resolve_person(self.find_full_login(login) or login)

    def display_login(self, login: str) -> str:
        """Return the display name of a login printed by `ps`, completed if it was truncated and only one fits."""
        display_name = self.display_name(self.find_full_login(login) or login)
        # digits alone may be a name; where they are not, the process table says `uid`
        return login if display_name == f"uid {login}" else display_name

    def choose_display_name(self, names: Sequence[str]) -> str:
        """Choose among spellings of one person's name: the one in aliases.csv, or else the plainest."""
        aliased = sorted(self.display_login(name) for name in names if self.is_aliased(name))
        plainest = min(
            names, key=lambda name: (is_truncated_login(name), name.isdecimal(), name != fold_login(name), name)
        )
        return aliased[0] if aliased else self.display_login(plainest)

    def find_full_login(self, login: str) -> str | None:
        """Complete a login, spelt as in aliases.csv; `uid 1234` for a number, None if it is ambiguous."""
        if login not in self.full_login_cache:
            if len(self.full_login_cache) >= MAX_CACHED_LOGINS:  # a host can send any number of logins
                self.full_login_cache.clear()
            full_login: str | None = login
            if fold_alias(login) not in self.aliases:
                number = parse_login_uid(login)
                if number is not None:
                    is_aliased_number = str(number) in self.aliases and f"uid {number}" not in self.aliases
                    full_login = str(number) if is_aliased_number else f"uid {number}"
                elif is_truncated_login(login):
                    full_login = self.complete_truncated_login(login)
            self.full_login_cache[login] = full_login
        return self.full_login_cache[login]

    def complete_truncated_login(self, login: str) -> str | None:
        """Return the only known person's login that begins like this; None if several or none do."""
        beginnings = fold_login(login[:-1]), fold_alias(login[:-1])
        # `ps` does not truncate shorter logins
        min_length = len(login) if login.isascii() else 0
        # of all names: a short display name must not hide a second person whose login begins like this
        spellings = self.known_names
        if login[:-1].isdecimal():
            uids = {number for known_login in self.logins if (number := parse_login_uid(known_login)) is not None}
            spellings = {str(number): f"uid {number}" for number in uids}
            spellings.update({name: name for name in self.aliases if name.isascii() and name.isdecimal()})
        names = [spellings[name] for name in spellings if name.startswith(beginnings) and len(name) >= min_length]
        # the first by name, so that each build takes the same
        return min(names) if len({self.resolve_person(name) for name in names}) == 1 else None

    @classmethod
    def is_worth_remembering(cls, login: str) -> bool:
        """Return True for a full name, and for a number so long that `ps` may truncate it elsewhere."""
        number = parse_login_uid(login)
        return cls.is_full_login(login) if number is None else number >= MIN_TRUNCATED_UID

    @staticmethod
    def is_full_login(login: str) -> bool:
        return parse_login_uid(login) is None and not is_truncated_login(login)


def parse_aliases(data: bytes) -> dict[str, str]:
    """Return the display name of each name in aliases.csv, by the name in lower case."""
    display_names: dict[str, str] = {}
    for line in decode_text(data).split("\n"):
        names = [name for cell in line.partition("#")[0].split(",") if (name := cell.strip())]
        for name in names:
            display_names[fold_alias(name)] = names[-1]
    return display_names


def fold_login(login: str) -> str:
    """Fold a login for comparisons: only the case of ASCII letters is ignored."""
    # `lower` would turn the kelvin sign into a k, and so one person into another
    return login.lower() if login.isascii() else login.translate(ASCII_LOWER)


def fold_alias(name: str) -> str:
    """Lower a name as aliases.csv has it; a letter outside ASCII never becomes an ASCII letter."""
    if name.isascii():
        return name.lower()
    return "".join(letter if not letter.isascii() and letter.lower().isascii() else letter.lower() for letter in name)


def parse_login_uid(user: str) -> int | None:
    """Return the number of a user that has no name; None for a login."""
    if user[:1].isalpha() and not user.startswith("uid "):  # a fast path for nearly all of many logins
        return None
    match = UID_PATTERN.fullmatch(user)
    return int(match[1]) % UID_MODULUS if match else None


def is_truncated_login(user: str) -> bool:
    return user.endswith("+")


def are_different_people(before: Iterable[str], now: Iterable[str]) -> bool:
    """Return True if there were people before and now, and none of them is the same."""
    first, second = set(map(fold_login, before)), set(map(fold_login, now))
    return bool(first and second) and first.isdisjoint(second)


class PeopleNames:
    """Display names of people: one for each person, however their name was spelt."""

    def __init__(self, people: PeopleDirectory, names: Iterable[str]) -> None:
        """Take the names that history has; a newer one is displayed as aliases.csv has it."""
        self.people = people
        self.display_names: dict[str, str] = {}
        for person_names in group_spellings(names, people).values():
            self.display_names.update(dict.fromkeys(person_names, clean_text(people.choose_display_name(person_names))))

    def find_display_name(self, name: str) -> str:
        return self.display_names.get(name) or self.people.display_login(name)

    def list_display_names(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(self.find_display_name, names)))


def group_spellings(names: Iterable[str], people: PeopleDirectory) -> dict[str, list[str]]:
    spellings: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        spellings[people.resolve_user(name)].append(name)
    return spellings
