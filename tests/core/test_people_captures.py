"""Users as ps printed them on a machine with odd logins."""

from __future__ import annotations

from site_builder.core.people import PeopleDirectory
from tests.support.captures import list_captures, name_capture


def test_odd_logins_of_ps_are_completed_or_left_alone() -> None:
    (path,) = (path for path in list_captures("ps") if name_capture(path) == "ps-pid-user-etime-cmd")
    logins = [row.split()[1] for row in path.read_text().splitlines()[1:]]
    people = PeopleDirectory(
        {}, ["user-with-hyphen", "john.doe@realm", "ninecharsx", "domain\\user", "müller", "uid 4000000000"]
    )
    displayed = {login: people.display_login(login) for login in logins}
    assert displayed["user-wi+"] == "user-with-hyphen"
    assert displayed["john.do+"] == "john.doe@realm"
    assert displayed["domain\\+"] == "domain\\user"
    assert displayed["4000000+"] == "uid 4000000000"
    for login in ("müller", "machine$", "12345678", "eightchr", "张伟"):
        assert displayed[login] == login
