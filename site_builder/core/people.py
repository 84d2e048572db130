"""People: the names to show, who is the same person, and which names are logins that we know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from site_builder.core.names import folded, lowered

# A user without a name, as `ps` or we tell them; one above 2³¹ may be printed negative.
NUMBER = re.compile(r"(?:uid )?(-?[0-9]{1,10})")
NUMBERS = 2**32
# The column of `ps` has room for eight digits.
CUT_FROM = 10**8
MOST_REMEMBERED = 20_000


def number_of(user: str) -> int | None:
    """The number of a user that is told by nothing else."""
    if user[:1].isalpha() and not user.startswith("uid "):  # nearly all, and there are many
        return None
    found = NUMBER.fullmatch(user)
    return int(found[1]) % NUMBERS if found else None


def is_cut(user: str) -> bool:
    """Whether `ps` left out the end of it."""
    return user.endswith("+")


class People:
    """Names through aliases.csv (in lower case, to the name to show) and the logins that were ever seen on a host."""

    def __init__(self, aliases: Mapping[str, str], logins: Iterable[str] = ()) -> None:
        """Logins that are not in aliases.csv stand for themselves."""
        self.aliases = aliases
        self.logins = frozenset(logins)
        spelt = {folded(login): login for login in sorted(self.logins) if self.is_login(login)}
        self.names = {**dict(zip(aliases, aliases)), **spelt}
        self.known = {self.person(name) for name in self.names}
        self.wholes: dict[str, str | None] = {}

    def shown(self, name: str) -> str:
        """The name to show."""
        return self.aliases.get(lowered(name), name)

    def person(self, name: str) -> str:
        """One word for one person, whichever of their names is given."""
        return folded(self.shown(name.strip()))

    def is_aliased(self, login: str) -> bool:
        """Whether aliases.csv has a name to show for this very login, or for its number."""
        return lowered(login if is_cut(login) else self.whole(login) or login) in self.aliases

    def is_known(self, name: str) -> bool:
        """Whether it is a login that was seen, or a name of one."""
        return self.person(name) in self.known

    def of_login(self, login: str | None) -> str | None:
        """The person behind a login as `ps` tells it; None if that cannot be told: a number, or a name that was cut."""
        whole = self.whole(login) if login else None
        if whole is None or (number_of(whole) is not None and lowered(whole) not in self.aliases):
            return None
        return self.person(whole)

    def one(self, login: str) -> str:
        """One word for one user, also where nobody knows who that is."""
        return self.person(self.whole(login) or login)

    def user(self, login: str) -> str:
        """The name to show for a login as `ps` tells it: in full, if it was cut and can be but one."""
        named = self.shown(self.whole(login) or login)
        # digits alone may be a name: whose process it is tells that, and says `uid` where they are none
        return login if named == f"uid {login}" else named

    def whole(self, login: str) -> str | None:
        """A login in full, as aliases.csv has it if it does; `uid 1234` for a number; None where nobody can tell."""
        if login not in self.wholes:
            if len(self.wholes) >= MOST_REMEMBERED:  # a host can claim anything
                self.wholes.clear()
            self.wholes[login] = self.worked_out(login)
        return self.wholes[login]

    def worked_out(self, login: str) -> str | None:
        """The same; there are few people, and they have many processes."""
        if lowered(login) in self.aliases:
            return login
        number = number_of(login)
        if number is not None:
            named = f"uid {number}"
            return str(number) if str(number) in self.aliases and named not in self.aliases else named
        return self.join(login) if is_cut(login) else login

    def join(self, login: str) -> str | None:
        """The one whose login begins like this, of all that are known; None where there are several, or none."""
        cut = {folded(login[:-1]), lowered(login[:-1])}
        # a shorter one would not have been cut
        shortest = len(login) if login.isascii() else 0
        # of all names, or a short name to show would hide a second person whose login begins like this
        names = [
            spelt
            for name, spelt in (self.numbers() if login[:-1].isdecimal() else self.names).items()
            if name.startswith(tuple(cut)) and len(name) >= shortest
        ]
        # in the order of their names, so that the same one is taken at each build
        return min(names) if len({self.person(name) for name in names}) == 1 else None

    def numbers(self) -> dict[str, str]:
        """The numbers of users that are known, each with how it is told."""
        seen = {str(number): f"uid {number}" for login in self.logins if (number := number_of(login)) is not None}
        return {**seen, **{name: name for name in self.aliases if name.isascii() and name.isdecimal()}}

    @classmethod
    def is_learned(cls, login: str) -> bool:
        """Whether it is worth remembering: a name in full, or a number that `ps` elsewhere may have cut."""
        number = number_of(login)
        return cls.is_login(login) if number is None else number >= CUT_FROM

    @staticmethod
    def is_login(login: str) -> bool:
        """Whether it is a name in full, neither a number nor one that `ps` cut."""
        return number_of(login) is None and not is_cut(login)
