"""People: the names to show, who is the same person, and which names are logins that we know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class People:
    """Names through aliases.csv (in lower case, to the name to show) and the logins that were ever seen on a host."""

    def __init__(self, aliases: Mapping[str, str], logins: Iterable[str] = ()) -> None:
        """Logins that are not in aliases.csv stand for themselves."""
        self.aliases = aliases
        self.known = {self.person(login) for login in logins} | {name.lower() for name in aliases.values()}

    def shown(self, name: str) -> str:
        """The name to show."""
        return self.aliases.get(name.lower(), name)

    def person(self, name: str) -> str:
        """One word for one person, whichever of their names is given."""
        return self.shown(name.strip()).lower()

    def is_known(self, name: str) -> bool:
        """Whether it is a login that was seen, or a name of one."""
        return self.person(name) in self.known

    def of_login(self, login: str | None) -> str | None:
        """The person behind a login as `ps` tells it; None if that cannot be told: a number, or a name that was cut."""
        if not login or login.isdigit():
            return None
        if not login.endswith("+"):
            return self.person(login)
        begins = [person for person in self.known if person.startswith(login[:-1].lower())]
        return begins[0] if len(begins) == 1 else None
