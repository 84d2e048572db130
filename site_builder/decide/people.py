"""People: the names to show, who is the same person, and which names are logins that we know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from site_builder.readers.names import folded, lowered


class People:
    """Names through aliases.csv (in lower case, to the name to show) and the logins that were ever seen on a host."""

    def __init__(self, aliases: Mapping[str, str], logins: Iterable[str] = ()) -> None:
        """Logins that are not in aliases.csv stand for themselves."""
        self.aliases = aliases
        self.names = {folded(login) for login in logins if self.is_login(login)} | set(aliases)
        self.known = {self.person(name) for name in self.names}

    def shown(self, name: str) -> str:
        """The name to show."""
        return self.aliases.get(lowered(name), name)

    def person(self, name: str) -> str:
        """One word for one person, whichever of their names is given."""
        return folded(self.shown(name.strip()))

    def is_known(self, name: str) -> bool:
        """Whether it is a login that was seen, or a name of one."""
        return self.person(name) in self.known

    def of_login(self, login: str | None) -> str | None:
        """The person behind a login as `ps` tells it; None if that cannot be told: a number, or a name that was cut."""
        if not login or login.isdigit():
            return None
        if self.is_login(login):
            return self.person(login)
        # of all names, or a short name to show would hide a second person whose login begins like this
        cut = {folded(login[:-1]), lowered(login[:-1])}
        begins = {self.person(name) for name in self.names if name.startswith(tuple(cut))}
        return begins.pop() if len(begins) == 1 else None

    @staticmethod
    def is_login(login: str) -> bool:
        """Whether it is a name in full, neither a number nor one that `ps` cut."""
        return not login.isdigit() and not login.endswith("+")
