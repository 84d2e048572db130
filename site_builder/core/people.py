"""Tell people apart: logins, aliases and the names that are shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from site_builder.core.names import fold_alias, fold_login
from site_builder.core.terminal_text import decode_text


def parse_aliases(data: bytes) -> dict[str, str]:
    """The name to show for each name, in lower case: case does not matter."""
    shown: dict[str, str] = {}
    for line in decode_text(data).split("\n"):
        names = [name for cell in line.partition("#")[0].split(",") if (name := cell.strip())]
        for name in names:
            shown[fold_alias(name)] = names[-1]
    return shown


# A user without a name, as `ps` or we tell them; one above 2³¹ may be printed negative.
UID_PATTERN = re.compile(r"(?:uid )?(-?[0-9]{1,10})")
UID_MODULUS = 2**32
# The column of `ps` has room for eight digits.
MIN_TRUNCATED_UID = 10**8
MAX_CACHED_LOGINS = 20_000


def parse_uid(user: str) -> int | None:
    """The number of a user that is told by nothing else."""
    if user[:1].isalpha() and not user.startswith("uid "):  # nearly all, and there are many
        return None
    found = UID_PATTERN.fullmatch(user)
    return int(found[1]) % UID_MODULUS if found else None


def is_truncated_login(user: str) -> bool:
    """Whether `ps` left out the end of it."""
    return user.endswith("+")


class PeopleDirectory:
    """Names through aliases.csv (in lower case, to the name to show) and the logins that were ever seen on a host."""

    def __init__(self, aliases: Mapping[str, str], logins: Iterable[str] = ()) -> None:
        """Logins that are not in aliases.csv stand for themselves."""
        self.aliases = aliases
        self.logins = frozenset(logins)
        spelt = {fold_login(login): login for login in sorted(self.logins) if self.is_full_login(login)}
        self.known_names = {**dict(zip(aliases, aliases)), **spelt}
        self.known_people = {self.resolve_person(name) for name in self.known_names}
        self.full_login_cache: dict[str, str | None] = {}

    def display_name(self, name: str) -> str:
        """The name to show."""
        return self.aliases.get(fold_alias(name), name)

    def resolve_person(self, name: str) -> str:
        """One word for one person, whichever of their names is given."""
        return fold_login(self.display_name(name.strip()))

    def is_aliased(self, login: str) -> bool:
        """Whether aliases.csv has a name to show for this very login, or for its number."""
        return fold_alias(login if is_truncated_login(login) else self.find_full_login(login) or login) in self.aliases

    def is_known(self, name: str) -> bool:
        """Whether it is a login that was seen, or a name of one."""
        return self.resolve_person(name) in self.known_people

    def find_person(self, login: str | None) -> str | None:
        """The person behind a login as `ps` tells it; None if that cannot be told: a number, or a name that was cut."""
        whole = self.find_full_login(login) if login else None
        if whole is None or (parse_uid(whole) is not None and fold_alias(whole) not in self.aliases):
            return None
        return self.resolve_person(whole)

    def resolve_user(self, login: str) -> str:
        """One word for one user, also where nobody knows who that is."""
        return self.resolve_person(self.find_full_login(login) or login)

    def display_login(self, login: str) -> str:
        """The name to show for a login as `ps` tells it: in full, if it was cut and can be but one."""
        named = self.display_name(self.find_full_login(login) or login)
        # digits alone may be a name: whose process it is tells that, and says `uid` where they are none
        return login if named == f"uid {login}" else named

    def choose_display_name(self, names: Sequence[str]) -> str:
        """Choose among several spellings of one person's name: the one in aliases.csv, or else the plainest."""
        aliased = sorted(self.display_login(name) for name in names if self.is_aliased(name))
        plainest = min(
            names, key=lambda name: (is_truncated_login(name), name.isdecimal(), name != fold_login(name), name)
        )
        return aliased[0] if aliased else self.display_login(plainest)

    def find_full_login(self, login: str) -> str | None:
        """A login in full, as aliases.csv has it if it does; `uid 1234` for a number; None where nobody can tell."""
        if login not in self.full_login_cache:
            if len(self.full_login_cache) >= MAX_CACHED_LOGINS:  # a host can claim anything
                self.full_login_cache.clear()
            self.full_login_cache[login] = self.compute_full_login(login)
        return self.full_login_cache[login]

    def compute_full_login(self, login: str) -> str | None:
        """The same; there are few people, and they have many processes."""
        if fold_alias(login) in self.aliases:
            return login
        number = parse_uid(login)
        if number is not None:
            named = f"uid {number}"
            return str(number) if str(number) in self.aliases and named not in self.aliases else named
        return self.complete_truncated_login(login) if is_truncated_login(login) else login

    def complete_truncated_login(self, login: str) -> str | None:
        """The one whose login begins like this, of all that are known; None where there are several, or none."""
        cut = {fold_login(login[:-1]), fold_alias(login[:-1])}
        # a shorter one would not have been cut
        shortest = len(login) if login.isascii() else 0
        # of all names, or a short name to show would hide a second person whose login begins like this
        names = [
            spelt
            for name, spelt in (self.list_known_uids() if login[:-1].isdecimal() else self.known_names).items()
            if name.startswith(tuple(cut)) and len(name) >= shortest
        ]
        # in the order of their names, so that the same one is taken at each build
        return min(names) if len({self.resolve_person(name) for name in names}) == 1 else None

    def list_known_uids(self) -> dict[str, str]:
        """The numbers of users that are known, each with how it is told."""
        seen = {str(number): f"uid {number}" for login in self.logins if (number := parse_uid(login)) is not None}
        return {**seen, **{name: name for name in self.aliases if name.isascii() and name.isdecimal()}}

    @classmethod
    def is_worth_remembering(cls, login: str) -> bool:
        """Whether it is worth remembering: a name in full, or a number that `ps` elsewhere may have cut."""
        number = parse_uid(login)
        return cls.is_full_login(login) if number is None else number >= MIN_TRUNCATED_UID

    @staticmethod
    def is_full_login(login: str) -> bool:
        """Whether it is a name in full, neither a number nor one that `ps` cut."""
        return parse_uid(login) is None and not is_truncated_login(login)
