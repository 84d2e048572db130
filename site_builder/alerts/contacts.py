"""The contacts: how each person is told, in lines of `login,address`; an address may hold a secret, and is not told."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from site_builder.core.names import folded, lowered
from site_builder.snapshots.envelope import bounded, text_of

MAIL, SLACK = "mail", "slack"
ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+'-]{0,63}@(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*")
MEMBER = re.compile(r"slack:([UW][A-Z0-9]{2,20})", re.IGNORECASE)
URL = re.compile(r"([a-z][a-z0-9+.-]{0,31})://[!-~]{1,2000}", re.IGNORECASE)
# What may stand before the @ of an address that is made of a login: the names in bookings are anybody's to write.
LOGIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
# Names that are no person's in a domain, but an office's or a list's; a line in the contacts makes them one.
OFFICES = re.compile(
    "abuse|admin|administrator|all|announce|contact|everybody|everyone|group|help|hostmaster|info|it|lab|lists?|mail|"
    "mailer-daemon|members|news|no-?reply|nobody|office|operator|ops|postmaster|root|security|staff|students|support|"
    "sysadmin|system|team|test|users?|webmaster|www"
)
COMMENT = re.compile(r"(?:^|\s)#.*")
HEADING = ("login", "address")
MAILS = ("mailto", "mailtos")
LONGEST_NAME = 80
LONGEST_LINE = 3000
MOST_WAYS = 10


@dataclass(frozen=True)
class Contact:
    """One way to a person: its kind is `mail` for an address, `slack` for a member id, else the scheme of a URL.

    Where `url` is set the address is one that apprise understands; else it is a bare mail address or member id.
    """

    kind: str
    address: str = field(repr=False)
    url: bool = False

    @property
    def written(self) -> str:
        """The address as it stands in the file: `slack:` is before a member id."""
        return f"{SLACK}:{self.address}" if self.kind == SLACK and not self.url else self.address


@dataclass(frozen=True)
class Contacts:
    """Who is told by which ways; not `whole` where a file could not be read, so that whoever is not here may be there.

    `known` has logins as `folded` makes them. Aliases lead from other names to them, but others than the admin may
    write those: they take away no address that somebody has, and make nobody known under a name that is not theirs.
    """

    known: Mapping[str, tuple[Contact, ...]] = field(default_factory=dict, repr=False)
    domain: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict, repr=False)
    whole: bool = True
    problems: tuple[str, ...] = ()

    def through(self, aliases: Mapping[str, str]) -> Contacts:
        """The same with the names of aliases.csv (`People.aliases`)."""
        return replace(self, aliases=aliases)

    def ways(self, person: str, via: str = "") -> tuple[Contact, ...]:
        """The ways to a person: those of the kind `via`, or all where none of theirs is of it; empty if there is none.

        Those of this very name come before those of their other names. Whoever has no line has LOGIN@DOMAIN, where a
        domain is set.
        """
        found = self.known.get(folded(person.strip()), ())
        if not found:
            others = (way for login in self.logins(person) for way in self.known[login])
            found = tuple(dict.fromkeys(others))[:MOST_WAYS]
        if not found and self.whole and self.domain and is_login(login := self.login(person)):
            found = (Contact(MAIL, f"{login}@{self.domain}"),)
        return tuple(way for way in found if way.kind == via) or found

    def addresses(self, person: str) -> tuple[str, ...]:
        """The same as they are written: a mail address, a URL, or `slack:MEMBER-ID`."""
        return tuple(way.written for way in self.ways(person))

    def logins(self, person: str) -> list[str]:
        """The logins here that are names of one person."""
        one = person_in(self.aliases, person)
        return [login for login in self.known if person_in(self.aliases, login) == one]

    def login(self, person: str) -> str:
        """The login of a person: the name itself where it has a line, else the first in aliases.csv that can be one."""
        given, one = folded(person.strip()), person_in(self.aliases, person)
        if given in self.known:
            return given
        names = (name for name in self.aliases if LOGIN.fullmatch(name) and person_in(self.aliases, name) == one)
        return next(names, given)

    def person_of(self, kind: str, address: str) -> str | None:
        """The login that has a mail address (LOGIN@DOMAIN too) or a member id of Slack; None where that is not sure."""
        wanted = address.lower()
        several = [
            login
            for login, ways in self.known.items()
            if any(way.kind == kind and not way.url and way.address.lower() == wanted for way in ways)
        ]
        if several:
            return several[0] if self.are_one(several) else None
        login, _, domain = wanted.partition("@")
        if kind != MAIL or not self.domain or domain != self.domain.lower() or not LOGIN.fullmatch(login):
            return None
        # whoever has another address in the contacts does not read this one, and neither may another name of theirs
        return login if not self.logins(login) and self.login(login) == login else None

    def shared(self) -> list[tuple[str, ...]]:
        """Logins that have one member id of Slack: whoever writes from there could be any of them."""
        several: dict[str, list[str]] = {}
        for login, ways in self.known.items():
            for way in ways:
                if way.kind == SLACK and not way.url:
                    several.setdefault(way.address, []).append(login)
        return [tuple(logins) for logins in several.values() if not self.are_one(logins)]

    def are_one(self, logins: Collection[str]) -> bool:
        """Whether they are names of one person."""
        return len({person_in(self.aliases, login) for login in logins}) == 1


def is_login(name: str) -> bool:
    """Whether LOGIN@DOMAIN may be the address of a person."""
    return bool(LOGIN.fullmatch(name)) and not OFFICES.fullmatch(name)


def person_in(aliases: Mapping[str, str], name: str) -> str:
    """One word for one person, as `People.person` has it."""
    name = name.strip()
    return folded(aliases.get(lowered(name), name))


def read(data: bytes, domain: str | None = None) -> Contacts:
    """The ways to each person; a line that cannot be read costs that line, and its words are never told."""
    found: dict[str, dict[Contact, None]] = {}
    problems: list[str] = []
    for number, line in enumerate(text_of(data).lstrip("\ufeff").split("\n"), 1):
        text = COMMENT.sub("", line).strip()
        login, comma, address = (part.strip() for part in text.partition(","))
        if not text or (number == 1 and (login.lower(), address.lower()) == HEADING):
            continue
        way = way_of(address) if comma and len(text) <= LONGEST_LINE else None
        if not comma or not login or len(login) > LONGEST_NAME or URL.match(login):
            problems.append(f"line {number}: it is not of the form login,address")
        elif way is None:
            wanted = "a mail address, slack:MEMBER-ID, or an address of a service such as tgram://…"
            problems.append(f"line {number}: the address behind the comma is not {wanted}")
        elif len(ways := found.setdefault(folded(login), {})) == MOST_WAYS and way not in ways:
            problems.append(f"line {number}: this person has more than {MOST_WAYS} addresses; this one does not count")
        else:
            ways[way] = None
    return Contacts({login: tuple(ways) for login, ways in found.items()}, domain, problems=bounded(problems))


def way_of(address: str) -> Contact | None:
    """An address, as people write it."""
    if ADDRESS.fullmatch(address):
        return Contact(MAIL, address)
    if member := MEMBER.fullmatch(address):
        return Contact(SLACK, member[1].upper())
    if url := URL.fullmatch(address):
        scheme = url[1].lower()
        return Contact(MAIL if scheme in MAILS else scheme, address, url=True)
    return None
