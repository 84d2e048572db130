"""Contacts: how people are reached, and that no address is ever shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_builder.alerts.contacts import Contact, Contacts, parse_contacts, resolve_contact_alias
from site_builder.core import people
from site_builder.core.people import PeopleDirectory
from tests.support.alert_fixtures import list_addresses


def written(contacts: Contacts, person: str, via: str = "") -> list[str]:
    return list(list_addresses(contacts, person, via))


def with_aliases(contacts: Contacts, aliases: Mapping[str, str]) -> Contacts:
    return replace(contacts, aliases=aliases)


@pytest.mark.parametrize(
    ("address", "way"),
    [
        ("alice@lab.org", Contact("mail", "alice@lab.org")),
        ("Alice.O'Neil+gpu@mail.lab.org", Contact("mail", "Alice.O'Neil+gpu@mail.lab.org")),
        ("slack:U0123ABCD", Contact("slack", "U0123ABCD")),
        ("Slack:w0123abcd", Contact("slack", "W0123ABCD")),
        ("tgram://123:abc/456", Contact("tgram", "tgram://123:abc/456", is_url=True)),
        ("slack://T1/B2/C3/#alice", Contact("slack", "slack://T1/B2/C3/#alice", is_url=True)),
        ("mailtos://u:p@lab.org?to=a@b.c,d@e.f", Contact("mail", "mailtos://u:p@lab.org?to=a@b.c,d@e.f", is_url=True)),
    ],
)
def test_a_line_is_a_login_and_a_contact(address: str, way: Contact) -> None:
    contacts = parse_contacts(f"\ufefflogin,address\r\n# ours\r\n alice , {address}  # her own\r\n".encode())
    assert (contacts.problems, contacts.find_contacts("alice")) == ((), (way,))
    assert list_addresses(contacts, "Alice") == (
        (address if "://" in address or "@" in address else f"slack:{way.address}"),
    )


SECRET = "s3cr3tT0ken"  # noqa: S105 # of nobody


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f"alice {SECRET}", "must be login,address"),
        (f",alice-{SECRET}@lab.org", "must be login,address"),
        (f"slack://{SECRET}/x,alice", "must be login,address"),
        (f"{SECRET * 10},alice@lab.org", "must be login,address"),
        (f"alice,{SECRET}", "the address after the comma is not a mail address"),
        (f"alice,a@b@{SECRET}", "the address after the comma is not a mail address"),
        (f"alice,-{SECRET}@lab.org", "the address after the comma is not a mail address"),
        (f"alice,alice@lab.org bcc@{SECRET}", "the address after the comma is not a mail address"),
        (f"alice,alice@lab.org,bob@{SECRET}", "the address after the comma is not a mail address"),
        (f"alice,alice@lab.org\x00{SECRET}", "the address after the comma is not a mail address"),
        (f"alice,slack:#{SECRET}", "the address after the comma is not a mail address"),
        (f"alice,tgram://{SECRET * 300}", "the address after the comma is not a mail address"),
        (f"alice,tgram://x y{SECRET}", "the address after the comma is not a mail address"),
        (f"alice,tgräm://{SECRET}", "the address after the comma is not a mail address"),
    ],
)
def test_a_line_that_is_wrong_costs_that_line_and_shows_nothing_of_it(line: str, problem: str) -> None:
    contacts = parse_contacts(f"bob,bob@lab.org\n{line}\ncarol,carol@lab.org\n".encode())
    assert set(contacts.contacts_by_login) == {"bob", "carol"}
    assert len(contacts.problems) == 1
    assert contacts.problems[0].startswith(f"line 2: {problem}")
    assert SECRET not in repr(contacts)


def test_repr_shows_no_address() -> None:
    contacts = parse_contacts(f"alice,tgram://{SECRET}\nalice,{SECRET}@lab.org\n".encode())
    assert SECRET not in f"{contacts!r} {contacts} {contacts.find_contacts('alice')}"


def test_several_lines_are_several_contacts_and_via_picks_one() -> None:
    contacts = parse_contacts(b"alice,alice@lab.org\nALICE,slack:U0123ABCD\nalice,alice@lab.org\nbob,tgram://1/2\n")
    assert written(contacts, "alice") == ["alice@lab.org", "slack:U0123ABCD"]
    assert written(contacts, "alice", "slack") == ["slack:U0123ABCD"]
    assert written(contacts, "alice", "tgram") == ["alice@lab.org", "slack:U0123ABCD"], "rather so than not at all"
    assert written(contacts, "bob", "mail") == ["tgram://1/2"]
    assert written(contacts, "carol") == []


def test_a_person_has_at_most_ten_contacts() -> None:
    contacts = parse_contacts(b"".join(b"alice,alice%d@lab.org\n" % number for number in range(12)))
    assert len(contacts.find_contacts("alice")) == 10
    assert [problem.partition(":")[0] for problem in contacts.problems] == ["line 11", "line 12"]


def test_whichever_name_is_given_it_is_that_person() -> None:
    names = people.parse_aliases(b"carol, cmiller, Caroline\n")
    contacts = with_aliases(
        parse_contacts(b"carol,t@lab.org\nCAROL,slack:U0123ABCD\nalice,alice@lab.org\n", "lab.org"), names
    )
    for name in ("carol", "CMiller", " caroline "):
        assert written(contacts, name) == ["t@lab.org", "slack:U0123ABCD"]
        assert resolve_contact_alias(names, name) == PeopleDirectory(names).resolve_person(name)
    assert written(contacts, "Alice") == ["alice@lab.org"]
    assert contacts.find_person("slack", "u0123abcd") == "carol"
    split = with_aliases(parse_contacts(b"cmiller,t@lab.org\ncaroline,slack:U0123ABCD\n"), names)
    assert written(split, "carol") == ["t@lab.org", "slack:U0123ABCD"]
    assert written(split, "Caroline") == ["slack:U0123ABCD"], "of several names the one that was given"


def test_an_alias_takes_neither_the_address_nor_the_name_of_another_person() -> None:
    lines = b"alice,alice@lab.org\nalice,slack:U0A\nmallory,mallory@lab.org\nmallory,slack:U0M\n"
    for line in (b"mallory, alice\n", b"alice, mallory\n", b"mallory, x, alice\n"):
        contacts = with_aliases(parse_contacts(lines, "lab.org"), people.parse_aliases(line))
        assert written(contacts, "alice") == ["alice@lab.org", "slack:U0A"]
        assert contacts.find_person("slack", "U0M") == contacts.find_login("mallory") == "mallory"
        assert contacts.find_person("mail", "mallory@lab.org") == "mallory"
    contacts = with_aliases(parse_contacts(b"", "lab.org"), people.parse_aliases(b"mallory, alice\n"))
    assert contacts.find_person("mail", "mallory@lab.org") == "mallory"


def test_whoever_has_no_line_has_an_address_of_their_login() -> None:
    names = people.parse_aliases(b"carol, cmiller, Caroline\nZoe L., zlee, Zoe\n")
    contacts = with_aliases(parse_contacts(b"alice,slack:U0123ABCD\n", "lab.org"), names)
    assert written(contacts, "Zoe") == ["zlee@lab.org"]
    assert written(contacts, "bob") == ["bob@lab.org"]
    assert written(contacts, "Caroline") == ["carol@lab.org"]
    assert written(contacts, "alice", "mail") == ["slack:U0123ABCD"], "she said how she wants to be told"
    assert written(parse_contacts(b""), "bob") == []


@pytest.mark.parametrize(
    "name", ["", "-x", "a b", "bob@evil.org", "x\r\nBcc: all", "x,y", "ü", "<x>", '"x"', "a" * 65, "../x", "x?to=y"]
)
def test_only_a_login_becomes_an_address_in_the_mail_domain(name: str) -> None:
    assert written(parse_contacts(b"", "lab.org"), name) == []


def test_no_address_is_guessed_while_the_file_cannot_be_read() -> None:
    assert Contacts(mail_domain="lab.org", is_complete=False).find_contacts("bob") == ()


def test_an_address_belongs_to_at_most_one_person() -> None:
    names = people.parse_aliases(b"frank, Frankie\n")
    lines = (
        b"alice,Alice@Lab.org\nalice,slack:U0A\nbob,slack:U0B\ncarol,slack:U0B\ndan,dan@home.net\nerin,tgram://U0E\n"
    )
    contacts = with_aliases(parse_contacts(lines, "lab.org"), names)
    assert contacts.find_person("mail", "alice@lab.ORG") == "alice"
    assert contacts.find_person("slack", "U0A") == "alice"
    assert contacts.find_person("slack", "U0B") is None, "it could be either"
    assert contacts.find_shared_members() == [("bob", "carol")]
    assert contacts.find_person("mail", "zoe@lab.org") == "zoe"
    assert contacts.find_person("mail", "frank@lab.org") == "frank"
    assert contacts.find_person("mail", "frankie@lab.org") is None, "that login may be somebody else's"
    assert contacts.find_person("mail", "dan@lab.org") is None, "he has another address"
    for kind, address in (
        ("mail", "zoe@evil.org"), ("mail", "@lab.org"), ("mail", "zoe@lab.org@lab.org"), ("mail", ""), ("slack", ""),
        ("slack", "zoe@lab.org"), ("tgram", "tgram://U0E"), ("mail", "ü@lab.org"),
    ):  # fmt: skip
        assert contacts.find_person(kind, address) is None, (kind, address)
    assert parse_contacts(b"").find_person("mail", "zoe@lab.org") is None


def test_two_logins_of_one_person_may_have_one_member_id() -> None:
    contacts = with_aliases(
        parse_contacts(b"carol,slack:U0A\ncaroline,slack:U0A\n"), people.parse_aliases(b"carol, caroline\n")
    )
    assert (contacts.find_person("slack", "U0A"), contacts.find_shared_members()) == ("carol", [])
    assert written(contacts, "caroline") == ["slack:U0A"]


@pytest.mark.slow
@given(st.binary(max_size=2000), st.text(max_size=40))
def test_whatever_stands_there_is_read(data: bytes, name: str) -> None:
    contacts = with_aliases(parse_contacts(data, "lab.org"), {"x": "y"})
    assert len(contacts.problems) <= 51
    assert all(problem.isprintable() for problem in contacts.problems)
    for way in contacts.find_contacts(name):
        assert way.address.isascii()
        assert way.address.isprintable()
    contacts.find_person("mail", name)
    contacts.find_person("slack", name)


@pytest.mark.slow
def test_a_file_of_a_megabyte_takes_no_time() -> None:
    for line in (b"a,b\n", b"x" * 2000 + b"\n", b"a," + b"a." * 500 + b"@" + b"a." * 500 + b"\n", b" " * 2000 + b"#\n"):
        assert len(parse_contacts(line * (1_000_000 // len(line))).problems) <= 51
    many = b"".join(b"user%d,user%d@lab.org\n" % (number, number) for number in range(20_000))
    assert len(parse_contacts(many).contacts_by_login) == 20_000


def test_a_role_mailbox_is_no_person_without_a_line() -> None:
    assert (
        Contacts(mail_domain="lab.org").find_contacts("Staff")
        == Contacts(mail_domain="lab.org").find_contacts("root")
        == ()
    )
    assert list_addresses(parse_contacts(b"root,admin@lab.org\n", "lab.org"), "root") == ("admin@lab.org",)
